//! Constant folding: nodes whose operands are all known are computed ahead of the run, by the
//! executor that would compute them during it.
//!
//! A result stays small ([`Options::fold_bytes`]), and so do its operands, so that a number
//! repeated over a large shape is never written out: a node with the same number everywhere stays a
//! fill, and a broadcast stays a broadcast. A number that is told only at run time does not count
//! as known. Where an op refuses its operands (an index outside its axis), the node stays and the
//! run reports the error.

use smallvec::SmallVec;

use super::Evaluator;
use super::cost::{elements, of_node};
use super::expand::expanded;
use super::pipeline::Options;
use super::rebuild::{in_bodies, push, rebuild};
use crate::array::{Array, Operand};
use crate::dtype::{DType, Scalar};
use crate::error::Result;
use crate::graph::{Args, Kind, List, Node};
use crate::ops::emit::{Arg, Id};
use crate::ops::op::{Op, Type};
use crate::scalar::half::{bf16_to_f32, f16_to_f32};
use crate::shape::Shape;

/// A node with more operations than this is left for the run.
const WORK: u64 = 1 << 24;
/// The same for a list that is frozen, which is folded once and runs many times.
const FROZEN_WORK: u64 = 1 << 34;

/// A result of a frozen list has at most this many times the bytes of what it is computed from.
const GROWTH: u64 = 4;

/// Computes the known nodes.
pub fn fold(list: List, options: &Options, evaluator: &dyn Evaluator) -> Result<List> {
    fold_as(list, options, evaluator, false)
}

/// The same for a list whose constants are large and stay: a result may be as large as what it is
/// computed from, and a view of a large constant stays a view.
pub fn fold_frozen(list: List, options: &Options, evaluator: &dyn Evaluator) -> Result<List> {
    fold_as(list, options, evaluator, true)
}

fn fold_as(
    list: List,
    options: &Options,
    evaluator: &dyn Evaluator,
    is_frozen: bool,
) -> Result<List> {
    let is_known = Vec::with_capacity(list.nodes.len());
    let mut known = Known { is_known, options, evaluator, is_frozen };
    rebuild(list, |nodes, mut node| {
        in_bodies(&mut node, |body| fold_as(body, options, evaluator, is_frozen))?;
        let is_known = known.look(nodes, &mut node);
        known.is_known.push(is_known);
        Ok(push(nodes, node))
    })
}

/// Which nodes are known so far.
struct Known<'o> {
    is_known: Vec<bool>,
    options: &'o Options,
    evaluator: &'o dyn Evaluator,
    is_frozen: bool,
}

impl Known<'_> {
    /// Computes a node if it can be computed. Returns whether its value is known.
    fn look(&self, nodes: &[Node], node: &mut Node) -> bool {
        let op = match &node.kind {
            Kind::Op(op) => op,
            Kind::Constant(array) => {
                if let Some(value) = repeated(array, self.options.fold_bytes) {
                    fill(node, value);
                }
                return true;
            }
            Kind::Input
            | Kind::ControlFlow(_)
            | Kind::Result(_)
            | Kind::Effect(_)
            | Kind::Barrier => {
                return false;
            }
        };
        let from_known = node.args.iter().all(|arg| match arg {
            Arg::Node(id) => self.is_known[id.0 as usize],
            Arg::Number(value) => value.told().is_none(),
        });
        if !from_known || node.ty.shape.dims().iter().any(|d| d.known().is_none()) {
            return false;
        }
        #[allow(
            clippy::wildcard_enum_match_arm,
            reason = "what has no rule of its own is executed"
        )]
        match op {
            Op::Full(_) if matches!(node.args[0], Arg::Number(_)) => return true,
            Op::Iota(..) => return true,
            Op::Broadcast(_) => {
                past_broadcast(nodes, node);
                if let Some(value) = filling(nodes, node.args[0]) {
                    fill(node, value);
                }
                return true;
            }
            _ => {}
        }
        if let Some(value) = one_number(nodes, node, self.evaluator) {
            fill(node, value);
            return true;
        }
        self.compute(nodes, node)
    }

    /// Computes a node of known operands, if the node and its operands are small.
    fn compute(&self, nodes: &[Node], node: &mut Node) -> bool {
        let limit = self.options.fold_bytes as u64;
        let work = if self.is_frozen { FROZEN_WORK } else { WORK };
        let is_small = match self.is_frozen {
            true => {
                let given: u64 = node.reads().map(|id| stored(nodes, id)).sum();
                bytes(&node.ty) <= limit.max(given.saturating_mul(GROWTH))
            }
            false => {
                let reads = |id: Id| bytes(&nodes[id.0 as usize].ty) <= limit.saturating_mul(4);
                node.reads().all(reads) && bytes(&node.ty) <= limit
            }
        };
        if !is_small || of_node(nodes, node).flops > work {
            return false;
        }
        let Some(array) = computed(nodes, node, self.evaluator)
            .and_then(|array| self.laid_out(array))
            .filter(|array| fits(array, &node.ty))
        else {
            return false;
        };
        match repeated(&array, self.options.fold_bytes) {
            Some(value) => fill(node, value),
            None => {
                node.kind = Kind::Constant(array);
                node.args.clear();
            }
        }
        true
    }

    /// A computed value as a constant. A view would keep the memory of its whole operand alive,
    /// which is what a frozen list does anyway.
    fn laid_out(&self, array: Array) -> Option<Array> {
        let bytes = array.count().saturating_mul(array.dtype.size());
        let is_kept = self.is_frozen && bytes > self.options.fold_bytes;
        match array.is_contiguous() || is_kept {
            true => Some(array),
            false => self.evaluator.contiguous(&array).ok(),
        }
    }
}

fn bytes(ty: &Type) -> u64 {
    elements(&ty.shape).saturating_mul(ty.dtype.size() as u64)
}

/// The bytes that a known node takes as it stands: a broadcast those of its operand, a fill none.
fn stored(nodes: &[Node], id: Id) -> u64 {
    let node = &nodes[id.0 as usize];
    match (&node.kind, node.args.first()) {
        (Kind::Op(Op::Full(_)), _) => 0,
        (Kind::Op(Op::Broadcast(_)), Some(Arg::Node(id))) => bytes(&nodes[id.0 as usize].ty),
        _ => bytes(&node.ty),
    }
}

fn fits(array: &Array, ty: &Type) -> bool {
    array.dtype == ty.dtype && array.shape().same(&ty.shape)
}

/// Makes a node a fill with one number.
fn fill(node: &mut Node, value: Scalar) {
    node.kind = Kind::Op(Op::Full(node.ty.clone()));
    node.args = Args::from_slice(&[Arg::Number(value.into())]);
}

/// Replaces a broadcast operand by the operand of that broadcast, so that a chain of broadcasts
/// becomes one.
fn past_broadcast(nodes: &[Node], node: &mut Node) {
    if let Arg::Node(id) = node.args[0]
        && let inner = &nodes[id.0 as usize]
        && matches!(inner.kind, Kind::Op(Op::Broadcast(_)))
    {
        node.args[0] = inner.args[0];
    }
}

/// The number that all elements of an operand are.
fn filling(nodes: &[Node], arg: Arg) -> Option<Scalar> {
    match arg {
        Arg::Number(value) => value.known(),
        Arg::Node(id) => super::simplify::filling(&nodes[id.0 as usize])?.known(),
    }
}

/// The number that all elements of a node are, found from operands that are one number each. The
/// size of the node does not matter.
fn one_number(nodes: &[Node], node: &Node, evaluator: &dyn Evaluator) -> Option<Scalar> {
    let Kind::Op(op) = &node.kind else { return None };
    let numbers: Option<SmallVec<[Scalar; 3]>> =
        node.args.iter().map(|&arg| filling(nodes, arg)).collect();
    let numbers = numbers?;
    #[allow(
        clippy::wildcard_enum_match_arm,
        reason = "what an op without a rule gives is computed, or left for the run"
    )]
    match op {
        op if op.is_movement() => numbers.first().copied(),
        Op::Map(_) | Op::Cast(_) => {
            let one = |(&arg, &value): (&Arg, &Scalar)| match arg {
                Arg::Node(id) => {
                    single(value, nodes[id.0 as usize].ty.dtype, evaluator).ok().map(Ok)
                }
                Arg::Number(value) => value.known().map(Err),
            };
            let ones: Option<SmallVec<[std::result::Result<Array, Scalar>; 3]>> =
                node.args.iter().zip(&numbers).map(one).collect();
            let ones = ones?;
            let operands: SmallVec<[Operand<'_>; 3]> = ones
                .iter()
                .map(|one| match one {
                    Ok(array) => Operand::Array(array),
                    Err(value) => Operand::Scalar(*value),
                })
                .collect();
            first(&evaluator.evaluate(op, &operands).ok()?)
        }
        _ => None,
    }
}

/// One number as an array without axes.
fn single(value: Scalar, dtype: DType, evaluator: &dyn Evaluator) -> Result<Array> {
    let ty = Type::new(dtype, Shape::scalar());
    evaluator.evaluate(&Op::Full(ty), &[Operand::Scalar(value)])
}

/// The value of a node of known operands.
fn computed(nodes: &[Node], node: &Node, evaluator: &dyn Evaluator) -> Option<Array> {
    let Kind::Op(op) = &node.kind else { return None };
    let arrays: Option<SmallVec<[Option<Array>; 4]>> = node
        .args
        .iter()
        .map(|arg| match arg {
            Arg::Node(id) => value(nodes, *id, evaluator).map(Some),
            Arg::Number(_) => Some(None),
        })
        .collect();
    let arrays = arrays?;
    if op.results() > 1 {
        return None;
    }
    #[allow(
        clippy::wildcard_enum_match_arm,
        reason = "every op but a call without a kernel is executed alike"
    )]
    match op {
        Op::Call(it) if !evaluator.has_kernel(it.composite) => {
            call(nodes, node, &arrays, evaluator)
        }
        op => execute(op, &node.args, evaluator, |i| arrays[i].as_ref()),
    }
}

fn execute<'a>(
    op: &Op,
    args: &[Arg],
    evaluator: &dyn Evaluator,
    array: impl Fn(usize) -> Option<&'a Array>,
) -> Option<Array> {
    let operands: Option<SmallVec<[Operand<'_>; 4]>> = args
        .iter()
        .enumerate()
        .map(|(i, arg)| match arg {
            Arg::Node(_) => array(i).map(Operand::Array),
            Arg::Number(value) => value.known().map(Operand::Scalar),
        })
        .collect();
    evaluator.evaluate(op, &operands?).ok()
}

/// The value of a known node.
fn value(nodes: &[Node], id: Id, evaluator: &dyn Evaluator) -> Option<Array> {
    let node = &nodes[id.0 as usize];
    match &node.kind {
        Kind::Constant(array) => Some(array.clone()),
        Kind::Op(Op::Broadcast(shape)) => {
            let Arg::Node(inner) = node.args[0] else { return None };
            // `past_broadcast` has joined chains of broadcasts, so the recursion is one level deep.
            let inner = value(nodes, inner, evaluator)?;
            evaluator.evaluate(&Op::Broadcast(shape.clone()), &[Operand::Array(&inner)]).ok()
        }
        Kind::Op(op @ (Op::Full(_) | Op::Iota(..))) => execute(op, &node.args, evaluator, |_| None),
        Kind::Op(_)
        | Kind::Input
        | Kind::ControlFlow(_)
        | Kind::Result(_)
        | Kind::Effect(_)
        | Kind::Barrier => None,
    }
}

/// The value of a composite on known operands, by its formula.
fn call(
    nodes: &[Node],
    node: &Node,
    arrays: &[Option<Array>],
    evaluator: &dyn Evaluator,
) -> Option<Array> {
    let types: SmallVec<[&Type; 4]> = node
        .args
        .iter()
        .filter_map(|arg| match arg {
            Arg::Node(id) => Some(&nodes[id.0 as usize].ty),
            Arg::Number(_) => None,
        })
        .collect();
    let formula = expanded(node, &types).ok()?;
    let mut inputs = arrays.iter().flatten();
    let mut values: Vec<Array> = Vec::with_capacity(formula.nodes.len());
    for step in &formula.nodes {
        values.push(match &step.kind {
            Kind::Input => inputs.next()?.clone(),
            Kind::Constant(array) => array.clone(),
            Kind::Op(op) => execute(op, &step.args, evaluator, |i| match step.args[i] {
                Arg::Node(id) => values.get(id.0 as usize),
                Arg::Number(_) => None,
            })?,
            Kind::ControlFlow(_) | Kind::Result(_) | Kind::Effect(_) | Kind::Barrier => {
                return None;
            }
        });
    }
    let result = formula.outputs.first()?;
    Some(values.swap_remove(result.0 as usize))
}

/// The number that all elements of a small array are.
fn repeated(array: &Array, limit: usize) -> Option<Scalar> {
    let size = array.dtype.size();
    let bytes = array.count().checked_mul(size)?;
    if bytes == 0 || bytes > limit || !array.is_contiguous() {
        return None;
    }
    // SAFETY: a contiguous array has this many initialised bytes from its start, and they stay as
    // they are while it is borrowed.
    let contents = unsafe { std::slice::from_raw_parts(array.ptr(), bytes) };
    // Every element equals the one before it.
    (contents[size..] == contents[..bytes - size]).then(|| first(array)).flatten()
}

/// The first element, as a number that converts back to the same element.
pub fn first(array: &Array) -> Option<Scalar> {
    if array.count() == 0 {
        return None;
    }
    let float = |x: f64| match x.is_nan() {
        // Only the sign of a NaN is kept, because its payload is not part of a value.
        true => Scalar::Float(f64::NAN.copysign(x)),
        false => Scalar::Float(x),
    };
    let at = array.ptr();
    // SAFETY: there is an element, of this dtype.
    Some(unsafe {
        match array.dtype {
            DType::Bool => Scalar::Bool(at.read() & 1 == 1),
            DType::I8 => Scalar::Int(at.cast::<i8>().read().into()),
            DType::I16 => Scalar::Int(at.cast::<i16>().read().into()),
            DType::I32 => Scalar::Int(at.cast::<i32>().read().into()),
            DType::I64 => Scalar::Int(at.cast::<i64>().read()),
            DType::U8 => Scalar::Int(at.read().into()),
            DType::U16 => Scalar::Int(at.cast::<u16>().read().into()),
            DType::U32 => Scalar::Int(at.cast::<u32>().read().into()),
            DType::U64 => {
                let x = at.cast::<u64>().read();
                i64::try_from(x).map_or(Scalar::Uint(x), Scalar::Int)
            }
            DType::F16 => float(f16_to_f32(at.cast::<u16>().read()).into()),
            DType::BF16 => float(bf16_to_f32(at.cast::<u16>().read()).into()),
            DType::F32 => float(at.cast::<f32>().read().into()),
            DType::F64 => float(at.cast::<f64>().read()),
        }
    })
}
