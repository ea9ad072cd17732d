"""What a running capture depends on and what it assigns: the modules called and the optimizers
stepped in it, their attributes, hyperparameters.
"""

from __future__ import annotations

import threading
from typing import Any

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
        self.numbers: dict[int, tuple[Any, Any]] = {}
        """Groups whose learning rate was read, with the number that stands for it."""

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
