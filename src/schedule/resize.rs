//! Plans for other sizes: the same template, arranged again.
//!
//! A plan of a list with symbolic sizes has steps but no offsets. Such a list decides once which
//! nodes share a step, which gives the template. Sizes, shapes, the order of steps, offsets and
//! blocks are worked out for each set of sizes.

use std::sync::Arc;

use super::memory::Memory;
use super::{Options, Plan, Step, Work};
use crate::error::Result;
use crate::ops::op::Type;
use crate::shape::Dim;

impl Plan {
    /// The same template for other sizes. Refuses sizes that are beyond the limits of its target.
    pub fn resized(&self, size: &dyn Fn(Dim) -> Dim) -> Result<Plan> {
        let ty = |ty: &Type| ty.map_dims(size);
        let steps: Result<_> = self.steps.iter().map(|step| step.resized(size)).collect();
        let mut plan = Plan {
            target: self.target,
            template: self.template.clone(),
            steps: steps?,
            inputs: self.inputs.iter().map(ty).collect(),
            slots: self.slots.iter().map(ty).collect(),
            memory: Memory::default(),
            recomputed: self.recomputed,
            elements: None,
        };
        let template = &self.template;
        let options = Options { donated: &template.donated, ..Options::new(self.target) };
        if let Some(found) = plan.arrange(options, template.layout_hint.get()) {
            template.layout_hint.get_or_init(|| found);
        }
        plan.admit()?;
        plan.checked()?;
        Ok(plan)
    }
}

impl Work {
    fn resized(&self, size: &dyn Fn(Dim) -> Dim) -> Result<Work> {
        Ok(match self {
            Work::Group(group) => Work::Group(group.reshaped(group.shape.map(size))),
            Work::Product(product) => {
                let mut product = (**product).clone();
                product.op = product.op.map_dims(size);
                product.groups_mut().for_each(|group| group.shape = group.shape.map(size));
                Work::Product(Box::new(product))
            }
            Work::Op(op) => Work::Op(op.map_dims(size)),
            Work::ControlFlow(bodies) => Work::ControlFlow(Arc::new(bodies.resized(size)?)),
            Work::RowFusion(fusion) => Work::RowFusion(Box::new(fusion.resized(size))),
            // Only plans without open sizes have block fusions.
            Work::BlockFusion(_) | Work::Effect(_) | Work::Alias => self.clone(),
        })
    }
}

impl Step {
    fn resized(&self, size: &dyn Fn(Dim) -> Dim) -> Result<Step> {
        let (template, work) = (self.template.clone(), self.work.resized(size)?);
        Ok(Step { template, work, last: Default::default() })
    }
}
