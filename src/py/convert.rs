//! Python data to values and back: numbers, nested sequences, buffers.
//!
//! Long, because of each of these three both directions stand together.

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::os::raw::{c_char, c_int, c_void};
use std::ptr::null_mut;

use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString, PyTuple};
use smallvec::SmallVec;

use super::arguments::{Held, scalar};
use super::errors::{OrRaise, to_python};
use super::size;
use super::tensor;
use super::unwind::{contained, guard};
use crate::array::Array;
use crate::dtype::{Class, DType, Scalar};
use crate::engine::eager::apply::apply;
use crate::engine::executors::{self, Device};
use crate::engine::tape::{self, Operand, Value};
use crate::engine::trace;
use crate::engine::transfer::{placed, transfer};
use crate::error;
use crate::layout::Layout;
use crate::memory::Buffer;
use crate::memory::check_room;
use crate::ops::op::Op;
use crate::scalar::half;
use crate::shape::{MAX_RANK, Shape};

/// The device of a name, `None` for `None`. Refuses devices this build does not have.
pub fn device(op: &str, object: &Bound<'_, PyAny>) -> PyResult<Option<Device>> {
    if object.is_none() {
        return Ok(None);
    }
    let name = object.str()?;
    match Device::named(&name.to_cow()?) {
        Some(device) => Ok(Some(device)),
        None => {
            let known = Device::ALL.map(Device::name).join(" and ");
            Err(to_python(object.py(), error::unknown_device(op, name, known)))
        }
    }
}

/// A value from anything array-like: one with a device of its own where tensors are in it, else data.
/// `None` if the object is nothing of the kind.
pub fn from_object(
    op: &str,
    object: &Bound<'_, PyAny>,
    dtype: Option<DType>,
) -> PyResult<Option<Held>> {
    from_object_on(op, object, dtype, None)
}

/// The same, with the tensors in it taken to a device, where one was asked for.
pub fn from_object_on(
    op: &str,
    object: &Bound<'_, PyAny>,
    dtype: Option<DType>,
    to: Option<Device>,
) -> PyResult<Option<Held>> {
    // SAFETY: a live object.
    if let Some(tensor) = unsafe { tensor::downcast(object.as_ptr()) } {
        let value = tensor.value();
        let moved = to.map_or_else(|| Ok(value.clone()), |to| transfer(&value, to));
        return moved.or_raise(object.py()).map(Held::Value).map(Some);
    }
    if object.is_instance_of::<PyList>() || object.is_instance_of::<PyTuple>() {
        return from_sequence(op, object, dtype, to).map(Some);
    }
    Ok(from_data(op, object, dtype)?.map(Held::Data))
}

/// A value from what is neither a tensor nor a sequence of Python's.
fn from_data(op: &str, object: &Bound<'_, PyAny>, dtype: Option<DType>) -> PyResult<Option<Value>> {
    let py = object.py();
    if object.is_instance_of::<PyString>() || object.is_instance_of::<PyDict>() {
        return Ok(None);
    }
    if let Some(number) = scalar(object.as_ptr()) {
        let numbers = Numbers { list: vec![number], double: is_double(object) };
        return from_numbers(py, op, Shape::scalar(), &numbers, dtype).map(Some);
    }
    if let Some(value) = size::as_tensor(object, dtype)? {
        return Ok(Some(value));
    }
    // SAFETY: a live object.
    if unsafe { ffi::PyObject_CheckBuffer(object.as_ptr()) } != 0
        && !object.is_instance_of::<pyo3::types::PyBytes>()
    {
        return from_buffer(op, object).map(Some);
    }
    if let Ok(method) = object.getattr("__array__") {
        let held = from_object(op, &method.call0()?, dtype)?;
        return Ok(held.and_then(Held::into_value));
    }
    if object.hasattr("__dlpack__")? {
        return super::dlpack::import(op, object).map(Some);
    }
    Ok(None)
}

/// Numbers without a dtype, but for doubles of NumPy.
#[derive(Default)]
struct Numbers {
    list: Vec<Scalar>,
    /// Whether one of them is a `numpy.float64`
    double: bool,
}

/// Whether a Python float is a `numpy.float64`: a subclass with a buffer. NumPy's other scalars are
/// no Python numbers, and arrive as arrays.
fn is_double(object: &Bound<'_, PyAny>) -> bool {
    let p = object.as_ptr();
    // SAFETY: a live object.
    unsafe {
        ffi::PyFloat_Check(p) != 0
            && ffi::PyFloat_CheckExact(p) == 0
            && ffi::PyObject_CheckBuffer(p) != 0
    }
}

/// How many Python objects are read or made between two looks at what else is to be done.
const PACE: usize = 1 << 16;

/// Obeys signals, and lets other threads of Python run.
fn give_way(py: Python<'_>) -> PyResult<()> {
    py.check_signals()?;
    py.detach(|| ());
    Ok(())
}

/// Numbers of nested lists and tuples, row by row.
fn from_sequence(
    op: &str,
    object: &Bound<'_, PyAny>,
    dtype: Option<DType>,
    to: Option<Device>,
) -> PyResult<Held> {
    let mut sizes: SmallVec<[usize; 6]> = SmallVec::new();
    let mut numbers = Numbers::default();
    let mut others = false;
    walk(op, object, 0, &mut sizes, &mut numbers, &mut others)?;
    if others {
        return from_parts(op, object, dtype, to);
    }
    from_numbers(object.py(), op, Shape::of(&sizes), &numbers, dtype).map(Held::Data)
}

fn walk(
    op: &str,
    object: &Bound<'_, PyAny>,
    depth: usize,
    sizes: &mut SmallVec<[usize; 6]>,
    numbers: &mut Numbers,
    others: &mut bool,
) -> PyResult<()> {
    let py = object.py();
    let sequence = object.is_instance_of::<PyList>() || object.is_instance_of::<PyTuple>();
    if !sequence {
        match scalar(object.as_ptr()) {
            Some(number) => {
                numbers.double |= is_double(object);
                numbers.list.push(number);
            }
            None => *others = true,
        }
        if depth < sizes.len() && !*others {
            return Err(to_python(py, error::ragged(op, "a number", sizes[depth])));
        }
        return Ok(());
    }
    if depth >= MAX_RANK {
        return Err(to_python(py, error::too_many_axes(op, depth + 1, MAX_RANK)));
    }
    let n = object.len()?;
    match sizes.get(depth) {
        Some(&size) if size != n => return Err(to_python(py, error::ragged(op, size, n))),
        Some(_) => {}
        None if !numbers.list.is_empty() => {
            return Err(to_python(py, error::ragged(op, "a number", n)));
        }
        None => sizes.push(n),
    }
    for item in object.try_iter()? {
        walk(op, &item?, depth + 1, sizes, numbers, others)?;
        if numbers.list.len() % PACE == PACE - 1 {
            give_way(py)?;
        }
    }
    Ok(())
}

/// A sequence with arrays or tensors in it: stacked. Numbers and arrays go to where the tensors are.
fn from_parts(
    op: &str,
    object: &Bound<'_, PyAny>,
    dtype: Option<DType>,
    to: Option<Device>,
) -> PyResult<Held> {
    let py = object.py();
    let mut parts = Vec::new();
    for item in object.try_iter()? {
        let item = item?;
        let Some(held) = from_object_on(op, &item, dtype, to)? else {
            if is_complex(&item) {
                return Err(refuse(op, &item));
            }
            let kind = item.get_type().name()?;
            return Err(to_python(
                py,
                error::bad_type(op, "expected numbers or arrays", format!("got {kind}")),
            ));
        };
        parts.push(held);
    }
    let tensors: Vec<Array> = parts.iter().filter_map(Held::tensor).cloned().collect();
    let Some(first) = tensors.first() else {
        let parts = parts.into_iter().filter_map(Held::into_value).collect();
        return stacked(py, op, parts, dtype).map(Held::Data);
    };
    executors::common(op, &tensors).or_raise(py)?;
    let on = first.device();
    let beside = |held: Held| match held {
        Held::Data(value) => Some(placed(value, on)),
        Held::Value(_) | Held::Scalar(_) => held.into_value().map(Ok),
    };
    let parts: error::Result<Vec<Value>> = parts.into_iter().filter_map(beside).collect();
    stacked(py, op, parts.or_raise(py)?, dtype).map(Held::Value)
}

/// Values of one device behind each other along a new axis.
fn stacked(py: Python<'_>, op: &str, parts: Vec<Value>, dtype: Option<DType>) -> PyResult<Value> {
    if trace::active() || parts.iter().any(|part| !part.array.is_on_host()) {
        return stack_traced(op, &parts).or_raise(py);
    }
    let parts: Vec<Array> = parts.into_iter().map(|part| part.array).collect();
    let Some(first) = parts.first() else {
        return from_numbers(py, op, Shape::of(&[0]), &Numbers::default(), dtype);
    };
    let mut common = first.dtype;
    for part in &parts {
        common = common
            .promote(part.dtype)
            .ok_or_else(|| error::no_promotion(op, common, part.dtype))
            .or_raise(py)?;
        if !part.shape().equals(first.shape()) {
            return Err(to_python(py, error::ragged(op, first.shape(), part.shape())));
        }
    }
    let mut row = first.shape().clone();
    row.dims_mut().insert(0, 1.into());
    let rows: error::Result<Vec<Array>> = parts
        .iter()
        .map(|part| {
            let part = executors::contiguous(&executors::cast(part, common)?)?;
            Ok(part.view(part.layout.reshape(&row).unwrap_or_else(|| part.layout.clone())))
        })
        .collect();
    let rows = rows.or_raise(py)?;
    let refs: Vec<&Array> = rows.iter().collect();
    Ok(Value::plain(executors::concat(&refs, 0).or_raise(py)?))
}

/// Values behind each other along a new axis, as nodes.
fn stack_traced(op: &str, parts: &[Value]) -> error::Result<Value> {
    let Some(first) = parts.first() else {
        return Err(error::bad_value(op, "nothing to stack", "got an empty sequence"));
    };
    let mut common = first.dtype();
    let mut row = first.shape().clone();
    row.dims_mut().insert(0, 1.into());
    for part in parts {
        let known = common.promote(part.dtype());
        common = known.ok_or_else(|| error::no_promotion(op, common, part.dtype()))?;
    }
    let mut rows = Vec::new();
    for part in parts {
        let cast = apply(Op::Cast(common), &[Operand::Value(part)], tape::recording())?;
        let shaped = Op::Reshape(row.clone());
        rows.push(apply(shaped, &[Operand::Value(&cast)], tape::recording())?);
    }
    let operands: Vec<Operand<'_>> = rows.iter().map(Operand::Value).collect();
    apply(Op::Concat(0), &operands, tape::recording()).map_err(|error| error.within(op))
}

fn from_numbers(
    py: Python<'_>,
    op: &str,
    shape: Shape,
    numbers: &Numbers,
    dtype: Option<DType>,
) -> PyResult<Value> {
    let Numbers { list: numbers, double } = numbers;
    let class = numbers.iter().map(|n| n.class()).max();
    let natural = match class {
        None => DType::F32,
        Some(Class::Float) if *double => DType::F64,
        Some(class) => DType::Bool.promote_weak(class),
    };
    let unsigned = numbers.iter().any(|n| matches!(n, Scalar::Uint(_)));
    let dtype =
        dtype.unwrap_or(if unsigned && natural == DType::I64 { DType::U64 } else { natural });
    if let Some(number) = numbers.iter().find(|n| !n.fits(dtype)) {
        return Err(to_python(py, error::overflow(op, number, dtype)));
    }
    if dtype.is_int() && class == Some(Class::Float) {
        let bad = numbers.iter().find(|n| matches!(n, Scalar::Float(x) if !x.is_finite()));
        if let Some(number) = bad {
            return Err(to_python(py, error::overflow(op, number, dtype)));
        }
    }
    // A list may change while it is read, and a class may count otherwise than it lists.
    if numbers.len() != shape.count() {
        return Err(to_python(py, error::ragged(op, shape, format!("{} numbers", numbers.len()))));
    }
    let array = Array::uninit(dtype, shape).or_raise(py)?;
    let size = dtype.size();
    // SAFETY: the array is fresh, C-order, and has exactly `numbers.len()` elements.
    let bytes = unsafe { std::slice::from_raw_parts_mut(array.ptr_mut(), numbers.len() * size) };
    for (place, number) in bytes.chunks_exact_mut(size).zip(numbers) {
        let bits = executors::memory_bits(*number, dtype).to_le_bytes();
        place.copy_from_slice(&bits[..size]);
    }
    Ok(Value::plain(array))
}

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
fn from_buffer(op: &str, object: &Bound<'_, PyAny>) -> PyResult<Value> {
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

/// One element as a Python number.
///
/// # Safety
/// `p` addresses an element of the dtype.
unsafe fn element(dtype: DType, p: *const u8) -> *mut ffi::PyObject {
    // SAFETY: as the caller's; elements are aligned to their size.
    unsafe {
        match dtype {
            DType::Bool => ffi::PyBool_FromLong(c_int::from(*p != 0).into()),
            DType::I8 => ffi::PyLong_FromLong((*p.cast::<i8>()).into()),
            DType::I16 => ffi::PyLong_FromLong((*p.cast::<i16>()).into()),
            DType::I32 => ffi::PyLong_FromLong((*p.cast::<i32>()).into()),
            DType::I64 => ffi::PyLong_FromLongLong(*p.cast::<i64>()),
            DType::U8 => ffi::PyLong_FromLong((*p).into()),
            DType::U16 => ffi::PyLong_FromLong((*p.cast::<u16>()).into()),
            DType::U32 => ffi::PyLong_FromLongLong((*p.cast::<u32>()).into()),
            DType::U64 => ffi::PyLong_FromUnsignedLongLong(*p.cast::<u64>()),
            DType::F16 => ffi::PyFloat_FromDouble(half::f16_to_f32(*p.cast::<u16>()).into()),
            DType::BF16 => ffi::PyFloat_FromDouble(half::bf16_to_f32(*p.cast::<u16>()).into()),
            DType::F32 => ffi::PyFloat_FromDouble((*p.cast::<f32>()).into()),
            DType::F64 => ffi::PyFloat_FromDouble(*p.cast::<f64>()),
        }
    }
}

/// The only element of an array.
pub fn item<'py>(py: Python<'py>, op: &str, array: &Array) -> PyResult<Bound<'py, PyAny>> {
    let remedy = match op {
        "bool" => "use wg.cond or wg.where instead of a Python branch or loop",
        "float" | "int" | "index" | "item" => {
            "compute with the tensor itself; wg.print shows it, wg.cond branches on it"
        }
        _ => "wg.print shows it when the function runs",
    };
    trace::check_data(op, array, remedy).or_raise(py)?;
    if array.count() != 1 {
        return Err(to_python(py, error::not_scalar(op, array.shape())));
    }
    let array = executors::download(array).or_raise(py)?;
    // SAFETY: the element at index zero exists.
    unsafe { Bound::from_owned_ptr_or_err(py, element(array.dtype, array.ptr())) }
}

/// What to do instead of reading data while a function is captured.
pub const LATER: &str = "return the tensor and look at it outside, or use wg.print";

/// Nested lists of Python numbers; a number for a scalar.
pub fn to_list<'py>(py: Python<'py>, array: &Array) -> PyResult<Bound<'py, PyAny>> {
    trace::check_data("tolist", array, LATER).or_raise(py)?;
    let array = executors::download(array).or_raise(py)?;
    let (sizes, strides) = (array.shape().sizes(), array.layout.strides());
    check_room(list_bytes(&sizes)).or_raise(py)?;
    // SAFETY: positions computed from the layout address elements of the array.
    unsafe { nested(py, array.dtype, array.ptr(), &sizes, &strides, &mut 0) }
}

/// What nested lists take, at the least: each list, and a place in one for each number or list. Numbers
/// may be shared.
fn list_bytes(sizes: &[usize]) -> usize {
    const LIST: usize = 56;
    let (mut lists, mut bytes) = (1_usize, 0_usize);
    for &n in sizes {
        let items = lists.saturating_mul(n);
        let places = items.saturating_mul(size_of::<usize>());
        bytes = bytes.saturating_add(lists.saturating_mul(LIST)).saturating_add(places);
        lists = items;
    }
    bytes
}

unsafe fn nested<'py>(
    py: Python<'py>,
    dtype: DType,
    p: *const u8,
    sizes: &[usize],
    strides: &[isize],
    made: &mut usize,
) -> PyResult<Bound<'py, PyAny>> {
    let Some((&n, sizes)) = sizes.split_first() else {
        // SAFETY: as the caller's.
        return unsafe { Bound::from_owned_ptr_or_err(py, element(dtype, p)) };
    };
    let list = PyList::empty(py);
    for i in 0..n {
        let offset = i as isize * strides[0] * dtype.size() as isize;
        // SAFETY: as the caller's, one axis further in.
        list.append(unsafe {
            nested(py, dtype, p.wrapping_offset(offset), sizes, &strides[1..], made)?
        })?;
        *made += 1;
        if made.is_multiple_of(PACE) {
            give_way(py)?;
        }
    }
    Ok(list.into_any())
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
        device => Err(error::not_on_host(op, device)),
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

/// Whether an object is a complex number.
pub fn is_complex(object: &Bound<'_, PyAny>) -> bool {
    object.is_instance_of::<pyo3::types::PyComplex>()
}

/// Raises for objects that convert to nothing.
pub fn refuse(op: &str, object: &Bound<'_, PyAny>) -> PyErr {
    if is_complex(object) {
        return to_python(object.py(), error::no_complex(op, object));
    }
    if object.is_instance_of::<pyo3::types::PyInt>() {
        return to_python(object.py(), error::overflow(op, object, "64 bits"));
    }
    match object.get_type().name() {
        Ok(kind) => to_python(
            object.py(),
            error::bad_type(
                op,
                "expected a number, a nested sequence or an array",
                format!("got {kind}"),
            ),
        ),
        Err(_) => PyTypeError::new_err("unsupported object"),
    }
}
