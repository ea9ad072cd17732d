//! Convolutions of any rank, in all three roles, as matrix products of views; by channel, where each
//! result sees one ([`depthwise`]).
//!
//! The windows of a padded operand are a strided view, and the product packs its blocks directly
//! from this view: no matrix of windows is ever written. A transposed convolution with strides is
//! cut into phases (positions that differ by multiples of the stride), each a plain convolution
//! with a subset of the taps ([`transposed`]).
//!
//! Promises: bits depend only on logical shapes, dtype and spec, see [`gemm`]. Half floats are
//! summed in float32 and rounded once.

mod last;
mod padding;
mod transposed;

use std::ops::Range;

pub use last::channels_last;

use smallvec::SmallVec;

use crate::array::Array;
use crate::cpu::contract::{narrow_into, wide_bytes, wide_result, widen, widened};
use crate::cpu::copy;
use crate::cpu::depthwise;
use crate::cpu::direct::{self, Windows};
use crate::cpu::gemm::{self, Axis, Extras, Matrix, with_accumulator};
use crate::cpu::innermost::is_innermost;
use crate::cpu::sweep::{Sweep, chosen, combinations, phases};
use crate::cpu::window::positions;
use crate::dtype::{DType, Scalar};
use crate::error::Result;
use crate::layout::Layout;
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
        match role {
            ConvRole::Output => output(&left, &right, spec, &wide, Extras::default())?,
            ConvRole::Input if is_depthwise(role, &left.layout, &right.layout, spec) => {
                input_by_channel(&left, &right, spec, &wide)?
            }
            ConvRole::Input => transposed::input(&left, &right, spec, &wide)?,
            ConvRole::Weight if is_depthwise(role, &left.layout, &right.layout, spec) => {
                with_accumulator!(dtype, T => depthwise::weight::<T>(&left, &right, spec, &wide)?)
            }
            ConvRole::Weight => weight(&left, &right, spec, &wide)?,
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

/// Evaluates an expression with the [`Edges`](padding::Edges) of windows, if the dtype of the result
/// has NaN and there are edges.
macro_rules! without_padding {
    ($out:expr, $windows:expr, $edges:ident => $body:expr) => {{
        macro_rules! of {
            ($t:ty) => {{
                let $edges = padding::Edges::<$t>::new($windows, $out);
                $body
            }};
        }
        match $out.dtype {
            DType::F64 => of!(f64),
            DType::F32 => of!(f32),
            DType::Bool
            | DType::I8
            | DType::I16
            | DType::I32
            | DType::I64
            | DType::U8
            | DType::U16
            | DType::U32
            | DType::U64
            | DType::F16
            | DType::BF16 => {
                let $edges = None::<padding::Edges<'_, f32>>;
                $body
            }
        }
    }};
}

/// The output of a convolution of a dtype that [`sums_in_place`](super::contract::sums_in_place).
///
/// # Safety
/// As for [`conv_into`] and [`Extras`]; the channels of `out` may be innermost, if [`channels_last`]
/// offers that for these operands.
pub unsafe fn output(
    x: &Array,
    w: &Array,
    spec: &ConvSpec,
    out: &Array,
    extras: Extras<'_>,
) -> Result<()> {
    let by_channel = is_depthwise(ConvRole::Output, &x.layout, &w.layout, spec);
    // SAFETY: as the caller's.
    unsafe {
        let (xs, ws) = (sides(x), sides(w));
        let windows = Windows { packed: extras.packed, ..output_windows(&xs, &ws, spec) };
        without_padding!(out, &windows, edges => {
            // Weights of one channel are few beside results, so these are not looked at if those
            // are finite.
            let edges = edges.filter(|_| !by_channel || !padding::are_finite(w));
            // Edges are mended before an epilogue reads them.
            let done = |item, rows: Range<usize>, places: Range<usize>| {
                edges.iter().for_each(|edges| edges.part(item, rows.clone(), places.clone()));
                extras.epilogue.into_iter().for_each(|then| then(item, rows.clone(), places.clone()));
            };
            let epilogue = match &edges {
                Some(_) => Some(&done as gemm::Epilogue<'_>),
                None => extras.epilogue,
            };
            let extras = Extras { epilogue, ..extras };
            if by_channel {
                return with_accumulator!(out.dtype, T => {
                    depthwise::sums::<T>(&windows, out, epilogue)
                });
            }
            let turned = is_innermost(&out.layout);
            if turned && last::has_one_tap(spec, &w.shape().sizes()) {
                return last::of_positions(x, w, spec, out, extras);
            }
            match from_patches(&windows, out, &extras)? {
                true => Ok(()),
                false if turned => last::of_positions(x, w, spec, out, extras),
                false => product_of_views(x, w, spec, out, extras),
            }
        })
    }
}

/// The input of a convolution whose results see one channel.
///
/// # Safety
/// As for [`conv_into`].
unsafe fn input_by_channel(g: &Array, w: &Array, spec: &ConvSpec, out: &Array) -> Result<()> {
    let (gs, ws) = (sides(g), sides(w));
    let (phases, is_finite) = (phases(&ws, spec), padding::are_finite(w));
    for at in 0..combinations(&phases) {
        let sweeps = chosen(&phases, at);
        let windows = transposed::input_windows(&gs, &ws, spec.groups, sweeps, out.dtype.size());
        // SAFETY: the caller holds `out`, each of whose elements belongs to one phase.
        unsafe {
            with_accumulator!(out.dtype, T => depthwise::sums::<T>(&windows, out, None)?);
            if !is_finite {
                mend(&windows, out);
            }
        }
    }
    Ok(())
}

/// Takes padding out of the sums of windows.
///
/// # Safety
/// They are computed, and nobody else reads or writes them.
unsafe fn mend(windows: &Windows<'_>, out: &Array) {
    // SAFETY: by contract.
    unsafe {
        without_padding!(out, windows, edges => edges.iter().for_each(|edges| edges.mend()));
    }
}

/// [`direct::sums`] in the dtype of the result.
///
/// # Safety
/// As for [`direct::sums`].
unsafe fn from_patches(windows: &Windows<'_>, out: &Array, extras: &Extras<'_>) -> Result<bool> {
    // SAFETY: as the caller's.
    unsafe { with_accumulator!(out.dtype, T => direct::sums::<T>(windows, out, extras)) }
}

/// What an output sums.
fn output_windows<'a>(xs: &'a Sides, ws: &Sides, spec: &ConvSpec) -> Windows<'a> {
    let (rows, channels) = (ws.sizes[0] / spec.groups, ws.sizes[1]);
    let sweep = |i: usize| {
        let (taps, n) = (ws.spatial[i].0, xs.spatial[i].0 + spec.pad_low[i] + spec.pad_high[i]);
        Sweep::output(i, positions(n, taps, spec.stride[i], spec.dilation[i]), taps, spec)
    };
    Windows {
        x: xs,
        weights: ws.ptr,
        steps: [rows as isize * ws.strides[0], ws.strides[0]],
        depth: Axis::new([(channels, ws.strides[1])].into_iter().chain(ws.spatial.iter().copied())),
        groups: spec.groups,
        channels,
        rows,
        sweeps: (0..xs.spatial.len()).map(sweep).collect(),
        packed: None,
    }
}

/// The weights of an output as the columns of a product, one matrix for each group.
pub fn columns(w: &Array, spec: &ConvSpec) -> Matrix {
    let ws = sides(w);
    output_windows(&Sides { spatial: SmallVec::new(), ..sides(w) }, &ws, spec).matrix()
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
    unsafe {
        let extras = Extras { packed: None, ..extras };
        gemm::product(out.dtype, &rows, &columns, out.ptr_mut(), extras)
    }
}

/// The places of an output along each spatial axis, where the input is padded.
fn places(xs: &Sides, ws: &Sides, spec: &ConvSpec) -> PerAxis {
    let along =
        |i: usize| positions(xs.spatial[i].0, ws.spatial[i].0, spec.stride[i], spec.dilation[i]);
    (0..ws.spatial.len()).map(along).collect()
}

fn output_operands(xs: &Sides, ws: &Sides, spec: &ConvSpec) -> (Matrix, Matrix) {
    let (n, o, c) = (xs.sizes[0], ws.sizes[0] / spec.groups, ws.sizes[1]);
    let taps: PerAxis = ws.spatial.iter().map(|s| s.0).collect();
    let places = places(xs, ws, spec);
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
    // SAFETY: as the caller's.
    unsafe {
        weight_with_padding(x, g, spec, out)?;
        match out.dtype {
            DType::F64 => padding::weight::<f64>(&sides(x), &sides(g), spec, out),
            DType::F32 => padding::weight::<f32>(&sides(x), &sides(g), spec, out),
            DType::Bool
            | DType::I8
            | DType::I16
            | DType::I32
            | DType::I64
            | DType::U8
            | DType::U16
            | DType::U32
            | DType::U64
            | DType::F16
            | DType::BF16 => {}
        }
    }
    Ok(())
}

/// # Safety
/// As for [`conv_into`].
unsafe fn weight_with_padding(x: &Array, g: &Array, spec: &ConvSpec, out: &Array) -> Result<()> {
    let x = pad(x, &spec.pad_low, &spec.pad_high)?;
    let (rows, columns) = weight_operands(&sides(&x), &sides(g), spec);
    let Some(turned) = turned(&rows, &columns) else {
        // SAFETY: as the caller's.
        return unsafe { multiply(&rows, &columns, out) };
    };
    let part = Array::uninit(out.dtype, turned)?;
    // SAFETY: the part is fresh; the caller holds `out`.
    unsafe {
        multiply(&columns, &rows, &part)?;
        let layout = part.layout.permuted(&Axes::from_slice(&[0, 2, 1]));
        let dense = Layout::contiguous(layout.shape().clone());
        let dense = Layout::strided(dense.shape().clone(), &dense.strides(), out.layout.offset());
        copy::copy_into(&out.view(dense), &part.view(layout));
    }
    Ok(())
}

/// The shape of the transposed product of a weight, where that is computed instead: where windows
/// are not contiguous along the sum, so that they could not be transposed in registers to become
/// columns, but are copied to become rows; and where the sum is long enough to pay for transposing
/// the result.
fn turned(rows: &Matrix, columns: &Matrix) -> Option<Shape> {
    let (m, n, depth) = (rows.own.len(), columns.own.len(), &columns.depth);
    let pays = depth.inner().1 != 1 && depth.len() >= 4 * m;
    pays.then(|| Shape::of(&[rows.batch.len(), n, m]))
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

/// The scratch bytes of [`conv_into`], as the memory counters count them.
pub fn scratch(
    role: ConvRole,
    dtype: DType,
    a: &Layout,
    b: &Layout,
    spec: &ConvSpec,
    result: &Layout,
) -> usize {
    let to = gemm::accumulator(dtype);
    let lies_last = is_innermost(result);
    let result = result.shape().count();
    let ((a, a_bytes), (b, b_bytes)) = (widened(dtype, a, to), widened(dtype, b, to));
    let fixed = a_bytes + b_bytes + wide_bytes(dtype, to, result);
    let at = |x: &Layout| sides_at(std::ptr::null(), x);
    let (left, right) = (at(&a), at(&b));
    if is_depthwise(role, &a, &b, spec) {
        let of = |windows: &Windows<'_>| with_accumulator!(to, T => depthwise::scratch::<T>(windows, lies_last));
        return fixed
            + match role {
                ConvRole::Output => of(&output_windows(&left, &right, spec)),
                ConvRole::Input => {
                    let phases = phases(&right, spec);
                    let windows = |at| {
                        let (sweeps, groups) = (chosen(&phases, at), spec.groups);
                        transposed::input_windows(&left, &right, groups, sweeps, to.size())
                    };
                    (0..combinations(&phases)).map(|at| of(&windows(at))).max().unwrap_or(0)
                }
                ConvRole::Weight => depthwise::weight_scratch(to, &[&a, &b]),
            };
    }
    let padded = |low: &[usize], high: &[usize]| padded(&a, to.size(), low, high);
    fixed
        + match role {
            ConvRole::Output => {
                let of_positions = lies_last && last::has_one_tap(spec, &b.shape().sizes());
                let windows = output_windows(&left, &right, spec);
                let patches = patches(to, &windows, lies_last).filter(|_| !of_positions);
                patches.unwrap_or_else(|| {
                    let (x, bytes) = padded(&spec.pad_low, &spec.pad_high);
                    let (rows, columns) = match lies_last {
                        true => last::operands(&at(&x), &right, spec),
                        false => output_operands(&at(&x), &right, spec),
                    };
                    bytes + gemm::scratch(to, &rows, &columns)
                })
            }
            ConvRole::Weight => {
                let (x, bytes) = padded(&spec.pad_low, &spec.pad_high);
                let (rows, columns) = weight_operands(&at(&x), &right, spec);
                bytes
                    + match turned(&rows, &columns) {
                        None => gemm::scratch(to, &rows, &columns),
                        Some(shape) => {
                            let part = block_bytes(shape.count() * to.size());
                            part + gemm::scratch(to, &columns, &rows)
                        }
                    }
            }
            ConvRole::Input => transposed::scratch(to, &a, &b, spec),
        }
}

/// The layout of an operand with elements of `size` bytes, padded, and the bytes that it takes.
fn padded(x: &Layout, size: usize, low: &[usize], high: &[usize]) -> (Layout, usize) {
    if low.iter().chain(high).all(|&n| n == 0) {
        return (x.clone(), 0);
    }
    let around = [0, 0].into_iter().chain(low.iter().zip(high).map(|(l, h)| l + h));
    let shape: Shape =
        x.shape().sizes().into_iter().zip(around).map(|(n, m)| (n + m).into()).collect();
    let bytes = block_bytes(shape.count() * size);
    (Layout::contiguous(shape), bytes)
}

/// The scratch of [`direct::sums`] in a dtype, if it computes them.
fn patches(dtype: DType, windows: &Windows<'_>, is_innermost: bool) -> Option<usize> {
    with_accumulator!(dtype, T => direct::scratch::<T>(windows, is_innermost))
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
