//! Hyperbolic functions and their inverses.

use super::Float;
use super::exponential::{exp_normal, half_exp};
use super::logarithm::{log, log1p_pair};
use super::pair::{Pair, ordered_sum, sum};
use super::polynomial::Polynomial;

/// `(sinh x − x) / x³` in `x²`, for `|x| ≤ 1`.
const SINH: Polynomial<4, 8> = Polynomial(
    [0.16666667, 0.008333311, 0.00019842632, 2.783963e-06],
    [
        0.16666666666666666,
        0.00833333333333357,
        0.0001984126984106656,
        2.7557319307075695e-06,
        2.505209021921527e-08,
        1.606122730807431e-10,
        7.511027727501428e-13,
        6.2621922284645324e-15,
    ],
);

/// `(tanh x − x) / x³` in `x²`, for `|x| ≤ 0.55`, and near enough up to 0.6 in binary32.
const TANH: Polynomial<5, 11> = Polynomial(
    [-0.33333316, 0.13332541, -0.053846966, 0.02104736, -0.0062369104],
    [
        -0.333333333333333,
        0.1333333333332656,
        -0.053968253963726474,
        0.021869488384937286,
        -0.008863232587063489,
        0.003592091888064921,
        -0.001455541925840487,
        0.0005884406197081016,
        -0.0002333713887457182,
        8.33012372764658e-05,
        -1.9484849111977577e-05,
    ],
);

/// Hyperbolic sine. Error ≤ 2 ULP in binary32, 1.5 in binary64.
#[inline(always)]
pub fn sinh<S: Float>(x: S) -> S {
    let a = x.abs();
    let z = x * x;
    let small = x + x * (z * SINH.at(z));
    let half = half_exp(a);
    let large = half - S::lit(0.25) / half;
    S::select(a.lt(S::whole(1)), small, large.copysign(x))
}

/// Hyperbolic cosine. Error ≤ 1.5 ULP.
#[inline(always)]
pub fn cosh<S: Float>(x: S) -> S {
    let half = half_exp(x.abs());
    half + S::lit(0.25) / half
}

/// Hyperbolic tangent. Error ≤ 1.5 ULP.
#[inline(always)]
pub fn tanh<S: Float>(x: S) -> S {
    let a = x.abs();
    let z = x * x;
    let small = x.multiply_add(z * TANH.fused(z), x);
    let (one, two) = (S::whole(1), S::whole(2));
    // Beyond 20 the result is 1; what is NaN is so by the other formula.
    let b = a.at_most(S::whole(20));
    let large = one - two / (exp_normal(b + b) + one);
    // A copied sign makes the result for −0 right.
    S::select(a.ge(S::pick(0.6, 0.55)), large, small).copysign(x)
}

/// Inverse hyperbolic sine. Error ≤ 1.5 ULP.
#[inline(always)]
pub fn asinh<S: Float>(x: S) -> S {
    let one = S::whole(1);
    let a = x.abs();
    // asinh a = log(1 + a + a²/(1 + √(a² + 1))); for large a, log 2a.
    let large = a.gt(S::pick(1.0e6, 1.0e14));
    let b = S::select(large, one, a);
    let z = b * b;
    let near = log1p_pair(sum(b, z / (one + (z + one).sqrt())));
    let far = log(a) + S::lit(std::f64::consts::LN_2);
    S::select(large, far, near).copysign(x)
}

/// Inverse hyperbolic cosine; NaN below 1. Error ≤ 2 ULP in binary32, 1.5 in binary64.
#[inline(always)]
pub fn acosh<S: Float>(x: S) -> S {
    let (one, two) = (S::whole(1), S::whole(2));
    // With t = x − 1: log(1 + t + √(2t + t²)); for large x, log 2x.
    let large = x.gt(S::pick(1.0e6, 1.0e14));
    let t = S::select(large, one, x - one);
    let near = log1p_pair(sum((two * t + t * t).sqrt(), t));
    let far = log(x) + S::lit(std::f64::consts::LN_2);
    S::select(x.lt(one), S::nan(), S::select(large, far, near))
}

/// Inverse hyperbolic tangent; NaN outside [−1, 1]. Error ≤ 1.5 ULP.
#[inline(always)]
pub fn atanh<S: Float>(x: S) -> S {
    let one = S::whole(1);
    let a = x.abs();
    // atanh a = log(1 + 2a/(1 − a)) / 2, where 2a/(1 − a) = 2a + 2a²/(1 − a) for small a.
    let double = a + a;
    let rest = one - a;
    let small = ordered_sum(double, double * a / rest);
    let large = Pair { hi: double / rest, lo: S::whole(0) };
    let is_small = a.lt(S::lit(0.5));
    let hi = S::select(is_small, small.hi, large.hi);
    let lo = S::select(is_small, small.lo, large.lo);
    let value = S::lit(0.5) * log1p_pair(Pair { hi, lo });
    S::select(a.gt(one), S::nan(), value.copysign(x))
}
