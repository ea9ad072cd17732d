//! Tensors made from data.

use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::dtype::DType;
use crate::engine::eager::apply::apply;
use crate::engine::executors::{self, device};
use crate::engine::tape::{self, History, Operand, Value};
use crate::engine::trace;
use crate::engine::transfer::placed;
use crate::error;
use crate::ops::op::Op;
use crate::py::convert;
use crate::py::dtype;
use crate::py::errors::{OrRaise, to_python};
use crate::py::functions::{detached, make_leaf};
use crate::py::size;
use crate::py::tensor::{self, wrap};
use crate::shape::Shape;

fn from_data(
    op: &str,
    data: &Bound<'_, PyAny>,
    dtype: Option<&Bound<'_, PyAny>>,
    device: Option<&Bound<'_, PyAny>>,
    record: bool,
) -> PyResult<Value> {
    let py = data.py();
    let device = device.map(|device| convert::device(op, device)).transpose()?.flatten();
    let dtype = dtype.map(|d| dtype::extract(op, d)).transpose()?;
    let held = {
        let _recording = tape::recording_as(record);
        convert::from_object_on(op, data, dtype, device)?
    };
    let held = held.map(|held| held.placed(device.unwrap_or_else(device::current)));
    let Some(value) = held.transpose().or_raise(py)?.flatten() else {
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
/// Floats become float32, ints int64, bools bool; arrays and NumPy's scalars keep their dtype;
/// `dtype` overrides.
/// Raises `OverflowError` for numbers that the dtype cannot hold, `ShapeError` for ragged
/// sequences.
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

/// The positions of true (nonzero) elements: one int64 tensor per axis. The sizes depend on the
/// data.
///
/// Rank 1 or more.
#[pyfunction]
#[pyo3(signature = (x, /))]
fn nonzero(py: Python<'_>, x: &Bound<'_, PyAny>) -> PyResult<Py<PyTuple>> {
    let value = from_data("nonzero", x, None, None, false)?;
    if value.shape().rank() == 0 {
        return Err(to_python(py, error::bad_rank("nonzero", "x", "1 or more", value.shape())));
    }
    let remedy = "the size of the result would depend on it: use wg.where";
    trace::check_data("nonzero", &value.array, remedy).or_raise(py)?;
    let on = value.device();
    let work = || -> error::Result<Vec<Value>> {
        let mask = executors::cast(&executors::download(&value.array)?, DType::Bool)?;
        let positions = executors::nonzero(&mask)?;
        positions.into_iter().map(|array| placed(Value::plain(array), on)).collect()
    };
    let positions = detached(py, value.shape().count(), work).or_raise(py)?;
    let objects: PyResult<Vec<_>> = positions.into_iter().map(|value| wrap(py, value)).collect();
    Ok(PyTuple::new(py, objects?)?.unbind())
}

/// The shape that shapes broadcast to, as a tuple.
///
/// >>> import wengert as wg
/// >>> wg.broadcast_shapes((2, 1), (3,))
/// (2, 3)
#[pyfunction]
#[pyo3(signature = (*shapes))]
fn broadcast_shapes(py: Python<'_>, shapes: &Bound<'_, PyTuple>) -> PyResult<Py<PyTuple>> {
    let op = "broadcast_shapes";
    let mut common = Shape::scalar();
    for given in shapes {
        let shape = match size::dim(op, &given)? {
            Some(dim) => Shape::from_dims(&[dim]),
            None => sizes(op, &given)?,
        };
        common = common.broadcast(&shape, op).or_raise(py)?;
    }
    let objects: PyResult<Vec<_>> =
        common.dims().iter().map(|&dim| size::object(py, dim)).collect();
    Ok(PyTuple::new(py, objects?)?.unbind())
}

fn sizes(op: &str, object: &Bound<'_, PyAny>) -> PyResult<Shape> {
    let refused = |object: &Bound<'_, PyAny>| {
        let facts = format!("got {}", object.repr().map_or_else(|_| "?".into(), |r| r.to_string()));
        to_python(object.py(), error::bad_type(op, "a shape is a tuple of sizes from 0 up", facts))
    };
    let items = object.try_iter().map_err(|_| refused(object))?;
    items.map(|item| item.and_then(|n| size::dim(op, &n)?.ok_or_else(|| refused(object)))).collect()
}

/// Adds what is here to the module.
pub(super) fn install(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("tensor", pyo3::wrap_pyfunction!(tensor_, module)?)?;
    module.add_function(pyo3::wrap_pyfunction!(asarray, module)?)?;
    module.add_function(pyo3::wrap_pyfunction!(broadcast_shapes, module)?)?;
    module.add_function(pyo3::wrap_pyfunction!(nonzero, module)?)
}
