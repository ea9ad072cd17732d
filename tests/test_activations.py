"""Activations over their whole range, far tails included, in units in the last place."""

import decimal
import math
from decimal import Decimal

import numpy as np
import pytest

import wengert as wg
from wengert import nn

from modes import assert_same

INF = float("inf")
PI = Decimal("3.14159265358979323846264338327950288419716939937510")
ROOT = math.sqrt(2 / math.pi)
CUBIC = 0.044715


def erfc(x):
    return np.array([math.erfc(v) for v in x])


def sigmoid(x):
    return np.where(x < 0, np.exp(np.minimum(x, 0)), 1.0) / (1 + np.exp(-np.abs(x)))


def doubled_angle(x):
    return 2 * ROOT * (x + CUBIC * x**3)


def silu_slope(x):
    return sigmoid(x) * (1 + x * sigmoid(-x))


def gelu_slope(x):
    return erfc(-x / math.sqrt(2)) / 2 + x * np.exp(-x * x / 2) * ROOT / 2


def gelu_tanh_slope(x):
    inner = 2 * ROOT * (1 + 3 * CUBIC * x * x)
    return sigmoid(doubled_angle(x)) * (1 + x * sigmoid(-doubled_angle(x)) * inner)


def softplus(x):
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def gelu_tanh(x):
    return nn.gelu(x, approximate="tanh")


# The function; its value and its slope in double precision; the bound in ULP of the value (that of
# src/scalar/bounds.rs) and of the slope, near its zero in places of ½.
CASES = {
    "silu": (nn.silu, lambda x: x * sigmoid(x), silu_slope, 3.0, 6.0),
    "gelu": (nn.gelu, lambda x: x * erfc(-x / math.sqrt(2)) / 2, gelu_slope, 2.0, 2.0),
    "gelu_tanh": (gelu_tanh, lambda x: x * sigmoid(doubled_angle(x)), gelu_tanh_slope, 3.0, 8.0),
    "softplus": (nn.softplus, softplus, sigmoid, 2.0, 2.0),
    "log_sigmoid": (nn.log_sigmoid, lambda x: -softplus(-x), lambda x: sigmoid(-x), 2.0, 2.0),
    "sigmoid": (nn.sigmoid, sigmoid, None, 2.0, None),
    "tanh": (nn.tanh, np.tanh, None, 1.5, None),
}


def samples(dtype):
    """Dense where activations bend, and where their tails vanish; both signs of every magnitude."""
    if dtype == np.float16:
        every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
        return every[np.isfinite(every)]
    grid = [np.linspace(-s, s, 8001) for s in (1.0, 3.0, 15.0, 110.0)]
    powers = np.geomspace(1e-44, 3e38, 4001)
    return np.concatenate([*grid, powers, -powers]).astype(dtype)


def errors(got, exact, least=0.0):
    """In units in the last place of the larger of `exact` and `least`, no smaller than those of the
    smallest normal number."""
    info = np.finfo(got.dtype)
    size = np.maximum(np.maximum(np.abs(exact), least), float(info.tiny))
    with np.errstate(invalid="ignore"):
        ulp = 2.0 ** (np.floor(np.log2(size)) - info.nmant)
        same = got.astype(np.float64) == exact
        distance = np.abs(got.astype(np.float64) - exact) / ulp
    return np.where(same, 0.0, distance)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("name", CASES)
def test_values_are_accurate_in_far_tails(name, dtype):
    f, exact, _, bound, _ = CASES[name]
    x = samples(np.dtype(dtype))
    with np.errstate(over="ignore", under="ignore"):
        wrong = errors(f(wg.asarray(x)).numpy(), exact(x.astype(np.float64)))
    # float16 is computed in float32 and rounded once: half a unit, and what float32 was off.
    bound = bound if dtype == "float32" else 0.51
    assert wrong.max() <= bound, (x[wrong.argmax()], wrong.max())


@pytest.mark.parametrize("name", [name for name in CASES if CASES[name][2]])
def test_gradients_are_accurate_in_far_tails(name):
    f, _, slope, _, bound = CASES[name]
    x = samples(np.dtype(np.float32))
    x = x[np.abs(x) < 1e4]
    with np.errstate(over="ignore", under="ignore"):
        exact = slope(x.astype(np.float64))
    got = wg.grad(lambda v: f(v).sum())(wg.asarray(x)).numpy()
    near_zero = (x > -1.5) & (x < 0) & (name not in ("softplus", "log_sigmoid"))
    wrong = errors(got, exact, np.where(near_zero, 0.5, 0.0))
    assert wrong.max() <= bound, (x[wrong.argmax()], wrong.max())


def normal_tail(a):
    """`Φ(−a)` by its continued fraction."""
    fraction = a
    for k in range(400, 0, -1):
        fraction = a + k / fraction
    return (-a * a / 2).exp() / (2 * PI).sqrt() / fraction


def logistic_tail(a):
    return 1 / (1 + a.exp())


def tanh_tail(a):
    return logistic_tail(2 * (2 / PI).sqrt() * (a + Decimal("0.044715") * a**3))


@pytest.mark.parametrize(
    ("f", "gate", "end"),
    [(nn.silu, logistic_tail, 751.0), (nn.gelu, normal_tail, 38.6), (gelu_tanh, tanh_tail, 21.6)],
)
def test_far_tails_in_double_precision(f, gate, end):
    values = np.linspace(end * 0.4, end, 97)
    with decimal.localcontext(decimal.Context(prec=50)):
        exact = [-Decimal(float(a)) * gate(Decimal(float(a))) for a in values]
        got = f(wg.asarray(-values)).tolist()
        for a, y, e in zip(values, got, exact, strict=True):
            unit = Decimal(max(math.ulp(float(e)), 5e-324))
            assert abs(Decimal(y) - e) <= 3 * unit, (a, y, float(e))


@pytest.mark.parametrize("name", ["silu", "gelu", "gelu_tanh"])
@pytest.mark.parametrize("dtype", [wg.float32, wg.float64])
def test_limits(name, dtype):
    f = CASES[name][0]
    y = f(wg.tensor([-INF, -1e30, -0.0, 0.0, 1e30, INF, float("nan")], dtype=dtype))
    y = y.numpy()
    np.testing.assert_array_equal(y[:4], [0.0, 0.0, 0.0, 0.0])
    assert np.signbit(y[:4]).tolist() == [True, True, True, False]
    assert y[5] == INF and np.isnan(y[6]) and y[4] == np.asarray(1e30, y.dtype)
    slopes = wg.grad(lambda v: f(v).sum())(wg.tensor([-1e4, -0.0, 0.0, 1e4], dtype=dtype))
    assert slopes.tolist() == [0.0, 0.5, 0.5, 1.0]


@pytest.mark.parametrize("name", ["silu", "gelu", "gelu_tanh"])
def test_same_bits_in_every_mode(name):
    f = CASES[name][0]
    x = wg.asarray(samples(np.dtype(np.float32))[:32004])
    assert_same(lambda x: (f(x), wg.grad(lambda v: f(v * 1.5).sum())(x)), x)
