//! The weights of a depthwise convolution: sums over the samples and positions of two channels.
//!
//! The sum of a tap is cut into blocks of rows, so that no chain has more than [`CHAIN`] terms, and
//! the blocks are added in a tree. In a block, positions that all taps of a row can read go to
//! lanes, in order (see [`Partial`]); the others follow one by one.

use smallvec::SmallVec;

use super::kernel::{self, Edge, Partial};
use super::readable;
use crate::array::Array;
use crate::cpu::conv::{Sides, sides};
use crate::cpu::gemm::kernel::Element;
use crate::cpu::sweep::{Sweep, each_index};
use crate::error::Result;
use crate::ops::attributes::ConvSpec;
use crate::threads::{self, Pace};

/// The most terms of a chain.
const CHAIN: usize = 128;
/// The most positions of a row that lanes take at a time: a chain.
const SEGMENT: usize = 16 * CHAIN;
/// The most positions at an edge that are taken at a time.
const EDGE: usize = 32;

/// A sum of blocks in a tree whose shape depends on their number alone.
struct Tree<T> {
    count: usize,
    parts: SmallVec<[T; 16]>,
}

impl<T: Element> Tree<T> {
    fn push(&mut self, mut part: T) {
        let mut rest = self.count;
        while rest & 1 == 1 {
            part = self.parts.pop().unwrap_or_default().plus(part);
            rest >>= 1;
        }
        self.parts.push(part);
        self.count += 1;
    }

    fn finish(&self) -> T {
        let Some((&last, before)) = self.parts.split_last() else { return T::default() };
        before.iter().rev().fold(last, |right, left| left.plus(right))
    }
}

struct Channels<'a, T> {
    x: &'a Sides,
    g: &'a Sides,
    /// Channels of `g` that belong to one of `x`
    each: usize,
    sweeps: &'a [Sweep],
    out: *mut T,
    taps: usize,
}

// SAFETY: operands are only read; the weights of a channel are one thread's.
unsafe impl<T> Sync for Channels<'_, T> {}

/// The weights, from the input and the cotangent of the output.
///
/// # Safety
/// As for [`output`](super::output).
pub unsafe fn weight<T: Element>(x: &Array, g: &Array, spec: &ConvSpec, out: &Array) -> Result<()> {
    let (x, g) = (readable(x)?, readable(g)?);
    let (xs, gs) = (sides(&x), sides(&g));
    let taps: SmallVec<[usize; 3]> = spec.kernel.iter().map(|n| n.value()).collect();
    let sweeps: SmallVec<[Sweep; 3]> = (gs.spatial.iter().zip(&taps).enumerate())
        .map(|(i, (g, &taps))| Sweep::output(i, g.0, taps, spec))
        .collect();
    let channels = Channels::<T> {
        x: &xs,
        g: &gs,
        each: gs.sizes[1] / spec.groups,
        sweeps: &sweeps,
        // SAFETY: by contract.
        out: unsafe { out.ptr_mut() }.cast(),
        taps: taps.iter().product(),
    };
    // Outer taps of a channel, each with a row of weights.
    let outer: usize = taps[..taps.len() - 1].iter().product();
    threads::parallel_for(gs.sizes[1] * outer, &|i| {
        // SAFETY: the weights are this call's.
        unsafe { channels.row(i / outer, i % outer) };
    });
    Ok(())
}

impl<T: Element> Channels<'_, T> {
    /// The weights of a row of taps.
    ///
    /// # Safety
    /// They are this call's.
    unsafe fn row(&self, channel: usize, outer: usize) {
        let Some(width) = self.sweeps.last() else { return };
        let to = self.out.wrapping_add(channel * self.taps + outer * width.taps);
        let mut t = 0;
        while t < width.taps {
            // Several chains at a time, because in a single one each addition waits for the one
            // before.
            // SAFETY: the weights are the caller's.
            t += unsafe {
                match width.taps - t {
                    1 => self.some::<1>(channel, outer, t, to),
                    2 => self.some::<2>(channel, outer, t, to),
                    4 | 7.. => self.some::<4>(channel, outer, t, to),
                    _ => self.some::<3>(channel, outer, t, to),
                }
            };
        }
    }

    /// The weights of `K` neighbouring taps from number `t` on. Gives `K`.
    unsafe fn some<const K: usize>(
        &self,
        channel: usize,
        outer: usize,
        t: usize,
        to: *mut T,
    ) -> usize {
        let Some((width, axes)) = self.sweeps.split_last() else { return K };
        let last = axes.len();
        let sums = kernel::sums::<T, K>(width.step);
        let size = self.x.spatial[last].0;
        let whole = width.whole(size);
        // The longest chain that a row leaves behind.
        let edges: [Vec<Edge>; 2] = [0..whole.start, whole.end..width.count]
            .map(|edge| edge.map(|q| (q, width.inside(q, size))).collect());
        let add_edges = kernel::edges::<T, K>();
        let left = whole.len() % SEGMENT;
        let rest = left.min(3) + edges.iter().map(|edge| edge.len() % EDGE).sum::<usize>();
        let each = (CHAIN / (left / 16).max(rest).max(1)).max(1);
        let (mut partial, mut rows) = (Partial::<T, K>::new(), 0);
        let mut trees: [Tree<T>; K] =
            std::array::from_fn(|_| Tree { count: 0, parts: SmallVec::new() });
        let mut end = |partial: &mut Partial<T, K>| {
            for (k, tree) in trees.iter_mut().enumerate() {
                tree.push(partial.total(k));
            }
            *partial = Partial::new();
        };
        // The position of the outer tap along each axis.
        let mut place: SmallVec<[usize; 3]> = SmallVec::from_elem(0, axes.len());
        let mut rest = outer;
        for (i, sweep) in axes.iter().enumerate().rev() {
            place[i] = rest % sweep.taps;
            rest /= sweep.taps;
        }
        let mut pace = Pace::default();
        let source = channel / self.each;
        for n in 0..self.g.sizes[0] {
            each_index(axes.iter().map(|sweep| sweep.count), |at| {
                pace.work(width.count * K);
                let mut g = n as isize * self.g.strides[0] + channel as isize * self.g.strides[1];
                let mut x = n as isize * self.x.strides[0] + source as isize * self.x.strides[1];
                for (i, sweep) in axes.iter().enumerate() {
                    let position =
                        sweep.base + at[i] as isize * sweep.step + place[i] as isize * sweep.tap;
                    if !(0..self.x.spatial[i].0 as isize).contains(&position) {
                        return;
                    }
                    g += at[i] as isize * self.g.spatial[i].1;
                    x += position * self.x.spatial[i].1;
                }
                let g = self.g.ptr.cast::<T>().wrapping_offset(g);
                let x =
                    self.x.ptr.cast::<T>().wrapping_offset(x + width.base + t as isize * width.tap);
                for from in whole.clone().step_by(SEGMENT) {
                    let len = SEGMENT.min(whole.end - from);
                    // SAFETY: these positions are there for all taps.
                    unsafe {
                        let x = x.wrapping_offset(from as isize * width.step);
                        sums(&mut partial, g.wrapping_add(from), x, len, width.tap, width.step);
                    }
                    if len == SEGMENT {
                        end(&mut partial);
                        rows = 0;
                    }
                }
                for some in edges.iter().flat_map(|edge| edge.chunks(EDGE)) {
                    // SAFETY: `g` has these elements.
                    unsafe { add_edges(&mut partial, g, x, some, t, width.tap, width.step) };
                    if some.len() == EDGE {
                        end(&mut partial);
                        rows = 0;
                    }
                }
                rows += 1;
                if rows == each {
                    end(&mut partial);
                    rows = 0;
                }
            });
        }
        end(&mut partial);
        for (k, tree) in trees.iter().enumerate() {
            // SAFETY: by contract.
            unsafe { *to.add(t + k) = tree.finish() };
        }
        K
    }
}
