//! Ops that sort along an axis. All are stable, and NaN comes last.

use smallvec::smallvec;

use super::*;
use crate::error;

/// Sorted values along an axis.
pub static SORT: StructuralDef = StructuralDef {
    name: "sort",
    class: Class::Selection,
    operands: exactly(1),
    blank: || Op::Sort { axis: 0, descending: false },
    fields: |op| {
        of!(op, Op::Sort { axis, descending });
        smallvec![Field::Count("axis", axis), Field::Truth("descending", descending)]
    },
    in_range: any,
    fits: |op, args| {
        of!(op, Op::Sort { axis, .. });
        *axis < rank(args, 0)
    },
    expects: expects_nothing,
    infer: same_type,
    cost: |op, work| {
        of!(op, Op::Sort { axis, .. });
        comparisons(work, *axis)
    },
    is_expensive: true,
    refuses: false,
    view: computed,
    in_place: InPlace::Nowhere,
    agreement: Agreement::Bits,
    blocks: Blocks::Never,
    differentiable: always,
    residuals: reads_first,
    vjp: |op, rule, _| {
        of!(op, Op::Sort { axis, descending });
        let order = rule.args[0].emit(Op::ArgSort { axis: *axis, descending: *descending });
        Some(rule.g.take_along(order.inverse_order(*axis), *axis))
    },
    tangent: Rate::Formula(|op, rule| {
        of!(op, Op::Sort { axis, descending });
        let order = rule.args[0].emit(Op::ArgSort { axis: *axis, descending: *descending });
        Tangent::Is(rule.full(0).take_along(order, *axis))
    }),
    batch: |op, args, _, _| {
        of!(op, Op::Sort { axis, descending });
        args[0].x.emit(Op::Sort { axis: axis + 1, descending: *descending })
    },
};

/// The indices that sort an axis (int64).
pub static ARGSORT: StructuralDef = StructuralDef {
    name: "argsort",
    class: Class::Selection,
    operands: exactly(1),
    blank: || Op::ArgSort { axis: 0, descending: false },
    fields: |op| {
        of!(op, Op::ArgSort { axis, descending });
        smallvec![Field::Count("axis", axis), Field::Truth("descending", descending)]
    },
    in_range: any,
    fits: |op, args| {
        of!(op, Op::ArgSort { axis, .. });
        *axis < rank(args, 0)
    },
    expects: expects_nothing,
    infer: |op, args| Ok(Type::new(DType::I64, tensor(op, args, 0)?.1.clone())),
    cost: |op, work| {
        of!(op, Op::ArgSort { axis, .. });
        comparisons(work, *axis)
    },
    is_expensive: true,
    refuses: false,
    view: computed,
    in_place: InPlace::Nowhere,
    agreement: Agreement::Bits,
    blocks: Blocks::Never,
    differentiable: never,
    residuals: reads_nothing,
    vjp: no_gradient,
    tangent: Rate::Zero,
    batch: |op, args, _, _| {
        of!(op, Op::ArgSort { axis, descending });
        args[0].x.emit(Op::ArgSort { axis: axis + 1, descending: *descending })
    },
};

/// Positions of the extreme elements along an axis, best first (int64).
pub static TOPK: StructuralDef = StructuralDef {
    name: "topk_indices",
    class: Class::Selection,
    operands: exactly(1),
    blank: || Op::TopK { k: 0, axis: 0, largest: true },
    fields: |op| {
        of!(op, Op::TopK { k, axis, largest });
        smallvec![
            Field::Count("k", k),
            Field::Count("axis", axis),
            Field::Truth("largest", largest),
        ]
    },
    in_range: any,
    fits: |op, args| {
        of!(op, Op::TopK { axis, .. });
        *axis < rank(args, 0)
    },
    expects: expects_nothing,
    infer: |op, args| {
        of!(op, Op::TopK { k, axis, .. });
        let mut shape = tensor(op, args, 0)?.1.clone();
        if shape[*axis].is_below(Dim::new(*k)) {
            let facts = format!("k = {k} for axis {axis} with size {}", shape[*axis]);
            return Err(error::bad_shape("topk", "not enough elements", facts));
        }
        shape.dims_mut()[*axis] = Dim::new(*k);
        Ok(Type::new(DType::I64, shape))
    },
    cost: |op, work| {
        of!(op, Op::TopK { axis, .. });
        comparisons(work, *axis)
    },
    is_expensive: true,
    refuses: false,
    view: computed,
    in_place: InPlace::Nowhere,
    agreement: Agreement::Bits,
    blocks: Blocks::Never,
    differentiable: never,
    residuals: reads_nothing,
    vjp: no_gradient,
    tangent: Rate::Zero,
    batch: |op, args, _, _| {
        of!(op, Op::TopK { k, axis, largest });
        args[0].x.emit(Op::TopK { k: *k, axis: axis + 1, largest: *largest })
    },
};

/// The cost of a sort: for each element ⌈log₂ n⌉ comparisons, where `n` is the size of the axis.
fn comparisons(work: &cost::Work<'_>, axis: usize) -> Cost {
    let n = work.operand(0).map_or(1, |ty| cost::size(ty.shape[axis]));
    let depth = u64::from(n.max(1).next_power_of_two().trailing_zeros());
    work.with(work.count(0).saturating_mul(depth))
}
