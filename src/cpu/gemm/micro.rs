//! The inner loop of a tile of a product.

// A kernel's arguments are the registers it starts with.
#![allow(clippy::too_many_arguments)]

use super::kernel::prefetch;
use super::steps::{Apart, Fetch, Packed, Results, Rows, Source, Strided};
use super::vector::Vector;

/// Steps of `k` that are written out one after another.
const SIDE: usize = 4;
/// Steps of `k` before the last for which the tile of `c` is fetched: a multiple of [`SIDE`].
const LATE: usize = 64;

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
    C: Results<T>,
    F: Fetch,
    const M: usize,
    const N: usize,
>(
    mut depth: usize,
    mut a: A,
    mut b: B,
    c: C,
    fresh: bool,
    mut fetch: F,
) {
    const { assert!(M <= 12 && LATE.is_multiple_of(SIDE)) };
    // The tile of `c` is fetched while the sums are computed, and not long before it is needed: where
    // its rows share a set of the cache, they and the panel of `b` push each other out.
    let fetch_results = || {
        for i in 0..M {
            let row = c.row(i);
            prefetch(row);
            prefetch(row.wrapping_add(size_of::<[V; N]>() / size_of::<T>() - 1));
        }
    };
    let mut sum = [[V::zero(); N]; M];
    macro_rules! step {
        ($k:literal) => {
            // SAFETY: the caller vouches for `M × depth` of `a` and `depth` rows of `b`.
            let row = unsafe { b.next().cast::<[V; N]>().read_unaligned() };
            step!($k, row, 0 1 2 3 4 5 6 7 8 9 10 11);
        };
        ($k:literal, $row:ident, $($i:literal)*) => { $(
            if $i < M {
                // SAFETY: as above.
                let x = unsafe { a.one::<V, $i, $k>() };
                for (sum, row) in sum[$i].iter_mut().zip(&$row) {
                    sum.add_product(x, row);
                }
            }
        )* };
    }
    // The addresses of a step take as many instructions as half of its multiplications. Where they
    // are constants within several steps, nearly none: that counts most where two threads share a
    // core. What is over comes first, so that `k` ascends.
    if A::ARE_CONSTANT {
        while !depth.is_multiple_of(SIDE) {
            fetch.next();
            step!(0);
            a.pass(1);
            depth -= 1;
        }
        // One loop in two parts, not two loops, which would be as much code again.
        let mut part = depth.saturating_sub(LATE);
        loop {
            for _ in 0..part / SIDE {
                fetch.skip::<SIDE>();
                step!(0);
                step!(1);
                step!(2);
                step!(3);
                a.pass(SIDE);
            }
            depth -= part;
            if depth == 0 {
                break;
            }
            fetch_results();
            part = depth;
        }
    } else {
        fetch_results();
        for _ in 0..depth {
            fetch.next();
            step!(0);
            a.pass(1);
        }
    }
    for (i, sum) in sum.into_iter().enumerate() {
        let c = c.row(i).cast::<V>();
        for (v, mut sum) in sum.into_iter().enumerate() {
            // SAFETY: the caller vouches for `M` rows of `c`.
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
    let c = (c, c_row);
    // SAFETY: the caller's promises are passed on.
    unsafe {
        if M <= V::APART && a_step == 1 {
            micro::<T, V, _, _, _, _, M, N>(depth, Apart::new(a, a_row), b, c, fresh, fetch);
        } else if (a_row, a_step) == (1, M as isize) {
            micro::<T, V, _, _, _, _, M, N>(depth, Packed::<T, M>(a), b, c, fresh, fetch);
        } else {
            let a = Strided { at: a, row: a_row, step: a_step };
            micro::<T, V, _, _, _, _, M, N>(depth, a, b, c, fresh, fetch);
        }
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::super::vector::{F32x8, F32x16, F64x4, F64x8};
    use super::*;

    /// Rows at any distance, read as the processor forms addresses and as the compiler does, over
    /// one vector of columns: both tiles.
    macro_rules! tiles {
        ($name:ident, $feature:literal, $t:ty, $vector:ty, $lanes:literal) => {
            #[target_feature(enable = $feature)]
            unsafe fn $name<const M: usize>(
                depth: usize,
                (first, row): (*const $t, isize),
                b: *const $t,
            ) -> [[[$t; $lanes]; M]; 2] {
                let mut tiles = [[[0.0; $lanes]; M]; 2];
                let [apart, strided] = &mut tiles;
                let b = (b, $lanes);
                // SAFETY: by contract.
                unsafe {
                    let c = |tile: &mut [[$t; $lanes]; M]| (tile.as_mut_ptr().cast(), $lanes);
                    let a = Apart::new(first, row);
                    micro::<$t, $vector, _, _, _, _, M, 1>(depth, a, b, c(apart), true, ());
                    let a = Strided { at: first, row, step: 1 };
                    micro::<$t, $vector, _, _, _, _, M, 1>(depth, a, b, c(strided), true, ());
                }
                tiles
            }
        };
    }
    tiles!(of_f32x8, "avx2,fma", f32, F32x8, 8);
    tiles!(of_f64x4, "avx2,fma", f64, F64x4, 4);
    tiles!(of_f32x16, "avx512f", f32, F32x16, 16);
    tiles!(of_f64x8, "avx512f", f64, F64x8, 8);

    #[test]
    fn an_instruction_reads_what_its_address_says() {
        const PITCH: usize = 21;
        macro_rules! check {
            ($name:ident, $t:ty, $lanes:literal, $($m:literal)*) => { $(
                // Small whole numbers, so that every sum is exact.
                let a: Vec<$t> = (0..PITCH * 12).map(|i| (i * 7 % 31) as $t).collect();
                let b: Vec<$t> = (0..$lanes * 9).map(|i| (i * 5 % 23) as $t).collect();
                for depth in 1..=9 {
                    for (first, row) in [(0, PITCH as isize), (PITCH * 11, -(PITCH as isize)), (3, 1)] {
                        // SAFETY: twelve rows of nine steps lie in `a`, as many in `b`; the
                        // processor has the instructions.
                        let [apart, strided] =
                            unsafe { $name::<$m>(depth, (a.as_ptr().add(first), row), b.as_ptr()) };
                        assert_eq!(apart, strided, "{} rows, {depth} steps, {row} apart", $m);
                        for (i, line) in apart.iter().enumerate() {
                            let from = first as isize + i as isize * row;
                            for (j, &sum) in line.iter().enumerate() {
                                let term = |k: usize| a[from as usize + k] * b[k * $lanes + j];
                                assert_eq!(sum, (0..depth).map(term).sum::<$t>());
                            }
                        }
                    }
                }
            )* };
        }
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            check!(of_f32x8, f32, 8, 1 2 5 6 7 12);
            check!(of_f64x4, f64, 4, 1 2 5 6 7 12);
        }
        if is_x86_feature_detected!("avx512f") {
            check!(of_f32x16, f32, 16, 1 2 5 6 7 11 12);
            check!(of_f64x8, f64, 8, 1 2 5 6 7 11 12);
        }
    }
}
