//! Saved values of tape entries: how a rule gets them, and how they are freed.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::array::Array;
use crate::dtype::{DType, Numeric};
use crate::engine::eager::Eager;
use crate::engine::site::{self, Site};
use crate::engine::tape::signature::{Given, Part, Signature};
use crate::engine::tape::{Entry, History, Saved, SavedValues, Step, Value};
use crate::engine::trace;
use crate::error::{self, Error, Result};
use crate::ops::emit::Arg;
use crate::ops::op::{Op, Type};
use crate::shape::Shape;

impl Saved {
    pub(super) fn array(&self) -> Option<&Array> {
        match self {
            Saved::Array(array) => Some(array),
            Saved::Type(_) | Saved::Scalar(_) => None,
        }
    }

    pub(super) fn ty(&self) -> Type {
        match self {
            Saved::Array(array) => Type::new(array.dtype, array.shape().clone()),
            Saved::Type(ty) => ty.clone(),
            Saved::Scalar(_) => Type::new(DType::F32, Shape::scalar()),
        }
    }
}

/// Which gradient of a call a sweep is to take; none in traces, and of values on other devices.
pub(super) fn part_of(entry: &Entry, wanted: &[bool], given: &[(u32, Value)]) -> Option<Part> {
    if trace::active() || given.iter().any(|(_, g)| !g.array.is_on_host()) {
        return None;
    }
    let bit = |(i, is_set): (usize, bool)| u64::from(is_set) << i;
    let values = entry.saved.lock();
    let saved = values.args.iter().chain(&values.results);
    let is_there = |saved: &Saved| matches!(saved, Saved::Array(_));
    Some(Part {
        wanted: wanted.iter().copied().enumerate().map(bit).sum(),
        present: saved.map(is_there).enumerate().map(bit).sum(),
        given: given.iter().fold(0, |bits, (k, _)| bits | 1 << k),
    })
}

/// The cotangents of the operands of a composite that are wanted, by the plan of its rules, if
/// there is one.
pub(super) fn planned_rules(
    op: &str,
    entry: &Arc<Entry>,
    signature: &Signature,
    part: Part,
    given: &[(u32, Value)],
) -> Result<Option<SmallVec<[Array; 2]>>> {
    let values = entry.saved.lock();
    check_saved(op, entry, &values)?;
    let mut operands: SmallVec<[Given<'_>; 6]> = SmallVec::new();
    for saved in values.args.iter().chain(&values.results) {
        operands.push(match saved {
            Saved::Array(array) => Given::Array(array),
            Saved::Type(ty) => Given::Type(ty),
            Saved::Scalar(Numeric::Known(scalar)) => Given::Scalar(*scalar),
            Saved::Scalar(Numeric::Told(_)) => return Ok(None),
        });
    }
    let results = values.results.len();
    for k in 0..results as u32 {
        let found = given.iter().find(|(of, _)| *of == k);
        operands.extend(found.map(|(_, g)| Given::Array(&g.array)));
    }
    signature.run_gradient(part, results, &operands)
}

#[inline]
pub(super) fn restore(cx: &Eager, saved: &Saved, history: impl Fn() -> History) -> Arg {
    match saved {
        Saved::Array(array) => cx.value(Value { array: array.clone(), history: history() }),
        Saved::Type(ty) => cx.absent(ty.clone()),
        Saved::Scalar(scalar) => Arg::Number(*scalar),
    }
}

/// Refuses an entry that an earlier backward has used up.
#[inline]
pub(super) fn check_saved(op: &str, entry: &Entry, values: &SavedValues) -> Result<()> {
    match values.freed {
        None => Ok(()),
        Some(first) => Err(used_up(op, entry, first)),
    }
}

#[cold]
fn used_up(op: &str, entry: &Entry, first: Site) -> Error {
    let first = site::describe(first).map_or(String::new(), |line| format!(" at {line}"));
    let node = site::describe(entry.site)
        .map_or(entry.name().to_string(), |line| format!("{} at {line}", entry.name()));
    error::freed(op, node, first)
}

pub(super) fn free(entry: &Entry, by: Site) {
    let mut values = entry.saved.lock();
    if let Step::Host(rule) = &entry.step {
        rule.release(by);
    }
    let values = &mut *values;
    let keeps = drop_data(&mut values.args) | drop_data(&mut values.results);
    // An entry that kept nothing can be swept again.
    let is_used_up = match &entry.step {
        Step::Host(_) => false,
        Step::Call(_) | Step::Op(Op::Call(_)) => true,
        Step::Op(_) => keeps,
    };
    if is_used_up {
        values.freed = Some(by);
    }
}

/// Lets go of the data, and keeps the types; true where there was any.
#[inline(always)]
fn drop_data(values: &mut [Saved]) -> bool {
    let mut keeps = false;
    for saved in values {
        if let Saved::Array(array) = saved {
            *saved = Saved::Type(Type::new(array.dtype, array.shape().clone()));
            keeps = true;
        }
    }
    keeps
}
