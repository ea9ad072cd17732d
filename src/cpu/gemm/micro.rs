//! The inner loop of a tile of a product.

// A kernel's arguments are the registers it starts with.
#![allow(clippy::too_many_arguments)]

use super::kernel::prefetch;
use super::steps::{FEW, Fetch, Near, Packed, Rows, Source, Strided};
use super::vector::Vector;

/// Steps of `k` that are written out one after another.
const SIDE: usize = 4;

/// `c[i][j] = (c[i][j] +) Σ_k a[i][k] b[k][j]` over a tile of `M` rows and `N` vectors.
///
/// # Safety
/// As [`Micro`](super::kernel::Micro).
#[inline(always)]
pub unsafe fn micro<
    T: Copy,
    V: Vector<T>,
    A: Rows<T>,
    B: Source<T>,
    F: Fetch,
    const M: usize,
    const N: usize,
>(
    mut depth: usize,
    mut a: A,
    mut b: B,
    c: *mut T,
    c_row: isize,
    fresh: bool,
    mut fetch: F,
) {
    // The tile of `c` is fetched while the sums are computed.
    for i in 0..M as isize {
        prefetch(c.wrapping_offset(i * c_row));
        prefetch(
            c.wrapping_offset(i * c_row + (size_of::<[V; N]>() / size_of::<T>()) as isize - 1),
        );
    }
    let mut sum = [[V::zero(); N]; M];
    macro_rules! step {
        () => {
            // SAFETY: the caller vouches for `M × depth` of `a` and `depth` rows of `b`.
            let (here, row) = unsafe { (a.next(), b.next().cast::<[V; N]>().read_unaligned()) };
            for (i, sum) in sum.iter_mut().enumerate() {
                // SAFETY: as above.
                let x = unsafe { *a.at(here, i) };
                for (sum, row) in sum.iter_mut().zip(&row) {
                    sum.add_product(x, row);
                }
            }
        };
    }
    // The addresses of a step take as many instructions as half of its multiplications. Where they
    // are constants within several steps, nearly none: that counts most where two threads share a
    // core. What is over comes first, so that `k` ascends.
    if A::ARE_CONSTANT {
        while !depth.is_multiple_of(SIDE) {
            fetch.next();
            step!();
            depth -= 1;
        }
        for _ in 0..depth / SIDE {
            fetch.skip::<SIDE>();
            for _ in 0..SIDE {
                step!();
            }
        }
    } else {
        for _ in 0..depth {
            fetch.next();
            step!();
        }
    }
    for (i, sum) in sum.into_iter().enumerate() {
        // SAFETY: the caller vouches for `M` rows of `c`.
        let c = unsafe { c.offset(i as isize * c_row) }.cast::<V>();
        for (v, mut sum) in sum.into_iter().enumerate() {
            // SAFETY: as above.
            unsafe {
                if !fresh {
                    sum.add_to(&c.add(v).read_unaligned());
                }
                c.add(v).write_unaligned(sum);
            }
        }
    }
}

/// [`micro`] for an `a` with two strides: from row to row, and along `k`.
///
/// # Safety
/// As [`micro`].
#[inline(always)]
pub unsafe fn strided<T: Copy, V: Vector<T>, const M: usize, const N: usize>(
    depth: usize,
    a: *const T,
    (a_row, a_step): (isize, isize),
    b: (*const T, isize),
    c: *mut T,
    c_row: isize,
    fresh: bool,
    fetch: (*const T, isize),
) {
    // SAFETY: the caller's promises are passed on.
    unsafe {
        if M <= FEW && a_step == 1 {
            micro::<T, V, _, _, _, M, N>(depth, Near::new(a, a_row), b, c, c_row, fresh, fetch);
        } else if (a_row, a_step) == (1, M as isize) {
            micro::<T, V, _, _, _, M, N>(depth, Packed::<T, M>(a), b, c, c_row, fresh, fetch);
        } else {
            let a = Strided { at: a, row: a_row, step: a_step };
            micro::<T, V, _, _, _, M, N>(depth, a, b, c, c_row, fresh, fetch);
        }
    }
}
