//! Calls to test with: every structural op, and every composite on operands it takes.

use smallvec::smallvec;

use super::Graph;
use crate::array::Array;
use crate::cpu::testing;
use crate::dtype::{DType, Scalar};
use crate::error::Result;
use crate::ops::attributes::*;
use crate::ops::composite;
use crate::ops::declare::{Arguments, Attr, Classes, Composite, ParamKind, parse_default};
use crate::ops::elementwise::{arithmetic, comparison};
use crate::ops::emit::Arg;
use crate::ops::op::{Op, SliceAxis, Type};
use crate::shape::{Dim, Shape};

/// An operand of a case.
#[derive(Clone, Debug)]
pub enum Operand {
    /// A tensor of a type; integers stay below the number given
    Tensor(Type, usize),
    /// A number
    Number(Scalar),
}

impl Operand {
    /// Data for a tensor: whole numbers over four for floats, so that sums of products are exact.
    pub fn data(&self, seed: u64) -> Option<Array> {
        let Operand::Tensor(ty, below) = self else { return None };
        Some(data(ty, *below, seed))
    }
}

/// Operands of a call in a graph: a new input for each tensor.
pub fn args(operands: &[Operand], graph: &Graph) -> Vec<Arg> {
    let arg = |operand: &Operand| match operand {
        Operand::Tensor(ty, _) => Arg::Node(graph.input(ty.clone())),
        Operand::Number(value) => Arg::Number((*value).into()),
    };
    operands.iter().map(arg).collect()
}

/// An array of a type; integers stay below the number given.
pub fn data(ty: &Type, below: usize, seed: u64) -> Array {
    let sizes = ty.shape.sizes();
    let x = testing::random(ty.dtype, &sizes, seed + 1);
    if !ty.dtype.is_int() {
        return x;
    }
    let values: Vec<f64> =
        testing::values(&x).iter().map(|v| v.abs() % below.max(1) as f64).collect();
    testing::array(ty.dtype, &sizes, &values)
}

fn float(sizes: &[usize]) -> Operand {
    Operand::Tensor(Type::new(DType::F32, Shape::of(sizes)), 0)
}

fn index(sizes: &[usize], below: usize) -> Operand {
    Operand::Tensor(Type::new(DType::I64, Shape::of(sizes)), below)
}

fn at(start: usize, step: isize, size: usize) -> SliceAxis {
    SliceAxis { start: start.into(), step, size: Dim::new(size) }
}

/// Every op but calls, several times where its attributes matter, with operands.
pub fn ops() -> Vec<(Op, Vec<Operand>)> {
    let x = || vec![float(&[4, 3])];
    let zero = || Operand::Number(Scalar::Int(0));
    let ty = |sizes: &[usize]| Type::new(DType::F32, Shape::of(sizes));
    let mut out = vec![
        (Op::Map(&arithmetic::add), vec![float(&[4, 3]), float(&[3])]),
        (Op::Map(&arithmetic::multiply), vec![float(&[4, 1]), float(&[2, 1, 3])]),
        (Op::Map(&arithmetic::subtract), vec![float(&[4]), Operand::Number(Scalar::Float(0.5))]),
        (Op::Map(&comparison::less), vec![float(&[4, 3]), float(&[4, 3])]),
        (Op::Cast(DType::F64), x()),
        (Op::Cast(DType::I64), x()),
        (Op::Reshape(Shape::of(&[2, 6])), x()),
        (Op::Permute(smallvec![1, 0]), x()),
        (Op::Broadcast(Shape::of(&[2, 4, 3])), x()),
        (Op::Broadcast(Shape::of(&[2, 4])), vec![float(&[2, 1])]),
        (Op::Slice([at(3, -2, 2), at(1, 1, 2)].into()), x()),
        (
            Op::Pad(Shape::of(&[6, 3]), [at(1, 1, 4), at(2, -1, 3)].into()),
            vec![float(&[4, 3]), zero()],
        ),
        (
            Op::Pad(Shape::of(&[6, 3]), [at(1, 1, 4), at(0, 1, 3)].into()),
            vec![float(&[4, 3]), float(&[])],
        ),
        (Op::SetItem([at(1, 2, 2), at(0, 1, 3)].into()), vec![float(&[4, 3]), float(&[3])]),
        (Op::SetItem([at(1, 2, 2), at(0, 1, 3)].into()), vec![float(&[4, 3]), zero()]),
        (Op::Concat(1), vec![float(&[4, 3]), float(&[4, 1]), float(&[4, 2])]),
        (Op::Gather, vec![float(&[4, 3, 2]), index(&[5], 4)]),
        (Op::Gather, vec![float(&[4, 3, 2]), index(&[5, 1], 4), index(&[6], 3)]),
        (Op::ArgReduce(ArgReduction::Max, 1), x()),
        (Op::ArgReduce(ArgReduction::Min, 0), x()),
        (Op::Windows(Box::new(windows())), vec![float(&[2, 7])]),
        (Op::Fold(Box::new(windows()), smallvec![Dim::new(7)]), vec![float(&[2, 2, 3])]),
        (Op::Sort { axis: 0, descending: false }, x()),
        (Op::Sort { axis: 1, descending: true }, x()),
        (Op::ArgSort { axis: 1, descending: false }, x()),
        (Op::TopK { k: 2, axis: 1, largest: true }, x()),
        (Op::Full(ty(&[2, 3])), vec![Operand::Number(Scalar::Float(1.5))]),
        (Op::Full(ty(&[2, 3])), vec![float(&[])]),
        (Op::Iota(ty(&[2, 3]), 1), vec![]),
        (Op::RandomBits(Type::new(DType::U32, Shape::of(&[5]))), vec![key()]),
        #[cfg(feature = "example-op")]
        (Op::Increments(0), x()),
    ];
    for mode in [ScatterMode::Set, ScatterMode::Add] {
        for values in [float(&[5, 3, 2]), float(&[2]), float(&[]), zero()] {
            out.push((Op::Scatter(mode), vec![float(&[4, 3, 2]), values, index(&[5], 4)]));
        }
        let args = vec![float(&[4, 3, 2]), float(&[5, 6, 2]), index(&[5, 1], 4), index(&[6], 3)];
        out.push((Op::Scatter(mode), args));
    }
    for kind in [Reduction::Sum, Reduction::Prod, Reduction::Max, Reduction::Min] {
        out.push((Op::Reduce(kind, smallvec![0]), x()));
        out.push((Op::Reduce(kind, smallvec![0, 2]), vec![float(&[2, 3, 4])]));
    }
    for kind in [Reduction::Any, Reduction::All] {
        let truth = Operand::Tensor(Type::new(DType::Bool, Shape::of(&[4, 3])), 2);
        out.push((Op::Reduce(kind, smallvec![1]), vec![truth]));
    }
    for kind in [Cumulation::Sum, Cumulation::Prod, Cumulation::Max, Cumulation::Min] {
        out.extend([false, true].map(|reverse| (Op::Cumulate { kind, axis: 0, reverse }, x())));
    }
    out.extend(contractions());
    out.extend(convolutions());
    out
}

fn windows() -> WindowSpec {
    WindowSpec { size: smallvec![3], stride: smallvec![2], dilation: smallvec![2] }
}

fn key() -> Operand {
    Operand::Tensor(Type::new(DType::U32, Shape::of(&[2])), 1000)
}

fn contractions() -> Vec<(Op, Vec<Operand>)> {
    let plain = Contraction {
        a_batch: smallvec![],
        b_batch: smallvec![],
        a_contract: smallvec![1],
        b_contract: smallvec![0],
    };
    let transposed = Contraction {
        a_batch: smallvec![2],
        b_batch: smallvec![0],
        a_contract: smallvec![0, 3],
        b_contract: smallvec![3, 1],
    };
    vec![
        (Op::Contract(Box::new(plain)), vec![float(&[4, 3]), float(&[3, 5])]),
        (Op::Contract(Box::new(transposed)), vec![float(&[2, 3, 4, 5]), float(&[4, 5, 6, 2])]),
    ]
}

fn convolutions() -> Vec<(Op, Vec<Operand>)> {
    let mut out = Vec::new();
    for groups in [1, 2] {
        let spec = ConvSpec {
            stride: smallvec![2],
            pad_low: smallvec![1],
            pad_high: smallvec![2],
            dilation: smallvec![2],
            groups,
            input: smallvec![Dim::new(9)],
            kernel: smallvec![Dim::new(3)],
        };
        let (x, w, g) = (float(&[2, 4, 9]), float(&[6, 4 / groups, 3]), float(&[2, 6, 4]));
        for (role, args) in [
            (ConvRole::Output, vec![x.clone(), w.clone()]),
            (ConvRole::Input, vec![g.clone(), w]),
            (ConvRole::Weight, vec![x, g]),
        ] {
            out.push((Op::Conv(role, Box::new(spec.clone())), args));
        }
    }
    out
}

/// A call of a composite.
#[derive(Clone)]
pub struct Call {
    /// The composite
    pub composite: &'static Composite,
    /// Its attributes
    pub attributes: Vec<Attr>,
    /// Its operands
    pub operands: Vec<Operand>,
}

/// Shapes that the tensors of a call are tried with, in order; the last one repeats.
const SHAPES: [&[&[usize]]; 19] = [
    &[&[4, 6]],
    &[&[4, 6], &[6]],
    &[&[4, 6], &[6, 3]],
    &[&[6], &[6]],
    &[&[4, 6], &[4]],
    &[&[2, 4, 7], &[6, 4, 3], &[6]],
    &[&[2, 4, 7, 7], &[6, 4, 3, 3], &[6]],
    &[&[2, 4, 5], &[4]],
    &[&[2, 4, 7]],
    &[&[2, 3, 4, 4, 4]],
    // Recurrent layers, their gradients, and their cells.
    &[&[4, 2, 3], &[2, 5], &[2, 5], &[20, 3], &[20, 5], &[20], &[20], &[2]],
    &[
        &[4, 2, 5],
        &[4, 2, 20],
        &[4, 2, 5],
        &[2, 5],
        &[20, 5],
        &[2, 5],
        &[2, 5],
        &[4, 2, 20],
        &[4, 2, 5],
        &[2],
    ],
    &[&[4, 2, 3], &[2, 5], &[15, 3], &[15, 5], &[15], &[15], &[2]],
    &[
        &[4, 2, 5],
        &[4, 2, 15],
        &[4, 2, 5],
        &[4, 2, 5],
        &[15, 5],
        &[2, 5],
        &[4, 2, 15],
        &[4, 2, 5],
        &[2],
    ],
    &[&[4, 2, 3], &[2, 5], &[5, 3], &[5, 5], &[5], &[5], &[2]],
    &[&[4, 2, 5], &[4, 2, 5], &[5, 5], &[2, 5], &[2]],
    &[&[2, 3], &[2, 5], &[2, 5], &[20, 3], &[20, 5], &[20], &[20]],
    &[&[2, 3], &[2, 5], &[15, 3], &[15, 5], &[15], &[15]],
    &[&[2, 3], &[2, 5], &[5, 3], &[5, 5], &[5], &[5]],
];

/// Up to four calls of every composite, with shapes from `SHAPES` that it takes.
pub fn calls() -> Vec<Call> {
    let mut out = Vec::new();
    for composite in composite::tables() {
        let mut found = 0;
        for shapes in SHAPES {
            for (attempt, integers) in [(0, false), (1, false), (2, false), (0, true), (1, true)] {
                let call = attempt_call(composite, shapes, attempt, integers);
                if found < 4 && call.as_ref().is_some_and(|call| call.build(&Graph::new()).1) {
                    out.extend(call);
                    found += 1;
                }
            }
        }
    }
    out
}

impl Call {
    /// Builds the call in a graph; returns its operands, and whether the composite took them.
    pub fn build(&self, graph: &Graph) -> (Vec<Arg>, bool) {
        let args = args(&self.operands, graph);
        let built = self.emit(graph, &args);
        (args, built.is_ok())
    }

    /// Builds the call in a graph, or returns the refusal.
    pub fn try_build(&self, graph: &Graph) -> Result<()> {
        self.emit(graph, &args(&self.operands, graph))
    }

    fn emit(&self, graph: &Graph, args: &[Arg]) -> Result<()> {
        let call = Arguments { cx: graph, attributes: &self.attributes, operands: args };
        graph.build(|| self.composite.call(&call))
    }
}

fn attempt_call(
    composite: &'static Composite,
    shapes: &[&[usize]],
    attempt: usize,
    integers: bool,
) -> Option<Call> {
    let mut call = Call { composite, attributes: Vec::new(), operands: Vec::new() };
    let mut tensors = 0;
    for param in composite.params {
        let mut tensor = |classes: Classes| {
            let shape = shapes[tensors.min(shapes.len() - 1)];
            tensors += 1;
            let later = integers && tensors > 1;
            let order = match later {
                true => [DType::I64, DType::Bool, DType::F32],
                false => [DType::F32, DType::I64, DType::Bool],
            };
            let dtype =
                order.into_iter().find(|d| classes.contains(d.class())).unwrap_or(DType::F32);
            Operand::Tensor(Type::new(dtype, Shape::of(shape)), 3)
        };
        let attr = match param.kind {
            ParamKind::Tensor(classes) => {
                call.operands.push(tensor(classes));
                Attr::Operand
            }
            ParamKind::MaybeTensor(classes) if attempt == 1 => {
                call.operands.push(tensor(classes));
                Attr::Operand
            }
            ParamKind::Tensors => {
                let parts = [tensor(Classes::ANY), tensor(Classes::ANY)];
                call.operands.extend(parts);
                Attr::Operands(2)
            }
            ParamKind::Key => {
                call.operands.push(key());
                Attr::Operand
            }
            ParamKind::Number | ParamKind::MaybeNumber => {
                let value = [Scalar::Float(0.5), Scalar::Int(2), Scalar::Float(1.25)][attempt];
                call.operands.push(Operand::Number(value));
                Attr::Operand
            }
            ParamKind::Word(words) => Attr::Text(words[attempt % words.len()].into()),
            ParamKind::MaybeTensor(_)
            | ParamKind::Bool
            | ParamKind::MaybeBool
            | ParamKind::Int
            | ParamKind::MaybeInt
            | ParamKind::Float
            | ParamKind::MaybeFloat
            | ParamKind::Ints
            | ParamKind::Pairs
            | ParamKind::Shape
            | ParamKind::DType
            | ParamKind::MaybeDType
            | ParamKind::Padding
            | ParamKind::Text
            | ParamKind::MaybeDevice => match (param.default, param.kind) {
                (Some(default), _) if attempt != 2 => parse_default(default),
                (_, ParamKind::Bool) => Attr::Bool(attempt == 2),
                (_, ParamKind::Int | ParamKind::MaybeInt) => Attr::Int([1, 0, 2][attempt]),
                (_, ParamKind::Float | ParamKind::MaybeFloat) => Attr::Float(0.5),
                (_, ParamKind::Ints) => Attr::Ints([&[0][..], &[2, 3], &[1, 0]][attempt].into()),
                (_, ParamKind::Shape) => {
                    Attr::Ints([&[6, 4][..], &[2, 4, 6], &[24]][attempt].into())
                }
                (_, ParamKind::DType | ParamKind::MaybeDType) => Attr::DType(DType::F32),
                (_, ParamKind::Text) => {
                    Attr::Text(["ij,ij->i", "ij,jk->ki", "ij->j"][attempt].into())
                }
                (Some(default), _) => parse_default(default),
                (None, ParamKind::MaybeTensor(_) | ParamKind::MaybeDevice) => Attr::None,
                (None, _) => return None,
            },
        };
        call.attributes.push(attr);
    }
    Some(call)
}
