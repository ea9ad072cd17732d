//! Convolutions of images whose channels are innermost: what a plan may ask for, and products of
//! positions with weights.

use std::ops::Range;

use super::{Sides, output_operands, output_windows, pad, places, sides, steps};
use crate::array::Array;
use crate::cpu::depthwise;
use crate::cpu::gemm::{self, Axis, Extras, Matrix};
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::attributes::{ConvRole, ConvSpec};
use crate::ops::op::{Op, Type};
use crate::target::ChannelsLast;

/// How the kernels of a convolution take to channels that are innermost.
///
/// A convolution of one tap is then a product that reads its rows where they lie and writes whole
/// lines. One by channel needs no transposing into vectors of channels. Others write their result
/// so as well as otherwise, but read planes.
pub fn channels_last(op: &Op, x: &Type, w: &Type) -> ChannelsLast {
    let Op::Conv(ConvRole::Output, spec) = op else { return ChannelsLast::Never };
    let (x_sizes, w_sizes) = (x.shape.sizes(), w.shape.sizes());
    if x.dtype != DType::F32 || w.dtype != DType::F32 || w_sizes.contains(&0) {
        return ChannelsLast::Never;
    }
    match spec.groups {
        1 if has_one_tap(spec, &w_sizes) => ChannelsLast::Gains,
        1 => ChannelsLast::Writes,
        _ if depthwise::takes_innermost(&x_sizes, &w_sizes, spec) => ChannelsLast::Both,
        _ => ChannelsLast::Never,
    }
}

/// Whether each result reads one position, and there is no padding.
pub fn has_one_tap(spec: &ConvSpec, w: &[usize]) -> bool {
    w[2..].iter().all(|&n| n == 1) && spec.pad_low.iter().chain(&spec.pad_high).all(|&n| n == 0)
}

/// Positions of a padded input, of all samples, as rows, and weights as columns.
pub fn operands(xs: &Sides, ws: &Sides, spec: &ConvSpec) -> (Matrix, Matrix) {
    let (_, windows) = output_operands(xs, ws, spec);
    let places = places(xs, ws, spec);
    let places = steps(places.into_iter(), xs, &spec.stride);
    let own = Axis::new([(xs.sizes[0], xs.strides[0])].into_iter().chain(places));
    let rows = Matrix { batch: Axis::new([(1, 0)]), own, ..windows };
    (rows, output_windows(xs, ws, spec).matrix())
}

/// An output of one group whose channels are innermost, as a product of positions with weights.
///
/// # Safety
/// As for [`output`](super::output).
pub unsafe fn of_positions(
    x: &Array,
    w: &Array,
    spec: &ConvSpec,
    out: &Array,
    extras: Extras<'_>,
) -> Result<()> {
    let x = pad(x, &spec.pad_low, &spec.pad_high)?;
    let (rows, columns) = operands(&sides(&x), &sides(w), spec);
    let places: usize = out.shape().sizes()[2..].iter().product();
    // Rows of the product are places of several samples, columns are channels.
    let done = |_, rows: Range<usize>, channels: Range<usize>| {
        let Some(then) = extras.epilogue else { return };
        let mut at = rows.start;
        while at < rows.end {
            let (item, place) = (at / places, at % places);
            let count = (places - place).min(rows.end - at);
            then(item, channels.clone(), place..place + count);
            at += count;
        }
    };
    let epilogue = extras.epilogue.is_some().then_some(&done as gemm::Epilogue<'_>);
    // SAFETY: as the caller's; the result lies in the order of the product.
    unsafe {
        gemm::product(out.dtype, &rows, &columns, out.ptr_mut(), Extras { epilogue, ..extras })
    }
}
