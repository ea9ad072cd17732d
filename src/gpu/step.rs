//! Steps of plans as kernels.

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::epilogue::Epilogue;
use super::kernel::{Input, Kernel, Output, View};
use super::moves::view_of;
use super::{group, op, rows};
use crate::dtype::DType;
use crate::error::{self, Result};
use crate::schedule::{self as plan, Number, Plan, Product, Sequel, Source, Step, Work};
use crate::shape::Dim;
use crate::target::Abilities;

/// A step as a kernel, with what its ranges and numbers are.
pub struct Lowered {
    /// The kernel
    pub kernel: Kernel,
    /// What each range holds: operands, then the results
    pub ranges: SmallVec<[Source; 6]>,
    /// The numbers, by position
    pub numbers: SmallVec<[Number; 2]>,
}

/// The kernel of a step whose arrays lie where `place` says: in the range of which value, and how.
/// Results lie without gaps in ranges of their own.
pub fn lower(
    plan: &Plan,
    step: &Step,
    place: &dyn Fn(Source) -> (Source, View),
) -> Result<Lowered> {
    let abilities = plan.target().abilities();
    let mut ranges: SmallVec<[Source; 6]> = SmallVec::new();
    let mut numbers: SmallVec<[Number; 2]> = SmallVec::new();
    let mut range = |source: Source| {
        let known = ranges.iter().position(|&known| known == source);
        known.unwrap_or_else(|| {
            ranges.push(source);
            ranges.len() - 1
        })
    };
    let mut arrays_of = |operands: &[plan::Operand], numbers: &mut SmallVec<[Number; 2]>| {
        let mut arrays = Vec::new();
        for operand in operands {
            match *operand {
                plan::Operand::Array(x) => {
                    let (base, view) = place(x);
                    arrays.push((range(base), plan.ty(x).dtype, view));
                }
                plan::Operand::Number(number) => numbers.push(number),
            }
        }
        let results = step.results.iter().map(|&slot| range(Source::Slot(slot)));
        (arrays, results.collect::<SmallVec<[usize; 2]>>())
    };
    let operands_of = |arrays: Vec<(usize, DType, View)>| -> Vec<group::Operand> {
        arrays.into_iter().map(|(range, _, view)| group::Operand::new(range, view)).collect()
    };
    if let Some(Sequel { group, operands }) = plan.elementwise(step) {
        let (arrays, results) = arrays_of(&operands, &mut numbers);
        let (arrays, sizes) = (operands_of(arrays), group.shape.dims());
        let dispatch = group::dispatch(&group.program, sizes, &arrays, &results)?;
        return Ok(Lowered { kernel: Kernel::of(dispatch), ranges, numbers });
    }
    if let Work::RowFusion(fusion) = &step.work {
        let (arrays, results) = arrays_of(&step.args, &mut numbers);
        let kernel = rows::kernel(fusion, &operands_of(arrays), &results, abilities)?;
        return Ok(Lowered { kernel, ranges, numbers });
    }
    if let Work::Product(product) = &step.work
        && let Some(after) = &product.after
    {
        let (arrays, results) = arrays_of(&step.args, &mut numbers);
        let kernel = with_epilogue(product, arrays, after.group.shape.dims(), results, abilities)?;
        return Ok(Lowered { kernel, ranges, numbers });
    }
    let Work::Op(op) = &step.work else {
        return Err(error::bad_graph("gpu", "has no kernel", step.name()));
    };
    let mut inputs: SmallVec<[Input; 4]> = SmallVec::new();
    for operand in &step.args {
        inputs.push(match *operand {
            plan::Operand::Array(x) => {
                let (base, view) = place(x);
                Input::Array { range: range(base), dtype: plan.ty(x).dtype, view }
            }
            plan::Operand::Number(number) => {
                numbers.push(number);
                Input::Number(numbers.len() - 1)
            }
        });
    }
    let outs = step.results.iter().map(|&slot| Source::Slot(slot));
    let outs: SmallVec<[Output; 3]> =
        outs.map(|result| Output { range: range(result), ty: plan.ty(result) }).collect();
    let kernel = op::kernel(op, &inputs, &outs, plan.target())?;
    Ok(Lowered { kernel, ranges, numbers })
}

/// The kernel of a product with an epilogue: its operands, then those of the epilogue, as range,
/// dtype and view; the sizes and the ranges of its results.
pub fn with_epilogue(
    product: &Product,
    arrays: Vec<(usize, DType, View)>,
    sizes: &[Dim],
    results: SmallVec<[usize; 2]>,
    abilities: Abilities,
) -> Result<Kernel> {
    let Some(after) = &product.after else {
        return Err(error::internal("a product without an epilogue"));
    };
    let (mut inputs, mut operands) = (SmallVec::<[Input; 2]>::new(), Vec::new());
    for (range, dtype, view) in arrays {
        match inputs.len() {
            0 | 1 => inputs.push(Input::Array { range, dtype, view }),
            _ => operands.push(group::Operand::new(range, view)),
        }
    }
    let (program, raw) = (&*after.group.program, after.raw);
    let epilogue = Epilogue { program, raw, operands, sizes, results };
    op::product(&product.op, &inputs, &epilogue, abilities)
}

/// The kernels of the steps of a plan, by the positions of the steps, for inputs in C order. Steps
/// that are views, control flow and effects have none.
pub fn kernels(plan: &Plan) -> Result<Vec<(usize, Kernel)>> {
    let mut views: FxHashMap<Source, (Source, View)> = FxHashMap::default();
    let mut found = Vec::new();
    for (position, step) in plan.steps().iter().enumerate() {
        let place = |source: Source| match views.get(&source) {
            Some(known) => known.clone(),
            None => (source, View::dense(plan.ty(source).shape.dims())),
        };
        match &step.work {
            Work::ControlFlow(_) | Work::Effect(_) | Work::Alias | Work::BlockFusion(_) => continue,
            Work::Op(op) => {
                if let [plan::Operand::Array(x)] = step.args.as_slice() {
                    let ((base, view), result) = (place(*x), Source::Slot(step.results[0]));
                    if let Some(seen) = view_of(op, &view, plan.ty(result).shape.dims()) {
                        views.insert(result, (base, seen));
                        continue;
                    }
                }
            }
            Work::Group(_) | Work::Product(_) | Work::RowFusion(_) => {}
        }
        found.push((position, lower(plan, step, &place)?.kernel));
    }
    Ok(found)
}
