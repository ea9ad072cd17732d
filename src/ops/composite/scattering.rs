//! Elements written at places that index tensors and masks name, and reductions over what meets
//! there.
//!
//! Negative indices count from the end; an index outside its axis is an `IndexError`, except where
//! segments are said to leave it out.

use super::indexing::{aligned, axis_first};
use super::movement::flattened;
use super::{floating, one_number, size_of, within};
use crate::dtype::{DType, Scalar};
use crate::error;
use crate::ops::attributes::{Cumulation, ScatterMode};
use crate::ops::emit::{Expr, OrThrow, throw};
use crate::ops::op::Op;
use crate::ops::structural::inverse;
use crate::shape::{Dim, Extent, Shape};

composite! {
    /// `x` with its slices at the indices along `axis` replaced by `values`.
    ///
    /// `index`: rank 1. `values`: as `x`, but with the size of `index` along `axis`. Of several
    /// values for one place the last stays, and it alone has a gradient.
    ///
    /// >>> import wengert as wg
    /// >>> wg.index_copy(wg.zeros(3), wg.tensor([0, 2]), wg.tensor([5.0, 7.0])).tolist()
    /// [5.0, 0.0, 7.0]
    top method index_copy(x: Tensor, index: IntTensor, values: Tensor, axis: Int = 0) -> One inline {
        by_slices("index_copy", x, index, values, axis, ScatterMode::Set)
    }
    indexes(Axis "axis")

    /// `x` with its slices at the indices along `axis` filled with one value.
    ///
    /// `index`: rank 1. `value`: a number, or a tensor of one element.
    ///
    /// >>> import wengert as wg
    /// >>> wg.index_fill(wg.zeros(3), wg.tensor([0, -1]), 5.0).tolist()
    /// [5.0, 0.0, 5.0]
    top method index_fill(x: Tensor, index: IntTensor, value: Number, axis: Int = 0) -> One inline {
        let value = one_number(value, "value", "index_fill");
        if let Some(number) = value.as_scalar().filter(|v: &Scalar| !v.fits(x.dtype())) {
            throw(error::overflow("index_fill", number, x.dtype()));
        }
        by_slices("index_fill", x, index, value, axis, ScatterMode::Set)
    }
    indexes(Axis "axis")

    /// `x` with the elements replaced, or added to, that `x[i, j, …]` would read.
    ///
    /// `indices`: an integer tensor for each of the first axes, which broadcast. `values` broadcast
    /// to what would be read. `accumulate`: whether values are added, those for one place in order;
    /// else the last of them stays.
    ///
    /// >>> import wengert as wg
    /// >>> i = wg.tensor([0, 0, 2])
    /// >>> wg.index_put(wg.zeros(3), (i,), wg.ones(3), accumulate=True).tolist()
    /// [2.0, 0.0, 1.0]
    top method index_put(
        x: Tensor, indices: Tensors, values: Tensor; accumulate: Bool = False,
    ) -> One inline {
        let op = "index_put";
        if indices.len() > x.rank() {
            let facts = format!("got {} for shape {}", indices.len(), x.shape());
            throw(error::bad_value(op, "more indices than axes", facts));
        }
        if let Some(other) = indices.iter().find(|i| !i.dtype().is_int()) {
            throw(error::wrong_dtype(op, "an index", other.dtype(), "an integer"));
        }
        let indices: Vec<Expr<'_>> = indices.iter().map(|i| i.cast(DType::I64)).collect();
        let mode = if accumulate { ScatterMode::Add } else { ScatterMode::Set };
        x.scatter(mode, values, &indices)
    }
    indexes(First)

    /// `x` with the elements where `mask` is True replaced by `values`, one after the other.
    ///
    /// `x` and `mask` broadcast. `values`: any shape; elements that are left over count nothing, too
    /// few are an IndexError.
    ///
    /// >>> import wengert as wg
    /// >>> mask = wg.tensor([True, False, True])
    /// >>> wg.masked_scatter(wg.zeros(3), mask, wg.tensor([5.0, 7.0])).tolist()
    /// [5.0, 0.0, 7.0]
    top method masked_scatter(x: Tensor, mask: BoolTensor, values: Tensor) -> One {
        let x = if x.is_number() { x.full(values.dtype(), Shape::scalar()) } else { x };
        let shape = x.shape().broadcast(&mask.shape(), "masked_scatter").or_throw();
        let (x, mask) = (x.broadcast(shape.clone()), mask.broadcast(shape.clone()));
        let flags = flattened(mask, 0, -1).cast(DType::I64);
        let count = flags.cumulate(Cumulation::Sum, 0, false);
        // Place 0 is for what is not replaced.
        let place = count * flags;
        let values = flattened(values, 0, -1).cast(x.dtype());
        let none = values.scalar(0).full(x.dtype(), Shape::of(&[1]));
        let taken = none.concat(&[none, values], 0).gather(&[place]).reshape(shape);
        mask.select(taken, x)
    }
    indexes(First)

    /// `x` with `values` joined to its elements along `axis`, at the indices.
    ///
    /// `out[…, indices[…, i, …], …]` becomes the sum, product, largest or smallest of itself and
    /// `values[…, i, …]`.
    ///
    /// `x` and `indices` have one rank; `indices` broadcasts outside `axis`, `values` to `indices`.
    /// With `broadcast=False` `indices` does not, and may be smaller there: what lies beyond stays.
    /// `reduce`: "sum", "prod", "max" or "min". `include_self`: False leaves out what `x` has at a
    /// place that gets values. NaN wins in "max" and "min", whose gradient is shared equally among
    /// equal elements.
    ///
    /// >>> import wengert as wg
    /// >>> x, i = wg.zeros(2), wg.tensor([0, 1, 0])
    /// >>> wg.scatter_reduce(x, i, wg.tensor([1.0, 2.0, 3.0]), reduce="max").tolist()
    /// [3.0, 2.0]
    top method scatter_reduce(
        x: NumericTensor, indices: IntTensor, values: NumericTensor, axis: Int = -1;
        reduce: ScatterReduction = "sum", include_self: Bool = True, broadcast: Bool = True,
    ) -> One {
        let op = "scatter_reduce";
        let axis = x.axis(axis, op);
        let (base, index) = aligned(op, x, indices, axis, broadcast);
        within(op, &values.shape(), &index.shape());
        let values = values.cast(x.dtype()).broadcast(index.shape());
        joined_at(op, base, index, values, axis, &reduce, include_self)
    }
    indexes(Axis "axis")

    /// The largest or smallest of what meets at a place. All of one rank, and `index` and `values`
    /// of one shape.
    hidden function scatter_extreme(
        x: NumericTensor, index: IntTensor, values: NumericTensor;
        axis: Int, largest: Bool, include_self: Bool,
    ) -> One {
        let axis = x.axis(axis, "scatter_extreme");
        // Of several values for one place the last stays: the best, as NaN comes last too.
        let order = values.emit(Op::ArgSort { axis, descending: !largest });
        let places = index.take_along(order, axis).along(axis);
        let best = x.scatter(ScatterMode::Set, values.take_along(order, axis), &places);
        match (include_self, largest) {
            (false, _) => best,
            (true, true) => x.maximum(best),
            (true, false) => x.minimum(best),
        }
    }
    indexes(Axis "axis")
    vjp(
        g, y;
        places = index.along(axis as usize),
        is_best = values.equal(y.gather(&places)),
        own = if include_self { x.equal(y) } else { untouched(x, &places) },
        share = {
            let count = own.cast(g.dtype());
            let count = count.scatter(ScatterMode::Add, is_best.cast(g.dtype()), &places);
            // Nothing is equal to NaN.
            g / count.maximum(count.scalar(1.0))
        },
    ) {
        x: own.select(*share, g.scalar(0.0)),
        values: is_best.select(share.gather(&places), g.scalar(0.0)),
        index: zero,
    }

    /// Sums of the slices of `x` whose segment is `0 … n - 1`: (n, …).
    ///
    /// `ids`: the segment of each slice along the first axis, in any order; those outside are left
    /// out. `n`: how many segments there are; the sum of an empty one is 0.
    ///
    /// >>> import wengert as wg
    /// >>> wg.segment_sum(wg.tensor([1.0, 2.0, 3.0]), wg.tensor([1, 0, 1]), 2).tolist()
    /// [2.0, 4.0]
    top function segment_sum(x: NumericTensor, ids: IntTensor, n: Size) -> One {
        Segments::new("segment_sum", x, ids, n).reduced(x, "sum", 0.into())
    }

    /// Products of the slices of `x` in each segment, as `segment_sum`; that of an empty one is 1.
    top function segment_prod(x: NumericTensor, ids: IntTensor, n: Size) -> One {
        Segments::new("segment_prod", x, ids, n).reduced(x, "prod", 1.into())
    }

    /// Means of the slices of `x` in each segment, as `segment_sum`; that of an empty one is 0.
    ///
    /// Integers are averaged in float32.
    top function segment_mean(x: NumericTensor, ids: IntTensor, n: Size) -> One {
        let x = floating(x);
        let segments = Segments::new("segment_mean", x, ids, n);
        let one = x.scalar(1.0).full(DType::F32, Shape::from_dims(&[ids.size(0)]));
        let count = segments.reduced(one, "sum", 0.into());
        let mut line = vec![Dim::ONE; x.rank()];
        line[0] = count.size(0);
        let count = count.maximum(count.scalar(1.0)).reshape(Shape::from_dims(&line));
        segments.reduced(x, "sum", 0.into()) / count.cast(x.dtype())
    }

    /// The largest of the slices of `x` in each segment, as `segment_sum`.
    ///
    /// That of an empty one is -inf, or the smallest integer.
    /// The gradient is shared equally among equal largest elements.
    top function segment_max(x: NumericTensor, ids: IntTensor, n: Size) -> One {
        Segments::new("segment_max", x, ids, n).reduced(x, "max", bound(x.dtype(), false))
    }

    /// The smallest of the slices of `x` in each segment, as `segment_sum`.
    ///
    /// That of an empty one is inf, or the largest integer.
    /// The gradient is shared equally among equal smallest elements.
    top function segment_min(x: NumericTensor, ids: IntTensor, n: Size) -> One {
        Segments::new("segment_min", x, ids, n).reduced(x, "min", bound(x.dtype(), true))
    }
}

/// `x` with `values` written to, or added to, its slices at indices of rank 1 along an axis.
pub(super) fn by_slices<'e>(
    op: &str,
    x: Expr<'e>,
    index: Expr<'e>,
    values: Expr<'e>,
    axis: i64,
    mode: ScatterMode,
) -> Expr<'e> {
    if index.rank() != 1 {
        throw(error::bad_rank(op, "index", 1, index.shape()));
    }
    let order = axis_first(x.rank(), x.axis(axis, op));
    let same = values.rank() == x.rank();
    let aligned = if same { values.permute(order.clone()) } else { values };
    let y = x.permute(order.clone()).scatter(mode, aligned, &[index.cast(DType::I64)]);
    y.permute(inverse(&order))
}

/// Which places get no value.
fn untouched<'e>(x: Expr<'e>, places: &[Expr<'e>]) -> Expr<'e> {
    let none = x.scalar(0).full(DType::I64, x.shape());
    none.scatter(ScatterMode::Add, x.scalar(1), places).equal(none.scalar(0))
}

/// Values joined to a base along an axis; all of one rank, `index` and `values` of one shape.
fn joined_at<'e>(
    op: &str,
    base: Expr<'e>,
    index: Expr<'e>,
    values: Expr<'e>,
    axis: usize,
    reduce: &str,
    include_self: bool,
) -> Expr<'e> {
    let largest = match reduce {
        "max" => true,
        "min" => false,
        "sum" | "prod" => {
            let (sum, places) = (reduce == "sum", index.along(axis));
            let neutral = base.scalar(i64::from(!sum));
            let base = match include_self {
                true => base,
                false => untouched(base, &places).select(base, neutral),
            };
            if sum {
                return base.scatter(ScatterMode::Add, values, &places);
            }
            let one = neutral.full(base.dtype(), base.shape());
            let (ids, products) = products(index, values, axis, base.size(axis));
            return base * one.scatter(ScatterMode::Set, products, &ids.along(axis));
        }
        other => {
            let facts = format!("got {other:?}, wanted \"sum\", \"prod\", \"max\" or \"min\"");
            throw(error::bad_value(op, "unknown reduction", facts))
        }
    };
    scatter_extreme(base.cx(), base, index, values, axis as i64, largest, include_self)[0]
}

/// Values in the order of their index along an axis, each times those before it of the same index,
/// and their indices: products over runs of 2, 4, 8, … elements.
fn products<'e>(index: Expr<'e>, values: Expr<'e>, axis: usize, size: Dim) -> (Expr<'e>, Expr<'e>) {
    let index = index.less(index.scalar(0)).select(index + index.whole(size), index);
    let order = index.emit(Op::ArgSort { axis, descending: false });
    let ids = index.take_along(order, axis);
    let mut y = values.take_along(order, axis);
    let (n, mut step) = (ids.size(axis), 1);
    while !n.is_at_most(Dim::new(step)) {
        let moved = |x: Expr<'e>, fill: i64| {
            let mut shape = x.shape();
            shape.dims_mut()[axis] = Dim::new(step);
            let first = x.scalar(fill).full(x.dtype(), shape);
            first.concat(&[first, x.narrow(axis, 0, n - Dim::new(step))], axis)
        };
        y = ids.equal(moved(ids, -1)).select(y * moved(y, 1), y);
        step *= 2;
    }
    (ids, y)
}

/// Slices along the first axis, and which segment each belongs to.
struct Segments<'e> {
    op: &'static str,
    /// `n` for what is left out
    ids: Expr<'e>,
    n: Dim,
}

impl<'e> Segments<'e> {
    fn new(op: &'static str, x: Expr<'e>, ids: Expr<'e>, n: Extent) -> Segments<'e> {
        let n = size_of(n, 0, "n", op);
        if x.rank() == 0 || !ids.shape().equals(&Shape::from_dims(&[x.size(0)])) {
            let facts = format!("got ids {} for x {}", ids.shape(), x.shape());
            throw(error::bad_shape(op, "ids must have one number for each slice of x", facts));
        }
        let ids = ids.cast(DType::I64);
        let out = ids.whole(n);
        let inside = ids.greater_equal(ids.scalar(0)).logical_and(ids.less(out));
        Segments { op, ids: inside.select(ids, out), n }
    }

    fn reduced(&self, x: Expr<'e>, reduce: &str, empty: Scalar) -> Expr<'e> {
        let mut shape = x.shape();
        shape.dims_mut()[0] = self.n + Dim::ONE;
        let base = x.scalar(empty).full(x.dtype(), shape);
        let y = if reduce == "sum" {
            base.scatter(ScatterMode::Add, x, &[self.ids])
        } else {
            let mut line = vec![Dim::ONE; x.rank()];
            line[0] = x.size(0);
            let index = self.ids.reshape(Shape::from_dims(&line)).broadcast(x.shape());
            joined_at(self.op, base, index, x, 0, reduce, true)
        };
        y.narrow(0, 0, self.n)
    }
}

/// The largest or smallest number of a dtype.
fn bound(dtype: DType, largest: bool) -> Scalar {
    let bits = 8 * dtype.size() as u32;
    match (dtype, largest) {
        (DType::F16 | DType::BF16 | DType::F32 | DType::F64, true) => f64::INFINITY.into(),
        (DType::F16 | DType::BF16 | DType::F32 | DType::F64, false) => f64::NEG_INFINITY.into(),
        (DType::I8 | DType::I16 | DType::I32 | DType::I64, true) => {
            (i64::MAX >> (64 - bits)).into()
        }
        (DType::I8 | DType::I16 | DType::I32 | DType::I64, false) => {
            (i64::MIN >> (64 - bits)).into()
        }
        (DType::U8 | DType::U16 | DType::U32 | DType::U64, true) => {
            Scalar::Uint(u64::MAX >> (64 - bits))
        }
        (DType::U8 | DType::U16 | DType::U32 | DType::U64, false) => 0.into(),
        (DType::Bool, largest) => Scalar::Bool(largest),
    }
}
