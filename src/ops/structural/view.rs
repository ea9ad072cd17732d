//! Ops whose result is a view of the operand, and casts: casts, reshapes, permutations, broadcasts,
//! slices.

use smallvec::smallvec;

use super::*;
use crate::error;
use crate::layout::Strides;
use crate::ops::batch::{front, shift, shift_slice};
use crate::ops::op::SliceAxis;
use crate::shape::Axes;

/// The same values in another dtype.
pub static CAST: StructuralDef = StructuralDef {
    name: "astype",
    class: Class::Elementwise,
    operands: exactly(1),
    blank: || Op::Cast(DType::Bool),
    fields: |op| {
        of!(op, Op::Cast(dtype));
        smallvec![Field::ResultDType(dtype)]
    },
    in_range: any,
    fits: fits_all,
    expects: expects_nothing,
    infer: |op, args| {
        of!(op, Op::Cast(dtype));
        Ok(Type::new(*dtype, tensor(op, args, 0)?.1.clone()))
    },
    cost: cost::pass,
    is_expensive: false,
    refuses: false,
    view: |op, dtype, x| {
        of!(op, Op::Cast(to));
        (*to == dtype).then(|| x.clone())
    },
    in_place: InPlace::Nowhere,
    agreement: Agreement::Bits,
    blocks: Blocks::Spread,
    differentiable: |op, _| {
        of!(op, Op::Cast(dtype));
        dtype.is_float()
    },
    residuals: reads_nothing,
    vjp: |_, rule, _| {
        let dtype = rule.args[0].dtype();
        dtype.is_float().then(|| rule.g.cast(dtype))
    },
    tangent: Rate::First,
    batch: batch_as_it_is,
};

/// The same elements in C order under another shape.
pub static RESHAPE: StructuralDef = StructuralDef {
    name: "reshape",
    class: Class::View,
    operands: exactly(1),
    blank: || Op::Reshape(Shape::scalar()),
    fields: |op| {
        of!(op, Op::Reshape(shape));
        smallvec![Field::ResultShape(shape)]
    },
    in_range: any,
    fits: fits_all,
    expects: expects_nothing,
    infer: |op, args| {
        of!(op, Op::Reshape(shape));
        let (dtype, from) = tensor(op, args, 0)?;
        shape.check(op.name())?;
        let (count, want) = (from.elements(), shape.elements());
        if !count.equals(want) {
            return Err(error::reshape_count(op.name(), from, count, shape, want));
        }
        Ok(Type::new(dtype, shape.clone()))
    },
    cost: cost::free,
    is_expensive: false,
    refuses: false,
    view: |op, _, x| {
        of!(op, Op::Reshape(shape));
        x.reshape(shape)
    },
    in_place: InPlace::Nowhere,
    agreement: Agreement::Bits,
    blocks: Blocks::Leading(|_, x, result| {
        x.dims().iter().zip(result.dims()).take_while(|(a, b)| a.same(**b)).count()
    }),
    differentiable: always,
    residuals: reads_nothing,
    vjp: |_, rule, _| Some(rule.g.reshape(rule.args[0].shape())),
    tangent: Rate::First,
    batch: |op, args, size, _| {
        of!(op, Op::Reshape(shape));
        args[0].x.reshape(front(size, shape))
    },
};

/// Axis `i` of the result is axis `axes[i]` of the operand.
pub static PERMUTE: StructuralDef = StructuralDef {
    name: "permute_dims",
    class: Class::View,
    operands: exactly(1),
    blank: || Op::Permute(Axes::new()),
    fields: |op| {
        of!(op, Op::Permute(axes));
        smallvec![Field::Axes("axes", axes)]
    },
    in_range: any,
    fits: |op, args| {
        of!(op, Op::Permute(axes));
        axes.len() == rank(args, 0) && inside(axes, rank(args, 0))
    },
    expects: expects_nothing,
    infer: |op, args| {
        of!(op, Op::Permute(axes));
        let (dtype, shape) = tensor(op, args, 0)?;
        Ok(Type::new(dtype, axes.iter().map(|&i| shape[i]).collect()))
    },
    cost: cost::free,
    is_expensive: false,
    refuses: false,
    view: |op, _, x| {
        of!(op, Op::Permute(axes));
        Some(x.permuted(axes))
    },
    in_place: InPlace::Nowhere,
    agreement: Agreement::Bits,
    blocks: Blocks::Leading(|op, _, _| {
        of!(op, Op::Permute(axes));
        axes.iter().enumerate().take_while(|&(i, &axis)| i == axis).count()
    }),
    differentiable: always,
    residuals: reads_nothing,
    vjp: |op, rule, _| {
        of!(op, Op::Permute(axes));
        Some(rule.g.permute(inverse(axes)))
    },
    tangent: Rate::First,
    batch: |op, args, _, _| {
        of!(op, Op::Permute(axes));
        args[0].x.permute(std::iter::once(0).chain(shift(axes)).collect())
    },
};

/// Repeats axes of size 1 and adds leading ones.
pub static BROADCAST: StructuralDef = StructuralDef {
    name: "broadcast_to",
    class: Class::View,
    operands: exactly(1),
    blank: || Op::Broadcast(Shape::scalar()),
    fields: |op| {
        of!(op, Op::Broadcast(shape));
        smallvec![Field::ResultShape(shape)]
    },
    in_range: any,
    fits: fits_all,
    expects: expects_nothing,
    infer: |op, args| {
        of!(op, Op::Broadcast(shape));
        let (dtype, from) = tensor(op, args, 0)?;
        shape.check(op.name())?;
        if !from.broadcasts_to(shape) {
            let facts = format!("{from} to {shape}");
            return Err(error::bad_shape(op.name(), "shapes are not compatible", facts));
        }
        Ok(Type::new(dtype, shape.clone()))
    },
    cost: cost::free,
    is_expensive: false,
    refuses: false,
    view: |op, _, x| {
        of!(op, Op::Broadcast(shape));
        Some(Layout::strided(shape.clone(), &x.broadcast_strides(shape), x.offset()))
    },
    in_place: InPlace::Nowhere,
    agreement: Agreement::Bits,
    blocks: Blocks::Spread,
    differentiable: always,
    residuals: reads_nothing,
    vjp: |_, rule, _| Some(rule.g.sum_to(&rule.args[0].shape())),
    tangent: Rate::First,
    batch: |op, args, size, _| {
        of!(op, Op::Broadcast(shape));
        args[0].padded(shape.rank()).broadcast(front(size, shape))
    },
};

/// A strided slice of every axis.
pub static SLICE: StructuralDef = StructuralDef {
    name: "slice",
    class: Class::View,
    operands: exactly(1),
    blank: || Op::Slice([].into()),
    fields: |op| {
        of!(op, Op::Slice(at));
        smallvec![Field::Slices(at)]
    },
    in_range: any,
    fits: |op, args| {
        of!(op, Op::Slice(at));
        shape(args, 0).is_some_and(|shape| lies_in(at, shape))
    },
    expects: expects_nothing,
    infer: |op, args| {
        of!(op, Op::Slice(at));
        Ok(Type::new(tensor(op, args, 0)?.0, at.iter().map(|axis| axis.size).collect()))
    },
    cost: cost::free,
    is_expensive: false,
    refuses: false,
    view: |op, _, x| {
        of!(op, Op::Slice(at));
        Some(sliced(x, at))
    },
    in_place: InPlace::Nowhere,
    agreement: Agreement::Bits,
    blocks: Blocks::Leading(|op, x, _| {
        of!(op, Op::Slice(at));
        at.iter().zip(x.dims()).take_while(|(at, size)| at.is_whole(**size)).count()
    }),
    differentiable: always,
    residuals: reads_nothing,
    vjp: |op, rule, _| {
        of!(op, Op::Slice(at));
        Some(rule.g.embed(rule.args[0].shape(), at.clone()))
    },
    tangent: Rate::First,
    batch: |op, args, size, _| {
        of!(op, Op::Slice(at));
        args[0].x.emit(Op::Slice(shift_slice(size, at)))
    },
};

/// Whether a slice lies inside a shape.
pub fn lies_in(at: &[SliceAxis], shape: &Shape) -> bool {
    at.len() == shape.rank() && at.iter().zip(shape.dims()).all(|(axis, &size)| axis.fits(size))
}

/// The layout of a slice.
pub fn sliced(x: &Layout, at: &[SliceAxis]) -> Layout {
    let from = x.strides();
    let mut offset = x.offset();
    let mut strides = Strides::new();
    for (axis, &stride) in at.iter().zip(&from) {
        if axis.size.known() != Some(0) {
            offset = offset.wrapping_add_signed(axis.start.value() as isize * stride);
        }
        strides.push(stride * axis.step);
    }
    Layout::strided(at.iter().map(|a| a.size).collect(), &strides, offset)
}
