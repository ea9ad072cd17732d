//! Numbers that are known when a captured function runs, as Python objects; and what stands for
//! sizes and numbers where tensors are computed with.

use std::sync::Arc;

use pyo3::basic::CompareOp;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyFloat, PyString, PyTuple};

use super::arguments::{Held, place, scalar};
use super::errors::{OrRaise, to_python};
use super::size::{Size, numbered, pinned};
use super::tensor;
use crate::device::{self, Device};
use crate::dtype::{DType, Numeric, Scalar};
use crate::engine::tape::Value;
use crate::engine::trace;
use crate::error;
use crate::ops::emit::catch;
use crate::ops::number::{Calculation, Number as Definition, admit_size};

/// A float that is given when a captured function runs. Compute with it as with a float; where
/// Python needs its value, the trace holds for that value only.
#[pyclass(frozen, module = "wengert")]
pub struct Number {
    /// Its place among the numbers of the trace
    index: u32,
    trace: Arc<trace::Trace>,
}

impl Number {
    /// A number of a trace.
    pub fn new(index: u32, trace: Arc<trace::Trace>) -> Number {
        Number { index, trace }
    }
}

/// A number as an operand: what stands for it, if the object is one.
pub fn operand(object: &Bound<'_, PyAny>) -> PyResult<Option<Numeric>> {
    if let Ok(size) = object.cast::<Size>() {
        return numbered(object.py(), size.get().0).map(Some);
    }
    let Ok(number) = object.cast::<Number>() else { return Ok(None) };
    let number = number.get();
    match trace::speaks_of(&number.trace) {
        true => Ok(Some(Numeric::Told(number.index))),
        false => number.look(object.py()).map(|now| Some(now.into())),
    }
}

/// What a size or a number is as a tensor on a device, which is computed when the function runs;
/// `None` for other objects. A size is int64 before it is another integer, and numbers are rounded
/// once, so devices without float64 compute both.
pub fn as_tensor(
    op: &str,
    object: &Bound<'_, PyAny>,
    dtype: Option<DType>,
    device: Device,
) -> PyResult<Option<Value>> {
    let size = object.cast::<Size>().ok().map(|size| size.get().0);
    let is_size = size.is_some();
    if !is_size && object.cast::<Number>().is_err() {
        return Ok(None);
    }
    let py = object.py();
    let core = py.import("wengert._core")?;
    let wanted = dtype.unwrap_or(if is_size { DType::I64 } else { DType::F32 });
    if let Some(size) = size {
        catch(|| admit_size(op, size, wanted)).and_then(|admitted| admitted).or_raise(py)?;
    }
    let of = |dtype: DType| -> PyResult<_> {
        let keywords = [("dtype", core.getattr(dtype.name())?)].into_py_dict(py)?;
        keywords.set_item("device", device.to_string())?;
        Ok(keywords)
    };
    let shape = PyTuple::empty(py);
    let y = match is_size && !wanted.is_float() {
        true => core.call_method("full", (shape, object), Some(&of(DType::I64)?))?,
        false => {
            let float = if wanted.is_float() { wanted } else { DType::F64 };
            core.call_method("ones", (shape,), Some(&of(float)?))?.mul(object)?
        }
    };
    let y = y.call_method1("astype", (core.getattr(wanted.name())?,))?;
    tensor::handle("asarray", &y)?.try_value().or_raise(py).map(Some)
}

/// Puts operands of `op` where their device is, that of the tensors beside them if none is said.
/// Beside integers a size is an integer, not a float: a tensor of their dtype, or, where a parameter
/// takes numbers only, the int that it is now.
#[inline]
pub fn settle(
    py: Python<'_>,
    op: &str,
    device: Option<Device>,
    held: &mut [Held],
    takes_number: impl Fn(usize) -> bool,
) -> PyResult<()> {
    let (mut has_data, mut is_open) = (false, false);
    for x in held.iter() {
        match x {
            Held::Value(_) => {}
            Held::Data(_) => has_data = true,
            Held::Scalar(number) => is_open |= number.told().is_some(),
        }
    }
    if has_data || device.is_some() {
        place(py, device, held)?;
    }
    if is_open { settle_open(py, op, held, takes_number) } else { Ok(()) }
}

#[cold]
fn settle_open(
    py: Python<'_>,
    op: &str,
    held: &mut [Held],
    takes_number: impl Fn(usize) -> bool,
) -> PyResult<()> {
    let mut dtype: Option<DType> = None;
    for x in held.iter() {
        let (Held::Value(value) | Held::Data(value)) = x else { continue };
        match value.dtype() {
            DType::F16 | DType::BF16 | DType::F32 | DType::F64 => return Ok(()),
            DType::Bool => {}
            other @ (DType::I8
            | DType::I16
            | DType::I32
            | DType::I64
            | DType::U8
            | DType::U16
            | DType::U32
            | DType::U64) => dtype = dtype.map_or(Some(other), |so_far| so_far.promote(other)),
        }
    }
    let beside = held.iter().find_map(|x| match x {
        Held::Value(value) | Held::Data(value) => Some(value.device()),
        Held::Scalar(_) => None,
    });
    for (i, x) in held.iter_mut().enumerate() {
        let Held::Scalar(number) = x else { continue };
        let Some(dim) = trace::size_of(*number) else { continue };
        // Formulas of numbers alone know sizes themselves.
        if takes_number(i) && beside.is_none() {
            continue;
        }
        *x = match takes_number(i) {
            true => Held::Scalar(Scalar::Int(pinned(py, dim)? as i64).into()),
            false => {
                let (size, on) = (Bound::new(py, Size::of(dim))?, beside);
                match as_tensor(op, size.as_any(), dtype, on.unwrap_or_else(device::current))? {
                    Some(value) => Held::Data(value),
                    None => continue,
                }
            }
        };
    }
    Ok(())
}

/// Arithmetic of a number and a Python number.
pub(super) fn calculate(
    py: Python<'_>,
    how: Calculation,
    number: Numeric,
    other: &Bound<'_, PyAny>,
    reflected: bool,
) -> PyResult<Py<PyAny>> {
    let other = match operand(other)? {
        Some(other) => Some(other),
        None => scalar(other.as_ptr()).map(Numeric::from),
    };
    let Some(other) = other else { return Ok(py.NotImplemented()) };
    let Some(trace) = trace::top() else {
        return Err(PyTypeError::new_err("a size that is no number has no arithmetic here"));
    };
    let (a, b) = if reflected { (other, number) } else { (number, other) };
    let (a, b) = (a.as_float(), b.as_float());
    let value = catch(|| trace::number(Definition::Calculated(how, [a, b]))).or_raise(py)?;
    match value {
        Numeric::Told(index) => Ok(Py::new(py, Number { index, trace })?.into_any()),
        Numeric::Known(value) => Ok(value.as_f64().into_pyobject(py)?.into_any().unbind()),
    }
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
        let now = catch(|| self.trace.look(self.index)).and_then(|now| now).or_raise(py)?;
        Ok(now.as_f64())
    }

    fn with(
        &self,
        how: Calculation,
        other: &Bound<'_, PyAny>,
        reflected: bool,
    ) -> PyResult<Py<PyAny>> {
        let own = Bound::new(other.py(), Number { index: self.index, trace: self.trace.clone() })?;
        let Some(value) = operand(own.as_any())? else { return Ok(other.py().NotImplemented()) };
        calculate(other.py(), how, value, other, reflected)
    }

    /// A method of the float, which makes the trace depend on its value.
    fn of_float(&self, py: Python<'_>, name: &str) -> PyResult<Py<PyAny>> {
        self.look(py)?.into_pyobject(py)?.call_method0(name).map(Bound::unbind)
    }

    /// What Python's operator of this name gives for the float; tensors say what they do with it.
    fn as_float(
        &self,
        name: &str,
        other: &Bound<'_, PyAny>,
        reflected: bool,
    ) -> PyResult<Py<PyAny>> {
        let py = other.py();
        let own = self.look(py)?.into_pyobject(py)?.into_any();
        let (a, b) = if reflected { (other, &own) } else { (&own, other) };
        py.import("operator")?.call_method1(name, (a, b)).map(Bound::unbind)
    }
}

#[pymethods]
impl Number {
    fn __repr__(&self) -> String {
        "a number given when the function runs".into()
    }

    /// Whatever else a float can do: it looks at the value.
    fn __getattr__<'py>(
        slf: PyRef<'py, Self>,
        name: &Bound<'py, PyString>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        // A name that no float has must not make the trace depend on the value.
        py.get_type::<PyFloat>().getattr(name)?;
        slf.look(py)?.into_pyobject(py)?.getattr(name)
    }

    fn __abs__(&self, py: Python<'_>) -> PyResult<f64> {
        Ok(self.look(py)?.abs())
    }

    fn __pos__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    #[pyo3(signature = (digits=None))]
    fn __round__(&self, py: Python<'_>, digits: Option<Py<PyAny>>) -> PyResult<Py<PyAny>> {
        let now = self.look(py)?.into_pyobject(py)?;
        let rounded = match digits {
            None => now.call_method0("__round__")?,
            Some(digits) => now.call_method1("__round__", (digits,))?,
        };
        Ok(rounded.unbind())
    }

    fn __trunc__(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.of_float(py, "__trunc__")
    }

    fn __floor__(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.of_float(py, "__floor__")
    }

    fn __ceil__(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.of_float(py, "__ceil__")
    }

    fn __floordiv__(&self, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        self.as_float("floordiv", other, false)
    }

    fn __rfloordiv__(&self, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        self.as_float("floordiv", other, true)
    }

    fn __mod__(&self, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        self.as_float("mod", other, false)
    }

    fn __rmod__(&self, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        self.as_float("mod", other, true)
    }

    fn __divmod__(&self, other: &Bound<'_, PyAny>) -> PyResult<(Py<PyAny>, Py<PyAny>)> {
        Ok((self.__floordiv__(other)?, self.__mod__(other)?))
    }

    fn __format__(&self, py: Python<'_>, how: &str) -> PyResult<String> {
        self.look(py)?.into_pyobject(py)?.call_method1("__format__", (how,))?.extract()
    }

    fn __float__(&self, py: Python<'_>) -> PyResult<f64> {
        self.look(py)
    }

    fn __int__(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.of_float(py, "__int__")
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

/// Adds the class to the module.
pub fn install(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Number>()
}
