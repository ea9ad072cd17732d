//! Products of so few multiplications that working out how to cut them would take longer.

use super::kernel::Element;
use super::{DType, with_accumulator};

/// The most multiplications. Packing operands for these would take longer than the product.
pub const TINY: usize = 4096;

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
        let fits = !size.contains(&0) && (b.1 == 1 || size[1] == 1);
        let products = size.iter().fold(1, |product: usize, &n| product.saturating_mul(n));
        (fits && products <= TINY).then_some(Tiny { size, a, b: b.0 })
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
            with_accumulator!(dtype, T => {
                let (a, b, c) = (a.cast::<T>(), b.cast(), out.cast());
                (T::kernels().small)(self.size, a, self.a, b, self.b, c, self.size[1] as isize);
            });
        }
    }
}
