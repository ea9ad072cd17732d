"""Images resized, rearranged and normalised, as modules over the functions of the same work."""

from __future__ import annotations

from typing import ClassVar

from wengert import _core
from wengert._core import Tensor, float32, int64, no_grad, ones, zeros
from wengert.nn.layers import Sizes
from wengert.nn.module import Buffer, Module, Parameter

__all__ = [
    "ChannelShuffle",
    "Fold",
    "InstanceNorm1d",
    "InstanceNorm2d",
    "InstanceNorm3d",
    "LocalResponseNorm",
    "PixelShuffle",
    "PixelUnshuffle",
    "Unfold",
    "Upsample",
    "UpsamplingBilinear2d",
    "UpsamplingNearest2d",
]


class Upsample(Module):
    """`nn.interpolate`: images resized to `size`, or by `scale_factor`."""

    def __init__(
        self,
        size: Sizes | None = None,
        scale_factor: float | None = None,
        mode: str = "nearest",
        align_corners: bool | None = None,
    ) -> None:
        self.size = size
        self.scale_factor = scale_factor
        self.mode = mode
        self.align_corners = align_corners

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, *sizes) to (N, C, *others)."""
        return _core.nn.interpolate(x, self.size, self.scale_factor, self.mode, self.align_corners)


class UpsamplingNearest2d(Upsample):
    """`Upsample` of (N, C, H, W) with mode "nearest"."""

    def __init__(self, size: Sizes | None = None, scale_factor: float | None = None) -> None:
        super().__init__(size, scale_factor)


class UpsamplingBilinear2d(Upsample):
    """`Upsample` of (N, C, H, W) with mode "bilinear" and aligned corners."""

    def __init__(self, size: Sizes | None = None, scale_factor: float | None = None) -> None:
        super().__init__(size, scale_factor, "bilinear", True)


class PixelShuffle(Module):
    """Pixels from channels: (..., C r², H, W) to (..., C, H r, W r)."""

    def __init__(self, upscale_factor: int) -> None:
        self.upscale_factor = upscale_factor

    def forward(self, x: Tensor) -> Tensor:
        """(..., C r², H, W) to (..., C, H r, W r)."""
        return _core.nn.pixel_shuffle(x, self.upscale_factor)


class PixelUnshuffle(Module):
    """Channels from pixels: (..., C, H r, W r) to (..., C r², H, W)."""

    def __init__(self, downscale_factor: int) -> None:
        self.downscale_factor = downscale_factor

    def forward(self, x: Tensor) -> Tensor:
        """(..., C, H r, W r) to (..., C r², H, W)."""
        return _core.nn.pixel_unshuffle(x, self.downscale_factor)


class ChannelShuffle(Module):
    """Channels (axis 1) dealt out between `groups`; see `nn.channel_shuffle`."""

    def __init__(self, groups: int) -> None:
        self.groups = groups

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, ...) to the same shape."""
        return _core.nn.channel_shuffle(x, self.groups)


class Unfold(Module):
    """The windows of images, side by side; see `nn.unfold`."""

    def __init__(
        self, kernel_size: Sizes, dilation: Sizes = 1, padding: Sizes = 0, stride: Sizes = 1
    ) -> None:
        self.kernel_size = kernel_size
        self.dilation = dilation
        self.padding = padding
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) to (N, C · window, count)."""
        return _core.nn.unfold(x, self.kernel_size, self.dilation, self.padding, self.stride)


class Fold(Module):
    """Windows put together to images, where they overlap by their sum; see `nn.fold`."""

    def __init__(
        self,
        output_size: Sizes,
        kernel_size: Sizes,
        dilation: Sizes = 1,
        padding: Sizes = 0,
        stride: Sizes = 1,
    ) -> None:
        self.output_size = output_size
        self.kernel_size = kernel_size
        self.dilation = dilation
        self.padding = padding
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        """(N, C · window, count) to (N, C, *output_size)."""
        place = (self.kernel_size, self.dilation, self.padding, self.stride)
        return _core.nn.fold(x, self.output_size, *place)


class LocalResponseNorm(Module):
    """Divides by a power of the mean square of neighbouring channels; see
    `nn.local_response_norm`."""

    def __init__(self, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> None:
        self.size = size
        self.alpha = alpha
        self.beta = beta
        self.k = k

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, ...) to the same shape."""
        return _core.nn.local_response_norm(x, self.size, self.alpha, self.beta, self.k)


class _InstanceNorm(Module):
    """Normalises each channel of each example over the axes behind it.

    With `track_running_stats`, evaluation uses running statistics, kept in training as those of
    `BatchNorm`, with means over the batch of the examples' own.
    """

    _ranks: ClassVar[tuple[int, int]]

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = False,
        track_running_stats: bool = False,
        *,
        bias: bool = True,
    ) -> None:
        self.num_features = num_features
        self.eps = eps
        self.momentum = momentum
        self.affine = affine
        self.track_running_stats = track_running_stats
        self.weight = Parameter(ones(num_features, dtype=float32)) if affine else None
        self.bias = Parameter(zeros(num_features, dtype=float32)) if affine and bias else None
        if track_running_stats:
            self.running_mean = Buffer(zeros(num_features, dtype=float32))
            self.running_var = Buffer(ones(num_features, dtype=float32))
            self.num_batches_tracked = Buffer(zeros((), dtype=int64))

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, ...) or (C, ...) to the same shape."""
        if x.ndim == self._ranks[0]:
            return self.forward(x[None])[0]
        if x.ndim != self._ranks[1] or x.shape[1] != self.num_features:
            raise _core.ShapeError(
                f"{type(self).__name__}: input has shape {tuple(x.shape)}, wanted "
                f"(N, {self.num_features}, ...) of rank {self._ranks[1]}"
            )
        if not self.track_running_stats:
            return _core.nn.instance_norm(x, weight=self.weight, bias=self.bias, eps=self.eps)
        if not self.training:
            mean, var = self.running_mean, self.running_var
            return _core.nn.batch_norm(x, mean, var, self.weight, self.bias, eps=self.eps)
        self._track(x)
        return _core.nn.instance_norm(x, weight=self.weight, bias=self.bias, eps=self.eps)

    def _track(self, x: Tensor) -> None:
        axes = tuple(range(2, x.ndim))
        with no_grad():
            self.num_batches_tracked += 1
            for running, new in (
                (self.running_mean, x.mean(axis=axes)),
                (self.running_var, x.var(axis=axes, correction=1)),
            ):
                running *= 1.0 - self.momentum
                running += self.momentum * new.mean(axis=0).astype(running.dtype)


class InstanceNorm1d(_InstanceNorm):
    """Instance normalisation of (N, C, L) or (C, L)."""

    _ranks = (2, 3)


class InstanceNorm2d(_InstanceNorm):
    """Instance normalisation of (N, C, H, W) or (C, H, W)."""

    _ranks = (3, 4)


class InstanceNorm3d(_InstanceNorm):
    """Instance normalisation of (N, C, D, H, W) or (C, D, H, W)."""

    _ranks = (4, 5)
