//! Sums of rows that come in pieces: lanes that are added to, and their sum.

use super::kernels::{LANES, halve, read};
use crate::cpu::element::Number;
use crate::multiversion;

multiversion! {
    /// Adds `n` numbers to [`LANES`] lanes: the first to the first lane, as [`fold_rows`](super::kernels::fold_rows) does.
    ///
    /// # Safety
    /// The numbers can be read, and the lanes written, which lie apart from them.
    pub unsafe fn add_to_lanes[T](x: *const T, n: usize, lanes: *mut T)
    where [T: Number] {
        // SAFETY: by contract.
        unsafe {
            let (whole, mut sums): (usize, [T; LANES]) = (n / LANES * LANES, read(lanes));
            for at in (0..whole).step_by(LANES) {
                let line: [T; LANES] = read(x.add(at));
                for i in 0..LANES {
                    sums[i] = sums[i].add(line[i]);
                }
            }
            lanes.cast::<[T; LANES]>().write_unaligned(sums);
            for i in 0..n - whole {
                *lanes.add(i) = (*lanes.add(i)).add(*x.add(whole + i));
            }
        }
    }

    /// The sum of a block from its lanes, which are those of the next block afterwards: without a term.
    ///
    /// # Safety
    /// The lanes can be read and written.
    pub unsafe fn sum_of_lanes[T](lanes: *mut T) -> T
    where [T: Number] {
        // SAFETY: by contract.
        unsafe {
            let found: [T; LANES] = read(lanes);
            lanes.cast::<[T; LANES]>().write_unaligned([T::NOTHING; LANES]);
            halve(found, |a: T, b: T| a.add(b))
        }
    }
}
