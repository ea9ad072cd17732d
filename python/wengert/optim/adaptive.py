"""Steps that squares of gradients scale: Adagrad, Adadelta, RMSprop."""

from __future__ import annotations

from wengert._core import Tensor, full_like, sqrt, zeros_like
from wengert._steps import Group
from wengert.optim import _formulas as formulas
from wengert.optim.optimizer import Optimizer, Parameters


class Adagrad(Optimizer):
    """Adagrad (Duchi et al., 2011), with weight decay λ as an L2 penalty.

        g ← g + λ p;  s ← s + g²;  p ← p − lr / (1 + (t − 1) lr_decay) · g / (√s + ε)

    Without weight decay it takes row-sparse gradients.
    """

    def __init__(
        self,
        params: Parameters,
        lr: float = 1e-2,
        lr_decay: float = 0.0,
        weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0,
        eps: float = 1e-10,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(
            params, lr=lr, lr_decay=lr_decay, weight_decay=weight_decay,
            initial_accumulator_value=initial_accumulator_value, eps=eps, maximize=maximize,
        )  # fmt: skip

    def _refuses_rows(self, group: Group) -> str:
        no_decay = formulas.is_zero(group["weight_decay"])
        return "" if no_decay else "use weight_decay=0, or SparseAdam"

    def initial_state(self, p: Tensor, group: Group) -> dict[str, Tensor]:
        """The number of steps and the sum of squares."""
        sum_ = full_like(p, float(group["initial_accumulator_value"]))
        return {"step": formulas.count(p), "sum": sum_}

    def update(self, p: Tensor, g: Tensor, state: dict[str, Tensor], group: Group) -> None:
        """One step."""
        g, t, s = formulas.penalised(p, g, group), state["step"], state["sum"]
        t += 1.0
        lr = formulas.wide(group["lr"], p) / (1.0 + (t - 1.0) * group["lr_decay"])
        s.assign(s + g * g)
        p.assign(p - formulas.like(lr, p) * g / (sqrt(s) + group["eps"]))


class Adadelta(Optimizer):
    """Adadelta (Zeiler, 2012), with weight decay λ as an L2 penalty.

        g ← g + λ p;  v ← ρ v + (1 − ρ) g²;  d = √(u + ε) / √(v + ε) · g
        u ← ρ u + (1 − ρ) d²;  p ← p − lr · d
    """

    def __init__(
        self,
        params: Parameters,
        lr: float = 1.0,
        rho: float = 0.9,
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(
            params, lr=lr, rho=rho, eps=eps, weight_decay=weight_decay, maximize=maximize
        )

    def initial_state(self, p: Tensor, group: Group) -> dict[str, Tensor]:
        """The running means of squares: of gradients and of steps."""
        return {"square_avg": zeros_like(p), "acc_delta": zeros_like(p)}

    def update(self, p: Tensor, g: Tensor, state: dict[str, Tensor], group: Group) -> None:
        """One step."""
        g, v, u = formulas.penalised(p, g, group), state["square_avg"], state["acc_delta"]
        rho, eps = group["rho"], group["eps"]
        v.assign(formulas.mean(v, g * g, rho))
        d = sqrt(u + eps) / sqrt(v + eps) * g
        u.assign(formulas.mean(u, d * d, rho))
        p.assign(p - formulas.like(group["lr"], p) * d)


class RMSprop(Optimizer):
    """RMSprop (Tieleman & Hinton, 2012), with weight decay λ as an L2 penalty.

        g ← g + λ p;  v ← α v + (1 − α) g²;  b ← momentum · b + g / (√v + ε);  p ← p − lr · b

    With `centered` the square of the running mean of gradients is taken off v under the root.
    """

    def __init__(
        self,
        params: Parameters,
        lr: float = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        centered: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(
            params, lr=lr, alpha=alpha, eps=eps, weight_decay=weight_decay, momentum=momentum,
            centered=centered, maximize=maximize,
        )  # fmt: skip

    def initial_state(self, p: Tensor, group: Group) -> dict[str, Tensor]:
        """The running mean of squares; with the options that of gradients, and the momentum."""
        state = {"square_avg": zeros_like(p)}
        if group["momentum"]:
            state["momentum_buffer"] = zeros_like(p)
        if group["centered"]:
            state["grad_avg"] = zeros_like(p)
        return state

    def update(self, p: Tensor, g: Tensor, state: dict[str, Tensor], group: Group) -> None:
        """One step."""
        g, v, alpha = formulas.penalised(p, g, group), state["square_avg"], group["alpha"]
        v.assign(formulas.mean(v, g * g, alpha))
        square = v
        if group["centered"]:
            m = state["grad_avg"]
            m.assign(formulas.mean(m, g, alpha))
            square = v - m * m
        step = g / (sqrt(square) + group["eps"])
        if group["momentum"]:
            b = state["momentum_buffer"]
            b.assign(formulas.like(group["momentum"], p) * b + step)
            step = b
        p.assign(p - formulas.like(group["lr"], p) * step)
