//! Targets: what a planner may ask of the machine that a plan is made for.
//!
//! A plan holds ops, sizes and places, and nothing of a machine. What depends on one is asked here: what
//! can be fused and how large, what a step takes for itself, which views cost nothing, which memory a
//! result may be written over. Only the executor of the target knows how any of that is done.

use crate::dtype::DType;
use crate::layout::Layout;
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

/// What a target can hold and fuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The most ops of a group
    pub instructions: usize,
    /// The most buffers that a step reads and writes
    pub buffers: usize,
    /// Bytes of which an offset in a buffer is a multiple
    pub alignment: usize,
    /// Bytes of which the length of a range is a multiple
    pub granularity: usize,
    /// The largest range of a buffer that a step may read or write, in bytes
    pub largest: usize,
    /// Ranges of one buffer in a step
    pub ranges: Ranges,
    /// Elements from which on a pass over them costs as much as setting up a group
    pub large: usize,
    /// Block fusions, if it has such
    pub blocks: Option<Blocks>,
}

impl Limits {
    /// The next multiple of the alignment.
    pub fn aligned(&self, bytes: usize) -> usize {
        bytes.next_multiple_of(self.alignment)
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

/// What a plan is made for.
pub trait Target: Send + Sync {
    /// The name.
    fn name(&self) -> &'static str;

    /// What it can hold and fuse.
    fn limits(&self) -> &Limits;

    /// How many blocks are worked on at a time.
    fn lanes(&self) -> usize;

    /// Whether it has an op for operands of these dtypes.
    fn supports(&self, op: &Op, dtypes: &[DType]) -> bool;

    /// The bytes of a stored element.
    fn stored(&self, dtype: DType) -> usize {
        dtype.size()
    }

    /// Whether it has a kernel for a composite, which is then not expanded.
    fn has_kernel(&self, composite: &'static Composite) -> bool;

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

    /// Whether a product of this dtype can be done for a part of its batch at a time, with the same
    /// bits.
    fn splits_batch(&self, dtype: DType) -> bool;

    /// How many lines become one item of the tree that reduces `lines` lines of `width` elements into
    /// one; none where lines cannot come in parts.
    fn reduction_group(&self, lines: usize, width: usize) -> Option<usize>;
}
