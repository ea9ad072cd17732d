"""Recurrent cells and networks: `tf.nn.rnn_cell`, `dynamic_rnn` and their kin."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Sequence
from typing import Any

import wengert as wg
from wengert import pytree
from wengert.compat.v1._formulas import reverse_sequence
from wengert.compat.v1._graph import in_graph
from wengert.compat.v1._scopes import (
    AUTO_REUSE,
    constant_initializer,
    get_variable,
    in_body,
    variable_scope,
)
from wengert.compat.v1._spaces import Space, formula, nn
from wengert.compat.v1._table import as_tensor, dtype_of

rnn_cell = Space("nn.rnn_cell")
nn.rnn_cell = rnn_cell

LSTMStateTuple = namedtuple("LSTMStateTuple", "c h")
rnn_cell.LSTMStateTuple = LSTMStateTuple


class RNNCell:
    """One step of a recurrent network: `output, state = cell(input, state)`.

    A class over it defines `state_size`, `output_size`, and `call(inputs, state)` or `__call__`.
    Its variables are made by the first call, in the scope that is open, and used by all others.
    """

    name: str | None = None
    scope_name = "rnn_cell"
    """What its scope is called where it has no name."""

    def __init__(self, name: str | None = None, reuse: Any = None, **options: Any) -> None:
        self.name, self.reuse = name, reuse
        self._scope: Any = None

    @property
    def state_size(self) -> Any:
        """The size of the state, or a structure of sizes."""
        raise NotImplementedError

    @property
    def output_size(self) -> int:
        """The size of the output."""
        raise NotImplementedError

    def zero_state(self, batch_size: Any, dtype: Any = wg.float32) -> Any:
        """The state that networks begin with."""
        return in_graph(lambda: _zeros(self.state_size, batch_size, dtype_of(dtype)))()

    @in_graph
    def __call__(self, inputs: Any, state: Any, scope: Any = None) -> Any:
        """The output and the next state."""
        made = vars(self).get("_scope")
        if made is None:
            reuse = vars(self).get("reuse")
            with variable_scope(scope or self.name or self.scope_name, reuse=reuse) as found:
                result = self.call(inputs, state)
            self._scope = found
            return result
        with variable_scope(made, reuse=AUTO_REUSE, auxiliary_name_scope=False):
            return self.call(inputs, state)

    def call(self, inputs: Any, state: Any) -> Any:
        """The output and the next state."""
        raise NotImplementedError


rnn_cell.RNNCell = RNNCell


def _zeros(size: Any, batch: Any, dtype: Any) -> Any:
    """Zeros for a structure of sizes."""
    if isinstance(size, int):
        return wg.zeros((batch, size), dtype=dtype)
    parts = [_zeros(n, batch, dtype) for n in size]
    return type(size)(*parts) if hasattr(size, "_fields") else tuple(parts)


def _cell(cls: type) -> type:
    setattr(rnn_cell, cls.__name__, cls)
    return cls


def _product(
    parts: Sequence[Any], units: int, kernel: Any = None, bias: Any = 0.0, name: str = ""
) -> wg.Tensor:
    """`[parts …] kernel + bias` with variables of these names."""
    x = wg.concat(list(parts), axis=1)
    if not isinstance(x.shape[1], int):
        raise ValueError(f"tf.nn.rnn_cell: the last axis must have a known size, got {parts[0]!r}")
    w = get_variable(f"{name}kernel", [x.shape[1], units], x.dtype, kernel)
    start = constant_initializer(bias) if isinstance(bias, float) else bias
    return x @ w + get_variable(f"{name}bias", [units], x.dtype, start)


@_cell
class BasicRNNCell(RNNCell):
    """`activation([x, h] kernel + bias)`: output and state."""

    scope_name = "basic_rnn_cell"

    def __init__(
        self,
        num_units: int,
        activation: Any = None,
        reuse: Any = None,
        name: str | None = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(name, reuse)
        self._units, self._activation = num_units, activation or wg.tanh

    @property
    def state_size(self) -> int:
        """The number of units."""
        return self._units

    @property
    def output_size(self) -> int:
        """The number of units."""
        return self._units

    def call(self, inputs: Any, state: Any) -> Any:
        """The output and the next state."""
        h = self._activation(_product([inputs, state], self._units))
        return h, h


@_cell
class GRUCell(RNNCell):
    """Gates `r, u = σ([x, h] kernel + bias)`, `c = activation([x, r h] kernel + bias)`,
    `u h + (1 - u) c`. The bias of the gates begins at 1."""

    scope_name = "gru_cell"

    def __init__(
        self,
        num_units: int,
        activation: Any = None,
        reuse: Any = None,
        kernel_initializer: Any = None,
        bias_initializer: Any = None,
        name: str | None = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(name, reuse)
        self._units, self._activation = num_units, activation or wg.tanh
        self._kernel, self._bias = kernel_initializer, bias_initializer

    @property
    def state_size(self) -> int:
        """The number of units."""
        return self._units

    @property
    def output_size(self) -> int:
        """The number of units."""
        return self._units

    def call(self, inputs: Any, state: Any) -> Any:
        """The output and the next state."""
        n = self._units
        ones = 1.0 if self._bias is None else self._bias
        zeros = 0.0 if self._bias is None else self._bias
        gates = wg.sigmoid(_product([inputs, state], 2 * n, self._kernel, ones, "gates/"))
        r, u = gates[:, :n], gates[:, n:]
        c = _product([inputs, r * state], n, self._kernel, zeros, "candidate/")
        h = u * state + (1.0 - u) * self._activation(c)
        return h, h


@_cell
class BasicLSTMCell(RNNCell):
    """Gates `i, j, f, o = [x, h] kernel + bias`, `c = σ(f + forget_bias) c + σ(i)
    activation(j)`, `h = σ(o) activation(c)`. The state is the pair `LSTMStateTuple(c, h)`, or
    their concatenation with `state_is_tuple=False`."""

    scope_name = "basic_lstm_cell"

    def __init__(
        self,
        num_units: int,
        forget_bias: float = 1.0,
        state_is_tuple: Any = True,
        activation: Any = None,
        reuse: Any = None,
        name: str | None = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(name, reuse)
        self._units, self._activation = num_units, activation or wg.tanh
        self._forget, self._pair = forget_bias, bool(state_is_tuple)

    @property
    def state_size(self) -> Any:
        """The sizes of `c` and `h`."""
        n = self._units
        return LSTMStateTuple(n, n) if self._pair else 2 * n

    @property
    def output_size(self) -> int:
        """The number of units."""
        return self._units

    def _split(self, state: Any, width: int) -> tuple[Any, Any]:
        if self._pair:
            return tuple(state)  # type: ignore[return-value]
        return state[:, : self._units], state[:, self._units :]

    def _joined(self, c: Any, h: Any) -> Any:
        return LSTMStateTuple(c, h) if self._pair else wg.concat([c, h], axis=1)

    def call(self, inputs: Any, state: Any) -> Any:
        """The output and the next state."""
        n, f = self._units, self._activation
        c, h = self._split(state, n)
        gates = _product([inputs, h], 4 * n)
        i, j, forget, o = (gates[:, k * n : (k + 1) * n] for k in range(4))
        c = c * wg.sigmoid(forget + self._forget) + wg.sigmoid(i) * f(j)
        h = f(c) * wg.sigmoid(o)
        return h, self._joined(c, h)


@_cell
class LSTMCell(BasicLSTMCell):
    """`BasicLSTMCell` with peepholes (`w_i_diag · c` and so on in the gates), limits of `c`, and a
    projection of `h` to `num_proj` numbers, where these are asked for."""

    scope_name = "lstm_cell"

    def __init__(
        self,
        num_units: int,
        use_peepholes: Any = False,
        cell_clip: float | None = None,
        initializer: Any = None,
        num_proj: int | None = None,
        proj_clip: float | None = None,
        num_unit_shards: Any = None,
        num_proj_shards: Any = None,
        forget_bias: float = 1.0,
        state_is_tuple: Any = True,
        activation: Any = None,
        reuse: Any = None,
        name: str | None = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(num_units, forget_bias, state_is_tuple, activation, reuse, name)
        self._peepholes, self._clip, self._initializer = use_peepholes, cell_clip, initializer
        self._proj, self._proj_clip = num_proj, proj_clip

    @property
    def state_size(self) -> Any:
        """The sizes of `c` and `h`."""
        n, m = self._units, self.output_size
        return LSTMStateTuple(n, m) if self._pair else n + m

    @property
    def output_size(self) -> int:
        """The number of units, or of those that they are projected to."""
        return self._proj or self._units

    def call(self, inputs: Any, state: Any) -> Any:
        """The output and the next state."""
        n, f = self._units, self._activation
        c, h = self._split(state, n)
        gates = _product([inputs, h], 4 * n, self._initializer)
        i, j, forget, o = (gates[:, k * n : (k + 1) * n] for k in range(4))
        peep: Any = dict.fromkeys("fio", 0.0)
        if self._peepholes:
            peep = {
                k: get_variable(f"w_{k}_diag", [n], gates.dtype, self._initializer) for k in "fio"
            }
        forget = wg.sigmoid(forget + self._forget + peep["f"] * c)
        c = forget * c + wg.sigmoid(i + peep["i"] * c) * f(j)
        if self._clip is not None:
            c = wg.clip(c, -self._clip, self._clip)
        h = wg.sigmoid(o + peep["o"] * c) * f(c)
        if self._proj is not None:
            shape = [n, self._proj]
            h = h @ get_variable("projection/kernel", shape, h.dtype, self._initializer)
            if self._proj_clip is not None:
                h = wg.clip(h, -self._proj_clip, self._proj_clip)
        return h, self._joined(c, h)


@_cell
class MultiRNNCell(RNNCell):
    """Cells one above the other; the state is the tuple of theirs."""

    scope_name = "multi_rnn_cell"

    def __init__(self, cells: Any, state_is_tuple: Any = True) -> None:
        super().__init__()
        self._cells = list(cells)
        if not self._cells:
            raise ValueError("MultiRNNCell: there are no cells")
        if not state_is_tuple:
            raise NotImplementedError("MultiRNNCell: states are tuples")
        if len({id(cell) for cell in self._cells}) != len(self._cells):
            raise ValueError(
                "MultiRNNCell: one cell stands in several places, which would share its "
                "variables; make each its own: [cell() for _ in range(n)]"
            )

    @property
    def state_size(self) -> Any:
        """The sizes of all states."""
        return tuple(cell.state_size for cell in self._cells)

    @property
    def output_size(self) -> int:
        """The size of the last cell's output."""
        return self._cells[-1].output_size

    def zero_state(self, batch_size: Any, dtype: Any = wg.float32) -> Any:
        """The states that networks begin with."""
        return tuple(cell.zero_state(batch_size, dtype) for cell in self._cells)

    def call(self, inputs: Any, state: Any) -> Any:
        """The output and the next states."""
        following = []
        for k, (cell, old) in enumerate(zip(self._cells, state, strict=True)):
            with variable_scope(f"cell_{k}"):
                inputs, new = cell(inputs, old)
            following.append(new)
        return inputs, tuple(following)


class _Wrapper(RNNCell):
    """A cell around another, with its sizes and no scope of its own."""

    def __init__(self, cell: Any) -> None:
        super().__init__()
        self._cell = cell

    @property
    def state_size(self) -> Any:
        """The inner cell's."""
        return self._cell.state_size

    @property
    def output_size(self) -> int:
        """The inner cell's."""
        return self._cell.output_size

    def zero_state(self, batch_size: Any, dtype: Any = wg.float32) -> Any:
        """The inner cell's."""
        return self._cell.zero_state(batch_size, dtype)

    @in_graph
    def __call__(self, inputs: Any, state: Any, scope: Any = None) -> Any:
        """The output and the next state."""
        return self.call(inputs, state)


@_cell
class DropoutWrapper(_Wrapper):
    """A cell with dropout of its inputs, outputs and states (but for the `c` of LSTM cells), each
    of which keeps its elements with a probability."""

    def __init__(
        self,
        cell: Any,
        input_keep_prob: Any = 1.0,
        output_keep_prob: Any = 1.0,
        state_keep_prob: Any = 1.0,
        variational_recurrent: Any = False,
        input_size: Any = None,
        dtype: Any = None,
        seed: int | None = None,
    ) -> None:
        super().__init__(cell)
        if variational_recurrent:
            raise NotImplementedError("DropoutWrapper: variational_recurrent is not provided")
        self._keep = input_keep_prob, output_keep_prob, state_keep_prob

    def call(self, inputs: Any, state: Any) -> Any:
        """The output and the next state."""
        before, after, between = self._keep
        output, new = self._cell(_dropped(inputs, before), state)

        def drop(x: Any) -> Any:
            if isinstance(x, LSTMStateTuple):
                return LSTMStateTuple(x.c, _dropped(x.h, between))
            if isinstance(x, tuple):
                return tuple(drop(part) for part in x)
            return _dropped(x, between)

        return _dropped(output, after), drop(new)


def _dropped(x: Any, keep: Any) -> Any:
    return x if isinstance(keep, float | int) and keep >= 1.0 else nn.dropout(x, keep)


@_cell
class ResidualWrapper(_Wrapper):
    """A cell whose inputs are added to its outputs."""

    def call(self, inputs: Any, state: Any) -> Any:
        """The output and the next state."""
        output, new = self._cell(inputs, state)
        return inputs + output, new


# Networks.


def _start(cell: Any, batch: Any, initial_state: Any, dtype: Any, op: str) -> Any:
    if initial_state is not None:
        return pytree.map(as_tensor, initial_state)
    if dtype is None:
        raise ValueError(f"tf.nn.{op}: without initial_state, dtype is needed")
    return cell.zero_state(batch, dtype)


def _kept(going: Any, new: Any, old: Any) -> Any:
    """New values where a sequence goes on, old ones where it has ended."""
    return pytree.map(
        lambda a, b: wg.where(going.reshape((-1, *([1] * (len(a.shape) - 1)))), a, b), new, old
    )


@formula(nn)
def dynamic_rnn(
    cell: Any,
    inputs: Any,
    sequence_length: Any = None,
    initial_state: Any = None,
    dtype: Any = None,
    parallel_iterations: Any = None,
    swap_memory: Any = False,
    time_major: Any = False,
    scope: Any = None,
) -> tuple[Any, Any]:
    """Outputs (n, time, size) of a cell along sequences (n, time, features), and its last state.

    From `sequence_length` on, outputs are zero and the state stays. With `time_major` time is the
    first axis of inputs and outputs.
    """
    x = as_tensor(inputs)
    if x.shape is None or len(x.shape) < 3:
        raise wg.ShapeError(f"tf.nn.dynamic_rnn: inputs have three axes, got {x!r}")
    x = x if time_major else wg.swapaxes(x, 0, 1)
    with variable_scope(scope or "rnn"):
        start = _start(cell, x.shape[1], initial_state, dtype, "dynamic_rnn")
        ends = None
        if sequence_length is not None:
            # As many as there are examples, which two open sizes do not say.
            ends = as_tensor(sequence_length).astype(wg.int64).reshape((x.shape[1],))

        def step(state: Any, part: Any) -> tuple[Any, Any]:
            at, value = part
            output, new = cell(value, state)
            if ends is not None:
                going = at < ends
                new = _kept(going, new, state)
                output = _kept(going, output, pytree.map(wg.zeros_like, output))
            return new, output

        times = wg.arange(x.shape[0])
        last, outputs = wg.scan(in_body(step), start, (times, x))
    return (outputs if time_major else pytree.map(lambda y: wg.swapaxes(y, 0, 1), outputs)), last


@formula(nn)
def static_rnn(
    cell: Any,
    inputs: Sequence[Any],
    initial_state: Any = None,
    dtype: Any = None,
    sequence_length: Any = None,
    scope: Any = None,
) -> tuple[list[Any], Any]:
    """Outputs of a cell along a list of inputs (n, features), and its last state; as
    `dynamic_rnn`, written out."""
    inputs = [as_tensor(x) for x in inputs]
    if not inputs:
        raise ValueError("tf.nn.static_rnn: there are no inputs")
    ends = None if sequence_length is None else as_tensor(sequence_length)
    outputs = []
    with variable_scope(scope or "rnn"):
        state = _start(cell, inputs[0].shape[0], initial_state, dtype, "static_rnn")
        for at, x in enumerate(inputs):
            output, new = cell(x, state)
            if ends is not None:
                going = ends > at
                new = _kept(going, new, state)
                output = _kept(going, output, pytree.map(wg.zeros_like, output))
            state = new
            outputs.append(output)
    return outputs, state


@formula(nn)
def bidirectional_dynamic_rnn(
    cell_fw: Any,
    cell_bw: Any,
    inputs: Any,
    sequence_length: Any = None,
    initial_state_fw: Any = None,
    initial_state_bw: Any = None,
    dtype: Any = None,
    parallel_iterations: Any = None,
    swap_memory: Any = False,
    time_major: Any = False,
    scope: Any = None,
) -> tuple[Any, Any]:
    """The pair of outputs, forward and backward, and the pair of last states."""
    x = as_tensor(inputs)
    time = 0 if time_major else 1

    def turned(y: Any) -> Any:
        if sequence_length is None:
            return wg.flip(y, axis=time)
        return reverse_sequence(y, sequence_length, seq_axis=time, batch_axis=1 - time)

    def along(cell: Any, y: Any, start: Any, name: str) -> Any:
        return dynamic_rnn(
            cell, y, sequence_length, start, dtype, time_major=time_major, scope=name
        )

    with variable_scope(scope or "bidirectional_rnn"):
        forward, last = along(cell_fw, x, initial_state_fw, "fw")
        backward, first = along(cell_bw, turned(x), initial_state_bw, "bw")
    return (forward, pytree.map(turned, backward)), (last, first)


@formula(nn)
def static_bidirectional_rnn(
    cell_fw: Any,
    cell_bw: Any,
    inputs: Sequence[Any],
    initial_state_fw: Any = None,
    initial_state_bw: Any = None,
    dtype: Any = None,
    sequence_length: Any = None,
    scope: Any = None,
) -> tuple[list[Any], Any, Any]:
    """Outputs of both directions side by side, the last state forward and backward."""
    if sequence_length is not None:
        raise NotImplementedError(
            "tf.nn.static_bidirectional_rnn: with lengths, use bidirectional_dynamic_rnn"
        )
    with variable_scope(scope or "bidirectional_rnn"):
        forward, last = static_rnn(cell_fw, inputs, initial_state_fw, dtype, scope="fw")
        backward, first = static_rnn(
            cell_bw, list(inputs)[::-1], initial_state_bw, dtype, scope="bw"
        )
    pairs = zip(forward, reversed(backward), strict=True)
    return [wg.concat([a, b], axis=1) for a, b in pairs], last, first
