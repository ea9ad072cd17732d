//! Scaled dot product attention, and its gradient, without the square of its scores.
//!
//! Queries are taken in blocks, and for each of them keys in blocks: the scores of two blocks are
//! the only ones there are at a time. The softmax runs along (Milakov, Gimelshein: Online
//! normalizer calculation for softmax, 2018; Dao et al.: FlashAttention, 2022), and the log-sums of
//! the exponentials are what backward needs to make the weights again.
//!
//! Promises:
//!
//! - The bits depend on the dtypes, the attributes and the logical shapes: not on strides, threads,
//!   or on how many examples stand beside one. An element of the result is a sum over blocks of
//!   keys in their order (of queries, for the cotangents of keys and values); sizes of blocks
//!   depend on the machine and the dtype.
//! - All is calculated in the accumulator's dtype: half floats are widened when they are read and
//!   rounded once, at the end.
//! - Blocks above the diagonal of causal attention, and blocks that a bool mask takes away as a
//!   whole, are skipped: the values there are not looked at, so that what is not finite among them
//!   reaches nobody. (In other blocks, a weight of zero times infinity is NaN.)
//! - A row that attends to nothing is NaN, and its log-sum −∞. Its weights are NaN in backward too.

mod backward;
mod block;
mod forward;
#[cfg(test)]
mod tests;

use std::ops::Deref;

use smallvec::SmallVec;

use crate::array::Array;
use crate::cpu::dense::{Load, Real, Shift};
use crate::cpu::gemm::{Axis, kernel::Kernels, pack, panels::Panels};
use crate::dtype::DType;
use crate::error::Result;
use crate::shape::Shape;
use crate::threads;

use block::LANES;

pub use backward::{Saved, backward_into, backward_scratch};
pub use forward::{forward_into, forward_scratch};

/// The op in whose name is refused.
const OP: &str = "scaled_dot_product_attention";
/// The most queries in a block, and the fewest where threads would be left without a block.
const QUERIES: usize = 132;
const FEW_QUERIES: usize = 60;
/// Queries in a block of causal attention: those near the diagonal are calculated for nothing.
const CAUSAL_QUERIES: usize = 24;
/// Up to this many queries are not worth more blocks.
const SHORT: usize = 512;
/// Blocks that as many threads find work in, in a single example of more queries.
const BLOCKS: usize = 16;
/// Keys in a block, before they are rounded to whole panels.
const KEYS: usize = 128;
/// Products worth handing to another thread.
const CHUNK: usize = 1 << 19;
/// Bytes of packed operands that are kept at a time for each thread, where one example takes no
/// more.
const PACKED: usize = 128 << 10;

/// An operand as it lies: where, and its axes in elements.
struct Matrix<T> {
    ptr: *const u8,
    size: usize,
    batch: Axis,
    strides: [isize; 2],
    /// Whether elements lie in memory as the numbers that are calculated in
    is_native: bool,
    load: Load<T>,
}

// SAFETY: operands are only read.
unsafe impl<T> Sync for Matrix<T> {}

impl<T: Real> Matrix<T> {
    /// `x` with its last axes as rows and columns.
    fn new(x: &Array, name: &str) -> Result<Matrix<T>> {
        let strides = x.layout.strides();
        let rank = strides.len();
        Ok(Matrix {
            ptr: x.ptr(),
            size: x.dtype.size(),
            batch: leading(&x.shape().sizes(), &strides, 2),
            strides: [strides[rank - 2], strides[rank - 1]],
            is_native: x.dtype == T::DTYPE,
            load: T::loader(x.dtype, OP, name)?,
        })
    }

    /// `x` with its last axis as rows of one column.
    fn column(x: &Array, name: &str) -> Result<Matrix<T>> {
        let strides = x.layout.strides();
        Ok(Matrix {
            ptr: x.ptr(),
            size: x.dtype.size(),
            batch: leading(&x.shape().sizes(), &strides, 1),
            strides: [strides[strides.len() - 1], 1],
            is_native: x.dtype == T::DTYPE,
            load: T::loader(x.dtype, OP, name)?,
        })
    }

    /// Whether rows are dense rows of numbers already.
    fn dense(&self) -> bool {
        self.is_native && (self.strides[1] == 1)
    }

    /// The element of an example at a row and a column.
    fn at(&self, item: usize, row: usize, column: usize) -> *const u8 {
        at(self.ptr, self.size, &self.batch, self.strides, [item, row, column])
    }

    /// Reads rows and columns from there on into dense rows.
    ///
    /// # Safety
    /// They are inside the operand, and `dst` has room for them.
    unsafe fn read(
        &self,
        (dst, step): (*mut T, usize),
        [item, row, column]: [usize; 3],
        size: [usize; 2],
        factor: T,
    ) {
        // SAFETY: by contract.
        unsafe { (self.load)(dst, step, self.at(item, row, column), self.strides, size, factor) };
    }
}

fn leading(sizes: &[usize], strides: &[isize], last: usize) -> Axis {
    let n = sizes.len() - last;
    Axis::new(sizes[..n].iter().copied().zip(strides[..n].iter().copied()))
}

fn at(
    ptr: *const u8,
    size: usize,
    batch: &Axis,
    strides: [isize; 2],
    [item, row, column]: [usize; 3],
) -> *const u8 {
    let offset = batch.at(item) + row as isize * strides[0] + column as isize * strides[1];
    ptr.wrapping_offset(offset * size as isize)
}

/// A mask as it lies.
struct Mask<T> {
    ptr: *const u8,
    size: usize,
    batch: Axis,
    strides: [isize; 2],
    /// How a floating mask is added; a bool mask has none
    shift: Option<Shift<T>>,
}

/// The sizes of a problem, and how it is cut.
struct Sizes<T: Real> {
    causal: bool,
    /// Examples
    items: usize,
    /// Counts of queries and of keys, sizes of a key and of a value
    l: usize,
    s: usize,
    e: usize,
    f: usize,
    kernels: Kernels<T>,
    /// Queries and keys in a block, and elements from row to row of one
    queries: usize,
    keys: usize,
    step: usize,
}

impl<T: Real> Sizes<T> {
    fn new(q: &Shape, v: &Shape, causal: bool) -> Sizes<T> {
        let (sizes, values) = (q.sizes(), v.sizes());
        let rank = sizes.len();
        let kernels = T::kernels();
        let (high, width) = (kernels.tiles[0].rows, kernels.width);
        let l = sizes[rank - 2];
        let queries = match l {
            _ if causal => CAUSAL_QUERIES,
            0..=SHORT => QUERIES.min(l.next_multiple_of(high)).max(high),
            _ => (l / BLOCKS).clamp(FEW_QUERIES, QUERIES),
        };
        let keys = KEYS / width * width;
        Sizes {
            causal,
            items: sizes[..rank - 2].iter().product(),
            l,
            s: values[rank - 2],
            e: sizes[rank - 1],
            f: values[rank - 1],
            kernels,
            queries: queries / high * high,
            keys,
            step: keys.next_multiple_of(LANES),
        }
    }

    /// A size rounded up to whole panels.
    fn wide(&self, n: usize) -> usize {
        n.next_multiple_of(self.kernels.width)
    }

    /// Keys that some of the queries before `end` may attend to.
    fn reach(&self, end: usize) -> usize {
        if self.causal { self.s.min(end) } else { self.s }
    }

    /// Blocks of queries, and of keys.
    fn blocks(&self) -> [usize; 2] {
        [self.l.div_ceil(self.queries), self.s.div_ceil(self.keys)]
    }

    /// How many examples of so many elements are packed at a time.
    fn group(&self, item: usize) -> usize {
        let bytes = PACKED * threads::num_threads();
        (bytes / (item * size_of::<T>()).max(1)).clamp(1, self.items.max(1))
    }
}

/// Queries, keys and values, and what is done to their scores.
struct Problem<T: Real> {
    q: Matrix<T>,
    k: Matrix<T>,
    v: Matrix<T>,
    mask: Option<Mask<T>>,
    scale: T,
    sizes: Sizes<T>,
}

// SAFETY: operands are only read.
unsafe impl<T: Real> Sync for Problem<T> {}

impl<T: Real> Deref for Problem<T> {
    type Target = Sizes<T>;
    fn deref(&self) -> &Sizes<T> {
        &self.sizes
    }
}

impl<T: Real> Problem<T> {
    fn new(
        [q, k, v]: [&Array; 3],
        mask: Option<&Array>,
        causal: bool,
        scale: f64,
    ) -> Result<Problem<T>> {
        let sizes = Sizes::new(q.shape(), v.shape(), causal);
        Ok(Problem {
            q: Matrix::new(q, "q")?,
            k: Matrix::new(k, "k")?,
            v: Matrix::new(v, "v")?,
            mask: mask.map(|mask| Mask::new(mask, q, sizes.s)).transpose()?,
            scale: T::lit(scale),
            sizes,
        })
    }

    /// Whether a mask takes away a block as a whole.
    fn is_closed(&self, item: usize, [i, j]: [usize; 2], size: [usize; 2]) -> bool {
        let Some(Mask { shift: None, ptr, size: bytes, batch, strides }) = &self.mask else {
            return false;
        };
        let from = at(*ptr, *bytes, batch, *strides, [item, i, j]);
        // SAFETY: the block is inside the scores, to which the mask was broadcast.
        unsafe { !block::is_open(from, *strides, size) }
    }

    /// Applies the mask to a block of scores from query `i` and key `j` on, and takes away what
    /// rows have behind their keys.
    ///
    /// # Safety
    /// `s` is a block of this size.
    unsafe fn mask(&self, s: *mut T, item: usize, [i, j]: [usize; 2], size: [usize; 2]) {
        if let Some(mask) = &self.mask {
            let from = at(mask.ptr, mask.size, &mask.batch, mask.strides, [item, i, j]);
            // SAFETY: by contract; the mask was broadcast to the scores.
            unsafe {
                match mask.shift {
                    Some(shift) => shift(s, self.step, from, mask.strides, size),
                    None => block::hide::<T>(s, self.step, from, mask.strides, size),
                }
            }
        }
        let reach = if self.causal { (i + 1) as isize - j as isize } else { isize::MAX };
        // SAFETY: by contract.
        unsafe { block::close::<T>(s, self.step, size, reach) };
    }

    /// Writes `n` rows of `columns` elements from row `j` on transposed: panels of rows, of which
    /// each has lines of elements. `temp` has room for the rows.
    ///
    /// # Safety
    /// They are inside; `dst` has room for whole panels.
    unsafe fn transpose(
        &self,
        x: &Matrix<T>,
        [item, j]: [usize; 2],
        [n, columns]: [usize; 2],
        dst: *mut T,
        temp: *mut T,
    ) {
        let width = self.kernels.width;
        let (from, row) = match x.dense() {
            true => (x.at(item, j, 0).cast::<T>(), x.strides[0]),
            false => {
                // SAFETY: by contract.
                unsafe { x.read((temp, columns), [item, j, 0], [n, columns], T::ONE) };
                (temp.cast_const(), columns as isize)
            }
        };
        let runs = Axis::new([(columns, 1)]).runs(0, columns);
        let offsets: SmallVec<[isize; KEYS]> = (0..n).map(|i| i as isize * row).collect();
        for (panel, offsets) in offsets.chunks(width).enumerate() {
            let dst = dst.wrapping_add(panel * columns * width);
            // SAFETY: by contract.
            unsafe { pack::transposed(dst, width, from, offsets, &runs, self.kernels.transpose) };
        }
    }
}

impl<T: Real> Mask<T> {
    fn new(mask: &Array, q: &Array, s: usize) -> Result<Mask<T>> {
        let mut sizes = q.shape().sizes();
        let rank = sizes.len();
        sizes[rank - 1] = s;
        let strides = mask.layout.broadcast_strides(&Shape::of(&sizes));
        Ok(Mask {
            ptr: mask.ptr(),
            size: mask.dtype.size(),
            batch: leading(&sizes, &strides, 2),
            strides: [strides[rank - 2], strides[rank - 1]],
            shift: (mask.dtype != DType::Bool)
                .then(|| T::shifter(mask.dtype, OP, "mask"))
                .transpose()?,
        })
    }
}

/// Runs tasks, each of so much work, in order; on several threads where that pays, about as many for
/// each of them.
fn in_order(tasks: usize, work: usize, run: impl Fn(usize) + Sync) {
    if tasks == 0 {
        return;
    }
    let most = (CHUNK / work.max(1)).clamp(1, tasks);
    let chunks = match tasks.div_ceil(most) {
        1 => 1,
        chunks => chunks.next_multiple_of(threads::num_threads()).min(tasks),
    };
    threads::for_each_chunk(tasks, tasks.div_ceil(chunks), |range| range.for_each(&run));
}

/// Rows of a matrix of the packed form.
fn panels<T>(ptr: *const T, panel: usize, row: usize) -> Panels<T> {
    Panels { ptr, panel, row }
}
