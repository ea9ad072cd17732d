//! Liveness of results: the memory that each result needs, the steps that read it, the scratch of
//! each step, and the steps that may fail. None of this depends on the order of the steps.

use smallvec::SmallVec;

use super::layouts::channels_last;
use super::load::LiveRange;
use super::order::Graph;
use super::{Epilogue, Operand, Options, Plan, Product, Prologue, Source, Step, Work};
use crate::dtype::DType;
use crate::layout::Layout;
use crate::ops::op::{Op, Type};
use crate::target::InPlace;

/// The memory of one result.
pub(super) struct Storage {
    pub(super) bytes: usize,
    pub(super) def: u32,
    pub(super) slot: u32,
    /// Whether it outlives the run, as a result of the plan
    pub(super) escapes: bool,
}

/// The liveness of results, as far as it does not depend on the order of steps.
pub(super) struct Liveness {
    pub(super) storages: Vec<Storage>,
    /// By slot: its storage, and its layout in that storage
    pub(super) roots: Vec<(Option<u32>, Option<Layout>)>,
    /// By slot: the input that it may be a view of
    pub(super) shows: Vec<Option<u32>>,
    /// By storage: the steps that read it
    pub(super) readers: Vec<SmallVec<[u32; 4]>>,
    /// By input: the steps that read it
    pub(super) input_readers: Vec<SmallVec<[u32; 4]>>,
    pub(super) views: Vec<bool>,
    /// Steps that may fail, because of their data or for lack of memory
    pub(super) fallible: Vec<bool>,
    /// By slot: whether its channels lie innermost
    channels_last: Vec<bool>,
    /// Bytes each step takes for itself while it runs
    pub(super) scratch: Vec<usize>,
    /// Steps that put values into donated memory at given indices, which are checked beforehand
    pub(super) guarded: SmallVec<[u32; 2]>,
    pub(super) open: bool,
    /// By step: the storages that a result may take over
    pub(super) donors: Vec<SmallVec<[u32; 4]>>,
    /// Bytes of intermediate values that fused steps do not write, and of the workspace that block
    /// fusions take instead
    between: usize,
    workspace: usize,
}

impl Liveness {
    pub(super) fn new(plan: &Plan) -> Liveness {
        let slots = plan.slots.len();
        let mut liveness = Liveness {
            storages: Vec::with_capacity(slots),
            roots: vec![(None, None); slots],
            shows: vec![None; slots],
            readers: Vec::with_capacity(slots),
            input_readers: vec![SmallVec::new(); plan.inputs.len()],
            views: Vec::with_capacity(plan.steps.len()),
            fallible: Vec::with_capacity(plan.steps.len()),
            channels_last: channels_last(plan),
            scratch: Vec::with_capacity(plan.steps.len()),
            guarded: SmallVec::new(),
            open: false,
            donors: Vec::new(),
            between: 0,
            workspace: 0,
        };
        for (i, step) in plan.steps.iter().enumerate() {
            liveness.step(plan, i as u32, step);
            match &step.work {
                Work::BlockFusion(fusion) => {
                    liveness.between += fusion.inner_bytes();
                    liveness.workspace += fusion.workspace();
                }
                Work::Product(product) => liveness.between += between(plan, product),
                Work::RowFusion(fusion) => {
                    let known = fusion.hidden().filter(|(_, shape)| shape.is_known());
                    let bytes = known.map(|(dtype, shape)| plan.target.bytes(dtype, shape.count()));
                    liveness.between += bytes.sum::<usize>();
                }
                Work::Group(..)
                | Work::Op(_)
                | Work::ControlFlow(_)
                | Work::Effect(_)
                | Work::Alias => {}
            }
        }
        liveness.donors = plan.steps.iter().map(|step| donors(plan, &liveness, step)).collect();
        for source in &plan.template.outputs {
            if let Some(s) = liveness.storage(*source) {
                liveness.storages[s as usize].escapes = true;
            }
        }
        liveness
    }

    /// Bytes of all results, if each had a buffer of its own.
    pub(super) fn naive(&self) -> usize {
        let all: usize = self.storages.iter().map(|s| s.bytes).sum();
        all + self.between - self.workspace
    }

    /// Bytes of the arena that block fusions take as workspace, all together.
    pub(super) fn workspace(&self) -> usize {
        self.workspace
    }

    /// The layout of a value; inputs are assumed to be in C order.
    fn layout(&self, plan: &Plan, source: Source) -> Option<Layout> {
        match source {
            Source::Slot(slot) => self.roots[slot as usize].1.clone(),
            Source::Input(i) => {
                let shape = &plan.inputs[i as usize].shape;
                shape.is_known().then(|| Layout::contiguous(shape.clone()))
            }
            Source::Constant(i) => Some(plan.template.constants[i as usize].layout.clone()),
        }
    }

    pub(super) fn storage(&self, source: Source) -> Option<u32> {
        match source {
            Source::Slot(slot) => self.roots[slot as usize].0,
            Source::Input(_) | Source::Constant(_) => None,
        }
    }

    /// The storage whose first value, which fills all of it, is this slot.
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

    /// The live range of each storage, for the search for an order.
    pub(super) fn live_ranges(&self) -> Vec<LiveRange<'_>> {
        let range = |(storage, readers)| {
            let &Storage { def, bytes, escapes, .. } = storage;
            let readers: &SmallVec<[u32; 4]> = readers;
            LiveRange { def, bytes, readers: readers.as_slice(), escapes }
        };
        self.storages.iter().zip(&self.readers).map(range).collect()
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
            Work::Group(..) | Work::BlockFusion(_) | Work::RowFusion(_) | Work::Alias => (0, false),
            Work::Product(product) => self.product_scratch(plan, product, step),
            Work::Op(_) | Work::ControlFlow(_) | Work::Effect(_) => {
                let layouts: SmallVec<[Option<Layout>; 4]> =
                    sources.iter().map(|&source| self.layout(plan, source)).collect();
                let result =
                    step.results.first().and_then(|&slot| self.roots[slot as usize].1.as_ref());
                scratch(plan, step, &layouts, result, view.is_some())
            }
        };
        self.open |= open;
        self.scratch.push(scratch);
        self.fallible.push(loose || scratch > 0 || refuses(step));
    }

    /// The scratch bytes of a product, and whether it may take more.
    fn product_scratch(&self, plan: &Plan, product: &Product, step: &Step) -> (usize, bool) {
        match plan.packed(product, step, &|source| self.layout(plan, source)) {
            Some(packed) => (packed.scratch, false),
            None => (0, true),
        }
    }

    /// The layout of a step's result if the result is a view; `Some(None)` where sizes are open.
    fn view(&self, plan: &Plan, step: &Step) -> Option<Option<Layout>> {
        let Some(Operand::Array(from)) = step.args.first() else { return None };
        match &step.work {
            Work::Alias => Some(self.layout(plan, *from)),
            Work::Op(op) => match self.layout(plan, *from) {
                Some(layout) if plan.slots[step.results[0] as usize].shape.is_known() => {
                    plan.target.view(op, plan.ty(*from).dtype, &layout).map(Some)
                }
                _ => op.is_movement().then_some(None),
            },
            Work::Group(..)
            | Work::Product(_)
            | Work::BlockFusion(_)
            | Work::RowFusion(_)
            | Work::ControlFlow(_)
            | Work::Effect(_) => None,
        }
    }

    /// Gives a slot a storage of its own, if its size is known; returns whether it did.
    fn give(&mut self, plan: &Plan, i: u32, step: &Step, slot: u32) -> bool {
        let ty = &plan.slots[slot as usize];
        if !ty.shape.is_known() {
            return false;
        }
        let layout = match &step.work {
            _ if self.channels_last[slot as usize] => Layout::channels_last(&ty.shape),
            Work::Op(op) => plan.target.fresh_layout(op, &ty.shape),
            Work::Group(..)
            | Work::Product(_)
            | Work::BlockFusion(_)
            | Work::RowFusion(_)
            | Work::ControlFlow(_)
            | Work::Effect(_)
            | Work::Alias => Layout::contiguous(ty.shape.clone()),
        };
        let bytes = plan.target.bytes(ty.dtype, layout.room());
        self.roots[slot as usize] = (Some(self.storages.len() as u32), Some(layout));
        self.storages.push(Storage { bytes, def: i, slot, escapes: false });
        self.readers.push(SmallVec::new());
        true
    }

    /// Finds the steps that can fail only by their indices, which can be checked beforehand.
    pub(super) fn guard(&mut self, plan: &Plan, options: Options<'_>) {
        for &(input, output) in options.donated {
            let Some(s) = self.storage(plan.template.outputs[output as usize]) else { continue };
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

    /// Which steps have to wait for all others: steps that write donated memory, and steps that
    /// depend on these. No step that may fail, and no step that it needs, is among them.
    pub(super) fn late(&self, plan: &Plan, graph: &Graph, options: Options<'_>) -> Vec<bool> {
        let mut late = vec![false; plan.steps.len()];
        if options.donated.is_empty() {
            return late;
        }
        let mut early = self.fallible.clone();
        let makers = makers(&plan.steps, plan.slots.len());
        for &step in &self.guarded {
            self.indices(plan, step).for_each(|slot| early[makers[slot as usize] as usize] = true);
        }
        for step in (0..plan.steps.len()).rev() {
            early[step] |= graph.after(step).iter().any(|&next| early[next as usize]);
        }
        for &(_, output) in options.donated {
            if let Some(s) = self.storage(plan.template.outputs[output as usize]) {
                let def = self.storages[s as usize].def as usize;
                late[def] = !early[def];
            }
        }
        for step in 0..plan.steps.len() {
            if late[step] {
                graph.after(step).iter().for_each(|&next| late[next as usize] = true);
            }
        }
        late
    }
}

/// The step that fills each slot.
pub(super) fn makers(steps: &[Step], slots: usize) -> Vec<u32> {
    let mut makers = vec![0; slots];
    for (i, step) in steps.iter().enumerate() {
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

/// The arrays among operands, each once.
pub(super) fn bound(args: &[Operand]) -> SmallVec<[Source; 8]> {
    let mut bound: SmallVec<[Source; 8]> = SmallVec::new();
    for arg in args {
        if let Operand::Array(source) = *arg
            && !bound.contains(&source)
        {
            bound.push(source);
        }
    }
    bound
}

/// Whether data can make a step fail.
fn refuses(step: &Step) -> bool {
    match &step.work {
        Work::Op(op) => op.refuses(),
        Work::ControlFlow(_) | Work::Effect(_) => true,
        Work::Group(..) | Work::Product(_) | Work::BlockFusion(_) | Work::Alias => false,
        Work::RowFusion(fusion) => fusion.program.refuses(),
    }
}

/// The scratch bytes of a step, and whether it may take more.
fn scratch(
    plan: &Plan,
    step: &Step,
    layouts: &[Option<Layout>],
    result: Option<&Layout>,
    is_view: bool,
) -> (usize, bool) {
    let of_op = |op: &Op, layouts: &[Option<Layout>]| {
        let known: Option<SmallVec<[_; 4]>> = arrays(step)
            .into_iter()
            .zip(layouts)
            .map(|(source, layout)| Some((plan.ty(source).dtype, layout.as_ref()?)))
            .collect();
        match known.zip(result) {
            Some((args, result)) => {
                (plan.target.scratch(op, &args, result) + number_bytes(plan, op, step), false)
            }
            None => (0, true),
        }
    };
    match &step.work {
        Work::Op(op) if !is_view => of_op(op, layouts),
        Work::ControlFlow(bodies) => bodies.scratch(plan.target),
        // A condition is read in C order; one of another layout is copied.
        Work::Effect(_) => match layouts.first() {
            Some(Some(layout)) if !layout.is_contiguous() => {
                let bytes = plan.target.bytes(DType::Bool, layout.shape().count());
                (plan.target.allocated(bytes), false)
            }
            Some(_) | None => (0, false),
        },
        Work::Op(_)
        | Work::Group(..)
        | Work::Product(_)
        | Work::BlockFusion(_)
        | Work::RowFusion(_)
        | Work::Alias => (0, false),
    }
}

/// Bytes of the arrays that a product does not write: its own result where an epilogue follows, and
/// operands that prologues compute.
fn between(plan: &Plan, product: &Product) -> usize {
    let made = product.before.iter().flatten().filter_map(Prologue::ty);
    let after = product.after.as_ref();
    let raw = after.map(Epilogue::raw_ty);
    let known = made.chain(raw).filter(|ty| ty.shape.is_known());
    known.map(|ty| plan.target.bytes(ty.dtype, ty.shape.count())).sum()
}

/// The bytes of a number that the step turns into an array.
fn number_bytes(plan: &Plan, op: &Op, step: &Step) -> usize {
    match (op, step.args.get(1)) {
        (Op::Scatter(_), Some(Operand::Number(_))) => plan.target.allocated(1),
        _ => 0,
    }
}

/// The storages that a result of a step may take over: those of operands that the step reads only
/// where it writes.
fn donors(plan: &Plan, liveness: &Liveness, step: &Step) -> SmallVec<[u32; 4]> {
    // The storage that a slot shows in full and in C order, in the shape it was made in or another;
    // or with its channels innermost, if results of a group lie so.
    let lies_last = |slot: u32| liveness.channels_last[slot as usize];
    let is_last = step.results.iter().any(|&slot| lies_last(slot));
    let whole = |slot: u32| {
        let (Some(s), Some(layout)) = &liveness.roots[slot as usize] else { return None };
        let bytes = plan.target.bytes(plan.slots[slot as usize].dtype, layout.shape().count());
        let fits = if is_last { lies_last(slot) } else { layout.is_contiguous() };
        let all = fits && bytes == liveness.storages[*s as usize].bytes;
        all.then_some(*s)
    };
    let candidates = match &step.work {
        Work::Group(..) => arrays(step),
        Work::Op(op) => match plan.target.in_place(op) {
            InPlace::Any => arrays(step),
            InPlace::First => arrays(step).into_iter().take(1).collect(),
            InPlace::Nowhere => SmallVec::new(),
        },
        Work::BlockFusion(fusion) => {
            let sources = arrays(step).into_iter().enumerate();
            sources.filter(|(i, _)| fusion.spends(*i)).map(|(_, source)| source).collect()
        }
        Work::RowFusion(fusion) => {
            let sources = arrays(step).into_iter().enumerate();
            sources.filter(|(i, _)| fusion.spends(*i)).map(|(_, source)| source).collect()
        }
        Work::Product(_) | Work::ControlFlow(_) | Work::Effect(_) | Work::Alias => SmallVec::new(),
    };
    let all = arrays(step);
    let mut donors: SmallVec<[u32; 4]> = SmallVec::new();
    for &source in &candidates {
        let Source::Slot(slot) = source else { continue };
        let Some(s) = whole(slot) else { continue };
        let once = all.iter().filter(|&&other| liveness.storage(other) == Some(s)).count() == 1;
        let result =
            step.results.iter().any(|&r| same(&plan.slots[r as usize], &plan.slots[slot as usize]));
        if once && result && !donors.contains(&s) {
            donors.push(s);
        }
    }
    donors
}
