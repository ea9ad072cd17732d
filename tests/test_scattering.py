"""Scatters, segments, running extremes, counts, borders and choices at their edges."""

import math

import numpy as np
import pytest

import wengert as wg
from wengert.testing import gradcheck, gradgradcheck

INF, NAN = math.inf, math.nan
rng = np.random.default_rng(11)


def test_extremes_share_their_gradient_among_equals():
    x, i = wg.tensor([1.0, 3.0]), wg.tensor([0, 0, 1, 1])
    values = wg.tensor([1.0, 1.0, 3.0, 2.0])

    def f(x, values, **options):
        y = wg.scatter_reduce(x, i, values, reduce="max", **options)
        return (y * wg.tensor([6.0, 4.0])).sum()

    both = wg.grad(f, argnums=(0, 1))(x, values)
    assert [g.tolist() for g in both] == [[2.0, 2.0], [2.0, 2.0, 2.0, 0.0]]
    both = wg.grad(lambda x, v: f(x, v, include_self=False), argnums=(0, 1))(x, values)
    assert [g.tolist() for g in both] == [[0.0, 0.0], [3.0, 3.0, 4.0, 0.0]]


def test_products_with_zeros_have_exact_gradients():
    x = wg.tensor([2.0, 5.0], dtype=wg.float64)
    values = wg.tensor([0.0, 3.0, 0.0, 4.0, 0.0], dtype=wg.float64)
    ids = wg.tensor([0, 0, 1, 1, 1])

    def f(v):
        return wg.scatter_reduce(x, ids, v, reduce="prod").sum()

    assert wg.grad(f)(values).tolist() == [6.0, 0.0, 0.0, 0.0, 0.0]
    assert gradgradcheck(f, [values])


def test_nan_wins_and_infinities_stay():
    x, i = wg.zeros(2), wg.tensor([0, 0, 1])
    for reduce in ("max", "min"):
        y = wg.scatter_reduce(x, i, wg.tensor([NAN, 1.0, -INF]), reduce=reduce).tolist()
        assert math.isnan(y[0]) and y[1] == (0.0 if reduce == "max" else -INF)


def test_scatters_of_integers_and_nothing():
    x = wg.tensor([1, 2], dtype=wg.int8)
    y = wg.scatter_reduce(x, wg.tensor([0, -1]), wg.tensor([3, 4], dtype=wg.int8), reduce="prod")
    assert y.tolist() == [3, 8] and y.dtype == wg.int8
    none = wg.zeros(0, dtype=wg.int64)
    for reduce in ("sum", "prod", "max", "min"):
        y = wg.scatter_reduce(wg.ones(2), none, wg.zeros(0), reduce=reduce)
        assert y.tolist() == [1.0, 1.0]
    assert wg.segment_sum(wg.zeros((0, 3)), none, 2).tolist() == [[0.0] * 3] * 2
    small = wg.tensor([3, 1], dtype=wg.uint8)
    assert wg.segment_max(small, wg.tensor([1, 1]), 3).tolist() == [0, 3, 0]
    assert wg.segment_min(wg.tensor([3.0]), wg.tensor([7]), 2).tolist() == [INF, INF]
    low = wg.segment_max(wg.zeros(0, dtype=wg.int32), none, 1)
    assert low.tolist() == [-(2**31)] and low.dtype == wg.int32


def test_segments_in_every_mode():
    x = wg.tensor(rng.standard_normal((20, 3)))
    ids = wg.tensor(rng.integers(0, 4, 20))
    for f in (wg.segment_sum, wg.segment_prod, wg.segment_mean, wg.segment_max, wg.segment_min):
        assert gradcheck(lambda x, f=f: f(x, ids, 4), [x])
        got = wg.compile(lambda x, i, f=f: f(x, i, 4))(x, ids)
        assert got.numpy().tobytes() == f(x, ids, 4).numpy().tobytes()
        rows = wg.vmap(lambda x, f=f: f(x, ids, 4))(wg.stack([x, -x]))
        np.testing.assert_allclose(rows[1].numpy(), f(-x, ids, 4).numpy(), rtol=1e-12)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: wg.scatter_reduce(wg.ones(2), wg.tensor([2]), wg.ones(1)), IndexError, "scatter"),
        (lambda: wg.scatter_reduce(wg.ones(2), wg.tensor([0]), wg.ones(1), reduce="mean"),
         ValueError, "scatter_reduce.*mean.*prod"),
        (lambda: wg.index_copy(wg.ones(2), wg.tensor([[0]]), wg.ones(1)), ValueError, "index_copy"),
        (lambda: wg.index_copy(wg.ones(2), wg.tensor([5]), wg.ones(1)), IndexError, "index_copy"),
        (lambda: wg.index_fill(wg.ones(2, dtype=wg.int8), wg.tensor([0]), 300), OverflowError,
         "index_fill"),
        (lambda: wg.index_put(wg.ones(2), [wg.tensor([0]), wg.tensor([0])], wg.ones(1)),
         ValueError, "index_put.*indices"),
        (lambda: wg.index_put(wg.ones(2), [wg.tensor([0.5])], wg.ones(1)), TypeError, "index_put"),
        (lambda: wg.masked_scatter(wg.ones(3), wg.tensor([True] * 3), wg.ones(2)), IndexError,
         "masked_scatter"),
        (lambda: wg.segment_sum(wg.ones(3), wg.tensor([0]), 2), ValueError, "segment_sum.*ids"),
        (lambda: wg.kthvalue(wg.ones(3), 0), ValueError, "kthvalue.*k"),
        (lambda: wg.kthvalue(wg.ones(3), 4), ValueError, "kthvalue"),
        (lambda: wg.mode(wg.zeros((2, 0))), ValueError, "mode"),
        (lambda: wg.pad(wg.ones(3), (-2, -2)), ValueError, "pad.*cut"),
        (lambda: wg.pad(wg.ones(0), (1, 1), mode="edge"), ValueError, "pad.*nothing"),
        (lambda: wg.bincount(wg.tensor([-1])), ValueError, "bincount.*negative"),
        (lambda: wg.bincount(wg.tensor([[1]])), ValueError, "bincount.*rank"),
        (lambda: wg.histogram(wg.ones(3), bins=0), ValueError, "histogram.*bins"),
        (lambda: wg.random.choice(3, (4,), replace=False), ValueError, "choice.*replace"),
        (lambda: wg.random.choice(wg.ones(3), p=wg.ones(2)), ValueError, r"choice.*\(3,\)"),
        (lambda: wg.random.normal_like(wg.tensor([1])), TypeError, "normal_like"),
        (lambda: wg.compile(wg.bincount)(wg.tensor([1])), wg.CaptureError, "bincount.*length"),
    ],
)  # fmt: skip
def test_refusals(call, error, words):
    with pytest.raises(error, match=words):
        call()


def test_running_extremes_keep_the_last_of_equals():
    x = wg.tensor([2.0, 2.0, 1.0, NAN, 5.0])
    y, i = wg.cumulative_max_with_indices(x)
    assert y.tolist()[:3] == [2.0] * 3 and i.tolist() == [0, 1, 1, 3, 3]
    assert all(math.isnan(v) for v in y.tolist()[3:])
    assert wg.cumulative_min_with_indices(wg.tensor([2, 1, 1, 3]))[1].tolist() == [0, 1, 2, 2]
    g = wg.grad(lambda x: wg.cumulative_max_with_indices(x)[0].sum())(wg.tensor([2.0, 1.0, 2.0]))
    assert g.tolist() == [2.0, 0.0, 1.0]


def test_running_sums_of_exponentials_far_out():
    x = wg.tensor([-INF, -INF, -1e4, 0.0, 1e4, -1e4], dtype=wg.float64)
    assert wg.logcumsumexp(x).tolist() == [-INF, -INF, -1e4, 0.0, 1e4, 1e4]
    g = wg.grad(lambda x: wg.logcumsumexp(x)[2:].sum())(x)
    assert g.tolist() == [0.0, 0.0, 1.0, 1.0, 2.0, 0.0]
    y = wg.tensor(rng.standard_normal((3, 40)) * 5)
    want = np.log(np.cumsum(np.exp(y.numpy()), 1))
    np.testing.assert_allclose(wg.logcumsumexp(y, axis=1).numpy(), want, rtol=1e-12)
    assert gradgradcheck(lambda y: wg.logcumsumexp(y, axis=1), [y[:, :5]])


def test_modes_and_places():
    x = wg.tensor([[2, 1, 2, 1, 0], [5, 5, 5, 1, 1]])
    value, place = wg.mode(x)
    assert value.tolist() == [1, 5] and place.tolist() == [3, 2]
    x = wg.tensor([3.0, NAN, 1.0])
    assert [wg.kthvalue(x, k)[1].item() for k in (1, 2, 3)] == [2, 0, 1]
    g = wg.grad(lambda x: wg.kthvalue(x, 2)[0] + 2 * wg.mode(x)[0])(wg.tensor([3.0, 1.0, 3.0]))
    assert g.tolist() == [1.0, 0.0, 2.0]


def test_membership_and_closeness():
    x = wg.tensor([1.0, NAN, INF, -0.0])
    assert wg.isin(x, wg.tensor([NAN, INF, 0.0])).tolist() == [False, False, True, True]
    assert wg.isin(wg.tensor([1, 2]), 2.0).tolist() == [False, True]
    assert wg.isin(x, wg.zeros(0), invert=True).tolist() == [True] * 4
    a = wg.tensor([1.0, NAN])
    assert wg.allclose(a, a, equal_nan=True) and not wg.allclose(a, a)
    assert wg.allclose(a[:1], a[:1] + 1e-7) and wg.allclose(wg.zeros(0), wg.ones(0))
    assert wg.allclose(1.0, a[:1]).shape == ()


def test_borders_of_every_kind():
    x = np.arange(12.0).reshape(3, 4)
    t = wg.tensor(x)
    for widths in [((1, 2), (3, 0)), ((7, 0), (0, 9)), ((0, 0), (2, 2))]:
        for mode in ("reflect", "symmetric", "edge", "wrap"):
            np.testing.assert_array_equal(
                wg.pad(t, widths, mode=mode).numpy(), np.pad(x, widths, mode))
    one = np.pad(x[:1], ((2, 1), (0, 0)), "reflect")
    np.testing.assert_array_equal(wg.pad(t[:1], ((2, 1), (0, 0)), mode="reflect").numpy(), one)
    cut = wg.pad(t, ((-1, 1), (0, -3)), value=9.0)
    assert cut.tolist() == [[4.0], [8.0], [9.0]]
    moved = np.pad(x[:, 1:], ((0, 0), (0, 2)), "wrap")
    np.testing.assert_array_equal(wg.pad(t, ((0, 0), (-1, 2)), mode="wrap").numpy(), moved)
    w = wg.tensor(rng.standard_normal((5, 8)))
    for mode in ("reflect", "symmetric", "edge", "wrap"):
        assert gradcheck(lambda t, m=mode: wg.pad(t, ((1, 1), (2, 2)), mode=m) * w, [t])
        again = wg.compile(lambda t, m=mode: wg.pad(t, ((1, 1), (2, 2)), mode=m))(t)
        np.testing.assert_array_equal(again.numpy(), np.pad(x, ((1, 1), (2, 2)), mode))


def test_counts():
    x = rng.integers(0, 6, 50)
    w = rng.standard_normal(50)
    assert wg.bincount(wg.tensor(x)).tolist() == np.bincount(x).tolist()
    assert wg.bincount(wg.zeros(0, dtype=wg.int64), minlength=2).tolist() == [0, 0]
    few = wg.compile(lambda x: wg.bincount(x, length=3))(wg.tensor(x))
    assert few.tolist() == np.bincount(x)[:3].tolist()
    got = wg.bincount(wg.tensor(x), wg.tensor(w), 9)
    np.testing.assert_allclose(got.numpy(), np.bincount(x, w, 9), rtol=1e-12)
    for options in ({}, {"bins": 7}, {"range": (-1.0, 0.5)}, {"density": True}, {"weights": w}):
        own = {k: wg.tensor(v) if k == "weights" else v for k, v in options.items()}
        for got, want in zip(wg.histogram(wg.tensor(w), **own), np.histogram(w, **options),
                             strict=True):
            np.testing.assert_allclose(got.numpy(), want, rtol=1e-12)
    counts, edges = wg.histogram(wg.full((3,), 2.0), bins=2)
    assert counts.tolist() == [0, 3] and edges.tolist() == [1.5, 2.0, 2.5]
    counts, _ = wg.histogram(wg.tensor([0.0, NAN, 1.0, 2.0]), bins=wg.tensor([0.0, 1.0, 2.0]))
    assert counts.tolist() == [1, 2]
    step = wg.compile(lambda x: wg.histogram(x, bins=5)[0])
    assert step(wg.tensor(w)).tolist() == np.histogram(w, 5)[0].tolist() and step.traces == 1


def test_draws_of_elements():
    key = wg.random.key(1)
    x = wg.arange(12).reshape(6, 2)
    y = wg.random.shuffle(x, key=key)
    assert sorted(y.tolist()) == x.tolist() != y.tolist()
    assert wg.random.shuffle(x, axis=1, key=key).sum(axis=1).tolist() == [1, 5, 9, 13, 17, 21]
    p = np.array([0.0, 0.5, 0.2, 0.3])
    drawn = wg.random.choice(4, (5000,), p=wg.tensor(p), key=key).numpy()
    assert np.abs(np.bincount(drawn, minlength=4) / 5000 - p).max() < 0.03
    some = wg.random.choice(4, (3,), replace=False, p=wg.tensor(p), key=key).tolist()
    assert sorted(some) == [1, 2, 3]
    assert wg.random.choice(x, (2, 3), key=key).shape == (2, 3, 2)
    wg.random.seed(0)
    first = [wg.random.choice(4, (2,), replace=False, p=wg.tensor(p))[0].item()
             for _ in range(300)]
    assert np.abs(np.bincount(first, minlength=4) / 300 - p).max() < 0.1
    counts = wg.random.multinomial((2, 500), n=9, p=wg.tensor([[1.0, 1.0, 2.0]]), key=key).numpy()
    assert counts.shape == (2, 500, 3) and (counts.sum(-1) == 9).all()
    assert np.abs(counts.reshape(-1, 3).mean(0) - [2.25, 2.25, 4.5]).max() < 0.2
    assert wg.random.multinomial(n=0, p=wg.ones(2)).tolist() == [0, 0]


@pytest.mark.parametrize(
    ("name", "law"),
    [("exponential", lambda x: 1 - np.exp(-x / 2)), ("gumbel", lambda x: np.exp(-np.exp(-x / 2)))],
)
def test_laws(name, law):
    draw = getattr(wg.random, name)
    for dtype in (wg.float32, wg.float64):
        x = np.sort(draw((50_000,), scale=2.0, dtype=dtype, key=wg.random.key(2)).numpy())
        assert np.isfinite(x).all()
        assert np.abs(law(x.astype("d")) - (np.arange(50_000) + 0.5) / 50_000).max() < 0.01
    g = wg.grad(lambda s: draw((4,), scale=s, key=wg.random.key(2)).sum())(wg.tensor(2.0))
    assert abs(g.item() - draw((4,), key=wg.random.key(2)).sum().item()) < 1e-5
    x = wg.random.uniform_like(wg.zeros((3, 2), dtype=wg.float64), low=1.0, high=2.0)
    assert x.shape == (3, 2) and x.dtype == wg.float64 and ((x >= 1) & (x < 2)).all()
    assert wg.random.normal_like(wg.zeros(3), dtype=wg.float16).dtype == wg.float16


def test_an_index_may_be_smaller_than_the_operand():
    x = rng.standard_normal((4, 5))
    i = rng.integers(-5, 5, (2, 7))
    values = rng.standard_normal((2, 7))
    a, at, v = wg.asarray(x), wg.asarray(i), wg.asarray(values)
    options = {"axis": 1, "broadcast": False}
    got = wg.take_along_axis(a, at, **options)
    np.testing.assert_array_equal(got.numpy(), np.take_along_axis(x[:2], i, 1))
    want = x.copy()
    np.put_along_axis(want[:2], i, values, 1)
    np.testing.assert_array_equal(wg.put_along_axis(a, at, v, **options).numpy(), want)
    want = x.copy()
    for r, c in np.ndindex(i.shape):
        want[r, i[r, c]] += values[r, c]
    np.testing.assert_allclose(wg.scatter_reduce(a, at, v, **options).numpy(), want)
    with pytest.raises(wg.ShapeError, match="broadcast"):
        wg.take_along_axis(a, at, axis=1)
    for call in (
        lambda: wg.take_along_axis(a, wg.zeros((5, 1), dtype=wg.int64), **options),
        lambda: wg.put_along_axis(a, wg.zeros((5, 1), dtype=wg.int64), 1.0, **options),
        lambda: wg.scatter_reduce(a, wg.zeros((5, 1), dtype=wg.int64), wg.ones(1), **options),
    ):
        with pytest.raises(wg.ShapeError, match=r"larger than x outside the axis: axis 0 of "):
            call()
    with pytest.raises(wg.ShapeError, match="rank"):
        wg.take_along_axis(a, wg.zeros(2, dtype=wg.int64), axis=0, broadcast=False)


def test_a_smaller_index_in_every_mode():
    x, i = wg.tensor(rng.standard_normal((3, 4, 2))), wg.tensor(rng.integers(0, 4, (2, 3, 1)))
    v = wg.tensor(rng.standard_normal((2, 3, 1)))
    options = {"axis": 1, "broadcast": False}
    for f in (
        lambda x, v: wg.take_along_axis(x, i, **options) * v,
        lambda x, v: wg.put_along_axis(x, i, v, **options),
        lambda x, v: wg.scatter_reduce(x, i, v, **options),
        lambda x, v: wg.scatter_reduce(x, i, v, reduce="prod", **options),
        lambda x, v: wg.scatter_reduce(x, i, v, reduce="max", include_self=False, **options),
    ):
        assert gradcheck(f, [x, v])
        assert wg.compile(f)(x, v).numpy().tobytes() == f(x, v).numpy().tobytes()
        rows = wg.vmap(f)(wg.stack([x, -x]), wg.stack([v, 2 * v]))
        np.testing.assert_allclose(rows[1].numpy(), f(-x, 2 * v).numpy(), rtol=1e-12)
