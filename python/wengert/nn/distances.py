"""Forms of two vectors as modules."""

from __future__ import annotations

import math

from wengert import _core
from wengert._core import Tensor, random
from wengert.nn.module import Module, Parameter

__all__ = ["Bilinear"]


class Bilinear(Module):
    """`nn.bilinear`: aᵀ W b + bias, with `weight` (out, in1, in2)."""

    def __init__(
        self, in1_features: int, in2_features: int, out_features: int, bias: bool = True
    ) -> None:
        self.in1_features = in1_features
        self.in2_features = in2_features
        self.out_features = out_features
        bound = 1.0 / math.sqrt(max(in1_features, 1))
        shape = (out_features, in1_features, in2_features)
        self.weight = Parameter(random.uniform(shape, low=-bound, high=bound))
        own = (out_features,)
        self.bias = Parameter(random.uniform(own, low=-bound, high=bound)) if bias else None

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        """(..., in1) and (..., in2) to (..., out)."""
        return _core.nn.bilinear(a, b, self.weight, self.bias)
