"""Gradients of functions, custom rules, and checkpoints.

The transforms run on the tape: the function is called once, with recording on, and may branch on
values as Python does. What they return belongs to the history around them only where it depends on
something outside that requires a gradient; so they nest, and cost no history where none is wanted.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

from wengert import _core, pytree, random
from wengert._core import (
    CaptureError,
    GradientError,
    ShapeError,
    Tensor,
    asarray,
    concat,
    enable_grad,
    is_grad_enabled,
    isdtype,
    no_grad,
    ones_like,
    zeros_like,
)
from wengert.nn.module import Buffer, Parameter

__all__ = ["Function", "checkpoint", "grad", "value_and_grad", "vjp"]

P = ParamSpec("P")
R = TypeVar("R")
Pull = Callable[[list[Tensor | None]], Sequence[Tensor | None]]


def _floating(x: Tensor) -> bool:
    return isdtype(x.dtype, "real floating")


def _in_graph(x: Tensor) -> bool:
    """Whether it is a node of a graph defined by hand, where everything has a history."""
    return _core._graph_node(x) is not None


class _Inputs:
    """The tensors of some arguments as fresh inputs of a differentiation.

    An input whose original has a history is an alias of it: gradients with respect to the input
    stop there, while the history leads on.
    """

    def __init__(self, name: str, tree: Any) -> None:
        self.recording = is_grad_enabled()
        leaves, self.structure = pytree.flatten_with_paths(tree)
        self.places: list[int] = []
        self.tensors: list[Tensor] = []
        self.values = [x for _, x in leaves]
        self.linked = False
        for i, (path, x) in enumerate(leaves):
            if isinstance(x, Buffer) or (isinstance(x, Parameter) and not x.requires_grad):
                continue
            self.places.append(i)
            self.values[i] = self._fresh(name, path, x)
            self.tensors.append(self.values[i])

    def _fresh(self, name: str, path: str, x: Any) -> Tensor:
        if isinstance(x, float):
            x = asarray(x)
        if not isinstance(x, Tensor) or not _floating(x):
            what = x.dtype if isinstance(x, Tensor) else type(x).__name__
            raise GradientError(f"{name}: argument {path} is {what}, wanted a floating tensor")
        # A graph is its own history: an input is told from what it stands for by a node of its own.
        if (self.recording and x.requires_grad) or _in_graph(x):
            self.linked = True
            return _core.alias(x)
        x = _core._plain(x)
        x.requires_grad = True
        return x

    def tree(self) -> Any:
        """The arguments, with the inputs in place of what they stand for."""
        return pytree.unflatten(self.structure, self.values)

    def tree_of(self, gradients: Sequence[Tensor]) -> Any:
        """Gradients in the structure of the arguments; `None` where nothing is differentiated."""
        values: list[Tensor | None] = [None] * len(self.values)
        for i, g in zip(self.places, gradients, strict=True):
            values[i] = g
        return pytree.unflatten(self.structure, values)

    def reach_outside(self, outputs: list[Tensor]) -> bool:
        """Whether derivatives of `outputs` belong to the history around the transform."""
        if not self.recording:
            return False
        return self.linked or bool(_core.tape_leaves(outputs, self.tensors))

    def gradients(self, outputs: list[Tensor], seeds: list[Tensor], **modes: bool) -> list[Tensor]:
        """The gradient of every input, zeros where the outputs do not depend on it."""
        pairs = [
            (y, g) for y, g in zip(outputs, seeds, strict=True) if y.requires_grad or _in_graph(y)
        ]
        if not pairs or not self.tensors:
            return [zeros_like(x) for x in self.tensors]
        found = _core.gradients(
            [y for y, _ in pairs], self.tensors, [g for _, g in pairs], allow_unused=True, **modes
        )
        return [zeros_like(x) if g is None else g for x, g in zip(self.tensors, found, strict=True)]


def _close(tree: Any) -> Any:
    """`tree` with its tensors cut off from their history."""
    return pytree.map(lambda x: _core._plain(x) if isinstance(x, Tensor) else x, tree)


def value_and_grad(
    f: Callable[P, R], argnums: int | tuple[int, ...] = 0, has_aux: bool = False
) -> Callable[P, tuple[R, Any]]:
    """A function that returns what `f` returns, and its gradient.

    `f` returns a scalar tensor (with `has_aux`, a pair of it and anything else). The gradient is
    with respect to the positional arguments `argnums`, each a pytree of floating tensors or a
    module, and has their structure (a tuple of them when `argnums` is one). Buffers and frozen
    parameters of modules are not differentiated and get `None`.

    Where an argument requires a gradient itself, as parameters do, the results have a history that
    leads to it; calling under `no_grad` does without.

    >>> value, g = wg.value_and_grad(lambda x: (x * x).sum())(wg.tensor([1.0, 2.0]))
    >>> value.item(), g.tolist()
    (5.0, [2.0, 4.0])
    """
    numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums)

    @functools.wraps(f)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if not all(-len(args) <= i < len(args) for i in numbers):
            raise TypeError(f"grad: argnums {argnums}, but {len(args)} positional arguments")
        inputs = _Inputs("grad", tuple(args[i] for i in numbers))
        fresh = list(args)
        for i, x in zip(numbers, inputs.tree(), strict=True):
            fresh[i] = x
        with enable_grad():
            result: Any = f(*fresh, **kwargs)
        y = result[0] if has_aux else result
        if not isinstance(y, Tensor) or y.ndim:
            what = f"shape {tuple(y.shape)}" if isinstance(y, Tensor) else type(y).__name__
            raise GradientError(f"grad: the function returned {what}, wanted a scalar tensor")
        if not _floating(y):
            raise GradientError(f"grad: the function returned {y.dtype}, wanted a floating tensor")
        outside = inputs.reach_outside([y])
        found = inputs.tree_of(inputs.gradients([y], [ones_like(y)], create_graph=outside))
        gradient = found[0] if isinstance(argnums, int) else found
        return result if outside else _close(result), gradient

    return wrapped


def grad(
    f: Callable[P, Any], argnums: int | tuple[int, ...] = 0, has_aux: bool = False
) -> Callable[P, Any]:
    """A function that returns the gradient of `f`, as `value_and_grad` does; with `has_aux`, the
    gradient and what `f` returned besides its value.

    >>> wg.grad(wg.grad(lambda x: x**3))(wg.tensor(2.0)).item()
    12.0
    """
    both = value_and_grad(f, argnums, has_aux)

    @functools.wraps(f)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        value, gradient = both(*args, **kwargs)
        return (gradient, value[1]) if has_aux else gradient

    return wrapped


def vjp(f: Callable[..., Any], *primals: Any) -> tuple[Any, Callable[[Any], tuple[Any, ...]]]:
    """`f(*primals)`, and its pullback.

    The pullback takes cotangents in the structure of the result and returns the gradient of their
    inner product with the result, one entry for each primal. It can be called again.

    >>> y, pullback = wg.vjp(wg.sin, wg.tensor(0.0))
    >>> pullback(wg.tensor(3.0))[0].item()
    3.0
    """
    inputs = _Inputs("vjp", primals)
    with enable_grad():
        result = f(*inputs.tree())
    outputs, structure = pytree.flatten(result)
    wrong = [type(y).__name__ for y in outputs if not isinstance(y, Tensor)]
    if wrong:
        raise TypeError(f"vjp: the function returned {', '.join(wrong)} among its tensors")
    outside = inputs.reach_outside(outputs)

    def pullback(cotangents: Any) -> tuple[Any, ...]:
        seeds, given = pytree.flatten(cotangents)
        if given != structure:
            raise GradientError("vjp: the cotangents have another structure than the result")
        linked = outside or any(g.requires_grad for g in seeds)
        create = linked and is_grad_enabled()
        return inputs.tree_of(
            inputs.gradients(outputs, seeds, retain_graph=True, create_graph=create)
        )

    return result if outside else _close(result), pullback


# Rules written in Python.


def _record(name: str, outputs: list[Tensor], inputs: list[Tensor], pull: Pull) -> list[Tensor]:
    """`outputs` (without history) with a history: `pull` takes their cotangents to those of
    `inputs`.

    A node of the tape has one output; several travel as one vector.
    """
    floating = [y for y in outputs if _floating(y)]
    if not floating:
        return outputs
    if len(floating) == 1:
        (y,) = floating
        new = [_core.host_node(_core._plain(y), inputs, lambda g: tuple(pull([g])), name)]
    else:
        new = _record_packed(name, floating, inputs, pull)
    found = iter(new)
    return [next(found) if _floating(y) else y for y in outputs]


def _record_packed(
    name: str, outputs: list[Tensor], inputs: list[Tensor], pull: Pull
) -> list[Tensor]:
    like = [(y.shape, y.dtype) for y in outputs]

    def unpack(packed: Tensor) -> list[Tensor]:
        parts, start = [], 0
        for shape, dtype in like:
            stop = start + functools.reduce(lambda a, b: a * b, shape, 1)
            parts.append(packed[start:stop].reshape(shape).astype(dtype))
            start = stop
        return parts

    packed = concat([_core._plain(y).reshape(-1) for y in outputs])
    return unpack(_core.host_node(packed, inputs, lambda g: tuple(pull([*unpack(g)])), name))


class Context:
    """What `Function.forward` leaves for `backward`: `save` tensors, or set attributes.

    `needs_grad` says which arguments require a gradient.
    """

    def __init__(self, args: tuple[Any, ...]) -> None:
        self.needs_grad = tuple(isinstance(a, Tensor) and a.requires_grad for a in args)
        self._args: tuple[Any, ...] = args
        self._saved: tuple[Tensor, ...] = ()
        self._constant: tuple[int, ...] = ()

    def save(self, *tensors: Tensor) -> None:
        """Keep tensors as they are now, for `saved`.

        Arguments keep their history, so that `backward` can itself be differentiated. Anything
        else that is floating has none; a second derivative through it is refused, unless it is a
        constant and therefore set as an attribute instead.
        """
        with enable_grad():
            self._saved = tuple(
                t[...] if any(t is a for a in self._args) else t.detach() for t in tensors
            )
        self._constant = tuple(
            i for i, t in enumerate(tensors) if _floating(t) and not any(t is a for a in self._args)
        )

    @property
    def saved(self) -> tuple[Tensor, ...]:
        """What was saved."""
        if self._constant and is_grad_enabled():
            raise GradientError(
                f"Function: saved tensor {self._constant[0]} is not an argument, and a second "
                "derivative would take it for a constant; save arguments and compute it again, or "
                "set it as an attribute if it is a constant"
            )
        return self._saved

    # PyTorch's names of the same.

    def save_for_backward(self, *tensors: Tensor) -> None:
        """The same as `save`."""
        self.save(*tensors)

    @property
    def saved_tensors(self) -> tuple[Tensor, ...]:
        """The same as `saved`."""
        return self.saved

    @property
    def needs_input_grad(self) -> tuple[bool, ...]:
        """The same as `needs_grad`."""
        return self.needs_grad


class Function:
    """An operation with a gradient rule of its own.

    A subclass defines two static methods: `forward(cx, *args)` computes a tensor (or a tuple of
    tensors), and `backward(cx, *cotangents)` returns one gradient for each argument of `forward`,
    `None` where there is none. `apply` calls it.

    >>> class Double(wg.Function):
    ...     @staticmethod
    ...     def forward(cx, x):
    ...         return x + x
    ...     @staticmethod
    ...     def backward(cx, g):
    ...         return 2.0 * g
    >>> wg.grad(lambda x: Double.apply(x))(wg.tensor(1.0)).item()
    2.0
    """

    @staticmethod
    def forward(cx: Context, *args: Any) -> Any:
        """The value; runs without recording."""
        raise NotImplementedError("Function: forward is not defined")

    @staticmethod
    def backward(cx: Context, *cotangents: Any) -> Any:
        """The gradient of each argument, from the cotangent of each result."""
        raise NotImplementedError("Function: backward is not defined")

    @classmethod
    def apply(cls, *args: Any) -> Any:
        """Compute, and record the rule where a gradient is wanted."""
        if any(isinstance(a, Tensor) for a in args) and (
            _core.is_tracing() or any(isinstance(a, Tensor) and _core._is_traced(a) for a in args)
        ):
            try:
                return _TracedCall(cls, args).call()
            except CaptureError as error:
                # A function that updates what is outside is no call of its own.
                if error.code != "body_updates":
                    raise
        cx, name = Context(args), cls.__name__
        with no_grad():
            result = cls.forward(cx, *args)
        cx._args = ()
        outputs = list(result) if isinstance(result, tuple) else [result]
        wrong = [type(y).__name__ for y in outputs if not isinstance(y, Tensor)]
        if wrong:
            raise TypeError(f"{name}: forward returned {', '.join(wrong)}, wanted tensors")
        outputs = [_core._ruled(y) for y in outputs]
        result = tuple(outputs) if isinstance(result, tuple) else outputs[0]
        wanted = [(i, a) for i, a in enumerate(args) if cx.needs_grad[i]]
        if not wanted or not is_grad_enabled():
            return result
        shapes = {i: tuple(a.shape) for i, a in wanted}

        def pull(cotangents: list[Tensor | None]) -> list[Tensor | None]:
            found = cls.backward(cx, *cotangents)
            found = found if isinstance(found, tuple) else (found,)
            if len(found) != len(cx.needs_grad):
                raise GradientError(
                    f"{name}: backward returned {len(found)} gradients for "
                    f"{len(cx.needs_grad)} arguments"
                )
            for i, shape in shapes.items():
                if found[i] is not None and tuple(found[i].shape) != shape:
                    raise ShapeError(
                        f"{name}: backward returned shape {tuple(found[i].shape)} for argument "
                        f"{i}, wanted {shape}"
                    )
            return [found[i] for i in shapes]

        new = _record(name, outputs, [a for _, a in wanted], pull)
        return tuple(new) if isinstance(result, tuple) else new[0]


class _Forward(Context):
    """The context of a forward that is traced: what is saved is looked at when it has ended."""

    def save(self, *tensors: Tensor) -> None:
        self._saved = tensors


class _TracedCall:
    """A call of a function in a graph: what it computes as nodes, and its rule.

    The rule is traced when a derivative is taken.

    What forward leaves in its context are further results of the call. The context of the rule has
    operands and results of the call in their place.
    """

    def __init__(self, function: type[Function], args: tuple[Any, ...]) -> None:
        self.function, self.args = function, args
        self.name = function.__name__
        self.places = [i for i, a in enumerate(args) if isinstance(a, Tensor)]
        self.rules = _core.HostRules()
        self.saved: tuple[Any, ...] = ()
        self.attributes: dict[str, Any] = {}
        self.floating: list[bool] = []
        self.needs = tuple(isinstance(a, Tensor) and _floating(a) for a in args)

    def call(self) -> Any:
        tensors = [self.args[i] for i in self.places]
        self.args = tuple(None if isinstance(a, Tensor) else a for a in self.args)
        one = [False]

        def run(inputs: list[Tensor]) -> list[Tensor]:
            given = list(self.args)
            for i, x in zip(self.places, inputs, strict=True):
                given[i] = x
            cx = _Forward(tuple(given))
            cx.needs_grad = self.needs
            with no_grad():
                result = self.function.forward(cx, *given)
            one[0] = not isinstance(result, tuple)
            outputs = [result] if one[0] else list(result)
            wrong = [type(y).__name__ for y in outputs if not isinstance(y, Tensor)]
            if wrong:
                raise TypeError(f"{self.name}: forward returned {', '.join(wrong)}, wanted tensors")
            self.floating = [_floating(y) for y in outputs]
            return outputs + self._leave(cx, inputs, len(outputs))

        body = _core._body(self.name, tensors, [None] * len(tensors), run)
        found = _core._ruled_call(self, self.rules, self.name, body, tensors)
        return found[0] if one[0] else tuple(found[: len(self.floating)])

    def _leave(self, cx: Context, inputs: list[Tensor], count: int) -> list[Tensor]:
        """What the context holds, as places; the values behind the results."""
        more: list[Tensor] = []

        def place(x: Any, constant: bool) -> Any:
            if isinstance(x, _core.Dim):
                return _size_of(x, inputs)
            if isinstance(x, _core.Number):
                return float(x)
            if not isinstance(x, Tensor):
                return x
            for k, own in enumerate(inputs):
                if x is own:
                    return _Place(True, k)
            if not constant or _core._is_traced(x):
                more.append(x)
                return _Place(False, count + len(more) - 1)
            return x

        self.saved = tuple(place(x, False) for x in cx._saved)
        own = {k: v for k, v in vars(cx).items() if not k.startswith("_") and k != "needs_grad"}
        self.attributes = {k: pytree.map(lambda x: place(x, True), v) for k, v in own.items()}
        return more

    # What follows is called by the engine.

    def has(self, rule: str) -> bool:
        """Whether there is a rule."""
        return rule == "vjp"

    def pull(
        self, g: list[Tensor | None], xs: list[Tensor], ys: list[Tensor]
    ) -> list[Tensor | None]:
        """Cotangents of operands, from those of results."""

        def found(place: Any, mark: Callable[[Tensor], Tensor]) -> Any:
            if isinstance(place, _Size):
                return xs[place.operand].shape[place.axis]
            if isinstance(place, _Place):
                return xs[place.index] if place.is_operand else mark(ys[place.index])
            return place

        cx = Context(self.args)
        cx._args, cx.needs_grad = (), self.needs
        for name, value in self.attributes.items():
            setattr(cx, name, pytree.map(lambda x: found(x, Tensor.detach), value))
        # Nobody knows the derivative of what was saved and is no argument.
        cx._saved = tuple(found(x, _core._ruled) for x in self.saved)
        seeds = [
            zeros_like(y) if c is None else c
            for c, y, floating in zip(g, ys, self.floating, strict=False)
            if floating
        ]
        result = self.function.backward(cx, *seeds)
        grads = result if isinstance(result, tuple) else (result,)
        if len(grads) != len(self.args):
            raise GradientError(
                f"{self.name}: backward returned {len(grads)} gradients for "
                f"{len(self.args)} arguments"
            )
        for i, x in zip(self.places, xs, strict=False):
            if self.needs[i] and grads[i] is not None and tuple(grads[i].shape) != tuple(x.shape):
                raise ShapeError(
                    f"{self.name}: backward returned shape {tuple(grads[i].shape)} for argument "
                    f"{i}, wanted {tuple(x.shape)}"
                )
        return [grads[i] for i in self.places] + [None] * (len(xs) - len(self.places))


class _Place:
    """An operand or a result of a call."""

    def __init__(self, is_operand: bool, index: int) -> None:
        self.is_operand, self.index = is_operand, index


class _Size:
    """A size of an operand."""

    def __init__(self, operand: int, axis: int) -> None:
        self.operand, self.axis = operand, axis


def _size_of(size: Any, operands: list[Tensor]) -> _Size | int:
    """The axis that has an open size; the number it is now, where none has."""
    for k, x in enumerate(operands):
        for axis, n in enumerate(x.shape):
            if isinstance(n, _core.Dim) and str(n) == str(size):
                return _Size(k, axis)
    return int(size)


def checkpoint(f: Callable[P, R]) -> Callable[P, R]:
    """`f`, keeping no intermediate values for backward: they are computed again when needed.

    `f` is called a second time during backward, with the same arguments and the same random
    numbers. It must depend on nothing else that changes in between, and must not update anything
    (a `BatchNorm` in training would count its batch twice). In a captured function the second call
    is part of the plan, which computes it after the gradients of its results.
    """

    @functools.wraps(f)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if not is_grad_enabled():
            return f(*args, **kwargs)
        state, narrow = random.get_state(), _core._autocast()
        leaves, structure = pytree.flatten((args, kwargs))
        places = [i for i, x in enumerate(leaves) if isinstance(x, Tensor) and x.requires_grad]
        kept = [x[...] if isinstance(x, Tensor) else x for x in leaves]

        def run(
            after: Sequence[Tensor] = (),
        ) -> tuple[list[Any], list[Tensor], pytree.Structure]:
            fresh = list(kept)
            if after and _core.is_tracing():
                fresh = [_core.barrier(x, after) if isinstance(x, Tensor) else x for x in kept]
            for i in places:
                fresh[i] = _core.alias(fresh[i])
            new_args, new_kwargs = pytree.unflatten(structure, fresh)
            outputs, shape = pytree.flatten(f(*new_args, **new_kwargs))
            return outputs, [fresh[i] for i in places], shape

        outputs, inputs, shape = run()
        tensors = [y for y in outputs if isinstance(y, Tensor)]
        # Parameters that `f` reaches by itself are inputs too.
        outer = _core.tape_leaves(tensors, inputs)
        if not places and not outer:
            return pytree.unflatten(shape, outputs)

        def pull(cotangents: list[Tensor | None]) -> Sequence[Tensor | None]:
            create, now = is_grad_enabled(), random.get_state()
            random.set_state(state)
            before = _core._set_autocast(narrow)
            try:
                with enable_grad():
                    again, fresh, _ = run([g for g in cotangents if g is not None])
            finally:
                _core._set_autocast(before)
                random.set_state(now)
            ys = [y for y in again if isinstance(y, Tensor) and _floating(y)]
            pairs = [(y, g) for y, g in zip(ys, cotangents, strict=True) if y.requires_grad]
            return _core.gradients(
                [y for y, _ in pairs],
                [*fresh, *outer],
                [g for _, g in pairs],
                create_graph=create,
                allow_unused=True,
            )

        values = [_core._plain(y) for y in tensors]
        found = iter(_record("checkpoint", values, [*(kept[i] for i in places), *outer], pull))
        results = [next(found) if isinstance(y, Tensor) else y for y in outputs]
        return pytree.unflatten(shape, results)

    return wrapped
