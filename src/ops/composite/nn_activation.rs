//! Activations of `nn`: pointwise functions with one-node gradients, and softmax.

use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI};

use crate::error;
use crate::ops::attributes::Reduction;
use crate::ops::emit::{Expr, throw};

composite! {
    /// `max(x, 0)`, element by element; NaN stays NaN.
    ///
    /// Numeric, any shape. The gradient at 0 is 0.
    ///
    /// >>> import wengert as wg
    /// >>> wg.nn.relu(wg.tensor([-1.0, 2.0])).tolist()
    /// [0.0, 2.0]
    nn method relu(x: NumericTensor) -> One {
        x.maximum(x.scalar(0))
    }
    vjp(g, y) { x: y.greater(y.scalar(0)).select(g, g.scalar(0.0)) }

    /// `x` where positive, `negative_slope · x` elsewhere.
    ///
    /// Floating, any shape. The gradient at 0 is `negative_slope`.
    nn function leaky_relu(x: FloatTensor, negative_slope: Float = 0.01) -> One {
        x.greater(x.scalar(0.0)).select(x, x * negative_slope)
    }
    vjp(g, y) { x: x.greater(x.scalar(0.0)).select(g, g * negative_slope) }

    /// Gaussian error linear unit `x Φ(x)`, with Φ the distribution function of the standard normal.
    ///
    /// Floating, any shape. `approximate="tanh"` takes `½ (1 + tanh u)` for Φ, with
    /// `u = √(2/π) (x + 0.044715 x³)`. Source: Hendrycks, Gimpel: Gaussian error linear units, 2016.
    nn function gelu(x: FloatTensor; approximate: GeluForm = "none") -> One {
        x * gelu_gate(x, &approximate)
    }
    vjp(g, y) { x: g * gelu_slope(x, &approximate) }

    /// Sigmoid linear unit `x σ(x)`.
    ///
    /// Floating, any shape.
    nn function silu(x: FloatTensor) -> One {
        x * x.sigmoid()
    }
    vjp(g, y) {
        x: {
            let s = x.sigmoid();
            g * (s * (1.0 + x * (1.0 - s)))
        }
    }

    /// `log(1 + exp(beta x)) / beta` without overflow: a smooth `relu`.
    ///
    /// Floating, any shape.
    nn function softplus(x: FloatTensor; beta: Float = 1.0) -> One {
        (x * -beta).log_sigmoid() * (-1.0 / beta)
    }
    vjp(g, y) { x: g * (x * beta).sigmoid() }

    /// Logistic function `1 / (1 + exp(-x))`.
    ///
    /// Floating, any shape.
    nn function sigmoid(x: FloatTensor) -> One {
        x.sigmoid()
    }

    /// Hyperbolic tangent of each element.
    ///
    /// Floating, any shape.
    nn function tanh(x: FloatTensor) -> One {
        x.tanh()
    }

    /// `log(sigmoid(x))` without underflow.
    ///
    /// Floating, any shape.
    nn function log_sigmoid(x: FloatTensor) -> One {
        x.log_sigmoid()
    }

    /// Exponentials divided by their sum along `axis`.
    ///
    /// Floating, rank 1 or more; shifted by the largest element, so that nothing overflows. A line
    /// of `-inf` alone gives NaN.
    ///
    /// >>> import wengert as wg
    /// >>> wg.nn.softmax(wg.tensor([[0.0, 0.0], [-1000.0, 1000.0]])).tolist()
    /// [[0.5, 0.5], [0.0, 1.0]]
    nn method softmax(x: FloatTensor, axis: Int = -1) -> One {
        let axis = [x.axis(axis, "softmax")];
        let e = shifted(x, &axis).exp();
        e / e.reduce_keep(Reduction::Sum, &axis)
    }
    vjp(g, y) {
        x: {
            let axis = [y.axis(axis, "softmax")];
            let gy = g * y;
            gy - y * gy.reduce_keep(Reduction::Sum, &axis)
        }
    }

    /// The logarithm of the softmax along `axis`.
    ///
    /// Floating, rank 1 or more; exact where the softmax itself would underflow.
    nn method log_softmax(x: FloatTensor, axis: Int = -1) -> One {
        let axis = [x.axis(axis, "log_softmax")];
        let z = shifted(x, &axis);
        z - z.exp().reduce_keep(Reduction::Sum, &axis).log()
    }
    vjp(g, y) {
        x: {
            let axis = [y.axis(axis, "log_softmax")];
            g - y.exp() * g.reduce_keep(Reduction::Sum, &axis)
        }
    }
}

/// `x` less its largest element along an axis.
pub fn shifted<'e>(x: Expr<'e>, axis: &[usize]) -> Expr<'e> {
    x - x.reduce_keep(Reduction::Max, axis)
}

/// √(2/π)
const SQRT_2_PI: f64 = FRAC_2_SQRT_PI * FRAC_1_SQRT_2;
/// The cubic term of the approximation, as published.
const CUBIC: f64 = 0.044715;

/// Φ(x), or its approximation: `½ (1 + tanh u) = σ(2u)`.
fn gelu_gate<'e>(x: Expr<'e>, approximate: &str) -> Expr<'e> {
    match approximate {
        "none" => 0.5 * (x * -FRAC_1_SQRT_2).erfc(),
        "tanh" => (x * (2.0 * SQRT_2_PI + 2.0 * SQRT_2_PI * CUBIC * (x * x))).sigmoid(),
        other => {
            let facts = format!("got {other:?}, wanted \"none\" or \"tanh\"");
            throw(error::bad_value("gelu", "unknown approximation", facts))
        }
    }
}

/// The derivative of `x` times its gate: `Φ + x φ` with the density `φ = exp(−x²/2) / √(2π)`, or
/// `s + x s (1 − s) 2u'`.
fn gelu_slope<'e>(x: Expr<'e>, approximate: &str) -> Expr<'e> {
    let gate = gelu_gate(x, approximate);
    if approximate == "none" {
        return gate + x * ((x * x * -0.5).exp() * (0.5 * SQRT_2_PI));
    }
    let inner = 2.0 * SQRT_2_PI + 6.0 * SQRT_2_PI * CUBIC * (x * x);
    gate + x * gate * (1.0 - gate) * inner
}
