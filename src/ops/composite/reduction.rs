//! Reductions and what is built on them.

use crate::dtype::DType;
use crate::ops::attributes::Reduction;
use crate::ops::emit::{Expr, OrThrow};
use crate::shape::Axes;

composite! {
    /// Sum of elements.
    ///
    /// `axis`: an axis, a tuple of axes, or None for all. Integers and bools are summed in int64
    /// (uint64 for unsigned). An empty sum is 0.
    top method sum(x: Tensor, axis: Axes = None; keepdims: Bool = False, dtype: MaybeDtype = None) -> One {
        let x = x.tensor();
        let x = x.cast(dtype.unwrap_or(summed(x.dtype())));
        reduce(x, Reduction::Sum, axis.as_deref(), keepdims, "sum")
    }

    /// Largest element; NaN wins.
    ///
    /// Of no elements it is an error. The gradient is shared equally among equal largest elements.
    top method max(x: Tensor, axis: Axes = None; keepdims: Bool = False) -> One {
        reduce(x, Reduction::Max, axis.as_deref(), keepdims, "max")
    }
}

/// The dtype that sums and products are taken in.
pub fn summed(dtype: DType) -> DType {
    match dtype {
        DType::Bool | DType::I8 | DType::I16 | DType::I32 => DType::I64,
        DType::U8 | DType::U16 | DType::U32 => DType::U64,
        other => other,
    }
}

/// The axes a user named, sorted.
pub fn axes_of(x: Expr<'_>, axis: Option<&[i64]>, op: &str) -> Axes {
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
    if keepdims { x.reduce_keep(kind, &axes) } else { x.reduce(kind, &axes) }
}
