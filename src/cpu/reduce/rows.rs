//! Reduction of rows: several elements of one output at once, in lanes.

use std::any::{Any, TypeId};
use std::mem::MaybeUninit;

use smallvec::SmallVec;

use crate::cpu::element::{Element, Number, Shared};
use crate::cpu::moves::{Place, move_block};
use crate::threads::{self, Pace};

use super::combine::{Combine, Pairwise, Sum, Tree};
use super::kernels::{BLOCK, LANES, narrow, reduce_columns, reduce_rows};
use super::lanes::{add_to_lanes, sum_of_lanes};
use super::{CHUNK, ReducePlan, SERIAL, split};

/// Blocks of a long row that one thread reduces at a time: a power of two, so they make a subtree.
const SEGMENT: usize = 64;
/// Segments that are reduced before they are added to the tree, which bounds the intermediate
/// results of a row of any length.
const PARTIAL: usize = 1 << 16;
/// Longer rows are always shared between threads, so that a reduction can be interrupted within
/// one.
const LONG: usize = 1 << 26;
/// With fewer rows than this, long ones are shared between threads.
const MANY: usize = 16;
/// Rows that are reduced together where neighbouring rows, not the elements of a row, are
/// contiguous.
const TOGETHER: usize = 128;
/// Blocks that are gathered before they are reduced.
const GATHERED: usize = 4;
/// With fewer contiguous rows, that does not pay off.
const TOO_FEW: usize = 16;
/// Contiguous elements that are summed where they lie, if they are whole lines of lanes.
const PIECE: usize = 4 * LANES;

/// Reduces each row of the plan to one element of `out`.
pub fn run<T: Element, F: Combine<T::Number>>(plan: &ReducePlan, x: *const T, out: *mut T) {
    let (x, out) = (Shared::reading(x), Shared::new(out));
    let is_serial = plan.total() < SERIAL;
    let is_short = plan.n <= 2 * SEGMENT * BLOCK;
    if is_short || (plan.outputs >= MANY && plan.n <= LONG) {
        let step = (CHUNK / plan.n).max(if plan.rows_are_neighbours() { TOGETHER } else { 1 });
        split(plan.outputs, step, is_serial, |first, count| {
            // SAFETY: the rows of the plan are readable; every output belongs to one call.
            unsafe {
                stretch::<T, T, F>(plan, x.at(0), first, count, 0, plan.n, out.at(first as isize))
            };
        });
        return;
    }
    let segments = plan.n.div_ceil(SEGMENT * BLOCK);
    let total = plan.outputs * segments;
    let mut partial = vec![T::Number::ZERO; total.min(PARTIAL)];
    let mut tree = Pairwise::new();
    for first in (0..total).step_by(PARTIAL) {
        let count = PARTIAL.min(total - first);
        let to = Shared::new(partial.as_mut_ptr());
        threads::parallel_for(count, &|i| {
            let (row, start) = ((first + i) / segments, (first + i) % segments * SEGMENT * BLOCK);
            let n = (SEGMENT * BLOCK).min(plan.n - start);
            let to = to.at(i as isize);
            // SAFETY: as above; segment `i` belongs to this call.
            unsafe { stretch::<T, T::Number, F>(plan, x.at(0), row, 1, start, n, to) };
        });
        for (at, &item) in (first..).zip(&partial[..count]) {
            tree.push::<F>(item);
            if at % segments == segments - 1 {
                // SAFETY: the row is one of the outputs.
                unsafe { *out.at((at / segments) as isize) = T::narrow(tree.finish::<F>()) };
                tree = Pairwise::new();
            }
        }
    }
}

impl ReducePlan {
    /// Whether neighbouring rows are contiguous, but the elements of a row are not.
    fn rows_are_neighbours(&self) -> bool {
        let (rows, row_stride) = self.kept.inner();
        row_stride == 1 && rows >= TOO_FEW && self.reduced.inner().1 != 1
    }
}

/// Reduces the elements `start..start + n` of rows `first..first + rows` to `out`.
unsafe fn stretch<T: Element, U: Element<Number = T::Number>, F: Combine<T::Number>>(
    plan: &ReducePlan,
    x: *const T,
    first: usize,
    rows: usize,
    start: usize,
    n: usize,
    out: *mut U,
) {
    let (row_stride, (_, stride)) = (plan.kept.inner().1, plan.reduced.inner());
    let mut to = out;
    plan.kept.runs(first, rows, |offset, run| {
        let x = x.wrapping_offset(offset);
        // SAFETY: the rows are readable and the outputs writable by the caller's word.
        unsafe {
            if stride == 1 && plan.reduced.is_flat() {
                reduce_rows::<T, U, F>(x.wrapping_add(start), row_stride, run, n, to);
            } else if plan.rows_are_neighbours() {
                for at in (0..run).step_by(TOGETHER) {
                    let count = TOGETHER.min(run - at);
                    neighbours::<T, U, F>(
                        plan,
                        x.wrapping_add(at),
                        count,
                        start,
                        n,
                        to.wrapping_add(at),
                    );
                }
            } else {
                for row in 0..run {
                    let x = x.wrapping_offset(row as isize * row_stride);
                    to.wrapping_add(row).write(U::narrow(scattered::<T, F>(plan, x, start, n)));
                }
            }
        }
        to = to.wrapping_add(run);
    });
}

/// Reduces a row whose elements are not all contiguous: some blocks at a time, which are gathered
/// unless they are contiguous.
unsafe fn scattered<T: Element, F: Combine<T::Number>>(
    plan: &ReducePlan,
    x: *const T,
    start: usize,
    n: usize,
) -> T::Number {
    // SAFETY: as the caller's.
    if let Some(sum) = unsafe { in_pieces::<T, F>(plan, x, start, n) } {
        return sum;
    }
    let stride = plan.reduced.inner().1;
    let mut gathered = [const { MaybeUninit::<T>::uninit() }; GATHERED * BLOCK];
    let gathered = gathered.as_mut_ptr().cast::<T>();
    let (mut tree, mut pace) = (Pairwise::new(), Pace::default());
    // Whole blocks, and at the end what is less than one.
    let mut reduce = |x: *const T, n: usize| {
        pace.work(n);
        for at in (0..n).step_by(GATHERED * BLOCK) {
            let some = (GATHERED * BLOCK).min(n - at);
            let (blocks, rest) = (some / BLOCK, some % BLOCK);
            let mut items = [T::Number::ZERO; GATHERED];
            // SAFETY: so many elements are in place, or were gathered.
            unsafe {
                let x = x.add(at);
                let row = BLOCK as isize;
                reduce_rows::<T, T::Number, F>(x, row, blocks, BLOCK, items.as_mut_ptr());
                items[..blocks].iter().for_each(|&item| tree.push::<F>(item));
                if rest > 0 {
                    let x = x.add(blocks * BLOCK);
                    reduce_rows::<T, T::Number, F>(x, 0, 1, rest, items.as_mut_ptr());
                    tree.push::<F>(items[0]);
                }
            }
        }
    };
    let mut held = 0;
    plan.reduced.runs(start, n, |offset, run| {
        let (mut x, mut rest) = (x.wrapping_offset(offset), run);
        while rest > 0 {
            let is_aligned = held % BLOCK == 0;
            if held == GATHERED * BLOCK || is_aligned && stride == 1 && rest >= BLOCK {
                reduce(gathered, std::mem::take(&mut held));
            }
            let some = match stride == 1 && rest >= BLOCK {
                true if is_aligned => {
                    let whole = rest / BLOCK * BLOCK;
                    reduce(x, whole);
                    (x, rest) = (x.wrapping_add(whole), rest - whole);
                    continue;
                }
                true => BLOCK - held % BLOCK,
                false => rest.min(GATHERED * BLOCK - held),
            };
            let to = gathered.wrapping_add(held);
            // SAFETY: there is room for them, and they can be read by the caller's word.
            unsafe {
                match stride {
                    1 => to.copy_from_nonoverlapping(x, some),
                    _ => {
                        let from = Place::new(x.cast(), 0, stride);
                        move_block(T::DTYPE.width(), Place::new(to.cast(), 0, 1), from, 1, some);
                    }
                }
            }
            (x, rest, held) = (x.wrapping_offset(some as isize * stride), rest - some, held + some);
        }
    });
    reduce(gathered, held);
    tree.finish::<F>()
}

/// The sum of a row whose contiguous pieces are whole lines of lanes, so that they need not be
/// gathered; `None` for other rows, and for what is no sum of float32.
unsafe fn in_pieces<T: Element, F: Combine<T::Number>>(
    plan: &ReducePlan,
    x: *const T,
    start: usize,
    n: usize,
) -> Option<T::Number> {
    let (size, stride) = plan.reduced.inner();
    let is_sum = TypeId::of::<(T, F)>() == TypeId::of::<(f32, Sum)>();
    if !is_sum || stride != 1 || size < PIECE || !size.is_multiple_of(LANES) {
        return None;
    }
    let (mut tree, mut left, mut pace) = (Pairwise::new(), BLOCK, Pace::default());
    let mut lanes = [f32::NOTHING; LANES];
    let lanes = lanes.as_mut_ptr();
    plan.reduced.runs(start, n, |offset, run| {
        pace.work(run);
        let (mut x, mut rest) = (x.wrapping_offset(offset).cast::<f32>(), run);
        while rest > 0 {
            let some = rest.min(left);
            // SAFETY: so many elements can be read by the caller's word. A block starts with whole
            // lines, so each piece of it adds to the lanes from the first on.
            unsafe {
                add_to_lanes::<f32>(x, some, lanes);
                (x, rest, left) = (x.add(some), rest - some, left - some);
                if left == 0 {
                    tree.push::<Sum>(sum_of_lanes::<f32>(lanes));
                    left = BLOCK;
                }
            }
        }
    });
    if left < BLOCK {
        // SAFETY: the lanes are there.
        tree.push::<Sum>(unsafe { sum_of_lanes::<f32>(lanes) });
    }
    let sum: &dyn Any = &tree.finish::<Sum>();
    sum.downcast_ref().copied()
}

/// Reduces `count` rows that are contiguous side by side: one lane after the other, each for all
/// rows at once.
unsafe fn neighbours<T: Element, U: Element<Number = T::Number>, F: Combine<T::Number>>(
    plan: &ReducePlan,
    x: *const T,
    count: usize,
    start: usize,
    n: usize,
    out: *mut U,
) {
    let stride = plan.reduced.inner().1;
    let mut tree: Tree<T::Number> = Tree::new(n.div_ceil(BLOCK), count);
    let mut lanes: Vec<T::Number> = Vec::with_capacity(LANES * count);
    let lanes = lanes.as_mut_ptr();
    let mut offsets: Vec<isize> = Vec::with_capacity(BLOCK);
    let mut pace = Pace::default();
    for at in (0..n).step_by(BLOCK) {
        pace.work(BLOCK * count);
        offsets.clear();
        plan.reduced.runs(start + at, BLOCK.min(n - at), |offset, run| {
            offsets.extend((0..run as isize).map(|i| offset + i * stride));
        });
        // SAFETY: the rows are readable by the caller's word; there are `LANES` lanes of each.
        unsafe {
            for lane in 0..LANES {
                let own: SmallVec<[isize; BLOCK / LANES]> =
                    offsets.iter().skip(lane).step_by(LANES).copied().collect();
                let to = lanes.add(lane * count);
                match own.is_empty() {
                    true => (0..count).for_each(|i| to.add(i).write(F::NEUTRAL)),
                    false => reduce_columns::<T, F>(x, &own, count, to, true),
                }
            }
            let mut width = LANES / 2;
            while width > 0 {
                reduce_columns::<T::Number, F>(
                    lanes.add(width * count),
                    &[0],
                    width * count,
                    lanes,
                    false,
                );
                width /= 2;
            }
            tree.slot().copy_from_nonoverlapping(lanes, count);
            tree.push::<F>(count);
        }
    }
    // SAFETY: the tree holds `count` columns; the outputs are writable by the caller's word.
    unsafe { narrow::<U>(tree.finish::<F>(count), count, out) };
}
