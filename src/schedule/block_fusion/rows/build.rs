//! Sets of steps as programs of rows.

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::super::super::{Number, Operand, Plan, Sequel, Source, Step, Work};
use super::{Stage, Value};
use crate::dtype::DType;
use crate::ops::op::Op;
use crate::shape::{Axes, Dim, Shape};
use crate::target::RowLimits;

/// What a row is.
#[derive(Clone)]
pub struct Frame {
    pub sizes: Shape,
    pub columns: Axes,
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
    pub fn of(plan: &Plan, step: &Step, limits: &RowLimits) -> Option<Frame> {
        let (Work::Op(Op::Reduce(_, axes)), [Operand::Array(x)]) = (&step.work, &step.args[..])
        else {
            return None;
        };
        Frame::over(&plan.ty(*x).shape, axes, limits)
    }

    /// The frame of reductions of these sizes along axes, if rows of it are worth a fusion.
    pub fn over(sizes: &Shape, axes: &Axes, limits: &RowLimits) -> Option<Frame> {
        let frame = Frame { sizes: sizes.clone(), columns: axes.clone() };
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

    pub fn rows(&self) -> Shape {
        self.sizes.reduce(&self.columns, false)
    }

    pub fn is_trailing(&self) -> bool {
        self.columns.last() == Some(&(self.sizes.rank() - 1))
    }

    /// The elements that follow each other in a row, where that is known.
    pub fn run(&self) -> Option<usize> {
        let trailing = (0..self.sizes.rank()).rev().take_while(|axis| self.columns.contains(axis));
        trailing.map(|axis| self.sizes[axis].known()).product()
    }

    fn is_wide(&self, shape: &Shape) -> bool {
        agree(shape.dims(), self.sizes.dims()) || shape.elements().same(self.sizes.elements())
    }

    pub fn is_narrow(&self, shape: &Shape) -> bool {
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
pub struct Build<'p> {
    plan: &'p Plan,
    frame: Frame,
    /// By slot of a member: its value, and whether it is wide
    pub values: FxHashMap<u32, (Value, bool)>,
    pub stages: Vec<Stage>,
    pub shapes: SmallVec<[Shape; 4]>,
    pub sources: SmallVec<[Source; 8]>,
    pub numbers: SmallVec<[Number; 4]>,
    /// What is indexed by which value, where something is
    pub picked: Option<(Value, Dim)>,
    /// Whether an operand is read elsewhere than where a result is written
    pub strays: SmallVec<[bool; 8]>,
    pub names: Vec<String>,
}

impl<'p> Build<'p> {
    /// The program of a set in the order of the plan; `None` where a step does not fit.
    pub fn new(plan: &'p Plan, frame: &Frame, made: &[u32], members: &[u32]) -> Option<Build<'p>> {
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
                        if let Some(line) = self.line(source, &shape, made) {
                            arrays.push(line);
                            continue;
                        }
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

    /// The value that a reshape outside the set shows: one index that is seen under two shapes is
    /// one.
    fn unshaped(&self, mut source: Source, made: &[u32]) -> Source {
        while let (Source::Slot(slot), None) = (source, self.member(source))
            && let Some(step) =
                made.get(slot as usize).and_then(|&i| self.plan.steps.get(i as usize))
            && let (Work::Op(Op::Reshape(_)), [Operand::Array(of)]) = (&step.work, &step.args[..])
        {
            source = *of;
        }
        source
    }

    /// The dtype and the axis of a value that counts along an axis, if it is one.
    fn counted(&self, source: Source, made: &[u32]) -> Option<(DType, usize)> {
        let Source::Slot(slot) = source else { return None };
        let step = self.plan.steps.get(*made.get(slot as usize)? as usize)?;
        let Work::Op(Op::Iota(ty, axis)) = &step.work else { return None };
        Some((ty.dtype, *axis))
    }

    /// What counts along the row in a shape of the frame is not read.
    fn line(&mut self, source: Source, shape: &Shape, made: &[u32]) -> Option<Value> {
        let [column] = self.frame.columns[..] else { return None };
        let own = self.plan.ty(source).shape;
        let axis = (column + own.rank()).checked_sub(shape.rank())?;
        let base = self.unshaped(source, made);
        let (dtype, along) = self.counted(base, made)?;
        let is_same = base == source && along == axis;
        let is_only = own.elements().same(own[axis]) && self.plan.ty(base).shape.rank() == 1;
        let fits = shape.same(&self.frame.sizes) && own[axis].same(shape[column]);
        (fits && (is_same || is_only)).then(|| self.line_of(dtype))
    }

    fn line_of(&mut self, dtype: DType) -> Value {
        let is_it = |stage: &Stage| matches!(stage, Stage::Line(known) if *known == dtype);
        let known = self.stages.iter().position(is_it);
        let stage = known.unwrap_or_else(|| {
            self.stages.push(Stage::Line(dtype));
            self.shapes.push(Shape::scalar());
            self.names.push("iota".to_owned());
            self.stages.len() - 1
        });
        Value::Made(stage, 0)
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
            let line = self.counted(of, made).map(|(dtype, _)| self.line_of(dtype));
            (0, line.unwrap_or_else(|| self.array(of, true)))
        };
        let shape = self.plan.ty(indices[at]).shape;
        let source = self.unshaped(indices[at], made);
        let index = match self.member(source) {
            Some((index, false)) => index,
            Some((_, true)) => return None,
            None if agree(shape.dims(), self.frame.rows().dims()) => self.array(source, true),
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
    pub fn levels(&self) -> Vec<usize> {
        let mut levels: Vec<usize> = Vec::with_capacity(self.stages.len());
        for stage in &self.stages {
            let of = |value: &Value| match *value {
                Value::Array(_) => 0,
                Value::Made(stage, _) => levels[stage],
            };
            levels.push(match stage {
                Stage::Map { arrays, .. } => arrays.iter().map(of).max().unwrap_or(0),
                Stage::Reduce { of: x, .. } => of(x) + 1,
                Stage::Line(_) => 0,
                Stage::Pick { of: x, index, .. } => of(x).max(of(index)),
            });
        }
        levels
    }
}
