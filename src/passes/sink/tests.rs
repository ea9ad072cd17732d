use smallvec::smallvec;

use super::*;
use crate::array::Array;
use crate::dtype::DType;
use crate::graph::Graph;
use crate::ops::emit::Expr;
use crate::passes::cost::of_list;
use crate::passes::dead::dead;
use crate::passes::random::{Dice, check, count, program, special};
use crate::passes::simplify::simplify;
use crate::shape::{Dim, Shape};

/// A formula over float32 inputs, sunk and checked.
fn sunk(shapes: &[&[usize]], formula: impl for<'e> Fn(&[Expr<'e>]) -> Expr<'e>) -> List {
    let graph = Graph::new();
    let mut dice = Dice::new(5);
    let types: Vec<Type> = shapes.iter().map(|s| Type::new(DType::F32, Shape::of(s))).collect();
    let inputs: Vec<Array> = types.iter().map(|ty| special(ty, &mut dice)).collect();
    let xs: Vec<Expr<'_>> =
        types.into_iter().map(|ty| Expr::new(&graph, Arg::Node(graph.input(ty)))).collect();
    graph.build(|| smallvec![formula(&xs)]).unwrap();
    let options = Options::default();
    let list = simplify(graph.into_list(), &options).unwrap();
    check("sink", &list, &inputs, |list| dead(sink(list, &options)?, &options))
}

fn names(list: &List) -> Vec<&'static str> {
    let inner = list.nodes.iter().filter(|node| !matches!(node.kind, Kind::Input));
    inner.map(|node| node.kind.name()).collect()
}

#[test]
fn views_cancel_across_elementwise_work() {
    let transposed = |xs: &[Expr<'_>]| [xs[0].transpose(), xs[1].transpose()].map(|x| x.arg());
    let list = sunk(&[&[3, 4], &[3, 4], &[]], |xs| {
        let [x, y] = transposed(xs).map(|arg| Expr::new(xs[0].cx(), arg));
        ((x.exp() + y) * 2.0 * xs[2]).tanh().transpose()
    });
    assert_eq!(names(&list), ["exp", "add", "multiply", "multiply", "tanh"]);
    let flat = |x: Expr<'_>| x.reshape(Shape::of(&[12])).arg();
    let list = sunk(&[&[3, 4], &[3, 4]], |xs| {
        let [x, y] = [flat(xs[0]), flat(xs[1])].map(|arg| Expr::new(xs[0].cx(), arg));
        (x * y).reshape(Shape::of(&[2, 6])).exp().reshape(Shape::of(&[3, 4]))
    });
    assert_eq!(names(&list), ["multiply", "exp"]);
}

#[test]
fn views_stay_where_they_would_only_move() {
    let list = sunk(&[&[3, 4]], |xs| xs[0].transpose().exp());
    assert_eq!(names(&list), ["permute_dims", "exp"]);
    // One reader transposes the value back, the other does not.
    let list = sunk(&[&[3, 3]], |xs| {
        let y = xs[0].transpose().exp();
        y.transpose() + y
    });
    assert_eq!(names(&list), ["permute_dims", "exp", "permute_dims", "add"]);
    // The operands are transposed differently.
    let list = sunk(&[&[3, 3], &[3, 3]], |xs| (xs[0].transpose() + xs[1]).transpose());
    assert_eq!(names(&list), ["permute_dims", "add", "permute_dims"]);
}

#[test]
fn what_is_repeated_is_computed_before() {
    let list =
        sunk(&[&[64], &[64, 64]], |xs| xs[0].broadcast(Shape::of(&[64, 64])).exp().tanh() * xs[1]);
    let exp = list.nodes.iter().find(|node| node.kind.name() == "tanh").unwrap();
    assert_eq!(exp.ty.shape, Shape::of(&[64]));
    // Few elements are not worth an extra step.
    let list = sunk(&[&[4], &[4, 4]], |xs| xs[0].broadcast(Shape::of(&[4, 4])).exp() * xs[1]);
    assert_eq!(names(&list), ["broadcast_to", "exp", "multiply"]);
}

#[test]
fn what_is_read_in_part_is_computed_in_part() {
    let list =
        sunk(&[&[8, 4], &[4]], |xs| (xs[0].exp() * 2.0 + xs[1]).narrow(0, 3, Dim::new(2)).tanh());
    assert_eq!(names(&list), ["slice", "exp", "multiply", "add", "tanh"]);
    assert!(list.nodes[3..].iter().all(|node| node.ty.shape == Shape::of(&[2, 4])));
    // Another reader reads all elements.
    let list = sunk(&[&[8, 4]], |xs| {
        let y = xs[0].exp();
        y.narrow(0, 3, Dim::ONE) + y
    });
    assert_eq!(names(&list), ["exp", "slice", "add"]);
}

#[test]
fn sinking_never_adds_work() {
    for seed in 0..400 {
        let (list, _) = program(seed + 5000, 40);
        let options = Options::default();
        let list = simplify(list, &options).unwrap();
        let before = of_list(&dead(list.clone(), &options).unwrap());
        let after = dead(sink(list, &options).unwrap(), &options).unwrap();
        assert!(of_list(&after).flops <= before.flops, "program {seed}");
        let _ = count(&after, "exp");
    }
}
