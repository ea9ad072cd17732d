"""What a trace depends on besides its arguments: variables of the function's closure, globals it
names, attributes of modules, hyperparameters of optimizers.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType
from typing import Any, Protocol

from wengert import _touched
from wengert._changes import is_plain, same
from wengert._core import CaptureError, Tensor

__all__ = [
    "Guard",
    "Names",
    "called",
    "changed_state",
    "describe",
    "names_of",
    "owners",
    "refuse_rebound",
    "stateful",
    "take_back",
]

Names = list[tuple[Any, str | None, Any]]
"""Cells of a closure (or the globals), names in these, values."""


class Traced(Protocol):
    """What is known of a trace."""

    names: Names
    guard: Guard
    executable: Any


def describe(x: Any) -> str:
    if isinstance(x, Tensor):
        return f"{x.dtype} {tuple(x.shape)}"
    return f"{type(x).__name__} {x!r}"


def names_of(function: Any) -> Iterator[tuple[Any, str | None, Any]]:
    """The variables of a function's closure, and the globals it names, with their values: the cell
    (or the globals), the name, the value."""
    function = _plain_function(function)
    if function is None:
        return
    for cell in function.__closure__ or ():
        try:
            yield cell, None, cell.cell_contents
        except ValueError:
            continue
    for name in dict.fromkeys(_globals(function.__code__)):
        if name in function.__globals__:
            yield function.__globals__, name, function.__globals__[name]


def _plain_function(function: Any) -> FunctionType | None:
    """The function with code that a callable stands for."""
    from wengert.nn.module import Module

    while isinstance(function, functools.partial) or hasattr(function, "__wrapped__"):
        function = getattr(function, "__wrapped__", None) or function.func
    if isinstance(function, Module):
        function = function.forward
    elif not hasattr(function, "__code__") and not hasattr(function, "__func__"):
        function = type(function).__call__
    function = getattr(function, "__func__", function)
    return function if isinstance(function, FunctionType) else None


def owners(function: Any) -> Iterator[Any]:
    """The objects that a callable brings along: itself, that of a method, arguments bound to it."""
    yield function
    if isinstance(function, functools.partial):
        yield from function.args
        yield from function.keywords.values()
        yield from owners(function.func)
    elif getattr(function, "__self__", None) is not None:
        yield function.__self__


def _rebound(variables: Names) -> list[str]:
    """The variables that were bound to other tensors since then, which are bound back."""
    found = []
    for home, key, old in variables:
        now = home.cell_contents if key is None else home.get(key)
        if now is old or not isinstance(now, Tensor):
            continue
        if key is None:
            home.cell_contents = old
        else:
            home[key] = old
        found.append(key or "of the closure")
    return found


def refuse_rebound(name: str, variables: Names) -> None:
    """What a variable is bound to in a trace would have no value afterwards."""
    found = _rebound(variables)
    if found:
        raise CaptureError(
            f"{name}: while it is captured, the variable {found[0]} is bound to another tensor; "
            "update the tensor in place (v[...] = y, v += y), or return the new one"
        )


def take_back(record: _touched.Record, variables: Names) -> None:
    """Leave the state of Python as it was before a capture."""
    for entries, key in record.created:
        entries.pop(key, None)
    for slot, old in record.assigned.values():
        slot.put(old)
    _rebound(variables)


def _globals(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _globals(constant)


def stateful(values: Iterable[Any]) -> list[Any]:
    """The modules and optimizers among values, with all modules below; each once."""
    from wengert.nn.module import Module
    from wengert.optim import Optimizer

    found: dict[int, Any] = {}
    stack = list(values)
    while stack:
        x = stack.pop()
        if isinstance(x, (list, tuple)):
            stack.extend(x)
        elif isinstance(x, dict):
            stack.extend(x.values())
        elif isinstance(x, Module):
            found.update((id(m), m) for m in x.modules())
        elif isinstance(x, Optimizer):
            found[id(x)] = x
    return list(found.values())


def called(function: Any, home: Any, key: str | None) -> str:
    """A variable in messages: a global, or one of the closure."""
    if key is not None:
        return key
    function = _plain_function(function)
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return next((name for name, cell in cells if cell is home), "closure")


def changed_state(function: Any, trace: Traced, tensors: list[Tensor]) -> str | None:
    """What a trace depends on besides the arguments that is not as it was."""
    for home, key, old in trace.names:
        now = _touched.Slot(home, key).get()
        if not same(old, now):
            return f"{called(function, home, key)}: {_short(old)} became {_short(now)}"
    return trace.guard.difference() or trace.executable.refusal(tensors)


def _short(x: Any) -> str:
    if isinstance(x, Tensor):
        return f"a tensor {describe(x)}"
    if x is _touched.MISSING:
        return "nothing"
    text = repr(x) if is_plain(x) else f"a {type(x).__name__}"
    return text if len(text) <= 60 else text[:57] + "..."


class Guard:
    """Whether modules and optimizers have the plain values they had, but for attributes that are
    `free`."""

    def __init__(self, objects: list[Any], free: set[tuple[int, Any]]) -> None:
        self.free = free
        self.kept = [(x, self._snapshot(x)) for x in objects]

    def __bool__(self) -> bool:
        return bool(self.kept)

    def __call__(self) -> bool:
        return all(_alike(snapshot, self._snapshot(x)) for x, snapshot in self.kept)

    def difference(self) -> str | None:
        """What changed first, and how."""
        for x, snapshot in self.kept:
            old, new = dict(snapshot), dict(self._snapshot(x))
            for key in [*old, *new]:
                a, b = old.get(key, _touched.MISSING), new.get(key, _touched.MISSING)
                if not same(a, b):
                    return f"{type(x).__name__}.{key}: {_short(a)} became {_short(b)}"
        return None

    def _snapshot(self, x: Any) -> list[tuple[Any, Any]]:
        """The attributes of a module, or the hyperparameters and the state of an optimizer."""
        attributes = [
            (k, v)
            for k, v in x.__dict__.items()
            if k not in ("_version", "training") and (id(x), k) not in self.free
        ]
        groups = getattr(x, "param_groups", None)
        if groups is None:
            attributes = [item for k, v in attributes for item in _spread(k, v, 2)]
            return [("training", x.training), *attributes]
        # A learning rate is a number given at each call.
        attributes += [
            (f"param_groups[{i}][{k!r}]", v)
            for i, group in enumerate(groups)
            for k, v in group.items()
            if k != "lr" or not isinstance(v, float)
        ]
        return attributes


_MANY = 256
"""Larger containers in modules are told by which object they are, not by what is in them."""


def _spread(name: str, x: Any, depth: int) -> Iterator[tuple[str, Any]]:
    """An attribute, and what is in it where it is a container."""
    if not depth or type(x) not in (list, dict) or len(x) > _MANY:
        yield name, x
        return
    yield name, type(x).__name__
    for key, value in x.items() if isinstance(x, dict) else enumerate(x):
        yield from _spread(f"{name}[{key!r}]", value, depth - 1)


def _alike(old: list[tuple[Any, Any]], new: list[tuple[Any, Any]]) -> bool:
    return len(old) == len(new) and all(
        k == m and same(v, w) for (k, v), (m, w) in zip(old, new, strict=True)
    )
