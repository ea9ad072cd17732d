//! Tensors put together, taken apart and repeated.

use smallvec::SmallVec;

use super::indexing::axis_first;
use super::movement::flattened;
use super::{check_results, count_of, promoted, shape_of, size_of, within};
use crate::dtype::{DType, Scalar};
use crate::error;
use crate::ops::attributes::{Cumulation, Reduction, ScatterMode};
use crate::ops::declare::Whole;
use crate::ops::emit::{Expr, OrThrow, throw};
use crate::ops::structural::inverse;
use crate::shape::{Dim, Extent, Shape, normalize_axis};
use crate::small::small;

composite! {
    /// Tensors behind each other along an axis.
    ///
    /// `axis`: None flattens them first. Sizes agree along all other axes; dtypes are promoted.
    ///
    /// >>> import wengert as wg
    /// >>> wg.concat([wg.tensor([1, 2]), wg.tensor([3])]).tolist()
    /// [1, 2, 3]
    top function concat(arrays: Tensors, axis: MaybeInt = 0) -> One inline {
        let parts = promoted(&arrays, "concat");
        match axis {
            Some(axis) => parts[0].concat(&parts, parts[0].axis(axis, "concat")),
            None => {
                let flat: Vec<Expr<'_>> = parts.iter().map(|&x| flattened(x, 0, -1)).collect();
                flat[0].concat(&flat, 0)
            }
        }
    }
    also(cat, concatenate)

    /// Tensors of one shape side by side along a new axis.
    ///
    /// `axis`: where the result has its new axis. Dtypes are promoted.
    ///
    /// >>> import wengert as wg
    /// >>> wg.stack([wg.zeros(3), wg.ones(3)], axis=1).shape
    /// (3, 2)
    top function stack(arrays: Tensors, axis: Int = 0) -> One inline {
        let parts = promoted(&arrays, "stack");
        let shape = parts[0].shape();
        if let Some(other) = parts.iter().find(|x| !x.shape().equals(&shape)) {
            let facts = format!("{shape} and {}", other.shape());
            throw(error::bad_shape("stack", "shapes differ", facts));
        }
        let axis = normalize_axis(axis, shape.rank() + 1, "stack").or_throw();
        let layers: SmallVec<[Expr<'_>; 4]> = small(parts.iter().map(|x| x.unsqueeze(axis)));
        parts[0].concat(&layers, axis)
    }

    /// Parts of a tensor along an axis.
    ///
    /// `sections`: a number of equal parts, or the size of each part.
    ///
    /// >>> import wengert as wg
    /// >>> [part.tolist() for part in wg.split(wg.arange(5), (2, 3))]
    /// [[0, 1], [2, 3, 4]]
    top method split(x: Tensor, sections: Counts, axis: Int = 0) -> Many inline {
        let axis = x.axis(axis, "split");
        let sizes = match sections {
            Whole::One(n) => equal_parts(x, count_of(n, 1, "sections", "split"), axis),
            Whole::Many(sizes) => {
                sizes.iter().map(|&n| size_of(n, 0, "a size", "split")).collect()
            }
        };
        parts(x, &sizes, axis, "split")
    }
    unlike("PyTorch's takes the sizes of the parts; write axis=, or use chunk")

    /// At most `n` parts of a tensor along an axis.
    ///
    /// They are of equal sizes but for the last, which may be smaller.
    top method chunk(x: Tensor, n: Int, axis: Int = 0) -> Many inline {
        let axis = x.axis(axis, "chunk");
        let size = x.size(axis);
        let n = count_of(n, 1, "n", "chunk");
        check_results(size.known().map_or(n, |size| size.min(n)));
        let each = size.div_ceil(Dim::new(n));
        let (mut sizes, mut start) = (vec![each], each);
        while start.is_below(size) {
            sizes.push(if (start + each).is_at_most(size) { each } else { size - start });
            start = start + each;
        }
        parts(x, &sizes, axis, "chunk")
    }

    /// The slices of a tensor along an axis, which disappears.
    top method unstack(x: Tensor, axis: Int = 0) -> Many inline {
        let axis = x.axis(axis, "unstack");
        let shape = x.shape().reduce(&[axis], false);
        let slice = |i| x.narrow(axis, i, Dim::ONE).reshape(shape.clone());
        let n = x.size(axis).value();
        check_results(n);
        (0..n).map(slice).collect::<Vec<_>>()
    }
    also(unbind)

    /// Tensors repeated to their common shape.
    top function broadcast_arrays(arrays: Tensors) -> Many inline {
        let common = arrays.iter().fold(Shape::scalar(), |so_far, x| {
            so_far.broadcast(&x.shape(), "broadcast_arrays").or_throw()
        });
        arrays.iter().map(|x| x.broadcast(common.clone())).collect::<Vec<_>>()
    }
    also(broadcast_tensors)

    /// Each element `repeats` times, next to each other.
    ///
    /// `repeats`: an int, or a count for each slice along `axis`, integers (n,). `axis`: None
    /// flattens first. `total_repeat_length`: how long the result is along `axis`: what is more is
    /// left out, and the last slice fills what is missing; captured functions need it beside counts
    /// in a tensor. Raises ValueError for negative counts; where `total_repeat_length` is given they
    /// count as 0.
    ///
    /// >>> import wengert as wg
    /// >>> wg.repeat(wg.tensor([1, 2]), 2).tolist()
    /// [1, 1, 2, 2]
    /// >>> wg.repeat(wg.tensor([1, 2, 3]), wg.tensor([2, 0, 1])).tolist()
    /// [1, 1, 3]
    top method repeat(
        x: Tensor, repeats: IntTensorOrSize, axis: MaybeInt = None;
        total_repeat_length: MaybeSize = None,
    ) -> One inline {
        let (x, axis) = match axis {
            Some(axis) => (x, x.axis(axis, "repeat")),
            None => (flattened(x, 0, -1), 0),
        };
        match total_repeat_length.is_some() || !repeats.is_number() {
            true => by_counts(x, repeats, axis, total_repeat_length),
            false => evenly(x, repeats, axis),
        }
    }
    also(repeat_interleave)

    /// Which slice stands at each place of `total`, where each is repeated as its count (int64)
    /// says.
    hidden function repeated_places(counts: IntTensor; total: Size) -> One {
        let (n, total) = (counts.size(0), size_of(total, 0, "total", "repeat"));
        // Where slices end, and by that how many of them lie before each place of the result.
        let ends = counts.maximum(counts.scalar(0)).cumulate(Cumulation::Sum, 0, false);
        let ends = ends.minimum(ends.whole(total));
        let none = ends.scalar(0).full(DType::I64, Shape::from_dims(&[total + Dim::ONE]));
        let marks = none.scatter(ScatterMode::Add, none.scalar(1), &[ends]);
        let before = marks.cumulate(Cumulation::Sum, 0, false).narrow(0, 0, total);
        (before + before.scalar(1)).minimum(before.whole(n)) - before.scalar(1)
    }

    /// The whole tensor repeated along each axis.
    ///
    /// `repetitions`: counts for the last axes; where there are more, the tensor gets new first
    /// axes.
    ///
    /// >>> import wengert as wg
    /// >>> wg.tile(wg.tensor([1, 2]), 2).tolist()
    /// [1, 2, 1, 2]
    top method tile(x: Tensor, repetitions: Shape) -> One inline {
        let counts = shape_of(&repetitions, "tile");
        let rank = counts.rank().max(x.rank());
        let padded = |shape: &Shape| -> Shape {
            let missing = std::iter::repeat_n(Dim::ONE, rank - shape.rank());
            missing.chain(shape.dims().iter().copied()).collect()
        };
        let (counts, sizes) = (padded(&counts), padded(&x.shape()));
        let pairs = || counts.dims().iter().zip(sizes.dims());
        let open: Shape = sizes.dims().iter().flat_map(|&n| [Dim::ONE, n]).collect();
        let wide: Shape = pairs().flat_map(|(&count, &n)| [count, n]).collect();
        let joined: Shape = pairs().map(|(&count, &n)| count * n).collect();
        x.reshape(open).broadcast(wide).reshape(joined)
    }
}

/// Slices along an axis, each as often as a number says.
fn evenly<'e>(x: Expr<'e>, repeats: Expr<'e>, axis: usize) -> Expr<'e> {
    let n = match (repeats.size_behind(), repeats.as_scalar()) {
        (Some(size), _) => Extent::Size(size),
        (None, Some(Scalar::Int(n))) => Extent::Number(n),
        (None, _) => throw(error::bad_type("repeat", "repeats", "wanted an int or integers")),
    };
    let n = size_of(n, 0, "repeats", "repeat");
    let mut shape = x.shape();
    shape.dims_mut().insert(axis + 1, n);
    let wide = x.unsqueeze(axis + 1).broadcast(shape);
    flattened(wide, axis as i64, axis as i64 + 1)
}

/// Slices along an axis, each as often as its count says.
fn by_counts<'e>(x: Expr<'e>, counts: Expr<'e>, axis: usize, total: Option<Extent>) -> Expr<'e> {
    let (op, n) = ("repeat", x.size(axis));
    if counts.rank() > 1 {
        throw(error::bad_rank(op, "repeats", "0 or 1", counts.shape()));
    }
    let line = Shape::from_dims(&[n]);
    within(op, &counts.shape(), &line);
    let counts = counts.cast(DType::I64).broadcast(line);
    let total = match total {
        Some(total) => size_of(total, 0, "total_repeat_length", op),
        None => length(counts),
    };
    if n.equals(0) && !total.equals(0) {
        let facts = format!("total_repeat_length is {total}");
        throw(error::bad_value(op, "there is nothing to repeat", facts));
    }
    let places = repeated_places(x.cx(), counts, total.into())[0];
    let order = axis_first(x.rank(), axis);
    x.tensor().permute(order.clone()).gather(&[places]).permute(inverse(&order))
}

/// The sum of counts, which is the size of a result.
fn length(counts: Expr<'_>) -> Dim {
    let negative = counts.minimum(counts.scalar(0)).reduce(Reduction::Sum, &[0]).integer();
    let (Some(negative), Some(total)) = (negative, counts.reduce(Reduction::Sum, &[0]).integer())
    else {
        let facts = "the length of the result depends on their data; pass total_repeat_length=";
        throw(error::bad_capture("repeat", "counts in a tensor", facts));
    };
    if negative < 0 {
        throw(error::bad_value("repeat", "counts must not be negative", "some are"));
    }
    size_of(Extent::Number(total), 0, "the sum of repeats", "repeat")
}

fn equal_parts(x: Expr<'_>, n: usize, axis: usize) -> Vec<Dim> {
    let size = x.size(axis);
    if !(size % n.into()).equals(0) {
        let facts = format!("axis {axis} of {} has size {size}, for {n} parts", x.shape());
        throw(error::bad_shape("split", "there are no equal parts", facts));
    }
    check_results(n);
    vec![size / n.into(); n]
}

/// Parts of these sizes, which make up the whole axis.
fn parts<'e>(x: Expr<'e>, sizes: &[Dim], axis: usize, op: &str) -> Vec<Expr<'e>> {
    let total = sizes.iter().fold(Dim::new(0), |sum, &n| sum + n);
    if !x.size(axis).equals(total) {
        let facts =
            format!("they add up to {total}, axis {axis} of {} has {}", x.shape(), x.size(axis));
        throw(error::bad_shape(op, "the sizes of the parts do not fit", facts));
    }
    let mut start = Dim::new(0);
    let next = |&size: &Dim| {
        let part = x.narrow(axis, start, size);
        start = start + size;
        part
    };
    sizes.iter().map(next).collect()
}
