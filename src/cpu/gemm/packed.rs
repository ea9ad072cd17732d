//! Operands packed as a whole, ahead of the products that read them.

use std::any::TypeId;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use super::kernel::{BLOCK, Element, Kernels};
use super::tile::Tile;
use super::{Axis, CHUNK, Job, Matrix, with_accumulator};
use crate::cpu::element::Shared;
use crate::dtype::DType;
use crate::error::Result;
use crate::memory::Buffer;
use crate::threads::{self, Pace};

/// The most bytes of [`Packed`] operands at a time.
const LIMIT: usize = 512 << 20;
/// The fewest columns, and the fewest elements, of an operand that is packed ahead.
const LEAST_COLUMNS: usize = 16;
const LEAST: usize = 1024;
/// The bytes of those that there are.
static BYTES: AtomicUsize = AtomicUsize::new(0);

/// Elements of an operand in packed form.
pub fn elements<T: Element>(kernels: &Kernels<T>, x: &Matrix) -> usize {
    x.batch.len() * x.own.len().next_multiple_of(kernels.width) * x.depth.len()
}

/// Packs an operand: for each matrix of the batch and each panel of columns all steps of `k`.
/// Columns beyond the last are zeros, or repeat it.
///
/// # Safety
/// The operand can be read wherever its axes point, and `to` has [`elements`].
pub unsafe fn pack<T: Element>(kernels: Kernels<T>, x: &Matrix, to: *mut T) {
    let job = Job::with(kernels, x, x, std::ptr::null_mut());
    let (width, n, depth) = (job.kernels.width, x.own.len(), x.depth.len());
    let (strips, to) = (n.div_ceil(width), Shared::new(to));
    let work = CHUNK / 8 / (depth * width).max(1);
    threads::for_each_chunk(x.batch.len() * strips, work.max(1), |range| {
        let mut pace = Pace::default();
        for i in range {
            let (batch, first) = (i / strips, i % strips * width);
            let at = x.ptr.cast::<T>().wrapping_offset(x.batch.at(batch));
            let out = std::ptr::null_mut();
            let tile = Tile { job: &job, a: at, b: at, out, batch, rows: 0..0, columns: 0..n };
            for k in (0..depth).step_by(BLOCK) {
                let steps = k..depth.min(k + BLOCK);
                pace.work(steps.len() * width);
                let to = to.at(((i * depth + k) * width) as isize);
                // SAFETY: by contract; a panel is one call's.
                unsafe { tile.pack(&(first..n.min(first + width)), &steps, to) };
            }
        }
    });
}

/// Whether products gain from an operand that is packed before: it fills panels, and its products
/// take longer than to find it.
pub fn pays(x: &Matrix) -> bool {
    x.own.len() >= LEAST_COLUMNS && x.own.len() * x.depth.len() >= LEAST
}

/// An operand that several products read, packed once. All of them together take a bounded number
/// of bytes.
pub struct Packed {
    buffer: Buffer,
    bytes: usize,
    element: TypeId,
    axes: [Axis; 3],
}

impl Packed {
    /// Packs an operand, whose elements are of one of [`accumulator`](super::accumulator)'s dtypes;
    /// `None` where it would take too many bytes.
    ///
    /// # Safety
    /// The operand can be read wherever its axes point.
    pub unsafe fn new(dtype: DType, x: &Matrix) -> Result<Option<Packed>> {
        with_accumulator!(dtype, T => {
            let kernels = T::kernels();
            let bytes = elements(&kernels, x) * size_of::<T>();
            let add = |sum: usize| (sum + bytes <= LIMIT).then_some(sum + bytes);
            if bytes == 0 || BYTES.fetch_update(Relaxed, Relaxed, add).is_err() {
                return Ok(None);
            }
            let buffer = Buffer::alloc(bytes).inspect_err(|_| {
                BYTES.fetch_sub(bytes, Relaxed);
            })?;
            let axes = [&x.batch, &x.own, &x.depth].map(Axis::clone);
            let packed = Packed { buffer, bytes, element: TypeId::of::<T>(), axes };
            // SAFETY: the buffer is fresh; the rest by contract.
            unsafe { pack::<T>(kernels, x, packed.buffer.ptr_mut().cast()) };
            Ok(Some(packed))
        })
    }

    /// Whether these are the panels of an operand with these axes.
    pub fn holds(&self, x: &Matrix) -> bool {
        self.axes == [&x.batch, &x.own, &x.depth].map(Axis::clone)
    }

    /// The panels, if they are those of an operand with these axes.
    pub fn panels<T: Element>(&self, x: &Matrix) -> Option<*const T> {
        let is_same = self.element == TypeId::of::<T>() && self.holds(x);
        is_same.then(|| self.buffer.ptr().cast())
    }
}

impl Drop for Packed {
    fn drop(&mut self) {
        BYTES.fetch_sub(self.bytes, Relaxed);
    }
}
