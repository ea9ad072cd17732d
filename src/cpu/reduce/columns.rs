//! Reduction of columns: neighbouring outputs at once, over one reduced element after the other.

use smallvec::SmallVec;

use crate::cpu::caches;
use crate::cpu::element::{Element, Number, Shared};
use crate::threads::{self, Pace};

use super::combine::{Combine, Tree};
use super::kernels::{narrow, reduce_apart, reduce_columns};
use super::{CHUNK, FEW, ReducePlan, SERIAL, TURNED, fold_turned, is_native, split, with_capacity};

/// Elements of a column that are combined in order.
pub const BLOCK: usize = 64;
/// Rows that are combined in one pass over the columns.
const PASS: usize = 16;
/// Rows that are combined in one pass over columns of more than [`WIDE`] bytes: these rows are read
/// on and on, one line behind the other, so that the processor fetches ahead. It does not where the
/// pass jumps between many of them, and takes 1.6 times as long for what comes from memory. (With a
/// first cache of 32 KiB four are known to be followed, and sixteen not to be. Zen 5, whose cache is
/// larger, takes 0.87 of the time with eight.)
const FEW_STREAMS: usize = 4;
const MORE_STREAMS: usize = 8;
/// A first cache of more bytes has room for the columns of a tile and [`MORE_STREAMS`].
const SMALL_CACHE: usize = 32 << 10;
/// Bytes that the processor fetches ahead at most: a page.
const WIDE: usize = 4096;
/// With fewer columns than this in a line, they are reduced one by one.
const SHORT: usize = 16;
/// So few columns alone are reduced one by one too: where they are contiguous, and where they are
/// not, which a vector would gather.
const ALONE: (usize, usize) = (2, 16);
/// Columns that are reduced together where they are not contiguous.
const NARROW: usize = 256;
/// Bytes of the columns that are reduced together where they are contiguous: they stay in the L1
/// cache.
const TILE: usize = 1 << 14;
/// With fewer chunks of columns than this, long ones are shared between threads.
const MANY: usize = 16;

/// Reduces each column of the plan to one element of `out`.
pub fn run<T: Element, F: Combine<T::Number>>(plan: &ReducePlan, x: *const T, out: *mut T) {
    let (x, out) = (Shared::reading(x), Shared::new(out));
    let columns = Columns::new::<T>(plan);
    let is_serial = plan.total() < SERIAL;
    let step = (CHUNK / plan.n).max(columns.tile);
    if is_serial || plan.n <= 2 * BLOCK || plan.outputs.div_ceil(step) >= MANY {
        split(plan.outputs, step, is_serial, |first, count| {
            // SAFETY: the columns of the plan are readable; every output belongs to one call.
            unsafe {
                columns.stretch::<T, T, F>(x.at(0), first, count, 0, plan.n, out.at(first as isize))
            };
        });
        return;
    }
    let length = BLOCK * (CHUNK / (BLOCK * columns.tile)).max(1).next_power_of_two();
    let segments = plan.n.div_ceil(length);
    let mut partial: Vec<T::Number> = with_capacity(plan.outputs.saturating_mul(segments));
    let to = Shared::new(partial.as_mut_ptr());
    let stretches = plan.outputs.div_ceil(columns.tile);
    threads::parallel_for(segments * stretches, &|i| {
        let (segment, first) = (i / stretches, i % stretches * columns.tile);
        let (start, count) = (segment * length, columns.tile.min(plan.outputs - first));
        let n = length.min(plan.n - start);
        let to = to.at((segment * plan.outputs + first) as isize);
        // SAFETY: as above; these partial results belong to this call.
        unsafe { columns.stretch::<T, T::Number, F>(x.at(0), first, count, start, n, to) };
    });
    split(plan.outputs, columns.tile, is_serial, |first, count| {
        let mut tree = Tree::new(segments, count);
        for segment in 0..segments {
            let partial = to.at((segment * plan.outputs + first) as isize);
            // SAFETY: the partial results were written above; the outputs belong to this call.
            unsafe {
                reduce_columns::<T::Number, F>(partial, &[0], count, tree.slot(), true);
                tree.push::<F>(count);
            }
        }
        // SAFETY: as above.
        unsafe { narrow::<T>(tree.finish::<F>(count), count, out.at(first as isize)) };
    });
}

/// How the columns of a plan are walked.
struct Columns<'a> {
    plan: &'a ReducePlan,
    /// Columns that are reduced together.
    tile: usize,
    /// Elements from a column to the next.
    stride: isize,
}

/// The offsets of the elements of a block of a column.
type Offsets = SmallVec<[isize; BLOCK]>;

impl<'a> Columns<'a> {
    fn new<T: Element>(plan: &'a ReducePlan) -> Self {
        let (_, stride) = plan.kept.inner();
        let widest = if stride == 1 { TILE / size_of::<T>() } else { NARROW };
        Columns { plan, tile: plan.outputs.min(widest), stride }
    }

    /// Reduces the elements `start..start + n` of columns `first..first + count` to `out`, rounding
    /// to `U`.
    unsafe fn stretch<T: Element, U: Element<Number = T::Number>, F: Combine<T::Number>>(
        &self,
        x: *const T,
        first: usize,
        count: usize,
        start: usize,
        n: usize,
        out: *mut U,
    ) {
        let is_block = n <= BLOCK;
        let alone = if self.stride == 1 { ALONE.0 } else { ALONE.1 };
        let is_short = self.plan.kept.inner().0 < SHORT && !self.plan.kept.is_flat();
        if is_block && (is_short || count <= alone) {
            // SAFETY: as the caller's.
            return unsafe { self.short::<T, U, F>(x, (first, count), (start, n), out) };
        }
        let in_place = is_block && is_native::<U>();
        let mut tree = Tree::new(if in_place { 0 } else { n.div_ceil(BLOCK) }, self.tile);
        let mut offsets = Offsets::new();
        if is_block {
            self.locate(start, n, &mut offsets);
        }
        let mut to = out;
        self.plan.kept.runs(first, count, |offset, run| {
            for at in (0..run).step_by(self.tile) {
                let x = x.wrapping_offset(offset + at as isize * self.stride);
                let width = self.tile.min(run - at);
                // SAFETY: the columns are readable and the outputs writable by the caller's word.
                unsafe {
                    if in_place {
                        self.block::<T, F>(x, width, &offsets, to.cast());
                    } else {
                        for from in (0..n).step_by(BLOCK) {
                            if !is_block {
                                threads::pause();
                                self.locate(start + from, BLOCK.min(n - from), &mut offsets);
                            }
                            self.block::<T, F>(x, width, &offsets, tree.slot());
                            tree.push::<F>(width);
                        }
                        narrow::<U>(tree.finish::<F>(width), width, to);
                    }
                }
                to = to.wrapping_add(width);
            }
        });
    }

    /// The same of a block at most, for columns of which few lie in a line: one by one.
    unsafe fn short<T: Element, U: Element<Number = T::Number>, F: Combine<T::Number>>(
        &self,
        x: *const T,
        (first, count): (usize, usize),
        (start, n): (usize, usize),
        out: *mut U,
    ) {
        let (mut offsets, mut to) = (Offsets::new(), out);
        self.locate(start, n, &mut offsets);
        let Some((&nearest, others)) = offsets.split_first() else { return };
        let mut pace = Pace::default();
        self.plan.kept.runs(first, count, |offset, run| {
            pace.work(run * n);
            for i in 0..run as isize {
                let x = x.wrapping_offset(offset + i * self.stride);
                // SAFETY: the columns are readable and the outputs writable by the caller's word.
                unsafe {
                    let element = |at: isize| (*x.wrapping_offset(at)).widen();
                    let join = |acc, &at: &isize| F::join(acc, element(at));
                    to.write(U::narrow(others.iter().fold(element(nearest), join)));
                }
                to = to.wrapping_add(1);
            }
        });
    }

    /// Finds the elements `start..start + n` of the first column.
    fn locate(&self, start: usize, n: usize, offsets: &mut Offsets) {
        let stride = self.plan.reduced.inner().1;
        offsets.clear();
        self.plan.reduced.runs(start, n, |offset, run| {
            offsets.extend((0..run as isize).map(|i| offset + i * stride));
        });
    }

    /// Combines one block of elements of `width` columns into `acc`.
    unsafe fn block<T: Element, F: Combine<T::Number>>(
        &self,
        x: *const T,
        width: usize,
        offsets: &[isize],
        acc: *mut T::Number,
    ) {
        // SAFETY: by the caller's word.
        unsafe {
            if self.stride != 1 {
                let is_row = offsets.windows(2).all(|two| two[1] - two[0] == 1);
                // Columns of floats pages apart are read whole; sums of few are as fast in place.
                let is_far = self.stride.unsigned_abs() * size_of::<T>() >= WIDE;
                let turns = match offsets.len() {
                    BLOCK => is_far && T::Number::HAS_NAN,
                    n => F::PICKS && (TURNED..=FEW).contains(&n),
                };
                if is_row && turns {
                    let x = x.wrapping_offset(offsets[0]);
                    return fold_turned::<T, F>(x, self.stride, width, offsets.len(), acc);
                }
                return reduce_apart::<T, F>(x, self.stride, offsets, width, acc);
            }
            let rows = match width * size_of::<T>() > WIDE {
                true if caches::first() > SMALL_CACHE => MORE_STREAMS,
                true => FEW_STREAMS,
                false => PASS,
            };
            for (i, pass) in offsets.chunks(rows).enumerate() {
                reduce_columns::<T, F>(x, pass, width, acc, i == 0);
            }
        }
    }
}
