//! What entries keep for their rules: values, or their types alone.

use smallvec::SmallVec;

use crate::array::{Array, Data, Fresh};
use crate::dtype::{DType, Numeric};
use crate::engine::site::Site;
use crate::layout::Layout;
use crate::ops::op::Type;
use crate::shape::Shape;
use crate::small::push_finished;

/// What an entry saved of an operand or its result.
#[derive(Clone)]
pub enum Saved {
    /// The data, which a rule reads
    Array(Array),
    /// Only the type
    Type(Type),
    /// A number
    Scalar(Numeric),
}

/// The values an entry keeps for its rules.
pub struct SavedValues {
    /// Operands
    pub args: SmallVec<[Saved; 2]>,
    /// Results
    pub results: SmallVec<[Saved; 1]>,
    /// The line whose backward freed them
    pub freed: Option<Site>,
}

/// Appends what is kept of an array, with the data or without: each kind by a way of its own, so that
/// it is written where it stays.
#[inline(always)]
pub(super) fn keep<A: smallvec::Array<Item = Saved>>(
    list: &mut SmallVec<A>,
    array: &Array,
    data: bool,
) {
    match array.is_plain() {
        true => {
            let data = data.then_some((&array.data, array.layout.offset()));
            keep_plain(list, array.dtype, array.shape(), data);
        }
        false => list.push(save(array, data)),
    }
}

/// The same of an array in C order with a short shape, from its parts: its data from a position on.
#[inline(always)]
fn keep_plain<A: smallvec::Array<Item = Saved>>(
    list: &mut SmallVec<A>,
    dtype: DType,
    shape: &Shape,
    data: Option<(&Data, usize)>,
) {
    // Moving a shape with the rest would take longer than to write it here.
    let finish = |saved: &mut Saved| match saved {
        Saved::Array(array) => array.layout.set_short_shape(shape),
        Saved::Type(ty) => ty.shape.set_short(shape),
        Saved::Scalar(_) => {}
    };
    match data {
        Some((data, offset)) => {
            let make = || {
                let layout = Layout::contiguous_at(Shape::scalar(), offset);
                Saved::Array(Array { dtype, layout, data: data.clone() })
            };
            push_finished(list, make, finish);
        }
        None => {
            push_finished(list, || Saved::Type(Type::new(dtype, Shape::scalar())), finish);
        }
    }
}

pub(super) fn save(array: &Array, data: bool) -> Saved {
    match data {
        true => Saved::Array(array.clone()),
        false => Saved::Type(Type::new(array.dtype, array.shape().clone())),
    }
}

impl Fresh<'_> {
    /// Appends what an entry keeps of it, with the data or without.
    #[inline(always)]
    pub fn keep(&self, list: &mut SmallVec<[Saved; 1]>, data: bool) {
        keep_plain(list, self.dtype, self.shape, data.then_some((&self.data, 0)));
    }
}
