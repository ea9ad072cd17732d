use smallvec::smallvec;

use super::pipeline::{Options, PASSES, pipeline, reported};
use super::random::{check, count, plain, program};
use super::{constant_folding, cse, dead, expand, gradients, simplify, sink};
use crate::array::Array;
use crate::cpu::target::Cpu;
use crate::dtype::DType;
use crate::graph::cases;
use crate::graph::{Graph, List};
use crate::ops::attributes::{Contraction, Reduction};
use crate::ops::emit::{Arg, Emit, Expr, Id, catch};
use crate::ops::op::Type;
use crate::shape::Shape;

type Run = fn(List, &Options) -> crate::error::Result<List>;
const RUNS: [(&str, Run); 6] = [
    ("cse", cse::cse),
    ("dead", dead::dead),
    ("fold", |list, options| constant_folding::fold(list, options, &Cpu)),
    ("simplify", simplify::simplify),
    ("sink", sink::sink),
    ("pipeline", |list, options| pipeline(list, options, &Cpu)),
];

fn check_all(name: &str, list: &List, inputs: &[Array]) {
    for (pass, run) in RUNS {
        check(&format!("{pass} of {name}"), list, inputs, |list| run(list, &plain()));
    }
}

fn ty(sizes: &[usize]) -> Type {
    Type::new(DType::F32, Shape::of(sizes))
}

#[test]
fn every_pass_keeps_the_bits_of_random_programs() {
    for seed in 0..1500 {
        let (list, inputs) = program(seed, 4 + seed as usize % 40);
        check_all(&format!("program {seed}"), &list, &inputs);
    }
}

#[test]
fn every_pass_keeps_the_bits_of_every_op() {
    for (op, operands) in cases::ops() {
        let graph = Graph::with_calls();
        let inputs: Vec<Array> =
            operands.iter().enumerate().filter_map(|(i, x)| x.data(i as u64 * 7)).collect();
        let args = cases::args(&operands, &graph);
        let y = catch(|| graph.emit(op.clone(), &args)).unwrap();
        graph.output(y);
        check_all(&format!("{op:?}"), &graph.into_list(), &inputs);
    }
}

/// The composites of the cases, and their gradients where they have any.
fn graphs() -> Vec<(String, List, Vec<Array>)> {
    let mut out = Vec::new();
    for call in cases::calls() {
        let name = format!("{} {:?}", call.composite.name, call.attributes);
        let inputs: Vec<Array> =
            call.operands.iter().enumerate().filter_map(|(i, x)| x.data(i as u64 * 7)).collect();
        let graph = Graph::with_calls();
        call.build(&graph);
        let ids: Vec<Id> = graph.list().inputs().collect();
        let seeds: Vec<(Id, Arg)> = graph
            .outputs()
            .iter()
            .filter(|id| graph.ty(**id).dtype.is_float())
            .map(|&id| (id, Arg::Number(1.0.into())))
            .collect();
        if let Ok(grads) = gradients(&graph, &seeds, &ids) {
            grads.into_iter().flatten().for_each(|id| graph.output(id));
        }
        out.push((name, graph.into_list(), inputs));
    }
    out
}

#[test]
fn every_pass_keeps_the_bits_of_composites_and_their_gradients() {
    for (name, list, inputs) in graphs() {
        check_all(&name, &list, &inputs);
        let plain_list = expand(&Graph::from_list(list)).unwrap().into_list();
        check_all(&name, &plain_list, &inputs);
    }
}

#[test]
fn switches_switch_and_unknown_names_are_refused() {
    let mut options = Options::default();
    for pass in &PASSES {
        options.switch(pass.name, false).unwrap();
        assert!(!options.is_on(pass.name) && !pass.doc.is_empty());
    }
    let (list, _) = program(7, 30);
    let (same, reports) = reported(list.clone(), &options, &Cpu).unwrap();
    assert!(reports.is_empty() && same.nodes.len() == list.nodes.len());
    options.switch("cse", true).unwrap();
    let names: Vec<&str> =
        reported(list, &options, &Cpu).unwrap().1.iter().map(|r| r.name).collect();
    assert_eq!(names, ["cse"]);
    let error = options.switch("magic", false).unwrap_err();
    assert_eq!(error.code(), "bad_value");
    assert!(error.message().contains("\"magic\"") && error.message().contains("simplify"));
}

/// `((x · 1 − 0).exp() + (x · 1).exp()) · sum(arange(16) · 2)`, with a product that nobody reads.
fn wasteful() -> List {
    let graph = Graph::new();
    let x = Expr::new(&graph, Arg::Node(graph.input(ty(&[4, 4]))));
    let k = Expr::new(&graph, Arg::Node(graph.input(ty(&[4, 4]))));
    let plain = Contraction {
        a_batch: smallvec![],
        b_batch: smallvec![],
        a_contract: smallvec![1],
        b_contract: smallvec![0],
    };
    let formula = || {
        let (a, b) = ((x * 1.0 - 0.0).exp(), (x * 1.0).exp());
        let _unread = x.contract(k, plain).reduce(Reduction::Sum, &[0, 1]);
        let table = x.iota(DType::F32, Shape::of(&[16]), 0).reshape(Shape::of(&[4, 4])) * 2.0;
        smallvec![((a + b) * table.reduce(Reduction::Sum, &[0, 1])).tanh() - 1.0]
    };
    graph.build(formula).unwrap();
    graph.into_list()
}

#[test]
fn what_is_wasted_goes_and_each_switch_shows() {
    let names = |options: &Options| -> Vec<&'static str> {
        let list = pipeline(wasteful(), options, &Cpu).unwrap();
        list.nodes.iter().map(|node| node.kind.name()).collect()
    };
    let all = names(&plain());
    assert_eq!(all, ["input", "input", "exp", "add", "multiply", "tanh", "subtract"],);
    let without = |name: &str| {
        let mut options = plain();
        options.switch(name, false).unwrap();
        names(&options)
    };
    let times = |list: &[&str], name: &str| list.iter().filter(|n| **n == name).count();
    assert_eq!(times(&without("cse"), "exp"), 2);
    assert_eq!(times(&without("simplify"), "exp"), 2);
    assert_eq!(times(&without("dead"), "matmul"), 1);
    assert_eq!(times(&without("fold"), "iota"), 1);
}

#[test]
fn reports_count_nodes_bytes_and_operations() {
    let graph = Graph::new();
    let x = Expr::new(&graph, Arg::Node(graph.input(ty(&[10, 10]))));
    let y = Expr::new(&graph, Arg::Node(graph.input(ty(&[10, 10]))));
    graph.build(|| smallvec![(x * y).exp() + (x * y).exp()]).unwrap();
    let (list, reports) = reported(graph.into_list(), &plain(), &Cpu).unwrap();
    let cse = reports.iter().find(|report| report.name == "cse").unwrap();
    assert_eq!((cse.nodes_before, cse.nodes_after), (7, 5));
    // Of 400 bytes each: two products of 3, two exponentials of 2, one sum of 3; then one of each.
    assert_eq!((cse.bytes_before, cse.bytes_after), (13 * 400, 8 * 400));
    assert_eq!((cse.flops_before, cse.flops_after), (500, 300));
    assert_eq!(count(&list, "exp"), 1);
}

#[test]
fn a_million_nodes_pass_without_recursion() {
    let graph = Graph::new();
    let mut x = Expr::new(&graph, Arg::Node(graph.input(ty(&[2, 1]))));
    for i in 0..1_000_000 {
        x = match i % 5 {
            0 => x + 1.0,
            1 => x.permute(smallvec![1, 0]),
            2 => -x,
            3 => x.reshape(Shape::of(if x.shape()[0].equals(2) { &[1, 2] } else { &[2, 1] })),
            _ => x.tanh(),
        };
    }
    graph.build(|| smallvec![x]).unwrap();
    let (list, reports) = reported(graph.into_list(), &plain(), &Cpu).unwrap();
    assert!(list.nodes.len() > 500_000 && reports.len() == 7);
}
