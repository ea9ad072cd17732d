//! Programs: plans as dispatches over numbered buffers, for a device that somebody else owns.
//!
//! Sizes may be open: lengths, counts and words are expressions then. New values of state are
//! written by the last dispatches, which write nothing where an earlier one has refused its data.

use rustc_hash::FxHashMap;

use super::kernel::{self, Input, Kernel, Output, Place, Refusal, View, Word, count};
use super::moves;
use super::step::lower;
use crate::dtype::{DType, Scalar};
use crate::error::{self, Error, Result};
use crate::ops::op::{Op, Type};
use crate::schedule::{Number, Operand, Plan, Source, Step, Work};
use crate::shape::Dim;
use crate::site::Site;

/// Fills the slots of faults with ones: nothing is refused yet.
const RESET: &str = "\
@group(0) @binding(0) var<storage, read_write> m0: array<u32>;
@group(0) @binding(1) var<uniform> words: array<vec4<u32>, 1>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) at: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let id = at.y * groups.x * 64u + at.x;
    if id >= words[0].x { return; }
    m0[id] = 0xffffffffu;
}
";

/// Copies what was computed over state, unless a slot of faults refuses something.
const COMMIT: &str = "\
@group(0) @binding(0) var<storage, read_write> m0: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read_write> m1: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read_write> m2: array<vec4<u32>>;
@group(0) @binding(3) var<uniform> words: array<vec4<u32>, 1>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) at: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let id = at.y * groups.x * 64u + at.x;
    if id >= words[0].x { return; }
    for (var slot = 0u; slot < words[0].y; slot++) {
        if m2[slot].x != 0xffffffffu { return; }
    }
    m1[id] = m0[id];
}
";

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

/// A plan, lowered.
#[derive(Default)]
pub struct Program {
    /// The shaders
    pub texts: Vec<String>,
    /// The bytes of each buffer
    pub buffers: Vec<Dim>,
    /// The buffers of the inputs of the plan
    pub inputs: Vec<usize>,
    /// The buffers of the constants of the plan
    pub constants: Vec<usize>,
    /// The buffers of the outputs of the plan, without gaps from their start; those of state are
    /// the buffers of the inputs that they become
    pub outputs: Vec<usize>,
    /// In the order in which they run
    pub dispatches: Vec<Play>,
    /// Where dispatches say what they refuse
    pub faults: Option<usize>,
    /// What each slot of faults says, with the Python line
    pub refusals: Vec<(Refusal, Site)>,
    known: FxHashMap<String, usize>,
    free: Vec<usize>,
}

/// What a plan is lowered with.
pub struct Terms<'a> {
    /// The value of an entry of the table of numbers, where no size decides it
    pub number: &'a dyn Fn(u32) -> Option<Scalar>,
    /// State: outputs that become the value of an input, `(input, output)`
    pub state: &'a [(u32, u32)],
}

/// A place that cannot be lowered, and why.
pub type Offence = (Error, Site);

/// The bytes of a buffer for so many elements: invocations own whole words, and may write them to
/// their end.
pub fn bytes(dtype: DType, count: Dim) -> Dim {
    let bytes = (count * Dim::new(dtype.size())).div_ceil(Dim::new(32)) * Dim::new(32);
    bytes.max(Dim::new(32))
}

/// Where the values of a plan lie: the values that they are views of, and how.
struct Places<'a> {
    plan: &'a Plan,
    views: FxHashMap<Source, (Source, View)>,
    /// By value with a buffer of its own: the last step that reads it
    last: FxHashMap<Source, usize>,
}

impl<'a> Places<'a> {
    fn of(plan: &'a Plan) -> Places<'a> {
        let mut places = Places { plan, views: FxHashMap::default(), last: FxHashMap::default() };
        for (at, step) in plan.steps().iter().enumerate() {
            for operand in &step.args {
                if let Operand::Array(x) = *operand {
                    let base = places.at(x).0;
                    places.last.insert(base, at);
                }
            }
            if let Some(view) = places.view(step) {
                places.views.insert(Source::Slot(step.results[0]), view);
            }
        }
        for &source in plan.outputs() {
            let base = places.at(source).0;
            places.last.insert(base, usize::MAX);
        }
        places
    }

    /// Where a value lies.
    fn at(&self, source: Source) -> (Source, View) {
        match self.views.get(&source) {
            Some(known) => known.clone(),
            None => (source, View::dense(self.plan.ty(source).shape.dims())),
        }
    }

    /// Where the result of a step lies, if the step only looks at its operand in another way.
    fn view(&self, step: &Step) -> Option<(Source, View)> {
        let [Operand::Array(x)] = step.args[..] else { return None };
        let (base, view) = self.at(x);
        match &step.work {
            Work::Alias => Some((base, view)),
            Work::Op(op) => {
                let ty = self.plan.ty(Source::Slot(step.results[0]));
                Some((base, moves::view_of(op, &view, ty.shape.dims())?))
            }
            Work::Group(_)
            | Work::Product(_)
            | Work::BlockFusion(_)
            | Work::RowFusion(_)
            | Work::ControlFlow(_)
            | Work::Effect(_) => None,
        }
    }
}

impl Program {
    /// The program of a plan, or all places that a device cannot run.
    pub fn of(plan: &Plan, terms: &Terms<'_>) -> std::result::Result<Program, Vec<Offence>> {
        let (mut program, places, mut offences) =
            (Program::default(), Places::of(plan), Vec::new());
        let mut buffers: FxHashMap<Source, usize> = FxHashMap::default();
        let mut fixed = |program: &mut Program, source: Source| {
            let ty = plan.ty(source);
            let buffer = program.buffer(bytes(ty.dtype, count(ty.shape.dims())));
            buffers.insert(source, buffer);
            buffer
        };
        for i in 0..plan.inputs().len() {
            let buffer = fixed(&mut program, Source::Input(i as u32));
            program.inputs.push(buffer);
        }
        for i in 0..plan.constants().len() {
            let buffer = fixed(&mut program, Source::Constant(i as u32));
            program.constants.push(buffer);
        }
        for (at, step) in plan.steps().iter().enumerate() {
            let slots = || step.results.iter().map(|&slot| Source::Slot(slot));
            if slots().any(|slot| places.views.contains_key(&slot)) {
                continue;
            }
            for slot in slots() {
                let ty = plan.ty(slot);
                let buffer = program.take(bytes(ty.dtype, count(ty.shape.dims())));
                buffers.insert(slot, buffer);
            }
            let made = program.step(plan, step, &places, &buffers, terms);
            if let Err(refusal) = made {
                offences.push((refusal, step.site));
            }
            let read = step.args.iter().filter_map(|operand| match *operand {
                Operand::Array(x) => Some(places.at(x).0),
                Operand::Number(_) => None,
            });
            let mut over: Vec<Source> = read
                .chain(slots())
                .filter(|base| matches!(base, Source::Slot(_)))
                .filter(|base| places.last.get(base).is_none_or(|&last| last <= at))
                .collect();
            over.dedup();
            for base in over {
                if let Some(buffer) = buffers.remove(&base) {
                    program.free.push(buffer);
                }
            }
        }
        if let Err(refusal) = program.end(plan, &places, &buffers, terms) {
            offences.push((refusal, Site::default()));
        }
        if let Err(refusal) = program.admit(plan) {
            offences.push((refusal, Site::default()));
        }
        if offences.is_empty() { Ok(program) } else { Err(offences) }
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

    fn step(
        &mut self,
        plan: &Plan,
        step: &Step,
        places: &Places<'_>,
        buffers: &FxHashMap<Source, usize>,
        terms: &Terms<'_>,
    ) -> Result<()> {
        let lowered = lower(plan, step, &|source| places.at(source))?;
        let found = lowered.ranges.iter().map(|source| buffers.get(source).copied());
        let ranges: Option<Vec<usize>> = found.collect();
        let ranges = ranges.ok_or_else(|| error::internal("a value has no buffer"))?;
        self.kernel(&lowered.kernel, &step.name(), step.site, &ranges, &lowered.numbers, terms)
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
        for dispatch in &kernel.dispatches {
            dispatch.admit(name)?;
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

    /// Puts outputs where they are expected: without gaps in buffers of their own, and state over
    /// its old value.
    fn end(
        &mut self,
        plan: &Plan,
        places: &Places<'_>,
        buffers: &FxHashMap<Source, usize>,
        terms: &Terms<'_>,
    ) -> Result<()> {
        let (mut commits, mut outputs) = (Vec::new(), Vec::<usize>::new());
        for (i, &source) in plan.outputs().iter().enumerate() {
            let ((base, view), ty) = (places.at(source), plan.ty(source));
            let buffer = *buffers.get(&base).ok_or_else(|| error::internal("a result is lost"))?;
            let is_start = matches!(view.offset, Word::Size(at) if at == Dim::new(0));
            let is_own = matches!(base, Source::Slot(_)) && view.is_dense && is_start;
            let input = terms.state.iter().find(|(_, output)| *output as usize == i);
            let is_free = input.is_some() || !outputs.contains(&buffer);
            let from = match is_own && is_free {
                true => buffer,
                false => self.copied(buffer, view, &ty, terms)?,
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
            let play = self.own("reset", RESET, vec![faults], vec![Word::Size(words)], words);
            self.dispatches.insert(0, play);
        }
        for (from, to, bytes) in commits {
            let (faults, vectors) = (self.faults(), bytes / Dim::new(16));
            let words = vec![Word::Size(vectors), Word::Bits(slots as u32)];
            let play = self.own("commit", COMMIT, vec![from, to, faults], words, vectors);
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
    fn copied(&mut self, from: usize, view: View, ty: &Type, terms: &Terms<'_>) -> Result<usize> {
        let to = self.buffer(bytes(ty.dtype, count(ty.shape.dims())));
        let inputs = [Input::Array { range: 0, dtype: ty.dtype, view }];
        let out = Output { range: 1, ty: ty.clone() };
        let kernel = moves::kernel(&Op::Broadcast(ty.shape.clone()), &inputs, &out)?;
        self.kernel(&kernel, "copy", Site::default(), &[from, to], &[], terms)?;
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
