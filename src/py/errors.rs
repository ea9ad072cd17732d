//! Errors as exceptions: one mapping from the catalogue's kinds to Python classes.

use std::cell::RefCell;

use pyo3::exceptions::{
    PyException, PyIndexError, PyMemoryError, PyOverflowError, PyRuntimeError, PyTypeError,
    PyValueError,
};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple, PyType};

use crate::error::{CATALOGUE, Error, Kind};

/// The exception classes, by kind.
struct Classes {
    base: Py<PyType>,
    by_kind: Vec<(Kind, Py<PyType>)>,
}

static CLASSES: PyOnceLock<Classes> = PyOnceLock::new();

thread_local! {
    /// An exception raised by the user's code while the engine was running, waiting to go on.
    static FOREIGN: RefCell<Option<PyErr>> = const { RefCell::new(None) };
}

/// Name, kind and the built-in class beside `wengert.Error`.
fn declared(py: Python<'_>) -> [(&'static str, Kind, Bound<'_, PyType>); 13] {
    [
        ("ShapeError", Kind::Shape, py.get_type::<PyValueError>()),
        ("DTypeError", Kind::DType, py.get_type::<PyTypeError>()),
        ("AxisError", Kind::Axis, py.get_type::<PyIndexError>()),
        ("DeviceError", Kind::Device, py.get_type::<PyRuntimeError>()),
        ("GradientError", Kind::Gradient, py.get_type::<PyRuntimeError>()),
        ("GraphError", Kind::Graph, py.get_type::<PyRuntimeError>()),
        ("CaptureError", Kind::Capture, py.get_type::<PyRuntimeError>()),
        ("BoundsError", Kind::Index, py.get_type::<PyIndexError>()),
        ("ArgumentError", Kind::Value, py.get_type::<PyValueError>()),
        ("ArgumentTypeError", Kind::Type, py.get_type::<PyTypeError>()),
        ("RangeError", Kind::Overflow, py.get_type::<PyOverflowError>()),
        ("OutOfMemoryError", Kind::Memory, py.get_type::<PyMemoryError>()),
        ("InternalError", Kind::Internal, py.get_type::<PyRuntimeError>()),
    ]
}

/// Makes the classes and adds them to the module.
pub fn install(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    let make = |name: &str, bases: Vec<Bound<'_, PyType>>, doc: &str| -> PyResult<Py<PyType>> {
        let dict = PyDict::new(py);
        dict.set_item("__module__", "wengert")?;
        dict.set_item("__doc__", doc)?;
        dict.set_item("code", py.None())?;
        let class = py.get_type::<PyType>().call1((name, PyTuple::new(py, bases)?, dict))?;
        Ok(class.cast_into::<PyType>()?.unbind())
    };
    let base = make(
        "Error",
        vec![py.get_type::<PyException>()],
        "Whatever wengert refuses. `code` names the entry of the catalogue.",
    )?;
    module.add("Error", &base)?;
    let mut by_kind = Vec::new();
    for (name, kind, builtin) in declared(py) {
        let doc = format!("A {} that wengert raises.", builtin.name()?);
        let class = make(name, vec![base.bind(py).clone(), builtin], &doc)?;
        module.add(name, &class)?;
        by_kind.push((kind, class));
    }
    let _ = CLASSES.set(py, Classes { base, by_kind });
    Ok(())
}

/// The exception for an error.
pub fn to_python(py: Python<'_>, error: Error) -> PyErr {
    if error.code() == "foreign"
        && let Some(original) = FOREIGN.take()
    {
        return original;
    }
    let Some(classes) = CLASSES.get(py) else { return PyRuntimeError::new_err(error.to_string()) };
    let class = classes.by_kind.iter().find(|(kind, _)| *kind == error.kind());
    let class = class.map_or(&classes.base, |(_, class)| class).bind(py);
    match class.call1((error.to_string(),)) {
        Ok(instance) => {
            let _ = instance.setattr("code", error.code());
            PyErr::from_value(instance)
        }
        Err(failure) => failure,
    }
}

/// Carries an exception of the user's through the engine.
pub fn foreign(py: Python<'_>, exception: PyErr) -> Error {
    let text = exception.value(py).to_string();
    FOREIGN.set(Some(exception));
    crate::error::foreign(text)
}

/// The result for Python.
pub trait OrRaise<T> {
    /// The value, or the error as an exception.
    fn or_raise(self, py: Python<'_>) -> PyResult<T>;
}

impl<T> OrRaise<T> for crate::error::Result<T> {
    fn or_raise(self, py: Python<'_>) -> PyResult<T> {
        self.map_err(|error| to_python(py, error))
    }
}

/// Refuses environment variables of this package that mean nothing.
#[pyfunction]
pub fn _check_settings(py: Python<'_>) -> PyResult<()> {
    crate::settings::check().or_raise(py)
}

/// The catalogue for tests: name, exception class, template.
#[pyfunction]
pub fn _error_catalogue(py: Python<'_>) -> Vec<(&'static str, &'static str, &'static str)> {
    let names = declared(py);
    let class =
        |kind: &Kind| names.iter().find(|(_, k, _)| k == kind).map_or("Error", |(name, _, _)| name);
    CATALOGUE.iter().map(|(code, kind, template)| (*code, class(kind), *template)).collect()
}
