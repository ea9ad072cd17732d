//! Outputs of convolutions from patches of the input that stay in the cache.
//!
//! A patch is padded, and cut into one plane for each residue of a position by the stride, so that
//! the positions that a tap reads for neighbouring results are neighbours. The kernels of products
//! read them there, by a list of offsets: nothing is packed. Results are computed for all columns
//! of a plane, those beyond a row of results included, and copied out without them.
//!
//! Promises: the bits of the product that [`conv`](super::conv) makes of the same operands.

use std::ops::Range;

use smallvec::SmallVec;

use super::conv::{Sides, sides_at};
use super::element::Shared;
use super::gemm::kernel::{BLOCK, Element, Kernels};
use super::gemm::pack::lines;
use super::gemm::scratch::{Scratch, counted};
use super::gemm::{Axis, Extras, SPAN};
use super::window::positions;
use crate::array::Array;
use crate::error::Result;
use crate::layout::Layout;
use crate::ops::attributes::ConvSpec;
use crate::ops::emit::OrThrow;
use crate::threads::{self, Pace};

/// Bytes of a patch and its results, which stay in the L2 cache.
const PATCH: usize = 512 << 10;
/// The fewest multiplications worth handing to another thread.
const CHUNK: usize = 1 << 19;

/// One spatial axis.
struct Along {
    /// Results, and positions of the input
    places: usize,
    size: usize,
    low: usize,
    stride: usize,
    /// For each tap the plane that it reads, and by how many places it is away in it
    taps: SmallVec<[(usize, usize); 8]>,
    /// For each plane the residue of its positions by the stride
    residues: SmallVec<[usize; 4]>,
    /// The most places by which a tap is away
    reach: usize,
}

impl Along {
    fn new(i: usize, size: usize, taps: usize, spec: &ConvSpec) -> Along {
        let (stride, dilation) = (spec.stride[i], spec.dilation[i]);
        let padded = size + spec.pad_low[i] + spec.pad_high[i];
        let mut residues: SmallVec<[usize; 4]> = SmallVec::new();
        let tap = |t: usize| {
            let (away, residue) = (t * dilation / stride, t * dilation % stride);
            let plane = residues.iter().position(|&r| r == residue).unwrap_or_else(|| {
                residues.push(residue);
                residues.len() - 1
            });
            (plane, away)
        };
        Along {
            places: positions(padded, taps, stride, dilation),
            size,
            low: spec.pad_low[i],
            stride,
            taps: (0..taps).map(tap).collect(),
            residues,
            reach: taps.saturating_sub(1) * dilation / stride,
        }
    }
}

/// How a convolution is cut, which layouts and spec alone decide, beside the number of threads.
struct Cut {
    axes: SmallVec<[Along; 3]>,
    samples: usize,
    groups: usize,
    /// Channels of a group, and its results
    channels: usize,
    outputs: usize,
    /// Steps of the sum
    depth: usize,
    /// Places along the first axis that a patch has, and how many patches these make
    band: usize,
    bands: usize,
    /// Parts into which the results of a group are cut, rows of a part, and of all in whole tiles
    parts: usize,
    each: usize,
    rows: usize,
    /// Elements from a place to the next along each axis of a plane
    pitches: SmallVec<[usize; 3]>,
    /// Elements of a plane, and of all planes of a channel
    plane: usize,
    channel: usize,
    /// Columns of a band, padded to whole tiles
    columns: usize,
    /// Elements of a patch, and of its results
    patch: usize,
    results: usize,
    /// Whether the kernels can read the weights where they are
    in_place: bool,
}

impl Cut {
    /// `None` where the product of views is better.
    fn new<T: Element>(kernels: &Kernels<T>, x: &Sides, w: &Sides, spec: &ConvSpec) -> Option<Cut> {
        let taps: usize = w.spatial.iter().map(|axis| axis.0).product();
        let (channels, depth) = (w.sizes[1], w.sizes[1] * taps);
        if depth == 0 || depth > SPAN {
            return None;
        }
        let axes: SmallVec<[Along; 3]> = (x.spatial.iter().zip(&w.spatial).enumerate())
            .map(|(i, (x, w))| Along::new(i, x.0, w.0, spec))
            .collect();
        let residues: usize = axes.iter().map(|along| along.residues.len()).product();
        let places: usize = axes.iter().map(|along| along.places).product();
        let (samples, groups) = (x.sizes[0], spec.groups);
        let outputs = w.sizes[0] / groups;
        let high = kernels.tiles[0].rows;
        // Where no two taps read the same positions, windows repeat nothing; few results or places
        // do not pay for the patch.
        if taps == residues || places < kernels.width || outputs < 4 || samples == 0 {
            return None;
        }
        let inner: SmallVec<[usize; 3]> =
            axes.iter().map(|along| along.places + along.reach).collect();
        let pitches: SmallVec<[usize; 3]> =
            (0..inner.len()).map(|i| inner[i + 1..].iter().product()).collect();
        let (first, rows) = (&axes[0], outputs.next_multiple_of(high));
        let line = (channels * residues + rows) * pitches[0] * size_of::<T>();
        let halo = channels * residues * first.reach * pitches[0] * size_of::<T>();
        let most = (PATCH.saturating_sub(halo) / line.max(1)).clamp(1, first.places);
        let bands = first.places.div_ceil(most);
        // Where halos are much of the work, windows cost less.
        let band = first.places.div_ceil(bands);
        if band < first.places && band < first.reach {
            return None;
        }
        let tasks = samples * groups * bands;
        let wanted = threads::num_threads();
        let work = samples * groups * outputs * places * depth;
        let parts = match work < CHUNK || tasks >= wanted {
            true => 1,
            false => wanted.div_ceil(tasks).min(outputs.div_ceil(high)),
        };
        let plane = (band + first.reach) * pitches[0];
        let channel = residues * plane;
        let mut columns = (band * pitches[0]).next_multiple_of(kernels.width);
        // Rows of a tile that are a page apart would evict each other.
        if (columns * size_of::<T>()).is_multiple_of(2048) {
            columns += kernels.width;
        }
        let reach: usize =
            axes.iter().zip(&pitches).map(|(along, pitch)| along.reach * pitch).sum();
        // The last tile reads beyond the last plane.
        let slack = (columns + reach).saturating_sub(plane);
        let each = outputs.div_ceil(high).div_ceil(parts) * high;
        // Sums are contiguous, and the last tile reads no row that is not there.
        let (mut dense, mut next) = (w.strides[1] == taps as isize || channels == 1, 1);
        for &(n, stride) in w.spatial.iter().rev() {
            dense &= n == 1 || stride == next;
            next *= n as isize;
        }
        let rest = outputs % high;
        let fits = rest == 0 || kernels.tiles.iter().any(|tile| tile.rows == rest);
        Some(Cut {
            samples,
            groups,
            channels,
            outputs,
            depth,
            band,
            bands: first.places.div_ceil(band),
            parts,
            each,
            rows,
            plane,
            channel,
            columns,
            patch: channels * channel + slack,
            results: each * columns,
            in_place: dense && fits,
            axes,
            pitches,
        })
    }

    /// Elements that a thread works in.
    fn size(&self) -> usize {
        self.patch + self.results
    }

    fn tasks(&self) -> usize {
        self.samples * self.groups * self.bands * self.parts
    }

    /// The offset in a patch of what each step of the sum reads.
    fn offsets(&self) -> Vec<isize> {
        let mut all = Vec::with_capacity(self.depth);
        for channel in 0..self.channels {
            let mut at: SmallVec<[(usize, usize); 64]> = SmallVec::from_elem((0, 0), 1);
            for (along, pitch) in self.axes.iter().zip(&self.pitches) {
                let steps = |&(before, offset): &(usize, usize)| {
                    along.taps.iter().map(move |&(plane, away)| {
                        (before * along.residues.len() + plane, offset + away * pitch)
                    })
                };
                at = at.iter().flat_map(steps).collect();
            }
            all.extend(at.iter().map(|&(plane, offset)| {
                (channel * self.channel + plane * self.plane + offset) as isize
            }));
        }
        all
    }
}

/// The bytes of scratch of [`output`], as the memory counters count them; `None` where that is not
/// how a convolution is computed.
pub fn scratch<T: Element>(x: &Layout, w: &Layout, spec: &ConvSpec) -> Option<usize> {
    let at = |x: &Layout| sides_at(std::ptr::null(), x);
    let cut = Cut::new(&T::kernels(), &at(x), &at(w), spec)?;
    let weights = counted(weights_bytes::<T>(&cut), 1);
    Some(weights + counted(cut.size() * size_of::<T>(), parts(&cut)))
}

/// Threads that have work.
fn parts(cut: &Cut) -> usize {
    cut.tasks().min(threads::num_threads())
}

/// Bytes of the weights in the order in which the kernels read them; none where they lie so.
fn weights_bytes<T: Element>(cut: &Cut) -> usize {
    if cut.in_place {
        return 0;
    }
    cut.groups * cut.rows * cut.depth * size_of::<T>()
}

/// Computes the output; false, with nothing done, where the product of views is better.
///
/// # Safety
/// As for [`conv::output`](super::conv::output).
pub unsafe fn output<T: Element>(
    x: &Sides,
    w: &Sides,
    spec: &ConvSpec,
    out: &Array,
    extras: &Extras<'_>,
) -> Result<bool> {
    let kernels = T::kernels();
    let Some(cut) = Cut::new(&kernels, x, w, spec) else { return Ok(false) };
    let weights = Scratch::new(weights_bytes::<T>(&cut), 1)?;
    let weights = weights.lend(weights_bytes::<T>(&cut))?;
    let size = cut.size() * size_of::<T>();
    let (ptr, steps) = match cut.in_place {
        true => (w.ptr.cast::<T>(), [cut.outputs as isize * w.strides[0], w.strides[0]]),
        false => {
            let steps = [(cut.rows * cut.depth) as isize, cut.depth as isize];
            (weights.ptr().cast::<T>().cast_const(), steps)
        }
    };
    let job = Job::<T> {
        x,
        offsets: cut.offsets(),
        weights: ptr,
        steps,
        // SAFETY: by contract.
        out: unsafe { out.ptr_mut() }.cast(),
        kernels,
        cut: &cut,
        extras,
    };
    if !cut.in_place {
        // SAFETY: the memory is as large as the weights.
        unsafe { job.pack(w, weights.ptr().cast()) };
    }
    let scratch = Scratch::new(size, parts(&cut))?;
    let work = cut.outputs * cut.depth * cut.columns / cut.parts;
    threads::for_each_chunk(cut.tasks(), (CHUNK / work.max(1)).max(1), |tasks| {
        let part = scratch.lend(size).or_throw();
        for task in tasks {
            // SAFETY: the part is this call's; every task has results of its own.
            unsafe { job.task(task, part.ptr().cast()) };
        }
    });
    Ok(true)
}

struct Job<'a, T: Element> {
    x: &'a Sides,
    offsets: Vec<isize>,
    /// The weights, and the distances from a group and from a row to the next
    weights: *const T,
    steps: [isize; 2],
    out: *mut T,
    kernels: Kernels<T>,
    cut: &'a Cut,
    extras: &'a Extras<'a>,
}

// SAFETY: operands are only read; tasks write different results.
unsafe impl<T: Element> Sync for Job<'_, T> {}

impl<T: Element> Job<'_, T> {
    /// Copies the weights, each group padded with zeros to whole tiles.
    ///
    /// # Safety
    /// There is room for them.
    unsafe fn pack(&self, w: &Sides, to: *mut T) {
        let cut = self.cut;
        let axis =
            Axis::new([(cut.channels, w.strides[1])].into_iter().chain(w.spatial.iter().copied()));
        let (runs, by, to) = (axis.runs(0, cut.depth), axis.inner().1, Shared::new(to));
        threads::for_each_chunk(cut.groups * cut.rows, (CHUNK / 8 / cut.depth).max(1), |range| {
            for i in range {
                let (group, row) = (i / cut.rows, i % cut.rows);
                let to = to.at((i * cut.depth) as isize);
                let line = (group * cut.outputs + row) as isize * w.strides[0];
                // SAFETY: by contract; a row is one call's.
                unsafe {
                    if row < cut.outputs {
                        lines(to, cut.depth, w.ptr.cast::<T>(), &[line], &runs, by);
                    } else {
                        (0..cut.depth).for_each(|k| to.add(k).write(T::default()));
                    }
                }
            }
        });
    }

    /// Computes the results of a sample, a group, a band, and a part of the group's results.
    ///
    /// # Safety
    /// `memory` has room for a patch and its results.
    unsafe fn task(&self, task: usize, memory: *mut T) {
        let cut = self.cut;
        let (rest, part) = (task / cut.parts, task % cut.parts);
        let (item, band) = (rest / cut.bands, rest % cut.bands);
        let (sample, group) = (item / cut.groups, item % cut.groups);
        let places = band * cut.band..cut.axes[0].places.min((band + 1) * cut.band);
        let rows = (part * cut.each).min(cut.outputs)..((part + 1) * cut.each).min(cut.outputs);
        if rows.is_empty() {
            return;
        }
        let results = memory.wrapping_add(cut.patch);
        // SAFETY: as the caller's.
        unsafe {
            self.patch(sample, group, places.start, memory);
            self.multiply(group, &rows, places.len(), memory, results);
            self.store(item, &rows, &places, results);
        }
    }

    /// Writes the patch from a place on.
    ///
    /// # Safety
    /// There is room for it.
    unsafe fn patch(&self, sample: usize, group: usize, place: usize, to: *mut T) {
        let (cut, x) = (self.cut, self.x);
        let mut pace = Pace::default();
        for c in 0..cut.channels {
            pace.work(cut.channel);
            let own = (group * cut.channels + c) as isize * x.strides[1];
            let from = sample as isize * x.strides[0] + own;
            let from = x.ptr.cast::<T>().wrapping_offset(from);
            // SAFETY: inside the patch.
            unsafe { self.planes(0, 0, place, from, to.add(c * cut.channel)) };
        }
        let done = cut.channels * cut.channel;
        for i in done..cut.patch {
            // SAFETY: as above.
            unsafe { to.add(i).write(T::default()) };
        }
    }

    /// Writes the planes of a channel, axis by axis. `plane` counts those of the axes before, and
    /// `to` is the place in the first of them.
    ///
    /// # Safety
    /// There is room for them.
    unsafe fn planes(&self, axis: usize, plane: usize, place: usize, from: *const T, to: *mut T) {
        let (cut, along) = (self.cut, &self.cut.axes[axis]);
        let stride = self.x.spatial[axis].1;
        let count = along.reach + if axis == 0 { cut.band } else { along.places };
        let last = axis + 1 == cut.axes.len();
        for (i, residue) in along.residues.iter().enumerate() {
            let plane = plane * along.residues.len() + i;
            // The position of a line: `(place + i) · stride + offset − low`.
            let base = (place * along.stride + residue) as isize - along.low as isize;
            let start = ((-base).max(0) as usize).div_ceil(along.stride).min(count);
            let end = (along.size as isize - base).max(0) as usize;
            let end = end.div_ceil(along.stride).clamp(start, count);
            // SAFETY: lines lie inside the planes, positions inside the input.
            unsafe {
                if last {
                    let to = to.add(plane * cut.plane);
                    (0..start).chain(end..count).for_each(|i| to.add(i).write(T::default()));
                    let by = stride * along.stride as isize;
                    let from =
                        from.wrapping_offset((base + (start * along.stride) as isize) * stride);
                    let (to, n) = (to.add(start), end - start);
                    match by {
                        1 => to.copy_from_nonoverlapping(from, n),
                        2 => (0..n).for_each(|i| *to.add(i) = *from.add(2 * i)),
                        _ => (0..n).for_each(|i| *to.add(i) = *from.offset(i as isize * by)),
                    }
                    continue;
                }
                let pitch = cut.pitches[axis];
                for i in 0..count {
                    let to = to.add(i * pitch);
                    if (start..end).contains(&i) {
                        let at = (base + (i * along.stride) as isize) * stride;
                        self.planes(axis + 1, plane, 0, from.wrapping_offset(at), to);
                    } else {
                        // Zeros in every plane of the axes behind.
                        let behind: usize =
                            cut.axes[axis + 1..].iter().map(|along| along.residues.len()).product();
                        for p in plane * behind..(plane + 1) * behind {
                            let to = to.add(p * cut.plane);
                            (0..pitch).for_each(|i| to.add(i).write(T::default()));
                        }
                    }
                }
            }
        }
    }

    /// Multiplies rows of weights with the columns of a patch.
    ///
    /// # Safety
    /// The patch is written, and there is room for the results.
    unsafe fn multiply(
        &self,
        group: usize,
        rows: &Range<usize>,
        places: usize,
        patch: *const T,
        results: *mut T,
    ) {
        let (cut, width) = (self.cut, self.kernels.width);
        let high = self.kernels.tiles[0].rows;
        let [next, row] = self.steps;
        let first = group as isize * next + rows.start as isize * row;
        let weights = self.weights.wrapping_offset(first);
        let used = places * cut.pitches[0];
        let mut pace = Pace::default();
        for column in (0..used).step_by(width) {
            for k in (0..cut.depth).step_by(BLOCK) {
                let steps = &self.offsets[k..cut.depth.min(k + BLOCK)];
                pace.work(rows.len() * width * steps.len());
                for i in (0..rows.len()).step_by(high) {
                    let left = high.min(rows.len() - i);
                    let tiles = self.kernels.tiles;
                    let fit = tiles.iter().rev().find(|t| t.rows >= left).unwrap_or(&tiles[0]);
                    // SAFETY: weights and results are padded to whole tiles, the patch by what the
                    // last one reads.
                    unsafe {
                        (fit.listed)(
                            steps.len(),
                            weights.offset(i as isize * row + k as isize),
                            (row, 1),
                            patch.add(column),
                            steps.as_ptr(),
                            results.add(i * cut.columns + column),
                            cut.columns as isize,
                            k == 0,
                        );
                    }
                }
            }
        }
    }

    /// Copies results to where they belong, and runs the epilogue on them.
    ///
    /// # Safety
    /// They are written.
    unsafe fn store(
        &self,
        item: usize,
        rows: &Range<usize>,
        places: &Range<usize>,
        from: *const T,
    ) {
        let cut = self.cut;
        let inner: usize = cut.axes[1..].iter().map(|along| along.places).product();
        let all = cut.axes[0].places * inner;
        for row in rows.clone() {
            let to = (item * cut.outputs + row) * all + places.start * inner;
            let from = from.wrapping_add((row - rows.start) * cut.columns);
            // SAFETY: by contract.
            unsafe { self.lines(0, places.len(), from, self.out.add(to)) };
        }
        if let Some(done) = self.extras.epilogue {
            done(item, rows.clone(), places.start * inner..places.end * inner);
        }
    }

    /// Copies `count` lines along an axis; returns where the next goes.
    ///
    /// # Safety
    /// As for [`Job::store`].
    unsafe fn lines(&self, axis: usize, count: usize, from: *const T, to: *mut T) -> *mut T {
        let cut = self.cut;
        // SAFETY: by contract.
        unsafe {
            if axis + 1 == cut.axes.len() {
                to.copy_from_nonoverlapping(from, count);
                return to.add(count);
            }
            (0..count).fold(to, |to, i| {
                let from = from.add(i * cut.pitches[axis]);
                self.lines(axis + 1, cut.axes[axis + 1].places, from, to)
            })
        }
    }
}
