//! Profiles, checks for non-finite values, and the tape behind a tensor, as plain Python data.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use rustc_hash::FxHashMap;

use super::errors::OrRaise;
use super::tensor::value_of;
use crate::engine::tape::{Entry, History, Leaf, Link, Saved};
use crate::engine::{executors, pending, site};
use crate::ops::op::Type;
use crate::watch;

/// Starts to take times, of what is not waiting already; the mark is for `_end_timing`.
#[pyfunction]
fn _begin_timing(py: Python<'_>) -> usize {
    py.detach(pending::settle);
    watch::begin_timing()
}

/// The events since the mark, each a dictionary, how many found no room, and which devices computed
/// and have no clock. Waits for GPUs.
#[pyfunction]
fn _end_timing(py: Python<'_>, mark: usize) -> PyResult<(Py<PyList>, u64, Vec<&'static str>)> {
    let finished = py.detach(executors::finish_timing);
    let (events, dropped, untimed) = watch::end_timing(mark);
    finished.or_raise(py)?;
    let list = PyList::empty(py);
    let mut lines: FxHashMap<_, Option<String>> = FxHashMap::default();
    for event in events {
        let line = lines.entry(event.site).or_insert_with(|| site::describe(event.site));
        let row = PyDict::new(py);
        row.set_item("work", event.work.name())?;
        row.set_item("name", &event.name)?;
        row.set_item("line", line.as_deref())?;
        row.set_item("start", event.start)?;
        row.set_item("duration", event.duration)?;
        row.set_item("thread", event.thread)?;
        row.set_item("bytes", event.bytes)?;
        row.set_item("flops", event.flops)?;
        row.set_item("detail", &event.detail)?;
        list.append(row)?;
    }
    Ok((list.unbind(), dropped, untimed))
}

/// Starts to refuse values that are not finite, on this thread.
#[pyfunction]
fn _begin_checking() {
    watch::begin_checking();
}

/// Ends what `_begin_checking` started.
#[pyfunction]
fn _end_checking() {
    watch::end_checking();
}

/// What a tape is made of: entries and leaves by the numbers they get here.
#[derive(Default)]
struct Tape {
    entries: Vec<Arc<Entry>>,
    leaves: Vec<Arc<Leaf>>,
    numbers: FxHashMap<usize, usize>,
}

impl Tape {
    fn entry(&mut self, entry: &Arc<Entry>) -> usize {
        let address = Arc::as_ptr(entry) as usize;
        if let Some(&i) = self.numbers.get(&address) {
            return i;
        }
        self.entries.push(entry.clone());
        let i = self.entries.len() - 1;
        self.numbers.insert(address, i);
        i
    }

    fn leaf(&mut self, leaf: &Arc<Leaf>) -> usize {
        let address = Arc::as_ptr(leaf) as usize;
        if let Some(&i) = self.numbers.get(&address) {
            return i;
        }
        self.leaves.push(leaf.clone());
        let i = self.leaves.len() - 1;
        self.numbers.insert(address, i);
        i
    }
}

/// The tape behind a tensor: `{"root": link or None, "entries": [...], "leaves": [...]}`. A link is
/// `("entry" | "leaf", number)`; the entries are in no order.
#[pyfunction]
fn _tape(py: Python<'_>, x: &Bound<'_, PyAny>) -> PyResult<Py<PyDict>> {
    let mut tape = Tape::default();
    let root = match &value_of("draw", x)?.history {
        History::None => None,
        History::Leaf(leaf) => Some(("leaf", tape.leaf(leaf))),
        History::Entry(entry, _) => Some(("entry", tape.entry(entry))),
    };
    let entries = PyList::empty(py);
    let mut next = 0;
    while let Some(entry) = tape.entries.get(next).cloned() {
        next += 1;
        let mut links: Vec<Option<(&str, usize)>> = Vec::new();
        for link in &entry.links {
            links.push(match link {
                Link::None => None,
                Link::Leaf(leaf) => leaf.upgrade().map(|leaf| ("leaf", tape.leaf(&leaf))),
                Link::Entry(entry, _) => Some(("entry", tape.entry(entry))),
            });
        }
        let row = PyDict::new(py);
        row.set_item("name", entry.name())?;
        row.set_item("line", site::describe(entry.site))?;
        row.set_item("links", links)?;
        let (operands, saved, result, saves_result, freed) = {
            let values = entry.saved.lock();
            let operands: Vec<String> = values.args.iter().map(saved_text).collect();
            let saved: Vec<Option<String>> = values.args.iter().map(saved_type).collect();
            let result: Vec<String> = values.results.iter().map(saved_text).collect();
            let saves_result: Vec<String> = values.results.iter().filter_map(saved_type).collect();
            let joined = (!saves_result.is_empty()).then(|| saves_result.join(", "));
            (operands, saved, result.join(", "), joined, values.freed.is_some())
        };
        row.set_item("operands", operands)?;
        row.set_item("saved", saved)?;
        row.set_item("result", result)?;
        row.set_item("saves_result", saves_result)?;
        row.set_item("freed", freed)?;
        entries.append(row)?;
    }
    let leaves: Vec<(usize, String)> =
        tape.leaves.iter().map(|leaf| (Arc::as_ptr(leaf) as usize, text(&leaf.ty))).collect();
    let out = PyDict::new(py);
    out.set_item("root", root)?;
    out.set_item("entries", entries)?;
    out.set_item("leaves", leaves)?;
    Ok(out.unbind())
}

/// What a tensor's gradient goes to, as `_tape` numbers leaves; None where it is no leaf.
#[pyfunction]
fn _leaf_address(x: &Bound<'_, PyAny>) -> PyResult<Option<usize>> {
    Ok(match value_of("draw", x)?.history {
        History::Leaf(leaf) => Some(Arc::as_ptr(&leaf) as usize),
        History::None | History::Entry(..) => None,
    })
}

fn text(ty: &Type) -> String {
    format!("{} {}", ty.dtype, ty.shape)
}

fn saved_text(saved: &Saved) -> String {
    match saved {
        Saved::Array(array) => format!("{} {}", array.dtype, array.shape()),
        Saved::Type(ty) => text(ty),
        Saved::Scalar(value) => value.to_string(),
    }
}

/// The type of what is kept alive, if data is.
fn saved_type(saved: &Saved) -> Option<String> {
    match saved {
        Saved::Array(_) => Some(saved_text(saved)),
        Saved::Type(_) | Saved::Scalar(_) => None,
    }
}

/// Adds the functions to the module.
pub fn install(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(_begin_timing, module)?)?;
    module.add_function(wrap_pyfunction!(_end_timing, module)?)?;
    module.add_function(wrap_pyfunction!(_begin_checking, module)?)?;
    module.add_function(wrap_pyfunction!(_end_checking, module)?)?;
    module.add_function(wrap_pyfunction!(_tape, module)?)?;
    module.add_function(wrap_pyfunction!(_leaf_address, module)?)
}
