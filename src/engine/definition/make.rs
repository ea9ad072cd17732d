//! Deferred calls made on values of known types.

use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use super::Call;
use super::gradients::{differentiate, zeros};
use crate::dtype::Numeric;
use crate::engine::eager::{self, apply};
use crate::engine::executors::Device;
use crate::engine::index::{self, Item};
use crate::engine::tape::{self, Operand, Value};
use crate::engine::trace::{self, Trace, is_sized};
use crate::error::{self, Result};
use crate::ops::emit::Id;
use crate::ops::op::{Op, Type};
use crate::shape::{Bindings, Dim, Extent};

/// Runs something in a trace of its own, outside of all others, without recording.
pub fn in_fresh_trace<T>(device: Device, f: impl FnOnce(&Arc<Trace>) -> Result<T>) -> Result<T> {
    let _on = device.enter();
    let fresh = Trace::passing();
    fresh.settle_device("graph", device)?;
    let _recording = tape::recording_as(false);
    trace::suspended(|| {
        let _entered = fresh.enter();
        f(&fresh)
    })
}

/// An operand of a call that is made again.
#[derive(Clone)]
pub enum Given {
    /// A value of known type
    Value(Value),
    /// A number
    Scalar(Numeric),
}

impl Given {
    fn operand(&self) -> Operand<'_> {
        match self {
            Given::Value(value) => Operand::Value(value),
            Given::Scalar(value) => Operand::Scalar(*value),
        }
    }

    fn value(&self) -> Result<&Value> {
        match self {
            Given::Value(value) => Ok(value),
            Given::Scalar(_) => Err(error::internal("a number is no value")),
        }
    }
}

/// Items with their arrays replaced by operands, in order,
/// and sizes by what they are.
fn with_arrays(items: &[Item], mut arrays: &[Given], sizes: &Bindings) -> Result<Vec<Item>> {
    let known = |n: Extent| n.resolve(sizes);
    let mut out = Vec::with_capacity(items.len());
    for item in items {
        out.push(match item {
            Item::Operand => {
                let Some((first, rest)) = arrays.split_first() else {
                    return Err(error::internal("an index lost its arrays"));
                };
                arrays = rest;
                Item::Array(first.value()?.clone())
            }
            Item::Int(i) => Item::Int(known(*i)),
            Item::Slice(start, stop, step) => Item::Slice(start.map(known), stop.map(known), *step),
            Item::Ellipsis | Item::NewAxis | Item::Array(_) | Item::Flag(_) => item.clone(),
        });
    }
    Ok(out)
}

/// Makes a call on values of known types, in the trace that is open.
pub fn make(
    trace: &Arc<Trace>,
    call: &Call,
    given: &[Given],
    sizes: &Bindings,
) -> Result<SmallVec<[Value; 1]>> {
    let operands: SmallVec<[Operand<'_>; 4]> = given.iter().map(Given::operand).collect();
    match call {
        Call::Op(Op::Map(def)) => Ok(smallvec![apply::map(def, &operands)?]),
        Call::Op(op) => {
            let op = op.map_dims(|dim| sizes.resolve(dim));
            apply::apply_all(op, &operands, false)
        }
        Call::Composite(composite, attributes) => {
            let mut attributes = attributes.clone();
            let mut known = |dim: &mut Dim| *dim = sizes.resolve(*dim);
            attributes.iter_mut().for_each(|attr| attr.each_dim(&mut known));
            eager::call(composite, &attributes, &operands, false)
        }
        Call::Get(items) => {
            let items = with_arrays(items, &given[1..], sizes)?;
            Ok(smallvec![index::get(given[0].value()?, &items)?])
        }
        Call::Set(items) => {
            let (last, rest) = given.split_last().ok_or_else(|| error::internal("no value"))?;
            let items = with_arrays(items, &rest[1..], sizes)?;
            let mut x = rest[0].value()?.clone();
            index::set(&mut x, &items, last.operand())?;
            Ok(smallvec![x])
        }
        Call::Gradients { ys, xs, seeded, kept } => {
            let mut ids = SmallVec::<[Id; 8]>::new();
            for x in given {
                ids.push(trace.node("gradients", x.value()?)?);
            }
            let (ys, rest) = ids.split_at(*ys);
            let (xs, seeds) = rest.split_at(*xs);
            let found = differentiate(trace, ys, xs, seeds, seeded)?;
            let mut values = SmallVec::new();
            for ((g, x), _) in found.into_iter().zip(xs).zip(kept).filter(|(_, kept)| **kept) {
                values.push(match g {
                    Some(g) => trace.value(g),
                    None => zeros(trace, *x)?,
                });
            }
            Ok(values)
        }
        Call::Assign(ty) => {
            let x = given[0].value()?;
            check_assign(ty, x)?;
            Ok(smallvec![x.clone()])
        }
    }
}

/// Refuses a new value of another type than the variable's.
pub fn check_assign(ty: &Type, x: &Value) -> Result<()> {
    if x.dtype() != ty.dtype {
        return Err(error::dtype_mismatch(
            "assign",
            format!("{} of the variable", ty.dtype),
            x.dtype(),
        ));
    }
    if is_sized(x.shape()) && !x.shape().equals(&ty.shape) {
        let facts = format!("the value has shape {}, the variable {}", x.shape(), ty.shape);
        return Err(error::bad_shape("assign", "an update keeps the shape", facts));
    }
    Ok(())
}
