"""Sessions as TensorFlow 1 has them: results are NumPy's, variables begin without a value."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np

import wengert as wg
from wengert.compat.v1._graph import Sizes, default_graph, is_size, size_tensor, state_of
from wengert.compat.v1._order import Fetch, needed_by
from wengert.graph import graph_of
from wengert.session import Session as _Session

_open_sessions: list[Session] = []


class Session(_Session):
    """A `wengert.Session` that gives NumPy's arrays and numbers, casts what it is fed, and leaves
    variables without a value until their initializers run.

    `target` is empty; `config` is accepted, see `ConfigProto`.
    """

    def __init__(self, target: str = "", graph: wg.Graph | None = None, config: Any = None) -> None:
        if target:
            raise ValueError(f"tf.Session: there are no servers here, got target={target!r}")
        super().__init__(default_graph() if graph is None else graph, initialize=False)
        self._entered: list[Any] = []
        self._needs: dict[Any, list[int]] = {}

    def __enter__(self) -> Session:
        _open_sessions.append(self)
        graph = None if default_graph() is self.graph else self.graph
        self._entered.append(graph)
        if graph is not None:
            graph.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        graph = self._entered.pop()
        if graph is not None:
            graph.__exit__(*exception)
        _open_sessions.remove(self)
        super().__exit__(*exception)

    @contextmanager
    def as_default(self) -> Iterator[Session]:
        """Inside, it is the session that is open; it stays open behind."""
        _open_sessions.append(self)
        try:
            yield self
        finally:
            _open_sessions.remove(self)

    def run(
        self,
        fetches: Any,
        feed_dict: Mapping[Any, Any] | None = None,
        options: Any = None,
        run_metadata: Any = None,
    ) -> Any:
        """The values of `fetches`, which may be nested, with values for placeholders and others.

        Refused as by `wengert.Session.run`. `options` and `run_metadata` are not used: see
        `wengert.profile`.
        """
        if feed_dict is not None and not isinstance(feed_dict, Mapping):
            raise TypeError(f"tf.Session.run: feed_dict is a dict, got {type(feed_dict).__name__}")
        feeds: dict[Any, Any] = {}
        for key, value in (feed_dict or {}).items():
            feeds.update(_pairs(key, value))
        return super().run(fetches, feeds)

    def _parts(self, fetch: Any) -> list[Any]:
        if isinstance(fetch, str):
            fetch = state_of(self.graph).operations.get(fetch, fetch)
        if isinstance(fetch, Fetch):
            return fetch.tensors
        if is_size(fetch) or isinstance(fetch, Sizes):
            return [self._sizes(fetch)]
        return [_plain(fetch)]

    def _sizes(self, fetch: Any) -> wg.Tensor:
        """The node that counts a size, made once."""
        made = state_of(self.graph).sizes
        key = fetch.sizes if isinstance(fetch, Sizes) else fetch
        if key not in made:
            with self.graph:
                made[key] = size_tensor(key)
        return made[key]

    def _value(self, fetch: Any, results: list[wg.Tensor]) -> Any:
        if isinstance(fetch, str):
            fetch = state_of(self.graph).operations.get(fetch, fetch)
        if not isinstance(fetch, Fetch):
            return _array(results[0])
        return fetch.finish([_array(x) for x in results] if fetch.reads else [])

    def _run(self, ids: list[int], feeds: dict[int, wg.Tensor]) -> list[wg.Tensor]:
        key = (tuple(ids), tuple(feeds), len(self.graph))
        extra = self._needs.get(key)
        if extra is None:
            if len(self._needs) > 256:
                self._needs.clear()
            extra = self._needs[key] = needed_by(self.graph, ids, list(feeds))
        wanted = [*ids, *extra]
        defaults = state_of(self.graph).defaults
        if defaults:
            missing = self.graph._core.needs(wanted, list(feeds))
            for i in missing:
                if i in defaults:
                    at = self.graph._id("session.run", defaults[i])
                    feeds = {**feeds, i: self._run([at], feeds)[0]}
        return super()._run(wanted, feeds)[: len(ids)]

    def _writes(self, assigned: list[int]) -> tuple[list[int], list[int]]:
        """Of several assignments to a variable the last in the order of dependencies counts; those
        that only add to it are all done."""
        graph, here = self.graph, state_of(self.graph)
        by_variable: dict[int, list[int]] = {}
        for i in assigned:
            by_variable.setdefault(graph._assigned[i], []).append(i)
        nodes, written, rest = [], [], []
        for v, group in by_variable.items():
            last = [i for i in group if not self._comes_before(i, group)] if group[1:] else group
            if len(last) > 1 and all(i in here.deltas for i in last):
                nodes.append(self._sum(v, last))
                written.append(v)
            else:
                rest += last
        for i in rest:
            if [graph._assigned[j] for j in rest].count(graph._assigned[i]) > 1:
                name = graph._core.node(graph._assigned[i]).name
                raise wg.GraphError(
                    f'session.run: the variable "{name}" is assigned twice in a run, in no order; '
                    "use two runs, or tf.control_dependencies"
                )
        found, variables = super()._writes(rest)
        return nodes + found, written + variables

    def _comes_before(self, i: int, group: list[int]) -> bool:
        """Whether another of these assignments needs this one."""
        core = self.graph._core
        others = ([other, *needed_by(self.graph, [other], [])] for other in group if other != i)
        return any(core.reached(ids, [], [i]) for ids in others)

    def _sum(self, v: int, assignments: list[int]) -> int:
        """The node of a variable's value after several that add to it."""
        here, graph, key = state_of(self.graph), self.graph, tuple(assignments)
        if key not in here.sums:
            with graph:
                total = graph._core.tensor(v)
                for i in assignments:
                    total = total + here.deltas[i]
                here.sums[key] = graph._id("session.run", total)
        return here.sums[key]

    def _initial(self, variable: Any) -> wg.Tensor:
        if self.graph._core.id_of(variable) in state_of(self.graph).streams:
            return variable.initial.detach().to(self.device)
        return super()._initial(variable)

    def _adapts(self, value: Any) -> Any:
        return True

    def _load(self, values: Mapping[Any, Any]) -> None:
        """Give variables values."""
        new = {}
        for v, value in values.items():
            i = self.graph._id("Variable.load", v)
            new[i] = self._fed(i, value)
            if tuple(new[i].shape) != tuple(v.shape):
                raise wg.ShapeError(
                    f'the variable "{v.name}" has shape {tuple(v.shape)}, the value has shape '
                    f"{tuple(new[i].shape)}"
                )
        with self._writing:
            self._values = {**self._values, **new}


def _pairs(key: Any, value: Any) -> list[tuple[Any, Any]]:
    """What is fed to which node; a tuple of nodes, such as a state of cells, takes a tuple."""
    if not isinstance(key, tuple):
        return [(_plain(key), value)]
    if not isinstance(value, tuple | list) or len(value) != len(key):
        raise TypeError(f"tf.Session.run: {len(key)} nodes together were fed {value!r}")
    return [pair for k, v in zip(key, value, strict=True) for pair in _pairs(k, v)]


def _plain(x: Any) -> Any:
    """A name without TensorFlow's `:0`."""
    return x.removesuffix(":0") if isinstance(x, str) else x


def _array(x: wg.Tensor) -> Any:
    array = (x.astype(wg.float32) if x.dtype == wg.bfloat16 else x).to("cpu").numpy()
    return array if array.ndim else array[()]


class InteractiveSession(Session):
    """A session that is open from now on."""

    def __init__(self, target: str = "", graph: wg.Graph | None = None, config: Any = None) -> None:
        super().__init__(target, graph, config)
        _open_sessions.append(self)

    def close(self) -> None:
        """Close it."""
        if self in _open_sessions:
            _open_sessions.remove(self)
        super().close()


def get_default_session() -> Session | None:
    """The session that is open, or `None`."""
    return _open_sessions[-1] if _open_sessions else None


def current_session(what: str) -> Session:
    """The session that is open; `what` needs it."""
    if not _open_sessions:
        raise wg.GraphError(f"{what}: no session is open; pass one, or use `with tf.Session():`")
    return _open_sessions[-1]


class _Options:
    """Options of TensorFlow's, which are kept and change nothing here."""

    known: tuple[str, ...] = ()
    parts: ClassVar[dict[str, Any]] = {}

    def __init__(self, **options: Any) -> None:
        for name, make in self.parts.items():
            vars(self)[name] = make()
        for name, value in options.items():
            setattr(self, name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in (*self.known, *self.parts):
            raise AttributeError(f"tf.{type(self).__name__}: has no option {name!r}")
        vars(self)[name] = value

    def __getattr__(self, name: str) -> Any:
        if name in type(self).known:
            return None
        raise AttributeError(f"tf.{type(self).__name__}: has no option {name!r}")


class GPUOptions(_Options):
    """Accepted, and changes nothing: memory is taken as it is needed."""

    known = (
        "per_process_gpu_memory_fraction",
        "allow_growth",
        "visible_device_list",
        "allocator_type",
    )


class GraphOptions(_Options):
    """Accepted, and changes nothing."""

    known = ("optimizer_options", "rewrite_options", "enable_bfloat16_sendrecv")


class ConfigProto(_Options):
    """Accepted, and changes nothing: a graph computes on the device that it was made on
    (`wengert.default_device`), and `WENGERT_NUM_THREADS` says on how many threads."""

    known = (
        "allow_soft_placement",
        "log_device_placement",
        "device_count",
        "intra_op_parallelism_threads",
        "inter_op_parallelism_threads",
        "use_per_session_threads",
        "operation_timeout_in_ms",
    )
    parts: ClassVar[dict[str, Any]] = {"gpu_options": GPUOptions, "graph_options": GraphOptions}


_warned: set[str] = set()


@contextmanager
def device(device_name_or_function: Any) -> Iterator[None]:
    """Nothing: a graph computes on one device, that which `wengert.default_device` names when it is
    made. A name that asks for another kind of device is said in a warning, once."""
    name = device_name_or_function
    kind = default_graph().device.type
    asked = str(name).lower()
    if isinstance(name, str) and "gpu" in asked and kind != "gpu" and asked not in _warned:
        _warned.add(asked)
        warnings.warn(
            f"tf.device({name!r}): the graph computes on {kind}; to choose, make it inside "
            'wengert.default_device("gpu")',
            stacklevel=3,
        )
    yield


# Methods of tensors.


def _eval(
    self: wg.Tensor, feed_dict: Mapping[Any, Any] | None = None, session: Session | None = None
) -> Any:
    """The value in a session, or in the one that is open."""
    return (session or current_session("Tensor.eval")).run(self, feed_dict)


class Dimension(int):
    """A size of a shape, with TensorFlow's `value`."""

    @property
    def value(self) -> int:
        """The number."""
        return int(self)


class TensorShape(tuple[Any, ...]):
    """A shape as TensorFlow gives it: a size that is open is `None`."""

    def as_list(self) -> list[Any]:
        """The sizes in a list."""
        return [n if n is None else int(n) for n in self]

    @property
    def ndims(self) -> int:
        """The number of axes."""
        return len(self)

    @property
    def dims(self) -> list[Any]:
        """The sizes."""
        return list(self)

    def num_elements(self) -> int | None:
        """The number of elements, or `None` where a size is open."""
        return None if None in self else int(np.prod(self, dtype=np.int64))

    def is_fully_defined(self) -> bool:
        """Whether no size is open."""
        return None not in self

    def assert_is_compatible_with(self, other: Any) -> None:
        """Refuse a shape of another rank, or with other known sizes."""
        if not self.is_compatible_with(other):
            raise ValueError(f"tf: shapes {tuple(self)} and {tuple(other)} differ")

    def is_compatible_with(self, other: Any) -> bool:
        """Whether known sizes are those of another shape."""
        return len(self) == len(other) and all(
            a is None or b is None or a == b for a, b in zip(self, other, strict=True)
        )

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        return TensorShape(found) if isinstance(key, slice) else found


def _get_shape(self: wg.Tensor) -> TensorShape:
    """The shape; open sizes are `None`."""
    if self.shape is None:
        raise ValueError("get_shape: the rank is not known")
    return TensorShape(Dimension(n) if isinstance(n, int) else None for n in self.shape)


def _set_shape(self: wg.Tensor, shape: Any) -> None:
    """Check the known sizes of a tensor against those of a shape."""
    if self.shape is not None:
        _get_shape(self).assert_is_compatible_with(shape)


def _node(x: wg.Tensor) -> Any:
    graph = graph_of(x)
    i = None if graph is None else graph._core.id_of(x)
    return None if graph is None or i is None else graph._core.node(i)


class _Name:
    """The name of a tensor's node, with TensorFlow's `:0`; that of a variable is its own."""

    def __get__(self, x: Any, owner: Any = None) -> Any:
        if x is None:
            return self
        node = _node(x)
        if node is None:
            raise AttributeError("'wengert.Tensor' object has no attribute 'name'")
        return f"{node.name or f'{node.op}_{node.id}'}:0"


class NodeOf:
    """What TensorFlow calls the op of a tensor: its name, type and inputs."""

    def __init__(self, x: Any) -> None:
        self.outputs = [x]
        self.name = x.name.removesuffix(":0")
        node = _node(x)
        self.type, self.inputs = node.op, node.inputs

    def run(self, feed_dict: Any = None, session: Session | None = None) -> None:
        """Compute the tensor in a session, or in the one that is open."""
        _eval(self.outputs[0], feed_dict, session)


wg.Tensor.eval = _eval  # type: ignore[attr-defined]
wg.Tensor.get_shape = _get_shape  # type: ignore[attr-defined]
wg.Tensor.set_shape = _set_shape  # type: ignore[attr-defined]
wg.Tensor.name = _Name()  # type: ignore[attr-defined]
wg.Tensor.op = property(NodeOf)  # type: ignore[attr-defined]
