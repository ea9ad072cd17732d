//! The attributes of structural ops as typed fields.
//!
//! An op lists its attributes once. Printing, reading and resizing walk this list, so each type of
//! field has one text form, declared once for both directions.

use smallvec::SmallVec;

use crate::dtype::DType;
use crate::ops::attributes::{PerAxis, ScatterMode};
use crate::ops::op::{Op, SliceAxis, Type};
use crate::shape::{Axes, Dim, Dims, Shape};

/// The attributes of an op, in the order of the text.
pub type Fields<'a> = SmallVec<[Field<'a>; 4]>;

/// A reference to one attribute of an op.
pub enum Field<'a> {
    /// `name=3`
    Count(&'static str, &'a mut usize),
    /// `name=True`
    Truth(&'static str, &'a mut bool),
    /// `name="word"` without quotes: one of a few
    Choice(&'static str, &'a mut dyn Choice),
    /// `name=(0, 2)`
    Axes(&'static str, &'a mut Axes),
    /// `name=((0, 1), (1, 0))`: axes of the first operand that match axes of the second
    Pairs(&'static str, &'a mut Axes, &'a mut Axes),
    /// The same; no text where the lists are empty
    MaybePairs(&'static str, &'a mut Axes, &'a mut Axes),
    /// `name=(3, 3)`
    PerAxis(&'static str, &'a mut PerAxis),
    /// `name=(3, s0)`
    Sizes(&'static str, &'a mut Dims),
    /// `start=(0, 1), size=(2, 3)`, with `step=(1, -1)` where one is not 1
    Slices(&'a mut Box<[SliceAxis]>),
    /// The dtype of the result; no text, because the result's type says it
    ResultDType(&'a mut DType),
    /// The shape of the result; no text, because the result's type says it
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
    /// Takes the value of a word; false where the word is unknown.
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

    /// Replaces the sizes of the result at some axes, where this field holds them, by those of a
    /// block.
    pub fn cut(&mut self, at: &[u8], block: &[usize]) {
        let at = || at.iter().map(|&axis| axis as usize).zip(block.iter().map(|&n| Dim::new(n)));
        let put = |dims: &mut [Dim]| at().for_each(|(axis, n)| dims[axis] = n);
        match self {
            Field::Slices(slices) => {
                at().for_each(|(axis, n)| slices[axis].size = n);
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
