//! Orders in which the steps of a plan can run.
//!
//! The order decides how much memory a run needs, so that several are tried: the one of the stages,
//! the one in which the nodes were written, depth first from the results, and one that picks what
//! leaves least behind.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use smallvec::SmallVec;

use super::{Operand, Source, Step, Work};

/// With fewer bytes than this no order is worth a search.
const SMALL: usize = 1 << 14;

/// Which steps need which.
pub(super) struct Graph {
    before: Vec<SmallVec<[u32; 4]>>,
    after: Vec<SmallVec<[u32; 4]>>,
}

/// The life of a result in memory.
pub(super) struct Life<'a> {
    /// The step that fills it
    pub def: u32,
    /// Its bytes
    pub bytes: usize,
    /// The steps that read it; none where it outlives the run
    pub readers: &'a [u32],
}

impl Graph {
    pub(super) fn new(steps: &[Step], slots: usize) -> Graph {
        let mut made = vec![0u32; slots];
        let mut before: Vec<SmallVec<[u32; 4]>> = vec![SmallVec::new(); steps.len()];
        let mut after = before.clone();
        let mut join = |from: u32, to: u32| {
            if !before[to as usize].contains(&from) {
                before[to as usize].push(from);
                after[from as usize].push(to);
            }
        };
        for (i, step) in steps.iter().enumerate() {
            step.results.iter().for_each(|&slot| made[slot as usize] = i as u32);
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

    /// The steps that need a step.
    pub(super) fn after(&self, step: usize) -> &[u32] {
        &self.after[step]
    }

    /// The steps by a key, as far as what they need allows.
    fn by_key<K: Ord>(&self, key: impl Fn(u32) -> K) -> Vec<u32> {
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

    /// Depth first: all that a step needs, then the step; the last steps in order of `roots`.
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

    /// Of the steps that can run the one that leaves least behind, each time.
    fn greedy(&self, phases: &[u8], lives: &[Life<'_>]) -> Vec<u32> {
        let steps = self.before.len();
        let mut makes = vec![0isize; steps];
        // The storages that each step reads, and the readings of each that are left.
        let mut reads: Vec<SmallVec<[u32; 4]>> = vec![SmallVec::new(); steps];
        let mut left: Vec<u32> = lives.iter().map(|life| life.readers.len() as u32).collect();
        for (s, life) in lives.iter().enumerate() {
            makes[life.def as usize] += life.bytes as isize;
            life.readers.iter().for_each(|&step| reads[step as usize].push(s as u32));
        }
        let mut missing: Vec<u32> = self.before.iter().map(|b| b.len() as u32).collect();
        let change = |step: u32, left: &[u32]| -> isize {
            let reads = &reads[step as usize];
            let ends =
                |s: u32| left[s as usize] as usize == reads.iter().filter(|&&r| r == s).count();
            let mut freed: isize = 0;
            for (k, &s) in reads.iter().enumerate() {
                if !reads[..k].contains(&s) && ends(s) {
                    freed += lives[s as usize].bytes as isize;
                }
            }
            makes[step as usize] - freed
        };
        let mut ready: BinaryHeap<Reverse<(u8, isize, u32)>> = BinaryHeap::new();
        for step in (0..steps as u32).filter(|&step| missing[step as usize] == 0) {
            ready.push(Reverse((phases[step as usize], change(step, &left), step)));
        }
        let mut order = Vec::with_capacity(steps);
        while let Some(Reverse((phase, known, step))) = ready.pop() {
            let now = change(step, &left);
            let better = |next: &Reverse<(u8, isize, u32)>| (next.0.0, next.0.1) < (phase, now);
            if now > known && ready.peek().is_some_and(better) {
                ready.push(Reverse((phase, now, step)));
                continue;
            }
            order.push(step);
            reads[step as usize].iter().for_each(|&s| left[s as usize] -= 1);
            for &next in &self.after[step as usize] {
                missing[next as usize] -= 1;
                if missing[next as usize] == 0 {
                    ready.push(Reverse((phases[next as usize], change(next, &left), next)));
                }
            }
        }
        order
    }
}

/// Orders worth trying. In all of them steps of a lower phase come first.
pub(super) fn candidates(
    steps: &[Step],
    graph: &Graph,
    phases: &[u8],
    lives: &[Life<'_>],
) -> Vec<Vec<u32>> {
    let phase = |step: u32| phases[step as usize];
    let mut orders = vec![graph.by_key(|step| (phase(step), step))];
    let bytes: usize = lives.iter().map(|life| life.bytes).sum();
    if steps.len() > 2 && bytes > SMALL {
        orders.push(graph.by_key(|step| (phase(step), written(&steps[step as usize]))));
        orders.push(graph.greedy(phases, lives));
        let mut deep = graph.depth_first(0..steps.len() as u32);
        deep.sort_by_key(|&step| phase(step));
        orders.push(deep);
    }
    // All of the steps, whatever happens: an order that lacks some is none.
    orders.retain(|order| order.len() == steps.len());
    orders
}

/// Where a step's last node stands.
fn written(step: &Step) -> u32 {
    step.nodes.last().map_or(0, |id| id.0)
}

fn has_effect(step: &Step) -> bool {
    match &step.work {
        Work::Effect(_) => true,
        Work::Flow(bodies) => bodies.has_effect(),
        Work::Group(..) | Work::Op(_) | Work::Alias => false,
    }
}
