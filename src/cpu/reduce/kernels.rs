//! The inner loops of reductions, over contiguous numbers.
//!
//! Promises: the order in which numbers are joined is a function of counts alone, so the same
//! numbers give the same bits on every instruction set.

use crate::cpu::element::{Element, Number};
use crate::cpu::moves::{Place, move_block};
use crate::multiversion;

use super::fold::{Fold, Pairwise};
use super::is_native;

/// Elements of a row that become one item of the row's tree.
pub const BLOCK: usize = 1024;
/// Element `i` of a block is joined into lane `i % LANES`, and the lanes by halves at the end.
const LANES: usize = 64;

multiversion! {
    /// Reduces each of `rows` rows of `n` numbers, `row_stride` apart, to `out[row]`.
    ///
    /// # Safety
    /// All rows can be read, and `rows` numbers at `out` written.
    pub unsafe fn fold_rows[A, F](x: *const A, row_stride: isize, rows: usize, n: usize, out: *mut A)
    where [A: Number, F: Fold<A>] {
        // SAFETY: by contract.
        unsafe { rows_body::<A, F>(x, row_stride, rows, n, out) }
    }

    /// Joins, for each of `n` columns, the rows at `offsets` into `acc`, in order; `fresh`: `acc`
    /// holds nothing yet.
    ///
    /// # Safety
    /// `n` numbers can be read at each offset from `x` and written at `acc`, which overlaps none.
    pub unsafe fn fold_columns[A, F](x: *const A, offsets: &[isize], n: usize, acc: *mut A, fresh: bool)
    where [A: Number, F: Fold<A>] {
        // SAFETY: by contract.
        unsafe { columns_body::<A, F>(x, offsets, n, acc, fresh) }
    }

    /// Widens `n` elements, `stride` apart.
    ///
    /// # Safety
    /// As for a copy.
    unsafe fn widen[T](x: *const T, stride: isize, n: usize, out: *mut T::Number)
    where [T: Element] {
        // SAFETY: by contract.
        unsafe {
            match stride {
                1 => widen_body::<T>(x, 1, n, out),
                2 => widen_body::<T>(x, 2, n, out),
                stride => widen_body::<T>(x, stride, n, out),
            }
        }
    }

    /// Rounds `n` numbers to elements.
    ///
    /// # Safety
    /// As for a copy.
    pub unsafe fn narrow[T](x: *const T::Number, n: usize, out: *mut T)
    where [T: Element] {
        for i in 0..n {
            // SAFETY: by contract.
            unsafe { *out.add(i) = T::narrow(*x.add(i)) };
        }
    }
}

#[inline(always)]
unsafe fn rows_body<A: Number, F: Fold<A>>(
    x: *const A,
    row_stride: isize,
    rows: usize,
    n: usize,
    out: *mut A,
) {
    for row in 0..rows {
        // SAFETY: row `row` can be read and `out[row]` written, as the caller promises.
        unsafe {
            let x = x.wrapping_offset(row as isize * row_stride);
            *out.add(row) = if n <= BLOCK {
                fold_block::<A, F>(x, n)
            } else {
                let mut tree = Pairwise::new();
                for start in (0..n).step_by(BLOCK) {
                    tree.push::<F>(fold_block::<A, F>(x.add(start), BLOCK.min(n - start)));
                }
                tree.finish::<F>()
            };
        }
    }
}

/// Reduces one block of a row.
///
/// # Safety
/// `n` numbers can be read.
#[inline(always)]
pub unsafe fn fold_block<A: Number, F: Fold<A>>(x: *const A, n: usize) -> A {
    let mut lanes = [F::NEUTRAL; LANES];
    let whole = n / LANES * LANES;
    for at in (0..whole).step_by(LANES) {
        // SAFETY: `at + LANES <= n` numbers can be read.
        let step: [A; LANES] = unsafe { read(x.add(at)) };
        for i in 0..LANES {
            lanes[i] = F::join(lanes[i], step[i]);
        }
    }
    if whole < n {
        let mut step = [F::NEUTRAL; LANES];
        // SAFETY: the rest of the block can be read, and is shorter than `step`.
        unsafe { std::ptr::copy_nonoverlapping(x.add(whole), step.as_mut_ptr(), n - whole) };
        for i in 0..LANES {
            lanes[i] = F::join(lanes[i], step[i]);
        }
    }
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            lanes[i] = F::join(lanes[i], lanes[i + width]);
        }
        width /= 2;
    }
    lanes[0]
}

#[inline(always)]
unsafe fn columns_body<A: Number, F: Fold<A>>(
    x: *const A,
    offsets: &[isize],
    n: usize,
    acc: *mut A,
    fresh: bool,
) {
    let mut at = 0;
    // SAFETY: every stretch lies within the `n` columns that the caller vouches for.
    unsafe {
        while at + 64 <= n {
            fold_stretch::<A, F, 64>(x.wrapping_add(at), offsets, acc.add(at), fresh);
            at += 64;
        }
        while at + 16 <= n {
            fold_stretch::<A, F, 16>(x.wrapping_add(at), offsets, acc.add(at), fresh);
            at += 16;
        }
        while at < n {
            fold_stretch::<A, F, 1>(x.wrapping_add(at), offsets, acc.add(at), fresh);
            at += 1;
        }
    }
}

/// `W` columns, which stay in registers.
#[inline(always)]
unsafe fn fold_stretch<A: Number, F: Fold<A>, const W: usize>(
    x: *const A,
    offsets: &[isize],
    acc: *mut A,
    fresh: bool,
) {
    // SAFETY: the caller vouches for `W` numbers at each offset and at `acc`.
    unsafe {
        let (mut lanes, rest) = match (fresh, offsets) {
            (true, [first, rest @ ..]) => (read(x.wrapping_offset(*first)), rest),
            _ => (read(acc), offsets),
        };
        for &offset in rest {
            let row: [A; W] = read(x.wrapping_offset(offset));
            for i in 0..W {
                lanes[i] = F::join(lanes[i], row[i]);
            }
        }
        acc.cast::<[A; W]>().write_unaligned(lanes);
    }
}

#[inline(always)]
unsafe fn read<A: Copy, const W: usize>(x: *const A) -> [A; W] {
    // SAFETY: the caller vouches for `W` numbers.
    unsafe { x.cast::<[A; W]>().read_unaligned() }
}

/// Inlined where the stride is a constant.
#[inline(always)]
unsafe fn widen_body<T: Element>(x: *const T, stride: isize, n: usize, out: *mut T::Number) {
    for i in 0..n {
        // SAFETY: the caller vouches for all positions.
        unsafe { *out.add(i) = (*x.wrapping_offset(i as isize * stride)).widen() };
    }
}

/// Brings `rows` by `columns` elements into rows of numbers that are `pitch` apart.
///
/// # Safety
/// The elements can be read and the numbers written; they do not overlap.
pub unsafe fn pack<T: Element>(
    x: Place<*const T>,
    rows: usize,
    columns: usize,
    out: *mut T::Number,
    pitch: usize,
) {
    // SAFETY: by contract; elements that are native have the size of their numbers.
    unsafe {
        if is_native::<T>() {
            let from = Place::new(x.ptr.cast(), x.row, x.col);
            return move_block(
                size_of::<T>(),
                Place::new(out.cast(), pitch as isize, 1),
                from,
                rows,
                columns,
            );
        }
        for row in 0..rows {
            widen::<T>(
                x.ptr.wrapping_offset(row as isize * x.row),
                x.col,
                columns,
                out.add(row * pitch),
            );
        }
    }
}
