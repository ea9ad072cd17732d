"""Checks of arguments that functions of Python share."""

from __future__ import annotations

from typing import Any, TypeVar, cast

from wengert._core import Tensor
from wengert.nn.module import Module, compiled_module

M = TypeVar("M")


def a_module(op: str, x: M) -> M:
    """`x`, which is a module, compiled or not; raises TypeError for anything else."""
    if not isinstance(x, Module) and compiled_module(x) is None:
        raise TypeError(f"{op}: got {type(x).__name__}, wanted nn.Module")
    return x


def a_tensor(op: str, name: str, x: Any) -> Tensor:
    """`x`, which is a tensor; raises TypeError for anything else."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{op}: {name} is {type(x).__name__}, wanted a tensor")
    return cast(Tensor, x)
