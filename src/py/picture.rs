//! Nodes for pictures, as plain Python data.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use rustc_hash::FxHashMap;

use crate::engine::picture::Row;
use crate::engine::site;

/// Nodes as dictionaries. `scope` has the names of modules, outermost first.
pub fn dictionaries(py: Python<'_>, rows: Vec<Row>) -> PyResult<Vec<Bound<'_, PyDict>>> {
    let mut lines: FxHashMap<_, Option<String>> = FxHashMap::default();
    let mut scopes: FxHashMap<_, Bound<'_, PyTuple>> = FxHashMap::default();
    let mut made = Vec::with_capacity(rows.len());
    for row in rows {
        let at = row.site;
        let line = lines.entry((at.code, at.offset)).or_insert_with(|| site::describe(at));
        let scope = match scopes.get(&at.scope) {
            Some(known) => known.clone(),
            None => {
                let names = PyTuple::new(py, at.scope.names())?;
                scopes.insert(at.scope, names.clone());
                names
            }
        };
        let entry = PyDict::new(py);
        entry.set_item("text", row.text)?;
        entry.set_item("tooltip", row.tooltip)?;
        entry.set_item("colour", row.colour)?;
        entry.set_item("op", row.op)?;
        entry.set_item("attributes", row.attributes)?;
        entry.set_item("type", row.ty)?;
        entry.set_item("operands", row.operands)?;
        entry.set_item("name", row.name)?;
        entry.set_item("scope", scope)?;
        entry.set_item("is_backward", at.scope.is_backward())?;
        entry.set_item("line", line.as_deref())?;
        entry.set_item("flops", row.flops)?;
        entry.set_item("bytes", row.bytes)?;
        entry.set_item("size", row.size)?;
        entry.set_item("inside", row.inside)?;
        entry.set_item("is_result", row.is_result)?;
        made.push(entry);
    }
    Ok(made)
}
