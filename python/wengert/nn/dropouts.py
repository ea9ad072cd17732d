"""Dropout as modules, over the functions of the same names. In evaluation they change nothing."""

from __future__ import annotations

from typing import ClassVar

from wengert import _core
from wengert._core import Tensor
from wengert.nn.module import Module

__all__ = ["AlphaDropout", "Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "FeatureAlphaDropout"]


class Dropout(Module):
    """In training, zeroes each element with probability `p` and divides the others by 1 − p."""

    _function: ClassVar[str] = "dropout"

    def __init__(self, p: float = 0.5) -> None:
        if not 0.0 <= p <= 1.0:
            raise ValueError(f"{type(self).__name__}: p is a probability, got {p}")
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        """Any shape that the function takes, to the same shape."""
        if not self.training or self.p == 0.0:
            return x
        return getattr(_core.nn, self._function)(x, self.p)


class Dropout1d(Dropout):
    """`Dropout` of whole channels of (N, C, L) or (C, L)."""

    _function = "dropout1d"


class Dropout2d(Dropout):
    """`Dropout` of whole channels of (N, C, H, W) or (C, H, W)."""

    _function = "dropout2d"


class Dropout3d(Dropout):
    """`Dropout` of whole channels of (N, C, D, H, W) or (C, D, H, W)."""

    _function = "dropout3d"


class AlphaDropout(Dropout):
    """Dropout that keeps mean 0 and variance 1, for nets of `selu`; see `nn.alpha_dropout`."""

    _function = "alpha_dropout"


class FeatureAlphaDropout(Dropout):
    """`AlphaDropout` of whole channels (N, C, ...)."""

    _function = "feature_alpha_dropout"
