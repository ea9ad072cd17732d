//! Moves of a block of elements between two strided places, by element size alone.
//!
//! Everything that gathers, scatters, repeats or transposes elements without looking at them goes
//! through [`move_block`].

use std::mem::MaybeUninit;

use crate::dtype::Width;
use crate::multiversion;
use crate::simd::stream_copy;

/// Rows at least this long are worth a call of the library's copy.
const LONG: usize = 32;

/// Side of the squares that are transposed in registers; what has fewer rows or columns is moved
/// line by line.
const SIDE: usize = 8;

/// The longest side of the patches that are transposed in the innermost cache.
const PATCH: usize = 64;
/// Bytes of a source line in a patch: so much of each page is read at once. (Lines of a page's
/// multiple apart evict one another before the next patch comes for what lies beside them.)
const STRETCH: usize = 256;

/// One end of a move: the address of the first element, and the distances in elements to the next
/// row and the next column.
#[derive(Clone, Copy)]
pub struct Place<P> {
    /// Address of the element in row 0, column 0
    pub ptr: P,
    /// Elements from a row to the next
    pub row: isize,
    /// Elements from a column to the next
    pub col: isize,
}

impl<P> Place<P> {
    /// A place from an address and strides in elements.
    pub fn new(ptr: P, row: isize, col: isize) -> Place<P> {
        Place { ptr, row, col }
    }

    /// The same elements with rows and columns exchanged.
    fn swapped(self) -> Place<P> {
        Place { ptr: self.ptr, row: self.col, col: self.row }
    }
}

/// Whether a block of these strides lies in C order without gaps.
pub fn is_dense(rows: usize, cols: usize, row: isize, col: isize) -> bool {
    (cols == 1 || col == 1) && (rows == 1 || row == cols as isize)
}

/// Moves `rows × cols` elements of a width.
///
/// # Safety
/// Both places are valid for the block and aligned to its elements, and they do not overlap.
#[inline]
pub unsafe fn move_block(
    width: Width,
    dst: Place<*mut u8>,
    src: Place<*const u8>,
    rows: usize,
    cols: usize,
) {
    // SAFETY: as the caller's.
    unsafe { move_some(width, dst, src, (rows, cols), false) }
}

/// [`move_block`] as part of a move to more memory than the caches hold: what is transposed is
/// written past them. Ends with a [`stream_fence`](crate::simd::stream_fence) of the caller's.
///
/// # Safety
/// As for [`move_block`].
pub unsafe fn stream_block(
    width: Width,
    dst: Place<*mut u8>,
    src: Place<*const u8>,
    rows: usize,
    cols: usize,
) {
    // SAFETY: as the caller's.
    unsafe { move_some(width, dst, src, (rows, cols), true) }
}

/// # Safety
/// As for [`move_block`].
unsafe fn move_some(
    width: Width,
    dst: Place<*mut u8>,
    src: Place<*const u8>,
    size: (usize, usize),
    streams: bool,
) {
    /// # Safety
    /// As for [`move_block`], with elements of type `T`.
    unsafe fn typed<T: Copy>(
        dst: Place<*mut u8>,
        src: Place<*const u8>,
        (rows, cols): (usize, usize),
        streams: bool,
    ) {
        let to = Place::new(dst.ptr.cast::<T>(), dst.row, dst.col);
        let from = Place::new(src.ptr.cast::<T>(), src.row, src.col);
        // SAFETY: as the caller's.
        unsafe { move_typed(to, from, rows, cols, streams) }
    }
    // SAFETY: the element type has the width asked for.
    unsafe {
        match width {
            Width::B1 => typed::<u8>(dst, src, size, streams),
            Width::B2 => typed::<u16>(dst, src, size, streams),
            Width::B4 => typed::<u32>(dst, src, size, streams),
            Width::B8 => typed::<u64>(dst, src, size, streams),
        }
    }
}

/// # Safety
/// As for [`move_block`].
unsafe fn move_typed<T: Copy>(
    dst: Place<*mut T>,
    src: Place<*const T>,
    rows: usize,
    cols: usize,
    streams: bool,
) {
    let is_dense = |row, col| is_dense(rows, cols, row, col);
    let is_square = rows >= SIDE && cols >= SIDE && src.row != 0 && src.col != 0;
    // SAFETY: every branch stays inside the block.
    unsafe {
        if rows == 0 || cols == 0 {
        } else if is_dense(dst.row, dst.col) && is_dense(src.row, src.col) {
            copy(dst.ptr, src.ptr, rows * cols);
        } else if is_dense(dst.row, dst.col) && src.row == 0 && rows > 1 {
            repeat(dst.ptr, src, rows, cols);
        } else if dst.col == 1 && src.row == 1 && is_square {
            transpose(dst, src, rows, cols, streams);
        } else if dst.row == 1 && src.col == 1 && is_square {
            transpose(dst.swapped(), src.swapped(), cols, rows, streams);
        } else if dst.row.unsigned_abs() == 1 && src.row.unsigned_abs() <= 1
            || rows > cols && cols < SIDE
        {
            move_lines(dst.swapped(), src.swapped(), cols, rows);
        } else {
            move_lines(dst, src, rows, cols);
        }
    }
}

/// Bytes of a copy that the library makes with vectors on every machine.
const PIECE: usize = 1 << 10;

/// Copies elements that lie one after another.
///
/// The library copies many bytes by an instruction of its own, which takes ten times as long on
/// AMD's Zen 3 where they go up to a line further in their page than they come from: these are copied
/// piece by piece.
///
/// # Safety
/// Both places are valid for `n` elements and do not overlap.
unsafe fn copy<T: Copy>(dst: *mut T, src: *const T, n: usize) {
    const PAGE: usize = 4096;
    let further = (dst as usize).wrapping_sub(src as usize) % PAGE;
    let is_slow = (1..64).contains(&further) && n * size_of::<T>() > PIECE;
    let step = if is_slow { PIECE / size_of::<T>() } else { n.max(1) };
    for at in (0..n).step_by(step) {
        // SAFETY: inside both places.
        unsafe { dst.add(at).copy_from_nonoverlapping(src.add(at), step.min(n - at)) };
    }
}

/// Writes a row, then copies what is written until all rows are there.
///
/// # Safety
/// As for [`move_block`], with a dense destination and a source of one row; there is an element.
unsafe fn repeat<T: Copy>(dst: *mut T, src: Place<*const T>, rows: usize, cols: usize) {
    // SAFETY: what is copied was written, and the copy ends inside the block.
    unsafe {
        move_lines(Place::new(dst, 0, 1), src, 1, cols);
        let (mut done, all) = (cols, rows * cols);
        while done < all {
            let piece = done.min(all - done);
            copy(dst.add(done), dst, piece);
            done += piece;
        }
    }
}

/// # Safety
/// As for [`move_block`].
unsafe fn move_lines<T: Copy>(dst: Place<*mut T>, src: Place<*const T>, rows: usize, cols: usize) {
    // SAFETY: as the caller's.
    unsafe {
        for r in 0..rows as isize {
            let (to, from) = (dst.ptr.offset(r * dst.row), src.ptr.offset(r * src.row));
            match (dst.col, src.col) {
                (1, 1) if cols >= LONG => copy(to, from, cols),
                (1, 1) => line(to, 1, from, 1, cols),
                (1, 0) => fill(to, *from, cols),
                (1, -1) => line(to, 1, from, -1, cols),
                (1, 2) => line(to, 1, from, 2, cols),
                (1, step) => line(to, 1, from, step, cols),
                (step, 1) => line(to, step, from, 1, cols),
                (to_step, from_step) => line(to, to_step, from, from_step, cols),
            }
        }
    }
}

multiversion! {
    /// Writes one element `n` times.
    ///
    /// # Safety
    /// `dst` is valid for `n` elements and aligned to them.
    unsafe fn fill[T](dst: *mut T, x: T, n: usize) where [T: Copy] {
        // SAFETY: by contract; what is written needs no drop, because it is `Copy`.
        unsafe { std::slice::from_raw_parts_mut(dst.cast::<MaybeUninit<T>>(), n) }
            .fill(MaybeUninit::new(x));
    }
}

/// # Safety
/// Both lines are valid for `n` elements at their steps and do not overlap.
#[inline(always)]
unsafe fn line<T: Copy>(dst: *mut T, to_step: isize, src: *const T, from_step: isize, n: usize) {
    for i in 0..n as isize {
        // SAFETY: `i` is inside the line.
        unsafe { *dst.offset(i * to_step) = *src.offset(i * from_step) }
    }
}

/// Moves where the destination is dense along its columns and the source along its rows.
///
/// # Safety
/// As for [`move_block`].
unsafe fn transpose<T: Copy>(
    dst: Place<*mut T>,
    src: Place<*const T>,
    rows: usize,
    cols: usize,
    streams: bool,
) {
    let mut buffer = MaybeUninit::<[T; PATCH * PATCH]>::uninit();
    let side = (STRETCH / size_of::<T>()).min(PATCH);
    for r in (0..rows).step_by(side) {
        for c in (0..cols).step_by(side) {
            let (height, width) = (side.min(rows - r), side.min(cols - c));
            // SAFETY: the patch is inside the block; the buffer holds a patch.
            unsafe {
                let from = Place { ptr: src.ptr.offset(r as isize + c as isize * src.col), ..src };
                let to = Place { ptr: dst.ptr.offset(r as isize * dst.row + c as isize), ..dst };
                if dst.row == cols as isize && !streams {
                    transpose_patch(to, from, height, width);
                    continue;
                }
                // Rows of a power-of-two distance fall on the same few cache lines: visit each once.
                let buffer = buffer.as_mut_ptr().cast::<T>();
                let patch = Place::new(buffer.cast_const(), width as isize, 1);
                transpose_patch(Place::new(buffer, width as isize, 1), from, height, width);
                match streams {
                    true => stream_rows(to, patch.ptr, height, width),
                    false => move_lines(to, patch, height, width),
                }
            }
        }
    }
}

/// Writes rows that lie one behind the other past the caches, `dst.row` elements apart.
///
/// # Safety
/// As for [`move_block`], with a destination that is dense along its columns.
pub unsafe fn stream_rows<T: Copy>(dst: Place<*mut T>, src: *const T, rows: usize, cols: usize) {
    for r in 0..rows {
        let to = dst.ptr.wrapping_offset(r as isize * dst.row);
        // SAFETY: a row of each.
        unsafe { stream_copy(to.cast(), src.add(r * cols).cast(), cols * size_of::<T>()) }
    }
}

/// Transposes by squares that fit in registers, one strip of source lines after another.
///
/// # Safety
/// As for [`transpose`].
unsafe fn transpose_patch<T: Copy>(
    dst: Place<*mut T>,
    src: Place<*const T>,
    rows: usize,
    cols: usize,
) {
    let (whole_rows, whole_cols) = (rows - rows % SIDE, cols - cols % SIDE);
    // SAFETY: squares and edges stay inside the block.
    unsafe {
        for c in (0..whole_cols).step_by(SIDE) {
            for r in (0..whole_rows).step_by(SIDE) {
                let from = src.ptr.offset(r as isize + c as isize * src.col);
                let to = dst.ptr.offset(r as isize * dst.row + c as isize);
                square(to, dst.row, from, src.col);
            }
        }
        let below = Place { ptr: dst.ptr.offset(whole_rows as isize * dst.row), ..dst };
        move_lines(
            below,
            Place { ptr: src.ptr.add(whole_rows), ..src },
            rows - whole_rows,
            whole_cols,
        );
        let right = Place { ptr: dst.ptr.add(whole_cols), ..dst };
        let source = Place { ptr: src.ptr.offset(whole_cols as isize * src.col), ..src };
        move_lines(right.swapped(), source.swapped(), cols - whole_cols, rows);
    }
}

/// Transposes a square of [`SIDE`]: source lines become destination columns.
///
/// # Safety
/// As for [`move_block`].
#[inline(always)]
unsafe fn square<T: Copy>(dst: *mut T, dst_row: isize, src: *const T, src_col: isize) {
    #[cfg(target_arch = "x86_64")]
    if size_of::<T>() == 4 {
        for (r, c) in [(0, 0), (4, 0), (0, 4), (4, 4)] {
            // SAFETY: a quarter of the caller's square.
            unsafe {
                let (to, from) = (dst.offset(r * dst_row + c), src.offset(r + c * src_col));
                quarter(to.cast(), dst_row, from.cast(), src_col);
            }
        }
        return;
    }
    // SAFETY: as the caller's; an array is aligned as its elements are.
    unsafe {
        let lines: [[T; SIDE]; SIDE] =
            std::array::from_fn(|c| src.offset(c as isize * src_col).cast::<[T; SIDE]>().read());
        let rows: [[T; SIDE]; SIDE] = std::array::from_fn(|r| std::array::from_fn(|c| lines[c][r]));
        for (r, row) in rows.into_iter().enumerate() {
            dst.offset(r as isize * dst_row).cast::<[T; SIDE]>().write(row);
        }
    }
}

/// Transposes four lines of four elements in registers.
///
/// # Safety
/// As for [`move_block`].
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn quarter(dst: *mut u32, dst_row: isize, src: *const u32, src_col: isize) {
    use std::arch::x86_64::{
        _mm_loadu_si128, _mm_storeu_si128, _mm_unpackhi_epi32, _mm_unpacklo_epi32,
    };
    // SAFETY: as the caller's; loads and stores need no alignment, SSE2 is part of x86-64.
    unsafe {
        let [a, b, c, d] = [0, 1, 2, 3].map(|k| _mm_loadu_si128(src.offset(k * src_col).cast()));
        let (low_even, low_odd) = (_mm_unpacklo_epi32(a, c), _mm_unpacklo_epi32(b, d));
        let (high_even, high_odd) = (_mm_unpackhi_epi32(a, c), _mm_unpackhi_epi32(b, d));
        let rows = [
            _mm_unpacklo_epi32(low_even, low_odd),
            _mm_unpackhi_epi32(low_even, low_odd),
            _mm_unpacklo_epi32(high_even, high_odd),
            _mm_unpackhi_epi32(high_even, high_odd),
        ];
        for (k, row) in rows.into_iter().enumerate() {
            _mm_storeu_si128(dst.offset(k as isize * dst_row).cast(), row);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_width_moves_whole_elements() {
        for width in [Width::B1, Width::B2, Width::B4, Width::B8] {
            const SIDE: usize = 9;
            let n = width.bytes();
            let source: Vec<u8> = (0..SIDE * SIDE * n).map(|i| i as u8).collect();
            let mut got = vec![0u64; SIDE * SIDE * n / 8 + 1];
            let mut aligned = got.clone();
            // SAFETY: numbers may be seen as bytes.
            let bytes = unsafe { aligned.align_to_mut::<u8>().1 };
            bytes[..source.len()].copy_from_slice(&source);
            let src = Place::new(aligned.as_ptr().cast(), 1, SIDE as isize);
            // SAFETY: both hold the square; `u64` is aligned for every width.
            unsafe {
                let dst = Place::new(got.as_mut_ptr().cast(), SIDE as isize, 1);
                move_block(width, dst, src, SIDE, SIDE);
            }
            let got: Vec<u8> = got.iter().flat_map(|word| word.to_ne_bytes()).collect();
            for r in 0..SIDE {
                for c in 0..SIDE {
                    let (to, from) = ((r * SIDE + c) * n, (c * SIDE + r) * n);
                    assert_eq!(got[to..to + n], source[from..from + n], "{width:?} {r} {c}");
                }
            }
        }
    }

    #[test]
    fn long_copies_go_to_any_place_in_a_page() {
        let source: Vec<u32> = (0..3000).map(|i: u32| i.wrapping_mul(2654435761)).collect();
        for (n, place) in [255, 256, 257, 1000, 2999]
            .into_iter()
            .flat_map(|n| (0..40).chain([1000, 1023]).map(move |place| (n, place)))
        {
            let mut room = vec![7u32; n + 3 * 1024];
            // The same place in a page, and so many elements further.
            let apart = (source.as_ptr() as usize).wrapping_sub(room.as_ptr() as usize) / 4 % 1024;
            let to = apart + place;
            // SAFETY: inside both.
            unsafe { copy(room.as_mut_ptr().add(to), source.as_ptr(), n) };
            assert!(
                room[to..to + n] == source[..n] && room[to + n] == 7,
                "{n} elements {place} further"
            );
            assert!(room[..to].iter().all(|x| *x == 7), "{n} elements {place} further");
        }
    }

    #[test]
    fn every_combination_of_strides_moves_every_element() {
        const ROOM: usize = 60 * 60;
        let source: Vec<u32> = (0..ROOM as u32).map(|i| i.wrapping_mul(2654435761)).collect();
        for (rows, cols) in
            [(1, 1), (1, 40), (40, 1), (3, 40), (40, 3), (17, 19), (8, 8), (24, 16), (0, 4)]
        {
            let strides = [
                (cols as isize, 1),
                (1, rows as isize),
                (50, 1),
                (1, 50),
                (60, 2),
                (-50, -1),
                (-1, -50),
            ];
            let repeats = [(0, 1), (1, 0), (0, 0), (0, -1), (7, 0)];
            for from in strides.iter().chain(&repeats) {
                for to in &strides {
                    // Negative strides start at the far end.
                    let start = |&(row, col): &(isize, isize)| {
                        (if row < 0 { (rows.max(1) as isize - 1) * -row } else { 0 }
                            + if col < 0 { (cols.max(1) as isize - 1) * -col } else { 0 })
                            as usize
                    };
                    let at = |&(row, col): &(isize, isize), base: usize, r: usize, c: usize| {
                        (base as isize + r as isize * row + c as isize * col) as usize
                    };
                    let mut got = vec![0u32; ROOM];
                    let mut want = got.clone();
                    for r in 0..rows {
                        for c in 0..cols {
                            want[at(to, start(to), r, c)] = source[at(from, start(from), r, c)];
                        }
                    }
                    let dst = Place::new(got[start(to)..].as_mut_ptr().cast(), to.0, to.1);
                    let src = Place::new(source[start(from)..].as_ptr().cast(), from.0, from.1);
                    // SAFETY: the strides keep inside both vectors (the indexing above would
                    // panic).
                    unsafe { move_block(Width::B4, dst, src, rows, cols) };
                    assert_eq!(got, want, "{rows}x{cols} {from:?} to {to:?}");
                    got.fill(0);
                    // SAFETY: as above.
                    unsafe { stream_block(Width::B4, dst, src, rows, cols) };
                    assert_eq!(got, want, "{rows}x{cols} {from:?} to {to:?}, past the caches");
                }
            }
        }
    }
}
