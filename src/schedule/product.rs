//! Products with what becomes of them.
//!
//! Where nobody but one elementwise group reads a product, the group runs on each part of the product
//! as soon as that is there and still in the cache: bias, activation and residual cost no pass of
//! their own. The product is computed where a result of the group will lie.

use smallvec::SmallVec;

use super::assemble::Sequel;
use super::facts::{bound, same};
use super::{Group, Operand, Plan, Source, Step, Work};
use crate::ops::op::Op;

/// A product and the group that reads it. Operands are those of the product, then those of the group
/// without the product.
#[derive(Clone)]
pub struct Product {
    /// The product
    pub op: Op,
    /// The group
    pub group: Group,
    /// Which array of the program is the product
    pub raw: usize,
    /// The result in whose memory the product is computed
    pub place: usize,
}

impl Plan {
    /// Makes one step of each product and the group that alone reads it.
    pub(super) fn join_products(&mut self, donated: &[(u32, u32)]) {
        // By slot: the step that reads it, if that is only one.
        let mut reader: Vec<Option<u32>> = vec![None; self.slots.len()];
        let mut readings: Vec<u32> = vec![0; self.slots.len()];
        for (i, step) in self.steps.iter().enumerate() {
            for arg in &step.args {
                if let Operand::Array(Source::Slot(slot)) = *arg {
                    readings[slot as usize] += 1;
                    reader[slot as usize] = Some(i as u32);
                }
            }
        }
        for source in &self.outputs {
            if let Source::Slot(slot) = *source {
                readings[slot as usize] += 1;
            }
        }
        let given: SmallVec<[Source; 8]> =
            donated.iter().map(|&(_, output)| self.outputs[output as usize]).collect();
        let mut gone = vec![false; self.steps.len()];
        for i in (0..self.steps.len()).rev() {
            let Work::Op(op) = &self.steps[i].work else { continue };
            let slot = self.steps[i].results[0];
            let (Some(to), 1) = (reader[slot as usize], readings[slot as usize]) else { continue };
            let group = &self.steps[to as usize];
            // What is written over donated memory waits until nothing can fail any more.
            let is_given = group.results.iter().any(|&slot| given.contains(&Source::Slot(slot)));
            if self.target.offers_epilogue(op, self.slots[slot as usize].dtype)
                && !is_given
                && let Some(joined) = self.joined(&self.steps[i], op, slot, group)
            {
                self.steps[to as usize] = joined;
                gone[i] = true;
            }
        }
        let mut at = 0;
        self.steps.retain(|_| {
            at += 1;
            !gone[at - 1]
        });
    }

    fn joined(&self, product: &Step, op: &Op, slot: u32, group: &Step) -> Option<Step> {
        let Sequel { group: what, operands } = self.elementwise(group)?;
        let ty = &self.slots[slot as usize];
        let place = group.results.iter().position(|&r| same(ty, &self.slots[r as usize]))?;
        let source = Operand::Array(Source::Slot(slot));
        let raw = operands.iter().position(|arg| *arg == source)?;
        let mut args = product.args.clone();
        args.extend(operands.iter().enumerate().filter(|(k, _)| *k != raw).map(|(_, &arg)| arg));
        if bound(&args).len() + group.results.len() > self.target.limits().buffers {
            return None;
        }
        let mut nodes = product.nodes.clone();
        nodes.extend(group.nodes.iter().copied());
        let op = op.clone();
        let work = Work::Product(Box::new(Product { op, group: what, raw, place }));
        Some(Step { work, args, nodes, ..group.clone() })
    }
}
