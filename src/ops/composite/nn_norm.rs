//! Normalisations of `nn`, each one node with the closed form of its gradient.
//!
//! Half floats are normalised in float32 and rounded once.

use smallvec::SmallVec;

use super::nn_conv::per_axis;
use super::reduction::{joined, named_axes};
use crate::dtype::DType;
use crate::error;
use crate::ops::attributes::Reduction;
use crate::ops::emit::{Expr, throw};
use crate::ops::structural::whole;
use crate::shape::{Axes, Dim, Shape};

composite! {
    /// Normalises to mean 0 and variance 1 over some axes, then scales and shifts.
    ///
    /// `x` is floating; `axis` an axis or a tuple of axes; `weight` and `bias` have the sizes of
    /// these axes, in order. `eps` is added to the variance. Raises ShapeError for other sizes.
    ///
    /// >>> import wengert as wg
    /// >>> wg.nn.layer_norm(wg.tensor([[1.0, 3.0], [8.0, 2.0]]), eps=0.0).tolist()
    /// [[-1.0, 1.0], [1.0, -1.0]]
    nn function layer_norm(
        x: FloatTensor, axis: Axes = -1, weight: MaybeFloatTensor = None,
        bias: MaybeFloatTensor = None; eps: Float = 1e-5,
    ) -> One {
        let axes = named_axes(x, axis.as_deref(), "layer_norm");
        let full = wide(x);
        let middle = mean(full, &axes);
        let centred = full - middle;
        let scale = root(centred, &axes, eps);
        let y = affine("layer_norm", x, centred * scale, &axes, weight, bias);
        let rest = x.shape().reduce(&axes, false);
        (y, middle.reshape(rest.clone()), scale.reshape(rest))
    }
    precision(Wide)
    kernel(LayerNorm)
    vjp(
        g, y, middle: g_middle, deviation: g_deviation;
        found = layer_norm_gradients(
            y.cx(), g, x, middle, deviation, weight, g_middle, g_deviation,
            axis.clone(), bias.is_some(),
        ),
    ) {
        x: found[0],
        weight: found[1],
        bias: found[2],
    }

    /// The cotangents of `x`, `weight` and `bias` of `layer_norm`, from what it saved, and the
    /// cotangents of that. Zero where there is no such parameter.
    hidden function layer_norm_gradients(
        g: FloatTensor, x: FloatTensor, middle: FloatTensor, deviation: FloatTensor,
        weight: MaybeFloatTensor = None, g_middle: MaybeFloatTensor = None,
        g_deviation: MaybeFloatTensor = None; axis: Axes = -1, shifts: Bool = True,
    ) -> Exactly(3) {
        let axes = named_axes(x, axis.as_deref(), "layer_norm");
        let kept = x.shape().reduce(&axes, true);
        let scale = deviation.reshape(kept.clone());
        let centred = wide(x) - middle.reshape(kept.clone());
        let (normal, g) = (centred * scale, wide(g));
        let own = {
            let g = weighted(g, weight, &axes);
            let own = scale * (g - mean(g, &axes) - normal * mean(g * normal, &axes));
            let count = joined(wide(x), &axes);
            // Derivatives of derivatives reach the saved values too.
            let own = g_middle.map_or(own, |h| own + h.reshape(kept.clone()) / count);
            g_deviation.map_or(own, |h| {
                let cube = scale * scale * scale * h.reshape(kept.clone());
                own - centred * (cube / count)
            })
        };
        let none = || g.scalar(0.0).full(g.dtype(), Shape::scalar());
        (
            own.cast(x.dtype()),
            weight.map_or_else(none, |w| onto(g * normal, &axes).cast(w.dtype())),
            if shifts { onto(g, &axes) } else { none() },
        )
    }
    kernel(LayerNormGradients)

    /// Divides by the root of the mean square over some axes, then scales.
    ///
    /// `x` is floating; `axis` an axis or a tuple of axes; `weight` has the sizes of these axes.
    /// `eps` is added to the mean square; where None, the distance from 1 to the next number, of
    /// float64 for `x` of that dtype, else of float32. Source: Zhang, Sennrich: Root mean square
    /// layer normalization, 2019.
    nn function rms_norm(
        x: FloatTensor, axis: Axes = -1, weight: MaybeFloatTensor = None; eps: MaybeFloat = None,
    ) -> One {
        let axes = named_axes(x, axis.as_deref(), "rms_norm");
        let full = wide(x);
        affine("rms_norm", x, full * root(full, &axes, added(x, eps)), &axes, weight, None)
    }
    precision(Wide)
    vjp(
        g, y;
        axes = named_axes(x, axis.as_deref(), "rms_norm"),
        scaled = Scaled::new((wide(x), root(wide(x), &axes, added(x, eps)))),
    ) {
        x: {
            let (normal, g) = (scaled.normal, weighted(wide(g), weight, &axes));
            scaled.scale * (g - normal * mean(g * normal, &axes))
        },
        weight: onto(wide(g) * scaled.normal, &axes),
    }

    /// Normalises each channel (axis 1) by a given mean and variance, then scales and shifts.
    ///
    /// `x` is floating, (N, C, …); all others are (C,). `eps` is added to the variance. Gradients
    /// flow to `mean` and `var` too. Raises ShapeError for other sizes.
    nn function batch_norm(
        x: FloatTensor, mean: FloatTensor, var: FloatTensor, weight: MaybeFloatTensor = None,
        bias: MaybeFloatTensor = None; eps: Float = 1e-5,
    ) -> One {
        let (centred, scale) = channels(x, mean, var, eps);
        affine("batch_norm", x, centred * scale, &channel(), weight, bias)
    }
    precision(Wide)
    vjp(
        g, y;
        scale = (wide(var) + eps).rsqrt(),
        along_channel = |p| placed("batch_norm", "a parameter", p, g, &channel()),
        centred = wide(x) - along_channel(wide(mean)),
        behind = weighted(wide(g), weight, &channel()),
        sum = onto(wide(g), &channel()),
    ) {
        x: *behind * along_channel(*scale),
        mean: -(weight.map_or(*sum, |w| *sum * w) * *scale),
        var: onto(*behind * *centred, &channel()) * (*scale * *scale * *scale * -0.5),
        weight: onto(wide(g) * (*centred * along_channel(*scale)), &channel()),
        bias: *sum,
    }

    /// Normalises to mean 0 and variance 1 over groups of channels (axis 1) and all later axes.
    ///
    /// `x` is floating, (N, C, …); `weight` and `bias` are (C,). Raises ShapeError where the
    /// channels do not divide into `groups`. Source: Wu, He: Group normalization, 2018.
    nn function group_norm(
        x: FloatTensor, groups: Int, weight: MaybeFloatTensor = None,
        bias: MaybeFloatTensor = None; eps: Float = 1e-5,
    ) -> One {
        let lines = grouped(x, groups);
        let normal = layer_norm(x.cx(), x.reshape(lines), Some(SmallVec::from_slice(&[2])), None, None, eps);
        affine("group_norm", x, normal[0].reshape(x.shape()), &channel(), weight, bias)
    }
    precision(Wide)

    /// Normalises each channel of each example to mean 0 and variance 1 over all later axes.
    ///
    /// `x` is floating, (N, C, L, …); `weight` and `bias` are (C,). `eps` is added to the variance.
    /// Source: Ulyanov et al.: Instance normalization, 2016.
    nn function instance_norm(
        x: FloatTensor; weight: MaybeFloatTensor = None, bias: MaybeFloatTensor = None,
        eps: Float = 1e-5,
    ) -> One {
        if x.rank() < 3 {
            throw(error::bad_rank("instance_norm", "x", "3 or more", x.shape()));
        }
        let axes = (2..x.rank() as i64).collect();
        let normal = layer_norm(x.cx(), x, Some(axes), None, None, eps);
        affine("instance_norm", x, normal[0], &channel(), weight, bias)
    }
    precision(Wide)

    /// Divides by a power of the mean square of neighbouring channels (axis 1).
    ///
    /// `x / (k + alpha · m) ** beta`, where m is the mean of squares over `size` channels, those
    /// beyond the first and the last being zeros. `x` is floating, (N, C, …). Source: Krizhevsky et
    /// al.: ImageNet classification with deep convolutional neural networks, 2012.
    nn function local_response_norm(
        x: FloatTensor, size: Int, alpha: Float = 1e-4, beta: Float = 0.75, k: Float = 1.0,
    ) -> One {
        let op = "local_response_norm";
        if x.rank() < 2 {
            throw(error::bad_rank(op, "x", "2 or more", x.shape()));
        }
        let size = per_axis(op, "size", &[size], 1, 1)[0];
        let full = wide(x);
        let square = full * full;
        let mut shape = x.shape();
        shape.dims_mut()[1] = shape[1] + (size - 1).into();
        let mut at = whole(&x.shape());
        at[1].start = (size / 2).into();
        let padded = square.embed(shape, at);
        let part = |i: usize| padded.narrow(1, i, x.size(1));
        let sum = (1..size).fold(part(0), |sum, i| sum + part(i));
        let scale = (sum * (alpha / size as f64) + k).pow(full.scalar(beta));
        (full / scale).cast(x.dtype())
    }
    precision(Wide)
}

/// A value in the dtype that sums are taken in; a number stays one.
pub fn wide(x: Expr<'_>) -> Expr<'_> {
    if x.is_number() {
        return x;
    }
    match x.dtype() {
        DType::F16 | DType::BF16 => x.cast(DType::F32),
        DType::Bool
        | DType::I8
        | DType::I16
        | DType::I32
        | DType::I64
        | DType::U8
        | DType::U16
        | DType::U32
        | DType::U64
        | DType::F32
        | DType::F64 => x.tensor(),
    }
}

/// The mean over axes, which stay with size 1.
fn mean<'e>(x: Expr<'e>, axes: &[usize]) -> Expr<'e> {
    x.reduce_keep(Reduction::Sum, axes) / joined(x, axes)
}

/// A value brought to the scale 1, and the factor that did it.
struct Scaled<'e> {
    normal: Expr<'e>,
    scale: Expr<'e>,
}

impl<'e> Scaled<'e> {
    fn new((x, scale): (Expr<'e>, Expr<'e>)) -> Scaled<'e> {
        Scaled { normal: x * scale, scale }
    }
}

/// What `rms_norm` adds to the mean square.
fn added(x: Expr<'_>, eps: Option<f64>) -> f64 {
    eps.unwrap_or(if x.dtype() == DType::F64 { f64::EPSILON } else { f64::from(f32::EPSILON) })
}

/// One over the root of the mean square.
fn root<'e>(x: Expr<'e>, axes: &[usize], eps: f64) -> Expr<'e> {
    (mean(x * x, axes) + eps).rsqrt()
}

/// `x` less the given mean, and one over the given standard deviation.
fn channels<'e>(x: Expr<'e>, mean: Expr<'e>, var: Expr<'e>, eps: f64) -> (Expr<'e>, Expr<'e>) {
    if x.rank() < 2 {
        throw(error::bad_rank("batch_norm", "x", "2 or more", x.shape()));
    }
    let place = |name, v| placed("batch_norm", name, wide(v), x, &channel());
    (wide(x) - place("mean", mean), (place("var", var) + eps).rsqrt())
}

/// The channel axis.
fn channel() -> Axes {
    Axes::from_slice(&[1])
}

/// The shape in which a group is one line.
fn grouped(x: Expr<'_>, groups: i64) -> Shape {
    if x.rank() < 2 {
        throw(error::bad_rank("group_norm", "x", "2 or more", x.shape()));
    }
    let count = usize::try_from(groups).unwrap_or(0);
    let channels = x.size(1);
    if count == 0 || !(channels % count.into()).equals(0) {
        let facts = format!("{channels} channels of {} and groups={groups}", x.shape());
        throw(error::bad_shape("group_norm", "channels do not divide into groups", facts));
    }
    let rest = x.shape().dims()[1..].iter().fold(Dim::ONE, |n, &size| n * size);
    Shape::from_dims(&[x.size(0), count.into(), rest / count.into()])
}

/// A parameter with the sizes of some axes of `x`, laid along these axes.
fn placed<'e>(op: &str, name: &str, p: Expr<'e>, x: Expr<'e>, axes: &[usize]) -> Expr<'e> {
    let own: Shape = axes.iter().map(|&axis| x.size(axis)).collect();
    if !p.shape().equals(&own) {
        let facts = format!("got {}, wanted {own} for x {}", p.shape(), x.shape());
        throw(error::bad_shape(op, format!("the shape of {name} differs"), facts));
    }
    let sizes = (0..x.rank()).map(|i| if axes.contains(&i) { x.size(i) } else { Dim::ONE });
    p.reshape(sizes.collect())
}

/// Scaled and shifted along axes, in the dtype of the operands.
fn affine<'e>(
    op: &str,
    x: Expr<'e>,
    normal: Expr<'e>,
    axes: &[usize],
    weight: Option<Expr<'e>>,
    bias: Option<Expr<'e>>,
) -> Expr<'e> {
    let dtype = [weight, bias]
        .into_iter()
        .flatten()
        .fold(x.dtype(), |dtype, p| dtype.promote(p.dtype()).unwrap_or(dtype));
    let y = weight.map_or(normal, |w| normal * placed(op, "weight", w, x, axes));
    bias.map_or(y, |b| y + placed(op, "bias", b, x, axes)).cast(dtype)
}

/// A cotangent behind the scale.
fn weighted<'e>(g: Expr<'e>, weight: Option<Expr<'e>>, axes: &[usize]) -> Expr<'e> {
    weight.map_or(g, |w| g * placed("", "weight", w, g, axes))
}

/// Sums away all axes but these.
fn onto<'e>(g: Expr<'e>, axes: &[usize]) -> Expr<'e> {
    let others: Axes = (0..g.rank()).filter(|axis| !axes.contains(axis)).collect();
    g.reduce(Reduction::Sum, &others)
}
