//! Row programs: the steps of a block fusion as one program over a few rows at a time.
//!
//! A block of a block fusion is run step by step, so what a step gives is written to the second
//! cache and read from there, and steps are set up for each block. Where all steps compute rows of
//! one length (elementwise groups, reductions of whole rows, views), their ops are listed once
//! ([`Builder`]) and run over tiles of rows that stay in the innermost cache. A value has an element
//! for each of the tile's, a number for each row, or one row that all rows share.
//!
//! Rows of few elements leave vectors half empty, so tiles of them are transposed ([`turned`]).
//!
//! Promises: the bits of the steps. Elementwise ops run their tile kernels, or kernels that do
//! several in one pass ([`kernels`]); reductions run the kernels of [`reduce`](super::reduce).

mod build;
mod fuse;
mod kernels;
mod turned;

use smallvec::SmallVec;

pub use build::{Builder, Form, Port, Value};

use super::convert::{load, store};
use super::program::{splat, with_scratch};
use super::reduce::{FoldPairs, FoldRows};
use super::softmax::OfRows;
use crate::array::Array;
use crate::dtype::{DType, Width};
use crate::small::small;
use crate::tile::{self, TileKernel};
use kernels::RowKernel;
use turned::Turned;

/// A program over rows.
pub enum RowProgram {
    /// Over rows as they lie
    Rows(Rows),
    /// Over rows of few elements
    Turned(Turned),
}

impl RowProgram {
    /// Computes the results for `count` rows.
    ///
    /// # Safety
    /// The inputs have the dtypes and strides that the ports were made for, with so many rows.
    /// Outputs have these rows, in C order; nobody else reads or writes them. An output may be the
    /// memory of an input with the same dtype and layout; otherwise it overlaps none.
    pub unsafe fn run(&self, inputs: &[&Array], outputs: &[Array], count: usize) {
        // SAFETY: as the caller's.
        unsafe {
            match self {
                RowProgram::Rows(program) => program.run(inputs, outputs, count),
                RowProgram::Turned(program) => program.run(inputs, outputs, count),
            }
        }
    }
}

/// Rows of more elements take a kernel that computes one after the other no longer.
const LONG: usize = 400;

/// Whether a program takes less time for so many rows of `n` elements than a kernel that computes one
/// row after the other. That waits at the end of each pass over a row, longer where it does not end
/// with a whole line, but is there at once.
pub fn pays(rows: usize, n: usize) -> bool {
    let few = if n.is_multiple_of(64) { 256 } else { 96 };
    n < LONG && rows >= few
}

/// A program over rows as they lie, a tile of rows at a time.
pub struct Rows {
    /// Elements of a row
    n: usize,
    /// Rows of a tile
    rows: usize,
    ports: Vec<Port>,
    /// Filled before the first tile
    constants: Vec<Constant>,
    steps: Vec<Step>,
    outputs: Vec<Output>,
    /// By value: the offset of its register
    homes: Vec<usize>,
    /// By value: the bytes from a row to the next, 0 for a row that all share
    strides: Vec<usize>,
    /// Bytes of all registers
    scratch: usize,
}

/// A value that is the same for all tiles.
enum Constant {
    /// A number, so many times
    Number { value: u16, bits: u64, width: Width, count: usize },
    /// A shared row, so many times; 0: read where it lies
    Row { value: u16, port: usize, times: usize },
}

enum Step {
    /// Elements of rows, or a number for each; `is_direct`: read where they lie
    Load {
        port: usize,
        to: u16,
        is_single: bool,
        is_direct: bool,
    },
    /// An elementwise op; `is_single`: on a number for each row; `by_row`: some operand is a shared
    /// row
    Map {
        kernel: TileKernel,
        round: Option<TileKernel>,
        args: [u16; 3],
        to: u16,
        is_single: bool,
        by_row: bool,
    },
    /// Several elementwise ops
    Rows {
        kernel: RowKernel,
        x: u16,
        singles: [u16; 2],
        shared: [u16; 2],
        to: u16,
    },
    /// The number of each row, for each of its elements
    Spread {
        from: u16,
        to: u16,
        width: Width,
    },
    Fold {
        kernel: FoldRows,
        round: Option<TileKernel>,
        x: u16,
        to: u16,
    },
    FoldPairs {
        kernel: FoldPairs,
        x: [u16; 2],
        to: u16,
    },
    Softmax {
        kernel: OfRows,
        x: u16,
        to: u16,
    },
}

/// What each port reads first.
fn starts(ports: &[Port], inputs: &[&Array]) -> SmallVec<[*const u8; 8]> {
    let start = |port: &Port| {
        let x = inputs[port.input];
        x.ptr().wrapping_offset(port.delta * x.dtype.size() as isize)
    };
    small(ports.iter().map(start))
}

/// Numbers that are computed for so many rows: registers have room for them, and what is behind the
/// last is not looked at.
fn padded(rows: usize) -> usize {
    rows.next_multiple_of(tile::SHORT)
}

struct Output {
    value: u16,
    dtype: DType,
    is_single: bool,
    /// Whether the value may be computed in the memory of the output
    may_bind: bool,
    /// Values that may then be computed there too, before it is
    before: SmallVec<[u16; 4]>,
}

impl Rows {
    /// See [`RowProgram::run`].
    unsafe fn run(&self, inputs: &[&Array], outputs: &[Array], count: usize) {
        with_scratch(self.scratch, |scratch| {
            let mut places: SmallVec<[*mut u8; 32]> = SmallVec::new();
            self.homes.iter().for_each(|&home| places.push(scratch.wrapping_add(home)));
            let from = starts(&self.ports, inputs);
            let mut to: SmallVec<[(*mut u8, bool); 4]> = SmallVec::new();
            for (output, y) in self.outputs.iter().zip(outputs) {
                // What lies over an operand is written when the tile has been read.
                let is_apart = inputs.iter().all(|x| x.ptr() != y.ptr());
                // SAFETY: the caller holds the outputs.
                to.push((unsafe { y.ptr_mut() }, output.may_bind && is_apart));
            }
            // SAFETY: by contract; registers have room for a tile.
            unsafe {
                self.constants.iter().for_each(|constant| self.fill(constant, &from, &mut places));
                for first in (0..count).step_by(self.rows) {
                    self.tile(first, self.rows.min(count - first), &from, &to, &mut places);
                }
            }
        });
    }

    unsafe fn fill(&self, constant: &Constant, from: &[*const u8], places: &mut [*mut u8]) {
        // SAFETY: by contract.
        unsafe {
            match *constant {
                Constant::Number { value, bits, width, count } => {
                    splat(places[value as usize], bits, width, count);
                }
                Constant::Row { value, port, times: 0 } => {
                    places[value as usize] = from[port].cast_mut();
                }
                Constant::Row { value, port: k, times } => {
                    let (port, to) = (&self.ports[k], places[value as usize]);
                    load(port.dtype, to, from[k], port.col, self.n);
                    let bytes = self.n * port.dtype.compute().size();
                    for i in 1..times {
                        to.add(i * bytes).copy_from_nonoverlapping(to, bytes);
                    }
                }
            }
        }
    }

    unsafe fn tile(
        &self,
        first: usize,
        rows: usize,
        from: &[*const u8],
        to: &[(*mut u8, bool)],
        places: &mut [*mut u8],
    ) {
        let n = self.n;
        let at = |output: &Output, to: *mut u8| {
            let row = if output.is_single { 1 } else { n };
            to.wrapping_add(first * row * output.dtype.size())
        };
        for (output, &(to, binds)) in self.outputs.iter().zip(to) {
            if binds {
                let place = at(output, to);
                places[output.value as usize] = place;
                output.before.iter().for_each(|&value| places[value as usize] = place);
            }
        }
        // SAFETY: by contract.
        unsafe {
            for step in &self.steps {
                self.step(step, first, rows, from, places);
            }
            for (output, &(to, binds)) in self.outputs.iter().zip(to) {
                if !binds {
                    let count = if output.is_single { rows } else { rows * n };
                    store(output.dtype, at(output, to), 1, places[output.value as usize], count);
                }
            }
        }
    }

    #[inline]
    unsafe fn step(
        &self,
        step: &Step,
        first: usize,
        rows: usize,
        from: &[*const u8],
        places: &mut [*mut u8],
    ) {
        let n = self.n;
        let place = |value: u16| places[value as usize];
        // SAFETY: by contract.
        unsafe {
            match *step {
                Step::Load { port: k, to, is_single, is_direct } => {
                    let port = &self.ports[k];
                    let size = port.dtype.size() as isize;
                    let row = |i: usize| from[k].wrapping_offset(port.lead.at(first + i) * size);
                    if is_direct {
                        places[to as usize] = row(0).cast_mut();
                        return;
                    }
                    let (wide, count) =
                        (port.dtype.compute().size(), if is_single { 1 } else { n });
                    let stride = port.lead.stride();
                    match (stride, is_single) {
                        (Some(stride), true) => load(port.dtype, place(to), row(0), stride, rows),
                        (Some(stride), false) if stride == n as isize && port.col == 1 => {
                            load(port.dtype, place(to), row(0), 1, rows * n);
                        }
                        _ => {
                            for i in 0..rows {
                                let to = place(to).add(i * count * wide);
                                load(port.dtype, to, row(i), port.col, count);
                            }
                        }
                    }
                }
                Step::Map { kernel, round, args, to, is_single, by_row } => {
                    let (lines, each) = match (is_single, by_row) {
                        (true, _) => (1, padded(rows)),
                        (false, false) => (1, rows * n),
                        (false, true) => (rows, n),
                    };
                    for line in 0..lines {
                        let at = |value: u16| {
                            place(value).wrapping_add(line * self.strides[value as usize])
                        };
                        kernel(at(to), &args.map(|x| at(x).cast_const()), each);
                        if let Some(round) = round {
                            round(at(to), &[at(to).cast_const(); 3], each);
                        }
                    }
                }
                Step::Rows { kernel, x, singles, shared, to } => {
                    let [singles, shared] =
                        [singles, shared].map(|all| all.map(|x| place(x).cast_const()));
                    kernel(place(x), place(to), [rows, n], singles, shared);
                }
                Step::Spread { from, to, width } => {
                    for i in 0..rows {
                        let bits = width.read(place(from).add(i * width.bytes()));
                        splat(place(to).add(i * n * width.bytes()), bits, width, n);
                    }
                }
                Step::Fold { kernel, round, x, to } => {
                    kernel(place(x), rows, n, place(to));
                    if let Some(round) = round {
                        round(place(to), &[place(to).cast_const(); 3], padded(rows));
                    }
                }
                Step::FoldPairs { kernel, x, to } => {
                    kernel(x.map(|x| place(x).cast_const()), rows, n, place(to));
                }
                Step::Softmax { kernel, x, to } => kernel(place(x), place(to), [rows, n]),
            }
        }
    }
}
