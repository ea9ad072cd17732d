//! What dtypes are, what they can hold, and what they combine to: the Array API's inspection.

use pyo3::prelude::*;
use pyo3::types::PyTuple;

use super::arguments::scalar;
use super::errors::{OrRaise, to_python};
use super::{dtype, tensor};
use crate::dtype::DType;
use crate::error;
use crate::shape::MAX_RANK;

/// Whether a dtype is of a kind.
///
/// A kind is a dtype, or "bool", "signed integer", "unsigned integer", "integral", "real floating",
/// "complex floating" or "numeric", or a tuple of these, any of which may fit.
///
/// >>> wg.isdtype(wg.float16, "real floating"), wg.isdtype(wg.int8, ("bool", wg.int16))
/// (True, False)
#[pyfunction]
fn isdtype(dtype: &Bound<'_, PyAny>, kind: &Bound<'_, PyAny>) -> PyResult<bool> {
    let ty = dtype::extract("isdtype", dtype)?;
    match kind.cast::<PyTuple>() {
        Ok(kinds) => kinds.iter().try_fold(false, |any, kind| Ok(is_kind(ty, &kind)? || any)),
        Err(_) => is_kind(ty, kind),
    }
}

fn is_kind(ty: DType, kind: &Bound<'_, PyAny>) -> PyResult<bool> {
    let name = kind.extract::<String>();
    Ok(match name.as_deref() {
        Ok("bool") => ty == DType::Bool,
        Ok("signed integer") => ty.is_int() && !ty.is_unsigned(),
        Ok("unsigned integer") => ty.is_unsigned(),
        Ok("integral") => ty.is_int(),
        Ok("real floating") => ty.is_float(),
        Ok("complex floating") => false,
        Ok("numeric") => ty != DType::Bool,
        Ok(other) => {
            let error = error::bad_value("isdtype", "unknown kind", format!("got {other:?}"));
            return Err(to_python(kind.py(), error));
        }
        Err(_) => ty == dtype::extract("isdtype", kind)?,
    })
}

/// The dtype of a tensor or of a dtype.
fn dtype_of(op: &str, object: &Bound<'_, PyAny>) -> PyResult<DType> {
    // SAFETY: a live object.
    match unsafe { tensor::downcast(object.as_ptr()) } {
        Some(tensor) => Ok(tensor.with(|value| value.dtype())),
        None => dtype::extract(op, object),
    }
}

fn object(py: Python<'_>, ty: DType) -> PyResult<Py<dtype::PyDType>> {
    let object = dtype::object(py, ty).map(|object| object.clone_ref(py));
    object.ok_or_else(|| to_python(py, error::internal("the dtypes are not ready")))
}

/// The dtype of an operation between tensors, dtypes and Python numbers, of which one is no number.
///
/// Numbers are weak: they raise the class of the others' dtype, never its width.
///
/// >>> wg.result_type(wg.int8, wg.uint8), wg.result_type(wg.float16, 2.0)
/// (wengert.int16, wengert.float16)
#[pyfunction]
#[pyo3(signature = (*arrays_and_dtypes))]
fn result_type(
    py: Python<'_>,
    arrays_and_dtypes: &Bound<'_, PyTuple>,
) -> PyResult<Py<dtype::PyDType>> {
    const OP: &str = "result_type";
    let mut common: Option<DType> = None;
    let mut weak = None;
    for given in arrays_and_dtypes {
        if let Some(number) = scalar(given.as_ptr()) {
            weak = weak.max(Some(number.class()));
            continue;
        }
        let ty = dtype_of(OP, &given)?;
        common = Some(match common {
            None => ty,
            Some(before) => {
                let both = before.promote(ty);
                both.ok_or_else(|| error::no_promotion(OP, before, ty)).or_raise(py)?
            }
        });
    }
    match (common, weak) {
        (None, _) => {
            let what = "at least one tensor or dtype is needed";
            let facts = format!("got {} arguments", arrays_and_dtypes.len());
            Err(to_python(py, error::bad_value(OP, what, facts)))
        }
        (Some(ty), None) => object(py, ty),
        (Some(ty), Some(class)) => object(py, ty.promote_weak(class)),
    }
}

/// Whether promotion takes a dtype (or a tensor's) to another: their common dtype is the other.
///
/// >>> wg.can_cast(wg.int8, wg.int32), wg.can_cast(wg.int32, wg.int8)
/// (True, False)
#[pyfunction]
#[pyo3(signature = (from_, to, /))]
fn can_cast(from_: &Bound<'_, PyAny>, to: &Bound<'_, PyAny>) -> PyResult<bool> {
    let to = dtype::extract("can_cast", to)?;
    Ok(dtype_of("can_cast", from_)?.promote(to) == Some(to))
}

/// The limits of a floating dtype.
#[pyclass(frozen, get_all, module = "wengert")]
struct FloatLimits {
    /// Bits of an element.
    bits: usize,
    /// The distance from 1 to the next larger number.
    eps: f64,
    /// The largest finite number.
    max: f64,
    /// The smallest finite number.
    min: f64,
    /// The smallest positive number with a full significand.
    smallest_normal: f64,
    /// The dtype.
    dtype: Py<dtype::PyDType>,
}

#[pymethods]
impl FloatLimits {
    fn __repr__(&self) -> String {
        let FloatLimits { bits, eps, max, min, smallest_normal, dtype } = self;
        let ty = dtype.get().0;
        format!(
            "finfo(bits={bits}, eps={eps:e}, max={max:e}, min={min:e}, \
             smallest_normal={smallest_normal:e}, dtype={ty})"
        )
    }
}

/// The limits of a floating dtype: `bits`, `eps`, `max`, `min`, `smallest_normal`.
///
/// >>> wg.finfo(wg.float16).max
/// 65504.0
#[pyfunction]
#[pyo3(signature = (dtype, /))]
fn finfo(py: Python<'_>, dtype: &Bound<'_, PyAny>) -> PyResult<FloatLimits> {
    let ty = dtype_of("finfo", dtype)?;
    // Bits of the significand behind its first, and the largest exponent.
    let (significand, exponent) = match ty {
        DType::F16 => (10, 15),
        DType::BF16 => (7, 127),
        DType::F32 => (23, 127),
        DType::F64 => (52, 1023),
        DType::Bool
        | DType::I8
        | DType::I16
        | DType::I32
        | DType::I64
        | DType::U8
        | DType::U16
        | DType::U32
        | DType::U64 => {
            return Err(to_python(py, error::wrong_dtype("finfo", "the argument", ty, "floating")));
        }
    };
    let eps = 2f64.powi(-significand);
    let max = (2.0 - eps) * 2f64.powi(exponent);
    let smallest_normal = 2f64.powi(1 - exponent);
    let bits = ty.size() * 8;
    Ok(FloatLimits { bits, eps, max, min: -max, smallest_normal, dtype: object(py, ty)? })
}

/// The limits of an integer dtype.
#[pyclass(frozen, get_all, module = "wengert")]
struct IntLimits {
    /// Bits of an element.
    bits: usize,
    /// The largest number.
    max: i128,
    /// The smallest number.
    min: i128,
    /// The dtype.
    dtype: Py<dtype::PyDType>,
}

#[pymethods]
impl IntLimits {
    fn __repr__(&self) -> String {
        let IntLimits { bits, max, min, dtype } = self;
        format!("iinfo(bits={bits}, max={max}, min={min}, dtype={})", dtype.get().0)
    }
}

/// The limits of an integer dtype: `bits`, `max`, `min`.
///
/// >>> wg.iinfo(wg.uint8).max
/// 255
#[pyfunction]
#[pyo3(signature = (dtype, /))]
fn iinfo(py: Python<'_>, dtype: &Bound<'_, PyAny>) -> PyResult<IntLimits> {
    let ty = dtype_of("iinfo", dtype)?;
    let Some((min, max)) = ty.int_range() else {
        return Err(to_python(py, error::wrong_dtype("iinfo", "the argument", ty, "an integer")));
    };
    Ok(IntLimits { bits: ty.size() * 8, max, min, dtype: object(py, ty)? })
}

/// Adds the functions, and the most axes a tensor may have, to the module.
pub fn install(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("_MAX_RANK", MAX_RANK)?;
    module.add_function(pyo3::wrap_pyfunction!(isdtype, module)?)?;
    module.add_function(pyo3::wrap_pyfunction!(result_type, module)?)?;
    module.add_function(pyo3::wrap_pyfunction!(can_cast, module)?)?;
    module.add_function(pyo3::wrap_pyfunction!(finfo, module)?)?;
    module.add_function(pyo3::wrap_pyfunction!(iinfo, module)?)
}
