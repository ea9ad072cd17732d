//! Steps over few elements, prepared once for all runs of a plan.
//!
//! The set-up of a small step (strides, loop nests, the kernel of a product, an array for each
//! operand) takes several times as long as its work. In a plan of known sizes whose inputs lie in C
//! order it is the same in every run, so it is done before the first, and a run only looks up
//! addresses. Prepared steps make no arrays, unless another step or the caller asks for one. Their
//! kernels are those of the other steps, so they have the same bits.

use std::sync::Arc;

use smallvec::SmallVec;

use super::{Lowered, Run};
use crate::cpu::program::{self, register_bits};
use crate::cpu::{contract, gemm};
use crate::dtype::DType;
use crate::error::Result;
use crate::layout::Layout;
use crate::ops::attributes::Contraction;
use crate::ops::op::{Op, Type};
use crate::schedule::{Number, Operand, Placement, Plan, Product, Source, Step, Work};

/// The prepared steps of a plan.
pub struct Prepared {
    /// By step; `None` for those that run as they are
    steps: Vec<Option<Ready>>,
}

/// A prepared step.
pub(super) struct Ready {
    work: Small,
    /// Its results of which arrays are asked for
    shown: SmallVec<[u32; 1]>,
}

enum Small {
    /// The result lies where an operand does
    View,
    Group(Box<Group>),
    Product(Box<SmallProduct>),
}

/// A product on its operands, and the group that runs on it.
struct SmallProduct {
    product: gemm::Unplaced,
    from: [Place; 2],
    to: Place,
    after: Option<Group>,
}

/// An elementwise program on its operands.
struct Group {
    /// Its number among the programs of the template
    program: usize,
    run: program::Unplaced,
    inputs: SmallVec<[Place; 4]>,
    outputs: SmallVec<[Place; 2]>,
    numbers: SmallVec<[Bits; 2]>,
}

/// A number of a program.
enum Bits {
    /// Its register bits
    Known(u64),
    /// A numeric input of the plan, rounded to a dtype
    Told(u32, DType),
}

/// What an address counts from.
#[derive(Clone, Copy, PartialEq)]
enum Base {
    /// A memory of the run
    Memory(u32),
    /// The first element of an input
    Input(u32),
    /// The first element of a constant
    Constant(u32),
}

/// Where an operand lies: its first element is this many bytes from a base.
#[derive(Clone, Copy, PartialEq)]
struct Place {
    base: Base,
    bytes: usize,
}

/// A value of which the place is known.
#[derive(Clone)]
struct Value {
    base: Base,
    dtype: DType,
    layout: Layout,
}

impl Value {
    fn place(&self) -> Place {
        Place { base: self.base, bytes: self.layout.offset() * self.dtype.size() }
    }
}

impl Prepared {
    /// Prepares what can be of a plan: `None` where that is nothing.
    pub(super) fn new(lowered: &Lowered, plan: &Plan) -> Option<Arc<Prepared>> {
        let is_known = |ty: &Type| ty.shape.is_known();
        if !plan.inputs().iter().chain(plan.slots()).all(is_known) {
            return None;
        }
        let mut maker = Maker { lowered, plan, slots: vec![None; plan.slots().len()] };
        let mut work: Vec<Option<Small>> = Vec::with_capacity(plan.steps().len());
        for (i, step) in plan.steps().iter().enumerate() {
            maker.place_results(step);
            work.push(maker.step(i, step));
        }
        let asked = maker.asked(&mut work);
        let ready = |(small, step): (Option<Small>, &Step)| {
            let shown = step.results.iter().copied().filter(|&slot| asked[slot as usize]).collect();
            Some(Ready { work: small?, shown })
        };
        let does_work = work.iter().flatten().any(|small| !matches!(small, Small::View));
        let steps = work.into_iter().zip(plan.steps()).map(ready).collect();
        does_work.then(|| Arc::new(Prepared { steps }))
    }

    /// What was prepared of a step.
    pub(super) fn step(&self, i: usize) -> Option<&Ready> {
        self.steps[i].as_ref()
    }
}

/// A plan whose steps are being prepared.
struct Maker<'a> {
    lowered: &'a Lowered,
    plan: &'a Plan,
    /// By slot: its value, where the place is known
    slots: Vec<Option<Value>>,
}

impl Maker<'_> {
    fn value(&self, source: Source) -> Option<Value> {
        match source {
            Source::Slot(slot) => self.slots[slot as usize].clone(),
            Source::Input(i) => {
                let Type { dtype, shape } = self.plan.inputs()[i as usize].clone();
                let layout = Layout::contiguous(shape);
                Some(Value { base: Base::Input(i), dtype, layout })
            }
            Source::Constant(i) => {
                let array = &self.plan.constants()[i as usize];
                let layout = array.layout.from_zero();
                Some(Value { base: Base::Constant(i), dtype: array.dtype, layout })
            }
        }
    }

    fn operand(&self, operand: &Operand) -> Option<Value> {
        match *operand {
            Operand::Array(source) => self.value(source),
            Operand::Number(_) => None,
        }
    }

    /// Notes where the results of a step lie: where the plan says, or where a view finds them.
    fn place_results(&mut self, step: &Step) {
        for &slot in &step.results {
            let dtype = self.plan.slots()[slot as usize].dtype;
            let placement = &self.plan.memory().placements[slot as usize];
            self.slots[slot as usize] = match (placement, &step.work) {
                (Placement::Fixed(memory, layout), _) => {
                    Some(Value { base: Base::Memory(*memory), dtype, layout: layout.clone() })
                }
                (Placement::Loose, Work::Op(op)) => self.view(op, step),
                (Placement::Loose, _) => None,
            };
        }
    }

    fn view(&self, op: &Op, step: &Step) -> Option<Value> {
        let x = self.operand(step.args.first()?)?;
        Some(Value { layout: op.view(x.dtype, &x.layout)?, ..x })
    }

    fn step(&self, i: usize, step: &Step) -> Option<Small> {
        match &step.work {
            Work::Op(op @ Op::Contract(spec)) => self.product((op, spec), &step.args, step, None),
            Work::Op(op) => {
                let is_view = self.plan.memory().views[i] || {
                    let loose = |slot: &u32| {
                        matches!(self.plan.memory().placements[*slot as usize], Placement::Loose)
                    };
                    step.results.iter().all(loose) && self.view(op, step).is_some()
                };
                is_view.then_some(Small::View)
            }
            Work::Group(group) => {
                let inputs = self.arrays(&step.args)?;
                self.group(group, &inputs, &step.args, step).map(|made| Small::Group(made.into()))
            }
            Work::Product(product) => self.whole_product(product, step),
            Work::BlockFusion(_)
            | Work::RowFusion(_)
            | Work::ControlFlow(_)
            | Work::Effect(_)
            | Work::Alias => None,
        }
    }

    fn whole_product(&self, product: &Product, step: &Step) -> Option<Small> {
        let Product { op: op @ Op::Contract(spec), before: [None, None], .. } = product else {
            return None;
        };
        let (before, (arrays, numbers)) = product.parts(&step.args);
        let operands = [before[0].0[0], before[1].0[0]];
        let Some(after) = &product.after else {
            return self.product((op, spec), &operands, step, None);
        };
        let raw = self.slots[step.results[after.place.unwrap_or(0)] as usize].clone()?;
        let mut inputs = self.arrays(arrays)?;
        inputs.insert(after.raw, raw);
        let group = self.group(&after.group, &inputs, numbers, step)?;
        self.product((op, spec), &operands, step, Some((group, after.place.unwrap_or(0))))
    }

    /// A product, and the group that runs on it with the position of the result in whose memory it
    /// is computed.
    fn product(
        &self,
        (op, spec): (&Op, &Contraction),
        operands: &[Operand],
        step: &Step,
        after: Option<(Group, usize)>,
    ) -> Option<Small> {
        let [a, b] = [self.operand(operands.first()?)?, self.operand(operands.get(1)?)?];
        // What was packed for all runs is not packed again.
        if let Operand::Array(Source::Constant(i)) = operands[1]
            && self.lowered.packed((i, &self.plan.constants()[i as usize]), op).is_some()
        {
            return None;
        }
        let at = after.as_ref().map_or(0, |(_, at)| *at);
        let to = self.slots[step.results[at] as usize].as_ref()?;
        let is_plain = to.layout.is_contiguous() && matches!(to.base, Base::Memory(_));
        let product = contract::unplaced(to.dtype, &a.layout, &b.layout, spec)?;
        let after = after.map(|(group, _)| group);
        let from = [a.place(), b.place()];
        let to = to.place();
        is_plain.then(|| Small::Product(SmallProduct { product, from, to, after }.into()))
    }

    /// The values of the arrays among some operands.
    fn arrays(&self, args: &[Operand]) -> Option<SmallVec<[Value; 4]>> {
        let is_array = |arg: &&Operand| matches!(arg, Operand::Array(_));
        args.iter().filter(is_array).map(|arg| self.operand(arg)).collect()
    }

    /// The group of a step on these inputs, with the numbers among `args`.
    fn group(
        &self,
        group: &crate::schedule::Group,
        inputs: &[Value],
        args: &[Operand],
        step: &Step,
    ) -> Option<Group> {
        let program = self.lowered.program(group);
        let outputs = step.results.iter().map(|&slot| self.slots[slot as usize].clone());
        let outputs: SmallVec<[Value; 2]> = outputs.collect::<Option<_>>()?;
        let is_plain = |y: &Value| y.layout.is_contiguous() && matches!(y.base, Base::Memory(_));
        if !outputs.iter().all(is_plain) {
            return None;
        }
        let sides = |values: &[Value]| -> SmallVec<[(DType, Layout); 4]> {
            values.iter().map(|x| (x.dtype, x.layout.clone())).collect()
        };
        let shares = |j: usize, k: usize| self.may_share(outputs[j].place(), inputs[k].place());
        let dtypes: SmallVec<[DType; 2]> = outputs.iter().map(|y| y.dtype).collect();
        let run = program::Unplaced::new(program, &group.shape, &sides(inputs), &dtypes, shares)?;
        let numbers = args.iter().filter_map(|arg| match *arg {
            Operand::Number(number) => Some(number),
            Operand::Array(_) => None,
        });
        let bits = |(number, &dtype)| match number {
            Number::Constant(value) => Bits::Known(register_bits(value, dtype)),
            Number::Input(i) => Bits::Told(i, dtype),
        };
        Some(Group {
            program: group.number as usize,
            run,
            inputs: inputs.iter().map(Value::place).collect(),
            outputs: outputs.iter().map(Value::place).collect(),
            numbers: numbers.zip(program.scalars()).map(bits).collect(),
        })
    }

    /// Whether an output may be written to the memory of an input.
    fn may_share(&self, output: Place, input: Place) -> bool {
        let Base::Memory(to) = output.base else { return true };
        match input.base {
            Base::Memory(_) => output == input,
            Base::Constant(_) => false,
            // A memory outside the arena may be that of an input that was given for it.
            Base::Input(i) => match to.checked_sub(1) {
                None => false,
                Some(k) => self.plan.memory().dedicated[k as usize].alias == Some(i),
            },
        }
    }

    /// By slot, whether an array of it is asked for. A view that is asked for and has no memory of
    /// the run is a step as others are.
    fn asked(&self, work: &mut [Option<Small>]) -> Vec<bool> {
        let mut asked = vec![false; self.slots.len()];
        for source in self.plan.outputs() {
            if let Source::Slot(slot) = *source {
                asked[slot as usize] = true;
            }
        }
        for (step, work) in self.plan.steps().iter().zip(work).rev() {
            let is_loose = |slot: u32| {
                matches!(self.plan.memory().placements[slot as usize], Placement::Loose)
            };
            if step.results.iter().any(|&slot| asked[slot as usize] && is_loose(slot)) {
                *work = None;
            }
            if work.is_none() {
                for arg in &step.args {
                    if let Operand::Array(Source::Slot(slot)) = *arg {
                        asked[slot as usize] = true;
                    }
                }
            }
        }
        asked
    }
}

impl Run<'_> {
    /// Runs a prepared step.
    pub(super) fn ready(&mut self, step: &Step, ready: &Ready) -> Result<()> {
        match &ready.work {
            Small::View => {}
            Small::Group(group) => self.ready_group(group)?,
            Small::Product(small) => {
                self.obtain_for(small.to)?;
                let from = small.from.map(|place| self.address(place).cast_const());
                // SAFETY: as for other steps: the result lies apart from all live values.
                unsafe { small.product.run(from, self.address(small.to), self.lent())? };
                small.after.iter().try_for_each(|group| self.ready_group(group))?;
            }
        }
        for &slot in &step.last {
            self.slots[slot as usize] = None;
        }
        for &slot in &ready.shown {
            self.slots[slot as usize] = self.fixed(slot)?;
        }
        Ok(())
    }

    fn ready_group(&mut self, group: &Group) -> Result<()> {
        let mut outputs: SmallVec<[*mut u8; 2]> = SmallVec::new();
        for &place in &group.outputs {
            self.obtain_for(place)?;
            outputs.push(self.address(place));
        }
        let mut inputs: SmallVec<[*mut u8; 8]> = SmallVec::new();
        group.inputs.iter().for_each(|&place| inputs.push(self.address(place)));
        let mut numbers: SmallVec<[u64; 4]> = SmallVec::new();
        for bits in &group.numbers {
            numbers.push(match *bits {
                Bits::Known(bits) => bits,
                Bits::Told(i, dtype) => register_bits(self.numbers[i as usize], dtype),
            });
        }
        let program = self.lowered.numbered(group.program);
        // SAFETY: as for other steps: an output lies apart from all live values, or it is the memory
        // of one operand of its type in C order that nobody reads again.
        unsafe { group.run.run(program, &inputs, &numbers, &outputs) };
        Ok(())
    }

    /// Allocates the memory of a result, if it is not there yet.
    fn obtain_for(&mut self, place: Place) -> Result<()> {
        match place.base {
            Base::Memory(k) => self.obtain(k as usize).map(|_| ()),
            Base::Input(_) | Base::Constant(_) => Ok(()),
        }
    }

    /// The address of a place whose memory is there.
    fn address(&self, place: Place) -> *mut u8 {
        let base = match place.base {
            Base::Memory(k) => match &self.memory[k as usize] {
                Some((buffer, start)) => buffer.ptr().wrapping_add(*start),
                None => unreachable!("memory {k} is read before it is written"),
            },
            Base::Input(i) => self.inputs[i as usize].ptr(),
            Base::Constant(i) => self.plan.constants()[i as usize].ptr(),
        };
        base.wrapping_add(place.bytes).cast_mut()
    }
}
