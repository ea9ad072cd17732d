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


# Convolutions.


def _window(size: Sizes, rank: int, name: str) -> tuple[int, ...]:
    sizes = (size,) * rank if isinstance(size, int) else tuple(size)
    if len(sizes) != rank:
        raise ValueError(f"{name}: kernel_size {size} has {len(sizes)} numbers, wanted {rank}")
    return sizes


# PyTorch's names of what lies outside, and those of `pad`.
_PADDING = {
    "zeros": "constant",
    "reflect": "reflect",
    "replicate": "replicate",
    "circular": "circular",
}


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
        padding: Sizes | str = 0,
        dilation: Sizes = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
    ) -> None:
        name = type(self).__name__
        if padding_mode not in _PADDING:
            raise ValueError(
                f"{name}: padding_mode must be one of {', '.join(_PADDING)}, got {padding_mode!r}"
            )
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
        self.padding_mode = padding_mode
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

    def _convolved(self, x: Tensor) -> Tensor:
        """The convolution of `x`, padded first where no zeros are wanted."""
        convolve = getattr(_core.nn, f"conv{self._rank}d")
        geometry = self._geometry()
        if self.padding_mode != "zeros" and self.padding != "valid":
            x = _core.pad(x, self._borders(x), mode=_PADDING[self.padding_mode])
            geometry["padding"] = 0
        return convolve(x, self.weight, self.bias, **geometry)

    def _borders(self, x: Tensor) -> list[tuple[int, int]]:
        """What is added before and behind each axis."""
        if self.padding == "same":
            window = self.weight.shape[2:]
            dilation = _window(self.dilation, self._rank, type(self).__name__)
            more = [d * (k - 1) for d, k in zip(dilation, window, strict=True)]
            borders = [(n // 2, n - n // 2) for n in more]
        else:
            sizes = _window(self.padding, self._rank, type(self).__name__)  # type: ignore[arg-type]
            borders = [(n, n) for n in sizes]
        return [(0, 0)] * (x.ndim - self._rank) + borders


class Conv1d(_Conv):
    """Convolution over the last axis of (N, C, L); `weight` is (out, in / groups, window)."""

    _rank = 1

    def forward(self, x: Tensor) -> Tensor:
        """(N, in, L) to (N, out, L')."""
        return self._convolved(x)


class Conv2d(_Conv):
    """Convolution over the last two axes of (N, C, H, W); `weight` is (out, in / groups, *window).

    >>> nn.Conv2d(1, 8, 3, padding=1)(wg.ones((2, 1, 5, 5))).shape
    (2, 8, 5, 5)
    """

    _rank = 2

    def forward(self, x: Tensor) -> Tensor:
        """(N, in, H, W) to (N, out, H', W')."""
        return self._convolved(x)


class Conv3d(_Conv):
    """Convolution over the last three axes of (N, C, D, H, W)."""

    _rank = 3

    def forward(self, x: Tensor) -> Tensor:
        """(N, in, D, H, W) to (N, out, D', H', W')."""
        return self._convolved(x)


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


# Normalisation.


class BatchNorm(Module):
    """Normalises each channel (axis 1) over the batch and all other axes, for input of any rank.

    In training the batch's own statistics are used, and running ones are kept:
    `running ← (1 − momentum) · running + momentum · batch`, with the unbiased variance;
    `momentum=None` keeps the plain average of all batches. Evaluation uses the running ones. With
    `track_running_stats=False` there are none, and both use the batch's own.
    """

    _ranks: ClassVar[range] = range(2, 65)
    _forms: ClassVar[tuple[tuple[str, ...], ...]] = (("...",),)

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        *,
        bias: bool = True,
    ) -> None:
        self.num_features = num_features
        self.eps = eps
        self.momentum = momentum
        self.track_running_stats = track_running_stats
        self.weight = Parameter(ones(num_features, dtype=float32)) if affine else None
        self.bias = Parameter(zeros(num_features, dtype=float32)) if affine and bias else None
        if track_running_stats:
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
        if self.track_running_stats and not self.training:
            mean, var = self.running_mean, self.running_var
        else:
            axes = (0, *range(2, x.ndim))
            count = math.prod(x.shape[i] for i in axes)
            if self.training and count < 2:
                raise _core.ShapeError(
                    f"{type(self).__name__}: training needs more than one value a channel, got "
                    f"{'one' if count else 'none'}; use eval() for single values"
                )
            mean, var = x.mean(axis=axes), x.var(axis=axes)
            if self.training and self.track_running_stats:
                self._track(mean, var, count)
        return _core.nn.batch_norm(x, mean, var, self.weight, self.bias, eps=self.eps)

    def _track(self, mean: Tensor, var: Tensor, count: int) -> None:
        """Move the running statistics towards those of a batch of `count` values a channel."""
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
    """Divides by the root of the mean square over the last axes, without centring.

    `eps` is added to the mean square; see `nn.rms_norm` for `None`.
    """

    def __init__(
        self,
        normalized_shape: Sizes,
        eps: float | None = None,
        elementwise_affine: bool = True,
    ) -> None:
        shape = (normalized_shape,) if isinstance(normalized_shape, int) else normalized_shape
        self.normalized_shape = tuple(shape)
        self.eps = eps
        self.weight = Parameter(ones(self.normalized_shape)) if elementwise_affine else None

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
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        *,
        bias: bool = True,
    ) -> None:
        if num_groups < 1 or num_channels % num_groups:
            raise ValueError(
                f"GroupNorm: {num_channels} channels do not divide into {num_groups} groups"
            )
        self.num_groups = num_groups
        self.num_channels = num_channels
        self.eps = eps
        self.weight = Parameter(ones(num_channels)) if affine else None
        self.bias = Parameter(zeros(num_channels)) if affine and bias else None

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, ...) to the same shape."""
        if x.ndim < 2 or x.shape[1] != self.num_channels:
            raise _core.ShapeError(
                f"GroupNorm: input has shape {tuple(x.shape)}, wanted (N, {self.num_channels}, ...)"
            )
        return _core.nn.group_norm(x, self.num_groups, self.weight, self.bias, eps=self.eps)


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


class Unflatten(Module):
    """Makes several axes of one: their sizes are `unflattened_size`, of which one may be -1.

    >>> nn.Unflatten(1, (2, -1))(wg.ones((5, 6))).shape
    (5, 2, 3)
    """

    def __init__(self, axis: int, unflattened_size: Sequence[int]) -> None:
        self.axis = axis
        self.unflattened_size = tuple(unflattened_size)

    def forward(self, x: Tensor) -> Tensor:
        """(..., product, ...) to (..., *unflattened_size, ...)."""
        axis = self.axis + x.ndim if self.axis < 0 else self.axis
        if not 0 <= axis < x.ndim:
            raise _core.AxisError(f"Unflatten: axis {self.axis} of a tensor of rank {x.ndim}")
        sizes = list(self.unflattened_size)
        if -1 in sizes:
            known = -math.prod(sizes)
            if known <= 0 or x.shape[axis] % known:
                raise _core.ShapeError(
                    f"Unflatten: size {x.shape[axis]} does not divide into {tuple(sizes)}"
                )
            sizes[sizes.index(-1)] = x.shape[axis] // known
        return x.reshape((*x.shape[:axis], *sizes, *x.shape[axis + 1 :]))
