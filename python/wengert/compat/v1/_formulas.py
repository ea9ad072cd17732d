"""TensorFlow's functions that take more than one op of ours, a formula each."""

from __future__ import annotations

import functools
from collections import namedtuple
from collections.abc import Sequence
from typing import Any

import wengert as wg
from wengert.compat.v1._graph import Sizes, as_shape, is_size, named
from wengert.compat.v1._spaces import formula, nn, top
from wengert.compat.v1._table import as_tensor, dtype_of


@formula(None)
def matmul(
    a: Any,
    b: Any,
    transpose_a: Any = False,
    transpose_b: Any = False,
    adjoint_a: Any = False,
    adjoint_b: Any = False,
    a_is_sparse: Any = False,
    b_is_sparse: Any = False,
    name: str | None = None,
) -> wg.Tensor:
    """The product of matrices, either of them transposed first if asked."""
    a = wg.matrix_transpose(a) if transpose_a or adjoint_a else a
    return named(wg.matmul(a, wg.matrix_transpose(b) if transpose_b or adjoint_b else b), name)


@formula(None)
def cast(x: Any, dtype: Any, name: str | None = None) -> wg.Tensor:
    """The same values in another dtype."""
    return named(as_tensor(x).astype(dtype_of(dtype)), name)


def _casts(word: str, dtype: Any) -> None:
    def to(x: Any, name: str | None = None) -> wg.Tensor:
        return cast(x, dtype, name)

    to.__name__, to.__doc__ = f"to_{word}", f"`tf.cast(x, tf.{dtype})`."
    formula(None)(to)


for _word, _dtype in (
    ("float", wg.float32),
    ("double", wg.float64),
    ("int32", wg.int32),
    ("int64", wg.int64),
    ("bfloat16", wg.bfloat16),
):
    _casts(_word, _dtype)


@formula(None)
def argmax(
    input: Any,
    axis: Any = None,
    name: str | None = None,
    dimension: Any = None,
    output_type: Any = wg.int64,
) -> wg.Tensor:
    """Where the largest element along an axis is, the first axis by default."""
    axis = dimension if axis is None else axis
    return named(wg.argmax(input, axis=0 if axis is None else axis).astype(output_type), name)


@formula(None)
def argmin(
    input: Any,
    axis: Any = None,
    name: str | None = None,
    dimension: Any = None,
    output_type: Any = wg.int64,
) -> wg.Tensor:
    """Where the smallest element along an axis is, the first axis by default."""
    axis = dimension if axis is None else axis
    return named(wg.argmin(input, axis=0 if axis is None else axis).astype(output_type), name)


@formula(None)
def div(x: Any, y: Any, name: str | None = None) -> wg.Tensor:
    """The quotient, of integers rounded down, as in Python 2."""
    x, y = as_tensor(x), as_tensor(y)
    floating = any(wg.isdtype(v.dtype, "real floating") for v in (x, y))
    return named(wg.divide(x, y) if floating else wg.floor_divide(x, y), name)


@formula(None)
def div_no_nan(x: Any, y: Any, name: str | None = None) -> wg.Tensor:
    """The quotient, and 0 where the divisor is 0."""
    x, y = as_tensor(x), as_tensor(y)
    zero = wg.equal(y, 0)
    return named(wg.where(zero, 0.0, x / wg.where(zero, wg.ones_like(y), y)), name)


@formula(None)
def one_hot(
    indices: Any,
    depth: Any,
    on_value: Any = None,
    off_value: Any = None,
    axis: int | None = None,
    dtype: Any = None,
    name: str | None = None,
) -> wg.Tensor:
    """Rows of `off_value` with `on_value` at the index; of zeros only where there is no such
    place. The new axis is the last, or `axis`."""
    x = as_tensor(indices)
    there = wg.equal(wg.expand_dims(x, -1), wg.arange(depth).astype(x.dtype))
    kind = wg.float32 if dtype is None else dtype_of(dtype)
    if on_value is None and off_value is None:
        y = there.astype(kind)
    else:
        on = as_tensor(1 if on_value is None else on_value)
        off = as_tensor(0 if off_value is None else off_value)
        y = wg.where(there, on, off)
        y = y if dtype is None else y.astype(kind)
    return named(y if axis in (None, -1) else wg.moveaxis(y, -1, axis), name)


@formula(None)
def where(condition: Any, x: Any = None, y: Any = None, name: str | None = None) -> wg.Tensor:
    """Elements of `x` where the condition holds, of `y` elsewhere; with a condition of one axis
    and values of more, rows."""
    if x is None or y is None:
        raise TypeError(
            "tf.where: takes condition, x and y; the positions where a condition holds are as many "
            "as it says, which a graph cannot know: use numpy.nonzero on what a run gives"
        )
    condition, x, y = (as_tensor(v) for v in (condition, x, y))
    if condition.shape is not None and x.shape is not None and len(condition.shape) == 1:
        condition = condition.reshape((-1, *([1] * (len(x.shape) - 1)))) if x.shape else condition
    return named(wg.where(condition, x, y), name)


@formula(None)
def range(
    start: Any, limit: Any = None, delta: Any = 1, dtype: Any = None, name: str | None = None
) -> wg.Tensor:
    """Numbers from `start`, or 0, up to `limit`, `delta` apart; of ints int32."""
    x = wg.arange(start, step=delta) if limit is None else wg.arange(start, limit, delta)
    if dtype is not None:
        return named(x.astype(dtype_of(dtype)), name)
    return named(x.astype(wg.int32) if wg.isdtype(x.dtype, "integral") else x, name)


def _kept(x: wg.Tensor) -> Any:
    """The dtype of a sum: that of its elements, also of integers."""
    return x.dtype if wg.isdtype(x.dtype, "integral") else None


def _axes(axis: Any, older: Any = None) -> Any:
    axis = older if axis is None else axis
    return tuple(axis) if isinstance(axis, list) else axis


@formula(None)
def reduce_sum(
    input_tensor: Any,
    axis: Any = None,
    keepdims: Any = None,
    name: str | None = None,
    reduction_indices: Any = None,
    keep_dims: Any = None,
) -> wg.Tensor:
    """The sum along axes, in the dtype of the elements."""
    x, axes = as_tensor(input_tensor), _axes(axis, reduction_indices)
    y = wg.sum(x, axis=axes, keepdims=bool(keepdims or keep_dims), dtype=_kept(x))
    return named(y, name)


@formula(None)
def reduce_prod(
    input_tensor: Any,
    axis: Any = None,
    keepdims: Any = None,
    name: str | None = None,
    reduction_indices: Any = None,
    keep_dims: Any = None,
) -> wg.Tensor:
    """The product along axes, in the dtype of the elements."""
    x, axes = as_tensor(input_tensor), _axes(axis, reduction_indices)
    y = wg.prod(x, axis=axes, keepdims=bool(keepdims or keep_dims), dtype=_kept(x))
    return named(y, name)


@formula(None)
def cumsum(
    x: Any, axis: int = 0, exclusive: Any = False, reverse: Any = False, name: str | None = None
) -> wg.Tensor:
    """Running sums along an axis: without the element itself if `exclusive`, from the end if
    `reverse`."""
    x = as_tensor(x)
    y = wg.flip(x, axis=axis) if reverse else x
    total = wg.cumulative_sum(y, axis=axis, dtype=_kept(x))
    total = total - y if exclusive else total
    return named(wg.flip(total, axis=axis) if reverse else total, name)


@formula(None)
def eye(
    num_rows: Any,
    num_columns: Any = None,
    batch_shape: Any = None,
    dtype: Any = wg.float32,
    name: str | None = None,
) -> wg.Tensor:
    """A matrix with ones on its diagonal, repeated for `batch_shape`."""
    x = wg.eye(num_rows, num_columns, dtype=dtype_of(dtype))
    if batch_shape is not None:
        x = wg.broadcast_to(x, (*as_shape(batch_shape), *x.shape))
    return named(x, name)


@formula(None)
def add_n(inputs: Sequence[Any], name: str | None = None) -> wg.Tensor:
    """The sum of tensors of one shape."""
    return named(functools.reduce(wg.add, inputs), name)


@formula(None)
def accumulate_n(
    inputs: Sequence[Any], shape: Any = None, tensor_dtype: Any = None, name: str | None = None
) -> wg.Tensor:
    """The sum of tensors of one shape."""
    return add_n(inputs, name)


@formula(None)
def squared_difference(x: Any, y: Any, name: str | None = None) -> wg.Tensor:
    """`(x - y)²`."""
    return named(wg.square(wg.subtract(x, y)), name)


@formula(None)
def stack(values: Any, axis: int = 0, name: str | None = None) -> Any:
    """Tensors side by side along a new axis; of sizes, the shape that they make."""
    values = list(values)
    if axis == 0 and any(isinstance(n, wg.Dim) for n in values) and all(map(is_size, values)):
        return Sizes(values)
    return named(wg.stack([as_tensor(v) for v in values], axis=axis), name)


@formula(None)
def concat(values: Any, axis: Any, name: str | None = None) -> Any:
    """Tensors behind each other along an axis; of sizes, the shape that they make."""
    values = list(values)
    lists = [v for v in values if isinstance(v, Sizes | list | tuple)]
    if any(isinstance(v, Sizes) for v in values) and len(lists) == len(values):
        sizes = [n for v in values for n in v]
        if all(map(is_size, sizes)):
            return Sizes(sizes)
    return named(wg.concat([as_tensor(v) for v in values], axis=axis), name)


@formula(None)
def split(
    value: Any,
    num_or_size_splits: Any,
    axis: int = 0,
    num: int | None = None,
    name: str | None = None,
    split_dim: int | None = None,
) -> list[wg.Tensor]:
    """Parts along an axis: equal ones of a number, or of these sizes, one of which may be -1."""
    x = as_tensor(value)
    axis = axis if split_dim is None else split_dim
    sections = num_or_size_splits
    if isinstance(sections, int):
        n = x.shape[axis]
        if isinstance(n, int) and (sections < 1 or n % sections):
            raise ValueError(
                f"tf.split: axis {axis} has size {n}, which {sections} does not divide"
            )
        return list(wg.split(x, sections, axis=axis))
    sizes = list(as_shape(sections))
    if -1 in sizes:
        at = sizes.index(-1)
        sizes[at] = x.shape[axis] - (sum(sizes) + 1)
    return list(wg.split(x, sizes, axis=axis))


@formula(None)
def unstack(
    value: Any, num: int | None = None, axis: int = 0, name: str | None = None
) -> list[wg.Tensor]:
    """The parts along an axis, of which there are `num`."""
    parts = list(wg.unstack(value, axis=axis))
    if num is not None and num != len(parts):
        raise ValueError(f"tf.unstack: axis {axis} has size {len(parts)}, not {num}")
    return parts


@formula(None)
def pad(
    tensor: Any,
    paddings: Any,
    mode: str = "CONSTANT",
    name: str | None = None,
    constant_values: Any = 0,
) -> wg.Tensor:
    """A border of one value, as wide as `paddings` says: a pair for each axis. With "REFLECT" or
    "SYMMETRIC" the border is the image of what is inside, without or with the edge."""
    x = as_tensor(tensor)
    widths = [
        as_shape(pair)
        for pair in (paddings.tolist() if isinstance(paddings, wg.Tensor) else paddings)
    ]
    mode = mode.upper()
    if mode == "CONSTANT":
        return named(wg.pad(x, tuple(widths), value=constant_values), name)
    if mode not in ("REFLECT", "SYMMETRIC"):
        raise ValueError(f"tf.pad: mode is CONSTANT, REFLECT or SYMMETRIC, got {mode!r}")
    skip = 1 if mode == "REFLECT" else 0
    for axis, (before, after) in enumerate(widths):
        n = x.shape[axis]
        parts = []
        if before:
            parts.append(wg.flip(_part(x, axis, skip, skip + before), axis=axis))
        parts.append(x)
        if after:
            parts.append(wg.flip(_part(x, axis, n - skip - after, n - skip), axis=axis))
        x = wg.concat(parts, axis=axis) if len(parts) > 1 else x
    return named(x, name)


def _part(x: wg.Tensor, axis: int, start: Any, stop: Any) -> wg.Tensor:
    return x[(*[slice(None)] * axis, slice(start, stop))]


@formula(None)
def slice_(input_: Any, begin: Any, size: Any, name: str | None = None) -> wg.Tensor:
    """The part that begins at `begin` and is as large as `size`, where -1 goes to the end."""
    x = as_tensor(input_)
    key = tuple(
        slice(b, None if n == -1 else b + n)
        for b, n in zip(as_shape(begin), as_shape(size), strict=True)
    )
    return named(x[key], name)


@formula(None)
def gather_nd(params: Any, indices: Any, name: str | None = None) -> wg.Tensor:
    """The elements, or slices, at rows of indices."""
    at = as_tensor(indices)
    return named(as_tensor(params)[tuple(wg.unstack(at, axis=-1))], name)


@formula(None)
def stop_gradient(input: Any, name: str | None = None) -> wg.Tensor:
    """The same values, which no gradient goes through."""
    return named(as_tensor(input).detach(), name)


@formula(None)
def einsum(equation: str, *inputs: Any, name: str | None = None) -> wg.Tensor:
    """Sums of products over named axes."""
    return named(wg.einsum(equation, *inputs), name)


@formula(None)
def norm(
    tensor: Any,
    ord: Any = "euclidean",
    axis: Any = None,
    keepdims: Any = None,
    name: str | None = None,
    keep_dims: Any = None,
) -> wg.Tensor:
    """The length of vectors along axes, of all elements by default."""
    order = 2.0 if ord in ("euclidean", "fro") else ord
    if isinstance(axis, list | tuple) and len(axis) == 2 and ord not in ("euclidean", "fro"):
        raise ValueError(f"tf.norm: of matrices there is only 'euclidean', got {ord!r}")
    keep = bool(keepdims or keep_dims)
    x = wg.vector_norm(
        tensor, axis=tuple(axis) if isinstance(axis, list) else axis, keepdims=keep, ord=order
    )
    return named(x, name)


@formula(None)
def clip_by_norm(t: Any, clip_norm: Any, axes: Any = None, name: str | None = None) -> wg.Tensor:
    """`t`, made shorter where its length is above `clip_norm`."""
    x = as_tensor(t)
    squares = (x * x).sum(axis=axes, keepdims=True)
    inside = squares > 0
    length = wg.where(inside, wg.sqrt(wg.where(inside, squares, 1.0)), squares)
    return named(x * clip_norm / wg.maximum(length, clip_norm), name)


@formula(None)
def global_norm(t_list: Any, name: str | None = None) -> wg.Tensor:
    """The length of all tensors together; `None` counts nothing."""
    squares = [(t * t).sum() for t in t_list if t is not None]
    return named(wg.sqrt(functools.reduce(wg.add, squares)), name)


@formula(None)
def clip_by_global_norm(
    t_list: Any, clip_norm: Any, use_norm: Any = None, name: str | None = None
) -> tuple[list[Any], wg.Tensor]:
    """The tensors, made shorter together where their length is above `clip_norm`, and that
    length. A length that is not finite makes them NaN."""
    t_list = list(t_list)
    length = global_norm(t_list) if use_norm is None else as_tensor(use_norm)
    scale = clip_norm / wg.maximum(length, clip_norm)
    scale = wg.where(wg.isfinite(length), scale, float("nan"))
    return [None if t is None else t * scale for t in t_list], length


@formula(None)
def sequence_mask(
    lengths: Any, maxlen: Any = None, dtype: Any = wg.bool, name: str | None = None
) -> wg.Tensor:
    """Rows that hold before their lengths; `maxlen` is needed, as sizes do not depend on values."""
    if maxlen is None:
        raise ValueError("tf.sequence_mask: maxlen is needed: sizes do not depend on values")
    n = as_tensor(lengths)
    y = wg.arange(maxlen).astype(n.dtype) < wg.expand_dims(n, -1)
    return named(y.astype(dtype_of(dtype)), name)


@formula(None)
def reverse_sequence(
    input: Any,
    seq_lengths: Any,
    seq_axis: int | None = None,
    batch_axis: int | None = None,
    name: str | None = None,
    seq_dim: int | None = None,
    batch_dim: int | None = None,
) -> wg.Tensor:
    """Sequences turned around within their lengths; what is behind stays."""
    axis = (seq_dim or 0) if seq_axis is None else seq_axis
    batch = (batch_dim or 0) if batch_axis is None else batch_axis
    x = wg.moveaxis(as_tensor(input), (batch, axis), (0, 1))
    n = as_tensor(seq_lengths).astype(wg.int64).reshape((-1, 1))
    at = wg.expand_dims(wg.arange(x.shape[1]), 0)
    at = wg.where(at < n, n - 1 - at, at)
    at = at.reshape((x.shape[0], x.shape[1], *([1] * (len(x.shape) - 2))))
    y = wg.take_along_axis(x, wg.broadcast_to(at, x.shape), axis=1)
    return named(wg.moveaxis(y, (0, 1), (batch, axis)), name)


@formula(None)
def reduce_variance(
    input_tensor: Any, axis: Any = None, keepdims: Any = False, name: str | None = None
) -> wg.Tensor:
    """The mean of squared distances from the mean."""
    axis = tuple(axis) if isinstance(axis, list) else axis
    return named(wg.var(input_tensor, axis=axis, keepdims=bool(keepdims)), name)


@formula(None)
def reduce_std(
    input_tensor: Any, axis: Any = None, keepdims: Any = False, name: str | None = None
) -> wg.Tensor:
    """The square root of the variance."""
    axis = tuple(axis) if isinstance(axis, list) else axis
    return named(wg.std(input_tensor, axis=axis, keepdims=bool(keepdims)), name)


@formula(None)
def meshgrid(*args: Any, indexing: str = "xy", name: str | None = None) -> list[wg.Tensor]:
    """Coordinate grids."""
    return list(wg.meshgrid(*[as_tensor(x) for x in args], indexing=indexing))


@formula(None)
def Print(
    input_: Any,
    data: Any,
    message: str | None = None,
    first_n: Any = None,
    summarize: Any = None,
    name: str | None = None,
) -> wg.Tensor:
    """The same values; a run that computes `data` prints them."""
    data = [as_tensor(x) for x in data]
    wg.print(" ".join([message or "", *["{}"] * len(data)]).strip(), *data)
    return named(as_tensor(input_), name)


@formula(None)
def Assert(condition: Any, data: Any, summarize: Any = None, name: str | None = None) -> Any:
    """A run that computes the condition raises ValueError where it does not hold."""
    from wengert.compat.v1._state import Operation

    condition = as_tensor(condition)
    texts = [str(x) for x in data if not isinstance(x, wg.Tensor)]
    wg.check(condition, " ".join(texts) or "tf.Assert: the condition does not hold")
    return Operation([condition], name or "Assert")


TopK = namedtuple("TopK", "values indices")
Moments = namedtuple("Moments", "mean variance")


@formula(nn)
def top_k(input: Any, k: int = 1, sorted: Any = True, name: str | None = None) -> Any:
    """The largest elements along the last axis, and their positions (int32)."""
    values, at = wg.topk(as_tensor(input), k)
    return TopK(named(values, name), at.astype(wg.int32))


@formula(nn)
def in_top_k(predictions: Any, targets: Any, k: int, name: str | None = None) -> wg.Tensor:
    """Whether the score of the target is among the `k` largest of its row, equal ones included."""
    scores, own = as_tensor(predictions), as_tensor(targets)
    mine = wg.take_along_axis(scores, wg.expand_dims(own.astype(wg.int64), 1), axis=1)
    return named((scores > mine).sum(axis=1) < k, name)


top["slice"] = top.pop("slice_")
top["arg_max"], top["arg_min"] = top["argmax"], top["argmin"]
