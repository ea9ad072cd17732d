//! The memory load of an order of steps, and moves that improve the order.
//!
//! The bytes of an order are counted without placing results. Two moves improve an order, each in a
//! walk over all steps. A step that frees more than it makes moves right behind the steps that it
//! needs. A step that makes more than it frees moves right before the first step that needs it. The
//! moves are repeated while they help, a few times at most, so that planning stays linear.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use smallvec::SmallVec;

use super::order::Graph;

/// How often the moves are repeated.
const ROUNDS: usize = 4;

/// A step whose result is smaller than its operands by this factor runs as soon as it can, even if
/// it is not the last reader of an operand. If every reader of the operand waited to be its last
/// reader, the operand would never be freed.
const SHARE: usize = 4;

/// The live range of a result in memory.
pub(super) struct LiveRange<'a> {
    /// The step that fills it
    pub def: u32,
    /// Its bytes
    pub bytes: usize,
    /// The steps that read it
    pub readers: &'a [u32],
    /// Whether it outlives the run: then it takes its bytes in every order
    pub escapes: bool,
}

/// The effect of steps on memory.
pub(super) struct Load<'a> {
    graph: &'a Graph,
    /// By step: whether it has to wait for all steps that are not late
    late: &'a [bool],
    /// By storage
    bytes: Vec<usize>,
    /// By storage: how many steps read it
    readers: Vec<u32>,
    /// By step: the bytes it makes
    makes: Vec<usize>,
    /// By step: the storages it reads, each once, without those that outlive the run
    reads: Vec<SmallVec<[u32; 4]>>,
    /// By step: the storages that its results may take over
    donors: &'a [SmallVec<[u32; 4]>],
    /// By step: the bytes of its results that nobody reads
    waste: Vec<usize>,
}

impl<'a> Load<'a> {
    pub(super) fn new(
        graph: &'a Graph,
        late: &'a [bool],
        live_ranges: &[LiveRange<'_>],
        donors: &'a [SmallVec<[u32; 4]>],
    ) -> Load<'a> {
        let steps = late.len();
        let mut load = Load {
            graph,
            late,
            bytes: live_ranges.iter().map(|range| range.bytes).collect(),
            readers: vec![0; live_ranges.len()],
            makes: vec![0; steps],
            reads: vec![SmallVec::new(); steps],
            donors,
            waste: vec![0; steps],
        };
        for (s, range) in live_ranges.iter().enumerate().filter(|(_, range)| !range.escapes) {
            load.makes[range.def as usize] += range.bytes;
            for &step in range.readers {
                let reads = &mut load.reads[step as usize];
                if !reads.contains(&(s as u32)) {
                    reads.push(s as u32);
                    load.readers[s] += 1;
                }
            }
            if range.readers.is_empty() {
                load.waste[range.def as usize] += range.bytes;
            }
        }
        load
    }

    /// The most bytes that an order needs at once, besides what outlives the run.
    fn cost(&self, order: &[u32]) -> usize {
        let mut left = self.readers.clone();
        let (mut now, mut most) = (0, 0);
        for &step in order {
            let at = step as usize;
            let mut freed = self.waste[at];
            for &s in &self.reads[at] {
                left[s as usize] -= 1;
                if left[s as usize] == 0 {
                    freed += self.bytes[s as usize];
                }
            }
            let over = |s: &&u32| left[**s as usize] == 0 && self.readers[**s as usize] > 0;
            let taken: usize =
                self.donors[at].iter().filter(over).map(|&s| self.bytes[s as usize]).sum();
            now += self.makes[at];
            most = most.max(now - taken.min(self.makes[at]));
            now -= freed;
        }
        most
    }

    /// The order after all moves that help, and its bytes.
    pub(super) fn improved(&self, order: Vec<u32>) -> (usize, Vec<u32>) {
        let mut best = (self.cost(&order), order);
        for _ in 0..ROUNDS {
            let next = self.sunk(&self.hoisted(&best.1));
            let cost = self.cost(&next);
            if cost >= best.0 {
                break;
            }
            best = (cost, next);
        }
        best
    }

    /// The bytes that each step frees in an order.
    fn frees(&self, order: &[u32]) -> Vec<usize> {
        let mut frees = self.waste.clone();
        let mut read = vec![false; self.bytes.len()];
        for &step in order.iter().rev() {
            for &s in &self.reads[step as usize] {
                if !std::mem::replace(&mut read[s as usize], true) {
                    frees[step as usize] += self.bytes[s as usize];
                }
            }
        }
        frees
    }

    /// Moves each step that frees at least as much as it makes right behind the steps that it
    /// needs.
    fn hoisted(&self, order: &[u32]) -> Vec<u32> {
        let frees = self.frees(order);
        // By step: the position behind which it goes; ties stay in order.
        let mut behind = vec![0u32; order.len()];
        for (at, &step) in order.iter().enumerate() {
            let i = step as usize;
            let read: usize = self.reads[i].iter().map(|&s| self.bytes[s as usize]).sum();
            let is_small = self.makes[i] * SHARE <= read;
            let needed = self.graph.before(step).iter().map(|&b| behind[b as usize]).max();
            behind[i] = match needed {
                Some(needed) if frees[i] >= self.makes[i] || is_small => needed,
                Some(_) | None => at as u32,
            };
        }
        self.sorted(order, |step| behind[step as usize])
    }

    /// Moves each step that makes more than it frees right before the first step that needs it.
    fn sunk(&self, order: &[u32]) -> Vec<u32> {
        let frees = self.frees(order);
        let mut before = vec![0u32; order.len()];
        for (at, &step) in order.iter().enumerate().rev() {
            let i = step as usize;
            let reader = self.graph.after(i).iter().map(|&a| before[a as usize]).min();
            before[i] = match reader {
                Some(reader) if self.makes[i] > frees[i] => reader,
                Some(_) | None => at as u32,
            };
        }
        self.sorted(order, |step| before[step as usize])
    }

    /// The steps sorted by a key, with late steps behind the others.
    fn sorted(&self, order: &[u32], key: impl Fn(u32) -> u32) -> Vec<u32> {
        let mut order = order.to_vec();
        order.sort_by_key(|&step| (self.late[step as usize], key(step)));
        order
    }

    /// Greedy: each time, of the steps that can run, the one that leaves the fewest bytes behind.
    pub(super) fn greedy(&self) -> Vec<u32> {
        let steps = self.late.len();
        let mut left = self.readers.clone();
        let change = |step: u32, left: &[u32]| -> isize {
            let at = step as usize;
            let ends = self.reads[at].iter().filter(|&&s| left[s as usize] == 1);
            let freed: usize = ends.map(|&s| self.bytes[s as usize]).sum();
            self.makes[at] as isize - (freed + self.waste[at]) as isize
        };
        let mut missing: Vec<u32> =
            (0..steps as u32).map(|step| self.graph.before(step).len() as u32).collect();
        let mut ready: BinaryHeap<Reverse<(bool, isize, u32)>> = BinaryHeap::new();
        for step in (0..steps as u32).filter(|&step| missing[step as usize] == 0) {
            ready.push(Reverse((self.late[step as usize], change(step, &left), step)));
        }
        let mut order = Vec::with_capacity(steps);
        while let Some(Reverse((late, known, step))) = ready.pop() {
            let now = change(step, &left);
            let better = |next: &Reverse<(bool, isize, u32)>| (next.0.0, next.0.1) < (late, now);
            if now > known && ready.peek().is_some_and(better) {
                ready.push(Reverse((late, now, step)));
                continue;
            }
            order.push(step);
            self.reads[step as usize].iter().for_each(|&s| left[s as usize] -= 1);
            for &next in self.graph.after(step as usize) {
                missing[next as usize] -= 1;
                if missing[next as usize] == 0 {
                    ready.push(Reverse((self.late[next as usize], change(next, &left), next)));
                }
            }
        }
        order
    }
}
