"""Plans of many tiny steps, whose set-up is done once: the bits of eager code, and those of steps
that run as they are.

Steps are prepared for inputs in C order, so calls on other layouts of the same numbers run them as
they are.
"""

import numpy as np
import pytest

import wengert as wg
from wengert import nn

from modes import bits, raw
from support import generator

DTYPES = ["float32", "float64", "bfloat16", "float16", "int32", "int64", "uint8"]


def numbers(shape, dtype, seed):
    """Small whole numbers and halves, some of them zeros of both signs."""
    found = generator(seed).integers(-4, 5, shape) / 2
    return wg.asarray(np.copysign(found, generator(seed + 1).uniform(-1, 1, shape))).astype(dtype)


def strided(x):
    """The same numbers with another number between each two."""
    return wg.repeat(x, 2, axis=-1)[..., ::2]


def chain(x, w, b):
    """Products with epilogues, views in between, several results."""
    h = x @ w + b
    for _ in range(3):
        h = (h @ w) * 2 + x
        h = h.reshape((h.shape[1], h.shape[0])).T - b
    return h, (h * h).sum(axis=0), h.T, h.reshape((-1,))[1:]


def products(x, w, b):
    """Rows, columns, single elements and outer products."""
    rows = x[:1] @ w
    return rows, w @ x[1], x[0] @ w, rows.T @ b.reshape((1, -1)), (x[:, 2:3] @ w[1:2]) + b


def recurrent(x, w, b):
    h = b.reshape((1, -1))
    for t in range(x.shape[0]):
        h = nn.relu(x[t : t + 1] @ w + h @ w)
    return h


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("program", [chain, products, recurrent])
def test_small_plans_have_the_bits_of_eager_code(program, dtype):
    x, w, b = (numbers(s, dtype, i) for i, s in enumerate([(5, 5), (5, 5), (5,)]))
    f = wg.compile(program)
    want = bits(program(x, w, b))
    for args in ((x, w, b), (strided(x), w, b), (x, strided(w), strided(b)), (x, w, b)):
        assert bits(f(*args)) == want


@pytest.mark.parametrize("program", [chain, recurrent])
def test_gradients_of_small_plans_have_the_bits_of_eager_code(program):
    x, w, b = (numbers(s, "float32", i) for i, s in enumerate([(5, 5), (5, 5), (5,)]))

    def loss(x, w, b):
        return sum((y * y).sum() for y in wg.pytree.flatten(program(x, w, b))[0])

    g = wg.value_and_grad(loss, (0, 1, 2))
    f = wg.compile(g)
    want = bits(g(x, w, b))
    for args in ((x, w, b), (strided(x), w, strided(b)), (x, w, b)):
        assert bits(f(*args)) == want


def test_numbers_of_small_plans_are_those_of_the_call():
    f = wg.compile(lambda x, k: wg.tanh(x * k + 1.0) - k)
    x = numbers((7,), "float32", 3)
    for k in (0.5, 0.25, -3.0, 1e-30):
        assert raw(f(x, k)) == raw(wg.tanh(x * k + 1.0) - k)


def test_small_updates_are_written_where_they_lie():
    state = wg.zeros(6)

    @wg.compile
    def step(x):
        state[...] = state * 0.5 + x
        return state * 2.0

    want = np.zeros(6, "float32")
    for i in range(5):
        x = numbers((6,), "float32", i)
        kept = state + 0.0 if i == 3 else None
        held = state[:] if i == 3 else None
        before = None if held is None else held.tolist()
        got = step(x)
        want = want * np.float32(0.5) + x.numpy()
        assert np.array_equal(state.numpy(), want)
        assert np.array_equal(got.numpy(), want * 2)
        if held is not None:
            assert held.tolist() == before == kept.tolist()


def test_a_small_plan_runs_while_it_is_profiled_and_after():
    x, w, b = (numbers(s, "float32", i) for i, s in enumerate([(5, 5), (5, 5), (5,)]))
    f = wg.compile(chain)
    want = bits(f(x, w, b))
    with wg.profile() as profile:
        assert bits(f(x, w, b)) == want
    assert "matmul" in str(profile)
    assert bits(f(x, w, b)) == want


@pytest.mark.parametrize("dtype", DTYPES)
def test_products_that_sum_nothing_keep_the_sign_of_their_zero(dtype):
    a, b = numbers((4, 1), dtype, 1), numbers((1, 6), dtype, 2)
    assert raw(wg.compile(lambda a, b: a @ b)(a, b)) == raw(a @ b)
    if dtype.startswith(("float", "bfloat")):
        zero, minus = wg.asarray([[0.0]], dtype=dtype), wg.asarray([[-1.0]], dtype=dtype)
        assert not wg.signbit(wg.compile(lambda a, b: a @ b)(zero, minus)).item()
        assert not wg.signbit(zero @ minus).item()
