//! Images whose channels are innermost, sixteen channels at a time, as in [`lanes`](super::lanes):
//! vectors lie in memory as they are computed, so nothing is transposed, and results are written
//! where they belong. Lines are copied into a padded patch, in which no two of them evict each other
//! from the L1 cache. Where few lines of results read the same line, as with a step of two, what lies
//! inside an image is read where it is instead, all channels of some positions after one another, as
//! the processor expects memory to be read. An epilogue runs on some lines of all channels, which lie
//! side by side.

use std::ops::Range;

use super::lanes::{Line, Side, Vector, lines as lines_of, offsets, sides};
use crate::cpu::caches;
use crate::cpu::direct::Windows;
use crate::cpu::gemm::Epilogue;
use crate::cpu::gemm::kernel::{Element, SQUARE, prefetch};
use crate::cpu::gemm::scratch::{Scratch, counted};
use crate::error::Result;
use crate::multiversion;
use crate::ops::emit::OrThrow;
use crate::threads::{self, Pace};

/// Bytes of results that are computed before an epilogue reads them; with the lines that they read
/// they stay in the L2 cache.
const TOGETHER: usize = 192 << 10;
/// The most vectors of a patch, where one line of results reads no more.
const PATCH: usize = 4 << 10;
/// The fewest multiplications worth handing to another thread.
const CHUNK: usize = 1 << 17;

/// How the work is cut.
pub struct Cut {
    lines: Side,
    columns: Side,
    channels: usize,
    samples: usize,
    taps: usize,
    /// Lines of results that are computed together, and how often
    chunk: usize,
    chunks: usize,
    /// Blocks of sixteen channels of a task, and tasks of a chunk
    blocks: usize,
    parts: usize,
    /// Positions along a line of the patch
    pitch: usize,
}

impl Cut {
    /// `None` where windows are not as [`takes_innermost`](super::takes_innermost) promises, or
    /// there are no results.
    pub fn new(windows: &Windows<'_>) -> Option<Cut> {
        let (lines, columns) = sides(windows)?;
        let (channels, samples) = (windows.groups, windows.x.sizes[0]);
        let taps = windows.sweeps.iter().map(|sweep| sweep.taps).product::<usize>();
        if windows.channels != 1 || windows.rows != 1 || channels * samples * taps == 0 {
            return None;
        }
        let line = columns.places * channels;
        let pitch = columns.reads(columns.places);
        let most = (TOGETHER / size_of::<f32>() / line).min(lines.fitting(PATCH / pitch));
        let most = most.clamp(1, lines.places);
        let chunk = lines.places.div_ceil(lines.places.div_ceil(most));
        let (chunks, all) = (lines.places.div_ceil(chunk), channels.div_ceil(SQUARE));
        let threads = threads::num_threads();
        let work = samples * lines.places * line * taps;
        let wanted = match work / CHUNK {
            0 | 1 => 1,
            n => n.min(4 * threads).next_multiple_of(threads),
        };
        let blocks = all.div_ceil(wanted.div_ceil(samples * chunks).min(all));
        let parts = all.div_ceil(blocks);
        Some(Cut { lines, columns, channels, samples, taps, chunk, chunks, blocks, parts, pitch })
    }

    fn tasks(&self) -> usize {
        self.samples * self.chunks * self.parts
    }

    /// Vectors of the patch, and of the results of a line.
    fn sizes(&self) -> [usize; 2] {
        [self.lines.reads(self.chunk) * self.pitch, self.columns.places]
    }

    fn bytes<T>(&self) -> usize {
        let [patch, results] = self.sizes();
        (self.taps * self.blocks + patch + results) * size_of::<Vector<T>>()
    }

    /// The scratch bytes of [`sums`], as the memory counters count them.
    pub fn scratch<T: Element>(&self) -> usize {
        counted(self.bytes::<T>(), self.tasks().min(threads::num_threads()))
    }
}

/// The sums of windows, as [`sums`](super::sums) computes them, into memory of these strides.
///
/// # Safety
/// As for [`sums`](super::sums); the cut is that of the windows.
pub unsafe fn sums<T: Element>(
    cut: &Cut,
    windows: &Windows<'_>,
    (out, strides): (*mut T, &[isize]),
    epilogue: Option<Epilogue<'_>>,
) -> Result<()> {
    let mut weights = vec![0; cut.taps];
    windows.depth.offsets(0, &mut weights);
    let copy = copy::select::<T>();
    let offsets = offsets(windows, &cut.lines, &cut.columns, cut.pitch);
    let line = lines_of::<T>(cut.columns.places);
    let (spread, sample) = (spread::select::<T>(), strides[0]);
    let inside = Inside::new(windows, cut);
    let job = Job::<T> { windows, cut, offsets, weights, inside, out, sample, line, copy, spread };
    let scratch = Scratch::new(cut.bytes::<T>(), cut.tasks().min(threads::num_threads()))?;
    let work = cut.blocks * SQUARE * cut.chunk * cut.columns.places * cut.taps;
    threads::for_each_chunk(cut.tasks(), (CHUNK / 2).div_ceil(work), |tasks| {
        let part = scratch.lend(cut.bytes::<T>()).or_throw();
        let mut pace = Pace::default();
        for task in tasks {
            // SAFETY: the part is this call's; every task has results of its own.
            unsafe { job.task(task, part.ptr().cast(), epilogue, &mut pace) };
        }
    });
    Ok(())
}

/// Copies vectors to where they lie side by side. Arguments: where to, the first, how many, the
/// elements from one to the next, and those to one of the next line, which is fetched meanwhile.
type Copy<T> = unsafe fn(*mut Vector<T>, *const T, usize, isize, isize);

/// Writes the weights of some channels as a vector for each tap. Arguments: where to, the first
/// channel's, the offset of each tap, the number of channels and the elements from one to the next.
type Spread<T> = unsafe fn(*mut Vector<T>, *const T, &[isize], (usize, isize));

/// The results whose windows show no padding, and how they read an image where it lies.
struct Inside<T: Element> {
    lines: Range<usize>,
    columns: Range<usize>,
    /// What each step of the sum reads there
    offsets: Vec<isize>,
    line: Line<T>,
    /// The same for a result at an edge, whose taps read a copy, and where they do
    edge: Line<T>,
    side: Vec<isize>,
}

impl<T: Element> Inside<T> {
    /// The fewest results of a line for which this pays.
    const FEWEST: usize = 8;

    /// `None` where copies are better.
    fn new(windows: &Windows<'_>, cut: &Cut) -> Option<Inside<T>> {
        let whole = |i: usize| windows.sweeps[i].whole(windows.x.spatial[i].0);
        let (lines, columns) = match windows.sweeps.len() {
            1 => (0..1, whole(0)),
            _ => (whole(0), whole(1)),
        };
        let (down, last) = distances(windows);
        let is_plain = windows.x.strides[1] == 1 && last > 0 && cut.channels.is_multiple_of(SQUARE);
        // Each of the lines of results that read a line would read it from the second cache, and reads a
        // copy in the first.
        let is_often = cut.lines.reads(1) > 2 * cut.lines.step;
        if !is_plain || is_often || lines.is_empty() || columns.len() < Self::FEWEST {
            return None;
        }
        // What the results of a group read of one line; each line may have the same sets.
        let apart = last * size_of::<T>() as isize;
        let spans = cut.lines.reads(1);
        if caches::crowd(spans * cut.columns.reads(Self::FEWEST), apart) {
            return None;
        }
        let across = cut.columns.taps(&windows.sweeps[windows.sweeps.len() - 1]);
        let tap = |y: isize| across.clone().map(move |x| y * down + x as isize * last);
        let offsets = match windows.sweeps.len() {
            1 => tap(0).collect(),
            _ => cut.lines.taps(&windows.sweeps[0]).flat_map(|y| tap(y as isize)).collect(),
        };
        let (line, edge) = (lines_of::<T>(columns.len()), lines_of::<T>(1));
        let side = (0..cut.taps).map(|tap| (tap * SQUARE) as isize).collect();
        Some(Inside { lines, columns, offsets, line, edge, side })
    }
}

/// The distances from a line of what windows show to the next, and from a position to the next.
fn distances(windows: &Windows<'_>) -> (isize, isize) {
    match *windows.x.spatial {
        [(_, down), (_, last)] => (down, last),
        [.., (_, last)] => (0, last),
        [] => (0, 0),
    }
}

/// What all tasks share.
struct Job<'a, T: Element> {
    windows: &'a Windows<'a>,
    cut: &'a Cut,
    /// What each step of the sum reads, in a patch and of the weights
    offsets: Vec<isize>,
    weights: Vec<isize>,
    inside: Option<Inside<T>>,
    /// The first result, and the distance from a sample to the next
    out: *mut T,
    sample: isize,
    line: Line<T>,
    copy: Copy<T>,
    spread: Spread<T>,
}

// SAFETY: operands are only read; tasks write different results.
unsafe impl<T: Element> Sync for Job<'_, T> {}

impl<T: Element> Job<'_, T> {
    /// Computes some lines of some channels of a sample, and runs the epilogue on them.
    ///
    /// # Safety
    /// `memory` has the bytes that [`Cut::bytes`] says.
    unsafe fn task(
        &self,
        task: usize,
        memory: *mut Vector<T>,
        epilogue: Option<Epilogue<'_>>,
        pace: &mut Pace,
    ) {
        let cut = self.cut;
        // Parts of a chunk come one after the other: they read neighbouring cache lines.
        let (rest, part) = (task / cut.parts, task % cut.parts);
        let (sample, start) = (rest / cut.chunks, rest % cut.chunks * cut.chunk);
        let lines = start..cut.lines.places.min(start + cut.chunk);
        let first = part * cut.blocks * SQUARE;
        let channels = first..cut.channels.min(first + cut.blocks * SQUARE);
        for (i, first) in channels.clone().step_by(SQUARE).enumerate() {
            let count = SQUARE.min(channels.end - first);
            let (from, step) = (self.windows.weights.cast::<T>(), self.windows.steps[0]);
            let from = from.wrapping_offset(first as isize * step);
            // SAFETY: as the caller's; there is room for all blocks.
            unsafe { (self.spread)(memory.add(i * cut.taps), from, &self.weights, (count, step)) };
        }
        let work = cut.columns.places * cut.taps * SQUARE;
        // Lines whose windows show padding, and between them those that lie inside.
        let whole = self.inside.as_ref().map_or(lines.end..lines.end, |inside| {
            let start = inside.lines.start.clamp(lines.start, lines.end);
            start..inside.lines.end.clamp(start, lines.end)
        });
        for lines in [lines.start..whole.start, whole.end..lines.end] {
            if lines.is_empty() {
                continue;
            }
            for (i, first) in channels.clone().step_by(SQUARE).enumerate() {
                let count = SQUARE.min(channels.end - first);
                pace.multiplied(lines.len() * work);
                // SAFETY: as the caller's.
                unsafe { self.block(sample, first..first + count, lines.clone(), memory, i) };
            }
        }
        if let Some(inside) = &self.inside {
            for line in whole {
                pace.multiplied(cut.blocks * work);
                // SAFETY: as the caller's.
                unsafe { self.whole_line(inside, sample, channels.clone(), line, memory) };
            }
        }
        if let Some(done) = epilogue {
            let wide = cut.columns.places;
            done(sample * cut.channels, channels, lines.start * wide..lines.end * wide);
        }
    }

    /// Computes a line of results whose windows show lines inside the image alone, of whole blocks of
    /// channels.
    ///
    /// # Safety
    /// As for [`Job::task`]; weights are written.
    unsafe fn whole_line(
        &self,
        inside: &Inside<T>,
        sample: usize,
        channels: Range<usize>,
        line: usize,
        memory: *mut Vector<T>,
    ) {
        let (cut, x) = (self.cut, self.windows.x);
        let (blocks, wide) = (channels.len() / SQUARE, cut.columns.places);
        let (down, last) = distances(self.windows);
        let position = cut.lines.low + (line * cut.lines.step) as isize;
        let first = sample as isize * x.strides[0] + channels.start as isize + position * down;
        let from = x.ptr.cast::<T>().wrapping_offset(first);
        let at = |column: usize| (cut.columns.low + (column * cut.columns.step) as isize) * last;
        let to = self.out.wrapping_offset(sample as isize * self.sample);
        let to = to.wrapping_add(line * wide * cut.channels + channels.start);
        let Range { start, end } = inside.columns;
        // SAFETY: as the caller's; what these results read exists.
        unsafe {
            let size = (end - start, cut.columns.step * last as usize, blocks);
            let results = (to.add(start * cut.channels), cut.channels);
            (inside.line)(from.wrapping_offset(at(start)), &inside.offsets, memory, results, size);
        }
        // The others see padding: what they read is copied.
        let patch = memory.wrapping_add(cut.taps * cut.blocks);
        for column in (0..start).chain(end..wide) {
            let there = cut.columns.inside(column, cut.columns.reads(1));
            let across = cut.columns.taps(&self.windows.sweeps[self.windows.sweeps.len() - 1]);
            for block in 0..blocks {
                // SAFETY: as the caller's; a patch has room for what a result reads, of which these
                // exist.
                unsafe {
                    let from = from.wrapping_offset(at(column)).wrapping_add(block * SQUARE);
                    for (t, position) in across.clone().cycle().take(cut.taps).enumerate() {
                        patch.add(t).write(match there.contains(&position) {
                            true => *from.wrapping_offset(inside.offsets[t]).cast::<Vector<T>>(),
                            false => [T::default(); SQUARE],
                        });
                    }
                    let weights = memory.add(block * cut.taps);
                    let to = to.add(column * cut.channels + block * SQUARE);
                    (inside.edge)(
                        patch.cast(),
                        &inside.side,
                        weights,
                        (to, cut.channels),
                        (1, 0, 1),
                    );
                }
            }
        }
    }

    /// Computes some lines of at most sixteen channels, block number `block` of the task.
    ///
    /// # Safety
    /// As for [`Job::task`]; weights are written.
    unsafe fn block(
        &self,
        sample: usize,
        channels: Range<usize>,
        lines: Range<usize>,
        memory: *mut Vector<T>,
        block: usize,
    ) {
        let cut = self.cut;
        let weights = memory.wrapping_add(block * cut.taps);
        let (patch, wide) = (memory.wrapping_add(cut.taps * cut.blocks), cut.columns.places);
        let results = patch.wrapping_add(cut.sizes()[0]);
        let (count, from) = (channels.len(), channels.start);
        let to = self.out.wrapping_offset(sample as isize * self.sample).wrapping_add(from);
        let mut there = 0;
        // SAFETY: as the caller's, and as windows and sweeps say.
        unsafe {
            for (i, line) in lines.clone().enumerate() {
                let reads = cut.lines.reads(i + 1);
                self.show((sample, from, count), lines.start, there..reads, patch);
                there = reads;
                let to = to.add(line * wide * cut.channels);
                // Sixteen channels are written where they belong.
                let (into, apart) = match count {
                    SQUARE => (to, cut.channels),
                    _ => (results.cast(), SQUARE),
                };
                (self.line)(
                    patch.add(i * cut.lines.step * cut.pitch).cast(),
                    &self.offsets,
                    weights,
                    (into, apart),
                    (wide, cut.columns.step * SQUARE, 1),
                );
                if count < SQUARE {
                    for place in 0..wide {
                        let from = results.add(place).cast::<T>();
                        to.add(place * cut.channels).copy_from_nonoverlapping(from, count);
                    }
                }
            }
        }
    }

    /// Writes lines of the patch of the results from line `start` on.
    ///
    /// # Safety
    /// The patch has these lines.
    unsafe fn show(
        &self,
        (sample, channel, count): (usize, usize, usize),
        start: usize,
        lines: Range<usize>,
        patch: *mut Vector<T>,
    ) {
        let (cut, x) = (self.cut, self.windows.x);
        let low = cut.lines.low + (start * cut.lines.step) as isize;
        let inside = cut.lines.inside(start, lines.end);
        let across = cut.columns.inside(0, cut.pitch);
        let (down, last) = distances(self.windows);
        let first = sample as isize * x.strides[0] + channel as isize * x.strides[1];
        let first = first + (cut.columns.low + across.start as isize) * last;
        // SAFETY: by contract.
        unsafe {
            for line in lines {
                let to = patch.add(line * cut.pitch);
                if !inside.contains(&line) {
                    to.write_bytes(0, cut.pitch);
                    continue;
                }
                to.write_bytes(0, across.start);
                to.add(across.end).write_bytes(0, cut.pitch - across.end);
                let at = first + (low + line as isize) * down;
                let (to, from) = (to.add(across.start), x.ptr.cast::<T>().wrapping_offset(at));
                if count == SQUARE && x.strides[1] == 1 {
                    (self.copy)(to, from, across.len(), last, down);
                    continue;
                }
                for i in 0..across.len() {
                    let from = from.wrapping_offset(i as isize * last);
                    let lane = |lane: usize| match lane < count {
                        true => *from.wrapping_offset(lane as isize * x.strides[1]),
                        false => T::default(),
                    };
                    to.add(i).write(std::array::from_fn(lane));
                }
            }
        }
    }
}

multiversion! {
    /// [`Copy`].
    ///
    /// # Safety
    /// The vectors can be read and written.
    #[expect(dead_code, reason = "the version is asked for once, not at each call")]
    unsafe fn copy[T](to: *mut Vector<T>, from: *const T, n: usize, apart: isize, next: isize)
    where [T: Element]
    {
        for i in 0..n {
            // SAFETY: by contract.
            unsafe {
                let from = from.wrapping_offset(i as isize * apart);
                prefetch(from.wrapping_offset(next));
                to.add(i).write(from.cast::<Vector<T>>().read());
            }
        }
    }

    /// [`Spread`].
    ///
    /// # Safety
    /// The weights can be read; there is a vector for each tap.
    #[expect(dead_code, reason = "the version is asked for once, not at each call")]
    unsafe fn spread[T](
        to: *mut Vector<T>,
        from: *const T,
        taps: &[isize],
        channels: (usize, isize),
    )
    where [T: Element]
    {
        let (count, apart) = channels;
        for (t, &tap) in taps.iter().enumerate() {
            let from = from.wrapping_offset(tap);
            let at = |lane: usize| from.wrapping_offset(lane as isize * apart);
            // SAFETY: by contract.
            unsafe {
                let some = |lane| if lane < count { *at(lane) } else { T::default() };
                to.add(t).write(match count {
                    SQUARE => std::array::from_fn(|lane| *at(lane)),
                    _ => std::array::from_fn(some),
                });
            }
        }
    }
}
