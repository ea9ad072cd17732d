//! Half-precision conversions.

#[inline(always)]
pub fn f16_to_f32(h: u16) -> f32 {
    let body = (u32::from(h) & 0x7fff) << 13;
    let scaled = f32::from_bits(body) * f32::from_bits(0x7780_0000);
    let special = if body >= 0x7c00 << 13 { 0x7f80_0000 } else { 0 };
    f32::from_bits(scaled.to_bits() | special | (u32::from(h) & 0x8000) << 16)
}

#[inline(always)]
pub fn f32_to_f16(x: f32) -> u16 {
    let bits = x.to_bits();
    let body = bits & 0x7fff_ffff;
    let normal = (body.wrapping_add(0xfff + (body >> 13 & 1)).wrapping_sub(112 << 23)) >> 13;
    let tiny = (f32::from_bits(body) + 0.5).to_bits().wrapping_sub(0.5f32.to_bits());
    let y = if body < 113 << 23 { tiny } else { normal };
    let y = if body >= 0x477f_f000 { 0x7c00 } else { y };
    let y = if body > 0x7f80_0000 { 0x7e00 | (body >> 13 & 0x1ff) } else { y };
    (y | (bits >> 16 & 0x8000)) as u16
}

#[inline(always)]
pub fn bf16_to_f32(h: u16) -> f32 {
    f32::from_bits(u32::from(h) << 16)
}

#[inline(always)]
pub fn f32_to_bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    (if bits & 0x7fff_ffff > 0x7f80_0000 { bits >> 16 | 0x40 } else { rounded }) as u16
}

/// The f32 next to `x` on the side that makes a second rounding harmless (round to odd).
#[inline(always)]
fn odd(x: f64) -> f32 {
    let near = x as f32;
    let back = f64::from(near);
    let bits = near.to_bits();
    // Where rounding moved away from zero, step back; then an inexact result is made odd.
    let away = back.abs() > x.abs() && near.to_bits() & 0x7fff_ffff <= 0x7f80_0000;
    let toward = bits.wrapping_sub(u32::from(away));
    f32::from_bits(toward | u32::from(back != x && !(x != x)))
}

#[inline(always)]
pub fn f64_to_f16(x: f64) -> u16 {
    f32_to_f16(odd(x))
}

#[inline(always)]
pub fn f64_to_bf16(x: f64) -> u16 {
    f32_to_bf16(odd(x))
}
