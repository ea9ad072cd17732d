"""Batches made by other processes.

Each worker has a pipe and a few *slots*, pieces of memory that it shares with the consumer. The
consumer gives tasks in turn (batch k to worker k modulo their number) and takes results in the same
order, so batches come in order without being sorted. A task names the slot that its result goes to;
it is sent only after the last result there was taken. What goes through a pipe from a worker is a
few bytes, so that no worker ever waits for room in one, and neither can both sides wait for each
other.

Nothing outlives its processes: slots are files without names, a worker ends when its pipe or its
parent does, and the consumer ends workers that do not.
"""

from __future__ import annotations

import io
import mmap
import multiprocessing
import os
import pickle
import signal
import struct
import tempfile
import threading
import time
import traceback
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing import connection, reduction
from typing import Any

import numpy as np

from wengert import _core, random
from wengert._core import ArgumentError, ArgumentTypeError, Tensor, asarray

__all__ = ["Maker", "Pool", "Stacked", "WorkerInfo", "get_worker_info"]


@dataclass(frozen=True)
class WorkerInfo:
    """Which worker this is: its number, how many there are, its seed, its copy of the dataset."""

    id: int
    num_workers: int
    seed: int
    dataset: Any


_info: WorkerInfo | None = None


def get_worker_info() -> WorkerInfo | None:
    """In a worker of a `DataLoader`, which one it is; elsewhere None."""
    return _info


@dataclass(frozen=True)
class Maker:
    """How batches are made: what a worker has a copy of."""

    dataset: Any
    collate_fn: Callable[[list[Any]], Any]
    batch_size: int | None
    drop_last: bool
    # Whether the dataset's own whole batches are wanted; whether samples are given as they are;
    # whether the dataset is read as it comes.
    whole: bool
    single: bool
    stream: bool

    def all(self, groups: Iterator[Any] | None) -> Iterator[Any]:
        """Every batch: of `groups` of positions, or of a stream."""
        if groups is None:
            return self.streamed()
        return (self.make(group) for group in groups)

    def make(self, group: Any) -> Any:
        """The batch of these positions."""
        if self.single:
            sample = self.dataset[group]
            return sample if self.whole else self.collate_fn(sample)
        whole = getattr(self.dataset, "batch", None) if self.whole else None
        if whole is not None:
            return whole(asarray(group))
        places = group.tolist() if isinstance(group, (Tensor, np.ndarray)) else group
        return self.collate_fn([self.dataset[i] for i in places])

    def streamed(self) -> Iterator[Any]:
        """The batches of a stream."""
        from wengert.data.samplers import groups_of

        samples = iter(self.dataset)
        if self.single:
            return samples if self.whole else map(self.collate_fn, samples)
        assert self.batch_size is not None
        groups = groups_of(samples, self.batch_size, self.drop_last)
        return (self.collate_fn(group) for group in groups)


# --- memory that two processes share


class Slot:
    """A file without a name, which grows as its writer needs and is mapped by both sides."""

    def __init__(self, file: int | None = None) -> None:
        self._file = _nameless() if file is None else file
        self._map: mmap.mmap | None = None
        weakref.finalize(self, os.close, self._file)

    def __reduce__(self) -> Any:
        # While a process is started, its descriptors go along.
        return _received, (reduction.DupFd(self._file),)

    def room(self, size: int) -> mmap.mmap:
        """At least `size` bytes to write to."""
        if self._map is None or len(self._map) < size:
            # Half as much again, so that growing batches map seldom.
            size = max(size + size // 2, mmap.PAGESIZE)
            self._map = None
            os.ftruncate(self._file, size)
            self._map = mmap.mmap(self._file, size)
        return self._map

    def view(self, size: int) -> memoryview:
        """The first `size` bytes of what was written."""
        if self._map is None or len(self._map) < size:
            self._map = mmap.mmap(self._file, os.fstat(self._file).st_size)
        return memoryview(self._map)[:size]


def _received(handle: Any) -> Slot:
    return Slot(handle.detach())


def _nameless() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("wengert-data", os.MFD_CLOEXEC)
    file, path = tempfile.mkstemp(prefix="wengert-data-")
    os.unlink(path)
    return file


# --- objects in a slot
#
# A table of sizes, the pickle, then the pickle's large buffers, aligned for kernels. Buffers that
# belong to tensors are marked in the table: their reader copies them into a tensor at once, so they
# are read where they lie. Others are copied out before they are handed on.

_ALIGNED = 64


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=5, buffer_callback=self._keep)
        self.buffers: list[tuple[memoryview, bool]] = []
        self._of_tensors: list[pickle.PickleBuffer] = []

    def _keep(self, buffer: pickle.PickleBuffer) -> bool:
        try:
            raw = buffer.raw()
        except BufferError:  # not in one piece: it goes into the pickle
            return True
        self.buffers.append((raw, any(buffer is b for b in self._of_tensors)))
        return False

    def reducer_override(self, x: Any) -> Any:
        """Plain tensors lend their memory to the copy; others are pickled as anywhere else."""
        if type(x) is Stacked:
            x = x.array
        elif type(x) is not Tensor or x.requires_grad or x.device.type != "cpu":
            return NotImplemented
        name, shape = x.dtype.name, tuple(x.shape)
        if name == "bfloat16":  # which NumPy does not have
            data = pickle.PickleBuffer(_core._to_bytes(x))
        else:
            array = x.numpy() if isinstance(x, Tensor) else x
            data = pickle.PickleBuffer(np.ascontiguousarray(array).data)
        self._of_tensors.append(data)
        return _tensor, (data, name, shape)


def _tensor(data: Any, dtype: str, shape: tuple[int, ...]) -> Tensor:
    if dtype == "bfloat16":
        return _core._from_bytes(_core.bfloat16, shape, bytes(data))
    return asarray(np.frombuffer(data, dtype).reshape(shape), copy=True, device="cpu")


class Stacked:
    """An array that becomes a tensor where it is read."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array = array


def write(x: Any, slot: Slot) -> int:
    """Puts an object into a slot; the count of its buffers."""
    file = io.BytesIO()
    pickler = _Pickler(file)
    pickler.dump(x)
    pickled = file.getbuffer()
    table = struct.Struct(f"<{len(pickler.buffers) + 1}q")
    sizes = [len(pickled), *(len(b) << 1 | own for b, own in pickler.buffers)]
    end = at = table.size + len(pickled)
    for b, _ in pickler.buffers:
        end = -(-end // _ALIGNED) * _ALIGNED + len(b)
    room = slot.room(end)
    table.pack_into(room, 0, *sizes)
    room[table.size : at] = pickled
    for b, _ in pickler.buffers:
        at = -(-at // _ALIGNED) * _ALIGNED
        room[at : at + len(b)] = b
        at += len(b)
    return len(pickler.buffers)


def read(slot: Slot, count: int) -> Any:
    """The object that was put into a slot with `count` buffers. It keeps nothing of the slot."""
    table = struct.Struct(f"<{count + 1}q")
    length, *sizes = table.unpack_from(slot.view(table.size))
    end = at = table.size + length
    for size in sizes:
        end = -(-end // _ALIGNED) * _ALIGNED + (size >> 1)
    memory = slot.view(end)
    buffers: list[Any] = []
    for size in sizes:
        at = -(-at // _ALIGNED) * _ALIGNED
        piece = memory[at : at + (size >> 1)]
        buffers.append(piece if size & 1 else bytearray(piece))
        at += size >> 1
    return pickle.loads(memory[table.size : table.size + length], buffers=buffers)


# --- in the worker

_BATCH, _END, _ERROR = range(3)
_REPLY = struct.Struct("<qq")


def _main(pipe: Any, slots: list[Slot], job: Any, number: int, count: int) -> None:
    """The life of a worker: tasks from the pipe, results into slots, until the pipe ends.

    `job` is a maker and what to call first, or the slot that holds them and its buffers.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the consumer ends us
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _core.set_num_threads(1)
    made: Iterator[Any] = iter(())
    maker = init = failure = None
    try:
        maker, init = read(*job) if isinstance(job[0], Slot) else job
    except BaseException as error:
        failure = _described(error)
    started = False
    try:
        while True:
            task = pickle.loads(pipe.recv_bytes())
            if task[0] == "pass":
                if maker is not None:
                    _seed(number, count, task[1], maker.dataset)
                    if not started and init is not None and failure is None:
                        try:
                            init(number)
                        except BaseException as error:
                            failure = _described(error)
                    started = True
                made = iter(())
                if maker is not None and maker.stream and failure is None:
                    made = _lazily(maker.streamed)
                continue
            _, group, k = task
            kind: int = _ERROR
            value: Any = failure
            if failure is None:
                try:
                    assert maker is not None
                    if maker.stream:
                        value = next(made, _NOTHING)
                        kind, value = (_END, None) if value is _NOTHING else (_BATCH, value)
                    else:
                        kind, value = _BATCH, maker.make(group)
                except BaseException as error:
                    kind, value = _ERROR, _described(error)
            try:
                buffers = write(value, slots[k])
            except BaseException as error:
                kind, buffers = _ERROR, write(_described(error), slots[k])
            del value
            pipe.send_bytes(_REPLY.pack(kind, buffers))
    except (EOFError, ConnectionError):
        return


_NOTHING = object()


def _lazily(make: Callable[[], Iterator[Any]]) -> Iterator[Any]:
    """What `make` gives, made when the first is asked for, so that its errors come there."""
    yield from make()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


def _seed(number: int, count: int, seed: int, dataset: Any) -> None:
    global _info
    import random as pythons

    seed += number
    random.seed(seed)
    pythons.seed(seed)
    np.random.seed(seed % (1 << 32))
    _info = WorkerInfo(number, count, seed, dataset)


def _described(error: BaseException) -> tuple[BaseException | None, str]:
    """An error as it can be sent, if it can, and its traceback as text."""
    text = "".join(traceback.format_exception(error))
    try:
        # Not all that can be pickled can be made again.
        again = pickle.loads(pickle.dumps(error))
    except Exception:
        return None, text
    return (again if type(again) is type(error) else None), text


class WorkerTraceback(Exception):
    """The traceback of an error in a worker, as text."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"\n{self.text}"


# --- in the consumer


class _Worker:
    def __init__(self, number: int, process: Any, pipe: Any, slots: list[Slot]) -> None:
        self.number = number
        self.process = process
        self.pipe = pipe
        self.slots = slots
        self.tasks = 0  # tasks given
        self.taken = 0  # results taken
        self.ended = False  # a stream that has given all


class Pool:
    """Worker processes, and the batches of one pass after the other."""

    def __init__(
        self,
        maker: Maker,
        count: int,
        ahead: int,
        init: Callable[[int], Any] | None,
        context: Any,
        timeout: float,
    ) -> None:
        if os.name != "posix":
            raise RuntimeError(
                "DataLoader: num_workers needs POSIX (Linux, macOS); use num_workers=0"
            )
        if isinstance(context, str) or context is None:
            try:
                context = multiprocessing.get_context(context or "forkserver")
            except ValueError as error:
                raise ArgumentError(f"DataLoader: multiprocessing_context: {error}") from None
        self._ahead = ahead
        self._timeout = timeout
        self._stream = maker.stream
        self._groups: Iterator[Any] | None = None
        self._workers: list[_Worker] = []
        job: Any = (maker, init)
        if context.get_start_method() != "fork":
            # Pickled once, read by each.
            slot = Slot()
            try:
                job = (slot, write(job, slot))
            except Exception as error:
                raise ArgumentTypeError(
                    "DataLoader: workers need a dataset, collate_fn and worker_init_fn that can be "
                    f"pickled (defined in a module, by name): {error}"
                ) from error
        self._close = weakref.finalize(self, _close, self._workers)
        for number in range(count):
            here, there = multiprocessing.Pipe()
            slots = [Slot() for _ in range(ahead)]
            process = context.Process(
                target=_main,
                args=(there, slots, job, number, count),
                name=f"wengert-data-{number}",
                daemon=True,
            )
            try:
                process.start()
            except BaseException:
                self.close()
                raise
            there.close()
            self._workers.append(_Worker(number, process, here, slots))

    def close(self) -> None:
        """End the processes."""
        self._close()

    def begin(self, groups: Iterator[Any] | None, seed: int) -> None:
        """Start a pass: over `groups` of positions, or over what streams give."""
        self._groups = groups
        for w in self._workers:
            while w.taken < w.tasks:  # of a pass that was left early
                self._receive(w)
            w.ended = False
            self._send(w, ("pass", seed))

    def batches(self) -> Iterator[Any]:
        """The batches of the pass, in order."""
        order = self._in_turn()
        # Tasks go round, so that all workers start at once.
        first = (self._task(order) for _ in range(self._ahead * len(self._workers)))
        given = deque(w for w in first if w is not None)
        while given:
            w = given.popleft()
            kind, value = self._receive(w)
            if kind == _END:
                w.ended = True
            elif kind == _ERROR:
                self._raise(w, *value)
            if (other := self._task(order)) is not None:
                given.append(other)
            if kind == _BATCH:
                yield value
                del value

    def _in_turn(self) -> Iterator[_Worker]:
        while True:
            going = [w for w in self._workers if not w.ended]
            if not going:
                return
            yield from going

    def _task(self, order: Iterator[_Worker]) -> _Worker | None:
        """Give the next worker its next task, if there is one."""
        group = None
        if self._groups is not None:
            group = next(self._groups, _NOTHING)
            if group is _NOTHING:
                return None
            if isinstance(group, Tensor):
                group = group.numpy()
        w = next(order, None)
        while w is not None and w.ended:
            w = next(order, None)
        if w is not None:
            self._send(w, ("make", group, w.tasks % self._ahead))
            w.tasks += 1
        return w

    def _send(self, w: _Worker, task: Any) -> None:
        try:
            w.pipe.send_bytes(pickle.dumps(task))
        except (BrokenPipeError, ConnectionError):
            raise self._died(w) from None

    def _receive(self, w: _Worker) -> tuple[int, Any]:
        """The next result of a worker."""
        if self._timeout and not w.pipe.poll(self._timeout):
            raise TimeoutError(
                f"DataLoader: worker {w.number} gave no batch within {self._timeout} s"
            )
        try:
            kind, count = _REPLY.unpack(w.pipe.recv_bytes())
        except (EOFError, ConnectionError):
            raise self._died(w) from None
        slot = w.slots[w.taken % self._ahead]
        w.taken += 1
        return kind, read(slot, count)

    def _died(self, w: _Worker) -> RuntimeError:
        w.process.join(1.0)
        code = w.process.exitcode
        how = "ended"
        if code is not None and code < 0:
            try:
                how = f"was killed by {signal.Signals(-code).name}"
            except ValueError:
                how = f"was killed by signal {-code}"
            if -code == signal.SIGKILL:
                how += " (as the system does when memory is short)"
        elif code is not None:
            how = f"ended with exit code {code}"
        return RuntimeError(
            f"DataLoader: worker {w.number} (process {w.process.pid}) {how}"
            " before it gave its batch; what it printed says more"
        )

    def _raise(self, w: _Worker, error: BaseException | None, text: str) -> None:
        cause = WorkerTraceback(text)
        if error is None:
            last = text.strip().splitlines()[-1]
            raise RuntimeError(f"DataLoader: worker {w.number}: {last}") from cause
        error.add_note(f"raised in worker {w.number} of the DataLoader")
        raise error from cause


# How long workers have to end by themselves once their pipe is closed.
_GRACE = 0.5


def _close(workers: list[_Worker]) -> None:
    for w in workers:
        w.pipe.close()
    end = time.monotonic() + _GRACE
    for w in workers:
        w.process.join(max(0.0, end - time.monotonic()))
    for w in workers:
        if w.process.is_alive():
            w.process.terminate()
    for w in workers:
        w.process.join(1.0)
        if w.process.is_alive():
            w.process.kill()
            w.process.join()
        w.process.close()
    workers.clear()
