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

#[cfg(test)]
mod tests {
    use super::*;

    /// The value of a binary16 by its definition.
    fn f16_value(half: u16) -> f64 {
        let sign = if half & 0x8000 == 0 { 1.0 } else { -1.0 };
        let (exponent, fraction) = ((half >> 10 & 0x1f) as i32, (half & 0x3ff) as f64);
        sign * match exponent {
            0 => fraction * 2f64.powi(-24),
            31 if fraction == 0.0 => f64::INFINITY,
            31 => f64::NAN,
            _ => (1024.0 + fraction) * 2f64.powi(exponent - 25),
        }
    }

    /// The value of a bfloat16 by its definition.
    fn bf16_value(half: u16) -> f64 {
        let sign = if half & 0x8000 == 0 { 1.0 } else { -1.0 };
        let (exponent, fraction) = ((half >> 7 & 0xff) as i32, (half & 0x7f) as f64);
        sign * match exponent {
            0 => fraction * 2f64.powi(-133),
            255 if fraction == 0.0 => f64::INFINITY,
            255 => f64::NAN,
            _ => (128.0 + fraction) * 2f64.powi(exponent - 134),
        }
    }

    /// Every pattern widens to its value and narrows back to itself.
    fn every_pattern(
        value: fn(u16) -> f64,
        widen: fn(u16) -> f32,
        narrow: fn(f32) -> u16,
        narrow64: fn(f64) -> u16,
        quiet: u16,
    ) {
        for half in 0..=u16::MAX {
            let (wide, exact) = (widen(half), value(half));
            if exact.is_nan() {
                assert!(wide.is_nan() && wide.to_bits() & 0x0040_0000 != 0, "{half:#x}");
                assert_eq!(narrow(wide), half | quiet);
                assert_eq!(narrow64(wide as f64), half | quiet);
                continue;
            }
            assert_eq!((wide as f64).to_bits(), exact.to_bits(), "{half:#x}");
            assert_eq!(narrow(wide), half);
            assert_eq!(narrow64(exact), half);
        }
    }

    /// Around the middle of every two neighbours: below rounds down, above up, the middle to even.
    fn every_boundary(
        value: fn(u16) -> f64,
        narrow: fn(f32) -> u16,
        narrow64: fn(f64) -> u16,
        infinity: u16,
    ) {
        for low in 0..infinity {
            let high = low + 1;
            // Beyond the largest number the next step counts, as if the range went on.
            let step = value(low) - if low == 0 { -value(1) } else { value(low - 1) };
            let top = if high == infinity { value(low) + step } else { value(high) };
            let middle = (value(low) + top) / 2.0;
            let even = if low % 2 == 0 { low } else { high };
            let (down, up) = (f64::from_bits(middle.to_bits() - 1), middle.to_bits() + 1);
            let cases = [(down, low), (middle, even), (f64::from_bits(up), high)];
            for (x, half) in cases {
                assert_eq!(narrow64(x), half, "{x:e}");
                assert_eq!(narrow64(-x), half | 0x8000, "{x:e}");
            }
            // The middle is a binary32 but for the smallest bfloat16s.
            let single = middle as f32;
            if single as f64 == middle {
                let below = f32::from_bits(single.to_bits() - 1);
                let above = f32::from_bits(single.to_bits() + 1);
                for (x, half) in [(below, low), (single, even), (above, high)] {
                    assert_eq!(narrow(x), half, "{x:e}");
                    assert_eq!(narrow(-x), half | 0x8000, "{x:e}");
                }
            }
        }
    }

    #[test]
    fn binary16_is_exact() {
        every_pattern(f16_value, f16_to_f32, f32_to_f16, f64_to_f16, 0x200);
        every_boundary(f16_value, f32_to_f16, f64_to_f16, 0x7c00);
        assert_eq!([f32_to_f16(1e30), f64_to_f16(-1e300)], [0x7c00, 0xfc00]);
        assert_eq!([f32_to_f16(1e-30), f64_to_f16(-5e-324)], [0, 0x8000]);
    }

    #[test]
    fn bfloat16_is_exact() {
        every_pattern(bf16_value, bf16_quiet, f32_to_bf16, f64_to_bf16, 0x40);
        every_boundary(bf16_value, f32_to_bf16, f64_to_bf16, 0x7f80);
        assert_eq!([f32_to_bf16(f32::MAX), f64_to_bf16(-1e300)], [0x7f80, 0xff80]);
        assert_eq!(f64_to_bf16(-5e-324), 0x8000);
    }

    /// Widening a bfloat16 moves its bits, so a signalling NaN stays one; arithmetic quiets it.
    fn bf16_quiet(half: u16) -> f32 {
        let wide = bf16_to_f32(half);
        if wide.is_nan() { f32::from_bits(wide.to_bits() | 0x0040_0000) } else { wide }
    }
}
