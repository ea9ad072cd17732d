//! Moves of a block of elements between two strided places, by element size alone.
//!
//! Everything that gathers, scatters, repeats or transposes elements without looking at them goes
//! through [`move_block`].

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

/// Moves `rows × cols` elements of `size` bytes (1, 2, 4 or 8).
///
/// # Safety
/// Both places are valid for the block and aligned to its elements, and they do not overlap.
pub unsafe fn move_block(
    size: usize,
    dst: Place<*mut u8>,
    src: Place<*const u8>,
    rows: usize,
    cols: usize,
) {
    /// # Safety
    /// As for [`move_block`], with elements of type `T`.
    unsafe fn typed<T: Copy>(dst: Place<*mut u8>, src: Place<*const u8>, rows: usize, cols: usize) {
        let to = Place::new(dst.ptr.cast::<T>(), dst.row, dst.col);
        let from = Place::new(src.ptr.cast::<T>(), src.row, src.col);
        // SAFETY: as the caller's.
        unsafe { move_typed(to, from, rows, cols) }
    }
    // SAFETY: the element type has the size asked for.
    unsafe {
        match size {
            1 => typed::<u8>(dst, src, rows, cols),
            2 => typed::<u16>(dst, src, rows, cols),
            4 => typed::<u32>(dst, src, rows, cols),
            _ => typed::<u64>(dst, src, rows, cols),
        }
    }
}

/// # Safety
/// As for [`move_block`].
unsafe fn move_typed<T: Copy>(dst: Place<*mut T>, src: Place<*const T>, rows: usize, cols: usize) {
    // SAFETY: every branch stays inside the block.
    unsafe {
        if rows == 0 || cols == 0 {
        } else if is_dense(rows, cols, dst.row, dst.col) && is_dense(rows, cols, src.row, src.col) {
            dst.ptr.copy_from_nonoverlapping(src.ptr, rows * cols);
        } else if dst.col == 1 && src.col == 1 && cols > 1 {
            move_lines(dst, src, rows, cols);
        } else if dst.row == 1 && src.row == 1 && rows > 1 {
            move_lines(dst.swapped(), src.swapped(), cols, rows);
        } else if dst.col == 1 && src.row == 1 && cols > 1 && rows > 1 {
            transpose(dst, src, rows, cols);
        } else if dst.row == 1 && src.col == 1 && cols > 1 && rows > 1 {
            transpose(dst.swapped(), src.swapped(), cols, rows);
        } else if rows > cols {
            move_lines(dst.swapped(), src.swapped(), cols, rows);
        } else {
            move_lines(dst, src, rows, cols);
        }
    }
}

/// # Safety
/// As for [`move_block`].
unsafe fn move_lines<T: Copy>(dst: Place<*mut T>, src: Place<*const T>, rows: usize, cols: usize) {
    /// Rows at least this long are worth a call of the library's copy.
    const LONG: usize = 32;
    // SAFETY: as the caller's.
    unsafe {
        for r in 0..rows as isize {
            let (to, from) = (dst.ptr.offset(r * dst.row), src.ptr.offset(r * src.row));
            match (dst.col, src.col) {
                (1, 1) if cols >= LONG => to.copy_from_nonoverlapping(from, cols),
                (1, 1) => line(to, 1, from, 1, cols),
                (1, 0) => std::slice::from_raw_parts_mut(to, cols).fill(*from),
                (1, -1) => line(to, 1, from, -1, cols),
                (1, step) => line(to, 1, from, step, cols),
                (step, 1) => line(to, step, from, 1, cols),
                (to_step, from_step) => line(to, to_step, from, from_step, cols),
            }
        }
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

/// Moves where the destination is dense along its columns and the source along its rows, by squares
/// that fit in registers.
///
/// # Safety
/// As for [`move_block`].
unsafe fn transpose<T: Copy>(dst: Place<*mut T>, src: Place<*const T>, rows: usize, cols: usize) {
    const SIDE: usize = 8;
    let (whole_rows, whole_cols) = (rows - rows % SIDE, cols - cols % SIDE);
    // SAFETY: squares and edges stay inside the block.
    unsafe {
        for r in (0..whole_rows).step_by(SIDE) {
            for c in (0..whole_cols).step_by(SIDE) {
                let from = src.ptr.offset(r as isize + c as isize * src.col);
                let to = dst.ptr.offset(r as isize * dst.row + c as isize);
                square::<T, SIDE>(to, dst.row, from, src.col);
            }
        }
        let element = |r: usize, c: usize| {
            let from = src.ptr.offset(r as isize + c as isize * src.col);
            dst.ptr.offset(r as isize * dst.row + c as isize).write(*from);
        };
        for r in 0..whole_rows {
            (whole_cols..cols).for_each(|c| element(r, c));
        }
        for r in whole_rows..rows {
            (0..cols).for_each(|c| element(r, c));
        }
    }
}

/// Transposes a square: source columns become destination rows.
///
/// # Safety
/// As for [`move_block`], with `N` rows and columns.
#[inline(always)]
unsafe fn square<T: Copy, const N: usize>(
    dst: *mut T,
    dst_row: isize,
    src: *const T,
    src_col: isize,
) {
    // SAFETY: as the caller's; an array is aligned as its elements are.
    unsafe {
        let columns: [[T; N]; N] =
            std::array::from_fn(|c| src.offset(c as isize * src_col).cast::<[T; N]>().read());
        for r in 0..N {
            let row: [T; N] = std::array::from_fn(|c| columns[c][r]);
            dst.offset(r as isize * dst_row).cast::<[T; N]>().write(row);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
                    // SAFETY: the strides keep inside both vectors (the indexing above would panic).
                    unsafe { move_block(4, dst, src, rows, cols) };
                    assert_eq!(got, want, "{rows}x{cols} {from:?} to {to:?}");
                }
            }
        }
    }
}
