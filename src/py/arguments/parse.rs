//! One argument by its declared kind: what Python object each kind takes, and what it becomes.

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use smallvec::SmallVec;

use super::Held;
use crate::dtype::{DType, Scalar};
use crate::engine::random;
use crate::error;
use crate::ops::declare::{Attr, Param, ParamKind};
use crate::py::errors::{OrRaise, to_python};
use crate::py::{convert, dtype, number, size, tensor};
use crate::shape::Extent;
use crate::small::push_with;

/// Ints as they come: numbers, until the first size.
#[derive(Default)]
struct Ints {
    numbers: SmallVec<[i64; 6]>,
    /// All of them, where one is a size
    sizes: Vec<Extent>,
}

impl Ints {
    #[inline]
    fn push(&mut self, n: Extent) {
        match n {
            Extent::Number(n) if self.sizes.is_empty() => self.numbers.push(n),
            Extent::Number(_) | Extent::Size(_) => {
                self.sizes.extend(self.numbers.drain(..).map(Extent::Number));
                self.sizes.push(n);
            }
        }
    }

    fn attr(self) -> Attr {
        match self.sizes.is_empty() {
            true => Attr::Ints(self.numbers),
            false => Attr::Sizes(self.sizes.into()),
        }
    }
}

fn refuse(op: &str, param: &Param, want: &str, object: &Bound<'_, PyAny>) -> PyErr {
    if convert::is_complex(object) {
        return to_python(object.py(), error::no_complex(op, object));
    }
    let kind = object.get_type().name().map(|n| n.to_string()).unwrap_or_default();
    let what = format!("argument '{}' must be {want}", param.name);
    to_python(object.py(), error::bad_type(op, what, format!("got {kind}")))
}

/// Several positional arguments for one parameter.
#[inline]
pub(super) fn parse_many(
    py: Python<'_>,
    op: &str,
    param: &Param,
    rest: &[*mut ffi::PyObject],
    operands: &mut SmallVec<[Held; 4]>,
) -> PyResult<Attr> {
    // SAFETY: borrowed arguments, alive during the call.
    let objects = rest.iter().map(|&object| unsafe { Bound::from_borrowed_ptr(py, object) });
    if param.kind == ParamKind::Tensors {
        for object in objects {
            operands.push(operand(op, param, &object)?);
        }
        return Ok(Attr::Operands(rest.len() as u32));
    }
    // Nearly all sizes are plain ints.
    let mut numbers: SmallVec<[i64; 6]> = SmallVec::new();
    for object in objects.clone() {
        match index(&object) {
            Some(Extent::Number(n)) => numbers.push(n),
            Some(Extent::Size(_)) | None => break,
        }
    }
    if numbers.len() == rest.len() {
        return Ok(Attr::Ints(numbers));
    }
    let mut ints = Ints::default();
    for object in objects {
        ints.push(int(op, &object)?.ok_or_else(|| refuse(op, param, "ints", &object))?);
    }
    Ok(ints.attr())
}

/// Appends the attribute of a plain argument, if it is one.
#[inline]
pub(super) fn push_simple(
    kind: ParamKind,
    object: &Bound<'_, PyAny>,
    attributes: &mut SmallVec<[Attr; 8]>,
) -> bool {
    match kind {
        ParamKind::Ints
        | ParamKind::MaybeBool
        | ParamKind::MaybeInt
        | ParamKind::MaybeFloat
        | ParamKind::MaybeDType
            if object.is_none() =>
        {
            push_with(attributes, || Attr::None)
        }
        ParamKind::Int | ParamKind::MaybeInt | ParamKind::Ints => match plain_index(object) {
            Some(n) => push_with(attributes, || Attr::Int(n)),
            None => return false,
        },
        ParamKind::Bool | ParamKind::MaybeBool => {
            // SAFETY: the two objects are always there.
            let (yes, no) = unsafe { (ffi::Py_True(), ffi::Py_False()) };
            let is_true = object.as_ptr() == yes;
            if !is_true && object.as_ptr() != no {
                return false;
            }
            push_with(attributes, || Attr::Bool(is_true));
        }
        ParamKind::Tensor(_)
        | ParamKind::MaybeTensor(_)
        | ParamKind::Tensors
        | ParamKind::Float
        | ParamKind::MaybeFloat
        | ParamKind::Number
        | ParamKind::MaybeNumber
        | ParamKind::Pairs
        | ParamKind::Shape
        | ParamKind::DType
        | ParamKind::MaybeDType
        | ParamKind::Word(_)
        | ParamKind::Padding
        | ParamKind::Text
        | ParamKind::MaybeDevice
        | ParamKind::Key => return false,
    }
    true
}

/// Appends a default that most parameters have, if it is one.
#[inline]
pub(super) fn push_default(default: &Option<Attr>, attributes: &mut SmallVec<[Attr; 8]>) -> bool {
    match *default {
        Some(Attr::None) => push_with(attributes, || Attr::None),
        Some(Attr::Bool(b)) => push_with(attributes, || Attr::Bool(b)),
        Some(Attr::Int(n)) => push_with(attributes, || Attr::Int(n)),
        Some(Attr::Float(x)) => push_with(attributes, || Attr::Float(x)),
        _ => return false,
    }
    true
}

#[inline]
pub(super) fn parse_one(
    op: &str,
    param: &Param,
    object: &Bound<'_, PyAny>,
    operands: &mut SmallVec<[Held; 4]>,
) -> PyResult<Attr> {
    let none = object.is_none();
    let no = |want: &str| Err(refuse(op, param, want, object));
    Ok(match param.kind {
        ParamKind::MaybeTensor(_) | ParamKind::MaybeNumber if none => Attr::None,
        ParamKind::Tensor(_)
        | ParamKind::MaybeTensor(_)
        | ParamKind::Number
        | ParamKind::MaybeNumber => {
            operands.push(operand(op, param, object)?);
            Attr::Operand
        }
        ParamKind::Key if none => {
            operands.push(Held::Data(random::drawn().or_raise(object.py())?));
            Attr::Operand
        }
        ParamKind::Key => {
            operands.push(operand(op, param, object)?);
            Attr::Operand
        }
        ParamKind::Tensors => {
            let Ok(items) = object.try_iter() else { return no("a sequence of tensors") };
            let mut count = 0;
            for item in items {
                operands.push(operand(op, param, &item?)?);
                count += 1;
            }
            Attr::Operands(count)
        }
        ParamKind::MaybeBool if none => Attr::None,
        ParamKind::Bool | ParamKind::MaybeBool => match truth(object) {
            Some(b) => Attr::Bool(b),
            None => return no("a bool"),
        },
        ParamKind::MaybeInt | ParamKind::Ints | ParamKind::MaybeFloat if none => Attr::None,
        ParamKind::Int | ParamKind::MaybeInt => match int(op, object)? {
            Some(n) => n.into(),
            None => return no("an int"),
        },
        ParamKind::Float | ParamKind::MaybeFloat => match float(object) {
            Some(x) => Attr::Float(x),
            None => return no("a float"),
        },
        ParamKind::Ints | ParamKind::Shape | ParamKind::Pairs => {
            let nested = param.kind == ParamKind::Pairs;
            let want = if nested { "an int or pairs of ints" } else { "an int or a tuple of ints" };
            if let Some(numbers) = plain(object) {
                return Ok(Attr::Ints(numbers));
            }
            if let Some(n) = int(op, object)? {
                return Ok(n.into());
            }
            let mut ints = Ints::default();
            if !collect(op, object, if nested { 3 } else { 1 }, &mut ints)? {
                return no(want);
            }
            ints.attr()
        }
        ParamKind::Padding => {
            if let Some(n) = int(op, object)? {
                return Ok(n.into());
            }
            if let Ok(word) = object.extract::<String>() {
                return Ok(Attr::Text(word.into()));
            }
            let mut ints = Ints::default();
            if !collect(op, object, 1, &mut ints)? {
                return no("an int, a tuple of ints, 'same' or 'valid'");
            }
            ints.attr()
        }
        ParamKind::MaybeDType if none => Attr::None,
        ParamKind::DType | ParamKind::MaybeDType => Attr::DType(dtype::extract(op, object)?),
        ParamKind::Word(_) | ParamKind::Text => match object.extract::<String>() {
            Ok(text) => Attr::Text(text.into()),
            Err(_) => return no("a string"),
        },
        // A graph computes on one device: its nodes do not say which.
        ParamKind::MaybeDevice => Attr::None,
    })
}

/// The numbers of a tuple of plain ints, which nearly all are.
#[inline]
fn plain(object: &Bound<'_, PyAny>) -> Option<SmallVec<[i64; 6]>> {
    let tuple = object.cast_exact::<PyTuple>().ok()?;
    let mut numbers = SmallVec::new();
    for item in tuple.iter_borrowed() {
        match plain_index(&item) {
            Some(n) => numbers.push(n),
            None => return None,
        }
    }
    Some(numbers)
}

/// Appends the ints of a sequence, nested up to `depth` times; false where it holds others.
fn collect(op: &str, object: &Bound<'_, PyAny>, depth: usize, ints: &mut Ints) -> PyResult<bool> {
    if depth == 0 || object.is_instance_of::<pyo3::types::PyString>() {
        return Ok(false);
    }
    let Ok(items) = object.try_iter() else { return Ok(false) };
    for item in items {
        let item = item?;
        match int(op, &item)? {
            Some(n) => ints.push(n),
            None if collect(op, &item, depth - 1, ints)? => {}
            None => return Ok(false),
        }
    }
    Ok(true)
}

/// A tensor or number; arrays of others convert.
fn operand(op: &str, param: &Param, object: &Bound<'_, PyAny>) -> PyResult<Held> {
    // SAFETY: a live object.
    if let Some(tensor) = unsafe { tensor::downcast(object.as_ptr()) } {
        return Ok(Held::Value(tensor.value()));
    }
    if let Some(scalar) = scalar(object.as_ptr()) {
        return Ok(Held::Scalar(scalar.into()));
    }
    if let Some(number) = number::operand(object)? {
        return Ok(Held::Scalar(number));
    }
    match convert::from_object(op, object, None)? {
        Some(held) => Ok(held),
        None => Err(refuse(op, param, "a tensor, an array or a number", object)),
    }
}

/// A Python number as a weak scalar; integers beyond 64 bits are none.
#[inline]
pub fn scalar(object: *mut ffi::PyObject) -> Option<Scalar> {
    // SAFETY: a live object; every branch checks the type first and clears what fails.
    unsafe {
        if ffi::PyFloat_CheckExact(object) != 0 {
            return Some(Scalar::Float(ffi::PyFloat_AS_DOUBLE(object)));
        }
        if ffi::PyBool_Check(object) != 0 {
            return Some(Scalar::Bool(object == ffi::Py_True()));
        }
        if ffi::PyLong_Check(object) != 0 {
            let mut overflow = 0;
            let n = ffi::PyLong_AsLongLongAndOverflow(object, &mut overflow);
            if overflow == 0 {
                return Some(Scalar::Int(n));
            }
            let n = ffi::PyLong_AsUnsignedLongLong(object);
            if !ffi::PyErr_Occurred().is_null() {
                ffi::PyErr_Clear();
                return None;
            }
            return Some(Scalar::Uint(n));
        }
        if ffi::PyFloat_Check(object) != 0 {
            return Some(Scalar::Float(ffi::PyFloat_AsDouble(object)));
        }
    }
    None
}

/// An int of 64 bits, or anything with `__index__` (bools are refused: `axis=True` is a mistake),
/// or a size.
#[inline]
pub fn index(object: &Bound<'_, PyAny>) -> Option<Extent> {
    plain_index(object).map(Extent::Number).or_else(|| index_of_any(object, false))
}

/// A plain int of 64 bits.
#[inline]
fn plain_index(object: &Bound<'_, PyAny>) -> Option<i64> {
    // SAFETY: a live object, whose type is checked first.
    unsafe {
        if ffi::PyLong_CheckExact(object.as_ptr()) == 0 {
            return None;
        }
        let mut overflow = 0;
        let n = ffi::PyLong_AsLongLongAndOverflow(object.as_ptr(), &mut overflow);
        (overflow == 0).then_some(n)
    }
}

/// The same, or the nearest number of 64 bits to a larger one, as bounds of slices are.
pub fn clipped_index(object: &Bound<'_, PyAny>) -> Option<Extent> {
    index(object).or_else(|| index_of_any(object, true))
}

/// The same of an argument, refused where 64 bits do not hold it.
#[inline]
fn int(op: &str, object: &Bound<'_, PyAny>) -> PyResult<Option<Extent>> {
    match index(object) {
        None if index_of_any(object, true).is_some() => {
            Err(to_python(object.py(), error::overflow(op, object, DType::I64)))
        }
        found => Ok(found),
    }
}

/// The same of what is no plain int of 64 bits. Larger numbers are clipped, or none.
fn index_of_any(object: &Bound<'_, PyAny>, clips: bool) -> Option<Extent> {
    if let Ok(size) = object.cast::<size::Size>() {
        return Some(size.get().0.into());
    }
    // SAFETY: a live object; a failed conversion is cleared.
    unsafe {
        if ffi::PyBool_Check(object.as_ptr()) != 0 || ffi::PyIndex_Check(object.as_ptr()) == 0 {
            return None;
        }
        let refused = if clips { std::ptr::null_mut() } else { ffi::PyExc_OverflowError };
        let n = ffi::PyNumber_AsSsize_t(object.as_ptr(), refused);
        if n == -1 && !ffi::PyErr_Occurred().is_null() {
            ffi::PyErr_Clear();
            return None;
        }
        Some(Extent::Number(n as i64))
    }
}

fn truth(object: &Bound<'_, PyAny>) -> Option<bool> {
    match scalar(object.as_ptr()) {
        Some(Scalar::Bool(b)) => Some(b),
        Some(Scalar::Int(0)) => Some(false),
        Some(Scalar::Int(1)) => Some(true),
        Some(_) => None,
        None => object
            .get_type()
            .name()
            .is_ok_and(|n| n == "bool")
            .then(|| object.is_truthy().unwrap_or(false)),
    }
}

fn float(object: &Bound<'_, PyAny>) -> Option<f64> {
    match scalar(object.as_ptr()) {
        Some(Scalar::Bool(_)) => None,
        Some(scalar) => Some(scalar.as_f64()),
        // SAFETY: a live object.
        None if unsafe { tensor::downcast(object.as_ptr()) }.is_some() => None,
        None => object.extract::<f64>().ok(),
    }
}
