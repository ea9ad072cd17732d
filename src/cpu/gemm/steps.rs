//! What a tile does at each step of `k` beside its multiplications: where it reads, and what it
//! fetches.

use super::kernel::prefetch;

/// Where a tile reads the steps of `k` of an operand.
pub trait Source<T>: Copy {
    /// The most rows of a tile for which several steps are written out: beyond, their addresses take
    /// more registers than there are.
    const ROWS: usize = 0;

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

/// Steps that are `STEP` elements apart.
pub struct Each<T, const STEP: usize>(pub *const T);

impl<T, const STEP: usize> Clone for Each<T, STEP> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T, const STEP: usize> Copy for Each<T, STEP> {}

impl<T, const STEP: usize> Source<T> for Each<T, STEP> {
    // Neighbours along `k` are rows of which each has an address; else rows are neighbours.
    const ROWS: usize = if STEP == 1 { 6 } else { usize::MAX };

    #[inline(always)]
    unsafe fn next(&mut self) -> *const T {
        let row = self.0;
        self.0 = row.wrapping_add(STEP);
        row
    }
}

/// An address and the offset of each step.
impl<T> Source<T> for (*const T, *const isize) {
    const ROWS: usize = usize::MAX;

    #[inline(always)]
    unsafe fn next(&mut self) -> *const T {
        // SAFETY: by contract.
        let at = unsafe { *self.1 };
        self.1 = self.1.wrapping_add(1);
        self.0.wrapping_offset(at)
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
