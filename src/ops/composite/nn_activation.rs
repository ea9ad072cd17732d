//! Smooth activations of `nn`, relu, and what normalises along an axis: softmax.

use super::nn_norm::wide;
use super::random::gumbel;
use super::reduction::axes_of;
use crate::dtype::DType;
use crate::error;
use crate::ops::attributes::{ArgReduction, Reduction};
use crate::ops::emit::{Expr, throw};
use crate::ops::op::Op;
use crate::shape::{Dim, Shape};

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
    also(swish)
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
    also(logsigmoid)

    /// `x tanh(softplus(x))`.
    ///
    /// Floating, any shape. Source: Misra: Mish: a self regularized non-monotonic activation
    /// function, 2019.
    nn function mish(x: FloatTensor) -> One {
        x * (-(-x).log_sigmoid()).tanh()
    }

    /// `x / (1 + |x|)`.
    ///
    /// Floating, any shape.
    nn function softsign(x: FloatTensor) -> One {
        x / (1.0 + x.abs())
    }
    vjp(g, y) {
        x: {
            let d = 1.0 + x.abs();
            g / d / d
        }
    }

    /// `x - tanh(x)`.
    ///
    /// Floating, any shape.
    nn function tanhshrink(x: FloatTensor) -> One {
        x - x.tanh()
    }
    vjp(g, y) {
        x: {
            let t = x.tanh();
            g * t * t
        }
    }

    /// Gated linear unit: the first half along `axis` times the sigmoid of the second.
    ///
    /// Floating; the axis, whose size must be even, becomes half as long. Raises ShapeError for an
    /// odd size. Source: Dauphin et al.: Language modeling with gated convolutional networks, 2016.
    ///
    /// >>> import wengert as wg
    /// >>> wg.nn.glu(wg.tensor([3.0, 0.0])).tolist()
    /// [1.5]
    nn function glu(x: FloatTensor, axis: Int = -1) -> One {
        let axis = x.axis(axis, "glu");
        let (n, two) = (x.size(axis), Dim::new(2));
        if !(n % two).equals(0) {
            let facts = format!("axis {axis} of {} has size {n}", x.shape());
            throw(error::bad_shape("glu", "the size must be even", facts));
        }
        let half = n / two;
        x.narrow(axis, 0, half) * x.narrow(axis, half, half).sigmoid()
    }

    /// Exponentials divided by their sum along `axis`.
    ///
    /// Floating; shifted by the largest element, so that nothing overflows. A line of `-inf` alone
    /// gives NaN.
    ///
    /// >>> import wengert as wg
    /// >>> wg.nn.softmax(wg.tensor([[0.0, 0.0], [-1000.0, 1000.0]])).tolist()
    /// [[0.5, 0.5], [0.0, 1.0]]
    nn method softmax(x: FloatTensor, axis: Int = -1) -> One {
        let axis = axes_of(x, Some(&[axis]), "softmax");
        let e = shifted(x, &axis).exp();
        e / e.reduce_keep(Reduction::Sum, &axis)
    }
    precision(Wide)
    kernel(Softmax)
    vjp(g, y) {
        x: {
            let axis = axes_of(y, Some(&[axis]), "softmax");
            let gy = g * y;
            gy - y * gy.reduce_keep(Reduction::Sum, &axis)
        }
    }

    /// The softmax of `-x` along `axis`.
    ///
    /// Floating, rank 1 or more.
    nn function softmin(x: FloatTensor, axis: Int = -1) -> One {
        softmax(x.cx(), -x, axis)[0]
    }

    /// The logarithm of the softmax along `axis`.
    ///
    /// Floating; exact where the softmax itself would underflow.
    nn method log_softmax(x: FloatTensor, axis: Int = -1) -> One {
        let axis = axes_of(x, Some(&[axis]), "log_softmax");
        let z = shifted(x, &axis);
        z - z.exp().reduce_keep(Reduction::Sum, &axis).log()
    }
    precision(Wide)
    kernel(LogSoftmax)
    vjp(g, y) {
        x: {
            let axis = axes_of(y, Some(&[axis]), "log_softmax");
            g - y.exp() * g.reduce_keep(Reduction::Sum, &axis)
        }
    }

    /// A differentiable draw of a class: the softmax of `(logits + noise) / tau` along `axis`.
    ///
    /// Floating, rank 1 or more; the noise follows Gumbel's distribution. The smaller `tau`, the
    /// nearer is the result to the class that `random.categorical` would draw. `hard` gives 1 at the
    /// largest element and 0 elsewhere, with the gradient of the softmax. `key`: random key, None
    /// draws one; backward draws the same numbers again. Raises ValueError for a `tau` that is not
    /// positive.
    ///
    /// Source: Jang, Gu, Poole: Categorical reparameterization with Gumbel-Softmax, 2016.
    nn function gumbel_softmax(
        logits: FloatTensor, tau: Float = 1.0, hard: Bool = False; axis: Int = -1, key: Key = None,
    ) -> One {
        let place = logits.axis(axis, "gumbel_softmax");
        if tau <= 0.0 || tau.is_nan() {
            throw(error::bad_value("gumbel_softmax", "tau must be positive", format!("got {tau}")));
        }
        let x = wide(logits);
        let scores = (x + gumbel(key, x.dtype(), x.shape())) / tau;
        let y = softmax(x.cx(), scores, axis)[0];
        let y = if hard { y.stop_gradient().top(place) + (y - y.stop_gradient()) } else { y };
        y.cast(logits.dtype())
    }
}

impl Expr<'_> {
    /// 1 at the first of the largest elements along an axis, 0 elsewhere.
    fn top(self, axis: usize) -> Self {
        let best = self.emit(Op::ArgReduce(ArgReduction::Max, axis)).unsqueeze(axis);
        let mut line = Shape::of(&vec![1; self.rank()]);
        line.dims_mut()[axis] = self.size(axis);
        self.iota(DType::I64, line, axis).equal(best).cast(self.dtype())
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
