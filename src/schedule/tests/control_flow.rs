//! Control flow, effects, constants and barriers in plans, compared with the interpreter of lists.

use super::*;
use crate::cpu::target::Cpu;
use crate::graph::testing::{body, try_one_by_one, values_of};
use crate::graph::{ControlFlow, ControlFlowKind, Effect, Kind};

fn ty(dtype: DType, sizes: &[usize]) -> Type {
    Type::new(dtype, Shape::of(sizes))
}

fn float(sizes: &[usize]) -> Type {
    ty(DType::F32, sizes)
}

/// A graph of one control-flow op, all of whose results are results of the graph.
fn graph_of(kind: ControlFlowKind, bodies: &[Arc<List>], args: &[Type], results: &[Type]) -> Graph {
    let graph = Graph::new();
    let inputs: Vec<Arg> = args.iter().map(|ty| Arg::Node(graph.input(ty.clone()))).collect();
    let flow =
        ControlFlow { kind, bodies: bodies.iter().cloned().collect(), results: results.into() };
    for id in graph.flow(flow, &inputs) {
        graph.output(id);
    }
    graph.verify().unwrap();
    graph
}

/// Runs the plan and the interpreter on the same operands.
fn same(graph: &Graph, inputs: &[&Array]) {
    let plan = Plan::new(graph, &Cpu).unwrap();
    let want = one_by_one(graph, inputs, &[]);
    let got = plan.run(inputs, &[]).unwrap();
    assert_eq!(got.len(), want.len());
    for (got, want) in got.iter().zip(&want) {
        assert_eq!((got.dtype, got.shape()), (want.dtype, want.shape()));
        assert_eq!(bytes(got), bytes(want), "{}\n{plan}", graph.print(|_| None));
    }
}

fn index(value: i64) -> Array {
    cpu::fill_i64(value).unwrap()
}

#[test]
fn a_branch_runs_the_body_at_its_index() {
    let types = [float(&[3, 4]), float(&[4])];
    let first = body(&types, |x| smallvec![(x[0] + x[1]).exp(), x[1]]);
    let second = body(&types, |x| smallvec![x[0] * 2.0, x[1] - 1.0]);
    let third = body(&types, |x| smallvec![x[0], x[1]]);
    let args = [ty(DType::I64, &[]), types[0].clone(), types[1].clone()];
    let graph = graph_of(ControlFlowKind::Branch, &[first, second, third], &args, &types);
    let (x, y) = (random(DType::F32, &[3, 4], 1), random(DType::F32, &[4], 2));
    for i in -2..5 {
        same(&graph, &[&index(i), &x, &y]);
        for x in layouts(&x) {
            same(&graph, &[&index(i), &x, &y]);
        }
    }
}

/// `(a, b) ← (b, a + x)`, and `a · b` for each round.
fn scan(length: usize, reverse: bool) -> Graph {
    let types = [float(&[2, 3]), float(&[2, 3]), float(&[3]), float(&[1])];
    let step = body(&types, |x| {
        smallvec![x[1], x[0] + x[2] * x[3], (x[0] * x[1]).reduce(Reduction::Sum, &[1]), x[2]]
    });
    let args = [float(&[2, 3]), float(&[2, 3]), float(&[length, 3]), float(&[1])];
    let results = [float(&[2, 3]), float(&[2, 3]), float(&[length, 2]), float(&[length, 3])];
    let kind = ControlFlowKind::Scan { carry: 2, xs: 1, length: length.into(), reverse };
    graph_of(kind, &[step], &args, &results)
}

#[test]
fn a_scan_runs_its_body_for_each_element() {
    for length in [0, 1, 2, 5] {
        for reverse in [false, true] {
            let graph = scan(length, reverse);
            let a = random(DType::F32, &[2, 3], 1);
            let (b, k) = (random(DType::F32, &[2, 3], 2), random(DType::F32, &[1], 3));
            for x in layouts(&random(DType::F32, &[length, 3], 4)) {
                same(&graph, &[&a, &b, &x, &k]);
            }
        }
    }
}

/// Doubles the first carry until its sum is above the limit; the second counts.
fn repeat(history: bool, rounds: usize) -> Graph {
    let types = [float(&[3]), ty(DType::I64, &[]), float(&[])];
    let holds = body(&types, |x| {
        let sum = x[0].reduce(Reduction::Sum, &[0]);
        smallvec![elementwise::comparison::less.call(&[sum, x[2]])]
    });
    let next = body(&types, |x| smallvec![x[0] * 2.0, x[1] + x[1].scalar(1)]);
    let mut results = vec![types[0].clone(), types[1].clone()];
    if history {
        results.extend([float(&[rounds, 3]), ty(DType::I64, &[rounds]), ty(DType::I64, &[])]);
    }
    graph_of(ControlFlowKind::While { carry: 2, history }, &[holds, next], &types, &results)
}

#[test]
fn a_loop_runs_while_its_condition_holds() {
    let x = crate::cpu::testing::array(DType::F32, &[3], &[1.0, 2.0, 0.5]);
    for (limit, rounds) in [(0.0, 0), (4.0, 1), (8.0, 2), (100.0, 5)] {
        let limit = crate::cpu::testing::array(DType::F32, &[], &[limit]);
        same(&repeat(false, 0), &[&x, &index(0), &limit]);
        same(&repeat(true, rounds), &[&x, &index(0), &limit]);
    }
}

#[test]
fn constants_and_barriers_keep_their_values() {
    let graph = Graph::new();
    let x = graph.input(float(&[4, 5]));
    let k = graph.constant(random(DType::F32, &[5], 9));
    let kept = graph.barrier(x, &[k]);
    let e = |id: Id| Expr::new(&graph, Arg::Node(id));
    graph.build(|| smallvec![(e(kept) + e(k)).exp(), e(kept), e(k), e(k) * 2.0]).unwrap();
    same(&graph, &[&random(DType::F32, &[4, 5], 1)]);
}

#[test]
fn a_check_that_fails_is_an_error_with_its_message() {
    let graph = Graph::new();
    let x = graph.input(float(&[4]));
    let e = Expr::new(&graph, Arg::Node(x));
    let positive = elementwise::comparison::greater.call(&[e, e.scalar(0)]);
    let Arg::Node(positive) = positive.arg() else { panic!() };
    graph.effect(Effect::Check("x must be positive".into()), &[Arg::Node(positive)]);
    graph.build(|| smallvec![e.exp()]).unwrap();
    let plan = Plan::new(&graph, &Cpu).unwrap();
    let good = crate::cpu::testing::array(DType::F32, &[4], &[1.0, 2.0, 0.5, 3.0]);
    let bad = crate::cpu::testing::array(DType::F32, &[4], &[1.0, 2.0, -0.5, 3.0]);
    assert!(plan.run(&[&good], &[]).is_ok());
    let refusal = plan.run(&[&bad], &[]).err().unwrap();
    let want = "check: x must be positive: element 2 (in C order) of shape (4,) is false";
    assert_eq!((refusal.code(), refusal.message()), ("bad_value", want));
}

#[test]
fn effects_happen_in_the_order_in_which_they_are_written() {
    let graph = Graph::new();
    let x = graph.input(float(&[4]));
    let e = Expr::new(&graph, Arg::Node(x));
    let mut made = vec![x];
    for i in 0..6 {
        let y = (e + f64::from(i)).exp().reduce(Reduction::Sum, &[0]);
        let Arg::Node(y) = y.arg() else { panic!() };
        let of = made[made.len() / 2];
        graph.effect(Effect::Print(format!("{i}: {{}}").into()), &[Arg::Node(of)]);
        made.push(y);
    }
    let plan = Plan::new(&graph, &Cpu).unwrap();
    let nodes: Vec<u32> = plan
        .steps()
        .iter()
        .filter(|step| matches!(step.work, Work::Effect(_)))
        .map(|step| step.nodes[0].0)
        .collect();
    assert_eq!(nodes.len(), 6);
    assert!(nodes.is_sorted(), "{plan}");
}

/// A random program whose values go through random control flow on the way.
fn wild(seed: u64) -> Graph {
    let graph = program(DType::F32, seed, 6 + seed as usize % 12);
    let mut choices = Choices(seed * 31 + 7);
    let usable = |graph: &Graph| -> Vec<Id> {
        let nodes = graph.nodes();
        let fits = |i: &usize| {
            nodes[*i].ty == float(&[6, 70]) && !matches!(nodes[*i].kind, Kind::ControlFlow(_))
        };
        (0..nodes.len()).filter(fits).map(|i| Id(i as u32)).collect()
    };
    for _ in 0..4 {
        let values = usable(&graph);
        let mut pick = || Arg::Node(values[choices.below(values.len())]);
        let (a, b) = (pick(), pick());
        let (two, one) = ([float(&[6, 70]), float(&[6, 70])], [float(&[6, 70])]);
        let ids = match choices.below(3) {
            0 => {
                let first = body(&two, |x| smallvec![(x[0] - x[1]) * 0.5]);
                let second = body(&two, |x| smallvec![x[1]]);
                let at = graph.constant(index(choices.below(2) as i64));
                let bodies = smallvec![first, second];
                let flow = ControlFlow {
                    kind: ControlFlowKind::Branch,
                    bodies,
                    results: one.to_vec().into(),
                };
                graph.flow(flow, &[Arg::Node(at), a, b])
            }
            1 => {
                let row = [float(&[6, 70]), float(&[70])];
                let step = body(&row, |x| smallvec![x[0] * 0.5 + x[1], x[1].exp()]);
                let kind = ControlFlowKind::Scan {
                    carry: 1,
                    xs: 1,
                    length: 6.into(),
                    reverse: choices.below(2) == 0,
                };
                let flow =
                    ControlFlow { kind, bodies: smallvec![step], results: two.to_vec().into() };
                graph.flow(flow, &[a, b])
            }
            _ => {
                let types = [float(&[6, 70]), ty(DType::I64, &[]), float(&[6, 70])];
                let holds = body(&types, |x| {
                    smallvec![elementwise::comparison::less.call(&[x[1], x[1].scalar(3)])]
                });
                let next = body(&types, |x| smallvec![x[0] * 0.5 + x[2], x[1] + x[1].scalar(1)]);
                let zero = graph.constant(index(0));
                let results = types[..2].to_vec().into();
                let kind = ControlFlowKind::While { carry: 1 + 1, history: false };
                let flow = ControlFlow { kind, bodies: smallvec![holds, next], results };
                graph.flow(flow, &[a, Arg::Node(zero), b])
            }
        };
        let e = |id: Id| Expr::new(&graph, Arg::Node(id));
        let Arg::Node(mixed) = (e(ids[0]) * 0.25 + e(values[0])).arg() else { panic!() };
        graph.output(mixed);
    }
    graph.verify().unwrap();
    graph
}

#[test]
fn programs_with_flows_give_the_bits_of_their_nodes() {
    for seed in 0..40 {
        let graph = wild(seed);
        let inputs = values_of(&graph, seed);
        let inputs: Vec<&Array> = inputs.iter().collect();
        let plan = Plan::new(&graph, &Cpu).unwrap();
        let numbers = numbers_of(&graph);
        let want = try_one_by_one(&graph, &inputs, &numbers).unwrap();
        let got = plan.run(&inputs, &numbers).unwrap();
        for (got, want) in got.iter().zip(&want) {
            assert_eq!(bytes(got), bytes(want), "{seed}\n{}\n{plan}", graph.print(|_| None));
        }
    }
}

/// For tests of memory: programs with control flow.
pub(super) fn wild_ones() -> impl Iterator<Item = Graph> {
    (0..25).map(wild)
}
