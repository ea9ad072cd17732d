//! What plans for compute shaders may ask: of an opened device, or of WebGPU's promises.

use crate::dtype::DType;
use crate::error::{self, Error};
use crate::layout::Layout;
use crate::ops::declare::{Composite, Family};
use crate::ops::op::Op;
use crate::shape::Shape;
use crate::target::{Abilities, Limits, Ranges, RowLimits, Target};

/// A device, as planners see it.
pub struct Shaders {
    name: &'static str,
    limits: Limits,
    abilities: Abilities,
}

/// Rows that a workgroup or a part of one computes.
const ROWS: RowLimits =
    RowLimits { columns: 1 << 18, few: 16, short: 1 << 12, stages: 24, passes: 4, again: 8 };

/// What every WebGPU device promises.
pub static WEBGPU: Shaders = Shaders::new("webgpu", 8, 128 << 20, 256 << 20);

impl Shaders {
    /// A device that binds so many storage buffers to a dispatch, so many bytes of each, which may
    /// itself be larger.
    pub const fn new(name: &'static str, buffers: usize, largest: usize, buffer: usize) -> Shaders {
        let limits = Limits {
            instructions: 64,
            operands: usize::MAX,
            // One is left for faults.
            buffers: buffers - 1,
            alignment: 256,
            granularity: 32,
            largest,
            buffer,
            ranges: Ranges::Apart,
            large: 1 << 14,
            setup: 2,
            blocks: None,
            rows: Some(ROWS),
        };
        Shaders { name, limits, abilities: Abilities::LEAST }
    }

    /// The same device, with what it is able to.
    pub const fn able(self, abilities: Abilities) -> Shaders {
        Shaders { abilities, ..self }
    }
}

impl Target for Shaders {
    fn name(&self) -> &'static str {
        self.name
    }

    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn abilities(&self) -> Abilities {
        self.abilities
    }

    /// Sums in fusions have another order, and compilers fuse products.
    fn keeps_bits(&self) -> bool {
        false
    }

    fn lanes(&self) -> usize {
        1
    }

    fn supports(&self, _: &Op, operands: &[DType], result: DType) -> bool {
        result != DType::F64 && !operands.contains(&DType::F64)
    }

    fn binds_in_parts(&self, op: &Op) -> bool {
        matches!(op, Op::Concat(_) | Op::Gather | Op::Scatter(_) | Op::Call(_))
    }

    fn has_kernel(&self, composite: &'static Composite) -> bool {
        composite.kernel.is_some_and(|kernel| match kernel.family().0 {
            Family::Attention => true,
            // Their formulas are scans, or are fused.
            Family::LayerNorm
            | Family::Recurrent(_)
            | Family::Softmax { .. }
            | Family::MaxPool(_) => false,
        })
    }

    fn refusal(&self, op: &Op, operands: &[DType], result: DType) -> Option<Error> {
        let is_double = result == DType::F64 || operands.contains(&DType::F64);
        is_double.then(|| error::no_float64(op.name(), self.name))
    }

    fn offers_epilogue(&self, op: &Op, _: DType) -> bool {
        super::op::is_product(op)
    }

    fn epilogue_in_registers(&self) -> bool {
        true
    }

    fn view(&self, op: &Op, dtype: DType, x: &Layout) -> Option<Layout> {
        op.view(dtype, x)
    }

    fn fresh_layout(&self, _: &Op, shape: &Shape) -> Layout {
        Layout::contiguous(shape.clone())
    }
}
