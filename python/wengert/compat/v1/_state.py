"""Placeholders, variables, operations and what orders them, as TensorFlow 1 has them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import wengert as wg
from wengert import _core
from wengert.compat.v1._graph import (
    GraphKeys,
    Sizes,
    add_to_collections,
    as_shape,
    default_graph,
    get_collection,
    in_graph,
    is_size,
    named,
    outside,
    own_node,
    scoped,
    state,
    state_of,
)
from wengert.compat.v1._order import (
    Fetch,
    branches,
    control_dependencies,
    current,
    dependencies,
    tensors_of,
)
from wengert.compat.v1._table import as_tensor, dtype_of
from wengert.graph import graph_of


def placeholder(dtype: Any, shape: Any = None, name: str | None = None) -> wg.Tensor:
    """`wengert.placeholder`, with a name made up if none is given."""
    shape = None if shape is None else _open_shape(shape)
    return wg.placeholder(scoped(name or "Placeholder"), shape, dtype_of(dtype))


def _open_shape(shape: Any) -> tuple[Any, ...]:
    """A shape in which `None`, and open sizes of others, may differ from run to run."""
    sizes = (shape,) if is_size(shape) else tuple(shape)
    return tuple(None if isinstance(n, wg.Dim) or n is None else int(n) for n in sizes)


@in_graph
def placeholder_with_default(input: Any, shape: Any, name: str | None = None) -> wg.Tensor:
    """What is fed, and `input` where nothing is.

    With the shape of `input` it is a node behind it. With another, which then has open sizes, it is
    a placeholder of its own, and gradients of `input` through it are zero.
    """
    x = as_tensor(input)
    shape = _open_shape(shape)
    if x.shape is not None and tuple(x.shape) == shape:
        return named(own_node(x), name or "PlaceholderWithDefault")
    if x.shape is None or len(x.shape) != len(shape):
        raise wg.ShapeError(
            f"tf.placeholder_with_default: shape {shape} does not allow the default's, {x.shape}"
        )
    for given, n in zip(x.shape, shape, strict=True):
        if n is not None and n != given:
            raise wg.ShapeError(
                f"tf.placeholder_with_default: shape {shape} does not allow the default's, "
                f"{x.shape}"
            )
    made = placeholder(x.dtype, shape, name or "PlaceholderWithDefault")
    graph = default_graph()
    state().defaults[graph._id("placeholder_with_default", made)] = own_node(x)
    return made


class Variable(wg.Variable):
    """A `wengert.Variable`, which has a value once its initializer has run."""

    def __new__(
        cls,
        initial_value: Any = None,
        trainable: Any = True,
        collections: Any = None,
        validate_shape: Any = True,
        caching_device: Any = None,
        name: str | None = None,
        variable_def: Any = None,
        dtype: Any = None,
        expected_shape: Any = None,
        import_scope: Any = None,
        constraint: Any = None,
        **options: Any,
    ) -> Variable:
        """A variable of the default graph, which may be made in the body of a loop too."""
        _refuse("tf.Variable", options, ("use_resource", "synchronization", "aggregation", "shape"))
        if initial_value is None:
            raise ValueError("tf.Variable: initial_value is needed")

        def made() -> Variable:
            value = initial_value() if callable(initial_value) else initial_value
            value = as_tensor(value, dtype_of(dtype))
            return cls._made(value, scoped(name or "Variable"), trainable)

        # Nor does its value depend on what is open around it.
        with control_dependencies(None):
            self = outside(made)
        self.constraint = constraint
        chosen = [GraphKeys.GLOBAL_VARIABLES] if collections is None else list(collections)
        if trainable and GraphKeys.TRAINABLE_VARIABLES not in chosen:
            chosen.append(GraphKeys.TRAINABLE_VARIABLES)
        add_to_collections(chosen, self)
        return self

    constraint: Any
    """What is applied to new values that an optimizer gives, or `None`."""

    @classmethod
    def _made(cls, value: wg.Tensor, name: str, trainable: Any) -> Any:
        self = wg.Variable.__new__(cls, value, name, bool(trainable))
        self.name, self.constraint = f"{name}:0", None  # type: ignore[attr-defined]
        return self

    @property
    def initializer(self) -> Operation:
        """What gives it its initial value."""
        if vars(self).get("_initializer") is None:
            with control_dependencies(None):
                self._initializer = outside(
                    lambda: Operation([wg.Variable.assign(self, self.initial)])
                )
        return self._initializer

    @property
    def initial_value(self) -> wg.Tensor:
        """The value that its initializer gives."""
        return self.initial

    def initialized_value(self) -> wg.Tensor:
        """The value that its initializer gives, for initial values of others."""
        return self.initial

    @in_graph
    def read_value(self) -> wg.Tensor:
        """The value; inside `control_dependencies` of an assignment, the new one."""
        return own_node(current(self))

    value = read_value

    def assign(self, value: Any, use_locking: Any = None, name: Any = None) -> wg.Tensor:  # type: ignore[override]
        """The value, which the variable has after a run that fetches this."""
        return _assigned(self, lambda: self._cast(value))

    def assign_add(self, delta: Any, use_locking: Any = None, name: Any = None) -> wg.Tensor:  # type: ignore[override]
        """`assign(self + delta)`."""
        return _assigned(self, lambda: self._cast(delta), 1)

    def assign_sub(self, delta: Any, use_locking: Any = None, name: Any = None) -> wg.Tensor:  # type: ignore[override]
        """`assign(self - delta)`."""
        return _assigned(self, lambda: self._cast(delta), -1)

    def _cast(self, value: Any) -> Any:
        """Sizes and numbers in the variable's dtype; tensors as they are."""
        if is_size(value) or isinstance(value, Sizes):
            return as_tensor(value).astype(self.dtype)
        return self._data(value)

    def load(self, value: Any, session: Any = None) -> None:
        """Give it a value in a session, or in the one that is open."""
        from wengert.compat.v1._session import current_session

        chosen = current_session("Variable.load") if session is None else session
        chosen._load({self: value})


def _assigned(v: Variable, value: Callable[[], wg.Tensor], sign: int = 0) -> wg.Tensor:
    """An assignment of a value, or with a sign one that adds it or takes it away."""

    def made() -> wg.Tensor:
        given = value()
        before = current(v) if sign else v
        new = given if not sign else before + given if sign > 0 else before - given
        if branches.open:
            return branches.open[-1].assign(v, new)
        result = wg.Variable.assign(v, new)
        graph = graph_of(v)
        if sign and before is v and graph is not None:
            i = graph._id("assign", result)
            state_of(graph).deltas[i] = given if sign > 0 else -given
        return result

    return in_graph(made)()


def _refuse(what: str, options: Any, known: Sequence[str]) -> None:
    """Refuses arguments that TensorFlow does not have; those that it has change nothing here."""
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise TypeError(f"{what}: has no argument {', '.join(unknown)}")


def assign(
    ref: Any, value: Any, validate_shape: Any = None, use_locking: Any = None, name: Any = None
) -> wg.Tensor:
    """`ref.assign(value)`."""
    return named(ref.assign(value), name)


def assign_add(ref: Any, value: Any, use_locking: Any = None, name: Any = None) -> wg.Tensor:
    """`ref.assign_add(value)`."""
    return named(ref.assign_add(value), name)


def assign_sub(ref: Any, value: Any, use_locking: Any = None, name: Any = None) -> wg.Tensor:
    """`ref.assign_sub(value)`."""
    return named(ref.assign_sub(value), name)


def global_variables(scope: str | None = None) -> list[Any]:
    """The variables of the default graph, but for local ones."""
    return get_collection(GraphKeys.GLOBAL_VARIABLES, scope)


def local_variables(scope: str | None = None) -> list[Any]:
    """Those that metrics count in."""
    return get_collection(GraphKeys.LOCAL_VARIABLES, scope)


def trainable_variables(scope: str | None = None) -> list[Any]:
    """Those that optimizers take as parameters."""
    return get_collection(GraphKeys.TRAINABLE_VARIABLES, scope)


# Operations.


class Operation(Fetch):
    """What is run for what it does to variables."""

    reads = False

    def __init__(self, tensors: Sequence[wg.Tensor], name: str | None = None) -> None:
        super().__init__(tensors)
        if name is not None:
            self.name = scoped(name)
            operations = state().operations
            n, plain = 0, self.name
            while self.name in operations:
                n += 1
                self.name = f"{plain}_{n}"
            operations[self.name] = self

    @property
    def op(self) -> Operation:
        """Itself."""
        return self

    def finish(self, values: list[Any]) -> Any:
        """Nothing."""

    def run(self, feed_dict: Any = None, session: Any = None) -> None:
        """Run it in a session, or in the one that is open."""
        from wengert.compat.v1._session import current_session

        (session or current_session("Operation.run")).run(self, feed_dict)


def variables_initializer(var_list: Any, name: str = "init") -> Operation:
    """Gives variables their initial values."""
    return Operation([t for v in var_list for t in _initializer(v).tensors], name)


def _initializer(v: Any) -> Operation:
    if isinstance(v, Variable):
        return v.initializer
    return outside(lambda: Operation([v.assign(v.initial)]))


def global_variables_initializer() -> Operation:
    """Gives all variables of the default graph their initial values."""
    return variables_initializer(global_variables())


def local_variables_initializer() -> Operation:
    """Gives the local variables of the default graph their initial values."""
    return variables_initializer(local_variables())


initialize_all_variables = global_variables_initializer


def group(*inputs: Any, name: str | None = None, **options: Any) -> Operation:
    """One operation that runs all of these."""
    return Operation(tensors_of(list(inputs)), name or "group_deps")


def no_op(name: str | None = None) -> Operation:
    """An operation that runs only what it depends on."""
    return Operation([], name or "NoOp")


def tuple_of(tensors: Any, name: str | None = None, control_inputs: Any = None) -> list[Any]:
    """The tensors, each of which takes along all others, and `control_inputs`."""
    needed = [t for t in tensors if t is not None]
    with control_dependencies([*needed, *(control_inputs or [])]):
        return [None if t is None else identity(t) for t in tensors]


@in_graph
def identity(input: Any, name: str | None = None) -> wg.Tensor:
    """The same values. They are a node of its own where they are a variable's, where dependencies
    are open, and where they have a name already."""
    x = as_tensor(input)
    if isinstance(x, wg.Variable):
        x = current(x)
    again = name is not None and getattr(x, "name", "").removesuffix(":0") != ""
    if dependencies() or isinstance(x, wg.Variable) or again:
        x = own_node(x)
    return named(x, name)


# Numbers.


@in_graph
def constant(
    value: Any,
    dtype: Any = None,
    shape: Any = None,
    name: str | None = None,
    verify_shape: Any = False,
) -> wg.Tensor:
    """A value that is known; `shape` arranges it, or repeats one number. Python's ints are
    int32."""
    x = as_tensor(value, dtype_of(dtype))
    if shape is not None:
        shape = as_shape(shape)
        x = wg.broadcast_to(x, shape) if x.size == 1 else x.reshape(shape)
    return named(x, name)


@in_graph
def convert_to_tensor(
    value: Any, dtype: Any = None, name: str | None = None, **options: Any
) -> wg.Tensor:
    """A value as a tensor. Python's ints are int32."""
    return named(as_tensor(value, dtype_of(dtype)), name)


def shape(input: Any, name: str | None = None, out_type: Any = wg.int32) -> Sizes:
    """The sizes; open ones are `wengert.Dim`s, with which new shapes are made."""
    sizes = as_tensor(input).shape
    if sizes is None:
        raise wg.GraphError(
            f"tf.shape: the rank of {input!r} is open: give its placeholder a shape"
        )
    return Sizes(sizes)


def size(input: Any, name: str | None = None, out_type: Any = wg.int32) -> Any:
    """The number of elements: an int, or a `wengert.Dim` where sizes are open."""
    total: Any = 1
    for n in shape(input):
        total = total * n
    return total


def rank(input: Any, name: str | None = None) -> int:
    """The number of axes."""
    return len(shape(input))


def gradients(
    ys: Any, xs: Any, grad_ys: Any = None, name: str | None = None, **options: Any
) -> list[Any]:
    """The gradients of the sum of `ys` by `xs`, weighted with `grad_ys` where given; `None` for
    what no `ys` depends on."""
    _refuse(
        "tf.gradients",
        options,
        ("colocate_gradients_with_ops", "gate_gradients", "aggregation_method"),
    )
    ys, xs = ([v] if isinstance(v, wg.Tensor) else list(v) for v in (ys, xs))
    if grad_ys is None:
        grad_ys = [None] * len(ys)
    elif isinstance(grad_ys, wg.Tensor):
        grad_ys = [grad_ys]

    def found() -> list[Any]:
        seeds = [wg.ones_like(y) if g is None else g for y, g in zip(ys, grad_ys, strict=True)]
        return wg.gradients(ys, xs, seeds, allow_unused=True)

    return in_graph(found)()


def set_random_seed(seed: int) -> None:
    """Where random numbers begin."""
    wg.random.seed(seed)


def key_of(seed: int | None) -> Any:
    """The key of a random op: fresh numbers in each run, which begin at `seed` in each session.

    Without a seed, and in the bodies of loops and branches, keys come from where
    `set_random_seed` says.
    """
    if seed is None or branches.bodies:
        return None

    first = _core.outside_trace(lambda: wg.random.key(seed))

    def drawn() -> wg.Tensor:
        graph = default_graph()
        kept = Variable._made(first.to(graph.device), scoped("seed"), False)
        state().streams.add(graph._id("seed", kept))
        mine, following = wg.unstack(wg.random.split(kept, 2))
        with control_dependencies([wg.Variable.assign(kept, following)]):
            return own_node(mine)

    return outside(drawn)


def disable_v2_behavior() -> None:
    """Nothing: this module behaves like version 1."""


disable_eager_execution = disable_v2_behavior
