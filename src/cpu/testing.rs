//! What tests of products share: arrays of random numbers in any dtype, and readings in double
//! precision.

use crate::array::Array;
use crate::cpu::convert;
use crate::dtype::DType;
use crate::layout::row_major;
use crate::shape::Shape;

pub use super::samples::{bytes, layouts};
use super::{Operand, execute};
use crate::error::Result;
use crate::ops::attributes::*;
use crate::ops::op::{Op, Type};

/// An op on arrays.
fn compute(op: Op, args: &[&Array]) -> Result<Array> {
    let args: Vec<Operand<'_>> = args.iter().map(|&x| Operand::Array(x)).collect();
    execute(&op, &args)
}

/// A general product.
pub fn contract(a: &Array, b: &Array, spec: &Contraction) -> Result<Array> {
    compute(Op::Contract(Box::new(spec.clone())), &[a, b])
}

/// One role of a convolution.
pub fn conv(role: ConvRole, a: &Array, b: &Array, spec: &ConvSpec) -> Result<Array> {
    compute(Op::Conv(role, Box::new(spec.clone())), &[a, b])
}

/// The sum of windows.
pub fn fold(g: &Array, spec: &WindowSpec, sizes: &[usize]) -> Result<Array> {
    compute(Op::Fold(Box::new(spec.clone()), sizes.iter().map(|&n| n.into()).collect()), &[g])
}

/// A reduction.
pub fn reduce(kind: Reduction, x: &Array, axes: &[usize]) -> Result<Array> {
    compute(Op::Reduce(kind, axes.into()), &[x])
}

/// The position of an extreme.
pub fn arg_reduce(kind: ArgReduction, x: &Array, axis: usize) -> Result<Array> {
    compute(Op::ArgReduce(kind, axis), &[x])
}

/// A running reduction.
pub fn cumulate(kind: Cumulation, x: &Array, axis: usize, reverse: bool) -> Result<Array> {
    compute(Op::Cumulate { kind, axis, reverse }, &[x])
}

/// Elements in order.
pub fn sort(x: &Array, axis: usize, descending: bool) -> Result<Array> {
    compute(Op::Sort { axis, descending }, &[x])
}

/// The order that sorts.
pub fn argsort(x: &Array, axis: usize, descending: bool) -> Result<Array> {
    compute(Op::ArgSort { axis, descending }, &[x])
}

/// The positions of the first of an order.
pub fn topk(x: &Array, k: usize, axis: usize, largest: bool) -> Result<Array> {
    compute(Op::TopK { k, axis, largest }, &[x])
}

/// What indices pick.
pub fn gather(x: &Array, indices: &[&Array]) -> Result<Array> {
    let args: Vec<&Array> = std::iter::once(x).chain(indices.iter().copied()).collect();
    compute(Op::Gather, &args)
}

/// The index along an axis.
pub fn iota(dtype: DType, shape: &Shape, axis: usize) -> Result<Array> {
    compute(Op::Iota(Type::new(dtype, shape.clone()), axis), &[])
}

/// Small whole numbers in steps of 1/4 for floats (so that sums of products are exact), whole ones
/// for integers, truth values for bool.
pub fn random(dtype: DType, sizes: &[usize], seed: u64) -> Array {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let values = (0..Shape::of(sizes).count()).map(|_| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let n = (state >> 33) as i64 % 17 - 8;
        #[allow(
            clippy::wildcard_enum_match_arm,
            reason = "any other dtype holds small whole numbers"
        )]
        match dtype {
            DType::Bool => (n > 4) as i64 as f64,
            d if d.is_unsigned() => n.abs() as f64,
            d if d.is_float() => n as f64 / 4.0,
            _ => n as f64,
        }
    });
    array(dtype, sizes, &values.collect::<Vec<_>>())
}

/// Random numbers with full mantissas, in (-1, 1).
pub fn noise(dtype: DType, sizes: &[usize], seed: u64) -> Array {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let values = (0..Shape::of(sizes).count()).map(|_| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    });
    array(dtype, sizes, &values.collect::<Vec<_>>())
}

/// An array of given values.
pub fn array(dtype: DType, sizes: &[usize], values: &[f64]) -> Array {
    let out = Array::uninit(dtype, Shape::of(sizes)).unwrap();
    let registers: Vec<u64> = values
        .iter()
        .map(|&v| crate::dtype::Scalar::Float(v).register_bits(dtype.compute()))
        .collect();
    for (i, bits) in registers.iter().enumerate() {
        // SAFETY: fresh, and one element each; the register's bytes stand in the low end.
        unsafe {
            let bits: *const u64 = bits;
            convert::store(dtype, out.ptr_mut().add(i * dtype.size()), 1, bits.cast(), 1);
        }
    }
    out
}

/// The elements in C order.
pub fn values(x: &Array) -> Vec<f64> {
    let (sizes, strides) = (x.shape().sizes(), x.layout.strides());
    let own = row_major(&sizes);
    (0..x.count())
        .map(|i| {
            let at: isize = (0..sizes.len())
                .map(|a| (i / own[a] as usize % sizes[a]) as isize * strides[a])
                .sum();
            let mut bits = 0u64;
            // SAFETY: inside the array; a register takes at most eight bytes.
            unsafe {
                let src = x.ptr().offset(at * x.dtype.size() as isize);
                convert::load(x.dtype, (&raw mut bits).cast(), src, 1, 1);
            }
            use crate::dtype::Compute::*;
            match x.dtype.compute() {
                Bool => (bits as u8) as f64,
                I32 => bits as u32 as i32 as f64,
                U32 => bits as u32 as f64,
                I64 => bits as i64 as f64,
                U64 => bits as f64,
                F32 => f32::from_bits(bits as u32) as f64,
                F64 => f64::from_bits(bits),
            }
        })
        .collect()
}
