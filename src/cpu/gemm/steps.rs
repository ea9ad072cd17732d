//! What a tile does at each step of `k` beside its multiplications: where it reads, and what it
//! fetches.

use super::kernel::prefetch;

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
    /// What is known of a step
    type Step: Copy;

    /// The next step.
    ///
    /// # Safety
    /// There is one.
    unsafe fn next(&mut self) -> Self::Step;

    /// Where a row of a step is.
    fn at(&self, step: Self::Step, row: usize) -> *const T;
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
    type Step = *const T;

    #[inline(always)]
    unsafe fn next(&mut self) -> *const T {
        let here = self.at;
        self.at = here.wrapping_offset(self.step);
        here
    }

    #[inline(always)]
    fn at(&self, here: *const T, row: usize) -> *const T {
        here.wrapping_offset(row as isize * self.row)
    }
}

/// `M` rows of one element, and the steps one after another.
#[derive(Clone, Copy)]
pub struct Packed<T, const M: usize>(pub *const T);

impl<T: Copy, const M: usize> Rows<T> for Packed<T, M> {
    const ARE_CONSTANT: bool = true;
    type Step = *const T;

    #[inline(always)]
    unsafe fn next(&mut self) -> *const T {
        let here = self.0;
        self.0 = here.wrapping_add(M);
        here
    }

    #[inline(always)]
    fn at(&self, here: *const T, row: usize) -> *const T {
        here.wrapping_add(row)
    }
}

/// Rows at an address, and the offset of each step.
#[derive(Clone, Copy)]
pub struct Listed<T>(pub *const T, pub *const isize);

impl<T: Copy> Rows<T> for Listed<T> {
    const ARE_CONSTANT: bool = true;
    type Step = *const T;

    #[inline(always)]
    unsafe fn next(&mut self) -> *const T {
        // SAFETY: by contract.
        let at = unsafe { *self.1 };
        self.1 = self.1.wrapping_add(1);
        self.0.wrapping_offset(at)
    }

    #[inline(always)]
    fn at(&self, here: *const T, row: usize) -> *const T {
        here.wrapping_add(row)
    }
}

/// The most rows of [`Near`]: with more, their addresses leave no registers, not even for sums.
pub const FEW: usize = 6;
/// Rows that share an address: what is between them is in instructions.
const SHARING: usize = 3;

/// A few rows at any distance, whose steps are neighbours.
#[derive(Clone, Copy)]
pub struct Near<T> {
    firsts: [*const T; FEW / SHARING],
    row: isize,
}

impl<T> Near<T> {
    /// Rows so far apart from the first.
    #[inline(always)]
    pub fn new(first: *const T, row: isize) -> Self {
        let at = |i: usize| first.wrapping_offset((i * SHARING) as isize * row);
        Near { firsts: std::array::from_fn(at), row }
    }
}

impl<T: Copy> Rows<T> for Near<T> {
    const ARE_CONSTANT: bool = true;
    type Step = [*const T; FEW / SHARING];

    #[inline(always)]
    unsafe fn next(&mut self) -> Self::Step {
        let here = self.firsts;
        self.firsts = here.map(|first| first.wrapping_add(1));
        here
    }

    #[inline(always)]
    fn at(&self, here: Self::Step, row: usize) -> *const T {
        here[row / SHARING].wrapping_offset((row % SHARING) as isize * self.row)
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
