"""The methods of `Tensor` that need not be fast: text, NumPy, DLPack, pickle, copies, hooks.

Importing this module attaches them to the type, which the core makes.
"""

from __future__ import annotations

import sys
from _weakref import ref  # what `weakref` re-exports, without its cost at import

from wengert import _core, _text, _words
from wengert._core import Device, DType, DTypeError, GradientError, Tensor

# Importing `typing` would take a third of the time that importing the package takes.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    import numpy as np


def _method(f: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a function a method of `Tensor`."""
    f.__qualname__ = f"Tensor.{f.__name__}"
    setattr(Tensor, f.__name__, f)
    return f


# --- text


@_method
def __repr__(self: Tensor) -> str:
    name = "tensor" if type(self) is Tensor else type(self).__name__
    traced = _core._traced_text(self)
    if traced is not None:
        return f"{name}({traced})"
    return _text.describe(self, name)


@_method
def __str__(self: Tensor) -> str:
    """A scalar prints as its number."""
    if _core._traced_text(self) is not None:
        return repr(self)
    return _text.describe(self, "tensor") if self.ndim else str(_text.shortest(self))


@_method
def __format__(self: Tensor, spec: str) -> str:
    """A scalar honours the format of its number; others take none."""
    if not spec:
        return str(self)
    if self.ndim:
        raise TypeError(f"format: a tensor of shape {self.shape} takes no format, got {spec!r}")
    return format(self.item(), spec)


# --- sequences


@_method
def __iter__(self: Tensor) -> Iterator[Tensor]:
    return map(self.__getitem__, range(len(self)))


@_method
def __contains__(self: Tensor, value: Any) -> bool:
    """Whether an element equals the value; what no tensor compares with is in none."""
    equal = self == value
    return isinstance(equal, Tensor) and bool(equal.any())


@_method
def __round__(self: Tensor, ndigits: int | None = None) -> Any:
    """A scalar rounds as its number does."""
    return round(self.item(), ndigits)


@_method
def numel(self: Tensor) -> int:
    """How many elements there are: PyTorch's word for `size`."""
    return self.size


@_method
def dim(self: Tensor) -> int:
    """How many axes there are: PyTorch's word for `ndim`."""
    return self.ndim


@_method
def requires_grad_(self: Tensor, requires_grad: bool = True) -> Tensor:
    """Set `requires_grad`, as an assignment does, and return the tensor.

    >>> wg.ones(2).requires_grad_().requires_grad
    True
    """
    self.requires_grad = requires_grad
    return self


# --- NumPy

Tensor.__array_priority__ = 1000


@_method
def __array_ufunc__(self: Tensor, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
    """What NumPy calls: `np.exp(x)` is `wg.exp(x)`. An operator between an array and a tensor is
    the tensor's; one in place (`array += x`) updates the array, as `array[...] = x` does.
    """
    from wengert import _numpy

    return _numpy.ufunc(self, ufunc, method, *inputs, **options)


@_method
def __array_function__(
    self: Tensor, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """What NumPy calls: `np.mean(x)` is `wg.mean(x)`. `TypeError` for what only NumPy has."""
    from wengert import _numpy

    return _numpy.function(func, args, kwargs)


@_method
def __arrow_array__(self: Tensor, type: Any = None) -> Any:
    """What `pyarrow.array` calls, for a vector."""
    from importlib import import_module

    pyarrow: Any = import_module("pyarrow")

    if self.ndim != 1:
        raise _core.ShapeError(f"pyarrow.array: takes a vector, got shape {tuple(self.shape)}")
    return pyarrow.array(self.numpy(), type=type)


@_method
def numpy(self: Tensor) -> np.ndarray:
    """The value as a read-only NumPy array, without a copy.

    NumPy has no bfloat16: `DTypeError` (a `TypeError`); cast first. A tensor on another device than
    the CPU is waited for and copied.
    """
    import numpy as np

    self = _core._transfer(self.detach(), "cpu")
    if self.dtype == _core.bfloat16:
        raise DTypeError("numpy: NumPy has no bfloat16; cast first, e.g. x.astype(float32)")
    return np.asarray(memoryview(self))


@_method
def __array__(self: Tensor, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
    """What `numpy.asarray` calls."""
    if copy is False and self.device.type != "cpu":
        raise ValueError(f"__array__: copy=False, but the elements lie on {self.device}")
    array = self.numpy()
    if dtype is not None and array.dtype != dtype:
        if copy is False:
            raise ValueError(f"__array__: copy=False, but {array.dtype} must be cast to {dtype}")
        return array.astype(dtype)
    return array.copy() if copy else array


# --- other libraries

_API_VERSIONS = ("2021.12", "2022.12", "2023.12", "2024.12")
_CPU = (1, 0)  # DLPack's number of the CPU


@_method
def __array_namespace__(self: Tensor, *, api_version: str | None = None) -> Any:
    """The module whose functions take this array: the Array API's entry."""
    if api_version is not None and api_version not in _API_VERSIONS:
        known = ", ".join(_API_VERSIONS)
        raise ValueError(f"__array_namespace__: got version {api_version!r}, known are {known}")
    return sys.modules["wengert"]


@_method
def __dlpack_device__(self: Tensor) -> tuple[int, int]:
    """DLPack's numbers of the device. Only tensors on the CPU have any."""
    _core._on_host(self, "__dlpack__")
    return _CPU


@_method
def __dlpack__(
    self: Tensor,
    *,
    stream: Any = None,
    max_version: tuple[int, int] | None = None,
    dl_device: tuple[int, int] | None = None,
    copy: bool | None = None,
) -> Any:
    """A DLPack capsule with a copy of the data, which the consumer may write to.

    With `copy=False` a consumer of DLPack 1 shares the memory, marked read-only. Consumers that
    ignore the mark must not write: the values of other tensors, and what backward saved, may lie
    there.
    """
    if stream is not None:
        raise ValueError(f"__dlpack__: the CPU has no streams, got stream={stream!r}")
    if dl_device is not None and tuple(dl_device) != _CPU:
        raise BufferError(f"__dlpack__: a tensor on the CPU, asked for device {tuple(dl_device)}")
    return _core._to_dlpack(self, max_version, copy)


# --- devices and dtypes


@_method
def to(
    self: Tensor, device: str | Device | DType | None = None, dtype: DType | None = None
) -> Tensor:
    """The value on a device and in a dtype, each the tensor's own if not given.

    The only argument may also be a dtype: `x.to(wengert.float64)`. On another device it is a copy,
    whose gradient is copied back. A captured function computes on one device: there only the
    tensor's own is possible (`DeviceError`).

    >>> x = wg.ones(2, requires_grad=True)
    >>> (x.to("reference") * 3.0).sum().backward()
    >>> x.grad.device, x.grad.tolist()
    (device("cpu"), [3.0, 3.0])
    """
    place: Any = device
    if isinstance(device, DType):
        place, dtype = dtype, device
    if place is not None:
        self = _core._transfer(self, place)
    return self if dtype is None else self.astype(dtype)


@_method
def to_device(self: Tensor, device: str | Device, /, *, stream: Any = None) -> Tensor:
    """The value on a device."""
    if stream is not None:
        raise ValueError(f"to_device: no device here has streams, got stream={stream!r}")
    return _core._transfer(self, device)


@_method
def cpu(self: Tensor) -> Tensor:
    """The value on the CPU."""
    return _core._transfer(self, "cpu")


# --- pickle and copies


def _rebuild(
    kind: type,
    dtype: DType,
    shape: tuple[int, ...],
    data: bytes,
    requires_grad: bool,
    device: str = "cpu",
) -> Tensor:
    """What pickle calls."""
    tensor = _core._transfer(_core._from_bytes(dtype, shape, data), device)
    if kind is not Tensor:
        tensor = Tensor.__new__(kind, tensor)
    if requires_grad:
        tensor.requires_grad = True
    return tensor


@_method
def __reduce_ex__(self: Tensor, protocol: Any) -> tuple[Any, ...]:
    """Value, dtype, device and `requires_grad` are kept; history and `.grad` are not."""
    data, device = _core._to_bytes(self), str(self.device)
    parts = (type(self), self.dtype, self.shape, data, self.requires_grad, device)
    return _rebuild, parts, getattr(self, "__dict__", None) or None


@_method
def __copy__(self: Tensor) -> Tensor:
    """Another handle on the value, with the same history."""
    twin = Tensor.__new__(type(self), self)
    if hasattr(self, "__dict__"):
        twin.__dict__.update(self.__dict__)
    return twin


@_method
def __deepcopy__(self: Tensor, memo: dict[int, Any]) -> Tensor:
    """A handle of its own, with `requires_grad` and `.grad`. Only leaves have one."""
    from copy import deepcopy

    if not self.is_leaf:
        name = _core._grad_name(self)
        raise GradientError(
            f"deepcopy: only a leaf can be copied with its history: got the result of {name}; "
            "use detach()"
        )
    twin = memo[id(self)] = Tensor.__new__(type(self), self.detach())
    if self.requires_grad:
        twin.requires_grad = True
        if self.grad is not None:
            twin.grad = self.grad.detach()
    if hasattr(self, "__dict__"):
        twin.__dict__.update(deepcopy(self.__dict__, memo))
    return twin


# --- hooks


class HookHandle:
    """What registering a hook returns: `remove()` takes the hook off, and so does the end of a
    `with` block."""

    __slots__ = ("_key", "_tensor")

    def __init__(self, tensor: Tensor, key: int) -> None:
        # Weakly: a hook may well refer to its own handle.
        self._tensor, self._key = ref(tensor), key

    def remove(self) -> None:
        """Take the hook off; a second call does nothing."""
        tensor = self._tensor()
        if tensor is not None:
            _core._remove_hook(tensor, self._key)

    def __enter__(self) -> HookHandle:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.remove()


@_method
def register_hook(self: Tensor, hook: Callable[[Tensor], Tensor | None]) -> HookHandle:
    """Call `hook(g)` with this tensor's gradient in every backward pass that reaches it.

    What it returns, if anything, replaces the gradient from there on; it has the gradient's shape
    and dtype. `GradientError` if the tensor requires no gradient.

    >>> x = wg.tensor([1.0, 2.0], requires_grad=True)
    >>> handle = x.register_hook(lambda g: 10.0 * g)
    >>> x.sum().backward()
    >>> x.grad.tolist()
    [10.0, 10.0]
    """
    return HookHandle(self, _core._add_hook(self, hook))


@_method
def retain_grad(self: Tensor) -> None:
    """Keep the gradient of a tensor that is no leaf: backward passes add it to `.grad`, as they do
    for leaves. A second call, and one of a leaf, does nothing.

    `GradientError` if the tensor requires no gradient.

    >>> x = wg.tensor([1.0, 2.0], requires_grad=True)
    >>> y = x * 2.0
    >>> y.retain_grad()
    >>> (y * y).sum().backward()
    >>> y.grad.tolist()
    [4.0, 8.0]
    """
    if self.is_leaf and self.requires_grad:
        return
    if id(self) in _kept:
        return
    if not _kept:
        _core._keep_gradients(_kept_gradient)
    number = id(self)
    tensor = ref(self, lambda _: _kept.pop(number, None))
    _kept[number] = [tensor, None]

    def keep(g: Tensor) -> None:
        entry = _kept.get(number)
        if entry is not None:
            entry[1] = g if entry[1] is None else entry[1] + g

    _core._add_hook(self, keep)


# The gradients of tensors that are no leaves, where they are wanted: by `id`, with a reference that
# takes the entry away when the tensor goes.
_kept: dict[int, list[Any]] = {}


def _kept_gradient(x: Tensor, *new: None) -> Any:
    """The gradient of a tensor that is no leaf, or None; it is set where one is given."""
    entry = _kept.get(id(x))
    if entry is not None and new:
        entry[1] = new[0]
    return None if entry is None else entry[1]


class GradientFunction:
    """What made a tensor, as far as its gradient is concerned: the name of the op or `Function`,
    and the line that called it (None where it was not noted)."""

    __slots__ = ("_name", "site")

    def __init__(self, name: str, site: str | None) -> None:
        self._name, self.site = name, site

    def name(self) -> str:
        """The name of the op."""
        return self._name

    def __repr__(self) -> str:
        return f"<{self._name}{f' at {self.site}' if self.site else ''}>"


def _grad_fn(self: Tensor) -> GradientFunction | None:
    """What made the tensor, which backward goes through; None for a leaf."""
    name = _core._grad_name(self)
    return None if name is None else GradientFunction(name, _core._site(self))


Tensor.grad_fn = property(_grad_fn)  # type: ignore[attr-defined, method-assign, assignment]


# --- words that mean nothing here


def _is_foreign(kind: type, name: str) -> bool:
    found = next((vars(base)[name] for base in kind.__mro__ if name in vars(base)), None)
    return isinstance(found, _words.Foreign)


def _dir(self: Tensor) -> list[str]:
    return [name for name in object.__dir__(self) if not _is_foreign(type(self), name)]


# A `__dir__` of this module would be asked for the module's own names.
_dir.__name__ = "__dir__"
_method(_dir)

for _word in _words.words_of("Tensor"):
    setattr(Tensor, _word, _words.Foreign(_word))


# --- what the core asks for


def wrap_function(function: Callable[..., Any], body: Callable[..., Any]) -> Callable[..., Any]:
    """`body` as a function with the name, signature and docstring of `function`."""
    from functools import wraps

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return body(*args, **kwargs)

    return call
