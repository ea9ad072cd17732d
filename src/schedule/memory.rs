//! Memory plans: the placement of every result.
//!
//! A result is *fixed*: in the arena that a run takes from the pool and gives back at its end, or in
//! memory of its own where the plan gives it away. Views lie in what they show. *Loose* results have
//! no place of their own: views of inputs, whose layouts are known when the plan runs, and results of
//! unknown size.
//!
//! A *storage* is the memory of one result; it lives from the step that fills it to the last one that
//! reads it or a view of it. A result of an elementwise step takes over the storage of an operand
//! that dies there, where both have one type. What then shares a place in memory is a *region*;
//! regions of the arena that live at the same time do not overlap.

use smallvec::SmallVec;

use super::arrangement::Arrangement;
use super::block_fusion::Choice;
use super::liveness::Liveness;
use super::order::{self, Graph};
use super::pack::Way;
use super::{Operand, Options, Plan, Source, Step};
use crate::layout::Layout;
use crate::target::Target;

/// Where a slot lies.
#[derive(Clone, Debug)]
pub enum Placement {
    /// In a memory of the run (0: the arena), with its offset there in elements
    Fixed(u32, Layout),
    /// Wherever the step that gives it finds or makes room
    Loose,
}

/// Memory of its own for a result of the plan.
#[derive(Clone, Copy, Debug)]
pub struct DedicatedBuffer {
    /// The bytes
    pub bytes: usize,
    /// The step that fills it first
    pub first: u32,
    /// The result that is all of it, if one is: a caller may say where it goes
    pub whole: Option<u32>,
    /// The input whose memory it takes
    pub alias: Option<u32>,
}

/// A value that is there at the fullest step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The step that made it
    pub step: u32,
    /// The slot it is in
    pub slot: u32,
    /// Its bytes
    pub bytes: usize,
}

/// Where results lie, and how much that takes.
#[derive(Default)]
#[cfg_attr(test, derive(Clone))]
pub struct Memory {
    /// Bytes of the arena
    pub arena: usize,
    /// Where each slot lies
    pub placements: Vec<Placement>,
    /// Memory of results, which lies outside of the arena
    pub dedicated: Vec<DedicatedBuffer>,
    /// Whether each step's result is its first operand seen otherwise
    pub views: Vec<bool>,
    /// Donations that are made use of, `(input, output)`
    pub aliases: SmallVec<[(u32, u32); 2]>,
    /// Steps whose indices are looked at before the first donated memory is written, and when
    pub guards: (u32, SmallVec<[u32; 2]>),
    /// What is there at the fullest step, largest first
    pub(super) alive: Vec<Holder>,
    /// Bytes of all results by themselves
    pub(super) naive: usize,
    /// The part of the peak that is no result: what kernels and rows take while they run
    pub(super) scratch: usize,
    /// The most bytes of a run that allocates its results, and of one that is told where they go
    pub(super) peak: [usize; 2],
    /// Whether more may be needed: a loop or size is open
    pub(super) open: bool,
}

impl Memory {
    /// The bytes of the arena.
    pub fn arena_bytes(&self) -> usize {
        self.arena
    }

    /// The pairs `(input, output)` that share memory.
    pub fn aliases(&self) -> &[(u32, u32)] {
        &self.aliases
    }
}

/// What was found best for some sizes of a plan: resizing it for others costs a fraction of a search.
pub(super) struct LayoutHint {
    /// The steps, by their places in the plan that is resized
    pub(super) order: Vec<u32>,
    way: Way,
    /// Bytes that the order needs, and those of all results by themselves
    cost: usize,
    naive: usize,
    /// The sets of steps that became one, and the operands that are made while they are packed
    merged: (Choice, SmallVec<[u32; 2]>),
}

impl LayoutHint {
    /// Whether its order saves about as much as it did.
    fn holds(&self, cost: usize, naive: usize) -> bool {
        let share = self.cost as f64 / self.naive.max(1) as f64;
        cost as f64 <= 1.25 * share * naive.max(1) as f64
    }
}

impl Plan {
    /// Puts the steps into a good order and decides where results lie. What turned out best for
    /// other sizes is taken over where it is as good for these; otherwise gives what is best now.
    pub(super) fn arrange(
        &mut self,
        options: Options<'_>,
        layout_hint: Option<&LayoutHint>,
    ) -> Option<LayoutHint> {
        let merged = (self.fuse_blocks(), self.join_prologues());
        let mut liveness = Liveness::new(self);
        liveness.guard(self, options);
        let naive = liveness.naive();
        let same = |layout_hint: &&LayoutHint| {
            layout_hint.merged == merged && layout_hint.order.len() == self.steps.len()
        };
        let layout_hint = layout_hint.filter(same);
        let known = layout_hint.and_then(|layout_hint| {
            let made = Arrangement::new(self, &liveness, &layout_hint.order, options);
            layout_hint.holds(made.cost(), naive).then_some((made, layout_hint.way))
        });
        let found = match (known, layout_hint) {
            (Some((made, way)), Some(layout_hint)) => {
                self.memory = made.memory(self, &liveness, &layout_hint.order, Some(way)).0;
                self.reorder(&layout_hint.order);
                None
            }
            _ => self.search(&liveness, options).map(|(made, order)| {
                let cost = made.cost();
                let (memory, way) = made.memory(self, &liveness, &order, None);
                self.memory = memory;
                self.reorder(&order);
                LayoutHint { order, way, cost, naive, merged }
            }),
        };
        self.mark_last();
        self.elements = self.count_elements();
        found
    }

    /// The best of several orders.
    fn search(&self, liveness: &Liveness, options: Options<'_>) -> Option<(Arrangement, Vec<u32>)> {
        let graph = Graph::new(&self.steps, self.slots.len());
        let late = liveness.late(self, &graph, options);
        let live_ranges = liveness.live_ranges();
        let mut best: Option<(usize, Arrangement, Vec<u32>)> = None;
        for order in order::candidates(&self.steps, &graph, &late, &live_ranges, &liveness.donors) {
            let made = Arrangement::new(self, liveness, &order, options);
            let cost = made.cost();
            if best.as_ref().is_none_or(|(known, ..)| cost < *known) {
                best = Some((cost, made, order));
            }
        }
        best.map(|(_, made, order)| (made, order))
    }

    pub(super) fn reorder(&mut self, order: &[u32]) {
        let mut steps: Vec<Option<Step>> = self.steps.drain(..).map(Some).collect();
        self.steps = order.iter().filter_map(|&step| steps[step as usize].take()).collect();
    }

    /// Notes with each step the slots that no later step and no result reads.
    fn mark_last(&mut self) {
        let mut wanted = vec![false; self.slots.len()];
        for source in &self.template.outputs {
            if let Source::Slot(slot) = source {
                wanted[*slot as usize] = true;
            }
        }
        for step in self.steps.iter_mut().rev() {
            let Step { template, last, .. } = step;
            last.clear();
            for arg in &template.args {
                if let Operand::Array(Source::Slot(slot)) = *arg
                    && !std::mem::replace(&mut wanted[slot as usize], true)
                {
                    last.push(slot);
                }
            }
        }
    }
}

impl Memory {
    /// The bytes that each of some steps adds to the arena: those of results that are first written
    /// there. Of a run that is `told` where results go, these are not counted.
    pub(super) fn added(&self, target: &dyn Target, steps: usize, told: bool) -> Vec<usize> {
        let mut added = vec![0; steps.max(1)];
        for dedicated in &self.dedicated {
            let elsewhere = dedicated.alias.is_some() || (told && dedicated.whole.is_some());
            // Donated memory is written only when all other memory is there.
            let first = if self.aliases.is_empty() { dedicated.first } else { 0 };
            if !elsewhere {
                added[first as usize] += target.allocated(dedicated.bytes);
            }
        }
        added
    }

    /// The most bytes at once, as the counters of memory count them, and what kernels take of them.
    pub(super) fn highest(
        &self,
        target: &dyn Target,
        scratch: &[usize],
        told: bool,
    ) -> (usize, usize) {
        let mut now = if self.arena > 0 { target.allocated(self.arena) } else { 0 };
        let mut most = (now, 0);
        for (at, added) in self.added(target, scratch.len(), told).into_iter().enumerate() {
            now += added;
            let taken = scratch.get(at).copied().unwrap_or(0);
            if now + taken > most.0 {
                most = (now + taken, taken);
            }
        }
        most
    }
}
