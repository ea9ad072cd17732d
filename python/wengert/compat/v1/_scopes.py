"""`get_variable` and `variable_scope`, and the initializers and regularizers they take."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

import wengert as wg
from wengert.compat.v1._graph import (
    GraphKeys,
    add_to_collection,
    in_graph,
    name_scope,
    named,
    outside,
    state,
)
from wengert.compat.v1._order import branches, control_dependencies
from wengert.compat.v1._state import Variable, key_of
from wengert.compat.v1._table import as_tensor, dtype_of

AUTO_REUSE = "AUTO_REUSE"
"""`reuse=`: variables that are there are shared, others are made."""


class VariableScope:
    """Where `get_variable` looks for names, and what it does without arguments of its own."""

    def __init__(
        self,
        name: str,
        reuse: Any = False,
        initializer: Any = None,
        regularizer: Any = None,
        dtype: Any = wg.float32,
    ) -> None:
        self.name = name
        self.reuse = reuse
        self.initializer = initializer
        self.regularizer = regularizer
        self.dtype = dtype
        self.original_name_scope = f"{name}/" if name else ""

    def reuse_variables(self) -> None:
        """From now on, variables must be there."""
        self.reuse = True

    def set_initializer(self, initializer: Any) -> None:
        """What `get_variable` uses where it is given none."""
        self.initializer = initializer

    def set_regularizer(self, regularizer: Any) -> None:
        """What `get_variable` uses where it is given none."""
        self.regularizer = regularizer

    def global_variables(self) -> list[Any]:
        """The variables in this scope."""
        return default_collection(GraphKeys.GLOBAL_VARIABLES, self.name)

    def trainable_variables(self) -> list[Any]:
        """The parameters in this scope."""
        return default_collection(GraphKeys.TRAINABLE_VARIABLES, self.name)


def default_collection(key: str, scope: str) -> list[Any]:
    """The values of a collection in a scope of variables."""
    found = state().collections.get(key, [])
    return [v for v in found if v.name.startswith(f"{scope}/")] if scope else list(found)


def get_variable_scope() -> VariableScope:
    """The scope that is open."""
    here = state()
    if here.scope is None:
        here.scope = VariableScope("")
    return here.scope


@contextmanager
def variable_scope(
    name_or_scope: Any,
    default_name: str | None = None,
    values: Any = None,
    initializer: Any = None,
    regularizer: Any = None,
    caching_device: Any = None,
    partitioner: Any = None,
    custom_getter: Any = None,
    reuse: Any = None,
    dtype: Any = None,
    use_resource: Any = None,
    constraint: Any = None,
    auxiliary_name_scope: Any = True,
) -> Iterator[VariableScope]:
    """Puts `name/` before the names of `get_variable`, and opens a `name_scope`.

    `default_name`, used where the name is `None`, is made unique. A scope instead of a name is that
    scope again. `reuse` (True, `AUTO_REUSE`) holds for scopes inside too.
    """
    for word, value in (("partitioner", partitioner), ("custom_getter", custom_getter)):
        if value is not None:
            raise NotImplementedError(f"tf.variable_scope: {word} is not provided")
    here, outer = state(), get_variable_scope()
    if isinstance(name_or_scope, VariableScope):
        old = name_or_scope
        made = VariableScope(
            old.name, reuse or old.reuse, old.initializer, old.regularizer, old.dtype
        )
        inner = old.name.split("/")[-1] or None
    else:
        inner = name_or_scope
        if inner is None:
            if default_name is None:
                raise ValueError("tf.variable_scope: a name or a default_name is needed")
            if reuse:
                raise ValueError("tf.variable_scope: reuse needs a name, not a default_name")
            inner = _next(outer.name, default_name)
        name = f"{outer.name}/{inner}" if outer.name else inner
        made = VariableScope(
            name, reuse or outer.reuse, outer.initializer, outer.regularizer, outer.dtype
        )
    if initializer is not None:
        made.initializer = initializer
    if regularizer is not None:
        made.regularizer = regularizer
    if dtype is not None:
        made.dtype = dtype_of(dtype)
    here.scope = made
    here.opened[made.name] = here.opened.get(made.name, 0) + 1
    try:
        if inner is None or not auxiliary_name_scope:
            yield made
        else:
            with name_scope(inner) as opened:
                made.original_name_scope = opened
                yield made
    finally:
        here.scope = outer
        # When it is opened again, names without a name of their own begin anew.
        for name in here.opened:
            if name.startswith(f"{made.name}/"):
                here.opened[name] = 0


def _next(scope: str, name: str) -> str:
    """A name that no scope in this one has, since it was opened."""
    opened, prefix = state().opened, f"{scope}/" if scope else ""
    found, n = name, 0
    while opened.get(prefix + found, 0):
        n += 1
        found = f"{name}_{n}"
    return found


def get_variable(
    name: str,
    shape: Any = None,
    dtype: Any = None,
    initializer: Any = None,
    regularizer: Any = None,
    trainable: Any = None,
    collections: Any = None,
    caching_device: Any = None,
    partitioner: Any = None,
    validate_shape: Any = True,
    use_resource: Any = None,
    custom_getter: Any = None,
    constraint: Any = None,
    synchronization: Any = None,
    aggregation: Any = None,
) -> Any:
    """The variable of this name in the scope that is open: a new one, or where the scope reuses
    variables, that which is there.

    Without an initializer it is the scope's, or else Glorot's uniform numbers, or zeros for
    integers. ValueError where the variable is there and must not, or the other way about, or has
    another shape or dtype.
    """
    for word, value in (("partitioner", partitioner), ("custom_getter", custom_getter)):
        if value is not None:
            raise NotImplementedError(f"tf.get_variable: {word} is not provided")
    scope, known = get_variable_scope(), state().variables
    full = f"{scope.name}/{name}" if scope.name else name
    there = known.get(full)
    if there is not None and not scope.reuse:
        raise ValueError(
            f"tf.get_variable: variable {full} already exists; to share it, open the scope with "
            "reuse=True or reuse=tf.AUTO_REUSE"
        )
    if there is None and scope.reuse is True:
        raise ValueError(
            f"tf.get_variable: variable {full} does not exist, or was not made with "
            "tf.get_variable(); to make what is missing, open the scope with reuse=tf.AUTO_REUSE"
        )
    wanted = None if shape is None else _known(full, shape)
    kind = scope.dtype if dtype is None else dtype_of(dtype)
    if there is not None:
        if wanted is not None and tuple(there.shape) != wanted:
            raise ValueError(
                f"tf.get_variable: variable {full} has shape {tuple(there.shape)}, asked for "
                f"{wanted}"
            )
        if dtype is not None and there.dtype != kind:
            raise ValueError(
                f"tf.get_variable: variable {full} has dtype {there.dtype}, asked for {kind}"
            )
        return there
    chosen = scope.initializer if initializer is None else initializer
    with control_dependencies(None):
        made = outside(
            lambda: _made(full, wanted, kind, dtype, chosen, trainable, collections, constraint)
        )
    known[full] = made
    chosen = scope.regularizer if regularizer is None else regularizer
    if chosen is not None:
        with name_scope(None):
            loss = outside(lambda: named(chosen(made), f"{full}/Regularizer"))
        if loss is not None:
            add_to_collection(GraphKeys.REGULARIZATION_LOSSES, loss)
    return made


def _known(name: str, shape: Any) -> tuple[int, ...]:
    sizes = (shape,) if isinstance(shape, int) else tuple(shape)
    if not all(isinstance(n, int | np.integer) for n in sizes):
        raise ValueError(f"tf.get_variable: the shape of {name} must be known, got {shape}")
    return tuple(int(n) for n in sizes)


def _made(
    name: str,
    shape: Any,
    kind: Any,
    dtype: Any,
    initializer: Any,
    trainable: Any,
    collections: Any,
    constraint: Any,
) -> Any:
    if initializer is None:
        floating = wg.isdtype(kind, "real floating")
        initializer = glorot_uniform_initializer() if floating else zeros_initializer()
    if isinstance(initializer, type):
        initializer = initializer()
    if callable(initializer):
        if shape is None:
            raise ValueError(f"tf.get_variable: the shape of {name} is needed")
        value = initializer(list(shape), dtype=kind)
    else:
        value = as_tensor(initializer, None if dtype is None else kind)
        if shape is not None and tuple(value.shape) != shape:
            raise ValueError(
                f"tf.get_variable: {name} has shape {shape}, its initializer {tuple(value.shape)}"
            )
    # The name is that of the scope of variables, whatever name scopes are open.
    with name_scope(None):
        made = Variable(
            value,
            trainable is None or trainable,
            collections=collections,
            name=name,
            dtype=kind if callable(initializer) else None,
            constraint=constraint,
        )
    return made


def in_body(f: Callable[..., Any]) -> Callable[..., Any]:
    """`f` as the body of a loop or a branch, in which keys are those of the body.

    It may be traced several times: names are the same each time, and variables that the first time
    made are shared.
    """
    begun: tuple[dict[str, int], dict[str, int]] | None = None

    def call(*args: Any) -> Any:
        nonlocal begun
        here, scope = state(), get_variable_scope()
        reuse = scope.reuse
        if begun is None:
            begun = dict(here.scopes), dict(here.opened)
        else:
            here.scopes, here.opened = (dict(counts) for counts in begun)
            scope.reuse = reuse or AUTO_REUSE
        branches.bodies += 1
        try:
            return f(*args)
        finally:
            branches.bodies -= 1
            scope.reuse = reuse

    return call


# Initializers.


class Initializer:
    """Makes the initial value of a variable from its shape and dtype."""

    @in_graph
    def __call__(self, shape: Any, dtype: Any = None, partition_info: Any = None) -> wg.Tensor:
        """The value."""
        return self.value(tuple(shape), wg.float32 if dtype is None else dtype_of(dtype))

    def value(self, shape: tuple[int, ...], dtype: Any) -> wg.Tensor:
        """The value."""
        raise NotImplementedError


class zeros_initializer(Initializer):
    """Zeros."""

    def __init__(self, dtype: Any = None) -> None:
        pass

    def value(self, shape: tuple[int, ...], dtype: Any) -> wg.Tensor:
        """The value."""
        return wg.zeros(shape, dtype=dtype)


class ones_initializer(Initializer):
    """Ones."""

    def __init__(self, dtype: Any = None) -> None:
        pass

    def value(self, shape: tuple[int, ...], dtype: Any) -> wg.Tensor:
        """The value."""
        return wg.ones(shape, dtype=dtype)


class constant_initializer(Initializer):
    """One number, or numbers for all elements in order."""

    def __init__(self, value: Any = 0, dtype: Any = None, verify_shape: Any = False) -> None:
        self.number = value

    def value(self, shape: tuple[int, ...], dtype: Any) -> wg.Tensor:
        """The value."""
        x = wg.tensor(np.asarray(self.number)).astype(dtype)
        return wg.broadcast_to(x, shape) if x.size == 1 else x.reshape(shape)


class random_uniform_initializer(Initializer):
    """Uniform numbers in `[minval, maxval)`, below 1 by default."""

    def __init__(
        self, minval: float = 0.0, maxval: Any = None, seed: Any = None, dtype: Any = None
    ) -> None:
        self.range, self.seed = (minval, 1.0 if maxval is None else maxval), seed

    def value(self, shape: tuple[int, ...], dtype: Any) -> wg.Tensor:
        """The value."""
        low, high = self.range
        return wg.random.uniform(shape, low=low, high=high, dtype=dtype, key=key_of(self.seed))


class random_normal_initializer(Initializer):
    """Normal numbers."""

    def __init__(
        self, mean: float = 0.0, stddev: float = 1.0, seed: Any = None, dtype: Any = None
    ) -> None:
        self.mean, self.stddev, self.seed = mean, stddev, seed

    def value(self, shape: tuple[int, ...], dtype: Any) -> wg.Tensor:
        """The value."""
        key = key_of(self.seed)
        return wg.random.normal(shape, mean=self.mean, std=self.stddev, dtype=dtype, key=key)


def truncated(shape: Any, mean: Any, stddev: Any, dtype: Any, seed: Any) -> wg.Tensor:
    """Normal numbers within two standard deviations: the inverse of their distribution function
    at uniform numbers."""
    edge = math.erf(math.sqrt(2.0))
    x = wg.random.uniform(shape, low=-edge, high=edge, dtype=dtype, key=key_of(seed))
    return wg.erfinv(x) * (math.sqrt(2.0) * stddev) + mean


class truncated_normal_initializer(random_normal_initializer):
    """Normal numbers within two standard deviations."""

    def value(self, shape: tuple[int, ...], dtype: Any) -> wg.Tensor:
        """The value."""
        return truncated(shape, self.mean, self.stddev, dtype, self.seed)


_TRUNCATED = math.sqrt(
    1.0 - 4.0 * math.exp(-2.0) / (math.sqrt(2.0 * math.pi) * math.erf(math.sqrt(2.0)))
)
"""The standard deviation of a standard normal number cut off at two: `√(1 - 4 φ(2) / (2 Φ(2) - 1))`
with the density φ and the distribution function Φ."""


class variance_scaling_initializer(Initializer):
    """Numbers with variance `scale / n`, where `n` is the number of inputs of a unit ("fan_in"), of
    outputs ("fan_out"), or their mean ("fan_avg")."""

    def __init__(
        self,
        scale: float = 1.0,
        mode: str = "fan_in",
        distribution: str = "truncated_normal",
        seed: Any = None,
        dtype: Any = None,
    ) -> None:
        if mode not in ("fan_in", "fan_out", "fan_avg"):
            raise ValueError(f"variance_scaling: mode is fan_in, fan_out or fan_avg, got {mode!r}")
        if distribution not in ("normal", "truncated_normal", "untruncated_normal", "uniform"):
            raise ValueError(f"variance_scaling: no distribution is called {distribution!r}")
        self.scale, self.mode, self.distribution, self.seed = scale, mode, distribution, seed

    def value(self, shape: tuple[int, ...], dtype: Any) -> wg.Tensor:
        """The value."""
        fan_in, fan_out = fans(shape)
        n = {"fan_in": fan_in, "fan_out": fan_out, "fan_avg": (fan_in + fan_out) / 2}[self.mode]
        variance = self.scale / max(1.0, n)
        if self.distribution == "uniform":
            edge = math.sqrt(3.0 * variance)
            key = key_of(self.seed)
            return wg.random.uniform(shape, low=-edge, high=edge, dtype=dtype, key=key)
        if self.distribution == "untruncated_normal":
            key = key_of(self.seed)
            return wg.random.normal(shape, std=math.sqrt(variance), dtype=dtype, key=key)
        return truncated(shape, 0.0, math.sqrt(variance) / _TRUNCATED, dtype, self.seed)


def fans(shape: tuple[int, ...]) -> tuple[float, float]:
    """How many inputs and outputs a unit has whose weights have this shape: the last two axes are
    inputs and outputs, those before are the window of a convolution."""
    if len(shape) < 2:
        n = float(shape[0]) if shape else 1.0
        return n, n
    window = float(np.prod(shape[:-2]))
    return shape[-2] * window, shape[-1] * window


def _scaling(name: str, scale: float, mode: str, distribution: str) -> type[Initializer]:
    def __init__(self: Any, seed: Any = None, dtype: Any = None) -> None:
        variance_scaling_initializer.__init__(self, scale, mode, distribution, seed)

    text = f"`variance_scaling_initializer({scale}, {mode!r}, {distribution!r})`."
    return type(name, (variance_scaling_initializer,), {"__init__": __init__, "__doc__": text})


glorot_uniform_initializer = _scaling("glorot_uniform_initializer", 1.0, "fan_avg", "uniform")
glorot_normal_initializer = _scaling(
    "glorot_normal_initializer", 1.0, "fan_avg", "truncated_normal"
)
he_normal = _scaling("he_normal", 2.0, "fan_in", "truncated_normal")
he_uniform = _scaling("he_uniform", 2.0, "fan_in", "uniform")
lecun_normal = _scaling("lecun_normal", 1.0, "fan_in", "truncated_normal")
lecun_uniform = _scaling("lecun_uniform", 1.0, "fan_in", "uniform")


class identity_initializer(Initializer):
    """`gain` times the identity matrix."""

    def __init__(self, gain: float = 1.0, dtype: Any = None) -> None:
        self.gain = gain

    def value(self, shape: tuple[int, ...], dtype: Any) -> wg.Tensor:
        """The value."""
        return wg.eye(*shape, dtype=dtype) * self.gain


# Regularizers.


def l2_regularizer(scale: float, scope: Any = None) -> Callable[[Any], wg.Tensor]:
    """`scale` times half the sum of squares."""
    return lambda w: (w * w).sum() * (scale / 2.0)


def l1_regularizer(scale: float, scope: Any = None) -> Callable[[Any], wg.Tensor]:
    """`scale` times the sum of magnitudes."""
    return lambda w: abs(w).sum() * scale
