//! The tape's verbs: recording or not, backward, gradients.

use std::sync::Arc;

use parking_lot::Mutex;
use pyo3::exceptions::PyTypeError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyCFunction, PyDict, PyTuple};

use crate::engine::autocast;
use crate::engine::backward::{self, Options};
use crate::engine::definition;
use crate::engine::tape::{self, History, Value};
use crate::engine::trace;
use crate::error;
use crate::ops::declare::{Attr, Param, ParamKind};
use crate::py::arguments::{Parsed, Signature};
use crate::py::dtype::{self, PyDType};
use crate::py::errors::{OrRaise, to_python};
use crate::py::functions::{guard, long};
use crate::py::tensor::{self, value_of, wrap};

type Object = *mut ffi::PyObject;

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
                let _recording = tape::recording_as(on);
                inner.call(args.py(), args, kwargs)
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

/// The narrow dtype of mixed precision on this thread, if it is on.
#[pyfunction]
fn _autocast(py: Python<'_>) -> Option<Py<PyDType>> {
    autocast::current().and_then(|dtype| dtype::object(py, dtype)).map(|found| found.clone_ref(py))
}

/// Sets it; gives what it was.
#[pyfunction]
fn _set_autocast(
    py: Python<'_>,
    narrow: Option<&Bound<'_, PyAny>>,
) -> PyResult<Option<Py<PyDType>>> {
    let narrow = narrow.map(|narrow| dtype::extract("autocast", narrow)).transpose()?;
    let before = autocast::set(narrow).or_raise(py)?;
    Ok(before.and_then(|before| dtype::object(py, before)).map(|found| found.clone_ref(py)))
}

/// Runs a sweep with the interpreter released; hooks take it back. Recording is on exactly where
/// the sweep itself is recorded.
fn sweep<T: Send>(
    py: Python<'_>,
    options: Options,
    work: impl FnOnce() -> error::Result<T> + Send,
) -> PyResult<T> {
    let _recording = tape::recording_as(options.create_graph);
    // A trace counts handles and reads the running line, so it keeps the interpreter.
    let result = match trace::active() {
        true => work(),
        false => tensor::detach_sweep(py, long(work)),
    };
    result.or_raise(py)
}

pub(super) fn optional_values(
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
                let facts = match &inputs[i].history {
                    History::Leaf(leaf) => leaf.frozen_in(),
                    History::None | History::Entry(..) => None,
                };
                let facts = facts.map_or_else(
                    || "pass allow_unused=True to get None".into(),
                    |function| format!("it is a constant of {function}, which is frozen"),
                );
                return Err(to_python(py, error::gradient(op, what, facts)));
            }
        });
    }
    match (single, objects.len()) {
        (true, 1) => Ok(objects.remove(0)),
        _ => Ok(pyo3::types::PyList::new(py, objects)?.into_any()),
    }
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

/// `Tensor.backward`.
pub(super) unsafe extern "C" fn run_backward(
    a: Object,
    args: *const Object,
    count: ffi::Py_ssize_t,
    keywords: Object,
) -> Object {
    guard(|py| {
        static SIGNATURE: PyOnceLock<Signature> = PyOnceLock::new();
        let signature =
            SIGNATURE.get_or_init(py, || Signature::new(py, "backward", BACKWARD, None));
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
            crate::py::arguments::Held::Value(value) | crate::py::arguments::Held::Data(value) => {
                Some(value)
            }
            crate::py::arguments::Held::Scalar(_) => None,
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

/// Its signature and docstring.
pub(super) const BACKWARD_DOC: &str = "backward($self, gradient=None, retain_graph=False, create_graph=False)\n--\n\n\
Adds the gradient of this tensor to `.grad` of every leaf it depends on.\n\n\
`gradient` is the cotangent, of this tensor's shape; a scalar needs none. Saved values are freed unless\n\
`retain_graph`; `create_graph=True` records the sweep, so that gradients differentiate again. A failed\n\
backward leaves every `.grad` as it was.";

/// Adds what is here to the module.
pub(super) fn install(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<GradMode>()?;
    module.add_function(pyo3::wrap_pyfunction!(no_grad, module)?)?;
    module.add_function(pyo3::wrap_pyfunction!(enable_grad, module)?)?;
    module.add_function(pyo3::wrap_pyfunction!(is_grad_enabled, module)?)?;
    module.add_function(pyo3::wrap_pyfunction!(_autocast, module)?)?;
    module.add_function(pyo3::wrap_pyfunction!(_set_autocast, module)?)?;
    module.add_function(pyo3::wrap_pyfunction!(gradients, module)?)
}
