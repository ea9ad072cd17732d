//! Packing: copies blocks of operands into the order in which the kernels read them.

use super::axis::{Run, Runs};
use super::kernel::{Element, SQUARE, Transpose, prefetch};
use crate::multiversion;

/// The distance of prefetching, in bytes. Lines are far apart, so the hardware does not see the
/// next one coming.
const AHEAD: usize = 4096;
/// The same of panels side by side, in lines.
const PANELS_AHEAD: usize = 12;

/// `dst[i] = src[i · stride]`.
///
/// # Safety
/// Both have `n` elements, so far apart.
#[inline(always)]
pub unsafe fn copy<T: Element>(dst: *mut T, src: *const T, n: usize, stride: isize) {
    let bytes = n * size_of::<T>();
    // SAFETY: the caller vouches for `n` elements of both.
    unsafe {
        if stride == 1 && bytes >= 64 {
            pieces::<64>(dst.cast(), src.cast(), bytes);
        } else if stride == 1 && bytes >= 16 {
            pieces::<16>(dst.cast(), src.cast(), bytes);
        } else if stride == 2 {
            // A loop of its own, so that it is vectorised.
            for i in 0..n {
                *dst.add(i) = *src.add(2 * i);
            }
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

multiversion! {
    /// Packs `count` whole panels that lie side by side: element `j` of line `i` of panel `p`, at
    /// `src[lines[i] + p · width + j]`, goes to `dst[(p · lines.len() + i) · width + j]`.
    ///
    /// # Safety
    /// `dst` holds the panels, and `src` all elements of the lines.
    pub unsafe fn panels[T](
        dst: *mut T,
        width: usize,
        count: usize,
        src: *const T,
        lines: &[isize],
    )
    where [T: Element]
    {
        let bytes = width * size_of::<T>();
        // A few panels at a time: whole cache lines are read, and their panels stay in the L1
        // cache, where starts of panels share sets.
        let each = (4 * 64 / bytes).max(1);
        for first in (0..count).step_by(each) {
            let some = each.min(count - first);
            let from = src.wrapping_add(first * width);
            let to = dst.wrapping_add(first * width * lines.len());
            // SAFETY: by contract.
            unsafe {
                match bytes {
                    24 => side_by_side::<T, 24>(to, width, some, from, lines),
                    48 => side_by_side::<T, 48>(to, width, some, from, lines),
                    64 => side_by_side::<T, 64>(to, width, some, from, lines),
                    128 => side_by_side::<T, 128>(to, width, some, from, lines),
                    _ => side_by_side::<T, 0>(to, width, some, from, lines),
                }
            }
        }
    }
}

/// [`panels`] of `N` bytes a line, of any number where that is 0.
#[inline(always)]
unsafe fn side_by_side<T: Element, const N: usize>(
    dst: *mut T,
    width: usize,
    count: usize,
    src: *const T,
    lines: &[isize],
) {
    let reach = count * width;
    for (i, &line) in lines.iter().enumerate() {
        if let Some(&next) = lines.get(i + PANELS_AHEAD) {
            for at in (0..reach).step_by(64 / size_of::<T>()) {
                prefetch(src.wrapping_offset(next).wrapping_add(at));
            }
        }
        let from = src.wrapping_offset(line);
        let to = dst.wrapping_add(i * width);
        for p in 0..count {
            let (from, to) =
                (from.wrapping_add(p * width), to.wrapping_add(p * width * lines.len()));
            // SAFETY: by contract.
            unsafe {
                match N {
                    0 => copy(to, from, width, 1),
                    _ => {
                        let piece = from.cast::<[u8; N]>().read_unaligned();
                        to.cast::<[u8; N]>().write_unaligned(piece);
                    }
                }
            }
        }
    }
}

/// Packs columns that are contiguous along `k` (unit stride in every run): `dst[k · width + j]`
/// gets element `k` of column `j`. Columns past the end repeat the last one. Where `width` is less
/// than [`SQUARE`], up to so many elements behind the last row become arbitrary.
///
/// # Safety
/// As [`lines`], with room for what becomes arbitrary; the processor has what `transpose` needs.
pub unsafe fn transposed<T: Element>(
    dst: *mut T,
    width: usize,
    src: *const T,
    columns: &[isize],
    runs: &Runs,
    transpose: Option<Transpose>,
) {
    let last = columns.len() - 1;
    for run in runs {
        for j in (0..width).step_by(SQUARE) {
            let n = SQUARE.min(width - j);
            // SAFETY: by contract.
            unsafe {
                let from: [*const T; SQUARE] =
                    std::array::from_fn(|i| src.offset(columns[(j + i).min(last)] + run.offset));
                strip(dst.add(run.at * width + j), width, &from, n, run, transpose);
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
    transpose: Option<Transpose>,
) {
    let mut k = 0;
    // SAFETY: by contract; the squares end with the run.
    unsafe {
        if let Some(transpose) = transpose
            && size_of::<T>() == 4
            && (n == SQUARE || width < SQUARE)
            && run.len >= SQUARE
        {
            transpose(dst.cast(), width, &from.map(|p| p.cast()), run.len);
            k = run.len;
        }
        for k in k..run.len {
            for (i, &from) in from[..n].iter().enumerate() {
                *dst.add(k * width + i) = *from.add(k);
            }
        }
    }
}
