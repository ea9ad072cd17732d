//! Distances and angles between vectors, and the losses of `nn` made of them.
//!
//! Half floats are calculated in float32 and rounded once.

use super::nn_deviance::floored;
use super::nn_loss::reduced;
use super::nn_margin::{above_zero, signed};
use super::nn_norm::wide;
use super::promoted;
use super::reduction::norm;
use crate::dtype::DType;
use crate::error;
use crate::ops::attributes::Reduction;
use crate::ops::emit::{Expr, OrThrow, throw};
use crate::shape::Axes;

composite! {
    /// The cosine of the angle between vectors along `axis`: `x1 · x2 / (|x1| |x2|)`.
    ///
    /// Two floating tensors, which broadcast; the result lacks `axis`. A length counts `eps` at the
    /// least.
    ///
    /// >>> import wengert as wg
    /// >>> x = wg.tensor([[3.0, 4.0]])
    /// >>> wg.nn.cosine_similarity(x, -2.0 * x).tolist()
    /// [-1.0]
    nn function cosine_similarity(
        x1: FloatTensor, x2: FloatTensor, axis: Int = 1; eps: Float = 1e-8,
    ) -> One {
        let ([a, b], dtype) = both("cosine_similarity", [x1, x2]);
        let shape = a.shape().broadcast(&b.shape(), "cosine_similarity").or_throw();
        let axis = [shape.axis(axis, "cosine_similarity").or_throw()];
        let unit = |x: Expr<'e>| {
            let x = x.broadcast(shape.clone());
            x / floored(norm(x, &axis, 2.0), eps).restore(&axis)
        };
        (unit(a) * unit(b)).reduce(Reduction::Sum, &axis).cast(dtype)
    }

    /// The distance between vectors along the last axis: the `p`-norm of `x1 - x2 + eps`.
    ///
    /// Two floating tensors of rank 1 or more, which broadcast; the result lacks the last axis
    /// unless `keepdims`.
    nn function pairwise_distance(
        x1: FloatTensor, x2: FloatTensor, p: Float = 2.0; eps: Float = 1e-6, keepdims: Bool = False,
    ) -> One {
        let ([a, b], dtype) = both("pairwise_distance", [x1, x2]);
        let y = distance("pairwise_distance", a, b, p, eps);
        (if keepdims { y.unsqueeze(y.rank()) } else { y }).cast(dtype)
    }

    /// Distances between all pairs of vectors: (…, P, R) from (…, P, M) and (…, R, M).
    ///
    /// Two floating tensors, whose leading axes broadcast. `p`: the order of the norm. The gradient
    /// of the Euclidean distance of equal vectors is 0.
    ///
    /// >>> import wengert as wg
    /// >>> wg.cdist(wg.tensor([[0.0, 0.0]]), wg.tensor([[3.0, 4.0], [0.0, 1.0]])).tolist()
    /// [[5.0, 1.0]]
    top function cdist(x1: FloatTensor, x2: FloatTensor, p: Float = 2.0) -> One {
        for (name, x) in [("x1", x1), ("x2", x2)] {
            if x.rank() < 2 {
                throw(error::bad_rank("cdist", name, "at least 2", x.shape()));
            }
        }
        if p < 0.0 || p.is_nan() {
            throw(error::bad_value("cdist", "p must be at least 0", format!("got {p}")));
        }
        if !x1.size(x1.rank() - 1).equals(x2.size(x2.rank() - 1)) {
            let facts = format!("{} and {}", x1.shape(), x2.shape());
            throw(error::bad_shape("cdist", "the vectors differ in length", facts));
        }
        let ([a, b], dtype) = both("cdist", [x1, x2]);
        let (rows, columns) = (a.unsqueeze(a.rank() - 1), b.unsqueeze(b.rank() - 2));
        distance("cdist", rows, columns, p, 0.0).cast(dtype)
    }

    /// `x` over its length along `axis`, which counts `eps` at the least.
    ///
    /// Floating. `p`: the order of the norm.
    ///
    /// >>> import wengert as wg
    /// >>> wg.nn.normalize(wg.tensor([[3.0, -4.0]]), p=1.0).abs().sum().round().item()
    /// 1.0
    nn function normalize(x: FloatTensor, p: Float = 2.0, axis: Ints = 1; eps: Float = 1e-12) -> One {
        let axes = x.shape().axes(Some(&axis), "normalize").or_throw();
        let wider = wide(x);
        let length = norm(wider, &axes, p).restore(&axes);
        let least = length.less(length.scalar(eps));
        (wider / least.select(length.scalar(eps), length)).cast(x.dtype())
    }

    /// `x` with each slice along `axis` whose length is above `maxnorm` scaled down to it.
    ///
    /// Floating, rank 2 or more. `p`: the order of the norm. The length gets 1e-7 added where it
    /// divides, as PyTorch does.
    ///
    /// >>> import wengert as wg
    /// >>> wg.renorm(wg.tensor([[3.0, 4.0], [0.0, 0.5]]), 2.0, 0, 1.0).round().tolist()
    /// [[1.0, 1.0], [0.0, 0.0]]
    top method renorm(x: FloatTensor, p: Float, axis: Int, maxnorm: Float) -> One {
        if x.rank() < 2 {
            throw(error::bad_rank("renorm", "x", "at least 2", x.shape()));
        }
        if p <= 0.0 || p.is_nan() {
            throw(error::bad_value("renorm", "p must be positive", format!("got {p}")));
        }
        if maxnorm < 0.0 || maxnorm.is_nan() {
            throw(error::bad_value("renorm", "maxnorm must be at least 0", format!("got {maxnorm}")));
        }
        let axis = x.axis(axis, "renorm");
        let axes: Axes = (0..x.rank()).filter(|&i| i != axis).collect();
        let length = norm(wide(x), &axes, p).restore(&axes);
        let long = length.greater(length.scalar(maxnorm));
        let one = length.scalar(1.0);
        (wide(x) * long.select(maxnorm / (length + 1e-7), one)).cast(x.dtype())
    }

    /// How far an anchor lacks a margin: `max(d(a, p) - d(a, n) + margin, 0)`.
    ///
    /// `anchor`, `positive`, `negative`: floating, (…, D), which broadcast; `d` is
    /// `pairwise_distance`. `swap`: whether the distance of `negative` from `positive` counts where
    /// that is smaller. `reduction`: "mean", "sum" or "none" for the losses (…). Raises ValueError
    /// for a `margin` that is not positive. Source: Balntas et al.: Learning shallow convolutional
    /// feature descriptors with triplet losses, 2016.
    nn function triplet_margin_loss(
        anchor: FloatTensor, positive: FloatTensor, negative: FloatTensor;
        margin: Float = 1.0, p: Float = 2.0, eps: Float = 1e-6, swap: Bool = False,
        reduction: LossReduction = "mean",
    ) -> One {
        let op = "triplet_margin_loss";
        if margin <= 0.0 || margin.is_nan() {
            throw(error::bad_value(op, "margin must be positive", format!("got {margin}")));
        }
        let parts = promoted(&[anchor, positive, negative], op);
        let [a, near, far] = [0, 1, 2].map(|i| wide(parts[i]));
        let mut away = distance(op, a, far, p, eps);
        if swap {
            away = away.minimum(distance(op, near, far, p, eps));
        }
        let values = above_zero(distance(op, a, near, p, eps) - away + margin);
        reduced(op, values, &reduction).cast(parts[0].dtype())
    }

    /// `1 - cos(x1, x2)` where the target is 1, and `max(cos(x1, x2) - margin, 0)` where it is -1.
    ///
    /// `x1`, `x2`: floating, of one shape (N, D) or (D,). `target`: (N,) or (). `reduction`:
    /// "mean", "sum" or "none".
    nn function cosine_embedding_loss(
        x1: FloatTensor, x2: FloatTensor, target: NumericTensor;
        margin: Float = 0.0, reduction: LossReduction = "mean",
    ) -> One {
        let op = "cosine_embedding_loss";
        if !x1.shape().equals(&x2.shape()) || x1.rank() == 0 {
            let facts = format!("x1 {} and x2 {}", x1.shape(), x2.shape());
            throw(error::bad_shape(op, "expected two tensors of one shape (N, D) or (D,)", facts));
        }
        let last = x1.rank() - 1;
        let wanted = x1.shape().reduce(&[last], false);
        if !target.shape().equals(&wanted) {
            let facts = format!("got {}, wanted {wanted} for x1 {}", target.shape(), x1.shape());
            throw(error::bad_shape(op, "the shape of target differs", facts));
        }
        let ([a, b], dtype) = both(op, [x1, x2]);
        let dot = |a: Expr<'e>, b: Expr<'e>| (a * b).reduce(Reduction::Sum, &[last]);
        let lengths = (dot(a, a) + SQUARE) * (dot(b, b) + SQUARE);
        let cosine = dot(a, b) / lengths.sqrt();
        let values = signed(target, 1.0 - cosine, above_zero(cosine - margin));
        reduced(op, values, &reduction).cast(dtype)
    }
}

/// What `cosine_embedding_loss` adds to each squared length, as published.
const SQUARE: f64 = 1e-12;

/// Two operands as they are calculated.
fn both<'e>(op: &str, given: [Expr<'e>; 2]) -> ([Expr<'e>; 2], DType) {
    let parts = promoted(&given, op);
    ([0, 1].map(|i| wide(parts[i])), parts[0].dtype())
}

/// The `p`-norm of `a - b + eps` along the last axis, which disappears.
fn distance<'e>(op: &str, a: Expr<'e>, b: Expr<'e>, p: f64, eps: f64) -> Expr<'e> {
    let d = a - b;
    let d = if eps == 0.0 { d } else { d + eps };
    if d.rank() == 0 {
        throw(error::bad_rank(op, "the common shape", "1 or more", d.shape()));
    }
    let last = [d.rank() - 1];
    norm(d, &last, p).reshape(d.shape().reduce(&last, false))
}
