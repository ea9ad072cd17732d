//! DLPack, both ways: tensors of other libraries as values, and values for them.
//!
//! Promises: nothing in a capsule is believed before it was checked; a capsule that was taken is
//! released exactly once, on every path; memory is shared, in or out, only where the caller asked
//! for it by `copy=False`, since nothing in the protocol keeps others from writing.

use std::ffi::CStr;
use std::os::raw::{c_char, c_void};
use std::ptr::NonNull;

use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::errors::{OrRaise, to_python};
use super::unwind::contained;
use super::{buffer, convert, tensor};
use crate::array::Array;
use crate::dtype::DType;
use crate::engine::executors;
use crate::engine::tape::Value;
use crate::engine::transfer::transfer;
use crate::error::{self, Result};
use crate::layout::{Layout, Strides};
use crate::memory::Buffer;
use crate::shape::{MAX_RANK, Shape};

// The structures of DLPack's C interface, version 1.

/// Device type and number.
#[repr(C)]
#[derive(Clone, Copy)]
struct Device {
    kind: i32,
    id: i32,
}

const CPU: Device = Device { kind: 1, id: 0 };

/// Type code, bits of a lane, lanes.
#[repr(C)]
#[derive(Clone, Copy, PartialEq)]
struct Element {
    code: u8,
    bits: u8,
    lanes: u16,
}

/// Where an array lies and how. Strides count elements; null means C order.
#[repr(C)]
struct Tensor {
    data: *mut c_void,
    device: Device,
    rank: i32,
    element: Element,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

/// What a capsule named `dltensor` holds.
#[repr(C)]
struct Legacy {
    tensor: Tensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Legacy)>,
}

/// What a capsule named `dltensor_versioned` holds.
#[repr(C)]
struct Versioned {
    major: u32,
    minor: u32,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Versioned)>,
    flags: u64,
    tensor: Tensor,
}

const READ_ONLY: u64 = 1;
const IS_COPIED: u64 = 2;

const MAJOR: u32 = 1;
const MINOR: u32 = 1;

fn element_of(dtype: DType) -> Element {
    let code = match dtype {
        DType::I8 | DType::I16 | DType::I32 | DType::I64 => 0,
        DType::U8 | DType::U16 | DType::U32 | DType::U64 => 1,
        DType::F16 | DType::F32 | DType::F64 => 2,
        DType::BF16 => 4,
        DType::Bool => 6,
    };
    Element { code, bits: dtype.size() as u8 * 8, lanes: 1 }
}

fn dtype_of(op: &str, element: Element) -> Result<DType> {
    DType::ALL.into_iter().find(|dtype| element_of(*dtype) == element).ok_or_else(|| {
        let Element { code, bits, lanes } = element;
        let got = format!("DLPack type code {code} with {bits} bits and {lanes} lanes");
        error::unknown_dtype(op, got)
    })
}

/// The two kinds of capsule: name, name once taken, destructor and deleter.
trait Managed: Sized + 'static {
    const NAME: &'static CStr;
    const USED: &'static CStr;

    fn tensor(&self) -> &Tensor;
    fn context(&self) -> *mut c_void;
    fn deleter(&self) -> Option<unsafe extern "C" fn(*mut Self)>;
}

impl Managed for Legacy {
    const NAME: &'static CStr = c"dltensor";
    const USED: &'static CStr = c"used_dltensor";

    fn tensor(&self) -> &Tensor {
        &self.tensor
    }
    fn context(&self) -> *mut c_void {
        self.context
    }
    fn deleter(&self) -> Option<unsafe extern "C" fn(*mut Self)> {
        self.deleter
    }
}

impl Managed for Versioned {
    const NAME: &'static CStr = c"dltensor_versioned";
    const USED: &'static CStr = c"used_dltensor_versioned";

    fn tensor(&self) -> &Tensor {
        &self.tensor
    }
    fn context(&self) -> *mut c_void {
        self.context
    }
    fn deleter(&self) -> Option<unsafe extern "C" fn(*mut Self)> {
        self.deleter
    }
}

// --- in

/// A structure taken out of its capsule: released when dropped, on any thread.
struct Taken<M: Managed>(NonNull<M>);

// SAFETY: the structure is only read, and released while attached to the interpreter.
unsafe impl<M: Managed> Send for Taken<M> {}
// SAFETY: as above.
unsafe impl<M: Managed> Sync for Taken<M> {}

impl<M: Managed> Taken<M> {
    /// Takes the structure, if the capsule is of this kind and nobody took it before.
    fn from_capsule(capsule: &Bound<'_, PyAny>) -> Option<Taken<M>> {
        let capsule = capsule.as_ptr();
        // SAFETY: a live object; a valid capsule of this name holds such a structure, which belongs
        // to whoever renames the capsule.
        unsafe {
            if ffi::PyCapsule_IsValid(capsule, M::NAME.as_ptr()) == 0 {
                return None;
            }
            let managed = NonNull::new(ffi::PyCapsule_GetPointer(capsule, M::NAME.as_ptr()))?;
            (ffi::PyCapsule_SetName(capsule, M::USED.as_ptr()) == 0).then(|| Taken(managed.cast()))
        }
    }

    fn get(&self) -> &M {
        // SAFETY: alive until it is released, in `drop`.
        unsafe { self.0.as_ref() }
    }
}

impl<M: Managed> Drop for Taken<M> {
    fn drop(&mut self) {
        let Some(deleter) = self.get().deleter() else { return };
        let managed = self.0.as_ptr();
        // An interpreter that is gone has given its memory back already.
        let _ = Python::try_attach(|_| {
            // SAFETY: ours since we took it, and released here only.
            unsafe { deleter(managed) }
        });
    }
}

/// A value from an object with `__dlpack__`. The data is copied, since others may write to it: that
/// a capsule is read-only binds its consumer, not its owner. `copy=Some(false)` forbids the copy,
/// by the caller's promise that nobody writes. A tensor of ours is a value already, and shared.
pub fn read(op: &str, object: &Bound<'_, PyAny>, copy: Option<bool>) -> PyResult<Value> {
    let py = object.py();
    // SAFETY: a live object.
    if let Some(handle) = unsafe { tensor::downcast(object.as_ptr()) } {
        let array = tensor::data(py, "__dlpack__", handle)?;
        let is_here = array.is_on_host();
        let array = match copy == Some(true) && is_here {
            true => fresh_copy(&array).or_raise(py)?,
            false => array,
        };
        return Ok(Value::plain(array));
    }
    let method = object.getattr("__dlpack__")?;
    let arguments = PyDict::new(py);
    arguments.set_item("max_version", (MAJOR, MINOR))?;
    let capsule = match method.call((), Some(&arguments)) {
        // Exporters older than the argument.
        Err(refusal) if refusal.is_instance_of::<PyTypeError>(py) => method.call0()?,
        result => result?,
    };
    if let Some(taken) = Taken::<Versioned>::from_capsule(&capsule) {
        let (major, minor) = (taken.get().major, taken.get().minor);
        if major != MAJOR {
            let facts = format!("got {major}.{minor}, this build reads {MAJOR}.x");
            return Err(to_python(py, error::bad_value(op, "unknown version of DLPack", facts)));
        }
        return adopt(op, taken, copy == Some(false)).or_raise(py).map(Value::plain);
    }
    if let Some(taken) = Taken::<Legacy>::from_capsule(&capsule) {
        return adopt(op, taken, copy == Some(false)).or_raise(py).map(Value::plain);
    }
    let facts = format!("got {}", capsule.get_type().name()?);
    let what = "__dlpack__ must return a DLPack capsule that nobody has taken";
    Err(to_python(py, error::bad_type(op, what, facts)))
}

/// A value from an object with `__dlpack__`, copied.
pub fn import(op: &str, object: &Bound<'_, PyAny>) -> PyResult<Value> {
    read(op, object, None)
}

/// The array that a structure describes, checked; copied or shared.
fn adopt<M: Managed>(op: &str, taken: Taken<M>, shared: bool) -> Result<Array> {
    let tensor = taken.get().tensor();
    let dtype = dtype_of(op, tensor.element)?;
    let (shape, strides) = sizes_and_strides(op, tensor)?;
    if tensor.device.kind != CPU.kind {
        let got = format!("DLPack type {}", tensor.device.kind);
        return Err(error::unknown_device(op, got, "cpu"));
    }
    if shape.count() == 0 {
        return Array::uninit(dtype, shape);
    }
    let (start, bytes, offset) = stretch(op, tensor, dtype, &shape, &strides)?;
    // Foreign bools may be any byte, and ours are 0 and 1.
    if shared && dtype == DType::Bool {
        return Err(error::bad_value(op, "copy=False, but bool data is always copied", "got bool"));
    }
    let layout = Layout::strided(shape, &strides, offset);
    if shared {
        // SAFETY: the exporter keeps this stretch alive until it is released, and nobody writes
        // there.
        let buffer = unsafe { Buffer::external(start, bytes, Box::new(taken)) };
        return Ok(Array { dtype, layout, data: buffer.into() });
    }
    // SAFETY: as above, and `taken` outlives the copy.
    let buffer = unsafe { Buffer::external(start, bytes, Box::new(())) };
    let source = Array { dtype, layout, data: buffer.into() };
    let out = fresh_copy(&source)?;
    if dtype == DType::Bool {
        // SAFETY: the output is fresh, C-order, one byte an element.
        let bytes = unsafe { std::slice::from_raw_parts_mut(out.ptr_mut(), out.count()) };
        bytes.iter_mut().for_each(|b| *b = u8::from(*b != 0));
    }
    Ok(out)
}

fn fresh_copy(source: &Array) -> Result<Array> {
    let out = Array::uninit(source.dtype, source.shape().clone())?;
    if out.count() > 0 {
        // SAFETY: the output is fresh.
        unsafe { executors::copy_into(&out, source) };
    }
    Ok(out)
}

fn sizes_and_strides(op: &str, tensor: &Tensor) -> Result<(Shape, Strides)> {
    let rank = tensor.rank;
    if usize::try_from(rank).is_err() || (rank > 0 && tensor.shape.is_null()) {
        return Err(error::bad_value(op, "malformed DLPack tensor", format!("rank {rank}")));
    }
    let rank = rank as usize;
    if rank > MAX_RANK {
        return Err(error::too_many_axes(op, rank, MAX_RANK));
    }
    let list = |p: *const i64| match p.is_null() || rank == 0 {
        true => &[][..],
        // SAFETY: the exporter promises `rank` numbers here.
        false => unsafe { std::slice::from_raw_parts(p, rank) },
    };
    let sizes = list(tensor.shape);
    if let Some(size) = sizes.iter().find(|n| **n < 0) {
        return Err(error::negative_size(op, size, crate::shape::Tuple(sizes)));
    }
    let shape: Shape = sizes.iter().map(|&n| (n as usize).into()).collect();
    shape.check(op)?;
    let strides = match tensor.strides.is_null() {
        true => crate::layout::row_major(&shape.sizes()),
        false => list(tensor.strides).iter().map(|&s| s as isize).collect(),
    };
    Ok((shape, strides))
}

/// The memory that the elements reach: first byte, bytes, and the element at index zero counted
/// from there. There is at least one element.
fn stretch(
    op: &str,
    tensor: &Tensor,
    dtype: DType,
    shape: &Shape,
    strides: &[isize],
) -> Result<(*const u8, usize, usize)> {
    let size = dtype.size() as i128;
    let (mut low, mut high) = (0i128, 0i128);
    for (n, &stride) in shape.sizes().into_iter().zip(strides) {
        // Below 2^63 times 2^63: no overflow.
        let reach = (n as i128 - 1) * stride as i128;
        low = low.saturating_add(reach.min(0));
        high = high.saturating_add(reach.max(0));
    }
    let origin = tensor.data as usize as i128 + i128::from(tensor.byte_offset);
    let first = low.saturating_mul(size).saturating_add(origin);
    let end = high.saturating_mul(size).saturating_add(origin + size);
    if tensor.data.is_null() || first <= 0 || end > isize::MAX as i128 {
        let facts = format!("shape {shape} with strides {}", crate::shape::Tuple(strides));
        return Err(error::bad_value(op, "the elements lie outside the memory", facts));
    }
    if origin % size != 0 {
        let facts = format!("{dtype} at an address that {size} does not divide; copy it first");
        return Err(error::bad_value(op, "the array's memory is not aligned", facts));
    }
    Ok((first as usize as *const u8, (end - first) as usize, (-low) as usize))
}

/// A tensor from an object that exports DLPack: a copy of its data, so that the tensor is a value.
///
/// `copy=False` shares the memory, by the caller's promise that nobody writes to it as long as the
/// tensor, or anything computed from it, is used. Read-only memory is copied too: its owner may
/// write.
///
/// >>> import numpy as np
/// >>> wg.from_dlpack(np.arange(3.0)).tolist()
/// [0.0, 1.0, 2.0]
#[pyfunction]
#[pyo3(signature = (x, /, *, device=None, copy=None))]
fn from_dlpack(
    py: Python<'_>,
    x: &Bound<'_, PyAny>,
    device: Option<&Bound<'_, PyAny>>,
    copy: Option<bool>,
) -> PyResult<Py<PyAny>> {
    let op = "from_dlpack";
    let device = device.map(|device| convert::device(op, device)).transpose()?.flatten();
    if !x.hasattr("__dlpack__")? {
        let facts = format!("got {}", x.get_type().name()?);
        return Err(to_python(
            py,
            error::bad_type(op, "expected an object with __dlpack__", facts),
        ));
    }
    let value = read(op, x, copy)?;
    let to = device.unwrap_or_else(|| value.device());
    tensor::wrap(py, transfer(&value, to).or_raise(py)?)
}

// --- out

/// What an exported structure keeps alive: the array, and the sizes and strides it points to.
struct Exported<M> {
    managed: Option<M>,
    array: Array,
    sizes: Vec<i64>,
    strides: Vec<i64>,
}

impl<M: Managed> Exported<M> {
    /// A capsule that holds `make(tensor, context)`.
    fn capsule(
        py: Python<'_>,
        array: Array,
        make: impl FnOnce(Tensor, *mut c_void) -> M,
    ) -> PyResult<Py<PyAny>> {
        let sizes = array.shape().sizes().iter().map(|&n| n as i64).collect();
        let strides = array.layout.strides().iter().map(|&s| s as i64).collect();
        let this = Box::leak(Box::new(Exported { managed: None, array, sizes, strides }));
        let context: *mut c_void = (&raw mut *this).cast();
        let tensor = Tensor {
            data: this.array.ptr().cast_mut().cast(),
            device: CPU,
            rank: this.sizes.len() as i32,
            element: element_of(this.array.dtype),
            shape: this.sizes.as_mut_ptr(),
            strides: this.strides.as_mut_ptr(),
            byte_offset: 0,
        };
        let managed: *mut M = this.managed.insert(make(tensor, context));
        // SAFETY: the name lives for ever, the structure until its deleter is called.
        unsafe {
            let capsule =
                ffi::PyCapsule_New(managed.cast(), M::NAME.as_ptr(), Some(destroy_capsule::<M>));
            if capsule.is_null() {
                delete::<M>(managed);
            }
            Bound::from_owned_ptr_or_err(py, capsule).map(Bound::unbind)
        }
    }
}

/// Ends an export; on any thread, with or without the interpreter.
unsafe extern "C" fn delete<M: Managed>(managed: *mut M) {
    // SAFETY: `context` is the box that `Exported::capsule` leaked; called once, by who took it.
    contained(|| unsafe { drop(Box::from_raw((*managed).context().cast::<Exported<M>>())) });
}

/// Releases what nobody took.
unsafe extern "C" fn destroy_capsule<M: Managed>(capsule: *mut ffi::PyObject) {
    let name: *const c_char = M::NAME.as_ptr();
    // SAFETY: called by the interpreter with a capsule of ours; taken ones have another name.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, name) != 0 {
            delete(ffi::PyCapsule_GetPointer(capsule, name).cast::<M>());
        }
    }
}

/// A capsule for another library: a copy of its own, which it may write to. With `copy=False` it
/// shares the memory, marked read-only; not every consumer obeys the mark, and what one writes
/// there changes values that are shared or saved.
#[pyfunction]
#[pyo3(signature = (tensor, max_version=None, copy=None))]
fn _to_dlpack(
    py: Python<'_>,
    tensor: &Bound<'_, PyAny>,
    max_version: Option<(u32, u32)>,
    copy: Option<bool>,
) -> PyResult<Py<PyAny>> {
    // SAFETY: a live object.
    let Some(handle) = (unsafe { tensor::downcast(tensor.as_ptr()) }) else {
        return Err(convert::refuse("__dlpack__", tensor));
    };
    let array = tensor::data(py, "__dlpack__", handle)?;
    buffer::on_host("__dlpack__", &array).or_raise(py)?;
    let versioned = max_version.is_some_and(|(major, _)| major >= MAJOR);
    if copy == Some(false) && !versioned {
        let text = "__dlpack__: copy=False needs a consumer of DLPack 1: older ones cannot be told \
                    that the memory is read-only";
        return Err(PyBufferError::new_err(text));
    }
    if !versioned {
        let array = fresh_copy(&array).or_raise(py)?;
        return Exported::capsule(py, array, |tensor, context| Legacy {
            tensor,
            context,
            deleter: Some(delete),
        });
    }
    let (array, flags) = match copy {
        Some(false) => (array, READ_ONLY),
        Some(true) | None => (fresh_copy(&array).or_raise(py)?, IS_COPIED),
    };
    Exported::capsule(py, array, |tensor, context| Versioned {
        major: MAJOR,
        minor: MINOR,
        context,
        deleter: Some(delete),
        flags,
        tensor,
    })
}

/// Adds the functions to the module.
pub fn install(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(pyo3::wrap_pyfunction!(from_dlpack, module)?)?;
    module.add_function(pyo3::wrap_pyfunction!(_to_dlpack, module)?)
}
