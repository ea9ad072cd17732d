//! Pooling of `nn`: a reduction of every window over the last axes.

use super::nn_conv::per_axis;
use super::nn_norm::wide;
use crate::dtype::DType;
use crate::error;
use crate::ops::attributes::{Contraction, PerAxis, Reduction, WindowSpec};
use crate::ops::emit::{Expr, throw};
use crate::ops::op::{Op, SliceAxis};
use crate::shape::{Axes, Dim, Shape};

composite! {
    /// The largest element of each window along the last axis; NaN wins.
    ///
    /// `x` (…, L), floating. `stride` is `kernel_size` where None; `padding` adds -inf on both
    /// sides, at most half a window. With `ceil_mode`, a last window may reach beyond the end. The
    /// gradient is shared equally among equal largest elements. Raises ShapeError where the window
    /// does not fit.
    nn function max_pool1d(
        x: FloatTensor, kernel_size: Ints, stride: Axes = None, padding: Ints = 0,
        dilation: Ints = 1, ceil_mode: Bool = False,
    ) -> One {
        Pool::new("max_pool1d", 1, &kernel_size, stride.as_deref(), &padding, &dilation)
            .reaching(x, ceil_mode)
            .max(x)
    }
    kernel(MaxPool1d)
    vjp(g, y) {
        x: Pool::new("max_pool1d", 1, &kernel_size, stride.as_deref(), &padding, &dilation)
            .reaching(x, ceil_mode)
            .max_vjp(x, y, g),
    }

    /// The largest element of each window over the last two axes; NaN wins.
    ///
    /// `x` (…, H, W), floating. Geometry is one int or a pair; `stride` is `kernel_size` where
    /// None; `padding` adds -inf on both sides, at most half a window. With `ceil_mode`, a last
    /// window may reach beyond the end. The gradient is shared equally among equal largest elements.
    /// Raises ShapeError where the window does not fit.
    ///
    /// >>> import wengert as wg
    /// >>> wg.nn.max_pool2d(wg.arange(16.0).reshape(1, 4, 4), 2).tolist()
    /// [[[5.0, 7.0], [13.0, 15.0]]]
    nn function max_pool2d(
        x: FloatTensor, kernel_size: Ints, stride: Axes = None, padding: Ints = 0,
        dilation: Ints = 1, ceil_mode: Bool = False,
    ) -> One {
        Pool::new("max_pool2d", 2, &kernel_size, stride.as_deref(), &padding, &dilation)
            .reaching(x, ceil_mode)
            .max(x)
    }
    kernel(MaxPool2d)
    vjp(g, y) {
        x: Pool::new("max_pool2d", 2, &kernel_size, stride.as_deref(), &padding, &dilation)
            .reaching(x, ceil_mode)
            .max_vjp(x, y, g),
    }

    /// The largest element of each window over the last three axes; NaN wins.
    ///
    /// `x` (…, D, H, W), floating; as `max_pool2d`.
    nn function max_pool3d(
        x: FloatTensor, kernel_size: Ints, stride: Axes = None, padding: Ints = 0,
        dilation: Ints = 1, ceil_mode: Bool = False,
    ) -> One {
        Pool::new("max_pool3d", 3, &kernel_size, stride.as_deref(), &padding, &dilation)
            .reaching(x, ceil_mode)
            .max(x)
    }
    kernel(MaxPool3d)
    vjp(g, y) {
        x: Pool::new("max_pool3d", 3, &kernel_size, stride.as_deref(), &padding, &dilation)
            .reaching(x, ceil_mode)
            .max_vjp(x, y, g),
    }

    /// The mean of each window along the last axis.
    ///
    /// `x` (…, L), floating. `stride` is `kernel_size` where None; `padding` adds zeros on both
    /// sides, at most half a window, which count in the mean unless `count_include_pad=False`. With
    /// `ceil_mode`, a last window may reach beyond the end; what it finds there never counts. The
    /// sum is divided by `divisor_override`, if given, instead of the count. Raises ShapeError where
    /// the window does not fit.
    nn function avg_pool1d(
        x: FloatTensor, kernel_size: Ints, stride: Axes = None, padding: Ints = 0,
        ceil_mode: Bool = False, count_include_pad: Bool = True, divisor_override: MaybeInt = None,
    ) -> One {
        Pool::new("avg_pool1d", 1, &kernel_size, stride.as_deref(), &padding, &[1])
            .reaching(x, ceil_mode)
            .mean(x, count_include_pad, divisor_override)
    }

    /// The mean of each window over the last two axes.
    ///
    /// `x` (…, H, W), floating; geometry is one int or a pair; as `avg_pool1d`.
    nn function avg_pool2d(
        x: FloatTensor, kernel_size: Ints, stride: Axes = None, padding: Ints = 0,
        ceil_mode: Bool = False, count_include_pad: Bool = True, divisor_override: MaybeInt = None,
    ) -> One {
        Pool::new("avg_pool2d", 2, &kernel_size, stride.as_deref(), &padding, &[1])
            .reaching(x, ceil_mode)
            .mean(x, count_include_pad, divisor_override)
    }

    /// The mean of each window over the last three axes.
    ///
    /// `x` (…, D, H, W), floating; geometry is one int or three; as `avg_pool1d`.
    nn function avg_pool3d(
        x: FloatTensor, kernel_size: Ints, stride: Axes = None, padding: Ints = 0,
        ceil_mode: Bool = False, count_include_pad: Bool = True, divisor_override: MaybeInt = None,
    ) -> One {
        Pool::new("avg_pool3d", 3, &kernel_size, stride.as_deref(), &padding, &[1])
            .reaching(x, ceil_mode)
            .mean(x, count_include_pad, divisor_override)
    }

    /// Means over windows chosen so that the last two axes get the sizes `output_size`.
    ///
    /// `x` (…, H, W), floating; `output_size` is one int or a pair. Along an axis of n elements,
    /// result i of m is the mean of elements ⌊i n / m⌋ to ⌈(i + 1) n / m⌉.
    nn function adaptive_avg_pool2d(x: FloatTensor, output_size: Ints) -> One {
        adaptive_mean("adaptive_avg_pool2d", 2, x, &output_size)
    }
}

/// The geometry of a call.
pub(super) struct Pool {
    pub op: &'static str,
    pub size: PerAxis,
    pub stride: PerAxis,
    pub padding: PerAxis,
    pub dilation: PerAxis,
    /// What is added behind the padding, so that the last window is whole
    extra: PerAxis,
}

impl Pool {
    /// A geometry whose padding is at most half the window.
    pub fn new(
        op: &'static str,
        rank: usize,
        size: &[i64],
        stride: Option<&[i64]>,
        padding: &[i64],
        dilation: &[i64],
    ) -> Pool {
        let pool = Pool::any(op, rank, size, stride, padding, dilation);
        for i in 0..rank {
            let reach = pool.reach(i);
            if 2 * pool.padding[i] > reach {
                let facts = format!("got {} for a window of {reach}", pool.padding[i]);
                throw(error::bad_value(op, "padding must be at most half the window", facts));
            }
        }
        pool
    }

    /// Any geometry.
    pub fn any(
        op: &'static str,
        rank: usize,
        size: &[i64],
        stride: Option<&[i64]>,
        padding: &[i64],
        dilation: &[i64],
    ) -> Pool {
        Pool {
            op,
            size: per_axis(op, "kernel_size", size, rank, 1),
            stride: per_axis(op, "stride", stride.unwrap_or(size), rank, 1),
            padding: per_axis(op, "padding", padding, rank, 0),
            dilation: per_axis(op, "dilation", dilation, rank, 1),
            extra: (0..rank).map(|_| 0).collect(),
        }
    }

    /// The same where a last window may reach beyond the padding, if it begins before.
    pub fn reaching(mut self, x: Expr<'_>, ceil: bool) -> Pool {
        let Some(lead) = x.rank().checked_sub(self.size.len()).filter(|_| ceil) else {
            return self;
        };
        for i in 0..self.size.len() {
            let n = x.size(lead + i).value();
            let (padded, stride) = (n + 2 * self.padding[i], self.stride[i]);
            let Some(room) = padded.checked_sub(self.reach(i)) else { continue };
            let last = room.div_ceil(stride) * stride;
            if last > room && last < n + self.padding[i] {
                self.extra[i] = last - room;
            }
        }
        self
    }

    /// How many elements a window spans along an axis.
    pub fn reach(&self, i: usize) -> usize {
        (self.size[i] - 1).saturating_mul(self.dilation[i]) + 1
    }

    /// How many elements a window has.
    pub fn area(&self) -> usize {
        self.size.iter().fold(1, |all: usize, &n| all.saturating_mul(n))
    }

    /// How many windows an axis of `n` elements has.
    pub fn count(&self, i: usize, n: Dim) -> Dim {
        let padded = n + (2 * self.padding[i] + self.extra[i]).into();
        if padded.is_below(self.reach(i)) {
            let facts = format!("window {} and size {n}", self.reach(i));
            throw(error::bad_shape(self.op, "the window is larger than the axis", facts));
        }
        (padded - self.reach(i).into()) / self.stride[i].into() + Dim::ONE
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

    pub fn mean(self, x: Expr<'_>, count_padding: bool, divisor: Option<i64>) -> Expr<'_> {
        let dtype = x.dtype();
        let (windows, axes) = self.windows(wide(x), 0.0);
        let sum = windows.reduce(Reduction::Sum, &axes);
        if let Some(divisor) = divisor {
            if divisor == 0 {
                throw(error::bad_value(self.op, "divisor_override must not be zero", "got 0"));
            }
            return (sum / divisor as f64).cast(dtype);
        }
        let none = |sizes: &PerAxis| sizes.iter().all(|&n| n == 0);
        if none(&self.extra) && (count_padding || none(&self.padding)) {
            return (sum / self.area() as f64).cast(dtype);
        }
        let mut spatial = Shape::from_dims(&x.shape().dims()[x.rank() - self.size.len()..]);
        let counted = match count_padding {
            false => self,
            true => {
                for (i, &padding) in self.padding.iter().enumerate() {
                    spatial.dims_mut()[i] = spatial[i] + (2 * padding).into();
                }
                let padding = (0..self.size.len()).map(|_| 0).collect();
                Pool { padding, ..self }
            }
        };
        let (ones, axes) = counted.windows(x.scalar(1.0).full(sum.dtype(), spatial), 0.0);
        (sum / ones.reduce(Reduction::Sum, &axes)).cast(dtype)
    }

    /// The windows of `x`, and the axes of their elements, which come first: so runs along memory
    /// stay as long as the axes that windows slide over.
    pub fn windows<'e>(&self, x: Expr<'e>, fill: f64) -> (Expr<'e>, Axes) {
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
    pub fn joined<'e>(&self, windows: Expr<'e>, shape: Shape) -> Expr<'e> {
        let (rank, spatial) = (shape.rank(), self.size.len());
        let last = windows.permute((spatial..spatial + rank).chain(0..spatial).collect());
        let start = |axis: usize| (axis + spatial).checked_sub(rank).map_or(0, |i| self.padding[i]);
        let extra = |axis: usize| (axis + spatial).checked_sub(rank).map_or(0, |i| self.extra[i]);
        let padded = (0..rank).map(|axis| shape[axis] + (2 * start(axis) + extra(axis)).into());
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
        if self.padding.iter().chain(&self.extra).all(|&n| n == 0) {
            return x;
        }
        let lead = x.rank() - self.size.len();
        let start = |axis: usize| if axis < lead { 0 } else { self.padding[axis - lead] };
        let extra = |axis: usize| if axis < lead { 0 } else { self.extra[axis - lead] };
        let axes = 0..x.rank();
        let padded = |axis| x.size(axis) + (2 * start(axis) + extra(axis)).into();
        let shape = axes.clone().map(padded).collect();
        let at =
            axes.map(|axis| SliceAxis { start: start(axis).into(), step: 1, size: x.size(axis) });
        x.emit_with(Op::Pad(shape, at.collect()), &[x.arg(), x.scalar(fill).arg()])
    }
}

/// Means over windows chosen so that the last `spatial` axes get these sizes.
pub(super) fn adaptive_mean<'e>(op: &str, spatial: usize, x: Expr<'e>, sizes: &[i64]) -> Expr<'e> {
    let x = x.tensor();
    let Some(axis) = x.rank().checked_sub(spatial) else {
        throw(error::bad_rank(op, "x", format!("{spatial} or more"), x.shape()));
    };
    let sizes = per_axis(op, "output_size", sizes, spatial, 1);
    // Each product moves the axis behind the others: so the next one stands in its place.
    sizes.iter().fold(wide(x), |y, &m| averaged(y, axis, m.into())).cast(x.dtype())
}

/// `x` with `axis` replaced by a last axis of `m` means.
pub(super) fn averaged(x: Expr<'_>, axis: usize, m: Dim) -> Expr<'_> {
    let n = x.size(axis);
    let count = x.whole(n);
    let out = x.iota(DType::I64, Shape::from_dims(&[m, Dim::ONE]), 0);
    let each = x.whole(m);
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
