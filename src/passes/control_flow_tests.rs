//! The transforms on control flow and on every op. Forward mode is compared with differences and
//! with the reverse sweep, batches with loops; the same holds for graphs of gradients.

use std::sync::Arc;

use super::*;
use crate::array::Array;
use crate::cpu::testing::{array, noise, values};
use crate::dtype::DType;
use crate::graph::cases::{self, Operand};
use crate::graph::testing::{element, printed, run};
use crate::graph::{ControlFlowKind, Effect, Node};
use crate::ops::elementwise;
use crate::ops::emit::{Emit, Expr, catch};
use crate::ops::op::{Op, Type};
use crate::shape::{Dim, Shape};

/// The step of differences, along the tangent.
const STEP: f64 = 1e-6;

fn floats(sizes: &[usize]) -> Type {
    Type::new(DType::F64, Shape::of(sizes))
}

fn count() -> Type {
    Type::new(DType::I64, Shape::scalar())
}

/// The results of a list.
fn results(list: &List, inputs: &[Array]) -> Vec<Array> {
    run(list, inputs, &[]).unwrap()
}

/// `x + h t`.
fn moved(x: &Array, t: &Array, h: f64) -> Array {
    let moved: Vec<f64> = values(x).iter().zip(values(t)).map(|(x, t)| x + h * t).collect();
    array(x.dtype, &x.shape().sizes(), &moved)
}

fn dot(a: &Array, b: &Array) -> f64 {
    values(a).iter().zip(values(b)).map(|(a, b)| a * b).sum()
}

fn close(name: &str, got: f64, want: f64, tolerance: f64) {
    // Where a value is infinite (an integer divided by zero) there is no slope.
    let same = got == want || !want.is_finite();
    let near = (got - want).abs() <= tolerance * want.abs().max(1.0);
    assert!(same || near, "{name}: {got} and {want}");
}

/// Which inputs are floats, and a direction for each that is.
fn directions(inputs: &[Array]) -> (Vec<bool>, Vec<Array>) {
    let has: Vec<bool> = inputs.iter().map(|x| x.dtype.is_float()).collect();
    let some = inputs.iter().enumerate().filter(|(i, _)| has[*i]);
    let t = some.map(|(i, x)| noise(x.dtype, &x.shape().sizes(), 1000 + i as u64)).collect();
    (has, t)
}

/// Tangents against central differences, and against the reverse sweep: `⟨g, J t⟩ = ⟨Jᵀ g, t⟩`.
fn check_tangents(name: &str, list: &List, inputs: &[Array]) {
    let (has, t) = directions(inputs);
    let graph = Graph::from_list(list.clone());
    let tangents = jvp(&graph, &has).unwrap_or_else(|e| panic!("{name}: {e}"));
    tangents.graph.verify().unwrap_or_else(|e| panic!("{name}: {e}"));
    let given: Vec<Array> = inputs.iter().chain(&t).cloned().collect();
    let found = results(&tangents.graph.list(), &given);
    let (ys, mut ts) = (&found[..list.outputs.len()], found[list.outputs.len()..].iter());
    let step = |h: f64| -> Vec<Array> {
        let mut t = t.iter();
        let along = inputs.iter().zip(&has).map(|(x, &has)| match has {
            true => moved(x, t.next().unwrap(), h),
            false => x.clone(),
        });
        results(list, &along.collect::<Vec<_>>())
    };
    let (above, below) = (step(STEP), step(-STEP));
    let mut forward = Some(0.0);
    let mut seeds = Vec::new();
    for (i, y) in ys.iter().enumerate().filter(|(_, y)| y.dtype.is_float()) {
        let zero = || array(y.dtype, &y.shape().sizes(), &vec![0.0; y.count()]);
        let t = if tangents.has[i] { ts.next().unwrap().clone() } else { zero() };
        assert_eq!((t.dtype, t.shape()), (y.dtype, y.shape()), "{name}");
        for ((t, a), b) in values(&t).iter().zip(values(&above[i])).zip(values(&below[i])) {
            close(&format!("{name}: tangent {i}"), *t, (a - b) / (2.0 * STEP), 2e-5);
        }
        let g = noise(y.dtype, &y.shape().sizes(), 77 + i as u64);
        forward = forward.map(|sum| sum + dot(&g, &t));
        seeds.push((i, g));
    }
    let (by, seeded) = with_gradients(list, &seeds.iter().map(|(i, _)| *i).collect::<Vec<_>>());
    let given: Vec<Array> =
        inputs.iter().cloned().chain(seeds.into_iter().map(|(_, g)| g)).collect();
    let grads = results(&seeded, &given);
    let mut reverse = 0.0;
    let mut t = t.iter();
    let mut grads = grads[list.outputs.len()..].iter();
    for (by, has) in by.iter().zip(&has) {
        let t = if *has { t.next() } else { None };
        if let (true, Some(t)) = (*by, t) {
            reverse += dot(grads.next().unwrap(), t);
        }
    }
    close(&format!("{name}: product"), reverse, forward.unwrap(), 1e-9);
}

/// A list whose results are followed by the gradients by its inputs, and which inputs have a
/// gradient. The cotangents of the results are further inputs.
fn with_gradients(list: &List, outputs: &[usize]) -> (Vec<bool>, List) {
    let graph = Graph::from_list(list.clone());
    let inputs: Vec<Id> = list.inputs().collect();
    let seeds: Vec<(Id, Arg)> = outputs
        .iter()
        .map(|&i| (list.outputs[i], Arg::Node(graph.input(list.node(list.outputs[i]).ty.clone()))))
        .collect();
    let wrt: Vec<Id> = inputs.iter().copied().filter(|&id| graph.ty(id).dtype.is_float()).collect();
    let grads = gradients(&graph, &seeds, &wrt).unwrap();
    let by = inputs
        .iter()
        .map(|id| wrt.iter().position(|w| w == id).is_some_and(|i| grads[i].is_some()))
        .collect();
    grads.into_iter().flatten().for_each(|id| graph.output(id));
    graph.verify().unwrap_or_else(|e| panic!("{e}\n{}", graph.print(|_| None)));
    (by, graph.into_list())
}

/// A batch against a loop over its examples, for every choice of inputs to map.
fn check_batches(name: &str, list: &List, inputs: &[Array]) {
    const SIZE: usize = 3;
    let n = inputs.len();
    for bits in 1..1u32 << n.min(4) {
        let mapped: Vec<bool> = (0..n).map(|i| bits >> i & 1 == 1).collect();
        let given: Vec<Array> = inputs
            .iter()
            .zip(&mapped)
            .enumerate()
            .map(|(i, (x, &mapped))| if mapped { examples(x, SIZE, i as u64) } else { x.clone() })
            .collect();
        let graph = Graph::from_list(list.clone());
        let batched = batch(&graph, &mapped, Dim::new(SIZE))
            .unwrap_or_else(|e| panic!("{name} {mapped:?}: {e}"));
        batched.verify().unwrap_or_else(|e| panic!("{name} {mapped:?}: {e}"));
        let got = results(&batched.list(), &given);
        for k in 0..SIZE {
            let own: Vec<Array> = given
                .iter()
                .zip(&mapped)
                .map(|(x, &mapped)| if mapped { element(x, k).unwrap() } else { x.clone() })
                .collect();
            for (got, want) in got.iter().zip(results(list, &own)) {
                let got = element(got, k).unwrap();
                assert_eq!((got.dtype, got.shape()), (want.dtype, want.shape()), "{name}");
                for (a, b) in values(&got).into_iter().zip(values(&want)) {
                    close(&format!("{name} {mapped:?} example {k}"), a, b, 1e-12);
                }
            }
        }
    }
}

/// Examples that differ: counts in steps, floats shifted.
fn examples(x: &Array, size: usize, seed: u64) -> Array {
    let sizes: Vec<usize> = std::iter::once(size).chain(x.shape().sizes()).collect();
    let shift = noise(DType::F64, &[size], 5 + seed);
    let shift = values(&shift);
    let one = values(x);
    let all: Vec<f64> = (0..size)
        .flat_map(|k| {
            let by = if x.dtype.is_float() { shift[k] / 4.0 } else { k as f64 };
            one.iter().map(move |x| x + by).collect::<Vec<_>>()
        })
        .collect();
    array(x.dtype, &sizes, &all)
}

/// A list from the types of its inputs and a formula.
fn list<const N: usize>(
    types: &[Type],
    formula: impl for<'e> Fn(&'e Graph, &[Expr<'e>]) -> [Expr<'e>; N],
) -> List {
    let graph = Graph::with_calls();
    let ids: Vec<Id> = types.iter().map(|ty| graph.input(ty.clone())).collect();
    {
        let exprs: Vec<Expr<'_>> = ids.iter().map(|&id| Expr::new(&graph, Arg::Node(id))).collect();
        for x in formula(&graph, &exprs) {
            let Arg::Node(id) = x.tensor().arg() else { panic!("a result is a node") };
            graph.output(id);
        }
    }
    graph.verify().unwrap();
    graph.into_list()
}

/// Adds a control-flow op to a formula and returns its results.
fn flow<'e>(
    graph: &'e Graph,
    kind: ControlFlowKind,
    bodies: Vec<List>,
    results: &[Type],
    args: &[Expr<'e>],
) -> Vec<Expr<'e>> {
    let bodies = bodies.into_iter().map(Arc::new).collect();
    let args: Vec<Arg> = args.iter().map(|x| x.arg()).collect();
    let ids = graph.flow(ControlFlow { kind, bodies, results: results.into() }, &args);
    ids.into_iter().map(|id| Expr::new(graph, Arg::Node(id))).collect()
}

/// One of three branches of `x`. One of them reads a weight, one does not depend on `x`.
fn branch() -> List {
    list(&[count(), floats(&[2]), floats(&[2])], |graph, x| {
        let types = [floats(&[2]), floats(&[2])];
        let bodies = vec![
            list(&types, |_, x| [x[0].sin() * x[1], x[0] + 1.0]),
            list(&types, |_, x| [x[0] * x[0] * x[0], (x[0] * 2.0).exp()]),
            list(&types, |_, x| [x[1], x[1].sin().cos() * x[1].sin()]),
        ];
        let y = flow(graph, ControlFlowKind::Branch, bodies, &types, x);
        [y[0] + y[1] * x[1], y[1]]
    })
}

/// A recurrence with a count beside it: `c ← tanh(w·c + x)`; the stacked result is `c · i`.
fn scan(reverse: bool) -> List {
    list(&[floats(&[2]), floats(&[4, 2]), floats(&[2, 2])], |graph, x| {
        let body = list(&[floats(&[2]), count(), floats(&[2]), floats(&[2, 2])], |_, x| {
            let (c, i, row, w) = (x[0], x[1], x[2], x[3]);
            let product = w.transpose() * w;
            let sum = (product * c).reduce(crate::ops::attributes::Reduction::Sum, &[1]);
            let next = (sum + row).tanh();
            [next, i.add(i.scalar(1)), next * i.cast(DType::F64) + row * c]
        });
        let zero = x[0].scalar(0).full(DType::I64, Shape::scalar());
        let kind = ControlFlowKind::Scan { carry: 2, xs: 1, length: Dim::new(4), reverse };
        let results = [floats(&[2]), count(), floats(&[4, 2])];
        let y = flow(graph, kind, vec![body], &results, &[x[0], zero, x[1], x[2]]);
        [y[0], y[1], y[2]]
    })
}

/// `c ← c · sin(x) + i` for as long as `i < n`.
fn repeat() -> List {
    list(&[count(), floats(&[2]), floats(&[2])], |graph, x| {
        let types = [count(), floats(&[2]), count(), floats(&[2])];
        let condition = list(&types, |_, x| [x[0].less(x[2])]);
        let body = list(&types, |_, x| {
            let next = x[1] * x[3].sin() + x[0].cast(DType::F64);
            [x[0].add(x[0].scalar(1)), next]
        });
        let kind = ControlFlowKind::While { carry: 2, history: false };
        let zero = x[0].scalar(0).full(DType::I64, Shape::scalar());
        let args = [zero, x[1], x[0], x[2]];
        let y = flow(graph, kind, vec![condition, body], &[count(), floats(&[2])], &args);
        [y[1] * x[1], y[0]]
    })
}

/// A scan whose rounds branch on their number, around a loop of as many rounds.
fn nested() -> List {
    list(&[floats(&[2]), floats(&[2])], |graph, x| {
        let way = [floats(&[2]), floats(&[2])];
        let body = list(&[floats(&[2]), count(), floats(&[2])], |graph, x| {
            let ways =
                vec![list(&way, |_, x| [x[0] * x[1]]), list(&way, |_, x| [x[0].sin() + x[1]])];
            let args = [x[1], x[0], x[2]];
            let y = flow(graph, ControlFlowKind::Branch, ways, &[floats(&[2])], &args)[0];
            let types = [count(), floats(&[2]), floats(&[2])];
            let test = list(&types, |_, x| [x[0].greater(x[0].scalar(0))]);
            let step = list(&types, |_, x| [x[0].subtract(x[0].scalar(1)), x[1].cos() * x[2]]);
            let kind = ControlFlowKind::While { carry: 2, history: false };
            let results = [count(), floats(&[2])];
            let z = flow(graph, kind, vec![test, step], &results, &[x[1], y, x[2]])[1];
            [z, x[1].add(x[1].scalar(1)), z * x[0]]
        });
        let zero = x[0].scalar(0).full(DType::I64, Shape::scalar());
        let kind = ControlFlowKind::Scan { carry: 2, xs: 0, length: Dim::new(3), reverse: false };
        let results = [floats(&[2]), count(), floats(&[3, 2])];
        let y = flow(graph, kind, vec![body], &results, &[x[0], zero, x[1]]);
        [y[0], y[2]]
    })
}

fn flows() -> Vec<(&'static str, List, Vec<Array>)> {
    let number = |n: f64| array(DType::I64, &[], &[n]);
    let x = |sizes: &[usize], seed| noise(DType::F64, sizes, seed);
    let mut all = Vec::new();
    for n in [0.0, 1.0, 2.0] {
        all.push(("branch", branch(), vec![number(n), x(&[2], 1), x(&[2], 2)]));
    }
    for reverse in [false, true] {
        let inputs = vec![x(&[2], 1), x(&[4, 2], 2), x(&[2, 2], 3)];
        all.push(("scan", scan(reverse), inputs));
    }
    for n in [0.0, 1.0, 4.0] {
        all.push(("while", repeat(), vec![number(n), x(&[2], 1), x(&[2], 2)]));
    }
    all.push(("nested", nested(), vec![x(&[2], 1), x(&[2], 2)]));
    all
}

/// A list's gradients as a list of their own, with inputs to go with it.
fn gradient_of(name: &str, list: &List, inputs: &[Array]) -> (String, List, Vec<Array>) {
    let floating = |&i: &usize| list.node(list.outputs[i]).ty.dtype.is_float();
    let outputs: Vec<usize> = (0..list.outputs.len()).filter(floating).collect();
    let (_, seeded) = with_gradients(list, &outputs);
    let seed = |&i: &usize| {
        let y = &list.node(list.outputs[i]).ty;
        noise(y.dtype, &y.shape.sizes(), 31 + i as u64)
    };
    let inputs = inputs.iter().cloned().chain(outputs.iter().map(seed)).collect();
    (format!("gradient of {name}"), seeded, inputs)
}

#[test]
fn control_flow_differentiates_forward_and_in_reverse() {
    for (name, list, inputs) in flows() {
        check_tangents(name, &list, &inputs);
    }
}

#[test]
fn gradients_of_control_flow_differentiate_again() {
    for (name, list, inputs) in flows() {
        let (name, list, inputs) = gradient_of(name, &list, &inputs);
        check_tangents(&name, &list, &inputs);
    }
}

#[test]
fn tangents_of_control_flow_differentiate_again() {
    for (name, list, inputs) in flows() {
        let (has, t) = directions(&inputs);
        let tangents = jvp(&Graph::from_list(list), &has).unwrap().graph.into_list();
        let inputs: Vec<Array> = inputs.into_iter().chain(t).collect();
        check_tangents(&format!("tangent of {name}"), &tangents, &inputs);
    }
}

#[test]
fn control_flow_over_a_batch_is_a_loop_over_examples() {
    for (name, list, inputs) in flows() {
        check_batches(name, &list, &inputs);
    }
}

#[test]
fn gradients_of_control_flow_over_a_batch_are_those_of_examples() {
    for (name, list, inputs) in flows() {
        let (name, list, inputs) = gradient_of(name, &list, &inputs);
        check_batches(&name, &list, &inputs);
        // The gradient of a batch is checked too.
        let mapped = vec![true; inputs.len()];
        let batched = batch(&Graph::from_list(list), &mapped, Dim::new(2)).unwrap();
        let inputs: Vec<Array> =
            inputs.iter().enumerate().map(|(i, x)| examples(x, 2, i as u64)).collect();
        check_tangents(&format!("batch of {name}"), &batched.list(), &inputs);
    }
}

#[test]
fn a_flow_swept_twice_keeps_its_residuals_once() {
    let (_, list, _) = flows().remove(3);
    let graph = Graph::from_list(list.clone());
    let seed = Arg::Number(1.0.into());
    let wrt: Vec<Id> = list.inputs().collect();
    let mut widths = Vec::new();
    for _ in 0..2 {
        gradients(&graph, &[(list.outputs[0], seed)], &wrt).unwrap();
        let width = graph.nodes().iter().find_map(|node| match &node.kind {
            Kind::ControlFlow(flow) => Some(flow.results.len()),
            Kind::Input
            | Kind::Constant(_)
            | Kind::Op(_)
            | Kind::Result(_)
            | Kind::Effect(_)
            | Kind::Barrier => None,
        });
        widths.push(width);
    }
    assert_eq!(widths[0], widths[1]);
}

#[test]
fn barriers_constants_and_effects_pass_transforms() {
    let program = list(&[floats(&[2]), floats(&[2])], |graph, x| {
        let c = graph.constant(array(DType::F64, &[2], &[2.0, 3.0]));
        let (Arg::Node(a), Arg::Node(b)) = (x[0].arg(), x[1].arg()) else { unreachable!() };
        graph.effect(Effect::Print("{}".into()), &[x[0].arg()]);
        let holds = x[1].less(x[1].scalar(100.0)).arg();
        graph.effect(Effect::Check("small".into()), &[holds]);
        let held = Expr::new(graph, Arg::Node(graph.barrier(a, &[b])));
        [held * x[1] * Expr::new(graph, Arg::Node(c))]
    });
    let inputs = [noise(DType::F64, &[2], 1), noise(DType::F64, &[2], 2)];
    check_tangents("effects", &program, &inputs);
    check_batches("effects", &program, &inputs);
    printed();
    let batched = batch(&Graph::from_list(program), &[true, false], Dim::new(3)).unwrap();
    let given = [examples(&inputs[0], 3, 0), inputs[1].clone()];
    results(&batched.list(), &given);
    assert_eq!(printed().len(), 1, "one print of the whole batch");
}

#[test]
fn effects_that_some_examples_only_have_are_refused_by_name() {
    let program = list(&[count(), floats(&[])], |graph, x| {
        let ways = vec![
            list(&[floats(&[])], |graph, x| {
                graph.effect(Effect::Print("{}".into()), &[x[0].arg()]);
                [x[0]]
            }),
            list(&[floats(&[])], |_, x| [x[0] * 2.0]),
        ];
        [flow(graph, ControlFlowKind::Branch, ways, &[floats(&[])], x)[0]]
    });
    let graph = Graph::from_list(program);
    batch(&graph, &[false, true], Dim::new(2)).unwrap();
    let refused = batch(&graph, &[true, true], Dim::new(2)).err().unwrap();
    assert!(refused.message().contains("print inside cond"), "{refused}");
}

#[test]
fn gradients_of_loops_do_not_repeat_effects() {
    let types = [floats(&[]), floats(&[])];
    let body = || {
        list(&types, |graph, x| {
            graph.effect(Effect::Print("{}".into()), &[x[0].arg()]);
            [x[0] * x[1]]
        })
    };
    let small = || list(&types, |_, x| [x[0].less(x[0].scalar(10.0))]);
    let loops: [(ControlFlowKind, Vec<List>); 2] = [
        (ControlFlowKind::While { carry: 1, history: false }, vec![small(), body()]),
        (
            ControlFlowKind::Scan { carry: 1, xs: 0, length: Dim::new(4), reverse: false },
            vec![body()],
        ),
    ];
    for (kind, bodies) in loops {
        let program = list(&types, |graph, x| {
            [flow(graph, kind.clone(), bodies.clone(), &[floats(&[])], x)[0]]
        });
        let (_, seeded) = with_gradients(&program, &[0]);
        let one = |x: f64| array(DType::F64, &[], &[x]);
        printed();
        let found = results(&seeded, &[one(1.0), one(2.0), one(1.0)]);
        assert_eq!(printed(), ["[1.0]", "[2.0]", "[4.0]", "[8.0]"]);
        let found: Vec<f64> = found.iter().map(|x| values(x)[0]).collect();
        assert_eq!(found, [16.0, 16.0, 32.0]);
    }
}

/// A case in double precision, with data away from every kink.
fn precise(operands: &[Operand]) -> (Vec<Operand>, Vec<Array>) {
    let mut out = Vec::new();
    let mut inputs = Vec::new();
    for (i, operand) in operands.iter().enumerate() {
        out.push(match operand {
            Operand::Tensor(ty, below) if ty.dtype.is_float() => {
                let ty = Type::new(DType::F64, ty.shape.clone());
                inputs.push(noise(DType::F64, &ty.shape.sizes(), 3 + i as u64));
                Operand::Tensor(ty, *below)
            }
            operand @ (Operand::Tensor(..) | Operand::Number(_)) => {
                inputs.extend(operand.data(i as u64));
                operand.clone()
            }
        });
    }
    (out, inputs)
}

#[test]
fn every_op_has_the_tangent_that_its_gradient_transposes() {
    let mut checked = 0;
    for (op, operands) in cases::ops() {
        let (operands, inputs) = precise(&operands);
        let graph = Graph::with_calls();
        let args = cases::args(&operands, &graph);
        let Ok(y) = catch(|| graph.emit(op.clone(), &args)) else { continue };
        // The fill and the padding are numbers that no gradient is taken of.
        let fixed = |i: usize| matches!(args[i], Arg::Node(_)) && !op.differentiable(i);
        let floating = |i: usize| operands[i].data(0).is_some_and(|x| x.dtype.is_float());
        if (0..args.len()).any(|i| fixed(i) && floating(i)) || matches!(op, Op::Cast(_)) {
            continue;
        }
        graph.output(y);
        check_tangents(&format!("{op:?}"), &graph.into_list(), &inputs);
        checked += 1;
    }
    assert!(checked >= 45, "{checked}");
}

#[test]
fn every_elementwise_op_has_the_tangent_that_its_gradient_transposes() {
    // `stop_gradient` has no gradient on purpose, and `custom_rule` hides its rule.
    let marks = ["stop_gradient", "custom_rule"];
    for def in elementwise::tables().filter(|def| !marks.contains(&def.name)) {
        let mut inputs = Vec::new();
        let graph = Graph::new();
        let mut args = Vec::new();
        for (i, &(low, high)) in def.domain.iter().enumerate() {
            let unit = values(&noise(DType::F64, &[5], 9 + i as u64));
            let inside = unit.iter().map(|u| low + (u + 1.0) / 2.0 * (high - low));
            let dtype = if def.is_condition(i) { DType::Bool } else { DType::F64 };
            #[allow(
                clippy::wildcard_enum_match_arm,
                reason = "any dtype but bool holds the numbers"
            )]
            let inside: Vec<f64> = match dtype {
                DType::Bool => unit.iter().map(|&u| f64::from(u > 0.0)).collect(),
                _ => inside.collect(),
            };
            inputs.push(array(dtype, &[5], &inside));
            args.push(Arg::Node(graph.input(Type::new(dtype, Shape::of(&[5])))));
        }
        let Ok(y) = catch(|| graph.emit(Op::Map(def), &args)) else { continue };
        graph.output(y);
        check_tangents(def.name, &graph.into_list(), &inputs);
    }
}

#[test]
fn every_composite_has_the_tangent_that_its_gradient_transposes() {
    let mut checked = 0;
    for call in cases::calls() {
        let (operands, mut inputs) = precise(&call.operands);
        // A variance is positive: below its least its slope is one, as PyTorch's, and its value the
        // least.
        if let ("gaussian_nll_loss", [_, _, variance]) = (call.composite.name, &mut inputs[..]) {
            let positive: Vec<f64> = values(variance).iter().map(|v| v.abs() + 1.0).collect();
            *variance = array(variance.dtype, &variance.shape().sizes(), &positive);
        }
        let call = cases::Call { operands, ..call };
        let graph = Graph::with_calls();
        if !call.build(&graph).1 || graph.outputs().is_empty() {
            continue;
        }
        let name = format!("{} {:?}", call.composite.name, call.attributes);
        let list = graph.into_list();
        if list.outputs.iter().all(|&id| !list.node(id).ty.dtype.is_float()) {
            continue;
        }
        // Differences need double precision throughout, and indices within their axes.
        let narrow = |node: &Node| node.ty.dtype.is_float() && node.ty.dtype != DType::F64;
        if list.nodes.iter().any(narrow) {
            continue;
        }
        if run(&list, &inputs, &[]).is_err() {
            continue;
        }
        check_tangents(&name, &list, &inputs);
        checked += 1;
    }
    assert!(checked >= 150, "{checked}");
}
