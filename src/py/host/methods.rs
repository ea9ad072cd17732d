//! The methods of `Tensor` that are no ops.

use std::os::raw::c_int;
use std::ptr::null_mut;

use pyo3::ffi;
use pyo3::prelude::*;

use super::backward::{BACKWARD_DOC, run_backward};
use crate::array::Where;
use crate::engine::eager::apply::apply;
use crate::engine::executors;
use crate::engine::tape::{self, History, Operand, Value};
use crate::engine::trace;
use crate::ops::elementwise::arithmetic;
use crate::ops::op::Op;
use crate::py::arguments::leak;
use crate::py::convert;
use crate::py::errors::OrRaise;
use crate::py::functions::guard;
use crate::py::slots::{assign, check_leaf_update};
use crate::py::tensor::{self};

type Object = *mut ffi::PyObject;

unsafe extern "C" fn item(a: Object, _: Object) -> Object {
    guard(|py| {
        // SAFETY: the descriptor checked that this is a tensor.
        let Some(this) = (unsafe { tensor::downcast(a) }) else { return Ok(null_mut()) };
        Ok(convert::item(py, "item", &this.value().array)?.into_ptr())
    })
}

unsafe extern "C" fn tolist(a: Object, _: Object) -> Object {
    guard(|py| {
        // SAFETY: as above.
        let Some(this) = (unsafe { tensor::downcast(a) }) else { return Ok(null_mut()) };
        Ok(convert::to_list(py, &this.value().array)?.into_ptr())
    })
}

unsafe extern "C" fn detach(a: Object, _: Object) -> Object {
    guard(|py| {
        // SAFETY: as above.
        let Some(this) = (unsafe { tensor::downcast(a) }) else { return Ok(null_mut()) };
        let value = this.value();
        // In a trace the cut is a node, for gradients that are those of its graph.
        let cuts = trace::is_traced(&value.array) && value.dtype().is_float();
        if cuts && (value.requires_grad() || trace::cuts(&value.array)) {
            let op = Op::Map(&arithmetic::stop_gradient);
            let cut = apply(op, &[Operand::Value(&value)], false);
            return cut.or_raise(py).map(tensor::new_object);
        }
        Ok(tensor::new_object(Value::plain(value.array)))
    })
}

unsafe extern "C" fn realize(a: Object, _: Object) -> Object {
    guard(|py| {
        // SAFETY: as above.
        let Some(this) = (unsafe { tensor::downcast(a) }) else { return Ok(null_mut()) };
        let array = this.value().array;
        match array.data.place() {
            Where::Host(_) => drop(tensor::looked_at(py, array)?),
            Where::Device(_) => {
                let device = array.device();
                drop(array);
                py.detach(|| executors::synchronize(Some(device))).or_raise(py)?;
            }
            // A trace computes nothing, and what a call of this thread writes is not there.
            Where::Traced(_) | Where::Busy(_) => {}
        }
        // SAFETY: a live object.
        unsafe { ffi::Py_INCREF(a) };
        Ok(a)
    })
}

unsafe extern "C" fn assign_value(a: Object, v: Object) -> Object {
    guard(|py| {
        // SAFETY: as above.
        let Some(this) = (unsafe { tensor::downcast(a) }) else { return Ok(null_mut()) };
        check_leaf_update(py, "assign", this)?;
        // SAFETY: a live object.
        let v = unsafe { Bound::from_borrowed_ptr(py, v) };
        let held = convert::from_object("assign", &v, None)?;
        let on = this.with(Value::device);
        let value = held.map(|held| held.placed(on)).transpose().or_raise(py)?.flatten();
        let Some(mut value) = value else { return Err(convert::refuse("assign", &v)) };
        if !tape::recording() {
            value.history = History::None;
        }
        if let History::Leaf(_) = value.history {
            let op = Op::Reshape(value.shape().clone());
            value = apply(op, &[Operand::Value(&value)], true).or_raise(py)?;
        }
        assign(py, "assign", this, value)?;
        Ok(py.None().into_ptr())
    })
}

/// The methods of `Tensor` that are no ops.
pub fn methods() -> Vec<ffi::PyMethodDef> {
    let plain =
        |name: &str, function: ffi::PyCFunction, flags: c_int, doc: &str| ffi::PyMethodDef {
            ml_name: leak(name.into()),
            ml_meth: ffi::PyMethodDefPointer { PyCFunction: function },
            ml_flags: flags,
            ml_doc: leak(doc.into()),
        };
    let none = ffi::METH_NOARGS;
    vec![
        plain(
            "item",
            item,
            none,
            "item($self)\n--\n\nThe only element as a Python number.\n\nRaises `ShapeError` for several elements.",
        ),
        plain(
            "tolist",
            tolist,
            none,
            "tolist($self)\n--\n\nNested lists of Python numbers; a number for a tensor without axes.",
        ),
        plain(
            "detach",
            detach,
            none,
            "detach($self)\n--\n\nThe same value on a new handle, without history.",
        ),
        plain(
            "realize",
            realize,
            none,
            "realize($self)\n--\n\nComputes the elements, where they wait to be looked at, and waits for the device that they lie on. Returns the tensor itself.\n\nRaises what the device found in the data of earlier work, as `synchronize` does.",
        ),
        plain(
            "assign",
            assign_value,
            ffi::METH_O,
            "assign($self, value, /)\n--\n\nGives the handle a new value of the same shape and dtype.\n\nA leaf that requires a gradient is only assigned to under `no_grad()`.",
        ),
        ffi::PyMethodDef {
            ml_name: leak("backward".into()),
            ml_meth: ffi::PyMethodDefPointer { PyCFunctionFastWithKeywords: run_backward },
            ml_flags: ffi::METH_FASTCALL | ffi::METH_KEYWORDS,
            ml_doc: leak(BACKWARD_DOC.into()),
        },
    ]
}
