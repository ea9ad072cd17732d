//! Attention: dispatches by blocks of scores, so that there is never the square of its length.
//!
//! A block is a product whose epilogue scales and hides scores, a row fusion for the softmax, and a
//! product with the values; gradients are products alone. They are the steps of a plan, whose memory
//! is the kernel's scratch.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Range;

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
pub(super) const BLOCK: usize = 8 << 20;

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
    Steps { numbers, ranges, kernel: Kernel::default() }.all(&plan, held, outs)
}

/// The steps of a plan as one kernel. Buffers are its ranges and, behind them, its scratch.
struct Steps {
    /// The number of the kernel that each number of the plan is
    numbers: Vec<usize>,
    ranges: usize,
    kernel: Kernel,
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
        let steps: Vec<Read<'_>> =
            plan.steps().iter().filter(|step| !is_view(step)).map(|x| (x, reads(x))).collect();
        let outputs: Vec<Source> = plan.outputs().iter().map(|&x| frame.at(x).0).collect();
        for step in block_by_block(&steps, &outputs) {
            for &slot in &step.results {
                let buffer = match to.get(&Source::Slot(slot)) {
                    Some(&range) => range,
                    None => self.scratch(&plan.ty(Source::Slot(slot))),
                };
                frame.buffers.insert(Source::Slot(slot), buffer);
            }
            let lowered = lower(plan, step, &|source| frame.at(source))?;
            let found = lowered.ranges.iter().map(|&source| frame.buffer(source));
            let buffers = found.collect::<Result<Vec<usize>>>()?;
            self.add(lowered.kernel, &buffers, &lowered.numbers)?;
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
        share_scratch(&mut self.kernel);
        Ok(self.kernel)
    }

    /// Scratch for an array.
    fn scratch(&mut self, ty: &Type) -> usize {
        self.kernel.scratch(ty.dtype, count(ty.shape.dims()));
        self.ranges + self.kernel.scratch.len() - 1
    }

    /// Adds the dispatches of a kernel whose ranges are these buffers.
    fn add(&mut self, kernel: Kernel, buffers: &[usize], numbers: &[Number]) -> Result<()> {
        let Kernel { dispatches, repeats, scratch, refusal } = kernel;
        if refusal.is_some() {
            return Err(error::internal("attention refuses data"));
        }
        let own = self.kernel.scratch.len();
        self.kernel.scratch.extend(scratch);
        let place = |buffer: usize| match buffer.checked_sub(self.ranges) {
            Some(scratch) => Place::Scratch(scratch),
            None => Place::Range(buffer),
        };
        let first = self.kernel.dispatches.len();
        for Dispatch { text, words, bindings, invocations, rounds } in dispatches {
            let bindings = bindings.iter().map(|&binding| match binding {
                Place::Range(i) => place(buffers[i]),
                Place::Scratch(i) => Place::Scratch(own + i),
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

/// Lets scratch lie where other scratch has lain or will lie: the largest finds its place first.
fn share_scratch(kernel: &mut Kernel) {
    // From the first dispatch that binds it to the last.
    let mut lives: Vec<Option<Range<usize>>> = vec![None; kernel.scratch.len()];
    for (at, dispatch) in kernel.dispatches.iter().enumerate() {
        let repeated = kernel.repeats.iter().map(|repeat| &repeat.range);
        let now = repeated.filter(|range| range.contains(&at)).fold(at..at + 1, spanned);
        for binding in &dispatch.bindings {
            if let Place::Scratch(i) = *binding {
                lives[i] = Some(lives[i].iter().fold(now.clone(), spanned));
            }
        }
    }
    let mut order: Vec<(usize, Range<usize>)> =
        lives.into_iter().enumerate().filter_map(|(i, life)| Some((i, life?))).collect();
    order.sort_by_key(|&(i, _)| Reverse(kernel.scratch[i].known()));
    // Each with the lives in it, which do not meet, by their starts.
    let mut shared: Vec<(Dim, BTreeMap<usize, usize>)> = Vec::new();
    let mut to = vec![0; kernel.scratch.len()];
    for (i, life) in order {
        let bytes = kernel.scratch[i];
        let is_long = |there: Dim| {
            there.same(bytes) || there.known().zip(bytes.known()).is_some_and(|(a, b)| a >= b)
        };
        let is_free = |lives: &BTreeMap<usize, usize>| {
            lives.range(..life.end).next_back().is_none_or(|(_, &end)| end <= life.start)
        };
        let found = shared.iter().position(|(there, lives)| is_long(*there) && is_free(lives));
        to[i] = found.unwrap_or_else(|| {
            shared.push((bytes, BTreeMap::new()));
            shared.len() - 1
        });
        shared[to[i]].1.insert(life.start, life.end);
    }
    kernel.scratch = shared.into_iter().map(|(bytes, _)| bytes).collect();
    for binding in kernel.dispatches.iter_mut().flat_map(|dispatch| &mut dispatch.bindings) {
        if let Place::Scratch(i) = binding {
            *i = to[*i];
        }
    }
}

/// The least range that two are parts of.
fn spanned(a: Range<usize>, b: &Range<usize>) -> Range<usize> {
    a.start.min(b.start)..a.end.max(b.end)
}

/// A step, and what it reads.
type Read<'p> = (&'p Step, SmallVec<[Source; 4]>);

/// Steps in an order in which the scores of a block are read before those of the next are made:
/// whatever has its operands runs at once, and what the last output needs comes first, from the
/// first of a chain of sums on.
fn block_by_block<'p>(steps: &[Read<'p>], outputs: &[Source]) -> Vec<&'p Step> {
    let mut makers: FxHashMap<Source, usize> = FxHashMap::default();
    for (i, (step, _)) in steps.iter().enumerate() {
        makers.extend(step.results.iter().map(|&slot| (Source::Slot(slot), i)));
    }
    let operands = |i: usize| steps[i].1.iter().filter_map(|base| makers.get(base).copied());
    let mut readers: Vec<SmallVec<[usize; 4]>> = vec![SmallVec::new(); steps.len()];
    let mut missing = vec![0usize; steps.len()];
    for (i, missing) in missing.iter_mut().enumerate() {
        for maker in operands(i) {
            readers[maker].push(i);
            *missing += 1;
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
                stack.extend(operands(i).rev().filter(|&maker| !is_done[maker]));
                continue;
            }
            is_done[i] = true;
            order.push(steps[i].0);
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
