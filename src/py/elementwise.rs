//! Elementwise calls on operands that are looked at where they are: nothing is cloned on the way.

use pyo3::ffi;
use pyo3::prelude::*;

use super::arguments::scalar;
use super::errors::OrRaise;
use super::functions::DETACH_ABOVE;
use super::tensor::{self, TensorObject};
use crate::dtype::{Numeric, Scalar};
use crate::engine::eager::apply::{self, Direct};
use crate::engine::tape::{Operand, Value};
use crate::engine::trace;
use crate::ops::elementwise::Elementwise;

/// An operand that is looked at where it is: a number, or a tensor with a value of its own in host
/// memory, outside all traces.
///
/// # Safety
/// A live object, an attached thread, and no Python code as long as the operand lives.
#[inline(always)]
pub unsafe fn direct<'a>(object: *mut ffi::PyObject) -> Option<Operand<'a>> {
    // SAFETY: as the caller's.
    if trace::active() { None } else { unsafe { direct_at_hand(object) } }
}

/// The same, where the caller has seen that no trace is open.
///
/// # Safety
/// As for [`direct`].
#[inline(always)]
pub unsafe fn direct_at_hand<'a>(object: *mut ffi::PyObject) -> Option<Operand<'a>> {
    // SAFETY: as the caller's.
    unsafe {
        if ffi::Py_TYPE(object) == tensor::type_object() {
            return (*object.cast::<TensorObject>()).own_at_hand().map(Operand::Value);
        }
    }
    match scalar(object) {
        Some(value) => Some(Operand::Scalar(value.into())),
        // SAFETY: as the caller's.
        None => unsafe { tensor::downcast(object)?.own_at_hand().map(Operand::Value) },
    }
}

/// Whether a value is too small for other threads of Python to be let run meanwhile.
pub fn is_small(value: &Value) -> bool {
    let shape = value.shape();
    !shape.is_known() || shape.count() <= DETACH_ABOVE / 2
}

/// The hottest path of all: an elementwise op on tensors of moderate size that are looked at where
/// they are, and numbers. `None`, with nothing done, of others.
///
/// # Safety
/// Live objects, an attached thread.
#[inline(never)]
pub unsafe fn map_direct<const N: usize>(
    py: Python<'_>,
    def: &'static Elementwise,
    objects: [*mut ffi::PyObject; N],
) -> PyResult<Option<*mut ffi::PyObject>> {
    if trace::active() {
        return Ok(None);
    }
    tensor::prepare(py)?;
    let mut direct = Direct::<N>::default();
    for (k, &object) in objects.iter().enumerate() {
        // SAFETY: as the caller's; neither a kernel nor the tape runs Python code. Floats are taken
        // by themselves: what may be any number is put together from pieces.
        unsafe {
            if ffi::PyFloat_CheckExact(object) != 0 {
                direct.set_number(k, Scalar::Float(ffi::PyFloat_AS_DOUBLE(object)));
                continue;
            }
            match direct_at_hand(object) {
                Some(Operand::Value(value)) => direct.set_value(k, value),
                Some(Operand::Scalar(Numeric::Known(number))) => direct.set_number(k, number),
                Some(Operand::Scalar(Numeric::Told(_))) | None => return Ok(None),
            }
        }
    }
    if let Some(result) = apply::map_few(def, &direct, tensor::new_fresh).or_raise(py)? {
        return Ok(Some(result));
    }
    // What the op takes no tensors of, as a quotient of integers, is another op's business.
    let is_taken = |operand: &Operand<'_>| match operand {
        Operand::Value(value) => is_small(value) && def.classes.contains(value.dtype().class()),
        Operand::Scalar(_) => true,
    };
    if !direct.operands.iter().all(is_taken) {
        return Ok(None);
    }
    Ok(Some(tensor::new_object(apply::map(def, &direct.operands).or_raise(py)?)))
}
