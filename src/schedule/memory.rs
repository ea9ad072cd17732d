//! Memory plans: where every result of a plan lies.
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

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::donate::gifts;
use super::order::{self, Graph, Life};
use super::pack::{Packing, Span, Way, pack};
use super::{Operand, Options, Plan, Source, Step, Work};
use crate::cpu;
use crate::layout::Layout;
use crate::memory::{ALIGN, block_bytes};
use crate::ops::op::{Op, Type};

/// A place in memory that never ends.
const END: u32 = u32::MAX;

/// Where a slot lies.
#[derive(Clone, Debug)]
pub(super) enum Spot {
    /// In a memory of the run (0: the arena), with its offset there in elements
    Fixed(u32, Layout),
    /// Wherever the step that gives it finds or makes room
    Loose,
}

/// Memory of its own for a result of the plan.
#[derive(Clone, Copy, Debug)]
pub(super) struct Apart {
    /// The bytes
    pub bytes: usize,
    /// The step that fills it first
    pub first: u32,
    /// The result that is all of it, if one is: a caller may say where it goes
    pub whole: Option<u32>,
    /// The input whose memory it takes
    pub gift: Option<u32>,
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
pub struct Memory {
    /// Bytes of the arena
    pub(super) arena: usize,
    pub(super) spots: Vec<Spot>,
    pub(super) apart: Vec<Apart>,
    /// Whether each step's result is its first operand seen otherwise
    pub(super) views: Vec<bool>,
    /// Donations that are made use of, `(input, output)`
    pub(super) gifts: SmallVec<[(u32, u32); 2]>,
    /// Steps whose indices are looked at before the first donated memory is written, and when
    pub(super) guards: (u32, SmallVec<[u32; 2]>),
    /// What is there at the fullest step, largest first
    pub(super) alive: Vec<Holder>,
    /// Bytes of all results by themselves
    pub(super) naive: usize,
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
    pub fn gifts(&self) -> &[(u32, u32)] {
        &self.gifts
    }
}

/// What was found best for some sizes of a plan: resizing it for others costs a fraction of a search.
pub(super) struct Habit {
    /// The steps, by their places in the plan that is resized
    order: Vec<u32>,
    way: Way,
    /// Bytes that the order needs, and those of all results by themselves
    cost: usize,
    naive: usize,
}

impl Habit {
    /// Whether its order saves about as much as it did.
    fn holds(&self, cost: usize, naive: usize) -> bool {
        let share = self.cost as f64 / self.naive.max(1) as f64;
        cost as f64 <= 1.25 * share * naive.max(1) as f64
    }
}

/// The memory of one result.
pub(super) struct Storage {
    pub(super) bytes: usize,
    pub(super) def: u32,
    pub(super) slot: u32,
    /// Whether the plan gives it away
    pub(super) escapes: bool,
}

/// What does not depend on the order of steps.
pub(super) struct Facts {
    pub(super) storages: Vec<Storage>,
    /// By slot: its storage, and its layout in there
    pub(super) roots: Vec<(Option<u32>, Option<Layout>)>,
    /// By slot: the input that it may show
    pub(super) shows: Vec<Option<u32>>,
    /// By storage: the steps that read it
    pub(super) readers: Vec<SmallVec<[u32; 4]>>,
    /// By input: the steps that read it
    pub(super) input_readers: Vec<SmallVec<[u32; 4]>>,
    pub(super) views: Vec<bool>,
    /// Steps that may be refused by data, or for want of memory
    pub(super) fallible: Vec<bool>,
    /// Bytes each step takes for itself while it runs
    pub(super) scratch: Vec<usize>,
    /// Steps that put values into donated memory where indices say: these are looked at beforehand
    pub(super) guarded: SmallVec<[u32; 2]>,
    pub(super) open: bool,
    /// By step: the storages that a result may take over
    donors: Vec<SmallVec<[u32; 4]>>,
}

impl Plan {
    /// Puts the steps into a good order and decides where results lie. What turned out best for
    /// other sizes is taken over where it is as good for these; otherwise gives what is best now.
    pub(super) fn arrange(&mut self, options: Options<'_>, habit: Option<&Habit>) -> Option<Habit> {
        let mut facts = Facts::new(self);
        facts.guard(self, options);
        let naive = facts.naive();
        let known = habit.and_then(|habit| {
            let made = Arrangement::new(self, &facts, &habit.order, options);
            habit.holds(made.cost(), naive).then_some((made, habit.way))
        });
        let found = match (known, habit) {
            (Some((made, way)), Some(habit)) => {
                self.memory = made.memory(self, &facts, &habit.order, Some(way)).0;
                self.reorder(&habit.order);
                None
            }
            _ => self.search(&facts, options).map(|(made, order)| {
                let cost = made.cost();
                let (memory, way) = made.memory(self, &facts, &order, None);
                self.memory = memory;
                self.reorder(&order);
                Habit { order, way, cost, naive }
            }),
        };
        self.mark_last();
        self.elements = self.count_elements();
        found
    }

    /// The best of several orders.
    fn search(&self, facts: &Facts, options: Options<'_>) -> Option<(Arrangement, Vec<u32>)> {
        let graph = Graph::new(&self.steps, self.slots.len());
        let phases = facts.phases(self, &graph, options);
        let mut best: Option<(usize, Arrangement, Vec<u32>)> = None;
        for order in order::candidates(&self.steps, &graph, &phases, &facts.lives()) {
            let made = Arrangement::new(self, facts, &order, options);
            let cost = made.cost();
            if best.as_ref().is_none_or(|(known, ..)| cost < *known) {
                best = Some((cost, made, order));
            }
        }
        best.map(|(_, made, order)| (made, order))
    }

    fn reorder(&mut self, order: &[u32]) {
        let mut steps: Vec<Option<Step>> = self.steps.drain(..).map(Some).collect();
        self.steps = order.iter().filter_map(|&step| steps[step as usize].take()).collect();
    }

    /// Notes with each step the slots that no later step and no result reads.
    fn mark_last(&mut self) {
        let mut wanted = vec![false; self.slots.len()];
        for source in &self.outputs {
            if let Source::Slot(slot) = source {
                wanted[*slot as usize] = true;
            }
        }
        for step in self.steps.iter_mut().rev() {
            step.last.clear();
            for arg in &step.args {
                if let Operand::Array(Source::Slot(slot)) = *arg
                    && !std::mem::replace(&mut wanted[slot as usize], true)
                {
                    step.last.push(slot);
                }
            }
        }
    }
}

impl Facts {
    fn new(plan: &Plan) -> Facts {
        let slots = plan.slots.len();
        let mut facts = Facts {
            storages: Vec::with_capacity(slots),
            roots: vec![(None, None); slots],
            shows: vec![None; slots],
            readers: Vec::with_capacity(slots),
            input_readers: vec![SmallVec::new(); plan.inputs.len()],
            views: Vec::with_capacity(plan.steps.len()),
            fallible: Vec::with_capacity(plan.steps.len()),
            scratch: Vec::with_capacity(plan.steps.len()),
            guarded: SmallVec::new(),
            open: false,
            donors: Vec::new(),
        };
        for (i, step) in plan.steps.iter().enumerate() {
            facts.step(plan, i as u32, step);
        }
        facts.donors = plan.steps.iter().map(|step| donors(plan, &facts, step)).collect();
        for source in &plan.outputs {
            if let Some(s) = facts.storage(*source) {
                facts.storages[s as usize].escapes = true;
            }
        }
        facts
    }

    /// Bytes of all results by themselves.
    fn naive(&self) -> usize {
        self.storages.iter().map(|s| s.bytes).sum()
    }

    /// The layout of a value, with that of inputs taken for C order.
    fn layout(&self, plan: &Plan, source: Source) -> Option<Layout> {
        match source {
            Source::Slot(slot) => self.roots[slot as usize].1.clone(),
            Source::Input(i) => {
                let shape = &plan.inputs[i as usize].shape;
                shape.is_known().then(|| Layout::contiguous(shape.clone()))
            }
            Source::Constant(i) => Some(plan.constants[i as usize].layout.clone()),
        }
    }

    pub(super) fn storage(&self, source: Source) -> Option<u32> {
        match source {
            Source::Slot(slot) => self.roots[slot as usize].0,
            Source::Input(_) | Source::Constant(_) => None,
        }
    }

    /// The storage that a slot is the first and whole value of.
    pub(super) fn owned(&self, slot: u32) -> Option<u32> {
        self.roots[slot as usize].0.filter(|&s| self.storages[s as usize].slot == slot)
    }

    /// The input that a value may be a view of.
    pub(super) fn input(&self, source: Source) -> Option<u32> {
        match source {
            Source::Slot(slot) => self.shows[slot as usize],
            Source::Input(i) => Some(i),
            Source::Constant(_) => None,
        }
    }

    /// What the search for an order needs to know of each storage.
    fn lives(&self) -> Vec<Life<'_>> {
        let life = |(storage, readers)| {
            let &Storage { def, bytes, escapes, .. } = storage;
            let readers: &SmallVec<[u32; 4]> = readers;
            Life { def, bytes, readers: if escapes { &[] } else { readers.as_slice() } }
        };
        self.storages.iter().zip(&self.readers).map(life).collect()
    }

    fn step(&mut self, plan: &Plan, i: u32, step: &Step) {
        for arg in &step.args {
            let Operand::Array(source) = *arg else { continue };
            if let Some(s) = self.storage(source) {
                self.readers[s as usize].push(i);
            }
            if let Some(input) = self.input(source) {
                self.input_readers[input as usize].push(i);
            }
        }
        let view = self.view(plan, step);
        self.views.push(view.is_some());
        let (mut loose, sources) = (false, arrays(step));
        match (&view, sources.first()) {
            (Some(layout), Some(&from)) => {
                let slot = step.results[0] as usize;
                self.roots[slot] = (self.storage(from), layout.clone());
                self.shows[slot] = self.input(from);
                loose = self.roots[slot].0.is_none();
            }
            _ => {
                for &slot in &step.results {
                    loose |= !self.give(plan, i, step, slot);
                }
            }
        }
        self.open |= loose && view.is_none();
        let (scratch, open) = match &step.work {
            Work::Group(..) | Work::Alias => (0, false),
            Work::Op(_) | Work::Flow(_) | Work::Effect(_) => {
                let layouts: SmallVec<[Option<Layout>; 4]> =
                    sources.iter().map(|&source| self.layout(plan, source)).collect();
                scratch(plan, step, &layouts, view.is_some())
            }
        };
        self.open |= open;
        self.scratch.push(scratch);
        self.fallible.push(loose || scratch > 0 || refuses(step));
    }

    /// The layout of a step's result where that is a view, `Some(None)` where sizes are open.
    fn view(&self, plan: &Plan, step: &Step) -> Option<Option<Layout>> {
        let Some(Operand::Array(from)) = step.args.first() else { return None };
        match &step.work {
            Work::Alias => Some(self.layout(plan, *from)),
            Work::Op(op) => match self.layout(plan, *from) {
                Some(layout) if plan.slots[step.results[0] as usize].shape.is_known() => {
                    cpu::view(op, plan.ty(*from).dtype, &layout).map(Some)
                }
                _ => is_movement(op).then_some(None),
            },
            Work::Group(..) | Work::Flow(_) | Work::Effect(_) => None,
        }
    }

    /// Gives a slot memory of its own, if its size is known.
    fn give(&mut self, plan: &Plan, i: u32, step: &Step, slot: u32) -> bool {
        let ty = &plan.slots[slot as usize];
        if !ty.shape.is_known() {
            return false;
        }
        let layout = match &step.work {
            Work::Op(op) => cpu::fresh_layout(op, &ty.shape),
            Work::Group(..) | Work::Flow(_) | Work::Effect(_) | Work::Alias => {
                Layout::contiguous(ty.shape.clone())
            }
        };
        let bytes = cpu::room(&layout).saturating_mul(ty.dtype.size());
        self.roots[slot as usize] = (Some(self.storages.len() as u32), Some(layout));
        self.storages.push(Storage { bytes, def: i, slot, escapes: false });
        self.readers.push(SmallVec::new());
        true
    }

    /// Finds the steps whose only failure can be found out beforehand.
    fn guard(&mut self, plan: &Plan, options: Options<'_>) {
        for &(input, output) in options.donated {
            let Some(s) = self.storage(plan.outputs[output as usize]) else { continue };
            let def = self.storages[s as usize].def;
            let step = &plan.steps[def as usize];
            let base = Some(&Operand::Array(Source::Input(input)));
            let puts = matches!(&step.work, Work::Op(op) if matches!(op, Op::Scatter(_)));
            if puts && step.args.first() == base && self.scratch[def as usize] == 0 {
                self.fallible[def as usize] = false;
                self.guarded.push(def);
            }
        }
    }

    /// The slots that hold the indices of a step.
    pub(super) fn indices<'p>(
        &self,
        plan: &'p Plan,
        step: u32,
    ) -> impl Iterator<Item = u32> + use<'p> {
        let slot = |arg: &Operand| match arg {
            Operand::Array(Source::Slot(slot)) => Some(*slot),
            Operand::Array(Source::Input(_) | Source::Constant(_)) | Operand::Number(_) => None,
        };
        plan.steps[step as usize].args.iter().skip(2).filter_map(slot)
    }

    /// When each step runs, coarsely: what may fail and what that needs (0), the rest (1), what
    /// writes donated memory and what follows from that (2).
    fn phases(&self, plan: &Plan, graph: &Graph, options: Options<'_>) -> Vec<u8> {
        let mut phases = vec![1; plan.steps.len()];
        if options.donated.is_empty() {
            return phases;
        }
        let makers = makers(plan);
        for &step in &self.guarded {
            self.indices(plan, step).for_each(|slot| phases[makers[slot as usize] as usize] = 0);
        }
        for step in (0..plan.steps.len()).rev() {
            let needed = phases[step] == 0
                || graph.after(step).iter().any(|&next| phases[next as usize] == 0);
            if self.fallible[step] || needed {
                phases[step] = 0;
            }
        }
        for &(_, output) in options.donated {
            if let Some(s) = self.storage(plan.outputs[output as usize]) {
                let def = self.storages[s as usize].def as usize;
                phases[def] = phases[def].max(if phases[def] == 1 { 2 } else { 0 });
            }
        }
        for step in 0..plan.steps.len() {
            if phases[step] == 2 {
                for &next in graph.after(step) {
                    phases[next as usize] = 2;
                }
            }
        }
        phases
    }
}

/// The step that fills each slot.
pub(super) fn makers(plan: &Plan) -> Vec<u32> {
    let mut makers = vec![0; plan.slots.len()];
    for (i, step) in plan.steps.iter().enumerate() {
        step.results.iter().for_each(|&slot| makers[slot as usize] = i as u32);
    }
    makers
}

/// Whether two types are certainly the same, without asking about symbols.
pub(super) fn same(a: &Type, b: &Type) -> bool {
    a.dtype == b.dtype && a.shape.same(&b.shape)
}

/// The arrays that a step reads, in order.
pub(super) fn arrays(step: &Step) -> SmallVec<[Source; 4]> {
    let array = |arg: &Operand| match arg {
        Operand::Array(source) => Some(*source),
        Operand::Number(_) => None,
    };
    step.args.iter().filter_map(array).collect()
}

/// Whether an op shows its operand otherwise, at least where its layout allows.
fn is_movement(op: &Op) -> bool {
    matches!(op, Op::Reshape(_) | Op::Permute(_) | Op::Broadcast(_) | Op::Slice(_) | Op::Windows(_))
}

/// Whether data can make a step fail.
fn refuses(step: &Step) -> bool {
    match &step.work {
        Work::Op(op) => matches!(op, Op::Gather | Op::Scatter(_)),
        Work::Flow(_) | Work::Effect(_) => true,
        Work::Group(..) | Work::Alias => false,
    }
}

/// The bytes that a step takes for itself while it runs, and whether that may not be all.
fn scratch(plan: &Plan, step: &Step, layouts: &[Option<Layout>], is_view: bool) -> (usize, bool) {
    match &step.work {
        Work::Op(op) if !is_view => {
            let known: Option<SmallVec<[_; 4]>> = arrays(step)
                .into_iter()
                .zip(layouts)
                .map(|(source, layout)| Some((plan.ty(source).dtype, layout.as_ref()?)))
                .collect();
            match known {
                Some(args) => {
                    let result = &plan.slots[step.results[0] as usize].shape;
                    (cpu::scratch(op, &args, result) + number_bytes(op, step), false)
                }
                None => (0, true),
            }
        }
        Work::Flow(bodies) => bodies.scratch(),
        // Truth is looked at in C order.
        Work::Effect(_) => match layouts.first() {
            Some(Some(layout)) if !layout.is_contiguous() => {
                (block_bytes(layout.shape().count()), false)
            }
            Some(_) | None => (0, false),
        },
        Work::Op(_) | Work::Group(..) | Work::Alias => (0, false),
    }
}

/// The bytes of a number that has to become an array.
fn number_bytes(op: &Op, step: &Step) -> usize {
    match (op, step.args.get(1)) {
        (Op::Scatter(_), Some(Operand::Number(_))) => block_bytes(1),
        _ => 0,
    }
}

/// What shares a place in memory.
struct Region {
    bytes: usize,
    first: u32,
    last: u32,
    apart: bool,
    whole: Option<u32>,
    gift: Option<u32>,
}

/// Regions for one order of steps.
struct Arrangement {
    regions: Vec<Region>,
    /// By storage
    region: Vec<u32>,
    gifts: SmallVec<[(u32, u32); 2]>,
    guards: (u32, SmallVec<[u32; 2]>),
    /// Bytes of the arena that live at each step
    live: Vec<usize>,
}

impl Arrangement {
    fn new(plan: &Plan, facts: &Facts, order: &[u32], options: Options<'_>) -> Arrangement {
        let mut position = vec![0u32; order.len()];
        for (at, &step) in order.iter().enumerate() {
            position[step as usize] = at as u32;
        }
        let (gifts, guard_at) = gifts(plan, facts, &position, options);
        let guarded = if gifts.is_empty() { &[][..] } else { facts.guarded.as_slice() };
        let guards = guarded.iter().map(|&step| position[step as usize]).collect();
        let last = |s: usize| match facts.storages[s].escapes {
            true => END,
            false => {
                let reads = facts.readers[s].iter().map(|&step| position[step as usize]);
                reads.max().unwrap_or(0).max(position[facts.storages[s].def as usize])
            }
        };
        let mut made = Arrangement {
            regions: Vec::with_capacity(facts.storages.len()),
            region: vec![END; facts.storages.len()],
            gifts: gifts.values().copied().collect(),
            guards: (guard_at, guards),
            live: vec![0; order.len()],
        };
        made.gifts.sort_unstable();
        for (at, &step) in order.iter().enumerate() {
            let mut donors = facts.donors[step as usize].clone();
            for &slot in &plan.steps[step as usize].results {
                let Some(s) = facts.owned(slot) else { continue };
                let ends = last(s as usize);
                let gift = gifts.get(&s).map(|pair| pair.0);
                let taken = donors.iter().position(|&donor| {
                    let region = &made.regions[made.region[donor as usize] as usize];
                    let donor = &facts.storages[donor as usize];
                    gift.is_none()
                        && region.last == at as u32
                        && same(&plan.slots[donor.slot as usize], &plan.slots[slot as usize])
                });
                match taken {
                    Some(k) => {
                        let region = made.region[donors.swap_remove(k) as usize];
                        made.region[s as usize] = region;
                        made.regions[region as usize].last = ends;
                        made.regions[region as usize].apart |= ends == END;
                    }
                    None => {
                        made.region[s as usize] = made.regions.len() as u32;
                        let bytes = facts.storages[s as usize].bytes;
                        let (first, apart) = (at as u32, ends == END);
                        made.regions.push(Region {
                            bytes,
                            first,
                            last: ends,
                            apart,
                            whole: None,
                            gift,
                        });
                    }
                }
            }
        }
        made.name_results(plan, facts);
        made.measure();
        made
    }

    /// Notes the results that are all of a region.
    fn name_results(&mut self, plan: &Plan, facts: &Facts) {
        for (k, &source) in plan.outputs.iter().enumerate() {
            let Source::Slot(slot) = source else { continue };
            let Some(s) = facts.owned(slot) else { continue };
            let is_plain = facts.roots[slot as usize].1.as_ref().is_some_and(Layout::is_contiguous);
            let region = &mut self.regions[self.region[s as usize] as usize];
            if is_plain && region.whole.is_none() {
                region.whole = Some(k as u32);
            }
        }
    }

    fn measure(&mut self) {
        let mut change = vec![0isize; self.live.len() + 1];
        for region in self.regions.iter().filter(|region| !region.apart) {
            let bytes = region.bytes.next_multiple_of(ALIGN) as isize;
            change[region.first as usize] += bytes;
            change[region.last as usize + 1] -= bytes;
        }
        let mut now = 0;
        for (live, change) in self.live.iter_mut().zip(change) {
            now += change;
            *live = now as usize;
        }
    }

    /// What an order is judged by: the bytes it needs at least.
    fn cost(&self) -> usize {
        let apart = self.regions.iter().filter(|region| region.apart && region.gift.is_none());
        let apart: usize = apart.map(|region| region.bytes).sum();
        self.live.iter().max().unwrap_or(&0) + apart
    }

    /// Offsets for the regions of the arena, and how they were found; `way` is tried first.
    fn memory(self, plan: &Plan, facts: &Facts, order: &[u32], way: Option<Way>) -> (Memory, Way) {
        let spans: Vec<Span> = self
            .regions
            .iter()
            .map(|region| Span {
                bytes: if region.apart { 0 } else { region.bytes.next_multiple_of(ALIGN) },
                first: region.first,
                last: region.last,
            })
            .collect();
        let least = *self.live.iter().max().unwrap_or(&0);
        let (Packing { offsets, bytes: arena }, way) = pack(&spans, least, way);
        // Results without elements lie somewhere too.
        let arena = match self.regions.iter().any(|region| !region.apart) {
            true => arena.max(ALIGN),
            false => 0,
        };
        let mut apart: Vec<Apart> = Vec::new();
        let memories: Vec<u32> = self
            .regions
            .iter()
            .map(|region| {
                if !region.apart {
                    return 0;
                }
                let &Region { bytes, first, whole, gift, .. } = region;
                apart.push(Apart { bytes, first, whole, gift });
                apart.len() as u32
            })
            .collect();
        let spot = |(slot, (storage, layout)): (usize, &(Option<u32>, Option<Layout>))| {
            let (Some(s), Some(layout)) = (storage, layout) else { return Spot::Loose };
            let region = self.region[*s as usize] as usize;
            let elements = offsets[region] / plan.slots[slot].dtype.size();
            Spot::Fixed(memories[region], layout.moved(elements))
        };
        let mut memory = Memory {
            arena,
            spots: facts.roots.iter().enumerate().map(spot).collect(),
            views: order.iter().map(|&step| facts.views[step as usize]).collect(),
            apart,
            gifts: self.gifts.clone(),
            guards: self.guards.clone(),
            alive: Vec::new(),
            naive: facts.naive(),
            peak: [0; 2],
            open: facts.open,
        };
        let scratch: Vec<usize> = order.iter().map(|&s| facts.scratch[s as usize]).collect();
        memory.peak = [false, true].map(|told| memory.highest(&scratch, told).0);
        let fullest = memory.highest(&scratch, false).1;
        memory.alive = self.alive(facts, order, fullest);
        (memory, way)
    }

    /// The values that are there at a step, largest first.
    fn alive(&self, facts: &Facts, order: &[u32], at: u32) -> Vec<Holder> {
        let mut position = vec![0u32; order.len()];
        order.iter().enumerate().for_each(|(at, &step)| position[step as usize] = at as u32);
        let mut latest: FxHashMap<u32, Holder> = FxHashMap::default();
        for (s, storage) in facts.storages.iter().enumerate() {
            let region = &self.regions[self.region[s] as usize];
            let step = position[storage.def as usize];
            if step <= at && at <= region.last && region.gift.is_none() {
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

impl Memory {
    /// The most bytes at once, as the counters of memory count them, and at which step. Of a run
    /// that is `told` where results go, those are not counted.
    fn highest(&self, scratch: &[usize], told: bool) -> (usize, u32) {
        let arena = if self.arena > 0 { block_bytes(self.arena) } else { 0 };
        let mut added = vec![0; scratch.len().max(1)];
        for apart in &self.apart {
            let elsewhere = apart.gift.is_some() || (told && apart.whole.is_some());
            // Donated memory is written only when all other memory is there.
            let first = if self.gifts.is_empty() { apart.first } else { 0 };
            if !elsewhere {
                added[first as usize] += block_bytes(apart.bytes);
            }
        }
        let (mut now, mut most) = (arena, (arena, 0));
        for (at, added) in added.into_iter().enumerate() {
            now += added;
            let here = now + scratch.get(at).unwrap_or(&0);
            if here > most.0 {
                most = (here, at as u32);
            }
        }
        most
    }
}

/// The storages that a result of a step may take over: those of operands that it reads only where
/// it writes.
fn donors(plan: &Plan, facts: &Facts, step: &Step) -> SmallVec<[u32; 4]> {
    let whole = |slot: u32| {
        let layout = facts.roots[slot as usize].1.as_ref();
        facts.owned(slot).filter(|_| layout.is_some_and(Layout::is_contiguous))
    };
    let candidates = match &step.work {
        Work::Group(..) | Work::Op(Op::Map(_)) => arrays(step),
        Work::Op(Op::Update(_) | Op::Scatter(_)) => arrays(step).into_iter().take(1).collect(),
        Work::Op(_) | Work::Flow(_) | Work::Effect(_) | Work::Alias => SmallVec::new(),
    };
    let all = arrays(step);
    let mut donors: SmallVec<[u32; 4]> = SmallVec::new();
    for &source in &candidates {
        let Source::Slot(slot) = source else { continue };
        let Some(s) = whole(slot) else { continue };
        let once = all.iter().filter(|&&other| facts.storage(other) == Some(s)).count() == 1;
        let result =
            step.results.iter().any(|&r| same(&plan.slots[r as usize], &plan.slots[slot as usize]));
        if once && result && !donors.contains(&s) {
            donors.push(s);
        }
    }
    donors
}
