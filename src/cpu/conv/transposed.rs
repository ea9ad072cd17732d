//! Inputs of convolutions, from their outputs.
//!
//! A transposed convolution with strides is cut into phases (positions that differ by multiples of
//! the stride), each a plain convolution with a subset of the taps.

use smallvec::SmallVec;

use super::{Sides, from_patches, mend, multiply, pad, padded, patches, sides, sides_at};
use crate::array::Array;
use crate::cpu::copy;
use crate::cpu::direct::Windows;
use crate::cpu::gemm::{self, Axis, Extras, Matrix};
use crate::cpu::sweep::{Sweep, chosen, combinations, phases};
use crate::dtype::DType;
use crate::error::Result;
use crate::layout::{Layout, Strides};
use crate::memory::block_bytes;
use crate::ops::attributes::{ConvSpec, PerAxis};
use crate::shape::Shape;

/// What a combination of phases of an input sums. Elements have `size` bytes.
pub fn input_windows<'a>(
    gs: &'a Sides,
    ws: &Sides,
    groups: usize,
    sweeps: SmallVec<[Sweep; 3]>,
    size: usize,
) -> Windows<'a> {
    let (channels, rows) = (ws.sizes[0] / groups, ws.sizes[1]);
    let both = || sweeps.iter().zip(&ws.spatial);
    let first: isize = both().map(|(sweep, w)| sweep.first as isize * w.1).sum();
    let taps = both().map(|(sweep, w)| (sweep.taps, sweep.skip as isize * w.1));
    Windows {
        x: gs,
        weights: ws.ptr.wrapping_offset(first * size as isize),
        steps: [channels as isize * ws.strides[0], ws.strides[1]],
        depth: Axis::new([(channels, ws.strides[0])].into_iter().chain(taps)),
        groups,
        channels,
        rows,
        sweeps,
        packed: None,
    }
}

/// The input of a convolution: a convolution of `g` for each combination of phases.
///
/// # Safety
/// As for [`conv_into`](super::conv_into).
pub unsafe fn input(g: &Array, w: &Array, spec: &ConvSpec, out: &Array) -> Result<()> {
    let (gs, ws, size) = (sides(g), sides(w), out.dtype.size());
    let phases = phases(&ws, spec);
    let mut views = None;
    for at in 0..combinations(&phases) {
        let sweeps = chosen(&phases, at);
        let windows = input_windows(&gs, &ws, spec.groups, sweeps.clone(), size);
        // SAFETY: the caller holds `out`, each of whose elements belongs to one phase.
        if unsafe { from_patches(&windows, out, &Extras::default())? } {
            // SAFETY: as above.
            unsafe { mend(&windows, out) };
            continue;
        }
        let made = match views.take() {
            Some(views) => views,
            None => Transposed::new(g, w, &phases, spec)?,
        };
        let (_, cx) = views.insert(made);
        // SAFETY: as above.
        unsafe {
            phase_of_views(cx, &sweeps, out)?;
            mend(&windows, out);
        }
    }
    Ok(())
}

/// A combination of phases of the input as a product of views of the padded `g`.
///
/// # Safety
/// As for [`conv_into`].
pub unsafe fn phase_of_views(cx: &Transposed<'_>, sweeps: &[Sweep], out: &Array) -> Result<()> {
    let (rows, columns) = cx.operands(sweeps);
    if cx.is_whole() {
        // SAFETY: as the caller's.
        return unsafe { multiply(&rows, &columns, out) };
    }
    let (mut to, mut offset): (Strides, usize) = (out.layout.strides(), out.layout.offset());
    for (sweep, stride) in sweeps.iter().zip(&mut to[2..]) {
        offset += sweep.to * *stride as usize;
        *stride *= sweep.apart as isize;
    }
    let part = Array::uninit(out.dtype, cx.shape(sweeps))?;
    // SAFETY: the part is fresh; the caller holds `out`.
    unsafe {
        multiply(&rows, &columns, &part)?;
        let to = out.view(Layout::strided(part.shape().clone(), &to, offset));
        copy::copy_into(&to, &part);
    }
    Ok(())
}

/// The padding of `g` so that every position that a phase reads exists.
fn border(phases: &[Vec<Sweep>], g: &[usize]) -> (PerAxis, PerAxis) {
    let (mut low, mut high) = (PerAxis::new(), PerAxis::new());
    for (i, phases) in phases.iter().enumerate() {
        let used = || phases.iter().filter(|p| p.taps > 0 && p.count > 0);
        let first = used().map(|p| p.base + p.tap * (p.taps as isize - 1)).min().unwrap_or(0);
        let end = used().map(|p| p.base + p.count as isize).max().unwrap_or(0);
        low.push((-first).max(0) as usize);
        high.push((end - g[2 + i] as isize).max(0) as usize);
    }
    (low, high)
}

/// The data that the phases of a transposed convolution share.
pub struct Transposed<'a> {
    g: Sides,
    w: Sides,
    /// Bytes of an element
    size: isize,
    low: PerAxis,
    spec: &'a ConvSpec,
}

impl<'a> Transposed<'a> {
    /// Pads `g`, which is given too, as it has to stay.
    pub fn new(
        g: &Array,
        w: &Array,
        phases: &[Vec<Sweep>],
        spec: &'a ConvSpec,
    ) -> Result<(Array, Transposed<'a>)> {
        let (low, high) = border(phases, &g.shape().sizes());
        let g = pad(g, &low, &high)?;
        let (gs, w, size) = (sides(&g), sides(w), g.dtype.size() as isize);
        Ok((g, Transposed { g: gs, w, size, low, spec }))
    }

    /// Whether there is one phase, which is the whole input.
    fn is_whole(&self) -> bool {
        self.spec.stride.iter().all(|&s| s == 1)
    }

    /// The shape of the result of a combination of phases.
    fn shape(&self, phases: &[Sweep]) -> Shape {
        let all = [self.g.sizes[0], self.w.sizes[1] * self.spec.groups].into_iter();
        all.chain(phases.iter().map(|p| p.count)).map(Into::into).collect()
    }

    /// The operands of the product that computes a combination of phases.
    fn operands(&self, phases: &[Sweep]) -> (Matrix, Matrix) {
        let (gs, ws, groups) = (&self.g, &self.w, self.spec.groups);
        let (n, c, o) = (gs.sizes[0], ws.sizes[1], ws.sizes[0] / groups);
        let (mut from, mut tap) = (0, 0);
        for (i, p) in phases.iter().enumerate() {
            from += (p.base + self.low[i] as isize) * gs.spatial[i].1;
            tap += p.first as isize * ws.spatial[i].1;
        }
        let axes =
            |x: &Sides, f: &dyn Fn(&Sweep) -> (usize, isize)| -> SmallVec<[(usize, isize); 3]> {
                phases.iter().zip(&x.spatial).map(|(p, s)| (f(p).0, f(p).1 * s.1)).collect()
            };
        let rows = Matrix {
            ptr: ws.ptr.wrapping_offset(tap * self.size),
            batch: Axis::new([(n, 0), (groups, o as isize * ws.strides[0])]),
            own: Axis::new([(c, ws.strides[1])]),
            depth: Axis::new(
                [(o, ws.strides[0])].into_iter().chain(axes(ws, &|p| (p.taps, p.skip as isize))),
            ),
            made: None,
        };
        let columns = Matrix {
            ptr: gs.ptr.wrapping_offset(from * self.size),
            batch: Axis::new([(n, gs.strides[0]), (groups, o as isize * gs.strides[1])]),
            own: Axis::new(axes(gs, &|p| (p.count, 1))),
            depth: Axis::new(
                [(o, gs.strides[1])].into_iter().chain(axes(gs, &|p| (p.taps, p.tap))),
            ),
            made: None,
        };
        (rows, columns)
    }
}

/// The scratch bytes of [`input`], as the memory counters count them. `g` and `w` have the layouts
/// and elements of a dtype that is summed.
pub fn scratch(dtype: DType, g: &Layout, w: &Layout, spec: &ConvSpec) -> usize {
    let at = |x: &Layout| sides_at(std::ptr::null(), x);
    let (gs, ws, size) = (at(g), at(w), dtype.size());
    let phases = phases(&ws, spec);
    let (low, high) = border(&phases, &g.shape().sizes());
    let (g, bytes) = padded(g, size, &low, &high);
    let cx = Transposed { g: at(&g), w: at(w), size: size as isize, low, spec };
    // The padded operand is made when the first phase needs it.
    let (mut held, mut most) = (0, 0);
    for at in 0..combinations(&phases) {
        let sweeps = chosen(&phases, at);
        let windows = input_windows(&gs, &ws, spec.groups, sweeps.clone(), size);
        let now = patches(dtype, &windows, false).unwrap_or_else(|| {
            held = bytes;
            let (rows, columns) = cx.operands(&sweeps);
            let part = block_bytes(cx.shape(&sweeps).count() * size);
            gemm::scratch(dtype, &rows, &columns) + if cx.is_whole() { 0 } else { part }
        });
        most = most.max(held + now);
    }
    most
}
