"""Counts of integers and of numbers in intervals."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wengert import _core
from wengert._core import Tensor, asarray

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

__all__ = ["bincount", "histogram"]


def bincount(
    x: Tensor | ArrayLike,
    weights: Tensor | ArrayLike | None = None,
    minlength: int = 0,
    *,
    length: int | None = None,
) -> Tensor:
    """How often each of the integers 0, 1, … is in a vector, or the sum of its `weights`.

    `x`: integers (N,), none negative. `weights`: (N,); without them the counts are int64. The
    result reaches to the largest integer, and has `minlength` elements at the least; or it has
    `length`, and larger integers are left out. The largest integer is looked at, so that a captured
    function needs `length`. Raises ShapeError for other shapes, ValueError for a negative integer.

    >>> wg.bincount(wg.tensor([0, 3, 3])).tolist()
    [1, 0, 0, 2]
    """
    x = asarray(x)
    if x.ndim != 1:
        raise _core.ShapeError(f"bincount: x must have rank 1: got shape {x.shape}")
    if length is None:
        if _core.is_tracing():
            raise _core.CaptureError(
                "bincount: the size of the result depends on values: pass length="
            )
        length = minlength
        if x.shape[0]:
            least, most = int(x.min().item()), int(x.max().item())
            if least < 0:
                raise ValueError(f"bincount: integers must not be negative: got {least}")
            length = max(minlength, most + 1)
    counted = _each_once(x) if weights is None else asarray(weights)
    return _core.segment_sum(counted, x, length)


def histogram(
    x: Tensor | ArrayLike,
    bins: int | Tensor | ArrayLike = 10,
    range: tuple[float, float] | None = None,
    density: bool = False,
    weights: Tensor | ArrayLike | None = None,
) -> tuple[Tensor, Tensor]:
    """How many numbers lie in each of some intervals, and the edges of these: `counts, edges`.

    `x`: any shape; NaN is in no interval. `bins`: how many intervals of one width there are between
    the ends of `range` (None: the smallest and the largest number), or their edges, ascending. An
    interval has its lower edge, the last one its upper edge too. `weights`: of the shape of `x`,
    what each number counts; without them counts are int64. `density`: whether counts are divided so
    that the integral over all intervals is 1. Edges have the dtype of `x`, float32 for integers.

    >>> counts, edges = wg.histogram(wg.tensor([1.0, 2.0, 2.5]), bins=2)
    >>> counts.tolist(), edges.tolist()
    ([1, 2], [1.0, 1.75, 2.5])
    """
    x = asarray(x).flatten()
    x = x if x.dtype.is_floating else x.astype(_core.float32)
    if not isinstance(bins, int):
        edges = asarray(bins)
        if edges.ndim != 1 or edges.shape[0] < 2:
            raise _core.ShapeError(
                f"histogram: edges must have rank 1 and 2 elements or more: got shape {edges.shape}"
            )
    elif bins < 1:
        raise ValueError(f"histogram: bins must be at least 1: got {bins}")
    else:
        edges = _edges(x, bins, range)
    n = edges.shape[0] - 1
    place = _core.searchsorted(edges, x, side="right") - 1
    place = _core.where(x == edges[-1], n - 1, place)
    each = asarray(weights).flatten() if weights is not None else _each_once(x)
    counts = _core.segment_sum(each, place, n)
    if density:
        counts = counts.astype(edges.dtype)
        counts = counts / counts.sum() / edges.diff()
    return counts, edges


def _each_once(x: Tensor) -> Tensor:
    """What elements of `x` count without weights: one number, seen so many times."""
    return _core.broadcast_to(_core.ones((), dtype=_core.int64), x.shape)


def _edges(x: Tensor, bins: int, range: tuple[float, float] | None) -> Tensor:
    """The edges of intervals of one width."""
    if range is not None:
        low, high = (float(end) for end in range)
        if not low <= high:
            raise ValueError(f"histogram: range must be a lower and an upper end: got {range}")
        if low == high:
            low, high = low - 0.5, high + 0.5
        return _core.linspace(low, high, bins + 1, dtype=x.dtype)
    if x.shape[0] == 0:
        return _core.linspace(0.0, 1.0, bins + 1, dtype=x.dtype)
    first, last = x.detach().min(), x.detach().max()
    half = _core.where(first == last, 0.5, 0.0).astype(x.dtype)
    first, last = first - half, last + half
    steps = _core.arange(bins + 1, dtype=x.dtype)
    return _core.where(steps == bins, last, steps * ((last - first) / bins) + first)
