//! Calls whose operands are looked at where they are: nothing is cloned on the way.

use pyo3::ffi;
use pyo3::prelude::*;
use smallvec::SmallVec;

use super::{Placed, Signature, Slots};
use crate::engine::tape::Operand;
use crate::ops::declare::{Attr, ParamKind, number};
use crate::py::elementwise::direct_at_hand;
use crate::py::functions::known_size;
use crate::py::tensor;
use crate::small::push_with;

/// The arguments of one call, with operands that stay where they are.
#[derive(Default)]
pub struct Looked<'a> {
    /// One attribute per parameter
    pub attributes: SmallVec<[Attr; 8]>,
    /// The operands that the attributes refer to, in order
    pub operands: SmallVec<[Operand<'a>; 4]>,
}

/// What a parameter of operands is given.
enum Given<'s> {
    /// Arguments
    Objects,
    /// `None`, where it may be
    Nothing,
    /// What it has by default
    Default(&'s Attr),
    /// Nothing, which is an error
    Missing,
}

impl Signature {
    /// Looks at a call into `looked`, which is empty; the caller has seen that no trace is open.
    /// False, with nothing kept, where an operand is neither a plain number nor a tensor with a value
    /// of its own in host memory, where a device is asked for or a key drawn, and where operands have
    /// more than `limit` elements. After it the next object comes from the free list.
    ///
    /// # Safety
    /// As for [`Signature::parse`]; no Python code as long as the operands live.
    pub unsafe fn look<'a>(
        &self,
        py: Python<'_>,
        args: &[*mut ffi::PyObject],
        count: usize,
        keywords: *mut ffi::PyObject,
        limit: usize,
        looked: &mut Looked<'a>,
    ) -> PyResult<bool> {
        if self.draws {
            return Ok(false);
        }
        let mut slots = Slots::new();
        // SAFETY: as the caller's.
        let placed = unsafe { self.place(args, count, keywords, &mut slots)? };
        let mut size = 0;
        let mut fits = |object| {
            // SAFETY: a live argument, of which nothing is kept.
            match unsafe { direct_at_hand(object) } {
                Some(Operand::Value(value)) => size += known_size(value),
                Some(Operand::Scalar(_)) => {}
                None => return false,
            }
            size <= limit
        };
        for (i, param) in self.params.iter().enumerate() {
            let fits = if param.kind.takes_operands() {
                match self.given(i, &placed) {
                    Given::Objects => self.each(i, &placed, &mut fits),
                    Given::Nothing | Given::Default(_) => true,
                    Given::Missing => false,
                }
            } else {
                param.kind != ParamKind::MaybeDevice || placed.slot(i).is_null()
            };
            if !fits {
                return Ok(false);
            }
        }
        // Code of the user's may run here, so the operands are looked at anew.
        let mut none = SmallVec::new();
        for (i, param) in self.params.iter().enumerate() {
            if param.kind.takes_operands() {
                push_with(&mut looked.attributes, || Attr::Operand);
            } else {
                self.attribute(py, i, &placed, &mut looked.attributes, &mut none)?;
            }
        }
        tensor::prepare(py)?;
        for (i, param) in self.params.iter().enumerate() {
            if !param.kind.takes_operands() {
                continue;
            }
            match self.given(i, &placed) {
                Given::Objects => {
                    let before = looked.operands.len();
                    let mut take = |object| {
                        // SAFETY: a live argument; what follows is the caller's promise.
                        let operand = unsafe { direct_at_hand(object) };
                        operand.map(|operand| looked.operands.push(operand)).is_some()
                    };
                    if !self.each(i, &placed, &mut take) {
                        return Ok(false);
                    }
                    if param.kind == ParamKind::Tensors {
                        let count = looked.operands.len() - before;
                        looked.attributes[i] = Attr::Operands(count as u32);
                    }
                }
                Given::Nothing => looked.attributes[i] = Attr::None,
                Given::Default(attribute) => match number(attribute) {
                    Some(scalar) => looked.operands.push(Operand::Scalar(scalar.into())),
                    None => looked.attributes[i] = attribute.clone(),
                },
                Given::Missing => return Ok(false),
            }
        }
        Ok(true)
    }

    /// What parameter `i`, which takes operands, is given.
    #[inline]
    fn given(&self, i: usize, placed: &Placed<'_>) -> Given<'_> {
        let (kind, slot) = (self.params[i].kind, placed.slot(i));
        let is_several = placed.rest.is_some() && self.variadic == Some(i);
        if is_several || slot.is_null() && self.takes_none(i) {
            return Given::Objects;
        }
        if slot.is_null() {
            return self.defaults[i].as_ref().map_or(Given::Missing, Given::Default);
        }
        let may_be_none = matches!(kind, ParamKind::MaybeTensor(_) | ParamKind::MaybeNumber);
        // SAFETY: the object is always there.
        match may_be_none && slot == unsafe { ffi::Py_None() } {
            true => Given::Nothing,
            false => Given::Objects,
        }
    }

    /// Gives `f` the arguments of parameter `i`, until it refuses one. False then, and where they
    /// stand in a sequence that is no plain tuple or list.
    #[inline]
    fn each(
        &self,
        i: usize,
        placed: &Placed<'_>,
        f: &mut impl FnMut(*mut ffi::PyObject) -> bool,
    ) -> bool {
        let slot = placed.slot(i);
        match placed.rest {
            Some(rest) if self.variadic == Some(i) => return rest.iter().all(|&object| f(object)),
            _ if self.params[i].kind != ParamKind::Tensors => return f(slot),
            _ if slot.is_null() => return true,
            _ => {}
        }
        // SAFETY: a live argument, whose type is checked first; the items live as long as it stays
        // as it is.
        unsafe {
            if ffi::PyTuple_CheckExact(slot) != 0 {
                (0..ffi::PyTuple_Size(slot)).all(|k| f(ffi::PyTuple_GetItem(slot, k)))
            } else {
                ffi::PyList_CheckExact(slot) != 0
                    && (0..ffi::PyList_Size(slot)).all(|k| f(ffi::PyList_GetItem(slot, k)))
            }
        }
    }
}
