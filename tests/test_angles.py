"""`sin`, `cos` and `tan` of every finite angle, against integers with a thousand digits of π."""

import math
from fractions import Fraction

import numpy as np
import pytest

import wengert as wg

import support

# Units in the last place: the bounds of src/scalar/bounds.rs.
BOUNDS = {"sin": 1.0, "cos": 1.0, "tan": 1.5}
BITS = 1400


def inverse_tangent(n, unit):
    """`atan(1/n)` in units."""
    total, term, k = 0, unit // n, 1
    while term:
        total += term // k if k % 4 == 1 else -(term // k)
        term //= n * n
        k += 2
    return total


# Machin's formula.
PI = 4 * (4 * inverse_tangent(5, 1 << BITS) - inverse_tangent(239, 1 << BITS))


def reduced(x):
    """The quadrant of an angle and the rest, in units of 2^-200."""
    x = Fraction(x)
    turns = x.numerator * (1 << (BITS + 1)) // x.denominator      # units of 2^-(BITS + 1)
    half = PI                                                     # π/2 in the same units
    quadrant = (2 * turns + half) // (2 * half)
    return quadrant % 4, (turns - quadrant * half) >> (BITS + 1 - 200)


def series(r, first):
    """`sin r` (from the first power) or `cos r`, in units of 2^-200."""
    unit = 1 << 200
    term, total, k = (r, r, 1) if first else (unit, unit, 0)
    while term:
        term = -term * r // unit * r // unit // ((k + 1) * (k + 2))
        total += term
        k += 2
        if abs(term) <= 1:
            break
    return total


def exact(name, x):
    """The value as a fraction, right to 150 bits or more."""
    quadrant, r = reduced(x)
    sin, cos = series(r, True), series(r, False)
    s = [sin, cos, -sin, -cos][quadrant]
    c = [cos, -sin, -cos, sin][quadrant]
    return {"sin": Fraction(s, 1 << 200), "cos": Fraction(c, 1 << 200), "tan": Fraction(s, c)}[name]


def error(got, want, dtype):
    """The distance in units in the last place at the exact value."""
    bits, smallest = support.PRECISION[dtype]
    exponent = max(math.frexp(float(want))[1] - 1, smallest)
    return abs(Fraction(float(got)) - want) / Fraction(2) ** (exponent - bits)


def angles(dtype):
    """Angles of every magnitude and sign, around the bound of the short reduction, and near
    multiples of π/2."""
    kind = "u4" if dtype == "float32" else "u8"
    rng = support.generator("angles", dtype)
    tops = np.arange(-60, 127 if dtype == "float32" else 1023)
    spread = np.ldexp(rng.uniform(1, 2, (4 if dtype == "float32" else 1, tops.size)), tops)
    edge = np.array([2.0**30], dtype)
    below, above = (np.nextafter(edge, np.array(v, dtype)) for v in (0, np.inf))
    top = float(np.finfo(dtype).max)
    hard = [1e22, 6381956970095103.0 * 2.0**797, 5e300, top, 1e10, 2.0**120, 3e38]
    hard = np.array([v for v in hard if v <= top])
    values = np.concatenate([spread.ravel(), edge, below, above, hard]).astype(dtype)
    assert np.isfinite(values).all() and np.dtype(kind).itemsize == values.itemsize
    return np.concatenate([values, -values])


@pytest.mark.parametrize("name", BOUNDS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_angle_holds_the_bound(name, dtype):
    x = angles(dtype)
    got = getattr(wg, name)(wg.asarray(x)).numpy()
    worst = max(
        (error(y, exact(name, float(a)), dtype), float(a)) for a, y in zip(x, got, strict=True)
    )
    assert worst[0] <= BOUNDS[name], (float(worst[0]), worst[1])


@pytest.mark.parametrize("name", BOUNDS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_narrow_angles_are_those_of_float64(name, dtype):
    """Every one of them, beside the angle as a float64."""
    every = np.arange(1 << 16, dtype="uint16")
    x = (every.astype("uint32") << 16).view("float32") if dtype == "bfloat16" else every.view(dtype)
    x = wg.asarray(x[np.isfinite(x)]).astype(getattr(wg, dtype))
    f = getattr(wg, name)
    want = f(x.astype(wg.float64)).numpy()
    support.assert_near(support.to_numpy(f(x)), want, dtype, ulps=1)


@pytest.mark.parametrize("name", BOUNDS)
def test_a_far_angle_does_not_depend_on_its_neighbours(name):
    x = np.array([1e22, 0.5, 1e300, -3.0, 7.0, np.inf, np.nan, 2.0**31] * 20)
    f = getattr(wg, name)
    together = f(wg.asarray(x)).numpy()
    alone = np.array(
        [f(wg.tensor(v, dtype=wg.float64)).item() for v in x.tolist()]
    )
    np.testing.assert_array_equal(together, alone)
    assert np.isnan(together[np.isinf(x)]).all()


def test_the_reference_agrees_with_the_library_of_c():
    """Where that one is known to be right within a unit."""
    for x in (0.1, 1.0, 3.0, 1e5, 1e22, -7e200):
        for name in BOUNDS:
            assert error(getattr(math, name)(x), exact(name, x), "float64") <= 1
