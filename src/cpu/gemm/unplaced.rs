//! A product of few multiplications with everything worked out that addresses do not decide.

use super::kernel::Element;
use super::scratch::Scratch;
use super::{Cut, Job, Matrix, SPAN, with_accumulator};
use crate::dtype::DType;
use crate::error::Result;

/// A product that is not worth sharing among threads, of operands of known layouts.
pub struct Unplaced {
    dtype: DType,
    a: Matrix,
    b: Matrix,
    /// The bytes in which it packs operands
    scratch: usize,
}

impl Unplaced {
    /// Prepares a product; the operands have no addresses yet. `None` for one that threads should
    /// share, or that is summed in several spans or over nothing.
    pub fn new(dtype: DType, a: Matrix, b: Matrix) -> Option<Unplaced> {
        let scratch = with_accumulator!(dtype, T => scratch_of::<T>(&a, &b))?;
        Some(Unplaced { dtype, a, b, scratch })
    }

    /// Computes the product of operands at these addresses, as [`product`](super::product) does.
    ///
    /// # Safety
    /// As for [`product`](super::product).
    pub unsafe fn run(
        &self,
        from: [*const u8; 2],
        out: *mut u8,
        lent: Option<(*mut u8, usize)>,
    ) -> Result<()> {
        // SAFETY: as the caller's.
        unsafe { with_accumulator!(self.dtype, T => self.typed::<T>(from, out.cast(), lent)) }
    }

    unsafe fn typed<T: Element>(
        &self,
        from: [*const u8; 2],
        out: *mut T,
        lent: Option<(*mut u8, usize)>,
    ) -> Result<()> {
        let mut job = Job::<T>::new(&self.a, &self.b, out);
        job.at = from;
        if job.transposed {
            job.at.swap(0, 1);
        }
        let scratch = Scratch::of(self.scratch, 1, lent)?;
        let path = job.path(job.rows, job.columns, self.a.depth.len());
        for item in 0..job.batch {
            let (tile, steps) = job.tile(item, 0..job.rows, 0..job.columns);
            // SAFETY: as the caller's; nobody else works on the result.
            unsafe { tile.compute(steps, &path, &scratch)? };
        }
        Ok(())
    }
}

/// The bytes in which a product packs its operands; `None` if it is not worth preparing.
fn scratch_of<T: Element>(a: &Matrix, b: &Matrix) -> Option<usize> {
    let job = Job::<T>::new(a, b, std::ptr::null_mut());
    let depth = a.depth.len();
    if job.count() == 0 || depth == 0 || depth > SPAN {
        return None;
    }
    match job.cut() {
        cut @ Cut::Items(1) => Some(job.scratch_parts(&cut).0),
        Cut::Items(_) | Cut::Cells(..) => None,
    }
}
