//! Half precision: binary16 and bfloat16 as bits, to and from binary32 and binary64.
//!
//! Conversions are branch-free and vectorise. Narrowing rounds half to even, once; overflow gives
//! an infinity, and NaN stays a quiet NaN with its sign and leading payload.

/// The value of a binary16.
#[inline(always)]
pub fn f16_to_f32(half: u16) -> f32 {
    let sign = (half as u32 & 0x8000) << 16;
    let magnitude = (half as u32 & 0x7fff) << 13;
    // Moved to the places of binary32, the exponent is 112 too small; a product mends that for
    // subnormal numbers too. Infinities and NaN get the largest exponent.
    let scaled = (f32::from_bits(magnitude) * f32::from_bits((127 + 112) << 23)).to_bits();
    let special = magnitude | 0x7f80_0000;
    let quiet = if half & 0x7fff > 0x7c00 { special | 0x0040_0000 } else { special };
    f32::from_bits(sign | if half & 0x7c00 == 0x7c00 { quiet } else { scaled })
}

/// The nearest binary16.
#[inline(always)]
pub fn f32_to_f16(x: f32) -> u16 {
    let bits = x.to_bits();
    let sign = (bits >> 16) & 0x8000;
    let magnitude = bits & 0x7fff_ffff;
    // Normal: round at bit 13 in integer arithmetic; a carry enters the exponent as it should.
    let odd = (magnitude >> 13) & 1;
    let normal = magnitude.wrapping_add(0xfff + odd).wrapping_sub(112 << 23) >> 13;
    // Subnormal: adding 1/2 puts the last place of binary16, 2⁻²⁴, at that of binary32.
    let subnormal = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0.5f32.to_bits());
    let finite = if magnitude < (113 << 23) { subnormal } else { normal };
    // 65520 is the smallest number that rounds to infinity.
    let bounded = if magnitude >= 65520.0f32.to_bits() { 0x7c00 } else { finite };
    let nan = 0x7e00 | ((magnitude >> 13) & 0x3ff);
    (sign | if magnitude > 0x7f80_0000 { nan } else { bounded }) as u16
}

/// The value of a bfloat16.
#[inline(always)]
pub fn bf16_to_f32(half: u16) -> f32 {
    f32::from_bits((half as u32) << 16)
}

/// The nearest bfloat16.
#[inline(always)]
pub fn f32_to_bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
    let quiet = (bits >> 16) | 0x0040;
    (if bits & 0x7fff_ffff > 0x7f80_0000 { quiet } else { rounded }) as u16
}

/// The nearest binary16 of a binary64, rounded once.
#[inline(always)]
pub fn f64_to_f16(x: f64) -> u16 {
    f32_to_f16(f64_to_f32_odd(x))
}

/// The nearest bfloat16 of a binary64, rounded once.
#[inline(always)]
pub fn f64_to_bf16(x: f64) -> u16 {
    f32_to_bf16(f64_to_f32_odd(x))
}

/// `x` rounded to odd: if inexact, the neighbour whose last bit is set. A later rounding to fewer
/// bits (at least two fewer) then gives what rounding `x` itself would.
#[inline(always)]
fn f64_to_f32_odd(x: f64) -> f32 {
    let nearest = x as f32;
    let (back, bits) = (nearest as f64, nearest.to_bits());
    // The magnitude below, whichever way the rounding went; then the last bit stands for the rest.
    let below = if back.abs() > x.abs() { bits.wrapping_sub(1) } else { bits };
    f32::from_bits(if back == x || x.is_nan() { bits } else { below | 1 })
}
