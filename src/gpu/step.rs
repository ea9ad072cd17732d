//! Steps of plans as kernels.

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::kernel::{Input, Kernel, Output, View};
use super::moves::view_of;
use super::{group, op};
use crate::error::{self, Result};
use crate::schedule::{self as plan, Number, Plan, Sequel, Source, Step, Work};

/// A step as a kernel, with what its ranges and numbers are.
pub struct Lowered {
    /// The kernel
    pub kernel: Kernel,
    /// What each range holds: operands, then the results
    pub ranges: SmallVec<[Source; 6]>,
    /// The numbers, by position
    pub numbers: SmallVec<[Number; 2]>,
}

/// The kernel of a step whose arrays lie in ranges of their own, each as `view` says; results lie
/// without gaps.
pub fn lower(plan: &Plan, step: &Step, view: &dyn Fn(Source) -> View) -> Result<Lowered> {
    let mut ranges: SmallVec<[Source; 6]> = SmallVec::new();
    let mut numbers: SmallVec<[Number; 2]> = SmallVec::new();
    let mut range = |source: Source| {
        let known = ranges.iter().position(|&known| known == source);
        known.unwrap_or_else(|| {
            ranges.push(source);
            ranges.len() - 1
        })
    };
    if let Some(Sequel { group, operands }) = plan.elementwise(step) {
        let mut arrays = Vec::new();
        for operand in &operands {
            match *operand {
                plan::Operand::Array(x) => {
                    arrays.push(group::Operand { range: range(x), view: view(x) });
                }
                plan::Operand::Number(number) => numbers.push(number),
            }
        }
        let results = step.results.iter().map(|&slot| range(Source::Slot(slot)));
        let results: SmallVec<[usize; 2]> = results.collect();
        let sizes = group.shape.dims();
        let dispatch = group::dispatch(&group.program, sizes, &arrays, &results)?;
        return Ok(Lowered { kernel: Kernel::of(dispatch), ranges, numbers });
    }
    let Work::Op(op) = &step.work else {
        return Err(error::bad_graph("gpu", "has no kernel", step.name()));
    };
    let mut inputs: SmallVec<[Input; 4]> = SmallVec::new();
    for operand in &step.args {
        inputs.push(match *operand {
            plan::Operand::Array(x) => {
                Input::Array { range: range(x), dtype: plan.ty(x).dtype, view: view(x) }
            }
            plan::Operand::Number(number) => {
                numbers.push(number);
                Input::Number(numbers.len() - 1)
            }
        });
    }
    let result = Source::Slot(step.results[0]);
    let out = Output { range: range(result), ty: plan.ty(result) };
    let kernel = op::kernel(op, &inputs, &out)?;
    Ok(Lowered { kernel, ranges, numbers })
}

/// The kernels of the steps of a plan, by the positions of the steps, for inputs in C order. Steps
/// that are views, control flow and effects have none.
pub fn kernels(plan: &Plan) -> Result<Vec<(usize, Kernel)>> {
    let mut views: FxHashMap<u32, View> = FxHashMap::default();
    let mut found = Vec::new();
    for (position, step) in plan.steps().iter().enumerate() {
        let view = |source: Source| match source {
            Source::Slot(slot) if views.contains_key(&slot) => views[&slot].clone(),
            Source::Slot(_) | Source::Input(_) | Source::Constant(_) => {
                View::dense(plan.ty(source).shape.dims())
            }
        };
        match &step.work {
            Work::ControlFlow(_) | Work::Effect(_) | Work::Alias | Work::BlockFusion(_) => continue,
            Work::Op(op) => {
                if let [plan::Operand::Array(x)] = step.args.as_slice()
                    && let Some(seen) =
                        view_of(op, &view(*x), plan.slots()[step.results[0] as usize].shape.dims())
                {
                    views.insert(step.results[0], seen);
                    continue;
                }
            }
            Work::Group(_) | Work::Product(_) => {}
        }
        found.push((position, lower(plan, step, &view)?.kernel));
    }
    Ok(found)
}
