//! The Python bindings: conversions, the interpreter lock, errors. No logic of the engine's.

use pyo3::exceptions::PyImportError;
use pyo3::ffi;
use pyo3::prelude::*;

mod arguments;
mod buffer;
mod capture;
mod configuration;
mod control;
mod convert;
mod dispatch;
mod dlpack;
mod dtype;
mod elementwise;
mod errors;
mod exit;
mod files;
mod free_list;
mod functions;
mod graph;
mod hooks;
mod host;
mod interrupt;
mod kernels;
mod node;
mod number;
mod picture;
mod plan;
mod print;
mod promotion;
mod recalled;
mod runner;
mod site;
mod size;
mod slots;
mod stepper;
mod tensor;
mod unwind;
mod watch;

/// Refuses subinterpreters: the type of tensors, its free objects and the tables of names are
/// shared by the whole process, and belong to one interpreter.
fn check_interpreter() -> PyResult<()> {
    // SAFETY: called while an interpreter imports the module.
    let id = unsafe { ffi::PyInterpreterState_GetID(ffi::PyInterpreterState_Get()) };
    if id == 0 {
        return Ok(());
    }
    Err(PyImportError::new_err(format!(
        "wengert: subinterpreters are not supported: this is interpreter {id}; import wengert in the \
         main interpreter"
    )))
}

/// The extension module `wengert._core`. Its functions rely on the interpreter's lock.
#[pymodule(gil_used = true)]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    check_interpreter()?;
    site::start();
    exit::close_devices_at_end();
    let borrows = py.version_info() >= (3, 14);
    slots::STACK_BORROWS.store(borrows, std::sync::atomic::Ordering::Relaxed);
    errors::install(module)?;
    unwind::install(module)?;
    errors::_check_settings(py)?;
    module.add_function(pyo3::wrap_pyfunction!(errors::_check_settings, module)?)?;
    dtype::install(module)?;
    let mut methods = functions::methods();
    methods.extend(host::methods());
    // SAFETY: an all-zero definition ends the list.
    methods.push(unsafe { std::mem::zeroed::<ffi::PyMethodDef>() });
    let class = tensor::create_type(py, slots::slots(), methods, slots::attributes())?;
    module.add("Tensor", class)?;
    functions::install(module)?;
    host::install(module)?;
    hooks::install(module)?;
    kernels::install(module)?;
    capture::install(module)?;
    control::install(module)?;
    dispatch::install(module)?;
    size::install(module)?;
    number::install(module)?;
    plan::install(module)?;
    graph::install(module)?;
    node::install(module)?;
    stepper::install(module)?;
    dlpack::install(module)?;
    files::install(module)?;
    promotion::install(module)?;
    watch::install(module)?;
    configuration::install(module)?;
    module.add_function(pyo3::wrap_pyfunction!(functions::_op_table, module)?)?;
    module.add_function(pyo3::wrap_pyfunction!(functions::_kernel_count, module)?)?;
    module.add_function(pyo3::wrap_pyfunction!(errors::_error_catalogue, module)?)?;
    site::install(module)?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))
}
