//! Row-sparse gradients: of a table that is only looked up in, the rows that were, by their index.

use crate::array::Array;
use crate::engine::executors::{self, Device, Operand};
use crate::error::Result;
use crate::ops::attributes::ScatterMode;
use crate::ops::op::{Op, Type};

/// Rows of a gradient. What has one index is added; all other rows are zero.
#[derive(Clone)]
pub struct Rows {
    /// The index of each row, (n,), int64, from 0 on
    pub indices: Array,
    /// The rows, (n, …)
    pub values: Array,
}

impl Rows {
    /// Whether these are the same arrays.
    pub fn same(&self, other: &Rows) -> bool {
        let same = |a: &Array, b: &Array| a.data.same(&b.data) && a.layout == b.layout;
        same(&self.indices, &other.indices) && same(&self.values, &other.values)
    }

    /// Whether the work that makes them has failed on its device.
    pub fn is_void(&self) -> bool {
        executors::is_void(&self.indices) || executors::is_void(&self.values)
    }

    /// The whole gradient of a table of this type. Rows are added in their order, as the gradient
    /// of a lookup adds them. It is computed here and now, whatever is traced.
    pub fn dense(&self, ty: &Type) -> Result<Array> {
        let Rows { indices, values } = self;
        let device = values.device();
        if device == Device::Cpu {
            let zeros = Array::zeros(ty.dtype, ty.shape.clone())?;
            return executors::scatter(zeros, &[indices], values, ScatterMode::Add);
        }
        let zero = [Operand::Scalar(0.0.into())];
        let zeros = executors::execute_on(device, &Op::Full(ty.clone()), &zero)?;
        let operands = [&zeros, values, indices].map(Operand::Array);
        executors::execute_on(device, &Op::Scatter(ScatterMode::Add), &operands)
    }
}
