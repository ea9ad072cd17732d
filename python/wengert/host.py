"""Ops of one's own over arrays of NumPy, and calls of Python for their effect."""

from __future__ import annotations

import functools
import inspect
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from wengert import _core
from wengert._core import DType, GradientError, Tensor, asarray, isdtype, zeros_like
from wengert.capture import Spec

if TYPE_CHECKING:
    import numpy as np

__all__ = ["CustomOp", "custom_op", "host_call"]

Rule = Callable[..., Any]

REMEMBERED = 64
"""How many sets of attributes an op remembers."""


def custom_op(
    *,
    infer: Rule,
    vjp: Rule | None = None,
    jvp: Rule | None = None,
    batch: Rule | None = None,
    effect: Literal["pure", "ordered", "collective"] = "pure",
    name: str | None = None,
) -> Callable[[Callable[..., Any]], CustomOp]:
    """A decorator that makes an op of a function over NumPy arrays.

    The function takes an array for each operand, which it may keep and change, and returns an array
    (a tuple of them where there are several results). `infer` is the type rule: it takes a `Spec`
    (`shape`, `dtype`) for each operand and returns the `Spec` of the result, or a tuple of them.
    What the function returns must be of these types. Keyword arguments of a call are attributes:
    hashable values, which the function gets by name, and of the rules those that name them.

    The op works in eager code, captured functions, control flow, graphs, `vmap`, `jvp` and
    `jacobian`. Its rules compute with tensors, so derivatives of any order follow. They can be
    given here or by decorators of the op:

    `vjp(g, *operands, y)` returns a tuple with the cotangent of each operand, `None` where there is
    none. With several results `g` and `y` are tuples; a result that nothing depends on has zeros
    for its cotangent, one that is not floating has `None`.

    `jvp(t, *operands, y)` returns the tangent of the result, or a tuple of them. `t` is the tuple
    of the operands' tangents; zeros where one has none, `None` where it is not floating. Without
    this rule the tangents follow from `vjp`.

    `batch(mapped, *operands)` returns the results for a batch, each with the examples along a new
    first axis, as operands have it where `mapped`. Without this rule `vmap` makes a call for each
    example.

    `effect="pure"` says that a call does nothing but give its results: calls may be merged, made
    again and left out. `"ordered"` calls happen once each, in the order of the program;
    `"collective"` ones too, and other processes wait for them.

    A rule is traced once for the types of a call, as a captured function is.

    >>> @wg.custom_op(infer=lambda x: x)
    ... def cube(x):
    ...     return x**3
    >>> @cube.vjp
    ... def _(g, x, y):
    ...     return (3.0 * x * x * g,)
    >>> cube(wg.tensor([1.0, 2.0])).tolist()
    [1.0, 8.0]
    >>> wg.grad(lambda x: cube(x).sum())(wg.tensor([1.0, 2.0])).tolist()
    [3.0, 12.0]
    """
    _core._check_effect("custom_op", effect)

    def decorate(function: Callable[..., Any]) -> CustomOp:
        op = CustomOp(function, infer, effect, name)
        op._rules.update(vjp=vjp, jvp=jvp, batch=batch)
        return op

    return decorate


class CustomOp:
    """An op of one's own; `wengert.custom_op` makes one."""

    def __init__(
        self, function: Callable[..., Any], infer: Rule, effect: str, name: str | None = None
    ) -> None:
        for what, f in (("a function", function), ("a type rule", infer)):
            if not callable(f):
                raise TypeError(f"{name or 'custom_op'}: expected {what}, got {type(f).__name__}")
        functools.update_wrapper(self, function)
        self.name = str(name or getattr(function, "__name__", type(function).__name__))
        self.effect = effect
        self._function = function
        self._infer, self._inferring = infer, _keywords(infer)
        self._taking = _keywords(function)
        self._rules: dict[str, Rule | None] = {}
        self._bound: OrderedDict[Hashable, _Bound] = OrderedDict()

    def __repr__(self) -> str:
        return f"<custom op {self.name}, {self.effect}>"

    def __reduce__(self) -> str:
        # As functions are: copies are the op itself, and files have its name.
        return str(getattr(self, "__qualname__", self.name))

    def vjp(self, rule: Rule) -> Rule:
        """Declare the gradient rule. A decorator."""
        return self._declare("vjp", rule)

    def jvp(self, rule: Rule) -> Rule:
        """Declare the rule of tangents. A decorator."""
        return self._declare("jvp", rule)

    def batch(self, rule: Rule) -> Rule:
        """Declare the rule of batches. A decorator."""
        return self._declare("batch", rule)

    def _declare(self, kind: str, rule: Rule) -> Rule:
        self._rules[kind] = rule
        self._bound.clear()
        return rule

    def __call__(self, *operands: Any, **attributes: Any) -> Any:
        """The result, or a tuple of them."""
        for k in attributes:
            if self._taking is not None and k not in self._taking:
                raise TypeError(f"{self.name}: the function takes no attribute {k}")
        bound = self._with({k: _attribute(self.name, k, v) for k, v in attributes.items()})
        return bound.call(_tensors(self.name, operands))

    def _with(self, attributes: dict[str, Any]) -> _Bound:
        """The op with attributes: the same object for the same ones."""
        key = tuple((k, _exactly(attributes[k])) for k in sorted(attributes))
        known = self._bound.get(key)
        if known is None:
            known = self._bound[key] = _Bound(self, attributes)
            if len(self._bound) > REMEMBERED:
                self._bound.popitem(last=False)
        return known


def host_call(function: Callable[..., Any], *tensors: Any) -> None:
    """Call `function` with NumPy arrays, for its effect, when the tensors have values.

    In a captured function the call happens at every run, in order with other calls of this kind.
    What the function raises ends the run, which then has changed nothing.

    >>> wg.host_call(lambda x: print(x.sum()), wg.tensor([1.0, 2.0]))
    3.0
    """
    op = CustomOp(function, _no_results, "ordered", "host_call")
    op._with({}).call(_tensors("host_call", tensors))


def _no_results(*_: Spec) -> tuple[()]:
    return ()


class _Bound:
    """An op with its attributes: what a node of a graph holds."""

    def __init__(self, op: CustomOp, attributes: dict[str, Any]) -> None:
        self.op = op
        self.attributes = attributes
        self.rules = _core.HostRules()
        self.single = False

    def call(self, operands: list[Tensor]) -> Any:
        op = self.op
        found = _core._host_call(self, self.rules, op.name, op.effect, operands)
        if op._infer is _no_results:
            return None
        return found[0] if self.single else tuple(found)

    # What follows is called by the engine.

    def infer(self, types: list[tuple[tuple[Any, ...], DType]]) -> list[tuple[Any, Any]]:
        """The shapes and dtypes of the results."""
        specs = [Spec(shape, dtype) for shape, dtype in types]
        found = self.op._infer(*specs, **self._known(self.op._inferring))
        self.single = not isinstance(found, (tuple, list)) or isinstance(found, Spec)
        results = [found] if self.single else list(found)
        for y in results:
            if not isinstance(y, Spec):
                raise TypeError(
                    f"{self.op.name}: the type rule returned {type(y).__name__}, wanted a "
                    "wengert.Spec for each result"
                )
            if None in y.shape:
                raise ValueError(
                    f"{self.op.name}: the type rule must tell every size: got {y}"
                )
        return [(y.shape, y.dtype) for y in results]

    def run(self, operands: list[Tensor], dtypes: list[str]) -> list[Tensor]:
        """The results of the function."""
        import numpy as np

        arrays = [np.array(x.numpy()) for x in operands]
        found = self.op._function(*arrays, **self.attributes)
        if self.op._infer is _no_results:
            return []
        if isinstance(found, tuple) or (isinstance(found, list) and len(dtypes) != 1):
            results = list(found)
        else:
            results = [] if found is None and not dtypes else [found]
        return [
            _result(self.op.name, y, dtypes[i] if i < len(dtypes) else None)
            for i, y in enumerate(results)
        ]

    def has(self, rule: str) -> bool:
        """Whether there is a rule."""
        return self.op._rules.get(rule) is not None

    def pull(
        self, g: list[Tensor | None], xs: list[Tensor], ys: list[Tensor]
    ) -> list[Tensor | None]:
        """Cotangents of operands, from those of results."""
        cotangents = [_zeros(y) if c is None else c for c, y in zip(g, ys, strict=True)]
        found = self._ask("vjp", self._one(cotangents), *xs, self._one(ys))
        return self._listed("vjp", found, len(xs), "operands", _is_many(found))

    def push(
        self, t: list[Tensor | None], xs: list[Tensor], ys: list[Tensor]
    ) -> list[Tensor | None]:
        """Tangents of results, from those of operands."""
        tangents = tuple(_zeros(x) if d is None else d for d, x in zip(t, xs, strict=True))
        found = self._ask("jvp", tangents, *xs, self._one(ys))
        return self._listed("jvp", found, len(ys), "results", not self.single)

    def spread(
        self, mapped: tuple[bool, ...], xs: list[Tensor], count: int
    ) -> list[Tensor | None]:
        """The results of a batch."""
        found = self._ask("batch", mapped, *xs)
        return self._listed("batch", found, count, "results", not self.single)

    def _ask(self, rule: str, *args: Any) -> Any:
        function = self.op._rules[rule]
        assert function is not None
        return function(*args, **self._known(_keywords(function)))

    def _known(self, names: frozenset[str] | None) -> dict[str, Any]:
        """The attributes of these names."""
        if names is None:
            return self.attributes
        return {k: v for k, v in self.attributes.items() if k in names}

    def _one(self, values: Sequence[Any]) -> Any:
        return values[0] if self.single else tuple(values)

    def _listed(
        self, rule: str, found: Any, count: int, what: str, many: bool
    ) -> list[Tensor | None]:
        """What a rule returned, one entry for each of `count`."""
        name = f"{self.op.name}.{rule}"
        entries = list(found) if many and _is_many(found) else [found]
        if len(entries) != count:
            raise GradientError(
                f"{name}: the rule returned {len(entries)} values for {count} {what}"
            )
        wrong = [type(y).__name__ for y in entries if not (y is None or isinstance(y, Tensor))]
        if wrong:
            raise TypeError(f"{name}: the rule returned {', '.join(wrong)}, wanted tensors or None")
        return entries


def _keywords(function: Callable[..., Any]) -> frozenset[str] | None:
    """The names that a function takes as keywords; None where it takes any, or nobody knows."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return None
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return frozenset(p.name for p in parameters if p.kind in named)


def _is_many(found: Any) -> bool:
    return isinstance(found, (tuple, list))


def _zeros(x: Tensor) -> Tensor | None:
    return zeros_like(x) if isdtype(x.dtype, "real floating") else None


def _tensors(name: str, operands: Iterable[Any]) -> list[Tensor]:
    """Operands as tensors; numbers and arrays go beside the tensors among them."""
    operands = list(operands)
    device = next((x.device for x in operands if isinstance(x, Tensor)), None)
    found = []
    for i, x in enumerate(operands):
        if callable(x) or isinstance(x, (str, bytes, dict)) or x is None:
            raise TypeError(
                f"{name}: operand {i} is {type(x).__name__}, wanted a tensor; give other values "
                "by keyword"
            )
        found.append(x if isinstance(x, Tensor) else asarray(x, device=device))
    return found


def _attribute(name: str, key: str, value: Any) -> Any:
    """A value that calls are told apart by."""
    if isinstance(value, Tensor):
        raise TypeError(f"{name}: attribute {key} is a tensor: pass tensors by position")
    if isinstance(value, _core.Number):
        return float(value)
    if isinstance(value, _core.Dim):
        return int(value)
    try:
        hash(value)
    except TypeError:
        raise TypeError(
            f"{name}: attribute {key} must be hashable: got {type(value).__name__}"
        ) from None
    return value


def _exactly(value: Any) -> Hashable:
    """What tells values apart that are equal and not the same, such as 1, 1.0 and True."""
    if isinstance(value, (tuple, frozenset)):
        parts = map(_exactly, value)
        return type(value), tuple(parts) if isinstance(value, tuple) else frozenset(parts)
    if isinstance(value, float):
        return type(value), value.hex()
    return type(value), value


def _result(name: str, y: Any, dtype: str | None) -> Tensor:
    """A result of the function as a tensor with memory of its own."""
    import numpy as np

    if isinstance(y, Tensor):
        y = y.numpy()
    # Numbers of Python's take the dtype that is wanted, as everywhere.
    weak = type(y) in (bool, int, float) and dtype is not None
    array: np.ndarray = np.asarray(y, dtype=dtype) if weak else np.asarray(y)
    if array.dtype.hasobject or array.dtype.kind not in "biufc":
        raise TypeError(f"{name}: the function returned {type(y).__name__}, wanted an array")
    return _core.tensor(array)
