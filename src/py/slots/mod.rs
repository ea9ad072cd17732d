//! The type's slots and attributes: operators, indexing, conversions to Python numbers.

use std::os::raw::{c_int, c_void};

use pyo3::ffi;
use pyo3::prelude::*;
use smallvec::SmallVec;

use super::arguments::{Held, Parsed, scalar};
use super::errors::{OrRaise, to_python};
use super::number;
use super::tensor::{self, TensorObject};
use super::{buffer, convert};
use crate::engine::executors;
use crate::engine::tape::{self, History, Value};
use crate::error;
use crate::fork::Lazy;
use crate::ops::declare::{Attr, parse_default};
use crate::ops::{Entry, table};

mod attributes;
mod indexing;
mod numbers;
mod operators;

pub use attributes::{_keep_gradients, attributes};
use indexing::{get_by_position, get_item, set_item};
use numbers::{hash, length, to_float, to_index, to_int, truth};
pub use operators::STACK_BORROWS;
use operators::{absolute, binary, compare, in_place, invert, matmul, negative, positive, power};

type Object = *mut ffi::PyObject;

/// An operand of an operator; `None` leaves the operator to the other side.
fn operand(py: Python<'_>, object: Object) -> PyResult<Option<Held>> {
    // SAFETY: operators get live objects.
    if let Some(tensor) = unsafe { tensor::downcast(object) } {
        return Ok(Some(Held::Value(tensor.value())));
    }
    if let Some(scalar) = scalar(object) {
        return Ok(Some(Held::Scalar(scalar.into())));
    }
    // Arrays join in; lists, strings and strangers do not.
    // SAFETY: as above.
    let any = unsafe { Bound::from_borrowed_ptr(py, object) };
    if let Some(number) = number::operand(&any)? {
        return Ok(Some(Held::Scalar(number)));
    }
    let array =
        any.hasattr("__array__").unwrap_or(false) || any.hasattr("__dlpack__").unwrap_or(false);
    if !array {
        return if convert::is_complex(&any) {
            Err(convert::refuse("asarray", &any))
        } else {
            Ok(None)
        };
    }
    convert::from_object("asarray", &any, None)
}

fn not_implemented() -> Object {
    // SAFETY: a new reference to an immortal object.
    unsafe {
        let object = ffi::Py_NotImplemented();
        ffi::Py_INCREF(object);
        object
    }
}

/// A function of the table that an operator stands for, with what it is called with beside
/// operands. It is looked for once.
struct Named {
    entry: Entry,
    attributes: SmallVec<[Attr; 8]>,
}

static DIVIDE: Lazy<Named> = Lazy::new(|| Named::of("divide", 2));
static MATMUL: Lazy<Named> = Lazy::new(|| Named::of("matmul", 2));
static TRANSPOSE: Lazy<Named> = Lazy::new(|| Named::of("transpose", 1));
static MATRIX_TRANSPOSE: Lazy<Named> = Lazy::new(|| Named::of("matrix_transpose", 1));

impl Named {
    fn of(name: &str, operands: usize) -> Named {
        let named = |e: &&Entry| e.name() == name && e.namespace().is_empty();
        let found = table().iter().find(named);
        let entry = *found.unwrap_or_else(|| unreachable!("the table has no {name}"));
        let attributes = entry.params().iter().enumerate().map(|(i, p)| match p.default {
            _ if i < operands => Attr::Operand,
            Some(default) => parse_default(default),
            None => Attr::None,
        });
        Named { entry, attributes: attributes.collect() }
    }

    fn call<const N: usize>(&self, py: Python<'_>, held: [Held; N]) -> PyResult<Object> {
        let attributes = self.attributes.clone();
        let operands = held.into_iter().collect();
        super::functions::call(py, self.entry, &Parsed { attributes, operands, device: None })
    }
}

/// Refuses to change a leaf that is being recorded.
pub fn check_leaf_update(py: Python<'_>, op: &str, this: &TensorObject) -> PyResult<()> {
    let is_leaf = this.with(|value| matches!(value.history, History::Leaf(_)));
    if is_leaf && tape::recording() {
        return Err(to_python(py, error::leaf_update(op)));
    }
    Ok(())
}

/// Gives a handle a new value of the same shape and dtype; a leaf stays that leaf.
pub fn assign(py: Python<'_>, op: &str, this: &TensorObject, mut value: Value) -> PyResult<()> {
    let (shape, dtype) = this.with(|old| (old.shape().clone(), old.dtype()));
    if !value.shape().equals(&shape) {
        let facts = format!("the result has shape {}, the tensor {shape}", value.shape());
        return Err(to_python(py, error::bad_shape(op, "an update keeps the shape", facts)));
    }
    if value.dtype() != dtype {
        return Err(to_python(
            py,
            error::dtype_mismatch(op, format!("{dtype} of the tensor"), value.dtype()),
        ));
    }
    let own = this.with(|old| old.array.clone());
    executors::common(op, [&own, &value.array]).or_raise(py)?;
    drop(own);
    let old = this.update(|slot| {
        if let History::Leaf(leaf) = &slot.history {
            value.history = History::Leaf(leaf.clone());
        }
        std::mem::replace(slot, value)
    });
    drop(old);
    Ok(())
}

/// The slots of the type.
pub fn slots() -> Vec<(c_int, *mut c_void)> {
    use ffi::*;
    let binary_slots: [(c_int, c_int, binaryfunc, binaryfunc); 11] = [
        (Py_nb_add, Py_nb_inplace_add, binary::<0>, in_place::<0>),
        (Py_nb_subtract, Py_nb_inplace_subtract, binary::<1>, in_place::<1>),
        (Py_nb_multiply, Py_nb_inplace_multiply, binary::<2>, in_place::<2>),
        (Py_nb_true_divide, Py_nb_inplace_true_divide, binary::<3>, in_place::<3>),
        (Py_nb_floor_divide, Py_nb_inplace_floor_divide, binary::<4>, in_place::<4>),
        (Py_nb_remainder, Py_nb_inplace_remainder, binary::<5>, in_place::<5>),
        (Py_nb_and, Py_nb_inplace_and, binary::<6>, in_place::<6>),
        (Py_nb_or, Py_nb_inplace_or, binary::<7>, in_place::<7>),
        (Py_nb_xor, Py_nb_inplace_xor, binary::<8>, in_place::<8>),
        (Py_nb_lshift, Py_nb_inplace_lshift, binary::<9>, in_place::<9>),
        (Py_nb_rshift, Py_nb_inplace_rshift, binary::<10>, in_place::<10>),
    ];
    let mut slots: Vec<(c_int, *mut c_void)> = Vec::new();
    for (plain, updating, f, g) in binary_slots {
        slots.push((plain, f as *mut c_void));
        slots.push((updating, g as *mut c_void));
    }
    slots.extend([
        (Py_nb_power, power as *mut c_void),
        (Py_nb_matrix_multiply, matmul as *mut c_void),
        (Py_nb_negative, negative as *mut c_void),
        (Py_nb_positive, positive as *mut c_void),
        (Py_nb_absolute, absolute as *mut c_void),
        (Py_nb_invert, invert as *mut c_void),
        (Py_nb_bool, truth as *mut c_void),
        (Py_nb_float, to_float as *mut c_void),
        (Py_nb_int, to_int as *mut c_void),
        (Py_nb_index, to_index as *mut c_void),
        (Py_tp_richcompare, compare as *mut c_void),
        (Py_tp_hash, hash as *mut c_void),
        (Py_mp_length, length as *mut c_void),
        (Py_mp_subscript, get_item as *mut c_void),
        (Py_mp_ass_subscript, set_item as *mut c_void),
        (Py_sq_length, length as *mut c_void),
        (Py_sq_item, get_by_position as *mut c_void),
        (Py_bf_getbuffer, buffer::get_buffer as *mut c_void),
        (Py_bf_releasebuffer, buffer::release_buffer as *mut c_void),
    ]);
    slots
}
