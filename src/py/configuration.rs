//! What `wengert.show_config` shows of the core: how it was built, and its settings.

use pyo3::prelude::*;

use crate::settings;

/// The settings that the engine reads from the environment: name, value, what it may be.
#[pyfunction]
fn _settings() -> Vec<(&'static str, Option<String>, String)> {
    settings::all().collect()
}

/// How the library was built, by what.
#[pyfunction]
fn _build() -> Vec<(&'static str, String)> {
    let profile = if cfg!(debug_assertions) { "with assertions" } else { "optimized" };
    let kernels = if cfg!(one_isa) { "the base instruction set" } else { "all instruction sets" };
    let switches = [
        ("gpu", cfg!(feature = "gpu")),
        ("example-op", cfg!(feature = "example-op")),
        ("sanitized", cfg!(sanitized)),
    ];
    let features: Vec<&str> =
        switches.into_iter().filter(|(_, on)| *on).map(|(name, _)| name).collect();
    vec![
        ("target", format!("{} {}", std::env::consts::ARCH, std::env::consts::OS)),
        ("profile", profile.into()),
        ("kernels", kernels.into()),
        ("features", features.join(", ")),
    ]
}

/// Adds both to the module.
pub fn install(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(pyo3::wrap_pyfunction!(_settings, module)?)?;
    module.add_function(pyo3::wrap_pyfunction!(_build, module)?)
}
