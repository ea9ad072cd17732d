"""Sessions: feeds and fetches, variables, random numbers, threads."""

import threading

import numpy as np
import pytest

import wengert as wg
from wengert import nn


def net():
    with wg.Graph() as g:
        x = wg.placeholder("x", (None, 3))
        w = wg.Variable(wg.ones((3, 2)), name="w")
        y = (x @ w).sum()
        step = w.assign_sub(0.1 * wg.gradients(y, w))
    return g, x, w, y, step


ONE = np.ones((1, 3), "f")


def test_fetches_come_back_in_their_structure():
    g, x, _w, y, _step = net()
    s = wg.Session(g)
    out = s.run({"a": [y, (x, None)], "b": "w", "c": g.nodes[0]}, {x: ONE})
    assert out["a"][0].item() == 6.0 and out["a"][1][1] is None
    assert out["b"].shape == (3, 2) and out["c"].tolist() == ONE.tolist()
    assert s.run([], {}) == [] and s.run(None) is None
    assert s.run([y, y], {"x": ONE})[1].item() == 6.0


def test_any_node_may_be_fed():
    with wg.Graph() as g:
        x = wg.placeholder("x", (None, 3))
        h = x.exp()
        y = (h * 2).sum(axis=1)
        total = y.sum()
    s = wg.Session(g)
    assert s.run(total, {h: np.ones((2, 3), "f")}).item() == 12.0
    assert s.run([h, total], {y: np.ones(4, "f"), x: ONE})[1].item() == 4.0
    assert s.run(total, {g.nodes[1]: np.ones((2, 3), "f")}).item() == 12.0
    assert s.run(total, {total: 3.0}).item() == 3.0
    with pytest.raises(wg.ShapeError, match=r"\(None, 3\)"):
        s.run(total, {h: np.ones((2, 2), "f")})


def test_feeds_are_converted_where_nothing_is_lost():
    with wg.Graph() as g:
        f, i = wg.placeholder("f", (2,)), wg.placeholder("i", (2,), wg.int64)
    s = wg.Session(g)
    assert s.run(f, {f: [1, True]}).dtype == wg.float32
    assert s.run(i, {i: (1, 2)}).tolist() == [1, 2]
    assert s.run(f, {f: wg.ones(2)}).tolist() == [1.0, 1.0]
    for node, value in (
        (f, np.ones(2)),
        (f, np.ones(2, np.int32)),
        (i, [1.5, 2.0]),
        (i, np.ones(2, "f")),
    ):
        with pytest.raises(wg.DTypeError, match=r"(?s)cast.*made at .*test_session\.py:\d+"):
            s.run(node, {node: value})
    with pytest.raises(wg.GraphError, match="twice"):
        s.run(f, {f: [1.0, 2.0], "f": [1.0, 2.0]})
    with pytest.raises(wg.GraphError, match="no data"):
        s.run(f, {f: i})


def test_what_is_missing_or_strange_is_named():
    g, _x, _w, y, _step = net()
    s = wg.Session(g)
    with pytest.raises(
        wg.GraphError, match=r'(?s)placeholder "x".*test_session\.py:\d+.*placeholder\("x"'
    ):
        s.run(y)
    for strange in (wg.ones(2), 3.0, "nosuch", object()):
        with pytest.raises(wg.GraphError):
            s.run(strange)
    other, *_ = net()
    with pytest.raises(wg.GraphError, match="another graph"):
        s.run(other.nodes[0])


def test_declared_sizes_agree():
    n = wg.Dim("n")
    with wg.Graph() as g:
        a, b = wg.placeholder("a", (n, 2)), wg.placeholder("b", (n, 3))
        y = a.sum() + b.sum()
    s = wg.Session(g)
    assert s.run(y, {a: np.ones((4, 2), "f"), b: np.ones((4, 3), "f")}).item() == 20.0
    with pytest.raises(wg.ShapeError, match="n is 4"):
        s.run(y, {a: np.ones((4, 2), "f"), b: np.ones((5, 3), "f")})


def test_only_what_is_fetched_is_computed():
    with wg.Graph() as g:
        x, unused = wg.placeholder("x", (2,)), wg.placeholder("unused", (2,), wg.int64)
        y = x + 1
        wg.take(x, unused) + wg.Variable(np.zeros(2, "f"), name="v")
    s = wg.Session(g)
    assert s.run(y, {x: [1.0, 2.0]}).tolist() == [2.0, 3.0]
    assert not s._values, "a variable that is not needed is not made"
    bad = np.array([0, 7])
    assert s.run(y, {x: [1.0, 2.0], unused: bad}).tolist() == [2.0, 3.0]


def test_a_run_reads_what_was_and_writes_at_its_end():
    with wg.Graph() as g:
        a, b = wg.Variable(1.0, name="a"), wg.Variable(2.0, name="b")
        swap = [a.assign(b), b.assign(a)]
        after = swap[0] * 10
        again = a.assign_add(1.0)
    s = wg.Session(g)
    old = s.run([a, b, *swap, after])
    assert [v.item() for v in old] == [1.0, 2.0, 2.0, 1.0, 20.0]
    assert [v.item() for v in s.run([a, b])] == [2.0, 1.0]
    assert s.run(after).item() == 10.0, "what depends on an assignment assigns"
    assert [v.item() for v in s.run([a, b])] == [1.0, 1.0]
    with pytest.raises(wg.GraphError, match='"a" is assigned twice'):
        s.run([swap[0], again])
    assert s.run(swap[0], {swap[0]: 7.0}).item() == 7.0 and s.run(a).item() == 1.0, (
        "fed, not assigned"
    )


def test_a_failed_run_assigns_nothing():
    with wg.Graph() as g:
        v = wg.Variable([1.0, 2.0], name="v")
        i = wg.placeholder("i", (1,), wg.int64)
        up = v.assign(v * 2)
        picked = wg.take(v, i)
    s = wg.Session(g)
    s.run([up, picked], {i: [1]})
    with pytest.raises(IndexError):
        s.run([up, picked], {i: [9]})
    assert s.run(v).tolist() == [2.0, 4.0]


def test_variables_refuse_what_is_no_assignment():
    with wg.Graph() as g:
        v = wg.Variable(wg.zeros(3), name="v")
        with pytest.raises(wg.ShapeError, match="assign"):
            v.assign(wg.ones(4))
        with pytest.raises(wg.DTypeError, match="assign"):
            v.assign(wg.ones(3, dtype=wg.float64))
        with pytest.raises(wg.GraphError, match="in place"):
            v += 1
        with pytest.raises(wg.GraphError, match="in place"):
            v[0] = 1
        with pytest.raises(wg.GraphError, match="known shape"):
            wg.Variable(wg.placeholder("p", (None,)))
        x = wg.placeholder("x")
        set_x = v.assign(x)
    assert ([n.name for n in g.inputs][:1] == ["v"] and g.variables == [v]) or g.variables[0] is v
    s = wg.Session(g)
    assert s.run(set_x, {x: [1.0, 2.0, 3.0]}).tolist() == s.run(v).tolist() == [1.0, 2.0, 3.0]
    with pytest.raises(wg.ShapeError, match=r"(?s)assign.*made at"):
        s.run(set_x, {x: [1.0]})
    assert s.run(v).tolist() == [1.0, 2.0, 3.0]


def test_initial_values_may_be_computed():
    with wg.Graph() as g:
        v = wg.Variable(wg.random.normal((4,)), name="v")
        w = wg.Variable(v * 2, name="w")
    a, b = wg.Session(g, seed=1), wg.Session(g, seed=2)
    assert a.run(v).tolist() != b.run(v).tolist()
    assert a.run(w).tolist() == [2 * x for x in a.run(v).tolist()]
    with pytest.raises(wg.GraphError, match="initialize"):
        wg.Session(g, initialize=False).run(w)


def test_random_numbers_are_fresh_in_each_run_and_seeded():
    with wg.Graph() as g:
        x = wg.random.normal((3,))
        y = nn.dropout(wg.placeholder("p", (50,)), 0.5)
    a, b = wg.Session(g, seed=5), wg.Session(g, seed=5)
    p = np.ones(50, "f")
    first, second = a.run([x, y], {"p": p}), a.run([x, y], {"p": p})
    assert first[0].tolist() != second[0].tolist() and first[1].tolist() != second[1].tolist()
    assert b.run([x, y], {"p": p})[1].tolist() == first[1].tolist()
    wg.random.seed(3)
    one = wg.Session(g).run(x).tolist()
    wg.random.seed(3)
    assert (
        wg.Session(g).run(x).tolist()
        == one
        == (wg.random.seed(3), wg.random.normal((3,)))[1].tolist()
    )


def test_eight_threads_share_a_session():
    g, x, _w, _y, _step = net()
    with g:
        count = wg.Variable(0.0, name="count")
        tick = count.assign_add(1.0)
        other = count * 0 + 5
    s = wg.Session(g)
    errors = []

    def work(k):
        try:
            for n in range(25):
                data = np.full((k + 1 + n % 3, 3), 1.0, "f")
                assert s.run("x", {x: data}).shape == data.shape
                s.run(tick)
                assert s.run(other).item() == 5.0
        except BaseException as e:
            errors.append(e)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not errors, errors[0]
    assert s.run(count).item() == 200.0, "writing runs come one after another"


def test_a_graph_may_grow_while_it_runs():
    g, x, _w, y, _step = net()
    s = wg.Session(g)
    stop = threading.Event()
    errors = []

    def run():
        while not stop.is_set():
            try:
                assert s.run(y, {x: ONE}).item() == 6.0
            except BaseException as e:
                errors.append(e)
                return

    t = threading.Thread(target=run)
    t.start()
    with g:
        for _ in range(50):
            y * 2
    stop.set()
    t.join()
    assert not errors, errors[0]


def test_plans_are_bounded():
    g, x, _w, y, _step = net()
    s = wg.Session(g)
    for n in range(1, 200):
        s.run(y, {x: np.ones((n, 3), "f")})
    assert len(s._plans) <= 128
    before = wg.memory_stats()["live_bytes"]
    for n in range(1, 200):
        s.run(y, {x: np.ones((n, 3), "f")})
    assert wg.memory_stats()["live_bytes"] <= before + (1 << 16)


def test_sessions_train():
    r = np.random.default_rng(0)
    xs = r.standard_normal((64, 3)).astype("f")
    ys = xs @ np.array([[1.0], [-2.0], [0.5]], "f") + 3.0
    with wg.Graph() as g:
        x, t = wg.placeholder("x", (None, 3)), wg.placeholder("t", (None, 1))
        w, b = wg.Variable(wg.zeros((3, 1)), name="w"), wg.Variable(wg.zeros((1,)), name="b")
        loss = nn.mse_loss(x @ w + b, t)
        train = [
            v.assign_sub(0.1 * d) for v, d in zip([w, b], wg.gradients(loss, [w, b]), strict=True)
        ]
    # The same steps in eager code, to the bit.
    ew, eb = wg.zeros((3, 1), requires_grad=True), wg.zeros((1,), requires_grad=True)
    s = wg.Session(g)
    for i in range(40):
        n = 16 if i % 2 else 64
        s.run(train, {x: xs[:n], t: ys[:n]})
        grads = wg.gradients(
            nn.mse_loss(wg.asarray(xs[:n]) @ ew + eb, wg.asarray(ys[:n])), [ew, eb]
        )
        with wg.no_grad():
            ew -= 0.1 * grads[0]
            eb -= 0.1 * grads[1]
    assert (s.run(w).numpy() == ew.detach().numpy()).all()
    assert (s.run(b).numpy() == eb.detach().numpy()).all()
    assert s.run(loss, {x: xs, t: ys}).item() < 0.1


def test_a_session_is_no_part_of_a_captured_function():
    g, x, _w, y, _step = net()
    s = wg.Session(g)
    with pytest.raises(wg.CaptureError, match=r"graph\.function"):
        wg.compile(lambda v: v + s.run(y, {x: ONE}))(wg.ones(1))
    with wg.Graph():
        assert s.run(y, {x: ONE}).item() == 6.0


def test_errors_of_data_name_the_line():
    with wg.Graph() as g:
        x, i = wg.placeholder("x", (None, 3)), wg.placeholder("i", (None,), wg.int64)
        y = wg.take(x, i, axis=0)
    with pytest.raises(IndexError, match=r"(?s)index 9 .*test_session\.py:\d+"):
        wg.Session(g).run(y, {x: ONE, i: [9]})


def test_sizes_are_those_of_the_run():
    """Slices, reshapes and counts that depend on open sizes, beyond what was likely."""
    with wg.Graph() as g:
        x = wg.placeholder("x", (None, 3))
        made = {
            "first": x[:3] + 1,
            "sum": x[:3].sum(axis=0),
            "steps": x[1:] - x[:-1],
            "rows": x.reshape(x.shape[0], -1, 1),
            "flat": x.reshape((x.shape[0] * 3,)),
            "mean": x.mean(axis=0) * x.shape[0],
            "var": x.var(axis=0, correction=1),
            "every": x[::2],
            "back": wg.flip(x, axis=0)[0],
            "pair": wg.concat([x, x[:1]], axis=0),
        }
    s = wg.Session(g)
    for n in (2, 3, 7):
        data = np.random.default_rng(n).standard_normal((n, 3)).astype("f")
        e = wg.asarray(data)
        want = {
            "first": e[:3] + 1,
            "sum": e[:3].sum(axis=0),
            "steps": e[1:] - e[:-1],
            "rows": e.reshape(n, -1, 1),
            "flat": e.reshape((n * 3,)),
            "mean": e.mean(axis=0) * n,
            "var": e.var(axis=0, correction=1),
            "every": e[::2],
            "back": wg.flip(e, axis=0)[0],
            "pair": wg.concat([e, e[:1]], axis=0),
        }
        got = s.run(made, {x: data})
        for name, y in want.items():
            assert got[name].shape == y.shape, name
            np.testing.assert_array_equal(got[name].numpy(), y.numpy(), err_msg=name)


MISFITS = {
    "reshape": (lambda p, q: p.reshape(2, 3), r"shape \(4, 3\) has 12 elements"),
    "add": (lambda p, q: p + q, r"shapes \(4, 3\) and \(5, 3\) do not broadcast"),
    "broadcast_to": (lambda p, q: wg.broadcast_to(p, (6, 3)), r"\(4, 3\) to \(6, 3\)"),
    "matmul": (lambda p, q: p.mT @ q, "4 and 5"),
}
AROUND = {
    "nothing": lambda f: f,
    "cond": lambda f: lambda p, q: wg.cond(
        p.sum() > 0, lambda p, q: f(p, q).sum(), lambda p, q: p.sum(), p, q),
    "fori_loop": lambda f: lambda p, q: wg.fori_loop(
        0, 2, lambda i, c: c + f(p, q).sum(), wg.tensor(0.0)),
    "scan in cond": lambda f: lambda p, q: wg.cond(
        p.sum() > 0,
        lambda p: wg.scan(lambda c, v: (c + f(p, q).sum(), None), wg.tensor(0.0), wg.ones(2))[0],
        lambda p: p.sum(), p),
}


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("what", MISFITS)
def test_sizes_that_do_not_fit_are_refused_by_the_op_and_its_line(what, around):
    f, match = MISFITS[what]
    with wg.Graph() as graph:
        p, q = wg.placeholder("p", (None, 3)), wg.placeholder("q", (None, 3))
        y = AROUND[around](f)(p, q)
    with pytest.raises(wg.ShapeError, match=f"(?s)^{what}: .*{match}.*made at .*test_session.py"):
        wg.Session(graph).run(y, {p: np.ones((4, 3), "f"), q: np.ones((5, 3), "f")})


def test_the_engine_refuses_a_value_of_a_body_outside_it():
    """A variable of a graph cannot become what exists in a branch alone, whoever asks for it."""
    with wg.Graph() as graph:
        v = wg.Variable(wg.ones(2), name="v")

        def body():
            y = v * 2.0
            with pytest.raises(wg.Error, match="assign"):
                graph._core.assign(graph._id("assign", v), y)
            return y

        y = wg.cond(v.sum() > 0, body, lambda: v)
    assert wg.Session(graph).run(y).tolist() == [2.0, 2.0]
