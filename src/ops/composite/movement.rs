//! The same elements under another shape or order.

use super::ordering::elements;
use super::shape_of;
use crate::error;
use crate::ops::declare::{Extents, numbers};
use crate::ops::emit::{Expr, OrThrow, throw};
use crate::ops::op::SliceAxis;
use crate::ops::structural::whole;
use crate::shape::{Axes, Dim, Extent, Shape, Tuple, normalize_axis};

composite! {
    /// The same elements, in C order, under another shape.
    ///
    /// One size may be -1: it is worked out from the count of elements. Values never change, so
    /// `copy` makes no difference.
    ///
    /// >>> import wengert as wg
    /// >>> wg.arange(6).reshape(2, -1).tolist()
    /// [[0, 1, 2], [3, 4, 5]]
    top method reshape(x: Tensor, shape: Shape; copy: MaybeBool = None) -> One view {
        x.reshape(completed(&x.shape(), &shape))
    }

    /// Axes in another order: axis `i` of the result is axis `axes[i]` of the operand.
    ///
    /// >>> import wengert as wg
    /// >>> wg.permute_dims(wg.zeros((2, 3, 4)), (2, 0, 1)).shape
    /// (4, 2, 3)
    top method permute_dims(x: Tensor, axes: Shape) -> One view {
        permuted(x, &numbers(&axes), "permute_dims")
    }
    also(permute)

    /// Axes in another order; the reverse one where `axes` is None.
    top method transpose(x: Tensor, axes: Axes = None) -> One view {
        match axes {
            Some(axes) => permuted(x, &axes, "transpose"),
            None => x.permute((0..x.rank()).rev().collect()),
        }
    }

    /// The last two axes exchanged.
    top function matrix_transpose(x: Tensor) -> One view {
        if x.rank() < 2 {
            throw(error::bad_rank("matrix_transpose", "x", "at least 2", x.shape()));
        }
        x.transpose()
    }

    /// Two axes exchanged.
    top method swapaxes(x: Tensor, axis1: Int, axis2: Int) -> One view {
        let mut order: Axes = (0..x.rank()).collect();
        order.swap(x.axis(axis1, "swapaxes"), x.axis(axis2, "swapaxes"));
        x.permute(order)
    }
    also(swapdims)

    /// Axes moved to other places; the others keep their order.
    ///
    /// `source`, `destination`: an axis or equally many axes.
    top method moveaxis(x: Tensor, source: Ints, destination: Ints) -> One view {
        let from = x.shape().axes(Some(&source), "moveaxis").or_throw();
        let to = x.shape().axes(Some(&destination), "moveaxis").or_throw();
        if from.len() != to.len() {
            let facts = format!("got {} and {}", from.len(), to.len());
            throw(error::bad_value("moveaxis", "source and destination differ in length", facts));
        }
        let mut rest = (0..x.rank()).filter(|i| !from.contains(i));
        let axis = |i: usize| match to.iter().position(|&place| place == i) {
            Some(k) => Some(from[k]),
            None => rest.next(),
        };
        let order: Axes = (0..x.rank()).filter_map(axis).collect();
        x.permute(order)
    }
    also(movedim)

    /// Axes of size 1 taken away.
    ///
    /// `axis`: an axis or a tuple of axes, which must have size 1; None takes all of that size.
    top method squeeze(x: Tensor, axis: Axes = None) -> One view {
        let shape = x.shape();
        let axes = match axis {
            Some(axis) => shape.axes(Some(&axis), "squeeze").or_throw(),
            None => (0..shape.rank()).filter(|&i| shape[i].equals(1)).collect(),
        };
        if let Some(&i) = axes.iter().find(|&&i| !shape[i].equals(1)) {
            let facts = format!("axis {i} of {shape} has size {}", shape[i]);
            throw(error::bad_shape("squeeze", "only axes of size 1 can go", facts));
        }
        x.reshape(shape.reduce(&axes, false))
    }

    /// New axes of size 1, at these places of the result.
    ///
    /// >>> import wengert as wg
    /// >>> wg.expand_dims(wg.zeros((2, 3)), axis=1).shape
    /// (2, 1, 3)
    top method expand_dims(x: Tensor, axis: Ints = 0) -> One view {
        let rank = x.rank() + axis.len();
        let mut places = Shape::of(&vec![1; rank]).axes(Some(&axis), "expand_dims").or_throw();
        places.sort_unstable();
        x.restore(&places)
    }
    also(unsqueeze)

    /// Repeated to a shape: axes of size 1 grow, new ones come first.
    ///
    /// The gradient is the sum over what was repeated.
    top method broadcast_to(x: Tensor, shape: Shape) -> One view {
        x.broadcast(shape_of(&shape, "broadcast_to"))
    }

    /// Axes from `start` to `end`, both included, joined into one.
    ///
    /// >>> import wengert as wg
    /// >>> wg.zeros((2, 3, 4)).flatten(1).shape
    /// (2, 12)
    top method flatten(x: Tensor, start: Int = 0, end: Int = -1) -> One view {
        flattened(x, start, end)
    }
    also(ravel)

    /// Elements in reverse order along axes.
    ///
    /// `axis`: an axis, a tuple of axes, or None for all.
    top method flip(x: Tensor, axis: Axes = None) -> One view {
        let shape = x.shape();
        let mut at = whole(&shape);
        for i in shape.axes(axis.as_deref(), "flip").or_throw() {
            if !shape[i].equals(0) {
                let start = shape[i] - Dim::ONE;
                at[i] = SliceAxis { start, step: -1, size: shape[i] };
            }
        }
        x.slice(at)
    }

    /// Elements moved on by `shift` along axes; those that leave at one end come in at the other.
    ///
    /// `shift`: an int, or one for each axis. `axis`: where None, the flattened elements move.
    top method roll(x: Tensor, shift: Ints, axis: Axes = None) -> One inline {
        match axis {
            Some(axis) => rolled_axes(x, &shift, &axis),
            None => {
                let flat = flattened(x, 0, -1);
                rolled_axes(flat, &shift, &vec![0; shift.len()]).reshape(x.shape())
            }
        }
    }

    /// The `offset`-th diagonal of two axes, as a new last axis.
    top method diagonal(x: Tensor; offset: Int = 0, axis1: Int = 0, axis2: Int = 1) -> One view {
        diagonal_of(x, offset, axis1, axis2, "diagonal")
    }

    /// The `k`-th diagonal of a matrix, or a square matrix with a vector on that diagonal.
    top method diag(x: Tensor; k: Int = 0) -> One inline {
        match x.rank() {
            1 => with_diagonal(x, k),
            2 => diagonal_of(x, k, 0, 1, "diag"),
            _ => throw(error::bad_rank("diag", "x", "1 or 2", x.shape())),
        }
    }
}

/// A shape of a user's with its -1 filled in.
fn completed(from: &Shape, sizes: &[Extent]) -> Shape {
    let Some(open) = sizes.iter().position(|n| n.known() == Some(-1)) else {
        return shape_of(sizes, "reshape");
    };
    let mut sizes: Extents = sizes.into();
    sizes[open] = Extent::Number(1);
    let mut shape = shape_of(&sizes, "reshape");
    let (count, known) = (elements(from), elements(&shape));
    if known.equals(0) || !(count % known).equals(0) {
        let mut to: Vec<String> = shape.dims().iter().map(Dim::to_string).collect();
        to[open] = "-1".into();
        let to = Tuple(&to);
        let facts = format!("{from} has {count} elements, the other sizes of {to} make {known}");
        throw(error::bad_shape("reshape", "-1 has no whole value", facts));
    }
    shape.dims_mut()[open] = count / known;
    shape
}

fn permuted<'e>(x: Expr<'e>, axes: &[i64], op: &str) -> Expr<'e> {
    let order = x.shape().axes(Some(axes), op).or_throw();
    if order.len() != x.rank() {
        let facts = format!("got {} for shape {}", Tuple(axes), x.shape());
        throw(error::bad_shape(op, "axes must name every axis once", facts));
    }
    x.permute(order)
}

/// Axes from `start` to `end`, both included, joined into one; a scalar becomes a vector.
pub(super) fn flattened(x: Expr<'_>, start: i64, end: i64) -> Expr<'_> {
    let rank = x.rank().max(1);
    let first = normalize_axis(start, rank, "flatten").or_throw();
    let last = normalize_axis(end, rank, "flatten").or_throw();
    if first > last {
        let facts = format!("got {start} and {end} for shape {}", x.shape());
        throw(error::bad_value("flatten", "start must not come after end", facts));
    }
    let shape = x.shape();
    let dims = shape.dims();
    let until = (last + 1).min(dims.len());
    let joined = elements(&Shape::from_dims(&dims[first.min(until)..until]));
    let flat = dims[..first].iter().copied().chain([joined]).chain(dims[until..].iter().copied());
    x.reshape(flat.collect())
}

fn rolled(x: Expr<'_>, axis: usize, shift: i64) -> Expr<'_> {
    let n = x.size(axis);
    let away = Dim::new(shift.unsigned_abs() as usize);
    // How many elements come in at the start.
    let shift = match n.known() {
        Some(0) => Dim::new(0),
        Some(n) => Dim::new(shift.rem_euclid(n as i64) as usize),
        None if shift == 0 => Dim::new(0),
        None if n.is_at_most(away) => Dim::new(shift.rem_euclid(n.value().max(1) as i64) as usize),
        None if shift > 0 => away,
        None => n - away,
    };
    if shift.known() == Some(0) {
        return x.tensor();
    }
    let tail = x.narrow(axis, n - shift, shift);
    x.concat(&[tail, x.narrow(axis, 0, n - shift)], axis)
}

fn rolled_axes<'e>(x: Expr<'e>, shift: &[i64], axis: &[i64]) -> Expr<'e> {
    if shift.len() != 1 && shift.len() != axis.len() {
        let facts = format!("got {} shifts for {} axes", shift.len(), axis.len());
        throw(error::bad_value("roll", "there must be one shift for each axis", facts));
    }
    let shifts = shift.iter().cycle();
    axis.iter().zip(shifts).fold(x.tensor(), |x, (&axis, &n)| rolled(x, x.axis(axis, "roll"), n))
}

/// Where a diagonal of a `rows` by `columns` matrix lies in its flattened elements.
fn diagonal_slice(rows: Dim, columns: Dim, offset: i64) -> SliceAxis {
    let (away, none) = (Dim::new(offset.unsigned_abs() as usize), Dim::new(0));
    let (skip_rows, skip_columns) = if offset < 0 { (away, none) } else { (none, away) };
    let size = (rows - skip_rows).min(columns - skip_columns);
    let start = if size.equals(0) { none } else { skip_rows * columns + skip_columns };
    SliceAxis { start, step: columns.value() as isize + 1, size }
}

pub(super) fn diagonal_of<'e>(
    x: Expr<'e>,
    offset: i64,
    axis1: i64,
    axis2: i64,
    op: &str,
) -> Expr<'e> {
    if x.rank() < 2 {
        throw(error::bad_rank(op, "x", "at least 2", x.shape()));
    }
    let pair = x.shape().axes(Some(&[axis1, axis2]), op).or_throw();
    let rest = (0..x.rank()).filter(|i| !pair.contains(i));
    let moved = x.permute(rest.chain(pair.iter().copied()).collect());
    let last = x.rank() - 2;
    let at = diagonal_slice(moved.size(last), moved.size(last + 1), offset);
    let flat = flattened(moved, -2, -1);
    let mut every = whole(&flat.shape());
    every[last] = at;
    flat.slice(every)
}

fn with_diagonal(x: Expr<'_>, k: i64) -> Expr<'_> {
    let n = x.size(0) + Dim::new(k.unsigned_abs() as usize);
    let flat = Shape::from_dims(&[n * n]);
    flat.check("diag").or_throw();
    x.embed(flat, Box::new([diagonal_slice(n, n, k)])).reshape(Shape::from_dims(&[n, n]))
}
