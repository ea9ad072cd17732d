//! Elements read and written at places that index tensors name.
//!
//! Negative indices count from the end; an index outside its axis is an `IndexError`.

use super::movement::flattened;
use super::scattering::by_slices;
use crate::dtype::DType;
use crate::error;
use crate::ops::attributes::ScatterMode;
use crate::ops::emit::{Expr, OrThrow as _, throw};
use crate::shape::{Axes, Shape};

composite! {
    /// Slices of `x` along `axis`, at the indices.
    ///
    /// `axis`: None takes from the flattened elements. The result has the axes of `indices` in the
    /// place of `axis`. Gradients of a slice taken several times add up.
    ///
    /// >>> import wengert as wg
    /// >>> wg.take(wg.tensor([10, 20, 30]), wg.tensor([2, 0])).tolist()
    /// [30, 10]
    top method take(x: Tensor, indices: IntTensor, axis: MaybeInt = None) -> One inline {
        let (x, axis) = match axis {
            Some(axis) => (x.tensor(), x.axis(axis, "take")),
            None => (flattened(x, 0, -1), 0),
        };
        let index = indices.cast(DType::I64);
        let taken = x.permute(axis_first(x.rank(), axis)).gather(&[index]);
        // The axes of the index stand first; those before `axis` come before them.
        let n = index.rank();
        let order = (n..n + axis).chain(0..n).chain(n + axis..taken.rank());
        taken.permute(order.collect())
    }
    indexes(Axis "axis")

    /// Elements of `x` along `axis`: `out[…, i, …] = x[…, indices[…, i, …], …]`.
    ///
    /// `x` and `indices` have one rank and broadcast outside `axis`; with `broadcast=False` they do
    /// not, and `indices` may be smaller there: the result has their shape.
    ///
    /// >>> import wengert as wg
    /// >>> x = wg.tensor([[1, 2], [3, 4], [5, 6]])
    /// >>> wg.take_along_axis(x, wg.tensor([[2]]), axis=0, broadcast=False).tolist()
    /// [[5]]
    top method take_along_axis(
        x: Tensor, indices: IntTensor, axis: Int = -1; broadcast: Bool = True,
    ) -> One inline {
        let axis = x.axis(axis, "take_along_axis");
        let (x, index) = aligned("take_along_axis", x, indices, axis, broadcast);
        x.take_along(index, axis)
    }
    indexes(Axis "axis")

    /// `x` with elements along `axis` replaced: `out[…, indices[…, i, …], …] = values[…, i, …]`.
    ///
    /// `x` and `indices` have one rank; `indices` broadcasts outside `axis`, `values` to `indices`.
    /// With `broadcast=False` `indices` does not, and may be smaller there: what lies beyond stays.
    /// Of several values for one place the last stays, and it alone has a gradient.
    top method put_along_axis(
        x: Tensor, indices: IntTensor, values: Tensor, axis: Int = -1; broadcast: Bool = True,
    ) -> One inline {
        let axis = x.axis(axis, "put_along_axis");
        let (base, index) = aligned("put_along_axis", x, indices, axis, broadcast);
        base.scatter(ScatterMode::Set, values, &index.along(axis))
    }
    indexes(Axis "axis")

    /// `x` with `values` added to its slices at the indices along `axis`.
    ///
    /// `index`: rank 1. `values`: as `x`, but with the size of `index` along `axis`. Values for one
    /// place add up, in order.
    ///
    /// >>> import wengert as wg
    /// >>> wg.index_add(wg.zeros(3), wg.tensor([0, 0, 2]), wg.ones(3)).tolist()
    /// [2.0, 0.0, 1.0]
    top method index_add(x: Tensor, index: IntTensor, values: Tensor, axis: Int = 0) -> One inline {
        by_slices("index_add", x, index, values, axis, ScatterMode::Add)
    }
    indexes(Axis "axis")
}

/// The order that puts one axis first.
pub(super) fn axis_first(rank: usize, axis: usize) -> Axes {
    std::iter::once(axis).chain((0..rank).filter(|&i| i != axis)).collect()
}

/// An operand and an int64 index along an axis, in their common shape outside of it; where nothing
/// is to be broadcast, as they are.
pub(super) fn aligned<'e>(
    op: &str,
    x: Expr<'e>,
    index: Expr<'e>,
    axis: usize,
    broadcast: bool,
) -> (Expr<'e>, Expr<'e>) {
    if x.rank() != index.rank() {
        throw(error::bad_rank(op, "indices", x.rank(), index.shape()));
    }
    let wide = index.cast(DType::I64);
    if broadcast {
        let one = |x: Expr<'_>| x.shape().reduce(&[axis], true);
        let outer = one(x).broadcast(&one(index), op).or_throw();
        return (
            x.broadcast(with_size(&outer, x, axis)),
            wide.broadcast(with_size(&outer, index, axis)),
        );
    }
    let fits = |i: usize| i == axis || index.size(i).is_at_most(x.size(i));
    if let Some(i) = (0..x.rank()).find(|&i| !fits(i)) {
        let facts = format!("axis {i} of {} for {}", index.shape(), x.shape());
        throw(error::bad_shape(op, "indices are larger than x outside the axis", facts));
    }
    (x, wide)
}

/// A shape with the size that an operand has along an axis.
fn with_size(outer: &Shape, x: Expr<'_>, axis: usize) -> Shape {
    let mut shape = outer.clone();
    shape.dims_mut()[axis] = x.size(axis);
    shape
}
