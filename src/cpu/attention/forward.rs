//! The forward pass of attention, by blocks of queries and keys.

use smallvec::SmallVec;

use crate::array::Array;
use crate::cpu::dense::{Real, Store};
use crate::cpu::element::Shared;
use crate::cpu::gemm::kernel::Row;
use crate::cpu::gemm::panels::{Panels, Strided, product};
use crate::cpu::gemm::scratch::{self, Scratch};
use crate::cpu::gemm::stream;
use crate::dtype::DType;
use crate::error::Result;
use crate::memory::{Buffer, block_bytes};
use crate::ops::emit::OrThrow;
use crate::shape::Shape;
use crate::threads::{self, Pace};

use super::block::{self, LANES};
use super::{KEYS, OP, Problem, Sizes, in_order, panels};

/// `softmax(scale · q kᵀ + mask) v` and the logarithms of the sums of exponentials, into results
/// that are there.
///
/// `q` (…, L, E), `k` (…, S, E) and `v` (…, S, F) are of one floating dtype and have the same
/// leading axes. `mask` broadcasts to (…, L, S): bool, or floating. Gives (…, L, F) of that dtype,
/// and (…, L) of the accumulator's.
///
/// # Safety
/// They are in C order, of the results' types, and nobody else reads or writes them.
pub unsafe fn forward_into(
    q: &Array,
    k: &Array,
    v: &Array,
    mask: Option<&Array>,
    causal: bool,
    scale: f64,
    to: [&Array; 2],
) -> Result<()> {
    // SAFETY: by contract.
    unsafe {
        if q.dtype == DType::F64 {
            typed::<f64>([q, k, v], mask, causal, scale, to)
        } else {
            typed::<f32>([q, k, v], mask, causal, scale, to)
        }
    }
}

/// Where the results are written.
struct Results<T: Real> {
    y: Shared<u8>,
    size: usize,
    store: Store<T>,
    logsums: Shared<T>,
}

unsafe fn typed<T: Real>(
    operands: [&Array; 3],
    mask: Option<&Array>,
    causal: bool,
    scale: f64,
    [y, logsums]: [&Array; 2],
) -> Result<()> {
    let problem = Problem::<T>::new(operands, mask, causal, scale)?;
    // SAFETY: by contract.
    let results = unsafe {
        Results {
            y: Shared::new(y.ptr_mut()),
            size: y.dtype.size(),
            store: T::storer(y.dtype, OP, "q")?,
            logsums: Shared::new(logsums.ptr_mut().cast()),
        }
    };
    problem.forward(&results)
}

/// Where a block of keys, transposed, and one of values are found.
#[derive(Clone, Copy)]
enum Source<T> {
    /// Packed with all others of their example
    Packed(*const T, *const T),
    /// To be packed here
    Here(*mut T),
}

/// The bytes that [`forward`] takes for itself, as the counters of memory count them.
pub fn forward_scratch(dtype: DType, q: &Shape, v: &Shape, causal: bool) -> usize {
    fn bytes<T: Real>(sizes: &Sizes<T>) -> usize {
        if sizes.items * sizes.l == 0 {
            return 0;
        }
        let size = sizes.forward_workspace() * size_of::<T>();
        if sizes.packs_here() {
            return scratch::counted(size, threads::num_threads());
        }
        let (item, group) = (sizes.forward_item(), sizes.group(sizes.forward_item()));
        let packed = block_bytes(group * item * size_of::<T>());
        packed + scratch::counted(size, sizes.forward_parts(group))
    }
    if dtype == DType::F64 {
        bytes::<f64>(&Sizes::new(q, v, causal))
    } else {
        bytes::<f32>(&Sizes::new(q, v, causal))
    }
}

impl<T: Real> Sizes<T> {
    /// Whether keys and values are packed where they are read: what is read once is, if that leaves
    /// nobody without work.
    fn packs_here(&self) -> bool {
        self.l <= self.queries && self.items >= threads::num_threads()
    }

    /// Elements that the transposed keys and the values of one example take.
    fn forward_item(&self) -> usize {
        self.wide(self.s) * (self.e + self.wide(self.f))
    }

    /// Elements that a thread works in: those of [`Problem::rows`], and a block of keys and values.
    fn forward_workspace(&self) -> usize {
        self.rows_workspace() + self.step * (2 * self.e + self.wide(self.f))
    }

    fn rows_workspace(&self) -> usize {
        let rows = self.queries.next_multiple_of(LANES);
        rows * (self.step + self.e + self.wide(self.f) + 3)
    }

    /// Threads that have work.
    fn forward_parts(&self, group: usize) -> usize {
        let [rows, keys] = self.blocks();
        threads::num_threads().min(group * rows.max(keys))
    }
}

impl<T: Real> Problem<T> {
    fn forward(&self, results: &Results<T>) -> Result<()> {
        if self.items * self.l == 0 {
            return Ok(());
        }
        let [rows, keys] = self.blocks();
        let size = self.forward_workspace() * size_of::<T>();
        let work = self.queries.min(self.l) * self.s * (self.e + self.f);
        if self.packs_here() {
            let scratch = Scratch::new(size, threads::num_threads())?;
            in_order(self.items, work, |item| {
                let part = scratch.lend(size).or_throw();
                let workspace = part.ptr().cast::<T>();
                let here = Source::Here(workspace.wrapping_add(self.rows_workspace()));
                // SAFETY: this example is this task's.
                unsafe { self.rows(item, 0, here, workspace, results) };
            });
            return Ok(());
        }
        let k_size = self.wide(self.s) * self.e;
        let (item, group) = (self.forward_item(), self.group(self.forward_item()));
        let packed = Buffer::alloc(group * item * size_of::<T>())?;
        // SAFETY: fresh.
        let packed = Shared::new(unsafe { packed.ptr_mut() }.cast::<T>());
        let place = |i: usize| packed.at((i * item) as isize);
        let scratch = Scratch::new(size, self.forward_parts(group))?;
        for first in (0..self.items).step_by(group) {
            let items = group.min(self.items - first);
            in_order(items * keys, 4 * self.keys * (self.e + self.f), |task| {
                let (i, j) = (task / keys, task % keys * self.keys);
                let part = scratch.lend(size).or_throw();
                let (k, v) = (place(i), place(i).wrapping_add(k_size));
                let k = k.wrapping_add(j * self.e);
                let v = (v.wrapping_add(j * self.kernels.width), self.wide(self.s));
                // SAFETY: this block of this example is this task's.
                unsafe { self.pack(first + i, j, k, v, part.ptr().cast()) };
            });
            in_order(items * rows, work, |task| {
                // Later queries reach more keys: they come first.
                let (i, row) = (task / rows, (rows - 1 - task % rows) * self.queries);
                let part = scratch.lend(size).or_throw();
                let source = Source::Packed(place(i), place(i).wrapping_add(k_size));
                // SAFETY: these rows of this example are this task's.
                unsafe { self.rows(first + i, row, source, part.ptr().cast(), results) };
            });
        }
        Ok(())
    }

    /// Packs keys and values of the block from `j` on: the values into panels of `v.1` rows.
    unsafe fn pack(&self, item: usize, j: usize, k: *mut T, v: (*mut T, usize), temp: *mut T) {
        let n = self.keys.min(self.s - j);
        // SAFETY: by contract.
        unsafe {
            self.transpose(&self.k, [item, j], [n, self.e], k, temp);
            self.pack_panels(&self.v, [item, j], [n, self.f], v);
        }
    }

    /// The keys and values of the block from `j` on.
    unsafe fn block(&self, source: Source<T>, item: usize, j: usize) -> [Panels<T>; 2] {
        let (width, across) = (self.kernels.width, self.e * self.kernels.width);
        match source {
            Source::Packed(k, v) => {
                let v = v.wrapping_add(j * width);
                let panel = self.wide(self.s) * width;
                [panels(k.wrapping_add(j * self.e), across, width), panels(v, panel, width)]
            }
            Source::Here(workspace) => {
                let (k, temp) = (workspace, workspace.wrapping_add(self.step * self.e));
                let v = temp.wrapping_add(self.step * self.e);
                // SAFETY: the workspace is as large as `forward_workspace` says.
                unsafe { self.pack(item, j, k, (v, self.keys), temp) };
                [panels(k, across, width), panels(v, self.keys * width, width)]
            }
        }
    }

    /// Writes `n` rows from row `j` on into panels of `all` rows.
    pub(super) unsafe fn pack_panels(
        &self,
        x: &super::Matrix<T>,
        [item, j]: [usize; 2],
        [n, columns]: [usize; 2],
        (dst, all): (*mut T, usize),
    ) {
        let width = self.kernels.width;
        for (panel, column) in (0..columns).step_by(width).enumerate() {
            let wide = width.min(columns - column);
            let dst = dst.wrapping_add(panel * all * width);
            // SAFETY: by contract.
            unsafe {
                x.read((dst, width), [item, j, column], [n, wide], T::ONE);
                if wide < width {
                    for r in 0..n {
                        let rest = dst.add(r * width + wide);
                        std::slice::from_raw_parts_mut(rest, width - wide).fill(T::ZERO);
                    }
                }
            }
        }
    }

    /// Computes the rows of the results from query `i` on.
    unsafe fn rows(
        &self,
        item: usize,
        i: usize,
        source: Source<T>,
        workspace: *mut T,
        results: &Results<T>,
    ) {
        let rows = self.queries.min(self.l - i);
        let (tall, wide) = (self.queries.next_multiple_of(LANES), self.wide(self.f));
        // SAFETY: the workspace is as large as `forward_workspace` says.
        unsafe {
            let scores = workspace;
            let q = scores.add(tall * self.step);
            let sums_of_values = q.add(tall * self.e);
            let maxima = sums_of_values.add(tall * wide);
            let (sums, factors) = (maxima.add(tall), maxima.add(2 * tall));
            self.q.read((q, self.e), [item, i, 0], [rows, self.e], self.scale);
            let rest = (tall - rows) * self.e;
            std::slice::from_raw_parts_mut(q.add(rows * self.e), rest).fill(T::ZERO);
            std::slice::from_raw_parts_mut(sums_of_values, tall * wide).fill(T::ZERO);
            std::slice::from_raw_parts_mut(maxima, tall).fill(-T::infinity());
            std::slice::from_raw_parts_mut(sums, 2 * tall).fill(T::ZERO);
            let q = Strided { ptr: q.cast_const(), strides: (self.e as isize, 1) };
            let p = Strided { ptr: scores.cast_const(), strides: (self.step as isize, 1) };
            let reach = self.reach(i + rows);
            let there = match source {
                Source::Here(_) => self.kernel_there(rows),
                Source::Packed(..) => None,
            };
            let mut pace = Pace::default();
            for j in (0..reach).step_by(self.keys) {
                let n = self.keys.min(reach - j);
                pace.multiplied(rows * n * (self.e + self.f));
                if self.is_closed(item, [i, j], [rows, n]) {
                    continue;
                }
                let packed = match there {
                    Some(kernel) => {
                        self.score_there(kernel, [item, j], n, q.ptr, scores);
                        None
                    }
                    None => {
                        let [keys, values] = self.block(source, item, j);
                        let to = (scores, self.step);
                        product(&self.kernels, [rows, n, self.e], q, keys, to, true);
                        Some(values)
                    }
                };
                self.mask(scores, item, [i, j], [rows, n]);
                let filled = n.next_multiple_of(LANES);
                block::soften::<T>(scores, self.step, [rows, filled], [maxima, sums, factors]);
                block::rescale::<T>(sums_of_values, wide, [rows, wide], factors);
                let to = (sums_of_values, wide);
                match packed {
                    Some(values) => {
                        product(&self.kernels, [rows, self.f, n], p, values, to, false);
                    }
                    None => self.add_there([item, j], n, p, to),
                }
            }
            block::finish::<T>(sums_of_values, wide, [rows, wide], [maxima, sums]);
            let at = item * self.l + i;
            let y = results.y.at((at * self.f * results.size) as isize);
            (results.store)(y, self.f, sums_of_values, wide, [rows, self.f], T::ONE);
            results.logsums.at(at as isize).copy_from_nonoverlapping(sums, rows);
        }
    }

    /// The kernel for scores where keys and values are read where they lie: for one query, as when a
    /// text is continued, to pack them takes longer than to multiply them.
    fn kernel_there(&self, rows: usize) -> Option<Row<T>> {
        let is_dense = self.k.dense() && self.v.dense();
        self.kernels.row.filter(|_| rows == 1 && self.e > 0 && is_dense)
    }

    /// The scores of a query and `n` keys from `j` on, as [`product`] gives them.
    ///
    /// # Safety
    /// There are `e` elements at `q`, and these keys; `to` has room for the scores.
    unsafe fn score_there(
        &self,
        kernel: Row<T>,
        [item, j]: [usize; 2],
        n: usize,
        q: *const T,
        to: *mut T,
    ) {
        let first = self.k.at(item, j, 0).cast::<T>();
        let key = |u: usize| first.wrapping_offset(u as isize * self.k.strides[0]);
        // SAFETY: by contract.
        unsafe {
            stream::row(kernel, (n, self.e), (q, 1), key, |at, sums, fresh| {
                for (k, &sum) in sums.iter().enumerate() {
                    let to = to.add(at + k);
                    *to = if fresh { sum } else { *to + sum };
                }
            });
        }
    }

    /// Adds the weighted sum of `n` values from `j` on, as [`product`] does.
    ///
    /// # Safety
    /// There are these weights at `p`, and values; `to` has `f` sums.
    unsafe fn add_there(
        &self,
        [item, j]: [usize; 2],
        n: usize,
        p: Strided<T>,
        (to, to_row): (*mut T, usize),
    ) {
        let offsets: SmallVec<[isize; KEYS]> =
            (0..n).map(|i| i as isize * self.v.strides[0]).collect();
        let (size, v) = ((1, self.f), self.v.at(item, j, 0).cast());
        // SAFETY: by contract.
        unsafe {
            (self.kernels.stream)(size, p.ptr, p.strides, v, &offsets, to, to_row as isize, false);
        }
    }
}
