//! Advanced indexing: integer arrays on the leading axes pick (gather) or receive (scatter) slices.
//!
//! Promises: every index is checked before anything is written; negative ones count from the end.
//! Index arrays are read where they are, repeats included. Values that meet at one place are taken in
//! index order, whatever the threads.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::array::Array;
use crate::cpu::convert;
use crate::cpu::copy::copy_into;
use crate::cpu::gemm::Axis;
use crate::dtype::{DType, Width};
use crate::error::{Error, Result};
use crate::ops::attributes::ScatterMode;
use crate::shape::Shape;
use crate::threads::{self, Pace};

/// Indices worked on at a time.
const BATCH: usize = 1024;
/// Bytes worth handing to another thread.
const CHUNK: usize = 1 << 18;

/// `x[i, j, …]` for int64 arrays that broadcast to `index_shape`: that shape, then the axes of `x`
/// that have no index.
///
/// # Safety
/// `out` is in C order, of the result's type, and nobody else reads or writes it.
pub unsafe fn gather_into(
    op: &str,
    x: &Array,
    indices: &[&Array],
    index_shape: &Shape,
    out: &Array,
) -> Result<()> {
    let picks = Picks::new(op, x, indices, index_shape)?;
    let slice = slice(x, indices.len());
    match x.dtype.width() {
        Width::B1 => gather_typed::<u8>(x, &picks, &slice, out),
        Width::B2 => gather_typed::<u16>(x, &picks, &slice, out),
        Width::B4 => gather_typed::<u32>(x, &picks, &slice, out),
        Width::B8 => gather_typed::<u64>(x, &picks, &slice, out),
    }
    Ok(())
}

/// `base` with `values` (which broadcast to the shape [`gather`] would give) put or added at
/// `base[i, j, …]`. A base that nobody shares is written in place. Half floats are rounded after
/// every addition; adding bools is `or`.
pub fn scatter(
    op: &str,
    base: Array,
    indices: &[&Array],
    index_shape: &Shape,
    values: &Array,
    mode: ScatterMode,
) -> Result<Array> {
    let keep = base.is_contiguous() && base.is_unique();
    let out = if keep { base } else { copied(&base)? };
    // SAFETY: held alone.
    unsafe { scatter_at(op, &out, indices, index_shape, values, mode)? };
    Ok(out)
}

/// Puts or adds values at `out[i, j, …]`.
///
/// # Safety
/// `out` is in C order and nobody else reads or writes it.
pub unsafe fn scatter_at(
    op: &str,
    out: &Array,
    indices: &[&Array],
    index_shape: &Shape,
    values: &Array,
    mode: ScatterMode,
) -> Result<()> {
    let picks = Picks::new(op, out, indices, index_shape)?;
    let strides = values.layout.broadcast_strides(&result_shape(out, indices.len(), index_shape));
    let (outer, inner) = strides.split_at(index_shape.rank());
    let sizes = out.shape().sizes();
    let job = Scatter {
        picks,
        values: values.ptr(),
        outer: Axis::new(index_shape.sizes().into_iter().zip(outer.iter().copied())),
        inner: Axis::new(sizes[indices.len()..].iter().copied().zip(inner.iter().copied())),
        // SAFETY: held by the caller.
        out: unsafe { out.ptr_mut() },
        slices: sizes[..indices.len()].iter().product(),
    };
    use DType::*;
    match (mode, out.dtype) {
        (ScatterMode::Set, dtype) => match dtype.width() {
            Width::B1 => job.run(|_: u8, v| v),
            Width::B2 => job.run(|_: u16, v| v),
            Width::B4 => job.run(|_: u32, v| v),
            Width::B8 => job.run(|_: u64, v| v),
        },
        (ScatterMode::Add, F32) => job.run(|a: f32, v| a + v),
        (ScatterMode::Add, F64) => job.run(|a: f64, v| a + v),
        (ScatterMode::Add, F16 | BF16) => job.run(|a: u16, v| add_half(out.dtype, a, v)),
        (ScatterMode::Add, Bool) => job.run(|a: u8, v| a | v),
        (ScatterMode::Add, I8 | U8) => job.run(u8::wrapping_add),
        (ScatterMode::Add, I16 | U16) => job.run(u16::wrapping_add),
        (ScatterMode::Add, I32 | U32) => job.run(u32::wrapping_add),
        (ScatterMode::Add, I64 | U64) => job.run(u64::wrapping_add),
    }
    Ok(())
}

/// Refuses index arrays that leave the axes of `x`.
pub fn check_indices(op: &str, x: &Array, indices: &[&Array], index_shape: &Shape) -> Result<()> {
    Picks::new(op, x, indices, index_shape).map(drop)
}

fn result_shape(x: &Array, indexed: usize, index_shape: &Shape) -> Shape {
    index_shape.dims().iter().chain(&x.shape().dims()[indexed..]).copied().collect()
}

/// `x` in fresh memory.
fn copied(x: &Array) -> Result<Array> {
    let out = Array::uninit(x.dtype, x.shape().clone())?;
    // SAFETY: fresh.
    unsafe { copy_into(&out, x) };
    Ok(out)
}

/// What one index picks: the axes behind the indexed ones.
fn slice(x: &Array, indexed: usize) -> Axis {
    let (sizes, strides) = (x.shape().sizes(), x.layout.strides());
    Axis::new(sizes[indexed..].iter().copied().zip(strides[indexed..].iter().copied()))
}

/// One index array and the axis it indexes.
struct Pick {
    ptr: *const i64,
    /// Walks the indices in order
    walk: Axis,
    size: usize,
    /// Elements from one slice of the axis to the next
    stride: isize,
}

/// Checked indices.
struct Picks {
    axes: Vec<Pick>,
    count: usize,
}

// SAFETY: index arrays are only read.
unsafe impl Sync for Picks {}

impl Picks {
    fn new(op: &str, x: &Array, indices: &[&Array], shape: &Shape) -> Result<Picks> {
        let (sizes, strides) = (x.shape().sizes(), x.layout.strides());
        let mut axes = Vec::with_capacity(indices.len());
        for (axis, index) in indices.iter().enumerate() {
            let size = sizes[axis];
            check(op, index, axis, size, shape.count(), indices.len())?;
            let walk = shape.sizes().into_iter().zip(index.layout.broadcast_strides(shape));
            axes.push(Pick {
                ptr: index.ptr().cast(),
                walk: Axis::new(walk),
                size,
                stride: strides[axis],
            });
        }
        Ok(Picks { axes, count: shape.count() })
    }

    /// The positions of the slices that the indices from `start` on pick.
    fn positions(&self, start: usize, out: &mut [isize]) {
        out.fill(0);
        for pick in &self.axes {
            let step = pick.walk.inner().1;
            for run in pick.walk.runs(start, out.len()) {
                for (i, out) in out[run.at..run.at + run.len].iter_mut().enumerate() {
                    // SAFETY: the walk stays inside the index array.
                    let index =
                        unsafe { *pick.ptr.offset(run.offset + i as isize * step) } as isize;
                    let index = if index < 0 { index + pick.size as isize } else { index };
                    *out += index * pick.stride;
                }
            }
        }
    }
}

/// Refuses an index array that leaves `-size..size`, naming its first such index.
fn check(
    op: &str,
    index: &Array,
    axis: usize,
    size: usize,
    used: usize,
    count: usize,
) -> Result<()> {
    if used == 0 {
        return Ok(());
    }
    // An element that is only repeated need not be checked twice.
    let walk = Axis::new(
        index
            .shape()
            .sizes()
            .into_iter()
            .zip(index.layout.strides())
            .filter(|(_, stride)| *stride != 0),
    );
    let (step, from) = (walk.inner().1, Indices(index.ptr().cast()));
    let limit = size as i64;
    let bad = |i: i64| i < -limit || i >= limit;
    // The first bad index in the order of the walk.
    let first = AtomicUsize::new(usize::MAX);
    threads::for_each_chunk(walk.len(), CHUNK / size_of::<i64>(), |range| {
        let (from, mut pace) = (&from, Pace::default());
        for start in range.clone().step_by(BATCH) {
            pace.work(BATCH);
            for run in walk.runs(start, BATCH.min(range.end - start)) {
                // SAFETY: the walk stays inside the index array.
                let at = |i: usize| unsafe { *from.0.offset(run.offset + i as isize * step) };
                if (0..run.len).fold(false, |any, i| any | bad(at(i))) {
                    let place = (0..run.len).find(|&i| bad(at(i))).unwrap_or_default();
                    first.fetch_min(start + run.at + place, Ordering::Relaxed);
                    return;
                }
            }
        }
    });
    match first.into_inner() {
        usize::MAX => Ok(()),
        place => {
            let mut offset = [0];
            walk.offsets(place, &mut offset);
            // SAFETY: as above.
            let first = unsafe { *from.0.offset(offset[0]) };
            Err(Error::outside(op, first, axis, size, count))
        }
    }
}

/// An index array that several threads read.
struct Indices(*const i64);

// SAFETY: it is only read.
unsafe impl Sync for Indices {}

/// Shares the address of an array that threads write disjoint parts of.
struct Target<T>(*mut T);

// SAFETY: as said.
unsafe impl<T> Sync for Target<T> {}

/// Copies slices: whole runs at a time, or single elements where a slice is one element.
fn gather_typed<T: Copy>(x: &Array, picks: &Picks, slice: &Axis, out: &Array) {
    /// The source may be read by several threads.
    struct Source<T>(*const T);
    // SAFETY: it is only read.
    unsafe impl<T> Sync for Source<T> {}

    let n = slice.len();
    if n * picks.count == 0 {
        return;
    }
    let (runs, step) = (slice.runs(0, n), slice.inner().1);
    // SAFETY: fresh.
    let (src, dst) = (Source(x.ptr().cast::<T>()), Target(unsafe { out.ptr_mut() }.cast::<T>()));
    let chunk = (CHUNK / (n * size_of::<T>())).max(1);
    threads::for_each_chunk(picks.count, chunk, |range| {
        let (src, dst, mut pace) = (&src, &dst, Pace::default());
        for start in range.clone().step_by(BATCH) {
            let mut offsets = [0; BATCH];
            let offsets = &mut offsets[..BATCH.min(range.end - start)];
            picks.positions(start, offsets);
            for (i, &offset) in offsets.iter().enumerate() {
                // SAFETY: indices are checked; row `start + i` of the result is ours.
                let (from, to) = unsafe { (src.0.offset(offset), dst.0.add((start + i) * n)) };
                if n == 1 {
                    // SAFETY: as above.
                    unsafe { *to = *from };
                    continue;
                }
                for run in &runs {
                    for at in (0..run.len).step_by(CHUNK) {
                        let len = CHUNK.min(run.len - at);
                        pace.work(len);
                        // SAFETY: as above.
                        unsafe {
                            let from = from.offset(run.offset + at as isize * step);
                            copy(to.add(run.at + at), from, len, step);
                        }
                    }
                }
            }
        }
    });
}

#[inline]
unsafe fn copy<T: Copy>(dst: *mut T, src: *const T, n: usize, step: isize) {
    // SAFETY: the caller vouches for `n` elements of both.
    unsafe {
        if step == 1 {
            return dst.copy_from_nonoverlapping(src, n);
        }
        for i in 0..n {
            *dst.add(i) = *src.offset(i as isize * step);
        }
    }
}

/// `a + v` of half floats given by their bits: added in float32, rounded.
fn add_half(dtype: DType, a: u16, v: u16) -> u16 {
    let (bits, mut wide, mut sum) = ([a, v], [0f32; 2], 0u16);
    // SAFETY: two elements in, two registers out; one element back.
    unsafe {
        convert::load(dtype, wide.as_mut_ptr().cast(), bits.as_ptr().cast(), 1, 2);
        let total = wide[0] + wide[1];
        convert::store(dtype, (&raw mut sum).cast(), 1, (&raw const total).cast(), 1);
    }
    sum
}

/// Values on their way to slices of a C-order array.
struct Scatter {
    picks: Picks,
    values: *const u8,
    /// Walks the values along the index axes
    outer: Axis,
    /// Walks the values along a slice
    inner: Axis,
    out: *mut u8,
    /// How many slices the array has
    slices: usize,
}

// SAFETY: values are only read; threads write disjoint parts of `out`.
unsafe impl Sync for Scatter {}

impl Scatter {
    /// Lets every value meet its place, in index order. Threads share the places among them: parts of
    /// the slices where these are long, else ranges of slices.
    fn run<T: Copy>(&self, meet: impl Fn(T, T) -> T + Sync) {
        let (n, count) = (self.inner.len(), self.picks.count);
        if n * count == 0 {
            return;
        }
        let parts = (n * count * size_of::<T>() / CHUNK).clamp(1, 2 * threads::num_threads());
        let long = n * size_of::<T>() >= 256;
        let bounds = if long || parts == 1 { Vec::new() } else { self.bounds() };
        threads::parallel_for(parts, &|part| {
            let cut = |all: usize| all * part / parts..all * (part + 1) / parts;
            let (columns, slices) =
                if long { (cut(n), 0..self.slices) } else { (0..n, cut(self.slices)) };
            // SAFETY: parts are disjoint.
            unsafe { self.part(columns, slices, &bounds, &meet) };
        });
    }

    /// The first and last place of each batch, so that threads pass over batches that have no place of
    /// theirs: where an index goes along one axis, batches lie in order along the others.
    fn bounds(&self) -> Vec<(isize, isize)> {
        let count = self.picks.count;
        let mut bounds = vec![(0, 0); count.div_ceil(BATCH)];
        let to = Target(bounds.as_mut_ptr());
        threads::for_each_chunk(
            bounds.len(),
            (CHUNK / BATCH / size_of::<isize>()).max(1),
            |range| {
                let (to, mut places) = (&to, [0; BATCH]);
                for batch in range {
                    let places = &mut places[..BATCH.min(count - batch * BATCH)];
                    self.picks.positions(batch * BATCH, places);
                    let found =
                        places.iter().fold((isize::MAX, isize::MIN), |(low, high), &place| {
                            (low.min(place), high.max(place))
                        });
                    // SAFETY: a batch is one thread's.
                    unsafe { to.0.add(batch).write(found) };
                }
            },
        );
        bounds
    }

    /// # Safety
    /// Nobody else writes to these columns of these slices. `bounds` are empty or those of all batches.
    unsafe fn part<T: Copy>(
        &self,
        columns: Range<usize>,
        slices: Range<usize>,
        bounds: &[(isize, isize)],
        meet: &impl Fn(T, T) -> T,
    ) {
        let n = self.inner.len() as isize;
        let (low, high) = (slices.start as isize * n, slices.end as isize * n);
        let runs = self.inner.runs(columns.start, columns.len());
        let step = self.inner.inner().1;
        let (mut places, mut sources, mut pace) = ([0; BATCH], [0; BATCH], Pace::default());
        for start in (0..self.picks.count).step_by(BATCH) {
            let count = BATCH.min(self.picks.count - start);
            if bounds.get(start / BATCH).is_some_and(|&(first, last)| last < low || first >= high) {
                continue;
            }
            self.picks.positions(start, &mut places[..count]);
            self.outer.offsets(start, &mut sources[..count]);
            pace.work(count);
            let pairs = places[..count].iter().zip(&sources[..count]);
            let pairs = pairs.filter(|&(&place, _)| low <= place && place < high);
            if n == 1 {
                for (&place, &source) in pairs {
                    // SAFETY: indices are checked, and the place is in our part.
                    unsafe {
                        let to = self.out.cast::<T>().offset(place);
                        *to = meet(*to, *self.values.cast::<T>().offset(source));
                    }
                }
                continue;
            }
            for (&place, &source) in pairs {
                pace.work(columns.len());
                // SAFETY: indices are checked, and the place is in our part.
                unsafe {
                    let to = self.out.cast::<T>().offset(place).add(columns.start);
                    let from = self.values.cast::<T>().offset(source);
                    for run in &runs {
                        join(to.add(run.at), from.offset(run.offset), run.len, step, meet);
                    }
                }
            }
        }
    }
}

#[inline(always)]
unsafe fn join<T: Copy>(
    dst: *mut T,
    src: *const T,
    n: usize,
    step: isize,
    meet: &impl Fn(T, T) -> T,
) {
    /// Elements read before any is written, so that the loop over them can use vectors.
    const PIECE: usize = 16;
    let whole = if step == 1 { n / PIECE * PIECE } else { 0 };
    // SAFETY: the caller vouches for `n` elements of both.
    unsafe {
        for i in (0..whole).step_by(PIECE) {
            let place = dst.add(i).cast::<[T; PIECE]>();
            let mut piece = place.read();
            for (a, v) in piece.iter_mut().zip(src.add(i).cast::<[T; PIECE]>().read()) {
                *a = meet(*a, v);
            }
            place.write(piece);
        }
        for i in whole..n {
            *dst.add(i) = meet(*dst.add(i), *src.offset(i as isize * step));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::testing::{array, bytes, gather, layouts, random, values};

    fn ints(sizes: &[usize], values: &[i64]) -> Array {
        array(DType::I64, sizes, &values.iter().map(|&v| v as f64).collect::<Vec<_>>())
    }

    /// Deterministic indices in `-size..size`.
    fn indices(sizes: &[usize], size: i64, seed: i64) -> Array {
        let count = sizes.iter().product::<usize>() as i64;
        ints(
            sizes,
            &(0..count).map(|i| (i * 7 + seed * 3 + i * i) % (2 * size) - size).collect::<Vec<_>>(),
        )
    }

    fn wrapped(index: f64, size: usize) -> usize {
        (if index < 0.0 { index + size as f64 } else { index }) as usize
    }

    #[test]
    fn rows_are_picked_from_every_layout_and_dtype() {
        for dtype in DType::ALL {
            let x = random(dtype, &[5, 3, 4], 1);
            let i = indices(&[2, 6], 5, 1);
            let (all, at) = (values(&x), values(&i));
            let want: Vec<f64> =
                (0..12 * 12).map(|e| all[wrapped(at[e / 12], 5) * 12 + e % 12]).collect();
            for x in layouts(&x) {
                for i in layouts(&i) {
                    let y = gather(&x, &[&i]).unwrap();
                    assert_eq!((y.dtype, y.shape()), (dtype, &Shape::of(&[2, 6, 3, 4])));
                    assert_eq!(values(&y), want);
                }
            }
        }
    }

    #[test]
    fn several_indices_broadcast_and_may_cover_every_axis() {
        let x = random(DType::F32, &[4, 6], 2);
        let (i, j) = (indices(&[3, 1], 4, 2), indices(&[5], 6, 3));
        let (all, a, b) = (values(&x), values(&i), values(&j));
        let want: Vec<f64> =
            (0..15).map(|e| all[wrapped(a[e / 5], 4) * 6 + wrapped(b[e % 5], 6)]).collect();
        for x in layouts(&x) {
            let y = gather(&x, &[&i, &j]).unwrap();
            assert_eq!(values(&y), want);
        }
    }

    #[test]
    fn large_gathers_and_scatters_do_not_depend_on_threads() {
        let threads = threads::num_threads();
        let x = random(DType::F32, &[50, 300], 3);
        let i = indices(&[4000], 50, 1);
        let v = crate::cpu::testing::noise(DType::F32, &[4000, 300], 4);
        let (flat, k) = (random(DType::F32, &[70], 5), indices(&[300_000], 70, 2));
        let u = crate::cpu::testing::noise(DType::F32, &[300_000], 6);
        let run = || {
            let (rows, places) = (Shape::of(&[4000]), Shape::of(&[300_000]));
            let add = |base: &Array, i: &Array, shape: &Shape, v: &Array, mode| {
                bytes(&scatter("put", base.clone(), &[i], shape, v, mode).unwrap())
            };
            [
                bytes(&gather(&x, &[&i]).unwrap()),
                add(&x, &i, &rows, &v, ScatterMode::Add),
                add(&x, &i, &rows, &v, ScatterMode::Set),
                add(&flat, &k, &places, &u, ScatterMode::Add),
                add(&flat, &k, &places, &u, ScatterMode::Set),
            ]
        };
        let many = run();
        threads::set_num_threads(1);
        let one = run();
        threads::set_num_threads(threads);
        assert!(many == one);
        // And against a plain loop in index order.
        let (mut want, at, v) = (values(&flat), values(&k), values(&u));
        (0..at.len()).for_each(|e| want[wrapped(at[e], 70)] = v[e]);
        assert!(values(&array(DType::F32, &[70], &want)) == want);
        let got: Vec<f32> =
            one[4].chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
        assert_eq!(got.iter().map(|&v| v as f64).collect::<Vec<_>>(), want);
    }

    #[test]
    fn the_last_of_several_values_stays_and_sums_take_all() {
        for dtype in DType::ALL {
            let base = random(dtype, &[3, 2], 5);
            let i = ints(&[4], &[1, -1, 1, 2]);
            let v = random(dtype, &[4, 2], 6);
            let (old, new) = (values(&base), values(&v));
            for v in layouts(&v) {
                for base in layouts(&base) {
                    let shape = Shape::of(&[4]);
                    let set =
                        scatter("put", base.clone(), &[&i], &shape, &v, ScatterMode::Set).unwrap();
                    let want = [old[0], old[1], new[4], new[5], new[6], new[7]];
                    assert_eq!(values(&set), want);
                    let add =
                        scatter("put", base.clone(), &[&i], &shape, &v, ScatterMode::Add).unwrap();
                    for (e, got) in values(&add).into_iter().enumerate() {
                        let terms = [vec![], vec![0, 2], vec![1, 3]][e / 2].clone();
                        let sum: f64 =
                            old[e] + terms.iter().map(|t| new[t * 2 + e % 2]).sum::<f64>();
                        let want = if dtype == DType::Bool { sum.min(1.0) } else { sum };
                        assert_eq!(got, want, "{dtype}");
                    }
                    // The base is shared, so it is as it was.
                    assert_eq!(values(&base), old);
                }
            }
        }
    }

    #[test]
    fn a_base_of_ones_own_is_written_in_place_and_values_repeat() {
        let base = random(DType::F64, &[4, 3], 7);
        let address = base.ptr();
        let one = array(DType::F64, &[1], &[9.0]);
        let i = ints(&[2], &[0, -1]);
        let out = scatter("put", base, &[&i], &Shape::of(&[2]), &one, ScatterMode::Set).unwrap();
        assert_eq!(out.ptr(), address);
        let got = values(&out);
        assert!(got[..3].iter().chain(&got[9..]).all(|&v| v == 9.0));
    }

    #[test]
    fn an_index_outside_is_refused_before_anything_is_written() {
        let x = random(DType::F32, &[3, 4], 8);
        for (i, bad) in [([0, 3, 1], 3), ([-4, 9, 0], -4), ([0, 1, i64::MIN], i64::MIN)] {
            let i = ints(&[3], &i);
            let error = gather(&x, &[&i]).err().unwrap();
            let want = format!("gather: index {bad} is out of bounds for axis 0 with size 3");
            assert_eq!(error.to_string(), want);
            let before = values(&x);
            let base = x.clone();
            assert!(scatter("put", base, &[&i], &Shape::of(&[3]), &x, ScatterMode::Set).is_err());
            assert_eq!(values(&x), before);
        }
        let (i, j) = (ints(&[1], &[2]), ints(&[1], &[4]));
        let error = gather(&x, &[&i, &j]).err().unwrap();
        assert_eq!(error.to_string(), "gather: index 4 is out of bounds for axis 1 with size 4");
        // Nothing is picked, so nothing can be outside.
        let none = gather(&x, &[&ints(&[0], &[])]).unwrap();
        assert_eq!(none.shape(), &Shape::of(&[0, 4]));
        let empty = Array::zeros(DType::F32, Shape::of(&[0, 4])).unwrap();
        assert!(gather(&empty, &[&ints(&[1], &[0])]).is_err());
    }
}
