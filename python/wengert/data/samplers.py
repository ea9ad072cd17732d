"""Samplers: in which order, and how often, a loader takes samples.

A sampler is anything iterable that gives positions. Those here draw the whole order when a pass
begins, so a pass does not depend on what is drawn while it runs. With a seed, each pass has
another order, and passes of equal samplers have the same ones in turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Sized
from typing import Any

from wengert import random
from wengert._core import (
    ArgumentError,
    Tensor,
    argsort,
    asarray,
    cumulative_sum,
    float64,
    log,
    nonzero,
    searchsorted,
)
from wengert.data.datasets import key_of

__all__ = [
    "BatchSampler",
    "RandomSampler",
    "SequentialSampler",
    "SubsetRandomSampler",
    "WeightedRandomSampler",
]


class Keys:
    """A key for each pass: the next of a stream of its own, or None for the global generator."""

    def __init__(self, op: str, seed: int | None, generator: Any) -> None:
        self._key = key_of(op, seed, generator)

    def next(self) -> Tensor | None:
        """The key of a pass that begins."""
        if self._key is None:
            return None
        self._key, now = random.split(self._key, 2)
        return now


class SequentialSampler:
    """The positions of a dataset from the first to the last."""

    def __init__(self, data_source: Sized) -> None:
        self.data_source = data_source

    def __len__(self) -> int:
        return len(self.data_source)

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self.data_source)))


class RandomSampler:
    """The positions of a dataset in random order; with `replacement`, each drawn from all.

    `num_samples` is the length of a pass, by default that of the dataset; without replacement, a
    longer one goes through the dataset several times.
    """

    def __init__(
        self,
        data_source: Sized,
        replacement: bool = False,
        num_samples: int | None = None,
        generator: Tensor | None = None,
        *,
        seed: int | None = None,
    ) -> None:
        self.data_source = data_source
        self.replacement = replacement
        if num_samples is not None and num_samples < 0:
            raise ArgumentError(f"RandomSampler: wanted num_samples >= 0, got {num_samples}")
        self._count = num_samples
        self._keys = Keys("RandomSampler", seed, generator)

    def __len__(self) -> int:
        return len(self.data_source) if self._count is None else self._count

    def __iter__(self) -> Iterator[int]:
        n, count = len(self.data_source), len(self)
        if n == 0 and count:
            raise ArgumentError(f"RandomSampler: {count} samples of an empty dataset")
        key = self._keys.next()
        if self.replacement:
            return iter(random.integers(0, n, (count,), key=key).tolist()) if n else iter(())
        order: list[int] = []
        rounds = -(-count // n) if n else 0
        keys = [None] * rounds if key is None else list(random.split(key, rounds)) if rounds else []
        for k in keys:
            order += random.permutation(n, key=k).tolist()
        return iter(order[:count])


class WeightedRandomSampler:
    """`num_samples` positions, each as likely as its weight says; a weight of 0 is never drawn.

    Weights need not sum to 1. Without replacement a position comes once at most: drawn as the
    largest of log(u) / weight for uniform u (Efraimidis and Spirakis, 2006).
    """

    def __init__(
        self,
        weights: Any,
        num_samples: int,
        replacement: bool = True,
        generator: Tensor | None = None,
        *,
        seed: int | None = None,
    ) -> None:
        self.weights = asarray(weights, dtype=float64, device="cpu")
        self.num_samples = num_samples
        self.replacement = replacement
        self._keys = Keys("WeightedRandomSampler", seed, generator)
        w = self.weights
        if w.ndim != 1 or num_samples < 1:
            raise ArgumentError(
                "WeightedRandomSampler: wanted weights of shape (n,) and num_samples >= 1, "
                f"got shape {tuple(w.shape)} and {num_samples}"
            )
        total = w.sum().item()
        if not 0 < total < float("inf") or w.min().item() < 0:
            raise ArgumentError("WeightedRandomSampler: wanted finite weights >= 0, not all 0")
        positive = int((w > 0).sum().item())
        if not replacement and num_samples > positive:
            raise ArgumentError(
                f"WeightedRandomSampler: {num_samples} samples without replacement of {positive} "
                "positions with a weight above 0"
            )

    def __len__(self) -> int:
        return self.num_samples

    def __iter__(self) -> Iterator[int]:
        key = self._keys.next()
        if self.replacement:
            ends = cumulative_sum(self.weights)
            # Of a zero weight, the interval is empty; u < 1, and `right` leaves it out. Rounding
            # may carry the product to the last end itself.
            last = int(nonzero(self.weights > 0)[0][-1].item())
            u = self._uniform(self.num_samples, key) * ends[-1]
            return (min(i, last) for i in searchsorted(ends, u, side="right").tolist())
        u = self._uniform(self.weights.shape[0], key)
        order = argsort(log(1.0 - u) / self.weights, descending=True)
        return iter(order[: self.num_samples].tolist())

    def _uniform(self, n: int, key: Tensor | None) -> Tensor:
        return random.uniform((n,), dtype=float64, key=key, device="cpu")


class SubsetRandomSampler:
    """Some positions in random order."""

    def __init__(
        self,
        indices: Sequence[int],
        generator: Tensor | None = None,
        *,
        seed: int | None = None,
    ) -> None:
        self.indices = indices
        self._keys = Keys("SubsetRandomSampler", seed, generator)

    def __len__(self) -> int:
        return len(self.indices)

    def __iter__(self) -> Iterator[int]:
        order = random.permutation(len(self.indices), key=self._keys.next()).tolist()
        return iter([self.indices[i] for i in order])


class BatchSampler:
    """The positions of another sampler in lists of `batch_size`; `drop_last` leaves a rest out.

    >>> list(wg.data.BatchSampler(range(5), 2, drop_last=False))
    [[0, 1], [2, 3], [4]]
    """

    def __init__(self, sampler: Iterable[int], batch_size: int, drop_last: bool = False) -> None:
        if batch_size < 1:
            raise ArgumentError(f"BatchSampler: wanted batch_size >= 1, got {batch_size}")
        self.sampler = sampler
        self.batch_size = batch_size
        self.drop_last = drop_last

    def __len__(self) -> int:
        return count_of(len(self.sampler), self.batch_size, self.drop_last)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[list[int]]:
        # The order is drawn here, not when the first batch is asked for.
        return groups_of(iter(self.sampler), self.batch_size, self.drop_last)


def count_of(n: int, size: int, drop_last: bool) -> int:
    """How many groups of `size` there are in `n`."""
    whole, rest = divmod(n, size)
    return whole + (rest > 0 and not drop_last)


def groups_of(items: Iterator[Any], size: int, drop_last: bool) -> Iterator[list[Any]]:
    """`items` in lists of `size`."""
    group: list[Any] = []
    for item in items:
        group.append(item)
        if len(group) == size:
            yield group
            group = []
    if group and not drop_last:
        yield group
