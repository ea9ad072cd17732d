//! Kernels of single ops, by kind of op.

use super::kernel::{Input, Kernel, Output};
use super::{conv, moves, product, reduce, scan};
use crate::error::{self, Result};
use crate::ops::op::Op;

/// The kernel of an op on operands and a result of these places. Numbers stand where the op takes
/// them.
pub fn kernel(op: &Op, inputs: &[Input], out: &Output) -> Result<Kernel> {
    #[allow(clippy::wildcard_enum_match_arm, reason = "other ops are refused by name")]
    match op {
        Op::Cast(_)
        | Op::Reshape(_)
        | Op::Permute(_)
        | Op::Broadcast(_)
        | Op::Slice(_)
        | Op::Full(_) => moves::kernel(op, inputs, out),
        Op::Reduce(kind, axes) => reduce::reduce(*kind, axes, &inputs[0], out),
        Op::ArgReduce(kind, axis) => reduce::arg_reduce(*kind, *axis, &inputs[0], out),
        Op::Cumulate { kind, axis, reverse } => {
            scan::cumulate(*kind, *axis, *reverse, &inputs[0], out)
        }
        Op::Contract(spec) => product::contract(spec, inputs, out),
        Op::Conv(role, spec) => conv::conv(*role, spec, inputs, out),
        Op::Fold(spec, _) => conv::fold(spec, &inputs[0], out),
        _ => Err(error::internal(format!("no kernel of {}", op.name()))),
    }
}
