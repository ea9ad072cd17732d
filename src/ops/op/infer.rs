//! The types of results, or why operands are refused.

use smallvec::smallvec;

use super::{Op, OperandType, Type, Types};
use crate::dtype::DType;
use crate::error::{self, Result};
use crate::ops::elementwise::{Elementwise, ResultRule};
use crate::ops::probe;
use crate::ops::structural::OpKind;
use crate::shape::Shape;

impl Op {
    /// The first result's type, or why the operands are refused. The front ends have checked what
    /// they lower (axes, slices), so most structural rules only compute.
    pub fn infer(&self, args: &[OperandType<'_>]) -> Result<Type> {
        match self.kind() {
            OpKind::Map(def) => def.infer(args),
            OpKind::Call(call) => Ok(probe::call_types(call, args)?.swap_remove(0)),
            OpKind::Structural(def) => (def.infer)(self, args),
        }
    }

    /// The types of all results.
    pub fn infer_all(&self, args: &[OperandType<'_>]) -> Result<Types> {
        match self.kind() {
            OpKind::Map(_) | OpKind::Structural(_) => Ok(smallvec![self.infer(args)?]),
            OpKind::Call(call) => probe::call_types(call, args),
        }
    }

    /// The result's type of an elementwise op, without making an `Op`.
    pub fn infer_map(def: &Elementwise, args: &[OperandType<'_>]) -> Result<Type> {
        def.infer(args)
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
