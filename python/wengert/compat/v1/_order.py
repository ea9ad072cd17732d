"""What a session computes, and in what order: fetches, control dependencies."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import wengert as wg
from wengert.compat.v1._graph import State, default_graph, in_graph, state, state_of
from wengert.graph import graph_of


class Fetch:
    """What a session computes from tensors: `finish` makes the result of their values."""

    name: str | None = None
    reads = True
    """Whether `finish` looks at the values."""

    def __init__(self, tensors: Sequence[wg.Tensor]) -> None:
        self.tensors = [*tensors, *dependencies()]

    def finish(self, values: list[Any]) -> Any:
        """What the fetch gives."""
        raise NotImplementedError


def tensors_of(x: Any) -> list[wg.Tensor]:
    """The tensors of what may be depended on: a tensor, an operation, lists of them."""
    if isinstance(x, wg.Variable):
        return []
    if isinstance(x, wg.Tensor):
        return [x]
    if isinstance(x, Fetch):
        return x.tensors
    if isinstance(x, list | tuple):
        return [t for part in x for t in tensors_of(part)]
    raise TypeError(f"tf.group: expected tensors and operations, got {type(x).__name__}")


class Branch:
    """The assignments in a branch of `tf.cond`, by variable: it gives them as results."""

    def __init__(self) -> None:
        self.assigned: dict[Any, wg.Tensor] = {}

    def assign(self, v: Any, value: wg.Tensor) -> wg.Tensor:
        """The value, which the variable gets if this branch is taken."""
        if v in self.assigned:
            raise wg.GraphError(f'tf.cond: the variable "{v.name}" is assigned twice in a branch')
        if tuple(value.shape) != tuple(v.shape) or value.dtype != v.dtype:
            raise wg.ShapeError(
                f'tf.cond: the variable "{v.name}" is {v.dtype} {v.shape}, and was assigned '
                f"{value.dtype} {value.shape}"
            )
        self.assigned[v] = value
        return value


class _Branches(threading.local):
    """The branches that are traced on this thread, and how many bodies of loops and branches."""

    def __init__(self) -> None:
        self.open: list[Branch] = []
        self.bodies = 0


branches = _Branches()


@contextmanager
def branch() -> Iterator[Branch]:
    """Inside, assignments belong to a branch."""
    made = Branch()
    branches.open.append(made)
    try:
        yield made
    finally:
        branches.open.pop()


class _Dependencies(threading.local):
    """The dependencies that are open on this thread: the graph, where they begin, nodes."""

    def __init__(self) -> None:
        self.open: list[tuple[State, int, list[wg.Tensor]]] = []


_dependencies = _Dependencies()


def dependencies() -> list[wg.Tensor]:
    """What is made now depends on these."""
    here = state()
    return [t for owner, _, found in _dependencies.open if owner is here for t in found]


@contextmanager
def control_dependencies(control_inputs: Any) -> Iterator[None]:
    """Inside, what is made takes along what `control_inputs` do: a run that computes it assigns
    what they assign. `None` leaves all dependencies that are open.

    A variable keeps the value that it had when the run began, but `tf.identity(v)` and
    `v.read_value()` inside give the assigned one.
    """
    graph, here = default_graph(), state()
    before = _dependencies.open
    if control_inputs is None:
        _close(graph, before)
        _dependencies.open = []
    else:
        found = [t for x in control_inputs for t in tensors_of(x)]
        _dependencies.open = [*before, (here, len(graph), found)]
    try:
        yield
    finally:
        if control_inputs is None:
            _dependencies.open = [(owner, len(graph), found) for owner, _, found in before]
        else:
            # Those around may have been opened anew.
            ended, _dependencies.open = _dependencies.open, _dependencies.open[: len(before)]
            _close(graph, ended[-1:])


def _close(graph: wg.Graph, parts: Sequence[tuple[State, int, list[wg.Tensor]]]) -> None:
    for owner, start, found in parts:
        # What the body of a branch made is no node of the graph: the branch knows what it assigns.
        made = (graph._core.id_of(t) for t in found)
        ids = tuple(i for i in made if i is not None)
        if ids and len(graph) > start:
            owner.ranges.append((start, len(graph), ids))


def needed_by(graph: wg.Graph, ids: Sequence[int], fed: Sequence[int]) -> list[int]:
    """What nodes need because of control dependencies, in the order in which it is found."""
    core, ranges = graph._core, state_of(graph).ranges
    found: list[int] = []
    waiting = list(ranges)
    while waiting:
        reached = [
            part for part in waiting if core.reached([*ids, *found], fed, list(range(*part[:2])))
        ]
        if not reached:
            break
        found += [i for part in reached for i in part[2] if i not in found and i not in fed]
        waiting = [part for part in waiting if part not in reached]
    return found


def current(v: Any) -> wg.Tensor:
    """A variable, or what the dependencies that are open assign to it."""
    graph = graph_of(v)
    if graph is None or not _dependencies.open:
        return v
    if branches.open and v in branches.open[-1].assigned:
        return branches.open[-1].assigned[v]
    i = graph._core.id_of(v)
    nodes = [node for node, target in graph._assigned.items() if target == i]
    given = [graph._core.id_of(t) for t in dependencies()]
    ids = [n for n in given if n is not None]
    reached = graph._core.reached(ids + needed_by(graph, ids, []), [], nodes) if nodes else []
    return graph._core.tensor(reached[-1]) if reached else v


def reading(f: Callable[..., Any]) -> Callable[..., Any]:
    """`f` with the default graph open, which reads variables as `current` does."""
    inner = in_graph(f)

    @functools.wraps(f)
    def call(*args: Any, **kwargs: Any) -> Any:
        if _dependencies.open:
            args = tuple(_read(x) for x in args)
            kwargs = {k: _read(x) for k, x in kwargs.items()}
        return inner(*args, **kwargs)

    return call


def _read(x: Any) -> Any:
    return current(x) if isinstance(x, wg.Variable) else x
