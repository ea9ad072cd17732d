//! Targets: what a planner may ask of the machine that a plan is made for.
//!
//! A plan holds ops, sizes and places, and nothing of a machine. What depends on one is asked here: what
//! can be fused and how large, what a step takes for itself, which views cost nothing, which memory a
//! result may be written over. Only the executor of the target knows how any of that is done.

use smallvec::SmallVec;

use crate::dtype::DType;
use crate::error::{self, Error};
use crate::layout::Layout;
use crate::memory::block_bytes;
use crate::ops::declare::Composite;
use crate::ops::op::Op;
use crate::shape::Shape;

pub use crate::ops::structural::InPlace;

/// How a step may read and write ranges of one buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ranges {
    /// As it likes, as long as no range that it writes is another one that it reads
    Free,
    /// All as writable, none overlapping, equal ranges as one
    Apart,
}

/// When steps are worked off block by block, and how large blocks are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocks {
    /// Rows below which blocks would be too few
    pub rows: usize,
    /// Bytes of the values of a block: what lives of them at a time stays in a near memory, and the
    /// work on them takes much longer than the set-up of steps
    pub bytes: usize,
    /// The same where blocks would be too few for all that work at a time
    pub least: usize,
    /// Bytes of all values below which a block fusion is not worth it
    pub large: usize,
    /// Blocks for each of those that work at a time, so that a late one does not delay the end
    pub each: usize,
}

/// What a target can hold and fuse, and what that costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The most ops of a group
    pub instructions: usize,
    /// The most arrays that a group reads
    pub operands: usize,
    /// The most ranges of buffers that a step reads and writes: four at least, which one op takes
    pub buffers: usize,
    /// Bytes of which an offset in a buffer is a multiple
    pub alignment: usize,
    /// Bytes of which the length of a range is a multiple
    pub granularity: usize,
    /// The largest range of a buffer that a step may read or write, in bytes
    pub largest: usize,
    /// Ranges of one buffer in a step
    pub ranges: Ranges,
    /// What setting up a group costs: as much as a pass over so many elements
    pub large: usize,
    /// What setting up a plan costs: as much as running so many ops by themselves
    pub setup: usize,
    /// Block fusions, if it has such
    pub blocks: Option<Blocks>,
}

impl Limits {
    /// The length of a range that holds so many bytes and behind which another may start.
    pub fn aligned(&self, bytes: usize) -> usize {
        self.granular(bytes).next_multiple_of(self.alignment)
    }

    /// The length of a range that holds so many bytes.
    pub fn granular(&self, bytes: usize) -> usize {
        bytes.checked_next_multiple_of(self.granularity).unwrap_or(bytes)
    }
}

/// What a step takes for itself when it works on a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockScratch {
    /// Nothing
    Nothing,
    /// Bytes that the plan gives it, which steps of a block share
    Lent(usize),
    /// More than a block may have
    Refused,
}

/// What a product whose operands are packed takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packed {
    /// The bytes that it takes for itself while it runs
    pub scratch: usize,
    /// How often each element of an operand is packed; none where it would be read where it lies
    pub times: [Option<usize>; 2],
}

/// What a plan is made for.
pub trait Target: Send + Sync {
    /// The name.
    fn name(&self) -> &'static str;

    /// What it can hold and fuse.
    fn limits(&self) -> &Limits;

    /// How many blocks are worked on at a time.
    fn lanes(&self) -> usize;

    /// Whether it has a kernel of an op, other than a call, for operands of these dtypes (numbers
    /// left out) and a result of that dtype.
    fn supports(&self, op: &Op, operands: &[DType], result: DType) -> bool;

    /// The bytes of a stored element.
    fn stored(&self, dtype: DType) -> usize {
        dtype.size()
    }

    /// The length of the range that so many elements take.
    fn bytes(&self, dtype: DType, elements: usize) -> usize {
        self.limits().granular(elements.saturating_mul(self.stored(dtype)))
    }

    /// What a buffer of so many bytes counts for, where memory is counted.
    fn allocated(&self, bytes: usize) -> usize {
        block_bytes(bytes)
    }

    /// Whether it has a kernel for a composite, which is then not expanded.
    fn has_kernel(&self, composite: &'static Composite) -> bool;

    /// Whether it can compute an op: a call by a kernel for it alone.
    fn runs(&self, op: &Op, operands: &[DType], result: DType) -> bool {
        if let Op::Call(call) = op {
            return self.has_kernel(call.composite);
        }
        self.supports(op, operands, result)
    }

    /// Why it cannot compute an op, if it cannot.
    fn refusal(&self, op: &Op, operands: &[DType], result: DType) -> Option<Error> {
        if self.runs(op, operands, result) {
            return None;
        }
        Some(error::no_kernel(op.name(), self.name(), signature(operands, result)))
    }

    /// The layout of a result that is the first operand seen otherwise, where that costs nothing.
    fn view(&self, op: &Op, dtype: DType, x: &Layout) -> Option<Layout>;

    /// How a result that is computed lies in memory.
    fn fresh_layout(&self, op: &Op, shape: &Shape) -> Layout;

    /// What the result of an op may be written over; of a group the memory of any operand.
    fn in_place(&self, op: &Op) -> InPlace;

    /// The bytes that an op takes for itself while it runs.
    fn scratch(&self, op: &Op, args: &[(DType, &Layout)], result: &Shape) -> usize;

    /// The same where it works on a block.
    fn block_scratch(&self, op: &Op, args: &[(DType, &Layout)], result: &Shape) -> BlockScratch;

    /// Whether a group can run on each part of the op's result as soon as that is there.
    fn offers_epilogue(&self, op: &Op, dtype: DType) -> bool;

    /// Whether a group can make operand `operand` of the op, which has this dtype, while it is packed.
    fn offers_prologue(&self, op: &Op, dtype: DType, operand: usize) -> bool;

    /// What a product takes whose operands are made by so many ops an element, where there is a number,
    /// while they are packed. Their layouts are those that they would have.
    fn packed(
        &self,
        op: &Op,
        args: [(DType, &Layout); 2],
        made: [Option<usize>; 2],
        result: &Shape,
    ) -> Packed;

    /// Whether a product of this dtype can be done for a part of its batch at a time, with the same
    /// bits.
    fn splits_batch(&self, dtype: DType) -> bool;

    /// How many lines become one item of the tree that reduces `lines` lines of `width` elements into
    /// one; none where lines cannot come in parts.
    fn reduction_group(&self, lines: usize, width: usize) -> Option<usize>;
}

/// `float64, float64 to bool`.
pub fn signature(operands: &[DType], result: DType) -> String {
    let operands: SmallVec<[String; 4]> = operands.iter().map(DType::to_string).collect();
    match operands.is_empty() {
        true => result.to_string(),
        false => format!("{} to {result}", operands.join(", ")),
    }
}
