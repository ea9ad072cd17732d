//! Sixteen channels at a time: vectors hold what neighbouring channels have at one position.
//!
//! Lines of sixteen planes are transposed in registers on their way into a padded patch, and results
//! on their way out. In between every load is a whole vector that starts with a cache line, whatever
//! the step and the width of a line are; a plane alone would be read across cache lines, and narrow
//! ones would leave most of a vector empty. Lines are transposed once, shortly before the results
//! that read them are computed, so that both stay in the L1 cache.

use std::ops::Range;

use crate::cpu::direct::Windows;
use crate::cpu::gemm::Epilogue;
use crate::cpu::gemm::kernel::{BASE_FUSES, Element, SQUARE, Transpose};
use crate::cpu::gemm::scratch::{Scratch, counted};
use crate::cpu::sweep::Sweep;
use crate::error::Result;
use crate::multiversion;
use crate::ops::emit::OrThrow;
use crate::simd::isa;
use crate::threads::{self, Pace};

/// Results of a channel that are computed before they are transposed: with those of the others they
/// stay in the L1 cache, and are enough for an epilogue.
const TOGETHER: usize = 256;
/// The fewest multiplications worth handing to another thread.
const CHUNK: usize = 1 << 17;
/// The most elements of a patch of sixteen channels, which stays in the L2 cache.
const PATCH: usize = 64 << 10;

/// What one position has of sixteen channels.
pub type Vector<T> = [T; SQUARE];

/// One axis of a patch: results, and the positions that they read, from the lowest on.
pub struct Side {
    pub places: usize,
    /// Positions of what windows show
    size: usize,
    pub low: isize,
    pub step: usize,
    /// Positions that a result reads, from its lowest to its highest
    span: usize,
}

impl Side {
    /// `None` where results do not lie side by side.
    pub fn new(sweep: &Sweep, size: usize) -> Option<Side> {
        let Sweep { count, taps, base, step, tap, to, apart, .. } = *sweep;
        let reach = (taps as isize - 1).max(0) * tap;
        let is_plain = to == 0 && apart == 1 && count > 0 && taps > 0;
        (is_plain && step > 0).then(|| Side {
            places: count,
            size,
            low: base + reach.min(0),
            step: step.unsigned_abs(),
            span: reach.unsigned_abs() + 1,
        })
    }

    /// An axis of one position.
    pub fn single() -> Side {
        Side { places: 1, size: 1, low: 0, step: 1, span: 1 }
    }

    /// The positions that some results read.
    pub fn reads(&self, places: usize) -> usize {
        (places - 1) * self.step + self.span
    }

    /// The most results, at least one, that read at most so many positions.
    pub fn fitting(&self, positions: usize) -> usize {
        positions.saturating_sub(self.span) / self.step + 1
    }

    /// Where taps read, counted from the lowest.
    pub fn taps<'a>(&self, sweep: &'a Sweep) -> impl Iterator<Item = usize> + Clone + 'a {
        let lowest = (sweep.taps as isize - 1) * sweep.tap.min(0);
        (0..sweep.taps as isize).map(move |t| (t * sweep.tap - lowest).unsigned_abs())
    }

    /// Of `count` positions from the lowest of a result on, the numbers of those that exist.
    pub fn inside(&self, place: usize, count: usize) -> Range<usize> {
        let first = self.low + (place * self.step) as isize;
        let start = ((-first).max(0) as usize).min(count);
        start..((self.size as isize - first).max(0) as usize).clamp(start, count)
    }
}

/// The axes of lines and of columns; `None` where there are more than two, or results do not lie side
/// by side.
pub fn sides(windows: &Windows<'_>) -> Option<(Side, Side)> {
    let Windows { x, sweeps, .. } = windows;
    let side = |i: usize| Side::new(&sweeps[i], x.spatial[i].0);
    match sweeps.len() {
        1 => Some((Side::single(), side(0)?)),
        2 => Some((side(0)?, side(1)?)),
        _ => None,
    }
}

/// How the work is cut.
pub struct Cut {
    lines: Side,
    columns: Side,
    /// Channels, and samples
    channels: usize,
    samples: usize,
    taps: usize,
    /// Elements from a line of what windows show to the next
    line: isize,
    /// Parts of the lines of results, which are tasks, and lines of a part
    bands: usize,
    band: usize,
    /// Lines of results that are computed together
    chunk: usize,
    /// Positions along a line of the patch
    pitch: usize,
    /// Whether lines are transposed one by one; short ones are all together, and then moved
    is_wide: bool,
    /// Vectors of the patch, of results, and of short lines before they are moved
    parts: [usize; 3],
}

impl Cut {
    /// `None` where channels are better one by one: where they are few or planes tiny, or where
    /// elements are not transposed in registers.
    pub fn new<T: Element>(windows: &Windows<'_>) -> Option<Cut> {
        let Windows { x, sweeps, groups, .. } = windows;
        let one_by_one = windows.channels != 1 || windows.rows != 1 || *groups < SQUARE / 2;
        if size_of::<T>() != 4 || one_by_one || x.sizes[0] == 0 {
            return None;
        }
        T::kernels().transpose?;
        let (lines, columns) = sides(windows)?;
        let line = if sweeps.len() == 1 { 0 } else { x.spatial[0].1 };
        let last = x.spatial.last()?;
        let pitch = columns.reads(columns.places);
        let is_wide = columns.inside(0, pitch).len() >= SQUARE;
        let is_dense = line == last.0 as isize || lines.size == 1;
        if last.1 != 1 || lines.size * last.0 < SQUARE || !is_wide && !is_dense {
            return None;
        }
        let chunk = TOGETHER.div_ceil(columns.places).min(lines.places);
        let patch = lines.reads(chunk) * pitch;
        if patch * SQUARE > PATCH {
            return None;
        }
        let taps = sweeps.iter().map(|sweep| sweep.taps).product::<usize>();
        let blocks = groups.div_ceil(SQUARE) * x.sizes[0];
        let work = blocks * SQUARE * lines.places * columns.places * taps;
        let wanted = (work / CHUNK).clamp(1, 4 * threads::num_threads());
        let chunks = lines.places.div_ceil(chunk);
        let band = chunks.div_ceil(wanted.div_ceil(blocks)) * chunk;
        let short = if is_wide { 0 } else { (lines.reads(chunk) * last.0).max(SQUARE) };
        Some(Cut {
            bands: lines.places.div_ceil(band),
            band,
            chunk,
            pitch,
            is_wide,
            parts: [patch, chunk * columns.places, short],
            lines,
            columns,
            channels: *groups,
            samples: x.sizes[0],
            taps,
            line,
        })
    }

    fn tasks(&self) -> usize {
        self.samples * self.channels.div_ceil(SQUARE) * self.bands
    }

    /// Vectors that a thread works in: the weights, then the parts; twice the results, because
    /// those of fewer channels are transposed there.
    fn size(&self) -> usize {
        self.taps + self.parts.iter().sum::<usize>() + self.parts[1]
    }

    fn bytes<T>(&self) -> usize {
        self.size() * size_of::<Vector<T>>()
    }

    /// The scratch bytes of [`sums`], as the memory counters count them.
    pub fn scratch<T: Element>(&self) -> usize {
        counted(self.bytes::<T>(), self.tasks().min(threads::num_threads()))
    }
}

/// The sums of windows, as [`sums`](super::sums) computes them.
///
/// # Safety
/// As for [`sums`](super::sums); the cut is that of the windows.
pub unsafe fn sums<T: Element>(
    cut: &Cut,
    windows: &Windows<'_>,
    (out, channel): (*mut T, isize),
    epilogue: Option<Epilogue<'_>>,
) -> Result<()> {
    let Some(transpose) = T::kernels().transpose else { return Ok(()) };
    let mut weights = vec![0; cut.taps];
    windows.depth.offsets(0, &mut weights);
    let job = Job::<T> {
        windows,
        cut,
        offsets: offsets(windows, &cut.lines, &cut.columns, cut.pitch),
        weights,
        out,
        channel,
        transpose,
        line: lines::<T>(cut.columns.places),
    };
    let scratch = Scratch::new(cut.bytes::<T>(), cut.tasks().min(threads::num_threads()))?;
    let work = SQUARE * cut.chunk * cut.columns.places * cut.taps;
    let few = (CHUNK / 2).div_ceil(work * cut.band.div_ceil(cut.chunk));
    threads::for_each_chunk(cut.tasks(), few, |tasks| {
        let part = scratch.lend(cut.bytes::<T>()).or_throw();
        let mut pace = Pace::default();
        for task in tasks {
            // SAFETY: the part is this call's; every task has results of its own.
            unsafe { job.task(task, part.ptr().cast(), epilogue, || pace.work(work)) };
        }
    });
    Ok(())
}

/// What each step of a sum reads, in a patch of so many positions a line.
pub fn offsets(windows: &Windows<'_>, lines: &Side, columns: &Side, pitch: usize) -> Vec<isize> {
    let across = columns.taps(&windows.sweeps[windows.sweeps.len() - 1]);
    let down = match windows.sweeps.len() {
        1 => vec![0],
        _ => lines.taps(&windows.sweeps[0]).collect(),
    };
    let at = |y: usize| across.clone().map(move |x| ((y * pitch + x) * SQUARE) as isize);
    down.into_iter().flat_map(at).collect()
}

/// What all tasks share.
struct Job<'a, T: Element> {
    windows: &'a Windows<'a>,
    cut: &'a Cut,
    /// What each step of the sum reads, in a patch and of the weights
    offsets: Vec<isize>,
    weights: Vec<isize>,
    /// The first result, and the distance from a channel to the next
    out: *mut T,
    channel: isize,
    transpose: Transpose,
    line: Line<T>,
}

// SAFETY: operands are only read; tasks write different results.
unsafe impl<T: Element> Sync for Job<'_, T> {}

impl<T: Element> Job<'_, T> {
    /// Computes a band of some channels of a sample, and runs the epilogue on it. `pace` is told of
    /// each chunk.
    ///
    /// # Safety
    /// `memory` has as many vectors as [`Cut::size`] says.
    unsafe fn task(
        &self,
        task: usize,
        memory: *mut Vector<T>,
        epilogue: Option<Epilogue<'_>>,
        mut pace: impl FnMut(),
    ) {
        let cut = self.cut;
        let (rest, band) = (task / cut.bands, task % cut.bands);
        let blocks = cut.channels.div_ceil(SQUARE);
        let (sample, first) = (rest / blocks, rest % blocks * SQUARE);
        // Lanes beyond the last channel repeat it.
        let count = SQUARE.min(cut.channels - first);
        let own = |lane: usize| (first + lane.min(count - 1)) as isize;
        let (x, steps) = (self.windows.x, self.windows.steps);
        let from: [*const T; SQUARE] = std::array::from_fn(|lane| {
            let at = sample as isize * x.strides[0] + own(lane) * x.strides[1];
            x.ptr.cast::<T>().wrapping_offset(at)
        });
        let patch = memory.wrapping_add(cut.taps);
        let results = patch.wrapping_add(cut.parts[0]);
        let spare = results.wrapping_add(cut.parts[1]);
        let weights: [*const T; SQUARE] = std::array::from_fn(|lane| {
            self.windows.weights.cast::<T>().wrapping_offset(own(lane) * steps[0])
        });
        let item = sample * cut.channels + first;
        let wide = cut.columns.places;
        // SAFETY: as the caller's, and as windows and sweeps say.
        unsafe {
            for (t, &k) in self.weights.iter().enumerate() {
                memory.add(t).write(weights.map(|row| *row.wrapping_offset(k)));
            }
            let end = cut.lines.places.min((band + 1) * cut.band);
            let mut there = 0;
            for start in (band * cut.band..end).step_by(cut.chunk) {
                pace();
                let lines = cut.chunk.min(end - start);
                for i in 0..lines {
                    let reads = cut.lines.reads(if cut.is_wide { i + 1 } else { lines });
                    if there < reads {
                        self.show(&from, start, there..reads, patch, spare);
                        there = reads;
                    }
                    (self.line)(
                        patch.add(i * cut.lines.step * cut.pitch).cast(),
                        &self.offsets,
                        memory,
                        (results.add(i * wide).cast(), SQUARE),
                        (wide, cut.columns.step * SQUARE, 1),
                    );
                }
                let to = self.out.wrapping_offset(item as isize * self.channel);
                self.store(results, (count, lines * wide), to.add(start * wide), spare);
                if let Some(done) = epilogue {
                    done(item, 0..count, start * wide..(start + lines) * wide);
                }
                // What the next lines of results read too.
                let used = lines * cut.lines.step;
                if used < there {
                    patch.copy_from(patch.add(used * cut.pitch), (there - used) * cut.pitch);
                }
                there = there.saturating_sub(used);
            }
        }
    }

    /// Writes lines of the patch of the results from line `start` on.
    ///
    /// # Safety
    /// The patch has these lines, and `spare` room for short ones.
    unsafe fn show(
        &self,
        from: &[*const T; SQUARE],
        start: usize,
        lines: Range<usize>,
        patch: *mut Vector<T>,
        spare: *mut Vector<T>,
    ) {
        let cut = self.cut;
        let low = cut.lines.low + (start * cut.lines.step) as isize;
        let inside = cut.lines.inside(start, lines.end);
        let inside = inside.start.max(lines.start).min(lines.end)..inside.end.max(lines.start);
        let across = cut.columns.inside(0, cut.pitch);
        let column = cut.columns.low + across.start as isize;
        let zero = [T::default(); SQUARE];
        let size = cut.columns.size;
        let position = |line: usize| (low + line as isize).unsigned_abs();
        let mut first = 0;
        // SAFETY: by contract.
        unsafe {
            if !cut.is_wide && !inside.is_empty() {
                // A run of all lines, made longer where it would be no square.
                first = position(inside.start) * size;
                let end = (position(inside.end - 1) + 1) * size;
                first = first.min(end.saturating_sub(SQUARE));
                let end = end.max(first + SQUARE);
                let rows = from.map(|x| x.wrapping_add(first).cast());
                (self.transpose)(spare.cast(), SQUARE, &rows, end - first);
            }
            for line in lines {
                let to = patch.add(line * cut.pitch);
                if !inside.contains(&line) {
                    (0..cut.pitch).for_each(|i| to.add(i).write(zero));
                    continue;
                }
                (0..across.start).for_each(|i| to.add(i).write(zero));
                (across.end..cut.pitch).for_each(|i| to.add(i).write(zero));
                let (to, n) = (to.add(across.start), across.len());
                if cut.is_wide {
                    let at = position(line) as isize * cut.line + column;
                    let rows = from.map(|x| x.wrapping_offset(at).cast());
                    (self.transpose)(to.cast(), SQUARE, &rows, n);
                } else if n > 0 {
                    let at = position(line) * size + column.unsigned_abs() - first;
                    to.copy_from_nonoverlapping(spare.add(at), n);
                }
            }
        }
    }

    /// Copies results of some channels and places to where they belong, transposed.
    ///
    /// # Safety
    /// They are written, and `spare` has room for as many.
    unsafe fn store(
        &self,
        from: *const Vector<T>,
        (channels, places): (usize, usize),
        to: *mut T,
        spare: *mut Vector<T>,
    ) {
        // SAFETY: by contract; the last square is moved back so that it ends with the places.
        unsafe {
            let squares = |to: *mut T, width: usize| {
                for at in (0..places).step_by(SQUARE) {
                    let at = at.min(places - SQUARE);
                    let rows = std::array::from_fn(|i| from.add(at + i).cast());
                    (self.transpose)(to.add(at).cast(), width, &rows, SQUARE);
                }
            };
            if places >= SQUARE && channels == SQUARE {
                return squares(to, self.channel.unsigned_abs());
            }
            let is_square = places >= SQUARE;
            if is_square {
                squares(spare.cast(), places);
            }
            for channel in 0..channels {
                let to = to.wrapping_offset(channel as isize * self.channel);
                match is_square {
                    true => {
                        let from = spare.cast::<T>().add(channel * places);
                        to.copy_from_nonoverlapping(from, places);
                    }
                    false => (0..places).for_each(|i| *to.add(i) = (*from.add(i))[channel]),
                }
            }
        }
    }
}

/// A line of results, of some blocks of channels that lie side by side. Arguments: where its first
/// result's lowest tap reads, the offset from there of each tap, the taps' weights, block by block, the
/// results and the elements between two of them, their count, the elements between what two of them
/// read, and the blocks.
pub type Line<T> =
    unsafe fn(*const T, &[isize], *const Vector<T>, (*mut T, usize), (usize, usize, usize));

/// The kernel for lines of so many results: in groups that leave the fewest to be computed twice.
pub fn lines<T: Element>(count: usize) -> Line<T> {
    let seven = count.next_multiple_of(7) < count.next_multiple_of(8);
    let above = match count {
        0..=1 => line::above::<T, true, 1>(isa()),
        2..=3 => line::above::<T, true, 2>(isa()),
        4..=6 => line::above::<T, true, 4>(isa()),
        _ if seven => line::above::<T, true, 7>(isa()),
        _ => line::above::<T, true, 8>(isa()),
    };
    above.unwrap_or_else(|| match count {
        0..=3 => line::base::<T, BASE_FUSES, 1>(),
        _ => line::base::<T, BASE_FUSES, 4>(),
    })
}

multiversion! {
    /// [`Line`], `P` results at a time: one chain over the taps for each.
    ///
    /// # Safety
    /// Patch, weights and results have what is read and written; there are at least `P` results.
    #[expect(dead_code, reason = "the versions are asked for once, not at each call")]
    unsafe fn line[T; const F: bool, const P: usize](
        x: *const T,
        offsets: &[isize],
        weights: *const Vector<T>,
        out: (*mut T, usize),
        size: (usize, usize, usize),
    )
    where [T: Element]
    {
        let (count, apart, blocks) = size;
        for first in (0..count).step_by(P) {
            // The last group is moved back so that it ends with the line.
            let first = first.min(count - P);
            // All blocks of some results before the next results: what they read lies in this order.
            for block in 0..blocks {
                let x = x.wrapping_add(first * apart + block * SQUARE);
                let weights = weights.wrapping_add(block * offsets.len());
                let mut sums = [[T::default(); SQUARE]; P];
                for (t, &offset) in offsets.iter().enumerate() {
                    let x = x.wrapping_offset(offset);
                    // SAFETY: by contract.
                    let weights = unsafe { &*weights.add(t) };
                    for (p, sums) in sums.iter_mut().enumerate() {
                        // SAFETY: by contract.
                        let row = unsafe { &*x.add(p * apart).cast::<Vector<T>>() };
                        for ((s, &w), &x) in sums.iter_mut().zip(weights).zip(row) {
                            *s = s.fma::<F>(w, x);
                        }
                    }
                }
                let to = out.0.wrapping_add(first * out.1 + block * SQUARE);
                for (p, sums) in sums.iter().enumerate() {
                    // SAFETY: by contract.
                    unsafe { to.add(p * out.1).cast::<Vector<T>>().write(*sums) };
                }
            }
        }
    }
}
