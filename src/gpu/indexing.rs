//! Advanced indexing: int64 arrays on the leading axes pick (gather) or receive (scatter) slices.
//!
//! Indices are checked by dispatches of their own, which come first. Those that read or write
//! elements take 0 for an index outside its axis, so that they stay inside.
//!
//! Values that are scattered are ordered by where they go, so every element of the result finds
//! its own and takes them in index order: no two invocations add to one element.

use std::fmt::Write;

use smallvec::SmallVec;

use super::element::{loaded, rounded, stored};
use super::kernel::{
    Dispatch, Input, Kernel, MOST_ROUNDS, Output, Place, Refusal, Repeat, Times, View, Word, count,
};
use super::moves::given;
use super::shader::{Shader, lanes};
use super::sort::{self, Keys};
use crate::dtype::DType;
use crate::error::{self, Result};
use crate::ops::attributes::ScatterMode;
use crate::ops::elementwise::arithmetic;
use crate::ops::op::Op;
use crate::shape::{Dim, Dims};

/// The most index arrays of a dispatch, which binds two more ranges.
const ARRAYS: usize = 6;

const ZERO: Dim = Dim::new(0);

/// An index as a position, negative ones counted from the end.
pub const PICKED: &str = "\
fn is_inside(i: vec2<u32>, size: u32) -> bool {
    return (i.y == 0u && i.x < size) || (i.y == 0xffffffffu && ~i.x < size);
}

fn picked(i: vec2<u32>, size: u32) -> u32 {
    return select(0u, select(i.x, i.x + size, i.y != 0u), is_inside(i, size));
}

";

/// `x[i, j, …]`, whose sizes are those of the indices, then those of the axes without one.
pub fn gather(op: &Op, inputs: &[Input], out: &Output) -> Result<Kernel> {
    let Input::Array { range, dtype, ref view } = inputs[0] else {
        return Err(error::internal("gather from a number"));
    };
    let (indices, sizes) = (&inputs[1..], out.ty.shape.dims());
    let (places, rest) = sizes.split_at(sizes.len() + indices.len() - view.sizes.len());
    let mut kernel = Kernel::default();
    check(op, &mut kernel, &view.sizes, indices, places)?;
    let targets = (indices.len() > ARRAYS)
        .then(|| targets(&mut kernel, &view.sizes, &view.strides, indices, places));
    let mut shader = Shader::new();
    let index = shader.indices("i", sizes);
    let (which, inner) = index.split_at(places.len());
    let mut at = match targets {
        Some(targets) => {
            let at = shader.position(&View::dense(places), which);
            let target = shader.lane_at(targets, DType::U32, &at);
            shader.name(target)
        }
        None => picked(&mut shader, &view.sizes, &view.strides, indices, places, which),
    };
    let slice = View {
        sizes: rest.into(),
        strides: view.strides[indices.len()..].into(),
        offset: view.offset,
        is_dense: false,
    };
    let _ = write!(at, " + {}", shader.position(&slice, inner));
    let lane = shader.lane_at(Place::Range(range), dtype, &at);
    kernel.dispatches.push(given(shader, &lane, out));
    Ok(kernel)
}

/// The sum of the positions that indices give for one place, each times a stride.
fn picked(
    shader: &mut Shader,
    sizes: &[Dim],
    strides: &[Word],
    indices: &[Input],
    places: &[Dim],
    which: &[String],
) -> String {
    shader.function(PICKED);
    let mut at = "0u".to_owned();
    for ((index, &size), &stride) in indices.iter().zip(sizes).zip(strides) {
        let lane = shader.lane_of(index, DType::I64, places, which);
        let (size, stride) = (shader.size(size), shader.word(stride));
        let _ = write!(at, " + picked({lane}, {size}) * {stride}");
    }
    shader.name(at)
}

/// These sums for every place, in scratch.
fn targets(
    kernel: &mut Kernel,
    sizes: &[Dim],
    strides: &[Word],
    indices: &[Input],
    places: &[Dim],
) -> Place {
    let count = count(places);
    let place = kernel.scratch(DType::U32, count);
    for (k, part) in indices.chunks(ARRAYS).enumerate() {
        let (mut shader, own) = (Shader::new(), ARRAYS * k..);
        let which = shader.indices("i", places);
        let mut sum = picked(&mut shader, &sizes[own.clone()], &strides[own], part, places, &which);
        if k > 0 {
            let _ = write!(sum, " + {}", shader.lane_at(place, DType::U32, "i"));
        }
        kernel.dispatches.push(shader.finish(place, DType::U32, count, &sum, ZERO));
    }
    place
}

/// Says which index is outside its axis: the first of the first array that has one. Nothing is
/// outside where no index is used.
fn check(
    op: &Op,
    kernel: &mut Kernel,
    sizes: &[Dim],
    indices: &[Input],
    places: &[Dim],
) -> Result<()> {
    let is_any = count(places).min(Dim::ONE);
    // Positions count on from array to array.
    let mut arrays: SmallVec<[(&Input, View, Dim); 4]> = SmallVec::new();
    let mut all = ZERO;
    for index in indices {
        let view = match index {
            Input::Array { view, .. } => view.clone(),
            Input::Number(_) => View::dense(&[]),
        };
        let count = view.count();
        arrays.push((index, view, all));
        all = all + count;
    }
    for ((index, view, base), &size) in arrays.iter().zip(sizes) {
        let mut shader = Shader::new();
        let at = shader.position_of(view, "i");
        let lane = shader.lane(index, DType::I64, &at);
        shader.function(PICKED);
        let (base, size, slot) = (shader.size(*base), shader.size(size), shader.word(Word::Slot));
        let faults = shader.memory_as(Place::Faults, "atomic<u32>");
        shader.line(format!(
            "if !is_inside({lane}, {size}) {{ atomicMin(&{faults}[4u * {slot}], {base} + i); }}"
        ));
        kernel.dispatches.push(shader.each(view.count() * is_any, Dim::new(0)));
    }
    for (k, part) in arrays.chunks(ARRAYS).enumerate() {
        let mut shader = Shader::new();
        let faults = shader.memory_as(Place::Faults, "atomic<u32>");
        let slot = shader.word(Word::Slot);
        let first = shader.name(format!("4u * {slot}"));
        let at = shader.name(format!("atomicLoad(&{faults}[{first}])"));
        shader.line(format!("if {at} == 0xffffffffu {{ return; }}"));
        for (j, (index, view, base)) in part.iter().enumerate() {
            let (base, count) = (shader.size(*base), shader.size(view.count()));
            let own = shader.name(format!("{at} - {base}"));
            shader.line(format!("if {own} < {count} {{"));
            let position = shader.position_of(view, &own);
            let lane = shader.lane(index, DType::I64, &position);
            let lane = shader.name(lane);
            let axis = shader.size(Dim::new(ARRAYS * k + j));
            for (word, value) in [axis, format!("{lane}.x"), format!("{lane}.y")].iter().enumerate()
            {
                let word = word + 1;
                shader.line(format!("atomicStore(&{faults}[{first} + {word}u], {value});"));
            }
            shader.line("}");
        }
        kernel.dispatches.push(shader.each(Dim::ONE, Dim::new(0)));
    }
    let sizes: Dims = sizes[..indices.len()].into();
    kernel.refusal = Some(Refusal::Outside { op: op.name(), sizes });
    Ok(())
}

/// The sizes to which index arrays broadcast.
fn index_sizes(indices: &[Input]) -> Dims {
    let views = indices.iter().filter_map(|index| match index {
        Input::Array { view, .. } => Some(view),
        Input::Number(_) => None,
    });
    let rank = views.clone().map(|view| view.sizes.len()).max().unwrap_or(0);
    let mut sizes: Dims = std::iter::repeat_n(Dim::ONE, rank).collect();
    for view in views {
        let lead = rank - view.sizes.len();
        for (size, &own) in sizes[lead..].iter_mut().zip(&view.sizes) {
            if own != Dim::ONE {
                *size = own;
            }
        }
    }
    sizes
}

/// A base with values put or added at what a gather would read, in the order of the indices.
pub fn scatter(op: &Op, mode: ScatterMode, inputs: &[Input], out: &Output) -> Result<Kernel> {
    let (sizes, dtype) = (out.ty.shape.dims(), out.ty.dtype);
    let [base, values, indices @ ..] = inputs else {
        return Err(error::internal("scatter without indices"));
    };
    let places = index_sizes(indices);
    let n = count(&places);
    let (rows, rest) = sizes.split_at(indices.len());
    let mut kernel = Kernel::default();
    check(op, &mut kernel, rows, indices, &places)?;
    let rows_view = View::dense(rows);
    let targets = targets(&mut kernel, rows, &rows_view.strides, indices, &places);
    let keys = Keys { place: targets, dtype: DType::U32 };
    let order = sort::order(&mut kernel, keys, n, n);
    let sorted = kernel.scratch(DType::U32, n);
    let mut shader = Shader::new();
    let at = shader.lane_at(order, DType::U32, "i");
    let target = shader.lane_at(targets, DType::U32, &at);
    kernel.dispatches.push(shader.finish(sorted, DType::U32, n, &target, ZERO));
    // An invocation finds the first of its values, then takes one after the other.
    let each = MOST_ROUNDS / lanes(dtype) - 64;
    let most = match mode {
        ScatterMode::Set => n,
        ScatterMode::Add => Dim::new(each),
    };
    let region: Vec<Dim> = places.iter().chain(rest).copied().collect();
    let part = |from: Word, is_first: bool| -> Result<Dispatch> {
        let mut shader = Shader::new();
        let index = shader.indices("i", sizes);
        let lane = match is_first {
            true => shader.lane_of(base, dtype, sizes, &index),
            false => shader.lane_at(Place::Range(out.range), dtype, "i"),
        };
        let value = shader.variable(lane);
        let row = shader.position(&rows_view, &index[..rows.len()]);
        let row = shader.name(row);
        let (from, all) = (shader.word(from), shader.size(n));
        let most_ = shader.size(most);
        let to = shader.name(format!("min({all}, {from} + {most_})"));
        let (low, high) = (shader.variable(&from), shader.variable(&to));
        shader.line(format!("while {low} < {high} {{"));
        let middle = shader.name(format!("({low} + {high}) >> 1u"));
        let there = shader.lane_at(sorted, DType::U32, &middle);
        let is_before = match mode {
            ScatterMode::Set => format!("{there} <= {row}"),
            ScatterMode::Add => format!("{there} < {row}"),
        };
        shader.line(format!(
            "if {is_before} {{ {low} = {middle} + 1u; }} else {{ {high} = {middle}; }}\n}}"
        ));
        let (head, at) = match mode {
            ScatterMode::Set => (format!("if {low} > {from} {{"), format!("{low} - 1u")),
            ScatterMode::Add => (format!("for (var p = {low}; p < {to}; p++) {{"), "p".into()),
        };
        shader.line(head);
        let at = shader.name(at);
        let there = shader.lane_at(sorted, DType::U32, &at);
        let leave = match mode {
            ScatterMode::Set => format!("return {value};"),
            ScatterMode::Add => "break;".into(),
        };
        shader.line(format!("if {there} != {row} {{ {leave} }}"));
        let j = shader.lane_at(order, DType::U32, &at);
        let j = shader.name(j);
        let mut which = shader.indices(&j, &places).to_vec();
        which.extend_from_slice(&index[rows.len()..]);
        let new = shader.lane_of(values, dtype, &region, &which);
        let new = match mode {
            ScatterMode::Set => new,
            ScatterMode::Add => sum(&mut shader, dtype, &value, &new)?,
        };
        shader.line(format!("{value} = {new};\n}}"));
        let rounds = match mode {
            ScatterMode::Set => Dim::new(32),
            ScatterMode::Add => Dim::new(32) + most.min(n),
        };
        Ok(shader.finish(Place::Range(out.range), dtype, count(sizes), &value, rounds))
    };
    kernel.dispatches.push(part(Word::Size(ZERO), true)?);
    match (mode, n.known()) {
        (ScatterMode::Set, _) => {}
        (ScatterMode::Add, Some(n)) => {
            for from in (each..n).step_by(each) {
                kernel.dispatches.push(part(Word::Size(Dim::new(from)), false)?);
            }
        }
        (ScatterMode::Add, None) => {
            let (at, step) = (kernel.dispatches.len(), each as u32);
            kernel.dispatches.push(part(Word::Round { times: step, plus: step }, false)?);
            let times = Times::Size(n.div_ceil(most).max(Dim::ONE) - Dim::ONE);
            kernel.repeats.push(Repeat { range: at..at + 1, times });
        }
    }
    Ok(kernel)
}

/// The lane of a sum of two lanes, rounded.
fn sum(shader: &mut Shader, dtype: DType, a: &str, b: &str) -> Result<String> {
    if dtype == DType::Bool {
        return Ok(format!("{a} | {b}"));
    }
    shader.register(dtype)?;
    let a = shader.name(loaded(dtype, a));
    let b = shader.name(loaded(dtype, b));
    let sum = shader.call(&arithmetic::add, dtype, &[&a, &b])?;
    let sum = shader.name(sum);
    let sum = rounded(dtype, &sum).map_or(sum, |sum| shader.name(sum));
    Ok(stored(dtype, &sum))
}
