//! Ops that choose elements by arrays of indices.

use smallvec::{SmallVec, smallvec};

use super::movement::{replaced, second_of_result};
use super::*;
use crate::error;
use crate::ops::attributes::ScatterMode;
use crate::ops::batch::batch_indices;

/// The mask of the operands from index `first` on.
fn from(first: usize, count: usize) -> Mask {
    (first..count).fold(0, |mask, i| mask | 1 << i)
}

/// `(x, i…)`: advanced indexing of the leading axes, one index array each.
pub static GATHER: StructuralDef = StructuralDef {
    name: "gather",
    class: Class::Selection,
    operands: (2, None),
    blank: || Op::Gather,
    fields: fields::none,
    in_range: any,
    fits: |_, args| args.len() <= rank(args, 0) + 1,
    expects: expects_nothing,
    infer: |op, args| {
        let (dtype, shape) = tensor(op, args, 0)?;
        let index = index_shape(op.name(), &args[1..])?;
        let rest = &shape.dims()[args.len() - 1..];
        Ok(Type::new(dtype, index.dims().iter().chain(rest).copied().collect()))
    },
    // Only the elements taken are read from the array.
    cost: |_, work| Cost {
        bytes: work.read(1).saturating_add(work.write().saturating_mul(2)),
        flops: 0,
    },
    is_expensive: false,
    refuses: true,
    view: computed,
    in_place: InPlace::Nowhere,
    agreement: Agreement::Bits,
    blocks: Blocks::Never,
    differentiable: first_only,
    residuals: |_, count, _| from(1, count),
    vjp: |_, rule, _| {
        let (x, g) = (rule.args[0], rule.g);
        Some(g.zeros_of(x).scatter(ScatterMode::Add, g, &rule.args[1..]))
    },
    tangent: Rate::First,
    batch: |_, args, size, _| {
        let (x, indices) = (args[0], &args[1..]);
        let plain: SmallVec<[Expr<'_>; 4]> = indices.iter().map(|i| i.x).collect();
        let any = indices.iter().any(|i| i.mapped);
        match (x.mapped, any) {
            (true, true) => x.x.gather(&batch_indices(indices, size).0),
            (true, false) => {
                // The axis of examples moves behind the indexed axes, and after the gather back in
                // front of the index's axes.
                let rank = plain.iter().map(|i| i.rank()).max().unwrap_or(0);
                x.x.move_axis(0, plain.len()).gather(&plain).move_axis(rank, 0)
            }
            (false, _) => x.x.gather(&batch_indices(indices, size).0[1..]),
        }
    },
};

/// `(base, values, i…)`: the base with values written where a gather would read.
pub static SCATTER: StructuralDef = StructuralDef {
    name: "scatter",
    class: Class::Selection,
    operands: (3, None),
    blank: || Op::Scatter(ScatterMode::Set),
    fields: |op| {
        of!(op, Op::Scatter(mode));
        smallvec![Field::Choice("mode", mode)]
    },
    in_range: any,
    fits: |_, args| args.len() <= rank(args, 0) + 2,
    expects: second_of_result,
    infer: |op, args| {
        let (_, shape) = tensor(op, args, 0)?;
        let index = index_shape(op.name(), &args[2..])?;
        let rest = &shape.dims()[args.len() - 2..];
        let region: Shape = index.dims().iter().chain(rest).copied().collect();
        replaced(op, args, &region)
    },
    cost: |_, work| {
        let values = work.operand(1).map_or(0, |ty| cost::elements(&ty.shape));
        let moved = cost::bytes(work.result.dtype, values);
        let Cost { bytes, flops } = work.with(values);
        Cost { bytes: bytes.saturating_add(moved), flops }
    },
    is_expensive: false,
    refuses: true,
    view: computed,
    in_place: InPlace::First,
    // The order of additions is part of the op's definition.
    agreement: Agreement::Bits,
    blocks: Blocks::Never,
    differentiable: |_, i| i < 2,
    residuals: |op, count, wrt| {
        of!(op, Op::Scatter(mode));
        match (mode, wrt) {
            (ScatterMode::Add, 0) => 0,
            (ScatterMode::Add | ScatterMode::Set, _) => from(2, count),
        }
    },
    vjp: |op, rule, wrt| {
        of!(op, Op::Scatter(mode));
        let (values, indices, g) = (rule.args[1], &rule.args[2..], rule.g);
        Some(match (mode, wrt) {
            (ScatterMode::Add, 0) => g,
            (ScatterMode::Set, 0) => g.scatter(ScatterMode::Set, g.scalar(0.0), indices),
            (ScatterMode::Add, _) => g.gather(indices).sum_to(&values.shape()),
            (ScatterMode::Set, _) => kept_values(rule),
        })
    },
    tangent: Rate::FirstTwo,
    batch: |op, args, size, _| {
        of!(op, Op::Scatter(mode));
        let (base, values, indices) = (args[0].spread(size), args[1], &args[2..]);
        let inner = base.rank() - 1 - indices.len();
        if indices.iter().any(|i| i.mapped) {
            let (indices, rank) = batch_indices(indices, size);
            return base.scatter(*mode, values.padded(rank + inner), &indices);
        }
        let plain: SmallVec<[Expr<'_>; 4]> = indices.iter().map(|i| i.x).collect();
        let rank = plain.iter().map(|i| i.rank()).max().unwrap_or(0);
        let values = match values.mapped {
            true => values.padded(rank + inner).move_axis(0, rank),
            false if values.rank() > inner => values.x.unsqueeze(values.rank() - inner),
            false => values.x,
        };
        base.move_axis(0, plain.len()).scatter(*mode, values, &plain).move_axis(plain.len(), 0)
    },
};

/// The cotangent of values that replace others. Of several values written to one place only the
/// last stays, so only it has a gradient: the writes are numbered and scattered, and a write has
/// stayed where its number can be read back.
fn kept_values<'e>(rule: &Rule<'_, 'e>) -> Expr<'e> {
    let (base, values, indices, g) = (rule.args[0], rule.args[1], &rule.args[2..], rule.g);
    let written = g.gather(indices);
    let lead = written.rank() - (base.rank() - indices.len());
    let numbers: Shape = written.shape().dims()[..lead].iter().copied().collect();
    let count = numbers.elements();
    let ids = g.iota(DType::I64, Shape::from_dims(&[count]), 0).reshape(numbers.clone());
    let places: Shape = base.shape().dims()[..indices.len()].iter().copied().collect();
    let last = g.scalar(-1).full(DType::I64, places).scatter(ScatterMode::Set, ids, indices);
    let mut wide = numbers;
    wide.dims_mut().resize(written.rank(), Dim::ONE);
    let stays = last.gather(indices).equal(ids).reshape(wide);
    stays.select(written, g.scalar(0.0)).sum_to(&values.shape())
}

/// The common shape of index arrays, which must be integers.
fn index_shape(op: &str, indices: &[OperandType<'_>]) -> Result<Shape> {
    let mut shape = Shape::scalar();
    for index in indices {
        let (dtype, s) = index.tensor(op)?;
        if dtype != DType::I64 {
            return Err(error::dtype_mismatch(op, "index arrays of int64", dtype));
        }
        shape = shape.broadcast(s, op)?;
    }
    Ok(shape)
}
