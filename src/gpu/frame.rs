//! Where the values of a plan, or of a body of control flow, lie.

use rustc_hash::FxHashMap;

use crate::error::{self, Result};
use crate::gpu::kernel::View;
use crate::gpu::moves;
use crate::schedule::{Operand, Plan, Source, Step, Work};

/// Where a value lies.
#[derive(Clone)]
pub struct Held {
    /// The buffer
    pub buffer: usize,
    /// How it lies there
    pub view: View,
}

/// A plan whose inputs lie somewhere.
pub struct Frame<'a> {
    /// The plan
    pub plan: &'a Plan,
    /// The buffers of slots that have their own, as long as somebody reads them
    pub buffers: FxHashMap<Source, usize>,
    inputs: Vec<Held>,
    constants: Vec<usize>,
    /// By buffer the first input or constant that lies there, which stands for all
    first: FxHashMap<usize, Source>,
    /// The values that others are views of, and how
    views: FxHashMap<Source, (Source, View)>,
    /// By value with a place of its own: the last step that reads it
    last: FxHashMap<Source, usize>,
}

impl<'a> Frame<'a> {
    /// A plan on inputs and constants that lie in these buffers.
    pub fn new(plan: &'a Plan, inputs: Vec<Held>, constants: Vec<usize>) -> Frame<'a> {
        let mut first = FxHashMap::default();
        for (i, held) in inputs.iter().enumerate() {
            first.entry(held.buffer).or_insert(Source::Input(i as u32));
        }
        for (i, &buffer) in constants.iter().enumerate() {
            first.entry(buffer).or_insert(Source::Constant(i as u32));
        }
        let (buffers, views, last) = Default::default();
        let mut frame = Frame { plan, buffers, inputs, constants, first, views, last };
        for (at, step) in plan.steps().iter().enumerate() {
            for operand in &step.args {
                if let Operand::Array(x) = *operand {
                    let base = frame.at(x).0;
                    frame.last.insert(base, at);
                }
            }
            if let Some(view) = frame.view(step) {
                frame.views.insert(Source::Slot(step.results[0]), view);
            }
        }
        for &source in plan.outputs() {
            let base = frame.at(source).0;
            frame.last.insert(base, usize::MAX);
        }
        frame
    }

    /// The value in whose range a value lies, and how.
    pub fn at(&self, source: Source) -> (Source, View) {
        if let Some(known) = self.views.get(&source) {
            return known.clone();
        }
        let dense = || View::dense(self.plan.ty(source).shape.dims());
        let (buffer, view) = match source {
            Source::Input(i) => {
                let held = &self.inputs[i as usize];
                (held.buffer, held.view.clone())
            }
            Source::Constant(i) => (self.constants[i as usize], dense()),
            Source::Slot(_) => return (source, dense()),
        };
        (self.first.get(&buffer).copied().unwrap_or(source), view)
    }

    /// The buffer of a value with a place of its own.
    pub fn buffer(&self, base: Source) -> Result<usize> {
        let found = match base {
            Source::Input(i) => self.inputs.get(i as usize).map(|held| held.buffer),
            Source::Constant(i) => self.constants.get(i as usize).copied(),
            Source::Slot(_) => self.buffers.get(&base).copied(),
        };
        found.ok_or_else(|| error::internal("a value has no buffer"))
    }

    /// Where a value lies.
    pub fn held(&self, source: Source) -> Result<Held> {
        let (base, view) = self.at(source);
        Ok(Held { buffer: self.buffer(base)?, view })
    }

    /// Whether a slot is a view of another value.
    pub fn is_view(&self, slot: Source) -> bool {
        self.views.contains_key(&slot)
    }

    /// The last step that reads a value, or a view of it; beyond all steps if it is a result.
    pub fn last(&self, source: Source) -> Option<usize> {
        self.last.get(&self.at(source).0).copied()
    }

    /// The slots that nobody reads after a step.
    pub fn over(&self, step: &Step, at: usize) -> Vec<Source> {
        let read = step.args.iter().filter_map(|operand| match *operand {
            Operand::Array(x) => Some(self.at(x).0),
            Operand::Number(_) => None,
        });
        let made = step.results.iter().map(|&slot| Source::Slot(slot));
        let is_over = |base: &Source| self.last.get(base).is_none_or(|&last| last <= at);
        let mut over: Vec<Source> =
            read.chain(made).filter(|x| matches!(x, Source::Slot(_)) && is_over(x)).collect();
        over.dedup();
        over
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
