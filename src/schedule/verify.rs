//! The law of plans, checked: everything that a run relies on and does not check itself.
//!
//! Every slot is written once and before it is read, and no step is there for nobody. Values that
//! live at the same time do not overlap, unless one is written over another in a way that the target
//! allows. Each value is aligned and inside its memory. Donated memory is written after the last
//! step that may fail and after the last reader of the input. Programs fit the operands and results
//! of their steps, and block fusions cover their shapes exactly. No step binds more or larger ranges
//! of buffers than its target allows, or ranges that overlap where they must not.

use smallvec::SmallVec;

use super::block_fusion::BlockFusion;
use super::block_fusion::rows::{RowFusion, Stage, Value};
use super::donate::reads_in_place;
use super::liveness::{Liveness, arrays, same};
use super::product::Given;
use super::{Group, Operand, Placement, Plan, Product, Prologue, Source, Step, Work};
use crate::dtype::DType;
use crate::error::{self, Result};
use crate::ops::op::{OperandType, Type};
use crate::shape::{Axes, Shape};
use crate::target::{InPlace, Ranges};

/// The end of a value that never dies: a result of the plan.
const END: u32 = u32::MAX;

/// A value in memory, with the steps that write it and read it last.
struct Live {
    slot: u32,
    memory: u32,
    bytes: std::ops::Range<usize>,
    def: u32,
    end: u32,
}

/// A buffer that a step reads or writes.
#[derive(PartialEq)]
enum Memory {
    /// A memory of the run (0: the arena)
    Run(u32),
    /// Memory that is given, or found only when the plan runs
    Other(Source),
}

/// A range of a buffer, in bytes.
#[derive(PartialEq)]
struct Bound {
    buffer: Memory,
    bytes: std::ops::Range<usize>,
}

fn broken(what: &str, facts: String) -> error::Error {
    error::internal(format!("plan: {what}: {facts}"))
}

impl Plan {
    /// Checks that the plan keeps the law.
    pub fn verify(&self) -> Result<()> {
        self.check_order()?;
        for (i, step) in self.steps.iter().enumerate() {
            let at = |error: error::Error| error.note(format!("step {i}: {}", step.name()));
            match &step.work {
                Work::Group(group) => {
                    let (arrays, numbers) = step.args.split_at(group.program.arrays().len());
                    self.check_program((arrays, numbers), group, None).map_err(at)?;
                    self.check_results(&step.results, group).map_err(at)?;
                }
                Work::Product(product) => self.check_product(step, product).map_err(at)?,
                Work::BlockFusion(fusion) => self.check_blocks(step, fusion).map_err(at)?,
                Work::RowFusion(fusion) => self.check_rows(step, fusion).map_err(at)?,
                Work::ControlFlow(bodies) => {
                    bodies.plans().iter().try_for_each(|plan| plan.verify()).map_err(at)?;
                }
                Work::Op(_) | Work::Effect(_) | Work::Alias => {}
            }
        }
        if self.memory.placements.len() != self.slots.len() {
            return Err(broken("slots have no places", format!("{} slots", self.slots.len())));
        }
        let (live, place) = self.live()?;
        self.check_memory(&live)?;
        self.check_ranges(&live, &place)?;
        self.check_donations()
    }

    /// Every slot is written once and before it is read, and read no more once it is free.
    fn check_order(&self) -> Result<()> {
        let mut is_there = vec![false; self.slots.len()];
        let mut was_there = vec![false; self.slots.len()];
        let exists = |source: Source, is_there: &[bool]| match source {
            Source::Input(i) => (i as usize) < self.inputs.len(),
            Source::Constant(i) => (i as usize) < self.template.constants.len(),
            Source::Slot(i) => is_there.get(i as usize).copied().unwrap_or(false),
        };
        for (i, step) in self.steps.iter().enumerate() {
            for source in arrays(step) {
                if !exists(source, &is_there) {
                    let facts = format!("{source} by step {i}, {}", step.name());
                    return Err(broken("a value is read that is not there", facts));
                }
            }
            step.last.iter().for_each(|&slot| is_there[slot as usize] = false);
            for &slot in &step.results {
                match was_there.get(slot as usize) {
                    Some(false) => {}
                    _ => return Err(broken("a slot is written twice", format!("s{slot}"))),
                }
                (is_there[slot as usize], was_there[slot as usize]) = (true, true);
            }
        }
        if let Some(&source) = self.outputs().iter().find(|&&source| !exists(source, &is_there)) {
            return Err(broken("a result is not there at the end", source.to_string()));
        }
        match self.needed().iter().position(|is_needed| !is_needed) {
            Some(i) => Err(broken("nobody needs a step", format!("{i}, {}", self.steps[i].name()))),
            None => Ok(()),
        }
    }

    /// A program has the operands that its step lists. The program of a product's epilogue reads
    /// the product too, as its array `raw`.
    fn check_program(&self, given: Given<'_>, group: &Group, raw: Option<usize>) -> Result<()> {
        let (program, (arrays, numbers)) = (&group.program, given);
        let count = arrays.len() + usize::from(raw.is_some());
        let are_arrays = arrays.iter().all(|arg| matches!(arg, Operand::Array(_)));
        let are_numbers = numbers.iter().all(|arg| matches!(arg, Operand::Number(_)));
        let counts = (count, numbers.len()) == (program.arrays().len(), program.numbers().len());
        if !counts || !are_arrays || !are_numbers {
            let facts = format!("{count} arrays and {} numbers", numbers.len());
            return Err(broken("a program has other operands", facts));
        }
        let own = program.arrays().iter().enumerate().filter(|(k, _)| Some(*k) != raw);
        for (arg, (_, &dtype)) in arrays.iter().zip(own) {
            let Operand::Array(source) = *arg else { continue };
            let ty = self.ty(source);
            let fits = !ty.shape.is_known()
                || !group.shape.is_known()
                || ty.shape.broadcasts_to(&group.shape);
            if ty.dtype != dtype || !fits {
                let facts = format!("{source} is {} {}", ty.dtype, ty.shape);
                return Err(broken("a program has another operand", facts));
            }
        }
        Ok(())
    }

    /// A program gives the results that its step lists.
    fn check_results(&self, results: &[u32], group: &Group) -> Result<()> {
        let program = &group.program;
        let fits = |(&slot, dtype): (&u32, _)| {
            let ty = &self.slots[slot as usize];
            ty.dtype == dtype && ty.shape.same(&group.shape)
        };
        let count = program.results().len();
        match count == results.len() && results.iter().zip(program.dtypes()).all(fits) {
            true => Ok(()),
            false => Err(broken("a program gives other results", format!("{count} of them"))),
        }
    }

    /// The groups around a product fit it: prologues compute operands that the product can have,
    /// and the epilogue reads the product's result.
    fn check_product(&self, step: &Step, product: &Product) -> Result<()> {
        let (before, after) = product.parts(&step.args);
        for (prologue, given) in product.before.iter().zip(before) {
            let Some(Prologue { group, axes }) = prologue else { continue };
            self.check_program(given, group, None)?;
            let rank = group.shape.rank();
            let is_order = |axes: &Axes| (0..rank).all(|axis| axes.contains(&axis));
            let fits = axes.as_ref().is_none_or(|axes| axes.len() == rank && is_order(axes));
            if group.program.results().len() != 1 || !fits {
                let facts = format!("{} of rank {rank}", group.program.names());
                return Err(broken("a program makes no operand", facts));
            }
        }
        let factors: Option<SmallVec<[Type; 2]>> =
            (0..2).map(|k| self.factor(product, step, k)).collect();
        let Some(factors) = factors else {
            return Err(broken("a product lacks an operand", product.name()));
        };
        let raw = match &product.after {
            Some(epilogue) => {
                self.check_program(after, &epilogue.group, Some(epilogue.raw))?;
                self.check_results(&step.results, &epilogue.group)?;
                let raw = epilogue.raw_ty();
                let is_there = |place: usize| {
                    let slot = step.results.get(place);
                    slot.is_some_and(|&slot| same(&raw, &self.slots[slot as usize]))
                };
                let is_kept = epilogue.place.map_or(self.target.epilogue_in_registers(), is_there);
                is_kept.then_some(raw)
            }
            None => match step.results[..] {
                [slot] if after.0.is_empty() => Some(self.slots[slot as usize].clone()),
                _ => None,
            },
        };
        let known = factors.iter().all(|ty| ty.shape.is_known());
        let types: SmallVec<[OperandType<'_>; 2]> =
            factors.iter().map(|ty| OperandType::Tensor(ty.dtype, &ty.shape)).collect();
        let gives = |raw: Type| {
            let made = product.op.infer(&types);
            !known || made.is_ok_and(|made| same(&made, &raw))
        };
        match raw.is_some_and(gives) {
            true => Ok(()),
            false => Err(broken("a product gives another result", product.name())),
        }
    }

    /// The blocks of a fusion cover its shape, each row once, and its bodies keep the law.
    fn check_blocks(&self, step: &Step, fusion: &BlockFusion) -> Result<()> {
        let grid = &fusion.schedule.grid;
        let mut next = 0;
        for b in 0..grid.blocks() {
            let (start, size) = grid.block(b);
            let body = match &fusion.last {
                Some(last) if !grid.is_full(&size) => last,
                _ => &fusion.full,
            };
            let fits = |(k, source): (usize, &Source)| {
                let Some(at) = fusion.positions.get(k) else {
                    // Nobody but the reductions over all rows reads it.
                    return fusion.carried.iter().any(|reduction| reduction.output == k);
                };
                has_sizes(&body.ty(*source).shape, at, &size)
            };
            let all_fit = body.template.outputs.iter().enumerate().all(fits);
            if grid.row(b) != next || !all_fit {
                let facts = format!("block {b} of {size:?} at {start:?}");
                return Err(broken("blocks do not cover their shape", facts));
            }
            next += size.iter().product::<usize>();
        }
        if next != grid.rows() {
            let facts = format!("{next} rows of {}", grid.rows());
            return Err(broken("blocks do not cover their shape", facts));
        }
        let own = usize::from(fusion.workspace() > 0) + fusion.carried.len();
        let sizes = grid.sizes();
        let results = &step.results[..step.results.len() - own];
        if results.len() != fusion.positions.len() || results.len() != fusion.staged.len() {
            let facts = format!("{} results", results.len());
            return Err(broken("blocks do not cover their shape", facts));
        }
        for (&slot, at) in results.iter().zip(&fusion.positions) {
            let shape = &self.slots[slot as usize].shape;
            if !has_sizes(shape, at, sizes) {
                let facts = format!("s{slot} of {shape} by rows of {sizes:?}");
                return Err(broken("blocks do not cover their shape", facts));
            }
        }
        if let (true, Some(&slot)) = (fusion.workspace() > 0, step.results.last()) {
            let bytes = self.target.bytes(DType::U8, self.slots[slot as usize].shape.count());
            if bytes < fusion.workspace() {
                let facts = format!("{bytes} bytes of {}", fusion.workspace());
                return Err(broken("blocks have too little room", facts));
            }
        }
        fusion.full.verify()?;
        fusion.last.as_ref().map_or(Ok(()), |last| last.verify())
    }

    /// Stages of a row fusion read what is there, and the results are those of the step.
    fn check_rows(&self, step: &Step, fusion: &RowFusion) -> Result<()> {
        let program = &fusion.program;
        let (arrays, numbers) = step.args.split_at(program.arrays.len().min(step.args.len()));
        let own = |(arg, &dtype): (&Operand, &DType)| match *arg {
            Operand::Array(source) => self.ty(source).dtype == dtype,
            Operand::Number(_) => false,
        };
        let are_numbers = numbers.iter().all(|arg| matches!(arg, Operand::Number(_)));
        let fits = arrays.len() == program.arrays.len() && are_numbers;
        if !fits || !arrays.iter().zip(&program.arrays).all(own) {
            let facts = format!("{} operands", step.args.len());
            return Err(broken("a row program has other operands", facts));
        }
        let is_there = |at: usize| {
            move |value: &Value| match *value {
                Value::Array(k) => k < arrays.len(),
                Value::Made(stage, _) => stage < at,
            }
        };
        for (at, stage) in program.stages.iter().enumerate() {
            let reads = match stage {
                Stage::Map { program, arrays, first, .. } => {
                    arrays.len() == program.arrays().len()
                        && first + program.numbers().len() <= numbers.len()
                        && arrays.iter().all(is_there(at))
                }
                Stage::Reduce { of, .. } => is_there(at)(of),
                Stage::Line(_) => true,
                Stage::Pick { of, index, .. } => is_there(at)(of) && is_there(at)(index),
            };
            if !reads {
                return Err(broken("a stage reads what is not there", format!("stage {at}")));
            }
        }
        let (all, rows) = (fusion.sizes.elements(), fusion.rows().elements());
        let gives = |(&slot, &(value, is_wide)): (&u32, &(Value, bool))| {
            let ty = &self.slots[slot as usize];
            let count = if is_wide { all } else { rows };
            is_there(program.stages.len())(&value)
                && ty.dtype == program.dtype(value)
                && (ty.shape.elements().same(count) || !ty.shape.is_known())
        };
        let count = program.results.len();
        match count == step.results.len() && step.results.iter().zip(&program.results).all(gives) {
            true => Ok(()),
            false => Err(broken("a row program gives other results", format!("{count} of them"))),
        }
    }

    /// Values that live at the same time do not overlap, unless one takes over the other.
    fn check_memory(&self, live: &[Live]) -> Result<()> {
        let mut live: Vec<&Live> = live.iter().collect();
        live.sort_by_key(|value| (value.memory, value.def));
        let mut active: Vec<&Live> = Vec::new();
        for value in live {
            active.retain(|other| other.memory == value.memory && other.end >= value.def);
            for other in &active {
                let overlaps =
                    other.bytes.start < value.bytes.end && value.bytes.start < other.bytes.end;
                if overlaps && !self.takes_over(other, value) {
                    let facts = format!("s{} and s{}", other.slot, value.slot);
                    return Err(broken("values that live at the same time overlap", facts));
                }
            }
            active.push(value);
        }
        Ok(())
    }

    /// A step binds no more ranges, no larger ranges and no overlapping ranges than the target
    /// allows.
    fn check_ranges(&self, live: &[Live], place: &[Option<usize>]) -> Result<()> {
        let limits = self.target.limits();
        // By slot: the value that it is a view of, if it is one.
        let mut shown: Vec<Option<Source>> = vec![None; self.slots.len()];
        for (i, (step, &is_view)) in self.steps.iter().zip(&self.memory.views).enumerate() {
            let root = |source: Source| match source {
                Source::Slot(slot) => shown[slot as usize].unwrap_or(source),
                Source::Input(_) | Source::Constant(_) => source,
            };
            let sources = arrays(step);
            if is_view {
                shown[step.results[0] as usize] = sources.first().map(|&source| root(source));
                continue;
            }
            match &step.work {
                Work::Group(_)
                | Work::Product(_)
                | Work::BlockFusion(_)
                | Work::RowFusion(_)
                | Work::Op(_) => {}
                Work::ControlFlow(_) | Work::Effect(_) | Work::Alias => continue,
            }
            let results = step.results.iter().map(|&slot| Source::Slot(slot));
            let mut ranges: Vec<Bound> = Vec::new();
            for source in sources.iter().map(|&source| root(source)).chain(results) {
                let range = self.bound(source, live, place);
                // Inputs lie where their owner put them, who may repeat elements.
                let is_input = matches!(source, Source::Input(_));
                if !is_input && range.bytes.len() > limits.largest {
                    let facts = format!("{:?} by step {i}", range.bytes);
                    return Err(broken("a step binds too large a range", facts));
                }
                if !ranges.contains(&range) {
                    ranges.push(range);
                }
            }
            let in_parts = matches!(&step.work, Work::Op(op) if self.target.binds_in_parts(op));
            if ranges.len() > limits.buffers && !in_parts {
                let facts = format!("{} by step {i} of {}", ranges.len(), limits.buffers);
                return Err(broken("a step binds too many ranges", facts));
            }
            let overlap = |a: &Bound, b: &Bound| {
                a.buffer == b.buffer
                    && a.bytes.start < b.bytes.end
                    && b.bytes.start < a.bytes.end
                    && limits.ranges == Ranges::Apart
            };
            for (k, a) in ranges.iter().enumerate() {
                if let Some(b) = ranges[..k].iter().find(|b| overlap(a, b)) {
                    let facts = format!("{:?} and {:?} by step {i}", a.bytes, b.bytes);
                    return Err(broken("a step binds ranges that overlap", facts));
                }
            }
        }
        Ok(())
    }

    /// The range of a buffer that binding a value takes. For a view this is the range of the whole
    /// value that it shows.
    fn bound(&self, source: Source, live: &[Live], place: &[Option<usize>]) -> Bound {
        let given = |input: u32| {
            let taken = |dedicated: &super::DedicatedBuffer| dedicated.alias == Some(input);
            self.memory.dedicated.iter().position(taken).map(|k| k as u32 + 1)
        };
        let value = match source {
            Source::Slot(slot) => place[slot as usize].map(|at| &live[at]),
            Source::Input(_) | Source::Constant(_) => None,
        };
        if let Some(value) = value {
            let end = self.target.limits().granular(value.bytes.end);
            return Bound { buffer: Memory::Run(value.memory), bytes: value.bytes.start..end };
        }
        let ty = self.ty(source);
        let count = if ty.shape.is_known() { ty.shape.count() } else { 0 };
        let buffer = match source {
            Source::Input(i) => given(i).map_or(Memory::Other(source), Memory::Run),
            Source::Slot(_) | Source::Constant(_) => Memory::Other(source),
        };
        Bound { buffer, bytes: 0..self.target.bytes(ty.dtype, count) }
    }

    /// The values computed in memory, with live ranges that include their views; and by slot the
    /// index of the value that it is or shows. Refuses values that are not aligned or lie outside
    /// their memory.
    fn live(&self) -> Result<(Vec<Live>, Vec<Option<usize>>)> {
        let limits = self.target.limits();
        // By slot: the index in `live` of the value that it is or shows.
        let mut place: Vec<Option<usize>> = vec![None; self.slots.len()];
        let mut live: Vec<Live> = Vec::new();
        for (i, step) in self.steps.iter().enumerate() {
            for source in arrays(step) {
                if let Source::Slot(slot) = source
                    && let Some(at) = place[slot as usize]
                {
                    live[at].end = live[at].end.max(i as u32);
                }
            }
            for &slot in &step.results {
                let Placement::Fixed(memory, layout) = &self.memory.placements[slot as usize]
                else {
                    continue;
                };
                let Some((low, high)) = layout.extent() else { continue };
                let size = self.target.stored(self.slots[slot as usize].dtype);
                let bytes = low * size..(high + 1) * size;
                let capacity = match memory.checked_sub(1) {
                    None => self.memory.arena,
                    Some(k) => {
                        self.memory.dedicated.get(k as usize).map_or(0, |dedicated| dedicated.bytes)
                    }
                };
                if limits.granular(bytes.end) > capacity {
                    let facts = format!("s{slot} at {bytes:?} of {capacity} bytes");
                    return Err(broken("a value lies outside of its memory", facts));
                }
                let shown = match (self.memory.views[i], step.args.first()) {
                    (true, Some(Operand::Array(Source::Slot(from)))) => place[*from as usize],
                    _ => None,
                };
                if let Some(at) = shown {
                    let of = &live[at];
                    if *memory != of.memory
                        || bytes.start < of.bytes.start
                        || bytes.end > of.bytes.end
                    {
                        let facts = format!("s{slot} of s{}", of.slot);
                        return Err(broken("a view lies outside of what it shows", facts));
                    }
                    place[slot as usize] = Some(at);
                    continue;
                }
                if !bytes.start.is_multiple_of(limits.alignment) {
                    let facts = format!("s{slot} at byte {}", bytes.start);
                    return Err(broken("a value is not aligned", facts));
                }
                place[slot as usize] = Some(live.len());
                let (def, memory) = (i as u32, *memory);
                live.push(Live { slot, memory, bytes, def, end: def });
            }
        }
        for source in &self.template.outputs {
            if let Source::Slot(slot) = *source
                && let Some(at) = place[slot as usize]
            {
                live[at].end = END;
            }
        }
        Ok((live, place))
    }

    /// Whether a step may write a value over an operand that dies there.
    fn takes_over(&self, old: &Live, new: &Live) -> bool {
        let step = &self.steps[new.def as usize];
        let (was, is) = (&self.slots[old.slot as usize], &self.slots[new.slot as usize]);
        let reads = |source: &Source| match (*source, &self.memory.placements[old.slot as usize]) {
            (Source::Slot(slot), Placement::Fixed(memory, _)) => {
                matches!(&self.memory.placements[slot as usize], Placement::Fixed(m, layout)
                if m == memory && layout.extent().is_some_and(|(low, _)| {
                    low * self.target.stored(was.dtype) == old.bytes.start
                }))
            }
            _ => false,
        };
        let sources = arrays(step);
        let allowed = match &step.work {
            Work::Group(_) => true,
            Work::Op(op) => match self.target.in_place(op) {
                InPlace::Any => true,
                InPlace::First => sources.first().is_some_and(reads),
                InPlace::Nowhere => false,
            },
            Work::BlockFusion(fusion) => {
                sources.iter().enumerate().any(|(i, source)| reads(source) && fusion.spends(i))
            }
            Work::RowFusion(fusion) => {
                sources.iter().enumerate().any(|(i, source)| reads(source) && fusion.spends(i))
            }
            Work::Product(_) | Work::ControlFlow(_) | Work::Effect(_) | Work::Alias => false,
        };
        allowed && old.end == new.def && old.bytes == new.bytes && was.dtype == is.dtype
    }

    /// Donated memory is written after every step that may fail, and after the last read of the
    /// input.
    fn check_donations(&self) -> Result<()> {
        if self.memory.aliases.is_empty() {
            return Ok(());
        }
        let liveness = Liveness::new(self);
        let (guarded_at, guarded) = &self.memory.guards;
        let aliases = self
            .memory
            .dedicated
            .iter()
            .filter_map(|dedicated| Some((dedicated.alias?, dedicated)));
        for (input, dedicated) in aliases {
            let Some(first) = self.first_write(dedicated) else { continue };
            let fails = |&step: &u32| {
                let is_guarded = guarded.contains(&step) && *guarded_at <= first;
                liveness.fallible[step as usize] && !is_guarded
            };
            if let Some(step) = (first..self.steps.len() as u32).find(fails) {
                let name = self.steps[step as usize].name();
                let what = "a step may fail after donated memory is written";
                return Err(broken(what, format!("step {step}, {name}, after step {first}")));
            }
            let late = |&&step: &&u32| {
                step > first || (step == first && !reads_in_place(self, &liveness, step, input))
            };
            if let Some(step) = liveness.input_readers[input as usize].iter().find(late) {
                let facts = format!("in{input} by step {step}, written by step {first}");
                return Err(broken("a donated input is read after it is written", facts));
            }
            let shows = |&source: &Source| liveness.input(source) == Some(input);
            let output =
                self.memory.aliases.iter().find(|alias| alias.0 == input).map(|alias| alias.1);
            let fits = output.is_some_and(|output| {
                same(&self.inputs[input as usize], &self.ty(self.template.outputs[output as usize]))
            });
            if self.template.outputs.iter().any(shows) || !fits {
                return Err(broken("an input cannot be given away", format!("in{input}")));
            }
        }
        Ok(())
    }

    /// The first step that writes a memory.
    fn first_write(&self, dedicated: &super::DedicatedBuffer) -> Option<u32> {
        let at = self.memory.dedicated.iter().position(|other| std::ptr::eq(other, dedicated))?
            as u32
            + 1;
        let writes = |step: &Step| {
            step.results.iter().any(|&slot| {
                matches!(&self.memory.placements[slot as usize], Placement::Fixed(memory, _) if *memory == at)
            })
        };
        self.steps.iter().position(writes).map(|step| step as u32)
    }
}

/// Whether a shape has these sizes at some axes.
fn has_sizes(shape: &Shape, at: &[u8], sizes: &[usize]) -> bool {
    let mut pairs = at.iter().zip(sizes);
    at.len() == sizes.len()
        && pairs.all(|(&axis, &n)| {
            shape.dims().get(axis as usize).is_some_and(|dim| dim.known() == Some(n))
        })
}
