"""What eager control flow and transforms need not do again.

Eager control flow traces its functions to check them. What passed is known by a *mark* of the call:
the code of the functions, the types of the tensors they are given or reach, plain values. A mark
that misses a change costs a check, never a result.

Eager transforms trace to compute, so there nothing may be missed. From its second call on a
transformed function is captured, as `compile` does, if all that can change what it does is in sight
(`Sight`): its arguments, and variables that hold plain values, tensors, or modules and functions
of which the same is true.
"""

from __future__ import annotations

import functools
import math
import opcode
from collections.abc import Callable, Iterator
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any
from weakref import ref

from wengert import _core, pytree
from wengert._core import CaptureError, DType, Tensor, is_grad_enabled
from wengert._guards import globals_of

__all__ = ["Checks", "repeated"]

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


# Functions whose results may be kept.

_PURE = {
    *(abs, all, any, divmod, enumerate, isinstance, issubclass, len, map, max, min, pow, range),
    *(reversed, round, sorted, sum, zip, bool, dict, float, frozenset, int, list, set, slice, str),
    *(tuple, type, AssertionError, TypeError, ValueError),
}
"""The builtins that a function in sight may use."""

_WRITES = frozenset(
    opcode.opmap[name]
    for name in ("IMPORT_NAME", "STORE_GLOBAL", "DELETE_GLOBAL", "STORE_ATTR", "DELETE_ATTR")
    if name in opcode.opmap
)
"""Instructions by which code reaches or changes what is out of sight."""


class Sight:
    """All that can change what a function does, besides its arguments; `_Unknown` is raised where
    something else can."""

    def __init__(self, function: Any) -> None:
        self.tensors: list[Tensor] = []
        self._seen: dict[int, Any] = {}
        self._held: list[tuple[Any, Any, Any]] = []
        self._look(function)

    def is_same(self) -> bool:
        """Whether variables hold what they held."""
        return all(_content(home, name) is value for home, name, value in self._held)

    def wants_gradients(self) -> bool:
        """Whether a tensor in sight requires a gradient."""
        return any(x.requires_grad for x in self.tensors)

    def _look(self, x: Any) -> None:
        from wengert.capture import CompiledFunction
        from wengert.nn.module import Module

        if id(x) in self._seen or type(x) in _PLAIN:
            return
        self._seen[id(x)] = x
        if isinstance(x, Tensor):
            self.tensors.append(x)
        elif type(x) is tuple:
            for item in x:
                self._look(item)
        elif type(x) is FunctionType:
            self._look_into(x)
        elif isinstance(x, functools.partial):
            self._look((x.func, x.args, *x.keywords.values()))
        elif isinstance(x, CompiledFunction):
            self._look(x._function)
        elif isinstance(x, Module):
            self._look_at_module(x)
        elif not _is_ours(x):
            raise _Unknown

    def _look_into(self, f: FunctionType) -> None:
        if _is_ours(f):
            # What ours were made with does not change; functions of the user's may be among it.
            for cell in f.__closure__ or ():
                value = _content(cell, None)
                if callable(value) or isinstance(value, Tensor):
                    self._look(value)
            return
        if _writes(f.__code__):
            raise _Unknown
        for cell in f.__closure__ or ():
            self._hold(cell, None)
        builtins = f.__globals__.get("__builtins__", {})
        builtins = builtins if isinstance(builtins, dict) else vars(builtins)
        for name in globals_of(f.__code__):
            if name in f.__globals__:
                self._hold(f.__globals__, name)
            elif name in builtins and builtins[name] not in _PURE:
                raise _Unknown
        for value in (*(f.__defaults__ or ()), *(f.__kwdefaults__ or {}).values()):
            self._look(value)

    def _look_at_module(self, module: Any) -> None:
        """Plain attributes are looked at by the capture itself."""
        if not _is_ours(type(module)):
            for kind in type(module).__mro__:
                if _is_ours(kind):
                    break
                for name, value in vars(kind).items():
                    if type(value) is FunctionType and name != "__init__":
                        self._look_into(value)
        for value in vars(module).values():
            self._look(value)

    def _hold(self, home: Any, name: str | None) -> None:
        value = _content(home, name)
        if value is _EMPTY:
            raise _Unknown
        self._held.append((home, name, value))
        self._look(value)


_EMPTY = object()


def _content(home: Any, name: str | None) -> Any:
    """What a cell or a name among globals holds."""
    if name is not None:
        return home.get(name, _EMPTY)
    try:
        return home.cell_contents
    except ValueError:
        return _EMPTY


def _is_ours(x: Any) -> bool:
    """Whether a module, a class or a function is defined by this package, or by one whose functions
    give the same for the same arguments."""
    if isinstance(x, ModuleType):
        name = x.__name__
    elif isinstance(x, FunctionType):
        name = x.__globals__.get("__name__", "")
    elif isinstance(x, (type, BuiltinFunctionType)):
        name = x.__module__ or ""
    else:
        return False
    return name in ("wengert", math.__name__) or name.startswith("wengert.")


def _writes(code: CodeType) -> bool:
    """Whether code, or that of a function inside, imports or writes what is not its own."""
    used = set(code.co_code[::2])
    if used & _WRITES or (code.co_freevars and opcode.opmap["STORE_DEREF"] in used):
        return True
    return any(_writes(c) for c in code.co_consts if isinstance(c, CodeType))


TRACES = 16
"""The most traces of one transformed function; more kinds of calls are not kept."""

LOOKS = 8
"""How often it is captured anew because a variable changed; then that is given up."""


def repeated(function: Callable[..., Any], run: Callable[..., Any]) -> Callable[..., Any]:
    """`run`, which calls `function`; captured from its second call on where that is in sight and no
    gradient is wanted."""
    calls, looks = 0, 0
    sight: Sight | None = None
    captured: Any = None

    def look() -> None:
        nonlocal sight, captured, looks
        from wengert.capture import compile

        sight, captured, looks = None, None, looks + 1
        if looks > LOOKS:
            return
        try:
            sight, captured = Sight(function), compile(run, limit=TRACES)
        except _Unknown:
            looks = LOOKS + 1

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls, looks
        if looks > LOOKS or _core.is_tracing():
            return run(*args, **kwargs)
        calls += 1
        if calls == 1:
            return run(*args, **kwargs)
        if sight is None or not sight.is_same():
            look()
        if sight is None or captured.traces >= TRACES or not _is_plain(sight, args, kwargs):
            return run(*args, **kwargs)
        try:
            return captured(*args, **kwargs)
        except CaptureError:
            looks = LOOKS + 1
            return run(*args, **kwargs)

    return wrapped


def _is_plain(sight: Sight, args: Any, kwargs: Any) -> bool:
    """Whether a call is one that computes ordinary values, and nothing else."""
    records = is_grad_enabled()
    if records and sight.wants_gradients():
        return False
    for x in pytree.flatten((args, kwargs))[0]:
        if isinstance(x, Tensor):
            if (records and x.requires_grad) or _core._is_traced(x):
                return False
        elif type(x) not in _PLAIN:
            return False
    return True
