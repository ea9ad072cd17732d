//! The bindings of graphs defined by hand: what is declared, asked and made of them.

use std::sync::Arc;

use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use rustc_hash::FxHashSet;

use super::errors::{OrRaise, to_python};
use super::functions::{ENDLESS, detached};
use super::node::{Node, call_text};
use super::plan::PassReport;
use super::runner::Runner;
use super::size;
use super::stepper::Stepper;
use super::tensor::{self, handle, wrap};
use super::{convert, dtype};
use crate::engine::control::interpret;
use crate::engine::definition::resolve::{self, Resolved};
use crate::engine::definition::{self, Call, Calls};
use crate::engine::executors::{self, Device};
use crate::engine::picture;
use crate::engine::program::Program;
use crate::engine::random;
use crate::engine::site;
use crate::engine::tape::{Operand, Value};
use crate::engine::trace::{self, Trace};
use crate::error;
use crate::graph::{self, Kind, List};
use crate::ops::emit::Id;
use crate::ops::op::Type;
use crate::passes;
use crate::shape::{Dim, Keeper, Scope, Shape};

/// A graph defined by hand: what `wengert.Graph` is made of.
#[pyclass(frozen, module = "wengert")]
pub struct Definition {
    trace: Arc<Trace>,
    /// The results that were named, of a graph that came from somewhere else
    outputs: Mutex<Vec<Id>>,
}

impl Definition {
    fn of(trace: Arc<Trace>) -> Definition {
        let outputs = trace.read(|graph| graph.outputs().to_vec());
        Definition { trace, outputs: Mutex::new(outputs) }
    }

    /// The graph of a list, with the scope of its symbols.
    pub fn from_list(device: Device, list: List, scope: Scope) -> Definition {
        Definition::of(definition::define(
            device,
            list,
            Calls::default(),
            FxHashSet::default(),
            scope,
        ))
    }

    fn id(&self, py: Python<'_>, id: u32) -> PyResult<Id> {
        match (id as usize) < self.trace.read(|graph| graph.len()) {
            true => Ok(Id(id)),
            false => {
                let facts = format!("got %{id}");
                Err(to_python(py, error::bad_graph("graph", "no such node", facts)))
            }
        }
    }

    fn ids(&self, py: Python<'_>, ids: &[u32]) -> PyResult<Vec<Id>> {
        ids.iter().map(|id| self.id(py, *id)).collect()
    }

    /// The value of a tensor in this graph; a tensor outside all graphs enters as a constant.
    fn value(&self, op: &str, object: &Bound<'_, PyAny>) -> PyResult<Value> {
        let py = object.py();
        let value = handle(op, object)?.with_own(Value::clone);
        let entered = self.trace.enter();
        let id = self.trace.node(op, &value).or_raise(py)?;
        drop(entered);
        Ok(self.trace.value(id))
    }

    fn values(&self, op: &str, objects: &[Bound<'_, PyAny>]) -> PyResult<Vec<Value>> {
        objects.iter().map(|object| self.value(op, object)).collect()
    }

    /// A size as it was declared: a number, a named size, or None for one that is open.
    fn size(&self, op: &str, object: &Bound<'_, PyAny>) -> PyResult<Dim> {
        let scope = self.trace.scope();
        if object.is_none() {
            return Ok(scope.symbol(None));
        }
        let dim = size::declared(op, object)?;
        for symbol in dim.symbols() {
            scope.declare(&symbol.to_string(), None);
        }
        Ok(dim)
    }

    /// The list that computes some nodes, for feeds of these types.
    fn resolved(
        &self,
        py: Python<'_>,
        op: &str,
        fetches: &[u32],
        feeds: Vec<FeedType<'_>>,
    ) -> PyResult<Resolved> {
        let fetches = self.ids(py, fetches)?;
        let mut types = Vec::with_capacity(feeds.len());
        for (id, dtype, sizes) in feeds {
            let ty = Type::new(dtype::extract(op, &dtype)?, Shape::of(&sizes));
            types.push((self.id(py, id)?, ty));
        }
        resolve::resolve(op, &self.trace, &fetches, &types).or_raise(py)
    }

    fn tensor_of(&self, py: Python<'_>, id: Id) -> PyResult<Py<PyAny>> {
        wrap(py, self.trace.value(id))
    }
}

type FeedType<'py> = (u32, Bound<'py, PyAny>, Vec<usize>);

#[pymethods]
impl Definition {
    #[new]
    fn new() -> Definition {
        let (list, calls) = (List::default(), Calls::default());
        let keys = FxHashSet::default();
        let device = executors::device::current();
        Definition::of(definition::define(device, list, calls, keys, Scope::owner()))
    }

    /// Puts the graph on top of this thread's traces.
    fn enter(&self) {
        self.trace.push();
    }

    /// Takes it off again.
    fn leave(&self) {
        trace::leave(&self.trace);
    }

    /// What tells the graph from others.
    #[getter]
    fn serial(&self) -> u64 {
        self.trace.serial()
    }

    fn __len__(&self) -> usize {
        self.trace.read(|graph| graph.len())
    }

    /// Adds a named input; sizes may be None, and so may the shape.
    fn input(
        &self,
        py: Python<'_>,
        op: &str,
        name: &str,
        dtype: &Bound<'_, PyAny>,
        shape: Option<Vec<Bound<'_, PyAny>>>,
    ) -> PyResult<Py<PyAny>> {
        let dtype = dtype::extract(op, dtype)?;
        let value = match shape {
            None => self.trace.unresolved(dtype).or_raise(py)?,
            Some(sizes) => {
                let dims: PyResult<Vec<Dim>> =
                    sizes.iter().map(|size| self.size(op, size)).collect();
                let dims = dims?;
                let shape = Shape::from_dims(&dims);
                if dims.iter().all(|dim| dim.known().is_some()) {
                    shape.check(op).or_raise(py)?;
                }
                self.trace.input(Type::new(dtype, shape)).or_raise(py)?
            }
        };
        let id = self.trace.node(op, &value).or_raise(py)?;
        self.trace.with_graph(|graph| graph.name(id, name));
        wrap(py, value)
    }

    /// Gives a node a name.
    fn name(&self, py: Python<'_>, id: u32, name: &str) -> PyResult<()> {
        let id = self.id(py, id)?;
        self.trace.with_graph(|graph| graph.name(id, name));
        Ok(())
    }

    /// The node of a name.
    fn find(&self, name: &str) -> Option<u32> {
        let found = |(id, of): (&Id, &Arc<str>)| (&**of == name).then_some(id.0);
        self.trace.read(|graph| graph.list().names.iter().filter_map(found).min())
    }

    /// The device that it computes on.
    #[getter]
    fn device(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        super::host::device_object(py, self.trace.device())
    }

    /// Forbids new nodes.
    fn finalize(&self) {
        self.trace.finalize();
    }

    /// Whether new nodes are forbidden.
    #[getter]
    fn finalized(&self) -> bool {
        self.trace.is_finalized()
    }

    /// The nodes in order.
    fn nodes(&self) -> Vec<Node> {
        let count = self.trace.read(|graph| graph.len()) as u32;
        (0..count).map(|i| Node { trace: self.trace.clone(), at: Id(i) }).collect()
    }

    fn node(&self, py: Python<'_>, id: u32) -> PyResult<Node> {
        Ok(Node { trace: self.trace.clone(), at: self.id(py, id)? })
    }

    /// The nodes that are given from outside.
    fn inputs(&self) -> Vec<Node> {
        let (list, calls) = self.trace.snapshot();
        let given = list.inputs().filter(|id| calls.of(*id).is_none());
        given.map(|at| Node { trace: self.trace.clone(), at }).collect()
    }

    /// The nodes named as results.
    fn outputs(&self) -> Vec<Node> {
        let ids = self.outputs.lock().clone();
        ids.into_iter().map(|at| Node { trace: self.trace.clone(), at }).collect()
    }

    /// The number of a tensor's or node's node here; None if it belongs elsewhere.
    fn id_of(&self, object: &Bound<'_, PyAny>) -> Option<u32> {
        if let Ok(node) = object.cast::<Node>() {
            let node = node.get();
            return Arc::ptr_eq(&node.trace, &self.trace).then_some(node.at.0);
        }
        // SAFETY: a live object.
        let tensor = unsafe { tensor::downcast(object.as_ptr()) }?;
        tensor.with_own(|value| match trace::node_of(&value.array) {
            Some((trace, id)) if Arc::ptr_eq(trace, &self.trace) => Some(id.0),
            _ => None,
        })
    }

    /// The tensor of a node.
    fn tensor(&self, py: Python<'_>, id: u32) -> PyResult<Py<PyAny>> {
        let id = self.id(py, id)?;
        self.tensor_of(py, id)
    }

    /// Whether an input is a random key, fresh at every run.
    fn is_key(&self, id: u32) -> bool {
        self.trace.is_key(Id(id))
    }

    /// The value of a variable after a run that fetches the result.
    fn assign(
        &self,
        py: Python<'_>,
        variable: u32,
        value: &Bound<'_, PyAny>,
    ) -> PyResult<Py<PyAny>> {
        let variable = self.id(py, variable)?;
        let ty = self.trace.read(|graph| graph.list().node(variable).ty.clone());
        let value = self.value("assign", value)?;
        self.trace.settle_device("assign", value.device()).or_raise(py)?;
        let _entered = self.trace.enter();
        let operands = [Operand::Value(&value)];
        let work = || -> error::Result<Value> {
            if let Some(graph) = trace::deferring(&operands) {
                let mut later = || Err(error::unknown_size("assign", "a size"));
                if value.shape().rank() == ty.shape.rank() {
                    definition::check_assign(&ty, &value)?;
                }
                return graph.whole_one(&|| Call::Assign(ty.clone()), &operands, &mut later);
            }
            definition::check_assign(&ty, &value)?;
            let id = self.trace.node("assign", &value)?;
            self.trace.add(|graph| Ok(graph.barrier(id, &[]))).map(Value::plain)
        };
        wrap(py, work().or_raise(py)?)
    }

    /// Appends gradients; None where nothing depends on an input.
    fn gradients(
        &self,
        py: Python<'_>,
        ys: Vec<Bound<'_, PyAny>>,
        xs: Vec<Bound<'_, PyAny>>,
        seeds: Vec<Option<Bound<'_, PyAny>>>,
    ) -> PyResult<Vec<Option<Py<PyAny>>>> {
        let op = "gradients";
        let (ys, xs) = (self.values(op, &ys)?, self.values(op, &xs)?);
        let seeds: PyResult<Vec<Option<Value>>> =
            seeds.iter().map(|g| g.as_ref().map(|g| self.value(op, g)).transpose()).collect();
        let found = definition::gradients(&self.trace, &ys, &xs, &seeds?).or_raise(py)?;
        found.into_iter().map(|g| g.map(|g| wrap(py, g)).transpose()).collect()
    }

    /// The inputs that fetches need besides what is fed.
    fn needs(&self, py: Python<'_>, fetches: Vec<u32>, feeds: Vec<u32>) -> PyResult<Vec<u32>> {
        let fetches = self.ids(py, &fetches)?;
        let fed: FxHashSet<Id> = self.ids(py, &feeds)?.into_iter().collect();
        let (list, calls) = self.trace.snapshot();
        let needs = resolve::needs(&list, &calls, &fetches, &|id| fed.contains(&id));
        Ok(needs.inputs.into_iter().map(|id| id.0).collect())
    }

    /// Which of some nodes the fetches depend on, given what is fed.
    fn reached(
        &self,
        py: Python<'_>,
        fetches: Vec<u32>,
        feeds: Vec<u32>,
        nodes: Vec<u32>,
    ) -> PyResult<Vec<u32>> {
        let fetches = self.ids(py, &fetches)?;
        let fed: FxHashSet<Id> = self.ids(py, &feeds)?.into_iter().collect();
        let (list, calls) = self.trace.snapshot();
        let needs = resolve::needs(&list, &calls, &fetches, &|id| fed.contains(&id));
        let is_live = |id: &u32| needs.live.get(*id as usize).copied().unwrap_or(false);
        Ok(nodes.into_iter().filter(|id| is_live(id) && !fed.contains(&Id(*id))).collect())
    }

    /// What runs on a device for fetches and for feeds of these types.
    fn resolve(
        &self,
        py: Python<'_>,
        fetches: Vec<u32>,
        feeds: Vec<FeedType<'_>>,
        device: &Bound<'_, PyAny>,
    ) -> PyResult<Runner> {
        // A session outlives many plans: each keeps its own sizes, also where the graph is open.
        let _keeping = Keeper::new().enter();
        let resolved = self.resolved(py, "session.run", &fetches, feeds)?;
        let inputs = resolved.inputs.iter().map(|id| id.0).collect();
        let device = convert::device("session.run", device)?.unwrap_or(self.trace.device());
        let program = Program::new(device, resolved.list, Vec::new(), resolved.scope);
        Ok(Runner::new(inputs, program))
    }

    /// The same node by node, as it is written.
    fn stepper(
        &self,
        py: Python<'_>,
        fetches: Vec<u32>,
        feeds: Vec<FeedType<'_>>,
    ) -> PyResult<Stepper> {
        let _keeping = Keeper::new().enter();
        let resolved = self.resolved(py, "interpreter", &fetches, feeds)?;
        let inputs = resolved.inputs.iter().map(|id| id.0).collect();
        Ok(Stepper::new(self.trace.device(), resolved, inputs))
    }

    /// The nodes that are computed and that no other reads.
    fn ends(&self) -> Vec<u32> {
        resolve::ends(&self.trace).into_iter().map(|id| id.0).collect()
    }

    /// A copy that may go on, finalized or not.
    fn copy(&self) -> Definition {
        let (list, calls) = self.trace.snapshot();
        let scope = self.trace.scope().clone();
        let trace = definition::define(self.trace.device(), list, calls, self.trace.keys(), scope);
        Definition { trace, outputs: Mutex::new(self.outputs.lock().clone()) }
    }

    /// The part that computes some nodes from others, and where its nodes came from.
    fn extract(
        &self,
        py: Python<'_>,
        outputs: Vec<u32>,
        inputs: Vec<u32>,
    ) -> PyResult<(Definition, Vec<u32>)> {
        let (outputs, inputs) = (self.ids(py, &outputs)?, self.ids(py, &inputs)?);
        let (trace, kept) = resolve::part(&self.trace, &outputs, &inputs);
        Ok((Definition::of(trace), kept.iter().map(|id| id.0).collect()))
    }

    /// The part that computes some nodes, after the passes of the compiler, with their reports.
    #[pyo3(signature = (outputs, off, fast_math=false))]
    fn optimize(
        &self,
        py: Python<'_>,
        outputs: Vec<u32>,
        off: Vec<String>,
        fast_math: bool,
    ) -> PyResult<(Definition, Vec<PassReport>)> {
        let outputs = self.ids(py, &outputs)?;
        let (trace, _) = resolve::part(&self.trace, &outputs, &[]);
        let (list, calls) = trace.snapshot();
        if let Some(id) = calls.unresolved.iter().min_by_key(|id| id.0) {
            let facts = format!("%{} has an unknown shape", id.0);
            let what = "only a graph of known ranks can be optimized";
            return Err(to_python(py, error::bad_graph("optimize", what, facts)));
        }
        let mut options = passes::Options { fast_math, ..passes::Options::default() };
        off.iter().try_for_each(|name| options.switch(name, false)).or_raise(py)?;
        let _entered = self.trace.scope().enter();
        let (list, reports) =
            passes::reported(list, &options, executors::executor(self.trace.device()))
                .or_raise(py)?;
        let scope = self.trace.scope().clone();
        let small = definition::define(
            self.trace.device(),
            list,
            Calls::default(),
            FxHashSet::default(),
            scope,
        );
        Ok((Definition::of(small), reports.iter().map(PassReport::new).collect()))
    }

    /// The results for tensors in the place of some nodes, op by op: recorded, or captured.
    fn interpret(
        &self,
        py: Python<'_>,
        fetches: Vec<u32>,
        feeds: Vec<u32>,
        tensors: Vec<Bound<'_, PyAny>>,
    ) -> PyResult<Vec<Py<PyAny>>> {
        let (fetches, feeds) = (self.ids(py, &fetches)?, self.ids(py, &feeds)?);
        let mut values = Vec::with_capacity(tensors.len());
        for object in &tensors {
            // SAFETY: a live object.
            match unsafe { tensor::downcast(object.as_ptr()) } {
                Some(tensor) => values.push(tensor.try_value().or_raise(py)?),
                None => return Err(super::convert::refuse("graph.function", object)),
            }
        }
        let types: Vec<(Id, Type)> = feeds
            .iter()
            .zip(&values)
            .map(|(id, value)| (*id, Type::new(value.dtype(), value.shape().clone())))
            .collect();
        let resolved =
            resolve::resolve("graph.function", &self.trace, &fetches, &types).or_raise(py)?;
        let attempt = random::Attempt::begin();
        let mut inputs = Vec::with_capacity(resolved.inputs.len());
        for id in &resolved.inputs {
            inputs.push(match feeds.iter().position(|fed| fed == id) {
                Some(i) => values[i].clone(),
                None if self.trace.is_key(*id) => {
                    random::draw_on(self.trace.device()).or_raise(py)?
                }
                None => {
                    let facts = format!("%{} is not among the inputs", id.0);
                    let what = "the outputs depend on a node that is not given";
                    return Err(to_python(py, error::bad_graph("graph.function", what, facts)));
                }
            });
        }
        let work = || interpret(&resolved.list, inputs, &[]);
        let found = detached(py, ENDLESS, work).or_raise(py)?;
        attempt.done();
        found.into_iter().map(|value| wrap(py, value)).collect()
    }

    /// The graph as text.
    fn text(&self) -> String {
        let (mut list, calls) = self.trace.snapshot();
        list.outputs = self.outputs.lock().clone();
        let text = list.print_on(self.trace.device(), site::describe);
        if calls.unresolved.is_empty() && calls.deferred.is_empty() {
            return text;
        }
        // Nodes without an op of their own print as inputs: in their place stands the call.
        let mut out = String::with_capacity(text.len());
        for line in text.lines() {
            let id = line.strip_prefix('%').and_then(|rest| rest.split_once(':'));
            let id = id.and_then(|(id, _)| id.parse().ok()).map(Id);
            let special = id.and_then(|id| unresolved_line(&list, &calls, id));
            out += &special.unwrap_or_else(|| line.into());
            out.push('\n');
        }
        out
    }

    /// The graph as Graphviz source, with boxes around what a plan runs as one where `groups`.
    fn dot(&self, groups: bool) -> String {
        let list = self.shown();
        let groups = if groups { picture::groups(self.trace.device(), &list) } else { Vec::new() };
        picture::dot(&list, &groups)
    }

    /// The nodes for people, each a dictionary.
    fn rows<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        super::picture::dictionaries(py, picture::rows(&self.shown()))
    }

    /// Whether two graphs are equal: nodes, types, attributes, constants, names, results.
    fn same(&self, other: &Definition) -> bool {
        let ((a, ours), (b, theirs)) = (self.trace.snapshot(), other.trace.snapshot());
        // A call whose results are nodes of their own is told by these.
        let text = |list: &List, calls: &Calls| -> Vec<String> {
            let is_open = |id: &Id| matches!(list.node(*id).kind, Kind::Input);
            let open = calls.deferred.iter().filter(|call| call.results.iter().any(is_open));
            open.map(call_text).collect()
        };
        a == b
            && self.trace.device() == other.trace.device()
            && ours.unresolved == theirs.unresolved
            && text(&a, &ours) == text(&b, &theirs)
            && *self.outputs.lock() == *other.outputs.lock()
    }
}

/// The line of a node whose shape or op the list does not know.
fn unresolved_line(list: &List, calls: &Calls, id: Id) -> Option<String> {
    let node = list.nodes.get(id.0 as usize)?;
    if !matches!(node.kind, Kind::Input) {
        return None;
    }
    let unknown = calls.unresolved.contains(&id);
    let call = calls.of(id).map(call_text);
    if !unknown && call.is_none() {
        return None;
    }
    let shape = if unknown { "?".into() } else { node.ty.shape.to_string() };
    let name = list.names.get(&id).map(|name| format!(" \"{name}\"")).unwrap_or_default();
    let site = site::describe(node.site).map(|line| format!("  # {line}")).unwrap_or_default();
    let call = call.unwrap_or_else(|| "input".into());
    Some(format!("%{}: {} {shape} = {call}{name}{site}", id.0, node.ty.dtype))
}

impl Definition {
    /// The list for pictures: nodes without an op of their own are called what they compute.
    fn shown(&self) -> List {
        let (mut list, calls) = self.trace.snapshot();
        list.outputs = self.outputs.lock().clone();
        for call in &calls.deferred {
            for id in &call.results {
                if matches!(list.node(*id).kind, Kind::Input) {
                    list.names.insert(*id, call_text(call).into());
                }
            }
        }
        list
    }
}

/// The graph that a text says.
#[pyfunction]
fn _parse_graph(py: Python<'_>, text: &str) -> PyResult<Definition> {
    let scope = Scope::owner();
    let _keeping = scope.keeper().enter();
    let (list, device) = graph::parse_on(text).or_raise(py)?;
    executors::present("parse_graph", device).or_raise(py)?;
    for symbol in list.symbols() {
        scope.declare(&symbol.to_string(), None);
    }
    Ok(Definition::from_list(device, list, scope))
}

/// Adds classes and functions to the module.
pub fn install(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Definition>()?;
    module.add_class::<Runner>()?;
    module.add_function(pyo3::wrap_pyfunction!(_parse_graph, module)?)
}
