//! Tensors made from sizes and numbers.

use super::{number, shape_of, size_of};
use crate::dtype::{Class, DType, Numeric, Scalar};
use crate::error;
use crate::ops::attributes::ScatterMode;
use crate::ops::emit::{Arg, Emit, Expr, OrThrow, throw};
use crate::ops::number::{Calculation, admit_size};
use crate::shape::{Dim, Shape};

composite! {
    /// A tensor of zeros.
    ///
    /// `shape`: an int or a tuple of ints. `dtype`: float32 where None.
    ///
    /// >>> import wengert as wg
    /// >>> wg.zeros((2, 2)).tolist()
    /// [[0.0, 0.0], [0.0, 0.0]]
    top function zeros(
        shape: Shape;
        dtype: MaybeDtype = None, device: MaybeDevice = None, requires_grad: Bool = False,
    ) -> One inline |cx| {
        number(cx, false).full(dtype.unwrap_or(DType::F32), shape_of(&shape, "zeros"))
    }

    /// A tensor of ones.
    ///
    /// `shape`: an int or a tuple of ints. `dtype`: float32 where None.
    ///
    /// >>> import wengert as wg
    /// >>> wg.ones(3).tolist()
    /// [1.0, 1.0, 1.0]
    top function ones(
        shape: Shape;
        dtype: MaybeDtype = None, device: MaybeDevice = None, requires_grad: Bool = False,
    ) -> One inline |cx| {
        number(cx, true).full(dtype.unwrap_or(DType::F32), shape_of(&shape, "ones"))
    }

    /// A tensor whose values do not matter; they are zeros.
    ///
    /// `shape`: an int or a tuple of ints. `dtype`: float32 where None.
    top function empty(
        shape: Shape;
        dtype: MaybeDtype = None, device: MaybeDevice = None, requires_grad: Bool = False,
    ) -> One inline |cx| {
        number(cx, false).full(dtype.unwrap_or(DType::F32), shape_of(&shape, "empty"))
    }

    /// One value everywhere.
    ///
    /// `shape`: an int or a tuple of ints. `fill_value`: a number, or a tensor that broadcasts to
    /// the shape. `dtype`: where None, that of a tensor, and for numbers float32, int64 or bool.
    ///
    /// >>> import wengert as wg
    /// >>> wg.full((2,), 7).tolist()
    /// [7, 7]
    top function full(
        shape: Sizes, fill_value: Number;
        dtype: MaybeDtype = None, device: MaybeDevice = None, requires_grad: Bool = False,
    ) -> One inline {
        let value = match fill_value.size_behind() {
            Some(size) if dtype.is_none_or(|dtype| !dtype.is_float()) => {
                admit_size("full", size, dtype.unwrap_or(DType::I64)).or_throw();
                fill_value.whole(size)
            }
            _ => fill_value,
        };
        filled(value, dtype.unwrap_or(value.dtype()), shape_of(&shape, "full"), "full")
    }

    /// Zeros in the shape of a tensor, and in its dtype where `dtype` is None.
    top function zeros_like(
        x: Tensor;
        dtype: MaybeDtype = None, device: MaybeDevice = None, requires_grad: Bool = False,
    ) -> One inline {
        x.scalar(false).full(dtype.unwrap_or(x.dtype()), x.shape())
    }

    /// Ones in the shape of a tensor, and in its dtype where `dtype` is None.
    top function ones_like(
        x: Tensor;
        dtype: MaybeDtype = None, device: MaybeDevice = None, requires_grad: Bool = False,
    ) -> One inline {
        x.scalar(true).full(dtype.unwrap_or(x.dtype()), x.shape())
    }

    /// A tensor in the shape of another, whose values do not matter; they are zeros.
    top function empty_like(
        x: Tensor;
        dtype: MaybeDtype = None, device: MaybeDevice = None, requires_grad: Bool = False,
    ) -> One inline {
        x.scalar(false).full(dtype.unwrap_or(x.dtype()), x.shape())
    }

    /// One value everywhere, in the shape of a tensor, and in its dtype where `dtype` is None.
    top function full_like(
        x: Tensor, fill_value: Number;
        dtype: MaybeDtype = None, device: MaybeDevice = None, requires_grad: Bool = False,
    ) -> One inline {
        filled(fill_value, dtype.unwrap_or(x.dtype()), x.shape(), "full_like")
    }

    /// Numbers from `start` up to, but not including, `stop`, `step` apart.
    ///
    /// With one number, it is `stop` and the start is 0. `dtype`: where None, int64 for ints,
    /// float32 where a float is given. Floats are `start + i * step` in float64 (in float32 on
    /// devices without it), then rounded to the dtype. A step of 0 is an error; one that leads away
    /// from `stop` gives no elements.
    ///
    /// >>> import wengert as wg
    /// >>> wg.arange(2, 8, 2).tolist()
    /// [2, 4, 6]
    top function arange(
        start: Number, stop: MaybeNumber = None, step: Number = 1;
        dtype: MaybeDtype = None, device: MaybeDevice = None, requires_grad: Bool = False,
    ) -> One inline |cx| {
        let bounds = stop.map_or((number(cx, 0), start), |stop| (start, stop));
        counted_by_size(bounds, step, dtype).unwrap_or_else(|| {
            let (start, stop) = match stop {
                Some(stop) => (static_number(start, "arange"), static_number(stop, "arange")),
                None => (Scalar::Int(0), static_number(start, "arange")),
            };
            counted(cx, start, stop, static_number(step, "arange"), dtype)
        })
    }

    /// `num` numbers from `start` to `stop` in equal steps.
    ///
    /// `endpoint`: whether `stop` is the last of them. `dtype`: float32 where None. Values are
    /// `start + i * step` in float64 (in float32 on devices without it), then rounded to the dtype;
    /// the end point is exact.
    ///
    /// >>> import wengert as wg
    /// >>> wg.linspace(0, 1, 5).tolist()
    /// [0.0, 0.25, 0.5, 0.75, 1.0]
    top function linspace(
        start: Number, stop: Number, num: Size;
        endpoint: Bool = True,
        dtype: MaybeDtype = None, device: MaybeDevice = None, requires_grad: Bool = False,
    ) -> One inline |cx| {
        let n = size_of(num, 0, "num", "linspace");
        let first = static_number(start, "linspace").as_f64();
        let last = static_number(stop, "linspace").as_f64();
        let steps = if endpoint { n.max(Dim::new(2)) - Dim::ONE } else { n.max(Dim::ONE) };
        let steps = number(cx, 0).count(steps);
        let step = steps.scalar(last - first).calculate(Calculation::Div, steps);
        let shape = shape_of(&[num], "linspace");
        let float = if n.known().is_none() && cx.is_exported() { DType::F32 } else { exact_float(cx) };
        let i = number(cx, 0).iota(float, shape.clone(), 0);
        let y = i * step + first;
        let place = match float == DType::F64 {
            true => (i, steps),
            // Counts beyond 2²⁴ are not exact in float32.
            false => {
                let behind = n.max(Dim::new(2)) - Dim::ONE;
                (i.iota(DType::I64, shape, 0), i.whole(behind))
            }
        };
        // Of one element, which is the first, no place is the last one.
        let ends = endpoint && n.known().is_none_or(|n| n > 1);
        let y = if ends { place.0.equal(place.1).select(i.scalar(last), y) } else { y };
        y.cast(dtype.unwrap_or(DType::F32))
    }

    /// A matrix with ones on its `k`-th diagonal and zeros elsewhere.
    ///
    /// `n` rows and `m` columns (`n` where None). `dtype`: float32 where None.
    ///
    /// >>> import wengert as wg
    /// >>> wg.eye(2).tolist()
    /// [[1.0, 0.0], [0.0, 1.0]]
    top function eye(
        n: Size, m: MaybeSize = None;
        k: Int = 0,
        dtype: MaybeDtype = None, device: MaybeDevice = None, requires_grad: Bool = False,
    ) -> One inline |cx| {
        let shape = shape_of(&[n, m.unwrap_or(n)], "eye");
        let (row, column) = places(number(cx, 0), &shape);
        (row + row.scalar(offset(k))).equal(column).cast(dtype.unwrap_or(DType::F32))
    }
    also(identity)

    /// The elements of each matrix on and below its `k`-th diagonal; zeros above.
    ///
    /// `x`: shape (…, rows, columns).
    top method tril(x: Tensor; k: Int = 0) -> One inline {
        let (row, column) = places_of(x, "tril");
        (row + row.scalar(offset(k))).greater_equal(column).select(x, x.scalar(false))
    }

    /// The elements of each matrix on and above its `k`-th diagonal; zeros below.
    ///
    /// `x`: shape (…, rows, columns).
    top method triu(x: Tensor; k: Int = 0) -> One inline {
        let (row, column) = places_of(x, "triu");
        (row + row.scalar(offset(k))).less_equal(column).select(x, x.scalar(false))
    }

    /// Coordinate grids: the `i`-th result repeats the `i`-th vector along all other axes.
    ///
    /// `indexing`: "xy" (the first two axes are exchanged) or "ij".
    top function meshgrid(arrays: Tensors; indexing: Text = "xy") -> Many inline {
        if indexing != "xy" && indexing != "ij" {
            throw(error::bad_value("meshgrid", "indexing must be \"xy\" or \"ij\"", indexing));
        }
        grids(&arrays, indexing == "xy")
    }

    /// Indices as rows of zeros with a one at the index.
    ///
    /// `x`: integers below `classes`; negative ones count from the end. The result has a last axis
    /// of size `classes`. `dtype`: float32 where None. An index out of bounds is an `IndexError`.
    ///
    /// >>> import wengert as wg
    /// >>> wg.one_hot(wg.tensor([0, 2]), 3).tolist()
    /// [[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]
    top function one_hot(x: IntTensor, classes: Size; dtype: MaybeDtype = None) -> One inline {
        let n = size_of(classes, 0, "classes", "one_hot");
        let last = x.rank();
        let index = x.cast(DType::I64).unsqueeze(last);
        let mut shape = x.shape();
        shape.dims_mut().push(n);
        let dtype = dtype.unwrap_or(DType::F32);
        let one = x.scalar(true).full(dtype, Shape::scalar());
        x.scalar(false).full(dtype, shape).scatter(ScatterMode::Set, one, &index.along(last))
    }
    indexes(Classes)
}

/// A value in a dtype and shape.
fn filled<'e>(value: Expr<'e>, dtype: DType, shape: Shape, op: &str) -> Expr<'e> {
    match value.as_scalar() {
        Some(number) if !number.fits(dtype) => throw(error::overflow(op, number, dtype)),
        Some(_) => value.full(dtype, shape),
        None => value.cast(dtype).broadcast(shape),
    }
}

/// The widest float of the device.
fn exact_float(cx: &dyn Emit) -> DType {
    if cx.has_float64() { DType::F64 } else { DType::F32 }
}

/// A number that decides a size, so it cannot be a tensor.
pub(super) fn static_number(x: Expr<'_>, op: &str) -> Scalar {
    let tensor = || error::bad_type(op, "expected a Python number", "got a tensor");
    x.as_scalar().unwrap_or_else(|| throw(tensor()))
}

/// Whole numbers between bounds that are sizes of a graph, upwards; `None` where they are not.
fn counted_by_size<'e>(
    (start, stop): (Expr<'e>, Expr<'e>),
    step: Expr<'e>,
    dtype: Option<DType>,
) -> Option<Expr<'e>> {
    start.size_behind().or_else(|| stop.size_behind())?;
    let size = |x: Expr<'e>| match (x.size_behind(), x.arg()) {
        (None, Arg::Number(Numeric::Known(Scalar::Int(n)))) => {
            usize::try_from(n).ok().map(Dim::new)
        }
        (found, _) => found,
    };
    let (a, b, s) = (size(start)?, size(stop)?, size(step).filter(|s| !s.equals(0))?);
    let n = if a.is_at_most(b) { (b - a).div_ceil(s) } else { Dim::new(0) };
    let (shape, dtype) = (Shape::from_dims(&[n]), dtype.unwrap_or(DType::I64));
    let last = a + (n.max(Dim::ONE) - Dim::ONE) * s;
    if let Err(refusal) = admit_size("arange", last, dtype)
        && !n.equals(0)
    {
        throw(refusal);
    }
    if a.same(Dim::new(0)) && s.same(Dim::ONE) {
        return Some(start.iota(dtype, shape, 0));
    }
    let exact = if dtype.is_float() { exact_float(start.cx()) } else { DType::I64 };
    let part = |d: Dim| if dtype.is_float() { start.count(d) } else { start.whole(d) };
    Some((start.iota(exact, shape, 0) * part(s) + part(a)).cast(dtype))
}

fn counted<'e>(
    cx: &'e dyn Emit,
    start: Scalar,
    stop: Scalar,
    step: Scalar,
    dtype: Option<DType>,
) -> Expr<'e> {
    if step.as_f64() == 0.0 {
        throw(error::bad_value("arange", "the step must not be zero", format!("got {step}")));
    }
    let floats = [start, stop, step].iter().any(|x| x.class() == Class::Float);
    let dtype = dtype.unwrap_or(if floats { DType::F32 } else { DType::I64 });
    let n: i128 = if floats {
        float_count(start.as_f64(), stop.as_f64(), step.as_f64()).into()
    } else {
        let (a, b, s) = (whole(start), whole(stop), whole(step));
        let n = if s > 0 { (b - a + s - 1) / s } else { (a - b - s - 1) / -s }.max(0);
        let last = integer(a + (n - 1).max(0) * s);
        if let Some(value) = [start, last].into_iter().find(|x| n > 0 && !x.fits(dtype)) {
            throw(error::overflow("arange", value, dtype));
        }
        n
    };
    let Some(n) = usize::try_from(n).ok().filter(|n| n >> 60 == 0) else {
        throw(error::too_large("arange", format!("({n},)")));
    };
    let shape = Shape::of(&[n]);
    if whole_number(start) == Some(0) && whole_number(step) == Some(1) {
        return number(cx, 0).iota(dtype, shape, 0);
    }
    let exact = if floats || dtype.is_float() { exact_float(cx) } else { DType::I64 };
    let i = number(cx, 0).iota(exact, shape, 0);
    (i * number(cx, step) + number(cx, start)).cast(dtype)
}

fn whole(x: Scalar) -> i128 {
    match x {
        Scalar::Uint(n) => n.into(),
        Scalar::Int(n) => n.into(),
        other @ (Scalar::Bool(_) | Scalar::Float(_)) => other.as_f64() as i128,
    }
}

/// A whole number as a scalar; between a start and a stop every number fits.
fn integer(n: i128) -> Scalar {
    i64::try_from(n).map_or_else(|_| Scalar::Uint(n as u64), Scalar::Int)
}

fn whole_number(x: Scalar) -> Option<i128> {
    (x.as_f64().fract() == 0.0).then(|| whole(x))
}

/// `ceil((stop - start) / step)`, at least 0.
fn float_count(start: f64, stop: f64, step: f64) -> i64 {
    let n = ((stop - start) / step).ceil().max(0.0);
    if !(n < 9e18 && start.is_finite() && stop.is_finite()) {
        let facts = format!("from {start:?} to {stop:?} in steps of {step:?}");
        throw(error::bad_value("arange", "the count of elements is not finite", facts));
    }
    n as i64
}

/// The number of a diagonal, to add to that of a row: beyond all sizes every one means the same.
fn offset(k: i64) -> i64 {
    const FAR: i64 = Dim::MOST as i64;
    k.clamp(-FAR, FAR)
}

/// Row and column numbers of a matrix shape, to broadcast.
fn places<'e>(x: Expr<'e>, matrix: &Shape) -> (Expr<'e>, Expr<'e>) {
    let (rows, columns) = (matrix[0], matrix[1]);
    let row = x.iota(DType::I64, Shape::from_dims(&[rows, Dim::ONE]), 0);
    (row, x.iota(DType::I64, Shape::from_dims(&[Dim::ONE, columns]), 1))
}

fn places_of<'e>(x: Expr<'e>, op: &str) -> (Expr<'e>, Expr<'e>) {
    let shape = x.shape();
    let Some(lead) = shape.rank().checked_sub(2) else {
        throw(error::bad_rank(op, "x", "at least 2", shape));
    };
    places(x, &Shape::from_dims(&shape.dims()[lead..]))
}

fn grids<'e>(arrays: &[Expr<'e>], exchanged: bool) -> Vec<Expr<'e>> {
    if let Some(x) = arrays.iter().find(|x| x.rank() > 1) {
        throw(error::bad_rank("meshgrid", "every operand", "1 or 0", x.shape()));
    }
    let n = arrays.len();
    let place = |i: usize| if exchanged && n > 1 && i < 2 { 1 - i } else { i };
    let size = |x: &Expr<'_>| x.shape().dims().first().copied().unwrap_or(Dim::ONE);
    let mut shape = Shape::of(&vec![1; n]);
    arrays.iter().enumerate().for_each(|(i, x)| shape.dims_mut()[place(i)] = size(x));
    let grid = |(i, x): (usize, &Expr<'e>)| {
        let mut line = Shape::of(&vec![1; n]);
        line.dims_mut()[place(i)] = size(x);
        x.reshape(line).broadcast(shape.clone())
    };
    arrays.iter().enumerate().map(grid).collect()
}
