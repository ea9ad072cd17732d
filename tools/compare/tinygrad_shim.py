"""tinygrad's `Tensor` over the ops of this package, as far as its `test_ops.py` uses it: names and
arguments are tinygrad's, each method is one op of ours or a line of them."""

import contextlib
import functools
import types

import numpy as np

import wengert as wg
from wengert import nn

from tinygrad_ops import INT, METHODS, divided, dtype_of, dtypes, expanded


def raw(x):
    """The value of ours in a tensor, or in each of a sequence."""
    if isinstance(x, Tensor):
        return x.x
    return type(x)(raw(v) for v in x) if isinstance(x, list | tuple) else x


def cooked(y):
    if isinstance(y, wg.Tensor):
        return Tensor(y)
    return tuple(cooked(v) for v in y) if isinstance(y, list | tuple) else y


def shape_of(sizes):
    """Sizes one by one or as sequences, of which none is negative."""
    shape = ()
    for size in sizes:
        shape += tuple(size) if isinstance(size, list | tuple) else (size,)
    if any(n < 0 for n in shape if isinstance(n, int)):
        raise ValueError(f"negative size in {shape}")
    return shape


class Refused(NotImplementedError, ValueError, IndexError, TypeError, AssertionError):
    """An error of ours, as any of those that PyTorch or tinygrad raise in its place."""


def refusing(function):
    @functools.wraps(function)
    def called(*args, **kwargs):
        try:
            return function(*args, **kwargs)
        except (wg.Error, ValueError, IndexError, TypeError, NotImplementedError) as error:
            raise Refused(f"{type(error).__name__}: {error}") from error

    return called


def by(function):
    """A method from an op of ours."""

    @refusing
    def method(self, *args, **kwargs):
        kwargs = {k: raw(v) for k, v in kwargs.items()}
        return cooked(function(raw(self), *map(raw, args), **kwargs))

    return method


def activation(function, *names):
    def method(self, *args, **kwargs):
        for name, value in zip(names, args, strict=False):
            kwargs[name] = value
        kwargs = {k: float(v) if isinstance(v, int) else v for k, v in kwargs.items()}
        return cooked(function(self.x, **kwargs))

    return method


def operator(function, swapped=False):
    @refusing
    def method(self, other):
        other = raw(other)
        if isinstance(other, list | np.ndarray):
            other = wg.asarray(other)
        return cooked(function(other, self.x) if swapped else function(self.x, other))

    return method


class Tensor:
    """A value of ours with the methods of tinygrad's tensor."""

    __hash__ = object.__hash__

    def __init__(self, data, dtype=None, device=None, requires_grad=None):
        dtype = dtype_of(dtype)
        if isinstance(data, Tensor):
            data = data.x
        if not isinstance(data, wg.Tensor):
            if dtype is None and not isinstance(data, np.ndarray | np.generic):
                kind = np.asarray(data).dtype.kind
                dtype = INT if kind in "iu" else None
            data = wg.asarray(data, dtype=dtype)
            if data.dtype == wg.float64 and not isinstance(data, np.ndarray) and dtype is None:
                data = data.astype(wg.float32)
            if wg.isdtype(data.dtype, "real floating"):
                data = wg.asarray(data.numpy() if data.dtype != wg.bfloat16 else data)
                data.requires_grad = True
        elif dtype is not None:
            data = data.astype(dtype)
        self.x = data

    shape = property(lambda self: tuple(self.x.shape))
    ndim = property(lambda self: self.x.ndim)
    dtype = property(lambda self: self.x.dtype)
    device = property(lambda self: "CPU")
    T = property(lambda self: self.transpose())
    grad = property(lambda self: None if self.x.grad is None else Tensor(self.x.grad))

    def numpy(self):
        return self.x.detach().numpy()

    def realize(self, *others):
        return self

    def gradient(self, *targets):
        if not self.x.requires_grad:
            return [Tensor(wg.zeros_like(t.x)) for t in targets]
        found = wg.gradients(self.x, [t.x for t in targets], allow_unused=True)
        return [Tensor(wg.zeros_like(t.x) if g is None else g)
                for t, g in zip(targets, found, strict=True)]  # fmt: skip

    def backward(self):
        self.x.backward()
        return self

    def __len__(self):
        return self.x.shape[0]

    def __iter__(self):
        return iter([Tensor(v) for v in self.x])

    def __bool__(self):
        raise TypeError("__bool__ on Tensor is not defined")

    @refusing
    def __getitem__(self, index):
        return Tensor(self.x[indexed(index)])

    def __setitem__(self, index, value):
        y = self.x + 0
        y[indexed(index)] = raw(value)
        self.x = y


def indexed(index):
    if isinstance(index, tuple):
        return tuple(indexed(i) for i in index)
    if isinstance(index, list):
        return wg.asarray(np.asarray([np.asarray(raw(i).numpy() if isinstance(i, Tensor) else i)
                                      for i in index]))  # fmt: skip
    return raw(index)


def made(function):
    def called(*shape, dtype=None, device=None, **options):
        dtype = dtype_of(dtype)
        return Tensor(leaf(function(shape_of(shape), dtype=dtype or wg.float32, **options)))

    return staticmethod(called)


def leaf(x):
    if wg.isdtype(x.dtype, "real floating"):
        x = x.detach()
        x.requires_grad = True
    return x


def arange(start, stop=None, step=1, dtype=None):
    dtype = dtype_of(dtype)
    if stop is None:
        start, stop = 0, start
    if dtype is None and all(isinstance(v, int) for v in (start, stop, step)):
        ends = max(abs(start), abs(stop))
        dtype = INT if ends < 2**31 else wg.int64
    try:
        return Tensor(wg.arange(start, stop, step, dtype=dtype))
    except wg.Error as error:
        raise OverflowError(str(error)) from error


def linspace(start, stop, steps, dtype=None):
    dtype = dtype_of(dtype)
    if dtype == wg.bool:
        raise ValueError("linspace of bool")
    if dtype is not None and not wg.isdtype(dtype, "real floating"):
        return Tensor(wg.trunc(wg.linspace(start, stop, steps, dtype=wg.float64)).astype(dtype))
    return Tensor(wg.linspace(start, stop, steps, dtype=dtype))


def uniform(shape, dtype, low=0.0, high=1.0):
    return wg.random.uniform(shape, low=low, high=high, dtype=dtype)


def fans(shape, dtype, a=0.01):
    if len(shape) == 0 or any(n < 0 for n in shape):
        raise ValueError(shape)
    return wg.random.uniform(shape, dtype=dtype)


ACTIVATIONS = {
    "relu6": (nn.relu6,), "hardswish": (nn.hardswish,), "mish": (nn.mish,),
    "hardtanh": (nn.hardtanh, "min_val", "max_val"), "gelu": (nn.gelu, "approximate"),
    "swish": (nn.silu,), "silu": (nn.silu,), "elu": (nn.elu, "alpha"), "celu": (nn.celu, "alpha"),
    "softplus": (nn.softplus, "beta"), "logsigmoid": (nn.log_sigmoid,),
    "leaky_relu": (nn.leaky_relu, "negative_slope"), "selu": (nn.selu,),
    "hardsigmoid": (nn.hardsigmoid,),
}  # fmt: skip


def einsum(text, *operands, dtype=None):
    operands = operands[0] if isinstance(operands[0], list | tuple) else operands
    return Tensor(wg.einsum(text, *raw(operands)))


def _fill():
    for name, function in METHODS.items():
        setattr(Tensor, name, by(function))
    for name, (function, *names) in ACTIVATIONS.items():
        setattr(Tensor, name, activation(function, *names))
    Tensor.quick_gelu = lambda self: Tensor(self.x * nn.sigmoid(self.x * 1.702))
    Tensor.gelu = lambda self, approximate="tanh": Tensor(nn.gelu(self.x, approximate=approximate))
    signs = {"add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b,
             "truediv": divided, "floordiv": lambda a, b: a // b, "mod": lambda a, b: a % b,
             "pow": lambda a, b: a**b, "matmul": lambda a, b: a @ b, "and": lambda a, b: a & b,
             "or": lambda a, b: a | b, "xor": lambda a, b: a ^ b}  # fmt: skip
    for name, function in signs.items():
        setattr(Tensor, f"__{name}__", operator(function))
        setattr(Tensor, f"__r{name}__", operator(function, swapped=True))
    for name in ("lt", "le", "gt", "ge", "eq", "ne"):
        setattr(Tensor, f"__{name}__", operator(getattr(__import__("operator"), name)))
    Tensor.__lshift__, Tensor.__rshift__ = Tensor.lshift, Tensor.rshift
    Tensor.__neg__ = Tensor.neg
    Tensor.__invert__ = Tensor.bitwise_not
    shapes = {
        "reshape": lambda x, s: x.reshape(s), "view": lambda x, s: x.reshape(s),
        "expand": expanded, "permute": lambda x, s: wg.permute_dims(x, s),
        "flip": lambda x, s: wg.flip(x, s), "repeat": lambda x, s: wg.tile(x, s),
    }  # fmt: skip
    for name, function in shapes.items():
        setattr(
            Tensor,
            name,
            refusing(
                lambda self, *sizes, f=function, **k: Tensor(f(self.x, sizes_of(self, sizes, k)))
            ),
        )
    Tensor.stack = lambda self, *others, dim=0: Tensor(
        wg.stack(raw(list(self) if not others and not isinstance(self, Tensor) else
                     [self, *others]), axis=dim))  # fmt: skip
    Tensor.cat = lambda self, *others, dim=0: Tensor(wg.concat(raw([self, *others]), axis=dim))
    Tensor.einsum = staticmethod(refusing(einsum))
    Tensor.zeros, Tensor.ones, Tensor.empty = made(wg.zeros), made(wg.ones), made(wg.empty)
    Tensor.full = staticmethod(
        lambda shape, value, dtype=None: Tensor(
            wg.full(
                shape_of([shape]),
                value,
                dtype=dtype_of(dtype)
                or (INT if isinstance(value, int) and not isinstance(value, bool) else None),
            )
        )
    )
    Tensor.rand, Tensor.randn = made(uniform), made(wg.random.normal)
    Tensor.uniform, Tensor.normal = made(uniform), made(wg.random.normal)
    Tensor.scaled_uniform = Tensor.glorot_uniform = made(fans)
    Tensor.kaiming_uniform = Tensor.kaiming_normal = made(fans)
    Tensor.randint = staticmethod(
        lambda *shape, low=0, high=10, dtype=None: Tensor(
            wg.random.integers(low, high, shape_of(shape)).astype(INT)
        )
    )
    Tensor.eye = staticmethod(
        lambda n, m=None: Tensor(wg.eye(*shape_of([n] if m is None else [n, m])))
    )
    Tensor.arange, Tensor.linspace = staticmethod(arange), staticmethod(linspace)
    Tensor.manual_seed = staticmethod(wg.random.seed)
    Tensor.numel = lambda self: self.x.size


def sizes_of(x, sizes, named):
    """Sizes as one sequence or one by one; `None` is the size of `x`."""
    sizes = sizes or tuple(named.values())
    flat = sizes[0] if sizes and isinstance(sizes[0], list | tuple) else sizes
    return tuple(x.shape[i] if n is None else n for i, n in enumerate(flat))


def module(name, **names):
    found = types.ModuleType(name)
    vars(found).update(names)
    return found


class _Device:
    """There is one device, and it supports every dtype."""

    DEFAULT = "CPU"

    def __getitem__(self, _):
        every = [v for v in vars(dtypes).values() if isinstance(v, wg.DType)]
        renderer = types.SimpleNamespace(supported_dtypes=lambda: every)
        return types.SimpleNamespace(renderer=renderer, device="CPU")


def modules():
    """What `test_ops.py` imports of tinygrad."""
    _fill()
    helpers = module(
        "tinygrad.helpers", getenv=lambda _, default=0: default, DEBUG=0, IMAGE=0,
        DEV=types.SimpleNamespace(interface="", renderer="", device="CPU"),
        Context=lambda **_: contextlib.nullcontext())  # fmt: skip
    names = {
        "tinygrad": module("tinygrad", Tensor=Tensor, Device=_Device(), dtypes=dtypes,
                           helpers=helpers),
        "tinygrad.helpers": helpers,
        "tinygrad.tensor": module(
            "tinygrad.tensor", _to_np_dtype=lambda t: np.dtype(str(t).split(".")[-1])),
        "tinygrad.renderer": module("tinygrad.renderer"),
        "tinygrad.renderer.nir": module("tinygrad.renderer.nir", NIRRenderer=type("NIR", (), {})),
    }  # fmt: skip
    return names


__all__ = ["Tensor", "dtypes", "modules"]
