use smallvec::smallvec;

use super::constant_folding::fold;
use super::pipeline::Options;
use super::random::{Dice, check, count, special};
use crate::cpu::target::Cpu;
use crate::cpu::testing::{array, values};
use crate::dtype::DType;
use crate::error::Result;
use crate::graph::{Graph, Kind, List};
use crate::ops::attributes::Reduction;
use crate::ops::emit::{Arg, Expr};
use crate::ops::op::{Op, Type};
use crate::passes::dead::dead;
use crate::shape::Shape;

fn folded(list: List) -> Result<List> {
    let options = Options::default();
    dead(fold(list, &options, &Cpu)?, &options)
}

/// Folds a formula without inputs.
fn result(formula: impl for<'e> Fn(Expr<'e>) -> Expr<'e>) -> List {
    let graph = Graph::with_calls();
    let none = Expr::new(&graph, Arg::Number(0.into()));
    graph.build(|| smallvec![formula(none)]).unwrap();
    check("fold", &graph.into_list(), &[], folded)
}

#[test]
fn what_is_known_becomes_a_constant_or_a_number() {
    let list = result(|n| {
        let table = n.iota(DType::F32, Shape::of(&[16]), 0).reshape(Shape::of(&[4, 4])) * 2.0;
        table.reduce(Reduction::Sum, &[0, 1])
    });
    assert_eq!(list.nodes.len(), 1);
    assert_eq!(list.nodes[0].args[0], Arg::Number(240.0.into()));
    let list = result(|n| n.iota(DType::I64, Shape::of(&[2, 3]), 1).multiply(n.scalar(3)));
    let [node] = list.nodes.as_slice() else { panic!("{list:?}") };
    let Kind::Constant(array) = &node.kind else { panic!("{node:?}") };
    assert_eq!(values(array), [0.0, 3.0, 6.0, 0.0, 3.0, 6.0]);
}

#[test]
fn large_values_stay_small() {
    // A number everywhere is computed once, however large the shape.
    let list = result(|n| n.scalar(1.0).full(DType::F32, Shape::of(&[1 << 9, 1 << 9])).exp());
    assert_eq!((list.nodes.len(), count(&list, "full")), (1, 1));
    // A broadcast stays a broadcast, and ops on it stay for the run.
    let list = result(|n| {
        let row = n.iota(DType::F32, Shape::of(&[64]), 0) * 0.5;
        row.broadcast(Shape::of(&[1 << 10, 64])).exp()
    });
    let names: Vec<&str> = list.nodes.iter().map(|node| node.kind.name()).collect();
    assert_eq!(names, ["constant", "broadcast_to", "exp"]);
    // The limit is the option's.
    let graph = Graph::new();
    let n = Expr::new(&graph, Arg::Number(0.into()));
    graph.build(|| smallvec![n.iota(DType::F32, Shape::of(&[64]), 0).exp()]).unwrap();
    let options = Options { fold_bytes: 100, ..Options::default() };
    let list = fold(graph.into_list(), &options, &Cpu).unwrap();
    assert_eq!(count(&list, "exp"), 1);
}

#[test]
fn constants_of_one_number_are_that_number_to_the_bit() {
    for dtype in DType::ALL {
        for value in [0.0, -0.0, 1.0, f64::NAN, f64::INFINITY, 1e-42, -3.0] {
            let graph = Graph::new();
            let id = graph.constant(array(dtype, &[2, 3], &[value; 6]));
            graph.output(id);
            let list = check("fold", &graph.into_list(), &[], folded);
            assert_eq!(count(&list, "full"), 1, "{dtype} {value}");
        }
    }
    // −0.0 and 0.0 differ.
    let graph = Graph::new();
    let id = graph.constant(array(DType::F32, &[2], &[0.0, -0.0]));
    graph.output(id);
    assert_eq!(count(&folded(graph.into_list()).unwrap(), "constant"), 1);
}

#[test]
fn what_is_not_known_or_refused_stays() {
    let graph = Graph::new();
    let ty = Type::new(DType::F32, Shape::of(&[4]));
    let x = Expr::new(&graph, Arg::Node(graph.input(ty.clone())));
    let number = Expr::new(&graph, graph.number()).full(DType::F32, Shape::of(&[4]));
    let table = Expr::new(&graph, Arg::Node(graph.constant(special(&ty, &mut Dice::new(1)))));
    let bad = Expr::new(&graph, Arg::Node(graph.constant(array(DType::I64, &[2], &[1.0, 9.0]))));
    graph.build(|| smallvec![x.exp(), number.exp(), table.gather(&[bad])]).unwrap();
    let list = folded(graph.into_list()).unwrap();
    assert_eq!((count(&list, "exp"), count(&list, "gather")), (2, 1));
}

#[test]
fn composites_of_constants_are_computed_by_their_formulas() {
    let graph = Graph::with_calls();
    let ty = Type::new(DType::F32, Shape::of(&[2, 3]));
    let id = graph.constant(special(&ty, &mut Dice::new(8)));
    let call = crate::graph::cases::calls()
        .into_iter()
        .find(|call| call.composite.name == "softmax")
        .expect("softmax is a composite");
    let call =
        crate::ops::op::Call { composite: call.composite, attributes: call.attributes.into() };
    let y = crate::ops::emit::Emit::emit(&graph, Op::Call(call), &[Arg::Node(id)]);
    graph.output(y);
    let list = check("fold", &graph.into_list(), &[], folded);
    assert_eq!(count(&list, "softmax"), 0);
}
