//! Products of so few multiplications that working out how to cut them would take longer.

use super::kernel::{BLOCK, Element, STREAM_ROWS};
use super::{DType, with_accumulator};

/// The most multiplications. Packing operands for these would take longer than the product.
pub const TINY: usize = 4096;
/// The fewest columns: fewer leave registers empty.
const COLUMNS: usize = 4;

/// Two matrices, and not many elements.
pub struct Tiny {
    /// Rows, columns, and what is summed over
    size: [usize; 3],
    /// The strides of the first: from row to row, and along `k`
    a: (isize, isize),
    /// The stride of the second along `k`
    b: isize,
}

impl Tiny {
    /// `None` for more multiplications, and for columns that are not contiguous.
    pub fn new(size: [usize; 3], a: (isize, isize), b: (isize, isize)) -> Option<Tiny> {
        let [m, n, k] = size;
        let fits = n >= COLUMNS && m > 0 && (1..=BLOCK).contains(&k) && b.1 == 1;
        (fits && m.saturating_mul(n).saturating_mul(k) <= TINY).then_some(Tiny { size, a, b: b.0 })
    }

    /// Computes the product of operands at these addresses into `out`, in C order, with the bits of
    /// [`product`](super::product).
    ///
    /// # Safety
    /// `dtype` is an accumulator's; the operands can be read as the strides say, and `out` is as
    /// large as the result and written by nobody else.
    pub unsafe fn run(&self, dtype: DType, [a, b]: [*const u8; 2], out: *mut u8) {
        // SAFETY: as the caller's.
        unsafe {
            with_accumulator!(dtype, T => self.typed::<T>(a.cast(), b.cast(), out.cast()));
        }
    }

    unsafe fn typed<T: Element>(&self, a: *const T, b: *const T, out: *mut T) {
        let ([m, n, k], kernel) = (self.size, T::kernels().stream);
        let mut offsets = [0; BLOCK];
        let offsets = &mut offsets[..k];
        offsets.iter_mut().enumerate().for_each(|(i, at)| *at = i as isize * self.b);
        for i in (0..m).step_by(STREAM_ROWS) {
            let rows = STREAM_ROWS.min(m - i);
            // SAFETY: by contract; a chain of at most a block of `k`.
            unsafe {
                let (a, c) = (a.offset(i as isize * self.a.0), out.add(i * n));
                kernel((rows, n), a, self.a, b, offsets, c, n as isize, true);
            }
        }
    }
}
