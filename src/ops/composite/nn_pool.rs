//! Pooling of `nn`: a reduction of every window over the last axes.

use super::nn_conv::per_axis;
use super::nn_norm::wide;
use crate::dtype::DType;
use crate::error;
use crate::ops::attributes::{Contraction, PerAxis, Reduction, WindowSpec};
use crate::ops::emit::{Expr, throw};
use crate::ops::op::{Op, SliceAxis};
use crate::shape::{Axes, Shape};

composite! {
    /// The largest element of each window along the last axis; NaN wins.
    ///
    /// `x` (…, L), floating. `stride` is `kernel_size` where None; `padding` adds -inf on both
    /// sides, at most half a window. The gradient is shared equally among equal largest elements.
    /// Raises ShapeError where the window does not fit.
    nn function max_pool1d(
        x: FloatTensor, kernel_size: Ints, stride: Axes = None, padding: Ints = 0, dilation: Ints = 1,
    ) -> One {
        Pool::new("max_pool1d", 1, &kernel_size, stride.as_deref(), &padding, &dilation).max(x)
    }
    vjp(g, y) {
        x: Pool::new("max_pool1d", 1, &kernel_size, stride.as_deref(), &padding, &dilation)
            .max_vjp(x, y, g),
    }

    /// The largest element of each window over the last two axes; NaN wins.
    ///
    /// `x` (…, H, W), floating. Geometry is one int or a pair; `stride` is `kernel_size` where
    /// None; `padding` adds -inf on both sides, at most half a window. The gradient is shared
    /// equally among equal largest elements. Raises ShapeError where the window does not fit.
    ///
    /// >>> import wengert as wg
    /// >>> wg.nn.max_pool2d(wg.arange(16.0).reshape(1, 4, 4), 2).tolist()
    /// [[[5.0, 7.0], [13.0, 15.0]]]
    nn function max_pool2d(
        x: FloatTensor, kernel_size: Ints, stride: Axes = None, padding: Ints = 0, dilation: Ints = 1,
    ) -> One {
        Pool::new("max_pool2d", 2, &kernel_size, stride.as_deref(), &padding, &dilation).max(x)
    }
    vjp(g, y) {
        x: Pool::new("max_pool2d", 2, &kernel_size, stride.as_deref(), &padding, &dilation)
            .max_vjp(x, y, g),
    }

    /// The largest element of each window over the last three axes; NaN wins.
    ///
    /// `x` (…, D, H, W), floating; as `max_pool2d`.
    nn function max_pool3d(
        x: FloatTensor, kernel_size: Ints, stride: Axes = None, padding: Ints = 0, dilation: Ints = 1,
    ) -> One {
        Pool::new("max_pool3d", 3, &kernel_size, stride.as_deref(), &padding, &dilation).max(x)
    }
    vjp(g, y) {
        x: Pool::new("max_pool3d", 3, &kernel_size, stride.as_deref(), &padding, &dilation)
            .max_vjp(x, y, g),
    }

    /// The mean of each window along the last axis.
    ///
    /// `x` (…, L), floating. `stride` is `kernel_size` where None; `padding` adds zeros on both
    /// sides, at most half a window, which count in the mean unless `count_include_pad=False`.
    /// Raises ShapeError where the window does not fit.
    nn function avg_pool1d(
        x: FloatTensor, kernel_size: Ints, stride: Axes = None, padding: Ints = 0,
        count_include_pad: Bool = True,
    ) -> One {
        Pool::new("avg_pool1d", 1, &kernel_size, stride.as_deref(), &padding, &[1])
            .mean(x, count_include_pad)
    }

    /// The mean of each window over the last two axes.
    ///
    /// `x` (…, H, W), floating; geometry is one int or a pair; as `avg_pool1d`.
    nn function avg_pool2d(
        x: FloatTensor, kernel_size: Ints, stride: Axes = None, padding: Ints = 0,
        count_include_pad: Bool = True,
    ) -> One {
        Pool::new("avg_pool2d", 2, &kernel_size, stride.as_deref(), &padding, &[1])
            .mean(x, count_include_pad)
    }

    /// The mean of each window over the last three axes.
    ///
    /// `x` (…, D, H, W), floating; geometry is one int or three; as `avg_pool1d`.
    nn function avg_pool3d(
        x: FloatTensor, kernel_size: Ints, stride: Axes = None, padding: Ints = 0,
        count_include_pad: Bool = True,
    ) -> One {
        Pool::new("avg_pool3d", 3, &kernel_size, stride.as_deref(), &padding, &[1])
            .mean(x, count_include_pad)
    }

    /// Means over windows chosen so that the last two axes get the sizes `output_size`.
    ///
    /// `x` (…, H, W), floating; `output_size` is one int or a pair. Along an axis of n elements,
    /// result i of m is the mean of elements ⌊i n / m⌋ to ⌈(i + 1) n / m⌉.
    nn function adaptive_avg_pool2d(x: FloatTensor, output_size: Ints) -> One {
        let x = x.tensor();
        if x.rank() < 2 {
            throw(error::bad_rank("adaptive_avg_pool2d", "x", "2 or more", x.shape()));
        }
        let sizes = per_axis("adaptive_avg_pool2d", "output_size", &output_size, 2, 1);
        // Each product moves the axis behind the others: columns first would swap them.
        let rows = averaged(wide(x), x.rank() - 2, sizes[0]);
        averaged(rows, x.rank() - 2, sizes[1]).cast(x.dtype())
    }
}

/// The geometry of a call.
struct Pool {
    op: &'static str,
    size: PerAxis,
    stride: PerAxis,
    padding: PerAxis,
    dilation: PerAxis,
}

impl Pool {
    fn new(
        op: &'static str,
        rank: usize,
        size: &[i64],
        stride: Option<&[i64]>,
        padding: &[i64],
        dilation: &[i64],
    ) -> Pool {
        let pool = Pool {
            op,
            size: per_axis(op, "kernel_size", size, rank, 1),
            stride: per_axis(op, "stride", stride.unwrap_or(size), rank, 1),
            padding: per_axis(op, "padding", padding, rank, 0),
            dilation: per_axis(op, "dilation", dilation, rank, 1),
        };
        for i in 0..rank {
            let reach = (pool.size[i] - 1).saturating_mul(pool.dilation[i]) + 1;
            if 2 * pool.padding[i] > reach {
                let facts = format!("got {} for a window of {reach}", pool.padding[i]);
                throw(error::bad_value(op, "padding must be at most half the window", facts));
            }
        }
        pool
    }

    fn max(self, x: Expr<'_>) -> Expr<'_> {
        let (windows, axes) = self.windows(x, f64::NEG_INFINITY);
        windows.reduce(Reduction::Max, &axes)
    }

    /// The cotangent of `x`, whose windows' largest elements are `y`: equal ones share that of a
    /// window.
    fn max_vjp<'e>(self, x: Expr<'e>, y: Expr<'e>, g: Expr<'e>) -> Expr<'e> {
        let (windows, axes) = self.windows(x, f64::NEG_INFINITY);
        let hit = windows.equal(y.restore(&axes)).cast(x.dtype());
        let own = hit * (g / hit.reduce(Reduction::Sum, &axes)).restore(&axes);
        self.joined(own, x.shape())
    }

    fn mean(self, x: Expr<'_>, count_padding: bool) -> Expr<'_> {
        let dtype = x.dtype();
        let (windows, axes) = self.windows(wide(x), 0.0);
        let sum = windows.reduce(Reduction::Sum, &axes);
        let all = self.size.iter().product::<usize>() as f64;
        if count_padding || self.padding.iter().all(|&n| n == 0) {
            return (sum / all).cast(dtype);
        }
        let spatial = Shape::from_dims(&x.shape().dims()[x.rank() - self.size.len()..]);
        let (ones, axes) = self.windows(x.scalar(1.0).full(sum.dtype(), spatial), 0.0);
        (sum / ones.reduce(Reduction::Sum, &axes)).cast(dtype)
    }

    /// The windows of `x`, and the axes of their elements, which come first: so runs along memory
    /// stay as long as the axes that windows slide over.
    fn windows<'e>(&self, x: Expr<'e>, fill: f64) -> (Expr<'e>, Axes) {
        let (x, spatial) = (x.tensor(), self.size.len());
        if x.rank() < spatial {
            throw(error::bad_rank(self.op, "x", format!("{spatial} or more"), x.shape()));
        }
        let rank = x.rank();
        let windows = self.padded(x, fill).emit(Op::Windows(Box::new(self.spec())));
        let first = windows.permute((rank..rank + spatial).chain(0..rank).collect());
        (first, (0..spatial).collect())
    }

    /// The sum of what windows of an array of this shape have for its elements: undoes `windows`.
    fn joined<'e>(&self, windows: Expr<'e>, shape: Shape) -> Expr<'e> {
        let (rank, spatial) = (shape.rank(), self.size.len());
        let last = windows.permute((spatial..spatial + rank).chain(0..spatial).collect());
        let start = |axis: usize| (axis + spatial).checked_sub(rank).map_or(0, |i| self.padding[i]);
        let padded = (0..rank).map(|axis| shape[axis] + (2 * start(axis)).into());
        let sizes = padded.skip(rank - spatial).collect();
        let x = last.emit(Op::Fold(Box::new(self.spec()), sizes));
        let own = |axis| SliceAxis { start: start(axis).into(), step: 1, size: shape[axis] };
        x.slice((0..rank).map(own).collect())
    }

    fn spec(&self) -> WindowSpec {
        WindowSpec {
            size: self.size.clone(),
            stride: self.stride.clone(),
            dilation: self.dilation.clone(),
        }
    }

    fn padded<'e>(&self, x: Expr<'e>, fill: f64) -> Expr<'e> {
        if self.padding.iter().all(|&n| n == 0) {
            return x;
        }
        let lead = x.rank() - self.size.len();
        let start = |axis: usize| if axis < lead { 0 } else { self.padding[axis - lead] };
        let axes = 0..x.rank();
        let shape = axes.clone().map(|axis| x.size(axis) + (2 * start(axis)).into()).collect();
        let at =
            axes.map(|axis| SliceAxis { start: start(axis).into(), step: 1, size: x.size(axis) });
        x.emit_with(Op::Pad(shape, at.collect()), &[x.arg(), x.scalar(fill).arg()])
    }
}

/// `x` with `axis` replaced by a last axis of `m` means.
fn averaged(x: Expr<'_>, axis: usize, m: usize) -> Expr<'_> {
    let n = x.size(axis);
    let count = x.whole(n);
    let out = x.iota(DType::I64, Shape::of(&[m, 1]), 0);
    let each = x.scalar(m as i64);
    let start = (out * count).floor_divide(each);
    // The ceiling of a quotient is the negative of the floor of its negative.
    let stop = -((-((out + x.scalar(1)) * count)).floor_divide(each));
    let place = x.iota(DType::I64, Shape::from_dims(&[1.into(), n]), 1);
    let inside = place.greater_equal(start).logical_and(place.less(stop));
    let matrix = inside.cast(x.dtype()) / (stop - start).cast(x.dtype());
    let none = Axes::new();
    x.contract(
        matrix,
        Contraction {
            a_batch: none.clone(),
            b_batch: none,
            a_contract: Axes::from_slice(&[axis]),
            b_contract: Axes::from_slice(&[1]),
        },
    )
}
