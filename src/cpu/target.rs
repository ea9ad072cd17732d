//! The CPU as a target and as an executor.

use std::sync::Arc;

use super::run::Lowered;
use super::{calls, contract, conv, execute, fresh_layout, is_product, reduce, scratch};
use crate::array::{Array, Operand};
use crate::dtype::DType;
use crate::error::Result;
use crate::executor::{Executable, Executor};
use crate::layout::Layout;
use crate::memory::ALIGN;
use crate::ops::declare::Composite;
use crate::ops::op::{Op, Type};
use crate::passes::Evaluator;
use crate::schedule::Plan;
use crate::shape::Shape;
use crate::site::Site;
use crate::target::{BlockScratch, Blocks, ChannelsLast, InPlace, Limits, Packed, Ranges, Target};
use crate::threads;

/// The machine that we run on.
pub struct Cpu;

/// What fits the innermost cache, and from when on something is worth its set-up.
pub const LIMITS: Limits = Limits {
    instructions: 32,
    operands: 12,
    buffers: usize::MAX,
    alignment: ALIGN,
    granularity: 1,
    largest: usize::MAX,
    buffer: usize::MAX,
    ranges: Ranges::Free,
    large: 1 << 12,
    setup: 2,
    blocks: Some(Blocks {
        rows: 8,
        bytes: 768 << 10,
        least: 192 << 10,
        large: 512 << 10,
        of_rows: 96 << 10,
        each: 4,
        inside: 3 << 20,
    }),
    rows: None,
};

impl Target for Cpu {
    fn name(&self) -> &'static str {
        "cpu"
    }

    fn limits(&self) -> &Limits {
        &LIMITS
    }

    fn lanes(&self) -> usize {
        threads::num_threads()
    }

    fn supports(&self, _: &Op, _: &[DType], _: DType) -> bool {
        // What the rules of an op allow has a kernel here.
        true
    }

    fn has_kernel(&self, composite: &'static Composite) -> bool {
        calls::has_kernel(composite)
    }

    fn view(&self, op: &Op, dtype: DType, x: &Layout) -> Option<Layout> {
        op.view(dtype, x)
    }

    fn fresh_layout(&self, op: &Op, shape: &Shape) -> Layout {
        fresh_layout(op, shape)
    }

    fn channels_last(&self, op: &Op, x: &Type, w: &Type) -> ChannelsLast {
        conv::channels_last(op, x, w)
    }

    fn in_place(&self, op: &Op) -> InPlace {
        op.in_place()
    }

    fn scratch(&self, op: &Op, args: &[(DType, &Layout)], result: &Layout) -> usize {
        scratch(op, args, result)
    }

    fn block_scratch(&self, op: &Op, args: &[(DType, &Layout)], result: &Shape) -> BlockScratch {
        if let (Op::Contract(spec), [(dtype, a), (_, b), ..]) = (op, args) {
            return match contract::serial_scratch(*dtype, a, b, spec) {
                Some(bytes) => BlockScratch::Lent(bytes),
                None => BlockScratch::Refused,
            };
        }
        match scratch(op, args, &Layout::contiguous(result.clone())) {
            0 => BlockScratch::Nothing,
            _ => BlockScratch::Refused,
        }
    }

    fn offers_epilogue(&self, op: &Op, dtype: DType) -> bool {
        is_product(op) && contract::sums_in_place(dtype)
    }

    fn offers_prologue(&self, op: &Op, _: DType, _: usize) -> bool {
        // Operands of a batch would be other ones for each of its matrices; windows of a
        // convolution show an element many times.
        matches!(op, Op::Contract(spec) if spec.a_batch.is_empty())
    }

    fn packed(
        &self,
        op: &Op,
        args: [(DType, &Layout); 2],
        made: [Option<usize>; 2],
        result: &Layout,
    ) -> Packed {
        if let Op::Contract(spec) = op
            && made.iter().any(Option::is_some)
        {
            return contract::packed(
                args[0].0,
                [args[0].1, args[1].1],
                made,
                spec,
                result.shape().count(),
            );
        }
        Packed { scratch: scratch(op, &args, result), times: [None, None] }
    }

    fn splits_batch(&self, dtype: DType) -> bool {
        contract::sums_in_place(dtype)
    }

    fn reduction_group(&self, lines: usize, width: usize) -> Option<usize> {
        reduce::group(lines, width)
    }
}

impl Evaluator for Cpu {
    fn evaluate(&self, op: &Op, args: &[Operand<'_>]) -> Result<Array> {
        execute(op, args)
    }

    fn has_kernel(&self, composite: &'static Composite) -> bool {
        Target::has_kernel(self, composite)
    }

    fn contiguous(&self, x: &Array) -> Result<Array> {
        super::copy::contiguous(x)
    }
}

impl Executor for Cpu {
    fn target(&self) -> &'static dyn Target {
        &Cpu
    }

    fn allocate(&self, ty: &Type) -> Result<Array> {
        Array::uninit(ty.dtype, ty.shape.clone())
    }

    fn upload(&self, x: &Array) -> Result<Array> {
        Ok(x.clone())
    }

    fn download(&self, x: &Array) -> Result<Array> {
        Ok(x.clone())
    }

    fn execute(&self, op: &Op, args: &[Operand<'_>], _: Site) -> Result<Array> {
        execute(op, args)
    }

    fn lower(&self, plan: &Plan) -> Result<Arc<dyn Executable>> {
        Ok(Arc::new(Lowered::new(plan.template())?.with_packed(plan)?))
    }

    fn replacing(&self, _: Option<&Array>, new: Array) -> Array {
        new
    }

    fn is_void(&self, _: &Array) -> bool {
        false
    }

    fn is_sole(&self, x: &Array) -> bool {
        x.is_unique()
    }

    fn synchronize(&self) -> Result<()> {
        Ok(())
    }
}
