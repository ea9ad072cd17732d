"""The table of TensorFlow's names over the op table, and what makes functions of its rows."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import wengert as wg
from wengert.graph import default_graph

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
    "diag": ("diag", "diagonal=x"),
    "div": ("divide", "x=a y=b"),
    "divide": ("divide", "x=a y=b"),
    "equal": ("equal", "x=a y=b"),
    "erf": ("erf", "x=x"),
    "exp": ("exp", "x=x"),
    "expand_dims": ("expand_dims", "input=x axis=axis"),
    "eye": ("eye", "num_rows=n num_columns=m"),
    "fill": ("full", "dims=shape value=fill_value"),
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
    "reduce_logsumexp": (
        "logsumexp",
        "input_tensor=x axis|reduction_indices=axis keepdims|keep_dims=keepdims",
    ),
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
    "split": ("split", "value=x num_or_size_splits=sections axis|split_dim=axis"),
    "sqrt": ("sqrt", "x=x"),
    "square": ("square", "x=x"),
    "squeeze": ("squeeze", "input=x axis|squeeze_dims=axis"),
    "stack": ("stack", "values=arrays axis=axis"),
    "subtract": ("subtract", "x=a y=b"),
    "tan": ("tan", "x=x"),
    "tanh": ("tanh", "x=x"),
    "tile": ("tile", "input=x multiples=repetitions"),
    "trace": ("trace", "x=x"),
    "transpose": ("transpose", "a=x perm=axes"),
    "truediv": ("divide", "x=a y=b"),
    "where": ("where", "condition=condition x=a y=b"),
    "zeros": ("zeros", "shape=shape dtype=dtype"),
    "zeros_like": ("zeros_like", "tensor=x dtype=dtype"),
}


DTYPES = {"float": wg.float32, "double": wg.float64, "int": wg.int32}
"""Dtypes by the names that TensorFlow shares with C."""


def dtype_of(dtype: Any) -> Any:
    """A dtype, or the one that TensorFlow calls so."""
    return DTYPES.get(dtype, dtype) if isinstance(dtype, str) else dtype


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


def scoped(name: str) -> str:
    """A name that is free in the default graph, with the scopes before it."""
    return default_graph()._unique("/".join([*_scopes.names, name]))


def in_graph(f: Callable[..., Any]) -> Callable[..., Any]:
    """`f`, called with the default graph open."""

    @functools.wraps(f)
    def call(*args: Any, **kwargs: Any) -> Any:
        with default_graph():
            return f(*args, **kwargs)

    return call


def named(x: Any, name: str | None) -> Any:
    """`x`, called so in the graph if a name is given."""
    if name is not None and isinstance(x, wg.Tensor):
        graph = default_graph()
        graph._core.name(graph._id("name", x), scoped(name))
    return x


def of_table(name: str) -> Callable[..., Any]:
    """The function of a row of the table."""
    label, text = OPS[name]
    op: Any = functools.reduce(getattr, label.split("."), wg)
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
        if "dtype" in arguments:
            arguments["dtype"] = dtype_of(arguments["dtype"])
        return named(op(**arguments), node_name)

    call.__name__ = call.__qualname__ = name.split(".")[-1]
    call.__doc__ = f"`wengert.{label}` with TensorFlow's argument names: {', '.join(order)}."
    call.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD) for n in order]
    )
    return in_graph(call)
