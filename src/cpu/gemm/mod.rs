//! Batched matrix products of operands with any layout.
//!
//! Promises: the bits of an element depend only on its row of `a`, its column of `b` and the
//! element type. `k` is cut into blocks of [`BLOCK`](kernel::BLOCK), each summed as one chain with
//! `k` ascending; the blocks of a span are added in order, and so are the spans. Sizes, strides and
//! threads only choose the kernel that follows this order. (The payload of a NaN is not specified.)

mod axis;
pub(super) mod kernel;
mod micro;
pub(super) mod pack;
pub(super) mod packed;
pub(super) mod panels;
pub(super) mod scratch;
mod small;
#[cfg(target_arch = "x86_64")]
mod square;
mod steps;
pub(super) mod stream;
mod tile;
mod tiny;
mod unplaced;
mod vector;

use std::ops::Range;

use crate::dtype::DType;
use crate::error::Result;
use crate::memory::{Buffer, block_bytes};
use crate::ops::emit::OrThrow;
use crate::threads::{self, Pace};

pub use axis::{Axis, Runs};
use kernel::{BLOCK, Element, Kernels};
pub use packed::{Packed, pays};
use scratch::Scratch;
use tile::{Path, Tile, direct};
use tiny::TINY;
pub use tiny::Tiny;
pub use unplaced::Unplaced;

/// Steps of `k` in a span, whose blocks are added in order; longer sums are sums of spans.
pub(super) const SPAN: usize = 32 * BLOCK;
/// The fewest multiplications worth handing to another thread.
const CHUNK: usize = 1 << 19;
/// The same of a single row: what it is multiplied by is read for one multiplication each.
const ROW_CHUNK: usize = 1 << 17;
/// Multiplications that take as long as one elementwise op on an element.
const OP: usize = 8;
/// Bytes of partial sums that exist at a time when `k` has several spans.
const PARTIALS: usize = 8 << 20;

/// One operand: its positions along the batch, along its own axis of the result, and along `k`.
#[derive(Clone, Debug)]
pub struct Matrix {
    /// The address of the element at index zero of all three axes
    pub ptr: *const u8,
    /// The batch
    pub batch: Axis,
    /// Rows of the result (for `a`), columns (for `b`)
    pub own: Axis,
    /// The axis `k` that is summed over
    pub depth: Axis,
    /// For an operand that a prologue computes while it is packed: its ops per element, none where
    /// it only widens elements. The axes are then those of an array that is never written
    pub made: Option<usize>,
}

impl Matrix {
    /// Whether a prologue does more than to widen elements, so that it should run on long lines and
    /// few times.
    fn is_computed(&self) -> bool {
        self.made.is_some_and(|ops| ops > 0)
    }
}

// SAFETY: operands are only read.
unsafe impl Send for Matrix {}
// SAFETY: as above.
unsafe impl Sync for Matrix {}

/// Calls a generic function for the element type of one of [`accumulator`]'s dtypes.
macro_rules! with_accumulator {
    ($dtype:expr, $T:ident => $call:expr) => {
        match $dtype {
            DType::F32 => {
                type $T = f32;
                $call
            }
            DType::F64 => {
                type $T = f64;
                $call
            }
            DType::I32 => {
                type $T = i32;
                $call
            }
            DType::I64 => {
                type $T = i64;
                $call
            }
            _ => {
                type $T = u8;
                $call
            }
        }
    };
}

pub(in crate::cpu) use with_accumulator;

/// An epilogue: called for each rectangle of a result as soon as it is computed, with its matrix of
/// the batch, its rows and its columns. Several threads may call it at the same time; the
/// rectangles cover the result, each element once.
pub type Epilogue<'a> = &'a (dyn Fn(usize, Range<usize>, Range<usize>) + Sync);

/// A prologue: computes elements of an operand, of a matrix of the batch, at a range of its own axis
/// and a range of `k`, in the accumulator's dtype. It writes them from an address on, with the given
/// strides (own axis, `k`) in elements, one of which is 1.
pub type PackPrologue<'a> =
    &'a (dyn Fn(usize, Range<usize>, Range<usize>, *mut u8, [isize; 2]) + Sync);

/// Optional inputs of a product.
#[derive(Clone, Copy, Default)]
pub struct Extras<'a> {
    /// The prologue of each operand that has one
    pub fill: [Option<PackPrologue<'a>>; 2],
    /// The second operand (the weights of a convolution), packed before
    pub packed: Option<&'a Packed>,
    /// Memory to pack operands in, aligned as buffers are, for this product alone: its address and
    /// its bytes
    pub lent: Option<(*mut u8, usize)>,
    /// The epilogue
    pub epilogue: Option<Epilogue<'a>>,
}

/// `out[batch, rows, columns] = Σ a[batch, rows, k] b[batch, columns, k]`, with `out` in C order.
/// The caller widens narrow dtypes.
///
/// # Safety
/// `dtype` is one of [`accumulator`]'s; the operands can be read wherever their axes point, their
/// batches and depths have the same lengths, and `out` is as large as the result and written by
/// nobody else. Lent memory is as [`Extras`] says. An operand that is computed while it is packed
/// has its prologue in `extras`.
pub unsafe fn product(
    dtype: DType,
    a: &Matrix,
    b: &Matrix,
    out: *mut u8,
    extras: Extras<'_>,
) -> Result<()> {
    // SAFETY: by contract.
    unsafe { with_accumulator!(dtype, T => typed::<T>(a, b, out.cast(), extras)) }
}

/// The dtype in which products of a dtype are summed. Sums of wrapping integers have the same low
/// bits in any width and sign.
pub fn accumulator(dtype: DType) -> DType {
    match dtype {
        DType::Bool => DType::Bool,
        DType::I8 | DType::I16 | DType::I32 | DType::U8 | DType::U16 | DType::U32 => DType::I32,
        DType::I64 | DType::U64 => DType::I64,
        DType::F16 | DType::BF16 | DType::F32 => DType::F32,
        DType::F64 => DType::F64,
    }
}

/// The most roundings between one term and the sum of `n` terms, including that of its
/// multiplication: along its block, along the blocks of its span, and along the spans.
pub fn depth(n: usize) -> usize {
    let in_order = |n: usize| n.saturating_sub(1);
    n.min(BLOCK) + in_order(n.min(SPAN).div_ceil(BLOCK)) + in_order(n.div_ceil(SPAN))
}

/// The scratch bytes of [`product`], as the memory counters count them.
pub fn scratch(dtype: DType, a: &Matrix, b: &Matrix) -> usize {
    with_accumulator!(dtype, T => scratch_of::<T>(a, b))
}

/// How often each element of `a` and of `b` is packed, or might as well be; `None` where the operand
/// is better read in place.
pub fn packings(dtype: DType, a: &Matrix, b: &Matrix) -> [Option<usize>; 2] {
    with_accumulator!(dtype, T => {
        let job = Job::<T>::new(a, b, std::ptr::null_mut());
        match job.count() == 0 || a.depth.len() == 0 {
            true => [None, None],
            false => job.packings(),
        }
    })
}

/// The bytes in which [`product`] packs operands on one thread; `None` where it needs more memory
/// than these.
pub fn serial_scratch(dtype: DType, a: &Matrix, b: &Matrix) -> Option<usize> {
    with_accumulator!(dtype, T => {
        let job = Job::<T>::new(a, b, std::ptr::null_mut());
        match job.count() == 0 || a.depth.len() == 0 {
            true => Some(0),
            false => (a.depth.len() <= SPAN).then(|| job.scratch_parts(&job.cut()).0),
        }
    })
}

fn scratch_of<T: Element>(a: &Matrix, b: &Matrix) -> usize {
    let mut job = Job::<T>::new(a, b, std::ptr::null_mut());
    let (count, depth) = (job.count(), a.depth.len());
    if count == 0 || depth == 0 {
        return 0;
    }
    if depth <= SPAN {
        return job.scratch();
    }
    let group = job.group();
    job.spans = 0..group;
    block_bytes(group * count * size_of::<T>()) + job.scratch()
}

unsafe fn typed<T: Element>(a: &Matrix, b: &Matrix, out: *mut T, extras: Extras<'_>) -> Result<()> {
    let mut job = Job::new(a, b, out);
    let (count, depth) = (job.count(), a.depth.len());
    let all_done = |done: Epilogue<'_>| {
        (0..a.batch.len()).for_each(|batch| done(batch, 0..a.own.len(), 0..b.own.len()));
    };
    if count == 0 || depth == 0 {
        // SAFETY: zero bytes are zero in every element type.
        unsafe { out.write_bytes(0, count) };
        extras.epilogue.into_iter().for_each(all_done);
        return Ok(());
    }
    if !job.transposed {
        job.panels = extras.packed.and_then(|packed| packed.panels(b));
    }
    if job.panels.is_some() {
        // They are as wide as panels may be.
        job.kernels = T::kernels();
    }
    let [left, right] = extras.fill;
    job.fill = if job.transposed { [right, left] } else { [left, right] };
    if depth <= SPAN {
        job.epilogue = extras.epilogue;
        return job.run(extras.lent);
    }
    let (spans, group) = (depth.div_ceil(SPAN), job.group());
    let partials = Buffer::alloc(group * count * size_of::<T>())?;
    // SAFETY: fresh.
    job.out = unsafe { partials.ptr_mut() }.cast();
    for first in (0..spans).step_by(group) {
        job.spans = first..spans.min(first + group);
        job.run(extras.lent)?;
        for (i, span) in job.spans.clone().enumerate() {
            // SAFETY: `out` and the partials have `count` elements each, all written.
            unsafe { add(out, job.out.add(i * count), count, span == 0) };
        }
    }
    extras.epilogue.into_iter().for_each(all_done);
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

/// A product, to be cut into tiles. Its items are the pairs of span and batch index.
struct Job<'a, T: Element> {
    a: &'a Matrix,
    b: &'a Matrix,
    /// The addresses of the elements of `a` and of `b` at index zero
    at: [*const u8; 2],
    rows: usize,
    columns: usize,
    /// Strides of `out`, one of them 1
    row: usize,
    column: usize,
    out: *mut T,
    kernels: Kernels<T>,
    batch: usize,
    spans: Range<usize>,
    /// Whether rows of the job are columns of the result
    transposed: bool,
    epilogue: Option<Epilogue<'a>>,
    /// The prologues of `a` and of `b`
    fill: [Option<PackPrologue<'a>>; 2],
    /// The panels of `b`, where they were packed before
    panels: Option<*const T>,
}

// SAFETY: threads write disjoint tiles of `out`.
unsafe impl<T: Element> Sync for Job<'_, T> {}

/// How a job is cut.
enum Cut {
    /// Into this many ranges of whole items
    Items(usize),
    /// Into this many parts along rows and along columns
    Cells(usize, usize),
}

impl<'a, T: Element> Job<'a, T> {
    fn new(a: &'a Matrix, b: &'a Matrix, out: *mut T) -> Job<'a, T> {
        let mut job = Job::with(T::kernels(), a, b, out);
        let wide = std::mem::replace(&mut job.kernels, T::kernels().narrow());
        if !job.suits_narrow() {
            job.kernels = wide;
        }
        job
    }

    fn with(kernels: Kernels<T>, a: &'a Matrix, b: &'a Matrix, out: *mut T) -> Job<'a, T> {
        let (batch, m, n) = (a.batch.len(), a.own.len(), b.own.len());
        // A tile is wider than high, so few columns are better computed as rows, unless rows that are
        // read in place would have to be transposed for that. A single column is read in place too.
        // Few products need neither.
        let products = m.saturating_mul(n).saturating_mul(a.depth.len());
        let is_tiny = products <= TINY && [a, b].iter().all(|x| direct(x).is_some());
        let transposed = is_few(&kernels, [m, n])
            && !is_tiny
            && (n == 1 || a.made.is_some() || a.depth.inner().1 != 1);
        let (a, b) = if transposed { (b, a) } else { (a, b) };
        let (rows, columns, row, column) = if transposed { (n, m, 1, n) } else { (m, n, n, 1) };
        let (spans, epilogue, fill) = (0..1, None, [None; 2]);
        Job {
            a,
            b,
            at: [a.ptr, b.ptr],
            rows,
            columns,
            row,
            column,
            out,
            kernels,
            batch,
            spans,
            transposed,
            epilogue,
            fill,
            panels: None,
        }
    }

    /// Elements of the result.
    fn count(&self) -> usize {
        self.batch * self.rows * self.columns
    }

    /// The number of spans whose partial sums exist at a time.
    fn group(&self) -> usize {
        let spans = self.a.depth.len().div_ceil(SPAN);
        (PARTIALS / (self.count() * size_of::<T>())).clamp(1, spans)
    }

    /// The work of an item, in multiplications.
    fn work(&self) -> usize {
        let made = |x: &Matrix| x.own.len() * OP * x.made.unwrap_or(0);
        (self.rows * self.columns + made(self.a) + made(self.b)) * self.a.depth.len().min(SPAN)
    }

    fn cut(&self) -> Cut {
        let items = self.batch * self.spans.len();
        let least = if self.rows == 1 { ROW_CHUNK } else { CHUNK };
        let chunks = (items * self.work() + least / 2) / least;
        let chunks = chunks.clamp(1, 4 * threads::num_threads());
        if chunks <= items {
            return Cut::Items(chunks);
        }
        // Each cell packs its own operands, so there are no more than threads, unless these do not
        // halve evenly.
        let threads = threads::num_threads();
        let most = if threads.is_power_of_two() { threads } else { 2 * threads };
        let (high, wide) = self.grid(chunks.div_ceil(items).min(most));
        Cut::Cells(high, wide)
    }

    /// Rows and columns of the largest rectangle of a cut.
    fn largest(&self, cut: &Cut) -> (usize, usize) {
        let largest =
            |n: usize, step: usize, parts: usize| (n.div_ceil(step).div_ceil(parts) * step).min(n);
        match *cut {
            Cut::Items(_) => (self.rows, self.columns),
            Cut::Cells(high, wide) => (
                largest(self.rows, self.kernels.tiles[0].rows, high),
                largest(self.columns, self.kernels.width, wide),
            ),
        }
    }

    /// See [`packings`], in the order in which the operands were given.
    fn packings(&self) -> [Option<usize>; 2] {
        let cut = self.cut();
        let (m, n) = self.largest(&cut);
        let (high, wide) = match cut {
            Cut::Items(_) => (1, 1),
            Cut::Cells(high, wide) => (high, wide),
        };
        let depth = self.a.depth.len().min(SPAN);
        let blocks = match self.path(m, n, depth) {
            Path::Blocks(blocks) => Some(blocks),
            // Many rows might as well be packed: to write what a prologue computes takes longer.
            Path::Small(..) if m * n * depth > TINY => Some(self.blocks((m, n, depth))),
            Path::Dot | Path::Row(..) | Path::Stream(_) | Path::Small(..) => None,
        };
        let (a, b) = blocks.map_or((None, None), |blocks| {
            let [packs_a, packs_b] = blocks.packs();
            let strips = n.div_ceil(blocks.columns());
            // Rows that are computed beside few columns are packed as columns.
            let turns = !self.transposed && is_few(&self.kernels, [self.rows, self.columns]);
            ((packs_a || turns).then_some(wide * strips), packs_b.then_some(high))
        });
        if self.transposed { [b, a] } else { [a, b] }
    }

    /// The bytes for packed blocks of one thread, and the most threads that may pack.
    fn scratch_parts(&self, cut: &Cut) -> (usize, usize) {
        let depth = self.a.depth.len().min(SPAN);
        let bytes = |m: usize, n: usize| match self.path(m, n, depth) {
            Path::Blocks(blocks) => blocks.packed_bytes::<T>(),
            Path::Dot | Path::Row(..) | Path::Stream(_) | Path::Small(..) => 0,
        };
        let (size, tasks) = match *cut {
            Cut::Items(chunks) => (bytes(self.rows, self.columns), chunks),
            Cut::Cells(high, wide) => {
                // A smaller cell may need more: where its last panel sticks out, it is packed.
                let rows = |i: usize| part(self.rows, self.kernels.tiles[0].rows, high, i).len();
                let columns = |j: usize| part(self.columns, self.kernels.width, wide, j).len();
                let cells = (0..high).flat_map(|i| (0..wide).map(move |j| (i, j)));
                let size = cells.map(|(i, j)| bytes(rows(i), columns(j))).max().unwrap_or(0);
                (size, self.batch * self.spans.len() * high * wide)
            }
        };
        (size, tasks.min(threads::num_threads()))
    }

    /// The scratch bytes of [`Job::run`].
    fn scratch(&self) -> usize {
        let (size, parts) = self.scratch_parts(&self.cut());
        scratch::counted(size, parts)
    }

    fn run(&self, lent: Option<(*mut u8, usize)>) -> Result<()> {
        let items = self.batch * self.spans.len();
        let cut = self.cut();
        let (size, parts) = self.scratch_parts(&cut);
        let scratch = Scratch::of(size, parts, lent)?;
        let work = self.work();
        match cut {
            Cut::Items(chunks) => {
                // Small products come by the thousand, and most often of one depth.
                let depth = self.a.depth.len().min(SPAN);
                let path = self.path(self.rows, self.columns, depth);
                threads::parallel_for(chunks, &|chunk| {
                    let mut pace = Pace::default();
                    for item in items * chunk / chunks..items * (chunk + 1) / chunks {
                        pace.multiplied(work);
                        let (tile, steps) = self.tile(item, 0..self.rows, 0..self.columns);
                        // SAFETY: every item is one chunk's.
                        unsafe {
                            match steps.len() == depth {
                                true => tile.compute(steps, &path, &scratch),
                                false => tile.compute(steps.clone(), &tile.path(&steps), &scratch),
                            }
                        }
                        .or_throw();
                    }
                });
            }
            Cut::Cells(high, wide) => threads::parallel_for(items * high * wide, &|chunk| {
                let (item, cell) = (chunk / (high * wide), chunk % (high * wide));
                let rows = part(self.rows, self.kernels.tiles[0].rows, high, cell / wide);
                let columns = part(self.columns, self.kernels.width, wide, cell % wide);
                let (tile, steps) = self.tile(item, rows, columns);
                // SAFETY: every cell is one chunk's.
                unsafe { tile.compute(steps.clone(), &tile.path(&steps), &scratch) }.or_throw();
            }),
        }
        Ok(())
    }

    /// The parts along rows and along columns that make about `cells` nearly square cells. Where a
    /// prologue computes one operand, the cells are such that no element is computed twice.
    fn grid(&self, cells: usize) -> (usize, usize) {
        let (mut high, mut wide) = (1, 1);
        let (a, b) = (self.a.is_computed(), self.b.is_computed());
        while high * wide < cells {
            let (h, w) = (self.rows / high, self.columns / wide);
            let widens = if a == b { w >= h } else { b };
            let heightens = a == b || a;
            if widens && w >= 2 * self.kernels.width {
                wide *= 2;
            } else if heightens && h >= 2 * self.kernels.tiles[0].rows {
                high *= 2;
            } else {
                break;
            }
        }
        (high, wide)
    }

    /// A rectangle of one item, and its steps of `k`.
    fn tile(
        &self,
        item: usize,
        rows: Range<usize>,
        columns: Range<usize>,
    ) -> (Tile<'_, T>, Range<usize>) {
        let (span, batch) = (self.spans.start + item / self.batch, item % self.batch);
        let tile = Tile {
            job: self,
            // An operand without elements has no address to count from.
            a: self.at[0].cast::<T>().wrapping_offset(self.a.batch.at(batch)),
            b: self.at[1].cast::<T>().wrapping_offset(self.b.batch.at(batch)),
            out: self.out.wrapping_add(item * self.rows * self.columns),
            batch,
            rows,
            columns,
        };
        (tile, span * SPAN..self.a.depth.len().min((span + 1) * SPAN))
    }
}

/// Whether columns are so few beside the rows that they take fewer vectors as rows.
fn is_few<T>(kernels: &Kernels<T>, [rows, columns]: [usize; 2]) -> bool {
    columns < rows && columns <= kernels.width / 4
}

/// The `i`-th of `parts` parts of `0..n`, cut at multiples of `step`.
fn part(n: usize, step: usize, parts: usize, i: usize) -> Range<usize> {
    let steps = n.div_ceil(step);
    (steps * i / parts * step).min(n)..(steps * (i + 1) / parts * step).min(n)
}
