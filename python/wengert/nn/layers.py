"""Layers: modules that hold the parameters of one `nn` function.

Initial weights are PyTorch's: uniform in ±1 / √fan-in unless a layer says otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

from wengert import _core
from wengert._core import Tensor, float32, int64, no_grad, ones, random, zeros
from wengert.nn.module import Buffer, Module, Parameter

Sizes = int | Sequence[int]


def _uniform(shape: Sequence[int], fan_in: int) -> Parameter:
    bound = 1.0 / math.sqrt(max(fan_in, 1))
    return Parameter(random.uniform(shape, low=-bound, high=bound))


class Linear(Module):
    """`x @ weight.T + bias`, with `weight` (out, in).

    >>> nn.Linear(3, 2)(wg.ones((5, 3))).shape
    (5, 2)
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        self.in_features = in_features
        self.out_features = out_features
        self.weight = _uniform((out_features, in_features), in_features)
        self.bias = _uniform((out_features,), in_features) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) to (..., out)."""
        return _core.nn.linear(x, self.weight, self.bias)


class Embedding(Module):
    """Rows of a table, `weight` (num_embeddings, embedding_dim), initially standard normal."""

    def __init__(self, num_embeddings: int, embedding_dim: int) -> None:
        self.num_embeddings = num_embeddings
        self.embedding_dim = embedding_dim
        self.weight = Parameter(random.normal((num_embeddings, embedding_dim)))

    def forward(self, indices: Tensor) -> Tensor:
        """Integers (...) to (..., embedding_dim); `IndexError` outside the table."""
        return _core.nn.embedding(indices, self.weight)


# Convolutions.


def _window(size: Sizes, rank: int, name: str) -> tuple[int, ...]:
    sizes = (size,) * rank if isinstance(size, int) else tuple(size)
    if len(sizes) != rank:
        raise ValueError(f"{name}: kernel_size {size} has {len(sizes)} numbers, wanted {rank}")
    return sizes


class _Conv(Module):
    """What convolutions of any rank share: geometry and parameters."""

    _rank: ClassVar[int]
    _transposed: ClassVar[bool] = False

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Sizes,
        stride: Sizes = 1,
        padding: Sizes = 0,
        dilation: Sizes = 1,
        groups: int = 1,
        bias: bool = True,
    ) -> None:
        name = type(self).__name__
        if groups < 1 or in_channels % groups or out_channels % groups:
            raise ValueError(
                f"{name}: channels {in_channels} and {out_channels} do not divide into {groups} "
                "groups"
            )
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.kernel_size = kernel_size
        self.stride = stride
        self.padding = padding
        self.dilation = dilation
        self.groups = groups
        window = _window(kernel_size, self._rank, name)
        first, second = out_channels, in_channels // groups
        if self._transposed:
            first, second = in_channels, out_channels // groups
        # The fan-in is taken from the layout, for transposed weights too, as PyTorch does.
        fan_in = second * math.prod(window)
        self.weight = _uniform((first, second, *window), fan_in)
        self.bias = _uniform((out_channels,), fan_in) if bias else None

    def _geometry(self) -> dict[str, Any]:
        names = ("stride", "padding", "dilation", "groups")
        return {n: getattr(self, n) for n in names}


class Conv1d(_Conv):
    """Convolution over the last axis of (N, C, L); `weight` is (out, in / groups, window)."""

    _rank = 1

    def forward(self, x: Tensor) -> Tensor:
        """(N, in, L) to (N, out, L')."""
        return _core.nn.conv1d(x, self.weight, self.bias, **self._geometry())


class Conv2d(_Conv):
    """Convolution over the last two axes of (N, C, H, W); `weight` is (out, in / groups, *window).

    >>> nn.Conv2d(1, 8, 3, padding=1)(wg.ones((2, 1, 5, 5))).shape
    (2, 8, 5, 5)
    """

    _rank = 2

    def forward(self, x: Tensor) -> Tensor:
        """(N, in, H, W) to (N, out, H', W')."""
        return _core.nn.conv2d(x, self.weight, self.bias, **self._geometry())


class Conv3d(_Conv):
    """Convolution over the last three axes of (N, C, D, H, W)."""

    _rank = 3

    def forward(self, x: Tensor) -> Tensor:
        """(N, in, D, H, W) to (N, out, D', H', W')."""
        return _core.nn.conv3d(x, self.weight, self.bias, **self._geometry())


class _ConvTranspose(_Conv):
    """What transposed convolutions share: `weight` is (in, out / groups, *window)."""

    _transposed = True

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Sizes,
        stride: Sizes = 1,
        padding: Sizes = 0,
        output_padding: Sizes = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: Sizes = 1,
    ) -> None:
        super().__init__(
            in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias
        )
        self.output_padding = output_padding

    def _geometry(self) -> dict[str, Any]:
        return {**super()._geometry(), "output_padding": self.output_padding}


class ConvTranspose1d(_ConvTranspose):
    """The transpose of `Conv1d`'s map, for upsampling (N, C, L)."""

    _rank = 1

    def forward(self, x: Tensor) -> Tensor:
        """(N, in, L) to (N, out, L')."""
        return _core.nn.conv_transpose1d(x, self.weight, self.bias, **self._geometry())


class ConvTranspose2d(_ConvTranspose):
    """The transpose of `Conv2d`'s map, for upsampling (N, C, H, W)."""

    _rank = 2

    def forward(self, x: Tensor) -> Tensor:
        """(N, in, H, W) to (N, out, H', W')."""
        return _core.nn.conv_transpose2d(x, self.weight, self.bias, **self._geometry())


class ConvTranspose3d(_ConvTranspose):
    """The transpose of `Conv3d`'s map, for upsampling (N, C, D, H, W)."""

    _rank = 3

    def forward(self, x: Tensor) -> Tensor:
        """(N, in, D, H, W) to (N, out, D', H', W')."""
        return _core.nn.conv_transpose3d(x, self.weight, self.bias, **self._geometry())


# Pooling.


class _Pool(Module):
    """A window that slides over the last axes; `stride` is the window's size by default."""

    _function: ClassVar[str]

    def __init__(self, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0) -> None:
        self.kernel_size = kernel_size
        self.stride = stride
        self.padding = padding

    def forward(self, x: Tensor) -> Tensor:
        """(..., *sizes) to (..., *fewer)."""
        pool = getattr(_core.nn, self._function)
        return pool(x, self.kernel_size, stride=self.stride, padding=self.padding)


class MaxPool1d(_Pool):
    """The largest element of each window along the last axis."""

    _function = "max_pool1d"


class MaxPool2d(_Pool):
    """The largest element of each window over the last two axes."""

    _function = "max_pool2d"


class MaxPool3d(_Pool):
    """The largest element of each window over the last three axes."""

    _function = "max_pool3d"


class AvgPool1d(_Pool):
    """The mean of each window along the last axis; padding counts as zeros."""

    _function = "avg_pool1d"


class AvgPool2d(_Pool):
    """The mean of each window over the last two axes; padding counts as zeros."""

    _function = "avg_pool2d"


class AvgPool3d(_Pool):
    """The mean of each window over the last three axes; padding counts as zeros."""

    _function = "avg_pool3d"


class AdaptiveAvgPool2d(Module):
    """Means over windows chosen so that the result has `output_size`.

    Along an axis of n elements, output i is the mean of elements ⌊i n / m⌋ to ⌈(i + 1) n / m⌉.
    """

    def __init__(self, output_size: Sizes) -> None:
        self.output_size = output_size

    def forward(self, x: Tensor) -> Tensor:
        """(..., H, W) to (..., *output_size)."""
        return _core.nn.adaptive_avg_pool2d(x, self.output_size)


# Normalisation.


class BatchNorm(Module):
    """Normalises each channel (axis 1) over the batch and all other axes, for input of any rank.

    In training the batch's own statistics are used, and running ones are kept:
    `running ← (1 − momentum) · running + momentum · batch`, with the unbiased variance;
    `momentum=None` keeps the plain average of all batches. Evaluation uses the running ones.
    """

    _ranks: ClassVar[range] = range(2, 65)
    _forms: ClassVar[tuple[tuple[str, ...], ...]] = (("...",),)

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
    ) -> None:
        self.num_features = num_features
        self.eps = eps
        self.momentum = momentum
        self.weight = Parameter(ones(num_features, dtype=float32)) if affine else None
        self.bias = Parameter(zeros(num_features, dtype=float32)) if affine else None
        self.running_mean = Buffer(zeros(num_features, dtype=float32))
        self.running_var = Buffer(ones(num_features, dtype=float32))
        self.num_batches_tracked = Buffer(zeros((), dtype=int64))

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, ...) to the same shape."""
        if x.ndim not in self._ranks or x.shape[1] != self.num_features:
            wanted = " or ".join(
                str(("N", self.num_features, *form)).replace("'", "") for form in self._forms
            )
            raise _core.ShapeError(
                f"{type(self).__name__}: input has shape {tuple(x.shape)}, wanted {wanted}"
            )
        mean: Tensor
        var: Tensor
        if not self.training:
            mean, var = self.running_mean, self.running_var
        else:
            axes = (0, *range(2, x.ndim))
            mean, var = x.mean(axis=axes), x.var(axis=axes)
            self._track(mean, var, math.prod(x.shape[i] for i in axes))
        return _core.nn.batch_norm(x, mean, var, self.weight, self.bias, eps=self.eps)

    def _track(self, mean: Tensor, var: Tensor, count: int) -> None:
        """Move the running statistics towards those of a batch of `count` values a channel."""
        if count < 2:
            raise _core.ShapeError(
                f"{type(self).__name__}: training needs more than one value a channel, got one; "
                "use eval() for single values"
            )
        with no_grad():
            self.num_batches_tracked += 1
            part: float | Tensor | None = self.momentum
            if part is None:
                part = 1.0 / self.num_batches_tracked.astype(self.running_mean.dtype)
            self.running_mean *= 1.0 - part
            self.running_mean += part * mean.astype(self.running_mean.dtype)
            self.running_var *= 1.0 - part
            self.running_var += (part * (count / (count - 1))) * var.astype(self.running_var.dtype)


class BatchNorm1d(BatchNorm):
    """`BatchNorm` for input of shape (N, C) or (N, C, L)."""

    _ranks = range(2, 4)
    _forms = (), ("L",)


class BatchNorm2d(BatchNorm):
    """`BatchNorm` for input of shape (N, C, H, W)."""

    _ranks = range(4, 5)
    _forms = (("H", "W"),)


class BatchNorm3d(BatchNorm):
    """`BatchNorm` for input of shape (N, C, D, H, W)."""

    _ranks = range(5, 6)
    _forms = (("D", "H", "W"),)


class LayerNorm(Module):
    """Normalises over the last axes, whose sizes are `normalized_shape`."""

    def __init__(
        self,
        normalized_shape: Sizes,
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
    ) -> None:
        shape = (normalized_shape,) if isinstance(normalized_shape, int) else normalized_shape
        self.normalized_shape = tuple(shape)
        self.eps = eps
        self.weight = Parameter(ones(self.normalized_shape)) if elementwise_affine else None
        self.bias = Parameter(zeros(self.normalized_shape)) if elementwise_affine and bias else None

    def forward(self, x: Tensor) -> Tensor:
        """(..., *normalized_shape) to the same shape."""
        axis = _last_axes(x, self.normalized_shape, "LayerNorm")
        return _core.nn.layer_norm(x, axis=axis, weight=self.weight, bias=self.bias, eps=self.eps)


class RMSNorm(Module):
    """Divides by the root of the mean square over the last axes, without centring."""

    def __init__(self, normalized_shape: Sizes, eps: float = 1e-6) -> None:
        shape = (normalized_shape,) if isinstance(normalized_shape, int) else normalized_shape
        self.normalized_shape = tuple(shape)
        self.eps = eps
        self.weight = Parameter(ones(self.normalized_shape))

    def forward(self, x: Tensor) -> Tensor:
        """(..., *normalized_shape) to the same shape."""
        axis = _last_axes(x, self.normalized_shape, "RMSNorm")
        return _core.nn.rms_norm(x, axis=axis, weight=self.weight, eps=self.eps)


def _last_axes(x: Tensor, shape: tuple[int, ...], name: str) -> int | tuple[int, ...]:
    if tuple(x.shape[-len(shape) :]) != shape:
        raise _core.ShapeError(f"{name}: input has shape {tuple(x.shape)}, wanted (..., {shape})")
    return -1 if len(shape) == 1 else tuple(range(-len(shape), 0))


class GroupNorm(Module):
    """Normalises over groups of channels (axis 1) and all axes after them."""

    def __init__(
        self, num_groups: int, num_channels: int, eps: float = 1e-5, affine: bool = True
    ) -> None:
        if num_groups < 1 or num_channels % num_groups:
            raise ValueError(
                f"GroupNorm: {num_channels} channels do not divide into {num_groups} groups"
            )
        self.num_groups = num_groups
        self.num_channels = num_channels
        self.eps = eps
        self.weight = Parameter(ones(num_channels)) if affine else None
        self.bias = Parameter(zeros(num_channels)) if affine else None

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, ...) to the same shape."""
        if x.ndim < 2 or x.shape[1] != self.num_channels:
            raise _core.ShapeError(
                f"GroupNorm: input has shape {tuple(x.shape)}, wanted (N, {self.num_channels}, ...)"
            )
        return _core.nn.group_norm(x, self.num_groups, self.weight, self.bias, eps=self.eps)


class Dropout(Module):
    """In training, zeroes each element with probability `p` and divides the others by 1 − p."""

    def __init__(self, p: float = 0.5) -> None:
        if not 0.0 <= p <= 1.0:
            raise ValueError(f"Dropout: p is a probability, got {p}")
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        """Any shape, to the same shape."""
        return _core.nn.dropout(x, self.p) if self.training and self.p > 0.0 else x


# Shape.


class Identity(Module):
    """Returns its argument."""

    def forward(self, x: Any) -> Any:
        """Any value, to itself."""
        return x


class Flatten(Module):
    """Makes one axis of the axes from `start_axis` to `end_axis`, both included."""

    def __init__(self, start_axis: int = 1, end_axis: int = -1) -> None:
        self.start_axis = start_axis
        self.end_axis = end_axis

    def forward(self, x: Tensor) -> Tensor:
        """(N, ...) to (N, product), with the default axes."""
        first, last = (a + x.ndim if a < 0 else a for a in (self.start_axis, self.end_axis))
        if not 0 <= first <= last < x.ndim:
            raise _core.AxisError(
                f"Flatten: axes {self.start_axis} to {self.end_axis} of a tensor of rank {x.ndim}"
            )
        size = math.prod(x.shape[first : last + 1])
        return x.reshape((*x.shape[:first], size, *x.shape[last + 1 :]))
