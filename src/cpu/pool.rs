//! The largest element of each window over the last axes, of which only a band of rows is padded at a
//! time, in the cache.
//!
//! Promises: exactly the bits of the body, `nn.max_pool1d` to `nn.max_pool3d`: a window's elements
//! are joined as [`reduce`](super::reduce) joins columns in C order, of which rows first, then what
//! rows gave, make the same (of equal elements the last), and what is padded changes nothing, since
//! nothing is below −∞. A single window of many elements is joined in lanes there, and here.

mod kernels;

use smallvec::SmallVec;

use crate::array::Array;
use crate::cpu::element::{BF16, Element, F16, Number, Shared};
use crate::cpu::reduce::{self, Combine, Max};
use crate::cpu::window::positions;
use crate::dtype::DType;
use crate::error::{self, Result};
use crate::ops::attributes::PerAxis;
use crate::shape::Shape;
use crate::simd::{Isa, isa};
use crate::threads;
use kernels::{across, down, halves, whole};

/// Elements read that are worth handing to another thread, which makes memory for them ready.
const CHUNK: usize = 1 << 18;
/// Results of a row that are computed at once.
const W: usize = 16;

/// How windows lie over the last axes.
pub struct Geometry {
    /// Elements of a window along each axis
    pub size: PerAxis,
    /// Elements from a window to the next
    pub stride: PerAxis,
    /// What is added on both sides
    pub padding: PerAxis,
    /// Elements from an element of a window to the next
    pub dilation: PerAxis,
    /// Whether a last window may reach beyond the padding, if it begins before
    pub ceil: bool,
}

impl Geometry {
    /// Whether no window lies in the padding alone for want of it.
    pub fn is_padded_by_half_at_most(&self) -> bool {
        let reach = |k: usize| (self.size[k] - 1).saturating_mul(self.dilation[k]) + 1;
        (0..self.size.len()).all(|k| self.padding[k] <= reach(k) / 2)
    }

    /// The shape of the result; `None` where a window does not fit.
    pub fn shape(&self, x: &Shape) -> Option<Shape> {
        let sizes = x.sizes();
        let lead = sizes.len().checked_sub(self.size.len())?;
        let mut out: SmallVec<[usize; 6]> = sizes[..lead].iter().copied().collect();
        for (i, &n) in sizes[lead..].iter().enumerate() {
            let padded = n.checked_add(2 * self.padding[i])?;
            let count = positions(padded, self.size[i], self.stride[i], self.dilation[i]);
            let next = count * self.stride[i];
            let reach = (self.size[i] - 1).saturating_mul(self.dilation[i]) + 1;
            let is_short = count > 0 && (count - 1) * self.stride[i] + reach < padded;
            let more = self.ceil && is_short && next < n + self.padding[i];
            out.push(count + usize::from(more));
        }
        out[lead..].iter().all(|&n| n > 0).then(|| Shape::of(&out))
    }
}

/// The largest elements of all windows.
///
/// # Safety
/// `out` is in C order, of the type that [`Geometry::shape`] says and the dtype of `x`; nobody else
/// reads or writes it.
pub unsafe fn max_into(x: &Array, geometry: &Geometry, out: &Array) -> Result<()> {
    // SAFETY: as the caller's.
    unsafe {
        match x.dtype {
            DType::F32 => run::<f32>(x, geometry, out),
            DType::F64 => run::<f64>(x, geometry, out),
            DType::F16 => run::<F16>(x, geometry, out),
            DType::BF16 => run::<BF16>(x, geometry, out),
            DType::Bool
            | DType::I8
            | DType::I16
            | DType::I32
            | DType::I64
            | DType::U8
            | DType::U16
            | DType::U32
            | DType::U64 => return Err(error::wrong_dtype("max_pool", "x", x.dtype, "floating")),
        }
    }
    Ok(())
}

/// An axis: how results follow from the elements along it.
#[derive(Clone, Copy)]
struct Line {
    /// Elements, and from one to the next in memory
    n: usize,
    step: isize,
    /// Results
    count: usize,
    size: usize,
    stride: usize,
    padding: usize,
    dilation: usize,
}

impl Line {
    /// An axis of one element, which is the result.
    const ONE: Line = Line { n: 1, step: 0, count: 1, size: 1, stride: 1, padding: 0, dilation: 1 };

    /// Elements that `count` neighbouring results reach over, those of the padding included.
    fn reach(&self, count: usize) -> usize {
        (count - 1) * self.stride + (self.size - 1) * self.dilation + 1
    }

    /// The elements that a result reads.
    fn shown(&self, i: usize) -> impl Iterator<Item = usize> {
        let start = (i * self.stride).wrapping_sub(self.padding);
        let taps = (0..self.size).map(move |tap| start.wrapping_add(tap * self.dilation));
        taps.filter(|&at| at < self.n)
    }
}

/// The rows of parts that are kept at a time have so many numbers: they stay in the L2 cache.
const KEPT: usize = 1 << 15;

unsafe fn run<T: Element>(x: &Array, geometry: &Geometry, out: &Array) {
    let (sizes, strides) = (x.shape().sizes(), x.layout.strides());
    let (results, spatial) = (out.shape().sizes(), geometry.size.len());
    let lead = sizes.len() - spatial;
    let mut axes = [Line::ONE; 3];
    for (k, axis) in axes[3 - spatial..].iter_mut().enumerate() {
        *axis = Line {
            n: sizes[lead + k],
            step: strides[lead + k],
            count: results[lead + k],
            size: geometry.size[k],
            stride: geometry.stride[k],
            padding: geometry.padding[k],
            dilation: geometry.dilation[k],
        };
    }
    let taps: usize = geometry.size.iter().product();
    // SAFETY: the caller holds the output.
    let (from, to) =
        (Shared::reading(x.ptr().cast::<T>()), Shared::new(unsafe { out.ptr_mut() }.cast::<T>()));
    let total = out.count();
    if total == 1 && taps > reduce::FEW {
        // SAFETY: there is one result.
        return unsafe { *to.at(0) = only::<T>(from.at(0), geometry, &sizes, &strides) };
    }
    if total == 0 {
        return;
    }
    let [planes, rows, row] = axes;
    let volumes = Volumes { lead: &sizes[..lead], strides: &strides[..lead], planes: planes.count };
    let each = rows.count * row.count;
    // Windows that are mostly padding, and steps that few vectors help with.
    if row.stride > 2 || [planes, rows, row].iter().any(|axis| axis.padding > axis.n + W) {
        threads::for_each_chunk(total, (CHUNK / taps).max(1), |range| {
            for i in range {
                let (x, plane) = volumes.at(from.at(0), i / each);
                let at = [plane, i % each / row.count, i % row.count];
                // SAFETY: the elements of a window, and the result that is this call's.
                unsafe { *to.at(i as isize) = one(x, &axes, at) };
            }
        });
        return;
    }
    let pitch = row.count.next_multiple_of(W);
    // So many rows that the parts that are computed of them are kept.
    let most = (KEPT / (planes.size * pitch)).saturating_sub(rows.reach(1)) / rows.stride;
    let bands = rows.count.div_ceil(most.max(1));
    let band = rows.count.div_ceil(bands);
    let bands = rows.count.div_ceil(band);
    let parts = Parts::new(&row);
    let job = Job { axes, volumes, band, bands, height: rows.reach(band), pitch, parts };
    let work = planes.size * job.height * row.count * (row.size + 2);
    threads::for_each_chunk(total / each * bands, (CHUNK / work).max(1), |range| {
        let mut memory = Memory::new(&job);
        for task in range {
            // SAFETY: the operand has what its sizes say, and a band of results is one task's.
            unsafe { job.task(task, from.at(0), to.at(0), &mut memory) };
        }
    });
}

/// Where the planes of results lie in the operand.
struct Volumes<'a> {
    /// Sizes of the axes that are not pooled, and their strides
    lead: &'a [usize],
    strides: &'a [isize],
    /// Planes of results of each
    planes: usize,
}

impl Volumes<'_> {
    /// The elements that are pooled for a plane of results, and its number among their planes.
    fn at<T>(&self, mut x: *const T, volume: usize) -> (*const T, usize) {
        let (plane, mut rest) = (volume % self.planes, volume / self.planes);
        for (&n, &stride) in self.lead.iter().zip(self.strides).rev() {
            x = x.wrapping_offset((rest % n) as isize * stride);
            rest /= n;
        }
        (x, plane)
    }
}

/// One result.
///
/// # Safety
/// All elements can be read.
unsafe fn one<T: Element>(x: *const T, axes: &[Line; 3], at: [usize; 3]) -> T {
    let mut best = Max::neutral::<T>();
    let [planes, rows, row] = axes;
    for i in planes.shown(at[0]) {
        let x = x.wrapping_offset(i as isize * planes.step);
        for i in rows.shown(at[1]) {
            let x = x.wrapping_offset(i as isize * rows.step);
            for i in row.shown(at[2]) {
                // SAFETY: inside the operand.
                best = Max::join(best, unsafe { *x.offset(i as isize * row.step) }.widen());
            }
        }
    }
    T::narrow(best)
}

/// How a row lies when it is pooled: padded, and its elements of even and of odd places apart where
/// windows are two apart, so that neighbouring windows read neighbours.
struct Parts {
    /// Numbers of a part, and of all
    each: usize,
    all: usize,
    /// What the first result reads
    taps: SmallVec<[usize; 8]>,
}

impl Parts {
    fn new(row: &Line) -> Parts {
        let reach = row.reach(row.count.next_multiple_of(W)).max(row.padding + row.n);
        let each = reach.div_ceil(row.stride) + 1;
        let place = |at: usize| at % row.stride * each + at / row.stride;
        let taps = (0..row.size).map(|tap| place(tap * row.dilation)).collect();
        Parts { each, all: each * row.stride, taps }
    }
}

/// A pooling of planes.
struct Job<'a> {
    /// The axis of a volume's planes, that of a plane's rows, and that of a row
    axes: [Line; 3],
    volumes: Volumes<'a>,
    /// Rows of results that are computed together, and how many times
    band: usize,
    bands: usize,
    /// Rows that these reach over, and numbers from one row of largest parts to the next
    height: usize,
    pitch: usize,
    parts: Parts,
}

/// What a thread works in.
struct Memory<N> {
    /// A band of rows in parts. What is padding stays so
    rows: Vec<N>,
    /// Of each row, those of the padding included, the largest elements of what windows show
    kept: Vec<N>,
}

impl<N: Number> Memory<N> {
    fn new(job: &Job<'_>) -> Memory<N> {
        let held = |n: usize| vec![<Max as Combine<N>>::NEUTRAL; n];
        let slots = job.axes[0].size;
        Memory {
            rows: held(job.height.min(job.axes[1].n) * job.parts.all),
            kept: held(slots * job.height * job.pitch),
        }
    }
}

impl Max {
    /// Not above any number.
    fn neutral<T: Element>() -> T::Number {
        <Max as Combine<T::Number>>::NEUTRAL
    }
}

impl Job<'_> {
    /// Computes a band of the results of a plane: of each row that it reaches the largest elements
    /// of what windows show, then of these the largest of each window.
    ///
    /// # Safety
    /// As for [`max_into`].
    unsafe fn task<T: Element>(
        &self,
        task: usize,
        x: *const T,
        out: *mut T,
        memory: &mut Memory<T::Number>,
    ) {
        let [planes, rows, row] = &self.axes;
        let (volume, first) = (task / self.bands, task % self.bands * self.band);
        let (x, plane) = self.volumes.at(x, volume);
        let count = self.band.min(rows.count - first);
        // Rows before the first that is there, and those that are there.
        let above = rows.padding.saturating_sub(first * rows.stride);
        let start = (first * rows.stride).saturating_sub(rows.padding);
        let reach = rows.reach(count);
        let here = reach.saturating_sub(above).min(rows.n.saturating_sub(start));
        let size = self.height * self.pitch;
        let mut places: SmallVec<[usize; 16]> = SmallVec::new();
        for (slot, at) in planes.shown(plane).enumerate() {
            let kept = &mut memory.kept[slot * size..][..reach * self.pitch];
            kept[..above.min(reach) * self.pitch].fill(Max::neutral::<T>());
            kept[(above + here).min(reach) * self.pitch..].fill(Max::neutral::<T>());
            let at = at as isize * planes.step + start as isize * rows.step;
            // SAFETY: there are these rows, and room for them and for what is computed of them.
            unsafe {
                let x = x.wrapping_offset(at);
                let parts = memory.rows.as_mut_ptr();
                if row.stride == 1 {
                    whole::<T>(x, [here, self.parts.all], rows.step, row, parts);
                } else {
                    let halves = halves::at::<T>(isa().min(Isa::V3));
                    halves(x, [here, self.parts.all], rows.step, row, self.parts.each, parts);
                }
                let to = kept.as_mut_ptr().wrapping_add(above * self.pitch);
                let sizes = [here, self.pitch];
                across::<T>(parts, self.parts.all, &self.parts.taps, sizes, to);
            }
            let taps = (0..rows.size).map(|tap| slot * size + tap * rows.dilation * self.pitch);
            places.extend(taps);
        }
        let to = out.wrapping_add((volume * rows.count + first) * row.count);
        // SAFETY: results of this band.
        unsafe {
            // A step that is never taken may be any.
            let next = rows.stride.saturating_mul(self.pitch);
            down::<T>(memory.kept.as_ptr(), &places, next, [count, row.count], to);
        }
    }
}

/// The largest element of the only window, whose elements are joined as those of a row.
///
/// # Safety
/// All elements can be read.
unsafe fn only<T: Element>(
    x: *const T,
    geometry: &Geometry,
    sizes: &[usize],
    strides: &[isize],
) -> T {
    let spatial = geometry.size.len();
    let lead = sizes.len() - spatial;
    let least = T::narrow(<Max as Combine<T::Number>>::NEUTRAL);
    let taps: usize = geometry.size.iter().product();
    let mut row: Vec<T> = reduce::with_capacity(taps);
    for tap in 0..taps {
        let (mut rest, mut offset) = (tap, Some(0));
        for k in (0..spatial).rev() {
            let i = rest % geometry.size[k];
            rest /= geometry.size[k];
            let at = (i * geometry.dilation[k]) as isize - geometry.padding[k] as isize;
            let is_inside = (0..sizes[lead + k] as isize).contains(&at);
            offset = offset.filter(|_| is_inside).map(|sum| sum + at * strides[lead + k]);
        }
        // SAFETY: the element is inside the operand.
        row.push(offset.map_or(least, |offset| unsafe { *x.offset(offset) }));
    }
    // SAFETY: a row of its own.
    unsafe { reduce::largest_of_row(row.as_ptr(), row.len()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::testing::{bytes, layouts, noise, values};

    fn geometry(
        size: &[usize],
        stride: &[usize],
        padding: &[usize],
        dilation: &[usize],
    ) -> Geometry {
        Geometry {
            size: size.iter().copied().collect(),
            stride: stride.iter().copied().collect(),
            padding: padding.iter().copied().collect(),
            dilation: dilation.iter().copied().collect(),
            ceil: false,
        }
    }

    fn pooled(x: &Array, geometry: &Geometry) -> Array {
        let out = Array::uninit(x.dtype, geometry.shape(x.shape()).unwrap()).unwrap();
        // SAFETY: fresh.
        unsafe { max_into(x, geometry, &out).unwrap() };
        out
    }

    /// The largest of each window over the last two axes, by plain loops.
    fn naive(x: &Array, geometry: &Geometry) -> Vec<f64> {
        let (sizes, all) = (x.shape().sizes(), values(x));
        let out = geometry.shape(x.shape()).unwrap().sizes();
        let [planes, rows, columns] = [sizes[0], sizes[1], sizes[2]];
        let mut found = Vec::new();
        for plane in 0..planes {
            for i in 0..out[1] {
                for j in 0..out[2] {
                    let mut best = f64::NEG_INFINITY;
                    for k in 0..geometry.size[0] {
                        for l in 0..geometry.size[1] {
                            let at = |i: usize, k: usize, axis: usize| {
                                (i * geometry.stride[axis] + k * geometry.dilation[axis])
                                    .wrapping_sub(geometry.padding[axis])
                            };
                            let (r, c) = (at(i, k, 0), at(j, l, 1));
                            if r < rows && c < columns {
                                let x = all[(plane * rows + r) * columns + c];
                                let wins = x > best || x.is_nan();
                                best = if best.is_nan() || !wins { best } else { x };
                            }
                        }
                    }
                    found.push(best);
                }
            }
        }
        found
    }

    #[test]
    fn results_are_the_largest_of_their_windows() {
        for width in [3usize, 9, 14, 16, 17, 33, 34, 35, 36, 70, 113] {
            for (size, stride, padding, dilation) in [
                ([3, 3], [2, 2], [1, 1], [1, 1]),
                ([2, 2], [2, 2], [0, 0], [1, 1]),
                ([3, 3], [1, 1], [1, 1], [1, 1]),
                ([2, 3], [1, 2], [1, 0], [2, 1]),
                ([1, 2], [3, 3], [0, 1], [1, 2]),
                ([3, 1], [1, 2], [1, 0], [1, 1]),
                ([3, 2], [2, 9], [1, 1], [1, 1]),
                ([2, 41], [1, 1], [0, 20], [1, 1]),
                ([2, 2], [1, 2], [1, 1], [4, 1]),
            ] {
                let geometry = geometry(&size, &stride, &padding, &dilation);
                for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
                    let x = noise(dtype, &[3, 7, width], width as u64);
                    let want = naive(&x, &geometry);
                    for x in layouts(&x) {
                        assert_eq!(
                            values(&pooled(&x, &geometry)),
                            want,
                            "{dtype} {width} {size:?}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn large_planes_are_cut_into_bands() {
        for (size, stride, padding) in
            [([3, 3], [1, 1], [1, 1]), ([5, 2], [2, 2], [2, 0]), ([9, 1], [7, 1], [4, 0])]
        {
            let geometry = geometry(&size, &stride, &padding, &[1, 1]);
            let x = noise(DType::F32, &[2, 600, 113], 1);
            assert_eq!(values(&pooled(&x, &geometry)), naive(&x, &geometry), "{size:?}");
        }
    }

    #[test]
    fn steps_and_dilations_may_be_longer_than_any_memory() {
        let x = noise(DType::F32, &[2, 3, 5], 1);
        let far = 1 << 40;
        let single = geometry(&[3, 5], &[1 << 62, 2], &[0, 0], &[1, 1]);
        let want = values(&x)[..15].iter().copied().fold(f64::NEG_INFINITY, f64::max);
        assert_eq!(values(&pooled(&x, &single))[0], want);
        let geometry = geometry(&[1, 2], &[far, far], &[0, far / 2], &[1, far]);
        // Both taps are padding.
        assert!(values(&pooled(&x, &geometry)).iter().all(|&x| x == f64::NEG_INFINITY));
    }

    #[test]
    fn nan_wins_and_the_later_of_two_zeros() {
        let x = Array::uninit(DType::F32, Shape::of(&[1, 1, 40])).unwrap();
        // SAFETY: fresh.
        let all = unsafe { std::slice::from_raw_parts_mut(x.ptr_mut().cast::<f32>(), 40) };
        all.fill(-1.0);
        (all[4], all[5], all[20], all[23]) = (0.0, -0.0, f32::NAN, 7.0);
        let y = pooled(&x, &geometry(&[1, 2], &[1, 1], &[0, 0], &[1, 1]));
        let y = values(&y);
        assert!(y[4] == 0.0 && y[4].is_sign_negative() && y[3].is_sign_positive());
        assert!(y[19].is_nan() && y[20].is_nan() && y[21] == -1.0 && y[22] == 7.0);
    }

    #[test]
    fn a_single_large_window_has_the_bits_of_a_reduction() {
        for padding in [0, 2] {
            let x = noise(DType::F32, &[9, 11], 5);
            let geometry = geometry(&[9, 11], &[1, 1], &[0, padding], &[1, 1]);
            let y = pooled(&x, &geometry);
            let want = values(&x).into_iter().fold(f64::NEG_INFINITY, f64::max);
            assert!(values(&y).contains(&want) && bytes(&y).len() == 4 * y.count());
        }
    }
}
