"""Datasets: samples by position or in a stream, joined, cut and divided."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

from wengert import random
from wengert._core import ArgumentError, Tensor, asarray, int64

__all__ = [
    "ConcatDataset",
    "Dataset",
    "IterableDataset",
    "StackDataset",
    "Subset",
    "TensorDataset",
    "random_split",
]


class Dataset(Protocol):
    """Anything with a length and items by position.

    A method `batch(indices)`, which gets an int64 tensor and gives a batch that is collated
    already, is what a loader calls instead of asking for each sample.
    """

    def __len__(self) -> int:
        """The number of samples."""
        ...

    def __getitem__(self, i: int, /) -> Any:
        """The sample at a position."""
        ...


class IterableDataset:
    """Samples in a stream: a subclass defines `__iter__`.

    With worker processes every worker iterates over a copy of its own. So that samples come once,
    `__iter__` gives the part of this worker: `data.get_worker_info()` says which it is.
    """

    def __iter__(self) -> Iterator[Any]:
        raise NotImplementedError(f"{type(self).__name__} does not define __iter__")


class TensorDataset:
    """Samples along the first axis of some tensors (or arrays), of equal length.

    >>> wg.data.TensorDataset(wg.ones((5, 2)), wg.arange(5))[3][1].item()
    3
    """

    def __init__(self, *tensors: Any) -> None:
        self.tensors = tuple(asarray(t) for t in tensors)
        shapes = [tuple(t.shape) for t in self.tensors]
        if not shapes or not all(shapes) or len({s[0] for s in shapes}) > 1:
            raise ArgumentError(
                f"TensorDataset: wanted tensors of equal length, got shapes {shapes}"
            )

    def __len__(self) -> int:
        return self.tensors[0].shape[0]

    def __getitem__(self, i: int) -> tuple[Tensor, ...]:
        return tuple(t[i] for t in self.tensors)

    def batch(self, indices: Tensor) -> tuple[Tensor, ...]:
        """The samples at `indices`, already collated."""
        return tuple(t[indices.to(t.device)] for t in self.tensors)


class StackDataset:
    """Datasets of equal length side by side: samples are tuples, or dicts if they have names.

    >>> squares = [i * i for i in range(4)]
    >>> wg.data.StackDataset(x=range(4), y=squares)[3]
    {'x': 3, 'y': 9}
    """

    def __init__(self, *datasets: Any, **named: Any) -> None:
        if bool(datasets) == bool(named):
            got = f"{len(datasets)} without and {len(named)} with names"
            raise ArgumentError(
                f"StackDataset: wanted datasets all with or without names, got {got}"
            )
        self.datasets: Any = named or datasets
        lengths = [len(d) for d in named.values()] if named else [len(d) for d in datasets]
        if len(set(lengths)) > 1:
            raise ArgumentError(f"StackDataset: wanted datasets of equal length, got {lengths}")
        self._length = lengths[0]

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, i: int) -> Any:
        if isinstance(self.datasets, dict):
            return {name: d[i] for name, d in self.datasets.items()}
        return tuple(d[i] for d in self.datasets)


class ConcatDataset:
    """Datasets one after the other.

    >>> both = wg.data.ConcatDataset([range(3), range(10, 12)])
    >>> len(both), both[3], both[-1]
    (5, 10, 11)
    """

    def __init__(self, datasets: Iterable[Any]) -> None:
        self.datasets = list(datasets)
        streams = [type(d).__name__ for d in self.datasets if isinstance(d, IterableDataset)]
        if streams:
            names = ", ".join(streams)
            raise ArgumentError(f"ConcatDataset: streams have no positions: got {names}")
        self._ends = list(itertools.accumulate(len(d) for d in self.datasets))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, i: int) -> Any:
        at = i + len(self) if i < 0 else i
        if not 0 <= at < len(self):
            raise IndexError(f"ConcatDataset: position {i} of {len(self)} samples")
        k = bisect.bisect_right(self._ends, at)
        return self.datasets[k][at - (self._ends[k - 1] if k else 0)]


class Subset:
    """The samples of a dataset at some positions, in their order.

    >>> wg.data.Subset(range(10, 20), [7, 1])[0]
    17
    """

    def __init__(self, dataset: Any, indices: Sequence[int]) -> None:
        self.dataset = dataset
        self.indices = indices

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, i: int) -> Any:
        return self.dataset[int(self.indices[i])]

    @property
    def batch(self) -> Callable[[Tensor], Any] | None:
        """Whole batches, where the dataset makes them itself; otherwise None."""
        whole = getattr(self.dataset, "batch", None)
        if whole is None:
            return None
        given = self.indices
        places = asarray(given if hasattr(given, "__array__") else list(given), dtype=int64)
        return lambda indices: whole(places[indices])


def random_split(
    dataset: Any,
    lengths: Sequence[int | float],
    seed: int | None = None,
    *,
    generator: Tensor | None = None,
) -> list[Subset]:
    """Divide a dataset at random into parts of these lengths, or of these fractions of it.

    Fractions sum to 1; what rounding leaves goes to the first parts, one sample each. The order is
    drawn from `seed`, from the key `generator`, or from the global generator.

    >>> a, b = wg.data.random_split(range(10), [0.8, 0.2], seed=1)
    >>> len(a), len(b), sorted([*a, *b]) == list(range(10))
    (8, 2, True)
    """
    n = len(dataset)
    sizes: list[int | float] = list(lengths)
    if any(isinstance(s, float) for s in sizes):
        if min(sizes) < 0 or not math.isclose(sum(sizes), 1.0):
            raise ArgumentError(f"random_split: wanted fractions that sum to 1, got {sizes}")
        whole: list[int | float] = [math.floor(n * s + 1e-9) for s in sizes]
        for k in range(n - int(sum(whole))):
            whole[k % len(whole)] += 1
        sizes = whole
    if any(s < 0 for s in sizes) or sum(sizes) != n:
        raise ArgumentError(f"random_split: wanted lengths that sum to {n}, got {list(lengths)}")
    order = random.permutation(n, key=key_of("random_split", seed, generator)).tolist()
    ends = list(itertools.accumulate(int(s) for s in sizes))
    return [Subset(dataset, order[a:b]) for a, b in zip([0, *ends], ends, strict=False)]


def key_of(op: str, seed: int | None, generator: Any) -> Tensor | None:
    """The key that `seed` or `generator` says; None for the global generator."""
    if seed is not None and generator is not None:
        raise ArgumentError(f"{op}: wanted seed or generator, got both")
    if generator is None:
        return None if seed is None else random.key(seed)
    if not isinstance(generator, Tensor):
        got = type(generator).__name__
        raise ArgumentError(f"{op}: generator is a key, as wg.random.key(seed) makes: got {got}")
    return generator
