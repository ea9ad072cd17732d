"""Adam and its relatives: steps of running means of gradients and of their squares."""

from __future__ import annotations

import math
from collections.abc import Iterable

from wengert import _core
from wengert._core import GradientError, Tensor, exp, expm1, maximum, ones, sqrt, where, zeros_like
from wengert._steps import Group, Work
from wengert.optim import _formulas as formulas
from wengert.optim.optimizer import Optimizer, Parameters

adam = _core.optim.adam


class _Moments(Optimizer):
    """Optimizers with two moments and a count."""

    def initial_state(self, p: Tensor, group: Group) -> dict[str, Tensor]:
        """The moments, and the number of steps (a tensor, so that it is state like any other)."""
        return {
            "step": formulas.count(p),
            "exp_avg": zeros_like(p),
            "exp_avg_sq": zeros_like(p),
        }

    def _moments(self, g: Tensor, state: dict[str, Tensor], group: Group) -> tuple[Tensor, ...]:
        """The count and the moments after another gradient."""
        t, m, v = (state[k] for k in ("step", "exp_avg", "exp_avg_sq"))
        beta1, beta2 = group["betas"]
        t += 1.0
        m.assign(formulas.mean(m, g, beta1))
        v.assign(formulas.mean(v, g * g, beta2))
        return t, m, v


class Adam(_Moments):
    """Adam (Kingma & Ba, 2015), with weight decay λ as an L2 penalty.

        g ← g + λ p;  m ← β₁ m + (1 − β₁) g;  v ← β₂ v + (1 − β₂) g²
        p ← p − lr · m̂ / (√v̂ + ε),  m̂ = m / (1 − β₁ᵗ),  v̂ = v / (1 − β₂ᵗ)

    The t of a parameter counts its own updates, in float32, for float64 parameters in float64.
    With `amsgrad` (Reddi et al., 2018) the largest v so far takes the place of v. With
    `decoupled_weight_decay` this is `AdamW`. With `maximize` the sign of the gradient is turned
    first.
    """

    def __init__(
        self,
        params: Parameters,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        decoupled_weight_decay: bool = False,
    ) -> None:
        super().__init__(
            params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, amsgrad=amsgrad,
            maximize=maximize, decoupled_weight_decay=decoupled_weight_decay,
        )  # fmt: skip

    def initial_state(self, p: Tensor, group: Group) -> dict[str, Tensor]:
        """The moments, and the number of steps (a tensor, so that it is state like any other)."""
        state = super().initial_state(p, group)
        return {**state, "max_exp_avg_sq": zeros_like(p)} if group["amsgrad"] else state

    def update(self, p: Tensor, g: Tensor, state: dict[str, Tensor], group: Group) -> None:
        """One step."""
        if group["amsgrad"]:
            self._amsgrad(p, g, state, group)
            return
        (beta1, beta2), step = group["betas"], state["step"]
        m, v = state["exp_avg"], state["exp_avg_sq"]
        step += 1.0
        new, m_after, v_after = adam(
            p, -g if group["maximize"] else g, m, v, step, lr=group["lr"], beta1=beta1,
            beta2=beta2, eps=group["eps"], weight_decay=group["weight_decay"],
            decoupled=group["decoupled_weight_decay"],
        )  # fmt: skip
        p.assign(new)
        m.assign(m_after)
        v.assign(v_after)

    def _amsgrad(self, p: Tensor, g: Tensor, state: dict[str, Tensor], group: Group) -> None:
        start, g = formulas.decayed(p, g, group)
        t, m, v = self._moments(g, state, group)
        top = state["max_exp_avg_sq"]
        top.assign(maximum(top, v))
        beta1, beta2 = group["betas"]
        root = sqrt(formulas.grown(beta2, t))
        size = formulas.wide(group["lr"], p) * root / formulas.grown(beta1, t)
        floor = formulas.like(group["eps"] * root, p)
        p.assign(start - formulas.like(size, p) * m / (sqrt(top) + floor))


class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov & Hutter, 2019): p ← (1 − lr · λ) p before
    each step, and nothing added to the gradient."""

    def __init__(
        self,
        params: Parameters,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(
            params, lr, betas, eps, weight_decay, amsgrad, maximize=maximize,
            decoupled_weight_decay=True,
        )  # fmt: skip


class SparseAdam(_Moments):
    """Adam for row-sparse gradients: moments and values of rows without a gradient stay as they
    are, where Adam goes on with them by its moments.

        m ← m + (1 − β₁) (g − m);  v ← v + (1 − β₂) (g² − v)
        p ← p − lr · √(1 − β₂ᵗ) / (1 − β₁ᵗ) · m / (√v + ε)

    The t of a parameter counts its updates, whichever rows they were of. Gradients that are dense,
    as in captured functions, are refused. With `maximize` the sign of the gradient is turned first.
    """

    def __init__(
        self,
        params: Parameters,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(params, lr=lr, betas=betas, eps=eps, maximize=maximize)

    def _refuses_rows(self, _group: Group) -> str:
        return ""

    def _work(self, made: list[Tensor], rows: list[Work]) -> Iterable[Work]:
        for p, _, _ in super()._work(made, rows):
            raise GradientError(
                f"SparseAdam: the gradient of a parameter of shape {tuple(p.shape)} is dense: it "
                "is row-sparse where eager lookups with sparse=True alone make it; use Adam"
            )
        return ()

    def update(self, p: Tensor, g: Tensor, state: dict[str, Tensor], group: Group) -> None:
        """One step, of rows."""
        g, (beta1, beta2) = formulas.along(g, group), group["betas"]
        t, m, v = (state[k] for k in ("step", "exp_avg", "exp_avg_sq"))
        t += 1.0
        m.assign(m + (g - m) * (1.0 - beta1))
        v.assign(v + (g * g - v) * (1.0 - beta2))
        lr = formulas.wide(group["lr"], p)
        size = lr * sqrt(formulas.grown(beta2, t)) / formulas.grown(beta1, t)
        p.assign(p - formulas.like(size, p) * m / (sqrt(v) + group["eps"]))


class Adamax(Optimizer):
    """Adamax (Kingma & Ba, 2015), with weight decay λ as an L2 penalty.

        g ← g + λ p;  m ← β₁ m + (1 − β₁) g;  u ← max(β₂ u, |g| + ε)
        p ← p − lr / (1 − β₁ᵗ) · m / u
    """

    def __init__(
        self,
        params: Parameters,
        lr: float = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(
            params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, maximize=maximize
        )

    def initial_state(self, p: Tensor, group: Group) -> dict[str, Tensor]:
        """The number of steps, the running mean and the decaying maximum."""
        return {
            "step": formulas.count(p),
            "exp_avg": zeros_like(p),
            "exp_inf": zeros_like(p),
        }

    def update(self, p: Tensor, g: Tensor, state: dict[str, Tensor], group: Group) -> None:
        """One step."""
        g, (beta1, beta2) = formulas.penalised(p, g, group), group["betas"]
        t, m, u = (state[k] for k in ("step", "exp_avg", "exp_inf"))
        t += 1.0
        m.assign(formulas.mean(m, g, beta1))
        u.assign(maximum(u * beta2, abs(g) + group["eps"]))
        size = formulas.wide(group["lr"], p) / formulas.grown(beta1, t)
        p.assign(p - formulas.like(size, p) * m / u)


class NAdam(_Moments):
    """Adam with Nesterov's momentum (Dozat, 2016), with weight decay as an L2 penalty or
    decoupled.

        μₜ = β₁ (1 − ½ · 0.96^(t · momentum_decay)), of which mu_product is the product so far
        p ← p − lr · ((1 − μₜ) / (1 − Πμ) · g + μₜ₊₁ / (1 − Πμ · μₜ₊₁) · m) / (√v̂ + ε)
    """

    def __init__(
        self,
        params: Parameters,
        lr: float = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum_decay: float = 4e-3,
        decoupled_weight_decay: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(
            params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay,
            momentum_decay=momentum_decay, decoupled_weight_decay=decoupled_weight_decay,
            maximize=maximize,
        )  # fmt: skip

    def initial_state(self, p: Tensor, group: Group) -> dict[str, Tensor]:
        """The moments, the number of steps and the product of momenta."""
        state = super().initial_state(p, group)
        return {**state, "mu_product": ones((), dtype=state["step"].dtype, device=p.device)}

    def update(self, p: Tensor, g: Tensor, state: dict[str, Tensor], group: Group) -> None:
        """One step."""
        start, g = formulas.decayed(p, g, group)
        t, m, v = self._moments(g, state, group)
        (beta1, beta2), product = group["betas"], state["mu_product"]
        fall = group["momentum_decay"] * math.log(0.96)
        now, then = (beta1 * (1.0 - 0.5 * exp(k * fall)) for k in (t, t + 1.0))
        product.assign(product * now)
        lr = formulas.wide(group["lr"], p)
        ahead = formulas.like(lr * (1.0 - now) / (1.0 - product), p) * g
        behind = formulas.like(lr * then / (1.0 - product * then), p) * m
        root = sqrt(v / formulas.like(formulas.grown(beta2, t), p)) + group["eps"]
        p.assign(start - (ahead + behind) / root)


class RAdam(_Moments):
    """Rectified Adam (Liu et al.: On the variance of the adaptive learning rate and beyond, 2020),
    with weight decay as an L2 penalty or decoupled.

        ρ∞ = 2 / (1 − β₂) − 1;  ρ = ρ∞ − 2 t β₂ᵗ / (1 − β₂ᵗ)
        r = √((ρ − 4) (ρ − 2) ρ∞ / ((ρ∞ − 4) (ρ∞ − 2) ρ))
        p ← p − lr · m̂ · r √(1 − β₂ᵗ) / (√v + ε) where ρ > 5, else p ← p − lr · m̂
    """

    def __init__(
        self,
        params: Parameters,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        decoupled_weight_decay: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(
            params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay,
            decoupled_weight_decay=decoupled_weight_decay, maximize=maximize,
        )  # fmt: skip

    def update(self, p: Tensor, g: Tensor, state: dict[str, Tensor], group: Group) -> None:
        """One step."""
        start, g = formulas.decayed(p, g, group)
        t, m, v = self._moments(g, state, group)
        beta1, beta2 = group["betas"]
        top, rho = 2.0 / (1.0 - beta2) - 1.0, _rho(beta2, t)
        ratio = (rho - 4.0).clip(min=0.0) * (rho - 2.0) / rho
        ratio = ratio * (top / ((top - 4.0) * (top - 2.0)) if top > 5.0 else 0.0)
        scale = sqrt(ratio.clip(min=0.0) * formulas.grown(beta2, t))
        size = formulas.like(formulas.wide(group["lr"], p) / formulas.grown(beta1, t), p)
        rectified = formulas.like(scale, p) / (sqrt(v) + group["eps"])
        p.assign(start - size * m * where(rho > 5.0, rectified, 1.0))


def _rho(beta: float, t: Tensor) -> Tensor:
    """ρ of `RAdam`, without taking numbers of the size of ρ∞ off each other: with c = −ln β and
    x = c t it is 2/(1 − β) − 1 − 2/c + 2/c · (1 − x / (eˣ − 1)), where small x need the series
    1 − x / (eˣ − 1) = x/2 − x²/12 + x⁴/720 − x⁶/30240 + x⁸/1209600 − …"""
    if not beta:
        return t * 0.0 + 1.0
    c = -math.log(beta)
    x = t * c
    y = x * x
    series = x / 2.0 - y * (1 / 12 - y * (1 / 720 - y * (1 / 30240 - y / 1209600)))
    rest = where(x < 0.5, series, 1.0 - x / expm1(x))
    return 2.0 / (1.0 - beta) - 1.0 - 2.0 / c + 2.0 / c * rest


class LAMB(_Moments):
    """LAMB (You et al.: Large batch optimization for deep learning, 2020), with weight decay λ.

        r = m̂ / (√v̂ + ε) + λ p;  p ← p − lr · ‖p‖ / ‖r‖ · r

    The norms are those of a whole parameter; where one of them is 0 the ratio is 1.
    """

    def __init__(
        self,
        params: Parameters,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(
            params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, maximize=maximize
        )

    def update(self, p: Tensor, g: Tensor, state: dict[str, Tensor], group: Group) -> None:
        """One step."""
        t, m, v = self._moments(formulas.along(g, group), state, group)
        beta1, beta2 = group["betas"]
        root = sqrt(v / formulas.like(formulas.grown(beta2, t), p)) + group["eps"]
        r = m / formulas.like(formulas.grown(beta1, t), p) / root
        if not formulas.is_zero(group["weight_decay"]):
            r = r + formulas.like(group["weight_decay"], p) * p
        ours, its = _norm(p), _norm(r)
        ratio = where((ours > 0.0) & (its > 0.0), ours / where(its > 0.0, its, 1.0), 1.0)
        size = formulas.wide(group["lr"], p) * ratio
        p.assign(p - formulas.like(size, p) * r)


def _norm(x: Tensor) -> Tensor:
    """The Euclidean norm; of halves in float32, whose squares they may not hold."""
    x = formulas.wide(x, x)
    return sqrt((x * x).sum())
