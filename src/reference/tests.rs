//! The reference against closed forms: no other executor takes part, so what both might have wrong
//! in common is found here, and the tests run where no kernel can.

use smallvec::smallvec;

use super::bounds::{difference, exact};
use super::elements::Elements;
use super::number::{Number, of_element, of_scalar};
use super::{Operand, run};
use crate::array::Array;
use crate::dtype::{DType, Scalar};
use crate::layout::Layout;
use crate::ops::attributes::*;
use crate::ops::elementwise::{arithmetic, exponential};
use crate::ops::op::{Op, SliceAxis, Type};
use crate::shape::{Dim, Shape};

fn array(dtype: DType, sizes: &[usize], values: &[f64]) -> Array {
    let mut words = values.iter().map(|&x| Number::Double(x).word(dtype));
    let x = Elements::make(dtype, sizes, |_| words.next().unwrap());
    x.into_array(Type::new(dtype, Shape::of(sizes))).unwrap()
}

/// 0, 1, 2, … in C order.
fn count(dtype: DType, sizes: &[usize]) -> Array {
    let values: Vec<f64> = (0..sizes.iter().product()).map(|i: usize| i as f64).collect();
    array(dtype, sizes, &values)
}

fn values(x: &Array) -> Vec<f64> {
    let x = Elements::read(x);
    x.words.iter().map(|&word| of_element(x.dtype, word).as_f64()).collect()
}

fn compute(op: Op, args: &[&Array]) -> Array {
    let operands: Vec<Operand<'_>> = args.iter().map(|&x| Operand::Array(x)).collect();
    run(&op, &operands).unwrap()
}

fn at(start: usize, step: isize, size: usize) -> SliceAxis {
    SliceAxis { start: start.into(), step, size: Dim::new(size) }
}

#[test]
fn elements_are_read_in_c_order_from_any_layout() {
    for dtype in DType::ALL.into_iter().filter(|&dtype| dtype != DType::Bool) {
        let x = count(dtype, &[2, 3]);
        let view = |sizes: &[usize], strides: &[isize], offset| {
            values(&x.view(Layout::strided(Shape::of(sizes), strides, offset)))
        };
        assert_eq!(view(&[3, 2], &[1, 3], 0), [0.0, 3.0, 1.0, 4.0, 2.0, 5.0], "{dtype}");
        assert_eq!(view(&[2, 2], &[-3, -2], 5), [5.0, 3.0, 2.0, 0.0], "{dtype}");
        assert_eq!(view(&[2, 2], &[0, 1], 1), [1.0, 2.0, 1.0, 2.0], "{dtype}");
        assert_eq!(view(&[], &[], 4), [4.0], "{dtype}");
        assert_eq!(view(&[0, 2], &[1, 1], 0), [0.0; 0], "{dtype}");
    }
}

#[test]
fn movement_follows_the_index() {
    let x = count(DType::I16, &[2, 3]);
    let moved = |op: Op| values(&compute(op, &[&x]));
    assert_eq!(moved(Op::Permute(smallvec![1, 0])), [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]);
    assert_eq!(moved(Op::Slice([at(1, -1, 2), at(0, 2, 2)].into())), [3.0, 5.0, 0.0, 2.0]);
    assert_eq!(moved(Op::Reshape(Shape::of(&[3, 2]))), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    let tall = compute(Op::Broadcast(Shape::of(&[2, 2, 3])), &[&x]);
    assert_eq!(values(&tall), [values(&x), values(&x)].concat());

    let line = count(DType::I16, &[2]);
    let padded = Op::Pad(Shape::of(&[5]), [at(3, -2, 2)].into());
    let operands = [Operand::Array(&line), Operand::Scalar(Scalar::Int(9))];
    assert_eq!(values(&run(&padded, &operands).unwrap()), [9.0, 1.0, 9.0, 0.0, 9.0]);
    let set = compute(
        Op::SetItem([at(0, 1, 2), at(1, 1, 1)].into()),
        &[&x, &line.view(line.layout.reshape(&Shape::of(&[2, 1])).unwrap())],
    );
    assert_eq!(values(&set), [0.0, 0.0, 2.0, 3.0, 1.0, 5.0]);
    let joined = compute(Op::Concat(1), &[&x, &count(DType::I16, &[2, 1])]);
    assert_eq!(values(&joined), [0.0, 1.0, 2.0, 0.0, 3.0, 4.0, 5.0, 1.0]);
}

#[test]
fn indices_pick_and_receive_in_order() {
    let x = count(DType::F32, &[3, 2]);
    let index = array(DType::I64, &[3], &[2.0, -3.0, -1.0]);
    assert_eq!(values(&compute(Op::Gather, &[&x, &index])), [4.0, 5.0, 0.0, 1.0, 4.0, 5.0]);
    let new = array(DType::F32, &[3, 1], &[10.0, 20.0, 30.0]);
    let set = compute(Op::Scatter(ScatterMode::Set), &[&x, &new, &index]);
    assert_eq!(values(&set), [20.0, 20.0, 2.0, 3.0, 30.0, 30.0]);
    let sum = compute(Op::Scatter(ScatterMode::Add), &[&x, &new, &index]);
    assert_eq!(values(&sum), [20.0, 21.0, 2.0, 3.0, 44.0, 45.0]);
    let outside = array(DType::I64, &[2], &[0.0, 3.0]);
    let refused = run(&Op::Gather, &[Operand::Array(&x), Operand::Array(&outside)]);
    assert_eq!(refused.err().unwrap().code(), "index_out_of_bounds");
}

#[test]
fn casts_wrap_saturate_and_round_once() {
    let word = |x: f64, dtype| Number::Double(x).word(dtype);
    assert_eq!([word(300.7, DType::I8), word(-1e30, DType::I16)], [0x7f, 0x8000]);
    assert_eq!([word(f64::NAN, DType::U32), word(f64::NAN, DType::Bool)], [0, 1]);
    assert_eq!(of_scalar(Scalar::Int(-1)).word(DType::U16), 0xffff);
    assert_eq!(of_scalar(Scalar::Uint(u64::MAX)).word(DType::I64), u64::MAX);
    // Half way between two float16, and a little above, which float32 cannot tell apart.
    assert_eq!(word(1.0 + 2f64.powi(-11), DType::F16), 0x3c00);
    assert_eq!(word(1.0 + 2f64.powi(-11) + 2f64.powi(-40), DType::F16), 0x3c01);
    // An operand of half precision rounds the number beside it too.
    let one = array(DType::F16, &[1], &[1.0]);
    let number = Operand::Scalar(Scalar::Float(0.1));
    let product = run(&Op::Map(&arithmetic::multiply), &[Operand::Array(&one), number]).unwrap();
    assert_eq!(Elements::read(&product).words, [word(0.1, DType::F16)]);
}

#[test]
fn elementwise_ops_broadcast_and_evaluate_their_formula() {
    let (row, column) = (count(DType::F64, &[3]), count(DType::F64, &[2, 1]));
    let sum = compute(Op::Map(&arithmetic::add), &[&row, &column]);
    assert_eq!(values(&sum), [0.0, 1.0, 2.0, 1.0, 2.0, 3.0]);
    let roots = compute(Op::Map(&exponential::sqrt), &[&row]);
    assert_eq!(values(&roots), [0.0, 1.0, 2f64.sqrt()]);
    let truth = array(DType::Bool, &[2, 1], &[1.0, 0.0]);
    let chosen = compute(Op::Map(&arithmetic::select), &[&truth, &row, &sum]);
    assert_eq!(values(&chosen), [0.0, 1.0, 2.0, 1.0, 2.0, 3.0]);
}

/// `Σ a b` over all elements.
fn inner(a: &Array, b: &Array) -> f64 {
    values(a).iter().zip(values(b)).map(|(a, b)| a * b).sum()
}

/// Whole numbers that repeat after many.
fn whole(sizes: &[usize], by: usize) -> Array {
    let n: usize = sizes.iter().product();
    let values: Vec<f64> = (0..n).map(|i| ((i * by) % 13) as f64 - 6.0).collect();
    array(DType::I64, sizes, &values)
}

#[test]
fn a_convolution_is_what_it_says_and_its_roles_are_each_others_transposes() {
    let spec = |stride, low, high, dilation, groups, input, kernel| ConvSpec {
        stride: smallvec![stride],
        pad_low: smallvec![low],
        pad_high: smallvec![high],
        dilation: smallvec![dilation],
        groups,
        input: smallvec![Dim::new(input)],
        kernel: smallvec![Dim::new(kernel)],
    };
    let conv = |role, spec: &ConvSpec, a: &Array, b: &Array| {
        compute(Op::Conv(role, Box::new(spec.clone())), &[a, b])
    };
    let (x, w) = (count(DType::I32, &[1, 1, 4]), array(DType::I32, &[1, 1, 2], &[1.0, 10.0]));
    let y = conv(ConvRole::Output, &spec(1, 1, 0, 1, 1, 4, 2), &x, &w);
    assert_eq!(values(&y), [0.0, 10.0, 21.0, 32.0]);

    for (stride, low, high, dilation, groups) in
        [(1, 0, 0, 1, 1), (2, 1, 2, 2, 1), (3, 2, 1, 1, 2), (2, 0, 1, 3, 2)]
    {
        let spec = spec(stride, low, high, dilation, groups, 11, 3);
        let (x, w) = (whole(&[2, 4, 11], 5), whole(&[6, 4 / groups, 3], 7));
        let y = conv(ConvRole::Output, &spec, &x, &w);
        let g = whole(&y.shape().sizes(), 3);
        let trilinear = inner(&y, &g);
        assert_eq!(inner(&conv(ConvRole::Input, &spec, &g, &w), &x), trilinear);
        assert_eq!(inner(&conv(ConvRole::Weight, &spec, &x, &g), &w), trilinear);
    }
}

#[test]
fn adding_windows_back_is_the_transpose_of_taking_them() {
    let spec =
        WindowSpec { size: smallvec![3, 2], stride: smallvec![2, 1], dilation: smallvec![1, 3] };
    let x = whole(&[2, 8, 7], 5);
    let windows = compute(Op::Windows(Box::new(spec.clone())), &[&x]);
    assert_eq!(windows.shape().sizes().as_slice(), [2, 3, 4, 3, 2]);
    let g = whole(&windows.shape().sizes(), 3);
    let back = compute(Op::Fold(Box::new(spec), smallvec![Dim::new(8), Dim::new(7)]), &[&g]);
    assert_eq!(inner(&windows, &g), inner(&x, &back));
}

#[test]
fn products_follow_their_axes() {
    // out[b, i, j] = Σ a[k, b, i] c[b, j, k]
    let spec = Contraction {
        a_batch: smallvec![1],
        b_batch: smallvec![0],
        a_contract: smallvec![0],
        b_contract: smallvec![2],
    };
    let (a, c) = (whole(&[3, 2, 4], 5), whole(&[2, 5, 3], 7));
    let out = compute(Op::Contract(Box::new(spec)), &[&a, &c]);
    let (x, y) = (values(&a), values(&c));
    let want = (0..40).map(|at| {
        let (b, i, j) = (at / 20, at / 5 % 4, at % 5);
        (0..3).map(|k| x[k * 8 + b * 4 + i] * y[b * 15 + j * 3 + k]).sum::<f64>()
    });
    assert_eq!(values(&out), want.collect::<Vec<_>>());
}

#[test]
fn reductions_join_in_order_and_round_at_the_end() {
    // In float16 itself 2048 + 1 is 2048.
    let x = array(DType::F16, &[3], &[2048.0, 1.0, 1.0]);
    assert_eq!(values(&compute(Op::Reduce(Reduction::Sum, smallvec![0]), &[&x])), [2050.0]);
    let running = Op::Cumulate { kind: Cumulation::Sum, axis: 0, reverse: false };
    assert_eq!(values(&compute(running, &[&x])), [2048.0, 2048.0, 2050.0]);
    let y = count(DType::U8, &[2, 3]);
    assert_eq!(values(&compute(Op::Reduce(Reduction::Max, smallvec![0]), &[&y])), [3.0, 4.0, 5.0]);
    assert_eq!(values(&compute(Op::Reduce(Reduction::Prod, smallvec![1]), &[&y])), [0.0, 60.0]);
    let none = count(DType::F32, &[0, 2]);
    assert_eq!(values(&compute(Op::Reduce(Reduction::Prod, smallvec![0]), &[&none])), [1.0, 1.0]);
    let backwards = Op::Cumulate { kind: Cumulation::Max, axis: 1, reverse: true };
    assert_eq!(values(&compute(backwards, &[&y])), [2.0, 2.0, 2.0, 5.0, 5.0, 5.0]);
}

#[test]
fn orders_are_stable_with_nan_last() {
    let x = array(DType::F32, &[6], &[0.0, f64::NAN, -0.0, 3.0, -1.0, f64::NAN]);
    let order = |descending| values(&compute(Op::ArgSort { axis: 0, descending }, &[&x]));
    assert_eq!(order(false), [4.0, 0.0, 2.0, 3.0, 1.0, 5.0]);
    assert_eq!(order(true), [3.0, 0.0, 2.0, 4.0, 1.0, 5.0]);
    let best = compute(Op::TopK { k: 2, axis: 0, largest: true }, &[&x]);
    assert_eq!(values(&best), [3.0, 0.0]);
    let sorted = compute(Op::Sort { axis: 0, descending: false }, &[&x]);
    assert_eq!(values(&sorted)[..4], [-1.0, 0.0, -0.0, 3.0]);
    for kind in [ArgReduction::Max, ArgReduction::Min] {
        assert_eq!(values(&compute(Op::ArgReduce(kind, 0), &[&x])), [1.0]);
    }
}

/// The results allowed for a reduction to one element.
fn range(kind: Reduction, dtype: DType, x: &[f64], depth: usize) -> Option<(f64, f64)> {
    let x = array(dtype, &[x.len()], x);
    let op = Op::Reduce(kind, smallvec![0]);
    let result = array(dtype, &[], &[0.0]);
    let sums = exact(&op, &[Operand::Array(&x)], &result).unwrap().unwrap();
    sums[0].range(dtype, depth)
}

#[test]
fn bounds_allow_what_some_order_gives_and_no_more() {
    let sum = |x: &[f64], depth| range(Reduction::Sum, DType::F32, x, depth);
    // Left to right the 1 is lost, otherwise it is not.
    let (low, high) = sum(&[1e8, 1.0, -1e8], 2).unwrap();
    assert!(low <= 0.0 && 1.0 <= high && low > -24.0 && high < 25.0, "{low} {high}");
    assert_eq!(sum(&[1.0, 2.0], 0), Some((3.0, 3.0)));
    // Rounded once to half precision, whose step at 2048 is 2.
    assert_eq!(range(Reduction::Sum, DType::F16, &[2048.0, 1.5], 1), Some((2050.0, 2050.0)));
    let (low, _) = sum(&[1.0, f64::NAN, 3e38, 3e38], 3).unwrap();
    assert!(low.is_nan());
    assert_eq!(sum(&[f64::INFINITY, -7.0], 1), Some((f64::INFINITY, f64::INFINITY)));
    assert!(sum(&[f64::INFINITY, f64::NEG_INFINITY], 1).is_some_and(|(low, _)| low.is_nan()));
    // Whether this overflows on the way depends on the order.
    assert_eq!(sum(&[3e38, 3e38, -3e38], 2), None);
    // Every rounding of a product counts, whatever the depth.
    let factors = [1.1f64; 50];
    let (low, high) = range(Reduction::Prod, DType::F32, &factors, 1).unwrap();
    let left = factors.iter().fold(1f32, |product, &x| product * x as f32);
    assert!((low..=high).contains(&f64::from(left)) && (high - low) / high < 1e-5);
    assert_eq!(range(Reduction::Prod, DType::F32, &[1e30, 1e30, 1e-30], 2), None);
}

#[test]
fn a_difference_names_the_element_and_both_values() {
    let x = count(DType::F32, &[2, 2]);
    let wrong = array(DType::F32, &[2, 2], &[0.0, 1.0, 2.5, 3.0]);
    let operands = [Operand::Array(&x)];
    let copy = Op::Permute(smallvec![0, 1]);
    let found = difference(&copy, &operands, &wrong, |_, n| n).unwrap().unwrap();
    assert_eq!(found, "element [1, 0]: got 2.5 (0x40200000), wanted 2.0 (0x40000000)");
    assert_eq!(difference(&copy, &operands, &x, |_, n| n).unwrap(), None);
    // Zeros of either sign are one largest number, but not one copy.
    let zero = |sign: f64| array(DType::F32, &[1], &[0.0 * sign]);
    let same = |op: &Op| {
        let operand = zero(1.0);
        difference(op, &[Operand::Array(&operand)], &zero(-1.0), |_, n| n).unwrap().is_none()
    };
    assert!(!same(&Op::Reshape(Shape::of(&[1]))));
    let both = array(DType::F32, &[2], &[-0.0, 0.0]);
    let largest = Op::Reduce(Reduction::Max, smallvec![0]);
    let minus = array(DType::F32, &[], &[-0.0]);
    assert_eq!(difference(&largest, &[Operand::Array(&both)], &minus, |_, n| n).unwrap(), None);
}
