"""Probability distributions: PyTorch's classes and parameters.

A distribution has parameters that broadcast to its `batch_shape`. `sample(shape)` and
`rsample(shape)` give `shape + batch_shape + event_shape`; gradients reach the parameters through
`rsample` alone. `log_prob(value)` broadcasts `value` with the batch. Numbers among the parameters
take the dtype of the tensors, float32 where all are numbers. Parameters out of range are refused
where their values are known: numbers always, tensors of the CPU in eager code.

Distributions whose densities have gamma functions (Gamma, Beta, Poisson …) are not here yet;
`wengert.random` draws from them.
"""

from wengert.distributions._base import Distribution, Independent
from wengert.distributions._continuous import (
    Cauchy,
    Exponential,
    Gumbel,
    Laplace,
    LogNormal,
    Normal,
    Uniform,
)
from wengert.distributions._discrete import Bernoulli, Categorical, Geometric, OneHotCategorical
from wengert.distributions._divergence import kl_divergence, register_kl

__all__ = [
    "Bernoulli", "Categorical", "Cauchy", "Distribution", "Exponential", "Geometric", "Gumbel",
    "Independent", "Laplace", "LogNormal", "Normal", "OneHotCategorical", "Uniform",
    "kl_divergence", "register_kl",
]  # fmt: skip

TYPE_CHECKING = False

if not TYPE_CHECKING:

    def __getattr__(name):
        from wengert._words import unknown

        raise AttributeError(unknown("distributions", name))
