//! Powers, exponentials, logarithms and functions built on them.

use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI, LN_2, LN_10};

use crate::scalar;

/// √(2/π)
const SQRT_2_PI: f64 = FRAC_2_SQRT_PI * FRAC_1_SQRT_2;
/// The cubic term of GELU's approximation, as published.
const CUBIC: f64 = 0.044715;

elementwise! {
    /// e to the power of each element.
    Method exp(x) -> Same {
        Float: scalar::exp_often(x) => beyond(scalar::exp_is_rare(x), scalar::exp(x)),
    }
    domain [-4.0, 4.0];
    vjp(g, y) { x: (g * y) }

    /// 2 to the power of each element.
    Method exp2(x) -> Same { Float: scalar::exp2(x) }
    domain [-4.0, 4.0];
    vjp(g, y) { x: (g * y * LN_2) }

    /// `exp(x) - 1`, exact near 0.
    Method expm1(x) -> Same { Float: scalar::expm1(x) }
    domain [-4.0, 4.0];
    vjp(g, y) { x: (g * (y + 1.0)) }

    /// Natural logarithm; -inf at 0, NaN below.
    Method log(x) -> Same { Float: scalar::log(x) }
    domain [0.2, 5.0];
    vjp(g) { x: (g / x) }

    /// `log(1 + x)`, exact near 0.
    Method log1p(x) -> Same { Float: scalar::log1p(x) }
    domain [-0.8, 4.0];
    vjp(g) { x: (g / (1.0 + x)) }

    /// Logarithm to base 2.
    Method log2(x) -> Same { Float: scalar::log2(x) }
    domain [0.2, 5.0];
    vjp(g) { x: (g / (x * LN_2)) }

    /// Logarithm to base 10.
    Method log10(x) -> Same { Float: scalar::log10(x) }
    domain [0.2, 5.0];
    vjp(g) { x: (g / (x * LN_10)) }

    /// `log(exp(a) + exp(b))` without overflow.
    Method logaddexp(a, b) -> Same { Float: scalar::logaddexp(a, b) }
    domain [-3.0, 3.0], [-3.0, 3.0];
    vjp(g, y) { a: (g * (a - y).exp()), b: (g * (b - y).exp()) }

    /// Square root, correctly rounded; NaN below 0. The gradient at 0 is infinite.
    Method sqrt(x) -> Same { Float: x.sqrt() }
    domain [0.2, 5.0];
    vjp(g, y) { x: (g * 0.5 / y) }

    /// `1 / sqrt(x)`.
    Method rsqrt(x) -> Same { Float: scalar::rsqrt(x) }
    domain [0.2, 5.0];
    vjp(g, y) { x: (g * -0.5 * y * y * y) }

    /// Cube root, of negative numbers too.
    Method cbrt(x) -> Same { Float: scalar::cbrt(x) }
    domain [0.3, 4.0];
    vjp(g, y) { x: (g / (3.0 * y * y)) }

    /// `sqrt(a² + b²)` without overflow.
    Function hypot(a, b) -> Same { Float: scalar::hypot(a, b) }
    domain [0.3, 3.0], [0.3, 3.0];
    vjp(g, y) { a: (g * a / y), b: (g * b / y) }

    /// Logistic function `1 / (1 + exp(-x))`.
    Method sigmoid(x) -> Same {
        Float: scalar::sigmoid_often(x) => beyond(scalar::exp_is_rare(x), scalar::sigmoid(x)),
    }
    domain [-4.0, 4.0];
    vjp(g, y) { x: (g * y * (1.0 - y)) }

    /// `log(sigmoid(x))` without underflow.
    Method log_sigmoid(x) -> Same { Float: scalar::log_sigmoid(x) }
    domain [-4.0, 4.0];
    vjp(g) { x: (g * (-x).sigmoid()) }

    /// `x sigmoid(x)`, with its relative accuracy where the sigmoid underflows.
    Hidden swish(x) -> Same {
        Float: scalar::silu_often(x) => beyond(scalar::exp_is_rare(x), scalar::silu(x)),
    }
    domain [-4.0, 4.0];
    vjp(g) { x: (g * x.swish_slope()) }

    /// The derivative of `x sigmoid(x)`.
    Hidden swish_slope(x) -> Same { Float: scalar::silu_slope(x) }
    domain [-4.0, 4.0];
    vjp(g) {
        x: {
            let s = x.sigmoid();
            g * (s * (1.0 - s) * (2.0 + x * (1.0 - 2.0 * s)))
        }
    }

    /// `x Φ(x)` with Φ the distribution function of the standard normal.
    Hidden gelu_erf(x) -> Same { Float: scalar::gelu(x) }
    domain [-4.0, 4.0];
    vjp(g) { x: (g * x.gelu_erf_slope()) }

    /// The derivative of `x Φ(x)`: `Φ(x) + x φ(x)` with the density `φ = exp(−x²/2) / √(2π)`.
    Hidden gelu_erf_slope(x) -> Same { Float: scalar::gelu_slope(x) }
    domain [-4.0, 4.0];
    vjp(g) { x: (g * (2.0 - x * x) * (x * x * -0.5).exp() * (0.5 * SQRT_2_PI)) }

    /// `½ x (1 + tanh u)` with `u = √(2/π) (x + 0.044715 x³)`.
    Hidden gelu_tanh(x) -> Same {
        Float: scalar::gelu_tanh_often(x)
            => beyond(scalar::gelu_tanh_is_rare(x), scalar::gelu_tanh(x)),
    }
    domain [-4.0, 4.0];
    vjp(g) { x: (g * x.gelu_tanh_slope()) }

    /// The derivative of `½ x (1 + tanh u)`.
    Hidden gelu_tanh_slope(x) -> Same { Float: scalar::gelu_tanh_slope(x) }
    domain [-4.0, 4.0];
    vjp(g) {
        x: {
            // With s = ½ (1 + tanh u) = σ(v): (s + x s (1 − s) v')'.
            let cube = 2.0 * SQRT_2_PI * CUBIC * (x * x);
            let s = (x * (2.0 * SQRT_2_PI + cube)).sigmoid();
            let d = 2.0 * SQRT_2_PI + 3.0 * cube;
            g * (s * (1.0 - s) * (2.0 * d + 6.0 * cube + x * d * d * (1.0 - 2.0 * s)))
        }
    }

    /// Error function `2/√π ∫₀ˣ exp(-t²) dt`.
    Method erf(x) -> Same { Float: scalar::erf(x) }
    domain [-2.5, 2.5];
    vjp(g) { x: (g * (-(x * x)).exp() * FRAC_2_SQRT_PI) }

    /// Complementary error function `1 - erf(x)`, exact in its tail.
    Method erfc(x) -> Same { Float: scalar::erfc(x) }
    domain [-2.5, 2.5];
    vjp(g) { x: (g * (-(x * x)).exp() * -FRAC_2_SQRT_PI) }

    /// Inverse of the error function; ±inf at ±1, NaN outside.
    Method erfinv(x) -> Same { Float: scalar::erfinv(x) }
    domain [-0.9, 0.9];
    vjp(g, y) { x: (g * (y * y).exp() / FRAC_2_SQRT_PI) }
}
