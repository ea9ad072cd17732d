//! Rows, run on the CPU.

use std::sync::OnceLock;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use smallvec::SmallVec;

use super::super::run::{Room, Run};
use super::{Rows, aligned, axes};
use crate::array::Array;
use crate::dtype::Scalar;
use crate::error::{Error, Result};
use crate::layout::Layout;
use crate::threads;

impl Rows {
    /// Computes the results, in arrays in C order that nobody else reads or writes; the last array
    /// is room for what lies in between.
    pub fn run(&self, args: &[&Array], numbers: &[Scalar], results: &[Array]) -> Result<()> {
        let (results, workspace) = match self.workspace() {
            0 => (results, None),
            _ => results.split_last().map_or((results, None), |(last, rest)| (rest, Some(last))),
        };
        let (next, failure) = (AtomicUsize::new(0), OnceLock::new());
        threads::parallel_for(self.lanes, &|lane| {
            while failure.get().is_none() {
                let b = next.fetch_add(1, Relaxed);
                if b >= self.blocks() {
                    return;
                }
                if let Err(error) = self.block(b, lane, args, numbers, results, workspace) {
                    let _ = failure.set(error);
                }
            }
        });
        failure.into_inner().map_or(Ok(()), |error: Error| Err(error))
    }

    fn block(
        &self,
        b: usize,
        lane: usize,
        args: &[&Array],
        numbers: &[Scalar],
        results: &[Array],
        workspace: Option<&Array>,
    ) -> Result<()> {
        let (start, size) = self.grid.block(b);
        let plan = match &self.last {
            Some(last) if !self.grid.is_full(&size) => last,
            _ => &self.full,
        };
        let mut parts: SmallVec<[Array; 8]> = SmallVec::new();
        for (&x, along) in args.iter().zip(&self.along) {
            parts.push(x.view(axes::part(&x.layout, along, &start, &size)));
        }
        let mut inputs: SmallVec<[&Array; 8]> = SmallVec::new();
        parts.iter().for_each(|part| inputs.push(part));
        let mut into: SmallVec<[Option<Array>; 4]> = SmallVec::new();
        for y in results {
            let strides = y.layout.strides();
            let before: usize = start.iter().zip(&strides).map(|(i, s)| i * *s as usize).sum();
            let shape = axes::leading(y.shape(), &size);
            let at = y.layout.offset() + before;
            into.push(Some(y.view(Layout::contiguous_at(shape, at))));
        }
        let mut run = Run::new(plan, &inputs, numbers);
        if let Some(workspace) = workspace {
            let arena = aligned(plan.memory.arena);
            let at = workspace.layout.offset() + lane * self.room;
            run.lend(&workspace.buffer, at, Room { from: at + arena, bytes: self.room - arena });
        }
        run.finish_into(&into)?;
        Ok(())
    }
}
