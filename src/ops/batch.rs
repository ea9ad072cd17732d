//! Batching: every op over one more axis, as formulas.
//!
//! [`Batching`] is an emission between a formula and another emission, the one *below*. The formula
//! sees single examples; the values below have an axis of all examples in front wherever they
//! depend on an example. So a formula is batched by running it, and a batch of batches by nesting.
//! A call of a composite stays a call if no operand is mapped, if it works element by element, or
//! if its declaration has a batching rule, which then makes it; otherwise the composite's formula
//! is batched.

use std::cell::RefCell;

use smallvec::SmallVec;

use super::declare::{Arguments, Composite, Outputs, Param, ParamKind};
use super::emit::{Arg, Emit, Expr, Id, OrThrow, throw};
use super::number::Number;
use super::op::{Call, Op, OperandType, SliceAxis, Type, Types};
use super::scan::{self, Scan};
use super::structural::OpKind;
use crate::dtype::{DType, Numeric, Scalar};
use crate::error;
use crate::shape::{Axes, Dim, Shape};

/// An operand of a batched op: the value below that stands for it.
#[derive(Clone, Copy)]
pub struct Batched<'e> {
    /// The value of the emission below
    pub x: Expr<'e>,
    /// Whether axis 0 counts examples; if not, all examples share the value
    pub mapped: bool,
}

/// A call for each example, which the composite's batching rule replaces by one call for all.
pub struct BatchedCall<'a, 'e> {
    below: &'e dyn Emit,
    /// The call of one example
    pub call: &'a Call,
    /// The operands, at least one of which is mapped
    pub args: &'a [Batched<'e>],
    /// How many examples there are
    pub size: Dim,
}

impl<'e> BatchedCall<'_, 'e> {
    /// The positions of parameters among the operands.
    pub fn places<const N: usize>(&self, names: [&str; N]) -> [Option<usize>; N] {
        names.map(|name| self.call.operand(name))
    }

    /// Emits the same call below, on these operands, and returns its results.
    pub fn on(&self, operands: &[Arg]) -> Outputs<'e> {
        let op = Op::Call(self.call.clone());
        let count = op.results();
        let id = self.below.emit(op, operands);
        let result = |k| Expr::new(self.below, Arg::Node(self.below.result(id, k)));
        (0..count).map(result).collect()
    }
}

/// A composite on all examples: its results have the examples along axis 0. `None` where one call
/// does not serve them all: then their formulas run side by side.
pub type BatchRule = for<'e> fn(&BatchedCall<'_, 'e>) -> Option<Outputs<'e>>;

/// A value that the formula sees.
struct Value {
    below: Id,
    mapped: bool,
    /// The type for one example
    ty: Type,
}

/// The emission that batches.
pub struct Batching<'e> {
    below: &'e dyn Emit,
    size: Dim,
    values: RefCell<Vec<Value>>,
}

impl<'e> Batching<'e> {
    /// Batches `size` examples into another emission.
    pub fn new(below: &'e dyn Emit, size: Dim) -> Batching<'e> {
        Batching { below, size, values: RefCell::default() }
    }

    /// Makes a value of the formula from one below, whose axis 0 counts examples where `mapped`.
    pub fn value(&self, below: Id, mapped: bool) -> Id {
        let mut ty = self.below.ty(below);
        if mapped {
            ty.shape.dims_mut().remove(0);
        }
        self.push(Value { below, mapped, ty })
    }

    /// The value below that stands for a value, and whether it is mapped.
    pub fn below(&self, id: Id) -> (Id, bool) {
        let values = self.values.borrow();
        let value = &values[id.0 as usize];
        (value.below, value.mapped)
    }

    /// The value below that stands for a value, with an axis of examples in any case.
    pub fn mapped(&self, id: Id) -> Id {
        let (below, mapped) = self.below(id);
        let x = Batched { x: Expr::new(self.below, Arg::Node(below)), mapped };
        match x.spread(self.size).arg() {
            Arg::Node(id) => id,
            Arg::Number(_) => unreachable!("a value is a node"),
        }
    }

    fn push(&self, value: Value) -> Id {
        let mut values = self.values.borrow_mut();
        values.push(value);
        Id(values.len() as u32 - 1)
    }

    fn operand(&self, arg: Arg) -> Batched<'e> {
        match arg {
            Arg::Number(_) => Batched { x: Expr::new(self.below, arg), mapped: false },
            Arg::Node(id) => {
                let (below, mapped) = self.below(id);
                Batched { x: Expr::new(self.below, Arg::Node(below)), mapped }
            }
        }
    }

    /// Keeps a call that works element by element, with its own gradient: one tensor, a result of
    /// the same type, and no parameter that could name an axis.
    fn call_as_it_is(&self, call: &Call, op: &Op, args: &[Arg]) -> Option<Id> {
        let names_no_axis = |param: &Param| match param.kind {
            ParamKind::Tensor(_)
            | ParamKind::Bool
            | ParamKind::MaybeBool
            | ParamKind::Float
            | ParamKind::MaybeFloat
            | ParamKind::Number
            | ParamKind::MaybeNumber
            | ParamKind::Word(_) => true,
            ParamKind::MaybeTensor(_)
            | ParamKind::Tensors
            | ParamKind::Int
            | ParamKind::MaybeInt
            | ParamKind::Ints
            | ParamKind::Pairs
            | ParamKind::Shape
            | ParamKind::DType
            | ParamKind::MaybeDType
            | ParamKind::Padding
            | ParamKind::Text
            | ParamKind::MaybeDevice
            | ParamKind::Key => false,
        };
        let mut tensors = args.iter().filter(|arg| matches!(arg, Arg::Node(_)));
        let (Some(&Arg::Node(x)), None) = (tensors.next(), tensors.next()) else { return None };
        let plain = self.below.keeps(call.composite)
            && op.results() == 1
            && call.composite.params.iter().all(names_no_axis)
            && self.infer(op, args).equals(&self.ty(x));
        if !plain {
            return None;
        }
        let (id, mapped) = self.below(x);
        let below: SmallVec<[Arg; 4]> = args
            .iter()
            .map(|arg| if let Arg::Node(_) = arg { Arg::Node(id) } else { *arg })
            .collect();
        let below = self.below.emit(op.clone(), &below);
        Some(self.push(Value { below, mapped, ty: self.ty(x) }))
    }

    /// Keeps a call if no operand is mapped, or replaces it by its composite's batching rule.
    /// Returns the first of its results, which have consecutive ids.
    fn call_by_rule(&self, call: &Call, op: &Op, args: &[Arg]) -> Option<Id> {
        if !self.below.keeps(call.composite) {
            return None;
        }
        let operands: SmallVec<[Batched<'_>; 8]> =
            args.iter().map(|&arg| self.operand(arg)).collect();
        // Operands that the op refuses are reported with the sizes of one example.
        let types = self.infer_all(op, args);
        let mapped = operands.iter().any(|x| x.mapped);
        let batched = BatchedCall { below: self.below, call, args: &operands, size: self.size };
        let found = match (mapped, call.composite.batch) {
            (false, _) => {
                let shared: SmallVec<[Arg; 8]> = operands.iter().map(|x| x.x.arg()).collect();
                batched.on(&shared)
            }
            (true, Some(rule)) if !self.size.equals(0) => rule(&batched)?,
            (true, Some(_) | None) => return None,
        };
        let first = Id(self.values.borrow().len() as u32);
        for (x, ty) in found.iter().zip(types) {
            self.push(Value { below: x.node(), mapped, ty });
        }
        Some(first)
    }

    /// The type of one example's result.
    fn infer(&self, op: &Op, args: &[Arg]) -> Type {
        self.infer_all(op, args).swap_remove(0)
    }

    /// The types of one example's results.
    fn infer_all(&self, op: &Op, args: &[Arg]) -> Types {
        let values = self.values.borrow();
        let types: SmallVec<[OperandType<'_>; 4]> = args
            .iter()
            .map(|arg| match *arg {
                Arg::Number(value) => OperandType::Scalar(value),
                Arg::Node(id) => {
                    let ty = &values[id.0 as usize].ty;
                    OperandType::Tensor(ty.dtype, &ty.shape)
                }
            })
            .collect();
        op.infer_all(&types).or_throw()
    }
}

impl Emit for Batching<'_> {
    fn emit(&self, op: Op, args: &[Arg]) -> Id {
        if let Op::Call(call) = &op {
            if let Some(id) = self.call_as_it_is(call, &op, args) {
                return id;
            }
            if let Some(first) = self.call_by_rule(call, &op, args) {
                return first;
            }
            let arguments = Arguments { cx: self, attributes: &call.attributes, operands: args };
            let found: SmallVec<[Id; 2]> =
                call.composite.formula(&arguments).iter().map(|x| x.node()).collect();
            if let [one] = found.as_slice() {
                return *one;
            }
            // The results get consecutive ids, so that each is found from the first.
            let first = Id(self.values.borrow().len() as u32);
            for id in found {
                let (below, mapped) = self.below(id);
                let ty = self.ty(id);
                self.push(Value { below, mapped, ty });
            }
            return first;
        }
        let ty = self.infer(&op, args);
        let operands: SmallVec<[Batched<'_>; 4]> =
            args.iter().map(|&arg| self.operand(arg)).collect();
        if !operands.iter().any(|x| x.mapped) {
            let below: SmallVec<[Arg; 4]> = operands.iter().map(|x| x.x.arg()).collect();
            return self.push(Value { below: self.below.emit(op, &below), mapped: false, ty });
        }
        let y = match self.size.equals(0) {
            true => operands[0].x.scalar(0).full(ty.dtype, front(self.size, &ty.shape)),
            false => op.batch(&operands, self.size, &ty),
        };
        match y.arg() {
            Arg::Node(below) => self.push(Value { below, mapped: true, ty }),
            Arg::Number(_) => unreachable!("an op's result is a node"),
        }
    }

    fn result(&self, id: Id, k: usize) -> Id {
        Id(id.0 + k as u32)
    }

    /// A scan below whose rounds are those of all examples. If one operand has examples, all
    /// carries and results have.
    fn scan(&self, scan: &Scan<'_>) -> scan::Results {
        let operands: SmallVec<[Batched<'_>; 8]> =
            scan.operands().map(|arg| self.operand(arg)).collect();
        if !operands.iter().any(|x| x.mapped) {
            let below: SmallVec<[Arg; 8]> = operands.iter().map(|x| x.x.arg()).collect();
            let found = self.below.scan(&scan.on(&below));
            let one = |below| self.push(Value { below, mapped: false, ty: self.below.ty(below) });
            return found.into_iter().map(one).collect();
        }
        let carries = scan.carry.len();
        let xs = carries..carries + scan.xs.len();
        let mapped: SmallVec<[bool; 8]> =
            operands.iter().enumerate().map(|(i, x)| i < carries || x.mapped).collect();
        let below = operands.iter().enumerate().map(|(i, x)| match (i < carries, x.mapped) {
            (true, _) => x.spread(self.size).arg(),
            (false, true) if xs.contains(&i) => x.x.permute(swapped(x.x.rank())).arg(),
            (false, _) => x.x.arg(),
        });
        let below: SmallVec<[Arg; 8]> = below.collect();
        let round: scan::Round<'_> = &|cx, inputs| {
            let all = Batching::new(cx, self.size);
            let given: SmallVec<[Expr<'_>; 8]> = inputs
                .iter()
                .zip(&mapped)
                .map(|(x, &mapped)| Expr::new(&all, Arg::Node(all.value(x.node(), mapped))))
                .collect();
            let found = (scan.round)(&all, &given);
            found.iter().map(|x| Expr::new(cx, Arg::Node(all.mapped(x.node())))).collect()
        };
        let found = self.below.scan(&Scan { round, ..scan.on(&below) });
        let one = |(k, below): (usize, Id)| {
            let x = Expr::new(self.below, Arg::Node(below));
            let x = if k < carries { x } else { x.permute(swapped(x.rank())) };
            self.value(x.node(), true)
        };
        found.into_iter().enumerate().map(one).collect()
    }

    fn ty(&self, id: Id) -> Type {
        self.values.borrow()[id.0 as usize].ty.clone()
    }

    fn keeps(&self, composite: &'static Composite) -> bool {
        composite.batch.is_some() && self.below.keeps(composite)
    }

    fn number(&self, number: Number) -> Numeric {
        self.below.number(number)
    }

    fn size_behind(&self, value: Numeric) -> Option<Dim> {
        self.below.size_behind(value)
    }

    fn looks_at(&self, number: u32) -> Option<Scalar> {
        self.below.looks_at(number)
    }
}

/// The order of axes in which the first two are exchanged.
fn swapped(rank: usize) -> Axes {
    let mut axes: Axes = (0..rank).collect();
    axes.swap(0, 1);
    axes
}

/// A shape with one more axis in front.
pub fn front(size: Dim, shape: &Shape) -> Shape {
    std::iter::once(size).chain(shape.dims().iter().copied()).collect()
}

/// The same axes behind one more leading axis.
pub fn shift(axes: &[usize]) -> Axes {
    axes.iter().map(|axis| axis + 1).collect()
}

/// The same slice behind a leading axis of examples, of which it takes all.
pub fn shift_slice(size: Dim, at: &[SliceAxis]) -> Box<[SliceAxis]> {
    std::iter::once(SliceAxis::all(size)).chain(at.iter().copied()).collect()
}

impl<'e> Batched<'e> {
    /// The rank of one example.
    pub fn rank(self) -> usize {
        self.x.rank() - usize::from(self.mapped)
    }

    /// The value with an axis of examples in any case.
    pub fn spread(self, size: Dim) -> Expr<'e> {
        let shape = self.x.shape();
        if self.mapped { self.x } else { self.x.broadcast(front(size, &shape)) }
    }

    /// The value with examples of rank `rank`: axes of size 1 are inserted behind the axis of
    /// examples. A value that all examples share broadcasts as it is.
    pub fn padded(self, rank: usize) -> Expr<'e> {
        if !self.mapped || self.rank() == rank {
            return self.x;
        }
        let shape = self.x.shape();
        let Some(missing) = rank.checked_sub(self.rank()) else {
            let what = format!("an operand of shape {shape} in a batch of rank {rank}");
            throw(error::internal(what))
        };
        let ones = std::iter::repeat_n(Dim::ONE, missing);
        let dims = shape.dims();
        self.x.reshape(
            std::iter::once(dims[0]).chain(ones).chain(dims[1..].iter().copied()).collect(),
        )
    }
}

impl<'e> Expr<'e> {
    /// Axis `from` moved to `to`, the others in order.
    pub fn move_axis(self, from: usize, to: usize) -> Expr<'e> {
        let mut axes: Axes = (0..self.rank()).filter(|&axis| axis != from).collect();
        axes.insert(to, from);
        self.permute(axes)
    }

    /// Axes `axis` and `axis + 1` as one.
    pub fn merge(self, axis: usize) -> Expr<'e> {
        let mut shape = self.shape();
        let inner = shape.dims_mut().remove(axis + 1);
        shape.dims_mut()[axis] = shape[axis] * inner;
        self.reshape(shape)
    }

    /// Axis `axis` as two, the outer one of size `outer`.
    pub fn split(self, axis: usize, outer: Dim) -> Expr<'e> {
        let mut shape = self.shape();
        shape.dims_mut()[axis] = shape[axis] / outer;
        shape.dims_mut().insert(axis, outer);
        self.reshape(shape)
    }
}

impl Op {
    /// The op on `size` examples at once, where at least one operand is mapped; the examples of the
    /// result are along axis 0. `ty` is the type of one example's result.
    fn batch<'e>(&self, args: &[Batched<'e>], size: Dim, ty: &Type) -> Expr<'e> {
        match self.kind() {
            OpKind::Map(_) => {
                let rank = args.iter().map(|x| x.rank()).max().unwrap_or(0);
                let operands: SmallVec<[Arg; 3]> =
                    args.iter().map(|x| x.padded(rank).arg()).collect();
                args[0].x.emit_with(self.clone(), &operands)
            }
            OpKind::Call(call) => {
                let what = format!("{} reached a batching rule", call.composite.name);
                throw(error::internal(what))
            }
            OpKind::Structural(def) => (def.batch)(self, args, size, ty),
        }
    }
}

/// The index arrays of all examples behind one that counts examples, and the rank of their common
/// shape for one example.
pub fn batch_indices<'e>(indices: &[Batched<'e>], size: Dim) -> (SmallVec<[Expr<'e>; 4]>, usize) {
    let rank = indices.iter().map(|i| i.rank()).max().unwrap_or(0);
    let line = std::iter::once(size).chain(std::iter::repeat_n(Dim::ONE, rank)).collect();
    let examples = indices[0].x.iota(DType::I64, line, 0);
    (std::iter::once(examples).chain(indices.iter().map(|i| i.padded(rank))).collect(), rank)
}
