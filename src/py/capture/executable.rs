//! Executables as Python objects: guards that decide whether one fits a call, and what it holds.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use smallvec::SmallVec;

use super::{Executable, Frozen, Input, NumberSource, Output, Place, entry};
use crate::dtype::Scalar;
use crate::engine::interpret::Interpreter;
use crate::engine::random;
use crate::engine::tape::{self, First, History, Leaf, Value};
use crate::error;
use crate::py::errors::{OrRaise, to_python};
use crate::py::functions::caught;
use crate::py::graph::Definition;
use crate::py::plan::{PassReport, Plan};
use crate::py::stepper::Stepper;
use crate::py::tensor::handle;
use crate::shape::{Constraint, Dim, Shape};

/// What an input is, and the tensor or number that says which one.
type NamedPlace = (&'static str, Option<Py<PyAny>>);

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
        let updates = self.updates.iter().map(|updated| &updated.place);
        for place in inputs.chain(outputs).chain(updates) {
            place.traverse(&visit)?;
        }
        let frozen = self.frozen.iter().map(|frozen| &frozen.object);
        for object in self.hosts.iter().chain(frozen) {
            visit.call(object)?;
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
        self.program.list().print_on(self.program.device(), crate::engine::site::describe)
    }

    /// The plan for arguments.
    fn plan(&self, py: Python<'_>, args: Vec<Bound<'_, PyAny>>) -> PyResult<Plan> {
        let sizes = self.sizes(&args)?;
        caught(py, || Ok(Plan(self.program.plan(&sizes).or_raise(py)?)))
    }

    /// A run for arguments that stops after each node of the list as it was traced, and that list
    /// as a graph. Nothing is updated.
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
        let device = self.program.device();
        let run = Interpreter::start(device, &list, inputs, &bound, &numbers).or_raise(py)?;
        let graph = Definition::from_list(
            device,
            (**run.list()).clone().with_hosts(&mut |op| op.0.kept()),
            run.list().scope(),
        );
        Ok((Stepper::of(run), graph))
    }

    /// What each pass did: its name, nodes, bytes and flops before and after.
    fn passes(&self, py: Python<'_>) -> PyResult<Vec<PassReport>> {
        let reports = self.program.reports().or_raise(py)?;
        Ok(reports.iter().map(PassReport::new).collect())
    }

    /// The list as a graph: after the passes, or as it was traced.
    fn definition(&self, py: Python<'_>, optimized: bool) -> PyResult<Definition> {
        let list = match optimized {
            true => self.program.optimized().or_raise(py)?.list.clone(),
            false => self.program.source().clone(),
        };
        let list = list.with_hosts(&mut |op| op.0.kept());
        Ok(Definition::from_list(self.program.device(), list, self.program.scope().clone()))
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

    /// What each input is: `argument` with its number among the tensors, `tensor` with one that the
    /// function reached by itself, `gradient` with the number of the input whose it is, or `key`.
    fn places(&self, py: Python<'_>) -> PyResult<Vec<NamedPlace>> {
        let number = |i: usize| PyResult::Ok(i.into_pyobject(py)?.into_any().unbind());
        let place = |input: &Input| {
            Ok(match &input.place {
                Place::Argument(i) => ("argument", Some(number(*i)?)),
                Place::Handle(object) => ("tensor", Some(object.clone_ref(py))),
                Place::Gradient(i) => ("gradient", Some(number(*i)?)),
                Place::Key => ("key", None),
            })
        };
        self.inputs.iter().map(place).collect()
    }

    /// How many tensors are constants of it, because it is frozen, and their bytes.
    fn constants(&self) -> (usize, usize) {
        let bytes = |frozen: &Frozen| frozen.array.count() * frozen.array.dtype.size();
        (self.frozen.len(), self.frozen.iter().map(bytes).sum())
    }

    /// Whether a tensor that is constant in it has another value now.
    pub fn is_stale(&self, py: Python<'_>) -> PyResult<bool> {
        for frozen in &self.frozen {
            if !frozen.is_current(py, &self.name)? {
                return Ok(true);
            }
        }
        Ok(false)
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

    /// Whether the function reads a tensor that it reaches itself.
    fn reaches(&self, x: &Bound<'_, PyAny>) -> bool {
        let is_read = self.inputs.iter().any(|input| match &input.place {
            Place::Handle(object) => object.is(x),
            Place::Argument(_) | Place::Gradient(_) | Place::Key => false,
        });
        is_read || self.frozen.iter().any(|frozen| frozen.object.is(x))
    }

    /// Why it does not fit the state it depends on, or nothing.
    fn refusal(&self, py: Python<'_>, args: Vec<Bound<'_, PyAny>>) -> PyResult<Option<String>> {
        self.mismatch(py, &args)
    }

    /// Runs it where it fits the state that it depends on; false where it does not. It takes no
    /// arguments and returns none: it updates tensors that it reaches.
    fn update(&self, py: Python<'_>) -> PyResult<bool> {
        let list = self.program.list();
        for (input, id) in self.inputs.iter().zip(list.inputs()) {
            let Place::Handle(object) = &input.place else { continue };
            let want = &list.node(id).ty;
            let fits = |x: &Value| x.dtype() == want.dtype && x.shape().same(&want.shape);
            if !handle(&self.name, object.bind(py))?.with_own(fits) {
                return Ok(false);
            }
        }
        if self.mismatch(py, &[])?.is_some() {
            return Ok(false);
        }
        self.call(py, &[], &[]).map(|_| true)
    }

    /// How many handles get new values.
    fn updates(&self) -> usize {
        self.updates.len() + self.gradients.len()
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

    /// The shape that tensor `i` of the arguments must have, where some sizes may differ.
    pub fn pattern(&self, i: usize) -> Option<&Shape> {
        self.patterns[i].as_ref()
    }

    /// Whether leaf `i` of the arguments is a number that is given.
    pub fn is_number(&self, i: usize) -> bool {
        self.numbers.iter().any(|source| matches!(source, NumberSource::Leaf(k) if *k == i))
    }

    /// Why it does not fit these arguments and the state it depends on; None where it does.
    pub fn mismatch(&self, py: Python<'_>, args: &[Bound<'_, PyAny>]) -> PyResult<Option<String>> {
        for (i, input) in self.inputs.iter().enumerate() {
            let Some(object) = self.object(py, &input.place, args) else { continue };
            // What updates one of them is not seen in the other.
            if matches!(input.place, Place::Handle(_)) && args.iter().any(|arg| arg.is(&object)) {
                return Ok(Some("an argument is a tensor that the function reaches itself".into()));
            }
            let wants = handle(&self.name, &object)?.with_own(Value::requires_grad);
            if wants != input.wants {
                let now = if wants { "requires" } else { "does not require" };
                return Ok(Some(format!("input {i} {now} a gradient now")));
            }
            if wants && (tape::host_calls() || !input.hooks.is_empty()) {
                let leaf = self.leaf(py, i, args)?;
                if leaf.is_some_and(|leaf| leaf.hooks.numbers() != input.hooks) {
                    return Ok(Some(format!("input {i} has other hooks now")));
                }
            }
        }
        for frozen in &self.frozen {
            if args.iter().any(|arg| arg.is(&frozen.object)) {
                return Ok(Some("an argument is a tensor that the function reaches itself".into()));
            }
            if !frozen.is_current(py, &self.name)? {
                return Ok(Some("a tensor that is constant in it has another value".into()));
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
}

impl Frozen {
    /// Whether the tensor has the value that it had when the function was traced.
    fn is_current(&self, py: Python<'_>, name: &str) -> PyResult<bool> {
        let is_same = |now: &Value| {
            let (now, then) = (&now.array, &self.array);
            now.data.address() == then.data.address()
                && now.dtype == then.dtype
                && now.layout == then.layout
        };
        Ok(handle(name, self.object.bind(py))?.with_own(is_same))
    }
}

/// What a call reaches.
impl Executable {
    pub(super) fn object<'py>(
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

    pub(super) fn leaf(
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
            History::None | History::Entry(..) => None,
        }))
    }

    pub(super) fn value(
        &self,
        py: Python<'_>,
        place: &Place,
        args: &[Bound<'_, PyAny>],
    ) -> PyResult<Value> {
        match place {
            Place::Key => random::draw_on(self.program.device()).or_raise(py),
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

    /// The sizes of the symbols.
    pub(super) fn sizes(&self, args: &[Bound<'_, PyAny>]) -> PyResult<SmallVec<[usize; 4]>> {
        let size = |&(_, arg, axis): &(Dim, usize, usize)| {
            Ok(handle(&self.name, &args[arg])?.with_own(|value| value.shape()[axis].value()))
        };
        self.symbols.iter().map(size).collect()
    }

    /// The numbers that are given.
    pub(super) fn numbers(
        &self,
        py: Python<'_>,
        leaves: &[Bound<'_, PyAny>],
    ) -> PyResult<Vec<Scalar>> {
        let number = |source: &NumberSource| {
            let value: f64 = match source {
                NumberSource::Leaf(i) => leaves[*i].extract()?,
                NumberSource::Item(dict, key) => entry(dict.bind(py), key.bind(py))?,
            };
            Ok(Scalar::Float(value))
        };
        self.numbers.iter().map(number).collect()
    }
}
