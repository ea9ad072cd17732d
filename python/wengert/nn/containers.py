"""Modules made of modules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, overload

from wengert.nn.module import Module, compiled_module

__all__ = ["ModuleDict", "ModuleList", "Sequential"]


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
    if not isinstance(x, Module) and compiled_module(x) is None:
        raise TypeError(f"{type(owner).__name__}: got {type(x).__name__}, wanted nn.Module")
    return x


class ModuleList(_Many):
    """A list of modules.

    >>> len(nn.ModuleList([nn.Identity(), nn.Identity()]))
    2
    """

    _entries: list[Module]

    def __init__(self, modules: Iterable[Module] = ()) -> None:
        self._entries = [_check(self, m) for m in modules]

    @overload
    def __getitem__(self, i: int) -> Module: ...
    @overload
    def __getitem__(self, i: slice) -> ModuleList: ...
    def __getitem__(self, i: int | slice) -> Module | ModuleList:
        return type(self)(self._entries[i]) if isinstance(i, slice) else self._entries[i]

    def __setitem__(self, i: int, module: Module) -> None:
        self._entries[i] = _check(self, module)
        self._changed()

    def __iter__(self) -> Iterator[Module]:
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
    def __getitem__(self, i: int) -> Module: ...
    @overload
    def __getitem__(self, i: slice) -> Sequential: ...
    def __getitem__(self, i: int | slice) -> Module | Sequential:
        return Sequential(*self._entries[i]) if isinstance(i, slice) else self._entries[i]

    def forward(self, x: Any) -> Any:
        """Call the modules in order."""
        for module in self._entries:
            x = module(x)
        return x


class ModuleDict(_Many):
    """A dictionary of modules, in the order in which they were put in."""

    _entries: dict[str, Module]

    def __init__(self, modules: Mapping[str, Module] | None = None) -> None:
        modules = {} if modules is None else modules
        if not isinstance(modules, (Mapping, ModuleDict)):
            kind = type(modules).__name__
            raise TypeError(f"ModuleDict: expected names with modules, got {kind}")
        self._entries = {k: _check(self, m) for k, m in modules.items()}

    def __getitem__(self, key: str) -> Module:
        return self._entries[key]

    def __setitem__(self, key: str, module: Module) -> None:
        self._entries[key] = _check(self, module)
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

    def values(self) -> Iterable[Module]:
        """The modules."""
        return self._entries.values()

    def items(self) -> Iterable[tuple[str, Module]]:
        """Names and modules."""
        return self._entries.items()
