//! The structural op of `docs/adding-an-op.md`.

use smallvec::smallvec;

use super::*;
use crate::error;
use crate::ops::elementwise::arithmetic::subtract;
use crate::ops::op::SliceAxis;

/// The steps between neighbours along an axis, which becomes shorter by one.
pub static INCREMENTS: StructuralDef = StructuralDef {
    name: "increments",
    class: Class::Movement,
    operands: exactly(1),
    blank: || Op::Increments(0),
    fields: |op| {
        of!(op, Op::Increments(axis));
        smallvec![Field::Count("axis", axis)]
    },
    in_range: any,
    fits: |op, args| {
        of!(op, Op::Increments(axis));
        *axis < rank(args, 0)
    },
    expects: expects_nothing,
    infer: |op, args| {
        of!(op, Op::Increments(axis));
        let (dtype, shape) = tensor(op, args, 0)?;
        subtract.check_dtype(dtype)?;
        if shape[*axis].is_below(1) {
            let facts = format!("axis {axis} of {shape}");
            return Err(error::bad_shape(op.name(), "not enough elements", facts));
        }
        let mut shape = shape.clone();
        shape.dims_mut()[*axis] = shape[*axis] - Dim::ONE;
        Ok(Type::new(dtype, shape))
    },
    cost: |_, work| work.with(work.results()),
    is_expensive: false,
    refuses: false,
    view: computed,
    in_place: InPlace::Nowhere,
    agreement: Agreement::Bits,
    blocks: Blocks::Leading(|op, _, _| {
        of!(op, Op::Increments(axis));
        *axis
    }),
    differentiable: always,
    residuals: reads_nothing,
    vjp: |op, rule, _| {
        of!(op, Op::Increments(axis));
        let shape = rule.args[0].shape();
        let [first, second] = neighbours(*axis, &shape).map(|at| rule.g.embed(shape.clone(), at));
        Some(second - first)
    },
    tangent: Rate::First,
    batch: |op, args, _, _| {
        of!(op, Op::Increments(axis));
        args[0].x.emit(Op::Increments(axis + 1))
    },
};

/// The elements of an axis that have a next one, and those that have a previous one.
pub fn neighbours(axis: usize, shape: &Shape) -> [Box<[SliceAxis]>; 2] {
    [0, 1].map(|start| {
        let mut at = whole(shape);
        at[axis] = SliceAxis { start: Dim::new(start), step: 1, size: shape[axis] - Dim::ONE };
        at
    })
}
