"""The names by which people know tensors that a function reaches by itself."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from wengert import pytree
from wengert._core import Tensor
from wengert._guards import called, names_of, owners


def names_of_tensors(function: Any) -> dict[int, str]:
    """By the `id` of each tensor: `0.weight` of a module that is the function itself,
    `model.0.weight` of one that the function uses, `self.0.weight` of its method's object,
    `params['w']` of a container."""
    found: dict[int, str] = {}
    for owner in owners(function):
        prefix = "" if owner is function else "self"
        _add(found, prefix, owner)
    for place, name, value in names_of(function):
        _add(found, called(function, place, name), value)
    return found


def names_of_state(objects: Iterable[Any], found: dict[int, str]) -> None:
    """Adds names of what modules and optimizers hold and no name is known of: `Linear.weight`, and
    `model.0.weight.exp_avg` for what an optimizer remembers about a parameter."""
    kept = list(objects)
    for module in kept:
        if hasattr(module, "named_parameters"):
            _add(found, type(module).__name__, module)
    for optimizer in kept:
        if hasattr(optimizer, "param_groups"):
            for i, (p, state) in enumerate(optimizer.state.items()):
                of = found.get(id(p), f"{type(optimizer).__name__}.{i}")
                for key, x in state.items():
                    found.setdefault(id(x), f"{of}.{key}")


def _add(found: dict[int, str], prefix: str, value: Any) -> None:
    if hasattr(value, "named_parameters"):
        for name, x in [*value.named_parameters(), *value.named_buffers()]:
            found.setdefault(id(x), f"{prefix}.{name}" if prefix else name)
    elif isinstance(value, (Tensor, list, tuple, dict)):
        for path, x in pytree.flatten_with_paths(value)[0]:
            if isinstance(x, Tensor):
                found.setdefault(id(x), prefix + path)
