//! Gather: each index picks a slice.

use super::{BATCH, CHUNK, Picks, Target};
use crate::array::Array;
use crate::cpu::gemm::Axis;
use crate::cpu::gemm::kernel::prefetch;
use crate::dtype::Width;
use crate::error::Result;
use crate::shape::Shape;
use crate::threads::{self, Pace};

/// Slices between the one that is copied and the one that is fetched: they are anywhere, so the
/// hardware does not see the next one coming.
const AHEAD: usize = 2;
/// Elements of slices with gaps that are copied for one index after the other: the cache lines that
/// they lie on have the elements of the next index too, where the indexed axis is the dense one.
const STRIP: usize = 64;
/// The most bytes of a slice that are fetched; behind them the hardware sees what comes.
const FETCHED: usize = 2048;

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

/// What one index picks: the axes behind the indexed ones.
fn slice(x: &Array, indexed: usize) -> Axis {
    let (sizes, strides) = (x.shape().sizes(), x.layout.strides());
    Axis::new(sizes[indexed..].iter().copied().zip(strides[indexed..].iter().copied()))
}

/// The longest lines of elements whose places are kept.
const LINE: usize = 1 << 15;

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
    if let (1, Some(line @ ..=LINE)) = (n, picks.line)
        && picks.count > line
    {
        // The places of a line, counted from its first, are those of every line.
        let mut places = vec![0; line];
        picks.positions(0, &mut places);
        let origin = places[0];
        places.iter_mut().for_each(|place| *place -= origin);
        return threads::for_each_chunk(picks.count / line, chunk.div_ceil(line), |range| {
            let (src, dst, mut pace) = (&src, &dst, Pace::default());
            for i in range {
                pace.work(line);
                let mut first = [0];
                picks.positions(i * line, &mut first);
                // SAFETY: indices are checked; line `i` of the result is ours.
                unsafe {
                    let (from, to) = (src.0.offset(first[0]), dst.0.add(i * line));
                    for (at, &place) in places.iter().enumerate() {
                        *to.add(at) = *from.offset(place);
                    }
                }
            }
        });
    }
    threads::for_each_chunk(picks.count, chunk, |range| {
        let (src, dst, mut pace) = (&src, &dst, Pace::default());
        for start in range.clone().step_by(BATCH) {
            let mut offsets = [0; BATCH];
            let offsets = &mut offsets[..BATCH.min(range.end - start)];
            picks.positions(start, offsets);
            if n > 1 && step != 1 {
                pace.work(n * offsets.len());
                for run in &runs {
                    for at in (0..run.len).step_by(STRIP) {
                        let len = STRIP.min(run.len - at);
                        for (i, &offset) in offsets.iter().enumerate() {
                            // SAFETY: indices are checked; row `start + i` of the result is ours.
                            unsafe {
                                let from = src.0.offset(offset + run.offset + at as isize * step);
                                copy(dst.0.add((start + i) * n + run.at + at), from, len, step);
                            }
                        }
                    }
                }
                continue;
            }
            for (i, &offset) in offsets.iter().enumerate() {
                // SAFETY: indices are checked; row `start + i` of the result is ours.
                let (from, to) = unsafe { (src.0.offset(offset), dst.0.add((start + i) * n)) };
                if n == 1 {
                    // SAFETY: as above.
                    unsafe { *to = *from };
                    continue;
                }
                if let (Some(&next), 1) = (offsets.get(i + AHEAD), step) {
                    let next = src.0.wrapping_offset(next + runs[0].offset).cast::<u8>();
                    for at in (0..FETCHED.min(runs[0].len * size_of::<T>())).step_by(64) {
                        prefetch(next.wrapping_add(at));
                    }
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
