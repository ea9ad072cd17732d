//! Calls that are made again with the same arguments: what they emit, found without reading the
//! arguments as parameters.
//!
//! Tensors by place, numbers, None, truth values and dtypes, and tuples and lists of these, say all
//! about a call, together with the types of the tensors. So a thread keeps such calls with their
//! emission, from the second time on, and finds it by comparing words.

use std::cell::{Cell, RefCell};
use std::hash::Hasher;
use std::rc::Rc;

use pyo3::ffi;
use pyo3::prelude::*;
use rustc_hash::FxHasher;
use smallvec::SmallVec;

use super::arguments::Signature;
use super::dtype::PyDType;
use super::errors::OrRaise;
use super::functions::{DETACH_ABOVE, known_size};
use super::interrupt::Unheard;
use super::tensor;
use crate::engine::autocast;
use crate::engine::eager;
use crate::engine::eager::emissions::{self, Emission, Known};
use crate::engine::executors::{Device, device};
use crate::engine::tape::{self, Operand};
use crate::engine::trace::Called;
use crate::ops::declare::{Attr, Composite};

/// Arguments of calls that are kept, and items of a sequence among them.
const MOST: usize = 6;
const LONGEST: isize = 16;

/// Calls that a thread keeps, one for each of so many groups.
const KEPT: usize = 256;

/// Arguments as words: of each its place and kind, and its value.
type Words = SmallVec<[(usize, u64); MOST]>;

/// A call and its arguments, of which nothing else matters.
pub struct Call {
    composite: &'static Composite,
    words: Words,
    tensors: usize,
    /// Whether it is recorded
    record: bool,
    hasher: FxHasher,
    /// Whether it is of a kind that is kept
    is_plain: bool,
}

/// Operands of a call, where they are.
type Operands<'a> = SmallVec<[Operand<'a>; 4]>;

/// What a group of calls has: the mark of its last call, how often it was made, and its emission.
#[derive(Default)]
struct Slot {
    mark: Cell<u64>,
    times: Cell<u32>,
    kept: RefCell<Option<Kept>>,
}

/// A call that was made so often without an emission that is kept will have none: an emission is
/// kept from the second call on.
const TIMES: u32 = 3;

struct Kept {
    composite: &'static Composite,
    words: Words,
    emission: Rc<Emission>,
}

thread_local! {
    static SLOTS: Box<[Slot]> = (0..KEPT).map(|_| Slot::default()).collect();
}

/// Kinds of arguments, below their places.
mod kind {
    pub const TENSOR: usize = 0;
    pub const INT: usize = 1;
    pub const FLOAT: usize = 2;
    pub const OBJECT: usize = 3;
    /// Its length; items follow
    pub const TUPLE: usize = 4;
    pub const LIST: usize = 5;
    pub const DTYPE: usize = 6;
    pub const BITS: u32 = 3;
}

impl Call {
    /// A call of a composite whose arguments were not looked at.
    pub fn new(composite: &'static Composite) -> Call {
        let (words, mut hasher) = (Words::new(), FxHasher::default());
        hasher.write_usize(std::ptr::from_ref(composite).addr());
        Call { composite, words, tensors: 0, record: false, hasher, is_plain: false }
    }

    /// The result of the call, if it was made before with the same arguments.
    ///
    /// # Safety
    /// As for [`Signature::look`]; no trace is open, and nobody watches.
    pub unsafe fn again(
        &mut self,
        py: Python<'_>,
        signature: &Signature,
        args: &[*mut ffi::PyObject],
        count: usize,
        keywords: *mut ffi::PyObject,
    ) -> PyResult<Option<*mut ffi::PyObject>> {
        if self.composite.kernel.is_some()
            || args.len() > MOST
            || autocast::current().is_some()
            || device::current() != Device::Cpu
        {
            return Ok(None);
        }
        tensor::prepare(py)?;
        let mut operands = Operands::new();
        // SAFETY: as the caller's.
        let looked = unsafe { self.look(signature, args, count, keywords, &mut operands) };
        self.is_plain = looked.is_some();
        let Some(emission) = looked.and_then(|()| self.emission(&operands)) else {
            return Ok(None);
        };
        if let ([Operand::Value(x)], true) = (operands.as_slice(), self.composite.views) {
            return emission.shown(x, tensor::new_object).or_raise(py);
        }
        let size = |x: &Operand<'_>| match x {
            Operand::Value(value) => known_size(value),
            Operand::Scalar(_) => 0,
        };
        if operands.iter().map(size).sum::<usize>() > DETACH_ABOVE {
            return Ok(None);
        }
        let _unheard = Unheard::new();
        let found = eager::again(&emission, &operands).or_raise(py)?;
        Ok(Some(tensor::new_object(found)))
    }

    /// Looks at the arguments. `None` where there are others than tensors by place with values of their
    /// own in host memory, plain values, and sequences of these.
    ///
    /// # Safety
    /// As for [`again`](Call::again), and no Python code runs as long as the operands live.
    #[inline]
    unsafe fn look<'a>(
        &mut self,
        signature: &Signature,
        args: &[*mut ffi::PyObject],
        count: usize,
        keywords: *mut ffi::PyObject,
        operands: &mut Operands<'a>,
    ) -> Option<()> {
        for (k, &object) in args.iter().enumerate() {
            // SAFETY: as the caller's.
            unsafe {
                match k.checked_sub(count) {
                    None => self.push(k, object, Some(operands))?,
                    // Tensors with names need not come in the order of their parameters.
                    Some(k) => {
                        let name = ffi::PyTuple_GetItem(keywords, k as isize);
                        self.push(signature.place_of(name)? + MOST, object, None)?;
                    }
                }
            }
        }
        self.tensors = operands.len();
        let wants = |x: &Operand<'_>| matches!(x, Operand::Value(v) if v.requires_grad());
        self.record = tape::recording() && operands.iter().any(wants);
        self.hasher.write_u8(self.record.into());
        Some(())
    }

    /// Adds an argument.
    ///
    /// # Safety
    /// As for [`look`](Call::look).
    #[inline]
    unsafe fn push<'a>(
        &mut self,
        place: usize,
        object: *mut ffi::PyObject,
        mut operands: Option<&mut Operands<'a>>,
    ) -> Option<()> {
        // SAFETY: a live object, whose type is looked at first; the items of a sequence live as long as
        // it stays as it is.
        unsafe {
            let is_tuple = ffi::PyTuple_CheckExact(object) != 0;
            if is_tuple || ffi::PyList_CheckExact(object) != 0 {
                let (kind, length) = match is_tuple {
                    true => (kind::TUPLE, ffi::PyTuple_Size(object)),
                    false => (kind::LIST, ffi::PyList_Size(object)),
                };
                if length > LONGEST {
                    return None;
                }
                self.word(place, kind, length as u64);
                return (0..length).try_for_each(|i| {
                    let item = match is_tuple {
                        true => ffi::PyTuple_GetItem(object, i),
                        false => ffi::PyList_GetItem(object, i),
                    };
                    self.item(place, item, operands.as_deref_mut())
                });
            }
            self.item(place, object, operands)
        }
    }

    /// Adds an argument that is no sequence.
    ///
    /// # Safety
    /// As for [`look`](Call::look).
    #[inline(always)]
    unsafe fn item<'a>(
        &mut self,
        place: usize,
        object: *mut ffi::PyObject,
        operands: Option<&mut Operands<'a>>,
    ) -> Option<()> {
        // SAFETY: a live object.
        if let Some(tensor) = unsafe { tensor::downcast(object) } {
            // SAFETY: as the caller's.
            let x = unsafe { tensor.own_at_hand()? };
            self.word(place, kind::TENSOR, x.dtype() as u64);
            for dim in x.shape().dims() {
                self.hasher.write_usize(dim.known()?);
            }
            operands?.push(Operand::Value(x));
            return Some(());
        }
        // SAFETY: a live object, and an attached thread.
        let (kind, value) = unsafe { plain(object)? };
        self.word(place, kind, value);
        Some(())
    }

    #[inline(always)]
    fn word(&mut self, place: usize, kind: usize, value: u64) {
        let place = place << kind::BITS | kind;
        self.hasher.write_usize(place);
        self.hasher.write_u64(value);
        self.words.push((place, value));
    }

    /// What the call emits on operands, if it is kept for such.
    #[inline]
    fn emission(&self, operands: &[Operand<'_>]) -> Option<Rc<Emission>> {
        let mark = self.hasher.finish();
        let found = SLOTS.try_with(|slots| {
            let slot = &slots[mark as usize % KEPT];
            if slot.mark.get() != mark {
                return None;
            }
            let kept = slot.kept.borrow();
            let kept = kept.as_ref()?;
            let is_this = std::ptr::eq(kept.composite, self.composite)
                && kept.words == self.words
                && kept.emission.is_for(operands, self.record);
            is_this.then(|| kept.emission.clone())
        });
        // A thread that is ending keeps nothing.
        found.ok().flatten()
    }

    /// Keeps the call for when it is made again: what its arguments were read as.
    #[inline]
    pub fn made(&self, attributes: &[Attr], operands: &[Operand<'_>]) {
        if !self.is_plain {
            return;
        }
        let mark = self.hasher.finish();
        let _ = SLOTS.try_with(|slots| {
            let slot = &slots[mark as usize % KEPT];
            if slot.mark.replace(mark) != mark {
                slot.times.set(0);
            }
            let times = slot.times.get() + 1;
            slot.times.set(times.min(TIMES + 1));
            if (2..=TIMES).contains(&times) {
                *slot.kept.borrow_mut() = self.kept(attributes, operands);
            }
        });
    }

    #[cold]
    fn kept(&self, attributes: &[Attr], operands: &[Operand<'_>]) -> Option<Kept> {
        let (composite, record) = (self.composite, self.record);
        let is_tensor = |x: &Operand<'_>| matches!(x, Operand::Value(_));
        // Numbers among the operands, those of defaults too, are not found by who comes again, and
        // a recorded call that stays one is no emission.
        if operands.len() != self.tensors
            || !operands.iter().all(is_tensor)
            || record && composite.stays()
        {
            return None;
        }
        let called = Called { composite, attributes, operands, record };
        let Known::Emission(emission) = emissions::known(&called) else { return None };
        Some(Kept { composite, words: self.words.clone(), emission })
    }
}

/// The kind and value of a plain number, None, a truth value or a dtype.
///
/// # Safety
/// A live object, and an attached thread.
#[inline(always)]
unsafe fn plain(object: *mut ffi::PyObject) -> Option<(usize, u64)> {
    // SAFETY: a live object, whose exact type is looked at first; such numbers raise nothing.
    unsafe {
        if ffi::PyLong_CheckExact(object) != 0 {
            let mut overflow = 0;
            let n = ffi::PyLong_AsLongLongAndOverflow(object, &mut overflow);
            return (overflow == 0).then_some((kind::INT, n as u64));
        }
        if object == ffi::Py_None() || object == ffi::Py_True() || object == ffi::Py_False() {
            return Some((kind::OBJECT, object as u64));
        }
        if ffi::PyFloat_CheckExact(object) != 0 {
            return Some((kind::FLOAT, ffi::PyFloat_AS_DOUBLE(object).to_bits()));
        }
        let object = Bound::from_borrowed_ptr(Python::assume_attached(), object);
        let dtype = object.cast_exact::<PyDType>().ok()?;
        Some((kind::DTYPE, dtype.get().0 as u64))
    }
}
