//! Machine code for elementwise programs on float32, made while the program runs.
//!
//! Interpreted over tiles, every op of a program reads and writes the L1 cache; here a few vectors go
//! through all ops in registers. The ops' own formulas say what they do
//! ([`trace`](crate::scalar::trace)), so nothing is declared a second time. Promises: the bits of the
//! interpreter, on which the code is tried before it is used; a program that is not all float32 (and
//! truth values between its ops), or has an op without a trace, has no code; elements for which a
//! formula does not hold are left to the interpreter; memory is never writable and executable at
//! once, and a system that gives none for code runs everything interpreted.

mod memory;
mod registers;
mod x86;

use crate::cpu::reduce::LANES;
use crate::dtype::DType;
use crate::ops::element::{ElementOp, ElementProgram};
use crate::scalar::trace::{self, Id, Operation, Trace, Value};
use crate::simd::Isa;
use memory::Executable;
use registers::{Results, name};
use x86::Width;

/// `(addresses, from, until, numbers, spilled)` in bytes of each operand; returns how far it came.
type Entry = unsafe extern "sysv64" fn(*const *mut u8, usize, usize, *const u64, *mut u8) -> usize;

/// Machine code of a program.
pub struct Code {
    pages: Executable,
    entry: usize,
    spilled: usize,
    /// Elements of a turn
    step: usize,
    is_total: bool,
}

/// The most elements of a [step](Code::step).
pub const LONGEST: usize = LANES;

/// Fewer instructions than this are as fast over tiles.
const FEWEST: usize = 2;
/// The most operands and instructions of a program with code.
const MOST: usize = 256;

/// Whether a program, of whose results the last `sums` are summed, may have code, as far as its
/// dtypes say.
pub fn is_eligible(program: &ElementProgram, sums: usize) -> bool {
    let is_single = |dtype: DType| dtype == DType::F32;
    let instructions = program.instructions();
    let stored = &program.results()[..program.results().len() - sums];
    let fewest = if sums > 0 { 1 } else { FEWEST };
    (fewest..=MOST).contains(&instructions.len())
        && program.first_result() + program.results().len() <= MOST
        && program.arrays().iter().chain(program.numbers()).all(|&x| is_single(x))
        && stored.iter().all(|x| x.0 as usize >= program.first_result())
        && program.dtypes().all(is_single)
        && instructions.iter().all(|x| is_single(x.dtype) || x.dtype == DType::Bool)
}

/// The operations of a program, and which values its results are, of which the last are summed.
fn traced(program: &ElementProgram, sums: usize) -> Option<(Vec<Id>, Trace)> {
    let (results, trace) = trace::record(|| {
        let arrays = (0..program.arrays().len() as u16).map(Value::input);
        let numbers = (0..program.numbers().len() as u16).map(Value::number);
        let mut values: Vec<Value> = arrays.chain(numbers).collect();
        for instruction in program.instructions() {
            let mut args = [*values.first()?; 3];
            for (arg, x) in args.iter_mut().zip(&instruction.args) {
                *arg = values[x.0 as usize];
            }
            values.push(match instruction.op {
                ElementOp::Map(def) => {
                    let compute = instruction.computes_in(program).compute();
                    def.trace(compute)?(&args)
                }
                ElementOp::Cast => match (args[0].is_mask(), instruction.dtype) {
                    (true, DType::F32) => args[0].of_mask(),
                    _ => return None,
                },
            });
        }
        let results = program.results().iter().map(|x| values[x.0 as usize]);
        let results = results.map(|x| (!x.is_mask()).then_some(x.id()));
        results.collect::<Option<Vec<Id>>>()
    })?;
    let results = results?;
    let (stored, summed) = results.split_at(results.len() - sums);
    // A result may lie in the place of an input: no result is read from there after another is
    // written.
    let is_input = |&id: &Id| matches!(trace.operations[id as usize], Operation::Input(_));
    // What is added to a sum is an element, and read no more. Part of a turn could not be taken back
    // where a formula does not hold.
    let is_alike = |&id: &Id| name(&trace.operations, id, 1) == (id, 0);
    let is_twice = |(k, id): (usize, &Id)| summed[..k].contains(id);
    let can_sum = !summed.iter().any(is_alike) && !summed.iter().enumerate().any(is_twice);
    let is_whole = sums == 0 || can_sum && trace.rare.is_none();
    (is_whole && !stored.iter().any(is_input)).then_some((results, trace))
}

impl Code {
    /// The code of an [eligible](is_eligible) program at a level of the instruction set, if the level
    /// and each of the ops has what that takes. The last `sums` results are not stored: each element
    /// is added to one of the [lanes](LANES) of a sum, in order.
    pub fn of(program: &ElementProgram, sums: usize, isa: Isa) -> Option<Code> {
        let width = match isa {
            Isa::Base => return None,
            Isa::V3 => Width::Bits256,
            Isa::V4 => Width::Bits512,
        };
        let (results, trace) = traced(program, sums)?;
        let (stored, summed) = results.split_at(results.len() - sums);
        let results = Results { stored, summed };
        let emitted = registers::emit(&trace, program.arrays().len(), &results, width);
        let pages = Executable::new(&emitted.bytes)?;
        let step = if sums > 0 { LANES } else { registers::step(width) / size_of::<f32>() };
        let (entry, spilled) = (emitted.entry, emitted.spilled);
        Some(Code { pages, entry, spilled, step, is_total: trace.rare.is_none() })
    }

    /// Elements that are worked on at once.
    pub fn step(&self) -> usize {
        self.step
    }

    /// Whether it holds for all elements, so that a run never stops before its end.
    pub fn is_total(&self) -> bool {
        self.is_total
    }

    /// Bytes of memory that a run needs: first the lanes of sums, which it adds to, then what is for
    /// values without a register.
    pub fn spilled(&self) -> usize {
        self.spilled
    }

    /// Works on elements from one to another, whole [steps](Code::step), and returns the element before
    /// which it stopped: where a formula does not hold for one that follows, or at the end.
    ///
    /// # Safety
    /// `addresses` has those of the inputs and then of the stored results, of so many elements each; a
    /// result may lie in the place of an input, and otherwise overlaps none. `numbers` has one entry
    /// for each number, `spilled` as many bytes as [`Code::spilled`] says. The processor has the
    /// level for which the code was made.
    pub unsafe fn run(
        &self,
        addresses: &[*mut u8],
        (from, until): (usize, usize),
        numbers: &[u64],
        spilled: *mut u8,
    ) -> usize {
        const ELEMENT: usize = size_of::<f32>();
        debug_assert!((until - from).is_multiple_of(self.step()));
        // SAFETY: at that place is code that was made for this type of function.
        let entry: Entry = unsafe { std::mem::transmute(self.pages.at(self.entry)) };
        let range = (from * ELEMENT, until * ELEMENT);
        // SAFETY: as the caller's; the code reads and writes the elements of that range alone.
        unsafe { entry(addresses.as_ptr(), range.0, range.1, numbers.as_ptr(), spilled) / ELEMENT }
    }
}
