//! Random numbers: a key and a shape determine every element.
//!
//! Everything derives from the counter-based bits of one key (Threefry-2x32, 20 rounds), so results
//! do not depend on threads or devices. A key drawn from the global generator is an operand like
//! others.

use std::f64::consts::SQRT_2;

use super::{shape_of, within};
use crate::dtype::{DType, Scalar};
use crate::error;
use crate::ops::attributes::ArgReduction;
use crate::ops::emit::{Expr, throw};
use crate::ops::op::{Op, Type};
use crate::shape::{Extent, Shape};

composite! {
    /// Random bits.
    ///
    /// `dtype`: uint32, which None stands for, or uint64. `key`: None draws one from the global
    /// generator.
    random function bits(
        shape: Shape = (); dtype: MaybeDtype = None, key: Key = None, device: MaybeDevice = None,
    ) -> One inline {
        bits_of("bits", key, Type::new(dtype.unwrap_or(DType::U32), shape_of(&shape, "bits")))
    }

    /// Uniform numbers in [low, high).
    ///
    /// `dtype`: floating, float32 where None; elements are multiples of 2⁻²⁴ of the interval (2⁻⁵³
    /// in float64, 2⁻¹¹ in float16, 2⁻⁸ in bfloat16). `key`: None draws one from the global
    /// generator.
    random function uniform(
        shape: Shape = (); low: Number = 0.0, high: Number = 1.0, dtype: MaybeDtype = None,
        key: Key = None, device: MaybeDevice = None, requires_grad: Bool = False,
    ) -> One inline {
        let dtype = floating("uniform", dtype);
        let shape = shape_of(&shape, "uniform");
        [low, high].iter().for_each(|x| within("uniform", &x.shape(), &shape));
        let u = unit(key, dtype, shape, "uniform");
        let is = |x: Expr, value| x.as_scalar().is_some_and(|s| s.as_f64() == value);
        if is(low, 0.0) && is(high, 1.0) {
            u
        } else {
            ordered("uniform", low, high);
            let (low, high) = (low.cast(dtype), high.cast(dtype));
            let y = u * (high - low) + low;
            // The sum may round up to the bound, which is excluded.
            y.less(high).select(y, low)
        }
    }

    /// Normal numbers.
    ///
    /// `√2 erfinv(u)` of uniform `u` in (-1, 1), times `std`, plus `mean`; in float32 at most 5.6
    /// standard deviations from the mean. `dtype`: floating, float32 where None; half floats are
    /// rounded from float32.
    /// `key`: None draws one from the global generator.
    random function normal(
        shape: Shape = (); mean: Number = 0.0, std: Number = 1.0, dtype: MaybeDtype = None,
        key: Key = None, device: MaybeDevice = None, requires_grad: Bool = False,
    ) -> One inline {
        let dtype = floating("normal", dtype);
        let full = full_of(dtype);
        let shape = shape_of(&shape, "normal");
        [mean, std].iter().for_each(|x| within("normal", &x.shape(), &shape));
        let z = symmetric(key, full, shape).erfinv();
        let y = z * (std.cast(full) * SQRT_2);
        (y + mean.cast(full)).cast(dtype)
    }

    /// Random integers in [low, high), or [0, low) where `high` is None.
    ///
    /// Remainders of 64 random bits: no integer is more likely than another by more than the size
    /// of the interval over 2⁶⁴. `dtype`: int64 where None. `key`: None draws one from the global
    /// generator. Raises ValueError for an empty interval, OverflowError where `dtype` does not
    /// hold it.
    ///
    /// >>> import wengert as wg
    /// >>> x = wg.random.integers(-1, 2, (1000,))
    /// >>> (x.min().item(), x.max().item())
    /// (-1, 1)
    random function integers(
        low: Int, high: MaybeInt = None, shape: Shape = (); dtype: MaybeDtype = None, key: Key = None,
        device: MaybeDevice = None,
    ) -> One inline {
        let (op, dtype) = ("integers", dtype.unwrap_or(DType::I64));
        if !dtype.is_int() {
            throw(error::wrong_dtype(op, "the result", dtype, "an integer"));
        }
        let (low, high) = high.map_or((0, low), |high| (low, high));
        if low >= high {
            throw(error::bad_value(op, "the interval is empty", format!("[{low}, {high})")));
        }
        for bound in [low, high - 1] {
            if !Scalar::Int(bound).fits(dtype) {
                throw(error::overflow(op, bound, dtype));
            }
        }
        let bits = bits_of(op, key, Type::new(DType::U64, shape_of(&shape, op)));
        let offset = bits.remainder(bits.scalar(Scalar::Uint(high.wrapping_sub(low) as u64)));
        if low == 0 { offset.cast(dtype) } else { (offset.cast(DType::I64) + bits.scalar(low)).cast(dtype) }
    }

    /// The integers 0 … n - 1 in random order (int64).
    ///
    /// `key`: None draws one from the global generator. Raises ValueError where `n` is negative.
    ///
    /// >>> import wengert as wg
    /// >>> wg.random.permutation(5).sort().tolist()
    /// [0, 1, 2, 3, 4]
    random function permutation(n: Size; key: Key = None, device: MaybeDevice = None) -> One inline {
        let bits = bits_of("permutation", key, Type::new(DType::U64, shape_of(&[n], "permutation")));
        bits.emit(Op::ArgSort { axis: 0, descending: false })
    }

    /// True with probability `p`.
    ///
    /// `p` is floating and broadcasts to `shape`, which is its own where None. `key`: None draws
    /// one from the global generator.
    random function bernoulli(p: FloatTensor = 0.5, shape: MaybeSizes = None; key: Key = None) -> One inline {
        let sizes = shape.map_or(p.shape(), |shape| shape_of(&shape, "bernoulli"));
        within("bernoulli", &p.shape(), &sizes);
        unit(key, p.dtype(), sizes, "bernoulli").less(p)
    }

    /// Classes drawn with probabilities `softmax(logits)` along `axis` (int64).
    ///
    /// `shape` is that of the result, to which the other axes of `logits` broadcast, and theirs
    /// where None. `key`: None draws one from the global generator.
    ///
    /// The largest of `logits - log(-log u)` is distributed so (Gumbel, 1954); in float32 `u` are
    /// odd multiples of 2⁻²⁴.
    random function categorical(
        logits: FloatTensor, axis: Int = -1, shape: MaybeSizes = None; key: Key = None,
    ) -> One {
        let op = "categorical";
        let axis = logits.axis(axis, op);
        let batch = logits.shape().reduce(&[axis], false);
        let mut sizes = shape.map_or(batch.clone(), |shape| shape_of(&shape, op));
        within(op, &batch, &sizes);
        let order = (0..logits.rank()).filter(|&i| i != axis).chain([axis]).collect();
        let (last, classes) = (sizes.rank(), logits.size(axis));
        sizes.dims_mut().push(classes);
        let full = full_of(logits.dtype());
        let scores = logits.permute(order).cast(full) + gumbel(key, full, sizes);
        scores.emit(Op::ArgReduce(ArgReduction::Max, last))
    }

    /// `n` keys (n, 2) derived from one (uint32): independent streams.
    ///
    /// `key`: None draws one from the global generator. Use a key either to split or to draw
    /// numbers.
    random function split(key: Key = None, n: Int = 2) -> One inline {
        bits_of("split", key, Type::new(DType::U32, shape_of(&[n.into(), Extent::Number(2)], "split")))
    }
}

/// Random bits of a type under a key.
pub fn bits_of<'e>(op: &str, key: Expr<'e>, ty: Type) -> Expr<'e> {
    if key.dtype() != DType::U32 || !key.shape().equals(&Shape::of(&[2])) {
        let facts = format!("got {} of shape {}", key.dtype(), key.shape());
        throw(error::bad_shape(op, "a key is uint32 of shape (2,)", facts));
    }
    if !matches!(ty.dtype, DType::U32 | DType::U64) {
        throw(error::wrong_dtype(op, "the result", ty.dtype, "uint32 or uint64"));
    }
    key.emit(Op::RandomBits(ty))
}

/// Numbers of Gumbel's distribution: `-log(-log u)`, in float32 or float64.
pub(super) fn gumbel(key: Expr<'_>, dtype: DType, shape: Shape) -> Expr<'_> {
    -((-(open_unit(key, dtype, shape).log())).log())
}

/// Odd multiples of 2⁻ᵏ⁻¹ in (0, 1), float32 or float64.
pub(super) fn open_unit(key: Expr<'_>, dtype: DType, shape: Shape) -> Expr<'_> {
    symmetric(key, dtype, shape) * 0.5 + 0.5
}

/// Multiples of 2⁻ᵏ in [0, 1), with k the digits of the dtype's significand.
pub(super) fn unit<'e>(key: Expr<'e>, dtype: DType, shape: Shape, op: &str) -> Expr<'e> {
    let (source, digits) = match dtype {
        DType::F64 => (DType::U64, 53),
        DType::F16 => (DType::U32, 11),
        DType::BF16 => (DType::U32, 8),
        DType::Bool
        | DType::I8
        | DType::I16
        | DType::I32
        | DType::I64
        | DType::U8
        | DType::U16
        | DType::U32
        | DType::U64
        | DType::F32 => (DType::U32, 24),
    };
    top(op, key, source, digits, shape).cast(dtype) * 2f64.powi(-digits)
}

/// Odd multiples of 2⁻ᵏ in (-1, 1), float32 or float64.
///
/// With `j` of k bits this is `(2 j + 1 - 2ᵏ) 2⁻ᵏ`, exact in each step.
pub(super) fn symmetric(key: Expr<'_>, dtype: DType, shape: Shape) -> Expr<'_> {
    let (source, digits) = if dtype == DType::F64 { (DType::U64, 53) } else { (DType::U32, 24) };
    let j = top("random", key, source, digits, shape).cast(dtype);
    j * 2f64.powi(1 - digits) - (1.0 - 2f64.powi(-digits))
}

/// The highest random bits as small integers.
fn top<'e>(op: &str, key: Expr<'e>, dtype: DType, digits: i32, shape: Shape) -> Expr<'e> {
    let bits = bits_of(op, key, Type::new(dtype, shape));
    bits.bitwise_right_shift(bits.scalar(8 * dtype.size() as i64 - i64::from(digits)))
}

/// What numbers of a dtype are calculated in, to be rounded once.
pub(super) fn full_of(dtype: DType) -> DType {
    if dtype == DType::F64 { dtype } else { DType::F32 }
}

/// A floating dtype, float32 by default.
pub(super) fn floating(op: &str, dtype: Option<DType>) -> DType {
    let dtype = dtype.unwrap_or(DType::F32);
    if !dtype.is_float() {
        throw(error::wrong_dtype(op, "the result", dtype, "floating"));
    }
    dtype
}

/// Refuses bounds in the wrong order, as far as they are known.
pub(super) fn ordered(op: &str, low: Expr<'_>, high: Expr<'_>) {
    if let (Some(a), Some(b)) = (low.as_scalar(), high.as_scalar())
        && (a.as_f64() > b.as_f64() || a.as_f64().is_nan() || b.as_f64().is_nan())
    {
        throw(error::bad_value(op, "low must not be above high", format!("got {a} and {b}")));
    }
}
