//! Block fusions, run on the CPU: a few rows at a time on each thread.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use smallvec::SmallVec;

use super::fused_sums::FusedSums;
use super::rows::BlockRows;
use super::{Lowered, Run, ScratchRange};
use crate::array::Array;
use crate::cpu::copy::copy_into;
use crate::cpu::reduce::{Chunk, Partial, partial};
use crate::dtype::Scalar;
use crate::error::{self, Result};
use crate::layout::Layout;
use crate::ops::emit::OrThrow;
use crate::ops::op::Type;
use crate::schedule::block_fusion::{AxisMap, BlockFusion, Positions, part, sized};
use crate::schedule::{Operand, Plan, Source, Step, Work as StepWork};
use crate::threads;

/// A block fusion that runs, with its operands and results.
struct Work<'a> {
    lowered: &'a Lowered,
    fusion: &'a BlockFusion,
    args: &'a [&'a Array],
    numbers: &'a [Scalar],
    results: &'a [Array],
    workspace: Option<&'a Array>,
    /// Whether each result lies apart from all operands
    apart: SmallVec<[bool; 4]>,
    /// All steps of a block as one program, where they compute rows
    rows: Option<Arc<BlockRows>>,
    /// How a full block and the last sum groups as they are made, where they do
    sums: [Option<Arc<FusedSums>>; 2],
}

/// Computes the results, in arrays in C order that nobody else reads or writes: first the results
/// of blocks, then the reductions over all rows, then the workspace for intermediate values, if
/// there is one. Unwinds with the error of a block.
pub(super) fn run(
    lowered: &Lowered,
    fusion: &BlockFusion,
    args: &[&Array],
    numbers: &[Scalar],
    results: &[Array],
) -> Result<()> {
    let (results, workspace) = match fusion.workspace() {
        0 => (results, None),
        _ => results.split_last().map_or((results, None), |(last, rest)| (rest, Some(last))),
    };
    let (results, reduced) = results.split_at(results.len() - fusion.carried.len());
    let apart = results.iter().map(|y| args.iter().all(|x| !overlap(x, y))).collect();
    let (rows, sums) = (None, [None, None]);
    let mut work = Work { lowered, fusion, args, numbers, results, workspace, apart, rows, sums };
    work.rows = work.row_program();
    if work.rows.is_none() {
        let last = fusion.last.as_ref();
        work.sums = [Some(&fusion.full), last].map(|plan| lowered.fused_sums(plan?));
    }
    let carried: SmallVec<[_; 1]> = (fusion.carried.iter())
        .filter_map(|reduction| {
            partial(reduction.kind, reduction.dtype, reduction.lines, reduction.width)
        })
        .collect();
    let next = AtomicUsize::new(0);
    threads::parallel_for(fusion.schedule.lanes, &|lane| {
        loop {
            let first = next.fetch_add(fusion.schedule.chunk, Relaxed);
            if first >= fusion.blocks() {
                return;
            }
            // Unwinds with an error, so that the other lanes end too, even in the middle of their
            // chunks.
            work.chunk(first, lane, &carried).or_throw();
        }
    });
    for (reduction, out) in carried.iter().zip(reduced) {
        // SAFETY: the result is the caller's, and all blocks have come.
        unsafe { reduction.finish(out) };
    }
    Ok(())
}

/// Whether the memory of two arrays overlaps.
fn overlap(x: &Array, y: &Array) -> bool {
    let range = |x: &Array| {
        let (first, size) = (x.ptr().addr(), x.dtype.size());
        let (low, high) = x.layout.extent()?;
        let offset = x.layout.offset();
        Some(first - (offset - low) * size..first + (high + 1 - offset) * size)
    };
    let ranges = range(x).zip(range(y));
    ranges.is_some_and(|(x, y)| x.start < y.end && y.start < x.end)
}

/// The slot of an output that a group makes and that nothing else reads.
fn last_of_group(plan: &Plan, output: usize) -> Option<u32> {
    let source @ Source::Slot(slot) = plan.outputs()[output] else { return None };
    if plan.outputs().iter().filter(|&&other| other == source).count() > 1 {
        return None;
    }
    let is_read = |step: &Step| step.args.contains(&Operand::Array(source));
    let mut steps = plan.steps().iter().rev();
    let made = steps.find(|step| step.results.contains(&slot) || is_read(step))?;
    (matches!(made.work, StepWork::Group(_)) && !is_read(made)).then_some(slot)
}

impl Work<'_> {
    /// The program of the rows of all blocks.
    fn row_program(&self) -> Option<Arc<BlockRows>> {
        let fusion = self.fusion;
        let is_leading = |at: &Positions| at.iter().copied().eq(0..at.len() as u8);
        if fusion.staged.iter().any(Option::is_some) || !fusion.positions.iter().all(is_leading) {
            return None;
        }
        let (start, size) = fusion.schedule.grid.block(0);
        let parts = self.parts(&start, &size);
        let parts: SmallVec<[&Array; 8]> = parts.iter().collect();
        self.lowered.rows(&fusion.full, &parts, self.numbers)
    }

    /// What a block reads.
    fn parts(&self, start: &[usize], size: &[usize]) -> SmallVec<[Array; 8]> {
        let mut parts: SmallVec<[Array; 8]> = SmallVec::new();
        for (&x, along) in self.args.iter().zip(&self.fusion.axis_maps) {
            parts.push(x.view(part(&x.layout, along, start, size)));
        }
        parts
    }

    /// Runs the consecutive blocks of a chunk.
    fn chunk(&self, first: usize, lane: usize, carried: &[Box<dyn Partial>]) -> Result<()> {
        let fusion = self.fusion;
        let row = fusion.schedule.grid.row(first);
        let mut chunks: SmallVec<[Box<dyn Chunk + '_>; 1]> = (carried.iter().zip(&fusion.carried))
            .map(|(partial, reduction)| {
                partial.chunk(row * (reduction.lines / fusion.schedule.grid.rows()))
            })
            .collect();
        for b in first..fusion.blocks().min(first + fusion.schedule.chunk) {
            threads::pause();
            let made = self.block(b, lane)?;
            for (chunk, reduction) in chunks.iter_mut().zip(&fusion.carried) {
                let part = &made[reduction.output];
                // SAFETY: results of blocks are in C order.
                unsafe { chunk.push(part.ptr(), part.count() / reduction.width) };
            }
        }
        chunks.iter_mut().for_each(|chunk| chunk.end());
        Ok(())
    }

    fn block(&self, b: usize, lane: usize) -> Result<SmallVec<[Array; 2]>> {
        let fusion = self.fusion;
        let (start, size) = fusion.schedule.grid.block(b);
        let (plan, sums) = match &fusion.last {
            Some(last) if !fusion.schedule.grid.is_full(&size) => (last, &self.sums[1]),
            _ => (&fusion.full, &self.sums[0]),
        };
        let parts = self.parts(&start, &size);
        let mut inputs: SmallVec<[&Array; 8]> = SmallVec::new();
        parts.iter().for_each(|part| inputs.push(part));
        let mut into: SmallVec<[Option<Array>; 4]> = SmallVec::new();
        for (k, y) in self.results.iter().enumerate() {
            let (at, strides) = (&fusion.positions[k], y.layout.strides());
            let before =
                at.iter().zip(&start).map(|(&axis, i)| i * strides[axis as usize] as usize);
            let from = y.layout.offset() + before.sum::<usize>();
            let block = Layout::contiguous_at(sized(y.shape(), at, &size), from);
            into.push(fusion.staged[k].is_none().then(|| y.view(block)));
        }
        let at = self.workspace.map(|all| all.layout.offset() + lane * fusion.capacity);
        if let Some((workspace, at)) = self.workspace.zip(at) {
            into.resize(plan.outputs().len(), None);
            let staged = fusion.staged.iter().enumerate().map(|(k, &from)| (k, from));
            let reduced =
                fusion.carried.iter().map(|reduction| (reduction.output, reduction.dedicated));
            for (output, from) in staged.chain(reduced) {
                let Some(from) = from else { continue };
                let Type { dtype, shape } = plan.ty(plan.outputs()[output]);
                let layout = Layout::contiguous_at(shape, (at + from) / dtype.size());
                into[output] = Some(Array { dtype, layout, data: workspace.data.clone() });
            }
        }
        if let Some(block) = &self.rows
            && into.iter().all(Option::is_some)
        {
            let made: SmallVec<[Array; 2]> = into.into_iter().flatten().collect();
            let full: usize = fusion.schedule.grid.block(0).1.iter().product();
            let count = block.rows / full * size.iter().product::<usize>();
            // SAFETY: operands lie as those of the first block; the results are this block's.
            unsafe { block.program.run(&inputs, &made, count) };
            return Ok(made);
        }
        let mut run = Run::part(self.lowered, plan, &inputs, self.numbers);
        run.fuse(sums.as_deref());
        if let Some((workspace, at)) = self.workspace.zip(at) {
            let scratch = ScratchRange { from: at + fusion.scratch, bytes: fusion.products };
            run.lend(workspace.buffer(), at, scratch);
        }
        // Blocks of staged results, where they lie.
        let mut staged: SmallVec<[(usize, Array); 1]> = SmallVec::new();
        for (k, y) in self.results.iter().enumerate().filter(|(k, _)| fusion.staged[*k].is_some()) {
            let along: AxisMap = fusion.positions[k].iter().map(|&axis| Some(axis)).collect();
            let block = y.view(part(&y.layout, &along, &start, &size));
            let is_summed = fusion.carried.iter().any(|reduction| reduction.output == k);
            match last_of_group(plan, k) {
                Some(slot) if self.apart[k] && !is_summed => run.elsewhere.push((slot, block)),
                _ => staged.push((k, block)),
            }
        }
        let made = run.finish_into(&into)?;
        if fusion.carried.iter().any(|reduction| !made[reduction.output].is_contiguous()) {
            return Err(error::internal("a block that is summed is not in C order"));
        }
        for (k, block) in staged {
            // SAFETY: the result is the caller's; this block of it is written here alone, and
            // lies apart from the workspace.
            unsafe { copy_into(&block, &made[k]) };
        }
        Ok(made)
    }
}
