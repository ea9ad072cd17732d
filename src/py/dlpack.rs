//! DLPack.

use pyo3::prelude::*;

use crate::engine::tape::Value;

/// A value from an exporter.
pub fn import(op: &str, object: &Bound<'_, PyAny>) -> PyResult<Value> {
    Err(super::convert::refuse(op, object))
}
