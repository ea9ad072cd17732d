//! Convolutions of `nn` over one to three axes, and their transposes.

use super::nn_window::without_batch;
use super::promoted;
use crate::error;
use crate::ops::attributes::{ConvRole, ConvSpec, PerAxis};
use crate::ops::declare::Padded;
use crate::ops::emit::{Expr, throw};
use crate::ops::structural::whole;
use crate::shape::{Dim, Dims, Shape};

composite! {
    /// Convolution over the last axis.
    ///
    /// `x` (N, C, L), `weight` (O, C / groups, K), `bias` (O,), floating; the result is (N, O, L')
    /// with `L' = (L + 2 padding - dilation (K - 1) - 1) // stride + 1`. Also without N. `padding` is
    /// also "valid", none, or "same" for a stride of 1, so much that L' = L; what does not divide by
    /// two is added behind. Raises ShapeError where channels or ranks differ or the window does not
    /// fit.
    nn function conv1d(
        x: FloatTensor, weight: FloatTensor, bias: MaybeFloatTensor = None, stride: Ints = 1,
        padding: Padding = 0, dilation: Ints = 1, groups: Int = 1,
    ) -> One inline {
        Conv::padded("conv1d", 1, &stride, &padding, &dilation, groups, weight)
            .apply(x, weight, bias)
    }
    precision(Narrow)

    /// Convolution over the last two axes.
    ///
    /// `x` (N, C, H, W), `weight` (O, C / groups, I, J), `bias` (O,), floating; the result is
    /// (N, O, H', W'), with sizes as in `conv1d`. Geometry is one int or a pair. Raises ShapeError
    /// where channels or ranks differ or the window does not fit.
    ///
    /// >>> import wengert as wg
    /// >>> wg.nn.conv2d(wg.ones((1, 2, 5, 5)), wg.ones((4, 2, 3, 3)), stride=2, padding=1).shape
    /// (1, 4, 3, 3)
    nn function conv2d(
        x: FloatTensor, weight: FloatTensor, bias: MaybeFloatTensor = None, stride: Ints = 1,
        padding: Padding = 0, dilation: Ints = 1, groups: Int = 1,
    ) -> One inline {
        Conv::padded("conv2d", 2, &stride, &padding, &dilation, groups, weight)
            .apply(x, weight, bias)
    }
    precision(Narrow)

    /// Convolution over the last three axes.
    ///
    /// `x` (N, C, D, H, W), `weight` (O, C / groups, I, J, K), `bias` (O,), floating; sizes as in
    /// `conv1d`. Geometry is one int or three. Raises ShapeError where channels or ranks differ or
    /// the window does not fit.
    nn function conv3d(
        x: FloatTensor, weight: FloatTensor, bias: MaybeFloatTensor = None, stride: Ints = 1,
        padding: Padding = 0, dilation: Ints = 1, groups: Int = 1,
    ) -> One inline {
        Conv::padded("conv3d", 3, &stride, &padding, &dilation, groups, weight)
            .apply(x, weight, bias)
    }
    precision(Narrow)

    /// The transpose of `conv1d` as a linear map of its input.
    ///
    /// `x` (N, C, L), `weight` (C, O / groups, K), `bias` (O,), floating; the result is (N, O, L')
    /// with `L' = (L - 1) stride - 2 padding + dilation (K - 1) + output_padding + 1`.
    /// `output_padding` must be less than `stride` or `dilation`. Also without N. Raises ShapeError
    /// where channels or ranks differ or L' is not positive.
    nn function conv_transpose1d(
        x: FloatTensor, weight: FloatTensor, bias: MaybeFloatTensor = None, stride: Ints = 1,
        padding: Ints = 0, output_padding: Ints = 0, groups: Int = 1, dilation: Ints = 1,
    ) -> One inline {
        Conv::new("conv_transpose1d", 1, &stride, &padding, &dilation, groups)
            .transpose(x, weight, bias, &output_padding)
    }
    precision(Narrow)

    /// The transpose of `conv2d` as a linear map of its input.
    ///
    /// `x` (N, C, H, W), `weight` (C, O / groups, I, J), `bias` (O,), floating; sizes and errors as
    /// in `conv_transpose1d`. Geometry is one int or a pair.
    nn function conv_transpose2d(
        x: FloatTensor, weight: FloatTensor, bias: MaybeFloatTensor = None, stride: Ints = 1,
        padding: Ints = 0, output_padding: Ints = 0, groups: Int = 1, dilation: Ints = 1,
    ) -> One inline {
        Conv::new("conv_transpose2d", 2, &stride, &padding, &dilation, groups)
            .transpose(x, weight, bias, &output_padding)
    }
    precision(Narrow)

    /// The transpose of `conv3d` as a linear map of its input.
    ///
    /// `x` (N, C, D, H, W), `weight` (C, O / groups, I, J, K), `bias` (O,), floating; sizes and
    /// errors as in `conv_transpose1d`. Geometry is one int or three.
    nn function conv_transpose3d(
        x: FloatTensor, weight: FloatTensor, bias: MaybeFloatTensor = None, stride: Ints = 1,
        padding: Ints = 0, output_padding: Ints = 0, groups: Int = 1, dilation: Ints = 1,
    ) -> One inline {
        Conv::new("conv_transpose3d", 3, &stride, &padding, &dilation, groups)
            .transpose(x, weight, bias, &output_padding)
    }
    precision(Narrow)
}

/// The numbers that a user gave for `rank` spatial axes: one for all, or one each; none below
/// `least`.
pub fn per_axis(op: &str, name: &str, values: &[i64], rank: usize, least: i64) -> PerAxis {
    if values.len() != 1 && values.len() != rank {
        let what = format!("{name} must be one int or {rank}");
        throw(error::bad_value(op, what, format!("got {}", values.len())));
    }
    if let Some(n) = values.iter().find(|n| !(least..=i64::from(i32::MAX)).contains(*n)) {
        let what = format!("{name} must be at least {least} and below 2**31");
        throw(error::bad_value(op, what, format!("got {n}")));
    }
    (0..rank).map(|i| values[i.min(values.len() - 1)] as usize).collect()
}

/// The geometry of a call.
struct Conv {
    op: &'static str,
    stride: PerAxis,
    /// Before each axis
    padding: PerAxis,
    /// Behind each axis
    behind: PerAxis,
    dilation: PerAxis,
    groups: usize,
}

impl Conv {
    fn new(
        op: &'static str,
        rank: usize,
        stride: &[i64],
        padding: &[i64],
        dilation: &[i64],
        groups: i64,
    ) -> Conv {
        let padding = per_axis(op, "padding", padding, rank, 0);
        Conv {
            op,
            stride: per_axis(op, "stride", stride, rank, 1),
            behind: padding.clone(),
            padding,
            dilation: per_axis(op, "dilation", dilation, rank, 1),
            groups: per_axis(op, "groups", &[groups], 1, 1)[0],
        }
    }

    /// A geometry whose padding may be a word.
    fn padded(
        op: &'static str,
        rank: usize,
        stride: &[i64],
        padding: &Padded,
        dilation: &[i64],
        groups: i64,
        weight: Expr<'_>,
    ) -> Conv {
        let word = match padding {
            Padded::By(n) => return Conv::new(op, rank, stride, n, dilation, groups),
            Padded::Word(word) => word.as_str(),
        };
        let mut conv = Conv::new(op, rank, stride, &[0], dilation, groups);
        match word {
            "valid" => {}
            "same" if conv.stride.iter().any(|&n| n != 1) => {
                let facts = format!("got {:?}", conv.stride.as_slice());
                throw(error::bad_value(op, "padding \"same\" is for a stride of 1", facts));
            }
            "same" if weight.rank() == rank + 2 => {
                for i in 0..rank {
                    let more = conv.reach(weight, i).value().saturating_sub(1);
                    (conv.padding[i], conv.behind[i]) = (more / 2, more.div_ceil(2));
                }
            }
            "same" => {}
            _ => {
                let what = "padding must be ints, \"same\" or \"valid\"";
                throw(error::bad_value(op, what, format!("got {word:?}")));
            }
        }
        conv
    }

    fn apply<'e>(self, x: Expr<'e>, weight: Expr<'e>, bias: Option<Expr<'e>>) -> Expr<'e> {
        let (x, batched) = self.with_batch(x);
        let (x, weight, bias) = self.operands(x, weight, bias, weight.shape().dims().first());
        let (outputs, inputs, groups) = (weight.size(0), weight.size(1), Dim::new(self.groups));
        if !x.size(1).equals(inputs * groups) {
            let facts = format!(
                "input has {} channels, weight {} with groups={} takes {}",
                x.size(1),
                weight.shape(),
                self.groups,
                inputs * groups,
            );
            throw(error::bad_shape(self.op, "channels differ", facts));
        }
        self.check_groups(outputs, weight);
        for i in 0..self.stride.len() {
            let padded = x.size(i + 2) + (self.padding[i] + self.behind[i]).into();
            if padded.is_below(self.reach(weight, i)) {
                let facts = format!(
                    "window {} on axis {} of input {} with padding {}",
                    self.reach(weight, i),
                    i + 2,
                    x.shape(),
                    self.padding[i],
                );
                throw(error::bad_shape(self.op, "the window is larger than the axis", facts));
            }
        }
        let sizes = spatial(x);
        let y = shifted(x.conv(ConvRole::Output, weight, self.spec(weight, sizes)), bias);
        without_batch(y, batched)
    }

    fn transpose<'e>(
        mut self,
        x: Expr<'e>,
        weight: Expr<'e>,
        bias: Option<Expr<'e>>,
        extra: &[i64],
    ) -> Expr<'e> {
        let rank = self.stride.len();
        let extra = per_axis(self.op, "output_padding", extra, rank, 0);
        let outputs = weight.shape().dims().get(1).map(|&n| n * self.groups.into());
        let (x, batched) = self.with_batch(x);
        let (x, weight, bias) = self.operands(x, weight, bias, outputs.as_ref());
        if !x.size(1).equals(weight.size(0)) {
            let facts = format!(
                "input has {} channels, weight {} takes {}",
                x.size(1),
                weight.shape(),
                weight.size(0),
            );
            throw(error::bad_shape(self.op, "channels differ", facts));
        }
        self.check_groups(weight.size(0), weight);
        // No window reaches what is added behind: of that, the convolution makes what its stride
        // has room for, and zeros are the rest, where padding does not take them away.
        let mut rest: PerAxis = (0..rank).map(|_| 0).collect();
        let mut sizes = Dims::new();
        for i in 0..rank {
            if extra[i] >= self.stride[i].max(self.dilation[i]) {
                let facts = format!("got {}, {}, {}", extra[i], self.stride[i], self.dilation[i]);
                let what = "output_padding must be less than stride or dilation";
                throw(error::bad_value(self.op, what, facts));
            }
            let own = extra[i].min(self.stride[i] - 1);
            let less = (extra[i] - own).min(self.padding[i]);
            rest[i] = extra[i] - own - less;
            self.behind[i] -= less;
            let steps = (x.size(i + 2) - Dim::ONE) * self.stride[i].into();
            let full = steps + self.reach(weight, i) + own.into();
            let size = full - (self.padding[i] + self.behind[i]).into();
            if x.size(i + 2).equals(0) || size.equals(0) {
                let facts = format!("input {} with padding {}", x.shape(), self.padding[i]);
                throw(error::bad_shape(self.op, "nothing is left of an axis", facts));
            }
            sizes.push(size);
        }
        let y = x.conv(ConvRole::Input, weight, self.spec(weight, sizes));
        without_batch(shifted(widened(y, &rest), bias), batched)
    }

    /// The images as a batch, and whether they came as one.
    fn with_batch<'e>(&self, x: Expr<'e>) -> (Expr<'e>, bool) {
        match x.rank() == self.stride.len() + 1 {
            true => (x.unsqueeze(0), false),
            false => (x, true),
        }
    }

    /// The operands in one dtype, of the right ranks.
    fn operands<'e>(
        &self,
        x: Expr<'e>,
        weight: Expr<'e>,
        bias: Option<Expr<'e>>,
        outputs: Option<&Dim>,
    ) -> (Expr<'e>, Expr<'e>, Option<Expr<'e>>) {
        let rank = self.stride.len() + 2;
        for (name, operand) in [("input", x), ("weight", weight)] {
            if operand.rank() != rank {
                throw(error::bad_rank(self.op, name, rank, operand.shape()));
            }
        }
        if weight.shape().dims()[2..].iter().any(|&n| n.equals(0)) {
            let facts = format!("weight {}", weight.shape());
            throw(error::bad_shape(self.op, "the window is empty", facts));
        }
        if let (Some(b), Some(&n)) = (bias, outputs)
            && !b.shape().equals(&Shape::from_dims(&[n]))
        {
            let facts = format!("got {}, wanted ({n},)", b.shape());
            throw(error::bad_shape(self.op, "the shape of bias differs", facts));
        }
        let parts: Vec<Expr<'e>> = [Some(x), Some(weight), bias].into_iter().flatten().collect();
        let parts = promoted(&parts, self.op);
        (parts[0], parts[1], parts.get(2).copied())
    }

    fn check_groups(&self, channels: Dim, weight: Expr<'_>) {
        if !(channels % self.groups.into()).equals(0) {
            let facts = format!("weight {} with groups={}", weight.shape(), self.groups);
            throw(error::bad_shape(self.op, "channels do not divide into groups", facts));
        }
    }

    /// How many elements a window spans along spatial axis `i`.
    fn reach(&self, weight: Expr<'_>, i: usize) -> Dim {
        (weight.size(i + 2) - Dim::ONE) * self.dilation[i].into() + Dim::ONE
    }

    fn spec(self, weight: Expr<'_>, input: Dims) -> Box<ConvSpec> {
        Box::new(ConvSpec {
            stride: self.stride,
            pad_low: self.padding,
            pad_high: self.behind,
            dilation: self.dilation,
            groups: self.groups,
            input,
            kernel: spatial(weight),
        })
    }
}

/// Images with zeros behind their axes.
fn widened<'e>(x: Expr<'e>, by: &[usize]) -> Expr<'e> {
    if by.iter().all(|&n| n == 0) {
        return x;
    }
    let at = whole(&x.shape());
    let mut shape = x.shape();
    for (i, &n) in by.iter().enumerate() {
        shape.dims_mut()[i + 2] = shape[i + 2] + n.into();
    }
    x.embed(shape, at)
}

fn spatial(x: Expr<'_>) -> Dims {
    Dims::from_slice(&x.shape().dims()[2..])
}

/// Plus a number for each channel.
fn shifted<'e>(y: Expr<'e>, bias: Option<Expr<'e>>) -> Expr<'e> {
    let Some(b) = bias else { return y };
    let mut shape = Shape::of(&vec![1; y.rank()]);
    shape.dims_mut()[1] = b.size(0);
    y + b.reshape(shape)
}
