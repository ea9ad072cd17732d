//! Ops that move elements and compute nothing.

use super::kernel::{Dispatch, Input, Kernel, Output, Place, View, Word, count};
use super::shader::Shader;
use super::{group, transpose};
use crate::dtype::DType;
use crate::error::{self, Result};
use crate::ops::attributes::WindowSpec;
use crate::ops::element::{ElementOp, ElementProgram};
use crate::ops::op::{Op, SliceAxis};
use crate::shape::Dim;

/// The most operands that one dispatch puts behind each other: with the result, the storage buffers
/// of any adapter.
const PARTS: usize = 7;

const ZERO: Dim = Dim::new(0);

/// The result of an op, which has these sizes, as a view of its operand, where it is one whose
/// place is known without asking for sizes.
pub fn view_of(op: &Op, x: &View, sizes: &[Dim]) -> Option<View> {
    #[allow(clippy::wildcard_enum_match_arm, reason = "other ops give no views")]
    match op {
        Op::Reshape(_) => reshaped(x, sizes),
        Op::Permute(axes) => Some(x.permute(axes)),
        Op::Broadcast(_) => Some(x.broadcast(sizes)),
        Op::Slice(at) => {
            let parts = at.iter().zip(&x.strides);
            let offset = parts
                .clone()
                .try_fold(x.offset, |offset, (a, stride)| offset.plus(stride.scaled(a.start)))?;
            let strides = parts.map(|(a, stride)| stride.times(a.step)).collect();
            Some(View { sizes: sizes.into(), strides, offset, is_dense: false }.settled())
        }
        Op::Windows(spec) => Some(windows(x, spec, sizes)),
        _ => None,
    }
}

/// The view under another shape: of elements without gaps, or where only axes of size 1 come or go.
fn reshaped(x: &View, shape: &[Dim]) -> Option<View> {
    if x.is_dense {
        return Some(View { offset: x.offset, ..View::dense(shape) });
    }
    let mut own = x.sizes.iter().zip(&x.strides).filter(|(size, _)| **size != Dim::ONE);
    let mut view = View::dense(shape);
    for (stride, &size) in view.strides.iter_mut().zip(shape) {
        *stride = match size == Dim::ONE {
            true => Word::Size(ZERO),
            false => *own.next().filter(|(known, _)| known.same(size))?.1,
        };
    }
    own.next().is_none().then_some(View { offset: x.offset, is_dense: false, ..view })
}

/// Sliding windows: positions along the trailing axes, then elements of the window.
fn windows(x: &View, spec: &WindowSpec, sizes: &[Dim]) -> View {
    let (lead, trailing) = x.strides.split_at(x.strides.len() - spec.size.len());
    let by = |steps: &[usize]| -> Vec<Word> {
        trailing.iter().zip(steps).map(|(stride, &step)| stride.times(step as isize)).collect()
    };
    let strides = lead.iter().copied().chain(by(&spec.stride)).chain(by(&spec.dilation)).collect();
    View { sizes: sizes.into(), strides, offset: x.offset, is_dense: false }.settled()
}

/// The kernel of an op that only moves elements.
pub fn kernel(op: &Op, inputs: &[Input], out: &Output) -> Result<Kernel> {
    let sizes = out.ty.shape.dims();
    #[allow(clippy::wildcard_enum_match_arm, reason = "other ops have kernels elsewhere")]
    match op {
        Op::Pad(_, at) => return Ok(Kernel::of(replaced(at, &inputs[1], &inputs[0], out))),
        Op::SetItem(at) => return Ok(Kernel::of(replaced(at, &inputs[0], &inputs[1], out))),
        Op::Concat(axis) => return Ok(concat(*axis, inputs, out)),
        _ => {}
    }
    let Input::Array { range, dtype, view } = &inputs[0] else {
        return Ok(Kernel::of(copy(&inputs[0], &View::dense(&[]).broadcast(sizes), out)));
    };
    if let Some(view) = view_of(op, view, sizes) {
        return Ok(Kernel::of(copy(&inputs[0], &view, out)));
    }
    #[allow(clippy::wildcard_enum_match_arm, reason = "other ops are refused")]
    match op {
        Op::Cast(to) => {
            let mut program = ElementProgram::new(&[*dtype], &[]);
            let y = program.push(ElementOp::Cast, &[program.array(0)], *to);
            let operand = group::Operand::new(*range, view.clone());
            group::dispatch(&program.giving(&[y]), sizes, &[operand], &[out.range]).map(Kernel::of)
        }
        Op::Reshape(_) => Ok(Kernel::of(copy(&inputs[0], view, out))),
        Op::Full(_) => Ok(Kernel::of(copy(&inputs[0], &view.broadcast(sizes), out))),
        Op::Slice(at) => Ok(Kernel::of(slice(at, &inputs[0], view, out))),
        _ => Err(error::internal(format!("{} moves no elements", op.name()))),
    }
}

/// A slice whose first element is found by the invocations.
fn slice(at: &[SliceAxis], x: &Input, view: &View, out: &Output) -> Dispatch {
    let sizes = out.ty.shape.dims();
    let strides = view.strides.iter().zip(at).map(|(stride, a)| stride.times(a.step)).collect();
    let part = View { sizes: sizes.into(), strides, offset: view.offset, is_dense: false };
    let mut shader = Shader::new();
    let index = shader.indices("i", sizes);
    let mut position = shader.position(&part, &index);
    for (a, &stride) in at.iter().zip(&view.strides) {
        if a.start != ZERO {
            let (start, stride) = (shader.size(a.start), shader.word(stride));
            position += &format!(" + {start} * {stride}");
        }
    }
    moved(shader, x, &position, out)
}

/// Copies the elements of an operand, seen in some way, in C order.
fn copy(x: &Input, view: &View, out: &Output) -> Dispatch {
    if let Input::Array { range, dtype, .. } = x
        && let Some(dispatch) = transpose::copy(*range, view, *dtype, out.range)
    {
        return dispatch;
    }
    let mut shader = Shader::new();
    let at = shader.position_of(view, "i");
    moved(shader, x, &at, out)
}

/// A shader that gives what lies at a position.
fn moved(mut shader: Shader, x: &Input, at: &str, out: &Output) -> Dispatch {
    let lane = shader.lane(x, out.ty.dtype, at);
    given(shader, &lane, out)
}

/// A shader that gives a lane for every element.
pub fn given(shader: Shader, lane: &str, out: &Output) -> Dispatch {
    let count = count(out.ty.shape.dims());
    shader.finish(Place::Range(out.range), out.ty.dtype, count, lane, ZERO)
}

/// A base with a slice of it replaced by what broadcasts to the slice.
fn replaced(at: &[SliceAxis], base: &Input, part: &Input, out: &Output) -> Dispatch {
    let (sizes, dtype) = (out.ty.shape.dims(), out.ty.dtype);
    let mut shader = Shader::new();
    let index = shader.indices("i", sizes);
    let value = shader.lane_of(base, dtype, sizes, &index);
    let value = shader.variable(value);
    let (mut inner, mut tests) = (Vec::new(), vec!["true".to_owned()]);
    for ((a, i), &size) in at.iter().zip(&index).zip(sizes) {
        if a.is_whole(size) {
            inner.push(i.clone());
            continue;
        }
        let (start, size) = (shader.size(a.start), shader.size(a.size));
        let (is_behind, distance) = match a.step > 0 {
            true => (format!("{i} >= {start}"), format!("{i} - {start}")),
            false => (format!("{i} <= {start}"), format!("{start} - {i}")),
        };
        let distance = shader.name(distance);
        let k = match a.step.unsigned_abs() {
            1 => distance,
            step => {
                let step = shader.size(Dim::new(step));
                tests.push(format!("{distance} % {step} == 0u"));
                shader.name(format!("{distance} / {step}"))
            }
        };
        tests.push(format!("{is_behind} && {k} < {size}"));
        inner.push(k);
    }
    shader.line(format!("if {} {{", tests.join(" && ")));
    let slice: Vec<Dim> = at.iter().map(|a| a.size).collect();
    let new = shader.lane_of(part, dtype, &slice, &inner);
    shader.line(format!("{value} = {new};\n}}"));
    given(shader, &value, out)
}

/// Operands behind each other along an axis. Several dispatches follow each other where there are
/// many operands: each keeps what it finds of the others.
fn concat(axis: usize, inputs: &[Input], out: &Output) -> Kernel {
    let (sizes, dtype) = (out.ty.shape.dims(), out.ty.dtype);
    let (place, inner) = (Place::Range(out.range), count(&sizes[axis + 1..]));
    let is_leading = sizes[..axis].iter().all(|size| *size == Dim::ONE);
    let (mut kernel, mut begin) = (Kernel::default(), ZERO);
    for parts in inputs.chunks(PARTS) {
        let (mut shader, first) = (Shader::new(), begin);
        let index = shader.indices("i", sizes);
        let value = match inputs.len() <= PARTS {
            true => zero(dtype).to_owned(),
            false => shader.lane_at(place, dtype, "i"),
        };
        let value = shader.variable(value);
        for part in parts {
            let size = match part {
                Input::Array { view, .. } => view.sizes[axis],
                Input::Number(_) => Dim::ONE,
            };
            let mut own = sizes.to_vec();
            own[axis] = size;
            let start = shader.size(begin);
            let mut inside = index.clone();
            inside[axis] = shader.name(format!("{} - {start}", index[axis]));
            let size_ = shader.size(size);
            shader.line(format!("if {} < {size_} {{", inside[axis]));
            let lane = shader.lane_of(part, dtype, &own, &inside);
            shader.line(format!("{value} = {lane};\n}}"));
            begin = begin + size;
        }
        let part = match is_leading {
            true => {
                let own = parts.iter().map(|part| match part {
                    Input::Array { view, .. } => view.sizes[axis],
                    Input::Number(_) => Dim::ONE,
                });
                [first * inner, own.fold(ZERO, |all, size| all + size) * inner]
            }
            false => [ZERO, count(sizes)],
        };
        kernel.dispatches.push(shader.finish_part(place, dtype, part, &value, ZERO));
    }
    kernel
}

/// The lane of zero.
fn zero(dtype: DType) -> &'static str {
    if super::element::is_wide(dtype) { "vec2<u32>(0u, 0u)" } else { "0u" }
}
