"""Random programs against NumPy in float64: values within stated bounds, gradients against slopes.

A *twin* is a step of `test_laws_modes.py` in NumPy. The bound follows from the program itself: it
is `SLACK` times the largest deviation seen when every step is off by one rounding error of
the dtype under test. So an ill-conditioned program is allowed what its conditioning asks, and no
other program is allowed more than a few units of the last place.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_laws_modes import (
    CONSTANT,
    MAPS,
    SMOOTH,
    STEPS,
    closed,
    named,
    programs,
    run,
)
from test_ops_values import reference

import wengert as wg

from support import generator

SLACK = 4
TRIALS = 6


def squeezed(x):
    return np.tanh(x * 0.5)


def rows(x, y, i, k):
    z = x.copy()
    z[:1] = y[-1:] * (k + 1)
    return z


def columns(x, y, i, k):
    z = x.copy()
    z[:, ::2] = y[:, ::2].sum(axis=0) + i
    z[-1:, :1] = 0.25
    return z


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def layer_norm(x):
    centred = x - x.mean(axis=-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-5)


def padded(x, y, i, k):
    n, m = x.shape
    z = np.pad(x, 1)
    return sum(z[a : a + n, b : b + m] for a in range(3) for b in range(3)) / 9 + y


def repeated(x, y, i, k):
    for _ in range(i + k):
        x = squeezed(x + y)
    return x


def counted_loop(x, y, i, k):
    for n in range(i + 1):
        x = squeezed(x * y + n)
    return x


def scanned(x, y, i, k):
    carry, out = y.sum(axis=0), []
    for row in x:
        carry, z = (carry + row) * 0.5, carry * row
        out.append(z)
    return np.stack(out) + carry


def sloped_flow(x, y, i, k):
    """The gradient by hand: forwards, then backwards."""
    carries = [y.sum(axis=0)]
    for row in x:
        carries.append(carries[-1] * 0.5 + row)
    out = np.stack(carries[:-1]) * x
    seed = 2 * out if carries[-1].sum() > 0 else np.ones_like(out)
    slope, back = np.empty_like(x), np.zeros_like(x[0])
    for n in range(len(x))[::-1]:
        slope[n] = back + seed[n] * carries[n]
        back = back * 0.5 + seed[n] * x[n]
    return slope


FIXED = CONSTANT.numpy().astype("float64")
TWINS = {
    "rows": rows,
    "columns": columns,
    "updated": lambda x, y, i, k: (x + y) * 0.5 - i,
    "sliced": lambda x, y, i, k: np.concatenate([x[1:], y[:1]]),
    "reversed_": lambda x, y, i, k: np.concatenate([x[::-1, 1:], y[:, :1]], axis=1),
    "product": lambda x, y, i, k: x @ (y.T @ x),
    "centred": lambda x, y, i, k: (x - x.mean(axis=i % 2, keepdims=True)) * y.max(),
    "normed": lambda x, y, i, k: softmax(x) + layer_norm(y),
    "folded": lambda x, y, i, k: (x * y).reshape(-1).cumsum().reshape(x.shape),
    "counted": lambda x, y, i, k: (
        x / x.shape[0] + y * x.shape[1] + np.arange(x.shape[1]) * 0.125
    ),
    "chosen": lambda x, y, i, k: (
        np.where(x > y, x, i * 0.5)
        + np.take_along_axis(y, np.argsort(x, axis=1, kind="stable"), axis=1)
    ),
    "gathered": lambda x, y, i, k: x[np.argsort(y.max(axis=1), kind="stable")] + y[:, :1],
    "sloped": lambda x, y, i, k: y * np.cos(x * y),
    "closed": lambda x, y, i, k: x * FIXED[i] + y * FIXED[k],
    "padded": padded,
    "taken": lambda x, y, i, k: x * 2 + y if x.sum() > y.mean() else x - y * i,
    "repeated": repeated,
    "counted_loop": counted_loop,
    "scanned": scanned,
    "switched": lambda x, y, i, k: [
        lambda v: v + 1, lambda v: v * y, np.exp
    ][int((x > 0).sum()) % 3](squeezed(x)),
    "mapped": lambda x, y, i, k: x[:, ::-1] + y.max(axis=0),
    "sloped_flow": sloped_flow,
}  # fmt: skip


def test_every_step_has_a_twin():
    assert set(TWINS) == {step.__name__ for step in STEPS}
    assert all(reference(op) for op in MAPS)


def expected(steps, a, b, off=lambda x: x):
    """The program in NumPy; `off` disturbs the result of every step."""
    values = [a, b]
    for step, (p, q), i, k in steps:
        x, y = values[p], values[q]
        with np.errstate(all="ignore"):
            if callable(step):
                z = TWINS[step.__name__](x, y, i, k)
            else:
                z = np.asarray(reference(step)(*[x, y][: len(step["params"])]))
        values.append(off(squeezed(off(z))))
    return values[-1]


def arrays(shape, dtype):
    rng = generator("numpy", shape)
    return [rng.uniform(-1, 1, shape).astype(dtype) for _ in range(2)]


@given(programs(), st.sampled_from(["float32", "float64"]))
def test_values_are_numpy_s_within_what_rounding_can_do(steps, dtype):
    f = wg.compile(lambda a, b: run(steps, a, b)[0])
    rng = np.random.default_rng(0)
    unit = np.finfo(dtype).eps
    for shape in ((3, 4), (5, 7)):
        inputs = arrays(shape, dtype)
        got = f(*map(wg.asarray, inputs)).numpy().astype("float64")
        exact = [x.astype("float64") for x in inputs]
        want = expected(steps, *exact)

        def off(x):
            return x * (1 + unit * rng.uniform(-1, 1, x.shape))

        trials = [expected(steps, *exact, off) for _ in range(TRIALS)]
        known = np.isfinite(want)
        assert (np.isfinite(got) == known).all(), (shape, named(steps))
        deviation = np.max([np.abs(t - want)[known] for t in trials], axis=0, initial=0)
        worst = np.abs(got - want)[known]
        # One element's deviation may be small by chance: the largest counts for all.
        bound = SLACK * max(deviation.max(initial=0), unit)
        assert worst.max(initial=0) <= bound, (shape, worst.max() / bound, named(steps))


SMOOTH_MAPS = [op for op in MAPS if op["name"] in SMOOTH]
STEP = 1e-6


@given(programs())
def test_gradients_are_slopes_of_numpy_s(steps):
    """Along a direction, by central differences of the twins; what cuts gradients stands aside."""
    steps = [
        (
            SMOOTH_MAPS[n % len(SMOOTH_MAPS)] if step is closed or (
                not callable(step) and step["name"] not in SMOOTH
            ) else step,
            *rest,
        )
        for n, (step, *rest) in enumerate(steps)
    ]  # fmt: skip
    points = arrays((3, 4), "float64")
    rng = generator("numpy", "directions")
    ways = [rng.uniform(-1, 1, (3, 4)) for _ in points]
    ends = [
        expected(steps, *[p + h * w for p, w in zip(points, ways, strict=True)]).sum()
        for h in (STEP, -STEP)
    ]
    slope = (ends[0] - ends[1]) / (2 * STEP)
    f = wg.compile(wg.grad(lambda a, b: run(steps, a, b)[0].sum(), argnums=(0, 1)))
    found = f(*map(wg.asarray, points))
    along = sum((g.numpy() * w).sum() for g, w in zip(found, ways, strict=True))
    assert along == pytest.approx(slope, rel=1e-5, abs=1e-6), named(steps)


def test_the_bound_finds_a_wrong_program():
    """A program that is off by twenty units of the last place is not within it."""
    steps = [(step, (0, 1), 1, 1) for step in STEPS if step.__name__ in ("product", "scanned")]
    a, b = arrays((3, 4), "float32")
    exact = expected(steps, a.astype("float64"), b.astype("float64"))
    got = run(steps, wg.asarray(a), wg.asarray(b))[0].numpy()
    unit = np.finfo("float32").eps
    assert np.abs(got - exact).max() < SLACK * unit < np.abs(got * (1 + 20 * unit) - exact).max()
