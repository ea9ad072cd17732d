"""Runs of graphs that stop after each node."""

import gc
import threading
import weakref

import numpy as np
import pytest

import wengert as wg
from wengert import nn, optim
from wengert.interpreter import Interpreter, Step

from support import generator


def chain():
    with wg.Graph() as g:
        x = wg.placeholder("x", (None, 3))
        y = x.exp()
        z = (y * 2.0 + x).sum(axis=1)
    return g, x, y, z


def test_every_node_in_order_with_what_it_read():
    g, x, _, z = chain()
    data = np.arange(6, dtype="float32").reshape(2, 3)
    it = g.interpreter({x: data})
    steps = list(it)
    assert [step.op for step in steps] == [node.op for node in g.nodes]
    assert [step.node for step in steps] == g.nodes == it.nodes
    assert steps[0].name == "x" and steps[0].inputs == ()
    assert steps[0].site.filename == __file__ and steps[0].site.lineno == steps[0].node.site.lineno
    assert steps[1].inputs[0].tolist() == data.tolist()
    assert len(steps[-1].inputs) == 1
    session = wg.Session(g)
    for step in steps:
        assert np.array_equal(step.value.numpy(), session.run(step.node, {x: data}).numpy())
    assert it.next_node is None and it.step() is None
    assert it.finish()[0].tolist() == session.run(z, {x: data}).tolist()


def test_it_stops_where_it_is_told():
    g, x, y, z = chain()
    it = g.interpreter({"x": wg.ones((2, 3))}, {"all": [z, y]})
    assert it.next_node.op == "input" and len(it) == len(g)
    with pytest.raises(wg.GraphError, match="is not computed yet"):
        it.value(y)
    step = it.run_until(y)
    assert isinstance(step, Step) and step.op == "exp" and it.next_node.op == "multiply"
    assert it.value(y).tolist() == it.value(step.node).tolist() == step.value.tolist()
    assert it.value(0).tolist() == it.value("x").tolist() == [[1.0] * 3] * 2
    # Going back computes nothing again.
    assert it.run_until(x).value.shape == (2, 3) and it.next_node.op == "multiply"
    with pytest.raises(wg.GraphError, match="not computed yet"):
        it.value(z)
    out = it.finish()
    assert out["all"][0].shape == (2,) and out["all"][1].tolist() == step.value.tolist()


def test_texts():
    g, x, y, _ = chain()
    it = g.interpreter({x: wg.ones((2, 3))})
    step = it.run_until(y)
    line = f"  # {__file__}:{step.site.lineno}"
    assert repr(step) == f"<step %1: exp(%0) = float32 (2, 3){line}>"
    assert repr(it).startswith("<Interpreter of 5 nodes, before %2: multiply(%1, 2")
    lines = str(it).splitlines()
    assert [text[:2] for text in lines] == ["  ", "  ", "->", "  ", "  "]
    assert '%0 "x": input = float32 (2, 3)' in lines[0]
    it.finish()
    assert repr(it) == "<Interpreter of 5 nodes, at the end>"


def test_only_what_the_fetches_need():
    with wg.Graph() as g:
        a = wg.placeholder("a", (2,))
        b = wg.placeholder("b", (2,))
        c, d = a.sin(), b.cos()
    it = g.interpreter({a: [1.0, 2.0]}, c)
    assert [node.op for node in it.nodes] == ["input", "sin"]
    with pytest.raises(wg.GraphError, match=r"%3 \(cos\) is not part of this run"):
        it.value(d)
    with pytest.raises(wg.GraphError, match="not part of this run"):
        it.run_until("b")
    # A node in the middle may be fed: what is before it is not computed.
    it = g.interpreter({c: [5.0, 6.0]}, c * 2.0)
    steps = list(it)
    assert steps[0].op == "sin" and steps[0].inputs == () and steps[0].value.tolist() == [5.0, 6.0]
    assert it.finish().tolist() == [10.0, 12.0]


def test_refusals_come_at_once():
    g, x, _, _ = chain()
    with pytest.raises(wg.GraphError, match=r'"x" is needed and was not fed\n  made at'):
        g.interpreter()
    with pytest.raises(wg.ShapeError, match="was fed shape"):
        g.interpreter({x: wg.ones((2, 4))})
    with pytest.raises(wg.DTypeError):
        g.interpreter({x: wg.ones((2, 3), dtype=wg.float64)})
    with pytest.raises(wg.GraphError, match="the graph has 1 inputs, got 2"):
        g.interpreter([1.0, 2.0])
    with pytest.raises(wg.GraphError, match='no node of this graph is called "w"'):
        g.interpreter({"w": 1.0})
    other = wg.Graph()
    with pytest.raises(wg.GraphError, match="the session runs another graph"):
        g.interpreter({x: wg.ones((2, 3))}, session=wg.Session(other))
    it = g.interpreter([wg.ones((2, 3))])
    for unknown in ("w", 99, wg.ones(3)):
        with pytest.raises(wg.GraphError):
            it.value(unknown)
        with pytest.raises(wg.GraphError):
            it.run_until(unknown)
    with pytest.raises(wg.CaptureError, match="interpreter: a session runs at once"):
        wg.compile(lambda t: g.interpreter({x: t}).finish())(wg.ones((2, 3)))
    with pytest.raises(wg.GraphError, match="it was not started"):
        g._core.stepper([1], [(0, wg.float32, [2, 3])]).step()


def test_a_step_that_fails_is_where_it_stands():
    with wg.Graph() as g:
        x = wg.placeholder("x", (3,))
        i = wg.placeholder("i", (2,), dtype=wg.int64)
        y = x.exp()[i]
        wg.check(y.sum() > 100.0, "too small")
        y + 1.0
    it = g.interpreter({x: wg.zeros(3), i: [0, 7]})
    with pytest.raises(wg.BoundsError):
        it.finish()
    before = it.next_node
    assert before.op not in ("input", "exp")
    with pytest.raises(wg.BoundsError):
        it.step()
    assert it.next_node == before
    assert it.value(g.nodes[2]).tolist() == [1.0, 1.0, 1.0]
    it = g.interpreter({x: wg.zeros(3), i: [0, 2]})
    with pytest.raises(wg.Error, match="too small"):
        it.finish()
    assert it.next_node.op == "check" and it.value(y).tolist() == [1.0, 1.0]


def test_control_flow_is_one_step(capfd):
    with wg.Graph() as g:
        x = wg.placeholder("x", (4,))
        total, last = wg.while_loop(
            lambda a, b: a.sum() < 50.0, lambda a, b: (a * 2.0, a), (x, x)
        )
        picked = wg.cond(total.sum() > 0.0, lambda: total, lambda: last)
        wg.print("sum {}", picked.sum())
        carry, rows = wg.scan(lambda c, r: (c + r, c * r), x.sum(), picked)
    it = g.interpreter({x: wg.ones(4)})
    steps = {step.op: step for step in it}
    assert {"while_loop", "cond", "scan", "print"} <= steps.keys()
    values = steps["while_loop"].value
    assert isinstance(values, tuple) and [v.tolist() for v in values] == [[16.0] * 4, [8.0] * 4]
    assert steps["print"].value is None and "= nothing" in repr(steps["print"])
    assert "(float32 (4,), float32 (4,))" in repr(steps["while_loop"])
    assert "sum 64" in capfd.readouterr().out
    want = wg.Session(g).run([total, last, picked, carry, rows], {x: wg.ones(4)})
    for node, value in zip([total, last, picked, carry, rows], want, strict=True):
        assert it.value(node).tolist() == value.tolist()


def test_graphs_of_unknown_rank():
    with wg.Graph() as g:
        x = wg.placeholder("x")
        y = nn.softmax(x * 2.0, axis=-1)
        z = y.sum(axis=0)
    for shape in ((3,), (2, 3), (2, 3, 4)):
        data = generator("interpreter").uniform(-1, 1, shape).astype("float32")
        it = g.interpreter({x: data})
        values = {step.node: step.value for step in it}
        want = wg.Session(g).run([y, z], {x: data})
        for node, value in zip((y, z), want, strict=True):
            assert np.array_equal(it.value(node).numpy(), value.numpy())
        assert values[it.nodes[0]].shape == shape


def test_variables_are_those_of_the_session_and_stay():
    with wg.Graph() as g:
        x = wg.placeholder("x", ())
        v = wg.Variable(2.0, name="v")
        y = v * x
        step = v.assign_add(y)
    session = wg.Session(g)
    session.run(step, {x: 1.0})
    assert session.run(v).item() == 4.0
    it = g.interpreter({x: 3.0}, [y, step], session=session)
    assert it.run_until(v).value.item() == 4.0
    assert [t.item() for t in it.finish()] == [12.0, 16.0]
    assert session.run(v).item() == 4.0
    assert [t.item() for t in g.interpreter({x: 3.0}, [y, step]).finish()] == [6.0, 8.0]
    with pytest.raises(wg.GraphError, match="is not initialized"):
        g.interpreter({x: 3.0}, y, session=wg.Session(g, initialize=False))


def test_random_keys_are_the_session_s():
    with wg.Graph() as g:
        y = wg.random.normal((4,)) + 1.0
    values = [g.interpreter(fetches=y, session=wg.Session(g, seed=3)).finish() for _ in range(2)]
    assert values[0].tolist() == values[1].tolist()
    assert values[0].tolist() == wg.Session(g, seed=3).run(y).tolist()


def test_inside_an_open_graph_it_writes_no_nodes():
    g, x, y, z = chain()
    data = wg.ones((1, 3))
    with g:
        count = len(g)
        it = g.interpreter({x: data}, z)
        list(it)
        assert len(g) == count
    assert it.value(y).shape == (1, 3)


def test_compiled_functions_step_by_step():
    model, rng = nn.Linear(3, 2), generator("interpreter of a step")
    optimizer = optim.Adam(model.parameters(), lr=0.1)

    @wg.compile
    def step(x, y, scale):
        optimizer.zero_grad()
        loss = ((model(x) - y) ** 2).mean() * scale
        loss.backward()
        optimizer.step()
        return loss

    def data(n):
        x, y = rng.uniform(-1, 1, (n, 3)), rng.uniform(-1, 1, (n, 2))
        return x.astype("float32"), y.astype("float32")

    for n, scale in ((4, 1.0), (5, 2.0), (6, 3.0)):
        step(*data(n), scale)
    x, y = data(7)
    before = {k: v.numpy().copy() for k, v in model.state_dict().items()}
    it = step.interpreter(x, y, 0.5)
    assert isinstance(it, Interpreter) and len(it) == len(it.graph)
    ops = [s.op for s in it]
    assert "matmul" in ops and it.nodes[-1] == it.graph.nodes[-1]
    result, *new = wg.pytree.flatten(it.finish())[0]
    assert {k: v.numpy().tolist() for k, v in model.state_dict().items()} == {
        k: v.tolist() for k, v in before.items()
    }
    traces = step.traces
    loss = step(x, y, 0.5)
    assert np.array_equal(loss.numpy(), result.numpy()) and step.traces == traces
    after = [p.numpy() for p in model.parameters()]
    assert all(any(np.array_equal(p, v.numpy()) for v in new) for p in after)
    lines = {s.lineno for s in (node.site for node in it.nodes) if s and s.filename == __file__}
    assert len(lines) >= 3


def test_the_graph_of_a_compiled_function():
    f = wg.compile(lambda x, w: (x @ w).tanh())
    x, w = wg.ones((2, 3)), wg.ones((3, 4)) * 0.25
    g = f.graph(x, w)
    it = g.interpreter([x, w])
    assert it.run_until(g.nodes[2]).op == "matmul"
    assert np.array_equal(it.finish()[0].numpy(), f(x, w).numpy())


def test_numpy_arrays_are_looked_at_like_tensors():
    f = wg.compile(lambda x: x * 2.0)
    for n in (2, 3):
        f(np.ones(n, "float32"))
    x = np.ones(5, "float32")
    assert f.interpreter(x).finish()[0].tolist() == [2.0] * 5
    assert f.plan(x).peak_bytes > 0 and "plan:" in str(f.explain(x)) and f.traces == 2


def test_one_step_at_a_time():
    """Threads that step one interpreter get steps of their own, or are refused."""
    with wg.Graph() as g:
        x = wg.placeholder("x", (64, 64))
        y = x
        for _ in range(40):
            y = y @ x
    it, seen, refused = g.interpreter({x: wg.eye(64)}, y), [], []

    def work():
        while True:
            try:
                step = it.step()
            except wg.GraphError as error:
                refused.append(error)
                continue
            if step is None:
                return
            seen.append(step.id)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(seen) == list(range(41))
    assert all("computing on another thread" in str(error) for error in refused)
    assert it.finish().tolist() == wg.eye(64).tolist()


def test_values_go_with_the_interpreter():
    g, x, _, _ = chain()
    data = wg.ones((1000, 3))
    gc.collect()
    before = wg.memory_stats()["live_bytes"]
    it = g.interpreter({x: data})
    list(it)
    assert wg.memory_stats()["live_bytes"] > before
    gone = weakref.ref(it)
    del it
    gc.collect()
    assert gone() is None and wg.memory_stats()["live_bytes"] == before
