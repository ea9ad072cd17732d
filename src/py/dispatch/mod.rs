//! Calls of compiled functions: which trace fits, and its run. What a call costs beyond its kernels
//! is here.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use pyo3::ffi;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};
use smallvec::SmallVec;

use super::capture::Executable;
use super::functions::caught;
use crate::engine::trace;

mod flat;
mod variant;

use flat::Flat;
use variant::{Changing, Variant};

type Object = *mut ffi::PyObject;

/// Counts assignments to attributes of modules and to hyperparameters: while it stands still, no
/// trace that depends on some needs to look at them.
static CLOCK: AtomicU64 = AtomicU64::new(1);

/// Says that an attribute of a module or a hyperparameter was assigned.
#[pyfunction]
fn tick() {
    CLOCK.fetch_add(1, Ordering::Relaxed);
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

    /// Forgets the traces; what is dropped is out of the lock first, because dropping it may run
    /// code. The function stays: a cycle through it leads through its cells or its globals, which
    /// are cleared.
    fn __clear__(&self) {
        let variants = std::mem::take(&mut *self.variants.lock());
        drop(variants);
    }

    /// How many traces there are.
    fn variant_count(&self) -> usize {
        self.variants.lock().len()
    }

    /// Forgets the traces of a frozen function whose constants are not current any more; says which.
    fn _forget_stale(&self, py: Python<'_>) -> PyResult<Vec<Py<Executable>>> {
        let variants: Vec<Arc<Variant>> = self.variants.lock().clone();
        let mut stale = Vec::new();
        for variant in variants {
            if variant.executable.get().is_stale(py)? {
                stale.push(variant);
            }
        }
        let is_stale = |x: &Arc<Variant>| stale.iter().any(|y| Arc::ptr_eq(x, y));
        // What is dropped is out of the lock first, because dropping it may run code.
        let forgotten: Vec<Arc<Variant>> =
            self.variants.lock().extract_if(.., |x| is_stale(x)).collect();
        Ok(forgotten.iter().map(|variant| variant.executable.clone_ref(py)).collect())
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
        let call = Call::new(args, kwargs)?;
        caught(py, || {
            let variant = Dispatcher::variant(slf, &call)?;
            if variant.executable.get().is_due() {
                Dispatcher::trace_again(slf, &call, &variant)?;
            }
            variant.run(py, &call)
        })
    }

    /// Traces for declared arguments; `changing` says what may differ from them.
    fn _declare<'py>(
        slf: &Bound<'py, Self>,
        args: &Bound<'py, PyTuple>,
        changing: &Bound<'py, PyList>,
    ) -> PyResult<()> {
        let call = Call::new(args, None)?;
        caught(slf.py(), || Dispatcher::add(slf, &call, changing).map(drop))
    }

    /// What would run for these arguments, traced if need be, not run; and the tensors and the
    /// leaves that it would be given.
    #[pyo3(signature = (*args, **kwargs))]
    fn _prepared<'py>(
        slf: &Bound<'py, Self>,
        args: &Bound<'py, PyTuple>,
        kwargs: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<(Py<Executable>, Objects<'py>, Objects<'py>)> {
        let call = Call::new(args, kwargs)?;
        let variant = caught(slf.py(), || Dispatcher::variant(slf, &call))?;
        let executable = variant.executable.clone_ref(slf.py());
        Ok((executable, call.tensors.into_vec(), call.flat.leaves.into_vec()))
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

/// A call: its arguments as they were passed, and taken apart.
struct Call<'a, 'py> {
    args: &'a Bound<'py, PyTuple>,
    kwargs: Option<&'a Bound<'py, PyDict>>,
    flat: Flat<'py>,
    /// The tensors among the leaves
    tensors: SmallVec<[Bound<'py, PyAny>; 8]>,
}

impl<'a, 'py> Call<'a, 'py> {
    fn new(
        args: &'a Bound<'py, PyTuple>,
        kwargs: Option<&'a Bound<'py, PyDict>>,
    ) -> PyResult<Call<'a, 'py>> {
        let flat = Flat::new(args, kwargs)?;
        let tensors = flat.tensors();
        Ok(Call { args, kwargs, flat, tensors })
    }

    fn kwargs(&self, py: Python<'py>) -> Bound<'py, PyDict> {
        self.kwargs.cloned().unwrap_or_else(|| PyDict::new(py))
    }

    fn leaves(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        PyList::new(py, &self.flat.leaves)
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
    fn variant<'py>(slf: &Bound<'py, Self>, call: &Call<'_, 'py>) -> PyResult<Arc<Variant>> {
        let (py, this) = (slf.py(), slf.get());
        if let Some(variant) = this.find(py, call)? {
            return Ok(variant);
        }
        // One thread traces at a time; what it made may be what another waited for.
        let lock = slf.getattr("_lock")?;
        lock.call_method0("__enter__")?;
        let made = caught(py, || match this.find(py, call)? {
            Some(variant) => Ok(variant),
            None => Dispatcher::trace(slf, call),
        });
        lock.call_method1("__exit__", (py.None(), py.None(), py.None()))?;
        made
    }

    fn trace<'py>(slf: &Bound<'py, Self>, call: &Call<'_, 'py>) -> PyResult<Arc<Variant>> {
        let (py, this) = (slf.py(), slf.get());
        if slf.getattr("_declared")?.is_truthy()? {
            let refused = this.refused(py, call)?;
            slf.call_method1("_refuse", (call.leaves(py)?, refused))?;
        }
        let changing = this.changing(py, &call.flat)?;
        Dispatcher::add(slf, call, &changing)
    }

    /// Python traces the function; the trace is added.
    fn add<'py>(
        slf: &Bound<'py, Self>,
        call: &Call<'_, 'py>,
        changing: &Bound<'py, PyList>,
    ) -> PyResult<Arc<Variant>> {
        let py = slf.py();
        let what = (call.args, call.kwargs(py), call.leaves(py)?, changing);
        let found = slf.call_method1("_trace", what)?;
        let (executable, rebuild, guard, names): Made<'py> = found.extract()?;
        let changing = changing.clone().unbind();
        let variant = Variant::new(py, &call.flat, executable, rebuild, guard, names, changing)?;
        let variant = Arc::new(variant);
        slf.get().variants.lock().push(variant.clone());
        Ok(variant)
    }

    /// Refuses a call that would be traced otherwise now.
    fn trace_again<'py>(
        slf: &Bound<'py, Self>,
        call: &Call<'_, 'py>,
        variant: &Variant,
    ) -> PyResult<()> {
        let (py, executable, changing) = (slf.py(), &variant.executable, &variant.changing);
        let what = (executable, call.args, call.kwargs(py), call.leaves(py)?, changing);
        slf.call_method1("_trace_again", what).map(drop)
    }

    /// What a declared trace relies on that does not hold for arguments which otherwise fit.
    fn refused(&self, py: Python<'_>, call: &Call<'_, '_>) -> PyResult<Option<String>> {
        let variants: Vec<Arc<Variant>> = self.variants.lock().clone();
        for variant in variants {
            if variant.fits(py, &call.flat)? {
                return variant.executable.get().broken(py, &call.tensors, &call.flat.leaves);
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

    fn find(&self, py: Python<'_>, call: &Call<'_, '_>) -> PyResult<Option<Arc<Variant>>> {
        // A copy of the list: comparing values may run Python code.
        let variants = {
            let variants = self.variants.lock();
            match variants.last() {
                Some(last) if variants.len() == 1 => SmallVec::from_elem(last.clone(), 1),
                _ => variants.iter().rev().cloned().collect::<SmallVec<[Arc<Variant>; 4]>>(),
            }
        };
        for variant in variants {
            if variant.fits(py, &call.flat)? && variant.holds(py, call)? {
                return Ok(Some(variant));
            }
        }
        Ok(None)
    }
}

/// Adds the class and functions to the module.
pub fn install(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Dispatcher>()?;
    module.add_function(pyo3::wrap_pyfunction!(tick, module)?)
}
