"""Graphs run node by node: for looking at the values on the way, as a debugger does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from wengert._core import GraphError, Node, Site, Tensor

if TYPE_CHECKING:
    from wengert.graph import Graph

__all__ = ["Interpreter", "Step"]


class Step:
    """A node that was computed, with what it read and what it gave."""

    __slots__ = ("inputs", "node", "value")

    def __init__(self, node: Node, value: Any, inputs: tuple[Any, ...]) -> None:
        self.node, self.value, self.inputs = node, value, inputs

    node: Node
    """The node of the graph."""
    value: Any
    """Its value: a tensor; a tuple of tensors for control flow with several results; `None` for
    what is done for its effect."""
    inputs: tuple[Any, ...]
    """The values it read, none where it was fed."""

    @property
    def id(self) -> int:
        """The number of the node."""
        return self.node.id

    @property
    def op(self) -> str:
        """What it computed."""
        return self.node.op

    @property
    def name(self) -> str | None:
        """The name of the node, or `None`."""
        return self.node.name

    @property
    def site(self) -> Site | None:
        """The line that made the node, with `filename` and `lineno`."""
        return self.node.site

    def __repr__(self) -> str:
        return f"<step {_line(self.node)} = {_type(self.value)}{_at(self.node)}>"


class Interpreter:
    """A run of a graph that stops after each node; made by `Graph.interpreter` and, with the
    arguments of a call, by `interpreter` of a compiled function.

    It goes through the nodes as they are written, nothing merged, fused or left out, and each op
    gives the bits that the plan gives. Control flow is one step. Every value is kept until the
    interpreter goes. It reads the variables of a session and the state of modules as they were when
    it was made, and never updates them. After an error it stands before the node that failed.

    >>> with wg.Graph() as g:
    ...     x = wg.placeholder("x", (None,))
    ...     y = (x * x).sum()
    >>> it = g.interpreter({x: [1.0, 2.0, 3.0]})
    >>> [(step.op, step.value.tolist()) for step in it]
    [('input', [1.0, 2.0, 3.0]), ('mul', [1.0, 4.0, 9.0]), ('sum', 14.0)]
    """

    def __init__(
        self, graph: Graph, core: Any, results: Callable[[Callable[[int], Any]], Any]
    ) -> None:
        self._core, self._results = core, results
        self.graph = graph
        """The graph whose nodes it goes through."""
        self.nodes: list[Node] = [graph._core.node(i) for i in core.nodes()]
        """The nodes in the order in which they are computed."""
        self._fed = frozenset(core.inputs)

    @property
    def next_node(self) -> Node | None:
        """The node that comes next; `None` after the last."""
        done = self._core.done()
        return self.nodes[done] if done < len(self.nodes) else None

    def step(self) -> Step | None:
        """Compute the next node; `None` after the last."""
        i = self._core.step()
        return None if i is None else self._step(i)

    def __iter__(self) -> Interpreter:
        return self

    def __next__(self) -> Step:
        step = self.step()
        if step is None:
            raise StopIteration
        return step

    def run_until(self, node: Tensor | Node | str | int) -> Step:
        """Compute everything up to and with a node, which may be given by name or number: its step.
        What is computed already is not computed again."""
        i = self._place(node)
        while self._core.values(i) is None:
            self._core.step()
        return self._step(i)

    def value(self, node: Tensor | Node | str | int) -> Any:
        """The value of a node that was computed. `GraphError` where its turn has not come."""
        i = self._place(node)
        if self._core.values(i) is None:
            called = _called(self.graph._core.node(i))
            raise GraphError(f"interpreter: {called} is not computed yet")
        return self._value(i)

    def finish(self) -> Any:
        """Compute what is left: the values of the fetches, in their structure."""
        while self._core.step() is not None:
            pass
        return self._results(self._value)

    def __len__(self) -> int:
        return len(self.nodes)

    def __repr__(self) -> str:
        node = self.next_node
        where = "at the end" if node is None else f"before {_line(node)}{_at(node)}"
        return f"<Interpreter of {len(self)} nodes, {where}>"

    def __str__(self) -> str:
        """The nodes around the next one, with the types of values computed so far."""
        done = self._core.done()
        return "\n".join(
            f"{'->' if i == done else '  '} {_line(node)}"
            + (f" = {_type(self._value(node.id))}" if i < done else "")
            + _at(node)
            for i, node in enumerate(self.nodes)
            if done - 6 < i < done + 6
        )

    def _place(self, node: Tensor | Node | str | int) -> int:
        """The number of a node that is among those computed."""
        core = self.graph._core
        i = core.node(node).id if isinstance(node, int) else self.graph._id("interpreter", node)
        if not self._core.has(i):
            raise GraphError(
                f"interpreter: {_called(core.node(i))} is not part of this run: "
                "the fetches do not need it"
            )
        return i

    def _value(self, i: int) -> Any:
        values = self._core.values(i)
        if not values:
            return None
        return values[0] if len(values) == 1 else tuple(values)

    def _step(self, i: int) -> Step:
        node = self.graph._core.node(i)
        read = () if i in self._fed else tuple(self._value(x.id) for x in node.inputs)
        return Step(node, self._value(i), read)


def feeds(graph: Graph, values: Mapping[Any, Any] | Sequence[Any] | None) -> Mapping[Any, Any]:
    """Values by the nodes they are for; a sequence has one for each of the graph's inputs."""
    if values is None:
        return {}
    if isinstance(values, Mapping):
        return values
    inputs = graph.inputs
    if len(values) != len(inputs):
        raise GraphError(f"interpreter: the graph has {len(inputs)} inputs, got {len(values)}")
    return dict(zip(inputs, values, strict=True))


def _line(node: Node) -> str:
    """`%2 "name": tanh(%1)`."""
    name = f' "{node.name}"' if node.name else ""
    return f"%{node.id}{name}: {node.attributes}"


def _at(node: Node) -> str:
    return f"  # {node.site}" if node.site else ""


def _type(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, tuple):
        return f"({', '.join(_type(x) for x in value)})"
    return f"{value.dtype} {value.shape}"


def _called(node: Node) -> str:
    return f'"{node.name}"' if node.name else f"%{node.id} ({node.op})"
