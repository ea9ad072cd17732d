//! Convolutions of any rank, in all three roles, as matrix products of views; by channel, where each
//! result sees one ([`depthwise`]).
//!
//! The windows of a padded operand are a strided view, and the product packs its blocks directly
//! from this view: no matrix of windows is ever written. A transposed convolution with strides is
//! cut into phases (positions that differ by multiples of the stride), each a plain convolution
//! with a subset of the taps.
//!
//! Promises: bits depend only on logical shapes, dtype and spec, see [`gemm`]. Half floats are
//! summed in float32 and rounded once.

use smallvec::SmallVec;

use crate::array::Array;
use crate::cpu::contract::{narrow_into, wide_bytes, wide_result, widen, widened};
use crate::cpu::copy;
use crate::cpu::depthwise;
use crate::cpu::direct;
use crate::cpu::gemm::{self, Axis, Extras, Matrix, with_accumulator};
use crate::cpu::window::positions;
use crate::dtype::{DType, Scalar};
use crate::error::Result;
use crate::layout::{Layout, Strides};
use crate::memory::block_bytes;
use crate::ops::attributes::{ConvRole, ConvSpec, PerAxis};
use crate::shape::{Axes, Shape};

/// Computes the tensor of a role from the other two: `(x, w) → g`, `(g, w) → x` or `(x, g) → w`,
/// all of one dtype.
///
/// # Safety
/// `out` is in C order, of the result's type, and nobody else reads or writes it.
pub unsafe fn conv_into(
    role: ConvRole,
    a: &Array,
    b: &Array,
    spec: &ConvSpec,
    out: &Array,
) -> Result<()> {
    let dtype = gemm::accumulator(a.dtype);
    let (left, right) = (widen(a, dtype)?, widen(b, dtype)?);
    let wide = wide_result(out, dtype)?;
    // SAFETY: the caller holds `out`; what is apart is fresh.
    unsafe {
        if is_depthwise(role, &left.layout, &right.layout, spec) {
            with_accumulator!(dtype, T => match role {
                ConvRole::Output => depthwise::output::<T>(&left, &right, spec, &wide)?,
                ConvRole::Input => {
                    let phases = phases(&sides(&right), spec);
                    depthwise::input::<T>(&left, &right, spec, &phases, &wide)?
                }
                ConvRole::Weight => depthwise::weight::<T>(&left, &right, spec, &wide)?,
            });
        } else {
            match role {
                ConvRole::Output => output(&left, &right, spec, &wide, Extras::default())?,
                ConvRole::Input => input(&left, &right, spec, &wide)?,
                ConvRole::Weight => weight(&left, &right, spec, &wide)?,
            }
        }
        narrow_into(&wide, out);
    }
    Ok(())
}

/// Whether [`depthwise`] computes a role from operands of these layouts.
fn is_depthwise(role: ConvRole, a: &Layout, b: &Layout, spec: &ConvSpec) -> bool {
    let (a, b) = (a.shape().sizes(), b.shape().sizes());
    let w = match role {
        ConvRole::Output | ConvRole::Input => b,
        ConvRole::Weight => {
            let kernel = spec.kernel.iter().map(|n| n.value());
            [b[1], a[1] / spec.groups].into_iter().chain(kernel).collect()
        }
    };
    depthwise::takes(role, &w, spec)
}

/// An array's sizes and strides: the first two axes, and the spatial ones.
pub(super) struct Sides {
    pub ptr: *const u8,
    pub sizes: [usize; 2],
    pub strides: [isize; 2],
    pub spatial: SmallVec<[(usize, isize); 3]>,
}

// SAFETY: operands are only read.
unsafe impl Sync for Sides {}

pub(super) fn sides(x: &Array) -> Sides {
    sides_at(x.ptr(), &x.layout)
}

pub(super) fn sides_at(ptr: *const u8, x: &Layout) -> Sides {
    let (sizes, strides) = (x.shape().sizes(), x.strides());
    Sides {
        ptr,
        sizes: [sizes[0], sizes[1]],
        strides: [strides[0], strides[1]],
        spatial: sizes[2..].iter().copied().zip(strides[2..].iter().copied()).collect(),
    }
}

/// The spatial axes as `(size, stride)`, with each stride multiplied by its entry of `by`.
fn steps<'a>(
    sizes: impl Iterator<Item = usize> + 'a,
    x: &'a Sides,
    by: &'a [usize],
) -> impl Iterator<Item = (usize, isize)> + 'a {
    sizes.zip(&x.spatial).zip(by).map(|((n, s), &by)| (n, s.1 * by as isize))
}

/// The output of a convolution of a dtype that [`sums_in_place`](super::contract::sums_in_place).
///
/// # Safety
/// As for [`conv_into`] and [`Extras`].
pub unsafe fn output(
    x: &Array,
    w: &Array,
    spec: &ConvSpec,
    out: &Array,
    extras: Extras<'_>,
) -> Result<()> {
    // SAFETY: as the caller's.
    let is_done = unsafe {
        with_accumulator!(out.dtype, T => {
            direct::output::<T>(&sides(x), &sides(w), spec, out, &extras)?
        })
    };
    if is_done {
        return Ok(());
    }
    // SAFETY: as the caller's.
    unsafe { product_of_views(x, w, spec, out, extras) }
}

/// The output as a product of views of the padded input.
///
/// # Safety
/// As for [`output`].
unsafe fn product_of_views(
    x: &Array,
    w: &Array,
    spec: &ConvSpec,
    out: &Array,
    extras: Extras<'_>,
) -> Result<()> {
    let x = pad(x, &spec.pad_low, &spec.pad_high)?;
    let (rows, columns) = output_operands(&sides(&x), &sides(w), spec);
    // SAFETY: as the caller's.
    unsafe { gemm::product(out.dtype, &rows, &columns, out.ptr_mut(), extras) }
}

fn output_operands(xs: &Sides, ws: &Sides, spec: &ConvSpec) -> (Matrix, Matrix) {
    let (n, o, c) = (xs.sizes[0], ws.sizes[0] / spec.groups, ws.sizes[1]);
    let taps: PerAxis = ws.spatial.iter().map(|s| s.0).collect();
    let places: PerAxis = (0..taps.len())
        .map(|i| positions(xs.spatial[i].0, taps[i], spec.stride[i], spec.dilation[i]))
        .collect();
    let rows = Matrix {
        ptr: ws.ptr,
        batch: Axis::new([(n, 0), (spec.groups, o as isize * ws.strides[0])]),
        own: Axis::new([(o, ws.strides[0])]),
        depth: Axis::new([(c, ws.strides[1])].into_iter().chain(ws.spatial.iter().copied())),
        made: None,
    };
    let columns = Matrix {
        ptr: xs.ptr,
        batch: Axis::new([(n, xs.strides[0]), (spec.groups, c as isize * xs.strides[1])]),
        own: Axis::new(steps(places.iter().copied(), xs, &spec.stride)),
        depth: Axis::new([(c, xs.strides[1])].into_iter().chain(steps(
            taps.into_iter(),
            xs,
            &spec.dilation,
        ))),
        made: None,
    };
    (rows, columns)
}

unsafe fn weight(x: &Array, g: &Array, spec: &ConvSpec, out: &Array) -> Result<()> {
    let x = pad(x, &spec.pad_low, &spec.pad_high)?;
    let (rows, columns) = weight_operands(&sides(&x), &sides(g), spec);
    // SAFETY: as the caller's.
    unsafe { multiply(&rows, &columns, out) }
}

fn weight_operands(xs: &Sides, gs: &Sides, spec: &ConvSpec) -> (Matrix, Matrix) {
    let (o, c) = (gs.sizes[1] / spec.groups, xs.sizes[1] / spec.groups);
    let rows = Matrix {
        ptr: gs.ptr,
        batch: Axis::new([(spec.groups, o as isize * gs.strides[1])]),
        own: Axis::new([(o, gs.strides[1])]),
        depth: Axis::new(
            [(gs.sizes[0], gs.strides[0])].into_iter().chain(gs.spatial.iter().copied()),
        ),
        made: None,
    };
    let places = gs.spatial.iter().map(|s| s.0);
    let taps = spec.kernel.iter().map(|n| n.value());
    let columns = Matrix {
        ptr: xs.ptr,
        batch: Axis::new([(spec.groups, c as isize * xs.strides[1])]),
        own: Axis::new([(c, xs.strides[1])].into_iter().chain(steps(taps, xs, &spec.dilation))),
        depth: Axis::new([(gs.sizes[0], xs.strides[0])].into_iter().chain(steps(
            places,
            xs,
            &spec.stride,
        ))),
        made: None,
    };
    (rows, columns)
}

/// The positions `phase + stride · q` of the input along one axis. Tap `first + step · t`
/// contributes position `base − down · t + q` of `g` to them.
#[derive(Clone, Copy)]
pub(super) struct Phase {
    /// Count of `q`
    pub count: usize,
    /// Count of `t`
    pub taps: usize,
    pub first: usize,
    pub step: usize,
    pub base: isize,
    pub down: isize,
}

fn phase(r: usize, i: usize, taps: usize, spec: &ConvSpec) -> Phase {
    let (stride, dilation) = (spec.stride[i], spec.dilation[i]);
    let at = (r + spec.pad_low[i]) as isize;
    let reach = |k: usize| at - (k * dilation) as isize;
    let hits = |k: &usize| reach(*k).rem_euclid(stride as isize) == 0;
    let step = stride / gcd(stride, dilation);
    let first = (0..taps.min(step)).find(hits).unwrap_or(taps);
    Phase {
        count: spec.input[i].value().saturating_sub(r).div_ceil(stride),
        taps: (taps - first).div_ceil(step),
        first: if first < taps { first } else { 0 },
        step,
        base: reach(first).div_euclid(stride as isize),
        down: (step * dilation / stride) as isize,
    }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

unsafe fn input(g: &Array, w: &Array, spec: &ConvSpec, out: &Array) -> Result<()> {
    let ws = sides(w);
    let phases = phases(&ws, spec);
    if combinations(&phases) == 0 {
        return Ok(());
    }
    let (low, high) = border(&phases, &g.shape().sizes());
    let g = pad(g, &low, &high)?;
    let cx = Transposed { g: sides(&g), w: ws, size: g.dtype.size() as isize, low, spec };
    if spec.stride.iter().all(|&s| s == 1) {
        let (rows, columns) = cx.operands(&chosen(&phases, 0));
        // SAFETY: as the caller's.
        return unsafe { multiply(&rows, &columns, out) };
    }
    let strides = out.layout.strides();
    for at in 0..combinations(&phases) {
        let (mut rest, mut offset) = (at, 0);
        let mut to: Strides = strides.clone();
        for i in (0..spec.stride.len()).rev() {
            offset += rest % phases[i].len() * strides[2 + i] as usize;
            rest /= phases[i].len();
            to[2 + i] *= spec.stride[i] as isize;
        }
        let chosen = chosen(&phases, at);
        let (rows, columns) = cx.operands(&chosen);
        let part = Array::uninit(out.dtype, cx.shape(&chosen))?;
        // SAFETY: the part is fresh; the caller holds `out`, each of whose elements belongs to one
        // phase.
        unsafe {
            multiply(&rows, &columns, &part)?;
            let offset = out.layout.offset() + offset;
            let to = out.view(Layout::strided(part.shape().clone(), &to, offset));
            copy::copy_into(&to, &part);
        }
    }
    Ok(())
}

/// The phases of each axis that have positions: at most as many as the axis has elements.
fn phases(ws: &Sides, spec: &ConvSpec) -> Vec<Vec<Phase>> {
    let count = |i: usize| spec.stride[i].min(spec.input[i].value());
    (0..spec.input.len())
        .map(|i| (0..count(i)).map(|r| phase(r, i, ws.spatial[i].0, spec)).collect())
        .collect()
}

/// The number of combinations of one phase per axis.
fn combinations(phases: &[Vec<Phase>]) -> usize {
    phases.iter().map(Vec::len).product()
}

/// The combination number `at`: one phase per axis.
fn chosen(phases: &[Vec<Phase>], at: usize) -> SmallVec<[Phase; 3]> {
    let mut rest = at;
    let mut chosen: SmallVec<[Phase; 3]> = SmallVec::new();
    for i in (0..phases.len()).rev() {
        chosen.insert(0, phases[i][rest % phases[i].len()]);
        rest /= phases[i].len();
    }
    chosen
}

/// The padding of `g` so that every position that a phase reads exists.
fn border(phases: &[Vec<Phase>], g: &[usize]) -> (PerAxis, PerAxis) {
    let (mut low, mut high) = (PerAxis::new(), PerAxis::new());
    for (i, phases) in phases.iter().enumerate() {
        let used = || phases.iter().filter(|p| p.taps > 0 && p.count > 0);
        let first = used().map(|p| p.base - p.down * (p.taps as isize - 1)).min().unwrap_or(0);
        let end = used().map(|p| p.base + p.count as isize).max().unwrap_or(0);
        low.push((-first).max(0) as usize);
        high.push((end - g[2 + i] as isize).max(0) as usize);
    }
    (low, high)
}

/// The data that the phases of a transposed convolution share.
struct Transposed<'a> {
    g: Sides,
    w: Sides,
    /// Bytes of an element
    size: isize,
    low: PerAxis,
    spec: &'a ConvSpec,
}

impl Transposed<'_> {
    /// The shape of the result of a combination of phases.
    fn shape(&self, phases: &[Phase]) -> Shape {
        let all = [self.g.sizes[0], self.w.sizes[1] * self.spec.groups].into_iter();
        all.chain(phases.iter().map(|p| p.count)).map(Into::into).collect()
    }

    /// The operands of the product that computes a combination of phases.
    fn operands(&self, phases: &[Phase]) -> (Matrix, Matrix) {
        let (gs, ws, groups) = (&self.g, &self.w, self.spec.groups);
        let (n, c, o) = (gs.sizes[0], ws.sizes[1], ws.sizes[0] / groups);
        let (mut from, mut tap) = (0, 0);
        for (i, p) in phases.iter().enumerate() {
            from += (p.base + self.low[i] as isize) * gs.spatial[i].1;
            tap += p.first as isize * ws.spatial[i].1;
        }
        let axes =
            |x: &Sides, f: &dyn Fn(&Phase) -> (usize, isize)| -> SmallVec<[(usize, isize); 3]> {
                phases.iter().zip(&x.spatial).map(|(p, s)| (f(p).0, f(p).1 * s.1)).collect()
            };
        let rows = Matrix {
            ptr: ws.ptr.wrapping_offset(tap * self.size),
            batch: Axis::new([(n, 0), (groups, o as isize * ws.strides[0])]),
            own: Axis::new([(c, ws.strides[1])]),
            depth: Axis::new(
                [(o, ws.strides[0])].into_iter().chain(axes(ws, &|p| (p.taps, p.step as isize))),
            ),
            made: None,
        };
        let columns = Matrix {
            ptr: gs.ptr.wrapping_offset(from * self.size),
            batch: Axis::new([(n, gs.strides[0]), (groups, o as isize * gs.strides[1])]),
            own: Axis::new(axes(gs, &|p| (p.count, 1))),
            depth: Axis::new(
                [(o, gs.strides[1])].into_iter().chain(axes(gs, &|p| (p.taps, -p.down))),
            ),
            made: None,
        };
        (rows, columns)
    }
}

/// The scratch bytes of [`conv_into`], as the memory counters count them.
pub fn scratch(
    role: ConvRole,
    dtype: DType,
    a: &Layout,
    b: &Layout,
    spec: &ConvSpec,
    result: usize,
) -> usize {
    let to = gemm::accumulator(dtype);
    let ((a, a_bytes), (b, b_bytes)) = (widened(dtype, a, to), widened(dtype, b, to));
    let fixed = a_bytes + b_bytes + wide_bytes(dtype, to, result);
    if is_depthwise(role, &a, &b, spec) {
        let read: &[&Layout] = if role == ConvRole::Weight { &[&a, &b] } else { &[&a] };
        return fixed + depthwise::scratch(to, read);
    }
    if role == ConvRole::Output {
        let direct = with_accumulator!(to, T => direct::scratch::<T>(&a, &b, spec));
        if let Some(bytes) = direct {
            return fixed + bytes;
        }
    }
    let at = |x: &Layout| sides_at(std::ptr::null(), x);
    let padded = |low: &[usize], high: &[usize]| match low.iter().chain(high).all(|&n| n == 0) {
        true => (a.clone(), 0),
        false => {
            let around = [0, 0].into_iter().chain(low.iter().zip(high).map(|(l, h)| l + h));
            let shape: Shape =
                a.shape().sizes().into_iter().zip(around).map(|(n, m)| (n + m).into()).collect();
            let bytes = block_bytes(shape.count() * to.size());
            (Layout::contiguous(shape), bytes)
        }
    };
    let inner = match role {
        ConvRole::Output | ConvRole::Weight => {
            let (x, bytes) = padded(&spec.pad_low, &spec.pad_high);
            let (rows, columns) = match role {
                ConvRole::Output => output_operands(&at(&x), &at(&b), spec),
                ConvRole::Weight | ConvRole::Input => weight_operands(&at(&x), &at(&b), spec),
            };
            bytes + gemm::scratch(to, &rows, &columns)
        }
        ConvRole::Input => {
            let phases = phases(&at(&b), spec);
            let (low, high) = border(&phases, &a.shape().sizes());
            let (g, bytes) = padded(&low, &high);
            let size = to.size() as isize;
            let cx = Transposed { g: at(&g), w: at(&b), size, low, spec };
            let whole = spec.stride.iter().all(|&s| s == 1);
            let one = |at: usize| {
                let chosen = chosen(&phases, at);
                let (rows, columns) = cx.operands(&chosen);
                let part = block_bytes(cx.shape(&chosen).count() * to.size());
                gemm::scratch(to, &rows, &columns) + if whole { 0 } else { part }
            };
            let all = 0..combinations(&phases);
            bytes + all.map(one).max().unwrap_or(0)
        }
    };
    fixed + inner
}

unsafe fn multiply(rows: &Matrix, columns: &Matrix, out: &Array) -> Result<()> {
    // SAFETY: the axes are those of the arrays; `out` is the caller's and as large as the result.
    unsafe { gemm::product(out.dtype, rows, columns, out.ptr_mut(), Extras::default()) }
}

/// `x` with zero padding around its spatial axes.
fn pad(x: &Array, low: &[usize], high: &[usize]) -> Result<Array> {
    if low.iter().chain(high).all(|&n| n == 0) {
        return Ok(x.clone());
    }
    let all = |n: &[usize]| -> Axes { [0, 0].iter().chain(n).copied().collect() };
    copy::pad(x, &all(low), &all(high), Scalar::Int(0))
}

#[cfg(test)]
mod tests;
