//! Nodes of graphs, and tensors that stand for them, as Python sees them.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyTuple;

use super::dtype;
use super::errors::to_python;
use super::site::{location, scope_text};
use super::tensor::{self, TensorObject};
use crate::engine::definition::DeferredCall;
use crate::engine::tape::Value;
use crate::engine::trace::{self, Role, Trace};
use crate::error;
use crate::graph::{self, Kind};
use crate::ops::emit::{Arg, Id};
use crate::ops::op::Type;
use crate::shape::{Dim, Shape};
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
    pub(super) trace: Arc<Trace>,
    pub(super) at: Id,
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
    fn call(&self) -> Option<DeferredCall> {
        let node = self.node();
        let deferred = || self.trace.calls().of(self.at).cloned();
        matches!(node.kind, Kind::Input).then(deferred).flatten()
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
            Some(deferred) => deferred.call.name().into(),
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

    /// The modules in whose calls it was traced, as `GPT/blocks.0/attention`; `None` where it was
    /// in none. What an optimizer's step does stands under the optimizer.
    #[getter]
    fn scope(&self) -> Option<String> {
        scope_text(self.node().site)
    }

    /// Whether it is part of a backward: of that of its scope.
    #[getter]
    fn is_backward(&self) -> bool {
        self.node().site.scope.is_backward()
    }

    /// The nodes it reads.
    #[getter]
    fn inputs(&self) -> Vec<Node> {
        let args = match self.call() {
            Some(deferred) => deferred.args.into_iter().collect(),
            None => self.node().args,
        };
        let nodes = args.iter().filter_map(|arg| match arg {
            Arg::Node(id) => Some(Node { trace: self.trace.clone(), at: *id }),
            Arg::Number(_) => None,
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
            Some(deferred) => call_text(&deferred),
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
pub fn call_text(deferred: &DeferredCall) -> String {
    let args: Vec<String> = deferred.args.iter().map(|&arg| graph::print::operand(arg)).collect();
    format!("{}({})", deferred.call.name(), args.join(", "))
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

/// Whether a function is being captured, as opposed to a graph being defined by hand.
#[pyfunction]
fn _is_captured() -> bool {
    trace::top().is_some_and(|trace| trace.role == Role::Function)
}

/// Adds classes and functions to the module.
pub fn install(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PySite>()?;
    module.add_class::<Node>()?;
    module.add_function(pyo3::wrap_pyfunction!(_graph_node, module)?)?;
    module.add_function(pyo3::wrap_pyfunction!(_traced_text, module)?)?;
    module.add_function(pyo3::wrap_pyfunction!(_is_captured, module)?)?;
    module.add_function(pyo3::wrap_pyfunction!(_traced_site, module)?)
}
