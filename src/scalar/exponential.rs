//! Exponentials, powers, and what machine learning builds from them.
//!
//! All reduce `x = k·ln 2 + r` with `|r| ≤ ln 2 / 2`, so that `eˣ = 2ᵏ·eʳ`, or in base 2 likewise.

use super::logarithm::{log1p, log2_pair};
use super::pair::{Pair, ordered_sum, product};
use super::polynomial::Polynomial;
use super::{Float, Int, Scalar};

/// `(eʳ − 1 − r) / r²` for `|r| ≤ ln 2 / 2`.
const EXP: Polynomial<5, 11> = Polynomial(
    [0.5, 0.16666539, 0.041666612, 0.008367099, 0.0013917658],
    [
        0.5,
        0.16666666666666677,
        0.0416666666666667,
        0.008333333333321532,
        0.001388888888886672,
        0.0001984126988640109,
        2.4801587360810283e-05,
        2.7557243911665485e-06,
        2.755724252849385e-07,
        2.510914738849977e-08,
        2.092451826747294e-09,
    ],
);

/// `(2ʳ − 1) / r − 11/16` for `|r| ≤ 1/2`.
const EXP2: Polynomial<6, 12> = Polynomial(
    [0.0056471806, 0.2402265, 0.05550327, 0.009618003, 0.0013400537, 0.00015476595],
    [
        0.00564718055994531,
        0.24022650695910072,
        0.0555041086648217,
        0.009618129107628496,
        0.0013333558146389867,
        0.0001540353039334052,
        1.5252733856824048e-05,
        1.3215486833543512e-06,
        1.017805094899829e-07,
        7.054888067462921e-09,
        4.4567152339451945e-10,
        2.5742063593554158e-11,
    ],
);

/// `k`, `r` and a rest with `x + lo = k·ln 2 + r + rest`.
#[inline(always)]
fn reduce<S: Float>(x: S, lo: S) -> (S::Bits, S, S) {
    let (upper, lower) = ln_2::<S>();
    let (n, k) = (x * S::lit(std::f64::consts::LOG2_E)).round_small();
    let hi = x - n * upper;
    let step = n * lower - lo;
    let r = hi - step;
    (k, r, (hi - r) - step)
}

/// The upper part of ln 2, short, so that its product with an exponent is exact, and the rest.
#[inline(always)]
pub(super) fn ln_2<S: Float>() -> (S, S) {
    (S::pick(0.693145751953125, 0.6931471805598903), S::pick(1.4286068e-06, 5.497923018708371e-14))
}

/// `k` and `r` with `x = k·ln 2 + r`, for numbers that fuse.
#[inline(always)]
fn reduce_fused<S: Float>(x: S) -> (S::Bits, S) {
    let (hi, lo) = ln_2::<S>();
    let (n, k) = x.round_product(S::lit(std::f64::consts::LOG2_E));
    (k, n.multiply_add(-lo, n.multiply_add(-hi, x)))
}

/// `k` and `p` with `eˣ = 2ᵏ·p`, where `x` is held.
#[inline(always)]
fn exp_parts<S: Float>(x: S) -> (S::Bits, S) {
    let one = S::whole(1);
    if S::FUSES {
        let (k, r) = reduce_fused(x);
        let q = EXP.fused(r).multiply_add(r, one);
        return (k, q.multiply_add(r, one));
    }
    let (k, r, rest) = reduce(x, S::whole(0));
    (k, one + (r + (r * r * EXP.at(r) + rest)))
}

/// `x` held where neither `eˣ` nor `x·eˣ` is surely 0, nor `eˣ` surely infinite.
#[inline(always)]
fn hold<S: Float>(x: S) -> S {
    x.at_least(S::pick(-115.0, -760.0)).at_most(S::pick(90.0, 712.0))
}

/// `eˣ·2ʲ`, also where `eˣ` itself would overflow or vanish.
#[inline(always)]
fn exp_scaled<S: Float>(x: S, j: i64) -> S {
    let (k, p) = exp_parts(hold(x));
    p.scale(k + S::Bits::whole(j))
}

/// `factor·eˣ` with the error of the last sum alone, for a factor within a few binades of 1.
#[inline(always)]
pub(super) fn exp_times<S: Float>(factor: Pair<S>, x: Pair<S>) -> S {
    let (k, r, rest) = reduce(hold(x.hi), x.lo);
    let em1 = r + (r * r).multiply_add(EXP.fused(r), rest);
    let lo = factor.lo.multiply_add(em1, factor.lo);
    (factor.hi + factor.hi.multiply_add(em1, lo)).scale(k)
}

/// `eˣ / 2`, which overflows later than `eˣ`.
#[inline(always)]
pub(super) fn half_exp<S: Float>(x: S) -> S {
    exp_scaled(x, -1)
}

/// `eˣ`. Error ≤ 1 ULP.
#[inline(always)]
pub fn exp<S: Float>(x: S) -> S {
    exp_scaled(x, 0)
}

/// [`exp`], with the same bits, but where [`exp_is_rare`].
#[inline(always)]
pub fn exp_often<S: Float>(x: S) -> S {
    if S::HAS_RARE { exp_normal(x) } else { exp(x) }
}

/// Whether `eˣ` may be no normal number, or needs care to be one.
#[inline(always)]
pub fn exp_is_rare<S: Float>(x: S) -> bool {
    x.is_beyond(if S::DOUBLE { 708.0 } else { 87.0 })
}

/// [`exp`], with the same bits, where the result is a normal number or NaN; arbitrary elsewhere.
#[inline(always)]
pub fn exp_normal<S: Float>(x: S) -> S {
    let (k, p) = exp_parts(x);
    p * S::power_of_two(k)
}

/// `2^(hi + lo)`; NaN in `hi` stays.
#[inline(always)]
fn exp2_pair<S: Float>(x: Pair<S>) -> S {
    let (n, k) = x.hi.round_small();
    let r = (x.hi - n) + x.lo;
    // r·11/16 is nearly always exact.
    let lead = ordered_sum(S::whole(1), r * S::lit(0.6875));
    (lead.hi + (lead.lo + r * EXP2.at(r))).scale(k)
}

/// `2ˣ`. Error ≤ 1 ULP.
#[inline(always)]
pub fn exp2<S: Float>(x: S) -> S {
    let limit = S::pick(151.0, 1080.0);
    exp2_pair(Pair { hi: x.at_least(-limit).at_most(limit), lo: S::whole(0) })
}

/// `eˣ − 1`, accurate near 0. Error ≤ 1.5 ULP in binary32, 1 in binary64.
#[inline(always)]
pub fn expm1<S: Float>(x: S) -> S {
    let one = S::whole(1);
    let x_held = x.at_least(S::pick(-25.0, -45.0)).at_most(S::pick(90.0, 712.0));
    let (k, r, rest) = reduce(x_held, S::whole(0));
    let tail = r * r * EXP.at(r) + rest;
    // 2ᵏ(eʳ − 1) + (2ᵏ − 1) = 2ᵏ((1 − 2⁻ᵏ) + r + tail). For k > 100 the power of two is nothing.
    let power = S::power_of_two(-k.minimum(S::Bits::whole(100)));
    let offset = ordered_sum(one, -power);
    let s = ordered_sum(offset.hi, r);
    // A copied sign makes the result for −0 right.
    (s.hi + (s.lo + (offset.lo + tail))).scale(k).copysign(x)
}

/// `1 / (1 + e⁻ˣ)`. Error ≤ 2 ULP in binary32, 1.5 in binary64.
#[inline(always)]
pub fn sigmoid<S: Float>(x: S) -> S {
    sigmoid_of(x, exp(-x.abs()))
}

/// [`sigmoid`], with the same bits, but where [`exp_is_rare`].
#[inline(always)]
pub fn sigmoid_often<S: Float>(x: S) -> S {
    sigmoid_of(x, exp_often(-x.abs()))
}

/// [`sigmoid`] with `e^(−|x|)`.
#[inline(always)]
fn sigmoid_of<S: Float>(x: S, e: S) -> S {
    let one = S::whole(1);
    let d = ordered_sum(one, e);
    let q = S::select(x.lt(S::whole(0)), e, one) / d.hi;
    // What rounding lost from the divisor; 1 − e/2 is near enough to its reciprocal.
    let lost = d.lo * S::lit(-0.5).multiply_add(e, one);
    (-q).multiply_add(lost, q)
}

/// `k` and `em1` with `e^(−a) = 2ᵏ·(1 + em1)`, from `−a`, held where that vanishes.
#[inline(always)]
pub(super) fn decay_parts<S: Float>(minus: Pair<S>) -> (S::Bits, S) {
    let (k, r, rest) = reduce(minus.hi, minus.lo);
    (k, r + (r * r).multiply_add(EXP.fused(r), rest))
}

/// The same for `−a = minus·(w.hi + w.lo)`, which need not be known to more digits than the rest of
/// its reduction, for numbers that fuse.
#[inline(always)]
pub(super) fn decay_product<S: Float>(minus: S, w: Pair<S>) -> (S::Bits, S) {
    let (hi, lo) = ln_2::<S>();
    let (n, k) = (minus * w.hi).round_product(S::lit(std::f64::consts::LOG2_E));
    let r = minus.multiply_add(w.hi, -(n * hi)) + minus.multiply_add(w.lo, -(n * lo));
    (k, (r * r).multiply_add(EXP.fused(r), r))
}

/// `k` and `em1` with `e^(−a²/2) = 2ᵏ·(1 + em1)`, where `a` is held.
#[inline(always)]
pub(super) fn normal_parts<S: Float>(a: S) -> (S::Bits, S) {
    let half = S::lit(-0.5);
    if S::FUSES {
        let ((hi, lo), minus) = (ln_2::<S>(), half * a);
        let (n, k) = (minus * a).round_product(S::lit(std::f64::consts::LOG2_E));
        let r = n.multiply_add(-lo, minus.multiply_add(a, n * -hi));
        return (k, (r * r).multiply_add(EXP.fused(r), r));
    }
    let square = product(a, a);
    decay_parts(Pair { hi: half * square.hi, lo: half * square.lo })
}

/// `e^(−a)`, as `1 + em1` times two powers of two, and all multiplied.
struct Decay<S> {
    em1: S,
    powers: [S; 2],
    e: S,
}

/// `e^(−a)` from its parts.
#[inline(always)]
fn decay<S: Float>((k, em1): (S::Bits, S)) -> Decay<S> {
    let half = k.right(1);
    let powers = [S::power_of_two(half), S::power_of_two(k - half)];
    Decay { em1, powers, e: (S::whole(1) + em1) * powers[0] * powers[1] }
}

/// `near·e^(−a) / d` where `mask`, else `far / d`. The powers of two come last, so that nothing is
/// lost where `e^(−a)` by itself is too small for a normal number.
#[inline(always)]
fn decayed<S: Float>(mask: S::Mask, near: S, far: S, d: S, c: &Decay<S>) -> S {
    let one = S::whole(1);
    let q = S::select(mask, near.multiply_add(c.em1, near), far) / d;
    q * S::select(mask, c.powers[0], one) * S::select(mask, c.powers[1], one)
}

/// `x·σ(v)`, with `v` of the sign of `x`, from the parts of `e^(−|v|)`; `held` is `−|x|`, both held
/// where the result for negative numbers vanishes.
#[inline(always)]
pub(super) fn gated<S: Float>(x: S, held: S, parts: (S::Bits, S)) -> S {
    let c = decay(parts);
    decayed(x.lt(S::whole(0)), held, x, S::whole(1) + c.e, &c)
}

/// The same, with the same bits, where `e^(−|v|)` is a normal number, and `x` times that not near
/// the smallest one.
#[inline(always)]
pub(super) fn gated_normal<S: Float>(x: S, held: S, (k, em1): (S::Bits, S)) -> S {
    let (one, power) = (S::whole(1), S::power_of_two(k));
    let near = held.multiply_add(em1, held) * power;
    S::select(x.lt(S::whole(0)), near, x) / (one + (one + em1) * power)
}

/// `σ(v)·(1 + slope·σ(−v))`, with `v` of the sign of `x`, from the parts of `e^(−|v|)`; `held` is
/// `−|slope|`.
///
/// With `e = e^(−|v|)` and `d = 1 + e` that is `(d + |slope|·e) / d²`, or `e·(d − |slope|) / d²`
/// for negative `v`.
#[inline(always)]
pub(super) fn gated_slope<S: Float>(x: S, held: S, parts: (S::Bits, S)) -> S {
    let c = decay(parts);
    let d = S::whole(1) + c.e;
    decayed(x.lt(S::whole(0)), d + held, (-held).multiply_add(c.e, d), d * d, &c)
}

/// `−|x|`, held where `x·eˣ` is surely 0.
#[inline(always)]
fn hold_negative<S: Float>(x: S) -> S {
    (-x.abs()).at_least(S::pick(-115.0, -760.0))
}

/// `x / (1 + e⁻ˣ)`; its limits at ±∞ are −0 and ∞. Error ≤ 3 ULP.
#[inline(always)]
pub fn silu<S: Float>(x: S) -> S {
    let held = hold_negative(x);
    gated(x, held, silu_parts(held))
}

/// [`silu`], with the same bits, but where [`exp_is_rare`].
#[inline(always)]
pub fn silu_often<S: Float>(x: S) -> S {
    if !S::HAS_RARE {
        return silu(x);
    }
    let minus = -x.abs();
    gated_normal(x, minus, silu_parts(minus))
}

/// The parts of `e^(−|x|)`.
#[inline(always)]
fn silu_parts<S: Float>(minus: S) -> (S::Bits, S) {
    if S::FUSES {
        let (k, r) = reduce_fused(minus);
        return (k, (r * r).multiply_add(EXP.fused(r), r));
    }
    decay_parts(Pair { hi: minus, lo: S::whole(0) })
}

/// The derivative of [`silu`]. Error ≤ 6 ULP of the result, or for `x ≥ −1.5` (near its zero at
/// −1.28) of the larger of the result and ½.
#[inline(always)]
pub fn silu_slope<S: Float>(x: S) -> S {
    let held = hold_negative(x);
    gated_slope(x, held, decay_parts(Pair { hi: held, lo: S::whole(0) }))
}

/// `log(1 + eˣ)`. Error ≤ 2 ULP in binary32, 1.5 in binary64.
#[inline(always)]
pub fn softplus<S: Float>(x: S) -> S {
    x.maximum(S::whole(0)) + log1p(exp(-x.abs()))
}

/// `log(1 / (1 + e⁻ˣ))`. Error ≤ 2 ULP in binary32, 1.5 in binary64.
#[inline(always)]
pub fn log_sigmoid<S: Float>(x: S) -> S {
    -softplus(-x)
}

/// `log(eᵃ + eᵇ)`. Error ≤ 1.5 ULP in binary32, 1 in binary64, of the largest of `|a|`, `|b|` and
/// the result: where the result is near 0, it is a difference of larger numbers.
#[inline(always)]
pub fn logaddexp<S: Float>(a: S, b: S) -> S {
    let high = a.maximum(b);
    let sum = high + log1p(exp(-(a - b).abs()));
    // The difference of equal infinities is NaN.
    S::select(a.eq(b) & a.is_infinite(), a, sum)
}

/// `x³` in binary32, with the bits of `x · x · x`. Error ≤ 1.3 ULP: what the first product loses is at
/// most 0.8 of the result's, and where that product is subnormal the result is 0.
#[inline(always)]
pub fn third_power<S: Float>(x: S) -> S {
    x * x * x
}

/// `xʸ` with the special values of IEEE 754: 1 for `x = 1` or `y = 0`, even if the other is NaN;
/// for negative finite `x` a value where `y` is whole, else NaN. Error ≤ 1.5 ULP in binary32, 1 in
/// binary64.
#[inline(always)]
pub fn pow<S: Float>(x: S, y: S) -> S {
    let (zero, one) = (S::whole(0), S::whole(1));
    let base = x.abs();
    let log = log2_pair(base);
    let edge = base.eq(zero) | base.eq(S::infinity());
    let infinite = S::select(base.eq(zero), -S::infinity(), S::infinity());
    let log = Pair { hi: S::select(edge, infinite, log.hi), lo: S::select(edge, zero, log.lo) };
    let p = product(y, log.hi);
    let limit = S::pick(250.0, 2000.0);
    // Of a product that is 0 nothing is known of what rounding lost: y may be the largest number.
    let inside = p.hi.abs().lt(limit) & p.hi.ne(zero);
    let lo = S::select(inside, p.lo + y * log.lo, zero);
    let magnitude = exp2_pair(Pair { hi: p.hi.at_least(-limit).at_most(limit), lo });

    let whole = y.trunc().eq(y);
    let half = y * S::lit(0.5);
    let odd = whole & half.trunc().ne(half);
    let negative = x.sign_bits().ne(S::Bits::whole(0));
    let signed = S::select(negative & odd, -magnitude, magnitude);
    let refused = x.lt(zero) & !whole & !x.is_infinite();
    let result = S::select(refused, S::nan(), signed);
    let result = S::select(x.is_nan() | y.is_nan(), S::nan(), result);
    let minus_one_to_infinity = x.eq(-one) & y.is_infinite();
    let result = S::select(x.eq(one) | y.eq(zero) | minus_one_to_infinity, one, result);
    // So that whoever knows the exponent may multiply instead.
    let result = match S::DOUBLE {
        true => result,
        false => S::select(y.eq(S::whole(3)), third_power(x), result),
    };
    let result = S::select(y.eq(S::whole(2)), x * x, result);
    S::select(y.eq(one), x, result)
}
