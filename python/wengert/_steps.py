"""A step of an optimizer: all its updates or none, as one program where it can be.

`optim` has the optimizers and their formulas.
"""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from wengert import _core, _touched
from wengert._core import Tensor

if TYPE_CHECKING:
    from wengert._rows import RowSparse
    from wengert.optim import Optimizer


class Group(dict[str, Any]):
    """Parameters and their hyperparameters: a dict that says when it changes, so that captured
    functions see it."""

    __slots__ = ("scheduled",)

    scheduled: tuple[Any, Any]
    """The learning rate that a schedule set last, and the one before all schedules."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.scheduled = None, None

    def __getitem__(self, key: str) -> Any:
        record = _touched.here.record
        return super().__getitem__(key) if record is None or key != "lr" else record.rate(self)

    def __setitem__(self, key: str, value: Any) -> None:
        _touched.assigning(self, key)
        super().__setitem__(key, value)
        _core.tick()

    def __delitem__(self, key: str) -> None:
        _touched.assigning(self, key)
        super().__delitem__(key)
        _core.tick()

    def update(self, *args: Any, **kwargs: Any) -> None:
        """As of a dict."""
        for key, value in dict(*args, **kwargs).items():
            self[key] = value


Work = tuple[Tensor, dict[str, Tensor], Group]
"""A parameter, its state and its group."""


def update_all(
    optimizer: Optimizer,
    work: list[Work],
    runtime: Callable[[Group], dict[str, Any]],
    skip: Tensor | None = None,
) -> None:
    """Update parameters one after another, with the hyperparameters that `runtime` gives. Where
    `skip` holds all values are what they were."""
    record = _touched.here.record
    groups: dict[int, Group] = {}
    before = [] if skip is None else _values(work)
    for p, state, group in work:
        now = groups.get(id(group))
        if now is None:
            now = groups[id(group)] = Group(runtime(group))
        assert p.grad is not None
        with nullcontext() if record is None else _touched.inside(record.name_of(p)):
            optimizer.update(p, p.grad.detach(), state, now)
    for x, value in before:
        assert skip is not None
        x.assign(_core.where(skip, value, x))


def _values(work: list[Work]) -> list[tuple[Tensor, Tensor]]:
    """What updates change, with the values that it has."""
    return [(x, x.detach()) for p, state, _ in work for x in (p, *state.values())]


def update_or_restore(optimizer: Optimizer, work: list[Work]) -> None:
    """The same; where an update fails all values are what they were. They stay in memory until the
    last update is done, so nothing is written in place."""
    before = _values(work)
    entries = [(state, dict(state)) for _, state, _ in work]
    try:
        update_all(optimizer, work, dict)
    except BaseException:
        for x, value in before:
            _core._put_back(x, value)
        for state, then in entries:
            state.clear()
            state.update(then)
        raise


def update_rows(optimizer: Optimizer, rows: list[Work], rest: Callable[[], None]) -> None:
    """Update the rows that row-sparse gradients have, and then do the rest. Where something fails
    all values are what they were; only the rows concerned are kept for that."""
    writes: list[_Write] = []
    for p, state, group in rows:
        g: Any = p.grad
        writes += _rows_after(optimizer, p, g.coalesce(), state, group)
    done: list[_Write] = []
    try:
        for write in writes:
            done.append(write)
            x, at, new, _ = write
            _write(x, at, new)
        rest()
    except BaseException:
        for x, at, _, old in done:
            _write(x, at, old)
        raise


_Write = tuple[Tensor, Tensor | None, Tensor, Tensor]
"""What is written, at which rows or as a whole, the new value and the old one."""


def _write(x: Tensor, at: Tensor | None, value: Tensor) -> None:
    if at is None:
        x.assign(value)
    else:
        x[at] = value


def _rows_after(
    optimizer: Optimizer, p: Tensor, g: RowSparse, state: dict[str, Tensor], group: Group
) -> list[_Write]:
    """What an update makes of the rows of a parameter and its state, as if they were all."""
    at = g.indices
    is_table = {k: x.shape == p.shape for k, x in state.items()}
    before = {k: x.detach()[at] if is_table[k] else x.detach() for k, x in state.items()}
    old = p.detach()[at]
    new, after = old.detach(), {k: x.detach() for k, x in before.items()}
    optimizer.update(new, g.values, after, Group(dict(group)))
    writes = [(x, at if is_table[k] else None, after[k], before[k]) for k, x in state.items()]
    return [(p, at, new, old), *writes]


class Program:
    """The updates of some parameters as one program. It holds what it updates, and no optimizer."""

    MOST = 4
    """How many an optimizer keeps. Who changes more than that from step to step, such as which
    parameters have gradients, makes the updates one by one."""

    def __init__(self, objects: list[Any], settings: list[Any], executable: Any) -> None:
        self.objects, self.settings, self.executable = objects, settings, executable

    @staticmethod
    def of(optimizer: Optimizer, work: list[Work], known: list[Program]) -> Program | None:
        """The program of these updates, where there is one."""
        if _core._is_configured() or not work:
            return None
        objects: list[Any] = []
        for p, state, group in work:
            objects += (p, group, *state.values())
        settings = [
            (k, v) for group in optimizer.param_groups for k, v in group.items()
            if k != "params" and not (k == "lr" and isinstance(v, float))
        ]
        for program in known:
            alike = len(program.objects) == len(objects) and program.settings == settings
            if alike and all(map(operator.is_, program.objects, objects)):
                return program
        if len(known) >= Program.MOST or len({p.device for p, _, _ in work}) > 1:
            return None
        with _core.Trace() as trace:
            update_all(optimizer, work, lambda group: _told(trace, group))
            executable = trace.finish(f"{type(optimizer).__name__}.step", [], [])
        known.append(Program(objects, settings, executable))
        return known[-1]


class Routine:
    """Work in place, as one program for as long as it is work on the same tensors."""

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self.executable: Any = None

    def run(self, name: str, tensors: list[Tensor], work: Callable[[], None]) -> None:
        """Work that does to these tensors, and to others that are always the same, what it does
        whenever it is called, and reads no values."""
        several = len({x.device for x in tensors}) > 1
        if _core.is_tracing() or _core._is_configured() or several:
            work()
            return
        alike = len(self.tensors) == len(tensors) and all(map(operator.is_, self.tensors, tensors))
        if alike and self.executable is not None and self.executable.update():
            return
        with _core.Trace() as trace:
            work()
            executable = trace.finish(name, [], [])
        self.tensors, self.executable = tensors, executable
        if not executable.update():
            work()


_programs: weakref.WeakKeyDictionary[Optimizer, list[Program]] = weakref.WeakKeyDictionary()


def programs_of(optimizer: Optimizer) -> list[Program]:
    """The programs of an optimizer. They are let go when it is, and are no attributes of it."""
    return _programs.setdefault(optimizer, [])


def _told(trace: Any, group: Group) -> dict[str, Any]:
    """A group whose learning rate is a number that is given at each run."""
    is_told = isinstance(dict.get(group, "lr"), float)
    return {**group, "lr": trace.item(group, "lr")} if is_told else dict(group)
