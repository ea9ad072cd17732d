"""`tf.layers`: functions that make their variables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import wengert as wg
from wengert.compat.v1._graph import GraphKeys, add_to_collection, named
from wengert.compat.v1._nn import convolution, nn, pooling, transposed, window_sizes
from wengert.compat.v1._scopes import (
    get_variable,
    ones_initializer,
    variable_scope,
    zeros_initializer,
)
from wengert.compat.v1._spaces import formula, layers
from wengert.compat.v1._table import as_tensor, truth

Activation = Callable[[wg.Tensor], wg.Tensor] | None


def _scope(name: str | None, default: str, reuse: Any) -> Any:
    """The scope of a layer: a name of its own, or the next of its kind."""
    return variable_scope(name, None if name is not None else default, reuse=reuse)


def _finished(
    y: wg.Tensor,
    bias: Any,
    activation: Activation,
    activity_regularizer: Any,
    first: bool = False,
) -> wg.Tensor:
    if bias is not None:
        y = nn.bias_add(y, bias, "NCHW" if first else None)
    if activation is not None:
        y = activation(y)
    if activity_regularizer is not None:
        loss = named(activity_regularizer(y), "ActivityRegularizer")
        add_to_collection(GraphKeys.REGULARIZATION_LOSSES, loss)
    return y


def _dtype(x: wg.Tensor) -> Any:
    return x.dtype if wg.isdtype(x.dtype, "real floating") else wg.float32


def _known(op: str, x: wg.Tensor, axis: int = -1) -> int:
    n = None if x.shape is None else x.shape[axis]
    if not isinstance(n, int):
        raise ValueError(
            f"tf.layers.{op}: axis {axis} of the input must have a known size, got {x!r}"
        )
    return n


@formula(layers)
def dense(
    inputs: Any,
    units: int,
    activation: Activation = None,
    use_bias: Any = True,
    kernel_initializer: Any = None,
    bias_initializer: Any = zeros_initializer,
    kernel_regularizer: Any = None,
    bias_regularizer: Any = None,
    activity_regularizer: Any = None,
    kernel_constraint: Any = None,
    bias_constraint: Any = None,
    trainable: Any = True,
    name: str | None = None,
    reuse: Any = None,
) -> wg.Tensor:
    """`activation(inputs @ kernel + bias)` over the last axis, with variables `kernel` (size,
    units) and `bias` (units)."""
    x = as_tensor(inputs)
    width = _known("dense", x)
    with _scope(name, "dense", reuse):
        kernel = get_variable(
            "kernel", [width, int(units)], _dtype(x), kernel_initializer, kernel_regularizer,
            trainable, constraint=kernel_constraint,
        )  # fmt: skip
        bias = None
        if use_bias:
            bias = get_variable(
                "bias", [int(units)], _dtype(x), bias_initializer, bias_regularizer, trainable,
                constraint=bias_constraint,
            )  # fmt: skip
        return _finished(x.astype(_dtype(x)) @ kernel, bias, activation, activity_regularizer)


def _convolution(
    op: str,
    rank: int,
    inputs: Any,
    filters: int,
    kernel_size: Any,
    strides: Any,
    padding: str,
    data_format: str,
    dilation_rate: Any,
    transpose: bool,
    options: dict[str, Any],
) -> wg.Tensor:
    known = {
        "activation": None, "use_bias": True, "kernel_initializer": None,
        "bias_initializer": zeros_initializer, "kernel_regularizer": None,
        "bias_regularizer": None, "activity_regularizer": None, "kernel_constraint": None,
        "bias_constraint": None, "trainable": True, "name": None, "reuse": None,
    }  # fmt: skip
    unknown = sorted(options.keys() - known.keys())
    if unknown:
        raise TypeError(f"tf.layers.{op}: has no argument {', '.join(unknown)}")
    o = {**known, **options}
    first = _first(op, data_format)
    padding = _padding(op, padding)
    x = as_tensor(inputs)
    channels = _known(op, x, 1 if first else -1)
    size = window_sizes(op, kernel_size, None, rank)
    shape = [*size, int(filters), channels] if transpose else [*size, channels, int(filters)]
    with _scope(o["name"], op, o["reuse"]):
        kernel = get_variable(
            "kernel", shape, _dtype(x), o["kernel_initializer"], o["kernel_regularizer"],
            o["trainable"], constraint=o["kernel_constraint"],
        )  # fmt: skip
        bias = None
        if o["use_bias"]:
            bias = get_variable(
                "bias", [int(filters)], _dtype(x), o["bias_initializer"], o["bias_regularizer"],
                o["trainable"], constraint=o["bias_constraint"],
            )  # fmt: skip
        layout = "NC" if first else None
        if transpose:
            stride = window_sizes(op, strides, None, rank)
            y = transposed(op, x, kernel, None, stride, padding, layout)
        else:
            y = convolution(op, x, kernel, strides, padding, layout, dilation_rate)
        return _finished(y, bias, o["activation"], o["activity_regularizer"], first)


def _first(op: str, data_format: str) -> bool:
    if data_format not in ("channels_last", "channels_first"):
        raise ValueError(
            f"tf.layers.{op}: data_format is 'channels_last' or 'channels_first', got "
            f"{data_format!r}"
        )
    return data_format == "channels_first"


def _padding(op: str, padding: str) -> str:
    if padding.upper() not in ("SAME", "VALID"):
        raise ValueError(f"tf.layers.{op}: padding is 'same' or 'valid', got {padding!r}")
    return padding.upper()


def _of_rank(op: str, rank: int, text: str) -> None:
    def conv(
        inputs: Any,
        filters: int,
        kernel_size: Any,
        strides: Any = 1,
        padding: str = "valid",
        data_format: str = "channels_last",
        dilation_rate: Any = 1,
        activation: Activation = None,
        use_bias: Any = True,
        **options: Any,
    ) -> wg.Tensor:
        options |= {"activation": activation, "use_bias": use_bias}
        return _convolution(
            op, rank, inputs, filters, kernel_size, strides, padding, data_format, dilation_rate,
            False, options,
        )  # fmt: skip

    conv.__name__, conv.__doc__ = op, text
    formula(layers)(conv)


_of_rank("conv1d", 1, "The convolution of sequences with variables `kernel` (width, channels, "
         "filters) and `bias`.")  # fmt: skip
_of_rank("conv2d", 2, "The convolution of images with variables `kernel` (height, width, channels, "
         "filters) and `bias`.")  # fmt: skip
_of_rank("conv3d", 3, "The convolution of volumes with variables `kernel` and `bias`.")


@formula(layers)
def conv2d_transpose(
    inputs: Any,
    filters: int,
    kernel_size: Any,
    strides: Any = (1, 1),
    padding: str = "valid",
    data_format: str = "channels_last",
    activation: Activation = None,
    use_bias: Any = True,
    **options: Any,
) -> wg.Tensor:
    """The transposed convolution of images with variables `kernel` (height, width, filters,
    channels) and `bias`."""
    options |= {"activation": activation, "use_bias": use_bias}
    return _convolution(
        "conv2d_transpose", 2, inputs, filters, kernel_size, strides, padding, data_format, 1, True,
        options,
    )  # fmt: skip


def _pool(op: str, kind: str, rank: int, text: str) -> None:
    def pool(
        inputs: Any,
        pool_size: Any,
        strides: Any,
        padding: str = "valid",
        data_format: str = "channels_last",
        name: str | None = None,
    ) -> wg.Tensor:
        layout = "NC" if _first(op, data_format) else None
        return pooling(kind, inputs, pool_size, strides, _padding(op, padding), layout, rank)

    pool.__name__, pool.__doc__ = op, text
    formula(layers)(pool)


for _rank in (1, 2, 3):
    _pool(f"max_pooling{_rank}d", "max_pool", _rank, "The largest element of each window.")
    _pool(f"average_pooling{_rank}d", "avg_pool", _rank, "The mean of each window.")


@formula(layers)
def flatten(inputs: Any, name: str | None = None, data_format: str = "channels_last") -> wg.Tensor:
    """All axes but the first as one."""
    x = as_tensor(inputs)
    if _first("flatten", data_format) and len(x.shape) > 2:
        x = wg.moveaxis(x, 1, -1)
    size: Any = 1
    for n in x.shape[1:]:
        size = size * n
    return x.reshape((x.shape[0] if not isinstance(size, int) else -1, size))


@formula(layers)
def dropout(
    inputs: Any,
    rate: Any = 0.5,
    noise_shape: Any = None,
    seed: int | None = None,
    training: Any = False,
    name: str | None = None,
) -> wg.Tensor:
    """Elements set to zero with probability `rate` where `training` holds; the others grow."""
    x = as_tensor(inputs)
    if isinstance(training, wg.Tensor):
        zeroed = nn.dropout(x, rate=rate, noise_shape=noise_shape, seed=seed)
        return wg.where(truth(training), zeroed, x)
    return nn.dropout(x, rate=rate, noise_shape=noise_shape, seed=seed) if training else x


@formula(layers)
def batch_normalization(
    inputs: Any,
    axis: Any = -1,
    momentum: float = 0.99,
    epsilon: float = 1e-3,
    center: Any = True,
    scale: Any = True,
    beta_initializer: Any = zeros_initializer,
    gamma_initializer: Any = ones_initializer,
    moving_mean_initializer: Any = zeros_initializer,
    moving_variance_initializer: Any = ones_initializer,
    beta_regularizer: Any = None,
    gamma_regularizer: Any = None,
    beta_constraint: Any = None,
    gamma_constraint: Any = None,
    training: Any = False,
    trainable: Any = True,
    name: str | None = None,
    reuse: Any = None,
    renorm: Any = False,
    fused: Any = None,
    **options: Any,
) -> wg.Tensor:
    """Mean 0 and variance 1 for each channel, then `gamma` and `beta`: over the batch where
    `training` holds, by moving averages elsewhere.

    The averages move when `tf.GraphKeys.UPDATE_OPS` run, by `1 - momentum` towards the batch's.
    The variance of images (4 axes) is there the unbiased one, as in TensorFlow's fused kernel,
    unless `fused=False`; of others it is the mean of squared distances.
    """
    if renorm or any(options.values()):
        raise NotImplementedError("tf.layers.batch_normalization: renorm and virtual batches")
    x = as_tensor(inputs)
    axis = axis[0] if isinstance(axis, list | tuple) else axis
    rank = len(x.shape)
    axis = axis % rank
    n = _known("batch_normalization", x, axis)
    kind = wg.float32 if x.dtype in (wg.float16, wg.bfloat16) else x.dtype
    with _scope(name, "batch_normalization", reuse):
        gamma = beta = None
        if scale:
            gamma = get_variable(
                "gamma", [n], kind, gamma_initializer, gamma_regularizer, trainable,
                constraint=gamma_constraint,
            )  # fmt: skip
        if center:
            beta = get_variable(
                "beta", [n], kind, beta_initializer, beta_regularizer, trainable,
                constraint=beta_constraint,
            )  # fmt: skip
        moving_mean = get_variable("moving_mean", [n], kind, moving_mean_initializer, None, False)
        moving_variance = get_variable(
            "moving_variance", [n], kind, moving_variance_initializer, None, False
        )
        learns = truth(training) if isinstance(training, wg.Tensor) else bool(training)
        if learns is False:
            return _normalized(x, moving_mean, moving_variance, gamma, beta, epsilon, axis)
        axes = tuple(k for k in range(rank) if k != axis)
        found_mean, found_variance = (
            f(x, axis=axes)
            for f in (wg.mean, wg.var)  # type: ignore[operator]
        )
        seen = found_variance
        if fused is not False and rank == 4:
            count: Any = 1
            for k in axes:
                count = count * x.shape[k]
            count = as_tensor(count).astype(kind)
            seen = found_variance * (count / wg.maximum(count - 1.0, 1.0))
        used: Any = (found_mean, found_variance)
        moved = []
        for v, new in ((moving_mean, found_mean), (moving_variance, seen)):
            step = (v - new.detach()) * (1.0 - momentum)
            if learns is not True:
                step = wg.where(learns, step, 0.0)
            moved.append(v.assign_sub(step))
        if learns is not True:
            used = tuple(
                wg.where(learns, new, v)
                for new, v in zip(used, (moving_mean, moving_variance), strict=True)
            )
        for update in moved:
            add_to_collection(GraphKeys.UPDATE_OPS, named(update, "AssignMovingAvg"))
        mean, variance = used
        return _normalized(x, mean, variance, gamma, beta, epsilon, axis)


def _normalized(
    x: wg.Tensor, mean: Any, variance: Any, gamma: Any, beta: Any, epsilon: float, axis: int
) -> wg.Tensor:
    # The op has channels on axis 1.
    moved = wg.moveaxis(x, axis, 1) if axis != 1 else x
    y = wg.nn.batch_norm(moved, mean, variance, gamma, beta, eps=epsilon)
    return wg.moveaxis(y, 1, axis) if axis != 1 else y
