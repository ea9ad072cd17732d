//! Prologues: groups that compute an operand of a product while the product packs it.
//!
//! A group whose only reader is a product (a group that dequantises weights, or normalises inputs)
//! need not write its result. The product asks for the result block by block, where it would
//! otherwise copy the operand into its panels. So the array is neither written nor read. The groups
//! that may become prologues are found once for all sizes. Whether a prologue pays is worked out
//! for each set of sizes, since a product that is cut into cells packs an operand more than once.

use smallvec::SmallVec;

use super::assemble::Sequel;
use super::liveness::{arrays, bound, makers};
use super::product::{Product, Readers};
use super::{Group, Operand, Plan, Source, Step, StepTemplate, Work};
use crate::dtype::DType;
use crate::layout::Layout;
use crate::ops::op::{Op, Type};
use crate::shape::Axes;
use crate::target::Packed;

/// Bytes that can be moved in the time of one op on one element, on the assumption that all ops
/// take the same time.
const OP: usize = 16;

/// A group whose only result is an operand of a product.
#[derive(Clone)]
pub struct Prologue {
    /// The group
    pub group: Group,
    /// By axis of the operand: the axis of the group's result; `None` where they are in the same
    /// order
    pub axes: Option<Axes>,
}

impl Prologue {
    /// The layout that the operand would have if it were written; `None` where sizes are open.
    pub fn layout(&self) -> Option<Layout> {
        let shape = &self.group.shape;
        let dense = shape.is_known().then(|| Layout::contiguous(shape.clone()))?;
        Some(match &self.axes {
            None => dense,
            Some(axes) => dense.permuted(axes),
        })
    }

    /// The type of the operand.
    pub(super) fn ty(&self) -> Option<Type> {
        let shape = match &self.axes {
            None => self.group.shape.clone(),
            Some(axes) => axes.iter().map(|&axis| self.group.shape[axis]).collect(),
        };
        Some(Type::new(self.group.program.dtypes().next()?, shape))
    }

    /// Ops per element.
    pub fn ops(&self) -> usize {
        self.group.len()
    }
}

/// An operand of a product that a prologue may compute.
#[derive(Clone)]
pub(super) struct Fed {
    /// The slot that the product reads
    slot: u32,
    /// The group that makes it, where the step that makes it is a single op
    pub(super) single: Option<Group>,
}

impl Plan {
    /// The operands of products that an elementwise step makes and the product alone reads.
    pub(super) fn fed(&self, readers: &Readers) -> Vec<Fed> {
        let mut fed = Vec::new();
        let mut made = Vec::new();
        for step in &self.steps {
            let Work::Op(op) = &step.work else { continue };
            for (k, arg) in step.args.iter().enumerate().take(2) {
                let Operand::Array(Source::Slot(slot)) = *arg else { continue };
                let dtype = self.slots[slot as usize].dtype;
                if !self.target.offers_prologue(op, dtype, k) {
                    continue;
                }
                if made.is_empty() {
                    made = makers(&self.steps, self.slots.len());
                }
                let Some((maker, ..)) = self.feeding(readers, &made, slot) else { continue };
                let maker = &self.steps[maker as usize];
                let single = match (&maker.work, self.elementwise(maker)) {
                    (Work::Group(_), _) => None,
                    (_, Some(Sequel { group, .. })) => Some(group),
                    (_, None) => continue,
                };
                fed.push(Fed { slot, single });
            }
        }
        fed
    }

    /// The elementwise step whose only result is read by the product alone, in this slot. A step
    /// that permutes the axes may stand between the two: then its index and its axes are given too.
    fn feeding(
        &self,
        readers: &Readers,
        made: &[u32],
        slot: u32,
    ) -> Option<(u32, Option<(u32, Axes)>)> {
        readers.only(slot)?;
        let maker = made[slot as usize];
        let step = &self.steps[maker as usize];
        if let (Work::Op(Op::Permute(axes)), [Operand::Array(Source::Slot(from))]) =
            (&step.work, step.args.as_slice())
        {
            let (first, shown) = self.feeding(readers, made, *from)?;
            return shown.is_none().then(|| (first, Some((maker, axes.iter().copied().collect()))));
        }
        let is_elementwise =
            matches!(&step.work, Work::Group(_) | Work::Op(Op::Map(_) | Op::Cast(_)));
        let fits = is_elementwise && step.results.len() == 1 && !arrays(step).is_empty();
        fits.then_some((maker, None))
    }

    /// Joins prologues to products where that pays at the sizes of this plan; returns the slots of
    /// the operands that prologues compute.
    pub(super) fn join_prologues(&mut self) -> SmallVec<[u32; 2]> {
        let mut joined = SmallVec::new();
        if self.template.fed.is_empty() || !self.is_known() {
            return joined;
        }
        let template = self.template.clone();
        let mut fed: SmallVec<[&Fed; 4]> = template.fed.iter().collect();
        // The larger operand comes first: where only one can be computed exactly once, it should be
        // the larger.
        fed.sort_by_key(|fed| std::cmp::Reverse(self.slots[fed.slot as usize].shape.count()));
        let (readers, made) = (Readers::new(self), makers(&self.steps, self.slots.len()));
        let mut gone = vec![false; self.steps.len()];
        for &Fed { slot, ref single } in fed {
            let Some((maker, shown)) = self.feeding(&readers, &made, slot) else { continue };
            let Some(to) = readers.only(slot) else { continue };
            let Some(Sequel { mut group, operands }) =
                self.elementwise(&self.steps[maker as usize])
            else {
                continue;
            };
            if let Some(single) = single {
                (group.number, group.program) = (single.number, single.program.clone());
            }
            let (view, axes) = shown.unzip();
            let prologue = Prologue { group, axes };
            let Some(step) = self.with_prologue(to, slot, prologue, &operands, maker) else {
                continue;
            };
            if !self.prologues_pay(&step, &readers) {
                continue;
            }
            self.steps[to as usize] = step;
            gone[maker as usize] = true;
            view.into_iter().for_each(|view| gone[view as usize] = true);
            joined.push(slot);
        }
        self.drop_steps(&gone);
        joined
    }

    /// The step of a product with a prologue for the operand in `slot`. `None` where the step is no
    /// product with that operand, or would bind too many buffers.
    fn with_prologue(
        &self,
        to: u32,
        slot: u32,
        prologue: Prologue,
        given: &[Operand],
        maker: u32,
    ) -> Option<Step> {
        let step = &self.steps[to as usize];
        let mut product = match &step.work {
            Work::Op(op) => Product { op: op.clone(), before: [None, None], after: None },
            Work::Product(product) => (**product).clone(),
            Work::Group(_)
            | Work::BlockFusion(_)
            | Work::RowFusion(_)
            | Work::ControlFlow(_)
            | Work::Effect(_)
            | Work::Alias => {
                return None;
            }
        };
        let (before, after) = product.parts(&step.args);
        let wanted = Operand::Array(Source::Slot(slot));
        let k = (0..2).find(|&k| product.before[k].is_none() && before[k].0 == [wanted])?;
        let many = prologue.group.program.arrays().len();
        let mut parts = [before[0], before[1], after];
        parts[k] = given.split_at(many);
        let arrays = parts.iter().flat_map(|part| part.0);
        let numbers = parts.iter().flat_map(|part| part.1);
        let args: SmallVec<[Operand; 4]> = arrays.chain(numbers).copied().collect();
        if bound(&args).len() + step.results.len() > self.target.limits().buffers {
            return None;
        }
        product.before[k] = Some(prologue);
        let mut nodes = self.steps[maker as usize].nodes.clone();
        nodes.extend(step.nodes.iter().copied());
        let work = Work::Product(Box::new(product));
        Some(Step::new(work, StepTemplate { args, nodes, ..(*step.template).clone() }))
    }

    /// Whether a product with prologues is cheaper than the product and the groups as steps of
    /// their own. An operand that the product would read where it lies gets no prologue: packing it
    /// costs more than the array. For an operand that is packed `times` times, a prologue saves one
    /// write and `times` reads of the array, but it reads the group's operands and runs the group's
    /// ops `times` times instead of once. The operands that only the group reads now live until the
    /// product; they may not take more memory than the group's result. The product's scratch may
    /// not grow by more than the arrays that are saved.
    fn prologues_pay(&self, step: &Step, readers: &Readers) -> bool {
        let Work::Product(product) = &step.work else { return false };
        let contiguous = |source| Some(Layout::contiguous(self.ty(source).shape));
        let Some(packed) = self.packed(product, step, &contiguous) else { return false };
        let Some(plain) = self.asked(product, step, &contiguous, [None, None]) else {
            return false;
        };
        let saved: usize = (product.before.iter().flatten().filter_map(Prologue::ty))
            .map(|ty| self.target.bytes(ty.dtype, ty.shape.count()))
            .sum();
        let (given, _) = product.parts(&step.args);
        packed.scratch <= plain.scratch + saved
            && (0..2).all(|k| match &product.before[k] {
                None => true,
                Some(prologue) => packed.times[k]
                    .is_some_and(|times| self.prologue_pays(prologue, given[k].0, times, readers)),
            })
    }

    fn prologue_pays(
        &self,
        prologue: &Prologue,
        given: &[Operand],
        times: usize,
        readers: &Readers,
    ) -> bool {
        let bytes = |ty: &Type| self.target.bytes(ty.dtype, ty.shape.count());
        let (mut read, mut kept) = (0, 0);
        for arg in given {
            let Operand::Array(source) = *arg else { continue };
            let bytes = bytes(&self.ty(source));
            read += bytes;
            if let Source::Slot(slot) = source
                && readers.only(slot).is_some()
            {
                kept += bytes;
            }
        }
        let Some(made) = prologue.ty() else { return false };
        let (count, written) = (made.shape.count(), bytes(&made));
        let again = (times - 1) * (read + count * prologue.ops() * OP);
        count >= self.target.limits().large && kept <= written && again < written * (1 + times)
    }

    /// How the target packs the operands of a product: those with a prologue are computed, the
    /// others lie as `layout` says. `None` where sizes are open.
    pub(super) fn packed(
        &self,
        product: &Product,
        step: &Step,
        layout: &dyn Fn(Source) -> Option<Layout>,
    ) -> Option<Packed> {
        let made = product.before.each_ref().map(|made| made.as_ref().map(Prologue::ops));
        self.asked(product, step, layout, made)
    }

    /// The same, where prologues compute the operands for which `made` has a count of ops.
    fn asked(
        &self,
        product: &Product,
        step: &Step,
        layout: &dyn Fn(Source) -> Option<Layout>,
        made: [Option<usize>; 2],
    ) -> Option<Packed> {
        let (given, _) = product.parts(&step.args);
        let mut types: SmallVec<[(DType, Layout); 2]> = SmallVec::new();
        for (prologue, (arrays, _)) in product.before.iter().zip(given) {
            types.push(match (prologue, arrays) {
                (Some(prologue), _) => (prologue.ty()?.dtype, prologue.layout()?),
                (None, &[Operand::Array(source)]) => (self.ty(source).dtype, layout(source)?),
                (None, _) => return None,
            });
        }
        let args = [(types[0].0, &types[0].1), (types[1].0, &types[1].1)];
        let place = product.after.as_ref().and_then(|after| after.place).unwrap_or(0);
        let result = layout(Source::Slot(step.results[place]))?;
        Some(self.target.packed(&product.op, args, made, &result))
    }
}
