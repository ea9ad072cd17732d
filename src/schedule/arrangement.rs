//! Arrangements: which storages share a place in memory, for one order of the steps.

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::donate::aliases;
use super::liveness::Liveness;
use super::memory::{DedicatedBuffer, Holder, Memory, Placement};
use super::pack::{Packing, Span, Way, divide, pack};
use super::{Options, Plan, Source};
use crate::layout::Layout;
use crate::target::Limits;

/// The end of a region that outlives the run.
const END: u32 = u32::MAX;

/// Storages that share a place in memory.
pub(super) struct Region {
    bytes: usize,
    first: u32,
    last: u32,
    dedicated: bool,
    whole: Option<u32>,
    alias: Option<u32>,
}

/// Regions for one order of steps.
pub(super) struct Arrangement {
    regions: Vec<Region>,
    /// By storage
    region: Vec<u32>,
    aliases: SmallVec<[(u32, u32); 2]>,
    guards: (u32, SmallVec<[u32; 2]>),
    /// Bytes of the arena that live at each step
    live: Vec<usize>,
}

impl Arrangement {
    pub(super) fn new(
        plan: &Plan,
        liveness: &Liveness,
        order: &[u32],
        options: Options<'_>,
    ) -> Arrangement {
        let mut position = vec![0u32; order.len()];
        for (at, &step) in order.iter().enumerate() {
            position[step as usize] = at as u32;
        }
        let (aliases, guard_at) = aliases(plan, liveness, &position, options);
        // A put that runs before donated memory is written checks its own indices.
        let guarded = if aliases.is_empty() { &[][..] } else { liveness.guarded.as_slice() };
        let guarded = guarded.iter().map(|&step| position[step as usize]);
        let guards = guarded.filter(|&at| at >= guard_at).collect();
        let last = |s: usize| match liveness.storages[s].escapes {
            true => END,
            false => {
                let reads = liveness.readers[s].iter().map(|&step| position[step as usize]);
                reads.max().unwrap_or(0).max(position[liveness.storages[s].def as usize])
            }
        };
        let mut made = Arrangement {
            regions: Vec::with_capacity(liveness.storages.len()),
            region: vec![END; liveness.storages.len()],
            aliases: aliases.values().copied().collect(),
            guards: (guard_at, guards),
            live: vec![0; order.len()],
        };
        made.aliases.sort_unstable();
        for (at, &step) in order.iter().enumerate() {
            let mut donors = liveness.donors[step as usize].clone();
            for &slot in &plan.steps[step as usize].results {
                let Some(s) = liveness.owned(slot) else { continue };
                let ends = last(s as usize);
                let alias = aliases.get(&s).map(|pair| pair.0);
                let taken = donors.iter().position(|&donor| {
                    let region = &made.regions[made.region[donor as usize] as usize];
                    let donor = &liveness.storages[donor as usize];
                    let dtype = |slot: u32| plan.slots[slot as usize].dtype;
                    // Small values of other sizes may take as many bytes, rounded.
                    let count = |slot: u32| plan.slots[slot as usize].shape.elements().known();
                    alias.is_none()
                        && region.last == at as u32
                        && dtype(donor.slot) == dtype(slot)
                        && count(donor.slot) == count(slot)
                        && donor.bytes == liveness.storages[s as usize].bytes
                });
                match taken {
                    Some(k) => {
                        let region = made.region[donors.swap_remove(k) as usize];
                        made.region[s as usize] = region;
                        made.regions[region as usize].last = ends;
                        made.regions[region as usize].dedicated |= ends == END;
                    }
                    None => {
                        made.region[s as usize] = made.regions.len() as u32;
                        let bytes = liveness.storages[s as usize].bytes;
                        let (first, dedicated) = (at as u32, ends == END);
                        made.regions.push(Region {
                            bytes,
                            first,
                            last: ends,
                            dedicated,
                            whole: None,
                            alias,
                        });
                    }
                }
            }
        }
        made.name_results(plan, liveness);
        made.measure(plan.target.limits());
        made
    }

    /// Records the results that fill a whole region.
    fn name_results(&mut self, plan: &Plan, liveness: &Liveness) {
        for (k, &source) in plan.template.outputs.iter().enumerate() {
            let Source::Slot(slot) = source else { continue };
            let Some(s) = liveness.owned(slot) else { continue };
            let is_plain =
                liveness.roots[slot as usize].1.as_ref().is_some_and(Layout::is_contiguous);
            let region = &mut self.regions[self.region[s as usize] as usize];
            if is_plain && region.whole.is_none() {
                region.whole = Some(k as u32);
            }
        }
    }

    fn measure(&mut self, limits: &Limits) {
        let mut change = vec![0isize; self.live.len() + 1];
        for region in self.regions.iter().filter(|region| !region.dedicated) {
            let bytes = limits.aligned(region.bytes) as isize;
            change[region.first as usize] += bytes;
            change[region.last as usize + 1] -= bytes;
        }
        let mut now = 0;
        for (live, change) in self.live.iter_mut().zip(change) {
            now += change;
            *live = now as usize;
        }
    }

    /// The measure of an order: the least bytes that it needs.
    pub(super) fn cost(&self) -> usize {
        let dedicated =
            self.regions.iter().filter(|region| region.dedicated && region.alias.is_none());
        let dedicated: usize = dedicated.map(|region| region.bytes).sum();
        self.live.iter().max().unwrap_or(&0) + dedicated
    }

    /// Offsets for the regions of the arena, and how they were found; `way` is tried first.
    pub(super) fn memory(
        self,
        plan: &Plan,
        liveness: &Liveness,
        order: &[u32],
        way: Option<Way>,
    ) -> (Memory, Way) {
        let (target, limits) = (plan.target, plan.target.limits());
        let spans: Vec<Span> = self
            .regions
            .iter()
            .map(|region| Span {
                bytes: if region.dedicated { 0 } else { limits.aligned(region.bytes) },
                first: region.first,
                last: region.last,
            })
            .collect();
        let least = *self.live.iter().max().unwrap_or(&0);
        let (Packing { mut offsets, bytes }, way) = pack(&spans, least, way);
        let (parts, buffers) = match bytes > limits.buffer {
            true => divide(&spans, &mut offsets, limits.buffer),
            false => (vec![0; spans.len()], vec![bytes]),
        };
        let arena = buffers[0];
        // Results without elements need a place in the arena too.
        let arena = match self.regions.iter().any(|region| !region.dedicated) {
            true => arena.max(limits.aligned(1)),
            false => 0,
        };
        let mut dedicated: Vec<DedicatedBuffer> = Vec::new();
        let mut memories: Vec<u32> = self
            .regions
            .iter()
            .map(|region| {
                if !region.dedicated {
                    return 0;
                }
                let &Region { bytes, first, whole, alias, .. } = region;
                dedicated.push(DedicatedBuffer { bytes, first, whole, alias });
                dedicated.len() as u32
            })
            .collect();
        for (memory, &part) in memories.iter_mut().zip(&parts).filter(|(_, part)| **part > 0) {
            *memory = (dedicated.len() + part) as u32;
        }
        let placement = |(slot, (storage, layout)): (usize, &(Option<u32>, Option<Layout>))| {
            let (Some(s), Some(layout)) = (storage, layout) else { return Placement::Loose };
            let region = self.region[*s as usize] as usize;
            let elements = offsets[region] / target.stored(plan.slots[slot].dtype);
            Placement::Fixed(memories[region], layout.moved(elements))
        };
        let mut memory = Memory {
            arena,
            placements: liveness.roots.iter().enumerate().map(placement).collect(),
            views: order.iter().map(|&step| liveness.views[step as usize]).collect(),
            dedicated,
            aliases: self.aliases.clone(),
            guards: self.guards.clone(),
            alive: Vec::new(),
            naive: liveness.naive(),
            scratch: 0,
            peak: [0; 2],
            open: liveness.open,
        };
        let scratch: Vec<usize> = order.iter().map(|&s| liveness.scratch[s as usize]).collect();
        let fullest = self.fullest(&memory.added(target, scratch.len(), false), &scratch);
        // They are as good as there from the start.
        let more = buffers[1..].iter();
        let more = more.map(|&bytes| DedicatedBuffer { bytes, first: 0, whole: None, alias: None });
        memory.dedicated.extend(more);
        memory.peak = [false, true].map(|provided| memory.highest(target, &scratch, provided).0);
        let of_rows = liveness.workspace().min(memory.arena);
        memory.scratch = memory.highest(target, &scratch, false).1 + of_rows;
        memory.alive = self.alive(liveness, order, fullest);
        (memory, way)
    }

    /// The step at which most memory is in use. The arena has one size all the time, but is not
    /// always as full.
    fn fullest(&self, added: &[usize], scratch: &[usize]) -> u32 {
        let (mut fullest, mut most, mut dedicated) = (0, 0, 0);
        for (at, (live, scratch)) in self.live.iter().zip(scratch).enumerate() {
            dedicated += added[at];
            if live + dedicated + scratch > most {
                (fullest, most) = (at as u32, live + dedicated + scratch);
            }
        }
        fullest
    }

    /// The values that are alive at a step, largest first.
    fn alive(&self, liveness: &Liveness, order: &[u32], at: u32) -> Vec<Holder> {
        let mut position = vec![0u32; order.len()];
        order.iter().enumerate().for_each(|(at, &step)| position[step as usize] = at as u32);
        let mut latest: FxHashMap<u32, Holder> = FxHashMap::default();
        for (s, storage) in liveness.storages.iter().enumerate() {
            let region = &self.regions[self.region[s] as usize];
            let step = position[storage.def as usize];
            // With donations the memory of all results is allocated from the start.
            let is_there = step <= at || (region.dedicated && !self.aliases.is_empty());
            if is_there && at <= region.last && region.alias.is_none() {
                let bytes = storage.bytes;
                let holder = Holder { step, slot: storage.slot, bytes };
                let known = latest.entry(self.region[s]).or_insert(holder);
                if step >= known.step {
                    *known = holder;
                }
            }
        }
        let mut all: Vec<Holder> = latest.into_values().collect();
        all.sort_by_key(|holder| (std::cmp::Reverse(holder.bytes), holder.step, holder.slot));
        all
    }
}
