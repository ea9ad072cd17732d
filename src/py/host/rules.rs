//! Rules and hooks written in Python, on the tape; inspection of a tensor's history.

use std::ffi::c_void;
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyTuple;
use rustc_hash::FxHashSet;
use smallvec::smallvec;

use crate::array::Array;
use crate::engine::autocast;
use crate::engine::eager::apply::apply;
use crate::engine::site;
use crate::engine::tape::{self, Entry, History, HostRule, Link, Operand, Value};
use crate::engine::trace;
use crate::error;
use crate::ops::op::Op;
use crate::py::errors::{OrRaise, foreign, to_python};
use crate::py::interrupt::attached;
use crate::py::slots::_keep_gradients;
use crate::py::tensor::{self, value_of, wrap};
use crate::shape::Shape;

use super::backward::optional_values;

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

    fn backward(&self, given: &[Option<Value>], record: bool) -> error::Result<Vec<Option<Value>>> {
        let Some(g) = &given[0] else { return Ok(Vec::new()) };
        attached(|py| {
            let recording = tape::recording_as(record);
            let _as_written = autocast::suspended();
            let result = wrap(py, g.clone()).and_then(|g| self.backward.call1(py, (g,)));
            drop(recording);
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
    let result = wrap(py, tape::record_host(rule, &inputs, smallvec![array]).swap_remove(0))?;
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
            History::Entry(entry, _) => drop(seen.insert(entry.sequence)),
            History::Leaf(leaf) => drop(seen_leaves.insert(Arc::as_ptr(&leaf) as usize)),
            History::None => {}
        }
    }
    let mut found = Vec::new();
    let mut stack: Vec<Arc<Entry>> = Vec::new();
    for object in &outputs {
        match value_of("tape_leaves", object)?.history {
            History::Entry(entry, _) => stack.push(entry),
            History::Leaf(leaf) if seen_leaves.insert(Arc::as_ptr(&leaf) as usize) => {
                found.push(leaf)
            }
            History::None | History::Leaf(_) => {}
        }
    }
    while let Some(entry) = stack.pop() {
        if !seen.insert(entry.sequence) {
            continue;
        }
        for link in &entry.links {
            match link {
                Link::Entry(next, _) => stack.push(next.clone()),
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
        attached(|py| {
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
        History::Entry(entry, k) => Ok(entry.hooks(*k).add(hook)),
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
        History::Entry(entry, k) => entry.hooks(k).remove(id),
        History::None => {}
    }
    Ok(())
}

/// The name of the op that made a tensor, if it was recorded.
#[pyfunction]
fn _grad_name(x: &Bound<'_, PyAny>) -> PyResult<Option<String>> {
    Ok(match value_of("grad_name", x)?.history {
        History::Entry(entry, _) => Some(entry.name().to_string()),
        History::None | History::Leaf(_) => None,
    })
}

/// Where a tensor was made, as `file.py:12`, if it was recorded.
#[pyfunction]
fn _site(x: &Bound<'_, PyAny>) -> PyResult<Option<String>> {
    Ok(match value_of("site", x)?.history {
        History::Entry(entry, _) => site::describe(entry.site),
        History::None | History::Leaf(_) => None,
    })
}

/// Adds what is here to the module.
pub(super) fn install(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(pyo3::wrap_pyfunction!(host_node, module)?)?;
    module.add_function(pyo3::wrap_pyfunction!(alias, module)?)?;
    module.add_function(pyo3::wrap_pyfunction!(barrier, module)?)?;
    module.add_function(pyo3::wrap_pyfunction!(tape_leaves, module)?)?;
    module.add_function(pyo3::wrap_pyfunction!(_add_hook, module)?)?;
    module.add_function(pyo3::wrap_pyfunction!(_remove_hook, module)?)?;
    module.add_function(pyo3::wrap_pyfunction!(_grad_name, module)?)?;
    module.add_function(pyo3::wrap_pyfunction!(_keep_gradients, module)?)?;
    module.add_function(pyo3::wrap_pyfunction!(_site, module)?)
}
