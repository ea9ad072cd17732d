//! Sizes that are known when a captured function runs, as Python objects.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

use pyo3::basic::CompareOp;
use pyo3::prelude::*;

use super::arguments::scalar;
use super::errors::{OrRaise, to_python};
use super::number::calculate;
use crate::dtype::{Numeric, Scalar};
use crate::engine::trace;
use crate::error;
use crate::ops::emit::catch;
use crate::ops::number::{Calculation, Number as Definition};
use crate::shape::{Dim, Keeper, Retained, hint, interned, is_name};

/// A size with a name, or an expression over such sizes.
///
/// `wengert.Dim("batch")` declares one, for `wengert.Spec` and `wengert.placeholder`. While a
/// function is captured, `x.shape` has such sizes where they may differ from call to call: compute
/// with them as with ints. Where Python needs the number (`range(n)`), the size is pinned to it.
#[pyclass(frozen, name = "Dim", module = "wengert")]
pub struct Size(pub Dim, #[expect(dead_code, reason = "it is there to be dropped")] Retained);

/// The size of a Python int that is not negative, or of a size. An int that no size can be is
/// refused.
pub fn dim(op: &str, object: &Bound<'_, PyAny>) -> PyResult<Option<Dim>> {
    if let Ok(size) = object.cast::<Size>() {
        return Ok(Some(size.get().0));
    }
    match scalar(object.as_ptr()) {
        Some(Scalar::Int(n)) if n >= 0 => {
            Dim::checked(n, op, "a size").map(Some).or_raise(object.py())
        }
        Some(Scalar::Uint(n)) => {
            let facts = format!("got {n}");
            let what = format!("a size must be at most {}", Dim::MOST);
            Err(to_python(object.py(), error::bad_value(op, what, facts)))
        }
        Some(Scalar::Bool(b)) => Ok(Some(Dim::new(usize::from(b)))),
        Some(Scalar::Int(_) | Scalar::Float(_)) | None => Ok(None),
    }
}

/// The same, to compare with: no size is as large as an int that none can be.
fn compared(object: &Bound<'_, PyAny>) -> Option<Dim> {
    match scalar(object.as_ptr()) {
        Some(Scalar::Uint(_)) => Some(Dim::new(Dim::MOST)),
        Some(Scalar::Int(n)) => usize::try_from(n).ok().map(Dim::new),
        Some(Scalar::Bool(_) | Scalar::Float(_)) | None => dim("size", object).ok().flatten(),
    }
}

/// The amount of a Python int below zero; refused where no size is that large.
fn below_zero(object: &Bound<'_, PyAny>) -> PyResult<Option<Dim>> {
    match scalar(object.as_ptr()) {
        Some(Scalar::Int(n)) if n < 0 => {
            let amount = i64::try_from(n.unsigned_abs()).unwrap_or(i64::MAX);
            Dim::checked(amount, "size", "a difference").or_raise(object.py()).map(Some)
        }
        _ => Ok(None),
    }
}

/// A size as it is declared: a number, or a named size.
pub fn declared(op: &str, object: &Bound<'_, PyAny>) -> PyResult<Dim> {
    if let Some(dim) = dim(op, object)? {
        return Ok(dim);
    }
    let what = "a size is an int that is not negative, a wengert.Dim or None";
    let facts = format!("got {}", object.repr()?);
    Err(to_python(object.py(), error::bad_value(op, what, facts)))
}

/// Refuses what is no size.
#[pyfunction]
fn _check_size(op: &str, size: &Bound<'_, PyAny>) -> PyResult<()> {
    declared(op, size).map(drop)
}

/// The Python object of a size.
pub fn object(py: Python<'_>, dim: Dim) -> PyResult<Py<PyAny>> {
    match dim.known() {
        Some(n) => Ok(n.into_pyobject(py)?.into_any().unbind()),
        None => Ok(Py::new(py, Size::of(dim))?.into_any()),
    }
}

/// Makes objects that alone keep their sizes, unless a graph or a trace is open.
fn alone<T>(f: impl FnOnce() -> T) -> T {
    let _keeping = Keeper::entered().unwrap_or_else(Keeper::new).enter();
    f()
}

/// The Python object of a size that is worked out.
fn made(py: Python<'_>, f: impl FnOnce() -> Dim) -> PyResult<Py<PyAny>> {
    alone(|| object(py, catch(f).or_raise(py)?))
}

/// What stands for a size in calculations with floats.
pub(super) fn numbered(py: Python<'_>, dim: Dim) -> PyResult<Numeric> {
    catch(|| trace::number(Definition::Size(dim))).or_raise(py)
}

/// The number that a size is now; it is pinned to it.
pub(super) fn pinned(py: Python<'_>, dim: Dim) -> PyResult<usize> {
    catch(|| dim.value()).or_raise(py)
}

impl Size {
    /// The object, which keeps its expression.
    pub(super) fn of(dim: Dim) -> Size {
        Size(dim, Retained::new(dim))
    }

    fn with(
        &self,
        other: &Bound<'_, PyAny>,
        f: impl FnOnce(Dim, Dim) -> Dim,
        how: Calculation,
        reflected: bool,
    ) -> PyResult<Py<PyAny>> {
        let py = other.py();
        if let Some(b) = dim("size", other)? {
            let (a, b) = if reflected { (b, self.0) } else { (self.0, b) };
            return made(py, || f(a, b));
        }
        let number = numbered(other.py(), self.0)?;
        calculate(py, how, number, other, reflected)
    }

    /// `a - b`, which is a size if it is not below zero; else it is Python's, and pins the size.
    fn less(
        &self,
        a: Dim,
        b: Dim,
        how: &str,
        other: &Bound<'_, PyAny>,
        reflected: bool,
    ) -> PyResult<Py<PyAny>> {
        let py = other.py();
        match catch(|| b.is_at_most(a)).or_raise(py)? {
            true => made(py, || a - b),
            false => self.as_int(how, other, reflected),
        }
    }

    /// A division of whole numbers; by anything but a positive size it is Python's, and pins the
    /// size.
    fn divided(
        &self,
        other: &Bound<'_, PyAny>,
        f: impl FnOnce(Dim, Dim) -> Dim,
        how: &str,
        reflected: bool,
    ) -> PyResult<Py<PyAny>> {
        let py = other.py();
        match dim("size", other)? {
            Some(b) if reflected || b.known() != Some(0) => {
                let (a, b) = if reflected { (b, self.0) } else { (self.0, b) };
                made(py, || f(a, b))
            }
            _ => self.as_int(how, other, reflected),
        }
    }

    /// What Python's operator of this name gives for the number, to which the size is pinned.
    fn as_int(&self, name: &str, other: &Bound<'_, PyAny>, reflected: bool) -> PyResult<Py<PyAny>> {
        let py = other.py();
        let own = pinned(py, self.0)?.into_pyobject(py)?.into_any();
        let (a, b) = if reflected { (other, &own) } else { (&own, other) };
        py.import("operator")?.call_method1(name, (a, b)).map(Bound::unbind)
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
        Ok(alone(|| Size::of(Dim::named(name))))
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
        let Some(b) = compared(other) else { return Ok(py.NotImplemented()) };
        let a = self.0;
        // What is equal suffices where nobody knows a size; which is larger is a question.
        let unknown = [a, b].into_iter().find(|&size| hint(size).is_none());
        let is_order = !matches!(op, CompareOp::Eq | CompareOp::Ne);
        if let Some(size) = unknown.filter(|_| is_order && !a.same(b)) {
            return Err(to_python(py, error::unknown_size("size", size)));
        }
        let truth = catch(|| match op {
            CompareOp::Eq => a.equals(b),
            CompareOp::Ne => !a.equals(b),
            CompareOp::Lt => a.is_below(b),
            CompareOp::Le => a.is_at_most(b),
            CompareOp::Gt => b.is_below(a),
            CompareOp::Ge => b.is_at_most(a),
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
        catch(|| !self.0.equals(0)).or_raise(py)
    }

    fn __add__(&self, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        match below_zero(other)? {
            Some(b) => self.less(self.0, b, "add", other, false),
            None => self.with(other, |a, b| a + b, Calculation::Add, false),
        }
    }

    fn __radd__(&self, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        self.__add__(other)
    }

    fn __sub__(&self, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        match (dim("size", other)?, below_zero(other)?) {
            (Some(b), _) => self.less(self.0, b, "sub", other, false),
            (None, Some(b)) => made(other.py(), || self.0 + b),
            (None, None) => self.with(other, |a, b| a - b, Calculation::Sub, false),
        }
    }

    fn __rsub__(&self, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        match dim("size", other)? {
            Some(b) => self.less(b, self.0, "sub", other, true),
            None if below_zero(other)?.is_some() => self.as_int("sub", other, true),
            None => self.with(other, |a, b| a - b, Calculation::Sub, true),
        }
    }

    fn __mul__(&self, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        match below_zero(other)? {
            Some(_) => self.as_int("mul", other, false),
            None => self.with(other, |a, b| a * b, Calculation::Mul, false),
        }
    }

    fn __rmul__(&self, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        self.__mul__(other)
    }

    fn __floordiv__(&self, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        self.divided(other, |a, b| a / b, "floordiv", false)
    }

    fn __rfloordiv__(&self, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        self.divided(other, |a, b| a / b, "floordiv", true)
    }

    fn __mod__(&self, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        self.divided(other, |a, b| a % b, "mod", false)
    }

    fn __rmod__(&self, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        self.divided(other, |a, b| a % b, "mod", true)
    }

    fn __divmod__(&self, other: &Bound<'_, PyAny>) -> PyResult<(Py<PyAny>, Py<PyAny>)> {
        Ok((self.__floordiv__(other)?, self.__mod__(other)?))
    }

    fn __rdivmod__(&self, other: &Bound<'_, PyAny>) -> PyResult<(Py<PyAny>, Py<PyAny>)> {
        Ok((self.__rfloordiv__(other)?, self.__rmod__(other)?))
    }

    /// A square, a cube … is a size; a root is a number; any other power pins the size.
    fn __pow__(
        &self,
        other: &Bound<'_, PyAny>,
        _modulus: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        let py = other.py();
        match scalar(other.as_ptr()) {
            Some(Scalar::Int(n @ 1..=8)) => {
                made(py, || (1..n).fold(self.0, |power, _| power * self.0))
            }
            Some(Scalar::Float(_)) => {
                let number = numbered(other.py(), self.0)?;
                calculate(py, Calculation::Pow, number, other, false)
            }
            _ => self.as_int("pow", other, false),
        }
    }

    fn __rpow__(
        &self,
        other: &Bound<'_, PyAny>,
        _modulus: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        self.as_int("pow", other, true)
    }

    fn __neg__(&self, py: Python<'_>) -> PyResult<i64> {
        Ok(-(pinned(py, self.0)? as i64))
    }

    fn __pos__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __abs__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    #[pyo3(signature = (digits=None))]
    fn __round__<'py>(slf: PyRef<'py, Self>, digits: Option<i64>) -> PyRef<'py, Self> {
        let _ = digits;
        slf
    }

    fn __and__(&self, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        self.as_int("and_", other, false)
    }

    fn __rand__(&self, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        self.as_int("and_", other, true)
    }

    fn __or__(&self, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        self.as_int("or_", other, false)
    }

    fn __ror__(&self, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        self.as_int("or_", other, true)
    }

    fn __xor__(&self, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        self.as_int("xor", other, false)
    }

    fn __rxor__(&self, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        self.as_int("xor", other, true)
    }

    fn __lshift__(&self, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        self.as_int("lshift", other, false)
    }

    fn __rlshift__(&self, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        self.as_int("lshift", other, true)
    }

    fn __rshift__(&self, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        self.as_int("rshift", other, false)
    }

    fn __rrshift__(&self, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        self.as_int("rshift", other, true)
    }

    fn __invert__(&self, py: Python<'_>) -> PyResult<i64> {
        Ok(!(pinned(py, self.0)? as i64))
    }

    fn __truediv__(&self, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        let number = numbered(other.py(), self.0)?;
        calculate(other.py(), Calculation::Div, number, other, false)
    }

    fn __rtruediv__(&self, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        let number = numbered(other.py(), self.0)?;
        calculate(other.py(), Calculation::Div, number, other, true)
    }
}

/// How many expressions of sizes there are.
#[pyfunction]
fn _interned_sizes() -> usize {
    interned()
}

/// Adds the class and its functions to the module.
pub fn install(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Size>()?;
    module.add_function(wrap_pyfunction!(_check_size, module)?)?;
    module.add_function(wrap_pyfunction!(_interned_sizes, module)?)
}
