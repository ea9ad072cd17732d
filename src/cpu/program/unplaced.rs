//! A run of a program with everything worked out that addresses do not decide.

use smallvec::SmallVec;

use super::{PARALLEL, Ports, Program, Run, nest};
use crate::cpu::nest::Nest;
use crate::dtype::DType;
use crate::layout::Layout;
use crate::shape::Shape;

/// A program on operands of known layouts, for one thread.
pub struct Unplaced {
    nest: Nest,
    ports: Ports,
    /// The elements of a run
    count: usize,
}

// SAFETY: the ports have no addresses until a run fills a copy of them in.
unsafe impl Send for Unplaced {}
// SAFETY: as above.
unsafe impl Sync for Unplaced {}

impl Unplaced {
    /// Prepares a run over a shape, to which the inputs broadcast; outputs are in C order.
    /// `shares(j, k)` says whether output `j` may lie in the memory of input `k`. `None` for work
    /// that is better shared by threads.
    pub fn new(
        program: &Program,
        shape: &Shape,
        inputs: &[(DType, Layout)],
        outputs: &[DType],
        shares: impl Fn(usize, usize) -> bool,
    ) -> Option<Unplaced> {
        let count = shape.count();
        if count == 0 || count * program.instrs.len().max(1) >= PARALLEL {
            return None;
        }
        let own = Layout::contiguous(shape.clone());
        let mut layouts: SmallVec<[&Layout; 8]> = inputs.iter().map(|(_, layout)| layout).collect();
        layouts.extend(outputs.iter().map(|_| &own));
        // There are few elements.
        let nest = nest(program, shape, &layouts, 0);
        let nowhere = std::ptr::null_mut();
        let inputs = inputs.iter().map(|&(dtype, _)| (nowhere, dtype));
        let ports = program.ports(&nest, inputs, outputs.iter().map(|&y| (nowhere, y)), shares);
        Some(Unplaced { nest, ports, count })
    }

    /// Runs the program that was prepared, with scalars as register bits.
    ///
    /// # Safety
    /// The addresses are those of the elements at index zero of operands as they were prepared:
    /// valid for their layouts, and shared only where `shares` said so. Nobody else reads or
    /// writes the outputs meanwhile.
    pub unsafe fn run(
        &self,
        program: &Program,
        inputs: &[*mut u8],
        scalars: &[u64],
        outputs: &[*mut u8],
    ) {
        debug_assert_eq!(inputs.len(), self.ports.inputs.len());
        debug_assert_eq!(outputs.len(), self.ports.outputs.len());
        let Ports { inputs: mut sources, outputs: mut targets } = self.ports.clone();
        sources.iter_mut().zip(inputs).for_each(|(port, &ptr)| port.ptr = ptr);
        targets.iter_mut().zip(outputs).for_each(|(port, &ptr)| port.ptr = ptr);
        let (nest, code) = (&self.nest, program.code(self.count));
        Run { program, nest, inputs: &sources, outputs: &targets, scalars, code }
            .blocks(0..nest.blocks());
    }
}
