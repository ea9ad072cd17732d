//! Rows, run on the CPU.

use std::sync::OnceLock;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use smallvec::SmallVec;

use super::super::run::{Room, Run};
use super::{Rows, axes};
use crate::array::Array;
use crate::cpu::reduce::{Chunk, Partial, partial};
use crate::dtype::Scalar;
use crate::error::{self, Error, Result};
use crate::layout::Layout;
use crate::ops::op::Type;
use crate::threads;

/// What a run works on.
struct Work<'a> {
    args: &'a [&'a Array],
    numbers: &'a [Scalar],
    results: &'a [Array],
    workspace: Option<&'a Array>,
}

impl Rows {
    /// Computes the results, in arrays in C order that nobody else reads or writes: those of blocks,
    /// then reductions over all rows, then room for what lies in between, if there is such.
    pub fn run(&self, args: &[&Array], numbers: &[Scalar], results: &[Array]) -> Result<()> {
        let (results, workspace) = match self.workspace() {
            0 => (results, None),
            _ => results.split_last().map_or((results, None), |(last, rest)| (rest, Some(last))),
        };
        let (results, reduced) = results.split_at(results.len() - self.folds.len());
        let work = Work { args, numbers, results, workspace };
        let folds: SmallVec<[_; 1]> = (self.folds.iter())
            .filter_map(|fold| partial(fold.kind, fold.dtype, fold.lines, fold.width))
            .collect();
        let (next, failure) = (AtomicUsize::new(0), OnceLock::new());
        threads::parallel_for(self.course.lanes, &|lane| {
            while failure.get().is_none() {
                let first = next.fetch_add(self.course.chunk, Relaxed);
                if first >= self.blocks() {
                    return;
                }
                if let Err(error) = self.chunk(first, lane, &work, &folds) {
                    let _ = failure.set(error);
                }
            }
        });
        if let Some(error) = failure.into_inner() {
            let error: Error = error;
            return Err(error);
        }
        for (fold, out) in folds.iter().zip(reduced) {
            // SAFETY: the result is the caller's, and all blocks have come.
            unsafe { fold.finish(out) };
        }
        Ok(())
    }

    /// Blocks that follow each other.
    fn chunk(
        &self,
        first: usize,
        lane: usize,
        work: &Work<'_>,
        folds: &[Box<dyn Partial>],
    ) -> Result<()> {
        let row = self.course.grid.row(first);
        let mut chunks: SmallVec<[Box<dyn Chunk + '_>; 1]> = (folds.iter().zip(&self.folds))
            .map(|(partial, fold)| partial.chunk(row * (fold.lines / self.course.grid.rows())))
            .collect();
        for b in first..self.blocks().min(first + self.course.chunk) {
            let made = self.block(b, lane, work)?;
            for (chunk, fold) in chunks.iter_mut().zip(&self.folds) {
                let part = &made[fold.output];
                // SAFETY: results of blocks are in C order.
                unsafe { chunk.push(part.ptr(), part.count() / fold.width) };
            }
        }
        chunks.iter_mut().for_each(|chunk| chunk.end());
        Ok(())
    }

    fn block(&self, b: usize, lane: usize, work: &Work<'_>) -> Result<SmallVec<[Array; 2]>> {
        let (start, size) = self.course.grid.block(b);
        let plan = match &self.last {
            Some(last) if !self.course.grid.is_full(&size) => last,
            _ => &self.full,
        };
        let mut parts: SmallVec<[Array; 8]> = SmallVec::new();
        for (&x, along) in work.args.iter().zip(&self.along) {
            parts.push(x.view(axes::part(&x.layout, along, &start, &size)));
        }
        let mut inputs: SmallVec<[&Array; 8]> = SmallVec::new();
        parts.iter().for_each(|part| inputs.push(part));
        let mut into: SmallVec<[Option<Array>; 4]> = SmallVec::new();
        for y in work.results {
            let strides = y.layout.strides();
            let before: usize = start.iter().zip(&strides).map(|(i, s)| i * *s as usize).sum();
            let shape = axes::leading(y.shape(), &size);
            let at = y.layout.offset() + before;
            into.push(Some(y.view(Layout::contiguous_at(shape, at))));
        }
        let mut run = Run::part(plan, &inputs, work.numbers);
        if let Some(workspace) = work.workspace {
            let at = workspace.layout.offset() + lane * self.room;
            into.resize(plan.outputs().len(), None);
            for fold in &self.folds {
                if let Some(apart) = fold.apart {
                    let Type { dtype, shape } = plan.ty(plan.outputs()[fold.output]);
                    let layout = Layout::contiguous_at(shape, (at + apart) / dtype.size());
                    let buffer = workspace.buffer.clone();
                    into[fold.output] = Some(Array { dtype, layout, buffer });
                }
            }
            let apart = self.folds.iter().filter_map(|fold| fold.apart).min();
            let products = apart.unwrap_or(self.room) - self.products;
            let room = Room { from: at + products, bytes: self.products };
            run.lend(&workspace.buffer, at, room);
        }
        let made = run.finish_into(&into)?;
        match made.iter().all(Array::is_contiguous) {
            true => Ok(made),
            false => Err(error::internal("a block of rows is not in C order")),
        }
    }
}
