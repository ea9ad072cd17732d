use std::collections::HashSet;

use smallvec::SmallVec;

use super::*;
use crate::array::Array;
use crate::cpu;
use crate::cpu::testing::values;
use crate::error::Result;
use crate::graph::cases::{self, Operand, data};
use crate::graph::testing::{one_by_one, try_one_by_one};
use crate::graph::{Graph, Kind};
use crate::ops::emit::{Emit, catch};
use crate::ops::op::{Op, OperandType, Type};
use crate::ops::probe::probed_residuals;
use crate::ops::structural::{self, Class, OpKind, Rate};
use crate::shape::{Dim, Shape};

/// How many examples a batch has.
const SIZE: usize = 3;

/// The graph of one op.
fn graph_of(op: &Op, operands: &[Operand]) -> Graph {
    let graph = Graph::with_calls();
    let args = cases::args(operands, &graph);
    let y = catch(|| graph.emit(op.clone(), &args)).unwrap();
    graph.output(y);
    graph.verify().unwrap();
    graph
}

/// Example `i` of a batch.
fn example(x: &Array, i: usize) -> Array {
    let whole = x.shape().dims()[1..].iter();
    let rest = whole.map(|&size| crate::ops::op::SliceAxis::all(size));
    let one = crate::ops::op::SliceAxis { start: i.into(), step: 1, size: Dim::ONE };
    let at = std::iter::once(one).chain(rest).collect();
    let part = cpu::execute(&Op::Slice(at), &[cpu::Operand::Array(x)]).unwrap();
    let shape: Shape = x.shape().dims()[1..].iter().copied().collect();
    cpu::execute(&Op::Reshape(shape), &[cpu::Operand::Array(&part)]).unwrap()
}

/// Runs a graph over a batch and over each example, and compares the results.
fn check_batch(name: &str, graph: &Graph, operands: &[Operand], mapped: &[bool]) {
    let tensors = operands.iter().filter_map(|operand| match operand {
        Operand::Tensor(ty, below) => Some((ty, *below)),
        Operand::Number(_) => None,
    });
    let inputs: Vec<Array> = tensors
        .zip(mapped)
        .enumerate()
        .map(|(seed, ((ty, below), &mapped))| {
            let mut ty = ty.clone();
            if mapped {
                ty.shape.dims_mut().insert(0, Dim::new(SIZE));
            }
            data(&ty, below, seed as u64 * 31)
        })
        .collect();
    let batched = batch(graph, mapped, Dim::new(SIZE))
        .unwrap_or_else(|error| panic!("{name} {mapped:?}: {error}\n{}", graph.print(|_| None)));
    batched.verify().unwrap();
    let plain = expand(graph).unwrap();
    let got = try_one_by_one(&batched, &inputs.iter().collect::<Vec<_>>(), &[]);
    let mut refused = 0;
    for i in 0..SIZE {
        let own: Vec<Array> = inputs
            .iter()
            .zip(mapped)
            .map(|(x, &mapped)| if mapped { example(x, i) } else { x.clone() })
            .collect();
        let Ok(want) = try_one_by_one(&plain, &own.iter().collect::<Vec<_>>(), &[]) else {
            refused += 1;
            continue;
        };
        // Where an example is refused, the whole batch is refused.
        for (got, want) in got.iter().flatten().zip(&want) {
            let got = example(got, i);
            assert_eq!(got.dtype, want.dtype, "{name}");
            assert_eq!(got.shape(), want.shape(), "{name} {mapped:?}");
            for (a, b) in values(&got).into_iter().zip(values(want)) {
                let close = a == b
                    || (a.is_nan() && b.is_nan())
                    || (a - b).abs() <= 2e-5 * b.abs().max(1.0);
                assert!(close, "{name} {mapped:?}: {a} and {b}\n{}", batched.print(|_| None));
            }
        }
    }
    assert_eq!(got.is_err(), refused > 0, "{name} {mapped:?}");
}

/// Every non-empty choice of operands to map.
fn choices(operands: &[Operand]) -> Vec<Vec<bool>> {
    let n = operands.iter().filter(|x| matches!(x, Operand::Tensor(..))).count();
    (1..1u32 << n.min(5)).map(|bits| (0..n).map(|i| bits >> i & 1 == 1).collect()).collect()
}

#[test]
fn the_cases_have_every_op() {
    let seen: HashSet<&str> = cases::ops().iter().map(|(op, _)| op.name()).collect();
    for def in structural::defs() {
        assert!(seen.contains(def.name), "{}", def.name);
    }
}

#[test]
fn every_op_over_a_batch_is_the_op_on_each_example() {
    for (op, operands) in cases::ops() {
        let graph = graph_of(&op, &operands);
        for mapped in choices(&operands) {
            check_batch(&format!("{op:?}"), &graph, &operands, &mapped);
        }
    }
}

#[test]
fn every_composite_over_a_batch_is_the_composite_on_each_example() {
    for call in cases::calls() {
        let graph = Graph::with_calls();
        call.build(&graph);
        let choices = choices(&call.operands);
        let (first, all) = (choices.first(), choices.last());
        for mapped in [first, all].into_iter().flatten() {
            let name = format!("{} {:?}", call.composite.name, call.attributes);
            check_batch(&name, &graph, &call.operands, mapped);
        }
    }
}

#[test]
fn batches_of_batches_and_of_nothing() {
    let (op, operands) = cases::ops().into_iter().find(|(op, _)| *op == Op::Gather).unwrap();
    let graph = graph_of(&op, &operands);
    let twice =
        batch(&batch(&graph, &[true, false], Dim::new(2)).unwrap(), &[false, true], Dim::new(3));
    let twice = twice.unwrap();
    twice.verify().unwrap();
    assert_eq!(twice.ty(twice.outputs()[0]).shape, Shape::of(&[3, 2, 5, 3, 2]));
    for (op, operands) in cases::ops() {
        let n = operands.iter().filter(|x| matches!(x, Operand::Tensor(..))).count();
        let graph = graph_of(&op, &operands);
        let ty = graph.ty(graph.outputs()[0]);
        let none = batch(&graph, &vec![true; n], Dim::new(0)).unwrap();
        none.verify().unwrap();
        let shape: Shape =
            [Dim::new(0)].into_iter().chain(ty.shape.dims().iter().copied()).collect();
        assert_eq!(none.ty(none.outputs()[0]), Type::new(ty.dtype, shape), "{op:?}");
    }
}

#[test]
fn expansion_leaves_no_calls_and_keeps_the_values() {
    let mut calls = 0;
    for call in cases::calls() {
        let graph = Graph::with_calls();
        call.build(&graph);
        let expanded = expand(&graph).unwrap();
        expanded.verify().unwrap();
        let is_call = |graph: &Graph| {
            graph.nodes().iter().filter(|node| matches!(node.kind, Kind::Op(Op::Call(_)))).count()
        };
        calls += is_call(&graph);
        assert_eq!(is_call(&expanded), 0);
        for (a, b) in graph.outputs().iter().zip(expanded.outputs().iter()) {
            assert_eq!(graph.ty(*a), expanded.ty(*b));
        }
    }
    assert!(calls > 20, "only {calls} calls");
}

#[test]
fn declared_residuals_are_what_the_rules_read() {
    for (op, operands) in cases::ops() {
        let types: SmallVec<[OperandType<'_>; 4]> = operands
            .iter()
            .map(|operand| match operand {
                Operand::Tensor(ty, _) => OperandType::Tensor(ty.dtype, &ty.shape),
                Operand::Number(value) => OperandType::Scalar((*value).into()),
            })
            .collect();
        let result = op.infer(&types).unwrap();
        for i in (0..types.len()).filter(|&i| op.differentiable(i)) {
            let declared = op.residuals(&types, std::slice::from_ref(&result), i).unwrap();
            let probed = probed_residuals(&op, &types, std::slice::from_ref(&result), i).unwrap();
            assert_eq!(declared, probed, "{op:?} by operand {i}");
        }
    }
}

/// A sum over the results of a case that have gradients, its gradients by its floating inputs, and
/// the central difference of the sum.
fn slope(graph: &Graph, inputs: &[Array]) -> Result<Option<(f64, f64)>> {
    let out = expand(graph)?;
    let ids: Vec<Id> = (0..inputs.len() as u32).map(Id).collect();
    let ys: Vec<(Id, Arg)> = out
        .outputs()
        .iter()
        .filter(|id| out.ty(**id).dtype.is_float())
        .map(|id| (*id, Arg::Number(1.0.into())))
        .collect();
    let plain = expand(graph)?;
    let grads = gradients(&out, &ys, &ids)?;
    if grads.iter().all(Option::is_none) {
        return Ok(None);
    }
    let known: Vec<usize> = (0..grads.len()).filter(|&i| grads[i].is_some()).collect();
    let before = out.outputs().len();
    known.iter().for_each(|&i| out.output(grads[i].unwrap()));
    out.verify()?;
    let refs: Vec<&Array> = inputs.iter().collect();
    let found = one_by_one(&out, &refs, &[]);
    let along: f64 = found[before..].iter().map(|g| values(g).iter().sum::<f64>()).sum();
    let total = |step: f64| -> f64 {
        let moved: Vec<Array> = inputs
            .iter()
            .enumerate()
            .map(|(i, x)| match known.contains(&i) {
                true => {
                    let v: Vec<f64> = values(x).iter().map(|v| v + step).collect();
                    cpu::testing::array(x.dtype, &x.shape().sizes(), &v)
                }
                false => x.clone(),
            })
            .collect();
        let ys = one_by_one(&plain, &moved.iter().collect::<Vec<_>>(), &[]);
        ys.iter().filter(|y| y.dtype.is_float()).map(|y| values(y).iter().sum::<f64>()).sum()
    };
    let h = 1.0 / 64.0;
    Ok(Some((along, (total(h) - total(-h)) / (2.0 * h))))
}

#[test]
fn gradients_of_linear_ops_are_exact_slopes() {
    let mut checked = 0;
    for (op, operands) in cases::ops() {
        let OpKind::Structural(def) = op.kind() else { continue };
        let rate = matches!(def.tangent, Rate::First | Rate::FirstTwo | Rate::All | Rate::Each);
        let is_linear = rate && def.class != Class::Elementwise;
        if !is_linear {
            continue;
        }
        let graph = graph_of(&op, &operands);
        let inputs: Vec<Array> =
            operands.iter().enumerate().filter_map(|(i, x)| x.data(i as u64 * 7)).collect();
        let Some((got, want)) = slope(&graph, &inputs).unwrap() else { continue };
        assert!((got - want).abs() <= 1e-3 * want.abs().max(1.0), "{op:?}: {got} and {want}");
        checked += 1;
    }
    assert!(checked >= 25, "{checked}");
}
