//! Arithmetic, rounding and selection.

use super::Elementwise;
use crate::dtype::DType;
use crate::error;
use crate::ops::emit::{Expr, throw};
use crate::scalar::{self, Int, Step};

/// 1 where the first wins, ½ at a tie, 0 elsewhere.
fn share<'e>(wins: Expr<'e>, a: Expr<'e>, b: Expr<'e>) -> Expr<'e> {
    let dtype = if a.is_number() { b.dtype() } else { a.dtype() };
    wins.cast(dtype) + 0.5 * a.equal(b).cast(dtype)
}

/// Integer power by squaring; negative exponents truncate `base^exponent` to a whole number.
#[inline(always)]
fn int_pow<S: Int>(base: S, exponent: S) -> S {
    let (zero, one) = (S::whole(0), S::whole(1));
    let odd = |n: S| (n & one).eq(one);
    let (mut power, mut factor, mut bits) = (one, base, exponent);
    for _ in 0..63 {
        power = S::select(odd(bits), power * factor, power);
        factor = factor * factor;
        bits = bits.right(1);
    }
    let of_minus_one = S::select(odd(exponent), -one, one);
    let unit = S::select(base.eq(one), one, S::select(base.eq(-one), of_minus_one, zero));
    S::select(exponent.lt(zero), unit, power)
}

/// The op of one operand that gives its power to a number, with the bits of [`pow`]: the formula of
/// that has these products for the second power, and but for float64 for the third.
pub fn known_power(dtype: DType, exponent: f64) -> Option<&'static Elementwise> {
    match exponent {
        2.0 => Some(&square),
        3.0 if dtype != DType::F64 => Some(&third_power),
        _ => None,
    }
}

elementwise! {
    /// Sum of two tensors, element by element.
    ///
    /// Integers wrap; truth values are joined by "or".
    Method add(a, b) -> Same { Numeric: a + b, Bool: a | b }
    domain [-3.0, 3.0], [-3.0, 3.0];
    vjp(g) { a: g, b: g }

    /// Difference of two tensors, element by element.
    ///
    /// Integers wrap.
    Method subtract(a, b) -> Same { Numeric: a - b }
    also(sub)
    domain [-3.0, 3.0], [-3.0, 3.0];
    vjp(g) { a: g, b: (-g) }

    /// Product of two tensors, element by element.
    ///
    /// Integers wrap; truth values are joined by "and".
    Method multiply(a, b) -> Same { Numeric: a * b, Bool: a & b }
    also(mul)
    domain [-3.0, 3.0], [-3.0, 3.0];
    vjp(g) { a: (g * b), b: (g * a) }

    /// Quotient of two floating tensors; the function `divide` casts integers first.
    Hidden quotient(a, b) as "divide" -> Same { Float: a / b }
    domain [-3.0, 3.0], [0.5, 3.0];
    vjp(g, y) { a: (g / b), b: (-(g * y / b)) }

    /// Quotient rounded towards minus infinity.
    ///
    /// Integers: `x // 0` is 0. Floats: the plain quotient where either operand is infinite. The
    /// gradient is zero.
    Method floor_divide(a, b) -> Same { Float: scalar::floor_divide(a, b), Int: a.floor_divide(b) }
    also(floordiv)
    domain [-7.3, 7.1], [0.6, 2.9];
    vjp(g) { a: (g.zeros_like()), b: (g.zeros_like()) }

    /// Remainder with the sign of the divisor, as Python's `%`.
    ///
    /// Integers: `x % 0` is 0. Gradient: 1 by the dividend, `-floor(a / b)` by the divisor.
    Method remainder(a, b) -> Same { Float: scalar::remainder(a, b), Int: a.remainder(b) }
    also(mod)
    domain [-7.3, 7.1], [0.6, 2.9];
    vjp(g) { a: g, b: (-(g * a.floor_divide(b))) }

    /// The negative of each element. Integers wrap.
    Method negative(x) -> Same { Numeric: -x }
    also(neg)
    domain [-3.0, 3.0];
    vjp(g) { x: (-g) }

    /// Absolute value of each element.
    ///
    /// The gradient at 0 is 0. The smallest signed integer wraps to itself.
    Method abs(x) -> Same { Numeric: x.abs() }
    also(absolute)
    domain [-3.0, 3.0];
    vjp(g) { x: (g * x.sign()) }

    /// Sign of each element: -1, 0 (for -0.0 too) or 1; NaN stays NaN.
    Method sign(x) -> Same { Numeric: x.sign() }
    also(sgn)
    domain [-3.0, 3.0];
    vjp(g) { x: (g.zeros_like()) }

    /// Square of each element. Integers wrap.
    Method square(x) -> Same { Numeric: x * x }
    domain [-3.0, 3.0];
    vjp(g) { x: (g * 2.0 * x) }

    /// Third power of each element. Integers wrap.
    ///
    /// What `x ** 3` is computed as, but in float64, where two products would be less exact.
    Hidden third_power(x) -> Same { Float: scalar::third_power(x), Int: x * x * x }
    domain [-3.0, 3.0];
    vjp(g) { x: (g * 3.0 * x.square()) }

    /// One divided by each element.
    Method reciprocal(x) -> Same { Float: S::lit(1.0) / x }
    domain [0.5, 3.0];
    vjp(g, y) { x: (-(g * y * y)) }

    /// The larger of two elements; NaN wins.
    ///
    /// At a tie each operand gets half the gradient.
    Method maximum(a, b) -> Same { Numeric: a.maximum(b) }
    domain [-3.0, 3.0], [-3.0, 3.0];
    vjp(g) {
        a: (g * share(a.greater(b), a, b)),
        b: (g * share(b.greater(a), a, b)),
    }

    /// The smaller of two elements; NaN wins.
    ///
    /// At a tie each operand gets half the gradient.
    Method minimum(a, b) -> Same { Numeric: a.minimum(b) }
    domain [-3.0, 3.0], [-3.0, 3.0];
    vjp(g) {
        a: (g * share(a.less(b), a, b)),
        b: (g * share(b.less(a), a, b)),
    }

    /// The magnitude of the first with the sign of the second.
    Function copysign(a, b) -> Same { Float: a.copysign(b) }
    domain [-3.0, 3.0], [-3.0, 3.0];
    vjp(g) { a: (g * a.sign() * g.scalar(1.0).copysign(b)), b: (g.zeros_like()) }

    /// The next number on the way to the second; the function `nextafter` chooses among dtypes.
    Hidden next_float(a, b) as "nextafter" -> Same { Float: scalar::next_after(a, b, Step::Own) }
    domain [-3.0, 3.0], [-3.0, 3.0];
    vjp(g) { a: g, b: zero }

    /// The next number of float16, for operands that are such.
    Hidden next_float16(a, b) -> Same { Float: scalar::next_after(a, b, Step::Half) }
    domain [-3.0, 3.0], [-3.0, 3.0];
    vjp(g) { a: g, b: zero }

    /// The next number of bfloat16, for operands that are such.
    Hidden next_bfloat16(a, b) -> Same { Float: scalar::next_after(a, b, Step::Brain) }
    domain [-3.0, 3.0], [-3.0, 3.0];
    vjp(g) { a: g, b: zero }

    /// The first power the second.
    ///
    /// A negative base with a fractional exponent gives NaN. Integers wrap; a negative int as their
    /// exponent is refused, negative elements of a tensor of exponents give 0 (or ±1 for a base of
    /// ±1). Gradient: by the base `b a^(b-1)` (0 where b is 0), by the exponent `a^b log a` (0
    /// where the base is 0).
    Method pow(a, b) -> Same { Float: scalar::pow(a, b), Int: int_pow(a, b) }
    also(power)
    domain [0.3, 2.5], [-2.0, 2.0];
    vjp(g, y) {
        a: (b.equal(b.scalar(0.0)).select(g.scalar(0.0), g * b * a.pow(b - 1.0))),
        b: (a.equal(a.scalar(0.0)).select(g.scalar(0.0), g * y * a.log())),
    }

    /// The largest whole number not above each element. Integers stay.
    Method floor(x) -> Same { Float: x.floor(), Int: x }
    domain [-3.3, 3.4];
    vjp(g) { x: (g.zeros_like()) }

    /// The smallest whole number not below each element. Integers stay.
    Method ceil(x) -> Same { Float: x.ceil(), Int: x }
    domain [-3.3, 3.4];
    vjp(g) { x: (g.zeros_like()) }

    /// Each element without its fraction. Integers stay.
    Method trunc(x) -> Same { Float: x.trunc(), Int: x }
    also(fix)
    domain [-3.3, 3.4];
    vjp(g) { x: (g.zeros_like()) }

    /// Each element rounded to the nearest whole number, halves to even. Integers stay.
    Method round(x) -> Same { Float: x.round(), Int: x }
    domain [-3.3, 3.4];
    vjp(g) { x: (g.zeros_like()) }

    /// Elements of the first where the condition holds, of the second elsewhere.
    Function select(condition, a, b) as "where" -> Same {
        Numeric: S::select(condition, a, b),
        Bool: (condition & a) | (!condition & b),
    }
    domain [0.0, 1.0], [-3.0, 3.0], [-3.0, 3.0];
    vjp(g) {
        condition: zero,
        a: (condition.select(g, g.scalar(0.0))),
        b: (condition.select(g.scalar(0.0), g)),
    }

    /// Each element as it is; no gradient flows.
    Hidden stop_gradient(x) -> Same { Numeric: x, Bool: x }
    domain [-3.0, 3.0];
    vjp(g) { x: zero }

    /// Each element as it is: a value of a function whose gradient rule is written in Python,
    /// through which the rule says no gradient. Asking for one is an error.
    Hidden custom_rule(x) -> Same { Float: x }
    domain [-3.0, 3.0];
    vjp(g) { x: (unseen_rule(g)) }
}

fn unseen_rule(_: Expr<'_>) -> Expr<'_> {
    let what = "its gradient rule is not seen here";
    let facts = "it saves what is no argument, or updates a tensor outside";
    throw(error::gradient("Function", what, facts))
}
