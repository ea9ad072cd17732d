"""Recurrent layers."""

from __future__ import annotations

import math

from wengert import _core
from wengert._core import Tensor, concat, random, stack, zeros
from wengert.nn.module import Module, Parameter

__all__ = ["LSTM"]

State = tuple[Tensor, Tensor]


class LSTM(Module):
    """Long short-term memory, `num_layers` deep.

        i, f, o = σ(Wᵢ x + Uᵢ h), σ(W_f x + U_f h), σ(Wₒ x + Uₒ h);  g = tanh(W_g x + U_g h)
        c ← f c + i g;  h ← o tanh(c)

    The state has PyTorch's names and layout: for layer k, `weight_ih_lk` (4·hidden, inputs) and
    `weight_hh_lk` (4·hidden, hidden) hold the gates in the order i f g o, with one bias each; the
    reverse direction of a bidirectional layer has the suffix `_reverse`.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        bidirectional: bool = False,
    ) -> None:
        if hidden_size < 1 or num_layers < 1:
            raise ValueError(
                f"LSTM: hidden_size and num_layers must be positive, got {hidden_size} and "
                f"{num_layers}"
            )
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.num_layers = num_layers
        self.bias = bias
        self.batch_first = batch_first
        self.bidirectional = bidirectional
        bound = 1.0 / math.sqrt(hidden_size)
        for k in range(num_layers):
            inputs = input_size if k == 0 else hidden_size * (1 + bidirectional)
            for suffix in self._suffixes(k):
                shapes = {
                    "weight_ih": (4 * hidden_size, inputs),
                    "weight_hh": (4 * hidden_size, hidden_size),
                    "bias_ih": (4 * hidden_size,),
                    "bias_hh": (4 * hidden_size,),
                }
                for name, shape in shapes.items():
                    if bias or not name.startswith("bias"):
                        value = random.uniform(shape, low=-bound, high=bound)
                        setattr(self, f"{name}{suffix}", Parameter(value))

    def _suffixes(self, layer: int) -> list[str]:
        return [f"_l{layer}", f"_l{layer}_reverse"][: 1 + self.bidirectional]

    def forward(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Run over `x` (T, N, inputs), or (N, T, inputs) with `batch_first`, or (T, inputs).

        `state` is (h, c), each (layers · directions, N, hidden), zeros by default. Returns the
        last layer's h at every step, directions concatenated, and the final (h, c).
        """
        if x.ndim not in (2, 3):
            raise _core.ShapeError(f"LSTM: input has rank {x.ndim}, wanted 2 or 3")
        batched = x.ndim == 3
        swap = batched and self.batch_first
        x = _core.permute_dims(x, (1, 0, 2)) if swap else x
        steps = x if batched else x[:, None]
        if state is not None and not batched:
            state = (state[0][:, None], state[1][:, None])
        y, (h, c) = self._layers(steps, state)
        if not batched:
            return y[:, 0], (h[:, 0], c[:, 0])
        return _core.permute_dims(y, (1, 0, 2)) if swap else y, (h, c)

    def _layers(self, x: Tensor, state: State | None) -> tuple[Tensor, State]:
        """All layers over `x` (T, N, inputs)."""
        directions = 1 + self.bidirectional
        if state is None:
            size = (x.shape[1], self.hidden_size)
            zero = zeros(size, dtype=x.dtype, device=x.device)
        last: list[State] = []
        for k in range(self.num_layers):
            outputs = []
            for suffix in self._suffixes(k):
                i = len(last)
                start = (zero, zero) if state is None else (state[0][i], state[1][i])
                y, end = self._run(x, suffix, start)
                outputs.append(y)
                last.append(end)
            x = outputs[0] if directions == 1 else concat(outputs, axis=-1)
        return x, (stack([h for h, _ in last]), stack([c for _, c in last]))

    def _run(self, x: Tensor, suffix: str, state: State) -> tuple[Tensor, State]:
        """One layer in one direction."""
        weight, recurrent = getattr(self, f"weight_ih{suffix}"), getattr(self, f"weight_hh{suffix}")
        bias = None
        if self.bias:
            bias = getattr(self, f"bias_ih{suffix}") + getattr(self, f"bias_hh{suffix}")
        inputs = _core.nn.linear(x, weight, bias)  # all steps at once
        h, c = state
        n = self.hidden_size
        order = range(x.shape[0])
        outputs = []
        for t in reversed(order) if suffix.endswith("reverse") else order:
            gates = inputs[t] + _core.nn.linear(h, recurrent)
            i, f, g, o = (gates[..., k * n : (k + 1) * n] for k in range(4))
            c = _core.nn.sigmoid(f) * c + _core.nn.sigmoid(i) * _core.tanh(g)
            h = _core.nn.sigmoid(o) * _core.tanh(c)
            outputs.append(h)
        if suffix.endswith("reverse"):
            outputs.reverse()
        return stack(outputs), (h, c)
