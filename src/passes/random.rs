//! Random programs for the tests of passes, on data with every special value.

use smallvec::SmallVec;

use super::pipeline::Options;
use crate::array::Array;
use crate::cpu::testing::{array, bytes, values};
use crate::dtype::{DType, Scalar};
use crate::error::Result;
use crate::graph::testing::run;
use crate::graph::{Graph, List};
use crate::ops::attributes::*;
use crate::ops::elementwise;
use crate::ops::emit::{Arg, Emit, Expr, Id, catch};
use crate::ops::op::{Op, SliceAxis, Type};
use crate::shape::{Axes, Dim, Shape};

/// A deterministic random number generator.
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Dice {
        Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        ((self.0 >> 33) % n.max(1) as u64) as usize
    }

    pub fn of<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len())]
    }
}

pub const DTYPES: [DType; 8] = [
    DType::F32,
    DType::F32,
    DType::F64,
    DType::F16,
    DType::BF16,
    DType::I64,
    DType::U8,
    DType::Bool,
];

/// The values that break careless algebra.
pub const SPECIAL: [f64; 16] = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    2.0,
    0.5,
    3.0,
    -2.5,
    f64::NAN,
    f64::INFINITY,
    f64::NEG_INFINITY,
    1e-40,
    -3e-42,
    5e-324,
    6e-8,
    65504.0,
];

/// An array of special values of a type.
pub fn special(ty: &Type, dice: &mut Dice) -> Array {
    let sizes = ty.shape.sizes();
    let n: usize = sizes.iter().product();
    #[allow(clippy::wildcard_enum_match_arm, reason = "any other dtype holds small whole numbers")]
    let values: Vec<f64> = (0..n)
        .map(|_| match ty.dtype {
            d if d.is_float() => dice.of(&SPECIAL),
            DType::Bool => dice.below(2) as f64,
            _ => dice.below(300) as f64 - 40.0,
        })
        .collect();
    array(ty.dtype, &sizes, &values)
}

/// A random program, and data for its inputs.
pub fn program(seed: u64, length: usize) -> (List, Vec<Array>) {
    let mut dice = Dice::new(seed);
    let graph = Graph::with_calls();
    let mut inputs = Vec::new();
    for _ in 0..3 {
        let ty = Type::new(dice.of(&DTYPES), shape(&mut dice));
        graph.input(ty.clone());
        inputs.push(special(&ty, &mut dice));
    }
    while graph.len() < length {
        let _ = catch(|| grow(&graph, &mut dice));
    }
    // Some of the values, and always the last.
    let n = graph.len();
    for _ in 0..3 {
        graph.output(Id(dice.below(n) as u32));
    }
    graph.output(Id(n as u32 - 1));
    (graph.into_list(), inputs)
}

fn shape(dice: &mut Dice) -> Shape {
    let rank = dice.below(4);
    (0..rank).map(|_| Dim::new(dice.of(&[1, 1, 2, 3, 4]))).collect()
}

/// An earlier value, late ones more often.
fn pick(graph: &Graph, dice: &mut Dice) -> Id {
    let n = graph.len();
    let back = dice.below(n).min(dice.below(n)).min(dice.below(n));
    Id((n - 1 - back) as u32)
}

fn number(dice: &mut Dice, dtype: DType) -> Scalar {
    #[allow(clippy::wildcard_enum_match_arm, reason = "any other dtype holds small whole numbers")]
    match dtype {
        d if d.is_float() => match dice.below(3) {
            0 => Scalar::Int(dice.below(3) as i64),
            _ => Scalar::Float(dice.of(&SPECIAL)),
        },
        DType::Bool => Scalar::Bool(dice.below(2) == 1),
        _ => Scalar::Int(dice.below(3) as i64),
    }
}

/// Adds a node or two, unless the op refuses the operands.
fn grow(graph: &Graph, dice: &mut Dice) {
    let id = pick(graph, dice);
    let x = Expr::new(graph, Arg::Node(id));
    let ty = graph.ty(id);
    let rank = ty.shape.rank();
    match dice.below(16) {
        0..=5 => map(graph, x, &ty, dice),
        6 => drop(x.emit(Op::Cast(dice.of(&DTYPES)))),
        7 => drop(x.emit(Op::Reshape(reshaped(&ty.shape, dice)))),
        8 => drop(x.emit(Op::Permute(permutation(rank, dice)))),
        9 => drop(x.emit(Op::Broadcast(wider(&ty.shape, dice)))),
        10 => drop(x.emit(Op::Slice(part(&ty.shape, dice)))),
        11 => {
            let at = part(&ty.shape, dice);
            let piece = x.emit(Op::Slice(at.clone()));
            match dice.below(4) {
                0 => drop(piece.emit_with(
                    Op::Pad(ty.shape.clone(), at),
                    &[piece.arg(), Arg::Number(number(dice, ty.dtype).into())],
                )),
                1 => drop(x.emit_with(Op::SetItem(at), &[x.arg(), piece.arg()])),
                2 => drop(x.emit_with(
                    Op::SetItem(at),
                    &[x.arg(), Arg::Number(number(dice, ty.dtype).into())],
                )),
                _ => drop(piece.emit_with(
                    Op::Pad(ty.shape.clone(), at),
                    &[piece.arg(), {
                        x.scalar(number(dice, ty.dtype)).full(ty.dtype, Shape::scalar()).arg()
                    }],
                )),
            }
        }
        12 if rank > 0 => {
            let axis = dice.below(rank);
            let joined = x.emit_with(Op::Concat(axis), &[x.arg(), x.arg()]);
            let at = part(&joined.shape(), dice);
            let _ = joined.emit(Op::Slice(at));
        }
        13 if rank > 0 => {
            #[allow(clippy::wildcard_enum_match_arm, reason = "any dtype but bool has these")]
            let kind = match ty.dtype {
                DType::Bool => dice.of(&[Reduction::Any, Reduction::All]),
                _ => dice.of(&[Reduction::Sum, Reduction::Prod, Reduction::Max, Reduction::Min]),
            };
            let axes: Axes = (0..rank).filter(|_| dice.below(2) == 0).collect();
            let _ = x.emit(Op::Reduce(kind, axes));
        }
        14 => {
            let dtype = dice.of(&DTYPES);
            let _ = x.scalar(number(dice, dtype)).full(dtype, shape(dice));
        }
        _ => {
            let shape = shape(dice);
            let dtype = dice.of(&[DType::F32, DType::I64]);
            match dice.below(2) {
                0 if shape.rank() > 0 => drop(x.iota(dtype, shape.clone(), shape.rank() - 1)),
                _ => drop(graph.constant(special(&Type::new(dtype, shape), dice))),
            }
        }
    }
}

fn map(graph: &Graph, x: Expr<'_>, ty: &Type, dice: &mut Dice) {
    let known: Vec<_> =
        elementwise::tables().filter(|def| def.classes.contains(ty.dtype.class())).collect();
    // Half of the time an op that algebraic simplification knows.
    let algebra = [
        "add",
        "subtract",
        "multiply",
        "divide",
        "negative",
        "maximum",
        "minimum",
        "where",
        "abs",
        "pow",
        "floor_divide",
        "remainder",
        "logical_not",
        "logical_and",
        "bitwise_invert",
        "bitwise_and",
        "bitwise_or",
        "floor",
        "round",
    ];
    let mut def = dice.of(&known);
    if dice.below(3) > 0
        && let Some(found) = known.iter().find(|d| d.name == algebra[dice.below(algebra.len())])
    {
        def = found;
    }
    let mut args: SmallVec<[Arg; 3]> = SmallVec::new();
    for i in 0..def.params.len() {
        if def.is_condition(i) {
            let truth = (0..20).map(|_| pick(graph, dice));
            let mut truth = truth.filter(|&id| graph.ty(id).dtype == DType::Bool);
            let made = || Expr::new(graph, x.scalar(true).arg()).full(DType::Bool, Shape::scalar());
            args.push(truth.next().map_or_else(|| made().arg(), Arg::Node));
            continue;
        }
        let other = (0..8).map(|_| pick(graph, dice)).find(|&id| {
            let other = graph.ty(id);
            other.dtype == ty.dtype && other.shape.broadcast(&ty.shape, "test").is_ok()
        });
        args.push(match (dice.below(4), other) {
            (0, _) => Arg::Number(number(dice, ty.dtype).into()),
            (1 | 2, Some(id)) => Arg::Node(id),
            _ => x.arg(),
        });
    }
    // A large node would only make the test slow.
    let _ = x.emit_with(Op::Map(def), &args);
    if graph.ty(Id(graph.len() as u32 - 1)).shape.count() > 5000 {
        let last = Expr::new(graph, Arg::Node(Id(graph.len() as u32 - 1)));
        let _ = last.emit(Op::Slice(last.shape().dims().iter().map(|_| one()).collect()));
    }
}

fn one() -> SliceAxis {
    SliceAxis::all(Dim::ONE)
}

fn reshaped(shape: &Shape, dice: &mut Dice) -> Shape {
    let mut dims: Vec<Dim> = shape.dims().to_vec();
    match dice.below(4) {
        0 => return Shape::of(&[shape.count()]),
        1 => dims.insert(0, Dim::ONE),
        2 => dims.retain(|d| !d.equals(1)),
        _ => dims.reverse(),
    }
    Shape::from_dims(&dims)
}

fn permutation(rank: usize, dice: &mut Dice) -> Axes {
    let mut axes: Axes = (0..rank).collect();
    for i in 1..rank {
        axes.swap(i, dice.below(i + 1));
    }
    axes
}

fn wider(shape: &Shape, dice: &mut Dice) -> Shape {
    let dims =
        shape.dims().iter().map(|&d| if d.equals(1) { Dim::new(dice.of(&[1, 2, 3])) } else { d });
    let mut dims: Vec<Dim> = dims.collect();
    if dice.below(2) == 0 && dims.len() < 4 {
        dims.insert(0, Dim::new(dice.of(&[1, 2])));
    }
    Shape::from_dims(&dims)
}

fn part(shape: &Shape, dice: &mut Dice) -> Box<[SliceAxis]> {
    let mut axis = |n: usize| match (n, dice.below(3)) {
        (0, _) => SliceAxis::all(Dim::new(0)),
        (n, 0) => SliceAxis::all(Dim::new(n)),
        (n, 1) => SliceAxis { start: (n - 1).into(), step: -1, size: Dim::new(n) },
        (n, _) => {
            let size = 1 + dice.below(n);
            SliceAxis { start: dice.below(n - size + 1).into(), step: 1, size: Dim::new(size) }
        }
    };
    shape.dims().iter().map(|d| axis(d.value())).collect()
}

/// The bytes of the elements, with all NaNs equal: the payload of a NaN is not part of a value.
pub fn bits(x: &Array) -> Vec<u8> {
    if !x.dtype.is_float() {
        return bytes(x);
    }
    let size = x.dtype.size();
    let mut bytes = bytes(x);
    for (element, value) in bytes.chunks_mut(size).zip(values(x)) {
        if value.is_nan() {
            element[..size - 1].fill(0);
        }
    }
    bytes
}

/// Runs a pass and checks that it keeps the law, the inputs and the results of a list.
pub fn check(
    name: &str,
    list: &List,
    inputs: &[Array],
    pass: impl Fn(List) -> Result<List>,
) -> List {
    let after = pass(list.clone()).unwrap_or_else(|error| panic!("{name}: {error}"));
    let print = |list: &List| Graph::from_list(list.clone()).print(|_| None);
    let graph = Graph::from_list(after.clone());
    graph.verify().unwrap_or_else(|error| {
        panic!("{name}: {error}\nbefore\n{}after\n{}", print(list), print(&after))
    });
    assert_eq!(after.inputs().count(), list.inputs().count(), "{name}: inputs");
    let Ok(want) = run(list, inputs, &[]) else { return after };
    let got = run(&after, inputs, &[]).unwrap_or_else(|error| panic!("{name}: {error}"));
    for (i, (got, want)) in got.iter().zip(&want).enumerate() {
        let same =
            got.dtype == want.dtype && got.shape() == want.shape() && bits(got) == bits(want);
        assert!(
            same,
            "{name}: result {i}: {:?} instead of {:?}\nbefore\n{}after\n{}",
            values(got),
            values(want),
            print(list),
            print(&after)
        );
    }
    after
}

/// How many nodes of a list have this op, by name.
pub fn count(list: &List, name: &str) -> usize {
    list.nodes.iter().filter(|node| node.kind.name() == name).count()
}

/// The default options.
pub fn plain() -> Options {
    Options::default()
}
