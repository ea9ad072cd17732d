"""Transforms of functions: `vmap`, `jvp`, `jacobian`, `hessian`.

Each traces the function and rewrites its graph; what comes of that runs in eager code, or becomes
part of the function that is being captured or transformed around it. So they nest to any depth,
with each other, with `grad` and with `compile`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from wengert import _core, pytree
from wengert._core import CaptureError, ShapeError, Tensor, eye, isdtype, permute_dims, zeros_like
from wengert.autodiff import vjp
from wengert.control import Traced, fresh_keys, tensor

P = ParamSpec("P")
R = TypeVar("R")

__all__ = ["hessian", "jacobian", "jvp", "vmap"]


def _floating(x: Tensor) -> bool:
    return isdtype(x.dtype, "real floating")


def _axes_of(name: str, axes: Any, tree: Any) -> list[int | None]:
    """An axis for each leaf of `tree`, where `axes` is one, or a prefix of its structure."""
    leaves, _ = pytree.flatten(tree)
    if axes is None or isinstance(axes, int):
        return [axes] * len(leaves)
    if isinstance(tree, (list, tuple)) and isinstance(axes, (list, tuple)):
        if len(axes) != len(tree):
            raise ValueError(f"vmap: {name} has {len(axes)} entries for {len(tree)} values")
        return [a for part, x in zip(axes, tree, strict=True) for a in _axes_of(name, part, x)]
    if isinstance(tree, dict) and isinstance(axes, dict) and axes.keys() == tree.keys():
        return [a for key in tree for a in _axes_of(name, axes[key], tree[key])]
    raise ValueError(f"vmap: {name} does not fit the structure of the values: got {axes!r}")


def _moved(x: Tensor, source: int, target: int) -> Tensor:
    """An axis elsewhere, the others in order."""
    axes = [i for i in range(x.ndim) if i != source % x.ndim]
    axes.insert(target % x.ndim, source % x.ndim)
    return x if axes == list(range(x.ndim)) else permute_dims(x, axes)


def vmap(f: Callable[P, R], in_axes: Any = 0, out_axes: Any = 0) -> Callable[P, R]:
    """A function that runs `f` on every example of a batch at once.

    `in_axes` says along which axis of each argument the examples lie: an int, `None` for what all
    examples share, or a tuple or pytree of these; `out_axes` the same of the results. Keyword
    arguments have their examples along axis 0. Raises ShapeError where the counts of examples
    differ.

    >>> wg.vmap(lambda x, y: (x * y).sum(), in_axes=(0, None))(wg.ones((3, 2)), wg.ones(2)).tolist()
    [2.0, 2.0, 2.0]
    """

    @functools.wraps(f)
    def whole(*args: Any, **kwargs: Any) -> Any:
        leaves, structure = pytree.flatten((args, kwargs))
        axes = _axes_of("in_axes", in_axes, args) + [0] * len(pytree.flatten(kwargs)[0])
        places = [i for i, axis in enumerate(axes) if axis is not None]
        examples = _examples([(leaves[i], axes[i]) for i in places])

        def run(tensors: list[Tensor]) -> Any:
            values = list(leaves)
            for i, x in zip(places, tensors, strict=True):
                values[i] = x
            args, kwargs = pytree.unflatten(structure, values)
            return f(*args, **kwargs)

        traced = Traced("vmap", run, [x for x, _ in examples], [axis for _, axis in examples])
        if traced.draws:
            raise CaptureError(
                "vmap: the function draws from the global random generator, which would give the "
                "same numbers for every example; pass keys and draw with key="
            )
        x, axis = examples[0]
        batched = _core._batched(traced.body, [True] * len(examples), x, axis)
        found = _core._inline(batched, [_moved(x, axis, 0) for x, axis in examples])
        result = pytree.unflatten(traced.structure, found)
        targets = _axes_of("out_axes", out_axes, result)
        if None in targets:
            raise ValueError("vmap: out_axes is None, but results differ between examples")
        moved = [_moved(y, 0, target or 0) for y, target in zip(found, targets, strict=True)]
        return pytree.unflatten(traced.structure, moved)

    return whole


def _examples(mapped: list[tuple[Any, Any]]) -> list[tuple[Tensor, int]]:
    """The tensors with their axes of examples, which have one size."""
    found: list[tuple[Tensor, int]] = []
    for x, axis in mapped:
        if not isinstance(x, Tensor):
            raise TypeError(f"vmap: an argument with an axis must be a tensor: got {x!r}")
        if not -x.ndim <= axis < x.ndim:
            raise ShapeError(f"vmap: axis {axis} of examples in shape {tuple(x.shape)}")
        found.append((x, axis % x.ndim))
    if not found:
        raise ValueError(
            "vmap: no argument has an axis of examples: every entry of in_axes is None"
        )
    sizes = [x.shape[axis] for x, axis in found]
    if any(n != sizes[0] for n in sizes):
        raise ShapeError(f"vmap: the counts of examples differ: {tuple(sizes)}")
    return found


def jvp(f: Callable[..., Any], primals: Any, tangents: Any) -> tuple[Any, Any]:
    """`f(*primals)`, and its derivative along `tangents`.

    `tangents` have the structure of `primals`; those of tensors that are not floating are not
    looked at. The second result has the structure of the first.

    >>> y, t = wg.jvp(wg.sin, (wg.tensor(0.0),), (wg.tensor(2.0),))
    >>> t.item()
    2.0
    """
    leaves, structure = pytree.flatten(tuple(primals))
    given, same = pytree.flatten(tuple(tangents))
    if same != structure:
        raise ValueError("jvp: the tangents have another structure than the primals")
    xs = [tensor("jvp", x) for x in leaves]
    has = [_floating(x) for x in xs]
    ts = []
    for x, t, moves in zip(xs, given, has, strict=True):
        if not moves:
            continue
        t = tensor("jvp", t).astype(x.dtype)
        if tuple(t.shape) != tuple(x.shape):
            raise ShapeError(
                f"jvp: a tangent has shape {tuple(t.shape)}, its primal {tuple(x.shape)}"
            )
        ts.append(t)

    def run(tensors: list[Tensor]) -> Any:
        return f(*pytree.unflatten(structure, tensors))

    traced = Traced("jvp", run, xs)
    if traced.draws:
        traced = Traced("jvp", run, xs, keys=fresh_keys(traced.draws))
    body, moved = _core._with_tangents(traced.body, has)
    found = _core._inline(body, [*xs, *ts])
    ys, rest = found[: len(moved)], iter(found[len(moved) :])
    found = [next(rest) if moves else zeros_like(y) for y, moves in zip(ys, moved, strict=True)]
    return pytree.unflatten(traced.structure, ys), pytree.unflatten(traced.structure, found)


def jacobian(
    f: Callable[P, Any], argnums: int | tuple[int, ...] = 0, mode: str = "reverse"
) -> Callable[P, Any]:
    """A function that returns all derivatives of `f`'s results by its arguments `argnums`.

    The derivative of a result of shape `s` by a tensor of shape `t` has shape `s + t`; it stands in
    the structure of the result, and within that in the structure of the argument (a tuple of them
    when `argnums` is one). `mode` is "reverse" (one sweep for each element of the result) or
    "forward" (one for each element of the arguments).

    >>> wg.jacobian(lambda x: x * x)(wg.tensor([1.0, 2.0])).tolist()
    [[2.0, 0.0], [0.0, 4.0]]
    """
    if mode not in ("reverse", "forward"):
        raise ValueError(f'jacobian: mode must be "reverse" or "forward": got {mode!r}')
    numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums)

    @functools.wraps(f)
    def whole(*args: Any, **kwargs: Any) -> Any:
        if not all(-len(args) <= i < len(args) for i in numbers):
            raise TypeError(f"jacobian: argnums {argnums}, but {len(args)} positional arguments")

        def of(*chosen: Any) -> Any:
            values = list(args)
            for i, x in zip(numbers, chosen, strict=True):
                values[i] = x
            return f(*values, **kwargs)

        chosen = tuple(args[i] for i in numbers)
        columns, inputs, outputs = (_reverse if mode == "reverse" else _forward)(of, chosen)
        rows = [pytree.unflatten(inputs, row) for row in columns]
        if isinstance(argnums, int):
            rows = [row[0] for row in rows]
        return pytree.unflatten(outputs, rows)

    return whole


def _basis(shape: tuple[Any, ...], dtype: Any, device: Any) -> Tensor:
    """Every tensor of a shape that is one in one element and zero elsewhere."""
    count = functools.reduce(lambda a, b: a * b, shape, 1)
    return eye(count, dtype=dtype, device=device).reshape((count, *shape))


def _inputs(chosen: tuple[Any, ...]) -> tuple[list[Tensor], Any]:
    leaves, structure = pytree.flatten(chosen)
    xs = [tensor("jacobian", x) for x in leaves]
    for x in xs:
        if not _floating(x):
            raise _core.GradientError(
                f"jacobian: an argument is {x.dtype}, wanted a floating tensor"
            )
    return xs, structure


def _reverse(f: Callable[..., Any], chosen: tuple[Any, ...]) -> tuple[list[list[Tensor]], Any, Any]:
    xs, inputs = _inputs(chosen)
    traced = Traced("jacobian", lambda tensors: f(*pytree.unflatten(inputs, tensors)), xs)
    types = [(getattr(_core, dtype), tuple(sizes)) for dtype, sizes in traced.body.sizes()]
    rows = []
    for k, (dtype, shape) in enumerate(types):

        def pull(seed: Tensor, k: int = k) -> list[Tensor]:
            ys, pullback = vjp(lambda *tensors: f(*pytree.unflatten(inputs, tensors)), *xs)
            leaves, structure = pytree.flatten(ys)
            seeds = [zeros_like(y) for y in leaves]
            seeds[k] = seed
            return list(pullback(pytree.unflatten(structure, seeds)))

        found = vmap(pull)(_basis(shape, dtype, xs[0].device))
        rows.append([g.reshape((*shape, *x.shape)) for g, x in zip(found, xs, strict=True)])
    return rows, inputs, traced.structure


def _forward(f: Callable[..., Any], chosen: tuple[Any, ...]) -> tuple[list[list[Tensor]], Any, Any]:
    xs, inputs = _inputs(chosen)
    columns: list[list[Tensor]] = []
    structure: Any = None
    for k, x in enumerate(xs):

        def push(tangent: Tensor, k: int = k) -> list[Tensor]:
            nonlocal structure
            ts = [zeros_like(x) for x in xs]
            ts[k] = tangent
            moved = jvp(lambda *tensors: f(*pytree.unflatten(inputs, tensors)), xs, ts)[1]
            leaves, structure = pytree.flatten(moved)
            return leaves

        found = vmap(push)(_basis(tuple(x.shape), x.dtype, x.device))
        columns.append([_moved(t, 0, -1).reshape((*t.shape[1:], *x.shape)) for t in found])
    return [list(row) for row in zip(*columns, strict=True)], inputs, structure


def hessian(f: Callable[P, Any], argnums: int | tuple[int, ...] = 0) -> Callable[P, Any]:
    """A function that returns all second derivatives of `f` by its arguments `argnums`: the forward
    jacobian of the reverse one.

    >>> wg.hessian(lambda x: (x**3).sum())(wg.tensor([1.0, 2.0])).tolist()
    [[6.0, 0.0], [0.0, 12.0]]
    """
    return jacobian(jacobian(f, argnums), argnums, mode="forward")
