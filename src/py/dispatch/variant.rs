//! A trace with the calls it holds for: whether a call is one of these.

use std::sync::atomic::{AtomicU64, Ordering};

use pyo3::exceptions::PyTypeError;
use pyo3::ffi;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};
use smallvec::SmallVec;

use super::flat::{Flat, Token, equal, is_number};
use super::{CLOCK, Call, Names, Object};
use crate::dtype::DType;
use crate::engine::autocast;
use crate::engine::executors::{Device, device};
use crate::engine::tape::{self, Value};
use crate::py::capture::Executable;
use crate::py::tensor;
use crate::shape::{Dim, Shape};

/// What a leaf must be.
enum Leaf {
    /// A tensor of a dtype and shape, in which symbols stand for sizes that may differ; `same` is
    /// the first leaf that is the same handle
    Tensor { dtype: DType, device: Device, shape: Shape, same: usize, parameter: Option<Py<PyAny>> },
    /// A value, compared
    Value(Py<PyAny>),
    /// Any float: a number that is given at each call
    Number,
}

/// How far a leaf is from what a trace was made for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fit {
    /// Not at all
    Exact,
    /// Its sizes differ, or a float has another value
    Loose,
    /// It is something else
    Other,
}

/// What is known to change about a leaf from call to call.
#[derive(Clone, Default)]
pub(super) struct Changing {
    pub(super) axes: SmallVec<[bool; 4]>,
    pub(super) number: bool,
}

impl Leaf {
    /// How leaf `i` of a call compares.
    fn fit(&self, py: Python<'_>, leaves: &[Bound<'_, PyAny>], i: usize) -> PyResult<Fit> {
        let leaf = &leaves[i];
        let is_float = |x: &Bound<'_, PyAny>| x.is_exact_instance_of::<pyo3::types::PyFloat>();
        Ok(match self {
            Leaf::Number if is_float(leaf) => Fit::Exact,
            Leaf::Number => Fit::Other,
            Leaf::Value(value) if equal(value.bind(py), leaf)? => Fit::Exact,
            Leaf::Value(value) if is_float(leaf) && is_float(value.bind(py)) => Fit::Loose,
            Leaf::Value(_) => Fit::Other,
            Leaf::Tensor { dtype, device, shape, same, parameter } => {
                // SAFETY: a live object.
                let Some(tensor) = (unsafe { tensor::downcast(leaf.as_ptr()) }) else {
                    return Ok(Fit::Other);
                };
                let is_same =
                    *same == first_same(leaves, i) && parameter.as_ref().is_none_or(|p| p.is(leaf));
                tensor.with_own(|value| {
                    let dims = value.shape().dims();
                    let is_same = is_same && value.device() == *device;
                    if !is_same || value.dtype() != *dtype || dims.len() != shape.rank() {
                        return Fit::Other;
                    }
                    let fits = |(a, b): (&Dim, &Dim)| a.known().is_none() || a.same(*b);
                    match shape.dims().iter().zip(dims).all(fits) {
                        true => Fit::Exact,
                        false => Fit::Loose,
                    }
                })
            }
        })
    }
}

/// A trace with the calls it holds for.
pub(super) struct Variant {
    tokens: SmallVec<[Token; 8]>,
    keys: Vec<Py<PyAny>>,
    leaves: Vec<Leaf>,
    recording: bool,
    /// The dtype of mixed precision
    narrow: Option<DType>,
    /// The device of new values
    device: Device,
    /// Calls it with what changed: whether plain Python values are as they were
    guard: Option<Py<PyAny>>,
    /// Cells and globals with the values they had
    names: Vec<Name>,
    clock: AtomicU64,
    pub(super) executable: Py<Executable>,
    /// What was known to change when it was traced
    pub(super) changing: Py<PyList>,
    /// Puts results into the containers they were returned in; none where one tensor is returned
    rebuild: Option<Py<PyAny>>,
}

/// A variable of the function, and its value.
struct Name {
    /// The cell, or the globals
    home: Py<PyAny>,
    /// The name in the globals
    key: Option<Py<PyAny>>,
    value: Py<PyAny>,
}

impl Variant {
    pub(super) fn new(
        py: Python<'_>,
        flat: &Flat<'_>,
        executable: Py<Executable>,
        rebuild: Option<Py<PyAny>>,
        guard: Option<Py<PyAny>>,
        names: Names,
        changing: Py<PyList>,
    ) -> PyResult<Variant> {
        let (mut tensors, made) = (0, executable.get());
        let state = py.import("wengert.nn.module")?.getattr("_State")?;
        // A tensor that a variable holds too: what the function read of it, the trace takes for the
        // argument.
        let is_held =
            |leaf: &Bound<'_, PyAny>| names.iter().any(|(.., value)| holds(value.bind(py), leaf));
        let mut leaves = Vec::new();
        for (i, leaf) in flat.leaves.iter().enumerate() {
            // SAFETY: a live object.
            leaves.push(match unsafe { tensor::downcast(leaf.as_ptr()) } {
                Some(tensor) => {
                    tensors += 1;
                    let (dtype, shape) = tensor.with_own(|v| (v.dtype(), v.shape().clone()));
                    Leaf::Tensor {
                        dtype,
                        device: tensor.with_own(Value::device),
                        shape: made.pattern(tensors - 1).cloned().unwrap_or(shape),
                        same: first_same(&flat.leaves, i),
                        parameter: (leaf.is_instance(&state)? || is_held(leaf))
                            .then(|| leaf.clone().unbind()),
                    }
                }
                None if made.is_number(i) => Leaf::Number,
                None => Leaf::Value(leaf.clone().unbind()),
            });
        }
        Ok(Variant {
            tokens: flat.tokens.clone(),
            keys: flat.keys.iter().map(|key| key.clone().unbind()).collect(),
            leaves,
            recording: tape::recording(),
            narrow: autocast::current(),
            device: device::current(),
            guard,
            names: names.into_iter().map(|(home, key, value)| Name { home, key, value }).collect(),
            clock: AtomicU64::new(CLOCK.load(Ordering::Relaxed)),
            executable,
            changing,
            rebuild,
        })
    }

    /// Visits what it holds. A call under way shares it, but then somebody holds the dispatcher
    /// too.
    pub(super) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.keys.iter().try_for_each(|key| visit.call(key))?;
        for leaf in &self.leaves {
            match leaf {
                Leaf::Tensor { parameter, .. } => visit.call(parameter)?,
                Leaf::Value(value) => visit.call(value)?,
                Leaf::Number => {}
            }
        }
        for Name { home, key, value } in &self.names {
            visit.call(home)?;
            visit.call(key)?;
            visit.call(value)?;
        }
        visit.call(&self.guard)?;
        visit.call(&self.executable)?;
        visit.call(&self.changing)?;
        visit.call(&self.rebuild)
    }

    /// Whether arguments are of the kind it was traced with.
    pub(super) fn fits(&self, py: Python<'_>, flat: &Flat<'_>) -> PyResult<bool> {
        if self.tokens != flat.tokens
            || self.leaves.len() != flat.leaves.len()
            || self.recording != tape::recording()
            || self.narrow != autocast::current()
            || self.device != device::current()
        {
            return Ok(false);
        }
        for (a, b) in self.keys.iter().zip(&flat.keys) {
            if !equal(a.bind(py), b)? {
                return Ok(false);
            }
        }
        for (i, want) in self.leaves.iter().enumerate() {
            if want.fit(py, &flat.leaves, i)? != Fit::Exact {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Marks the sizes and floats in which arguments differ from those it was traced with, and
    /// those it takes any of, if nothing else differs.
    pub(super) fn mark(
        &self,
        py: Python<'_>,
        flat: &Flat<'_>,
        changing: &mut [Changing],
    ) -> PyResult<()> {
        if self.tokens != flat.tokens || self.leaves.len() != flat.leaves.len() {
            return Ok(());
        }
        for (a, b) in self.keys.iter().zip(&flat.keys) {
            if !equal(a.bind(py), b)? {
                return Ok(());
            }
        }
        for (i, want) in self.leaves.iter().enumerate() {
            if want.fit(py, &flat.leaves, i)? == Fit::Other {
                return Ok(());
            }
        }
        for (i, (want, leaf)) in self.leaves.iter().zip(&flat.leaves).enumerate() {
            match want {
                Leaf::Tensor { shape, .. } => {
                    // SAFETY: a live object.
                    let Some(tensor) = (unsafe { tensor::downcast(leaf.as_ptr()) }) else {
                        continue;
                    };
                    let now = tensor.with_own(|value| value.shape().clone());
                    changing[i].axes.resize(shape.rank(), false);
                    for (axis, (&a, &b)) in shape.dims().iter().zip(now.dims()).enumerate() {
                        changing[i].axes[axis] |= a.known().is_none() || !a.same(b);
                    }
                }
                Leaf::Number => changing[i].number = true,
                Leaf::Value(value) => changing[i].number |= !equal(value.bind(py), leaf)?,
            }
        }
        Ok(())
    }

    /// Whether what it depends on besides is as it was.
    pub(super) fn holds(&self, py: Python<'_>, call: &Call<'_, '_>) -> PyResult<bool> {
        for name in &self.names {
            if !name.is_same(py)? {
                return Ok(false);
            }
        }
        let now = CLOCK.load(Ordering::Relaxed);
        if self.clock.load(Ordering::Relaxed) != now {
            if let Some(guard) = &self.guard
                && !guard.bind(py).call0()?.is_truthy()?
            {
                return Ok(false);
            }
            self.clock.store(now, Ordering::Relaxed);
        }
        let executable = self.executable.get();
        Ok(executable.broken(py, &call.tensors, &call.flat.leaves)?.is_none()
            && executable.mismatch(py, &call.tensors)?.is_none())
    }

    /// Runs it.
    pub(super) fn run<'py>(
        &self,
        py: Python<'py>,
        call: &Call<'_, 'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let mut results = self.executable.get().call(py, &call.tensors, &call.flat.leaves)?;
        match &self.rebuild {
            Some(rebuild) => rebuild.bind(py).call1((PyList::new(py, results)?,)),
            None => results
                .pop()
                .map(|result| result.into_bound(py))
                .ok_or_else(|| PyTypeError::new_err("a captured function lost its result")),
        }
    }
}

/// Whether a value is this object, or a list, tuple or dict with it in it.
fn holds(value: &Bound<'_, PyAny>, object: &Bound<'_, PyAny>) -> bool {
    if let Ok(list) = value.cast::<PyList>() {
        return list.iter().any(|item| item.is(object));
    }
    if let Ok(tuple) = value.cast::<PyTuple>() {
        return tuple.iter().any(|item| item.is(object));
    }
    match value.cast::<PyDict>() {
        Ok(dict) => dict.iter().any(|(_, item)| item.is(object)),
        Err(_) => value.is(object),
    }
}

/// The first leaf that is the same object as leaf `i`.
fn first_same(leaves: &[Bound<'_, PyAny>], i: usize) -> usize {
    leaves[..i].iter().position(|other| other.is(&leaves[i])).unwrap_or(i)
}

impl Name {
    /// Whether the variable holds what it held: the same object, or an equal plain value.
    fn is_same(&self, py: Python<'_>) -> PyResult<bool> {
        let home = self.home.as_ptr();
        // SAFETY: a live cell, or a live dict and key; borrowed or owned references as documented.
        let now: Option<Bound<'_, PyAny>> = unsafe {
            match &self.key {
                None => Bound::from_owned_ptr_or_opt(py, cell_contents(home)),
                Some(key) => Bound::from_borrowed_ptr_or_opt(
                    py,
                    ffi::PyDict_GetItemWithError(home, key.as_ptr()),
                ),
            }
        };
        match &now {
            Some(now) => is_equal_constant(self.value.bind(py), now),
            None => Ok(false),
        }
    }
}

/// The contents of a cell: a new reference, or null.
unsafe fn cell_contents(cell: Object) -> Object {
    // SAFETY: the caller's cell is live; an empty one gives null without an exception.
    unsafe { ffi::PyCell_Get(cell) }
}

/// Whether both are one object, or equal values of a kind that is compared by what it is; tuples,
/// by what is in them.
fn is_equal_constant(a: &Bound<'_, PyAny>, b: &Bound<'_, PyAny>) -> PyResult<bool> {
    if a.is(b) {
        return Ok(true);
    }
    if let (Ok(a), Ok(b)) = (a.cast::<PyTuple>(), b.cast::<PyTuple>()) {
        if a.len() != b.len() || !a.get_type().is(b.get_type()) {
            return Ok(false);
        }
        for (a, b) in a.iter().zip(b) {
            if !is_equal_constant(&a, &b)? {
                return Ok(false);
            }
        }
        return Ok(true);
    }
    match is_number(b) || b.is_instance_of::<pyo3::types::PyBytes>() {
        true => equal(a, b),
        false => Ok(false),
    }
}
