//! Operators: arithmetic, in place too, and comparisons.

use std::os::raw::c_int;

use pyo3::ffi;
use pyo3::prelude::*;

use super::{DIVIDE, MATMUL, Object, assign, check_leaf_update, not_implemented, operand};
use crate::engine::autocast;
use crate::engine::eager::apply;
use crate::engine::tape::Operand;
use crate::error;
use crate::ops::elementwise::{Elementwise, arithmetic, bits, comparison};
use crate::py::arguments::{Held, place};
use crate::py::elementwise::{direct, is_small, map_direct};
use crate::py::errors::{OrRaise, to_python};
use crate::py::functions::{guard, map_held};
use crate::py::number;
use crate::py::tensor::{self, TensorObject};

/// The binary operators, by the number their slots are instantiated with.
static BINARY: [&Elementwise; 11] = [
    &arithmetic::add,
    &arithmetic::subtract,
    &arithmetic::multiply,
    &arithmetic::quotient,
    &arithmetic::floor_divide,
    &arithmetic::remainder,
    &bits::bitwise_and,
    &bits::bitwise_or,
    &bits::bitwise_xor,
    &bits::bitwise_left_shift,
    &bits::bitwise_right_shift,
];
const QUOTIENT: usize = 3;

/// From CPython 3.14 on the stack borrows from variables, and reference counts say nothing.
pub static STACK_BORROWS: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);

pub(super) unsafe extern "C" fn binary<const I: usize>(a: Object, b: Object) -> Object {
    guard(|py| {
        // SAFETY: live operands of an operator.
        if let Some(result) = unsafe { map_direct(py, BINARY[I], [a, b])? } {
            return Ok(result);
        }
        let (Some(x), Some(y)) = (operand(py, a)?, operand(py, b)?) else {
            return Ok(not_implemented());
        };
        let mut held = [x, y];
        if I == QUOTIENT {
            place(py, None, &mut held)?;
            return DIVIDE.call(py, held);
        }
        number::settle(py, BINARY[I].name, None, &mut held, |_| false)?;
        map_held(py, BINARY[I], &held)
    })
}

/// An operand as it is beside a tensor that is updated. The tensor's value is held only where the
/// operand is a number of a trace: its memory is to be used again.
fn beside(py: Python<'_>, op: &str, this: &TensorObject, other: Held) -> PyResult<Held> {
    let is_number = matches!(&other, Held::Scalar(x) if x.told().is_some());
    if !is_number && !matches!(&other, Held::Data(_)) {
        return Ok(other);
    }
    let mut held = [Held::Value(this.value()), other];
    number::settle(py, op, None, &mut held, |_| false)?;
    let [_, other] = held;
    Ok(other)
}

pub(super) unsafe extern "C" fn in_place<const I: usize>(a: Object, b: Object) -> Object {
    guard(|py| {
        // SAFETY: the left operand of an in-place slot is a tensor.
        let Some(this) = (unsafe { tensor::downcast(a) }) else { return Ok(not_implemented()) };
        let Some(other) = operand(py, b)? else { return Ok(not_implemented()) };
        check_leaf_update(py, BINARY[I].name, this)?;
        let divides_ints = I == QUOTIENT && !this.with(|v| v.dtype().is_float());
        if divides_ints {
            let message = error::dtype_mismatch(
                "divide",
                this.with(|v| v.dtype()),
                "float32 as the result in place",
            );
            return Err(to_python(py, message));
        }
        let other = beside(py, BINARY[I].name, this, other)?;
        let updated = this.with(|value| apply::map_in_place(BINARY[I], value, &[other.operand()]));
        if let Some(value) = updated.or_raise(py)? {
            assign(py, BINARY[I].name, this, value)?;
        }
        // SAFETY: the result of an in-place operator is its left operand.
        unsafe { ffi::Py_INCREF(a) };
        Ok(a)
    })
}

pub(super) unsafe extern "C" fn power(a: Object, b: Object, _modulus: Object) -> Object {
    guard(|py| {
        let (Some(x), Some(y)) = (operand(py, a)?, operand(py, b)?) else {
            return Ok(not_implemented());
        };
        let mut held = [x, y];
        number::settle(py, arithmetic::pow.name, None, &mut held, |_| false)?;
        map_held(py, &arithmetic::pow, &held)
    })
}

pub(super) unsafe extern "C" fn matmul(a: Object, b: Object) -> Object {
    guard(|py| {
        // SAFETY: live operands of an operator; a product runs no Python code.
        if let (Some(Operand::Value(x)), Some(Operand::Value(y))) =
            unsafe { (direct(a), direct(b)) }
            && is_small(x)
            && is_small(y)
            && autocast::current().is_none()
            && let Some(product) = apply::small_product(x, y).or_raise(py)?
        {
            return Ok(tensor::new_object(product));
        }
        let (Some(x), Some(y)) = (operand(py, a)?, operand(py, b)?) else {
            return Ok(not_implemented());
        };
        let mut held = [x, y];
        place(py, None, &mut held)?;
        MATMUL.call(py, held)
    })
}

pub(super) unsafe extern "C" fn negative(a: Object) -> Object {
    guard(|py| unary(py, &arithmetic::negative, a))
}
pub(super) unsafe extern "C" fn absolute(a: Object) -> Object {
    guard(|py| unary(py, &arithmetic::abs, a))
}
pub(super) unsafe extern "C" fn invert(a: Object) -> Object {
    guard(|py| unary(py, &bits::bitwise_invert, a))
}
pub(super) unsafe extern "C" fn positive(a: Object) -> Object {
    // SAFETY: a live object.
    unsafe { ffi::Py_INCREF(a) };
    a
}

fn unary(py: Python<'_>, def: &'static Elementwise, a: Object) -> PyResult<Object> {
    // SAFETY: a live operand of an operator.
    if let Some(result) = unsafe { map_direct(py, def, [a])? } {
        return Ok(result);
    }
    let Some(x) = operand(py, a)? else { return Ok(not_implemented()) };
    map_held(py, def, &[x])
}

pub(super) unsafe extern "C" fn compare(a: Object, b: Object, op: c_int) -> Object {
    guard(|py| {
        let def: &'static Elementwise = match op {
            ffi::Py_LT => &comparison::less,
            ffi::Py_LE => &comparison::less_equal,
            ffi::Py_EQ => &comparison::equal,
            ffi::Py_NE => &comparison::not_equal,
            ffi::Py_GT => &comparison::greater,
            _ => &comparison::greater_equal,
        };
        // SAFETY: live operands of an operator.
        if let Some(result) = unsafe { map_direct(py, def, [a, b])? } {
            return Ok(result);
        }
        let (Some(x), Some(y)) = (operand(py, a)?, operand(py, b)?) else {
            return Ok(not_implemented());
        };
        let mut held = [x, y];
        number::settle(py, def.name, None, &mut held, |_| false)?;
        map_held(py, def, &held)
    })
}
