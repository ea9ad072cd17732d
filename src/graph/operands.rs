//! What kernels take for granted of operands, checked for lists that come from outside: with it, a
//! list that keeps the law reads and writes its own memory only.
//!
//! The front ends make only what holds here. Sizes that are not known are left to the day they are.

use smallvec::SmallVec;

use super::verify::law;
use super::{Kind, List, operand_type};
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::attributes::{ConvRole, ConvSpec, WindowSpec};
use crate::ops::op::{Op, OperandType, Type};
use crate::shape::{Dim, Shape};

/// A tensor among operands.
type Tensor<'a> = (DType, &'a Shape);

/// Refuses a list, which keeps the law, for an op on operands that its kernel does not expect.
pub fn check_list(list: &List) -> Result<()> {
    let mut lists = vec![list];
    while let Some(list) = lists.pop() {
        for node in &list.nodes {
            match &node.kind {
                Kind::Op(op) => {
                    let types: SmallVec<[OperandType<'_>; 4]> =
                        node.args.iter().map(|&arg| operand_type(&list.nodes, arg)).collect();
                    check(op, &types, &node.ty)?;
                }
                Kind::Flow(flow) => lists.extend(flow.bodies.iter().map(|body| &**body)),
                Kind::Input
                | Kind::Constant(_)
                | Kind::Part(_)
                | Kind::Effect(_)
                | Kind::Barrier => {}
            }
        }
    }
    Ok(())
}

/// Refuses operands that the op's kernel does not expect; `ty` is the type of the result.
fn check(op: &Op, args: &[OperandType<'_>], ty: &Type) -> Result<()> {
    let tensor = |i: usize| match args.get(i) {
        Some(OperandType::Tensor(dtype, shape)) => Some((*dtype, *shape)),
        Some(OperandType::Scalar(_)) | None => None,
    };
    let holds = match op {
        Op::Fill(_) | Op::Embed(..) => {
            // The number that fills, as an array.
            let value = tensor(if let Op::Fill(_) = op { 0 } else { 1 });
            value.is_none_or(|(dtype, shape)| dtype == ty.dtype && shape.rank() == 0)
        }
        Op::Update(_) | Op::Scatter(_) => tensor(1).is_none_or(|(dtype, _)| dtype == ty.dtype),
        Op::Reduce(_, axes) => axes.is_sorted(),
        Op::Windows(spec) => windows(spec),
        Op::Fold(spec, sizes) => windows(spec) && folded(spec, sizes, tensor(0)),
        Op::Conv(role, spec) => {
            convolution(spec) && trilinear(*role, spec, tensor(0), tensor(1), ty)
        }
        Op::Map(_)
        | Op::Call(_)
        | Op::Cast(_)
        | Op::Reshape(_)
        | Op::Permute(_)
        | Op::Broadcast(_)
        | Op::Slice(_)
        | Op::Concat(_)
        | Op::Gather
        | Op::ArgReduce(..)
        | Op::Cumulate { .. }
        | Op::Contract(_)
        | Op::Sort { .. }
        | Op::ArgSort { .. }
        | Op::TopK { .. }
        | Op::Iota(..)
        // Its kernel looks at the key itself.
        | Op::RandomBits(_) => true,
    };
    if holds { Ok(()) } else { Err(law("the operands are not what it takes", format!("{op:?}"))) }
}

/// Refuses the attributes that type rules cannot work with. To be asked before them.
pub fn check_attributes(op: &Op) -> Result<()> {
    let holds = if let Op::Windows(spec) | Op::Fold(spec, _) = op {
        windows(spec)
    } else if let Op::Conv(_, spec) = op {
        convolution(spec)
    } else {
        true
    };
    if holds { Ok(()) } else { Err(law("attributes out of range", format!("{op:?}"))) }
}

/// More than any axis has.
const FAR: usize = 1 << 31;

fn counts(list: &[usize], least: usize) -> bool {
    list.iter().all(|n| (least..FAR).contains(n))
}

fn windows(spec: &WindowSpec) -> bool {
    let axes = spec.size.len();
    spec.stride.len() == axes
        && spec.dilation.len() == axes
        && [&spec.size, &spec.stride, &spec.dilation].iter().all(|list| counts(list, 1))
}

fn convolution(spec: &ConvSpec) -> bool {
    let axes = spec.stride.len();
    let lists = [&spec.pad_low, &spec.pad_high, &spec.dilation];
    lists.iter().all(|list| list.len() == axes)
        && (spec.input.len(), spec.kernel.len()) == (axes, axes)
        && counts(&spec.stride, 1)
        && counts(&spec.dilation, 1)
        && counts(&spec.pad_low, 0)
        && counts(&spec.pad_high, 0)
        && (1..FAR).contains(&spec.groups)
}

/// How many windows an axis of a size has; `None` where that is not known.
fn positions(size: Dim, window: Dim, stride: usize, dilation: usize) -> Option<usize> {
    let (size, window) = (size.known()?, window.known()?);
    let reach = window.checked_sub(1)?.checked_mul(dilation)?.checked_add(1)?;
    Some(size.checked_sub(reach).map_or(0, |free| free / stride + 1))
}

/// Whether windows are those of an array with these trailing sizes.
fn folded(spec: &WindowSpec, sizes: &[Dim], x: Option<Tensor<'_>>) -> bool {
    let Some((_, shape)) = x else { return false };
    let axes = spec.size.len();
    let lead = shape.rank() - 2 * axes;
    (0..axes).all(|i| {
        let window = Dim::new(spec.size[i]);
        let found = positions(sizes[i], window, spec.stride[i], spec.dilation[i]);
        let fits = |n: usize| shape[lead + i].known().is_none_or(|have| have == n);
        found.is_none_or(fits) && shape[lead + axes + i].known().is_none_or(|n| n == spec.size[i])
    })
}

/// Whether the three tensors of a convolution go together, as far as their sizes are known.
fn trilinear(
    role: ConvRole,
    spec: &ConvSpec,
    a: Option<Tensor<'_>>,
    b: Option<Tensor<'_>>,
    ty: &Type,
) -> bool {
    let (Some((_, a)), Some((_, b))) = (a, b) else { return false };
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
