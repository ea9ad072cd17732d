//! Calls of compiled functions: which trace fits, and its run. What a call costs beyond its kernels
//! is here.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use pyo3::exceptions::PyTypeError;
use pyo3::ffi;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyFloat, PyList, PyTuple};
use smallvec::SmallVec;

use super::capture::Executable;
use super::functions::caught;
use super::tensor;
use crate::dtype::DType;
use crate::engine::tape;
use crate::engine::trace;
use crate::shape::{Dim, Shape};

type Object = *mut ffi::PyObject;

/// Counts assignments to attributes of modules and to hyperparameters: while it stands still, no
/// trace that depends on some needs to look at them.
static CLOCK: AtomicU64 = AtomicU64::new(1);

/// Says that an attribute of a module or a hyperparameter was assigned.
#[pyfunction]
fn tick() {
    CLOCK.fetch_add(1, Ordering::Relaxed);
}

/// A container or a leaf, in the order in which a tree is walked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token {
    Leaf,
    None,
    Tuple(usize),
    List(usize),
    /// A dict of so many entries; its keys are kept apart
    Dict(usize),
    /// A tree with containers that only Python knows; its structure is kept apart
    Foreign,
}

/// The arguments of a call, taken apart.
#[derive(Default)]
struct Flat<'py> {
    tokens: SmallVec<[Token; 8]>,
    /// Dict keys, and the structure of a foreign tree
    keys: Vec<Bound<'py, PyAny>>,
    leaves: SmallVec<[Bound<'py, PyAny>; 8]>,
}

/// What a leaf must be.
enum Leaf {
    /// A tensor of a dtype and shape, in which symbols stand for sizes that may differ; `same` is the
    /// first leaf that is the same handle
    Tensor { dtype: DType, shape: Shape, same: usize, parameter: Option<Py<PyAny>> },
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
struct Changing {
    axes: SmallVec<[bool; 4]>,
    number: bool,
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
            Leaf::Tensor { dtype, shape, same, parameter } => {
                // SAFETY: a live object.
                let Some(tensor) = (unsafe { tensor::downcast(leaf.as_ptr()) }) else {
                    return Ok(Fit::Other);
                };
                let is_same =
                    *same == first_same(leaves, i) && parameter.as_ref().is_none_or(|p| p.is(leaf));
                tensor.with_own(|value| {
                    let dims = value.shape().dims();
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
struct Variant {
    tokens: SmallVec<[Token; 8]>,
    keys: Vec<Py<PyAny>>,
    leaves: Vec<Leaf>,
    recording: bool,
    /// Calls it with what changed: whether plain Python values are as they were
    guard: Option<Py<PyAny>>,
    /// Cells and globals with the values they had
    names: Vec<Name>,
    clock: AtomicU64,
    executable: Py<Executable>,
    /// What was known to change when it was traced
    changing: Py<PyList>,
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

/// A function and its traces.
#[pyclass(frozen, module = "wengert", dict, weakref, subclass)]
pub struct Dispatcher {
    function: Py<PyAny>,
    variants: Mutex<Vec<Arc<Variant>>>,
}

#[pymethods]
impl Dispatcher {
    #[new]
    #[pyo3(signature = (function, *_args, **_options))]
    fn new(
        function: Py<PyAny>,
        _args: &Bound<'_, PyTuple>,
        _options: Option<&Bound<'_, PyDict>>,
    ) -> Dispatcher {
        Dispatcher { function, variants: Mutex::default() }
    }

    /// Shows the collector of cycles what the traces hold. The lock is never kept while Python code
    /// runs, so a collection finds it free.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.function)?;
        match self.variants.try_lock() {
            Some(variants) => variants.iter().try_for_each(|variant| variant.traverse(&visit)),
            None => Ok(()),
        }
    }

    /// Forgets the traces; what is dropped is out of the lock first, because dropping it may run code.
    /// The function stays: a cycle through it leads through its cells or its globals, which are cleared.
    fn __clear__(&self) {
        let variants = std::mem::take(&mut *self.variants.lock());
        drop(variants);
    }

    /// How many traces there are.
    fn variant_count(&self) -> usize {
        self.variants.lock().len()
    }

    #[pyo3(signature = (*args, **kwargs))]
    fn __call__<'py>(
        slf: &Bound<'py, Self>,
        args: &Bound<'py, PyTuple>,
        kwargs: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (py, this) = (slf.py(), slf.get());
        if trace::active() {
            return this.function.bind(py).call(args, kwargs);
        }
        let flat = Flat::new(args, kwargs)?;
        let tensors = flat.tensors();
        caught(py, || {
            let variant = Dispatcher::variant(slf, args, kwargs, &flat, &tensors)?;
            if variant.executable.get().is_due() {
                Dispatcher::trace_again(slf, args, kwargs, &flat, &variant)?;
            }
            variant.run(py, &tensors, &flat.leaves)
        })
    }

    /// Traces for declared arguments; `changing` says what may differ from them.
    fn _declare<'py>(
        slf: &Bound<'py, Self>,
        args: &Bound<'py, PyTuple>,
        changing: &Bound<'py, PyList>,
    ) -> PyResult<()> {
        let flat = Flat::new(args, None)?;
        let kwargs = PyDict::new(slf.py());
        caught(slf.py(), || Dispatcher::add(slf, args, &kwargs, &flat, changing).map(drop))
    }

    /// What would run for these arguments, traced if need be, not run; and the tensors and the leaves
    /// that it would be given.
    #[pyo3(signature = (*args, **kwargs))]
    fn _prepared<'py>(
        slf: &Bound<'py, Self>,
        args: &Bound<'py, PyTuple>,
        kwargs: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<(Py<Executable>, Objects<'py>, Objects<'py>)> {
        let flat = Flat::new(args, kwargs)?;
        let tensors = flat.tensors();
        let variant = Dispatcher::variant(slf, args, kwargs, &flat, &tensors)?;
        let executable = variant.executable.clone_ref(slf.py());
        Ok((executable, tensors.into_vec(), flat.leaves.into_vec()))
    }

    fn __get__<'py>(
        slf: &Bound<'py, Self>,
        instance: &Bound<'py, PyAny>,
        _owner: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        if instance.is_none() {
            return Ok(slf.clone().into_any());
        }
        let partial = slf.py().import("functools")?.getattr("partial")?;
        partial.call1((slf, instance))
    }
}

/// What tracing gives: the executable, how results are put together, and what to look at before the
/// trace is used again.
type Made<'py> = (Py<Executable>, Option<Py<PyAny>>, Option<Py<PyAny>>, Names);

type Objects<'py> = Vec<Bound<'py, PyAny>>;

/// Cells and globals, names in these, and values.
type Names = Vec<(Py<PyAny>, Option<Py<PyAny>>, Py<PyAny>)>;

impl Dispatcher {
    /// The trace that fits, made if there is none.
    fn variant<'py>(
        slf: &Bound<'py, Self>,
        args: &Bound<'py, PyTuple>,
        kwargs: Option<&Bound<'py, PyDict>>,
        flat: &Flat<'py>,
        tensors: &[Bound<'py, PyAny>],
    ) -> PyResult<Arc<Variant>> {
        let (py, this) = (slf.py(), slf.get());
        if let Some(variant) = this.find(py, flat, tensors)? {
            return Ok(variant);
        }
        // One thread traces at a time; what it made may be what another waited for.
        let lock = slf.getattr("_lock")?;
        lock.call_method0("__enter__")?;
        let made = caught(py, || Dispatcher::trace(slf, args, kwargs, flat, tensors));
        lock.call_method1("__exit__", (py.None(), py.None(), py.None()))?;
        made
    }

    fn trace<'py>(
        slf: &Bound<'py, Self>,
        args: &Bound<'py, PyTuple>,
        kwargs: Option<&Bound<'py, PyDict>>,
        flat: &Flat<'py>,
        tensors: &[Bound<'py, PyAny>],
    ) -> PyResult<Arc<Variant>> {
        let (py, this) = (slf.py(), slf.get());
        if let Some(variant) = this.find(py, flat, tensors)? {
            return Ok(variant);
        }
        if slf.getattr("_declared")?.is_truthy()? {
            let refused = this.refused(py, flat, tensors)?;
            slf.call_method1("_refuse", (PyList::new(py, &flat.leaves)?, refused))?;
        }
        let kwargs = kwargs.cloned().unwrap_or_else(|| PyDict::new(py));
        let changing = this.changing(py, flat)?;
        Dispatcher::add(slf, args, &kwargs, flat, &changing)
    }

    /// Python traces the function; the trace is added.
    fn add<'py>(
        slf: &Bound<'py, Self>,
        args: &Bound<'py, PyTuple>,
        kwargs: &Bound<'py, PyDict>,
        flat: &Flat<'py>,
        changing: &Bound<'py, PyList>,
    ) -> PyResult<Arc<Variant>> {
        let py = slf.py();
        let leaves = PyList::new(py, &flat.leaves)?;
        let found = slf.call_method1("_trace", (args, kwargs, leaves, changing))?;
        let (executable, rebuild, guard, names): Made<'py> = found.extract()?;
        let changing = changing.clone().unbind();
        let variant = Variant::new(py, flat, executable, rebuild, guard, names, changing)?;
        let variant = Arc::new(variant);
        slf.get().variants.lock().push(variant.clone());
        Ok(variant)
    }

    /// Refuses a call that would be traced otherwise now.
    fn trace_again<'py>(
        slf: &Bound<'py, Self>,
        args: &Bound<'py, PyTuple>,
        kwargs: Option<&Bound<'py, PyDict>>,
        flat: &Flat<'py>,
        variant: &Variant,
    ) -> PyResult<()> {
        let py = slf.py();
        let kwargs = kwargs.cloned().unwrap_or_else(|| PyDict::new(py));
        let leaves = PyList::new(py, &flat.leaves)?;
        let (executable, changing) = (&variant.executable, &variant.changing);
        slf.call_method1("_trace_again", (executable, args, kwargs, leaves, changing)).map(drop)
    }

    /// What a declared trace relies on that does not hold for arguments which otherwise fit.
    fn refused(
        &self,
        py: Python<'_>,
        flat: &Flat<'_>,
        tensors: &[Bound<'_, PyAny>],
    ) -> PyResult<Option<String>> {
        let variants: Vec<Arc<Variant>> = self.variants.lock().clone();
        for variant in variants {
            if variant.fits(py, flat)? {
                return variant.executable.get().broken(py, tensors, &flat.leaves);
            }
        }
        Ok(None)
    }

    /// What earlier traces say about the leaves of a call: for each a list that says of every axis
    /// whether its size changes, True for a float that changes, or None.
    fn changing<'py>(&self, py: Python<'py>, flat: &Flat<'_>) -> PyResult<Bound<'py, PyList>> {
        let mut changing = vec![Changing::default(); flat.leaves.len()];
        let variants: Vec<Arc<Variant>> = self.variants.lock().clone();
        for variant in variants {
            variant.mark(py, flat, &mut changing)?;
        }
        let object = |leaf: Changing| -> PyResult<Bound<'py, PyAny>> {
            if leaf.number {
                return Ok(true.into_pyobject(py)?.to_owned().into_any());
            }
            match leaf.axes.contains(&true) {
                true => Ok(PyList::new(py, leaf.axes)?.into_any()),
                false => Ok(py.None().into_bound(py)),
            }
        };
        let objects: PyResult<Vec<_>> = changing.into_iter().map(object).collect();
        PyList::new(py, objects?)
    }

    fn find(
        &self,
        py: Python<'_>,
        flat: &Flat<'_>,
        tensors: &[Bound<'_, PyAny>],
    ) -> PyResult<Option<Arc<Variant>>> {
        // A copy of the list: comparing values may run Python code.
        let variants = {
            let variants = self.variants.lock();
            match variants.last() {
                Some(last) if variants.len() == 1 => SmallVec::from_elem(last.clone(), 1),
                _ => variants.iter().rev().cloned().collect::<SmallVec<[Arc<Variant>; 4]>>(),
            }
        };
        for variant in variants {
            if variant.fits(py, flat)? && variant.holds(py, tensors, &flat.leaves)? {
                return Ok(Some(variant));
            }
        }
        Ok(None)
    }
}

impl<'py> Flat<'py> {
    fn new(args: &Bound<'py, PyTuple>, kwargs: Option<&Bound<'py, PyDict>>) -> PyResult<Flat<'py>> {
        // `f(x, **{})` is `f(x)`.
        let kwargs = kwargs.filter(|kwargs| !kwargs.is_empty());
        let mut flat = Flat::default();
        flat.tokens.push(Token::Tuple(args.len()));
        let mut native = true;
        for arg in args {
            native &= flat.walk(&arg)?;
        }
        if let Some(kwargs) = kwargs {
            native &= flat.walk(kwargs.as_any())?;
        }
        if native {
            return Ok(flat);
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
        Ok(flat)
    }

    /// Takes a tree apart; false where only Python can.
    fn walk(&mut self, tree: &Bound<'py, PyAny>) -> PyResult<bool> {
        if tree.is_none() {
            self.tokens.push(Token::None);
        } else if let Ok(tuple) = tree.cast_exact::<PyTuple>() {
            self.tokens.push(Token::Tuple(tuple.len()));
            for item in tuple {
                if !self.walk(&item)? {
                    return Ok(false);
                }
            }
        } else if let Ok(list) = tree.cast_exact::<PyList>() {
            self.tokens.push(Token::List(list.len()));
            for item in list {
                if !self.walk(&item)? {
                    return Ok(false);
                }
            }
        } else if let Ok(dict) = tree.cast_exact::<PyDict>() {
            self.tokens.push(Token::Dict(dict.len()));
            for (key, item) in dict {
                self.keys.push(key);
                if !self.walk(&item)? {
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

    /// Adds a leaf; arrays of others become tensors.
    fn leaf(&mut self, leaf: &Bound<'py, PyAny>) -> PyResult<()> {
        // SAFETY: a live object.
        let is_tensor = unsafe { tensor::downcast(leaf.as_ptr()) }.is_some();
        let is_array = !is_tensor && !is_number(leaf) && leaf.hasattr("__array__")?;
        self.leaves.push(match is_array {
            true => leaf.py().import("wengert._core")?.call_method1("asarray", (leaf,))?,
            false => leaf.clone(),
        });
        Ok(())
    }

    fn tensors(&self) -> SmallVec<[Bound<'py, PyAny>; 8]> {
        // SAFETY: live objects.
        let is_tensor = |x: &&Bound<'py, PyAny>| unsafe { tensor::downcast(x.as_ptr()) }.is_some();
        self.leaves.iter().filter(is_tensor).cloned().collect()
    }
}

fn is_number(x: &Bound<'_, PyAny>) -> bool {
    // SAFETY: a live object.
    unsafe {
        ffi::PyLong_Check(x.as_ptr()) != 0
            || ffi::PyFloat_Check(x.as_ptr()) != 0
            || ffi::PyUnicode_Check(x.as_ptr()) != 0
    }
}

/// A leaf that needs no look into Python's table of containers.
fn is_plain(x: &Bound<'_, PyAny>) -> bool {
    // SAFETY: a live object.
    is_number(x) || unsafe { ffi::Py_TYPE(x.as_ptr()) == tensor::type_object() }
}

fn equal(a: &Bound<'_, PyAny>, b: &Bound<'_, PyAny>) -> PyResult<bool> {
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

impl Variant {
    fn new(
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
        let mut leaves = Vec::new();
        for (i, leaf) in flat.leaves.iter().enumerate() {
            // SAFETY: a live object.
            leaves.push(match unsafe { tensor::downcast(leaf.as_ptr()) } {
                Some(tensor) => {
                    tensors += 1;
                    let (dtype, shape) = tensor.with_own(|v| (v.dtype(), v.shape().clone()));
                    Leaf::Tensor {
                        dtype,
                        shape: made.pattern(tensors - 1).cloned().unwrap_or(shape),
                        same: first_same(&flat.leaves, i),
                        parameter: leaf.is_instance(&state)?.then(|| leaf.clone().unbind()),
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
            guard,
            names: names.into_iter().map(|(home, key, value)| Name { home, key, value }).collect(),
            clock: AtomicU64::new(CLOCK.load(Ordering::Relaxed)),
            executable,
            changing,
            rebuild,
        })
    }

    /// Visits what it holds. A call under way shares it, but then somebody holds the dispatcher too.
    fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
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
    fn fits(&self, py: Python<'_>, flat: &Flat<'_>) -> PyResult<bool> {
        if self.tokens != flat.tokens
            || self.leaves.len() != flat.leaves.len()
            || self.recording != tape::recording()
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

    /// Marks the sizes and floats in which arguments differ from those it was traced with, and those
    /// it takes any of, if nothing else differs.
    fn mark(&self, py: Python<'_>, flat: &Flat<'_>, changing: &mut [Changing]) -> PyResult<()> {
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
    fn holds(
        &self,
        py: Python<'_>,
        tensors: &[Bound<'_, PyAny>],
        leaves: &[Bound<'_, PyAny>],
    ) -> PyResult<bool> {
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
        Ok(executable.broken(py, tensors, leaves)?.is_none()
            && executable.mismatch(py, tensors)?.is_none())
    }

    fn run<'py>(
        &self,
        py: Python<'py>,
        tensors: &[Bound<'py, PyAny>],
        leaves: &[Bound<'py, PyAny>],
    ) -> PyResult<Bound<'py, PyAny>> {
        let mut results = self.executable.get().call(py, tensors, leaves)?;
        match &self.rebuild {
            Some(rebuild) => rebuild.bind(py).call1((PyList::new(py, results)?,)),
            None => results
                .pop()
                .map(|result| result.into_bound(py))
                .ok_or_else(|| PyTypeError::new_err("a captured function lost its result")),
        }
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
            Some(now) if self.value.is(now) => Ok(true),
            Some(now) if is_constant(now) => equal(self.value.bind(py), now),
            _ => Ok(false),
        }
    }
}

/// The contents of a cell: a new reference, or null.
unsafe fn cell_contents(cell: Object) -> Object {
    // SAFETY: the caller's cell is live; an empty one gives null without an exception.
    unsafe { ffi::PyCell_Get(cell) }
}

/// A value that is compared by what it is, not which object it is.
fn is_constant(x: &Bound<'_, PyAny>) -> bool {
    is_number(x) || x.is_instance_of::<PyTuple>() || x.is_instance_of::<pyo3::types::PyBytes>()
}

/// Adds the class and functions to the module.
pub fn install(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Dispatcher>()?;
    module.add_function(pyo3::wrap_pyfunction!(tick, module)?)
}
