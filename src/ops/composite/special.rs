//! Special functions, by SciPy's names and orders of arguments.

use std::f64::consts::{PI, SQRT_2};

use super::random::full_of;
use crate::dtype::DType;
use crate::ops::emit::Expr;

composite! {
    /// `-x log x`, the summand of entropy: 0 at 0, -∞ below.
    special function entr(x: FloatTensor) -> One {
        in_full([x], |[x]| {
            let zero = x.scalar(0.0);
            let outside = x.equal(zero).select(zero, x.scalar(f64::NEG_INFINITY));
            let has_log = x.greater(zero).logical_or(x.isnan());
            has_log.select(-(has_log.select(x, x.scalar(1.0)).log() * x), outside)
        })
    }
    vjp(g, y) {
        x: in_full([g, x], |[g, x]| {
            let is_outside = x.less(x.scalar(0.0));
            g * is_outside.select(x.scalar(f64::NAN), -x.log() - 1.0)
        })
    }

    /// `x log y`, and 0 where `x` is 0 and `y` not NaN. Broadcasts.
    special function xlogy(x: FloatOrNumber, y: FloatOrNumber) -> One {
        in_full([x, y], |[x, y]| zero_times(x, y, y.log()))
    }
    vjp(g, z) {
        x: in_full([g, y], |[g, y]| g * y.log()),
        y: in_full([g, x, y], |[g, x, y]| g * (x / y)),
    }

    /// `x log(1 + y)`, and 0 where `x` is 0 and `y` not NaN. Broadcasts.
    special function xlog1py(x: FloatOrNumber, y: FloatOrNumber) -> One {
        in_full([x, y], |[x, y]| zero_times(x, y, y.log1p()))
    }
    vjp(g, z) {
        x: in_full([g, y], |[g, y]| g * y.log1p()),
        y: in_full([g, x, y], |[g, x, y]| g * (x / (y + 1.0))),
    }

    /// The normal distribution function: how probable a standard normal number below `x` is.
    special function ndtr(x: FloatTensor) -> One {
        in_full([x], |[x]| (x * (-1.0 / SQRT_2)).erfc() * 0.5)
    }

    /// `log(x / (1 - x))`, the inverse of `sigmoid`; ±∞ at 1 and 0, NaN outside.
    special function logit(x: FloatTensor) -> One {
        in_full([x], |[x]| x.log() - (-x).log1p())
    }
    vjp(g, y) { x: in_full([g, x], |[g, x]| g / (x * (-x + 1.0))) }

    /// `sin(π x) / (π x)`, and 1 at 0, with derivatives of any order there.
    special function sinc(x: FloatTensor) -> One {
        in_full([x], |[x]| {
            let t = x * PI;
            let is_near = t.abs().less(t.scalar(0.25));
            let far = is_near.select(t.scalar(1.0), t);
            is_near.select(series(t * t), far.sin() / far)
        })
    }
}

/// A formula of operands that are calculated in float32 where their dtype is narrower, and rounded
/// once.
fn in_full<'e, const N: usize>(
    operands: [Expr<'e>; N],
    formula: impl FnOnce([Expr<'e>; N]) -> Expr<'e>,
) -> Expr<'e> {
    let dtypes = operands.iter().filter(|x| !x.is_number()).map(|x| x.dtype());
    let dtype = dtypes.reduce(|a, b| a.promote(b).unwrap_or(DType::F32)).unwrap_or(DType::F32);
    let full = full_of(dtype);
    formula(operands.map(|x| x.cast(full))).cast(dtype)
}

/// The Taylor series of `sin(t) / t` in `t²`; for `|t| < 1/4` exact to float64's last digit.
fn series(square: Expr<'_>) -> Expr<'_> {
    let mut sum = square.scalar(1.0).tensor();
    for k in (1..=6).rev() {
        sum = sum * square * (-1.0 / f64::from(2 * k * (2 * k + 1))) + 1.0;
    }
    sum
}

/// `x · logarithm`, and 0 where `x` is 0 and `y` not NaN.
fn zero_times<'e>(x: Expr<'e>, y: Expr<'e>, logarithm: Expr<'e>) -> Expr<'e> {
    let is_nothing = x.equal(x.scalar(0.0)).logical_and(y.isnan().logical_not());
    is_nothing.select(x.scalar(0.0), x * logarithm)
}
