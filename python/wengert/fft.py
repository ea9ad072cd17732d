"""What Fourier transforms need besides: frequencies, and the order of them.

The transforms themselves wait for complex numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from wengert._core import (
    ArgumentError,
    AxisError,
    Device,
    DType,
    Tensor,
    arange,
    asarray,
    concat,
    float32,
    roll,
)

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

__all__ = ["fftfreq", "fftshift", "ifftshift", "rfftfreq"]


def fftfreq(
    n: int, *, d: float = 1.0, dtype: DType | None = None, device: Device | str | None = None
) -> Tensor:
    """The frequencies of a transform of `n` samples, `d` apart: 0, 1, …, -1 over `n d` (n,).

    `dtype`: floating, float32 where None. Raises ValueError where `n` is not positive.

    >>> wg.fft.fftfreq(4, d=0.5).tolist()
    [0.0, 0.5, -1.0, -0.5]
    """
    _at_least_one("fftfreq", n)
    kind = float32 if dtype is None else dtype
    rising = arange((n - 1) // 2 + 1, dtype=kind, device=device)
    negative = arange(-(n // 2), 0, dtype=kind, device=device)
    return concat([rising, negative]) / (n * d)


def rfftfreq(
    n: int, *, d: float = 1.0, dtype: DType | None = None, device: Device | str | None = None
) -> Tensor:
    """The frequencies of a transform of `n` real samples, `d` apart: 0, 1, … over `n d`
    (n // 2 + 1,).

    `dtype`: floating, float32 where None. Raises ValueError where `n` is not positive.

    >>> wg.fft.rfftfreq(4, d=0.5).tolist()
    [0.0, 0.5, 1.0]
    """
    _at_least_one("rfftfreq", n)
    return arange(n // 2 + 1, dtype=float32 if dtype is None else dtype, device=device) / (n * d)


def fftshift(x: Tensor | ArrayLike, *, axes: int | Sequence[int] | None = None) -> Tensor:
    """`x` with frequency 0 in the middle of `axes`; of all, where None.

    >>> wg.fft.fftshift(wg.fft.fftfreq(4)).tolist()
    [-0.5, -0.25, 0.0, 0.25]
    """
    return _rolled("fftshift", asarray(x), axes, 1)


def ifftshift(x: Tensor | ArrayLike, *, axes: int | Sequence[int] | None = None) -> Tensor:
    """The inverse of `fftshift`.

    >>> wg.fft.ifftshift(wg.fft.fftshift(wg.arange(5))).tolist()
    [0, 1, 2, 3, 4]
    """
    return _rolled("ifftshift", asarray(x), axes, -1)


def _rolled(name: str, x: Tensor, axes: int | Sequence[int] | None, sign: int) -> Tensor:
    chosen = range(x.ndim) if axes is None else (axes,) if isinstance(axes, int) else axes
    for axis in chosen:
        if not -x.ndim <= axis < x.ndim:
            raise AxisError(f"{name}: axis {axis} is out of range for rank {x.ndim}")
        x = roll(x, sign * (x.shape[axis] // 2), axis)
    return x


def _at_least_one(name: str, n: int) -> None:
    if n < 1:
        raise ArgumentError(f"{name}: n must be positive: got {n}")


if not TYPE_CHECKING:

    def __getattr__(name):
        from wengert._words import unknown

        raise AttributeError(unknown("fft", name))
