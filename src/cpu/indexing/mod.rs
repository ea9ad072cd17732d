//! Advanced indexing: integer arrays on the leading axes pick (gather) or receive (scatter) slices.
//!
//! Promises: every index is checked before anything is written; negative ones count from the end.
//! Index arrays are read where they are, repeats included. Values that meet at one place are taken
//! in index order, whatever the threads.
//!
//! Here are the checked indices, which both read.

mod gather;
mod scatter;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::array::Array;
use crate::cpu::gemm::Axis;
use crate::error::{Error, Result};
use crate::shape::Shape;
use crate::threads::{self, Pace};
pub use gather::gather_into;
pub use scatter::{scatter, scatter_at};

/// Indices worked on at a time.
const BATCH: usize = 1024;
/// Bytes worth handing to another thread.
const CHUNK: usize = 1 << 18;

/// Refuses index arrays that leave the axes of `x`.
pub fn check_indices(op: &str, x: &Array, indices: &[&Array], index_shape: &Shape) -> Result<()> {
    Picks::new(op, x, indices, index_shape).map(drop)
}

/// One index array and the axis it indexes.
struct Pick {
    ptr: *const i64,
    /// Walks the indices in order
    walk: Axis,
    size: usize,
    /// Elements from one slice of the axis to the next
    stride: isize,
}

impl Pick {
    /// The position of the slice that the index at an offset picks.
    ///
    /// # Safety
    /// The index can be read.
    #[inline(always)]
    unsafe fn place(&self, offset: isize) -> isize {
        // SAFETY: by contract.
        let index = unsafe { *self.ptr.offset(offset) } as isize;
        (if index < 0 { index + self.size as isize } else { index }) * self.stride
    }
}

/// Checked indices.
struct Picks {
    axes: Vec<Pick>,
    count: usize,
    /// How many lie along the last axis, where each index array varies along that axis alone or not
    /// along it: then all lines pick alike
    line: Option<usize>,
}

// SAFETY: index arrays are only read.
unsafe impl Sync for Picks {}

impl Picks {
    fn new(op: &str, x: &Array, indices: &[&Array], shape: &Shape) -> Result<Picks> {
        let (sizes, strides) = (x.shape().sizes(), x.layout.strides());
        let mut axes = Vec::with_capacity(indices.len());
        let lines = shape.sizes();
        let mut are_alike = true;
        for (axis, index) in indices.iter().enumerate() {
            let size = sizes[axis];
            check(op, index, axis, size, shape.count(), indices.len())?;
            let along = index.layout.broadcast_strides(shape);
            are_alike &= along.split_last().is_some_and(|(&last, before)| {
                last == 0 || before.iter().zip(&lines).all(|(&stride, &n)| stride == 0 || n == 1)
            });
            let walk = shape.sizes().into_iter().zip(along);
            axes.push(Pick {
                ptr: index.ptr().cast(),
                walk: Axis::new(walk),
                size,
                stride: strides[axis],
            });
        }
        let line = lines.last().copied().filter(|_| are_alike);
        Ok(Picks { axes, count: shape.count(), line })
    }

    /// The positions of the slices that the indices from `start` on pick.
    fn positions(&self, start: usize, out: &mut [isize]) {
        if self.axes.is_empty() {
            out.fill(0);
        }
        for (axis, pick) in self.axes.iter().enumerate() {
            let step = pick.walk.inner().1;
            for run in pick.walk.runs(start, out.len()) {
                // SAFETY: the walk stays inside the index array.
                let place = |i: usize| unsafe { pick.place(run.offset + i as isize * step) };
                let out = &mut out[run.at..run.at + run.len];
                // A first index has nothing before it; a repeated one is read once.
                match (axis, step) {
                    (0, 0) => out.fill(place(0)),
                    (0, _) => out.iter_mut().enumerate().for_each(|(i, out)| *out = place(i)),
                    (_, 0) => {
                        let same = place(0);
                        out.iter_mut().for_each(|out| *out += same);
                    }
                    _ => out.iter_mut().enumerate().for_each(|(i, out)| *out += place(i)),
                }
            }
        }
    }
}

/// Refuses an index array that leaves `-size..size`, naming its first such index.
fn check(
    op: &str,
    index: &Array,
    axis: usize,
    size: usize,
    used: usize,
    count: usize,
) -> Result<()> {
    if used == 0 {
        return Ok(());
    }
    // An element that is only repeated need not be checked twice.
    let walk = Axis::new(
        index
            .shape()
            .sizes()
            .into_iter()
            .zip(index.layout.strides())
            .filter(|(_, stride)| *stride != 0),
    );
    let (step, from) = (walk.inner().1, Indices(index.ptr().cast()));
    let limit = size as i64;
    let bad = |i: i64| i < -limit || i >= limit;
    // The first bad index in the order of the walk.
    let first = AtomicUsize::new(usize::MAX);
    threads::for_each_chunk(walk.len(), CHUNK / size_of::<i64>(), |range| {
        let (from, mut pace) = (&from, Pace::default());
        for start in range.clone().step_by(BATCH) {
            pace.work(BATCH);
            for run in walk.runs(start, BATCH.min(range.end - start)) {
                // SAFETY: the walk stays inside the index array.
                let at = |i: usize| unsafe { *from.0.offset(run.offset + i as isize * step) };
                if (0..run.len).fold(false, |any, i| any | bad(at(i))) {
                    let place = (0..run.len).find(|&i| bad(at(i))).unwrap_or_default();
                    first.fetch_min(start + run.at + place, Ordering::Relaxed);
                    return;
                }
            }
        }
    });
    match first.into_inner() {
        usize::MAX => Ok(()),
        place => {
            let mut offset = [0];
            walk.offsets(place, &mut offset);
            // SAFETY: as above.
            let first = unsafe { *from.0.offset(offset[0]) };
            Err(Error::outside(op, first, axis, size, count))
        }
    }
}

/// An index array that several threads read.
struct Indices(*const i64);

// SAFETY: it is only read.
unsafe impl Sync for Indices {}

/// Shares the address of an array that threads write disjoint parts of.
struct Target<T>(*mut T);

// SAFETY: as said.
unsafe impl<T> Sync for Target<T> {}
