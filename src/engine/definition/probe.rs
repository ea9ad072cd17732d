//! Result dtypes of calls on unknown shapes, found by making the call on sample shapes.

use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use super::Call;
use super::make::{Given, in_fresh_trace, make};
use crate::dtype::DType;
use crate::engine::tape::Value;
use crate::engine::trace::Trace;
use crate::error::{self, Error, Result};
use crate::ops::declare::{Attr, Returns};
use crate::ops::emit::Arg;
use crate::ops::op::{Op, Type};
use crate::shape::{Bindings, Dim, Shape};

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

/// Tried where neither [`SIZES`] nor a size that is [`mentioned`] fits: they broadcast, or are
/// those of an empty operand. What they give tells the dtype alone.
const SMALL: [usize; 2] = [1, 0];

const RANKS: [usize; 6] = [1, 2, 3, 4, 0, 5];

/// What a call gives, as far as it can be told: a dtype, and a shape if that is always the same.
pub(super) type Likely = SmallVec<[(DType, Option<Shape>); 1]>;

/// The results of a call, found by making it on shapes that might be.
pub(super) fn probe(trace: &Arc<Trace>, call: &Call, args: &[Arg]) -> Result<Likely> {
    let mut first: Option<Error> = None;
    let mut same = true;
    let mut likely: Option<Likely> = None;
    let mut sizes = mentioned(trace, call, args);
    sizes.extend(SMALL);
    let rest = sizes.iter().flat_map(|&n| RANKS.map(|rank| (rank, n)));
    let usual = RANKS.into_iter().flat_map(|rank| SIZES.map(|n| (rank, n)));
    for (rank, size) in usual.chain(rest) {
        let is_usual = SIZES.contains(&size);
        if !is_usual && likely.is_some() {
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
        let found = in_fresh_trace(trace.device(), |fresh| {
            let mut values = Vec::new();
            for (ty, arg) in types.iter().zip(args) {
                values.push(match (ty, arg) {
                    (Some(ty), _) => Given::Value(fresh.input(ty.clone())?),
                    (None, Arg::Number(value)) => Given::Scalar(*value),
                    (None, Arg::Node(_)) => return Err(error::internal("a node has a type")),
                });
            }
            make(fresh, call, &values, &Bindings::default())
        });
        match found {
            Ok(values) if !is_usual => {
                // One size says nothing about the shape that others give.
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
        Call::Op(_) | Call::Get(_) | Call::Set(_) | Call::Gradients { .. } | Call::Assign(_) => {
            true
        }
    };
    // What is refused for every shape in the same words is wrong; else a shape may be found that
    // fits.
    if same {
        return Err(error);
    }
    if !is_one {
        // The error speaks of a size that was invented here.
        return Err(error::unknown_size(call.name(), "a size that decides about the results"));
    }
    let types = args.iter().filter_map(|arg| trace.type_of(*arg)).map(|ty| ty.dtype);
    let common = types.reduce(|a, b| a.promote(b).unwrap_or(a));
    Ok(smallvec![(common.unwrap_or(DType::F32), None)])
}

/// Sizes that a call speaks of: those of other operands, counts, and sizes of parts taken together.
fn mentioned(trace: &Trace, call: &Call, args: &[Arg]) -> Vec<usize> {
    let types = args.iter().filter_map(|arg| trace.type_of(*arg));
    let mut sizes: Vec<usize> =
        types.flat_map(|ty| ty.shape.dims().to_vec()).filter_map(Dim::known).collect();
    if let Call::Composite(_, attributes) = call {
        let sum = |attr: &Attr| match attr {
            Attr::Ints(parts) => parts.iter().try_fold(0_usize, |sum, &n| {
                sum.checked_add(usize::try_from(n).ok()?).filter(|&sum| sum < LARGEST)
            }),
            Attr::Int(n) => usize::try_from(*n).ok().filter(|&n| (1..LARGEST).contains(&n)),
            Attr::None
            | Attr::Size(_)
            | Attr::Sizes(_)
            | Attr::Bool(_)
            | Attr::Float(_)
            | Attr::DType(_)
            | Attr::Text(_)
            | Attr::Operands(_)
            | Attr::Operand => None,
        };
        sizes.extend(attributes.iter().filter_map(sum));
    }
    sizes.sort_unstable();
    sizes.dedup();
    sizes.retain(|size| !SIZES.contains(size) && !SMALL.contains(size));
    sizes
}

/// Sizes above are not tried.
const LARGEST: usize = 1 << 20;

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
