//! The Python face of dtypes: one object each.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBool, PyFloat, PyInt, PyType};

use super::errors::to_python;
use crate::dtype::{Class, DType};
use crate::error;

/// An element type, such as `wengert.float32`.
#[pyclass(frozen, eq, hash, name = "DType", module = "wengert")]
#[derive(PartialEq, Hash)]
pub struct PyDType(pub DType);

#[pymethods]
impl PyDType {
    /// The name, such as `"float32"`.
    #[getter]
    fn name(&self) -> &'static str {
        self.0.name()
    }

    /// Bytes of one element.
    #[getter]
    fn itemsize(&self) -> usize {
        self.0.size()
    }

    /// Whether this is a floating dtype.
    #[getter]
    fn is_floating(&self) -> bool {
        self.0.is_float()
    }

    /// Whether this is an integer dtype.
    #[getter]
    fn is_integer(&self) -> bool {
        self.0.is_int()
    }

    fn __repr__(&self) -> String {
        format!("wengert.{}", self.0.name())
    }

    fn __str__(&self) -> &'static str {
        self.0.name()
    }

    fn __reduce__(&self, py: Python<'_>) -> PyResult<(Py<PyAny>, (&'static str,))> {
        let lookup = py.import("wengert._core")?.getattr("_dtype_named")?;
        Ok((lookup.unbind(), (self.0.name(),)))
    }
}

static OBJECTS: PyOnceLock<Vec<Py<PyDType>>> = PyOnceLock::new();

/// Makes the dtype objects and adds them to the module.
pub fn install(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    let objects: PyResult<Vec<Py<PyDType>>> =
        DType::ALL.into_iter().map(|dtype| Py::new(py, PyDType(dtype))).collect();
    for object in OBJECTS.get_or_init(py, || objects.unwrap_or_default()) {
        module.add(object.get().0.name(), object.clone_ref(py))?;
    }
    module.add_class::<PyDType>()?;
    module.add_function(pyo3::wrap_pyfunction!(_dtype_named, module)?)
}

/// The object of a dtype.
pub fn object(py: Python<'_>, dtype: DType) -> Option<&Py<PyDType>> {
    OBJECTS.get(py).and_then(|objects| objects.get(dtype as usize))
}

/// The dtype of a name; what pickle calls.
#[pyfunction]
fn _dtype_named(py: Python<'_>, name: &str) -> PyResult<Py<PyDType>> {
    let found = DType::from_name(name).and_then(|dtype| object(py, dtype));
    let found = found.map(|object| object.clone_ref(py));
    found.ok_or_else(|| to_python(py, error::unknown_dtype("dtype", name)))
}

/// A dtype from its object, its name, a NumPy dtype or one of Python's number types.
pub fn extract(op: &str, object: &Bound<'_, PyAny>) -> PyResult<DType> {
    if let Ok(dtype) = object.cast::<PyDType>() {
        return Ok(dtype.get().0);
    }
    let py = object.py();
    if let Ok(class) = object.cast::<PyType>() {
        let defaults = [
            (py.get_type::<PyBool>(), Class::Bool),
            (py.get_type::<PyInt>(), Class::Int),
            (py.get_type::<PyFloat>(), Class::Float),
        ];
        if let Some((_, class)) = defaults.iter().find(|(python, _)| class.is(python)) {
            return Ok(DType::Bool.promote_weak(*class));
        }
    }
    let name = match object.extract::<String>() {
        Ok(name) => Some(name),
        // NumPy's scalar types and dtypes both lead to a name.
        Err(_) => ["__name__", "name"]
            .iter()
            .find_map(|attribute| object.getattr(*attribute).ok()?.extract().ok()),
    };
    let found = name.as_deref().and_then(|name| DType::from_name(name.trim_end_matches('_')));
    if let Some(name) = name.filter(|name| name.starts_with("complex")) {
        return Err(to_python(py, error::no_complex(op, format!("dtype {name}"))));
    }
    found.ok_or_else(|| to_python(py, error::unknown_dtype(op, object)))
}
