//! Rounding depth: the most roundings that one term of a sum undergoes, which error bounds need.

use super::{gemm, reduce};
use crate::ops::op::Op;
use crate::ops::structural::{Class, OpKind};

/// The most roundings between a term and the sum (or product) of `n` terms that an op forms, which
/// bounds its error. None where an op forms no sum in an order of its own.
pub fn depth(op: &Op, n: usize) -> usize {
    match op.kind() {
        OpKind::Map(_) | OpKind::Call(_) => 0,
        OpKind::Structural(def) => match def.class {
            Class::Product => gemm::depth(n),
            Class::Reduction => reduce::depth(n),
            Class::Elementwise
            | Class::View
            | Class::Movement
            | Class::Selection
            | Class::Creation => 0,
        },
    }
}
