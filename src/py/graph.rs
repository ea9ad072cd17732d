//! Graphs defined by hand, at the border: nodes, and the lists that run.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};
use rustc_hash::FxHashSet;
use smallvec::{SmallVec, smallvec};

use super::capture::PassReport;
use super::dtype;
use super::errors::{OrRaise, to_python};
use super::site::location;
use super::size;
use super::tensor::{self, TensorObject, wrap};
use crate::array::Array;
use crate::engine::call::interpret;
use crate::engine::definition::{self, Call, Calls, Kept};
use crate::engine::picture;
use crate::engine::program::Program;
use crate::engine::site;
use crate::engine::tape::{Operand, Value};
use crate::engine::trace::{self, Role, Trace};
use crate::error;
use crate::graph::{self, Kind, List};
use crate::ops::emit::{Arg, Id};
use crate::ops::op::Type;
use crate::passes;
use crate::shape::{Dim, Scope, Shape};
use crate::site::Site;

/// The line of Python that made a node.
#[pyclass(frozen, module = "wengert", name = "Site")]
pub struct PySite {
    /// The file.
    #[pyo3(get)]
    filename: String,
    /// The line in it.
    #[pyo3(get)]
    lineno: i32,
}

#[pymethods]
impl PySite {
    fn __repr__(&self) -> String {
        format!("{}:{}", self.filename, self.lineno)
    }
}

/// A node of a graph.
#[pyclass(frozen, module = "wengert", eq, hash)]
pub struct Node {
    trace: Arc<Trace>,
    at: Id,
}

impl PartialEq for Node {
    fn eq(&self, other: &Node) -> bool {
        Arc::ptr_eq(&self.trace, &other.trace) && self.at == other.at
    }
}

impl Hash for Node {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.trace.serial(), self.at).hash(state);
    }
}

impl Node {
    fn node(&self) -> graph::Node {
        self.trace.read(|graph| graph.list().node(self.at).clone())
    }

    /// The call behind a node that has no op of its own.
    fn call(&self) -> Option<Kept> {
        let node = self.node();
        let kept = || self.trace.calls().of(self.at).cloned();
        matches!(node.kind, Kind::Input).then(kept).flatten()
    }
}

/// Sizes as Python sees them: `None` where one is not known, or all of them.
fn shape_object<'py>(py: Python<'py>, shape: Option<&Shape>) -> PyResult<Bound<'py, PyAny>> {
    let Some(shape) = shape else { return Ok(py.None().into_bound(py)) };
    let sizes = shape.dims().iter().map(|dim| dim.known());
    Ok(PyTuple::new(py, sizes)?.into_any())
}

fn dtype_object(py: Python<'_>, of: crate::dtype::DType) -> PyResult<Py<PyAny>> {
    match dtype::object(py, of) {
        Some(object) => Ok(object.clone_ref(py).into_any()),
        None => Err(to_python(py, error::internal("dtypes are not ready"))),
    }
}

#[pymethods]
impl Node {
    /// The number of the node in its graph.
    #[getter]
    fn id(&self) -> u32 {
        self.at.0
    }

    /// The name of what it computes: an op, `input`, `constant`, …
    #[getter]
    fn op(&self) -> String {
        match self.call() {
            Some(kept) => kept.call.name().into(),
            None => self.node().kind.name().into(),
        }
    }

    /// The sizes, `None` for one that is not known; `None` where the rank is not.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let node = self.node();
        let known = !self.trace.is_unresolved(self.at);
        shape_object(py, known.then_some(&node.ty.shape))
    }

    /// The element type.
    #[getter]
    fn dtype(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        dtype_object(py, self.node().ty.dtype)
    }

    /// The line that made it, with `filename` and `lineno`; `None` where it is not known.
    #[getter]
    fn site(&self) -> Option<PySite> {
        let (filename, lineno) = location(self.node().site)?;
        Some(PySite { filename, lineno })
    }

    /// The nodes it reads.
    #[getter]
    fn inputs(&self) -> Vec<Node> {
        let args = match self.call() {
            Some(kept) => kept.args.into_iter().collect(),
            None => self.node().args,
        };
        let nodes = args.iter().filter_map(|arg| match arg {
            Arg::Node(id) => Some(Node { trace: self.trace.clone(), at: *id }),
            Arg::Scalar(_) => None,
        });
        nodes.collect()
    }

    /// The name it was given, or None.
    #[getter]
    fn name(&self) -> Option<String> {
        self.trace.read(|graph| graph.list().names.get(&self.at).map(|name| name.to_string()))
    }

    /// The node with operands and attributes, as a line of text.
    #[getter]
    fn attributes(&self) -> String {
        match self.call() {
            Some(kept) => call_text(&kept),
            None => graph::print::summary(&self.node()),
        }
    }

    fn __repr__(&self) -> String {
        let node = self.node();
        let shape = match self.trace.is_unresolved(self.at) {
            true => "of unknown shape".into(),
            false => node.ty.shape.to_string(),
        };
        let name = self.name().map(|name| format!(" \"{name}\"")).unwrap_or_default();
        format!("<node %{}{name}: {} = {} {shape}>", self.at.0, self.attributes(), node.ty.dtype)
    }
}

/// A call that has no node of its own, as text.
fn call_text(kept: &Kept) -> String {
    let args: Vec<String> = kept.args.iter().map(|&arg| graph::print::operand(arg)).collect();
    format!("{}({})", kept.call.name(), args.join(", "))
}

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
    pub fn from_list(list: List, scope: Scope) -> Definition {
        Definition::of(Trace::define(list, Calls::default(), FxHashSet::default(), scope))
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
        // SAFETY: a live object.
        let Some(tensor) = (unsafe { tensor::downcast(object.as_ptr()) }) else {
            let facts = format!("got {}", object.get_type().name()?);
            return Err(to_python(py, error::bad_type(op, "expected a tensor", facts)));
        };
        let value = tensor.with_own(Value::clone);
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
        let Some(dim) = size::dim(object) else {
            let what = "a size is an int that is not negative, a wengert.Dim or None";
            let facts = format!("got {}", object.repr()?);
            return Err(to_python(object.py(), error::bad_value(op, what, facts)));
        };
        for symbol in dim.symbols() {
            scope.declare(&symbol.to_string(), None);
        }
        Ok(dim)
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
        Definition::of(Trace::new(Role::Definition))
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
        let _entered = self.trace.enter();
        let operands = [Operand::Value(&value)];
        let work = || -> error::Result<Value> {
            if let Some(trace) = definition::keeper(&operands) {
                let later = || Err(error::unknown_size("assign", "a size"));
                if value.shape().rank() == ty.shape.rank() {
                    definition::check_assign(&ty, &value)?;
                }
                return definition::keep_one(&trace, Call::Assign(ty), &operands, later);
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
        let needs = definition::needs(&list, &calls, &fetches, &|id| fed.contains(&id));
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
        let needs = definition::needs(&list, &calls, &fetches, &|id| fed.contains(&id));
        let is_live = |id: &u32| needs.live.get(*id as usize).copied().unwrap_or(false);
        Ok(nodes.into_iter().filter(|id| is_live(id) && !fed.contains(&Id(*id))).collect())
    }

    /// What runs for fetches and for feeds of these types.
    fn resolve(
        &self,
        py: Python<'_>,
        fetches: Vec<u32>,
        feeds: Vec<FeedType<'_>>,
    ) -> PyResult<Runner> {
        let fetches = self.ids(py, &fetches)?;
        let mut types = Vec::with_capacity(feeds.len());
        for (id, dtype, sizes) in feeds {
            let ty = Type::new(dtype::extract("session.run", &dtype)?, Shape::of(&sizes));
            types.push((self.id(py, id)?, ty));
        }
        let resolved = definition::resolve(&self.trace, &fetches, &types).or_raise(py)?;
        Ok(Runner {
            inputs: resolved.inputs.iter().map(|id| id.0).collect(),
            program: Program::new(resolved.list, Vec::new(), Scope::new()),
        })
    }

    /// A copy that may go on, finalized or not.
    fn copy(&self) -> Definition {
        let (list, calls) = self.trace.snapshot();
        let scope = self.trace.scope().clone();
        let trace = Trace::define(list, calls, self.trace.keys(), scope);
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
        let (trace, kept) = self.part(&outputs, &inputs);
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
        let (trace, _) = self.part(&outputs, &[]);
        let (list, calls) = trace.snapshot();
        if let Some(id) = calls.unresolved.iter().min_by_key(|id| id.0) {
            let facts = format!("%{} has an unknown shape", id.0);
            let what = "only a graph of known ranks can be optimized";
            return Err(to_python(py, error::bad_graph("optimize", what, facts)));
        }
        let mut options = passes::Options { fast_math, ..passes::Options::default() };
        off.iter().try_for_each(|name| options.switch(name, false)).or_raise(py)?;
        let _entered = self.trace.scope().enter();
        let (list, reports) = passes::pipeline(list, &options).or_raise(py)?;
        let scope = self.trace.scope().clone();
        let small = Trace::define(list, Calls::default(), FxHashSet::default(), scope);
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
        let resolved = definition::resolve(&self.trace, &fetches, &types).or_raise(py)?;
        let mut inputs = Vec::with_capacity(resolved.inputs.len());
        for id in &resolved.inputs {
            inputs.push(match feeds.iter().position(|fed| fed == id) {
                Some(i) => values[i].clone(),
                None if self.trace.is_key(*id) => crate::engine::random::draw().or_raise(py)?,
                None => {
                    let facts = format!("%{} is not among the inputs", id.0);
                    let what = "the outputs depend on a node that is not given";
                    return Err(to_python(py, error::bad_graph("graph.function", what, facts)));
                }
            });
        }
        let found = interpret(&resolved.list, inputs, &[]).or_raise(py)?;
        found.into_iter().map(|value| wrap(py, value)).collect()
    }

    /// The graph as text.
    fn text(&self) -> String {
        let (mut list, calls) = self.trace.snapshot();
        list.outputs = self.outputs.lock().clone();
        let text = list.print(site::describe);
        if calls.unresolved.is_empty() && calls.kept.is_empty() {
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
        let groups = if groups { picture::groups(&list) } else { Vec::new() };
        picture::dot(&list, &groups)
    }

    /// The nodes for people: text, the same with line and cost, a colour.
    fn rows(&self) -> Vec<(String, String, &'static str)> {
        let rows = picture::rows(&self.shown());
        rows.into_iter().map(|row| (row.text, row.tooltip, row.colour)).collect()
    }

    /// Whether two graphs are equal: nodes, types, attributes, constants, names, results.
    fn same(&self, other: &Definition) -> bool {
        let ((a, ours), (b, theirs)) = (self.trace.snapshot(), other.trace.snapshot());
        let text = |calls: &Calls| -> Vec<String> { calls.kept.iter().map(call_text).collect() };
        a == b
            && ours.unresolved == theirs.unresolved
            && text(&ours) == text(&theirs)
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
        for kept in &calls.kept {
            for id in &kept.results {
                if matches!(list.node(*id).kind, Kind::Input) {
                    list.names.insert(*id, call_text(kept).into());
                }
            }
        }
        list
    }

    /// The nodes that `outputs` need, from `inputs` on: a graph of its own, and where they came from.
    fn part(&self, outputs: &[Id], inputs: &[Id]) -> (Arc<Trace>, Vec<Id>) {
        let (list, calls) = self.trace.snapshot();
        let cut: FxHashSet<Id> = inputs.iter().copied().collect();
        let needs = definition::needs(&list, &calls, outputs, &|id| cut.contains(&id));
        let mut live = needs.live;
        inputs.iter().for_each(|id| live[id.0 as usize] = true);
        // A call's nodes stay together.
        let used =
            |kept: &&Kept| kept.nodes.clone().any(|i| live[i as usize] && !cut.contains(&Id(i)));
        let kept_calls: Vec<Kept> = calls.kept.iter().filter(used).cloned().collect();
        for kept in &kept_calls {
            kept.nodes.clone().for_each(|i| live[i as usize] = true);
        }
        let kept: Vec<Id> =
            (0..list.nodes.len() as u32).map(Id).filter(|id| live[id.0 as usize]).collect();
        let mut place = vec![Id(0); list.nodes.len()];
        kept.iter().enumerate().for_each(|(new, old)| place[old.0 as usize] = Id(new as u32));
        let moved = |arg: &Arg| match arg {
            Arg::Node(id) => Arg::Node(place[id.0 as usize]),
            scalar => *scalar,
        };
        let mut part = List { numbers: list.numbers.clone(), ..List::default() };
        for id in &kept {
            let mut node = list.node(*id).clone();
            if cut.contains(id) {
                node.kind = Kind::Input;
                node.args.clear();
            }
            node.args.iter_mut().for_each(|arg| *arg = moved(arg));
            part.nodes.push(node);
        }
        let is_kept = |id: &Id| live[id.0 as usize];
        let names = list.names.iter().filter(|(id, _)| is_kept(id));
        part.names = names.map(|(id, name)| (place[id.0 as usize], name.clone())).collect();
        part.outputs = outputs.iter().map(|id| place[id.0 as usize]).collect();
        let moved_call = |kept: &Kept| Kept {
            args: kept.args.iter().map(&moved).collect(),
            nodes: place[kept.nodes.start as usize].0
                ..place[kept.nodes.start as usize].0 + kept.nodes.len() as u32,
            results: kept.results.iter().map(|id| place[id.0 as usize]).collect(),
            ..kept.clone()
        };
        let ids = |of: &FxHashSet<Id>| -> FxHashSet<Id> {
            of.iter().filter(|id| is_kept(id)).map(|id| place[id.0 as usize]).collect()
        };
        let calls = Calls {
            kept: kept_calls.iter().map(moved_call).collect(),
            unresolved: ids(&calls.unresolved),
            likely: ids(&calls.likely),
        };
        let keys = ids(&self.trace.keys());
        (Trace::define(part, calls, keys, self.trace.scope().clone()), kept)
    }
}

/// A list with its plan, for feeds of known types.
#[pyclass(frozen, module = "wengert")]
pub struct Runner {
    /// The nodes of the graph that the arguments stand for.
    #[pyo3(get)]
    inputs: Vec<u32>,
    program: Program,
}

#[pymethods]
impl Runner {
    fn __call__(&self, py: Python<'_>, args: Vec<Bound<'_, PyAny>>) -> PyResult<Py<PyList>> {
        let mut inputs: SmallVec<[Array; 8]> = smallvec![];
        for object in &args {
            // SAFETY: a live object.
            let Some(tensor) = (unsafe { tensor::downcast(object.as_ptr()) }) else {
                return Err(super::convert::refuse("session.run", object));
            };
            inputs.push(tensor.with_own(|value| value.array.clone()));
        }
        let here = site::current();
        let work = || {
            let arrays: SmallVec<[&Array; 8]> = inputs.iter().collect();
            self.program.run(&arrays, &[], &[])
        };
        let found = py.detach(|| site::pinned(here, work)).or_raise(py)?;
        let objects: PyResult<Vec<Py<PyAny>>> =
            found.into_iter().map(|array| wrap(py, Value::plain(array))).collect();
        Ok(PyList::new(py, objects?)?.unbind())
    }

    /// The list as text.
    fn text(&self) -> String {
        self.program.list().print_short(site::describe)
    }

    /// The plan as text.
    fn plan_text(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.program.plan(&[]).or_raise(py)?.to_string())
    }
}

/// What a traced tensor is, for its text and its properties.
struct Traced {
    serial: u64,
    id: Id,
    name: Option<String>,
    ty: Type,
    unresolved: bool,
    by_hand: bool,
    site: Site,
}

fn traced(object: &Bound<'_, PyAny>) -> Option<Traced> {
    // SAFETY: a live object.
    let tensor = unsafe { tensor::downcast(object.as_ptr()) }?;
    tensor.with_own(|value| {
        let (trace, id) = trace::node_of(&value.array)?;
        trace.read(|graph| {
            let list = graph.list();
            Some(Traced {
                serial: trace.serial(),
                id,
                name: list.names.get(&id).map(|name| name.to_string()),
                ty: Type::new(value.dtype(), value.shape().clone()),
                unresolved: trace.is_unresolved(id),
                by_hand: trace.role == Role::Definition,
                site: list.nodes.get(id.0 as usize).map_or(Site::default(), |node| node.site),
            })
        })
    })
}

/// The graph (its `serial`) and the number of the node that a tensor is, or None.
#[pyfunction]
fn _graph_node(x: &Bound<'_, PyAny>) -> Option<(u64, u32)> {
    traced(x).filter(|traced| traced.by_hand).map(|traced| (traced.serial, traced.id.0))
}

/// The text of a tensor without data, or None.
#[pyfunction]
fn _traced_text(x: &Bound<'_, PyAny>) -> Option<String> {
    let traced = traced(x)?;
    let name = traced.name.map_or(format!("%{}", traced.id.0), |name| format!("\"{name}\""));
    let shape = if traced.unresolved { "None".into() } else { shape_text(&traced.ty.shape) };
    Some(format!("{name}, shape={shape}, dtype={}", traced.ty.dtype))
}

/// Sizes as Python writes them, None for those that are not known.
fn shape_text(shape: &Shape) -> String {
    let text = |dim: &Dim| dim.known().map_or("None".into(), |n| n.to_string());
    let parts: Vec<String> = shape.dims().iter().map(text).collect();
    match parts.as_slice() {
        [one] => format!("({one},)"),
        parts => format!("({})", parts.join(", ")),
    }
}

/// None for the shape of a tensor whose rank is not known.
pub fn open_shape<'py>(py: Python<'py>, value: &Value) -> PyResult<Option<Bound<'py, PyAny>>> {
    let Some((trace, id)) = trace::node_of(&value.array) else { return Ok(None) };
    if trace.role != Role::Definition {
        return Ok(None);
    }
    Ok(trace.is_unresolved(id).then(|| py.None().into_bound(py)))
}

/// Refuses a tensor whose rank is not known.
pub fn check_rank(py: Python<'_>, op: &str, this: &TensorObject) -> PyResult<()> {
    let unknown = this.with_own(|value| {
        trace::node_of(&value.array).is_some_and(|(trace, id)| trace.is_unresolved(id))
    });
    if unknown {
        let what = "the rank is not known before the graph runs";
        return Err(to_python(py, error::bad_graph(op, what, "give the placeholder a shape")));
    }
    Ok(())
}

/// The line that made the node of a tensor without data, or None.
#[pyfunction]
fn _traced_site(x: &Bound<'_, PyAny>) -> Option<(String, i32)> {
    location(traced(x)?.site)
}

/// The graph that a text says.
#[pyfunction]
fn _parse_graph(py: Python<'_>, text: &str) -> PyResult<Definition> {
    let list = graph::parse(text).or_raise(py)?;
    let scope = Scope::new();
    for symbol in list.symbols() {
        scope.declare(&symbol.to_string(), None);
    }
    Ok(Definition::from_list(list, scope))
}

/// Adds classes and functions to the module.
pub fn install(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PySite>()?;
    module.add_class::<Node>()?;
    module.add_class::<Definition>()?;
    module.add_class::<Runner>()?;
    module.add_function(pyo3::wrap_pyfunction!(_graph_node, module)?)?;
    module.add_function(pyo3::wrap_pyfunction!(_traced_text, module)?)?;
    module.add_function(pyo3::wrap_pyfunction!(_traced_site, module)?)?;
    module.add_function(pyo3::wrap_pyfunction!(_parse_graph, module)?)
}
