"""Tables of vectors: rows by index, and sums of rows by bags of indices."""

from __future__ import annotations

from typing import Any

from wengert import _core
from wengert._core import Tensor, arange, asarray, no_grad, random, zeros
from wengert.nn._wanted import a_tensor
from wengert.nn.module import Module, Parameter

__all__ = ["Embedding", "EmbeddingBag", "embedding_bag"]


def _padding(name: str, padding_idx: int | None, rows: int) -> int | None:
    if padding_idx is None:
        return None
    if not -rows <= padding_idx < rows:
        raise ValueError(f"{name}: padding_idx {padding_idx} is outside a table of {rows} rows")
    return padding_idx % rows


class _Table(Module):
    """A table, `weight` (num_embeddings, embedding_dim)."""

    num_embeddings: int
    embedding_dim: int
    weight: Parameter
    padding_idx: int | None
    max_norm: float | None
    norm_type: float
    sparse: bool

    def _fill(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None,
        max_norm: float | None,
        norm_type: float,
        sparse: bool,
    ) -> None:
        name = type(self).__name__
        self.num_embeddings = num_embeddings
        self.embedding_dim = embedding_dim
        self.padding_idx = _padding(name, padding_idx, num_embeddings)
        self.max_norm = max_norm
        self.norm_type = norm_type
        self.sparse = sparse
        value = random.normal((num_embeddings, embedding_dim))
        if self.padding_idx is not None:
            value[self.padding_idx] = 0.0
        self.weight = Parameter(value)

    def _shrink(self, indices: Tensor) -> None:
        """Bring the rows that are read to a length of at most `max_norm`."""
        if self.max_norm is None:
            return
        with no_grad():
            flat = indices.reshape(-1)
            rows = self.weight.detach()[flat]
            norm = _core.vector_norm(rows, axis=1, keepdims=True, ord=self.norm_type)
            scale = self.max_norm / (norm + 1e-7)
            self.weight[flat] = _core.where(norm > self.max_norm, rows * scale, rows)

    def _rows(self, indices: Tensor) -> Tensor:
        """The rows; that of padding without a gradient."""
        self._shrink(indices)
        rows = _core.nn.embedding(indices, self.weight, sparse=self.sparse)
        return rows if self.padding_idx is None else self._unlearned(indices, rows)

    def _unlearned(self, indices: Tensor, rows: Tensor) -> Tensor:
        at = (indices == self.padding_idx) | (indices == self.padding_idx - self.num_embeddings)  # type: ignore[operator]
        return _core.where(at[..., None], rows.detach(), rows)


class Embedding(_Table):
    """Rows of a table, `weight` (num_embeddings, embedding_dim), initially standard normal.

    The row at `padding_idx` begins as zeros and gets no gradient. With `max_norm`, rows that are
    longer (by the norm of order `norm_type`) are shortened in the table when they are read. With
    `sparse` an eager `backward()` leaves a `RowSparse` as the gradient of the table, where lookups
    alone make it: rows and their indices, which `optim.SGD`, `Adagrad` and `SparseAdam` take.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        *,
        sparse: bool = False,
    ) -> None:
        self._fill(num_embeddings, embedding_dim, padding_idx, max_norm, norm_type, sparse)

    def forward(self, indices: Tensor) -> Tensor:
        """Integers (...) to (..., embedding_dim); `IndexError` outside the table."""
        return self._rows(indices)

    @classmethod
    def from_pretrained(
        cls,
        embeddings: Any,
        freeze: bool = True,
        padding_idx: int | None = None,
        *,
        sparse: bool = False,
    ) -> Embedding:
        """An embedding of a table that is there, by default one that is not learned."""
        table = asarray(embeddings)
        if table.ndim != 2:
            raise _core.ShapeError(
                f"Embedding: table has shape {tuple(table.shape)}, wanted (N, D)"
            )
        self = cls(0, 0, sparse=sparse)
        self.num_embeddings, self.embedding_dim = table.shape
        self.padding_idx = _padding("Embedding", padding_idx, table.shape[0])
        self.weight = Parameter(table, requires_grad=not freeze)
        return self


def embedding_bag(
    input: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    mode: str = "mean",
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
    *,
    sparse: bool = False,
) -> Tensor:
    """Sums, means or maxima of rows of a table by bags of indices.

    `input`: integers (B, n), a bag a row, or (n,), with `offsets` (B,) where bags begin (and with
    `include_last_offset` one more, where the last ends). `weight` (rows, D); the result is (B, D).
    `mode` is "sum", "mean" or "max"; `per_sample_weights` has a factor for each index of a sum.
    Indices equal to `padding_idx` do not count. A bag of nothing gives zeros. `sparse` as of
    `nn.embedding`. Raises ShapeError for other shapes, ValueError for other arguments.

    >>> table = wg.tensor([[1.0], [4.0]])
    >>> nn.embedding_bag(wg.tensor([0, 1, 1]), table, offsets=wg.tensor([0, 2])).tolist()
    [[2.5], [4.0]]
    """
    name = "embedding_bag"
    input = a_tensor(name, "input", input)
    offsets = None if offsets is None else a_tensor(name, "offsets", offsets)
    if per_sample_weights is not None:
        per_sample_weights = a_tensor(name, "per_sample_weights", per_sample_weights)
    if mode not in ("sum", "mean", "max"):
        raise ValueError(f"{name}: mode must be 'sum', 'mean' or 'max', got {mode!r}")
    if per_sample_weights is not None and mode != "sum":
        raise ValueError(f"{name}: per_sample_weights are of mode 'sum', got {mode!r}")
    if (input.ndim, offsets is None) not in ((1, False), (2, True)):
        given = "no offsets" if offsets is None else "offsets"
        raise _core.ShapeError(
            f"{name}: input {tuple(input.shape)} and {given}, wanted (B, n) without or (n,) with"
        )
    rows = _core.nn.embedding(input, weight, sparse=sparse)
    counted = _core.ones(input.shape, dtype=_core.bool, device=input.device)
    if padding_idx is not None:
        at = _padding(name, padding_idx, weight.shape[0])
        counted = (input != at) & (input != at - weight.shape[0])  # type: ignore[operator]
    if per_sample_weights is not None:
        rows = rows * per_sample_weights[..., None]
    if offsets is not None:
        count = offsets.shape[0] - bool(include_last_offset)
        places = arange(input.shape[0], device=input.device)
        inside = _core.searchsorted(offsets, places, side="right") - 1
        if include_last_offset:
            counted = counted & (inside < count)
        # By bag, which of all indices it has: (B, n).
        bags = (arange(count, device=input.device)[:, None] == inside) & counted
    else:
        bags = counted
    if mode == "max":
        out = -float("inf")
        found = _core.where(bags[..., None], rows, out).max(axis=1)
        return _core.where(bags.any(axis=1, keepdims=True), found, 0.0)
    factors = bags.astype(rows.dtype)
    if offsets is None:
        total = _core.where(bags[..., None], rows, 0.0).sum(axis=1)
    else:
        zero = zeros((count, rows.shape[1]), dtype=rows.dtype, device=rows.device)
        kept = _core.where(counted[:, None], rows, 0.0)
        total = _core.index_add(zero, _core.clip(inside, 0, max(count - 1, 0)), kept)
    if mode == "sum":
        return total
    return total / _core.maximum(factors.sum(axis=1, keepdims=True), 1.0)


class EmbeddingBag(_Table):
    """`nn.embedding_bag` of a table, `weight` (num_embeddings, embedding_dim)."""

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        mode: str = "mean",
        include_last_offset: bool = False,
        padding_idx: int | None = None,
        *,
        sparse: bool = False,
    ) -> None:
        self._fill(num_embeddings, embedding_dim, padding_idx, max_norm, norm_type, sparse)
        if mode not in ("sum", "mean", "max"):
            raise ValueError(f"EmbeddingBag: mode must be 'sum', 'mean' or 'max', got {mode!r}")
        self.mode = mode
        self.include_last_offset = include_last_offset

    def forward(
        self,
        input: Tensor,
        offsets: Tensor | None = None,
        per_sample_weights: Tensor | None = None,
    ) -> Tensor:
        """Integers (B, n), or (n,) with `offsets` (B,), to (B, embedding_dim)."""
        self._shrink(input)
        return embedding_bag(
            input,
            self.weight,
            offsets,
            self.mode,
            per_sample_weights,
            self.include_last_offset,
            self.padding_idx,
            sparse=self.sparse,
        )
