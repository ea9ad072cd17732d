//! One rectangle of a product, and the blocks that its kernel reads.

mod made;
mod path;
#[cfg(test)]
mod tests;

use std::mem::MaybeUninit;
use std::ops::Range;

use smallvec::SmallVec;

use super::axis::{Axis, Runs};
use super::kernel::{
    BLOCK, Element, Row, SQUARE, STREAM_COLUMNS, STREAM_ROWS, TILE, TILE_WIDTH, Transpose,
};
use super::scratch::Scratch;
use super::small::TOGETHER;
use super::{Job, Matrix, pack, stream};
use crate::error::Result;
use crate::threads::Pace;
use path::{Blocks, NEAR};
pub use path::{Path, direct};

/// The fewest elements of a panel for which an epilogue is called.
const FINISHED: usize = 2048;

/// A rectangle of one matrix of the result.
pub struct Tile<'a, T: Element> {
    pub job: &'a Job<'a, T>,
    pub a: *const T,
    pub b: *const T,
    pub out: *mut T,
    pub batch: usize,
    pub rows: Range<usize>,
    pub columns: Range<usize>,
}

/// Panels of an operand as a kernel reads them.
#[derive(Clone, Copy)]
struct Panels<T> {
    ptr: *const T,
    /// The distance between the starts of two panels, divided by the rows or columns between them
    step: isize,
    /// Strides inside a panel: from row to row of `a`, and along `k`
    strides: (isize, isize),
}

impl<T> Panels<T> {
    fn at(&self, i: usize) -> *const T {
        self.ptr.wrapping_offset(i as isize * self.step)
    }
}

/// The full panels of a block, and its last panel, which may not be full.
type Block<T> = (Panels<T>, Panels<T>);

impl<T: Element> Tile<'_, T> {
    /// How the rectangle is computed over a span of `k`.
    pub fn path(&self, depth: &Range<usize>) -> Path<T> {
        self.job.path(self.rows.len(), self.columns.len(), depth.len())
    }

    /// Computes the rectangle over a span of `k`, along a path that is its own.
    ///
    /// # Safety
    /// Operands and result are valid for the rectangle, which is nobody else's.
    pub unsafe fn compute(
        &self,
        depth: Range<usize>,
        path: &Path<T>,
        scratch: &Scratch,
    ) -> Result<()> {
        if self.rows.is_empty() || self.columns.is_empty() {
            return Ok(());
        }
        // SAFETY: every path stays inside the rectangle.
        unsafe {
            match *path {
                Path::Dot => self.dot(depth),
                Path::Row(step, kernel) => self.row(depth, step, kernel),
                Path::Stream(a) => self.stream(depth, a),
                Path::Small(a, b_step) => {
                    self.small(depth, a, b_step);
                    return Ok(());
                }
                Path::Blocks(ref blocks) => return self.blocks(depth, blocks, scratch),
            }
        }
        self.done(self.rows.clone(), self.columns.clone());
        Ok(())
    }

    /// Runs the epilogue, if there is one, on a rectangle of the result that is complete.
    fn done(&self, rows: Range<usize>, columns: Range<usize>) {
        let Some(done) = self.job.epilogue else { return };
        let (rows, columns) = if self.job.transposed { (columns, rows) } else { (rows, columns) };
        done(self.batch, rows, columns);
    }

    /// Whether the epilogue runs on each panel of so many rows as soon as it is complete: it is still
    /// in the L1 cache then, and large enough to pay for the call.
    fn finishes_panels(&self, rows: usize) -> bool {
        self.job.epilogue.is_some()
            && self.job.column == 1
            && rows * self.job.kernels.width >= FINISHED
    }

    unsafe fn dot(&self, depth: Range<usize>) {
        let (i, j) = (self.rows.start, self.columns.start);
        let (a, b) = (self.job.a, self.job.b);
        // SAFETY: both operands have unit stride along `k`.
        unsafe {
            let a = self.a.offset(a.own.at(i) + depth.start as isize);
            let b = self.b.offset(b.own.at(j) + depth.start as isize);
            *self.at(i, j) = (self.job.kernels.dot)(depth.len(), a, b);
        }
    }

    /// One row, and columns that are contiguous along `k`: a few columns at a time, over all of
    /// `k`.
    unsafe fn row(&self, depth: Range<usize>, step: isize, kernel: Row<T>) {
        let (i, j, mut pace) = (self.rows.start, self.columns.start, Pace::default());
        let a = self.a.wrapping_offset(self.job.a.own.at(i) + depth.start as isize * step);
        let column =
            |u: usize| self.b.wrapping_offset(self.job.b.own.at(j + u) + depth.start as isize);
        let size = (self.columns.len(), depth.len());
        // SAFETY: rows and columns are inside the operands, and what is stored inside the result.
        unsafe {
            stream::row(kernel, size, (a, step), column, |at, sums, fresh| {
                pace.multiplied(sums.len() * BLOCK);
                self.store(self.at(i, j + at), sums.as_ptr(), (1, sums.len()), fresh);
            });
        }
    }

    /// Columns are read in place, run by run.
    unsafe fn stream(&self, depth: Range<usize>, (row, step): (isize, isize)) {
        // Only as many are written as there are steps: small products come by the thousand.
        let mut offsets: SmallVec<[isize; BLOCK]> = SmallVec::new();
        let mut pace = Pace::default();
        for k in depth.clone().step_by(BLOCK) {
            offsets.resize(BLOCK.min(depth.end - k), 0);
            self.job.b.depth.offsets(k, &mut offsets);
            for run in self.job.b.own.runs(self.columns.start, self.columns.len()) {
                for j in (0..run.len).step_by(STREAM_COLUMNS) {
                    let wide = STREAM_COLUMNS.min(run.len - j);
                    for i in self.rows.clone().step_by(STREAM_ROWS) {
                        let tall = STREAM_ROWS.min(self.rows.end - i);
                        pace.multiplied(tall * wide * offsets.len());
                        // SAFETY: `a` has these two strides, the run unit columns.
                        unsafe {
                            let a = self.a.offset(i as isize * row + k as isize * step);
                            let b = self.b.offset(run.offset + j as isize);
                            let c = self.at(i, self.columns.start + run.at + j);
                            let (c_row, fresh) = (self.job.row as isize, k == depth.start);
                            (self.job.kernels.stream)(
                                (tall, wide),
                                a,
                                (row, step),
                                b,
                                &offsets,
                                c,
                                c_row,
                                fresh,
                            );
                        }
                    }
                }
            }
        }
    }

    /// Both operands are read in place, some rows at a time, after which the epilogue finds the results
    /// in a near cache.
    unsafe fn small(&self, depth: Range<usize>, strides: (isize, isize), b_step: isize) {
        let (j, n) = (self.columns.start, self.columns.len());
        let some = (FINISHED / n).next_multiple_of(TOGETHER).max(TOGETHER);
        let mut pace = Pace::default();
        for i in self.rows.clone().step_by(some) {
            let rows = i..self.rows.end.min(i + some);
            pace.multiplied(rows.len() * n * depth.len());
            // SAFETY: the operands have these strides, and rows of the result are apart.
            unsafe {
                let k = depth.start as isize;
                let a = self.a.offset(i as isize * strides.0 + k * strides.1);
                let b = self.b.offset(self.job.b.own.at(j) + k * b_step);
                let size = [rows.len(), n, depth.len()];
                let (c, c_row) = (self.at(i, j), self.job.row as isize);
                (self.job.kernels.small)(size, a, strides, b, b_step, c, c_row);
            }
            self.done(rows, self.columns.clone());
        }
    }

    unsafe fn at(&self, i: usize, j: usize) -> *mut T {
        // SAFETY: inside the result.
        unsafe { self.out.add(i * self.job.row + j * self.job.column) }
    }

    unsafe fn blocks(&self, depth: Range<usize>, blocks: &Blocks, scratch: &Scratch) -> Result<()> {
        let &Blocks { a, b, rows, held, columns, kc, .. } = blocks;
        let part = scratch.lend(blocks.packed_bytes::<T>())?;
        let a_pack = part.ptr().cast::<T>();
        // The buffer holds both blocks and the elements in which a prologue computes columns.
        let b_pack = a_pack.wrapping_add(held * kc + SQUARE);
        let mut pace = Pace::default();
        let spare = b_pack.wrapping_add(columns * kc);
        let [fill_a, fill_b] = self.job.fill;
        for j in self.columns.clone().step_by(columns) {
            let wide = columns.min(self.columns.end - j);
            for k in depth.clone().step_by(BLOCK) {
                let kc = BLOCK.min(depth.end - k);
                // SAFETY: blocks stay inside the rectangle and the scratch buffer.
                unsafe {
                    let (columns, steps) = (j..j + wide, k..k + kc);
                    let b = match fill_b {
                        _ if self.job.panels.is_some() => self.kept(&columns, &steps),
                        Some(fill) => self.made_columns(&columns, &steps, fill, (b_pack, spare)),
                        None => self.columns(&columns, &steps, b, b_pack),
                    };
                    for i in self.rows.clone().step_by(rows) {
                        let tall = rows.min(self.rows.end - i);
                        pace.multiplied(tall * wide * kc);
                        let rows = i..i + tall;
                        let a = match fill_a {
                            Some(fill) => self.made_rows(&rows, &steps, fill, a_pack),
                            None => self.rows(&rows, &steps, a, a_pack),
                        };
                        let is_last = k + kc == depth.end;
                        let by_panel = is_last && self.finishes_panels(tall);
                        self.block((i, tall), (j, wide), kc, &a, &b, (k == depth.start, by_panel));
                        if is_last && !by_panel {
                            self.done(i..i + tall, j..j + wide);
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Panels of rows `i`, steps `k` of `a`: in place where `place` gives the strides, else packed.
    unsafe fn rows(
        &self,
        i: &Range<usize>,
        k: &Range<usize>,
        place: Option<(isize, isize)>,
        pack: *mut T,
    ) -> Block<T> {
        let (a, high) = (self.job.a, self.job.kernels.tiles[0].rows);
        if let Some(strides) = place {
            let ptr = self.a.wrapping_offset(a.own.at(i.start) + a.depth.at(k.start));
            let all = Panels { ptr, step: strides.0, strides };
            let rest = i.len() % high;
            if self.job.fits(rest) {
                return (all, all);
            }
            // SAFETY: the scratch has room for a panel.
            let last = unsafe { self.rows(&(i.end - rest..i.end), k, None, pack) };
            return (all, Panels { step: 0, ..last.0 });
        }
        // SAFETY: the scratch holds whole panels of these rows.
        unsafe {
            if along(&a.own) > copied(&a.depth) {
                panels(pack, high, self.a, (a, i, k));
                return twice(packed(pack, k.len(), high));
            }
            if along(&a.depth) > 0 {
                transposed(pack, high, self.a, (a, i, k), self.job.kernels.transpose);
                return twice(packed(pack, k.len(), high));
            }
            let runs = a.depth.runs(k.start, k.len());
            lines(pack, k.len(), self.a, (&a.own, i), &runs, a.depth.inner().1);
            let done = i.len() * k.len();
            pack.add(done).write_bytes(0, i.len().next_multiple_of(high) * k.len() - done);
        }
        twice(Panels { ptr: pack, step: k.len() as isize, strides: (k.len() as isize, 1) })
    }

    /// Panels of columns from `j` on, which start a panel, and steps `k`, packed before.
    fn kept(&self, j: &Range<usize>, k: &Range<usize>) -> Block<T> {
        let (width, depth) = (self.job.kernels.width, self.job.b.depth.len());
        let panels = self.job.panels.unwrap_or(std::ptr::null());
        let n = self.job.b.own.len().next_multiple_of(width);
        let ptr = panels.wrapping_add((self.batch * n + j.start) * depth + k.start * width);
        twice(Panels { ptr, step: depth as isize, strides: (1, width as isize) })
    }

    /// Packs panels of columns `j`, steps `k` of `b`.
    ///
    /// # Safety
    /// The operand has these elements, and `to` room for whole panels.
    pub unsafe fn pack(&self, j: &Range<usize>, k: &Range<usize>, to: *mut T) {
        // SAFETY: by contract.
        unsafe { self.columns(j, k, None, to) };
    }

    /// Panels of columns `j`, steps `k` of `b`, in place or packed likewise.
    unsafe fn columns(
        &self,
        j: &Range<usize>,
        k: &Range<usize>,
        place: Option<(isize, isize)>,
        pack: *mut T,
    ) -> Block<T> {
        let (b, width) = (self.job.b, self.job.kernels.width);
        if let Some(strides) = place {
            let ptr = self.b.wrapping_offset(b.own.at(j.start) + b.depth.at(k.start));
            let all = Panels { ptr, step: 1, strides };
            let rest = j.len() % width;
            if self.job.fills(rest) {
                return (all, all);
            }
            // SAFETY: the scratch has room for a panel.
            let last = unsafe { self.columns(&(j.end - rest..j.end), k, None, pack) };
            return (all, Panels { step: 0, ..last.0 });
        }
        // SAFETY: the scratch holds whole panels of these columns.
        unsafe {
            if along(&b.depth) > along(&b.own) {
                transposed(pack, width, self.b, (b, j, k), self.job.kernels.transpose);
            } else {
                panels(pack, width, self.b, (b, j, k));
            }
        }
        twice(packed(pack, k.len(), width))
    }

    /// Multiplies two blocks: a loop over panels of columns, and in it one over panels of rows. The
    /// last argument says whether the result is overwritten instead of added to, and whether the
    /// epilogue runs on each panel.
    unsafe fn block(
        &self,
        (i0, tall): (usize, usize),
        (j0, wide): (usize, usize),
        kc: usize,
        a: &Block<T>,
        b: &Block<T>,
        (fresh, finish): (bool, bool),
    ) {
        let kernels = &self.job.kernels;
        let high = kernels.tiles[0].rows;
        let fetches = wide.next_multiple_of(kernels.lanes) * kc * size_of::<T>() >= NEAR;
        // Where rows lie one after another, a tile may start at any.
        let is_dense = [&a.0, &a.1].iter().all(|a| a.step == a.strides.0);
        let each = if is_dense { kernels.height(tall) } else { high };
        // Sums over few steps take no longer than a few divisions, so all that tiles share comes first.
        let of = |rows| kernels.tiles.iter().rev().find(|t| t.rows >= rows);
        let tiles = [each, (tall - 1) % each + 1].map(|rows| of(rows).unwrap_or(&kernels.tiles[0]));
        let share = self.share(kc, tall.div_ceil(each));
        let lines = (kc * size_of::<T>() / 64).max(1);
        for j in (0..wide).step_by(kernels.width) {
            let w = kernels.width.min(wide - j);
            let b = if w == kernels.width { &b.0 } else { &b.1 };
            // Few columns take one register.
            let is_narrow = w <= kernels.lanes;
            let full = if is_narrow { kernels.lanes } else { kernels.width };
            for (n, i) in (0..tall).step_by(each).enumerate() {
                let h = each.min(tall - i);
                let fetch = match fetches {
                    true if wide <= kernels.width && a.0.strides.1 == 1 => {
                        // A line of each of the rows behind these: they are read once.
                        let line = n % lines * (64 / size_of::<T>());
                        (a.0.at(i + each).wrapping_add(line), a.0.strides.0)
                    }
                    true => self.ahead(b, j + kernels.width, n, share),
                    false => (b.at(j), 0),
                };
                let a = if i + h < tall || tall.is_multiple_of(high) { &a.0 } else { &a.1 };
                let fit = if i + h < tall { tiles[0] } else { tiles[1] };
                // SAFETY: panels have `kc` steps; a tile that sticks out goes through `spare`.
                unsafe {
                    let c = self.at(i0 + i, j0 + j);
                    let micro = if is_narrow { fit.narrow } else { fit.micro };
                    if w == full && fit.rows == h && self.job.column == 1 {
                        micro(
                            kc,
                            a.at(i),
                            a.strides,
                            b.at(j),
                            b.strides.1,
                            c,
                            self.job.row as isize,
                            fresh,
                            fetch,
                        );
                    } else {
                        let mut spare = MaybeUninit::<[T; TILE]>::uninit();
                        let spare_row = kernels.width as isize;
                        micro(
                            kc,
                            a.at(i),
                            a.strides,
                            b.at(j),
                            b.strides.1,
                            spare.as_mut_ptr().cast(),
                            spare_row,
                            true,
                            fetch,
                        );
                        self.store(c, spare.as_ptr().cast(), (h, w), fresh);
                    }
                }
            }
            if finish {
                self.done(i0..i0 + tall, j0 + j..j0 + j + w);
            }
        }
    }

    /// The share of each of some tiles in a packed panel of columns, in elements, and that of each of
    /// its steps, at most a line.
    fn share(&self, kc: usize, tiles: usize) -> (usize, isize) {
        let share = (self.job.kernels.width * kc).div_ceil(tiles);
        (share, share.div_ceil(kc).min(64 / size_of::<T>()) as isize)
    }

    /// What the steps of the `i`-th of some tiles fetch while a panel is multiplied, see
    /// [`Micro`](super::kernel::Micro): their share of the panel from column `j` on.
    fn ahead(
        &self,
        b: &Panels<T>,
        j: usize,
        i: usize,
        (share, step): (usize, isize),
    ) -> (*const T, isize) {
        let (width, line) = (self.job.kernels.width, 64 / size_of::<T>());
        let next = b.at(j);
        if b.strides.1 == width as isize {
            return (next.wrapping_add(i * share), step);
        }
        // Columns that are read in place lie in pieces: a line of each.
        (next.wrapping_add(i % (width / line).max(1) * line), b.strides.1)
    }

    /// Writes (or adds) the corner of a tile that lies within the result.
    unsafe fn store(&self, c: *mut T, spare: *const T, (h, w): (usize, usize), fresh: bool) {
        let &Job { row, column, ref kernels, .. } = self.job;
        for y in 0..h {
            // SAFETY: inside the tile, and inside the result.
            unsafe {
                let (c, spare) = (c.add(y * row), spare.add(y * kernels.width));
                match (column, w) {
                    (1, 8..) => line::<T, 8>(c, spare, w, fresh),
                    (1, 4..) => line::<T, 4>(c, spare, w, fresh),
                    _ => {
                        for x in 0..w {
                            line::<T, 1>(c.add(x * column), spare.add(x), 1, fresh);
                        }
                    }
                }
            }
        }
    }
}

/// Writes (or adds) `n` neighbouring elements, at least `W`, so many at a time. The last end with
/// the line, and are read before those that they overlap are written.
///
/// # Safety
/// There are so many at both addresses, apart from each other.
unsafe fn line<T: Element, const W: usize>(c: *mut T, spare: *const T, n: usize, fresh: bool) {
    let made = |at: usize| {
        // SAFETY: by contract.
        unsafe {
            let mut made = spare.add(at).cast::<[T; W]>().read_unaligned();
            if !fresh {
                let old = c.add(at).cast::<[T; W]>().read_unaligned();
                made.iter_mut().zip(old).for_each(|(s, c)| *s = c.plus(*s));
            }
            made
        }
    };
    let last = made(n - W);
    // SAFETY: by contract.
    unsafe {
        for at in (0..n - W).step_by(W) {
            let part = made(at);
            c.add(at).cast::<[T; W]>().write_unaligned(part);
        }
        c.add(n - W).cast::<[T; W]>().write_unaligned(last);
    }
}

fn twice<T: Copy>(panels: Panels<T>) -> Block<T> {
    (panels, panels)
}

/// Panels of `width` rows or columns that were packed one after another, over so many steps.
fn packed<T>(ptr: *const T, steps: usize, width: usize) -> Panels<T> {
    Panels { ptr, step: steps as isize, strides: (1, width as isize) }
}

/// Packs panels of an operand that is contiguous along `k`.
///
/// # Safety
/// `dst` holds whole panels, and [`SQUARE`] elements more where these are not as wide; the operand
/// can be read from `src`.
unsafe fn transposed<T: Element>(
    dst: *mut T,
    width: usize,
    src: *const T,
    (operand, own, k): (&Matrix, &Range<usize>, &Range<usize>),
    transpose: Option<Transpose>,
) {
    let runs = operand.depth.runs(k.start, k.len());
    for first in own.clone().step_by(width) {
        let mut offsets = [0; TILE_WIDTH];
        let offsets = &mut offsets[..width.min(own.end - first)];
        operand.own.offsets(first, offsets);
        // SAFETY: by contract.
        unsafe {
            let dst = dst.add((first - own.start) * k.len());
            pack::transposed(dst, width, src, offsets, &runs, transpose);
        }
    }
}

/// Packs panels of an operand without transposing: rows of `width` elements of its own axis, one for
/// each step of `k`.
///
/// # Safety
/// `dst` holds whole panels; the operand can be read from `src`.
unsafe fn panels<T: Element>(
    dst: *mut T,
    width: usize,
    src: *const T,
    (operand, own, k): (&Matrix, &Range<usize>, &Range<usize>),
) {
    let stride = operand.own.inner().1;
    let runs = operand.own.runs(own.start, own.len());
    let mut steps = [0; BLOCK];
    let steps = &mut steps[..k.len()];
    operand.depth.offsets(k.start, steps);
    // SAFETY: by contract.
    unsafe {
        let whole = match (stride, &runs[..]) {
            (1, [run]) => {
                let src = src.offset(run.offset);
                pack::panels(dst, width, own.len() / width, src, steps);
                own.len() / width * width
            }
            _ => 0,
        };
        for first in (own.start + whole..own.end).step_by(width) {
            let runs = operand.own.runs(first, width.min(own.end - first));
            let dst = dst.add((first - own.start) * k.len());
            pack::lines(dst, width, src, steps, &runs, stride);
        }
    }
}

/// [`pack::lines`] for a range of an axis, at most [`BLOCK`] lines at a time.
unsafe fn lines<T: Element>(
    dst: *mut T,
    width: usize,
    src: *const T,
    (axis, range): (&Axis, &Range<usize>),
    runs: &Runs,
    stride: isize,
) {
    let mut offsets = [0; BLOCK];
    for first in range.clone().step_by(BLOCK) {
        let offsets = &mut offsets[..BLOCK.min(range.end - first)];
        axis.offsets(first, offsets);
        // SAFETY: by contract.
        unsafe {
            pack::lines(dst.add((first - range.start) * width), width, src, offsets, runs, stride)
        };
    }
}

/// How many elements along an axis are contiguous.
fn along(axis: &Axis) -> usize {
    let (n, stride) = axis.inner();
    if stride == 1 { n } else { 0 }
}

/// How many elements along an axis are copied together.
fn copied(axis: &Axis) -> usize {
    let (n, stride) = axis.inner();
    if (1..=2).contains(&stride) { n } else { 0 }
}
