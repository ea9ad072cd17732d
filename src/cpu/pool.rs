//! The largest element of each window over the last axes, without a padded copy of the operand.
//!
//! Promises: exactly the bits of the body, `nn.max_pool1d` to `nn.max_pool3d`: a window's elements
//! are joined in C order, as [`reduce`](super::reduce) joins columns, and what is padded changes
//! nothing, since nothing is below −∞. A single window of many elements is joined in lanes there,
//! and here.

use smallvec::SmallVec;

use crate::array::Array;
use crate::cpu::element::{BF16, Element, F16, Shared};
use crate::cpu::reduce::{self, Combine, Max};
use crate::cpu::window::positions;
use crate::dtype::DType;
use crate::error::{self, Result};
use crate::multiversion;
use crate::ops::attributes::PerAxis;
use crate::shape::Shape;
use crate::simd::{Isa, isa};
use crate::threads;

/// Elements read that are worth handing to another thread.
const CHUNK: usize = 1 << 16;
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

/// The innermost axis: how results follow from a row of the operand.
#[derive(Clone, Copy)]
struct Line {
    /// Elements of a row, and from one to the next in memory
    n: usize,
    step: isize,
    /// Results of a row
    count: usize,
    size: usize,
    stride: usize,
    padding: usize,
    dilation: usize,
}

impl Line {
    /// The results whose windows lie inside the row.
    fn inside(&self) -> std::ops::Range<usize> {
        let reach = (self.size - 1) * self.dilation + 1;
        let first = self.padding.div_ceil(self.stride).min(self.count);
        let end = match (self.n + self.padding).checked_sub(reach) {
            Some(last) => (last / self.stride + 1).min(self.count),
            None => first,
        };
        first..end.max(first)
    }
}

unsafe fn run<T: Element>(x: &Array, geometry: &Geometry, out: &Array) {
    let (sizes, strides) = (x.shape().sizes(), x.layout.strides());
    let (results, spatial) = (out.shape().sizes(), geometry.size.len());
    let (lead, last) = (sizes.len() - spatial, spatial - 1);
    let line = Line {
        n: sizes[lead + last],
        step: strides[lead + last],
        count: results[lead + last],
        size: geometry.size[last],
        stride: geometry.stride[last],
        padding: geometry.padding[last],
        dilation: geometry.dilation[last],
    };
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
    // Of every other element the compiler makes slower code in the widest registers.
    let kernel = largest::at::<T>(isa().min(Isa::V3));
    let rows = total / line.count;
    // Where a row of results is: indices along all axes but the last.
    let outer = &results[..results.len() - 1];
    threads::for_each_chunk(rows, (CHUNK / (line.count * taps)).max(1), |range| {
        let mut places: Vec<*const T> = Vec::with_capacity(taps / line.size);
        let mut index: SmallVec<[usize; 6]> = SmallVec::from_elem(0, outer.len());
        let mut rest = range.start;
        for (i, size) in index.iter_mut().zip(outer).rev() {
            (*i, rest) = (rest % size, rest / size);
        }
        for row in range {
            let base = (0..lead).map(|axis| index[axis] as isize * strides[axis]).sum();
            let mut starts: SmallVec<[isize; 3]> = SmallVec::new();
            for (k, &i) in index[lead..].iter().enumerate() {
                starts.push((i * geometry.stride[k]) as isize - geometry.padding[k] as isize);
            }
            for (i, &size) in index.iter_mut().zip(outer).rev() {
                *i += 1;
                if *i < size {
                    break;
                }
                *i = 0;
            }
            places.clear();
            tapped(geometry, &sizes[lead..], &strides[lead..], &starts, base, &mut |offset| {
                places.push(from.at(offset).cast_const());
            });
            // SAFETY: rows of the operand; the results are this row's.
            unsafe { kernel(&places, line, to.at((row * line.count) as isize)) };
        }
    });
}

/// Calls `visit` for the rows inside the operand that a window which starts here reaches, in order.
fn tapped(
    geometry: &Geometry,
    sizes: &[usize],
    strides: &[isize],
    starts: &[isize],
    base: isize,
    visit: &mut impl FnMut(isize),
) {
    let Some((&start, starts)) = starts.split_first() else { return visit(base) };
    let axis = geometry.size.len() - starts.len() - 2;
    for tap in 0..geometry.size[axis] {
        let at = start + (tap * geometry.dilation[axis]) as isize;
        if (0..sizes[axis] as isize).contains(&at) {
            tapped(geometry, sizes, strides, starts, base + at * strides[axis], visit);
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

multiversion! {
    /// A row of results, each the largest of what its window has in these rows of the operand.
    ///
    /// # Safety
    /// Each row has `line.n` elements, and there is room for `line.count` results.
    #[expect(dead_code, reason = "the version is asked for once, not at each call")]
    unsafe fn largest[T](rows: &[*const T], line: Line, out: *mut T)
    where [T: Element] {
        let Line { stride, padding, dilation, size, .. } = line;
        let inside = line.inside();
        let is_wide = line.step == 1 && inside.len() > W && (stride == 1 || stride == 2);
        let (first, end) = match is_wide {
            true => (inside.start, inside.end),
            false => (0, 0),
        };
        // SAFETY: windows inside a row are read there, others element by element.
        unsafe {
            for i in (0..first).chain(end..line.count) {
                *out.add(i) = one::<T>(rows, line, i);
            }
            let mut at = first;
            while at < end {
                // The last results once more, rather than a few by themselves.
                let is_last = at + W >= end;
                let i = if is_last { end - W } else { at };
                // Every other element is one of a pair; of the last ones the second, so that nothing
                // behind the row is read.
                let skip = usize::from(stride == 2 && is_last && i * stride > padding);
                if stride == 2 && is_last && skip == 0 {
                    for i in at..end {
                        *out.add(i) = one::<T>(rows, line, i);
                    }
                    return;
                }
                let start = i * stride - padding - skip;
                let mut lanes = [<Max as Combine<T::Number>>::NEUTRAL; W];
                for &row in rows {
                    for tap in 0..size {
                        let x = row.add(start + tap * dilation);
                        match (stride, skip) {
                            (1, _) => join(&mut lanes, &x.cast::<[T; W]>().read_unaligned()),
                            (_, 0) => join(&mut lanes, &every_other::<T, 0>(x)),
                            _ => join(&mut lanes, &every_other::<T, 1>(x)),
                        }
                    }
                }
                for (k, &lane) in lanes.iter().enumerate() {
                    *out.add(i + k) = T::narrow(lane);
                }
                at += W;
            }
        }
    }
}

#[inline(always)]
fn join<T: Element>(lanes: &mut [T::Number; W], x: &[T; W]) {
    for i in 0..W {
        lanes[i] = Max::join(lanes[i], x[i].widen());
    }
}

/// One of each of `W` pairs.
///
/// # Safety
/// The pairs can be read.
#[inline(always)]
unsafe fn every_other<T: Element, const K: usize>(x: *const T) -> [T; W] {
    // SAFETY: by contract.
    let pairs = unsafe { x.cast::<[[T; 2]; W]>().read_unaligned() };
    std::array::from_fn(|i| pairs[i][K])
}

/// One result.
///
/// # Safety
/// Each row has `line.n` elements.
#[inline(always)]
unsafe fn one<T: Element>(rows: &[*const T], line: Line, i: usize) -> T {
    let mut best = <Max as Combine<T::Number>>::NEUTRAL;
    for &row in rows {
        for tap in 0..line.size {
            let at = (i * line.stride + tap * line.dilation).wrapping_sub(line.padding);
            if at < line.n {
                // SAFETY: inside the row.
                best = Max::join(best, unsafe { *row.offset(at as isize * line.step) }.widen());
            }
        }
    }
    T::narrow(best)
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
        for width in [3usize, 9, 17, 33, 34, 35, 36, 70, 113] {
            for (size, stride, padding, dilation) in [
                ([3, 3], [2, 2], [1, 1], [1, 1]),
                ([2, 2], [2, 2], [0, 0], [1, 1]),
                ([3, 3], [1, 1], [1, 1], [1, 1]),
                ([2, 3], [1, 2], [1, 0], [2, 1]),
                ([1, 2], [3, 3], [0, 1], [1, 2]),
                ([3, 1], [1, 2], [1, 0], [1, 1]),
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
