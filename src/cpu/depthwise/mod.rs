//! Convolutions whose results each see one channel (depthwise ones): sums of few terms, for which a
//! product would gather more than it multiplies.
//!
//! Outputs, and gradients of inputs, read a patch in which padding and strides are no cases of their
//! own: of sixteen planes, where vectors hold neighbouring channels ([`lanes`]), or of one plane, in
//! which what a tap reads for neighbouring results lies side by side ([`patch`]).
//!
//! Promises: outputs and inputs have the bits of the product that [`conv`](super::conv) makes of
//! them (one chain over the taps, ascending, with zeros for padding). A weight is a sum over
//! positions in an order of its own, which depends on the logical shapes and the spec alone: see
//! [`weight`].

mod innermost;
mod kernel;
mod lanes;
mod weight;

use std::ops::Range;

use smallvec::SmallVec;

use kernel::{Piece, WIDE};

use super::copy;
use super::direct::Windows;
use super::direct::patch::{self, Along, Line, Patch};
use super::gemm::Epilogue;
use super::gemm::kernel::{BLOCK, Element, SQUARE};
use super::gemm::scratch::{Scratch, counted};
use super::innermost::is_innermost;
use super::sweep::each_index;
use crate::array::Array;
use crate::dtype::DType;
use crate::error::Result;
use crate::layout::Layout;
use crate::memory::block_bytes;
use crate::ops::attributes::{ConvRole, ConvSpec};
use crate::ops::emit::OrThrow;
use crate::threads::{self, Pace};

pub use weight::weight;

/// The most channels that one is multiplied into: more are better a product, which reads a channel
/// once for several of them.
const MOST: usize = 4;
/// The fewest multiplications worth handing to another thread.
const CHUNK: usize = 1 << 16;
/// Results that an epilogue takes at a time, if planes are smaller: they are in the innermost cache.
const TOGETHER: usize = 1 << 12;
/// Bytes of a patch, which stay in the L1 cache.
const PATCH: usize = 24 << 10;

/// Whether a role of a convolution is computed here; `w` has the sizes of the weight.
pub fn takes(role: ConvRole, w: &[usize], spec: &ConvSpec) -> bool {
    let each = w[0] / spec.groups.max(1);
    let taps: usize = w[2..].iter().product();
    let terms = match role {
        ConvRole::Output => taps,
        ConvRole::Input => each * taps,
        ConvRole::Weight => 1,
    };
    spec.groups > 1 && w[1] == 1 && w.len() > 2 && (1..=MOST).contains(&each) && terms <= BLOCK
}

/// Whether an output is computed here where the channels of the operand and of the result are
/// innermost; the sizes are those of the operand and of the weight.
pub fn takes_innermost(x: &[usize], w: &[usize], spec: &ConvSpec) -> bool {
    takes(ConvRole::Output, w, spec)
        && w[0] == spec.groups
        && spec.groups >= SQUARE / 2
        && (3..=4).contains(&x.len())
        && !x.contains(&0)
}

/// The layout of an operand as it is read: in C order, unless its last axis has unit stride.
fn read(x: &Layout) -> Option<Layout> {
    let last = x.strides().last().copied();
    let size = x.shape().sizes().last().copied();
    (last != Some(1) && size != Some(1)).then(|| Layout::contiguous(x.shape().clone()))
}

/// An operand whose last axis has unit stride.
fn readable(x: &Array) -> Result<Array> {
    match read(&x.layout) {
        Some(_) => copy::contiguous(x),
        None => Ok(x.clone()),
    }
}

/// The scratch bytes of [`weight`], as the memory counters count them.
pub fn weight_scratch(dtype: DType, operands: &[&Layout]) -> usize {
    let copied = operands.iter().filter_map(|x| read(x));
    copied.map(|x| block_bytes(x.shape().count() * dtype.size())).sum()
}

/// How planes of results are cut, which operands alone decide.
struct Cut {
    patch: Patch,
    /// The patches of a plane
    bands: usize,
    /// Results of a plane, and of a place along the first axis
    lines: usize,
    behind: usize,
    /// Elements of a vector
    width: usize,
    /// Elements of the patch of all channels that a result reads, with what vectors read beyond it
    size: usize,
}

impl Cut {
    /// `None` where there are no results.
    fn new<T: Element>(windows: &Windows<'_>) -> Option<Cut> {
        let Windows { x, sweeps, channels, .. } = windows;
        let axes: SmallVec<[Along; 3]> =
            sweeps.iter().zip(&x.spatial).map(|(sweep, x)| Along::new(sweep, x.0)).collect();
        let lines: usize = axes.iter().map(|along| along.places).product();
        if lines * x.sizes[0] * windows.groups * windows.rows == 0 {
            return None;
        }
        let width = match axes.last().map_or(0, |along| along.places) {
            0..=4 => 4,
            5..=8 => 8,
            _ => WIDE,
        };
        // Lines start where vectors are aligned.
        let (first, inner) = (&axes[0], patch::pitches(&axes, width)[0]);
        let residues: usize = axes.iter().map(|along| along.residues.len()).product();
        let room = PATCH / size_of::<T>() / (channels * residues * inner).max(1);
        let most = room.saturating_sub(first.reach).max(first.reach).clamp(1, first.places);
        let bands = first.places.div_ceil(most);
        let (band, behind) = (first.places.div_ceil(bands), lines / first.places);
        let patch = Patch::new(axes, band, width);
        let (bands, size) = (patch.axes[0].places.div_ceil(band), channels * patch.channel + width);
        Some(Cut { patch, bands, lines, behind, width, size })
    }

    /// The places along the first axis of a band.
    fn places(&self, band: usize) -> Range<usize> {
        let each = self.patch.band;
        band * each..self.patch.axes[0].places.min((band + 1) * each)
    }

    /// The pieces of so many places along the first axis; `apart` are the distances of two results
    /// along each axis.
    fn pieces(&self, places: usize, apart: &[isize]) -> Vec<Piece> {
        let (axes, last) = (&self.patch.axes, self.patch.axes.len() - 1);
        let size = |i: usize| if i == 0 { places } else { axes[i].places };
        let (long, width) = (size(last), self.width);
        // Where lines follow each other, a vector may reach into the next.
        let follows = |i: usize| apart[i] == apart[i + 1] * size(i + 1) as isize;
        let is_dense = apart[last] == 1 && (0..last).all(follows);
        let end: usize = (0..=last).map(size).product();
        let mut pieces = Vec::new();
        each_index((0..last).map(size), |index| {
            let line: usize =
                index.iter().zip(&self.patch.pitches).map(|(i, pitch)| i * pitch).sum();
            let start: isize = index.iter().zip(apart).map(|(&i, by)| i as isize * by).sum();
            for first in (0..long).step_by(width) {
                // The last piece is moved back so that it ends with the line, if that is so long.
                let q = first.min(long.saturating_sub(width));
                let to = start + q as isize * apart[last];
                let fits =
                    apart[last] == 1 && q + width <= long || is_dense && to as usize + width <= end;
                let exact = if fits { 0 } else { width.min(long - q) };
                pieces.push(Piece { at: line + q, to, exact });
            }
        });
        pieces
    }
}

/// The scratch bytes of [`sums`], as the memory counters count them.
pub fn scratch<T: Element>(windows: &Windows<'_>, is_innermost: bool) -> usize {
    if is_innermost {
        return innermost::Cut::new(windows).map_or(0, |cut| cut.scratch::<T>());
    }
    if let Some(cut) = lanes::Cut::new::<T>(windows) {
        return cut.scratch::<T>();
    }
    Cut::new::<T>(windows).map_or(0, |cut| counted(cut.size * size_of::<T>(), parts(&cut, windows)))
}

/// Threads that have work.
fn parts(cut: &Cut, windows: &Windows<'_>) -> usize {
    let planes = windows.x.sizes[0] * windows.groups * windows.rows;
    (planes * cut.bands).min(threads::num_threads())
}

/// The sums of windows, where the sweeps say. The epilogue, if there is one, runs on a few planes at
/// a time: rows of the matrix of a group, and of the groups after it in the same sample.
///
/// # Safety
/// `out` is in C order, of samples, rows of all groups and places, or has its channels innermost, if
/// [`takes_innermost`] says so; nobody else reads or writes what
/// the sweeps reach of it.
pub unsafe fn sums<T: Element>(
    windows: &Windows<'_>,
    out: &Array,
    epilogue: Option<Epilogue<'_>>,
) -> Result<()> {
    let strides = out.layout.strides();
    if is_innermost(&out.layout) {
        let Some(cut) = innermost::Cut::new(windows) else { return Ok(()) };
        // SAFETY: as the caller's.
        let to = unsafe { out.ptr_mut().cast::<T>() };
        // SAFETY: as the caller's.
        return unsafe { innermost::sums(&cut, windows, (to, &strides), epilogue) };
    }
    // Only elements of four bytes are transposed in registers.
    if const { size_of::<T>() == 4 }
        && let Some(cut) = lanes::Cut::new::<T>(windows)
    {
        // SAFETY: as the caller's.
        let to = unsafe { (out.ptr_mut().cast::<T>(), strides[1]) };
        // SAFETY: as the caller's.
        return unsafe { lanes::sums(&cut, windows, to, epilogue) };
    }
    let Some(cut) = Cut::new::<T>(windows) else { return Ok(()) };
    let both = || windows.sweeps.iter().zip(&strides[2..]);
    let first: isize = both().map(|(sweep, stride)| sweep.to as isize * stride).sum();
    let apart: SmallVec<[isize; 3]> =
        both().map(|(sweep, stride)| sweep.apart as isize * stride).collect();
    let taps = cut.patch.taps();
    let channel = |c: usize| taps.iter().map(move |tap| (c * cut.patch.channel) as isize + tap);
    let depth = windows.channels * taps.len();
    let mut weights = vec![0; depth];
    windows.depth.offsets(0, &mut weights);
    let job = Job::<T> {
        lines: (0..cut.bands).map(|i| cut.patch.lines(windows.x, cut.places(i).start)).collect(),
        pieces: [0, cut.bands - 1].map(|band| cut.pieces(cut.places(band).len(), &apart)),
        offsets: (0..windows.channels).flat_map(channel).collect(),
        weights,
        // SAFETY: by contract.
        out: unsafe { out.ptr_mut() }.cast::<T>().wrapping_offset(first),
        channel: strides[1],
        apart: &apart,
        windows,
        cut: &cut,
    };
    let size = cut.size * size_of::<T>();
    let scratch = Scratch::new(size, parts(&cut, windows))?;
    let work = (cut.lines / cut.bands).max(1) * depth.max(1);
    let tasks = windows.x.sizes[0] * windows.groups * windows.rows * cut.bands;
    let chunks = (tasks * work / CHUNK).clamp(1, 4 * threads::num_threads());
    threads::for_each_chunk(tasks, tasks.div_ceil(chunks), |tasks| {
        let part = scratch.lend(size).or_throw();
        // SAFETY: the part is this call's; every task has results of its own.
        unsafe { job.tasks(tasks, part.ptr().cast(), epilogue) };
    });
    Ok(())
}

/// What all patches share.
struct Job<'a, T: Element> {
    windows: &'a Windows<'a>,
    cut: &'a Cut,
    /// The lines of a patch, for each band
    lines: Vec<Vec<Line>>,
    /// The pieces of a band, and of the last
    pieces: [Vec<Piece>; 2],
    /// What each step of the sum reads, in a patch and of the weights
    offsets: Vec<isize>,
    weights: Vec<isize>,
    /// The first result; the distances from a plane to the next, and of results along each axis
    out: *mut T,
    channel: isize,
    apart: &'a [isize],
}

// SAFETY: operands are only read; tasks write different results.
unsafe impl<T: Element> Sync for Job<'_, T> {}

impl<T: Element> Job<'_, T> {
    /// Computes some bands of planes, and runs the epilogue on them.
    ///
    /// # Safety
    /// `memory` has room for a patch.
    unsafe fn tasks(&self, tasks: Range<usize>, memory: *mut T, epilogue: Option<Epilogue<'_>>) {
        let (cut, windows) = (self.cut, self.windows);
        let rows = windows.groups * windows.rows;
        let kernel = kernel::pieces::<T>(cut.width);
        let step = self.apart.last().copied().unwrap_or(1);
        let (mut pace, mut first, mut shown) = (Pace::default(), tasks.start, None);
        let mut weights: SmallVec<[T; 32]> = SmallVec::new();
        for task in tasks.clone() {
            pace.work(cut.lines / cut.bands * self.weights.len());
            let (plane, band) = (task / cut.bands, task % cut.bands);
            let (sample, row) = (plane / rows, plane % rows);
            let (group, own) = (row / windows.rows, row % windows.rows);
            let at = group as isize * windows.steps[0] + own as isize * windows.steps[1];
            let at = windows.weights.cast::<T>().wrapping_offset(at);
            let to =
                plane as isize * self.channel + (band * cut.patch.band) as isize * self.apart[0];
            weights.clear();
            // SAFETY: as the caller's, and as windows and sweeps say.
            unsafe {
                weights.extend(self.weights.iter().map(|&k| *at.wrapping_offset(k)));
                if shown != Some((sample, group, band)) {
                    // Where the band is the same, so are the zeros.
                    let fresh = shown.is_none_or(|(.., old)| old != band);
                    self.show(sample, group, band, memory, fresh);
                    shown = Some((sample, group, band));
                }
                let pieces = &self.pieces[usize::from(band + 1 == cut.bands)];
                let out = self.out.wrapping_offset(to);
                kernel(memory, &self.offsets, &weights, out, step, pieces);
            }
            let Some(done) = epilogue else { continue };
            let next = task + 1;
            if cut.bands > 1 {
                let places = cut.places(band);
                let places = places.start * cut.behind..places.end * cut.behind;
                done(plane / windows.rows, own..own + 1, places);
                continue;
            }
            let ends = next == tasks.end || next.is_multiple_of(rows);
            if ends || (next - first) * cut.lines >= TOGETHER {
                let row = first % windows.rows;
                done(first / windows.rows, row..row + next - first, 0..cut.lines);
                first = next;
            }
        }
    }

    /// Writes the patch of a band of what a group reads; zeros only where they are not there yet.
    ///
    /// # Safety
    /// As for [`Job::tasks`].
    unsafe fn show(&self, sample: usize, group: usize, band: usize, to: *mut T, fresh: bool) {
        let (patch, x) = (&self.cut.patch, self.windows.x);
        let (lines, by) = (&self.lines[band], patch.by(x));
        let from = x.ptr.cast::<T>().wrapping_offset(sample as isize * x.strides[0]);
        let fill = match fresh {
            true => patch::fill::select::<T, true>(),
            false => patch::fill::select::<T, false>(),
        };
        for c in 0..self.windows.channels {
            let channel = (group * self.windows.channels + c) as isize * x.strides[1];
            let (to, from) = (to.wrapping_add(c * patch.channel), from.wrapping_offset(channel));
            // SAFETY: by contract.
            unsafe { fill(to, from, lines, by, x.strides[1]) };
        }
        if fresh {
            // What vectors read beyond the planes.
            for i in self.windows.channels * patch.channel..self.cut.size {
                // SAFETY: by contract.
                unsafe { to.add(i).write(T::default()) };
            }
        }
    }
}
