"""The table of TensorFlow's names over the op table, and what makes functions of its rows."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import wengert as wg
from wengert.compat.v1._graph import Sizes, as_shape, named, size_tensor
from wengert.compat.v1._order import reading

_REDUCE = "input_tensor=x axis|reduction_indices=axis keepdims|keep_dims=keepdims"

# TensorFlow's name: the op, and TensorFlow's arguments in order with the op's own names. An
# argument may have an older name after a bar, and a default of TensorFlow's after an @; those
# behind a star are passed by name only.
OPS = {
    "abs": ("abs", "x=x"),
    "acos": ("acos", "x=x"),
    "acosh": ("acosh", "x=x"),
    "add": ("add", "x=a y=b"),
    "asin": ("asin", "x=x"),
    "asinh": ("asinh", "x=x"),
    "atan": ("atan", "x=x"),
    "atan2": ("atan2", "y=a x=b"),
    "atanh": ("atanh", "x=x"),
    "broadcast_to": ("broadcast_to", "input=x shape=shape"),
    "ceil": ("ceil", "x=x"),
    "clip_by_value": ("clip", "t=x clip_value_min=min clip_value_max=max"),
    "cos": ("cos", "x=x"),
    "cosh": ("cosh", "x=x"),
    "count_nonzero": ("count_nonzero", _REDUCE),
    "cross": ("cross", "a=a b=b"),
    "diag": ("diag", "diagonal=x"),
    "diag_part": ("diag", "input=x"),
    "divide": ("divide", "x=a y=b"),
    "equal": ("equal", "x=a y=b"),
    "erf": ("erf", "x=x"),
    "erfc": ("erfc", "x=x"),
    "exp": ("exp", "x=x"),
    "expand_dims": ("expand_dims", "input=x axis|dim=axis"),
    "expm1": ("expm1", "x=x"),
    "fill": ("full", "dims=shape value=fill_value"),
    "floor": ("floor", "x=x"),
    "floordiv": ("floor_divide", "x=a y=b"),
    "floormod": ("remainder", "x=a y=b"),
    "gather": ("take", "params=x indices=indices * axis=axis@0"),
    "greater": ("greater", "x=a y=b"),
    "greater_equal": ("greater_equal", "x=a y=b"),
    "is_finite": ("isfinite", "x=x"),
    "is_inf": ("isinf", "x=x"),
    "is_nan": ("isnan", "x=x"),
    "less": ("less", "x=a y=b"),
    "less_equal": ("less_equal", "x=a y=b"),
    "linspace": ("linspace", "start=start stop=stop num=num"),
    "log": ("log", "x=x"),
    "log1p": ("log1p", "x=x"),
    "log_sigmoid": ("log_sigmoid", "x=x"),
    "logical_and": ("logical_and", "x=a y=b"),
    "logical_not": ("logical_not", "x=x"),
    "logical_or": ("logical_or", "x=a y=b"),
    "logical_xor": ("logical_xor", "x=a y=b"),
    "matrix_transpose": ("matrix_transpose", "a=x"),
    "maximum": ("maximum", "x=a y=b"),
    "minimum": ("minimum", "x=a y=b"),
    "mod": ("remainder", "x=a y=b"),
    "multiply": ("multiply", "x=a y=b"),
    "negative": ("negative", "x=x"),
    "nn.leaky_relu": ("nn.leaky_relu", "features=x alpha=negative_slope@0.2"),
    "nn.log_softmax": ("nn.log_softmax", "logits=x axis|dim=axis"),
    "nn.relu": ("nn.relu", "features=x"),
    "nn.sigmoid": ("sigmoid", "x=x"),
    "nn.softmax": ("nn.softmax", "logits=x axis|dim=axis"),
    "nn.softplus": ("nn.softplus", "features=x"),
    "nn.swish": ("nn.silu", "features=x"),
    "nn.tanh": ("tanh", "x=x"),
    "not_equal": ("not_equal", "x=a y=b"),
    "ones": ("ones", "shape=shape dtype=dtype"),
    "ones_like": ("ones_like", "tensor=x dtype=dtype"),
    "pow": ("pow", "x=a y=b"),
    "realdiv": ("divide", "x=a y=b"),
    "reciprocal": ("reciprocal", "x=x"),
    "reduce_all": ("all", _REDUCE),
    "reduce_any": ("any", _REDUCE),
    "reduce_logsumexp": ("logsumexp", _REDUCE),
    "reduce_max": ("max", _REDUCE),
    "reduce_mean": ("mean", _REDUCE),
    "reduce_min": ("min", _REDUCE),
    "reshape": ("reshape", "tensor=x shape=shape"),
    "reverse": ("flip", "tensor=x axis=axis"),
    "rint": ("round", "x=x"),
    "roll": ("roll", "input=x shift=shift axis=axis"),
    "round": ("round", "x=x"),
    "rsqrt": ("rsqrt", "x=x"),
    "sigmoid": ("sigmoid", "x=x"),
    "sign": ("sign", "x=x"),
    "sin": ("sin", "x=x"),
    "sinh": ("sinh", "x=x"),
    "sqrt": ("sqrt", "x=x"),
    "square": ("square", "x=x"),
    "squeeze": ("squeeze", "input=x axis|squeeze_dims=axis"),
    "subtract": ("subtract", "x=a y=b"),
    "tan": ("tan", "x=x"),
    "tanh": ("tanh", "x=x"),
    "tensordot": ("tensordot", "a=a b=b axes=axes"),
    "tile": ("tile", "input=x multiples=repetitions"),
    "trace": ("trace", "x=x"),
    "transpose": ("transpose", "a=x perm=axes"),
    "truediv": ("divide", "x=a y=b"),
    "zeros": ("zeros", "shape=shape dtype=dtype"),
    "zeros_like": ("zeros_like", "tensor=x dtype=dtype"),
}

DTYPES = {"float": wg.float32, "double": wg.float64, "int": wg.int32}
"""Dtypes by the names that TensorFlow shares with C."""


def dtype_of(dtype: Any) -> Any:
    """A dtype, or the one that TensorFlow calls so."""
    return DTYPES.get(dtype, dtype) if isinstance(dtype, str) else dtype


def as_tensor(x: Any, dtype: Any = None) -> wg.Tensor:
    """A value as a tensor, Python's ints as int32, sizes too."""
    if isinstance(x, Sizes):
        x = x.tensor()
    elif isinstance(x, wg.Dim):
        x = size_tensor(x)
    elif not isinstance(x, wg.Tensor):
        if dtype is None and _of_ints(x):
            dtype = wg.int32
        if isinstance(x, list | tuple) and _has_tensors(x):
            return wg.stack([as_tensor(part, dtype) for part in x])
        return wg.tensor(x, dtype=dtype)
    return x if dtype is None or x.dtype == dtype else x.astype(dtype)


def truth(x: Any) -> wg.Tensor:
    """A truth value, also of a placeholder without a shape."""
    return as_tensor(x).astype(wg.bool).reshape(())


def _of_ints(x: Any) -> bool:
    """Whether the first number of a nested list is Python's int."""
    while isinstance(x, list | tuple) and x:
        x = x[0]
    return isinstance(x, int) and not isinstance(x, bool)


def _has_tensors(x: Any) -> bool:
    if isinstance(x, list | tuple):
        return any(_has_tensors(part) for part in x)
    return isinstance(x, wg.Tensor | wg.Dim)


_SHAPES = ("shape", "repetitions", "axes", "axis")
"""Parameters of ops that take sizes and axes, not tensors."""
_TENSORS = ("x", "a", "b", "indices", "condition")


def _value(parameter: str, x: Any) -> Any:
    """An argument of TensorFlow's as an op takes it."""
    if (
        parameter == "axes"
        and isinstance(x, list | tuple)
        and any(isinstance(part, list | tuple) for part in x)
    ):
        return tuple((part,) if isinstance(part, int) else as_shape(part) for part in x)
    if parameter in _SHAPES and isinstance(x, Sizes | list | tuple | wg.Tensor):
        return as_shape(x)
    if parameter == "arrays":
        return [as_tensor(part) for part in x]
    if isinstance(x, Sizes | list | tuple) and parameter in _TENSORS:
        return as_tensor(x)
    return dtype_of(x) if parameter == "dtype" else x


def _default(text: str) -> Any:
    """A default of TensorFlow's: a number."""
    return int(text) if text.isdigit() else float(text)


def of_table(name: str) -> Callable[..., Any]:
    """The function of a row of the table."""
    label, text = OPS[name]
    op: Any = functools.reduce(getattr, label.split("."), wg)
    positional, _, named_only = text.partition(" * ")
    pairs = [pair.split("@")[0].split("=") for pair in f"{positional} {named_only}".split()]
    ours = {old: own for theirs, own in pairs for old in theirs.split("|")}
    stated = dict(pair.split("=")[1].split("@") for pair in text.split() if "@" in pair)
    defaults = {k: _default(v) for k, v in stated.items()}
    every = [theirs.split("|")[0] for theirs, _ in pairs]
    order = every[: len(positional.split())]

    def call(*args: Any, **kwargs: Any) -> Any:
        named_last = len(args) == len(order) + 1 and isinstance(args[-1], str)
        given = dict(zip([*order, "name"], args, strict=False))
        allowed = {*ours, "name"} - given.keys()
        if len(args) > len(order) + named_last or not kwargs.keys() <= allowed:
            raise TypeError(f"tf.{name}: takes {', '.join(every)}, name; got {args} {kwargs}")
        given |= kwargs
        node_name = given.pop("name", None)
        values = {ours[k]: _value(ours[k], v) for k, v in given.items() if v is not None}
        return named(op(**{**defaults, **values}), node_name)

    call.__name__ = call.__qualname__ = name.split(".")[-1]
    call.__doc__ = f"`wengert.{label}` with TensorFlow's argument names: {', '.join(every)}."
    kind = inspect.Parameter
    kinds = [kind.POSITIONAL_OR_KEYWORD if n in order else kind.KEYWORD_ONLY for n in every]
    call.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [kind(n, k) for n, k in zip(every, kinds, strict=True)]
    )
    return reading(call)
