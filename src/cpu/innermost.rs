//! Arrays whose channels, axis 1, are innermost in memory, as plans let images lie between the
//! convolutions that gain from it.

use smallvec::SmallVec;

use super::program::{self, Program};
use crate::array::Array;
use crate::dtype::Scalar;
use crate::layout::Layout;
use crate::shape::{Axes, Shape};

/// Whether the result of a convolution or of a group, which is in C order or has its channels
/// innermost, has these innermost. (Where there is no difference it is in C order.)
pub fn is_innermost(out: &Layout) -> bool {
    !out.is_contiguous()
}

/// An array, broadcast to a shape, with its channels as the last axis.
fn turned(x: &Array, shape: &Shape) -> Array {
    let strides = x.layout.broadcast_strides(shape);
    let layout = Layout::strided(shape.clone(), &strides, x.layout.offset());
    let axes: Axes = std::iter::once(0).chain(2..shape.rank()).chain([1]).collect();
    x.view(layout.permuted(&axes))
}

/// Runs a program whose outputs are in C order, or all have their channels innermost.
///
/// # Safety
/// As for [`program::run`], where the order of an output is that in which it lies.
pub unsafe fn run(program: &Program, inputs: &[&Array], numbers: &[Scalar], outputs: &[&Array]) {
    let Some(first) = outputs.first().filter(|y| is_innermost(&y.layout)) else {
        // SAFETY: as the caller's.
        return unsafe { program::run(program, inputs, numbers, outputs) };
    };
    let all = |x: &[&Array]| -> SmallVec<[Array; 4]> {
        x.iter().map(|x| turned(x, first.shape())).collect()
    };
    let (inputs, outputs) = (all(inputs), all(outputs));
    let inputs: SmallVec<[&Array; 4]> = inputs.iter().collect();
    let outputs: SmallVec<[&Array; 4]> = outputs.iter().collect();
    // SAFETY: as the caller's; elements of operands meet as they did.
    unsafe { program::run(program, &inputs, numbers, &outputs) };
}
