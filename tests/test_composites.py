"""Composites at the edges that the derived tests do not reach: sizes, refusals, awkward values."""

import numpy as np
import pytest

import wengert as wg

rng = np.random.default_rng(7)


def near(got, want, tolerance=1e-6):
    want = np.asarray(want)
    assert got.shape == want.shape
    np.testing.assert_allclose(got.numpy(), want, rtol=tolerance, atol=tolerance)


EQUATIONS = [
    ("ij,jk", [(2, 3), (3, 4)]),
    ("ij,jk->ki", [(2, 3), (3, 4)]),
    ("ii", [(3, 3)]),
    ("iij->ji", [(3, 3, 2)]),
    ("ijij->j", [(2, 3, 2, 3)]),
    ("ij->", [(2, 3)]),
    ("i,j->ji", [(2,), (3,)]),
    ("i,i->i", [(3,), (3,)]),
    ("ab,ab->b", [(4, 3), (4, 3)]),
    ("bik,bkj->bij", [(2, 3, 4), (2, 4, 5)]),
    ("bqhd,bkhd->bhqk", [(2, 3, 2, 4), (2, 5, 2, 4)]),
    ("ij,jk,kl,lm->im", [(2, 3), (3, 4), (4, 2), (2, 3)]),
    ("ij,kl,jk->il", [(2, 3), (4, 5), (3, 4)]),
    ("...ij,...jk->...ik", [(5, 2, 3), (3, 4)]),
    ("...ij,...jk", [(2, 1, 2, 3), (5, 3, 4)]),
    ("i...,i...", [(3, 2), (3, 2)]),
    ("...a->a...", [(2, 3, 4)]),
    (" i j , j -> i ", [(2, 3), (3,)]),
    ("ij,jk->ik", [(0, 3), (3, 4)]),
    ("ij,jk->ik", [(2, 0), (0, 4)]),
    ("zA,Ab->bz", [(2, 3), (3, 4)]),
]


@pytest.mark.parametrize(("equation", "shapes"), EQUATIONS, ids=lambda e: str(e))
def test_einsum(equation, shapes):
    arrays = [rng.standard_normal(shape) for shape in shapes]
    near(wg.einsum(equation, *map(wg.asarray, arrays)), np.einsum(equation, *arrays), 1e-12)
    near(wg.einsum(equation, [wg.asarray(a) for a in arrays]), np.einsum(equation, *arrays), 1e-12)


@pytest.mark.parametrize(
    ("equation", "shapes", "words"),
    [
        ("ij,jk->ik", [(2, 3), (4, 5)], "letter j has sizes 3 and 4"),
        ("ij->ik", [(2, 3)], "letter k"),
        ("ij->ii", [(2, 3)], "i in"),
        ("ij", [(2, 3, 4)], "2 letters"),
        ("i,j", [(2,)], "names 2, got 1"),
        ("i1->i", [(2, 3)], "got 1"),
        ("...i->i", [(2, 3)], "ellipsis"),
        ("...,...->...", [(2,), (3,)], "sizes 2 and 3"),
        ("....->", [(2,)], "got ."),
    ],
)
def test_einsum_refuses(equation, shapes, words):
    with pytest.raises(ValueError, match="einsum") as caught:
        wg.einsum(equation, *[wg.ones(shape) for shape in shapes])
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((3,), (3,)),
        ((3,), (3, 4)),
        ((2, 3), (3,)),
        ((3,), (5, 3, 4)),
        ((5, 2, 3), (3,)),
        ((2, 3), (5, 3, 4)),
        ((6, 5, 2, 3), (3, 4)),
        ((6, 1, 2, 3), (5, 3, 4)),
        ((1, 2, 3), (5, 3, 4)),
        ((0, 3), (3, 4)),
        ((2, 0), (0, 4)),
        ((0, 2, 3), (1, 3, 4)),
    ],
)
def test_matmul_by_ranks(a, b):
    a, b = rng.standard_normal(a), rng.standard_normal(b)
    near(wg.asarray(a) @ wg.asarray(b), a @ b, 1e-12)


def test_arange():
    for args in [(5,), (2, 9), (9, 2, -2), (0,), (5, 2), (-3, 4, 3), (2, 9, 0.5), (0.0, 1.0, 0.1)]:
        got, want = wg.arange(*args), np.arange(*args)
        assert got.dtype == (wg.int64 if want.dtype == np.int64 else wg.float32)
        np.testing.assert_array_equal(got.numpy(), want.astype(got.numpy().dtype))
    assert wg.arange(16.0).dtype == wg.float32
    assert wg.arange(3, dtype=wg.float64).tolist() == [0.0, 1.0, 2.0]
    assert wg.arange(2**53, 2**53 + 3).tolist() == [2**53, 2**53 + 1, 2**53 + 2]
    with pytest.raises(ValueError, match="zero"):
        wg.arange(0, 1, 0)
    with pytest.raises(ValueError, match="finite"):
        wg.arange(float("inf"))
    with pytest.raises(OverflowError, match=r"299.*int8"):
        wg.arange(300, dtype=wg.int8)
    with pytest.raises(TypeError, match="arange"):
        wg.arange(wg.tensor(3))


def test_linspace():
    for args in [(0, 1, 5), (2, -3, 7), (0.1, 0.9, 1), (0, 1, 0)]:
        for endpoint in (True, False):
            got = wg.linspace(*args, endpoint=endpoint, dtype=wg.float64)
            near(got, np.linspace(*args, endpoint=endpoint), 1e-15)
    assert wg.linspace(0.1, 0.7, 300, dtype=wg.float64)[-1].item() == 0.7


def test_creation():
    assert wg.full((2,), 1).dtype == wg.int64 and wg.full((2,), True).dtype == wg.bool
    assert wg.full(2, 1.5).dtype == wg.float32
    assert wg.full((2, 3), wg.tensor([1.0, 2.0, 3.0])).tolist() == [[1.0, 2.0, 3.0]] * 2
    with pytest.raises(OverflowError, match="full: 300"):
        wg.full((2,), 300, dtype=wg.uint8)
    for n, m, k in [(3, None, 0), (2, 4, 1), (4, 2, -2), (0, 2, 0), (2, 3, 9)]:
        np.testing.assert_array_equal(wg.eye(n, m, k=k).numpy(), np.eye(n, m, k))
    for indexing in ("xy", "ij"):
        arrays = [np.arange(n) for n in (2, 3, 4)]
        got = wg.meshgrid(*map(wg.asarray, arrays), indexing=indexing)
        for g, w in zip(got, np.meshgrid(*arrays, indexing=indexing), strict=True):
            np.testing.assert_array_equal(g.numpy(), w)
    with pytest.raises(IndexError, match=r"one_hot.*3"):
        wg.one_hot(wg.tensor([3]), 3)
    assert wg.tril(wg.tensor([[True, True]])).tolist() == [[True, False]]


def test_reshape_with_an_open_size():
    assert wg.zeros((0, 3)).reshape(-1, 3).shape == (0, 3)
    for shape in [(-1, 0), (-1, -1), (-2, 3), (4, -1)]:
        with pytest.raises(wg.ShapeError, match="reshape"):
            wg.zeros((2, 3)).reshape(shape)
    with pytest.raises(wg.ShapeError):
        wg.zeros((0, 3)).reshape(0, -1)
    assert wg.tensor(5.0).flatten().shape == (1,) and wg.zeros((2, 0, 3)).flatten().shape == (0,)


@pytest.mark.parametrize("shape", [(3, 4), (4, 3), (1, 5), (0, 3), (3, 0)])
def test_diagonals(shape):
    a = rng.standard_normal(shape)
    for offset in range(-6, 7):
        np.testing.assert_array_equal(
            wg.diagonal(wg.asarray(a), offset=offset).numpy(), np.diagonal(a, offset)
        )
        near(wg.trace(wg.asarray(a), offset=offset), np.trace(a, offset))
        line = a.ravel()[:3]
        np.testing.assert_array_equal(
            wg.diag(wg.asarray(line), k=offset).numpy(), np.diag(line, offset)
        )


def test_moves():
    a = rng.standard_normal((2, 3, 4))
    t = wg.asarray(a)
    for shift, axis in [(5, 0), (-1, 2), ((1, 2), (0, 1)), (1, (0, 2)), (3, None), ((1, 2), None)]:
        want = np.roll(a, np.sum(shift) if axis is None else shift, axis)
        np.testing.assert_array_equal(wg.roll(t, shift, axis).numpy(), want)
    np.testing.assert_array_equal(
        wg.moveaxis(t, (0, 1), (-1, 0)).numpy(), np.moveaxis(a, (0, 1), (-1, 0))
    )
    assert wg.expand_dims(t, (0, -1)).shape == (1, 2, 3, 4, 1)
    assert wg.squeeze(wg.zeros((1, 2, 1))).shape == (2,)
    with pytest.raises(wg.ShapeError, match=r"squeeze.*size 2"):
        wg.squeeze(t, 0)
    assert [p.shape[0] for p in wg.chunk(wg.arange(7), 3)] == [3, 3, 1]
    assert wg.chunk(wg.zeros(0), 2)[0].shape == (0,)
    for call in (
        lambda: wg.split(t, 2, axis=1),
        lambda: wg.split(t, (1, 1), axis=1),
        lambda: wg.stack([t, t[0]]),
        lambda: wg.tensor(1) @ t,
    ):
        with pytest.raises(wg.ShapeError):
            call()
    for widths in [1, (1, 2), ((1, 0), (0, 2), (3, 3))]:
        got = wg.pad(t, widths, value=2.5).numpy()
        np.testing.assert_array_equal(got, np.pad(a, widths, constant_values=2.5))
    with pytest.raises(OverflowError):
        wg.pad(wg.ones(3, dtype=wg.int8), 1, value=300)
    assert wg.concat([t, t], None).shape == (48,)
    assert wg.concat([wg.ones(1, dtype=wg.int8), wg.ones(1, dtype=wg.float16)]).dtype == wg.float16


def test_searchsorted_is_numpy_s():
    line = np.sort(rng.integers(0, 6, 20)).astype("float64")
    line[-2:] = np.nan
    values = np.concatenate([np.arange(-1.0, 8.0), [np.nan, -0.0, np.inf]]).reshape(3, 4)
    for side in ("left", "right"):
        got = wg.searchsorted(wg.asarray(line), wg.asarray(values), side=side)
        np.testing.assert_array_equal(got.numpy(), np.searchsorted(line, values, side))
    assert wg.searchsorted(wg.zeros(0), wg.ones(2)).tolist() == [0, 0]
    for n in (1, 2, 3, 4, 5, 15, 16, 17, 255, 256, 257, 4095, 4096, 4097):
        for dtype in ("float32", "float16", "int8", "uint64", "bool"):
            line = np.sort(rng.integers(0, 2 if dtype == "bool" else 100, n)).astype(dtype)
            values = rng.integers(0, 2 if dtype == "bool" else 110, 300).astype(dtype)
            if dtype.startswith("float"):
                line[n // 2 :] = np.nan
                values[::50] = np.nan
            for side in ("left", "right"):
                got = wg.searchsorted(wg.asarray(line), wg.asarray(values), side=side)
                np.testing.assert_array_equal(got.numpy(), np.searchsorted(line, values, side))


def test_searchsorted_takes_open_sizes():
    f = wg.compile(wg.searchsorted, signature=[wg.Spec((None,), wg.float32)] * 2)
    for n in (5, 16, 3, 255, 256, 1, 4095, 4096, 5000):
        line = np.sort(rng.standard_normal(n)).astype("float32")
        values = rng.standard_normal(40 + n % 3).astype("float32")
        got = f(wg.asarray(line), wg.asarray(values))
        np.testing.assert_array_equal(got.numpy(), np.searchsorted(line, values))


def test_take_along_axis_broadcasts():
    x, i = rng.standard_normal((1, 4, 3)), rng.integers(0, 4, (5, 2, 1))
    want = np.take_along_axis(np.broadcast_to(x, (5, 4, 3)), np.broadcast_to(i, (5, 2, 3)), 1)
    np.testing.assert_array_equal(wg.take_along_axis(wg.asarray(x), wg.asarray(i), 1).numpy(), want)


def test_statistics_at_the_edges():
    big = wg.full((1000,), 1000.0, dtype=wg.float16)
    assert big.mean().item() == 1000.0 and big.var().item() == 0.0
    assert np.isnan(wg.zeros((0,)).mean().item())
    low = wg.full((2,), -float("inf"), requires_grad=False)
    assert wg.logsumexp(low).item() == -float("inf")
    x = wg.tensor([0.0, 0.0], requires_grad=True)
    wg.vector_norm(x).backward()
    assert x.grad.tolist() == [0.0, 0.0]
    with pytest.raises(wg.ShapeError, match="median"):
        wg.median(wg.zeros((0,)))
    assert np.isnan(wg.median(wg.tensor([1.0, float("nan"), 2.0])).item())
    assert wg.quantile(wg.tensor([0.0, float("inf")]), 0.0).item() == 0.0
    with pytest.raises(ValueError, match="quantile"):
        wg.quantile(x.detach(), 1.5)
    initial = wg.cumulative_sum(wg.tensor([1, 2]), include_initial=True)
    assert initial.tolist() == [0, 1, 3]
    with pytest.raises(wg.ShapeError, match="cumulative_sum"):
        wg.cumulative_sum(wg.zeros((2, 2)))


def test_numbers_in_place_of_nan():
    a = np.array([np.nan, np.inf, -np.inf, 1.5])
    for dtype in ("float16", "float32", "float64"):
        got = wg.nan_to_num(wg.asarray(a.astype(dtype)), nan=3.0)
        np.testing.assert_array_equal(got.numpy(), np.nan_to_num(a.astype(dtype), nan=3.0))
    close = wg.isclose(wg.asarray(a), wg.asarray(a), equal_nan=True)
    assert close.tolist() == [True] * 4
    x = wg.tensor([np.nan, np.inf, 2.0], requires_grad=True)
    wg.nan_to_num(x).sum().backward()
    assert x.grad.tolist() == [0.0, 0.0, 1.0]


def test_results_of_a_function_of_numbers():
    assert wg.divide(1, 2).item() == 0.5 and wg.divide(1, 2).dtype == wg.float32
    assert wg.sum(3.0).item() == 3.0 and wg.mean(True).item() == 1.0
    assert wg.reshape(2.0, (1, 1)).tolist() == [[2.0]]
    assert wg.stack([1, wg.tensor(2.5)]).tolist() == [1.0, 2.5]


def test_a_gradient_computes_what_its_formulas_share_once_and_nothing_for_the_others():
    given, count = [wg.ones((4, 6)), wg.ones(6), wg.ones(6)], {}
    for wanted in ("x", "w", "b", "xw", "xwb"):
        grad = wg.grad(
            lambda x, w, b: wg.nn.layer_norm(x, weight=w, bias=b).sum(),
            argnums=tuple("xwb".index(name) for name in wanted),
        )
        ops = [node.op for node in wg.compile(grad).graph(*given).nodes]
        count[wanted] = [ops.count(op) for op in ("rsqrt", "subtract")]
    # What is saved, and what is centred, is computed once for all; nothing for the bias alone.
    assert count == {"x": [1, 3], "w": [1, 1], "b": [0, 0], "xw": [1, 3], "xwb": [1, 3]}
