//! Traces at the border: opening them, feeding them, and what runs afterwards.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use rustc_hash::FxHashSet;
use smallvec::SmallVec;

use super::errors::{OrRaise, to_python};
use super::functions::{DETACH_ABOVE, caught};
use super::graph::Definition;
use super::plan::Plan;
use super::size::{Number, Size};
use super::stepper::Stepper;
use super::tensor::{self, TensorObject};
use crate::array::Array;
use crate::dtype::Scalar;
use crate::engine::backward::{self, Options};
use crate::engine::call::{self, Given};
use crate::engine::interpret::Interpreter;
use crate::engine::program::{Program, cut};
use crate::engine::random;
use crate::engine::tape::{self, First, History, Leaf, Value};
use crate::engine::trace::{self, Capture, Role, Source};
use crate::engine::{config, observe};
use crate::error;
use crate::graph::{List, resize};
use crate::ops::emit::{Emit, Id};
use crate::ops::number as ops;
use crate::ops::op::Type;
use crate::passes::with_stops;
use crate::schedule as plan;
use crate::shape::{Bindings, Constraint, Dim, Relation, Scope, Shape};
use crate::watch;

/// A trace: what is computed while it is entered becomes its nodes.
#[pyclass(frozen, module = "wengert")]
pub struct Trace {
    inner: Arc<trace::Trace>,
    /// Numbers that are given at each call, in order
    numbers: Mutex<Vec<NumberSource>>,
}

/// Where a number comes from at a call.
enum NumberSource {
    /// A leaf of the arguments
    Leaf(usize),
    /// An entry of a dict, such as a hyperparameter
    Item(Py<PyDict>, Py<PyAny>),
}

pub(super) fn handle<'a>(op: &str, object: &'a Bound<'_, PyAny>) -> PyResult<&'a TensorObject> {
    // SAFETY: a live object, which lives as long as the reference.
    match unsafe { tensor::downcast(object.as_ptr()) } {
        Some(tensor) => Ok(tensor),
        None => {
            let facts = format!("got {}", object.get_type().name()?);
            Err(to_python(object.py(), error::bad_type(op, "expected a tensor", facts)))
        }
    }
}

#[pymethods]
impl Trace {
    #[new]
    fn new() -> Trace {
        Trace { inner: trace::Trace::new(Role::Function), numbers: Mutex::default() }
    }

    fn __enter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf.inner.push();
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, _exception: &Bound<'_, pyo3::types::PyTuple>) {
        trace::leave(&self.inner);
        self.inner.abandon();
        let numbers = std::mem::take(&mut *self.numbers.lock());
        drop(numbers);
    }

    /// Takes a tensor in as an argument. `sizes` says of each axis what is known of its size: nothing
    /// (True: a symbol of its own), a declared size, or that it is what it is (None).
    fn argument(&self, x: &Bound<'_, PyAny>, sizes: Vec<Bound<'_, PyAny>>) -> PyResult<()> {
        let py = x.py();
        let tensor = handle("compile", x)?;
        let own = tensor.with_own(Value::clone);
        let mut ty = Type::new(own.dtype(), own.shape().clone());
        let scope = self.inner.scope();
        for (size, known) in ty.shape.dims_mut().iter_mut().zip(&sizes) {
            if let Ok(declared) = known.cast::<Size>() {
                let declared = declared.get().0;
                for symbol in declared.symbols() {
                    scope.declare(&symbol.to_string(), None);
                }
                scope.suppose(declared, size.value());
                *size = declared;
            } else if !known.is_none() {
                *size = scope.symbol(size.known());
            }
        }
        let keep: trace::Handle = Arc::new(x.clone().unbind());
        self.inner.argument(tensor.address(), &own, keep, ty).or_raise(py)
    }

    /// A number that stands for leaf `i` of the arguments.
    fn number(&self, py: Python<'_>, i: usize, now: f64) -> PyResult<Py<Number>> {
        let value = self.inner.given(now);
        self.numbers.lock().push(NumberSource::Leaf(i));
        Py::new(py, Number::new(value, self.inner.clone()))
    }

    /// A number that stands for an entry of a dict.
    fn item(&self, dict: &Bound<'_, PyDict>, key: &Bound<'_, PyAny>) -> PyResult<Py<Number>> {
        let py = dict.py();
        let now: f64 = dict.as_any().get_item(key)?.extract()?;
        let value = self.inner.given(now);
        let source = NumberSource::Item(dict.clone().unbind(), key.clone().unbind());
        self.numbers.lock().push(source);
        Py::new(py, Number::new(value, self.inner.clone()))
    }

    /// Ends the trace: what runs it. `outputs` are the tensors it returns, `args` the tensors it was
    /// called with.
    fn finish(
        &self,
        py: Python<'_>,
        name: String,
        outputs: Vec<Bound<'_, PyAny>>,
        args: Vec<Bound<'_, PyAny>>,
    ) -> PyResult<Executable> {
        let numbers = std::mem::take(&mut *self.numbers.lock());
        caught(py, || Finish::new(&self.inner, name, &args)?.run(py, &outputs, numbers))
    }
}

/// Where an input comes from at a call, and where a value goes.
enum Place {
    /// An argument, by position among the tensors
    Argument(usize),
    /// A handle that the function reached by itself
    Handle(Py<PyAny>),
    /// The gradient of what another input holds
    Gradient(usize),
    /// A fresh random key
    Key,
}

impl Place {
    fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        match self {
            Place::Handle(object) => visit.call(object),
            Place::Argument(_) | Place::Gradient(_) | Place::Key => Ok(()),
        }
    }

    /// Whether both are one handle.
    fn is(&self, other: &Place) -> bool {
        match (self, other) {
            (Place::Argument(i), Place::Argument(j)) => i == j,
            (Place::Handle(a), Place::Handle(b)) => a.is(b),
            _ => false,
        }
    }
}

struct Input {
    place: Place,
    /// Whether it required a gradient
    wants: bool,
}

/// What the function did to the gradient of an input.
struct GradientUse {
    input: usize,
    first: First,
    /// Whether there was one, where that was read first
    present: bool,
    /// Whether there is one afterwards, and if so the result that holds it (none: as it was)
    after: Option<Option<usize>>,
    /// Whether it stays in the cell it was in
    same_cell: bool,
}

/// Symbols, with the argument and the axis that tell their sizes.
type Symbols = Vec<(Dim, usize, usize)>;

enum Output {
    /// A result of the program
    Result(usize),
    /// A handle itself, which the function returned
    Handle(Place),
}

/// A finished trace: runs the program, commits what it updates.
#[pyclass(frozen, module = "wengert")]
pub struct Executable {
    name: String,
    inputs: Vec<Input>,
    outputs: Vec<Output>,
    /// Handles that get new values, with the results that hold them
    updates: Vec<(Place, usize)>,
    gradients: Vec<GradientUse>,
    program: Arc<Program>,
    /// The shapes of the tensors among the arguments
    patterns: Vec<Option<Shape>>,
    /// The symbols of these, with the argument and the axis that tell their sizes
    symbols: Symbols,
    constraints: Vec<Constraint>,
    numbers: Vec<NumberSource>,
    /// Numbers whose values the trace depends on
    pinned: Vec<(usize, f64)>,
    /// Where gradients flow: the two programs, the inputs that get one, the results that have one
    differentiable: Option<Arc<call::Flow>>,
    /// The calls so far, where calls are checked
    calls: AtomicU64,
}

/// The work of ending a trace.
struct Finish<'a> {
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
    fn new(
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

    fn run(
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
        let inputs = self.inputs(py)?;
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
                let is_new = symbols.iter().all(|(known, ..)| known.to_i64() != dim.to_i64());
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
            inputs.push(Input { place, wants: capture.leaf.is_some() });
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

/// A list in which symbols that must be equal are one.
fn merged(list: List, constraints: &[Constraint]) -> error::Result<List> {
    let equal = |c: &&Constraint| {
        c.relation == Relation::Equal && c.left.is_symbol() && c.right.is_symbol()
    };
    let mut sizes = Bindings::default();
    let mut is_any = false;
    for constraint in constraints.iter().filter(equal) {
        let (a, b) = (sizes.resolve(constraint.left), sizes.resolve(constraint.right));
        let (old, new) = if a.to_i64() < b.to_i64() { (a, b) } else { (b, a) };
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

#[pymethods]
impl Executable {
    /// Shows the collector of cycles the handles and dicts. They stay for as long as this lives: a
    /// cycle through one of them leads through a dict, which is cleared.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        let inputs = self.inputs.iter().map(|input| &input.place);
        let outputs = self.outputs.iter().filter_map(|output| match output {
            Output::Handle(place) => Some(place),
            Output::Result(_) => None,
        });
        let updates = self.updates.iter().map(|(place, _)| place);
        for place in inputs.chain(outputs).chain(updates) {
            place.traverse(&visit)?;
        }
        for source in &self.numbers {
            if let NumberSource::Item(dict, key) = source {
                visit.call(dict)?;
                visit.call(key)?;
            }
        }
        Ok(())
    }

    /// The list as it was traced, as text.
    fn text(&self) -> String {
        crate::graph::Graph::from_list(self.program.list().clone())
            .print(crate::engine::site::describe)
    }

    /// The plan for arguments.
    fn plan(&self, py: Python<'_>, args: Vec<Bound<'_, PyAny>>) -> PyResult<Plan> {
        let sizes = self.sizes(&args)?;
        caught(py, || Ok(Plan(self.program.plan(&sizes).or_raise(py)?)))
    }

    /// A run for arguments that stops after each node of the list as it was traced, and that list as a
    /// graph. Nothing is updated.
    fn stepper(
        &self,
        py: Python<'_>,
        args: Vec<Bound<'_, PyAny>>,
        leaves: Vec<Bound<'_, PyAny>>,
    ) -> PyResult<(Stepper, Definition)> {
        let (numbers, sizes) = (self.numbers(py, &leaves)?, self.sizes(&args)?);
        let mut inputs = Vec::with_capacity(self.inputs.len());
        for input in &self.inputs {
            inputs.push(self.value(py, &input.place, &args)?.array);
        }
        let (list, bound) = (Arc::new(self.program.list().clone()), self.program.bind(&sizes));
        let run = Interpreter::start(&list, inputs, &bound, &numbers).or_raise(py)?;
        let graph = Definition::from_list((**run.list()).clone(), Scope::new());
        Ok((Stepper::of(run), graph))
    }

    /// What each pass did: its name, nodes, bytes and flops before and after.
    fn passes(&self, py: Python<'_>) -> PyResult<Vec<PassReport>> {
        let reports = &self.program.optimized().or_raise(py)?.reports;
        Ok(reports.iter().map(PassReport::new).collect())
    }

    /// The list after the passes, as a graph.
    fn definition(&self, py: Python<'_>) -> PyResult<Definition> {
        let list = self.program.optimized().or_raise(py)?.list.clone();
        Ok(Definition::from_list(list, self.program.scope().clone()))
    }

    /// Flops, and bytes that the nodes read and write if each is computed alone.
    fn cost(&self, py: Python<'_>) -> PyResult<(u64, u64)> {
        let list = &self.program.optimized().or_raise(py)?.list;
        let cost = crate::passes::cost::of_list(list);
        Ok((cost.flops, cost.bytes))
    }

    /// What the trace relies on about sizes, with the lines that asked.
    fn constraints(&self) -> Vec<String> {
        let text = |c: &Constraint| match crate::engine::site::describe(c.site) {
            Some(line) => format!("{c} ({line})"),
            None => c.to_string(),
        };
        self.constraints.iter().map(text).collect()
    }

    /// How many inputs there are: arguments, and what the function reached by itself.
    fn inputs(&self) -> (usize, usize) {
        let is_argument = |input: &&Input| matches!(input.place, Place::Argument(_));
        let arguments = self.inputs.iter().filter(is_argument).count();
        (arguments, self.inputs.len() - arguments)
    }

    /// How another trace of the same call differs; None where it does not.
    fn difference(&self, other: &Executable) -> Option<String> {
        let (mine, others) = (self.program.list(), other.program.list());
        if let Some((id, what)) = mine.first_difference(others) {
            let line = crate::engine::site::describe(others.node(id).site);
            return Some(format!("{what}{}", line.map_or(String::new(), |l| format!(", at {l}"))));
        }
        let is_other = |(a, b): (&Input, &Input)| match (&a.place, &b.place) {
            (Place::Handle(a), Place::Handle(b)) => !a.is(b),
            (
                Place::Argument(_) | Place::Handle(_) | Place::Gradient(_) | Place::Key,
                Place::Argument(_) | Place::Handle(_) | Place::Gradient(_) | Place::Key,
            ) => false,
        };
        let inputs = mine.inputs().zip(self.inputs.iter().zip(&other.inputs));
        if let Some((id, _)) = inputs.into_iter().find(|(_, pair)| is_other(*pair)) {
            let line = crate::engine::site::describe(others.node(id).site);
            let line = line.map_or(String::new(), |line| format!(", first read at {line}"));
            return Some(format!("input %{} is another tensor{line}", id.0));
        }
        mine.same(others).err()
    }

    /// How many handles get new values.
    fn updates(&self) -> usize {
        self.updates.len() + self.gradients.len()
    }
}

/// What a pass did.
#[pyclass(frozen, get_all, module = "wengert")]
pub struct PassReport {
    /// Its name.
    name: &'static str,
    /// Nodes before it.
    nodes_before: usize,
    /// Nodes after it.
    nodes_after: usize,
    /// Bytes that the nodes read and write, if each is computed alone, before it.
    bytes_before: u64,
    /// The same after it.
    bytes_after: u64,
    /// Arithmetic on elements before it.
    flops_before: u64,
    /// The same after it.
    flops_after: u64,
}

impl PassReport {
    /// The report of a pass.
    pub fn new(report: &crate::passes::Report) -> PassReport {
        PassReport {
            name: report.name,
            nodes_before: report.nodes_before,
            nodes_after: report.nodes_after,
            bytes_before: report.bytes_before,
            bytes_after: report.bytes_after,
            flops_before: report.flops_before,
            flops_after: report.flops_after,
        }
    }
}

#[pymethods]
impl PassReport {
    fn __repr__(&self) -> String {
        format!("<{}: {} nodes became {}>", self.name, self.nodes_before, self.nodes_after)
    }
}

impl Executable {
    /// Whether this call is to be traced again, to see whether it still gives the same: one of the
    /// first three, and later ever more rarely.
    pub fn is_due(&self) -> bool {
        if !self.program.is_checked() {
            return false;
        }
        let calls = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
        calls <= 3 || calls.is_power_of_two()
    }

    /// Why it does not fit these arguments and the state it depends on; None where it does.
    pub fn mismatch(&self, py: Python<'_>, args: &[Bound<'_, PyAny>]) -> PyResult<Option<String>> {
        for (i, input) in self.inputs.iter().enumerate() {
            let Some(object) = self.object(py, &input.place, args) else { continue };
            let wants = handle(&self.name, &object)?.with_own(Value::requires_grad);
            if wants != input.wants {
                let now = if wants { "requires" } else { "does not require" };
                return Ok(Some(format!("input {i} {now} a gradient now")));
            }
        }
        for found in self.gradients.iter().filter(|found| found.first == First::Read) {
            let Some(leaf) = self.leaf(py, found.input, args)? else { continue };
            if leaf.gradient().or_raise(py)?.is_some() != found.present {
                let now = if found.present { "has no gradient" } else { "has a gradient" };
                return Ok(Some(format!("input {} {now} now", found.input)));
            }
        }
        Ok(None)
    }

    /// Runs it: the tensors it returns.
    pub fn call(
        &self,
        py: Python<'_>,
        args: &[Bound<'_, PyAny>],
        leaves: &[Bound<'_, PyAny>],
    ) -> PyResult<SmallVec<[Py<PyAny>; 2]>> {
        let (numbers, sizes) = (self.numbers(py, leaves)?, self.sizes(args)?);
        let mut inputs = Vec::with_capacity(self.inputs.len());
        for input in &self.inputs {
            inputs.push(self.value(py, &input.place, args)?);
        }
        // Last, so that nothing can fail while a handle is without its value.
        let mut taken = Vec::new();
        for (i, input) in inputs.iter_mut().enumerate() {
            if let Some((value, update)) = self.take_out(py, i as u32, args, input)? {
                *input = value;
                taken.push((i, update));
            }
        }
        let mut given = Given { inputs, sizes, numbers };
        let gone: SmallVec<[usize; 8]> = taken.iter().map(|(i, _)| *i).collect();
        let values = match caught(py, || self.compute(py, &mut given, &gone)) {
            Ok(values) => values,
            Err(error) => {
                for (i, _) in &taken {
                    let Some(object) = self.object(py, &self.inputs[*i].place, args) else {
                        continue;
                    };
                    let value = given.inputs[*i].clone();
                    drop(handle(&self.name, &object)?.replace(value));
                }
                return Err(error);
            }
        };
        self.commit(py, &values, args)?;
        drop(taken);
        self.outputs
            .iter()
            .map(|output| match output {
                Output::Result(i) => tensor::wrap(py, values[*i].clone()),
                Output::Handle(place) => match self.object(py, place, args) {
                    Some(object) => Ok(object.unbind()),
                    None => Err(to_python(py, error::internal("a result without a handle"))),
                },
            })
            .collect()
    }

    fn object<'py>(
        &self,
        py: Python<'py>,
        place: &Place,
        args: &[Bound<'py, PyAny>],
    ) -> Option<Bound<'py, PyAny>> {
        match place {
            Place::Argument(i) => Some(args[*i].clone()),
            Place::Handle(object) => Some(object.bind(py).clone()),
            Place::Gradient(_) | Place::Key => None,
        }
    }

    fn leaf(
        &self,
        py: Python<'_>,
        input: usize,
        args: &[Bound<'_, PyAny>],
    ) -> PyResult<Option<Arc<Leaf>>> {
        let Some(object) = self.object(py, &self.inputs[input].place, args) else {
            return Ok(None);
        };
        Ok(handle(&self.name, &object)?.with_own(|value| match &value.history {
            History::Leaf(leaf) => Some(leaf.clone()),
            _ => None,
        }))
    }

    fn value(&self, py: Python<'_>, place: &Place, args: &[Bound<'_, PyAny>]) -> PyResult<Value> {
        match place {
            Place::Key => random::draw().or_raise(py),
            Place::Gradient(holder) => {
                let leaf = self.leaf(py, *holder, args)?;
                let cell = leaf.map(|leaf| leaf.gradient().or_raise(py)).transpose()?.flatten();
                match cell {
                    Some(cell) => Ok(cell.lock().clone()),
                    None => Err(to_python(py, error::internal("a gradient is missing"))),
                }
            }
            Place::Argument(_) | Place::Handle(_) => match self.object(py, place, args) {
                Some(object) => handle(&self.name, &object)?.try_value().or_raise(py),
                None => Err(to_python(py, error::internal("an input is missing"))),
            },
        }
    }

    /// Takes the value of an input out of its handle, if it is to be updated in its own memory.
    fn take_out(
        &self,
        py: Python<'_>,
        input: u32,
        args: &[Bound<'_, PyAny>],
        copy: &mut Value,
    ) -> PyResult<Option<(Value, tensor::Update)>> {
        let flows = self.differentiable.is_some() && tape::recording();
        if flows || watch::checking() || !self.program.donates(input) {
            return Ok(None);
        }
        match self.object(py, &self.inputs[input as usize].place, args) {
            Some(object) => {
                let tensor = handle(&self.name, &object)?;
                // Waiting here, with others taken out, could wait for ever: the copy will do.
                if tensor.is_busy() {
                    return Ok(None);
                }
                // The copy would keep the memory from being held by the handle alone.
                let ty = Type::new(copy.dtype(), copy.shape().clone());
                copy.array = Array::named(ty.dtype, ty.shape, Box::new(()));
                let taken = tensor.take_out();
                if taken.is_none() {
                    *copy = tensor.with_own(Value::clone);
                }
                Ok(taken)
            }
            None => Ok(None),
        }
    }

    /// Runs the program; the inputs in `gone` may be written over, and are as they were after an error.
    fn compute(&self, py: Python<'_>, given: &mut Given, gone: &[usize]) -> PyResult<Vec<Value>> {
        let site = crate::engine::site::current();
        let record = tape::recording();
        let is_light = !(record && self.differentiable.is_some())
            && self.program.is_light(&given.sizes, DETACH_ABOVE);
        let work = || -> error::Result<Vec<Value>> {
            if let (Some(flow), true) = (&self.differentiable, record) {
                return call::record(&self.name, flow, given.clone());
            }
            let found = match gone {
                [] => {
                    let arrays: SmallVec<[&Array; 8]> =
                        given.inputs.iter().map(|v| &v.array).collect();
                    self.program.run(&arrays, &given.sizes, &given.numbers)?
                }
                gone => self.run_over(given, gone)?,
            };
            Ok(found.into_iter().map(Value::plain).collect())
        };
        let timed = || observe::timed(watch::Work::Call, &self.name, work);
        if is_light {
            return timed().or_raise(py);
        }
        py.detach(|| crate::engine::site::pinned(site, timed)).or_raise(py)
    }

    /// Runs the program over some of its inputs.
    fn run_over(&self, given: &mut Given, gone: &[usize]) -> error::Result<SmallVec<[Array; 2]>> {
        let mut arrays: SmallVec<[Array; 8]> = SmallVec::new();
        for &i in gone {
            let array = &mut given.inputs[i].array;
            let (dtype, shape) = (array.dtype, array.shape().clone());
            arrays.push(std::mem::replace(array, Array::named(dtype, shape, Box::new(()))));
        }
        let mut inputs: SmallVec<[plan::Input<'_>; 8]> =
            given.inputs.iter().map(|value| plan::Input::Lent(&value.array)).collect();
        for (&i, array) in gone.iter().zip(arrays) {
            inputs[i] = plan::Input::Given(Some(array));
        }
        let found = self.program.run_with(&mut inputs, &given.sizes, &given.numbers);
        let mut left: SmallVec<[Option<Array>; 8]> = SmallVec::new();
        for &i in gone {
            left.push(match &mut inputs[i] {
                plan::Input::Given(array) => array.take(),
                plan::Input::Lent(_) => None,
            });
        }
        drop(inputs);
        for (&i, array) in gone.iter().zip(left) {
            if let Some(array) = array {
                given.inputs[i].array = array;
            }
        }
        found
    }

    /// The sizes of the symbols.
    fn sizes(&self, args: &[Bound<'_, PyAny>]) -> PyResult<SmallVec<[usize; 4]>> {
        let size = |&(_, arg, axis): &(Dim, usize, usize)| {
            Ok(handle(&self.name, &args[arg])?.with_own(|value| value.shape()[axis].value()))
        };
        self.symbols.iter().map(size).collect()
    }

    /// The numbers that are given.
    fn numbers(&self, py: Python<'_>, leaves: &[Bound<'_, PyAny>]) -> PyResult<Vec<Scalar>> {
        let number = |source: &NumberSource| {
            let value: f64 = match source {
                NumberSource::Leaf(i) => leaves[*i].extract()?,
                NumberSource::Item(dict, key) => dict.bind(py).as_any().get_item(key)?.extract()?,
            };
            Ok(Scalar::Float(value))
        };
        self.numbers.iter().map(number).collect()
    }

    /// The shape that tensor `i` of the arguments must have, where some sizes may differ.
    pub fn pattern(&self, i: usize) -> Option<&Shape> {
        self.patterns[i].as_ref()
    }

    /// Whether leaf `i` of the arguments is a number that is given.
    pub fn is_number(&self, i: usize) -> bool {
        self.numbers.iter().any(|source| matches!(source, NumberSource::Leaf(k) if *k == i))
    }

    /// What the trace relies on about sizes and numbers that does not hold for these arguments.
    pub fn broken(
        &self,
        py: Python<'_>,
        args: &[Bound<'_, PyAny>],
        leaves: &[Bound<'_, PyAny>],
    ) -> PyResult<Option<String>> {
        if !self.symbols.is_empty() {
            let sizes = self.sizes(args)?;
            let bound = self.program.bind(&sizes);
            if let Some(i) = bound.broken(&self.constraints) {
                let constraint = &self.constraints[i];
                let line = crate::engine::site::describe(constraint.site);
                let line = line.map_or(String::new(), |line| format!(" (asked at {line})"));
                return Ok(Some(format!("{constraint} does not hold{line}")));
            }
            for (pattern, arg) in self.patterns.iter().zip(args) {
                let Some(pattern) = pattern else { continue };
                let fits = |value: &Value| bound.fits(pattern, value.shape());
                if !handle(&self.name, arg)?.with_own(fits) {
                    return Ok(Some(format!("a shape is not {pattern}")));
                }
            }
        }
        if !self.pinned.is_empty() {
            let numbers = self.numbers(py, leaves)?;
            for &(i, value) in &self.pinned {
                if numbers[i].as_f64().to_bits() != value.to_bits() {
                    return Ok(Some(format!("a number that was {value} changed")));
                }
            }
        }
        Ok(None)
    }

    /// Gives handles and gradients their new values: nothing here fails.
    fn commit(&self, py: Python<'_>, values: &[Value], args: &[Bound<'_, PyAny>]) -> PyResult<()> {
        for (place, result) in &self.updates {
            let Some(object) = self.object(py, place, args) else { continue };
            let tensor = handle(&self.name, &object)?;
            let mut value = values[*result].clone();
            tensor.with_own(|old| {
                if let History::Leaf(leaf) = &old.history {
                    value.history = History::Leaf(leaf.clone());
                }
            });
            drop(tensor.replace(value));
        }
        for found in &self.gradients {
            let (Some(after), Some(leaf)) = (&found.after, self.leaf(py, found.input, args)?)
            else {
                continue;
            };
            match after {
                None => leaf.set_gradient(None),
                Some(result) => {
                    let value = values[*result].clone();
                    let cell = if found.same_cell { leaf.gradient().or_raise(py)? } else { None };
                    match cell {
                        Some(cell) => *cell.lock() = value,
                        None => leaf.set_gradient(Some(Arc::new(Mutex::new(value)))),
                    }
                }
            }
        }
        Ok(())
    }
}

/// Whether a trace is open on this thread.
#[pyfunction]
fn is_tracing() -> bool {
    trace::active()
}

/// Calls `f` outside all open traces: what it computes are ordinary tensors.
#[pyfunction]
fn outside_trace(f: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
    trace::suspended(|| f.call0().map(Bound::unbind))
}

/// A tensor of a type, of which only the type matters: it takes the room of one element.
#[pyfunction]
fn _stand_in(py: Python<'_>, shape: Vec<usize>, dtype: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
    let dtype = super::dtype::extract("Spec", dtype)?;
    let zero = Value::plain(Array::zeros(dtype, Shape::scalar()).or_raise(py)?);
    let wide = crate::ops::op::Op::Broadcast(Shape::of(&shape));
    let operand = [tape::Operand::Value(&zero)];
    tensor::wrap(py, crate::engine::apply::apply(wide, &operand, false).or_raise(py)?)
}

/// A tensor's node in the trace it belongs to, or None.
#[pyfunction]
fn _node(x: &Bound<'_, PyAny>) -> PyResult<Option<u32>> {
    Ok(handle("node", x)?.with_own(|value| trace::node_of(&value.array).map(|(_, id)| id.0)))
}

/// Sets how functions are compiled from now on, on this thread: passes by name, the bits that
/// `fast_math` may change, the bytes a call may need, whether runs are checked; `spoiled` is a pass, or
/// "schedule", that is made wrong, to be found. What is None stays. Gives the function that puts back what was set
/// before.
#[pyfunction]
#[pyo3(signature = (passes=None, fast_math=None, memory_budget=None, check=None, spoiled=None))]
fn _configure(
    py: Python<'_>,
    passes: Option<std::collections::BTreeMap<String, bool>>,
    fast_math: Option<bool>,
    memory_budget: Option<usize>,
    check: Option<bool>,
    spoiled: Option<String>,
) -> PyResult<Settings> {
    let mut config = config::current();
    for (name, on) in passes.unwrap_or_default() {
        config.passes.switch(&name, on).or_raise(py)?;
    }
    if let Some(on) = fast_math {
        config.passes.fast_math = on;
    }
    config.budget = memory_budget.or(config.budget);
    config.check = check.unwrap_or(config.check);
    if let Some(pass) = spoiled {
        config.passes.spoil(&pass).or_raise(py)?;
    }
    Ok(Settings(config::replace(config)))
}

/// Settings, to be put back.
#[pyclass(frozen, module = "wengert")]
struct Settings(config::Config);

#[pymethods]
impl Settings {
    /// Puts them back.
    fn restore(&self) {
        config::replace(self.0.clone());
    }
}

/// Adds classes and functions to the module.
pub fn install(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Trace>()?;
    module.add_class::<Executable>()?;
    module.add_class::<Settings>()?;
    module.add_class::<PassReport>()?;
    module.add_function(pyo3::wrap_pyfunction!(_configure, module)?)?;
    module.add_function(pyo3::wrap_pyfunction!(is_tracing, module)?)?;
    module.add_function(pyo3::wrap_pyfunction!(outside_trace, module)?)?;
    module.add_function(pyo3::wrap_pyfunction!(_node, module)?)?;
    module.add_function(pyo3::wrap_pyfunction!(_stand_in, module)?)?;
    Ok(())
}
