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
                let after = (rows - 1 - row) * n;
                for start in (0..n).step_by(BLOCK) {
                    let part = BLOCK.min(n - start);
                    let sizes = (part, n - start - part + after);
                    tree.push::<Sum>(products_block(a.add(start), b.add(start), sizes));
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
    // One call for rows of one block and of many: its body is long, and there are hundreds of these.
    let (mut tree, mut start) = (None, 0);
    loop {
        let part = BLOCK.min(n - start);
        let sizes = (part, n - start - part + after);
        // SAFETY: the caller vouches for these elements.
        let item = unsafe { fold_block::<T, F>(x.add(start), sizes, of) };
        if part == n {
            return item;
        }
        let tree = tree.get_or_insert_with(Pairwise::new);
        tree.push::<F>(item);
        start += part;
        if start == n {
            return tree.finish::<F>();
        }
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
    let (whole, rest) = (n / LANES * LANES, n % LANES);
    let lines = (0..whole).step_by(LANES);
    let line = |at: usize| {
        // SAFETY: `at + LANES <= n`.
        let line: [T; LANES] = unsafe { read(x.add(at)) };
        widened(&line, &of)
    };
    let last = match rest {
        0 => [F::NEUTRAL; LANES],
        // SAFETY: by contract.
        _ => unsafe { leftover::<T>(x.add(whole), (rest, after), F::NEUTRAL, &of) },
    };
    if F::PICKS {
        let mut found = [F::NEUTRAL; LANES];
        let mut sums = [T::Number::ZERO; LANES / 2];
        lines.clone().for_each(|at| pick_line::<T::Number, F>(&mut found, &mut sums, &line(at)));
        if rest > 0 {
            pick_line::<T::Number, F>(&mut found, &mut sums, &last);
        }
        if !has_nan(&sums) {
            return halve(found, F::pick);
        }
    }
    let mut lanes = [F::NEUTRAL; LANES];
    for at in lines {
        let line = line(at);
        for i in 0..LANES {
            lanes[i] = F::join(lanes[i], line[i]);
        }
    }
    if rest > 0 {
        for i in 0..LANES {
            lanes[i] = F::join(lanes[i], last[i]);
        }
    }
    halve(lanes, F::join)
}

/// The `rest` elements left over after whole lines, of each what `of` makes of it, and neutral ones
/// behind. An array that is written element by element is in memory, so there are two: where all
/// can be read at once they stay in registers.
///
/// # Safety
/// `rest` elements, at most a line, and `after` more behind them, can be read.
#[inline(always)]
unsafe fn leftover<T: Element>(
    from: *const T,
    (rest, after): (usize, usize),
    neutral: T::Number,
    of: &impl Fn(T::Number) -> T::Number,
) -> [T::Number; LANES] {
    // SAFETY: by contract.
    unsafe {
        if rest + after >= LANES {
            let line: [T; LANES] = read(from);
            // As narrow as most elements, so that vectors of them are compared.
            let mut last = widened(&line, of);
            for (i, last) in last.iter_mut().enumerate() {
                *last = if (i as u32) < rest as u32 { *last } else { neutral };
            }
            return last;
        }
        let mut copied = [neutral; LANES];
        for (i, to) in copied.iter_mut().enumerate().take(rest) {
            *to = of((*from.add(i)).widen());
        }
        copied
    }
}

/// The sum of the products of one block of two rows, in the order of [`fold_block`], and with what is
/// left over likewise.
///
/// # Safety
/// `n` elements of both, and `after` more behind them, can be read.
#[inline(always)]
unsafe fn products_block<T: Number>(a: *const T, b: *const T, (n, after): (usize, usize)) -> T {
    let mut lanes = [T::NOTHING; LANES];
    let (whole, rest) = (n / LANES * LANES, n % LANES);
    // SAFETY: by contract.
    unsafe {
        for at in (0..whole).step_by(LANES) {
            let (a, b): ([T; LANES], [T; LANES]) = (read(a.add(at)), read(b.add(at)));
            for i in 0..LANES {
                lanes[i] = lanes[i].add(a[i].mul(b[i]));
            }
        }
        if rest > 0 {
            let last = |x: *const T| leftover::<T>(x.add(whole), (rest, after), T::NOTHING, &|x| x);
            let (a, b) = (last(a), last(b));
            for i in 0..LANES {
                let product = if (i as u32) < rest as u32 { a[i].mul(b[i]) } else { T::NOTHING };
                lanes[i] = lanes[i].add(product);
            }
        }
    }
    halve(lanes, |a: T, b: T| a.add(b))
}

/// Combines the lanes into one, by halves. Each half is an array of its own, which stays in registers.
#[inline(always)]
pub(super) fn halve<A: Copy>(lanes: [A; LANES], join: impl Fn(A, A) -> A) -> A {
    macro_rules! halves {
        ($lanes:ident: $($width:literal)*) => { $(
            let $lanes: [A; $width] = std::array::from_fn(|i| join($lanes[i], $lanes[i + $width]));
        )* };
    }
    const { assert!(LANES == 64) };
    halves!(lanes: 32 16 8 4 2 1);
    lanes[0]
}

/// Chooses among a line of numbers and those that were found, and adds the line to `sums`, several
/// lanes into one.
///
/// To look for NaN at every comparison would take twice the time. So where numbers are chosen, they
/// are added up besides: a sum that is a number has no NaN among its terms. One that is not may have
/// met infinities of both signs too; then the lines are joined again.
#[inline(always)]
fn pick_line<A: Number, F: Combine<A>>(
    found: &mut [A; LANES],
    sums: &mut [A; LANES / 2],
    line: &[A; LANES],
) {
    for i in 0..LANES / 2 {
        let (a, b) = (line[i], line[i + LANES / 2]);
        found[i] = F::pick(found[i], a);
        found[i + LANES / 2] = F::pick(found[i + LANES / 2], b);
        sums[i] = sums[i].add(a.add(b));
    }
}

/// What `of` makes of each of some elements. (A function of arrays like `map` would be compiled for
/// the lowest instruction set where `of` is for a higher one.)
#[inline(always)]
fn widened<T: Element, const W: usize>(
    line: &[T; W],
    of: &impl Fn(T::Number) -> T::Number,
) -> [T::Number; W] {
    let mut numbers = [T::Number::ZERO; W];
    for i in 0..W {
        numbers[i] = of(line[i].widen());
    }
    numbers
}

/// Whether some are NaN.
#[inline(always)]
fn has_nan<A: Number>(numbers: &[A; LANES / 2]) -> bool {
    numbers.iter().fold(false, |is_found, x| is_found | x.is_nan())
}

/// Combines lines of `W` elements into lanes, in order. Numbers are chosen as [`pick_line`] says.
///
/// # Safety
/// The lines can be read.
#[inline(always)]
unsafe fn join_lines<T: Element, F: Combine<T::Number>, const W: usize>(
    lanes: &mut [T::Number; W],
    lines: impl Iterator<Item = *const T> + Clone,
) {
    // SAFETY: the caller vouches for the lines.
    unsafe {
        if F::PICKS && W == LANES {
            let mut found = std::array::from_fn(|i| lanes[i]);
            let mut sums = std::array::from_fn(|i| lanes[i].add(lanes[i + LANES / 2]));
            for line in lines.clone() {
                let line: [T; LANES] = read(line);
                pick_line::<T::Number, F>(&mut found, &mut sums, &widened(&line, &|x| x));
            }
            if !has_nan(&sums) {
                lanes.copy_from_slice(&found);
                return;
            }
        }
        for line in lines {
            let line: [T; W] = read(line);
            for i in 0..W {
                lanes[i] = F::join(lanes[i], line[i].widen());
            }
        }
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
        join_lines::<T, F, W>(&mut lanes, lines);
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
pub(super) unsafe fn read<A: Copy, const W: usize>(x: *const A) -> [A; W] {
    // SAFETY: the caller vouches for `W` elements.
    unsafe { x.cast::<[A; W]>().read_unaligned() }
}
