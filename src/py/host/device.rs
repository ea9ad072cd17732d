//! Devices, of which there is one.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

use crate::py::convert;

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
fn devices(py: Python<'_>) -> PyResult<(Py<PyAny>,)> {
    Ok((cpu_device(py)?,))
}

/// Adds what is here to the module.
pub(super) fn install(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Device>()?;
    module.add_function(pyo3::wrap_pyfunction!(device, module)?)?;
    module.add_function(pyo3::wrap_pyfunction!(devices, module)?)
}
