//! Vectors of neighbouring places.

use std::ops::Range;

use super::job::Job;
use super::{CHUNK, Windows};
use crate::cpu::element::Shared;
use crate::cpu::gemm::kernel::{BLOCK, Element, prefetch};
use crate::cpu::gemm::pack::lines;
use crate::threads::{self, Pace};

impl<T: Element> Job<'_, T> {
    /// Copies the weights, each group padded with zeros to whole tiles.
    ///
    /// # Safety
    /// There is room for them.
    pub unsafe fn pack(&self, windows: &Windows<'_>, to: *mut T) {
        let (cut, axis, from) = (self.cut, &windows.depth, windows.weights.cast::<T>());
        let (runs, by, to) = (axis.runs(0, cut.depth), axis.inner().1, Shared::new(to));
        let [next, down] = windows.steps;
        let from = Shared::reading(from);
        threads::for_each_chunk(cut.groups * cut.rows, (CHUNK / 8 / cut.depth).max(1), |range| {
            for i in range {
                let (group, row) = (i / cut.rows, i % cut.rows);
                let to = to.at((i * cut.depth) as isize);
                let line = group as isize * next + row as isize * down;
                // SAFETY: by contract; a row is one call's.
                unsafe {
                    if row < cut.outputs {
                        lines(to, cut.depth, from.at(0), &[line], &runs, by);
                    } else {
                        (0..cut.depth).for_each(|k| to.add(k).write(T::default()));
                    }
                }
            }
        });
    }

    /// Multiplies rows of weights with the columns of a patch: for each block of `k` all columns,
    /// so that the block of the weights is read from far away once.
    ///
    /// # Safety
    /// The patch is written, and there is room for the results.
    pub unsafe fn multiply(
        &self,
        group: usize,
        rows: &Range<usize>,
        places: usize,
        patch: *const T,
        results: *mut T,
    ) {
        let (cut, width) = (self.cut, self.kernels.width);
        let high = self.kernels.height(rows.len());
        let row = self.row;
        let first = group as isize * self.group + rows.start as isize * row;
        let weights = self.weights.wrapping_offset(first);
        let used = places * cut.planes.pitches[0];
        let mut pace = Pace::default();
        for k in (0..cut.depth).step_by(BLOCK) {
            let steps = &self.offsets[k..cut.depth.min(k + BLOCK)];
            let weights = weights.wrapping_add(k);
            for column in (0..used).step_by(width) {
                pace.multiplied(rows.len() * width * steps.len());
                for i in (0..rows.len()).step_by(high) {
                    let left = high.min(rows.len() - i);
                    let tiles = self.kernels.tiles;
                    let fit = tiles.iter().rev().find(|t| t.rows >= left).unwrap_or(&tiles[0]);
                    if column == 0 && i + high < rows.len() {
                        let rows = i + high..rows.len().min(i + 2 * high);
                        ahead(weights, row, rows, steps.len());
                    }
                    // SAFETY: weights and results are padded to whole tiles, the patch by what the
                    // last one reads.
                    unsafe {
                        (fit.listed)(
                            steps.len(),
                            weights.offset(i as isize * row),
                            (row, 1),
                            patch.add(column),
                            steps.as_ptr(),
                            results.add(i * cut.columns + column),
                            cut.columns as isize,
                            k == 0,
                        );
                    }
                }
            }
        }
    }

    /// Copies results to where they belong.
    ///
    /// # Safety
    /// They are written.
    pub unsafe fn store(
        &self,
        item: usize,
        rows: &Range<usize>,
        places: &Range<usize>,
        from: *const T,
    ) {
        let cut = self.cut;
        for row in rows.clone() {
            let to = self.result(item, row);
            let to = to.wrapping_offset(places.start as isize * self.apart[0]);
            let from = from.wrapping_add((row - rows.start) * cut.columns);
            // SAFETY: by contract.
            unsafe { self.lines(0, places.len(), from, to) };
        }
    }

    /// Copies `count` lines along an axis.
    ///
    /// # Safety
    /// As for [`Job::store`].
    unsafe fn lines(&self, axis: usize, count: usize, from: *const T, to: *mut T) {
        let (cut, by) = (self.cut, self.apart[axis]);
        // SAFETY: by contract.
        unsafe {
            if axis + 1 < cut.planes.axes.len() {
                for i in 0..count {
                    let from = from.add(i * cut.planes.pitches[axis]);
                    let to = to.wrapping_offset(i as isize * by);
                    self.lines(axis + 1, cut.planes.axes[axis + 1].places, from, to);
                }
            } else if by == 1 {
                to.copy_from_nonoverlapping(from, count);
            } else {
                (0..count).for_each(|i| *to.offset(i as isize * by) = *from.add(i));
            }
        }
    }
}

/// Prefetches rows of weights.
fn ahead<T>(weights: *const T, row: isize, rows: Range<usize>, steps: usize) {
    for i in rows {
        let line = weights.wrapping_offset(i as isize * row);
        for at in (0..steps).step_by(64 / size_of::<T>()) {
            prefetch(line.wrapping_add(at));
        }
    }
}
