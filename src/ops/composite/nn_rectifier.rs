//! Piecewise activations of `nn`: lines with corners, and the exponential units.
//!
//! NaN stays NaN. Gradients at corners are PyTorch's, and said where they are declared.

use super::random::unit;
use crate::error;
use crate::ops::emit::{Expr, throw};
use crate::shape::{Dim, Shape};

/// The slope and the limit of `selu`: a layer of normal inputs keeps their mean 0 and variance 1.
const SELU_SCALE: f64 = 1.050_700_987_355_480_5;
const SELU_ALPHA: f64 = 1.673_263_242_354_377_3;

composite! {
    /// Exponential linear unit: `x` where positive, `alpha (exp(x) - 1)` elsewhere.
    ///
    /// Floating, any shape. The gradient at 0 is `alpha`. Source: Clevert et al.: Fast and accurate
    /// deep network learning by exponential linear units, 2015.
    nn function elu(x: FloatTensor, alpha: Float = 1.0) -> One {
        positive(x).select(x, or_zero(x).expm1() * alpha)
    }
    vjp(g, y) { x: positive(x).select(g, g * (or_zero(x).exp() * alpha)) }

    /// Continuously differentiable exponential linear unit.
    ///
    /// `x` where positive, `alpha (exp(x / alpha) - 1)` elsewhere.
    /// Floating, any shape. Raises ValueError for an `alpha` of 0. Source: Barron: Continuously
    /// differentiable exponential linear units, 2017.
    nn function celu(x: FloatTensor, alpha: Float = 1.0) -> One {
        if alpha == 0.0 {
            throw(error::bad_value("celu", "alpha must not be 0", format!("got {alpha}")));
        }
        positive(x).select(x, (or_zero(x) / alpha).expm1() * alpha)
    }
    vjp(g, y) { x: positive(x).select(g, g * (or_zero(x) / alpha).exp()) }

    /// Scaled exponential linear unit: `λ x` where positive, `λ α (exp(x) - 1)` elsewhere.
    ///
    /// Floating, any shape; λ ≈ 1.0507 and α ≈ 1.6733. The gradient at 0 is λ α. Source: Klambauer
    /// et al.: Self-normalizing neural networks, 2017.
    nn function selu(x: FloatTensor) -> One {
        positive(x).select(x * SELU_SCALE, or_zero(x).expm1() * (SELU_SCALE * SELU_ALPHA))
    }
    vjp(g, y) {
        x: positive(x).select(g * SELU_SCALE, g * (or_zero(x).exp() * (SELU_SCALE * SELU_ALPHA)))
    }

    /// Elements limited to the range from 0 to 6.
    ///
    /// Floating, any shape. The gradient is 0 at both ends too.
    nn function relu6(x: FloatTensor) -> One {
        limited(x, 0.0, 6.0)
    }
    vjp(g, y) { x: inside(x, g, 0.0, 6.0) }

    /// Elements limited to the range from `min_val` to `max_val`.
    ///
    /// Floating, any shape. The gradient is 0 at both ends too. Raises ValueError where `min_val` is
    /// above `max_val`.
    nn function hardtanh(x: FloatTensor, min_val: Float = -1.0, max_val: Float = 1.0) -> One {
        if min_val > max_val {
            let facts = format!("got {min_val} and {max_val}");
            throw(error::bad_value("hardtanh", "min_val must not be above max_val", facts));
        }
        limited(x, min_val, max_val)
    }
    vjp(g, y) { x: inside(x, g, min_val, max_val) }

    /// The sigmoid in three lines: `x / 6 + 1/2` limited to the range from 0 to 1.
    ///
    /// Floating, any shape. The gradient at the corners -3 and 3 is 0.
    nn function hardsigmoid(x: FloatTensor) -> One {
        limited(x + 3.0, 0.0, 6.0) / 6.0
    }
    vjp(g, y) { x: inside(x, g / 6.0, -3.0, 3.0) }

    /// `x hardsigmoid(x)`.
    ///
    /// Floating, any shape. The gradient is 0 at -3 and 1 at 3. Source: Howard et al.: Searching for
    /// MobileNetV3, 2019.
    nn function hardswish(x: FloatTensor) -> One {
        x * limited(x + 3.0, 0.0, 6.0) / 6.0
    }
    vjp(g, y) {
        x: {
            let between = x.greater_equal(x.scalar(3.0)).select(g, g * (x / 3.0 + 0.5));
            x.less_equal(x.scalar(-3.0)).select(g.scalar(0.0), between)
        }
    }

    /// `x` moved towards 0 by `lambd`, and 0 where it is no farther away.
    ///
    /// Floating, any shape. The gradient at `±lambd` is 0. Raises ValueError for a negative `lambd`.
    nn function softshrink(x: FloatTensor, lambd: Float = 0.5) -> One {
        if lambd < 0.0 || lambd.is_nan() {
            throw(error::bad_value("softshrink", "lambd must be at least 0", format!("got {lambd}")));
        }
        let moved = x.greater(x.scalar(0.0)).select(x - lambd, x + lambd);
        near(x, lambd).select(x.scalar(0.0), moved)
    }
    vjp(g, y) { x: near(x, lambd).select(g.scalar(0.0), g) }

    /// `x` where it is farther from 0 than `lambd`, 0 elsewhere.
    ///
    /// Floating, any shape. The gradient at `±lambd` is 0.
    nn function hardshrink(x: FloatTensor, lambd: Float = 0.5) -> One {
        near(x, lambd).select(x.scalar(0.0), x)
    }
    vjp(g, y) { x: near(x, lambd).select(g.scalar(0.0), g) }

    /// `x` where it is above `threshold`, `value` elsewhere.
    ///
    /// Floating, any shape. The gradient at `threshold` is 0.
    nn function threshold(x: FloatTensor, threshold: Float, value: Float) -> One {
        x.less_equal(x.scalar(threshold)).select(x.scalar(value), x)
    }
    vjp(g, y) { x: x.less_equal(x.scalar(threshold)).select(g.scalar(0.0), g) }

    /// `x` where positive, `weight · x` elsewhere, with a weight that is learned.
    ///
    /// `x`: floating, (N, C, …) or any other shape. `weight`: one number, or one for each channel,
    /// (C,). The gradient at 0 is `weight`. Raises ShapeError for another count. Source: He et al.:
    /// Delving deep into rectifiers, 2015.
    nn function prelu(x: FloatTensor, weight: FloatTensor) -> One {
        positive(x).select(x, by_channel(x, weight) * x)
    }

    /// `leaky_relu` with a slope for each element, drawn between `lower` and `upper`.
    ///
    /// Floating, any shape. Where `training` is False the slope is the mean of both. `key`: random
    /// key, None draws one; backward draws the same numbers again. The gradient at 0 is the slope.
    /// Raises ValueError where `lower` is above `upper`.
    nn function rrelu(
        x: FloatTensor, lower: Float = 0.125, upper: Float = 0.3333333333333333,
        training: Bool = False; key: Key = None,
    ) -> One {
        if lower > upper {
            let facts = format!("got {lower} and {upper}");
            throw(error::bad_value("rrelu", "lower must not be above upper", facts));
        }
        rectified(x, x, [lower, upper], training, key)
    }
    vjp(g, y) { x: rectified(x, g, [lower, upper], training, key), key: zero }
}

fn positive(x: Expr<'_>) -> Expr<'_> {
    x.greater(x.scalar(0.0))
}

/// `x` where it is not positive, and 0 elsewhere, so that no exponential overflows.
fn or_zero(x: Expr<'_>) -> Expr<'_> {
    positive(x).select(x.scalar(0.0), x)
}

fn limited(x: Expr<'_>, low: f64, high: f64) -> Expr<'_> {
    x.maximum(x.scalar(low)).minimum(x.scalar(high))
}

/// `g` where `x` lies between two bounds, which are outside.
fn inside<'e>(x: Expr<'e>, g: Expr<'e>, low: f64, high: f64) -> Expr<'e> {
    let outside = x.less_equal(x.scalar(low)).logical_or(x.greater_equal(x.scalar(high)));
    outside.select(g.scalar(0.0), g)
}

/// Whether `-bound ≤ x ≤ bound`.
fn near(x: Expr<'_>, bound: f64) -> Expr<'_> {
    x.greater_equal(x.scalar(-bound)).logical_and(x.less_equal(x.scalar(bound)))
}

/// One weight for all of `x`, or one for each index of its second axis, laid along that axis.
fn by_channel<'e>(x: Expr<'e>, weight: Expr<'e>) -> Expr<'e> {
    if weight.is_number() {
        return weight;
    }
    let shape = weight.shape();
    if shape.elements().equals(1) {
        return weight.reshape(Shape::scalar());
    }
    let channels = if x.rank() > 1 { x.size(1) } else { Dim::ONE };
    if !shape.equals(&Shape::from_dims(&[channels])) {
        let facts = format!("got {shape}, wanted ({channels},) or one number for x {}", x.shape());
        throw(error::bad_shape("prelu", "the shape of weight differs", facts));
    }
    let mut line = Shape::of(&vec![1; x.rank()]);
    line.dims_mut()[1] = channels;
    weight.reshape(line)
}

/// `v` times 1 where `x` is positive, times the slope elsewhere.
fn rectified<'e>(
    x: Expr<'e>,
    v: Expr<'e>,
    [lower, upper]: [f64; 2],
    training: bool,
    key: Expr<'e>,
) -> Expr<'e> {
    let slopes = if training {
        unit(key, x.dtype(), x.shape(), "rrelu") * (upper - lower) + lower
    } else {
        v.scalar((lower + upper) / 2.0)
    };
    positive(x).select(v, v * slopes)
}
