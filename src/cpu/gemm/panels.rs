//! Products of blocks whose columns were packed by their caller, as kernels of composites need them.

use super::kernel::{BLOCK, Element, Kernels};

/// A matrix with any two strides: from row to row, and along what is summed over.
#[derive(Clone, Copy)]
pub struct Strided<T> {
    /// The first element
    pub ptr: *const T,
    /// The strides
    pub strides: (isize, isize),
}

/// A matrix whose columns lie in panels, as wide as a tile of the product kernels.
#[derive(Clone, Copy)]
pub struct Panels<T> {
    /// The first element
    pub ptr: *const T,
    /// Elements from panel to panel
    pub panel: usize,
    /// Elements from row to row in a panel
    pub row: usize,
}

/// `c (+)= a b`: `rows × depth` times `depth × columns`. A sum is a chain over each block of the
/// depth, and the blocks are added in order. Rows are rounded up to the next tile, columns to whole
/// panels.
///
/// # Safety
/// All that is named can be read or written, rounded up.
pub unsafe fn product<T: Element>(
    kernels: &Kernels<T>,
    [rows, columns, depth]: [usize; 3],
    a: Strided<T>,
    b: Panels<T>,
    (c, c_row): (*mut T, usize),
    fresh: bool,
) {
    let high = kernels.tiles[0].rows;
    let mut k = 0;
    loop {
        let steps = BLOCK.min(depth - k);
        for (panel, j) in (0..columns).step_by(kernels.width).enumerate() {
            let b_ptr = b.ptr.wrapping_add(panel * b.panel + k * b.row);
            for i in (0..rows).step_by(high) {
                let h = high.min(rows - i);
                let fit = kernels.tiles.iter().rev().find(|t| t.rows >= h);
                let micro = fit.unwrap_or(&kernels.tiles[0]).micro;
                let a_at = i as isize * a.strides.0 + k as isize * a.strides.1;
                let a_ptr = a.ptr.wrapping_offset(a_at);
                let c = c.wrapping_add(i * c_row + j);
                let (b_row, c_row) = (b.row as isize, c_row as isize);
                // SAFETY: by contract.
                unsafe {
                    let (fresh, still) = (fresh && k == 0, (b_ptr, 0));
                    micro(steps, a_ptr, a.strides, b_ptr, b_row, c, c_row, fresh, still);
                }
            }
        }
        k += steps;
        if k >= depth {
            return;
        }
    }
}
