//! Python arguments by declared parameters: the one parser behind every function and method.
//!
//! Here arguments are matched with parameters, by place and name; `parse` reads one argument.

mod foreign;
mod look;
mod parse;

use std::os::raw::c_char;

use pyo3::exceptions::PyTypeError;
use pyo3::ffi;
use pyo3::prelude::*;
use smallvec::SmallVec;

use super::convert;
use super::errors::OrRaise;
use super::number::settle;
use super::tensor;
use crate::array::Array;
use crate::dtype::Numeric;
use crate::engine::executors::{Device, device};
use crate::engine::random;
use crate::engine::tape::{Operand, Value};
use crate::engine::transfer;
use crate::error;
use crate::ops::declare::{Attr, Param, ParamKind, Unlike, attribute_of, number};
pub use look::Looked;
pub use parse::{clipped_index, index, scalar};
use parse::{parse_many, parse_one, push_default, push_simple};

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

/// Takes operands to where the call runs: data to the tensors beside it, or, where a device was
/// asked for, everything there.
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

/// A declared signature, ready for matching.
pub struct Signature {
    /// The op's name
    pub name: &'static str,
    /// The parameters
    pub params: &'static [Param],
    /// Why PyTorch's names of parameters are refused, where they are
    unlike: Option<Unlike>,
    /// Interned names, for comparison by address
    names: Vec<Py<PyAny>>,
    defaults: Vec<Option<Attr>>,
    variadic: Option<usize>,
    positional: usize,
    /// Whether parsing draws the keys that are not given
    pub draws: bool,
}

type Slots = SmallVec<[*mut ffi::PyObject; 12]>;

/// Arguments by parameter.
struct Placed<'a> {
    /// Of the first parameters; null for one that has none
    slots: &'a [*mut ffi::PyObject],
    /// Of the parameter that takes several, where it is given several
    rest: Option<&'a [*mut ffi::PyObject]>,
}

impl Placed<'_> {
    /// The argument of a parameter, or null.
    #[inline]
    fn slot(&self, i: usize) -> *mut ffi::PyObject {
        self.slots.get(i).copied().unwrap_or(std::ptr::null_mut())
    }
}

impl Signature {
    /// Prepares a declaration.
    pub fn new(
        py: Python<'_>,
        name: &'static str,
        params: &'static [Param],
        unlike: Option<Unlike>,
    ) -> Signature {
        let intern = |p: &Param| pyo3::types::PyString::intern(py, p.name).into_any().unbind();
        let default = |p: &Param| p.default.map(crate::ops::declare::parse_default);
        Signature {
            name,
            params,
            unlike,
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
        let mut slots = Slots::new();
        // SAFETY: as the caller's.
        let placed = unsafe { self.place(args, count, keywords, &mut slots)? };
        for (i, param) in self.params.iter().enumerate() {
            let slot = placed.slot(i);
            if param.kind == ParamKind::MaybeDevice && !slot.is_null() {
                // SAFETY: a borrowed argument, alive during the call.
                let object = unsafe { Bound::from_borrowed_ptr(py, slot) };
                parsed.device = convert::device(self.name, &object)?;
            }
            self.attribute(py, i, &placed, &mut parsed.attributes, &mut parsed.operands)?;
        }
        let takes_number = |operand: usize| {
            attribute_of(&parsed.attributes, operand).is_some_and(|i| {
                matches!(self.params[i].kind, ParamKind::Number | ParamKind::MaybeNumber)
            })
        };
        settle(py, self.name, parsed.device, &mut parsed.operands, takes_number)
    }

    /// Appends the attribute of a parameter: of its argument, of the several that are its, or its
    /// default. Those that most calls have are written where they stay.
    #[inline]
    fn attribute(
        &self,
        py: Python<'_>,
        i: usize,
        placed: &Placed<'_>,
        attributes: &mut SmallVec<[Attr; 8]>,
        operands: &mut SmallVec<[Held; 4]>,
    ) -> PyResult<()> {
        let (param, slot) = (&self.params[i], placed.slot(i));
        let attribute = match placed.rest {
            Some(rest) if self.variadic == Some(i) => {
                parse_many(py, self.name, param, rest, operands)?
            }
            _ if !slot.is_null() => {
                // SAFETY: a borrowed argument, alive during the call.
                let object = unsafe { Bound::from_borrowed_ptr(py, slot) };
                if push_simple(param.kind, &object, attributes) {
                    return Ok(());
                }
                parse_one(self.name, param, &object, operands)?
            }
            _ if self.takes_none(i) => Attr::Operands(0),
            // Operands, keys among them, are pushed besides.
            _ if !param.kind.takes_operands()
                && param.kind != ParamKind::Key
                && push_default(&self.defaults[i], attributes) =>
            {
                return Ok(());
            }
            _ => self.default(py, i, operands)?,
        };
        attributes.push(attribute);
        Ok(())
    }

    /// The parameter that takes several positional arguments: the last positional one, where it is
    /// a sequence of tensors, or the shape that a tensor is to have. (Functions that make tensors
    /// take a shape as one argument: in `uniform(0, 1)` the numbers are no sizes.)
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
            | ParamKind::Padding
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

    /// Matches arguments with parameters, those with keywords in the slots.
    #[inline]
    unsafe fn place<'a>(
        &self,
        args: &'a [*mut ffi::PyObject],
        count: usize,
        keywords: *mut ffi::PyObject,
        slots: &'a mut Slots,
    ) -> PyResult<Placed<'a>> {
        let mut rest = None;
        let mut direct = count;
        if let Some(last) = self.variadic {
            // One tensor where several may stand is one operand, not a sequence of its rows.
            // SAFETY: a live argument.
            let alone = || unsafe { tensor::downcast(args[last]).is_some() };
            let tensors = self.params[last].kind == ParamKind::Tensors;
            if count > last + 1 || (count == last + 1 && tensors && alone()) {
                rest = Some(&args[last..count]);
                direct = last;
            }
        }
        if direct > self.positional {
            return Err(PyTypeError::new_err(self.too_many(count)));
        }
        let mut placed = Placed { slots: &args[..direct], rest };
        if !keywords.is_null() {
            // SAFETY: as the caller's.
            unsafe { self.place_named(args, count, keywords, &placed, slots)? };
            placed.slots = slots;
        }
        Ok(placed)
    }

    /// Puts arguments with keywords into slots, behind those by place.
    unsafe fn place_named(
        &self,
        args: &[*mut ffi::PyObject],
        count: usize,
        keywords: *mut ffi::PyObject,
        placed: &Placed<'_>,
        slots: &mut Slots,
    ) -> PyResult<()> {
        slots.extend_from_slice(placed.slots);
        slots.resize(self.params.len(), std::ptr::null_mut());
        // SAFETY: a tuple of names.
        let named = unsafe { ffi::PyTuple_Size(keywords) };
        for k in 0..named {
            // SAFETY: `k` is inside the tuple.
            let name = unsafe { ffi::PyTuple_GetItem(keywords, k) };
            let i = match self.find(name) {
                Some(i) => i,
                None => {
                    // SAFETY: `k` is inside the tuple.
                    let at = |k| text(unsafe { ffi::PyTuple_GetItem(keywords, k) });
                    self.foreign(&text(name), &(0..named).map(at).collect::<Vec<_>>())?
                }
            };
            if !slots[i].is_null() || (placed.rest.is_some() && Some(i) == self.variadic) {
                return Err(PyTypeError::new_err(self.twice(i, &text(name))));
            }
            slots[i] = args[count + k as usize];
        }
        Ok(())
    }

    /// The parameter of an interned name.
    #[inline]
    pub fn place_of(&self, name: *mut ffi::PyObject) -> Option<usize> {
        self.names.iter().position(|n| n.as_ptr() == name)
    }

    fn find(&self, name: *mut ffi::PyObject) -> Option<usize> {
        self.place_of(name).or_else(|| {
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
                operands.push(Held::Data(random::drawn().or_raise(py)?));
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

/// A C string that lives as long as the program.
pub fn leak(text: String) -> *const c_char {
    let text = std::ffi::CString::new(text.replace('\0', " ")).unwrap_or_default();
    Box::leak(text.into_boxed_c_str()).as_ptr()
}
