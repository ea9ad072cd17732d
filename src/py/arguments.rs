//! Python arguments by declared parameters: the one parser behind every function and method.

use std::os::raw::c_char;

use pyo3::exceptions::PyTypeError;
use pyo3::ffi;
use pyo3::prelude::*;
use smallvec::SmallVec;

use super::convert;
use super::dtype;
use super::errors::{OrRaise, to_python};
use super::size;
use super::tensor;
use crate::array::Array;
use crate::dtype::{DType, Numeric, Scalar};
use crate::engine::executors::{Device, device};
use crate::engine::random;
use crate::engine::tape::{Operand, Value};
use crate::engine::transfer;
use crate::error;
use crate::ops::declare::{Attr, Param, ParamKind, attribute_of, number};
use crate::ops::table;
use crate::shape::Extent;

/// A parsed operand.
#[derive(Clone)]
pub enum Held {
    /// A tensor's value, sharing its memory
    Value(Value),
    /// What a tensor is made of for this call: it lies where the tensors beside it do
    Data(Value),
    /// A Python number, or one of a trace
    Scalar(Numeric),
}

impl Held {
    /// As the engine takes it.
    pub fn operand(&self) -> Operand<'_> {
        match self {
            Held::Value(value) | Held::Data(value) => Operand::Value(value),
            Held::Scalar(scalar) => Operand::Scalar(*scalar),
        }
    }

    /// The value, unless it is a number.
    pub fn into_value(self) -> Option<Value> {
        match self {
            Held::Value(value) | Held::Data(value) => Some(value),
            Held::Scalar(_) => None,
        }
    }

    /// The array of a tensor.
    pub fn tensor(&self) -> Option<&Array> {
        match self {
            Held::Value(value) => Some(&value.array),
            Held::Data(_) | Held::Scalar(_) => None,
        }
    }

    /// The value; data on a device.
    pub fn placed(self, on: Device) -> error::Result<Option<Value>> {
        match self {
            Held::Value(value) => Ok(Some(value)),
            Held::Data(value) => transfer::placed(value, on).map(Some),
            Held::Scalar(_) => Ok(None),
        }
    }
}

/// The parsed arguments of one call.
#[derive(Default)]
pub struct Parsed {
    /// One attribute per parameter
    pub attributes: SmallVec<[Attr; 8]>,
    /// The operands that the attributes refer to, in order
    pub operands: SmallVec<[Held; 4]>,
    /// The device that was asked for
    pub device: Option<Device>,
}

/// Takes operands to where the call runs: data to the tensors beside it, or, where a device was asked
/// for, everything there.
#[cold]
pub fn place(py: Python<'_>, device: Option<Device>, held: &mut [Held]) -> PyResult<()> {
    placed(device, held).or_raise(py)
}

fn placed(device: Option<Device>, held: &mut [Held]) -> error::Result<()> {
    let beside = held.iter().find_map(|x| match x {
        Held::Value(value) => Some(value.device()),
        Held::Data(_) | Held::Scalar(_) => None,
    });
    let to = device.or(beside).unwrap_or_else(device::current);
    for x in held {
        match x {
            Held::Data(value) => *value = transfer::placed(value.clone(), to)?,
            Held::Value(value) if device.is_some() => *value = transfer::transfer(value, to)?,
            Held::Value(_) | Held::Scalar(_) => {}
        }
    }
    Ok(())
}

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

/// A declared signature, ready for matching.
pub struct Signature {
    /// The op's name
    pub name: &'static str,
    /// The parameters
    pub params: &'static [Param],
    /// Interned names, for comparison by address
    names: Vec<Py<PyAny>>,
    defaults: Vec<Option<Attr>>,
    variadic: Option<usize>,
    positional: usize,
    /// Whether parsing draws the keys that are not given
    pub draws: bool,
}

type Slots = SmallVec<[*mut ffi::PyObject; 12]>;

impl Signature {
    /// Prepares a declaration.
    pub fn new(py: Python<'_>, name: &'static str, params: &'static [Param]) -> Signature {
        let intern = |p: &Param| pyo3::types::PyString::intern(py, p.name).into_any().unbind();
        let default = |p: &Param| p.default.map(crate::ops::declare::parse_default);
        Signature {
            name,
            params,
            names: params.iter().map(intern).collect(),
            defaults: params.iter().map(default).collect(),
            variadic: Signature::find_variadic(params),
            positional: params.iter().filter(|p| !p.keyword_only).count(),
            draws: params.iter().any(|p| p.kind == ParamKind::Key),
        }
    }

    /// Parses a call into `parsed`, which is empty. (It is large; handing it out would move it.)
    ///
    /// # Safety
    /// `args` holds `count` positional arguments followed by one for each name in `keywords`.
    pub unsafe fn parse(
        &self,
        py: Python<'_>,
        args: &[*mut ffi::PyObject],
        count: usize,
        keywords: *mut ffi::PyObject,
        parsed: &mut Parsed,
    ) -> PyResult<()> {
        // SAFETY: as the caller's.
        let (slots, rest) = unsafe { self.place(args, count, keywords)? };
        let variadic = self.variadic.filter(|_| rest.is_some());
        for (i, (param, &slot)) in self.params.iter().zip(slots.as_slice()).enumerate() {
            let attr = if let (Some(rest), true) = (&rest, Some(i) == variadic) {
                parse_many(py, self.name, param, rest, &mut parsed.operands)?
            } else if !slot.is_null() {
                // SAFETY: a borrowed argument, alive during the call.
                let object = unsafe { Bound::from_borrowed_ptr(py, slot) };
                if param.kind == ParamKind::MaybeDevice {
                    parsed.device = convert::device(self.name, &object)?;
                }
                parse_one(self.name, param, &object, &mut parsed.operands)?
            } else if self.takes_none(i) {
                Attr::Operands(0)
            } else {
                self.default(py, i, &mut parsed.operands)?
            };
            parsed.attributes.push(attr);
        }
        let takes_number = |operand: usize| {
            attribute_of(&parsed.attributes, operand).is_some_and(|i| {
                matches!(self.params[i].kind, ParamKind::Number | ParamKind::MaybeNumber)
            })
        };
        size::settle(py, parsed.device, &mut parsed.operands, takes_number)
    }

    /// The parameter that takes several positional arguments: the last positional one, where it is
    /// a sequence of tensors, or the shape that a tensor is to have. (Functions that make tensors take
    /// a shape as one argument: in `uniform(0, 1)` the numbers are no sizes.)
    pub fn find_variadic(params: &[Param]) -> Option<usize> {
        let last = params.iter().rposition(|p| !p.keyword_only)?;
        match params[last].kind {
            ParamKind::Shape => (last > 0).then_some(last),
            ParamKind::Tensors => Some(last),
            ParamKind::Tensor(_)
            | ParamKind::MaybeTensor(_)
            | ParamKind::Bool
            | ParamKind::MaybeBool
            | ParamKind::Int
            | ParamKind::MaybeInt
            | ParamKind::Float
            | ParamKind::MaybeFloat
            | ParamKind::Number
            | ParamKind::MaybeNumber
            | ParamKind::Ints
            | ParamKind::Pairs
            | ParamKind::DType
            | ParamKind::MaybeDType
            | ParamKind::Word(_)
            | ParamKind::Text
            | ParamKind::MaybeDevice
            | ParamKind::Key => None,
        }
    }

    /// More positional arguments than there are places for them.
    fn too_many(&self, count: usize) -> String {
        let names = |keyword_only: bool| {
            let chosen = self.params.iter().filter(move |p| p.keyword_only == keyword_only);
            chosen.map(|p| p.name).collect::<Vec<_>>()
        };
        let (places, keywords) = (names(false), names(true));
        let mut text = format!(
            "{}: takes {} positional arguments ({}), got {count}",
            self.name,
            places.len(),
            places.join(", ")
        );
        if !keywords.is_empty() {
            let written: Vec<String> = keywords.iter().map(|name| format!("{name}=")).collect();
            text += &format!("; by keyword only: {}", written.join(", "));
        }
        text
    }

    /// Matches arguments with parameters.
    #[allow(clippy::type_complexity)]
    unsafe fn place(
        &self,
        args: &[*mut ffi::PyObject],
        count: usize,
        keywords: *mut ffi::PyObject,
    ) -> PyResult<(Slots, Option<Slots>)> {
        let mut slots: Slots = SmallVec::from_elem(std::ptr::null_mut(), self.params.len());
        let positional = self.positional;
        let mut rest = None;
        let mut direct = count;
        if let Some(last) = self.variadic {
            // One tensor where several may stand is one operand, not a sequence of its rows.
            // SAFETY: a live argument.
            let alone = || unsafe { tensor::downcast(args[last]).is_some() };
            let tensors = self.params[last].kind == ParamKind::Tensors;
            if count > last + 1 || (count == last + 1 && tensors && alone()) {
                rest = Some(SmallVec::from_slice(&args[last..count]));
                direct = last;
            }
        }
        if direct > positional {
            return Err(PyTypeError::new_err(self.too_many(count)));
        }
        slots[..direct].copy_from_slice(&args[..direct]);
        // SAFETY: a tuple of names, or null.
        let named = if keywords.is_null() { 0 } else { unsafe { ffi::PyTuple_Size(keywords) } };
        for k in 0..named {
            // SAFETY: `k` is inside the tuple.
            let name = unsafe { ffi::PyTuple_GetItem(keywords, k) };
            let Some(i) = self.find(name) else {
                let all: Vec<String> = (0..named)
                    // SAFETY: `k` is inside the tuple.
                    .map(|k| text(unsafe { ffi::PyTuple_GetItem(keywords, k) }))
                    .collect();
                let all: Vec<&str> = all.iter().map(String::as_str).collect();
                return Err(PyTypeError::new_err(self.unexpected(&text(name), &all)));
            };
            if !slots[i].is_null() || (rest.is_some() && Some(i) == self.variadic) {
                let message =
                    format!("{}: argument '{}' given twice", self.name, self.params[i].name);
                return Err(PyTypeError::new_err(message));
            }
            slots[i] = args[count + k as usize];
        }
        Ok((slots, rest))
    }

    /// An argument by a name that no parameter has.
    fn unexpected(&self, name: &str, keywords: &[&str]) -> String {
        let takes: Vec<&str> = self.params.iter().map(|p| p.name).collect();
        let mut text = format!(
            "{}: unexpected keyword argument '{name}'; it takes {}",
            self.name,
            takes.join(", ")
        );
        // NumPy's reductions call the method of what is no array of theirs, with `out`.
        if keywords.contains(&"out") {
            let entry = table().iter().find(|entry| entry.name() == self.name);
            let space = entry.map_or("", |entry| entry.namespace());
            let dot = if space.is_empty() { "" } else { "." };
            text += &format!(
                "; NumPy's functions take arrays: use wg.{space}{dot}{}(x), or hand them x.numpy()",
                self.name
            );
        }
        text
    }

    fn find(&self, name: *mut ffi::PyObject) -> Option<usize> {
        let same = |n: &Py<PyAny>| n.as_ptr() == name;
        self.names.iter().position(same).or_else(|| {
            let name = text(name);
            self.params.iter().position(|p| p.name == name)
        })
    }

    /// Whether leaving out a parameter means no tensors.
    fn takes_none(&self, i: usize) -> bool {
        self.variadic == Some(i) && self.params[i].kind == ParamKind::Tensors
    }

    fn default(
        &self,
        py: Python<'_>,
        i: usize,
        operands: &mut SmallVec<[Held; 4]>,
    ) -> PyResult<Attr> {
        let param = &self.params[i];
        match (&self.defaults[i], param.kind) {
            (_, ParamKind::Key) => {
                operands.push(Held::Data(random::draw().or_raise(py)?));
                Ok(Attr::Operand)
            }
            (None, _) => Err(PyTypeError::new_err(format!(
                "{}: missing argument '{}'",
                self.name, param.name
            ))),
            (Some(attr), ParamKind::Number | ParamKind::MaybeNumber | ParamKind::Tensor(_)) => {
                match number(attr) {
                    Some(scalar) => {
                        operands.push(Held::Scalar(scalar.into()));
                        Ok(Attr::Operand)
                    }
                    None => Ok(attr.clone()),
                }
            }
            (Some(attr), _) => Ok(attr.clone()),
        }
    }
}

fn text(name: *mut ffi::PyObject) -> String {
    // SAFETY: keyword names are strings; a failure leaves an exception, which is cleared.
    unsafe {
        let mut length = 0;
        let utf8 = ffi::PyUnicode_AsUTF8AndSize(name, &mut length);
        if utf8.is_null() {
            ffi::PyErr_Clear();
            return String::new();
        }
        let bytes = std::slice::from_raw_parts(utf8.cast::<u8>(), length as usize);
        String::from_utf8_lossy(bytes).into_owned()
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
fn parse_many(
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

fn parse_one(
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
            operands.push(Held::Data(random::draw().or_raise(object.py())?));
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
            if let Some(n) = int(op, object)? {
                return Ok(n.into());
            }
            let mut ints = Ints::default();
            if !collect(op, object, if nested { 3 } else { 1 }, &mut ints)? {
                return no(want);
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
    if let Some(number) = size::operand(object)? {
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

/// An int of 64 bits, or anything with `__index__` (bools are refused: `axis=True` is a mistake), or a
/// size.
#[inline]
pub fn index(object: &Bound<'_, PyAny>) -> Option<Extent> {
    // SAFETY: a live object, whose type is checked first.
    unsafe {
        if ffi::PyLong_CheckExact(object.as_ptr()) != 0 {
            let mut overflow = 0;
            let n = ffi::PyLong_AsLongLongAndOverflow(object.as_ptr(), &mut overflow);
            if overflow == 0 {
                return Some(Extent::Number(n));
            }
        }
    }
    index_of_any(object, false)
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

/// A C string that lives as long as the program.
pub fn leak(text: String) -> *const c_char {
    let text = std::ffi::CString::new(text.replace('\0', " ")).unwrap_or_default();
    Box::leak(text.into_boxed_c_str()).as_ptr()
}
