//! One elementwise op: directly on memory where every operand has register form, otherwise as a
//! program of one instruction.

use std::mem::MaybeUninit;
use std::ops::Range;

use smallvec::SmallVec;

use super::{
    Chain, Instr, Program, STREAM, is_narrow, register_bits, run, splat, split, with_scratch,
};
use crate::array::Array;
use crate::dtype::{DType, Scalar, Width};
use crate::ops::elementwise::Elementwise;
use crate::simd::{stream_copy, stream_fence};
use crate::tile::{TILE, TileKernel};

/// An operand of one op.
#[derive(Clone, Copy)]
pub enum MapOperand<'a> {
    /// A tensor
    Array(&'a Array),
    /// A number, rounded to its dtype before use
    Scalar(Scalar, DType),
}

/// Runs one op, by its kernel: on the register forms of up to three operands, which broadcast to
/// `out`.
///
/// # Safety
/// As for [`run`].
pub unsafe fn map(op: &Elementwise, kernel: TileKernel, args: &[MapOperand], out: &Array) {
    let n = out.count();
    let is_flat =
        |x: &Array| x.is_contiguous() && (x.count() == n || x.count() == 1) && !is_narrow(x.dtype);
    let all_flat = args.iter().all(|arg| match arg {
        MapOperand::Array(x) => is_flat(x),
        MapOperand::Scalar(..) => true,
    });
    if !all_flat || !is_flat(out) {
        // SAFETY: as the caller's.
        return unsafe { map_blocks(op, kernel, args, out) };
    }
    let mut flat = Flat {
        kernel,
        // SAFETY: the caller holds the output.
        dst: unsafe { out.ptr_mut() },
        dst_size: out.dtype.size(),
        bytes: n * out.dtype.size(),
        args: [std::ptr::null(); 3],
        sizes: [0; 3],
        scalars: [None; 3],
    };
    for (k, arg) in args.iter().enumerate() {
        match *arg {
            MapOperand::Array(x) if x.count() == n => {
                (flat.args[k], flat.sizes[k]) = (x.ptr(), x.dtype.size())
            }
            MapOperand::Array(x) => {
                let width = x.dtype.width();
                // SAFETY: the array has an element.
                flat.scalars[k] = Some((unsafe { width.read(x.ptr()) }, width));
            }
            MapOperand::Scalar(x, dtype) => {
                flat.scalars[k] = Some((register_bits(x, dtype), dtype.compute().width()))
            }
        }
    }
    split(n, n, TILE, |range| flat.range(range));
}

/// The most elements for which scalars are repeated on the stack.
const SMALL: usize = 64;

#[repr(C, align(64))]
struct Spread([[u64; SMALL]; 3]);

/// Runs a kernel of one argument directly on memory, without converting elements.
///
/// # Safety
/// As for [`run`]; `x` and `out` are in C order, and the kernel works on their memory forms.
pub(in crate::cpu) unsafe fn map_memory(kernel: TileKernel, x: &Array, out: &Array) {
    let n = out.count();
    let flat = Flat {
        kernel,
        // SAFETY: the caller holds the output.
        dst: unsafe { out.ptr_mut() },
        dst_size: out.dtype.size(),
        bytes: n * out.dtype.size(),
        args: [x.ptr(); 3],
        sizes: [x.dtype.size(); 3],
        scalars: [None; 3],
    };
    split(n, n, TILE, |range| flat.range(range));
}

/// One op on memory that is all in register form and C order.
struct Flat {
    kernel: TileKernel,
    dst: *mut u8,
    dst_size: usize,
    /// Bytes of the whole output.
    bytes: usize,
    args: [*const u8; 3],
    /// Bytes of an element of each argument; 0 for a scalar.
    sizes: [usize; 3],
    /// Bits and width of each argument that is a scalar.
    scalars: [Option<(u64, Width)>; 3],
}

// SAFETY: threads work on different elements.
unsafe impl Sync for Flat {}

impl Flat {
    /// Works on a range of elements.
    #[inline]
    fn range(&self, range: Range<usize>) {
        let has_scalars = self.scalars.iter().any(Option::is_some);
        if self.streams() {
            with_scratch(4 * 8 * TILE, |scratch| {
                let args = self.spread(scratch, TILE);
                self.pieces(range, TILE, args, Some(scratch.wrapping_add(3 * 8 * TILE)));
            });
        } else if !has_scalars {
            self.pieces(range.clone(), range.len(), self.args, None);
        } else if range.len() <= SMALL {
            let mut memory = MaybeUninit::<Spread>::uninit();
            let args = self.spread(memory.as_mut_ptr().cast(), range.len());
            self.pieces(range, SMALL, args, None);
        } else {
            with_scratch(3 * 8 * TILE, |scratch| {
                let args = self.spread(scratch, TILE.min(range.len()));
                self.pieces(range, TILE, args, None);
            });
        }
    }

    /// Whether the output is written around the caches.
    #[inline]
    fn streams(&self) -> bool {
        self.bytes >= STREAM && self.args.iter().all(|&x| x != self.dst.cast_const())
    }

    /// The arguments, with each scalar repeated `n` times in `memory`.
    #[inline]
    fn spread(&self, mut memory: *mut u8, n: usize) -> [*const u8; 3] {
        let mut args = self.args;
        for (arg, scalar) in args.iter_mut().zip(&self.scalars) {
            let &Some((bits, width)) = scalar else { continue };
            *arg = memory;
            // SAFETY: the memory holds three times `n` eight-byte elements.
            unsafe { splat(memory, bits, width, n) };
            memory = memory.wrapping_add(n.next_multiple_of(8) * width.bytes());
        }
        args
    }

    /// Works on a range in pieces of at most `piece` elements. Where there is a `tile`, results are
    /// computed there and streamed to the output.
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
unsafe fn map_blocks(op: &Elementwise, kernel: TileKernel, args: &[MapOperand], out: &Array) {
    let mut arrays: SmallVec<[&Array; 3]> = SmallVec::new();
    let mut numbers: SmallVec<[Scalar; 3]> = SmallVec::new();
    let is_array = |arg: &MapOperand| matches!(arg, MapOperand::Array(_));
    let is_plain = |arg: &MapOperand| match arg {
        MapOperand::Array(x) => x.dtype == DType::F32,
        MapOperand::Scalar(_, dtype) => *dtype == DType::F32,
    };
    let chain = match args {
        [a, b] if is_plain(a) && is_plain(b) => Chain::of_op(op, [a, b].map(is_array)),
        _ => None,
    };
    let mut program = Program {
        inputs: SmallVec::new(),
        scalars: SmallVec::new(),
        instrs: SmallVec::new(),
        outputs: SmallVec::new(),
        registers: SmallVec::new(),
        register_count: args.len() + 1,
        width: out.dtype.compute().size(),
        chain,
        generated: None,
    };
    for arg in args {
        let dtype = match *arg {
            MapOperand::Array(x) => {
                arrays.push(x);
                program.inputs.push(x.dtype);
                x.dtype
            }
            MapOperand::Scalar(x, dtype) => {
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
        let next = if matches!(arg, MapOperand::Array(_)) { &mut array } else { &mut number };
        *place = *next;
        *next += 1;
    }
    // The store rounds, so the instruction does not have to.
    program.instrs.push(instr);
    program.outputs.push((args.len() as u16, out.dtype));
    (0..=args.len() as u16).for_each(|value| program.registers.push(value));
    // SAFETY: as the caller's.
    unsafe { run(&program, &arrays, &numbers, &[out]) }
}
