//! Block fusions: several steps that run block by block as one.
//!
//! A softmax reads its operand three times and stores two arrays of its size in between, but each
//! of its rows depends on one row only. So steps that depend on each other *row by row*, along the
//! same leading axes, become one step. That step runs for a few rows at a time, whose values stay
//! in the cache, and several threads take different rows without waiting for each other.
//! Elementwise groups, reductions of trailing axes, movements that leave the rows alone and
//! products of a batch can be fused in this way. Their intermediate values take memory for a few
//! rows per thread only. A reduction over all rows takes in each block while the block is in the
//! cache.
//!
//! Steps around reductions that keep an axis further inside ([`inside`]), as the statistics of a
//! batch norm keep the channels, become one step in the same way: blocks are then some places along
//! that axis, with all that other axes have there.
//!
//! The sets of steps are found once for all sizes, in the same way as groups. Along an edge that
//! goes row by row the *stage* of a step may stay the same; along any other edge it rises. So no
//! path leaves a set of one stage and comes back. Whether fusing a set pays, and how many rows a
//! block has, depends on the sizes.

mod axes;
mod block;
mod grid;
mod inside;
pub mod rows;
#[cfg(test)]
pub(crate) mod tests;

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
pub use axes::{AxisMap, Positions, part, sized};
use block::Merged;
pub use grid::{BlockSchedule, Grid};

/// The bytes of a block's values, where all blocks together have `bytes`.
fn block_bytes(limits: &Blocks, bytes: usize, lanes: usize) -> usize {
    (bytes / (limits.each * lanes)).clamp(limits.least, limits.bytes)
}

/// Steps that may become one block fusion.
#[derive(Clone)]
pub struct Set {
    /// Their positions in a plan, in order
    steps: SmallVec<[u32; 4]>,
    /// The row axes that they have in common
    rows: Rows,
    /// Reductions of their results over all rows
    carried: SmallVec<[u32; 2]>,
    /// The layout hint found for the first block plan, which later ones start from
    layout_hint: Arc<OnceLock<LayoutHint>>,
}

/// The row axes of a set.
#[derive(Clone)]
enum Rows {
    /// So many leading axes of all results
    Leading(usize),
    /// By step: one axis of its results
    Inside(SmallVec<[u8; 4]>),
}

impl Set {
    /// Renumbers the steps by their new positions.
    pub fn follow(&mut self, place: &[u32]) {
        for steps in [self.steps.as_mut_slice(), self.carried.as_mut_slice()] {
            steps.iter_mut().for_each(|step| *step = place[*step as usize]);
        }
        if let Rows::Inside(axes) = &mut self.rows {
            let mut both: SmallVec<[(u32, u8); 4]> =
                self.steps.iter().copied().zip(axes.iter().copied()).collect();
            both.sort_unstable();
            (self.steps, *axes) = both.into_iter().unzip();
        }
        self.steps.sort_unstable();
        self.carried.sort_unstable();
        self.layout_hint = Arc::default();
    }

    /// Which axes of the results of one of its steps are the row axes.
    fn at(&self, step: u32) -> Positions {
        match &self.rows {
            Rows::Leading(rows) => (0..*rows as u8).collect(),
            Rows::Inside(axes) => {
                let place = self.steps.iter().position(|&own| own == step);
                place.map(|i| axes[i]).into_iter().collect()
            }
        }
    }
}

/// One step that runs a set of steps block by block.
#[derive(Clone)]
pub struct BlockFusion {
    /// How rows are cut into blocks, and how threads take the blocks
    pub schedule: BlockSchedule,
    /// The plan of a full block
    pub full: Arc<Plan>,
    /// The plan of the block at the end of the axis, where it has fewer rows
    pub last: Option<Arc<Plan>>,
    /// By operand: which of its axes go with the row axes
    pub axis_maps: SmallVec<[AxisMap; 4]>,
    /// By result of a block: which of its axes are the row axes
    pub positions: SmallVec<[Positions; 2]>,
    /// By result of a block: the offset in the workspace of a lane where a block of it is made,
    /// where blocks are not contiguous in the result
    pub staged: SmallVec<[Option<usize>; 2]>,
    /// By operand: whether a result of its type may be written over it
    spent: SmallVec<[bool; 4]>,
    /// Reductions over all rows
    pub carried: SmallVec<[CarriedReduction; 1]>,
    /// The bytes of a lane's workspace: intermediate values, and scratch
    pub capacity: usize,
    /// Where in it the scratch of products begins, and its bytes
    pub scratch: usize,
    #[allow(missing_docs)]
    pub products: usize,
    /// Bytes of the intermediate values, if each had a buffer of its own
    inner: usize,
}

/// A reduction over all rows, which takes in each block as it is computed.
#[derive(Clone, Debug)]
pub struct CarriedReduction {
    /// The result of a block that is reduced, by position
    pub output: usize,
    /// The kind of reduction
    pub kind: Reduction,
    /// The dtype of the array
    pub dtype: DType,
    /// The lines of the array, which are combined into one
    pub lines: usize,
    /// The elements of a line
    pub width: usize,
    /// The offset of a block of the array in the workspace of a lane, if the array is no result of
    /// the step
    pub dedicated: Option<usize>,
}

impl BlockFusion {
    /// The plan of a full block.
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

    /// Bytes of the workspace of all lanes.
    pub fn workspace(&self) -> usize {
        self.schedule.lanes * self.capacity
    }

    /// Bytes of the intermediate values, if each had a buffer of its own.
    pub fn inner_bytes(&self) -> usize {
        self.inner
    }

    /// Whether results of its type may be written over operand `i`: a block of the operand is read
    /// for the last time no later than the block of such a result is written.
    pub fn spends(&self, i: usize) -> bool {
        self.spent.get(i).copied().unwrap_or(false)
    }
}

/// The sets of steps that may become block fusions.
pub(super) fn sets(plan: &Plan) -> Vec<Set> {
    let steps = plan.steps();
    let mut reach: Vec<usize> = steps.iter().map(|step| axes::reach(plan, step)).collect();
    let made = makers(steps, plan.slots().len());
    let inside = inside::assign(plan, &made);
    for (rows, axis) in reach.iter_mut().zip(&inside) {
        *rows = if axis.is_some() { 1 } else { *rows };
    }
    if reach.iter().all(|&rows| rows == 0) {
        return Vec::new();
    }
    // Stages, counted back from the results, as for groups.
    let mut stage = vec![u32::MAX; steps.len()];
    let mut joins: Vec<(u32, u32, usize)> = Vec::new();
    for (i, step) in steps.iter().enumerate().rev() {
        for (k, arg) in step.args.iter().enumerate() {
            let Operand::Array(Source::Slot(slot)) = *arg else { continue };
            let from = made[slot as usize] as usize;
            let rows = match (inside[from], inside[i]) {
                (None, None) => rows_along(plan, (&steps[from], reach[from]), (step, reach[i]), k),
                (Some(before), Some(after)) => {
                    usize::from(axes::along(plan, step, k, &[after])[0] == Some(before))
                }
                (None, Some(_)) | (Some(_), None) => 0,
            };
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
        let is_inside = inside[to].is_some();
        if rows[to] == 0 || is_inside || !is_first || is_movement(&steps[from as usize]) {
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
    let sets = sets.filter(|((_, rows), _)| *rows > 0).map(|((steps, rows), carried)| {
        let axes: Option<SmallVec<[u8; 4]>> =
            steps.iter().map(|&step| inside[step as usize]).collect();
        let rows = axes.map_or(Rows::Leading(rows), Rows::Inside);
        Set { steps, rows, carried, layout_hint: Arc::default() }
    });
    let pays = |set: &Set| set.steps.iter().filter(computes).count() + set.carried.len() > 1;
    sets.filter(pays).collect()
}

/// The representative of a set.
fn root(set: &mut [u32], mut i: u32) -> u32 {
    while set[i as usize] != i {
        set[i as usize] = set[set[i as usize] as usize];
        i = set[i as usize];
    }
    i
}

/// The number of leading axes along which step `to` reads its `k`-th operand, which step `from`
/// makes, row by row; 0 where it does not, or where there are too few rows.
fn rows_along(plan: &Plan, from: (&Step, usize), to: (&Step, usize), k: usize) -> usize {
    let rows = from.1.min(to.1);
    let (Some(before), Some(after)) = (axes::shape(plan, from.0), axes::shape(plan, to.0)) else {
        return 0;
    };
    let at: Positions = (0..rows as u8).collect();
    let rows = axes::straight(&axes::along(plan, to.0, k, &at), before, after);
    if are_enough(plan, before, rows) { rows } else { 0 }
}

/// Whether the first `rows` axes have enough rows for several blocks, as far as their sizes are
/// known.
fn are_enough(plan: &Plan, shape: &Shape, rows: usize) -> bool {
    let Some(limits) = plan.target.limits().blocks else { return false };
    let sizes = shape.dims()[..rows].iter().map(|&dim| hint(dim));
    let count: Option<usize> = sizes.product();
    rows > 0 && count.is_none_or(|count| count >= limits.rows)
}

/// Whether a step only moves the elements of its operand.
fn is_movement(step: &Step) -> bool {
    matches!(&step.work, Work::Op(op) if op.is_movement())
}

/// By set: the reductions over all rows that it took in, `None` where it was not fused. Plans of
/// the same steps that agree in this have the same steps afterwards.
pub type Choice = Vec<Option<SmallVec<[u32; 2]>>>;

impl Plan {
    /// Fuses the sets for which that pays at the sizes of this plan; returns which.
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

/// The reason of higher rank (`Cut::weight`).
fn stronger(a: Cut, b: Cut) -> Cut {
    if b.weight() > a.weight() { b } else { a }
}
