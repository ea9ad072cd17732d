//! The calls that refusals name: which call of the user's a node is part of, and how that call
//! speaks of an index that data gave.
//!
//! A formula runs [within](Origin::enter) its call, so its nodes carry the call wherever passes
//! take them. Whoever finds that data refuses a node [asks here](explain) what to say. So the text
//! is the same for a formula that runs at once, in a plan, in a session or node by node.

use std::sync::atomic::Ordering::Relaxed;

use super::composite;
use super::declare::{Arguments, Attr, Composite, Indexes};
use super::emit::{Arg, Expr};
use crate::error::{self, Error};
use crate::fork::Lazy;
use crate::shape::MAX_RANK;
use crate::site::Origin;

/// The names of calls that are no composites.
const OTHERS: [&str; 2] = ["getitem", "setitem"];

/// The composites by number, less those of the others.
static TABLE: Lazy<Vec<&'static Composite>> = Lazy::new(|| composite::tables().collect());

/// Gives every composite its number.
#[cold]
fn numbered(composite: &'static Composite) -> u32 {
    for (&composite, number) in TABLE.iter().zip(OTHERS.len() as u32 + 1..) {
        composite.number.store(number, Relaxed);
    }
    composite.number.load(Relaxed)
}

/// The origin of what a call of a composite makes.
#[inline]
pub fn of(composite: &'static Composite, call: &Arguments<'_, '_>) -> Origin {
    let name = match composite.number.load(Relaxed) {
        0 => numbered(composite),
        name => name,
    };
    let axis = match composite.indexes {
        Indexes::Axis(parameter) => axis(composite, call, parameter),
        Indexes::First => Some(0),
        Indexes::Nothing | Indexes::Classes | Indexes::Labels => None,
    };
    Origin { name, axes: axis.map_or(0, bit) }
}

/// The axis that a parameter names; the only one where it says none, of a flattened operand.
fn axis(composite: &Composite, call: &Arguments<'_, '_>, parameter: &str) -> Option<usize> {
    let i = composite.params.iter().position(|p| p.name == parameter)?;
    let Some(Attr::Int(axis)) = call.attributes.get(i) else { return Some(0) };
    if *axis >= 0 {
        return usize::try_from(*axis).ok();
    }
    let rank = match *call.operands.first()? {
        x @ Arg::Node(_) => Expr::new(call.cx, x).rank(),
        Arg::Number(_) => return None,
    };
    rank.checked_add_signed(isize::try_from(*axis).ok()?)
}

fn bit(axis: usize) -> u32 {
    if axis < MAX_RANK { 1 << axis } else { 0 }
}

/// The origin of what `x[…]` (or `x[…] = v`) makes, which addresses these axes by arrays.
pub fn index(op: &str, axes: impl Iterator<Item = usize>) -> Origin {
    let name = OTHERS.iter().position(|&name| name == op).map_or(0, |i| i as u32 + 1);
    Origin { name, axes: axes.fold(0, |all, axis| all | bit(axis)) }
}

/// A refusal of a node, as whoever made the call should read it; once.
#[cold]
pub fn explain(error: Error, origin: Origin) -> Error {
    if origin.is_none() || error.is_explained() {
        return error;
    }
    let (name, indexes) = called(origin);
    let Some(place) = error.place() else { return error.within(name).explained() };
    let (i, n) = (place.index, place.size);
    let said = match indexes {
        // Negative labels were moved below every index.
        Indexes::Labels if i < 0 => error::bad_class(name, i + n as i64, n),
        Indexes::Labels | Indexes::Classes => error::bad_class(name, i, n),
        Indexes::Axis(_) | Indexes::First | Indexes::Nothing => {
            let axis = addressed(origin.axes, place.behind).unwrap_or(place.axis);
            error::index_out_of_bounds(name, i, axis, n)
        }
    };
    said.explained()
}

/// The name of the call, and what it has indexes of.
fn called(origin: Origin) -> (&'static str, Indexes) {
    let i = origin.name as usize - 1;
    match OTHERS.get(i) {
        Some(name) => (*name, Indexes::Nothing),
        None => {
            let composite = TABLE[i - OTHERS.len()];
            (composite.name, composite.indexes)
        }
    }
}

/// How whoever made the call should read of an index outside one of `count` axes: the name of the
/// call, its word for an index, and its numbers of the axes. What [`explain`] says, for programs
/// that say it elsewhere.
pub fn words(
    op: &'static str,
    origin: Origin,
    count: usize,
) -> (&'static str, &'static str, Vec<usize>) {
    let axis = |axis: usize| addressed(origin.axes, count - 1 - axis).unwrap_or(axis);
    let axes = (0..count).map(axis).collect();
    if origin.is_none() {
        return (op, "index", axes);
    }
    let (name, indexes) = called(origin);
    let word = match indexes {
        Indexes::Labels => "label",
        Indexes::Classes => "class",
        Indexes::Axis(_) | Indexes::First | Indexes::Nothing => "index",
    };
    (name, word, axes)
}

/// The axis of the call that an index array addresses, by how many arrays come behind that one: a
/// batch puts axes of its own in front.
fn addressed(axes: u32, behind: usize) -> Option<usize> {
    let count = axes.count_ones() as usize;
    if count <= 1 {
        return (count == 1).then_some(axes.trailing_zeros() as usize);
    }
    let set = (0..MAX_RANK).filter(|&axis| axes & bit(axis) != 0);
    set.rev().nth(behind)
}
