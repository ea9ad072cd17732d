"""What a running capture depends on and what it assigns: the modules called and the optimizers
stepped in it, their attributes, hyperparameters.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from wengert import _core

MISSING: Any = object()
"""Stands for an attribute that is not there."""


class Slot:
    """Where a value stands: an attribute, an entry of a dict or list, a variable of a closure."""

    __slots__ = ("home", "key")

    def __init__(self, home: Any, key: Any) -> None:
        self.home, self.key = home, key

    def get(self) -> Any:
        """What stands there."""
        if isinstance(self.home, dict):
            return dict.get(self.home, self.key, MISSING)
        if isinstance(self.home, list):
            return self.home[self.key] if self.key < len(self.home) else MISSING
        if self.key is None:
            try:
                return self.home.cell_contents
            except ValueError:
                return MISSING
        return self.home.__dict__.get(self.key, MISSING)

    def put(self, value: Any) -> None:
        """Put a value there, as an assignment would."""
        if value is MISSING:
            if isinstance(self.home, dict):
                self.home.pop(self.key, None)
            elif self.key is None:
                del self.home.cell_contents
            elif self.key in self.home.__dict__:
                delattr(self.home, self.key)
        elif isinstance(self.home, dict):
            self.home[self.key] = value
        elif isinstance(self.home, list):
            self.home[self.key : self.key + 1] = [value]
        elif self.key is None:
            self.home.cell_contents = value
        else:
            setattr(self.home, self.key, value)


class Record:
    """What a capture came across."""

    def __init__(self, trace: Any) -> None:
        self.trace = trace
        self.active: list[Any] = []
        """The modules and optimizers, in order."""
        self.created: list[tuple[dict[Any, Any], Any]] = []
        """Entries of dicts that were made while tracing: a trace that fails takes them back."""
        self.after: list[Any] = []
        """Schedules that go on to their next step after each call."""
        self.assigned: dict[tuple[int, Any], tuple[Slot, Any]] = {}
        """What was assigned to, with the value before."""
        self.fresh: list[Any] = []
        """Modules that were made in the capture itself: their attributes are nobody else's."""
        self.unfinished: dict[int, str] = {}
        """What a capture must not end with, by who says so: what is wrong then."""
        self.numbers: dict[int, tuple[Any, Any]] = {}
        """Groups whose learning rate was read, with the number that stands for it."""
        self.running: list[Any] = []
        """The modules whose calls run now, outermost first."""
        self.names: dict[int, dict[int, str]] = {}
        """What the modules that a module calls are called there, by the `id` of both."""

        self.parameters: dict[int, str] = {}
        """What parameters are called, by their `id`."""

    def enter(self, module: Any) -> int:
        """Say that a module is called: what is traced until `leave` is of its scope. Gives what
        `leave` takes."""
        self.active.append(module)
        caller = self.running[-1] if self.running else None
        names = self.names.get(id(caller))
        if names is None:
            children = () if caller is None else caller.named_modules()
            names = self.names[id(caller)] = {id(x): name for name, x in children}
        name = names.get(id(module))
        if not name:  # one that its caller does not hold, or the caller itself
            name = type(module).__name__
            count = sum(known.split(" ")[0] == name for known in names.values())
            name = names[id(module)] = f"{name} {count + 1}" if count else name
        self.running.append(module)
        return _core._enter_module(name)

    def name_of(self, p: Any) -> str:
        """What a parameter is called in the modules that were called."""
        if not self.parameters:
            for module in self.active:
                named = getattr(module, "named_parameters", None)
                for name, x in () if named is None else named():
                    self.parameters.setdefault(id(x), name)
        return self.parameters.setdefault(id(p), f"parameter {len(self.parameters)}")

    def leave(self, before: int) -> None:
        """Say that the call of the innermost module has ended."""
        self.running.pop()
        _core._leave_module(before)

    def runtime(self, group: dict[str, Any]) -> dict[str, Any]:
        """A group of parameters whose learning rate is a number given at each call."""
        return {**group, "lr": self.rate(group)}

    def rate(self, group: dict[str, Any]) -> Any:
        """The learning rate of a group: a number given at each call, until one is assigned."""
        now = dict.get(group, "lr")
        if not isinstance(now, float) or (id(group), "lr") in self.assigned:
            return now
        if id(group) not in self.numbers:
            self.numbers[id(group)] = group, self.trace.item(group, "lr")
        return self.numbers[id(group)][1]


@contextmanager
def inside(name: str) -> Iterator[None]:
    """Put what is traced under a name, as a module's call does."""
    before = _core._enter_module(name)
    try:
        yield
    finally:
        _core._leave_module(before)


class _Here(threading.local):
    record: Record | None = None
    """The capture that runs on this thread."""


here = _Here()


def assigning(home: Any, key: Any) -> None:
    """Say that something is about to be assigned while a function is captured."""
    record = here.record
    if record is None or any(x is home for x in record.fresh):
        return
    slot = Slot(home, key)
    record.assigned.setdefault((id(home), key), (slot, slot.get()))


def made(x: Any) -> None:
    """Say that an object was made."""
    if here.record is not None:
        here.record.fresh.append(x)
