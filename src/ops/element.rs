//! Elementwise programs: ops over elements of one shape, without a machine.
//!
//! An [`ElementProgram`] is what a plan says about a group of elementwise nodes: which arrays and
//! numbers it reads, which ops run on them in which order, and which of their values are results.
//! Values are numbered: arrays, then numbers, then what each instruction gives. Which kernels run,
//! and in which registers values lie, is decided by whoever lowers the program; the dtypes say to
//! what every value is rounded.

use smallvec::SmallVec;

use super::elementwise::Elementwise;
use crate::dtype::DType;

/// An op of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ElementOp {
    /// One of the table
    Map(&'static Elementwise),
    /// A conversion to the dtype of its result
    Cast,
}

impl ElementOp {
    /// The name in messages and prints.
    pub fn name(self) -> &'static str {
        match self {
            ElementOp::Map(def) => def.name,
            ElementOp::Cast => "astype",
        }
    }
}

/// A value of a program, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Value(pub u16);

/// One op on values that are there.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Instruction {
    /// The op
    pub op: ElementOp,
    /// Its operands
    pub args: SmallVec<[Value; 3]>,
    /// The dtype to which its result is rounded
    pub dtype: DType,
}

/// Elementwise ops as one program.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ElementProgram {
    arrays: SmallVec<[DType; 4]>,
    numbers: SmallVec<[DType; 4]>,
    instructions: SmallVec<[Instruction; 2]>,
    results: SmallVec<[Value; 2]>,
}

impl ElementProgram {
    /// A program that reads arrays and numbers of these dtypes and does nothing yet.
    pub fn new(arrays: &[DType], numbers: &[DType]) -> ElementProgram {
        ElementProgram {
            arrays: SmallVec::from_slice(arrays),
            numbers: SmallVec::from_slice(numbers),
            ..ElementProgram::default()
        }
    }

    /// An array, by position.
    pub fn array(&self, i: usize) -> Value {
        debug_assert!(i < self.arrays.len());
        Value(i as u16)
    }

    /// A number, by position.
    pub fn number(&self, i: usize) -> Value {
        debug_assert!(i < self.numbers.len());
        Value((self.arrays.len() + i) as u16)
    }

    /// Adds an op, whose result is rounded to a dtype. A conversion to the dtype that a value has
    /// already is that value.
    pub fn push(&mut self, op: ElementOp, args: &[Value], dtype: DType) -> Value {
        if op == ElementOp::Cast && self.dtype(args[0]) == dtype {
            return args[0];
        }
        self.instructions.push(Instruction { op, args: SmallVec::from_slice(args), dtype });
        Value((self.first_result() + self.instructions.len() - 1) as u16)
    }

    /// The program with these values for its results.
    pub fn giving(mut self, results: &[Value]) -> ElementProgram {
        self.results = SmallVec::from_slice(results);
        self
    }

    /// The dtypes of the arrays.
    pub fn arrays(&self) -> &[DType] {
        &self.arrays
    }

    /// The dtypes of the numbers.
    pub fn numbers(&self) -> &[DType] {
        &self.numbers
    }

    /// The ops in order.
    pub fn instructions(&self) -> &[Instruction] {
        &self.instructions
    }

    /// The values that are results.
    pub fn results(&self) -> &[Value] {
        &self.results
    }

    /// The count of values before those of the instructions.
    pub fn first_result(&self) -> usize {
        self.arrays.len() + self.numbers.len()
    }

    /// The dtype of a value.
    pub fn dtype(&self, x: Value) -> DType {
        let i = x.0 as usize;
        match i.checked_sub(self.first_result()) {
            Some(k) => self.instructions[k].dtype,
            None => *self.arrays.iter().chain(&self.numbers).nth(i).unwrap_or(&DType::Bool),
        }
    }

    /// The dtypes of the results.
    pub fn dtypes(&self) -> impl ExactSizeIterator<Item = DType> {
        self.results.iter().map(|&x| self.dtype(x))
    }

    /// The names of its ops in order, as `multiply, exp, add`.
    pub fn names(&self) -> String {
        let names: Vec<&str> = self.instructions.iter().map(|i| i.op.name()).collect();
        names.join(", ")
    }
}

impl Instruction {
    /// The dtype that the op computes in: that of its operands, of which the first may be a
    /// condition.
    pub fn computes_in(&self, program: &ElementProgram) -> DType {
        self.args.last().map_or(self.dtype, |&x| program.dtype(x))
    }
}
