//! Connectionist temporal classification: the likelihood of a sequence of labels under all of its
//! alignments with a longer one.
//!
//! Labels are extended by blanks: `∅ l₁ ∅ l₂ … ∅`. With `αₜ(s)` the logarithm of the probability of
//! all paths that end at place `s` after step `t`, and `p` that of the step,
//!
//! ```text
//! αₜ(s) = log(exp αₜ₋₁(s) + exp αₜ₋₁(s - 1) + [may skip] exp αₜ₋₁(s - 2)) + log pₜ(label of s)
//! ```
//!
//! where a place may be reached over the one before if its label differs from that two before. The
//! loss is `-log(exp α(end) + exp α(end - 1))`. What is impossible counts a large finite number, so
//! that gradients are differences of finite ones.

use super::nn_loss::{label_of, reduced};
use super::nn_norm::wide;
use crate::dtype::DType;
use crate::error;
use crate::ops::attributes::Cumulation;
use crate::ops::emit::{Expr, throw};
use crate::shape::{Dim, Shape};

/// The logarithm of the probability of what is impossible.
const NEVER: f64 = -1e30;
/// Below it nothing is possible.
const HARDLY: f64 = -1e29;

composite! {
    /// Connectionist temporal classification.
    ///
    /// The negative log likelihood of labels under all of their alignments with the steps.
    /// `log_probs`: floating log-probabilities (T, N, C), or (T, C) for one sample. `targets`:
    /// integer labels (N, S), of which the first `target_lengths` count, or those of all samples one
    /// after the other, (Σ target_lengths,), which costs more. `input_lengths`, `target_lengths`:
    /// (N,), or () for one sample; steps after an input's length count nothing. `blank`: the class
    /// between labels. `reduction`: "mean" (each loss over its target's length, then over samples),
    /// "sum" or "none" for the losses (N,).
    ///
    /// A target that fits no alignment gives inf, whose gradient is not finite, or 0 without a
    /// gradient where `zero_infinity`. The gradient is that of the formula; PyTorch's differs before
    /// a log_softmax, and agrees behind it. Raises IndexError for a label outside 0 … C - 1 or a
    /// target longer than S.
    ///
    /// Source: Graves et al.: Connectionist temporal classification, 2006.
    ///
    /// >>> import wengert as wg
    /// >>> x = wg.nn.log_softmax(wg.zeros((3, 1, 2)))
    /// >>> loss = wg.nn.ctc_loss(x, wg.tensor([[1]]), wg.tensor([3]), wg.tensor([1]))
    /// >>> round(wg.exp(-loss).item() * 8)
    /// 6
    nn function ctc_loss(
        log_probs: FloatTensor, targets: IntTensor, input_lengths: IntTensor,
        target_lengths: IntTensor, blank: Int = 0, reduction: LossReduction = "mean";
        zero_infinity: Bool = False,
    ) -> One {
        let task = Task::new(log_probs, targets, input_lengths, target_lengths, blank);
        let losses = task.losses(zero_infinity);
        let losses = if reduction == "mean" { losses / task.divisor() } else { losses };
        let losses = if log_probs.rank() == 2 { losses.reshape(Shape::scalar()) } else { losses };
        reduced("ctc_loss", losses, &reduction).cast(log_probs.dtype())
    }
    indexes(Labels)
}

struct Task<'e> {
    /// (T, N, C)
    steps: Expr<'e>,
    /// (N, S), blank behind their lengths
    labels: Expr<'e>,
    /// (N,)
    input_lengths: Expr<'e>,
    /// (N,)
    target_lengths: Expr<'e>,
    blank: i64,
}

impl<'e> Task<'e> {
    fn new(
        x: Expr<'e>,
        targets: Expr<'e>,
        input_lengths: Expr<'e>,
        target_lengths: Expr<'e>,
        blank: i64,
    ) -> Task<'e> {
        let op = "ctc_loss";
        if !(2..=3).contains(&x.rank()) {
            throw(error::bad_rank(op, "log_probs", "2 or 3", x.shape()));
        }
        let steps = wide(if x.rank() == 2 { x.unsqueeze(1) } else { x });
        let (rows, classes) = (steps.size(1), steps.size(2));
        if blank < 0 || classes.is_below(blank as usize + 1) {
            let facts = format!("got {blank} for {classes} classes");
            throw(error::bad_value(op, "blank must be a class", facts));
        }
        let line = Shape::from_dims(&[rows]);
        let lengths = [("input_lengths", input_lengths), ("target_lengths", target_lengths)];
        let [input_lengths, target_lengths] = lengths.map(|(name, x)| {
            let whole = x.rank() == 0 && rows.equals(1);
            if !whole && !x.shape().equals(&line) {
                let facts = format!("got {}, wanted {line}", x.shape());
                throw(error::bad_shape(op, format!("the shape of {name} differs"), facts));
            }
            x.cast(DType::I64).reshape(line.clone())
        });
        let targets = targets.cast(DType::I64);
        let targets = match targets.rank() {
            1 if rows.equals(1) => targets.unsqueeze(0),
            1 => rowwise(targets, target_lengths),
            2 if targets.size(0).equals(rows) => targets,
            _ => {
                let facts = format!("got {}, wanted ({rows}, S) or (S,)", targets.shape());
                throw(error::bad_shape(op, "the shape of targets differs", facts))
            }
        };
        let places = targets.iota(DType::I64, Shape::from_dims(&[1.into(), targets.size(1)]), 1);
        let counted = places.less(target_lengths.unsqueeze(1));
        let labels = counted.select(label_of(targets, classes), targets.scalar(blank));
        Task { steps, labels, input_lengths, target_lengths, blank }
    }

    /// Labels between blanks: (N, 2 S + 1).
    fn extended(&self) -> Expr<'e> {
        let (labels, [n, s]) = (self.labels, [self.labels.size(0), self.labels.size(1)]);
        let blank = |size| labels.scalar(self.blank).full(DType::I64, Shape::from_dims(&[n, size]));
        let first = blank(s).unsqueeze(2);
        let pairs = first.concat(&[first, labels.unsqueeze(2)], 2);
        let pairs = pairs.reshape(Shape::from_dims(&[n, s * Dim::new(2)]));
        pairs.concat(&[pairs, blank(Dim::ONE)], 1)
    }

    /// `log(exp α(end) + exp α(end - 1))` of each sample.
    fn totals(&self) -> Expr<'e> {
        let (x, places) = (self.steps, self.extended());
        let [n, width] = [places.size(0), places.size(1)];
        let row = x.iota(DType::I64, Shape::from_dims(&[n, Dim::ONE]), 0);
        // (N, C, T), of which the classes at the places are taken: (N, places, T).
        let emitted = x.permute([1, 2, 0].into_iter().collect()).gather(&[row, places]);
        let emitted = emitted.permute([2, 0, 1].into_iter().collect());
        let emitted = emitted.maximum(emitted.scalar(NEVER));
        let skips = places.not_equal(behind(places, 2, places.scalar(self.blank)));
        let place = x.iota(DType::I64, Shape::from_dims(&[Dim::ONE, width]), 1);
        let skips = skips.logical_and(place.greater(place.scalar(1)));
        let shape = Shape::from_dims(&[n, width]);
        let first = place.equal(place.scalar(0)).select(x.scalar(0.0), x.scalar(NEVER));
        let first = first.cast(x.dtype()).broadcast(shape);
        let times = x.iota(DType::I64, Shape::from_dims(&[x.size(0), 1.into(), 1.into()]), 0);
        let lasts =
            times.less(self.input_lengths.reshape(Shape::from_dims(&[1.into(), n, 1.into()])));
        let found = x.scan([&[first], &[emitted, lasts], &[skips]], false, &|_, v| {
            let [before, emitted, lasts, skips] = [v[0], v[1], v[2], v[3]];
            let never = before.scalar(NEVER);
            let one = before.logaddexp(behind(before, 1, never));
            let two = skips.select(behind(before, 2, never), before.scalar(NEVER));
            [lasts.select(one.logaddexp(two) + emitted, before)].into_iter().collect()
        });
        let end = self.target_lengths * self.target_lengths.scalar(2);
        let at = |index: Expr<'e>| found[0].gather(&[row.reshape(Shape::from_dims(&[n])), index]);
        let has_label = end.greater(end.scalar(0));
        let before = has_label.select(end - end.scalar(1), end);
        at(end).logaddexp(has_label.select(at(before), x.scalar(NEVER)))
    }

    fn losses(&self, zero_infinity: bool) -> Expr<'e> {
        let total = self.totals();
        let never = total.less(total.scalar(HARDLY));
        if zero_infinity {
            return never.select(total.scalar(0.0), -total);
        }
        let factor = never.select(total.scalar(f64::INFINITY), total.scalar(1.0));
        -total * factor.cast(total.dtype())
    }

    /// What "mean" divides the losses by.
    fn divisor(&self) -> Expr<'e> {
        let n = self.target_lengths;
        n.maximum(n.scalar(1)).cast(self.steps.dtype())
    }
}

/// Each row moved on by some places, which are filled.
fn behind<'e>(x: Expr<'e>, by: usize, fill: Expr<'e>) -> Expr<'e> {
    let (rows, by, width) = (x.size(0), Dim::new(by), x.size(1));
    let start = fill.full(x.dtype(), Shape::from_dims(&[rows, by]));
    start.concat(&[start, x], 1).narrow(1, 0, width)
}

/// Labels one after the other as rows, each as wide as all of them together.
fn rowwise<'e>(labels: Expr<'e>, lengths: Expr<'e>) -> Expr<'e> {
    let all = labels.size(0);
    let ends = lengths.cumulate(Cumulation::Sum, 0, false);
    let places = labels.iota(DType::I64, Shape::from_dims(&[Dim::ONE, all]), 1);
    let index = places + (ends - lengths).unsqueeze(1);
    // What lies behind a row's length is never looked at.
    let within = places.less(lengths.unsqueeze(1));
    labels.gather(&[within.select(index, index.scalar(0))])
}
