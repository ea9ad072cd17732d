"""Modules made of modules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Generic, TypeVar, overload

from wengert._core import Tensor
from wengert.nn._wanted import a_module, a_tensor
from wengert.nn.module import Module, Parameter

__all__ = ["ModuleDict", "ModuleList", "ParameterDict", "ParameterList", "Sequential"]


T = TypeVar("T", bound=Any)


class _Many(Module):
    """A module whose entries are named in the state without a word before them."""

    _entries: Any

    def _items(self) -> Iterator[tuple[str, Any]]:
        for name, x in super()._items():
            if name != "_entries":
                yield name, x
            else:
                pairs = x.items() if isinstance(x, dict) else enumerate(x)
                yield from ((str(key), entry) for key, entry in pairs)

    def __len__(self) -> int:
        return len(self._entries)


def _check(owner: Module, x: Any) -> Module:
    return a_module(type(owner).__name__, x)


class ModuleList(_Many):
    """A list of modules.

    >>> len(nn.ModuleList([nn.Identity(), nn.Identity()]))
    2
    """

    _entries: list[Module]

    def __init__(self, modules: Iterable[Module] = ()) -> None:
        self._entries = [_check(self, m) for m in modules]

    @overload
    def __getitem__(self, i: int) -> Any: ...
    @overload
    def __getitem__(self, i: slice) -> ModuleList: ...
    def __getitem__(self, i: int | slice) -> Module | ModuleList:
        return type(self)(self._entries[i]) if isinstance(i, slice) else self._entries[i]

    def __setitem__(self, i: int, module: Module) -> None:
        self._entries[i] = _check(self, module)
        self._changed()

    def __iter__(self) -> Iterator[Any]:
        return iter(self._entries)

    def append(self, module: Module) -> None:
        """Add a module at the end."""
        self._entries.append(_check(self, module))
        self._changed()

    def extend(self, modules: Iterable[Module]) -> None:
        """Add modules at the end."""
        self._entries.extend([_check(self, m) for m in modules])
        self._changed()


class Sequential(ModuleList):
    """Modules called one after another, each on what the one before returned.

    >>> nn.Sequential(nn.Flatten(), nn.Linear(4, 3))(wg.ones((2, 2, 2))).shape
    (2, 3)
    """

    def __init__(self, *modules: Module) -> None:
        super().__init__(modules)

    @overload
    def __getitem__(self, i: int) -> Any: ...
    @overload
    def __getitem__(self, i: slice) -> Sequential: ...
    def __getitem__(self, i: int | slice) -> Module | Sequential:
        return Sequential(*self._entries[i]) if isinstance(i, slice) else self._entries[i]

    def forward(self, x: Any) -> Any:
        """Call the modules in order."""
        for module in self._entries:
            x = module(x)
        return x


class _Named(_Many, Generic[T]):
    """A dictionary of what a kind takes."""

    _entries: dict[str, T]

    def _entry(self, x: Any) -> T:
        """What is put in for `x`; raises TypeError for what cannot be."""
        raise NotImplementedError

    def _put(self, given: Any, what: str) -> None:
        """Begin with these entries."""
        given = {} if given is None else given
        if not isinstance(given, (Mapping, _Named)):
            name, kind = type(self).__name__, type(given).__name__
            raise TypeError(f"{name}: expected names with {what}, got {kind}")
        self._entries = {k: self._entry(x) for k, x in given.items()}

    def __getitem__(self, key: str) -> T:
        return self._entries[key]

    def __setitem__(self, key: str, x: Any) -> None:
        self._entries[key] = self._entry(x)
        self._changed()

    def __delitem__(self, key: str) -> None:
        del self._entries[key]
        self._changed()

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __contains__(self, key: str) -> bool:
        return key in self._entries

    def keys(self) -> Iterable[str]:
        """The names."""
        return self._entries.keys()

    def values(self) -> Iterable[T]:
        """What the names stand for."""
        return self._entries.values()

    def items(self) -> Iterable[tuple[str, T]]:
        """Names and what they stand for."""
        return self._entries.items()


class ModuleDict(_Named[Module]):
    """A dictionary of modules, in the order in which they were put in."""

    def __init__(self, modules: Mapping[str, Module] | None = None) -> None:
        self._put(modules, "modules")

    def _entry(self, x: Any) -> Module:
        return _check(self, x)


def _parameter(owner: Module, x: Any) -> Parameter:
    """A tensor as a parameter; what is one as it is."""
    x = a_tensor(type(owner).__name__, "a parameter", x)
    return x if isinstance(x, Parameter) else Parameter(x)


class ParameterList(_Many):
    """A list of parameters; other tensors become parameters.

    >>> list(nn.ParameterList([wg.ones(2), wg.zeros(3)]).state_dict())
    ['0', '1']
    """

    _entries: list[Parameter]

    def __init__(self, parameters: Iterable[Tensor] = ()) -> None:
        self._entries = [_parameter(self, p) for p in parameters]

    def __getitem__(self, i: int) -> Parameter:
        return self._entries[i]

    def __setitem__(self, i: int, parameter: Tensor) -> None:
        self._entries[i] = _parameter(self, parameter)
        self._changed()

    def __iter__(self) -> Iterator[Parameter]:
        return iter(self._entries)

    def append(self, parameter: Tensor) -> None:
        """Add a parameter at the end."""
        self._entries.append(_parameter(self, parameter))
        self._changed()

    def extend(self, parameters: Iterable[Tensor]) -> None:
        """Add parameters at the end."""
        self._entries.extend([_parameter(self, p) for p in parameters])
        self._changed()


class ParameterDict(_Named[Parameter]):
    """A dictionary of parameters; other tensors become parameters."""

    def __init__(self, parameters: Mapping[str, Tensor] | None = None) -> None:
        self._put(parameters, "parameters")

    def _entry(self, x: Any) -> Parameter:
        return _parameter(self, x)
