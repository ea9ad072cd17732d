//! Convolutions whose results each see one channel (depthwise ones): sums of few terms, for which a
//! product would gather more than it multiplies.
//!
//! Promises: outputs and inputs have the bits of the product that [`conv`](super::conv) makes of
//! them (one chain over the taps, ascending), except that padding takes no part. A weight is a sum
//! over positions in an order of its own, which depends on the logical shapes and the spec alone:
//! see [`weight`].

mod kernel;
mod weight;

use smallvec::SmallVec;

use kernel::Rows;

use super::conv::{Phase, Sides, sides};
use super::copy;
use super::gemm::kernel::{BLOCK, Element};
use crate::array::Array;
use crate::dtype::DType;
use crate::error::Result;
use crate::layout::{Layout, Strides};
use crate::memory::block_bytes;
use crate::ops::attributes::{ConvRole, ConvSpec};
use crate::threads::{self, Pace};

pub use weight::weight;

/// The most channels that one is multiplied into: more are better a product, which reads a channel
/// once for several of them.
const MOST: usize = 4;
/// Multiplications that one thread takes at a time.
const CHUNK: usize = 1 << 17;

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

/// The scratch bytes of operands of a dtype, as the memory counters count them.
pub fn scratch(dtype: DType, operands: &[&Layout]) -> usize {
    let copied = operands.iter().filter_map(|x| read(x));
    copied.map(|x| block_bytes(x.shape().count() * dtype.size())).sum()
}

/// How results, taps and positions meet along one axis: result number `q` lies at `to + q · apart`,
/// and its tap `t`, whose weight has the number `first + t · skip`, reads the position
/// `base + q · step + t · tap`, and takes no part where there is none.
#[derive(Clone, Copy, Debug)]
struct Sweep {
    count: usize,
    taps: usize,
    first: usize,
    skip: usize,
    base: isize,
    step: isize,
    tap: isize,
    to: usize,
    apart: usize,
}

impl Sweep {
    /// A convolution along axis `i` whose results are `count` positions.
    fn output(i: usize, count: usize, taps: usize, spec: &ConvSpec) -> Sweep {
        Sweep {
            count,
            taps,
            first: 0,
            skip: 1,
            base: -(spec.pad_low[i] as isize),
            step: spec.stride[i] as isize,
            tap: spec.dilation[i] as isize,
            to: 0,
            apart: 1,
        }
    }

    /// Its transpose: the positions `at`, `at + stride`, … of the input.
    fn input(phase: &Phase, at: usize, stride: usize) -> Sweep {
        Sweep {
            count: phase.count,
            taps: phase.taps,
            first: phase.first,
            skip: phase.step,
            base: phase.base,
            step: 1,
            tap: -phase.down,
            to: at,
            apart: stride,
        }
    }

    /// The taps of a result that read one of `n` positions.
    fn inside(&self, q: usize, n: usize) -> std::ops::Range<usize> {
        let at = self.base + q as isize * self.step;
        let (low, high) = match self.tap > 0 {
            true => (-at, n as isize - 1 - at),
            false => (at - (n as isize - 1), at),
        };
        let tap = self.tap.unsigned_abs() as isize;
        let start = low.max(0).unsigned_abs().div_ceil(tap.unsigned_abs());
        let end = if high < 0 { 0 } else { (high / tap) as usize + 1 };
        let end = end.min(self.taps);
        start.min(end)..end
    }

    /// The results all of whose taps read one of `n` positions: a range.
    fn whole(&self, n: usize) -> std::ops::Range<usize> {
        let reach = self.tap * (self.taps as isize - 1).max(0);
        let (low, high) = (self.base + reach.min(0), self.base + reach.max(0));
        let start = (-low).max(0).unsigned_abs().div_ceil(self.step.unsigned_abs());
        let last = n as isize - 1 - high;
        let end = if last < 0 { 0 } else { (last / self.step) as usize + 1 };
        let end = end.min(self.count);
        start.min(end)..end
    }
}

/// Calls `f` with every index of an array of these sizes, in C order.
fn each_index(sizes: impl Iterator<Item = usize> + Clone, mut f: impl FnMut(&[usize])) {
    let sizes: SmallVec<[usize; 3]> = sizes.collect();
    if sizes.contains(&0) {
        return;
    }
    let mut index: SmallVec<[usize; 3]> = SmallVec::from_elem(0, sizes.len());
    loop {
        f(&index);
        let Some(i) = (0..sizes.len()).rev().find(|&i| index[i] + 1 < sizes[i]) else { return };
        index[i] += 1;
        index[i + 1..].fill(0);
    }
}

/// The results of one phase of each axis, over all samples and channels.
struct Planes<'a, T> {
    x: &'a Sides,
    w: &'a Sides,
    /// Results that read a channel of `x` each, and channels of `x` that a result reads
    each: usize,
    reads: usize,
    sweeps: &'a [Sweep],
    out: *mut T,
    /// Strides of the result: sample and channel, and the spatial axes
    strides: Strides,
    channels: usize,
}

// SAFETY: operands are only read; a plane of the result is one thread's.
unsafe impl<T> Sync for Planes<'_, T> {}

impl<'a, T: Element> Planes<'a, T> {
    /// `(each, reads)`, and the sweeps of every axis.
    ///
    /// # Safety
    /// As for [`output`].
    unsafe fn new(
        x: &'a Sides,
        w: &'a Sides,
        (each, reads): (usize, usize),
        sweeps: &'a [Sweep],
        out: &Array,
    ) -> Planes<'a, T> {
        // SAFETY: by contract.
        let ptr = unsafe { out.ptr_mut() }.cast();
        let (strides, channels) = (out.layout.strides(), out.shape().sizes()[1]);
        Planes { x, w, each, reads, sweeps, out: ptr, strides, channels }
    }

    fn run(&self) {
        let Some(rows) = self.rows() else { return };
        let lines: usize = self.sweeps.iter().map(|sweep| sweep.count).product();
        let taps: usize = self.sweeps.iter().map(|sweep| sweep.taps).product();
        let work = (lines * (taps * self.reads).max(1)).max(1);
        let planes = self.x.sizes[0] * self.channels;
        let kernel = kernel::plane::<T>(rows.step);
        threads::for_each_chunk(planes, (CHUNK / work).max(1), |range| {
            let mut pace = Pace::default();
            for plane in range {
                pace.work(work);
                let (n, channel) = ((plane / self.channels) as isize, plane % self.channels);
                let source = channel / self.each * self.reads;
                let from = n * self.x.strides[0] + source as isize * self.x.strides[1];
                // Where one of the two channels stands for several of the other, these are numbered
                // as the weights are.
                let weights = source.max(channel) as isize * self.w.strides[0];
                let to = n * self.strides[0] + channel as isize * self.strides[1];
                // SAFETY: the plane is this chunk's, and positions are inside the operands, as the
                // sweeps say.
                unsafe {
                    kernel(
                        self.x.ptr.cast::<T>().wrapping_offset(from),
                        self.w.ptr.cast::<T>().wrapping_offset(weights),
                        self.out.wrapping_offset(to),
                        &rows,
                    );
                }
            }
        });
    }

    /// The rows of a plane, which are the same in all planes.
    fn rows(&self) -> Option<Rows> {
        let (width, outer) = self.sweeps.split_last()?;
        let last = outer.len();
        let (size, _) = self.x.spatial[last];
        let whole = width.whole(size);
        let (mut rows, mut lines) = (Vec::new(), Vec::new());
        each_index(outer.iter().map(|sweep| sweep.count), |at| {
            let mut to = width.to as isize;
            for ((sweep, &q), &stride) in outer.iter().zip(at).zip(&self.strides[2..]) {
                to += (sweep.to + q * sweep.apart) as isize * stride;
            }
            let inside: SmallVec<[_; 3]> = (outer.iter().zip(at).zip(&self.x.spatial))
                .map(|((sweep, &q), &(size, _))| sweep.inside(q, size))
                .collect();
            let first = lines.len();
            for read in 0..self.reads as isize {
                each_index(inside.iter().map(|taps| taps.len()), |tap| {
                    let mut from = read * self.x.strides[1] + width.base;
                    let mut weight =
                        read * self.w.strides[0] + width.first as isize * self.w.spatial[last].1;
                    for (i, sweep) in outer.iter().enumerate() {
                        let t = inside[i].start + tap[i];
                        let position =
                            sweep.base + at[i] as isize * sweep.step + t as isize * sweep.tap;
                        from += position * self.x.spatial[i].1;
                        weight += (sweep.first + t * sweep.skip) as isize * self.w.spatial[i].1;
                    }
                    lines.push((from, weight));
                });
            }
            rows.push((to, first..lines.len()));
        });
        let edges = (0..whole.start).chain(whole.end..width.count);
        Some(Rows {
            rows,
            lines,
            edges: edges.map(|q| (q, width.inside(q, size))).collect(),
            whole,
            apart: width.apart,
            step: width.step,
            taps: width.taps,
            tap: width.tap,
            weight: width.skip as isize * self.w.spatial[last].1,
        })
    }
}

/// The output of a convolution that [`takes`] allows.
///
/// # Safety
/// `out` is in C order, of the operands' dtype, and nobody else reads or writes it.
pub unsafe fn output<T: Element>(x: &Array, w: &Array, spec: &ConvSpec, out: &Array) -> Result<()> {
    let x = readable(x)?;
    let (xs, ws) = (sides(&x), sides(w));
    let sizes = out.shape().sizes();
    let sweeps: SmallVec<[Sweep; 3]> = (sizes[2..].iter().zip(&ws.spatial).enumerate())
        .map(|(i, (&count, taps))| Sweep::output(i, count, taps.0, spec))
        .collect();
    // SAFETY: by contract.
    unsafe { Planes::<T>::new(&xs, &ws, (ws.sizes[0] / spec.groups, 1), &sweeps, out).run() };
    Ok(())
}

/// The input of a convolution that [`takes`] allows, one combination of its phases at a time.
///
/// # Safety
/// As for [`output`].
pub unsafe fn input<T: Element>(
    g: &Array,
    w: &Array,
    spec: &ConvSpec,
    phases: &[Vec<Phase>],
    out: &Array,
) -> Result<()> {
    let g = readable(g)?;
    let (gs, ws) = (sides(&g), sides(w));
    each_index(phases.iter().map(Vec::len), |at| {
        let sweeps: SmallVec<[Sweep; 3]> = (at.iter().enumerate())
            .map(|(i, &r)| Sweep::input(&phases[i][r], r, spec.stride[i]))
            .collect();
        // SAFETY: by contract.
        unsafe { Planes::<T>::new(&gs, &ws, (1, ws.sizes[0] / spec.groups), &sweeps, out).run() };
    });
    Ok(())
}
