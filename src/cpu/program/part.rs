//! An epilogue: a program on one part of a product while that part is in the cache.

use smallvec::SmallVec;

use super::{Port, Program, Run, is_narrow};
use crate::cpu::nest::Nest;
use crate::dtype::DType;
use crate::tile::TILE;

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
    let mut strides: SmallVec<[[isize; 2]; 8]> = SmallVec::new();
    inputs.iter().chain(outputs).for_each(|x| strides.push([x.row, x.col]));
    let mut all: SmallVec<[&[isize]; 8]> = SmallVec::new();
    strides.iter().for_each(|strides| all.push(strides));
    let nest = Nest::new(&[rows, cols], &all, TILE);
    let port = |k: usize, x: &Matrix, direct: bool| {
        let direct = direct && !is_narrow(x.dtype);
        let (row, col) = (nest.row_stride(k), nest.col_stride(k));
        Port { ptr: x.ptr, dtype: x.dtype, row, col, direct, streams: false }
    };
    let mut sources: SmallVec<[Port; 4]> = SmallVec::new();
    for (k, x) in inputs.iter().enumerate() {
        sources.push(port(k, x, true));
    }
    let mut targets: SmallVec<[Port; 2]> = SmallVec::new();
    for (j, y) in outputs.iter().enumerate() {
        targets.push(port(inputs.len() + j, y, program.may_bind(j, y.ptr, &sources)));
    }
    let run = Run { program, nest: &nest, inputs: &sources, outputs: &targets, scalars };
    run.blocks(0..nest.blocks());
}
