"""What the derived tests share: the op table, sample arguments, layouts, tolerances.

A *sample* is the argument list of one call as Python source, such as `x(3, 4), axis=1`. Its free
names make operands: `x` numbers of the dtype under test, `f` floats, `i` indices, `b` truth values.
The same text is evaluated with tensors and with NumPy arrays, so one sample serves the value test,
the gradient test and the layouts.
"""

import gc
import os
import re
import time
import zlib

import numpy as np
import pytest

import wengert as wg
from wengert import _core

TABLE = sorted(_core._op_table(), key=lambda op: (op["namespace"], op["name"]))
INTS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
FLOATS = ["float16", "bfloat16", "float32", "float64"]
DTYPES = ["bool", *INTS, *FLOATS]
# Bits of the significand after the first, and the smallest normal exponent.
PRECISION = {
    "float16": (10, -14),
    "bfloat16": (7, -126),
    "float32": (23, -126),
    "float64": (52, -1022),
}
CLASSES = {"bool": ["bool"], "int": INTS, "float": FLOATS}
LAYOUTS = ["contiguous", "strided", "negative", "transposed", "zero-stride"]


def label(op):
    """The name of an op as pytest shows it."""
    return f"{op['namespace']}.{op['name']}".lstrip(".")


def function(op):
    """The Python function of an op."""
    owner = wg
    for part in filter(None, op["namespace"].split(".")):
        owner = getattr(owner, part)
    return getattr(owner, op["name"])


def dtypes_of(op, sample):
    """The dtypes that an op takes where the sample has its first `x`."""
    kinds = re.findall(r"\b([xfib])\(", sample)
    if "x" not in kinds:
        return ["int64"]
    if not op["classes"]:
        return DTYPES                   # a sequence of tensors takes whatever promotes
    classes = op["classes"][min(kinds.index("x"), len(op["classes"]) - 1)]
    return [dtype for name in classes.split("|") for dtype in CLASSES[name]]


def domain_of(op):
    """Bounds of sample values by the position of the operand."""
    return {i: tuple(bounds) for i, bounds in enumerate(op["domain"] or []) if bounds}


def differentiable(op):
    """Whether a gradient is declared; that of a composite follows from its body."""
    declared = op["differentiable"]
    return any(declared) if declared is not None else any("float" in c for c in op["classes"])


def generator(*key):
    """Random numbers that depend on the key alone."""
    return np.random.default_rng(zlib.crc32(repr(key).encode()))


def array(*shape, seed=0, dtype="float32"):
    """A tensor of normal numbers that depend on the shape and the seed alone."""
    return wg.asarray(generator("array", seed).standard_normal(shape).astype(dtype))


def training_step(optimizer, loss_of):
    """A step of training: an update after the gradients of `loss_of(*args)`, which is returned."""

    def step(*args):
        optimizer.zero_grad()
        loss = loss_of(*args)
        loss.backward()
        optimizer.step()
        return loss

    return step


def same(a, b):
    """Asserts that two tensors are equal to the bit."""
    assert (a.shape, a.dtype) == (b.shape, b.dtype), f"{a}\n{b}"
    assert a.detach().numpy().tobytes() == b.detach().numpy().tobytes(), f"{a}\n{b}"


def storage(dtype):
    """The NumPy dtype that holds the values of a dtype exactly."""
    return np.dtype("float32" if dtype == "bfloat16" else dtype)


def rounded(a, dtype):
    """Values rounded to a float dtype, kept in float64."""
    if dtype != "bfloat16":
        with np.errstate(all="ignore"):
            return a.astype(dtype).astype("float64")
    return to_numpy(wg.asarray(np.asarray(a, "float64")).astype(wg.bfloat16)).astype("float64")


def draw(rng, shape, dtype, low=-2.0, high=2.0):
    """An array of a dtype's values within bounds, in its storage dtype."""
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype in FLOATS:
        return rounded(rng.uniform(low, high, shape), dtype).astype(storage(dtype))
    low, high = np.ceil(low), np.floor(high)
    if dtype.startswith("u"):
        low, high = (0, high - low) if low < 0 else (low, high)
    return rng.integers(int(low), int(high) + 1, shape).astype(dtype)


def to_numpy(t):
    """The values of a tensor in the storage dtype of its dtype."""
    return (t.astype(wg.float32) if t.dtype == wg.bfloat16 else t).numpy()


def to_tensor(a, dtype, layout="contiguous"):
    """A tensor of the array's values that lies in memory as asked."""
    dtype = getattr(wg, dtype)
    if layout == "contiguous" or a.ndim == 0 or a.size == 0:
        return wg.asarray(a).astype(dtype)
    if layout == "strided":
        spread = np.zeros([2 * n + 1 for n in a.shape], a.dtype)
        window = tuple(slice(1, None, 2) for _ in a.shape)
        spread[window] = a
        return wg.asarray(spread).astype(dtype)[window]
    if layout == "negative":
        every = tuple(slice(None, None, -1) for _ in a.shape)
        return wg.asarray(a[every].copy()).astype(dtype)[every]
    if layout == "transposed":
        order = list(range(a.ndim))[::-1]
        return wg.permute_dims(wg.asarray(a.transpose().copy()).astype(dtype), order)
    if layout == "zero-stride":
        # Of equal rows only one is stored; the caller takes the values from `flattened`.
        return wg.broadcast_to(wg.asarray(a[:1].copy()).astype(dtype), a.shape)
    raise ValueError(layout)


def flattened(a, layout):
    """The values that `to_tensor` gives: those of the first row, for zero strides."""
    same = layout == "zero-stride" and a.ndim and a.size
    return np.broadcast_to(a[:1], a.shape).copy() if same else a


class Operands:
    """The free names of a sample: draws arrays once, then hands them out again in order."""

    def __init__(self, key, dtype="float64", domain=None):
        self.rng = generator(*key)
        self.dtype, self.domain = dtype, domain or {}
        self.drawn = []                     # (kind, array)

    def evaluate(self, sample, wrap):
        """The arguments of a sample; `wrap(kind, array)` makes the operands."""
        count = 0

        def operand(kind, make):
            nonlocal count
            if count == len(self.drawn):
                self.drawn.append((kind, make()))
            kind, array = self.drawn[count]
            count += 1
            return wrap(kind, array)

        def x(*shape, low=None, high=None):
            lo, hi = self.domain.get(count, (-2.0, 2.0))
            lo, hi = lo if low is None else low, hi if high is None else high
            return operand("x", lambda: draw(self.rng, shape, self.dtype, lo, hi))

        def f(*shape, low=-2.0, high=2.0):
            return operand("f", lambda: self.rng.uniform(low, high, shape))

        def i(*shape, n=3, low=0):
            return operand("i", lambda: self.rng.integers(low, n, shape))

        def b(*shape):
            return operand("b", lambda: self.rng.integers(0, 2, shape).astype(bool))

        def collect(*args, **kwargs):
            return args, kwargs

        names = {"x": x, "f": f, "i": i, "b": b, "wg": wg, "collect": collect}
        return eval(f"collect({sample})", names)


def ulp(values, dtype):
    """One unit in the last place of a dtype at each value."""
    bits, smallest = PRECISION[dtype]
    with np.errstate(all="ignore"):
        exponent = np.floor(np.log2(np.abs(values, dtype="float64")))
    exponent = np.maximum(np.where(np.isfinite(exponent), exponent, smallest), smallest)
    return np.exp2(exponent - bits)


def assert_near(got, want, dtype, ulps, floor=0.0, largest=0.0):
    """Equal within `ulps` units in the last place, or `floor` units at the largest value (at
    `largest`, where that is more)."""
    got, want = got.astype("float64"), rounded(np.asarray(want, "float64"), dtype)
    assert got.shape == want.shape, (got.shape, want.shape)
    finite = np.isfinite(want) & np.isfinite(got)
    np.testing.assert_array_equal(np.where(finite, 0, got), np.where(finite, 0, want))
    if not finite.any():
        return
    got, want = np.where(finite, got, 0), np.where(finite, want, 0)
    scale = ulp(max(np.abs(want).max(), largest), dtype) * floor
    allowed = np.maximum(ulps * ulp(want, dtype), scale)
    worst = np.abs(got - want) / allowed
    assert worst.max() <= 1, f"{worst.max() * ulps:.2f} ulp at {want.flat[worst.argmax()]!r}"


def live_bytes():
    """Bytes of live buffers, once threads have let go of their operands.

    A thread that got no time may still hold a buffer at the first look: compare by `<=`.
    """
    gc.collect()
    seen = None
    while (now := wg.memory_stats()["live_bytes"]) != seen:
        seen = now
        time.sleep(0.005)
    return now


class SavesResult(wg.Function):
    """exp, from its saved result."""

    @staticmethod
    def forward(cx, x):
        y = x.exp()
        cx.save(y)
        return y

    @staticmethod
    def backward(cx, g):
        return g * cx.saved[0]


def wanted_gpu():
    """Skips tests of GPUs where they are not asked for."""
    if os.environ.get("WENGERT_TEST_GPU") == "0":
        pytest.skip("WENGERT_TEST_GPU is 0")


def missing(what):
    """Skips what needs something that this machine has not; fails where nothing may be skipped."""
    if os.environ.get("WENGERT_TEST_GPU") == "1":
        pytest.fail(f"WENGERT_TEST_GPU is 1, and there is {what}")
    pytest.skip(what)
