"""Expressions of sizes go with the graphs, traces and objects that need them."""

import gc

import numpy as np
import pytest

import wengert as wg
from wengert import _core


def kept() -> int:
    gc.collect()
    return _core._interned_sizes()


def concatenated(k: int, name: str | None = None) -> tuple[wg.Graph, wg.Tensor, wg.Tensor]:
    with wg.Graph() as g:
        x = wg.placeholder("x", (None if name is None else wg.Dim(name),))
        y = wg.concat([x, wg.ones(k)])
        y = wg.concat([y[: x.shape[0] // (k + 2)], y]) * 2.0
    return g, x, y


@pytest.mark.parametrize("name", [None, "batch"], ids=["open", "named"])
def test_expressions_go_with_their_graph(name: str | None) -> None:
    concatenated(1, name)
    before = kept()
    for k in range(2, 2000):
        concatenated(k, name)
    assert kept() == before
    graphs = [concatenated(k, name) for k in range(2, 100)]
    assert kept() > before + 98
    del graphs
    assert kept() == before


def test_names_go_with_their_sizes() -> None:
    before = kept()
    sizes = [wg.Dim(f"fresh{i}") * 3 + i for i in range(500)]
    assert kept() >= before + 1000
    assert str(sizes[7]) == "3*fresh7 + 7"
    del sizes
    assert kept() == before


def test_a_size_outlives_its_graph() -> None:
    g, _, y = concatenated(5, "rows")
    (size,) = y.shape
    text = str(size)
    del g, y
    gc.collect()
    for k in range(6, 300):
        concatenated(k, "rows")
    assert str(size) == text
    assert str(size - size) == "0"
    assert size == size and size != size + 1


def test_a_session_over_many_sizes_does_not_grow() -> None:
    with wg.Graph() as g:
        x, z = wg.placeholder("x", (None,)), wg.placeholder("z", (None, None))
        y = wg.concat([x, wg.ones(3)]).sum() * 2.0
        w = wg.concat([z, z], axis=1)
    counts = []
    with wg.Session(g) as s:
        for i in range(20_000):
            n = i % 5000
            assert float(s.run(y, {x: wg.ones(n)})) == 2.0 * (n + 3)
            if i % 100 == 0:
                assert s.run(w, {x: wg.ones(n), z: wg.ones((2, 1 + n % 7))}).shape[0] == 2
            if i in (500, 19_999):
                counts.append((kept(), len(s._plans)))
    assert counts[0] == counts[1]
    feeds = [wg.ones(n) for n in range(300)]
    with g, wg.Session(g) as s:
        before = kept()
        for feed in feeds:
            s.run(y, {x: feed})
        s.close()
        assert kept() == before


def test_a_compiled_function_over_many_sizes_does_not_grow() -> None:
    @wg.compile
    def f(x: wg.Tensor) -> wg.Tensor:
        return wg.concat([x, x[: x.shape[0] // 2]]).cumulative_sum()

    def check(n: int) -> None:
        x = np.arange(n, dtype=np.float32)
        want = np.cumsum(np.concatenate([x, x[: n // 2]]))
        np.testing.assert_allclose(np.asarray(f(wg.asarray(x))), want, rtol=1e-5)

    for n in range(4, 200):
        check(n)
    before = kept()
    for n in range(200, 1500):
        check(n)
    assert kept() == before


def test_traces_go_with_their_functions() -> None:
    def make(k: int) -> None:
        f = wg.compile(lambda x: wg.concat([x, wg.ones(k)]) * 2.0)
        for n in (3, 4, 5):
            assert f(wg.ones(n)).shape == (n + k,)

    make(1)
    before = kept()
    for k in range(2, 60):
        make(k)
    assert kept() == before


def test_copies_keep_what_their_graph_made() -> None:
    g, x, y = concatenated(17, "length")
    copy, text = g.clone(), str(g)
    del g, x, y
    gc.collect()
    for k in range(20, 200):
        concatenated(k, "length")
    assert str(copy) == text


def doubled(x: wg.Tensor) -> wg.Tensor:
    i = wg.tensor(0)
    return wg.while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * 2.0), (i, x))[1]


def joined(k: int):
    return lambda x: (wg.concat([x, wg.ones(k)]).cumulative_sum() * k)[: x.shape[0]]


def session(f, size, k):
    with wg.Graph() as g:
        x = wg.placeholder("x", (size,))
        y = f(x)
        dx = wg.gradients(y.sum(), x)
    return wg.Session(g).run((y, dx), {x: wg.ones(k)})


def later(k: int):
    """A loop that is a later node of its list for each `k`."""

    def f(x: wg.Tensor) -> wg.Tensor:
        for _ in range(k):
            x = x + 1.0
        return doubled(x)

    return f


GROWING = {
    "vmap": lambda k: wg.vmap(joined(k))(wg.ones((2, k))),
    "vmap of one function": lambda k: wg.vmap(doubled)(wg.ones((2, k))),
    "jacobian": lambda k: wg.jacobian(joined(k))(wg.ones(k % 20 + 1)),
    "jvp": lambda k: wg.jvp(joined(k), (wg.ones(k),), (wg.ones(k),)),
    "while_loop": lambda k: doubled(wg.ones(k)),
    "gradient of while_loop": lambda k: wg.grad(lambda x: doubled(joined(k)(x)).sum())(wg.ones(k)),
    "scan": lambda k: wg.scan(lambda c, x: (c + x, joined(k)(c)), wg.ones(k), wg.ones((2, k))),
    "cond": lambda k: wg.cond(wg.tensor(True), joined(k), doubled, wg.ones(k)),
    "session": lambda k: session(lambda x: doubled(joined(k)(x)), None, k),
    "session, named": lambda k: session(lambda x: doubled(joined(k)(x)), wg.Dim(f"rows{k}"), k),
    "compiled": lambda k: wg.compile(wg.grad(lambda x: doubled(joined(k)(x)).sum()))(wg.ones(k)),
    "compiled, named": lambda k: wg.grad(wg.compile(
        lambda x: doubled(joined(k)(x)).sum(), signature=[wg.Spec((wg.Dim(f"cols{k}"),))],
    ))(wg.ones(k)),
    "a later loop": lambda k: wg.compile(wg.grad(lambda x: later(k)(x).sum()))(wg.ones(2)),
}


@pytest.mark.parametrize("name", GROWING)
def test_no_call_of_another_size_leaves_expressions_behind(name: str) -> None:
    for k in range(1, 8):
        GROWING[name](k)
    before = kept()
    for k in range(8, 88):
        GROWING[name](k)
    assert kept() == before


@pytest.mark.parametrize("name", ["vmap", "while_loop", "gradient of while_loop", "cond"])
def test_ten_thousand_eager_calls_leave_no_expressions_behind(name: str) -> None:
    GROWING[name](3)
    before = kept()
    for i in range(10_000):
        GROWING[name](1 + i % 50)
    assert kept() == before


def test_loops_inside_loops_count_their_rounds_apart() -> None:
    def loop(x: wg.Tensor, n: int) -> wg.Tensor:
        step = lambda i, x: (i + 1, x * x * 0.9)  # noqa: E731
        return wg.while_loop(lambda i, x: i < n, step, (wg.tensor(0), x))[1]

    def f(x: wg.Tensor) -> wg.Tensor:
        a = loop(x, 2)
        body = lambda i, y: (i + 1, loop(y, 4) + x)  # noqa: E731
        b = wg.while_loop(lambda i, y: i < 3, body, (wg.tensor(0), a))[1]
        both = lambda y: loop(y, 3).sum() + loop(x, 5).sum()  # noqa: E731
        c = wg.cond(b.sum() > -100.0, both, lambda y: y.sum(), b)
        d = wg.scan(lambda c, v: (loop(c, 2) + v, loop(v, 3).sum()), b, wg.stack([a, x]))
        return c + d[0].sum() + d[1].sum() + loop(b, 6).sum()

    x, step = wg.tensor([0.3, 0.5, 0.7], dtype=wg.float64), 1e-6
    each = step * wg.eye(3, dtype=wg.float64)
    want = [((f(x + e) - f(x - e)) / (2 * step)).item() for e in each]
    with wg.Graph() as g:
        p = wg.placeholder("p", (None,), wg.float64)
        dp = wg.gradients(f(p), p)
    for got in (
        wg.grad(f)(x), wg.compile(wg.grad(f))(x), wg.grad(wg.compile(f))(x),
        wg.vmap(wg.grad(f))(x[None])[0], wg.Session(g).run(dp, {p: x}),
    ):
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-8)


NO_SIZES = [-1, -(2**63), 2**62, 2**63, 2**64, 1.5, "3"]


@pytest.mark.parametrize("size", NO_SIZES)
def test_a_declared_size_is_one(size: object) -> None:
    for declare in (
        lambda: wg.Spec((size,)),
        lambda: wg.Spec((0, size), wg.int8),
        lambda: wg.placeholder("x", (0, size)),
    ):
        with wg.Graph(), pytest.raises((wg.ArgumentError, TypeError)):
            declare()


def test_specs_are_tuples_of_shape_and_dtype() -> None:
    n = wg.Dim("n")
    spec = wg.Spec([2, None, n + 1], wg.int8)
    assert spec == ((2, None, n + 1), wg.int8)
    assert wg.Spec((2**62 - 1, 0)).shape == (2**62 - 1, 0)


# Sizes beside integers that cannot hold all of them.
NARROW = {
    "add": lambda i: i + i.shape[0],
    "reflected": lambda i: i.shape[0] - i,
    "compare": lambda i: i < i.shape[0],
    "power": lambda i: i ** i.shape[0],
    "select": lambda i: wg.where(i > 1, i, i.shape[0]),
    "asarray": lambda i: wg.asarray(i.shape[0], dtype=wg.int8),
    "full": lambda i: wg.full((2,), i.shape[0], dtype=wg.int8),
    "arange": lambda i: wg.arange(i.shape[0], dtype=wg.int8),
    "arange by steps": lambda i: wg.arange(0, i.shape[0], 3, dtype=wg.int8),
}


def updated(i: wg.Tensor) -> wg.Tensor:
    y = i * 1
    y += i.shape[0]
    return y


@pytest.mark.parametrize("name", [*NARROW, "update"])
def test_sizes_that_integers_cannot_hold_are_refused_in_every_mode(name: str) -> None:
    """A trace for open sizes wrapped them."""
    f = {**NARROW, "update": updated}[name]
    compiled = wg.compile(f)
    for n in (9, 20, 100, 127, 128, 131, 300):
        i = wg.arange(n) % 2
        i = i.astype(wg.int8)
        try:
            want = f(i).tolist()
        except wg.RangeError as refusal:
            with pytest.raises(wg.RangeError, match="does not fit int8") as got:
                compiled(i)
            if " by " not in name:
                assert str(got.value).splitlines()[0] == str(refusal).splitlines()[0]
        else:
            assert compiled(i).tolist() == want
    assert compiled.traces == 2


def test_differences_of_sizes_are_exact_or_refused() -> None:
    n = wg.Dim("n")
    assert str(n + -(2**62 - 1)) == f"n - {2**62 - 1}"
    for beyond in (-(2**62), -(2**63)):
        for make in (lambda b: n + b, lambda b: b + n, lambda b: n - b):
            with pytest.raises(wg.ArgumentError, match="at most 4611686018427387903"):
                make(beyond)
