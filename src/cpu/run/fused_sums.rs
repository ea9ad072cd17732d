//! From the plan of a block to groups that are summed as they are made.
//!
//! A value that only a sum reads is not stored, and one that others read too is summed while it is
//! made. Groups over the same elements share a walk over these where they read the same arrays: a
//! later group of which nothing is stored goes with an earlier one, if what it reads is there by
//! then, and so does the sum of an array that the group reads. A sum is written at its own step, and
//! stored values at that of the first group, so memory is as the plan has arranged it. Groups beside
//! them without sums are walked in the same way, because longer stretches are worked on at once. A
//! walk is made by machine code; where there is none (yet) its steps run as they are.

#[cfg(test)]
mod tests;

use smallvec::SmallVec;

use super::Run;
use crate::array::Array;
use crate::cpu::program::{Given, Summing};
use crate::cpu::reduce::{BLOCK, is_in_rows};
use crate::cpu::target::LIMITS;
use crate::dtype::{DType, Scalar};
use crate::error::Result;
use crate::ops::attributes::Reduction;
use crate::ops::element::{ElementProgram, Value};
use crate::ops::op::Op;
use crate::schedule::{Number, Operand, Plan, Sequel, Source, Step, Work};
use crate::shape::{Axes, Shape};

/// Elements that are summed into one and worth setting up a walk over them: a block of a sum.
const LEAST: usize = BLOCK;

/// The walks of a plan, and what becomes of each of its steps.
pub(super) struct FusedSums {
    roles: Vec<Role>,
    walks: Vec<Walk>,
}

/// What is done at a step.
#[derive(Clone, Copy)]
enum Role {
    /// The step
    Own,
    /// A walk, by its number
    Walk(usize),
    /// Nothing, where that walk was made: the step is part of it
    Done(usize),
    /// A sum of a walk is written, by its number there
    Sum(usize, usize),
}

/// Groups over the same elements at once.
struct Walk {
    program: Summing,
    shape: Shape,
    axes: Axes,
    inputs: SmallVec<[Source; 4]>,
    numbers: SmallVec<[Number; 4]>,
    /// Arrays that are numbers where elements are summed into one
    repeated: SmallVec<[Source; 4]>,
    /// The slots of the results that are stored
    stored: SmallVec<[u32; 2]>,
    /// How many results are summed, and how many sums each has
    sums: usize,
    kept: usize,
}

/// Slots, and the arrays that are stored there.
type Stored = SmallVec<[(u32, Array); 2]>;

/// Steps that become a walk.
struct Members {
    /// Groups, in order; the walk is made at the first
    groups: SmallVec<[usize; 2]>,
    /// Steps of sums, and what they sum
    sums: SmallVec<[(usize, Source); 2]>,
    shape: Shape,
    axes: Axes,
}

impl Members {
    fn at(&self) -> usize {
        self.groups[0]
    }
}

/// A plan whose sums are looked for.
struct Finder<'a> {
    plan: &'a Plan,
    /// By slot: the step that makes it
    made: Vec<usize>,
}

impl FusedSums {
    /// The walks of a plan; `None` where there are none.
    pub(super) fn of(plan: &Plan) -> Option<FusedSums> {
        let mut made = vec![0; plan.slots().len()];
        for (i, step) in plan.steps().iter().enumerate() {
            step.results.iter().for_each(|&slot| made[slot as usize] = i);
        }
        let finder = Finder { plan, made };
        let all = finder.members();
        let mut fused = FusedSums { roles: vec![Role::Own; plan.steps().len()], walks: Vec::new() };
        for members in all {
            let Some(walk) = finder.walk(&members) else { continue };
            let number = fused.walks.len();
            members.groups.iter().for_each(|&group| fused.roles[group] = Role::Done(number));
            fused.roles[members.at()] = Role::Walk(number);
            for (k, &(step, _)) in members.sums.iter().enumerate() {
                fused.roles[step] = Role::Sum(number, k);
            }
            fused.walks.push(walk);
        }
        (!fused.walks.is_empty()).then_some(fused)
    }

    /// How many walks there are.
    pub(super) fn walks(&self) -> usize {
        self.walks.len()
    }
}

impl Finder<'_> {
    /// The group that makes a value of this shape.
    fn group(&self, source: Source, shape: &Shape) -> Option<(usize, Sequel)> {
        let Source::Slot(slot) = source else { return None };
        let at = self.made[slot as usize];
        let group = self.plan.elementwise(&self.plan.steps()[at])?;
        group.group.shape.same(shape).then_some((at, group))
    }

    /// Sums with the groups that they go with, where several share a walk too.
    fn members(&self) -> Vec<Members> {
        let (mut all, mut others): (Vec<Members>, Vec<Members>) = (Vec::new(), Vec::new());
        for (i, step) in self.plan.steps().iter().enumerate() {
            let Work::Op(Op::Reduce(Reduction::Sum, axes)) = &step.work else { continue };
            let Some(&Operand::Array(source)) = step.args.first() else { continue };
            let ty = self.plan.ty(source);
            if ty.dtype != DType::F32 || !ty.shape.is_known() || !is_in_rows(&ty.shape, axes) {
                continue;
            }
            if axes.iter().map(|&axis| ty.shape[axis].value()).product::<usize>() < LEAST {
                continue;
            }
            let sums = SmallVec::from_slice(&[(i, source)]);
            let Some((at, _)) = self.group(source, &ty.shape) else {
                let (groups, axes) = (SmallVec::new(), axes.clone());
                others.push(Members { groups, sums, shape: ty.shape, axes });
                continue;
            };
            match all.iter_mut().find(|members| members.groups.contains(&at)) {
                Some(members) if members.axes == *axes => members.sums.extend(sums),
                Some(_) => {}
                None => {
                    let groups = SmallVec::from_slice(&[at]);
                    all.push(Members { groups, sums, shape: ty.shape, axes: axes.clone() });
                }
            }
        }
        all.sort_by_key(Members::at);
        let mut found: Vec<Members> = Vec::new();
        // Groups without sums.
        let walked: SmallVec<[(Shape, Axes); 2]> =
            all.iter().map(|members| (members.shape.clone(), members.axes.clone())).collect();
        for members in all.into_iter().chain(others) {
            match found.iter_mut().find(|first| self.goes_with(&members, first)) {
                Some(first) => {
                    first.groups.extend(members.groups);
                    first.sums.extend(members.sums);
                }
                None if members.groups.is_empty() => {}
                None => found.push(members),
            }
        }
        for (i, step) in self.plan.steps().iter().enumerate() {
            let Some(group) = self.plan.elementwise(step) else { continue };
            let is_alike = |(shape, _): &&(Shape, Axes)| shape.same(&group.group.shape);
            let Some((shape, axes)) = walked.iter().find(is_alike) else { continue };
            if found.iter().all(|members| !members.groups.contains(&i)) {
                let (groups, sums) = (SmallVec::from_slice(&[i]), SmallVec::new());
                let (shape, axes) = (shape.clone(), axes.clone());
                found.push(Members { groups, sums, shape, axes });
            }
        }
        found
    }

    /// Whether a value is one number where elements of a shape are summed into one.
    fn repeats(&self, source: Source, (shape, axes): (&Shape, &[usize])) -> bool {
        let ty = self.plan.ty(source);
        let skipped = shape.rank() - ty.shape.rank();
        let is_one = |axis: &usize| {
            axis.checked_sub(skipped).is_none_or(|axis| ty.shape[axis].known() == Some(1))
        };
        ty.dtype == DType::F32 && axes.iter().all(is_one)
    }

    /// Whether members, of later groups if of any, can join the walk of earlier ones, and gain.
    fn goes_with(&self, members: &Members, first: &Members) -> bool {
        let at = first.at();
        let is_there = |source: Source| match source {
            Source::Slot(slot) => self.made[slot as usize] < at,
            Source::Input(_) | Source::Constant(_) => true,
        };
        let is_alike = first.shape.same(&members.shape) && first.axes == members.axes;
        let read = self.arrays(&first.groups);
        let mut own = self.arrays(&members.groups);
        if members.groups.is_empty() {
            own.extend(members.sums.iter().map(|&(_, source)| source));
        }
        let shared = own.iter().filter(|source| read.contains(source)).count();
        let counts = |groups: &[usize]| -> usize {
            let groups =
                groups.iter().filter_map(|&i| self.plan.elementwise(&self.plan.steps()[i]));
            groups.map(|group| group.group.program.instructions().len()).sum()
        };
        is_alike
            && shared > 0
            && own.iter().all(|&source| is_there(source))
            && members.sums.iter().all(|&(step, _)| step > at)
            && self.stored(&members.groups, &members.sums).is_empty()
            && read.len() + own.len() - shared <= LIMITS.operands
            && counts(&first.groups) + counts(&members.groups) <= LIMITS.instructions
    }

    /// The arrays that groups read, each once.
    fn arrays(&self, groups: &[usize]) -> SmallVec<[Source; 8]> {
        let mut arrays: SmallVec<[Source; 8]> = SmallVec::new();
        for arg in groups.iter().flat_map(|&i| &self.plan.steps()[i].args) {
            if let Operand::Array(source) = *arg
                && !arrays.contains(&source)
            {
                arrays.push(source);
            }
        }
        arrays
    }

    /// The results of groups that others than these sums read.
    fn stored(&self, groups: &[usize], sums: &[(usize, Source)]) -> SmallVec<[u32; 2]> {
        let is_stored = |slot: u32| {
            let source = Source::Slot(slot);
            let mut steps = self.plan.steps().iter().enumerate();
            self.plan.outputs().contains(&source)
                || steps.any(|(i, step)| {
                    let is_sum = sums.iter().any(|&(sum, _)| sum == i);
                    !is_sum && step.args.contains(&Operand::Array(source))
                })
        };
        let slots = groups.iter().flat_map(|&i| self.plan.steps()[i].results.iter().copied());
        slots.filter(|&slot| is_stored(slot)).collect()
    }

    /// The walk of some members.
    fn walk(&self, members: &Members) -> Option<Walk> {
        let elements = (&members.shape, &members.axes[..]);
        let (repeated, inputs): (SmallVec<[Source; 4]>, SmallVec<[Source; 4]>) = self
            .arrays(&members.groups)
            .into_iter()
            .partition(|&source| self.repeats(source, elements));
        let groups = members.groups.iter().map(|&i| {
            let step = &self.plan.steps()[i];
            self.plan.elementwise(step).map(|group| (step, group))
        });
        let groups: SmallVec<[(&Step, Sequel); 2]> = groups.collect::<Option<_>>()?;
        let dtypes: SmallVec<[DType; 4]> =
            inputs.iter().map(|&source| self.plan.ty(source).dtype).collect();
        let (mut numbers, mut rounded) = (SmallVec::new(), SmallVec::<[DType; 4]>::new());
        for (_, group) in &groups {
            rounded.extend_from_slice(group.group.program.numbers());
            numbers.extend(group.operands.iter().filter_map(|operand| match *operand {
                Operand::Number(number) => Some(number),
                Operand::Array(_) => None,
            }));
        }
        let told = rounded.len();
        rounded.extend(repeated.iter().map(|_| DType::F32));
        let mut program = ElementProgram::new(&dtypes, &rounded);
        let mut known: Vec<(u32, Value)> = Vec::new();
        let mut number = 0;
        let place = |among: &[Source], source: Source| among.iter().position(|&x| x == source);
        for (step, group) in &groups {
            let own = &group.group.program;
            let mut values: SmallVec<[Value; 16]> = SmallVec::new();
            for operand in &group.operands {
                values.push(match *operand {
                    Operand::Array(source) => match place(&repeated, source) {
                        Some(k) => program.number(told + k),
                        None => program.array(place(&inputs, source)?),
                    },
                    Operand::Number(_) => {
                        number += 1;
                        program.number(number - 1)
                    }
                });
            }
            for instruction in own.instructions() {
                let args: SmallVec<[Value; 3]> =
                    instruction.args.iter().map(|x| values[x.0 as usize]).collect();
                values.push(program.push(instruction.op, &args, instruction.dtype));
            }
            for (x, &slot) in own.results().iter().zip(&step.results) {
                known.push((slot, values[x.0 as usize]));
            }
        }
        let value =
            |source: Source| match known.iter().find(|(slot, _)| source == Source::Slot(*slot)) {
                Some(&(_, value)) => Some(value),
                None => Some(program.array(place(&inputs, source)?)),
            };
        let stored = self.stored(&members.groups, &members.sums);
        let mut results: SmallVec<[Value; 4]> = SmallVec::new();
        for &slot in &stored {
            results.push(value(Source::Slot(slot))?);
        }
        for &(_, source) in &members.sums {
            results.push(value(source)?);
        }
        let (shape, axes) = (members.shape.clone(), members.axes.clone());
        let kept = (0..shape.rank()).filter(|axis| !axes.contains(axis));
        let kept = kept.map(|axis| shape[axis].value()).product();
        let sums = members.sums.len();
        let program = Summing::lower(&program.giving(&results), sums).ok()?;
        Some(Walk { program, shape, axes, inputs, numbers, repeated, stored, sums, kept })
    }
}

impl Run<'_> {
    /// What is done at a step of a plan with walks.
    pub(super) fn fused_step(&mut self, fused: &FusedSums, i: usize, step: &Step) -> Result<()> {
        let made = match fused.roles[i] {
            Role::Own => return self.step(i, step),
            // Without code for the walk nothing is there.
            Role::Done(k) | Role::Sum(k, _) if self.sums[k].is_empty() => {
                return self.step(i, step);
            }
            Role::Done(_) => Stored::new(),
            Role::Walk(k) => match self.walk(&fused.walks[k], k)? {
                Some(made) => made,
                None => return self.step(i, step),
            },
            Role::Sum(k, sum) => {
                let slot = step.results[0];
                let result = self.room(slot)?;
                let Walk { kept, .. } = fused.walks[k];
                let sums = &self.sums[k][sum * kept..][..kept];
                // SAFETY: the result is in C order, and has an element for each sum; memory that no
                // other live value has.
                unsafe { result.ptr_mut().cast::<f32>().copy_from(sums.as_ptr(), kept) };
                SmallVec::from_iter([(slot, result)])
            }
        };
        for &slot in &step.last {
            self.slots[slot as usize] = None;
        }
        for (slot, array) in made {
            self.slots[slot as usize] = Some(array);
        }
        Ok(())
    }

    /// The array of a result.
    fn room(&mut self, slot: u32) -> Result<Array> {
        let ty = &self.plan.slots()[slot as usize];
        match self.fixed(slot)? {
            Some(array) => Ok(array),
            None => Array::uninit(ty.dtype, ty.shape.clone()),
        }
    }

    /// The stored results of a walk, whose sums are kept; `None` where it has no code.
    fn walk(&mut self, walk: &Walk, k: usize) -> Result<Option<Stored>> {
        let mut made = Stored::new();
        for &slot in &walk.stored {
            let array = match self.elsewhere(Source::Slot(slot)) {
                Some(array) => array.clone(),
                None => self.room(slot)?,
            };
            made.push((slot, array));
        }
        let mut sums = std::mem::take(&mut self.sums[k]);
        sums.resize(walk.sums * walk.kept, 0.0);
        let numbers: SmallVec<[Scalar; 4]> =
            walk.numbers.iter().map(|&number| self.number(number)).collect();
        let arrays = |sources: &[Source]| -> SmallVec<[&Array; 8]> {
            sources.iter().map(|&source| self.array(source)).collect()
        };
        let (arrays, repeated) = (arrays(&walk.inputs), arrays(&walk.repeated));
        let given = Given { arrays: &arrays, numbers: &numbers, repeated: &repeated };
        let outputs: SmallVec<[&Array; 2]> = made.iter().map(|(_, array)| array).collect();
        let elements = (&walk.shape, &walk.axes[..]);
        // SAFETY: as for groups: an output lies apart from all live values, or it is the memory of an
        // operand of the first group of its type that lies as it does and that nobody reads again.
        let is_done = unsafe { walk.program.run(elements, given, &outputs, &mut sums) };
        drop((arrays, repeated, outputs));
        if !is_done {
            return Ok(None);
        }
        self.sums[k] = sums;
        Ok(Some(made))
    }
}
