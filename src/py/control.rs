//! Functions of Python's as lists: bodies of control flow, and what transforms make of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};
use smallvec::SmallVec;

use super::errors::{OrRaise, to_python};
use super::functions::{ENDLESS, caught, detached};
use super::size;
use super::tensor::{self, handle, value_of};
use crate::dtype::DType;
use crate::engine::eager::apply::apply;
use crate::engine::executors::Device;
use crate::engine::random::{self, Attempt};
use crate::engine::tape::{self, First, Operand, Value};
use crate::engine::trace::{self, Capture, Source, Trace};
use crate::engine::{control, executors, site};
use crate::error::{self, Result};
use crate::graph::{ControlFlow, ControlFlowKind, Effect, Graph, List};
use crate::memory::check_room;
use crate::ops::elementwise::arithmetic;
use crate::ops::emit::{Arg, Id};
use crate::ops::op::{Op, Type};
use crate::passes;
use crate::shape::{Dim, Shape};

/// A function that was traced: a list whose inputs are the operands it was called with, then what
/// it reads outside.
#[pyclass(frozen, module = "wengert")]
pub struct Body {
    pub(super) list: Arc<List>,
    operands: usize,
    /// What it reads outside; a random key is drawn when it runs
    captures: Vec<Option<Value>>,
    /// Where it computes
    device: Device,
}

#[pymethods]
impl Body {
    /// The results: dtype, shape, and the line each was made at.
    fn results(&self) -> Vec<(String, String, String)> {
        let result = |id: &Id| {
            let node = self.list.node(*id);
            let line = site::describe(node.site).unwrap_or_default();
            (node.ty.dtype.to_string(), node.ty.shape.to_string(), line)
        };
        self.list.outputs.iter().map(result).collect()
    }

    /// The operands: dtype, shape, nothing.
    fn takes(&self) -> Vec<(String, String, String)> {
        let operand = |id: Id| {
            let ty = &self.list.node(id).ty;
            (ty.dtype.to_string(), ty.shape.to_string(), String::new())
        };
        self.list.inputs().take(self.operands).map(operand).collect()
    }

    /// The results: dtype and sizes, which are pinned where they are open.
    fn sizes(&self, py: Python<'_>) -> PyResult<Vec<(String, Vec<usize>)>> {
        let result = |id: &Id| {
            let ty = &self.list.node(*id).ty;
            (ty.dtype.to_string(), ty.shape.dims().iter().map(|n| n.value()).collect())
        };
        caught(py, || Ok(self.list.outputs.iter().map(result).collect()))
    }

    /// The nodes as text.
    fn text(&self) -> String {
        Graph::from_list((*self.list).clone()).print(site::describe)
    }
}

/// Traces `function` on operands like those given, without the axes named: it takes a list of
/// tensors and gives one.
#[pyfunction]
fn _body(
    py: Python<'_>,
    name: String,
    like: Vec<Bound<'_, PyAny>>,
    axes: Vec<Option<usize>>,
    function: &Bound<'_, PyAny>,
) -> PyResult<Body> {
    caught(py, || {
        let mut types = Vec::new();
        let mut on = Vec::new();
        for (x, axis) in like.iter().zip(axes) {
            let value = value_of(&name, x)?;
            on.push(value.array.clone());
            let mut ty = Type::new(value.dtype(), value.shape().clone());
            if let Some(axis) = axis {
                ty.shape.dims_mut().remove(axis);
            }
            types.push(ty);
        }
        let trace = Trace::within();
        if !on.is_empty() {
            let device = executors::common(&name, &on).or_raise(py)?;
            trace.settle_device(&name, device).or_raise(py)?;
        }
        let entered = trace.enter();
        let operands = types.len();
        let mut inputs = Vec::new();
        for ty in types {
            inputs.push(tensor::wrap(py, trace.input(ty).or_raise(py)?)?);
        }
        let results = function.call1((PyList::new(py, inputs)?,))?;
        let mut outputs = Vec::new();
        for y in results.try_iter()? {
            let value = value_of(&name, &y?)?;
            trace.settle_device(&name, value.device()).or_raise(py)?;
            outputs.push(Arg::Node(trace.node(&name, &value).or_raise(py)?));
        }
        if tape::recording() {
            trace.settle(&mut outputs).or_raise(py)?;
        }
        let captures = trace.captures();
        refuse_updates(&name, &trace, &captures).or_raise(py)?;
        drop(entered);
        // What depends on a number depends on it outside as well.
        if let Some(outer) = trace::top() {
            let looked = trace.read(|graph| graph.looked().to_vec());
            outer.read(|graph| graph.looks_at_all(&looked));
        }
        let (mut list, _) = trace.close();
        list.outputs = outputs
            .into_iter()
            .filter_map(|arg| match arg {
                Arg::Node(id) => Some(id),
                Arg::Number(_) => None,
            })
            .collect();
        let outside = |x: &Capture| match x.source {
            Source::Key => Ok(None),
            Source::Handle | Source::Gradient(_) | Source::Outer(_) => outside(py, x).map(Some),
        };
        let captures = captures.iter().map(outside).collect::<PyResult<_>>()?;
        Ok(Body { list: Arc::new(list), operands, captures, device: trace.device() })
    })
}

/// Refuses a body that gives a tensor outside a new value: it may run any number of times.
pub(super) fn refuse_updates(name: &str, trace: &Arc<Trace>, captures: &[Capture]) -> Result<()> {
    for capture in captures {
        let graded = capture.leaf.as_ref().is_some_and(|leaf| leaf.first_use().0 != First::Nothing);
        if graded || trace.written(capture)?.is_some() {
            let node = trace.read(|graph| graph.nodes()[capture.input.0 as usize].site);
            let line = site::describe(node).map_or(String::new(), |line| format!(" at {line}"));
            return Err(error::body_updates(name, line));
        }
    }
    Ok(())
}

/// The value of a capture where the body is used.
pub(super) fn outside(py: Python<'_>, capture: &Capture) -> PyResult<Value> {
    match &capture.source {
        Source::Outer(value) => Ok(value.clone()),
        Source::Key => random::draw().or_raise(py),
        Source::Gradient(leaf) => match leaf.gradient().or_raise(py)? {
            Some(cell) => Ok(cell.lock().clone()),
            None => Err(to_python(py, error::internal("a gradient is missing"))),
        },
        Source::Handle => {
            let object = capture.handle.as_ref().and_then(|h| h.downcast_ref::<Py<PyAny>>());
            match object {
                Some(object) => value_of("capture", object.bind(py)),
                None => Err(to_python(py, error::internal("a capture without a handle"))),
            }
        }
    }
}

fn values(name: &str, tensors: &[Bound<'_, PyAny>]) -> PyResult<Vec<Value>> {
    let value = |x: &Bound<'_, PyAny>| value_of(name, x);
    tensors.iter().map(value).collect()
}

fn wrapped(py: Python<'_>, values: Vec<Value>) -> PyResult<Vec<Py<PyAny>>> {
    values.into_iter().map(|value| tensor::wrap(py, value)).collect()
}

/// Whether two values are certainly the same.
fn same(a: &Value, b: &Value) -> bool {
    match (trace::node_of(&a.array), trace::node_of(&b.array)) {
        (Some((t, i)), Some((u, j))) => Arc::ptr_eq(t, u) && i == j,
        (None, None) => {
            a.array.data.same(&b.array.data)
                && a.array.layout == b.array.layout
                && a.array.dtype == b.array.dtype
        }
        _ => false,
    }
}

impl Body {
    /// What it reads outside, with fresh random keys.
    pub(super) fn outside(&self) -> Result<Vec<Value>> {
        let value = |x: &Option<Value>| x.clone().map_or_else(|| random::draw_on(self.device), Ok);
        self.captures.iter().map(value).collect()
    }
}

/// Random keys for what is called inside a `with` block; with None draws are only counted.
#[pyclass(frozen, module = "wengert")]
struct Keys {
    keys: Option<Vec<Value>>,
    drawn: AtomicUsize,
}

#[pymethods]
impl Keys {
    #[new]
    fn new(keys: Option<Vec<Bound<'_, PyAny>>>) -> PyResult<Keys> {
        let keys = keys.map(|keys| values("random", &keys)).transpose()?;
        Ok(Keys { keys, drawn: AtomicUsize::new(0) })
    }

    fn __enter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        random::open_key_stream(slf.keys.clone());
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, _exception: &Bound<'_, PyTuple>) {
        self.drawn.store(random::close_key_stream(), Ordering::Relaxed);
    }

    /// How many keys were drawn in the block.
    #[getter]
    fn drawn(&self) -> usize {
        self.drawn.load(Ordering::Relaxed)
    }
}

type Lists = SmallVec<[Arc<List>; 2]>;

/// Bodies, and what they read outside together.
type Joined = (Lists, Vec<Value>);

/// The bodies over the operands and what any of them reads outside.
fn joined(bodies: &[PyRef<'_, Body>]) -> Result<Joined> {
    let mut captures: Vec<Value> = Vec::new();
    let mut places: Vec<Vec<usize>> = Vec::new();
    for body in bodies {
        let place = |value: &Value| {
            captures.iter().position(|known| same(known, value)).unwrap_or_else(|| {
                captures.push(value.clone());
                captures.len() - 1
            })
        };
        places.push(body.outside()?.iter().map(place).collect());
    }
    let mut lists = Lists::new();
    for (body, places) in bodies.iter().zip(places) {
        let ids: Vec<Id> = body.list.inputs().collect();
        let mut order: Vec<(Type, Option<Id>)> = ids[..body.operands]
            .iter()
            .map(|&id| (body.list.node(id).ty.clone(), Some(id)))
            .collect();
        for (k, value) in captures.iter().enumerate() {
            let own = places.iter().position(|&place| place == k);
            let ty = Type::new(value.dtype(), value.shape().clone());
            order.push((ty, own.map(|i| ids[body.operands + i])));
        }
        lists.push(Arc::new(passes::reordered(&body.list, &order)));
    }
    Ok((lists, captures))
}

/// Control flow over bodies: `form` is `cond`, `while_loop` or `scan`.
#[pyfunction]
#[pyo3(signature = (form, bodies, operands, carry=0, xs=0, length=None, reverse=false))]
#[allow(clippy::too_many_arguments)]
fn _flow(
    py: Python<'_>,
    form: &str,
    bodies: Vec<PyRef<'_, Body>>,
    operands: Vec<Bound<'_, PyAny>>,
    carry: u32,
    xs: u32,
    length: Option<Bound<'_, PyAny>>,
    reverse: bool,
) -> PyResult<Vec<Py<PyAny>>> {
    caught(py, || {
        let attempt = Attempt::begin();
        let mut args = values(form, &operands)?;
        let (lists, captures) = joined(&bodies).or_raise(py)?;
        let given = args.get(carry as usize).filter(|_| xs > 0).map(|x| x.shape()[0]);
        let length = match (given, &length) {
            (Some(given), _) => given,
            (None, Some(length)) => size::dim(form, length)?.unwrap_or(Dim::ONE),
            (None, None) => Dim::ONE,
        };
        args.extend(captures);
        let kind = match form {
            "cond" => ControlFlowKind::Branch,
            "while_loop" => ControlFlowKind::While { carry, history: false },
            _ => ControlFlowKind::Scan { carry, xs, length, reverse },
        };
        let Some(last) = lists.last() else {
            return Err(to_python(py, error::internal("control flow without bodies")));
        };
        let result = |(i, id): (usize, &Id)| {
            let ty = last.node(*id).ty.clone();
            match kind {
                ControlFlowKind::Scan { .. } if i >= carry as usize => {
                    let dims = std::iter::once(length).chain(ty.shape.dims().iter().copied());
                    Type::new(ty.dtype, dims.collect::<Shape>())
                }
                ControlFlowKind::Branch
                | ControlFlowKind::While { .. }
                | ControlFlowKind::Scan { .. }
                | ControlFlowKind::Host(_) => ty,
            }
        };
        let results = last.outputs.iter().enumerate().map(result).collect();
        let flow = ControlFlow { kind, bodies: lists, results };
        let found = detached(py, ENDLESS, || control::run(&flow, args, &[])).or_raise(py)?;
        attempt.done();
        wrapped(py, found)
    })
}

/// The body over a batch: operand `i` has an axis of examples in front where `mapped[i]`. There are
/// as many examples as `x` is long along `axis`.
#[pyfunction]
fn _batched(
    py: Python<'_>,
    body: PyRef<'_, Body>,
    mapped: Vec<bool>,
    x: &Bound<'_, PyAny>,
    axis: usize,
) -> PyResult<Body> {
    caught(py, || {
        let size = value_of("vmap", x)?.shape()[axis];
        let mut mapped = mapped;
        mapped.resize(body.operands + body.captures.len(), false);
        let graph = Graph::from_list((*body.list).clone());
        let list = passes::batch(&graph, &mapped, size).or_raise(py)?.into_list();
        Ok(Body {
            list: Arc::new(list),
            captures: body.captures.clone(),
            operands: body.operands,
            device: body.device,
        })
    })
}

/// The body with tangents: it also takes those of the operands that have one, behind all operands,
/// and gives those of the results that have one, behind all results. Also which these are.
#[pyfunction]
fn _with_tangents(
    py: Python<'_>,
    body: PyRef<'_, Body>,
    has: Vec<bool>,
) -> PyResult<(Body, Vec<bool>)> {
    caught(py, || {
        let (operands, mut all) = (body.operands, has);
        all.resize(operands + body.captures.len(), false);
        let graph = Graph::from_list((*body.list).clone());
        let found = passes::jvp(&graph, &all).or_raise(py)?;
        let list = found.graph.into_list();
        let ids: Vec<Id> = list.inputs().collect();
        let (own, rest) = ids.split_at(operands);
        let (captured, tangents) = rest.split_at(body.captures.len());
        let order: Vec<(Type, Option<Id>)> = own
            .iter()
            .chain(tangents)
            .chain(captured)
            .map(|&id| (list.node(id).ty.clone(), Some(id)))
            .collect();
        let list = Arc::new(passes::reordered(&list, &order));
        let operands = operands + tangents.len();
        let captures = body.captures.clone();
        Ok((Body { list, operands, captures, device: body.device }, found.has))
    })
}

/// Runs a body on operands.
#[pyfunction]
fn _inline(
    py: Python<'_>,
    body: PyRef<'_, Body>,
    operands: Vec<Bound<'_, PyAny>>,
) -> PyResult<Vec<Py<PyAny>>> {
    caught(py, || {
        let attempt = Attempt::begin();
        let mut args = values("call", &operands)?;
        args.extend(body.outside().or_raise(py)?);
        let list = body.list.clone();
        let found = detached(py, ENDLESS, || control::call(&list, args)).or_raise(py)?;
        attempt.done();
        wrapped(py, found)
    })
}

/// Prints a text with operands, or checks an operand, when the program around runs.
#[pyfunction]
fn _effect(
    py: Python<'_>,
    form: &str,
    text: &str,
    operands: Vec<Bound<'_, PyAny>>,
) -> PyResult<()> {
    caught(py, || {
        let effect = match form {
            "print" => Effect::Print(text.into()),
            _ => Effect::Check(text.into()),
        };
        control::perform(&effect, &values(form, &operands)?).or_raise(py)
    })
}

/// Refuses `count` arrays of a type where memory cannot hold them.
#[pyfunction]
fn _check_room(py: Python<'_>, count: usize, dtype: &str, shape: Vec<usize>) -> PyResult<()> {
    let size = DType::from_name(dtype).map_or(1, |dtype| dtype.size());
    let bytes = shape.iter().fold(size, |product, &n| product.saturating_mul(n));
    check_room(count.saturating_mul(bytes)).or_raise(py)
}

/// Whether a tensor belongs to a trace or graph.
#[pyfunction]
fn _is_traced(x: &Bound<'_, PyAny>) -> PyResult<bool> {
    Ok(handle("is_traced", x)?.with_own(|value| trace::is_traced(&value.array)))
}

/// The value of a tensor without its history. Unlike `detach`, this leaves the graph of a body as
/// it is.
#[pyfunction]
fn _plain(py: Python<'_>, x: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
    let value = value_of("detach", x)?;
    tensor::wrap(py, Value::plain(value.array))
}

/// Marks the result of a function whose gradient rule is written in Python, inside of traces.
#[pyfunction]
fn _ruled(py: Python<'_>, x: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
    let value = value_of("Function", x)?;
    if !trace::is_traced(&value.array) || !value.dtype().is_float() {
        return Ok(x.clone().unbind());
    }
    // The mark hangs on what the function computed, which was done without recording. It is not
    // done so itself: gradients end in it with an error, not in silence.
    let op = Op::Map(&arithmetic::custom_rule);
    let recording = tape::recording_as(!trace::cuts(&value.array));
    let marked = trace::sweeping(|| apply(op, &[Operand::Value(&value)], false));
    drop(recording);
    tensor::wrap(py, marked.or_raise(py)?)
}

/// Adds classes and functions to the module.
pub fn install(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Body>()?;
    module.add_class::<Keys>()?;
    module.add_function(pyo3::wrap_pyfunction!(_body, module)?)?;
    module.add_function(pyo3::wrap_pyfunction!(_flow, module)?)?;
    module.add_function(pyo3::wrap_pyfunction!(_batched, module)?)?;
    module.add_function(pyo3::wrap_pyfunction!(_with_tangents, module)?)?;
    module.add_function(pyo3::wrap_pyfunction!(_inline, module)?)?;
    module.add_function(pyo3::wrap_pyfunction!(_effect, module)?)?;
    module.add_function(pyo3::wrap_pyfunction!(_check_room, module)?)?;
    module.add_function(pyo3::wrap_pyfunction!(_is_traced, module)?)?;
    module.add_function(pyo3::wrap_pyfunction!(_plain, module)?)?;
    module.add_function(pyo3::wrap_pyfunction!(_ruled, module)?)?;
    Ok(())
}
