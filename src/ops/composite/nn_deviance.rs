//! Losses of `nn` that compare numbers with numbers: robust distances and negative likelihoods.
//!
//! All are floating; half floats are calculated in float32 and rounded once. A target that is an
//! integer takes the dtype of the input.

use std::f64::consts::TAU;

use super::nn_loss::{all, broadcasts, reduced, same_shape};
use super::nn_norm::wide;
use super::promoted;
use super::reduction::joined;
use crate::dtype::DType;
use crate::error;
use crate::ops::attributes::Reduction;
use crate::ops::emit::{Expr, throw};

/// The least logarithm of a probability that `binary_cross_entropy` counts, as published.
const LEAST_LOG: f64 = -100.0;
/// The least `x (1 - x)` that its gradient divides by, as published.
const LEAST_SPREAD: f64 = 1e-12;

composite! {
    /// Half the squared difference where it is below `delta`, and a line beyond.
    ///
    /// The line is `delta (|d| - delta / 2)`, the parabola's tangent.
    /// Two tensors of one shape; ShapeError where they differ. `reduction`: "mean", "sum" or "none".
    /// Raises ValueError for a `delta` that is not positive. Source: Huber: Robust estimation of a
    /// location parameter, 1964.
    nn function huber_loss(
        input: FloatTensor, target: NumericTensor;
        reduction: LossReduction = "mean", delta: Float = 1.0,
    ) -> One {
        if delta <= 0.0 || delta.is_nan() {
            throw(error::bad_value("huber_loss", "delta must be positive", format!("got {delta}")));
        }
        let pair = Pair::new("huber_loss", input, target);
        pair.reduced(huber(pair.x - pair.t, delta), &reduction)
    }

    /// The squared difference over `2 beta` where it is below `beta`, and `|d| - beta / 2` beyond.
    ///
    /// Two tensors of one shape; ShapeError where they differ. A `beta` of 0 gives `l1_loss`.
    /// `reduction`: "mean", "sum" or "none". Raises ValueError for a negative `beta`. Source:
    /// Girshick: Fast R-CNN, 2015.
    nn function smooth_l1_loss(
        input: FloatTensor, target: NumericTensor;
        reduction: LossReduction = "mean", beta: Float = 1.0,
    ) -> One {
        if beta < 0.0 || beta.is_nan() {
            let facts = format!("got {beta}");
            throw(error::bad_value("smooth_l1_loss", "beta must be at least 0", facts));
        }
        let pair = Pair::new("smooth_l1_loss", input, target);
        let d = pair.x - pair.t;
        let values = if beta == 0.0 { d.abs() } else { huber(d, beta) / beta };
        pair.reduced(values, &reduction)
    }

    /// Binary cross entropy of probabilities: `-t log x - (1 - t) log(1 - x)`.
    ///
    /// `input` and `target`: probabilities, of one shape. `weight`: a factor for each element, which
    /// broadcasts to it. `reduction`: "mean", "sum" or "none". A logarithm counts -100 at the least,
    /// and the gradient divides by `x (1 - x)` or 1e-12; an input outside 0 … 1 gives NaN.
    /// `binary_cross_entropy_with_logits` is exact where this is not.
    nn function binary_cross_entropy(
        input: FloatTensor, target: NumericTensor, weight: MaybeFloatTensor = None;
        reduction: LossReduction = "mean",
    ) -> One {
        broadcasts("binary_cross_entropy", "weight", weight, input);
        let pair = Pair::new("binary_cross_entropy", input, target);
        pair.reduced(weighted(crossed(&pair), weight), &reduction)
    }
    vjp(
        g, y;
        pair = Pair::new("binary_cross_entropy", input, target),
        g_each = pair.spread(g, &reduction),
    ) {
        input: {
            let width = pair.x * (1.0 - pair.x);
            weighted((pair.x - pair.t) / width.maximum(width.scalar(LEAST_SPREAD)) * *g_each, weight)
        },
        target: {
            let (yes, no) = logs(pair.x);
            weighted((no - yes) * *g_each, weight)
        },
        weight: crossed(&pair) * *g_each,
    }

    /// Kullback-Leibler divergence of log-probabilities from a target: `t (log t - input)`.
    ///
    /// Two tensors of one shape. `log_target`: whether `target` has logarithms too. `reduction`:
    /// "mean" over all elements, "batchmean" (the sum over the first axis's size, which is the
    /// divergence), "sum" or "none".
    nn function kl_div(
        input: FloatTensor, target: NumericTensor;
        reduction: DivergenceReduction = "mean", log_target: Bool = False,
    ) -> One {
        let pair = Pair::new("kl_div", input, target);
        let (x, t) = (pair.x, pair.t);
        let values = if log_target { t.exp() * (t - x) } else { times_log(t) - t * x };
        if reduction == "batchmean" {
            if x.rank() == 0 {
                let wanted = "1 or more for \"batchmean\"";
                throw(error::bad_rank("kl_div", "input", wanted, x.shape()));
            }
            (values.reduce(Reduction::Sum, &all(values)) / joined(x, &[0])).cast(pair.dtype)
        } else {
            pair.reduced(values, &reduction)
        }
    }

    /// Negative log likelihood of counts under Poisson's law: `exp(x) - t x`.
    ///
    /// Two tensors of one shape. `log_input`: False for an `input` of rates, of which the loss is
    /// `x - t log(x + eps)`. `full`: whether Stirling's approximation of `log t!` is added where `t`
    /// is above 1. `reduction`: "mean", "sum" or "none".
    nn function poisson_nll_loss(
        input: FloatTensor, target: NumericTensor;
        log_input: Bool = True, full: Bool = False, eps: Float = 1e-8,
        reduction: LossReduction = "mean",
    ) -> One {
        let pair = Pair::new("poisson_nll_loss", input, target);
        let (x, t) = (pair.x, pair.t);
        let mut values = if log_input { x.exp() - t * x } else { x - t * (x + eps).log() };
        if full {
            let many = t.greater(t.scalar(1.0));
            let n = many.select(t, t.scalar(1.0));
            values = values + many.select(n * n.log() - n + (n * TAU).log() * 0.5, n.scalar(0.0));
        }
        pair.reduced(values, &reduction)
    }

    /// Negative log likelihood under normal laws: `½ (log var + (input - target)² / var)`.
    ///
    /// `input` (the means) and `target`: of one shape. `var`: broadcasts to it, or lacks its last
    /// axis; what is below `eps` counts as `eps`, with the gradient that there is at `eps`. `full`:
    /// whether `½ log 2π` is added. `reduction`: "mean", "sum" or "none".
    nn function gaussian_nll_loss(
        input: FloatTensor, target: NumericTensor, var: FloatOrNumber;
        full: Bool = False, eps: Float = 1e-6, reduction: LossReduction = "mean",
    ) -> One {
        let pair = Pair::new("gaussian_nll_loss", input, target);
        let (x, shape) = (pair.x, input.shape());
        let dims = shape.dims();
        let lacks_last = !dims.is_empty()
            && !var.is_number()
            && var.shape().equals(&dims[..dims.len() - 1].iter().copied().collect());
        let var = if lacks_last { var.unsqueeze(var.rank()) } else { var };
        broadcasts("gaussian_nll_loss", "var", Some(var), input);
        let var = floored(wide(var.cast(pair.dtype)), eps);
        let d = x - pair.t;
        let values = (var.log() + d * d / var) * 0.5;
        pair.reduced(if full { values + TAU.ln() / 2.0 } else { values }, &reduction)
    }
}

/// An input and a target of one shape, as they are calculated.
struct Pair<'e> {
    x: Expr<'e>,
    t: Expr<'e>,
    /// The result's
    dtype: DType,
    op: &'static str,
}

impl<'e> Pair<'e> {
    fn new(op: &'static str, input: Expr<'e>, target: Expr<'e>) -> Pair<'e> {
        same_shape(op, input, target);
        let target = if target.dtype().is_float() { target } else { target.cast(input.dtype()) };
        let both = promoted(&[input, target], op);
        Pair { x: wide(both[0]), t: wide(both[1]), dtype: both[0].dtype(), op }
    }

    fn reduced(&self, values: Expr<'e>, reduction: &str) -> Expr<'e> {
        reduced(self.op, values, reduction).cast(self.dtype)
    }

    /// The cotangent of each element's loss.
    fn spread(&self, g: Expr<'e>, reduction: &str) -> Expr<'e> {
        let g = wide(g);
        if reduction == "mean" { g / joined(self.x, &all(self.x)) } else { g }
    }
}

/// `min(|d|, δ) (|d| - ½ min(|d|, δ))`: a parabola up to δ, and its tangent beyond.
fn huber(d: Expr<'_>, delta: f64) -> Expr<'_> {
    let size = d.abs();
    let near = size.minimum(size.scalar(delta));
    near * (size - near * 0.5)
}

fn weighted<'e>(x: Expr<'e>, weight: Option<Expr<'e>>) -> Expr<'e> {
    weight.map_or(x, |w| x * wide(w))
}

/// `log x` and `log(1 - x)`, not below their least.
fn logs<'e>(x: Expr<'e>) -> (Expr<'e>, Expr<'e>) {
    let limited = |y: Expr<'e>| y.maximum(y.scalar(LEAST_LOG));
    (limited(x.log()), limited((-x).log1p()))
}

fn crossed<'e>(pair: &Pair<'e>) -> Expr<'e> {
    let (yes, no) = logs(pair.x);
    -(pair.t * yes + (1.0 - pair.t) * no)
}

/// `t log t`, which is 0 at 0.
fn times_log(t: Expr<'_>) -> Expr<'_> {
    let none = t.equal(t.scalar(0.0));
    none.select(t.scalar(0.0), t * none.select(t.scalar(1.0), t).log())
}

/// `x`, or `least` where it is smaller; the gradient is that of `x` everywhere.
pub(super) fn floored(x: Expr<'_>, least: f64) -> Expr<'_> {
    x.less(x.scalar(least)).select((x - x.stop_gradient()) + least, x)
}
