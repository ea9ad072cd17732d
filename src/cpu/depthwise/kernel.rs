//! The inner loops, compiled for each instruction set.

use std::ops::Range;

use crate::cpu::gemm::kernel::{Element, fuses};
use crate::multiversion;

/// The rows of a plane of results, as distances from the first element of what they read and write.
pub struct Rows {
    /// Where each goes, and its lines
    pub rows: Vec<(isize, Range<usize>)>,
    /// Rows of positions, each with a row of weights: what the first result's first tap reads
    pub lines: Vec<(isize, isize)>,
    /// Results of each row of which only these taps read something
    pub edges: Vec<Edge>,
    /// The others
    pub whole: Range<usize>,
    /// The distance of two results
    pub apart: usize,
    /// The distance of the positions of two results
    pub step: isize,
    /// The number of taps of a line, the distances of their positions, and of their weights
    pub taps: usize,
    pub tap: isize,
    pub weight: isize,
}

/// Results of a plane, from positions and weights.
pub type Plane<T> = unsafe fn(*const T, *const T, *mut T, &Rows);

/// The kernel of a plane for a distance of positions.
pub fn plane<T: Element>(step: isize) -> Plane<T> {
    match (fuses(), step) {
        (true, 1) => planes::select::<T, true, 1>(),
        (true, 2) => planes::select::<T, true, 2>(),
        (true, _) => planes::select::<T, true, 0>(),
        (false, _) => planes::select::<T, false, 0>(),
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
    x: *const T,
    w: *const T,
    out: *mut T,
    from: usize,
    lines: &[(isize, isize)],
    rows: &Rows,
) {
    let mut sums = [[T::default(); W]; V];
    let x = x.wrapping_offset(from as isize * rows.step);
    // SAFETY: the caller vouches for all taps of these results.
    unsafe {
        for &(at, weight) in lines {
            let (mut x, mut w) = (x.wrapping_offset(at), w.wrapping_offset(weight));
            for _ in 0..rows.taps {
                let weight = *w;
                for (v, sums) in sums.iter_mut().enumerate() {
                    let x = x.wrapping_offset((v * W) as isize * rows.step);
                    let row = load::<T, S, W>(x, rows.step);
                    for (s, &x) in sums.iter_mut().zip(&row) {
                        *s = s.fma::<F>(weight, x);
                    }
                }
                (x, w) = (x.wrapping_offset(rows.tap), w.wrapping_offset(rows.weight));
            }
        }
        let out = out.add(from * rows.apart);
        if rows.apart == 1 {
            out.cast::<[[T; W]; V]>().write_unaligned(sums);
        } else {
            for (i, s) in sums.into_iter().flatten().enumerate() {
                *out.add(i * rows.apart) = s;
            }
        }
    }
}

multiversion! {
    /// [`Plane`].
    ///
    /// # Safety
    /// All positions, weights and results are there.
    #[expect(dead_code, reason = "the versions are asked for once, not at each call")]
    unsafe fn planes[T; const F: bool, const S: usize](
        x: *const T,
        w: *const T,
        out: *mut T,
        rows: &Rows,
    )
    where [T: Element]
    {
        let (start, n) = (rows.whole.start, rows.whole.len());
        for (to, lines) in &rows.rows {
            let (out, lines) = (out.wrapping_offset(*to), &rows.lines[lines.clone()]);
            for (q, taps) in &rows.edges {
                let x = x.wrapping_offset(*q as isize * rows.step);
                let mut sum = T::default();
                for &(at, weight) in lines {
                    for t in taps.start as isize..taps.end as isize {
                        // SAFETY: by contract.
                        let (x, w) = unsafe {
                            (*x.wrapping_offset(at + t * rows.tap), *w.offset(weight + t * rows.weight))
                        };
                        sum = sum.fma::<F>(w, x);
                    }
                }
                // SAFETY: by contract.
                unsafe { *out.add(q * rows.apart) = sum };
            }
            // The last piece ends with the row: results are computed twice rather than one by one.
            macro_rules! all {
                ($V:literal, $W:literal) => {{
                    let mut at = 0;
                    while at < n {
                        let from = start + at.min(n - $V * $W);
                        // SAFETY: by contract.
                        unsafe { piece::<T, F, S, $V, $W>(x, w, out, from, lines, rows) };
                        at += $V * $W;
                    }
                }};
            }
            match n {
                64.. if n % 64 == 0 || n % 64 > 48 => all!(4, 16),
                32.. if n % 32 == 0 || n % 32 > 16 => all!(2, 16),
                16.. => all!(1, 16),
                8.. => all!(1, 8),
                4.. => all!(1, 4),
                _ => all!(1, 1),
            }
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

/// A result at an edge: its number, and the taps that read something there.
pub type Edge = (usize, Range<usize>);

multiversion! {
    /// Adds what results at edges bring for taps `first..first + K`; `x` is the position of the first
    /// result's first of them.
    ///
    /// # Safety
    /// All elements and positions are there.
    #[expect(dead_code, reason = "the versions are asked for once, not at each call")]
    unsafe fn correlate_edges[T; const F: bool, const K: usize](
        sums: &mut Partial<T, K>,
        g: *const T,
        x: *const T,
        edges: &[Edge],
        first: usize,
        tap: isize,
        step: isize,
    )
    where [T: Element]
    {
        for (q, inside) in edges {
            for (k, s) in sums.rest.iter_mut().enumerate() {
                if inside.contains(&(first + k)) {
                    let at = *q as isize * step + k as isize * tap;
                    // SAFETY: by contract.
                    *s = unsafe { s.fma::<F>(*g.add(*q), *x.wrapping_offset(at)) };
                }
            }
        }
    }
}

/// [`correlate_edges`] for this machine.
pub type Edges<T, const K: usize> =
    unsafe fn(&mut Partial<T, K>, *const T, *const T, &[Edge], usize, isize, isize);

/// The kernel of results at edges.
pub fn edges<T: Element, const K: usize>() -> Edges<T, K> {
    match fuses() {
        true => correlate_edges::select::<T, true, K>(),
        false => correlate_edges::select::<T, false, K>(),
    }
}
