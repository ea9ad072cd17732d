"""Initial values for parameters: functions from a shape to a tensor.

All take `dtype` and an optional random `key`. For weights laid out as (out, in, *window), the
fan-in of an element is `in · window`, the fan-out `out · window`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from wengert._core import DType, Tensor, float32, random, where

__all__ = [
    "fan_in_and_out",
    "gain",
    "kaiming_normal",
    "kaiming_uniform",
    "trunc_normal",
    "xavier_normal",
    "xavier_uniform",
]

Shape = Sequence[int]


def fan_in_and_out(shape: Shape) -> tuple[int, int]:
    """How many inputs an output sees, and how many outputs an input reaches.

    >>> nn.init.fan_in_and_out((8, 3, 5, 5))
    (75, 200)
    """
    if not isinstance(shape, Sequence) or isinstance(shape, str):
        raise TypeError(f"init: expected a shape, a sequence of ints, got {type(shape).__name__}")
    if len(shape) < 2:
        raise ValueError(f"init: fans need a shape of rank 2 or more, got {tuple(shape)}")
    window = math.prod(shape[2:])
    return shape[1] * window, shape[0] * window


def gain(nonlinearity: str, a: float = 0.0) -> float:
    """The factor that keeps the variance of what a nonlinearity passes on; `a` is the negative
    slope of `"leaky_relu"`."""
    gains = {
        "linear": 1.0,
        "sigmoid": 1.0,
        "tanh": 5.0 / 3.0,
        "relu": math.sqrt(2.0),
        "leaky_relu": math.sqrt(2.0 / (1.0 + a * a)),
    }
    if nonlinearity not in gains:
        raise ValueError(f"init: no gain for {nonlinearity!r}; known are {', '.join(gains)}")
    return gains[nonlinearity]


def _kaiming_std(shape: Shape, a: float, mode: str, nonlinearity: str) -> float:
    if mode not in ("fan_in", "fan_out"):
        raise ValueError(f'init: mode is "fan_in" or "fan_out", got {mode!r}')
    fan = fan_in_and_out(shape)[mode == "fan_out"]
    return gain(nonlinearity, a) / math.sqrt(max(fan, 1))


def kaiming_uniform(
    shape: Shape,
    a: float = 0.0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    dtype: DType = float32,
    key: Tensor | None = None,
) -> Tensor:
    """Uniform with standard deviation gain / √fan (He et al., 2015)."""
    bound = math.sqrt(3.0) * _kaiming_std(shape, a, mode, nonlinearity)
    return random.uniform(shape, low=-bound, high=bound, dtype=dtype, key=key)


def kaiming_normal(
    shape: Shape,
    a: float = 0.0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    dtype: DType = float32,
    key: Tensor | None = None,
) -> Tensor:
    """Normal with standard deviation gain / √fan (He et al., 2015)."""
    std = _kaiming_std(shape, a, mode, nonlinearity)
    return random.normal(shape, std=std, dtype=dtype, key=key)


def xavier_uniform(
    shape: Shape, gain: float = 1.0, dtype: DType = float32, key: Tensor | None = None
) -> Tensor:
    """Uniform with standard deviation gain · √(2 / (fan-in + fan-out)) (Glorot & Bengio, 2010)."""
    bound = gain * math.sqrt(6.0 / max(sum(fan_in_and_out(shape)), 1))
    return random.uniform(shape, low=-bound, high=bound, dtype=dtype, key=key)


def xavier_normal(
    shape: Shape, gain: float = 1.0, dtype: DType = float32, key: Tensor | None = None
) -> Tensor:
    """Normal with standard deviation gain · √(2 / (fan-in + fan-out)) (Glorot & Bengio, 2010)."""
    std = gain * math.sqrt(2.0 / max(sum(fan_in_and_out(shape)), 1))
    return random.normal(shape, std=std, dtype=dtype, key=key)


def trunc_normal(
    shape: Shape,
    mean: float = 0.0,
    std: float = 1.0,
    low: float = -2.0,
    high: float = 2.0,
    dtype: DType = float32,
    key: Tensor | None = None,
) -> Tensor:
    """Normal numbers of which those outside [low, high] are drawn again.

    Intervals that hold less than 1 % of the distribution are refused with `ValueError`.
    """
    inside = _normal_cdf((high - mean) / std) - _normal_cdf((low - mean) / std)
    if not inside >= 0.01:
        raise ValueError(
            f"trunc_normal: [{low}, {high}] holds {inside:.1%} of the normal distribution with "
            f"mean {mean} and std {std}; at least 1 % is needed"
        )
    x = None
    while True:
        if key is not None:
            key, now = random.split(key, 2)
        else:
            now = None
        drawn = random.normal(shape, mean=mean, std=std, dtype=dtype, key=now)
        x = drawn if x is None else where((x < low) | (x > high), drawn, x)
        if not ((x < low) | (x > high)).any().item():
            return x


def _normal_cdf(x: float) -> float:
    return 0.5 * (1.0 + math.erf(x / math.sqrt(2.0)))
