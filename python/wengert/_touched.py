"""What a running capture depends on: the modules called and the optimizers stepped in it."""

from __future__ import annotations

from typing import Any

active: list[Any] | None = None
"""The objects touched so far, while a function is captured."""

trace: Any = None
"""The trace of the function that is captured."""

created: list[tuple[dict[Any, Any], Any]] = []
"""Entries of dicts that were made while tracing: a trace that fails takes them back."""

after: list[Any] = []
"""Schedules that go on to their next step after each call."""


def runtime(group: dict[str, Any]) -> dict[str, Any]:
    """A group of parameters whose learning rate is a number given at each call."""
    if not isinstance(group.get("lr"), float):
        return group
    return {**group, "lr": trace.item(group, "lr")}
