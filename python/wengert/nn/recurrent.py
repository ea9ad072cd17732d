"""Recurrent layers."""

from __future__ import annotations

import math
from typing import Any, ClassVar, overload

from wengert import _core
from wengert._core import Tensor, concat, random, stack, zeros
from wengert.nn.module import Module, Parameter
from wengert.nn.sequences import PackedSequence

__all__ = ["GRU", "LSTM", "RNN", "GRUCell", "LSTMCell", "RNNCell"]

State = tuple[Tensor, Tensor]


def _parameters(
    owner: _Recurrent | _Cell, gates: int, inputs: int, bias: bool, suffix: str = ""
) -> None:
    """Give a module the weights and biases of one layer in one direction."""
    n = owner.hidden_size
    shapes = {
        "weight_ih": (gates * n, inputs),
        "weight_hh": (gates * n, n),
        "bias_ih": (gates * n,),
        "bias_hh": (gates * n,),
    }
    bound = 1.0 / math.sqrt(n)
    for name, shape in shapes.items():
        if bias or not name.startswith("bias"):
            value = random.uniform(shape, low=-bound, high=bound)
            setattr(owner, f"{name}{suffix}", Parameter(value))


def _parameters_of(owner: _Recurrent | _Cell, suffix: str = "") -> list[Tensor]:
    names = ["weight_ih", "weight_hh", *(["bias_ih", "bias_hh"] if owner.bias else [])]
    return [getattr(owner, f"{name}{suffix}") for name in names]


class _Recurrent(Module):
    """Layers of one kind, in one direction or both. A kind says what one of them computes."""

    _gates: ClassVar[int]
    #: How many parts the state has.
    _parts: ClassVar[int] = 1

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
    ) -> None:
        name = type(self).__name__
        if hidden_size < 1 or num_layers < 1:
            raise ValueError(
                f"{name}: hidden_size and num_layers must be positive, got {hidden_size} and "
                f"{num_layers}"
            )
        if not 0.0 <= dropout <= 1.0:
            raise ValueError(f"{name}: dropout is a probability, got {dropout}")
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.num_layers = num_layers
        self.bias = bias
        self.batch_first = batch_first
        self.dropout = dropout
        self.bidirectional = bidirectional
        for k in range(num_layers):
            inputs = input_size if k == 0 else hidden_size * (1 + bidirectional)
            for suffix in self._suffixes(k):
                _parameters(self, self._gates, inputs, bias, suffix)

    def _suffixes(self, layer: int) -> list[str]:
        return [f"_l{layer}", f"_l{layer}_reverse"][: 1 + self.bidirectional]

    def _sequence(self, *operands: Tensor, lengths: Tensor | None, reverse: bool) -> list[Tensor]:
        """One layer in one direction: `y` and the parts of the last state."""
        raise NotImplementedError

    def _run(
        self, x: Tensor, state: list[Tensor] | None, lengths: Tensor | None
    ) -> tuple[Tensor, list[Tensor]]:
        """All layers over `x`, in any of its forms; the parts of the state."""
        name = type(self).__name__
        if x.ndim not in (2, 3):
            raise _core.ShapeError(f"{name}: input has rank {x.ndim}, wanted 2 or 3")
        batched = x.ndim == 3
        if lengths is not None and not batched:
            raise _core.ShapeError(f"{name}: lengths are of a batch, and the input has rank 2")
        swap = batched and self.batch_first
        x = _core.permute_dims(x, (1, 0, 2)) if swap else x
        steps = x if batched else x[:, None]
        if state is not None and not batched:
            state = [part[:, None] for part in state]
        y, last = self._layers(steps, state, lengths)
        if not batched:
            return y[:, 0], [part[:, 0] for part in last]
        return _core.permute_dims(y, (1, 0, 2)) if swap else y, last

    def _call(
        self, x: Tensor | PackedSequence, state: list[Tensor] | None, lengths: Tensor | None
    ) -> tuple[Any, list[Tensor]]:
        """`_run` over a tensor, or over a packed sequence, to one."""
        if not isinstance(x, PackedSequence):
            return self._run(x, state, lengths)
        if lengths is not None or x.batch_first != self.batch_first:
            name, order = type(self).__name__, f"batch_first={self.batch_first}"
            raise ValueError(f"{name}: a packed sequence has {order} and lengths of its own")
        y, last = self._run(x.data, state, x.lengths)
        return x._replace(data=y), last

    def _layers(
        self, x: Tensor, state: list[Tensor] | None, lengths: Tensor | None
    ) -> tuple[Tensor, list[Tensor]]:
        """All layers over `x` (T, N, inputs)."""
        if state is None:
            size = (x.shape[1], self.hidden_size)
            zero = zeros(size, dtype=x.dtype, device=x.device)
        last: list[list[Tensor]] = []
        for k in range(self.num_layers):
            outputs = []
            for suffix in self._suffixes(k):
                i = len(last)
                start = [zero] * self._parts if state is None else [part[i] for part in state]
                operands = (x, *start, *_parameters_of(self, suffix))
                reverse = suffix.endswith("reverse")
                y, *end = self._sequence(*operands, lengths=lengths, reverse=reverse)
                outputs.append(y)
                last.append(end)
            x = outputs[0] if len(outputs) == 1 else concat(outputs, axis=-1)
            if self.training and self.dropout > 0.0 and k + 1 < self.num_layers:
                x = _core.nn.dropout(x, self.dropout)
        return x, [stack(parts) for parts in zip(*last, strict=True)]


class LSTM(_Recurrent):
    """Long short-term memory, `num_layers` deep.

        i, f, o = σ(Wᵢ x + Uᵢ h), σ(W_f x + U_f h), σ(Wₒ x + Uₒ h);  g = tanh(W_g x + U_g h)
        c ← f c + i g;  h ← o tanh(c)

    The state has PyTorch's names and layout: for layer k, `weight_ih_lk` (4·hidden, inputs) and
    `weight_hh_lk` (4·hidden, hidden) hold the gates in the order i f g o, with one bias each; the
    reverse direction of a bidirectional layer has the suffix `_reverse`. In training, `dropout`
    zeroes elements of what one layer hands to the next.
    """

    _gates = 4
    _parts = 2

    @overload
    def forward(
        self, x: Tensor, state: State | None = None, *, lengths: Tensor | None = None
    ) -> tuple[Tensor, State]: ...
    @overload
    def forward(
        self, x: PackedSequence, state: State | None = None, *, lengths: None = None
    ) -> tuple[PackedSequence, State]: ...
    def forward(
        self,
        x: Tensor | PackedSequence,
        state: State | None = None,
        *,
        lengths: Tensor | None = None,
    ) -> tuple[Any, State]:
        """Run over `x` (T, N, inputs), or (N, T, inputs) with `batch_first`, or (T, inputs).

        `state` is (h, c), each (layers · directions, N, hidden), zeros by default. Returns the
        last layer's h at every step, directions concatenated, and the final (h, c). With
        `lengths` (N,), an example ends there: behind its length h is 0, and the final state is
        that of its last step. A `PackedSequence` gives one.
        """
        y, (h, c) = self._call(x, None if state is None else list(state), lengths)
        return y, (h, c)

    def _sequence(self, *operands: Tensor, lengths: Tensor | None, reverse: bool) -> list[Tensor]:
        return list(_core.nn.lstm(*operands, lengths=lengths, reverse=reverse))


class _OneState(_Recurrent):
    """Layers whose state is one tensor."""

    @overload
    def forward(
        self, x: Tensor, state: Tensor | None = None, *, lengths: Tensor | None = None
    ) -> tuple[Tensor, Tensor]: ...
    @overload
    def forward(
        self, x: PackedSequence, state: Tensor | None = None, *, lengths: None = None
    ) -> tuple[PackedSequence, Tensor]: ...
    def forward(
        self,
        x: Tensor | PackedSequence,
        state: Tensor | None = None,
        *,
        lengths: Tensor | None = None,
    ) -> tuple[Any, Tensor]:
        """Run over `x` (T, N, inputs), or (N, T, inputs) with `batch_first`, or (T, inputs).

        `state` is (layers · directions, N, hidden), zeros by default. Returns the last layer's h
        at every step, directions concatenated, and the final state; `lengths` (N,) are those of
        examples, as for `LSTM`.
        """
        y, (h,) = self._call(x, None if state is None else [state], lengths)
        return y, h


class GRU(_OneState):
    """Gated recurrent units, `num_layers` deep.

        r, z = σ(W_r x + U_r h), σ(W_z x + U_z h);  n = tanh(W_n x + r (U_n h))
        h ← (1 − z) n + z h

    The state has PyTorch's names and layout, as that of `LSTM`, with the gates in the order r z n;
    the bias of `U_n h` is inside the product with r.
    """

    _gates = 3

    def _sequence(self, *operands: Tensor, lengths: Tensor | None, reverse: bool) -> list[Tensor]:
        return list(_core.nn.gru(*operands, lengths=lengths, reverse=reverse))


class RNN(_OneState):
    """A simple recurrent net, `num_layers` deep: `h ← tanh(W x + U h)`.

    With `nonlinearity="relu"`, the positive part instead of tanh. The state has PyTorch's names
    and layout, as that of `LSTM`.
    """

    _gates = 1

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: str = "tanh",
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
    ) -> None:
        self.nonlinearity = _nonlinearity("RNN", nonlinearity)
        super().__init__(
            input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional
        )

    def _sequence(self, *operands: Tensor, lengths: Tensor | None, reverse: bool) -> list[Tensor]:
        form = self.nonlinearity
        return list(_core.nn.rnn(*operands, lengths=lengths, nonlinearity=form, reverse=reverse))


def _nonlinearity(name: str, word: str) -> str:
    if word not in ("tanh", "relu"):
        raise ValueError(f"{name}: nonlinearity must be 'tanh' or 'relu', got {word!r}")
    return word


class _Cell(Module):
    """One step of a layer."""

    _gates: ClassVar[int]

    def __init__(self, input_size: int, hidden_size: int, bias: bool) -> None:
        if hidden_size < 1:
            name = type(self).__name__
            raise ValueError(f"{name}: hidden_size must be positive, got {hidden_size}")
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.bias = bias
        _parameters(self, self._gates, input_size, bias)

    def _start(self, x: Tensor) -> Tensor:
        """A state of zeros for this input."""
        if x.ndim not in (1, 2):
            name = type(self).__name__
            raise _core.ShapeError(f"{name}: input has rank {x.ndim}, wanted 1 or 2")
        return zeros((*x.shape[:-1], self.hidden_size), dtype=x.dtype, device=x.device)


class LSTMCell(_Cell):
    """One step of `LSTM`. The state has PyTorch's names: those of a layer without its suffix."""

    _gates = 4

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True) -> None:
        super().__init__(input_size, hidden_size, bias)

    def forward(self, x: Tensor, state: State | None = None) -> State:
        """The next (h, c), each (N, hidden), of `x` (N, inputs) and (h, c), zeros by default.

        All without N too.
        """
        zero = self._start(x)
        h, c = (zero, zero) if state is None else state
        h, c = _core.nn.lstm_cell(x, h, c, *_parameters_of(self))
        return h, c


class GRUCell(_Cell):
    """One step of `GRU`. The state has PyTorch's names: those of a layer without its suffix."""

    _gates = 3

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True) -> None:
        super().__init__(input_size, hidden_size, bias)

    def forward(self, x: Tensor, state: Tensor | None = None) -> Tensor:
        """The next h (N, hidden) of `x` (N, inputs) and h, zeros by default. All without N too."""
        zero = self._start(x)
        return _core.nn.gru_cell(x, zero if state is None else state, *_parameters_of(self))


class RNNCell(_Cell):
    """One step of `RNN`. The state has PyTorch's names: those of a layer without its suffix."""

    _gates = 1

    def __init__(
        self, input_size: int, hidden_size: int, bias: bool = True, nonlinearity: str = "tanh"
    ) -> None:
        self.nonlinearity = _nonlinearity("RNNCell", nonlinearity)
        super().__init__(input_size, hidden_size, bias)

    def forward(self, x: Tensor, state: Tensor | None = None) -> Tensor:
        """The next h (N, hidden) of `x` (N, inputs) and h, zeros by default. All without N too."""
        zero = self._start(x)
        start = zero if state is None else state
        form = self.nonlinearity
        return _core.nn.rnn_cell(x, start, *_parameters_of(self), nonlinearity=form)
