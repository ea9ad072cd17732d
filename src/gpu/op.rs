//! Kernels of single ops, by kind of op.

use super::epilogue::{Epilogue, Target as To};
use super::kernel::{Input, Kernel, Output, View};
use super::{attention, conv, create, element, indexing, moves, product, reduce, scan, sort};
use crate::error::{self, Result};
use crate::ops::op::Op;
use crate::target::{Abilities, Target};

/// The kernel of an op on operands and results of these places. Numbers stand where the op takes
/// them.
pub fn kernel(
    op: &Op,
    inputs: &[Input],
    outs: &[Output],
    target: &'static dyn Target,
) -> Result<Kernel> {
    for input in inputs {
        if let Input::Array { dtype, view, .. } = input {
            element::register(*dtype)?;
            view.addressable()?;
        }
    }
    for out in outs {
        element::register(out.ty.dtype)?;
        View::dense(out.ty.shape.dims()).addressable()?;
    }
    let [out, ..] = outs else { return Err(error::internal("an op without a result")) };
    let abilities = target.abilities();
    match op {
        Op::Cast(_)
        | Op::Reshape(_)
        | Op::Permute(_)
        | Op::Broadcast(_)
        | Op::Slice(_)
        | Op::Full(_)
        | Op::Pad(..)
        | Op::SetItem(_)
        | Op::Concat(_)
        | Op::Windows(_) => moves::kernel(op, inputs, out),
        Op::Gather => indexing::gather(op, inputs, out),
        Op::Scatter(mode) => indexing::scatter(op, *mode, inputs, out),
        Op::Sort { .. } | Op::ArgSort { .. } | Op::TopK { .. } => sort::kernel(op, inputs, out),
        Op::Iota(_, axis) => create::iota(*axis, out),
        Op::RandomBits(_) => Ok(create::random_bits(inputs, out)),
        Op::Reduce(kind, axes) => reduce::reduce(*kind, axes, &inputs[0], out, abilities),
        Op::ArgReduce(kind, axis) => reduce::arg_reduce(*kind, *axis, &inputs[0], out, abilities),
        Op::Cumulate { kind, axis, reverse } => {
            scan::cumulate(*kind, *axis, *reverse, &inputs[0], out)
        }
        Op::Contract(spec) => product::contract(spec, inputs, To::Range(out), abilities),
        Op::Conv(role, spec) => conv::conv(*role, spec, inputs, To::Range(out), abilities),
        Op::Fold(spec, _) => conv::fold(spec, &inputs[0], out),
        Op::Call(call) => attention::kernel(call, inputs, outs, target),
        // Elementwise ops are groups.
        Op::Map(_) => Err(error::internal(format!("no kernel of {}", op.name()))),
        #[cfg(feature = "example-op")]
        Op::Increments(axis) => increments(*axis, &inputs[0], out),
    }
}

/// Whether an op is a product, which may have an epilogue.
pub fn is_product(op: &Op) -> bool {
    matches!(op, Op::Contract(_) | Op::Conv(..))
}

/// The kernel of a product with an epilogue.
pub fn product(
    op: &Op,
    inputs: &[Input],
    epilogue: &Epilogue<'_>,
    abilities: Abilities,
) -> Result<Kernel> {
    let to = To::Epilogue(epilogue);
    for &dtype in epilogue.program.arrays() {
        element::register(dtype)?;
    }
    for operand in &epilogue.operands {
        operand.view.addressable()?;
    }
    View::dense(epilogue.sizes).addressable()?;
    #[allow(clippy::wildcard_enum_match_arm, reason = "other ops are refused")]
    match op {
        Op::Contract(spec) => product::contract(spec, inputs, to, abilities),
        Op::Conv(role, spec) => conv::conv(*role, spec, inputs, to, abilities),
        _ => Err(error::internal(format!("{} with an epilogue", op.name()))),
    }
}

#[cfg(feature = "example-op")]
fn increments(axis: usize, x: &Input, out: &Output) -> Result<Kernel> {
    use super::group::{self, Operand};
    use crate::ops::element::{ElementOp, ElementProgram};
    use crate::ops::elementwise::arithmetic::subtract;
    use crate::ops::structural::example::neighbours;
    let Input::Array { range, dtype, view } = x else {
        return Err(error::internal("increments of a number"));
    };
    let mut program = ElementProgram::new(&[*dtype, *dtype], &[]);
    let [first, second] = [program.array(0), program.array(1)];
    let y = program.push(ElementOp::Map(&subtract), &[second, first], *dtype);
    let mut operands = Vec::new();
    let sizes = out.ty.shape.dims();
    for at in neighbours(axis, &view.sizes.iter().copied().collect()) {
        let view = moves::view_of(&Op::Slice(at), view, sizes);
        let view = view.ok_or_else(|| error::internal("increments of a view of open strides"))?;
        operands.push(Operand::new(*range, view));
    }
    group::dispatch(&program.giving(&[y]), sizes, &operands, &[out.range]).map(Kernel::of)
}
