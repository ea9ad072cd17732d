"""Batches of a dataset: in which order, made of what, and by whom."""

from __future__ import annotations

import hashlib
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from queue import SimpleQueue
from typing import Any, TypeVar

import numpy as np

from wengert import pytree, random
from wengert._core import ArgumentError, Tensor, arange, asarray, stack
from wengert.data._workers import Maker, Pool, Stacked
from wengert.data.datasets import Dataset, IterableDataset, Subset, TensorDataset
from wengert.data.samplers import Keys, count_of, groups_of

__all__ = ["DataLoader", "collate"]

T = TypeVar("T")


def collate(samples: list[Any]) -> Any:
    """Samples of one structure as one batch of that structure.

    Tensors, arrays and numbers at the same place are stacked along a new first axis; other leaves
    become a list.
    """
    return _collated(samples, asarray)


def _for_pickle(samples: list[Any]) -> Any:
    """The same for a batch that goes to another process, which makes the tensors."""
    return _collated(samples, Stacked)


def _collated(samples: list[Any], made: Callable[[Any], Any]) -> Any:
    first, structure = pytree.flatten(samples[0])
    columns = [[leaf] for leaf in first]
    for i, sample in enumerate(samples[1:], start=1):
        leaves, other = pytree.flatten(sample)
        if other != structure:
            raise ArgumentError(f"collate: sample {i} has another structure than sample 0")
        for column, leaf in zip(columns, leaves, strict=True):
            column.append(leaf)
    return pytree.unflatten(structure, [_stack(c, made) for c in columns])


def _stack(values: list[Any], made: Callable[[Any], Any]) -> Any:
    x = values[0]
    if isinstance(x, (bool, int, float)):
        return asarray(values)
    if isinstance(x, np.ndarray):
        # In one step where nothing is to be decided.
        alike = all(
            type(v) is np.ndarray and v.dtype == x.dtype and v.shape == x.shape for v in values
        )
        if not alike:
            return stack([asarray(v) for v in values])
        plain = x.dtype.kind in "biuf" and x.dtype.isnative and x.dtype.itemsize <= 8
        return (made if plain else asarray)(np.stack(values))
    if isinstance(x, Tensor) or hasattr(x, "__array__"):
        return stack([asarray(v) for v in values])
    return values


class DataLoader:
    """Batches of a dataset.

    - In which order: as the dataset has them; `shuffle` draws a new order for each pass; `sampler`
      gives positions, `batch_sampler` lists of them. Draws come from the global generator, or from
      `seed` or the key `generator`. `drop_last` leaves out a last batch that is not full.
      `batch_size=None` gives samples as they are.
    - Made of what: `collate_fn` makes a batch of a list of samples (by default `data.collate`). A
      dataset with a method `batch(indices)` makes whole batches itself, unless there is a
      `collate_fn`. An `IterableDataset` is read as it comes.
    - By whom: with `num_workers=0` by a thread, `prefetch_factor` batches ahead (with 0, when they
      are asked for). Otherwise by so many processes, each so many batches ahead, which hand
      batches over in shared memory. Batches come in the same order either way. By default it is 2,
      but 0 for a `TensorDataset` without workers, whose batches take less than a thread does.

    Processes are started by `multiprocessing_context`: "forkserver" (the default), "spawn", "fork"
    (which is unsafe where a GPU's driver was opened), or such a context. Dataset and functions are
    pickled for the first two, and a script that starts them has its work under
    `if __name__ == "__main__"`. In a worker `data.get_worker_info()` says which it is; its random
    generators (ours, Python's and NumPy's) are seeded anew in each pass, by the pass and its
    number; `worker_init_fn(number)` is called once when it starts; it computes with one thread.
    `persistent_workers` keeps the processes for the next pass. `timeout` is how many seconds a
    batch may be waited for (0: any time); then `TimeoutError` is raised.

    An exception of the dataset is raised where its batch is consumed, with the traceback of the
    worker as its cause. A worker that was killed is a `RuntimeError`. A pass that is left early
    ends its thread or its processes. `pin_memory` is accepted with a warning: nothing is pinned.
    """

    def __init__(
        self,
        dataset: Dataset | IterableDataset | Any,
        batch_size: int | None = 1,
        shuffle: bool = False,
        sampler: Iterable[int] | None = None,
        batch_sampler: Iterable[Any] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0.0,
        worker_init_fn: Callable[[int], Any] | None = None,
        multiprocessing_context: Any = None,
        generator: Tensor | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        seed: int | None = None,
    ) -> None:
        stream = isinstance(dataset, IterableDataset)
        if prefetch_factor is None:
            quick = not num_workers and collate_fn is None and _in_memory(dataset)
            prefetch_factor = 0 if quick else 2
        problems = []
        if batch_size is not None and batch_size < 1:
            problems.append(f"wanted batch_size >= 1 or None, got {batch_size}")
        if num_workers < 0 or prefetch_factor < (num_workers > 0):
            problems.append(
                "wanted num_workers >= 0 and prefetch_factor >= 1 (>= 0 without workers), got "
                f"{num_workers} and {prefetch_factor}"
            )
        if batch_sampler is not None and (
            batch_size != 1 or shuffle or sampler is not None or drop_last
        ):
            problems.append(
                "batch_sampler excludes batch_size, shuffle, sampler and drop_last: it decides them"
            )
        if sampler is not None and shuffle:
            problems.append("sampler excludes shuffle: the sampler decides the order")
        if stream and (shuffle or sampler is not None or batch_sampler is not None):
            problems.append("an IterableDataset excludes shuffle, sampler and batch_sampler")
        if batch_size is None and drop_last:
            problems.append("drop_last without a batch_size")
        if timeout < 0:
            problems.append(f"wanted timeout >= 0, got {timeout}")
        if not num_workers and (timeout or multiprocessing_context or persistent_workers):
            problems.append(
                "timeout, multiprocessing_context and persistent_workers are for num_workers >= 1"
            )
        if problems:
            raise ArgumentError(f"DataLoader: {'; '.join(problems)}")
        if pin_memory:
            warnings.warn(
                "DataLoader: pin_memory has no effect: transfers to a GPU start from any memory",
                stacklevel=2,
            )
        self.dataset = dataset
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.sampler = sampler
        self.batch_sampler = batch_sampler
        self.num_workers = num_workers
        self.collate_fn = collate_fn
        self.drop_last = drop_last
        self.timeout = timeout
        self.worker_init_fn = worker_init_fn
        self.multiprocessing_context = multiprocessing_context
        self.prefetch_factor = prefetch_factor
        self.persistent_workers = persistent_workers
        self._keys = Keys("DataLoader", seed, generator)
        self._passes = 0
        self._stream = stream
        # Of persistent workers, and the pass that they are in.
        self._pool: Pool | None = None
        self._under_way: weakref.ref[Any] | None = None

    def __len__(self) -> int:
        if self.batch_sampler is not None:
            return len(self.batch_sampler)  # type: ignore[arg-type]
        n = len(self.dataset if self.sampler is None else self.sampler)  # type: ignore[arg-type]
        return n if self.batch_size is None else count_of(n, self.batch_size, self.drop_last)

    def __iter__(self) -> Iterator[Any]:
        # Orders and seeds are drawn here, by the caller's thread at a moment that the caller knows.
        key = self._keys.next()
        self._passes += 1
        maker = Maker(
            self.dataset, self.collate_fn or (_for_pickle if self.num_workers else collate),
            self.batch_size, self.drop_last,
            whole=self.collate_fn is None, single=self.batch_size is None, stream=self._stream,
        )  # fmt: skip
        groups = None if self._stream else self._groups(key)
        if not self.num_workers:
            batches = maker.all(groups)
            return _ahead(batches, self.prefetch_factor) if self.prefetch_factor else batches
        return self._by_workers(maker, groups, self._worker_seed(key))

    def _groups(self, key: Tensor | None) -> Iterator[Any]:
        """The positions of each batch (or sample, without a batch size) of a pass."""
        if self.batch_sampler is not None:
            return iter(self.batch_sampler)
        if self.sampler is not None:
            places = iter(self.sampler)
            if self.batch_size is None:
                return places
            return groups_of(places, self.batch_size, self.drop_last)
        n = len(self.dataset)  # type: ignore[arg-type]
        if self.batch_size is None:
            order = random.permutation(n, key=key, device="cpu").tolist() if self.shuffle else None
            return iter(range(n) if order is None else order)
        if self.shuffle:
            positions = random.permutation(n, key=key, device="cpu")
        else:
            positions = arange(n, device="cpu")
        size = self.batch_size
        return (positions[i * size : (i + 1) * size] for i in range(len(self)))

    def _worker_seed(self, key: Tensor | None) -> int:
        """A number that follows from the pass and the generator, from which it draws nothing.

        So a program's random numbers do not depend on how its batches are made.
        """
        state = random.get_state() if key is None else key.tolist()
        text = f"{self._passes} {state}"
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "little")

    def _by_workers(self, maker: Maker, groups: Iterator[Any] | None, seed: int) -> Iterator[Any]:
        kept = self.persistent_workers and not self._busy()
        pool = self._pool if kept else None
        if pool is None:
            pool = Pool(
                maker, self.num_workers, self.prefetch_factor, self.worker_init_fn,
                self.multiprocessing_context, self.timeout,
            )  # fmt: skip
        if kept:
            self._pool = pool
        pool.begin(groups, seed)
        batches = self._consume(pool)
        if kept:
            self._under_way = weakref.ref(batches)
        return batches

    def _busy(self) -> bool:
        """Whether persistent workers are in a pass that somebody may still go on with."""
        batches = None if self._under_way is None else self._under_way()
        return batches is not None and batches.gi_frame is not None

    def _consume(self, pool: Pool) -> Iterator[Any]:
        whole = False
        try:
            yield from pool.batches()
            whole = True
        except GeneratorExit:
            whole = True
            raise
        finally:
            # After an error the processes are of no more use.
            if pool is not self._pool:
                pool.close()
            elif not whole:
                self._pool = None
                pool.close()


def _in_memory(dataset: Any) -> bool:
    """Whether whole batches are gathers of tensors."""
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    return isinstance(dataset, TensorDataset)


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
