//! Products of `nn`: linear maps, attention, embedding; and dropout.

use smallvec::SmallVec;

use super::attention::{Heads, batched};
use super::nn_activation::softmax;
use super::nn_norm::wide;
use super::promoted;
use super::reduction::logsumexp;
use crate::dtype::DType;
use crate::error;
use crate::ops::attributes::{Contraction, Reduction};
use crate::ops::batch::{Batched, BatchedCall};
use crate::ops::declare::Outputs;
use crate::ops::emit::{Arg, Expr, throw};
use crate::ops::op::Type;
use crate::shape::{Axes, Shape};

composite! {
    /// `x weightᵀ + bias`.
    ///
    /// `x` (…, in), `weight` (out, in), `bias` (out,), floating; the result is (…, out). Raises
    /// ShapeError where the sizes differ.
    ///
    /// >>> import wengert as wg
    /// >>> wg.nn.linear(wg.ones((5, 3)), wg.ones((2, 3)), wg.ones(2)).shape
    /// (5, 2)
    nn function linear(
        x: FloatTensor, weight: FloatTensor, bias: MaybeFloatTensor = None,
    ) -> One {
        check_linear(x, weight, bias);
        let parts: SmallVec<[Expr; 3]> = [Some(x), Some(weight), bias].into_iter().flatten().collect();
        let parts = promoted(&parts, "linear");
        let y = product(parts[0], parts[1], &[x.rank() - 1], &[1]);
        parts.get(2).map_or(y, |b| y + *b)
    }
    precision(Narrow)
    vjp(g, y) {
        x: product(g, weight.cast(g.dtype()), &[g.rank() - 1], &[0]),
        weight: {
            let lead: Axes = (0..g.rank() - 1).collect();
            product(g, x.cast(g.dtype()), &lead, &lead)
        },
        bias: g,
    }

    /// `aᵀ weight[o] b + bias[o]` for each o.
    ///
    /// `a` (…, I), `b` (…, J), `weight` (O, I, J), `bias` (O,), floating; the result is (…, O). Raises
    /// ShapeError where the sizes differ.
    nn function bilinear(
        a: FloatTensor, b: FloatTensor, weight: FloatTensor, bias: MaybeFloatTensor = None,
    ) -> One {
        let parts: Vec<Expr> = [Some(a), Some(b), Some(weight), bias].into_iter().flatten().collect();
        let lead = |x: Expr<'_>| Shape::from_dims(&x.shape().dims()[..x.rank() - 1]);
        let fits = weight.rank() == 3
            && a.rank() > 0
            && a.rank() == b.rank()
            && lead(a).equals(&lead(b))
            && a.size(a.rank() - 1).equals(weight.size(1))
            && b.size(b.rank() - 1).equals(weight.size(2))
            && bias.is_none_or(|c| c.shape().equals(&Shape::from_dims(&[weight.size(0)])));
        if !fits {
            let shapes: Vec<String> = parts.iter().map(|x| x.shape().to_string()).collect();
            throw(error::bad_shape("bilinear", "the shapes do not fit", shapes.join(", ")));
        }
        let parts = promoted(&parts, "bilinear");
        let last = a.rank() - 1;
        // (…, O, J)
        let half = product(wide(parts[0]), wide(parts[2]), &[last], &[1]);
        let sum = (half * wide(parts[1]).unsqueeze(last)).reduce(Reduction::Sum, &[last + 1]);
        let sum = parts.get(3).map_or(sum, |c| sum + wide(*c));
        sum.cast(parts[0].dtype())
    }

    /// Rows of a table.
    ///
    /// `indices`: integers of any shape; `weight`: (rows, …). The result has the shape of `indices`
    /// followed by that of a row. Negative indices count from the end; IndexError outside the
    /// table. `sparse`: an eager `backward` leaves a `RowSparse` as `weight.grad`, if lookups alone
    /// make it.
    ///
    /// >>> import wengert as wg
    /// >>> wg.nn.embedding(wg.tensor([2, 0]), wg.tensor([[1, 2], [3, 4], [5, 6]])).tolist()
    /// [[5, 6], [1, 2]]
    nn function embedding(
        indices: IntTensor, weight: Tensor; sparse: Bool = False,
    ) -> One inline {
        let weight = weight.tensor();
        if sparse {
            weight.allow_rows();
        }
        if weight.rank() == 0 {
            throw(error::bad_rank("embedding", "weight", "1 or more", weight.shape()));
        }
        weight.gather(&[indices.cast(DType::I64)])
    }
    indexes(First)

    /// Zeroes each element with probability `p` and divides the others by `1 - p`.
    ///
    /// Floating, any shape; unchanged where `training` is False. `key`: random key, None draws one.
    /// Backward draws the same numbers again, so only the key is kept. Raises ValueError for `p`
    /// outside [0, 1].
    nn function dropout(
        x: FloatTensor, p: Float = 0.5; training: Bool = True, key: Key = None,
    ) -> One {
        drop_out(x, p, training, key)
    }
    vjp(g, y) { x: drop_out(g, p, training, key), key: zero }

    /// Softmax of `q kᵀ · scale` over the last axis, times `v`.
    ///
    /// `q` (…, L, E), `k` (…, S, E), `v` (…, S, F), floating; leading axes broadcast; the result is
    /// (…, L, F). `mask` broadcasts to (…, L, S): bool says where to attend, a floating one is
    /// added to the scores. `is_causal` lets position i attend to positions up to i. `scale`:
    /// `1/√E` where None. A position that attends to nothing gives NaN. Raises ShapeError for other
    /// shapes.
    ///
    /// Source: Vaswani et al.: Attention is all you need, 2017.
    nn function scaled_dot_product_attention(
        q: FloatTensor, k: FloatTensor, v: FloatTensor; mask: MaybeTensor = None,
        is_causal: Bool = False, scale: MaybeFloat = None,
    ) -> One {
        let heads = Heads::new([q, k, v], mask, is_causal, scale);
        let (scores, last) = (heads.scores(), heads.last);
        let y = batched(softmax(scores.cx(), scores, -1)[0], heads.v, last, last - 1);
        let axis = Some(SmallVec::from_slice(&[-1]));
        (y, logsumexp(scores.cx(), wide(scores), axis, false)[0])
    }
    precision(Narrow)
    kernel(Attention)
    batch(as_leading_axis)
    vjp(
        g, y, logsums: g_logsums;
        found = attention_gradients(
            y.cx(), g, q, k, v, y, logsums, mask, g_logsums, is_causal, scale,
        ),
    ) {
        q: found[0],
        k: found[1],
        v: found[2],
        mask: {
            let heads = Heads::new([q, k, v], mask, is_causal, scale).wide();
            heads.gradient(g, y, logsums, g_logsums).1
        },
    }

    /// The cotangents of `q`, `k` and `v` of `scaled_dot_product_attention`, from its result, the
    /// logarithms of the sums of exponentials, and their cotangents.
    hidden function attention_gradients(
        g: FloatTensor, q: FloatTensor, k: FloatTensor, v: FloatTensor, y: FloatTensor,
        logsums: FloatTensor, mask: MaybeTensor = None, g_logsums: MaybeFloatTensor = None;
        is_causal: Bool = False, scale: MaybeFloat = None,
    ) -> Exactly(3) {
        let heads = Heads::new([q, k, v], mask, is_causal, scale);
        let (dtype, heads, last) = (heads.q.dtype(), heads.wide(), heads.last);
        let (weights, slope) = heads.gradient(g, y, logsums, g_logsums);
        let found = (
            batched(slope, heads.k, last, last - 1) * heads.scale,
            batched(slope, heads.q * heads.scale, last - 1, last - 1),
            batched(weights, wide(g), last - 1, last - 1),
        );
        (found.0.cast(dtype), found.1.cast(dtype), found.2.cast(dtype))
    }
    kernel(AttentionGradients)
    batch(as_leading_axis)
}

/// Attention on many examples, which are one more leading axis: queries, keys, values and mask are
/// broadcast to each other, and all else has the common leading axes.
fn as_leading_axis<'e>(batch: &BatchedCall<'_, 'e>) -> Option<Outputs<'e>> {
    let broadcast = batch.places(["q", "k", "v", "mask"]);
    let heads: SmallVec<[usize; 3]> = broadcast[..3].iter().copied().flatten().collect();
    let rank = heads.iter().map(|&i| batch.args[i].rank()).max().unwrap_or(0);
    // What the gradient or the mask alone has examples of is computed for each.
    let some = heads.iter().any(|&i| batch.args[i].mapped);
    let operands = batch.args.iter().enumerate().map(|(i, &x)| {
        let is_broadcast = broadcast.contains(&Some(i));
        let stays = is_broadcast && (some || Some(i) != broadcast[0]);
        let x = if stays { x } else { Batched { x: x.spread(batch.size), mapped: true } };
        if is_broadcast { x.padded(rank).arg() } else { x.x.arg() }
    });
    Some(batch.on(&operands.collect::<SmallVec<[Arg; 8]>>()))
}

fn check_linear(x: Expr<'_>, weight: Expr<'_>, bias: Option<Expr<'_>>) {
    if weight.rank() != 2 {
        throw(error::bad_rank("linear", "weight", "2", weight.shape()));
    }
    if x.rank() == 0 {
        throw(error::bad_rank("linear", "x", "1 or more", x.shape()));
    }
    let inputs = x.size(x.rank() - 1);
    if !inputs.equals(weight.size(1)) {
        let facts = format!("x {} and weight {}", x.shape(), weight.shape());
        throw(error::size_mismatch("linear", "last sizes", inputs, weight.size(1), facts));
    }
    if let Some(b) = bias.filter(|b| !b.shape().equals(&Shape::from_dims(&[weight.size(0)]))) {
        let facts = format!("got {}, wanted ({},)", b.shape(), weight.size(0));
        throw(error::bad_shape("linear", "the shape of bias differs", facts));
    }
}

/// A product over pairs of axes; the free axes follow each other.
pub fn product<'e>(a: Expr<'e>, b: Expr<'e>, a_axes: &[usize], b_axes: &[usize]) -> Expr<'e> {
    let none = Axes::new();
    a.contract(
        b,
        Contraction {
            a_batch: none.clone(),
            b_batch: none,
            a_contract: a_axes.into(),
            b_contract: b_axes.into(),
        },
    )
}

/// `x` with some elements zeroed and the others scaled up. An element is kept where 32 random bits
/// reach `p · 2³²`.
fn drop_out<'e>(x: Expr<'e>, p: f64, training: bool, key: Expr<'e>) -> Expr<'e> {
    if !(0.0..=1.0).contains(&p) {
        throw(error::bad_value("dropout", "p is a probability", format!("got {p}")));
    }
    let x = x.tensor();
    if !training || p == 0.0 {
        return x;
    }
    let limit = (p * 2f64.powi(32)).round() as i64;
    if limit > u32::MAX.into() {
        return x.zeros_like();
    }
    let bits = super::random::bits_of("dropout", key, Type::new(DType::U32, x.shape()));
    bits.greater_equal(bits.scalar(limit)).select(x * (1.0 / (1.0 - p)), x.scalar(0.0))
}
