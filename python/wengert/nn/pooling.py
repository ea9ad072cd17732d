"""Pooling: modules, and the functions whose results depend on `return_indices`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from wengert import _core
from wengert._core import Tensor
from wengert.nn._extended import extends
from wengert.nn.layers import Sizes
from wengert.nn.module import Module

__all__ = [
    "AdaptiveAvgPool1d",
    "AdaptiveAvgPool2d",
    "AdaptiveAvgPool3d",
    "AdaptiveMaxPool1d",
    "AdaptiveMaxPool2d",
    "AdaptiveMaxPool3d",
    "AvgPool1d",
    "AvgPool2d",
    "AvgPool3d",
    "LPPool1d",
    "LPPool2d",
    "LPPool3d",
    "MaxPool1d",
    "MaxPool2d",
    "MaxPool3d",
    "MaxUnpool1d",
    "MaxUnpool2d",
    "MaxUnpool3d",
    "adaptive_max_pool1d",
    "adaptive_max_pool2d",
    "adaptive_max_pool3d",
    "max_pool1d",
    "max_pool2d",
    "max_pool3d",
]


@extends(_core.nn.max_pool1d)
def max_pool1d(
    x: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
    *,
    return_indices: bool = False,
) -> Any:
    """With `return_indices`, also the positions, as `max_pool1d_with_indices` gives them."""
    nn = _core.nn
    pool = nn.max_pool1d_with_indices if return_indices else nn.max_pool1d
    return pool(x, kernel_size, stride, padding, dilation, ceil_mode)


@extends(_core.nn.max_pool2d)
def max_pool2d(
    x: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
    *,
    return_indices: bool = False,
) -> Any:
    """With `return_indices`, also the positions, as `max_pool2d_with_indices` gives them."""
    nn = _core.nn
    pool = nn.max_pool2d_with_indices if return_indices else nn.max_pool2d
    return pool(x, kernel_size, stride, padding, dilation, ceil_mode)


@extends(_core.nn.max_pool3d)
def max_pool3d(
    x: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
    *,
    return_indices: bool = False,
) -> Any:
    """With `return_indices`, also the positions, as `max_pool3d_with_indices` gives them."""
    nn = _core.nn
    pool = nn.max_pool3d_with_indices if return_indices else nn.max_pool3d
    return pool(x, kernel_size, stride, padding, dilation, ceil_mode)


@extends(_core.nn.adaptive_max_pool1d)
def adaptive_max_pool1d(x: Tensor, output_size: Sizes, *, return_indices: bool = False) -> Any:
    """With `return_indices`, also the positions (int64)."""
    nn = _core.nn
    pool = nn.adaptive_max_pool1d_with_indices if return_indices else nn.adaptive_max_pool1d
    return pool(x, output_size)


@extends(_core.nn.adaptive_max_pool2d)
def adaptive_max_pool2d(x: Tensor, output_size: Sizes, *, return_indices: bool = False) -> Any:
    """With `return_indices`, also the positions (int64)."""
    nn = _core.nn
    pool = nn.adaptive_max_pool2d_with_indices if return_indices else nn.adaptive_max_pool2d
    return pool(x, output_size)


@extends(_core.nn.adaptive_max_pool3d)
def adaptive_max_pool3d(x: Tensor, output_size: Sizes, *, return_indices: bool = False) -> Any:
    """With `return_indices`, also the positions (int64)."""
    nn = _core.nn
    pool = nn.adaptive_max_pool3d_with_indices if return_indices else nn.adaptive_max_pool3d
    return pool(x, output_size)


def _function(pool: Any) -> Any:
    """The function of a module: one of this file, or an op."""
    return globals().get(pool._function) or getattr(_core.nn, pool._function)


class _MaxPool(Module):
    """The largest element of each window over the last axes; `stride` is the window's size by
    default."""

    _function: ClassVar[str]

    def __init__(
        self,
        kernel_size: Sizes,
        stride: Sizes | None = None,
        padding: Sizes = 0,
        dilation: Sizes = 1,
        return_indices: bool = False,
        ceil_mode: bool = False,
    ) -> None:
        self.kernel_size = kernel_size
        self.stride = stride
        self.padding = padding
        self.dilation = dilation
        self.return_indices = return_indices
        self.ceil_mode = ceil_mode

    def forward(self, x: Tensor) -> Any:
        """(..., *sizes) to (..., *fewer); with `return_indices`, also the positions."""
        return _function(self)(
            x,
            self.kernel_size,
            self.stride,
            self.padding,
            self.dilation,
            self.ceil_mode,
            return_indices=self.return_indices,
        )


class MaxPool1d(_MaxPool):
    """The largest element of each window along the last axis; see `nn.max_pool1d`."""

    _function = "max_pool1d"


class MaxPool2d(_MaxPool):
    """The largest element of each window over the last two axes; see `nn.max_pool2d`."""

    _function = "max_pool2d"


class MaxPool3d(_MaxPool):
    """The largest element of each window over the last three axes; see `nn.max_pool3d`."""

    _function = "max_pool3d"


class _MaxUnpool(Module):
    """Puts what a max pooling found back to its places, with zeros elsewhere."""

    _function: ClassVar[str]

    def __init__(self, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0) -> None:
        self.kernel_size = kernel_size
        self.stride = stride
        self.padding = padding

    def forward(self, x: Tensor, indices: Tensor, output_size: Sizes | None = None) -> Tensor:
        """(..., *sizes), and the positions of its elements, to (..., *output_size)."""
        place = (self.kernel_size, self.stride, self.padding)
        return _function(self)(x, indices, *place, output_size=output_size)


class MaxUnpool1d(_MaxUnpool):
    """The reverse of `MaxPool1d` with `return_indices`."""

    _function = "max_unpool1d"


class MaxUnpool2d(_MaxUnpool):
    """The reverse of `MaxPool2d` with `return_indices`."""

    _function = "max_unpool2d"


class MaxUnpool3d(_MaxUnpool):
    """The reverse of `MaxPool3d` with `return_indices`."""

    _function = "max_unpool3d"


class _AvgPool(Module):
    """The mean of each window over the last axes; `stride` is the window's size by default."""

    _function: ClassVar[str]

    def __init__(
        self,
        kernel_size: Sizes,
        stride: Sizes | None = None,
        padding: Sizes = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> None:
        self.kernel_size = kernel_size
        self.stride = stride
        self.padding = padding
        self.ceil_mode = ceil_mode
        self.count_include_pad = count_include_pad
        self.divisor_override = divisor_override

    def forward(self, x: Tensor) -> Tensor:
        """(..., *sizes) to (..., *fewer)."""
        return _function(self)(
            x,
            self.kernel_size,
            self.stride,
            self.padding,
            ceil_mode=self.ceil_mode,
            count_include_pad=self.count_include_pad,
            divisor_override=self.divisor_override,
        )


class AvgPool1d(_AvgPool):
    """The mean of each window along the last axis; see `nn.avg_pool1d`."""

    _function = "avg_pool1d"


class AvgPool2d(_AvgPool):
    """The mean of each window over the last two axes; see `nn.avg_pool2d`."""

    _function = "avg_pool2d"


class AvgPool3d(_AvgPool):
    """The mean of each window over the last three axes; see `nn.avg_pool3d`."""

    _function = "avg_pool3d"


class _LPPool(Module):
    """The root of the sum of powers of each window."""

    _function: ClassVar[str]

    def __init__(
        self,
        norm_type: float,
        kernel_size: Sizes,
        stride: Sizes | None = None,
        ceil_mode: bool = False,
    ) -> None:
        self.norm_type = norm_type
        self.kernel_size = kernel_size
        self.stride = stride
        self.ceil_mode = ceil_mode

    def forward(self, x: Tensor) -> Tensor:
        """(..., *sizes) to (..., *fewer)."""
        return _function(self)(x, self.norm_type, self.kernel_size, self.stride, self.ceil_mode)


class LPPool1d(_LPPool):
    """See `nn.lp_pool1d`."""

    _function = "lp_pool1d"


class LPPool2d(_LPPool):
    """See `nn.lp_pool2d`."""

    _function = "lp_pool2d"


class LPPool3d(_LPPool):
    """See `nn.lp_pool3d`."""

    _function = "lp_pool3d"


class _AdaptivePool(Module):
    """Windows chosen so that the result has `output_size`.

    Along an axis of n elements, output i of m is made of elements ⌊i n / m⌋ to ⌈(i + 1) n / m⌉. A
    size of `None` is that of the input.
    """

    _function: ClassVar[str]

    def __init__(self, output_size: int | Sequence[int | None]) -> None:
        self.output_size = output_size

    def forward(self, x: Tensor) -> Tensor:
        """(..., *sizes) to (..., *output_size)."""
        return _function(self)(x, _output_size(self, x))


def _output_size(pool: Any, x: Tensor) -> Sizes:
    """What a pool wants of `x`, where a size of `None` is that of the input."""
    size = pool.output_size
    if isinstance(size, int) or None not in size:
        return size  # type: ignore[no-any-return]
    if x.ndim < len(size):
        raise _core.ShapeError(
            f"{type(pool).__name__}: input has shape {tuple(x.shape)}, wanted {len(size)} axes or "
            "more"
        )
    return tuple(
        own if n is None else n for own, n in zip(x.shape[-len(size) :], size, strict=True)
    )


class AdaptiveAvgPool1d(_AdaptivePool):
    """Means over windows chosen so that the result has `output_size`, (..., L)."""

    _function = "adaptive_avg_pool1d"


class AdaptiveAvgPool2d(_AdaptivePool):
    """Means over windows chosen so that the result has `output_size`, (..., H, W)."""

    _function = "adaptive_avg_pool2d"


class AdaptiveAvgPool3d(_AdaptivePool):
    """Means over windows chosen so that the result has `output_size`, (..., D, H, W)."""

    _function = "adaptive_avg_pool3d"


class _AdaptiveMaxPool(Module):
    """As `AdaptiveAvgPool1d` and its like, with the largest elements."""

    _function: ClassVar[str]

    def __init__(
        self, output_size: int | Sequence[int | None], return_indices: bool = False
    ) -> None:
        self.output_size = output_size
        self.return_indices = return_indices

    def forward(self, x: Tensor) -> Any:
        """(..., *sizes) to (..., *output_size); with `return_indices`, also the positions."""
        return _function(self)(x, _output_size(self, x), return_indices=self.return_indices)


class AdaptiveMaxPool1d(_AdaptiveMaxPool):
    """The largest elements of windows chosen so that the result has `output_size`, (..., L)."""

    _function = "adaptive_max_pool1d"


class AdaptiveMaxPool2d(_AdaptiveMaxPool):
    """The largest elements of windows chosen so that the result has `output_size`, (..., H, W)."""

    _function = "adaptive_max_pool2d"


class AdaptiveMaxPool3d(_AdaptiveMaxPool):
    """The largest elements of windows chosen so that the result has `output_size`,
    (..., D, H, W)."""

    _function = "adaptive_max_pool3d"
