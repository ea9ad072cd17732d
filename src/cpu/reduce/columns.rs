//! Reduction of columns: neighbouring outputs side by side, one reduced element after the other.

use std::mem::MaybeUninit;

use smallvec::SmallVec;

use crate::cpu::element::{Element, Number, Shared};
use crate::cpu::moves::Place;
use crate::threads;

use super::fold::Fold;
use super::kernels::{fold_columns, narrow, pack};
use super::{CHUNK, Plan, SERIAL, is_native, split};

/// Elements of a column that are joined one after the other.
const BLOCK: usize = 64;
/// Rows that are joined in one pass over the columns.
const PASS: usize = 16;
/// Columns that are brought together where they do not lie side by side.
const NARROW: usize = 256;
/// Bytes of the columns that are worked on together: they stay in the nearest cache.
const TILE: usize = 1 << 14;
/// With fewer chunks of columns than this, long ones are shared between threads.
const MANY: usize = 16;

/// Reduces each column of the plan to one element of `out`.
pub fn run<T: Element, F: Fold<T::Number>>(plan: &Plan, x: *const T, out: *mut T) {
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
    let mut partial: Vec<T::Number> = Vec::with_capacity(plan.outputs * segments);
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
                fold_columns::<T::Number, F>(partial, &[0], count, tree.slot(), true);
                tree.push::<F>(count);
            }
        }
        // SAFETY: as above.
        unsafe { narrow::<T>(tree.finish::<F>(count), count, out.at(first as isize)) };
    });
}

/// How the columns of a plan are walked.
struct Columns<'a> {
    plan: &'a Plan,
    /// Columns worked on together.
    tile: usize,
    /// Whether the kernels read the operand in place.
    in_place: bool,
}

impl<'a> Columns<'a> {
    fn new<T: Element>(plan: &'a Plan) -> Self {
        let (columns, stride) = plan.kept.inner();
        let in_place = is_native::<T>() && (stride == 1 || columns == 1);
        let widest = if in_place { TILE / size_of::<T>() } else { NARROW };
        Columns { plan, tile: plan.outputs.min(widest), in_place }
    }

    /// Reduces the elements `start..start + n` of columns `first..first + count` to `out`, rounding
    /// to `U`.
    unsafe fn stretch<T: Element, U: Element<Number = T::Number>, F: Fold<T::Number>>(
        &self,
        x: *const T,
        first: usize,
        count: usize,
        start: usize,
        n: usize,
        out: *mut U,
    ) {
        let is_single = n <= BLOCK && is_native::<U>();
        let mut tree = Tree::new(if is_single { 0 } else { n.div_ceil(BLOCK) }, self.tile);
        let mut scratch = Vec::new();
        let stride = self.plan.kept.inner().1;
        let mut to = out;
        self.plan.kept.runs(first, count, |offset, run| {
            for at in (0..run).step_by(self.tile) {
                let x = x.wrapping_offset(offset + at as isize * stride);
                let width = self.tile.min(run - at);
                // SAFETY: the columns are readable and the outputs writable by the caller's word.
                unsafe {
                    if is_single {
                        self.block::<T, F>(x, width, start, n, to.cast(), &mut scratch);
                    } else {
                        for from in (0..n).step_by(BLOCK) {
                            let n = BLOCK.min(n - from);
                            self.block::<T, F>(
                                x,
                                width,
                                start + from,
                                n,
                                tree.slot(),
                                &mut scratch,
                            );
                            tree.push::<F>(width);
                        }
                        narrow::<U>(tree.finish::<F>(width), width, to);
                    }
                }
                to = to.wrapping_add(width);
            }
        });
    }

    /// Joins one block of elements of `width` columns into `acc`.
    unsafe fn block<T: Element, F: Fold<T::Number>>(
        &self,
        x: *const T,
        width: usize,
        start: usize,
        n: usize,
        acc: *mut T::Number,
        scratch: &mut Vec<MaybeUninit<T::Number>>,
    ) {
        let stride = self.plan.reduced.inner().1;
        let mut pending: SmallVec<[isize; PASS]> = SmallVec::new();
        let mut fresh = true;
        let mut join = |x: *const T::Number, pending: &mut SmallVec<[isize; PASS]>| {
            // SAFETY: by the caller's word for operands in place, else just filled.
            unsafe { fold_columns::<T::Number, F>(x, pending, width, acc, fresh) };
            fresh = false;
            pending.clear();
        };
        if self.in_place {
            self.plan.reduced.runs(start, n, |offset, run| {
                for i in 0..run {
                    pending.push(offset + i as isize * stride);
                    if pending.len() == PASS {
                        join(x.cast(), &mut pending);
                    }
                }
            });
            if !pending.is_empty() {
                join(x.cast(), &mut pending);
            }
            return;
        }
        scratch.reserve(PASS * self.tile);
        let packed = scratch.as_mut_ptr().cast::<T::Number>();
        self.plan.reduced.runs(start, n, |offset, run| {
            let mut at = 0;
            while at < run {
                let (filled, rows) = (pending.len(), (PASS - pending.len()).min(run - at));
                let x = x.wrapping_offset(offset + at as isize * stride);
                let from = Place::new(x, stride, self.plan.kept.inner().1);
                let to = packed.wrapping_add(filled * self.tile);
                // SAFETY: rows `filled..filled + rows` of the scratch, which has `PASS` rows.
                unsafe { pack::<T>(from, rows, width, to, self.tile) };
                pending.extend((filled..filled + rows).map(|row| (row * self.tile) as isize));
                if pending.len() == PASS {
                    join(packed, &mut pending);
                }
                at += rows;
            }
        });
        if !pending.is_empty() {
            join(packed, &mut pending);
        }
    }
}

/// [`super::fold::Pairwise`], for many columns at once.
struct Tree<A> {
    count: usize,
    depth: usize,
    width: usize,
    levels: Vec<A>,
}

impl<A: Number> Tree<A> {
    /// Room for `items` rows of up to `width` columns.
    fn new(items: usize, width: usize) -> Self {
        let levels = items.checked_ilog2().map_or(0, |log| log as usize + 2);
        Tree { count: 0, depth: 0, width, levels: Vec::with_capacity(levels * width) }
    }

    fn level(&mut self, depth: usize) -> *mut A {
        self.levels.as_mut_ptr().wrapping_add(depth * self.width)
    }

    /// Where the next item belongs.
    fn slot(&mut self) -> *mut A {
        self.level(self.depth)
    }

    /// Takes the item that was written to the slot.
    unsafe fn push<F: Fold<A>>(&mut self, width: usize) {
        let mut rest = self.count;
        while rest & 1 == 1 {
            // SAFETY: both levels are filled.
            unsafe { self.join::<F>(width) };
            rest >>= 1;
        }
        self.depth += 1;
        self.count += 1;
    }

    /// Joins the slot into the level before it, which becomes the slot.
    unsafe fn join<F: Fold<A>>(&mut self, width: usize) {
        self.depth -= 1;
        let (left, right) = (self.level(self.depth), self.level(self.depth + 1));
        // SAFETY: levels are apart; the caller filled both.
        unsafe { fold_columns::<A, F>(right, &[0], width, left, false) };
    }

    /// The result over all items; the tree is empty afterwards.
    unsafe fn finish<F: Fold<A>>(&mut self, width: usize) -> *const A {
        self.depth -= 1;
        while self.depth > 0 {
            // SAFETY: the levels up to the slot are filled.
            unsafe { self.join::<F>(width) };
        }
        self.count = 0;
        self.level(0)
    }
}
