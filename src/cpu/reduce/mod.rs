//! Reductions along axes, and the position of the largest or smallest element.
//!
//! Promises: the order in which elements are combined depends only on the logical shape and the
//! axes. Axes of size 1 do not count:
//!
//! - **columns**: if the last axis is kept, or at most [`FEW`] elements are reduced. The reduced
//!   elements of each output, in C order, are combined one after the other in blocks of
//!   [`COLUMN_BLOCK`], and the blocks pairwise.
//! - **rows**: otherwise. The reduced elements of each output, in C order, are cut into blocks of
//!   [`kernels::BLOCK`]. Within a block every 64th element is combined one after the other, then
//!   the 64 lanes by halves, then the blocks pairwise.
//!
//! float16 and bfloat16 are combined in float32 and rounded once, at the end. float32 sums of up to
//! 2^24 ones are exact, and so are longer sums of ones whose count is even and exact in float32.

mod arg;
mod columns;
mod combine;
mod kernels;
mod lanes;
mod parts;
mod rows;
#[cfg(test)]
mod tests;
mod walk;

use std::any::TypeId;
use std::mem::MaybeUninit;

pub use arg::{arg_reduce_into, arg_scratch};
pub(crate) use combine::{Combine, Max, Min, Pairwise, Prod, Sum};
pub use kernels::{BLOCK, LANES};
pub use lanes::{add_to_lanes, sum_of_lanes};
pub use parts::{Chunk, Partial, group, lines_together, partial, sum_of_lines};

use crate::array::Array;
use crate::cpu::copy;
use crate::cpu::element::{Element, Number, with_element};
use crate::cpu::moves::{Place, move_block};
use crate::dtype::DType;
use crate::error::{self, Result};
use crate::layout::{Layout, Strides};
use crate::memory::{self, block_bytes};
use crate::ops::attributes::Reduction;
use crate::ops::emit::OrThrow;
use crate::shape::{Axes, Shape};
use crate::threads;

use walk::Walk;

/// Up to this many elements are reduced as columns even along the last axis.
pub const FEW: usize = 32;
/// With fewer elements than this, a second thread does not pay off.
const SERIAL: usize = 1 << 15;
/// Elements that one thread takes at a time.
const CHUNK: usize = 1 << 16;

/// Evaluates an expression with the element type and the combining operation of a reduction.
macro_rules! with_fold {
    ($kind:expr, $dtype:expr, $T:ident, $F:ident => $body:expr) => {{
        let dtype = $dtype;
        match $kind {
            Reduction::Sum if dtype != DType::Bool => {
                type $F = Sum;
                with_element!(unsigned(dtype), $T => $body)
            }
            // A product of zeros and ones is 1 if all are ones.
            Reduction::Prod | Reduction::All => {
                type $F = Prod;
                with_element!(unsigned(dtype), $T => $body)
            }
            Reduction::Max | Reduction::Any | Reduction::Sum => {
                type $F = Max;
                with_element!(dtype, $T => $body)
            }
            Reduction::Min => {
                type $F = Min;
                with_element!(dtype, $T => $body)
            }
        }
    }};
}

/// Whether the elements of a shape are summed in rows along some axes: each block of [`BLOCK`] of them
/// in [`LANES`], and the blocks pairwise.
pub fn is_in_rows(shape: &Shape, axes: &[usize]) -> bool {
    let sizes = shape.sizes();
    let last = (0..sizes.len()).rev().find(|&axis| sizes[axis] != 1);
    let n: usize = axes.iter().map(|&axis| sizes[axis]).product();
    let count: usize = sizes.iter().product();
    last.is_some_and(|axis| axes.contains(&axis)) && n > FEW && count > 0
}

/// Reduces `x` along `axes` (sorted, distinct), which disappear. The result has the dtype of `x`; a
/// caller who wants a wider sum casts first. An empty sum is 0, an empty product 1, an empty any
/// false, an empty all true; the caller refuses an empty max or min. On bool, sum and max are any,
/// product and min are all.
///
/// # Safety
/// `out` is in C order, of the result's type, and nobody else reads or writes it.
pub unsafe fn reduce_into(kind: Reduction, x: &Array, axes: &[usize], out: &Array) -> Result<()> {
    if matches!(kind, Reduction::Any | Reduction::All) && x.dtype != DType::Bool {
        let op = if kind == Reduction::Any { "any" } else { "all" };
        return Err(error::wrong_dtype(op, "x", x.dtype, "bool"));
    }
    with_fold!(kind, x.dtype, T, F => run::<T, F>(x, axes, out))
}

/// Wrapping sums and products are the same for signed and unsigned integers.
fn unsigned(dtype: DType) -> DType {
    match dtype {
        DType::I8 => DType::U8,
        DType::I16 => DType::U16,
        DType::I32 => DType::U32,
        DType::I64 => DType::U64,
        other @ (DType::Bool
        | DType::U8
        | DType::U16
        | DType::U32
        | DType::U64
        | DType::F16
        | DType::BF16
        | DType::F32
        | DType::F64) => other,
    }
}

use with_fold;

/// The loops of one reduction.
struct ReducePlan {
    /// Axes of the result.
    kept: Walk,
    /// Axes that disappear.
    reduced: Walk,
    /// Elements of the result.
    outputs: usize,
    /// Elements that each of them reduces.
    n: usize,
    /// Whether the last axis (of a size other than 1) disappears.
    last_reduced: bool,
}

impl ReducePlan {
    fn new(x: &Layout, axes: &[usize]) -> ReducePlan {
        let mut plan = ReducePlan {
            kept: Walk::default(),
            reduced: Walk::default(),
            outputs: 1,
            n: 1,
            last_reduced: false,
        };
        let strides = x.strides();
        for (axis, d) in x.shape().dims().iter().enumerate() {
            let size = d.value();
            let is_reduced = axes.contains(&axis);
            let (walk, count) = match is_reduced {
                true => (&mut plan.reduced, &mut plan.n),
                false => (&mut plan.kept, &mut plan.outputs),
            };
            walk.push(size, strides[axis]);
            *count *= size;
            if size != 1 {
                plan.last_reduced = is_reduced;
            }
        }
        plan
    }

    /// Whether neighbours in a row are far apart in memory, with elements of the same row between
    /// them. A copy in C order, made block by block, is then cheaper than walking the row.
    fn jumps(&self) -> bool {
        let step = self.reduced.inner().1.unsigned_abs();
        step > 16
            && self.n >= SERIAL
            && self.reduced.shortest_stride() < step.min(self.kept.shortest_stride())
            && !self.reduced.repeats()
            && !self.kept.repeats()
    }

    /// Elements read.
    fn total(&self) -> usize {
        self.outputs.saturating_mul(self.n)
    }
}

fn run<T: Element, F: Combine<T::Number>>(x: &Array, axes: &[usize], out: &Array) -> Result<()> {
    let plan = ReducePlan::new(&x.layout, axes);
    // SAFETY: the caller of `reduce_into` holds the result; it is filled below.
    let to = unsafe { out.ptr_mut() }.cast::<T>();
    if plan.n == 0 || plan.outputs == 0 {
        // SAFETY: `outputs` elements.
        unsafe { std::slice::from_raw_parts_mut(to, plan.outputs) }.fill(T::narrow(F::EMPTY));
    } else if !plan.last_reduced || plan.n <= FEW {
        columns::run::<T, F>(&plan, x.ptr().cast(), to);
    } else if plan.jumps() {
        let (x, axes) = reduced_last(x, axes)?;
        rows::run::<T, F>(&ReducePlan::new(&x.layout, &axes), x.ptr().cast(), to);
    } else {
        rows::run::<T, F>(&plan, x.ptr().cast(), to);
    }
    Ok(())
}

/// The most roundings between an element and the result of `n` elements, by columns or by rows.
pub fn depth(n: usize) -> usize {
    let pairwise = |items: usize| items.max(1).next_power_of_two().ilog2() as usize;
    let block = columns::BLOCK;
    let by_columns = n.min(block).saturating_sub(1) + pairwise(n.div_ceil(block));
    let (lanes, block) = (kernels::LANES, kernels::BLOCK);
    let in_lane = n.min(block).div_ceil(lanes).saturating_sub(1);
    let by_rows = in_lane + pairwise(lanes) + pairwise(n.div_ceil(block));
    by_columns.max(by_rows)
}

/// The scratch bytes of [`reduce_into`], as the memory counters count them.
pub fn scratch(dtype: DType, x: &Layout, axes: &[usize]) -> usize {
    let plan = ReducePlan::new(x, axes);
    let by_rows = plan.last_reduced && plan.n > FEW && plan.outputs > 0;
    if by_rows && plan.jumps() { moved_bytes(dtype, x, axes) } else { 0 }
}

/// The bytes that [`reduced_last`] copies to.
fn moved_bytes(dtype: DType, x: &Layout, axes: &[usize]) -> usize {
    match last_layout(x, axes).is_contiguous() {
        true => 0,
        false => block_bytes(x.shape().count() * dtype.size()),
    }
}

/// A C-order copy with the given axes moved last; the order of kept and of reduced elements stays.
fn reduced_last(x: &Array, axes: &[usize]) -> Result<(Array, Axes)> {
    let rank = x.shape().rank();
    let moved = copy::contiguous(&x.view(last_layout(&x.layout, axes)))?;
    Ok((moved, (rank - axes.len()..rank).collect()))
}

/// A layout with the given axes moved last.
fn last_layout(x: &Layout, axes: &[usize]) -> Layout {
    let strides = x.strides();
    let kept = (0..strides.len()).filter(|axis| !axes.contains(axis));
    let order: Axes = kept.chain(axes.iter().copied()).collect();
    let shape: Shape = order.iter().map(|&axis| x.shape()[axis]).collect();
    let strides: Strides = order.iter().map(|&axis| strides[axis]).collect();
    Layout::strided(shape, &strides, x.offset())
}

/// The sum of `n` contiguous numbers, in the order in which [`reduce_into`] sums along the last
/// axes.
///
/// # Safety
/// They can be read.
pub unsafe fn sum_of_row<T: Number>(x: *const T, n: usize) -> T {
    let fold = |x, n| {
        let mut sum = T::ZERO;
        // SAFETY: by contract.
        unsafe { kernels::reduce_rows::<T, T, Sum>(x, 0, 1, n, &mut sum) };
        sum
    };
    // SAFETY: by contract.
    unsafe { along_row(x, n, |x| x, fold) }
}

/// The largest of `n` contiguous elements, at least one, joined as [`reduce_into`] joins them along
/// the last axes.
///
/// # Safety
/// They can be read.
pub unsafe fn largest_of_row<T: Element>(x: *const T, n: usize) -> T {
    // SAFETY: by contract.
    unsafe {
        if n <= FEW {
            let others = (1..n).map(|i| (*x.add(i)).widen());
            return T::narrow(others.fold((*x).widen(), <Max as Combine<T::Number>>::join));
        }
        let mut largest = T::narrow(T::Number::ZERO);
        kernels::reduce_rows::<T, T, Max>(x, 0, 1, n, &mut largest);
        largest
    }
}

/// Reduces each of some rows of `n` contiguous elements, more than [`FEW`], one row behind the other,
/// to one element: the elements, rows, `n`, and the results.
pub type FoldRows = unsafe fn(*const u8, usize, usize, *mut u8);

/// Sums the products of the elements of two rows, or what is made of a row and a number, for each of
/// some rows, likewise.
pub type FoldPairs = unsafe fn([*const u8; 2], usize, usize, *mut u8);

/// The reduction of rows as [`reduce_into`] reduces the last axes; `None` for other dtypes than
/// float32 and float64.
pub fn fold_of_rows(kind: Reduction, dtype: DType) -> Option<FoldRows> {
    #[allow(clippy::wildcard_enum_match_arm, reason = "no other dtype is reduced so")]
    match dtype {
        DType::F32 => typed_fold::<f32>(kind),
        DType::F64 => typed_fold::<f64>(kind),
        _ => None,
    }
}

fn typed_fold<T: Number>(kind: Reduction) -> Option<FoldRows> {
    match kind {
        Reduction::Sum => Some(fold_some::<T, Sum>),
        Reduction::Prod => Some(fold_some::<T, Prod>),
        Reduction::Max => Some(fold_some::<T, Max>),
        Reduction::Min => Some(fold_some::<T, Min>),
        Reduction::Any | Reduction::All => None,
    }
}

unsafe fn fold_some<T: Number, F: Combine<T>>(x: *const u8, rows: usize, n: usize, out: *mut u8) {
    // SAFETY: by the contract of `FoldRows`.
    unsafe { kernels::reduce_rows::<T, T, F>(x.cast(), n as isize, rows, n, out.cast()) };
}

/// Rows of so many elements, up to a block of columns, are transposed, so that a vector has one
/// element of each of several rows.
const TURNED: usize = 8;

/// Reduces each of some rows of `n` contiguous elements, `row` elements apart.
///
/// # Safety
/// `rows` rows of `n` elements, at most [`columns::BLOCK`], can be read, and `rows` numbers at `out`
/// written.
unsafe fn fold_turned<T: Element, F: Combine<T::Number>>(
    x: *const T,
    row: isize,
    rows: usize,
    n: usize,
    out: *mut T::Number,
) {
    const SOME: usize = kernels::STRETCH;
    const MOST: usize = columns::BLOCK;
    let places: [isize; MOST] = std::array::from_fn(|i| (i * SOME) as isize);
    let mut turned = MaybeUninit::<[[T; SOME]; MOST]>::uninit();
    let turned = turned.as_mut_ptr().cast::<T>();
    for first in (0..rows).step_by(SOME) {
        let some = SOME.min(rows - first);
        // SAFETY: by contract; there is room for so many rows, of which columns are read as far as
        // they were written.
        unsafe {
            let to = Place::new(turned.cast::<u8>(), 1, SOME as isize);
            let from = x.offset(first as isize * row).cast::<u8>();
            move_block(T::DTYPE.width(), to, Place::new(from, row, 1), some, n);
            kernels::reduce_columns::<T, F>(turned, &places[..n], some, out.add(first), true);
        }
    }
}

/// Reduces lines of numbers that lie side by side, at most [`FEW`], into one: the first line, the
/// elements from a line to the next, how many lines, elements of each, and the result.
pub type FoldLines = unsafe fn(*const u8, usize, usize, usize, *mut u8);

/// The reduction of lines in the order in which [`reduce_into`] reduces rows of at most [`FEW`]
/// elements.
pub fn fold_of_lines(kind: Reduction, dtype: DType) -> Option<FoldLines> {
    fn typed<T: Number>(kind: Reduction) -> Option<FoldLines> {
        match kind {
            Reduction::Sum => Some(fold_lines::<T, Sum>),
            Reduction::Prod => Some(fold_lines::<T, Prod>),
            Reduction::Max => Some(fold_lines::<T, Max>),
            Reduction::Min => Some(fold_lines::<T, Min>),
            Reduction::Any | Reduction::All => None,
        }
    }
    #[allow(clippy::wildcard_enum_match_arm, reason = "no other dtype is reduced so")]
    match dtype {
        DType::F32 => typed::<f32>(kind),
        DType::F64 => typed::<f64>(kind),
        _ => None,
    }
}

unsafe fn fold_lines<T: Number, F: Combine<T>>(
    x: *const u8,
    apart: usize,
    lines: usize,
    n: usize,
    out: *mut u8,
) {
    let places: [isize; FEW] = std::array::from_fn(|i| (i * apart) as isize);
    // SAFETY: by the contract of `FoldLines`.
    unsafe { kernels::reduce_columns::<T, F>(x.cast(), &places[..lines], n, out.cast(), true) };
}

/// The sum of products of rows of more than [`FEW`] elements as [`reduce_into`] sums the products;
/// `None` for other dtypes than float32 and float64.
pub fn fold_of_products(dtype: DType) -> Option<FoldPairs> {
    #[allow(clippy::wildcard_enum_match_arm, reason = "no other dtype is reduced so")]
    match dtype {
        DType::F32 => Some(kernels::fold_products::select::<f32>()),
        DType::F64 => Some(kernels::fold_products::select::<f64>()),
        _ => None,
    }
}

/// The sum of the squares of rows of more than [`FEW`] elements, each less the number of its row,
/// likewise.
pub fn fold_of_distances(dtype: DType) -> Option<FoldPairs> {
    #[allow(clippy::wildcard_enum_match_arm, reason = "no other dtype is reduced so")]
    match dtype {
        DType::F32 => Some(kernels::fold_distances::select::<f32>()),
        DType::F64 => Some(kernels::fold_distances::select::<f64>()),
        _ => None,
    }
}

/// The sum of the squares of `x + shift`, likewise.
///
/// # Safety
/// They can be read.
pub unsafe fn sum_of_squares<T: Number>(x: *const T, n: usize, shift: T) -> T {
    let square = |x| kernels::square(x, shift);
    // SAFETY: by contract.
    unsafe { along_row(x, n, square, |x, n| kernels::fold_squares(x, n, shift)) }
}

/// A sum along a row: `of` gives the terms of a short one, `fold` the sum of a stretch.
///
/// # Safety
/// The row can be read.
unsafe fn along_row<T: Number>(
    x: *const T,
    n: usize,
    of: impl Fn(T) -> T,
    fold: impl Fn(*const T, usize) -> T,
) -> T {
    if n == 0 {
        return <Sum as Combine<T>>::EMPTY;
    }
    // SAFETY: by contract. A chunk is a power of two of blocks, so a subtree.
    unsafe {
        if n <= FEW {
            return (1..n).fold(of(*x), |sum, i| <Sum as Combine<T>>::join(sum, of(*x.add(i))));
        }
        if n <= CHUNK {
            return fold(x, n);
        }
        let mut tree = combine::Pairwise::new();
        threads::in_stretches(0..n, CHUNK, |part| {
            tree.push::<Sum>(fold(x.add(part.start), part.len()));
        });
        tree.finish::<Sum>()
    }
}

/// Whether elements in memory have the type that kernels compute in.
fn is_native<T: Element>() -> bool {
    TypeId::of::<T>() == TypeId::of::<T::Number>()
}

/// Capacity for `count` intermediate numbers; unwinds with an error where the system has no memory.
pub fn with_capacity<A>(count: usize) -> Vec<A> {
    let mut numbers = Vec::new();
    let found = numbers.try_reserve_exact(count);
    found.map_err(|_| memory::refusal(count.saturating_mul(size_of::<A>()))).or_throw();
    numbers
}

/// Runs `body(start, count)` over `0..n` in ranges of `step`, on several threads where the work is
/// large enough.
fn split(n: usize, step: usize, is_serial: bool, body: impl Fn(usize, usize) + Sync) {
    if is_serial || n <= step {
        return body(0, n);
    }
    threads::parallel_for(n.div_ceil(step), &|i| body(i * step, step.min(n - i * step)));
}
