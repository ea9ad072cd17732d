//! Losses of `nn` for classes and ranks by margins, and the focal loss.
//!
//! Half floats are calculated in float32 and rounded once. Targets of two kinds are 1 and -1, of
//! any numeric dtype. Where a margin is met exactly, the gradient is that of the side where it is
//! not met.

use super::nn_loss::{broadcasts, label_of, logits_of, reduced, same_shape};
use super::nn_norm::wide;
use crate::dtype::DType;
use crate::error;
use crate::ops::attributes::{Cumulation, Reduction, ScatterMode};
use crate::ops::emit::{Expr, throw};
use crate::shape::Shape;

composite! {
    /// `x` where the target is 1, and `max(margin - x, 0)` where it is -1.
    ///
    /// Two tensors of one shape. `reduction`: "mean", "sum" or "none".
    nn function hinge_embedding_loss(
        input: FloatTensor, target: NumericTensor;
        margin: Float = 1.0, reduction: LossReduction = "mean",
    ) -> One {
        same_shape("hinge_embedding_loss", input, target);
        let x = wide(input);
        let values = signed(target, x, above_zero(margin - x));
        reduced("hinge_embedding_loss", values, &reduction).cast(input.dtype())
    }

    /// `log(1 + exp(-t x))`, for targets of 1 and -1.
    ///
    /// Two tensors of one shape. `reduction`: "mean", "sum" or "none".
    nn function soft_margin_loss(
        input: FloatTensor, target: NumericTensor; reduction: LossReduction = "mean",
    ) -> One {
        same_shape("soft_margin_loss", input, target);
        let x = wide(input);
        let values = -(x * target.cast(x.dtype())).log_sigmoid();
        reduced("soft_margin_loss", values, &reduction).cast(input.dtype())
    }

    /// `max(-t (x1 - x2) + margin, 0)`, for targets of 1 and -1.
    ///
    /// `x1` is to rank above `x2` where the target is 1, and below where it is -1.
    /// Three tensors of one shape. `reduction`: "mean", "sum" or "none".
    nn function margin_ranking_loss(
        x1: FloatTensor, x2: FloatTensor, target: NumericTensor;
        margin: Float = 0.0, reduction: LossReduction = "mean",
    ) -> One {
        let op = "margin_ranking_loss";
        same_shape(op, x1, x2);
        same_shape(op, x1, target);
        let d = wide(x1) - wide(x2);
        let values = above_zero(margin - target.cast(d.dtype()) * d);
        reduced(op, values, &reduction).cast(x1.dtype().promote(x2.dtype()).unwrap_or(x1.dtype()))
    }

    /// `Σ max(margin - x[t] + x[i], 0)ᵖ / C` over the classes `i` that are not the target.
    ///
    /// `input`: floating, (N, C) or (C,). `target`: class indices, (N,) or (). `weight`: a factor
    /// for each class of the target, (C,). `p`: 1 or 2. `reduction`: "mean", "sum" or "none" for
    /// the losses. Raises IndexError for an index outside 0 … C - 1.
    nn function multi_margin_loss(
        input: FloatTensor, target: IntTensor, p: Int = 1, margin: Float = 1.0,
        weight: MaybeFloatTensor = None; reduction: LossReduction = "mean",
    ) -> One {
        let op = "multi_margin_loss";
        if p != 1 && p != 2 {
            throw(error::bad_value(op, "p must be 1 or 2", format!("got {p}")));
        }
        let (x, last) = logits_of(op, input, weight);
        by_sample(op, input, target, true);
        let index = label_of(target, input.size(last));
        let own = x.take_along(index.unsqueeze(last), last);
        let short = above_zero(margin - own + x);
        let short = if p == 2 { short * short } else { short };
        let mut line = Shape::of(&vec![1; x.rank()]);
        line.dims_mut()[last] = x.size(last);
        let is_own = x.iota(DType::I64, line, last).equal(index.unsqueeze(last));
        let sum = is_own.select(x.scalar(0.0), short).reduce(Reduction::Sum, &[last]);
        let sum = weight.map_or(sum, |w| sum * wide(w).gather(&[index]));
        reduced(op, sum / x.count(x.size(last)), &reduction).cast(input.dtype())
    }
    indexes(Labels)

    /// `Σ Σ max(1 - (x[t] - x[i]), 0) / C` over the classes `t` of a sample and all others, `i`.
    ///
    /// `input`: floating, (N, C) or (C,). `target`: of that shape, integer: the classes of a sample,
    /// up to the first negative number. `reduction`: "mean", "sum" or "none" for the losses. Raises
    /// IndexError for an index above C - 1.
    nn function multilabel_margin_loss(
        input: FloatTensor, target: IntTensor; reduction: LossReduction = "mean",
    ) -> One {
        let op = "multilabel_margin_loss";
        let (x, last) = logits_of(op, input, None);
        by_sample(op, input, target, false);
        let target = target.cast(DType::I64);
        let negative = target.less(target.scalar(0)).cast(DType::I64);
        let counts = negative.cumulate(Cumulation::Sum, last, false).equal(target.scalar(0));
        let index = counts.select(target, target.scalar(0));
        let own = x.take_along(index, last).unsqueeze(last + 1);
        let none = target.zeros_like();
        let found = none.scatter(ScatterMode::Add, counts.cast(DType::I64), &index.along(last));
        let others = found.equal(found.scalar(0)).unsqueeze(last);
        let short = above_zero(1.0 - (own - x.unsqueeze(last)));
        let counted = counts.unsqueeze(last + 1).logical_and(others);
        let sum = counted.select(short, x.scalar(0.0)).reduce(Reduction::Sum, &[last, last + 1]);
        reduced(op, sum / x.count(x.size(last)), &reduction).cast(input.dtype())
    }
    indexes(Labels)

    /// Binary cross entropy of logits, averaged over the last axis, the classes.
    ///
    /// `input`: floating logits (…, C). `target`: 0 and 1, of that shape. `weight`: a factor for
    /// each class, which broadcasts. `reduction`: "mean", "sum" or "none" for the losses (…).
    nn function multilabel_soft_margin_loss(
        input: FloatTensor, target: NumericTensor, weight: MaybeFloatTensor = None;
        reduction: LossReduction = "mean",
    ) -> One {
        let op = "multilabel_soft_margin_loss";
        same_shape(op, input, target);
        broadcasts(op, "weight", weight, input);
        if input.rank() == 0 {
            throw(error::bad_rank(op, "input", "1 or more", input.shape()));
        }
        let x = wide(input);
        let each = crossed(x, target.cast(x.dtype()));
        let each = weight.map_or(each, |w| each * wide(w));
        let last = x.rank() - 1;
        let mean = each.reduce(Reduction::Sum, &[last]) / x.count(x.size(last));
        reduced(op, mean, &reduction).cast(input.dtype())
    }

    /// Binary cross entropy of logits that counts what is nearly right less.
    ///
    /// Each is times `(1 - p_t)^gamma`, with `p_t` the probability given to the target.
    /// Two tensors of one shape: logits, and targets of 0 and 1. `alpha` weighs targets of 1, and
    /// `1 - alpha` those of 0; a negative one weighs none. `reduction`: "mean", "sum" or "none".
    /// Source: Lin et al.: Focal loss for dense object detection, 2017.
    nn function sigmoid_focal_loss(
        input: FloatTensor, target: NumericTensor;
        alpha: Float = 0.25, gamma: Float = 2.0, reduction: LossReduction = "mean",
    ) -> One {
        let op = "sigmoid_focal_loss";
        same_shape(op, input, target);
        let x = wide(input);
        let t = target.cast(x.dtype());
        let wrong = x.sigmoid() * (1.0 - t) + (-x).sigmoid() * t;
        let mut values = crossed(x, t);
        if gamma != 0.0 {
            values = values * if gamma == 2.0 { wrong * wrong } else { wrong.pow(x.scalar(gamma)) };
        }
        if alpha >= 0.0 {
            values = values * (t * alpha + (1.0 - t) * (1.0 - alpha));
        }
        reduced(op, values, &reduction).cast(input.dtype())
    }
}

/// `-t log σ(x) - (1 - t) log σ(-x)`.
fn crossed<'e>(x: Expr<'e>, t: Expr<'e>) -> Expr<'e> {
    -(t * x.log_sigmoid() + (1.0 - t) * (-x).log_sigmoid())
}

/// `max(x, 0)`; the gradient at 0 is 1.
pub(super) fn above_zero(x: Expr<'_>) -> Expr<'_> {
    x.less(x.scalar(0.0)).select(x.scalar(0.0), x)
}

/// One value where a target is 1, another where it is -1; both where it is neither.
pub(super) fn signed<'e>(target: Expr<'e>, one: Expr<'e>, other: Expr<'e>) -> Expr<'e> {
    let (target, zero) = (target.cast(one.dtype()), one.scalar(0.0));
    target.equal(target.scalar(-1)).select(zero, one)
        + target.equal(target.scalar(1)).select(zero, other)
}

/// Refuses a target that does not fit samples (N, C) or (C,): with one class for each, or as many
/// as there are.
fn by_sample(op: &str, input: Expr<'_>, target: Expr<'_>, one: bool) {
    let shape = input.shape();
    let wanted = if one { shape.reduce(&[shape.rank() - 1], false) } else { shape.clone() };
    if !target.shape().equals(&wanted) {
        let facts = format!("got {}, wanted {wanted} for input {shape}", target.shape());
        throw(error::bad_shape(op, "the shape of target differs", facts));
    }
}
