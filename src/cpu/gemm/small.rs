//! Products whose columns take a few registers, or whose sums have a few terms: sums stay in
//! registers until they are written, and both operands are read in place.

// A kernel's arguments are the registers it starts with.
#![allow(clippy::too_many_arguments)]

use super::kernel::{BLOCK, Element};
use super::vector::{Lanes, Vector};

/// Rows whose sums are made together: a vector of `b` is multiplied with an element of each.
pub const TOGETHER: usize = 4;

/// The most vectors of columns that share these elements.
const SIDE: usize = 3;

/// Writes the sums of `R` rows, for `N` vectors of columns at these places.
///
/// # Safety
/// As [`small`].
#[inline(always)]
unsafe fn piece<T: Element, V: Vector<T>, const R: usize, const N: usize>(
    depth: usize,
    places: [usize; N],
    (a, (a_row, a_step)): (*const T, (isize, isize)),
    (b, b_step): (*const T, isize),
    (c, c_row): (*mut T, isize),
) {
    let mut total = [[V::zero(); N]; R];
    for start in (0..depth).step_by(BLOCK) {
        let mut sum = [[V::zero(); N]; R];
        for k in start..depth.min(start + BLOCK) {
            let k = k as isize;
            // SAFETY: by contract.
            unsafe {
                let b = b.offset(k * b_step);
                let row = places.map(|at| b.add(at).cast::<V>().read_unaligned());
                for (r, sum) in sum.iter_mut().enumerate() {
                    let x = V::one(*a.offset(r as isize * a_row + k * a_step));
                    sum.iter_mut().zip(&row).for_each(|(sum, row)| sum.add_product(x, row));
                }
            }
        }
        if start > 0 {
            let pairs = sum.iter_mut().flatten().zip(total.iter().flatten());
            pairs.for_each(|(sum, total)| sum.add_to(total));
        }
        total = sum;
    }
    for (r, sums) in total.into_iter().enumerate() {
        for (sum, at) in sums.into_iter().zip(places) {
            // SAFETY: by contract.
            unsafe { c.offset(r as isize * c_row).add(at).cast::<V>().write_unaligned(sum) };
        }
    }
}

/// The sums of `R` rows for all columns, in vectors `V` or in shorter ones where these are too long.
/// The last vector ends with the columns; what it has in common with the one before it is the same.
///
/// # Safety
/// As [`small`].
#[inline(always)]
unsafe fn rows<T: Element, V: Vector<T>, const F: bool, const R: usize>(
    (columns, depth): (usize, usize),
    a: (*const T, (isize, isize)),
    b: (*const T, isize),
    c: (*mut T, isize),
) {
    let mut at = 0;
    macro_rules! vectors {
        ($V:ty: $($N:expr),*) => {
            let lanes = size_of::<$V>() / size_of::<T>();
            if columns >= lanes {
                $(
                    while columns.saturating_sub(at).div_ceil(lanes) >= $N {
                        let places =
                            std::array::from_fn(|i| (at + i * lanes).min(columns - lanes));
                        // SAFETY: these columns are there.
                        unsafe { piece::<T, $V, R, { $N }>(depth, places, a, b, c) };
                        at += $N * lanes;
                    }
                )*
                return;
            }
        };
    }
    vectors!(V: SIDE, 2, 1);
    // Each of these is code for every type, so what is narrow is made one vector at a time.
    vectors!(Lanes<T, 8, F>: 1);
    vectors!(Lanes<T, 4, F>: 1);
    vectors!(Lanes<T, 1, F>: 1);
}

/// See [`Small`](super::kernel::Small).
///
/// # Safety
/// As there.
#[inline(always)]
pub unsafe fn small<T: Element, V: Vector<T>, const F: bool>(
    [m, n, depth]: [usize; 3],
    a: *const T,
    strides: (isize, isize),
    b: *const T,
    b_step: isize,
    c: *mut T,
    c_row: isize,
) {
    let mut i = 0;
    macro_rules! rows {
        ($R:expr) => {
            while m - i >= $R {
                // SAFETY: rows of the operand and of the result.
                unsafe {
                    let a = (a.offset(i as isize * strides.0), strides);
                    let c = (c.offset(i as isize * c_row), c_row);
                    rows::<T, V, F, { $R }>((n, depth), a, (b, b_step), c);
                }
                i += $R;
            }
        };
    }
    // Integers, and the lowest level, are seldom multiplied, and not worth the code.
    if V::IS_NAMED {
        rows!(TOGETHER);
    }
    rows!(1);
}
