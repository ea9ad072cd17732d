"""Random numbers: determined by key and shape, and distributed as they say."""

import numpy as np
import pytest

import wengert as wg
from wengert import random

COUNT = 200_000


def fits(sample, distribution):
    """A Kolmogorov-Smirnov test at a level far below chance."""
    x = np.sort(np.asarray(sample, "float64").ravel())
    ranks = np.arange(x.size + 1) / x.size
    values = distribution(x)
    distance = max((ranks[1:] - values).max(), (values - ranks[:-1]).max())
    assert distance * np.sqrt(x.size) < 2.2, distance


def normal(x):
    return 0.5 * wg.erfc(wg.asarray(-x / np.sqrt(2))).numpy()


FUNCTIONS = {
    "bits": lambda key: random.bits((50,), key=key),
    "uniform": lambda key: random.uniform((50,), key=key),
    "normal": lambda key: random.normal((50,), key=key),
    "integers": lambda key: random.integers(1000, shape=(50,), key=key),
    "permutation": lambda key: random.permutation(50, key=key),
    "bernoulli": lambda key: random.bernoulli(0.5, (50,), key=key),
    "categorical": lambda key: random.categorical(wg.zeros(9), shape=(50,), key=key),
    "split": lambda key: random.split(key, 25),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_key_determines_the_numbers(name):
    f = FUNCTIONS[name]
    one, same, other = (f(random.key(k)).tolist() for k in (3, 3, 4))
    assert one == same != other


@pytest.mark.parametrize("name", [n for n in FUNCTIONS if n != "split"])
def test_the_global_generator_is_state(name):
    f = FUNCTIONS[name]
    random.seed(1)
    first, state = f(None).tolist(), random.get_state()
    second = f(None).tolist()
    random.set_state(state)
    assert f(None).tolist() == second != first
    random.seed(1)
    assert f(None).tolist() == first


def test_bits_are_those_of_threefry():
    """The published vectors of Threefry-2x32 with 20 rounds, counter 0 and key 0."""
    zero = wg.zeros(2, dtype=wg.uint32)
    assert random.bits((2,), key=zero).tolist() == [0x6B200159, 0x99BA4EFE]
    wide = random.bits((1,), dtype=wg.uint64, key=zero)
    assert wide.tolist() == [0x99BA4EFE_6B200159]


@pytest.mark.parametrize("dtype", [wg.float16, wg.bfloat16, wg.float32, wg.float64])
def test_uniform(dtype):
    x = random.uniform((COUNT,), dtype=dtype, key=random.key(0))
    assert x.dtype == dtype
    a = x.astype(wg.float64).numpy()
    assert a.min() >= 0 and a.max() < 1
    digits = {wg.float16: 11, wg.bfloat16: 8}.get(dtype)
    # Half floats have coarse steps: half a step later they are uniform.
    fits(a if digits is None else a + np.random.default_rng(0).random(COUNT) / 2**digits, np.array)


def test_uniform_bounds():
    x = random.uniform((1000, 200), low=-3.0, high=5.0, key=random.key(1)).numpy()
    assert x.min() >= -3 and x.max() < 5
    fits((x + 3) / 8, np.array)
    # Here every sum rounds up to the bound, which does not belong to the interval.
    tight = np.nextafter(np.float32(1), np.float32(2))
    assert set(random.uniform((100,), low=1.0, high=float(tight)).tolist()) == {1.0}
    with pytest.raises(ValueError, match="low"):
        random.uniform((3,), low=1.0, high=0.0)


@pytest.mark.parametrize("dtype", [wg.float16, wg.bfloat16, wg.float32, wg.float64])
def test_normal(dtype):
    x = random.normal((COUNT,), dtype=dtype, key=random.key(2))
    assert x.dtype == dtype
    a = x.astype(wg.float64).numpy()
    assert np.isfinite(a).all() and abs(a.mean()) < 0.01 and abs(a.std() - 1) < 0.01
    if dtype in (wg.float32, wg.float64):
        fits(a, normal)
        assert abs((a**3).mean()) < 0.03 and abs((a**4).mean() - 3) < 0.1
    y = random.normal((COUNT,), mean=2.0, std=3.0, dtype=dtype, key=random.key(2))
    y = y.astype(wg.float64)
    np.testing.assert_allclose(y.numpy(), 3 * a + 2, rtol=2e-2, atol=3e-2)


def test_neighbours_are_independent():
    x = random.normal((COUNT,), key=random.key(3)).numpy().astype("float64")
    for lag in (1, 2, 3, 64):
        assert abs((x[lag:] * x[:-lag]).mean()) < 0.01
    a, b = (random.normal((COUNT,), key=k).numpy() for k in random.split(random.key(3)))
    assert abs((a * b).mean()) < 0.01 and abs((a * x).mean()) < 0.01


@pytest.mark.parametrize("dtype", [wg.uint8, wg.int8, wg.int32, wg.int64, wg.uint64])
def test_integers(dtype):
    x = random.integers(3, 13, (COUNT,), dtype=dtype, key=random.key(4))
    counts = np.bincount(x.numpy().astype("int64"), minlength=13)
    assert x.dtype == dtype and counts[:3].sum() == 0 and counts.size == 13
    expected = COUNT / 10
    assert (((counts[3:] - expected) ** 2) / expected).sum() < 35


def test_integer_intervals():
    assert set(random.integers(-2, 1, (1000,)).tolist()) == {-2, -1, 0}
    wide = random.integers(-(2**63), 2**63 - 1, (1000,)).numpy()
    assert (wide < 0).mean() == pytest.approx(0.5, abs=0.1) and np.abs(wide).max() > 2**62
    assert random.integers(5).shape == () and random.integers(0, 10, (2, 3)).shape == (2, 3)
    with pytest.raises(ValueError, match=r"\[3, 3\)"):
        random.integers(3, 3)
    with pytest.raises(OverflowError, match="256"):
        random.integers(0, 257, dtype=wg.uint8)
    with pytest.raises(wg.DTypeError, match="integer"):
        random.integers(0, 3, dtype=wg.float32)


def test_permutation():
    x = random.permutation(1000, key=random.key(6)).numpy()
    assert sorted(x) == list(range(1000)) and abs(np.corrcoef(x, np.arange(1000))[0, 1]) < 0.15
    assert random.permutation(0).shape == (0,)
    with pytest.raises(ValueError, match="-1"):
        random.permutation(-1)


def test_bernoulli():
    p = wg.tensor([0.0, 0.1, 0.9, 1.0])
    x = random.bernoulli(p, (50_000, 4), key=random.key(7))
    assert x.dtype == wg.bool
    np.testing.assert_allclose(x.numpy().mean(0), p.numpy(), atol=0.01)
    assert x.numpy()[:, 0].sum() == 0 and x.numpy()[:, 3].all()
    assert random.bernoulli(p).shape == (4,)
    with pytest.raises(wg.ShapeError, match="4"):
        random.bernoulli(p, (3,))


@pytest.mark.parametrize("axis", [0, 1])
def test_categorical(axis):
    p = np.array([[0.7, 0.2, 0.1, 0.0], [0.25, 0.25, 0.25, 0.25]])
    with np.errstate(divide="ignore"):
        logits = wg.asarray(np.moveaxis(np.log(p), 1, axis).astype("float32"))
    x = random.categorical(logits, axis=axis, shape=(50_000, 2), key=random.key(8))
    assert x.dtype == wg.int64
    for row in (0, 1):
        found = np.bincount(x.numpy()[:, row], minlength=4) / 50_000
        np.testing.assert_allclose(found, p[row], atol=0.01)
        assert (found[p[row] == 0] == 0).all()
    assert random.categorical(logits, axis=axis).shape == (2,)


def test_split_keys_differ():
    keys = random.split(random.key(9), 1000).numpy()
    assert keys.dtype == np.uint32 and len({tuple(k) for k in keys.tolist()}) == 1000


def test_a_key_is_checked():
    for bad in (wg.zeros(2), wg.zeros(3, dtype=wg.uint32)):
        with pytest.raises(wg.ShapeError, match="key"):
            random.normal((2,), key=bad)


def test_leaves_from_random_numbers():
    x = random.normal((3,), requires_grad=True)
    assert x.requires_grad and x.is_leaf
