"""Functions over indices: sums by segment, assignments to rows, tables of counts."""

from __future__ import annotations

from typing import Any

import wengert as wg
from wengert.compat.v1._graph import in_graph, named
from wengert.compat.v1._spaces import formula
from wengert.compat.v1._table import as_tensor, dtype_of


def _flat(ids: Any, values: Any) -> tuple[wg.Tensor, wg.Tensor]:
    """Indices of any shape as a vector, and the slices that belong to them."""
    at, x = as_tensor(ids), as_tensor(values)
    rank = len(at.shape)
    return at.astype(wg.int64).reshape((-1,)), x.reshape((-1, *x.shape[rank:]))


@formula(None)
def unsorted_segment_sum(
    data: Any, segment_ids: Any, num_segments: Any, name: str | None = None
) -> wg.Tensor:
    """Sums of the slices that have the same number, for the numbers below `num_segments`."""
    at, x = _flat(segment_ids, data)
    start = wg.zeros((num_segments, *x.shape[1:]), dtype=x.dtype)
    return named(wg.index_add(start, at, x), name)


@formula(None)
def confusion_matrix(
    labels: Any,
    predictions: Any,
    num_classes: int | None = None,
    dtype: Any = wg.int32,
    name: str | None = None,
    weights: Any = None,
) -> wg.Tensor:
    """How often each class (rows) is predicted as each (columns); `num_classes` is needed, as sizes
    do not depend on values."""
    if num_classes is None:
        raise ValueError("tf.confusion_matrix: num_classes is needed")
    t, p = (as_tensor(v).astype(wg.int64).reshape((-1,)) for v in (labels, predictions))
    kind = dtype_of(dtype)
    counts = wg.ones_like(t, dtype=kind) if weights is None else as_tensor(weights).astype(kind)
    start = wg.zeros((num_classes * num_classes,), dtype=kind)
    found = wg.index_add(start, t * num_classes + p, counts)
    return named(found.reshape((num_classes, num_classes)), name)


@formula(None)
def matrix_band_part(
    input: Any, num_lower: int, num_upper: int, name: str | None = None
) -> wg.Tensor:
    """The elements of matrices at most `num_lower` below their diagonal and `num_upper` above, all
    where negative; zeros elsewhere."""
    x = as_tensor(input)
    x = x if num_lower < 0 else wg.triu(x, k=-num_lower)
    return named(x if num_upper < 0 else wg.tril(x, k=num_upper), name)


def scatter_add(
    ref: Any, indices: Any, updates: Any, use_locking: Any = None, name: Any = None
) -> wg.Tensor:
    """An assignment that adds to the rows at indices; several to one row add up."""

    def delta() -> wg.Tensor:
        at, x = _flat(indices, updates)
        return wg.index_add(wg.zeros_like(ref), at, x)

    return named(ref.assign_add(in_graph(delta)()), name)


def scatter_sub(
    ref: Any, indices: Any, updates: Any, use_locking: Any = None, name: Any = None
) -> wg.Tensor:
    """An assignment that takes away from the rows at indices; several to one row add up."""

    def delta() -> wg.Tensor:
        at, x = _flat(indices, updates)
        return wg.index_add(wg.zeros_like(ref), at, x)

    return named(ref.assign_sub(in_graph(delta)()), name)


def scatter_update(
    ref: Any, indices: Any, updates: Any, use_locking: Any = None, name: Any = None
) -> wg.Tensor:
    """An assignment that replaces the rows at indices, each of which is given once."""

    def value() -> wg.Tensor:
        at, x = _flat(indices, updates)
        given = wg.index_add(wg.zeros_like(ref), at, x)
        hit = wg.index_add(wg.zeros((ref.shape[0],), dtype=wg.int64), at, wg.ones_like(at)) > 0
        return wg.where(hit.reshape((-1, *([1] * (len(ref.shape) - 1)))), given, ref)

    return named(ref.assign(in_graph(value)()), name)
