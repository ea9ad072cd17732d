//! One step of a plan: what it reads, where it writes, and what it does, by its kind of work.

use smallvec::SmallVec;

use super::{Arrays, Place, Run, ScratchRange, blocks, control_flow};
use crate::array::Array;
use crate::cpu::{self, innermost, program};
use crate::dtype::{DType, Scalar};
use crate::error::{self, Result};
use crate::executor::{Results, hooks};
use crate::graph::Effect;
use crate::memory::Buffer;
use crate::ops::op::{Op, OperandType};
use crate::schedule::{Given, Group, Number, Operand, Placement, Product, Source, Step, Work};
use crate::shape::Shape;

impl Run<'_> {
    pub(super) fn array(&self, source: Source) -> &Array {
        match source {
            Source::Input(i) => self.inputs[i as usize],
            Source::Constant(i) => &self.plan.constants()[i as usize],
            Source::Slot(i) => self.slots[i as usize]
                .as_ref()
                .unwrap_or_else(|| unreachable!("slot {i} is read before it is filled")),
        }
    }

    pub(super) fn number(&self, number: Number) -> Scalar {
        match number {
            Number::Constant(value) => value,
            Number::Input(i) => self.numbers[i as usize],
        }
    }

    /// The memory with number `k`, which is allocated now if it is not yet.
    pub(super) fn obtain(&mut self, k: usize) -> Result<&Place> {
        if self.memory[k].is_none() {
            self.memory[k] = Some((Buffer::alloc(self.plan.memory().dedicated[k - 1].bytes)?, 0));
        }
        Ok(self.memory[k].as_ref().unwrap_or_else(|| unreachable!("memory {k} is there")))
    }

    /// The array of a slot with a fixed placement; its elements are whatever the memory holds.
    pub(super) fn fixed(&mut self, slot: u32) -> Result<Option<Array>> {
        let plan = self.plan;
        let Placement::Fixed(memory, layout) = &plan.memory().placements[slot as usize] else {
            return Ok(None);
        };
        let dtype = plan.slots()[slot as usize].dtype;
        let (buffer, start) = self.obtain(*memory as usize)?;
        let layout = match start {
            0 => layout.clone(),
            start => layout.moved(start / dtype.size()),
        };
        Ok(Some(Array { dtype, layout, data: buffer.clone().into() }))
    }

    /// The arrays that a step reads.
    pub(super) fn arrays(&self, step: &Step) -> SmallVec<[&Array; 8]> {
        let mut arrays = SmallVec::new();
        for arg in &step.args {
            if let Operand::Array(source) = *arg {
                arrays.push(self.array(source));
            }
        }
        arrays
    }

    fn operands(&self, step: &Step) -> SmallVec<[cpu::Operand<'_>; 4]> {
        let mut args: SmallVec<[cpu::Operand<'_>; 4]> = SmallVec::new();
        for arg in &step.args {
            args.push(match *arg {
                Operand::Array(source) => cpu::Operand::Array(self.array(source)),
                Operand::Number(number) => cpu::Operand::Scalar(self.number(number)),
            });
        }
        args
    }

    pub(super) fn step(&mut self, i: usize, step: &Step) -> Result<()> {
        let results: Results = match &step.work {
            Work::Op(Op::Call(call)) => {
                let mut targets = Results::new();
                for &slot in &step.results {
                    let ty = &self.plan.slots()[slot as usize];
                    targets.push(match self.fixed(slot)? {
                        Some(array) => array,
                        None => Array::uninit(ty.dtype, ty.shape.clone())?,
                    });
                }
                // SAFETY: they are fresh, or memory that no other live value has.
                unsafe { cpu::calls::run_into(call, &self.operands(step), &targets)? };
                targets
            }
            Work::Op(op) => {
                let target = self.fixed(step.results[0])?;
                smallvec::smallvec![self.op(step, op, target, self.plan.memory().views[i])?]
            }
            Work::Group(group) => self.group(step, group)?,
            Work::Product(product) => self.product(step, product)?,
            Work::BlockFusion(fusion) => {
                let mut targets = Results::new();
                for &slot in &step.results {
                    let ty = &self.plan.slots()[slot as usize];
                    targets.push(match self.fixed(slot)? {
                        Some(array) => array,
                        None => Array::uninit(ty.dtype, ty.shape.clone())?,
                    });
                }
                blocks::run(self.lowered, fusion, &self.arrays(step), self.numbers, &targets)?;
                targets
            }
            Work::RowFusion(_) => {
                return Err(error::internal(format!("the CPU offers no {}", step.name())));
            }
            Work::Alias => match step.args[0] {
                Operand::Array(source) => smallvec::smallvec![self.array(source).clone()],
                Operand::Number(_) => return Err(error::internal("a barrier keeps a value")),
            },
            Work::Effect(effect) => {
                self.effect(step, effect)?;
                Results::new()
            }
            Work::ControlFlow(bodies) => {
                let mut targets: SmallVec<[Option<Array>; 2]> = SmallVec::new();
                for &slot in &step.results {
                    targets.push(self.fixed(slot)?);
                }
                control_flow::run(
                    self.lowered.bodies(bodies),
                    bodies,
                    &self.arrays(step),
                    self.numbers,
                    targets,
                )?
            }
        };
        for &slot in &step.last {
            self.slots[slot as usize] = None;
        }
        for (&slot, array) in step.results.iter().zip(results) {
            self.slots[slot as usize] = Some(array);
        }
        Ok(())
    }

    /// Checks the indices of a later step.
    pub(super) fn guard(&self, step: &Step) -> Result<()> {
        let operand = |arg: &Operand| match *arg {
            Operand::Array(source) => Some(self.array(source)),
            Operand::Number(_) => None,
        };
        let base = step.args.first().and_then(operand);
        let indices: SmallVec<[&Array; 4]> = step.args.iter().skip(2).filter_map(operand).collect();
        base.map_or(Ok(()), |base| cpu::check_indices(base, &indices))
    }

    fn op(&self, step: &Step, op: &Op, target: Option<Array>, is_view: bool) -> Result<Array> {
        match target {
            // The result is a view of an operand that is already in this memory.
            Some(target) if is_view => return Ok(target),
            _ => {}
        }
        let args = self.operands(step);
        let Some(out) = target else { return cpu::execute(op, &args) };
        let (lent, packed) = (self.lent(), self.packed(op, step.args.get(1)));
        if (lent.is_some() || packed.is_some())
            && let [cpu::Operand::Array(a), cpu::Operand::Array(b)] = args.as_slice()
            && cpu::is_product(op)
            && cpu::contract::sums_in_place(out.dtype)
        {
            let feeds = [cpu::Feed::There(a), cpu::Feed::There(b)];
            // SAFETY: the scratch is this run's alone; for the result see below.
            unsafe { cpu::product_into(op, feeds, &out, None, lent, packed)? };
            return Ok(out);
        }
        // SAFETY: the plan gave the result memory that no other live value has, except that of an
        // operand which the op may write over.
        unsafe { cpu::execute_into(op, &args, &out)? };
        Ok(out)
    }

    fn group(&mut self, step: &Step, group: &Group) -> Result<Results> {
        let mut results = Results::new();
        let mut is_elsewhere = false;
        for (&slot, dtype) in step.results.iter().zip(group.program.dtypes()) {
            if let Some(array) = self.elsewhere(Source::Slot(slot)) {
                is_elsewhere = true;
                results.push(array.clone());
                continue;
            }
            results.push(match self.fixed(slot)? {
                Some(array) => array,
                None => Array::uninit(dtype, self.open_shape(step, &group.shape)?)?,
            });
        }
        let arrays = self.arrays(step);
        let mut numbers: SmallVec<[Scalar; 4]> = SmallVec::new();
        for arg in &step.args {
            if let Operand::Number(number) = *arg {
                numbers.push(self.number(number));
            }
        }
        let mut outputs: SmallVec<[&Array; 2]> = SmallVec::new();
        results.iter().for_each(|result| outputs.push(result));
        let program = self.lowered.program(group);
        // SAFETY: as for ops: an output lies apart from all live values, or it is the memory of one
        // operand of its type that lies as it does and that nobody reads again.
        unsafe {
            match is_elsewhere {
                true => program::run(program, &arrays, &numbers, &outputs),
                false => innermost::run(program, &arrays, &numbers, &outputs),
            }
        }
        drop((arrays, outputs));
        Ok(results)
    }

    /// The second operand of a product, if it was packed when the plan was lowered.
    fn packed(&self, op: &Op, arg: Option<&Operand>) -> Option<&cpu::Packed> {
        match arg {
            Some(&Operand::Array(Source::Constant(i))) => {
                self.lowered.packed((i, &self.plan.constants()[i as usize]), op)
            }
            Some(_) | None => None,
        }
    }

    /// The memory in which products pack their operands, if it was lent.
    pub(super) fn lent(&self) -> Option<(*mut u8, usize)> {
        // SAFETY: the scratch is part of the buffer, and this run's alone.
        let at = |(buffer, scratch): &(Buffer, ScratchRange)| unsafe {
            (buffer.ptr_mut().add(scratch.from), scratch.bytes)
        };
        self.scratch.as_ref().map(at)
    }

    fn product(&mut self, step: &Step, product: &Product) -> Result<Results> {
        let mut results = Results::new();
        for &slot in &step.results {
            let dtype = self.plan.slots()[slot as usize].dtype;
            results.push(match self.fixed(slot)? {
                Some(array) => array,
                None => Array::uninit(dtype, self.product_shape(step, product)?)?,
            });
        }
        let (before, after) = product.parts(&step.args);
        let given = [self.given(before[0]), self.given(before[1])];
        let feed = |k: usize| match &product.before[k] {
            None => cpu::Feed::There(given[k].0[0]),
            Some(prologue) => cpu::Feed::Made(cpu::Prelude {
                program: self.lowered.program(&prologue.group),
                inputs: &given[k].0,
                numbers: &given[k].1,
                shape: &prologue.group.shape,
                axes: prologue.axes.as_ref(),
            }),
        };
        let (mut inputs, numbers) = self.given(after);
        let place = product.after.as_ref().and_then(|after| after.place).unwrap_or(0);
        let outputs: SmallVec<[&Array; 2]> = results.iter().collect();
        let sequel = product.after.as_ref().map(|after| {
            inputs.insert(after.raw, &results[place]);
            cpu::Sequel {
                program: self.lowered.program(&after.group),
                inputs: &inputs,
                numbers: &numbers,
                outputs: &outputs,
                raw: after.raw,
            }
        });
        let (feeds, out) = ([feed(0), feed(1)], &results[place]);
        let packed = self.packed(&product.op, before[1].0.first());
        let packed = packed.filter(|_| product.before[1].is_none());
        // SAFETY: as for ops; no operand shares memory with a result.
        unsafe { cpu::product_into(&product.op, feeds, out, sequel, self.lent(), packed)? };
        drop((inputs, outputs, given));
        Ok(results)
    }

    /// The values of arguments, arrays and numbers.
    fn given(&self, (arrays, numbers): Given<'_>) -> (Arrays<'_>, SmallVec<[Scalar; 4]>) {
        let (mut given, mut values) = (Arrays::new(), SmallVec::new());
        for arg in arrays.iter().chain(numbers) {
            match *arg {
                Operand::Array(source) => given.push(self.array(source)),
                Operand::Number(number) => values.push(self.number(number)),
            }
        }
        (given, values)
    }

    /// The shape of a product whose sizes are known only from its operands at run time.
    fn product_shape(&self, step: &Step, product: &Product) -> Result<Shape> {
        let arrays = self.arrays(step);
        let [a, b] = [arrays[0], arrays[1]];
        let types = [a, b].map(|x| OperandType::Tensor(x.dtype, x.shape()));
        Ok(product.op.infer(&types)?.shape)
    }

    /// The shape of a group whose sizes are known only from its operands at run time.
    fn open_shape(&self, step: &Step, shape: &Shape) -> Result<Shape> {
        if shape.is_known() {
            return Ok(shape.clone());
        }
        let arrays = self.arrays(step);
        let first = Shape::scalar();
        arrays.iter().try_fold(first, |shape, x| shape.broadcast(x.shape(), "group"))
    }

    fn effect(&self, step: &Step, effect: &Effect) -> Result<()> {
        let arrays = self.arrays(step);
        match effect {
            Effect::Check(message) => match first_false(arrays[0])? {
                None => Ok(()),
                Some(i) => Err(Effect::failed(message, arrays[0].shape(), i)),
            },
            Effect::Print(text) => {
                let arrays: Vec<Array> = arrays.iter().map(|&x| x.clone()).collect();
                match hooks() {
                    Some(hooks) => (hooks.print)(text, &arrays),
                    None => Err(error::internal("nobody installed what prints")),
                }
            }
        }
    }
}
/// The position of the first false element, in C order.
fn first_false(x: &Array) -> Result<Option<usize>> {
    let x = cpu::copy::contiguous(&cpu::cast(x, DType::Bool)?)?;
    // SAFETY: a contiguous array of bools, one byte each.
    let bytes = unsafe { std::slice::from_raw_parts(x.ptr(), x.count()) };
    Ok(bytes.iter().position(|&byte| byte == 0))
}
