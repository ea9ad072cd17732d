"""Random numbers, which are new in each run."""

from __future__ import annotations

from typing import Any

import wengert as wg
from wengert.compat.v1._graph import as_shape, named
from wengert.compat.v1._scopes import truncated
from wengert.compat.v1._spaces import formula
from wengert.compat.v1._state import key_of
from wengert.compat.v1._table import as_tensor, dtype_of


def _parameter(x: Any, dtype: Any) -> Any:
    """A number beside random ones: a tensor in their dtype."""
    return x.astype(dtype) if isinstance(x, wg.Tensor) else x


@formula(None)
def random_normal(
    shape: Any,
    mean: Any = 0.0,
    stddev: Any = 1.0,
    dtype: Any = wg.float32,
    seed: int | None = None,
    name: str | None = None,
) -> wg.Tensor:
    """Normal numbers, new in each run."""
    kind = dtype_of(dtype)
    x = wg.random.normal(as_shape(shape), dtype=kind, key=key_of(seed))
    return named(x * _parameter(stddev, kind) + _parameter(mean, kind), name)


@formula(None)
def random_uniform(
    shape: Any,
    minval: Any = 0,
    maxval: Any = None,
    dtype: Any = wg.float32,
    seed: int | None = None,
    name: str | None = None,
) -> wg.Tensor:
    """Uniform numbers in `[minval, maxval)`, below 1 by default, new in each run. Integers need
    `maxval`."""
    kind = dtype_of(dtype)
    if wg.isdtype(kind, "integral"):
        if maxval is None:
            raise ValueError("tf.random_uniform: maxval is needed for integers")
        drawn = wg.random.integers(minval, maxval, as_shape(shape), dtype=kind, key=key_of(seed))
        return named(drawn, name)
    x = wg.random.uniform(as_shape(shape), dtype=kind, key=key_of(seed))
    low, high = _parameter(minval, kind), _parameter(1.0 if maxval is None else maxval, kind)
    return named(x * (high - low) + low, name)


@formula(None)
def truncated_normal(
    shape: Any,
    mean: Any = 0.0,
    stddev: Any = 1.0,
    dtype: Any = wg.float32,
    seed: int | None = None,
    name: str | None = None,
) -> wg.Tensor:
    """Normal numbers within two standard deviations."""
    return named(truncated(as_shape(shape), mean, stddev, dtype_of(dtype), seed), name)


@formula(None)
def random_shuffle(value: Any, seed: int | None = None, name: str | None = None) -> wg.Tensor:
    """The slices along the first axis in random order."""
    x = as_tensor(value)
    order = wg.argsort(wg.random.uniform((x.shape[0],), key=key_of(seed)))
    return named(wg.take(x, order, axis=0), name)


@formula(None)
def multinomial(
    logits: Any,
    num_samples: int,
    seed: int | None = None,
    name: str | None = None,
    output_dtype: Any = wg.int64,
) -> wg.Tensor:
    """Classes, `num_samples` for each row of logits."""
    x = as_tensor(logits)
    rows = wg.broadcast_to(wg.expand_dims(x, 1), (x.shape[0], num_samples, x.shape[1]))
    return named(wg.random.categorical(rows, key=key_of(seed)).astype(output_dtype), name)
