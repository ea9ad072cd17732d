//! Activations of `nn`: pointwise functions with one-node gradients, and softmax.

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

    /// Gaussian error linear unit `x Φ(x)`; Φ is the standard normal's distribution function.
    ///
    /// Floating, any shape. `approximate="tanh"` takes `½ (1 + tanh u)` for Φ, with
    /// `u = √(2/π) (x + 0.044715 x³)`. Source: Hendrycks, Gimpel: Gaussian error linear units,
    /// 2016.
    nn function gelu(x: FloatTensor; approximate: GeluForm = "none") -> One {
        if is_tanh_form(&approximate) { x.gelu_tanh() } else { x.gelu_erf() }
    }
    vjp(g, y) {
        x: {
            let is_tanh = is_tanh_form(&approximate);
            g * if is_tanh { x.gelu_tanh_slope() } else { x.gelu_erf_slope() }
        }
    }

    /// Sigmoid linear unit `x σ(x)`.
    ///
    /// Floating, any shape.
    nn function silu(x: FloatTensor) -> One {
        x.swish()
    }
    vjp(g, y) { x: g * x.swish_slope() }

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
    nn function sigmoid(x: FloatTensor) -> One inline {
        x.sigmoid()
    }

    /// Hyperbolic tangent of each element.
    ///
    /// Floating, any shape.
    nn function tanh(x: FloatTensor) -> One inline {
        x.tanh()
    }

    /// `log(sigmoid(x))` without underflow.
    ///
    /// Floating, any shape.
    nn function log_sigmoid(x: FloatTensor) -> One inline {
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

/// Whether GELU is to be approximated by tanh.
fn is_tanh_form(approximate: &str) -> bool {
    match approximate {
        "none" => false,
        "tanh" => true,
        other => {
            let facts = format!("got {other:?}, wanted \"none\" or \"tanh\"");
            throw(error::bad_value("gelu", "unknown approximation", facts))
        }
    }
}
