"""Kullback-Leibler divergences: a table of rules by pairs of classes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

from wengert import special
from wengert._core import ArgumentTypeError, ShapeError, Tensor, where
from wengert.distributions._base import Distribution, Independent
from wengert.distributions._continuous import (
    Cauchy,
    Exponential,
    Laplace,
    LogNormal,
    Normal,
    Uniform,
)
from wengert.distributions._discrete import Bernoulli, Categorical, Geometric, Trial

__all__ = ["kl_divergence", "register_kl"]

Rule = Callable[[Any, Any], Tensor]
_F = TypeVar("_F", bound=Rule)
_RULES: dict[tuple[type, type], Rule] = {}


def register_kl(p: type[Distribution], q: type[Distribution]) -> Callable[[_F], _F]:
    """A decorator: the function gives `kl_divergence` of a `p` from a `q`, and of their
    subclasses where these have no rule of their own."""

    def register(rule: _F) -> _F:
        _RULES[p, q] = rule
        return rule

    return register


def kl_divergence(p: Distribution, q: Distribution) -> Tensor:
    """The Kullback-Leibler divergence of `p` from `q`: the mean of `log p(x) - log q(x)` over
    draws of `p`.

    Raises TypeError for a pair without a rule.

    >>> p, q = wg.distributions.Normal(0.0, 1.0), wg.distributions.Normal(1.0, 1.0)
    >>> wg.distributions.kl_divergence(p, q).item()
    0.5
    """
    for first in type(p).__mro__:
        for second in type(q).__mro__:
            if rule := _RULES.get((first, second)):
                return rule(p, q)
    raise ArgumentTypeError(
        f"kl_divergence: there is no rule for {type(p).__name__} and {type(q).__name__}; "
        "register_kl makes one"
    )


@register_kl(Normal, Normal)
def _(p: Normal, q: Normal) -> Tensor:
    ratio, shift = p.scale / q.scale, (p.loc - q.loc) / q.scale
    return 0.5 * (ratio * ratio + shift * shift - 1) - ratio.log()


@register_kl(LogNormal, LogNormal)
def _(p: LogNormal, q: LogNormal) -> Tensor:
    return kl_divergence(p._normal, q._normal)


@register_kl(Laplace, Laplace)
def _(p: Laplace, q: Laplace) -> Tensor:
    ratio, shift = p.scale / q.scale, (p.loc - q.loc).abs()
    return ratio * (-shift / p.scale).exp() + shift / q.scale - ratio.log() - 1


@register_kl(Cauchy, Cauchy)
def _(p: Cauchy, q: Cauchy) -> Tensor:
    wide, shift = p.scale + q.scale, p.loc - q.loc
    return ((wide * wide + shift * shift) / (4 * p.scale * q.scale)).log()


@register_kl(Uniform, Uniform)
def _(p: Uniform, q: Uniform) -> Tensor:
    inside = (q.low <= p.low) & (p.high <= q.high)
    return where(inside, ((q.high - q.low) / (p.high - p.low)).log(), math.inf)


@register_kl(Exponential, Exponential)
def _(p: Exponential, q: Exponential) -> Tensor:
    ratio = q.rate / p.rate
    return ratio - 1 - ratio.log()


def _of_trial(p: Trial, q: Trial) -> Tensor:
    a, b = p.probs, q.probs
    return special.xlogy(a, a / b) + special.xlogy(1 - a, (1 - a) / (1 - b))


@register_kl(Bernoulli, Bernoulli)
def _(p: Bernoulli, q: Bernoulli) -> Tensor:
    return _of_trial(p, q)


@register_kl(Geometric, Geometric)
def _(p: Geometric, q: Geometric) -> Tensor:
    return _of_trial(p, q) / p.probs


@register_kl(Categorical, Categorical)
def _(p: Categorical, q: Categorical) -> Tensor:
    probs = p.probs
    return where(probs == 0, 0.0, probs * (p.logits - q.logits)).sum(axis=-1)


@register_kl(Independent, Independent)
def _(p: Independent, q: Independent) -> Tensor:
    if p._count != q._count:
        raise ShapeError(
            f"kl_divergence: both must sum over as many axes: got {p._count} and {q._count}"
        )
    return p._summed(kl_divergence(p.base, q.base))
