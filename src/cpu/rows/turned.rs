//! Programs over rows of few elements, transposed: a line has one element of each row of a tile.
//!
//! A value has a line for each element of a row, or one line where it is a number for each row. So
//! vectors are full however short rows are, and a number of a row meets its elements without being
//! repeated: it is the same line again. Operands are transposed when they are read, and results
//! when they are written.

use smallvec::SmallVec;

use super::build::{Builder, Form, Node, Port, Work};
use super::fuse::{MOST, TILE, last_uses, uses};
use super::{Value, padded, starts};
use crate::array::Array;
use crate::cpu::convert::{load, store};
use crate::cpu::moves::{Place, move_block};
use crate::cpu::program::{splat, with_scratch};
use crate::cpu::reduce::{self, FoldLines};
use crate::dtype::{DType, Width};
use crate::tile::TileKernel;

/// Rows of a tile are a multiple of so many, which kernels take at a time.
const LANES: usize = 64;

/// Whether rows of `n` elements are transposed.
pub fn takes(n: usize) -> bool {
    n <= reduce::FEW
}

/// A program over transposed tiles of rows.
pub struct Turned {
    /// Elements of a row
    n: usize,
    /// Rows of a tile
    rows: usize,
    ports: Vec<Port>,
    /// Filled before the first tile
    constants: Vec<(Register, Constant)>,
    steps: Vec<Step>,
    outputs: Vec<Output>,
    /// Bytes of all registers, the first of which is spare: a tile is there in rows before or after it
    /// is converted
    scratch: usize,
}

/// Where a value is kept.
#[derive(Clone, Copy)]
struct Register {
    /// The first byte
    home: usize,
    /// Bytes from a line to the next: 0 where there is one line
    line: usize,
    width: Width,
}

/// A value that is the same for all tiles.
enum Constant {
    /// A number, as register bits
    Number(u64),
    /// A row that all rows share: the port
    Row(usize),
}

enum Step {
    /// Elements of rows, or a number for each
    Load { port: usize, to: Register },
    /// An elementwise op
    Map { kernel: TileKernel, round: Option<TileKernel>, args: [Register; 3], to: Register },
    /// A reduction of each row
    Fold { kernel: FoldLines, round: Option<TileKernel>, x: Register, to: Register },
}

struct Output {
    from: Register,
    /// As it is computed, and as it is written
    dtypes: [DType; 2],
    /// A number for each row, which the result has once
    is_single: bool,
}

impl Turned {
    /// See [`RowProgram::run`](super::RowProgram::run).
    pub unsafe fn run(&self, inputs: &[&Array], outputs: &[Array], count: usize) {
        with_scratch(self.scratch, |scratch| {
            let from = starts(&self.ports, inputs);
            // SAFETY: the caller holds the outputs, and vouches for the operands; registers have
            // room for a tile. What lies over an operand is written when the tile has been read.
            unsafe {
                self.constants.iter().for_each(|(to, constant)| {
                    self.fill(*to, constant, &from, scratch);
                });
                for first in (0..count).step_by(self.rows) {
                    let rows = self.rows.min(count - first);
                    for step in &self.steps {
                        self.step(step, [first, rows], &from, scratch);
                    }
                    for (output, y) in self.outputs.iter().zip(outputs) {
                        self.write(output, y.ptr_mut(), [first, rows], scratch);
                    }
                }
            }
        });
    }

    unsafe fn fill(&self, to: Register, constant: &Constant, from: &[*const u8], scratch: *mut u8) {
        let (home, width) = (scratch.wrapping_add(to.home), to.width);
        // SAFETY: by contract.
        unsafe {
            match *constant {
                Constant::Number(bits) => splat(home, bits, width, self.n * self.rows),
                Constant::Row(k) => {
                    let (port, row) = (&self.ports[k], scratch);
                    load(port.dtype, row, from[k], port.col, self.n);
                    for i in 0..self.n {
                        let bits = width.read(row.add(i * width.bytes()));
                        splat(home.add(i * to.line), bits, width, self.rows);
                    }
                }
            }
        }
    }

    /// One step for `rows` rows from `first` on.
    #[inline]
    unsafe fn step(
        &self,
        step: &Step,
        [first, rows]: [usize; 2],
        from: &[*const u8],
        scratch: *mut u8,
    ) {
        let n = self.n;
        let place = |x: Register| scratch.wrapping_add(x.home);
        // SAFETY: by contract.
        unsafe {
            match *step {
                Step::Load { port: k, to } => {
                    let port = &self.ports[k];
                    let size = port.dtype.size() as isize;
                    let row = |i: usize| from[k].wrapping_offset(port.lead.at(first + i) * size);
                    let stride = port.lead.stride();
                    if to.line == 0 {
                        match stride {
                            Some(stride) => load(port.dtype, place(to), row(0), stride, rows),
                            None => (0..rows).for_each(|i| {
                                load(port.dtype, place(to).add(i * to.width.bytes()), row(i), 0, 1);
                            }),
                        }
                        return;
                    }
                    let lines = Place::new(place(to), 1, self.rows as isize);
                    let is_wide = port.dtype.compute().dtype() == port.dtype;
                    if let (Some(stride), true) = (stride, is_wide) {
                        let x = Place::new(row(0), stride, port.col);
                        return move_block(to.width, lines, x, rows, n);
                    }
                    for i in 0..rows {
                        let line = scratch.add(i * n * to.width.bytes());
                        load(port.dtype, line, row(i), port.col, n);
                    }
                    let x = Place::new(scratch.cast_const(), n as isize, 1);
                    move_block(to.width, lines, x, rows, n);
                }
                Step::Map { kernel, round, args, to } => {
                    // Lines of numbers are read again for each line of the result.
                    let is_even = args.iter().all(|x| (x.line == 0) == (to.line == 0));
                    let (lines, each) = match to.line {
                        0 => (1, padded(rows)),
                        _ if is_even && rows == self.rows => (1, n * rows),
                        _ => (n, padded(rows)),
                    };
                    for line in 0..lines {
                        let at = |x: Register| place(x).wrapping_add(line * x.line);
                        kernel(at(to), &args.map(|x| at(x).cast_const()), each);
                        if let Some(round) = round {
                            round(at(to), &[at(to).cast_const(); 3], each);
                        }
                    }
                }
                Step::Fold { kernel, round, x, to } => {
                    let apart = x.line / x.width.bytes();
                    kernel(place(x), apart, n, padded(rows), place(to));
                    if let Some(round) = round {
                        round(place(to), &[place(to).cast_const(); 3], padded(rows));
                    }
                }
            }
        }
    }

    /// Writes a result for `rows` rows from `first` on.
    unsafe fn write(
        &self,
        output: &Output,
        y: *mut u8,
        [first, rows]: [usize; 2],
        scratch: *mut u8,
    ) {
        let Output { from, dtypes: [own, dtype], is_single } = *output;
        let (n, place) = (if is_single { 1 } else { self.n }, scratch.wrapping_add(from.home));
        let y = y.wrapping_add(first * n * dtype.size());
        // SAFETY: by contract.
        unsafe {
            if is_single {
                return store(dtype, y, 1, place, rows);
            }
            let lines =
                Place::new(place.cast_const(), 1, (from.line / from.width.bytes()) as isize);
            if own.compute().dtype() == dtype {
                return move_block(from.width, Place::new(y, n as isize, 1), lines, rows, n);
            }
            move_block(from.width, Place::new(scratch, n as isize, 1), lines, rows, n);
            store(dtype, y, 1, scratch, rows * n);
        }
    }
}

/// Gives values registers, and lists steps.
struct Lower<'a> {
    nodes: &'a [Node],
    last: &'a [usize],
    /// Bytes of a register of lines, and of one line
    room: [usize; 2],
    free: [Vec<usize>; 2],
    scratch: usize,
    rows: usize,
    /// By value
    registers: Vec<Option<Register>>,
}

impl Lower<'_> {
    /// A register for a value.
    fn take(&mut self, i: usize) -> Register {
        let node = &self.nodes[i];
        let is_line = node.form == Form::Single;
        let width = node.dtype.compute().width();
        let kind = usize::from(is_line);
        let home = self.free[kind].pop().unwrap_or_else(|| {
            self.scratch += self.room[kind];
            self.scratch - self.room[kind]
        });
        let line = if is_line { 0 } else { self.rows * width.bytes() };
        let register = Register { home, line, width };
        self.registers[i] = Some(register);
        register
    }

    /// The step of an elementwise op.
    fn map(&mut self, i: usize, kernel: TileKernel, round: Option<TileKernel>) -> Option<Step> {
        let (nodes, node) = (self.nodes, &self.nodes[i]);
        let mut args = [self.registers[node.args[0] as usize]?; 3];
        for (arg, &x) in args.iter_mut().zip(&node.args) {
            *arg = self.registers[x as usize]?;
        }
        // A kernel may write over an operand that has as many elements, as wide.
        let width = |node: &Node| node.dtype.compute().width();
        let may_share = |&x: &u16| {
            let x = &nodes[x as usize];
            x.form == node.form && width(x) == width(node)
        };
        let shares = node.args.iter().all(may_share);
        if shares {
            self.release(i, &node.args);
        }
        let to = self.take(i);
        if !shares {
            self.release(i, &node.args);
        }
        Some(Step::Map { kernel, round, args, to })
    }

    /// Frees the registers of operands that nobody reads after value `i`.
    fn release(&mut self, i: usize, args: &[u16]) {
        let mut args: SmallVec<[u16; 5]> = SmallVec::from_slice(args);
        args.sort_unstable();
        args.dedup();
        for x in args.into_iter().map(usize::from) {
            let form = self.nodes[x].form;
            if self.last[x] == i
                && matches!(form, Form::Whole | Form::Single)
                && let Some(register) = self.registers[x]
            {
                self.free[usize::from(form == Form::Single)].push(register.home);
            }
        }
    }
}

/// The program that gives these values, in dtypes; `None` where its registers would not stay in a
/// near cache.
pub(super) fn finish(builder: Builder, results: &[(Value, DType)]) -> Option<Turned> {
    let Builder { n, mut nodes, ports } = builder;
    // A number of the row is one line, whoever reads it.
    let single: Vec<Option<u16>> =
        nodes.iter().map(|node| matches!(node.work, Work::Spread).then(|| node.args[0])).collect();
    for node in &mut nodes {
        for x in &mut node.args {
            *x = single[*x as usize].unwrap_or(*x);
        }
    }
    let spread: SmallVec<[(Value, DType, bool); 4]> = results
        .iter()
        .map(|&(x, dtype)| match single[x.0 as usize] {
            Some(own) => (Value(own), dtype, false),
            None => (x, dtype, nodes[x.0 as usize].form == Form::Single),
        })
        .collect();
    let results: SmallVec<[(Value, DType); 4]> =
        spread.iter().map(|&(x, dtype, _)| (x, dtype)).collect();
    let uses = uses(&nodes, &results);
    let last = last_uses(&nodes, &uses, &results);
    let widest = nodes.iter().map(|node| node.dtype.compute().size()).max()?;
    let rows = (TILE / n / LANES * LANES).max(LANES);
    let room = [n * rows * widest, rows * widest].map(|bytes| bytes.next_multiple_of(64));
    let mut lower = Lower {
        nodes: &nodes,
        last: &last,
        room,
        free: [Vec::new(), Vec::new()],
        scratch: room[0],
        rows,
        registers: vec![None; nodes.len()],
    };
    let (mut constants, mut steps) = (Vec::new(), Vec::new());
    // Constants keep their registers, so they come first.
    let is_used = |i: &usize| uses[*i] > 0;
    for i in (0..nodes.len()).filter(is_used) {
        let constant = match nodes[i].work {
            Work::Number(bits) => Constant::Number(bits),
            Work::Port(port) if nodes[i].form == Form::Shared => Constant::Row(port),
            Work::Port(_)
            | Work::Map { .. }
            | Work::Spread
            | Work::Fold { .. }
            | Work::FoldPairs(_)
            | Work::Rows(_)
            | Work::Softmax(_) => continue,
        };
        constants.push((lower.take(i), constant));
    }
    for i in (0..nodes.len()).filter(is_used) {
        let node = &nodes[i];
        match node.work {
            Work::Port(port) if node.form != Form::Shared => {
                let to = lower.take(i);
                steps.push(Step::Load { port, to });
            }
            Work::Port(_) | Work::Number(_) => {}
            Work::Map { kernel, round, .. } => steps.push(lower.map(i, kernel, round)?),
            Work::Fold { kind, round, .. } => {
                let x = lower.registers[node.args[0] as usize]?;
                let kernel = reduce::fold_of_lines(kind, node.dtype.compute().dtype())?;
                let to = lower.take(i);
                lower.release(i, &node.args);
                steps.push(Step::Fold { kernel, round, x, to });
            }
            Work::Spread | Work::FoldPairs(_) | Work::Rows(_) | Work::Softmax(_) => return None,
        }
    }
    let mut outputs = Vec::with_capacity(results.len());
    for (x, dtype, is_single) in spread {
        let i = x.0 as usize;
        if !matches!(nodes[i].form, Form::Whole | Form::Single) {
            return None;
        }
        let from = lower.registers[i]?;
        outputs.push(Output { from, dtypes: [nodes[i].dtype, dtype], is_single });
    }
    let scratch = lower.scratch;
    (scratch <= MOST).then_some(Turned { n, rows, ports, constants, steps, outputs, scratch })
}
