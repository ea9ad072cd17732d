//! Plans, run on the CPU.
//!
//! A run takes one arena from the pool and writes every result with a fixed placement where the
//! plan says. Everything that can fail happens before the first write to donated memory, so after
//! an error every donated array is unchanged.

mod blocks;
mod control_flow;
mod lower;

use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;

use super::program;
use crate::array::Array;
use crate::cpu;
use crate::dtype::{DType, Scalar};
use crate::error::{self, Result};
use crate::executor::{Executable, Giving, Input, Results, Steps, hooks, located};
use crate::graph::Effect;
use crate::memory::Buffer;
use crate::ops::emit::catch;
use crate::ops::op::{Op, OperandType, Type};
use crate::passes::cost::{self, Cost};
use crate::schedule::{
    Given, Group, Number, Operand, Placement, Plan, Product, Source, Step, Template, Work,
};
use crate::shape::Shape;
use crate::threads;
use crate::watch::{self, Event};
pub use lower::Lowered;

/// Arrays that a step reads.
type Arrays<'a> = SmallVec<[&'a Array; 8]>;

/// Memory of a run: a buffer, and the byte of it at which the plan's memory starts.
type Place = (Buffer, usize);

/// The memory of a contiguous array's elements.
fn place(array: &Array) -> Place {
    (array.buffer().clone(), array.layout.offset() * array.dtype.size())
}

/// A light plan over at most this many elements ends so soon that it need not check for
/// interruptions.
const SHORT: usize = 1 << 15;

impl Executable for Lowered {
    fn template(&self) -> &Arc<Template> {
        Lowered::template(self)
    }

    fn run(&self, plan: &Arc<Plan>, inputs: &[&Array], numbers: &[Scalar]) -> Result<Results> {
        self.check(plan, inputs)?;
        Run::new(self, plan, inputs, numbers).finish(&[])
    }

    fn run_with(
        &self,
        plan: &Arc<Plan>,
        inputs: &mut [Input<'_>],
        numbers: &[Scalar],
    ) -> Result<Results> {
        let mut lent: SmallVec<[&Array; 8]> = SmallVec::new();
        for input in inputs.iter() {
            lent.push(input.array()?);
        }
        self.check(plan, &lent)?;
        let _giving = Giving::new(inputs.iter().any(|input| matches!(input, Input::Given(_))));
        let mut run = Run::new(self, plan, &lent, numbers);
        let mut taken: SmallVec<[u32; 4]> = SmallVec::new();
        for (k, dedicated) in plan.memory().dedicated.iter().enumerate() {
            let Some(i) = dedicated.alias else { continue };
            if let Input::Given(Some(array)) = &inputs[i as usize]
                && array.is_contiguous()
                && array.is_unique()
            {
                run.memory[k + 1] = Some(place(array));
                taken.push(i);
            }
        }
        let results = run.finish(&[])?;
        drop(run);
        drop(lent);
        taken.iter().for_each(|&i| inputs[i as usize] = Input::Given(None));
        Ok(results)
    }
}

impl Lowered {
    /// Computes the results; where `into` has an array, into that array, which is in C order and
    /// which nobody else reads or writes.
    fn run_into(
        &self,
        plan: &Plan,
        inputs: &[&Array],
        numbers: &[Scalar],
        into: &[Option<Array>],
    ) -> Result<Results> {
        self.check(plan, inputs)?;
        Run::new(self, plan, inputs, numbers).finish_into(into)
    }

    /// Refuses a plan of another template, for whose steps this has no programs, and a wrong count
    /// of inputs.
    fn check(&self, plan: &Plan, inputs: &[&Array]) -> Result<()> {
        if !Arc::ptr_eq(plan.template(), self.template()) {
            return Err(error::internal("a plan was run by the executable of another"));
        }
        match inputs.len() == plan.inputs().len() {
            true => Ok(()),
            false => Err(error::internal("a plan was run on the wrong count of inputs")),
        }
    }
}

/// One run of a plan.
struct Run<'a> {
    lowered: &'a Lowered,
    plan: &'a Plan,
    inputs: &'a [&'a Array],
    numbers: &'a [Scalar],
    slots: SmallVec<[Option<Array>; 8]>,
    /// The arena, then the dedicated buffers; `None` for those not allocated yet
    memory: SmallVec<[Option<Place>; 4]>,
    /// Memory in which products pack their operands, if it was lent
    room: Option<(Buffer, ScratchRange)>,
    /// Whether this run is part of a step, which is timed as a whole
    is_part: bool,
}

/// A range of a buffer, in bytes.
#[derive(Clone, Copy)]
struct ScratchRange {
    pub from: usize,
    pub bytes: usize,
}

impl<'a> Run<'a> {
    /// Built in place, because moving a run with its inline slots would cost as much as a step.
    fn new(
        lowered: &'a Lowered,
        plan: &'a Plan,
        inputs: &'a [&'a Array],
        numbers: &'a [Scalar],
    ) -> Run<'a> {
        let mut run = Run {
            lowered,
            plan,
            inputs,
            numbers,
            slots: SmallVec::new(),
            memory: SmallVec::new(),
            room: None,
            is_part: false,
        };
        run.slots.resize_with(plan.slots().len(), || None);
        run.memory.resize_with(plan.memory().dedicated.len() + 1, || None);
        run
    }

    /// A run that is part of a step.
    fn part(
        lowered: &'a Lowered,
        plan: &'a Plan,
        inputs: &'a [&'a Array],
        numbers: &'a [Scalar],
    ) -> Run<'a> {
        let mut run = Run::new(lowered, plan, inputs, numbers);
        run.is_part = true;
        run
    }

    /// Uses lent memory: the buffer from byte `arena` on as the arena, and a range of it for
    /// products.
    fn lend(&mut self, buffer: &Buffer, arena: usize, room: ScratchRange) {
        self.memory[0] = Some((buffer.clone(), arena));
        self.room = Some((buffer.clone(), room));
    }

    /// Computes the results into arrays in C order, where they are given.
    fn finish_into(&mut self, into: &[Option<Array>]) -> Result<Results> {
        for (k, dedicated) in self.plan.memory().dedicated.iter().enumerate() {
            if let Some(Some(target)) = dedicated.whole.and_then(|output| into.get(output as usize))
            {
                self.memory[k + 1] = Some(place(target));
            }
        }
        self.finish(into)
    }

    /// Runs the steps and collects the results.
    fn finish(&mut self, into: &[Option<Array>]) -> Result<Results> {
        if self.plan.memory().arena > 0 && self.memory[0].is_none() {
            self.memory[0] = Some((Buffer::alloc(self.plan.memory().arena)?, 0));
        }
        if !self.plan.memory().aliases.is_empty() {
            // No allocation may fail once donated memory is written, so all memory is allocated
            // first.
            for k in 1..self.memory.len() {
                self.obtain(k)?;
            }
        }
        let steps = self.plan.steps().len();
        let (guard_at, guards) = &self.plan.memory().guards;
        // Steps before the seal write no memory that outlives the run.
        let seal = steps.min(*guard_at as usize);
        self.stretch(0..seal, true)?;
        if seal < steps {
            for &guarded in guards {
                let guarded = &self.plan.steps()[guarded as usize];
                self.guard(guarded).map_err(|refusal| located(refusal, guarded.site))?;
            }
            self.stretch(seal..steps, self.plan.memory().aliases.is_empty())?;
        }
        let mut results = SmallVec::new();
        for (k, &source) in self.plan.outputs().iter().enumerate() {
            let result = self.array(source);
            results.push(match into.get(k) {
                Some(Some(target)) => {
                    if result.ptr() != target.ptr() {
                        // SAFETY: the caller gives the target away; it is no operand.
                        unsafe { cpu::copy::copy_into(target, result) };
                    }
                    target.clone()
                }
                Some(None) | None => result.clone(),
            });
        }
        Ok(results)
    }

    /// Runs some of the steps; `may` says whether they may be interrupted.
    #[inline]
    fn stretch(&mut self, steps: Range<usize>, may: bool) -> Result<()> {
        let plan = self.plan;
        if self.is_part {
            // The enclosing step times, interrupts and locates its parts: a worker thread must not
            // wait for Python, which the caller may hold.
            return steps.into_iter().try_for_each(|i| self.step(i, &plan.steps()[i]));
        }
        let at = Cell::new(None);
        let done = match may && plan.is_light(SHORT) {
            true => catch(|| self.steps(steps, None, &at)),
            false => catch(|| {
                Steps::with(|looks| {
                    threads::breakable(may, || self.steps(steps, may.then_some(looks), &at))
                })
            }),
        };
        done.and_then(|done| done).map_err(|refusal| match at.get() {
            Some(i) => located(refusal, plan.steps()[i].site),
            None => refusal,
        })
    }

    /// Runs some of the steps, with a check of `looks` for an interruption before each. `at` is the
    /// step that runs.
    fn steps(
        &mut self,
        steps: Range<usize>,
        looks: Option<&Steps>,
        at: &Cell<Option<usize>>,
    ) -> Result<()> {
        let plan = self.plan;
        for i in steps {
            if let Some(looks) = looks {
                at.set(None);
                looks.interruption()?;
            }
            at.set(Some(i));
            match watch::timing() {
                true => self.timed(i, &plan.steps()[i])?,
                false => self.step(i, &plan.steps()[i])?,
            }
        }
        Ok(())
    }

    fn array(&self, source: Source) -> &Array {
        match source {
            Source::Input(i) => self.inputs[i as usize],
            Source::Constant(i) => &self.plan.constants()[i as usize],
            Source::Slot(i) => self.slots[i as usize]
                .as_ref()
                .unwrap_or_else(|| unreachable!("slot {i} is read before it is filled")),
        }
    }

    fn number(&self, number: Number) -> Scalar {
        match number {
            Number::Constant(value) => value,
            Number::Input(i) => self.numbers[i as usize],
        }
    }

    /// The memory with number `k`, which is allocated now if it is not yet.
    fn obtain(&mut self, k: usize) -> Result<&Place> {
        if self.memory[k].is_none() {
            self.memory[k] = Some((Buffer::alloc(self.plan.memory().dedicated[k - 1].bytes)?, 0));
        }
        Ok(self.memory[k].as_ref().unwrap_or_else(|| unreachable!("memory {k} is there")))
    }

    /// The array of a slot with a fixed placement; its elements are whatever the memory holds.
    fn fixed(&mut self, slot: u32) -> Result<Option<Array>> {
        let plan = self.plan;
        let Placement::Fixed(memory, layout) = &plan.memory().placements[slot as usize] else {
            return Ok(None);
        };
        let dtype = plan.slots()[slot as usize].dtype;
        let (buffer, start) = self.obtain(*memory as usize)?;
        let layout = match start {
            0 => layout.clone(),
            start => layout.moved(start / dtype.size()),
        };
        Ok(Some(Array { dtype, layout, data: buffer.clone().into() }))
    }

    fn step(&mut self, i: usize, step: &Step) -> Result<()> {
        let results: Results = match &step.work {
            Work::Op(Op::Call(call)) => {
                let mut targets = Results::new();
                for &slot in &step.results {
                    let ty = &self.plan.slots()[slot as usize];
                    targets.push(match self.fixed(slot)? {
                        Some(array) => array,
                        None => Array::uninit(ty.dtype, ty.shape.clone())?,
                    });
                }
                // SAFETY: they are fresh, or memory that no other live value has.
                unsafe { cpu::calls::run_into(call, &self.operands(step), &targets)? };
                targets
            }
            Work::Op(op) => {
                let target = self.fixed(step.results[0])?;
                smallvec::smallvec![self.op(step, op, target, self.plan.memory().views[i])?]
            }
            Work::Group(group) => self.group(step, group)?,
            Work::Product(product) => self.product(step, product)?,
            Work::BlockFusion(fusion) => {
                let mut targets = Results::new();
                for &slot in &step.results {
                    let ty = &self.plan.slots()[slot as usize];
                    targets.push(match self.fixed(slot)? {
                        Some(array) => array,
                        None => Array::uninit(ty.dtype, ty.shape.clone())?,
                    });
                }
                blocks::run(self.lowered, fusion, &self.arrays(step), self.numbers, &targets)?;
                targets
            }
            Work::Alias => match step.args[0] {
                Operand::Array(source) => smallvec::smallvec![self.array(source).clone()],
                Operand::Number(_) => return Err(error::internal("a barrier keeps a value")),
            },
            Work::Effect(effect) => {
                self.effect(step, effect)?;
                Results::new()
            }
            Work::ControlFlow(bodies) => {
                let mut targets: SmallVec<[Option<Array>; 2]> = SmallVec::new();
                for &slot in &step.results {
                    targets.push(self.fixed(slot)?);
                }
                control_flow::run(
                    self.lowered.bodies(bodies),
                    bodies,
                    &self.arrays(step),
                    self.numbers,
                    targets,
                )?
            }
        };
        for &slot in &step.last {
            self.slots[slot as usize] = None;
        }
        for (&slot, array) in step.results.iter().zip(results) {
            self.slots[slot as usize] = Some(array);
        }
        Ok(())
    }

    /// Checks the indices of a later step.
    fn guard(&self, step: &Step) -> Result<()> {
        let operand = |arg: &Operand| match *arg {
            Operand::Array(source) => Some(self.array(source)),
            Operand::Number(_) => None,
        };
        let base = step.args.first().and_then(operand);
        let indices: SmallVec<[&Array; 4]> = step.args.iter().skip(2).filter_map(operand).collect();
        base.map_or(Ok(()), |base| cpu::check_indices(base, &indices))
    }

    /// Runs a step and reports its time.
    #[cold]
    fn timed(&mut self, i: usize, step: &Step) -> Result<()> {
        let bytes_of = |x: &Array| (x.count() * x.dtype.size()) as u64;
        let read: u64 = self.arrays(step).into_iter().map(bytes_of).sum();
        let mut types: SmallVec<[Option<Type>; 4]> = SmallVec::new();
        for arg in &step.args {
            types.push(match *arg {
                Operand::Array(source) => {
                    let x = self.array(source);
                    Some(Type::new(x.dtype, x.shape().clone()))
                }
                Operand::Number(_) => None,
            });
        }
        let start = watch::now();
        self.step(i, step)?;
        let duration = watch::now() - start;
        let results = step.results.iter().filter_map(|&slot| self.slots[slot as usize].as_ref());
        let (mut written, mut detail, mut ty) = (0, String::new(), None);
        for y in results {
            written += bytes_of(y);
            detail = format!("{} {}", y.dtype, y.shape());
            ty = Some(Type::new(y.dtype, y.shape().clone()));
        }
        let cost = match (&step.work, ty) {
            (Work::Op(op), Some(ty)) => cost::of_call(op, &types, &ty),
            (Work::Group(..) | Work::Product(_) | Work::BlockFusion(_), _) => {
                Cost { bytes: read + written, flops: self.plan.flops(step) }
            }
            (Work::Op(_) | Work::Alias | Work::Effect(_) | Work::ControlFlow(_), _) => {
                Cost::default()
            }
        };
        watch::record(Event {
            work: watch::Work::Step,
            // The product takes most of the time of its step, so it gives the name.
            name: match &step.work {
                Work::Product(product) => product.op.name().into(),
                Work::Group(_)
                | Work::BlockFusion(_)
                | Work::Op(_)
                | Work::ControlFlow(_)
                | Work::Effect(_)
                | Work::Alias => step.name(),
            },
            site: step.site,
            start,
            duration,
            thread: watch::thread(),
            bytes: cost.bytes,
            flops: cost.flops,
            detail,
        });
        Ok(())
    }

    /// The arrays that a step reads.
    fn arrays(&self, step: &Step) -> SmallVec<[&Array; 8]> {
        let mut arrays = SmallVec::new();
        for arg in &step.args {
            if let Operand::Array(source) = *arg {
                arrays.push(self.array(source));
            }
        }
        arrays
    }

    fn operands(&self, step: &Step) -> SmallVec<[cpu::Operand<'_>; 4]> {
        let mut args: SmallVec<[cpu::Operand<'_>; 4]> = SmallVec::new();
        for arg in &step.args {
            args.push(match *arg {
                Operand::Array(source) => cpu::Operand::Array(self.array(source)),
                Operand::Number(number) => cpu::Operand::Scalar(self.number(number)),
            });
        }
        args
    }

    fn op(&self, step: &Step, op: &Op, target: Option<Array>, is_view: bool) -> Result<Array> {
        match target {
            // The result is a view of an operand that is already in this memory.
            Some(target) if is_view => return Ok(target),
            _ => {}
        }
        let args = self.operands(step);
        let Some(out) = target else { return cpu::execute(op, &args) };
        if let (Op::Contract(spec), Some(lent)) = (op, self.lent())
            && let [cpu::Operand::Array(a), cpu::Operand::Array(b)] = args.as_slice()
        {
            let extras = cpu::Extras { lent: Some(lent), ..cpu::Extras::default() };
            let (a, b) = (cpu::Factor::There(a), cpu::Factor::There(b));
            // SAFETY: the room is this run's alone; for the result see below.
            unsafe { cpu::contract::contract_with(a, b, spec, &out, extras)? };
            return Ok(out);
        }
        // SAFETY: the plan gave the result memory that no other live value has, except that of an
        // operand which the op may write over.
        unsafe { cpu::execute_into(op, &args, &out)? };
        Ok(out)
    }

    fn group(&mut self, step: &Step, group: &Group) -> Result<Results> {
        let mut results = Results::new();
        for (&slot, dtype) in step.results.iter().zip(group.program.dtypes()) {
            results.push(match self.fixed(slot)? {
                Some(array) => array,
                None => Array::uninit(dtype, self.open_shape(step, &group.shape)?)?,
            });
        }
        let arrays = self.arrays(step);
        let mut numbers: SmallVec<[Scalar; 4]> = SmallVec::new();
        for arg in &step.args {
            if let Operand::Number(number) = *arg {
                numbers.push(self.number(number));
            }
        }
        let mut outputs: SmallVec<[&Array; 2]> = SmallVec::new();
        results.iter().for_each(|result| outputs.push(result));
        // SAFETY: as for ops: an output lies apart from all live values, or it is the memory of one
        // operand of its type in C order that nobody reads again.
        unsafe { program::run(self.lowered.program(group), &arrays, &numbers, &outputs) };
        drop((arrays, outputs));
        Ok(results)
    }

    /// The memory in which products pack their operands, if it was lent.
    fn lent(&self) -> Option<(*mut u8, usize)> {
        // SAFETY: the room is part of the buffer, and this run's alone.
        let at = |(buffer, room): &(Buffer, ScratchRange)| unsafe {
            (buffer.ptr_mut().add(room.from), room.bytes)
        };
        self.room.as_ref().map(at)
    }

    fn product(&mut self, step: &Step, product: &Product) -> Result<Results> {
        let mut results = Results::new();
        for &slot in &step.results {
            let dtype = self.plan.slots()[slot as usize].dtype;
            results.push(match self.fixed(slot)? {
                Some(array) => array,
                None => Array::uninit(dtype, self.product_shape(step, product)?)?,
            });
        }
        let (before, after) = product.parts(&step.args);
        let given = [self.given(before[0]), self.given(before[1])];
        let feed = |k: usize| match &product.before[k] {
            None => cpu::Feed::There(given[k].0[0]),
            Some(prologue) => cpu::Feed::Made(cpu::Prelude {
                program: self.lowered.program(&prologue.group),
                inputs: &given[k].0,
                numbers: &given[k].1,
                shape: &prologue.group.shape,
                axes: prologue.axes.as_ref(),
            }),
        };
        let (mut inputs, numbers) = self.given(after);
        let place = product.after.as_ref().map_or(0, |after| after.place);
        let outputs: SmallVec<[&Array; 2]> = results.iter().collect();
        let sequel = product.after.as_ref().map(|after| {
            inputs.insert(after.raw, &results[place]);
            cpu::Sequel {
                program: self.lowered.program(&after.group),
                inputs: &inputs,
                numbers: &numbers,
                outputs: &outputs,
                raw: after.raw,
            }
        });
        let (feeds, out) = ([feed(0), feed(1)], &results[place]);
        // SAFETY: as for ops; no operand shares memory with a result.
        unsafe { cpu::product_into(&product.op, feeds, out, sequel, self.lent())? };
        drop((inputs, outputs, given));
        Ok(results)
    }

    /// The values of arguments, arrays and numbers.
    fn given(&self, (arrays, numbers): Given<'_>) -> (Arrays<'_>, SmallVec<[Scalar; 4]>) {
        let (mut given, mut values) = (Arrays::new(), SmallVec::new());
        for arg in arrays.iter().chain(numbers) {
            match *arg {
                Operand::Array(source) => given.push(self.array(source)),
                Operand::Number(number) => values.push(self.number(number)),
            }
        }
        (given, values)
    }

    /// The shape of a product whose sizes are known only from its operands at run time.
    fn product_shape(&self, step: &Step, product: &Product) -> Result<Shape> {
        let arrays = self.arrays(step);
        let [a, b] = [arrays[0], arrays[1]];
        let types = [a, b].map(|x| OperandType::Tensor(x.dtype, x.shape()));
        Ok(product.op.infer(&types)?.shape)
    }

    /// The shape of a group whose sizes are known only from its operands at run time.
    fn open_shape(&self, step: &Step, shape: &Shape) -> Result<Shape> {
        if shape.is_known() {
            return Ok(shape.clone());
        }
        let arrays = self.arrays(step);
        let first = Shape::scalar();
        arrays.iter().try_fold(first, |shape, x| shape.broadcast(x.shape(), "group"))
    }

    fn effect(&self, step: &Step, effect: &Effect) -> Result<()> {
        let arrays = self.arrays(step);
        match effect {
            Effect::Check(message) => match first_false(arrays[0])? {
                None => Ok(()),
                Some(i) => {
                    let shape = arrays[0].shape();
                    let what = match shape.rank() {
                        0 => "got false".to_string(),
                        _ => format!("element {i} (in C order) of shape {shape} is false"),
                    };
                    Err(error::bad_value("check", message, what))
                }
            },
            Effect::Print(text) => {
                let arrays: Vec<Array> = arrays.iter().map(|&x| x.clone()).collect();
                match hooks() {
                    Some(hooks) => (hooks.print)(text, &arrays),
                    None => Err(error::internal("nobody installed what prints")),
                }
            }
        }
    }
}

/// The position of the first false element, in C order.
fn first_false(x: &Array) -> Result<Option<usize>> {
    let x = cpu::copy::contiguous(&cpu::cast(x, DType::Bool)?)?;
    // SAFETY: a contiguous array of bools, one byte each.
    let bytes = unsafe { std::slice::from_raw_parts(x.ptr(), x.count()) };
    Ok(bytes.iter().position(|&byte| byte == 0))
}
