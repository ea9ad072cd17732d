//! Indexing: Python's keys as items, reads and writes.

use std::os::raw::c_int;
use std::ptr::null_mut;

use pyo3::exceptions::PyTypeError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyEllipsis, PySlice, PyTuple};
use smallvec::SmallVec;

use super::operators::STACK_BORROWS;
use super::{Object, check_leaf_update, not_implemented, operand};
use crate::engine::executors::Device;
use crate::engine::index::{self, Item, Key, Rows};
use crate::engine::tape::{History, Operand, Value, recording};
use crate::engine::trace;
use crate::engine::transfer::placed;
use crate::error;
use crate::executor::Giving;
use crate::py::arguments::{self, Held, scalar};
use crate::py::convert;
use crate::py::elementwise::direct;
use crate::py::errors::{OrRaise, to_python};
use crate::py::functions::{DETACH_ABOVE, detached, guard, known_size};
use crate::py::size;
use crate::py::tensor::{self, TensorObject, written};
use crate::shape::{Dim, Extent};

/// Calls `f` with an index as Python wrote it.
#[inline]
fn with_items<T>(
    py: Python<'_>,
    key: &Bound<'_, PyAny>,
    of: &TensorObject,
    f: impl FnOnce(&[Item]) -> PyResult<T>,
) -> PyResult<T> {
    let Ok(keys) = key.cast::<PyTuple>() else { return f(&[item(py, key, of)?]) };
    let mut items: SmallVec<[Item; 4]> = SmallVec::new();
    for key in keys.iter_borrowed() {
        items.push(item(py, &key, of)?);
    }
    f(&items)
}

/// A slice with sizes among its bounds.
fn symbolic_slice(key: &Bound<'_, PySlice>) -> PyResult<Option<Item>> {
    let slice = key.as_ptr().cast::<ffi::PySliceObject>();
    // SAFETY: a slice object, which holds its three parts while it lives.
    let parts = unsafe { [(*slice).start, (*slice).stop, (*slice).step] };
    // SAFETY: live objects, held by the slice.
    let [start, stop, step] = parts.map(|x| unsafe { Bound::from_borrowed_ptr(key.py(), x) });
    // SAFETY: as above.
    let is_int = |x: &Bound<'_, PyAny>| unsafe { ffi::PyLong_CheckExact(x.as_ptr()) != 0 };
    let is_size = |x| !is_int(x) && !x.is_none() && x.cast::<size::Size>().is_ok();
    if !is_size(&start) && !is_size(&stop) {
        return Ok(None);
    }
    let bound = |x: &Bound<'_, PyAny>| match (x.is_none(), arguments::clipped_index(x)) {
        (true, _) => Ok(None),
        (false, Some(n)) => Ok(Some(n)),
        (false, None) => x.extract::<i64>().map(|n| Some(Extent::Number(n))),
    };
    let step = if step.is_none() { None } else { Some(step.extract::<i64>()?) };
    Ok(Some(Item::Slice(bound(&start)?, bound(&stop)?, step)))
}

/// One part of an index of a tensor. Arrays of others are taken to where that lies.
fn item(py: Python<'_>, key: &Bound<'_, PyAny>, of: &TensorObject) -> PyResult<Item> {
    // SAFETY: a live object.
    unsafe {
        if ffi::PyLong_CheckExact(key.as_ptr()) != 0 {
            return arguments::index(key).map(Item::Int).ok_or_else(|| {
                to_python(py, error::index_out_of_bounds("getitem", key, "any", "at most 2^63"))
            });
        }
        if let Some(tensor) = tensor::downcast(key.as_ptr()) {
            let value = tensor.value();
            let is_known = !crate::engine::trace::is_traced(&value.array);
            if value.shape().rank() == 0 && value.dtype().is_int() && is_known {
                let n = convert::item(py, "getitem", &value.array)?.extract::<i64>();
                return n.map(|n| Item::Int(n.into()));
            }
            return Ok(Item::Array(value));
        }
    }
    if key.is_none() {
        return Ok(Item::NewAxis);
    }
    if key.is_instance_of::<PyEllipsis>() {
        return Ok(Item::Ellipsis);
    }
    if let Ok(slice) = key.cast::<PySlice>() {
        if let Some(item) = symbolic_slice(slice)? {
            return Ok(item);
        }
        let (mut start, mut stop, mut step) = (0, 0, 0);
        // SAFETY: a slice object. Absent bounds come as the largest or smallest number, which clip
        // to the ends.
        if unsafe { ffi::PySlice_Unpack(key.as_ptr(), &mut start, &mut stop, &mut step) } < 0 {
            return Err(PyErr::fetch(py));
        }
        let (first, last) = if step < 0 { (isize::MAX, isize::MIN) } else { (0, isize::MAX) };
        let start = (start != first).then_some(Extent::Number(start as i64));
        let stop = (stop != last).then_some(Extent::Number(stop as i64));
        return Ok(Item::Slice(start, stop, Some(step as i64)));
    }
    if let Some(n) = arguments::index(key) {
        return Ok(Item::Int(n));
    }
    let scalar = scalar(key.as_ptr()).is_some_and(|s| !matches!(s, crate::dtype::Scalar::Bool(_)));
    let held = if scalar { None } else { convert::from_object("getitem", key, None)? };
    if let Some(mut held) = held {
        // An empty list selects nothing, and its dtype says nothing.
        if let Held::Data(value) = &mut held
            && value.shape().elements().same(0.into())
            && value.dtype().is_float()
        {
            let none = crate::engine::executors::cast(&value.array, crate::dtype::DType::I64);
            *value = Value::plain(none.or_raise(py)?);
        }
        if let Some(value) = held.placed(of.with(Value::device)).or_raise(py)? {
            return Ok(Item::Array(value));
        }
    }
    let kind = key.get_type().name()?;
    let what = "an index is an int, a slice, None, ..., or an integer or bool array";
    Err(to_python(py, error::bad_type("getitem", what, format!("got {kind}"))))
}

/// How many elements the arrays of an index have.
fn size_of_arrays(items: &[Item]) -> usize {
    let size = |item: &Item| match item {
        Item::Array(value) => known_size(value),
        Item::Int(_)
        | Item::Slice(..)
        | Item::Ellipsis
        | Item::NewAxis
        | Item::Flag(_)
        | Item::Operand => 0,
    };
    items.iter().map(size).fold(0, usize::saturating_add)
}

/// A plain number; `None` of other objects.
///
/// # Safety
/// A live object, and an attached thread.
#[inline(always)]
unsafe fn plain_number(object: Object) -> Option<i64> {
    let mut overflow = 0;
    // SAFETY: a live object, whose exact type is looked at first; such a number raises nothing.
    unsafe {
        if ffi::PyLong_CheckExact(object) == 0 {
            return None;
        }
        let n = ffi::PyLong_AsLongLongAndOverflow(object, &mut overflow);
        (overflow == 0).then_some(n)
    }
}

/// A bound of a slice: a plain number or None; `None` of other objects.
///
/// # Safety
/// As for [`plain_number`].
#[inline(always)]
unsafe fn plain_bound(object: Object) -> Option<Option<i64>> {
    // SAFETY: as the caller's.
    unsafe { if object == ffi::Py_None() { Some(None) } else { plain_number(object).map(Some) } }
}

/// The rows that a key of plain numbers names; `None` of other keys.
///
/// # Safety
/// A live object, and an attached thread.
#[inline(always)]
unsafe fn plain_rows(key: Object) -> Option<Rows> {
    // SAFETY: a slice object holds its three parts while it lives, which the caller's key does.
    unsafe {
        if ffi::PySlice_Check(key) == 0 {
            return plain_number(key).map(Rows::One);
        }
        let slice = key.cast::<ffi::PySliceObject>();
        if (*slice).step != ffi::Py_None() {
            return None;
        }
        Some(Rows::Between(plain_bound((*slice).start)?, plain_bound((*slice).stop)?))
    }
}

/// The view of a value that a key of plain numbers names, as an object; `None` of other keys, of one
/// that does not fit, and of what is recorded.
///
/// # Safety
/// As for [`plain_number`].
unsafe fn plain_view(x: &Value, key: Object) -> Option<Object> {
    if x.requires_grad() && recording() {
        return None;
    }
    let take = |dims: &[Dim], strides: &[isize], offset| {
        tensor::new_strided(&x.array, dims, strides, offset)
    };
    // SAFETY: slices and tuples hold their parts while they live, which the caller's key does.
    unsafe {
        let part = |key: Object| {
            if ffi::PySlice_Check(key) != 0 {
                let slice = key.cast::<ffi::PySliceObject>();
                let step = plain_bound((*slice).step)?.unwrap_or(1);
                let (start, stop) = (plain_bound((*slice).start)?, plain_bound((*slice).stop)?);
                return Some(Key::Between(start, stop, step));
            }
            if key == ffi::Py_None() {
                return Some(Key::New);
            }
            if key == ffi::Py_Ellipsis() {
                return Some(Key::Rest);
            }
            plain_number(key).map(Key::One)
        };
        if ffi::PyTuple_CheckExact(key) == 0 {
            return index::taken(&x.array, &[part(key)?], take);
        }
        let mut keys: SmallVec<[Key; 4]> = SmallVec::new();
        for k in 0..ffi::PyTuple_Size(key) {
            keys.push(part(ffi::PyTuple_GetItem(key, k))?);
        }
        index::taken(&x.array, &keys, take)
    }
}

pub(super) unsafe extern "C" fn get_item(a: Object, key: Object) -> Object {
    guard(|py| {
        tensor::prepare(py)?;
        // SAFETY: live objects; the view is made before any Python code runs.
        unsafe {
            if let Some(Operand::Value(x)) = direct(a) {
                if let Some(rows) = plain_rows(key)
                    && let Some(view) = index::rows(x, rows)
                {
                    return Ok(tensor::new_view(view));
                }
                if let Some(view) = plain_view(x, key) {
                    return Ok(view);
                }
            }
        }
        // SAFETY: live objects; the slot is called with a tensor.
        let Some(this) = (unsafe { tensor::downcast(a) }) else { return Ok(not_implemented()) };
        let key = unsafe { Bound::from_borrowed_ptr(py, key) };
        let view = with_items(py, &key, this, |items| {
            if items.iter().any(|item| matches!(item, Item::Array(_))) {
                let value = this.value();
                let size = known_size(&value).saturating_add(size_of_arrays(items));
                return detached(py, size, || index::get(&value, items)).or_raise(py);
            }
            // SAFETY: slices and numbers run no Python code, and write no handle.
            match unsafe { this.own() } {
                Some(value) => index::get(value, items).or_raise(py),
                None => index::get(&this.value(), items).or_raise(py),
            }
        })?;
        Ok(tensor::new_view(view))
    })
}

pub(super) unsafe extern "C" fn set_item(a: Object, key: Object, v: Object) -> c_int {
    let mut done = false;
    guard(|py| {
        // SAFETY: live objects; the slot is called with a tensor.
        let Some(this) = (unsafe { tensor::downcast(a) }) else { return Ok(null_mut()) };
        if v.is_null() {
            return Err(PyTypeError::new_err("setitem: elements of a tensor cannot be deleted"));
        }
        // Only the interpreter's stack holds it: nobody could see the write. (From 3.14 on the
        // stack borrows from variables, and the count says nothing.)
        // SAFETY: a live object.
        let unseen = !STACK_BORROWS.load(std::sync::atomic::Ordering::Relaxed)
            && this.is_view()
            && unsafe { ffi::Py_REFCNT(a) } == 1;
        if unseen {
            return Err(to_python(py, error::unseen_write("setitem")));
        }
        check_leaf_update(py, "setitem", this)?;
        let (key, v) =
            unsafe { (Bound::from_borrowed_ptr(py, key), Bound::from_borrowed_ptr(py, v)) };
        let on = this.with(Value::device);
        with_items(py, &key, this, |items| set(this, items, &v, on))?;
        done = true;
        Ok(null_mut())
    });
    if done { 0 } else { -1 }
}

/// `x[items] = v`, for a tensor on `on`.
fn set(this: &TensorObject, items: &[Item], v: &Bound<'_, PyAny>, on: Device) -> PyResult<()> {
    let py = v.py();
    let held = match operand(py, v.as_ptr())? {
        Some(held) => held,
        None => match convert::from_object("setitem", v, None)? {
            Some(held) => held,
            None => return Err(convert::refuse("setitem", v)),
        },
    };
    let held = match held {
        Held::Data(value) => Held::Data(placed(value, on).or_raise(py)?),
        Held::Value(_) | Held::Scalar(_) => held,
    };
    check_fits(py, &held, this)?;
    let write = |value: &mut Value| -> error::Result<()> {
        let leaf = match &value.history {
            History::Leaf(leaf) => Some(leaf.clone()),
            History::None | History::Entry(..) => None,
        };
        index::set(value, items, held.operand())?;
        if let Some(leaf) = leaf {
            value.history = History::Leaf(leaf);
        }
        Ok(())
    };
    let size = size_of_arrays(items);
    let is_long = size > DETACH_ABOVE && !trace::active();
    let result = match is_long.then(|| this.hold()).flatten() {
        // Others wait for the value, as for one that a compiled function updates.
        Some((mut value, _update)) => {
            let _given = Giving::new(true);
            let result = detached(py, size, || written(&mut value, write));
            drop(this.replace(value));
            result
        }
        None => this.update(write),
    };
    result.or_raise(py)
}

/// Refuses numbers that the tensor's dtype cannot hold; arrays are cast on assignment.
fn check_fits(py: Python<'_>, held: &Held, this: &TensorObject) -> PyResult<()> {
    let dtype = this.with(|value| value.dtype());
    match held {
        Held::Scalar(s) if !s.fits(dtype) => {
            Err(to_python(py, error::overflow("setitem", s, dtype)))
        }
        Held::Value(_) | Held::Data(_) | Held::Scalar(_) => Ok(()),
    }
}

pub(super) unsafe extern "C" fn get_by_position(a: Object, i: ffi::Py_ssize_t) -> Object {
    guard(|py| {
        tensor::prepare(py)?;
        // SAFETY: as for `get_item`.
        if let Some(Operand::Value(x)) = unsafe { direct(a) }
            && let Some(view) = index::rows(x, Rows::One(i as i64))
        {
            return Ok(tensor::new_view(view));
        }
        // SAFETY: the slot is called with a tensor.
        let Some(this) = (unsafe { tensor::downcast(a) }) else { return Ok(null_mut()) };
        let value = this.value();
        // `i` counts from the front here; past the end ends an iteration.
        Ok(tensor::new_view(
            index::get(&value, &[Item::Int(Extent::Number(i as i64))]).or_raise(py)?,
        ))
    })
}
