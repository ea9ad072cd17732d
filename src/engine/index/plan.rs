//! An index resolved against a shape: what it slices, and which axes its arrays address.

use smallvec::SmallVec;

use super::Item;
use crate::array::Array;
use crate::dtype::DType;
use crate::engine::eager::apply::apply;
use crate::engine::executors::{self, device};
use crate::engine::tape::{Operand, Value};
use crate::engine::trace;
use crate::error::{self, Result};
use crate::layout::Layout;
use crate::ops::op::{Op, SliceAxis};
use crate::ops::origin;
use crate::ops::structural::whole;
use crate::shape::{Axes, Dim, Extent, Shape};
use crate::site::Origin;

/// An index resolved against a shape.
pub(super) struct IndexPlan {
    /// The slice of every axis of the operand
    pub at: Box<[SliceAxis]>,
    /// The shape after dropping integer axes and adding new ones
    pub basic: Shape,
    /// The axes of `basic` that arrays address, with their int64 arrays
    pub arrays: SmallVec<[(usize, Array); 2]>,
    /// Where the gathered axes go
    pub place: usize,
    /// What its nodes are part of
    pub origin: Origin,
}

impl IndexPlan {
    /// The shape that assigned values broadcast to.
    pub fn region(&self) -> Result<Shape> {
        if self.arrays.is_empty() {
            return Ok(self.basic.clone());
        }
        let index = self.index_shape()?;
        let rest = (0..self.basic.rank()).filter(|i| self.arrays.iter().all(|(axis, _)| axis != i));
        let mut dims: SmallVec<[Dim; 6]> = rest.map(|i| self.basic[i]).collect();
        dims.insert_many(self.place, index.dims().iter().copied());
        Ok(Shape::from_dims(&dims))
    }

    pub fn index_shape(&self) -> Result<Shape> {
        let mut shapes = self.arrays.iter().map(|(_, array)| array.shape());
        shapes.try_fold(Shape::scalar(), |all, shape| all.broadcast(shape, "getitem"))
    }

    /// The axes of the basic shape with the addressed ones first.
    pub fn order(&self) -> Axes {
        let addressed = self.arrays.iter().map(|(axis, _)| *axis);
        let rest = (0..self.basic.rank()).filter(|i| self.arrays.iter().all(|(axis, _)| axis != i));
        addressed.chain(rest).collect()
    }

    /// Whether arrays address leading axes of a whole operand, so that nothing has to be moved.
    pub fn is_leading(&self, shape: &Shape) -> bool {
        let leads = self.arrays.iter().enumerate().all(|(i, (axis, _))| *axis == i);
        leads && self.place == 0 && self.is_whole(shape) && self.basic.same(shape)
    }

    pub fn is_whole(&self, shape: &Shape) -> bool {
        self.at.iter().zip(shape.dims()).all(|(a, d)| a.is_whole(*d))
    }
}

/// The permutation that moves `count` axes from `place` to the front.
pub(super) fn to_front(rank: usize, place: usize, count: usize) -> Axes {
    (place..place + count).chain(0..place).chain(place + count..rank).collect()
}

/// Splits an index into its basic and array parts.
pub(super) fn resolve(op: &str, shape: &Shape, items: &[Item]) -> Result<IndexPlan> {
    if items.iter().filter(|item| matches!(item, Item::Ellipsis)).count() > 1 {
        return Err(error::bad_shape(op, "an index can have one ellipsis", "got several"));
    }
    let items = expand_masks(op, shape, items)?;
    let takes = |item: &Item| !matches!(item, Item::NewAxis | Item::Ellipsis | Item::Flag(_));
    let consumed = items.iter().filter(|item| takes(item)).count();
    if consumed > shape.rank() {
        return Err(error::too_many_indices(op, consumed, shape.rank()));
    }
    let advanced = items.iter().any(|item| matches!(item, Item::Array(_) | Item::Flag(_)));
    let mut at = whole(shape);
    let mut basic: SmallVec<[Dim; 6]> = SmallVec::new();
    let mut arrays: SmallVec<[(usize, Array); 2]> = SmallVec::new();
    // Positions, in the list of items, of the array items: NumPy asks whether they stand together.
    let mut positions: SmallVec<[usize; 4]> = SmallVec::new();
    let mut before: Option<usize> = None;
    let mut addressed: SmallVec<[usize; 4]> = SmallVec::new();
    let flags = items.iter().any(|item| matches!(item, Item::Flag(_)));
    let mut axis = 0;
    let fill = shape.rank() - consumed;
    let has_ellipsis = items.iter().any(|item| matches!(item, Item::Ellipsis));
    let implicit = (!has_ellipsis).then_some(Item::Ellipsis);
    for (position, item) in items.iter().chain(implicit.iter()).enumerate() {
        match item {
            Item::NewAxis => basic.push(Dim::ONE),
            Item::Operand => return Err(error::internal("an index lost its arrays")),
            Item::Ellipsis => {
                basic.extend_from_slice(&shape.dims()[axis..axis + fill]);
                axis += fill;
            }
            Item::Slice(start, stop, step) => {
                at[axis] = slice_axis(op, shape[axis], *start, *stop, *step)?;
                basic.push(at[axis].size);
                axis += 1;
            }
            // Beside arrays an integer is an array without axes.
            Item::Int(i) if advanced => {
                let i = check_int(op, *i, axis, shape[axis])?;
                before.get_or_insert(basic.len() - arrays.len());
                positions.push(position);
                let array = executors::fill_i64(i.value() as i64)?;
                let array = executors::transfer(&array, device::current())?;
                arrays.push((basic.len(), array));
                basic.push(shape[axis]);
                addressed.push(axis);
                axis += 1;
            }
            Item::Int(i) => {
                let i = check_int(op, *i, axis, shape[axis])?;
                at[axis] = SliceAxis { start: i, step: 1, size: Dim::ONE };
                axis += 1;
            }
            Item::Array(value) => {
                #[allow(
                    clippy::wildcard_enum_match_arm,
                    reason = "any other dtype is refused by name"
                )]
                let array = match value.dtype() {
                    DType::I64 => value.array.clone(),
                    dtype if dtype.is_int() => {
                        apply(Op::Cast(DType::I64), &[Operand::Value(value)], false)?.array
                    }
                    dtype => {
                        let want = "an integer or bool";
                        return Err(error::bad_dtype(op, "index", dtype, want, DType::I64));
                    }
                };
                before.get_or_insert(basic.len() - arrays.len());
                positions.push(position);
                arrays.push((basic.len(), array));
                basic.push(shape[axis]);
                addressed.push(axis);
                axis += 1;
            }
            Item::Flag(array) => {
                before.get_or_insert(basic.len() - arrays.len());
                positions.push(position);
                arrays.push((basic.len(), array.clone()));
                basic.push(Dim::ONE);
            }
        }
    }
    let together = positions.windows(2).all(|w| w[1] == w[0] + 1);
    let place = if together { before.unwrap_or(0) } else { 0 };
    // Where a mask without axes adds one the arrays are not counted by axes of `x`.
    let axes = if flags { &[][..] } else { &addressed };
    let origin = origin::index(op, axes.iter().copied());
    Ok(IndexPlan { at, basic: Shape::from_dims(&basic), arrays, place, origin })
}

/// What to do about a mask whose count of true elements is not known.
const MASK: &str = "the size of the result would depend on it: use wg.where(mask, a, b)";

/// Replaces every mask by the positions of its true elements, one array per axis it covers.
fn expand_masks(op: &str, shape: &Shape, items: &[Item]) -> Result<SmallVec<[Item; 4]>> {
    let mut out: SmallVec<[Item; 4]> = SmallVec::new();
    let is_mask = |item: &Item| matches!(item, Item::Array(v) if v.dtype() == DType::Bool);
    if !items.iter().any(is_mask) {
        return Ok(SmallVec::from(items));
    }
    let width = |item: &Item| match item {
        Item::Array(v) if v.dtype() == DType::Bool => v.shape().rank(),
        Item::NewAxis | Item::Ellipsis => 0,
        Item::Int(_) | Item::Slice(..) | Item::Array(_) | Item::Operand | Item::Flag(_) => 1,
    };
    let consumed: usize = items.iter().map(width).sum();
    let Some(fill) = shape.rank().checked_sub(consumed) else {
        return Err(error::too_many_indices(op, consumed, shape.rank()));
    };
    let mut axis = 0;
    for item in items {
        match item {
            Item::Array(mask) if mask.dtype() == DType::Bool => {
                let rank = mask.shape().rank();
                for i in 0..rank {
                    if !mask.shape()[i].equals(shape[axis + i]) {
                        let facts = format!("mask {} on {shape} at axis {axis}", mask.shape());
                        return Err(error::mask_shape(op, facts));
                    }
                }
                trace::check_data(op, &mask.array, MASK)?;
                let (to, mask) = (mask.device(), executors::download(&mask.array)?);
                let line = Layout::contiguous_at(Shape::of(&[1]), mask.layout.offset());
                let mask = if rank == 0 { mask.view(line) } else { mask };
                for array in executors::nonzero(&mask)? {
                    let array = executors::transfer(&array, to)?;
                    out.push(match rank {
                        0 => Item::Flag(array),
                        _ => Item::Array(Value::plain(array)),
                    });
                }
                axis += rank;
            }
            other @ (Item::Int(_)
            | Item::Slice(..)
            | Item::Ellipsis
            | Item::NewAxis
            | Item::Array(_)
            | Item::Operand
            | Item::Flag(_)) => {
                axis += if matches!(other, Item::Ellipsis) { fill } else { width(other) };
                out.push(other.clone());
            }
        }
    }
    Ok(out)
}

pub(super) fn check_int(op: &str, i: Extent, axis: usize, size: Dim) -> Result<Dim> {
    let outside = || error::index_out_of_bounds(op, i, axis, size);
    if let Some(away) = i.below_zero() {
        return if away.is_at_most(size) { Ok(size - away) } else { Err(outside()) };
    }
    let place = i.size(op, "an index").map_err(|_| outside())?;
    if place.is_below(size) { Ok(place) } else { Err(outside()) }
}

/// A bound that is a number, or the one in its place.
#[inline]
fn number(bound: Option<Extent>, none: i64) -> Option<i64> {
    bound.map_or(Some(none), Extent::known)
}

/// The place that a number names along an axis of `n` places, if there is one.
#[inline]
pub(super) fn place(n: usize, i: i64) -> Option<usize> {
    // Sizes are below 2^62.
    let i = if i < 0 { i.saturating_add(n as i64) } else { i };
    (0..n as i64).contains(&i).then_some(i as usize)
}

/// The first of the places between two bounds, and how many there are. An empty span begins at the
/// first place.
#[inline]
pub(super) fn span(n: usize, start: Option<i64>, stop: Option<i64>) -> (usize, usize) {
    let n = n as i64;
    let clip = |i: i64| if i < 0 { i.saturating_add(n).max(0) } else { i.min(n) };
    let (start, stop) = (start.map_or(0, clip), stop.map_or(n, clip));
    if start < stop { (start as usize, (stop - start) as usize) } else { (0, 0) }
}

/// Python's slice arithmetic. Places are counted from 1 where the step is negative, so that the one
/// before the first is 0.
pub(super) fn slice_axis(
    op: &str,
    n: Dim,
    start: Option<Extent>,
    stop: Option<Extent>,
    step: Option<i64>,
) -> Result<SliceAxis> {
    let step = step.unwrap_or(1);
    if step == 0 {
        return Err(error::bad_value(op, "a slice's step must not be zero", "got 0"));
    }
    if let (1, Some(n)) = (step, n.known())
        && let (Some(start), Some(stop)) = (number(start, 0), number(stop, n as i64))
    {
        // What is asked for most.
        let (start, size) = span(n, Some(start), Some(stop));
        return Ok(SliceAxis { start: Dim::new(start), step: 1, size: Dim::new(size) });
    }
    let base = if step > 0 { Dim::new(0) } else { Dim::ONE };
    let clip = |i: Extent| match (i.below_zero(), i.size(op, "a bound")) {
        (Some(away), _) => n + base - away,
        (None, Ok(i)) if (i + base).is_at_most(n) => i + base,
        // Bounds beyond all sizes are the end.
        (None, Ok(_) | Err(_)) => n,
    };
    let (first, last) = if step > 0 { (Dim::new(0), n) } else { (n, Dim::new(0)) };
    let (start, stop) = (start.map_or(first, clip), stop.map_or(last, clip));
    let (low, high) = if step > 0 { (start, stop) } else { (stop, start) };
    // The start and step of an empty or single selection do not matter: keep them in range.
    // A size that nobody knows is taken to suffice: so it is asked in this form.
    let is_empty = if high.is_below(low) { true } else { high.equals(low) };
    if is_empty {
        return Ok(SliceAxis { start: Dim::new(0), step: 1, size: Dim::new(0) });
    }
    let size = (high - low).div_ceil(Dim::new(step.unsigned_abs() as usize));
    let step = if size.known() == Some(1) { 1 } else { step as isize };
    Ok(SliceAxis { start: start - base, step, size })
}
