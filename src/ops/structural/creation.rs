//! Ops that make values of their attributes.

use smallvec::{SmallVec, smallvec};

use super::movement::{one_number, one_value};
use super::*;
use crate::ops::batch::front;

fn blank() -> Type {
    Type::new(DType::Bool, Shape::scalar())
}

/// `(value)`: all elements are one number.
pub static FULL: StructuralDef = StructuralDef {
    name: "full",
    class: Class::Creation,
    operands: exactly(1),
    blank: || Op::Full(blank()),
    fields: |op| {
        of!(op, Op::Full(ty));
        smallvec![Field::ResultType(ty)]
    },
    in_range: any,
    fits: fits_all,
    expects: |_, args, ty| one_number(args, 0, ty),
    infer: |op, args| {
        of!(op, Op::Full(ty));
        ty.shape.check(op.name())?;
        one_value(op.name(), args.first())?;
        Ok(ty.clone())
    },
    cost: cost::pass,
    is_expensive: false,
    refuses: false,
    view: computed,
    in_place: InPlace::Nowhere,
    agreement: Agreement::Bits,
    blocks: Blocks::Never,
    differentiable: never,
    residuals: reads_nothing,
    vjp: no_gradient,
    tangent: Rate::Zero,
    batch: |op, args, size, _| {
        of!(op, Op::Full(ty));
        let value = Batched { x: args[0].x.cast(ty.dtype), mapped: true };
        value.padded(ty.shape.rank()).broadcast(front(size, &ty.shape))
    },
};

/// The index along an axis.
pub static IOTA: StructuralDef = StructuralDef {
    name: "iota",
    class: Class::Creation,
    operands: exactly(0),
    blank: || Op::Iota(blank(), 0),
    fields: |op| {
        of!(op, Op::Iota(ty, axis));
        smallvec![Field::ResultType(ty), Field::Count("axis", axis)]
    },
    in_range: any,
    fits: |op, _| {
        of!(op, Op::Iota(ty, axis));
        *axis < ty.shape.rank()
    },
    expects: expects_nothing,
    infer: |op, _| {
        of!(op, Op::Iota(ty, _));
        ty.shape.check(op.name())?;
        Ok(ty.clone())
    },
    cost: cost::pass,
    is_expensive: false,
    refuses: false,
    view: computed,
    in_place: InPlace::Nowhere,
    agreement: Agreement::Bits,
    blocks: Blocks::Never,
    differentiable: never,
    residuals: reads_nothing,
    vjp: no_gradient,
    tangent: Rate::Zero,
    // Never called: without operands nothing is mapped.
    batch: |_, args, _, _| args[0].x,
};

/// `(key)`: random bits by counter (uint32, uint64).
pub static RANDOM_BITS: StructuralDef = StructuralDef {
    name: "random_bits",
    class: Class::Creation,
    operands: exactly(1),
    blank: || Op::RandomBits(blank()),
    fields: |op| {
        of!(op, Op::RandomBits(ty));
        smallvec![Field::ResultType(ty)]
    },
    in_range: any,
    fits: fits_all,
    // The kernel checks the key itself.
    expects: expects_nothing,
    infer: |op, _| {
        of!(op, Op::RandomBits(ty));
        ty.shape.check(op.name())?;
        Ok(ty.clone())
    },
    cost: cost::pass,
    is_expensive: false,
    refuses: false,
    view: computed,
    in_place: InPlace::Nowhere,
    agreement: Agreement::Bits,
    blocks: Blocks::Never,
    differentiable: never,
    residuals: reads_nothing,
    vjp: no_gradient,
    tangent: Rate::Zero,
    // Each example has its own key, so the numbers of one example are those it would draw alone.
    batch: |op, args, size, _| {
        let keys = args[0].x;
        let parts: SmallVec<[Expr<'_>; 4]> = (0..size.value())
            .map(|i| {
                let key = keys.narrow(0, i, Dim::ONE).reshape(Shape::of(&[2]));
                key.emit(op.clone()).unsqueeze(0)
            })
            .collect();
        parts[0].concat(&parts, 0)
    },
};
