//! Attention: dispatches by blocks of scores, so that there is never the square of its length.
//!
//! A block is a product whose epilogue scales and hides scores, a row fusion for the softmax, and a
//! product with the values; gradients are products alone. They are the steps of a plan, whose memory
//! is the kernel's scratch.

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::frame::{Frame, Held};
use super::kernel::{Dispatch, Input, Kernel, Output, Place, Repeat, Word, count, half};
use super::moves;
use super::step::lower;
use crate::error::{self, Result};
use crate::graph::Graph;
use crate::ops::composite::attention::in_blocks;
use crate::ops::emit::Arg;
use crate::ops::op::{Call, Op, Type};
use crate::schedule::{Number, Operand, Plan, Source, Step};
use crate::shape::{Dim, Shape};
use crate::target::Target;

/// The scores of a block: so many stay in the near memory of large GPUs.
const BLOCK: usize = 8 << 20;

/// The most blocks, as long as one can be bound.
const MOST_BLOCKS: usize = 1 << 10;

/// The kernel of a call of attention or of its gradients.
pub fn kernel(
    call: &Call,
    inputs: &[Input],
    outs: &[Output],
    target: &'static dyn Target,
) -> Result<Kernel> {
    let (graph, mut held) = (Graph::new(), Vec::new());
    let (mut args, mut numbers) = (SmallVec::<[Arg; 9]>::new(), Vec::new());
    for input in inputs {
        args.push(match input {
            Input::Array { range, dtype, view } => {
                held.push(Held { buffer: *range, view: view.clone() });
                Arg::Node(graph.input(Type::new(*dtype, Shape::from_dims(&view.sizes))))
            }
            Input::Number(number) => {
                numbers.push(*number);
                graph.number()
            }
        });
    }
    let most = |scores: usize| {
        let bound = target.limits().largest / size_of::<f32>();
        BLOCK.max(scores.div_ceil(MOST_BLOCKS)).min(bound)
    };
    graph.build(|| in_blocks(call, &graph, &args, &most))?;
    let plan = Plan::new(&graph, target)?;
    if !plan.constants().is_empty() {
        return Err(error::internal("constants of attention"));
    }
    let own = held.iter().map(|held| held.buffer).chain(outs.iter().map(|out| out.range));
    let ranges = own.max().map_or(0, |last| last + 1);
    let (kernel, free) = Default::default();
    Steps { numbers, ranges, kernel, free }.all(&plan, held, outs)
}

/// The steps of a plan as one kernel. Buffers are its ranges and, behind them, its scratch.
struct Steps {
    /// The number of the kernel that each number of the plan is
    numbers: Vec<usize>,
    ranges: usize,
    kernel: Kernel,
    /// Scratch that holds nothing any more
    free: Vec<usize>,
}

impl Steps {
    fn all(mut self, plan: &Plan, inputs: Vec<Held>, outs: &[Output]) -> Result<Kernel> {
        let mut frame = Frame::new(plan, inputs, Vec::new());
        let mut to: FxHashMap<Source, usize> = FxHashMap::default();
        for (&source, out) in plan.outputs().iter().zip(outs) {
            let (base, view) = frame.at(source);
            if matches!(base, Source::Slot(_)) && view.is_whole() {
                to.entry(base).or_insert(out.range);
            }
        }
        let reads = |step: &Step| -> SmallVec<[Source; 4]> {
            let array = |operand: &Operand| match *operand {
                Operand::Array(x) => Some(frame.at(x).0),
                Operand::Number(_) => None,
            };
            step.args.iter().filter_map(array).collect()
        };
        let is_view =
            |step: &Step| step.results.iter().any(|&slot| frame.is_view(Source::Slot(slot)));
        let steps: Vec<(&Step, SmallVec<[Source; 4]>)> =
            plan.steps().iter().filter(|step| !is_view(step)).map(|x| (x, reads(x))).collect();
        let mut uses: FxHashMap<Source, usize> = FxHashMap::default();
        let outputs: Vec<Source> = plan.outputs().iter().map(|&x| frame.at(x).0).collect();
        let reads = steps.iter().flat_map(|(_, reads)| reads);
        for &base in reads.chain(&outputs) {
            *uses.entry(base).or_default() += 1;
        }
        for (step, reads) in block_by_block(&steps, &outputs) {
            let slots = || step.results.iter().map(|&slot| Source::Slot(slot));
            for slot in slots() {
                let buffer = match to.get(&slot) {
                    Some(&range) => range,
                    None => self.scratch(&plan.ty(slot)),
                };
                frame.buffers.insert(slot, buffer);
            }
            let lowered = lower(plan, step, &|source| frame.at(source))?;
            let found = lowered.ranges.iter().map(|&source| frame.buffer(source));
            let buffers = found.collect::<Result<Vec<usize>>>()?;
            self.add(lowered.kernel, &buffers, &lowered.numbers)?;
            for base in reads {
                uses.entry(*base).and_modify(|uses| *uses -= 1);
            }
            for base in reads.iter().copied().chain(slots()) {
                if matches!(base, Source::Slot(_))
                    && uses.get(&base).is_none_or(|&uses| uses == 0)
                    && let Some(buffer) = frame.buffers.remove(&base)
                    && buffer >= self.ranges
                {
                    self.free.push(buffer);
                }
            }
        }
        for (&source, out) in plan.outputs().iter().zip(outs) {
            let Held { buffer, view } = frame.held(source)?;
            if buffer != out.range {
                let inputs = [Input::Array { range: 0, dtype: out.ty.dtype, view }];
                let (range, ty) = (1, out.ty.clone());
                let shape = ty.shape.clone();
                let copy = moves::kernel(&Op::Broadcast(shape), &inputs, &Output { range, ty })?;
                self.add(copy, &[buffer, out.range], &[])?;
            }
        }
        Ok(self.kernel)
    }

    /// Scratch for an array.
    fn scratch(&mut self, ty: &Type) -> usize {
        let Place::Scratch(new) = self.kernel.scratch(ty.dtype, count(ty.shape.dims())) else {
            unreachable!("scratch is scratch")
        };
        self.settled(new)
    }

    /// Of new scratch and what is free, which is to be used: the smallest that is long enough, or
    /// else the longest, made longer.
    fn settled(&mut self, new: usize) -> usize {
        let (ranges, bytes) = (self.ranges, self.kernel.scratch[new]);
        let size = |buffer: usize| self.kernel.scratch[buffer - ranges];
        let known = |k: &usize| size(self.free[*k]).known();
        let same = (0..self.free.len()).find(|&k| size(self.free[k]).same(bytes));
        let fits = |k: &usize| known(k).zip(bytes.known()).is_some_and(|(a, b)| a >= b);
        let fit = || (0..self.free.len()).filter(fits).min_by_key(known);
        let grows = || {
            let all = (0..self.free.len()).filter(|k| known(k).is_some());
            all.max_by_key(known).filter(|_| bytes.known().is_some())
        };
        let Some(k) = same.or_else(fit).or_else(grows) else { return ranges + new };
        self.kernel.scratch.pop();
        let buffer = self.free.swap_remove(k);
        let place = &mut self.kernel.scratch[buffer - ranges];
        if let Some((there, wanted)) = place.known().zip(bytes.known()) {
            *place = Dim::new(there.max(wanted));
        }
        buffer
    }

    /// Adds the dispatches of a kernel whose ranges are these buffers.
    fn add(&mut self, kernel: Kernel, buffers: &[usize], numbers: &[Number]) -> Result<()> {
        let Kernel { dispatches, repeats, scratch, refusal } = kernel;
        if refusal.is_some() {
            return Err(error::internal("attention refuses data"));
        }
        let mut own: SmallVec<[usize; 2]> = SmallVec::new();
        for bytes in scratch {
            self.kernel.scratch.push(bytes);
            own.push(self.settled(self.kernel.scratch.len() - 1));
        }
        let place = |buffer: usize| match buffer.checked_sub(self.ranges) {
            Some(scratch) => Place::Scratch(scratch),
            None => Place::Range(buffer),
        };
        let first = self.kernel.dispatches.len();
        for Dispatch { text, words, bindings, invocations, rounds } in dispatches {
            let bindings = bindings.iter().map(|&binding| match binding {
                Place::Range(i) => place(buffers[i]),
                Place::Scratch(i) => place(own[i]),
                Place::Faults => Place::Faults,
            });
            let bindings = bindings.collect();
            let words = words.into_iter().map(|word| self.word(word, numbers));
            let words = words.collect::<Result<_>>()?;
            let dispatch = Dispatch { text, words, bindings, invocations, rounds };
            self.kernel.dispatches.push(dispatch);
        }
        self.kernel.repeats.extend(repeats.into_iter().map(|Repeat { range, times }| Repeat {
            range: range.start + first..range.end + first,
            times,
        }));
        self.free.extend(own);
        Ok(())
    }

    fn word(&self, word: Word, numbers: &[Number]) -> Result<Word> {
        let Word::Number { number, dtype, is_high } = word else { return Ok(word) };
        match numbers[number] {
            Number::Constant(value) => Ok(half(value, dtype, is_high)),
            Number::Input(i) => match self.numbers.get(i as usize) {
                Some(&number) => Ok(Word::Number { number, dtype, is_high }),
                None => Err(error::bad_graph(
                    "gpu",
                    "attention over heads of an open size has no scale",
                    "give scale=",
                )),
            },
        }
    }
}

/// A step, and what it reads.
type Read<'p> = (&'p Step, SmallVec<[Source; 4]>);

/// Steps in an order in which the scores of a block are read before those of the next are made:
/// whatever has its operands runs at once, and what the last output needs comes first.
fn block_by_block<'s, 'p>(steps: &'s [Read<'p>], outputs: &[Source]) -> Vec<&'s Read<'p>> {
    let mut makers: FxHashMap<Source, usize> = FxHashMap::default();
    for (i, (step, _)) in steps.iter().enumerate() {
        makers.extend(step.results.iter().map(|&slot| (Source::Slot(slot), i)));
    }
    let operands = |i: usize| steps[i].1.iter().filter_map(|base| makers.get(base).copied());
    let mut readers: Vec<SmallVec<[usize; 4]>> = vec![SmallVec::new(); steps.len()];
    let mut missing = vec![0; steps.len()];
    for i in 0..steps.len() {
        for maker in operands(i) {
            readers[maker].push(i);
            missing[i] += 1;
        }
    }
    let (mut order, mut is_done) = (Vec::with_capacity(steps.len()), vec![false; steps.len()]);
    let wanted = outputs.iter().rev().filter_map(|base| makers.get(base).copied());
    for output in wanted.chain(0..steps.len()) {
        // The top is what is wanted next; below it lies what it is wanted for.
        let mut stack = vec![output];
        while let Some(&i) = stack.last() {
            if is_done[i] {
                stack.pop();
                continue;
            }
            if missing[i] > 0 {
                stack.extend(operands(i).filter(|&maker| !is_done[maker]));
                continue;
            }
            is_done[i] = true;
            order.push(&steps[i]);
            stack.pop();
            for &reader in &readers[i] {
                missing[reader] -= 1;
                if missing[reader] == 0 {
                    stack.push(reader);
                }
            }
        }
    }
    order
}
