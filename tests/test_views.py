"""Functions that show their first argument otherwise: values, memory, history and refusals."""

import gc
import subprocess
import sys

import numpy as np
import pytest

import wengert as wg

from support import TABLE

SHAPE = (3, 1, 4)
# By name: calls of ours and of NumPy's.
CALLS = {
    "reshape": [
        (lambda x: x.reshape(4, 3), lambda a: a.reshape(4, 3)),
        (lambda x: x.reshape((-1, 2)), lambda a: a.reshape(-1, 2)),
        (lambda x: wg.reshape(x, shape=[2, 6], copy=True), lambda a: a.reshape(2, 6)),
        (lambda x: x.reshape(*SHAPE), lambda a: a),
    ],
    "permute_dims": [
        (lambda x: x.permute_dims(2, 0, 1), lambda a: a.transpose(2, 0, 1)),
        (lambda x: wg.permute(x, axes=(-1, 0, 1)), lambda a: a.transpose(2, 0, 1)),
    ],
    "transpose": [
        (lambda x: x.transpose(), lambda a: a.T),
        (lambda x: x.T, lambda a: a.T),
        (lambda x: x.transpose((1, 0, 2)), lambda a: a.transpose(1, 0, 2)),
    ],
    "matrix_transpose": [
        (wg.matrix_transpose, lambda a: a.swapaxes(1, 2)),
        (lambda x: x.mT, lambda a: a.swapaxes(1, 2)),
    ],
    "swapaxes": [(lambda x: x.swapaxes(0, axis2=-1), lambda a: a.swapaxes(0, -1))],
    "moveaxis": [(lambda x: x.moveaxis((0, 1), (2, 0)), lambda a: np.moveaxis(a, (0, 1), (2, 0)))],
    "squeeze": [
        (lambda x: x.squeeze(), lambda a: a.squeeze()),
        (lambda x: wg.squeeze(x, axis=1), lambda a: a.squeeze(1)),
    ],
    "expand_dims": [
        (lambda x: x.expand_dims(), lambda a: a[None]),
        (lambda x: wg.unsqueeze(x, (0, -1)), lambda a: a[None, ..., None]),
    ],
    "broadcast_to": [
        (lambda x: x.broadcast_to(2, 3, 5, 4), lambda a: np.broadcast_to(a, (2, 3, 5, 4))),
    ],
    "flatten": [
        (lambda x: x.flatten(), lambda a: a.ravel()),
        (lambda x: x.flatten(1), lambda a: a.reshape(3, 4)),
    ],
    "flip": [
        (lambda x: x.flip(), lambda a: np.flip(a)),
        (lambda x: wg.flip(x, axis=(0, 2)), lambda a: np.flip(a, (0, 2))),
    ],
    "diagonal": [
        (lambda x: x.diagonal(axis1=0, axis2=2), lambda a: a.diagonal(axis1=0, axis2=2)),
        (
            lambda x: x.diagonal(offset=-1, axis1=0, axis2=2),
            lambda a: a.diagonal(offset=-1, axis1=0, axis2=2),
        ),
    ],
}
ALL = [pytest.param(*pair, id=f"{name}{i}") for name in CALLS for i, pair in enumerate(CALLS[name])]
REFUSED = [
    lambda x: x.reshape(5, 2),
    lambda x: x.reshape(-1, 5),
    lambda x: x.reshape(-1, -1),
    lambda x: x.reshape("a"),
    lambda x: x.reshape((2, 6), 3),
    lambda x: x.reshape(2, 6, shap=1),
    lambda x: x.permute_dims(0, 1),
    lambda x: x.permute_dims(0, 1, 1),
    lambda x: x.transpose((0, 3, 1)),
    lambda x: wg.matrix_transpose(x[0, 0]),
    lambda x: x[0, 0].mT,
    lambda x: x.swapaxes(0, 7),
    lambda x: x.swapaxes(0),
    lambda x: x.moveaxis((0, 1), 2),
    lambda x: x.squeeze(0),
    lambda x: x.expand_dims(9),
    lambda x: x.broadcast_to(2, 2),
    lambda x: x.broadcast_to(1 << 40, 1 << 40, 3, 1, 4),
    lambda x: x.flatten(2, 1),
    lambda x: x.flip(3),
    lambda x: x.diagonal(axis1=1, axis2=1),
]


def filled():
    return np.arange(np.prod(SHAPE), dtype=np.float32).reshape(SHAPE)


def test_every_view_is_tried():
    assert {op["name"] for op in TABLE if op.get("views")} == CALLS.keys()


@pytest.mark.parametrize(("ours", "theirs"), ALL)
def test_values_without_a_copy(ours, theirs):
    x = wg.tensor(filled())
    gc.collect()
    before = wg.memory_stats()["live_bytes"]
    y = ours(x)
    assert wg.memory_stats()["live_bytes"] == before
    want = theirs(filled())
    assert y.shape == want.shape
    np.testing.assert_array_equal(y.numpy(), want)


@pytest.mark.parametrize(("ours", "theirs"), ALL)
def test_views_of_views(ours, theirs):
    """Also where elements have to be copied after all."""
    x = wg.tensor(np.ascontiguousarray(filled().transpose(2, 1, 0)[:, :, ::-1]))
    np.testing.assert_array_equal(ours(x.flip(2).T).numpy(), theirs(filled()))


@pytest.mark.parametrize(("ours", "theirs"), ALL)
def test_gradients(ours, theirs):
    x = wg.tensor(filled(), requires_grad=True)
    weights = np.arange(1.0, 1.0 + theirs(filled()).size, dtype=np.float32)
    weights = weights.reshape(theirs(filled()).shape)
    (ours(x) * wg.tensor(weights)).sum().backward()
    # Each element's place, found by showing the places.
    places = theirs(np.arange(x.size).reshape(SHAPE)).ravel()
    want = np.bincount(places, weights=weights.ravel(), minlength=x.size)
    np.testing.assert_array_equal(x.grad.numpy(), want.reshape(SHAPE))
    assert not ours(x.detach()).requires_grad


def test_nothing_is_recorded_where_nobody_records():
    x = wg.tensor(filled(), requires_grad=True)
    with wg.no_grad():
        assert not any(y.requires_grad for y in (x.flatten(), x.T, x.squeeze(), x.mT.flip()))


@pytest.mark.parametrize("call", REFUSED)
def test_refusals_are_those_of_all_calls(call):
    """A profile watches every op, so there nothing goes the short way."""
    x = wg.tensor(filled())
    with pytest.raises(Exception) as short:
        call(x)
    with pytest.raises(Exception) as long, wg.profile():
        call(x)
    assert (type(short.value), str(short.value)) == (type(long.value), str(long.value))
    assert "internal" not in str(short.value)


def test_sizes_may_be_objects_that_say_an_index():
    class Index:
        def __index__(self):
            return 6

    x = wg.tensor(filled())
    assert x.reshape(2, Index()).shape == (2, 6)
    assert x.reshape([np.int64(6), 2]).shape == (6, 2)


def test_a_small_product_is_the_product():
    """Matrices of one dtype take a short way: the bits and refusals are those of the long one."""
    r = np.random.default_rng(0)
    for dtype in (np.float32, np.float64, np.int32, np.int8):
        for m, k, n in [(8, 8, 8), (1, 5, 3), (7, 1, 2), (3, 0, 2), (0, 4, 2), (33, 65, 17)]:
            a = (r.standard_normal((m, k)) * 9).astype(dtype)
            b = (r.standard_normal((k, n)) * 9).astype(dtype)
            x, y = wg.tensor(a), wg.tensor(b)
            with wg.profile():
                want = wg.matmul(x, y)
            for got in (x @ y, x.T.T @ y, x @ wg.tensor(np.ascontiguousarray(b.T)).T):
                assert got.dtype == want.dtype
                assert got.numpy().tobytes() == want.numpy().tobytes()
    with pytest.raises(wg.ShapeError, match="inner dimensions"):
        wg.ones((2, 3)) @ wg.ones((2, 3))
    with pytest.raises(wg.DTypeError):
        wg.ones((2, 2), dtype=wg.bool) @ wg.ones((2, 2), dtype=wg.bool)
    with wg.autocast(wg.bfloat16):
        assert (wg.ones((2, 2)) @ wg.ones((2, 2))).dtype == wg.bfloat16


BOUNDS = [None, 0, 1, 2, 3, 5, 2**62, 2**63 - 1, -1, -3, -6, -(2**63)]


@pytest.mark.parametrize("shape", [(3,), (3, 2), (0, 2), (3, 0), (2, 1, 3)], ids=str)
def test_rows_by_plain_keys(shape):
    """They take a short way: values, memory and refusals are those of NumPy."""
    a = np.arange(int(np.prod(shape)), dtype="f").reshape(shape)
    keys = [slice(i, j) for i in BOUNDS for j in BOUNDS] + [i for i in BOUNDS if i is not None]
    for x, b in [(wg.tensor(a), a), (wg.tensor(a)[1:], a[1:]), (wg.tensor(a).T, a.T)]:
        for key in keys:
            try:
                want = b[key]
            except IndexError:
                with pytest.raises(IndexError):
                    x[key]
                continue
            y = x[key]
            assert y.shape == want.shape
            assert y.tolist() == want.tolist()
        assert [y.tolist() for y in x] == b.tolist()
        assert x[-(2**70) : 2**70].tolist() == b.tolist()
        with pytest.raises(IndexError):
            x[2**70]
    x = wg.tensor(np.arange(6, dtype="f").reshape(3, 2))
    y = x[1:]
    y[0] = -1.0
    assert x[1].tolist() == [2.0, 3.0] and y.tolist() == [[-1.0, -1.0], [4.0, 5.0]]


def test_rows_of_what_requires_a_gradient():
    x = wg.tensor(np.ones((3, 2), "f"), requires_grad=True)
    (x[1:].sum() + 2 * x[0].sum()).backward()
    assert x.grad.tolist() == [[2, 2], [1, 1], [1, 1]]
    with wg.no_grad():
        assert not x[1:].requires_grad and not x[0].requires_grad


COLLECTED = """
import gc, weakref
import wengert as wg
x = wg.ones((3, 2))
class Cycle:
    def __del__(self):
        x[...] = x + 1
made = []
gc.set_threshold(1)
for call in (lambda: x + x, lambda: x[1:], lambda: x[0], lambda: x.T, lambda: x.reshape(2, 3)):
    for _ in range(600):
        c = Cycle()
        c.me = c
        del c
        made.append(call())
shapes = {y.shape for y in made}
assert shapes == {(3, 2), (2, 2), (2,), (2, 3)}, shapes
assert all(len(set(y.flatten().tolist())) == 1 for y in made)
print("done")
"""


def test_collections_that_write_operands():
    """Objects for results may be asked for from Python, which may collect cycles then."""
    command = [sys.executable, "-c", COLLECTED]
    run = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert run.stdout == "done\n", run.stderr
