//! What a call on unknown shapes gives, found by making it on shapes that might be.

use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use super::Call;
use super::make::{Given, in_fresh_trace, make};
use crate::dtype::DType;
use crate::engine::tape::Value;
use crate::engine::trace::Trace;
use crate::error::{self, Error, Result};
use crate::ops::declare::Returns;
use crate::ops::emit::Arg;
use crate::ops::op::{Op, Type};
use crate::shape::{Bindings, Shape};

/// The results of a call whose shapes are not known.
pub(super) fn unresolved(
    trace: &Arc<Trace>,
    call: &Call,
    args: &[Arg],
) -> Result<SmallVec<[Value; 1]>> {
    let mut values = SmallVec::new();
    match call {
        // A gradient has the type of what it is the gradient of.
        Call::Gradients { ys, xs, kept, .. } => {
            let by = &args[*ys..ys + xs];
            for (x, _) in by.iter().zip(kept).filter(|(_, kept)| **kept) {
                let Arg::Node(id) = *x else { continue };
                let ty = trace.read(|graph| graph.list().node(id).ty.clone());
                values.push(match trace.is_unresolved(id) {
                    true => trace.unresolved(ty.dtype)?,
                    false => trace.input(ty)?,
                });
            }
            return Ok(values);
        }
        Call::Assign(ty) => {
            values.push(trace.input(ty.clone())?);
            return Ok(values);
        }
        Call::Op(_) | Call::Composite(..) | Call::Get(_) | Call::Set(_) => {}
    }
    if let Call::Op(op) = call
        && !matches!(op, Op::Map(_) | Op::Cast(_))
    {
        // Its attributes were worked out from a rank that is not known.
        let what = "the rank is not known before the graph runs";
        return Err(error::bad_graph(op.name(), what, "give the placeholder a shape"));
    }
    for (dtype, shape) in probe(trace, call, args)? {
        values.push(match shape {
            Some(shape) => trace.input(Type::new(dtype, shape))?,
            None => trace.unresolved(dtype)?,
        });
    }
    Ok(values)
}

/// Sizes and ranks with which unknown shapes are tried, to learn what a call gives.
const SIZES: [usize; 2] = [12, 20];

/// Tried where none of [`SIZES`] fits: they broadcast, or are those of an empty operand. What they
/// give tells the dtype alone.
const SMALL: [usize; 2] = [1, 0];

const RANKS: [usize; 6] = [1, 2, 3, 4, 0, 5];

/// What a call gives, as far as it can be told: a dtype, and a shape if that is always the same.
type Likely = SmallVec<[(DType, Option<Shape>); 1]>;

/// The results of a call, found by making it on shapes that might be.
pub(super) fn probe(trace: &Arc<Trace>, call: &Call, args: &[Arg]) -> Result<Likely> {
    let mut first: Option<Error> = None;
    let mut same = true;
    let mut likely: Option<Likely> = None;
    let tries = |sizes: [usize; 2]| RANKS.into_iter().flat_map(move |r| sizes.map(|n| (r, n)));
    for (rank, size) in tries(SIZES).chain(tries(SMALL)) {
        let is_small = SMALL.contains(&size);
        if is_small && likely.is_some() {
            break;
        }
        let types = args.iter().map(|arg| {
            let ty = trace.type_of(*arg)?;
            let Arg::Node(id) = arg else { return None };
            let shape = match trace.is_unresolved(*id) {
                true => Shape::of(&[size; 5][..rank]),
                false => ty.shape.map(|dim| if dim.known().is_some() { dim } else { size.into() }),
            };
            Some(Type::new(ty.dtype, shape))
        });
        let types: Vec<Option<Type>> = types.collect();
        let found = in_fresh_trace(|fresh| {
            let mut values = Vec::new();
            for (ty, arg) in types.iter().zip(args) {
                values.push(match (ty, arg) {
                    (Some(ty), _) => Given::Value(fresh.input(ty.clone())?),
                    (None, Arg::Scalar(value)) => Given::Scalar(*value),
                    (None, Arg::Node(_)) => return Err(error::internal("a node has a type")),
                });
            }
            make(fresh, call, &values, &Bindings::default())
        });
        match found {
            Ok(values) if is_small => {
                likely = Some(values.iter().map(|value| (value.dtype(), None)).collect());
            }
            Ok(values) => agree(call, &mut likely, &values)?,
            Err(error) => {
                same &= first.as_ref().is_none_or(|first| first.message() == error.message());
                first.get_or_insert(error);
            }
        }
    }
    if let Some(likely) = likely {
        return Ok(likely);
    }
    let error = first.unwrap_or_else(|| error::internal("nothing was tried"));
    let is_one = match call {
        Call::Composite(composite, _) => composite.returns == Returns::One,
        _ => true,
    };
    // What is refused for every shape in the same words is wrong; else a shape may be found that fits.
    if same || !is_one {
        return Err(error);
    }
    let types = args.iter().filter_map(|arg| trace.type_of(*arg)).map(|ty| ty.dtype);
    let common = types.reduce(|a, b| a.promote(b).unwrap_or(a));
    Ok(smallvec![(common.unwrap_or(DType::F32), None)])
}

/// Forgets shapes that differ from those of another try.
fn agree(call: &Call, likely: &mut Option<Likely>, values: &[Value]) -> Result<()> {
    match likely {
        None => {
            let pairs = values.iter().map(|value| (value.dtype(), Some(value.shape().clone())));
            *likely = Some(pairs.collect());
        }
        Some(likely) if likely.len() != values.len() => {
            let what = "the size that says how many results there are";
            return Err(error::unknown_size(call.name(), what));
        }
        Some(likely) => {
            for ((_, shape), value) in likely.iter_mut().zip(values) {
                if shape.as_ref().is_some_and(|shape| !shape.equals(value.shape())) {
                    *shape = None;
                }
            }
        }
    }
    Ok(())
}
