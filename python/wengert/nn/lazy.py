"""Layers that learn the size of their input at the first call, and are ordinary ones from then on.

Until then they have no parameters: make the optimizer, and load a state, after the first call. That
call must not be inside a captured function, which cannot make parameters.
"""

from __future__ import annotations

from typing import Any, ClassVar

from wengert import _core
from wengert._core import Tensor
from wengert.nn.layers import (
    BatchNorm1d,
    BatchNorm2d,
    BatchNorm3d,
    Conv1d,
    Conv2d,
    Conv3d,
    ConvTranspose1d,
    ConvTranspose2d,
    ConvTranspose3d,
    Linear,
)
from wengert.nn.module import Module

__all__ = [
    "LazyBatchNorm1d",
    "LazyBatchNorm2d",
    "LazyBatchNorm3d",
    "LazyConv1d",
    "LazyConv2d",
    "LazyConv3d",
    "LazyConvTranspose1d",
    "LazyConvTranspose2d",
    "LazyConvTranspose3d",
    "LazyLinear",
]


class _Lazy(Module):
    """Arguments of a layer whose first, the size of its input, is not known yet."""

    _becomes: ClassVar[Any]
    #: The axis whose size it is, from the end.
    _axis: ClassVar[int]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._given = (args, kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._learn(*args, **kwargs)
        return self(*args, **kwargs)

    def _learn(self, x: Tensor, *_args: Any, **_kwargs: Any) -> None:
        name = type(self).__name__
        if _core.is_tracing():
            raise _core.CaptureError(
                f"{name}: call it once before it is captured: it has no parameters"
            )
        if x.ndim < -self._axis:
            raise _core.ShapeError(
                f"{name}: input has shape {tuple(x.shape)}, wanted rank {-self._axis} or more"
            )
        args, kwargs = self._given
        mode, own, becomes = self.training, type(self), self._becomes
        size = x.shape[self._axis]
        hooks = {k: v for k, v in self.__dict__.items() if k.endswith("hooks")}
        del self.__dict__["_given"]
        self.__class__ = becomes
        try:
            becomes.__init__(self, size, *args, **kwargs)
        except BaseException:
            self.__dict__.clear()
            self.__class__ = own  # type: ignore[assignment]
            self._given = (args, kwargs)
            raise
        finally:
            self.__dict__.update(hooks)
            self.training = mode

    def extra_repr(self) -> str:
        """The arguments that are known."""
        args, kwargs = self._given
        return ", ".join([*map(repr, args), *(f"{k}={v!r}" for k, v in kwargs.items())])


class LazyLinear(_Lazy):
    """`Linear(out_features, bias=True)` whose `in_features` is the size of the last axis.

    >>> layer = nn.LazyLinear(3)
    >>> layer(wg.ones((2, 5))).shape, type(layer).__name__, layer.in_features
    ((2, 3), 'Linear', 5)
    """

    _becomes = Linear
    _axis = -1


class LazyConv1d(_Lazy):
    """`Conv1d(out_channels, kernel_size, ...)` whose `in_channels` are the input's."""

    _becomes = Conv1d
    _axis = -2


class LazyConv2d(_Lazy):
    """`Conv2d(out_channels, kernel_size, ...)` whose `in_channels` are the input's."""

    _becomes = Conv2d
    _axis = -3


class LazyConv3d(_Lazy):
    """`Conv3d(out_channels, kernel_size, ...)` whose `in_channels` are the input's."""

    _becomes = Conv3d
    _axis = -4


class LazyConvTranspose1d(_Lazy):
    """`ConvTranspose1d(out_channels, kernel_size, ...)` whose `in_channels` are the input's."""

    _becomes = ConvTranspose1d
    _axis = -2


class LazyConvTranspose2d(_Lazy):
    """`ConvTranspose2d(out_channels, kernel_size, ...)` whose `in_channels` are the input's."""

    _becomes = ConvTranspose2d
    _axis = -3


class LazyConvTranspose3d(_Lazy):
    """`ConvTranspose3d(out_channels, kernel_size, ...)` whose `in_channels` are the input's."""

    _becomes = ConvTranspose3d
    _axis = -4


class _LazyNorm(_Lazy):
    """A norm over channels, which are axis 1."""

    _axis = -2

    def _learn(self, x: Tensor, *args: Any, **kwargs: Any) -> None:
        if x.ndim < 2:
            super()._learn(x, *args, **kwargs)
        super()._learn(_core.moveaxis(x, 1, -2), *args, **kwargs)


class LazyBatchNorm1d(_LazyNorm):
    """`BatchNorm1d(...)` whose `num_features` are the input's channels."""

    _becomes = BatchNorm1d


class LazyBatchNorm2d(_LazyNorm):
    """`BatchNorm2d(...)` whose `num_features` are the input's channels."""

    _becomes = BatchNorm2d


class LazyBatchNorm3d(_LazyNorm):
    """`BatchNorm3d(...)` whose `num_features` are the input's channels."""

    _becomes = BatchNorm3d
