//! What a tile does at each step of `k` beside its multiplications: where it reads, and what it
//! fetches.

use super::kernel::prefetch;

/// Where a tile reads the steps of `k` of an operand.
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

/// What a tile fetches while it is computed: spread over its steps, because many fetches at once wait
/// for each other.
pub trait Fetch: Copy {
    /// What the next step fetches.
    fn next(&mut self);
}

/// Nothing.
impl Fetch for () {
    #[inline(always)]
    fn next(&mut self) {}
}

/// An address and the distance to the next.
impl<T> Fetch for (*const T, isize) {
    #[inline(always)]
    fn next(&mut self) {
        prefetch(self.0);
        self.0 = self.0.wrapping_offset(self.1);
    }
}
