//! Block fusions: steps worked off block by block.
//!
//! A softmax reads its operand three times and keeps two arrays of its size in between; but each row
//! of it depends on one row only. So steps that depend on each other *row by row*, along the same
//! leading axes, become one: it is run for a few rows at a time, whose values stay in the cache, and
//! several threads take different rows without waiting for each other. Elementwise groups, reductions
//! of trailing axes, movements that leave the rows alone and products of a batch go together like
//! this; what lies between them takes room for a few rows per thread. A reduction over all rows takes
//! up each block while it is there.
//!
//! Which steps belong together is found once for all sizes, and as groups are: along an edge by
//! rows the *stage* of a step may stay the same, along any other it rises, so no path leaves a set of
//! one stage and comes back. Whether a set is worth it, and how high its blocks are, depends on sizes.

mod axes;
mod block;
mod grid;
#[cfg(test)]
pub(super) mod tests;

use std::sync::{Arc, OnceLock};

use smallvec::SmallVec;

use super::liveness::makers;
use super::memory::LayoutHint;
use super::order::Graph;
use super::{Cut, Operand, Plan, Source, Step, Work};
use crate::dtype::DType;
use crate::ops::attributes::Reduction;
use crate::ops::op::Op;
use crate::shape::{Shape, hint};
use crate::target::Blocks;
pub use axes::{AxisMap, leading, part};
use block::Merged;
pub use grid::{BlockSchedule, Grid};

/// Bytes of the values of a block where there are so many in all.
fn block_bytes(limits: &Blocks, bytes: usize, lanes: usize) -> usize {
    (bytes / (limits.each * lanes)).clamp(limits.least, limits.bytes)
}

/// Steps that go together.
#[derive(Clone)]
pub struct Set {
    /// By their places in a plan, in order
    steps: SmallVec<[u32; 4]>,
    /// How many leading axes they have in common
    rows: usize,
    /// Reductions over all rows of what they compute
    carried: SmallVec<[u32; 2]>,
    /// What was found best for the first blocks
    layout_hint: Arc<OnceLock<LayoutHint>>,
}

impl Set {
    /// The same steps at other places.
    pub fn follow(&mut self, place: &[u32]) {
        for steps in [self.steps.as_mut_slice(), self.carried.as_mut_slice()] {
            steps.iter_mut().for_each(|step| *step = place[*step as usize]);
            steps.sort_unstable();
        }
        self.layout_hint = Arc::default();
    }
}

/// A set of steps, made into one that works block by block.
#[derive(Clone)]
pub struct BlockFusion {
    /// How rows are cut into blocks, and how these follow each other
    pub schedule: BlockSchedule,
    /// What is done to a block
    pub full: Arc<Plan>,
    /// What is done to one at the end of its axis that is lower
    pub last: Option<Arc<Plan>>,
    /// By operand: its axes along the rows
    pub axis_maps: SmallVec<[AxisMap; 4]>,
    /// By operand: whether a result of its type may be written over it
    spent: SmallVec<[bool; 4]>,
    /// Reductions over all rows
    pub carried: SmallVec<[CarriedReduction; 1]>,
    /// The bytes that a block takes between operands and results
    pub capacity: usize,
    /// Of these, for products
    pub products: usize,
    /// Bytes of the values in between, had each memory of its own
    inner: usize,
}

/// A reduction over all rows: blocks are joined into it as they come.
#[derive(Clone, Debug)]
pub struct CarriedReduction {
    /// Which result of a block
    pub output: usize,
    /// What is done
    pub kind: Reduction,
    /// The dtype of the array
    pub dtype: DType,
    /// The lines of the array, which are joined into one
    pub lines: usize,
    /// The elements of a line
    pub width: usize,
    /// Where a block of it lies in the room of a lane, if it is no result of its own
    pub dedicated: Option<usize>,
}

impl BlockFusion {
    /// What is done to a block.
    pub fn body(&self) -> &Plan {
        &self.full
    }

    /// The steps for one block.
    pub fn steps(&self) -> &[Step] {
        self.full.steps()
    }

    /// The reductions over all rows.
    pub fn reductions(&self) -> impl Iterator<Item = Reduction> {
        self.carried.iter().map(|reduction| reduction.kind)
    }

    /// How many blocks there are.
    pub fn blocks(&self) -> usize {
        self.schedule.grid.blocks()
    }

    /// Bytes that blocks take between operands and results.
    pub fn workspace(&self) -> usize {
        self.schedule.lanes * self.capacity
    }

    /// Bytes of the values in between, had each memory of its own.
    pub fn inner_bytes(&self) -> usize {
        self.inner
    }

    /// Whether results of its type may be written over operand `i`: a block of it is read for the
    /// last time before any of them is begun.
    pub fn spends(&self, i: usize) -> bool {
        self.spent.get(i).copied().unwrap_or(false)
    }
}

/// The sets of steps that go row by row.
pub(super) fn sets(plan: &Plan) -> Vec<Set> {
    let steps = plan.steps();
    let reach: Vec<usize> = steps.iter().map(|step| axes::reach(plan, step)).collect();
    if reach.iter().all(|&rows| rows == 0) {
        return Vec::new();
    }
    let made = makers(steps, plan.slots().len());
    // Stages, counted back from the results, as for groups.
    let mut stage = vec![u32::MAX; steps.len()];
    let mut joins: Vec<(u32, u32, usize)> = Vec::new();
    for (i, step) in steps.iter().enumerate().rev() {
        for (k, arg) in step.args.iter().enumerate() {
            let Operand::Array(Source::Slot(slot)) = *arg else { continue };
            let from = made[slot as usize] as usize;
            let rows = rows_along(plan, (&steps[from], reach[from]), (step, reach[i]), k);
            if rows > 0 {
                joins.push((from as u32, i as u32, rows));
            }
            stage[from] = stage[from].min(stage[i] - u32::from(rows == 0));
        }
    }
    let mut leader: Vec<u32> = (0..steps.len() as u32).collect();
    let mut rows = reach;
    for (from, to, along) in joins {
        if stage[from as usize] == stage[to as usize] {
            let (a, b) = (root(&mut leader, from) as usize, root(&mut leader, to) as usize);
            leader[a.max(b)] = a.min(b) as u32;
            rows[a.min(b)] = rows[a].min(rows[b]).min(along);
        }
    }
    let mut members: Vec<SmallVec<[u32; 4]>> = vec![SmallVec::new(); steps.len()];
    for i in 0..steps.len() as u32 {
        members[root(&mut leader, i) as usize].push(i);
    }
    let mut carried: Vec<SmallVec<[u32; 2]>> = vec![SmallVec::new(); steps.len()];
    for (i, step) in steps.iter().enumerate() {
        let (Work::Op(Op::Reduce(_, axes)), Some(&Operand::Array(Source::Slot(slot)))) =
            (&step.work, step.args.first())
        else {
            continue;
        };
        let from = made[slot as usize];
        let to = root(&mut leader, from) as usize;
        let shape = &plan.slots[slot as usize].shape;
        let is_first = axes.iter().copied().eq(0..axes.len());
        if rows[to] == 0 || !is_first || is_movement(&steps[from as usize]) {
            continue;
        }
        let along = if axes.len() == shape.rank() { rows[to] } else { rows[to].min(axes.len()) };
        if are_enough(plan, shape, along) {
            carried[to].push(i as u32);
            rows[to] = along;
        }
    }
    let computes = |&&i: &&u32| !is_movement(&steps[i as usize]);
    let sets = members.into_iter().zip(rows).zip(carried);
    let sets = sets.map(|((steps, rows), carried)| Set {
        steps,
        rows,
        carried,
        layout_hint: Arc::default(),
    });
    let pays = |set: &Set| set.steps.iter().filter(computes).count() + set.carried.len() > 1;
    sets.filter(|set| set.rows > 0 && pays(set)).collect()
}

/// The representative of a set.
fn root(set: &mut [u32], mut i: u32) -> u32 {
    while set[i as usize] != i {
        set[i as usize] = set[set[i as usize] as usize];
        i = set[i as usize];
    }
    i
}

/// Along how many leading axes what a step reads as its `k`-th operand is computed row by row; 0 where
/// it is not, or there are too few rows.
fn rows_along(plan: &Plan, from: (&Step, usize), to: (&Step, usize), k: usize) -> usize {
    let rows = from.1.min(to.1);
    let (Some(before), Some(after)) = (axes::shape(plan, from.0), axes::shape(plan, to.0)) else {
        return 0;
    };
    let rows = axes::straight(&axes::along(plan, to.0, k, rows), before, after);
    if are_enough(plan, before, rows) { rows } else { 0 }
}

/// Whether there are rows for several blocks along the first axes, as far as that is known.
fn are_enough(plan: &Plan, shape: &Shape, rows: usize) -> bool {
    let Some(limits) = plan.target.limits().blocks else { return false };
    let sizes = shape.dims()[..rows].iter().map(|&dim| hint(dim));
    let count: Option<usize> = sizes.product();
    rows > 0 && count.is_none_or(|count| count >= limits.rows)
}

/// Whether a step only shows its operand otherwise.
fn is_movement(step: &Step) -> bool {
    matches!(&step.work, Work::Op(op) if op.is_movement())
}

/// By set: whether it became one step, and with which reductions over all rows. Plans of the same steps
/// that agree in this have the same steps afterwards.
pub type Choice = Vec<Option<SmallVec<[u32; 2]>>>;

impl Plan {
    /// Makes steps of the sets that are worth it at the sizes of this plan; which those are.
    pub(super) fn fuse_blocks(&mut self) -> Choice {
        if !self.is_known() {
            return Vec::new();
        }
        let template = self.template.clone();
        let sets = &template.sets;
        let readers = block::Readers::new(self);
        let mut merged = Vec::with_capacity(sets.len());
        let mut taken: Vec<Option<Vec<Step>>> = (0..self.steps.len()).map(|_| None).collect();
        for set in sets {
            let made = block::merge(self, &readers, set);
            merged.push(made.as_ref().map(|made| made.carried.clone()));
            if let Some(Merged { steps, workspace, carried }) = made {
                self.slots.extend(workspace);
                set.steps
                    .iter()
                    .chain(&carried)
                    .for_each(|&i| taken[i as usize] = Some(Vec::new()));
                let last = set.steps[set.steps.len() - 1];
                taken[last as usize] = Some(steps);
            }
        }
        if merged.iter().any(Option::is_some) {
            let steps = self.steps.drain(..).zip(taken);
            let all: Vec<Step> =
                steps.flat_map(|(step, taken)| taken.unwrap_or_else(|| vec![step])).collect();
            let order = Graph::new(&all, self.slots.len()).by_key(|step| step);
            self.steps = all;
            self.reorder(&order);
        }
        merged
    }
}

/// Of several reasons to end the one that nothing could mend.
fn stronger(a: Cut, b: Cut) -> Cut {
    if b.weight() > a.weight() { b } else { a }
}
