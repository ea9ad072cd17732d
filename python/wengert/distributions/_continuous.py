"""Laws with a density."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from wengert import random, special
from wengert._core import Tensor, asarray, full_like, where
from wengert.distributions._base import Distribution, broadcast, hold

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

__all__ = [
    "Cauchy", "Exponential", "Gumbel", "Laplace", "LogNormal", "Normal", "Uniform",
]  # fmt: skip

_EULER = 0.5772156649015329
_LOG_2PI = math.log(2 * math.pi)


class _Located(Distribution):
    """A law of the line with a location and a scale: `x = loc + scale z`."""

    has_rsample = True
    _names = ("loc", "scale")

    def __init__(self, loc: Tensor | ArrayLike, scale: Tensor | ArrayLike) -> None:
        name = type(self).__name__
        self.loc, self.scale = broadcast(loc, scale)
        hold(name, "scale must be positive", self.scale > 0, scale)
        self.batch_shape = self.loc.shape

    def _standard(self, value: Tensor | ArrayLike) -> Tensor:
        return (asarray(value) - self.loc) / self.scale

    @property
    def mean(self) -> Tensor:
        return self.loc

    @property
    def variance(self) -> Tensor:
        return self.scale * self.scale


class Normal(_Located):
    """The normal distribution with mean `loc` and standard deviation `scale`.

    >>> wg.distributions.Normal(0.0, 2.0).log_prob(0.0).item()  # -log(2 √(2π))
    -1.612...
    """

    def _draw(self, shape: tuple[int, ...], key: Tensor | None) -> Tensor:
        sizes = shape + self.batch_shape
        return random.normal(sizes, mean=self.loc, std=self.scale, dtype=self.loc.dtype, key=key)

    def log_prob(self, value: Tensor | ArrayLike) -> Tensor:
        z = self._standard(value)
        return -0.5 * (z * z) - self.scale.log() - 0.5 * _LOG_2PI

    def entropy(self) -> Tensor:
        return self.scale.log() + 0.5 * (1 + _LOG_2PI)

    def cdf(self, value: Tensor | ArrayLike) -> Tensor:
        return special.ndtr(self._standard(value))


class LogNormal(_Located):
    """The law of `exp(x)` for normal `x` with mean `loc` and standard deviation `scale`."""

    def __init__(self, loc: Tensor | ArrayLike, scale: Tensor | ArrayLike) -> None:
        super().__init__(loc, scale)
        self._normal = Normal(self.loc, self.scale)

    def _draw(self, shape: tuple[int, ...], key: Tensor | None) -> Tensor:
        return self._normal._draw(shape, key).exp()

    def log_prob(self, value: Tensor | ArrayLike) -> Tensor:
        x = asarray(value)
        inside = x > 0
        logarithm = where(inside, x, 1.0).log()
        return where(inside, self._normal.log_prob(logarithm) - logarithm, -math.inf)

    def entropy(self) -> Tensor:
        return self._normal.entropy() + self.loc

    def cdf(self, value: Tensor | ArrayLike) -> Tensor:
        x = asarray(value)
        return where(x > 0, self._normal.cdf(where(x > 0, x, 1.0).log()), 0.0)

    @property
    def mean(self) -> Tensor:
        return (self.loc + 0.5 * self.scale**2).exp()

    @property
    def variance(self) -> Tensor:
        square = self.scale**2
        return square.expm1() * (2 * self.loc + square).exp()


class Laplace(_Located):
    """The law of density `exp(-|x - loc| / scale) / (2 scale)`."""

    def _draw(self, shape: tuple[int, ...], key: Tensor | None) -> Tensor:
        sizes = shape + self.batch_shape
        return random.laplace(sizes, loc=self.loc, scale=self.scale, dtype=self.loc.dtype, key=key)

    def log_prob(self, value: Tensor | ArrayLike) -> Tensor:
        return -self._standard(value).abs() - (2 * self.scale).log()

    def entropy(self) -> Tensor:
        return 1 + (2 * self.scale).log()

    def cdf(self, value: Tensor | ArrayLike) -> Tensor:
        z = self._standard(value)
        return 0.5 - 0.5 * z.sign() * (-z.abs()).expm1()

    @property
    def variance(self) -> Tensor:
        return 2 * self.scale**2


class Gumbel(_Located):
    """The law of density `exp(-z - exp(-z)) / scale` with `z = (x - loc) / scale`."""

    def _draw(self, shape: tuple[int, ...], key: Tensor | None) -> Tensor:
        sizes = shape + self.batch_shape
        return random.gumbel(sizes, loc=self.loc, scale=self.scale, dtype=self.loc.dtype, key=key)

    def log_prob(self, value: Tensor | ArrayLike) -> Tensor:
        z = self._standard(value)
        return -z - (-z).exp() - self.scale.log()

    def entropy(self) -> Tensor:
        return self.scale.log() + (1 + _EULER)

    def cdf(self, value: Tensor | ArrayLike) -> Tensor:
        return (-(-self._standard(value)).exp()).exp()

    @property
    def mean(self) -> Tensor:
        return self.loc + _EULER * self.scale

    @property
    def variance(self) -> Tensor:
        return (math.pi**2 / 6) * self.scale**2


class Cauchy(_Located):
    """The law of density `1 / (π scale (1 + ((x - loc) / scale)²))`, without mean or variance."""

    def _draw(self, shape: tuple[int, ...], key: Tensor | None) -> Tensor:
        sizes = shape + self.batch_shape
        return random.cauchy(sizes, loc=self.loc, scale=self.scale, dtype=self.loc.dtype, key=key)

    def log_prob(self, value: Tensor | ArrayLike) -> Tensor:
        z = self._standard(value)
        return -(z * z).log1p() - (math.pi * self.scale).log()

    def entropy(self) -> Tensor:
        return (4 * math.pi * self.scale).log()

    def cdf(self, value: Tensor | ArrayLike) -> Tensor:
        return self._standard(value).atan() / math.pi + 0.5

    @property
    def mean(self) -> Tensor:
        return full_like(self.loc, math.nan)

    @property
    def variance(self) -> Tensor:
        return full_like(self.loc, math.inf)


class Uniform(Distribution):
    """The law of constant density on [low, high)."""

    has_rsample = True
    _names = ("low", "high")

    def __init__(self, low: Tensor | ArrayLike, high: Tensor | ArrayLike) -> None:
        self.low, self.high = broadcast(low, high)
        hold("Uniform", "low must be below high", self.low < self.high)
        self.batch_shape = self.low.shape

    def _draw(self, shape: tuple[int, ...], key: Tensor | None) -> Tensor:
        sizes = shape + self.batch_shape
        return random.uniform(sizes, low=self.low, high=self.high, dtype=self.low.dtype, key=key)

    def log_prob(self, value: Tensor | ArrayLike) -> Tensor:
        x = asarray(value)
        inside = (x >= self.low) & (x < self.high)
        return where(inside, -(self.high - self.low).log(), -math.inf)

    def entropy(self) -> Tensor:
        return (self.high - self.low).log()

    def cdf(self, value: Tensor | ArrayLike) -> Tensor:
        return ((asarray(value) - self.low) / (self.high - self.low)).clip(0.0, 1.0)

    @property
    def mean(self) -> Tensor:
        return 0.5 * (self.low + self.high)

    @property
    def variance(self) -> Tensor:
        return (self.high - self.low) ** 2 / 12


class Exponential(Distribution):
    """The law of density `rate exp(-rate x)` on the positive numbers."""

    has_rsample = True
    _names = ("rate",)

    def __init__(self, rate: Tensor | ArrayLike) -> None:
        (self.rate,) = broadcast(rate)
        hold("Exponential", "rate must be positive", self.rate > 0, rate)
        self.batch_shape = self.rate.shape

    def _draw(self, shape: tuple[int, ...], key: Tensor | None) -> Tensor:
        sizes, kind = shape + self.batch_shape, self.rate.dtype
        return random.exponential(sizes, scale=1 / self.rate, dtype=kind, key=key)

    def log_prob(self, value: Tensor | ArrayLike) -> Tensor:
        x = asarray(value)
        return where(x >= 0, self.rate.log() - self.rate * x, -math.inf)

    def entropy(self) -> Tensor:
        return 1 - self.rate.log()

    def cdf(self, value: Tensor | ArrayLike) -> Tensor:
        return -(-self.rate * asarray(value).clip(0.0)).expm1()

    @property
    def mean(self) -> Tensor:
        return 1 / self.rate

    @property
    def variance(self) -> Tensor:
        return 1 / self.rate**2
