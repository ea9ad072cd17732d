//! Plans for other sizes: the same grouping, other offsets, chunks and kernels.
//!
//! A plan of a list whose sizes are expressions has steps but no places. Which nodes are one step
//! follows from such a list once; what depends on sizes is worked out for each set of them.

use std::sync::{Arc, OnceLock};

use super::memory::Memory;
use super::{Options, Plan, Step, Work};
use crate::error::Result;
use crate::shape::Dim;

impl Plan {
    /// The same plan with its sizes replaced. Refuses sizes that are beyond the limits of its target.
    pub fn resized(&self, size: &dyn Fn(Dim) -> Dim) -> Result<Plan> {
        let steps: Result<_> = self.steps.iter().map(|step| step.resized(size)).collect();
        let mut plan = Plan {
            target: self.target,
            template: self.template.clone(),
            steps: steps?,
            outputs: self.outputs.clone(),
            inputs: self.inputs.iter().map(|ty| ty.map_dims(size)).collect(),
            constants: self.constants.clone(),
            slots: self.slots.iter().map(|ty| ty.map_dims(size)).collect(),
            memory: Memory::default(),
            donated: self.donated.clone(),
            habit: OnceLock::new(),
            places: self.places.clone(),
            recomputed: self.recomputed,
            elements: None,
            sets: self.sets.clone(),
            fed: self.fed.clone(),
        };
        if let Some(found) = plan.arrange(
            Options { donated: &self.donated, ..Options::new(self.target) },
            self.habit.get(),
        ) {
            self.habit.get_or_init(|| found);
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
            Work::Flow(bodies) => Work::Flow(Arc::new(bodies.resized(size)?)),
            // Only plans without open sizes have block fusions.
            Work::Rows(_) | Work::Effect(_) | Work::Alias => self.clone(),
        })
    }
}

impl Step {
    fn resized(&self, size: &dyn Fn(Dim) -> Dim) -> Result<Step> {
        Ok(Step {
            work: self.work.resized(size)?,
            args: self.args.clone(),
            results: self.results.clone(),
            last: self.last.clone(),
            cut: self.cut,
            nodes: self.nodes.clone(),
            site: self.site,
        })
    }
}
