use smallvec::smallvec;

use super::numbers::{evaluate, valued};
use super::testing::body;
use super::*;
use crate::dtype::{DType, Numeric};
use crate::ops::attributes::Reduction;
use crate::ops::elementwise::arithmetic::{add, multiply};
use crate::ops::number::Calculation;
use crate::shape::{Bindings, Dim, Shape};

fn ty(sizes: &[usize]) -> Type {
    Type::new(DType::F32, Shape::of(sizes))
}

/// `sum(x * 2 * s + x, axis 1)` over float32 (2, 3).
fn sample() -> Graph {
    let graph = Graph::new();
    graph.at(Site { code: 1, offset: 12, ..Site::default() });
    let x = graph.input(ty(&[2, 3]));
    let number = graph.number();
    let s = Expr::new(&graph, number);
    let x = Expr::new(&graph, Arg::Node(x));
    graph.build(|| smallvec![(x * 2.0 * s + x).reduce(Reduction::Sum, &[1])]).unwrap();
    graph
}

#[test]
fn a_graph_prints_one_line_a_node() {
    let text = sample().print(|site| Some(format!("file.py:{}", site.offset)));
    let want = "\
numbers 1
%0: float32 (2, 3) = input  # file.py:12
%1: float32 (2, 3) = multiply(%0, 2.0)  # file.py:12
%2: float32 (2, 3) = multiply(%1, #0)  # file.py:12
%3: float32 (2, 3) = add(%2, %0)  # file.py:12
%4: float32 (2,) = sum(%3, axis=(1,))  # file.py:12
return %4
";
    assert_eq!(text, want);
}

#[test]
fn looking_at_a_number_is_noticed_and_passing_it_on_is_not() {
    let graph = sample();
    assert!(graph.looked().is_empty());
    let _ = Expr::new(&graph, graph.number()).as_scalar();
    assert_eq!(*graph.looked(), [1]);
}

#[test]
fn numbers_that_a_run_tells_are_no_scalars() {
    let graph = Graph::new();
    for i in 0..3 {
        assert_eq!(graph.number(), Arg::Number(Numeric::Told(i)));
    }
    // A number stays an entry of the table even after a look at its value.
    let x = Expr::new(&graph, graph.number());
    assert!(x.as_scalar().is_some_and(|value| value.as_f64().is_nan()));
    assert_eq!(x.arg(), Arg::Number(Numeric::Told(3)));
    // A known number is no entry.
    let half = Number::Calculated(Calculation::Div, [1.0.into(), 2.0.into()]);
    assert_eq!(graph.define(half), Numeric::Known(Scalar::Float(0.5)));
    let open = Number::Calculated(Calculation::Div, [1.0.into(), Numeric::Told(0)]);
    assert_eq!(graph.define(open), Numeric::Told(4));
    assert_eq!((half.now(), open.now()), (Some(Scalar::Float(0.5)), None));
    let values = evaluate(&graph.list().numbers, &[4.0.into(); 4], &Bindings::default()).unwrap();
    assert_eq!(values[4], Scalar::Float(0.25));
    let missing = valued(Numeric::Told(9), &values).unwrap_err();
    assert!(missing.message().contains("a number is missing"), "{missing:?}");
}

#[test]
fn verify_passes_what_emission_builds() {
    sample().verify().unwrap();
    Graph::new().verify().unwrap();
}

/// Breaks the sample's nodes and returns the error of `verify`.
fn broken(breakage: impl FnOnce(&mut Vec<Node>)) -> String {
    let graph = sample();
    breakage(&mut graph.list.borrow_mut().nodes);
    let error = graph.verify().unwrap_err();
    assert_eq!(error.code(), "bad_graph");
    error.message().to_string()
}

#[test]
fn verify_catches_broken_graphs() {
    let later = broken(|nodes| nodes[3].args[0] = Arg::Node(Id(3)));
    assert!(later.contains("node %3 (add)") && later.contains("does not stand before it: %3"));
    let shape = broken(|nodes| nodes[1].ty.shape = Shape::of(&[3, 2]));
    assert!(shape.contains("wrong type: float32 (3, 2) instead of float32 (2, 3)"), "{shape}");
    let dtype = broken(|nodes| nodes[0].ty.dtype = DType::F64);
    assert!(dtype.contains("node %1 (multiply)"), "{dtype}");
    let count = broken(|nodes| nodes[1].args.truncate(1));
    assert!(count.contains("wrong count of operands: 1"), "{count}");
    let arity = broken(|nodes| nodes[4].kind = Kind::Op(Op::Map(&add)));
    assert!(arity.contains("wrong count"), "{arity}");
    let axis = broken(|nodes| {
        nodes[4].kind = Kind::Op(Op::Reduce(Reduction::Sum, SmallVec::from_slice(&[2])));
    });
    assert!(axis.contains("attributes do not fit"), "{axis}");
    let input = broken(|nodes| nodes[0].args.push(Arg::Number(Scalar::Int(1).into())));
    assert!(input.contains("it has operands"), "{input}");
    let numbers = broken(|nodes| {
        nodes[1].kind = Kind::Op(Op::Map(&multiply));
        nodes[1].args = SmallVec::from_slice(&[Arg::Number(Scalar::Int(1).into()); 2]);
    });
    assert!(numbers.contains("only numbers"), "{numbers}");
    let graph = sample();
    graph.output(Id(9));
    assert!(graph.verify().unwrap_err().message().contains("a result does not exist: %9"));
}

#[test]
fn verify_checks_slices_and_products() {
    use crate::ops::op::SliceAxis;
    let graph = Graph::new();
    let x = Expr::new(&graph, Arg::Node(graph.input(ty(&[4, 3]))));
    let axis =
        |start: usize, step, n: usize| SliceAxis { start: start.into(), step, size: Dim::new(n) };
    let _ = x.emit(Op::Slice([axis(3, -1, 4), axis(0, 2, 2)].into()));
    graph.verify().unwrap();
    for outside in [axis(1, 1, 4), axis(2, -1, 4), axis(0, 2, 3)] {
        let graph = Graph::new();
        let x = Expr::new(&graph, Arg::Node(graph.input(ty(&[4, 3]))));
        let _ = x.emit(Op::Slice([outside, axis(0, 1, 3)].into()));
        assert!(graph.verify().is_err(), "{outside:?}");
    }
}

#[test]
fn a_million_nodes_are_built_checked_and_dropped() {
    let graph = Graph::new();
    let mut x = Expr::new(&graph, Arg::Node(graph.input(ty(&[]))));
    for _ in 0..1_000_000 {
        x = x + 1.0;
    }
    graph.verify().unwrap();
    assert_eq!(graph.len(), 1_000_001);
}

fn scalar(dtype: DType) -> Type {
    Type::new(dtype, Shape::scalar())
}

#[test]
fn the_interpreter_runs_control_flow() {
    use crate::cpu::testing::{array, values};
    let (f, i) = (scalar(DType::F32), scalar(DType::I64));
    let graph = Graph::new();
    let x = Arg::Node(graph.input(f.clone()));
    let n = Arg::Node(graph.input(i.clone()));
    let doubled = body(std::slice::from_ref(&f), |x| smallvec![x[0] + x[0]]);
    let square = body(std::slice::from_ref(&f), |x| smallvec![x[0] * x[0]]);
    let branch = ControlFlow {
        kind: ControlFlowKind::Branch,
        bodies: [doubled, square].into_iter().collect(),
        results: [f.clone()].into_iter().collect(),
    };
    let chosen = graph.flow(branch, &[n, x])[0];
    // While the count is above 0: multiply by x.
    let types = [i.clone(), f.clone(), f.clone()];
    let condition = body(&types, |x| smallvec![x[0].greater(x[0].scalar(0))]);
    let step = body(&types, |x| smallvec![x[0].subtract(x[0].scalar(1)), x[1] * x[2]]);
    let stacked = |ty: &Type| Type::new(ty.dtype, Shape::of(&[0]));
    let power = ControlFlow {
        kind: ControlFlowKind::While { carry: 2, history: true },
        bodies: [condition, step].into_iter().collect(),
        results: [i.clone(), f.clone(), stacked(&i), stacked(&f), i.clone()].into_iter().collect(),
    };
    let power = graph.flow(power, &[n, Arg::Node(chosen), x]);
    let xs = Arg::Node(graph.input(Type::new(DType::F32, Shape::of(&[3]))));
    let sum = body(&[f.clone(), f.clone(), f.clone()], |x| {
        let next = x[0] * x[2] + x[1];
        smallvec![next, x[0]]
    });
    let scan = ControlFlow {
        kind: ControlFlowKind::Scan { carry: 1, xs: 1, length: Dim::new(3), reverse: true },
        bodies: [sum].into_iter().collect(),
        results: [f.clone(), Type::new(DType::F32, Shape::of(&[3]))].into_iter().collect(),
    };
    let scan = graph.flow(scan, &[x, xs, x]);
    graph.verify().unwrap();
    graph.effect(Effect::Print("{} of {}".into()), &[x, n]);
    power.iter().chain(&scan).for_each(|&id| graph.output(id));
    let inputs = [
        array(DType::F32, &[], &[3.0]),
        array(DType::I64, &[], &[2.0]),
        array(DType::F32, &[3], &[1.0, 2.0, 4.0]),
    ];
    let got = testing::one_by_one(&graph, &inputs.each_ref(), &[]);
    let got: Vec<Vec<f64>> = got.iter().map(values).collect();
    // The index is clamped to the last branch: 9; then 9·3², and its history.
    assert_eq!(got[..5], [vec![0.0], vec![81.0], vec![2.0, 1.0], vec![9.0, 27.0], vec![2.0]]);
    // 3·3 + 4 = 13, 13·3 + 2 = 41, 41·3 + 1 = 124.
    assert_eq!(got[5..], [vec![124.0], vec![41.0, 13.0, 3.0]]);
    assert_eq!(testing::printed(), ["[3.0] of [2.0]"]);
}

#[test]
fn the_interpreter_checks() {
    use crate::cpu::testing::array;
    let graph = Graph::new();
    let x = Arg::Node(graph.input(Type::new(DType::Bool, Shape::of(&[2]))));
    graph.effect(Effect::Check("x holds".into()), &[x]);
    let run = |values: [f64; 2]| {
        testing::try_one_by_one(&graph, &[&array(DType::Bool, &[2], &values)], &[])
    };
    assert!(run([1.0, 1.0]).is_ok());
    assert!(run([1.0, 0.0]).unwrap_err().message().contains("x holds"));
}
