//! Products with prologues and epilogues.
//!
//! Where the only reader of a product is one elementwise group, the group becomes its epilogue: it
//! runs on each piece of the product as soon as the piece is computed and still in the cache. So
//! bias, activation and residual cost no pass of their own. The product is computed in the memory
//! of one of the group's results, or in registers. A group whose only reader is a product may become a prologue,
//! which runs while the product packs that operand ([`prologue`](super::prologue)).

use smallvec::SmallVec;

use super::assemble::Sequel;
use super::liveness::{bound, same};
use super::prologue::Prologue;
use super::{Group, Operand, Plan, Source, Step, StepTemplate, Work};
use crate::ops::op::{Op, Type};

/// A product with its prologues and its epilogue. The arguments of its step are those of the first
/// operand (the operand, or the operands of its prologue), of the second operand, and of the
/// epilogue without the product. All arrays come first, then all numbers.
#[derive(Clone)]
pub struct Product {
    /// The product
    pub op: Op,
    /// By operand: the prologue that computes it
    pub before: [Option<Prologue>; 2],
    /// The group that runs on the result
    pub after: Option<Epilogue>,
}

/// A group that runs on the result of a product.
#[derive(Clone)]
pub struct Epilogue {
    /// The group
    pub group: Group,
    /// Which array of the program is the product
    pub raw: usize,
    /// The position of the result in whose memory the product is computed, where the target keeps
    /// it in memory
    pub place: Option<usize>,
}

impl Epilogue {
    /// The type of the product.
    pub fn raw_ty(&self) -> Type {
        Type::new(self.group.program.arrays()[self.raw], self.group.shape.clone())
    }
}

/// The arguments of a group: arrays and numbers.
pub type Given<'s> = (&'s [Operand], &'s [Operand]);

impl Product {
    /// The arguments of a step by their use: those of each operand, and those of the epilogue.
    pub fn parts<'s>(&self, args: &'s [Operand]) -> ([Given<'s>; 2], Given<'s>) {
        let is_array = |arg: &&Operand| matches!(arg, Operand::Array(_));
        let (mut arrays, mut numbers) = args.split_at(args.iter().filter(is_array).count());
        let before = self.before.each_ref().map(|prologue| {
            let (many, few) = match prologue {
                Some(Prologue { group, .. }) => {
                    (group.program.arrays().len(), group.program.numbers().len())
                }
                None => (1, 0),
            };
            let given = (&arrays[..many], &numbers[..few]);
            (arrays, numbers) = (&arrays[many..], &numbers[few..]);
            given
        });
        (before, (arrays, numbers))
    }

    /// The groups, in the order in which they run.
    pub fn groups(&self) -> impl Iterator<Item = &Group> {
        let before = self.before.iter().flatten().map(|prologue| &prologue.group);
        before.chain(self.after.iter().map(|epilogue| &epilogue.group))
    }

    /// The groups, in the order in which they run.
    pub(super) fn groups_mut(&mut self) -> impl Iterator<Item = &mut Group> {
        let before = self.before.iter_mut().flatten().map(|prologue| &mut prologue.group);
        before.chain(self.after.iter_mut().map(|epilogue| &mut epilogue.group))
    }

    /// The name of the work. An operand that a prologue computes is named by its letter.
    pub fn name(&self) -> String {
        let made = self.before.iter().zip(["a", "b"]).filter_map(|(prologue, letter)| {
            Some(format!("{letter}: {}", prologue.as_ref()?.group.program.names()))
        });
        let made: Vec<String> = made.collect();
        let mut name = self.op.name().to_string();
        if !made.is_empty() {
            name += &format!(" ({})", made.join("; "));
        }
        if let Some(epilogue) = &self.after {
            name += &format!(", {}", epilogue.group.program.names());
        }
        name
    }
}

/// By slot: the step that reads it, and how often it is read, results included.
pub(super) struct Readers {
    pub step: Vec<Option<u32>>,
    pub times: Vec<u32>,
}

impl Readers {
    pub(super) fn new(plan: &Plan) -> Readers {
        let slots = plan.slots.len();
        let mut readers = Readers { step: vec![None; slots], times: vec![0; slots] };
        for (i, step) in plan.steps.iter().enumerate() {
            for arg in &step.args {
                if let Operand::Array(Source::Slot(slot)) = *arg {
                    readers.times[slot as usize] += 1;
                    readers.step[slot as usize] = Some(i as u32);
                }
            }
        }
        for source in &plan.template.outputs {
            if let Source::Slot(slot) = *source {
                readers.times[slot as usize] += 1;
            }
        }
        readers
    }

    /// The one step that reads a slot, if it reads it once and the slot is no result of the plan.
    pub(super) fn only(&self, slot: u32) -> Option<u32> {
        self.step[slot as usize].filter(|_| self.times[slot as usize] == 1)
    }
}

impl Plan {
    /// The type of the `k`-th operand of a product.
    pub(super) fn factor(&self, product: &Product, step: &Step, k: usize) -> Option<Type> {
        match (&product.before[k], product.parts(&step.args).0[k].0) {
            (Some(prologue), _) => prologue.ty(),
            (None, [Operand::Array(source)]) => Some(self.ty(*source)),
            (None, _) => None,
        }
    }

    /// Makes one step of each product and the group that alone reads it.
    pub(super) fn join_products(&mut self, readers: &Readers, donated: &[(u32, u32)]) {
        let given: SmallVec<[Source; 8]> =
            donated.iter().map(|&(_, output)| self.template.outputs[output as usize]).collect();
        let mut gone = vec![false; self.steps.len()];
        for i in (0..self.steps.len()).rev() {
            let Work::Op(op) = &self.steps[i].work else { continue };
            let slot = self.steps[i].results[0];
            let Some(to) = readers.only(slot) else { continue };
            let group = &self.steps[to as usize];
            // A step that writes donated memory runs after all that may fail, so it is not joined
            // to a product.
            let is_given = group.results.iter().any(|&slot| given.contains(&Source::Slot(slot)));
            if self.target.offers_epilogue(op, self.slots[slot as usize].dtype)
                && !is_given
                && let Some(joined) = self.joined(&self.steps[i], op, slot, group)
            {
                self.steps[to as usize] = joined;
                gone[i] = true;
            }
        }
        self.drop_steps(&gone);
    }

    /// Drops the steps that have been joined to others.
    pub(super) fn drop_steps(&mut self, gone: &[bool]) {
        let mut at = 0;
        self.steps.retain(|_| {
            at += 1;
            !gone[at - 1]
        });
    }

    fn joined(&self, product: &Step, op: &Op, slot: u32, group: &Step) -> Option<Step> {
        let Sequel { group: what, operands } = self.elementwise(group)?;
        let ty = &self.slots[slot as usize];
        if !what.shape.same(&ty.shape) {
            return None;
        }
        let place = match self.target.epilogue_in_registers() {
            true => None,
            false => Some(group.results.iter().position(|&r| same(ty, &self.slots[r as usize]))?),
        };
        let source = Operand::Array(Source::Slot(slot));
        let raw = operands.iter().position(|arg| *arg == source)?;
        let mut args = product.args.clone();
        args.extend(operands.iter().enumerate().filter(|(k, _)| *k != raw).map(|(_, &arg)| arg));
        if bound(&args).len() + group.results.len() > self.target.limits().buffers {
            return None;
        }
        let mut nodes = product.nodes.clone();
        nodes.extend(group.nodes.iter().copied());
        let after = Some(Epilogue { group: what, raw, place });
        let work = Work::Product(Box::new(Product { op: op.clone(), before: [None, None], after }));
        Some(Step::new(work, StepTemplate { args, nodes, ..(*group.template).clone() }))
    }
}
