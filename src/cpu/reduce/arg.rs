//! The position of the largest or smallest element along an axis.
//!
//! The result does not depend on the order in which elements are visited, so each operand is walked
//! in memory order.

use std::ops::Range;

use crate::array::Array;
use crate::cpu::copy;
use crate::cpu::element::{Element, Number, Shared, with_element};
use crate::dtype::DType;
use crate::error::Result;
use crate::multiversion;
use crate::ops::attributes::ArgReduction;

use super::combine::{Choice, Max, Min};
use super::kernels::{BLOCK, STRETCH, behind, fold_block, gather};
use super::{CHUNK, ReducePlan, SERIAL, moved_bytes, reduced_last, split};
use crate::layout::Layout;
use crate::memory::block_bytes;
use crate::threads::Pace;

/// With fewer columns than this along the innermost kept axis, the reduction runs by rows.
const FEW_COLUMNS: usize = 16;
/// Rows of up to this length are reduced by columns, whatever the stride of the columns.
const SHORT: usize = 32;
/// Columns that are reduced together.
const TILE: usize = 1024;
/// Rows that are compared in one pass over the columns.
const PASS: usize = 16;

/// The position (int64) of the first largest or smallest element along `axis`, which is not empty
/// and disappears. NaN comes before every number, and the first NaN before later ones.
///
/// # Safety
/// `out` is in C order, of the result's type, and nobody else reads or writes it.
pub unsafe fn arg_reduce_into(
    kind: ArgReduction,
    x: &Array,
    axis: usize,
    out: &Array,
) -> Result<()> {
    if matches!(x.dtype, DType::F16 | DType::BF16) {
        // SAFETY: as the caller's.
        return unsafe { arg_reduce_into(kind, &copy::cast(x, DType::F32)?, axis, out) };
    }
    // SAFETY: the caller's, and filled below.
    let to = unsafe { out.ptr_mut() }.cast::<i64>();
    with_element!(x.dtype, T => match kind {
        ArgReduction::Max => run::<<T as Element>::Number, Max>(x, axis, to),
        ArgReduction::Min => run::<<T as Element>::Number, Min>(x, axis, to),
    })
}

/// The scratch bytes of [`arg_reduce_into`], as the memory counters count them.
pub fn arg_scratch(dtype: DType, x: &Layout, axis: usize) -> usize {
    if matches!(dtype, DType::F16 | DType::BF16) {
        let wide = Layout::contiguous(x.shape().clone());
        let bytes = block_bytes(x.shape().count() * DType::F32.size());
        return bytes + arg_scratch(DType::F32, &wide, axis);
    }
    let plan = ReducePlan::new(x, &[axis]);
    let (columns, column_stride) = plan.kept.inner();
    let by_columns = columns >= FEW_COLUMNS && (column_stride == 1 || plan.n <= SHORT);
    let by_rows = plan.reduced.inner().1 == 1 || plan.n == 1;
    if plan.outputs == 0 || by_columns || by_rows { 0 } else { moved_bytes(dtype, x, &[axis]) }
}

fn run<A: Number, F: Choice<A>>(x: &Array, axis: usize, out: *mut i64) -> Result<()> {
    let plan = ReducePlan::new(&x.layout, &[axis]);
    let (columns, column_stride) = plan.kept.inner();
    let (n, stride) = (plan.n, plan.reduced.inner().1);
    if plan.outputs == 0 {
        return Ok(());
    }
    if columns >= FEW_COLUMNS && (column_stride == 1 || n <= SHORT) {
        by_columns::<A, F>(&plan, x.ptr().cast(), out);
    } else if stride == 1 || n == 1 {
        by_rows::<A, F>(&plan, x.ptr().cast(), out);
    } else {
        let (x, axes) = reduced_last(x, &[axis])?;
        by_rows::<A, F>(&ReducePlan::new(&x.layout, &axes), x.ptr().cast(), out);
    }
    Ok(())
}

fn by_rows<A: Number, F: Choice<A>>(plan: &ReducePlan, x: *const A, out: *mut i64) {
    let (x, out) = (Shared::reading(x), Shared::new(out));
    let row_stride = plan.kept.inner().1;
    split(plan.outputs, (CHUNK / plan.n).max(1), plan.total() < SERIAL, |first, count| {
        let mut to = out.at(first as isize);
        plan.kept.runs(first, count, |offset, run| {
            // SAFETY: the rows are readable; the outputs belong to this call.
            unsafe { first_in_rows::<A, F>(x.at(offset), row_stride, run, plan.n, to) };
            to = to.wrapping_add(run);
        });
    });
}

fn by_columns<A: Number, F: Choice<A>>(plan: &ReducePlan, x: *const A, out: *mut i64) {
    let (x, out) = (Shared::reading(x), Shared::new(out));
    let strides = [plan.kept.inner().1, plan.reduced.inner().1];
    let tile = plan.outputs.min(TILE);
    split(plan.outputs, (CHUNK / plan.n).max(tile), plan.total() < SERIAL, |first, count| {
        let (mut best, mut pace) = (vec![A::ZERO; tile], Pace::default());
        let mut to = out.at(first as isize);
        plan.kept.runs(first, count, |offset, run| {
            for at in (0..run).step_by(tile) {
                let width = tile.min(run - at);
                for row in (0..plan.n).step_by(PASS) {
                    pace.work(PASS * width);
                    let x = x.at(offset + at as isize * strides[0] + row as isize * strides[1]);
                    let rows = PASS.min(plan.n - row);
                    // SAFETY: the rows are readable; the outputs belong to this call.
                    unsafe {
                        first_in_columns::<A, F>(
                            x,
                            strides,
                            row..row + rows,
                            width,
                            best.as_mut_ptr(),
                            to,
                        )
                    };
                }
                to = to.wrapping_add(width);
            }
        });
    });
}

multiversion! {
    /// For each of `rows` rows of `n` numbers, `row_stride` apart, the position of the first number
    /// that the choice `F` prefers.
    unsafe fn first_in_rows[A, F](x: *const A, row_stride: isize, rows: usize, n: usize, out: *mut i64)
    where [A: Number, F: Choice<A>] {
        for row in 0..rows {
            // SAFETY: by contract.
            unsafe {
                let after = behind(row_stride, rows - 1 - row, n);
                let x = x.wrapping_offset(row as isize * row_stride);
                *out.add(row) = first_in_row::<A, F>(x, n, after) as i64;
            }
        }
    }

    /// Updates, for each of `n` columns, the best number and its position so far with the rows of a
    /// range, of which `x` is the first; row 0 initialises them. Strides: from a column to the
    /// next, from a row to the next.
    unsafe fn first_in_columns[A, F](
        x: *const A, strides: [isize; 2], rows: Range<usize>, n: usize, best: *mut A, at: *mut i64
    )
    where [A: Number, F: Choice<A>] {
        for column in (0..n).step_by(STRETCH) {
            let x = x.wrapping_offset(column as isize * strides[0]);
            let count = STRETCH.min(n - column);
            // SAFETY: by contract.
            unsafe { stretch::<A, F>(x, strides, &rows, count, best.add(column), at.add(column)) };
        }
    }
}

/// At most [`STRETCH`] columns.
#[inline(always)]
unsafe fn stretch<A: Number, F: Choice<A>>(
    x: *const A,
    strides: [isize; 2],
    rows: &Range<usize>,
    n: usize,
    best: *mut A,
    at: *mut i64,
) {
    let (mut value, mut place) = ([A::ZERO; STRETCH], [0; STRETCH]);
    // SAFETY: the caller vouches for `n` columns.
    unsafe {
        if rows.start == 0 {
            value = gather(x, strides[0], n);
        } else {
            value[..n].copy_from_slice(std::slice::from_raw_parts(best, n));
            place[..n].copy_from_slice(std::slice::from_raw_parts(at, n));
        }
        for row in rows.clone() {
            let x = x.wrapping_offset((row - rows.start) as isize * strides[1]);
            let next = match n {
                STRETCH if strides[0] == 1 => x.cast::<[A; STRETCH]>().read_unaligned(),
                _ => gather(x, strides[0], n),
            };
            for i in 0..STRETCH {
                let wins = F::beats(next[i], value[i]);
                value[i] = if wins { next[i] } else { value[i] };
                place[i] = if wins { row as i64 } else { place[i] };
            }
        }
        best.copy_from_nonoverlapping(value.as_ptr(), n);
        at.copy_from_nonoverlapping(place.as_ptr(), n);
    }
}

/// Finds the best block first, and then the position in it. Behind the row there are `after` more
/// numbers.
#[inline(always)]
unsafe fn first_in_row<A: Number, F: Choice<A>>(x: *const A, n: usize, after: usize) -> usize {
    const STEP: usize = 32;
    // SAFETY: the caller vouches for `n` numbers, at least one.
    let row = unsafe { std::slice::from_raw_parts(x, n) };
    let (mut best, mut start, mut pace) = (row[0], 0, Pace::default());
    for (i, block) in row.chunks(BLOCK).enumerate() {
        pace.work(BLOCK);
        // SAFETY: the block is not empty.
        let value = unsafe {
            let behind = n - i * BLOCK - block.len() + after;
            fold_block::<A, F>(x.add(i * BLOCK), (block.len(), behind), |x| x)
        };
        if i == 0 || F::beats(value, best) {
            (best, start) = (value, i * BLOCK);
        }
    }
    for (i, step) in row[start..].chunks(STEP).enumerate() {
        if step.iter().fold(false, |any, &x| any | is_same(x, best)) {
            let place = step.iter().position(|&x| is_same(x, best));
            return start + i * STEP + place.unwrap_or(0);
        }
    }
    start
}

/// Equality in which NaN equals NaN.
#[inline(always)]
fn is_same<A: Number>(a: A, b: A) -> bool {
    (a == b) | (a.is_nan() & b.is_nan())
}
