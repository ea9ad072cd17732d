//! Reductions and what is built on them.
//!
//! Means and variances of float16 and bfloat16 are computed in float32 and rounded once.

use super::floating;
use crate::dtype::DType;
use crate::error;
use crate::ops::attributes::Reduction;
use crate::ops::emit::{Expr, OrThrow, throw};
use crate::ops::number::Calculation;
use crate::shape::{Axes, Dim};

composite! {
    /// Sum of elements.
    ///
    /// `axis`: an axis, a tuple of axes, or None for all. Integers and bools are summed in int64
    /// (uint64 for unsigned) where `dtype` is None. An empty sum is 0.
    ///
    /// >>> import wengert as wg
    /// >>> wg.sum(wg.tensor([[1.0, 2.0], [3.0, 4.0]]), axis=0).tolist()
    /// [4.0, 6.0]
    top method sum(
        x: Tensor, axis: Axes = None; keepdims: Bool = False, dtype: MaybeDtype = None,
    ) -> One inline {
        let x = x.cast(dtype.unwrap_or(summed(x.dtype())));
        reduce(x, Reduction::Sum, axis.as_deref(), keepdims, "sum")
    }

    /// Product of elements.
    ///
    /// `axis`: an axis, a tuple of axes, or None for all. Integers and bools are multiplied in
    /// int64 (uint64 for unsigned) where `dtype` is None. An empty product is 1.
    top method prod(
        x: Tensor, axis: Axes = None; keepdims: Bool = False, dtype: MaybeDtype = None,
    ) -> One inline {
        let x = x.cast(dtype.unwrap_or(summed(x.dtype())));
        reduce(x, Reduction::Prod, axis.as_deref(), keepdims, "prod")
    }

    /// Largest element; NaN wins.
    ///
    /// `axis`: an axis, a tuple of axes, or None for all. Of no elements it is an error. The
    /// gradient is shared equally among equal largest elements.
    top method max(x: Tensor, axis: Axes = None; keepdims: Bool = False) -> One inline {
        reduce(x, Reduction::Max, axis.as_deref(), keepdims, "max")
    }
    unlike("PyTorch's gives values and indices; write axis=, and argmax for the indices")

    /// Smallest element; NaN wins.
    ///
    /// `axis`: an axis, a tuple of axes, or None for all. Of no elements it is an error. The
    /// gradient is shared equally among equal smallest elements.
    top method min(x: Tensor, axis: Axes = None; keepdims: Bool = False) -> One inline {
        reduce(x, Reduction::Min, axis.as_deref(), keepdims, "min")
    }
    unlike("PyTorch's gives values and indices; write axis=, and argmin for the indices")

    /// Whether any element is not zero; of no elements it is False.
    ///
    /// `axis`: an axis, a tuple of axes, or None for all.
    top method any(x: Tensor, axis: Axes = None; keepdims: Bool = False) -> One inline {
        reduce(nonzero(x), Reduction::Any, axis.as_deref(), keepdims, "any")
    }

    /// Whether no element is zero; of no elements it is True.
    ///
    /// `axis`: an axis, a tuple of axes, or None for all.
    top method all(x: Tensor, axis: Axes = None; keepdims: Bool = False) -> One inline {
        reduce(nonzero(x), Reduction::All, axis.as_deref(), keepdims, "all")
    }

    /// How many elements are not zero (int64).
    ///
    /// `axis`: an axis, a tuple of axes, or None for all.
    top method count_nonzero(x: Tensor, axis: Axes = None; keepdims: Bool = False) -> One inline {
        let x = nonzero(x).cast(DType::I64);
        reduce(x, Reduction::Sum, axis.as_deref(), keepdims, "count_nonzero")
    }

    /// Arithmetic mean.
    ///
    /// `axis`: an axis, a tuple of axes, or None for all. Integers and bools are averaged in
    /// float32. The mean of no elements is NaN.
    ///
    /// >>> import wengert as wg
    /// >>> wg.mean(wg.tensor([1, 2])).item()
    /// 1.5
    top method mean(x: Tensor, axis: Axes = None; keepdims: Bool = False) -> One inline {
        let x = floating(x);
        let axes = axes_of(x, axis.as_deref(), "mean");
        kept(average(wide(x), &axes).cast(x.dtype()), &axes, keepdims)
    }

    /// Variance: the mean of squared distances from the mean.
    ///
    /// `axis`: an axis, a tuple of axes, or None for all. The sum of squares is divided by the
    /// count less `correction` (0: of a population; 1: estimated from a sample). Integers and bools
    /// are computed in float32.
    top method var(
        x: Tensor, axis: Axes = None; correction: Float = 0.0, keepdims: Bool = False,
    ) -> One {
        let x = floating(x);
        let axes = axes_of(x, axis.as_deref(), "var");
        kept(variance(wide(x), &axes, correction).cast(x.dtype()), &axes, keepdims)
    }
    unlike(correction, "PyTorch divides by the count less 1; write correction=1 or correction=0")
    vjp(g, y) { x: {
        let axes = axes_of(x, axis.as_deref(), "var");
        let g = if keepdims { g } else { g.restore(&axes) };
        let twice = x.scalar(2.0).calculate(Calculation::Div, freedom(x, &axes, correction));
        let scaled = centred(wide(x), &axes) * twice;
        (g * scaled).cast(x.dtype())
    } }

    /// Standard deviation: the square root of `var`.
    ///
    /// The gradient is NaN where all elements are equal.
    top method std(
        x: Tensor, axis: Axes = None; correction: Float = 0.0, keepdims: Bool = False,
    ) -> One {
        let x = floating(x);
        let axes = axes_of(x, axis.as_deref(), "std");
        kept(variance(wide(x), &axes, correction).sqrt().cast(x.dtype()), &axes, keepdims)
    }
    unlike(correction, "PyTorch divides by the count less 1; write correction=1 or correction=0")

    /// `log(sum(exp(x)))` without overflow.
    ///
    /// `axis`: an axis, a tuple of axes, or None for all. Of no elements it is an error. Where all
    /// elements are -inf, so is the result, and the gradient is 0.
    top method logsumexp(x: FloatTensor, axis: Axes = None; keepdims: Bool = False) -> One {
        let axes = axes_of(x, axis.as_deref(), "logsumexp");
        let top = finite_or_zero(wide(x).reduce(Reduction::Max, &axes));
        let sum = (wide(x) - top.restore(&axes)).exp().reduce(Reduction::Sum, &axes);
        kept((sum.log() + top).cast(x.dtype()), &axes, keepdims)
    }
    precision(Wide)
    vjp(g, y) { x: {
        let axes = axes_of(x, axis.as_deref(), "logsumexp");
        let (g, y) = if keepdims { (g, y) } else { (g.restore(&axes), y.restore(&axes)) };
        g * (x - finite_or_zero(y)).exp()
    } }

    /// Length of a vector: `sum(abs(x) ** ord) ** (1 / ord)`.
    ///
    /// `axis`: an axis, a tuple of axes, or None for all. `ord`: inf gives the largest and -inf the
    /// smallest absolute value, 0 counts the elements that are not zero. The gradient of the
    /// Euclidean norm at the zero vector is 0.
    ///
    /// >>> import wengert as wg
    /// >>> wg.vector_norm(wg.tensor([3.0, 4.0])).item()
    /// 5.0
    top method vector_norm(
        x: FloatTensor, axis: Axes = None; keepdims: Bool = False, ord: Float = 2.0,
    ) -> One {
        let axes = axes_of(x, axis.as_deref(), "vector_norm");
        kept(norm(x.tensor(), &axes, ord), &axes, keepdims)
    }
    precision(Wide)
}

/// The dtype that sums and products are taken in.
pub fn summed(dtype: DType) -> DType {
    match dtype {
        DType::Bool | DType::I8 | DType::I16 | DType::I32 => DType::I64,
        DType::U8 | DType::U16 | DType::U32 => DType::U64,
        other @ (DType::I64 | DType::U64 | DType::F16 | DType::BF16 | DType::F32 | DType::F64) => {
            other
        }
    }
}

/// The axes a user named, sorted. A scalar counts as a vector of one element: it has the axis 0, or
/// −1, which is none of its shape.
pub fn axes_of(x: Expr<'_>, axis: Option<&[i64]>, op: &str) -> Axes {
    if let (0, Some([0 | -1])) = (x.rank(), axis) {
        return Axes::new();
    }
    named_axes(x, axis, op)
}

/// The same, of which a scalar has none.
pub fn named_axes(x: Expr<'_>, axis: Option<&[i64]>, op: &str) -> Axes {
    let mut axes = x.shape().axes(axis, op).or_throw();
    axes.sort_unstable();
    axes
}

fn reduce<'e>(
    x: Expr<'e>,
    kind: Reduction,
    axis: Option<&[i64]>,
    keepdims: bool,
    op: &str,
) -> Expr<'e> {
    let axes = axes_of(x, axis, op);
    kept(x.reduce(kind, &axes), &axes, keepdims)
}

/// A reduced value with its axes put back where the caller keeps them.
fn kept<'e>(y: Expr<'e>, axes: &[usize], keepdims: bool) -> Expr<'e> {
    if keepdims { y.restore(axes) } else { y }
}

fn nonzero(x: Expr<'_>) -> Expr<'_> {
    if x.dtype() == DType::Bool { x.tensor() } else { x.not_equal(x.scalar(false)) }
}

/// How many elements a reduction joins.
pub fn joined<'e>(x: Expr<'e>, axes: &[usize]) -> Expr<'e> {
    x.count(axes.iter().fold(Dim::ONE, |n, &i| n * x.size(i)))
}

/// Half floats in float32, the others as they are.
fn wide(x: Expr<'_>) -> Expr<'_> {
    if x.dtype().size() < 4 { x.cast(DType::F32) } else { x }
}

fn average<'e>(x: Expr<'e>, axes: &[usize]) -> Expr<'e> {
    x.reduce(Reduction::Sum, axes) / joined(x, axes)
}

/// What a sum of squares is divided by.
fn freedom<'e>(x: Expr<'e>, axes: &[usize], correction: f64) -> Expr<'e> {
    let rest = joined(x, axes).calculate(Calculation::Sub, x.scalar(correction));
    rest.calculate(Calculation::Max, x.scalar(0.0))
}

fn centred<'e>(x: Expr<'e>, axes: &[usize]) -> Expr<'e> {
    x - average(x, axes).restore(axes)
}

fn variance<'e>(x: Expr<'e>, axes: &[usize], correction: f64) -> Expr<'e> {
    centred(x, axes).square().reduce(Reduction::Sum, axes) / freedom(x, axes, correction)
}

fn finite_or_zero(x: Expr<'_>) -> Expr<'_> {
    x.isfinite().select(x, x.scalar(0.0))
}

/// The norm of an order over axes, which disappear.
pub(super) fn norm<'e>(x: Expr<'e>, axes: &[usize], order: f64) -> Expr<'e> {
    let sum = |x: Expr<'e>| x.reduce(Reduction::Sum, axes);
    if order == 2.0 {
        // The root of 0 has an infinite slope: it is taken elsewhere, so that the gradient is 0.
        let squares = sum(x.square());
        let zero = squares.equal(squares.scalar(0.0));
        zero.select(x.scalar(0.0), zero.select(x.scalar(1.0), squares).sqrt())
    } else if order == 1.0 {
        sum(x.abs())
    } else if order == 0.0 {
        sum(nonzero(x).cast(x.dtype()))
    } else if order == f64::INFINITY {
        x.abs().reduce(Reduction::Max, axes)
    } else if order == f64::NEG_INFINITY {
        x.abs().reduce(Reduction::Min, axes)
    } else if order.is_finite() {
        sum(x.abs().pow(x.scalar(order))).pow(x.scalar(1.0 / order))
    } else {
        throw(error::bad_value("vector_norm", "ord must be a number", "got nan"))
    }
}
