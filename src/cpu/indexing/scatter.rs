//! Scatter: each index puts a slice of values in place, or adds it.

use std::mem::MaybeUninit;
use std::ops::Range;

use super::{BATCH, CHUNK, Pick, Picks, Target};
use crate::array::Array;
use crate::cpu::convert;
use crate::cpu::copy::copy_into;
use crate::cpu::gemm::Axis;
use crate::dtype::{DType, Width};
use crate::error::Result;
use crate::ops::attributes::ScatterMode;
use crate::shape::Shape;
use crate::threads::{self, Pace};

/// `base` with `values` (which broadcast to the shape [`gather_into`](super::gather_into) would
/// give) put or added at `base[i, j, …]`. A base that nobody shares is written in place. Half
/// floats are rounded after every addition; adding bools is `or`.
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
    /// Lets every value meet its place, in index order. Threads share the places among them: parts
    /// of the slices where these are long, else ranges of slices.
    fn run<T: Copy>(&self, meet: impl Fn(T, T) -> T + Sync) {
        let (n, count) = (self.inner.len(), self.picks.count);
        if n * count == 0 {
            return;
        }
        let long = n * size_of::<T>() >= 256;
        // Who has slices of its own still reads all indices.
        let most = if long { 2 * threads::num_threads() } else { threads::num_threads() };
        let parts = (n * count * size_of::<T>() / CHUNK).clamp(1, most);
        let bounds = if long || parts <= 2 { Vec::new() } else { self.bounds() };
        threads::parallel_for(parts, &|part| {
            let cut = |all: usize| all * part / parts..all * (part + 1) / parts;
            let (columns, slices) =
                if long { (cut(n), 0..self.slices) } else { (0..n, cut(self.slices)) };
            // SAFETY: parts are disjoint.
            unsafe { self.part(columns, slices, &bounds, &meet) };
        });
    }

    /// The first and last place of each batch, so that threads pass over batches that have no place
    /// of theirs: where an index goes along one axis, batches lie in order along the others.
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
    /// Nobody else writes to these columns of these slices. `bounds` are empty or those of all
    /// batches.
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
        if let ([pick], 1) = (&self.picks.axes[..], n)
            && let (Some(step), Some(apart)) = (pick.walk.stride(), self.outer.stride())
        {
            // SAFETY: as the caller's.
            return unsafe { self.elements(pick, (step, apart), (low..high, bounds), meet) };
        }
        let (mut places, mut sources, mut pace) = ([0; BATCH], [0; BATCH], Pace::default());
        for start in (0..self.picks.count).step_by(BATCH) {
            let count = BATCH.min(self.picks.count - start);
            if is_elsewhere(bounds, start, &(low..high)) {
                continue;
            }
            self.picks.positions(start, &mut places[..count]);
            self.outer.offsets(start, &mut sources[..count]);
            pace.work(count);
            let pairs = places[..count].iter().zip(&sources[..count]);
            for (&place, &source) in pairs.filter(|(place, _)| (low..high).contains(*place)) {
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

    /// [`Scatter::part`] for single elements whose indices lie evenly, as the values do: `step` and
    /// `apart` elements from one to the next.
    ///
    /// # Safety
    /// Nobody else writes to these places.
    unsafe fn elements<T: Copy>(
        &self,
        pick: &Pick,
        (step, apart): (isize, isize),
        (ours, bounds): (Range<isize>, &[(isize, isize)]),
        meet: &impl Fn(T, T) -> T,
    ) {
        // Any bits are a number.
        let (mut unread, mut pace) = (MaybeUninit::<T>::zeroed(), Pace::default());
        for start in (0..self.picks.count).step_by(BATCH) {
            let end = self.picks.count.min(start + BATCH);
            if is_elsewhere(bounds, start, &ours) {
                continue;
            }
            pace.work(end - start);
            for i in start as isize..end as isize {
                // SAFETY: indices are checked, and the place is in our part, or is the one that
                // nobody reads: places come in any order, so that a branch would be guessed.
                unsafe {
                    let to = self.out.cast::<T>().wrapping_offset(pick.place(i * step));
                    let is_ours = ours.contains(&pick.place(i * step));
                    let to = if is_ours { to } else { unread.as_mut_ptr() };
                    *to = meet(*to, *self.values.cast::<T>().offset(i * apart));
                }
            }
        }
    }
}

/// Whether the batch from `start` on has no place of ours, as far as bounds are known.
fn is_elsewhere(bounds: &[(isize, isize)], start: usize, ours: &Range<isize>) -> bool {
    let batch = bounds.get(start / BATCH);
    batch.is_some_and(|&(first, last)| last < ours.start || first >= ours.end)
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
