"""Losses over some of many classes, with classes that are drawn."""

from __future__ import annotations

import math
from typing import Any

import wengert as wg
from wengert.compat.v1._graph import named
from wengert.compat.v1._spaces import formula, nn
from wengert.compat.v1._state import key_of
from wengert.compat.v1._table import as_tensor


@formula(nn)
def log_uniform_candidate_sampler(
    true_classes: Any,
    num_true: int,
    num_sampled: int,
    unique: Any,
    range_max: int,
    seed: int | None = None,
    name: str | None = None,
) -> tuple[wg.Tensor, wg.Tensor, wg.Tensor]:
    """Classes drawn with probability `log((c + 2) / (c + 1)) / log(range_max + 1)`, and how often
    the true ones and they are expected among the drawn.

    With `unique` no class is drawn twice: each arrives at a random time with its probability as
    rate, and the first to arrive are taken. Of classes drawn one by one, those that repeat left
    out, about as many are drawn as the time `t` of the last says, so class `c` is expected
    `1 - (1 - p)^t` times.
    """
    scale = math.log(range_max + 1)

    def share(classes: Any) -> wg.Tensor:
        c = classes.astype(wg.float32)
        return wg.log1p(1.0 / (c + 1.0)) / scale

    own = as_tensor(true_classes)
    if not unique:
        drawn = (wg.random.uniform((num_sampled,), key=key_of(seed)) * scale).exp()
        drawn = wg.clip(drawn.astype(wg.int64) - 1, 0, range_max - 1)
        return drawn, share(own) * num_sampled, share(drawn) * num_sampled
    if num_sampled > range_max:
        raise ValueError(
            f"tf.nn: {num_sampled} of {range_max} classes cannot be drawn without repetition"
        )
    waited = -wg.log1p(-wg.random.uniform((range_max,), key=key_of(seed)))
    times, drawn = wg.topk(waited / share(wg.arange(range_max)), num_sampled, largest=False)
    last = times[-1].detach()

    def expected(classes: Any) -> wg.Tensor:
        return -wg.expm1(last * wg.log1p(-share(classes)))

    return drawn, expected(own), expected(drawn)


def _sampled_logits(
    weights: Any,
    biases: Any,
    labels: Any,
    inputs: Any,
    num_sampled: int,
    num_classes: int,
    num_true: int,
    sampled_values: Any,
    remove_accidental_hits: Any,
    seed: int | None,
) -> tuple[wg.Tensor, wg.Tensor]:
    """Logits of the true classes (n, num_true) and of the drawn ones (n, num_sampled), each less
    the logarithm of how often its class is expected among the drawn."""
    if isinstance(weights, list | tuple):
        weights = weights[0] if len(weights) == 1 else wg.concat(list(weights), axis=0)
    own = as_tensor(labels).astype(wg.int64).reshape((-1, num_true))
    if sampled_values is None:
        sampled_values = log_uniform_candidate_sampler(
            own, num_true, num_sampled, True, num_classes, seed
        )
    drawn, own_share, share = (as_tensor(v).detach() for v in sampled_values)
    drawn = drawn.astype(wg.int64)
    rows = wg.take(weights, own, axis=0)
    right = (wg.expand_dims(inputs, 1) * rows).sum(axis=2) + wg.take(biases, own, axis=0)
    wrong = inputs @ wg.take(weights, drawn, axis=0).T + wg.take(biases, drawn, axis=0)
    right = right - wg.log(own_share.reshape((-1, num_true)))
    wrong = wrong - wg.log(share)
    if remove_accidental_hits:
        hit = wg.any(wg.equal(wg.expand_dims(own, 2), drawn), axis=1)
        wrong = wg.where(hit, wrong + wg.finfo(wrong.dtype).min, wrong)
    return right, wrong


@formula(nn)
def nce_loss(
    weights: Any,
    biases: Any,
    labels: Any,
    inputs: Any,
    num_sampled: int,
    num_classes: int,
    num_true: int = 1,
    sampled_values: Any = None,
    remove_accidental_hits: Any = False,
    partition_strategy: str = "mod",
    name: str | None = None,
) -> wg.Tensor:
    """Noise-contrastive estimation, row by row: whether classes are the row's or drawn.

    Without `sampled_values` they come from `log_uniform_candidate_sampler`, without repetition, one
    set for all rows.
    """
    right, wrong = _sampled_logits(
        weights, biases, labels, inputs, num_sampled, num_classes, num_true, sampled_values,
        remove_accidental_hits, None,
    )  # fmt: skip
    right_loss = wg.nn.softplus(-right).mean(axis=1)
    return named(right_loss + wg.nn.softplus(wrong).sum(axis=1), name)


@formula(nn)
def sampled_softmax_loss(
    weights: Any,
    biases: Any,
    labels: Any,
    inputs: Any,
    num_sampled: int,
    num_classes: int,
    num_true: int = 1,
    sampled_values: Any = None,
    remove_accidental_hits: Any = True,
    partition_strategy: str = "mod",
    name: str | None = None,
    seed: int | None = None,
) -> wg.Tensor:
    """The cross entropy of the row's classes among themselves and the drawn ones, row by row."""
    right, wrong = _sampled_logits(
        weights, biases, labels, inputs, num_sampled, num_classes, num_true, sampled_values,
        remove_accidental_hits, seed,
    )  # fmt: skip
    scores = wg.nn.log_softmax(wg.concat([right, wrong], axis=1), axis=1)
    return named(-scores[:, :num_true].mean(axis=1), name)
