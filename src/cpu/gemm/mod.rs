//! Batched matrix products of operands with any layout.
//!
//! Promises: the bits of an element depend on its row of `a`, its column of `b` and the element type
//! alone: `k` is cut into blocks of [`BLOCK`](kernel::BLOCK), each summed as one ascending chain; the
//! blocks of a span are added in order, and so are the spans. Sizes, strides and threads only choose
//! which kernel walks that order. (NaNs keep no particular payload.)

mod axis;
mod kernel;
mod pack;

use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::OnceLock;

use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::memory::Buffer;
use crate::threads;

pub use axis::Axis;
use kernel::{BLOCK, Element, Kernels, STREAM_ROWS, TILE, TILE_WIDTH};

/// Elements of `k` whose blocks are added in order; longer sums are sums of spans.
const SPAN: usize = 32 * BLOCK;
/// Rows of `a` packed at a time: with `k` blocks a part of the L2 cache.
const ROWS: usize = 240;
/// Columns of `b` packed at a time.
const COLUMNS: usize = 2048;
/// Products worth handing to another thread.
const CHUNK: usize = 1 << 19;
/// Bytes of partial sums kept at a time when `k` has several spans.
const PARTIALS: usize = 8 << 20;

/// One operand: positions along the batch, along its own axis of the result, and along `k`.
#[derive(Clone, Debug)]
pub struct Operand {
    /// The element at index zero of all three
    pub ptr: *const u8,
    /// The batch
    pub batch: Axis,
    /// Rows of the result (for `a`), columns (for `b`)
    pub own: Axis,
    /// What is summed over
    pub depth: Axis,
}

// SAFETY: operands are only read.
unsafe impl Send for Operand {}
// SAFETY: as above.
unsafe impl Sync for Operand {}

/// `out[batch, rows, columns] = Σ a[batch, rows, k] b[batch, columns, k]`, with `out` in C order.
/// Narrow dtypes are the caller's to widen.
///
/// # Safety
/// `dtype` is one of [`accumulator`]'s; the operands can be read wherever their axes point, their
/// batches and depths have the same lengths, and `out` is as large as the result and written by
/// nobody else.
pub unsafe fn product(dtype: DType, a: &Operand, b: &Operand, out: *mut u8) -> Result<()> {
    // SAFETY: by contract.
    unsafe {
        match dtype {
            DType::F32 => typed::<f32>(a, b, out.cast()),
            DType::F64 => typed::<f64>(a, b, out.cast()),
            DType::I32 => typed::<i32>(a, b, out.cast()),
            DType::I64 => typed::<i64>(a, b, out.cast()),
            _ => typed::<u8>(a, b, out.cast()),
        }
    }
}

/// The dtype products of a dtype are summed in. Sums of wrapping integers keep their low bits
/// whatever the width and sign.
pub fn accumulator(dtype: DType) -> DType {
    match dtype {
        DType::Bool => DType::Bool,
        DType::I8 | DType::I16 | DType::I32 | DType::U8 | DType::U16 | DType::U32 => DType::I32,
        DType::I64 | DType::U64 => DType::I64,
        DType::F16 | DType::BF16 | DType::F32 => DType::F32,
        DType::F64 => DType::F64,
    }
}

unsafe fn typed<T: Element>(a: &Operand, b: &Operand, out: *mut T) -> Result<()> {
    let (batch, m, n, depth) = (a.batch.len(), a.own.len(), b.own.len(), a.depth.len());
    let count = batch * m * n;
    if count == 0 || depth == 0 {
        // SAFETY: zero bytes are zero in every element type.
        unsafe { out.write_bytes(0, count) };
        return Ok(());
    }
    // A tile is wide rather than high: few columns are better as rows.
    let kernels = T::kernels();
    let turned = n < m && n <= kernels.width / 4;
    let (a, b) = if turned { (b, a) } else { (a, b) };
    let (rows, columns, row, column) = if turned { (n, m, 1, n) } else { (m, n, n, 1) };
    let mut job = Job { a, b, rows, columns, row, column, out, kernels, batch, spans: 0..1 };
    if depth <= SPAN {
        return job.run();
    }
    let spans = depth.div_ceil(SPAN);
    let group = (PARTIALS / (count * size_of::<T>())).clamp(1, spans);
    let partials = Buffer::alloc(group * count * size_of::<T>())?;
    // SAFETY: fresh.
    job.out = unsafe { partials.ptr_mut() }.cast();
    for first in (0..spans).step_by(group) {
        job.spans = first..spans.min(first + group);
        job.run()?;
        for (i, span) in job.spans.clone().enumerate() {
            // SAFETY: `out` and the partials have `count` elements each, all written.
            unsafe { add(out, job.out.add(i * count), count, span == 0) };
        }
    }
    Ok(())
}

/// `out (+)= part`.
unsafe fn add<T: Element>(out: *mut T, part: *const T, count: usize, fresh: bool) {
    for i in 0..count {
        // SAFETY: by contract.
        unsafe {
            *out.add(i) = if fresh { *part.add(i) } else { (*out.add(i)).plus(*part.add(i)) }
        };
    }
}

/// A product to be cut into tiles. Its items are the pairs of span and batch index.
struct Job<'a, T: Element> {
    a: &'a Operand,
    b: &'a Operand,
    rows: usize,
    columns: usize,
    /// Strides of `out`, one of them 1
    row: usize,
    column: usize,
    out: *mut T,
    kernels: Kernels<T>,
    batch: usize,
    spans: Range<usize>,
}

// SAFETY: threads write disjoint tiles of `out`.
unsafe impl<T: Element> Sync for Job<'_, T> {}

impl<T: Element> Job<'_, T> {
    fn run(&self) -> Result<()> {
        let items = self.batch * self.spans.len();
        let work = self.rows * self.columns * self.a.depth.len().min(SPAN);
        let chunks = (items * work / CHUNK).clamp(1, 4 * threads::num_threads());
        let failure = OnceLock::new();
        let keep = |result: Result<()>| {
            if let Err(error) = result {
                let _ = failure.set(error);
            }
        };
        if chunks <= items {
            threads::parallel_for(chunks, &|chunk| {
                for item in items * chunk / chunks..items * (chunk + 1) / chunks {
                    // SAFETY: every item is one chunk's.
                    keep(unsafe { self.tile(item, 0..self.rows, 0..self.columns) });
                }
            });
        } else {
            let (high, wide) = self.grid(chunks.div_ceil(items).min(2 * threads::num_threads()));
            let cells = high * wide;
            threads::parallel_for(items * cells, &|chunk| {
                let (item, cell) = (chunk / cells, chunk % cells);
                let rows = part(self.rows, self.kernels.tiles[0].0, high, cell / wide);
                let columns = part(self.columns, self.kernels.width, wide, cell % wide);
                // SAFETY: every cell is one chunk's.
                keep(unsafe { self.tile(item, rows, columns) });
            });
        }
        failure.into_inner().map_or(Ok(()), |error: Error| Err(error))
    }

    /// Into how many parts rows and columns are cut for about `cells` cells of nearly square form.
    fn grid(&self, cells: usize) -> (usize, usize) {
        let (mut high, mut wide) = (1, 1);
        while high * wide < cells {
            let (h, w) = (self.rows / high, self.columns / wide);
            if w >= h && w >= 2 * self.kernels.width {
                wide *= 2;
            } else if h >= 2 * self.kernels.tiles[0].0 {
                high *= 2;
            } else {
                break;
            }
        }
        (high, wide)
    }

    /// Computes a rectangle of one item.
    unsafe fn tile(&self, item: usize, rows: Range<usize>, columns: Range<usize>) -> Result<()> {
        let (span, batch) = (self.spans.start + item / self.batch, item % self.batch);
        let depth = span * SPAN..self.a.depth.len().min((span + 1) * SPAN);
        // SAFETY: positions inside operands and result, as the axes say.
        let tile = unsafe {
            Tile {
                job: self,
                a: self.a.ptr.cast::<T>().offset(self.a.batch.at(batch)),
                b: self.b.ptr.cast::<T>().offset(self.b.batch.at(batch)),
                out: self.out.add(item * self.rows * self.columns),
                rows,
                columns,
            }
        };
        // SAFETY: as above.
        unsafe { tile.compute(depth) }
    }
}

/// The `i`-th of `parts` parts of `0..n`, cut at multiples of `step`.
fn part(n: usize, step: usize, parts: usize, i: usize) -> Range<usize> {
    let steps = n.div_ceil(step);
    (steps * i / parts * step).min(n)..(steps * (i + 1) / parts * step).min(n)
}

/// A rectangle of one matrix of the result.
struct Tile<'a, T: Element> {
    job: &'a Job<'a, T>,
    a: *const T,
    b: *const T,
    out: *mut T,
    rows: Range<usize>,
    columns: Range<usize>,
}

/// Panels of an operand as a kernel reads them.
#[derive(Clone, Copy)]
struct Panels<T> {
    ptr: *const T,
    /// From one panel's start to another's, for each row or column between them
    step: isize,
    /// Strides inside a panel: from row to row of `a`, and along `k`
    strides: (isize, isize),
}

impl<T> Panels<T> {
    fn at(&self, i: usize) -> *const T {
        self.ptr.wrapping_offset(i as isize * self.step)
    }
}

/// The full panels of a block, and the last one where it is not full.
type Block<T> = (Panels<T>, Panels<T>);

impl<T: Element> Tile<'_, T> {
    unsafe fn compute(&self, depth: Range<usize>) -> Result<()> {
        let (m, n) = (self.rows.len(), self.columns.len());
        if m == 0 || n == 0 {
            return Ok(());
        }
        let (a, b) = (direct(self.job.a), direct(self.job.b));
        // SAFETY: every path stays inside the rectangle.
        unsafe {
            if let (1, 1, Some((_, 1)), Some((_, 1))) = (m, n, a, b) {
                self.dot(depth);
                return Ok(());
            }
            let (run, unit) = self.job.b.own.inner();
            if let (Some(a), 1, 1, true) =
                (a, unit, self.job.column, m <= STREAM_ROWS && run.min(n) >= 32)
            {
                self.stream(depth, a);
                return Ok(());
            }
            self.blocks(depth, a, b)
        }
    }

    unsafe fn dot(&self, depth: Range<usize>) {
        let (i, j) = (self.rows.start, self.columns.start);
        let (a, b) = (self.job.a, self.job.b);
        // SAFETY: both operands have unit stride along `k`.
        unsafe {
            let a = self.a.offset(a.own.at(i) + depth.start as isize);
            let b = self.b.offset(b.own.at(j) + depth.start as isize);
            *self.at(i, j) = (self.job.kernels.dot)(depth.len(), a, b);
        }
    }

    /// Few rows: columns are read where they are, run by run.
    unsafe fn stream(&self, depth: Range<usize>, (row, step): (isize, isize)) {
        let (i, j) = (self.rows.start, self.columns.start);
        let mut offsets = [0; BLOCK];
        for k in depth.clone().step_by(BLOCK) {
            let offsets = &mut offsets[..BLOCK.min(depth.end - k)];
            self.job.b.depth.offsets(k, offsets);
            for run in self.job.b.own.runs(j, self.columns.len()) {
                let size = (self.rows.len(), run.len);
                // SAFETY: `a` has these two strides, the run unit columns.
                unsafe {
                    let a = self.a.offset(i as isize * row + k as isize * step);
                    let (b, c) = (self.b.offset(run.offset), self.at(i, j + run.at));
                    let (c_row, fresh) = (self.job.row as isize, k == depth.start);
                    (self.job.kernels.stream)(size, a, (row, step), b, offsets, c, c_row, fresh);
                }
            }
        }
    }

    unsafe fn at(&self, i: usize, j: usize) -> *mut T {
        // SAFETY: inside the result.
        unsafe { self.out.add(i * self.job.row + j * self.job.column) }
    }

    unsafe fn blocks(
        &self,
        depth: Range<usize>,
        a: Option<(isize, isize)>,
        b: Option<(isize, isize)>,
    ) -> Result<()> {
        let (m, n, size) = (self.rows.len(), self.columns.len(), size_of::<T>());
        let (high, width) = (self.job.kernels.tiles[0].0, self.job.kernels.width);
        let kc = BLOCK.min(depth.len());
        // An operand that is read once or twice, or lies in the L1 cache, is read where it is.
        let small = 16 << 10;
        let a = a.filter(|s| {
            (s.0 == 1 || s.1 == 1) && (n <= 4 * width || m * depth.len() * size <= small)
        });
        let b = b.filter(|s| s.0 == 1 && (m <= high || n * depth.len() * size <= small));
        // Few rows: pack one panel of columns at a time and use it from the L1 cache.
        let columns = if m <= 2 * high { width } else { COLUMNS.min(n.next_multiple_of(width)) };
        let rows = ROWS.min(m.next_multiple_of(high));
        let scratch = Buffer::alloc((rows + columns) * kc * size)?;
        // SAFETY: fresh, and as long as both blocks.
        let (a_pack, b_pack) = unsafe {
            let ptr = scratch.ptr_mut().cast::<T>();
            (ptr, ptr.add(rows * kc))
        };
        for j in self.columns.clone().step_by(columns) {
            let wide = columns.min(self.columns.end - j);
            for k in depth.clone().step_by(BLOCK) {
                let kc = BLOCK.min(depth.end - k);
                // SAFETY: blocks stay inside the rectangle and the scratch buffer.
                unsafe {
                    let b = self.columns(&(j..j + wide), &(k..k + kc), b, b_pack);
                    for i in self.rows.clone().step_by(rows) {
                        let tall = rows.min(self.rows.end - i);
                        let a = self.rows(&(i..i + tall), &(k..k + kc), a, a_pack);
                        self.block((i, tall), (j, wide), kc, &a, &b, k == depth.start);
                    }
                }
            }
        }
        Ok(())
    }

    /// Panels of rows `i`, steps `k` of `a`: in place where `place` gives its strides, else packed.
    unsafe fn rows(
        &self,
        i: &Range<usize>,
        k: &Range<usize>,
        place: Option<(isize, isize)>,
        pack: *mut T,
    ) -> Block<T> {
        let (a, high) = (self.job.a, self.job.kernels.tiles[0].0);
        if let Some(strides) = place {
            let ptr = self.a.wrapping_offset(a.own.at(i.start) + a.depth.at(k.start));
            let all = Panels { ptr, step: strides.0, strides };
            let rest = i.len() % high;
            if rest == 0 || self.job.kernels.tiles.iter().any(|t| t.0 == rest) {
                return (all, all);
            }
            // SAFETY: the scratch has room for a panel.
            let last = unsafe { self.rows(&(i.end - rest..i.end), k, None, pack) };
            return (all, Panels { step: 0, ..last.0 });
        }
        // SAFETY: the scratch holds whole panels of these rows.
        unsafe {
            if along(&a.own) > along(&a.depth) {
                for first in i.clone().step_by(high) {
                    let runs = a.own.runs(first, high.min(i.end - first));
                    lines(
                        pack.add((first - i.start) * k.len()),
                        high,
                        self.a,
                        (&a.depth, k),
                        &runs,
                        1,
                    );
                }
                return twice(Panels {
                    ptr: pack,
                    step: k.len() as isize,
                    strides: (1, high as isize),
                });
            }
            let runs = a.depth.runs(k.start, k.len());
            lines(pack, k.len(), self.a, (&a.own, i), &runs, a.depth.inner().1);
            let done = i.len() * k.len();
            pack.add(done).write_bytes(0, i.len().next_multiple_of(high) * k.len() - done);
        }
        twice(Panels { ptr: pack, step: k.len() as isize, strides: (k.len() as isize, 1) })
    }

    /// Panels of columns `j`, steps `k` of `b`, in place or packed likewise.
    unsafe fn columns(
        &self,
        j: &Range<usize>,
        k: &Range<usize>,
        place: Option<(isize, isize)>,
        pack: *mut T,
    ) -> Block<T> {
        let (b, width) = (self.job.b, self.job.kernels.width);
        if let Some(strides) = place {
            let ptr = self.b.wrapping_offset(b.own.at(j.start) + b.depth.at(k.start));
            let all = Panels { ptr, step: 1, strides };
            let rest = j.len() % width;
            if rest == 0 {
                return (all, all);
            }
            // SAFETY: the scratch has room for a panel.
            let last = unsafe { self.columns(&(j.end - rest..j.end), k, None, pack) };
            return (all, Panels { step: 0, ..last.0 });
        }
        let transposed = along(&b.depth) > along(&b.own);
        let along = b.depth.runs(k.start, k.len());
        for first in j.clone().step_by(width) {
            let n = width.min(j.end - first);
            // SAFETY: the scratch holds whole panels of these columns.
            unsafe {
                let pack = pack.add((first - j.start) * k.len());
                if transposed {
                    let mut offsets = [0; TILE_WIDTH];
                    b.own.offsets(first, &mut offsets[..n]);
                    pack::transposed(
                        pack,
                        width,
                        self.b,
                        &offsets[..n],
                        &along,
                        self.job.kernels.wide,
                    );
                } else {
                    let runs = b.own.runs(first, n);
                    lines(pack, width, self.b, (&b.depth, k), &runs, b.own.inner().1);
                }
            }
        }
        twice(Panels { ptr: pack, step: k.len() as isize, strides: (1, width as isize) })
    }

    /// Multiplies one block by another: panels of columns, in each panels of rows.
    unsafe fn block(
        &self,
        (i0, tall): (usize, usize),
        (j0, wide): (usize, usize),
        kc: usize,
        a: &Block<T>,
        b: &Block<T>,
        fresh: bool,
    ) {
        let kernels = &self.job.kernels;
        let high = kernels.tiles[0].0;
        for j in (0..wide).step_by(kernels.width) {
            let w = kernels.width.min(wide - j);
            let b = if w == kernels.width { &b.0 } else { &b.1 };
            for i in (0..tall).step_by(high) {
                let h = high.min(tall - i);
                let a = if h == high { &a.0 } else { &a.1 };
                let fit =
                    kernels.tiles.iter().rev().find(|t| t.0 >= h).unwrap_or(&kernels.tiles[0]);
                // SAFETY: panels have `kc` steps; a tile that sticks out goes through `spare`.
                unsafe {
                    let c = self.at(i0 + i, j0 + j);
                    if w == kernels.width && fit.0 == h && self.job.column == 1 {
                        fit.1(
                            kc,
                            a.at(i),
                            a.strides,
                            b.at(j),
                            b.strides.1,
                            c,
                            self.job.row as isize,
                            fresh,
                        );
                    } else {
                        let mut spare = MaybeUninit::<[T; TILE]>::uninit();
                        let spare_row = kernels.width as isize;
                        fit.1(
                            kc,
                            a.at(i),
                            a.strides,
                            b.at(j),
                            b.strides.1,
                            spare.as_mut_ptr().cast(),
                            spare_row,
                            true,
                        );
                        self.store(c, spare.as_ptr().cast(), (h, w), fresh);
                    }
                }
            }
        }
    }

    /// Writes (or adds) the corner of a tile that belongs to the result.
    unsafe fn store(&self, c: *mut T, spare: *const T, (h, w): (usize, usize), fresh: bool) {
        for y in 0..h {
            for x in 0..w {
                // SAFETY: inside the tile, and inside the result.
                unsafe {
                    let s = *spare.add(y * self.job.kernels.width + x);
                    let c = c.add(y * self.job.row + x * self.job.column);
                    *c = if fresh { s } else { (*c).plus(s) };
                }
            }
        }
    }
}

fn twice<T>(panels: Panels<T>) -> Block<T>
where
    T: Copy,
{
    (panels, panels)
}

/// [`pack::lines`] for a stretch of at most [`BLOCK`] lines of an axis at a time.
unsafe fn lines<T: Element>(
    dst: *mut T,
    width: usize,
    src: *const T,
    (axis, range): (&Axis, &Range<usize>),
    runs: &axis::Runs,
    stride: isize,
) {
    let mut offsets = [0; BLOCK];
    for first in range.clone().step_by(BLOCK) {
        let offsets = &mut offsets[..BLOCK.min(range.end - first)];
        axis.offsets(first, offsets);
        // SAFETY: by contract.
        unsafe {
            pack::lines(dst.add((first - range.start) * width), width, src, offsets, runs, stride)
        };
    }
}

/// How many neighbours in memory follow each other along an axis.
fn along(axis: &Axis) -> usize {
    let (n, stride) = axis.inner();
    if stride == 1 { n } else { 0 }
}

/// The strides of an operand that has just two.
fn direct(x: &Operand) -> Option<(isize, isize)> {
    Some((x.own.stride()?, x.depth.stride()?))
}
