"""Borders around the last axes, as modules over `wengert.pad`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from wengert import _core
from wengert._core import Tensor
from wengert.nn.module import Module

__all__ = [
    "CircularPad1d",
    "CircularPad2d",
    "CircularPad3d",
    "ConstantPad1d",
    "ConstantPad2d",
    "ConstantPad3d",
    "ReflectionPad1d",
    "ReflectionPad2d",
    "ReflectionPad3d",
    "ReplicationPad1d",
    "ReplicationPad2d",
    "ReplicationPad3d",
    "ZeroPad1d",
    "ZeroPad2d",
    "ZeroPad3d",
]


class _Pad(Module):
    """A border around the last axes.

    `padding` is one int for all sides, or two for each axis, before and behind it, beginning with
    the last axis, as PyTorch has it. Negative ones cut off.
    """

    _rank: ClassVar[int]
    _mode: ClassVar[str]

    def __init__(self, padding: int | Sequence[int]) -> None:
        sides = (padding,) * (2 * self._rank) if isinstance(padding, int) else tuple(padding)
        if len(sides) != 2 * self._rank:
            raise ValueError(
                f"{type(self).__name__}: padding must be one int or {2 * self._rank}, got "
                f"{len(sides)}"
            )
        self.padding = sides

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, *sizes) or (C, *sizes) to the same with a border around the sizes."""
        return self._padded(x, 0.0)

    def _padded(self, x: Tensor, value: float) -> Tensor:
        if x.ndim not in (self._rank + 1, self._rank + 2):
            raise _core.ShapeError(
                f"{type(self).__name__}: input has rank {x.ndim}, wanted {self._rank + 1} or "
                f"{self._rank + 2}"
            )
        own = [self.padding[2 * i : 2 * i + 2] for i in range(self._rank)]
        widths = [(0, 0)] * (x.ndim - self._rank) + own[::-1]
        return _core.pad(x, widths, value=value, mode=self._mode)


class _ConstantPad(_Pad):
    """A border of one value."""

    _mode = "constant"

    def __init__(self, padding: int | Sequence[int], value: float) -> None:
        super().__init__(padding)
        self.value = value

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, *sizes) or (C, *sizes) to the same with a border around the sizes."""
        return self._padded(x, self.value)


class _ZeroPad(_Pad):
    """A border of zeros."""

    _mode = "constant"


class _ReflectionPad(_Pad):
    """A border in which the image is mirrored at its outermost elements."""

    _mode = "reflect"


class _ReplicationPad(_Pad):
    """A border that repeats the outermost elements."""

    _mode = "replicate"


class _CircularPad(_Pad):
    """A border in which the image begins again at the other end."""

    _mode = "circular"


class ConstantPad1d(_ConstantPad):
    """A border of one value around (L).

    `padding` is one int for all sides, or two for each axis, before and behind it, beginning with
    the last axis, as PyTorch has it. Negative ones cut off.
    """

    _rank = 1


class ConstantPad2d(_ConstantPad):
    """A border of one value,
    around (H, W); `padding` as for `ConstantPad1d`."""

    _rank = 2


class ConstantPad3d(_ConstantPad):
    """A border of one value,
    around (D, H, W); `padding` as for `ConstantPad1d`."""

    _rank = 3


class ZeroPad1d(_ZeroPad):
    """A border of zeros,
    around (L); `padding` as for `ConstantPad1d`."""

    _rank = 1


class ZeroPad2d(_ZeroPad):
    """A border of zeros,
    around (H, W); `padding` as for `ConstantPad1d`."""

    _rank = 2


class ZeroPad3d(_ZeroPad):
    """A border of zeros,
    around (D, H, W); `padding` as for `ConstantPad1d`."""

    _rank = 3


class ReflectionPad1d(_ReflectionPad):
    """A border in which the image is mirrored at its outermost elements,
    around (L); `padding` as for `ConstantPad1d`."""

    _rank = 1


class ReflectionPad2d(_ReflectionPad):
    """A border in which the image is mirrored at its outermost elements,
    around (H, W); `padding` as for `ConstantPad1d`."""

    _rank = 2


class ReflectionPad3d(_ReflectionPad):
    """A border in which the image is mirrored at its outermost elements,
    around (D, H, W); `padding` as for `ConstantPad1d`."""

    _rank = 3


class ReplicationPad1d(_ReplicationPad):
    """A border that repeats the outermost elements,
    around (L); `padding` as for `ConstantPad1d`."""

    _rank = 1


class ReplicationPad2d(_ReplicationPad):
    """A border that repeats the outermost elements,
    around (H, W); `padding` as for `ConstantPad1d`."""

    _rank = 2


class ReplicationPad3d(_ReplicationPad):
    """A border that repeats the outermost elements,
    around (D, H, W); `padding` as for `ConstantPad1d`."""

    _rank = 3


class CircularPad1d(_CircularPad):
    """A border in which the image begins again at the other end,
    around (L); `padding` as for `ConstantPad1d`."""

    _rank = 1


class CircularPad2d(_CircularPad):
    """A border in which the image begins again at the other end,
    around (H, W); `padding` as for `ConstantPad1d`."""

    _rank = 2


class CircularPad3d(_CircularPad):
    """A border in which the image begins again at the other end,
    around (D, H, W); `padding` as for `ConstantPad1d`."""

    _rank = 3
