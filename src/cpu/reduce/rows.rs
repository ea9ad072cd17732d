//! Reduction of rows: elements of one output side by side, in lanes.

use std::mem::MaybeUninit;

use crate::cpu::element::{Element, Number, Shared};
use crate::cpu::moves::Place;
use crate::threads;

use super::fold::{Fold, Pairwise};
use super::kernels::{BLOCK, fold_rows, narrow, pack};
use super::{CHUNK, Plan, SERIAL, is_native, split};

/// Blocks of a long row that one thread takes at a time: a power of two, so a subtree.
const SEGMENT: usize = 64;
/// With fewer rows than this, long ones are shared between threads.
const MANY: usize = 16;

/// Reduces each row of the plan to one element of `out`.
pub fn run<T: Element, F: Fold<T::Number>>(plan: &Plan, x: *const T, out: *mut T) {
    let (x, out) = (Shared::reading(x), Shared::new(out));
    let is_serial = plan.total() < SERIAL;
    if plan.outputs >= MANY || plan.n <= 2 * SEGMENT * BLOCK {
        split(plan.outputs, (CHUNK / plan.n).max(1), is_serial, |first, count| {
            // SAFETY: the rows of the plan are readable; every output belongs to one call.
            unsafe {
                stretch::<T, T, F>(plan, x.at(0), first, count, 0, plan.n, out.at(first as isize))
            };
        });
        return;
    }
    let segments = plan.n.div_ceil(SEGMENT * BLOCK);
    let mut partial = vec![T::Number::ZERO; plan.outputs * segments];
    let to = Shared::new(partial.as_mut_ptr());
    threads::parallel_for(partial.len(), &|i| {
        let (row, start) = (i / segments, i % segments * SEGMENT * BLOCK);
        let n = (SEGMENT * BLOCK).min(plan.n - start);
        // SAFETY: as above; segment `i` belongs to this call.
        unsafe { stretch::<T, T::Number, F>(plan, x.at(0), row, 1, start, n, to.at(i as isize)) };
    });
    for (row, partial) in partial.chunks_exact(segments).enumerate() {
        let mut tree = Pairwise::new();
        partial.iter().for_each(|&item| tree.push::<F>(item));
        // SAFETY: `row` is one of the outputs.
        unsafe { *out.at(row as isize) = T::narrow(tree.finish::<F>()) };
    }
}

/// Reduces the elements `start..start + n` of rows `first..first + rows` to `out`, rounding to `U`.
unsafe fn stretch<T: Element, U: Element<Number = T::Number>, F: Fold<T::Number>>(
    plan: &Plan,
    x: *const T,
    first: usize,
    rows: usize,
    start: usize,
    n: usize,
    out: *mut U,
) {
    let (row_stride, (_, stride)) = (plan.kept.inner().1, plan.reduced.inner());
    let mut to = out;
    if is_native::<T>() && stride == 1 && plan.reduced.is_flat() {
        // Then `U` is the number type too: it is `T` or `T::Number`.
        plan.kept.runs(first, rows, |offset, run| {
            let x = x.wrapping_offset(offset).wrapping_add(start).cast::<T::Number>();
            // SAFETY: the rows are readable and the outputs writable by the caller's word.
            unsafe { fold_rows::<T::Number, F>(x, row_stride, run, n, to.cast()) };
            to = to.wrapping_add(run);
        });
        return;
    }
    let mut gathered = Gathered::new(n);
    plan.kept.runs(first, rows, |offset, run| {
        for at in (0..run).step_by(gathered.rows) {
            let count = gathered.rows.min(run - at);
            let x = x.wrapping_offset(offset + at as isize * row_stride);
            // SAFETY: as above.
            unsafe {
                gathered.fold::<T, F>(plan, x, count, start, n);
                narrow::<U>(gathered.results.as_ptr(), count, to);
            }
            to = to.wrapping_add(count);
        }
    });
}

/// Some rows at a time, brought block by block into rows of numbers.
struct Gathered<A> {
    rows: usize,
    pitch: usize,
    block: Vec<MaybeUninit<A>>,
    trees: Vec<Pairwise<A>>,
    results: Vec<A>,
}

impl<A: Number> Gathered<A> {
    fn new(n: usize) -> Self {
        // So many rows that a transposed operand is read by whole cache lines.
        let (rows, pitch) = (64 / size_of::<A>(), n.min(BLOCK));
        let block = Vec::with_capacity(rows * pitch);
        Gathered { rows, pitch, block, trees: Vec::new(), results: vec![A::ZERO; rows] }
    }

    /// Reduces the elements `start..start + n` of `count` rows to the first `results`.
    unsafe fn fold<T: Element<Number = A>, F: Fold<A>>(
        &mut self,
        plan: &Plan,
        x: *const T,
        count: usize,
        start: usize,
        n: usize,
    ) {
        let (row_stride, (_, stride)) = (plan.kept.inner().1, plan.reduced.inner());
        let block = self.block.as_mut_ptr().cast::<A>();
        self.trees.clear();
        self.trees.resize_with(count, Pairwise::new);
        for at in (0..n).step_by(BLOCK) {
            let width = BLOCK.min(n - at);
            let mut filled = block;
            plan.reduced.runs(start + at, width, |offset, run| {
                let x = x.wrapping_offset(offset);
                // SAFETY: the runs together fill `width` columns of the block.
                unsafe {
                    pack::<T>(Place::new(x, row_stride, stride), count, run, filled, self.pitch)
                };
                filled = filled.wrapping_add(run);
            });
            let results = self.results.as_mut_ptr();
            // SAFETY: `count` rows of `width` numbers were filled.
            unsafe { fold_rows::<A, F>(block, self.pitch as isize, count, width, results) };
            self.trees.iter_mut().zip(&self.results).for_each(|(tree, &item)| tree.push::<F>(item));
        }
        for (result, tree) in self.results.iter_mut().zip(&self.trees) {
            *result = tree.finish::<F>();
        }
    }
}
