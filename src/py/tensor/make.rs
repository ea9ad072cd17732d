//! New tensor objects, from the list of dead ones where there are any.

use std::cell::{Cell, UnsafeCell};
use std::mem::ManuallyDrop;
use std::ptr::{self, null_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

use pyo3::ffi;
use pyo3::prelude::*;

use super::{Slot, TensorObject, type_object};
use crate::array::{Array, Data, Fresh};
use crate::dtype::DType;
use crate::engine::tape::{Entry, History, Shared, Value};
use crate::py::errors::OrRaise;
use crate::py::free_list::FreeList;
use crate::shape::{Dim, Shape};

pub(super) static FREE: FreeList = FreeList::new();

/// A new `Tensor` for a value: an owned reference, null with an exception set if memory ran out.
#[inline]
pub fn new_object(value: Value) -> *mut ffi::PyObject {
    make_with(|| Slot::Own(value))
}

/// Sees to it that the next object comes from the free list. To ask Python for memory may start a
/// collection, which runs code of the user's; who writes a result while it looks at the operands'
/// values does this before it looks.
#[inline(always)]
pub fn prepare(py: Python<'_>) -> PyResult<()> {
    if FREE.is_empty() { add_free(py) } else { Ok(()) }
}

#[cold]
fn add_free(py: Python<'_>) -> PyResult<()> {
    // SAFETY: a fresh object is ours alone, and a dead one again once it is in the list, where it has
    // no slot. If a collection has put others there, this one is one more.
    unsafe {
        let object = ffi::PyType_GenericAlloc(type_object(), 0);
        if object.is_null() {
            return Err(PyErr::fetch(py));
        }
        ffi::PyObject_GC_UnTrack(object.cast());
        FREE.put(object.cast());
        // A heap type is held by its instances, and one in the list is none.
        ffi::Py_DECREF(type_object().cast());
    }
    Ok(())
}

/// The same as [`new_object`] for a result in parts, which is written where it stays. After
/// [`prepare`].
#[inline(always)]
pub fn new_fresh(array: Fresh<'_>, entry: Option<Arc<Entry>>) -> *mut ffi::PyObject {
    let Fresh { dtype, shape, data } = array;
    written(dtype, data, |value| {
        value.array.layout.set_short_shape(shape);
        if let Some(entry) = entry {
            // SAFETY: no history is overwritten, which holds nothing.
            unsafe { (&raw mut value.history).write(History::Entry(entry, 0)) };
        }
    })
}

/// A tensor that came from indexing: the elements of `x` with other sizes and strides, from a
/// position on, without a history. It is written where it stays. After [`prepare`].
#[inline(always)]
pub fn new_strided(
    x: &Array,
    dims: &[Dim],
    strides: &[isize],
    offset: usize,
) -> *mut ffi::PyObject {
    let object = written(x.dtype, x.data.clone(), |value| {
        value.array.layout.set_strided(dims, strides, offset);
        value.array.check_inside();
    });
    if !object.is_null() {
        // SAFETY: just made, of our type.
        unsafe { (*object.cast::<TensorObject>()).is_view.set(true) };
    }
    object
}

/// A tensor that begins as a scalar without a history, and becomes what `write` makes of it.
///
/// What is put together elsewhere is moved in other pieces than it was written in, for which the
/// processor waits. So a value that there was before is copied, and what differs is written over.
#[inline(always)]
fn written(dtype: DType, data: Data, write: impl FnOnce(&mut Value)) -> *mut ffi::PyObject {
    let object = empty();
    if object.is_null() {
        return null_mut();
    }
    // SAFETY: just made, of our type, and nobody else's; the copy of the old data is overwritten, not
    // dropped, and nothing else that the old value holds is another's.
    unsafe {
        begin(object);
        let slot = (*object).slot.get();
        ptr::copy_nonoverlapping(BLANK.load(Ordering::Relaxed), slot, 1);
        if let Slot::Own(value) = &mut *slot {
            (&raw mut value.array.data).write(data);
            value.array.dtype = dtype;
            write(value);
        }
    }
    object.cast()
}

/// A slot with a scalar that has no history, made at import.
static BLANK: AtomicPtr<Slot> = AtomicPtr::new(null_mut());

/// Makes the scalar that new results begin as.
pub(super) fn start(py: Python<'_>) -> PyResult<()> {
    let scalar = Array::zeros(DType::F32, Shape::scalar()).or_raise(py)?;
    let slot = Box::leak(Box::new(Slot::Own(Value::plain(scalar))));
    BLANK.store(slot, Ordering::Relaxed);
    Ok(())
}

#[inline(always)]
fn make_with(slot: impl FnOnce() -> Slot) -> *mut ffi::PyObject {
    let object = empty();
    if !object.is_null() {
        // SAFETY: just made.
        unsafe { fill(object, slot()) };
    }
    object.cast()
}

/// A live object of our type without a slot, null with an exception set if memory ran out.
#[inline(always)]
fn empty() -> *mut TensorObject {
    // SAFETY: an object from the free list has our layout and no other owner; `PyObject_Init`
    // makes it live again. A fresh one comes from the type's allocator, zeroed.
    unsafe {
        match FREE.take() {
            Some(free) => ffi::PyObject_Init(free.cast(), type_object()).cast(),
            None => {
                let object = ffi::PyType_GenericAlloc(type_object(), 0);
                if !object.is_null() {
                    ffi::PyObject_GC_UnTrack(object.cast());
                }
                object.cast()
            }
        }
    }
}

/// Gives an object all that it has beside its slot.
///
/// # Safety
/// `object` is a live tensor object.
#[inline(always)]
unsafe fn begin(object: *mut TensorObject) {
    // SAFETY: as the caller's.
    unsafe {
        (*object).weakrefs = null_mut();
        ptr::write(&raw mut (*object).is_view, Cell::new(false));
    }
}

/// # Safety
/// `object` is a live tensor object without a slot.
#[inline(always)]
pub(super) unsafe fn fill(object: *mut TensorObject, slot: Slot) {
    // SAFETY: as the caller's.
    unsafe {
        begin(object);
        ptr::write(&raw mut (*object).slot, ManuallyDrop::new(UnsafeCell::new(slot)));
    }
}

/// A new tensor as a PyO3 object.
pub fn wrap(py: Python<'_>, value: Value) -> PyResult<Py<PyAny>> {
    owned(py, new_object(value))
}

/// A new handle on a shared cell.
pub fn wrap_shared(py: Python<'_>, cell: Shared) -> PyResult<Py<PyAny>> {
    owned(py, make_with(|| Slot::Shared(cell)))
}

/// A tensor that came from indexing.
#[inline]
pub fn new_view(value: Value) -> *mut ffi::PyObject {
    let object = new_object(value);
    if !object.is_null() {
        // SAFETY: just made, of our type.
        unsafe { (*object.cast::<TensorObject>()).is_view.set(true) };
    }
    object
}

fn owned(py: Python<'_>, object: *mut ffi::PyObject) -> PyResult<Py<PyAny>> {
    // SAFETY: an owned reference, or null with an exception set.
    unsafe { Bound::from_owned_ptr_or_err(py, object) }.map(Bound::unbind)
}
