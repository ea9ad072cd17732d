//! Extremes by position, sorting, searching, quantiles.
//!
//! Sorts are stable, also descending ones: equal elements keep their order. NaN comes last.

use super::reduction::axes_of;
use super::{count_of, floating};
use crate::dtype::DType;
use crate::error;
use crate::ops::attributes::{ArgReduction, Cumulation, ScatterMode};
use crate::ops::emit::{Expr, throw};
use crate::ops::op::Op;
use crate::shape::{Axes, Dim, Shape};

composite! {
    /// Position of the largest element (int64): the first of equal ones; NaN wins.
    ///
    /// `axis`: where None, the position among all elements in C order. Of no elements it is an
    /// error.
    top method argmax(x: Tensor, axis: MaybeInt = None; keepdims: Bool = False) -> One inline {
        position(x, ArgReduction::Max, axis, keepdims, "argmax")
    }

    /// Position of the smallest element (int64): the first of equal ones; NaN wins.
    ///
    /// `axis`: where None, the position among all elements in C order. Of no elements it is an
    /// error.
    top method argmin(x: Tensor, axis: MaybeInt = None; keepdims: Bool = False) -> One inline {
        position(x, ArgReduction::Min, axis, keepdims, "argmin")
    }

    /// Elements in order along an axis; NaN last.
    ///
    /// Sorts are always stable. The gradient goes back to where each element came from.
    /// `sort_with_indices` gives the positions too.
    ///
    /// >>> import wengert as wg
    /// >>> wg.sort(wg.tensor([3, 1, 2])).tolist()
    /// [1, 2, 3]
    top method sort(
        x: Tensor, axis: Int = -1; descending: Bool = False, stable: Bool = True,
    ) -> One inline {
        x.emit(Op::Sort { axis: x.axis(axis, "sort"), descending })
    }

    /// Positions (int64) of the elements in order along an axis; NaN last.
    ///
    /// Sorts are always stable.
    top method argsort(
        x: Tensor, axis: Int = -1; descending: Bool = False, stable: Bool = True,
    ) -> One inline {
        x.emit(Op::ArgSort { axis: x.axis(axis, "argsort"), descending })
    }

    /// Elements in order along an axis, and their positions (int64); NaN last.
    ///
    /// Sorts are always stable. The gradient of the elements goes back to where each came from, by
    /// the positions, which are found once.
    ///
    /// >>> import wengert as wg
    /// >>> [t.tolist() for t in wg.sort_with_indices(wg.tensor([3, 1, 2]))]
    /// [[1, 2, 3], [1, 2, 0]]
    top method sort_with_indices(
        x: Tensor, axis: Int = -1; descending: Bool = False, stable: Bool = True,
    ) -> Exactly(2) {
        let axis = x.axis(axis, "sort_with_indices");
        let order = x.emit(Op::ArgSort { axis, descending });
        (x.take_along(order, axis), order)
    }
    vjp(g, y, order: g_order; axis = order.axis(axis, "sort_with_indices")) {
        x: g.take_along(order.inverse_order(*axis), *axis),
    }

    /// The `k` largest elements along an axis, best first, and their positions (int64).
    ///
    /// `largest`: False asks for the smallest. Of equal elements the first wins.
    ///
    /// >>> import wengert as wg
    /// >>> [t.tolist() for t in wg.topk(wg.tensor([3.0, 1.0, 2.0]), 2)]
    /// [[3.0, 2.0], [0, 2]]
    top method topk(x: Tensor, k: Int; axis: Int = -1, largest: Bool = True) -> Exactly(2) {
        let axis = x.axis(axis, "topk");
        let order = x.emit(Op::TopK { k: count_of(k, 0, "k", "topk"), axis, largest });
        (x.take_along(order, axis), order)
    }
    vjp(g, y, order: g_order) {
        x: x.zeros_like().scatter(ScatterMode::Add, g, &order.along(x.axis(axis, "topk"))),
    }

    /// The `k`-th smallest element along an axis, counted from 1, and its position (int64).
    ///
    /// Of equal elements the first comes first; NaN comes last. The gradient goes to the position.
    ///
    /// >>> import wengert as wg
    /// >>> [t.item() for t in wg.kthvalue(wg.tensor([3.0, 1.0, 2.0]), 2)]
    /// [2.0, 2]
    top method kthvalue(
        x: Tensor, k: Int, axis: Int = -1; keepdims: Bool = False,
    ) -> Exactly(2) {
        let axis = x.axis(axis, "kthvalue");
        let k = count_of(k, 1, "k", "kthvalue");
        let order = x.emit(Op::TopK { k, axis, largest: false });
        picked(x, order.narrow(axis, k - 1, Dim::ONE), axis, keepdims)
    }
    vjp(g, y, place: g_place) { x: put_back(x, g, place, axis, keepdims, "kthvalue") }

    /// The most frequent element along an axis, and the last position where it is (int64).
    ///
    /// Of equally frequent ones the smallest; NaN equals nothing. The gradient goes to the position.
    /// Of no elements it is an error.
    ///
    /// >>> import wengert as wg
    /// >>> [t.item() for t in wg.mode(wg.tensor([3, 1, 3, 1, 2]))]
    /// [1, 3]
    top method mode(x: Tensor, axis: Int = -1; keepdims: Bool = False) -> Exactly(2) {
        let axis = x.axis(axis, "mode");
        let order = x.emit(Op::ArgSort { axis, descending: false });
        let sorted = x.take_along(order, axis);
        let n = x.size(axis);
        if n.equals(0) {
            throw(error::empty_reduction("mode", x.shape()));
        }
        // Where each run of equal elements starts, and how long it is so far.
        let place = x.iota(DType::I64, x.shape(), axis);
        let first = sorted.narrow(axis, 0, Dim::ONE);
        let before = first.concat(&[first, sorted.narrow(axis, 0, n - Dim::ONE)], axis);
        let starts = sorted.not_equal(before).select(place, place.scalar(0));
        let length = place - starts.cumulate(Cumulation::Max, axis, false);
        let best = length.emit(Op::ArgReduce(ArgReduction::Max, axis)).unsqueeze(axis);
        picked(x, order.take_along(best, axis), axis, keepdims)
    }
    vjp(g, y, place: g_place) { x: put_back(x, g, place, axis, keepdims, "mode") }

    /// Whether each element is among some values.
    ///
    /// `values`: any shape. `invert`: whether it is not. NaN is among none.
    ///
    /// >>> import wengert as wg
    /// >>> wg.isin(wg.tensor([1, 2, 3]), wg.tensor([3, 1])).tolist()
    /// [True, False, True]
    top method isin(x: Tensor, values: Tensor; invert: Bool = False) -> One {
        let both = super::promoted(&[x.tensor(), values], "isin");
        let (x, count) = (both[0], elements(&both[1].shape()));
        let found = if count.equals(0) {
            x.scalar(false).full(DType::Bool, x.shape())
        } else {
            let line = both[1].reshape(Shape::from_dims(&[count]));
            let sorted = line.emit(Op::Sort { axis: 0, descending: false });
            let place = places(sorted, x, true);
            let last = place.whole(count - Dim::ONE);
            sorted.gather(&[place.minimum(last)]).equal(x)
        };
        if invert { found.logical_not() } else { found }
    }

    /// Where to insert values so that a sorted vector stays in order (int64).
    ///
    /// `sorted`: ascending, rank 1, or in any order with a `sorter`, the positions of its elements
    /// in ascending order (as `argsort` gives). `side`: "left" inserts before equal elements,
    /// "right" after them.
    ///
    /// >>> import wengert as wg
    /// >>> wg.searchsorted(wg.tensor([1.0, 2.0, 3.0]), wg.tensor([2.0, 5.0])).tolist()
    /// [1, 3]
    top function searchsorted(
        sorted: Tensor, values: Tensor; side: Text = "left", sorter: MaybeIntTensor = None,
    ) -> One {
        if sorted.rank() != 1 {
            throw(error::bad_rank("searchsorted", "sorted", 1, sorted.shape()));
        }
        if side != "left" && side != "right" {
            throw(error::bad_value("searchsorted", "side must be \"left\" or \"right\"", side));
        }
        if let Some(order) = sorter.filter(|order| !order.shape().equals(&sorted.shape())) {
            let facts = format!("got {} for shape {}", order.shape(), sorted.shape());
            throw(error::bad_shape("searchsorted", "sorter must be of the shape of sorted", facts));
        }
        let ordered = sorter.map_or(sorted, |order| sorted.gather(&[order.cast(DType::I64)]));
        places(ordered, values, side == "left")
    }
    indexes(First)

    /// Middle value: the mean of the two middle ones of an even count.
    ///
    /// `axis`: an axis, a tuple of axes, or None for all. Integers and bools are computed in
    /// float32. NaN anywhere gives NaN; of no elements it is an error.
    top method median(x: Tensor, axis: Axes = None; keepdims: Bool = False) -> One {
        at_fraction(x, 0.5, axis.as_deref(), keepdims, "median")
    }
    unlike("PyTorch's gives values and indices; write axis=")

    /// The value below which a fraction `q` of the elements lies, interpolated linearly.
    ///
    /// `q`: between 0 and 1. `axis`: an axis, a tuple of axes, or None for all. Integers and bools
    /// are computed in float32. NaN anywhere gives NaN; of no elements it is an error.
    top method quantile(x: Tensor, q: Float, axis: Axes = None; keepdims: Bool = False) -> One {
        if !(0.0..=1.0).contains(&q) {
            throw(error::bad_value("quantile", "q must be between 0 and 1", format!("got {q:?}")));
        }
        at_fraction(x, q, axis.as_deref(), keepdims, "quantile")
    }
}

/// The elements at positions along an axis, which has size 1 there, and the positions.
fn picked<'e>(x: Expr<'e>, place: Expr<'e>, axis: usize, keepdims: bool) -> (Expr<'e>, Expr<'e>) {
    let y = x.take_along(place, axis);
    if keepdims {
        return (y, place);
    }
    let shape = x.shape().reduce(&[axis], false);
    (y.reshape(shape.clone()), place.reshape(shape))
}

/// A cotangent of picked elements, at their positions.
fn put_back<'e>(
    x: Expr<'e>,
    g: Expr<'e>,
    place: Expr<'e>,
    axis: i64,
    keepdims: bool,
    op: &str,
) -> Expr<'e> {
    let axis = x.axis(axis, op);
    let (g, place) = if keepdims { (g, place) } else { (g.unsqueeze(axis), place.unsqueeze(axis)) };
    x.zeros_like().scatter(ScatterMode::Add, g, &place.along(axis))
}

fn position<'e>(
    x: Expr<'e>,
    kind: ArgReduction,
    axis: Option<i64>,
    keepdims: bool,
    op: &str,
) -> Expr<'e> {
    // A scalar counts as a vector of one element, as in other reductions.
    let Some(axis) = axis.filter(|axis| !(x.rank() == 0 && matches!(axis, 0 | -1))) else {
        let y = x.reshape(Shape::from_dims(&[elements(&x.shape())])).emit(Op::ArgReduce(kind, 0));
        return if keepdims { y.reshape(Shape::of(&vec![1; x.rank()])) } else { y };
    };
    let axis = x.axis(axis, op);
    let y = x.emit(Op::ArgReduce(kind, axis));
    if keepdims { y.unsqueeze(axis) } else { y }
}

/// The count of elements as a size.
pub(super) fn elements(shape: &Shape) -> Dim {
    shape.elements()
}

/// The place of each value in the merged order of both, less its place among the values alone, is
/// the count of sorted elements before it. Who comes first in the concatenation comes before its
/// equals, since sorting is stable.
fn places<'e>(sorted: Expr<'e>, values: Expr<'e>, left: bool) -> Expr<'e> {
    let both = super::promoted(&[sorted, values], "searchsorted");
    let (n, m) = (both[0].size(0), elements(&both[1].shape()));
    let flat = both[1].reshape(Shape::from_dims(&[m]));
    let ranks = |x: Expr<'e>| {
        let order = Op::ArgSort { axis: 0, descending: false };
        x.emit(order.clone()).emit(order)
    };
    let merged = if left {
        ranks(flat.concat(&[flat, both[0]], 0)).narrow(0, 0, m)
    } else {
        ranks(flat.concat(&[both[0], flat], 0)).narrow(0, n, m)
    };
    (merged - ranks(flat)).reshape(both[1].shape())
}

/// `q end` as a whole number and the rest.
fn place(q: f64, end: Dim) -> (Dim, f64) {
    if end.known().is_none() && (2.0 * q).fract() == 0.0 {
        let twice = end * Dim::new((2.0 * q) as usize);
        let is_even = (twice % Dim::new(2)).equals(0);
        return (twice / Dim::new(2), if is_even { 0.0 } else { 0.5 });
    }
    let place = q * end.value() as f64;
    (Dim::new(place.floor() as usize), place - place.floor())
}

fn at_fraction<'e>(
    x: Expr<'e>,
    q: f64,
    axis: Option<&[i64]>,
    keepdims: bool,
    op: &str,
) -> Expr<'e> {
    let x = floating(x);
    let axes = axes_of(x, axis, op);
    let kept: Axes = (0..x.rank()).filter(|i| !axes.contains(i)).collect();
    let moved = x.permute(kept.iter().chain(&axes).copied().collect());
    let mut rows: Shape = kept.iter().map(|&i| x.size(i)).collect();
    let last = rows.rank();
    rows.dims_mut().push(axes.iter().fold(Dim::ONE, |n, &i| n * x.size(i)));
    let n = rows[last];
    if n.equals(0) {
        throw(error::empty_reduction(op, x.shape()));
    }
    let sorted = moved.reshape(rows).emit(Op::Sort { axis: last, descending: false });
    let single = x.shape().reduce(&axes, true);
    let at = |i: Dim| sorted.narrow(last, i, Dim::ONE).reshape(single.clone());
    let end = n - Dim::ONE;
    let (below, fraction) = place(q, end);
    let (low, high) = (at(below), at((below + Dim::ONE).min(end)));
    let largest = at(end);
    // Without a fraction the next element, which may be infinite, must not take part.
    let y = if fraction == 0.0 { low } else { low + (high - low) * fraction };
    let y = largest.isnan().select(largest, y);
    if keepdims { y } else { y.reshape(x.shape().reduce(&axes, false)) }
}
