use std::sync::Arc;

use smallvec::smallvec;

use super::dead::dead;
use super::pipeline::Options;
use super::random::{check, count};
use crate::cpu::testing::array;
use crate::dtype::DType;
use crate::graph::testing::body;
use crate::graph::{ControlFlow, ControlFlowKind, Effect, Graph, Kind};
use crate::ops::emit::{Arg, Expr, Id};
use crate::ops::op::Type;
use crate::shape::{Dim, Shape};

fn scalar(dtype: DType) -> Type {
    Type::new(dtype, Shape::scalar())
}

fn row(dtype: DType) -> Type {
    Type::new(dtype, Shape::of(&[3]))
}

/// A control-flow op over inputs of these types, of which some results are read. Returns what
/// remains of it after the pass.
fn pruned(types: &[Type], flow: ControlFlow, read: &[usize]) -> (usize, Arc<ControlFlow>) {
    let graph = Graph::new();
    let args: Vec<Arg> = types.iter().map(|ty| Arg::Node(graph.input(ty.clone()))).collect();
    let parts = graph.flow(flow, &args);
    read.iter().for_each(|&i| graph.output(parts[i]));
    let inputs: Vec<_> = types
        .iter()
        .enumerate()
        .map(|(i, ty)| {
            let sizes = ty.shape.sizes();
            array(ty.dtype, &sizes, &vec![i as f64 + 1.0; ty.shape.count()])
        })
        .collect();
    let list = check("dead", &graph.into_list(), &inputs, |list| dead(list, &Options::default()));
    let found = list.nodes.iter().find_map(|node| match &node.kind {
        Kind::ControlFlow(flow) => Some((node.args.len(), flow.clone())),
        Kind::Input
        | Kind::Constant(_)
        | Kind::Op(_)
        | Kind::Result(_)
        | Kind::Effect(_)
        | Kind::Barrier => None,
    });
    found.expect("the flow is read")
}

fn branch() -> ControlFlow {
    let f = scalar(DType::F32);
    let types = [f.clone(), f.clone(), f.clone()];
    let one = body(&types, |x| smallvec![x[0].exp(), x[0] * x[1], x[2]]);
    let two = body(&types, |x| smallvec![x[0], x[1].sin(), -x[2]]);
    ControlFlow {
        kind: ControlFlowKind::Branch,
        bodies: [one, two].into_iter().collect(),
        results: types.into_iter().collect(),
    }
}

#[test]
fn branches_lose_results_that_nobody_reads_and_what_they_took() {
    let f = || scalar(DType::F32);
    let types = [scalar(DType::I64), f(), f(), f()];
    let (operands, flow) = pruned(&types, branch(), &[0]);
    assert_eq!((operands, flow.results.len()), (2, 1));
    assert!(flow.bodies.iter().all(|body| count(body, "sin") + count(body, "multiply") == 0));
    // An operand that one body reads, all bodies take.
    let (operands, flow) = pruned(&types, branch(), &[1]);
    assert_eq!((operands, flow.results.len()), (3, 1));
    let (operands, flow) = pruned(&types, branch(), &[2, 0, 1]);
    assert_eq!((operands, flow.results.len()), (4, 3));
}

/// Three carries: a count, the sum of a capture, and a product that only itself reads, with a
/// capture of its own.
fn turns(history: bool) -> ControlFlow {
    let (i, f) = (scalar(DType::I64), scalar(DType::F32));
    let types = [i.clone(), f.clone(), f.clone(), f.clone(), f.clone()];
    let condition = body(&types, |x| smallvec![x[0].less(x[0].scalar(4))]);
    let step = body(&types, |x| smallvec![x[0].add(x[0].scalar(1)), x[1] + x[3], x[2] * x[4]]);
    let stacked = |ty: &Type| Type::new(ty.dtype, Shape::of(&[0]));
    let mut results = vec![i.clone(), f.clone(), f.clone()];
    if history {
        results.extend([stacked(&i), stacked(&f), stacked(&f), i]);
    }
    ControlFlow {
        kind: ControlFlowKind::While { carry: 3, history },
        bodies: [condition, step].into_iter().collect(),
        results: results.into_iter().collect(),
    }
}

#[test]
fn loops_lose_carries_that_nobody_needs() {
    let (i, f) = (|| scalar(DType::I64), || scalar(DType::F32));
    let types = [i(), f(), f(), f(), f()];
    // The count stays: the condition reads it.
    let (operands, flow) = pruned(&types, turns(false), &[1]);
    assert_eq!(flow.kind, ControlFlowKind::While { carry: 2, history: false });
    assert_eq!((operands, flow.results.len()), (3, 2));
    let (operands, flow) = pruned(&types, turns(true), &[2]);
    assert_eq!(flow.kind, ControlFlowKind::While { carry: 2, history: false });
    assert_eq!((operands, flow.results.len()), (3, 2));
    // A history of one carry, and the count of rounds.
    let (operands, flow) = pruned(&types, turns(true), &[4, 6]);
    assert_eq!(flow.kind, ControlFlowKind::While { carry: 2, history: true });
    assert_eq!((operands, flow.results.len()), (3, 5));
    let (operands, flow) = pruned(&types, turns(true), &[0, 3, 4, 5]);
    assert_eq!((operands, flow.results.len()), (5, 7));
}

/// Three carries: one that reads another, that other, and one alone. Two stacked results, one from
/// each scanned operand.
fn rows() -> ControlFlow {
    let f = scalar(DType::F32);
    let types = [f.clone(), f.clone(), f.clone(), f.clone(), f.clone(), f.clone()];
    let step = body(&types, |x| {
        let (a, b, c, y, z, w) = (x[0], x[1], x[2], x[3], x[4], x[5]);
        smallvec![a + b, b * y, c + z * w, a * 2.0, z.exp()]
    });
    let r = || row(DType::F32);
    ControlFlow {
        kind: ControlFlowKind::Scan { carry: 3, xs: 2, length: Dim::new(3), reverse: false },
        bodies: [step].into_iter().collect(),
        results: [f.clone(), f.clone(), f, r(), r()].into_iter().collect(),
    }
}

#[test]
fn scans_lose_carries_stacked_results_and_operands() {
    let (f, r) = (|| scalar(DType::F32), || row(DType::F32));
    let types = [f(), f(), f(), r(), r(), f()];
    let kind = |carry, xs| ControlFlowKind::Scan { carry, xs, length: Dim::new(3), reverse: false };
    // The first carry needs the second, which reads the first scanned operand.
    let (operands, flow) = pruned(&types, rows(), &[0]);
    assert_eq!((operands, &flow.kind, flow.results.len()), (3, &kind(2, 1), 2));
    let (operands, flow) = pruned(&types, rows(), &[4]);
    assert_eq!((operands, &flow.kind, flow.results.len()), (1, &kind(0, 1), 1));
    let (operands, flow) = pruned(&types, rows(), &[2, 3]);
    assert_eq!((operands, &flow.kind, flow.results.len()), (6, &kind(3, 2), 4));
}

#[test]
fn effects_inputs_and_barriers_that_are_read_stay() {
    let graph = Graph::new();
    let x = Expr::new(&graph, Arg::Node(graph.input(scalar(DType::F32))));
    let unread = graph.input(scalar(DType::F32));
    let truth = x.less(x.scalar(2.0));
    graph.effect(Effect::Check("small".into()), &[truth.arg()]);
    let _dead = x.exp().sin();
    let y = graph.barrier(Id(0), &[unread]);
    graph.name(unread, "unread");
    graph.output(y);
    let options = Options::default();
    let list = dead(graph.into_list(), &options).unwrap();
    let names: Vec<&str> = list.nodes.iter().map(|node| node.kind.name()).collect();
    assert_eq!(names, ["input", "input", "less", "check", "barrier"]);
    assert_eq!(list.names.len(), 1);
}
