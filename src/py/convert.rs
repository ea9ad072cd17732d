//! Python data to values and back: numbers and nested sequences, each in both directions. (Buffers
//! are in `buffer`.)

use std::os::raw::c_int;

use pyo3::exceptions::PyTypeError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString, PyTuple};
use smallvec::SmallVec;

use super::arguments::{Held, scalar};
use super::buffer::from_buffer;
use super::errors::{OrRaise, to_python};
use super::number;
use super::tensor;
use crate::array::Array;
use crate::dtype::{Class, DType, Scalar};
use crate::engine::eager::apply::apply;
use crate::engine::executors::{self, Device};
use crate::engine::tape::{self, Operand, Value};
use crate::engine::trace;
use crate::engine::transfer::{placed, transfer};
use crate::error;
use crate::memory::check_room;
use crate::ops::op::Op;
use crate::scalar::half;
use crate::shape::{MAX_RANK, Shape};

/// The device of a name, `None` for `None`. Refuses devices that do not exist here.
pub fn device(op: &str, object: &Bound<'_, PyAny>) -> PyResult<Option<Device>> {
    if object.is_none() {
        return Ok(None);
    }
    let name = object.str()?;
    executors::named(op, &name.to_cow()?).map(Some).or_raise(object.py())
}

/// A value from anything array-like: one with a device of its own where tensors are in it, else
/// data. `None` if the object is nothing of the kind.
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
    if let Some(value) = number::as_tensor(op, object, dtype, trace::device())? {
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

/// A sequence with arrays or tensors in it: stacked. Numbers and arrays go to where the tensors
/// are.
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

/// What nested lists take, at the least: each list, and a place in one for each number or list.
/// Numbers may be shared.
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
