//! Arithmetic over elementwise ops, and casts.

use super::promoted;
use crate::dtype::DType;
use crate::error;
use crate::ops::attributes::Reduction;
use crate::ops::emit::{Expr, throw};
use crate::shape::Axes;

composite! {
    /// The same values in another dtype.
    ///
    /// Floats become integers by truncation, saturating, NaN as 0; integers wrap; everything but
    /// zero is True. The gradient of a cast between floats is cast back; others have none. Values
    /// never change, so `copy` makes no difference.
    ///
    /// >>> import wengert as wg
    /// >>> wg.tensor([1.7, -1.7]).astype(wg.int32).tolist()
    /// [1, -1]
    top method astype(x: Tensor, dtype: Dtype; copy: Bool = True, device: MaybeDevice = None) -> One inline {
        x.cast(dtype)
    }

    /// Quotient of two tensors, element by element: what `/` does.
    ///
    /// Integers and truth values become float32 first; division by zero gives inf or NaN.
    ///
    /// >>> import wengert as wg
    /// >>> wg.divide(wg.tensor([1, 3]), 2).tolist()
    /// [0.5, 1.5]
    top method divide(a: Tensor, b: Tensor) -> One inline {
        if [a, b].iter().any(|x| !x.is_number() && x.dtype().is_float()) {
            a.quotient(b)
        } else {
            a.cast(DType::F32).quotient(b.cast(DType::F32))
        }
    }
    also(div, true_divide)

    /// The next number after `a` on the way to `b`, in their common dtype.
    ///
    /// Where both are equal it is `b`; after the largest finite number comes infinity. Gradient:
    /// that of `a` alone, since the step does not depend on it.
    ///
    /// >>> import wengert as wg
    /// >>> wg.nextafter(wg.tensor(1.0), 2.0).item() - 1.0 == wg.finfo(wg.float32).eps
    /// True
    top function nextafter(a: FloatOrNumber, b: FloatOrNumber) -> One inline {
        let pair = promoted(&[a, b], "nextafter");
        let (a, b) = (pair[0], pair[1]);
        let dtype = a.dtype();
        if !dtype.is_float() {
            throw(error::wrong_dtype("nextafter", "a", dtype, "floating"));
        }
        if dtype == DType::F16 {
            a.next_float16(b)
        } else if dtype == DType::BF16 {
            a.next_bfloat16(b)
        } else {
            a.next_float(b)
        }
    }

    /// Each element, unchanged: what unary `+` does.
    top method positive(x: NumericTensor) -> One inline {
        x.tensor()
    }

    /// Elements limited to the range from `min` to `max`; NaN stays.
    ///
    /// Either bound may be None. Bounds broadcast and take part in promotion. Gradient: to the
    /// element inside the range and at its ends, to the bound outside.
    ///
    /// >>> import wengert as wg
    /// >>> wg.clip(wg.tensor([-2.0, 0.5, 3.0]), 0.0, 1.0).tolist()
    /// [0.0, 0.5, 1.0]
    top method clip(
        x: NumericTensor, min: MaybeNumericTensor = None, max: MaybeNumericTensor = None,
    ) -> One {
        let x = x.tensor();
        // What lies within a bound is taken as it is, so that a tie is the element's alone.
        let x = min.map_or(x, |min| x.greater_equal(min).select(x, x.maximum(min)));
        max.map_or(x, |max| x.less_equal(max).select(x, x.minimum(max)))
    }
    also(clamp)

    /// `a + (b - a) * weight`: linear interpolation from `a` to `b`.
    top method lerp(a: FloatTensor, b: FloatTensor, weight: FloatTensor) -> One {
        a + (b - a) * weight
    }

    /// Whether elements are equal within `atol + rtol * abs(b)`.
    ///
    /// Equal infinities are close; NaN is close to nothing, except to NaN with `equal_nan`.
    /// Integers are compared in float64; on devices without it their difference is exact and the
    /// bound is float32.
    top method isclose(
        a: Tensor, b: Tensor;
        rtol: Float = 1e-5, atol: Float = 1e-8, equal_nan: Bool = False,
    ) -> One inline {
        let pair = promoted(&[a, b], "isclose");
        let (dtype, cx) = (pair[0].dtype(), a.cx());
        let held = if dtype.is_float() {
            dtype
        } else if cx.has_float64() && !cx.is_exported() {
            DType::F64
        } else if dtype.is_unsigned() {
            DType::U64
        } else {
            DType::I64
        };
        let (a, b) = (pair[0].cast(held), pair[1].cast(held));
        isclose_alike(cx, a, b, rtol, atol, equal_nan).swap_remove(0)
    }

    /// Whether all elements are equal within `atol + rtol * abs(b)`, as `isclose` says; shape ().
    top method allclose(
        a: Tensor, b: Tensor;
        rtol: Float = 1e-5, atol: Float = 1e-8, equal_nan: Bool = False,
    ) -> One inline {
        let close = isclose(a.cx(), a, b, rtol, atol, equal_nan)[0];
        close.reduce(Reduction::All, &(0..close.rank()).collect::<Axes>())
    }

    /// `isclose` of operands of one dtype: floating, int64 or uint64.
    hidden function isclose_alike(
        a: Tensor, b: Tensor; rtol: Float, atol: Float, equal_nan: Bool,
    ) -> One {
        if a.dtype().is_float() {
            let near = (a - b).abs().less_equal(b.abs() * rtol + atol);
            let close = a.equal(b).logical_or(near.logical_and(b.isfinite()));
            if equal_nan { close.logical_or(a.isnan().logical_and(b.isnan())) } else { close }
        } else {
            // What wraps is right again without a sign.
            let size = |x: Expr<'e>| x.cast(DType::U64).cast(DType::F32);
            size(a.maximum(b) - a.minimum(b)).less_equal(size(b.abs()) * rtol + atol)
        }
    }

    /// Numbers in the place of NaN and infinities.
    ///
    /// `posinf`, `neginf`: where None, the largest and smallest finite number of the dtype.
    /// Integers stay as they are. Replaced elements have no gradient.
    top method nan_to_num(
        x: NumericTensor;
        nan: Float = 0.0, posinf: MaybeFloat = None, neginf: MaybeFloat = None,
    ) -> One {
        let x = x.tensor();
        if x.dtype().is_float() {
            let largest = largest(x.dtype());
            let high = x.scalar(posinf.unwrap_or(largest)).cast(x.dtype());
            let low = x.scalar(neginf.unwrap_or(-largest)).cast(x.dtype());
            let infinite = x.greater(x.scalar(0.0)).select(high, low);
            x.isnan().select(x.scalar(nan), x.isinf().select(infinite, x))
        } else {
            x
        }
    }

    /// Degrees as radians.
    top method deg2rad(x: FloatTensor) -> One inline {
        x * (std::f64::consts::PI / 180.0)
    }
    also(radians)

    /// Radians as degrees.
    top method rad2deg(x: FloatTensor) -> One inline {
        x * (180.0 / std::f64::consts::PI)
    }
    also(degrees)
}

/// The largest finite number of a floating dtype.
fn largest(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 65504.0,
        DType::BF16 => (2.0 - 1.0 / 128.0) * f64::from(2.0_f32.powi(127)),
        DType::F64 => f64::MAX,
        DType::Bool
        | DType::I8
        | DType::I16
        | DType::I32
        | DType::I64
        | DType::U8
        | DType::U16
        | DType::U32
        | DType::U64
        | DType::F32 => f32::MAX.into(),
    }
}
