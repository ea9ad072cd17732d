//! Kernels of single ops, by kind of op.

use super::kernel::{Input, Kernel, Output};
use super::moves;
use crate::error::{self, Result};
use crate::ops::op::Op;

/// The kernel of an op on operands and a result of these places. Numbers stand where the op takes
/// them.
pub fn kernel(op: &Op, inputs: &[Input], out: &Output) -> Result<Kernel> {
    match op {
        Op::Cast(_)
        | Op::Reshape(_)
        | Op::Permute(_)
        | Op::Broadcast(_)
        | Op::Slice(_)
        | Op::Full(_) => moves::kernel(op, inputs, out),
        _ => Err(error::internal(format!("no kernel of {}", op.name()))),
    }
}
