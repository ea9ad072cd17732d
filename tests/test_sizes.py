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
