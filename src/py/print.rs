//! What plans print while they run.

use pyo3::prelude::*;

use super::errors::foreign;
use super::interrupt::attached;
use super::tensor::wrap;
use crate::array::Array;
use crate::engine::tape::Value;
use crate::error::Result;

/// Prints a text in Python, each `{}` in it replaced by an operand.
pub fn print(text: &str, operands: &[Array]) -> Result<()> {
    attached(|py| write(py, text, operands).map_err(|exception| foreign(py, exception)))
}

fn write(py: Python<'_>, text: &str, operands: &[Array]) -> PyResult<()> {
    let mut parts = text.split("{}");
    let mut line = parts.next().unwrap_or_default().to_string();
    for (part, x) in parts.zip(operands) {
        line += &wrap(py, Value::plain(x.clone()))?.bind(py).str()?.to_string();
        line += part;
    }
    py.import("builtins")?.call_method1("print", (line,))?;
    Ok(())
}
