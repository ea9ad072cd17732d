"""A number beside float64 tensors counts in float64: values, gradients and tangents, in every mode.

Each operand of each op is replaced by a Python float, and the results are held against those with a
float64 tensor without axes in its place. The two may round differently, but by units in the last
place of float64.
"""

import operator

import numpy as np
import pytest
from test_ops_values import samples

import wengert as wg

from modes import bits
from support import DTYPES, TABLE, Operands, domain_of, function, label

# No float32 is nearer to it than 1e-9.
NUMBER = 0.7234567891234567
# They take each operand for a tensor of its own, and a number alone becomes float32.
OWN = {"adam", "broadcast_arrays", "meshgrid"}
OPS = [
    op
    for op in TABLE
    if op["function"] and op["kind"] not in ("create", "host") and op["name"] not in OWN
]


def variants(op):
    """Programs of the op's tensors with operand `k` given, and the tensors."""
    for sample in samples(op):
        operands = Operands((label(op), sample, "number"), "float64", domain_of(op))
        operands.evaluate(sample, lambda kind, array: wg.asarray(array))
        drawn = [kind for kind, _ in operands.drawn]
        values = [wg.asarray(array) for kind, array in operands.drawn if kind in "xf"]
        floats = [i for i, kind in enumerate(drawn) if kind in "xf"]
        for k in range(len(values)) if len(values) > 1 else ():
            def program(number, *leaves, k=k, sample=sample, operands=operands, floats=floats):
                left, count = iter(leaves), iter(range(len(operands.drawn)))

                def wrap(kind, array):
                    i = next(count)
                    if kind not in "xf":
                        return wg.asarray(array)
                    return number if floats.index(i) == k else next(left)

                args, kwargs = operands.evaluate(sample, wrap)
                result = function(op)(*args, **kwargs)
                parts = list(result) if isinstance(result, tuple | list) else [result]
                return [part for part in parts if part.dtype.is_floating]

            yield f"{label(op)}({sample}), operand {k}", program, values[:k] + values[k + 1 :]


def everything(program):
    """Results, gradients and tangents of a program, as a function of a number and tensors."""
    def run(number, *leaves):
        results = program(number, *leaves)
        def total(*xs):
            squares = ((y * y).sum() for y in program(number, *xs))
            return sum(squares, start=wg.tensor(0.0, dtype=wg.float64))
        places = tuple(range(len(leaves)))
        gradients = wg.grad(total, argnums=places)(*leaves)
        _, tangents = wg.jvp(lambda *xs: program(number, *xs), leaves, leaves)
        return results, list(gradients), list(tangents)
    return run


def near(got, want, what):
    got, want = wg.pytree.flatten(got)[0], wg.pytree.flatten(want)[0]
    assert len(got) == len(want), what
    for g, w in zip(got, want, strict=True):
        assert g.dtype == w.dtype == wg.float64, (what, g.dtype, w.dtype)
        g, w = g.numpy(), w.numpy()
        finite = np.abs(w[np.isfinite(w)])
        np.testing.assert_allclose(g, w, 1e-13, 1e-13 * finite.max(initial=1), err_msg=what)


def test_the_number_is_no_float32():
    assert abs(float(np.float32(NUMBER)) - NUMBER) > 1e-9


def refused(program, number, values):
    try:
        return not program(number, *values)
    except (wg.Error, TypeError, ValueError):
        return True


@pytest.mark.parametrize("op", OPS, ids=label)
def test_a_number_counts_in_float64(op):
    for what, program, values in variants(op):
        tensor = wg.tensor(NUMBER, dtype=wg.float64)
        if refused(program, tensor, values) or refused(program, NUMBER, values):
            continue
        run = everything(program)
        try:
            want = run(tensor, *values)
        except wg.GradientError:
            continue
        near(run(NUMBER, *values), want, what)
        near(wg.compile(run)(NUMBER, *values), want, f"{what}, compiled")


def test_numbers_reach_most_binary_ops():
    """The test above is no walk over refusals."""
    reached = {
        op["name"]
        for op in OPS
        for _, program, values in variants(op)
        if not refused(program, NUMBER, values)
    }
    assert {"add", "pow", "atan2", "hypot", "logaddexp", "lerp", "where"} <= reached


@pytest.mark.parametrize("number", [3, 4_000_000_000, True, 0.1])
@pytest.mark.parametrize("op", ["pow", "atan2", "hypot", "logaddexp", "remainder", "divide"])
def test_integers_beside_floats_do_not_wrap(op, number):
    x = wg.tensor([0.3, 2.5], dtype=wg.float64)
    f = getattr(wg, op)
    got = wg.grad(lambda v: f(v, number).sum())(x)
    want = wg.grad(lambda v: f(v, wg.tensor(float(number), dtype=wg.float64)).sum())(x)
    np.testing.assert_allclose(got.numpy(), want.numpy(), 1e-14)


def test_float16_stays_float16_where_numbers_meet_first():
    x = wg.tensor([0.5, 2.0], dtype=wg.float16, requires_grad=True)
    y = wg.atan2(x, 0.1).sum() + (x**0.1).sum() + (0.1**x).sum()
    y.backward()
    assert x.grad.dtype == wg.float16


FLOATS, INTEGERS = ["float16", "bfloat16", "float32", "float64"], ["int32", "uint8"]
POWERS = [(dtype, exponent) for dtype in FLOATS + INTEGERS for exponent in (1, 2, 3, 4, 0)]
POWERS += [(dtype, -1) for dtype in FLOATS]  # refused for integers


@pytest.mark.parametrize("dtype, exponent", POWERS)
def test_a_known_exponent_changes_no_bits(dtype, exponent):
    """Powers that are computed as products are those of an exponent that is a tensor."""
    values = np.random.default_rng(5).normal(0, 3, 3001)
    special = [0.0, -0.0, 1.0, -1.0, 1e-13, 1e13, -3e-20, 5e25, np.inf, -np.inf, np.nan]
    values = np.round(values) if dtype in INTEGERS else np.concatenate([values, special])
    x = wg.asarray(values.astype("float32")).astype(getattr(wg, dtype))
    want = x ** wg.full(x.shape, exponent, dtype=x.dtype)
    power = wg.compile(lambda x: x**exponent)
    large = wg.tile(x, 400)  # so large that an eager op may wait
    for got in (x**exponent, power(x), (large**exponent)[-len(x) :]):
        assert bits(got) == bits(want)
    if exponent == 3 and dtype == "float32":
        assert bits(want) == bits(x * x * x)


OPERATORS = ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and_", "or_", "xor",
             "lshift", "rshift", "lt", "le", "eq", "ne", "gt", "ge", "iadd", "imul", "neg", "abs",
             "invert"]


def outcome(op, *args):
    try:
        y = getattr(operator, op)(*args)
    except Exception as error:
        return type(error), str(error)
    return (y.dtype, y.shape, bits(y)) if isinstance(y, wg.Tensor) else y


@pytest.mark.parametrize("op", OPERATORS)
def test_operators_on_few_elements(op):
    """They take a short way, but not where a profile watches: results and refusals are the same."""
    for dtype in DTYPES:
        # Made anew for each way, since some operators write.
        for short, long in zip(operands_of(op, dtype), operands_of(op, dtype), strict=True):
            want = outcome(op, *short)
            with wg.profile():
                assert outcome(op, *long) == want, (dtype, short)


def operands_of(op, dtype):
    x = wg.asarray([0, 1, 1, 0, 1], dtype="uint8").astype(getattr(wg, dtype))
    others = [x + x, x[1:2], x[::-1], x[None], wg.ones(5), wg.arange(5), wg.zeros(()), True, 2, -3,
              300, 2**40, 2**70, 2.5, float("nan"), 1j, None, "x"]
    if op in ("neg", "abs", "invert"):
        return [(x,)]
    if op in ("iadd", "imul"):
        return [(x + 0, y) for y in others]
    return [(x, y) for y in others] + [(y, x) for y in others]


def test_few_elements_count_towards_the_limit():
    """The short way allocates as all others do."""
    x = wg.ones(16)
    before = wg.memory_stats()["live_bytes"]
    y = x + 1
    assert wg.memory_stats()["live_bytes"] == before + 64
    wg.set_memory_limit(before + 64)
    try:
        with pytest.raises(MemoryError):
            x * y
    finally:
        wg.set_memory_limit(None)
    assert (x * y).tolist() == [2.0] * 16
