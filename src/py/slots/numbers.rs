//! Tensors as Python numbers: truth, length, conversions.

use std::os::raw::c_int;
use std::ptr::null_mut;

use pyo3::exceptions::PyTypeError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyInt;

use super::{Object, not_implemented};
use crate::error;
use crate::py::convert;
use crate::py::errors::to_python;
use crate::py::functions::guard;
use crate::py::tensor::{self};

pub(super) unsafe extern "C" fn hash(a: Object) -> ffi::Py_hash_t {
    // Identity, shifted as CPython does for addresses; −1 is reserved for errors.
    let hash = (a as usize).rotate_right(4) as ffi::Py_hash_t;
    if hash == -1 { -2 } else { hash }
}

pub(super) unsafe extern "C" fn length(a: Object) -> ffi::Py_ssize_t {
    let mut n = -1;
    guard(|py| {
        // SAFETY: the slot is called with a tensor.
        let Some(this) = (unsafe { tensor::downcast(a) }) else { return Ok(null_mut()) };
        crate::py::node::check_rank(py, "len", this)?;
        let shape = this.with(|value| value.shape().clone());
        match shape.dims().first() {
            Some(d) => n = d.value() as ffi::Py_ssize_t,
            None => {
                let error =
                    error::bad_type("len", "a tensor without axes has no length", "got shape ()");
                return Err(to_python(py, error));
            }
        }
        Ok(null_mut())
    });
    n
}

pub(super) unsafe extern "C" fn truth(a: Object) -> c_int {
    let mut result = -1;
    guard(|py| {
        // SAFETY: the slot is called with a tensor.
        let Some(this) = (unsafe { tensor::downcast(a) }) else { return Ok(null_mut()) };
        let array = this.value().array;
        if !crate::engine::trace::is_traced(&array) && array.count() != 1 {
            let what =
                "the truth of a tensor with several elements is ambiguous; use .any() or .all()";
            let error = error::bad_value("bool", what, format!("got shape {}", array.shape()));
            return Err(to_python(py, error));
        }
        result = c_int::from(convert::item(py, "bool", &array)?.is_truthy()?);
        Ok(null_mut())
    });
    result
}

fn number(
    a: Object,
    op: &'static str,
    convert_to: fn(&Bound<'_, PyAny>) -> PyResult<Object>,
) -> Object {
    guard(|py| {
        // SAFETY: the slot is called with a tensor.
        let Some(this) = (unsafe { tensor::downcast(a) }) else { return Ok(not_implemented()) };
        let array = this.value().array;
        convert_to(&convert::item(py, op, &array)?)
    })
}

pub(super) unsafe extern "C" fn to_float(a: Object) -> Object {
    number(a, "float", |x| Ok(x.py().get_type::<pyo3::types::PyFloat>().call1((x,))?.into_ptr()))
}

pub(super) unsafe extern "C" fn to_int(a: Object) -> Object {
    number(a, "int", |x| Ok(x.py().get_type::<PyInt>().call1((x,))?.into_ptr()))
}

pub(super) unsafe extern "C" fn to_index(a: Object) -> Object {
    number(a, "index", |x| {
        // SAFETY: a live number; bool is an int in Python.
        if unsafe { ffi::PyLong_Check(x.as_ptr()) } == 0 {
            return Err(PyTypeError::new_err(
                "index: only an integer tensor with one element can be an index",
            ));
        }
        Ok(x.clone().into_ptr())
    })
}
