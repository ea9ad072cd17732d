"""Attention: its function, the multi-head module, and caches of keys and values."""

from __future__ import annotations

from typing import Any

from wengert import _core
from wengert._core import Device, DType, Tensor, arange, float32, int64, no_grad, zeros
from wengert.nn import init
from wengert.nn._extended import extends
from wengert.nn.layers import Linear
from wengert.nn.module import Buffer, Module, Parameter

__all__ = ["KVCache", "MultiHeadAttention", "scaled_dot_product_attention"]


@extends(_core.nn.scaled_dot_product_attention)
def scaled_dot_product_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    dropout_p: float = 0.0,
    enable_gqa: bool = False,
) -> Tensor:
    """`dropout_p` is the probability that a weight is zeroed (the others are divided by
    `1 - dropout_p`), in evaluation too: pass 0 there. With `enable_gqa`, axis -3 has heads, and
    those of `q` share the fewer ones of `k` and `v` in groups of neighbours.

    Source of the groups: Ainslie et al.: GQA: training generalized multi-query transformer models
    from multi-head checkpoints, 2023.
    """
    if not 0.0 <= dropout_p <= 1.0:
        name = "scaled_dot_product_attention"
        raise ValueError(f"{name}: dropout_p is a probability, got {dropout_p}")
    if not enable_gqa:
        return _attention(q, k, v, mask, is_causal, scale, dropout_p)
    heads = q.shape[-3] if q.ndim > 2 else 1
    shared = k.shape[-3] if k.ndim > 2 else 1
    if q.ndim < 3 or k.ndim < 3 or v.ndim < 3 or v.shape[-3] != shared or heads % shared:
        raise _core.ShapeError(
            f"scaled_dot_product_attention: heads of q {tuple(q.shape)} do not divide into those "
            f"of k {tuple(k.shape)} and v {tuple(v.shape)}"
        )
    groups = heads // shared
    q = q.reshape((*q.shape[:-3], shared, groups, *q.shape[-2:]))
    if mask is not None and mask.ndim > 2:
        own = (1, 1) if mask.shape[-3] == 1 else (shared, groups)
        mask = mask.reshape((*mask.shape[:-3], *own, *mask.shape[-2:]))
    y = _attention(q, k[..., None, :, :], v[..., None, :, :], mask, is_causal, scale, dropout_p)
    return y.reshape((*y.shape[:-4], heads, *y.shape[-2:]))


def _attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    is_causal: bool,
    scale: float | None,
    dropout_p: float,
) -> Tensor:
    if dropout_p == 0.0:
        attend = _core.nn.scaled_dot_product_attention
        return attend(q, k, v, mask=mask, is_causal=is_causal, scale=scale)
    # The weights themselves: attention to the rows of the unit matrix.
    one = _core.eye(k.shape[-2], dtype=v.dtype, device=v.device)
    weights = _attention(q, k, one, mask, is_causal, scale, 0.0)
    return _core.nn.dropout(weights, dropout_p) @ v


class KVCache(Module):
    """Keys and values of the positions that self-attention has seen, with room for more.

    `MultiHeadAttention.new_cache` makes one; `attn(x, cache=cache)` writes behind what is there, in
    place. `length` says how many positions are filled: a tensor, so that a captured function serves
    every length. A cache holds no history of gradients.

    Raises `IndexError` when a call needs more than the `capacity` positions, and then changes
    nothing.
    """

    def __init__(
        self,
        batch: int,
        num_heads: int,
        capacity: int,
        head_dim: int,
        dtype: DType = float32,
        device: str | Device | None = None,
    ) -> None:
        self.capacity = capacity
        # Positions come first, so that writing some of them moves nothing else.
        shape = (capacity, batch, num_heads, head_dim)
        self._keys = Buffer(zeros(shape, dtype=dtype, device=device), persistent=False)
        self._values = Buffer(zeros(shape, dtype=dtype, device=device), persistent=False)
        self.length = Buffer(zeros((), dtype=int64, device=device), persistent=False)

    @property
    def keys(self) -> Tensor:
        """(N, heads, capacity, head_dim); what lies behind `length` means nothing."""
        return _core.permute_dims(self._keys, (1, 2, 0, 3))

    @property
    def values(self) -> Tensor:
        """(N, heads, capacity, head_dim); what lies behind `length` means nothing."""
        return _core.permute_dims(self._values, (1, 2, 0, 3))

    def reset(self) -> None:
        """Forget everything."""
        with no_grad():
            self.length.assign(zeros((), dtype=int64, device=self.length.device))

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Write keys and values (N, heads, T, head_dim) behind those that are there.

        Returns all keys, all values, and the positions (T,) of the new ones. Gradients flow to `k`
        and `v` through what is returned.
        """
        for name, x in (("keys", k), ("values", v)):
            wanted = (*self._keys.shape[1:3], k.shape[2], self._keys.shape[3])
            if tuple(x.shape) != tuple(wanted):
                raise _core.ShapeError(f"KVCache: {name} have shape {x.shape}, wanted {wanted}")
        at = self.length + arange(k.shape[2], device=k.device)
        keys = _written(self._keys, at, k)
        values = _written(self._values, at, v)
        with no_grad():
            self.length += k.shape[2]
        return keys, values, at


def _written(buffer: Tensor, at: Tensor, x: Tensor) -> Tensor:
    """Give a buffer, positions first, the rows `x` (N, heads, T, d); all of it, positions third."""
    rows = _core.permute_dims(x, (2, 0, 1, 3))
    if not rows.requires_grad:
        with no_grad():
            buffer[at] = rows
        return _core.permute_dims(buffer, (1, 2, 0, 3))
    whole = buffer.detach()
    whole[at] = rows
    with no_grad():
        buffer.assign(whole.detach())
    return _core.permute_dims(whole, (1, 2, 0, 3))


class MultiHeadAttention(Module):
    """Attention of `num_heads` heads over vectors of `embed_dim` numbers.

    The state has PyTorch's names and layout: `in_proj_weight` (3·embed_dim, embed_dim) holds the
    projections of query, key and value in this order. With `num_kv_heads`, groups of neighbouring
    heads share keys and values, and `in_proj_weight` has embed_dim + 2·num_kv_heads·head_dim rows.
    In training, `dropout` zeroes weights of attention. Inputs are (N, T, embed_dim).

    >>> attn = nn.MultiHeadAttention(8, 4, num_kv_heads=2).eval()
    >>> cache = attn.new_cache(1, 16)
    >>> attn(wg.ones((1, 3, 8)), is_causal=True, cache=cache).shape, int(cache.length)
    ((1, 3, 8), 3)
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        *,
        num_kv_heads: int | None = None,
    ) -> None:
        if num_heads < 1 or embed_dim % num_heads:
            raise ValueError(
                f"MultiHeadAttention: embed_dim {embed_dim} does not divide into {num_heads} heads"
            )
        shared = num_heads if num_kv_heads is None else num_kv_heads
        if shared < 1 or num_heads % shared:
            raise ValueError(
                f"MultiHeadAttention: {num_heads} heads do not divide into {shared} num_kv_heads"
            )
        if isinstance(dropout, bool) or not 0.0 <= dropout <= 1.0:
            raise ValueError(f"MultiHeadAttention: dropout is a probability, got {dropout}")
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.dropout = dropout
        self.num_kv_heads = shared
        self.head_dim = embed_dim // num_heads
        rows = embed_dim + 2 * shared * self.head_dim
        self.in_proj_weight = Parameter(init.xavier_uniform((rows, embed_dim)))
        self.in_proj_bias = Parameter(zeros(rows, dtype=float32)) if bias else None
        self.out_proj = Linear(embed_dim, embed_dim, bias=bias)
        if self.out_proj.bias is not None:
            self.out_proj.bias = Parameter(zeros(embed_dim, dtype=float32))

    def new_cache(self, batch: int, length: int) -> KVCache:
        """An empty cache for `batch` sequences of at most `length` positions, in the dtype and on
        the device of the weights."""
        w = self.in_proj_weight
        return KVCache(batch, self.num_kv_heads, length, self.head_dim, w.dtype, w.device)

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        mask: Tensor | None = None,
        is_causal: bool = False,
        cache: KVCache | None = None,
    ) -> Tensor:
        """Attend from `query` (N, T, E) to `key` and `value` (N, S, E), by default the query and
        the key themselves; the result is (N, T, E). All without N too.

        `mask` broadcasts to (N, heads, T, S): true where attention is allowed, or floating and
        added to the scores. With a `cache`, the keys are those that are there and, behind them,
        those of the query; S is the cache's capacity, and `is_causal` counts from its length.
        """
        if query.ndim == 2:
            key, value = (None if x is None else x[None] for x in (key, value))
            return self.forward(query[None], key, value, mask, is_causal, cache)[0]
        if query.ndim != 3 or query.shape[2] != self.embed_dim:
            raise _core.ShapeError(
                f"MultiHeadAttention: query has shape {tuple(query.shape)}, wanted "
                f"(N, T, {self.embed_dim})"
            )
        key = query if key is None else key
        value = key if value is None else value
        if key is query and value is query:
            q, k, v = self._projected(query)
        else:
            parts = (self._part(x, i) for i, x in enumerate((query, key, value)))
            q, k, v = parts
        if cache is not None:
            if key is not query or value is not query:
                raise ValueError(
                    "MultiHeadAttention: a cache is of self-attention; pass query only"
                )
            k, v, at = cache.extend(k, v)
            mask = _reached(at, cache.capacity, mask, is_causal)
            is_causal = False
        y = scaled_dot_product_attention(
            q,
            k,
            v,
            mask=mask,
            is_causal=is_causal,
            dropout_p=self.dropout if self.training else 0.0,
            enable_gqa=self.num_kv_heads != self.num_heads,
        )
        y = _core.permute_dims(y, (0, 2, 1, 3))
        return self.out_proj(y.reshape((*y.shape[:2], self.embed_dim)))

    def _rows(self, i: int) -> slice:
        """Where the projection of query, key or value stands."""
        ends = [self.embed_dim + k * self.num_kv_heads * self.head_dim for k in range(3)]
        return slice(0 if i == 0 else ends[i - 1], ends[i])

    def _part(self, x: Tensor, i: int) -> Tensor:
        """`x` (N, T, E) by one projection, as (N, heads, T, head_dim)."""
        rows = self._rows(i)
        bias = None if self.in_proj_bias is None else self.in_proj_bias[rows]
        return self._heads(_core.nn.linear(x, self.in_proj_weight[rows], bias))

    def _heads(self, x: Tensor) -> Tensor:
        return _core.permute_dims(x.reshape((*x.shape[:2], -1, self.head_dim)), (0, 2, 1, 3))

    def _projected(self, x: Tensor) -> list[Tensor]:
        """`x` (N, T, E) by all three projections, each (N, heads, T, head_dim)."""
        y = _core.nn.linear(x, self.in_proj_weight, self.in_proj_bias)
        if self.num_kv_heads != self.num_heads:
            return [self._heads(y[..., self._rows(i)]) for i in range(3)]
        y = y.reshape((*y.shape[:2], 3, self.num_heads, self.head_dim))
        y = _core.permute_dims(y, (2, 0, 3, 1, 4))
        return [y[i] for i in range(3)]


def _reached(at: Tensor, capacity: int, mask: Tensor | None, is_causal: bool) -> Tensor:
    """Which of all positions queries at `at` (T,) may see: filled ones, those up to their own where
    causal, and what `mask` says."""
    ends = at if is_causal else at[-1:]
    seen = arange(capacity, device=at.device) <= ends[:, None]
    return seen if mask is None else allowed(mask, seen)


def allowed(mask: Tensor | None, where: Tensor) -> Tensor:
    """A mask of attention, where it is allowed at all."""
    if mask is None:
        return where
    if mask.dtype == _core.bool:
        return mask & where
    out: Any = -float("inf")
    return _core.where(where, mask, out)
