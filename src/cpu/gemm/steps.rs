//! What a tile does at each step of `k` beside its multiplications: where it reads, and what it
//! fetches.

use super::kernel::prefetch;
use super::vector::{Place, Vector};

/// Where a tile reads the steps of `k` of its columns.
pub trait Source<T>: Copy {
    /// The next step.
    ///
    /// # Safety
    /// There is one.
    unsafe fn next(&mut self) -> *const T;
}

/// A step and the distance to the next.
impl<T> Source<T> for (*const T, isize) {
    #[inline(always)]
    unsafe fn next(&mut self) -> *const T {
        let row = self.0;
        self.0 = row.wrapping_offset(self.1);
        row
    }
}

/// An address and the offset of each step.
impl<T> Source<T> for (*const T, *const isize) {
    #[inline(always)]
    unsafe fn next(&mut self) -> *const T {
        // SAFETY: by contract.
        let at = unsafe { *self.1 };
        self.1 = self.1.wrapping_add(1);
        self.0.wrapping_offset(at)
    }
}

/// Where a tile reads the steps of `k` of its rows.
pub trait Rows<T>: Copy {
    /// Whether addresses within several steps differ by constants.
    const ARE_CONSTANT: bool;

    /// The element of row `I` that is `K` steps away.
    ///
    /// # Safety
    /// There is one.
    unsafe fn one<V: Vector<T>, const I: usize, const K: usize>(&self) -> V::One;

    /// Goes on by some steps.
    fn pass(&mut self, steps: usize);
}

/// Rows at any distance, and steps at any.
#[derive(Clone, Copy)]
pub struct Strided<T> {
    pub at: *const T,
    pub row: isize,
    pub step: isize,
}

impl<T: Copy> Rows<T> for Strided<T> {
    const ARE_CONSTANT: bool = false;

    #[inline(always)]
    unsafe fn one<V: Vector<T>, const I: usize, const K: usize>(&self) -> V::One {
        let at = self.at.wrapping_offset(I as isize * self.row + K as isize * self.step);
        // SAFETY: by contract.
        V::one(unsafe { *at })
    }

    #[inline(always)]
    fn pass(&mut self, steps: usize) {
        self.at = self.at.wrapping_offset(steps as isize * self.step);
    }
}

/// `M` rows of one element, and the steps one after another.
#[derive(Clone, Copy)]
pub struct Packed<T, const M: usize>(pub *const T);

impl<T: Copy, const M: usize> Rows<T> for Packed<T, M> {
    const ARE_CONSTANT: bool = true;

    #[inline(always)]
    unsafe fn one<V: Vector<T>, const I: usize, const K: usize>(&self) -> V::One {
        // SAFETY: by contract.
        V::one(unsafe { *self.0.add(K * M + I) })
    }

    #[inline(always)]
    fn pass(&mut self, steps: usize) {
        self.0 = self.0.wrapping_add(steps * M);
    }
}

/// Rows at an address, and the offset of each step.
#[derive(Clone, Copy)]
pub struct Listed<T>(pub *const T, pub *const isize);

impl<T: Copy> Rows<T> for Listed<T> {
    const ARE_CONSTANT: bool = true;

    #[inline(always)]
    unsafe fn one<V: Vector<T>, const I: usize, const K: usize>(&self) -> V::One {
        // SAFETY: by contract.
        V::one(unsafe { *self.0.offset(*self.1.add(K)).add(I) })
    }

    #[inline(always)]
    fn pass(&mut self, steps: usize) {
        self.1 = self.1.wrapping_add(steps);
    }
}

/// A distance times odd numbers. An address is the sum of a register, another one times 1, 2, 4 or 8,
/// and a number, so these give those of all multiples up to twelve.
#[derive(Clone, Copy)]
struct Distances {
    /// Bytes, times 1, 3, 5, 7, 9 and 11
    odd: [isize; 6],
}

impl Distances {
    /// Those of so many elements. A single row may be any distance from a next one that is not there,
    /// so multiples wrap.
    #[inline(always)]
    fn new<T>(elements: isize) -> Self {
        let bytes = elements.wrapping_mul(size_of::<T>() as isize);
        Distances { odd: std::array::from_fn(|i| (2 * i as isize + 1).wrapping_mul(bytes)) }
    }

    /// The odd part of `n` of them.
    #[inline(always)]
    fn of(&self, n: usize) -> isize {
        self.odd[n / power(n) / 2]
    }
}

/// The highest power of two that divides `n`, of which [`Distances::of`] gives the rest.
const fn power(n: usize) -> usize {
    if n == 0 { 1 } else { 1 << n.trailing_zeros() }
}

/// Rows at one distance, whose steps are neighbours.
#[derive(Clone, Copy)]
pub struct Apart<T> {
    at: *const T,
    distances: Distances,
}

impl<T> Apart<T> {
    /// Rows so many elements apart from the first.
    #[inline(always)]
    pub fn new(first: *const T, row: isize) -> Self {
        Apart { at: first, distances: Distances::new::<T>(row) }
    }
}

/// Row `I`, `K` steps away.
struct Step<const I: usize, const K: usize>;

impl<const I: usize, const K: usize> Place for Step<I, K> {
    const DISTANCES: usize = power(I);
    const ELEMENTS: usize = K;
}

impl<T: Copy> Rows<T> for Apart<T> {
    const ARE_CONSTANT: bool = true;

    #[inline(always)]
    unsafe fn one<V: Vector<T>, const I: usize, const K: usize>(&self) -> V::One {
        // SAFETY: by contract.
        unsafe {
            match I {
                0 => V::one(*self.at.add(K)),
                _ => V::one_at::<Step<I, K>>(self.at, self.distances.of(I)),
            }
        }
    }

    #[inline(always)]
    fn pass(&mut self, steps: usize) {
        self.at = self.at.wrapping_add(steps);
    }
}

/// Rows in lines of `C` neighbours, an address, and the offset of each step.
#[derive(Clone, Copy)]
pub struct Lined<T, const C: usize> {
    listed: Listed<T>,
    distances: Distances,
}

impl<T, const C: usize> Lined<T, C> {
    /// Lines so many elements apart.
    #[inline(always)]
    pub fn new(listed: Listed<T>, line: isize) -> Self {
        Lined { listed, distances: Distances::new::<T>(line) }
    }
}

/// Row `I` of lines of `C`.
struct Cell<const I: usize, const C: usize>;

impl<const I: usize, const C: usize> Place for Cell<I, C> {
    const DISTANCES: usize = power(I / C);
    const ELEMENTS: usize = I % C;
}

impl<T: Copy, const C: usize> Rows<T> for Lined<T, C> {
    const ARE_CONSTANT: bool = true;

    #[inline(always)]
    unsafe fn one<V: Vector<T>, const I: usize, const K: usize>(&self) -> V::One {
        // SAFETY: by contract.
        unsafe {
            match I / C {
                0 => self.listed.one::<V, I, K>(),
                line => {
                    let Listed(at, steps) = self.listed;
                    let here = at.wrapping_offset(*steps.add(K));
                    V::one_at::<Cell<I, C>>(here, self.distances.of(line))
                }
            }
        }
    }

    #[inline(always)]
    fn pass(&mut self, steps: usize) {
        self.listed.pass(steps);
    }
}

/// Where a tile has its results.
pub trait Results<T>: Copy {
    /// Those of a row.
    fn row(&self, row: usize) -> *mut T;
}

/// The first row, and the distance to the next.
impl<T> Results<T> for (*mut T, isize) {
    #[inline(always)]
    fn row(&self, row: usize) -> *mut T {
        self.0.wrapping_offset(row as isize * self.1)
    }
}

/// Rows in lines of `C`: the first, and the distances to the next of a line and to the next line.
#[derive(Clone, Copy)]
pub struct InLines<T, const C: usize>(pub *mut T, pub [isize; 2]);

impl<T: Copy, const C: usize> Results<T> for InLines<T, C> {
    #[inline(always)]
    fn row(&self, row: usize) -> *mut T {
        let InLines(first, [next, line]) = *self;
        first.wrapping_offset((row / C) as isize * line + (row % C) as isize * next)
    }
}

/// What a tile fetches while it is computed: spread over its steps, because many fetches at once wait
/// for each other.
pub trait Fetch: Copy {
    /// What the next step fetches.
    fn next(&mut self);
    /// What the next `N` steps fetch.
    fn skip<const N: usize>(&mut self);
}

/// Nothing.
impl Fetch for () {
    #[inline(always)]
    fn next(&mut self) {}
    #[inline(always)]
    fn skip<const N: usize>(&mut self) {}
}

/// An address and the distance to the next.
impl<T> Fetch for (*const T, isize) {
    #[inline(always)]
    fn next(&mut self) {
        prefetch(self.0);
        self.0 = self.0.wrapping_offset(self.1);
    }

    #[inline(always)]
    fn skip<const N: usize>(&mut self) {
        let (at, each) = *self;
        prefetch(at);
        // Most often all are in one line.
        if each.unsigned_abs() * N * size_of::<T>() > 64 {
            (1..N as isize).for_each(|i| prefetch(at.wrapping_offset(i * each)));
        }
        self.0 = at.wrapping_offset(N as isize * each);
    }
}
