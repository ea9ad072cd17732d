//! The gradients of structural ops, as formulas.

use smallvec::SmallVec;

use super::attributes::*;
use super::declare::Arguments;
use super::emit::{Arg, Expr};
use super::op::Op;
use super::rule::Rule;
use crate::dtype::DType;
use crate::shape::{Axes, Dim, Shape};

impl Op {
    /// The cotangent of operand `wrt`; `None` where no gradient flows. In elementwise ops it has the
    /// result's shape (the sweep undoes broadcasting), in the others the operand's.
    pub fn vjp<'e>(&self, rule: &Rule<'_, 'e>, wrt: usize) -> Option<Expr<'e>> {
        let (g, y) = (rule.g, rule.y);
        let x = rule.args.first().copied().unwrap_or(g);
        Some(match self {
            Op::Map(def) => return def.vjp[wrt].cotangent(rule),
            Op::Call(call) => {
                let operands: SmallVec<[Arg; 6]> = rule.args.iter().map(|x| x.arg()).collect();
                let arguments =
                    Arguments { cx: g.cx(), attributes: &call.attributes, operands: &operands };
                return call.composite.cotangent(rule, &arguments, call.position(wrt));
            }
            Op::Cast(_) if !x.dtype().is_float() => return None,
            Op::Cast(_) => g.cast(x.dtype()),
            Op::Reshape(_) => g.reshape(x.shape()),
            Op::Permute(axes) => g.permute(inverse(axes)),
            Op::Broadcast(_) => g.sum_to(&x.shape()),
            Op::Slice(at) => g.embed(x.shape(), at.clone()),
            Op::Embed(_, at) => g.emit(Op::Slice(at.clone())),
            Op::Update(at) if wrt == 0 => {
                let g = g.tensor();
                g.emit_with(Op::Update(at.clone()), &[g.arg(), g.scalar(0).arg()])
            }
            Op::Update(at) => g.slice(at.clone()).sum_to(&rule.args[1].shape()),
            Op::Concat(axis) => {
                let before = rule.args[..wrt].iter().map(|part| part.size(*axis));
                let start = before.fold(Dim::new(0), |sum, n| sum + n);
                g.narrow(*axis, start, rule.args[wrt].size(*axis))
            }
            Op::Gather => g.zeros_of(x).scatter(ScatterMode::Add, g, &rule.args[1..]),
            Op::Scatter(mode) => return Some(scatter_vjp(*mode, rule, wrt)),
            Op::Reduce(kind, axes) => match kind {
                Reduction::Sum => g.restore(axes).broadcast(x.shape()),
                Reduction::Prod => prod_vjp(x, g, axes),
                Reduction::Max | Reduction::Min => {
                    // Ties share equally.
                    let hit = x.equal(y.restore(axes)).cast(x.dtype());
                    hit * (g / hit.reduce(Reduction::Sum, axes)).restore(axes)
                }
                Reduction::Any | Reduction::All => return None,
            },
            Op::Cumulate { kind, axis, reverse } => match kind {
                Cumulation::Sum => g.cumulate(Cumulation::Sum, *axis, !reverse),
                Cumulation::Prod => cumulative_prod_vjp(x, g, *axis, *reverse),
                Cumulation::Max | Cumulation::Min => running_extreme_vjp(x, y, g, *axis, *reverse),
            },
            Op::Contract(spec) => contract_vjp(spec, rule, wrt),
            Op::Conv(role, spec) => {
                let (a, b) = (rule.args[0], rule.args[1]);
                let (role, left, right) = match (role, wrt) {
                    (ConvRole::Output, 0) => (ConvRole::Input, g, b),
                    (ConvRole::Output, _) => (ConvRole::Weight, a, g),
                    (ConvRole::Input, 0) => (ConvRole::Output, g, b),
                    (ConvRole::Input, _) => (ConvRole::Weight, g, a),
                    (ConvRole::Weight, 0) => (ConvRole::Input, b, g),
                    (ConvRole::Weight, _) => (ConvRole::Output, a, g),
                };
                left.conv(role, right, spec.clone())
            }
            Op::Windows(spec) => {
                let shape = x.shape();
                let sizes = &shape.dims()[x.rank() - spec.size.len()..];
                g.emit(Op::Fold(spec.clone(), sizes.iter().copied().collect()))
            }
            Op::Fold(spec, _) => g.emit(Op::Windows(spec.clone())),
            Op::Sort { axis, descending } => {
                let order = x.emit(Op::ArgSort { axis: *axis, descending: *descending });
                let back = order.emit(Op::ArgSort { axis: *axis, descending: false });
                g.take_along(back, *axis)
            }
            Op::ArgReduce(..)
            | Op::ArgSort { .. }
            | Op::TopK { .. }
            | Op::Fill(_)
            | Op::Iota(..)
            | Op::RandomBits(_) => return None,
        })
    }
}

/// The permutation that undoes `axes`.
pub fn inverse(axes: &[usize]) -> Axes {
    let mut out: Axes = SmallVec::from_elem(0, axes.len());
    axes.iter().enumerate().for_each(|(i, &axis)| out[axis] = i);
    out
}

fn scatter_vjp<'e>(mode: ScatterMode, rule: &Rule<'_, 'e>, wrt: usize) -> Expr<'e> {
    let (base, values, indices, g) = (rule.args[0], rule.args[1], &rule.args[2..], rule.g);
    match (mode, wrt) {
        (ScatterMode::Add, 0) => g,
        (ScatterMode::Set, 0) => g.scatter(ScatterMode::Set, g.scalar(0.0), indices),
        (ScatterMode::Add, _) => g.gather(indices).sum_to(&values.shape()),
        (ScatterMode::Set, _) => {
            // Of several values for one place only the last one stays, so only it has a gradient:
            // number the writes, and see which numbers survive.
            let written = g.gather(indices);
            let lead = written.rank() - (base.rank() - indices.len());
            let numbers: Shape = written.shape().dims()[..lead].iter().copied().collect();
            let count = numbers.elements();
            let ids = g.iota(DType::I64, Shape::from_dims(&[count]), 0).reshape(numbers.clone());
            let places: Shape = base.shape().dims()[..indices.len()].iter().copied().collect();
            let last =
                g.scalar(-1).full(DType::I64, places).scatter(ScatterMode::Set, ids, indices);
            let mut wide = numbers;
            wide.dims_mut().resize(written.rank(), Dim::ONE);
            let stays = last.gather(indices).equal(ids).reshape(wide);
            stays.select(written, g.scalar(0.0)).sum_to(&values.shape())
        }
    }
}

/// Each element's gradient is the product of all others: the product of those before times that of
/// those after, which stays exact where elements are zero.
fn prod_vjp<'e>(x: Expr<'e>, g: Expr<'e>, axes: &Axes) -> Expr<'e> {
    let kept: Axes = (0..x.rank()).filter(|i| !axes.contains(i)).collect();
    let order: Axes = kept.iter().chain(axes).copied().collect();
    let moved = x.permute(order.clone());
    let lead = kept.len();
    let mut flat: Shape = moved.shape().dims()[..lead].iter().copied().collect();
    let count = axes.iter().fold(Dim::ONE, |n, &i| n * x.size(i));
    flat.dims_mut().push(count);
    let row = moved.reshape(flat);
    let others = row.exclusive_prod(lead, false) * row.exclusive_prod(lead, true);
    let grad = others * g.unsqueeze(lead);
    grad.reshape(moved.shape()).permute(inverse(&order))
}

/// `Σ_i g_i ∂y_i/∂x_k` with `∂y_i/∂x_k` the product of the elements up to `i` without `x_k`: a square
/// of products, exact where elements are zero.
fn cumulative_prod_vjp<'e>(x: Expr<'e>, g: Expr<'e>, axis: usize, reverse: bool) -> Expr<'e> {
    let n = x.size(axis);
    let square = Shape::from_dims(&[n, n]);
    let (k, i) = (x.iota(DType::I64, square.clone(), 0), x.iota(DType::I64, square, 1));
    // Axis `axis` counts k, a new last axis counts i.
    let mut last: Axes = (0..x.rank()).filter(|&a| a != axis).collect();
    last.push(axis);
    let rows = x.permute(last.clone()).unsqueeze(x.rank() - 1);
    let without = k.equal(i).select(x.scalar(1.0), rows);
    let products = without.cumulate(Cumulation::Prod, x.rank(), reverse);
    let reaches = if reverse { i.less_equal(k) } else { i.greater_equal(k) };
    let terms =
        reaches.select(products * g.permute(last.clone()).unsqueeze(x.rank() - 1), x.scalar(0.0));
    terms.reduce(Reduction::Sum, &[x.rank()]).permute(inverse(&last))
}

/// The gradient of a running extreme goes to the element that set it (the latest of equals).
fn running_extreme_vjp<'e>(
    x: Expr<'e>,
    y: Expr<'e>,
    g: Expr<'e>,
    axis: usize,
    reverse: bool,
) -> Expr<'e> {
    let at = x.iota(DType::I64, x.shape(), axis);
    let (worst, kind) = match reverse {
        false => (x.scalar(0), Cumulation::Max),
        true => (x.whole(x.size(axis)), Cumulation::Min),
    };
    let setter = x.equal(y).select(at, worst).cumulate(kind, axis, reverse);
    g.zeros_of(x).scatter(ScatterMode::Add, g, &setter.along(axis))
}

/// A product is linear in each operand: its gradient is a product of the cotangent with the other.
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
    // In the cotangent: batch, free of a, free of b.
    let o_start = if wrt == 0 { batches + x_free.len() } else { batches };
    let product = rule.g.contract(
        other,
        Contraction {
            a_batch: (0..batches).collect(),
            b_batch: o_batch.clone(),
            a_contract: (o_start..o_start + o_free.len()).collect(),
            b_contract: o_free,
        },
    );
    // The product's axes: batch, free of x, contracted axes in the other operand's order.
    let mut contracted: SmallVec<[(usize, usize); 4]> =
        o_contract.iter().copied().zip(x_contract.iter().copied()).collect();
    contracted.sort_unstable();
    let order: Axes = x_batch
        .iter()
        .copied()
        .chain(x_free)
        .chain(contracted.into_iter().map(|(_, axis)| axis))
        .collect();
    product.permute(inverse(&order))
}

impl<'e> Expr<'e> {
    /// Zeros of another operand's type.
    fn zeros_of(self, x: Expr<'e>) -> Expr<'e> {
        self.scalar(0.0).full(x.dtype(), x.shape())
    }

    /// The product of the elements before each (or after), along an axis.
    fn exclusive_prod(self, axis: usize, reverse: bool) -> Expr<'e> {
        let mut one = self.shape();
        one.dims_mut()[axis] = Dim::ONE;
        let n = self.size(axis);
        if n.equals(0) {
            return self;
        }
        let edge = self.scalar(1.0).full(self.dtype(), one);
        let rest = self.narrow(axis, usize::from(reverse), n - Dim::ONE);
        let shifted = if reverse { [rest, edge] } else { [edge, rest] };
        shifted[0].concat(&shifted, axis).cumulate(Cumulation::Prod, axis, reverse)
    }
}
