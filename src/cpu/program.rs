//! The elementwise executor: register programs interpreted over tiles.
//!
//! A program loads its inputs, runs its instructions and stores its outputs tile by tile, so that
//! what is computed in between never leaves the innermost cache. Every instruction rounds to its
//! dtype; hence a fused program, its ops one by one, and any cut into tiles give the same bits.

use std::cell::Cell;
use std::ops::Range;

use smallvec::SmallVec;

use super::convert::{load_block, store_block};
use super::moves::{Place, is_dense};
use super::nest::{Block, Nest};
use crate::array::Array;
use crate::dtype::{Compute, DType, Scalar};
use crate::layout::Strides;
use crate::simd::{stream_copy, stream_fence};
use crate::threads;
use crate::tile::{self, TILE, TileKernel};

/// Element-instructions above which a second thread pays for its hand-off.
const PARALLEL: usize = 1 << 16;

/// Chunks of work per thread, so that a late thread does not delay the end.
const CHUNKS: usize = 4;

/// Bytes of an output above which it is written past the caches: more than they hold, so that reading
/// its old contents first would only cost time.
const STREAM: usize = 1 << 24;

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
    /// The register of each value; several values share one if they do not live at the same time.
    registers: SmallVec<[u16; 8]>,
    register_count: usize,
    /// Bytes of the widest register element.
    width: usize,
}

/// Collects the instructions of a program.
pub struct Builder {
    program: Program,
    /// The dtype of each value.
    dtypes: SmallVec<[DType; 8]>,
}

impl Builder {
    /// A builder for a program of these inputs and scalars.
    pub fn new(inputs: &[DType], scalars: &[DType]) -> Builder {
        let program = Program {
            inputs: SmallVec::from_slice(inputs),
            scalars: SmallVec::from_slice(scalars),
            instrs: SmallVec::new(),
            outputs: SmallVec::new(),
            registers: SmallVec::new(),
            register_count: 0,
            width: 1,
        };
        Builder { program, dtypes: inputs.iter().chain(scalars).copied().collect() }
    }

    /// An input, by position.
    pub fn input(&self, i: usize) -> Value {
        debug_assert!(i < self.program.inputs.len());
        Value(i as u16)
    }

    /// A scalar, by position.
    pub fn scalar(&self, i: usize) -> Value {
        debug_assert!(i < self.program.scalars.len());
        Value((self.program.inputs.len() + i) as u16)
    }

    /// The dtype of a value.
    pub fn dtype(&self, x: Value) -> DType {
        self.dtypes[x.0 as usize]
    }

    /// Adds an instruction: its kernel reads the register forms of `args` and gives that of `dtype`,
    /// to which the result is then rounded.
    pub fn push(&mut self, kernel: TileKernel, args: &[Value], dtype: DType) -> Value {
        self.add(kernel, args, dtype, tile::round_through(dtype))
    }

    /// Converts a value, as [`tile::cast`] does.
    pub fn cast(&mut self, x: Value, dtype: DType) -> Value {
        let from = self.dtype(x);
        if from == dtype {
            return x;
        }
        self.add(tile::cast(from.compute(), dtype), &[x], dtype, None)
    }

    fn add(
        &mut self,
        kernel: TileKernel,
        args: &[Value],
        dtype: DType,
        round: Option<TileKernel>,
    ) -> Value {
        let mut numbers = [0; 3];
        numbers.iter_mut().zip(args).for_each(|(n, x)| *n = x.0);
        self.program.instrs.push(Instr { kernel, args: numbers, arity: args.len() as u8, round });
        self.dtypes.push(dtype);
        Value((self.dtypes.len() - 1) as u16)
    }

    /// The program that stores these values.
    pub fn finish(mut self, outputs: &[Value]) -> Program {
        self.program.outputs = outputs.iter().map(|&x| (x.0, self.dtype(x))).collect();
        self.allocate();
        self.program
    }

    /// Gives every value a register. A register is free again after the last use of its value;
    /// scalars and outputs keep theirs.
    fn allocate(&mut self) {
        let program = &mut self.program;
        let first_result = program.inputs.len() + program.scalars.len();
        let width = |v: usize| self.dtypes[v].compute().size();
        // The instruction that uses a value last, counted from one; 0: none.
        let mut last_use: SmallVec<[usize; 8]> = SmallVec::from_elem(0, self.dtypes.len());
        for (i, instr) in program.instrs.iter().enumerate() {
            instr.args().iter().for_each(|&x| last_use[x as usize] = i + 1);
        }
        last_use[program.inputs.len()..first_result].fill(usize::MAX);
        program.outputs.iter().for_each(|&(x, _)| last_use[x as usize] = usize::MAX);

        program.registers = (0..first_result as u16).collect();
        program.register_count = first_result;
        let mut free: SmallVec<[u16; 8]> = SmallVec::new();
        for (i, instr) in program.instrs.iter().enumerate() {
            let dst = first_result + i;
            let mut dead: SmallVec<[u16; 3]> = SmallVec::from_slice(instr.args());
            dead.sort_unstable();
            dead.dedup();
            dead.retain(|x| last_use[*x as usize] == i + 1);
            // A kernel may write over an argument whose elements are no smaller.
            let place = dead.iter().position(|&x| width(x as usize) >= width(dst));
            let register = match place {
                Some(k) => program.registers[dead.remove(k) as usize],
                None => free.pop().unwrap_or_else(|| {
                    program.register_count += 1;
                    program.register_count as u16 - 1
                }),
            };
            free.extend(dead.iter().map(|&x| program.registers[x as usize]));
            if last_use[dst] == 0 {
                free.push(register);
            }
            program.registers.push(register);
        }
        program.width = (0..self.dtypes.len()).map(width).max().unwrap_or(1);
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

    /// The count of instructions.
    pub fn instructions(&self) -> usize {
        self.instrs.len()
    }

    /// The count of registers that tiles of values share.
    pub fn registers(&self) -> usize {
        self.register_count
    }
}

/// Where an input or output lies.
struct Port {
    ptr: *mut u8,
    dtype: DType,
    row: isize,
    col: isize,
    /// Memory form is register form, so that a dense block can serve as the register itself.
    direct: bool,
    /// Blocks are written past the caches.
    streams: bool,
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
    nest: Nest,
    inputs: SmallVec<[Port; 4]>,
    outputs: SmallVec<[Port; 2]>,
    scalars: SmallVec<[u64; 4]>,
}

// SAFETY: threads work on different blocks, and outputs are written by whoever works on the block.
unsafe impl Sync for Run<'_> {}

/// Runs a program. All outputs have one shape, to which every input broadcasts.
///
/// # Safety
/// The outputs are in C order and nobody else reads or writes them meanwhile. An output may be the
/// memory of an input with the same dtype and layout; otherwise it overlaps none.
pub unsafe fn run(program: &Program, inputs: &[&Array], scalars: &[Scalar], outputs: &[&Array]) {
    debug_assert!(inputs.iter().map(|x| x.dtype).eq(program.inputs.iter().copied()));
    debug_assert!(outputs.iter().map(|y| y.dtype).eq(program.outputs()));
    debug_assert_eq!(scalars.len(), program.scalars.len());
    let Some(first) = outputs.first().filter(|y| y.count() > 0) else { return };
    debug_assert!(outputs.iter().all(|y| y.is_contiguous() && y.shape() == first.shape()));
    let nest = nest(first, inputs, outputs.len());
    let port = |k: usize, array: &Array, ptr: *mut u8, direct: bool| {
        let direct = direct && !is_narrow(array.dtype);
        let (row, col) = (nest.row_stride(k), nest.col_stride(k));
        Port { ptr, dtype: array.dtype, row, col, direct, streams: false }
    };
    let run = Run {
        inputs: inputs
            .iter()
            .enumerate()
            .map(|(k, x)| port(k, x, x.ptr().cast_mut(), true))
            .collect(),
        outputs: (0..outputs.len())
            .map(|j| {
                // SAFETY: the caller holds the outputs.
                let ptr = unsafe { outputs[j].ptr_mut() };
                let is_fresh = inputs.iter().all(|x| x.ptr() != ptr.cast_const());
                let streams = is_fresh && outputs[j].count() * outputs[j].dtype.size() >= STREAM;
                let binds = !streams && program.may_bind(j, ptr, inputs);
                Port { streams, ..port(inputs.len() + j, outputs[j], ptr, binds) }
            })
            .collect(),
        scalars: scalars
            .iter()
            .zip(&program.scalars)
            .map(|(&x, &dtype)| register_bits(x, dtype))
            .collect(),
        program,
        nest,
    };
    let work = first.count() * program.instrs.len().max(1);
    split(run.nest.blocks(), work, 1, |range| run.blocks(range));
}

/// The nest of the operands of a run: inputs, then outputs.
fn nest(out: &Array, inputs: &[&Array], outputs: usize) -> Nest {
    let count = out.count();
    if inputs.iter().all(|x| x.is_contiguous() && x.count() == count) {
        let ones: SmallVec<[&[isize]; 8]> = SmallVec::from_elem(&[1][..], inputs.len() + outputs);
        return Nest::new(&[count], &ones, TILE);
    }
    let own = out.layout.strides();
    let strides: SmallVec<[Strides; 4]> =
        inputs.iter().map(|x| x.layout.broadcast_strides(out.shape())).collect();
    let mut all: SmallVec<[&[isize]; 8]> = strides.iter().map(|s| s.as_slice()).collect();
    all.extend((0..outputs).map(|_| own.as_slice()));
    Nest::new(&out.shape().sizes(), &all, TILE)
}

impl Program {
    /// Whether blocks of output `j` may serve as the register of their value. Not if the value is
    /// no result or is an earlier output too; nor if an input in the same memory is still wanted once
    /// the value is written.
    fn may_bind(&self, j: usize, ptr: *mut u8, inputs: &[&Array]) -> bool {
        let is_output =
            |value: u16, outputs: &[(u16, DType)]| outputs.iter().any(|&(x, _)| x == value);
        let value = self.outputs[j].0;
        let is_last = value as usize == self.registers.len() - 1;
        value as usize >= self.inputs.len() + self.scalars.len()
            && !is_output(value, &self.outputs[..j])
            && (0..inputs.len())
                .filter(|&k| inputs[k].ptr() == ptr.cast_const())
                .all(|k| is_last && !is_output(k as u16, &self.outputs))
    }
}

impl Run<'_> {
    /// Works on a range of blocks.
    fn blocks(&self, range: Range<usize>) {
        let size = TILE * self.program.width;
        with_scratch(self.program.register_count * size, |scratch| {
            let home =
                |value: usize| scratch.wrapping_add(self.program.registers[value] as usize * size);
            let mut places: SmallVec<[*mut u8; 16]> =
                (0..self.program.registers.len()).map(home).collect();
            let count = self.nest.count().min(TILE);
            for (k, (&bits, dtype)) in self.scalars.iter().zip(&self.program.scalars).enumerate() {
                // SAFETY: a register holds a tile.
                unsafe { splat(home(self.inputs.len() + k), bits, dtype.compute().size(), count) };
            }
            self.nest.visit(range, |block| {
                // SAFETY: places are registers or blocks of the operands; scratch is this thread's.
                unsafe { self.block(&block, &mut places, home) }
            });
            if self.outputs.iter().any(|port| port.streams) {
                stream_fence();
            }
        });
    }

    /// Loads, computes and stores one block. `places` says where each value is.
    ///
    /// # Safety
    /// `home` gives each value a register of its own as long as it lives.
    unsafe fn block(&self, block: &Block, places: &mut [*mut u8], home: impl Fn(usize) -> *mut u8) {
        let &Block { rows, cols, offsets } = block;
        let n = rows * cols;
        let (from, to) = offsets.split_at(self.inputs.len());
        let dense = |port: &Port| port.direct && is_dense(rows, cols, port.row, port.col);
        // SAFETY: blocks lie inside their operands, registers hold a tile.
        unsafe {
            for (k, port) in self.inputs.iter().enumerate() {
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
            let first_result = self.program.registers.len() - self.program.instrs.len();
            for (i, instr) in self.program.instrs.iter().enumerate() {
                let dst = places[first_result + i];
                (instr.kernel)(dst, &instr.args.map(|x| places[x as usize].cast_const()), n);
                if let Some(round) = instr.round {
                    round(dst, &[dst.cast_const(); 3], n);
                }
            }
            for (j, port) in self.outputs.iter().enumerate().filter(|(_, port)| !dense(port)) {
                let value = places[self.program.outputs[j].0 as usize].cast_const();
                let place = port.at(to[j]);
                if port.streams
                    && !is_narrow(port.dtype)
                    && is_dense(rows, cols, port.row, port.col)
                {
                    stream_copy(place.ptr, value, n * port.dtype.size());
                } else {
                    store_block(port.dtype, place, value, rows, cols);
                }
            }
        }
    }
}

/// An operand of one op.
#[derive(Clone, Copy)]
pub enum Operand<'a> {
    /// A tensor
    Array(&'a Array),
    /// A number, rounded to its dtype before use
    Scalar(Scalar, DType),
}

/// Runs one op: `kernel` on the register forms of up to three operands, which broadcast to `out`.
///
/// # Safety
/// As for [`run`].
pub unsafe fn map(kernel: TileKernel, args: &[Operand], out: &Array) {
    let n = out.count();
    let is_flat =
        |x: &Array| x.is_contiguous() && (x.count() == n || x.count() == 1) && !is_narrow(x.dtype);
    let all_flat = args.iter().all(|arg| match arg {
        Operand::Array(x) => is_flat(x),
        Operand::Scalar(..) => true,
    });
    if !all_flat || !is_flat(out) {
        // SAFETY: as the caller's.
        return unsafe { map_blocks(kernel, args, out) };
    }
    let mut flat = Flat {
        kernel,
        // SAFETY: the caller holds the output.
        dst: unsafe { out.ptr_mut() },
        dst_size: out.dtype.size(),
        bytes: n * out.dtype.size(),
        args: [std::ptr::null(); 3],
        sizes: [0; 3],
        scalars: [(0, 0); 3],
    };
    for (k, arg) in args.iter().enumerate() {
        match *arg {
            Operand::Array(x) if x.count() == n => {
                (flat.args[k], flat.sizes[k]) = (x.ptr(), x.dtype.size())
            }
            // SAFETY: the array has an element.
            Operand::Array(x) => flat.scalars[k] = unsafe { (element_bits(x), x.dtype.size()) },
            Operand::Scalar(x, dtype) => {
                flat.scalars[k] = (register_bits(x, dtype), dtype.compute().size())
            }
        }
    }
    split(n, n, TILE, |range| flat.range(range));
}

/// Runs a kernel of one argument on memory as it is: no element is loaded or stored in another form.
///
/// # Safety
/// As for [`run`]; `x` and `out` are in C order, and their memory forms are what the kernel works on.
pub(super) unsafe fn map_memory(kernel: TileKernel, x: &Array, out: &Array) {
    let n = out.count();
    let flat = Flat {
        kernel,
        // SAFETY: the caller holds the output.
        dst: unsafe { out.ptr_mut() },
        dst_size: out.dtype.size(),
        bytes: n * out.dtype.size(),
        args: [x.ptr(); 3],
        sizes: [x.dtype.size(); 3],
        scalars: [(0, 0); 3],
    };
    split(n, n, TILE, |range| flat.range(range));
}

/// The bits of an array's first element.
///
/// # Safety
/// The array has an element.
unsafe fn element_bits(x: &Array) -> u64 {
    let mut bits = 0u64;
    // SAFETY: an element has at most eight bytes.
    unsafe { (&raw mut bits).cast::<u8>().copy_from_nonoverlapping(x.ptr(), x.dtype.size()) };
    bits
}

/// Whether memory form and register form differ.
#[inline]
fn is_narrow(dtype: DType) -> bool {
    matches!(dtype, DType::I8 | DType::I16 | DType::U8 | DType::U16 | DType::F16 | DType::BF16)
}

/// One op on memory that is in register form and C order throughout.
struct Flat {
    kernel: TileKernel,
    dst: *mut u8,
    dst_size: usize,
    /// Bytes of the whole output.
    bytes: usize,
    args: [*const u8; 3],
    /// Bytes of an element of each argument; 0 for a scalar.
    sizes: [usize; 3],
    /// Bits and bytes of each scalar; no bytes for an array.
    scalars: [(u64, usize); 3],
}

// SAFETY: threads work on different elements.
unsafe impl Sync for Flat {}

impl Flat {
    /// Works on a range of elements.
    #[inline]
    fn range(&self, range: Range<usize>) {
        /// Elements of a scalar that are spread on the stack.
        const SMALL: usize = 64;
        #[repr(C, align(64))]
        struct Spread([[u64; SMALL]; 3]);
        let has_scalars = self.scalars.iter().any(|&(_, size)| size != 0);
        if self.streams() {
            with_scratch(4 * 8 * TILE, |scratch| {
                let args = self.spread(scratch, TILE);
                self.pieces(range, TILE, args, Some(scratch.wrapping_add(3 * 8 * TILE)));
            });
        } else if !has_scalars {
            self.pieces(range.clone(), range.len(), self.args, None);
        } else if range.len() <= SMALL {
            let mut room = std::mem::MaybeUninit::<Spread>::uninit();
            let args = self.spread(room.as_mut_ptr().cast(), range.len());
            self.pieces(range, SMALL, args, None);
        } else {
            with_scratch(3 * 8 * TILE, |scratch| {
                let args = self.spread(scratch, TILE.min(range.len()));
                self.pieces(range, TILE, args, None);
            });
        }
    }

    /// Whether the output is written past the caches.
    #[inline]
    fn streams(&self) -> bool {
        self.bytes >= STREAM && self.args.iter().all(|&x| x != self.dst.cast_const())
    }

    /// The arguments, with scalars repeated `n` times in `room`.
    #[inline]
    fn spread(&self, mut room: *mut u8, n: usize) -> [*const u8; 3] {
        let mut args = self.args;
        for (arg, &(bits, size)) in args.iter_mut().zip(&self.scalars).filter(|(_, x)| x.1 != 0) {
            *arg = room;
            // SAFETY: the room holds three times `n` eight-byte elements.
            unsafe { splat(room, bits, size, n) };
            room = room.wrapping_add(n.next_multiple_of(8) * size);
        }
        args
    }

    /// Works on a range in pieces of at most `piece` elements; by way of `tile`, if there is one, from
    /// which the results are streamed.
    #[inline]
    fn pieces(
        &self,
        range: Range<usize>,
        piece: usize,
        args: [*const u8; 3],
        tile: Option<*mut u8>,
    ) {
        let mut at = range.start;
        while at < range.end {
            let n = piece.min(range.end - at);
            let moved = std::array::from_fn(|k| args[k].wrapping_add(at * self.sizes[k]));
            let dst = self.dst.wrapping_add(at * self.dst_size);
            // SAFETY: the range is inside every operand; an output that is also an operand is
            // exactly that operand.
            unsafe {
                (self.kernel)(tile.unwrap_or(dst), &moved, n);
                if let Some(tile) = tile {
                    stream_copy(dst, tile, n * self.dst_size);
                }
            }
            at += piece;
        }
        if tile.is_some() {
            stream_fence();
        }
    }
}

/// Runs one op as a program of one instruction.
///
/// # Safety
/// As for [`run`].
unsafe fn map_blocks(kernel: TileKernel, args: &[Operand], out: &Array) {
    let mut arrays: SmallVec<[&Array; 3]> = SmallVec::new();
    let mut numbers: SmallVec<[Scalar; 3]> = SmallVec::new();
    let mut program = Program {
        inputs: SmallVec::new(),
        scalars: SmallVec::new(),
        instrs: SmallVec::new(),
        outputs: SmallVec::new(),
        registers: SmallVec::new(),
        register_count: args.len() + 1,
        width: out.dtype.compute().size(),
    };
    for arg in args {
        let dtype = match *arg {
            Operand::Array(x) => {
                arrays.push(x);
                program.inputs.push(x.dtype);
                x.dtype
            }
            Operand::Scalar(x, dtype) => {
                numbers.push(x);
                program.scalars.push(dtype);
                dtype
            }
        };
        program.width = program.width.max(dtype.compute().size());
    }
    let (mut array, mut number) = (0, arrays.len() as u16);
    let mut instr = Instr { kernel, args: [0; 3], arity: args.len() as u8, round: None };
    for (place, arg) in instr.args.iter_mut().zip(args) {
        let next = if matches!(arg, Operand::Array(_)) { &mut array } else { &mut number };
        *place = *next;
        *next += 1;
    }
    // The store rounds, so the instruction need not.
    program.instrs.push(instr);
    program.outputs.push((args.len() as u16, out.dtype));
    (0..=args.len() as u16).for_each(|value| program.registers.push(value));
    // SAFETY: as the caller's.
    unsafe { run(&program, &arrays, &numbers, &[out]) }
}

/// A number in register form, rounded to its dtype.
#[inline]
pub fn register_bits(x: Scalar, dtype: DType) -> u64 {
    match (x, dtype) {
        (Scalar::Float(x), DType::F32) => (x as f32).to_bits().into(),
        (Scalar::Float(x), DType::F64) => x.to_bits(),
        (Scalar::Int(i), DType::F32) => (i as f32).to_bits().into(),
        (Scalar::Int(i), DType::I64) => i as u64,
        _ => converted_bits(x, dtype),
    }
}

fn converted_bits(x: Scalar, dtype: DType) -> u64 {
    let from = match x {
        Scalar::Bool(_) | Scalar::Int(_) => Compute::I64,
        Scalar::Uint(_) => Compute::U64,
        Scalar::Float(_) => Compute::F64,
    };
    let (bits, mut out) = (x.register_bits(from), 0u64);
    let arg = (&raw const bits).cast::<u8>();
    // SAFETY: one element of at most eight bytes on either side.
    unsafe { tile::cast(from, dtype)((&raw mut out).cast(), &[arg; 3], 1) };
    out
}

/// Fills `n` elements of `size` bytes with the same bits.
///
/// # Safety
/// `dst` is valid for `n` elements and aligned to them.
#[inline]
unsafe fn splat(dst: *mut u8, bits: u64, size: usize, n: usize) {
    // SAFETY: as the caller's.
    unsafe {
        match size {
            1 => dst.write_bytes(bits as u8, n),
            4 => std::slice::from_raw_parts_mut(dst.cast::<u32>(), n).fill(bits as u32),
            _ => std::slice::from_raw_parts_mut(dst.cast::<u64>(), n).fill(bits),
        }
    }
}

/// Calls `f` for ranges that cover `0..count`, each but the last a multiple of `unit` long: all at
/// once, or on several threads where `work` (elements times instructions) is worth it.
#[inline]
pub(super) fn split(count: usize, work: usize, unit: usize, f: impl Fn(Range<usize>) + Sync) {
    let threads = if work < PARALLEL { 1 } else { threads::num_threads() };
    if threads <= 1 || count <= unit {
        return f(0..count);
    }
    let chunk = count.div_ceil(threads * CHUNKS).next_multiple_of(unit);
    threads::parallel_for(count.div_ceil(chunk), &|i| f(i * chunk..count.min((i + 1) * chunk)));
}

/// Calls `f` with at least `bytes` bytes of this thread's scratch memory, aligned to cache lines.
fn with_scratch<R>(bytes: usize, f: impl FnOnce(*mut u8) -> R) -> R {
    #[repr(C, align(64))]
    #[derive(Clone, Copy)]
    struct Line([u8; 64]);
    thread_local! {
        static SCRATCH: Cell<Vec<Line>> = const { Cell::new(Vec::new()) };
    }
    // A nested call finds nothing and allocates its own.
    let mut lines = SCRATCH.take();
    if lines.len() * 64 < bytes {
        lines.resize(bytes.div_ceil(64), Line([0; 64]));
    }
    let result = f(lines.as_mut_ptr().cast());
    SCRATCH.set(lines);
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Layout;
    use crate::shape::Shape;
    use crate::tile::{Map2, Map3, kernel2, kernel3};

    struct Sub;
    impl Map2<f32, f32> for Sub {
        type Out = f32;
        fn map(a: f32, b: f32) -> f32 {
            a - b
        }
    }
    struct Mul;
    impl Map2<f32, f32> for Mul {
        type Out = f32;
        fn map(a: f32, b: f32) -> f32 {
            a * b
        }
    }
    struct Less;
    impl Map2<f32, f32> for Less {
        type Out = bool;
        fn map(a: f32, b: f32) -> bool {
            a < b
        }
    }
    struct Where;
    impl Map3<bool, f32, f32> for Where {
        type Out = f32;
        fn map(c: bool, a: f32, b: f32) -> f32 {
            if c { a } else { b }
        }
    }

    fn sub() -> TileKernel {
        kernel2::<Sub, f32, f32>()
    }
    fn mul() -> TileKernel {
        kernel2::<Mul, f32, f32>()
    }
    fn less() -> TileKernel {
        kernel2::<Less, f32, f32>()
    }
    fn select() -> TileKernel {
        kernel3::<Where, bool, f32, f32>()
    }

    /// An array of `f(0), f(1), …` as a dtype, in C order.
    fn array(dtype: DType, sizes: &[usize], f: impl Fn(usize) -> f32) -> Array {
        let out = Array::uninit(dtype, Shape::of(sizes)).unwrap();
        let values: Vec<f32> = (0..out.count()).map(f).collect();
        // SAFETY: the array is fresh and `values` has its count.
        unsafe {
            super::super::convert::store(
                dtype,
                out.ptr_mut(),
                1,
                values.as_ptr().cast(),
                values.len(),
            )
        };
        out
    }

    fn numbers(i: usize) -> f32 {
        (i.wrapping_mul(2654435761) % 20011) as f32 / 97.0 - 100.3
    }

    fn bytes(x: &Array) -> &[u8] {
        assert!(x.is_contiguous());
        // SAFETY: the elements are initialised.
        unsafe { std::slice::from_raw_parts(x.ptr(), x.count() * x.dtype.size()) }
    }

    fn floats(x: &Array) -> Vec<f32> {
        bytes(x).chunks(4).map(|c| f32::from_le_bytes(c.try_into().unwrap())).collect()
    }

    /// The value at each index of `shape`, read through the layout one element at a time.
    fn naive(x: &Array, shape: &[usize]) -> Vec<f32> {
        let strides = x.layout.broadcast_strides(&Shape::of(shape));
        let own = crate::layout::row_major(shape);
        (0..shape.iter().product())
            .map(|i| {
                let offset: isize = (0..shape.len())
                    .map(|a| (i / own[a] as usize % shape[a]) as isize * strides[a])
                    .sum();
                // SAFETY: the layout keeps inside its buffer.
                unsafe { *x.ptr().cast::<f32>().offset(offset) }
            })
            .collect()
    }

    fn view(x: &Array, sizes: &[usize], strides: &[isize], offset: usize) -> Array {
        x.view(Layout::strided(Shape::of(sizes), strides, offset))
    }

    /// `a - b` in a fresh array.
    fn difference(a: &Array, b: &Array, shape: &[usize]) -> Array {
        let out = Array::uninit(a.dtype, Shape::of(shape)).unwrap();
        // SAFETY: the output is fresh.
        unsafe { map(sub(), &[Operand::Array(a), Operand::Array(b)], &out) };
        out
    }

    /// Arrays that broadcast to `(rows, cols)` in every kind of layout.
    fn layouts(rows: usize, cols: usize) -> Vec<Array> {
        let (r, c) = (rows as isize, cols as isize);
        let x = array(DType::F32, &[4 * rows * cols + 8], numbers);
        vec![
            view(&x, &[rows, cols], &[c, 1], 0),
            view(&x, &[rows, cols], &[c, 1], 3),
            view(&x, &[rows, cols], &[1, r], 0),
            view(&x, &[rows, cols], &[2 * c + 1, 2], 1),
            view(&x, &[rows, cols], &[-c, -1], rows * cols),
            view(&x, &[rows, cols], &[c, -1], cols),
            view(&x, &[rows, cols], &[-1, r], rows),
            view(&x, &[rows, 1], &[1, 1], 2),
            view(&x, &[rows, 1], &[3, 1], 2),
            view(&x, &[cols], &[1], 5),
            view(&x, &[cols], &[-2], 2 * cols),
            view(&x, &[1, 1], &[9, 9], 4),
            view(&x, &[], &[], 6),
            view(&x, &[rows, cols], &[0, 0], 7),
        ]
    }

    #[test]
    fn every_layout_computes_the_same_as_a_plain_loop() {
        for (rows, cols) in
            [(1, 1), (1, 16), (7, 5), (3, 1500), (1500, 3), (70, 90), (300, 310), (0, 4), (4, 0)]
        {
            let all = layouts(rows, cols);
            for a in &all {
                for b in &all {
                    let out = difference(a, b, &[rows, cols]);
                    let (x, y) = (naive(a, &[rows, cols]), naive(b, &[rows, cols]));
                    let want: Vec<f32> = x.iter().zip(&y).map(|(x, y)| x - y).collect();
                    assert_eq!(
                        floats(&out),
                        want,
                        "({rows}, {cols}) {:?} {:?}",
                        a.layout,
                        b.layout
                    );
                }
            }
        }
    }

    #[test]
    fn inner_axes_permute_in_any_order() {
        let x = array(DType::F32, &[6 * 35 * 40], numbers);
        let y = array(DType::F32, &[6, 35, 40], |i| i as f32);
        for strides in
            [[1400, 40, 1], [1, 6, 210], [35, 1, 210], [40, 240, 1], [1400, 1, 35], [1, 240, 6]]
        {
            let view = view(&x, &[6, 35, 40], &strides, 0);
            let want: Vec<f32> =
                naive(&view, &[6, 35, 40]).iter().enumerate().map(|(i, v)| v - i as f32).collect();
            assert_eq!(floats(&difference(&view, &y, &[6, 35, 40])), want, "{strides:?}");
        }
    }

    #[test]
    fn scalars_and_mixed_registers() {
        for n in [0, 1, 16, 63, 64, 65, 3000] {
            let a = array(DType::F32, &[n], numbers);
            let mask = Array::uninit(DType::Bool, Shape::of(&[n])).unwrap();
            let out = Array::uninit(DType::F32, Shape::of(&[n])).unwrap();
            let three = Operand::Scalar(Scalar::Int(3), DType::F32);
            // SAFETY: the outputs are fresh.
            unsafe {
                map(less(), &[Operand::Array(&a), three], &mask);
                map(select(), &[Operand::Array(&mask), three, Operand::Array(&a)], &out);
            }
            let want: Vec<f32> =
                floats(&a).iter().map(|&x| if x < 3.0 { 3.0 } else { x }).collect();
            assert_eq!(floats(&out), want);
        }
    }

    #[test]
    fn an_output_may_be_the_memory_of_an_input() {
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            let a = array(dtype, &[3000], numbers);
            let b = array(dtype, &[3000], |i| numbers(i + 77));
            let want = difference(&a, &b, &[3000]);
            // SAFETY: nobody else reads `a`.
            unsafe { map(sub(), &[Operand::Array(&a), Operand::Array(&b)], &a) };
            assert_eq!(bytes(&a), bytes(&want), "{dtype}");
        }
    }

    /// `((a - b) * a < b ? a : (a - b)) * s` and `a - b`, step by step and as one program.
    fn both_ways(dtype: DType, a: &Array, b: &Array, s: Scalar, shape: &[usize]) -> [Array; 4] {
        let fresh = |dtype| Array::uninit(dtype, Shape::of(shape)).unwrap();
        let [d, m, w, y] = [dtype; 4].map(fresh);
        let c = fresh(DType::Bool);
        let x = Operand::Array;
        let mut builder = Builder::new(&[dtype, dtype], &[dtype]);
        let (va, vb, vs) = (builder.input(0), builder.input(1), builder.scalar(0));
        let vd = builder.push(sub(), &[va, vb], dtype);
        let vm = builder.push(mul(), &[vd, va], dtype);
        let vc = builder.push(less(), &[vm, vb], DType::Bool);
        let vw = builder.push(select(), &[vc, va, vd], dtype);
        let vy = builder.push(mul(), &[vw, vs], dtype);
        let program = builder.finish(&[vy, vd]);
        assert!(program.registers() < 7, "{} registers", program.registers());
        let fused = [fresh(dtype), fresh(dtype)];
        // SAFETY: the outputs are fresh.
        unsafe {
            map(sub(), &[x(a), x(b)], &d);
            map(mul(), &[x(&d), x(a)], &m);
            map(less(), &[x(&m), x(b)], &c);
            map(select(), &[x(&c), x(a), x(&d)], &w);
            map(mul(), &[x(&w), Operand::Scalar(s, dtype)], &y);
            run(&program, &[a, b], &[s], &[&fused[0], &fused[1]]);
        }
        let [fused_y, fused_d] = fused;
        [y, d, fused_y, fused_d]
    }

    #[test]
    fn a_fused_program_gives_the_bits_of_its_ops() {
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            for shape in [[1, 5], [40, 70], [2, 3000], [5000, 2]] {
                let n = shape[0] * shape[1];
                let a = array(dtype, &shape, numbers);
                let flat = array(dtype, &[n + 3], |i| numbers(i + 1));
                let turned = view(&flat, &shape, &[1, shape[0] as isize], 3);
                let row = view(&flat, &[shape[1]], &[1], 0);
                for b in [&a, &turned, &row] {
                    let [y, d, fused_y, fused_d] =
                        both_ways(dtype, &a, b, Scalar::Float(0.3), &shape);
                    assert_eq!(bytes(&y), bytes(&fused_y), "{dtype} {shape:?}");
                    assert_eq!(bytes(&d), bytes(&fused_d), "{dtype} {shape:?}");
                }
            }
        }
    }

    #[test]
    fn a_donated_input_is_read_before_it_is_overwritten() {
        // The first output is written before the last instruction reads the input it replaces.
        let a = array(DType::F32, &[5000], numbers);
        let b = array(DType::F32, &[5000], |i| numbers(3 * i));
        let mut builder = Builder::new(&[DType::F32; 2], &[]);
        let (va, vb) = (builder.input(0), builder.input(1));
        let d = builder.push(sub(), &[va, vb], DType::F32);
        let m = builder.push(mul(), &[va, vb], DType::F32);
        let program = builder.finish(&[d, m]);
        let want: Vec<(f32, f32)> =
            floats(&a).iter().zip(floats(&b)).map(|(a, b)| (a - b, a * b)).collect();
        // SAFETY: nobody else reads the inputs, each of which is replaced by an output.
        unsafe { run(&program, &[&a, &b], &[], &[&a, &b]) };
        assert_eq!(floats(&a).into_iter().zip(floats(&b)).collect::<Vec<_>>(), want);
    }

    #[test]
    fn inputs_and_scalars_can_be_outputs() {
        let a = array(DType::F32, &[50, 40], numbers);
        let turned = view(&a, &[40, 50], &[1, 40], 0);
        let mut builder = Builder::new(&[DType::F32], &[DType::F16]);
        let (x, s) = (builder.input(0), builder.scalar(0));
        let half = builder.cast(x, DType::BF16);
        let program = builder.finish(&[x, s, half, half]);
        let dtypes = [DType::F32, DType::F16, DType::BF16, DType::BF16];
        let out = dtypes.map(|dtype| Array::uninit(dtype, Shape::of(&[40, 50])).unwrap());
        // SAFETY: the outputs are fresh.
        unsafe { run(&program, &[&turned], &[Scalar::Float(0.1)], &out.each_ref()) };
        assert_eq!(floats(&out[0]), naive(&turned, &[40, 50]));
        assert!(bytes(&out[1]).chunks(2).all(|c| c == 0x2e66u16.to_le_bytes()));
        assert_eq!(bytes(&out[2]), bytes(&out[3]));
    }

    #[test]
    fn scalars_round_to_their_dtype() {
        let bits = |x: f64, dtype| register_bits(Scalar::Float(x), dtype);
        assert_eq!(bits(0.1, DType::F32) as u32, 0.1f32.to_bits());
        assert_eq!(bits(0.1, DType::F16) as u32, 0.099975586f32.to_bits());
        assert_eq!(bits(1e12, DType::I32) as u32 as i32, i32::MAX);
        assert_eq!(bits(f64::NAN, DType::U64), 0);
        assert_eq!(register_bits(Scalar::Int(300), DType::U8), 44);
        assert_eq!(
            register_bits(Scalar::Uint(u64::MAX), DType::F16) as u32,
            f32::INFINITY.to_bits()
        );
        assert_eq!(register_bits(Scalar::Bool(true), DType::BF16) as u32, 1f32.to_bits());
    }

    #[test]
    fn the_count_of_threads_does_not_matter() {
        let shape = [700, 500];
        let a = array(DType::F16, &shape, numbers);
        let b = view(&array(DType::F16, &[350_000], |i| numbers(i + 5)), &shape, &[1, 700], 0);
        let before = threads::num_threads();
        let results = [1, 2, 3].map(|n| {
            threads::set_num_threads(n);
            both_ways(DType::F16, &a, &b, Scalar::Float(1.7), &shape)
        });
        threads::set_num_threads(before);
        for other in &results[1..] {
            assert!(results[0].iter().zip(other).all(|(x, y)| bytes(x) == bytes(y)));
        }
    }
}
