//! Makes a block fusion of a set of steps: the plan of a block, and the memory that blocks take.

use std::sync::Arc;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::super::liveness::makers;
use super::super::memory::{Memory, Placement};
use super::super::{Cut, Operand, Options, Plan, Source, Step, StepTemplate, Template, Work};
use super::axes::{self, AxisMap, Positions};
use super::grid::{BlockSchedule, Sizes};
use super::{BlockFusion, CarriedReduction, Rows, Set, is_movement, stronger};
use crate::dtype::DType;
use crate::layout::Layout;
use crate::ops::op::{Op, Type};
use crate::shape::Shape;
use crate::target::{BlockScratch, Target};

/// Which steps make and read the slots of a plan, and which slots are results.
pub struct Readers {
    by_slot: Vec<SmallVec<[u32; 4]>>,
    made: Vec<u32>,
    is_result: Vec<bool>,
}

impl Readers {
    pub fn new(plan: &Plan) -> Readers {
        let slots = plan.slots.len();
        let mut readers = Readers {
            by_slot: vec![SmallVec::new(); slots],
            made: makers(&plan.steps, slots),
            is_result: vec![false; slots],
        };
        for (i, step) in plan.steps.iter().enumerate() {
            for arg in &step.args {
                if let Operand::Array(Source::Slot(slot)) = *arg {
                    readers.by_slot[slot as usize].push(i as u32);
                }
            }
        }
        for source in &plan.template.outputs {
            if let Source::Slot(slot) = *source {
                readers.is_result[slot as usize] = true;
            }
        }
        readers
    }
}

impl Readers {
    /// The step that makes a value.
    fn maker(&self, source: Source) -> Option<u32> {
        match source {
            Source::Slot(slot) => Some(self.made[slot as usize]),
            Source::Input(_) | Source::Constant(_) => None,
        }
    }
}

/// The steps and slots of a set by their role in the block fusion.
struct Parts {
    /// Steps that run block by block
    inside: SmallVec<[u32; 4]>,
    /// Movements that are read outside too: they stay steps of the plan
    outside: SmallVec<[u32; 4]>,
    /// The slots that are read outside the set
    results: SmallVec<[u32; 4]>,
    /// The slots that are only read by reductions over all rows
    reduced_slots: SmallVec<[u32; 2]>,
    cut: Cut,
}

fn parts(plan: &Plan, readers: &Readers, set: &Set, carried: &[u32]) -> Parts {
    let mut parts = Parts {
        inside: SmallVec::new(),
        outside: SmallVec::new(),
        results: SmallVec::new(),
        reduced_slots: SmallVec::new(),
        cut: Cut::Result,
    };
    for &i in set.steps.iter().rev() {
        let step = &plan.steps[i as usize];
        let moves = is_movement(step);
        let mut is_read_inside = false;
        for &slot in &step.results {
            let mut is_read_outside = readers.is_result[slot as usize];
            for reader in &readers.by_slot[slot as usize] {
                is_read_inside |= parts.inside.contains(reader);
                if !set.steps.contains(reader) && !carried.contains(reader) {
                    let name = plan.steps[*reader as usize].name_of_work();
                    parts.cut = stronger(parts.cut, Cut::Opaque(name));
                    is_read_outside = true;
                }
                is_read_outside |= parts.outside.contains(reader);
            }
            if is_read_outside && moves {
                parts.outside.push(i);
            } else if is_read_outside {
                parts.results.push(slot);
            } else if readers.by_slot[slot as usize].iter().any(|reader| carried.contains(reader)) {
                parts.reduced_slots.push(slot);
            }
        }
        if is_read_inside || !moves {
            parts.inside.push(i);
        }
    }
    parts.inside.reverse();
    parts.outside.reverse();
    parts.results.reverse();
    parts
}

/// The values that are read from outside the set, and the axes along which each is cut.
struct Reads {
    sources: SmallVec<[Source; 4]>,
    along: SmallVec<[AxisMap; 4]>,
}

impl Reads {
    fn find(&mut self, source: Source, along: AxisMap) -> u32 {
        let known = self.sources.iter().zip(&self.along);
        let place = known.into_iter().position(|(s, a)| *s == source && *a == along);
        let place = place.unwrap_or_else(|| {
            self.sources.push(source);
            self.along.push(along);
            self.sources.len() - 1
        });
        place as u32
    }
}

/// The steps that replace a set.
pub struct Merged {
    /// The block fusion, and the movements that are read outside the set
    pub steps: Vec<Step>,
    /// The type of the workspace, which is one more result
    pub workspace: Option<Type>,
    /// The reductions over all rows that are part of it
    pub carried: SmallVec<[u32; 2]>,
}

/// The slot that a reduction over all rows reads, and the reduction, with that array seen as lines.
fn carried_of(plan: &Plan, step: u32) -> Option<(u32, CarriedReduction)> {
    let step = &plan.steps[step as usize];
    let (Work::Op(Op::Reduce(kind, axes)), Operand::Array(Source::Slot(slot))) =
        (&step.work, step.args[0])
    else {
        return None;
    };
    let ty = &plan.slots[slot as usize];
    let sizes = ty.shape.sizes();
    let (lines, width) = sizes.split_at(axes.len());
    let (lines, width) = (lines.iter().product(), width.iter().product());
    let (kind, dtype) = (*kind, ty.dtype);
    let group = plan.target.reduction_group(lines, width)?;
    // A step of its own reads so few elements again in less time than the other threads would wait.
    let is_small = lines * width < plan.target.limits().large;
    if is_small && lines.div_ceil(group) < plan.target.lanes() {
        return None;
    }
    Some((slot, CarriedReduction { output: 0, kind, dtype, lines, width, dedicated: None }))
}

fn bytes_of(plan: &Plan, ty: &Type) -> usize {
    plan.target.bytes(ty.dtype, ty.shape.count())
}

/// The steps that replace a set by a block fusion; `None` where that would not be faster, or where
/// its memory is not known beforehand.
pub fn merge(plan: &Plan, readers: &Readers, set: &Set) -> Option<Merged> {
    let steps: SmallVec<[u32; 2]> =
        set.carried.iter().copied().filter(|&step| carried_of(plan, step).is_some()).collect();
    let parts = parts(plan, readers, set, &steps);
    let computes = parts.inside.iter().filter(|&&i| !is_movement(&plan.steps[i as usize]));
    if computes.count() + steps.len() < 2 {
        return None;
    }
    let first = *parts.inside.first()?;
    let shape = axes::shape(plan, &plan.steps[first as usize])?;
    let sizes: Sizes = set.at(first).iter().map(|&axis| shape[axis as usize].value()).collect();
    let (inner, bytes) = volume(plan, readers, &parts, set);
    let mut limits = plan.target.limits().blocks?;
    if computes_rows(plan, &parts, set) {
        (limits.least, limits.large) = (limits.of_rows, limits.of_rows);
    }
    if bytes < limits.large {
        return None;
    }
    if matches!(set.rows, Rows::Inside(_)) && bytes / sizes[0].max(1) > limits.inside {
        return None;
    }
    let mut carried = carried(plan, &parts, &steps)?;
    let schedule = BlockSchedule::new(sizes, bytes, &carried, &limits, plan.target)?;
    let mut reads = Reads { sources: SmallVec::new(), along: SmallVec::new() };
    let (form, lower) = schedule.grid.forms();
    let mut block = |form: &Sizes| {
        let mut made = body(plan, &parts, set, form, &mut reads);
        if let Some(found) = made.arrange(Options::new(plan.target), set.layout_hint.get()) {
            set.layout_hint.get_or_init(|| found);
        }
        made
    };
    let full = Arc::new(block(&form));
    let last = lower.as_ref().map(|form| Arc::new(block(form)));
    let bodies: SmallVec<[&Plan; 2]> =
        std::iter::once(&full).chain(&last).map(|body| &**body).collect();
    let positions: SmallVec<[Positions; 2]> =
        (parts.results.iter()).map(|&slot| set.at(readers.made[slot as usize])).collect();
    let is_staged = |(&slot, at): (&u32, &Positions)| {
        let ty = &plan.slots[slot as usize];
        let leads = at.iter().copied().eq(0..at.len() as u8);
        let before = &ty.shape.dims()[..at[0] as usize];
        !leads && before.iter().any(|dim| dim.known() != Some(1))
    };
    let is_staged: SmallVec<[bool; 2]> =
        parts.results.iter().zip(&positions).map(is_staged).collect();
    let room = lane_capacity(&bodies, &mut carried, &is_staged)?;
    let spent = match set.rows {
        Rows::Leading(_) => spent(plan, shape, &reads, &bodies),
        Rows::Inside(_) => spent_inside(plan, &parts, &reads, &positions, &is_staged),
    };
    let results = parts.results.iter().map(|&slot| bytes_of(plan, &plan.slots[slot as usize]));
    let inner = inner - results.sum::<usize>();
    let Reads { sources, along } = reads;
    drop(bodies);
    let made = BlockFusion {
        schedule,
        full,
        last,
        axis_maps: along,
        positions,
        staged: room.staged,
        spent,
        carried,
        capacity: room.capacity,
        scratch: room.scratch,
        products: room.products,
        inner,
    };
    if !fits(plan.target, &made, parts.results.len() + steps.len()) {
        return None;
    }
    let bytes = made.workspace().div_ceil(plan.target.stored(DType::U8));
    let workspace = (bytes > 0).then(|| Type::new(DType::U8, Shape::of(&[bytes])));
    let mut all = vec![step(plan, &parts, &steps, made, sources)];
    if workspace.is_some() {
        Arc::make_mut(&mut all[0].template).results.push(plan.slots.len() as u32);
    }
    all.extend(parts.outside.iter().map(|&i| plan.steps[i as usize].clone()));
    Some(Merged { steps: all, workspace, carried: steps })
}

/// Whether all steps of a set compute rows: elements of them, and reductions of whole rows.
fn computes_rows(plan: &Plan, parts: &Parts, set: &Set) -> bool {
    let Rows::Leading(lead) = set.rows else { return false };
    let computes = |&i: &u32| {
        let step = &plan.steps[i as usize];
        let Work::Op(Op::Reduce(_, axes)) = &step.work else {
            return is_movement(step) || plan.elementwise(step).is_some();
        };
        let shape = axes::operand(plan, step, 0);
        let is_one = |axis: usize| shape[axis].known() == Some(1);
        axes.iter().all(|&axis| axis >= lead || is_one(axis))
            && (lead..shape.rank()).all(|axis| axes.contains(&axis) || is_one(axis))
    };
    parts.inside.iter().all(computes)
}

/// Whether a target can bind the operands, results and workspace of a block fusion at once.
fn fits(target: &dyn Target, fusion: &BlockFusion, results: usize) -> bool {
    let limits = target.limits();
    let own = usize::from(fusion.workspace() > 0);
    fusion.axis_maps.len() + results + own <= limits.buffers && fusion.workspace() <= limits.largest
}

/// The bytes of the values computed in a set, and the bytes of these together with the operands
/// that are read row by row.
fn volume(plan: &Plan, readers: &Readers, parts: &Parts, set: &Set) -> (usize, usize) {
    let mut read: SmallVec<[Source; 8]> = SmallVec::new();
    let (mut inner, mut outer) = (0, 0);
    for &i in &parts.inside {
        let step = &plan.steps[i as usize];
        if !is_movement(step) {
            let results =
                step.results.iter().map(|&slot| bytes_of(plan, &plan.slots[slot as usize]));
            inner += results.sum::<usize>();
        }
        for (k, arg) in step.args.iter().enumerate() {
            let Operand::Array(source) = *arg else { continue };
            if readers.maker(source).is_some_and(|made| parts.inside.contains(&made))
                || read.contains(&source)
                || axes::along(plan, step, k, &set.at(i)).iter().all(Option::is_none)
            {
                continue;
            }
            read.push(source);
            outer += bytes_of(plan, &plan.ty(source));
        }
    }
    (inner, inner + outer)
}

/// The reductions over all rows, with the results of a block that they read.
fn carried(plan: &Plan, parts: &Parts, steps: &[u32]) -> Option<SmallVec<[CarriedReduction; 1]>> {
    let outputs = || parts.results.iter().chain(&parts.reduced_slots);
    let reduction = |&step: &u32| {
        let (slot, reduction) = carried_of(plan, step)?;
        let output = outputs().position(|&output| output == slot)?;
        Some(CarriedReduction { output, ..reduction })
    };
    steps.iter().map(reduction).collect()
}

/// What a lane's workspace holds: intermediate values, the scratch of products, arrays that are only
/// reduced, and results whose blocks are not contiguous.
struct Room {
    capacity: usize,
    /// Where the scratch of products begins, and its bytes
    scratch: usize,
    products: usize,
    /// By result of a block: its offset
    staged: SmallVec<[Option<usize>; 2]>,
}

/// The workspace of a lane. Arrays that are only reduced get an offset in it.
fn lane_capacity(
    bodies: &[&Plan],
    carried: &mut [CarriedReduction],
    is_staged: &[bool],
) -> Option<Room> {
    let (mut arena, mut products) = (0, 0);
    for body in bodies {
        let own = block_capacity(body)?;
        (arena, products) = (arena.max(own.0), products.max(own.1));
    }
    let mut capacity = arena + products;
    let full = bodies[0];
    let mut take = |output: usize| {
        let bytes = bytes_of(full, &full.ty(full.template.outputs[output]));
        capacity += full.target.limits().aligned(bytes);
        capacity - full.target.limits().aligned(bytes)
    };
    for reduction in carried {
        if reduction.output >= is_staged.len() {
            reduction.dedicated = Some(take(reduction.output));
        }
    }
    let staged = is_staged.iter().enumerate().map(|(k, &is)| is.then(|| take(k))).collect();
    Some(Room { capacity, scratch: arena, products, staged })
}

/// By operand: whether a result of its type may be written over it.
fn spent(plan: &Plan, shape: &Shape, reads: &Reads, bodies: &[&Plan]) -> SmallVec<[bool; 4]> {
    let is_spent = |i: usize| {
        let (ty, along) = (plan.ty(reads.sources[i]), &reads.along[i]);
        axes::straight(along, &ty.shape, shape) == along.len()
            && bodies.iter().all(|body| is_spent(body, i))
    };
    (0..reads.sources.len()).map(is_spent).collect()
}

/// The same for blocks along an axis further inside. Results that are staged are written when all
/// of a block has been read; others are not written over operands.
fn spent_inside(
    plan: &Plan,
    parts: &Parts,
    reads: &Reads,
    positions: &[Positions],
    is_staged: &[bool],
) -> SmallVec<[bool; 4]> {
    let is_spent = |(&source, along): (&Source, &AxisMap)| {
        let ty = plan.ty(source);
        let mut results = parts.results.iter().zip(positions).zip(is_staged);
        results.all(|((&slot, at), &is_staged)| {
            plan.slots[slot as usize] != ty || (is_staged && along[0] == Some(at[0]))
        })
    };
    reads.sources.iter().zip(&reads.along).map(is_spent).collect()
}

/// The step of a set.
fn step(
    plan: &Plan,
    parts: &Parts,
    carried: &[u32],
    fusion: BlockFusion,
    sources: SmallVec<[Source; 4]>,
) -> Step {
    let members = || parts.inside.iter().chain(carried).map(|&i| &plan.steps[i as usize]);
    let mut nodes: SmallVec<[_; 4]> = members().flat_map(|step| step.nodes.clone()).collect();
    nodes.sort_unstable_by_key(|id| id.0);
    let site = members().next_back().map_or_else(Default::default, |step| step.site);
    let template = StepTemplate {
        args: sources.into_iter().map(Operand::Array).collect(),
        results: (parts.results.iter().copied())
            .chain(carried.iter().map(|&step| plan.steps[step as usize].results[0]))
            .collect(),
        cut: parts.cut,
        nodes,
        site,
    };
    Step::new(Work::BlockFusion(Box::new(fusion)), template)
}

/// The plan of a block whose row axes have these sizes.
fn body(plan: &Plan, parts: &Parts, set: &Set, block: &Sizes, reads: &mut Reads) -> Plan {
    let mut slots: Vec<Type> = Vec::new();
    let mut place: SmallVec<[(u32, u32); 16]> = SmallVec::new();
    let mut steps: Vec<Step> = Vec::with_capacity(parts.inside.len());
    let mut inputs: SmallVec<[Type; 4]> = SmallVec::new();
    for &i in &parts.inside {
        let (step, at) = (&plan.steps[i as usize], set.at(i));
        let mut made = (*step.template).clone();
        for (k, arg) in made.args.iter_mut().enumerate() {
            let Operand::Array(source) = *arg else { continue };
            let inner = match source {
                Source::Slot(slot) => place.iter().find(|(outer, _)| *outer == slot),
                Source::Input(_) | Source::Constant(_) => None,
            };
            *arg = Operand::Array(match inner {
                Some(&(_, own)) => Source::Slot(own),
                None => {
                    let along = axes::along(plan, step, k, &at);
                    let ty = plan.ty(source);
                    let layout = Layout::contiguous(ty.shape.clone());
                    let shape = axes::part(&layout, &along, &[0; 8], block).shape().clone();
                    let input = reads.find(source, along);
                    if input as usize == inputs.len() {
                        inputs.push(Type::new(ty.dtype, shape));
                    }
                    Source::Input(input)
                }
            });
        }
        for slot in &mut made.results {
            let ty = &plan.slots[*slot as usize];
            place.push((*slot, slots.len() as u32));
            *slot = slots.len() as u32;
            slots.push(Type::new(ty.dtype, axes::sized(&ty.shape, &at, block)));
        }
        steps.push(Step::new(axes::cut(&step.work, &at, block), made));
    }
    let own = |slot: &u32| place.iter().find(|(outer, _)| outer == slot);
    let outputs = parts.results.iter().chain(&parts.reduced_slots);
    let outputs = outputs.filter_map(own).map(|&(_, own)| Source::Slot(own)).collect();
    Plan {
        target: plan.target,
        template: Arc::new(Template { outputs, ..Template::default() }),
        steps,
        inputs,
        slots,
        memory: Memory::default(),
        recomputed: None,
        elements: None,
    }
}

/// The bytes that a block takes besides its operands and results (its arena and the scratch of
/// products), and how many of them are scratch. `None` where a block may allocate more.
fn block_capacity(body: &Plan) -> Option<(usize, usize)> {
    let memory = &body.memory;
    if memory.open || memory.dedicated.iter().any(|dedicated| dedicated.whole.is_none()) {
        return None;
    }
    // By slot: how a view of an input lies.
    let mut views: FxHashMap<u32, Layout> = FxHashMap::default();
    let layout = |views: &FxHashMap<u32, Layout>, source: Source| {
        let known = match source {
            Source::Slot(slot) => match &memory.placements[slot as usize] {
                Placement::Fixed(_, layout) => Some(layout.clone()),
                Placement::Loose => views.get(&slot).cloned(),
            },
            Source::Input(_) | Source::Constant(_) => None,
        };
        known.unwrap_or_else(|| Layout::contiguous(body.ty(source).shape))
    };
    let mut products = 0;
    for (step, &is_view) in body.steps.iter().zip(&memory.views) {
        let op = match &step.work {
            Work::Op(op) => op,
            Work::Product(product) => &product.op,
            Work::Group(_)
            | Work::BlockFusion(_)
            | Work::RowFusion(_)
            | Work::ControlFlow(_)
            | Work::Effect(_)
            | Work::Alias => {
                continue;
            }
        };
        let args: SmallVec<[(DType, Layout); 4]> = step
            .args
            .iter()
            .filter_map(|arg| match *arg {
                Operand::Array(source) => Some((body.ty(source).dtype, layout(&views, source))),
                Operand::Number(_) => None,
            })
            .collect();
        if is_view {
            let view = args.first().and_then(|(dtype, from)| body.target.view(op, *dtype, from));
            views.extend(view.map(|layout| (step.results[0], layout)));
            continue;
        }
        let args: SmallVec<[(DType, &Layout); 4]> =
            args.iter().map(|(dtype, layout)| (*dtype, layout)).collect();
        let result = &body.slots[step.results[0] as usize].shape;
        match body.target.block_scratch(op, &args, result) {
            BlockScratch::Nothing => {}
            BlockScratch::Lent(bytes) => products = products.max(bytes),
            BlockScratch::Refused => return None,
        }
    }
    let limits = body.target.limits();
    Some((limits.aligned(memory.arena), limits.aligned(products)))
}

/// Whether every result of the type of an input may be written over it: the input is read for the
/// last time before such a result is written, or element by element as it is written.
fn is_spent(body: &Plan, input: usize) -> bool {
    let source = Operand::Array(Source::Input(input as u32));
    let mut last = None;
    for (at, step) in body.steps.iter().enumerate() {
        if step.args.contains(&source) {
            if is_movement(step) {
                return false;
            }
            last = Some(at);
        }
    }
    let Some(last) = last else { return false };
    let goes_along = matches!(&body.steps[last].work, Work::Group(..) | Work::Op(Op::Map(_)));
    let ty = &body.inputs[input];
    body.memory.dedicated.iter().all(|dedicated| {
        let Some(output) = dedicated.whole else { return false };
        let other = body.ty(body.template.outputs[output as usize]);
        let first = dedicated.first as usize;
        other != *ty || last < first || (last == first && goes_along)
    })
}
