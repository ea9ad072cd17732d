//! `Op`: what a node computes, and the types it accepts and gives.
//!
//! A node is its first result, and most ops have no other. Elementwise ops come from the table and
//! broadcast their operands, which have one dtype already; structural ops are the closed set below.
//! What one is, its definition says ([`structural`](super::structural)), which everybody asks;
//! matches on the variants are exhaustive where each needs something of its own, the kernels of an
//! executor.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use smallvec::SmallVec;

use super::attributes::*;
use super::declare::{Attr, Composite, Param, attribute_of, operands_of};
use super::elementwise::Elementwise;
use super::structural::{Class, Fields, InPlace, OpKind};
use crate::dtype::{DType, Numeric};
use crate::error::{self, Result};
use crate::layout::Layout;
use crate::shape::{Axes, Dim, Dims, Shape, hint};

mod infer;

/// Dtype and shape of a value.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Type {
    /// The element type
    pub dtype: DType,
    /// The sizes
    pub shape: Shape,
}

impl Type {
    /// A type from its parts.
    pub fn new(dtype: DType, shape: Shape) -> Type {
        Type { dtype, shape }
    }

    /// Whether this is another type, whose sizes are asked: see [`Shape::equals`].
    pub fn equals(&self, other: &Type) -> bool {
        self.dtype == other.dtype && self.shape.equals(&other.shape)
    }

    /// Visits every size.
    pub fn each_dim(&mut self, f: impl FnMut(&mut Dim)) {
        self.shape.dims_mut().iter_mut().for_each(f);
    }

    /// The same with every size replaced.
    pub fn map_dims(&self, f: impl FnMut(Dim) -> Dim) -> Type {
        Type::new(self.dtype, self.shape.map(f))
    }
}

/// The types of operands or results.
pub type Types = SmallVec<[Type; 2]>;

/// The elements of one axis that a slice takes: `size` of them, from `start`, `step` apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SliceAxis {
    /// Index of the first element
    pub start: Dim,
    /// Distance between elements; negative runs backwards
    pub step: isize,
    /// How many
    pub size: Dim,
}

impl SliceAxis {
    /// Whether it stays inside an axis of this size, as far as that is known without asking.
    pub fn fits(&self, axis: Dim) -> bool {
        let (Some(start), Some(size), Some(axis)) = (hint(self.start), hint(self.size), hint(axis))
        else {
            return true;
        };
        let reach = (size.saturating_sub(1) as isize).checked_mul(self.step);
        let last = reach.and_then(|reach| start.checked_add_signed(reach));
        size == 0 || (start < axis && last.is_some_and(|i| i < axis))
    }

    /// A whole axis.
    pub fn all(size: Dim) -> SliceAxis {
        SliceAxis { start: Dim::new(0), step: 1, size }
    }

    /// Whether it certainly is a whole axis of this size.
    pub fn is_whole(&self, size: Dim) -> bool {
        self.start.same(Dim::new(0)) && self.step == 1 && self.size.same(size)
    }

    /// Visits its sizes.
    pub fn each_dim(&mut self, f: &mut (impl FnMut(&mut Dim) + ?Sized)) {
        f(&mut self.start);
        f(&mut self.size);
    }
}

/// What a node computes from its operands.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// An elementwise op of the table
    Map(&'static Elementwise),
    /// A composite of the table that stays one node: it has its own gradient or kernel
    Call(Call),
    /// The same values in another dtype
    Cast(DType),
    /// The same elements in C order under another shape
    Reshape(Shape),
    /// Axis `i` of the result is axis `axes[i]` of the operand
    Permute(Axes),
    /// Repeats axes of size 1 and adds leading ones
    Broadcast(Shape),
    /// Strided parts of every axis
    Slice(Box<[SliceAxis]>),
    /// `(x, value)`: the transpose of a slice: `x` where that slice of this shape would read, the
    /// value elsewhere
    Pad(Shape, Box<[SliceAxis]>),
    /// `(x, v)`: `x` with the slice replaced by `v`, which broadcasts to it
    SetItem(Box<[SliceAxis]>),
    /// Operands behind each other along an axis
    Concat(usize),
    /// `(x, i…)`: NumPy's advanced indexing on the leading axes, one index array each
    Gather,
    /// `(base, values, i…)`: the base with values put at what [`Op::Gather`] would read
    Scatter(ScatterMode),
    /// A reduction over sorted axes, which disappear
    Reduce(Reduction, Axes),
    /// The position of an extreme along an axis, which disappears (int64)
    ArgReduce(ArgReduction, usize),
    /// A running reduction along an axis; from the end where `reverse`
    #[allow(missing_docs)]
    Cumulate { kind: Cumulation, axis: usize, reverse: bool },
    /// A general product
    Contract(Box<Contraction>),
    /// One of the three derivatives of the convolution's trilinear form
    Conv(ConvRole, Box<ConvSpec>),
    /// Sliding windows, appended as trailing axes
    Windows(Box<WindowSpec>),
    /// The transpose of `Windows`: adds windows into an array with these trailing sizes
    Fold(Box<WindowSpec>, Dims),
    /// Sorted values along an axis; NaN last
    #[allow(missing_docs)]
    Sort { axis: usize, descending: bool },
    /// The stable order that sorts an axis (int64)
    #[allow(missing_docs)]
    ArgSort { axis: usize, descending: bool },
    /// Positions of the `k` extreme elements along an axis, best first (int64)
    #[allow(missing_docs)]
    TopK { k: usize, axis: usize, largest: bool },
    /// `(value)`: one number everywhere
    Full(Type),
    /// The index along an axis
    Iota(Type, usize),
    /// `(key)`: random bits by counter (uint32, uint64)
    RandomBits(Type),
    /// The steps between neighbours along an axis
    #[cfg(feature = "example-op")]
    Increments(usize),
}

/// A call of a composite with its static attributes.
#[derive(Clone)]
pub struct Call {
    /// The table's entry
    pub composite: &'static Composite,
    /// The attributes by parameter, tensors left out (`Attr::Operand`)
    pub attributes: Arc<[Attr]>,
}

impl Call {
    /// The parameter that operand `i` belongs to, by position.
    pub fn position(&self, i: usize) -> usize {
        attribute_of(&self.attributes, i).unwrap_or(self.attributes.len() - 1)
    }

    /// The attribute of a parameter.
    pub fn attribute(&self, name: &str) -> Option<&Attr> {
        let at = self.composite.params.iter().position(|param| param.name == name)?;
        self.attributes.get(at)
    }

    /// Which operand a parameter is, if it is one.
    pub fn operand(&self, name: &str) -> Option<usize> {
        let at = self.composite.params.iter().position(|param| param.name == name)?;
        operands_of(&self.attributes, at).next()
    }

    /// The parameter that operand `i` belongs to.
    pub fn parameter(&self, i: usize) -> &'static Param {
        &self.composite.params[self.position(i)]
    }
}

impl std::fmt::Debug for Call {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}{:?}", self.composite.name, self.attributes)
    }
}
impl PartialEq for Call {
    fn eq(&self, other: &Call) -> bool {
        std::ptr::eq(self.composite, other.composite) && self.attributes == other.attributes
    }
}
impl Eq for Call {}
impl Hash for Call {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.composite.name.hash(state);
        self.attributes.hash(state);
    }
}

/// What `infer` knows of an operand: a tensor's type, or a weak scalar.
#[derive(Clone, Copy)]
pub enum OperandType<'a> {
    /// A tensor
    Tensor(DType, &'a Shape),
    /// A Python number
    Scalar(Numeric),
}

impl<'a> OperandType<'a> {
    /// The type of an operand that the op takes as a tensor only.
    pub fn tensor(self, op: &str) -> Result<(DType, &'a Shape)> {
        match self {
            OperandType::Tensor(dtype, shape) => Ok((dtype, shape)),
            OperandType::Scalar(value) => Err(error::bad_type(op, "expected a tensor", value)),
        }
    }
}

impl Op {
    /// The name in messages, prints and pictures.
    pub fn name(&self) -> &'static str {
        match self.kind() {
            OpKind::Map(def) => def.name,
            OpKind::Call(call) => call.composite.name,
            OpKind::Structural(def) => def.name,
        }
    }

    /// The least and the largest count of operands.
    pub fn arity(&self) -> (usize, Option<usize>) {
        let count = match self.kind() {
            OpKind::Map(def) => def.params.len(),
            OpKind::Call(call) => call.attributes.iter().map(Attr::width).sum(),
            OpKind::Structural(def) => return def.operands,
        };
        (count, Some(count))
    }

    /// How many results it has.
    #[inline]
    pub fn results(&self) -> usize {
        if let Op::Call(call) = self { call.composite.results() } else { 1 }
    }

    /// Whether the result is the operand seen otherwise, at least where its layout allows.
    pub fn is_movement(&self) -> bool {
        matches!(self.kind(), OpKind::Structural(def) if def.class == Class::View)
    }

    /// The layout of the result where that is the first operand seen otherwise; `None` where the op
    /// computes something.
    pub fn view(&self, dtype: DType, x: &Layout) -> Option<Layout> {
        match self.kind() {
            OpKind::Structural(def) => (def.view)(self, dtype, x),
            OpKind::Map(_) | OpKind::Call(_) => None,
        }
    }

    /// Over which operands' memory the result may be written.
    pub fn in_place(&self) -> InPlace {
        match self.kind() {
            OpKind::Map(_) => InPlace::Any,
            OpKind::Call(_) => InPlace::Nowhere,
            OpKind::Structural(def) => def.in_place,
        }
    }

    /// Whether values of the operands can make it fail.
    pub fn refuses(&self) -> bool {
        matches!(self.kind(), OpKind::Structural(def) if def.refuses)
    }

    /// Visits every size, those in attributes of calls included.
    pub fn each_dim(&mut self, mut f: impl FnMut(&mut Dim)) {
        if let Op::Call(call) = self
            && call.attributes.iter().any(Attr::has_size)
        {
            let mut attributes = call.attributes.to_vec();
            attributes.iter_mut().for_each(|attr| attr.each_dim(&mut f));
            call.attributes = attributes.into();
        }
        self.fields().iter_mut().for_each(|field| field.each_dim(&mut f));
    }

    /// The attributes, of a structural op.
    pub fn fields(&mut self) -> Fields<'_> {
        match self.kind() {
            OpKind::Map(_) | OpKind::Call(_) => Fields::new(),
            OpKind::Structural(def) => (def.fields)(self),
        }
    }

    /// The same with every size replaced, those in attributes of calls included.
    pub fn map_dims(&self, mut f: impl FnMut(Dim) -> Dim) -> Op {
        let mut op = self.clone();
        op.each_dim(|dim| *dim = f(*dim));
        op
    }

    /// Whether a gradient can flow from the result to operand `i`.
    pub fn differentiable(&self, i: usize) -> bool {
        match self.kind() {
            OpKind::Map(def) => !def.vjp[i].is_zero(),
            // A derived gradient may turn out to be none.
            OpKind::Call(call) => {
                call.composite.vjp.is_none_or(|vjp| vjp.reaches(call.position(i)))
            }
            OpKind::Structural(def) => (def.differentiable)(self, i),
        }
    }
}

impl Reduction {
    /// The name in messages and prints.
    pub const fn name(self) -> &'static str {
        match self {
            Reduction::Sum => "sum",
            Reduction::Prod => "prod",
            Reduction::Max => "max",
            Reduction::Min => "min",
            Reduction::Any => "any",
            Reduction::All => "all",
        }
    }
}

impl Cumulation {
    /// The name in messages and prints.
    pub const fn name(self) -> &'static str {
        match self {
            Cumulation::Sum => "cumulative_sum",
            Cumulation::Prod => "cumulative_prod",
            Cumulation::Max => "cumulative_max",
            Cumulation::Min => "cumulative_min",
        }
    }
}
