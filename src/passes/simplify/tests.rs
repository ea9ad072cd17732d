use smallvec::smallvec;

use super::*;
use crate::cpu::testing::array;
use crate::dtype::DType;
use crate::graph::Graph;
use crate::ops::attributes::Contraction;
use crate::ops::elementwise::arithmetic;
use crate::ops::emit::{Emit, Expr};
use crate::ops::op::SliceAxis;
use crate::passes::random::{Dice, SPECIAL, check, count, special};
use crate::shape::{Dim, Shape};
use crate::site::Site;

/// The list of a formula over inputs of one type, simplified and checked on special values, and the
/// names of the ops that remain.
fn left(
    dtype: DType,
    shapes: &[&[usize]],
    fast: bool,
    formula: impl for<'e> Fn(&[Expr<'e>]) -> Expr<'e>,
) -> (List, Vec<&'static str>) {
    let graph = Graph::with_calls();
    let mut dice = Dice::new(3);
    let types: Vec<Type> = shapes.iter().map(|s| Type::new(dtype, Shape::of(s))).collect();
    let inputs: Vec<_> = types.iter().map(|ty| special(ty, &mut dice)).collect();
    let ids: Vec<Expr<'_>> =
        types.into_iter().map(|ty| Expr::new(&graph, Arg::Node(graph.input(ty)))).collect();
    graph.build(|| smallvec![formula(&ids)]).unwrap();
    let options = Options { fast_math: fast, ..Options::default() };
    let list = graph.into_list();
    let pass = |list| crate::passes::dead::dead(simplify(list, &options)?, &options);
    let after = if fast { pass(list).unwrap() } else { check("simplify", &list, &inputs, pass) };
    let ops = after.nodes.iter().filter(|n| !matches!(n.kind, Kind::Input));
    let names = ops.map(|node| node.kind.name()).collect();
    (after, names)
}

/// A formula over float32 (4, 4), or a scalar beside it, that becomes these ops.
macro_rules! becomes {
    ($($dtype:ident |$x:ident| $formula:expr => $names:expr;)*) => {$(
        let want: &[&str] = &$names;
        let (_, names) = left(DType::$dtype, &[&[4, 4]], false, |xs| { let $x = xs[0]; $formula });
        assert_eq!(names, want, "{}", stringify!($formula));
    )*};
}

#[test]
fn what_is_neutral_goes_and_what_is_not_stays() {
    becomes! {
        F32 |x| x.pow(x.scalar(1.0)) => [];
        F32 |x| x.greater_equal(x.scalar(0.0)).select(x, x.maximum(x.scalar(0.0))) => ["maximum"];
        F16 |x| x.less_equal(x.scalar(-0.0)).select(x, x.minimum(x.scalar(-0.0))) => ["minimum"];
        I64 |x| x.greater_equal(x.scalar(2)).select(x, x.maximum(x.scalar(2))) => ["maximum"];
        F32 |x| x.greater(x.scalar(0.0)).select(x, x.maximum(x.scalar(0.0)))
            => ["greater", "maximum", "where"];
        F16 |x| x.pow(x.scalar(2.0)) => ["square"];
        I8 |x| x.pow(x.scalar(2)) => ["square"];
        F32 |x| x.pow(x.scalar(3.0)) => ["third_power"];
        I64 |x| x.pow(x.scalar(3)) => ["third_power"];
        F64 |x| x.pow(x.scalar(3.0)) => ["pow"];
        F32 |x| x.pow(x.scalar(4.0)) => ["pow"];
        F32 |x| x * 1.0 - 0.0 => [];
        F32 |x| 1.0 * x => [];
        F32 |x| x / 1.0 => [];
        F32 |x| x + -0.0 => [];
        F32 |x| -0.0 + x => [];
        F32 |x| x + 0.0 => ["add"];
        F32 |x| x - -0.0 => ["subtract"];
        F32 |x| x * 0.0 => ["multiply"];
        F32 |x| x - x => ["subtract"];
        F32 |x| x / x => ["divide"];
        F32 |x| x.pow(x.scalar(0.0)) => ["full"];
        F32 |x| x / 4.0 => ["multiply"];
        F32 |x| x / 3.0 => ["divide"];
        F32 |x| x / f64::MIN_POSITIVE => ["divide"];
        F16 |x| x / 4096.0 => ["multiply"];
        F16 |x| x / 65536.0 => ["divide"];
        F64 |x| x * 1.0 / 0.5 => ["multiply"];
        I64 |x| x.add(x.scalar(0)) => [];
        I64 |x| x.subtract(x) => ["full"];
        I64 |x| x.multiply(x.scalar(0)) => ["full"];
        I64 |x| x.multiply(x.scalar(1)) => [];
        I64 |x| x.floor_divide(x.scalar(1)) => [];
        I64 |x| x.remainder(x.scalar(1)) => ["full"];
        I64 |x| x.pow(x.scalar(1)) => [];
        I64 |x| x.pow(x.scalar(0)) => ["full"];
        I64 |x| x.bitwise_or(x.scalar(0)).bitwise_xor(x.scalar(0)) => [];
        I64 |x| x.bitwise_and(x).bitwise_left_shift(x.scalar(0)) => [];
        U8 |x| x.bitwise_xor(x) => ["full"];
        Bool |x| x.logical_and(x.scalar(true)).logical_or(x.scalar(false)) => [];
        Bool |x| x.logical_and(x.scalar(false)) => ["full"];
    }
}

#[test]
fn what_undoes_itself_goes() {
    becomes! {
        F32 |x| -(-x) => [];
        F32 |x| (-x).abs().abs() => ["abs"];
        F32 |x| x.floor().round().ceil() => ["floor"];
        F32 |x| x.sign().sign() => ["sign"];
        F32 |x| x.maximum(x).minimum(x) => [];
        I64 |x| x.round().bitwise_invert().bitwise_invert() => [];
        Bool |x| x.logical_not().logical_not() => [];
        F32 |x| x.equal(x).logical_not() => ["not_equal"];
        F32 |x| x.less(x).logical_not() => ["less", "logical_not"];
        F32 |x| x.less(x).select(x, x) => [];
        F32 |x| x.scalar(true).select(x, -x) => [];
        F32 |x| x.less(x).logical_not().select(x, -x) => ["less", "negative", "where"];
    }
}

#[test]
fn casts_without_loss_go() {
    use crate::cpu::{Operand, execute};
    let values: Vec<f64> = (-300..300)
        .map(f64::from)
        .chain(SPECIAL)
        .chain([33_685_505.0, 2_049.0, -2e9, 3e9])
        .collect();
    for from in DType::ALL {
        for middle in DType::ALL {
            for to in DType::ALL {
                let graph = Graph::new();
                let ty = Type::new(from, Shape::of(&[values.len()]));
                let x = Expr::new(&graph, Arg::Node(graph.input(ty)));
                let y = x.emit(Op::Cast(middle)).emit(Op::Cast(to));
                graph.build(|| smallvec![y]).unwrap();
                let plain = array(DType::F64, &[values.len()], &values);
                let input = execute(&Op::Cast(from), &[Operand::Array(&plain)]).unwrap();
                let pass = |list| simplify(list, &Options::default());
                check(&format!("{from} {middle} {to}"), &graph.into_list(), &[input], pass);
            }
        }
    }
    becomes! {
        F16 |x| x.emit(Op::Cast(DType::F32)).emit(Op::Cast(DType::F16)) => [];
        F32 |x| x.emit(Op::Cast(DType::F16)).emit(Op::Cast(DType::F32)) => ["astype", "astype"];
        U8 |x| x.emit(Op::Cast(DType::I64)).emit(Op::Cast(DType::F32)) => ["astype"];
        F32 |x| x.emit(Op::Cast(DType::F32)) => [];
    }
}

fn at(start: usize, step: isize, size: usize) -> SliceAxis {
    SliceAxis { start: Dim::new(start), step, size: Dim::new(size) }
}

#[test]
fn views_of_views_are_one_view() {
    becomes! {
        F32 |x| x.emit(Op::Reshape(Shape::of(&[16]))).emit(Op::Reshape(Shape::of(&[4, 4]))) => [];
        F32 |x| x.emit(Op::Reshape(Shape::of(&[16]))).emit(Op::Reshape(Shape::of(&[2, 8])))
            => ["reshape"];
        F32 |x| x.emit(Op::Permute(smallvec![1, 0])).emit(Op::Permute(smallvec![1, 0])) => [];
        F32 |x| x.emit(Op::Broadcast(Shape::of(&[2, 4, 4]))).emit(Op::Broadcast(Shape::of(&[3, 2, 4, 4])))
            => ["broadcast_to"];
        F32 |x| x.emit(Op::Slice([at(3, -1, 4), at(0, 1, 4)].into()))
            .emit(Op::Slice([at(3, -1, 4), at(0, 1, 4)].into())) => [];
        F32 |x| x.emit(Op::Slice([at(1, 1, 3), at(0, 2, 2)].into()))
            .emit(Op::Slice([at(2, -2, 2), at(1, 1, 1)].into())) => ["slice"];
        F32 |x| x.scalar(2.0).full(x.dtype(), Shape::of(&[3])).reshape(Shape::of(&[3, 1]))
            .broadcast(Shape::of(&[3, 4])).transpose() => ["full"];
        F32 |x| x.unsqueeze(0).permute(smallvec![1, 0, 2]).reshape(Shape::of(&[4, 4])) => [];
        F32 |x| x + x.scalar(2.0).full(x.dtype(), Shape::of(&[4, 4])) => ["add"];
        F32 |x| x + x.narrow(0, 0, Dim::ONE).broadcast(Shape::of(&[4, 4])) => ["slice", "add"];
        F32 |x| x.narrow(0, 0, Dim::ONE).reduce(Reduction::Sum, &[0]) => ["slice", "reshape"];
        F32 |x| x.narrow(0, 0, Dim::ONE).reduce(Reduction::Max, &[0]) => ["slice", "reshape"];
        F32 |x| x.narrow(0, 0, Dim::ONE).emit(Op::Sort { axis: 0, descending: false }) => ["slice"];
        F32 |x| x.narrow(0, 0, Dim::ONE).emit(Op::ArgSort { axis: 0, descending: false }) => ["full"];
    }
}

#[test]
fn slices_of_what_was_put_together_find_their_part() {
    let middle = || -> Box<[SliceAxis]> { [at(1, 1, 4), at(0, 1, 4)].into() };
    let embedded = |x: Expr<'_>| Op::Pad(Shape::of(&[6, x.size(1).value()]), middle());
    becomes! {
        F32 |x| x.concat(&[x, -x], 0).narrow(0, 5, Dim::new(2)) => ["negative", "slice"];
        F32 |x| x.concat(&[x, -x], 0).narrow(0, 3, Dim::new(2)) => ["negative", "concat", "slice"];
        F32 |x| x.concat(&[x], 0) => [];
        F32 |x| x.concat(&[x.narrow(1, 0, Dim::new(3)), x.narrow(1, 3, Dim::ONE)], 1) => [];
        F32 |x| x.concat(&[x.narrow(1, 0, Dim::new(2)), x.narrow(1, 3, Dim::ONE)], 1)
            => ["slice", "slice", "concat"];
        F32 |x| x.concat(&[x, x.narrow(0, 0, Dim::new(0))], 0) => [];
        F32 |x| x.emit_with(embedded(x), &[x.arg(), Arg::Number(0.into())]).slice(middle()) => [];
        F32 |x| x.emit_with(embedded(x), &[x.arg(), Arg::Number(0.into())]).narrow(0, 2, Dim::new(2))
            => ["slice"];
        F32 |x| x.emit_with(embedded(x), &[x.arg(), Arg::Number(0.into())]).narrow(0, 0, Dim::ONE)
            => ["full"];
        F32 |x| x.emit_with(embedded(x), &[x.arg(), Arg::Number(0.into())]).narrow(0, 0, Dim::new(2))
            => ["pad", "slice"];
        F32 |x| {
            let at: Box<[SliceAxis]> = [at(0, 1, 2), at(0, 1, 4)].into();
            let part = x.slice(at.clone());
            x.emit_with(Op::SetItem(at), &[x.arg(), part.arg()])
        } => [];
        F32 |x| {
            let at: Box<[SliceAxis]> = [at(0, 1, 2), at(0, 1, 4)].into();
            let zero = Arg::Number(0.into());
            let once = x.emit_with(Op::SetItem(at.clone()), &[x.arg(), zero]);
            let twice = once.emit_with(Op::SetItem(at), &[once.arg(), Arg::Number(1.into())]);
            twice.narrow(0, 0, Dim::new(3))
        } => ["setitem", "slice"];
        F32 |x| {
            let at: Box<[SliceAxis]> = [at(0, 1, 2), at(0, 1, 4)].into();
            let v = (-x).slice(at.clone());
            let y = x.emit_with(Op::SetItem(at.clone()), &[x.arg(), v.arg()]);
            y.slice(at) + y.narrow(0, 2, Dim::new(2))
        } => ["negative", "slice", "slice", "add"];
    }
}

#[test]
fn fast_math_does_what_changes_bits() {
    type Formula = fn(Expr<'_>) -> Expr<'_>;
    let cases: [(&str, Formula, &[&str]); 7] = [
        ("x + 0", |x| x + 0.0, &[]),
        ("x * 0", |x| x * 0.0, &["full"]),
        ("x - x", |x| x - x, &["full"]),
        ("x / 3", |x| x / 3.0, &["multiply"]),
        ("(x + 1) + 2", |x| (x + 1.0) + 2.0, &["add"]),
        ("(x * 3) * 2", |x| (x * 3.0) * 2.0, &["multiply"]),
        ("x - -y", |x| x - -(x.exp()), &["exp", "add"]),
    ];
    for (name, formula, want) in cases {
        let run = |fast| left(DType::F32, &[&[4, 4]], fast, |xs| formula(xs[0])).1;
        assert_eq!(run(true), want, "{name}");
        assert_ne!(run(false), want, "{name}");
    }
}

#[test]
fn numbers_known_only_at_run_time_are_not_looked_at() {
    let graph = Graph::new();
    let ty = Type::new(DType::F32, Shape::of(&[4]));
    let x = Expr::new(&graph, Arg::Node(graph.input(ty)));
    let n = Expr::new(&graph, graph.number());
    let wide = n.full(DType::F32, Shape::of(&[4]));
    graph.build(|| smallvec![(x * n + wide).maximum(n)]).unwrap();
    let list = simplify(graph.into_list(), &Options::default()).unwrap();
    assert_eq!(count(&list, "multiply") + count(&list, "add") + count(&list, "maximum"), 3);
    let add = list.nodes.iter().find(|node| node.kind.name() == "add").unwrap();
    assert!(matches!(add.args[1], Arg::Number(value) if value.told() == Some(0)));
}

#[test]
fn what_follows_a_rewrite_keeps_names_and_lines() {
    let graph = Graph::new();
    let ty = Type::new(DType::F32, Shape::of(&[4]));
    let x = graph.input(ty);
    let one = Arg::Number(1.0.into());
    graph.at(Site { code: 3, offset: 4, ..Site::default() });
    let y = graph.emit(Op::Map(&arithmetic::multiply), &[Arg::Node(x), one]);
    let z = graph.emit(Op::Map(&arithmetic::quotient), &[Arg::Node(y), Arg::Number(4.0.into())]);
    graph.name(y, "same");
    graph.name(z, "quarter");
    graph.output(z);
    let list = simplify(graph.into_list(), &Options::default()).unwrap();
    assert_eq!(list.nodes.len(), 2);
    assert_eq!(&*list.names[&Id(0)], "same");
    assert_eq!(&*list.names[&Id(1)], "quarter");
    assert_eq!(list.nodes[1].site.offset, 4);
}

/// A product over these axes.
fn matmul<'e>(xs: &[Expr<'e>], a_contract: &[usize], b_contract: &[usize]) -> Expr<'e> {
    let (a_contract, b_contract) = (a_contract.into(), b_contract.into());
    let (a_batch, b_batch) = Default::default();
    xs[0].contract(xs[1], Contraction { a_batch, b_batch, a_contract, b_contract })
}

#[test]
fn products_over_one_element_are_elementwise_and_others_stay() {
    use DType::{BF16, Bool, F16, F32, F64, I8, I64, U32};
    for dtype in [F32, F64, BF16, F16, I8, U32, I64] {
        let (_, names) = left(dtype, &[&[3, 1], &[1, 4]], false, |xs| matmul(xs, &[1], &[0]));
        // The zero with which a sum starts is neutral to integers.
        let wanted = if dtype.is_float() { 3 } else { 2 };
        assert_eq!(names, ["reshape", "multiply", "add"][..wanted], "{dtype}");
        // The contracted axis stands anywhere, and there may be none.
        let (_, names) = left(dtype, &[&[1, 3], &[4, 1, 2]], false, |xs| matmul(xs, &[0], &[1]));
        assert!(!names.contains(&"matmul"), "{dtype}");
        let (_, names) = left(dtype, &[&[2, 3], &[4]], false, |xs| matmul(xs, &[], &[]));
        assert!(!names.contains(&"matmul"), "{dtype}");
        let (_, names) = left(dtype, &[&[3, 2], &[2, 4]], false, |xs| matmul(xs, &[1], &[0]));
        assert_eq!(names, ["matmul"], "{dtype}");
    }
    let (_, names) = left(Bool, &[&[3, 1], &[1, 4]], false, |xs| matmul(xs, &[1], &[0]));
    assert_eq!(names, ["matmul"]);
}
