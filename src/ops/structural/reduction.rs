//! Ops that combine the elements along axes: reductions and scans.

use smallvec::smallvec;

use super::*;
use crate::error;
use crate::ops::attributes::ScatterMode;
use crate::ops::batch::shift;
use crate::ops::probe::RESULT;
use crate::shape::Axes;

/// A sum; all elements get its cotangent.
pub static SUM: StructuralDef = StructuralDef {
    agreement: Agreement::Order,
    differentiable: always,
    residuals: reads_nothing,
    vjp: |op, rule, _| {
        of!(op, Op::Reduce(_, axes));
        Some(rule.g.restore(axes).broadcast(rule.args[0].shape()))
    },
    tangent: Rate::First,
    ..reduce(Reduction::Sum, || Op::Reduce(Reduction::Sum, Axes::new()))
};

/// A product.
pub static PROD: StructuralDef = StructuralDef {
    agreement: Agreement::Order,
    differentiable: always,
    residuals: reads_first,
    vjp: |op, rule, _| {
        of!(op, Op::Reduce(_, axes));
        Some(prod_vjp(rule.args[0], rule.g, axes))
    },
    tangent: Rate::Transposed,
    ..reduce(Reduction::Prod, || Op::Reduce(Reduction::Prod, Axes::new()))
};

/// The largest element; NaN wins.
pub static MAX: StructuralDef = extreme(Reduction::Max, || Op::Reduce(Reduction::Max, Axes::new()));

/// The smallest element; NaN wins.
pub static MIN: StructuralDef = extreme(Reduction::Min, || Op::Reduce(Reduction::Min, Axes::new()));

/// Whether any element is true.
pub static ANY: StructuralDef = reduce(Reduction::Any, || Op::Reduce(Reduction::Any, Axes::new()));

/// Whether all elements are true.
pub static ALL: StructuralDef = reduce(Reduction::All, || Op::Reduce(Reduction::All, Axes::new()));

/// A reduction over sorted axes, which disappear, without a gradient.
const fn reduce(kind: Reduction, blank: fn() -> Op) -> StructuralDef {
    StructuralDef {
        name: kind.name(),
        class: Class::Reduction,
        operands: exactly(1),
        blank,
        fields: |op| {
            of!(op, Op::Reduce(_, axes));
            smallvec![Field::Axes("axis", axes)]
        },
        in_range: any,
        fits: |op, args| {
            of!(op, Op::Reduce(_, axes));
            inside(axes, rank(args, 0))
        },
        expects: |op, _, _| {
            of!(op, Op::Reduce(_, axes));
            axes.is_sorted()
        },
        infer: |op, args| {
            of!(op, Op::Reduce(kind, axes));
            let (dtype, shape) = tensor(op, args, 0)?;
            let needs_one = matches!(kind, Reduction::Max | Reduction::Min);
            if needs_one
                && axes.iter().any(|&i| shape[i].equals(0))
                && !shape.reduce(axes, false).elements().equals(0)
            {
                return Err(error::empty_reduction(op.name(), shape));
            }
            Ok(Type::new(dtype, shape.reduce(axes, false)))
        },
        cost: joined,
        is_expensive: false,
        refuses: false,
        view: computed,
        in_place: InPlace::Nowhere,
        agreement: Agreement::Bits,
        blocks: Blocks::Leading(|op, _, _| {
            of!(op, Op::Reduce(_, axes));
            axes.first().copied().unwrap_or(0)
        }),
        differentiable: never,
        residuals: reads_nothing,
        vjp: no_gradient,
        tangent: Rate::Zero,
        batch: |op, args, _, _| {
            of!(op, Op::Reduce(kind, axes));
            args[0].x.emit(Op::Reduce(*kind, shift(axes)))
        },
    }
}

/// The largest or smallest element. Ties share the gradient equally.
const fn extreme(kind: Reduction, blank: fn() -> Op) -> StructuralDef {
    StructuralDef {
        // Which of two zeros of different sign remains depends on the order.
        agreement: Agreement::Values,
        differentiable: always,
        residuals: |_, _, _| 1 | RESULT,
        vjp: |op, rule, _| {
            of!(op, Op::Reduce(_, axes));
            let (x, y, g) = (rule.args[0], rule.y, rule.g);
            let hit = x.equal(y.restore(axes)).cast(x.dtype());
            Some(hit * (g / hit.reduce(Reduction::Sum, axes)).restore(axes))
        },
        tangent: Rate::Formula(|op, rule| {
            of!(op, Op::Reduce(_, axes));
            let x = rule.args[0];
            let hit = x.equal(rule.y.restore(axes)).cast(x.dtype());
            let total = (hit * rule.full(0)).reduce(Reduction::Sum, axes);
            Tangent::Is(total / hit.reduce(Reduction::Sum, axes))
        }),
        ..reduce(kind, blank)
    }
}

/// The cost of combining all elements into those of the result.
fn joined(_: &Op, work: &cost::Work<'_>) -> Cost {
    work.with(work.count(0).saturating_sub(work.results()))
}

/// The position of the largest element along an axis, which disappears (int64).
pub static ARGMAX: StructuralDef = arg_reduce("argmax", || Op::ArgReduce(ArgReduction::Max, 0));

/// The position of the smallest element along an axis, which disappears (int64).
pub static ARGMIN: StructuralDef = arg_reduce("argmin", || Op::ArgReduce(ArgReduction::Min, 0));

const fn arg_reduce(name: &'static str, blank: fn() -> Op) -> StructuralDef {
    StructuralDef {
        name,
        class: Class::Reduction,
        operands: exactly(1),
        blank,
        fields: |op| {
            of!(op, Op::ArgReduce(_, axis));
            smallvec![Field::Count("axis", axis)]
        },
        in_range: any,
        fits: |op, args| {
            of!(op, Op::ArgReduce(_, axis));
            *axis < rank(args, 0)
        },
        expects: expects_nothing,
        infer: |op, args| {
            of!(op, Op::ArgReduce(_, axis));
            let (_, shape) = tensor(op, args, 0)?;
            let out = shape.reduce(&[*axis], false);
            if shape[*axis].equals(0) && !out.elements().equals(0) {
                return Err(error::empty_reduction(op.name(), shape));
            }
            Ok(Type::new(DType::I64, out))
        },
        cost: joined,
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
        batch: |op, args, _, _| {
            of!(op, Op::ArgReduce(kind, axis));
            args[0].x.emit(Op::ArgReduce(*kind, axis + 1))
        },
    }
}

/// A running sum.
pub static CUMULATIVE_SUM: StructuralDef = StructuralDef {
    residuals: reads_nothing,
    vjp: |op, rule, _| {
        of!(op, Op::Cumulate { axis, reverse, .. });
        Some(rule.g.cumulate(Cumulation::Sum, *axis, !reverse))
    },
    tangent: Rate::First,
    ..cumulate(Cumulation::Sum, || Op::Cumulate { kind: Cumulation::Sum, axis: 0, reverse: false })
};

/// A running product.
pub static CUMULATIVE_PROD: StructuralDef = StructuralDef {
    residuals: reads_first,
    vjp: |op, rule, _| {
        of!(op, Op::Cumulate { axis, reverse, .. });
        Some(cumulative_prod_vjp(rule.args[0], rule.g, *axis, *reverse))
    },
    ..cumulate(Cumulation::Prod, || Op::Cumulate {
        kind: Cumulation::Prod,
        axis: 0,
        reverse: false,
    })
};

/// A running maximum; NaN stays.
pub static CUMULATIVE_MAX: StructuralDef =
    cumulate(Cumulation::Max, || Op::Cumulate { kind: Cumulation::Max, axis: 0, reverse: false });

/// A running minimum; NaN stays.
pub static CUMULATIVE_MIN: StructuralDef =
    cumulate(Cumulation::Min, || Op::Cumulate { kind: Cumulation::Min, axis: 0, reverse: false });

/// A running reduction along an axis, with the gradient of a running maximum or minimum.
const fn cumulate(kind: Cumulation, blank: fn() -> Op) -> StructuralDef {
    StructuralDef {
        name: kind.name(),
        class: Class::Reduction,
        operands: exactly(1),
        blank,
        fields: |op| {
            of!(op, Op::Cumulate { axis, reverse, .. });
            smallvec![Field::Count("axis", axis), Field::Truth("reverse", reverse)]
        },
        in_range: any,
        fits: |op, args| {
            of!(op, Op::Cumulate { axis, .. });
            *axis < rank(args, 0)
        },
        expects: expects_nothing,
        infer: same_type,
        cost: |_, work| work.with(work.count(0)),
        is_expensive: false,
        refuses: false,
        view: computed,
        in_place: InPlace::Nowhere,
        // The order of combining is part of the op's definition.
        agreement: Agreement::Bits,
        blocks: Blocks::Never,
        differentiable: always,
        residuals: |_, _, _| 1 | RESULT,
        vjp: |op, rule, _| {
            of!(op, Op::Cumulate { axis, reverse, .. });
            Some(running_extreme_vjp(rule.args[0], rule.y, rule.g, *axis, *reverse))
        },
        tangent: Rate::Transposed,
        batch: |op, args, _, _| {
            of!(op, Op::Cumulate { kind, axis, reverse });
            args[0].x.emit(Op::Cumulate { kind: *kind, axis: axis + 1, reverse: *reverse })
        },
    }
}

/// Each element's gradient is the product of all others, computed as the product of those before it
/// times the product of those after it: exact also where elements are zero.
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

/// `Σ_i g_i ∂y_i/∂x_k`, where `∂y_i/∂x_k` is the product of the elements up to `i` without `x_k`.
/// The products form a square over `k` and `i`; they are exact also where elements are zero.
fn cumulative_prod_vjp<'e>(x: Expr<'e>, g: Expr<'e>, axis: usize, reverse: bool) -> Expr<'e> {
    let n = x.size(axis);
    let square = Shape::from_dims(&[n, n]);
    let (k, i) = (x.iota(DType::I64, square.clone(), 0), x.iota(DType::I64, square, 1));
    // `k` counts along `axis`, `i` along a new last axis.
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

/// The gradient of a running maximum or minimum goes to the element that set it (of equal elements
/// the latest).
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

impl<'e> Expr<'e> {
    /// Zeros of the type of `x`.
    pub(super) fn zeros_of(self, x: Expr<'e>) -> Expr<'e> {
        self.scalar(0.0).full(x.dtype(), x.shape())
    }

    /// For each element the product of the elements before it (or after it) along an axis.
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
