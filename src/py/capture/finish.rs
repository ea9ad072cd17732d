//! The end of a trace in the bindings: its inputs, results and updates become an executable.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use pyo3::prelude::*;

use super::{Executable, Hold, Input, NumberSource, Output, Place, Symbols, Updated};
use crate::engine::compile::{Compiled, Ending, GradientUse};
use crate::engine::trace::{self, Capture, Source};
use crate::error;
use crate::graph::Host;
use crate::ops::emit::Emit;
use crate::py::errors::{OrRaise, to_python};
use crate::py::tensor::handle;
use crate::shape::{Dim, Shape};

/// The work of ending a trace: Python's handles become places, the rest is the engine's.
pub(super) struct Finish<'a> {
    trace: &'a Arc<trace::Trace>,
    name: &'a str,
    args: &'a [Bound<'a, PyAny>],
    ending: Ending<'a>,
}

impl<'a> Finish<'a> {
    pub(super) fn new(
        trace: &'a Arc<trace::Trace>,
        name: &'a str,
        args: &'a [Bound<'a, PyAny>],
    ) -> Finish<'a> {
        Finish { trace, name, args, ending: Ending::new(trace, name) }
    }

    /// The place of a handle: an argument, or what the function reached by itself.
    fn place(&self, py: Python<'_>, capture: &Capture) -> Option<Place> {
        let object = capture.handle.as_ref()?.downcast_ref::<Py<PyAny>>()?;
        Some(self.place_of(object.bind(py)))
    }

    fn place_of(&self, object: &Bound<'_, PyAny>) -> Place {
        match self.args.iter().position(|arg| arg.is(object)) {
            Some(i) => Place::Argument(i),
            None => Place::Handle(object.clone().unbind()),
        }
    }

    pub(super) fn run(
        mut self,
        py: Python<'_>,
        outputs: &[Bound<'_, PyAny>],
        numbers: Vec<NumberSource>,
    ) -> PyResult<Executable> {
        let mut given = Vec::new();
        for object in outputs {
            given.push(self.output(py, object)?);
        }
        let changed = self.ending.updates().or_raise(py)?;
        let gradients = self.ending.gradients().or_raise(py)?;
        let mut inputs = self.inputs(py)?;
        let mut updates = Vec::new();
        for &(input, result) in &changed {
            if let Some(place) = self.place(py, &self.ending.captures()[input]) {
                updates.push(Updated { place, input, result });
            }
        }
        let (patterns, symbols) = self.patterns();
        let dims: Vec<Dim> = symbols.iter().map(|(dim, ..)| *dim).collect();
        hold(&mut inputs, &changed, &gradients);
        let made = self.ending.finish(&dims, &changed).or_raise(py)?;
        let Compiled { program, differentiable, constraints, hosts, pinned, moved } = made;
        let hosts = hosts.iter().filter_map(|op| kept(py, op)).collect();
        Ok(Executable {
            name: self.name.into(),
            inputs,
            outputs: given,
            updates,
            gradients,
            patterns,
            symbols,
            constraints,
            numbers,
            hosts,
            pinned,
            moved,
            program: Arc::new(program),
            differentiable,
            calls: AtomicU64::new(0),
        })
    }

    /// The shapes of the arguments that were taken in as such, and where their symbols are told.
    fn patterns(&self) -> (Vec<Option<Shape>>, Symbols) {
        let mut patterns = vec![None; self.args.len()];
        let mut symbols = Symbols::new();
        for capture in self.ending.captures() {
            let object = capture.handle.as_ref().and_then(|h| h.downcast_ref::<Py<PyAny>>());
            let is_it = |arg: &Bound<'_, PyAny>| object.is_some_and(|o| o.as_ptr() == arg.as_ptr());
            let Some(i) = self.args.iter().position(is_it) else { continue };
            let shape = self.trace.read(|graph| graph.ty(capture.input)).shape;
            for (axis, &dim) in shape.dims().iter().enumerate() {
                // Equal ones too: each has a size of its own to be checked.
                let is_new = symbols.iter().all(|(known, ..)| known.key() != dim.key());
                if dim.is_symbol() && is_new {
                    symbols.push((dim, i, axis));
                }
            }
            patterns[i] = Some(shape);
        }
        (patterns, symbols)
    }

    /// What a returned tensor is at a call.
    fn output(&mut self, py: Python<'_>, object: &Bound<'_, PyAny>) -> PyResult<Output> {
        let tensor = handle(self.name, object)?;
        if !tensor.with_own(|value| self.ending.is_own(value)) {
            return Ok(Output::Handle(self.place_of(object)));
        }
        let value = tensor.try_value().or_raise(py)?;
        self.ending.returns(&value).or_raise(py).map(Output::Result)
    }

    fn inputs(&self, py: Python<'_>) -> PyResult<Vec<Input>> {
        let mut inputs = Vec::new();
        for capture in self.ending.captures() {
            let place = match &capture.source {
                Source::Handle => self.place(py, capture),
                Source::Key => Some(Place::Key),
                Source::Gradient(leaf) => self.ending.holder(leaf).map(Place::Gradient),
                Source::Outer(_) => None,
            };
            let Some(place) = place else {
                return Err(to_python(py, error::internal("a capture without a place")));
            };
            let real = capture.leaf.as_ref().and_then(|inside| inside.real());
            let hooks = real.map(|leaf| leaf.hooks.numbers()).unwrap_or_default();
            inputs.push(Input { place, wants: capture.leaf.is_some(), hooks, hold: Hold::No });
        }
        Ok(inputs)
    }
}

/// The object that holds the code of an op.
fn kept(py: Python<'_>, op: &Host) -> Option<Py<PyAny>> {
    // SAFETY: the op keeps the object alive.
    op.0.object().map(|object| unsafe { Bound::from_borrowed_ptr(py, object.cast()) }.unbind())
}

/// Says of the inputs which are held: those that are updated, and those whose gradients are.
fn hold(inputs: &mut [Input], updated: &[(usize, usize)], gradients: &[GradientUse]) {
    for found in gradients.iter().filter(|found| found.after.is_some()) {
        inputs[found.input].hold = Hold::Gradient;
    }
    for &(i, _) in updated {
        inputs[i].hold = Hold::Value;
    }
}
