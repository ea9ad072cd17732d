"""Control flow on tensors: `cond`, `switch`, `while_loop`, `fori_loop`, `scan`, `map`; and effects:
`print`, `check`.

In eager code these check every branch and body, and then run as the Python they stand for. While a
function is captured they become nodes of its graph, with bodies that are graphs. They differentiate
either way. Functions may read tensors outside; they may not update them.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Sequence
from typing import Any

from wengert import _core, pytree
from wengert._checks import Checks
from wengert._core import (
    CaptureError,
    DTypeError,
    ShapeError,
    Tensor,
    arange,
    asarray,
    stack,
    where,
    zeros,
)
from wengert._core.random import next_key, split

__all__ = ["check", "cond", "fori_loop", "map", "print", "scan", "switch", "while_loop"]


def tensor(name: str, x: Any, device: Any = None) -> Tensor:
    """A leaf as a tensor: numbers on a device."""
    if isinstance(x, Tensor):
        return x
    if isinstance(x, (bool, int, float, _core.Dim, _core.Number)):
        return asarray(x, device=device)
    raise TypeError(f"{name}: expected tensors and numbers, got {type(x).__name__}")


class Traced:
    """A function traced on tensors: its body, and the structure of its result.

    Random numbers are drawn from `keys`; without any, how many are drawn is only counted.
    """

    def __init__(
        self,
        name: str,
        function: Callable[[list[Tensor]], Any],
        like: Sequence[Tensor],
        axes: Sequence[int | None] | None = None,
        keys: list[Tensor] | None = None,
    ) -> None:
        self.name = name
        self.structure: Any = None

        def run(tensors: list[Tensor]) -> list[Tensor]:
            leaves, self.structure = pytree.flatten(function(tensors))
            return [tensor(name, x) for x in leaves]

        with _core.Keys(keys) as random:
            self.body = _core._body(name, list(like), list(axes or [None] * len(like)), run)
        self.draws: int = random.drawn


def fresh_keys(count: int) -> list[Tensor]:
    """The next keys of the global generator."""
    return [next_key() for _ in range(count)]


def is_traced(*leaves: Any) -> bool:
    """Whether what is done with these belongs to a graph."""
    return _core.is_tracing() or any(isinstance(x, Tensor) and _core._is_traced(x) for x in leaves)


_passed = Checks()
"""Eager calls of control flow that were checked."""


class _Operands:
    """Arguments: their tensors, and how to put others in their place."""

    def __init__(self, tree: Any) -> None:
        self.leaves, self.structure = pytree.flatten(tree)
        self.places = [i for i, x in enumerate(self.leaves) if isinstance(x, Tensor)]
        self.tensors = [self.leaves[i] for i in self.places]

    def tree(self, tensors: Sequence[Tensor]) -> Any:
        values = list(self.leaves)
        for i, x in zip(self.places, tensors, strict=True):
            values[i] = x
        return pytree.unflatten(self.structure, values)


def _as_tensors(name: str, tree: Any) -> Any:
    if isinstance(tree, Tensor):
        return tree
    device = _device(tree)
    return pytree.map(lambda x: tensor(name, x, device), tree)


def _device(tree: Any) -> Any:
    """Where numbers beside the tensors of a tree go."""
    leaves = pytree.flatten(tree)[0]
    return next((x.device for x in leaves if isinstance(x, Tensor)), None)


def _key(leaves: Sequence[Tensor]) -> Tensor:
    """A fresh key beside tensors."""
    return next_key().to(_device(leaves))


Type = tuple[str, str, str]


def _compare(name: str, what: str, old: Sequence[Type], new: Sequence[Type], paths: Any) -> None:
    """Refuses results whose types differ."""
    for (dtype, shape, line), (dtype2, shape2, line2), path in zip(old, new, paths, strict=True):
        if (dtype, shape) == (dtype2, shape2):
            continue
        error = DTypeError if dtype != dtype2 else ShapeError
        lines = "".join(f"\n  made at {at}" for at in dict.fromkeys([line, line2]) if at)
        raise error(
            f"{name}: {what}: {path or 'it'} is {dtype} {shape} and {dtype2} {shape2}{lines}"
        )


def _paths(structure: Any, count: int) -> list[str]:
    tree = pytree.unflatten(structure, list(range(count)))
    return [path for path, _ in pytree.flatten_with_paths(tree)[0]]


def _branches(
    name: str,
    branches: Sequence[Callable[..., Any]],
    operands: _Operands,
    keys: list[Tensor] | None = None,
) -> list[Traced]:
    def on_tensors(f: Callable[..., Any]) -> Callable[[list[Tensor]], Any]:
        return lambda tensors: f(*operands.tree(tensors))

    traced = [Traced(name, on_tensors(f), operands.tensors, keys=keys) for f in branches]
    first = traced[0]
    for other in traced[1:]:
        if first.structure != other.structure:
            raise TypeError(f"{name}: the branches return different structures")
        types = first.body.results(), other.body.results()
        _compare(name, "the branches differ", *types, _paths(first.structure, len(types[0])))
    return traced


def _choose(
    name: str, index: Tensor, branches: Sequence[Callable[..., Any]], operands: tuple[Any, ...]
) -> Any:
    given = _Operands(operands)
    if is_traced(index, *given.tensors):
        traced = _branches(name, branches, given)
        draws = max(t.draws for t in traced)
        if draws:
            traced = _branches(name, branches, given, fresh_keys(draws))
        bodies = [t.body for t in traced]
        found = _core._flow("cond", bodies, [index, *given.tensors])
        return pytree.unflatten(traced[0].structure, found)

    def check() -> int:
        return max(t.draws for t in _branches(name, branches, given))

    _core._one_device(name, [index, *given.tensors])
    draws = _passed.find(name, branches, given.leaves, given.structure, check)
    i = min(max(int(index), 0), len(branches) - 1)
    # As many keys are drawn, whichever branch runs: so it is where the choice is made late.
    with _core.Keys(fresh_keys(draws)) if draws else contextlib.nullcontext():
        return _as_tensors(name, branches[i](*operands))


def cond(
    pred: Any, true_fn: Callable[..., Any], false_fn: Callable[..., Any], *operands: Any
) -> Any:
    """`true_fn(*operands)` where `pred` holds, else `false_fn(*operands)`.

    `pred` is a scalar; both functions return the same structure of tensors of the same dtypes and
    shapes, which is checked before one of them runs. Raises ShapeError, DTypeError or TypeError
    where they differ.

    >>> wg.cond(wg.tensor(3.0) > 0, lambda x: x * 2, lambda x: -x, wg.tensor(5.0)).item()
    10.0
    """
    if not isinstance(pred, Tensor):
        pred = asarray(bool(pred), device=_device(operands))
    _scalar("cond", "pred", pred)
    zero, one = asarray(0, device=pred.device), asarray(1, device=pred.device)
    index = where(pred.astype(_core.bool), zero, one)
    return _choose("cond", index, [true_fn, false_fn], operands)


def switch(index: Any, branches: Sequence[Callable[..., Any]], *operands: Any) -> Any:
    """`branches[index](*operands)`, with the index clamped to what there is.

    The functions return the same structure of tensors of the same dtypes and shapes.

    >>> wg.switch(wg.tensor(1), [lambda x: x, lambda x: x * x], wg.tensor(3.0)).item()
    9.0
    """
    if not branches:
        raise ValueError("switch: no branches: got an empty sequence")
    index = tensor("switch", index, _device(operands))
    _scalar("switch", "index", index)
    return _choose("switch", index.astype(_core.int64), list(branches), operands)


def _scalar(name: str, what: str, x: Tensor) -> None:
    if x.ndim:
        raise ShapeError(f"{name}: {what} must be a scalar: got shape {tuple(x.shape)}")


def _carry_paths(init: Any) -> list[str]:
    return [path for path, _ in pytree.flatten_with_paths(init)[0]]


def _check_carry(name: str, init: Any, traced: Traced, count: int, structure: Any) -> None:
    """Refuses a body that gives a carry of other types than it takes."""
    if structure != pytree.flatten(init)[1]:
        raise TypeError(f"{name}: the function returns another structure than the carry's")
    types = traced.body.takes()[:count], traced.body.results()[:count]
    _compare(name, "the carry changes from one round to the next", *types, _carry_paths(init))


def while_loop(cond_fn: Callable[..., Any], body_fn: Callable[..., Any], init: Any) -> Any:
    """`carry = body_fn(carry)` from `init` on, while `cond_fn(carry)` holds.

    A carry that is a tuple is passed as several arguments. It keeps its structure, dtypes and
    shapes. The gradient recomputes each round from the carries, which are kept.

    >>> wg.while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * 2), (0, wg.tensor(1)))[1].item()
    8
    """
    init = _as_tensors("while_loop", init)
    leaves, structure = pytree.flatten(init)
    call = (lambda f, c: f(*c)) if type(init) is tuple else (lambda f, c: f(c))

    def on(f: Callable[..., Any]) -> Callable[[list[Tensor]], Any]:
        return lambda tensors: call(f, pytree.unflatten(structure, tensors))

    def bodies() -> tuple[list[Any], int]:
        test = Traced("while_loop", on(cond_fn), leaves)
        body = Traced("while_loop", on(body_fn), leaves)
        if test.draws:
            raise CaptureError(
                "while_loop: the condition draws random numbers; draw them in the body, as part of "
                "the carry"
            )
        _check_carry("while_loop", init, body, len(leaves), body.structure)
        results = test.body.results()
        what = "the condition is no truth value"
        _compare("while_loop", what, [("bool", "()", "")], results, ["it"])
        return [test.body, body.body], body.draws

    def keyed(draws: int) -> Any:
        """The loop with a key for each round."""

        def step(carry: Any, key: Tensor) -> tuple[Any, Tensor]:
            keys = split(key, draws + 1)
            with _core.Keys([keys[k + 1] for k in range(draws)]):
                return call(body_fn, carry), keys[0]

        def test(carry: Any, key: Tensor) -> Any:
            return call(cond_fn, carry)

        return while_loop(test, step, (init, _key(leaves)))[0]

    if is_traced(*leaves):
        found, draws = bodies()
        if draws:
            return keyed(draws)
        found = _core._flow("while_loop", found, leaves, carry=len(leaves))
        return pytree.unflatten(structure, found)
    functions = [cond_fn, body_fn]
    draws = _passed.find("while_loop", functions, leaves, structure, lambda: bodies()[1])
    if draws:
        return keyed(draws)
    carry = init
    while bool(call(cond_fn, carry)):
        carry = _as_tensors("while_loop", call(body_fn, carry))
    return carry


def fori_loop(lower: Any, upper: Any, body: Callable[[Tensor, Any], Any], init: Any) -> Any:
    """`carry = body(i, carry)` for `i` from `lower` up to `upper` (excluded), from `init` on.

    >>> wg.fori_loop(0, 4, lambda i, x: x + i, wg.tensor(0)).item()
    6
    """
    if isinstance(lower, (int, _core.Dim)) and isinstance(upper, (int, _core.Dim)):
        indices = arange(lower, upper, device=_device(init))  # type: ignore[arg-type]
        return scan(lambda carry, i: (body(i, carry), None), init, indices)[0]
    limit = tensor("fori_loop", upper, _device(init)).astype(_core.int64)
    start = tensor("fori_loop", lower, _device(init)).astype(_core.int64)

    def test(i: Tensor, carry: Any) -> Tensor:
        return i < limit

    return while_loop(test, lambda i, carry: (i + 1, body(i, carry)), (start, init))[1]


def scan(
    f: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    xs: Any = None,
    length: int | None = None,
    reverse: bool = False,
) -> tuple[Any, Any]:
    """`carry, y = f(carry, x)` for each `x` of the leading axis of `xs`: the last carry, and the
    stacked `y`.

    `xs` is a pytree of tensors of the same length, or None with `length`. The carry keeps its
    structure, dtypes and shapes. `reverse` goes from the last `x` to the first; the `y` stay in the
    order of the `x`.

    >>> wg.scan(lambda c, x: (c + x, c), wg.tensor(0), wg.arange(4))[1].tolist()
    [0, 0, 1, 3]
    """
    init, xs = _as_tensors("scan", init), _as_tensors("scan", xs)
    (carry, carries), (rows, stacked) = pytree.flatten(init), pytree.flatten(xs)
    length = _length(rows, length)

    parts: list[Any] = []

    def run(tensors: list[Tensor]) -> Any:
        c = pytree.unflatten(carries, tensors[: len(carry)])
        result = f(c, pytree.unflatten(stacked, tensors[len(carry) :]))
        if not (isinstance(result, tuple) and len(result) == 2):
            raise TypeError("scan: the function must return a pair: the carry, and what is stacked")
        parts[:] = [pytree.flatten(part)[1] for part in result]
        return result

    def body() -> tuple[Traced, Any, Any]:
        axes = [None] * len(carry) + [0] * len(rows)
        traced = Traced("scan", run, [*carry, *rows], axes)
        carried, results = parts
        _check_carry("scan", init, traced, len(carry), carried)
        return traced, carried, results

    def keyed(draws: int) -> tuple[Any, Any]:
        """The scan with a key for each round."""

        def step(state: tuple[Any, Tensor], x: Any) -> tuple[Any, Any]:
            keys = split(state[1], draws + 1)
            with _core.Keys([keys[k + 1] for k in range(draws)]):
                c, y = f(state[0], x)
            return (c, keys[0]), y

        (last, _), ys = scan(step, (init, _key([*carry, *rows])), xs, length, reverse)
        return last, ys

    if is_traced(*carry, *rows):
        traced, carried, results = body()
        if traced.draws:
            return keyed(traced.draws)
        operands = [*carry, *rows]
        found = _core._flow("scan", [traced.body], operands, len(carry), len(rows), length, reverse)
        last, ys = found[: len(carry)], found[len(carry) :]
        return pytree.unflatten(carried, last), pytree.unflatten(results, ys)

    def check() -> tuple[Any, Any, int]:
        traced, _, results = body()
        return traced.body.sizes()[len(carry) :], results, traced.draws

    structure = pytree.flatten((init, xs))[1]
    types, results, draws = _passed.find("scan", [f], [*carry, *rows], structure, check)
    if draws:
        return keyed(draws)
    for dtype, shape in types:
        _core._check_room(length, dtype, shape)
    now = init
    kept: list[list[Tensor]] = []
    for i in reversed(range(length)) if reverse else range(length):
        now, y = f(now, pytree.unflatten(stacked, [x[i] for x in rows]))
        now = _as_tensors("scan", now)
        leaves, results = pytree.flatten(y)
        kept.append([tensor("scan", leaf) for leaf in leaves])
    if reverse:
        kept.reverse()
    if kept:
        return now, pytree.unflatten(results, [stack(column) for column in zip(*kept, strict=True)])
    empty = [zeros((0, *shape), dtype=getattr(_core, dtype)) for dtype, shape in types]
    return now, pytree.unflatten(results, empty)


def _length(rows: list[Tensor], length: int | None) -> Any:
    """The common length of what is scanned over."""
    if any(not x.ndim for x in rows):
        raise ShapeError("scan: xs have no leading axis: got a scalar")
    found = [x.shape[0] for x in rows]
    if not found and length is None:
        raise ValueError("scan: length is needed: got xs without tensors")
    if length is not None and not isinstance(length, _core.Dim):
        try:
            length = operator.index(length)
        except TypeError:
            kind = type(length).__name__
            raise TypeError(f"scan: length must be an int: got {kind}") from None
        if not 0 <= length < 1 << 62:
            raise ValueError(f"scan: length must be in 0..2**62: got {length}")
    size = found[0] if found else length
    if any(n != size for n in found) or (length is not None and length != size):
        wanted = "" if length is None else f", and length={length}"
        raise ShapeError(f"scan: lengths differ: {tuple(found)}{wanted}")
    return size


def map(f: Callable[[Any], Any], xs: Any) -> Any:
    """`f(x)` for each `x` of the leading axis of `xs`, stacked; one after the other.

    >>> wg.map(lambda x: x * x, wg.arange(3)).tolist()
    [0, 1, 4]
    """
    return scan(lambda carry, x: (carry, f(x)), (), xs)[1]


def print(text: str, *tensors: Any) -> None:
    """Print `text`, each `{}` in it replaced by a tensor, when the values are there.

    In a captured function Python's own `print` shows no values; this one does, at every call.

    >>> wg.print("x is {}", wg.tensor([1, 2]))
    x is tensor([1, 2])
    """
    _core._effect("print", text, [tensor("print", x) for x in tensors])


def check(condition: Any, message: str = "a check failed") -> None:
    """Raise ValueError unless every element of `condition` holds, when the values are there.

    >>> wg.check(wg.tensor([1.0, 2.0]) > 0, "must be positive")
    """
    _core._effect("check", message, [tensor("check", condition).astype(_core.bool)])
