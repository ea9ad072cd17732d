//! The end of a trace in the bindings: its inputs, results and updates become an executable.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use pyo3::prelude::*;

use super::{Executable, Frozen, Hold, Input, NumberSource, Output, Place, Symbols, Updated};
use crate::array::Array;
use crate::engine::compile::{Compiled, Ending, GradientUse};
use crate::engine::tape::History;
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
        freezes: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Executable> {
        let mut given = Vec::new();
        for object in outputs {
            given.push(self.output(py, object)?);
        }
        let mut changed = self.ending.updates().or_raise(py)?;
        let mut gradients = self.ending.gradients().or_raise(py)?;
        let mut inputs = self.inputs(py)?;
        let mut values = None;
        let mut frozen = Vec::new();
        if let Some(named) = freezes {
            let at = |i: usize| refused(self.name, &inputs[i].place, named);
            if let Some(error) = changed.iter().find_map(|&(i, _)| at(i)("updates")) {
                return Err(error);
            }
            let by = gradients.iter().find_map(|found| at(found.input)("takes the gradient of"));
            if let Some(error) = by {
                return Err(error);
            }
            let (known, left) = frozen_of(py, self.name, &mut inputs, &mut frozen)?;
            changed.iter_mut().for_each(|(i, _)| *i = left[*i]);
            gradients.iter_mut().for_each(|found| found.input = left[found.input]);
            values = Some(known);
        }
        let mut updates = Vec::new();
        for &(input, result) in &changed {
            let place = inputs[input].place.another(py);
            updates.push(Updated { place, input, result });
        }
        self.put_arguments_outside(py);
        let (patterns, symbols) = self.patterns();
        let dims: Vec<Dim> = symbols.iter().map(|(dim, ..)| *dim).collect();
        hold(&mut inputs, &changed, &gradients);
        let made = self.ending.finish(&dims, &changed, values.as_deref()).or_raise(py)?;
        let Compiled { program, differentiable, constraints, hosts, pinned, moved } = made;
        let hosts = hosts.iter().filter_map(|op| kept(py, op)).collect();
        Ok(Executable {
            name: self.name.into(),
            inputs,
            frozen,
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

    /// Arguments belong to no module, whichever read them first; parameters belong to that one.
    fn put_arguments_outside(&self, py: Python<'_>) {
        for capture in self.ending.captures() {
            if let Some(Place::Argument(_)) = self.place(py, capture) {
                self.trace.read(|graph| graph.put_outside(capture.input));
            }
        }
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

/// The error of a frozen function that does something to a tensor that it reaches by itself, if it
/// does so to this one. `named` gives the tensor's name.
fn refused<'a>(
    name: &'a str,
    place: &'a Place,
    named: &'a Bound<'_, PyAny>,
) -> impl Fn(&str) -> Option<PyErr> + 'a {
    move |what| {
        let Place::Handle(object) = place else { return None };
        let called = named.call1((object,)).and_then(|text| text.extract::<String>());
        Some(match called {
            Ok(called) => {
                let facts = format!("it {what} {called}, which is a constant of it");
                to_python(named.py(), error::bad_capture(name, "it is frozen", facts))
            }
            Err(error) => error,
        })
    }
}

/// What a frozen function reaches by itself leaves its inputs. Returns by old position the value
/// that is its constant, and the new positions of what is left.
fn frozen_of(
    py: Python<'_>,
    name: &str,
    inputs: &mut Vec<Input>,
    frozen: &mut Vec<Frozen>,
) -> PyResult<(Vec<Option<Array>>, Vec<usize>)> {
    let (mut values, mut left) = (Vec::with_capacity(inputs.len()), Vec::new());
    for input in std::mem::take(inputs) {
        left.push(inputs.len());
        match input.place {
            Place::Handle(object) => {
                let tensor = handle(name, object.bind(py))?;
                let value = trace::suspended(|| tensor.try_value()).or_raise(py)?;
                if let History::Leaf(leaf) = &value.history {
                    leaf.freeze(name);
                }
                let array = value.array;
                values.push(Some(array.clone()));
                frozen.push(Frozen { object, array });
            }
            Place::Argument(_) | Place::Gradient(_) | Place::Key => {
                values.push(None);
                inputs.push(input);
            }
        }
    }
    for input in inputs.iter_mut() {
        if let Place::Gradient(holder) = &mut input.place {
            *holder = left[*holder];
        }
    }
    Ok((values, left))
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
