//! Copies blocks of operands into the order in which the kernels read them.

use super::axis::{Run, Runs};
use super::kernel::Element;

/// One run is copied in pieces of this many bytes.
const PIECE: usize = 64;

/// `dst[i] = src[i · stride]`.
#[inline(always)]
unsafe fn copy<T: Element>(dst: *mut T, src: *const T, n: usize, stride: isize) {
    let piece = PIECE / size_of::<T>();
    // SAFETY: the caller vouches for `n` elements of both; pieces stay inside and may overlap.
    unsafe {
        if stride == 1 && n >= piece {
            let mut i = 0;
            while i + piece <= n {
                (dst.add(i).cast::<[u8; PIECE]>())
                    .write_unaligned(src.add(i).cast::<[u8; PIECE]>().read_unaligned());
                i += piece;
            }
            if i < n {
                i = n - piece;
                (dst.add(i).cast::<[u8; PIECE]>())
                    .write_unaligned(src.add(i).cast::<[u8; PIECE]>().read_unaligned());
            }
        } else {
            for i in 0..n {
                *dst.add(i) = *src.offset(i as isize * stride);
            }
        }
    }
}

/// Packs `lines` as they lie: line `i` of `dst` (at `i · width`) gets the elements that `runs` name,
/// then zeros.
///
/// # Safety
/// `dst` holds `lines.len() × width` elements, `src` what lines and runs name.
pub unsafe fn lines<T: Element>(
    dst: *mut T,
    width: usize,
    src: *const T,
    lines: &[isize],
    runs: &Runs,
    stride: isize,
) {
    let used = runs.last().map_or(0, |r| r.at + r.len);
    for (i, &line) in lines.iter().enumerate() {
        // SAFETY: by contract.
        unsafe {
            let dst = dst.add(i * width);
            for run in runs {
                copy(dst.add(run.at), src.offset(line + run.offset), run.len, stride);
            }
            for j in used..width {
                *dst.add(j) = T::default();
            }
        }
    }
}

/// Packs columns that lie along `k` (unit stride in every run): `dst[k · width + j]` gets element
/// `k` of column `j`; columns beyond repeat the last.
///
/// # Safety
/// As [`lines`]; `wide` says that the processor has AVX-512.
pub unsafe fn transposed<T: Element>(
    dst: *mut T,
    width: usize,
    src: *const T,
    columns: &[isize],
    runs: &Runs,
    wide: bool,
) {
    let last = columns.len() - 1;
    for run in runs {
        for j in (0..width).step_by(SQUARE) {
            let n = SQUARE.min(width - j);
            // SAFETY: by contract.
            unsafe {
                let from: [*const T; SQUARE] =
                    std::array::from_fn(|i| src.offset(columns[(j + i).min(last)] + run.offset));
                strip(dst.add(run.at * width + j), width, &from, n, run, wide);
            }
        }
    }
}

/// Side of the squares that are transposed in registers.
const SQUARE: usize = 16;

#[inline(always)]
unsafe fn strip<T: Element>(
    dst: *mut T,
    width: usize,
    from: &[*const T; SQUARE],
    n: usize,
    run: &Run,
    wide: bool,
) {
    let mut k = 0;
    // SAFETY: by contract; the squares end with the run.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        if wide && size_of::<T>() == 4 && n == SQUARE && run.len >= SQUARE {
            squares(dst.cast(), width, &from.map(|p| p.cast()), run.len);
            k = run.len;
        }
        let _ = wide;
        for k in k..run.len {
            for (i, &from) in from[..n].iter().enumerate() {
                *dst.add(k * width + i) = *from.add(k);
            }
        }
    }
}

/// Transposes 16 rows of `n` elements of 4 bytes, at least 16: element `k` of row `i` goes to
/// `dst[k · width + i]`.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn squares(dst: *mut i32, width: usize, from: &[*const i32; SQUARE], n: usize) {
    use std::arch::x86_64::*;
    /// Elements between what is read and what is asked for ahead: rows are far from each other, so
    /// the processor does not see by itself that all of them go on.
    const AHEAD: usize = 64;
    let mut k = 0;
    while k < n {
        // The last square starts early enough to end with the rows.
        let at = k.min(n - SQUARE);
        for p in from {
            _mm_prefetch::<_MM_HINT_T0>(p.wrapping_add(at + AHEAD).cast());
        }
        // SAFETY: `at + 16 <= n`.
        unsafe { square(dst.add(at * width), width, from, at) };
        k += SQUARE;
    }
}

/// One square of [`squares`], from element `at` of the rows on.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
#[inline]
unsafe fn square(dst: *mut i32, width: usize, from: &[*const i32; SQUARE], at: usize) {
    use std::arch::x86_64::*;
    // SAFETY: the caller vouches for 16 elements behind each pointer and 16 lines of `dst`.
    unsafe {
        let r: [__m512i; SQUARE] =
            std::array::from_fn(|i| _mm512_loadu_si512(from[i].add(at).cast()));
        // In each 128-bit quarter: pairs of rows, then fours. `fours[4 g + c]` holds column
        // `4 q + c` of rows `4 g .. 4 g + 4` in quarter `q`.
        let mut fours = [_mm512_setzero_si512(); SQUARE];
        for g in 0..4 {
            let low = [
                _mm512_unpacklo_epi32(r[4 * g], r[4 * g + 1]),
                _mm512_unpacklo_epi32(r[4 * g + 2], r[4 * g + 3]),
            ];
            let high = [
                _mm512_unpackhi_epi32(r[4 * g], r[4 * g + 1]),
                _mm512_unpackhi_epi32(r[4 * g + 2], r[4 * g + 3]),
            ];
            fours[4 * g] = _mm512_unpacklo_epi64(low[0], low[1]);
            fours[4 * g + 1] = _mm512_unpackhi_epi64(low[0], low[1]);
            fours[4 * g + 2] = _mm512_unpacklo_epi64(high[0], high[1]);
            fours[4 * g + 3] = _mm512_unpackhi_epi64(high[0], high[1]);
        }
        // Then the quarters themselves are a 4 × 4 matrix to transpose.
        for c in 0..4 {
            let (g0, g1, g2, g3) = (fours[c], fours[4 + c], fours[8 + c], fours[12 + c]);
            let even = [_mm512_shuffle_i32x4::<0x88>(g0, g1), _mm512_shuffle_i32x4::<0x88>(g2, g3)];
            let odd = [_mm512_shuffle_i32x4::<0xdd>(g0, g1), _mm512_shuffle_i32x4::<0xdd>(g2, g3)];
            let columns = [
                _mm512_shuffle_i32x4::<0x88>(even[0], even[1]),
                _mm512_shuffle_i32x4::<0x88>(odd[0], odd[1]),
                _mm512_shuffle_i32x4::<0xdd>(even[0], even[1]),
                _mm512_shuffle_i32x4::<0xdd>(odd[0], odd[1]),
            ];
            for (q, column) in columns.into_iter().enumerate() {
                _mm512_storeu_si512(dst.add((4 * q + c) * width).cast(), column);
            }
        }
    }
}
