"""Backward hooks of modules: what watches the cotangents that pass through a call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from wengert import pytree
from wengert._core import Tensor, is_grad_enabled, isdtype
from wengert.autodiff import Function

__all__ = ["Watched"]

Hook = Callable[[Any, tuple, tuple], Any]


class Watched:
    """One call of a module whose backward hooks are called when its cotangents are known.

    Inputs and outputs pass through functions that change nothing: on the way back that of the
    outputs sees their cotangents, then that of the inputs sees the inputs'.
    """

    def __init__(self, module: Any, hooks: tuple[Hook, ...], args: tuple[Any, ...]) -> None:
        self.module, self.hooks = module, hooks
        self.found: tuple[Any, ...] = ()
        self.count = len(args)
        floating = [_is_floating(a) for a in args]
        self.places = [i for i, a in enumerate(args) if floating[i] and a.requires_grad]
        self.reaches = bool(self.places) and is_grad_enabled()

    def inputs(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments, watched."""
        if not self.reaches:
            return args
        seen = _Inputs.apply(self, *(args[i] for i in self.places))
        new = list(args)
        for i, x in zip(self.places, seen, strict=True):
            new[i] = x
        return tuple(new)

    def outputs(self, y: Any) -> Any:
        """The results, watched."""
        leaves, structure = pytree.flatten(y)
        places = [i for i, x in enumerate(leaves) if _is_floating(x) and x.requires_grad]
        if not places or not is_grad_enabled():
            return y
        seen = _Outputs.apply(self, *(leaves[i] for i in places))
        for i, x in zip(places, seen, strict=True):
            leaves[i] = x
        return pytree.unflatten(structure, leaves)

    def call(self, cotangents: tuple[Any, ...]) -> tuple[Any, ...]:
        """Call the hooks with the cotangents of the watched inputs; those that are to go on."""
        whole: list[Any] = [None] * self.count
        for i, g in zip(self.places, cotangents, strict=True):
            whole[i] = g
        given = tuple(whole)
        for hook in self.hooks:
            changed = hook(self.module, given, self.found)
            if changed is not None:
                given = changed if isinstance(changed, tuple) else (changed,)
                if len(given) != self.count:
                    name = type(self.module).__name__
                    raise ValueError(
                        f"{name}: a backward hook returned {len(given)} gradients for "
                        f"{self.count} arguments"
                    )
        return tuple(given[i] for i in self.places)


class _Inputs(Function):
    """The arguments of a call."""

    @staticmethod
    def forward(cx: Any, call: Watched, *xs: Tensor) -> tuple[Tensor, ...]:
        cx.call = call
        return xs

    @staticmethod
    def backward(cx: Any, *cotangents: Any) -> tuple[Any, ...]:
        return (None, *cx.call.call(cotangents))


class _Outputs(Function):
    """The results of a call."""

    @staticmethod
    def forward(cx: Any, call: Watched, *ys: Tensor) -> tuple[Tensor, ...]:
        cx.call = call
        return ys

    @staticmethod
    def backward(cx: Any, *cotangents: Any) -> tuple[Any, ...]:
        cx.call.found = cotangents
        if not cx.call.reaches:
            cx.call.call(())
        return (None, *cotangents)


def _is_floating(x: Any) -> bool:
    return isinstance(x, Tensor) and isdtype(x.dtype, "real floating")
