"""Placeholders, variables and sessions as TensorFlow 1 has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import wengert as wg
from wengert.compat.v1._table import dtype_of, in_graph, named, scoped
from wengert.graph import default_graph
from wengert.session import Session as _Session


def placeholder(dtype: Any, shape: Any = None, name: str | None = None) -> wg.Tensor:
    """`wengert.placeholder`, with a name made up if none is given."""
    return wg.placeholder(scoped(name or "Placeholder"), shape, dtype_of(dtype))


@in_graph
def Variable(
    initial_value: Any, trainable: Any = True, name: str | None = None, dtype: Any = None
) -> wg.Variable:
    """`wengert.Variable`, which has a value once its initializer has run."""
    return wg.Variable(initial_value, scoped(name or "Variable"), trainable, dtype_of(dtype))


@in_graph
def constant(
    value: Any, dtype: Any = None, shape: Any = None, name: str | None = None
) -> wg.Tensor:
    """A value that is known; `shape` arranges it, or repeats one number."""
    x = wg.tensor(value, dtype=dtype_of(dtype))
    if shape is not None:
        x = wg.broadcast_to(x, shape) if x.size == 1 else x.reshape(shape)
    return named(x, name)


def gradients(ys: Any, xs: Any, grad_ys: Any = None, name: str | None = None) -> list[Any]:
    """The gradients of the sum of `ys` by `xs`, weighted with `grad_ys` where given; `None` for
    what no `ys` depends on."""
    ys, xs = ([v] if isinstance(v, wg.Tensor) else list(v) for v in (ys, xs))
    if grad_ys is None:
        grad_ys = [wg.ones_like(y) for y in ys]
    elif isinstance(grad_ys, wg.Tensor):
        grad_ys = [grad_ys]
    return wg.gradients(ys, xs, grad_ys, allow_unused=True)


def assign(ref: wg.Variable, value: Any) -> wg.Tensor:
    """`ref.assign(value)`."""
    return ref.assign(value)


def assign_add(ref: wg.Variable, value: Any) -> wg.Tensor:
    """`ref.assign_add(value)`."""
    return ref.assign_add(value)


def assign_sub(ref: wg.Variable, value: Any) -> wg.Tensor:
    """`ref.assign_sub(value)`."""
    return ref.assign_sub(value)


def global_variables() -> list[wg.Variable]:
    """The variables of the default graph."""
    return list(default_graph().variables)


def trainable_variables() -> list[wg.Variable]:
    """Those that optimizers take as parameters."""
    return [v for v in global_variables() if v.trainable]


def set_random_seed(seed: int) -> None:
    """Where random numbers begin."""
    wg.random.seed(seed)


def disable_v2_behavior() -> None:
    """Nothing: this module behaves like version 1."""


class Operation:
    """What is run for what it does to variables."""

    def __init__(self, tensors: Sequence[wg.Tensor], name: str | None = None) -> None:
        self.tensors = list(tensors)
        self.name = name

    def run(
        self, feed_dict: Mapping[Any, Any] | None = None, session: Session | None = None
    ) -> None:
        """Run it in a session, or in the one that is open."""
        (session or _current("Operation.run")).run(self, feed_dict)


def global_variables_initializer() -> Operation:
    """Gives all variables of the default graph their initial values."""
    return Operation([v.assign(v.initial) for v in default_graph().variables], "init")


initialize_all_variables = global_variables_initializer


def group(*inputs: Any, name: str | None = None) -> Operation:
    """One operation that runs all of these."""
    parts = [x.tensors if isinstance(x, Operation) else [x] for x in inputs]
    return Operation([x for part in parts for x in part], name)


_open_sessions: list[Session] = []


class Session(_Session):
    """A `wengert.Session` that gives NumPy's arrays and numbers, casts what it is fed, and leaves
    variables without a value until they are initialized."""

    def __init__(self, target: str = "", graph: wg.Graph | None = None) -> None:
        if target:
            raise ValueError(f"tf.Session: there is no other machine to run on, got {target!r}")
        super().__init__(graph, initialize=False)

    def __enter__(self) -> Session:
        _open_sessions.append(self)
        return self

    def __exit__(self, *exception: Any) -> None:
        _open_sessions.remove(self)
        super().__exit__(*exception)

    def _parts(self, fetch: Any) -> list[Any]:
        return fetch.tensors if isinstance(fetch, Operation) else [fetch]

    def _value(self, fetch: Any, results: list[wg.Tensor]) -> Any:
        if isinstance(fetch, Operation):
            return None
        x = results[0]
        array = (x.astype(wg.float32) if x.dtype == wg.bfloat16 else x).to("cpu").numpy()
        return array if array.ndim else array[()]

    def _adapts(self, value: Any) -> Any:
        return True


class InteractiveSession(Session):
    """A session that is open from now on."""

    def __init__(self, target: str = "", graph: wg.Graph | None = None) -> None:
        super().__init__(target, graph)
        _open_sessions.append(self)

    def close(self) -> None:
        """Close it."""
        if self in _open_sessions:
            _open_sessions.remove(self)
        super().close()


def _current(what: str) -> Session:
    if not _open_sessions:
        raise wg.GraphError(f"{what}: no session is open; pass one, or use `with tf.Session():`")
    return _open_sessions[-1]


def _eval(
    self: wg.Tensor, feed_dict: Mapping[Any, Any] | None = None, session: Session | None = None
) -> Any:
    """The value in a session, or in the one that is open."""
    return (session or _current("Tensor.eval")).run(self, feed_dict)


class TensorShape(tuple[Any, ...]):
    """A shape as TensorFlow gives it: a size that is open is `None`."""

    def as_list(self) -> list[Any]:
        """The sizes in a list."""
        return list(self)


def _get_shape(self: wg.Tensor) -> TensorShape:
    """The shape; open sizes are `None`."""
    if self.shape is None:
        raise ValueError("get_shape: the rank is not known")
    return TensorShape(n if isinstance(n, int) else None for n in self.shape)


wg.Tensor.eval = _eval  # type: ignore[attr-defined]
wg.Tensor.get_shape = _get_shape  # type: ignore[attr-defined]
