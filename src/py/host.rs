//! Functions on the host: making tensors from data, the tape's verbs, memory, threads, random state.

use std::ffi::c_void;
use std::os::raw::c_int;
use std::ptr::null_mut;
use std::sync::Arc;

use parking_lot::Mutex;
use pyo3::exceptions::PyTypeError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyCFunction, PyDict, PyTuple};
use rustc_hash::FxHashSet;

use super::arguments::{Parsed, Signature, leak};
use super::convert;
use super::dtype;
use super::errors::{OrRaise, foreign, to_python};
use super::functions::{guard, make_leaf};
use super::slots::{assign, check_leaf_update};
use super::tensor::{self, value_of, wrap};
use crate::array::Array;
use crate::cpu;
use crate::dtype::DType;
use crate::engine::apply::apply;
use crate::engine::backward::{self, Options};
use crate::engine::definition;
use crate::engine::random;
use crate::engine::site;
use crate::engine::tape::{self, Entry, History, HostRule, Link, Operand, Value};
use crate::engine::trace;
use crate::error;
use crate::memory;
use crate::ops::declare::{Attr, Param, ParamKind};
use crate::ops::elementwise::arithmetic;
use crate::ops::op::Op;
use crate::shape::Shape;
use crate::threads;

type Object = *mut ffi::PyObject;

/// A place where values lie, such as `wengert.device("cpu")`.
#[pyclass(frozen, eq, hash, name = "Device", module = "wengert")]
#[derive(PartialEq, Hash)]
pub struct Device {
    /// The kind: "cpu".
    #[pyo3(get, name = "type")]
    kind: &'static str,
}

#[pymethods]
impl Device {
    fn __repr__(&self) -> String {
        format!("device(\"{}\")", self.kind)
    }

    fn __str__(&self) -> &'static str {
        self.kind
    }

    fn __reduce__(&self, py: Python<'_>) -> PyResult<(Py<PyAny>, (&'static str,))> {
        Ok((py.import("wengert._core")?.getattr("device")?.unbind(), (self.kind,)))
    }
}

static CPU: PyOnceLock<Py<Device>> = PyOnceLock::new();

/// The device object of the CPU.
pub fn cpu_device(py: Python<'_>) -> PyResult<Py<PyAny>> {
    let device = CPU.get_or_try_init(py, || Py::new(py, Device { kind: "cpu" }))?;
    Ok(device.clone_ref(py).into_any())
}

/// The device of a name.
#[pyfunction]
fn device(py: Python<'_>, name: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
    convert::check_device("device", name)?;
    cpu_device(py)
}

/// The devices this build can compute on.
#[pyfunction]
fn devices(py: Python<'_>) -> PyResult<Vec<Py<PyAny>>> {
    Ok(vec![cpu_device(py)?])
}

fn from_data(
    op: &str,
    data: &Bound<'_, PyAny>,
    dtype: Option<&Bound<'_, PyAny>>,
    device: Option<&Bound<'_, PyAny>>,
    record: bool,
) -> PyResult<Value> {
    let py = data.py();
    if let Some(device) = device {
        convert::check_device(op, device)?;
    }
    let dtype = dtype.map(|d| dtype::extract(op, d)).transpose()?;
    let Some(value) = convert::from_object(op, data, dtype)? else {
        return Err(convert::refuse(op, data));
    };
    match dtype {
        Some(dtype) if dtype != value.dtype() => {
            apply(Op::Cast(dtype), &[Operand::Value(&value)], record).or_raise(py)
        }
        _ => Ok(value),
    }
}

/// A new tensor from numbers, nested sequences or arrays. The data is copied.
///
/// Floats become float32, ints int64, bools bool, arrays keep their dtype; `dtype` overrides.
/// Raises `OverflowError` for numbers that the dtype cannot hold, `ShapeError` for ragged sequences.
///
/// >>> import wengert as wg
/// >>> wg.tensor([1.0, 2.0], requires_grad=True).requires_grad
/// True
#[pyfunction]
#[pyo3(signature = (data, dtype=None, *, device=None, requires_grad=false))]
#[pyo3(name = "tensor")]
fn tensor_(
    py: Python<'_>,
    data: &Bound<'_, PyAny>,
    dtype: Option<&Bound<'_, PyAny>>,
    device: Option<&Bound<'_, PyAny>>,
    requires_grad: bool,
) -> PyResult<Py<PyAny>> {
    let value = from_data("tensor", data, dtype, device, false)?;
    let mut value = trace::lift(value).or_raise(py)?;
    value.history = History::None;
    if requires_grad {
        make_leaf("tensor", &mut value).or_raise(py)?;
    }
    wrap(py, value)
}

/// A tensor as it is, or a new one from numbers, nested sequences or arrays.
///
/// Arrays that may be written elsewhere are copied, so that the tensor is a value. `copy=False`
/// refuses where a copy would be needed.
#[pyfunction]
#[pyo3(signature = (obj, /, *, dtype=None, device=None, copy=None))]
fn asarray(
    py: Python<'_>,
    obj: &Bound<'_, PyAny>,
    dtype: Option<&Bound<'_, PyAny>>,
    device: Option<&Bound<'_, PyAny>>,
    copy: Option<bool>,
) -> PyResult<Py<PyAny>> {
    // SAFETY: a live object.
    let is_tensor = unsafe { tensor::downcast(obj.as_ptr()) }.is_some();
    if is_tensor && dtype.is_none() && device.is_none() && copy != Some(true) {
        return Ok(obj.clone().unbind());
    }
    let value = from_data("asarray", obj, dtype, device, tape::recording())?;
    if copy == Some(false) && !is_tensor {
        let facts = "the source may be written elsewhere";
        return Err(to_python(
            py,
            error::bad_value("asarray", "copy=False, but a copy is needed", facts),
        ));
    }
    wrap(py, trace::lift(value).or_raise(py)?)
}

/// The positions of true (nonzero) elements: one int64 tensor per axis. The sizes depend on the data.
#[pyfunction]
#[pyo3(signature = (x, /))]
fn nonzero(py: Python<'_>, x: &Bound<'_, PyAny>) -> PyResult<Py<PyTuple>> {
    let value = from_data("nonzero", x, None, None, false)?;
    let remedy = "the size of the result would depend on it: use wg.where";
    trace::check_data("nonzero", &value.array, remedy).or_raise(py)?;
    let mask = cpu::cast(&value.array, DType::Bool).or_raise(py)?;
    let positions = cpu::nonzero(&mask).or_raise(py)?;
    let objects: PyResult<Vec<_>> =
        positions.into_iter().map(|array| wrap(py, Value::plain(array))).collect();
    Ok(PyTuple::new(py, objects?)?.unbind())
}

/// Switches recording for a block (`with`) or a function (decorator).
#[pyclass(frozen, module = "wengert")]
struct GradMode {
    on: bool,
    before: Mutex<Vec<bool>>,
}

#[pymethods]
impl GradMode {
    fn __enter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        let was = tape::set_recording(slf.on);
        slf.before.lock().push(was);
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, _exception: &Bound<'_, PyTuple>) {
        if let Some(was) = self.before.lock().pop() {
            tape::set_recording(was);
        }
    }

    fn __call__<'py>(&self, py: Python<'py>, function: Py<PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let on = self.on;
        let inner = function.clone_ref(py);
        let wrapped = PyCFunction::new_closure(
            py,
            None,
            None,
            move |args: &Bound<'_, PyTuple>,
                  kwargs: Option<&Bound<'_, PyDict>>|
                  -> PyResult<Py<PyAny>> {
                let was = tape::set_recording(on);
                let result = inner.call(args.py(), args, kwargs);
                tape::set_recording(was);
                result
            },
        )?;
        // A plain function, so that it binds as a method and keeps its name and docstring.
        let helper = py.import("wengert._tensor")?.getattr("wrap_function")?;
        helper.call1((function, wrapped))
    }
}

/// Nothing inside is recorded. A context manager and a decorator.
#[pyfunction]
fn no_grad() -> GradMode {
    GradMode { on: false, before: Mutex::default() }
}

/// Everything inside is recorded again. A context manager and a decorator.
#[pyfunction]
fn enable_grad() -> GradMode {
    GradMode { on: true, before: Mutex::default() }
}

/// Whether this thread records.
#[pyfunction]
fn is_grad_enabled() -> bool {
    tape::recording()
}

/// Runs a sweep with the interpreter released; hooks take it back. Recording is on exactly where the
/// sweep itself is recorded.
fn sweep<T: Send>(
    py: Python<'_>,
    options: Options,
    work: impl FnOnce() -> error::Result<T> + Send,
) -> PyResult<T> {
    let here = site::current();
    let was = tape::set_recording(options.create_graph);
    // A trace counts handles and reads the running line, so it keeps the interpreter.
    let result = match trace::active() {
        true => work(),
        false => tensor::detach_sweep(py, || site::pinned(here, work)),
    };
    tape::set_recording(was);
    result.or_raise(py)
}

fn optional_values(
    op: &str,
    objects: Option<&Bound<'_, PyAny>>,
    count: usize,
) -> PyResult<Vec<Option<Value>>> {
    let Some(objects) = objects.filter(|o| !o.is_none()) else { return Ok(vec![None; count]) };
    // SAFETY: a live object.
    if let Some(one) = unsafe { tensor::downcast(objects.as_ptr()) } {
        return Ok(vec![Some(one.try_value().or_raise(objects.py())?)]);
    }
    let read = |object: PyResult<Bound<'_, PyAny>>| {
        let object = object?;
        if object.is_none() { Ok(None) } else { value_of(op, &object).map(Some) }
    };
    objects.try_iter()?.map(read).collect()
}

fn values(op: &str, objects: &Bound<'_, PyAny>) -> PyResult<(Vec<Value>, bool)> {
    // SAFETY: a live object.
    if let Some(one) = unsafe { tensor::downcast(objects.as_ptr()) } {
        return Ok((vec![one.try_value().or_raise(objects.py())?], true));
    }
    let many: PyResult<Vec<Value>> =
        objects.try_iter()?.map(|object| value_of(op, &object?)).collect();
    Ok((many?, false))
}

/// The graph defined by hand that values belong to.
fn graph_by_hand(values: &[Value]) -> Option<Arc<trace::Trace>> {
    let mut nodes = values.iter().filter_map(|value| trace::node_of(&value.array));
    let (trace, _) = nodes.next()?;
    (trace.role == trace::Role::Definition).then(|| trace.clone())
}

/// The gradients of outputs by inputs, as a list (one tensor for one input given alone).
///
/// Touches no `.grad`. `grad_outputs` are cotangents of the outputs' shapes (default: 1 for a
/// scalar). `create_graph=True` records the gradients, so that they differentiate again;
/// `retain_graph` defaults to it. An input that no output depends on is an error, or `None` with
/// `allow_unused=True`. In a graph defined by hand the gradients are nodes, and inputs may be any.
#[pyfunction]
#[pyo3(signature = (outputs, inputs, grad_outputs=None, retain_graph=None, create_graph=false, allow_unused=false))]
fn gradients<'py>(
    py: Python<'py>,
    outputs: &Bound<'py, PyAny>,
    inputs: &Bound<'py, PyAny>,
    grad_outputs: Option<&Bound<'py, PyAny>>,
    retain_graph: Option<bool>,
    create_graph: bool,
    allow_unused: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let op = "gradients";
    let (outputs, _) = values(op, outputs)?;
    let (inputs, single) = values(op, inputs)?;
    let seeds = optional_values(op, grad_outputs, outputs.len())?;
    if seeds.len() != outputs.len() {
        let facts = format!("got {} for {} outputs", seeds.len(), outputs.len());
        return Err(to_python(
            py,
            error::bad_value(op, "grad_outputs must match the outputs", facts),
        ));
    }
    let options = Options { retain_graph: retain_graph.unwrap_or(create_graph), create_graph };
    let found = match graph_by_hand(&outputs) {
        // The graph itself is the history: it may be differentiated by any node, at any time.
        Some(trace) => definition::gradients(&trace, &outputs, &inputs, &seeds).or_raise(py)?,
        None => {
            let pairs: Vec<(Value, Option<Value>)> = outputs.into_iter().zip(seeds).collect();
            sweep(py, options, || backward::gradients(op, &pairs, &inputs, options))?
        }
    };
    let mut objects = Vec::with_capacity(found.len());
    for (i, g) in found.into_iter().enumerate() {
        objects.push(match g {
            Some(g) => wrap(py, g)?.into_bound(py),
            None if allow_unused => py.None().into_bound(py),
            None => {
                let what = format!("no output depends on input {i}");
                return Err(to_python(
                    py,
                    error::gradient(op, what, "pass allow_unused=True to get None"),
                ));
            }
        });
    }
    match (single, objects.len()) {
        (true, 1) => Ok(objects.remove(0)),
        _ => Ok(pyo3::types::PyList::new(py, objects)?.into_any()),
    }
}

/// A rule written in Python.
struct PythonRule {
    name: String,
    backward: Py<PyAny>,
}

impl HostRule for PythonRule {
    fn name(&self) -> &str {
        &self.name
    }

    fn object(&self) -> Option<*mut c_void> {
        Some(self.backward.as_ptr().cast())
    }

    fn backward(&self, g: &Value, record: bool) -> error::Result<Vec<Option<Value>>> {
        Python::attach(|py| {
            let was = tape::set_recording(record);
            let result = wrap(py, g.clone()).and_then(|g| self.backward.call1(py, (g,)));
            tape::set_recording(was);
            let cotangents = result.and_then(|result| {
                let result = result.into_bound(py);
                // SAFETY: a live object.
                if result.is_none() || unsafe { tensor::downcast(result.as_ptr()) }.is_some() {
                    return optional_values(
                        &self.name,
                        Some(&PyTuple::new(py, [result])?.into_any()),
                        1,
                    );
                }
                optional_values(&self.name, Some(&result), 0)
            });
            cotangents.map_err(|exception| foreign(py, exception))
        })
    }
}

/// Records a step with a rule in Python: `backward(g)` gives a cotangent or None for each input.
#[pyfunction]
fn host_node(
    py: Python<'_>,
    output: &Bound<'_, PyAny>,
    inputs: Vec<Bound<'_, PyAny>>,
    backward: Py<PyAny>,
    name: String,
) -> PyResult<Py<PyAny>> {
    let array = value_of(&name, output)?.array;
    let inputs: PyResult<Vec<Value>> = inputs.iter().map(|x| value_of(&name, x)).collect();
    let inputs = inputs?;
    if !array.dtype.is_float() {
        return Err(to_python(py, error::gradient_dtype(name, array.dtype)));
    }
    let rule = Arc::new(PythonRule { name, backward });
    let result = wrap(py, tape::record_host(rule, &inputs, array))?;
    tensor::track(result.as_ptr());
    Ok(result)
}

/// The same value with an entry of its own on the tape.
#[pyfunction]
fn alias(py: Python<'_>, x: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
    let value = value_of("alias", x)?;
    let op = Op::Reshape(value.shape().clone());
    wrap(py, apply(op, &[Operand::Value(&value)], true).or_raise(py)?)
}

/// The same value with the same history; while a function is captured, one that is computed from
/// only after the tensors `after` are there, and that no pass takes for the original.
#[pyfunction]
fn barrier(
    py: Python<'_>,
    x: &Bound<'_, PyAny>,
    after: Vec<Bound<'_, PyAny>>,
) -> PyResult<Py<PyAny>> {
    let after: PyResult<Vec<_>> = after.iter().map(|x| value_of("barrier", x)).collect();
    wrap(py, trace::barrier(&value_of("barrier", x)?, &after?).or_raise(py)?)
}

/// The live leaves that outputs depend on, not looking behind the tensors in `stop`.
#[pyfunction]
fn tape_leaves(
    py: Python<'_>,
    outputs: Vec<Bound<'_, PyAny>>,
    stop: Vec<Bound<'_, PyAny>>,
) -> PyResult<Vec<Py<PyAny>>> {
    let mut seen: FxHashSet<u64> = FxHashSet::default();
    let mut seen_leaves: FxHashSet<usize> = FxHashSet::default();
    for object in &stop {
        match value_of("tape_leaves", object)?.history {
            History::Entry(entry) => drop(seen.insert(entry.sequence)),
            History::Leaf(leaf) => drop(seen_leaves.insert(Arc::as_ptr(&leaf) as usize)),
            History::None => {}
        }
    }
    let mut found = Vec::new();
    let mut stack: Vec<Arc<Entry>> = Vec::new();
    for object in &outputs {
        match value_of("tape_leaves", object)?.history {
            History::Entry(entry) => stack.push(entry),
            History::Leaf(leaf) if seen_leaves.insert(Arc::as_ptr(&leaf) as usize) => {
                found.push(leaf)
            }
            _ => {}
        }
    }
    while let Some(entry) = stack.pop() {
        if !seen.insert(entry.sequence) {
            continue;
        }
        for link in &entry.links {
            match link {
                Link::Entry(next) => stack.push(next.clone()),
                Link::Leaf(leaf) => {
                    let Some(leaf) = leaf.upgrade() else { continue };
                    if seen_leaves.insert(Arc::as_ptr(&leaf) as usize) {
                        found.push(leaf);
                    }
                }
                Link::None => {}
            }
        }
    }
    found.into_iter().map(|leaf| leaf_handle(py, leaf)).collect()
}

/// A handle that stands for a leaf: what gradients by it are asked with. Its elements are zero, and
/// take the room of one.
fn leaf_handle(py: Python<'_>, leaf: Arc<tape::Leaf>) -> PyResult<Py<PyAny>> {
    let zero = Value::plain(Array::zeros(leaf.ty.dtype, Shape::scalar()).or_raise(py)?);
    let wide = apply(Op::Broadcast(leaf.ty.shape.clone()), &[Operand::Value(&zero)], false);
    let array = wide.or_raise(py)?.array;
    wrap(py, Value { array, history: History::Leaf(leaf) })
}

/// A hook written in Python.
struct PythonHook(Py<PyAny>);

impl tape::HookRule for PythonHook {
    fn object(&self) -> *mut c_void {
        self.0.as_ptr().cast()
    }

    fn call(&self, g: &Value) -> error::Result<Option<Value>> {
        Python::attach(|py| {
            let call = || -> PyResult<Option<Value>> {
                let replaced = self.0.call1(py, (wrap(py, g.clone())?,))?.into_bound(py);
                if replaced.is_none() {
                    return Ok(None);
                }
                value_of("register_hook", &replaced).map(Some)
            };
            call().map_err(|exception| foreign(py, exception))
        })
    }
}

/// Adds a hook; the number removes it.
#[pyfunction]
fn _add_hook(py: Python<'_>, x: &Bound<'_, PyAny>, function: Py<PyAny>) -> PyResult<u64> {
    let value = value_of("register_hook", x)?;
    let hook: tape::Hook = Arc::new(PythonHook(function));
    tensor::track(x.as_ptr());
    match &value.history {
        History::Leaf(leaf) => Ok(leaf.hooks.add(hook)),
        History::Entry(entry) => Ok(entry.hooks().add(hook)),
        History::None => {
            let what = "a tensor without requires_grad has no gradient to hook";
            Err(to_python(py, error::gradient("register_hook", what, "set requires_grad=True")))
        }
    }
}

/// Removes a hook.
#[pyfunction]
fn _remove_hook(x: &Bound<'_, PyAny>, id: u64) -> PyResult<()> {
    match value_of("register_hook", x)?.history {
        History::Leaf(leaf) => leaf.hooks.remove(id),
        History::Entry(entry) => entry.hooks().remove(id),
        History::None => {}
    }
    Ok(())
}

/// The name of the op that made a tensor, if it was recorded.
#[pyfunction]
fn _grad_name(x: &Bound<'_, PyAny>) -> PyResult<Option<String>> {
    Ok(match value_of("grad_name", x)?.history {
        History::Entry(entry) => Some(entry.name().to_string()),
        _ => None,
    })
}

/// Where a tensor was made, as `file.py:12`, if it was recorded.
#[pyfunction]
fn _site(x: &Bound<'_, PyAny>) -> PyResult<Option<String>> {
    Ok(match value_of("site", x)?.history {
        History::Entry(entry) => site::describe(entry.site),
        _ => None,
    })
}

/// What the tape holds: `nodes`, the live entries.
#[pyfunction]
fn graph_stats(py: Python<'_>) -> PyResult<Py<PyDict>> {
    let stats = PyDict::new(py);
    stats.set_item("nodes", tape::live_nodes())?;
    Ok(stats.unbind())
}

/// Bytes of buffers: `live_bytes`, `cached_bytes`, `peak_bytes`, `limit` (None: the machine's).
#[pyfunction]
fn memory_stats(py: Python<'_>) -> PyResult<Py<PyDict>> {
    let now = memory::stats();
    let stats = PyDict::new(py);
    stats.set_item("live_bytes", now.live_bytes)?;
    stats.set_item("cached_bytes", now.cached_bytes)?;
    stats.set_item("peak_bytes", now.peak_bytes)?;
    stats.set_item("live_buffers", now.live_buffers)?;
    stats.set_item("limit", now.limit)?;
    Ok(stats.unbind())
}

/// Starts measuring `peak_bytes` anew.
#[pyfunction]
fn reset_peak_memory() {
    memory::reset_peak();
}

/// Refuses allocations beyond `limit` live bytes with MemoryError; None lifts the limit.
#[pyfunction]
#[pyo3(signature = (limit))]
fn set_memory_limit(limit: Option<usize>) {
    memory::set_limit(limit);
}

/// Gives cached buffers back to the system.
#[pyfunction]
fn release_cached_memory() {
    memory::release_cached();
}

/// Threads that large ops use. Results do not depend on it.
#[pyfunction]
fn set_num_threads(py: Python<'_>, count: i64) -> PyResult<()> {
    if !(1..=4096).contains(&count) {
        let facts = format!("got {count}");
        return Err(to_python(
            py,
            error::bad_value("set_num_threads", "the count must be in 1..=4096", facts),
        ));
    }
    threads::set_num_threads(count as usize);
    Ok(())
}

/// Threads that large ops use.
#[pyfunction]
fn get_num_threads() -> usize {
    threads::num_threads()
}

/// Seeds the global generator. Refused while a function is captured, whose numbers are fresh at every
/// call.
#[pyfunction]
fn seed(py: Python<'_>, seed: i128) -> PyResult<()> {
    trace::check_seeding().or_raise(py)?;
    random::set_state(random::State { key: random::seed_key(seed as u64), drawn: 0 });
    Ok(())
}

/// A key: a uint32 tensor of shape (2,) that determines random numbers wherever it is passed.
#[pyfunction]
fn key(py: Python<'_>, seed: i128) -> PyResult<Py<PyAny>> {
    wrap(py, random::key_value(random::seed_key(seed as u64)).or_raise(py)?)
}

/// The next key of the global generator.
#[pyfunction]
fn next_key(py: Python<'_>) -> PyResult<Py<PyAny>> {
    wrap(py, random::draw().or_raise(py)?)
}

/// The next key of a generator whose state is given, and its state afterwards.
#[pyfunction]
fn _next_of(py: Python<'_>, state: (u32, u32, u64)) -> PyResult<(Py<PyAny>, (u32, u32, u64))> {
    let mut state = random::State { key: [state.0, state.1], drawn: state.2 };
    let key = random::key_value(random::next_of(&mut state)).or_raise(py)?;
    Ok((wrap(py, key)?, (state.key[0], state.key[1], state.drawn)))
}

/// The state of the global generator, as a tuple to keep.
#[pyfunction]
fn get_state() -> (u32, u32, u64) {
    let state = trace::random_state().unwrap_or_else(random::state);
    (state.key[0], state.key[1], state.drawn)
}

/// Puts back a state of the global generator. While a function is captured these are states of its
/// own keys, which are fresh at every call.
#[pyfunction]
fn set_state(py: Python<'_>, state: (u32, u32, u64)) -> PyResult<()> {
    let state = random::State { key: [state.0, state.1], drawn: state.2 };
    if trace::set_random_state(state).or_raise(py)?.is_none() {
        random::set_state(state);
    }
    Ok(())
}

// --- methods of Tensor

unsafe extern "C" fn item(a: Object, _: Object) -> Object {
    guard(|py| {
        // SAFETY: the descriptor checked that this is a tensor.
        let Some(this) = (unsafe { tensor::downcast(a) }) else { return Ok(null_mut()) };
        Ok(convert::item(py, "item", &this.value().array)?.into_ptr())
    })
}

unsafe extern "C" fn tolist(a: Object, _: Object) -> Object {
    guard(|py| {
        // SAFETY: as above.
        let Some(this) = (unsafe { tensor::downcast(a) }) else { return Ok(null_mut()) };
        Ok(convert::to_list(py, &this.value().array)?.into_ptr())
    })
}

unsafe extern "C" fn detach(a: Object, _: Object) -> Object {
    guard(|py| {
        // SAFETY: as above.
        let Some(this) = (unsafe { tensor::downcast(a) }) else { return Ok(null_mut()) };
        let value = this.value();
        // In a trace the cut is a node, for gradients that are those of its graph.
        let cuts = trace::is_traced(&value.array) && value.dtype().is_float();
        if cuts && (value.requires_grad() || trace::cuts(&value.array)) {
            let op = Op::Map(&arithmetic::stop_gradient);
            let cut = apply(op, &[Operand::Value(&value)], false);
            return cut.or_raise(py).map(tensor::new_object);
        }
        Ok(tensor::new_object(Value::plain(value.array)))
    })
}

unsafe extern "C" fn realize(a: Object, _: Object) -> Object {
    // SAFETY: a live object.
    unsafe { ffi::Py_INCREF(a) };
    a
}

unsafe extern "C" fn assign_value(a: Object, v: Object) -> Object {
    guard(|py| {
        // SAFETY: as above.
        let Some(this) = (unsafe { tensor::downcast(a) }) else { return Ok(null_mut()) };
        check_leaf_update(py, "assign", this)?;
        // SAFETY: a live object.
        let v = unsafe { Bound::from_borrowed_ptr(py, v) };
        let Some(mut value) = convert::from_object("assign", &v, None)? else {
            return Err(convert::refuse("assign", &v));
        };
        if !tape::recording() {
            value.history = History::None;
        }
        if let History::Leaf(_) = value.history {
            let op = Op::Reshape(value.shape().clone());
            value = apply(op, &[Operand::Value(&value)], true).or_raise(py)?;
        }
        assign(py, "assign", this, value)?;
        Ok(py.None().into_ptr())
    })
}

const BACKWARD: &[Param] = &[
    Param {
        name: "self",
        kind: ParamKind::Tensor(crate::ops::declare::Classes::ANY),
        default: None,
        keyword_only: false,
    },
    Param {
        name: "gradient",
        kind: ParamKind::MaybeTensor(crate::ops::declare::Classes::ANY),
        default: Some("None"),
        keyword_only: false,
    },
    Param {
        name: "retain_graph",
        kind: ParamKind::Bool,
        default: Some("False"),
        keyword_only: false,
    },
    Param {
        name: "create_graph",
        kind: ParamKind::Bool,
        default: Some("False"),
        keyword_only: false,
    },
];

unsafe extern "C" fn run_backward(
    a: Object,
    args: *const Object,
    count: ffi::Py_ssize_t,
    keywords: Object,
) -> Object {
    guard(|py| {
        static SIGNATURE: PyOnceLock<Signature> = PyOnceLock::new();
        let signature = SIGNATURE.get_or_init(py, || Signature::new(py, "backward", BACKWARD));
        // SAFETY: the interpreter passes `count` arguments and one for each keyword.
        let named = if keywords.is_null() { 0 } else { unsafe { ffi::PyTuple_Size(keywords) } };
        let total = (count + named) as usize;
        let mut all = vec![a];
        if total > 0 {
            // SAFETY: as above.
            all.extend_from_slice(unsafe { std::slice::from_raw_parts(args, total) });
        }
        let mut parsed = Parsed::default();
        // SAFETY: as above.
        unsafe { signature.parse(py, &all, count as usize + 1, keywords, &mut parsed)? };
        let mut operands = parsed.operands.into_iter().filter_map(|held| match held {
            super::arguments::Held::Value(value) => Some(value),
            super::arguments::Held::Scalar(_) => None,
        });
        let Some(y) = operands.next() else {
            return Err(PyTypeError::new_err("backward: expected a tensor"));
        };
        let flag = |i: usize| parsed.attributes[i] == Attr::Bool(true);
        let create_graph = flag(3);
        let options = Options { retain_graph: flag(2) || create_graph, create_graph };
        let pair = [(y, operands.next())];
        sweep(py, options, || backward::backward(&pair, options))?;
        Ok(py.None().into_ptr())
    })
}

/// The methods of `Tensor` that are no ops.
pub fn methods() -> Vec<ffi::PyMethodDef> {
    let plain =
        |name: &str, function: ffi::PyCFunction, flags: c_int, doc: &str| ffi::PyMethodDef {
            ml_name: leak(name.into()),
            ml_meth: ffi::PyMethodDefPointer { PyCFunction: function },
            ml_flags: flags,
            ml_doc: leak(doc.into()),
        };
    let none = ffi::METH_NOARGS;
    vec![
        plain(
            "item",
            item,
            none,
            "item($self)\n--\n\nThe only element as a Python number.\n\nRaises `ShapeError` for several elements.",
        ),
        plain(
            "tolist",
            tolist,
            none,
            "tolist($self)\n--\n\nNested lists of Python numbers; a number for a tensor without axes.",
        ),
        plain(
            "detach",
            detach,
            none,
            "detach($self)\n--\n\nThe same value on a new handle, without history.",
        ),
        plain(
            "realize",
            realize,
            none,
            "realize($self)\n--\n\nComputes what is pending and returns the tensor.",
        ),
        plain(
            "assign",
            assign_value,
            ffi::METH_O,
            "assign($self, value, /)\n--\n\nGives the handle a new value of the same shape and dtype.\n\nA leaf that requires a gradient is only assigned to under `no_grad()`.",
        ),
        ffi::PyMethodDef {
            ml_name: leak("backward".into()),
            ml_meth: ffi::PyMethodDefPointer { PyCFunctionFastWithKeywords: run_backward },
            ml_flags: ffi::METH_FASTCALL | ffi::METH_KEYWORDS,
            ml_doc: leak(BACKWARD_DOC.into()),
        },
    ]
}

const BACKWARD_DOC: &str = "backward($self, gradient=None, retain_graph=False, create_graph=False)\n--\n\n\
Adds the gradient of this tensor to `.grad` of every leaf it depends on.\n\n\
`gradient` is the cotangent, of this tensor's shape; a scalar needs none. Saved values are freed unless\n\
`retain_graph`; `create_graph=True` records the sweep, so that gradients differentiate again. A failed\n\
backward leaves every `.grad` as it was.";

/// Adds the functions to the module.
pub fn install(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    module.add_class::<Device>()?;
    module.add_class::<GradMode>()?;
    module.add("tensor", pyo3::wrap_pyfunction!(tensor_, module)?)?;
    macro_rules! functions {
        ($home:expr; $($name:ident),+) => {
            $($home.add_function(pyo3::wrap_pyfunction!($name, $home)?)?;)+
        };
    }
    functions!(module; device, devices, asarray, nonzero, no_grad, enable_grad, is_grad_enabled,
        gradients, host_node, alias, barrier, tape_leaves, _add_hook, _remove_hook, _grad_name, _site,
        graph_stats, memory_stats, reset_peak_memory, set_memory_limit, release_cached_memory,
        set_num_threads, get_num_threads);
    let random = match module.getattr("random") {
        Ok(random) => random.cast_into::<PyModule>()?,
        Err(_) => {
            let random = PyModule::new(py, "wengert._core.random")?;
            random.setattr("__all__", pyo3::types::PyList::empty(py))?;
            module.setattr("random", &random)?;
            random
        }
    };
    functions!(&random; seed, key, next_key, get_state, set_state, _next_of);
    Ok(())
}
