"""Gradient descent and what goes by the sign of a gradient."""

from __future__ import annotations

from wengert import _core
from wengert._core import Tensor, full, full_like, ones, sign, where, zeros_like
from wengert._steps import Group
from wengert.optim import _formulas as formulas
from wengert.optim.optimizer import Optimizer, Parameters

sgd, sgd_momentum = _core.optim.sgd, _core.optim.sgd_momentum


class SGD(Optimizer):
    """Stochastic gradient descent, with momentum and weight decay λ (an L2 penalty).

        g ← g + λ p;  b ← momentum · b + (1 − dampening) · g;  p ← p − lr · b

    With `nesterov` the step is `g + momentum · b`. The first b is g, whatever the dampening. With
    `maximize` the sign of the gradient is turned first. Without momentum and weight decay it takes
    row-sparse gradients.
    """

    def __init__(
        self,
        params: Parameters,
        lr: float = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(
            params, lr=lr, momentum=momentum, weight_decay=weight_decay, nesterov=nesterov,
            dampening=dampening, maximize=maximize,
        )  # fmt: skip

    def _refuses_rows(self, group: Group) -> str:
        moves_all = group["momentum"] or not formulas.is_zero(group["weight_decay"])
        return "use momentum=0 and weight_decay=0, or SparseAdam" if moves_all else ""

    def initial_state(self, p: Tensor, group: Group) -> dict[str, Tensor]:
        """The running sum of gradients, when there is momentum."""
        if not group["momentum"]:
            return {}
        buffer = {"momentum_buffer": zeros_like(p)}
        return {"step": formulas.count(p), **buffer} if group["dampening"] else buffer

    def update(self, p: Tensor, g: Tensor, state: dict[str, Tensor], group: Group) -> None:
        """One step."""
        lr, momentum, decay = group["lr"], group["momentum"], group["weight_decay"]
        if group["maximize"]:
            g = -g
        if not momentum:
            p.assign(sgd(p, g, lr=lr, weight_decay=decay))
            return
        b = state["momentum_buffer"]
        if not group["dampening"]:
            new, after = sgd_momentum(
                p, g, b, lr=lr, momentum=momentum, weight_decay=decay, nesterov=group["nesterov"]
            )
            p.assign(new)
            b.assign(after)
            return
        if not formulas.is_zero(decay):
            g = g + formulas.like(decay, p) * p
        share = formulas.like(1.0 - formulas.wide(group["dampening"], p), p)
        after = formulas.like(momentum, p) * b + share * g
        b.assign(where(state["step"] == 0.0, g, after))
        p.assign(p - formulas.like(lr, p) * b)
        state["step"] += 1.0


class ASGD(Optimizer):
    """Averaged gradient descent (Polyak & Juditsky, 1992), with the rates of Bottou.

        g ← g + weight_decay · p;  p ← (1 − lambd · η) p − η g;  ax ← ax + μ (p − ax)
        η ← lr / (1 + lambd · lr · t)^alpha;  μ ← 1 / max(1, t − t0)

    η begins as lr and μ as 1. The average of a parameter is `state[p]["ax"]`.
    """

    def __init__(
        self,
        params: Parameters,
        lr: float = 1e-2,
        lambd: float = 1e-4,
        alpha: float = 0.75,
        t0: float = 1e6,
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(
            params, lr=lr, lambd=lambd, alpha=alpha, t0=t0, weight_decay=weight_decay,
            maximize=maximize,
        )  # fmt: skip

    def initial_state(self, p: Tensor, group: Group) -> dict[str, Tensor]:
        """The number of steps, η, μ and the average."""
        step = formulas.count(p)
        return {
            "step": step,
            "eta": full((), formulas.start_rate(group), dtype=step.dtype, device=p.device),
            "mu": ones((), dtype=step.dtype, device=p.device),
            "ax": zeros_like(p),
        }

    def update(self, p: Tensor, g: Tensor, state: dict[str, Tensor], group: Group) -> None:
        """One step."""
        g = formulas.penalised(p, g, group)
        lr, lambd = formulas.wide(group["lr"], p), group["lambd"]
        t, eta, mu, ax = (state[k] for k in ("step", "eta", "mu", "ax"))
        t += 1.0
        p.assign(p * formulas.like(1.0 - lambd * eta, p) - formulas.like(eta, p) * g)
        ax.assign(ax + formulas.like(mu, p) * (p - ax))
        eta.assign(lr / (1.0 + lambd * lr * t) ** group["alpha"])
        mu.assign(1.0 / (t - group["t0"]).clip(min=1.0))


class Rprop(Optimizer):
    """Resilient backpropagation (Riedmiller & Braun, 1993): each element has a step of its own,
    which begins as lr, grows by `etas[1]` while its gradient keeps its sign and shrinks by
    `etas[0]` where that turns, within `step_sizes`. Where it turns, the element stays.

    A change of `lr` counts for parameters that were not updated yet.
    """

    def __init__(
        self,
        params: Parameters,
        lr: float = 1e-2,
        etas: tuple[float, float] = (0.5, 1.2),
        step_sizes: tuple[float, float] = (1e-6, 50.0),
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(params, lr=lr, etas=etas, step_sizes=step_sizes, maximize=maximize)

    def initial_state(self, p: Tensor, group: Group) -> dict[str, Tensor]:
        """The gradient before, and the steps."""
        return {"prev": zeros_like(p), "step_size": full_like(p, formulas.start_rate(group))}

    def update(self, p: Tensor, g: Tensor, state: dict[str, Tensor], group: Group) -> None:
        """One step."""
        g, prev, size = formulas.along(g, group), state["prev"], state["step_size"]
        (less, more), (low, high) = group["etas"], group["step_sizes"]
        turn = sign(g) * sign(prev)
        steps = where(turn > 0, size * more, where(turn < 0, size * less, size))
        size.assign(steps.clip(low, high))
        prev.assign(where(turn < 0, 0.0, g))
        p.assign(p - sign(prev) * size)


class Lion(Optimizer):
    """Lion (Chen et al.: Symbolic discovery of optimization algorithms, 2023), with decoupled
    weight decay λ.

        p ← (1 − lr · λ) p − lr · sign(β₁ m + (1 − β₁) g);  m ← β₂ m + (1 − β₂) g
    """

    def __init__(
        self,
        params: Parameters,
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(params, lr=lr, betas=betas, weight_decay=weight_decay, maximize=maximize)

    def initial_state(self, p: Tensor, group: Group) -> dict[str, Tensor]:
        """The running mean of gradients."""
        return {"exp_avg": zeros_like(p)}

    def update(self, p: Tensor, g: Tensor, state: dict[str, Tensor], group: Group) -> None:
        """One step."""
        g, m, lr = formulas.along(g, group), state["exp_avg"], formulas.like(group["lr"], p)
        beta1, beta2 = group["betas"]
        step = sign(formulas.mean(m, g, beta1))
        p.assign(formulas.shrunk(p, group) - lr * step)
        m.assign(formulas.mean(m, g, beta2))
