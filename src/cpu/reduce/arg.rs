//! The position of the largest or smallest element along an axis.
//!
//! The answer does not depend on the order in which elements are looked at, so each operand is
//! walked as it lies in memory.

use crate::array::Array;
use crate::cpu::copy;
use crate::cpu::element::{Element, Number, Shared, with_element};
use crate::dtype::DType;
use crate::error::Result;
use crate::multiversion;
use crate::ops::attributes::ArgReduction;

use super::fold::{Choice, Max, Min};
use super::kernels::{BLOCK, fold_block};
use super::{CHUNK, Plan, SERIAL, reduced_last, split};

/// With fewer columns than this side by side, rows are made of them.
const FEW_COLUMNS: usize = 16;
/// Columns that are worked on together.
const TILE: usize = 1024;
/// Rows that are looked at in one pass over the columns.
const PASS: usize = 16;

/// The position (int64) of the first largest or smallest element along `axis`, which disappears and
/// is not empty. NaN wins over every number, the first NaN over later ones.
pub fn arg_reduce(kind: ArgReduction, x: &Array, axis: usize) -> Result<Array> {
    if matches!(x.dtype, DType::F16 | DType::BF16) {
        return arg_reduce(kind, &copy::cast(x, DType::F32)?, axis);
    }
    let out = Array::uninit(DType::I64, x.shape().reduce(&[axis], false))?;
    // SAFETY: fresh, and filled below.
    let to = unsafe { out.ptr_mut() }.cast::<i64>();
    with_element!(x.dtype, T => match kind {
        ArgReduction::Max => run::<<T as Element>::Number, Max>(x, axis, to),
        ArgReduction::Min => run::<<T as Element>::Number, Min>(x, axis, to),
    })?;
    Ok(out)
}

fn run<A: Number, F: Choice<A>>(x: &Array, axis: usize, out: *mut i64) -> Result<()> {
    let (plan, _) = Plan::new(x, &[axis]);
    let (columns, column_stride) = plan.kept.inner();
    let (n, stride) = (plan.n, plan.reduced.inner().1);
    if plan.outputs == 0 {
        return Ok(());
    }
    if stride == 1 || n == 1 {
        by_rows::<A, F>(&plan, x.ptr().cast(), out);
    } else if column_stride == 1 && columns >= FEW_COLUMNS {
        by_columns::<A, F>(&plan, x.ptr().cast(), out);
    } else {
        let (x, axes) = reduced_last(x, &[axis])?;
        by_rows::<A, F>(&Plan::new(&x, &axes).0, x.ptr().cast(), out);
    }
    Ok(())
}

fn by_rows<A: Number, F: Choice<A>>(plan: &Plan, x: *const A, out: *mut i64) {
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

fn by_columns<A: Number, F: Choice<A>>(plan: &Plan, x: *const A, out: *mut i64) {
    let (x, out) = (Shared::reading(x), Shared::new(out));
    let stride = plan.reduced.inner().1;
    let tile = plan.outputs.min(TILE);
    split(plan.outputs, (CHUNK / plan.n).max(tile), plan.total() < SERIAL, |first, count| {
        let mut best = vec![A::ZERO; tile];
        let mut to = out.at(first as isize);
        plan.kept.runs(first, count, |offset, run| {
            for at in (0..run).step_by(tile) {
                let width = tile.min(run - at);
                for row in (0..plan.n).step_by(PASS) {
                    let x = x.at(offset + at as isize + row as isize * stride);
                    let rows = PASS.min(plan.n - row);
                    // SAFETY: the rows are readable; the outputs belong to this call.
                    unsafe {
                        first_in_columns::<A, F>(
                            x,
                            stride,
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
    /// that the fold gives.
    unsafe fn first_in_rows[A, F](x: *const A, row_stride: isize, rows: usize, n: usize, out: *mut i64)
    where [A: Number, F: Choice<A>] {
        for row in 0..rows {
            // SAFETY: by contract.
            unsafe { *out.add(row) = first_in_row::<A, F>(x.wrapping_offset(row as isize * row_stride), n) as i64 };
        }
    }

    /// Takes the rows of a range (`x` is the first of them) into the best numbers and their
    /// positions so far, for each of `n` columns; row 0 starts them.
    unsafe fn first_in_columns[A, F](
        x: *const A, row_stride: isize, rows: std::ops::Range<usize>, n: usize, best: *mut A, at: *mut i64
    )
    where [A: Number, F: Choice<A>] {
        let mut column = 0;
        // SAFETY: by contract.
        unsafe {
            while column + 32 <= n {
                better_of_columns::<A, F, 32>(x.add(column), row_stride, &rows, best.add(column), at.add(column));
                column += 32;
            }
            while column < n {
                better_of_columns::<A, F, 1>(x.add(column), row_stride, &rows, best.add(column), at.add(column));
                column += 1;
            }
        }
    }
}

#[inline(always)]
unsafe fn better_of_columns<A: Number, F: Choice<A>, const W: usize>(
    x: *const A,
    row_stride: isize,
    rows: &std::ops::Range<usize>,
    best: *mut A,
    at: *mut i64,
) {
    let (best, at) = (best.cast::<[A; W]>(), at.cast::<[i64; W]>());
    // SAFETY: the caller vouches for `W` columns.
    unsafe {
        let (mut value, mut place) = if rows.start == 0 {
            (x.cast::<[A; W]>().read_unaligned(), [0; W])
        } else {
            (best.read_unaligned(), at.read_unaligned())
        };
        for row in rows.clone() {
            let offset = (row - rows.start) as isize * row_stride;
            let next = x.wrapping_offset(offset).cast::<[A; W]>().read_unaligned();
            for i in 0..W {
                let wins = F::beats(next[i], value[i]);
                value[i] = if wins { next[i] } else { value[i] };
                place[i] = if wins { row as i64 } else { place[i] };
            }
        }
        best.write_unaligned(value);
        at.write_unaligned(place);
    }
}

/// First the best block, then the place in it.
#[inline(always)]
unsafe fn first_in_row<A: Number, F: Choice<A>>(x: *const A, n: usize) -> usize {
    const STEP: usize = 32;
    // SAFETY: the caller vouches for `n` numbers, at least one.
    let row = unsafe { std::slice::from_raw_parts(x, n) };
    let (mut best, mut start) = (row[0], 0);
    for (i, block) in row.chunks(BLOCK).enumerate() {
        // SAFETY: the block is not empty.
        let value = unsafe { fold_block::<A, F>(block.as_ptr(), block.len()) };
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
