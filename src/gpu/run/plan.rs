//! Plans on a device: their steps are recorded one after the other and given together.
//!
//! A run waits only where the host must look at a value: at conditions of control flow, at what is
//! printed, and at operands of host ops.
//!
//! A run takes one buffer for all values that live and die in it, and the plan says where they lie
//! there; its results have buffers of their own, or those of inputs that were given. The last steps
//! write these, and if something can still fail, they look first at a flag whether it has.

use std::sync::Arc;

use smallvec::SmallVec;

use super::device::Gpu;
use super::executor::{Given, Into};
use super::key::What;
use super::memory::{Buffer, Held, Memory, Span, is_sole, own};
use super::work::Recording;
use crate::array::{Array, Data};
use crate::dtype::{DType, Scalar};
use crate::error::{self, Result};
use crate::executor::flight;
use crate::executor::{Executable, Giving, Input, Results, hooks, located};
use crate::graph::Effect;
use crate::ops::op::{Op, OperandType, Type};
use crate::schedule::{self, Number, Placement, Plan, Sequel, Source, Step, Template, Work};
use crate::shape::Shape;
use crate::site::Site;

/// Commands of a run after which they are given in parts.
const MOST_COMMANDS: usize = 1 << 12;

/// A template whose plans are recorded step by step; kernels are kept by the device.
pub struct Program {
    gpu: &'static Gpu,
    template: Arc<Template>,
}

impl Program {
    /// The program of a template.
    pub fn new(gpu: &'static Gpu, template: Arc<Template>) -> Program {
        Program { gpu, template }
    }
}

impl Executable for Program {
    fn template(&self) -> &Arc<Template> {
        &self.template
    }

    fn run(&self, plan: &Arc<Plan>, inputs: &[&Array], numbers: &[Scalar]) -> Result<Results> {
        let mut inputs: SmallVec<[Input<'_>; 8]> = inputs.iter().map(|&x| Input::Lent(x)).collect();
        self.run_with(plan, &mut inputs, numbers)
    }

    fn run_with(
        &self,
        plan: &Arc<Plan>,
        inputs: &mut [Input<'_>],
        numbers: &[Scalar],
    ) -> Result<Results> {
        if !Arc::ptr_eq(plan.template(), &self.template) {
            return Err(error::internal("a plan was run by the executable of another"));
        }
        let _giving = Giving::new(inputs.iter().any(|input| matches!(input, Input::Given(_))));
        let mut tape = Tape { gpu: self.gpu, numbers, recording: Recording::default() };
        let mut held = Vec::with_capacity(inputs.len());
        let mut given: SmallVec<[bool; 8]> = SmallVec::new();
        for input in inputs.iter() {
            let x = input.array()?;
            held.push(self.gpu.held(x, &mut tape.recording)?);
            given.push(matches!(input, Input::Given(_)) && self.gives(x, &held[held.len() - 1]));
        }
        let results = tape.plan(plan, &held, &given)?;
        // Which results lie in the memory of which inputs.
        let lies_in = |&&(input, output): &&(u32, u32)| {
            let (old, new) = (&held[input as usize], &results[output as usize]);
            given[input as usize] && Arc::ptr_eq(&old.span.buffer, &new.span.buffer)
        };
        let over: SmallVec<[(u32, u32); 8]> =
            plan.memory().aliases().iter().filter(lies_in).copied().collect();
        let mut values: Results =
            self.gpu.values("call", results, tape.recording)?.into_iter().collect();
        for (input, output) in over {
            if let Input::Given(place) = &mut inputs[input as usize]
                && let Some(old) = place.take()
            {
                let value = &mut values[output as usize];
                *value = self.replacing(&old, value)?;
            }
        }
        Ok(values)
    }
}

impl Program {
    /// Whether a result may be written over an input.
    fn gives(&self, x: &Array, held: &Held) -> bool {
        let lies_there = |memory: &Memory| Arc::ptr_eq(&memory.place.buffer, &held.span.buffer);
        is_sole(x) && own(x).is_ok_and(|x| x.is_some_and(lies_there))
    }

    /// A value that was written over another, which stands there again if the work fails: then it
    /// wrote nothing.
    fn replacing(&self, old: &Array, new: &Array) -> Result<Array> {
        let (Some(old), Some(memory)) = (own(old)?, own(new)?) else { return Ok(new.clone()) };
        let mut before = old.clone();
        before.place = before.place.uncounted();
        Ok(match flight::replacing(Some(&before), memory) {
            Some(memory) => Array { data: Data::on(self.gpu.device(), memory), ..new.clone() },
            None => new.clone(),
        })
    }
}

/// A run that is recorded.
pub(super) struct Tape<'a> {
    pub(super) gpu: &'static Gpu,
    numbers: &'a [Scalar],
    pub(super) recording: Recording,
}

/// A plan that is recorded: a run, or a body of control flow.
pub(super) struct Frame<'a> {
    plan: &'a Plan,
    inputs: &'a [Held],
    slots: Vec<Option<Held>>,
    constants: Vec<Option<Held>>,
    /// The memory of values that live and die here
    arena: Option<Arc<Buffer>>,
    /// The memory of results, as far as it is known, and whether it is that of an input
    dedicated: Vec<Option<(Arc<Buffer>, bool)>>,
}

impl Tape<'_> {
    /// Records a plan; the memory of inputs that are given may become that of results.
    pub(super) fn plan(
        &mut self,
        plan: &Plan,
        inputs: &[Held],
        given: &[bool],
    ) -> Result<Vec<Held>> {
        if inputs.len() != plan.inputs().len() {
            return Err(error::internal("a plan was run on the wrong count of inputs"));
        }
        let mut frame = self.frame(plan, inputs, given)?;
        for (i, step) in plan.steps().iter().enumerate() {
            let results =
                self.step(&mut frame, i, step).map_err(|refusal| located(refusal, step.site))?;
            for (&slot, result) in step.results.iter().zip(results) {
                frame.slots[slot as usize] = Some(result);
            }
            for &slot in &step.last {
                if let Some(x) = frame.slots[slot as usize].take() {
                    self.recording.release(x.span.buffer);
                }
            }
        }
        let outputs = plan.outputs().iter();
        let results: Vec<Held> =
            outputs.map(|&source| self.array(&mut frame, source)).collect::<Result<_>>()?;
        let Frame { slots, arena, dedicated, .. } = frame;
        self.forget(slots.into_iter().flatten());
        for (buffer, is_input) in dedicated.into_iter().flatten() {
            if !is_input {
                self.recording.release(buffer);
            }
        }
        if let Some(arena) = arena {
            if results.iter().any(|x| Arc::ptr_eq(&x.span.buffer, &arena)) {
                return Err(error::internal("a result lies where others will"));
            }
            self.recording.release(arena);
        }
        Ok(results)
    }

    fn frame<'p>(
        &mut self,
        plan: &'p Plan,
        inputs: &'p [Held],
        given: &[bool],
    ) -> Result<Frame<'p>> {
        let memory = plan.memory();
        // Shaders bind no more of it than their operands.
        let arena = match memory.arena {
            0 => None,
            bytes => {
                let length = self.gpu.rounded_arena(bytes as u64)?;
                Some(self.recording.sized(self.gpu, length)?)
            }
        };
        // Puts by index say what they refuse only when they write.
        let last_put = memory.guards.1.iter().max();
        let dedicated = memory.dedicated.iter().map(|dedicated| {
            let is_behind = last_put.is_none_or(|&put| dedicated.first > put);
            let input =
                dedicated.alias.filter(|&i| is_behind && given.get(i as usize) == Some(&true));
            let buffer = &inputs[input? as usize].span.buffer;
            (buffer.bytes >= dedicated.bytes as u64).then(|| (buffer.clone(), true))
        });
        let dedicated = dedicated.collect();
        let (slots, constants) =
            (vec![None; plan.slots().len()], vec![None; plan.constants().len()]);
        Ok(Frame { plan, inputs, slots, constants, arena, dedicated })
    }

    /// To be called with arrays that are wanted no more.
    pub(super) fn forget(&mut self, arrays: impl IntoIterator<Item = Held>) {
        arrays.into_iter().for_each(|x| self.recording.release(x.span.buffer));
    }

    /// The memory of a result, and whether it is that of an input; none where the result takes a
    /// buffer of its own.
    pub(super) fn place(
        &mut self,
        frame: &mut Frame<'_>,
        slot: u32,
    ) -> Result<Option<(Span, bool)>> {
        let ty = &frame.plan.slots()[slot as usize];
        let memory = frame.plan.memory();
        let Some(Placement::Fixed(which, layout)) = memory.placements.get(slot as usize) else {
            return Ok(None);
        };
        if ty.shape.count() == 0 || !layout.is_contiguous() {
            return Ok(None);
        }
        let target = frame.plan.target();
        let bytes = target.bytes(ty.dtype, ty.shape.count()) as u64;
        let start = (layout.offset() * target.stored(ty.dtype)) as u64;
        let Some(k) = which.checked_sub(1) else {
            let arena = frame.arena.clone();
            return Ok(arena.map(|buffer| (Span { buffer, start, bytes }, false)));
        };
        let place = &mut frame.dedicated[k as usize];
        let (buffer, is_input) = match place {
            Some(known) => known.clone(),
            None => {
                let length = self.gpu.rounded_arena(memory.dedicated[k as usize].bytes as u64)?;
                place.insert((self.recording.sized(self.gpu, length)?, false)).clone()
            }
        };
        Ok(Some((Span { buffer, start, bytes }, is_input)))
    }

    fn array(&mut self, frame: &mut Frame<'_>, source: Source) -> Result<Held> {
        let found = match source {
            Source::Input(i) => frame.inputs.get(i as usize).cloned(),
            Source::Slot(i) => frame.slots[i as usize].clone(),
            Source::Constant(i) => {
                let place = &mut frame.constants[i as usize];
                if place.is_none() {
                    let x = &frame.plan.constants()[i as usize];
                    *place = Some(self.gpu.constant(x, &mut self.recording)?);
                }
                place.clone()
            }
        };
        found.ok_or_else(|| error::internal(format!("{source} is not there")))
    }

    pub(super) fn number(&self, number: Number) -> Scalar {
        match number {
            Number::Constant(value) => value,
            Number::Input(i) => self.numbers[i as usize],
        }
    }

    fn step(&mut self, frame: &mut Frame<'_>, i: usize, step: &Step) -> Result<Vec<Held>> {
        self.pace()?;
        let plan = frame.plan;
        self.recording.timed = self.gpu.timed(step.site, || (step.name(), plan.flops(step)));
        if let Work::Group(_) = &step.work
            && let Some(Sequel { group, operands }) = plan.elementwise(step)
        {
            let (mut held, mut numbers) = (Vec::new(), Vec::new());
            for operand in &operands {
                match *operand {
                    schedule::Operand::Array(x) => held.push(self.array(frame, x)?),
                    schedule::Operand::Number(number) => numbers.push(self.number(number)),
                }
            }
            let shape = match group.shape.is_known() {
                true => group.shape.clone(),
                false => joint(&held)?,
            };
            let types: Vec<Type> =
                group.program.dtypes().map(|dtype| Type::new(dtype, shape.clone())).collect();
            let given = held.iter().map(Given::Held);
            let given: SmallVec<[Given<'_>; 8]> =
                given.chain(numbers.into_iter().map(Given::Number)).collect();
            let what = What::Group(group.program.clone(), shape);
            let into = self.into(frame, step)?;
            let made =
                self.gpu.record(&what, &given, &types, step.site, &into, &mut self.recording)?;
            return Ok(made.into_vec());
        }
        let mut args: SmallVec<[Option<Held>; 4]> = SmallVec::new();
        for operand in &step.args {
            args.push(match *operand {
                schedule::Operand::Array(x) => Some(self.array(frame, x)?),
                schedule::Operand::Number(_) => None,
            });
        }
        if let Work::Product(product) = &step.work {
            return self.product(frame, product, &args, step);
        }
        let arrays = || args.iter().flatten().cloned().collect::<Vec<Held>>();
        match &step.work {
            Work::Op(Op::Call(call)) => {
                let op = Op::Call(call.clone());
                let slots = step.results.iter().map(|&slot| plan.slots()[slot as usize].clone());
                let mut types: Vec<Type> = slots.collect();
                if types.iter().any(|ty| !ty.shape.is_known()) {
                    types = op.infer_all(&types_of(&self.given(&args, step)))?.into_vec();
                }
                self.fused(frame, &What::Op(op), types, &args, step)
            }
            Work::Op(op) => {
                let given = self.given(&args, step);
                if let Some(seen) = self.view(frame, i, op, &given) {
                    return Ok(vec![seen]);
                }
                let place = match plan.memory().views.get(i) {
                    Some(false) => self.place(frame, step.results[0])?,
                    Some(true) | None => None,
                };
                Ok(vec![self.placed(op, &given, step.site, place)?])
            }
            Work::Alias => Ok(arrays()),
            Work::Effect(effect) => self.effect(arrays(), effect, step.site).map(|()| Vec::new()),
            Work::ControlFlow(bodies) => {
                let own = arrays();
                let made = self.flow(own.clone(), bodies)?;
                // The plan knows of no result that lies where an operand does.
                let is_apart =
                    |y: &Held| own.iter().all(|x| !Arc::ptr_eq(&x.span.buffer, &y.span.buffer));
                let apart = made.into_iter().map(|y| match is_apart(&y) {
                    true => Ok(y),
                    false => self.gpu.copied(&y, step.site, &mut self.recording),
                });
                apart.collect()
            }
            Work::RowFusion(fusion) => {
                let types = step.results.iter().map(|&slot| plan.slots()[slot as usize].clone());
                self.fused(frame, &What::Rows(fusion.clone()), types.collect(), &args, step)
            }
            Work::Group(_) | Work::Product(_) | Work::BlockFusion(_) => {
                Err(error::internal(format!("the device offers no {}", step.name())))
            }
        }
    }

    /// Gives what is recorded, where it is long, and goes on.
    fn pace(&mut self) -> Result<()> {
        if self.recording.commands.len() >= MOST_COMMANDS && self.recording.flag.is_none() {
            let recording = std::mem::take(&mut self.recording);
            let may_fail = !(recording.needs.is_empty() && recording.faults.is_empty());
            let job = self.gpu.give("call", recording)?;
            self.recording.needs.extend(may_fail.then_some(job));
        }
        Ok(())
    }

    /// The operand seen in another way, if that is what an op does. Where the plan computes the
    /// result, memory of the plan's is not looked at longer than it says.
    fn view(&self, frame: &Frame<'_>, i: usize, op: &Op, given: &[Given<'_>]) -> Option<Held> {
        let [Given::Held(x)] = given else { return None };
        let layout = op.view(x.dtype, &x.layout)?;
        let is_planned = frame.plan.memory().views.get(i) == Some(&true);
        let is = |own: &Arc<Buffer>| Arc::ptr_eq(own, &x.span.buffer);
        let is_planned_memory = frame.arena.as_ref().is_some_and(is)
            || frame.dedicated.iter().flatten().any(|(own, _)| is(own));
        (is_planned || !is_planned_memory).then(|| x.seen(layout))
    }

    /// One op, whose result may have a place.
    fn placed(
        &mut self,
        op: &Op,
        given: &[Given<'_>],
        site: Site,
        place: Option<(Span, bool)>,
    ) -> Result<Held> {
        let ty = op.infer(&types_of(given))?;
        let flag = match &place {
            Some((_, true)) => self.gpu.verdict(&mut self.recording)?,
            Some((_, false)) | None => None,
        };
        let (span, after) = match (place, flag) {
            (Some((span, _)), Some(flag)) => (None, Some((span, flag))),
            (place, _) => (place.map(|(span, _)| span), None),
        };
        let into = Into { spans: SmallVec::from_iter([span]), flag: None };
        let what = What::Op(op.clone());
        let made = self.gpu.record(&what, given, &[ty], site, &into, &mut self.recording);
        let made = made?.swap_remove(0);
        let Some((span, flag)) = after else { return Ok(made) };
        let bytes = span.bytes as usize;
        self.gpu.copy_guarded(&made.span, &span, bytes, flag, &mut self.recording);
        let over = Held { span, ..made.clone() };
        self.forget([made]);
        Ok(over)
    }

    /// One op, which may be a view, and whose result has a buffer of its own.
    pub(super) fn op(&mut self, op: &Op, given: &[Given<'_>], site: Site) -> Result<Held> {
        if let [Given::Held(x)] = given
            && let Some(layout) = op.view(x.dtype, &x.layout)
        {
            return Ok(x.seen(layout));
        }
        self.placed(op, given, site, None)
    }

    /// The array in host memory. What is recorded is given before.
    pub(super) fn look(&mut self, x: Held) -> Result<Array> {
        self.flush()?;
        self.gpu.read(x, Recording::default())
    }

    /// Gives what is recorded, and raises what it refuses.
    fn flush(&mut self) -> Result<()> {
        let recording = std::mem::take(&mut self.recording);
        let may_fail = !(recording.needs.is_empty() && recording.faults.is_empty());
        let job = self.gpu.give("call", recording)?;
        match may_fail {
            true => self.gpu.settled(&job),
            false => Ok(()),
        }
    }

    pub(super) fn integer(&mut self, x: Held) -> Result<i64> {
        let x = self.op(&Op::Cast(DType::I64), &[Given::Held(&x)], Site::default())?;
        let x = self.look(x)?;
        // SAFETY: the array is a scalar of int64.
        Ok(unsafe { x.ptr().cast::<i64>().read_unaligned() })
    }

    fn effect(&mut self, arrays: Vec<Held>, effect: &Effect, site: Site) -> Result<()> {
        match effect {
            Effect::Check(message) => {
                let given = Given::Held(&arrays[0]);
                let truth = self.op(&Op::Cast(DType::Bool), &[given], site)?;
                let truth = self.look(truth)?;
                // SAFETY: a contiguous array of bools, one byte each.
                let bytes = unsafe { std::slice::from_raw_parts(truth.ptr(), truth.count()) };
                match bytes.iter().position(|&byte| byte == 0) {
                    None => Ok(()),
                    Some(i) => Err(Effect::failed(message, truth.shape(), i)),
                }
            }
            Effect::Print(text) => {
                let arrays =
                    arrays.into_iter().map(|x| self.look(x)).collect::<Result<Vec<_>>>()?;
                match hooks() {
                    Some(hooks) => (hooks.print)(text, &arrays),
                    None => Err(error::internal("nobody installed what prints")),
                }
            }
        }
    }
}

/// Operands as type rules see them.
fn types_of<'a>(given: &'a [Given<'_>]) -> SmallVec<[OperandType<'a>; 4]> {
    let ty = |arg: &'a Given<'_>| match arg {
        Given::Held(x) => OperandType::Tensor(x.dtype, x.layout.shape()),
        Given::Number(value) => OperandType::Scalar((*value).into()),
    };
    given.iter().map(ty).collect()
}

/// The shape that arrays broadcast to.
fn joint(arrays: &[Held]) -> Result<Shape> {
    let start = Shape::scalar();
    arrays.iter().try_fold(start, |shape, x| shape.broadcast(x.layout.shape(), "group"))
}

impl Gpu {
    /// A constant of a plan, which is sent once, before whatever may read it.
    fn constant(&'static self, x: &Array, recording: &mut Recording) -> Result<Held> {
        if own(x)?.is_some() {
            return self.held(x, recording);
        }
        if let Some(held) = self.constants.lock().get(x) {
            return Ok(held);
        }
        let mut sending = Recording::default();
        let held = self.held(x, &mut sending)?;
        self.give("call", sending)?;
        self.constants.lock().keep(x, &held);
        Ok(held)
    }
}
