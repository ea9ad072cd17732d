"""Modules as functions of their state: with other values, and many of one form at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from wengert._core import Tensor, asarray, no_grad
from wengert._core import stack as stacked
from wengert.nn import module as _module
from wengert.nn._wanted import a_module
from wengert.nn.module import Module

__all__ = ["functional_call", "stack"]

M = TypeVar("M", bound=Module)


def functional_call(module: Module, params: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
    """What `module(*args, **kwargs)` gives with other values in the place of some of its state.

    `params` has tensors by the names of `named_parameters` and `named_buffers`; gradients flow to
    them. The module stays as it is, and what is not named is its own. Shapes may differ from the
    module's. Raises ValueError for names that the module has not.

    >>> net = nn.Linear(2, 1, bias=False)
    >>> nn.functional_call(net, {"weight": wg.tensor([[1.0, 2.0]])}, wg.ones(2)).tolist()
    [3.0]
    """
    own = dict(_module._tensors(a_module("functional_call", module), "", ()))
    if not isinstance(params, Mapping):
        kind = type(params).__name__
        raise TypeError(f"functional_call: params is {kind}, wanted names with tensors")
    unknown = [name for name in params if name not in own]
    if unknown:
        name = type(module).__qualname__
        raise ValueError(f"functional_call: {name} has no state of the name {', '.join(unknown)}")
    given = {id(own[name]): value for name, value in params.items()}
    leaves, shell = _module._flatten(module)
    values = [_tensor(given[id(t)]) if id(t) in given else t for t in leaves]
    return _module._unflatten(shell, values)(*args, **kwargs)


def _tensor(x: Any) -> Tensor:
    return x if isinstance(x, Tensor) else asarray(x)


def stack(modules: Sequence[M]) -> M:
    """Modules of one structure as one module, whose state has them along a new first axis.

    The state is copied; parameters stay parameters, so that an optimizer takes those of the whole.
    `vmap` calls them all: `wg.vmap(lambda m, x: m(x), in_axes=(0, None))(stacked, x)`. What is not
    state is the first module's. Raises ValueError where classes, names, shapes or dtypes differ.

    >>> nn.stack([nn.Linear(2, 3) for _ in range(4)]).weight.shape
    (4, 3, 2)
    """
    modules = [a_module("stack", m) for m in modules]
    if not modules:
        raise ValueError("stack: expected at least one module, got none")
    first = modules[0]
    forms = [(type(m), [(n, type(c)) for n, c in m.named_modules()]) for m in modules]
    states = [_module._flatten(m) for m in modules]
    names = states[0][1].names
    for form, (values, shell) in zip(forms, states, strict=True):
        if form != forms[0] or shell.names != names:
            raise ValueError(f"stack: modules differ in structure: {first!r}\nand {shell.module!r}")
        for name, a, b in zip(names, states[0][0], values, strict=True):
            if tuple(a.shape) != tuple(b.shape) or a.dtype != b.dtype:
                raise ValueError(
                    f"stack: modules differ in {name}: {a.dtype} {tuple(a.shape)} and {b.dtype} "
                    f"{tuple(b.shape)}"
                )
    with no_grad():
        columns = zip(*(values for values, _ in states), strict=True)
        whole = [own[0]._like(stacked([t.detach() for t in own])) for own in columns]  # type: ignore[attr-defined]
    twin = _module._unflatten(states[0][1], whole)
    del twin.__dict__["_origin"]  # a module of its own
    return twin  # type: ignore[return-value]
