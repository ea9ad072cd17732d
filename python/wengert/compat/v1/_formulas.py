"""TensorFlow's functions that take more than one op of ours, a formula each."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import wengert as wg
from wengert.compat.v1._state import Variable
from wengert.compat.v1._table import in_graph, name_scope, named
from wengert.graph import default_graph

nn = SimpleNamespace()
layers = SimpleNamespace()
top: dict[str, Callable[..., Any]] = {}
"""The functions without a namespace."""


def _formula(space: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Puts a function into a namespace, as one that runs with the graph open."""

    def put(f: Callable[..., Any]) -> Callable[..., Any]:
        f = in_graph(f)
        if space is None:
            top[f.__name__] = f
        else:
            setattr(space, f.__name__, f)
        return f

    return put


@_formula(None)
def matmul(
    a: Any, b: Any, transpose_a: Any = False, transpose_b: Any = False, name: str | None = None
) -> wg.Tensor:
    """The product of matrices, either of them transposed first if asked."""
    a = wg.matrix_transpose(a) if transpose_a else a
    return named(wg.matmul(a, wg.matrix_transpose(b) if transpose_b else b), name)


@_formula(None)
def truncated_normal(
    shape: Any,
    mean: float = 0.0,
    stddev: float = 1.0,
    dtype: Any = wg.float32,
    seed: int | None = None,
    name: str | None = None,
) -> wg.Tensor:
    """Normal numbers within two standard deviations: the inverse of their distribution function
    at uniform numbers."""
    edge = math.erf(math.sqrt(2.0))
    key = None if seed is None else wg.random.key(seed)
    x = wg.random.uniform(shape, low=-edge, high=edge, dtype=dtype, key=key)
    return named(wg.erfinv(x) * (math.sqrt(2.0) * stddev) + mean, name)


@_formula(None)
def add_n(inputs: Sequence[Any], name: str | None = None) -> wg.Tensor:
    """The sum of tensors of one shape."""
    return named(functools.reduce(wg.add, inputs), name)


@_formula(None)
def squared_difference(x: Any, y: Any, name: str | None = None) -> wg.Tensor:
    """`(x - y)²`."""
    return named(wg.square(wg.subtract(x, y)), name)


@_formula(None)
def unstack(value: Any, num: int | None = None, axis: int = 0) -> list[wg.Tensor]:
    """The parts along an axis, of which there are `num`."""
    parts = list(wg.unstack(value, axis=axis))
    if num is not None and num != len(parts):
        raise ValueError(f"tf.unstack: axis {axis} has size {len(parts)}, not {num}")
    return parts


@_formula(nn)
def l2_loss(t: Any, name: str | None = None) -> wg.Tensor:
    """Half the sum of squares."""
    return named((t * t).sum() / 2.0, name)


@_formula(nn)
def dropout(
    x: Any, keep_prob: float | None = None, rate: float | None = None, name: str | None = None
) -> wg.Tensor:
    """Elements set to zero with probability `rate`, which is `1 - keep_prob`; the others grow."""
    if (keep_prob is None) == (rate is None):
        raise ValueError("tf.nn.dropout: pass either keep_prob or rate")
    keep: Any = keep_prob if rate is None else 1.0 - rate
    if isinstance(keep, float | int):
        return named(wg.nn.dropout(x, 1.0 - keep), name)
    keep = keep.reshape(())
    drawn = wg.random.bernoulli(wg.ones_like(x) * keep)
    return named(wg.where(drawn, x / keep, 0.0), name)


@_formula(nn)
def softmax_cross_entropy_with_logits(
    labels: Any, logits: Any, axis: int = -1, name: str | None = None
) -> wg.Tensor:
    """The cross entropy of rows of probabilities and logits, row by row."""
    return named(-(labels * wg.nn.log_softmax(logits, axis=axis)).sum(axis=axis), name)


nn.softmax_cross_entropy_with_logits_v2 = softmax_cross_entropy_with_logits


@_formula(nn)
def sparse_softmax_cross_entropy_with_logits(
    labels: Any, logits: Any, name: str | None = None
) -> wg.Tensor:
    """The cross entropy of classes and rows of logits, row by row."""
    return named(wg.nn.cross_entropy(logits, labels, reduction="none"), name)


@_formula(nn)
def sigmoid_cross_entropy_with_logits(
    labels: Any, logits: Any, name: str | None = None
) -> wg.Tensor:
    """The cross entropy of probabilities and logits, element by element."""
    loss = wg.nn.binary_cross_entropy_with_logits
    return named(loss(logits, labels, reduction="none"), name)


def _windows(
    op: str, x: Any, size: Sequence[int], strides: Any, padding: str, fill: float = 0.0
) -> tuple[wg.Tensor, Any]:
    """Images with channels last as ours, with channels first and padded, and the strides.

    With `SAME` an axis of `n` gets `⌈n / stride⌉` windows; of the elements added for them the odd
    one is at the end.
    """
    if strides[0] != 1 or strides[3] != 1:
        raise ValueError(f"tf.nn.{op}: strides over examples and channels are 1, got {strides}")
    if padding not in ("SAME", "VALID"):
        raise ValueError(f"tf.nn.{op}: padding is 'SAME' or 'VALID', got {padding!r}")
    x = wg.permute_dims(x, (0, 3, 1, 2))
    if padding == "SAME":
        widths = [(0, 0), (0, 0)]
        for n, k, s in zip(x.shape[2:], size, strides[1:3], strict=True):
            total = max(((n + s - 1) // s - 1) * s + k - n, 0)
            widths.append((total // 2, total - total // 2))
        x = wg.pad(x, tuple(widths), value=fill)
    return x, tuple(strides[1:3])


@_formula(nn)
def conv2d(
    input: Any, filter: Any, strides: Sequence[int], padding: str, name: str | None = None
) -> wg.Tensor:
    """The convolution of images (n, height, width, channels) with filters (height, width, channels,
    new channels)."""
    x, stride = _windows("conv2d", input, filter.shape[:2], strides, padding)
    y = wg.nn.conv2d(x, wg.permute_dims(filter, (3, 2, 0, 1)), stride=stride)
    return named(wg.permute_dims(y, (0, 2, 3, 1)), name)


def _kernel(op: str, ksize: Sequence[int]) -> tuple[int, ...]:
    """Height and width of windows, which are one example and one channel deep."""
    if ksize[0] != 1 or ksize[3] != 1:
        raise ValueError(f"tf.nn.{op}: windows over examples and channels are 1, got {ksize}")
    return tuple(ksize[1:3])


@_formula(nn)
def max_pool(
    value: Any, ksize: Sequence[int], strides: Sequence[int], padding: str, name: str | None = None
) -> wg.Tensor:
    """The largest element of each window of images (n, height, width, channels)."""
    size = _kernel("max_pool", ksize)
    x, stride = _windows("max_pool", value, size, strides, padding, -math.inf)
    return named(wg.permute_dims(wg.nn.max_pool2d(x, size, stride=stride), (0, 2, 3, 1)), name)


@_formula(nn)
def avg_pool(
    value: Any, ksize: Sequence[int], strides: Sequence[int], padding: str, name: str | None = None
) -> wg.Tensor:
    """The mean of each window of images (n, height, width, channels), without what was padded."""
    size = _kernel("avg_pool", ksize)
    x, stride = _windows("avg_pool", value, size, strides, padding)
    inside, _ = _windows("avg_pool", wg.ones_like(value), size, strides, padding)
    y, share = (wg.nn.avg_pool2d(v, size, stride=stride) for v in (x, inside))
    return named(wg.permute_dims(y / share, (0, 2, 3, 1)), name)


@_formula(nn)
def nce_loss(
    weights: Any,
    biases: Any,
    labels: Any,
    inputs: Any,
    num_sampled: int,
    num_classes: int,
    name: str | None = None,
) -> wg.Tensor:
    """Noise-contrastive estimation, row by row: the class of a row against `num_sampled` others.

    These are drawn with repetition, one set for all rows, and class `c` has probability
    `log((c + 2) / (c + 1)) / log(num_classes + 1)`.
    """
    scale = math.log(num_classes + 1)
    drawn = (wg.random.uniform((num_sampled,)) * scale).exp().astype(wg.int64) - 1
    drawn, own = wg.clip(drawn, 0, num_classes - 1), labels.reshape(-1).astype(wg.int64)

    def noise(classes: Any) -> wg.Tensor:
        """The bias, less the logarithm of how often a class is expected among the drawn."""
        c = classes.astype(inputs.dtype)
        share = wg.log((c + 2.0) / (c + 1.0)) * (num_sampled / scale)
        return wg.take(biases, classes) - wg.log(share)

    right = (inputs * wg.nn.embedding(own, weights)).sum(axis=1) + noise(own)
    wrong = inputs @ wg.nn.embedding(drawn, weights).T + noise(drawn)
    return named(wg.nn.softplus(-right) + wg.nn.softplus(wrong).sum(axis=1), name)


@_formula(layers)
def dense(
    inputs: Any,
    units: int,
    activation: Callable[[wg.Tensor], wg.Tensor] | None = None,
    use_bias: Any = True,
    name: str | None = None,
) -> wg.Tensor:
    """`activation(inputs @ kernel + bias)` with new variables: a kernel of Glorot's uniform
    numbers, a bias of zeros."""
    width = inputs.shape[-1]
    edge = math.sqrt(6.0 / (width + units))
    with name_scope(default_graph()._unique("dense") if name is None else name):
        kernel = Variable(wg.random.uniform((width, units), low=-edge, high=edge), name="kernel")
        y = inputs @ kernel
        if use_bias:
            y = y + Variable(wg.zeros((units,)), name="bias")
    return y if activation is None else activation(y)
