//! How often a term of a sum is rounded.

use super::{gemm, reduce};
use crate::ops::op::Op;

/// The most roundings between a term and the sum (or product) of `n` terms that an op forms, which
/// bounds its error. None where an op forms no sum in an order of its own.
pub fn depth(op: &Op, n: usize) -> usize {
    match op {
        Op::Contract(_) | Op::Conv(..) => gemm::depth(n),
        Op::Reduce(..) => reduce::depth(n),
        Op::Map(_)
        | Op::Call(_)
        | Op::Cast(_)
        | Op::Reshape(_)
        | Op::Permute(_)
        | Op::Broadcast(_)
        | Op::Slice(_)
        | Op::Embed(..)
        | Op::Update(_)
        | Op::Concat(_)
        | Op::Gather
        | Op::Scatter(_)
        | Op::ArgReduce(..)
        | Op::Cumulate { .. }
        | Op::Windows(_)
        | Op::Fold(..)
        | Op::Sort { .. }
        | Op::ArgSort { .. }
        | Op::TopK { .. }
        | Op::Fill(_)
        | Op::Iota(..)
        | Op::RandomBits(_) => 0,
    }
}
