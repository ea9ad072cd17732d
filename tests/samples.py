"""Datasets that worker processes find by name."""

import os
import random
import signal
import time

import numpy as np

import wengert as wg
from wengert import data


class Squares:
    """Samples (x, name, i): arrays, text and numbers; `bad` is a position that fails."""

    def __init__(self, n=10, bad=None):
        self.n = n
        self.bad = bad

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        if not 0 <= i < self.n:
            raise IndexError(i)
        if i == self.bad:
            raise LookupError(f"item {i} is rotten")
        return np.full(2, i * i, "f"), str(i), i


class Odd(Exception):
    """An error that cannot be made again from what it was pickled as."""

    def __init__(self, a, b):
        super().__init__(f"{a} and {b}")


class Failing(Squares):
    """One that fails in the way that its position says."""

    def __getitem__(self, i):
        if i == 1:
            raise Odd("this", "that")
        if i == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        if i == 3:
            time.sleep(30)
        if i == 4:
            os._exit(3)
        return i


class Many:
    """Samples of many dtypes and forms, as one tree."""

    def __len__(self):
        return 6

    def __getitem__(self, i):
        names = ("bool", "int8", "uint64", "float16", "bfloat16", "float64")
        tensors = {name: wg.full((3,), i, dtype=getattr(wg, name)) for name in names}
        return tensors | {"empty": wg.zeros((0, 2)), "view": wg.arange(6 + i)[::2][:3]}


def as_arrays(samples):
    """A batch without tensors: an array, a dict of texts, bytes."""
    xs, names, numbers = zip(*samples, strict=True)
    return np.stack(xs), dict(zip(numbers, names, strict=True)), bytearray(b"raw")


class Stream(data.IterableDataset):
    """The numbers below n, each given by one worker."""

    def __init__(self, n):
        self.n = n

    def __iter__(self):
        info = data.get_worker_info()
        start, step = (0, 1) if info is None else (info.id, info.num_workers)
        return iter(range(start, self.n, step))


class Draws:
    """What random generators give, and who asks."""

    def __len__(self):
        return 8

    def __getitem__(self, i):
        info = data.get_worker_info()
        drawn = wg.random.uniform(()).item(), random.random(), float(np.random.random())
        return {"id": info.id, "seed": info.seed, "drawn": drawn, "pid": os.getpid(),
                "started": STARTED, "threads": wg.get_num_threads()}  # fmt: skip


STARTED: list[int] = []


def start(number):
    """What a worker calls first."""
    STARTED.append(number)


def as_list(samples):
    """The samples themselves."""
    return samples
