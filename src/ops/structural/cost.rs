//! The cost of structural ops: bytes moved and arithmetic done.

use crate::dtype::DType;
use crate::ops::op::{Op, Type};
use crate::shape::{Dim, Shape, hint};

/// Bytes read and written, operations done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Cost {
    pub bytes: u64,
    pub flops: u64,
}

impl Cost {
    /// The sum of two costs.
    pub fn plus(self, other: Cost) -> Cost {
        Cost {
            bytes: self.bytes.saturating_add(other.bytes),
            flops: self.flops.saturating_add(other.flops),
        }
    }

    /// The cost of `n` repetitions.
    pub fn times(self, n: u64) -> Cost {
        Cost { bytes: self.bytes.saturating_mul(n), flops: self.flops.saturating_mul(n) }
    }

    /// The larger bytes and the larger operations.
    pub fn max(self, other: Cost) -> Cost {
        Cost { bytes: self.bytes.max(other.bytes), flops: self.flops.max(other.flops) }
    }
}

/// The types that an op's cost is asked for. A symbol counts as its hint.
#[derive(Clone, Copy)]
pub struct Work<'a> {
    /// The operands' types; `None` for a number
    pub operands: &'a [Option<&'a Type>],
    /// The result's
    pub result: &'a Type,
}

impl<'a> Work<'a> {
    /// The type of an operand that is a tensor.
    pub fn operand(&self, i: usize) -> Option<&'a Type> {
        self.operands.get(i).copied().flatten()
    }

    /// The count of an operand's elements; a number is one.
    pub fn count(&self, i: usize) -> u64 {
        self.operand(i).map_or(1, |ty| elements(&ty.shape))
    }

    /// The count of the result's elements.
    pub fn results(&self) -> u64 {
        elements(&self.result.shape)
    }

    /// The bytes of the operands from index `from` on, each read once.
    pub fn read(&self, from: usize) -> u64 {
        let types = self.operands.iter().skip(from).flatten();
        types.map(|ty| bytes(ty.dtype, elements(&ty.shape))).fold(0, u64::saturating_add)
    }

    /// The bytes of the result.
    pub fn write(&self) -> u64 {
        bytes(self.result.dtype, self.results())
    }

    /// The cost of reading the operands, writing the result and `flops` operations.
    pub fn with(&self, flops: u64) -> Cost {
        Cost { bytes: self.read(0).saturating_add(self.write()), flops }
    }
}

/// No cost: the result is a view.
pub fn free(_: &Op, _: &Work<'_>) -> Cost {
    Cost::default()
}

/// The cost of a pass over memory.
pub fn pass(_: &Op, work: &Work<'_>) -> Cost {
    work.with(0)
}

/// The bytes of a count of elements.
pub fn bytes(dtype: DType, elements: u64) -> u64 {
    elements.saturating_mul(dtype.size() as u64)
}

/// The count of elements.
pub fn elements(shape: &Shape) -> u64 {
    shape.dims().iter().map(|&d| size(d)).fold(1, u64::saturating_mul)
}

/// The size, or the hint of an expression; 1 where there is none.
pub fn size(dim: Dim) -> u64 {
    dim.known().or_else(|| hint(dim)).map_or(1, |n| n as u64)
}
