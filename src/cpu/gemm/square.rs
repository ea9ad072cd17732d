//! Matrices that are contiguous along `k`: squares of them are transposed in registers.

use std::ops::Range;

use super::kernel::{ROW, SQUARE};

/// The distance of prefetching, in elements. Rows are far apart, so the hardware prefetcher does
/// not follow all of them.
const AHEAD: usize = 64;

/// Adds the terms of some steps of `k` to the sums of [`v3::row`].
///
/// # Safety
/// Rows and `a` have these elements.
#[inline(always)]
unsafe fn rest(
    sums: &mut [f32; ROW],
    steps: Range<usize>,
    a: *const f32,
    step: isize,
    from: &[*const f32; ROW],
) {
    for k in steps {
        for (sum, row) in sums.iter_mut().zip(from) {
            // SAFETY: by contract.
            *sum = unsafe { (*a.offset(k as isize * step)).mul_add(*row.add(k), *sum) };
        }
    }
}

/// For AVX-512.
pub mod v4 {
    use std::arch::x86_64::*;

    use super::{AHEAD, SQUARE};

    /// Transposes 16 rows of `n` elements of 4 bytes, at least 16: element `k` of row `i` goes to
    /// `dst[k · width + i]`; see [`Transpose`](super::super::kernel::Transpose).
    ///
    /// # Safety
    /// By that contract; the processor has AVX-512.
    #[target_feature(enable = "avx512f")]
    pub unsafe fn transpose(dst: *mut i32, width: usize, from: &[*const i32; SQUARE], n: usize) {
        for k in (0..n).step_by(SQUARE) {
            // The last square is moved back so that it ends with the rows.
            let at = k.min(n - SQUARE);
            // SAFETY: `at + 16 <= n`.
            unsafe {
                for (k, column) in columns(from, at).into_iter().enumerate() {
                    _mm512_storeu_si512(dst.add((at + k) * width).cast(), column);
                }
            }
        }
    }

    /// The columns of the square whose first column is element `at` of the rows.
    #[target_feature(enable = "avx512f")]
    #[inline]
    unsafe fn columns(from: &[*const i32; SQUARE], at: usize) -> [__m512i; SQUARE] {
        let mut rows = [_mm512_setzero_si512(); SQUARE];
        for (row, from) in rows.iter_mut().zip(from) {
            _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(at + AHEAD).cast());
            // SAFETY: the caller vouches for 16 elements from `at` on.
            *row = unsafe { _mm512_loadu_si512(from.add(at).cast()) };
        }
        // In each 128-bit quarter, first pairs of rows are interleaved, then groups of four.
        // `fours[4 g + c]` holds column `4 q + c` of rows `4 g .. 4 g + 4` in quarter `q`.
        let mut fours = [_mm512_setzero_si512(); SQUARE];
        for (fours, r) in fours.chunks_exact_mut(4).zip(rows.chunks_exact(4)) {
            let low = [_mm512_unpacklo_epi32(r[0], r[1]), _mm512_unpacklo_epi32(r[2], r[3])];
            let high = [_mm512_unpackhi_epi32(r[0], r[1]), _mm512_unpackhi_epi32(r[2], r[3])];
            fours[0] = _mm512_unpacklo_epi64(low[0], low[1]);
            fours[1] = _mm512_unpackhi_epi64(low[0], low[1]);
            fours[2] = _mm512_unpacklo_epi64(high[0], high[1]);
            fours[3] = _mm512_unpackhi_epi64(high[0], high[1]);
        }
        // Then the quarters are transposed as a 4 × 4 matrix.
        let mut out = rows;
        for c in 0..4 {
            let (g0, g1, g2, g3) = (fours[c], fours[4 + c], fours[8 + c], fours[12 + c]);
            let even = [_mm512_shuffle_i32x4::<0x88>(g0, g1), _mm512_shuffle_i32x4::<0x88>(g2, g3)];
            let odd = [_mm512_shuffle_i32x4::<0xdd>(g0, g1), _mm512_shuffle_i32x4::<0xdd>(g2, g3)];
            out[c] = _mm512_shuffle_i32x4::<0x88>(even[0], even[1]);
            out[4 + c] = _mm512_shuffle_i32x4::<0x88>(odd[0], odd[1]);
            out[8 + c] = _mm512_shuffle_i32x4::<0xdd>(even[0], even[1]);
            out[12 + c] = _mm512_shuffle_i32x4::<0xdd>(odd[0], odd[1]);
        }
        out
    }
}

/// For AVX2.
pub mod v3 {
    use std::arch::x86_64::*;
    use std::ops::Range;

    use super::{AHEAD, ROW, SQUARE, rest};

    /// The side of the squares of one register.
    const SIDE: usize = 8;

    /// Transposes 16 rows of `n` elements of 4 bytes, at least 16: element `k` of row `i` goes to
    /// `dst[k · width + i]`; see [`Transpose`](super::super::kernel::Transpose).
    ///
    /// # Safety
    /// By that contract; the processor has AVX2.
    #[target_feature(enable = "avx2")]
    pub unsafe fn transpose(dst: *mut i32, width: usize, from: &[*const i32; SQUARE], n: usize) {
        for k in (0..n).step_by(SIDE) {
            // The last squares are moved back so that they end with the rows.
            let at = k.min(n - SIDE);
            let halves = from.as_chunks::<SIDE>().0.iter();
            for (half, from) in halves.enumerate().take(width.div_ceil(SIDE)) {
                // SAFETY: `at + 8 <= n`.
                unsafe {
                    for (k, column) in columns(from, at).into_iter().enumerate() {
                        let to = dst.add((at + k) * width + half * SIDE);
                        _mm256_storeu_si256(to.cast(), column);
                    }
                }
            }
        }
    }

    /// The sums `Σ_k a[k] from[i][k]` for 32 rows, each a chain with `k` ascending. Also for
    /// processors with wider registers: what it waits for is the cache.
    ///
    /// Four groups of eight rows find work for the multipliers while a sum waits for the one before.
    /// Rows often lie a page apart, so that one place of all of them has no room in the L1 cache; so
    /// each group is a line behind the one before it.
    ///
    /// # Safety
    /// Rows and `a` (of the given stride) have `n` elements; the processor has AVX2 and FMA.
    #[target_feature(enable = "avx2,fma")]
    pub unsafe fn row(
        n: usize,
        a: *const f32,
        step: isize,
        from: &[*const f32; ROW],
    ) -> [f32; ROW] {
        const GROUPS: usize = ROW / SIDE;
        let (groups, whole) = (from.as_chunks::<SIDE>().0, n / FOUR * FOUR);
        let (mut sums, mut sum) = ([0.0; ROW], [_mm256_setzero_ps(); GROUPS]);
        // SAFETY: by contract.
        unsafe {
            for time in 0..whole.div_ceil(SQUARE) + GROUPS - 1 {
                for (i, sum) in sum.iter_mut().enumerate() {
                    let Some(line) = time.checked_sub(i) else { continue };
                    let (at, end) = (line * SQUARE, whole.min((line + 1) * SQUARE));
                    if at < end {
                        *sum = along(*sum, (a, step), &groups[i], at..end);
                    }
                }
            }
            for (sum, to) in sum.into_iter().zip(sums.as_chunks_mut::<SIDE>().0) {
                _mm256_storeu_ps(to.as_mut_ptr(), sum);
            }
            rest(&mut sums, whole..n, a, step, from);
        }
        sums
    }

    /// Steps of `k` whose elements are transposed together.
    const FOUR: usize = 4;

    /// Adds some steps to the sums of eight rows, a multiple of [`FOUR`].
    ///
    /// # Safety
    /// As for [`row`].
    #[target_feature(enable = "avx2,fma")]
    #[inline]
    unsafe fn along(
        mut sum: __m256,
        (a, step): (*const f32, isize),
        from: &[*const f32; SIDE],
        steps: Range<usize>,
    ) -> __m256 {
        for from in from {
            _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(steps.start + 2 * AHEAD).cast());
        }
        for at in steps.step_by(FOUR) {
            let mut rows = [_mm256_setzero_si256(); FOUR];
            for (i, row) in rows.iter_mut().enumerate() {
                // A load that fills half of a register costs no shuffle, so rows `i` and `i + 4` share
                // one: then pairs and fours of rows come out in order.
                // SAFETY: by contract.
                let (low, high) = unsafe {
                    let half = from[i].add(at).cast();
                    (_mm_loadu_si128(half), _mm_loadu_si128(from[i + FOUR].add(at).cast()))
                };
                *row = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(low), high);
            }
            for (k, column) in fours(rows).into_iter().enumerate() {
                // SAFETY: by contract.
                let x = _mm256_set1_ps(unsafe { *a.offset((at + k) as isize * step) });
                sum = _mm256_fmadd_ps(x, _mm256_castsi256_ps(column), sum);
            }
        }
        sum
    }

    /// The columns of each half of four rows: pairs of rows are interleaved, then these.
    #[target_feature(enable = "avx2")]
    #[inline]
    fn fours(r: [__m256i; FOUR]) -> [__m256i; FOUR] {
        let low = [_mm256_unpacklo_epi32(r[0], r[1]), _mm256_unpacklo_epi32(r[2], r[3])];
        let high = [_mm256_unpackhi_epi32(r[0], r[1]), _mm256_unpackhi_epi32(r[2], r[3])];
        [
            _mm256_unpacklo_epi64(low[0], low[1]),
            _mm256_unpackhi_epi64(low[0], low[1]),
            _mm256_unpacklo_epi64(high[0], high[1]),
            _mm256_unpackhi_epi64(high[0], high[1]),
        ]
    }

    /// The columns of the square whose first column is element `at` of the rows.
    #[target_feature(enable = "avx2")]
    #[inline]
    unsafe fn columns(from: &[*const i32; SIDE], at: usize) -> [__m256i; SIDE] {
        let mut rows = [_mm256_setzero_si256(); SIDE];
        for (row, from) in rows.iter_mut().zip(from) {
            // A cache line is two squares wide.
            if at.is_multiple_of(2 * SIDE) {
                _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(at + 2 * AHEAD).cast());
            }
            // SAFETY: the caller vouches for 8 elements from `at` on.
            *row = unsafe { _mm256_loadu_si256(from.add(at).cast()) };
        }
        // `halves[4 g + c]` holds column `4 q + c` of rows `4 g .. 4 g + 4` in half `q`.
        let mut halves = [_mm256_setzero_si256(); SIDE];
        for (halves, &rows) in
            halves.as_chunks_mut::<FOUR>().0.iter_mut().zip(rows.as_chunks::<FOUR>().0)
        {
            *halves = fours(rows);
        }
        // Then the halves are transposed.
        let mut out = rows;
        for c in 0..4 {
            out[c] = _mm256_permute2x128_si256::<0x20>(halves[c], halves[4 + c]);
            out[4 + c] = _mm256_permute2x128_si256::<0x31>(halves[c], halves[4 + c]);
        }
        out
    }
}
