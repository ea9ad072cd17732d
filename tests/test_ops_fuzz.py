"""Odd arguments: every function of the table either computes or raises a documented exception.

A panic caught at the border arrives as `wengert.InternalError`, which no case here may raise.
"""

import numpy as np
import pytest
from test_ops_values import samples

import wengert as wg

from support import TABLE, Operands, domain_of, function, generator, label

DOCUMENTED = (wg.Error, TypeError, ValueError, IndexError, OverflowError, MemoryError)
CALLS = 150
OPS = [op for op in TABLE if op["function"]]


def odd_values():
    """What a user might pass by mistake, or to see what happens."""
    return [
        None, True, 0, 1, -1, 2, 7, -7, 2**31, -(2**63), 2**63, 10**30, 0.5, -0.0, float("nan"),
        float("inf"), 1e300, 1j, "text", "", b"bytes", (), (0,), (1, 2), (-1,), (0, 0),
        (2**40, 2**40), [], [1, 2], [[1, 2], [3]], {}, {"a": 1}, object(), int, slice(None),
        Ellipsis, range(3), wg.float32, wg.int8, wg.bool, "float32", "cpu", "tpu",
        np.ones((2, 3)), np.float64(1.5), np.int8(3), np.array("text"), np.zeros((0, 2)),
        np.array([1, 2], dtype="datetime64[s]"), np.array([1j]), np.zeros((1,) * 20),
        wg.ones(()), wg.ones((2, 3)), wg.zeros((0, 3)), wg.ones((3, 0, 2)), wg.ones((1, 2, 3, 4)),
        wg.asarray([1, 2, 300]), wg.asarray([-1, 5]), wg.asarray([True, False]),
        wg.ones(3, dtype=wg.float16), wg.ones((2, 2), dtype=wg.uint64),
        wg.full((2, 3), float("nan")),
        wg.ones((2, 3), requires_grad=True), wg.broadcast_to(wg.ones(1), (4, 5)),
        [wg.ones(2), wg.ones(3)], (wg.ones((2, 3)), 1.0),
    ]


@pytest.fixture(autouse=True)
def bounded_memory():
    """Keeps huge requests from reaching the machine."""
    wg.set_memory_limit(1 << 30)
    yield
    wg.set_memory_limit(None)


def attempt(call, args, kwargs):
    try:
        result = call(*args, **kwargs)
    except DOCUMENTED as error:
        assert getattr(error, "code", "") != "internal", (args, kwargs, error)
        assert str(error).strip(), f"an exception without a word: {args}, {kwargs}"
        return
    for t in result if isinstance(result, tuple | list) else [result]:
        if isinstance(t, wg.Tensor):
            repr(t)


@pytest.mark.parametrize("op", OPS, ids=label)
def test_odd_arguments(op):
    rng = generator("fuzz", label(op))
    pool = odd_values()
    names = [p["name"] for p in op["params"]]
    call = function(op)

    def pick():
        return pool[rng.integers(len(pool))]

    for value in pool:
        attempt(call, (value,), {})
    for _ in range(CALLS):
        count = int(rng.integers(0, len(names) + 2))
        args = [pick() for _ in range(count)]
        kwargs = {name: pick() for name in names[count:] if rng.random() < 0.4}
        if rng.random() < 0.05:
            kwargs["nonsense"] = 1
        attempt(call, args, kwargs)


@pytest.mark.parametrize("op", OPS, ids=label)
def test_one_odd_argument_among_good_ones(op):
    """Reaches further into an op than arguments that are all odd."""
    if op["kind"] == "create" or not op["classes"]:
        return
    sample = samples(op)[0]
    operands = Operands(("fuzz", label(op)), "float32", domain_of(op))
    args, kwargs = operands.evaluate(sample, lambda kind, a: wg.asarray(a))
    call = function(op)
    names = [p["name"] for p in op["params"]]
    for value in odd_values():
        for place in range(len(args)):
            attempt(call, [*args[:place], value, *args[place + 1 :]], kwargs)
        for name in names[len(args) :]:
            attempt(call, args, {**kwargs, name: value})


@pytest.mark.parametrize("name", [op["name"] for op in TABLE if op["method"]])
def test_odd_arguments_of_methods(name):
    rng = generator("fuzz method", name)
    pool = odd_values()
    tensors = [value for value in pool if isinstance(value, wg.Tensor)]
    for _ in range(CALLS // 3):
        owner = tensors[rng.integers(len(tensors))]
        args = [pool[rng.integers(len(pool))] for _ in range(rng.integers(0, 3))]
        attempt(getattr(owner, name), args, {})


OPERATORS = [
    "__add__", "__radd__", "__sub__", "__mul__", "__truediv__", "__floordiv__", "__mod__",
    "__pow__", "__matmul__", "__and__", "__or__", "__xor__", "__lshift__", "__rshift__",
    "__lt__", "__eq__", "__ne__", "__getitem__", "__iadd__", "__contains__",
]


@pytest.mark.parametrize("name", OPERATORS)
def test_odd_operands(name):
    for owner in [value for value in odd_values() if isinstance(value, wg.Tensor)]:
        for value in odd_values():
            attempt(getattr(owner, name, lambda *_: None), [value], {})


def test_odd_writes():
    for owner in [value for value in odd_values() if isinstance(value, wg.Tensor)]:
        for index in odd_values():
            for value in (1.0, wg.ones(3), None, "text", np.ones((2, 3))):
                attempt(owner.__setitem__, [index, value], {})
