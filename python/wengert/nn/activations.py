"""Activations as modules, over the functions of the same names."""

from __future__ import annotations

from wengert import _core
from wengert._core import Tensor
from wengert.nn.module import Module

__all__ = [
    "GELU",
    "LeakyReLU",
    "LogSoftmax",
    "ReLU",
    "SiLU",
    "Sigmoid",
    "Softmax",
    "Softplus",
    "Tanh",
]


class ReLU(Module):
    """max(x, 0)."""

    def forward(self, x: Tensor) -> Tensor:
        """Any shape, to the same shape."""
        return _core.nn.relu(x)


class LeakyReLU(Module):
    """`x` where positive, `negative_slope · x` elsewhere."""

    def __init__(self, negative_slope: float = 0.01) -> None:
        self.negative_slope = negative_slope

    def forward(self, x: Tensor) -> Tensor:
        """Any shape, to the same shape."""
        return _core.nn.leaky_relu(x, negative_slope=self.negative_slope)


class GELU(Module):
    """`x Φ(x)`, exact or by the `"tanh"` approximation."""

    def __init__(self, approximate: str = "none") -> None:
        self.approximate = approximate

    def forward(self, x: Tensor) -> Tensor:
        """Any shape, to the same shape."""
        return _core.nn.gelu(x, approximate=self.approximate)


class SiLU(Module):
    """`x σ(x)`."""

    def forward(self, x: Tensor) -> Tensor:
        """Any shape, to the same shape."""
        return _core.nn.silu(x)


class Softplus(Module):
    """log(1 + eˣ)."""

    def forward(self, x: Tensor) -> Tensor:
        """Any shape, to the same shape."""
        return _core.nn.softplus(x)


class Sigmoid(Module):
    """1 / (1 + e⁻ˣ)."""

    def forward(self, x: Tensor) -> Tensor:
        """Any shape, to the same shape."""
        return _core.nn.sigmoid(x)


class Tanh(Module):
    """The hyperbolic tangent."""

    def forward(self, x: Tensor) -> Tensor:
        """Any shape, to the same shape."""
        return _core.nn.tanh(x)


class Softmax(Module):
    """Exponentials divided by their sum along `axis`."""

    def __init__(self, axis: int = -1) -> None:
        self.axis = axis

    def forward(self, x: Tensor) -> Tensor:
        """Any shape, to the same shape."""
        return _core.nn.softmax(x, axis=self.axis)


class LogSoftmax(Module):
    """The logarithm of the softmax along `axis`."""

    def __init__(self, axis: int = -1) -> None:
        self.axis = axis

    def forward(self, x: Tensor) -> Tensor:
        """Any shape, to the same shape."""
        return _core.nn.log_softmax(x, axis=self.axis)
