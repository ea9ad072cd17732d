//! More pooling of `nn`: with places, over windows of different sizes, by powers; and its reverse.

use super::nn_conv::per_axis;
use super::nn_norm::wide;
use super::nn_pool::{Pool, adaptive_mean};
use super::size_of;
use crate::dtype::DType;
use crate::error;
use crate::ops::attributes::{ArgReduction, PerAxis, ScatterMode};
use crate::ops::declare::Extents;
use crate::ops::emit::{Expr, OrThrow, throw};
use crate::ops::op::Op;
use crate::shape::{Axes, Dim, Shape};

composite! {
    /// The largest element of each window along the last axis, and its position there (int64).
    ///
    /// `x` and geometry as `max_pool1d`. Of equal elements the first is meant, and it alone has a
    /// gradient.
    nn function max_pool1d_with_indices(
        x: FloatTensor, kernel_size: Ints, stride: Axes = None, padding: Ints = 0,
        dilation: Ints = 1, ceil_mode: Bool = False,
    ) -> Exactly(2) {
        let op = "max_pool1d_with_indices";
        Pool::new(op, 1, &kernel_size, stride.as_deref(), &padding, &dilation)
            .reaching(x, ceil_mode)
            .found(x)
    }

    /// The largest element of each window over the last two axes, and its position (int64).
    ///
    /// `x` and geometry as `max_pool2d`. A position counts the elements of the last two axes in C
    /// order. Of equal elements the first is meant, and it alone has a gradient.
    nn function max_pool2d_with_indices(
        x: FloatTensor, kernel_size: Ints, stride: Axes = None, padding: Ints = 0,
        dilation: Ints = 1, ceil_mode: Bool = False,
    ) -> Exactly(2) {
        let op = "max_pool2d_with_indices";
        Pool::new(op, 2, &kernel_size, stride.as_deref(), &padding, &dilation)
            .reaching(x, ceil_mode)
            .found(x)
    }

    /// The largest element of each window over the last three axes, and its position (int64).
    ///
    /// As `max_pool2d_with_indices`.
    nn function max_pool3d_with_indices(
        x: FloatTensor, kernel_size: Ints, stride: Axes = None, padding: Ints = 0,
        dilation: Ints = 1, ceil_mode: Bool = False,
    ) -> Exactly(2) {
        let op = "max_pool3d_with_indices";
        Pool::new(op, 3, &kernel_size, stride.as_deref(), &padding, &dilation)
            .reaching(x, ceil_mode)
            .found(x)
    }

    /// Zeros with the elements of `x` where `max_pool1d_with_indices` found them.
    ///
    /// `x` and `indices` (…, L). The last axis gets the size `output_size`, by default
    /// `(L - 1) stride - 2 padding + kernel_size`. Raises IndexError for positions outside.
    nn function max_unpool1d(
        x: FloatTensor, indices: IntTensor, kernel_size: Ints, stride: Axes = None,
        padding: Ints = 0, output_size: MaybeSizes = None,
    ) -> One {
        let op = "max_unpool1d";
        let pool = Pool::any(op, 1, &kernel_size, stride.as_deref(), &padding, &[1]);
        unpooled(&pool, x, indices, output_size)
    }
    indexes(First)

    /// Zeros with the elements of `x` where `max_pool2d_with_indices` found them.
    ///
    /// `x` and `indices` (…, H, W). The last axes get the sizes `output_size`, by default as in
    /// `max_unpool1d`. Raises IndexError for positions outside.
    nn function max_unpool2d(
        x: FloatTensor, indices: IntTensor, kernel_size: Ints, stride: Axes = None,
        padding: Ints = 0, output_size: MaybeSizes = None,
    ) -> One {
        let op = "max_unpool2d";
        let pool = Pool::any(op, 2, &kernel_size, stride.as_deref(), &padding, &[1]);
        unpooled(&pool, x, indices, output_size)
    }
    indexes(First)

    /// Zeros with the elements of `x` where `max_pool3d_with_indices` found them.
    ///
    /// `x` and `indices` (…, D, H, W); as `max_unpool2d`.
    nn function max_unpool3d(
        x: FloatTensor, indices: IntTensor, kernel_size: Ints, stride: Axes = None,
        padding: Ints = 0, output_size: MaybeSizes = None,
    ) -> One {
        let op = "max_unpool3d";
        let pool = Pool::any(op, 3, &kernel_size, stride.as_deref(), &padding, &[1]);
        unpooled(&pool, x, indices, output_size)
    }
    indexes(First)

    /// Means over windows chosen so that the last axis gets the size `output_size`.
    ///
    /// `x` (…, L), floating; windows as for `adaptive_avg_pool2d`.
    nn function adaptive_avg_pool1d(x: FloatTensor, output_size: Ints) -> One {
        adaptive_mean("adaptive_avg_pool1d", 1, x, &output_size)
    }

    /// Means over windows chosen so that the last three axes get the sizes `output_size`.
    ///
    /// `x` (…, D, H, W), floating; `output_size` is one int or three; windows as for
    /// `adaptive_avg_pool2d`.
    nn function adaptive_avg_pool3d(x: FloatTensor, output_size: Ints) -> One {
        adaptive_mean("adaptive_avg_pool3d", 3, x, &output_size)
    }

    /// The largest elements of windows chosen so that the last axis gets the size `output_size`.
    ///
    /// `x` (…, L), floating; windows as for `adaptive_avg_pool2d`. NaN wins. Of equal elements the
    /// first alone has a gradient.
    nn function adaptive_max_pool1d(x: FloatTensor, output_size: Ints) -> One {
        adaptive_largest("adaptive_max_pool1d", 1, x, &output_size).0
    }

    /// The largest elements of windows chosen so that the last two axes get the sizes `output_size`.
    ///
    /// `x` (…, H, W), floating; as `adaptive_max_pool1d`.
    nn function adaptive_max_pool2d(x: FloatTensor, output_size: Ints) -> One {
        adaptive_largest("adaptive_max_pool2d", 2, x, &output_size).0
    }

    /// The largest elements of windows that give the last three axes the sizes `output_size`.
    ///
    /// `x` (…, D, H, W), floating; as `adaptive_max_pool1d`.
    nn function adaptive_max_pool3d(x: FloatTensor, output_size: Ints) -> One {
        adaptive_largest("adaptive_max_pool3d", 3, x, &output_size).0
    }

    /// `adaptive_max_pool1d`, and the positions of the elements (int64).
    nn function adaptive_max_pool1d_with_indices(x: FloatTensor, output_size: Ints) -> Exactly(2) {
        adaptive_largest("adaptive_max_pool1d_with_indices", 1, x, &output_size)
    }

    /// `adaptive_max_pool2d`, and the positions of the elements (int64), as `max_pool2d_with_indices`.
    nn function adaptive_max_pool2d_with_indices(x: FloatTensor, output_size: Ints) -> Exactly(2) {
        adaptive_largest("adaptive_max_pool2d_with_indices", 2, x, &output_size)
    }

    /// `adaptive_max_pool3d`, and the positions of the elements (int64), as `max_pool2d_with_indices`.
    nn function adaptive_max_pool3d_with_indices(x: FloatTensor, output_size: Ints) -> Exactly(2) {
        adaptive_largest("adaptive_max_pool3d_with_indices", 3, x, &output_size)
    }

    /// The root of order `norm_type` of the sum of powers of each window along the last axis.
    ///
    /// `x` (…, L), floating; `stride` and `ceil_mode` as for `avg_pool1d`; a window that reaches
    /// beyond the end counts as if what it has there were the mean of the rest. The gradient of a sum
    /// of zero is not finite.
    nn function lp_pool1d(
        x: FloatTensor, norm_type: Float, kernel_size: Ints, stride: Axes = None,
        ceil_mode: Bool = False,
    ) -> One {
        let pool = Pool::new("lp_pool1d", 1, &kernel_size, stride.as_deref(), &[0], &[1]);
        powers(pool, x, norm_type, ceil_mode)
    }

    /// `lp_pool1d` over the last two axes, (…, H, W).
    nn function lp_pool2d(
        x: FloatTensor, norm_type: Float, kernel_size: Ints, stride: Axes = None,
        ceil_mode: Bool = False,
    ) -> One {
        let pool = Pool::new("lp_pool2d", 2, &kernel_size, stride.as_deref(), &[0], &[1]);
        powers(pool, x, norm_type, ceil_mode)
    }

    /// `lp_pool1d` over the last three axes, (…, D, H, W).
    nn function lp_pool3d(
        x: FloatTensor, norm_type: Float, kernel_size: Ints, stride: Axes = None,
        ceil_mode: Bool = False,
    ) -> One {
        let pool = Pool::new("lp_pool3d", 3, &kernel_size, stride.as_deref(), &[0], &[1]);
        powers(pool, x, norm_type, ceil_mode)
    }
}

impl Pool {
    /// The largest elements of windows, and their positions among those of the last axes.
    fn found<'e>(&self, x: Expr<'e>) -> (Expr<'e>, Expr<'e>) {
        let (x, spatial) = (x.tensor(), self.size.len());
        let (windows, _) = self.windows(x, f64::NEG_INFINITY);
        let lead = x.rank() - spatial;
        let rest = Shape::from_dims(&windows.shape().dims()[spatial..]);
        let flat: Shape =
            std::iter::once(self.area().into()).chain(rest.dims().iter().copied()).collect();
        let mut place = largest(windows.reshape(flat), 0);
        let int = |n: usize| x.scalar(n as i64);
        let (mut flat, mut step) = (None, Dim::ONE);
        for i in (0..spatial).rev() {
            let inside = place.remainder(int(self.size[i])) * int(self.dilation[i]);
            place = place.floor_divide(int(self.size[i]));
            let mut line = Shape::of(&vec![1; rest.rank()]);
            line.dims_mut()[lead + i] = rest[lead + i];
            let start = x.iota(DType::I64, line, lead + i) * int(self.stride[i]);
            let at = start + inside - int(self.padding[i]);
            // A window of nothing but −∞ may seem to find it in the padding.
            let last = x.whole(x.size(lead + i) - Dim::ONE);
            let at = at.maximum(int(0)).minimum(last) * x.whole(step);
            flat = Some(flat.map_or(at, |sum| sum + at));
            step = step * x.size(lead + i);
        }
        let flat: Expr<'e> = flat.unwrap_or(place);
        (at_positions(x, flat, lead), flat)
    }
}

/// The position of the first largest element along an axis, which disappears.
fn largest(x: Expr<'_>, axis: usize) -> Expr<'_> {
    x.emit(Op::ArgReduce(ArgReduction::Max, axis))
}

/// The elements of `x` at these positions among those of the axes behind the leading ones.
fn at_positions<'e>(x: Expr<'e>, index: Expr<'e>, lead: usize) -> Expr<'e> {
    let planes = joined(x, lead);
    planes.take_along(joined(index, lead), lead).reshape(index.shape())
}

/// `x` with the axes behind the leading ones joined.
fn joined(x: Expr<'_>, lead: usize) -> Expr<'_> {
    let shape = x.shape();
    let rest = shape.dims()[lead..].iter().fold(Dim::ONE, |n, &size| n * size);
    x.reshape(shape.dims()[..lead].iter().copied().chain([rest]).collect())
}

fn unpooled<'e>(pool: &Pool, x: Expr<'e>, indices: Expr<'e>, size: Option<Extents>) -> Expr<'e> {
    let (op, spatial, x) = (pool.op, pool.size.len(), x.tensor());
    let Some(lead) = x.rank().checked_sub(spatial) else {
        throw(error::bad_rank(op, "x", format!("{spatial} or more"), x.shape()));
    };
    if !indices.shape().equals(&x.shape()) {
        let facts = format!("x {} and indices {}", x.shape(), indices.shape());
        throw(error::bad_shape(op, "shapes differ", facts));
    }
    let own = |i: usize| {
        let steps = (x.size(lead + i) - Dim::ONE) * pool.stride[i].into();
        let full = steps + pool.size[i].into();
        if full.is_below(2 * pool.padding[i] + 1) {
            throw(error::bad_shape(op, "nothing is left of an axis", x.shape().to_string()));
        }
        full - (2 * pool.padding[i]).into()
    };
    let sizes: Vec<Dim> = match size {
        None => (0..spatial).map(own).collect(),
        // PyTorch's users pass the whole shape too.
        Some(given) if given.len() == spatial || given.len() == x.rank() => given
            [given.len() - spatial..]
            .iter()
            .map(|&n| size_of(n, 1, "output_size", op))
            .collect(),
        Some(given) => {
            let what = format!("output_size must have {spatial} sizes");
            throw(error::bad_value(op, what, format!("got {}", given.len())));
        }
    };
    let all = sizes.iter().fold(Dim::ONE, |n, &size| n * size);
    let shape = x.shape();
    let lead_of = || shape.dims()[..lead].iter().copied();
    let flat: Shape = lead_of().chain([all]).collect();
    flat.check(op).or_throw();
    let empty = x.scalar(0.0).full(x.dtype(), flat);
    let index = joined(indices.cast(DType::I64), lead);
    let flat = empty.scatter(ScatterMode::Set, joined(x, lead), &index.along(lead));
    flat.reshape(lead_of().chain(sizes).collect())
}

/// The largest elements over windows chosen so that the last `spatial` axes get these sizes, and
/// their positions.
fn adaptive_largest<'e>(
    op: &str,
    spatial: usize,
    x: Expr<'e>,
    sizes: &[i64],
) -> (Expr<'e>, Expr<'e>) {
    let x = x.tensor();
    let Some(lead) = x.rank().checked_sub(spatial) else {
        throw(error::bad_rank(op, "x", format!("{spatial} or more"), x.shape()));
    };
    let sizes: PerAxis = per_axis(op, "output_size", sizes, spatial, 1);
    if x.shape().dims()[lead..].iter().any(|n| n.equals(0)) {
        throw(error::bad_shape(op, "an axis is empty", x.shape().to_string()));
    }
    // By axis: the positions of all windows' elements, (m, most); the last is repeated.
    let places: Vec<Expr<'e>> = (0..spatial)
        .map(|i| {
            let (n, m) = (x.size(lead + i), sizes[i]);
            // No window is longer.
            let most = n.div_ceil(m.into()) + Dim::ONE;
            let int = |n: usize| x.scalar(n as i64);
            let n = x.whole(n);
            let out = x.iota(DType::I64, Shape::of(&[m, 1]), 0);
            let from = (out * n).floor_divide(int(m));
            let end = -((-((out + int(1)) * n)).floor_divide(int(m)));
            let tap = x.iota(DType::I64, Shape::from_dims(&[Dim::ONE, most]), 1);
            (from + tap).minimum(end - int(1))
        })
        .collect();
    // Axis by axis: (…, n, …) to (…, m, most, …).
    let mut windows = x;
    let mut flat: Option<Expr<'e>> = None;
    for (i, &place) in places.iter().enumerate() {
        let axis = lead + 2 * i;
        let order: Axes =
            std::iter::once(axis).chain((0..windows.rank()).filter(|&k| k != axis)).collect();
        let taken = windows.permute(order).gather(&[place]);
        let back = (2..axis + 2).chain([0, 1]).chain(axis + 2..taken.rank());
        windows = taken.permute(back.collect());
        let mut line = Shape::of(&vec![1; 2 * spatial]);
        (line.dims_mut()[2 * i], line.dims_mut()[2 * i + 1]) = (place.size(0), place.size(1));
        let n = x.whole(x.size(lead + i));
        let at = place.reshape(line);
        flat = Some(flat.map_or(at, |sum| sum * n + at));
    }
    let Some(flat) = flat else { return (x, x) };
    // (…, m, most, m, most) to (…, m, m, most · most).
    let order: Axes = (0..lead)
        .chain((0..spatial).map(|i| lead + 2 * i))
        .chain((0..spatial).map(|i| lead + 2 * i + 1))
        .collect();
    let windows = joined(windows.permute(order), lead + spatial);
    let order: Axes = (0..spatial).map(|i| 2 * i).chain((0..spatial).map(|i| 2 * i + 1)).collect();
    let mut whole = windows.shape();
    let flat = joined(flat.broadcast(flat_shape(&places)).permute(order), spatial);
    let best = largest(windows, lead + spatial);
    whole.dims_mut().pop();
    let tap = best.unsqueeze(lead + spatial);
    let positions = flat.broadcast(windows.shape()).take_along(tap, lead + spatial).reshape(whole);
    (at_positions(x, positions, lead), positions)
}

/// The windows of all axes, each as (m, most).
fn flat_shape(places: &[Expr<'_>]) -> Shape {
    places.iter().flat_map(|place| [place.size(0), place.size(1)]).collect()
}

fn powers(pool: Pool, x: Expr<'_>, norm: f64, ceil: bool) -> Expr<'_> {
    if norm == 0.0 || !norm.is_finite() {
        let facts = format!("got {norm}");
        throw(error::bad_value(pool.op, "norm_type must be a number other than zero", facts));
    }
    let (dtype, area) = (x.dtype(), pool.area() as f64);
    let power = wide(x).pow(x.scalar(norm));
    // The mean of a window that reaches beyond the end is of what it has: so PyTorch's.
    let mean = pool.reaching(x, ceil).mean(power, true, None);
    (mean * area).pow(x.scalar(1.0 / norm)).cast(dtype)
}
