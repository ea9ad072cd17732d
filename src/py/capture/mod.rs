//! The bindings of traces: opening them, feeding them, and what runs afterwards.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use parking_lot::Mutex;
use pyo3::exceptions::PyKeyError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use smallvec::SmallVec;

use super::errors::OrRaise;
use super::functions::caught;
use super::number::Number;
use super::size::Size;
use super::tensor::{self, handle};
use crate::array::Array;
use crate::engine::call;
use crate::engine::compile::GradientUse;
use crate::engine::executors::{Device, device};
use crate::engine::program::Program;
use crate::engine::tape::{self, Value};
use crate::engine::trace;
use crate::engine::transfer::placed;
use crate::ops::op::Type;
use crate::shape::{Constraint, Dim, Shape};

mod executable;
mod export;
mod finish;
mod run;
mod settings;

use finish::Finish;

/// A trace: what is computed while it is entered becomes its nodes.
#[pyclass(frozen, module = "wengert")]
pub struct Trace {
    inner: Arc<trace::Trace>,
    /// Numbers that are given at each call, in order
    numbers: Mutex<Vec<NumberSource>>,
}

/// Where a number comes from at a call.
enum NumberSource {
    /// A leaf of the arguments
    Leaf(usize),
    /// An entry of a dict, such as a hyperparameter
    Item(Py<PyDict>, Py<PyAny>),
}

/// The number in a dict, whatever its class makes of a look at it.
fn entry(dict: &Bound<'_, PyDict>, key: &Bound<'_, PyAny>) -> PyResult<f64> {
    match dict.get_item(key)? {
        Some(value) => value.extract(),
        None => Err(PyKeyError::new_err(key.clone().unbind())),
    }
}

#[pymethods]
impl Trace {
    #[new]
    #[pyo3(signature = (exported=false))]
    fn new(exported: bool) -> Trace {
        Trace { inner: trace::Trace::new(exported), numbers: Mutex::default() }
    }

    fn __enter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf.inner.push();
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, _exception: &Bound<'_, pyo3::types::PyTuple>) {
        trace::leave(&self.inner);
        self.inner.abandon();
        let numbers = std::mem::take(&mut *self.numbers.lock());
        drop(numbers);
    }

    /// Takes a tensor in as an argument. `sizes` says of each axis what is known of its size:
    /// nothing (True: a symbol of its own), a declared size, or that it is what it is (None).
    fn argument(&self, x: &Bound<'_, PyAny>, sizes: Vec<Bound<'_, PyAny>>) -> PyResult<()> {
        let py = x.py();
        let tensor = handle("compile", x)?;
        let own = tensor.with_own(Value::clone);
        let mut ty = Type::new(own.dtype(), own.shape().clone());
        let scope = self.inner.scope();
        for (size, known) in ty.shape.dims_mut().iter_mut().zip(&sizes) {
            if let Ok(declared) = known.cast::<Size>() {
                let declared = declared.get().0;
                for symbol in declared.symbols() {
                    scope.declare(&symbol.to_string(), None);
                }
                scope.suppose(declared, size.value());
                *size = declared;
            } else if !known.is_none() {
                *size = scope.symbol(size.known());
            }
        }
        let keep: trace::Handle = Arc::new(x.clone().unbind());
        self.inner.argument(tensor.address(), &own, keep, ty).or_raise(py)
    }

    /// A number that stands for leaf `i` of the arguments.
    fn number(&self, py: Python<'_>, i: usize, now: f64) -> PyResult<Py<Number>> {
        let number = self.inner.given(now);
        self.numbers.lock().push(NumberSource::Leaf(i));
        Py::new(py, Number::new(number, self.inner.clone()))
    }

    /// A number that stands for an entry of a dict.
    fn item(&self, dict: &Bound<'_, PyDict>, key: &Bound<'_, PyAny>) -> PyResult<Py<Number>> {
        let py = dict.py();
        let now = entry(dict, key)?;
        let number = self.inner.given(now);
        let source = NumberSource::Item(dict.clone().unbind(), key.clone().unbind());
        self.numbers.lock().push(source);
        Py::new(py, Number::new(number, self.inner.clone()))
    }

    /// Ends the trace: what runs it. `outputs` are the tensors it returns, `args` the tensors it
    /// was called with. With `freezes`, which names tensors in errors, others become constants.
    #[pyo3(signature = (name, outputs, args, freezes=None))]
    fn finish(
        &self,
        py: Python<'_>,
        name: String,
        outputs: Vec<Bound<'_, PyAny>>,
        args: Vec<Bound<'_, PyAny>>,
        freezes: Option<Bound<'_, PyAny>>,
    ) -> PyResult<Executable> {
        let numbers = std::mem::take(&mut *self.numbers.lock());
        let freezes = freezes.as_ref();
        caught(py, || Finish::new(&self.inner, &name, &args).run(py, &outputs, numbers, freezes))
    }
}

/// Where an input comes from at a call, and where a value goes.
enum Place {
    /// An argument, by position among the tensors
    Argument(usize),
    /// A handle that the function reached by itself
    Handle(Py<PyAny>),
    /// The gradient of what another input holds
    Gradient(usize),
    /// A fresh random key
    Key,
}

impl Place {
    /// The same place, held once more.
    fn another(&self, py: Python<'_>) -> Place {
        match self {
            Place::Argument(i) => Place::Argument(*i),
            Place::Handle(object) => Place::Handle(object.clone_ref(py)),
            Place::Gradient(holder) => Place::Gradient(*holder),
            Place::Key => Place::Key,
        }
    }

    fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        match self {
            Place::Handle(object) => visit.call(object),
            Place::Argument(_) | Place::Gradient(_) | Place::Key => Ok(()),
        }
    }
}

/// A tensor that is a constant of a frozen function.
struct Frozen {
    object: Py<PyAny>,
    /// Its value when the function was traced, kept: an address that is free is used again
    array: Array,
}

struct Input {
    place: Place,
    /// Whether it required a gradient
    wants: bool,
    /// The hooks on its gradient
    hooks: SmallVec<[u64; 2]>,
    hold: Hold,
}

/// Whether a call keeps others from reading a handle.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Hold {
    /// No
    No,
    /// Its gradient gets a new value
    Gradient,
    /// It gets a new value itself
    Value,
}

/// Symbols, with the argument and the axis that tell their sizes.
type Symbols = Vec<(Dim, usize, usize)>;

enum Output {
    /// A result of the program
    Result(usize),
    /// A handle itself, which the function returned
    Handle(Place),
}

/// A handle that gets a new value.
struct Updated {
    place: Place,
    /// The input that is its old value, and the result that is the new one
    input: usize,
    result: usize,
}

/// A finished trace: runs the program, commits what it updates.
#[pyclass(frozen, module = "wengert")]
pub struct Executable {
    name: String,
    inputs: Vec<Input>,
    /// What is constant, of a frozen function
    frozen: Vec<Frozen>,
    outputs: Vec<Output>,
    /// Handles that get new values, with the results that hold them
    updates: Vec<Updated>,
    gradients: Vec<GradientUse>,
    program: Arc<Program>,
    /// The shapes of the tensors among the arguments
    patterns: Vec<Option<Shape>>,
    /// The symbols of these, with the argument and the axis that tell their sizes
    symbols: Symbols,
    constraints: Vec<Constraint>,
    numbers: Vec<NumberSource>,
    /// What holds the code of ops of the host
    hosts: Vec<Py<PyAny>>,
    /// Numbers whose values the trace depends on
    pinned: Vec<(usize, f64)>,
    /// The results that are moved to another device
    moved: Vec<(usize, Device)>,
    /// Where gradients flow: the two programs, the inputs that get one, the results that have one
    differentiable: Option<Arc<call::Differentiated>>,
    /// The calls so far, where calls are checked
    calls: AtomicU64,
}

/// Whether a trace is open on this thread.
#[pyfunction]
fn is_tracing() -> bool {
    trace::active()
}

/// Calls `f` outside all open traces: what it computes are ordinary tensors.
#[pyfunction]
fn outside_trace(f: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
    trace::suspended(|| f.call0().map(Bound::unbind))
}

/// Gives a tensor the value of another, and keeps its place on the tape.
#[pyfunction]
fn _put_back(x: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>) -> PyResult<()> {
    let tensor = super::tensor::handle("put back", x)?;
    let old = super::tensor::handle("put back", value)?.with_own(|value| value.array.clone());
    let history = tensor.with_own(|value| value.history.clone());
    drop(tensor.replace(Value { array: old, history }));
    Ok(())
}

/// A tensor of a type, of which only the type matters: it takes the room of one element.
#[pyfunction]
fn _stand_in(py: Python<'_>, shape: Vec<usize>, dtype: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
    let dtype = super::dtype::extract("Spec", dtype)?;
    let zero = Value::plain(Array::zeros(dtype, Shape::scalar()).or_raise(py)?);
    let zero = placed(zero, device::current()).or_raise(py)?;
    let wide = crate::ops::op::Op::Broadcast(Shape::of(&shape));
    let operand = [tape::Operand::Value(&zero)];
    tensor::wrap(py, crate::engine::eager::apply::apply(wide, &operand, false).or_raise(py)?)
}

/// A tensor's node in the trace it belongs to, or None.
#[pyfunction]
fn _node(x: &Bound<'_, PyAny>) -> PyResult<Option<u32>> {
    Ok(handle("node", x)?.with_own(|value| trace::node_of(&value.array).map(|(_, id)| id.0)))
}

/// Adds classes and functions to the module.
pub fn install(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Trace>()?;
    module.add_class::<Executable>()?;
    settings::install(module)?;
    export::install(module)?;
    module.add_function(pyo3::wrap_pyfunction!(is_tracing, module)?)?;
    module.add_function(pyo3::wrap_pyfunction!(outside_trace, module)?)?;
    module.add_function(pyo3::wrap_pyfunction!(_put_back, module)?)?;
    module.add_function(pyo3::wrap_pyfunction!(_node, module)?)?;
    module.add_function(pyo3::wrap_pyfunction!(_stand_in, module)?)?;
    Ok(())
}
