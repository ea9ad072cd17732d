//! Losses of `nn`.
//!
//! Half floats are summed in float32 and rounded once.

use super::nn_activation::shifted;
use super::nn_norm::wide;
use super::reduction::joined;
use crate::dtype::{Class, DType};
use crate::error;
use crate::ops::attributes::Reduction;
use crate::ops::emit::{Expr, throw};
use crate::ops::number::Calculation;
use crate::shape::{Axes, Dim, Shape};

composite! {
    /// Cross entropy of logits against classes: `-log softmax(input)` at the target.
    ///
    /// `input`: floating logits (N, C, …), or (C,) for one sample. `target`: integer class indices
    /// (N, …), or floating class probabilities of the shape of `input`. `weight`: a factor for each
    /// class, (C,). Samples whose index is `ignore_index` count nothing.
    /// `label_smoothing` mixes the target with the uniform distribution. `reduction`: "mean" (over
    /// what counts, by weight), "sum", or "none" for the losses (N, …).
    ///
    /// Raises IndexError for an index outside 0 … C - 1, ShapeError for other shapes.
    ///
    /// >>> import wengert as wg
    /// >>> logits = wg.tensor([[9.0, -9.0, -9.0], [0.0, 0.0, 0.0]])
    /// >>> wg.nn.cross_entropy(logits, wg.tensor([1, -100])).item()
    /// 18.0
    nn function cross_entropy(
        input: FloatTensor, target: Tensor, weight: MaybeFloatTensor = None;
        ignore_index: Int = -100, reduction: LossReduction = "mean", label_smoothing: Float = 0.0,
    ) -> One {
        let task = Task::new("cross_entropy", input, target, weight, ignore_index, label_smoothing);
        task.reduced(task.losses(), &reduction).cast(input.dtype())
    }
    precision(Wide)
    indexes(Labels)
    vjp(
        g, y;
        task = Task::new("cross_entropy", input, target, weight, ignore_index, label_smoothing),
        scaled = task.scaled(wide(g), &reduction),
    ) {
        input: task.input_gradient(*scaled),
        target: {
            let (z, total) = task.logs();
            task.weighted(task.along(total) - z) * task.along(*scaled) * (1.0 - label_smoothing)
        },
        weight: task.weight_gradient(wide(g), wide(y), &reduction),
    }

    /// Negative log likelihood: `-input` at the target.
    ///
    /// As `cross_entropy` with class indices, for an `input` of log-probabilities.
    nn function nll_loss(
        input: FloatTensor, target: IntTensor, weight: MaybeFloatTensor = None;
        ignore_index: Int = -100, reduction: LossReduction = "mean",
    ) -> One {
        let task = Task::new("nll_loss", input, target, weight, ignore_index, 0.0);
        let values = task.masked(task.by_class(-task.picked(task.logits)));
        task.reduced(values, &reduction).cast(input.dtype())
    }
    precision(Wide)
    indexes(Labels)

    /// Squared difference.
    ///
    /// Two floating tensors of one shape; ShapeError where they differ. `reduction`: "mean", "sum"
    /// or "none".
    nn function mse_loss(
        input: FloatTensor, target: FloatTensor; reduction: LossReduction = "mean",
    ) -> One {
        same_shape("mse_loss", input, target);
        let d = input - target;
        reduced("mse_loss", d * d, &reduction)
    }
    precision(Wide)

    /// Absolute difference.
    ///
    /// Two floating tensors of one shape; ShapeError where they differ. `reduction`: "mean", "sum"
    /// or "none". The gradient at 0 is 0.
    nn function l1_loss(
        input: FloatTensor, target: FloatTensor; reduction: LossReduction = "mean",
    ) -> One {
        same_shape("l1_loss", input, target);
        reduced("l1_loss", (input - target).abs(), &reduction)
    }
    precision(Wide)

    /// Binary cross entropy of logits: `-t log σ(x) - (1 - t) log σ(-x)`.
    ///
    /// `input` (logits) and `target` (probabilities) are floating and of one shape. `weight` is a
    /// factor for each element, `pos_weight` one for the first term; both broadcast to that shape.
    /// `reduction`: "mean", "sum" or "none".
    nn function binary_cross_entropy_with_logits(
        input: FloatTensor, target: FloatTensor, weight: MaybeFloatTensor = None;
        pos_weight: MaybeFloatTensor = None, reduction: LossReduction = "mean",
    ) -> One {
        let op = "binary_cross_entropy_with_logits";
        same_shape(op, input, target);
        broadcasts(op, "weight", weight, input);
        broadcasts(op, "pos_weight", pos_weight, input);
        let positive = target * input.log_sigmoid();
        let positive = pos_weight.map_or(positive, |w| w * positive);
        let values = -(positive + (1.0 - target) * (-input).log_sigmoid());
        reduced(op, weight.map_or(values, |w| w * values), &reduction)
    }
    precision(Wide)
}

pub(super) fn same_shape(op: &str, input: Expr<'_>, target: Expr<'_>) {
    if !input.shape().equals(&target.shape()) {
        let facts = format!("input {} and target {}", input.shape(), target.shape());
        throw(error::bad_shape(op, "shapes differ", facts));
    }
}

/// Refuses a factor that does not broadcast to the input.
pub(super) fn broadcasts(op: &str, name: &str, factor: Option<Expr<'_>>, input: Expr<'_>) {
    if let Some(w) = factor.filter(|w| !w.shape().broadcasts_to(&input.shape())) {
        let facts = format!("{} to {}", w.shape(), input.shape());
        throw(error::bad_shape(op, format!("{name} does not broadcast to input"), facts));
    }
}

/// Samples (N, C) or (C,) as they are calculated, and their class axis; `weight` has one factor for
/// each class.
pub(super) fn logits_of<'e>(
    op: &str,
    input: Expr<'e>,
    weight: Option<Expr<'e>>,
) -> (Expr<'e>, usize) {
    if !(1..=2).contains(&input.rank()) {
        throw(error::bad_rank(op, "input", "1 or 2", input.shape()));
    }
    let last = input.rank() - 1;
    for_each_class(op, weight, input.size(last));
    (wide(input), last)
}

/// Refuses a weight that has not one factor for each class.
fn for_each_class(op: &str, weight: Option<Expr<'_>>, classes: Dim) {
    if let Some(w) = weight.filter(|w| !w.shape().equals(&Shape::from_dims(&[classes]))) {
        let facts = format!("got {}, wanted ({classes},)", w.shape());
        throw(error::bad_shape(op, "the shape of weight differs", facts));
    }
}

/// Labels as indices of the class axis. Negative ones are moved below every index, so that none
/// counts from the end.
pub(super) fn label_of<'e>(label: Expr<'e>, classes: Dim) -> Expr<'e> {
    let label = label.cast(DType::I64);
    label.less(label.scalar(0)).select(label - label.whole(classes), label)
}

/// Every axis.
pub(super) fn all(x: Expr<'_>) -> Axes {
    (0..x.rank()).collect()
}

fn unknown(op: &str, reduction: &str) -> ! {
    let facts = format!("got {reduction:?}, wanted \"mean\", \"sum\" or \"none\"");
    throw(error::bad_value(op, "unknown reduction", facts))
}

pub(super) fn reduced<'e>(op: &str, values: Expr<'e>, reduction: &str) -> Expr<'e> {
    let dtype = values.dtype();
    let total = || wide(values).reduce(Reduction::Sum, &all(values));
    match reduction {
        "none" => values,
        "sum" => total().cast(dtype),
        "mean" => (total() / joined(values, &all(values))).cast(dtype),
        other => unknown(op, other),
    }
}

/// Logits against classes along one axis.
struct Task<'e> {
    logits: Expr<'e>,
    /// The class axis
    axis: usize,
    target: Target<'e>,
    weight: Option<Expr<'e>>,
    smoothing: f64,
    op: &'static str,
}

/// What the classes should be.
enum Target<'e> {
    /// Indices that address the class axis, and which of them count
    Classes { index: Expr<'e>, counted: Expr<'e> },
    /// A distribution
    Probabilities(Expr<'e>),
}

impl<'e> Task<'e> {
    fn new(
        op: &'static str,
        input: Expr<'e>,
        target: Expr<'e>,
        weight: Option<Expr<'e>>,
        ignore: i64,
        smoothing: f64,
    ) -> Task<'e> {
        if input.rank() == 0 {
            throw(error::bad_rank(op, "input", "1 or more", input.shape()));
        }
        if !(0.0..=1.0).contains(&smoothing) {
            throw(error::bad_value(
                op,
                "label_smoothing must be in [0, 1]",
                format!("got {smoothing}"),
            ));
        }
        let axis = usize::from(input.rank() > 1);
        let classes = input.size(axis);
        for_each_class(op, weight, classes);
        let given = target.tensor();
        let wanted = match given.dtype().class() {
            Class::Float => input.shape(),
            Class::Int => input.shape().reduce(&[axis], false),
            Class::Bool => {
                throw(error::wrong_dtype(op, "target", DType::Bool, "an integer or floating"))
            }
        };
        if !given.shape().equals(&wanted) {
            // Classes that arrive as floats are the likeliest mistake.
            let one_each = input.shape().reduce(&[axis], false);
            if given.dtype().is_float() && given.shape().equals(&one_each) {
                let what = "class indices are integers";
                let facts = format!(
                    "got a target of dtype {} and shape {one_each}; cast it, e.g. \
                     target.astype(int64)",
                    given.dtype()
                );
                throw(error::bad_target(op, what, facts));
            }
            let facts =
                format!("got {}, wanted {wanted} for input {}", given.shape(), input.shape());
            throw(error::bad_shape(op, "the shape of target differs", facts));
        }
        let target = match given.dtype().class() {
            Class::Float => Target::Probabilities(given),
            Class::Bool | Class::Int => {
                let label = given.cast(DType::I64);
                let counted = label.not_equal(label.scalar(ignore));
                let index = counted.select(label_of(label, classes), label.scalar(0));
                Target::Classes { index, counted }
            }
        };
        Task { logits: wide(input), axis, target, weight: weight.map(wide), smoothing, op }
    }

    /// A value for each sample, laid beside the class axis.
    fn along(&self, x: Expr<'e>) -> Expr<'e> {
        if x.rank() == 0 { x } else { x.unsqueeze(self.axis) }
    }

    /// The sum over classes.
    fn sum(&self, x: Expr<'e>) -> Expr<'e> {
        x.reduce(Reduction::Sum, &[self.axis])
    }

    /// Times the class weights.
    fn weighted(&self, x: Expr<'e>) -> Expr<'e> {
        let Some(w) = self.weight else { return x };
        let mut line = Shape::of(&vec![1; self.logits.rank()]);
        line.dims_mut()[self.axis] = w.size(0);
        x * w.reshape(line)
    }

    /// The logits less their largest, and the logarithm of the sum of their exponentials.
    fn logs(&self) -> (Expr<'e>, Expr<'e>) {
        let z = shifted(self.logits, &[self.axis]);
        (z, self.sum(z.exp()).log())
    }

    /// The entry of each sample's class.
    fn picked(&self, x: Expr<'e>) -> Expr<'e> {
        let Target::Classes { index, .. } = self.target else { return x };
        let shape = index.shape();
        x.take_along(index.unsqueeze(self.axis), self.axis).reshape(shape)
    }

    /// Times the weight of each sample's class.
    fn by_class(&self, x: Expr<'e>) -> Expr<'e> {
        match (self.weight, &self.target) {
            (Some(w), Target::Classes { index, .. }) => x * w.gather(&[*index]),
            _ => x,
        }
    }

    /// Zero where a sample does not count.
    fn masked(&self, x: Expr<'e>) -> Expr<'e> {
        match self.target {
            Target::Classes { counted, .. } => counted.select(x, x.scalar(0.0)),
            Target::Probabilities(_) => x,
        }
    }

    /// The share of the uniform distribution in each class.
    fn floor(&self) -> Expr<'e> {
        let share = self.logits.scalar(self.smoothing);
        share.calculate(Calculation::Div, self.logits.count(self.logits.size(self.axis)))
    }

    /// The loss of each sample.
    fn losses(&self) -> Expr<'e> {
        let (z, total) = self.logs();
        match self.target {
            Target::Probabilities(_) => {
                self.sum(self.weighted(self.distribution() * (self.along(total) - z)))
            }
            Target::Classes { .. } => {
                let own = self.by_class(total - self.picked(z));
                if self.smoothing == 0.0 {
                    return self.masked(own);
                }
                let spread = self.sum(self.weighted(self.along(total) - z));
                self.masked(own * (1.0 - self.smoothing) + spread * self.floor())
            }
        }
    }

    /// How much the samples count together.
    fn count(&self) -> Expr<'e> {
        match self.target {
            Target::Classes { counted, .. } => {
                let each = self.by_class(counted.cast(self.logits.dtype()));
                each.reduce(Reduction::Sum, &all(each))
            }
            Target::Probabilities(_) => {
                let samples = self.logits.shape().reduce(&[self.axis], false);
                self.logits.count(samples.elements())
            }
        }
    }

    fn reduced(&self, losses: Expr<'e>, reduction: &str) -> Expr<'e> {
        match reduction {
            "mean" => losses.reduce(Reduction::Sum, &all(losses)) / self.count(),
            other => reduced(self.op, losses, other),
        }
    }

    /// The cotangent of each sample's loss.
    fn scaled(&self, g: Expr<'e>, reduction: &str) -> Expr<'e> {
        if reduction == "mean" { g / self.count() } else { g }
    }

    /// `g (Q softmax − q)`, with the target's distribution `q` by weight and `Q = Σ q`.
    fn input_gradient(&self, g: Expr<'e>) -> Expr<'e> {
        let (z, total) = self.logs();
        let p = (z - self.along(total)).exp();
        let q = self.weighted(self.distribution());
        let plain = self.weight.is_none() && matches!(self.target, Target::Classes { .. });
        let slope = if plain { p - q } else { p * self.along(self.sum(q)) - q };
        let g = self.masked(g);
        slope * self.along(g)
    }

    /// `Σ gₙ qₙ ℓₙ` over samples, with the target's distribution `q` and the classes' losses `ℓ`;
    /// and less `g y Σ [class]` for what a mean divides by.
    fn weight_gradient(&self, g: Expr<'e>, y: Expr<'e>, reduction: &str) -> Expr<'e> {
        let (z, total) = self.logs();
        let each = self.along(self.masked(self.scaled(g, reduction)));
        let mut slope = self.distribution() * (self.along(total) - z) * each;
        if reduction == "mean" && matches!(self.target, Target::Classes { .. }) {
            slope = slope - self.one_hot() * (each * y);
        }
        let samples: Axes = (0..slope.rank()).filter(|&axis| axis != self.axis).collect();
        slope.reduce(Reduction::Sum, &samples)
    }

    /// The target as a distribution over classes, smoothed.
    fn distribution(&self) -> Expr<'e> {
        let (q, keep) = (self.one_hot(), 1.0 - self.smoothing);
        if self.smoothing == 0.0 { q } else { q * keep + self.floor() }
    }

    /// The target as a distribution over classes.
    fn one_hot(&self) -> Expr<'e> {
        match self.target {
            Target::Probabilities(p) => wide(p),
            Target::Classes { index, .. } => {
                let count = self.logits.size(self.axis);
                let classes = self.logits.iota(DType::I64, Shape::from_dims(&[count]), 0);
                let mut line = Shape::of(&vec![1; self.logits.rank()]);
                line.dims_mut()[self.axis] = count;
                // Looked up, so that a class that there is not is refused where the loss itself is
                // not wanted.
                let own = classes.gather(&[index]).unsqueeze(self.axis);
                classes.reshape(line).equal(own).cast(self.logits.dtype())
            }
        }
    }
}
