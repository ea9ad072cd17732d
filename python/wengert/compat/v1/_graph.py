"""What TensorFlow keeps beside a graph: collections, scopes, control dependencies, default values.

It belongs to the graph that it is about, and is made when it is first asked for.
"""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import wengert as wg
from wengert import _core
from wengert import graph as _graphs


class GraphKeys:
    """The names of TensorFlow's collections."""

    GLOBAL_VARIABLES = "variables"
    LOCAL_VARIABLES = "local_variables"
    MODEL_VARIABLES = "model_variables"
    TRAINABLE_VARIABLES = "trainable_variables"
    SUMMARIES = "summaries"
    LOSSES = "losses"
    REGULARIZATION_LOSSES = "regularization_losses"
    UPDATE_OPS = "update_ops"
    TRAIN_OP = "train_op"
    GLOBAL_STEP = "global_step"
    ACTIVATIONS = "activations"
    WEIGHTS = "weights"
    BIASES = "biases"
    MOVING_AVERAGE_VARIABLES = "moving_average_variables"


class State:
    """What TensorFlow keeps beside one graph."""

    def __init__(self) -> None:
        self.collections: dict[Any, list[Any]] = {}
        self.variables: dict[str, Any] = {}
        """Those of `get_variable`, by name."""
        self.scope: Any = None
        """The variable scope that is open."""
        self.scopes: dict[str, int] = {}
        """How often a scope of names was opened."""
        self.opened: dict[str, int] = {}
        """How often a scope of variables was opened since that around it was."""
        self.ranges: list[tuple[int, int, tuple[int, ...]]] = []
        """Nodes from one to another which need others, as `control_dependencies` says."""
        self.defaults: dict[int, wg.Tensor] = {}
        """What placeholders have that are not fed."""
        self.streams: set[int] = set()
        """Variables that hold the key of an op with a seed, which need no initializer."""
        self.operations: dict[str, Any] = {}
        """What is run for what it does, by name."""
        self.deltas: dict[int, wg.Tensor] = {}
        """What assignments add to their variables, of those that add."""
        self.sums: dict[tuple[int, ...], int] = {}
        """Nodes that do what several of them do."""
        self.sizes: dict[Any, wg.Tensor] = {}
        """Open sizes as tensors, for fetches."""


def state_of(graph: wg.Graph) -> State:
    """What is kept beside a graph."""
    found = vars(graph).get("_tensorflow")
    if found is None:
        found = vars(graph)["_tensorflow"] = State()
    return found


class Graph(wg.Graph):
    """A `wengert.Graph` with the methods of TensorFlow's."""

    @contextmanager
    def as_default(self) -> Iterator[Graph]:
        """Inside, functions write their nodes here."""
        with self:
            yield self

    def add_to_collection(self, name: Any, value: Any) -> None:
        """Put a value into the collection of this name."""
        state_of(self).collections.setdefault(name, []).append(value)

    def get_collection(self, name: Any, scope: str | None = None) -> list[Any]:
        """The values of a collection; with `scope`, those whose names begin so."""
        return collected(self, name, scope)

    def get_all_collection_keys(self) -> list[Any]:
        """The names of the collections."""
        return list(state_of(self).collections)

    def get_tensor_by_name(self, name: str) -> wg.Tensor:
        """The tensor of this name, with or without TensorFlow's `:0`."""
        found = name.removesuffix(":0")
        for v in collected(self, GraphKeys.GLOBAL_VARIABLES):
            if v.name.removesuffix(":0") == found:
                return v
        return self.tensor(found)

    def get_operation_by_name(self, name: str) -> Any:
        """The operation of this name."""
        found = state_of(self).operations.get(name)
        return self.tensor(name).op if found is None else found  # type: ignore[attr-defined]

    def get_operations(self) -> list[Any]:
        """The nodes in order."""
        return self.nodes

    def control_dependencies(self, control_inputs: Any) -> Any:
        """Inside, what is made takes along what `control_inputs` do."""
        from wengert.compat.v1._order import control_dependencies

        return control_dependencies(control_inputs)


def default_graph() -> wg.Graph:
    """The graph that functions write to: TensorFlow has one open from the start."""
    if not _graphs.has_default_graph():
        reset_default_graph()
    return _graphs.default_graph()


def reset_default_graph() -> None:
    """Begin anew with an empty graph where none is entered."""
    _graphs.reset_default_graph(Graph())


def state() -> State:
    """What is kept beside the default graph."""
    return state_of(default_graph())


def collected(graph: wg.Graph, name: Any, scope: str | None = None) -> list[Any]:
    """The values of a collection; with `scope`, those whose names match it from the start."""
    found = state_of(graph).collections.get(name, [])
    if scope is None:
        return list(found)
    return [x for x in found if re.match(scope, getattr(x, "name", None) or "")]


def add_to_collection(name: Any, value: Any) -> None:
    """Put a value into the collection of this name of the default graph."""
    state().collections.setdefault(name, []).append(value)


def add_to_collections(names: Sequence[Any], value: Any) -> None:
    """Put a value into several collections."""
    for name in names:
        add_to_collection(name, value)


def get_collection(key: Any, scope: str | None = None) -> list[Any]:
    """The values of a collection of the default graph; with `scope`, those whose names begin so."""
    return collected(default_graph(), key, scope)


class _Scopes(threading.local):
    def __init__(self) -> None:
        self.name = ""


_scopes = _Scopes()


def unique_scope(prefix: str, name: str) -> str:
    """The name of a scope in another that none had before."""
    names = state().scopes
    full = f"{prefix}/{name}" if prefix else name
    count = names[full] = names.get(full, -1) + 1
    return f"{full}_{count}" if count else full


@contextmanager
def name_scope(name: str | None, default_name: str | None = None, values: Any = None) -> Any:
    """Puts `name/` before the names given inside; where it was opened before, `name_1/`.

    A name that ends with a slash is a scope that was opened before. An empty one leaves all scopes.
    """
    before = _scopes.name
    name = default_name if name is None else name
    if not name:
        _scopes.name = ""
    elif name.endswith("/"):
        _scopes.name = name[:-1]
    else:
        _scopes.name = unique_scope(before, name)
    try:
        yield f"{_scopes.name}/" if _scopes.name else ""
    finally:
        _scopes.name = before


def scoped(name: str) -> str:
    """A name that is free in the default graph, with the scopes before it."""
    return default_graph()._unique(f"{_scopes.name}/{name}" if _scopes.name else name)


def in_graph(f: Callable[..., Any]) -> Callable[..., Any]:
    """`f`, called with the default graph open where no other is, nor the body of a loop."""

    @functools.wraps(f)
    def call(*args: Any, **kwargs: Any) -> Any:
        if _core.is_tracing():
            return f(*args, **kwargs)
        with default_graph():
            return f(*args, **kwargs)

    return call


def outside(f: Callable[[], Any]) -> Any:
    """What `f` makes in the default graph, also when called in the body of a loop."""

    def made() -> Any:
        with default_graph():
            return f()

    return _core.outside_trace(made)


def named(x: Any, name: str | None) -> Any:
    """`x`, called so in the graph if a name is given. In the body of a loop nothing has a name."""
    if name is not None and isinstance(x, wg.Tensor):
        graph = default_graph()
        i = graph._core.id_of(x)
        if i is not None:
            graph._core.name(i, scoped(name))
    return x


def own_node(x: wg.Tensor) -> wg.Tensor:
    """The same values as a node of its own, which plans leave out again."""
    return wg.logical_or(x, False) if x.dtype == wg.bool else x * 1


class Sizes:
    """The sizes of a tensor, some of which may be open, as `tf.shape` gives them.

    They are numbers: known ones are Python's, and an open one is a `wengert.Dim`, with which new
    shapes are made. A session gives them as an array; `wg.asarray` makes them a tensor.
    """

    def __init__(self, sizes: Sequence[Any]) -> None:
        self.sizes = tuple(sizes)

    def __len__(self) -> int:
        return len(self.sizes)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.sizes)

    def __getitem__(self, key: Any) -> Any:
        found = self.sizes[key]
        return Sizes(found) if isinstance(key, slice) else found

    def __repr__(self) -> str:
        return f"Sizes{self.sizes}"

    def tensor(self) -> wg.Tensor:
        """The sizes as a tensor of int32."""
        return size_tensor(self.sizes)

    def __add__(self, other: Any) -> Any:
        return self.tensor() + _plain(other)

    def __radd__(self, other: Any) -> Any:
        return _plain(other) + self.tensor()

    def __sub__(self, other: Any) -> Any:
        return self.tensor() - _plain(other)

    def __mul__(self, other: Any) -> Any:
        return self.tensor() * _plain(other)

    def __floordiv__(self, other: Any) -> Any:
        return self.tensor() // _plain(other)

    __rmul__ = __mul__


def _plain(x: Any) -> Any:
    return x.tensor() if isinstance(x, Sizes) else x


@in_graph
def size_tensor(size: Any) -> wg.Tensor:
    """A size, or several, as a tensor of int32."""
    if isinstance(size, tuple) and not size:
        return wg.zeros((0,), dtype=wg.int32)
    return wg.asarray(list(size) if isinstance(size, tuple) else size).astype(wg.int32)


def is_size(x: Any) -> bool:
    """Whether something counts elements: an int, or an open size."""
    return (isinstance(x, int) and not isinstance(x, bool)) or isinstance(x, wg.Dim)


def as_shape(shape: Any) -> Any:
    """A shape as the ops take it: of numbers, sizes, arrays of one number."""
    if shape is None or is_size(shape):
        return shape
    if isinstance(shape, wg.Tensor):
        if _core._is_traced(shape):
            raise wg.GraphError(
                "tf: a shape is made of numbers and of the sizes that tf.shape gives, got "
                f"{shape!r}, which is known only when the graph runs"
            )
        shape = shape.tolist()
        return as_shape(shape)
    return tuple(n if is_size(n) or isinstance(n, wg.Tensor) else int(n) for n in shape)
