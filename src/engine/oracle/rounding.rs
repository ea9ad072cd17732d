//! Rounding errors of products, convolutions and reductions on random numbers with full
//! significands, against exact sums, with the a-priori bound of their order of summation as the
//! limit.

use smallvec::smallvec;

use super::difference;
use crate::array::Array;
use crate::cpu::testing::{array, noise, values};
use crate::cpu::{self, Operand};
use crate::dtype::DType;
use crate::ops::attributes::*;
use crate::ops::op::Op;
use crate::reference::bounds::{self, Exact};
use crate::scalar::half::f32_to_f16;
use crate::shape::Dim;

const FLOATS: [DType; 4] = [DType::F16, DType::BF16, DType::F32, DType::F64];

/// Computes an op and holds each element against the bound of its order.
fn check(op: &Op, args: &[&Array]) {
    let operands: Vec<Operand<'_>> = args.iter().map(|&x| Operand::Array(x)).collect();
    let got = cpu::execute(op, &operands).unwrap();
    assert_eq!(difference(op, &operands, &got).unwrap(), None, "{op:?} on {args:?}");
}

fn product() -> Op {
    Op::Contract(Box::new(Contraction {
        a_batch: smallvec![],
        b_batch: smallvec![],
        a_contract: smallvec![1],
        b_contract: smallvec![0],
    }))
}

/// Few and many terms, below and above a block and a span, in every kernel's shape.
const PRODUCTS: [(usize, usize, usize); 12] = [
    (1, 1, 1),
    (3, 7, 2),
    (8, 64, 8),
    (1, 257, 70),
    (70, 300, 1),
    (1, 30_000, 1),
    (3, 9000, 2),
    (33, 512, 40),
    (130, 520, 20),
    (12, 600, 32),
    (2, 20_000, 3),
    (4, 2000, 130),
];

#[test]
fn products_are_as_near_as_their_order_of_summation_promises() {
    for dtype in FLOATS {
        for (seed, (m, k, n)) in (0..).zip(PRODUCTS) {
            let (a, b) = (noise(dtype, &[m, k], seed), noise(dtype, &[k, n], seed + 99));
            check(&product(), &[&a, &b]);
        }
    }
}

#[test]
fn convolutions_are_as_near_as_their_order_of_summation_promises() {
    // Channels, size, taps, stride, dilation, groups.
    let cases =
        [(4, 20, 3, 1, 1, 1), (6, 31, 5, 2, 2, 2), (32, 40, 9, 3, 1, 1), (8, 300, 7, 1, 2, 4)];
    for dtype in FLOATS {
        for (channels, size, taps, stride, dilation, groups) in cases {
            let spec = ConvSpec {
                stride: smallvec![stride],
                pad_low: smallvec![2],
                pad_high: smallvec![1],
                dilation: smallvec![dilation],
                groups,
                input: smallvec![Dim::new(size)],
                kernel: smallvec![Dim::new(taps)],
            };
            let places = (size + 3 - (taps - 1) * dilation - 1) / stride + 1;
            let x = noise(dtype, &[3, channels, size], 1);
            let w = noise(dtype, &[2 * groups, channels / groups, taps], 2);
            let g = noise(dtype, &[3, 2 * groups, places], 3);
            for (role, a, b) in
                [(ConvRole::Output, &x, &w), (ConvRole::Input, &g, &w), (ConvRole::Weight, &x, &g)]
            {
                check(&Op::Conv(role, Box::new(spec.clone())), &[a, b]);
            }
        }
    }
}

#[test]
fn reductions_are_as_near_as_their_order_of_joining_promises() {
    let cases: [(&[usize], &[usize]); 10] = [
        (&[1], &[0]),
        (&[31], &[0]),
        (&[33], &[0]),
        (&[1000], &[0]),
        (&[200_001], &[0]),
        (&[3, 5000], &[1]),
        (&[5000, 3], &[0]),
        (&[100_000, 2], &[0]),
        (&[40, 6, 90], &[0, 2]),
        (&[7, 40, 6], &[0, 1]),
    ];
    for dtype in FLOATS {
        for (sizes, axes) in cases {
            for kind in [Reduction::Sum, Reduction::Prod] {
                // Factors near 1, so that products stay in range.
                let x = if kind == Reduction::Prod {
                    near_one(dtype, sizes)
                } else {
                    noise(dtype, sizes, 5)
                };
                check(&Op::Reduce(kind, axes.into()), &[&x]);
            }
        }
    }
}

fn near_one(dtype: DType, sizes: &[usize]) -> Array {
    let small = values(&noise(DType::F64, sizes, 6));
    let width = (200.0 / small.len() as f64).min(1.0 / 64.0);
    array(dtype, sizes, &small.iter().map(|x| 1.0 + x * width).collect::<Vec<_>>())
}

/// Sums of one sign are where errors add up: the bound is held there too.
#[test]
fn sums_of_one_sign_are_within_the_bound() {
    for dtype in FLOATS {
        let x = array(dtype, &[60_000], &[0.1; 60_000]);
        check(&Op::Reduce(Reduction::Sum, smallvec![0]), &[&x]);
        let row = array(dtype, &[1, 9000], &[0.1; 9000]);
        let column = array(dtype, &[9000, 1], &[0.3; 9000]);
        check(&product(), &[&row, &column]);
    }
}

fn range_of(x: &Array, depth: usize) -> (f64, f64) {
    let op = Op::Reduce(Reduction::Sum, smallvec![0]);
    let operands = [crate::reference::Operand::Array(x)];
    let result = array(x.dtype, &[], &[0.0]);
    let sums: Vec<Exact> = bounds::exact(&op, &operands, &result).unwrap().unwrap();
    sums[0].range(x.dtype, depth).unwrap()
}

/// The bound tells a sum in blocks from one chain, and a float32 sum from one in half precision.
#[test]
fn the_bound_refuses_sums_of_a_worse_order_or_in_a_narrower_type() {
    let sum = Op::Reduce(Reduction::Sum, smallvec![0]);
    let n = 1 << 22;
    let x = array(DType::F32, &[n], &vec![0.1; n]);
    let chain = (0..n).fold(0f32, |sum, _| sum + 0.1);
    let (low, high) = range_of(&x, cpu::depth(&sum, n));
    assert!(!(low..=high).contains(&f64::from(chain)), "{chain} in {low}..{high}");

    let x = array(DType::F16, &[500], &[0.1; 500]);
    let (low, high) = range_of(&x, cpu::depth(&sum, 500));
    let round = |x: f32| crate::scalar::half::f16_to_f32(f32_to_f16(x));
    let narrow = (0..500).fold(0f32, |sum, _| round(sum + round(0.1)));
    assert!(!(low..=high).contains(&f64::from(narrow)), "{narrow} in {low}..{high}");
}

/// Sums in twice the precision of float64 are exact where integers show it.
#[test]
fn exact_sums_keep_what_float64_loses() {
    let big = 2f64.powi(60);
    let x = array(DType::F64, &[5], &[big, 1.0, 0.5, -big, 0.25]);
    let (low, high) = range_of(&x, 0);
    assert!(low <= 1.75 && 1.75 <= high && high - low < 1e-12, "{low} {high}");
    let op = product();
    let row = array(DType::F64, &[1, 2], &[1.0 + 2f64.powi(-30), 1.0]);
    let column = array(DType::F64, &[2, 1], &[1.0 + 2f64.powi(-30), -1.0]);
    let operands = [&row, &column].map(crate::reference::Operand::Array);
    let result = array(DType::F64, &[1, 1], &[0.0]);
    let sums = bounds::exact(&op, &operands, &result).unwrap().unwrap();
    assert_eq!(sums[0].value, 2f64.powi(-29) + 2f64.powi(-60));
}
