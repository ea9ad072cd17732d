//! Trigonometric functions and their inverses.

use super::pair::{Pair, ordered_sum, sum};
use super::polynomial::Polynomial;
use super::{Float, Int, Scalar};

/// `(sin r − r) / r³` in `r²`, for `|r| ≤ π/4`.
const SIN: Polynomial<3, 6> = Polynomial(
    [-0.16666655, 0.00833219, -0.00019518405],
    [
        -0.16666666666666632,
        0.008333333333322455,
        -0.0001984126982981342,
        2.755731368757609e-06,
        -2.505075671495829e-08,
        1.589668189078947e-10,
    ],
);

/// `(cos r − 1 + r²/2) / r⁴` in `r²`, for `|r| ≤ π/4`.
const COS: Polynomial<3, 6> = Polynomial(
    [0.041666646, -0.0013887301, 2.443067e-05],
    [
        0.0416666666666666,
        -0.0013888888888874441,
        2.4801587289636314e-05,
        -2.75573143874696e-07,
        2.0875727058872666e-09,
        -1.1359802461829541e-11,
    ],
);

/// `(asin x − x) / x³` in `x²`, for `|x| ≤ 1/2`.
const ASIN: Polynomial<6, 13> = Polynomial(
    [0.1666666, 0.07500521, 0.044513635, 0.031836055, 0.014329189, 0.037673127],
    [
        0.16666666666666766,
        0.07499999999969328,
        0.0446428571760583,
        0.03038194263653917,
        0.02237221704189382,
        0.017351574345454143,
        0.013981280604030005,
        0.011395082908096233,
        0.010802062761539815,
        0.003622767206824485,
        0.02191392908122239,
        -0.021295376435114845,
        0.0328164499214782,
    ],
);

/// `(atan t − t) / t³` in `t²`, for `|t| ≤ tan(π/8)`.
const ATAN: Polynomial<5, 11> = Polynomial(
    [-0.33333316, 0.19998528, -0.14244373, 0.1059887, -0.060888648],
    [
        -0.333333333333332,
        0.1999999999995356,
        -0.14285714280179054,
        0.1111111078206572,
        -0.09090897706056883,
        0.07692059125337067,
        -0.06663089988347655,
        0.05847776137116736,
        -0.0503875046228823,
        0.03804944775937913,
        -0.017889616213027006,
    ],
);

/// π/4 as a pair; doubling it is exact.
#[inline(always)]
fn quarter_pi<S: Float>() -> Pair<S> {
    Pair::constant(
        (0.7853981852531433, -2.1855694e-08),
        (std::f64::consts::FRAC_PI_4, 3.061616997868383e-17),
    )
}

/// `sin(r + lo)` for `|r| ≤ π/4`, as a leading term and the rest.
#[inline(always)]
fn sin_reduced<S: Float>(r: S, lo: S) -> Pair<S> {
    let z = r * r;
    let tail = z * r * SIN.at(z) + lo * (S::whole(1) - S::lit(0.5) * z);
    Pair { hi: r, lo: tail }
}

/// `cos(r + lo)` for `|r| ≤ π/4`, as a leading term and the rest.
#[inline(always)]
fn cos_reduced<S: Float>(r: S, lo: S) -> Pair<S> {
    let z = r * r;
    let lead = ordered_sum(S::whole(1), -(S::lit(0.5) * z));
    Pair { hi: lead.hi, lo: lead.lo + (z * z * COS.at(z) - r * lo) }
}

/// Whether a bit of an integer is set.
#[inline(always)]
fn has_bit<I: Int>(n: I, bit: i64) -> I::Mask {
    (n & I::whole(bit)).ne(I::whole(0))
}

/// The sine of `quadrant` right angles and `r + lo`.
#[inline(always)]
fn sin_quadrant<S: Float>(quadrant: S::Bits, r: S, lo: S) -> S {
    let (sin, cos) = (sin_reduced(r, lo).value(), cos_reduced(r, lo).value());
    let value = S::select(has_bit(quadrant, 1), cos, sin);
    S::select(has_bit(quadrant, 2), -value, value)
}

/// The quadrant and the rest of an angle that is not far out. Beyond the rest is wrong; it is held
/// in bounds so that sine and cosine stay in [−1, 1].
#[inline(always)]
fn reduce<S: Float>(x: S) -> (S::Bits, S, S) {
    let (quadrant, r, lo) = x.quarter_turns();
    let one = S::whole(1);
    let outside = r.abs().gt(one);
    (quadrant, S::select(outside, one, r), S::select(outside, S::whole(0), lo))
}

/// Sine of an angle that is not [far](Float::is_far) out. Error ≤ 1 ULP; [`sin_far`] has the same
/// bound for the others.
#[inline(always)]
pub fn sin<S: Float>(x: S) -> S {
    let (quadrant, r, lo) = reduce(x);
    S::select(x.eq(S::whole(0)), x, sin_quadrant(quadrant, r, lo))
}

/// Sine of an angle far out.
#[inline(always)]
pub fn sin_far<S: Float>(x: S) -> S {
    let (quadrant, r, lo) = x.far_quarter_turns();
    sin_quadrant(quadrant, r, lo)
}

/// Cosine of an angle that is not [far](Float::is_far) out. Error ≤ 1 ULP; [`cos_far`] has the same
/// bound for the others.
#[inline(always)]
pub fn cos<S: Float>(x: S) -> S {
    let (quadrant, r, lo) = reduce(x);
    sin_quadrant(quadrant + S::Bits::whole(1), r, lo)
}

/// Cosine of an angle far out.
#[inline(always)]
pub fn cos_far<S: Float>(x: S) -> S {
    let (quadrant, r, lo) = x.far_quarter_turns();
    sin_quadrant(quadrant + S::Bits::whole(1), r, lo)
}

/// Tangent of an angle that is not [far](Float::is_far) out. Error ≤ 1.5 ULP; [`tan_far`] has the
/// same bound for the others.
#[inline(always)]
pub fn tan<S: Float>(x: S) -> S {
    let (quadrant, r, lo) = reduce(x);
    S::select(x.eq(S::whole(0)), x, tan_quadrant(quadrant, r, lo))
}

/// Tangent of an angle far out.
#[inline(always)]
pub fn tan_far<S: Float>(x: S) -> S {
    let (quadrant, r, lo) = x.far_quarter_turns();
    tan_quadrant(quadrant, r, lo)
}

/// The tangent of `quadrant` right angles and `r + lo`.
#[inline(always)]
fn tan_quadrant<S: Float>(quadrant: S::Bits, r: S, lo: S) -> S {
    let (sin, cos) = (sin_reduced(r, lo), cos_reduced(r, lo));
    let (sin, cos) = (ordered_sum(sin.hi, sin.lo), ordered_sum(cos.hi, cos.lo));
    let odd = has_bit(quadrant, 1);
    let choose = |a: S, b: S| S::select(odd, a, b);
    let a = Pair { hi: choose(cos.hi, sin.hi), lo: choose(cos.lo, sin.lo) };
    let b = Pair { hi: choose(sin.hi, cos.hi), lo: choose(sin.lo, cos.lo) };
    let q = a.hi / b.hi;
    let q = q + (a.lo - q * b.lo) / b.hi;
    S::select(odd, -q, q)
}

/// `asin √z − √z` over `√z`, for `0 ≤ z ≤ 1/4`.
#[inline(always)]
fn asin_tail<S: Float>(z: S) -> S {
    z * ASIN.at(z)
}

/// `√z` as a pair, and its `asin` likewise, for `0 ≤ z ≤ 1/4`.
#[inline(always)]
fn asin_sqrt<S: Float>(z: S) -> Pair<S> {
    let root = z.sqrt();
    let square = super::pair::product(root, root);
    let lost = ((z - square.hi) - square.lo) / (root + root);
    let lost = S::select(z.eq(S::whole(0)), S::whole(0), lost);
    Pair { hi: root, lo: lost + root * asin_tail(z) }
}

/// Inverse sine; NaN outside [−1, 1]. Error ≤ 1 ULP.
#[inline(always)]
pub fn asin<S: Float>(x: S) -> S {
    let a = x.abs();
    let small = x + x * asin_tail(x * x);
    // asin a = π/2 − 2 asin √((1 − a)/2)
    let root = asin_sqrt(S::lit(0.5) * (S::whole(1) - a));
    let quarter = quarter_pi::<S>();
    let lead = ordered_sum(quarter.hi, -root.hi);
    let half = lead.hi + (lead.lo + (quarter.lo - root.lo));
    S::select(a.le(S::lit(0.5)), small, (half + half).copysign(x))
}

/// Inverse cosine; NaN outside [−1, 1]. Error ≤ 1 ULP.
#[inline(always)]
pub fn acos<S: Float>(x: S) -> S {
    let a = x.abs();
    let quarter = quarter_pi::<S>();
    // For |x| ≤ 1/2: π/2 − asin x
    let lead = ordered_sum(quarter.hi + quarter.hi, -x);
    let small = lead.hi + (lead.lo + (quarter.lo + quarter.lo - x * asin_tail(x * x)));
    // Else 2 asin √((1 − a)/2), taken from π for negative x
    let root = asin_sqrt(S::lit(0.5) * (S::whole(1) - a));
    let near_one = root.hi + root.lo;
    let two = S::whole(2);
    let lead = ordered_sum(two * quarter.hi, -root.hi);
    let near_minus_one = lead.hi + (lead.lo + (two * quarter.lo - root.lo));
    let far = two * S::select(x.lt(S::whole(0)), near_minus_one, near_one);
    S::select(a.le(S::lit(0.5)), small, far)
}

/// `atan(a/b)` for `0 ≤ a ≤ b`, `b > 0`.
///
/// Where the quotient is above tan(π/8), it is `π/4 + atan((a − b)/(a + b))`.
#[inline(always)]
fn atan_ratio<S: Float>(a: S, b: S) -> Pair<S> {
    let zero = S::whole(0);
    let large = a.gt(b * S::lit(0.41421356237309503));
    let (difference, total) = (sum(a, -b), sum(b, a));
    let top = S::select(large, difference.hi, a);
    let bottom = S::select(large, total.hi, b);
    let t = top / bottom;
    let lost = S::select(large, (difference.lo - t * total.lo) / bottom, zero);
    let z = t * t;
    let quarter = quarter_pi::<S>();
    let lead = ordered_sum(S::select(large, quarter.hi, zero), t);
    let tail = t * z * ATAN.at(z) + lost;
    Pair { hi: lead.hi, lo: lead.lo + (tail + S::select(large, quarter.lo, zero)) }
}

/// `m·π/2 − x`, where `m` is 1 or 2 and `x` at most π/2.
#[inline(always)]
fn from_right_angles<S: Float>(m: i64, x: Pair<S>) -> Pair<S> {
    let (quarter, m) = (quarter_pi::<S>(), S::whole(2 * m));
    let lead = ordered_sum(m * quarter.hi, -x.hi);
    Pair { hi: lead.hi, lo: lead.lo + (m * quarter.lo - x.lo) }
}

/// The pair where `mask`, else the other.
#[inline(always)]
fn choose<S: Float>(mask: S::Mask, a: Pair<S>, b: Pair<S>) -> Pair<S> {
    Pair { hi: S::select(mask, a.hi, b.hi), lo: S::select(mask, a.lo, b.lo) }
}

/// Inverse tangent. Error ≤ 1.5 ULP in binary32, 1 in binary64.
#[inline(always)]
pub fn atan<S: Float>(x: S) -> S {
    let one = S::whole(1);
    let a = x.abs();
    let steep = a.gt(one);
    let angle = atan_ratio(S::select(steep, one, a), S::select(steep, a, one));
    let angle = choose(steep, from_right_angles(1, angle), angle);
    let value = angle.value().copysign(x);
    S::select(x.is_nan(), x, value)
}

/// The angle of the point (`x`, `y`) in (−π, π], with the signed zeros and infinities of IEEE 754.
/// Error ≤ 1.5 ULP.
#[inline(always)]
pub fn atan2<S: Float>(y: S, x: S) -> S {
    let (zero, one) = (S::whole(0), S::whole(1));
    let (a, b) = (y.abs(), x.abs());
    let steep = a.gt(b);
    let (low, high) = (S::select(steep, b, a), S::select(steep, a, b));
    // Huge numbers are scaled so that their sum is finite; two infinities stand at 45°, and the
    // origin at 0°.
    let huge = high.gt(S::pick(1.0e38, 1.0e308));
    let scale = S::select(huge, S::lit(0.25), one);
    let both = low.eq(S::infinity());
    let low = S::select(both, one, low * scale);
    let high = S::select(both | high.eq(zero), one, high * scale);
    let angle = atan_ratio(low, high);
    let angle = choose(steep, from_right_angles(1, angle), angle);
    let left = x.sign_bits().ne(S::Bits::whole(0));
    let angle = choose(left, from_right_angles(2, angle), angle);
    let value = angle.value().copysign(y);
    S::select(x.is_nan() | y.is_nan(), S::nan(), value)
}
