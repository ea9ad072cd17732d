//! The end of a trace: what it was given and gave becomes what runs.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use parking_lot::Mutex;
use pyo3::prelude::*;
use rustc_hash::FxHashSet;

use super::{Executable, GradientUse, Hold, Input, NumberSource, Output, Place, Symbols};
use crate::engine::backward::{self, Options};
use crate::engine::call;
use crate::engine::program::{Program, cut};
use crate::engine::tape::{self, First, History, Leaf, Value};
use crate::engine::trace::{self, Capture, Source};
use crate::error;
use crate::graph::{List, resize};
use crate::ops::emit::{Emit, Id};
use crate::ops::number as ops;
use crate::ops::op::Type;
use crate::passes::with_stops;
use crate::py::errors::{OrRaise, to_python};
use crate::py::tensor::handle;
use crate::shape::{Bindings, Constraint, Dim, Relation, Scope, Shape};

/// The work of ending a trace.
pub(super) struct Finish<'a> {
    trace: &'a Arc<trace::Trace>,
    name: String,
    args: &'a [Bound<'a, PyAny>],
    captures: Vec<Capture>,
    /// The nodes of the results
    results: Vec<Id>,
    /// The values of the results, with their histories
    values: Vec<Value>,
    /// How many of them are returned: gradients flow through these
    returned: usize,
}

impl<'a> Finish<'a> {
    pub(super) fn new(
        trace: &'a Arc<trace::Trace>,
        name: String,
        args: &'a [Bound<'a, PyAny>],
    ) -> PyResult<Finish<'a>> {
        let (results, values) = (Vec::new(), Vec::new());
        Ok(Finish { trace, name, args, captures: trace.captures(), results, values, returned: 0 })
    }

    /// Names a value as a result.
    fn result(&mut self, py: Python<'_>, value: &Value) -> PyResult<usize> {
        let id = self.trace.node(&self.name, value).or_raise(py)?;
        self.results.push(id);
        self.values.push(value.clone());
        Ok(self.results.len() - 1)
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
        self.returned = self.results.len();
        let mut updates = Vec::new();
        for capture in self.captures.clone() {
            let changed = self.trace.written(&capture).or_raise(py)?.is_some();
            if let (Source::Handle, true) = (&capture.source, changed)
                && let Some(place) = self.place(py, &capture)
            {
                let value = capture.cell.lock().clone();
                updates.push((place, self.result(py, &value)?));
            }
        }
        let gradients = self.gradients(py)?;
        // Reading gradients may have added captures.
        self.captures = self.trace.captures();
        let mut inputs = self.inputs(py)?;
        // What differentiation appends is not part of the function itself.
        let count = self.trace.read(|graph| graph.len());
        let differentiable = self.differentiate(py)?;
        let (patterns, symbols) = self.patterns();
        let pinned = self.pinned();
        let (list, _) = self.trace.close();
        let list = merged(list, &self.trace.scope().constraints()).or_raise(py)?;
        let dims: Vec<Dim> = symbols.iter().map(|(dim, ..)| *dim).collect();
        let mut plain = list.until(count);
        plain.outputs = self.results.clone();
        let silent = self.trace.silent();
        let flowing = differentiable
            .map(|d| d.flowing(&list, &dims, self.trace.scope(), &self.results, &silent))
            .transpose()
            .or_raise(py)?;
        let scope = self.trace.scope().clone();
        let donated = donated(&inputs, &updates);
        hold(&mut inputs, &donated, &gradients);
        let program = Program::new(plain, dims, scope.clone()).donating(donated);
        // What passes ask about sizes is relied on as well.
        program.optimized().or_raise(py)?;
        let constraints = scope.constraints();
        Ok(Executable {
            name: self.name,
            inputs,
            outputs: given,
            updates,
            gradients,
            patterns,
            symbols,
            constraints,
            numbers,
            pinned,
            program: Arc::new(program),
            differentiable: flowing,
            calls: AtomicU64::new(0),
        })
    }

    /// The shapes of the arguments that were taken in as such, and where their symbols are told.
    fn patterns(&self) -> (Vec<Option<Shape>>, Symbols) {
        let mut patterns = vec![None; self.args.len()];
        let mut symbols = Symbols::new();
        for capture in &self.captures {
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

    /// The numbers that the trace looked at, with their values.
    fn pinned(&self) -> Vec<(usize, f64)> {
        let looked: Vec<u32> = self.trace.read(|graph| graph.looked().to_vec());
        let places: Vec<u32> = self.trace.read(|graph| {
            let list = graph.list();
            let given = |i: &u32| matches!(list.numbers[*i as usize], ops::Number::Input);
            (0..list.numbers.len() as u32).filter(given).collect()
        });
        let mut pinned = Vec::new();
        for (k, i) in places.into_iter().enumerate() {
            if looked.contains(&i) {
                pinned.push((k, self.trace.number_now(i)));
            }
        }
        pinned
    }

    /// What a returned tensor is at a call.
    fn output(&mut self, py: Python<'_>, object: &Bound<'_, PyAny>) -> PyResult<Output> {
        let tensor = handle(&self.name, object)?;
        let is_outside = tensor.with_own(|value| match trace::node_of(&value.array) {
            Some((trace, _)) => !Arc::ptr_eq(trace, self.trace),
            None => true,
        });
        if is_outside {
            return Ok(Output::Handle(self.place_of(object)));
        }
        let value = tensor.try_value().or_raise(py)?;
        self.result(py, &value).map(Output::Result)
    }

    fn inputs(&self, py: Python<'_>) -> PyResult<Vec<Input>> {
        let mut inputs = Vec::new();
        for capture in &self.captures {
            let place = match &capture.source {
                Source::Handle => self.place(py, capture),
                Source::Key => Some(Place::Key),
                Source::Gradient(leaf) => self.holder(leaf).map(Place::Gradient),
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

    /// The input whose leaf this is.
    fn holder(&self, leaf: &Arc<Leaf>) -> Option<usize> {
        self.captures.iter().position(|capture| {
            let real = capture.leaf.as_ref().and_then(|inside| inside.real());
            real.is_some_and(|real| Arc::ptr_eq(real, leaf))
        })
    }

    fn gradients(&mut self, py: Python<'_>) -> PyResult<Vec<GradientUse>> {
        let mut uses = Vec::new();
        for (input, capture) in self.captures.clone().into_iter().enumerate() {
            let Some(leaf) = capture.leaf.as_ref().filter(|leaf| leaf.real().is_some()) else {
                continue;
            };
            let (first, cell) = leaf.touched();
            if first == First::Nothing {
                continue;
            }
            let initial = self.captures.iter().chain(&self.trace.captures()).find_map(|other| {
                match &other.source {
                    Source::Gradient(real) if leaf.real().is_some_and(|l| Arc::ptr_eq(l, real)) => {
                        Some(other.clone())
                    }
                    _ => None,
                }
            });
            let same_cell = match (&initial, &cell) {
                (Some(initial), Some(cell)) => Arc::ptr_eq(&initial.cell, cell),
                _ => false,
            };
            let unchanged = same_cell
                && match &initial {
                    Some(initial) => self.trace.written(initial).or_raise(py)?.is_none(),
                    None => false,
                };
            let after = match cell {
                _ if unchanged => None,
                None if first == First::Read && initial.is_none() => None,
                None => Some(None),
                Some(cell) => {
                    let value = cell.lock().clone();
                    Some(Some(self.result(py, &value)?))
                }
            };
            uses.push(GradientUse { input, first, present: initial.is_some(), after, same_cell });
        }
        Ok(uses)
    }

    /// Appends the backward nodes, where a result leads to an input that wants a gradient.
    fn differentiate(&self, py: Python<'_>) -> PyResult<Option<Cut>> {
        let reached: Vec<(usize, Value)> = self
            .captures
            .iter()
            .enumerate()
            .filter_map(|(i, capture)| {
                let leaf = capture.leaf.clone()?;
                let mut value = self.trace.value(capture.input);
                value.history = History::Leaf(leaf);
                Some((i, value))
            })
            .collect();
        let results: Vec<usize> =
            (0..self.returned).filter(|&i| self.values[i].requires_grad()).collect();
        if reached.is_empty() || results.is_empty() {
            return Ok(None);
        }
        let count = self.trace.read(|graph| graph.len());
        let work = |results: &[usize]| -> error::Result<Cut> {
            let mut seeds = Vec::new();
            let mut pairs = Vec::new();
            for &i in results {
                let y = &self.values[i];
                let seed = self.trace.input(Type::new(y.dtype(), y.shape().clone()))?;
                seeds.push(self.trace.node(&self.name, &seed)?);
                pairs.push((y.clone(), Some(seed)));
            }
            let wanted: Vec<Value> = reached.iter().map(|(_, value)| value.clone()).collect();
            let options = Options { retain_graph: true, create_graph: false };
            let was = tape::set_recording(false);
            let found = backward::gradients(&self.name, &pairs, &wanted, options);
            tape::set_recording(was);
            let (mut wrt, mut gradients) = (Vec::new(), Vec::new());
            for ((i, _), g) in reached.iter().zip(found?) {
                if let Some(g) = g {
                    wrt.push(*i);
                    gradients.push(self.trace.node(&self.name, &g)?);
                }
            }
            Ok(Cut { count, seeds, wrt, gradients, results: results.to_vec() })
        };
        let is_freed =
            |found: &error::Result<Cut>| found.as_ref().is_err_and(|error| error.code() == "freed");
        let mut found = work(&results);
        if is_freed(&found) {
            // A loss whose backward ran inside: its history is used up, as it is in eager code.
            let alive: Vec<usize> =
                results.into_iter().filter(|&i| !is_freed(&work(&[i]))).collect();
            if alive.is_empty() {
                return Ok(None);
            }
            found = work(&alive);
        }
        let cut = found.or_raise(py)?;
        Ok((!cut.wrt.is_empty()).then_some(cut))
    }
}

/// The inputs that are updated, with the results they become.
fn donated(inputs: &[Input], updates: &[(Place, usize)]) -> Vec<(u32, u32)> {
    let mut pairs = Vec::new();
    for (place, result) in updates {
        if let Some(i) = inputs.iter().position(|input| input.place.is(place)) {
            pairs.push((i as u32, *result as u32));
        }
    }
    pairs
}

/// Says of the inputs which are held: those that are updated, and those whose gradients are.
fn hold(inputs: &mut [Input], updated: &[(u32, u32)], gradients: &[GradientUse]) {
    for found in gradients.iter().filter(|found| found.after.is_some()) {
        inputs[found.input].hold = Hold::Gradient;
    }
    for &(i, _) in updated {
        inputs[i as usize].hold = Hold::Value;
    }
}

/// A list in which symbols that must be equal are one.
fn merged(list: List, constraints: &[Constraint]) -> error::Result<List> {
    let equal = |c: &&Constraint| {
        c.relation == Relation::Equal && c.left.is_symbol() && c.right.is_symbol()
    };
    let mut sizes = Bindings::default();
    let mut is_any = false;
    for constraint in constraints.iter().filter(equal) {
        let (a, b) = (sizes.resolve(constraint.left), sizes.resolve(constraint.right));
        let (old, new) = if a.key() < b.key() { (a, b) } else { (b, a) };
        sizes.bind(new, old);
        is_any = true;
    }
    if is_any { resize(&list, &sizes) } else { Ok(list) }
}

/// Where the forward nodes end, and what the backward nodes read and give.
struct Cut {
    count: usize,
    seeds: Vec<Id>,
    wrt: Vec<usize>,
    gradients: Vec<Id>,
    results: Vec<usize>,
}

impl Cut {
    fn flowing(
        self,
        list: &List,
        symbols: &[Dim],
        scope: &Scope,
        results: &[Id],
        silent: &FxHashSet<Id>,
    ) -> error::Result<Arc<call::Flow>> {
        let mut forward = list.clone();
        forward.outputs = results.to_vec();
        let program = cut(&forward, symbols, scope, self.count, &self.seeds, &self.gradients);
        let mut whole = list.clone();
        whole.outputs = self.gradients;
        let inputs: Vec<Id> = list.inputs().collect();
        let wrt: Vec<Id> = self.wrt.iter().map(|&i| inputs[i]).collect();
        Ok(Arc::new(call::Flow {
            program: Arc::new(program),
            partial: Mutex::default(),
            whole: Arc::new(with_stops(whole, silent, self.count, &wrt)?),
            wrt: self.wrt,
            results: self.results,
        }))
    }
}
