//! Which steps are cut along an axis that is not the first.
//!
//! A reduction over leading and trailing axes keeps an axis between them. What it keeps depends on
//! one place along that axis only, and so does what is computed from it element by element. So such
//! reductions, the groups that feed them or read their results, and what is computed between them
//! place by place are cut along that axis, which lies elsewhere in the results of each. Other steps
//! are left to be cut along leading axes.

use smallvec::SmallVec;

use super::super::{Operand, Plan, Source, Step, Work};
use super::{axes, is_movement};
use crate::ops::op::Op;
use crate::shape::{Dim, hint};
use crate::target::Blocks;

/// By step: the axis of its results along which it is cut, if that is not one of the first.
/// `made` has the steps that make slots.
pub fn assign(plan: &Plan, made: &[u32]) -> Vec<Option<u8>> {
    let steps = plan.steps();
    let mut found: Vec<Option<u8>> = vec![None; steps.len()];
    let Some(limits) = plan.target.limits().blocks.filter(|limits| limits.inside > 0) else {
        return found;
    };
    let seeds: SmallVec<[(u32, Dim); 4]> = (0..steps.len())
        .filter_map(|i| Some((i as u32, seed(plan, &steps[i], &limits)?)))
        .collect();
    if seeds.is_empty() {
        return found;
    }
    let mut readers: Vec<SmallVec<[(u32, usize); 2]>> = vec![SmallVec::new(); plan.slots.len()];
    for (i, step) in steps.iter().enumerate() {
        for (k, arg) in step.args.iter().enumerate() {
            if let Operand::Array(Source::Slot(slot)) = *arg {
                readers[slot as usize].push((i as u32, k));
            }
        }
    }
    for (seed, size) in seeds {
        if found[seed as usize].is_some() {
            continue;
        }
        let set = connected(plan, made, &readers, &found, seed, size);
        if bytes(plan, &set, size).is_none_or(|bytes| bytes <= limits.inside) {
            set.iter().for_each(|&(step, axis)| found[step as usize] = Some(axis));
        }
    }
    found
}

/// The size of the axis that a reduction keeps between others, where it is one of the reductions
/// that are cut along it.
fn seed(plan: &Plan, step: &Step, limits: &Blocks) -> Option<Dim> {
    let Work::Op(Op::Reduce(_, reduced)) = &step.work else { return None };
    let shape = axes::operand(plan, step, 0);
    let kept = (0..shape.rank()).find(|axis| !reduced.contains(axis))?;
    let size = shape[kept];
    let is_inside = shape.dims()[..kept].iter().any(|dim| dim.known() != Some(1));
    let are_enough = hint(size).is_some_and(|n| n >= limits.rows);
    (is_inside && are_enough && axes::cuts_inside(plan, step, 0)).then_some(size)
}

/// Whether a step has one element of its results for each place.
fn is_small(plan: &Plan, step: &Step, size: Dim) -> bool {
    axes::shape(plan, step).is_some_and(|shape| shape.elements().same(size))
}

/// The steps that are cut along an axis of this size with a reduction, and that axis in the results
/// of each: from a reduction, and from a step with an element for each place, to all that feed it
/// or read it place by place.
fn connected(
    plan: &Plan,
    made: &[u32],
    readers: &[SmallVec<[(u32, usize); 2]>],
    taken: &[Option<u8>],
    seed: u32,
    size: Dim,
) -> Vec<(u32, u8)> {
    let steps = plan.steps();
    let mut set: Vec<(u32, u8)> = vec![(seed, 0)];
    let mut at = 0;
    let is_near = |i: u32| {
        let step = &steps[i as usize];
        matches!(&step.work, Work::Op(Op::Reduce(..))) || is_small(plan, step, size)
    };
    while let Some(&(i, axis)) = set.get(at) {
        at += 1;
        let step = &steps[i as usize];
        let mut add = |other: u32, axis: Option<u8>| {
            let Some(axis) = axis else { return };
            let to = &steps[other as usize];
            let has_size = |shape: &crate::shape::Shape| {
                shape.dims().get(axis as usize).is_some_and(|dim| dim.same(size))
            };
            if (is_near(i) || is_near(other))
                && taken[other as usize].is_none()
                && set.iter().all(|&(own, _)| own != other)
                && axes::shape(plan, to).is_some_and(has_size)
                && axes::cuts_inside(plan, to, axis)
            {
                set.push((other, axis));
            }
        };
        for (k, arg) in step.args.iter().enumerate() {
            if let Operand::Array(Source::Slot(slot)) = *arg {
                add(made[slot as usize], axes::along(plan, step, k, &[axis])[0]);
            }
        }
        for &slot in &step.results {
            for &(reader, k) in &readers[slot as usize] {
                add(reader, axes::forward(plan, &steps[reader as usize], k, axis));
            }
        }
    }
    set
}

/// Bytes of the results of steps for each place, as far as sizes are known.
fn bytes(plan: &Plan, set: &[(u32, u8)], size: Dim) -> Option<usize> {
    let steps = set.iter().map(|&(step, _)| &plan.steps[step as usize]);
    let slots = steps.filter(|step| !is_movement(step)).flat_map(|step| &step.results);
    let all = slots.map(|&slot| {
        let ty = &plan.slots[slot as usize];
        Some(plan.target.bytes(ty.dtype, hint(ty.shape.elements())?))
    });
    Some(all.sum::<Option<usize>>()? / hint(size)?.max(1))
}
