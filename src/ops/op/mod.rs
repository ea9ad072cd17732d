//! `Op`: what a node computes, and the types it accepts and gives.
//!
//! A node has one result. Elementwise ops come from the table and broadcast their operands, which
//! have one dtype already; structural ops are the closed set below, and every match on them is
//! exhaustive, so that the compiler lists the places a new one touches.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use super::attributes::*;
use super::declare::{Attr, Composite, Param};
use super::elementwise::Elementwise;
use crate::dtype::{DType, Scalar};
use crate::error::{self, Result};
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

    fn each_dim(&mut self, f: &mut impl FnMut(&mut Dim)) {
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
    Embed(Shape, Box<[SliceAxis]>),
    /// `(x, v)`: `x` with the slice replaced by `v`, which broadcasts to it
    Update(Box<[SliceAxis]>),
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
    Fill(Type),
    /// The index along an axis
    Iota(Type, usize),
    /// `(key)`: random bits by counter (uint32, uint64)
    RandomBits(Type),
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
        let mut seen = 0;
        let holds = |attr: &Attr| {
            seen += attr.width();
            i < seen
        };
        self.attributes.iter().position(holds).unwrap_or(self.attributes.len() - 1)
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
    Scalar(Scalar),
}

impl<'a> OperandType<'a> {
    /// The type of an operand that the op takes as a tensor only.
    fn tensor(self, op: &str) -> Result<(DType, &'a Shape)> {
        match self {
            OperandType::Tensor(dtype, shape) => Ok((dtype, shape)),
            OperandType::Scalar(value) => Err(error::bad_type(op, "expected a tensor", value)),
        }
    }
}

impl Op {
    /// The name in messages, prints and pictures.
    pub fn name(&self) -> &'static str {
        match self {
            Op::Map(def) => def.name,
            Op::Call(call) => call.composite.name,
            Op::Cast(_) => "astype",
            Op::Reshape(_) => "reshape",
            Op::Permute(_) => "permute_dims",
            Op::Broadcast(_) => "broadcast_to",
            Op::Slice(_) => "slice",
            Op::Embed(..) => "pad",
            Op::Update(_) => "setitem",
            Op::Concat(_) => "concat",
            Op::Gather => "gather",
            Op::Scatter(_) => "scatter",
            Op::Reduce(kind, _) => kind.name(),
            Op::ArgReduce(ArgReduction::Max, _) => "argmax",
            Op::ArgReduce(ArgReduction::Min, _) => "argmin",
            Op::Cumulate { kind, .. } => kind.name(),
            Op::Contract(_) => "matmul",
            Op::Conv(ConvRole::Output, _) => "conv",
            Op::Conv(ConvRole::Input, _) => "conv_input",
            Op::Conv(ConvRole::Weight, _) => "conv_weight",
            Op::Windows(_) => "windows",
            Op::Fold(..) => "fold",
            Op::Sort { .. } => "sort",
            Op::ArgSort { .. } => "argsort",
            Op::TopK { .. } => "topk",
            Op::Fill(_) => "full",
            Op::Iota(..) => "iota",
            Op::RandomBits(_) => "random_bits",
        }
    }

    /// Visits every size, those in attributes of calls included.
    pub fn each_dim(&mut self, mut f: impl FnMut(&mut Dim)) {
        let f = &mut f;
        match self {
            Op::Call(call) if call.attributes.iter().any(Attr::has_size) => {
                let mut attributes = call.attributes.to_vec();
                attributes.iter_mut().for_each(|attr| attr.each_dim(f));
                call.attributes = attributes.into();
            }
            Op::Reshape(shape) | Op::Broadcast(shape) => shape.dims_mut().iter_mut().for_each(f),
            Op::Slice(at) | Op::Update(at) => at.iter_mut().for_each(|axis| axis.each_dim(f)),
            Op::Embed(shape, at) => {
                shape.dims_mut().iter_mut().for_each(&mut *f);
                at.iter_mut().for_each(|axis| axis.each_dim(f));
            }
            Op::Conv(_, spec) => spec.input.iter_mut().chain(&mut spec.kernel).for_each(f),
            Op::Fold(_, sizes) => sizes.iter_mut().for_each(f),
            Op::Fill(ty) | Op::Iota(ty, _) | Op::RandomBits(ty) => ty.each_dim(f),
            Op::Map(_)
            | Op::Call(_)
            | Op::Cast(_)
            | Op::Permute(_)
            | Op::Concat(_)
            | Op::Gather
            | Op::Scatter(_)
            | Op::Reduce(..)
            | Op::ArgReduce(..)
            | Op::Cumulate { .. }
            | Op::Contract(_)
            | Op::Windows(_)
            | Op::Sort { .. }
            | Op::ArgSort { .. }
            | Op::TopK { .. } => {}
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
        match self {
            Op::Map(def) => !def.vjp[i].is_zero(),
            Op::Call(call) => call.composite.covered.contains(&call.parameter(i).name),
            Op::Cast(dtype) => dtype.is_float(),
            Op::ArgReduce(..)
            | Op::ArgSort { .. }
            | Op::TopK { .. }
            | Op::Iota(..)
            | Op::RandomBits(_) => false,
            Op::Gather => i == 0,
            Op::Scatter(_) => i < 2,
            Op::Reduce(kind, _) => !matches!(kind, Reduction::Any | Reduction::All),
            Op::Reshape(_)
            | Op::Permute(_)
            | Op::Broadcast(_)
            | Op::Slice(_)
            | Op::Update(_)
            | Op::Concat(_)
            | Op::Cumulate { .. }
            | Op::Contract(_)
            | Op::Conv(..)
            | Op::Windows(_)
            | Op::Fold(..)
            | Op::Sort { .. } => true,
            Op::Embed(..) => i == 0,
            Op::Fill(_) => false,
        }
    }
}

impl Reduction {
    /// The name in messages and prints.
    pub fn name(self) -> &'static str {
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
    pub fn name(self) -> &'static str {
        match self {
            Cumulation::Sum => "cumulative_sum",
            Cumulation::Prod => "cumulative_prod",
            Cumulation::Max => "cumulative_max",
            Cumulation::Min => "cumulative_min",
        }
    }
}
