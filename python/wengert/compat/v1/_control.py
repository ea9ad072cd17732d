"""Loops and branches under TensorFlow's names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import wengert as wg
from wengert import pytree
from wengert.compat.v1._order import Fetch, branch, control_dependencies
from wengert.compat.v1._scopes import in_body
from wengert.compat.v1._spaces import formula
from wengert.compat.v1._state import Variable, identity
from wengert.compat.v1._table import as_tensor, dtype_of, truth
from wengert.control import Traced


def _tensors(tree: Any) -> Any:
    return pytree.map(as_tensor, tree)


@formula(None)
def while_loop(
    cond: Callable[..., Any],
    body: Callable[..., Any],
    loop_vars: Any,
    shape_invariants: Any = None,
    parallel_iterations: int = 10,
    back_prop: Any = True,
    swap_memory: Any = False,
    name: str | None = None,
    maximum_iterations: Any = None,
    return_same_structure: Any = False,
) -> Any:
    """`loop_vars = body(*loop_vars)` while `cond(*loop_vars)` holds. Shapes and dtypes stay."""
    start = _tensors(tuple(loop_vars))
    kind = type(loop_vars) if isinstance(loop_vars, list | tuple) else list

    def step(*values: Any) -> Any:
        found = body(*values)
        if not isinstance(found, list | tuple) or (len(start) == 1 and type(found) is not kind):
            found = (found,)
        return _tensors(tuple(found))

    if maximum_iterations is None:
        found = wg.while_loop(in_body(cond), in_body(step), start)
    else:
        count, limit = wg.asarray(0), maximum_iterations
        _, *found = wg.while_loop(
            in_body(lambda n, *values: wg.logical_and(n < limit, cond(*values))),
            in_body(lambda n, *values: (n + 1, *step(*values))),
            (count, *start),
        )
    if not back_prop:
        found = pytree.map(lambda x: x.detach(), tuple(found))
    return found[0] if len(start) == 1 and not return_same_structure else list(found)


@formula(None)
def cond(
    pred: Any,
    true_fn: Callable[[], Any] | None = None,
    false_fn: Callable[[], Any] | None = None,
    strict: Any = False,
    name: str | None = None,
    fn1: Any = None,
    fn2: Any = None,
) -> Any:
    """`true_fn()` where `pred` holds, else `false_fn()`. Both give the same structure of the same
    dtypes and shapes. What the branch that is taken assigns, a run that computes the result
    assigns."""
    first, second = true_fn or fn1, false_fn or fn2
    if first is None or second is None:
        raise TypeError("tf.cond: takes pred, true_fn and false_fn")
    return _chosen(lambda bodies: wg.cond(truth(pred), *bodies), [first, second])


@formula(None)
def case(
    pred_fn_pairs: Any,
    default: Callable[[], Any] | None = None,
    exclusive: Any = False,
    strict: Any = False,
    name: str = "case",
) -> Any:
    """What belongs to the first condition that holds, or else `default()`."""
    pairs = list(pred_fn_pairs.items() if isinstance(pred_fn_pairs, dict) else pred_fn_pairs)
    if default is None:
        raise ValueError("tf.case: a default is needed")
    chosen = wg.asarray(len(pairs))
    for at in reversed(range(len(pairs))):
        chosen = wg.where(truth(pairs[at][0]), at, chosen)
    functions = [*[f for _, f in pairs], default]
    return _chosen(lambda bodies: wg.switch(chosen, bodies), functions)


def _chosen(choose: Callable[[Any], Any], functions: list[Callable[[], Any]]) -> Any:
    """The result of one of the functions, and the variables that it assigns."""
    variables: dict[Variable, None] = {}

    def body(f: Callable[[], Any]) -> Callable[[], Any]:
        def run() -> Any:
            with branch() as seen:
                result = pytree.map(_result, f())
            variables.update(dict.fromkeys(seen.assigned))
            return result, [seen.assigned.get(v, v) for v in variables]

        return in_body(run)

    bodies = [body(f) for f in functions]
    for run in bodies:
        # The first look finds which variables there are: all branches give values for them.
        Traced("cond", _without(run), [])
    result, values = choose(bodies)
    if not variables:
        return result
    with control_dependencies(
        [wg.Variable.assign(v, x) for v, x in zip(variables, values, strict=True)]
    ):
        return pytree.map(identity, result)


def _without(run: Callable[[], Any]) -> Callable[[list[wg.Tensor]], Any]:
    return lambda _: run()


def _result(x: Any) -> Any:
    # An operation, whose assignments the branch holds, gives a truth value.
    return wg.asarray(True) if isinstance(x, Fetch) else as_tensor(x)


@formula(None)
def map_fn(
    fn: Callable[[Any], Any],
    elems: Any,
    dtype: Any = None,
    parallel_iterations: Any = None,
    back_prop: Any = True,
    swap_memory: Any = False,
    infer_shape: Any = True,
    name: str | None = None,
) -> Any:
    """`fn` of each slice along the first axis, stacked."""
    found = wg.map(in_body(lambda x: _tensors(fn(x))), _tensors(elems))
    if dtype is not None:
        kinds = dtype
        if isinstance(kinds, list | tuple):
            return type(found)(x.astype(dtype_of(k)) for x, k in zip(found, kinds, strict=True))
        return found.astype(dtype_of(kinds))
    return found


@formula(None)
def scan(
    fn: Callable[[Any, Any], Any],
    elems: Any,
    initializer: Any = None,
    parallel_iterations: int = 10,
    back_prop: Any = True,
    swap_memory: Any = False,
    infer_shape: Any = True,
    reverse: Any = False,
    name: str | None = None,
) -> Any:
    """All `carry = fn(carry, slice)` along the first axis, stacked; without `initializer` the
    first slice is the first carry."""
    elems = _tensors(elems)
    if initializer is None:
        at = -1 if reverse else 0
        first = pytree.map(lambda x: x[at], elems)
        rest = pytree.map(lambda x: x[:-1] if reverse else x[1:], elems)
        found = scan(fn, rest, first, reverse=reverse)
        parts = (
            (lambda a, b: [b, wg.expand_dims(a, 0)])
            if reverse
            else (lambda a, b: [wg.expand_dims(a, 0), b])
        )
        return pytree.map(lambda a, b: wg.concat(parts(a, b), axis=0), first, found)

    def step(carry: Any, x: Any) -> Any:
        carry = _tensors(fn(carry, x))
        return carry, carry

    return wg.scan(in_body(step), _tensors(initializer), elems, reverse=bool(reverse))[1]


@formula(None)
def foldl(
    fn: Callable[[Any, Any], Any],
    elems: Any,
    initializer: Any = None,
    parallel_iterations: int = 10,
    back_prop: Any = True,
    swap_memory: Any = False,
    name: str | None = None,
) -> Any:
    """The last `carry = fn(carry, slice)` along the first axis."""
    return pytree.map(lambda x: x[-1], scan(fn, elems, initializer))
