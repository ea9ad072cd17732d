//! The buffer protocol of Python: arrays of other libraries copied in, tensors lent out read-only.

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::os::raw::{c_char, c_int, c_void};
use std::ptr::null_mut;

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use smallvec::SmallVec;

use super::convert::LATER;
use super::errors::{OrRaise, to_python};
use super::tensor;
use super::unwind::{contained, guard};
use crate::array::Array;
use crate::dtype::DType;
use crate::engine::executors::{self, Device};
use crate::engine::tape::Value;
use crate::engine::trace;
use crate::error;
use crate::layout::Layout;
use crate::memory::Buffer;
use crate::shape::{MAX_RANK, Shape};

fn format_dtype(format: &str, size: usize) -> Option<DType> {
    let code = format.trim_start_matches(['<', '=', '@', '|']);
    let signed = [(1, DType::I8), (2, DType::I16), (4, DType::I32), (8, DType::I64)];
    let unsigned = [(1, DType::U8), (2, DType::U16), (4, DType::U32), (8, DType::U64)];
    let of_size = |list: &[(usize, DType)]| list.iter().find(|(n, _)| *n == size).map(|(_, d)| *d);
    match code {
        "?" => Some(DType::Bool),
        "b" | "h" | "i" | "l" | "q" | "n" => of_size(&signed),
        "B" | "H" | "I" | "L" | "Q" | "N" => of_size(&unsigned),
        "e" => Some(DType::F16),
        "f" => Some(DType::F32),
        "d" => Some(DType::F64),
        _ => None,
    }
}

/// A copy of what a buffer exports: the exporter may write to it later.
pub(super) fn from_buffer(op: &str, object: &Bound<'_, PyAny>) -> PyResult<Value> {
    let py = object.py();
    let mut view = MaybeUninit::<ffi::Py_buffer>::zeroed();
    // SAFETY: filled by the exporter, released below.
    unsafe {
        if ffi::PyObject_GetBuffer(object.as_ptr(), view.as_mut_ptr(), ffi::PyBUF_RECORDS_RO) != 0 {
            return Err(PyErr::fetch(py));
        }
        let mut view = view.assume_init();
        let result = copy_buffer(py, op, &view);
        ffi::PyBuffer_Release(&mut view);
        result
    }
}

/// # Safety
/// The view is filled and not released.
unsafe fn copy_buffer(py: Python<'_>, op: &str, view: &ffi::Py_buffer) -> PyResult<Value> {
    let rank = view.ndim as usize;
    if rank > MAX_RANK {
        return Err(to_python(py, error::too_many_axes(op, rank, MAX_RANK)));
    }
    // NumPy's scalars of dates give bytes without strides, although those were asked for.
    if rank > 0 && (view.shape.is_null() || view.strides.is_null()) {
        let facts = "got a buffer without strides";
        return Err(to_python(py, error::bad_type(op, "expected numbers or arrays", facts)));
    }
    // SAFETY: shape and strides hold `ndim` numbers, format is a C string or null.
    let (sizes, strides, format) = unsafe {
        let list =
            |p: *const isize| if rank == 0 { &[][..] } else { std::slice::from_raw_parts(p, rank) };
        let format = if view.format.is_null() {
            "B"
        } else {
            CStr::from_ptr(view.format).to_str().unwrap_or("")
        };
        (list(view.shape), list(view.strides), format)
    };
    let item = view.itemsize as usize;
    let Some(dtype) = format_dtype(format, item) else {
        if format.contains('Z') {
            let got = format!("an array of format '{format}'");
            return Err(to_python(py, error::no_complex(op, got)));
        }
        let known = "bool, integers and floats of native byte order";
        return Err(to_python(
            py,
            error::bad_type(op, format!("expected {known}"), format!("got format '{format}'")),
        ));
    };
    let shape: Shape = sizes.iter().map(|&n| (n as usize).into()).collect();
    shape.check(op).or_raise(py)?;
    let even =
        strides.iter().all(|s| s % item as isize == 0) && (view.buf as usize).is_multiple_of(item);
    let out = Array::uninit(dtype, shape.clone()).or_raise(py)?;
    if shape.count() == 0 {
        return Ok(Value::plain(out));
    }
    if !even {
        return Err(to_python(
            py,
            error::bad_value(op, "the array's memory is not aligned", "copy it first"),
        ));
    }
    // The lowest address the strides reach is the start of the memory we look at.
    let reach = |sign: isize| -> isize {
        sizes.iter().zip(strides).map(|(&n, &s)| if s * sign > 0 { (n - 1) * s } else { 0 }).sum()
    };
    let (low, high) = (reach(-1), reach(1));
    let steps: SmallVec<[isize; 6]> = strides.iter().map(|s| s / item as isize).collect();
    let layout = Layout::strided(shape, &steps, (-low) as usize / item);
    // SAFETY: the exporter keeps this range alive until the view is released, after the copy.
    let buffer = unsafe {
        let start = view.buf.cast::<u8>().offset(low);
        Buffer::external(start, (high - low) as usize + item, Box::new(()))
    };
    let source = Array { dtype, layout, data: buffer.into() };
    // SAFETY: the output is fresh.
    unsafe { executors::copy_into(&out, &source) };
    if dtype == DType::Bool {
        // Foreign bools may be any byte; ours are 0 and 1.
        // SAFETY: the output is fresh, C-order, one byte an element.
        let bytes = unsafe { std::slice::from_raw_parts_mut(out.ptr_mut(), out.count()) };
        bytes.iter_mut().for_each(|b| *b = u8::from(*b != 0));
    }
    Ok(Value::plain(out))
}

fn format_code(dtype: DType) -> Option<&'static CStr> {
    Some(match dtype {
        DType::Bool => c"?",
        DType::I8 => c"b",
        DType::I16 => c"h",
        DType::I32 => c"i",
        DType::I64 if size_of::<std::os::raw::c_long>() == 8 => c"l",
        DType::I64 => c"q",
        DType::U8 => c"B",
        DType::U16 => c"H",
        DType::U32 => c"I",
        DType::U64 if size_of::<std::os::raw::c_long>() == 8 => c"L",
        DType::U64 => c"Q",
        DType::F16 => c"e",
        DType::F32 => c"f",
        DType::F64 => c"d",
        DType::BF16 => return None,
    })
}

/// What an exported buffer keeps alive: the array, and the sizes and strides it points to.
struct Export {
    _array: Array,
    sizes: Vec<isize>,
    strides: Vec<isize>,
}

/// Refuses the bytes of a value of another device, where they are to be shared and not copied.
pub fn on_host(op: &str, array: &Array) -> error::Result<()> {
    match array.device() {
        Device::Cpu => Ok(()),
        device @ (Device::Reference | Device::Gpu(_)) => Err(error::not_on_host(op, device)),
    }
}

/// The buffer protocol: a read-only view without a copy.
pub unsafe extern "C" fn get_buffer(
    object: *mut ffi::PyObject,
    view: *mut ffi::Py_buffer,
    flags: c_int,
) -> c_int {
    let mut filled = false;
    // SAFETY: called by the interpreter with a tensor and a view to fill.
    guard(|py| unsafe {
        (*view).obj = null_mut();
        let Some(tensor) = tensor::downcast(object) else { return Ok(null_mut()) };
        let array = tensor.try_value().or_raise(py)?.array;
        trace::check_data("numpy", &array, LATER).or_raise(py)?;
        on_host("numpy", &array).or_raise(py)?;
        let array = tensor::looked_at(py, array)?;
        fill_view(array, object, view, flags).map_err(PyBufferError::new_err)?;
        filled = true;
        Ok(null_mut())
    });
    if filled { 0 } else { -1 }
}

unsafe fn fill_view(
    array: Array,
    object: *mut ffi::PyObject,
    view: *mut ffi::Py_buffer,
    flags: c_int,
) -> Result<(), String> {
    if flags & ffi::PyBUF_WRITABLE == ffi::PyBUF_WRITABLE {
        return Err("a tensor is an immutable value: its buffer is read-only".into());
    }
    let Some(format) = format_code(array.dtype) else {
        return Err(format!(
            "{} has no buffer format; cast first, e.g. x.astype(float32)",
            array.dtype
        ));
    };
    let strided = flags & ffi::PyBUF_STRIDES == ffi::PyBUF_STRIDES;
    if !strided && !array.is_contiguous() {
        return Err("the tensor is not contiguous and the consumer takes no strides".into());
    }
    let size = array.dtype.size() as isize;
    let (p, count) = (array.ptr(), array.count());
    let sizes = array.shape().sizes().iter().map(|&n| n as isize).collect();
    let strides = array.layout.strides().iter().map(|s| s * size).collect();
    let export = Box::leak(Box::new(Export { _array: array, sizes, strides }));
    // SAFETY: the view is ours to fill; the export lives until `release_buffer`.
    unsafe {
        ffi::Py_INCREF(object);
        (*view).obj = object;
        (*view).buf = p as *mut c_void;
        (*view).len = count as isize * size;
        (*view).readonly = 1;
        (*view).itemsize = size;
        (*view).format = if flags & ffi::PyBUF_FORMAT != 0 {
            format.as_ptr() as *mut c_char
        } else {
            null_mut()
        };
        (*view).ndim = export.sizes.len() as c_int;
        let shaped = flags & ffi::PyBUF_ND == ffi::PyBUF_ND;
        (*view).shape = if shaped { export.sizes.as_mut_ptr() } else { null_mut() };
        (*view).strides = if strided { export.strides.as_mut_ptr() } else { null_mut() };
        (*view).suboffsets = null_mut();
        (*view).internal = (export as *mut Export).cast();
    }
    Ok(())
}

/// Ends an export.
pub unsafe extern "C" fn release_buffer(_: *mut ffi::PyObject, view: *mut ffi::Py_buffer) {
    // SAFETY: `internal` is the export leaked by `fill_view`, released once.
    contained(|| unsafe { drop(Box::from_raw((*view).internal.cast::<Export>())) });
}
