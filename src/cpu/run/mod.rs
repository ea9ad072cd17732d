//! Plans, run on the CPU.
//!
//! A run takes one arena from the pool and writes every result with a fixed placement where the
//! plan says. Everything that can fail happens before the first write to donated memory, so after
//! an error every donated array is unchanged.
//!
//! Here are the executable, a run's memory and the order in which steps run; `step` is one step,
//! `prepared` what is known of small steps before they run, `blocks` a block fusion, `rows` and
//! `fused_sums` what its steps become, `control_flow` a node with bodies, `lower` what a template
//! becomes.

mod blocks;
mod control_flow;
mod fused_sums;
mod lower;
mod prepared;
mod rows;
mod step;

use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::array::Array;
use crate::cpu;
use crate::dtype::Scalar;
use crate::error::{self, Result};
use crate::executor::{Executable, Giving, Input, Results, Steps, located};
use crate::memory::Buffer;
use crate::ops::emit::catch;
use crate::ops::op::Type;
use crate::passes::cost::{self, Cost};
use crate::schedule::{Operand, Plan, Source, Step, Template, Work};
use crate::threads;
use crate::watch::{self, Event};
use fused_sums::FusedSums;
pub use lower::Lowered;
use prepared::Prepared;

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
        let prepared = self.prepared(plan);
        let mut run = Run::new(self, plan, inputs, numbers);
        run.prepare(prepared.as_deref());
        run.finish(&[])
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
        let prepared = self.prepared(plan);
        let mut run = Run::new(self, plan, &lent, numbers);
        run.prepare(prepared.as_deref());
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
    /// Computes the results, by prepared steps if these are given; where `into` has an array, into
    /// that array, which is in C order and which nobody else reads or writes.
    fn run_into(
        &self,
        plan: &Plan,
        prepared: Option<&Prepared>,
        inputs: &[&Array],
        numbers: &[Scalar],
        into: &[Option<Array>],
    ) -> Result<Results> {
        self.check(plan, inputs)?;
        let mut run = Run::new(self, plan, inputs, numbers);
        run.prepare(prepared);
        run.finish_into(into)
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
    scratch: Option<(Buffer, ScratchRange)>,
    /// Slots that groups write elsewhere, and where: memory that no operand has, in any order
    elsewhere: SmallVec<[(u32, Array); 1]>,
    /// Whether this run is part of a step, which is timed as a whole
    is_part: bool,
    /// The prepared steps, where they fit the inputs
    prepared: Option<&'a Prepared>,
    /// What is done in place of the steps of a block, where groups are summed as they are made, and
    /// the sums of each walk
    fused: Option<&'a FusedSums>,
    sums: SmallVec<[SmallVec<[f32; 2]>; 2]>,
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
            scratch: None,
            elsewhere: SmallVec::new(),
            is_part: false,
            prepared: None,
            fused: None,
            sums: SmallVec::new(),
        };
        inputs.iter().for_each(|x| x.look());
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

    /// Sums groups of a block as they are made.
    fn fuse(&mut self, fused: Option<&'a FusedSums>) {
        self.fused = fused;
        self.sums.resize(fused.map_or(0, FusedSums::walks), SmallVec::new());
    }

    /// Uses prepared steps, if the inputs lie as these suppose and no step is timed.
    fn prepare(&mut self, prepared: Option<&'a Prepared>) {
        let fits = self.inputs.iter().all(|x| x.is_contiguous());
        self.prepared = prepared.filter(|_| fits && !watch::timing());
    }

    /// Uses lent memory: the buffer from byte `arena` on as the arena, and a range of it for
    /// products.
    fn lend(&mut self, buffer: &Buffer, arena: usize, scratch: ScratchRange) {
        self.memory[0] = Some((buffer.clone(), arena));
        self.scratch = Some((buffer.clone(), scratch));
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
                Some(Some(target)) if self.elsewhere(source).is_none() => {
                    if result.ptr() != target.ptr() {
                        // SAFETY: the caller gives the target away; it is no operand.
                        unsafe { cpu::copy::copy_into(target, result) };
                    }
                    target.clone()
                }
                Some(_) | None => result.clone(),
            });
        }
        Ok(results)
    }

    /// Where a group writes an array, if that is not its place in the plan.
    fn elsewhere(&self, source: Source) -> Option<&Array> {
        self.elsewhere.iter().find_map(|(slot, y)| (source == Source::Slot(*slot)).then_some(y))
    }

    /// Runs some of the steps; `may` says whether they may be interrupted.
    #[inline]
    fn stretch(&mut self, steps: Range<usize>, may: bool) -> Result<()> {
        let plan = self.plan;
        if self.is_part {
            // The enclosing step times, interrupts and locates its parts: a worker thread must not
            // wait for Python, which the caller may hold.
            return match self.fused {
                Some(fused) => {
                    steps.into_iter().try_for_each(|i| self.fused_step(fused, i, &plan.steps()[i]))
                }
                None => steps.into_iter().try_for_each(|i| self.step(i, &plan.steps()[i])),
            };
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
            // Prepared steps give no arrays, which the times of later steps would ask for.
            match watch::timing() && self.prepared.is_none() {
                true => self.timed(i, &plan.steps()[i])?,
                false => self.any_step(i, &plan.steps()[i])?,
            }
        }
        Ok(())
    }

    /// Runs a step, as it was prepared if it was.
    #[inline]
    fn any_step(&mut self, i: usize, step: &Step) -> Result<()> {
        match self.prepared.and_then(|prepared| prepared.step(i)) {
            Some(ready) => self.ready(step, ready),
            None => self.step(i, step),
        }
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
            (Work::Group(..) | Work::Product(_) | Work::BlockFusion(_) | Work::RowFusion(_), _) => {
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
                | Work::RowFusion(_)
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
}
