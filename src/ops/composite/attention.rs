//! Attention: its scores, its gradient, and both for a block of scores at a time.

use smallvec::smallvec;

use super::nn_norm::wide;
use super::promoted;
use crate::dtype::DType;
use crate::error::{self, Result};
use crate::ops::attributes::{Contraction, Reduction};
use crate::ops::declare::{Arguments, Attr, Outputs};
use crate::ops::emit::{Arg, Emit, Expr, OrThrow, throw};
use crate::ops::number::Calculation;
use crate::ops::op::Call;
use crate::shape::{Axes, Dim, Shape};

/// Queries, keys and values, and what is done to their scores.
#[derive(Clone, Copy)]
pub(super) struct Heads<'e> {
    pub q: Expr<'e>,
    pub k: Expr<'e>,
    pub v: Expr<'e>,
    mask: Option<Expr<'e>>,
    causal: bool,
    pub scale: Expr<'e>,
    /// Their last axis
    pub last: usize,
    /// The place of the first query among all
    first: usize,
}

impl<'e> Heads<'e> {
    pub fn new(
        [q, k, v]: [Expr<'e>; 3],
        mask: Option<Expr<'e>>,
        causal: bool,
        scale: Option<f64>,
    ) -> Heads<'e> {
        let [q, k, v] = heads(q, k, v);
        let last = q.rank() - 1;
        let scale = scale.map_or_else(|| over_root(q, q.size(last)), |scale| q.scalar(scale));
        Heads { q, k, v, mask, causal, scale, last, first: 0 }
    }

    /// In the dtype that sums are taken in.
    pub fn wide(self) -> Heads<'e> {
        Heads { q: wide(self.q), k: wide(self.k), v: wide(self.v), ..self }
    }

    pub fn scores(&self) -> Expr<'e> {
        self.hidden(batched(self.q * self.scale, self.k, self.last, self.last))
    }

    /// Scores with the mask applied.
    fn hidden(&self, mut scores: Expr<'e>) -> Expr<'e> {
        if let Some(mask) = self.mask {
            scores = masked(scores, mask);
        }
        if self.causal {
            let line = |axis: usize| {
                let mut shape = Shape::of(&[1, 1]);
                shape.dims_mut()[axis] = scores.size(self.last - 1 + axis);
                scores.iota(DType::I64, shape, axis)
            };
            let rows = match self.first {
                0 => line(0),
                first => line(0) + line(0).scalar(first as i64),
            };
            scores = rows.greater_equal(line(1)).select(scores, scores.scalar(f64::NEG_INFINITY));
        }
        scores
    }

    /// The weights, and the cotangent of the scores.
    pub fn gradient(
        &self,
        g: Expr<'e>,
        y: Expr<'e>,
        logsums: Expr<'e>,
        g_logsums: Option<Expr<'e>>,
    ) -> (Expr<'e>, Expr<'e>) {
        let weights = (self.scores() - logsums.unsqueeze(self.last)).exp();
        let (g, mean) = (wide(g), self.mean(g, y, g_logsums));
        (weights, self.slope(weights, g, mean))
    }

    /// The cotangent of the sum that divides weights, but for a factor.
    fn mean(&self, g: Expr<'e>, y: Expr<'e>, g_logsums: Option<Expr<'e>>) -> Expr<'e> {
        let mean = (wide(g) * wide(y)).reduce_keep(Reduction::Sum, &[self.last]);
        g_logsums.map_or(mean, |h| mean - h.unsqueeze(self.last))
    }

    fn slope(&self, weights: Expr<'e>, g: Expr<'e>, mean: Expr<'e>) -> Expr<'e> {
        weights * (batched(g, self.v, self.last, self.last) - mean)
    }
}

/// One over the root of a size.
fn over_root(x: Expr<'_>, n: Dim) -> Expr<'_> {
    let root = x.count(n).calculate(Calculation::Sqrt, x.scalar(0.0));
    x.scalar(1.0).calculate(Calculation::Div, root)
}

/// A product over one axis each, batched over all axes but the last two.
pub(super) fn batched<'e>(a: Expr<'e>, b: Expr<'e>, a_axis: usize, b_axis: usize) -> Expr<'e> {
    let batch: Axes = (0..a.rank() - 2).collect();
    a.contract(
        b,
        Contraction {
            a_batch: batch.clone(),
            b_batch: batch,
            a_contract: Axes::from_slice(&[a_axis]),
            b_contract: Axes::from_slice(&[b_axis]),
        },
    )
}

/// Query, key and value in one dtype, with the same leading axes.
fn heads<'e>(q: Expr<'e>, k: Expr<'e>, v: Expr<'e>) -> [Expr<'e>; 3] {
    let op = "scaled_dot_product_attention";
    for (name, x) in [("q", q), ("k", k), ("v", v)] {
        if x.rank() < 2 {
            throw(error::bad_rank(op, name, "2 or more", x.shape()));
        }
    }
    let end = |x: Expr<'e>, i: usize| x.size(x.rank() - i);
    if !end(q, 1).equals(end(k, 1)) {
        let facts = format!("q {} and k {}", q.shape(), k.shape());
        throw(error::size_mismatch(op, "last sizes", end(q, 1), end(k, 1), facts));
    }
    if !end(k, 2).equals(end(v, 2)) {
        let facts = format!("k {} and v {}", k.shape(), v.shape());
        throw(error::size_mismatch(op, "lengths", end(k, 2), end(v, 2), facts));
    }
    let shapes = with_common_lead(op, [&q.shape(), &k.shape(), &v.shape()]).or_throw();
    let parts = promoted(&[q, k, v], op);
    std::array::from_fn(|i| parts[i].broadcast(shapes[i].clone()))
}

/// Shapes whose axes before the last two are broadcast to each other.
pub fn with_common_lead(op: &str, shapes: [&Shape; 3]) -> Result<[Shape; 3]> {
    let parts = shapes.map(|shape| shape.dims().split_at(shape.rank() - 2));
    let [q, k, v] = parts.map(|(lead, _)| Shape::from_dims(lead));
    let common = q.broadcast(&k, op)?.broadcast(&v, op)?;
    Ok(parts.map(|(_, own)| common.dims().iter().chain(own).copied().collect()))
}

/// Scores with a mask applied.
fn masked<'e>(scores: Expr<'e>, mask: Expr<'e>) -> Expr<'e> {
    let op = "scaled_dot_product_attention";
    if !mask.shape().broadcasts_to(&scores.shape()) {
        let facts = format!("{} to {}", mask.shape(), scores.shape());
        throw(error::bad_shape(op, "mask does not broadcast to the scores", facts));
    }
    #[allow(clippy::wildcard_enum_match_arm, reason = "any other dtype is refused by name")]
    match mask.dtype() {
        DType::Bool => mask.select(scores, scores.scalar(f64::NEG_INFINITY)),
        dtype if dtype.is_float() => scores + mask.cast(scores.dtype()),
        dtype => throw(error::wrong_dtype(op, "mask", dtype, "floating or bool")),
    }
}

/// A call of attention or of its gradients by a formula that has a block of the scores at a time: so
/// many as `most` says, by the count of all, or those of one query. Where sizes are open it has all.
///
/// All is calculated in the dtype that sums are taken in, and rounded once, at the end.
pub fn in_blocks<'e>(
    call: &Call,
    cx: &'e dyn Emit,
    args: &[Arg],
    most: &dyn Fn(usize) -> usize,
) -> Outputs<'e> {
    let named = |name| call.operand(name).map(|i| Expr::new(cx, args[i]));
    let tensor = |name| match named(name) {
        Some(x) => x.tensor(),
        None => throw(error::internal(format!("attention without {name}"))),
    };
    let causal = matches!(call.attribute("is_causal"), Some(Attr::Bool(true)));
    let scale = match call.attribute("scale") {
        Some(Attr::Float(scale)) => Some(*scale),
        Some(_) | None => None,
    };
    let own = [tensor("q"), tensor("k"), tensor("v")];
    let heads = Heads::new(own, named("mask").map(Expr::tensor), causal, scale);
    let is_empty = |x: Expr<'_>| x.shape().dims().iter().any(|size| size.known() == Some(0));
    if [heads.q, heads.k, heads.v].into_iter().any(is_empty) {
        let (composite, attributes) = (call.composite, &call.attributes[..]);
        return composite.formula(&Arguments { cx, attributes, operands: args });
    }
    let (dtype, heads) = (heads.q.dtype(), heads.wide());
    let given = named("g").map(|g| {
        let mean = heads.mean(g, tensor("y"), named("g_logsums").map(Expr::tensor));
        Given { g: wide(g), mean, logsums: tensor("logsums").unsqueeze(heads.last) }
    });
    let is_gradient = given.is_some();
    let shape = heads.q.shape();
    let all = shape.dims()[..heads.last]
        .iter()
        .copied()
        .fold(heads.k.size(heads.last - 1), |a, b| a * b)
        .known();
    let block = Block { heads, given };
    let found = match all {
        Some(all) => block.along(0, most(all)),
        None => block.whole(),
    };
    let narrow = |(i, x): (usize, Expr<'e>)| if is_gradient || i == 0 { x.cast(dtype) } else { x };
    found.into_iter().enumerate().map(narrow).collect()
}

/// What the gradient of a block needs: the cotangents of its results, and by rows of scores the
/// logarithms of the sums and the means of the weights' cotangents.
#[derive(Clone, Copy)]
struct Given<'e> {
    g: Expr<'e>,
    mean: Expr<'e>,
    logsums: Expr<'e>,
}

/// A part of the scores.
#[derive(Clone, Copy)]
struct Block<'e> {
    heads: Heads<'e>,
    given: Option<Given<'e>>,
}

impl<'e> Block<'e> {
    /// The results, by parts of an axis before the last of the scores if they are too many.
    fn along(self, axis: usize, most: usize) -> Outputs<'e> {
        let Heads { q, k, last, .. } = self.heads;
        let inner =
            q.shape().dims()[axis + 1..last].iter().copied().fold(k.size(last - 1), |a, b| a * b);
        let (Some(n), Some(inner)) = (q.size(axis).known(), inner.known()) else {
            return self.whole();
        };
        if n.saturating_mul(inner) <= most {
            return self.whole();
        }
        let parts = n.div_ceil((most / inner.max(1)).max(1));
        let each = n.div_ceil(parts);
        let part = |start: usize| {
            let block = self.part(axis, start, each.min(n - start));
            match inner > most && axis + 1 < last {
                true => block.along(axis + 1, most),
                false => block.whole(),
            }
        };
        let starts = (0..n).step_by(each);
        if axis + 1 < last || self.given.is_none() {
            let found: Vec<Outputs<'e>> = starts.map(part).collect();
            let all =
                |i: usize| joined(&found.iter().map(|part| part[i]).collect::<Vec<_>>(), axis);
            return (0..found[0].len()).map(all).collect();
        }
        self.summed(starts.rev().map(part))
    }

    /// The cotangents of all queries, keys and values from those by parts of the queries, the last
    /// part first. Parts of causal attention have fewer keys from part to part.
    fn summed(self, parts: impl Iterator<Item = Outputs<'e>>) -> Outputs<'e> {
        let axis = self.heads.last - 1;
        let mut queries: Vec<Expr<'e>> = Vec::new();
        let [k, v] = [self.heads.k, self.heads.v];
        let mut sums = [k, v].map(|of| Sum { of, so_far: None, done: Vec::new() });
        for found in parts {
            queries.push(found[0]);
            sums.iter_mut().zip(&found[1..]).for_each(|(sum, &x)| sum.add(x, axis));
        }
        queries.reverse();
        let [keys, values] = sums.map(|sum| sum.all(axis));
        smallvec![joined(&queries, axis), keys, values]
    }

    /// A part of the scores: some places along an axis.
    fn part(self, axis: usize, start: usize, n: usize) -> Block<'e> {
        let Heads { last, .. } = self.heads;
        let size = Dim::new(n);
        let narrow = |x: Expr<'e>| x.narrow(axis, start, size);
        // The axes of a mask end where those of scores do, and may be 1.
        let of_mask = |x: Expr<'e>, axis: usize, start: usize, size: Dim| match (x.rank() + axis)
            .checked_sub(last + 1)
        {
            Some(own) if x.size(own) != Dim::ONE => x.narrow(own, start, size),
            Some(_) | None => x,
        };
        let mut heads = self.heads;
        heads.q = narrow(heads.q);
        heads.mask = heads.mask.map(|mask| of_mask(mask, axis, start, size));
        if axis + 1 < last {
            (heads.k, heads.v) = (narrow(heads.k), narrow(heads.v));
        } else {
            heads.first += start;
            let keys = heads.k.size(last - 1);
            if heads.causal && keys.known().is_none_or(|keys| start + n < keys) {
                let reach = Dim::new(start + n);
                let first = |x: Expr<'e>| x.narrow(last - 1, 0, reach);
                (heads.k, heads.v) = (first(heads.k), first(heads.v));
                heads.mask = heads.mask.map(|mask| of_mask(mask, last, 0, reach));
            }
        }
        let given = self.given.map(|Given { g, mean, logsums }| Given {
            g: narrow(g),
            mean: narrow(mean),
            logsums: narrow(logsums),
        });
        Block { heads, given }
    }

    fn whole(self) -> Outputs<'e> {
        let Block { heads, given } = self;
        let (last, scale) = (heads.last, heads.scale);
        let scores = heads.hidden(batched(heads.q, heads.k, last, last) * scale);
        if let Some(Given { g, mean, logsums }) = given {
            let weights = (scores - logsums).exp();
            let slope = heads.slope(weights, g, mean);
            return smallvec![
                batched(slope, heads.k, last, last - 1) * scale,
                batched(slope, heads.q, last - 1, last - 1) * scale,
                batched(weights, g, last - 1, last - 1),
            ];
        }
        let top = scores.reduce_keep(Reduction::Max, &[last]);
        let least = top.scalar(f64::NEG_INFINITY);
        let top = top.equal(least).select(top.scalar(0.0), top);
        let weights = (scores - top).exp();
        let sum = weights.reduce_keep(Reduction::Sum, &[last]);
        let logsums = (top + sum.log()).reshape(sum.shape().reduce(&[last], false));
        smallvec![batched(weights, heads.v, last, last - 1) / sum, logsums]
    }
}

/// A sum of arrays that have fewer places along an axis from one to the next.
struct Sum<'e> {
    of: Expr<'e>,
    so_far: Option<Expr<'e>>,
    /// What is summed up, the last places first
    done: Vec<Expr<'e>>,
}

impl<'e> Sum<'e> {
    fn add(&mut self, x: Expr<'e>, axis: usize) {
        let size = x.size(axis);
        self.so_far = Some(match self.so_far {
            None => {
                let missing = self.of.size(axis) - size;
                if missing.known() != Some(0) {
                    let mut shape = x.shape();
                    shape.dims_mut()[axis] = missing;
                    self.done.push(x.scalar(0.0).full(x.dtype(), shape));
                }
                x
            }
            Some(so_far) if so_far.size(axis).same(size) => so_far + x,
            Some(so_far) => {
                let over = so_far.size(axis) - size;
                self.done.push(so_far.narrow(axis, size, over));
                so_far.narrow(axis, 0, size) + x
            }
        });
    }

    fn all(mut self, axis: usize) -> Expr<'e> {
        self.done.extend(self.so_far);
        self.done.reverse();
        joined(&self.done, axis)
    }
}

fn joined<'e>(parts: &[Expr<'e>], axis: usize) -> Expr<'e> {
    if let [one] = *parts { one } else { parts[0].concat(parts, axis) }
}
