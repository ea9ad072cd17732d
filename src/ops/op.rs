//! `Op`: what a node computes, and the types it accepts and gives.
//!
//! A node has one result. Elementwise ops come from the table and broadcast their operands, which
//! have one dtype already; structural ops are the closed set below, and every match on them is
//! exhaustive, so that the compiler lists the places a new one touches.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use smallvec::SmallVec;

use super::attributes::*;
use super::declare::{Attr, Composite, Param};
use super::elementwise::{Elementwise, ResultRule};
use crate::dtype::{Class, DType, Scalar};
use crate::error::{self, Result};
use crate::shape::{Axes, Dim, Dims, Shape, hint};

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

    /// The result's type, or why the operands are refused. The front ends have checked what they
    /// lower (axes, slices), so most structural rules only compute.
    pub fn infer(&self, args: &[OperandType<'_>]) -> Result<Type> {
        let name = self.name();
        let first = || args[0].tensor(name);
        Ok(match self {
            Op::Map(def) => return def.infer(args),
            Op::Call(call) => return super::probe::call_type(call, args),
            Op::Cast(dtype) => Type::new(*dtype, first()?.1.clone()),
            Op::Reshape(shape) => {
                let (dtype, from) = first()?;
                shape.check(name)?;
                let (count, want) = (from.elements(), shape.elements());
                if count != want {
                    return Err(error::reshape_count(name, from, count, shape, want));
                }
                Type::new(dtype, shape.clone())
            }
            Op::Permute(axes) => {
                let (dtype, shape) = first()?;
                Type::new(dtype, axes.iter().map(|&i| shape[i]).collect())
            }
            Op::Broadcast(shape) => {
                let (dtype, from) = first()?;
                shape.check(name)?;
                if !from.broadcasts_to(shape) {
                    return Err(error::bad_shape(
                        name,
                        "shapes are not compatible",
                        format!("{from} to {shape}"),
                    ));
                }
                Type::new(dtype, shape.clone())
            }
            Op::Slice(axes) => Type::new(first()?.0, axes.iter().map(|a| a.size).collect()),
            Op::Embed(shape, _) => {
                shape.check(name)?;
                Type::new(first()?.0, shape.clone())
            }
            Op::Update(at) => {
                let (dtype, shape) = first()?;
                let region: Shape = at.iter().map(|a| a.size).collect();
                if let OperandType::Tensor(_, v) = args[1]
                    && !v.broadcasts_to(&region)
                {
                    let facts = format!("values {v} to the selected region {region}");
                    return Err(error::bad_shape(name, "shapes are not compatible", facts));
                }
                Type::new(dtype, shape.clone())
            }
            Op::Concat(axis) => infer_concat(args, *axis)?,
            Op::Gather => {
                let (dtype, shape) = first()?;
                let index = index_shape(name, &args[1..])?;
                let rest = &shape.dims()[args.len() - 1..];
                Type::new(dtype, index.dims().iter().chain(rest).copied().collect())
            }
            Op::Scatter(_) => {
                let (dtype, shape) = first()?;
                let index = index_shape(name, &args[2..])?;
                let region: Shape =
                    index.dims().iter().chain(&shape.dims()[args.len() - 2..]).copied().collect();
                if let OperandType::Tensor(_, values) = args[1]
                    && !values.broadcasts_to(&region)
                {
                    let facts = format!("values {values} to the selected region {region}");
                    return Err(error::bad_shape(name, "shapes are not compatible", facts));
                }
                Type::new(dtype, shape.clone())
            }
            Op::Reduce(kind, axes) => {
                let (dtype, shape) = first()?;
                let needs_one = matches!(kind, Reduction::Max | Reduction::Min);
                if needs_one
                    && axes.iter().any(|&i| shape[i] == 0)
                    && shape.reduce(axes, false).elements() != 0
                {
                    return Err(error::empty_reduction(name, shape));
                }
                Type::new(dtype, shape.reduce(axes, false))
            }
            Op::ArgReduce(_, axis) => {
                let (_, shape) = first()?;
                let out = shape.reduce(&[*axis], false);
                if shape[*axis] == 0 && out.elements() != 0 {
                    return Err(error::empty_reduction(name, shape));
                }
                Type::new(DType::I64, out)
            }
            Op::Cumulate { .. } | Op::Sort { .. } => {
                let (dtype, shape) = first()?;
                Type::new(dtype, shape.clone())
            }
            Op::ArgSort { .. } => Type::new(DType::I64, first()?.1.clone()),
            Op::TopK { k, axis, .. } => {
                let mut shape = first()?.1.clone();
                if Dim::new(*k) > shape[*axis] {
                    let facts = format!("k = {k} for axis {axis} with size {}", shape[*axis]);
                    return Err(error::bad_shape(name, "not enough elements", facts));
                }
                shape.dims_mut()[*axis] = Dim::new(*k);
                Type::new(DType::I64, shape)
            }
            Op::Contract(spec) => infer_contract(spec, first()?, args[1].tensor(name)?)?,
            Op::Conv(role, spec) => infer_conv(*role, spec, first()?, args[1].tensor(name)?)?,
            Op::Windows(spec) => {
                let (dtype, shape) = first()?;
                let lead = shape.rank() - spec.size.len();
                let mut dims: SmallVec<[Dim; 8]> = SmallVec::from_slice(&shape.dims()[..lead]);
                for i in 0..spec.size.len() {
                    let reach = (spec.size[i] - 1) * spec.dilation[i] + 1;
                    if shape[lead + i] < Dim::new(reach) {
                        let facts = format!("window {reach} on axis {} of {shape}", lead + i);
                        return Err(error::bad_shape(
                            name,
                            "the window is larger than the axis",
                            facts,
                        ));
                    }
                    dims.push((shape[lead + i] - reach.into()) / spec.stride[i].into() + Dim::ONE);
                }
                dims.extend(spec.size.iter().map(|&n| Dim::new(n)));
                Type::new(dtype, Shape::from_dims(&dims))
            }
            Op::Fold(spec, sizes) => {
                let (dtype, shape) = first()?;
                let lead = shape.rank() - 2 * spec.size.len();
                let lead = shape.dims()[..lead].iter();
                Type::new(dtype, lead.chain(sizes).copied().collect())
            }
            Op::Fill(ty) | Op::Iota(ty, _) | Op::RandomBits(ty) => {
                ty.shape.check(name)?;
                ty.clone()
            }
        })
    }

    /// The result's type of an elementwise op, without making an `Op`.
    pub fn infer_map(def: &Elementwise, args: &[OperandType<'_>]) -> Result<Type> {
        def.infer(args)
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

impl Elementwise {
    /// The result's type; operands must have one dtype (scalars take it) that the op accepts.
    fn infer(&self, args: &[OperandType<'_>]) -> Result<Type> {
        let mut shape: Option<Shape> = None;
        let mut dtype: Option<DType> = None;
        for (i, arg) in args.iter().enumerate() {
            let OperandType::Tensor(d, s) = *arg else { continue };
            shape = Some(match shape {
                Some(so_far) => so_far.broadcast(s, self.name)?,
                None => s.clone(),
            });
            if self.is_condition(i) {
                if d != DType::Bool {
                    return Err(error::bad_dtype(self.name, self.params[i].name, d, "bool"));
                }
                continue;
            }
            match dtype {
                Some(common) if common != d => {
                    return Err(error::dtype_mismatch(self.name, common, d));
                }
                _ => dtype = Some(d),
            }
        }
        let (Some(dtype), Some(shape)) = (dtype, shape) else {
            return Err(error::bad_type(self.name, "expected a tensor", "only numbers were given"));
        };
        self.check_dtype(dtype)?;
        shape.check(self.name)?;
        Ok(Type::new(self.result_dtype(dtype), shape))
    }

    /// The dtype of a result whose operands have `dtype`.
    pub fn result_dtype(&self, dtype: DType) -> DType {
        match self.result {
            ResultRule::Same => dtype,
            ResultRule::Bool => DType::Bool,
        }
    }

    /// Refuses a dtype that the op does not take.
    pub fn check_dtype(&self, dtype: DType) -> Result<()> {
        if self.classes.contains(dtype.class()) {
            return Ok(());
        }
        let param = self.params.last().map_or("x", |p| p.name);
        let want = self.classes.describe();
        if dtype.class() == Class::Float {
            return Err(error::not_taken(self.name, dtype, param, want));
        }
        Err(error::bad_dtype(self.name, param, dtype, want))
    }
}

/// The common shape of index arrays, which must be integers.
fn index_shape(op: &str, indices: &[OperandType<'_>]) -> Result<Shape> {
    let mut shape = Shape::scalar();
    for index in indices {
        let (dtype, s) = index.tensor(op)?;
        if dtype != DType::I64 {
            return Err(error::dtype_mismatch(op, "index arrays of int64", dtype));
        }
        shape = shape.broadcast(s, op)?;
    }
    Ok(shape)
}

fn infer_concat(args: &[OperandType<'_>], axis: usize) -> Result<Type> {
    let (dtype, first) = args[0].tensor("concat")?;
    let mut out = first.clone();
    for arg in &args[1..] {
        let (d, shape) = arg.tensor("concat")?;
        if d != dtype {
            return Err(error::dtype_mismatch("concat", dtype, d));
        }
        let fits = shape.rank() == first.rank()
            && (0..first.rank()).all(|i| i == axis || shape[i] == first[i]);
        if !fits {
            let facts = format!("{first} and {shape} along axis {axis}");
            return Err(error::bad_shape("concat", "sizes differ outside the axis", facts));
        }
        out.dims_mut()[axis] = out[axis] + shape[axis];
    }
    out.check("concat")?;
    Ok(Type::new(dtype, out))
}

fn infer_contract(spec: &Contraction, a: (DType, &Shape), b: (DType, &Shape)) -> Result<Type> {
    if a.0 != b.0 {
        return Err(error::dtype_mismatch("matmul", a.0, b.0));
    }
    let pairs =
        spec.a_contract.iter().zip(&spec.b_contract).chain(spec.a_batch.iter().zip(&spec.b_batch));
    for (&i, &j) in pairs {
        if a.1[i] != b.1[j] {
            let facts = format!("{} @ {}", a.1, b.1);
            return Err(error::size_mismatch("matmul", "inner dimensions", a.1[i], b.1[j], facts));
        }
    }
    let free = |shape: &Shape, batch: &Axes, contract: &Axes| -> SmallVec<[Dim; 6]> {
        (0..shape.rank())
            .filter(|i| !batch.contains(i) && !contract.contains(i))
            .map(|i| shape[i])
            .collect()
    };
    let mut dims: SmallVec<[Dim; 6]> = spec.a_batch.iter().map(|&i| a.1[i]).collect();
    dims.extend(free(a.1, &spec.a_batch, &spec.a_contract));
    dims.extend(free(b.1, &spec.b_batch, &spec.b_contract));
    let shape = Shape::from_dims(&dims);
    shape.check("matmul")?;
    Ok(Type::new(a.0, shape))
}

fn infer_conv(
    role: ConvRole,
    spec: &ConvSpec,
    a: (DType, &Shape),
    b: (DType, &Shape),
) -> Result<Type> {
    if a.0 != b.0 {
        return Err(error::dtype_mismatch("conv", a.0, b.0));
    }
    let groups = Dim::new(spec.groups);
    let (channels, spatial): ([Dim; 2], SmallVec<[Dim; 3]>) = match role {
        ConvRole::Output => {
            let positions = (0..spec.stride.len()).map(|i| {
                let reach = (b.1[i + 2] - Dim::ONE) * spec.dilation[i].into() + Dim::ONE;
                // None where the kernel reaches further than the operand: differences stop at zero.
                let stride = spec.stride[i].into();
                (a.1[i + 2] + spec.pad_low[i].into() + spec.pad_high[i].into() + stride - reach)
                    / stride
            });
            ([a.1[0], b.1[0]], positions.collect())
        }
        ConvRole::Input => ([a.1[0], b.1[1] * groups], spec.input.iter().copied().collect()),
        ConvRole::Weight => ([b.1[1], a.1[1] / groups], spec.kernel.iter().copied().collect()),
    };
    let shape: Shape = channels.into_iter().chain(spatial).collect();
    shape.check("conv")?;
    Ok(Type::new(a.0, shape))
}
