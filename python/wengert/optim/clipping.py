"""Clipping of gradients."""

from __future__ import annotations

from collections.abc import Iterable

from wengert._core import Tensor, no_grad, sqrt, stack, zeros


@no_grad()
def clip_grad_norm(params: Tensor | Iterable[Tensor], max_norm: float) -> Tensor:
    """Scale all gradients together so that their Euclidean norm is at most `max_norm`.

    Returns the norm before scaling, a scalar tensor. A norm that is not finite makes the
    gradients NaN, as their sum is; check the returned norm to skip such a step.
    """
    grads = [p.grad for p in _tensors("clip_grad_norm", params) if p.grad is not None]
    if not grads:
        return zeros(())
    norm = sqrt(stack([(g * g).sum() for g in grads]).sum())
    scale = (max_norm / norm).clip(max=1.0)
    for g in grads:
        g *= scale.astype(g.dtype)
    return norm


@no_grad()
def clip_grad_value(params: Tensor | Iterable[Tensor], max_value: float) -> None:
    """Clip every element of every gradient to [−max_value, max_value]."""
    for p in _tensors("clip_grad_value", params):
        if p.grad is not None:
            p.grad.assign(p.grad.clip(-max_value, max_value))


def _tensors(name: str, params: Tensor | Iterable[Tensor]) -> list[Tensor]:
    """The tensors among which gradients are looked for."""
    found = [params] if isinstance(params, Tensor) else list(params)
    for p in found:
        if not isinstance(p, Tensor):
            raise TypeError(f"{name}: expected tensors, got {type(p).__name__}")
    return found
