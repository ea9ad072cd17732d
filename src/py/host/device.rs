//! Devices: their names, and the one that new tensors lie on.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{IntoPyDict, PyDict, PyTuple};

use crate::engine::executors::{self, Device as Kind, device};
use crate::engine::pending;
use crate::engine::transfer::transfer;
use crate::py::errors::OrRaise;
use crate::py::tensor::{value_of, wrap};
use crate::py::{buffer, convert};

/// A place where values lie, such as `wengert.device("cpu")`.
#[pyclass(frozen, eq, hash, name = "Device", module = "wengert")]
#[derive(PartialEq, Hash)]
pub struct Device {
    kind: Kind,
}

#[pymethods]
impl Device {
    /// The kind: "cpu", "reference" or "gpu".
    #[getter]
    fn r#type(&self) -> &'static str {
        self.kind.kind()
    }

    /// The number among the devices of this kind: 1 for "gpu:1".
    #[getter]
    fn index(&self) -> u8 {
        self.kind.index()
    }

    fn __repr__(&self) -> String {
        format!("device(\"{}\")", self.kind)
    }

    fn __str__(&self) -> &'static str {
        self.kind.name()
    }

    fn __reduce__(&self, py: Python<'_>) -> PyResult<(Py<PyAny>, (&'static str,))> {
        Ok((py.import("wengert._core")?.getattr("device")?.unbind(), (self.kind.name(),)))
    }
}

static DEVICES: PyOnceLock<Vec<Py<Device>>> = PyOnceLock::new();

/// The object of a device.
pub fn device_object(py: Python<'_>, kind: Kind) -> PyResult<Py<PyAny>> {
    let make = || -> PyResult<Vec<Py<Device>>> {
        Kind::all().map(|kind| Py::new(py, Device { kind })).collect()
    };
    Ok(DEVICES.get_or_try_init(py, make)?[kind.number()].clone_ref(py).into_any())
}

/// The device of a name.
#[pyfunction(name = "device")]
fn device_(py: Python<'_>, name: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
    let kind = convert::device("device", name)?.unwrap_or(Kind::Cpu);
    device_object(py, kind)
}

/// The devices of this machine: "cpu", "reference", and "gpu", "gpu:1" and so on, one for each
/// adapter that a driver offers. The first call opens the drivers.
#[pyfunction]
fn devices(py: Python<'_>) -> PyResult<Py<PyTuple>> {
    let kinds = py.detach(executors::devices).or_raise(py)?;
    let objects: PyResult<Vec<_>> = kinds.into_iter().map(|kind| device_object(py, kind)).collect();
    Ok(PyTuple::new(py, objects?)?.unbind())
}

/// What is known of a device: `type`, `name`, `backend`, `kind`, `driver`, `limits` and `features`,
/// and of a GPU `shader_cache`: where compiled shaders are kept on disk, with counts.
/// The kind is one word; "software" is an adapter that computes on the processor.
#[pyfunction]
fn device_info(py: Python<'_>, device: &Bound<'_, PyAny>) -> PyResult<Py<PyDict>> {
    let kind = convert::device("device_info", device)?.unwrap_or(Kind::Cpu);
    let known = executors::describe(kind).or_raise(py)?;
    let info = PyDict::new(py);
    info.set_item("type", kind.kind())?;
    info.set_item("name", known.name)?;
    info.set_item("backend", known.backend)?;
    info.set_item("kind", known.kind)?;
    info.set_item("driver", known.driver)?;
    info.set_item("limits", known.limits.into_py_dict(py)?)?;
    info.set_item("features", known.features)?;
    if let Kind::Gpu(index) = kind {
        let (place, counts) = executors::shader_cache(index);
        let cache = counts.into_py_dict(py)?;
        cache.set_item("place", place)?;
        info.set_item("shader_cache", cache)?;
    }
    Ok(info.unbind())
}

/// The device of new tensors on this thread.
#[pyfunction]
fn _current_device(py: Python<'_>) -> PyResult<Py<PyAny>> {
    device_object(py, device::current())
}

/// Sets the device of new tensors on this thread; gives what it was.
#[pyfunction]
fn _set_current_device(py: Python<'_>, name: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
    let kind = convert::device("default_device", name)?.unwrap_or(Kind::Cpu);
    device_object(py, device::set_current(kind))
}

/// The value on a device, recorded.
#[pyfunction]
fn _transfer(
    py: Python<'_>,
    x: &Bound<'_, PyAny>,
    device: &Bound<'_, PyAny>,
) -> PyResult<Py<PyAny>> {
    let (value, to) = (value_of("to", x)?, convert::device("to", device)?);
    match to {
        Some(to) if to != value.device() => wrap(py, transfer(&value, to).or_raise(py)?),
        _ => Ok(x.clone().unbind()),
    }
}

/// Refuses a tensor of another device than the CPU, whose bytes nobody may share.
#[pyfunction]
fn _on_host(py: Python<'_>, x: &Bound<'_, PyAny>, op: &str) -> PyResult<()> {
    buffer::on_host(op, &value_of(op, x)?.array).or_raise(py)
}

/// Whether work on the reference waits until somebody waits for it; gives what it was. For tests.
#[pyfunction]
fn _defer(on: bool) -> bool {
    executors::defer(on)
}

/// Waits for all work that was given to devices. What data refused there, and nobody was told of,
/// is raised now. On the CPU, elementwise ops of this thread that wait for others are computed. One
/// device alone is waited for if it is given.
#[pyfunction]
#[pyo3(signature = (device = None))]
fn synchronize(py: Python<'_>, device: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
    let device = device.map(|device| convert::device("synchronize", device)).transpose()?;
    py.detach(|| {
        pending::settle();
        executors::synchronize(device.flatten())
    })
    .or_raise(py)
}

/// Refuses tensors of several devices.
#[pyfunction]
fn _one_device(py: Python<'_>, op: &str, tensors: Vec<Bound<'_, PyAny>>) -> PyResult<()> {
    let arrays: PyResult<Vec<_>> = tensors.iter().map(|x| Ok(value_of(op, x)?.array)).collect();
    executors::common(op, &arrays?).or_raise(py).map(drop)
}

/// A tensor for state that had an old value: should the work of the new one fail on its device, the
/// old one stands there again.
#[pyfunction]
fn _replacing(
    py: Python<'_>,
    old: &Bound<'_, PyAny>,
    new: &Bound<'_, PyAny>,
) -> PyResult<Py<PyAny>> {
    let (old, mut new) = (value_of("assign", old)?, value_of("assign", new)?);
    new.array = executors::replacing(Some(&old.array), new.array);
    wrap(py, new)
}

/// Adds what is here to the module.
pub(super) fn install(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Device>()?;
    module.add_function(pyo3::wrap_pyfunction!(device_, module)?)?;
    module.add_function(pyo3::wrap_pyfunction!(devices, module)?)?;
    module.add_function(pyo3::wrap_pyfunction!(device_info, module)?)?;
    module.add_function(pyo3::wrap_pyfunction!(synchronize, module)?)?;
    module.add_function(pyo3::wrap_pyfunction!(_one_device, module)?)?;
    module.add_function(pyo3::wrap_pyfunction!(_replacing, module)?)?;
    module.add_function(pyo3::wrap_pyfunction!(_current_device, module)?)?;
    module.add_function(pyo3::wrap_pyfunction!(_set_current_device, module)?)?;
    module.add_function(pyo3::wrap_pyfunction!(_transfer, module)?)?;
    module.add_function(pyo3::wrap_pyfunction!(_on_host, module)?)?;
    module.add_function(pyo3::wrap_pyfunction!(_defer, module)?)
}
