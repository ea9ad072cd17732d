"""Transformers: layers of attention and of a feed-forward net, stacks of them, and both together.

Inputs are (N, T, E), also without N. State and initial weights are PyTorch's. A mask is true where
attention is allowed, or floating and added to the scores; a *padding mask* (N, S) is true at what
is padding and must not be seen.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import ClassVar

from wengert import _core
from wengert._core import Tensor, float32, no_grad
from wengert.nn import init
from wengert.nn.attention import MultiHeadAttention, allowed
from wengert.nn.containers import ModuleList
from wengert.nn.dropouts import Dropout
from wengert.nn.layers import LayerNorm, Linear
from wengert.nn.module import Module

__all__ = [
    "Transformer",
    "TransformerDecoder",
    "TransformerDecoderLayer",
    "TransformerEncoder",
    "TransformerEncoderLayer",
]

Activation = str | Callable[[Tensor], Tensor]


def _with_padding(mask: Tensor | None, padding: Tensor | None) -> Tensor | None:
    """A mask of attention that leaves out what is padding, (N, S)."""
    if padding is None:
        return mask
    if padding.dtype != _core.bool:
        own = padding[..., None, None, :]
        if mask is None:
            return own
        if mask.dtype != _core.bool:
            return own + mask
        return allowed(own, mask)
    return allowed(mask, ~padding[..., None, None, :])


class _Layer(Module):
    """What both kinds of layers share: sizes, and the feed-forward net."""

    _attentions: ClassVar[tuple[str, ...]]

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: Activation = "relu",
        layer_norm_eps: float = 1e-5,
        batch_first: bool = True,
        norm_first: bool = False,
        bias: bool = True,
    ) -> None:
        if not batch_first:
            raise ValueError(f"{type(self).__name__}: inputs are (N, T, E): batch_first is True")
        if isinstance(activation, str) and activation not in ("relu", "gelu"):
            raise ValueError(
                f"{type(self).__name__}: activation must be 'relu', 'gelu' or a function, got "
                f"{activation!r}"
            )
        self.d_model = d_model
        self.nhead = nhead
        self.dim_feedforward = dim_feedforward
        self.activation = activation
        self.norm_first = norm_first
        for name in self._attentions:
            setattr(self, name, MultiHeadAttention(d_model, nhead, dropout, bias))
        self.linear1 = Linear(d_model, dim_feedforward, bias=bias)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(dim_feedforward, d_model, bias=bias)
        for i in range(1, len(self._attentions) + 2):
            setattr(self, f"norm{i}", LayerNorm(d_model, eps=layer_norm_eps, bias=bias))
        for i in range(1, len(self._attentions) + 2):
            setattr(self, f"dropout{i}", Dropout(dropout))

    def _added(self, i: int, x: Tensor, f: Callable[[Tensor], Tensor]) -> Tensor:
        """`x` and what part `i` gives for it, with the norm before or behind."""
        norm, dropout = getattr(self, f"norm{i}"), getattr(self, f"dropout{i}")
        return x + dropout(f(norm(x))) if self.norm_first else norm(x + dropout(f(x)))

    def _feed(self, x: Tensor) -> Tensor:
        f: Activation = self.activation
        if isinstance(f, str):
            f = _core.nn.relu if f == "relu" else _core.nn.gelu
        return self.linear2(self.dropout(f(self.linear1(x))))


class TransformerEncoderLayer(_Layer):
    """Self-attention and a feed-forward net, each added to its input and normalised.

    `norm_first` normalises before each part instead of behind it. `activation` is "relu", "gelu" or
    a function. In training, `dropout` acts on attention, inside the net and on what is added.

    Source: Vaswani et al.: Attention is all you need, 2017.
    """

    _attentions = ("self_attn",)
    self_attn: MultiHeadAttention

    def forward(
        self,
        src: Tensor,
        src_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        """(N, T, E) to the same shape."""
        mask = _with_padding(src_mask, src_key_padding_mask)
        x = self._added(1, src, lambda x: self.self_attn(x, mask=mask, is_causal=is_causal))
        return self._added(2, x, self._feed)


class TransformerDecoderLayer(_Layer):
    """Self-attention, attention to a memory, and a feed-forward net, each added to its input and
    normalised; as `TransformerEncoderLayer`."""

    _attentions = ("self_attn", "multihead_attn")
    self_attn: MultiHeadAttention
    multihead_attn: MultiHeadAttention

    def forward(
        self,
        tgt: Tensor,
        memory: Tensor,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
    ) -> Tensor:
        """`tgt` (N, T, E) and `memory` (N, S, E) to (N, T, E)."""
        own = _with_padding(tgt_mask, tgt_key_padding_mask)
        other = _with_padding(memory_mask, memory_key_padding_mask)
        x = self._added(1, tgt, lambda x: self.self_attn(x, mask=own, is_causal=tgt_is_causal))
        x = self._added(
            2,
            x,
            lambda x: self.multihead_attn(
                x, memory, memory, mask=other, is_causal=memory_is_causal
            ),
        )
        return self._added(3, x, self._feed)


class TransformerEncoder(Module):
    """`num_layers` copies of a layer one after another, then `norm` if there is one.

    The copies begin with the same weights, as PyTorch's do.
    """

    def __init__(self, encoder_layer: Module, num_layers: int, norm: Module | None = None) -> None:
        self.layers = ModuleList(copy.deepcopy(encoder_layer) for _ in range(num_layers))
        self.num_layers = num_layers
        self.norm = norm

    def forward(
        self,
        src: Tensor,
        mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        """(N, T, E) to the same shape."""
        for layer in self.layers:
            src = layer(src, mask, src_key_padding_mask, is_causal)
        return src if self.norm is None else self.norm(src)


class TransformerDecoder(Module):
    """`num_layers` copies of a layer one after another, then `norm` if there is one.

    The copies begin with the same weights, as PyTorch's do.
    """

    def __init__(self, decoder_layer: Module, num_layers: int, norm: Module | None = None) -> None:
        self.layers = ModuleList(copy.deepcopy(decoder_layer) for _ in range(num_layers))
        self.num_layers = num_layers
        self.norm = norm

    def forward(
        self,
        tgt: Tensor,
        memory: Tensor,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
    ) -> Tensor:
        """`tgt` (N, T, E) and `memory` (N, S, E) to (N, T, E)."""
        for layer in self.layers:
            tgt = layer(
                tgt, memory, tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask,
                tgt_is_causal, memory_is_causal,
            )  # fmt: skip
        return tgt if self.norm is None else self.norm(tgt)


class Transformer(Module):
    """An encoder, and a decoder that attends to what it gives; both end in a norm.

    >>> model = nn.Transformer(8, 2, 1, 1, dim_feedforward=16)
    >>> model(wg.ones((3, 5, 8)), wg.ones((3, 4, 8)), tgt_is_causal=True).shape
    (3, 4, 8)
    """

    def __init__(
        self,
        d_model: int = 512,
        nhead: int = 8,
        num_encoder_layers: int = 6,
        num_decoder_layers: int = 6,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: Activation = "relu",
        layer_norm_eps: float = 1e-5,
        batch_first: bool = True,
        norm_first: bool = False,
        bias: bool = True,
    ) -> None:
        self.d_model = d_model
        self.nhead = nhead

        def layer(kind: type[Module]) -> Module:
            return kind(
                d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps, batch_first,
                norm_first, bias,
            )  # fmt: skip

        def norm() -> LayerNorm:
            return LayerNorm(d_model, eps=layer_norm_eps, bias=bias)

        self.encoder = TransformerEncoder(
            layer(TransformerEncoderLayer), num_encoder_layers, norm()
        )
        self.decoder = TransformerDecoder(
            layer(TransformerDecoderLayer), num_decoder_layers, norm()
        )
        with no_grad():
            for p in self.parameters():
                if p.ndim > 1:
                    p.assign(init.xavier_uniform(p.shape))

    def forward(
        self,
        src: Tensor,
        tgt: Tensor,
        src_mask: Tensor | None = None,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        src_is_causal: bool = False,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
    ) -> Tensor:
        """`src` (N, S, E) and `tgt` (N, T, E) to (N, T, E)."""
        memory = self.encoder(src, src_mask, src_key_padding_mask, src_is_causal)
        return self.decoder(
            tgt, memory, tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask,
            tgt_is_causal, memory_is_causal,
        )  # fmt: skip

    @staticmethod
    def generate_square_subsequent_mask(sz: int) -> Tensor:
        """The mask (sz, sz) of causal attention to add to scores: 0 up to the diagonal, -inf
        behind it. `is_causal=True` does the same without it."""
        return _core.triu(_core.full((sz, sz), -float("inf"), dtype=float32), k=1)
