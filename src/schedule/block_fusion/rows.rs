//! Row fusions: steps that compute rows, as one step with a program of stages.
//!
//! A target without caches of its own to plan for (a GPU) takes no plans of blocks, but one program
//! that says what happens to a row: maps of its elements, reductions of the row, maps of what they
//! give, elements that an index picks. The *frame* says what a row is: sizes, and the axes along
//! which a row goes. A *wide* value has one element for each of the frame, in the same C order; a
//! *narrow* one has one for each row.
//!
//! Sets grow from reductions, step by step along the values that steps give each other, as long as
//! no path leaves a set and comes back. They are formed once for all sizes.

use std::sync::Arc;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::super::liveness::makers;
use super::super::order::Graph;
use super::super::{Cut, Number, Operand, Plan, Sequel, Source, Step, StepTemplate, Work};
use super::{is_movement, stronger};
use crate::dtype::DType;
use crate::ops::attributes::Reduction;
use crate::ops::element::{ElementOp, ElementProgram};
use crate::ops::op::Op;
use crate::shape::{Axes, Dim, Shape};
use crate::target::RowLimits;

/// Steps that a search for a way back into a set looks at before it takes one for granted.
const SEEN: usize = 1 << 14;

/// Ops that take an instruction or two.
const PLAIN: [&str; 8] =
    ["add", "subtract", "multiply", "negative", "where", "less", "equal", "maximum"];

/// A value of a row program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Value {
    /// An operand of the step, by position
    Array(usize),
    /// A result of a stage
    Made(usize, usize),
}

/// A part of a row program.
#[derive(Clone, Debug)]
pub enum Stage {
    /// An elementwise program, for each element of a row or once for the row
    Map {
        /// The ops
        program: Arc<ElementProgram>,
        /// Its arrays
        arrays: SmallVec<[Value; 4]>,
        /// The first of its numbers among those of the step
        first: usize,
        /// Whether it goes over the elements of a row
        is_wide: bool,
    },
    /// A reduction of the row
    Reduce {
        /// The kind
        kind: Reduction,
        /// What is reduced
        of: Value,
    },
    /// The element of a row, or of an operand of one axis, that an index picks
    Pick {
        /// Where it is picked
        of: Value,
        /// The index
        index: Value,
        /// The sizes of the axes that the op indexes, of which this index goes along the last
        sizes: Shape,
        /// Whether every row has elements of its own to pick from
        is_own: bool,
    },
}

/// What happens to a row.
#[derive(Debug)]
pub struct RowProgram {
    /// In the order in which they run
    pub stages: Vec<Stage>,
    /// The dtypes of the operands
    pub arrays: Vec<DType>,
    /// The results, and whether each is wide
    pub results: SmallVec<[(Value, bool); 2]>,
    /// The names of the steps
    names: String,
}

/// A step that computes rows.
#[derive(Clone)]
pub struct RowFusion {
    /// The program
    pub program: Arc<RowProgram>,
    /// The sizes of the frame
    pub sizes: Shape,
    /// The axes along which a row goes
    pub columns: Axes,
    /// By stage: the shape over which a map goes, or the sizes that a pick indexes
    pub shapes: SmallVec<[Shape; 4]>,
    /// By operand: whether a result of its type may be written over it
    spent: SmallVec<[bool; 4]>,
    /// The types of values that are not written
    hidden: SmallVec<[(DType, Shape); 4]>,
}

impl RowProgram {
    /// The dtype of a value.
    pub fn dtype(&self, value: Value) -> DType {
        match value {
            Value::Array(k) => self.arrays[k],
            Value::Made(stage, k) => match &self.stages[stage] {
                Stage::Map { program, .. } => program.dtype(program.results()[k]),
                Stage::Reduce { of, .. } | Stage::Pick { of, .. } => self.dtype(*of),
            },
        }
    }

    /// Whether data can make it fail.
    pub fn refuses(&self) -> bool {
        self.stages.iter().any(|stage| matches!(stage, Stage::Pick { .. }))
    }

    /// The names of the steps in order.
    pub fn names(&self) -> &str {
        &self.names
    }
}

impl RowFusion {
    /// The sizes of the axes that tell rows apart.
    pub fn rows(&self) -> Shape {
        self.sizes.reduce(&self.columns, false)
    }

    /// Whether results of its type may be written over operand `i`: every element is read for the
    /// last time by the invocation that then writes the element of the result.
    pub fn spends(&self, i: usize) -> bool {
        self.spent.get(i).copied().unwrap_or(false)
    }

    /// The types of the values between its stages, which are not written.
    pub fn hidden(&self) -> impl Iterator<Item = (DType, &Shape)> {
        self.hidden.iter().map(|(dtype, shape)| (*dtype, shape))
    }

    /// Elementwise ops and terms of reductions.
    pub fn flops(&self) -> u64 {
        let each = |(stage, shape): (&Stage, &Shape)| match stage {
            Stage::Map { program, .. } => (program.instructions().len() * shape.count()) as u64,
            Stage::Reduce { .. } => self.sizes.count() as u64,
            Stage::Pick { .. } => 0,
        };
        self.program.stages.iter().zip(&self.shapes).map(each).sum()
    }

    /// The same for other sizes.
    pub fn resized(&self, size: &dyn Fn(Dim) -> Dim) -> RowFusion {
        RowFusion {
            sizes: self.sizes.map(size),
            shapes: self.shapes.iter().map(|shape| shape.map(size)).collect(),
            hidden: self.hidden.iter().map(|(dtype, shape)| (*dtype, shape.map(size))).collect(),
            ..self.clone()
        }
    }
}

/// What a row is.
#[derive(Clone)]
struct Frame {
    sizes: Shape,
    columns: Axes,
}

/// Whether two lists of sizes agree but for axes of one element.
fn agree(a: &[Dim], b: &[Dim]) -> bool {
    let plain = |dims: &[Dim]| -> SmallVec<[Dim; 6]> {
        dims.iter().copied().filter(|&dim| dim != Dim::ONE).collect()
    };
    let (a, b) = (plain(a), plain(b));
    a.len() == b.len() && a.iter().zip(&b).all(|(a, b)| a.same(*b))
}

impl Frame {
    /// The frame of a reduction, if rows of it are worth a fusion.
    fn of(plan: &Plan, step: &Step, limits: &RowLimits) -> Option<Frame> {
        let (Work::Op(Op::Reduce(_, axes)), [Operand::Array(x)]) = (&step.work, &step.args[..])
        else {
            return None;
        };
        let frame = Frame { sizes: plan.ty(*x).shape, columns: axes.clone() };
        let rows = frame.sizes.reduce(axes, false).elements();
        let columns = axes.iter().fold(Dim::ONE, |all, &axis| all * frame.sizes[axis]);
        let counts = |dim: &Dim| dim.symbols().iter().any(|symbol| symbol.is_counted());
        if columns == Dim::ONE || frame.sizes.dims().iter().any(counts) {
            return None;
        }
        // Few long rows would leave most of the device idle.
        let is_short = columns.known().is_some_and(|columns| columns <= limits.short);
        let are_many = match rows.known() {
            Some(rows) => rows >= limits.few,
            None => true,
        };
        let fits = columns.known().is_none_or(|columns| columns <= limits.columns);
        ((is_short || are_many) && fits).then_some(frame)
    }

    fn rows(&self) -> Shape {
        self.sizes.reduce(&self.columns, false)
    }

    fn is_trailing(&self) -> bool {
        self.columns.last() == Some(&(self.sizes.rank() - 1))
    }

    /// The elements that follow each other in a row, where that is known.
    fn run(&self) -> Option<usize> {
        let trailing = (0..self.sizes.rank()).rev().take_while(|axis| self.columns.contains(axis));
        trailing.map(|axis| self.sizes[axis].known()).product()
    }

    fn is_wide(&self, shape: &Shape) -> bool {
        agree(shape.dims(), self.sizes.dims()) || shape.elements().same(self.sizes.elements())
    }

    fn is_narrow(&self, shape: &Shape) -> bool {
        let rows = self.rows();
        agree(shape.dims(), rows.dims()) || shape.elements().same(rows.elements())
    }

    /// Whether a narrow value of this shape goes to the elements of its rows in a shape.
    fn spreads(&self, own: &Shape, to: &Shape) -> bool {
        let Some(lead) = to.rank().checked_sub(own.rank()) else { return false };
        to.same(&self.sizes)
            && (0..to.rank()).all(|axis| {
                let size = axis.checked_sub(lead).map_or(Dim::ONE, |axis| own[axis]);
                if self.columns.contains(&axis) { size == Dim::ONE } else { size.same(to[axis]) }
            })
    }
}

/// A set that grows.
struct Build<'p> {
    plan: &'p Plan,
    frame: Frame,
    /// By slot of a member: its value, and whether it is wide
    values: FxHashMap<u32, (Value, bool)>,
    stages: Vec<Stage>,
    shapes: SmallVec<[Shape; 4]>,
    sources: SmallVec<[Source; 8]>,
    numbers: SmallVec<[Number; 4]>,
    /// What is indexed by which value, where something is
    picked: Option<(Value, Dim)>,
    /// Whether an operand is read elsewhere than where a result is written
    strays: SmallVec<[bool; 8]>,
    names: Vec<String>,
}

impl<'p> Build<'p> {
    /// The program of a set in the order of the plan; `None` where a step does not fit.
    fn new(plan: &'p Plan, frame: &Frame, made: &[u32], members: &[u32]) -> Option<Build<'p>> {
        let mut build = Build {
            plan,
            frame: frame.clone(),
            values: FxHashMap::default(),
            stages: Vec::new(),
            shapes: SmallVec::new(),
            sources: SmallVec::new(),
            numbers: SmallVec::new(),
            picked: None,
            strays: SmallVec::new(),
            names: Vec::new(),
        };
        members.iter().try_for_each(|&i| build.step(&plan.steps[i as usize], made))?;
        Some(build)
    }

    fn array(&mut self, source: Source, is_stray: bool) -> Value {
        let known = self.sources.iter().position(|&known| known == source);
        let k = known.unwrap_or_else(|| {
            self.sources.push(source);
            self.strays.push(false);
            self.sources.len() - 1
        });
        self.strays[k] |= is_stray;
        Value::Array(k)
    }

    fn member(&self, source: Source) -> Option<(Value, bool)> {
        match source {
            Source::Slot(slot) => self.values.get(&slot).copied(),
            Source::Input(_) | Source::Constant(_) => None,
        }
    }

    fn push(&mut self, step: &Step, stage: Stage, shape: Shape, is_wide: bool) {
        for (k, &slot) in step.results.iter().enumerate() {
            self.values.insert(slot, (Value::Made(self.stages.len(), k), is_wide));
        }
        self.stages.push(stage);
        self.shapes.push(shape);
        self.names.push(step.name());
    }

    fn step(&mut self, step: &Step, made: &[u32]) -> Option<()> {
        if let Some(Sequel { group, operands }) = self.plan.elementwise(step) {
            let shape = group.shape;
            let is_wide = self.frame.is_wide(&shape);
            if !is_wide && !self.frame.is_narrow(&shape) {
                return None;
            }
            let first = self.numbers.len();
            let mut arrays = SmallVec::new();
            for operand in operands {
                match operand {
                    Operand::Number(number) => self.numbers.push(number),
                    Operand::Array(source) => {
                        let own = self.plan.ty(source).shape;
                        arrays.push(match (self.member(source), is_wide) {
                            (None, _) => {
                                let is_stray = !is_wide || !own.same(&shape);
                                self.array(source, is_stray)
                            }
                            (Some((value, true)), true) if own.same(&shape) => value,
                            (Some((value, false)), true) if self.frame.spreads(&own, &shape) => {
                                value
                            }
                            (Some((value, false)), false) if agree(own.dims(), shape.dims()) => {
                                value
                            }
                            (Some(_), _) => return None,
                        });
                    }
                }
            }
            let stage = Stage::Map { program: group.program, arrays, first, is_wide };
            self.push(step, stage, shape, is_wide);
            return Some(());
        }
        let Work::Op(op) = &step.work else { return None };
        let source = |k: usize| match step.args.get(k) {
            Some(Operand::Array(source)) => Some(*source),
            Some(Operand::Number(_)) | None => None,
        };
        let of = source(0)?;
        let own = self.plan.ty(of).shape;
        #[allow(clippy::wildcard_enum_match_arm, reason = "no other op belongs to rows")]
        match op {
            Op::Reduce(kind, axes) if *axes == self.frame.columns => {
                if !own.same(&self.frame.sizes) {
                    return None;
                }
                let of = match self.member(of) {
                    Some((value, true)) => value,
                    Some((_, false)) => return None,
                    None => self.array(of, false),
                };
                self.push(step, Stage::Reduce { kind: *kind, of }, Shape::scalar(), false);
            }
            Op::Reshape(_) => {
                let value = self.member(of)?;
                self.values.insert(step.results[0], value);
            }
            Op::Gather => {
                let indices: Option<SmallVec<[Source; 4]>> =
                    (1..step.args.len()).map(source).collect();
                self.pick(step, made, (of, &own), &indices?)?;
            }
            _ => return None,
        }
        Some(())
    }

    /// A gather of one element for each row.
    fn pick(
        &mut self,
        step: &Step,
        made: &[u32],
        (of, own): (Source, &Shape),
        indices: &[Source],
    ) -> Option<()> {
        let result = &self.plan.slots[step.results[0] as usize].shape;
        let is_own = self.member(of).is_some();
        let (at, value) = if is_own {
            let (value, is_wide) = self.member(of)?;
            let [column] = self.frame.columns[..] else { return None };
            if !is_wide || !own.same(&self.frame.sizes) || indices.len() != own.rank() {
                return None;
            }
            if !self.frame.spreads(result, &self.frame.sizes) {
                return None;
            }
            // Along the other axes every row has its own index.
            let is_place = |(axis, &source): (usize, &Source)| {
                let Source::Slot(slot) = source else { return axis == column };
                let maker = made.get(slot as usize).and_then(|&i| self.plan.steps.get(i as usize));
                let is_line = |step: &Step| {
                    matches!(&step.work, Work::Op(Op::Iota(ty, along))
                        if ty.shape.rank() == own.rank()
                            && *along == axis
                            && ty.shape[axis].same(own[axis]))
                };
                axis == column || maker.is_some_and(is_line)
            };
            if !indices.iter().enumerate().all(is_place) {
                return None;
            }
            (column, value)
        } else {
            if indices.len() != 1 || own.rank() != 1 || !self.frame.is_narrow(result) {
                return None;
            }
            (0, self.array(of, true))
        };
        let source = indices[at];
        let shape = self.plan.ty(source).shape;
        let index = match self.member(source) {
            Some((index, false)) => index,
            Some((_, true)) => return None,
            None if is_own && agree(shape.dims(), self.frame.rows().dims()) => {
                self.array(source, true)
            }
            None => return None,
        };
        // One index is checked, which says whether all is well.
        let size = own[at];
        match &self.picked {
            Some((known, of)) if *known != index || !of.same(size) => return None,
            Some(_) | None => self.picked = Some((index, size)),
        }
        let sizes: Shape = own.dims()[..=at].iter().copied().collect();
        let stage = Stage::Pick { of: value, index, sizes: sizes.clone(), is_own };
        self.push(step, stage, sizes, false);
        Some(())
    }

    /// By stage: how many reductions one after the other it needs.
    fn levels(&self) -> Vec<usize> {
        let mut levels: Vec<usize> = Vec::with_capacity(self.stages.len());
        for stage in &self.stages {
            let of = |value: &Value| match *value {
                Value::Array(_) => 0,
                Value::Made(stage, _) => levels[stage],
            };
            levels.push(match stage {
                Stage::Map { arrays, .. } => arrays.iter().map(of).max().unwrap_or(0),
                Stage::Reduce { of: x, .. } => of(x) + 1,
                Stage::Pick { of: x, index, .. } => of(x).max(of(index)),
            });
        }
        levels
    }
}

/// Whether an elementwise step is so little work that it may be done again for each pass over a
/// row.
fn is_cheap(plan: &Plan, step: &Step, limits: &RowLimits) -> bool {
    let Some(Sequel { group, .. }) = plan.elementwise(step) else { return false };
    let is_plain = |op: ElementOp| match op {
        ElementOp::Cast => true,
        ElementOp::Map(def) => PLAIN.contains(&def.name),
    };
    let instructions = group.program.instructions();
    instructions.len() <= limits.again && instructions.iter().all(|made| is_plain(made.op))
}

/// Steps and who reads them, with the sets that were found.
struct Search<'p> {
    plan: &'p Plan,
    limits: RowLimits,
    made: Vec<u32>,
    readers: Vec<SmallVec<[u32; 4]>>,
    is_result: Vec<bool>,
    /// By step: its set
    set: Vec<Option<u32>>,
    sets: Vec<Vec<u32>>,
}

impl<'p> Search<'p> {
    fn new(plan: &'p Plan, limits: RowLimits) -> Search<'p> {
        let slots = plan.slots.len();
        let mut readers: Vec<SmallVec<[u32; 4]>> = vec![SmallVec::new(); slots];
        for (i, step) in plan.steps.iter().enumerate() {
            for arg in &step.args {
                if let Operand::Array(Source::Slot(slot)) = *arg {
                    readers[slot as usize].push(i as u32);
                }
            }
        }
        let mut is_result = vec![false; slots];
        for source in &plan.template.outputs {
            if let Source::Slot(slot) = *source {
                is_result[slot as usize] = true;
            }
        }
        let made = makers(&plan.steps, slots);
        let set = vec![None; plan.steps.len()];
        Search { plan, limits, made, readers, is_result, set, sets: Vec::new() }
    }

    fn after(&self, step: u32) -> impl Iterator<Item = u32> + '_ {
        let slots = &self.plan.steps[step as usize].results;
        slots.iter().flat_map(|&slot| self.readers[slot as usize].iter().copied())
    }

    fn before(&self, step: u32) -> impl Iterator<Item = u32> + '_ {
        self.plan.steps[step as usize].args.iter().filter_map(|arg| match *arg {
            Operand::Array(Source::Slot(slot)) => Some(self.made[slot as usize]),
            Operand::Array(Source::Input(_) | Source::Constant(_)) | Operand::Number(_) => None,
        })
    }

    /// Whether no path leaves these steps and comes back, through other sets too.
    fn is_closed(&self, members: &[u32]) -> bool {
        let mut seen = vec![false; self.plan.steps.len()];
        let mut open: Vec<u32> = Vec::new();
        let is_member = |step: u32| members.binary_search(&step).is_ok();
        for &member in members {
            open.extend(self.after(member).filter(|&step| !is_member(step)));
        }
        let mut count = 0;
        while let Some(step) = open.pop() {
            if std::mem::replace(&mut seen[step as usize], true) {
                continue;
            }
            count += 1;
            if is_member(step) || count > SEEN {
                return false;
            }
            open.extend(self.after(step));
            if let Some(set) = self.set[step as usize] {
                open.extend(self.sets[set as usize].iter().filter(|&&step| !seen[step as usize]));
            }
        }
        true
    }

    /// Grows a set from a reduction.
    fn grow(&self, seed: u32) -> Option<Vec<u32>> {
        let frame = Frame::of(self.plan, &self.plan.steps[seed as usize], &self.limits)?;
        let mut members = vec![seed];
        // In the order in which they came, so that the last can leave again.
        let mut came = vec![seed];
        let mut refused: Vec<u32> = Vec::new();
        loop {
            let mut near: Vec<(u32, bool)> = Vec::new();
            for &member in &members {
                near.extend(self.after(member).map(|step| (step, true)));
            }
            for &member in &members {
                near.extend(self.before(member).map(|step| (step, false)));
            }
            let fits = |&(step, goes_down): &(u32, bool)| {
                let is_new = !members.contains(&step)
                    && self.set[step as usize].is_none()
                    && !refused.contains(&step);
                let reads = self.before(step).any(|from| members.contains(&from));
                // What is read first is computed again in every pass.
                let pays = goes_down
                    || reads
                    || (frame.is_trailing()
                        && is_cheap(self.plan, &self.plan.steps[step as usize], &self.limits));
                is_new && pays
            };
            let Some(next) = near.iter().filter(|step| fits(step)).find_map(|&(step, _)| {
                let mut with = members.clone();
                with.push(step);
                with.sort_unstable();
                let build = Build::new(self.plan, &frame, &self.made, &with)?;
                let is_small = build.stages.len() <= self.limits.stages
                    && build.levels().into_iter().max() <= Some(self.limits.passes);
                (is_small && self.is_closed(&with)).then_some((step, with))
            }) else {
                break;
            };
            refused.clear();
            came.push(next.0);
            members = next.1;
        }
        while came.len() > 1 {
            if self.merge(&frame, &members).is_some() {
                return Some(members);
            }
            let last = came.pop()?;
            members.retain(|&step| step != last);
        }
        None
    }

    /// The steps that replace a set; `None` where they would not be faster, or cannot be.
    fn merge(&self, frame: &Frame, members: &[u32]) -> Option<Vec<Step>> {
        let plan = self.plan;
        let build = Build::new(plan, frame, &self.made, members)?;
        let levels = build.levels();
        let wide = |(stage, level): (&Stage, &usize)| {
            let is_wide = matches!(stage, Stage::Map { is_wide: true, .. });
            is_wide && (frame.is_trailing() || *level > 0)
        };
        let is_any = build.stages.iter().zip(&levels).any(wide);
        if build.stages.len() < 2 || !is_any || !self.is_closed(members) {
            return None;
        }
        let mut outside: SmallVec<[u32; 4]> = SmallVec::new();
        let mut results: SmallVec<[u32; 2]> = SmallVec::new();
        let mut cut = Cut::Result;
        for &i in members.iter().rev() {
            let step = &plan.steps[i as usize];
            let mut goes_out = false;
            for &slot in &step.results {
                let mut is_read = self.is_result[slot as usize];
                for reader in &self.readers[slot as usize] {
                    if !members.contains(reader) {
                        let name = plan.steps[*reader as usize].name_of_work();
                        cut = stronger(cut, Cut::Opaque(name));
                        is_read = true;
                    }
                    is_read |= outside.contains(reader);
                }
                if is_read && !is_movement(step) {
                    results.push(slot);
                }
                goes_out |= is_read;
            }
            if goes_out && is_movement(step) {
                outside.push(i);
            }
        }
        outside.reverse();
        results.reverse();
        // Rows that share a word of memory would have to be written together.
        let shares = |&slot: &u32| {
            let (size, is_wide) = (plan.slots[slot as usize].dtype.size(), build.values[&slot].1);
            let is_whole = frame.run().is_some_and(|run| run.is_multiple_of(4));
            size < 4 && !(is_wide && frame.is_trailing() && is_whole)
        };
        let bound = build.sources.len() + results.len() + usize::from(build.picked.is_some());
        if results.is_empty() || results.iter().any(shares) || bound > plan.target.limits().buffers
        {
            return None;
        }
        let mut all = vec![self.step(frame, members, build, &results, cut)];
        all.extend(outside.iter().map(|&i| plan.steps[i as usize].clone()));
        Some(all)
    }

    fn step(
        &self,
        frame: &Frame,
        members: &[u32],
        build: Build<'_>,
        results: &[u32],
        cut: Cut,
    ) -> Step {
        let plan = self.plan;
        let steps = || members.iter().map(|&i| &plan.steps[i as usize]);
        let mut nodes: SmallVec<[_; 4]> = steps().flat_map(|step| step.nodes.clone()).collect();
        nodes.sort_unstable_by_key(|id| id.0);
        // Refusals speak of the line of the op that refuses.
        let refuses = |step: &&Step| matches!(&step.work, Work::Op(op) if op.refuses());
        let site = steps().find(refuses).or_else(|| steps().next_back());
        let arrays: Vec<DType> =
            build.sources.iter().map(|&source| plan.ty(source).dtype).collect();
        // Elements of other columns are picked while results are written.
        let is_picked =
            (build.stages.iter()).any(|stage| matches!(stage, Stage::Pick { is_own: true, .. }));
        let program = RowProgram {
            results: results.iter().map(|slot| build.values[slot]).collect(),
            stages: build.stages,
            arrays,
            names: build.names.join(", "),
        };
        let hidden = steps()
            .filter(|step| !is_movement(step))
            .flat_map(|step| step.results.iter())
            .filter(|slot| !results.contains(slot))
            .map(|&slot| (plan.slots[slot as usize].dtype, plan.slots[slot as usize].shape.clone()))
            .collect();
        let fusion = RowFusion {
            program: Arc::new(program),
            sizes: frame.sizes.clone(),
            columns: frame.columns.clone(),
            shapes: build.shapes,
            spent: (build.strays.iter().zip(&build.sources))
                .map(|(&strays, &source)| {
                    !strays && !is_picked && plan.ty(source).shape.same(&frame.sizes)
                })
                .collect(),
            hidden,
        };
        let numbers = build.numbers.into_iter().map(Operand::Number);
        let template = StepTemplate {
            args: build.sources.iter().map(|&x| Operand::Array(x)).chain(numbers).collect(),
            results: results.iter().copied().collect(),
            cut,
            nodes,
            site: site.map_or_else(Default::default, |step| step.site),
        };
        Step::new(Work::RowFusion(Box::new(fusion)), template)
    }
}

impl Plan {
    /// Joins steps that compute rows, where the target offers that.
    pub(in super::super) fn fuse_rows(&mut self) {
        let Some(limits) = self.target.limits().rows else { return };
        let mut search = Search::new(self, limits);
        let is_seed = |&i: &u32| matches!(&self.steps[i as usize].work, Work::Op(Op::Reduce(..)));
        let mut seeds: Vec<u32> = (0..self.steps.len() as u32).filter(is_seed).collect();
        // Rows that lie without gaps first.
        seeds.sort_by_key(|&i| {
            let frame = Frame::of(self, &self.steps[i as usize], &limits);
            !frame.is_some_and(|frame| frame.is_trailing())
        });
        let mut taken: Vec<Option<Vec<Step>>> = (0..self.steps.len()).map(|_| None).collect();
        for seed in seeds {
            if search.set[seed as usize].is_some() {
                continue;
            }
            let Some(members) = search.grow(seed) else { continue };
            let frame = Frame::of(self, &self.steps[seed as usize], &limits);
            let Some(steps) = frame.and_then(|frame| search.merge(&frame, &members)) else {
                continue;
            };
            for &member in &members {
                taken[member as usize] = Some(Vec::new());
                search.set[member as usize] = Some(search.sets.len() as u32);
            }
            if let Some(&last) = members.last() {
                taken[last as usize] = Some(steps);
            }
            search.sets.push(members);
        }
        if search.sets.is_empty() {
            return;
        }
        let steps = self.steps.drain(..).zip(taken);
        let all: Vec<Step> =
            steps.flat_map(|(step, taken)| taken.unwrap_or_else(|| vec![step])).collect();
        let order = Graph::new(&all, self.slots.len()).by_key(|step| step);
        self.steps = all;
        self.reorder(&order);
    }
}
