"""What the formulas of optimizers share.

Hyperparameters are numbers, numbers of a trace, or tensors. Scalars of their own arithmetic are
float32, for float64 parameters float64, and take the parameter's dtype at last.
"""

from __future__ import annotations

import math
from typing import Any

from wengert import _core
from wengert._core import Tensor, expm1, float32, float64, zeros
from wengert._steps import Group


def count(p: Tensor) -> Tensor:
    """A number of steps: a tensor, so that it is state like any other."""
    return zeros((), dtype=_wide(p), device=p.device)


def _wide(p: Tensor) -> _core.DType:
    return float64 if p.dtype == float64 else float32


def wide(x: Any, p: Tensor) -> Any:
    """A hyperparameter for arithmetic with other scalars."""
    if isinstance(x, Tensor):
        return x.astype(_wide(p))
    return x if isinstance(x, _core.Number) else float(x)


def like(x: Any, p: Tensor) -> Any:
    """A scalar beside a parameter: a number is weak, a tensor takes the dtype."""
    if isinstance(x, Tensor):
        return x.astype(p.dtype)
    return x if isinstance(x, _core.Number) else float(x)


def is_zero(x: Any) -> bool:
    """Whether a hyperparameter is known to be zero."""
    return isinstance(x, (int, float)) and x == 0


def power(beta: float, t: Tensor) -> Tensor:
    """βᵗ, for 0 ≤ β < 1 and t ≥ 1."""
    return _core.exp(t * math.log(beta)) if beta else t * 0.0


def grown(beta: float, t: Tensor) -> Tensor:
    """1 − βᵗ, without losing the difference from 1."""
    return -expm1(t * math.log(beta)) if beta else t * 0.0 + 1.0


def along(g: Tensor, group: Group) -> Tensor:
    """The gradient along which the parameter goes down."""
    return -g if group["maximize"] else g


def penalised(p: Tensor, g: Tensor, group: Group) -> Tensor:
    """The same, with weight decay as an L2 penalty."""
    g, decay = along(g, group), group["weight_decay"]
    return g if is_zero(decay) else g + like(decay, p) * p


def shrunk(p: Tensor, group: Group) -> Tensor:
    """The parameter after decoupled weight decay: (1 − lr · λ) p."""
    lr, decay = group["lr"], group["weight_decay"]
    if is_zero(decay):
        return p
    kept: Tensor = p * like(1.0 - wide(lr, p) * wide(decay, p), p)
    return kept


def start_rate(group: Group) -> float:
    """The learning rate as it stands, for state: a capture, in which it is a number given at each
    call, does not read it."""
    lr: Any = dict.get(group, "lr")
    return float(lr)


def decayed(p: Tensor, g: Tensor, group: Group) -> tuple[Tensor, Tensor]:
    """Parameter and gradient after weight decay of either kind."""
    if group["decoupled_weight_decay"]:
        return shrunk(p, group), along(g, group)
    return p, penalised(p, g, group)


def mean(old: Tensor, new: Tensor, beta: Any) -> Tensor:
    """The running mean β · old + (1 − β) · new."""
    after: Tensor = old * beta + new * (1.0 - beta)
    return after
