//! Ops that move elements and compute nothing.

use super::group;
use super::kernel::{Dispatch, Input, Kernel, Output, Place, View, Word};
use super::shader::Shader;
use crate::error::{self, Result};
use crate::ops::element::{ElementOp, ElementProgram};
use crate::ops::op::Op;
use crate::shape::Dim;

/// The kernel of an op that only moves elements.
pub fn kernel(op: &Op, inputs: &[Input], out: &Output) -> Result<Kernel> {
    let sizes = out.ty.shape.dims();
    let Input::Array { range, dtype, view } = &inputs[0] else {
        return copy(&inputs[0], &View::dense(&[]).broadcast(sizes), out).map(Kernel::of);
    };
    match op {
        Op::Cast(to) => {
            let mut program = ElementProgram::new(&[*dtype], &[]);
            let y = program.push(ElementOp::Cast, &[program.array(0)], *to);
            let operand = group::Operand { range: *range, view: view.clone() };
            group::dispatch(&program.giving(&[y]), sizes, &[operand], &[out.range]).map(Kernel::of)
        }
        Op::Reshape(_) => copy(&inputs[0], view, out).map(Kernel::of),
        Op::Permute(axes) => {
            let mut turned = view.clone();
            turned.sizes = axes.iter().map(|&axis| view.sizes[axis]).collect();
            turned.strides = axes.iter().map(|&axis| view.strides[axis]).collect();
            turned.is_dense = false;
            copy(&inputs[0], &turned, out).map(Kernel::of)
        }
        Op::Broadcast(_) | Op::Full(_) => {
            copy(&inputs[0], &view.broadcast(sizes), out).map(Kernel::of)
        }
        Op::Slice(at) => {
            let steps: Vec<Word> =
                view.strides.iter().zip(at).map(|(stride, a)| stride.times(a.step)).collect();
            let starts: Vec<Dim> = at.iter().map(|a| a.start).collect();
            let mut part = view.clone();
            part.sizes = sizes.into();
            part.is_dense = false;
            let mut shader = Shader::new();
            let index = shader.indices("i", sizes);
            part.strides = steps.into_iter().collect();
            let mut position = shader.position(&part, &index);
            for (&start, &stride) in starts.iter().zip(&view.strides) {
                if start != Dim::new(0) {
                    let (start, stride) = (shader.size(start), shader.word(stride));
                    position += &format!(" + {start} * {stride}");
                }
            }
            Ok(Kernel::of(moved(shader, &inputs[0], &position, out)))
        }
        _ => Err(error::internal(format!("{} moves no elements", op.name()))),
    }
}

/// Copies the elements of an operand, seen in some way, in C order.
fn copy(x: &Input, view: &View, out: &Output) -> Result<Dispatch> {
    let mut shader = Shader::new();
    let at = shader.position_of(view, "i");
    Ok(moved(shader, x, &at, out))
}

/// A shader that gives what lies at a position.
fn moved(mut shader: Shader, x: &Input, at: &str, out: &Output) -> Dispatch {
    let lane = shader.lane(x, out.ty.dtype, at);
    let count = super::kernel::count(out.ty.shape.dims());
    shader.finish(Place::Range(out.range), out.ty.dtype, count, &lane, Dim::new(0))
}
