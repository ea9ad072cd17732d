"""Positions of a sequence: as rotations of vectors, and as vectors to add."""

from __future__ import annotations

import math

from wengert import _core
from wengert._core import Device, DType, Tensor, arange, asarray, concat, float32, float64
from wengert.nn._wanted import a_tensor

__all__ = ["rotary", "sinusoidal_positions"]


def _frequencies(name: str, d: int, base: float) -> list[float]:
    if d % 2:
        raise _core.ShapeError(f"{name}: the last axis has size {d}, wanted an even one")
    return [base ** (-2.0 * i / d) for i in range(d // 2)]


def rotary(x: Tensor, positions: Tensor | None = None, base: float = 10000.0) -> Tensor:
    """`x` with its vectors turned by angles that grow with their positions.

    `x` (…, T, d), floating, d even; `positions` (T,), or what broadcasts to (…, T), counts from 0
    by default. Element i of the first half and element i of the second are turned together, by
    `position · base^(−2 i / d)`. So the product of two vectors depends on the distance of their
    positions only. Angles are float32, or float64 where `x` is. Raises ShapeError for an odd d.

    Source: Su et al.: RoFormer: enhanced transformer with rotary position embedding, 2021.

    >>> nn.rotary(wg.ones((2, 2)), positions=wg.tensor([0, 0])).tolist()
    [[1.0, 1.0], [1.0, 1.0]]
    """
    x = a_tensor("rotary", "x", x)
    if x.ndim < 2:
        raise _core.ShapeError(f"rotary: x has shape {tuple(x.shape)}, wanted (..., T, d)")
    dtype = float64 if x.dtype == float64 else float32
    frequency = asarray(_frequencies("rotary", x.shape[-1], base), dtype=dtype, device=x.device)
    if positions is None:
        at = arange(x.shape[-2], device=x.device)
    else:
        at = a_tensor("rotary", "positions", positions)
    angle = at.astype(dtype)[..., None] * frequency
    half = x.shape[-1] // 2
    a, b = x[..., :half], x[..., half:]
    cos, sin = angle.cos(), angle.sin()
    return concat([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(x.dtype)


def sinusoidal_positions(
    n: int,
    d: int,
    *,
    base: float = 10000.0,
    dtype: DType = float32,
    device: str | Device | None = None,
) -> Tensor:
    """A vector (d,) for each of `n` positions: the sines of angles, each followed by its cosine.

    Angle i at position p is `p · base^(−2 i / d)`; d is even. Raises ShapeError for an odd d.

    Source: Vaswani et al.: Attention is all you need, 2017.

    >>> nn.sinusoidal_positions(2, 4)[0].tolist()
    [0.0, 1.0, 0.0, 1.0]
    """
    frequencies = _frequencies("sinusoidal_positions", d, base)
    rows = [[f(p * w) for w in frequencies for f in (math.sin, math.cos)] for p in range(n)]
    return asarray(rows, dtype=dtype, device=device).reshape((n, d))
