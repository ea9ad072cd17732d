"""Activations as modules, over the functions of the same names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from wengert import _core
from wengert._core import Tensor, full
from wengert.nn.module import Module, Parameter

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "CELU",
    "ELU",
    "GELU",
    "GLU",
    "SELU",
    "Hardshrink",
    "Hardsigmoid",
    "Hardswish",
    "Hardtanh",
    "LeakyReLU",
    "LogSigmoid",
    "LogSoftmax",
    "Mish",
    "PReLU",
    "RReLU",
    "ReLU",
    "ReLU6",
    "SiLU",
    "Sigmoid",
    "Softmax",
    "Softmax2d",
    "Softmin",
    "Softplus",
    "Softshrink",
    "Softsign",
    "Tanh",
    "Tanhshrink",
    "Threshold",
]


class _Activation(Module):
    """A function of one tensor. A subclass names the function; what its `__init__` keeps as
    attributes, the function gets by name."""

    function: ClassVar[Callable[..., Any]]
    options: ClassVar[tuple[str, ...]] = ()

    def forward(self, x: Tensor) -> Tensor:
        """Any shape that the function takes, to the shape that it gives."""
        y: Tensor = self.function(x, **{name: getattr(self, name) for name in self.options})
        return y


class ReLU(_Activation):
    """max(x, 0)."""

    function = staticmethod(_core.nn.relu)


class ReLU6(_Activation):
    """`x` limited to the range from 0 to 6."""

    function = staticmethod(_core.nn.relu6)


class LeakyReLU(_Activation):
    """`x` where positive, `negative_slope · x` elsewhere."""

    function = staticmethod(_core.nn.leaky_relu)
    options = ("negative_slope",)

    def __init__(self, negative_slope: float = 0.01) -> None:
        self.negative_slope = negative_slope


class RReLU(_Activation):
    """`LeakyReLU` whose slopes are drawn between `lower` and `upper` in training, and their mean
    otherwise."""

    function = staticmethod(_core.nn.rrelu)
    options = ("lower", "upper", "training")

    def __init__(self, lower: float = 0.125, upper: float = 0.3333333333333333) -> None:
        self.lower = lower
        self.upper = upper


class PReLU(Module):
    """`x` where positive, `weight · x` elsewhere: one weight, or one for each of the
    `num_parameters` channels (axis 1)."""

    def __init__(self, num_parameters: int = 1, init: float = 0.25) -> None:
        self.num_parameters = num_parameters
        self.weight = Parameter(full((num_parameters,), float(init)))

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, ...), or any shape where there is one weight, to the same shape."""
        return _core.nn.prelu(x, self.weight)


class ELU(_Activation):
    """`x` where positive, `alpha (eˣ - 1)` elsewhere."""

    function = staticmethod(_core.nn.elu)
    options = ("alpha",)

    def __init__(self, alpha: float = 1.0) -> None:
        self.alpha = alpha


class CELU(_Activation):
    """`x` where positive, `alpha (exp(x / alpha) - 1)` elsewhere."""

    function = staticmethod(_core.nn.celu)
    options = ("alpha",)

    def __init__(self, alpha: float = 1.0) -> None:
        self.alpha = alpha


class SELU(_Activation):
    """`ELU` scaled so that a layer keeps the mean 0 and the variance 1 of normal inputs."""

    function = staticmethod(_core.nn.selu)


class GELU(_Activation):
    """`x Φ(x)`, exact or by the `"tanh"` approximation."""

    function = staticmethod(_core.nn.gelu)
    options = ("approximate",)

    def __init__(self, approximate: str = "none") -> None:
        self.approximate = approximate


class GLU(_Activation):
    """The first half along `axis` times the sigmoid of the second."""

    function = staticmethod(_core.nn.glu)
    options = ("axis",)

    def __init__(self, axis: int = -1) -> None:
        self.axis = axis


class SiLU(_Activation):
    """`x σ(x)`."""

    function = staticmethod(_core.nn.silu)


class Mish(_Activation):
    """`x tanh(softplus(x))`."""

    function = staticmethod(_core.nn.mish)


class Softplus(_Activation):
    """`log(1 + exp(beta x)) / beta`."""

    function = staticmethod(_core.nn.softplus)
    options = ("beta",)

    def __init__(self, beta: float = 1.0) -> None:
        self.beta = beta


class Softsign(_Activation):
    """`x / (1 + |x|)`."""

    function = staticmethod(_core.nn.softsign)


class Sigmoid(_Activation):
    """1 / (1 + e⁻ˣ)."""

    function = staticmethod(_core.nn.sigmoid)


class LogSigmoid(_Activation):
    """The logarithm of the sigmoid."""

    function = staticmethod(_core.nn.log_sigmoid)


class Tanh(_Activation):
    """The hyperbolic tangent."""

    function = staticmethod(_core.nn.tanh)


class Tanhshrink(_Activation):
    """`x - tanh(x)`."""

    function = staticmethod(_core.nn.tanhshrink)


class Hardtanh(_Activation):
    """`x` limited to the range from `min_val` to `max_val`."""

    function = staticmethod(_core.nn.hardtanh)
    options = ("min_val", "max_val")

    def __init__(self, min_val: float = -1.0, max_val: float = 1.0) -> None:
        self.min_val = min_val
        self.max_val = max_val


class Hardsigmoid(_Activation):
    """`x / 6 + 1/2` limited to the range from 0 to 1."""

    function = staticmethod(_core.nn.hardsigmoid)


class Hardswish(_Activation):
    """`x` times its `Hardsigmoid`."""

    function = staticmethod(_core.nn.hardswish)


class Hardshrink(_Activation):
    """`x` where it is farther from 0 than `lambd`, 0 elsewhere."""

    function = staticmethod(_core.nn.hardshrink)
    options = ("lambd",)

    def __init__(self, lambd: float = 0.5) -> None:
        self.lambd = lambd


class Softshrink(_Activation):
    """`x` moved towards 0 by `lambd`, and 0 where it is no farther away."""

    function = staticmethod(_core.nn.softshrink)
    options = ("lambd",)

    def __init__(self, lambd: float = 0.5) -> None:
        self.lambd = lambd


class Threshold(_Activation):
    """`x` where it is above `threshold`, `value` elsewhere."""

    function = staticmethod(_core.nn.threshold)
    options = ("threshold", "value")

    def __init__(self, threshold: float, value: float) -> None:
        self.threshold = threshold
        self.value = value


class Softmax(_Activation):
    """Exponentials divided by their sum along `axis`."""

    function = staticmethod(_core.nn.softmax)
    options = ("axis",)

    def __init__(self, axis: int = -1) -> None:
        self.axis = axis


class Softmax2d(Module):
    """`Softmax` over the channels of images."""

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) or (C, H, W), to the same shape."""
        return _core.nn.softmax(x, axis=-3)


class Softmin(_Activation):
    """`Softmax` of `-x` along `axis`."""

    function = staticmethod(_core.nn.softmin)
    options = ("axis",)

    def __init__(self, axis: int = -1) -> None:
        self.axis = axis


class LogSoftmax(_Activation):
    """The logarithm of the softmax along `axis`."""

    function = staticmethod(_core.nn.log_softmax)
    options = ("axis",)

    def __init__(self, axis: int = -1) -> None:
        self.axis = axis
