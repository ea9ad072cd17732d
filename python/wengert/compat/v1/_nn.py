"""`tf.nn`: images have channels last, and TensorFlow's padding; losses are row by row."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import wengert as wg
from wengert.compat.v1._formulas import Moments
from wengert.compat.v1._graph import named
from wengert.compat.v1._spaces import formula, nn
from wengert.compat.v1._state import key_of
from wengert.compat.v1._table import as_tensor


@formula(nn)
def l2_loss(t: Any, name: str | None = None) -> wg.Tensor:
    """Half the sum of squares."""
    return named((t * t).sum() / 2.0, name)


@formula(nn)
def dropout(
    x: Any,
    keep_prob: Any = None,
    noise_shape: Any = None,
    seed: int | None = None,
    name: str | None = None,
    rate: Any = None,
) -> wg.Tensor:
    """Elements set to zero with probability `rate`, which is `1 - keep_prob`; the others grow.

    Axes of size 1 in `noise_shape` share their draw.
    """
    if (keep_prob is None) == (rate is None):
        raise ValueError("tf.nn.dropout: pass either keep_prob or rate")
    x = as_tensor(x)
    keep: Any = keep_prob if rate is None else 1.0 - rate
    if isinstance(keep, float | int):
        if not 0.0 < keep <= 1.0:
            raise ValueError(f"tf.nn.dropout: keep_prob is in (0, 1], got {keep}")
        if keep == 1.0:
            return named(x, name)
    else:
        keep = as_tensor(keep).reshape(()).astype(x.dtype)
    shape = x if noise_shape is None else wg.zeros(tuple(noise_shape), dtype=x.dtype)
    drawn = wg.random.bernoulli(wg.ones_like(shape) * keep, key=key_of(seed))
    return named(wg.where(drawn, x / keep, 0.0), name)


@formula(nn)
def bias_add(
    value: Any, bias: Any, data_format: str | None = None, name: str | None = None
) -> wg.Tensor:
    """`value` with a number added to each channel."""
    if data_format in ("NCHW", "NCW", "NCDHW"):
        bias = bias.reshape((-1, *([1] * (len(value.shape) - 2))))
    return named(wg.add(value, bias), name)


def _activation(word: str, text: str, f: Any) -> None:
    def activation(features: Any, name: str | None = None) -> wg.Tensor:
        return named(f(as_tensor(features)), name)

    activation.__name__, activation.__doc__ = word, text
    formula(nn)(activation)


_SELU = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946
"""Negative slope and scale with which mean 0 and variance 1 stay (Klambauer et al., 2017)."""

for _word, _text, _function in (
    ("relu6", "`min(max(x, 0), 6)`.", lambda x: wg.clip(x, 0.0, 6.0)),
    ("elu", "`x` where positive, `exp(x) - 1` elsewhere.", lambda x: _elu(x, 1.0)),
    ("selu", "`s x` where positive, `s a (exp(x) - 1)` elsewhere.",
     lambda x: _elu(x, _SELU[0]) * _SELU[1]),
    ("softsign", "`x / (1 + |x|)`.", lambda x: x / (1.0 + abs(x))),
    ("crelu", "`relu` of `x` and of `-x`, side by side.",
     lambda x: wg.nn.relu(wg.concat([x, -x], axis=-1))),
):  # fmt: skip
    _activation(_word, _text, _function)


def _elu(x: wg.Tensor, alpha: float) -> wg.Tensor:
    # The exponential is taken where it cannot overflow, so that its gradient is finite too.
    return wg.where(x > 0, x, alpha * wg.expm1(wg.minimum(x, 0.0)))


@formula(nn)
def l2_normalize(
    x: Any, axis: Any = None, epsilon: float = 1e-12, name: str | None = None, dim: Any = None
) -> wg.Tensor:
    """`x / sqrt(max(sum(x²), epsilon))` along axes."""
    axis = dim if axis is None else axis
    axis = tuple(axis) if isinstance(axis, list) else axis
    squares = (x * x).sum(axis=axis, keepdims=True)
    return named(x * wg.rsqrt(wg.maximum(squares, epsilon)), name)


# Losses, row by row.


@formula(nn)
def softmax_cross_entropy_with_logits(
    _sentinel: Any = None,
    labels: Any = None,
    logits: Any = None,
    dim: int = -1,
    name: str | None = None,
    axis: int | None = None,
) -> wg.Tensor:
    """The cross entropy of rows of probabilities and logits, row by row. Gradients go to the
    logits only; those of `softmax_cross_entropy_with_logits_v2` go to the labels too."""
    _by_name("softmax_cross_entropy_with_logits", _sentinel, labels, logits)
    return _softmax_entropy(as_tensor(labels).detach(), logits, dim if axis is None else axis, name)


@formula(nn)
def softmax_cross_entropy_with_logits_v2(
    labels: Any, logits: Any, axis: int | None = None, name: str | None = None, dim: int = -1
) -> wg.Tensor:
    """The cross entropy of rows of probabilities and logits, row by row."""
    return _softmax_entropy(as_tensor(labels), logits, dim if axis is None else axis, name)


def _softmax_entropy(labels: Any, logits: Any, axis: int, name: str | None) -> wg.Tensor:
    logits = as_tensor(logits)
    labels = labels.astype(logits.dtype)
    return named(-(labels * wg.nn.log_softmax(logits, axis=axis)).sum(axis=axis), name)


def _by_name(word: str, sentinel: Any, labels: Any, logits: Any) -> None:
    if sentinel is not None or labels is None or logits is None:
        raise ValueError(f"tf.nn.{word}: pass labels= and logits= by name")


@formula(nn)
def sparse_softmax_cross_entropy_with_logits(
    _sentinel: Any = None, labels: Any = None, logits: Any = None, name: str | None = None
) -> wg.Tensor:
    """The cross entropy of classes and rows of logits, row by row."""
    _by_name("sparse_softmax_cross_entropy_with_logits", _sentinel, labels, logits)
    labels, logits = as_tensor(labels), as_tensor(logits)
    if logits.shape is not None and len(logits.shape) != 2:
        # The classes are the last axis.
        logits = wg.moveaxis(logits, -1, 1) if len(logits.shape) > 2 else logits
    return named(wg.nn.cross_entropy(logits, labels, reduction="none"), name)


@formula(nn)
def sigmoid_cross_entropy_with_logits(
    _sentinel: Any = None, labels: Any = None, logits: Any = None, name: str | None = None
) -> wg.Tensor:
    """The cross entropy of probabilities and logits, element by element."""
    _by_name("sigmoid_cross_entropy_with_logits", _sentinel, labels, logits)
    loss = wg.nn.binary_cross_entropy_with_logits
    logits = as_tensor(logits)
    return named(loss(logits, as_tensor(labels).astype(logits.dtype), reduction="none"), name)


@formula(nn)
def weighted_cross_entropy_with_logits(
    targets: Any = None,
    logits: Any = None,
    pos_weight: Any = 1.0,
    name: str | None = None,
    labels: Any = None,
) -> wg.Tensor:
    """`-w t log σ(x) - (1 - t) log(1 - σ(x))` with the weight `w` of what is true."""
    x = as_tensor(logits)
    t = as_tensor(labels if targets is None else targets).astype(x.dtype)
    # log(1 + exp(-x)) without overflow, which both parts have in common.
    log_part = wg.nn.softplus(-abs(x)) + wg.nn.relu(-x)
    return named((1.0 - t) * x + (1.0 + (pos_weight - 1.0) * t) * log_part, name)


@formula(nn)
def xw_plus_b(x: Any, weights: Any, biases: Any, name: str | None = None) -> wg.Tensor:
    """`x weights + biases`."""
    return named(as_tensor(x) @ weights + biases, name)


@formula(nn)
def relu_layer(x: Any, weights: Any, biases: Any, name: str | None = None) -> wg.Tensor:
    """`relu(x weights + biases)`."""
    return named(wg.nn.relu(as_tensor(x) @ weights + biases), name)


@formula(nn)
def zero_fraction(value: Any, name: str | None = None) -> wg.Tensor:
    """The share of elements that are zero."""
    return named(wg.equal(as_tensor(value), 0).astype(wg.float32).mean(), name)


# Windows over images.


def window_sizes(op: str, size: Any, data_format: str | None, rank: int) -> tuple[int, ...]:
    """Sizes or strides over the axes of space, given for them alone or for all axes."""
    sizes = (size,) * rank if isinstance(size, int) else tuple(int(n) for n in size)
    if len(sizes) == 1:
        sizes = sizes * rank
    if len(sizes) == rank + 2:
        first = bool(data_format) and str(data_format).startswith("NC")
        outer = sizes[:2] if first else (sizes[0], sizes[-1])
        if outer != (1, 1):
            raise ValueError(
                f"tf.nn.{op}: windows and strides over examples and channels are 1, got {size}"
            )
        sizes = sizes[2:] if first else sizes[1:-1]
    if len(sizes) != rank:
        raise ValueError(f"tf.nn.{op}: expected {rank} or {rank + 2} numbers, got {size}")
    return sizes


def channels_first(x: Any, data_format: str | None) -> wg.Tensor:
    """Images with their channels behind the examples, as the ops have them."""
    x = as_tensor(x)
    if data_format and str(data_format).startswith("NC"):
        return x
    return wg.moveaxis(x, -1, 1)


def channels_back(x: wg.Tensor, data_format: str | None) -> wg.Tensor:
    """Images as `channels_first` got them."""
    return x if data_format and str(data_format).startswith("NC") else wg.moveaxis(x, 1, -1)


def padded(
    op: str,
    x: wg.Tensor,
    size: Sequence[int],
    strides: Sequence[int],
    padding: str,
    fill: float = 0.0,
    dilation: Sequence[int] | None = None,
) -> wg.Tensor:
    """Images with channels first, with what `padding` adds.

    With `SAME` an axis of `n` gets `⌈n / stride⌉` windows; of the elements added for them the odd
    one is at the end.
    """
    if padding not in ("SAME", "VALID"):
        raise ValueError(f"tf.nn.{op}: padding is 'SAME' or 'VALID', got {padding!r}")
    if padding == "VALID":
        return x
    widths = [(0, 0), (0, 0)]
    spread = dilation or [1] * len(size)
    for n, k, s, d in zip(x.shape[2:], size, strides, spread, strict=True):
        reach = (k - 1) * d + 1
        if s == 1:
            total = reach - 1
        elif isinstance(n, int):
            total = max((-(-n // s) - 1) * s + reach - n, 0)
        else:
            raise wg.ShapeError(
                f"tf.nn.{op}: padding 'SAME' with strides {tuple(strides)} needs images of known "
                f"size, got {x.shape}"
            )
        widths.append((total // 2, total - total // 2))
    return x if not any(map(any, widths)) else wg.pad(x, tuple(widths), value=fill)


_CONVOLUTIONS: dict[int, Any] = {1: wg.nn.conv1d, 2: wg.nn.conv2d, 3: wg.nn.conv3d}


def convolution(
    op: str,
    x: Any,
    w: Any,
    strides: Any,
    padding: str,
    data_format: str | None,
    dilations: Any = 1,
    groups: int = 1,
) -> wg.Tensor:
    """The convolution of images with filters (window …, channels, new channels)."""
    rank = len(w.shape) - 2
    stride = window_sizes(op, strides, data_format, rank)
    dilation = window_sizes(op, 1 if dilations is None else dilations, data_format, rank)
    x = channels_first(x, data_format)
    x = padded(op, x, w.shape[:rank], stride, padding, 0.0, dilation)
    w = wg.permute_dims(w, (rank + 1, rank, *range(rank)))
    y = _CONVOLUTIONS[rank](x, w, stride=stride, dilation=dilation, groups=groups)
    return channels_back(y, data_format)


def _either(op: str, filter: Any, filters: Any) -> Any:
    if (filter is None) == (filters is None):
        raise ValueError(f"tf.nn.{op}: pass filter")
    return as_tensor(filters if filter is None else filter)


@formula(nn)
def conv2d(
    input: Any,
    filter: Any = None,
    strides: Any = None,
    padding: str = "VALID",
    use_cudnn_on_gpu: Any = True,
    data_format: str = "NHWC",
    dilations: Any = (1, 1, 1, 1),
    name: str | None = None,
    filters: Any = None,
) -> wg.Tensor:
    """The convolution of images (n, height, width, channels) with filters (height, width, channels,
    new channels)."""
    w = _either("conv2d", filter, filters)
    strides = 1 if strides is None else strides
    return named(convolution("conv2d", input, w, strides, padding, data_format, dilations), name)


@formula(nn)
def conv1d(
    value: Any = None,
    filters: Any = None,
    stride: Any = None,
    padding: str = "VALID",
    use_cudnn_on_gpu: Any = None,
    data_format: str | None = None,
    name: str | None = None,
    input: Any = None,
) -> wg.Tensor:
    """The convolution of sequences (n, length, channels) with filters (width, channels, new
    channels)."""
    x, w = (input if value is None else value), as_tensor(filters)
    stride = 1 if stride is None else stride
    return named(convolution("conv1d", x, w, stride, padding, data_format), name)


@formula(nn)
def conv3d(
    input: Any,
    filter: Any = None,
    strides: Any = None,
    padding: str = "VALID",
    data_format: str = "NDHWC",
    dilations: Any = (1, 1, 1, 1, 1),
    name: str | None = None,
    filters: Any = None,
) -> wg.Tensor:
    """The convolution of volumes (n, depth, height, width, channels)."""
    w = _either("conv3d", filter, filters)
    return named(convolution("conv3d", input, w, strides, padding, data_format, dilations), name)


@formula(nn)
def atrous_conv2d(
    value: Any, filters: Any, rate: int, padding: str, name: str | None = None
) -> wg.Tensor:
    """`conv2d` with filters whose elements are `rate` apart."""
    w = as_tensor(filters)
    return named(convolution("atrous_conv2d", value, w, 1, padding, "NHWC", rate), name)


@formula(nn)
def depthwise_conv2d(
    input: Any,
    filter: Any,
    strides: Any,
    padding: str,
    rate: Any = None,
    name: str | None = None,
    data_format: str | None = None,
) -> wg.Tensor:
    """The convolution of each channel with filters (height, width, channels, multiplier) of its
    own; channel `k` gives channels `k * multiplier` and on."""
    w = as_tensor(filter)
    h, wide, channels, multiplier = w.shape
    w = w.reshape((h, wide, 1, channels * multiplier))
    y = convolution(
        "depthwise_conv2d", input, w, strides, padding, data_format, rate, groups=channels
    )
    return named(y, name)


@formula(nn)
def separable_conv2d(
    input: Any,
    depthwise_filter: Any,
    pointwise_filter: Any,
    strides: Any,
    padding: str,
    rate: Any = None,
    name: str | None = None,
    data_format: str | None = None,
) -> wg.Tensor:
    """`depthwise_conv2d`, then a convolution over single pixels."""
    y = depthwise_conv2d(input, depthwise_filter, strides, padding, rate, None, data_format)
    w = as_tensor(pointwise_filter)
    return named(convolution("separable_conv2d", y, w, 1, "VALID", data_format), name)


@formula(nn)
def conv2d_transpose(
    value: Any = None,
    filter: Any = None,
    output_shape: Any = None,
    strides: Any = None,
    padding: str = "SAME",
    data_format: str = "NHWC",
    name: str | None = None,
    input: Any = None,
    filters: Any = None,
) -> wg.Tensor:
    """The transpose of `conv2d` as a linear map: from images that it gives to those that it gets,
    whose shape is `output_shape`. Filters are (height, width, channels of the result, channels of
    `value`)."""
    x, w = (input if value is None else value), _either("conv2d_transpose", filter, filters)
    stride = window_sizes("conv2d_transpose", 1 if strides is None else strides, data_format, 2)
    sizes = list(output_shape)
    first = data_format.startswith("NC")
    sizes = sizes[-2:] if first else sizes[-3:-1]
    return named(transposed("conv2d_transpose", x, w, sizes, stride, padding, data_format), name)


def transposed(
    op: str,
    x: Any,
    w: Any,
    sizes: Sequence[Any] | None,
    stride: Sequence[int],
    padding: str,
    data_format: str | None,
) -> wg.Tensor:
    """A transposed convolution whose results have these sizes, or without them
    `n * stride` ("SAME") or `n * stride + max(k - stride, 0)`."""
    if padding not in ("SAME", "VALID"):
        raise ValueError(f"tf.nn.{op}: padding is 'SAME' or 'VALID', got {padding!r}")
    x = channels_first(x, data_format)
    y = wg.nn.conv_transpose2d(x, wg.permute_dims(w, (3, 2, 0, 1)), stride=tuple(stride))
    for at, (n, k, s) in enumerate(zip(x.shape[2:], w.shape[:2], stride, strict=True)):
        usual = n * s if padding == "SAME" else n * s + max(k - s, 0)
        wanted = usual if sizes is None else sizes[at]
        if isinstance(wanted, int) and isinstance(n, int):
            count = -(-wanted // s) if padding == "SAME" else (wanted - k) // s + 1
            if count != n:
                raise wg.ShapeError(
                    f"tf.nn.{op}: images of size {wanted} give {count} windows, not {n}"
                )
        full = (n - 1) * s + k
        before = 0
        if padding == "SAME":
            lost = full - wanted
            if not isinstance(lost, int):
                raise wg.ShapeError(f"tf.nn.{op}: images of known size are needed, got {x.shape}")
            before = max(lost, 0) // 2
        missing = before + wanted - full
        if isinstance(missing, int) and missing > 0:
            widths = [(0, 0)] * 4
            widths[2 + at] = (0, missing)
            y = wg.pad(y, tuple(widths))
        key = [slice(None)] * 4
        key[2 + at] = slice(before, before + wanted)
        y = y[tuple(key)]
    return channels_back(y, data_format)


_POOLS: dict[str, dict[int, Any]] = {
    "max": {1: wg.nn.max_pool1d, 2: wg.nn.max_pool2d, 3: wg.nn.max_pool3d},
    "avg": {1: wg.nn.avg_pool1d, 2: wg.nn.avg_pool2d, 3: wg.nn.avg_pool3d},
}


def pooling(
    op: str, x: Any, ksize: Any, strides: Any, padding: str, data_format: str | None, rank: int
) -> wg.Tensor:
    """The largest element or the mean of each window; padding is no part of either."""
    kind = op[:3]
    size = window_sizes(op, ksize, data_format, rank)
    stride = window_sizes(op, strides, data_format, rank)
    pool = _POOLS[kind][rank]
    x = channels_first(x, data_format)
    whole = padded(op, x, size, stride, padding, -math.inf if kind == "max" else 0.0)
    y = pool(whole, size, stride=stride)
    if kind == "avg" and padding == "SAME":
        inside = padded(op, wg.ones_like(x), size, stride, padding)
        y = y / pool(inside, size, stride=stride)
    return channels_back(y, data_format)


def _pool(op: str, rank: int, text: str) -> None:
    def pool(
        value: Any = None,
        ksize: Any = None,
        strides: Any = None,
        padding: str = "VALID",
        data_format: str | None = None,
        name: str | None = None,
        input: Any = None,
    ) -> wg.Tensor:
        x = input if value is None else value
        if ksize is None or strides is None:
            raise ValueError(f"tf.nn.{op}: pass ksize and strides")
        return named(pooling(op, x, ksize, strides, padding, data_format, rank), name)

    pool.__name__, pool.__doc__ = op, text
    formula(nn)(pool)


_pool("max_pool", 2, "The largest element of each window of images (n, height, width, channels).")
_pool("avg_pool", 2, "The mean of each window of images (n, height, width, channels), without what "
      "was padded.")  # fmt: skip
_pool("max_pool3d", 3, "The largest element of each window of volumes.")
_pool("avg_pool3d", 3, "The mean of each window of volumes, without what was padded.")


# Norms.


@formula(nn)
def moments(
    x: Any,
    axes: Any,
    shift: Any = None,
    name: str | None = None,
    keep_dims: Any = None,
    keepdims: Any = None,
) -> Any:
    """Mean and variance over axes; the variance is the mean of squared distances."""
    axes = axes if isinstance(axes, int) else tuple(axes)
    keep = bool(keep_dims or keepdims)
    return Moments(wg.mean(x, axis=axes, keepdims=keep), wg.var(x, axis=axes, keepdims=keep))


@formula(nn)
def batch_normalization(
    x: Any,
    mean: Any,
    variance: Any,
    offset: Any,
    scale: Any,
    variance_epsilon: float,
    name: str | None = None,
) -> wg.Tensor:
    """`scale (x - mean) / sqrt(variance + variance_epsilon) + offset`; scale and offset may be
    None."""
    factor = wg.rsqrt(variance + variance_epsilon)
    factor = factor if scale is None else factor * scale
    y = (x - mean) * factor
    return named(y if offset is None else y + offset, name)


@formula(nn)
def local_response_normalization(
    input: Any,
    depth_radius: int = 5,
    bias: float = 1.0,
    alpha: float = 1.0,
    beta: float = 0.5,
    name: str | None = None,
) -> wg.Tensor:
    """`x / (bias + alpha · s) ** beta`, where `s` is the sum of squares of the channel (the last
    axis) and of `depth_radius` channels on both sides."""
    x = as_tensor(input)
    n, r = x.shape[-1], int(depth_radius)
    squares = wg.pad(x * x, (*[(0, 0)] * (len(x.shape) - 1), (r, r)))
    total = squares[..., :n]
    for k in range(1, 2 * r + 1):
        total = total + squares[..., k : k + n]
    return named(x * wg.pow(bias + alpha * total, -beta), name)


nn.lrn = nn.local_response_normalization


# Embeddings.


@formula(nn)
def embedding_lookup(
    params: Any,
    ids: Any,
    partition_strategy: str = "mod",
    name: str | None = None,
    validate_indices: Any = True,
    max_norm: Any = None,
) -> wg.Tensor:
    """Rows of a table."""
    if isinstance(params, list | tuple):
        if len(params) != 1:
            raise ValueError("tf.nn.embedding_lookup: one table, got several; use tf.concat")
        params = params[0]
    if max_norm is not None:
        raise ValueError("tf.nn.embedding_lookup: no max_norm; use tf.clip_by_norm(rows, n, 1)")
    return named(wg.take(params, as_tensor(ids), axis=0), name)
