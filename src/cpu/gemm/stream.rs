//! Products that read one operand once: few rows times any count of columns, and one row times one
//! column.

// A kernel's arguments are the registers it starts with.
#![allow(clippy::too_many_arguments)]

use std::mem::MaybeUninit;

use super::kernel::{BLOCK, Element, ROW, Row, prefetch};
use super::vector::{Lanes, Vector};

/// Steps of `k` that [`Kernels::stream`] takes at a time.
const TERMS: usize = 8;
/// Bytes of sums that [`Kernels::stream`] keeps in the L1 cache. Fewer rows take longer stretches of
/// `b`, which the hardware follows better.
pub const SUMS: usize = 16 << 10;

/// Adds a term for each offset of `b_at` to the sums of `R` rows from column `from` on, `N` vectors
/// of `W` elements at a time. Returns the column at which it stopped. `x` has the row's elements.
///
/// The loop over the terms is the inner one, so each sum is one chain, whose order the compiler
/// keeps.
#[inline(always)]
unsafe fn strip<T: Element, V: Vector<T>, const R: usize, const N: usize>(
    (sums, pitch, columns): (*mut T, usize, usize),
    mut from: usize,
    x: &[[T; TERMS]; R],
    b: *const T,
    (b_at, next): (&[isize], &[isize]),
) -> usize {
    let wide = size_of::<[V; N]>() / size_of::<T>();
    while from + wide <= columns {
        for &at in next {
            for line in 0..size_of::<[V; N]>().div_ceil(64) {
                prefetch(b.wrapping_offset(at).wrapping_add(from + line * 64 / size_of::<T>()));
            }
        }
        // SAFETY: the sums and (so says the caller) every row of `b` have these elements.
        unsafe {
            // `b_at` has at most as many offsets as `x` has elements.
            let place = |r: usize| sums.add(r * pitch + from).cast::<[V; N]>();
            let mut sum: [[V; N]; R] = std::array::from_fn(|r| place(r).read_unaligned());
            for (k, &at) in b_at.iter().enumerate() {
                let row = b.offset(at).add(from).cast::<[V; N]>().read_unaligned();
                for (sum, x) in sum.iter_mut().zip(x) {
                    for (sum, row) in sum.iter_mut().zip(&row) {
                        sum.add_product(V::one(*x.get_unchecked(k)), row);
                    }
                }
            }
            sum.into_iter().enumerate().for_each(|(r, sum)| place(r).write_unaligned(sum));
        }
        from += wide;
    }
    from
}

/// The same for all columns of `R` rows: vectors `V`, `N` at a time as long as there are so many,
/// then what is left in arrays.
#[inline(always)]
unsafe fn strips<T: Element, V: Vector<T>, const F: bool, const R: usize, const N: usize>(
    sums: (*mut T, usize, usize),
    (a, a_row, a_step): (*const T, isize, isize),
    b: *const T,
    rows: (&[isize], &[isize]),
) {
    let mut x = [[T::default(); TERMS]; R];
    // SAFETY: by contract.
    unsafe {
        for (i, x) in x.iter_mut().enumerate() {
            for (k, x) in x[..rows.0.len()].iter_mut().enumerate() {
                *x = *a.offset(i as isize * a_row + k as isize * a_step);
            }
        }
        let done = strip::<T, V, R, N>(sums, 0, &x, b, rows);
        let done = if N > 1 { strip::<T, V, R, 1>(sums, done, &x, b, rows) } else { done };
        let done = strip::<T, Lanes<T, 8, F>, R, 1>(sums, done, &x, b, rows);
        let done = strip::<T, Lanes<T, 4, F>, R, 1>(sums, done, &x, b, rows);
        strip::<T, Lanes<T, 1, F>, R, 1>(sums, done, &x, b, rows);
    }
}

#[inline(always)]
fn zeros<T: Element>(numbers: &mut [MaybeUninit<T>]) -> &mut [T] {
    numbers.fill(MaybeUninit::new(T::default()));
    // SAFETY: filled just now.
    unsafe { &mut *(numbers as *mut [MaybeUninit<T>] as *mut [T]) }
}

/// Few rows and any count of columns, see [`Stream`](super::kernel::Stream).
///
/// # Safety
/// As there.
#[inline(always)]
pub unsafe fn stream<T: Element, V: Vector<T>, const F: bool, const N: usize>(
    (rows, columns): (usize, usize),
    a: *const T,
    (a_row, a_step): (isize, isize),
    b: *const T,
    b_at: &[isize],
    c: *mut T,
    c_row: isize,
    fresh: bool,
) {
    let mut memory = [MaybeUninit::<u64>::uninit(); SUMS / size_of::<u64>()];
    // SAFETY: elements are no larger and need no stricter alignment than these.
    let memory: &mut [MaybeUninit<T>] = unsafe {
        std::slice::from_raw_parts_mut(memory.as_mut_ptr().cast(), SUMS / size_of::<T>())
    };
    let wide = memory.len() / rows;
    for start in (0..columns).step_by(wide) {
        let n = wide.min(columns - start);
        let sums = zeros(&mut memory[..rows * n]);
        let b = b.wrapping_add(start);
        for k in (0..b_at.len()).step_by(TERMS) {
            let (terms, rest) = b_at[k..].split_at(TERMS.min(b_at.len() - k));
            // Pieces of rows are far apart, so the hardware does not see the next ones coming; one
            // row's are long.
            let next = if rows > 1 { &rest[..TERMS.min(rest.len())] } else { &[] };
            let mut i = 0;
            macro_rules! groups {
                ($R:literal, $N:expr) => {
                    while rows - i >= $R {
                        // SAFETY: rows, columns and depth stay inside what the caller vouches for.
                        unsafe {
                            let sums = (sums.as_mut_ptr().add(i * n), n, n);
                            let at = i as isize * a_row + k as isize * a_step;
                            let a = (a.offset(at), a_row, a_step);
                            let next = if i == 0 { next } else { &[] };
                            strips::<T, V, F, $R, { $N }>(sums, a, b, (terms, next));
                        }
                        i += $R;
                    }
                };
            }
            // Enough chains of sums to keep the multipliers busy: of several vectors of a row, or
            // of several rows.
            if n * size_of::<T>() < size_of::<[V; N]>() {
                groups!(8, 1);
            }
            groups!(4, N);
            groups!(2, N);
            groups!(1, N);
        }
        for (i, sums) in sums.chunks_exact(n).enumerate() {
            // SAFETY: as above.
            unsafe {
                let c = c.offset(i as isize * c_row).add(start);
                if fresh {
                    c.copy_from_nonoverlapping(sums.as_ptr(), n);
                    continue;
                }
                for (j, &s) in sums.iter().enumerate() {
                    *c.add(j) = (*c.add(j)).plus(s);
                }
            }
        }
    }
}

/// The products of one row with `n` columns that are contiguous along `k`, given by their addresses:
/// some columns at a time, over all of `k`. `store` takes the first of them, their sums over a block of
/// `k`, and whether that is the first block; it adds the others.
///
/// # Safety
/// There are `depth` elements of the row, `step` apart, and of each column.
pub unsafe fn row<T: Element>(
    kernel: Row<T>,
    (n, depth): (usize, usize),
    (a, step): (*const T, isize),
    column: impl Fn(usize) -> *const T,
    mut store: impl FnMut(usize, &[T], bool),
) {
    for j in (0..n).step_by(ROW) {
        let count = ROW.min(n - j);
        // Columns that stick out repeat the last one.
        let columns: [*const T; ROW] = std::array::from_fn(|u| column(j + u.min(count - 1)));
        for k in (0..depth).step_by(BLOCK) {
            let columns = columns.map(|x| x.wrapping_add(k));
            let a = a.wrapping_offset(k as isize * step);
            // SAFETY: by contract.
            let sums = unsafe { kernel(BLOCK.min(depth - k), a, step, &columns) };
            store(j, &sums[..count], k == 0);
        }
    }
}

/// One row times one column, see [`Dot`](super::kernel::Dot).
///
/// # Safety
/// As there.
#[inline(always)]
pub unsafe fn dot<T: Element, const F: bool>(n: usize, a: *const T, b: *const T) -> T {
    // Several blocks at once, because in a single chain each addition would wait for the one
    // before.
    const SIDE: usize = 8;
    let blocks = n / BLOCK;
    let mut total = T::default();
    let (mut block, mut fresh) = (0, true);
    while block < n.div_ceil(BLOCK) {
        let side = if block + SIDE <= blocks { SIDE } else { 1 };
        let first = block * BLOCK;
        let mut s = [T::default(); SIDE];
        // SAFETY: the caller vouches for `n` elements of both.
        unsafe {
            if side == SIDE {
                for k in first..first + BLOCK {
                    for (q, s) in s.iter_mut().enumerate() {
                        *s = s.fma::<F>(*a.add(k + q * BLOCK), *b.add(k + q * BLOCK));
                    }
                }
            } else {
                for k in first..n.min(first + BLOCK) {
                    s[0] = s[0].fma::<F>(*a.add(k), *b.add(k));
                }
            }
        }
        for s in &s[..side] {
            total = if fresh { *s } else { total.plus(*s) };
            fresh = false;
        }
        block += side;
    }
    total
}
