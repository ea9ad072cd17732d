//! The reference: each op by plain loops over the definition of its result.
//!
//! Nothing is fused, cut into tiles, vectorised or run on a second thread, and no kernel is shared
//! with an executor that is meant to be fast: what an op means can be read here. An element is a
//! word that holds its memory form, an operand is copied into words in C order whatever its layout,
//! and a result is a fresh array in C order.
//!
//! Promises: elementwise ops evaluate the formula of the table, rounded to the dtype of the op.
//! Sums are formed in the order of their indices, float16 and bfloat16 in float32 and rounded once
//! at the end; running sums in float64. [`bounds`] says how near the result of another executor
//! must come.
//!
//! Words take up to eight times the memory of the elements, which no counter of bytes sees.

pub mod bounds;
mod create;
mod elements;
mod elementwise;
mod indexing;
mod memory;
mod movement;
mod number;
pub mod plan;
mod reduce;
mod sort;
mod sums;
#[cfg(test)]
mod tests;

pub use memory::defer;

use smallvec::SmallVec;

use crate::array::Array;
use crate::dtype::{DType, Scalar};
use crate::error::{self, Result};
use crate::ops::op::{Op, OperandType};
#[cfg(feature = "example-op")]
use crate::shape::Shape;
use crate::small::small;
use elements::Elements;

/// An operand of an op.
#[derive(Clone, Copy)]
pub enum Operand<'a> {
    /// An array of any layout
    Array(&'a Array),
    /// A number, which takes the dtype of the arrays beside it
    Scalar(Scalar),
}

impl<'a> Operand<'a> {
    fn ty(self) -> OperandType<'a> {
        match self {
            Operand::Array(x) => OperandType::Tensor(x.dtype, x.shape()),
            Operand::Scalar(value) => OperandType::Scalar(value.into()),
        }
    }

    /// The elements of an operand that the op takes as an array only.
    fn elements(self, op: &Op) -> Result<Elements> {
        match self {
            Operand::Array(x) => Ok(Elements::read(x)),
            Operand::Scalar(value) => Err(error::bad_type(op.name(), "expected a tensor", value)),
        }
    }

    /// The elements of an operand that must have a dtype, or is a number that takes it.
    fn elements_as(self, op: &Op, dtype: DType) -> Result<Elements> {
        match self {
            Operand::Array(x) if x.dtype == dtype => Ok(Elements::read(x)),
            Operand::Array(x) => Err(error::dtype_mismatch(op.name(), dtype, x.dtype)),
            Operand::Scalar(value) => {
                Ok(Elements::scalar(dtype, number::of_scalar(value).word(dtype)))
            }
        }
    }
}

/// Computes an op. Refuses what [`Op::infer`] refuses, and indices outside their axes.
pub fn run(op: &Op, args: &[Operand<'_>]) -> Result<Array> {
    let types: SmallVec<[OperandType<'_>; 4]> = small(args.iter().map(|arg| arg.ty()));
    let ty = op.infer(&types)?;
    let sizes = ty.shape.sizes();
    let x = || args[0].elements(op);
    let second = |dtype: DType| args[1].elements_as(op, dtype);
    let arrays = |from: usize| -> Result<Vec<Elements>> {
        args[from..].iter().map(|arg| arg.elements(op)).collect()
    };
    let out = match op {
        Op::Map(def) => elementwise::map(def, args, ty.dtype, &sizes)?,
        Op::Call(call) => {
            let what = format!("{} has no kernel", call.composite.name);
            return Err(error::internal(what));
        }
        Op::Cast(to) => elementwise::cast(&x()?, *to),
        Op::Reshape(_) => x()?.reshaped(&sizes),
        Op::Permute(axes) => movement::permute(&x()?, axes),
        Op::Broadcast(_) => movement::broadcast(&x()?, &sizes),
        Op::Slice(at) => movement::slice(&x()?, at),
        Op::Pad(_, at) => {
            let base = movement::broadcast(&second(ty.dtype)?, &sizes);
            movement::replace(base, at, &x()?)
        }
        Op::SetItem(at) => movement::replace(x()?, at, &second(ty.dtype)?),
        Op::Concat(axis) => movement::concat(&arrays(0)?, *axis, &sizes),
        Op::Windows(spec) => movement::windows(&x()?, spec, &sizes),
        Op::Gather => indexing::gather(op, &x()?, &arrays(1)?, &sizes)?,
        Op::Scatter(mode) => indexing::scatter(op, x()?, &second(ty.dtype)?, &arrays(2)?, *mode)?,
        Op::Reduce(kind, axes) => reduce::reduce(op, *kind, &x()?, axes, &sizes)?,
        Op::ArgReduce(kind, axis) => sort::arg_reduce(*kind, &x()?, *axis),
        Op::Cumulate { kind, axis, reverse } => reduce::cumulate(*kind, x()?, *axis, *reverse),
        Op::Contract(spec) => sums::contract(spec, &x()?, &second(ty.dtype)?, &sizes),
        Op::Conv(role, spec) => sums::conv(*role, spec, &x()?, &second(ty.dtype)?, &sizes),
        Op::Fold(spec, _) => sums::fold(spec, &x()?, &sizes),
        Op::Sort { axis, descending } => sort::sort(&x()?, *axis, *descending),
        Op::ArgSort { axis, descending } => {
            let x = x()?;
            sort::positions(&x, x.sizes[*axis], *axis, *descending)
        }
        Op::TopK { k, axis, largest } => sort::positions(&x()?, *k, *axis, *largest),
        Op::Full(_) => movement::broadcast(&args[0].elements_as(op, ty.dtype)?, &sizes),
        Op::Iota(_, axis) => create::iota(ty.dtype, &sizes, *axis),
        Op::RandomBits(_) => create::random_bits(op, &x()?, ty.dtype, &sizes)?,
        #[cfg(feature = "example-op")]
        Op::Increments(axis) => {
            let (x, subtract) = (x()?, &crate::ops::elementwise::arithmetic::subtract);
            let both = crate::ops::structural::example::neighbours(*axis, &Shape::of(&x.sizes));
            let part = |at| movement::slice(&x, at).into_array(ty.clone());
            let [first, second] = [part(&both[0])?, part(&both[1])?];
            let operands = [Operand::Array(&second), Operand::Array(&first)];
            elementwise::map(subtract, &operands, ty.dtype, &sizes)?
        }
    };
    out.into_array(ty)
}
