//! Unwinds end at the bindings: an error on its way becomes its exception, a panic `InternalError`.
//!
//! Promises: no `PanicException` and no unwind reaches Python code, whatever the entry. C functions
//! of ours (slots, attributes, table entries) run in [`guard`]. PyO3 catches unwinds out of
//! everything it wraps (functions, classes, methods, iterators) and makes its `PanicException` of
//! them: that class gives instances of ours instead, so an entry cannot forget to. What the
//! interpreter calls without asking for errors (ends of objects) runs in [`contained`].

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;

use pyo3::exceptions::PyBaseException;
use pyo3::ffi;
use pyo3::panic::PanicException;
use pyo3::prelude::*;

use super::errors::to_python;
use crate::error;

/// What `PanicException` says of an unwind that carries no text, as that with an [`error::Error`]
/// does.
const WITHOUT_TEXT: &str = "panic from Rust code";

/// Runs the body of a C function: exceptions are set, panics become `InternalError`.
#[inline]
pub fn guard(body: impl FnOnce(Python<'_>) -> PyResult<*mut ffi::PyObject>) -> *mut ffi::PyObject {
    // SAFETY: the interpreter calls C functions with the thread attached.
    let py = unsafe { Python::assume_attached() };
    let result = catch_unwind(AssertUnwindSafe(|| body(py)));
    match result {
        Ok(Ok(object)) => object,
        Ok(Err(exception)) => {
            exception.restore(py);
            null_mut()
        }
        Err(payload) => {
            to_python(py, error::unwound(payload)).restore(py);
            null_mut()
        }
    }
}

/// Runs the body of a Python function of ours: an error on its way becomes an exception.
pub fn caught<T>(py: Python<'_>, body: impl FnOnce() -> PyResult<T>) -> PyResult<T> {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(result) => result,
        Err(payload) => Err(to_python(py, error::unwound(payload))),
    }
}

/// Runs what nobody can be told of: a panic ends here, having left its message on stderr.
#[inline]
pub fn contained<T>(body: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(body)).ok()
}

/// `PanicException.__new__`: the exception that an unwind becomes, which is of another class. (So
/// the interpreter, finding no `PanicException` in its hands, may ask once more with what it got.)
#[pyfunction]
#[pyo3(signature = (_class, given=None))]
fn _unwound(
    py: Python<'_>,
    _class: &Bound<'_, PyAny>,
    given: Option<&Bound<'_, PyAny>>,
) -> PyResult<Py<PyAny>> {
    if let Some(made) = given.filter(|given| given.is_instance_of::<PyBaseException>()) {
        return Ok(made.clone().unbind());
    }
    let text = given.map_or_else(|| Ok(WITHOUT_TEXT.into()), |text| text.extract::<String>())?;
    let thrown = if text == WITHOUT_TEXT { error::thrown() } else { None };
    let exception = to_python(py, thrown.unwrap_or_else(|| error::internal(text)));
    Ok(exception.into_value(py).into_any())
}

/// Makes `PanicException` give exceptions of ours. Asked of each extension apart: PyO3's class
/// belongs to the one it is compiled into.
pub fn install(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    let make = pyo3::wrap_pyfunction!(_unwound, module)?;
    py.get_type::<PanicException>().setattr("__new__", make)?;
    module.add_class::<Unwinding>()?;
    module.add_function(pyo3::wrap_pyfunction!(_unwind, module)?)
}

/// Unwinds, for tests: as a defect does, or with an error of the engine.
#[pyfunction]
#[pyo3(signature = (with_error=false))]
fn _unwind(with_error: bool) {
    if with_error {
        error::throw(error::bad_value("test", "thrown on purpose", "nobody caught it"));
    }
    std::panic::resume_unwind(Box::new("a panic on purpose"));
}

/// A class all of whose entries unwind, for tests.
#[pyclass(name = "_Unwinding")]
struct Unwinding;

#[pymethods]
impl Unwinding {
    #[new]
    #[pyo3(signature = (now=false))]
    fn new(now: bool) -> Unwinding {
        if now {
            _unwind(false);
        }
        Unwinding
    }
    fn method(&self) {
        _unwind(false);
    }
    #[staticmethod]
    fn static_method() {
        _unwind(true);
    }
    #[getter]
    fn attribute(&self) {
        _unwind(false);
    }
    #[setter]
    fn set_attribute(&self, _value: i64) {
        _unwind(true);
    }
    fn __repr__(&self) -> String {
        _unwind(true);
        String::new()
    }
    fn __len__(&self) -> usize {
        _unwind(false);
        0
    }
    fn __bool__(&self) -> bool {
        _unwind(true);
        false
    }
    fn __hash__(&self) -> u64 {
        _unwind(false);
        0
    }
    fn __add__(&self, _other: i64) {
        _unwind(true);
    }
    fn __getitem__(&self, _key: i64) {
        _unwind(false);
    }
    fn __call__(&self) {
        _unwind(true);
    }
    fn __iter__(this: Py<Unwinding>) -> Py<Unwinding> {
        this
    }
    fn __next__(&self) -> Option<i64> {
        _unwind(false);
        None
    }
}
