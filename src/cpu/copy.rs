//! Copies, casts, concatenation, padding and fills.

use smallvec::SmallVec;

use super::moves::{Place, move_block, stream_block};
use super::nest::Nest;
use super::program::{Builder, STREAM, map_memory, register_bits, run, split};
use crate::array::Array;
use crate::dtype::{DType, Scalar};
use crate::error::Result;
use crate::layout::{Layout, Strides};
use crate::shape::{Dim, Shape};
use crate::simd::stream_fence;
use crate::tile;

/// Elements of a block: rows long enough for the library's copy to reach its speed.
const BLOCK: usize = 1 << 14;

/// The same elements in C order without gaps: `x` itself where it is so already.
pub fn contiguous(x: &Array) -> Result<Array> {
    if x.is_contiguous() {
        return Ok(x.clone());
    }
    let out = Array::uninit(x.dtype, x.shape().clone())?;
    // SAFETY: the output is fresh.
    unsafe { copy_into(&out, x) };
    Ok(out)
}

/// Copies `src`, which broadcasts to the shape of `dst` and has its dtype, into `dst`, which may
/// have any layout.
///
/// # Safety
/// No two elements of `dst` share memory, nobody else reads or writes them meanwhile, and `src`
/// does not overlap them.
pub unsafe fn copy_into(dst: &Array, src: &Array) {
    debug_assert_eq!(dst.dtype, src.dtype);
    // SAFETY: as the caller's.
    unsafe { spread(dst, src.ptr(), &src.layout.broadcast_strides(dst.shape())) }
}

/// Writes the elements that lie from `src` on, at the given strides along the axes of `dst`.
///
/// # Safety
/// As for [`copy_into`].
unsafe fn spread(dst: &Array, src: *const u8, strides: &[isize]) {
    /// The two ends, for the threads that share the work.
    struct Ends(*mut u8, *const u8);
    // SAFETY: threads write different elements.
    unsafe impl Sync for Ends {}

    let (width, size) = (dst.dtype.width(), dst.dtype.size());
    let to = dst.layout.strides();
    // The loop follows the memory of `dst`: its smallest stride innermost.
    let mut order: SmallVec<[usize; 6]> = (0..to.len()).collect();
    order.sort_by_key(|&axis| std::cmp::Reverse(to[axis].unsigned_abs()));
    let sizes: SmallVec<[usize; 6]> =
        order.iter().map(|&axis| dst.shape().dims()[axis].value()).collect();
    let ordered =
        |strides: &[isize]| -> Strides { order.iter().map(|&axis| strides[axis]).collect() };
    let nest = Nest::new(&sizes, &[&ordered(&to), &ordered(strides)], BLOCK, BLOCK);
    // SAFETY: the caller holds the destination.
    let ends = Ends(unsafe { dst.ptr_mut() }, src);
    let ends = &ends;
    let streams = nest.count() * size >= STREAM;
    let move_block = if streams { stream_block } else { move_block };
    split(nest.blocks(), nest.count(), 1, |range| {
        nest.visit(range, |block| {
            let to = ends.0.wrapping_offset(block.offsets[0] * size as isize);
            let from = ends.1.wrapping_offset(block.offsets[1] * size as isize);
            let to = Place::new(to, nest.row_stride(0), nest.col_stride(0));
            let from = Place::new(from, nest.row_stride(1), nest.col_stride(1));
            // SAFETY: blocks lie inside both operands.
            unsafe { move_block(width, to, from, block.rows, block.cols) }
        });
        if streams {
            stream_fence();
        }
    });
}

/// The elements converted to a dtype: `x` itself where it has that dtype. See [`tile::cast`] for
/// the rules.
pub fn cast(x: &Array, dtype: DType) -> Result<Array> {
    if x.dtype == dtype {
        return Ok(x.clone());
    }
    let out = Array::uninit(dtype, x.shape().clone())?;
    // SAFETY: the output is fresh.
    unsafe { cast_into(x, &out) };
    Ok(out)
}

/// The elements converted to another dtype, in C order.
///
/// # Safety
/// `out` is in C order and has the shape of `x`; nobody else reads or writes it.
pub unsafe fn cast_into(x: &Array, out: &Array) {
    if x.dtype == out.dtype {
        // SAFETY: as the caller's.
        return unsafe { copy_into(out, x) };
    }
    let kernel = memory_kernel(x.dtype, out.dtype).filter(|_| x.is_contiguous());
    // SAFETY: the caller holds the output.
    unsafe {
        match kernel {
            Some(kernel) => map_memory(kernel, x, out),
            None => {
                let mut builder = Builder::new(&[x.dtype], &[]);
                let value = builder.cast(builder.input(0), out.dtype);
                run(&builder.finish(&[value]), &[x], &[], &[out]);
            }
        }
    }
}

/// The one kernel that casts from memory form to memory form, where there is one.
fn memory_kernel(from: DType, to: DType) -> Option<tile::TileKernel> {
    match (tile::widen(from), tile::narrow(to)) {
        (None, None) => Some(tile::cast(from.compute(), to)),
        (Some(widen), None) => (from.compute() == to.compute()).then_some(widen),
        (None, Some(narrow)) => (from.compute() == to.compute() && to.is_float()).then_some(narrow),
        (Some(_), Some(_)) => None,
    }
}

/// The part of an array that starts at `low` and has the given sizes.
fn window(x: &Array, low: &[usize], sizes: &[usize]) -> Array {
    let strides = x.layout.strides();
    let shift: isize = low.iter().zip(&strides).map(|(&at, stride)| at as isize * stride).sum();
    let empty = sizes.contains(&0);
    let offset = if empty { 0 } else { (x.layout.offset() as isize + shift) as usize };
    x.view(Layout::strided(Shape::of(sizes), &strides, offset))
}

/// The parts one after another along an axis. They have one dtype and agree along every other axis;
/// there is at least one.
pub fn concat(parts: &[&Array], axis: usize) -> Result<Array> {
    let mut sizes = parts[0].shape().sizes();
    sizes[axis] = parts.iter().map(|part| part.shape().dims()[axis].value()).sum();
    let out = Array::uninit(parts[0].dtype, Shape::of(&sizes))?;
    // SAFETY: the output is fresh.
    unsafe { concat_into(parts, axis, &out) };
    Ok(out)
}

/// The parts one after another along an axis.
///
/// # Safety
/// `out` has the shape of the whole; nobody else reads or writes it.
pub unsafe fn concat_into(parts: &[&Array], axis: usize, out: &Array) {
    // SAFETY: as the caller's.
    if unsafe { join_pieces(parts, axis, out) } {
        return;
    }
    let mut low: SmallVec<[usize; 6]> = SmallVec::from_elem(0, out.shape().rank());
    for part in parts.iter().filter(|part| part.count() > 0) {
        // SAFETY: the caller holds the output.
        unsafe { copy_into(&window(out, &low, &part.shape().sizes()), part) };
        low[axis] += part.shape().dims()[axis].value();
    }
}

/// The most bytes that are copied piece by piece, and bytes of a piece that are worth a call of the
/// library's copy, unless there are few.
const SMALL: usize = 1 << 16;
const PIECE: usize = 32;
const FEW_PIECES: usize = 64;

/// [`concat_into`] of few bytes, where each part has its elements of a row of the result in one
/// piece; false, and nothing is written, of others.
unsafe fn join_pieces(parts: &[&Array], axis: usize, out: &Array) -> bool {
    let dims = out.shape().dims();
    let product = |dims: &[Dim]| dims.iter().fold(1, |n, d| n * d.value());
    let (rows, inner) = (product(&dims[..axis]), product(&dims[axis + 1..]) * out.dtype.size());
    let bytes = |x: &Array| x.shape().dims()[axis].value() * inner;
    let (pieces, total) = (rows * parts.len(), rows * bytes(out));
    let lie = out.is_contiguous() && parts.iter().all(|part| part.is_contiguous());
    if !lie || total > SMALL || (pieces > FEW_PIECES && total / pieces < PIECE) {
        return false;
    }
    // SAFETY: the caller holds the output.
    let mut to = unsafe { out.ptr_mut() };
    for row in 0..rows {
        for part in parts {
            let n = bytes(part);
            // SAFETY: both pieces lie inside their arrays, which do not overlap.
            unsafe { to.copy_from_nonoverlapping(part.ptr().wrapping_add(row * n), n) };
            to = to.wrapping_add(n);
        }
    }
    true
}

/// `x` inside a border: `low[i]` and `high[i]` elements of `value` before and after axis `i`.
pub fn pad(x: &Array, low: &[usize], high: &[usize], value: Scalar) -> Result<Array> {
    let inner = x.shape().sizes();
    let mut sizes = inner.clone();
    sizes.iter_mut().zip(low.iter().zip(high)).for_each(|(n, (l, h))| *n += l + h);
    let out = Array::uninit(x.dtype, Shape::of(&sizes))?;
    let bits = memory_bits(value, x.dtype);
    // Slab by slab: the axes before `axis` are inside by now, those after it still have their
    // borders.
    let mut from: SmallVec<[usize; 6]> = SmallVec::from_elem(0, sizes.len());
    for axis in 0..sizes.len() {
        for (start, n) in [(0, low[axis]), (low[axis] + inner[axis], high[axis])] {
            let mut slab = sizes.clone();
            (from[axis], slab[axis]) = (start, n);
            // SAFETY: the output is fresh.
            unsafe { fill_into(&window(&out, &from, &slab), bits) };
        }
        (from[axis], sizes[axis]) = (low[axis], inner[axis]);
    }
    // SAFETY: as above.
    unsafe { copy_into(&window(&out, low, &inner), x) };
    Ok(out)
}

/// An array of one number.
pub fn fill(value: Scalar, dtype: DType, shape: &Shape) -> Result<Array> {
    if memory_bits(value, dtype) == 0 {
        return Array::zeros(dtype, shape.clone());
    }
    let out = Array::uninit(dtype, shape.clone())?;
    // SAFETY: the output is fresh.
    unsafe { fill_with(value, &out) };
    Ok(out)
}

/// Writes a number to every element.
///
/// # Safety
/// As for [`copy_into`].
pub unsafe fn fill_with(value: Scalar, dst: &Array) {
    // SAFETY: as the caller's.
    unsafe { fill_into(dst, memory_bits(value, dst.dtype)) }
}

/// Writes the low bytes of `bits` to every element.
///
/// # Safety
/// As for [`copy_into`].
unsafe fn fill_into(dst: &Array, bits: u64) {
    let strides: Strides = SmallVec::from_elem(0, dst.shape().rank());
    if dst.count() > 0 {
        // SAFETY: as the caller's; the low bytes of a number come first in memory.
        unsafe { spread(dst, (&raw const bits).cast(), &strides) }
    }
}

/// A number in the memory form of a dtype.
pub fn memory_bits(value: Scalar, dtype: DType) -> u64 {
    let bits = register_bits(value, dtype);
    let Some(narrow) = tile::narrow(dtype) else { return bits };
    let mut out = 0u64;
    let arg = (&raw const bits).cast::<u8>();
    // SAFETY: one element on either side.
    unsafe { narrow((&raw mut out).cast(), &[arg; 3], 1) };
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::testing::{array, bytes, layouts, random, values};

    #[test]
    fn copies_follow_any_layout_on_either_side() {
        for dtype in [DType::U8, DType::F16, DType::F32, DType::I64] {
            for sizes in [&[7, 1, 9][..], &[], &[100, 90], &[3, 70, 65], &[2000, 3], &[5, 0]] {
                let x = random(dtype, sizes, 3);
                for src in layouts(&x) {
                    assert_eq!(bytes(&contiguous(&src).unwrap()), bytes(&x), "{dtype} {sizes:?}");
                    for dst in
                        layouts(&random(dtype, sizes, 4)).into_iter().filter(|_| x.count() > 0)
                    {
                        // SAFETY: nobody else holds the destination.
                        unsafe { copy_into(&dst, &src) };
                        assert_eq!(values(&dst), values(&x), "{dtype} {sizes:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn large_transposed_copies_past_the_caches_are_the_same() {
        // Rows that start at cache lines, and rows that do not.
        for (dtype, rows, columns) in [
            (DType::U8, 4096 + 70, 4096),
            (DType::F16, 4096, 2048 + 33),
            (DType::F32, 2048, 2048 + 16),
            (DType::I64, 2048 + 9, 1024),
        ] {
            let x = random(dtype, &[rows, columns], 5);
            assert!(x.count() * dtype.size() >= STREAM);
            let turned = x.view(x.layout.permuted(&[1, 0]));
            let (found, from) = (bytes(&contiguous(&turned).unwrap()), bytes(&x));
            let size = dtype.size();
            let element = |of: &[u8], i: usize| of[i * size..(i + 1) * size].to_vec();
            let wrong = (0..rows * columns).step_by(7).find(|i| {
                let (row, column) = (i / columns, i % columns);
                element(&found, column * rows + row) != element(&from, *i)
            });
            assert_eq!(wrong, None, "{dtype}");
        }
    }

    #[test]
    fn sources_broadcast() {
        let row = random(DType::F32, &[1, 40], 1);
        let dst = random(DType::F32, &[30, 40], 2);
        // SAFETY: nobody else holds the destination.
        unsafe { copy_into(&dst, &row) };
        assert_eq!(values(&dst), values(&row).repeat(30));
    }

    /// What a number becomes in a dtype, through exact arithmetic; half precision is left to its
    /// own tests and gets exact numbers only.
    fn converted(x: f64, from: DType, to: DType) -> f64 {
        match to.int_range() {
            Some((low, high)) if from.is_float() => (x as i128).clamp(low, high) as f64,
            Some((low, high)) => ((x as i128 - low).rem_euclid(high - low + 1) + low) as f64,
            None if to == DType::Bool => f64::from(u8::from(x != 0.0)),
            None if to == DType::F64 => x,
            None => f64::from(x as f32),
        }
    }

    #[test]
    fn every_cast_matches_exact_arithmetic_in_every_layout() {
        let wide = [0.0, 1.0, -1.0, 127.0, -128.0, 130.0, 250.0, -200.0, 32000.0, 2.75, -2.75];
        for from in DType::ALL {
            // What `from` itself holds is the starting point; the reference reads it as a double.
            let sign = |v: &f64| if from == DType::U64 { v.abs() } else { *v };
            let x = array(from, &[11, 40], &wide.iter().map(sign).collect::<Vec<_>>().repeat(40));
            let held = values(&x);
            for to in DType::ALL {
                let want: Vec<f64> = held.iter().map(|&v| converted(v, from, to)).collect();
                let is_exact = |v: f64| !matches!(to, DType::F16 | DType::BF16) || v.abs() <= 256.0;
                for view in layouts(&x) {
                    let got = values(&cast(&view, to).unwrap());
                    for ((&got, &want), &v) in
                        got.iter().zip(&want).zip(&held).filter(|((_, w), _)| is_exact(**w))
                    {
                        assert_eq!(got, want, "{v} from {from} to {to}");
                    }
                }
            }
        }
    }

    #[test]
    fn doubles_round_to_half_precision_once() {
        // 1 + 2^-11 is half way between two float16; a little more must go up, though float32
        // cannot tell the two apart. Likewise 1 + 2^-8 in bfloat16.
        let just_above = |k: i32| 1.0 + 2f64.powi(-k) + 2f64.powi(-40);
        let x =
            array(DType::F64, &[4], &[just_above(11), just_above(8), 1.0 + 2f64.powi(-11), -1e300]);
        let f16 = values(&cast(&x, DType::F16).unwrap());
        assert_eq!(f16, [1.0 + 2f64.powi(-10), 1.0 + 2f64.powi(-8), 1.0, f64::NEG_INFINITY]);
        let bf16 = values(&cast(&x, DType::BF16).unwrap());
        assert_eq!(bf16, [1.0, 1.0 + 2f64.powi(-7), 1.0, f64::NEG_INFINITY]);
    }

    #[test]
    fn joins_and_borders() {
        let (a, b) = (random(DType::I16, &[4, 3, 5], 1), random(DType::I16, &[4, 2, 5], 2));
        for (a, b) in layouts(&a).iter().zip(layouts(&b)) {
            let joined = concat(&[a, &b, a], 1).unwrap();
            let (x, y) = (values(a), values(&b));
            let want: Vec<f64> = (0..4)
                .flat_map(|i| [&x[i * 15..][..15], &y[i * 10..][..10], &x[i * 15..][..15]].concat())
                .collect();
            assert_eq!(
                (values(&joined), joined.shape().sizes().as_slice()),
                (want, &[4, 8, 5][..])
            );

            let padded = pad(a, &[1, 0, 2], &[0, 3, 1], Scalar::Int(9)).unwrap();
            assert_eq!(padded.shape().sizes().as_slice(), [5, 6, 8]);
            for (i, v) in values(&padded).into_iter().enumerate() {
                let (p, q, r) = (i / 48, i / 8 % 6, i % 8);
                let inside = p >= 1 && q < 3 && (2..7).contains(&r);
                assert_eq!(v, if inside { x[(p - 1) * 15 + q * 5 + r - 2] } else { 9.0 });
            }
        }
        let empty =
            pad(&random(DType::F32, &[0, 2], 1), &[1, 0], &[1, 0], Scalar::Float(0.5)).unwrap();
        assert_eq!(values(&empty), [0.5; 4]);
    }

    #[test]
    fn fills_write_the_number_in_every_dtype() {
        for dtype in DType::ALL {
            for (value, want) in [(Scalar::Int(1), 1.0), (Scalar::Int(0), 0.0)] {
                let x = fill(value, dtype, &Shape::of(&[70, 50])).unwrap();
                assert_eq!(values(&x), vec![want; 3500], "{dtype}");
            }
        }
    }
}
