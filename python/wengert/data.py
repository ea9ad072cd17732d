"""Data for training: datasets, batches, and a progress bar."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar

from wengert import pytree, random
from wengert._core import Tensor, arange, asarray, stack

__all__ = ["DataLoader", "Dataset", "TensorDataset", "collate", "progress"]

T = TypeVar("T")


class Dataset(Protocol):
    """Anything with a length and items by position."""

    def __len__(self) -> int:
        """The number of samples."""
        ...

    def __getitem__(self, i: int, /) -> Any:
        """The sample at a position."""
        ...


class TensorDataset:
    """Samples along the first axis of some tensors (or arrays), of equal length.

    >>> wg.data.TensorDataset(wg.ones((5, 2)), wg.arange(5))[3][1].item()
    3
    """

    def __init__(self, *tensors: Any) -> None:
        self.tensors = tuple(asarray(t) for t in tensors)
        shapes = [tuple(t.shape) for t in self.tensors]
        if not shapes or not all(shapes) or len({s[0] for s in shapes}) > 1:
            raise ValueError(f"TensorDataset: wanted tensors of equal length, got shapes {shapes}")

    def __len__(self) -> int:
        return self.tensors[0].shape[0]

    def __getitem__(self, i: int) -> tuple[Tensor, ...]:
        return tuple(t[i] for t in self.tensors)

    def batch(self, indices: Tensor) -> tuple[Tensor, ...]:
        """The samples at `indices`, already collated."""
        return tuple(t[indices.to(t.device)] for t in self.tensors)


def collate(samples: list[Any]) -> Any:
    """Samples of one structure as one batch of that structure.

    Tensors, arrays and numbers at the same place are stacked along a new first axis; other leaves
    become a list.
    """
    first, structure = pytree.flatten(samples[0])
    columns = [[leaf] for leaf in first]
    for i, sample in enumerate(samples[1:], start=1):
        leaves, other = pytree.flatten(sample)
        if other != structure:
            raise ValueError(f"collate: sample {i} has another structure than sample 0")
        for column, leaf in zip(columns, leaves, strict=True):
            column.append(leaf)
    return pytree.unflatten(structure, [_stack(c) for c in columns])


def _stack(values: list[Any]) -> Any:
    x = values[0]
    if isinstance(x, (bool, int, float)):
        return asarray(values)
    if isinstance(x, Tensor) or hasattr(x, "__array__"):
        return stack([asarray(v) for v in values])
    return values


class DataLoader:
    """Batches of a dataset, made by a thread `prefetch` batches ahead (0: when they are asked for).

    `shuffle` draws a new order for each pass, from the global generator or, with `seed`, from one
    of the loader's own. A dataset with a method `batch(indices)` makes whole batches itself, unless
    `collate` (a function of a list of samples) is given. An exception of the dataset is raised
    where the batch is consumed, and a pass that is left early ends its thread.
    """

    def __init__(
        self,
        dataset: Dataset,
        batch_size: int = 1,
        shuffle: bool = False,
        drop_last: bool = False,
        collate: Callable[[list[Any]], Any] | None = None,
        prefetch: int = 2,
        seed: int | None = None,
    ) -> None:
        if batch_size < 1 or prefetch < 0:
            raise ValueError(
                f"DataLoader: wanted batch_size >= 1 and prefetch >= 0, got {batch_size} and "
                f"{prefetch}"
            )
        self.dataset = dataset
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.drop_last = drop_last
        self.collate = collate
        self.prefetch = prefetch
        self._key = None if seed is None else random.key(seed)

    def __len__(self) -> int:
        whole, rest = divmod(len(self.dataset), self.batch_size)
        return whole + (rest > 0 and not self.drop_last)

    def __iter__(self) -> Iterator[Any]:
        # The order is drawn here, by the caller's thread and at a moment that the caller knows.
        batches = (self._load(indices) for indices in self._order())
        return _ahead(batches, self.prefetch) if self.prefetch else batches

    def _order(self) -> list[Tensor]:
        n = len(self.dataset)
        if not self.shuffle:
            order = arange(n)
        elif self._key is None:
            order = random.permutation(n)
        else:
            self._key, now = random.split(self._key, 2)
            order = random.permutation(n, key=now)
        size = self.batch_size
        return [order[i * size : (i + 1) * size] for i in range(len(self))]

    def _load(self, indices: Tensor) -> Any:
        batch = getattr(self.dataset, "batch", None)
        if batch is not None and self.collate is None:
            return batch(indices)
        return (self.collate or collate)([self.dataset[i] for i in indices.tolist()])


def _ahead(items: Iterator[T], count: int) -> Iterator[T]:
    """`items`, made by a thread up to `count` ahead of the consumer."""
    results: SimpleQueue[tuple[str, Any]] = SimpleQueue()
    room = threading.Semaphore(count)
    stop = threading.Event()

    def produce() -> None:
        try:
            while True:
                room.acquire()
                if stop.is_set():
                    return
                results.put(("item", next(items)))
        except StopIteration:
            results.put(("end", None))
        except BaseException as error:
            results.put(("error", error))

    def consume() -> Iterator[T]:
        thread.start()
        try:
            while True:
                kind, value = results.get()
                if kind == "end":
                    return
                if kind == "error":
                    raise value
                room.release()
                yield value
        finally:
            stop.set()
            room.release()
            thread.join()

    thread = threading.Thread(target=produce, name="wengert-data", daemon=True)
    return consume()


class _Plain:
    """What `progress` gives without tqdm: the items, and methods that do nothing."""

    def __init__(self, items: Iterable[Any]) -> None:
        self._items = items

    def __iter__(self) -> Iterator[Any]:
        return iter(self._items)

    def set_postfix(self, *_: Any, **__: Any) -> None:
        """Where tqdm would show figures."""


def progress(items: Iterable[Any], description: str | None = None, total: int | None = None) -> Any:
    """`items`, with a progress bar on standard error where tqdm is installed.

    The result is iterable; `set_postfix(loss=...)` shows figures beside the bar.
    """
    try:
        from tqdm.auto import tqdm  # type: ignore[import-untyped]
    except ImportError:
        return _Plain(items)
    return tqdm(items, desc=description, total=total)
