"""`compile`: functions traced once for each kind of call, then run as one plan.

What a trace depends on is looked at before each call: the structure of the arguments, dtypes,
sizes, values that are not tensors; the variables of the function's own closure and the globals it
names; attributes of modules and hyperparameters of optimizers. Everything else Python computes is
fixed when the function is traced.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Literal,
    NamedTuple,
    ParamSpec,
    Self,
    TypeVar,
    overload,
)
from weakref import WeakSet

from wengert import _core, _touched, pytree
from wengert._changes import Changes, Values
from wengert._core import (
    CaptureError,
    DType,
    DTypeError,
    ShapeError,
    Tensor,
    float32,
    is_grad_enabled,
)
from wengert._explanation import Explanation, Trace
from wengert._guards import (
    Guard,
    changed_state,
    describe,
    named,
    names_of,
    outside,
    owners,
    refuse_rebound,
    refuse_training,
    stateful,
    take_back,
)

if TYPE_CHECKING:
    from wengert.interpreter import Interpreter

__all__ = ["CompiledFunction", "Explanation", "Spec", "compile", "config"]

P = ParamSpec("P")
R = TypeVar("R")

functions: WeakSet[CompiledFunction[..., Any]] = WeakSet()
"""Every compiled function there is, for profiles to say what their steps come from."""


def _is_module(x: Any) -> bool:
    from wengert.nn.module import Module

    return isinstance(x, Module)


class CompiledFunction(_core.Dispatcher, Generic[P, R]):
    """A function that runs as one plan; made by `wengert.compile`. To type checkers it takes what
    the function takes.

    Called while another function is captured, it becomes part of that one.
    """

    if TYPE_CHECKING:

        def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...

    # Whether traces become programs for other devices.
    _exported = False

    def __init__(
        self,
        function: Callable[P, R],
        signature: Sequence[Spec] | None = None,
        limit: int = 64,
        freeze: bool = False,
    ) -> None:
        if not callable(function) or isinstance(function, Tensor):
            raise TypeError(f"compile: expected a function, got {type(function).__name__}")
        if isinstance(limit, bool) or not isinstance(limit, int):
            raise TypeError(f"compile: limit: expected an int, got {type(limit).__name__}")
        if not isinstance(freeze, bool):
            raise TypeError(f"compile: freeze: expected a bool, got {type(freeze).__name__}")
        # A module's attributes are read when they are asked for.
        functools.update_wrapper(
            self, function, updated=() if _is_module(function) else ("__dict__",)
        )
        # Modules and partial functions have no name of their own.
        self.__name__ = getattr(function, "__name__", type(function).__name__)
        self._function = function
        self._limit = limit
        self._freeze = freeze
        self._forgotten = 0
        self._lock = threading.RLock()
        self._traces: list[Trace] = []
        functions.add(self)
        self._parameters = _parameters(function)
        self._declared = _specs(signature)
        if self._declared:
            specs = tuple(spec.stand_in() for spec in self._declared)
            self._declare(specs, [spec.sizes() for spec in self._declared])

    def __getattr__(self, name: str) -> Any:
        """A compiled module has the attributes and methods of the module."""
        function = self.__dict__.get("_function")
        if _is_module(function):
            return getattr(function, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __repr__(self) -> str:
        count, kind = self.traces, "frozen" if self._freeze else "compiled"
        return f"<{kind} {self.__name__}, {count} trace{'' if count == 1 else 's'}>"

    # A copy traces anew: what was captured belongs to the tensors of the original.

    def __copy__(self) -> CompiledFunction[P, R]:
        return CompiledFunction(self._function, self._declared, self._limit, self._freeze)

    def __deepcopy__(self, memo: dict[int, Any]) -> CompiledFunction[P, R]:
        function = copy.deepcopy(self._function, memo)
        return CompiledFunction(function, self._declared, self._limit, self._freeze)

    def __reduce__(self) -> Any:
        # By its name, where it has taken its function's place.
        name, module = getattr(self, "__qualname__", ""), getattr(self, "__module__", None)
        found: Any = sys.modules.get(module or "")
        for part in name.split("."):
            found = getattr(found, part, None)
        if found is self:
            return name
        return CompiledFunction, (self._function, self._declared, self._limit, self._freeze)

    @property
    def traces(self) -> int:
        """How often the function was traced."""
        return len(self._traces) + self._forgotten

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
        signature = tuple((p, describe(x)) for p, x in zip(paths, leaves, strict=True))
        tensors = [x for x in leaves if isinstance(x, Tensor)]
        reason = self._reason(signature, tensors)
        if self._freeze:
            self._forget()
        if self.traces >= self._limit:
            raise CaptureError(
                f"{self.__name__}: traced {self._limit} times, and this call needs another trace: "
                f"{reason}; pass what changes as a tensor, or raise `limit`\n"
                + "\n".join(f"  {t.reason}" for t in self._traces[-3:])
            )
        made = self._capture(args, kwargs, leaves, changing)
        names = list(names_of(self._function))
        objects = [*made.record.active, *owners(self._function), *args, *kwargs.values()]
        objects += [value for _, _, value in names]
        guard = Guard(stateful(objects), made.free)
        types = tuple((tuple(x.shape), x.dtype) for x in tensors)
        self._traces.append(
            Trace(
                reason,
                signature,
                is_grad_enabled(),
                _core._autocast(),
                made.executable,
                names,
                types,
                made.changes,
                guard,
                tuple(p for p, x in zip(paths, leaves, strict=True) if isinstance(x, Tensor)),
            )
        )
        return made.executable, made.rebuild(), guard if guard else None, names

    def _forget(self) -> None:
        """Let go of traces whose constants are not current any more, with their memory."""
        stale = self._forget_stale()
        kept = [t for t in self._traces if not any(t.executable is x for x in stale)]
        self._forgotten += len(self._traces) - len(kept)
        self._traces = kept

    def _capture(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        leaves: list[Any],
        changing: list[list[bool] | bool | None],
        keep: bool = True,
    ) -> _Made:
        """What runs a call, and what Python does beside it. State that it creates stays where the
        trace is kept."""
        structure = pytree.flatten((args, kwargs))[1]
        tensors = [x for x in leaves if isinstance(x, Tensor)]
        variables, kept = outside(self._function), False
        before, here = _touched.here.record, _touched.here
        record: _touched.Record | None = None
        try:
            with _core.Trace(self._exported) as trace:
                here.record = record = _touched.Record(trace)
                inside = list(leaves)
                for i, change in enumerate(changing):
                    if change is True:
                        inside[i] = trace.number(i, leaves[i])
                    elif change:
                        trace.argument(leaves[i], [None if c is False else c for c in change])
                args, kwargs = pytree.unflatten(structure, inside)
                result = self._function(*args, **kwargs)
                _refuse_lazy(self.__name__, result)
                refuse_rebound(self.__name__, variables)
                for what in record.unfinished.values():
                    raise CaptureError(f"{self.__name__}: {what}")
                if self._freeze:
                    refuse_training(self.__name__, record.active)
                here.record = before
                outputs, changes = Values(result), Changes(record)
                results = [*outputs.tensors, *changes.tensors]
                freezes = (lambda x: named(x, record.active)) if self._freeze else None
                executable = trace.finish(self.__name__, results, tensors, freezes)
            single = isinstance(result, Tensor)
            free = changes.free(self.__name__, executable)
            outputs.finish()
            changes.finish()
            made = _Made(executable, outputs, changes, record, free, single)
            kept = keep
        finally:
            here.record = before
            # An interruption may come before there is a record.
            if record is not None and not kept:
                take_back(record, variables)
        return made

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
        again = self._capture(args, kwargs, leaves, changing, keep=False)
        what = executable.difference(again.executable)
        if what is None:
            known = next(trace for trace in self._traces if trace.executable is executable)
            what = known.changes.difference(again.changes)
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
                raise TypeError(f"{name}: argument {i} is declared {spec}, got {describe(x)}")
            if x.dtype != spec.dtype:
                raise DTypeError(f"{name}: argument {i} is declared {spec}, got {describe(x)}")
            if not spec.allows(x.shape):
                raise ShapeError(f"{name}: argument {i} is declared {spec}, got {describe(x)}")
        if broken is not None:
            shapes = ", ".join(describe(x) for x in leaves)
            raise ShapeError(f"{name}: {broken}: got {shapes}")

    # What was captured.

    def graph(self, *args: Any, optimized: bool = True, **kwargs: Any) -> Any:
        """The graph that runs for these arguments, after the passes; traced if need be, not run.
        `optimized=False`: as it was traced, where a call of `layer_norm` is one node."""
        from wengert.graph import Graph

        executable = self._prepared(*args, **kwargs)[0]
        graph = Graph._of(executable.definition(optimized))
        for node, name in zip(graph.inputs, self._input_names(executable), strict=True):
            if name:
                graph._core.name(node.id, graph._unique(name))
        if optimized:
            graph.passes = tuple(executable.passes())
        return graph

    def _input_names(self, executable: Any) -> list[str]:
        """What the inputs of a trace are called: arguments by their paths, what the function
        reaches by where it is found, as `0.weight`; empty where that is not known."""
        from wengert._named import names_of_state, names_of_tensors

        trace = next((t for t in self._traces if t.executable is executable), None)
        reached = names_of_tensors(self._function)
        if trace is not None:
            names_of_state((x for x, _ in trace.guard.kept), reached)
        found: list[str] = []
        for kind, what in executable.places():
            if kind == "argument":
                known = trace.arguments if trace is not None else ()
                found.append(known[what] if what < len(known) else "")
            elif kind == "gradient":
                found.append(f"{found[what]}.grad" if found[what] else "")
            else:
                found.append(reached.get(id(what), "") if kind == "tensor" else kind)
        return found

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
        without any, for the latest trace and the sizes it was made with. `str()` of it is a page of
        text."""
        if args or kwargs:
            return Explanation(self, self._traces, self.plan(*args, **kwargs))
        if not self._traces:
            return Explanation(self, [], None)
        latest = self._traces[-1]
        like = [_core._stand_in(list(shape), dtype) for shape, dtype in latest.types]
        return Explanation(self, self._traces, latest.executable.plan(like))

    def _reason(self, signature: tuple[tuple[str, str], ...], tensors: list[Tensor]) -> str:
        """Why this call needs a trace of its own: how it differs from the most similar one."""
        if not self._traces:
            return "first call"
        differences = [_difference(trace, signature) for trace in self._traces]
        if all(differences):
            return min(differences, key=len)[0]
        alike = next(
            t for t, d in reversed([*zip(self._traces, differences, strict=True)]) if not d
        )
        return changed_state(self._function, alike, tensors) or "an object in it is another"


class _Declared(NamedTuple):
    """The fields of a `Spec`."""

    shape: tuple[Any, ...]
    dtype: DType = float32


class Spec(_Declared):
    """The shape and dtype of an argument, declared: sizes are ints, or `wengert.Dim`s and
    expressions over them; None is any size."""

    __slots__ = ()

    def __new__(cls, shape: Iterable[Any], dtype: DType = float32) -> Self:
        if isinstance(shape, (Tensor, str)):
            raise TypeError(f"Spec: expected a sequence of sizes, got {type(shape).__name__}")
        shape = tuple(shape)
        for size in shape:
            if size is not None:
                _core._check_size("Spec", size)
        return super().__new__(cls, shape, dtype)

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


class _Made(NamedTuple):
    """What a capture made: what runs, what Python puts together and does after each call."""

    executable: Any
    outputs: Values
    changes: Changes
    record: _touched.Record
    free: set[tuple[int, Any]]
    """Attributes that a call binds to tensors which no call reads."""
    single: bool
    """Whether the result is one tensor."""

    def rebuild(self) -> Callable[[list[Tensor]], Any] | None:
        """Puts results in place, makes assignments, steps schedules; `None` where the result is one
        tensor and nothing is to be done."""
        outputs, changes, after = self.outputs, self.changes, self.record.after
        if self.single and not after and not changes:
            return None
        count = outputs.count

        def rebuild(tensors: list[Tensor]) -> Any:
            changes.replay(tensors[count:])
            for schedule in after:
                schedule.step()
            return outputs.built(tensors[:count])

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
    if _is_module(function):
        function = function.forward
    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    return [p.name for p in found if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]


def _specs(signature: Any) -> tuple[Spec, ...]:
    """A declared signature, checked."""
    if signature is None:
        return ()
    if not isinstance(signature, (list, tuple)):
        what = type(signature).__name__
        raise TypeError(f"compile: signature: expected a list of Specs, got {what}")
    for i, spec in enumerate(signature):
        if not isinstance(spec, Spec):
            raise TypeError(f"compile: signature[{i}]: expected a Spec, got {type(spec).__name__}")
    return tuple(signature)


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
    if trace.narrow != _core._autocast():
        found.append("mixed precision was switched")
    return found


def _refuse_lazy(name: str, result: Any) -> None:
    """What computes later, outside the capture, has not been captured."""
    for x in pytree.flatten(result)[0]:
        if inspect.isgenerator(x) or inspect.iscoroutine(x) or inspect.isasyncgen(x):
            if not inspect.isgenerator(x):
                getattr(x, "close", lambda: None)()
            raise CaptureError(
                f"{name}: it returns a {type(x).__name__}, which would compute after the capture; "
                "return a list of the values"
            )


@overload
def compile(
    function: Callable[P, R],
    *,
    signature: Sequence[Spec] | None = None,
    limit: int = 64,
    freeze: bool = False,
) -> CompiledFunction[P, R]: ...


@overload
def compile(
    function: None = None,
    *,
    signature: Sequence[Spec] | None = None,
    limit: int = 64,
    freeze: bool = False,
) -> Callable[[Callable[P, R]], CompiledFunction[P, R]]: ...


def compile(
    function: Callable[..., Any] | None = None,
    *,
    signature: Sequence[Spec] | None = None,
    limit: int = 64,
    freeze: bool = False,
) -> Any:
    """`function`, traced once for each kind of call and run as one plan; also a decorator.

    It gives the same bits as the function itself. Tensors it reaches by closure or through modules
    are inputs, tensors it updates (parameters, running statistics, gradients, random state) are
    updated when it has run. A size that changes becomes a symbol in the second trace, a float among
    the arguments a number given at each call. `signature` declares the arguments, which are then
    traced at once: `ShapeError` or `DTypeError` for a call that it does not allow. More than
    `limit` traces are a `CaptureError`, and so is Python code that looks at the data of a tensor.

    With `freeze` the tensors that it reaches are constants, and what follows from them is computed
    once: batch norm is worked into the weights before it, so results are equal up to rounding. A
    tensor that has another value later makes a new trace. Updates of such tensors, gradients by
    them inside, and modules in training mode that look at it are a `CaptureError`.

    >>> double = wg.compile(lambda x: x * 2)
    >>> double(wg.ones(2)).tolist(), double.traces
    ([2.0, 2.0], 1)
    """
    if function is None:
        return lambda f: CompiledFunction(f, signature, limit, freeze)
    return CompiledFunction(function, signature, limit, freeze)


@contextlib.contextmanager
def config(
    *,
    passes: dict[str, bool] | None = None,
    fast_math: bool | None = None,
    memory_budget: int | None = None,
    check: bool | Literal["reference"] | None = None,
) -> Iterator[None]:
    """How functions captured inside the block are compiled, on this thread.

    `passes` switches passes by name; `fast_math` allows algebra that changes the last bits;
    `memory_budget` is the most bytes that a call may need: what a plan has no room for is computed
    again, and calls that need more all the same are refused before anything is computed. With
    `check` (or `WENGERT_CHECK=1` in the environment) every run is repeated node by node as it was
    traced, and bits are compared; the first calls of a function, and some of the later ones, are
    traced again to find Python values that changed unseen. With `check="reference"` (or
    `WENGERT_CHECK=reference`) each op is computed by plain loops besides, and must be as near to
    them as rounding allows; that is slow. What is not given stays as it is.
    `ValueError` for a pass that does not exist.

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
