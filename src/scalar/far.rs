//! Angles far out: the reduction of Payne and Hanek, with as many digits of 2/π as a binary64
//! needs.
//!
//! Source: Payne, Hanek: Radian reduction for trigonometric functions, 1983.

use std::f64::consts::FRAC_PI_2;

use super::pair::Pair;

/// The magnitude up to which [`Float::quarter_turns`](super::Float::quarter_turns) holds.
pub(super) const NEAR: f64 = (1u64 << 30) as f64;

/// 64 zeros and the first 1280 bits of 2/π after the point, from the highest down.
const TWO_OVER_PI: [u64; 21] = [
    0,
    0xa2f9_836e_4e44_1529,
    0xfc27_57d1_f534_ddc0,
    0xdb62_9599_3c43_9041,
    0xfe51_63ab_debb_c561,
    0xb724_6e3a_424d_d2e0,
    0x0649_2eea_09d1_921c,
    0xfe1d_eb1c_b129_a73e,
    0xe882_35f5_2ebb_4484,
    0xe99c_7026_b45f_7e41,
    0x3991_d639_8353_39f4,
    0x9c84_5f8b_bdf9_283b,
    0x1ff8_97ff_de05_980f,
    0xef2f_118b_5a0a_6d1f,
    0x6d36_7ecf_27cb_09b7,
    0x4f46_3f66_9e5f_ea2d,
    0x7527_bac7_ebe5_f17b,
    0x3d07_39f7_8a52_92ea,
    0x6bfb_5fb1_1f8d_5d08,
    0x5603_3046_fc7b_6bab,
    0xf0cf_bc20_9af4_361d,
];

/// What π/2 has beyond its binary64.
const HALF_PI_REST: f64 = 6.123233995736766e-17;

/// The quadrant of a finite `x` of magnitude above [`NEAR`], and `hi + lo = x − q·π/2` to about 75
/// bits, with `|hi| ≤ π/4` (barely above). NaN for infinities.
///
/// With `|x| = m·2ᵉ`, bits of 2/π that contribute multiples of four right angles to `m·2ᵉ·2/π` are
/// left out; the next 192 leave an error below 2⁻¹³⁷ right angles. No binary64 comes nearer than
/// 2⁻⁶² to a multiple of a right angle.
#[cold]
#[inline(never)]
pub(super) fn quarter_turns(x: f64) -> (i64, f64, f64) {
    if !x.is_finite() {
        return (0, f64::NAN, f64::NAN);
    }
    let bits = x.to_bits();
    let m = (bits & ((1 << 52) - 1)) | (1 << 52);
    let e = ((bits >> 52) & 0x7ff) as i32 - 1075;
    let [high, middle, low] = product(m, window((62 + e) as usize));
    // Two bits count quadrants; the others are a fraction of one, taken from the nearest quadrant.
    let fraction = [high << 2 | middle >> 62, middle << 2 | low >> 62, low << 2];
    let is_above = fraction[0] >> 63;
    let quadrant = ((high >> 62) + is_above) as i64;
    let r = value(if is_above == 1 { negated(fraction) } else { fraction });
    let r = r.times(Pair { hi: FRAC_PI_2, lo: HALF_PI_REST });
    let quadrant = if x < 0.0 { -quadrant } else { quadrant };
    match (is_above == 1) == (x < 0.0) {
        true => (quadrant, r.hi, r.lo),
        false => (quadrant, -r.hi, -r.lo),
    }
}

/// 192 bits of the table from bit `start` on.
fn window(start: usize) -> [u64; 3] {
    let (word, shift) = (start / 64, start % 64);
    let pair = |i: usize| (TWO_OVER_PI[word + i] as u128) << 64 | next(word + i + 1) as u128;
    [0, 1, 2].map(|i| (pair(i) << shift >> 64) as u64)
}

/// A word of the table; beyond its end it counts for nothing.
fn next(word: usize) -> u64 {
    TWO_OVER_PI.get(word).copied().unwrap_or(0)
}

/// The lowest 192 bits of `m` times a number of 192.
fn product(m: u64, [high, middle, low]: [u64; 3]) -> [u64; 3] {
    let m = m as u128;
    let bottom = m * low as u128;
    let centre = m * middle as u128 + (bottom >> 64);
    [m.wrapping_mul(high as u128).wrapping_add(centre >> 64) as u64, centre as u64, bottom as u64]
}

/// The two's complement.
fn negated([high, middle, low]: [u64; 3]) -> [u64; 3] {
    let (low, carry) = (!low).overflowing_add(1);
    let (middle, carry) = (!middle).overflowing_add(carry as u64);
    [(!high).wrapping_add(carry as u64), middle, low]
}

/// A fraction of 192 bits as a pair.
fn value([high, middle, low]: [u64; 3]) -> Pair<f64> {
    // At most 62 bits are zero before the first that is not.
    let zeros = high.leading_zeros().min(63);
    let top = (high as u128) << 64 | middle as u128;
    let top = top << zeros | (low as u128) << zeros >> 64;
    let (first, rest) = ((top >> 75) as u64, (top >> 11) as u64);
    let unit = |bits: u32| f64::from_bits(u64::from(1023 - bits - zeros) << 52);
    Pair { hi: first as f64 * unit(53), lo: rest as f64 * unit(117) }
}
