//! Plans, run on the CPU.

use smallvec::SmallVec;

use super::{Number, Operand, Plan, Source, Step, Work};
use crate::array::Array;
use crate::cpu;
use crate::cpu::program::{self, Program};
use crate::dtype::{DType, Scalar};
use crate::error::{self, Result};
use crate::ops::op::Op;
use crate::shape::Shape;

/// What the steps of one run work on.
struct Run<'a> {
    inputs: &'a [&'a Array],
    numbers: &'a [Scalar],
    slots: SmallVec<[Option<Array>; 4]>,
}

impl Plan {
    /// Computes the results. The inputs have the types the plan was made for.
    pub fn run(&self, inputs: &[&Array], numbers: &[Scalar]) -> Result<SmallVec<[Array; 2]>> {
        if inputs.len() != self.inputs as usize {
            return Err(error::internal("a plan was run on the wrong count of inputs"));
        }
        let mut run = Run { inputs, numbers, slots: SmallVec::new() };
        for _ in 0..self.slots {
            run.slots.push(None);
        }
        for step in &self.steps {
            run.step(step)?;
        }
        let mut results = SmallVec::new();
        for &source in &self.outputs {
            results.push(run.array(source).clone());
        }
        Ok(results)
    }
}

impl Run<'_> {
    fn array(&self, source: Source) -> &Array {
        match source {
            Source::Input(i) => self.inputs[i as usize],
            Source::Slot(i) => self.slots[i as usize]
                .as_ref()
                .unwrap_or_else(|| unreachable!("slot {i} is read before it is filled")),
        }
    }

    fn number(&self, number: Number) -> Scalar {
        match number {
            Number::Constant(value) => value,
            Number::Input(i) => self.numbers[i as usize],
        }
    }

    fn step(&mut self, step: &Step) -> Result<()> {
        match &step.work {
            Work::Op(op) => {
                let result = self.op(step, op)?;
                self.finish(step, [result]);
                Ok(())
            }
            Work::Group(program, shape, dtypes) => self.group(step, program, shape, dtypes),
        }
    }

    fn op(&self, step: &Step, op: &Op) -> Result<Array> {
        let mut args: SmallVec<[cpu::Operand<'_>; 4]> = SmallVec::new();
        for arg in &step.args {
            args.push(match *arg {
                Operand::Array(source) => cpu::Operand::Array(self.array(source)),
                Operand::Number(number) => cpu::Operand::Scalar(self.number(number)),
            });
        }
        cpu::execute(op, &args)
    }

    /// Runs a program. Its results take the memory of arrays that nobody reads again.
    fn group(
        &mut self,
        step: &Step,
        program: &Program,
        shape: &Shape,
        dtypes: &[DType],
    ) -> Result<()> {
        let mut results: SmallVec<[Array; 2]> = SmallVec::new();
        let mut free: SmallVec<[u32; 4]> = SmallVec::from_slice(&step.last);
        for &dtype in dtypes {
            let donor = free.iter().position(|&slot| self.can_hold(slot, dtype, shape));
            results.push(match donor {
                Some(k) => self.array(Source::Slot(free.swap_remove(k))).clone(),
                None => Array::uninit(dtype, shape.clone())?,
            });
        }
        let mut arrays: SmallVec<[&Array; 8]> = SmallVec::new();
        let mut numbers: SmallVec<[Scalar; 4]> = SmallVec::new();
        for arg in &step.args {
            match *arg {
                Operand::Array(source) => arrays.push(self.array(source)),
                Operand::Number(number) => numbers.push(self.number(number)),
            }
        }
        let mut outputs: SmallVec<[&Array; 2]> = SmallVec::new();
        for result in &results {
            outputs.push(result);
        }
        // SAFETY: an output is fresh, or the memory of an input of its type in C order that nobody
        // else held and no later step reads; no two outputs share a donor.
        unsafe { program::run(program, &arrays, &numbers, &outputs) };
        drop((arrays, outputs));
        self.finish(step, results);
        Ok(())
    }

    /// Whether a value may be written over by a result.
    fn can_hold(&self, slot: u32, dtype: DType, shape: &Shape) -> bool {
        let array = self.array(Source::Slot(slot));
        array.dtype == dtype
            && array.shape() == shape
            && array.is_contiguous()
            && array.buffer.is_unique()
    }

    /// Drops what was read for the last time and keeps what was computed.
    fn finish(&mut self, step: &Step, results: impl IntoIterator<Item = Array>) {
        for &slot in &step.last {
            self.slots[slot as usize] = None;
        }
        for (&slot, array) in step.results.iter().zip(results) {
            self.slots[slot as usize] = Some(array);
        }
    }
}
