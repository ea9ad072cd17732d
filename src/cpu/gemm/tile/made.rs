//! Packed panels of operands that a prologue computes.

use std::ops::Range;

use super::super::axis::{Run, Runs};
use super::super::kernel::{BLOCK, Element, TILE_WIDTH};
use super::super::{Job, PackPrologue, pack};
use super::{Block, Panels, Tile, along, twice};

/// Elements of `b` that a prologue computes at a time: they stay in the L1 cache.
const MADE: usize = 4096;

impl<T: Element> Job<'_, T> {
    /// Whether the prologue of `b` writes columns contiguous along `k`, to be transposed when they
    /// are packed.
    pub(super) fn turns(&self) -> bool {
        along(&self.b.depth) > along(&self.b.own)
    }

    /// The scratch elements in which a prologue computes `columns` columns over `kc` steps of `k`.
    pub(super) fn spare(&self, columns: usize, kc: usize) -> usize {
        match self.b.made {
            None => 0,
            Some(_) if self.turns() => self.kernels.width * kc,
            Some(0) => 0,
            // A narrower strip of columns takes more steps of `k`.
            Some(_) => MADE.max(columns),
        }
    }
}

impl<T: Element> Tile<'_, T> {
    /// Computes panels of rows `i`, steps `k` of `a` directly in packed form.
    ///
    /// # Safety
    /// `pack` holds whole panels of these rows.
    pub(super) unsafe fn made_rows(
        &self,
        i: &Range<usize>,
        k: &Range<usize>,
        fill: PackPrologue<'_>,
        pack: *mut T,
    ) -> Block<T> {
        let (high, steps) = (self.job.kernels.tiles[0].rows, k.len());
        let a = self.job.a;
        if !a.is_computed() && along(&a.own) > along(&a.depth) {
            // Neighbouring rows are read together.
            for first in i.clone().step_by(high) {
                let rows = first..i.end.min(first + high);
                let to = pack.wrapping_add((first - i.start) * steps);
                // SAFETY: by contract.
                unsafe { self.panel(high, &rows, k, fill, to) };
            }
            return twice(Panels { ptr: pack, step: steps as isize, strides: (1, high as isize) });
        }
        fill(self.batch, i.clone(), k.clone(), pack.cast(), [steps as isize, 1]);
        let done = i.len() * steps;
        // SAFETY: by contract.
        unsafe {
            pack.add(done).write_bytes(0, i.len().next_multiple_of(high) * steps - done);
        }
        twice(Panels { ptr: pack, step: steps as isize, strides: (steps as isize, 1) })
    }

    /// Computes a panel of an operand directly in packed form, `width` elements for each step.
    ///
    /// # Safety
    /// `to` holds a whole panel.
    unsafe fn panel(
        &self,
        width: usize,
        own: &Range<usize>,
        k: &Range<usize>,
        fill: PackPrologue<'_>,
        to: *mut T,
    ) {
        if own.len() < width {
            // SAFETY: by contract.
            unsafe { to.write_bytes(0, width * k.len()) };
        }
        fill(self.batch, own.clone(), k.clone(), to.cast(), [1, width as isize]);
    }

    /// Computes columns `j`, steps `k` of `b` in `spare`, and packs them from there: columns
    /// contiguous along `k` one panel at a time, others a few steps at a time. So the prologue
    /// always works on long lines.
    ///
    /// # Safety
    /// `pack` holds whole panels of these columns, `spare` as much as [`Job::spare`] says.
    pub(super) unsafe fn made_columns(
        &self,
        j: &Range<usize>,
        k: &Range<usize>,
        fill: PackPrologue<'_>,
        (pack, spare): (*mut T, *mut T),
    ) -> Block<T> {
        let (width, transpose) = (self.job.kernels.width, self.job.kernels.transpose);
        let panel = |first: usize| pack.wrapping_add((first - j.start) * k.len());
        let run =
            |offset: usize, len| Runs::from_elem(Run { at: 0, len, offset: offset as isize }, 1);
        if self.job.turns() {
            for first in j.clone().step_by(width) {
                let columns = first..j.end.min(first + width);
                let lines: [isize; TILE_WIDTH] = std::array::from_fn(|i| (i * k.len()) as isize);
                let lines = &lines[..columns.len()];
                fill(self.batch, columns, k.clone(), spare.cast(), [k.len() as isize, 1]);
                // SAFETY: by contract.
                unsafe {
                    pack::transposed(
                        panel(first),
                        width,
                        spare,
                        lines,
                        &run(0, k.len()),
                        transpose,
                    );
                }
            }
        } else if !self.job.b.is_computed() {
            for first in j.clone().step_by(width) {
                let columns = first..j.end.min(first + width);
                // SAFETY: by contract.
                unsafe { self.panel(width, &columns, k, fill, panel(first)) };
            }
        } else {
            let most = steps(j.len());
            for at in k.clone().step_by(most) {
                let some = at..k.end.min(at + most);
                let lines: [isize; BLOCK] = std::array::from_fn(|i| (i * j.len()) as isize);
                let lines = &lines[..some.len()];
                fill(self.batch, j.clone(), some, spare.cast(), [1, j.len() as isize]);
                for first in j.clone().step_by(width) {
                    let n = width.min(j.end - first);
                    let to = panel(first).wrapping_add((at - k.start) * width);
                    // SAFETY: by contract.
                    unsafe { pack::lines(to, width, spare, lines, &run(first - j.start, n), 1) };
                }
            }
        }
        twice(Panels { ptr: pack, step: k.len() as isize, strides: (1, width as isize) })
    }
}

/// The steps of `k` that are computed at a time for a count of columns.
fn steps(columns: usize) -> usize {
    (MADE / columns.max(1)).clamp(1, BLOCK)
}
