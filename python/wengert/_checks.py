"""Checks of control flow that need not be made again.

Eager control flow traces its functions to check them. What passed is known by a *mark* of the call:
the code of the functions, the types of the tensors they are given or reach, plain values. A mark
that misses a change costs a check, never a result: nothing is computed from what is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any
from weakref import ref

from wengert._core import DType, Tensor
from wengert._guards import globals_of

__all__ = ["Checks"]

_PLAIN = (bool, int, float, complex, str, bytes, type(None), DType)


class _Unknown(Exception):
    """A value about which nothing can be said."""


def _variables(function: FunctionType) -> Iterator[Any]:
    """What a function's variables outside and its defaults hold."""
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError as empty:
            raise _Unknown from empty
    found = function.__globals__
    yield from (found[name] for name in globals_of(function.__code__) if name in found)
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()


class Checks:
    """Calls that passed a check, by their marks; a bounded number of them."""

    LIMIT = 128

    def __init__(self) -> None:
        self._known: dict[Any, tuple[Any, list[Any]]] = {}

    def find(
        self, name: str, functions: Any, leaves: list[Any], structure: Any, make: Callable[[], Any]
    ) -> Any:
        """What `make` gave for a call with this mark, or gives now."""
        held: list[Any] = []
        try:
            marks = tuple(_mark(f, held, 0) for f in functions)
            key = (name, marks, tuple(_mark(x, held, 0) for x in leaves), structure)
            _look_through(structure)
        except _Unknown:
            return make()
        known = self._known.get(key)
        # A mark names objects by their addresses, which must not have been used again.
        if known is not None and all(a() is b() for a, b in zip(known[1], held, strict=True)):
            return known[0]
        result = make()
        while len(self._known) >= self.LIMIT:
            self._known.pop(next(iter(self._known)), None)
        self._known[key] = result, held
        return result


def _mark(x: Any, held: list[Any], depth: int) -> Any:
    """What a check needs to know of a value; objects known by their address are `held` weakly."""
    kind = type(x)
    if kind in _PLAIN:
        return kind, x
    if isinstance(x, Tensor):
        return x.dtype, tuple(x.shape)
    if depth > 8:
        raise _Unknown
    if kind is tuple:
        return tuple(_mark(item, held, depth + 1) for item in x)
    if kind is FunctionType:
        held.append(ref(x.__code__))
        marks = (_mark(v, held, depth + 1) for v in _variables(x) if v is not x)
        return id(x.__code__), *marks
    try:
        held.append(ref(x))
    except TypeError as error:
        raise _Unknown from error
    return id(x)


def _look_through(structure: Any) -> None:
    """Refuses structures that keep objects of the user's alive."""
    if structure.kind not in (None, type(None), list, tuple, dict):
        raise _Unknown
    for child in structure.children:
        _look_through(child)
