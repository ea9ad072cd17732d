//! Running sums, products and extremes, and their opposite: differences.

use super::nn_norm::wide;
use super::reduction::summed;
use super::{count_of, promoted};
use crate::dtype::DType;
use crate::error;
use crate::ops::attributes::{Cumulation, ScatterMode};
use crate::ops::emit::{Expr, throw};
use crate::shape::Dim;

composite! {
    /// Running sum along an axis.
    ///
    /// `axis`: may be None for a tensor of rank 1. `include_initial`: whether a 0 comes first, so
    /// that the axis grows by one. Integers and bools are summed in int64 (uint64 for unsigned)
    /// where `dtype` is None.
    ///
    /// >>> import wengert as wg
    /// >>> wg.cumulative_sum(wg.tensor([1, 2, 3])).tolist()
    /// [1, 3, 6]
    top method cumulative_sum(
        x: Tensor, axis: MaybeInt = None; dtype: MaybeDtype = None, include_initial: Bool = False,
    ) -> One inline {
        let axis = axis_of(x, axis, "cumulative_sum");
        let x = x.cast(dtype.unwrap_or(summed(x.dtype())));
        let y = x.cumulate(Cumulation::Sum, axis, false);
        if include_initial { with_initial(y, false, axis) } else { y }
    }
    also(cumsum)

    /// Running product along an axis.
    ///
    /// `axis`: may be None for a tensor of rank 1. `include_initial`: whether a 1 comes first, so
    /// that the axis grows by one. Integers and bools are multiplied in int64 (uint64 for unsigned)
    /// where `dtype` is None.
    top method cumulative_prod(
        x: Tensor, axis: MaybeInt = None; dtype: MaybeDtype = None, include_initial: Bool = False,
    ) -> One inline {
        let axis = axis_of(x, axis, "cumulative_prod");
        let x = x.cast(dtype.unwrap_or(summed(x.dtype())));
        let y = x.cumulate(Cumulation::Prod, axis, false);
        if include_initial { with_initial(y, true, axis) } else { y }
    }
    also(cumprod)

    /// Running maximum along an axis; NaN stays.
    ///
    /// `axis`: may be None for a tensor of rank 1.
    top method cumulative_max(x: Tensor, axis: MaybeInt = None) -> One inline {
        x.cumulate(Cumulation::Max, axis_of(x, axis, "cumulative_max"), false)
    }

    /// Running minimum along an axis; NaN stays.
    ///
    /// `axis`: may be None for a tensor of rank 1.
    top method cumulative_min(x: Tensor, axis: MaybeInt = None) -> One inline {
        x.cumulate(Cumulation::Min, axis_of(x, axis, "cumulative_min"), false)
    }

    /// Running maximum along an axis, and the position of each (int64); NaN stays.
    ///
    /// The position is that of the last of equal ones so far, and the gradient goes there.
    ///
    /// >>> import wengert as wg
    /// >>> x = wg.tensor([1, 3, 2, 3])
    /// >>> [t.tolist() for t in wg.cumulative_max_with_indices(x)]
    /// [[1, 3, 3, 3], [0, 1, 1, 3]]
    top method cumulative_max_with_indices(x: Tensor, axis: Int = -1) -> Exactly(2) {
        extreme(x, axis, Cumulation::Max, "cumulative_max_with_indices")
    }
    vjp(g, y, place: g_place) {
        x: found_at(x, g, place, axis, "cumulative_max_with_indices"),
    }

    /// Running minimum along an axis, and the position of each (int64); NaN stays.
    ///
    /// The position is that of the last of equal ones so far, and the gradient goes there.
    top method cumulative_min_with_indices(x: Tensor, axis: Int = -1) -> Exactly(2) {
        extreme(x, axis, Cumulation::Min, "cumulative_min_with_indices")
    }
    vjp(g, y, place: g_place) {
        x: found_at(x, g, place, axis, "cumulative_min_with_indices"),
    }

    /// Running `log(sum(exp(x)))` along an axis, without overflow.
    ///
    /// `axis`: may be None for a tensor of rank 1. Where all elements so far are -inf, so is the
    /// result, and the gradient is 0.
    ///
    /// >>> import wengert as wg
    /// >>> wg.exp(wg.logcumsumexp(wg.log(wg.tensor([1.0, 2.0])))).round().tolist()
    /// [1.0, 3.0]
    top method logcumsumexp(x: FloatTensor, axis: MaybeInt = None) -> One {
        let axis = axis_of(x, axis, "logcumsumexp");
        let (n, mut y, mut step) = (x.size(axis), wide(x), 1);
        // Sums of 2, 4, 8, … elements.
        while !n.is_at_most(Dim::new(step)) {
            let mut shape = y.shape();
            shape.dims_mut()[axis] = Dim::new(step);
            let first = y.scalar(f64::NEG_INFINITY).full(y.dtype(), shape);
            let moved = first.concat(&[first, y.narrow(axis, 0, n - Dim::new(step))], axis);
            y = log_of_sum(y, moved);
            step *= 2;
        }
        y.cast(x.dtype())
    }

    /// Differences of neighbours along an axis, `n` times over.
    ///
    /// Each time the axis becomes shorter by one. Truth values differ where they are not equal.
    /// `prepend`, `append`: what is joined to the axis before, of the shape of `x` but for that
    /// axis, or one number for every row. Of no differences (`n` 0) the result is `x` alone.
    ///
    /// >>> import wengert as wg
    /// >>> wg.diff(wg.tensor([1, 4, 9])).tolist()
    /// [3, 5]
    top method diff(
        x: Tensor; axis: Int = -1, n: Int = 1, prepend: MaybeTensor = None, append: MaybeTensor = None,
    ) -> One {
        let axis = x.axis(axis, "diff");
        let n = count_of(n, 0, "n", "diff");
        let joined = bordered(x.tensor(), prepend, append, axis);
        let x = if n == 0 { x.tensor() } else { joined };
        // Nothing is left after as many rounds as there are elements.
        let rounds = if n > FEW { n.min(x.size(axis).value().max(1)) } else { n };
        (0..rounds).fold(x, |x, _| difference(x, axis))
    }
}

/// Rounds of differences that are written without knowing the size.
const FEW: usize = 64;

/// The axis a user named; a vector has only one.
fn axis_of(x: Expr<'_>, axis: Option<i64>, op: &str) -> usize {
    match axis {
        Some(axis) => x.axis(axis, op),
        None if x.rank() == 1 => 0,
        None => throw(error::bad_rank(op, "x", "1 where axis is None", x.shape())),
    }
}

fn with_initial<'e>(y: Expr<'e>, initial: bool, axis: usize) -> Expr<'e> {
    let mut shape = y.shape();
    shape.dims_mut()[axis] = Dim::ONE;
    let first = y.scalar(initial).full(y.dtype(), shape);
    y.concat(&[first, y], axis)
}

/// `x` between two tensors along an axis, all in their common dtype; one without axes is repeated.
fn bordered<'e>(
    x: Expr<'e>,
    before: Option<Expr<'e>>,
    after: Option<Expr<'e>>,
    axis: usize,
) -> Expr<'e> {
    let given: Vec<Expr<'e>> = before.into_iter().chain([x]).chain(after).collect();
    if given.len() == 1 {
        return x;
    }
    let mut line = x.shape();
    line.dims_mut()[axis] = Dim::ONE;
    let row = |part: Expr<'e>| if part.rank() == 0 { part.broadcast(line.clone()) } else { part };
    let parts: Vec<Expr<'e>> = promoted(&given, "diff").into_iter().map(row).collect();
    for part in &parts {
        let mut shape = part.shape();
        let fits = part.rank() == x.rank() && {
            shape.dims_mut()[axis] = Dim::ONE;
            shape.equals(&line)
        };
        if !fits {
            let facts = format!("got {} for shape {} along axis {axis}", part.shape(), x.shape());
            throw(error::bad_shape("diff", "prepend and append must fit the other axes", facts));
        }
    }
    parts[0].concat(&parts, axis)
}

fn difference(x: Expr<'_>, axis: usize) -> Expr<'_> {
    let size = x.size(axis);
    let fewer = size - Dim::ONE;
    let (left, right) =
        (x.narrow(axis, 0, fewer), x.narrow(axis, usize::from(!size.equals(0)), fewer));
    if x.dtype() == DType::Bool { right.not_equal(left) } else { right - left }
}

/// A running extreme, and the last place so far where it is found.
fn extreme<'e>(x: Expr<'e>, axis: i64, kind: Cumulation, op: &str) -> (Expr<'e>, Expr<'e>) {
    let axis = x.axis(axis, op);
    let y = x.cumulate(kind, axis, false);
    let own = x.equal(y);
    let own = if x.dtype().is_float() { own.logical_or(x.isnan()) } else { own };
    let place = x.iota(DType::I64, x.shape(), axis);
    let place = own.select(place, place.scalar(0)).cumulate(Cumulation::Max, axis, false);
    (x.take_along(place, axis), place)
}

/// A cotangent of running extremes, at the places where they were found.
fn found_at<'e>(x: Expr<'e>, g: Expr<'e>, place: Expr<'e>, axis: i64, op: &str) -> Expr<'e> {
    x.zeros_like().scatter(ScatterMode::Add, g, &place.along(x.axis(axis, op)))
}

/// `log(exp a + exp b)`, whose gradient is 0 where both are -inf.
fn log_of_sum<'e>(a: Expr<'e>, b: Expr<'e>) -> Expr<'e> {
    let top = a.maximum(b).stop_gradient();
    let top = top.isinf().select(top.scalar(0.0), top);
    let sum = (a - top).exp() + (b - top).exp();
    let none = sum.equal(sum.scalar(0.0));
    let log = none.select(sum.scalar(1.0), sum).log() + top;
    none.select(sum.scalar(f64::NEG_INFINITY), log)
}
