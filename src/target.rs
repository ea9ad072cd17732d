//! Targets: what a planner may ask of the machine that a plan is made for.
//!
//! A plan holds ops, sizes and placements, and nothing of a machine. All that depends on a machine
//! is asked here: which steps can be fused and how large they may be, how much scratch a step
//! takes, which views cost nothing, which memory a result may be written over. Only the executor of
//! the target knows how any of this is done.

use smallvec::SmallVec;

use crate::dtype::DType;
use crate::error::{self, Error};
use crate::layout::Layout;
use crate::memory::block_bytes;
use crate::ops::declare::Composite;
use crate::ops::op::{Op, Type};
use crate::shape::Shape;

pub use crate::ops::structural::InPlace;

/// How a step may read and write ranges of one buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ranges {
    /// In any way, as long as no range that it writes overlaps a different range that it reads
    Free,
    /// All ranges are bound as writable and none overlap; equal ranges are bound once
    Apart,
}

/// When steps run block by block, and how large blocks are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocks {
    /// The fewest rows: with fewer there would be too few blocks
    pub rows: usize,
    /// Bytes of the values of a block. They should be few enough that the values alive at a time
    /// stay in a near memory, and enough that the work on them takes much longer than the set-up of
    /// steps
    pub bytes: usize,
    /// The least bytes, for blocks that are made smaller so that every lane gets some
    pub least: usize,
    /// Bytes of all values below which a block fusion does not pay
    pub large: usize,
    /// Both where all steps of a block compute rows, which run as one program
    pub of_rows: usize,
    /// Blocks for each lane, so that a late block does not delay the end
    pub each: usize,
    /// The most bytes of all values for each place along an axis that is not the first, where
    /// blocks are cut along it: 0 where they are not
    pub inside: usize,
}

/// Which steps that compute rows become one, and how long rows may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowLimits {
    /// The most elements of a row
    pub columns: usize,
    /// The fewest rows of more elements than `short`: fewer leave most of the device idle
    pub few: usize,
    /// The most elements of rows of which there may be few
    pub short: usize,
    /// The most stages
    pub stages: usize,
    /// The most reductions of a row one after the other, each of which reads the row again
    pub passes: usize,
    /// The most ops of a group that is computed again in each pass
    pub again: usize,
}

/// Which matrix products take tiles in workgroup memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tiling {
    /// None
    Never,
    /// Large ones
    Large,
    /// All that can
    Always,
}

/// What shaders may make use of beside what all devices have, and what suits the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abilities {
    /// Memory may be read as floats of 16 bits
    pub has_f16: bool,
    /// Eight neighbouring invocations always belong to one subgroup
    pub has_subgroups: bool,
    /// Invocations that keep the device busy
    pub busy: usize,
    /// Which products take tiles
    pub tiling: Tiling,
}

impl Abilities {
    /// What every device is able to, and what suits most.
    pub const LEAST: Abilities =
        Abilities { has_f16: false, has_subgroups: false, busy: 1 << 15, tiling: Tiling::Never };
}

/// The limits of what a target can hold and fuse, and the costs of fusing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The most ops of a group
    pub instructions: usize,
    /// The most arrays that a group reads
    pub operands: usize,
    /// The most ranges of buffers that a step reads and writes; at least four, which a single op
    /// may need
    pub buffers: usize,
    /// Alignment of offsets in a buffer, in bytes
    pub alignment: usize,
    /// Granularity of the length of a range, in bytes
    pub granularity: usize,
    /// The largest range of a buffer that a step may read or write, in bytes
    pub largest: usize,
    /// The largest buffer, in bytes: an arena that is larger becomes several
    pub buffer: usize,
    /// How a step may bind ranges of one buffer
    pub ranges: Ranges,
    /// The cost of setting up a group, in elements of a pass
    pub large: usize,
    /// The cost of setting up a plan, in single ops
    pub setup: usize,
    /// The limits of block fusions, if the target offers them
    pub blocks: Option<Blocks>,
    /// The limits of row fusions, if the target offers them
    pub rows: Option<RowLimits>,
}

impl Limits {
    /// The length of a range of `bytes` bytes, rounded up so that another range may start behind
    /// it.
    pub fn aligned(&self, bytes: usize) -> usize {
        self.granular(bytes).next_multiple_of(self.alignment)
    }

    /// The length of a range of `bytes` bytes, rounded up to the granularity.
    pub fn granular(&self, bytes: usize) -> usize {
        bytes.checked_next_multiple_of(self.granularity).unwrap_or(bytes)
    }
}

/// The scratch of a step that works on a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockScratch {
    /// Nothing
    Nothing,
    /// Bytes that the plan provides, and that the steps of a block share
    Lent(usize),
    /// More than a block may have
    Refused,
}

/// The cost of packing the operands of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packed {
    /// The scratch of the product, in bytes
    pub scratch: usize,
    /// How often each element of an operand is packed; `None` where the product would read the
    /// operand where it lies
    pub times: [Option<usize>; 2],
}

/// How a convolution takes to arrays whose channels, axis 1, are innermost in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChannelsLast {
    /// Not at all
    Never,
    /// It writes its result so at no cost
    Writes,
    /// It gains from reading its first operand so, and writes its result so at no cost
    Gains,
    /// As [`Gains`](ChannelsLast::Gains), if both lie so; with one alone it would lose
    Both,
}

/// The machine that a plan is made for, as planners see it. What is not said otherwise is not
/// offered.
pub trait Target: Send + Sync {
    /// The name.
    fn name(&self) -> &'static str;

    /// The limits of what it can hold and fuse.
    fn limits(&self) -> &Limits;

    /// What shaders may make use of.
    fn abilities(&self) -> Abilities {
        Abilities::LEAST
    }

    /// Whether a plan gives the bits that the ops of its list give one by one.
    fn keeps_bits(&self) -> bool {
        true
    }

    /// How many blocks run at a time.
    fn lanes(&self) -> usize;

    /// Whether it has a kernel of an op other than a call, for operands of these dtypes (without
    /// numbers) and a result of this dtype.
    fn supports(&self, op: &Op, operands: &[DType], result: DType) -> bool;

    /// The bytes of a stored element.
    fn stored(&self, dtype: DType) -> usize {
        dtype.size()
    }

    /// The length of the range that `elements` elements take, in bytes.
    fn bytes(&self, dtype: DType, elements: usize) -> usize {
        self.limits().granular(elements.saturating_mul(self.stored(dtype)))
    }

    /// The bytes that memory counters count for a buffer of `bytes` bytes.
    fn allocated(&self, bytes: usize) -> usize {
        block_bytes(bytes)
    }

    /// Whether the kernel of an op binds its operands in parts, so that it may have any number.
    fn binds_in_parts(&self, _op: &Op) -> bool {
        false
    }

    /// Whether it has a kernel for a composite, which is then not expanded.
    fn has_kernel(&self, composite: &'static Composite) -> bool;

    /// Whether it can compute an op. A call needs a kernel of its composite.
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

    /// The layout of a result that is a view of the first operand, where the view costs nothing.
    fn view(&self, op: &Op, dtype: DType, x: &Layout) -> Option<Layout>;

    /// The layout in memory of a result that is computed.
    fn fresh_layout(&self, op: &Op, shape: &Shape) -> Layout;

    /// How a convolution of `x` and `w` takes to channels that are innermost. Where some step writes
    /// such a result, groups and reductions read it, and groups write theirs so too.
    fn channels_last(&self, _op: &Op, _x: &Type, _w: &Type) -> ChannelsLast {
        ChannelsLast::Never
    }

    /// Which operands the result of an op may be written over. A group's result may be written over
    /// any operand.
    fn in_place(&self, _op: &Op) -> InPlace {
        InPlace::Nowhere
    }

    /// The scratch of an op while it runs, in bytes.
    fn scratch(&self, _op: &Op, _args: &[(DType, &Layout)], _result: &Layout) -> usize {
        0
    }

    /// The scratch of an op that works on a block.
    fn block_scratch(&self, _op: &Op, _args: &[(DType, &Layout)], _result: &Shape) -> BlockScratch {
        BlockScratch::Refused
    }

    /// Whether an op may have an epilogue: a group that runs on each piece of the op's result as
    /// soon as the piece is computed.
    fn offers_epilogue(&self, _op: &Op, _dtype: DType) -> bool {
        false
    }

    /// Whether the product of an epilogue is kept in registers. Otherwise it is computed in the
    /// memory of one of the epilogue's results, which has its type.
    fn epilogue_in_registers(&self) -> bool {
        false
    }

    /// Whether operand `operand` of the op, which has this dtype, may have a prologue: a group that
    /// computes the operand while it is packed.
    fn offers_prologue(&self, _op: &Op, _dtype: DType, _operand: usize) -> bool {
        false
    }

    /// The cost of packing for a product. An operand with a number in `made` is computed by a
    /// prologue with so many ops per element; its layout is the one that it would have if it were
    /// written.
    fn packed(
        &self,
        _op: &Op,
        _args: [(DType, &Layout); 2],
        _made: [Option<usize>; 2],
        _result: &Layout,
    ) -> Packed {
        Packed { scratch: 0, times: [None, None] }
    }

    /// Whether a product of this dtype can be computed for some matrices of its batch at a time,
    /// with the same bits.
    fn splits_batch(&self, _dtype: DType) -> bool {
        false
    }

    /// How many lines become one leaf of the tree that reduces `lines` lines of `width` elements
    /// into one; `None` where the lines cannot come in pieces.
    fn reduction_group(&self, _lines: usize, _width: usize) -> Option<usize> {
        None
    }
}

/// `float64, float64 to bool`.
pub fn signature(operands: &[DType], result: DType) -> String {
    let operands: SmallVec<[String; 4]> = operands.iter().map(DType::to_string).collect();
    match operands.is_empty() {
        true => result.to_string(),
        false => format!("{} to {result}", operands.join(", ")),
    }
}
