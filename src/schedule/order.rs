//! Orders in which the steps of a plan can run.
//!
//! The order decides how much memory a run needs, so several are tried: by stage, as the nodes were
//! written, depth first from the results, and greedily by the step that leaves the fewest bytes
//! behind. Each is then improved step by step ([`load`](super::load)).

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use smallvec::SmallVec;

use super::liveness::{arrays, makers};
use super::load::{LiveRange, Load};
use super::{Operand, Plan, Source, Step, Work};

/// Below this many bytes no order is worth a search.
const SMALL: usize = 1 << 14;

/// How many orders are placed in full, so that their bytes are exact.
const LAID_OUT: usize = 2;

impl Plan {
    /// Drops steps that nobody needs any more, which fusions leave behind.
    pub(super) fn drop_unread(&mut self) {
        let is_needed = self.needed();
        let mut needed = is_needed.into_iter();
        self.steps.retain(|_| needed.next() == Some(true));
    }

    /// By step: whether a result or an effect needs it.
    pub(super) fn needed(&self) -> Vec<bool> {
        let mut is_read = vec![false; self.slots.len()];
        let read = |is_read: &mut [bool], source: Source| {
            if let Source::Slot(slot) = source {
                is_read[slot as usize] = true;
            }
        };
        self.outputs().iter().for_each(|&source| read(&mut is_read, source));
        let mut needed = vec![false; self.steps.len()];
        for (i, step) in self.steps.iter().enumerate().rev() {
            needed[i] = has_effect(step) || step.results.iter().any(|&slot| is_read[slot as usize]);
            if needed[i] {
                arrays(step).into_iter().for_each(|source| read(&mut is_read, source));
            }
        }
        needed
    }
}

/// The dependencies between steps.
pub(super) struct Graph {
    before: Vec<SmallVec<[u32; 4]>>,
    after: Vec<SmallVec<[u32; 4]>>,
}

impl Graph {
    pub(super) fn new(steps: &[Step], slots: usize) -> Graph {
        let made = makers(steps, slots);
        let mut before: Vec<SmallVec<[u32; 4]>> = vec![SmallVec::new(); steps.len()];
        let mut after = before.clone();
        let mut join = |from: u32, to: u32| {
            if !before[to as usize].contains(&from) {
                before[to as usize].push(from);
                after[from as usize].push(to);
            }
        };
        for (i, step) in steps.iter().enumerate() {
            for arg in &step.args {
                if let Operand::Array(Source::Slot(slot)) = *arg {
                    join(made[slot as usize], i as u32);
                }
            }
        }
        let mut effects: Vec<u32> =
            (0..steps.len() as u32).filter(|&i| has_effect(&steps[i as usize])).collect();
        effects.sort_by_key(|&i| written(&steps[i as usize]));
        effects.windows(2).for_each(|pair| join(pair[0], pair[1]));
        Graph { before, after }
    }

    /// The steps that a step needs.
    pub(super) fn before(&self, step: u32) -> &[u32] {
        &self.before[step as usize]
    }

    /// The steps that need a step.
    pub(super) fn after(&self, step: usize) -> &[u32] {
        &self.after[step]
    }

    /// The steps sorted by a key, as far as their dependencies allow.
    pub(super) fn by_key<K: Ord>(&self, key: impl Fn(u32) -> K) -> Vec<u32> {
        let mut missing: Vec<u32> = self.before.iter().map(|b| b.len() as u32).collect();
        let mut ready: BinaryHeap<Reverse<(K, u32)>> = BinaryHeap::new();
        let first = (0..missing.len() as u32).filter(|&i| missing[i as usize] == 0);
        ready.extend(first.map(|i| Reverse((key(i), i))));
        let mut order = Vec::with_capacity(missing.len());
        while let Some(Reverse((_, step))) = ready.pop() {
            order.push(step);
            for &next in &self.after[step as usize] {
                missing[next as usize] -= 1;
                if missing[next as usize] == 0 {
                    ready.push(Reverse((key(next), next)));
                }
            }
        }
        order
    }

    /// Depth first: the dependencies of a step, then the step. The walk takes `roots` in order.
    fn depth_first(&self, roots: impl Iterator<Item = u32>) -> Vec<u32> {
        let mut order = Vec::with_capacity(self.before.len());
        let mut seen = vec![false; self.before.len()];
        let mut open: Vec<(u32, usize)> = Vec::new();
        for root in roots {
            if !std::mem::replace(&mut seen[root as usize], true) {
                open.push((root, 0));
            }
            while let Some((step, next)) = open.last_mut() {
                match self.before[*step as usize].get(*next) {
                    Some(&needed) => {
                        *next += 1;
                        if !std::mem::replace(&mut seen[needed as usize], true) {
                            open.push((needed, 0));
                        }
                    }
                    None => {
                        order.push(*step);
                        open.pop();
                    }
                }
            }
        }
        order
    }
}

/// Orders worth trying, the cheapest first. In all of them late steps come last.
pub(super) fn candidates(
    steps: &[Step],
    graph: &Graph,
    late: &[bool],
    live_ranges: &[LiveRange<'_>],
    donors: &[SmallVec<[u32; 4]>],
) -> Vec<Vec<u32>> {
    let is_late = |step: u32| late[step as usize];
    let plain = graph.by_key(|step| (is_late(step), step));
    let bytes: usize = live_ranges.iter().map(|range| range.bytes).sum();
    if steps.len() <= 2 || bytes <= SMALL {
        return vec![plain];
    }
    let load = Load::new(graph, late, live_ranges, donors);
    let mut deep = graph.depth_first(0..steps.len() as u32);
    deep.sort_by_key(|&step| is_late(step));
    let first = [
        plain,
        graph.by_key(|step| (is_late(step), written(&steps[step as usize]))),
        load.greedy(),
        deep,
    ];
    let mut orders: Vec<(usize, Vec<u32>)> = Vec::with_capacity(first.len());
    for order in first {
        // An order that lacks a step is no order, and is never offered.
        if order.len() == steps.len() {
            orders.push(load.improved(order));
        }
    }
    orders.sort_by_key(|(cost, _)| *cost);
    orders.truncate(LAID_OUT);
    orders.into_iter().map(|(_, order)| order).collect()
}

/// The position of a step's last node in the list.
fn written(step: &Step) -> u32 {
    step.nodes.last().map_or(0, |id| id.0)
}

fn has_effect(step: &Step) -> bool {
    match &step.work {
        Work::Effect(_) => true,
        Work::ControlFlow(bodies) => bodies.has_effect(),
        Work::Group(..)
        | Work::Product(_)
        | Work::BlockFusion(_)
        | Work::RowFusion(_)
        | Work::Op(_)
        | Work::Alias => false,
    }
}
