//! Sizes and numbers that are known when a captured function runs, as Python objects.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use pyo3::basic::CompareOp;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

use super::arguments::scalar;
use super::errors::{OrRaise, to_python};
use crate::dtype::Scalar;
use crate::engine::trace;
use crate::error;
use crate::ops::emit::catch;
use crate::ops::number::{Calculation, Number as Definition};
use crate::shape::{Dim, is_name};

/// A size with a name, or an expression over such sizes.
///
/// `wengert.Dim("batch")` declares one, for `wengert.Spec` and `wengert.placeholder`. While a function
/// is captured, `x.shape` has such sizes where they may differ from call to call: compute with them as
/// with ints. Where Python needs the number (`range(n)`), the size is pinned to it.
#[pyclass(frozen, name = "Dim", module = "wengert")]
pub struct Size(pub Dim);

/// The size of a Python int or size.
pub fn dim(object: &Bound<'_, PyAny>) -> Option<Dim> {
    if let Ok(size) = object.cast::<Size>() {
        return Some(size.get().0);
    }
    match scalar(object.as_ptr()) {
        Some(Scalar::Int(n)) => usize::try_from(n).ok().map(Dim::new),
        _ => None,
    }
}

/// The Python object of a size.
pub fn object(py: Python<'_>, dim: Dim) -> PyResult<Py<PyAny>> {
    match dim.known() {
        Some(n) => Ok(n.into_pyobject(py)?.into_any().unbind()),
        None => Ok(Py::new(py, Size(dim))?.into_any()),
    }
}

/// The number that a size is now; it is pinned to it.
fn pinned(py: Python<'_>, dim: Dim) -> PyResult<usize> {
    catch(|| dim.value()).or_raise(py)
}

impl Size {
    fn with(
        &self,
        other: &Bound<'_, PyAny>,
        f: impl FnOnce(Dim, Dim) -> Dim,
        how: Calculation,
        turned: bool,
    ) -> PyResult<Py<PyAny>> {
        let py = other.py();
        if let Some(b) = dim(other) {
            let (a, b) = if turned { (b, self.0) } else { (self.0, b) };
            return object(py, catch(|| f(a, b)).or_raise(py)?);
        }
        let number = trace::number(Definition::Size(self.0));
        calculate(py, how, number, other, turned)
    }
}

#[pymethods]
impl Size {
    #[new]
    fn new(py: Python<'_>, name: &str) -> PyResult<Size> {
        if !is_name(name) {
            let facts = format!("got {name:?}");
            return Err(to_python(py, error::bad_value("Dim", "a name is an identifier", facts)));
        }
        Ok(Size(Dim::named(name)))
    }

    fn __repr__(&self) -> String {
        self.0.to_string()
    }

    fn __hash__(&self) -> u64 {
        let mut state = DefaultHasher::new();
        self.0.hash(&mut state);
        state.finish()
    }

    fn __richcmp__(&self, other: &Bound<'_, PyAny>, op: CompareOp) -> PyResult<Py<PyAny>> {
        let py = other.py();
        let Some(b) = dim(other) else { return Ok(py.NotImplemented()) };
        let a = self.0;
        let truth = catch(|| match op {
            CompareOp::Eq => a == b,
            CompareOp::Ne => a != b,
            CompareOp::Lt => a < b,
            CompareOp::Le => a <= b,
            CompareOp::Gt => b < a,
            CompareOp::Ge => b <= a,
        });
        Ok(truth.or_raise(py)?.into_pyobject(py)?.to_owned().into_any().unbind())
    }

    fn __index__(&self, py: Python<'_>) -> PyResult<usize> {
        pinned(py, self.0)
    }

    fn __int__(&self, py: Python<'_>) -> PyResult<usize> {
        pinned(py, self.0)
    }

    fn __float__(&self, py: Python<'_>) -> PyResult<f64> {
        Ok(pinned(py, self.0)? as f64)
    }

    fn __bool__(&self, py: Python<'_>) -> PyResult<bool> {
        catch(|| self.0 != Dim::new(0)).or_raise(py)
    }

    fn __add__(&self, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        self.with(other, |a, b| a + b, Calculation::Add, false)
    }

    fn __radd__(&self, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        self.with(other, |a, b| a + b, Calculation::Add, true)
    }

    fn __sub__(&self, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        self.with(other, |a, b| a - b, Calculation::Sub, false)
    }

    fn __rsub__(&self, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        self.with(other, |a, b| a - b, Calculation::Sub, true)
    }

    fn __mul__(&self, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        self.with(other, |a, b| a * b, Calculation::Mul, false)
    }

    fn __rmul__(&self, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        self.with(other, |a, b| a * b, Calculation::Mul, true)
    }

    fn __floordiv__(&self, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        self.with(other, |a, b| a / b, Calculation::Div, false)
    }

    fn __rfloordiv__(&self, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        self.with(other, |a, b| a / b, Calculation::Div, true)
    }

    fn __mod__(&self, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        self.with(other, |a, b| a % b, Calculation::Sub, false)
    }

    fn __truediv__(&self, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        let number = trace::number(Definition::Size(self.0));
        calculate(other.py(), Calculation::Div, number, other, false)
    }

    fn __rtruediv__(&self, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        let number = trace::number(Definition::Size(self.0));
        calculate(other.py(), Calculation::Div, number, other, true)
    }
}

/// A float that is given when a captured function runs. Compute with it as with a float; where Python
/// needs its value, the trace holds for that value only.
#[pyclass(frozen, module = "wengert")]
pub struct Number {
    value: Scalar,
    trace: Arc<trace::Trace>,
}

impl Number {
    /// A number of a trace.
    pub fn new(value: Scalar, trace: Arc<trace::Trace>) -> Number {
        Number { value, trace }
    }
}

/// A number as an operand: what stands for it, if the object is one.
pub fn operand(object: &Bound<'_, PyAny>) -> PyResult<Option<Scalar>> {
    if let Ok(size) = object.cast::<Size>() {
        return Ok(Some(trace::number(Definition::Size(size.get().0))));
    }
    let Ok(number) = object.cast::<Number>() else { return Ok(None) };
    let number = number.get();
    match trace::speaks_of(&number.trace) {
        true => Ok(Some(number.value)),
        false => number.look(object.py()).map(|now| Some(Scalar::Float(now))),
    }
}

/// Arithmetic of a number and a Python number.
fn calculate(
    py: Python<'_>,
    how: Calculation,
    number: Scalar,
    other: &Bound<'_, PyAny>,
    turned: bool,
) -> PyResult<Py<PyAny>> {
    let other = match operand(other)? {
        Some(other) => Some(other),
        None => scalar(other.as_ptr()),
    };
    let Some(other) = other else { return Ok(py.NotImplemented()) };
    let Some(trace) = trace::top() else {
        return Err(PyTypeError::new_err("a size that is no number has no arithmetic here"));
    };
    let (a, b) = if turned { (other, number) } else { (number, other) };
    let (a, b) = (float(a), float(b));
    let value = trace::number(Definition::Calculated(how, [a, b]));
    match crate::graph::number_of(value) {
        Some(_) => Ok(Py::new(py, Number { value, trace })?.into_any()),
        None => Ok(value.as_f64().into_pyobject(py)?.into_any().unbind()),
    }
}

fn float(value: Scalar) -> Scalar {
    Scalar::Float(value.as_f64())
}

impl Number {
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        match trace::is_on_stack(&self.trace) {
            true => Ok(()),
            false => Err(to_python(py, error::escaped("number", "a number"))),
        }
    }

    fn look(&self, py: Python<'_>) -> PyResult<f64> {
        self.check(py)?;
        Ok(self.trace.look(self.value).or_raise(py)?.as_f64())
    }

    fn with(
        &self,
        how: Calculation,
        other: &Bound<'_, PyAny>,
        turned: bool,
    ) -> PyResult<Py<PyAny>> {
        let own = Bound::new(other.py(), Number { value: self.value, trace: self.trace.clone() })?;
        let Some(value) = operand(own.as_any())? else { return Ok(other.py().NotImplemented()) };
        calculate(other.py(), how, value, other, turned)
    }
}

#[pymethods]
impl Number {
    fn __repr__(&self) -> String {
        "a number given when the function runs".into()
    }

    fn __float__(&self, py: Python<'_>) -> PyResult<f64> {
        self.look(py)
    }

    fn __int__(&self, py: Python<'_>) -> PyResult<i64> {
        Ok(self.look(py)? as i64)
    }

    fn __bool__(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.look(py)? != 0.0)
    }

    fn __hash__(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.look(py)?.to_bits())
    }

    fn __richcmp__(&self, other: &Bound<'_, PyAny>, op: CompareOp) -> PyResult<Py<PyAny>> {
        let py = other.py();
        let b = match scalar(other.as_ptr()) {
            Some(b) => b.as_f64(),
            None => match other.cast::<Number>() {
                Ok(number) => number.get().look(py)?,
                Err(_) => return Ok(py.NotImplemented()),
            },
        };
        let a = self.look(py)?;
        let truth = match op {
            CompareOp::Eq => a == b,
            CompareOp::Ne => a != b,
            CompareOp::Lt => a < b,
            CompareOp::Le => a <= b,
            CompareOp::Gt => a > b,
            CompareOp::Ge => a >= b,
        };
        Ok(truth.into_pyobject(py)?.to_owned().into_any().unbind())
    }

    fn __neg__(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let minus = (-1.0f64).into_pyobject(py)?.into_any();
        self.with(Calculation::Mul, &minus, false)
    }

    fn __add__(&self, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        self.with(Calculation::Add, other, false)
    }

    fn __radd__(&self, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        self.with(Calculation::Add, other, true)
    }

    fn __sub__(&self, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        self.with(Calculation::Sub, other, false)
    }

    fn __rsub__(&self, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        self.with(Calculation::Sub, other, true)
    }

    fn __mul__(&self, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        self.with(Calculation::Mul, other, false)
    }

    fn __rmul__(&self, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        self.with(Calculation::Mul, other, true)
    }

    fn __truediv__(&self, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        self.with(Calculation::Div, other, false)
    }

    fn __rtruediv__(&self, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        self.with(Calculation::Div, other, true)
    }

    fn __pow__(
        &self,
        other: &Bound<'_, PyAny>,
        _modulus: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        self.with(Calculation::Pow, other, false)
    }

    fn __rpow__(
        &self,
        other: &Bound<'_, PyAny>,
        _modulus: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        self.with(Calculation::Pow, other, true)
    }
}

/// Adds the classes to the module.
pub fn install(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Size>()?;
    module.add_class::<Number>()
}
