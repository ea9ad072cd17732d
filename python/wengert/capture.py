"""`compile`: functions traced once, then run as one plan."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from wengert import _core, pytree
from wengert._core import Tensor, is_grad_enabled

__all__ = ["CompiledFunction", "compile"]


class _Variant:
    """One trace of a function: for which calls it holds, and what runs them."""

    def __init__(self, key: Any, executable: Any, rebuild: Callable[[list[Tensor]], Any]) -> None:
        self.key, self.executable, self.rebuild = key, executable, rebuild


class CompiledFunction:
    """A function that runs as one plan; made by `wengert.compile`."""

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.variants: list[_Variant] = []

    @property
    def traces(self) -> int:
        """How often the function was traced."""
        return len(self.variants)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if _core.is_tracing():
            return self.function(*args, **kwargs)
        leaves, structure = pytree.flatten((args, kwargs))
        tensors = [x for x in leaves if isinstance(x, Tensor)]
        key = (structure, is_grad_enabled(), tuple(map(_describe, leaves)))
        for variant in reversed(self.variants):
            if variant.key == key and variant.executable.mismatch(tensors) is None:
                return variant.rebuild(variant.executable(tensors))
        variant = self._trace(key, args, kwargs, tensors)
        self.variants.append(variant)
        return variant.rebuild(variant.executable(tensors))

    def _trace(self, key: Any, args: Any, kwargs: Any, tensors: list[Tensor]) -> _Variant:
        with _core.Trace() as trace:
            result = self.function(*args, **kwargs)
            leaves, structure = pytree.flatten(result)
            places = [i for i, x in enumerate(leaves) if isinstance(x, Tensor)]
            name = getattr(self.function, "__name__", "compiled")
            executable = trace.finish(name, [leaves[i] for i in places], tensors)
        constants = [None if isinstance(x, Tensor) else x for x in leaves]

        def rebuild(outputs: list[Tensor]) -> Any:
            values = list(constants)
            for i, y in zip(places, outputs, strict=True):
                values[i] = y
            return pytree.unflatten(structure, values)

        return _Variant(key, executable, rebuild)


def _describe(x: Any) -> Any:
    if isinstance(x, Tensor):
        return (Tensor, x.dtype, x.shape)
    return (type(x), x)


def compile(function: Callable[..., Any]) -> CompiledFunction:
    """`function`, traced once for each signature and run as one plan."""
    return CompiledFunction(function)
