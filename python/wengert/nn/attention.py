"""Multi-head attention."""

from __future__ import annotations

from wengert import _core
from wengert._core import Tensor, float32, zeros
from wengert.nn import init
from wengert.nn.layers import Linear
from wengert.nn.module import Module, Parameter

__all__ = ["MultiHeadAttention"]


class MultiHeadAttention(Module):
    """Attention of `num_heads` heads over vectors of `embed_dim` numbers.

    The state has PyTorch's names and layout: `in_proj_weight` (3·embed_dim, embed_dim) holds the
    projections of query, key and value in this order. Inputs are (N, T, embed_dim).
    """

    def __init__(self, embed_dim: int, num_heads: int, bias: bool = True) -> None:
        if num_heads < 1 or embed_dim % num_heads:
            raise ValueError(
                f"MultiHeadAttention: embed_dim {embed_dim} does not divide into {num_heads} heads"
            )
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.in_proj_weight = Parameter(init.xavier_uniform((3 * embed_dim, embed_dim)))
        self.in_proj_bias = Parameter(zeros(3 * embed_dim, dtype=float32)) if bias else None
        self.out_proj = Linear(embed_dim, embed_dim, bias=bias)
        if self.out_proj.bias is not None:
            self.out_proj.bias = Parameter(zeros(embed_dim, dtype=float32))

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        """Attend from `query` (N, T, E) to `key` and `value` (N, S, E), by default the query and
        the key themselves; the result is (N, T, E).

        `mask` broadcasts to (N, heads, T, S): true where attention is allowed, or floating and
        added to the scores.
        """
        key = query if key is None else key
        value = key if value is None else value
        if key is query and value is query:
            q, k, v = self._split(self._project(query, 0, 3), 3)
        else:
            q, k, v = (
                self._split(self._project(x, i, i + 1), 1)[0]
                for i, x in enumerate((query, key, value))
            )
        y = _core.nn.scaled_dot_product_attention(q, k, v, mask=mask, is_causal=is_causal)
        y = _core.permute_dims(y, (0, 2, 1, 3))
        return self.out_proj(y.reshape((*y.shape[:2], self.embed_dim)))

    def _project(self, x: Tensor, start: int, stop: int) -> Tensor:
        """`x` through the projections from `start` to `stop` of query, key and value."""
        rows = slice(start * self.embed_dim, stop * self.embed_dim)
        bias = None if self.in_proj_bias is None else self.in_proj_bias[rows]
        return _core.nn.linear(x, self.in_proj_weight[rows], bias)

    def _split(self, x: Tensor, parts: int) -> list[Tensor]:
        """(N, T, parts·E) as `parts` tensors (N, heads, T, E / heads)."""
        x = x.reshape((*x.shape[:2], parts, self.num_heads, self.embed_dim // self.num_heads))
        x = _core.permute_dims(x, (2, 0, 3, 1, 4))
        return [x[i] for i in range(parts)]
