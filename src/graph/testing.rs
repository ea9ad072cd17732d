//! An interpreter that computes a list as it is written, for tests of passes and plans.
//!
//! No node is merged, reordered or skipped, so its results are the ones that passes and plans are
//! compared with.

use std::cell::RefCell;
use std::sync::Arc;

use smallvec::SmallVec;

use super::numbers::valued;
use super::{ControlFlow, ControlFlowKind, Effect, Graph, Kind, List, Node};
use crate::array::Array;
use crate::cpu;
use crate::cpu::testing::{array, random, values};
use crate::dtype::{DType, Scalar};
use crate::error::{self, Result};
use crate::ops::declare::Arguments;
use crate::ops::emit::{Arg, Expr};
use crate::ops::op::{Call, Op, SliceAxis, Type};
use crate::ops::structural::whole;
use crate::shape::{Dim, Shape};

thread_local! {
    static PRINTED: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// The texts that lists printed on this thread since the last call.
pub fn printed() -> Vec<String> {
    PRINTED.take()
}

/// The results of a graph whose nodes are computed one at a time.
pub fn one_by_one(graph: &Graph, inputs: &[&Array], numbers: &[Scalar]) -> Vec<Array> {
    try_one_by_one(graph, inputs, numbers).unwrap()
}

/// The same, or the error where the data is refused.
pub fn try_one_by_one(graph: &Graph, inputs: &[&Array], numbers: &[Scalar]) -> Result<Vec<Array>> {
    let inputs: Vec<Array> = inputs.iter().map(|&x| x.clone()).collect();
    run(&graph.list(), &inputs, numbers)
}

/// A list, such as a body of control flow, by the types of its inputs and the formula of its
/// results.
pub fn body(
    types: &[Type],
    formula: impl for<'g> FnOnce(&[Expr<'g>]) -> SmallVec<[Expr<'g>; 1]>,
) -> Arc<List> {
    let graph = Graph::new();
    let inputs: Vec<Expr<'_>> =
        types.iter().map(|ty| Expr::new(&graph, Arg::Node(graph.input(ty.clone())))).collect();
    graph.build(|| formula(&inputs)).unwrap();
    drop(inputs);
    Arc::new(graph.into_list())
}

/// Data for the inputs of a graph.
pub fn values_of(graph: &Graph, seed: u64) -> Vec<Array> {
    let list = graph.list();
    let data = |id| {
        let ty = &list.node(id).ty;
        random(ty.dtype, &ty.shape.sizes(), seed + u64::from(id.0))
    };
    list.inputs().map(data).collect()
}

/// The results of a list.
pub fn run(list: &List, inputs: &[Array], numbers: &[Scalar]) -> Result<Vec<Array>> {
    let mut inputs = inputs.iter();
    // By node: its array, or the results of control flow.
    let mut values: Vec<Vec<Array>> = Vec::new();
    for node in &list.nodes {
        let args: Vec<Arg> = node.args.to_vec();
        let of = |arg: &Arg| match *arg {
            Arg::Node(id) => values[id.0 as usize][0].clone(),
            Arg::Number(_) => unreachable!("{} takes values", node.kind.name()),
        };
        let value = match &node.kind {
            Kind::Input => vec![inputs.next().expect("an input for each").clone()],
            Kind::Constant(array) => vec![array.clone()],
            Kind::Op(op) => compute(op, node, &values, numbers)?,
            Kind::Barrier => vec![of(&args[0])],
            Kind::Result(i) => match args[0] {
                Arg::Node(id) => vec![values[id.0 as usize][*i as usize].clone()],
                Arg::Number(_) => unreachable!("a result is read of a node"),
            },
            Kind::ControlFlow(flow) => {
                let args: Vec<Array> = args.iter().map(of).collect();
                run_flow(flow, &args, numbers)?
            }
            Kind::Effect(effect) => {
                run_effect(effect, &args.iter().map(of).collect::<Vec<_>>())?;
                vec![array(DType::Bool, &[], &[1.0])]
            }
        };
        values.push(value);
    }
    Ok(list.outputs.iter().map(|id| values[id.0 as usize][0].clone()).collect())
}

fn compute(op: &Op, node: &Node, values: &[Vec<Array>], numbers: &[Scalar]) -> Result<Vec<Array>> {
    let number = |value| valued(value, numbers).unwrap();
    let operands: SmallVec<[cpu::Operand<'_>; 4]> = node
        .args
        .iter()
        .map(|arg| match *arg {
            Arg::Node(id) => cpu::Operand::Array(&values[id.0 as usize][0]),
            Arg::Number(value) => cpu::Operand::Scalar(number(value)),
        })
        .collect();
    #[allow(clippy::wildcard_enum_match_arm, reason = "every op but a call is executed alike")]
    match op {
        Op::Call(call) => compute_call(call, &operands),
        op => Ok(vec![cpu::execute(op, &operands)?]),
    }
}

/// A composite, by its kernel or its formula.
fn compute_call(call: &Call, operands: &[cpu::Operand<'_>]) -> Result<Vec<Array>> {
    if let Some(kernel) = call.composite.kernel
        && cpu::calls::has_kernel(call.composite)
        && let Some(found) = cpu::calls::run(kernel, call, operands)?
    {
        return Ok(found.into_vec());
    }
    let graph = Graph::new();
    let mut inputs = Vec::new();
    let mut args: Vec<Arg> = Vec::new();
    for operand in operands {
        args.push(match *operand {
            cpu::Operand::Array(x) => {
                inputs.push(x.clone());
                Arg::Node(graph.input(Type::new(x.dtype, x.shape().clone())))
            }
            cpu::Operand::Scalar(value) => Arg::Number(value.into()),
        });
    }
    let arguments = Arguments { cx: &graph, attributes: &call.attributes, operands: &args };
    graph.build(|| call.composite.formula(&arguments))?;
    run(&graph.list(), &inputs, &[])
}

fn run_effect(effect: &Effect, args: &[Array]) -> Result<()> {
    match effect {
        Effect::Check(message) => match values(&args[0]).iter().all(|&x| x != 0.0) {
            true => Ok(()),
            false => Err(error::bad_value("check", message, "false")),
        },
        Effect::Print(text) => {
            let mut parts = text.split("{}");
            let mut line = parts.next().unwrap_or_default().to_string();
            for (part, x) in parts.zip(args) {
                line.push_str(&format!("{:?}{part}", values(x)));
            }
            PRINTED.with_borrow_mut(|lines| lines.push(line));
            Ok(())
        }
    }
}

fn run_flow(flow: &ControlFlow, args: &[Array], numbers: &[Scalar]) -> Result<Vec<Array>> {
    match flow.kind {
        ControlFlowKind::Host(_) if !flow.bodies.is_empty() => run(&flow.bodies[0], args, numbers),
        ControlFlowKind::Host(ref op) => op.run(&args.iter().collect::<Vec<_>>(), &flow.results),
        ControlFlowKind::Branch => {
            let last = flow.bodies.len() - 1;
            let index = values(&args[0])[0].clamp(0.0, last as f64) as usize;
            run(&flow.bodies[index], &args[1..], numbers)
        }
        ControlFlowKind::While { carry, history } => {
            run_while(flow, args, numbers, carry as usize, history)
        }
        ControlFlowKind::Scan { carry, xs, reverse, .. } => {
            run_scan(flow, args, numbers, (carry as usize, xs as usize), reverse)
        }
    }
}

fn run_while(
    flow: &ControlFlow,
    args: &[Array],
    numbers: &[Scalar],
    carry: usize,
    history: bool,
) -> Result<Vec<Array>> {
    let mut operands = args.to_vec();
    let mut rounds: Vec<Vec<Array>> = vec![Vec::new(); carry];
    let mut count = 0;
    while values(&run(&flow.bodies[0], &operands, numbers)?[0])[0] != 0.0 {
        for (seen, x) in rounds.iter_mut().zip(&operands) {
            seen.push(x.clone());
        }
        let next = run(&flow.bodies[1], &operands, numbers)?;
        operands.splice(..carry, next);
        count += 1;
    }
    operands.truncate(carry);
    if history {
        for (seen, x) in rounds.iter().zip(&args[..carry]) {
            let stacked = stack(seen, x.dtype, x.shape())?;
            operands.push(stacked);
        }
        operands.push(array(DType::I64, &[], &[f64::from(count)]));
    }
    Ok(operands)
}

fn run_scan(
    flow: &ControlFlow,
    args: &[Array],
    numbers: &[Scalar],
    (carry, xs): (usize, usize),
    reverse: bool,
) -> Result<Vec<Array>> {
    let ControlFlowKind::Scan { length, .. } = flow.kind else { unreachable!("a scan") };
    let given = args[carry..carry + xs].first().map(|x| x.shape()[0].value());
    let length = given.unwrap_or_else(|| length.value());
    let mut carries = args[..carry].to_vec();
    let mut rows: Vec<Vec<Array>> = vec![Vec::new(); flow.results.len() - carry];
    let order: Vec<usize> = match reverse {
        false => (0..length).collect(),
        true => (0..length).rev().collect(),
    };
    for i in order {
        let mut operands = carries.clone();
        for x in &args[carry..carry + xs] {
            operands.push(element(x, i)?);
        }
        operands.extend_from_slice(&args[carry + xs..]);
        let mut next = run(&flow.bodies[0], &operands, numbers)?;
        for (row, y) in rows.iter_mut().zip(next.drain(carry..)) {
            row.push(y);
        }
        carries = next;
    }
    for (row, ty) in rows.iter_mut().zip(&flow.results[carry..]) {
        if reverse {
            row.reverse();
        }
        let rest = Shape::from_dims(&ty.shape.dims()[1..]);
        carries.push(stack(row, ty.dtype, &rest)?);
    }
    Ok(carries)
}

/// Element `i` of the leading axis.
pub fn element(x: &Array, i: usize) -> Result<Array> {
    let mut at = whole(x.shape());
    at[0] = SliceAxis { start: i.into(), step: 1, size: Dim::ONE };
    let part = cpu::execute(&Op::Slice(at), &[cpu::Operand::Array(x)])?;
    let rest = Shape::from_dims(&x.shape().dims()[1..]);
    cpu::execute(&Op::Reshape(rest), &[cpu::Operand::Array(&part)])
}

/// Arrays of one type along a new leading axis.
pub fn stack(rows: &[Array], dtype: DType, one: &Shape) -> Result<Array> {
    let long = |n: usize| -> Shape {
        std::iter::once(Dim::new(n)).chain(one.dims().iter().copied()).collect()
    };
    if rows.is_empty() {
        return Array::zeros(dtype, long(0));
    }
    let wide = |x: &Array| cpu::execute(&Op::Reshape(long(1)), &[cpu::Operand::Array(x)]);
    let rows: Vec<Array> = rows.iter().map(wide).collect::<Result<_>>()?;
    let operands: Vec<cpu::Operand<'_>> = rows.iter().map(cpu::Operand::Array).collect();
    cpu::execute(&Op::Concat(0), &operands)
}
