//! The arguments of a call, flattened into leaves.

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyFloat, PyList, PyTuple};
use smallvec::SmallVec;

use crate::py::tensor;

/// A container or a leaf, in the order in which a tree is walked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Token {
    Leaf,
    None,
    Tuple(usize),
    List(usize),
    /// A dict of so many entries; its keys are kept apart
    Dict(usize),
    /// A tree with containers that only Python knows; its structure is kept apart
    Foreign,
}

/// Trees of more levels than this are taken apart in Python.
const DEEPEST: usize = 64;

/// The arguments of a call, taken apart.
#[derive(Default)]
pub(super) struct Flat<'py> {
    pub(super) tokens: SmallVec<[Token; 8]>,
    /// Dict keys, and the structure of a foreign tree
    pub(super) keys: Vec<Bound<'py, PyAny>>,
    pub(super) leaves: SmallVec<[Bound<'py, PyAny>; 8]>,
    /// Positions of leaves that are arrays of others
    others: SmallVec<[usize; 2]>,
}

impl<'py> Flat<'py> {
    /// Takes a call apart.
    pub(super) fn new(
        args: &Bound<'py, PyTuple>,
        kwargs: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Flat<'py>> {
        // `f(x, **{})` is `f(x)`.
        let kwargs = kwargs.filter(|kwargs| !kwargs.is_empty());
        let mut flat = Flat::default();
        flat.tokens.push(Token::Tuple(args.len()));
        let mut native = true;
        for arg in args {
            native = native && flat.walk(&arg, DEEPEST)?;
        }
        if let Some(kwargs) = kwargs {
            native = native && flat.walk(kwargs.as_any(), DEEPEST)?;
        }
        if native {
            return flat.placed();
        }
        let py = args.py();
        let kwargs = kwargs.cloned().unwrap_or_else(|| PyDict::new(py));
        let pytree = py.import("wengert.pytree")?;
        let (leaves, structure): (Vec<Bound<'py, PyAny>>, Bound<'py, PyAny>) =
            pytree.call_method1("flatten", ((args, kwargs),))?.extract()?;
        let mut flat = Flat { keys: vec![structure], ..Flat::default() };
        flat.tokens.push(Token::Foreign);
        for leaf in leaves {
            flat.leaf(&leaf)?;
        }
        flat.placed()
    }

    /// Takes a tree apart of at most so many levels; false where only Python can.
    fn walk(&mut self, tree: &Bound<'py, PyAny>, levels: usize) -> PyResult<bool> {
        // Python refuses a tree without end.
        let Some(below) = levels.checked_sub(1) else { return Ok(false) };
        if tree.is_none() {
            self.tokens.push(Token::None);
        } else if let Ok(tuple) = tree.cast_exact::<PyTuple>() {
            self.tokens.push(Token::Tuple(tuple.len()));
            for item in tuple {
                if !self.walk(&item, below)? {
                    return Ok(false);
                }
            }
        } else if let Ok(list) = tree.cast_exact::<PyList>() {
            self.tokens.push(Token::List(list.len()));
            for item in list {
                if !self.walk(&item, below)? {
                    return Ok(false);
                }
            }
        } else if let Ok(dict) = tree.cast_exact::<PyDict>() {
            self.tokens.push(Token::Dict(dict.len()));
            for (key, item) in dict {
                self.keys.push(key);
                if !self.walk(&item, below)? {
                    return Ok(false);
                }
            }
        } else if is_plain(tree) {
            self.tokens.push(Token::Leaf);
            self.leaf(tree)?;
        } else {
            return Ok(false);
        }
        Ok(true)
    }

    /// Adds a leaf.
    fn leaf(&mut self, leaf: &Bound<'py, PyAny>) -> PyResult<()> {
        // SAFETY: a live object.
        let is_tensor = unsafe { tensor::downcast(leaf.as_ptr()) }.is_some();
        if !is_tensor && !is_number(leaf) && leaf.hasattr("__array__")? {
            self.others.push(self.leaves.len());
        }
        self.leaves.push(leaf.clone());
        Ok(())
    }

    /// Arrays of others become tensors beside the first tensor, as operands of an op do.
    fn placed(mut self) -> PyResult<Flat<'py>> {
        let Some(&first) = self.others.first() else { return Ok(self) };
        let core = self.leaves[first].py().import("wengert._core")?;
        let where_to = PyDict::new(core.py());
        if let Some(beside) = self.tensors().first() {
            where_to.set_item("device", beside.getattr("device")?)?;
        }
        for i in std::mem::take(&mut self.others) {
            self.leaves[i] = core.call_method("asarray", (&self.leaves[i],), Some(&where_to))?;
        }
        Ok(self)
    }

    /// The tensors among the leaves.
    pub(super) fn tensors(&self) -> SmallVec<[Bound<'py, PyAny>; 8]> {
        // SAFETY: live objects.
        let is_tensor = |x: &&Bound<'py, PyAny>| unsafe { tensor::downcast(x.as_ptr()) }.is_some();
        self.leaves.iter().filter(is_tensor).cloned().collect()
    }
}

pub(super) fn is_number(x: &Bound<'_, PyAny>) -> bool {
    // SAFETY: a live object.
    unsafe {
        ffi::PyLong_Check(x.as_ptr()) != 0
            || ffi::PyFloat_Check(x.as_ptr()) != 0
            || ffi::PyUnicode_Check(x.as_ptr()) != 0
    }
}

/// A leaf that needs no look into Python's table of containers.
pub(super) fn is_plain(x: &Bound<'_, PyAny>) -> bool {
    // SAFETY: a live object.
    is_number(x) || unsafe { ffi::Py_TYPE(x.as_ptr()) == tensor::type_object() }
}

pub(super) fn equal(a: &Bound<'_, PyAny>, b: &Bound<'_, PyAny>) -> PyResult<bool> {
    if a.is(b) {
        return Ok(true);
    }
    if !a.get_type().is(b.get_type()) {
        return Ok(false);
    }
    // By their bits: 0.0 and -0.0 are two numbers, and a NaN is itself.
    if let (Ok(a), Ok(b)) = (a.cast_exact::<PyFloat>(), b.cast_exact::<PyFloat>()) {
        return Ok(a.value().to_bits() == b.value().to_bits());
    }
    a.eq(b)
}
