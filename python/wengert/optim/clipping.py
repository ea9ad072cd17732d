"""Clipping of gradients."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from wengert._core import Tensor, no_grad, sqrt, stack, zeros
from wengert._rows import RowSparse


@no_grad()
def clip_grad_norm(params: Tensor | Iterable[Tensor], max_norm: float) -> Tensor:
    """Scale all gradients together so that their Euclidean norm is at most `max_norm`.

    Returns the norm before scaling, a scalar tensor. A norm that is not finite makes the
    gradients NaN, as their sum is; check the returned norm to skip such a step.
    """
    params = [p for p in _tensors("clip_grad_norm", params) if p.grad is not None]
    if not params:
        return zeros(())
    grads = [_coalesced(p) for p in params]
    parts = [g.values if isinstance(g, RowSparse) else g for g in grads]
    norm = sqrt(stack([(g * g).sum() for g in parts]).sum())
    scale = (max_norm / norm).clip(max=1.0)
    for p, g in zip(params, grads, strict=True):
        if isinstance(g, RowSparse):
            p.grad = g * scale  # type: ignore[assignment]
        else:
            g *= scale.astype(g.dtype)
    return norm


@no_grad()
def clip_grad_value(params: Tensor | Iterable[Tensor], max_value: float) -> None:
    """Clip every element of every gradient to [−max_value, max_value]."""
    for p in _tensors("clip_grad_value", params):
        if p.grad is None:
            continue
        g = _coalesced(p)
        if isinstance(g, RowSparse):
            p.grad = g._with(g.values.clip(-max_value, max_value))  # type: ignore[assignment]
        else:
            g.assign(g.clip(-max_value, max_value))


def _coalesced(p: Tensor) -> Any:
    """The gradient of a tensor; one that is row-sparse with each row once."""
    g: Any = p.grad
    return g.coalesce() if isinstance(g, RowSparse) else g


def _tensors(name: str, params: Tensor | Iterable[Tensor]) -> list[Tensor]:
    """The tensors among which gradients are looked for."""
    found = [params] if isinstance(params, Tensor) else list(params)
    for p in found:
        if not isinstance(p, Tensor):
            raise TypeError(f"{name}: expected tensors, got {type(p).__name__}")
    return found
