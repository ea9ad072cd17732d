//! The inner loops, compiled for each instruction set.

use std::any::TypeId;
use std::ops::Range;

use crate::cpu::gemm::kernel::{BASE_FUSES, Element};
use crate::multiversion;
use crate::simd::isa;

/// Neighbouring results of a line.
pub struct Piece {
    /// Where the first one's first tap reads a patch, without the offsets of the taps
    pub at: usize,
    /// Where the first goes
    pub to: isize,
    /// How many are written one by one; none where all of a vector are written, of which those
    /// beyond the end of a line are written over by later pieces
    pub exact: usize,
}

/// Pieces of a plane of results. Arguments: the patch, the offset in it of what each tap reads, the
/// taps' weights, the first result, the distance of two, and the pieces.
pub type Pieces<T> = unsafe fn(*const T, &[isize], &[T], *mut T, isize, &[Piece]);

/// The widest pieces.
pub const WIDE: usize = 16;
/// Pieces that are computed together.
const TOGETHER: usize = 4;

/// The kernel of pieces in vectors of `width` elements: 4, 8 or [`WIDE`].
pub fn pieces<T: Element>(width: usize) -> Pieces<T> {
    fn of<T: Element, const W: usize>() -> Pieces<T> {
        vectors::above::<T, true, W>(isa()).unwrap_or_else(vectors::base::<T, BASE_FUSES, W>)
    }
    match width {
        4 => of::<T, 4>(),
        8 => of::<T, 8>(),
        _ => of::<T, WIDE>(),
    }
}

/// `P` pieces: one chain over the taps for each result.
///
/// # Safety
/// As for [`Pieces`].
#[inline(always)]
unsafe fn together<T: Element, const F: bool, const W: usize, const P: usize>(
    x: *const T,
    offsets: &[isize],
    weights: &[T],
    out: *mut T,
    apart: isize,
    pieces: &[Piece; P],
) {
    let mut sums = [[T::default(); W]; P];
    for (&offset, &weight) in offsets.iter().zip(weights) {
        let x = x.wrapping_offset(offset);
        for (sums, piece) in sums.iter_mut().zip(pieces) {
            // SAFETY: by contract.
            let row = unsafe { x.add(piece.at).cast::<[T; W]>().read_unaligned() };
            for (s, &x) in sums.iter_mut().zip(&row) {
                *s = s.fma::<F>(weight, x);
            }
        }
    }
    for (sums, piece) in sums.iter().zip(pieces) {
        let out = out.wrapping_offset(piece.to);
        // SAFETY: by contract.
        unsafe {
            match piece.exact {
                0 => out.cast::<[T; W]>().write_unaligned(*sums),
                n => {
                    for (i, &s) in sums[..n].iter().enumerate() {
                        *out.offset(i as isize * apart) = s;
                    }
                }
            }
        }
    }
}

multiversion! {
    /// [`Pieces`] of `W` elements.
    ///
    /// # Safety
    /// The patch has what the taps of whole pieces read, and `out` has what is written.
    #[expect(dead_code, reason = "the versions are asked for once, not at each call")]
    unsafe fn vectors[T; const F: bool, const W: usize](
        x: *const T,
        offsets: &[isize],
        weights: &[T],
        out: *mut T,
        apart: isize,
        pieces: &[Piece],
    )
    where [T: Element]
    {
        let (some, rest) = pieces.as_chunks::<TOGETHER>();
        // SAFETY: by contract.
        unsafe {
            for pieces in some {
                together::<T, F, W, TOGETHER>(x, offsets, weights, out, apart, pieces);
            }
            for piece in rest {
                let piece = std::array::from_ref(piece);
                together::<T, F, W, 1>(x, offsets, weights, out, apart, piece);
            }
        }
    }
}

/// The kernel of sums over positions for a distance of positions and a number of taps.
pub fn sums<T: Element, const K: usize>(step: isize) -> Sums<T, K> {
    // Gradients are floats; of other types there is the general form alone.
    let is_float = [TypeId::of::<f32>(), TypeId::of::<f64>()].contains(&TypeId::of::<T>());
    let above = match step {
        1 if is_float => correlate::above::<T, true, 1, K>(isa()),
        2 if is_float => correlate::above::<T, true, 2, K>(isa()),
        _ => correlate::above::<T, true, 0, K>(isa()),
    };
    above.unwrap_or_else(correlate::base::<T, BASE_FUSES, 0, K>)
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
    let above = correlate_edges::above::<T, true, K>(isa());
    above.unwrap_or_else(correlate_edges::base::<T, BASE_FUSES, K>)
}
