//! Copies in which two axes change places: the one whose elements are neighbours in the operand,
//! and the one whose elements are neighbours in the result.
//!
//! An invocation moves a tile of 4×4 elements in registers, so that it reads and writes whole packs;
//! a workgroup moves 8×8 tiles, so that it uses whole cache lines of both sides.

use super::element::{PACK, is_wide, lane, pack, packed};
use super::kernel::{Dispatch, Place, View, WORKGROUP, Word};
use super::shader::Shader;
use super::terms::merged;
use crate::dtype::DType;
use crate::shape::{Dim, Dims};

/// Tiles of a workgroup along each of the two axes.
const SIDE: usize = 8;

const ZERO: Dim = Dim::new(0);

fn is_fit(word: &Word) -> bool {
    matches!(word, Word::Size(n) | Word::Minus(n)
        if n.known().is_some_and(|n| n.is_multiple_of(PACK)))
}

/// The copy of a view of a range to another range, if tiles of packs cover it.
pub fn copy(from: usize, view: &View, dtype: DType, to: usize) -> Option<Dispatch> {
    let dense = View::dense(&view.sizes);
    let (sizes, [near, far]) = merged(&view.sizes, [&view.strides, &dense.strides]);
    let (one, last) = (Word::Size(Dim::ONE), sizes.len().checked_sub(1)?);
    let first = near.iter().position(|&stride| stride == one).filter(|&axis| axis != last)?;
    let is_whole = |axis: usize| sizes[axis].known().is_some_and(|n| n.is_multiple_of(PACK));
    let are_fit = near.iter().enumerate().all(|(axis, stride)| axis == first || is_fit(stride));
    if !(are_fit && is_fit(&view.offset) && is_whole(first) && is_whole(last)) {
        return None;
    }
    let mut shader = Shader::new();
    let tiles = |axis: usize| sizes[axis] / Dim::new(PACK);
    let blocks = |axis: usize| tiles(axis).div_ceil(Dim::new(SIDE));
    let own = shader.name(format!("i % {WORKGROUP}u"));
    let mut rest = shader.name(format!("i / {WORKGROUP}u"));
    let mut tile = |shader: &mut Shader, axis: usize, own: String| {
        let (blocks, tiles) = (shader.size(blocks(axis)), shader.size(tiles(axis)));
        let at = shader.name(format!("({rest} % {blocks}) * {SIDE}u + {own}"));
        rest = shader.name(format!("{rest} / {blocks}"));
        shader.line(format!("if {at} >= {tiles} {{ return; }}"));
        shader.name(format!("{at} * {PACK}u"))
    };
    let right = tile(&mut shader, last, format!("{own} % {SIDE}u"));
    let down = tile(&mut shader, first, format!("{own} / {SIDE}u"));
    let others: Vec<usize> = (0..last).filter(|&axis| axis != first).collect();
    let pick = |strides: &[Word]| others.iter().map(|&axis| strides[axis]).collect::<Vec<Word>>();
    let outer: Dims = others.iter().map(|&axis| sizes[axis]).collect();
    let index = shader.indices(&rest, &outer);
    let start = shader.word(view.offset);
    let offset = shader.offset(&pick(&near), &index);
    let source = shader.name(format!("{start} + {offset} + {down}"));
    let offset = shader.offset(&pick(&far), &index);
    let target = shader.name(format!("{offset} + {right}"));
    let (across, along) = (shader.word(near[last]), shader.word(far[first]));
    let from = shader.memory_as(Place::Range(from), pack(dtype));
    let to = shader.memory_as(Place::Range(to), pack(dtype));
    let mut lanes = Vec::new();
    for q in 0..PACK {
        let at = shader.name(format!("{source} + ({right} + {q}u) * {across}"));
        lanes.push(match is_wide(dtype) {
            true => (0..PACK).map(|k| shader.name(format!("{from}[{at} + {k}u]"))).collect(),
            false => {
                let own = shader.name(format!("{from}[{at} >> 2u]"));
                (0..PACK).map(|k| format!("({})", lane(dtype, &own, k))).collect::<Vec<String>>()
            }
        });
    }
    for k in 0..PACK {
        let at = shader.name(format!("{target} + ({down} + {k}u) * {along}"));
        let lanes: [String; PACK] = std::array::from_fn(|q| lanes[q][k].clone());
        if is_wide(dtype) {
            for (q, lane) in lanes.iter().enumerate() {
                shader.line(format!("{to}[{at} + {q}u] = {lane};"));
            }
        } else {
            shader.line(format!("{to}[{at} >> 2u] = {};", packed(dtype, lanes)));
        }
    }
    let groups = outer.iter().fold(blocks(first) * blocks(last), |all, &size| all * size);
    Some(shader.each(groups * Dim::new(WORKGROUP), ZERO))
}
