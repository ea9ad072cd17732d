//! Sums of products: contractions and convolutions.

use smallvec::{SmallVec, smallvec};

use super::window::{counts, positions};
use super::*;
use crate::error;
use crate::ops::attributes::{Contraction, ConvSpec, PerAxis};
use crate::ops::batch::shift;
use crate::shape::{Axes, Dims};
use crate::small::small;

/// A general product.
pub static MATMUL: StructuralDef = StructuralDef {
    name: "matmul",
    class: Class::Product,
    operands: exactly(2),
    blank: || {
        Op::Contract(Box::new(Contraction {
            a_batch: Axes::new(),
            b_batch: Axes::new(),
            a_contract: Axes::new(),
            b_contract: Axes::new(),
        }))
    },
    fields: |op| {
        of!(op, Op::Contract(spec));
        let Contraction { a_batch, b_batch, a_contract, b_contract } = &mut **spec;
        smallvec![
            Field::Pairs("contract", a_contract, b_contract),
            Field::MaybePairs("batch", a_batch, b_batch),
        ]
    },
    in_range: any,
    fits: |op, args| {
        of!(op, Op::Contract(spec));
        spec.a_batch.len() == spec.b_batch.len()
            && spec.a_contract.len() == spec.b_contract.len()
            && inside(&[&spec.a_batch[..], &spec.a_contract].concat(), rank(args, 0))
            && inside(&[&spec.b_batch[..], &spec.b_contract].concat(), rank(args, 1))
    },
    expects: expects_nothing,
    infer: |op, args| {
        of!(op, Op::Contract(spec));
        infer_contract(op, spec, tensor(op, args, 0)?, tensor(op, args, 1)?)
    },
    cost: |op, work| {
        of!(op, Op::Contract(spec));
        let size = |&i: &usize| work.operand(0).map_or(1, |ty| cost::size(ty.shape[i]));
        let along = spec.a_contract.iter().map(size);
        work.with(along.fold(work.results().saturating_mul(2), u64::saturating_mul))
    },
    is_expensive: true,
    refuses: false,
    view: computed,
    in_place: InPlace::Nowhere,
    agreement: Agreement::Order,
    blocks: Blocks::Batch(|op, operand| {
        of!(op, Op::Contract(spec));
        if operand == 0 { &spec.a_batch } else { &spec.b_batch }
    }),
    differentiable: always,
    residuals: reads_other,
    vjp: |op, rule, wrt| {
        of!(op, Op::Contract(spec));
        Some(contract_vjp(spec, rule, wrt))
    },
    tangent: Rate::Each,
    batch: |op, args, _, _| {
        of!(op, Op::Contract(spec));
        batch_contract(spec, args[0], args[1])
    },
};

/// The gradient rule of one operand of a product reads the other one.
fn reads_other(_: &Op, _: usize, wrt: usize) -> Mask {
    1 << (1 - wrt)
}

/// A convolution.
pub static CONV: StructuralDef = StructuralDef {
    // Each element of the result is a sum over one filter.
    cost: |_, work| terms(work, work.results().saturating_mul(filter(work.operand(1)))),
    ..conv("conv", || Op::Conv(ConvRole::Output, blank()))
};

/// The transposed convolution.
pub static CONV_INPUT: StructuralDef = StructuralDef {
    cost: |_, work| terms(work, work.count(0).saturating_mul(filter(work.operand(1)))),
    ..conv("conv_input", || Op::Conv(ConvRole::Input, blank()))
};

/// The gradient of a convolution's weight.
pub static CONV_WEIGHT: StructuralDef = StructuralDef {
    cost: |_, work| terms(work, work.count(1).saturating_mul(filter(Some(work.result)))),
    ..conv("conv_weight", || Op::Conv(ConvRole::Weight, blank()))
};

/// The elements of one filter of a weight.
fn filter(weight: Option<&Type>) -> u64 {
    weight.map_or(1, |ty| ty.shape.dims()[1..].iter().map(|&d| cost::size(d)).product())
}

/// The cost of `count` multiplications, each with an addition.
fn terms(work: &cost::Work<'_>, count: u64) -> Cost {
    work.with(count.saturating_mul(2))
}

fn blank() -> Box<ConvSpec> {
    Box::new(ConvSpec {
        stride: PerAxis::new(),
        pad_low: PerAxis::new(),
        pad_high: PerAxis::new(),
        dilation: PerAxis::new(),
        groups: 1,
        input: Dims::new(),
        kernel: Dims::new(),
    })
}

/// One of the three ops that are the derivatives of the convolution's trilinear form.
const fn conv(name: &'static str, blank: fn() -> Op) -> StructuralDef {
    StructuralDef {
        name,
        class: Class::Product,
        operands: exactly(2),
        blank,
        fields: |op| {
            of!(op, Op::Conv(_, spec));
            smallvec![
                Field::PerAxis("stride", &mut spec.stride),
                Field::PerAxis("pad_low", &mut spec.pad_low),
                Field::PerAxis("pad_high", &mut spec.pad_high),
                Field::PerAxis("dilation", &mut spec.dilation),
                Field::Count("groups", &mut spec.groups),
                Field::Sizes("input", &mut spec.input),
                Field::Sizes("kernel", &mut spec.kernel),
            ]
        },
        in_range: |op| {
            of!(op, Op::Conv(_, spec));
            is_in_range(spec)
        },
        fits: |op, args| {
            of!(op, Op::Conv(_, spec));
            let axes = spec.stride.len() + 2;
            spec.dilation.len() + 2 == axes && rank(args, 0) == axes && rank(args, 1) == axes
        },
        expects: |op, args, ty| {
            of!(op, Op::Conv(role, spec));
            match (shape(args, 0), shape(args, 1)) {
                (Some(a), Some(b)) => is_trilinear(*role, spec, a, b, ty),
                _ => false,
            }
        },
        infer: |op, args| {
            of!(op, Op::Conv(role, spec));
            infer_conv(*role, spec, tensor(op, args, 0)?, tensor(op, args, 1)?)
        },
        cost: cost::pass,
        is_expensive: true,
        refuses: false,
        view: computed,
        in_place: InPlace::Nowhere,
        agreement: Agreement::Order,
        blocks: Blocks::Never,
        differentiable: always,
        residuals: reads_other,
        vjp: |op, rule, wrt| {
            of!(op, Op::Conv(role, spec));
            let (a, b, g) = (rule.args[0], rule.args[1], rule.g);
            let (role, left, right) = match (role, wrt) {
                (ConvRole::Output, 0) => (ConvRole::Input, g, b),
                (ConvRole::Output, _) => (ConvRole::Weight, a, g),
                (ConvRole::Input, 0) => (ConvRole::Output, g, b),
                (ConvRole::Input, _) => (ConvRole::Weight, g, a),
                (ConvRole::Weight, 0) => (ConvRole::Input, b, g),
                (ConvRole::Weight, _) => (ConvRole::Output, a, g),
            };
            Some(left.conv(role, right, spec.clone()))
        },
        tangent: Rate::Each,
        batch: |op, args, size, _| {
            of!(op, Op::Conv(role, spec));
            batch_conv(*role, spec, args[0], args[1], size)
        },
    }
}

fn is_in_range(spec: &ConvSpec) -> bool {
    let axes = spec.stride.len();
    let lists = [&spec.pad_low, &spec.pad_high, &spec.dilation];
    lists.iter().all(|list| list.len() == axes)
        && (spec.input.len(), spec.kernel.len()) == (axes, axes)
        && counts(&spec.stride, 1)
        && counts(&spec.dilation, 1)
        && counts(&spec.pad_low, 0)
        && counts(&spec.pad_high, 0)
        && counts(&[spec.groups], 1)
}

/// Whether the shapes of the three tensors of a convolution match, as far as sizes are known.
fn is_trilinear(role: ConvRole, spec: &ConvSpec, a: &Shape, b: &Shape, ty: &Type) -> bool {
    let (x, w, g) = match role {
        ConvRole::Output => (a, b, &ty.shape),
        ConvRole::Input => (&ty.shape, b, a),
        ConvRole::Weight => (a, &ty.shape, b),
    };
    let equal = |a: Dim, b: Dim| match (a.known(), b.known()) {
        (Some(a), Some(b)) => a == b,
        _ => true,
    };
    let divides = |n: Dim| n.known().is_none_or(|n| n % spec.groups == 0);
    let ranks = [x, w, g].iter().all(|shape| shape.rank() == spec.stride.len() + 2);
    ranks
        && equal(x[0], g[0])
        && equal(w[0], g[1])
        && divides(x[1])
        && divides(w[0])
        && w[1].known().is_none_or(|n| equal(x[1], Dim::new(n.saturating_mul(spec.groups))))
        && (0..spec.stride.len()).all(|i| {
            let pads = Dim::new(spec.pad_low[i] + spec.pad_high[i]);
            let padded = if x[i + 2].known().is_some() { x[i + 2] + pads } else { x[i + 2] };
            let found = positions(padded, w[i + 2], spec.stride[i], spec.dilation[i]);
            found.is_none_or(|n| g[i + 2].known().is_none_or(|have| have == n))
        })
}

fn infer_contract(
    op: &Op,
    spec: &Contraction,
    a: (DType, &Shape),
    b: (DType, &Shape),
) -> Result<Type> {
    if a.0 != b.0 {
        return Err(error::dtype_mismatch(op.name(), a.0, b.0));
    }
    let pairs =
        spec.a_contract.iter().zip(&spec.b_contract).chain(spec.a_batch.iter().zip(&spec.b_batch));
    for (&i, &j) in pairs {
        if !a.1[i].equals(b.1[j]) {
            let facts = format!("{} @ {}", a.1, b.1);
            return Err(error::size_mismatch(op.name(), "inner dimensions", a.1[i], b.1[j], facts));
        }
    }
    let mut dims: Dims = small(spec.a_batch.iter().map(|&i| a.1[i]));
    let free = [(a.1, &spec.a_batch, &spec.a_contract), (b.1, &spec.b_batch, &spec.b_contract)];
    for (shape, batch, contract) in free {
        for (i, &size) in shape.dims().iter().enumerate() {
            if !batch.contains(&i) && !contract.contains(&i) {
                dims.push(size);
            }
        }
    }
    let shape = Shape::from(dims);
    shape.check(op.name())?;
    Ok(Type::new(a.0, shape))
}

fn infer_conv(
    role: ConvRole,
    spec: &ConvSpec,
    a: (DType, &Shape),
    b: (DType, &Shape),
) -> Result<Type> {
    if a.0 != b.0 {
        return Err(error::dtype_mismatch("conv", a.0, b.0));
    }
    let groups = Dim::new(spec.groups);
    let (channels, spatial): ([Dim; 2], SmallVec<[Dim; 3]>) = match role {
        ConvRole::Output => {
            let positions = (0..spec.stride.len()).map(|i| {
                let reach = (b.1[i + 2] - Dim::ONE) * spec.dilation[i].into() + Dim::ONE;
                // Zero positions where the kernel reaches further than the operand, because
                // differences stop at zero.
                let stride = spec.stride[i].into();
                (a.1[i + 2] + spec.pad_low[i].into() + spec.pad_high[i].into() + stride - reach)
                    / stride
            });
            ([a.1[0], b.1[0]], positions.collect())
        }
        ConvRole::Input => ([a.1[0], b.1[1] * groups], spec.input.iter().copied().collect()),
        ConvRole::Weight => ([b.1[1], a.1[1] / groups], spec.kernel.iter().copied().collect()),
    };
    let shape: Shape = channels.into_iter().chain(spatial).collect();
    shape.check("conv")?;
    Ok(Type::new(a.0, shape))
}

/// A product is linear in each operand: the gradient is a product of the cotangent with the other
/// operand.
fn contract_vjp<'e>(spec: &Contraction, rule: &Rule<'_, 'e>, wrt: usize) -> Expr<'e> {
    let (x, other) = (rule.args[wrt], rule.args[1 - wrt]);
    let (x_batch, x_contract, o_batch, o_contract) = match wrt {
        0 => (&spec.a_batch, &spec.a_contract, &spec.b_batch, &spec.b_contract),
        _ => (&spec.b_batch, &spec.b_contract, &spec.a_batch, &spec.a_contract),
    };
    let free = |rank: usize, batch: &Axes, contract: &Axes| -> Axes {
        (0..rank).filter(|i| !batch.contains(i) && !contract.contains(i)).collect()
    };
    let x_free = free(x.rank(), x_batch, x_contract);
    let o_free = free(other.rank(), o_batch, o_contract);
    let batches = x_batch.len();
    // The axes of the cotangent: batch, free axes of a, free axes of b.
    let o_start = if wrt == 0 { batches + x_free.len() } else { batches };
    let g_contract: Axes = (o_start..o_start + o_free.len()).collect();
    // The contracted axes of x, in the order of the other operand.
    let mut contracted: SmallVec<[(usize, usize); 4]> =
        o_contract.iter().copied().zip(x_contract.iter().copied()).collect();
    contracted.sort_unstable();
    let contracted: Axes = contracted.into_iter().map(|(_, axis)| axis).collect();
    // The product of both has the axes of the first operand first. That one of the two orders is
    // taken which has the axes of x as they are, if there is one.
    let order = |first: &Axes, second: &Axes| -> Axes {
        x_batch.iter().chain(first).chain(second).copied().collect()
    };
    let swapped = order(&contracted, &x_free);
    let is_plain = |axes: &Axes| axes.iter().enumerate().all(|(i, &axis)| i == axis);
    let g_batch: Axes = (0..batches).collect();
    if is_plain(&swapped) {
        let (a_batch, a_contract) = (o_batch.clone(), o_free);
        let spec = Contraction { a_batch, b_batch: g_batch, a_contract, b_contract: g_contract };
        return other.contract(rule.g, spec);
    }
    let (b_batch, b_contract) = (o_batch.clone(), o_free);
    let spec = Contraction { a_batch: g_batch, b_batch, a_contract: g_contract, b_contract };
    rule.g.contract(other, spec).permute(inverse(&order(&x_free, &contracted)))
}

fn batch_contract<'e>(spec: &Contraction, a: Batched<'e>, b: Batched<'e>) -> Expr<'e> {
    let moved = |axes: &Axes, mapped: bool| if mapped { shift(axes) } else { axes.clone() };
    let mut all = Contraction {
        a_batch: moved(&spec.a_batch, a.mapped),
        b_batch: moved(&spec.b_batch, b.mapped),
        a_contract: moved(&spec.a_contract, a.mapped),
        b_contract: moved(&spec.b_contract, b.mapped),
    };
    if a.mapped && b.mapped {
        all.a_batch.insert(0, 0);
        all.b_batch.insert(0, 0);
        return a.x.contract(b.x, all);
    }
    // The axis of examples is the first free axis of the one mapped operand.
    let batches = spec.a_batch.len();
    let before = if a.mapped { batches } else { a.rank() - spec.a_contract.len() };
    a.x.contract(b.x, all).move_axis(before, 0)
}

/// Examples become further images where only the first operand is mapped, and further groups
/// otherwise.
fn batch_conv<'e>(
    role: ConvRole,
    spec: &ConvSpec,
    a: Batched<'e>,
    b: Batched<'e>,
    size: Dim,
) -> Expr<'e> {
    if role != ConvRole::Weight && !b.mapped {
        return a.x.merge(0).conv(role, b.x, Box::new(spec.clone())).split(0, size);
    }
    let (a, b) = (a.spread(size), b.spread(size));
    // Images come first, and the channels of all examples one after the other; so do the weights of
    // all examples.
    let images = |x: Expr<'e>| x.move_axis(0, 1).merge(1);
    let groups = spec.groups * size.value();
    let spec = Box::new(ConvSpec { groups, ..spec.clone() });
    match role {
        ConvRole::Output | ConvRole::Input => {
            images(a).conv(role, b.merge(0), spec).split(1, size).move_axis(1, 0)
        }
        ConvRole::Weight => images(a).conv(role, images(b), spec).split(0, size),
    }
}
