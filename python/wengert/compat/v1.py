"""TensorFlow 1's names, for programs written with them: `import wengert.compat.v1 as tf`.

Each name is a function of wengert under TensorFlow's name and argument names; `OPS` is the table.
One graph is always open, results are NumPy's, and a variable has a value once its initializer ran.
What is not here is not provided: the rest of a program is better written with wengert's own names.

>>> import wengert.compat.v1 as tf
>>> x = tf.placeholder(tf.float32)
>>> with tf.Session() as session:
...     print(session.run(tf.reduce_sum(x * x), feed_dict={x: [1.0, 2.0, 3.0]}))
14.0
"""

from __future__ import annotations

import functools
import inspect
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import wengert as wg
from wengert.graph import default_graph, reset_default_graph
from wengert.session import Session as _Session

__all__ = [
    "InteractiveSession",
    "Session",
    "Variable",
    "constant",
    "disable_v2_behavior",
    "global_variables_initializer",
    "gradients",
    "layers",
    "name_scope",
    "nn",
    "placeholder",
    "reset_default_graph",
    "train",
]

# TensorFlow's name: the op, and TensorFlow's arguments in order with the op's own names. An
# argument may have an older name after a bar, and a default of TensorFlow's after an @.
OPS = {
    "abs": ("abs", "x=x"),
    "acos": ("acos", "x=x"),
    "add": ("add", "x=a y=b"),
    "argmax": ("argmax", "input=x axis|dimension=axis@0"),
    "argmin": ("argmin", "input=x axis|dimension=axis@0"),
    "asin": ("asin", "x=x"),
    "atan": ("atan", "x=x"),
    "cast": ("astype", "x=x dtype=dtype"),
    "ceil": ("ceil", "x=x"),
    "clip_by_value": ("clip", "t=x clip_value_min=min clip_value_max=max"),
    "concat": ("concat", "values=arrays axis=axis"),
    "cos": ("cos", "x=x"),
    "cosh": ("cosh", "x=x"),
    "cumsum": ("cumulative_sum", "x=x axis=axis@0"),
    "divide": ("divide", "x=a y=b"),
    "equal": ("equal", "x=a y=b"),
    "erf": ("erf", "x=x"),
    "exp": ("exp", "x=x"),
    "expand_dims": ("expand_dims", "input=x axis=axis"),
    "eye": ("eye", "num_rows=n num_columns=m"),
    "fill": ("full", "dims=shape value=value"),
    "floor": ("floor", "x=x"),
    "floordiv": ("floor_divide", "x=a y=b"),
    "gather": ("take", "params=x indices=indices axis=axis@0"),
    "greater": ("greater", "x=a y=b"),
    "greater_equal": ("greater_equal", "x=a y=b"),
    "less": ("less", "x=a y=b"),
    "less_equal": ("less_equal", "x=a y=b"),
    "linspace": ("linspace", "start=start stop=stop num=num"),
    "log": ("log", "x=x"),
    "log1p": ("log1p", "x=x"),
    "logical_and": ("logical_and", "x=a y=b"),
    "logical_not": ("logical_not", "x=x"),
    "logical_or": ("logical_or", "x=a y=b"),
    "maximum": ("maximum", "x=a y=b"),
    "minimum": ("minimum", "x=a y=b"),
    "mod": ("remainder", "x=a y=b"),
    "multiply": ("multiply", "x=a y=b"),
    "negative": ("negative", "x=x"),
    "nn.bias_add": ("add", "value=a bias=b"),
    "nn.embedding_lookup": ("nn.embedding", "params=weight ids=indices"),
    "nn.leaky_relu": ("nn.leaky_relu", "features=x alpha=negative_slope"),
    "nn.log_softmax": ("nn.log_softmax", "logits=x axis|dim=axis"),
    "nn.relu": ("nn.relu", "features=x"),
    "nn.sigmoid": ("sigmoid", "x=x"),
    "nn.softmax": ("nn.softmax", "logits=x axis|dim=axis"),
    "nn.softplus": ("nn.softplus", "features=x"),
    "nn.tanh": ("tanh", "x=x"),
    "not_equal": ("not_equal", "x=a y=b"),
    "one_hot": ("one_hot", "indices=x depth=classes dtype=dtype@float32"),
    "ones": ("ones", "shape=shape dtype=dtype"),
    "ones_like": ("ones_like", "tensor=x dtype=dtype"),
    "pow": ("pow", "x=a y=b"),
    "random_normal": ("random.normal", "shape=shape mean=mean stddev=std dtype=dtype seed=key"),
    "random_uniform": ("random.uniform", "shape=shape minval=low maxval=high dtype=dtype seed=key"),
    "range": ("arange", "start=start limit=stop delta=step"),
    "reciprocal": ("reciprocal", "x=x"),
    "reduce_all": ("all", "input_tensor=x axis|reduction_indices=axis keepdims|keep_dims=keepdims"),
    "reduce_any": ("any", "input_tensor=x axis|reduction_indices=axis keepdims|keep_dims=keepdims"),
    "reduce_max": ("max", "input_tensor=x axis|reduction_indices=axis keepdims|keep_dims=keepdims"),
    "reduce_mean": (
        "mean",
        "input_tensor=x axis|reduction_indices=axis keepdims|keep_dims=keepdims",
    ),
    "reduce_min": ("min", "input_tensor=x axis|reduction_indices=axis keepdims|keep_dims=keepdims"),
    "reduce_prod": (
        "prod",
        "input_tensor=x axis|reduction_indices=axis keepdims|keep_dims=keepdims",
    ),
    "reduce_sum": ("sum", "input_tensor=x axis|reduction_indices=axis keepdims|keep_dims=keepdims"),
    "reshape": ("reshape", "tensor=x shape=shape"),
    "round": ("round", "x=x"),
    "rsqrt": ("rsqrt", "x=x"),
    "sigmoid": ("sigmoid", "x=x"),
    "sign": ("sign", "x=x"),
    "sin": ("sin", "x=x"),
    "sinh": ("sinh", "x=x"),
    "sqrt": ("sqrt", "x=x"),
    "square": ("square", "x=x"),
    "squeeze": ("squeeze", "input=x axis|squeeze_dims=axis"),
    "stack": ("stack", "values=arrays axis=axis"),
    "subtract": ("subtract", "x=a y=b"),
    "tan": ("tan", "x=x"),
    "tanh": ("tanh", "x=x"),
    "tile": ("tile", "input=x multiples=repetitions"),
    "transpose": ("transpose", "a=x perm=axes"),
    "truediv": ("divide", "x=a y=b"),
    "where": ("where", "condition=condition x=a y=b"),
    "zeros": ("zeros", "shape=shape dtype=dtype"),
    "zeros_like": ("zeros_like", "tensor=x dtype=dtype"),
}

nn = SimpleNamespace()
layers = SimpleNamespace()
train = SimpleNamespace()

float16, float32, float64 = wg.float16, wg.float32, wg.float64
int8, int16, int32, int64 = wg.int8, wg.int16, wg.int32, wg.int64
uint8, bool = wg.uint8, wg.bool
__all__ += ["bool", "float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8"]


def _in_graph(f: Callable[..., Any]) -> Callable[..., Any]:
    """`f`, called with the default graph open."""

    @functools.wraps(f)
    def call(*args: Any, **kwargs: Any) -> Any:
        with default_graph():
            return f(*args, **kwargs)

    return call


def _named(x: Any, name: str | None) -> Any:
    """`x`, called so in the graph if a name is given."""
    if name is not None and isinstance(x, wg.Tensor):
        graph = default_graph()
        graph._core.name(graph._id("name", x), _scoped(name))
    return x


def _of_table(name: str) -> Callable[..., Any]:
    """The function of a row of the table."""
    label, text = OPS[name]
    op = functools.reduce(getattr, label.split("."), wg)
    pairs = [pair.split("@")[0].split("=") for pair in text.split()]
    ours = {old: own for theirs, own in pairs for old in theirs.split("|")}
    stated = dict(pair.split("=")[1].split("@") for pair in text.split() if "@" in pair)
    defaults = {k: int(v) if v.isdigit() else getattr(wg, v) for k, v in stated.items()}
    order = [theirs.split("|")[0] for theirs, _ in pairs]

    def call(*args: Any, **kwargs: Any) -> Any:
        given = dict(zip(order, args, strict=False))
        if len(args) > len(order) or not kwargs.keys() <= {*ours, "name"} - given.keys():
            raise TypeError(f"tf.{name}: takes {', '.join(order)}, name; got {args} {kwargs}")
        node_name = kwargs.pop("name", None)
        given = {ours[k]: v for k, v in {**given, **kwargs}.items() if v is not None}
        arguments = {**defaults, **given}
        if isinstance(arguments.get("key"), int):
            arguments["key"] = wg.random.key(arguments["key"])
        return _named(op(**arguments), node_name)  # type: ignore[operator]

    call.__name__ = call.__qualname__ = name.split(".")[-1]
    call.__doc__ = f"`wengert.{label}` with TensorFlow's argument names: {', '.join(order)}."
    call.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD) for n in order]
    )
    return _in_graph(call)


for _name in OPS:
    if _name.startswith("nn."):
        setattr(nn, _name[3:], _of_table(_name))
    else:
        globals()[_name] = _of_table(_name)
        __all__.append(_name)


# What takes more than one op.


def _formula(space: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Puts a function into a namespace, as one that runs with the graph open."""

    def put(f: Callable[..., Any]) -> Callable[..., Any]:
        f = _in_graph(f)
        if space is None:
            __all__.append(f.__name__)
        else:
            setattr(space, f.__name__, f)
        return f

    return put


@_formula(None)
def matmul(
    a: Any, b: Any, transpose_a: Any = False, transpose_b: Any = False, name: str | None = None
) -> wg.Tensor:
    """The product of matrices, either of them transposed first if asked."""
    a = wg.matrix_transpose(a) if transpose_a else a
    return _named(wg.matmul(a, wg.matrix_transpose(b) if transpose_b else b), name)


@_formula(None)
def truncated_normal(
    shape: Any,
    mean: float = 0.0,
    stddev: float = 1.0,
    dtype: Any = float32,
    seed: int | None = None,
    name: str | None = None,
) -> wg.Tensor:
    """Normal numbers within two standard deviations: the inverse of their distribution function
    at uniform numbers."""
    edge = math.erf(math.sqrt(2.0))
    key = None if seed is None else wg.random.key(seed)
    x = wg.random.uniform(shape, low=-edge, high=edge, dtype=dtype, key=key)
    return _named(wg.erfinv(x) * (math.sqrt(2.0) * stddev) + mean, name)


@_formula(nn)
def l2_loss(t: Any, name: str | None = None) -> wg.Tensor:
    """Half the sum of squares."""
    return _named((t * t).sum() / 2.0, name)


@_formula(nn)
def dropout(
    x: Any, keep_prob: float | None = None, rate: float | None = None, name: str | None = None
) -> wg.Tensor:
    """Elements set to zero with probability `rate`, which is `1 - keep_prob`; the others grow."""
    if (keep_prob is None) == (rate is None):
        raise ValueError("tf.nn.dropout: pass either keep_prob or rate")
    keep: Any = keep_prob if rate is None else 1.0 - rate
    if isinstance(keep, float | int):
        return _named(wg.nn.dropout(x, 1.0 - keep), name)
    keep = keep.reshape(())
    drawn = wg.random.bernoulli(wg.ones_like(x) * keep)
    return _named(wg.where(drawn, x / keep, 0.0), name)


@_formula(nn)
def softmax_cross_entropy_with_logits(
    labels: Any, logits: Any, axis: int = -1, name: str | None = None
) -> wg.Tensor:
    """The cross entropy of rows of probabilities and logits, row by row."""
    return _named(-(labels * wg.nn.log_softmax(logits, axis=axis)).sum(axis=axis), name)


nn.softmax_cross_entropy_with_logits_v2 = softmax_cross_entropy_with_logits


@_formula(nn)
def sparse_softmax_cross_entropy_with_logits(
    labels: Any, logits: Any, name: str | None = None
) -> wg.Tensor:
    """The cross entropy of classes and rows of logits, row by row."""
    return _named(wg.nn.cross_entropy(logits, labels, reduction="none"), name)


@_formula(nn)
def sigmoid_cross_entropy_with_logits(
    labels: Any, logits: Any, name: str | None = None
) -> wg.Tensor:
    """The cross entropy of probabilities and logits, element by element."""
    loss = wg.nn.binary_cross_entropy_with_logits
    return _named(loss(logits, labels, reduction="none"), name)


@_formula(layers)
def dense(
    inputs: Any,
    units: int,
    activation: Callable[[wg.Tensor], wg.Tensor] | None = None,
    use_bias: Any = True,
    name: str | None = None,
) -> wg.Tensor:
    """`activation(inputs @ kernel + bias)` with new variables: a kernel of Glorot's uniform
    numbers, a bias of zeros."""
    width = inputs.shape[-1]
    edge = math.sqrt(6.0 / (width + units))
    with name_scope(default_graph()._unique("dense") if name is None else name):
        kernel = Variable(wg.random.uniform((width, units), low=-edge, high=edge), name="kernel")
        y = inputs @ kernel
        if use_bias:
            y = y + Variable(wg.zeros((units,)), name="bias")
    return y if activation is None else activation(y)


# Graphs, variables, sessions.


class _Scopes(threading.local):
    def __init__(self) -> None:
        self.names: list[str] = []


_scopes = _Scopes()


@contextmanager
def name_scope(name: str) -> Iterator[str]:
    """Puts `name/` before the names given inside."""
    _scopes.names.append(name)
    try:
        yield "/".join(_scopes.names) + "/"
    finally:
        _scopes.names.pop()


def _scoped(name: str) -> str:
    """A name that is free in the default graph, with the scopes before it."""
    return default_graph()._unique("/".join([*_scopes.names, name]))


def placeholder(dtype: Any, shape: Any = None, name: str | None = None) -> wg.Tensor:
    """`wengert.placeholder`, with a name made up if none is given."""
    return wg.placeholder(_scoped(name or "Placeholder"), shape, dtype)


@_in_graph
def Variable(
    initial_value: Any, trainable: Any = True, name: str | None = None, dtype: Any = None
) -> wg.Variable:
    """`wengert.Variable`, which has a value once its initializer has run."""
    return wg.Variable(initial_value, _scoped(name or "Variable"), trainable, dtype)


@_in_graph
def constant(
    value: Any, dtype: Any = None, shape: Any = None, name: str | None = None
) -> wg.Tensor:
    """A value that is known; `shape` arranges it, or repeats one number."""
    x = wg.tensor(value, dtype=dtype)
    if shape is not None:
        x = wg.broadcast_to(x, shape) if x.size == 1 else x.reshape(shape)
    return _named(x, name)


def gradients(ys: Any, xs: Any, grad_ys: Any = None, name: str | None = None) -> list[Any]:
    """The gradients of the sum of `ys` by `xs`, weighted with `grad_ys` where given; `None` for
    what no `ys` depends on."""
    ys, xs = ([v] if isinstance(v, wg.Tensor) else list(v) for v in (ys, xs))
    if grad_ys is None:
        grad_ys = [wg.ones_like(y) for y in ys]
    elif isinstance(grad_ys, wg.Tensor):
        grad_ys = [grad_ys]
    return wg.gradients(ys, xs, grad_ys, allow_unused=True)


def disable_v2_behavior() -> None:
    """Nothing: this module behaves like version 1."""


class Operation:
    """What is run for what it does to variables."""

    def __init__(self, tensors: Sequence[wg.Tensor], name: str | None = None) -> None:
        self.tensors = list(tensors)
        self.name = name

    def run(
        self, feed_dict: Mapping[Any, Any] | None = None, session: Session | None = None
    ) -> None:
        """Run it in a session, or in the one that is open."""
        (session or _current("Operation.run")).run(self, feed_dict)


def global_variables_initializer() -> Operation:
    """Gives all variables of the default graph their initial values."""
    return Operation([v.assign(v.initial) for v in default_graph().variables], "init")


_open_sessions: list[Session] = []


class Session(_Session):
    """A `wengert.Session` that gives NumPy's arrays and numbers, casts what it is fed, and leaves
    variables without a value until they are initialized."""

    def __init__(self, target: str = "", graph: wg.Graph | None = None) -> None:
        if target:
            raise ValueError(f"tf.Session: there is no other machine to run on, got {target!r}")
        super().__init__(graph, initialize=False)

    def __enter__(self) -> Session:
        _open_sessions.append(self)
        return self

    def __exit__(self, *exception: Any) -> None:
        _open_sessions.remove(self)
        super().__exit__(*exception)

    def _parts(self, fetch: Any) -> list[Any]:
        return fetch.tensors if isinstance(fetch, Operation) else [fetch]

    def _value(self, fetch: Any, results: list[wg.Tensor]) -> Any:
        if isinstance(fetch, Operation):
            return None
        x = results[0]
        array = (x.astype(wg.float32) if x.dtype == wg.bfloat16 else x).numpy()
        return array if array.ndim else array[()]

    def _adapts(self, value: Any) -> Any:
        return True


class InteractiveSession(Session):
    """A session that is open from now on."""

    def __init__(self, target: str = "", graph: wg.Graph | None = None) -> None:
        super().__init__(target, graph)
        _open_sessions.append(self)

    def close(self) -> None:
        """Close it."""
        if self in _open_sessions:
            _open_sessions.remove(self)
        super().close()


def _current(what: str) -> Session:
    if not _open_sessions:
        raise wg.GraphError(f"{what}: no session is open; pass one, or use `with tf.Session():`")
    return _open_sessions[-1]


def _eval(
    self: wg.Tensor, feed_dict: Mapping[Any, Any] | None = None, session: Session | None = None
) -> Any:
    """The value in a session, or in the one that is open."""
    return (session or _current("Tensor.eval")).run(self, feed_dict)


wg.Tensor.eval = _eval  # type: ignore[attr-defined]


# Optimizers: one step of each as a formula of parameter, gradient and slots.


class _Optimizer:
    """Changes variables along the gradient of a loss."""

    slots: tuple[float, ...] = ()
    """The values that each parameter's slots begin with."""

    def __init__(self, learning_rate: Any) -> None:
        self.learning_rate = learning_rate

    def step(self, p: Any, g: Any, slots: list[Any], count: Any) -> Sequence[Any]:
        """The new parameter and slots."""
        raise NotImplementedError

    def minimize(
        self, loss: wg.Tensor, global_step: Any = None, var_list: Any = None, name: Any = None
    ) -> Operation:
        """The operation that takes one step."""
        graph = default_graph()
        with graph:
            variables = [v for v in graph.variables if v.trainable]
            variables = variables if var_list is None else list(var_list)
            found = gradients(loss, variables)
            count = Variable(0.0, trainable=False, name="step").assign_add(1.0)
            new: list[wg.Tensor] = [count]
            for p, g in zip(variables, found, strict=True):
                if g is not None:
                    new += self._update(p, g, count)
            if global_step is not None:
                new.append(global_step.assign_add(1))
        return Operation(new, name)

    def _update(self, p: wg.Variable, g: wg.Tensor, count: wg.Tensor) -> list[wg.Tensor]:
        name = type(self).__name__.removesuffix("Optimizer")
        slots = [
            Variable(wg.full(p.shape, x, dtype=p.dtype), False, f"{p.name}/{name}")
            for x in self.slots
        ]
        values = self.step(p, g, slots, count)
        return [v.assign(x) for v, x in zip([p, *slots], values, strict=True)]


def _optimizer(cls: type[_Optimizer]) -> type[_Optimizer]:
    setattr(train, cls.__name__, cls)
    return cls


@_optimizer
class GradientDescentOptimizer(_Optimizer):
    """`p - lr g`."""

    def step(self, p: Any, g: Any, slots: list[Any], count: Any) -> Sequence[Any]:
        """`wengert.optim`'s step."""
        return wg.optim.sgd(p, g, lr=self.learning_rate)


@_optimizer
class MomentumOptimizer(_Optimizer):
    """`b = momentum b + g`, `p - lr b`; with Nesterov's correction if asked."""

    slots = (0.0,)

    def __init__(self, learning_rate: Any, momentum: Any, use_nesterov: Any = False) -> None:
        super().__init__(learning_rate)
        self.momentum, self.use_nesterov = momentum, use_nesterov

    def step(self, p: Any, g: Any, slots: list[Any], count: Any) -> Sequence[Any]:
        """`wengert.optim`'s step."""
        return wg.optim.sgd(
            p, g, *slots, lr=self.learning_rate, momentum=self.momentum, nesterov=self.use_nesterov
        )


@_optimizer
class AdamOptimizer(_Optimizer):
    """Adam."""

    slots = (0.0, 0.0)

    def __init__(
        self, learning_rate: Any = 0.001, beta1: Any = 0.9, beta2: Any = 0.999, epsilon: Any = 1e-8
    ) -> None:
        super().__init__(learning_rate)
        self.beta1, self.beta2, self.epsilon = beta1, beta2, epsilon

    def step(self, p: Any, g: Any, slots: list[Any], count: Any) -> Sequence[Any]:
        """`wengert.optim`'s step."""
        return wg.optim.adam(
            p, g, *slots, count,
            lr=self.learning_rate, beta1=self.beta1, beta2=self.beta2, eps=self.epsilon,
        )  # type: ignore[misc]  # fmt: skip


@_optimizer
class AdagradOptimizer(_Optimizer):
    """`a = a + g²`, `p - lr g / √a`."""

    def __init__(self, learning_rate: Any, initial_accumulator_value: float = 0.1) -> None:
        super().__init__(learning_rate)
        self.slots = (initial_accumulator_value,)

    def step(self, p: Any, g: Any, slots: list[Any], count: Any) -> Sequence[Any]:
        """The formula."""
        a = slots[0] + g * g
        return p - self.learning_rate * g / wg.sqrt(a), a


@_optimizer
class RMSPropOptimizer(_Optimizer):
    """`a = decay a + (1 - decay) g²`, `b = momentum b + lr g / √(a + epsilon)`, `p - b`."""

    slots = (1.0, 0.0)

    def __init__(
        self, learning_rate: Any, decay: float = 0.9, momentum: float = 0.0, epsilon: float = 1e-10
    ) -> None:
        super().__init__(learning_rate)
        self.decay, self.momentum, self.epsilon = decay, momentum, epsilon

    def step(self, p: Any, g: Any, slots: list[Any], count: Any) -> Sequence[Any]:
        """The formula."""
        a = self.decay * slots[0] + (1.0 - self.decay) * g * g
        b = self.momentum * slots[1] + self.learning_rate * g / wg.sqrt(a + self.epsilon)
        return p - b, a, b
