"""What the Array API standard and NumPy say about scalars, masks without axes and special cases."""

import numpy as np
import pytest

import wengert as wg

from modes import Modes, bits

NUMPY_SCALARS = [np.float64(0.1), np.float32(0.1), np.float16(0.1), np.int8(-3), np.int16(3),
                 np.int32(3), np.int64(3), np.uint8(3), np.uint16(3), np.uint32(3), np.uint64(3),
                 np.bool_(True)]


@pytest.mark.parametrize("scalar", NUMPY_SCALARS, ids=lambda s: type(s).__name__)
@pytest.mark.parametrize("make", [wg.asarray, wg.tensor])
def test_numpy_scalars_keep_their_dtype(make, scalar):
    name = scalar.dtype.name
    for given in (scalar, [scalar, scalar], [[scalar], (scalar,)]):
        got, want = make(given), np.asarray(given)
        assert got.dtype.name == name and got.numpy().tobytes() == want.tobytes()
    assert make(scalar, dtype=wg.float32).dtype == wg.float32
    assert (wg.ones(2, dtype=wg.float16) * float(scalar)).dtype == wg.float16


def test_python_floats_and_their_subclasses_stay_float32():
    class Rate(float):
        pass

    assert wg.asarray(0.1).dtype == wg.asarray(Rate(0.1)).dtype == wg.float32
    assert wg.asarray([0.1, np.float64(0.1)]).dtype == wg.float64


def test_numpy_scalars_are_weak_as_operands():
    """A learning rate that NumPy computed does not turn a model into float64."""
    for x in (wg.ones(2), wg.ones(2, dtype=wg.float16)):
        assert (x * np.float64(0.1)).dtype == x.dtype
        assert (np.float64(0.1) * x).dtype == x.dtype


INTS = [wg.int8, wg.int16, wg.int32, wg.int64, wg.uint8, wg.uint16, wg.uint32, wg.uint64]


@pytest.mark.parametrize("dtype", INTS, ids=lambda d: d.name)
def test_integers_have_no_negative_powers(dtype):
    x = wg.tensor([2, 3], dtype=dtype)

    def in_place(v):
        v = v + 0
        v **= -1
        return v

    for f in (lambda v: v**-1, lambda v: wg.pow(v, -1), lambda v: v.pow(-2), in_place):
        for mode in (f, wg.compile(f)):
            with pytest.raises((ValueError, OverflowError), match="pow"):
                mode(x)
    assert (x**2).tolist() == [4, 9] and (x**0).tolist() == [1, 1]
    assert (x.astype(wg.float32) ** -1).tolist()[0] == 0.5
    assert (x**-1.0).tolist()[0] == 0.5


def test_tensors_of_negative_exponents_are_whole_numbers():
    base, exponent = wg.tensor([2, 1, -1, -1]), wg.tensor([-1, -5, -1, -2])
    assert (base**exponent).tolist() == [0, 1, -1, 1]


FLAGS = [True, False, np.bool_(True), np.array(False)]
X = np.arange(12.0).reshape(3, 4)
INDICES = [
    lambda m: m,
    lambda m: (m,),
    lambda m: (m, 1),
    lambda m: (slice(None), m),
    lambda m: (..., m),
    lambda m: (m, None, slice(0, 2)),
    lambda m: (m, [0, 2]),
    lambda m: ([0, 2], m),
    lambda m: (m, True),
    lambda m: (1, m, slice(None)),
    lambda m: (m, [True, False, True]),
]


@pytest.mark.parametrize("flag", FLAGS, ids=repr)
@pytest.mark.parametrize("index", range(len(INDICES)))
def test_masks_without_axes_read_as_in_numpy(flag, index):
    where = INDICES[index]
    for data in (X, np.array(5.0)):
        try:
            want = data[where(flag)]
        except IndexError:
            with pytest.raises((IndexError, ValueError)):
                wg.asarray(data)[where(flag)]
            continue
        got = wg.asarray(data)[where(flag)]
        np.testing.assert_array_equal(got.numpy(), want)
        other = wg.asarray(data)[where(wg.tensor(bool(flag)))]
        np.testing.assert_array_equal(other.numpy(), want)
        compiled = wg.compile(lambda x: x[where(flag)])(wg.asarray(data))
        np.testing.assert_array_equal(compiled.numpy(), want)


@pytest.mark.parametrize("flag", FLAGS, ids=repr)
@pytest.mark.parametrize("index", range(len(INDICES)))
def test_masks_without_axes_write_as_in_numpy(flag, index):
    where = INDICES[index]
    for data in (X, np.array(5.0)):
        want = data.copy()
        try:
            want[where(flag)] = -7.0
        except IndexError:
            continue
        for mask in (flag, wg.tensor(bool(flag))):
            got = wg.tensor(data)
            got[where(mask)] = -7.0
            np.testing.assert_array_equal(got.numpy(), want)


@pytest.mark.parametrize("on", [True, False])
def test_a_mask_that_is_computed_writes_in_every_mode(on):
    def program(x, limit):
        x = x + 0.0
        x[x.sum() > limit] = 9.0
        x[limit > 100.0] = wg.ones(3)
        return x

    modes = Modes(program)
    x, limit = wg.tensor([1.0, 2.0, 3.0]), wg.tensor(5.0 if on else 7.0)
    want = modes.run("eager", x, limit)
    assert want.tolist() == ([9.0] * 3 if on else [1.0, 2.0, 3.0])
    for mode in ("compiled", "session"):
        assert bits(modes.run(mode, x, limit)) == bits(want)


def test_a_computed_mask_does_not_read_in_a_graph():
    with pytest.raises(wg.Error, match="where"):
        wg.compile(lambda x: x[x.sum() > 0])(wg.ones(3))


def test_gradients_pass_a_mask_without_axes():
    x = wg.tensor([1.0, 2.0])
    assert wg.grad(lambda v: (v[True] * v[True]).sum())(x).tolist() == [2.0, 4.0]
    assert wg.grad(lambda v: v[False].sum())(x).tolist() == [0.0, 0.0]


def test_a_scalar_has_no_positions():
    for x in (wg.tensor(3.0), 1.0, True):
        with pytest.raises(wg.Error, match="nonzero"):
            wg.nonzero(x)


SPECIAL = [np.inf, -np.inf, np.nan, 0.0, -0.0, 1.0, -1.0, 2.5, -2.5]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_floor_divide_and_sign_follow_the_standard(dtype):
    a, b = (g.astype(dtype) for g in np.meshgrid(SPECIAL, SPECIAL, indexing="ij"))
    got = wg.floor_divide(wg.asarray(a), wg.asarray(b)).numpy()
    with np.errstate(all="ignore"):
        want = np.where(np.isinf(a) | np.isinf(b), a / b, np.floor_divide(a, b))
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(np.signbit(got[got == got]), np.signbit(want[want == want]))
    signs = wg.sign(wg.asarray(a)).numpy()
    np.testing.assert_array_equal(signs, np.sign(a))
    assert not np.signbit(signs[a == 0]).any()


@pytest.mark.parametrize("dtype", [wg.int8, wg.uint8, wg.int64, wg.bool])
def test_a_float_is_put_among_integers_as_elsewhere(dtype):
    """What `full_like` and an assignment make of a float, `pad` makes of it too."""
    x = wg.ones(2, dtype=dtype)
    for value in (0.0, 1.0, 0.5, -0.5, 1e300, float("nan"), float("-inf")):
        want = wg.full_like(x[:1], value)
        set_ = wg.zeros(1, dtype=dtype)
        set_[0] = value
        padded = wg.pad(x, (1, 0), value=value)
        assert padded.dtype == dtype
        assert padded[:1].tolist() == want.tolist() == set_.tolist()
