//! An epilogue: a program on one part of a product while that part is in the cache.

use smallvec::SmallVec;

use super::{Program, Run};
use crate::cpu::nest::Nest;
use crate::dtype::DType;
use crate::tile::TILE;

/// Elements of a line that cost more to copy than to set up a block.
const LINE: usize = 128;

/// A rectangle of a matrix: its address, and its strides in elements.
#[derive(Clone, Copy)]
pub struct Matrix {
    /// The first element
    pub ptr: *mut u8,
    /// The dtype of the elements
    pub dtype: DType,
    /// Elements from a row to the next
    pub row: isize,
    /// Elements from a column to the next
    pub col: isize,
}

/// Runs a program on `rows` by `cols` elements of each operand. Scalars come as register bits.
///
/// # Safety
/// The rectangles are valid, and nobody else reads or writes those of outputs meanwhile. An output
/// may be the memory of an input with the same dtype and strides; otherwise it overlaps none.
pub unsafe fn run_part(
    program: &Program,
    inputs: &[Matrix],
    scalars: &[u64],
    outputs: &[Matrix],
    (rows, cols): (usize, usize),
) {
    if rows == 0 || cols == 0 {
        return;
    }
    if let (Some(chain), [output]) = (&program.chain, outputs)
        && let Some(chain) = chain.on(inputs, scalars, output, cols)
    {
        // SAFETY: as the caller's.
        return unsafe { chain.run(0..rows) };
    }
    let mut strides: SmallVec<[[isize; 2]; 8]> = SmallVec::new();
    inputs.iter().chain(outputs).for_each(|x| strides.push([x.row, x.col]));
    let mut all: SmallVec<[&[isize]; 8]> = SmallVec::new();
    strides.iter().for_each(|strides| all.push(strides));
    // Lines with gaps between them are worked on one by one, where they lie, if they are long.
    let has_gaps = |x: &Matrix| x.col == 1 && x.row != 0 && x.row != cols as isize;
    let limit = match cols >= LINE && inputs.iter().chain(outputs).any(has_gaps) {
        true => cols.min(TILE),
        false => TILE,
    };
    let nest = Nest::new(&[rows, cols], &all, limit, limit);
    let side = |x: &Matrix| (x.ptr, x.dtype);
    let shares = |j: usize, k: usize| outputs[j].ptr == inputs[k].ptr;
    let ports = program.ports(&nest, inputs.iter().map(side), outputs.iter().map(side), shares);
    let (inputs, outputs) = (&ports.inputs[..], &ports.outputs[..]);
    let code = program.code(rows * cols);
    let run = Run { program, nest: &nest, inputs, outputs, scalars, code };
    run.blocks(0..nest.blocks());
}
