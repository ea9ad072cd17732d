//! Ops that move elements, as their attributes say.

use smallvec::{SmallVec, smallvec};

use super::view::lies_in;
use super::*;
use crate::error;
use crate::ops::batch::{front, shift_slice};
use crate::shape::Axes;

/// `(x, value)`: the value everywhere, except that the slice of the result is `x`.
pub static PAD: StructuralDef = StructuralDef {
    name: "pad",
    class: Class::Movement,
    operands: exactly(2),
    blank: || Op::Pad(Shape::scalar(), [].into()),
    fields: |op| {
        of!(op, Op::Pad(shape, at));
        smallvec![Field::ResultShape(shape), Field::Slices(at)]
    },
    in_range: any,
    fits: |op, args| {
        of!(op, Op::Pad(to, at));
        let sizes = |x: &Shape| x.dims().iter().zip(at.iter()).all(|(d, a)| d.equals(a.size));
        at.len() == to.rank()
            && shape(args, 0).is_some_and(sizes)
            && rank(args, 0) == at.len()
            && lies_in(at, to)
    },
    expects: |_, args, ty| one_number(args, 1, ty),
    infer: |op, args| {
        of!(op, Op::Pad(shape, _));
        shape.check(op.name())?;
        one_value(op.name(), args.get(1))?;
        Ok(Type::new(tensor(op, args, 0)?.0, shape.clone()))
    },
    cost: cost::pass,
    is_expensive: false,
    refuses: false,
    view: computed,
    in_place: InPlace::Nowhere,
    agreement: Agreement::Bits,
    blocks: Blocks::Never,
    differentiable: first_only,
    residuals: reads_nothing,
    vjp: |op, rule, _| {
        of!(op, Op::Pad(_, at));
        Some(rule.g.emit(Op::Slice(at.clone())))
    },
    tangent: Rate::FirstTwo,
    batch: |op, args, size, _| {
        of!(op, Op::Pad(shape, at));
        let (x, value) = (args[0], args[1]);
        let (shape, at) = (front(size, shape), shift_slice(size, at));
        if !value.mapped {
            let x = x.spread(size);
            return x.emit_with(Op::Pad(shape, at), &[x.arg(), value.x.arg()]);
        }
        // Each example has a padding value of its own.
        let base = value.padded(shape.rank() - 1).broadcast(shape);
        base.emit_with(Op::SetItem(at), &[base.arg(), x.padded(base.rank() - 1).arg()])
    },
};

/// `(x, v)`: `x` with a slice replaced by `v`, which broadcasts to it.
pub static SETITEM: StructuralDef = StructuralDef {
    name: "setitem",
    class: Class::Movement,
    operands: exactly(2),
    blank: || Op::SetItem([].into()),
    fields: |op| {
        of!(op, Op::SetItem(at));
        smallvec![Field::Slices(at)]
    },
    in_range: any,
    fits: |op, args| {
        of!(op, Op::SetItem(at));
        shape(args, 0).is_some_and(|shape| lies_in(at, shape))
    },
    expects: second_of_result,
    infer: |op, args| {
        of!(op, Op::SetItem(at));
        let region: Shape = at.iter().map(|axis| axis.size).collect();
        replaced(op, args, &region)
    },
    cost: cost::pass,
    is_expensive: false,
    refuses: false,
    view: computed,
    in_place: InPlace::First,
    agreement: Agreement::Bits,
    blocks: Blocks::Never,
    differentiable: always,
    residuals: reads_nothing,
    vjp: |op, rule, wrt| {
        of!(op, Op::SetItem(at));
        if wrt > 0 {
            return Some(rule.g.slice(at.clone()).sum_to(&rule.args[1].shape()));
        }
        let g = rule.g.tensor();
        Some(g.emit_with(Op::SetItem(at.clone()), &[g.arg(), g.scalar(0).arg()]))
    },
    tangent: Rate::FirstTwo,
    batch: |op, args, size, _| {
        of!(op, Op::SetItem(at));
        let x = args[0].spread(size);
        let value = args[1].padded(at.len());
        x.emit_with(Op::SetItem(shift_slice(size, at)), &[x.arg(), value.arg()])
    },
};

/// Operands concatenated along an axis.
pub static CONCAT: StructuralDef = StructuralDef {
    name: "concat",
    class: Class::Movement,
    operands: (1, None),
    blank: || Op::Concat(0),
    fields: |op| {
        of!(op, Op::Concat(axis));
        smallvec![Field::Count("axis", axis)]
    },
    in_range: any,
    fits: |op, args| {
        of!(op, Op::Concat(axis));
        *axis < rank(args, 0)
    },
    expects: expects_nothing,
    infer: |op, args| {
        of!(op, Op::Concat(axis));
        let (dtype, first) = tensor(op, args, 0)?;
        let mut out = first.clone();
        for i in 1..args.len() {
            let (d, shape) = tensor(op, args, i)?;
            if d != dtype {
                return Err(error::dtype_mismatch(op.name(), dtype, d));
            }
            let fits = shape.rank() == first.rank()
                && (0..first.rank()).all(|i| i == *axis || shape[i].equals(first[i]));
            if !fits {
                let facts = format!("{first} and {shape} along axis {axis}");
                return Err(error::bad_shape(op.name(), "sizes differ outside the axis", facts));
            }
            out.dims_mut()[*axis] = out[*axis] + shape[*axis];
        }
        out.check(op.name())?;
        Ok(Type::new(dtype, out))
    },
    cost: cost::pass,
    is_expensive: false,
    refuses: false,
    view: computed,
    in_place: InPlace::Nowhere,
    agreement: Agreement::Bits,
    blocks: Blocks::Leading(|op, _, _| {
        of!(op, Op::Concat(axis));
        *axis
    }),
    differentiable: always,
    residuals: reads_nothing,
    vjp: |op, rule, wrt| {
        of!(op, Op::Concat(axis));
        let before = rule.args[..wrt].iter().map(|part| part.size(*axis));
        let start = before.fold(Dim::new(0), |sum, n| sum + n);
        Some(rule.g.narrow(*axis, start, rule.args[wrt].size(*axis)))
    },
    tangent: Rate::All,
    batch: |op, args, size, _| {
        of!(op, Op::Concat(axis));
        let parts: SmallVec<[Expr<'_>; 4]> = args.iter().map(|x| x.spread(size)).collect();
        parts[0].concat(&parts, axis + 1)
    },
};

/// The type of the first operand, whose `region` the second replaces, after broadcasting to it.
pub fn replaced(op: &Op, args: &[OperandType<'_>], region: &Shape) -> Result<Type> {
    if let OperandType::Tensor(_, values) = args[1]
        && !values.broadcasts_to(region)
    {
        let facts = format!("values {values} to the selected region {region}");
        return Err(error::bad_shape(op.name(), "shapes are not compatible", facts));
    }
    same_type(op, args)
}

/// Refuses a fill value with axes.
pub fn one_value(op: &str, value: Option<&OperandType<'_>>) -> Result<()> {
    match value {
        Some(OperandType::Tensor(_, shape)) if shape.rank() > 0 => {
            Err(error::bad_shape(op, "the value must be one number", format!("got shape {shape}")))
        }
        Some(OperandType::Tensor(..) | OperandType::Scalar(_)) | None => Ok(()),
    }
}

/// Whether the fill value at operand `i` is one number of the result's dtype.
pub fn one_number(args: &[OperandType<'_>], i: usize, ty: &Type) -> bool {
    match args.get(i) {
        Some(OperandType::Tensor(dtype, shape)) => *dtype == ty.dtype && shape.rank() == 0,
        Some(OperandType::Scalar(_)) | None => true,
    }
}

/// Whether the second operand, which is written into the result, has the result's dtype.
pub fn second_of_result(_: &Op, args: &[OperandType<'_>], ty: &Type) -> bool {
    match args.get(1) {
        Some(OperandType::Tensor(dtype, _)) => *dtype == ty.dtype,
        Some(OperandType::Scalar(_)) | None => true,
    }
}

/// The permutation that undoes `axes`.
pub fn inverse(axes: &[usize]) -> Axes {
    let mut out: Axes = SmallVec::from_elem(0, axes.len());
    axes.iter().enumerate().for_each(|(i, &axis)| out[axis] = i);
    out
}
