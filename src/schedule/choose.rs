//! The choice of values to rematerialise, so that a plan needs less memory.
//!
//! A value that is not read for a while frees its memory in between, if it is computed again before
//! its next read. The gain is the value's bytes, at those steps of the gap at which too much is
//! alive. The cost is the work of the nodes that run again: the value's own node, and the nodes of
//! operands that are no longer alive by then. Small operands stay alive until then instead. The gap
//! with the largest gain for its cost is taken first, until no step exceeds the target.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BinaryHeap};

use rustc_hash::FxHashSet;
use smallvec::SmallVec;

use super::liveness::{Liveness, arrays};
use super::{Plan, Source};
use crate::graph::{Kind, List, Node};
use crate::ops::emit::Id;
use crate::ops::op::Op;
use crate::passes::cost;
use crate::passes::remat::{Again, NEVER, Price, price};
use crate::shape::Dim;

/// The most nodes that run again for one value.
const CHAIN: usize = 24;

/// An operand that is at least this many times smaller than the value stays alive, and is not
/// computed again.
const KEPT: usize = 8;

/// The cost of moving a byte, in operations.
const BYTE: f64 = 0.25;

/// The cost of running any node at all, in operations.
const NODE: f64 = 2000.0;

/// The memory of a plan over time: when each value is alive, and how many bytes are alive at each
/// step.
pub(super) struct Model<'a> {
    list: &'a List,
    plan: &'a Plan,
    liveness: Liveness,
    /// The nodes with the sizes of the plan
    sized: Vec<Node>,
    /// By node: the time of its step, counted from 1; 0 for inputs and constants
    pub(super) when: Vec<u32>,
    /// By node: the last time at which it is read
    read: Vec<u32>,
    /// By node: where its value is, if the value is in memory
    places: Vec<Option<Source>>,
    /// By node: the storage that it lies in
    storage: Vec<Option<u32>>,
    /// By storage
    live_ranges: Vec<LiveRange>,
    /// By time: the bytes that are alive
    live: Vec<isize>,
}

/// The live range of a storage.
#[derive(Default)]
struct LiveRange {
    bytes: isize,
    /// The node whose value is the whole storage, if there is one
    node: Option<Id>,
    /// When it is filled, and when it is read
    def: u32,
    uses: Vec<u32>,
    escapes: bool,
    /// Nodes that are views of it
    views: SmallVec<[Id; 2]>,
    /// The gap in which it is not in memory, ends excluded
    hole: Option<(u32, u32)>,
}

impl LiveRange {
    fn end(&self) -> u32 {
        self.uses.last().copied().unwrap_or(self.def).max(self.def)
    }

    fn is_there(&self, at: u32) -> bool {
        let in_hole = self.hole.is_some_and(|(from, to)| from < at && at < to);
        self.def < at && (self.escapes || at <= self.end()) && !in_hole
    }
}

/// A value that may be computed again.
struct Choice {
    storage: u32,
    /// The times of the last use before the gap and of the first read after it
    gap: (u32, u32),
    /// The nodes that run again
    chain: Vec<Id>,
    /// Storages that stay alive until then as operands
    kept: SmallVec<[u32; 4]>,
    /// The operands that are read then, each with its storage
    reads: SmallVec<[(u32, Id); 4]>,
    score: f64,
}

impl PartialEq for Choice {
    fn eq(&self, other: &Choice) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Choice {}

impl PartialOrd for Choice {
    fn partial_cmp(&self, other: &Choice) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Choice {
    fn cmp(&self, other: &Choice) -> Ordering {
        self.score.total_cmp(&other.score).then(other.storage.cmp(&self.storage))
    }
}

/// By time: how many times up to it exceed the target.
type Hot = Vec<u32>;

/// How many times strictly inside a gap exceed the target.
fn hot_inside(hot: &Hot, (from, to): (u32, u32)) -> u32 {
    if to <= from + 1 { 0 } else { hot[to as usize - 1] - hot[from as usize] }
}

impl<'a> Model<'a> {
    /// The model of a plan of this list, for its sizes.
    pub(super) fn new(list: &'a List, plan: &'a Plan, size: &dyn Fn(Dim) -> Dim) -> Model<'a> {
        let liveness = Liveness::new(plan);
        let mut filled = vec![false; plan.slots.len()];
        plan.steps.iter().flat_map(|step| &step.results).for_each(|&slot| {
            filled[slot as usize] = true;
        });
        // A slot that no step of the plan fills lies inside a step, and is not in memory.
        let is_there = |place: &Option<Source>| match place {
            Some(Source::Slot(slot)) if !filled[*slot as usize] => None,
            place => *place,
        };
        let sized =
            list.nodes.iter().map(|node| Node { ty: node.ty.map_dims(size), ..node.clone() });
        let mut model = Model {
            list,
            plan,
            sized: sized.collect(),
            when: vec![NEVER; list.nodes.len()],
            read: vec![0; list.nodes.len()],
            places: plan.template.places.iter().map(is_there).collect(),
            storage: vec![None; list.nodes.len()],
            live_ranges: liveness.storages.iter().map(|_| LiveRange::default()).collect(),
            live: Vec::new(),
            liveness,
        };
        model.place();
        model.follow();
        model.measure();
        model
    }

    /// Finds when nodes run and where their values lie.
    fn place(&mut self) {
        // A node may be part of several steps.
        for (step, i) in self.plan.steps.iter().zip(1..) {
            for id in &step.nodes {
                let when = &mut self.when[id.0 as usize];
                *when = i.min(*when);
            }
        }
        for (i, node) in self.list.nodes.iter().enumerate().rev() {
            if matches!(node.kind, Kind::Input | Kind::Constant(_)) {
                self.when[i] = 0;
            }
            if self.when[i] == NEVER && self.list.outputs.contains(&Id(i as u32)) {
                self.when[i] = self.plan.steps.len() as u32;
            }
            // A node without a place of its own runs with its first reader, and its operands are
            // read then.
            let when = self.when[i];
            for x in node.reads().filter(|_| when != NEVER) {
                let x = x.0 as usize;
                self.read[x] = self.read[x].max(when);
                if self.places[x].is_none() || matches!(self.list.nodes[x].kind, Kind::Result(_)) {
                    self.when[x] = self.when[x].min(when);
                }
            }
        }
        for (i, node) in self.list.nodes.iter().enumerate() {
            if let (Kind::Result(_), Some(flow)) = (&node.kind, node.reads().next()) {
                self.when[i] = self.when[flow.0 as usize];
            }
            self.storage[i] = match self.places[i] {
                Some(source) => self.liveness.storage(source),
                None if price(&node.kind) == Price::Cheap && !is_computed(node) => {
                    node.reads().next().and_then(|x| self.storage[x.0 as usize])
                }
                None => None,
            };
        }
    }

    /// Finds when storages are filled and read.
    fn follow(&mut self) {
        for (s, storage) in self.liveness.storages.iter().enumerate() {
            let range = &mut self.live_ranges[s];
            range.bytes = storage.bytes as isize;
            range.def = storage.def + 1;
            range.escapes = storage.escapes;
            let uses =
                self.liveness.readers[s].iter().filter(|&&i| !self.liveness.views[i as usize]);
            range.uses = uses.map(|&i| i + 1).collect();
            range.uses.sort_unstable();
            range.uses.dedup();
        }
        for (i, storage) in self.storage.iter().enumerate() {
            let (Some(s), id) = (storage, Id(i as u32)) else { continue };
            let range = &mut self.live_ranges[*s as usize];
            match self.places[i] {
                Some(Source::Slot(slot)) if self.liveness.owned(slot) == Some(*s) => {
                    range.node = Some(id);
                }
                _ => range.views.push(id),
            }
        }
    }

    /// Adds up the bytes that are alive at each time. A storage that a result takes over counts
    /// once.
    fn measure(&mut self) {
        let steps = self.plan.steps.len();
        let mut change = vec![0isize; steps + 3];
        let mut made = vec![0isize; steps + 1];
        for range in self.live_ranges.iter().filter(|range| !range.escapes) {
            change[range.def as usize] += range.bytes;
            change[range.end() as usize + 1] -= range.bytes;
            made[range.def as usize] += range.bytes;
        }
        let mut now = 0;
        let added = |change: &isize| {
            now += change;
            now
        };
        self.live = change.iter().map(added).collect();
        for (step, donors) in self.liveness.donors.iter().enumerate() {
            let at = step + 1;
            let dying = donors.iter().map(|&s| &self.live_ranges[s as usize]);
            let taken: isize =
                dying.filter(|range| range.end() as usize == at).map(|range| range.bytes).sum();
            self.live[at] -= taken.min(made[at]);
        }
    }

    /// The most bytes that are alive at once.
    pub(super) fn most(&self) -> isize {
        self.live.iter().copied().max().unwrap_or(0)
    }

    /// Chooses nodes to compute again, by time, so that at most `target` bytes are alive. Expensive
    /// nodes are chosen only where `expensive`. Values of banned nodes stay as they are.
    pub(super) fn choose(
        &mut self,
        target: isize,
        expensive: bool,
        banned: &FxHashSet<Id>,
    ) -> BTreeMap<u32, Again> {
        let mut chosen: BTreeMap<u32, Again> = BTreeMap::new();
        let mut hot = self.hot(target);
        let first = (0..self.live_ranges.len() as u32)
            .filter(|&s| self.live_ranges[s as usize].node.is_some_and(|id| !banned.contains(&id)));
        let mut heap: BinaryHeap<Choice> =
            first.filter_map(|s| self.choice(s, &hot, expensive)).collect();
        while let Some(known) = heap.pop() {
            if hot.last() == Some(&0) {
                break;
            }
            // Choices made since then may have lowered its score.
            let Some(choice) = self.choice(known.storage, &hot, expensive) else { continue };
            if heap.peek().is_some_and(|next| choice.score < next.score) {
                heap.push(choice);
                continue;
            }
            let again = chosen.entry(choice.gap.1).or_default();
            again.after = again.after.or_else(|| self.anchor(&choice));
            again.nodes.extend(&choice.chain);
            self.take(choice);
            hot = self.hot(target);
        }
        chosen
    }

    fn hot(&self, target: isize) -> Hot {
        let mut count = 0;
        let is_hot = |&live: &isize| {
            count += u32::from(live > target);
            count
        };
        self.live.iter().map(is_hot).collect()
    }

    /// The best gap of a value, if computing the value again gains anything.
    fn choice(&self, storage: u32, hot: &Hot, expensive: bool) -> Option<Choice> {
        let range = &self.live_ranges[storage as usize];
        if range.escapes || range.hole.is_some() || range.bytes == 0 {
            return None;
        }
        let before = std::iter::once(range.def).chain(range.uses.iter().copied());
        let gap = before.zip(range.uses.iter().copied()).max_by_key(|&gap| hot_inside(hot, gap))?;
        let times = hot_inside(hot, gap);
        if times == 0 {
            return None;
        }
        let mut choice = Choice {
            storage,
            gap,
            chain: Vec::new(),
            kept: SmallVec::new(),
            reads: SmallVec::new(),
            score: 0.0,
        };
        let mut work = 0.0;
        self.chain(&mut choice, &mut work, expensive)?;
        let longer = |&s: &u32| {
            let range = &self.live_ranges[s as usize];
            range.bytes as f64 * f64::from(hot_inside(hot, (range.end(), gap.1 + 1)))
        };
        let lost: f64 = choice.kept.iter().map(longer).sum();
        let saved = range.bytes as f64 * f64::from(times) - lost;
        choice.score = saved / work;
        (saved > 0.0).then_some(choice)
    }

    /// Collects the nodes that have to run again for a value; `None` where one of them may not, or
    /// where they are too many.
    fn chain(&self, choice: &mut Choice, work: &mut f64, expensive: bool) -> Option<()> {
        let (range, at) = (&self.live_ranges[choice.storage as usize], choice.gap.1);
        let mut open: SmallVec<[Id; 8]> = SmallVec::from_slice(&[range.node?]);
        while let Some(id) = open.pop() {
            if choice.chain.contains(&id) {
                continue;
            }
            let node = self.list.node(id);
            match price(&node.kind) {
                Price::Cheap => {}
                Price::Expensive if expensive => {}
                Price::Expensive | Price::Never => return None,
            }
            if choice.chain.len() == CHAIN {
                return None;
            }
            choice.chain.push(id);
            let cost = cost::of_node(&self.sized, &self.sized[id.0 as usize]);
            *work += NODE + cost.flops as f64 + BYTE * cost.bytes as f64;
            let count = if matches!(node.kind, Kind::Barrier) { 1 } else { usize::MAX };
            for x in node.reads().take(count) {
                self.operand(choice, x, &mut open)?;
            }
        }
        // Views that are read after the gap are made again from the new value.
        let views = range.views.iter().copied();
        let late = |id: &Id| self.when[id.0 as usize] < at && self.read[id.0 as usize] >= at;
        for id in views.filter(late) {
            if !choice.chain.contains(&id) {
                choice.chain.push(id);
            }
        }
        Some(())
    }

    /// Decides how an operand of a node that runs again is available by then: it is still alive, it
    /// stays alive until then, or it runs again too.
    fn operand(&self, choice: &mut Choice, x: Id, open: &mut SmallVec<[Id; 8]>) -> Option<()> {
        let node = self.list.node(x);
        if matches!(node.kind, Kind::Input | Kind::Constant(_)) {
            return Some(());
        }
        let (bytes, at) = (self.live_ranges[choice.storage as usize].bytes, choice.gap.1);
        let Some(Source::Slot(_)) = self.places[x.0 as usize] else {
            // It was never in memory by itself.
            open.push(x);
            return Some(());
        };
        let Some(s) = self.storage[x.0 as usize] else { return Some(()) };
        let range = &self.live_ranges[s as usize];
        if s != choice.storage && range.is_there(at) {
            match range.hole {
                // A view shows the memory from before the gap, so it is made again.
                Some(_) if range.node != Some(x) => open.push(x),
                Some(_) | None => choice.reads.push((s, x)),
            }
            return Some(());
        }
        let is_small = |part: isize| range.bytes * part <= bytes;
        let may_stay = s != choice.storage && range.hole.is_none();
        let again = price(&node.kind) == Price::Cheap;
        if may_stay && (is_small(KEPT as isize) || (!again && is_small(2))) {
            choice.kept.push(s);
            choice.reads.push((s, x));
        } else {
            open.push(x);
        }
        Some(())
    }

    /// The latest other operand of the first reader after the gap. The value is computed again only
    /// after that operand, so that this does not happen too early.
    fn anchor(&self, choice: &Choice) -> Option<Id> {
        let (from, to) = choice.gap;
        let operands = arrays(&self.plan.steps[to as usize - 1]);
        let late = operands.into_iter().filter_map(|source| {
            let s = self.liveness.storage(source)?;
            let range = &self.live_ranges[s as usize];
            let is_late = s != choice.storage && from < range.def && range.def < to;
            is_late.then_some((range.def, range.node?))
        });
        late.max_by_key(|(def, _)| *def).map(|(_, id)| id)
    }

    /// Records in the model that a value is computed again.
    fn take(&mut self, choice: Choice) {
        let (from, to) = choice.gap;
        let range = &mut self.live_ranges[choice.storage as usize];
        range.hole = Some(choice.gap);
        let bytes = range.bytes;
        for live in &mut self.live[from as usize + 1..to as usize] {
            *live -= bytes;
        }
        for (s, x) in choice.reads {
            self.read[x.0 as usize] = self.read[x.0 as usize].max(to);
            let range = &mut self.live_ranges[s as usize];
            let end = range.end() as usize;
            if let Err(place) = range.uses.binary_search(&to) {
                range.uses.insert(place, to);
            }
            if !range.escapes && end < to as usize {
                self.live[end + 1..=to as usize].iter_mut().for_each(|live| *live += range.bytes);
            }
        }
    }
}

/// Whether a node that is not in memory by itself has elements of its own, not those of an operand.
fn is_computed(node: &Node) -> bool {
    match &node.kind {
        Kind::Op(op) => !matches!(
            op,
            Op::Reshape(_) | Op::Permute(_) | Op::Broadcast(_) | Op::Slice(_) | Op::Windows(_)
        ),
        Kind::Barrier => false,
        Kind::Input
        | Kind::Constant(_)
        | Kind::ControlFlow(_)
        | Kind::Result(_)
        | Kind::Effect(_) => true,
    }
}
