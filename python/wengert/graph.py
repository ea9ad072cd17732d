"""Graphs as values: defined by hand, looked at, cut, optimized, run by a `Session` or as functions.

Inside `with wengert.Graph():` functions of tensors write nodes. A tensor of a graph has a dtype and
a shape, in which sizes may be open (`None`), but no data: a `wengert.Session` computes it. Tensors
from outside enter as constants, by value.
"""

from __future__ import annotations

import linecache
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from wengert import _core, pytree
from wengert._core import Device, GraphError, Node, Tensor, asarray, float32, isdtype
from wengert._devices import default_device
from wengert.drawing import Pictured

if TYPE_CHECKING:
    from wengert.interpreter import Interpreter
    from wengert.session import Session

__all__ = ["Graph", "Variable", "default_graph", "parse_graph", "placeholder"]

_graphs: WeakValueDictionary[int, Graph] = WeakValueDictionary()


class _Open(threading.local):
    """The graphs entered on a thread."""

    def __init__(self) -> None:
        self.graphs: list[Graph] = []


_open = _Open()
_default: Graph | None = None


class Graph(Pictured):
    """A list of nodes that can be looked at, changed into others, and run.

    `with graph:` makes functions of tensors write nodes. `graph.nodes`, `inputs` and `outputs` are
    `Node`s, which have `op`, `shape`, `dtype`, `name`, `inputs` and `site` (with `filename` and
    `lineno`), and can be fed and fetched like tensors. Two graphs are equal if their nodes are;
    where they were written does not count. A graph computes on one device, the default device if
    none is given.

    >>> with wg.Graph() as g:
    ...     x = wg.placeholder("x", (None, 3))
    ...     y = x.exp().sum(axis=0)
    >>> [node.op for node in g.nodes], y.shape
    (['input', 'exp', 'sum'], (3,))
    >>> wg.Session(g).run(y, {x: wg.zeros((2, 3))}).tolist()
    [2.0, 2.0, 2.0]
    """

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, *, device: str | Device | None = None) -> None:
        with default_device(_core._current_device() if device is None else device):
            self._adopt(_core.Definition())

    def _adopt(self, core: Any) -> None:
        self._core = core
        self._variables: dict[int, Variable] = {}
        self._assigned: dict[int, int] = {}  # the nodes that give variables new values
        self.passes: tuple[Any, ...] = ()
        """What the passes of the compiler did, for a graph made by `optimize`."""
        _graphs[core.serial] = self

    @classmethod
    def _of(cls, core: Any) -> Graph:
        """The graph of a definition that the core made."""
        graph = cls.__new__(cls)
        graph._adopt(core)
        return graph

    def __enter__(self) -> Graph:
        self._core.enter()
        _open.graphs.append(self)
        return self

    def __exit__(self, *exception: Any) -> None:
        _open.graphs.remove(self)
        self._core.leave()

    @property
    def nodes(self) -> list[Node]:
        """The nodes in order of computation."""
        return self._core.nodes()

    @property
    def inputs(self) -> list[Node]:
        """The nodes that are given: placeholders, variables, random keys."""
        return self._core.inputs()

    @property
    def outputs(self) -> list[Node]:
        """The results, of a graph that was captured, cut or read."""
        return self._core.outputs()

    @property
    def variables(self) -> list[Variable]:
        """The variables in order."""
        return list(self._variables.values())

    @property
    def device(self) -> Device:
        """The device that it computes on."""
        return self._core.device

    @property
    def finalized(self) -> bool:
        """Whether new nodes are forbidden."""
        return self._core.finalized

    def __len__(self) -> int:
        return len(self._core)

    def __str__(self) -> str:
        return self._core.text()

    def __repr__(self) -> str:
        return f"<Graph of {len(self)} nodes>"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Graph):
            return NotImplemented
        return self._core is other._core or self._core.same(other._core)

    def tensor(self, node: Tensor | Node | str | int) -> Tensor:
        """The tensor of a node, which may be given by name or number."""
        return self._core.tensor(node if isinstance(node, int) else self._id("tensor", node))

    def finalize(self) -> None:
        """Forbid new nodes. Runs are unaffected; `clone()` may go on."""
        self._core.finalize()

    def clone(self) -> Graph:
        """An equal graph with nodes and variables of its own."""
        return self._derived(self._core.copy(), range(len(self._core)))

    # Copies are graphs of their own, as other values' are.

    def __copy__(self) -> Graph:
        return self.clone()

    def __deepcopy__(self, _: dict[int, Any]) -> Graph:
        return self.clone()

    def __reduce__(self) -> Any:
        """A graph is pickled as its text, where that says all."""
        if self._variables:
            raise TypeError("pickle: a graph with variables has no text that says all of it")
        text = str(self)
        if host := re.search(r"^ *%\d+ = host\(\"([^\"]*)\"", text, re.M):
            raise GraphError(f"pickle: text holds no code of an op of the host: {host[1]}")
        return parse_graph, (text,)

    def extract(self, outputs: Any, inputs: Any = None) -> Graph:
        """The part that computes `outputs`, from `inputs` on where those are given."""
        ids, _ = self._ids("extract", outputs)
        cut, _ = self._ids("extract", () if inputs is None else inputs)
        return self._derived(*self._core.extract(ids, cut))

    def optimize(
        self, outputs: Any = None, *, off: Iterable[str] = (), fast_math: bool = False
    ) -> Graph:
        """The part that computes `outputs`, as the compiler would run it; `passes` of the result
        says what each pass did.

        `off` names passes to leave out. `fast_math` allows what may change the last bits. Variables
        become inputs.
        """
        ids, _ = self._ids("optimize", self.outputs if outputs is None else outputs)
        if not ids:
            raise GraphError("optimize: the graph has no outputs; name those to keep")
        core, reports = self._core.optimize(ids, list(off), fast_math)
        graph = Graph._of(core)
        graph.passes = tuple(reports)
        return graph

    def function(self, inputs: Any, outputs: Any) -> Callable[..., Any]:
        """A function of tensors in the place of `inputs` that gives `outputs`.

        It runs as one plan, and can be differentiated and captured like any other. What it is given
        has the dtypes and sizes of `inputs`, as for `Session.run`.

        >>> with wg.Graph() as g:
        ...     x = wg.placeholder("x", (None,))
        ...     y = (x * x).sum()
        >>> f = g.function([x], y)
        >>> f(wg.tensor([1.0, 2.0])).item(), wg.grad(f)(wg.tensor([1.0, 2.0])).tolist()
        (5.0, [2.0, 4.0])
        """
        from wengert.capture import compile

        fed, _ = self._ids("function", inputs)
        ids, structure = self._ids("function", outputs)

        def function(*args: Any) -> Any:
            if len(args) != len(fed):
                raise TypeError(f"graph.function: takes {len(fed)} tensors, got {len(args)}")
            tensors = [
                self._fed(i, x, adapts(x), self.device) for i, x in zip(fed, args, strict=True)
            ]
            return pytree.unflatten(structure, self._core.interpret(ids, fed, tensors))

        return compile(function)

    def interpreter(
        self,
        feed_dict: Mapping[Any, Any] | Sequence[Any] | None = None,
        fetches: Any = None,
        *,
        session: Session | None = None,
    ) -> Interpreter:
        """A run that stops after each node, to look at the values.

        `feed_dict` is that of `Session.run`, or a list with a value for each of `inputs`. Without
        `fetches` they are the graph's `outputs`, or else what no other value comes of. Variables
        have the values of `session`, or without one those they begin with; nothing is assigned.
        Refused as by `Session.run`, at once.

        >>> with wg.Graph() as g:
        ...     x = wg.placeholder("x", (None,))
        ...     y = (x.exp() + 1.0).log()
        >>> it = g.interpreter({"x": [0.0, 1.0]}, y)
        >>> it.step().value.tolist(), it.next_node.op
        ([0.0, 1.0], 'exp')
        >>> it.finish().shape
        (2,)
        """
        from wengert.interpreter import Interpreter, feeds
        from wengert.session import Session

        session = Session(self) if session is None else session
        if session.graph is not self:
            raise GraphError("interpreter: the session runs another graph")
        outputs = self.outputs
        if fetches is None:
            fetches = outputs or [self._core.node(i) for i in self._core.ends()]
        ids, structure = self._ids("interpreter", fetches)
        core = session._stepper(ids, feeds(self, feed_dict))
        return Interpreter(
            self, core, lambda value: pytree.unflatten(structure, [value(i) for i in ids])
        )

    # Names and numbers.

    def _id(self, op: str, x: Any) -> int:
        """The number of the node that a tensor, a node or a name stands for."""
        if isinstance(x, str):
            found = self._core.find(x)
            if found is None:
                raise GraphError(f'{op}: no node of this graph is called "{x}"')
            return found
        found = self._core.id_of(x)
        if found is not None:
            return found
        if isinstance(x, Node) or (isinstance(x, Tensor) and _core._graph_node(x)):
            raise GraphError(f"{op}: {x!r} belongs to another graph{_made_at(x)}")
        what = "a tensor with data" if isinstance(x, Tensor) else type(x).__name__
        raise GraphError(f"{op}: expected a tensor, a node or a name of this graph, got {what}")

    def _ids(self, op: str, tree: Any) -> tuple[list[int], pytree.Structure]:
        leaves, structure = pytree.flatten(tree)
        return [self._id(op, x) for x in leaves], structure

    def _fed(self, i: int, value: Any, adapts: bool, device: Device) -> Tensor:
        """A value for a node as a tensor on a device. One that `adapts` takes the node's dtype
        where that holds it; what does not fit then is refused by whoever makes the list."""
        if isinstance(value, Tensor) and value.device != device:
            name = self._core.node(i).name
            raise _core.DeviceError(
                f'session.run: placeholder "{name}" lies on {device}, was fed a tensor on '
                f'{value.device}; move it, e.g. x.to("{device}")'
            )
        x = asarray(value, device=device)
        dtype = self._core.node(i).dtype
        if x.dtype == dtype or not adapts:
            return x
        return asarray(value, dtype=dtype, device=device) if _class(x.dtype) <= _class(dtype) else x

    def _unique(self, name: str) -> str:
        """The name, with a number where it is taken."""
        if self._core.find(name) is None:
            return name
        n = 1
        while self._core.find(f"{name}_{n}") is not None:
            n += 1
        return f"{name}_{n}"

    def _input(self, op: str, name: str, dtype: Any, shape: Sequence[int | None] | None) -> Tensor:
        if self._core.find(name) is not None:
            raise GraphError(f'{op}: the graph has a node called "{name}" already')
        return self._core.input(op, name, dtype, shape if shape is None else list(shape))

    def _derived(self, core: Any, kept: Iterable[int]) -> Graph:
        """A graph whose nodes are nodes of this one, with the variables among them."""
        graph = Graph._of(core)
        place = {old: new for new, old in enumerate(kept)}
        inputs = {node.id for node in core.inputs()}
        for old, variable in self._variables.items():
            new = place.get(old)
            if new is None or new not in inputs:
                continue
            initial = variable.initial
            at = self._core.id_of(initial)
            if at is not None:
                # The new graph may not compute it: the variable keeps the old graph's.
                initial = graph._core.tensor(place[at]) if at in place else initial
            twin = Tensor.__new__(Variable, core.tensor(new))
            twin.initial, twin.trainable, twin.name = initial, variable.trainable, variable.name
            graph._variables[new] = twin
        for node, assigned in self._assigned.items():
            if node in place and place.get(assigned) in graph._variables:
                graph._assigned[place[node]] = place[assigned]
        return graph


def default_graph() -> Graph:
    """The graph that was entered last on this thread; else the one that is there from the start."""
    global _default
    if _open.graphs:
        return _open.graphs[-1]
    if _default is None:
        _default = Graph()
    return _default


def has_default_graph() -> bool:
    """Whether a graph is entered on this thread, or the one from the start is made."""
    return bool(_open.graphs) or _default is not None


def reset_default_graph(graph: Graph | None = None) -> None:
    """Begin anew with an empty graph, or with `graph`, where none is entered."""
    global _default
    _default = graph


def graph_of(x: Tensor) -> Graph | None:
    """The graph that a tensor belongs to, or `None`."""
    found = _core._graph_node(x)
    return None if found is None else _graphs.get(found[0])


def placeholder(
    name: str, shape: Sequence[int | None] | int | None = None, dtype: Any = float32
) -> Tensor:
    """A tensor of the default graph that is fed when the graph runs.

    A size that is `None` may differ from run to run; without a shape the rank may too. What is
    computed from it is checked now as far as sizes are known, and when it runs.

    >>> with wg.Graph() as g:
    ...     wg.placeholder("x", (None, 3))
    tensor("x", shape=(None, 3), dtype=float32)
    """
    if isinstance(shape, int):
        shape = (shape,)
    return default_graph()._input("placeholder", name, dtype, shape)


def parse_graph(text: str) -> Graph:
    """The graph that `str(graph)` wrote.

    >>> with wg.Graph() as g:
    ...     y = wg.placeholder("x", (3,)).exp()
    >>> wg.parse_graph(str(g)) == g
    True
    """
    return Graph._of(_core._parse_graph(text))


class Variable(Tensor):
    """A tensor of the default graph whose value a session keeps from run to run.

    `initial` is its value in a new session: data, or a tensor of the graph, such as random numbers,
    which is then computed for each session. Within a run the variable is what it was when the run
    began; what `assign`, `assign_add` and `assign_sub` return is its new value, and fetching that,
    or what depends on it, gives the session's variable that value when the run ends.

    >>> with wg.Graph() as g:
    ...     count = wg.Variable(0.0, name="count")
    ...     step = count.assign_add(1.0)
    >>> session = wg.Session(g)
    >>> [session.run([step, count])[0].item() for _ in range(3)]
    [1.0, 2.0, 3.0]
    """

    initial: Tensor
    """The value in a new session."""
    name: str
    """The name of its node."""
    trainable: bool
    """Whether optimizers take it as a parameter."""

    def __new__(
        cls,
        initial: Any,
        name: str | None = None,
        trainable: bool = True,
        dtype: Any = None,
    ) -> Variable:
        """A variable of the default graph."""
        graph = default_graph()
        if not isinstance(initial, Tensor):
            initial = _core.tensor(initial, dtype=dtype, device=graph.device)
        elif initial.device != graph.device:
            raise _core.DeviceError(
                f"Variable: the graph computes on {graph.device}, the initial value lies on "
                f"{initial.device}"
            )
        if dtype is not None and initial.dtype != dtype:
            initial = initial.astype(dtype)
        shape = initial.shape
        if shape is None or not all(isinstance(n, int) for n in shape):
            raise GraphError(f"Variable: the initial value needs a known shape, got {shape}")
        name = graph._unique("variable") if name is None else name
        self = Tensor.__new__(cls, graph._input("Variable", name, initial.dtype, shape))
        self.initial, self.name, self.trainable = initial, name, trainable
        graph._variables[graph._id("Variable", self)] = self
        return self

    def assign(self, value: Any) -> Tensor:  # type: ignore[override]
        """The value, which becomes the variable's where it is fetched. It has the variable's shape
        and dtype."""
        graph = graph_of(self)
        if graph is None:
            raise GraphError("assign: the graph of this variable is gone")
        value = self._data(value)
        if _core._is_traced(value) and graph._core.id_of(value) is None:
            raise GraphError(
                f"assign: {value!r} is not of the variable's graph{_made_at(value)}; in the body "
                "of a branch or a loop nothing is assigned: return the value, and assign it outside"
            )
        variable = graph._id("assign", self)
        result = graph._core.assign(variable, value)
        graph._assigned[graph._id("assign", result)] = variable
        return result

    def assign_add(self, value: Any) -> Tensor:
        """`assign(self + value)`."""
        return self.assign(self + self._data(value))

    def assign_sub(self, value: Any) -> Tensor:
        """`assign(self - value)`."""
        return self.assign(self - self._data(value))

    def _data(self, value: Any) -> Tensor:
        """Numbers and lists as tensors of the variable's dtype."""
        if isinstance(value, Tensor):
            return value
        return _core.outside_trace(lambda: asarray(value, dtype=self.dtype, device=self.device))

    def __setitem__(self, key: Any, value: Any) -> None:
        """Refused: a variable changes when an assignment is fetched."""
        raise GraphError("setitem: a variable is not updated in place; fetch v.assign(...)")


def _refused(name: str) -> Callable[..., Any]:
    def refuse(self: Variable, other: Any) -> Any:
        raise GraphError(f"{name}: a variable is not updated in place; fetch v.assign(...)")

    refuse.__name__ = name
    return refuse


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "and", "or", "xor", "lshift",
              "rshift"):  # fmt: skip
    setattr(Variable, f"__i{_name}__", _refused(f"__i{_name}__"))


def line_of(node: Node) -> str:
    """Where a node was made, and the line itself: `file.py:12: x = wg.placeholder("x")`."""
    site = node.site
    if site is None:
        return "an unknown line"
    text = linecache.getline(site.filename, site.lineno).strip()
    return f"{site.filename}:{site.lineno}" + (f": {text}" if text else "")


def adapts(value: Any) -> bool:
    """Whether the dtype of a value says nothing: numbers and nested lists."""
    return isinstance(value, (bool, int, float, list, tuple))


def _class(dtype: Any) -> int:
    """Bools fit integers, integers fit floats."""
    return 0 if dtype == _core.bool else 1 if isdtype(dtype, "integral") else 2


def _made_at(x: Any) -> str:
    """A line of a message: where a tensor or node of a graph was made."""
    if isinstance(x, Node):
        return f"\n  made at {line_of(x)}" if x.site is not None else ""
    site = _core._traced_site(x)
    return "" if site is None else f"\n  made at {site[0]}:{site[1]}"
