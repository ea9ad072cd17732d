"""NumPy's functions of tensors: what `__array_ufunc__` and `__array_function__` do.

A function of NumPy's that the op table has under the same name is ours, and gives tensors. A few
look at an array or write it out; they get one. All others are refused with what to write: none
becomes an array in silence.
"""

from __future__ import annotations

from types import BuiltinFunctionType
from typing import Any

from wengert import _core, _words
from wengert._core import Tensor

# The operators between an array and a tensor, which an array leaves to the tensor.
REFLECTED = {
    "add": "__radd__",
    "subtract": "__rsub__",
    "multiply": "__rmul__",
    "divide": "__rtruediv__",
    "true_divide": "__rtruediv__",
    "floor_divide": "__rfloordiv__",
    "remainder": "__rmod__",
    "power": "__rpow__",
    "matmul": "__rmatmul__",
    "bitwise_and": "__rand__",
    "bitwise_or": "__ror__",
    "bitwise_xor": "__rxor__",
    "left_shift": "__rlshift__",
    "right_shift": "__rrshift__",
    "equal": "__eq__",
    "not_equal": "__ne__",
    "less": "__gt__",
    "less_equal": "__ge__",
    "greater": "__lt__",
    "greater_equal": "__le__",
}

# Functions that look at arrays, convert them or write them out: they get `x.numpy()`.
ON_ARRAYS = {
    "array2string", "array_equal", "array_equiv", "array_repr", "array_str", "atleast_1d",
    "atleast_2d", "atleast_3d", "can_cast", "common_type", "copyto", "iscomplex", "iscomplexobj",
    "isreal", "isrealobj", "may_share_memory", "min_scalar_type", "result_type", "save",
    "savetxt", "savez", "savez_compressed", "shares_memory",
}  # fmt: skip

# Arguments of NumPy's that have another name, and mean the same.
ARGUMENTS = {"ddof": "correction"}


def _ours(name: str, space: str = "") -> Any:
    """Our function of a name, if the op table has one."""
    home = getattr(_core, space, None) if space else _core
    found = getattr(home, name, None)
    is_op = isinstance(found, BuiltinFunctionType) and name in getattr(home, "__all__", ())
    return found if is_op else None


def _refusal(called: str, name: str, is_ours: bool) -> TypeError:
    remedy = f"wg.{name}" if is_ours else _words.words_of("").get(name, "a function of wengert")
    return TypeError(f"{called}: got a tensor, takes arrays: use {remedy}, or hand it x.numpy()")


def ufunc(self: Tensor, function: Any, method: str, *inputs: Any, **options: Any) -> Any:
    """What NumPy calls for its elementwise functions."""
    name = function.__name__
    ours = _ours(name)
    if method == "__call__":
        if name in REFLECTED and not isinstance(inputs[0], Tensor):
            # NumPy hands `@=` its axes besides.
            out = options.get("out", ())
            if not options:
                return getattr(self, REFLECTED[name])(inputs[0])
            if options.keys() <= {"out", "axes"} and len(out) == 1 and out[0] is inputs[0]:
                return function(inputs[0], self.numpy(), **options)
        elif ours is not None and not options:
            return ours(*inputs)
    called = f"numpy.{name}" if method == "__call__" else f"numpy.{name}.{method}"
    if options and ours is not None:
        called += f" with {', '.join(f'{option}=' for option in options)}"
    raise _refusal(called, name, ours is not None)


def function(f: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What NumPy calls for its other functions."""
    name = f.__name__
    space = f.__module__.removeprefix("numpy").lstrip(".") if f.__module__ else ""
    if name in ("shape", "ndim", "size") and not space:
        return _asked(name, *args, **kwargs)
    # Plotting libraries broadcast tensors together with what is no number (labels, None).
    mixed = name == "broadcast_arrays" and not all(_is_numeric(x) for x in args)
    if name in ON_ARRAYS or mixed:
        return f(*_arrays(args), **{key: _arrays(value) for key, value in kwargs.items()})
    ours = _ours(name, space)
    dotted = f"{space}.{name}" if space else name
    if ours is None:
        raise _refusal(f"numpy.{dotted}", name, False)
    return ours(*args, **{ARGUMENTS.get(key, key): value for key, value in kwargs.items()})


def _asked(name: str, a: Tensor, axis: int | None = None) -> Any:
    if axis is not None:
        return a.shape[axis]
    return {"shape": a.shape, "ndim": a.ndim, "size": a.size}[name]


def _is_numeric(value: Any) -> bool:
    kind = getattr(getattr(value, "dtype", None), "kind", "")
    return isinstance(value, (Tensor, int, float)) or kind in ("b", "i", "u", "f")


def _arrays(value: Any) -> Any:
    """Arguments with arrays in the place of tensors."""
    if isinstance(value, Tensor):
        return value.numpy()
    if isinstance(value, (list, tuple)):
        return type(value)(_arrays(item) for item in value)
    return value
