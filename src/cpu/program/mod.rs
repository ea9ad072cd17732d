//! The elementwise executor: register programs interpreted over tiles.
//!
//! A program loads its inputs, runs its instructions and stores its outputs tile by tile, so that
//! intermediate values never leave the L1 cache. Every instruction rounds to its dtype; hence a
//! fused program, its ops one by one, and any cut into tiles give the same bits.

mod build;
mod chain;
mod generated;
mod map;
mod number;
mod part;
mod planes;
mod summing;
#[cfg(test)]
mod tests;
mod unplaced;

use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::array::Array;
use crate::cpu::convert::{self, load_block, store_block};
use crate::cpu::jit::Code;
use crate::cpu::moves::{Place, is_dense, stream_rows};
use crate::cpu::nest::{Block, Nest};
use crate::dtype::{DType, Scalar};
use crate::error::{self, Result};
use crate::layout::{Layout, Strides};
use crate::ops::element::{ElementOp, ElementProgram};
use crate::shape::Shape;
use crate::simd::stream_fence;
use crate::threads;
use crate::tile::{TILE, TileKernel};

pub use build::Builder;
use chain::Chain;
use generated::Generated;
pub(super) use map::map_memory;
pub use map::{MapOperand, map};
pub use number::register_bits;
pub(in crate::cpu) use number::splat;
pub use part::{Matrix, run_part};
use planes::Planes;
pub use summing::{Given, Summing};
pub use unplaced::Unplaced;

/// The work, in elements times instructions, from which a second thread pays off.
const PARALLEL: usize = 1 << 16;

/// Chunks of work per thread, so that a slow thread does not delay the end.
const CHUNKS: usize = 4;

/// The most work of a chunk, in elements times instructions: a run can be interrupted between
/// chunks.
const LONG: usize = 1 << 23;

/// The bytes from which an output is written around the caches: more than the caches hold, so that
/// loading its old contents first would only cost time.
pub(in crate::cpu) const STREAM: usize = 1 << 24;

/// Operands from which a program reads and writes memory in short blocks: processors fetch ahead by
/// what they have seen of a stream, and see little of each where a block of a page comes from one
/// after the other. (On an EPYC, blocks of 128 elements took 0.65 to 0.9 of the time of blocks of
/// 1024 with six and seven operands, no less with five.)
const WIDE: usize = 6;
/// Elements of a short block: several cache lines, and enough to set it up for.
const SHORT: usize = 128;
/// The bytes of all operands from which they are taken to come from memory. In caches, short blocks
/// cost a fifth more.
const FAR: usize = 1 << 25;

/// Registers that stay in the inner caches with the most elements that are loaded at once.
const FEW: usize = 4;

/// A value of a program: an input, a scalar or the result of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Value(u16);

#[derive(Clone)]
struct Instr {
    kernel: TileKernel,
    args: [u16; 3],
    arity: u8,
    /// Rounds the result to its dtype.
    round: Option<TileKernel>,
}

/// A register program. Values are numbered: inputs, scalars, then results in instruction order.
#[derive(Clone)]
pub struct Program {
    inputs: SmallVec<[DType; 4]>,
    scalars: SmallVec<[DType; 4]>,
    instrs: SmallVec<[Instr; 2]>,
    outputs: SmallVec<[(u16, DType); 2]>,
    /// The register of each value; values with disjoint live ranges may share one.
    registers: SmallVec<[u16; 8]>,
    register_count: usize,
    /// Bytes of the widest register element.
    width: usize,
    /// The same as steps on one value, if it is that.
    chain: Option<Chain>,
    /// The same as machine code, if it is one that may have it.
    generated: Option<Arc<Generated>>,
}

#[cfg(test)]
thread_local! {
    /// How many programs were lowered on this thread.
    pub static LOWERED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

impl Program {
    /// The register program of a group of elementwise ops.
    pub fn lower(program: &ElementProgram) -> Result<Program> {
        #[cfg(test)]
        LOWERED.set(LOWERED.get() + 1);
        let (chain, generated) = (Chain::of(program), Generated::of(program, 0));
        Ok(Program { chain, generated, ..Program::interpreted(program)? })
    }

    /// The register program alone, without a faster form of it.
    fn interpreted(program: &ElementProgram) -> Result<Program> {
        let mut builder = Builder::new(program.arrays(), program.numbers());
        for instruction in program.instructions() {
            let args: SmallVec<[Value; 3]> = instruction.args.iter().map(|x| Value(x.0)).collect();
            match instruction.op {
                ElementOp::Map(def) => {
                    let dtype = instruction.computes_in(program);
                    let Some(kernel) = def.kernel(dtype.compute()) else {
                        let what = format!("{} has no kernel for {dtype}", def.name);
                        return Err(error::internal(what));
                    };
                    builder.push(kernel, &args, instruction.dtype);
                }
                ElementOp::Cast => {
                    builder.cast(args[0], instruction.dtype);
                }
            }
        }
        let results: SmallVec<[Value; 2]> = program.results().iter().map(|x| Value(x.0)).collect();
        Ok(builder.finish(&results))
    }
}

impl Instr {
    fn args(&self) -> &[u16] {
        &self.args[..self.arity as usize]
    }
}

impl Program {
    /// The dtypes of the inputs.
    pub fn inputs(&self) -> &[DType] {
        &self.inputs
    }

    /// The dtypes of the scalars.
    pub fn scalars(&self) -> &[DType] {
        &self.scalars
    }

    /// The dtypes of the outputs.
    pub fn outputs(&self) -> impl ExactSizeIterator<Item = DType> {
        self.outputs.iter().map(|&(_, dtype)| dtype)
    }

    /// The machine code for a run over so many elements, if there is any.
    fn code(&self, count: usize) -> Option<&Code> {
        self.generated.as_ref()?.code(count)
    }

    /// The count of instructions.
    pub fn instructions(&self) -> usize {
        self.instrs.len()
    }

    /// The count of registers that tiles of values share.
    pub fn registers(&self) -> usize {
        self.register_count
    }
}

/// The memory of an input or output.
#[derive(Clone, Copy)]
struct Port {
    ptr: *mut u8,
    dtype: DType,
    row: isize,
    col: isize,
    /// Whether memory form is register form, so that a dense block can serve as the register.
    direct: bool,
    /// Whether blocks are written around the caches.
    streams: bool,
    /// Whether all its elements are one.
    repeats: bool,
}

impl Port {
    fn at(&self, offset: isize) -> Place<*mut u8> {
        Place::new(
            self.ptr.wrapping_offset(offset * self.dtype.size() as isize),
            self.row,
            self.col,
        )
    }
}

/// One run of a program.
struct Run<'a> {
    program: &'a Program,
    nest: &'a Nest,
    inputs: &'a [Port],
    outputs: &'a [Port],
    scalars: &'a [u64],
    code: Option<&'a Code>,
}

// SAFETY: threads work on different blocks, and outputs are written by whoever works on the block.
unsafe impl Sync for Run<'_> {}

/// Runs a program. All outputs have one shape, to which every input broadcasts.
///
/// # Safety
/// Nobody else reads or writes the outputs meanwhile, and none has two elements in one place. An
/// output may be the memory of an input with the same dtype and layout; otherwise it overlaps none.
pub unsafe fn run(program: &Program, inputs: &[&Array], scalars: &[Scalar], outputs: &[&Array]) {
    debug_assert!(inputs.iter().map(|x| x.dtype).eq(program.inputs.iter().copied()));
    debug_assert!(outputs.iter().map(|y| y.dtype).eq(program.outputs()));
    debug_assert_eq!(scalars.len(), program.scalars.len());
    let Some(first) = outputs.first() else { return };
    let count = first.count();
    if count == 0 {
        return;
    }
    debug_assert!(outputs.iter().all(|y| y.shape().same(first.shape())));
    let layouts: SmallVec<[&Layout; 8]> = inputs.iter().chain(outputs).map(|x| &x.layout).collect();
    let bytes = |x: &&Array| x.count() * x.dtype.size();
    let all = inputs.iter().chain(outputs).map(bytes).sum();
    let nest = nest(program, first.shape(), &layouts, all);
    let from = |k: usize| inputs[k].ptr();
    // SAFETY: the caller holds the outputs.
    let to = |j: usize| unsafe { outputs[j].ptr_mut() };
    let Ports { inputs: sources, outputs: mut targets } = program.ports(
        &nest,
        inputs.iter().map(|x| (x.ptr().cast_mut(), x.dtype)),
        outputs.iter().enumerate().map(|(j, y)| (to(j), y.dtype)),
        |j, k| to(j).cast_const() == from(k),
    );
    for target in &mut targets {
        let is_fresh = sources.iter().all(|x| x.ptr != target.ptr);
        target.streams = is_fresh && count * target.dtype.size() >= STREAM;
        target.direct &= !target.streams;
    }
    let mut numbers: SmallVec<[u64; 4]> = SmallVec::new();
    for (k, &x) in scalars.iter().enumerate() {
        numbers.push(register_bits(x, program.scalars[k]));
    }
    let work = count * program.instrs.len().max(1);
    if let (Some(chain), [target]) = (&program.chain, &targets[..])
        && let Some(planes) = Planes::of(chain, &nest, &sources, target, &numbers)
        && (planes.rows() >= CHUNKS * threads::num_threads() || work < PARALLEL)
    {
        // SAFETY: as the caller's; a row is worked on by one thread.
        return split(planes.rows(), work, 1, |range| unsafe { planes.run(range) });
    }
    let code = program.code(count);
    let (inputs, outputs, scalars) = (&sources[..], &targets[..], &numbers[..]);
    let run = Run { program, nest: &nest, inputs, outputs, scalars, code };
    split(nest.blocks(), work, 1, |range| run.blocks(range));
}

/// The nest of operands that broadcast to a shape: inputs, then outputs. `bytes` are those of all.
fn nest(program: &Program, shape: &Shape, operands: &[&Layout], bytes: usize) -> Nest {
    let count = shape.count();
    if operands.iter().all(|x| x.is_contiguous() && x.shape().count() == count) {
        let tile = if operands.len() >= WIDE && bytes >= FAR { SHORT } else { TILE };
        return Nest::line(count, operands.len(), tile);
    }
    let strides: SmallVec<[Strides; 8]> =
        operands.iter().map(|x| x.broadcast_strides(shape)).collect();
    let all: SmallVec<[&[isize]; 8]> = strides.iter().map(|s| s.as_slice()).collect();
    // So much more of a line of what is transposed is read at once.
    let square = if program.register_count <= FEW { convert::MOST } else { TILE };
    Nest::new(&shape.sizes(), &all, TILE, square)
}

/// The memory of all operands of a run.
#[derive(Clone)]
struct Ports {
    inputs: SmallVec<[Port; 4]>,
    outputs: SmallVec<[Port; 2]>,
}

impl Program {
    /// The ports of operands at these addresses, which the nest walks in this order. `shares(j, k)`
    /// says whether output `j` may lie in the memory of input `k`.
    #[inline]
    fn ports(
        &self,
        nest: &Nest,
        inputs: impl Iterator<Item = (*mut u8, DType)>,
        outputs: impl Iterator<Item = (*mut u8, DType)>,
        shares: impl Fn(usize, usize) -> bool,
    ) -> Ports {
        let port = |k: usize, ptr: *mut u8, dtype: DType, direct: bool| {
            let direct = direct && !is_narrow(dtype);
            let (row, col) = (nest.row_stride(k), nest.col_stride(k));
            Port { ptr, dtype, row, col, direct, streams: false, repeats: nest.repeats(k) }
        };
        // Pushed one by one, because for small arrays the set-up is most of a run's time.
        let mut sources: SmallVec<[Port; 4]> = SmallVec::new();
        for (k, (ptr, dtype)) in inputs.enumerate() {
            sources.push(port(k, ptr, dtype, true));
        }
        let mut targets: SmallVec<[Port; 2]> = SmallVec::new();
        for (j, (ptr, dtype)) in outputs.enumerate() {
            let binds = self.may_bind(j, |k| shares(j, k));
            targets.push(port(sources.len() + j, ptr, dtype, binds));
        }
        Ports { inputs: sources, outputs: targets }
    }

    /// Whether blocks of output `j` may serve as the register of their value. They may not if the
    /// value is not a result or is also an earlier output, nor if an input in the same memory is
    /// read after the value is written.
    #[inline]
    fn may_bind(&self, j: usize, shares: impl Fn(usize) -> bool) -> bool {
        let is_output =
            |value: u16, outputs: &[(u16, DType)]| outputs.iter().any(|&(x, _)| x == value);
        let value = self.outputs[j].0;
        let is_last = value as usize == self.registers.len() - 1;
        let is_done = |k: usize| is_last && !is_output(k as u16, &self.outputs);
        value as usize >= self.inputs.len() + self.scalars.len()
            && !is_output(value, &self.outputs[..j])
            && (0..self.inputs.len()).all(|k| !shares(k) || is_done(k))
    }
}

impl Run<'_> {
    /// Works on a range of blocks.
    fn blocks(&self, range: Range<usize>) {
        let size = (self.nest.most() * self.program.width).next_multiple_of(64);
        let registers = self.program.register_count * size;
        let repeated = self.inputs.iter().filter(|port| port.repeats).count() * size;
        let spilled = self.code.map_or(0, Code::spilled);
        with_scratch(registers + repeated + spilled, |scratch| {
            let spilled = scratch.wrapping_add(registers + repeated);
            let home =
                |value: usize| scratch.wrapping_add(self.program.registers[value] as usize * size);
            let mut places: SmallVec<[*mut u8; 16]> = SmallVec::new();
            for &register in &self.program.registers {
                places.push(scratch.wrapping_add(register as usize * size));
            }
            let count = self.nest.most();
            for (k, &bits) in self.scalars.iter().enumerate() {
                let width = self.program.scalars[k].compute().width();
                // SAFETY: a register holds a tile.
                unsafe { splat(home(self.inputs.len() + k), bits, width, count) };
            }
            // What is one number in all blocks has a tile of its own, which nothing else is put in.
            let mut spare = scratch.wrapping_add(registers);
            for (k, port) in self.inputs.iter().enumerate().filter(|(_, port)| port.repeats) {
                // SAFETY: the tile is one of those for which there is room after the registers.
                unsafe {
                    load_block(port.dtype, spare, Place::new(port.ptr.cast_const(), 0, 0), 1, count)
                };
                places[k] = spare;
                spare = spare.wrapping_add(size);
            }
            self.nest.visit(range, |block| {
                // SAFETY: places are registers or blocks of the operands; scratch is this thread's.
                unsafe { self.block(&block, &mut places, home, spilled) }
            });
            if self.outputs.iter().any(|port| port.streams) {
                stream_fence();
            }
        });
    }

    /// Loads, computes and stores one block. `places` has the address of each value.
    ///
    /// # Safety
    /// `home` gives each value a register of its own as long as it lives; `spilled` is memory for
    /// the code.
    unsafe fn block(
        &self,
        block: &Block,
        places: &mut [*mut u8],
        home: impl Fn(usize) -> *mut u8,
        spilled: *mut u8,
    ) {
        let &Block { rows, cols, offsets } = block;
        let n = rows * cols;
        let (from, to) = offsets.split_at(self.inputs.len());
        let dense = |port: &Port| port.direct && is_dense(rows, cols, port.row, port.col);
        // SAFETY: blocks lie inside their operands, registers hold a tile.
        unsafe {
            for (k, port) in self.inputs.iter().enumerate().filter(|(_, port)| !port.repeats) {
                let Place { ptr, row, col } = port.at(from[k]);
                places[k] = if dense(port) {
                    ptr
                } else {
                    load_block(
                        port.dtype,
                        home(k),
                        Place::new(ptr.cast_const(), row, col),
                        rows,
                        cols,
                    );
                    home(k)
                };
            }
            for (j, port) in self.outputs.iter().enumerate().filter(|(_, port)| port.direct) {
                let value = self.program.outputs[j].0 as usize;
                places[value] = if dense(port) { port.at(to[j]).ptr } else { home(value) };
            }
            match self.code {
                Some(code) => self.program.generate(code, places, self.scalars, n, spilled),
                None => self.program.interpret(places, n),
            }
            for (j, port) in self.outputs.iter().enumerate().filter(|(_, port)| !dense(port)) {
                let value = places[self.program.outputs[j].0 as usize].cast_const();
                let place = port.at(to[j]);
                if !port.streams || is_narrow(port.dtype) || port.col != 1 {
                    store_block(port.dtype, place, value, rows, cols);
                    continue;
                }
                let (size, step) = (port.dtype.size(), port.row * port.dtype.size() as isize);
                let (rows, cols) = match is_dense(rows, cols, port.row, port.col) {
                    true => (1, n),
                    false => (rows, cols),
                };
                stream_rows(Place::new(place.ptr, step, 1), value, rows, cols * size);
            }
        }
    }
}

impl Program {
    /// Runs the instructions on tiles: `places` has the address of each value.
    ///
    /// # Safety
    /// The places of inputs, scalars and results are those of `n` elements; a result may lie in the
    /// place of a value that nobody reads any more.
    unsafe fn interpret(&self, places: &[*mut u8], n: usize) {
        let first_result = self.registers.len() - self.instrs.len();
        for (i, instr) in self.instrs.iter().enumerate() {
            let dst = places[first_result + i];
            let at = |x: u16| places[x as usize].cast_const();
            // SAFETY: as the caller's.
            unsafe {
                (instr.kernel)(dst, &instr.args.map(at), n);
                if let Some(round) = instr.round {
                    round(dst, &[dst.cast_const(); 3], n);
                }
            }
        }
    }
}

/// Whether memory form and register form differ.
#[inline]
pub(in crate::cpu) fn is_narrow(dtype: DType) -> bool {
    matches!(dtype, DType::I8 | DType::I16 | DType::U8 | DType::U16 | DType::F16 | DType::BF16)
}

/// Calls `f` for ranges that cover `0..count`, each a multiple of `unit` long except the last: in
/// one call, or on several threads where `work` (elements times instructions) is large enough.
#[inline]
pub(in crate::cpu) fn split(
    count: usize,
    work: usize,
    unit: usize,
    f: impl Fn(Range<usize>) + Sync,
) {
    let threads = if work < PARALLEL { 1 } else { threads::num_threads() };
    if (threads <= 1 && work <= LONG) || count <= unit {
        return f(0..count);
    }
    let most = (LONG / (work / count).max(1)).max(1);
    let chunk = count.div_ceil(threads * CHUNKS).min(most).next_multiple_of(unit);
    threads::parallel_for(count.div_ceil(chunk), &|i| f(i * chunk..count.min((i + 1) * chunk)));
}

/// Calls `f` with at least `bytes` bytes of this thread's scratch memory, aligned to cache lines.
pub(in crate::cpu) fn with_scratch<R>(bytes: usize, f: impl FnOnce(*mut u8) -> R) -> R {
    #[repr(C, align(64))]
    #[derive(Clone, Copy)]
    struct Line([u8; 64]);
    thread_local! {
        static SCRATCH: Cell<Vec<Line>> = const { Cell::new(Vec::new()) };
    }
    // A nested call finds the cell empty and allocates its own memory.
    let mut lines = SCRATCH.take();
    if lines.len() * 64 < bytes {
        lines.resize(bytes.div_ceil(64), Line([0; 64]));
    }
    let result = f(lines.as_mut_ptr().cast());
    SCRATCH.set(lines);
    result
}
