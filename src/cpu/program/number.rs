//! Numbers of a program, as bits and as tiles.

use crate::dtype::{Compute, DType, Scalar, Width};
use crate::tile;

/// The bits of a number in register form, rounded to its dtype.
#[inline]
pub fn register_bits(x: Scalar, dtype: DType) -> u64 {
    match (x, dtype) {
        (Scalar::Float(x), DType::F32) => (x as f32).to_bits().into(),
        (Scalar::Float(x), DType::F64) => x.to_bits(),
        (Scalar::Int(i), DType::F32) => (i as f32).to_bits().into(),
        (Scalar::Int(i), DType::I64) => i as u64,
        _ => converted_bits(x, dtype),
    }
}

fn converted_bits(x: Scalar, dtype: DType) -> u64 {
    let from = match x {
        Scalar::Bool(_) | Scalar::Int(_) => Compute::I64,
        Scalar::Uint(_) => Compute::U64,
        Scalar::Float(_) => Compute::F64,
    };
    let (bits, mut out) = (x.register_bits(from), 0u64);
    let arg = (&raw const bits).cast::<u8>();
    // SAFETY: one element of at most eight bytes on either side.
    unsafe { tile::cast(from, dtype)((&raw mut out).cast(), &[arg; 3], 1) };
    out
}

/// Fills `n` elements with the same bits.
///
/// # Safety
/// `dst` is valid for `n` elements and aligned to them.
#[inline]
pub(in crate::cpu) unsafe fn splat(dst: *mut u8, bits: u64, width: Width, n: usize) {
    // SAFETY: as the caller's.
    unsafe {
        match width {
            Width::B1 => dst.write_bytes(bits as u8, n),
            Width::B2 => std::slice::from_raw_parts_mut(dst.cast::<u16>(), n).fill(bits as u16),
            Width::B4 => std::slice::from_raw_parts_mut(dst.cast::<u32>(), n).fill(bits as u32),
            Width::B8 => std::slice::from_raw_parts_mut(dst.cast::<u64>(), n).fill(bits),
        }
    }
}
