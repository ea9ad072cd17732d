//! Plans, run on the CPU.

use smallvec::SmallVec;

use super::{Number, Operand, Plan, Source, Step, Work};
use crate::array::Array;
use crate::cpu::{self, program};
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
        let slots = (0..self.slots).map(|_| None).collect();
        let mut run = Run { inputs, numbers, slots };
        for step in &self.steps {
            run.step(step)?;
        }
        Ok(self.outputs.iter().map(|&source| run.array(source).clone()).collect())
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
                step.last.iter().for_each(|&slot| self.slots[slot as usize] = None);
                self.slots[step.results[0] as usize] = Some(result);
                Ok(())
            }
            Work::Group(program, shape, dtypes) => self.group(step, program, shape, dtypes),
        }
    }

    fn op(&self, step: &Step, op: &Op) -> Result<Array> {
        let operand = |arg: &Operand| match *arg {
            Operand::Array(source) => cpu::Operand::Array(self.array(source)),
            Operand::Number(number) => cpu::Operand::Scalar(self.number(number)),
        };
        let args: SmallVec<[cpu::Operand<'_>; 4]> = step.args.iter().map(operand).collect();
        cpu::execute(op, &args)
    }

    /// Runs a program. Its results take the memory of arrays that nobody reads again.
    fn group(
        &mut self,
        step: &Step,
        program: &program::Program,
        shape: &Shape,
        dtypes: &[DType],
    ) -> Result<()> {
        let mut free: SmallVec<[u32; 2]> = step.last.clone();
        let mut donor = |run: &Run<'_>, dtype: DType| {
            let fits = |slot: &u32| {
                let array = run.array(Source::Slot(*slot));
                array.dtype == dtype
                    && array.shape() == shape
                    && array.is_contiguous()
                    && array.buffer.is_unique()
            };
            free.iter().position(fits).map(|k| free.swap_remove(k))
        };
        let donors: SmallVec<[Option<u32>; 2]> =
            dtypes.iter().map(|&dtype| donor(self, dtype)).collect();
        let fresh: SmallVec<[Option<Array>; 2]> = donors
            .iter()
            .zip(dtypes)
            .map(|(donor, &dtype)| match donor {
                Some(_) => Ok(None),
                None => Array::uninit(dtype, shape.clone()).map(Some),
            })
            .collect::<Result<_>>()?;
        {
            let outputs: SmallVec<[&Array; 2]> = donors
                .iter()
                .zip(&fresh)
                .map(|(donor, fresh)| match (donor, fresh) {
                    (Some(slot), _) => self.array(Source::Slot(*slot)),
                    (None, Some(array)) => array,
                    (None, None) => unreachable!("a result has a donor or is fresh"),
                })
                .collect();
            let mut arrays: SmallVec<[&Array; 8]> = SmallVec::new();
            let mut numbers: SmallVec<[Scalar; 4]> = SmallVec::new();
            for arg in &step.args {
                match *arg {
                    Operand::Array(source) => arrays.push(self.array(source)),
                    Operand::Number(number) => numbers.push(self.number(number)),
                }
            }
            // SAFETY: an output is fresh, or the memory of an input of its type in C order that
            // nobody else holds and no later step reads; no two outputs share a donor.
            unsafe { program::run(program, &arrays, &numbers, &outputs) };
        }
        let results: SmallVec<[Array; 2]> = donors
            .into_iter()
            .zip(fresh)
            .filter_map(|(donor, fresh)| match donor {
                Some(slot) => self.slots[slot as usize].take(),
                None => fresh,
            })
            .collect();
        step.last.iter().for_each(|&slot| self.slots[slot as usize] = None);
        for (&slot, array) in step.results.iter().zip(results) {
            self.slots[slot as usize] = Some(array);
        }
        Ok(())
    }
}
