//! The Python type `Tensor`: a handle to an immutable value.
//!
//! The type is made from a spec rather than by a macro, because its slots are the hot path: a
//! result is an object from a free list, a value written in place, and nothing else.

mod make;

use std::cell::{Cell, UnsafeCell};
use std::mem::ManuallyDrop;
use std::os::raw::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use pyo3::exceptions::PyTypeError;
use pyo3::ffi;
use pyo3::prelude::*;

use super::errors::{OrRaise, to_python};
use super::unwind::{contained, guard};
use crate::array::{Array, Busy, Data, Where};
use crate::engine::tape::{History, Shared, Value};
use crate::engine::trace;
use crate::engine::{executors, pending};
use crate::error::{self, Result};
use crate::ops::emit::{catch, throw};
use make::{FREE, fill};
pub use make::{new_fresh, new_object, new_strided, new_view, prepare, wrap, wrap_shared};

/// What a handle holds.
pub enum Slot {
    /// A value of its own
    Own(Value),
    /// The value of a leaf's gradient, which the leaf updates
    Shared(Shared),
}

/// The call that has a value's memory.
#[inline]
fn busy(value: &Value) -> Option<&Arc<Busy>> {
    match value.array.data.place() {
        Where::Busy(call) => Some(call),
        Where::Host(_) | Where::Device(_) | Where::Traced(_) => None,
    }
}

/// An update under way. Dropped when the handle has its value again, it lets waiting threads go on.
pub struct Update(Arc<Busy>);

impl Drop for Update {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// The object behind a `wengert.Tensor`.
///
/// The slot is only touched by attached threads, and never while Python code can run: the
/// interpreter lock guards it. (A build without that lock puts a mutex here.)
#[repr(C)]
pub struct TensorObject {
    ob_base: ffi::PyObject,
    pub(super) weakrefs: *mut ffi::PyObject,
    slot: ManuallyDrop<UnsafeCell<Slot>>,
    /// Made by indexing: a write to it while nobody holds it would be lost.
    is_view: Cell<bool>,
}

static TYPE: AtomicPtr<ffi::PyTypeObject> = AtomicPtr::new(null_mut());

/// The type object, made at import.
pub fn type_object() -> *mut ffi::PyTypeObject {
    TYPE.load(Ordering::Relaxed)
}

/// A tensor object, if `object` is one.
///
/// # Safety
/// `object` is a valid Python object, borrowed for `'a`.
#[inline]
pub unsafe fn downcast<'a>(object: *mut ffi::PyObject) -> Option<&'a TensorObject> {
    // SAFETY: the caller vouches for the object; an instance of the type or of a subclass starts
    // with our fields.
    unsafe {
        let class = ffi::Py_TYPE(object);
        if class == type_object() || ffi::PyType_IsSubtype(class, type_object()) != 0 {
            return Some(&*object.cast::<TensorObject>());
        }
    }
    None
}

impl TensorObject {
    /// Reads the value: while a function is captured, the one that the trace sees. `f` must not run
    /// Python code.
    #[inline]
    pub fn with<T>(&self, f: impl FnOnce(&Value) -> T) -> T {
        if trace::active() {
            return f(&self.seen());
        }
        self.with_own(f)
    }

    /// Reads the value that the handle holds outside all traces.
    #[inline]
    pub fn with_own<T>(&self, f: impl FnOnce(&Value) -> T) -> T {
        self.settle();
        // SAFETY: only attached threads get here, one at a time, and `f` does not let go.
        match unsafe { &*self.slot.get() } {
            Slot::Own(value) => f(value),
            Slot::Shared(cell) => f(&cell.lock()),
        }
    }

    /// The value itself, where the handle has its own and no trace might see another.
    ///
    /// # Safety
    /// No Python code runs and the handle is not written while the reference lives.
    #[inline]
    pub unsafe fn own(&self) -> Option<&Value> {
        // SAFETY: as the caller's.
        if trace::active() { None } else { unsafe { self.own_at_hand() } }
    }

    /// The same, where the caller has seen that no trace is open.
    ///
    /// # Safety
    /// As for [`own`](TensorObject::own).
    #[inline(always)]
    pub unsafe fn own_at_hand(&self) -> Option<&Value> {
        // SAFETY: as the caller's.
        match unsafe { &*self.slot.get() } {
            Slot::Own(value) if value.array.is_on_host() => Some(value),
            Slot::Own(_) | Slot::Shared(_) => None,
        }
    }

    /// Waits until nobody updates the handle.
    #[inline]
    fn settle(&self) {
        // SAFETY: as for `with`.
        if let Slot::Own(value) = unsafe { &*self.slot.get() }
            && busy(value).is_some()
        {
            self.wait();
        }
    }

    #[cold]
    fn wait(&self) {
        loop {
            // SAFETY: as for `with`; the reference ends before another thread may run.
            let busy = match unsafe { &*self.slot.get() } {
                Slot::Own(value) => busy(value).cloned(),
                Slot::Shared(_) => None,
            };
            let Some(busy) = busy.filter(|busy| !busy.is_mine()) else {
                return;
            };
            // SAFETY: only attached threads get here.
            let py = unsafe { Python::assume_attached() };
            py.detach(|| busy.wait());
        }
    }

    /// Takes the value out, for as long as a call works on another: the handle's own or its
    /// gradient's. Who reads the handle meanwhile waits until the [`Update`] is dropped. `None` for
    /// a handle on a shared cell, and where this thread has the value out already.
    pub fn hold(&self) -> Option<(Value, Update)> {
        self.settle();
        // SAFETY: as for `with`.
        let Slot::Own(value) = (unsafe { &mut *self.slot.get() }) else { return None };
        if busy(value).is_some() {
            return None;
        }
        let busy = Busy::new(value.device());
        let (dtype, shape) = (value.dtype(), value.shape().clone());
        let mark = Value {
            array: Array::new(dtype, shape, Data::busy(busy.clone())),
            history: value.history.clone(),
        };
        Some((std::mem::replace(value, mark), Update(busy)))
    }

    /// A copy of the value, sharing its memory.
    #[inline]
    pub fn value(&self) -> Value {
        let value = self.with(Value::clone);
        if busy(&value).is_some() {
            throw(error::in_use("read"));
        }
        value
    }

    /// The same, or why the handle has no value here.
    pub fn try_value(&self) -> Result<Value> {
        let own = self.with_own(Value::clone);
        if busy(&own).is_some() {
            return Err(error::in_use("read"));
        }
        match trace::active() {
            true => trace::read_handle(self.address(), &own, &mut || self.keep()),
            false => Ok(own),
        }
    }

    /// Changes the value. `f` must not run Python code. While a function is captured the trace
    /// keeps the change to itself.
    pub fn update<T>(&self, f: impl FnOnce(&mut Value) -> T) -> T {
        if trace::active() {
            let mut value = self.seen();
            let result = f(&mut value);
            let own = self.with_own(Value::clone);
            let kept =
                trace::write_handle(self.address(), &own, &mut || self.keep(), value.clone());
            return match kept.unwrap_or_else(|error| throw(error)) {
                true => result,
                false => {
                    drop(own);
                    drop(self.replace(value));
                    result
                }
            };
        }
        // SAFETY: as for `with`.
        match unsafe { &mut *self.slot.get() } {
            Slot::Own(value) => written(value, f),
            Slot::Shared(cell) => written(&mut cell.lock(), f),
        }
    }

    /// Gives the handle a value, whatever traces are open.
    pub fn replace(&self, value: Value) -> Value {
        // SAFETY: as for `with`.
        match unsafe { &mut *self.slot.get() } {
            Slot::Own(own) => std::mem::replace(own, value),
            Slot::Shared(cell) => std::mem::replace(&mut *cell.lock(), value),
        }
    }

    /// The value as the top trace sees it.
    #[cold]
    fn seen(&self) -> Value {
        self.try_value().unwrap_or_else(|error| throw(error))
    }

    /// What traces know the handle by: several handles of one cell are one.
    pub fn address(&self) -> usize {
        // SAFETY: as for `with`.
        match unsafe { &*self.slot.get() } {
            Slot::Own(_) => std::ptr::from_ref(self).addr(),
            Slot::Shared(cell) => Arc::as_ptr(cell).addr(),
        }
    }

    /// Keeps the handle alive.
    fn keep(&self) -> trace::Handle {
        let object = std::ptr::from_ref(self).cast_mut().cast::<ffi::PyObject>();
        // SAFETY: an attached thread; the object is live.
        let object =
            unsafe { Bound::from_borrowed_ptr(Python::assume_attached(), object).unbind() };
        Arc::new(object)
    }

    /// Whether the handle came from indexing.
    pub fn is_view(&self) -> bool {
        self.is_view.get()
    }
}

/// Changes a value. What stood there is kept where the work of the new one is under way on a
/// device.
pub fn written<T>(value: &mut Value, f: impl FnOnce(&mut Value) -> T) -> T {
    if value.array.is_on_host() {
        return f(value);
    }
    let old = value.array.clone();
    let result = f(value);
    value.array = executors::replacing(Some(&old), value.array.clone());
    result
}

/// A tensor; the error of an op that expected one.
pub fn handle<'a>(op: &str, object: &'a Bound<'_, PyAny>) -> PyResult<&'a TensorObject> {
    // SAFETY: a live object, which lives as long as the reference.
    match unsafe { downcast(object.as_ptr()) } {
        Some(tensor) => Ok(tensor),
        None => {
            let facts = format!("got {}", object.get_type().name()?);
            Err(to_python(object.py(), error::bad_type(op, "expected a tensor", facts)))
        }
    }
}

/// The value of a tensor, as the top trace sees it.
pub fn value_of(op: &str, object: &Bound<'_, PyAny>) -> PyResult<Value> {
    handle(op, object)?.try_value().or_raise(object.py())
}

/// The array of a tensor whose data is to be read: refused while there is none.
pub fn data(py: Python<'_>, op: &str, tensor: &TensorObject) -> PyResult<Array> {
    let array = tensor.try_value().or_raise(py)?.array;
    let remedy = "return the tensor and look at it outside, or use wg.print";
    trace::check_data(op, &array, remedy).or_raise(py)?;
    looked_at(py, array)
}

/// An array whose elements are there. Those that wait are computed while other threads run.
pub fn looked_at(py: Python<'_>, array: Array) -> PyResult<Array> {
    if pending::waits(&array) {
        py.detach(|| catch(|| array.look())).or_raise(py)?;
    }
    Ok(array)
}

/// Shows an object to the collector of cycles. A tensor without code of the user's in its history
/// cannot be part of a cycle, and stays unseen, which keeps collections quick.
pub fn track(object: *mut ffi::PyObject) {
    // SAFETY: a live object of a type with collection; tracked at most once.
    unsafe {
        if ffi::PyObject_GC_IsTracked(object) == 0 {
            ffi::PyObject_GC_Track(object.cast());
        }
    }
}

/// Sweeps that run without the interpreter. It changes on attached threads only, so it stands still
/// during a collection.
static SWEEPS: AtomicUsize = AtomicUsize::new(0);

/// Runs a sweep without the interpreter.
pub fn detach_sweep<T: Send>(py: Python<'_>, sweep: impl FnOnce() -> T + Send) -> T {
    struct Running;
    impl Drop for Running {
        fn drop(&mut self) {
            SWEEPS.fetch_sub(1, Ordering::Relaxed);
        }
    }
    SWEEPS.fetch_add(1, Ordering::Relaxed);
    let _running = Running;
    py.detach(sweep)
}

unsafe extern "C" fn traverse(
    object: *mut ffi::PyObject,
    visit: ffi::visitproc,
    arg: *mut c_void,
) -> c_int {
    // SAFETY: called by the collector with a live tensor; every object visited is held by this one
    // alone, so that it is counted once.
    unsafe {
        let class = visit(ffi::Py_TYPE(object).cast(), arg);
        if class != 0 {
            return class;
        }
        let this = &*object.cast::<TensorObject>();
        // A sweep upgrades weak links to leaves: who holds one alone could change while the
        // collector counts. Then nothing is shown, and so nothing is collected.
        if SWEEPS.load(Ordering::Relaxed) > 0 {
            return 0;
        }
        if let Slot::Own(value) = &*this.slot.get() {
            for foreign in value.history.foreign_objects() {
                let result = visit(foreign.cast(), arg);
                if result != 0 {
                    return result;
                }
            }
        }
    }
    0
}

unsafe extern "C" fn clear(object: *mut ffi::PyObject) -> c_int {
    // SAFETY: called by the collector with a tensor nobody can reach; what is dropped is out of the
    // slot first, because dropping it may run code.
    let history = unsafe {
        match &mut *(*object.cast::<TensorObject>()).slot.get() {
            Slot::Own(value) => std::mem::take(&mut value.history),
            Slot::Shared(_) => History::None,
        }
    };
    contained(|| drop(history));
    0
}

unsafe extern "C" fn dealloc(object: *mut ffi::PyObject) {
    // SAFETY: called once, with the last reference gone, by an attached thread.
    unsafe {
        ffi::PyObject_GC_UnTrack(object.cast());
        let this = object.cast::<TensorObject>();
        if !(*this).weakrefs.is_null() {
            ffi::PyObject_ClearWeakRefs(object);
        }
        contained(|| ManuallyDrop::drop(&mut (*this).slot));
        let class = ffi::Py_TYPE(object);
        if class == type_object() && FREE.has_room() {
            FREE.put(this);
        } else if let Some(free) = (*class).tp_free {
            free(object.cast());
        }
        // A heap type is held by its instances.
        ffi::Py_DECREF(class.cast());
    }
}

/// `Tensor.__new__(cls, tensor)`: a new handle of a class on the value of a tensor.
unsafe extern "C" fn new(
    class: *mut ffi::PyTypeObject,
    args: *mut ffi::PyObject,
    _kwargs: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    // SAFETY: called by the interpreter with a class and a tuple.
    guard(|_| unsafe {
        let source =
            if ffi::PyTuple_Size(args) >= 1 { ffi::PyTuple_GetItem(args, 0) } else { null_mut() };
        let Some(source) = source.as_mut().and_then(|object| downcast(object)) else {
            return Err(PyTypeError::new_err(
                "Tensor: expected a tensor; make one with wengert.tensor or wengert.asarray",
            ));
        };
        let value = source.value();
        let object = ffi::PyType_GenericAlloc(class, 0).cast::<TensorObject>();
        if !object.is_null() {
            fill(object, Slot::Own(value));
        }
        Ok(object.cast())
    })
}

/// Makes the type from its slots, methods and attributes, which live as long as the program.
pub fn create_type(
    py: Python<'_>,
    mut slots: Vec<(c_int, *mut c_void)>,
    methods: Vec<ffi::PyMethodDef>,
    attributes: Vec<ffi::PyGetSetDef>,
) -> PyResult<Py<PyAny>> {
    let members = vec![
        ffi::PyMemberDef {
            name: c"__weaklistoffset__".as_ptr(),
            type_code: ffi::Py_T_PYSSIZET,
            offset: std::mem::offset_of!(TensorObject, weakrefs) as ffi::Py_ssize_t,
            flags: ffi::Py_READONLY,
            doc: std::ptr::null(),
        },
        // SAFETY: an all-zero definition ends the list.
        unsafe { std::mem::zeroed() },
    ];
    // The interpreter keeps pointers into these lists.
    slots.extend([
        (ffi::Py_tp_dealloc, dealloc as *mut c_void),
        (ffi::Py_tp_traverse, traverse as *mut c_void),
        (ffi::Py_tp_clear, clear as *mut c_void),
        (ffi::Py_tp_new, new as *mut c_void),
        (ffi::Py_tp_methods, Vec::leak(methods).as_mut_ptr().cast()),
        (ffi::Py_tp_getset, Vec::leak(attributes).as_mut_ptr().cast()),
        (ffi::Py_tp_members, Vec::leak(members).as_mut_ptr().cast()),
        (ffi::Py_tp_doc, DOC.as_ptr() as *mut c_void),
        (0, null_mut()),
    ]);
    let mut slots: Vec<ffi::PyType_Slot> =
        slots.into_iter().map(|(slot, pfunc)| ffi::PyType_Slot { slot, pfunc }).collect();
    let mut spec = ffi::PyType_Spec {
        name: c"wengert.Tensor".as_ptr(),
        basicsize: size_of::<TensorObject>() as c_int,
        itemsize: 0,
        flags: (ffi::Py_TPFLAGS_DEFAULT | ffi::Py_TPFLAGS_BASETYPE | ffi::Py_TPFLAGS_HAVE_GC)
            as u32,
        slots: slots.as_mut_ptr(),
    };
    // SAFETY: the spec is complete and its lists are leaked or static.
    let class = unsafe { ffi::PyType_FromSpec(&mut spec) };
    // SAFETY: an owned reference, or null with an exception set.
    let class = unsafe { Bound::from_owned_ptr_or_err(py, class) }?;
    TYPE.store(class.as_ptr().cast(), Ordering::Relaxed);
    make::start(py)?;
    Ok(class.unbind())
}

const DOC: &std::ffi::CStr = c"A handle to an immutable array value.

Shape, dtype and device are fixed for life. `x[i] = v`, `x += y` and optimizer steps give the handle a
new value; whoever read or shared the old one keeps it. Made by `wengert.tensor`, `wengert.asarray`
and every function of the library.";
