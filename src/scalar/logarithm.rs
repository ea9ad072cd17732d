//! Logarithms.
//!
//! All take `x = 2ᵏ·m` with `m` in `[√½, √2)`, and `log m = 2 atanh s` with `s = (m − 1)/(m + 1)`.

use super::pair::{Pair, ordered_sum, product};
use super::polynomial::Polynomial;
use super::{Float, Int, Scalar};

/// `(2 atanh s − 2s) / s³` in `s²`, for `|s| ≤ 0.1716`.
const LOG: Polynomial<3, 7> = Polynomial(
    [0.66666776, 0.39977568, 0.2987146],
    [
        0.6666666666666735,
        0.39999999999409347,
        0.2857142874368872,
        0.22222198428703208,
        0.18183572369636616,
        0.1531383180663476,
        0.14798262026821118,
    ],
);

/// `((2 atanh s − 2s)/s³ − 2/3) / (s² ln 2)` in `s²`, for `|s| ≤ 0.1716`.
const LOG2: Polynomial<3, 8> = Polynomial(
    [0.5770802, 0.41184977, 0.337827],
    [
        0.5770780163555851,
        0.4121985831113461,
        0.3205988979126235,
        0.26230819868366356,
        0.22195226828038303,
        0.19240141225131202,
        0.1684495170335067,
        0.17283514369489056,
    ],
);

/// `k` and `m` with `x = 2ᵏ·m` and `m` in `[√½, √2)`, for positive finite `x`.
#[inline(always)]
fn decompose<S: Float>(x: S) -> (S, S) {
    let zero = S::whole(0);
    let tiny = x.lt(S::smallest_normal());
    let x = S::select(tiny, x * S::pick(33554432.0, 18014398509481984.0), x);
    let sqrt_half = S::lit(std::f64::consts::FRAC_1_SQRT_2).bits();
    let offset = x.bits() - sqrt_half;
    let fraction = S::Bits::whole((1 << S::SIGNIFICAND) - 1);
    let k = S::of_small(offset.right(S::SIGNIFICAND));
    let m = S::of_bits((offset & fraction) + sqrt_half);
    (k - S::select(tiny, S::pick(25.0, 54.0), zero), m)
}

/// `value` for positive finite `x`; the limits and NaN elsewhere.
#[inline(always)]
fn special<S: Float>(x: S, value: S) -> S {
    let zero = S::whole(0);
    let rest = S::select(x.lt(zero), S::nan(), x);
    let rest = S::select(x.eq(zero), -S::infinity(), rest);
    S::select(x.gt(zero) & x.lt(S::infinity()), value, rest)
}

/// `k·ln 2 + log(1 + f) + lo` for `√½ ≤ 1 + f ≤ √2`.
///
/// With `s = f/(2 + f)` and `R = 2 atanh s − 2s`: `2s = f − s·f` and `s·f = f²/2 − s·f²/2`,
/// so `log(1 + f) = f − (f²/2 − s·(f²/2 + R/s))`, whose leading term has no error.
#[inline(always)]
fn log_sum<S: Float>(k: S, f: S, lo: S) -> S {
    let s = f / (S::whole(2) + f);
    let z = s * s;
    let square = S::lit(0.5) * f * f;
    let tail = s * (square + z * LOG.at(z));
    let ln2 = (
        S::pick(0.693145751953125, 0.6931471805598903),
        S::pick(1.4286068e-06, 5.497923018708371e-14),
    );
    k * ln2.0 - ((square - (tail + (k * ln2.1 + lo))) - f)
}

/// Natural logarithm. Error ≤ 1 ULP.
#[inline(always)]
pub fn log<S: Float>(x: S) -> S {
    let (k, m) = decompose(x);
    special(x, log_sum(k, m - S::whole(1), S::whole(0)))
}

/// `log(1 + x)`, accurate near 0. Error ≤ 1 ULP.
#[inline(always)]
pub fn log1p<S: Float>(x: S) -> S {
    log1p_pair(Pair { hi: x, lo: S::whole(0) })
}

/// `log(1 + hi + lo)` where `lo` is of the order of the error of `hi`.
#[inline(always)]
pub(super) fn log1p_pair<S: Float>(x: Pair<S>) -> S {
    let one = S::whole(1);
    let u = one + x.hi;
    let (k, m) = decompose(u);
    // What rounding lost from u, and what that means for the logarithm. Near 0 nothing is rounded.
    let near = x.hi.gt(S::lit(-0.29)) & x.hi.lt(S::lit(0.41));
    let lost = S::select(x.hi.lt(one), x.hi - (u - one), one - (u - x.hi));
    let f = S::select(near, x.hi, m - one);
    let k = S::select(near, S::whole(0), k);
    let lo = (S::select(near, S::whole(0), lost) + x.lo) / u;
    let value = special(u, log_sum(k, f, lo));
    // A copied sign makes the result for −0 right.
    value.copysign(x.hi)
}

/// `log₂ x` of a positive finite number to about 1.4 times its precision.
#[inline(always)]
pub(super) fn log2_pair<S: Float>(x: S) -> Pair<S> {
    let (k, m) = decompose(x);
    let f = m - S::whole(1);
    let d = ordered_sum(S::whole(2), f);
    // s = f/d, and what the quotient leaves.
    let q = f / d.hi;
    let p = product(q, d.hi);
    let s = ordered_sum(q, (((f - p.hi) - p.lo) - q * d.lo) / d.hi);
    let z = s.times(s);
    // log₂ m = s·(c₀ + z·(c₁ + z·P(z)))
    let c1 = Pair::constant(
        (0.9617967009544373, -7.028462e-09),
        (0.9617966939259756, 5.0577616648125907e-17),
    );
    let c0 = Pair::constant(
        (2.885390043258667, 3.851926e-08),
        (2.8853900817779268, 4.0710547481862066e-17),
    );
    let inner = z.times(c1);
    let inner = Pair { hi: inner.hi, lo: inner.lo + z.hi * z.hi * LOG2.at(z.hi) };
    let factor = ordered_sum(c0.hi, inner.hi);
    let factor = Pair { hi: factor.hi, lo: factor.lo + (inner.lo + c0.lo) };
    s.times(factor).plus_larger(k)
}

/// Logarithm to base 2. Error ≤ 1 ULP.
#[inline(always)]
pub fn log2<S: Float>(x: S) -> S {
    special(x, log2_pair(x).value())
}

/// Logarithm to base 10. Error ≤ 1 ULP.
#[inline(always)]
pub fn log10<S: Float>(x: S) -> S {
    let log10_2 = Pair::constant(
        (0.3010300099849701, -1.4320989e-08),
        (std::f64::consts::LOG10_2, -2.8037281277851704e-18),
    );
    special(x, log2_pair(x).times(log10_2).value())
}
