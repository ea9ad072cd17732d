//! How a program comes to be: its instructions, and the registers of its values.

use smallvec::SmallVec;

use super::{Instr, Program, Value};
use crate::dtype::DType;
use crate::tile::{self, TileKernel};

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
            chain: None,
            generated: None,
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

    /// Adds an instruction: its kernel reads the register forms of `args` and writes that of
    /// `dtype`, to which the result is then rounded.
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

    /// Gives every value a register. A register is free after the last use of its value; scalars
    /// and outputs keep theirs.
    fn allocate(&mut self) {
        let program = &mut self.program;
        let first_result = program.inputs.len() + program.scalars.len();
        let width = |v: usize| self.dtypes[v].compute().size();
        // The last instruction that uses each value, counted from one; 0 where none does.
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
            // A kernel may overwrite an argument whose elements are at least as wide.
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
