use smallvec::smallvec;

use super::freeze;
use crate::array::Array;
use crate::cpu::target::Cpu;
use crate::cpu::testing::{array, values};
use crate::dtype::DType;
use crate::graph::testing::{body, run};
use crate::graph::{ControlFlow, ControlFlowKind, Graph, Kind, List};
use crate::ops::attributes::{Contraction, ConvRole, ConvSpec};
use crate::ops::emit::{Arg, Expr, Id};
use crate::ops::op::Type;
use crate::passes::Options;
use crate::passes::random::count;
use crate::shape::{Axes, Dim, Shape};

fn numbers(sizes: &[usize], seed: usize) -> Array {
    let n: usize = sizes.iter().product();
    let values: Vec<f64> = (0..n).map(|i| ((i * 7 + seed * 13) % 11) as f64 / 4.0 - 1.25).collect();
    array(DType::F64, sizes, &values)
}

/// A formula of an input and constants, frozen, with results near those of the list itself.
fn frozen(
    input: &[usize],
    constants: &[Array],
    formula: impl for<'e> Fn(Expr<'e>, &[Expr<'e>]) -> Expr<'e>,
) -> List {
    let graph = Graph::with_calls();
    let x = graph.input(Type::new(DType::F64, Shape::of(input)));
    let ids: Vec<Id> = constants.iter().map(|c| graph.constant(c.clone())).collect();
    let exprs: Vec<Expr<'_>> = ids.iter().map(|&id| Expr::new(&graph, Arg::Node(id))).collect();
    graph.build(|| smallvec![formula(Expr::new(&graph, Arg::Node(x)), &exprs)]).unwrap();
    let list = graph.into_list();
    let frozen = freeze(list.clone(), &Options::default(), &Cpu).unwrap();
    let x = numbers(input, 3);
    let [want, got] =
        [&list, &frozen].map(|list| values(&run(list, std::slice::from_ref(&x), &[]).unwrap()[0]));
    let most = want.iter().fold(1.0, |most: f64, x| most.max(x.abs()));
    assert!(want.iter().zip(&got).all(|(a, b)| (a - b).abs() <= 1e-13 * most), "{want:?} {got:?}");
    frozen
}

fn rows_by_columns() -> Contraction {
    Contraction {
        a_batch: Axes::new(),
        b_batch: Axes::new(),
        a_contract: smallvec![1],
        b_contract: smallvec![0],
    }
}

#[test]
fn factors_go_into_products_on_either_side() {
    let (w, c, d) = (numbers(&[3, 4], 0), numbers(&[4], 1), numbers(&[3], 2));
    let list =
        frozen(&[5, 3], &[w.clone(), c], |x, k| (x * 2.0).contract(k[0], rows_by_columns()) * k[1]);
    assert_eq!((count(&list, "multiply"), list.nodes.len()), (0, 3));
    let left = numbers(&[2, 3], 4);
    let column = numbers(&[2, 1], 5);
    let list = frozen(&[3, 4], &[left, column], |x, k| k[0].contract(x, rows_by_columns()) / k[1]);
    assert_eq!((count(&list, "divide"), list.nodes.len()), (0, 3));
    // A factor along an axis of the other operand has nothing to go into.
    let rows = numbers(&[5, 1], 6);
    let list = frozen(&[5, 3], &[w, rows], |x, k| x.contract(k[0], rows_by_columns()) * k[1]);
    assert_eq!(count(&list, "multiply"), 1);
    let square = numbers(&[3, 3], 7);
    let list =
        frozen(&[5, 3], &[square, d], |x, k| (x * k[1] + k[1]).contract(k[0], rows_by_columns()));
    assert_eq!(count(&list, "multiply"), 1);
}

#[test]
fn factors_go_into_convolutions_and_their_transposes() {
    let spec = |groups| ConvSpec {
        stride: smallvec![2],
        pad_low: smallvec![1],
        pad_high: smallvec![1],
        dilation: smallvec![1],
        groups,
        input: smallvec![Dim::new(9)],
        kernel: smallvec![Dim::new(3)],
    };
    for (role, inputs, outputs) in [(ConvRole::Output, 4, 6), (ConvRole::Input, 6, 4)] {
        for groups in [1, 2] {
            let w = numbers(&[6, 4 / groups, 3], 0);
            let (behind, before) = (numbers(&[outputs, 1], 1), numbers(&[inputs, 1], 2));
            let length = if role == ConvRole::Output { 9 } else { 5 };
            let list = frozen(&[2, inputs, length], &[w, behind.clone(), before], |x, k| {
                ((x * k[2]).conv(role, k[0], Box::new(spec(groups))) + k[1]) * k[1]
            });
            assert_eq!((count(&list, "multiply"), list.nodes.len()), (0, 5));
        }
    }
}

#[test]
fn constants_go_into_bodies_of_control_flow() {
    let ty = Type::new(DType::F64, Shape::of(&[3]));
    let (w, c) = (numbers(&[3, 3], 0), numbers(&[3], 1));
    let graph = Graph::with_calls();
    let x = graph.input(ty.clone());
    let inputs = [ty.clone(), Type::new(DType::F64, Shape::of(&[3, 3])), ty.clone()];
    let product = || Contraction { a_contract: smallvec![0], ..rows_by_columns() };
    let round = body(&inputs, |x| smallvec![x[0].contract(x[1], product()) * x[2]]);
    let kind = ControlFlowKind::Scan { carry: 1, xs: 0, length: Dim::new(2), reverse: false };
    let flow = ControlFlow { kind, bodies: smallvec![round], results: smallvec![ty] };
    let (w, c) = (graph.constant(w), graph.constant(c));
    let results = graph.flow(flow, &[x, w, c].map(Arg::Node));
    graph.output(results[0]);
    let list = freeze(graph.into_list(), &Options::default(), &Cpu).unwrap();
    let flows = list.nodes.iter().filter_map(|node| match &node.kind {
        Kind::ControlFlow(flow) => Some((node.args.len(), flow.bodies[0].clone())),
        Kind::Input
        | Kind::Constant(_)
        | Kind::Op(_)
        | Kind::Result(_)
        | Kind::Effect(_)
        | Kind::Barrier => None,
    });
    let found: Vec<_> = flows.collect();
    let [(operands, body)] = found.as_slice() else { panic!("{list:?}") };
    assert_eq!((*operands, count(body, "multiply"), count(body, "matmul")), (1, 0, 1));
}
