//! Padding takes no part in the sums of convolutions.
//!
//! Kernels pad their operands with zeros, whose terms add nothing as long as what they are
//! multiplied with is finite. Where it is not, they make a result NaN. So results at edges that are
//! NaN are summed again here, without the padding: in the same order, for the same chains and
//! blocks.

use std::ops::Range;

use smallvec::SmallVec;

use super::Sides;
use crate::array::Array;
use crate::cpu::direct::Windows;
use crate::cpu::element::Shared;
use crate::cpu::gemm::SPAN;
use crate::cpu::gemm::kernel::{BLOCK, Element, fuses};
use crate::cpu::sweep::{Sweep, each_index};
use crate::dtype::DType;
use crate::ops::attributes::ConvSpec;
use crate::threads;

/// Results that one thread looks at at a time.
const CHUNK: usize = 1 << 14;

/// A place by its axes.
type Index = SmallVec<[usize; 3]>;

/// The sum of products in the order of [`gemm`](crate::cpu::gemm). Terms that take no part have
/// their place in it.
fn sum<T: Element>(terms: impl Iterator<Item = Option<(T, T)>>) -> T {
    let (mut total, mut span, mut block) = (None::<T>, None::<T>, T::default());
    let plus = |sum: Option<T>, x: T| Some(sum.map_or(x, |sum| sum.plus(x)));
    let mut count = 0;
    for term in terms {
        if let Some((a, b)) = term {
            block = if fuses() { block.fma::<true>(a, b) } else { block.fma::<false>(a, b) };
        }
        count += 1;
        if count % BLOCK == 0 {
            span = plus(span, std::mem::take(&mut block));
        }
        if count % SPAN == 0 {
            total = span.take().map_or(total, |span| plus(total, span));
        }
    }
    if count % BLOCK != 0 {
        span = plus(span, block);
    }
    span.map_or(total, |span| plus(total, span)).unwrap_or_default()
}

/// Results of [`Windows`], some of which lie at edges.
pub struct Edges<'a, T> {
    windows: &'a Windows<'a>,
    /// Along each axis the places whose taps all lie inside
    whole: SmallVec<[Range<usize>; 3]>,
    out: Shared<T>,
    sample: isize,
    channel: isize,
    strides: SmallVec<[isize; 3]>,
}

impl<'a, T: Element + PartialEq> Edges<'a, T> {
    /// `None` where no window shows padding.
    ///
    /// # Safety
    /// `out` is in C order or has its channels innermost, and nobody else reads or writes it while
    /// results are mended.
    pub unsafe fn new(windows: &'a Windows<'a>, out: &Array) -> Option<Edges<'a, T>> {
        let both = windows.sweeps.iter().zip(&windows.x.spatial);
        let whole: SmallVec<[_; 3]> = both.map(|(sweep, x)| sweep.whole(x.0)).collect();
        let is_edge = |(sweep, whole): (&Sweep, &Range<usize>)| *whole != (0..sweep.count);
        if windows.channels == 0 || !windows.sweeps.iter().zip(&whole).any(is_edge) {
            return None;
        }
        let (strides, mut first) = (out.layout.strides(), 0);
        let mut apart: SmallVec<[isize; 3]> = SmallVec::new();
        for (sweep, stride) in windows.sweeps.iter().zip(&strides[2..]) {
            first += sweep.to as isize * stride;
            apart.push(sweep.apart as isize * stride);
        }
        // SAFETY: by contract.
        let ptr = unsafe { out.ptr_mut() }.cast::<T>().wrapping_offset(first);
        let out = Shared::new(ptr);
        let [sample, channel] = [strides[0], strides[1]];
        Some(Edges { windows, whole, out, sample, channel, strides: apart })
    }

    /// Mends all results.
    ///
    /// # Safety
    /// They are computed.
    pub unsafe fn mend(&self) {
        let Windows { x, groups, rows, sweeps, .. } = self.windows;
        let places: usize = sweeps.iter().map(|sweep| sweep.count).product();
        let (lines, channels) = (self.lines(0..places), x.sizes[0] * groups * rows);
        threads::for_each_chunk(channels, CHUNK / lines.len().max(1), |range| {
            for i in range {
                // SAFETY: by contract; a channel is one call's.
                unsafe { self.channel(i / rows, i % rows, &lines) };
            }
        });
    }

    /// Mends a rectangle of results: those of a sample and a group, some rows of weights, and some
    /// places in C order. Rows beyond those of the group are those of the groups after it.
    ///
    /// # Safety
    /// They are computed, and nobody else reads or writes them.
    pub unsafe fn part(&self, item: usize, rows: Range<usize>, places: Range<usize>) {
        let lines = self.lines(places);
        let first = item * self.windows.rows;
        for i in first + rows.start..first + rows.end {
            // SAFETY: by contract.
            unsafe { self.channel(i / self.windows.rows, i % self.windows.rows, &lines) };
        }
    }

    /// The lines that have edges, or what there is of them: their places, and where the first and
    /// the last result are in a channel.
    fn lines(&self, places: Range<usize>) -> Vec<(Range<usize>, [isize; 2])> {
        let last = self.whole.len() - 1;
        let long = self.windows.sweeps[last].count;
        let (mut lines, mut at) = (Vec::new(), places.start);
        while at < places.end {
            let end = places.end.min((at / long + 1) * long);
            let ends = [at, end - 1].map(|place| self.index(place));
            let is_edge =
                |index: &Index| index.iter().zip(&self.whole).any(|(q, w)| !w.contains(q));
            if ends.iter().any(is_edge) {
                lines.push((at..end, ends.map(|index| self.offset(&index))));
            }
            at = end;
        }
        lines
    }

    /// Mends lines of a channel. The taps that read padding at some place do so at one of the ends
    /// of its line too, so these are looked at first.
    ///
    /// # Safety
    /// As for [`Edges::part`].
    unsafe fn channel(&self, item: usize, row: usize, lines: &[(Range<usize>, [isize; 2])]) {
        let Windows { groups, rows, .. } = *self.windows;
        let channel = (item % groups * rows + row) as isize * self.channel;
        let channel = (item / groups) as isize * self.sample + channel;
        for (places, ends) in lines {
            // SAFETY: by contract.
            if ends.iter().all(|end| is_number(unsafe { *self.out.at(channel + end) })) {
                continue;
            }
            for index in places.clone().map(|place| self.index(place)) {
                let is_edge = index.iter().zip(&self.whole).any(|(q, w)| !w.contains(q));
                let y = self.out.at(channel + self.offset(&index));
                // SAFETY: by contract.
                unsafe {
                    if is_edge && !is_number(*y) {
                        *y = self.again(item, row, &index);
                    }
                }
            }
        }
    }

    fn index(&self, mut place: usize) -> Index {
        let mut index: Index = SmallVec::from_elem(0, self.whole.len());
        for (index, sweep) in index.iter_mut().zip(&self.windows.sweeps).rev() {
            *index = place % sweep.count;
            place /= sweep.count;
        }
        index
    }

    fn offset(&self, index: &Index) -> isize {
        index.iter().zip(&self.strides).map(|(&q, by)| q as isize * by).sum()
    }

    /// A result without padding.
    ///
    /// # Safety
    /// The operands can be read.
    unsafe fn again(&self, item: usize, row: usize, index: &Index) -> T {
        let Windows { x, weights, steps, depth, groups, channels, sweeps, .. } = self.windows;
        let (sample, group) = (item / groups, item % groups);
        let weight = group as isize * steps[0] + row as isize * steps[1];
        let first = sample as isize * x.strides[0];
        let mut taps = Vec::new();
        each_index(sweeps.iter().map(|sweep| sweep.taps), |tap| {
            let mut at = Some(0);
            for (i, sweep) in sweeps.iter().enumerate() {
                let position =
                    sweep.base + index[i] as isize * sweep.step + tap[i] as isize * sweep.tap;
                let (size, stride) = x.spatial[i];
                let is_inside = (0..size as isize).contains(&position);
                at = at.filter(|_| is_inside).map(|at: isize| at + position * stride);
            }
            taps.push(at);
        });
        let terms = (0..channels * taps.len()).map(|k| {
            let channel = (group * channels + k / taps.len()) as isize * x.strides[1];
            let at = first + channel + taps[k % taps.len()]?;
            let (x, w) = (x.ptr.cast::<T>(), weights.cast::<T>());
            // SAFETY: by contract.
            unsafe { Some((*w.offset(weight + depth.at(k)), *x.offset(at))) }
        });
        sum(terms)
    }
}

/// Mends the weights of a convolution.
///
/// # Safety
/// `out` is in C order, computed, and nobody else reads or writes it.
pub unsafe fn weight<T: Element + PartialEq>(x: &Sides, g: &Sides, spec: &ConvSpec, out: &Array) {
    if spec.pad_low.iter().chain(&spec.pad_high).all(|&n| n == 0) {
        return;
    }
    let taps: SmallVec<[usize; 3]> = spec.kernel.iter().map(|n| n.value()).collect();
    let each: usize = taps.iter().product();
    let (channels, outputs) = (x.sizes[1] / spec.groups, g.sizes[1] / spec.groups);
    // SAFETY: by contract.
    let to = Shared::new(unsafe { out.ptr_mut() }.cast::<T>());
    threads::for_each_chunk(g.sizes[1] * channels * each, CHUNK, |range| {
        for i in range {
            // SAFETY: by contract.
            if is_number(unsafe { *to.at(i as isize) }) {
                continue;
            }
            let (o, c) = (i / (channels * each), i / each % channels);
            let mut tap: SmallVec<[usize; 3]> = SmallVec::from_elem(0, taps.len());
            let mut rest = i % each;
            for (tap, n) in tap.iter_mut().zip(&taps).rev() {
                (*tap, rest) = (rest % n, rest / n);
            }
            let channel = (o / outputs * channels + c) as isize * x.strides[1];
            let mut terms = Vec::new();
            let sizes = std::iter::once(g.sizes[0]).chain(g.spatial.iter().map(|axis| axis.0));
            each_index(sizes, |at| {
                let mut from = Some(at[0] as isize * x.strides[0] + channel);
                let mut by = at[0] as isize * g.strides[0] + o as isize * g.strides[1];
                for (axis, &q) in at[1..].iter().enumerate() {
                    let (size, stride) = x.spatial[axis];
                    let position = (q * spec.stride[axis] + tap[axis] * spec.dilation[axis])
                        .checked_sub(spec.pad_low[axis])
                        .filter(|&at| at < size);
                    from = from.zip(position).map(|(from, at)| from + at as isize * stride);
                    by += q as isize * g.spatial[axis].1;
                }
                // SAFETY: by contract.
                terms.push(from.map(|from| unsafe {
                    (*g.ptr.cast::<T>().offset(by), *x.ptr.cast::<T>().offset(from))
                }));
            });
            // SAFETY: by contract.
            unsafe { *to.at(i as isize) = sum(terms.into_iter()) };
        }
    });
}

/// Whether all elements are known to be finite, so that zeros times them are zeros; false where they
/// would not be found fast.
pub fn are_finite(w: &Array) -> bool {
    if !w.is_contiguous() {
        return false;
    }
    match w.dtype {
        // SAFETY: the array lies in C order, with elements of this type.
        DType::F32 => {
            finite(unsafe { std::slice::from_raw_parts(w.ptr().cast::<f32>(), w.count()) })
        }
        // SAFETY: as above.
        DType::F64 => {
            finite(unsafe { std::slice::from_raw_parts(w.ptr().cast::<f64>(), w.count()) })
        }
        DType::Bool
        | DType::I8
        | DType::I16
        | DType::I32
        | DType::I64
        | DType::U8
        | DType::U16
        | DType::U32
        | DType::U64 => true,
        DType::F16 | DType::BF16 => false,
    }
}

/// Whether all are finite: the product of one that is not with zero is no zero.
fn finite<T: Element + PartialEq>(x: &[T]) -> bool {
    let zero = T::default();
    let is_finite = |x: &T| zero.fma::<false>(*x, zero) == zero;
    x.chunks(64).all(|some| some.iter().fold(true, |all, x| all & is_finite(x)))
}

/// Whether it is no NaN.
#[allow(clippy::eq_op, reason = "a NaN is not equal to itself")]
fn is_number<T: PartialEq + Copy>(x: T) -> bool {
    x == x
}
