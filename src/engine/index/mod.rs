//! Indexing as NumPy does it, lowered to slices, gathers and scatters.
//!
//! An index is split in two: basic items (integers, slices, new axes, an ellipsis) make one slice
//! and one reshape; array items (integer arrays, and masks as the positions of their true elements)
//! make one gather over the axes they address. NumPy's rule places the gathered axes: where the
//! arrays stand if they stand together, else first.

mod plain;
mod plan;

use smallvec::SmallVec;

pub use self::plain::{Key, Rows, rows, taken};
use self::plan::{IndexPlan, resolve, to_front};
use super::eager::Eager;
use super::eager::apply::apply;
use super::executors::{self, Device, device};
use super::tape::{self, Operand, Value, recording};
pub use super::trace::Item;
use super::trace::{self, Call};
use crate::array::Array;
use crate::dtype::DType;
use crate::error::{self, Result};
use crate::ops::attributes::ScatterMode;
use crate::ops::emit::{Arg, Expr, catch};
use crate::ops::op::Op;
use crate::ops::structural::inverse;
use crate::shape::{Axes, Dim, Extent, Shape};
use crate::threads;
use crate::watch;

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
    if let Some(graph) = trace::deferring(&[Operand::Value(x)]) {
        let (items_kept, operands) = kept(x, items, None);
        let call = || Call::Get(items_kept.clone());
        return graph.whole_one(&call, &operands, &mut || take(x, items));
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
    // Where there is something to view, a view is made directly, also of a step of the tape.
    let views = !trace::active() && x.array.is_on_host();
    let record = recording();
    let is_free = !(record && x.requires_grad());
    if views
        && is_free
        && let Some(view) = plain::viewed(x, items)
    {
        return Ok(view);
    }
    if let Some((x, mask)) = flat_mask(x, items, record)? {
        return take(&x, &[Item::Array(mask)]);
    }
    let plan = resolve("getitem", x.shape(), items)?;
    let y = match plan.is_whole(x.shape()) {
        true => reshaped(x, &plan.basic, record)?,
        false => {
            // Slice and shape are one step of the tape.
            let step = Op::Slice(plan.at);
            let view = if views { plain::viewed(x, items) } else { None };
            let array = match view {
                Some(view) => view.array,
                None => {
                    let part = apply(step.clone(), &[Operand::Value(x)], false)?;
                    reshaped(&part, &plan.basic, false)?.array
                }
            };
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
    cx.last(result.map_err(|error| error.within("getitem"))?)
}

/// A mask of several axes and what it covers, with these axes as one: then one number says where an
/// element is. `None` of other items, of a mask that does not fit, and of what is recorded, as one
/// entry of the tape.
fn flat_mask(x: &Value, items: &[Item], record: bool) -> Result<Option<(Value, Value)>> {
    let [Item::Array(mask)] = items else { return Ok(None) };
    let rank = mask.shape().rank();
    let is_mask = mask.dtype() == DType::Bool && (2..=x.shape().rank()).contains(&rank);
    if trace::active()
        || record && x.requires_grad()
        || !is_mask
        || !x.array.is_on_host()
        || !x.array.is_contiguous()
        || !mask.array.is_on_host()
        || x.shape().dims()[..rank] != *mask.shape().dims()
    {
        return Ok(None);
    }
    let line = Shape::from_dims(&[mask.shape().elements()]);
    let flat = line.dims().iter().chain(&x.shape().dims()[rank..]).copied().collect();
    Ok(Some((reshaped(x, &flat, false)?, reshaped(mask, &line, false)?)))
}

fn reshaped(x: &Value, shape: &Shape, record: bool) -> Result<Value> {
    match x.shape().same(shape) {
        true => Ok(x.clone()),
        false => apply(Op::Reshape(shape.clone()), &[Operand::Value(x)], record),
    }
}

/// Gives `x` the value it has after `x[items] = v`, in its own memory where nobody else holds it.
/// A refused write changes nothing.
pub fn set(x: &mut Value, items: &[Item], v: Operand<'_>) -> Result<()> {
    let op = "setitem";
    let _on = check_devices(op, x, items, Some(v))?;
    let _entered = trace::enter_for(op, &[Operand::Value(x), v])?;
    if let Some(graph) = trace::deferring(&[Operand::Value(x), v]) {
        let before = x.clone();
        let (items_kept, operands) = kept(&before, items, Some(v));
        let mut native = || {
            let mut x = before.clone();
            put(&mut x, items, v)?;
            Ok(x)
        };
        *x = graph.whole_one(&|| Call::Set(items_kept.clone()), &operands, &mut native)?;
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
        cast = cx.last(fitted)?;
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
    if in_place
        && x.array.is_on_host()
        && !watch::on()
        && plan.is_leading(x.shape())
        && let Operand::Value(v) = v
    {
        let indices: SmallVec<[&Array; 2]> = plan.arrays.iter().map(|(_, array)| array).collect();
        // SAFETY: as above, and `x` is in C order.
        let write = || unsafe { executors::write_at(&x.array, &indices, &v.array) };
        if threads::breakable(false, write).is_ok() {
            return Ok(());
        }
        // What is refused has changed nothing, and is refused below in the words of the index.
    }
    *x = plan.updated(x, v, &region).map_err(|error| error.within(op))?;
    Ok(())
}

/// `x` after `x[mask] = v` as `where`, for a mask of the leading axes and a `v` that is the same
/// for every element the mask covers; `None` where positions are what to go by.
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
    cx.last(written).map(Some)
}

impl IndexPlan {
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
        cx.last(result)
    }
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
