//! Packing: copies blocks of operands into the order in which the kernels read them.

use super::axis::{Run, Runs};
use super::kernel::{Element, SQUARE, prefetch};
use crate::multiversion;

/// The distance of prefetching, in bytes. Lines are far apart, so the hardware does not see the
/// next one coming.
const AHEAD: usize = 4096;

/// `dst[i] = src[i · stride]`.
#[inline(always)]
unsafe fn copy<T: Element>(dst: *mut T, src: *const T, n: usize, stride: isize) {
    let bytes = n * size_of::<T>();
    // SAFETY: the caller vouches for `n` elements of both.
    unsafe {
        if stride == 1 && bytes >= 64 {
            pieces::<64>(dst.cast(), src.cast(), bytes);
        } else if stride == 1 && bytes >= 16 {
            pieces::<16>(dst.cast(), src.cast(), bytes);
        } else {
            for i in 0..n {
                *dst.add(i) = *src.offset(i as isize * stride);
            }
        }
    }
}

/// Copies at least `N` bytes in pieces of `N`; the last may overlap the one before.
#[inline(always)]
unsafe fn pieces<const N: usize>(dst: *mut u8, src: *const u8, bytes: usize) {
    let mut at = 0;
    while at < bytes {
        let i = at.min(bytes - N);
        // SAFETY: inside both.
        unsafe {
            let piece = src.add(i).cast::<[u8; N]>().read_unaligned();
            dst.add(i).cast::<[u8; N]>().write_unaligned(piece);
        }
        at += N;
    }
}

multiversion! {
    /// Packs `lines` without transposing: line `i` of `dst` (at `i · width`) gets the elements of
    /// its `runs`, then zeros.
    ///
    /// # Safety
    /// `dst` holds `lines.len() × width` elements, and `src` all elements of the lines and runs.
    pub unsafe fn lines[T](
        dst: *mut T,
        width: usize,
        src: *const T,
        lines: &[isize],
        runs: &[Run],
        stride: isize,
    )
    where [T: Element]
    {
        let used = runs.last().map_or(0, |r| r.at + r.len);
        let ahead = (AHEAD / (used * size_of::<T>()).max(1)).max(1);
        for (i, &line) in lines.iter().enumerate() {
            if let (1, Some(&next)) = (stride, lines.get(i + ahead)) {
                for run in runs {
                    for at in (0..run.len).step_by(64 / size_of::<T>()) {
                        prefetch(src.wrapping_offset(next + run.offset).wrapping_add(at));
                    }
                }
            }
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
}

/// Packs columns that are contiguous along `k` (unit stride in every run): `dst[k · width + j]`
/// gets element `k` of column `j`. Columns past the end repeat the last one.
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
            super::square::transpose(dst.cast(), width, &from.map(|p| p.cast()), run.len);
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
