//! Functions on the host: making tensors from data, the tape's verbs, memory, threads, random
//! state.

use pyo3::prelude::*;

mod backward;
mod create;
mod device;
mod methods;
mod ops;
mod rules;
mod state;

pub use device::device_object;
pub use methods::methods;

/// Adds the classes and functions to the module.
pub fn install(module: &Bound<'_, PyModule>) -> PyResult<()> {
    device::install(module)?;
    create::install(module)?;
    backward::install(module)?;
    ops::install(module)?;
    rules::install(module)?;
    state::install(module)
}
