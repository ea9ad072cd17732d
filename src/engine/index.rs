//! Indexing as NumPy does it, lowered to slices, gathers and scatters.
//!
//! An index is split in two: basic items (integers, slices, new axes, an ellipsis) make one slice and
//! one reshape; array items (integer arrays, and masks as the positions of their true elements) make
//! one gather over the axes they address. NumPy's rule places the gathered axes: where the arrays
//! stand if they stand together, else first.
//!
//! Long, because reading, writing and the plan that both follow are one idea.

use smallvec::SmallVec;

use super::apply::apply;
use super::definition::{self, Call};
use super::eager::Eager;
use super::executors::{self, Device, device};
use super::tape::{self, Operand, Value, recording};
use super::trace;
use crate::array::Array;
use crate::dtype::DType;
use crate::error::{self, Result};
use crate::layout::Layout;
use crate::ops::attributes::ScatterMode;
use crate::ops::emit::{Arg, Expr, catch};
use crate::ops::op::{Op, SliceAxis};
use crate::ops::origin;
use crate::ops::structural::inverse;
use crate::ops::structural::whole;
use crate::shape::{Axes, Dim, Extent, Shape};
use crate::site::Origin;
use crate::threads;

/// One item of an index.
#[derive(Clone)]
pub enum Item {
    /// One position; the axis disappears
    Int(Extent),
    /// `start:stop:step`
    Slice(Option<Extent>, Option<Extent>, Option<i64>),
    /// `...`
    Ellipsis,
    /// `None`
    NewAxis,
    /// An integer or bool array
    Array(Value),
    /// An array that is an operand of its own, in an index that is kept for later
    Operand,
    /// Positions along an axis of its own, which a mask without axes makes: one, or none
    Flag(Array),
}

/// An index resolved against a shape.
struct IndexPlan {
    /// The slice of every axis of the operand
    at: Box<[SliceAxis]>,
    /// The shape after dropping integer axes and adding new ones
    basic: Shape,
    /// The axes of `basic` that arrays address, with their int64 arrays
    arrays: SmallVec<[(usize, Array); 2]>,
    /// Where the gathered axes go
    place: usize,
    /// What its nodes are part of
    origin: Origin,
}

/// Refuses operands of several devices, and enters that of `x` where it is not the processor.
fn check_devices(
    op: &str,
    x: &Value,
    items: &[Item],
    v: Option<Operand<'_>>,
) -> Result<Option<device::Entered>> {
    let value = v.and_then(|v| match v {
        Operand::Value(v) => Some(&v.array),
        Operand::Scalar(_) => None,
    });
    // Indexing is a hot path: mostly all of it is plain numbers and host memory.
    let here = x.array.is_on_host() && value.is_none_or(Array::is_on_host);
    let plain = here && !items.iter().any(|item| matches!(item, Item::Array(_)));
    if plain && device::current() == Device::Cpu {
        return Ok(None);
    }
    let index = items.iter().filter_map(|item| match item {
        Item::Array(value) => Some(&value.array),
        Item::Int(_)
        | Item::Slice(..)
        | Item::Ellipsis
        | Item::NewAxis
        | Item::Operand
        | Item::Flag(_) => None,
    });
    let device = executors::common(op, std::iter::once(&x.array).chain(index).chain(value))?;
    Ok((device != Device::Cpu || device::current() != device).then(|| device.enter()))
}

/// `x[items]`.
pub fn get(x: &Value, items: &[Item]) -> Result<Value> {
    let _on = check_devices("getitem", x, items, None)?;
    let _entered = trace::enter_for("getitem", &[Operand::Value(x)])?;
    if let Some(trace) = definition::keeper(&[Operand::Value(x)]) {
        let (items_kept, operands) = kept(x, items, None);
        let native = || take(x, items);
        return definition::keep_one(&trace, Call::Get(items_kept), &operands, native);
    }
    take(x, items)
}

/// An index to keep, and its operands: arrays are operands, not part of it.
fn kept<'a>(
    x: &'a Value,
    items: &'a [Item],
    v: Option<Operand<'a>>,
) -> (Vec<Item>, SmallVec<[Operand<'a>; 4]>) {
    let mut operands: SmallVec<[Operand<'a>; 4]> = SmallVec::new();
    operands.push(Operand::Value(x));
    let mut rest = Vec::with_capacity(items.len());
    for item in items {
        rest.push(match item {
            Item::Array(value) => {
                operands.push(Operand::Value(value));
                Item::Operand
            }
            Item::Int(_)
            | Item::Slice(..)
            | Item::Ellipsis
            | Item::NewAxis
            | Item::Operand
            | Item::Flag(_) => item.clone(),
        });
    }
    operands.extend(v);
    (rest, operands)
}

/// [`get`], computed or written as nodes.
fn take(x: &Value, items: &[Item]) -> Result<Value> {
    let by_nodes = trace::active() || recording() && x.requires_grad() || !x.array.is_on_host();
    if let ([item], false) = (items, by_nodes)
        && let Some(view) = along_first(x, item)?
    {
        return Ok(view);
    }
    let plan = resolve("getitem", x.shape(), items)?;
    let record = recording();
    let y = match plan.is_whole(x.shape()) {
        true => reshaped(x, &plan.basic, record)?,
        false => {
            // Slice and shape are one step of the tape.
            let step = Op::Slice(plan.at);
            let part = apply(step.clone(), &[Operand::Value(x)], false)?;
            let array = reshaped(&part, &plan.basic, false)?.array;
            match record {
                true => tape::record(step, &[Operand::Value(x)], array)?,
                false => Value::plain(array),
            }
        }
    };
    if plan.arrays.is_empty() {
        return Ok(y);
    }
    let _within = plan.origin.enter();
    let cx = Eager::new(record);
    let y = cx.value(y);
    let indices: SmallVec<[Arg; 2]> =
        plan.arrays.iter().map(|(_, i)| cx.value(Value::plain(i.clone()))).collect();
    let result = catch(|| {
        let exprs: SmallVec<[Expr<'_>; 2]> =
            indices.iter().map(|&arg| Expr::new(&cx, arg)).collect();
        gather(Expr::new(&cx, y), &plan.arrays, &exprs, plan.place)
    });
    cx.take(result.map_err(|error| error.within("getitem"))?)
}

fn reshaped(x: &Value, shape: &Shape, record: bool) -> Result<Value> {
    match x.shape().same(shape) {
        true => Ok(x.clone()),
        false => apply(Op::Reshape(shape.clone()), &[Operand::Value(x)], record),
    }
}

/// `x[i]` and `x[a:b:c]` without a history: one view, made directly.
fn along_first(x: &Value, item: &Item) -> Result<Option<Value>> {
    let shape = x.shape();
    let Some(&size) = shape.dims().first() else { return Ok(None) };
    let layout = &x.array.layout;
    if layout.is_contiguous() {
        let inner = shape.dims()[1..].iter().fold(1, |n, d| n * d.value());
        let mut dims = shape.clone();
        let start = match item {
            Item::Int(i) => {
                dims.dims_mut().remove(0);
                Some(check_int("getitem", *i, 0, size)?.value())
            }
            Item::Slice(a, b, c) => {
                let at = slice_axis("getitem", size, *a, *b, *c)?;
                dims.dims_mut()[0] = at.size;
                (at.step == 1).then_some(at.start.value())
            }
            Item::Ellipsis | Item::NewAxis | Item::Array(_) | Item::Operand | Item::Flag(_) => {
                return Ok(None);
            }
        };
        if let Some(start) = start {
            let layout = Layout::contiguous_at(dims, layout.offset() + start * inner);
            return Ok(Some(Value::plain(x.array.view(layout))));
        }
    }
    let mut strides = layout.strides();
    let mut dims = shape.clone();
    let stride = strides[0];
    let offset = match item {
        Item::Int(i) => {
            dims.dims_mut().remove(0);
            strides.remove(0);
            check_int("getitem", *i, 0, size)?.value()
        }
        Item::Slice(a, b, c) => {
            let at = slice_axis("getitem", size, *a, *b, *c)?;
            dims.dims_mut()[0] = at.size;
            strides[0] = stride * at.step;
            if at.size.equals(0) { 0 } else { at.start.value() }
        }
        Item::Ellipsis | Item::NewAxis | Item::Array(_) | Item::Operand | Item::Flag(_) => {
            return Ok(None);
        }
    };
    let offset = layout.offset().wrapping_add_signed(offset as isize * stride);
    Ok(Some(Value::plain(x.array.view(Layout::strided(dims, &strides, offset)))))
}

/// Gives `x` the value it has after `x[items] = v`, in its own memory where nobody else holds it.
/// A refused write changes nothing.
pub fn set(x: &mut Value, items: &[Item], v: Operand<'_>) -> Result<()> {
    let op = "setitem";
    let _on = check_devices(op, x, items, Some(v))?;
    let _entered = trace::enter_for(op, &[Operand::Value(x), v])?;
    if let Some(trace) = definition::keeper(&[Operand::Value(x), v]) {
        let before = x.clone();
        let (items_kept, operands) = kept(&before, items, Some(v));
        let native = || {
            let mut x = before.clone();
            put(&mut x, items, v)?;
            Ok(x)
        };
        *x = definition::keep_one(&trace, Call::Set(items_kept), &operands, native)?;
        return Ok(());
    }
    put(x, items, v)
}

/// [`set`], computed or written as nodes.
fn put(x: &mut Value, items: &[Item], v: Operand<'_>) -> Result<()> {
    let op = "setitem";
    if let Some(written) = masked(x, items, v).map_err(|error| error.within(op))? {
        *x = written;
        return Ok(());
    }
    let plan = resolve(op, x.shape(), items)?;
    let region = plan.region()?;
    let cast;
    let mut v = v;
    if let Operand::Value(value) = v {
        let mut shape = value.shape().clone();
        while shape.rank() > region.rank() && shape[0].equals(1) {
            shape.dims_mut().remove(0);
        }
        if !shape.broadcasts_to(&region) {
            let facts = format!("values {} to the selected region {region}", value.shape());
            return Err(error::bad_shape(op, "shapes are not compatible", facts));
        }
        let cx = Eager::new(recording());
        let value = cx.value(value.clone());
        let fitted = catch(|| Expr::new(&cx, value).cast(x.dtype()).reshape(shape))?;
        cast = cx.take(fitted)?;
        v = Operand::Value(&cast);
    }
    let wants = |v: Operand<'_>| matches!(v, Operand::Value(v) if v.requires_grad());
    let records = recording() && (x.requires_grad() || wants(v));
    let in_place = !records && !trace::active() && x.array.is_unique() && x.array.is_contiguous();
    if in_place && plan.arrays.is_empty() {
        let slice;
        let v = match v {
            Operand::Scalar(_) => v.operand()?,
            Operand::Value(v) => {
                slice = plan.to_slice(v.clone(), false)?;
                executors::Operand::Array(&slice.array)
            }
        };
        // SAFETY: nobody else holds the buffer, and `x` is borrowed mutably.
        let write = || unsafe { executors::write_slice(&x.array, &plan.at, v) };
        // A value that is half written cannot be given back.
        return threads::breakable(false, write);
    }
    *x = plan.updated(x, v, &region).map_err(|error| error.within(op))?;
    Ok(())
}

/// `x` after `x[mask] = v` as `where`, for a mask of the leading axes and a `v` that is the same for
/// every element the mask covers; `None` where positions are what to go by.
///
/// So are writes whose mask has no data, and, for the same bits, all whose `v` wants a gradient:
/// that is a sum over the elements of `x` then, not over those that are selected.
fn masked(x: &Value, items: &[Item], v: Operand<'_>) -> Result<Option<Value>> {
    let [Item::Array(mask), others @ ..] = items else { return Ok(None) };
    let takes_all = |item: &Item| {
        matches!(
            item,
            Item::Ellipsis | Item::Slice(None | Some(Extent::Number(0)), None, None | Some(1))
        )
    };
    let is_ellipsis = |item: &&Item| matches!(item, Item::Ellipsis);
    let ellipses = others.iter().filter(is_ellipsis).count();
    let lead = mask.shape().rank();
    let Some(rest) = x.shape().dims().get(lead..) else { return Ok(None) };
    let is_traced = trace::is_traced(&mask.array);
    let wants = matches!(v, Operand::Value(v) if v.requires_grad()) && recording();
    let is_mask = mask.dtype() == DType::Bool && others.iter().all(takes_all);
    let fits = ellipses <= 1 && others.len() - ellipses <= rest.len();
    if !is_mask || !fits || !(is_traced || wants) {
        return Ok(None);
    }
    let covers = mask.shape().dims().iter().zip(x.shape().dims()).all(|(a, b)| a.equals(*b));
    if !covers {
        return Ok(None);
    }
    let mut shape = Shape::scalar();
    if let Operand::Value(value) = v {
        let rest = Shape::from_dims(rest);
        shape = value.shape().clone();
        while shape.rank() > rest.rank() && shape[0].equals(1) {
            shape.dims_mut().remove(0);
        }
        if !shape.broadcasts_to(&rest) {
            return match is_traced {
                false => Ok(None),
                true => {
                    let what = "how many values the mask takes is not known";
                    let facts = format!(
                        "got {} for elements of shape {rest}: use wg.where(mask, a, b)",
                        value.shape()
                    );
                    Err(error::bad_capture("setitem", what, facts))
                }
            };
        }
    }
    let cx = Eager::new(recording());
    let (base, condition, v) = (cx.value(x.clone()), cx.value(mask.clone()), cx.operand(v));
    let written = catch(|| {
        let (x, values) = (Expr::new(&cx, base), Expr::new(&cx, v).cast(x.dtype()));
        let values = if values.rank() > 0 { values.reshape(shape) } else { values };
        let mut wide = mask.shape().clone();
        wide.dims_mut().resize(x.rank(), Dim::ONE);
        Expr::new(&cx, condition).reshape(wide).select(values, x)
    })?;
    cx.take(written).map(Some)
}

impl IndexPlan {
    /// The shape that assigned values broadcast to.
    fn region(&self) -> Result<Shape> {
        if self.arrays.is_empty() {
            return Ok(self.basic.clone());
        }
        let index = self.index_shape()?;
        let rest = (0..self.basic.rank()).filter(|i| self.arrays.iter().all(|(axis, _)| axis != i));
        let mut dims: SmallVec<[Dim; 6]> = rest.map(|i| self.basic[i]).collect();
        dims.insert_many(self.place, index.dims().iter().copied());
        Ok(Shape::from_dims(&dims))
    }

    fn index_shape(&self) -> Result<Shape> {
        let mut shapes = self.arrays.iter().map(|(_, array)| array.shape());
        shapes.try_fold(Shape::scalar(), |all, shape| all.broadcast(shape, "getitem"))
    }

    /// A value of the basic shape (or one that broadcasts to it) in the shape of the slice.
    fn to_slice(&self, v: Value, record: bool) -> Result<Value> {
        if v.shape().elements().same(Dim::ONE) {
            return apply(Op::Reshape(Shape::scalar()), &[Operand::Value(&v)], record);
        }
        let wide = apply(Op::Broadcast(self.basic.clone()), &[Operand::Value(&v)], record)?;
        let slice: Shape = self.at.iter().map(|a| a.size).collect();
        apply(Op::Reshape(slice), &[Operand::Value(&wide)], record)
    }

    /// The whole value after an assignment, as a formula.
    fn updated(&self, x: &Value, v: Operand<'_>, region: &Shape) -> Result<Value> {
        let record = recording();
        if self.arrays.is_empty() {
            let fitted;
            let v = match v {
                Operand::Value(v) => {
                    fitted = self.to_slice(v.clone(), record)?;
                    Operand::Value(&fitted)
                }
                scalar => scalar,
            };
            return apply(Op::SetItem(self.at.clone()), &[Operand::Value(x), v], record);
        }
        let _within = self.origin.enter();
        let cx = Eager::new(record);
        let (base, v) = (cx.value(x.clone()), cx.operand(v));
        let indices: SmallVec<[Arg; 2]> =
            self.arrays.iter().map(|(_, array)| cx.value(Value::plain(array.clone()))).collect();
        let result = catch(|| {
            let expr = |arg: Arg| Expr::new(&cx, arg);
            let indices: SmallVec<[Expr<'_>; 2]> = indices.iter().map(|&arg| expr(arg)).collect();
            let x = expr(base);
            let part = x.slice(self.at.clone()).reshape(self.basic.clone());
            let order = self.order();
            let mut values = expr(v).cast(x.dtype());
            if values.rank() > 0 {
                // The gathered axes of the region, first.
                let count = region.rank() - (self.basic.rank() - self.arrays.len());
                values = values.broadcast(region.clone()).permute(to_front(
                    region.rank(),
                    self.place,
                    count,
                ));
            }
            let put = part.permute(order.clone()).scatter(ScatterMode::Set, values, &indices);
            let put = put.permute(inverse(&order));
            if self.is_whole(&x.shape()) && self.basic.same(&x.shape()) {
                return put;
            }
            let slice: Shape = self.at.iter().map(|a| a.size).collect();
            x.emit_with(Op::SetItem(self.at.clone()), &[x.arg(), put.reshape(slice).arg()])
        })?;
        cx.take(result)
    }

    /// The axes of the basic shape with the addressed ones first.
    fn order(&self) -> Axes {
        let addressed = self.arrays.iter().map(|(axis, _)| *axis);
        let rest = (0..self.basic.rank()).filter(|i| self.arrays.iter().all(|(axis, _)| axis != i));
        addressed.chain(rest).collect()
    }

    fn is_whole(&self, shape: &Shape) -> bool {
        self.at.iter().zip(shape.dims()).all(|(a, d)| a.is_whole(*d))
    }
}

/// The permutation that moves `count` axes from `place` to the front.
fn to_front(rank: usize, place: usize, count: usize) -> Axes {
    (place..place + count).chain(0..place).chain(place + count..rank).collect()
}

/// Splits an index into its basic and array parts.
fn resolve(op: &str, shape: &Shape, items: &[Item]) -> Result<IndexPlan> {
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

fn check_int(op: &str, i: Extent, axis: usize, size: Dim) -> Result<Dim> {
    let outside = || error::index_out_of_bounds(op, i, axis, size);
    if let Some(away) = i.below_zero() {
        return if away.is_at_most(size) { Ok(size - away) } else { Err(outside()) };
    }
    let place = i.size(op, "an index").map_err(|_| outside())?;
    if place.is_below(size) { Ok(place) } else { Err(outside()) }
}

/// Python's slice arithmetic. Places are counted from 1 where the step is negative, so that the one
/// before the first is 0.
fn slice_axis(
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

fn gather<'e>(
    y: Expr<'e>,
    arrays: &[(usize, Array)],
    indices: &[Expr<'e>],
    place: usize,
) -> Expr<'e> {
    let addressed: Axes = arrays.iter().map(|(axis, _)| *axis).collect();
    let rest = (0..y.rank()).filter(|i| !addressed.contains(i));
    let order: Axes = addressed.iter().copied().chain(rest).collect();
    let gathered = y.permute(order).gather(indices);
    let count = gathered.rank() - (y.rank() - arrays.len());
    gathered.permute(inverse(&to_front(gathered.rank(), place, count)))
}
