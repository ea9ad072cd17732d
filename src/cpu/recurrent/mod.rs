//! Recurrent layers over whole sequences, and their gradients.
//!
//! The weights of the state are packed once. Then each thread takes some rows (examples) through
//! all steps, so there is nothing to wait for in between; where rows are too few for that and a step
//! is long, threads share the units of each step instead. The sums of a few units are
//! computed for all their gates, and what follows is done while they are in the cache.
//!
//! Promises: the bits depend on the dtypes and logical shapes alone, not on threads or on the rows
//! beside a row. Sums are those of [`gemm`](super::gemm) within one of its spans, and every other
//! operation is rounded as in the formula; so up to 8192 units (2048 in the gradient of an LSTM)
//! the bits are the formula's.

mod backward;
pub mod call;
mod cells;
mod forward;
#[cfg(test)]
mod tests;

use crate::cpu::dense::Real;
use crate::cpu::element::Shared;
use crate::cpu::gemm::kernel::{BASE_FUSES, BLOCK, Element, Kernels};
use crate::cpu::gemm::panels::{Panels, Strided, product};
use crate::cpu::gemm::{Axis, pack};
use crate::error::Result;
use crate::memory::{Buffer, block_bytes};
use crate::multiversion;
use crate::simd::isa;
use crate::threads;
use cells::Lines;

/// Fewer rows for each thread would leave tiles half empty.
const FEW: usize = 4;
/// Multiplications of a step that are worth sharing between threads.
const SHARED: usize = 1 << 19;
/// Multiplications of a whole sequence that are worth another thread.
const CHUNK: usize = 1 << 18;
/// The most rows whose sums are computed at a time.
const ROWS: usize = 48;
/// Panels that one row is multiplied by at a time.
const ABREAST: usize = 4;
/// Elements to whose multiple parts of a buffer are rounded up.
const ALIGNED: usize = 16;

/// What is calculated at every step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Long short-term memory
    Lstm,
    /// Gated recurrent units
    Gru,
    /// A simple net, whose sums become their positive part or their hyperbolic tangent
    #[allow(missing_docs)]
    Rnn { relu: bool },
}

impl Form {
    fn gates(self) -> usize {
        match self {
            Form::Lstm => 4,
            Form::Gru => 3,
            Form::Rnn { .. } => 1,
        }
    }
}

/// The sizes of a layer.
#[derive(Clone, Copy)]
pub struct Sizes {
    /// What it calculates
    pub form: Form,
    /// Steps, examples and units
    pub steps: usize,
    pub rows: usize,
    pub units: usize,
    /// Whether it goes from the last step to the first
    pub reverse: bool,
}

/// How the work is shared between threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Share {
    /// So many rows are a thread's for all steps
    Rows(usize),
    /// The units of a step are divided into so many parts
    Units(usize),
}

impl Sizes {
    /// Sums of one row and step.
    fn sums(&self) -> usize {
        self.form.gates() * self.units
    }

    fn share<T: Real>(&self, threads: usize) -> Share {
        let high = T::kernels().tiles[0].rows;
        let step = self.rows * self.sums() * self.units;
        if threads > 1 && self.rows < FEW * threads && step >= SHARED {
            return Share::Units(threads);
        }
        let parts = (step.saturating_mul(self.steps) / CHUNK).clamp(1, threads);
        // Whole tiles, but where that would leave a thread without rows.
        let each = self.rows.div_ceil(parts).max(1);
        Share::Rows(if each > high { each.next_multiple_of(FEW) } else { each })
    }

    /// The place of a step in the sequence.
    fn at(&self, step: usize) -> usize {
        if self.reverse { self.steps - 1 - step } else { step }
    }

    /// Elements of the packed weights, which are products by panels of so many columns.
    fn packed(&self, width: usize) -> usize {
        self.units.next_multiple_of(width) * self.sums()
    }
}

/// The rows that tiles read and write for so many.
fn tall<T: Element>(kernels: &Kernels<T>, rows: usize) -> usize {
    let high = kernels.tiles[0].rows;
    let rest = rows % high;
    let fit = kernels.tiles.iter().rev().find(|tile| tile.rows >= rest);
    rows - rest + if rest == 0 { 0 } else { fit.map_or(high, |tile| tile.rows) }
}

/// Memory of a kernel: so many parts of some elements each, all zero.
struct Memory<T> {
    buffer: Buffer,
    each: usize,
    start: Shared<T>,
}

impl<T: Real> Memory<T> {
    fn new(parts: usize, each: usize) -> Result<Memory<T>> {
        let each = each.next_multiple_of(ALIGNED);
        let buffer = Buffer::zeroed(parts * each * size_of::<T>())?;
        // SAFETY: fresh.
        let start = Shared::new(unsafe { buffer.ptr_mut() }.cast());
        Ok(Memory { buffer, each, start })
    }

    /// The bytes that [`Memory::new`] takes, as the counters count them.
    fn counted(parts: usize, each: usize) -> usize {
        block_bytes(parts * each.next_multiple_of(ALIGNED) * size_of::<T>())
    }

    fn part(&self, i: usize) -> *mut T {
        debug_assert!((i + 1) * self.each * size_of::<T>() <= self.buffer.bytes().max(1));
        self.start.at((i * self.each) as isize)
    }
}

/// Elements that lie in C order, by rows of some gates.
fn lines<T>(ptr: *mut T, row: usize, gate: usize) -> Lines<T> {
    Lines { ptr, row, gate }
}

/// `c = a b`, of rows `rows` elements of `a` apart, by so many panels from `b` on.
///
/// # Safety
/// As for [`product`].
unsafe fn multiply<T: Real>(
    kernels: &Kernels<T>,
    [rows, panels, depth]: [usize; 3],
    (a, a_row): (*const T, usize),
    b: *const T,
    (c, c_row): (*mut T, usize),
) {
    let width = kernels.width;
    let b = Panels { ptr: b, panel: depth * width, row: width };
    let mut first = 0;
    // SAFETY: by contract.
    unsafe {
        if rows == 1
            && let Some(row) = row_kernel::<T>(width)
        {
            while first + ABREAST <= panels {
                row(depth, a, b.ptr.add(first * b.panel), c.add(first * width));
                first += ABREAST;
            }
        }
        let (b, c) = (Panels { ptr: b.ptr.add(first * b.panel), ..b }, c.add(first * width));
        let size = [rows, (panels - first) * width, depth];
        if first < panels {
            let a = Strided { ptr: a, strides: (a_row as isize, 1) };
            product(kernels, size, a, b, (c, c_row), true);
        }
    }
}

/// One row by [`ABREAST`] panels: the depth, the row, the panels, and the sums.
type RowKernel<T> = unsafe fn(usize, *const T, *const T, *mut T);

/// The kernel for panels of this width.
fn row_kernel<T: Real>(width: usize) -> Option<RowKernel<T>> {
    fn of<T: Real, const W: usize>() -> Option<RowKernel<T>> {
        let above = abreast::above::<T, true, W>(isa());
        Some(above.unwrap_or_else(abreast::base::<T, BASE_FUSES, W>))
    }
    match width {
        6 => of::<T, 6>(),
        8 => of::<T, 8>(),
        12 => of::<T, 12>(),
        16 => of::<T, 16>(),
        32 => of::<T, 32>(),
        _ => None,
    }
}

multiversion! {
    /// One row by [`ABREAST`] panels of `W` columns, each sum in the order of [`product`]. Fewer
    /// would wait for their sums.
    ///
    /// # Safety
    /// As for [`product`].
    #[expect(dead_code, reason = "the versions are asked for by their width")]
    unsafe fn abreast[T; const F: bool, const W: usize](
        depth: usize,
        a: *const T,
        b: *const T,
        c: *mut T,
    )
    where [T: Element]
    {
        let mut k = 0;
        while k < depth {
            let end = depth.min(k + BLOCK);
            let mut sums = [[T::default(); W]; ABREAST];
            // SAFETY: by contract.
            unsafe {
                for k in k..end {
                    let x = *a.add(k);
                    for (p, sums) in sums.iter_mut().enumerate() {
                        let row = b.add((p * depth + k) * W).cast::<[T; W]>().read_unaligned();
                        for (s, y) in sums.iter_mut().zip(row) {
                            *s = s.fma::<F>(x, y);
                        }
                    }
                }
                for (p, sums) in sums.iter().enumerate() {
                    let to = std::slice::from_raw_parts_mut(c.add(p * W), W);
                    for (to, s) in to.iter_mut().zip(sums) {
                        *to = if k == 0 { *s } else { to.plus(*s) };
                    }
                }
            }
            k = end;
        }
    }
}

/// Packs the weights (gates · units, units), in C order, as panels of the units of each gate: the
/// gates of the first units, then those of the next.
///
/// # Safety
/// The weights can be read, and `to` has room for them.
unsafe fn pack_by_units<T: Real>(sizes: Sizes, weight: *const T, to: *mut T) {
    let (kernels, units, gates) = (T::kernels(), sizes.units, sizes.form.gates());
    let (weight, to) = (Shared::reading(weight), Shared::new(to));
    let width = kernels.width;
    let runs = Axis::new([(units, 1)]).runs(0, units);
    let panel = units * width;
    threads::for_each_chunk(units.div_ceil(width) * gates, in_a_chunk(panel), |range| {
        for i in range {
            let (unit, gate) = (i / gates * width, i % gates);
            let mut columns = [0; crate::cpu::gemm::kernel::TILE_WIDTH];
            let columns = &mut columns[..width.min(units - unit)];
            for (j, at) in columns.iter_mut().enumerate() {
                *at = ((gate * units + unit + j) * units) as isize;
            }
            let to = to.at((i * panel) as isize);
            // SAFETY: by contract.
            unsafe { pack::transposed(to, width, weight.at(0), columns, &runs, kernels.transpose) };
        }
    });
}

/// Packs the weights as panels of columns, whose lines are those of all gates.
///
/// # Safety
/// As for [`pack_by_units`].
unsafe fn pack_by_gates<T: Real>(sizes: Sizes, weight: *const T, to: *mut T) {
    let (width, units, depth) = (T::kernels().width, sizes.units, sizes.sums());
    let (weight, to) = (Shared::reading(weight), Shared::new(to));
    let lines: Vec<isize> = (0..depth).map(|i| (i * units) as isize).collect();
    let panel = depth * width;
    threads::for_each_chunk(units.div_ceil(width), in_a_chunk(panel), |range| {
        for i in range {
            let runs = Axis::new([(units, 1)]).runs(0, width.min(units - i * width));
            let from = weight.at((i * width) as isize);
            let to = to.at((i * panel) as isize);
            // SAFETY: by contract.
            unsafe { pack::lines(to, width, from, &lines, &runs, 1) };
        }
    });
}

/// How many panels of so many elements are worth a chunk.
fn in_a_chunk(panel: usize) -> usize {
    (CHUNK / panel.max(1)).max(1)
}
