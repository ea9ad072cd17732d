//! How functions are compiled, on a thread.

use pyo3::prelude::*;

use crate::engine::config::{self, Check};
use crate::error;
use crate::py::errors::OrRaise;

/// Sets how functions are compiled from now on, on this thread: passes by name, the bits that
/// `fast_math` may change, the bytes a call may need, whether runs are checked. What is None stays.
/// Gives what puts back the settings before.
///
/// `spoiled` is a pass, "schedule" or "kernels", that is made wrong, for the tests which show that
/// a check finds it. They run on the build that is shipped, so it is part of that; nothing in the
/// package passes it.
#[pyfunction]
#[pyo3(signature = (passes=None, fast_math=None, memory_budget=None, check=None, spoiled=None))]
fn _configure(
    py: Python<'_>,
    passes: Option<std::collections::BTreeMap<String, bool>>,
    fast_math: Option<bool>,
    memory_budget: Option<usize>,
    check: Option<Bound<'_, PyAny>>,
    spoiled: Option<String>,
) -> PyResult<Settings> {
    let mut config = config::current();
    for (name, on) in passes.unwrap_or_default() {
        config.passes.switch(&name, on).or_raise(py)?;
    }
    if let Some(on) = fast_math {
        config.passes.fast_math = on;
    }
    config.budget = memory_budget.or(config.budget);
    if let Some(value) = check {
        config.check = check_of(&value).or_raise(py)?;
    }
    if let Some(pass) = spoiled {
        config.passes.spoil(&pass).or_raise(py)?;
    }
    Ok(Settings(config::replace(config)))
}

/// Whether somebody set how functions are compiled, on this thread.
#[pyfunction]
fn _is_configured() -> bool {
    config::current() != config::Config::default()
}

/// What runs are held against: a truth value, or "reference".
fn check_of(value: &Bound<'_, PyAny>) -> error::Result<Check> {
    if let Ok(on) = value.extract::<bool>() {
        return Ok(if on { Check::List } else { Check::Off });
    }
    match value.extract::<String>() {
        Ok(name) if name == "reference" => Ok(Check::Reference),
        Ok(_) | Err(_) => {
            let what = "check is a truth value or \"reference\"";
            Err(error::bad_value("config", what, format!("got {value}")))
        }
    }
}

/// Settings, to be put back.
#[pyclass(frozen, module = "wengert")]
struct Settings(config::Config);

#[pymethods]
impl Settings {
    /// Puts them back.
    fn restore(&self) {
        config::replace(self.0.clone());
    }
}

/// Adds the class and the function to the module.
pub(super) fn install(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Settings>()?;
    module.add_function(pyo3::wrap_pyfunction!(_is_configured, module)?)?;
    module.add_function(pyo3::wrap_pyfunction!(_configure, module)?)
}
