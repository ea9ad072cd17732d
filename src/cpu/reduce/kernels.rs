//! The inner loops of reductions.
//!
//! Promises: the order in which numbers are combined is a function of counts alone, so the same
//! numbers give the same bits on every instruction set.

use crate::cpu::element::{Element, Number};
use crate::multiversion;

use super::combine::{Combine, Pairwise, Sum};

/// Elements of a row that make one item of the row's tree.
pub const BLOCK: usize = 1024;
/// Columns that stay in registers.
pub const STRETCH: usize = 64;
/// Element `i` of a block is combined into lane `i % LANES`, and the lanes by halves at the end.
pub const LANES: usize = 64;

multiversion! {
    /// Reduces each of `rows` rows of `n` elements, `row_stride` apart, to `out[row]`.
    ///
    /// # Safety
    /// All rows can be read, and `rows` elements at `out` written.
    #[expect(dead_code, reason = "the versions are asked for by their names")]
    pub unsafe fn fold_rows[T, U, F](x: *const T, row_stride: isize, rows: usize, n: usize, out: *mut U)
    where [T: Element, U: Element<Number = T::Number>, F: Combine<T::Number>] {
        for row in 0..rows {
            // SAFETY: by contract; behind a row there are those that follow.
            unsafe {
                let after = behind(row_stride, rows - 1 - row, n);
                let x = x.wrapping_offset(row as isize * row_stride);
                *out.add(row) = U::narrow(fold_row::<T, F>(x, (n, after), |x| x));
            }
        }
    }

    /// The sum of `(x + shift)²` over a row, in the order of [`fold_rows`].
    ///
    /// # Safety
    /// `n` elements can be read.
    pub unsafe fn fold_squares[T](x: *const T, n: usize, shift: T) -> T
    where [T: Number] {
        // SAFETY: by contract.
        unsafe {
            fold_row::<T, Sum>(x, (n, 0), |x| square(x, shift))
        }
    }

    /// The sum of the products of the elements of two rows, in the order of [`fold_rows`], for each
    /// of `rows` pairs of rows of `n` elements.
    ///
    /// # Safety
    /// All rows can be read, one behind the other, and `rows` elements at `out` written.
    #[expect(dead_code, reason = "the versions are asked for once, not at each call")]
    pub unsafe fn fold_products[T](x: [*const u8; 2], rows: usize, n: usize, out: *mut u8)
    where [T: Number] {
        for row in 0..rows {
            // SAFETY: by contract.
            unsafe {
                let [a, b] = x.map(|x| x.cast::<T>().add(row * n));
                let mut tree = Pairwise::new();
                for start in (0..n).step_by(BLOCK) {
                    let part = BLOCK.min(n - start);
                    tree.push::<Sum>(products_block(a.add(start), b.add(start), part));
                }
                *out.cast::<T>().add(row) = tree.finish::<Sum>();
            }
        }
    }

    /// The sum of the squares of the elements of a row, less the row's number, in the order of
    /// [`fold_rows`], for each of `rows` rows of `n` elements.
    ///
    /// # Safety
    /// All rows can be read, one behind the other, and a number for each, and `rows` elements at
    /// `out` written.
    #[expect(dead_code, reason = "the versions are asked for once, not at each call")]
    pub unsafe fn fold_distances[T](x: [*const u8; 2], rows: usize, n: usize, out: *mut u8)
    where [T: Number + std::ops::Neg<Output = T>] {
        let [x, from] = x.map(|x| x.cast::<T>());
        for row in 0..rows {
            // SAFETY: by contract.
            unsafe {
                let shift = -*from.add(row);
                let sizes = (n, (rows - 1 - row) * n);
                *out.cast::<T>().add(row) =
                    fold_row::<T, Sum>(x.add(row * n), sizes, |x| square(x, shift));
            }
        }
    }

    /// Combines, for each of `n` neighbouring columns, the elements at `offsets` into `acc`, in
    /// order. `fresh`: `acc` is not initialised yet.
    ///
    /// # Safety
    /// `n` elements can be read at each offset from `x`, and `n` numbers written at `acc`, which
    /// overlaps none of them.
    #[expect(dead_code, reason = "the versions are asked for by their names")]
    pub unsafe fn fold_columns[T, F](x: *const T, offsets: &[isize], n: usize, acc: *mut T::Number, fresh: bool)
    where [T: Element, F: Combine<T::Number>] {
        // SAFETY: every stretch lies within the `n` columns.
        unsafe {
            let mut at = 0;
            macro_rules! stretches {
                ($($W:expr),*) => { $(
                    while n - at >= $W {
                        fold_stretch::<T, F, { $W }>(x.wrapping_add(at), offsets, acc.add(at), fresh);
                        at += $W;
                    }
                )* };
            }
            stretches!(STRETCH, 16, 4, 1);
        }
    }

    /// Combines, for each of `n` columns, `stride` apart, the elements at `offsets` into `acc`, in
    /// order.
    ///
    /// # Safety
    /// As for [`fold_columns`].
    #[expect(dead_code, reason = "the versions are asked for by their names")]
    pub unsafe fn fold_apart[T, F](x: *const T, stride: isize, offsets: &[isize], n: usize, acc: *mut T::Number)
    where [T: Element, F: Combine<T::Number>] {
        // SAFETY: by contract.
        unsafe {
            if stride.unsigned_abs() > 4 {
                // Few columns at a time, so that their cache lines do not evict each other.
                return fold_strided::<T, F, 8>(x, stride, offsets, n, acc);
            }
            for at in (0..n).step_by(STRETCH) {
                let x = x.wrapping_offset(at as isize * stride);
                fold_gathered::<T, F>(x, stride, offsets, STRETCH.min(n - at), acc.add(at));
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

/// [`fold_rows`](fn@fold_rows) for the machine.
///
/// # Safety
/// As there.
#[inline]
pub unsafe fn reduce_rows<T: Element, U: Element<Number = T::Number>, F: Combine<T::Number>>(
    x: *const T,
    row_stride: isize,
    rows: usize,
    n: usize,
    out: *mut U,
) {
    let fold = match F::IS_RARE {
        true => fold_rows::base::<T, U, F>(),
        false => fold_rows::select::<T, U, F>(),
    };
    // SAFETY: as the caller's.
    unsafe { fold(x, row_stride, rows, n, out) }
}

/// [`fold_columns`](fn@fold_columns) for the machine.
///
/// # Safety
/// As there.
#[inline]
pub unsafe fn reduce_columns<T: Element, F: Combine<T::Number>>(
    x: *const T,
    offsets: &[isize],
    n: usize,
    acc: *mut T::Number,
    fresh: bool,
) {
    let fold = match F::IS_RARE {
        true => fold_columns::base::<T, F>(),
        false => fold_columns::select::<T, F>(),
    };
    // SAFETY: as the caller's.
    unsafe { fold(x, offsets, n, acc, fresh) }
}

/// [`fold_apart`](fn@fold_apart) for the machine.
///
/// # Safety
/// As there.
#[inline]
pub unsafe fn reduce_apart<T: Element, F: Combine<T::Number>>(
    x: *const T,
    stride: isize,
    offsets: &[isize],
    n: usize,
    acc: *mut T::Number,
) {
    let fold = match F::IS_RARE {
        true => fold_apart::base::<T, F>(),
        false => fold_apart::select::<T, F>(),
    };
    // SAFETY: as the caller's.
    unsafe { fold(x, stride, offsets, n, acc) }
}

/// The elements that lie behind a row of `n`, of which `rows` follow.
#[inline(always)]
pub fn behind(row_stride: isize, rows: usize, n: usize) -> usize {
    if row_stride == n as isize { rows * n } else { 0 }
}

/// `(x + shift)²`
#[inline(always)]
pub fn square<T: Number>(x: T, shift: T) -> T {
    let x = x.add(shift);
    x.mul(x)
}

/// Reduces a row of `n` elements, behind which there are `after` more.
#[inline(always)]
unsafe fn fold_row<T: Element, F: Combine<T::Number>>(
    x: *const T,
    (n, after): (usize, usize),
    of: impl Fn(T::Number) -> T::Number + Copy,
) -> T::Number {
    // SAFETY: the caller vouches for these elements.
    unsafe {
        if n <= BLOCK {
            return fold_block::<T, F>(x, (n, after), of);
        }
        let mut tree = Pairwise::new();
        for start in (0..n).step_by(BLOCK) {
            let part = BLOCK.min(n - start);
            let sizes = (part, n - start - part + after);
            tree.push::<F>(fold_block::<T, F>(x.add(start), sizes, of));
        }
        tree.finish::<F>()
    }
}

/// Reduces one block of a row, of each element what `of` makes of it. Where there are elements behind
/// the block, what is left over after whole lines is read as one, and these take no part.
///
/// # Safety
/// `n` elements, and `after` more behind them, can be read.
#[inline(always)]
pub unsafe fn fold_block<T: Element, F: Combine<T::Number>>(
    x: *const T,
    (n, after): (usize, usize),
    of: impl Fn(T::Number) -> T::Number,
) -> T::Number {
    let mut lanes = [F::NEUTRAL; LANES];
    let whole = n / LANES * LANES;
    let lines = (0..whole).step_by(LANES).map(|at| x.wrapping_add(at));
    let (rest, mut last) = (n - whole, [F::NEUTRAL; LANES]);
    // SAFETY: the rest of the block, and elements behind it as far as there are such.
    unsafe {
        let from = x.add(whole);
        if rest > 0 && rest + after >= LANES {
            let line: [T; LANES] = read(from);
            for (i, last) in last.iter_mut().enumerate() {
                // As narrow as most elements, so that vectors of them are compared.
                *last = if (i as u32) < rest as u32 { of(line[i].widen()) } else { F::NEUTRAL };
            }
        } else {
            for (i, last) in last.iter_mut().enumerate().take(rest) {
                *last = of((*from.add(i)).widen());
            }
        }
    }
    let last = (rest > 0).then_some(&last);
    // SAFETY: `at + LANES <= n`.
    match unsafe { join_lines::<T, F, LANES>(&mut lanes, lines, last, &of, true) } {
        true => halve(&mut lanes, F::pick),
        false => halve(&mut lanes, F::join),
    }
    lanes[0]
}

/// The sum of the products of one block of two rows, in the order of [`fold_block`].
///
/// # Safety
/// `n` elements of both can be read.
#[inline(always)]
unsafe fn products_block<T: Number>(a: *const T, b: *const T, n: usize) -> T {
    let mut lanes = [T::NOTHING; LANES];
    let whole = n / LANES * LANES;
    // SAFETY: by contract.
    unsafe {
        for at in (0..whole).step_by(LANES) {
            let (a, b): ([T; LANES], [T; LANES]) = (read(a.add(at)), read(b.add(at)));
            for i in 0..LANES {
                lanes[i] = lanes[i].add(a[i].mul(b[i]));
            }
        }
        for i in whole..n {
            let lane = &mut lanes[i - whole];
            *lane = lane.add((*a.add(i)).mul(*b.add(i)));
        }
    }
    halve(&mut lanes, |a: T, b: T| a.add(b));
    lanes[0]
}

/// Combines the lanes into the first, by halves.
#[inline(always)]
fn halve<A: Copy>(lanes: &mut [A; LANES], join: impl Fn(A, A) -> A) {
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            lanes[i] = join(lanes[i], lanes[i + width]);
        }
        width /= 2;
    }
}

/// Combines lines of `W` elements, of each what `of` makes of it, into lanes, in order, and a last
/// line of numbers.
///
/// To look for NaN at every comparison would take twice the time. So where numbers are chosen, they
/// are added up besides, several lanes into one: a sum that is a number has no NaN among its terms.
/// One that is not may have met infinities of both signs too; then the lines are joined again. Lanes
/// that hold numbers already take part, neutral ones do not. Says whether numbers were chosen so, and
/// none of the lanes is NaN.
///
/// # Safety
/// The lines can be read.
#[inline(always)]
unsafe fn join_lines<T: Element, F: Combine<T::Number>, const W: usize>(
    lanes: &mut [T::Number; W],
    lines: impl Iterator<Item = *const T> + Clone,
    last: Option<&[T::Number; W]>,
    of: &impl Fn(T::Number) -> T::Number,
    are_neutral: bool,
) -> bool {
    const SUMS: usize = STRETCH / 2;
    // SAFETY: the caller vouches for the lines.
    unsafe {
        if F::PICKS && W == 2 * SUMS {
            let mut found = *lanes;
            let mut sums = [T::Number::ZERO; SUMS];
            if !are_neutral {
                sums = std::array::from_fn(|i| lanes[i].add(lanes[i + SUMS]));
            }
            for line in lines.clone() {
                let line: [T; W] = read(line);
                for i in 0..SUMS {
                    let (a, b) = (of(line[i].widen()), of(line[i + SUMS].widen()));
                    found[i] = F::pick(found[i], a);
                    found[i + SUMS] = F::pick(found[i + SUMS], b);
                    sums[i] = sums[i].add(a.add(b));
                }
            }
            if let Some(last) = last {
                for i in 0..SUMS {
                    let (a, b) = (last[i], last[i + SUMS]);
                    found[i] = F::pick(found[i], a);
                    found[i + SUMS] = F::pick(found[i + SUMS], b);
                    sums[i] = sums[i].add(a.add(b));
                }
            }
            let mut width = SUMS;
            while width > 1 {
                width /= 2;
                for i in 0..width {
                    sums[i] = sums[i].add(sums[i + width]);
                }
            }
            if !sums[0].is_nan() {
                *lanes = found;
                return true;
            }
        }
        for line in lines {
            let line: [T; W] = read(line);
            for i in 0..W {
                lanes[i] = F::join(lanes[i], of(line[i].widen()));
            }
        }
        if let Some(last) = last {
            for i in 0..W {
                lanes[i] = F::join(lanes[i], last[i]);
            }
        }
        false
    }
}

/// Combines `W` neighbouring columns, which stay in registers.
#[inline(always)]
unsafe fn fold_stretch<T: Element, F: Combine<T::Number>, const W: usize>(
    x: *const T,
    offsets: &[isize],
    acc: *mut T::Number,
    fresh: bool,
) {
    // SAFETY: the caller vouches for `W` elements at each offset and numbers at `acc`.
    unsafe {
        let (mut lanes, mut rest) = ([F::NEUTRAL; W], offsets);
        if let (true, [first, others @ ..]) = (fresh, offsets) {
            let row: [T; W] = read(x.wrapping_offset(*first));
            for i in 0..W {
                lanes[i] = row[i].widen();
            }
            rest = others;
        } else {
            lanes = read(acc);
        }
        let lines = rest.iter().map(|&offset| x.wrapping_offset(offset));
        join_lines::<T, F, W>(&mut lanes, lines, None, &|x| x, false);
        acc.cast::<[T::Number; W]>().write_unaligned(lanes);
    }
}

/// Combines at most [`STRETCH`] columns, gathered row by row.
#[inline(always)]
unsafe fn fold_gathered<T: Element, F: Combine<T::Number>>(
    x: *const T,
    stride: isize,
    offsets: &[isize],
    n: usize,
    acc: *mut T::Number,
) {
    let [first, rest @ ..] = offsets else { return };
    // SAFETY: the caller vouches for `n` elements at each offset and numbers at `acc`.
    unsafe {
        let row = gather(x.wrapping_offset(*first), stride, n);
        let mut lanes = [F::NEUTRAL; STRETCH];
        for i in 0..STRETCH {
            lanes[i] = row[i].widen();
        }
        for &offset in rest {
            let row = gather(x.wrapping_offset(offset), stride, n);
            for i in 0..STRETCH {
                lanes[i] = F::join(lanes[i], row[i].widen());
            }
        }
        acc.copy_from_nonoverlapping(lanes.as_ptr(), n);
    }
}

/// `n` elements, `stride` apart, followed by zeros.
///
/// # Safety
/// The elements can be read, and are not more than [`STRETCH`].
// Indexed, because a loop over an iterator takes twice as long.
#[allow(clippy::needless_range_loop)]
#[inline(always)]
pub unsafe fn gather<T: Element>(x: *const T, stride: isize, n: usize) -> [T; STRETCH] {
    let mut row = [T::narrow(T::Number::ZERO); STRETCH];
    // SAFETY: the caller vouches for the elements.
    unsafe {
        match stride {
            1 => row.as_mut_ptr().copy_from_nonoverlapping(x, n),
            2 => {
                for i in 0..n {
                    row[i] = *x.wrapping_add(2 * i);
                }
            }
            _ => {
                for i in 0..n {
                    row[i] = *x.wrapping_offset(i as isize * stride);
                }
            }
        }
    }
    row
}

/// Combines columns that are far apart, `W` at a time.
#[inline(always)]
unsafe fn fold_strided<T: Element, F: Combine<T::Number>, const W: usize>(
    x: *const T,
    stride: isize,
    offsets: &[isize],
    n: usize,
    acc: *mut T::Number,
) {
    let [first, rest @ ..] = offsets else { return };
    let mut at = 0;
    // SAFETY: the caller vouches for `n` columns at each offset and numbers at `acc`.
    unsafe {
        while at + W <= n {
            let x = x.wrapping_offset(at as isize * stride);
            let mut lanes = [F::NEUTRAL; W];
            for (i, lane) in lanes.iter_mut().enumerate() {
                *lane = (*x.wrapping_offset(*first + i as isize * stride)).widen();
            }
            for &offset in rest {
                for (i, lane) in lanes.iter_mut().enumerate() {
                    let item = *x.wrapping_offset(offset + i as isize * stride);
                    *lane = F::join(*lane, item.widen());
                }
            }
            acc.add(at).cast::<[T::Number; W]>().write_unaligned(lanes);
            at += W;
        }
        for at in at..n {
            let x = x.wrapping_offset(at as isize * stride);
            let mut all = (*x.wrapping_offset(*first)).widen();
            for &offset in rest {
                all = F::join(all, (*x.wrapping_offset(offset)).widen());
            }
            *acc.add(at) = all;
        }
    }
}

#[inline(always)]
unsafe fn read<A: Copy, const W: usize>(x: *const A) -> [A; W] {
    // SAFETY: the caller vouches for `W` elements.
    unsafe { x.cast::<[A; W]>().read_unaligned() }
}
