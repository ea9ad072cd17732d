"""`Session`: runs of a graph, with values of its variables."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

from wengert import _core, pytree
from wengert._core import CaptureError, Device, GraphError, Tensor
from wengert.graph import Graph, Variable, adapts, default_graph, line_of

__all__ = ["Session"]

_PLANS = 128
"""How many plans a session keeps; those that were not used for longest are dropped."""

Type = tuple[Any, tuple[int, ...]]


class _Plan:
    """What runs for some fetches and feeds: the core's plan, and where its arguments come from."""

    def __init__(self, runner: Any, written: list[int], sources: list[tuple[str, int]]) -> None:
        self.runner = runner
        self.written = written
        """The variables that get the last results."""
        self.sources = sources
        """For each argument `fed`, `variable` or `key`, and the number of the node."""


class Session:
    """Runs a graph, and keeps the values of its variables from run to run.

    Without a graph it takes the one that is open, or the default one. Each session has variables of
    its own. With `seed`, random numbers come from a generator of its own, else from the global one.
    With `initialize=False` variables have no value until one is assigned. Values are computed and
    kept on `device`, by default the graph's.

    Runs may come from several threads at once: each sees the variables as they were when it began,
    and those that write come one after another.

    >>> with wg.Graph() as g:
    ...     a, b = wg.placeholder("a"), wg.placeholder("b")
    ...     c = a * b
    ...     da = wg.gradients(c, a)
    >>> with wg.Session(g) as s:
    ...     out = s.run({"c": c, "da": da}, feed_dict={a: 15.0, "b": 20.0})
    >>> out["c"].item(), out["da"].item()
    (300.0, 20.0)
    """

    def __init__(
        self,
        graph: Graph | None = None,
        *,
        seed: int | None = None,
        initialize: bool = True,
        device: str | Device | None = None,
    ) -> None:
        if not (graph is None or isinstance(graph, Graph)):
            raise TypeError(f"Session: expected a Graph, got {type(graph).__name__}")
        self.graph = default_graph() if graph is None else graph
        self.device: Device = self.graph.device if device is None else _core.device(device)
        """Where values are computed and kept."""
        self._initialize = initialize
        self._values: dict[int, Tensor] = {}  # never changed, only replaced
        self._writing = threading.RLock()
        self._plans: OrderedDict[Any, _Plan] = OrderedDict()
        self._planning = threading.Lock()
        self._generator = None if seed is None else _Generator(seed)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()

    def close(self) -> None:
        """Drop plans and variables' values; a later run begins anew."""
        with self._writing, self._planning:
            self._plans.clear()
            self._values = {}

    def run(self, fetches: Any, feed_dict: Mapping[Any, Any] | None = None) -> Any:
        """The values of `fetches`: a tensor or node of the graph, a name, or a nested structure of
        them, which comes back with tensors in their place.

        `feed_dict` gives values for placeholders, and for any other node, which is then not
        computed: tensors and arrays of the node's dtype, or numbers and nested lists. Only what the
        fetches need is computed. Assignments among it are done when all is computed; if anything
        fails, none is.

        `GraphError` for a placeholder that is not fed and for what is not of this graph,
        `ShapeError` and `DTypeError` for a value that does not fit, with the line that made the
        node; `CaptureError` inside a captured function.
        """
        _refuse_captured("session.run")
        leaves, structure = pytree.flatten(fetches)
        graph = self.graph
        parts = [self._parts(x) for x in leaves]
        ids = [graph._id("session.run", x) for part in parts for x in part]
        found = _core.outside_trace(lambda: self._run(ids, self._feeds(feed_dict or {})))
        results = iter(found)
        values = [
            self._value(x, [next(results) for _ in part])
            for x, part in zip(leaves, parts, strict=True)
        ]
        return pytree.unflatten(structure, values)

    def _parts(self, fetch: Any) -> list[Any]:
        """The nodes that a fetch asks for."""
        return [fetch]

    def _value(self, fetch: Any, results: list[Tensor]) -> Any:
        """What a fetch gives."""
        return results[0]

    def _run(self, ids: list[int], feeds: dict[int, Tensor]) -> list[Tensor]:
        plan = self._plan(ids, {i: (x.dtype, x.shape) for i, x in feeds.items()})
        if not plan.written:
            return self._compute(plan, feeds, self._values)
        with self._writing:
            results = self._compute(plan, feeds, self._values)
            count = len(results) - len(plan.written)
            new = dict(zip(plan.written, results[count:], strict=True))
            for i, value in new.items():
                old = self._values.get(i)
                # The run may still be under way on its device, and fail there.
                if old is not None:
                    new[i] = _core._replacing(old, value)
            self._values = {**self._values, **new}
        return results[:count]

    def _compute(
        self, plan: _Plan, feeds: dict[int, Tensor], values: dict[int, Tensor]
    ) -> list[Tensor]:
        values = self._ready(plan.sources, values)
        attempt = _core._attempt if self._generator is None else self._generator.attempt
        return attempt(lambda: plan.runner(self._arguments(plan.sources, feeds, values)))

    def _ready(
        self, sources: Sequence[tuple[str, int]], values: dict[int, Tensor]
    ) -> dict[int, Tensor]:
        """The values of variables, with those of all that are read."""
        missing = [i for kind, i in sources if kind == "variable" and i not in values]
        return self._initialized(missing) if missing else values

    def _arguments(
        self,
        sources: Sequence[tuple[str, int]],
        feeds: dict[int, Tensor],
        values: dict[int, Tensor],
    ) -> list[Tensor]:
        args = []
        for kind, i in sources:
            if kind == "fed":
                args.append(feeds[i])
            elif kind == "variable":
                args.append(values[i])
            else:
                args.append(self._key())
        return args

    def _stepper(self, ids: list[int], feed_dict: Mapping[Any, Any]) -> Any:
        """The same run, node by node, which assigns nothing."""
        _refuse_captured("interpreter")

        def made() -> Any:
            feeds = self._feeds(feed_dict)
            types = {i: (x.dtype, x.shape) for i, x in feeds.items()}
            self._check_fed(ids, types)
            core = self.graph._core.stepper(ids, _listed(types))
            sources = self._sources(core.inputs, types)
            values = self._ready(sources, self._values)
            core.start(self._arguments(sources, feeds, values))
            return core

        return _core.outside_trace(made)

    def _key(self) -> Tensor:
        return _core.random.next_key() if self._generator is None else self._generator.next()

    # Plans.

    def _plan(self, ids: Sequence[int], types: dict[int, Type]) -> _Plan:
        # A graph may have grown: an effect may have come that looks at what is fetched.
        key = (tuple(ids), tuple(types.items()), len(self.graph))
        with self._planning:
            plan = self._plans.get(key)
            if plan is not None:
                self._plans.move_to_end(key)
                return plan
        plan = self._resolved(list(ids), types)
        with self._planning:
            self._plans[key] = plan
            while len(self._plans) > _PLANS:
                self._plans.popitem(last=False)
        return plan

    def _resolved(self, ids: list[int], types: dict[int, Type]) -> _Plan:
        graph, core = self.graph, self.graph._core
        fed = list(types)
        assigned, written = self._writes(core.reached(ids, fed, list(graph._assigned)))
        ids = ids + assigned
        self._check_fed(ids, types)
        runner = core.resolve(ids, _listed(types), self.device)
        return _Plan(runner, written, self._sources(runner.inputs, types))

    def _writes(self, assigned: list[int]) -> tuple[list[int], list[int]]:
        """The nodes whose values are written, of assignments among what is computed, and the
        variables that get them."""
        graph = self.graph
        written = [graph._assigned[i] for i in assigned]
        for i in written:
            if written.count(i) > 1:
                name = graph._core.node(i).name
                raise GraphError(f'session.run: the variable "{name}" is assigned twice in a run')
        return assigned, written

    def _check_fed(self, ids: list[int], types: dict[int, Type]) -> None:
        graph, core = self.graph, self.graph._core
        for i in core.needs(ids, list(types)):
            if i not in graph._variables and not core.is_key(i):
                raise self._unfed(i)

    def _sources(self, inputs: list[int], types: dict[int, Type]) -> list[tuple[str, int]]:
        is_key = self.graph._core.is_key
        return [("fed" if i in types else "key" if is_key(i) else "variable", i) for i in inputs]

    def _unfed(self, i: int) -> GraphError:
        node = self.graph._core.node(i)
        return GraphError(
            f"session.run: {_called(node)} is needed and was not fed\n  made at {line_of(node)}"
        )

    # Variables.

    def _initialized(self, missing: list[int]) -> dict[int, Tensor]:
        """The values of variables, with those that have none yet computed."""
        with self._writing:
            for i in missing:
                if i not in self._values:
                    variable = self.graph._variables[i]
                    value = self._initial(variable)
                    self._values = {**self._values, i: value}
            return self._values

    def _initial(self, variable: Variable) -> Tensor:
        if not self._initialize:
            node = self.graph._core.node(self.graph._id("session.run", variable))
            raise GraphError(
                f'session.run: the variable "{node.name}" is not initialized in this session; '
                f"run its initializer or an assignment first\n  made at {line_of(node)}"
            )
        at = self.graph._core.id_of(variable.initial)
        if at is None:
            return variable.initial.detach().to(self.device)
        return self._compute(self._plan([at], {}), {}, self._values)[0]

    # Feeds.

    def _feeds(self, feed_dict: Mapping[Any, Any]) -> dict[int, Tensor]:
        feeds: dict[int, Tensor] = {}
        if not isinstance(feed_dict, Mapping):
            kind = type(feed_dict).__name__
            raise TypeError(f"session.run: feed_dict is a dict of nodes and values, got {kind}")
        for key, value in feed_dict.items():
            i = self.graph._id("session.run", key)
            if i in feeds:
                name = _called(self.graph._core.node(i))
                raise GraphError(f"session.run: {name} was fed twice")
            feeds[i] = self._fed(i, value)
        return feeds

    def _fed(self, i: int, value: Any) -> Tensor:
        if isinstance(value, Tensor) and _core._traced_text(value) is not None:
            node = _called(self.graph._core.node(i))
            raise GraphError(f"session.run: {node} was fed {value!r}, which has no data")
        return self.graph._fed(i, value, self._adapts(value), self.device)

    def _adapts(self, value: Any) -> bool:
        """Whether the dtype of a value says nothing."""
        return adapts(value)


def _refuse_captured(op: str) -> None:
    if _core._is_captured():
        raise CaptureError(
            f"{op}: a session runs at once and cannot be part of a captured function; "
            "call graph.function(inputs, outputs) there"
        )


def _listed(types: dict[int, Type]) -> list[tuple[int, Any, list[int]]]:
    return [(i, dtype, list(shape)) for i, (dtype, shape) in types.items()]


class _Generator:
    """A generator of random keys, apart from the global one."""

    def __init__(self, seed: int) -> None:
        self._lock = threading.Lock()
        self._state = (*_core.random.key(seed).tolist(), 0)
        self._mine = threading.local()

    def next(self) -> Tensor:
        """The next key."""
        with self._lock:
            before = self._state
            key, self._state = _core.random._next_of(before)
            self._drawn().append((before, self._state))
            return key

    def _drawn(self) -> list[tuple[Any, Any]]:
        """The states before and behind each key that this thread drew in its attempt."""
        if not hasattr(self._mine, "drawn"):
            self._mine.drawn = []
        return self._mine.drawn

    def attempt(self, f: Any) -> Any:
        """What `f` returns. Where it raises, the keys that it drew are given back, but for those
        that others follow."""
        self._drawn().clear()
        try:
            return f()
        except BaseException:
            with self._lock:
                for before, after in reversed(self._drawn()):
                    if self._state == after:
                        self._state = before
            raise
        finally:
            self._drawn().clear()


def _kind(node: Any) -> str:
    return "placeholder" if node.op == "input" else f"{node.op}"


def _called(node: Any) -> str:
    """A node in messages: `placeholder "x"`."""
    name = f'"{node.name}"' if node.name else f"%{node.id}"
    return f"{_kind(node)} {name}"
