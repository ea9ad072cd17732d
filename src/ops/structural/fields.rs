//! The attributes of structural ops as typed fields.
//!
//! An op lists its attributes once. Whoever prints, reads or resizes ops walks the list, so that each
//! type of field has one text form, and both directions of it go through the same declaration.

use smallvec::SmallVec;

use crate::dtype::DType;
use crate::ops::attributes::{PerAxis, ScatterMode};
use crate::ops::op::{Op, SliceAxis, Type};
use crate::shape::{Axes, Dim, Dims, Shape};

/// The attributes of an op, in the order of the text.
pub type Fields<'a> = SmallVec<[Field<'a>; 4]>;

/// One attribute, where it stands in the op.
pub enum Field<'a> {
    /// `name=3`
    Count(&'static str, &'a mut usize),
    /// `name=True`
    Truth(&'static str, &'a mut bool),
    /// `name="word"` without quotes: one of a few
    Choice(&'static str, &'a mut dyn Choice),
    /// `name=(0, 2)`
    Axes(&'static str, &'a mut Axes),
    /// `name=((0, 1), (1, 0))`: axes of the first operand that go with those of the second
    Pairs(&'static str, &'a mut Axes, &'a mut Axes),
    /// The same, and no text where there are none
    MaybePairs(&'static str, &'a mut Axes, &'a mut Axes),
    /// `name=(3, 3)`
    PerAxis(&'static str, &'a mut PerAxis),
    /// `name=(3, s0)`
    Sizes(&'static str, &'a mut Dims),
    /// `start=(0, 1), size=(2, 3)`, with `step=(1, -1)` where one is not 1
    Slices(&'a mut Box<[SliceAxis]>),
    /// The dtype of the result, which its type says
    ResultDType(&'a mut DType),
    /// The shape of the result, which its type says
    ResultShape(&'a mut Shape),
    /// The type of the result
    ResultType(&'a mut Type),
    /// The last sizes of the result, as many as the first [`Field::PerAxis`] has numbers
    ResultSizes(&'a mut Dims),
}

/// One of a few words.
pub trait Choice {
    /// The word.
    fn word(&self) -> &'static str;
    /// Becomes what a word says; false where it says nothing.
    fn choose(&mut self, word: &str) -> bool;
}

impl Choice for ScatterMode {
    fn word(&self) -> &'static str {
        match self {
            ScatterMode::Set => "set",
            ScatterMode::Add => "add",
        }
    }

    fn choose(&mut self, word: &str) -> bool {
        let mode = [ScatterMode::Set, ScatterMode::Add].into_iter().find(|m| m.word() == word);
        *self = mode.unwrap_or(*self);
        mode.is_some()
    }
}

impl Field<'_> {
    /// Visits every size.
    pub fn each_dim(&mut self, f: &mut dyn FnMut(&mut Dim)) {
        match self {
            Field::Sizes(_, sizes) | Field::ResultSizes(sizes) => sizes.iter_mut().for_each(f),
            Field::Slices(at) => at.iter_mut().for_each(|axis| axis.each_dim(f)),
            Field::ResultShape(shape) => shape.dims_mut().iter_mut().for_each(f),
            Field::ResultType(ty) => ty.each_dim(f),
            Field::Count(..)
            | Field::Truth(..)
            | Field::Choice(..)
            | Field::Axes(..)
            | Field::Pairs(..)
            | Field::MaybePairs(..)
            | Field::PerAxis(..)
            | Field::ResultDType(_) => {}
        }
    }

    /// Takes the leading sizes of the result, where this says them, from a block of it.
    pub fn cut(&mut self, block: &[usize]) {
        let put = |dims: &mut [Dim]| {
            dims.iter_mut().zip(block).for_each(|(dim, &n)| *dim = Dim::new(n));
        };
        match self {
            Field::Slices(at) => {
                at.iter_mut().zip(block).for_each(|(axis, &n)| axis.size = Dim::new(n));
            }
            Field::ResultShape(shape) => put(shape.dims_mut()),
            Field::ResultType(ty) => put(ty.shape.dims_mut()),
            Field::Count(..)
            | Field::Truth(..)
            | Field::Choice(..)
            | Field::Axes(..)
            | Field::Pairs(..)
            | Field::MaybePairs(..)
            | Field::PerAxis(..)
            | Field::Sizes(..)
            | Field::ResultDType(_)
            | Field::ResultSizes(_) => {}
        }
    }
}

/// An op without attributes.
pub fn none(_: &mut Op) -> Fields<'_> {
    Fields::new()
}
