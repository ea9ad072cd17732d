//! The types of results, or why operands are refused.

use smallvec::SmallVec;

use super::{Op, OperandType, Type};
use crate::dtype::DType;
use crate::error::{self, Result};
use crate::ops::attributes::*;
use crate::ops::elementwise::{Elementwise, ResultRule};
use crate::ops::probe;
use crate::shape::{Axes, Dim, Shape};

impl Op {
    /// The result's type, or why the operands are refused. The front ends have checked what they
    /// lower (axes, slices), so most structural rules only compute.
    pub fn infer(&self, args: &[OperandType<'_>]) -> Result<Type> {
        let name = self.name();
        let first = || args[0].tensor(name);
        Ok(match self {
            Op::Map(def) => return def.infer(args),
            Op::Call(call) => return probe::call_type(call, args),
            Op::Cast(dtype) => Type::new(*dtype, first()?.1.clone()),
            Op::Reshape(shape) => {
                let (dtype, from) = first()?;
                shape.check(name)?;
                let (count, want) = (from.elements(), shape.elements());
                if !count.equals(want) {
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
                one_value(name, args.get(1))?;
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
                    && axes.iter().any(|&i| shape[i].equals(0))
                    && !shape.reduce(axes, false).elements().equals(0)
                {
                    return Err(error::empty_reduction(name, shape));
                }
                Type::new(dtype, shape.reduce(axes, false))
            }
            Op::ArgReduce(_, axis) => {
                let (_, shape) = first()?;
                let out = shape.reduce(&[*axis], false);
                if shape[*axis].equals(0) && !out.elements().equals(0) {
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
                if shape[*axis].is_below(Dim::new(*k)) {
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
                    if shape[lead + i].is_below(reach) {
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
            Op::Fill(ty) => {
                ty.shape.check(name)?;
                one_value(name, args.first())?;
                ty.clone()
            }
            Op::Iota(ty, _) | Op::RandomBits(ty) => {
                ty.shape.check(name)?;
                ty.clone()
            }
        })
    }

    /// The result's type of an elementwise op, without making an `Op`.
    pub fn infer_map(def: &Elementwise, args: &[OperandType<'_>]) -> Result<Type> {
        def.infer(args)
    }
}

/// Refuses a value with axes where one value fills many places.
fn one_value(op: &str, value: Option<&OperandType<'_>>) -> Result<()> {
    match value {
        Some(OperandType::Tensor(_, shape)) if shape.rank() > 0 => {
            Err(error::bad_shape(op, "the value must be one number", format!("got shape {shape}")))
        }
        Some(OperandType::Tensor(..) | OperandType::Scalar(_)) | None => Ok(()),
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
                    return Err(error::wrong_dtype(self.name, self.params[i].name, d, "bool"));
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
        Err(error::wrong_dtype(self.name, param, dtype, want))
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
            && (0..first.rank()).all(|i| i == axis || shape[i].equals(first[i]));
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
        if !a.1[i].equals(b.1[j]) {
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
