"""A step of an optimizer: all its updates or none, as one program where it can be.

`optim` has the optimizers and their formulas.
"""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from wengert import _core, _touched
from wengert._core import Tensor

if TYPE_CHECKING:
    from wengert.optim import Optimizer


class Group(dict[str, Any]):
    """Parameters and their hyperparameters: a dict that says when it changes, so that captured
    functions see it."""

    __slots__ = ()

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
    optimizer: Optimizer, work: list[Work], runtime: Callable[[Group], dict[str, Any]]
) -> None:
    """Update parameters one after another, with the hyperparameters that `runtime` gives."""
    groups: dict[int, Group] = {}
    for p, state, group in work:
        now = groups.get(id(group))
        if now is None:
            now = groups[id(group)] = Group(runtime(group))
        assert p.grad is not None
        optimizer.update(p, p.grad.detach(), state, now)


def update_or_restore(optimizer: Optimizer, work: list[Work]) -> None:
    """The same; where an update fails all values are what they were. They stay in memory until the
    last update is done, so nothing is written in place."""
    before = [(x, x.detach()) for p, state, _ in work for x in (p, *state.values())]
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


_programs: weakref.WeakKeyDictionary[Optimizer, list[Program]] = weakref.WeakKeyDictionary()


def programs_of(optimizer: Optimizer) -> list[Program]:
    """The programs of an optimizer. They are let go when it is, and are no attributes of it."""
    return _programs.setdefault(optimizer, [])


def _told(trace: Any, group: Group) -> dict[str, Any]:
    """A group whose learning rate is a number that is given at each run."""
    is_told = isinstance(dict.get(group, "lr"), float)
    return {**group, "lr": trace.item(group, "lr")} if is_told else dict(group)
