//! The type's slots and attributes: operators, indexing, conversions to Python numbers.

use std::os::raw::{c_int, c_void};
use std::ptr::null_mut;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyEllipsis, PyInt, PySlice, PyTuple};
use smallvec::SmallVec;

use super::arguments::{Held, leak, scalar};
use super::convert;
use super::dtype;
use super::errors::{OrRaise, to_python};
use super::functions::{detached, guard, make_leaf, map_held};
use super::size;
use super::tensor::{self, TensorObject};
use crate::engine::apply;
use crate::engine::index::{self, Item};
use crate::engine::tape::{self, History, Operand, Value};
use crate::error;
use crate::ops::elementwise::{Elementwise, arithmetic, bits, comparison};
use crate::ops::op::Op;
use crate::ops::table;
use crate::shape::{Axes, Dim};
use crate::small::small;

type Object = *mut ffi::PyObject;

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

/// An operand of an operator; `None` leaves the operator to the other side.
fn operand(py: Python<'_>, object: Object) -> PyResult<Option<Held>> {
    // SAFETY: operators get live objects.
    if let Some(tensor) = unsafe { tensor::downcast(object) } {
        return Ok(Some(Held::Value(tensor.value())));
    }
    if let Some(scalar) = scalar(object) {
        return Ok(Some(Held::Scalar(scalar)));
    }
    // Arrays join in; lists, strings and strangers do not.
    // SAFETY: as above.
    let any = unsafe { Bound::from_borrowed_ptr(py, object) };
    if let Some(number) = size::operand(&any)? {
        return Ok(Some(Held::Scalar(number)));
    }
    let array =
        any.hasattr("__array__").unwrap_or(false) || any.hasattr("__dlpack__").unwrap_or(false);
    if !array {
        return Ok(None);
    }
    Ok(convert::from_object("asarray", &any, None)?.map(Held::Value))
}

fn not_implemented() -> Object {
    // SAFETY: a new reference to an immortal object.
    unsafe {
        let object = ffi::Py_NotImplemented();
        ffi::Py_INCREF(object);
        object
    }
}

/// The hottest path of all: both operands are tensors with values of their own, or numbers.
///
/// # Safety
/// Live objects, attached thread.
unsafe fn direct<'a>(object: Object) -> Option<Operand<'a>> {
    // SAFETY: as the caller's; no Python code runs before the operand is used up.
    unsafe {
        if ffi::Py_TYPE(object) == tensor::type_object() {
            return (*object.cast::<TensorObject>()).own().map(Operand::Value);
        }
    }
    scalar(object).map(Operand::Scalar)
}

fn is_small(operand: Operand<'_>) -> bool {
    match operand {
        Operand::Value(value) => {
            let shape = value.shape();
            !shape.is_known() || shape.count() <= super::functions::DETACH_ABOVE / 2
        }
        Operand::Scalar(_) => true,
    }
}

unsafe extern "C" fn binary<const I: usize>(a: Object, b: Object) -> Object {
    guard(|py| {
        // SAFETY: live operands of an operator; nothing below runs Python code before they are used.
        if let (Some(x), Some(y)) = unsafe { (direct(a), direct(b)) } {
            let ints = I == QUOTIENT
                && !matches!((x, y), (Operand::Value(v), _) | (_, Operand::Value(v)) if v.dtype().is_float());
            if is_small(x) && is_small(y) && !ints {
                return Ok(tensor::new_object(apply::map(BINARY[I], &[x, y]).or_raise(py)?));
            }
        }
        let (Some(x), Some(y)) = (operand(py, a)?, operand(py, b)?) else {
            return Ok(not_implemented());
        };
        let held = [x, y];
        if I == QUOTIENT {
            return call_named(py, "divide", &held);
        }
        map_held(py, BINARY[I], &held)
    })
}

/// Calls a function of the table that takes tensors only.
fn call_named(py: Python<'_>, name: &str, held: &[Held]) -> PyResult<Object> {
    let entry = table().iter().find(|entry| entry.name() == name && entry.namespace().is_empty());
    let Some(&entry) = entry else {
        return Err(to_python(py, error::internal(format!("{name} is missing"))));
    };
    let parsed = super::arguments::Parsed {
        attributes: entry
            .params()
            .iter()
            .enumerate()
            .map(|(i, p)| match p.default {
                _ if i < held.len() => crate::ops::declare::Attr::Operand,
                Some(default) => crate::ops::declare::parse_default(default),
                None => crate::ops::declare::Attr::None,
            })
            .collect(),
        operands: held.iter().cloned().collect(),
    };
    super::functions::call(py, entry, &parsed)
}

unsafe extern "C" fn in_place<const I: usize>(a: Object, b: Object) -> Object {
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
        let updated = this.with(|value| apply::map_in_place(BINARY[I], value, &[other.operand()]));
        if let Some(value) = updated.or_raise(py)? {
            assign(py, BINARY[I].name, this, value)?;
        }
        // SAFETY: the result of an in-place operator is its left operand.
        unsafe { ffi::Py_INCREF(a) };
        Ok(a)
    })
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
    if *value.shape() != shape {
        let facts = format!("the result has shape {}, the tensor {shape}", value.shape());
        return Err(to_python(py, error::bad_shape(op, "an update keeps the shape", facts)));
    }
    if value.dtype() != dtype {
        return Err(to_python(
            py,
            error::dtype_mismatch(op, format!("{dtype} of the tensor"), value.dtype()),
        ));
    }
    let old = this.update(|slot| {
        if let History::Leaf(leaf) = &slot.history {
            value.history = History::Leaf(leaf.clone());
        }
        std::mem::replace(slot, value)
    });
    drop(old);
    Ok(())
}

unsafe extern "C" fn power(a: Object, b: Object, _modulus: Object) -> Object {
    guard(|py| {
        let (Some(x), Some(y)) = (operand(py, a)?, operand(py, b)?) else {
            return Ok(not_implemented());
        };
        map_held(py, &arithmetic::pow, &[x, y])
    })
}

unsafe extern "C" fn matmul(a: Object, b: Object) -> Object {
    guard(|py| {
        let (Some(x), Some(y)) = (operand(py, a)?, operand(py, b)?) else {
            return Ok(not_implemented());
        };
        call_named(py, "matmul", &[x, y])
    })
}

unsafe extern "C" fn negative(a: Object) -> Object {
    guard(|py| unary(py, &arithmetic::negative, a))
}
unsafe extern "C" fn absolute(a: Object) -> Object {
    guard(|py| unary(py, &arithmetic::abs, a))
}
unsafe extern "C" fn invert(a: Object) -> Object {
    guard(|py| unary(py, &bits::bitwise_invert, a))
}
unsafe extern "C" fn positive(a: Object) -> Object {
    // SAFETY: a live object.
    unsafe { ffi::Py_INCREF(a) };
    a
}

fn unary(py: Python<'_>, def: &'static Elementwise, a: Object) -> PyResult<Object> {
    let Some(x) = operand(py, a)? else { return Ok(not_implemented()) };
    map_held(py, def, &[x])
}

unsafe extern "C" fn compare(a: Object, b: Object, op: c_int) -> Object {
    guard(|py| {
        let (Some(x), Some(y)) = (operand(py, a)?, operand(py, b)?) else {
            return Ok(not_implemented());
        };
        let def = match op {
            ffi::Py_LT => &comparison::less,
            ffi::Py_LE => &comparison::less_equal,
            ffi::Py_EQ => &comparison::equal,
            ffi::Py_NE => &comparison::not_equal,
            ffi::Py_GT => &comparison::greater,
            _ => &comparison::greater_equal,
        };
        map_held(py, def, &[x, y])
    })
}

unsafe extern "C" fn hash(a: Object) -> ffi::Py_hash_t {
    // Identity, shifted as CPython does for addresses; −1 is reserved for errors.
    let hash = (a as usize).rotate_right(4) as ffi::Py_hash_t;
    if hash == -1 { -2 } else { hash }
}

unsafe extern "C" fn length(a: Object) -> ffi::Py_ssize_t {
    let mut n = -1;
    guard(|py| {
        // SAFETY: the slot is called with a tensor.
        let Some(this) = (unsafe { tensor::downcast(a) }) else { return Ok(null_mut()) };
        super::node::check_rank(py, "len", this)?;
        let shape = this.with(|value| value.shape().clone());
        match shape.dims().first() {
            Some(d) => n = d.value() as ffi::Py_ssize_t,
            None => {
                let error =
                    error::bad_type("len", "a tensor without axes has no length", "got shape ()");
                return Err(to_python(py, error));
            }
        }
        Ok(null_mut())
    });
    n
}

unsafe extern "C" fn truth(a: Object) -> c_int {
    let mut result = -1;
    guard(|py| {
        // SAFETY: the slot is called with a tensor.
        let Some(this) = (unsafe { tensor::downcast(a) }) else { return Ok(null_mut()) };
        let array = this.value().array;
        if !crate::engine::trace::is_traced(&array) && array.count() != 1 {
            let what =
                "the truth of a tensor with several elements is ambiguous; use .any() or .all()";
            let error = error::bad_value("bool", what, format!("got shape {}", array.shape()));
            return Err(to_python(py, error));
        }
        result = c_int::from(convert::item(py, "bool", &array)?.is_truthy()?);
        Ok(null_mut())
    });
    result
}

fn number(
    a: Object,
    op: &'static str,
    convert_to: fn(&Bound<'_, PyAny>) -> PyResult<Object>,
) -> Object {
    guard(|py| {
        // SAFETY: the slot is called with a tensor.
        let Some(this) = (unsafe { tensor::downcast(a) }) else { return Ok(not_implemented()) };
        let array = this.value().array;
        convert_to(&convert::item(py, op, &array)?)
    })
}

unsafe extern "C" fn to_float(a: Object) -> Object {
    number(a, "float", |x| Ok(x.py().get_type::<pyo3::types::PyFloat>().call1((x,))?.into_ptr()))
}

unsafe extern "C" fn to_int(a: Object) -> Object {
    number(a, "int", |x| Ok(x.py().get_type::<PyInt>().call1((x,))?.into_ptr()))
}

unsafe extern "C" fn to_index(a: Object) -> Object {
    number(a, "index", |x| {
        // SAFETY: a live number; bool is an int in Python.
        if unsafe { ffi::PyLong_Check(x.as_ptr()) } == 0 {
            return Err(PyTypeError::new_err(
                "index: only an integer tensor with one element can be an index",
            ));
        }
        Ok(x.clone().into_ptr())
    })
}

/// An index as Python wrote it.
fn items(py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<SmallVec<[Item; 4]>> {
    match key.cast::<PyTuple>() {
        Ok(tuple) => tuple.iter().map(|key| item(py, &key)).collect(),
        Err(_) => Ok(small([item(py, key)?].into_iter())),
    }
}

/// A slice with sizes among its bounds.
fn symbolic_slice(key: &Bound<'_, PyAny>) -> PyResult<Option<Item>> {
    let parts = ["start", "stop", "step"].map(|name| key.getattr(name));
    let [start, stop, step] = parts;
    let (start, stop, step) = (start?, stop?, step?);
    if ![&start, &stop].into_iter().any(|x| x.cast::<size::Size>().is_ok()) {
        return Ok(None);
    }
    let bound = |x: &Bound<'_, PyAny>| match (x.is_none(), size::dim(x)) {
        (true, _) => Ok(None),
        (false, Some(dim)) => Ok(Some(dim.to_i64())),
        (false, None) => x.extract::<i64>().map(Some),
    };
    let step = if step.is_none() { None } else { Some(step.extract::<i64>()?) };
    Ok(Some(Item::Slice(bound(&start)?, bound(&stop)?, step)))
}

fn item(py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<Item> {
    if let Ok(size) = key.cast::<size::Size>() {
        return Ok(Item::Int(size.get().0.to_i64()));
    }
    // SAFETY: a live object.
    unsafe {
        if ffi::PyLong_CheckExact(key.as_ptr()) != 0 {
            return super::arguments::index(key).map(Item::Int).ok_or_else(|| {
                to_python(py, error::index_out_of_bounds("getitem", key, "any", "at most 2^63"))
            });
        }
        if let Some(tensor) = tensor::downcast(key.as_ptr()) {
            let value = tensor.value();
            let is_known = !crate::engine::trace::is_traced(&value.array);
            if value.shape().rank() == 0 && value.dtype().is_int() && is_known {
                let n = convert::item(py, "getitem", &value.array)?.extract::<i64>();
                return n.map(Item::Int);
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
    if key.is_instance_of::<PySlice>() {
        if let Some(item) = symbolic_slice(key)? {
            return Ok(item);
        }
        let (mut start, mut stop, mut step) = (0, 0, 0);
        // SAFETY: a slice object. Absent bounds come as the largest or smallest number, which clip to
        // the ends.
        if unsafe { ffi::PySlice_Unpack(key.as_ptr(), &mut start, &mut stop, &mut step) } < 0 {
            return Err(PyErr::fetch(py));
        }
        // Bounds beyond all sizes are the ends.
        let bound = |n: isize| (n != isize::MAX && n != isize::MIN).then_some(n as i64);
        return Ok(Item::Slice(bound(start), bound(stop), Some(step as i64)));
    }
    if let Some(n) = super::arguments::index(key) {
        return Ok(Item::Int(n));
    }
    let scalar = scalar(key.as_ptr()).is_some_and(|s| !matches!(s, crate::dtype::Scalar::Bool(_)));
    if !scalar && let Some(value) = convert::from_object("getitem", key, None)? {
        // An empty list selects nothing, and its dtype says nothing.
        if value.shape().elements().same(0.into()) && value.dtype().is_float() {
            return Ok(Item::Array(Value::plain(
                crate::cpu::cast(&value.array, crate::dtype::DType::I64).or_raise(py)?,
            )));
        }
        return Ok(Item::Array(value));
    }
    let kind = key.get_type().name()?;
    let what = "an index is an int, a slice, None, ..., or an integer or bool array";
    Err(to_python(py, error::bad_type("getitem", what, format!("got {kind}"))))
}

unsafe extern "C" fn get_item(a: Object, key: Object) -> Object {
    guard(|py| {
        // SAFETY: live objects; the slot is called with a tensor.
        let Some(this) = (unsafe { tensor::downcast(a) }) else { return Ok(not_implemented()) };
        let key = unsafe { Bound::from_borrowed_ptr(py, key) };
        let items = items(py, &key)?;
        let held = [Held::Value(this.value())];
        let advanced = items.iter().any(|item| matches!(item, Item::Array(_)));
        let Held::Value(value) = &held[0] else { return Ok(not_implemented()) };
        let result = match advanced {
            true => detached(py, &held, || index::get(value, &items)),
            false => index::get(value, &items),
        };
        Ok(tensor::new_view(result.or_raise(py)?))
    })
}

unsafe extern "C" fn set_item(a: Object, key: Object, v: Object) -> c_int {
    let mut done = false;
    guard(|py| {
        // SAFETY: live objects; the slot is called with a tensor.
        let Some(this) = (unsafe { tensor::downcast(a) }) else { return Ok(null_mut()) };
        if v.is_null() {
            return Err(PyTypeError::new_err("setitem: elements of a tensor cannot be deleted"));
        }
        // Only the interpreter's stack holds it: nobody could see the write. (From 3.14 on the stack
        // borrows from variables, and the count says nothing.)
        // SAFETY: a live object.
        let unseen = !STACK_BORROWS.load(std::sync::atomic::Ordering::Relaxed)
            && this.is_view()
            && unsafe { ffi::Py_REFCNT(a) } == 1;
        if unseen {
            return Err(to_python(py, error::unseen_write("setitem")));
        }
        check_leaf_update(py, "setitem", this)?;
        let key = unsafe { Bound::from_borrowed_ptr(py, key) };
        let items = items(py, &key)?;
        let any = unsafe { Bound::from_borrowed_ptr(py, v) };
        let held = match operand(py, v)? {
            Some(held) => held,
            None => match convert::from_object("setitem", &any, None)? {
                Some(value) => Held::Value(value),
                None => return Err(convert::refuse("setitem", &any)),
            },
        };
        check_fits(py, &held, this)?;
        this.update(|slot| {
            let leaf = match &slot.history {
                History::Leaf(leaf) => Some(leaf.clone()),
                _ => None,
            };
            index::set(slot, &items, held.operand())?;
            if let Some(leaf) = leaf {
                slot.history = History::Leaf(leaf);
            }
            Ok(())
        })
        .or_raise(py)?;
        done = true;
        Ok(null_mut())
    });
    if done { 0 } else { -1 }
}

/// Refuses numbers that the tensor's dtype cannot hold; arrays are cast on assignment.
fn check_fits(py: Python<'_>, held: &Held, this: &TensorObject) -> PyResult<()> {
    let dtype = this.with(|value| value.dtype());
    match held {
        Held::Scalar(s) if !s.fits(dtype) => {
            Err(to_python(py, error::overflow("setitem", s, dtype)))
        }
        _ => Ok(()),
    }
}

unsafe extern "C" fn get_by_position(a: Object, i: ffi::Py_ssize_t) -> Object {
    guard(|py| {
        // SAFETY: the slot is called with a tensor.
        let Some(this) = (unsafe { tensor::downcast(a) }) else { return Ok(null_mut()) };
        let value = this.value();
        // `i` counts from the front here; past the end ends an iteration.
        Ok(tensor::new_view(index::get(&value, &[Item::Int(i as i64)]).or_raise(py)?))
    })
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
        (Py_bf_getbuffer, convert::get_buffer as *mut c_void),
        (Py_bf_releasebuffer, convert::release_buffer as *mut c_void),
    ]);
    slots
}

macro_rules! getter {
    ($name:ident, |$py:ident, $this:ident| $body:expr) => {
        unsafe extern "C" fn $name(a: Object, _: *mut c_void) -> Object {
            guard(|$py| {
                // SAFETY: the descriptor checked that this is a tensor.
                let Some($this) = (unsafe { tensor::downcast(a) }) else { return Ok(null_mut()) };
                $body
            })
        }
    };
}

getter!(get_shape, |py, this| {
    let (shape, value) = this.with(|value| {
        let open = crate::engine::trace::is_traced(&value.array).then(|| value.clone());
        (value.shape().clone(), open)
    });
    if let Some(value) = value
        && let Some(shape) = super::node::open_shape(py, &value)?
    {
        return Ok(shape.into_ptr());
    }
    if shape.dims().iter().all(|dim| dim.known().is_some()) {
        return Ok(PyTuple::new(py, shape.sizes())?.into_ptr());
    }
    let sizes: PyResult<Vec<Py<PyAny>>> =
        shape.dims().iter().map(|&dim| size::object(py, dim)).collect();
    Ok(PyTuple::new(py, sizes?)?.into_ptr())
});
getter!(get_dtype, |py, this| {
    let object = dtype::object(py, this.with(|value| value.dtype()));
    Ok(object.map_or(null_mut(), |object| object.clone_ref(py).into_ptr()))
});
getter!(get_ndim, |py, this| {
    super::node::check_rank(py, "ndim", this)?;
    // SAFETY: a new int.
    Ok(unsafe { ffi::PyLong_FromSize_t(this.with(|value| value.shape().rank())) })
});
getter!(get_size, |py, this| {
    super::node::check_rank(py, "size", this)?;
    let shape = this.with(|value| value.shape().clone());
    let count = shape.dims().iter().fold(Dim::ONE, |n, &dim| n * dim);
    Ok(size::object(py, count)?.into_ptr())
});
getter!(get_itemsize, |_py, this| {
    // SAFETY: a new int.
    Ok(unsafe { ffi::PyLong_FromSize_t(this.with(|value| value.dtype().size())) })
});
getter!(get_nbytes, |py, this| {
    super::node::check_rank(py, "nbytes", this)?;
    // SAFETY: a new int.
    Ok(unsafe {
        ffi::PyLong_FromSize_t(this.with(|value| value.shape().count() * value.dtype().size()))
    })
});
getter!(get_device, |py, _this| Ok(super::host::cpu_device(py)?.into_ptr()));
getter!(get_requires_grad, |_py, this| {
    // SAFETY: a new reference to a bool.
    Ok(unsafe { ffi::PyBool_FromLong(this.with(|value| value.requires_grad()).into()) })
});
getter!(get_is_leaf, |_py, this| {
    let is_leaf = this.with(|value| !matches!(value.history, History::Entry(_)));
    // SAFETY: a new reference to a bool.
    Ok(unsafe { ffi::PyBool_FromLong(is_leaf.into()) })
});
getter!(get_grad, |py, this| {
    let cell = this.with(|value| match &value.history {
        History::Leaf(leaf) => leaf.gradient(),
        _ => Ok(None),
    });
    match cell.or_raise(py)? {
        Some(cell) => Ok(tensor::wrap_shared(py, cell)?.into_ptr()),
        None => Ok(py.None().into_ptr()),
    }
});
getter!(get_t, |py, this| {
    let value = this.value();
    if crate::engine::trace::is_traced(&value.array) {
        // The rank may not be known yet.
        return call_named(py, "transpose", &[Held::Value(value)]);
    }
    let rank = value.shape().rank();
    let axes: Axes = (0..rank).rev().collect();
    permuted(py, &value, axes)
});
getter!(get_mt, |py, this| {
    let value = this.value();
    if crate::engine::trace::is_traced(&value.array) {
        return call_named(py, "matrix_transpose", &[Held::Value(value)]);
    }
    let rank = value.shape().rank();
    if rank < 2 {
        return Err(to_python(py, error::bad_rank("mT", "x", "at least 2", value.shape())));
    }
    let mut axes: Axes = (0..rank).collect();
    axes.swap(rank - 2, rank - 1);
    permuted(py, &value, axes)
});

fn permuted(py: Python<'_>, value: &Value, axes: Axes) -> PyResult<Object> {
    let result = apply::apply(Op::Permute(axes), &[Operand::Value(value)], tape::recording());
    Ok(tensor::new_view(result.or_raise(py)?))
}

unsafe extern "C" fn set_requires_grad(a: Object, v: Object, _: *mut c_void) -> c_int {
    setter(a, v, "requires_grad", |py, this, v| {
        let wanted = v.extract::<bool>()?;
        let (has, is_entry) =
            this.with(|x| (x.requires_grad(), matches!(x.history, History::Entry(_))));
        if is_entry && !wanted {
            let what = "only a leaf can stop requiring a gradient";
            return Err(to_python(
                py,
                error::gradient("requires_grad", what, "use detach() for a result"),
            ));
        }
        if wanted && !has {
            this.update(|value| make_leaf("requires_grad", value)).or_raise(py)?;
        }
        if !wanted && has {
            drop(this.update(|value| std::mem::take(&mut value.history)));
        }
        Ok(())
    })
}

unsafe extern "C" fn set_grad(a: Object, v: Object, _: *mut c_void) -> c_int {
    setter(a, v, "grad", |py, this, v| {
        let leaf = this.with(|value| match &value.history {
            History::Leaf(leaf) => Some(leaf.clone()),
            _ => None,
        });
        let new = if v.is_none() {
            None
        } else {
            // SAFETY: a live object.
            let Some(g) = (unsafe { tensor::downcast(v.as_ptr()) }) else {
                return Err(convert::refuse("grad", v));
            };
            let g = g.value();
            let (shape, dtype) = this.with(|value| (value.shape().clone(), value.dtype()));
            if *g.shape() != shape || g.dtype() != dtype {
                let facts = format!("got {} {} for {dtype} {shape}", g.dtype(), g.shape());
                return Err(to_python(
                    py,
                    error::bad_shape("grad", "a gradient has its tensor's type", facts),
                ));
            }
            Some(g)
        };
        match (leaf, new) {
            (Some(leaf), None) => leaf.set_gradient(None),
            // `x.grad *= 0.5` assigns the cell to itself.
            (Some(leaf), Some(g)) => match leaf.gradient().or_raise(py)? {
                Some(cell) => *cell.lock() = g,
                None => {
                    leaf.set_gradient(Some(std::sync::Arc::new(parking_lot::Mutex::new(g))));
                }
            },
            (None, None) => {}
            (None, Some(_)) => {
                let what = "only a leaf that requires a gradient has one";
                return Err(to_python(
                    py,
                    error::gradient("grad", what, "set requires_grad=True first"),
                ));
            }
        }
        Ok(())
    })
}

fn setter(
    a: Object,
    v: Object,
    name: &str,
    body: impl FnOnce(Python<'_>, &TensorObject, &Bound<'_, PyAny>) -> PyResult<()>,
) -> c_int {
    let mut done = false;
    guard(|py| {
        // SAFETY: the descriptor checked that this is a tensor; `v` is null for a deletion.
        let Some(this) = (unsafe { tensor::downcast(a) }) else { return Ok(null_mut()) };
        if v.is_null() {
            return Err(PyValueError::new_err(format!("{name} cannot be deleted; assign None")));
        }
        let v = unsafe { Bound::from_borrowed_ptr(py, v) };
        body(py, this, &v)?;
        done = true;
        Ok(null_mut())
    });
    if done { 0 } else { -1 }
}

/// The attributes of the type.
pub fn attributes() -> Vec<ffi::PyGetSetDef> {
    let read = |name: &str, get: ffi::getter, doc: &str| ffi::PyGetSetDef {
        name: leak(name.into()),
        get: Some(get),
        set: None,
        doc: leak(doc.into()),
        closure: null_mut(),
    };
    let write = |name: &str, get: ffi::getter, set: ffi::setter, doc: &str| ffi::PyGetSetDef {
        set: Some(set),
        ..read(name, get, doc)
    };
    vec![
        read("shape", get_shape, "The sizes, outermost axis first."),
        read("dtype", get_dtype, "The element type."),
        read("device", get_device, "Where the value lies."),
        read("ndim", get_ndim, "The number of axes."),
        read("size", get_size, "The count of elements."),
        read("itemsize", get_itemsize, "Bytes of one element."),
        read("nbytes", get_nbytes, "Bytes of all elements."),
        read("T", get_t, "The axes in reverse order."),
        read("mT", get_mt, "The last two axes exchanged."),
        read("is_leaf", get_is_leaf, "Whether no recorded op made this value."),
        write(
            "requires_grad",
            get_requires_grad,
            set_requires_grad,
            "Whether backward reaches this value.",
        ),
        write("grad", get_grad, set_grad, "The accumulated gradient of a leaf, or None."),
        // SAFETY: an all-zero definition ends the list.
        unsafe { std::mem::zeroed() },
    ]
}
