//! Recurrent layers: their operands, their steps, and what their gradients share.

use smallvec::SmallVec;

use super::nn_linear::product;
use super::nn_norm::wide;
use super::promoted;
use crate::dtype::DType;
use crate::error;
use crate::ops::attributes::Reduction;
use crate::ops::batch::{Batched, BatchedCall};
use crate::ops::declare::Outputs;
use crate::ops::emit::{Arg, Expr, throw};
use crate::shape::Shape;

/// A layer on many batches, which are one with as many rows; not where weights differ.
pub(super) fn as_rows<'e>(batch: &BatchedCall<'_, 'e>) -> Option<Outputs<'e>> {
    let shared = batch.places(["weight_ih", "weight_hh", "bias_ih", "bias_hh"]);
    if shared.into_iter().flatten().any(|i| batch.args[i].mapped) {
        return None;
    }
    // Rows are the last axis but one, where there are two, of operands and results.
    let operand = |(i, x): (usize, &Batched<'e>)| {
        if shared.contains(&Some(i)) {
            return x.x.arg();
        }
        let all = x.spread(batch.size);
        let rows = all.rank().saturating_sub(3);
        let all = all.permute((1..=rows).chain([0]).chain(rows + 1..all.rank()).collect());
        let mut shape = all.shape();
        let n = shape.dims_mut().remove(rows + 1);
        shape.dims_mut()[rows] = batch.size * n;
        all.reshape(shape).arg()
    };
    let operands: SmallVec<[Arg; 12]> = batch.args.iter().enumerate().map(operand).collect();
    let result = |x: Expr<'e>| {
        let (rows, mut shape) = (x.rank() - 2, x.shape());
        shape.dims_mut()[rows] = shape[rows] / batch.size;
        shape.dims_mut().insert(rows, batch.size);
        x.reshape(shape)
            .permute([rows].into_iter().chain(0..rows).chain(rows + 1..rows + 3).collect())
    };
    Some(batch.on(&operands).into_iter().map(result).collect())
}

/// The gates of an LSTM, and the next state and cell.
pub(super) fn lstm_step<'e>(sums: Expr<'e>, c: Expr<'e>) -> ([Expr<'e>; 4], [Expr<'e>; 2]) {
    let [i, f, g, o] = [0, 1, 2, 3].map(|k| part(sums, k, 4));
    let [i, f, g, o] = [i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()];
    let c = f * c + i * g;
    ([i, f, g, o], [o * c.tanh(), c])
}

/// The gates of gated recurrent units, `U_n h`, and the next state.
pub(super) fn gru_step<'e>(
    fed: Expr<'e>,
    own: Expr<'e>,
    h: Expr<'e>,
) -> ([Expr<'e>; 3], Expr<'e>, Expr<'e>) {
    let both = |k| (part(fed, k, 3) + part(own, k, 3)).sigmoid();
    let (r, z, m) = (both(0), both(1), part(own, 2, 3));
    let n = (part(fed, 2, 3) + r * m).tanh();
    ([r, z, n], m, (1.0 - z) * n + z * h)
}

/// The next state of a simple net.
pub(super) fn rnn_step<'e>(sum: Expr<'e>, nonlinearity: &str) -> Expr<'e> {
    if nonlinearity == "relu" { sum.maximum(sum.scalar(0.0)) } else { sum.tanh() }
}

/// The operands of a layer, in the dtype that they are calculated in.
pub(super) struct Layer<'e> {
    /// That of the results
    pub dtype: DType,
    x: Expr<'e>,
    pub states: SmallVec<[Expr<'e>; 2]>,
    weight_ih: Expr<'e>,
    pub weight_hh: Expr<'e>,
    pub bias_ih: Option<Expr<'e>>,
    pub bias_hh: Option<Expr<'e>>,
}

impl<'e> Layer<'e> {
    /// Over a sequence.
    pub fn new(
        op: &str,
        x: Expr<'e>,
        states: &[(&str, Expr<'e>)],
        weights: [Expr<'e>; 2],
        biases: [Option<Expr<'e>>; 2],
        gates: usize,
    ) -> Layer<'e> {
        if x.rank() != 3 {
            throw(error::bad_rank(op, "x", "3", x.shape()));
        }
        Layer::of(op, x, 1, states, weights, biases, gates)
    }

    /// One step.
    pub fn cell(
        op: &str,
        x: Expr<'e>,
        states: &[(&str, Expr<'e>)],
        weights: [Expr<'e>; 2],
        biases: [Option<Expr<'e>>; 2],
        gates: usize,
    ) -> Layer<'e> {
        if x.rank() == 0 {
            throw(error::bad_rank(op, "x", "1 or more", x.shape()));
        }
        Layer::of(op, x, 0, states, weights, biases, gates)
    }

    /// The axes of `x` from `first` on, but for the last, are those of states.
    fn of(
        op: &str,
        x: Expr<'e>,
        first: usize,
        states: &[(&str, Expr<'e>)],
        weights: [Expr<'e>; 2],
        biases: [Option<Expr<'e>>; 2],
        gates: usize,
    ) -> Layer<'e> {
        let [ih, hh] = weights;
        for (name, weight) in [("weight_ih", ih), ("weight_hh", hh)] {
            if weight.rank() != 2 {
                throw(error::bad_rank(op, name, "2", weight.shape()));
            }
        }
        let last = x.rank() - 1;
        let (hidden, inputs) = (hh.size(1), x.size(last));
        let rows = hidden * gates.into();
        is(op, "weight_hh", hh, Shape::from_dims(&[rows, hidden]));
        is(op, "weight_ih", ih, Shape::from_dims(&[rows, inputs]));
        for &(name, state) in states {
            let lead = x.shape().dims()[first..last].iter().copied().chain([hidden]).collect();
            is(op, name, state, lead);
        }
        for (name, bias) in [("bias_ih", biases[0]), ("bias_hh", biases[1])] {
            if let Some(bias) = bias {
                is(op, name, bias, Shape::from_dims(&[rows]));
            }
        }
        let all: SmallVec<[Expr<'e>; 8]> = [x, ih, hh]
            .into_iter()
            .chain(states.iter().map(|state| state.1))
            .chain(biases.into_iter().flatten())
            .collect();
        let all = promoted(&all, op);
        let dtype = all[0].dtype();
        let mut all = all.into_iter().map(wide);
        let mut next = || all.next().unwrap_or_else(|| unreachable!("one for each operand"));
        let [x, weight_ih, weight_hh] = [next(), next(), next()];
        let states = states.iter().map(|_| next()).collect();
        let [bias_ih, bias_hh] = biases.map(|bias| bias.map(|_| next()));
        Layer { dtype, x, states, weight_ih, weight_hh, bias_ih, bias_hh }
    }

    /// Both biases as one.
    pub fn bias(&self) -> Option<Expr<'e>> {
        match (self.bias_ih, self.bias_hh) {
            (Some(a), Some(b)) => Some(a + b),
            (a, b) => a.or(b),
        }
    }

    /// What is fed to the gates, of all steps.
    pub fn inputs(&self, bias: Option<Expr<'e>>) -> Expr<'e> {
        let fed = product(self.x, self.weight_ih, &[self.x.rank() - 1], &[1]);
        bias.map_or(fed, |b| fed + b)
    }

    /// What the state gives to the gates of one step.
    pub fn own(&self) -> Expr<'e> {
        let h = self.states[0];
        product(h, self.weight_hh, &[h.rank() - 1], &[1])
    }
}

/// Refuses another shape.
fn is(op: &str, name: &str, x: Expr<'_>, wanted: Shape) {
    if !x.shape().equals(&wanted) {
        let facts = format!("got {}, wanted {wanted}", x.shape());
        throw(error::bad_shape(op, format!("the shape of {name} differs"), facts));
    }
}

/// Refuses what no layer of so many gates gives its gradient. Of each part, 0 says that it is one
/// state, and any other number that it has so many gates of all steps; the first is of all steps.
pub(super) fn check_saved(
    op: &str,
    gates: usize,
    weight: Expr<'_>,
    parts: &[(&str, Option<Expr<'_>>, usize)],
) {
    let Some((name, Some(first), _)) = parts.first() else { return };
    if first.rank() != 3 {
        throw(error::bad_rank(op, name, "3", first.shape()));
    }
    if weight.rank() != 2 {
        throw(error::bad_rank(op, "weight_hh", "2", weight.shape()));
    }
    let (steps, rows, units) = (first.size(0), first.size(1), weight.size(1));
    is(op, "weight_hh", weight, Shape::from_dims(&[units * gates.into(), units]));
    for &(name, part, count) in parts {
        let Some(part) = part else { continue };
        is(
            op,
            name,
            part,
            match count {
                0 => Shape::from_dims(&[rows, units]),
                _ => Shape::from_dims(&[steps, rows, units * count.into()]),
            },
        );
    }
}

/// Part `k` of so many of the last axis.
pub(super) fn part(x: Expr<'_>, k: usize, of: usize) -> Expr<'_> {
    let axis = x.rank() - 1;
    let size = x.size(axis) / of.into();
    x.narrow(axis, size * k.into(), size)
}

/// What is fed, and whether examples last, as operands of a scan.
pub(super) fn with<'e>(inputs: Expr<'e>, alive: Option<Expr<'e>>) -> SmallVec<[Expr<'e>; 2]> {
    [inputs].into_iter().chain(alive).collect()
}

/// Whether examples are longer than the place of each step and `more`: (T, N, 1), if they have
/// lengths. `x` has steps and examples.
pub(super) fn lasting<'e>(
    op: &str,
    x: Expr<'e>,
    lengths: Option<Expr<'e>>,
    more: i64,
) -> Option<Expr<'e>> {
    let lengths = lengths?;
    let (steps, rows) = (x.size(0), x.size(1));
    if !lengths.shape().equals(&Shape::from_dims(&[rows])) {
        let facts = format!("got {}, wanted ({rows},)", lengths.shape());
        throw(error::bad_shape(op, "the shape of lengths differs", facts));
    }
    let places = x.iota(DType::I64, Shape::from_dims(&[steps, 1.into(), 1.into()]), 0);
    let places = if more == 0 { places } else { places + places.scalar(more) };
    let lengths = lengths.cast(DType::I64).reshape(Shape::from_dims(&[1.into(), rows, 1.into()]));
    Some(places.less(lengths))
}

/// A value where examples last, what was there before where not.
pub(super) fn held<'e>(alive: Option<Expr<'e>>, next: Expr<'e>, before: Expr<'e>) -> Expr<'e> {
    alive.map_or(next, |alive| alive.select(next, before))
}

/// A value where examples last, 0 where not.
pub(super) fn or_zero<'e>(alive: Option<Expr<'e>>, x: Expr<'e>) -> Expr<'e> {
    alive.map_or(x, |alive| alive.select(x, x.scalar(0.0)))
}

/// The states before all steps, from those behind them, which are 0 where an example has ended: in
/// reverse it begins at its length.
pub(super) fn states<'e>(
    op: &str,
    first: Expr<'e>,
    all: Expr<'e>,
    lengths: Option<Expr<'e>>,
    reverse: bool,
) -> Expr<'e> {
    let found = before(first, all, reverse);
    match lasting(op, all, lengths, 1) {
        Some(alive) if reverse => alive.select(found, first.cast(all.dtype()).unsqueeze(0)),
        Some(_) | None => found,
    }
}

/// What was there before each step: the first state, then those of `all` but the last.
fn before<'e>(first: Expr<'e>, all: Expr<'e>, reverse: bool) -> Expr<'e> {
    let n = all.size(0);
    if n.equals(0) {
        return all;
    }
    let first = first.cast(all.dtype()).unsqueeze(0);
    let rest = all.narrow(0, usize::from(reverse), n - 1.into());
    all.concat(&if reverse { [rest, first] } else { [first, rest] }, 0)
}

/// The cotangent of what was fed.
pub(super) fn fed<'e>(slopes: Expr<'e>, weight: Expr<'e>) -> Expr<'e> {
    product(slopes, weight.cast(slopes.dtype()), &[2], &[0])
}

/// The cotangent of weights, over all steps and examples.
pub(super) fn weights<'e>(slopes: Expr<'e>, fed: Expr<'e>) -> Expr<'e> {
    product(slopes, fed.cast(slopes.dtype()), &[0, 1], &[0, 1])
}

/// The cotangent of biases.
pub(super) fn biases(slopes: Expr<'_>) -> Expr<'_> {
    slopes.reduce(Reduction::Sum, &[0, 1])
}
