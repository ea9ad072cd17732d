//! Programs: plans as dispatches over numbered buffers, for a device that somebody else owns.
//!
//! Sizes may be open: lengths, counts and words are expressions then. New values of state are
//! written by the last dispatches, which write nothing where an earlier one has refused its data.
//!
//! Loops are ranges of dispatches that are repeated; words may use the number of the round.

mod flow;
mod text;

use std::ops::Range;

use rustc_hash::FxHashMap;

use super::frame::{Frame, Held};
use super::kernel::{self, Input, Kernel, Output, Place, Refusal, Times, View, Word, count};
use super::moves;
use super::step::lower;
use crate::array::Array;
use crate::dtype::{DType, Scalar};
use crate::error::{self, Error, Result};
use crate::ops::op::{Op, Type};
use crate::schedule::{Number, Operand, Plan, Source, Step, Work};
use crate::shape::Dim;
use crate::site::Site;

/// One dispatch of a program.
pub struct Play {
    /// What it does, by the names of the ops
    pub name: String,
    /// The Python line
    pub site: Site,
    /// The text, by position
    pub text: usize,
    /// The buffers that are bound, in order; the uniform buffer is bound behind them
    pub bindings: Vec<usize>,
    /// The uniform buffer. Numbers are entries of the table of the plan's list
    pub words: Vec<Word>,
    /// Invocations
    pub invocations: Dim,
    /// Rounds of all loops of an invocation, at most
    pub rounds: Dim,
}

/// Dispatches that are repeated.
pub struct Repeat {
    /// Which
    pub range: Range<usize>,
    /// How often
    pub times: Times,
    /// The symbol of the number of the round, in words and counts
    pub round: Dim,
}

/// A plan, lowered.
#[derive(Default)]
pub struct Program {
    /// The shaders
    pub texts: Vec<String>,
    /// The bytes of each buffer
    pub buffers: Vec<Dim>,
    /// The buffers of the inputs of the plan
    pub inputs: Vec<usize>,
    /// The constants of the plan and of bodies, with their buffers
    pub constants: Vec<(Array, usize)>,
    /// The buffers of the outputs of the plan, without gaps from their start; those of state are
    /// the buffers of the inputs that they become
    pub outputs: Vec<usize>,
    /// In the order in which they run
    pub dispatches: Vec<Play>,
    /// Loops, outer ones before those inside
    pub repeats: Vec<Repeat>,
    /// The state of the generator of random numbers: the two words of its key, then the lower and
    /// upper half of the count of keys drawn
    pub generator: Option<usize>,
    /// Where dispatches say what they refuse
    pub faults: Option<usize>,
    /// What each slot of faults says, with the Python line
    pub refusals: Vec<(Refusal, Site)>,
    /// Open counts of elements that are read more than once: positions of 32 bits must tell them
    /// apart, whatever the bytes that lie in memory
    pub counts: Vec<(Dim, Site)>,
    known: FxHashMap<String, usize>,
    free: Vec<usize>,
    /// The start of the names of rounds, which no symbol of the plan has
    round: String,
}

/// What a plan is lowered with.
pub struct Terms<'a> {
    /// The value of an entry of the table of numbers, where no size decides it
    pub number: &'a dyn Fn(u32) -> Option<Scalar>,
    /// State: outputs that become the value of an input, `(input, output)`
    pub state: &'a [(u32, u32)],
    /// The inputs that are keys of random numbers, in the order in which they are drawn
    pub keys: &'a [usize],
}

/// A place that cannot be lowered, and why.
pub type Offence = (Error, Site);

/// The bytes of a buffer for so many elements: invocations own whole words, and may write them to
/// their end.
pub fn bytes(dtype: DType, count: Dim) -> Dim {
    let bytes = (count * Dim::new(dtype.size())).div_ceil(Dim::new(32)) * Dim::new(32);
    bytes.max(Dim::new(32))
}

impl Program {
    /// The program of a plan, or all places that a device cannot run.
    pub fn of(plan: &Plan, terms: &Terms<'_>) -> std::result::Result<Program, Vec<Offence>> {
        let (mut program, mut offences) = (Program::default(), Vec::new());
        program.round = round_names(plan);
        let mut inputs = Vec::new();
        for ty in plan.inputs() {
            let sizes = ty.shape.dims();
            let buffer = program.buffer(bytes(ty.dtype, count(sizes)));
            program.inputs.push(buffer);
            inputs.push(Held { buffer, view: View::dense(sizes) });
        }
        let mut commits = program.keys(plan, terms);
        let constants = program.constants(plan);
        let mut frame = Frame::new(plan, inputs, constants);
        program.steps(&mut frame, &FxHashMap::default(), terms, &mut offences);
        if let Err(refusal) = program.end(&frame, &mut commits, terms) {
            offences.push((refusal, Site::default()));
        }
        if let Err(refusal) = program.admit(plan) {
            offences.push((refusal, Site::default()));
        }
        if offences.is_empty() { Ok(program) } else { Err(offences) }
    }

    /// The dispatches of the steps of a plan. Slots in `targets` are put into buffers that are
    /// there.
    fn steps(
        &mut self,
        frame: &mut Frame<'_>,
        targets: &FxHashMap<Source, usize>,
        terms: &Terms<'_>,
        offences: &mut Vec<Offence>,
    ) {
        let plan = frame.plan;
        for (at, step) in plan.steps().iter().enumerate() {
            let slots = || step.results.iter().map(|&slot| Source::Slot(slot));
            if slots().any(|slot| frame.is_view(slot)) {
                continue;
            }
            for slot in slots() {
                let ty = plan.ty(slot);
                let buffer = match targets.get(&slot) {
                    Some(&there) => there,
                    None => self.take(bytes(ty.dtype, count(ty.shape.dims()))),
                };
                frame.buffers.insert(slot, buffer);
            }
            let made = match &step.work {
                Work::ControlFlow(bodies) => self.flow(frame, step, bodies, terms, offences),
                Work::Effect(effect) => self.effect(frame, step, effect, terms),
                Work::Op(_)
                | Work::Group(_)
                | Work::Product(_)
                | Work::BlockFusion(_)
                | Work::RowFusion(_)
                | Work::Alias => self.step(frame, step, terms),
            };
            if let Err(refusal) = made {
                offences.push((refusal, step.site));
            }
            for slot in frame.over(step, at) {
                if let Some(buffer) = frame.buffers.remove(&slot)
                    && !targets.contains_key(&slot)
                {
                    self.free.push(buffer);
                }
            }
        }
    }

    /// The buffers of the constants of a plan.
    fn constants(&mut self, plan: &Plan) -> Vec<usize> {
        let mut found = Vec::new();
        for array in plan.constants() {
            let same = |(known, _): &&(Array, usize)| {
                known.data.same(&array.data)
                    && known.layout == array.layout
                    && known.dtype == array.dtype
            };
            let known = self.constants.iter().find(same).map(|&(_, buffer)| buffer);
            found.push(known.unwrap_or_else(|| {
                let buffer = self.buffer(bytes(array.dtype, count(array.shape().dims())));
                self.constants.push((array.clone(), buffer));
                buffer
            }));
        }
        found
    }

    /// Draws the keys of a run; gives what becomes the state of the generator.
    fn keys(&mut self, plan: &Plan, terms: &Terms<'_>) -> Vec<(usize, usize, Dim)> {
        if terms.keys.is_empty() {
            return Vec::new();
        }
        let length = Dim::new(32);
        let (state, next) = (self.buffer(length), self.buffer(length));
        self.generator = Some(state);
        for (k, &input) in terms.keys.iter().enumerate() {
            if plan.reads_input(input as u32) {
                let (to, words) = (self.inputs[input], vec![Word::Bits(k as u32)]);
                let play = self.own("key", &text::key(), vec![state, to], words, Dim::ONE);
                self.dispatches.push(play);
            }
        }
        let words = vec![Word::Bits(terms.keys.len() as u32)];
        let play = self.own("keys", text::NEXT, vec![state, next], words, Dim::ONE);
        self.dispatches.push(play);
        vec![(next, state, length)]
    }

    /// A new buffer.
    fn buffer(&mut self, bytes: Dim) -> usize {
        self.buffers.push(bytes);
        self.buffers.len() - 1
    }

    /// A buffer that nobody reads any more and that is long enough, or a new one.
    fn take(&mut self, bytes: Dim) -> usize {
        let fits = |&i: &usize| {
            let size = self.buffers[i];
            size.same(bytes) || size.known().zip(bytes.known()).is_some_and(|(a, b)| a >= b)
        };
        let free = (0..self.free.len()).filter(|&k| fits(&self.free[k]));
        match free.min_by_key(|&k| self.buffers[self.free[k]].known()) {
            Some(k) => self.free.swap_remove(k),
            None => self.buffer(bytes),
        }
    }

    /// The position of a text.
    fn text(&mut self, text: String) -> usize {
        let next = self.texts.len();
        let at = *self.known.entry(text.clone()).or_insert(next);
        if at == next {
            self.texts.push(text);
        }
        at
    }

    /// Where dispatches say what they refuse.
    fn faults(&mut self) -> usize {
        let new = self.buffers.len();
        let faults = *self.faults.get_or_insert(new);
        if faults == new {
            // The length is known at the end.
            self.buffers.push(Dim::new(32));
        }
        faults
    }

    fn step(&mut self, frame: &Frame<'_>, step: &Step, terms: &Terms<'_>) -> Result<()> {
        for arg in &step.args {
            if let Operand::Array(source) = *arg {
                self.counted(&frame.at(source).1, step.site);
            }
        }
        let lowered = lower(frame.plan, step, &|source| frame.at(source))?;
        let found = lowered.ranges.iter().map(|&source| frame.buffer(source));
        let ranges = found.collect::<Result<Vec<usize>>>()?;
        self.kernel(&lowered.kernel, &step.name(), step.site, &ranges, &lowered.numbers, terms)
    }

    /// Notes the open count of a view whose elements its buffer does not count.
    fn counted(&mut self, view: &View, site: Site) {
        let count = view.count();
        let is_of_round = |symbol: &Dim| symbol.to_string().starts_with(&self.round);
        let is_new = !self.counts.iter().any(|(known, _)| known.same(count));
        let is_open = count.known().is_none() && !count.symbols().iter().any(is_of_round);
        if !view.is_dense && is_open && is_new {
            self.counts.push((count, site));
        }
    }

    /// The dispatches of a kernel whose ranges are these buffers.
    fn kernel(
        &mut self,
        kernel: &Kernel,
        name: &str,
        site: Site,
        ranges: &[usize],
        numbers: &[Number],
        terms: &Terms<'_>,
    ) -> Result<()> {
        let scratch: Vec<usize> = kernel.scratch.iter().map(|&bytes| self.take(bytes)).collect();
        let slot = self.refusals.len() as u32;
        if let Some(refusal) = &kernel.refusal {
            self.refusals.push((refusal.clone(), site));
        }
        for (k, dispatch) in kernel.dispatches.iter().enumerate() {
            dispatch.admit(name)?;
            let repeat = kernel.repeats.iter().find(|repeat| repeat.range.contains(&k));
            if let Some(repeat) = repeat
                && repeat.range.start == k
            {
                let at = self.repeat(repeat.times);
                self.repeats[at].range.end += repeat.range.len();
            }
            let round = repeat.and_then(|_| self.repeats.last()).map(|repeat| repeat.round);
            let mut bindings = Vec::new();
            for place in &dispatch.bindings {
                bindings.push(match *place {
                    Place::Range(i) => ranges[i],
                    Place::Scratch(i) => scratch[i],
                    Place::Faults => self.faults(),
                });
            }
            let word = |word: &Word| match *word {
                Word::Slot => Word::Bits(slot),
                Word::Number { number, dtype, is_high } => match numbers[number] {
                    Number::Constant(value) => kernel::half(value, dtype, is_high),
                    Number::Input(i) => match (terms.number)(i) {
                        Some(value) => kernel::half(value, dtype, is_high),
                        None => Word::Number { number: i as usize, dtype, is_high },
                    },
                },
                Word::Round { times, plus } => match round {
                    Some(round) => {
                        Word::Size(round * Dim::new(times as usize) + Dim::new(plus as usize))
                    }
                    None => Word::Bits(plus),
                },
                Word::Bits(_) | Word::Size(_) | Word::Minus(_) => *word,
            };
            let words = dispatch.words.iter().map(word).collect();
            let text = self.text(dispatch.text.clone());
            let (invocations, rounds) = (dispatch.invocations, dispatch.rounds);
            let name = name.to_owned();
            self.dispatches.push(Play { name, site, text, bindings, words, invocations, rounds });
        }
        self.free.extend(scratch);
        Ok(())
    }

    /// A new loop of no dispatches; gives its position.
    fn repeat(&mut self, times: Times) -> usize {
        let (at, here) = (self.repeats.len(), self.dispatches.len());
        let round = Dim::named(&format!("{}{at}", self.round));
        self.repeats.push(Repeat { range: here..here, times, round });
        at
    }

    /// Puts outputs where they are expected: without gaps in buffers of their own, and state over
    /// its old value.
    fn end(
        &mut self,
        frame: &Frame<'_>,
        commits: &mut Vec<(usize, usize, Dim)>,
        terms: &Terms<'_>,
    ) -> Result<()> {
        let (plan, mut outputs) = (frame.plan, Vec::<usize>::new());
        for (i, &source) in plan.outputs().iter().enumerate() {
            let ((base, view), ty) = (frame.at(source), plan.ty(source));
            let buffer = frame.buffer(base)?;
            let is_own = matches!(base, Source::Slot(_)) && view.is_whole();
            let input = terms.state.iter().find(|(_, output)| *output as usize == i);
            let is_free = input.is_some() || !outputs.contains(&buffer);
            let from = match is_own && is_free {
                true => buffer,
                false => self.copied(&Held { buffer, view }, &ty, terms)?,
            };
            outputs.push(match input {
                Some(&(input, _)) => {
                    let to = self.inputs[input as usize];
                    commits.push((from, to, bytes(ty.dtype, count(ty.shape.dims()))));
                    to
                }
                None => from,
            });
        }
        self.outputs = outputs;
        if !commits.is_empty() {
            self.faults();
        }
        let slots = self.refusals.len();
        if let Some(faults) = self.faults {
            let words = Dim::new(4 * slots.next_multiple_of(2).max(2));
            self.buffers[faults] = words * Dim::new(4);
            let play = self.own("reset", text::RESET, vec![faults], vec![Word::Size(words)], words);
            self.dispatches.insert(0, play);
            for repeat in &mut self.repeats {
                repeat.range = repeat.range.start + 1..repeat.range.end + 1;
            }
        }
        for (from, to, bytes) in std::mem::take(commits) {
            let (faults, vectors) = (self.faults(), bytes / Dim::new(16));
            let words = vec![Word::Size(vectors), Word::Bits(slots as u32)];
            let play = self.own("commit", text::COMMIT, vec![from, to, faults], words, vectors);
            self.dispatches.push(play);
        }
        Ok(())
    }

    /// A dispatch that is no op's.
    fn own(
        &mut self,
        name: &str,
        text: &str,
        bindings: Vec<usize>,
        words: Vec<Word>,
        invocations: Dim,
    ) -> Play {
        let (text, rounds) = (self.text(text.to_owned()), Dim::new(self.refusals.len()));
        let (name, site) = (name.to_owned(), Site::default());
        Play { name, site, text, bindings, words, invocations, rounds }
    }

    /// The buffer of a copy of a value without gaps.
    fn copied(&mut self, from: &Held, ty: &Type, terms: &Terms<'_>) -> Result<usize> {
        let to = self.take(bytes(ty.dtype, count(ty.shape.dims())));
        let view = from.view.clone();
        let inputs = [Input::Array { range: 0, dtype: ty.dtype, view }];
        let out = Output { range: 1, ty: ty.clone() };
        let kernel = moves::kernel(&Op::Broadcast(ty.shape.clone()), &inputs, &out)?;
        self.kernel(&kernel, "copy", Site::default(), &[from.buffer, to], &[], terms)?;
        Ok(to)
    }

    /// Refuses buffers that no dispatch could bind.
    fn admit(&self, plan: &Plan) -> Result<()> {
        let most = plan.target().limits().largest;
        match self.buffers.iter().filter_map(|bytes| bytes.known()).find(|&bytes| bytes > most) {
            Some(bytes) => {
                let facts = format!("a buffer of {bytes} bytes, at most {most}");
                Err(error::beyond_limits("export", plan.target().name(), facts))
            }
            None => Ok(()),
        }
    }
}

/// The start of names for rounds that no symbol of a plan has.
fn round_names(plan: &Plan) -> String {
    let sizes = plan.inputs().iter().flat_map(|ty| ty.shape.dims().to_vec());
    let names: Vec<String> =
        sizes.flat_map(|size| size.symbols()).map(|symbol| symbol.to_string()).collect();
    let mut start = "round".to_owned();
    while names.iter().any(|name| name.starts_with(&start)) {
        start.insert(0, '_');
    }
    start
}
