//! Roots, lengths and division with remainder.

use super::pair::{ordered_sum, product, split};
use super::polynomial::Polynomial;
use super::{Float, Int, Scalar};

/// `∛m` on [1, 2), to 16 bits: enough for both types.
const CBRT: Polynomial<5, 5> = Polynomial(
    [0.50697935, 0.718154, -0.30061162, 0.08609136, -0.010603897],
    [0.50697935, 0.718154, -0.30061162, 0.08609136, -0.010603897],
);

/// `1/√x`. Error ≤ 1.5 ULP.
#[inline(always)]
pub fn rsqrt<S: Float>(x: S) -> S {
    S::whole(1) / x.sqrt()
}

/// Cube root. Error ≤ 1 ULP.
#[inline(always)]
pub fn cbrt<S: Float>(x: S) -> S {
    let int = S::Bits::whole;
    let magnitude = x.abs();
    // Subnormal numbers are scaled by a power of two whose exponent is a multiple of 3.
    let tiny = magnitude.lt(S::smallest_normal());
    let up = S::pick(134217728.0, 18014398509481984.0);
    let a = S::select(tiny, magnitude * up, magnitude);
    // a = 8ᵏ·m with m in [1, 8); ⌊e/3⌋ is the whole number nearest to (e − 1)/3.
    let exponent = a.bits().right(S::SIGNIFICAND) - int(S::BIAS);
    let (_, k) = (S::of_small(exponent - int(1)) * S::lit(1.0 / 3.0)).round_small();
    let rest = exponent - (k + k + k);
    let m = S::of_bits((a.bits() & int((1 << S::SIGNIFICAND) - 1)) | S::whole(1).bits());
    let factor = S::select(rest.eq(int(2)), S::lit(1.5874010519681994), S::whole(1));
    let factor = S::select(rest.eq(int(1)), S::lit(1.259921049894873), factor);
    let start = CBRT.at(m) * factor;
    let m = m * S::power_of_two(rest);
    // Halley's step, which triples the correct bits: with r = m/t², t + t(r − t)/(2t + r).
    let step = |t: S| {
        let r = m / (t * t);
        t + t * ((r - t) / (t + t + r))
    };
    // The last step starts from a number of half the bits, so that t² is exact.
    let t = step(split(if S::DOUBLE { step(start) } else { start }).0);
    let down = S::Bits::select(tiny, int(if S::DOUBLE { 18 } else { 9 }), int(0));
    let root = (t * S::power_of_two(k - down)).copysign(x);
    S::select(x.eq(S::whole(0)) | x.is_infinite() | x.is_nan(), x, root)
}

/// `√(x² + y²)` without overflow on the way; ∞ if either is infinite. Error ≤ 1 ULP.
#[inline(always)]
pub fn hypot<S: Float>(x: S, y: S) -> S {
    let (zero, one) = (S::whole(0), S::whole(1));
    let (a, b) = (x.abs(), y.abs());
    let (long, short) = (S::select(a.lt(b), b, a), S::select(a.lt(b), a, b));
    let huge = long.gt(S::pick(1.0e18, 1.0e150));
    let tiny = long.lt(S::pick(1.0e-12, 1.0e-120));
    let two = |e: i64| S::power_of_two(S::Bits::whole(e));
    let (down, up) = if S::DOUBLE { (two(-700), two(700)) } else { (two(-80), two(100)) };
    let (undo_down, undo_up) = if S::DOUBLE { (two(700), two(-700)) } else { (two(80), two(-100)) };
    let scale = S::select(huge, down, S::select(tiny, up, one));
    let unscale = S::select(huge, undo_down, S::select(tiny, undo_up, one));
    let (p, q) = (product(long * scale, long * scale), product(short * scale, short * scale));
    let square = ordered_sum(p.hi, q.hi);
    let root = square.hi.sqrt();
    let back = product(root, root);
    let rest = ((square.hi - back.hi) - back.lo) + (square.lo + (p.lo + q.lo));
    let lo = rest / (root + root);
    let length = S::select(long.eq(zero), zero, (root + lo) * unscale);
    let length = S::select(x.is_nan() | y.is_nan(), S::nan(), length);
    S::select(a.eq(S::infinity()) | b.eq(S::infinity()), S::infinity(), length)
}

/// What the quotient rounded towards zero leaves, with the sign of `x`: exact.
#[inline(always)]
pub fn fmod<S: Float>(x: S, divisor: S) -> S {
    x.fmod(divisor)
}

/// `x − divisor·⌊x/divisor⌋` as in Python, with the sign of the divisor; NaN for a zero divisor.
/// Exact but for the one rounding where `x` and the divisor differ in sign.
#[inline(always)]
pub fn remainder<S: Float>(x: S, divisor: S) -> S {
    let zero = S::whole(0);
    let rest = x.fmod(divisor);
    let moved = S::select(rest.lt(zero) ^ divisor.lt(zero), rest + divisor, rest);
    S::select(rest.eq(zero), zero.copysign(divisor), moved)
}

/// `⌊x/divisor⌋`: the quotient that [`remainder`] leaves its rest of, rounded. `x/divisor` for a
/// zero divisor and where either is infinite, as in the Array API's table.
#[inline(always)]
pub fn floor_divide<S: Float>(x: S, divisor: S) -> S {
    let (zero, one) = (S::whole(0), S::whole(1));
    let rest = x.fmod(divisor);
    let whole = (x - rest) / divisor;
    let below = rest.ne(zero) & (rest.lt(zero) ^ divisor.lt(zero));
    // `whole` is a whole number but for rounding errors.
    let quotient = S::select(below, whole - one, whole).round();
    let signed = S::select(quotient.eq(zero), zero.copysign(x / divisor), quotient);
    let is_plain = divisor.eq(zero) | x.is_infinite() | divisor.is_infinite();
    S::select(is_plain, x / divisor, signed)
}

/// Which dtype's numbers [`next_after`] counts, computed in a register that holds them all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Those of the register itself
    Own,
    /// float16's
    Half,
    /// bfloat16's
    Brain,
}

/// The next number after `x` on the way to `to`; exact.
///
/// Numbers of one sign are in the order of their bits, so a step is one in the last bit that the
/// dtype keeps. Below 2⁻¹⁴ float16 has no such bit: its steps there are 2⁻²⁴, and the largest
/// number of float16 is not the one below infinity in bits.
#[inline(always)]
pub fn next_after<S: Float>(x: S, to: S, step: Step) -> S {
    let zero = S::lit(0.0);
    let dropped = match step {
        Step::Own => 0,
        Step::Half => S::SIGNIFICAND - 10,
        Step::Brain => S::SIGNIFICAND - 7,
    };
    let one = S::Bits::whole(1).left(dropped);
    let outwards = S::select(x.lt(zero), -to, to).gt(x.abs());
    let bits = x.abs().bits();
    let mut next = S::of_bits(S::Bits::select(outwards, bits + one, bits - one));
    let mut least = S::of_bits(one);
    if step == Step::Half {
        least = S::lit(2.0_f64.powi(-24));
        let small = x.abs() + S::select(outwards, least, -least);
        next = S::select(x.abs().le(S::lit(2.0_f64.powi(-14))), small, next);
        next = S::select(x.is_infinite(), S::lit(65504.0), next);
    }
    let moved = S::select(x.eq(zero), least.copysign(to), next.copysign(x));
    let y = S::select(x.eq(to), to, moved);
    S::select(x.is_nan() | to.is_nan(), S::nan(), y)
}
