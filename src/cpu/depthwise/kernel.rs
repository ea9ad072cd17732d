//! The inner loops, compiled for each instruction set.

use std::ops::Range;

use crate::cpu::gemm::kernel::{Element, fuses};
use crate::multiversion;

/// Results of a row. Arguments: where they go, and how far apart; their count; for each row that
/// they read the position of the first result's tap and its weights; by how much to shift these
/// positions; the number of taps, the distances of their positions, and of their weights; the
/// distance of the positions of two results.
pub type Row<T> = unsafe fn(*mut T, usize, usize, &[Line<T>], isize, (usize, isize, isize), isize);

/// A row of positions, and its weights.
pub type Line<T> = (*const T, *const T);

/// The kernel of a row for a distance of positions.
pub fn row<T: Element>(step: isize) -> Row<T> {
    match (fuses(), step) {
        (true, 1) => rows::select::<T, true, 1>(),
        (true, 2) => rows::select::<T, true, 2>(),
        (true, _) => rows::select::<T, true, 0>(),
        (false, _) => rows::select::<T, false, 0>(),
    }
}

/// The kernel of sums over positions for a distance of positions and a number of taps.
pub fn sums<T: Element, const K: usize>(step: isize) -> Sums<T, K> {
    match (fuses(), step) {
        (true, 1) => correlate::select::<T, true, 1, K>(),
        (true, 2) => correlate::select::<T, true, 2, K>(),
        (true, _) => correlate::select::<T, true, 0, K>(),
        (false, _) => correlate::select::<T, false, 0, K>(),
    }
}

/// One result, some of whose taps may read nothing.
///
/// # Safety
/// The taps of all lines can be read.
pub unsafe fn single<T: Element>(
    lines: &[Line<T>],
    shift: isize,
    taps: Range<usize>,
    tap: isize,
    weight_step: isize,
) -> T {
    let fused = fuses();
    let mut sum = T::default();
    for &(x, w) in lines {
        for t in taps.clone() {
            let t = t as isize;
            // SAFETY: by contract.
            let (x, w) =
                unsafe { (*x.wrapping_offset(shift + t * tap), *w.offset(t * weight_step)) };
            sum = if fused { sum.fma::<true>(w, x) } else { sum.fma::<false>(w, x) };
        }
    }
    sum
}

/// `W` elements, `S` apart (`step` apart where `S` is 0).
///
/// # Safety
/// They can be read.
#[inline(always)]
unsafe fn load<T: Element, const S: usize, const W: usize>(x: *const T, step: isize) -> [T; W] {
    // SAFETY: by contract.
    unsafe {
        match S {
            1 => x.cast::<[T; W]>().read_unaligned(),
            2 if W > 1 => {
                // The second half ends with the last element, beyond which nothing may be read.
                let low = x.cast::<[T; W]>().read_unaligned();
                let high = x.add(W - 1).cast::<[T; W]>().read_unaligned();
                std::array::from_fn(|i| if 2 * i < W { low[2 * i] } else { high[2 * i + 1 - W] })
            }
            _ => std::array::from_fn(|i| *x.offset(i as isize * step)),
        }
    }
}

/// `V·W` results from number `from` on.
#[inline(always)]
unsafe fn piece<T: Element, const F: bool, const S: usize, const V: usize, const W: usize>(
    out: *mut T,
    apart: usize,
    from: usize,
    lines: &[Line<T>],
    shift: isize,
    (taps, tap, weight_step): (usize, isize, isize),
    step: isize,
) {
    let mut sums = [[T::default(); W]; V];
    let shift = shift + from as isize * step;
    // SAFETY: the caller vouches for all taps of these results.
    unsafe {
        for &(x, w) in lines {
            let (mut x, mut w) = (x.wrapping_offset(shift), w);
            for _ in 0..taps {
                let weight = *w;
                for (v, sums) in sums.iter_mut().enumerate() {
                    let row = load::<T, S, W>(x.wrapping_offset((v * W) as isize * step), step);
                    for (s, &x) in sums.iter_mut().zip(&row) {
                        *s = s.fma::<F>(weight, x);
                    }
                }
                (x, w) = (x.wrapping_offset(tap), w.wrapping_offset(weight_step));
            }
        }
        let out = out.add(from * apart);
        if apart == 1 {
            out.cast::<[[T; W]; V]>().write_unaligned(sums);
        } else {
            for (i, s) in sums.into_iter().flatten().enumerate() {
                *out.add(i * apart) = s;
            }
        }
    }
}

multiversion! {
    /// [`Row`].
    ///
    /// # Safety
    /// All positions, weights and results are there.
    #[expect(dead_code, reason = "the versions are asked for once, not at each call")]
    unsafe fn rows[T; const F: bool, const S: usize](
        out: *mut T,
        apart: usize,
        n: usize,
        lines: &[Line<T>],
        shift: isize,
        taps: (usize, isize, isize),
        step: isize,
    )
    where [T: Element]
    {
        // The last piece ends with the row: results are computed twice rather than one by one.
        macro_rules! all {
            ($V:literal, $W:literal) => {{
                let mut at = 0;
                while at < n {
                    let from = at.min(n - $V * $W);
                    // SAFETY: by contract.
                    unsafe { piece::<T, F, S, $V, $W>(out, apart, from, lines, shift, taps, step) };
                    at += $V * $W;
                }
            }};
        }
        match n {
            32.. if n % 32 == 0 || n % 32 > 16 => all!(2, 16),
            16.. => all!(1, 16),
            8.. => all!(1, 8),
            4.. => all!(1, 4),
            _ => all!(1, 1),
        }
    }
}

/// Partial sums over the positions of rows, for `K` neighbouring taps: lanes, each of which takes
/// every sixteenth position, then every fourth of what is left, then the rest.
#[derive(Clone, Copy)]
pub struct Partial<T, const K: usize> {
    pub wide: [[T; 16]; K],
    pub narrow: [[T; 4]; K],
    pub rest: [T; K],
}

impl<T: Element, const K: usize> Partial<T, K> {
    /// Sums of nothing.
    pub fn new() -> Partial<T, K> {
        let zero = T::default();
        Partial { wide: [[zero; 16]; K], narrow: [[zero; 4]; K], rest: [zero; K] }
    }

    /// The sum for one of the taps.
    pub fn total(&self, k: usize) -> T {
        let (mut wide, mut narrow) = (self.wide[k], self.narrow[k]);
        for half in [8, 4, 2, 1] {
            (0..half).for_each(|i| wide[i] = wide[i].plus(wide[i + half]));
        }
        for half in [2, 1] {
            (0..half).for_each(|i| narrow[i] = narrow[i].plus(narrow[i + half]));
        }
        wide[0].plus(narrow[0]).plus(self.rest[k])
    }
}

/// Adds the products of a row of `n` elements with the positions that each tap reads. Arguments:
/// the sums; the row and the position of its first element's first tap; `n`; the distance of the
/// taps' positions; the distance of the positions of two elements.
pub type Sums<T, const K: usize> =
    unsafe fn(&mut Partial<T, K>, *const T, *const T, usize, isize, isize);

multiversion! {
    /// [`Sums`].
    ///
    /// # Safety
    /// All elements and positions are there.
    #[expect(dead_code, reason = "the versions are asked for once, not at each call")]
    unsafe fn correlate[T; const F: bool, const S: usize, const K: usize](
        sums: &mut Partial<T, K>,
        g: *const T,
        x: *const T,
        n: usize,
        tap: isize,
        step: isize,
    )
    where [T: Element]
    {
        let Partial { mut wide, mut narrow, mut rest } = *sums;
        let mut at = 0;
        macro_rules! all {
            ($W:literal, $sums:ident) => {
                while at + $W <= n {
                    // SAFETY: by contract.
                    unsafe {
                        let row = g.add(at).cast::<[T; $W]>().read_unaligned();
                        let x = x.wrapping_offset(at as isize * step);
                        for (k, sums) in $sums.iter_mut().enumerate() {
                            let x = x.wrapping_offset(k as isize * tap);
                            let x = load::<T, S, $W>(x, step);
                            for ((s, &a), &b) in sums.iter_mut().zip(&row).zip(&x) {
                                *s = s.fma::<F>(a, b);
                            }
                        }
                    }
                    at += $W;
                }
            };
        }
        all!(16, wide);
        all!(4, narrow);
        while at < n {
            for (k, s) in rest.iter_mut().enumerate() {
                // SAFETY: by contract.
                unsafe {
                    let x = x.wrapping_offset(at as isize * step + k as isize * tap);
                    *s = s.fma::<F>(*g.add(at), *x);
                }
            }
            at += 1;
        }
        *sums = Partial { wide, narrow, rest };
    }
}
