//! Control flow in programs: loops are repeated dispatches, and all bodies of a branch run, of
//! which one gives the results.

use rustc_hash::FxHashMap;

use super::{Offence, Program, Terms, text};
use crate::dtype::DType;
use crate::error::{self, Result};
use crate::gpu::frame::{Frame, Held};
use crate::gpu::kernel::{Kernel, Place, Refusal, Times, View, Word, count};
use crate::gpu::shader::Shader;
use crate::graph::{ControlFlowKind, Effect};
use crate::ops::op::Type;
use crate::schedule::{Bodies, Operand, Source, Step};
use crate::shape::{Dim, Shape};

const ZERO: Dim = Dim::new(0);

/// A body of a branch that gives the results if it is chosen.
#[derive(Clone, Copy)]
struct Guard {
    /// The buffer of the choice, an int64
    buffer: usize,
    /// The element there
    at: Word,
    body: u32,
    last: u32,
}

impl Guard {
    fn words(self) -> [Word; 4] {
        let at = self.at.times(2);
        [at, Word::Bits(self.body), Word::Bits(self.last), Word::Bits(0)]
    }
}

/// A body on inputs.
struct Body<'a> {
    inputs: Vec<Held>,
    /// Where some of its results are put, by position, if they may be
    targets: &'a [usize],
}

impl Program {
    /// The dispatches of an op of control flow.
    pub(super) fn flow(
        &mut self,
        frame: &Frame<'_>,
        step: &Step,
        flow: &Bodies,
        terms: &Terms<'_>,
        offences: &mut Vec<Offence>,
    ) -> Result<()> {
        let mut args = Vec::new();
        for operand in &step.args {
            args.push(match *operand {
                Operand::Array(x) => (frame.held(x)?, frame.plan.ty(x)),
                Operand::Number(_) => return Err(error::internal("control flow on a number")),
            });
        }
        let slots = step.results.iter().map(|&slot| frame.buffer(Source::Slot(slot)));
        let results = slots.collect::<Result<Vec<usize>>>()?;
        match *flow.kind() {
            ControlFlowKind::Scan { carry, xs, length, reverse } => {
                let counts = [carry as usize, xs as usize];
                self.scan(flow, counts, length, reverse, &args, &results, terms, offences)
            }
            ControlFlowKind::Branch => self.branch(flow, &args, &results, terms, offences),
            ControlFlowKind::Host(_) if !flow.plans().is_empty() => {
                let inputs = args.into_iter().map(|(held, _)| held).collect();
                let made = self.body(flow, 0, Body { inputs, targets: &[] }, terms, offences)?;
                for ((from, ty), &to) in made.results.iter().zip(flow.results()).zip(&results) {
                    self.put(from, ty, to, ZERO, None, terms)?;
                }
                self.free.extend(made.own);
                Ok(())
            }
            ControlFlowKind::While { .. } | ControlFlowKind::Host(_) => {
                Err(error::bad_graph("export", "runs on the host", flow.kind().name()))
            }
        }
    }

    #[allow(clippy::too_many_arguments, reason = "the parts of a scan")]
    fn scan(
        &mut self,
        flow: &Bodies,
        [carry, xs]: [usize; 2],
        length: Dim,
        reverse: bool,
        args: &[(Held, Type)],
        results: &[usize],
        terms: &Terms<'_>,
        offences: &mut Vec<Offence>,
    ) -> Result<()> {
        let carries = &results[..carry.min(results.len())];
        for ((from, ty), &to) in args.iter().zip(carries) {
            self.put(from, ty, to, ZERO, None, terms)?;
        }
        let scanned = &args[carry..carry + xs];
        let n = scanned.first().map_or(length, |(_, ty)| ty.shape.dims()[0]);
        // Only strides of one sign have a place that the round tells.
        let (mut copies, mut rows) = (Vec::new(), Vec::new());
        for (held, ty) in scanned {
            rows.push(match row(held, Dim::named(&self.round)) {
                Some(_) => held.clone(),
                None => {
                    let buffer = self.copied(held, ty, terms)?;
                    copies.push(buffer);
                    Held { buffer, view: View::dense(ty.shape.dims()) }
                }
            });
        }
        let at = self.repeat(Times::Size(n));
        let round = self.repeats[at].round;
        let index = if reverse { n - Dim::ONE - round } else { round };
        let mut inputs = Vec::new();
        for (&buffer, (_, ty)) in carries.iter().zip(args) {
            inputs.push(Held { buffer, view: View::dense(ty.shape.dims()) });
        }
        for held in &rows {
            let row = row(held, index).ok_or_else(|| error::internal("a row has no place"))?;
            inputs.push(row);
        }
        inputs.extend(args[carry + xs..].iter().map(|(held, _)| held.clone()));
        let made = self.body(flow, 0, Body { inputs, targets: carries }, terms, offences)?;
        for ((from, ty), &to) in made.results.iter().zip(flow.results()).zip(results).skip(carry) {
            let one = Type::new(ty.dtype, Shape::from_dims(&ty.shape.dims()[1..]));
            self.put(from, &one, to, index * count(one.shape.dims()), None, terms)?;
        }
        // A carry that is read from the place of another is out of the way before that is written.
        let (mut moves, mut free) = (Vec::new(), Vec::new());
        for ((from, ty), &to) in made.results.iter().zip(flow.results()).zip(carries) {
            if from.buffer == to && from.view.is_whole() {
                continue;
            }
            match carries.contains(&from.buffer) {
                true => {
                    let buffer = self.copied(from, ty, terms)?;
                    free.push(buffer);
                    moves.push((Held { buffer, view: View::dense(ty.shape.dims()) }, ty, to));
                }
                false => moves.push((from.clone(), ty, to)),
            }
        }
        for (from, ty, to) in moves {
            self.put(&from, ty, to, ZERO, None, terms)?;
        }
        self.free.extend(free.into_iter().chain(copies).chain(made.own));
        self.repeats[at].range.end = self.dispatches.len();
        Ok(())
    }

    /// Runs all bodies; what they refuse counts only for the one that is chosen.
    fn branch(
        &mut self,
        flow: &Bodies,
        args: &[(Held, Type)],
        results: &[usize],
        terms: &Terms<'_>,
        offences: &mut Vec<Offence>,
    ) -> Result<()> {
        let Some(((index, ty), args)) = args.split_first() else {
            return Err(error::internal("a branch without a choice"));
        };
        if ty.dtype != DType::I64 {
            return Err(error::internal("the choice of a branch is no int64"));
        }
        let last = flow.plans().len().saturating_sub(1) as u32;
        for body in 0..=last {
            let inputs = args.iter().map(|(held, _)| held.clone()).collect();
            let guard = Guard { buffer: index.buffer, at: index.view.offset, body, last };
            let slots = self.refusals.len();
            let body = Body { inputs, targets: &[] };
            let made = self.steps_of(flow, guard.body as usize, body, terms, offences)?;
            self.keep(slots, Some(guard));
            for ((from, ty), &to) in made.results.iter().zip(flow.results()).zip(results) {
                self.put(from, ty, to, ZERO, Some(guard), terms)?;
            }
            self.free.extend(made.own);
        }
        Ok(())
    }

    /// A body, and what it refuses.
    fn body(
        &mut self,
        flow: &Bodies,
        which: usize,
        body: Body<'_>,
        terms: &Terms<'_>,
        offences: &mut Vec<Offence>,
    ) -> Result<Made> {
        let slots = self.refusals.len();
        let made = self.steps_of(flow, which, body, terms, offences)?;
        self.keep(slots, None);
        Ok(made)
    }

    fn steps_of(
        &mut self,
        flow: &Bodies,
        which: usize,
        body: Body<'_>,
        terms: &Terms<'_>,
        offences: &mut Vec<Offence>,
    ) -> Result<Made> {
        let plan = &flow.plans()[which];
        let constants = self.constants(plan);
        let mut frame = Frame::new(plan, body.inputs, constants);
        // A result may replace a carry in place once nobody reads the carry any more.
        let mut targets = FxHashMap::default();
        for (k, (&source, &to)) in plan.outputs().iter().zip(body.targets).enumerate() {
            let made = plan
                .steps()
                .iter()
                .position(|step| step.results.iter().any(|&slot| Source::Slot(slot) == source));
            let last = frame.last(Source::Input(k as u32));
            if let Some(made) = made
                && last.is_none_or(|last| last < made)
                && !frame.is_view(source)
            {
                targets.entry(source).or_insert(to);
            }
        }
        self.steps(&mut frame, &targets, terms, offences);
        let outputs = plan.outputs().iter();
        let results = outputs.map(|&source| frame.held(source)).collect::<Result<_>>()?;
        let own = frame.buffers.iter().filter(|(slot, _)| !targets.contains_key(slot));
        let mut own: Vec<usize> = own.map(|(_, &buffer)| buffer).collect();
        own.sort_unstable();
        Ok(Made { results, own })
    }

    /// Keeps what a round or a body refused apart from what the next one refuses.
    fn keep(&mut self, from: usize, guard: Option<Guard>) {
        let to = self.refusals.len();
        if from == to {
            return;
        }
        self.refusals.extend_from_within(from..to);
        let faults = self.faults();
        let slots = [to - from, from, to].map(|n| Word::Bits(n as u32));
        let mut words = slots.to_vec();
        let mut bindings = vec![faults];
        if let Some(guard) = guard {
            words.push(Word::Bits(0));
            words.extend(guard.words());
            bindings.push(guard.buffer);
        }
        let text = text::keep(guard.is_some());
        let play = self.own("keep", &text, bindings, words, Dim::new(to - from));
        self.dispatches.push(play);
    }

    /// Copies a value without gaps into a buffer, from an element there on.
    fn put(
        &mut self,
        from: &Held,
        ty: &Type,
        to: usize,
        at: Dim,
        guard: Option<Guard>,
        terms: &Terms<'_>,
    ) -> Result<()> {
        let is_dense = from.view.is_dense && from.buffer != to;
        let (true, Word::Size(start)) = (is_dense, from.view.offset) else {
            let buffer = self.copied(from, ty, terms)?;
            let from = Held { buffer, view: View::dense(ty.shape.dims()) };
            self.put(&from, ty, to, at, guard, terms)?;
            self.free.push(buffer);
            return Ok(());
        };
        let (all, size) = (count(ty.shape.dims()), Dim::new(ty.dtype.size()));
        let is_start = at == ZERO && start == ZERO;
        let is_wordy = ty.dtype.size() >= 4 || is_start;
        let unit = if is_wordy { Dim::new(ty.dtype.size().div_ceil(4)) } else { size };
        let (length, text) = match is_wordy {
            true => ((all * size).div_ceil(Dim::new(4)), text::copy_words(guard.is_some())),
            false => (all * size, text::copy_bytes(guard.is_some())),
        };
        let invocations = match is_wordy {
            true => length,
            false => length.div_ceil(Dim::new(4)) + Dim::ONE,
        };
        let mut words = [length, start * unit, at * unit].map(Word::Size).to_vec();
        let mut bindings = vec![from.buffer, to];
        if let Some(guard) = guard {
            words.push(Word::Bits(0));
            words.extend(guard.words());
            bindings.push(guard.buffer);
        }
        let mut play = self.own("copy", &text, bindings, words, invocations);
        play.rounds = Dim::new(4);
        self.dispatches.push(play);
        Ok(())
    }

    /// The dispatches of an effect.
    pub(super) fn effect(
        &mut self,
        frame: &Frame<'_>,
        step: &Step,
        effect: &Effect,
        terms: &Terms<'_>,
    ) -> Result<()> {
        let (Effect::Check(message), [Operand::Array(x)]) = (effect, &step.args[..]) else {
            return Err(error::bad_graph("export", "runs on the host", effect.name()));
        };
        let (held, ty) = (frame.held(*x)?, frame.plan.ty(*x));
        if ty.dtype != DType::Bool {
            return Err(error::internal("what is checked is no truth value"));
        }
        let Held { buffer, view } = held;
        let mut shader = Shader::new();
        let at = shader.position_of(&view, "i");
        let lane = shader.lane_at(Place::Range(0), DType::Bool, &at);
        let slot = shader.word(Word::Slot);
        let faults = shader.memory_as(Place::Faults, "atomic<u32>");
        shader.line(format!("if {lane} == 0u {{ atomicMin(&{faults}[4u * {slot}], i); }}"));
        let mut kernel = Kernel::of(shader.each(view.count(), ZERO));
        let (message, sizes) = (message.to_string(), ty.shape.dims().into());
        kernel.refusal = Some(Refusal::False { message, sizes });
        self.kernel(&kernel, "check", step.site, &[buffer], &[], terms)
    }
}

/// What a body gave: its results, and the buffers that are free once they are read.
struct Made {
    results: Vec<Held>,
    own: Vec<usize>,
}

/// Element `i` of the leading axis.
fn row(held: &Held, i: Dim) -> Option<Held> {
    let view = &held.view;
    let offset = view.offset.plus(view.strides[0].scaled(i))?;
    let (sizes, strides) = (view.sizes[1..].into(), view.strides[1..].into());
    let row = View { sizes, strides, offset, is_dense: false }.settled();
    Some(Held { buffer: held.buffer, view: row })
}
