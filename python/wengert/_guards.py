"""What a trace depends on besides its arguments: variables of the function's closure, globals it
names, attributes of modules, hyperparameters of optimizers.
"""

from __future__ import annotations

import dis
import functools
import sys
from collections.abc import Iterable, Iterator
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple, Protocol

from wengert import _core, _touched, pytree
from wengert._changes import is_plain, same
from wengert._core import CaptureError, Tensor

__all__ = [
    "Guard",
    "Names",
    "Variable",
    "called",
    "changed_state",
    "describe",
    "globals_of",
    "named",
    "names_of",
    "outside",
    "owners",
    "refuse_rebound",
    "refuse_training",
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


def _stateful_classes() -> tuple[Any, Any]:
    """The classes whose objects say themselves what is assigned to them: `nn.Module` and
    `Optimizer`, both built on this module's callers. Of a module that nobody imported there are no
    objects, and none is imported in the middle of a call: the interpreter drops a Ctrl-C that
    arrives in its own callbacks while it imports."""
    from wengert.nn.module import Module

    return Module, getattr(sys.modules.get("wengert.optim"), "Optimizer", ())


def describe(x: Any) -> str:
    if isinstance(x, Tensor):
        return f"{x.dtype} {tuple(x.shape)}"
    return f"{type(x).__name__} {x!r}" if is_plain(x) else f"a {type(x).__name__}"


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
    for name in globals_of(function.__code__):
        if name in function.__globals__:
            yield function.__globals__, name, function.__globals__[name]


def _plain_function(function: Any) -> FunctionType | None:
    """The function with code that a callable stands for."""
    if type(function) is FunctionType and not hasattr(function, "__wrapped__"):
        return function
    Module, _ = _stateful_classes()
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


class Variable(NamedTuple):
    """Something outside a function, as it was before a capture."""

    slot: _touched.Slot
    called: str
    old: Any
    is_entry: bool
    """Whether it is an attribute or item of an object, not a variable."""


def outside(function: Any) -> list[Variable]:
    """What a function may bind outside itself: variables of its closure and globals, and the plain
    values among the attributes and items of the objects these hold, or that it is bound to."""
    names = list(names_of(function))
    found = [
        Variable(_touched.Slot(home, key), called(function, home, key), old, False)
        for home, key, old in names
    ]
    plain = _plain_function(function)
    known = {key for _, key, _ in names}
    if plain is not None:
        for name in globals_of(plain.__code__, _STORES):
            if name not in known:
                slot = _touched.Slot(plain.__globals__, name)
                found.append(Variable(slot, name, slot.get(), False))
    holders = [(called(function, home, key), x) for home, key, x in names]
    holders += [(f"{type(x).__name__}", x) for x in owners(function)]
    seen: set[int] = set()
    for name, x in holders:
        if id(x) not in seen:
            seen.add(id(x))
            found += _entries(name, x)
    return found


def _entries(name: str, x: Any) -> Iterator[Variable]:
    """The plain values among the attributes and items of an object, but for private attributes,
    which are the business of its class (an event's flag, which another thread sets). Modules and
    optimizers say themselves what is assigned to them."""
    Module, Optimizer = _stateful_classes()
    code = (type, FunctionType, BuiltinFunctionType, MethodType, functools.partial)
    if isinstance(x, (Module, Optimizer, Tensor, _core.Dispatcher, *code)):
        return
    if isinstance(x, ModuleType) and x.__name__.partition(".")[0] == "wengert":
        return
    if isinstance(x, (dict, list)):
        items: Any = x.items() if isinstance(x, dict) else enumerate(x)
        items = [(k, v) for k, v in items if is_plain(k)]
        text = "{}[{!r}]"
    else:
        attributes = getattr(x, "__dict__", {}).items()
        items = [(k, v) for k, v in attributes if not k.startswith("_")]
        text = "{}.{}"
    for key, value in items:
        if value is not None and is_plain(value):
            where = text.format(name, key)
            yield Variable(_touched.Slot(x, key), where, value, True)


def _rebound(variables: list[Variable]) -> list[tuple[Variable, Any]]:
    """What is bound to something else since then, with that; all are bound back."""
    found = []
    for variable in variables:
        now = variable.slot.get()
        if same(variable.old, now):
            continue
        if variable.is_entry:
            silent = now is _touched.MISSING or is_plain(now)
        else:
            silent = not _fills(variable.old, now)
        if silent:
            found.append((variable, now))
    for variable, _ in found:
        variable.slot.put(variable.old)
    return found


def _fills(old: Any, now: Any) -> bool:
    """Whether an empty variable was given an object, as when one is made when first needed."""
    if (old is not None and old is not _touched.MISSING) or is_plain(now):
        return False
    traced = (Tensor, _core.Number, _core.Dim)
    return not any(isinstance(x, traced) for x in pytree.flatten(now)[0])


def refuse_rebound(name: str, variables: list[Variable]) -> None:
    """What is bound outside a function in a trace would be bound when it is traced, and never
    again: a tensor would have no value, and a number would stay."""
    found = _rebound(variables)
    if not found:
        return
    variable, now = found[0]
    if isinstance(now, Tensor):
        raise CaptureError(
            f"{name}: while it is captured, the variable {variable.called} is bound to another "
            "tensor; update the tensor in place (v[...] = y, v += y), or return the new one"
        )
    raise CaptureError(
        f"{name}: while it is captured, {variable.called} is changed, which later calls would not "
        f"do: {_short(variable.old)} became {_short(now)}; pass it as an argument and return the "
        "new value, or keep it in a tensor that is updated in place"
    )


def take_back(record: _touched.Record, variables: list[Variable]) -> None:
    """Leave the state of Python as it was before a capture."""
    for entries, key in record.created:
        entries.pop(key, None)
    for slot, old in record.assigned.values():
        slot.put(old)
    _rebound(variables)


def refuse_training(name: str, modules: Iterable[Any]) -> None:
    """A frozen function is for evaluation: refuse modules in training mode whose code asks for the
    mode."""
    found = {id(m): type(m).__name__ for m in modules if m.training and _asks_mode(type(m))}
    if not found:
        return
    first, *others = found.values()
    more = f" (and {len(others)} more modules)" if others else ""
    raise CaptureError(
        f"{name}: it is frozen, and {first}{more} is in training mode; call eval() on the model "
        "before, or compile without freeze"
    )


def _asks_mode(kind: type) -> bool:
    """Whether methods of a class of modules, or of its bases below `Module`, read `training`."""
    Module, _ = _stateful_classes()
    own = [base for base in kind.__mro__ if base not in Module.__mro__]
    members = [x for base in own for x in vars(base).values()]
    functions = [getattr(x, "fget", None) or getattr(x, "__func__", x) for x in members]
    return any(_names(f.__code__, "training") for f in functions if isinstance(f, FunctionType))


def _names(code: CodeType, name: str) -> bool:
    """Whether code, or that of functions inside, names an attribute."""
    inner = (x for x in code.co_consts if isinstance(x, CodeType))
    return name in code.co_names or any(_names(x, name) for x in inner)


def named(x: Tensor, modules: Iterable[Any]) -> str:
    """A tensor in messages: by its module where it belongs to one of these."""
    for module in modules:
        for key, value in module.__dict__.items():
            if value is x:
                return f"{type(module).__name__}.{key}"
    return f"a tensor outside, {describe(x)}"


_LOADS = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})
_STORES = frozenset({"STORE_GLOBAL", "DELETE_GLOBAL"})


@functools.lru_cache(1024)
def globals_of(code: CodeType, kinds: frozenset[str] = _LOADS) -> tuple[str, ...]:
    """The names that code, with that of functions inside, loads as globals (or stores); attributes
    and names of its own are none."""
    found = [i.argval for i in dis.get_instructions(code) if i.opname in kinds]
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found += globals_of(constant, kinds)
    return tuple(dict.fromkeys(found))


def stateful(values: Iterable[Any]) -> list[Any]:
    """The modules and optimizers among values, with all modules below; each once."""
    Module, Optimizer = _stateful_classes()
    found: dict[int, Any] = {}
    seen: set[int] = set()  # a container may contain itself
    stack = list(values)
    while stack:
        x = stack.pop()
        if isinstance(x, (list, tuple, dict)):
            if id(x) not in seen:
                seen.add(id(x))
                stack.extend(x.values() if isinstance(x, dict) else x)
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
