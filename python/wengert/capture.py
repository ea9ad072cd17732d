"""`compile`: functions traced once for each kind of call, then run as one plan.

What a trace depends on is looked at before each call: the structure of the arguments, dtypes,
sizes, values that are not tensors; the variables of the function's own closure and the globals it
names; attributes of modules and hyperparameters of optimizers. Everything else Python computes is
fixed when the function is traced.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple

from wengert import _core, _touched, pytree
from wengert._core import (
    CaptureError,
    DType,
    DTypeError,
    ShapeError,
    Tensor,
    float32,
    is_grad_enabled,
)

if TYPE_CHECKING:
    from wengert.interpreter import Interpreter

__all__ = ["CompiledFunction", "Explanation", "Spec", "compile", "config"]

_PLAIN = (bool, int, float, complex, str, bytes, type(None), DType)

Names = list[tuple[Any, str | None, Any]]


class Trace(NamedTuple):
    """One trace of a function, for `explain`."""

    reason: str
    """Why it was made."""
    signature: tuple[tuple[str, str], ...]
    """The arguments by their paths, and what is known of them."""
    recording: bool
    """Whether gradients were being recorded."""
    executable: Any
    """What runs."""
    depends: tuple[str, ...]
    """The variables outside that are looked at before each call."""


class CompiledFunction(_core.Dispatcher):
    """A function that runs as one plan; made by `wengert.compile`.

    Called while another function is captured, it becomes part of that one.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        signature: Sequence[Spec] | None = None,
        limit: int = 64,
    ) -> None:
        functools.update_wrapper(self, function)
        # Modules and partial functions have no name of their own.
        self.__name__ = getattr(function, "__name__", type(function).__name__)
        self._function = function
        self._limit = limit
        self._lock = threading.RLock()
        self._traces: list[Trace] = []
        self._parameters = _parameters(function)
        self._declared = tuple(signature or ())
        if self._declared:
            specs = tuple(spec.stand_in() for spec in self._declared)
            self._declare(specs, [spec.sizes() for spec in self._declared])

    @property
    def traces(self) -> int:
        """How often the function was traced."""
        return len(self._traces)

    def _trace(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        leaves: list[Any],
        changing: list[list[bool] | bool | None],
    ) -> Any:
        """Trace a call: what runs it, how its result is put together, what it depends on."""
        named = pytree.flatten_with_paths((args, kwargs))[0]
        paths = [_path(path, self._parameters) for path, _ in named]
        signature = tuple((p, _describe(x)) for p, x in zip(paths, leaves, strict=True))
        reason = self._reason(signature)
        if len(self._traces) >= self._limit:
            raise CaptureError(
                f"{self.__name__}: traced {self._limit} times, and this call needs another trace: "
                f"{reason}; pass what changes as a tensor, or raise `limit`\n"
                + "\n".join(f"  {t.reason}" for t in self._traces[-3:])
            )
        executable, outputs, found, after = self._capture(args, kwargs, leaves, changing)
        names = list(_names(self._function))
        guard = _Guard(_stateful([*found, *(value for _, _, value in names), *args]))
        depends = tuple(key or "closure" for _, key, _ in names)
        self._traces.append(Trace(reason, signature, is_grad_enabled(), executable, depends))
        return executable, outputs.rebuild(after), guard if guard else None, names

    def _capture(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        leaves: list[Any],
        changing: list[list[bool] | bool | None],
        keep: bool = True,
    ) -> tuple[Any, _Outputs, list[Any], list[Any]]:
        """What runs a call, what it returns, the stateful objects it came across, what Python does
        after each call. State that it creates stays where the trace is kept."""
        structure = pytree.flatten((args, kwargs))[1]
        tensors = [x for x in leaves if isinstance(x, Tensor)]
        before = _touched.active, _touched.trace, _touched.created, _touched.after
        variables, kept = list(_names(self._function)), False
        try:
            with _core.Trace() as trace:
                _touched.active, _touched.trace = [], trace
                _touched.created, _touched.after = [], []
                inside = list(leaves)
                for i, change in enumerate(changing):
                    if change is True:
                        inside[i] = trace.number(i, leaves[i])
                    elif change:
                        trace.argument(leaves[i], [None if c is False else c for c in change])
                args, kwargs = pytree.unflatten(structure, inside)
                result = self._function(*args, **kwargs)
                _refuse_rebound(self.__name__, variables)
                outputs = _Outputs(self.__name__, result)
                executable = trace.finish(self.__name__, outputs.tensors, tensors)
            found, after = _touched.active, _touched.after
            kept = keep
        finally:
            if not kept:
                for entries, key in _touched.created:
                    entries.pop(key, None)
                _rebound(variables)
            _touched.active, _touched.trace, _touched.created, _touched.after = before
        return executable, outputs, found, after

    def _trace_again(
        self,
        executable: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        leaves: list[Any],
        changing: list[list[bool] | bool | None],
    ) -> None:
        """Refuse a call that would be traced otherwise now, though nothing that is looked at
        changed."""
        again = self._capture(args, kwargs, leaves, changing, keep=False)[0]
        what = executable.difference(again)
        if what is not None:
            raise CaptureError(
                f"{self.__name__}: a Python value changed that is not looked at before a call: "
                f"{what}; pass it as an argument"
            )

    def _refuse(self, leaves: list[Any], broken: str | None) -> None:
        """Raise for a call that a declared signature does not allow; return where only the state of
        Python changed."""
        name, declared = self.__name__, self._declared
        if len(leaves) != len(declared):
            raise TypeError(f"{name}: {len(declared)} tensors are declared, got {len(leaves)}")
        for i, (spec, x) in enumerate(zip(declared, leaves, strict=True)):
            if not isinstance(x, Tensor):
                raise TypeError(f"{name}: argument {i} is declared {spec}, got {_describe(x)}")
            if x.dtype != spec.dtype:
                raise DTypeError(f"{name}: argument {i} is declared {spec}, got {_describe(x)}")
            if not spec.allows(x.shape):
                raise ShapeError(f"{name}: argument {i} is declared {spec}, got {_describe(x)}")
        if broken is not None:
            shapes = ", ".join(_describe(x) for x in leaves)
            raise ShapeError(f"{name}: {broken}: got {shapes}")

    # What was captured.

    def graph(self, *args: Any, **kwargs: Any) -> Any:
        """The graph that runs for these arguments, after the passes; traced if need be, not run."""
        from wengert.graph import Graph

        executable = self._prepared(*args, **kwargs)[0]
        graph = Graph._of(executable.definition())
        graph.passes = tuple(executable.passes())
        return graph

    def plan(self, *args: Any, **kwargs: Any) -> Any:
        """The plan for these arguments: steps, memory. Traced if need be, not run."""
        executable, tensors, _ = self._prepared(*args, **kwargs)
        return executable.plan(tensors)

    def interpreter(self, *args: Any, **kwargs: Any) -> Interpreter:
        """A run for these arguments that stops after each node, to look at the values: of the nodes
        as they were traced, before the passes. Nothing is updated; `finish()` gives the tensors
        among the results in order, then the new values of what a call would update.

        >>> double = wg.compile(lambda x: (x * 2).exp())
        >>> it = double.interpreter(wg.zeros(3))
        >>> it.run_until(1).value.tolist(), it.next_node.op
        ([0.0, 0.0, 0.0], 'exp')
        """
        from wengert.graph import Graph
        from wengert.interpreter import Interpreter

        executable, tensors, leaves = self._prepared(*args, **kwargs)
        core, definition = executable.stepper(tensors, leaves)
        graph = Graph._of(definition)
        ids = [node.id for node in graph.outputs]
        return Interpreter(graph, core, lambda value: [value(i) for i in ids])

    def explain(self, *args: Any, **kwargs: Any) -> Explanation:
        """What was captured, why each trace was made, and what runs: for these arguments, or,
        without any, for the latest trace. `str()` of it is a page of text."""
        if args or kwargs:
            return Explanation(self.__name__, self._traces, self.plan(*args, **kwargs))
        return Explanation(self.__name__, self._traces, None)

    def _reason(self, signature: tuple[tuple[str, str], ...]) -> str:
        """Why this call needs a trace of its own: how it differs from the most similar one."""
        if not self._traces:
            return "first call"
        differences = [_difference(trace, signature) for trace in self._traces]
        return min(differences, key=len)[0] if all(differences) else "state changed"


class Explanation:
    """What a compiled function captured, as text."""

    def __init__(self, name: str, traces: list[Trace], plan: Any) -> None:
        self.name, self.traces, self.plan = name, tuple(traces), plan

    def __str__(self) -> str:
        lines = [f"{self.name}: {len(self.traces)} traces"]
        for i, trace in enumerate(self.traces):
            lines.append(f"trace {i}: {trace.reason}")
            lines += self._of(trace)
        if self.plan is not None:
            lines += _plan_lines(self.plan)
        return "\n".join(lines)

    def _of(self, trace: Trace) -> Iterator[str]:
        known = ", ".join(f"{path}: {what}" for path, what in trace.signature)
        mode = "gradients recorded" if trace.recording else "no gradients"
        yield f"  signature: {known or 'no arguments'}; {mode}"
        arguments, reached = trace.executable.inputs()
        yield (
            f"  inputs: {arguments} arguments, {reached} tensors reached by the function itself; "
            f"{trace.executable.updates()} tensors are updated"
        )
        if trace.depends:
            yield f"  looked at before each call: {', '.join(dict.fromkeys(trace.depends))}"
        for constraint in trace.executable.constraints():
            yield f"  relies on {constraint}"
        for p in trace.executable.passes():
            yield f"  pass {p.name}: {p.nodes_before} nodes became {p.nodes_after}"
        flops, size = trace.executable.cost()
        yield f"  {flops:,} flops, {size:,} bytes read and written node by node"

    def __repr__(self) -> str:
        return str(self)


def _plan_lines(plan: Any) -> Iterator[str]:
    bound = "at least " if plan.is_open else ""
    yield (
        f"plan: {len(plan)} steps; peak {bound}{plan.peak_bytes:,} bytes, "
        f"{plan.naive_bytes:,} bytes if every result had memory of its own"
    )
    for step in plan.steps:
        site = f"  # {step.site[0]}:{step.site[1]}" if step.site else ""
        reason = f", ends: {step.reason}" if step.reason else ""
        yield f"  {step.name}{reason}{site}"
    yield "alive at the peak:"
    for value in plan.alive_at_peak[:8]:
        line = f"  # {value.line}" if value.line else ""
        yield f"  {value.nbytes:,} bytes: {value.name} {value.type}{line}"


class Spec(NamedTuple):
    """The shape and dtype of an argument, declared: sizes are ints, or `wengert.Dim`s and
    expressions over them; None is any size."""

    shape: tuple[Any, ...]
    dtype: DType = float32

    def __str__(self) -> str:
        sizes = ", ".join("any" if n is None else str(n) for n in self.shape)
        return f"{self.dtype} ({sizes}{',' if len(self.shape) == 1 else ''})"

    def stand_in(self) -> Tensor:
        """A tensor of the declared type; open sizes are what they may be."""
        sizes = [n if isinstance(n, int) else 8 + i for i, n in enumerate(self.shape)]
        return _core._stand_in(sizes, self.dtype)

    def sizes(self) -> list[Any]:
        """What may differ: False, True, or the declared size, of every axis."""
        return [True if n is None else False if isinstance(n, int) else n for n in self.shape]

    def allows(self, shape: tuple[int, ...]) -> bool:
        """Whether a shape has the declared rank and the sizes that are numbers."""
        return len(shape) == len(self.shape) and all(
            n == m for n, m in zip(self.shape, shape, strict=True) if isinstance(n, int)
        )


class _Outputs:
    """What a captured function returned: its tensors, and how to put others in their place."""

    def __init__(self, name: str, result: Any) -> None:
        self.leaves, self.structure = pytree.flatten(result)
        # Sizes and numbers that are returned as such are those of this call: the trace is for them.
        self.leaves = [_plain_number(x) for x in self.leaves]
        self.places = [i for i, x in enumerate(self.leaves) if isinstance(x, Tensor)]
        self.tensors = [self.leaves[i] for i in self.places]
        self.single = isinstance(result, Tensor)

    def rebuild(self, after: list[Any]) -> Callable[[list[Tensor]], Any] | None:
        """Puts results in place, and steps the schedules in `after`; `None` where the result is one
        tensor and nothing is to be done."""
        if self.single and not after:
            return None
        constants = [None if isinstance(x, Tensor) else x for x in self.leaves]
        places, structure = self.places, self.structure

        def rebuild(tensors: list[Tensor]) -> Any:
            values = list(constants)
            for i, y in zip(places, tensors, strict=True):
                values[i] = y
            for schedule in after:
                schedule.step()
            return pytree.unflatten(structure, values)

        return rebuild


def _path(path: str, parameters: list[str]) -> str:
    """`[0][1].w` in `(args, kwargs)` as `x.w`, where `x` is the second parameter; `[1]['k']` as
    `k`."""
    if not path.startswith("[0]"):
        return path[3:].removeprefix("['").replace("']", "", 1)
    place, _, rest = path[4:].partition("]")
    i = int(place)
    return (parameters[i] if i < len(parameters) else f"arguments[{i}]") + rest


def _parameters(function: Any) -> list[str]:
    """The names of the positional parameters."""
    import inspect

    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    return [p.name for p in found if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]


def _describe(x: Any) -> str:
    if isinstance(x, Tensor):
        return f"{x.dtype} {tuple(x.shape)}"
    return f"{type(x).__name__} {x!r}"


def _difference(trace: Trace, signature: tuple[tuple[str, str], ...]) -> list[str]:
    found = [
        f"{path}: {old} became {new}"
        for (path, new), (_, old) in zip(signature, trace.signature, strict=False)
        if new != old
    ]
    if len(signature) != len(trace.signature):
        found.append("the structure of the arguments changed")
    if trace.recording != is_grad_enabled():
        found.append("recording was switched")
    return found


# What a trace depends on besides its arguments.


def _names(function: Any) -> Iterator[tuple[Any, str | None, Any]]:
    """The variables of a function's closure, and the globals it names, with their values: the cell
    (or the globals), the name, the value."""
    while isinstance(function, functools.partial) or hasattr(function, "__wrapped__"):
        function = getattr(function, "__wrapped__", None) or function.func
    function = getattr(function, "__func__", function)
    if not isinstance(function, FunctionType):
        return
    for cell in function.__closure__ or ():
        try:
            yield cell, None, cell.cell_contents
        except ValueError:
            continue
    for name in dict.fromkeys(_globals(function.__code__)):
        if name in function.__globals__:
            yield function.__globals__, name, function.__globals__[name]


def _rebound(variables: Names) -> list[str]:
    """The variables that were bound to other tensors since then, which are bound back."""
    found = []
    for home, key, old in variables:
        now = home.cell_contents if key is None else home.get(key)
        if now is old or not isinstance(now, Tensor):
            continue
        if key is None:
            home.cell_contents = old
        else:
            home[key] = old
        found.append(key or "of the closure")
    return found


def _refuse_rebound(name: str, variables: Names) -> None:
    """What a variable is bound to in a trace would have no value afterwards."""
    found = _rebound(variables)
    if found:
        raise CaptureError(
            f"{name}: while it is captured, the variable {found[0]} is bound to another tensor; "
            "update the tensor in place (v[...] = y, v += y), or return the new one"
        )


def _plain_number(x: Any) -> Any:
    """A size or a number of the trace as Python's, which fixes it."""
    if isinstance(x, _core.Dim):
        return int(x)
    return float(x) if isinstance(x, _core.Number) else x


def _globals(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _globals(constant)


def _stateful(values: Iterable[Any]) -> list[Any]:
    """The modules and optimizers among values, with all modules below; each once."""
    from wengert.nn.module import Module
    from wengert.optim import Optimizer

    found: dict[int, Any] = {}
    stack = list(values)
    while stack:
        x = stack.pop()
        if isinstance(x, (list, tuple)):
            stack.extend(x)
        elif isinstance(x, dict):
            stack.extend(x.values())
        elif isinstance(x, Module):
            found.update((id(m), m) for m in x.modules())
        elif isinstance(x, Optimizer):
            found[id(x)] = x
    return list(found.values())


class _Guard:
    """Whether modules and optimizers have the plain values they had."""

    def __init__(self, objects: list[Any]) -> None:
        self.kept = [(x, _snapshot(x)) for x in objects]

    def __bool__(self) -> bool:
        return bool(self.kept)

    def __call__(self) -> bool:
        return all(_same(snapshot, _snapshot(x)) for x, snapshot in self.kept)


def _snapshot(x: Any) -> list[tuple[Any, Any]]:
    """The attributes of a module, or the hyperparameters and the state of an optimizer."""
    attributes = [(k, v) for k, v in x.__dict__.items() if k != "_version"]
    groups = getattr(x, "param_groups", None)
    if groups is None:
        return attributes
    # A learning rate is a number given at each call.
    attributes += [
        (k, v) for g in groups for k, v in g.items() if k != "lr" or not isinstance(v, float)
    ]
    return attributes


def _same(old: list[tuple[Any, Any]], new: list[tuple[Any, Any]]) -> bool:
    return len(old) == len(new) and all(
        k == m and (v is w or (_is_plain(v) and type(v) is type(w) and v == w))
        for (k, v), (m, w) in zip(old, new, strict=True)
    )


def _is_plain(x: Any) -> bool:
    return isinstance(x, _PLAIN) or (isinstance(x, tuple) and all(map(_is_plain, x)))


def compile(
    function: Callable[..., Any] | None = None,
    *,
    signature: Sequence[Spec] | None = None,
    limit: int = 64,
) -> Any:
    """`function`, traced once for each kind of call and run as one plan; also a decorator.

    It gives the same bits as the function itself. Tensors it reaches by closure or through modules
    are inputs, tensors it updates (parameters, running statistics, gradients, random state) are
    updated when it has run. A size that changes becomes a symbol in the second trace, a float among
    the arguments a number given at each call. `signature` declares the arguments, which are then
    traced at once: `ShapeError` or `DTypeError` for a call that it does not allow. More than
    `limit` traces are a `CaptureError`, and so is Python code that looks at the data of a tensor.

    >>> double = wg.compile(lambda x: x * 2)
    >>> double(wg.ones(2)).tolist(), double.traces
    ([2.0, 2.0], 1)
    """
    if function is None:
        return lambda f: CompiledFunction(f, signature, limit)
    return CompiledFunction(function, signature, limit)


@contextlib.contextmanager
def config(
    *,
    passes: dict[str, bool] | None = None,
    fast_math: bool | None = None,
    memory_budget: int | None = None,
    check: bool | None = None,
) -> Iterator[None]:
    """How functions captured inside the block are compiled, on this thread.

    `passes` switches passes by name; `fast_math` allows algebra that changes the last bits;
    `memory_budget` refuses, before anything is computed, calls that need more bytes. With `check`
    (or `WENGERT_CHECK=1` in the environment) every run is repeated node by node as it was traced,
    and bits are compared; the first calls of a function, and some of the later ones, are traced
    again to find Python values that changed unseen. What is not given stays as it is. `ValueError`
    for a pass that does not exist.

    >>> with wg.config(passes={"cse": False}):
    ...     f = wg.compile(lambda x: x.exp() + x.exp())
    ...     [n.op for n in f.graph(wg.ones(2)).nodes].count("exp")
    2
    """
    before = _core._configure(passes, fast_math, memory_budget, check)
    try:
        yield
    finally:
        before.restore()
