//! Strided loads of any dtype into registers, and stores of registers into any dtype.

use std::mem::MaybeUninit;

use super::moves::{Place, is_dense, move_block};
use crate::dtype::DType;
use crate::tile::{self, TILE};

/// The most elements of a block.
pub const MOST: usize = 4 * TILE;

/// Room for a block of a narrow dtype, on its way between strided memory and a register.
type Narrow = MaybeUninit<[u16; MOST]>;

/// Loads `rows × cols` elements, at most [`MOST`], into a register: C order, in register form.
///
/// # Safety
/// `src` is valid for the block, `dst` for its count of register elements, and they do not overlap.
pub unsafe fn load_block(
    dtype: DType,
    dst: *mut u8,
    src: Place<*const u8>,
    rows: usize,
    cols: usize,
) {
    debug_assert!(rows * cols <= MOST);
    let width = dtype.width();
    // SAFETY: as the caller's; `spare` holds a block of any narrow dtype.
    unsafe {
        let Some(widen) = tile::widen(dtype) else {
            return move_block(width, Place::new(dst, cols as isize, 1), src, rows, cols);
        };
        if is_dense(rows, cols, src.row, src.col) {
            return widen(dst, &[src.ptr; 3], rows * cols);
        }
        let mut spare = Narrow::uninit();
        let spare = spare.as_mut_ptr().cast::<u8>();
        move_block(width, Place::new(spare, cols as isize, 1), src, rows, cols);
        widen(dst, &[spare.cast_const(); 3], rows * cols);
    }
}

/// Stores a register of `rows × cols` elements, at most [`MOST`], into a dtype: floats round,
/// integers wrap.
///
/// # Safety
/// As for [`load_block`], with the ends exchanged.
pub unsafe fn store_block(
    dtype: DType,
    dst: Place<*mut u8>,
    src: *const u8,
    rows: usize,
    cols: usize,
) {
    debug_assert!(rows * cols <= MOST);
    let width = dtype.width();
    // SAFETY: as the caller's; `spare` holds a block of any narrow dtype.
    unsafe {
        let Some(narrow) = tile::narrow(dtype) else {
            return move_block(width, dst, Place::new(src, cols as isize, 1), rows, cols);
        };
        if is_dense(rows, cols, dst.row, dst.col) {
            return narrow(dst.ptr, &[src; 3], rows * cols);
        }
        let mut spare = Narrow::uninit();
        let spare = spare.as_mut_ptr().cast::<u8>();
        narrow(spare, &[src; 3], rows * cols);
        move_block(width, dst, Place::new(spare.cast_const(), cols as isize, 1), rows, cols);
    }
}

/// Loads `n` elements, `stride` elements apart, into register form.
///
/// # Safety
/// `src` is valid for the elements, `dst` for `n` register elements, and they do not overlap.
pub unsafe fn load(dtype: DType, dst: *mut u8, src: *const u8, stride: isize, n: usize) {
    let (wide, size) = (dtype.compute().size(), dtype.size() as isize);
    for at in (0..n).step_by(TILE) {
        let from = Place::new(src.wrapping_offset(at as isize * stride * size), 0, stride);
        // SAFETY: the piece is inside the caller's range.
        unsafe { load_block(dtype, dst.add(at * wide), from, 1, TILE.min(n - at)) }
    }
}

/// Stores `n` elements in register form into a dtype, `stride` elements apart.
///
/// # Safety
/// As for [`load`], with the ends exchanged.
pub unsafe fn store(dtype: DType, dst: *mut u8, stride: isize, src: *const u8, n: usize) {
    let (wide, size) = (dtype.compute().size(), dtype.size() as isize);
    for at in (0..n).step_by(TILE) {
        let to = Place::new(dst.wrapping_offset(at as isize * stride * size), 0, stride);
        // SAFETY: the piece is inside the caller's range.
        unsafe { store_block(dtype, to, src.add(at * wide), 1, TILE.min(n - at)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_undoes_a_load_at_every_stride() {
        const N: usize = 1500;
        for dtype in DType::ALL {
            let size = dtype.size();
            // Small whole numbers are exact in every dtype.
            #[allow(
                clippy::wildcard_enum_match_arm,
                reason = "in any other dtype small whole numbers are their own bits"
            )]
            let bytes: Vec<u8> = (0..N * 3)
                .flat_map(|i| match dtype {
                    DType::F16 => (0x3c00u64 + i as u64 % 999).to_le_bytes()[..size].to_vec(),
                    DType::BF16 => (0x3f80u64 + i as u64 % 99).to_le_bytes()[..size].to_vec(),
                    DType::Bool => vec![(i % 7 % 2) as u8],
                    _ => (i as u64).to_le_bytes()[..size].to_vec(),
                })
                .collect();
            let mut register = vec![0u64; N];
            for (stride, start) in [(1isize, 0usize), (3, 1), (0, 5), (-1, N - 1), (-2, 2 * N)] {
                let mut back = vec![0xffu8; N * 3 * size];
                // SAFETY: `start` and `stride` keep inside the vectors for `N` elements.
                unsafe {
                    load(
                        dtype,
                        register.as_mut_ptr().cast(),
                        bytes[start * size..].as_ptr(),
                        stride,
                        N,
                    );
                    store(
                        dtype,
                        back[start * size..].as_mut_ptr(),
                        stride,
                        register.as_ptr().cast(),
                        N,
                    );
                }
                for i in 0..N as isize {
                    let at = (start as isize + i * stride) as usize * size;
                    assert_eq!(
                        back[at..at + size],
                        bytes[at..at + size],
                        "{dtype} stride {stride} element {i}"
                    );
                }
            }
        }
    }
}
