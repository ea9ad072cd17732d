//! Memory plans: the placement of every result.
//!
//! A result is *fixed* if its placement is known beforehand: in the arena, which a run takes from
//! the pool and gives back at its end, or in a dedicated buffer if the result outlives the run.
//! Views lie in the memory of the value that they show. A *loose* result has no placement of its
//! own: it is a view of an input, whose layout is known only when the plan runs, or a result of
//! unknown size.
//!
//! A *storage* is the memory of one result. It lives from the step that fills it to the last step
//! that reads it or a view of it. A result of an elementwise step takes over the storage of an
//! operand that dies there, where both have one type. Storages that share a place in memory in this
//! way are a *region*. Regions of the arena that live at the same time do not overlap.

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
    /// Wherever the step that gives it finds or allocates memory
    Loose,
}

/// A buffer of its own for a result of the plan, or one more for what the arena has no room for.
#[derive(Clone, Copy, Debug)]
pub struct DedicatedBuffer {
    /// The bytes
    pub bytes: usize,
    /// The step that fills it first
    pub first: u32,
    /// The result that fills all of it, if there is one: a caller may provide its buffer
    pub whole: Option<u32>,
    /// The input whose memory it takes
    pub alias: Option<u32>,
}

/// A value that is alive at the fullest step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The step that made it
    pub step: u32,
    /// The slot it is in
    pub slot: u32,
    /// Its bytes
    pub bytes: usize,
}

/// The placement of results, and the memory that they take.
#[derive(Default)]
#[cfg_attr(test, derive(Clone))]
pub struct Memory {
    /// Bytes of the arena
    pub arena: usize,
    /// Where each slot lies
    pub placements: Vec<Placement>,
    /// The buffers of results, outside the arena
    pub dedicated: Vec<DedicatedBuffer>,
    /// By step: whether its result is a view of its first operand
    pub views: Vec<bool>,
    /// Donations that the plan uses, `(input, output)`
    pub aliases: SmallVec<[(u32, u32); 2]>,
    /// Steps whose indices are checked before donated memory is first written, and the step before
    /// which they are checked
    pub guards: (u32, SmallVec<[u32; 2]>),
    /// The values alive at the fullest step, largest first
    pub(super) alive: Vec<Holder>,
    /// Bytes of all results, if each had a buffer of its own
    pub(super) naive: usize,
    /// The part of the peak that holds no result: the scratch of kernels
    pub(super) scratch: usize,
    /// Peak bytes of a run that allocates its results, and of one whose caller provides them
    pub(super) peak: [usize; 2],
    /// Whether a run may need more, because rounds of a loop or sizes are open
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

/// The arrangement found best for some sizes of a plan. Resizing for other sizes starts from it, at
/// a fraction of the cost of a search.
pub(super) struct LayoutHint {
    /// The steps, by their positions in the plan that is resized
    pub(super) order: Vec<u32>,
    way: Way,
    /// Bytes that the order needs, and bytes of all results if each had a buffer of its own
    cost: usize,
    naive: usize,
    /// The sets that became block fusions, and the operands that prologues compute
    merged: (Choice, SmallVec<[u32; 2]>),
}

impl LayoutHint {
    /// Whether its order saves about the same share of memory as at its own sizes.
    fn holds(&self, cost: usize, naive: usize) -> bool {
        let share = self.cost as f64 / self.naive.max(1) as f64;
        cost as f64 <= 1.25 * share * naive.max(1) as f64
    }
}

impl Plan {
    /// Puts the steps into a good order and decides the placement of results. The hint from other
    /// sizes is used where it is as good for these; otherwise a new one is returned.
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

    /// Records with each step the slots that no later step and no result reads.
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
    /// By step: the bytes of dedicated buffers that are allocated there, where they are first
    /// written. In a run whose caller provides the results (`provided`), these are not counted.
    pub(super) fn added(&self, target: &dyn Target, steps: usize, provided: bool) -> Vec<usize> {
        let mut added = vec![0; steps.max(1)];
        for dedicated in &self.dedicated {
            let elsewhere = dedicated.alias.is_some() || (provided && dedicated.whole.is_some());
            // With donations all buffers are allocated before the first step, so that donated
            // memory is written only after the last allocation.
            let first = if self.aliases.is_empty() { dedicated.first } else { 0 };
            if !elsewhere {
                added[first as usize] += target.allocated(dedicated.bytes);
            }
        }
        added
    }

    /// The peak bytes, as the memory counters count them, and the scratch of kernels among them.
    pub(super) fn highest(
        &self,
        target: &dyn Target,
        scratch: &[usize],
        provided: bool,
    ) -> (usize, usize) {
        let mut now = if self.arena > 0 { target.allocated(self.arena) } else { 0 };
        let mut most = (now, 0);
        for (at, added) in self.added(target, scratch.len(), provided).into_iter().enumerate() {
            now += added;
            let taken = scratch.get(at).copied().unwrap_or(0);
            if now + taken > most.0 {
                most = (now + taken, taken);
            }
        }
        most
    }
}
