//! Every op of the CPU, on every dtype and in every layout, against the reference.

use std::collections::HashSet;

use smallvec::smallvec;

use super::difference;
use crate::array::Array;
use crate::cpu::testing::{array, layouts, noise};
use crate::cpu::{self, Operand};
use crate::dtype::{DType, Scalar};
use crate::graph::cases::{self, Operand as Case};
use crate::layout::Layout;
use crate::ops::attributes::*;
use crate::ops::elementwise::{Elementwise, tables};
use crate::ops::op::{Op, SliceAxis, Type};
use crate::ops::structural::{self, Field};
use crate::reference;
use crate::shape::{Dim, Shape};

/// Numbers with full significands, and all that is special.
fn sample(dtype: DType, sizes: &[usize], seed: u64) -> Array {
    const SPECIAL: [f64; 14] = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.5,
        f64::INFINITY,
        f64::NEG_INFINITY,
        f64::NAN,
        1e-40,
        -3e-310,
        3e38,
        6e4,
        2.5,
        -1e300,
    ];
    let plain = crate::cpu::testing::values(&noise(DType::F64, sizes, seed));
    let value = |(i, x): (usize, &f64)| match (dtype, (i as u64 * 7 + seed) % 5) {
        (DType::Bool, _) => f64::from(u8::from(*x > 0.0)),
        (d, 0) if d.is_float() => SPECIAL[(i + seed as usize) % SPECIAL.len()],
        (d, _) if d.is_float() => x * 4.0,
        (_, 0) => x * 1e19,
        (d, _) if d.is_unsigned() => (x * 9.0).abs(),
        (_, _) => x * 9.0,
    };
    array(dtype, sizes, &plain.iter().enumerate().map(value).collect::<Vec<_>>())
}

/// The same type in C order, transposed, backwards, with gaps, and repeated along an axis.
fn views(x: &Array) -> Vec<Array> {
    let mut all = layouts(x);
    for axis in 0..x.shape().rank() {
        let mut strides = x.layout.strides();
        strides[axis] = 0;
        all.push(x.view(Layout::strided(x.shape().clone(), &strides, 0)));
    }
    all
}

/// Holds an op against the reference, its refusals too.
fn check(op: &Op, args: &[Operand<'_>]) {
    let facts = || -> Vec<String> {
        let one = |arg: &Operand<'_>| match arg {
            Operand::Array(x) => format!("{x:?} {:?}", x.layout.strides()),
            Operand::Scalar(value) => value.to_string(),
        };
        args.iter().map(one).collect()
    };
    match cpu::execute(op, args) {
        Ok(got) => {
            let wrong = difference(op, args, &got).unwrap();
            assert_eq!(wrong, None, "{op:?} on {:?}", facts());
            check_itself(op, args);
        }
        Err(error) => {
            let operands: Vec<reference::Operand<'_>> =
                args.iter().map(|&arg| super::seen(arg)).collect();
            let own = reference::run(op, &operands).err();
            assert_eq!(own.map(|own| own.code()), Some(error.code()), "{op:?} on {:?}", facts());
        }
    }
}

/// Holds sums of the reference, each one chain, against the exact ones.
fn check_itself(op: &Op, args: &[Operand<'_>]) {
    let operands: Vec<reference::Operand<'_>> = args.iter().map(|&arg| super::seen(arg)).collect();
    let own = reference::run(op, &operands).unwrap();
    let wrong = reference::bounds::difference(op, &operands, &own, |_, n| n).unwrap();
    assert_eq!(wrong, None, "{op:?} by itself");
}

/// Holds an op against the reference on operands in many layouts.
fn check_views(op: &Op, args: &[Operand<'_>]) {
    let views_of = |arg: &Operand<'_>| match arg {
        Operand::Array(x) => views(x),
        Operand::Scalar(_) => Vec::new(),
    };
    let all: Vec<Vec<Array>> = args.iter().map(views_of).collect();
    let rounds = all.iter().map(Vec::len).max().unwrap_or(0).max(1);
    for round in 0..rounds {
        // Each operand walks its layouts at a pace of its own.
        let view = |(i, views): (usize, &Vec<Array>)| -> Option<usize> {
            (!views.is_empty()).then(|| (round * (2 * i + 1) + i) % views.len())
        };
        let at: Vec<Option<usize>> = all.iter().enumerate().map(view).collect();
        let operands: Vec<Operand<'_>> = (0..args.len())
            .map(|i| at[i].map_or(args[i], |view| Operand::Array(&all[i][view])))
            .collect();
        check(op, &operands);
    }
}

fn map_case(def: &'static Elementwise, dtype: DType, shapes: &[&[usize]], seed: u64) {
    let count = def.params.len();
    let data: Vec<Array> = (0..count)
        .map(|i| {
            let dtype = if def.is_condition(i) { DType::Bool } else { dtype };
            sample(dtype, shapes[i % shapes.len()], seed + i as u64)
        })
        .collect();
    let arrays: Vec<Operand<'_>> = data.iter().map(Operand::Array).collect();
    check_views(&Op::Map(def), &arrays);
    // A number in the place of each operand.
    for i in 0..count.saturating_sub(1) {
        let weak = [Scalar::Int(2), Scalar::Int(1), Scalar::Float(0.3), Scalar::Bool(true)];
        let fits = |s: &&Scalar| def.is_condition(i) || s.class() <= dtype.class();
        for value in weak.iter().filter(fits) {
            let mut operands = arrays.clone();
            operands[i + usize::from(!def.condition)] = Operand::Scalar(*value);
            check(&Op::Map(def), &operands);
        }
    }
}

#[test]
fn elementwise_ops_have_the_bits_of_their_formula() {
    for (seed, def) in tables().enumerate() {
        let mut taken = 0;
        for dtype in DType::ALL.into_iter().filter(|d| def.check_dtype(*d).is_ok()) {
            taken += 1;
            let shapes: [&[&[usize]]; 6] = [
                &[&[7, 5]],
                &[&[4, 1], &[2, 1, 3], &[3]],
                &[&[]],
                &[&[], &[3, 2]],
                &[&[0, 3]],
                &[&[80], &[1]],
            ];
            for shapes in shapes {
                map_case(def, dtype, shapes, seed as u64);
            }
        }
        assert!(taken > 0, "{}", def.name);
    }
}

#[test]
fn casts_have_the_bits_of_exact_arithmetic() {
    for from in DType::ALL {
        let x = sample(from, &[9, 11], 3);
        for to in DType::ALL {
            check_views(&Op::Cast(to), &[Operand::Array(&x)]);
            for value in [Scalar::Int(-3), Scalar::Uint(u64::MAX), Scalar::Float(0.1)] {
                let ty = Type::new(to, Shape::of(&[2, 3]));
                check(&Op::Full(ty), &[Operand::Scalar(value)]);
            }
        }
    }
}

/// The op, and its operands, with a dtype for float32.
fn with_dtype(op: &Op, args: &[Case], dtype: DType) -> (Op, Vec<Case>) {
    let typed = |ty: &Type| Type::new(dtype, ty.shape.clone());
    let mut op = op.clone();
    for field in op.fields() {
        if let Field::ResultType(ty) = field
            && ty.dtype == DType::F32
        {
            *ty = typed(ty);
        }
    }
    let arg = |arg: &Case| match arg {
        Case::Tensor(ty, below) if ty.dtype == DType::F32 => Case::Tensor(typed(ty), *below),
        Case::Tensor(..) | Case::Number(_) => arg.clone(),
    };
    (op, args.iter().map(arg).collect())
}

/// Cases at the borders: nothing to join, no axes, one element, more than one block.
fn borders() -> Vec<(Op, Vec<Case>)> {
    let x = |sizes: &[usize]| Case::Tensor(Type::new(DType::F32, Shape::of(sizes)), 0);
    let index =
        |sizes: &[usize], below| Case::Tensor(Type::new(DType::I64, Shape::of(sizes)), below);
    let at = |start: usize, step, size: usize| SliceAxis {
        start: start.into(),
        step,
        size: Dim::new(size),
    };
    let matrix = Contraction {
        a_batch: smallvec![],
        b_batch: smallvec![],
        a_contract: smallvec![1],
        b_contract: smallvec![0],
    };
    let product = |m, k, n| (Op::Contract(Box::new(matrix.clone())), vec![x(&[m, k]), x(&[k, n])]);
    let mut out = vec![
        product(2, 0, 3),
        product(0, 4, 3),
        product(1, 700, 1),
        product(3, 300, 40),
        (Op::Reshape(Shape::of(&[0, 5])), vec![x(&[0])]),
        (Op::Reshape(Shape::scalar()), vec![x(&[1, 1])]),
        (Op::Permute(smallvec![]), vec![x(&[])]),
        (Op::Permute(smallvec![2, 0, 1]), vec![x(&[3, 0, 2])]),
        (Op::Broadcast(Shape::of(&[3, 0])), vec![x(&[1, 0])]),
        (Op::Broadcast(Shape::of(&[2, 3])), vec![x(&[])]),
        (Op::Slice([at(2, -1, 0)].into()), vec![x(&[3])]),
        (Op::Slice([].into()), vec![x(&[])]),
        (Op::Pad(Shape::of(&[3]), [at(1, 1, 0)].into()), vec![x(&[0]), x(&[])]),
        (Op::SetItem([at(1, 1, 0)].into()), vec![x(&[3]), x(&[])]),
        (Op::Concat(0), vec![x(&[0, 2]), x(&[3, 2]), x(&[0, 2])]),
        (Op::Gather, vec![x(&[4, 0]), index(&[2], 4)]),
        (Op::Gather, vec![x(&[4, 3]), index(&[0], 4)]),
        (Op::Gather, vec![x(&[4, 3]), index(&[], 4), index(&[2], 3)]),
        (Op::Sort { axis: 0, descending: false }, vec![x(&[0])]),
        (Op::Sort { axis: 0, descending: true }, vec![x(&[300, 3])]),
        (Op::ArgSort { axis: 1, descending: true }, vec![x(&[3, 70])]),
        (Op::TopK { k: 0, axis: 0, largest: false }, vec![x(&[3])]),
        (Op::TopK { k: 3, axis: 1, largest: false }, vec![x(&[2, 90])]),
        (Op::ArgReduce(ArgReduction::Max, 0), vec![x(&[100, 20])]),
        (Op::ArgReduce(ArgReduction::Min, 1), vec![x(&[3, 100])]),
        (Op::ArgReduce(ArgReduction::Min, 1), vec![x(&[3, 0])]),
        (Op::Full(Type::new(DType::F32, Shape::of(&[0]))), vec![Case::Number(Scalar::Int(1))]),
        (Op::Iota(Type::new(DType::F32, Shape::of(&[2, 300])), 1), vec![]),
        (Op::Iota(Type::new(DType::F32, Shape::of(&[0, 3])), 0), vec![]),
    ];
    for mode in [ScatterMode::Set, ScatterMode::Add] {
        // Many values meet at one place.
        out.push((Op::Scatter(mode), vec![x(&[2, 3]), x(&[40, 3]), index(&[40], 2)]));
        out.push((Op::Scatter(mode), vec![x(&[2, 3]), x(&[0, 3]), index(&[0], 2)]));
    }
    for kind in [Reduction::Sum, Reduction::Prod, Reduction::Max, Reduction::Min] {
        for (sizes, axes) in [
            (&[3, 0][..], &[0][..]),
            (&[3, 0], &[1]),
            (&[], &[]),
            (&[5000], &[0]),
            (&[400, 3], &[0]),
            (&[3, 2000], &[1]),
            (&[40, 3, 40], &[0, 2]),
        ] {
            out.push((Op::Reduce(kind, axes.into()), vec![x(sizes)]));
        }
    }
    for kind in [Cumulation::Sum, Cumulation::Prod, Cumulation::Max, Cumulation::Min] {
        for reverse in [false, true] {
            for (sizes, axis) in [(&[0, 2][..], 0), (&[3, 90], 1), (&[90, 70], 0)] {
                out.push((Op::Cumulate { kind, axis, reverse }, vec![x(sizes)]));
            }
        }
    }
    out
}

#[test]
fn structural_ops_agree_with_their_definition() {
    let mut seen: HashSet<&str> = HashSet::new();
    let cases: Vec<_> = cases::ops().into_iter().chain(borders()).collect();
    for (number, (op, args)) in cases.iter().enumerate() {
        seen.insert(op.name());
        for dtype in DType::ALL {
            let (op, args) = with_dtype(op, args, dtype);
            let data: Vec<Option<Array>> = args
                .iter()
                .enumerate()
                .map(|(i, arg)| match arg {
                    Case::Tensor(ty, 0) => {
                        Some(sample(ty.dtype, &ty.shape.sizes(), (number + i) as u64))
                    }
                    Case::Tensor(..) | Case::Number(_) => arg.data(i as u64),
                })
                .collect();
            let operand = |(arg, data): (&Case, &'_ Option<Array>)| match arg {
                Case::Number(value) => Operand::Scalar(*value),
                Case::Tensor(..) => unreachable!("{data:?}"),
            };
            let operands: Vec<Operand<'_>> = args
                .iter()
                .zip(&data)
                .map(|(arg, data)| match data {
                    Some(x) => Operand::Array(x),
                    None => operand((arg, data)),
                })
                .collect();
            check_views(&op, &operands);
        }
    }
    for def in structural::defs() {
        assert!(seen.contains(def.name), "{}", def.name);
    }
}

#[test]
fn indices_outside_their_axis_are_refused_alike() {
    let x = sample(DType::F32, &[4, 3], 1);
    for bad in [4.0, -5.0] {
        let index = array(DType::I64, &[3], &[0.0, bad, 9.0]);
        check(&Op::Gather, &[Operand::Array(&x), Operand::Array(&index)]);
        for mode in [ScatterMode::Set, ScatterMode::Add] {
            let zero = Operand::Scalar(Scalar::Int(0));
            let operands = [Operand::Array(&x), zero, Operand::Array(&index)];
            check(&Op::Scatter(mode), &operands);
        }
    }
}

/// A result with one element moved to a neighbour by a number of ULPs, or flipped.
fn spoiled(x: &Array, by: u64) -> Array {
    let out = Array::uninit(x.dtype, x.shape().clone()).unwrap();
    // SAFETY: fresh; its first element is changed within its bytes.
    unsafe {
        cpu::copy::copy_into(&out, x);
        let first = out.ptr_mut();
        let mut word = [0; 8];
        word[..x.dtype.size()].copy_from_slice(std::slice::from_raw_parts(first, x.dtype.size()));
        let moved = u64::from_le_bytes(word) ^ by;
        first.copy_from_nonoverlapping(moved.to_le_bytes().as_ptr(), x.dtype.size());
    }
    out
}

#[test]
fn a_wrong_element_is_found_in_every_op() {
    for (op, args) in cases::ops() {
        let data: Vec<Option<Array>> =
            args.iter().enumerate().map(|(i, arg)| arg.data(i as u64)).collect();
        let mut operands: Vec<Operand<'_>> = Vec::new();
        for (arg, data) in args.iter().zip(&data) {
            operands.push(match (arg, data) {
                (_, Some(x)) => Operand::Array(x),
                (Case::Number(value), None) => Operand::Scalar(*value),
                (Case::Tensor(..), None) => unreachable!("tensors have data"),
            });
        }
        let got = cpu::execute(&op, &operands).unwrap();
        // The lowest bit, but for sums, where it may be right: there a bit of the exponent's.
        let bound = reference::bounds::bound(&op, got.dtype);
        let is_sum = matches!(bound, reference::bounds::Bound::Rounding(_));
        let wrong = spoiled(&got, if is_sum { 1 << 23 } else { 1 });
        let found = difference(&op, &operands, &wrong).unwrap();
        assert!(found.is_some(), "{op:?}");
    }
}
