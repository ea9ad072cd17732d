"""Effects of calls of the host: which calls happen, in which order, what fails with them; how they
look in prints, files and graphs, and what keeps them alive.
"""

import copy
import gc
import pickle
import threading
import traceback
import weakref

import numpy as np
import pytest

import wengert as wg

from host_ops import X, cube, powers, several, tensor, uncounted


def counted(effect):
    calls = []

    @wg.custom_op(infer=lambda x: x, effect=effect)
    def op(x, *, name="op"):
        calls.append(name)
        return x + 1

    return op, calls


def twice_and_unused(op):
    def f(x):
        op(x * 2.0, name="unused")
        return op(x, name="same") + op(x, name="same")

    return f


@uncounted
def test_pure_calls_are_merged_and_dropped():
    op, calls = counted("pure")
    wg.compile(twice_and_unused(op))(wg.ones(2))
    assert calls == ["same"]


@pytest.mark.parametrize("effect", ["ordered", "collective"])
def test_other_calls_happen_once_each_in_order(effect):
    op, calls = counted(effect)
    f = wg.compile(twice_and_unused(op))
    for _ in range(2):
        calls.clear()
        f(wg.ones(2))
        assert calls == ["unused", "same", "same"]


def test_calls_of_all_kinds_keep_one_order():
    op, calls = counted("ordered")

    @wg.compile
    def f(x):
        wg.host_call(lambda x: calls.append("first"), x * 3.0)
        y = op(x, name="second")
        wg.host_call(lambda y: calls.append("third"), x)
        _, ys = wg.scan(lambda c, v: (c, op(v, name="round")), wg.zeros(()), x)
        wg.host_call(lambda: calls.append("last"))
        return y + ys

    f(wg.ones(3))
    assert calls == ["first", "second", "third", *["round"] * 3, "last"]


def test_the_way_that_is_not_taken_calls_nothing():
    op, calls = counted("ordered")
    f = wg.compile(
        lambda x: wg.cond(x.sum() > 0, lambda x: op(x, name="yes"), lambda x: op(x, name="no"), x)
    )
    f(wg.ones(2))
    f(-wg.ones(2))
    assert calls == ["yes", "no"]


def test_gradients_repeat_no_ordered_call():
    calls = []

    @wg.custom_op(infer=lambda x: x, effect="ordered")
    def op(x):
        calls.append("call")
        return x * x

    op.vjp(lambda g, x, y: (g * 2.0 * x,))

    def scanned(x):
        return wg.scan(lambda c, v: (op(c) * v, None), x[0], x)[0]

    wg.compile(wg.grad(scanned))(wg.ones(3))
    assert len(calls) == 3
    calls.clear()

    def looped(x):
        step = lambda i, x: (i + 1, op(op(x) + 1.0))  # noqa: E731
        return wg.while_loop(lambda i, x: i < 2, step, (wg.tensor(0), x))[1].sum()

    wg.grad(looped)(wg.ones(3))
    assert len(calls) == 4
    calls.clear()
    with pytest.raises(wg.GradientError, match=r"op: the gradient of the loop .* ordered"):
        wg.compile(wg.grad(looped))(wg.ones(3))
    assert calls == []


@pytest.mark.parametrize("mode", ["eager", "compiled"])
def test_exceptions_arrive_as_they_are_and_change_nothing(mode):
    class Mine(Exception):
        pass

    def boom(_):
        raise Mine("from the host")

    bad = wg.custom_op(infer=lambda x: x)(boom)
    for call in (bad, lambda x: wg.host_call(boom, x)):
        w = wg.zeros(2, requires_grad=True)

        def step(x, call=call, w=w):
            y = call(x)
            with wg.no_grad():
                w[...] = w + x
            return y

        state = list(wg.random.get_state())
        f = wg.compile(step) if mode == "compiled" else step
        with pytest.raises(Mine, match="from the host") as caught:
            f(wg.ones(2))
        assert traceback.extract_tb(caught.value.__traceback__)[-1].name == "boom"
        assert w.tolist() == [0.0, 0.0]
        assert list(wg.random.get_state()) == state


def test_a_step_that_fails_late_writes_nothing():
    w = wg.zeros(4, requires_grad=True)
    optimizer = wg.optim.SGD([w], lr=1.0, momentum=0.9)
    fails = [False]

    def look(loss):
        if fails[0]:
            raise ArithmeticError("stop")

    @wg.compile
    def step(x):
        loss = ((w - x) ** 2).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        wg.host_call(look, loss)
        return loss

    x = wg.ones(4)
    step(x)
    before = w.tolist(), w.grad.tolist()
    fails[0] = True
    for _ in range(3):
        with pytest.raises(ArithmeticError):
            step(x)
        assert (w.tolist(), w.grad.tolist()) == before
    fails[0] = False
    step(x)
    assert w.tolist() != before[0]


def test_code_may_use_wengert():
    inner = wg.compile(lambda x: (x * 2.0).sum())
    seen = []

    def look(v):
        x = wg.tensor(v, requires_grad=True)
        (x * x).sum().backward()
        seen.append((x.grad.tolist(), inner(x).item(), wg.zeros(1).device.type))

    @wg.compile
    def f(x):
        with wg.no_grad():
            wg.host_call(look, x)
        return x

    f(wg.ones(2))
    with wg.no_grad():
        f(wg.ones(2))
    f(wg.ones(2, device="reference"))
    assert seen == [([2.0, 2.0], 4.0, "cpu")] * 3


def test_code_that_reads_what_its_own_call_updates_is_told_so():
    w = wg.zeros(2)

    @wg.compile
    def f(x):
        wg.host_call(lambda _: w.tolist(), x)
        w[...] = w + x

    with pytest.raises(wg.CaptureError, match="gives this tensor a new value"):
        f(wg.ones(2))
    assert w.tolist() == [0.0, 0.0]


def test_threads_call_back_while_others_compute():
    seen = []
    f = wg.compile(lambda x: (wg.host_call(lambda v: seen.append(v.item()), x.sum()), x.sin())[1])
    x = wg.ones(1 << 17)

    def work():
        for _ in range(5):
            f(x)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert not any(t.is_alive() for t in threads)
    assert seen == [float(1 << 17)] * 20


def test_examples_call_in_order():
    seen = []

    def f(x):
        wg.host_call(lambda v: seen.append(v.tolist()), x)
        return x * 2.0

    for g in (wg.vmap(f), wg.compile(wg.vmap(f))):
        seen.clear()
        g(wg.tensor([[1.0], [2.0], [3.0]]))
        assert seen == [[1.0], [2.0], [3.0]]


# --- Looking inside, and what is kept.


def test_prints_and_pictures_name_the_op_and_text_refuses_it():
    f = wg.compile(lambda x: cube(x) + several(x)[0])
    f(tensor())
    graph = f.graph(tensor())
    text = str(graph)
    assert 'host("cube", %0, effect="pure") -> (float64 (2, 3))' in text
    assert "cube" in graph.to_dot() and "several" in str(f.explain(tensor()))
    with pytest.raises(wg.GraphError, match=r"no code of an op of the host: (cube|several)"):
        wg.parse_graph(text)
    with wg.profile() as profile:
        f(tensor())
        cube(tensor())
    assert "cube" in str(profile) and "several" in str(profile)
    assert repr(cube) == "<custom op cube, pure>"


def test_files_refuse_code_and_keep_names():
    graph = wg.compile(cube).graph(tensor())
    with pytest.raises(wg.GraphError, match=r"pickle: .* op of the host: cube"):
        pickle.dumps(graph)
    np.testing.assert_array_equal(run_graph(copy.deepcopy, graph), X**3)
    assert pickle.loads(pickle.dumps(cube)) is cube
    model = wg.nn.Sequential(wg.nn.Linear(3, 3))
    model.op = cube
    assert copy.deepcopy(model).op is cube


def run_graph(copied, graph):
    graph = copied(graph)
    with wg.Session(graph) as session:
        return session.run(graph.outputs[0], {graph.inputs[0]: X}).numpy()


def test_a_graph_of_a_compiled_function_outlives_it():
    def make():
        op = wg.custom_op(infer=lambda x: x)(lambda x: x * 3)
        f = wg.compile(lambda x: op(x))
        f(wg.ones(2))
        return f.graph(wg.ones(2))

    graph = make()
    gc.collect()
    with wg.Session(graph) as session:
        got = session.run(graph.outputs[0], {graph.inputs[0]: np.ones(2, "f")})
    assert got.tolist() == [3.0, 3.0]


def test_what_a_call_reaches_is_collected():
    class Model:
        def __init__(self):
            self.op = wg.custom_op(infer=lambda x: x, vjp=lambda g, x, y: (self.op(g),))(
                lambda x: x * self.scale
            )
            self.step = wg.compile(self.run)
            self.seen, self.scale = [], 2

        def run(self, x):
            wg.host_call(lambda v: self.seen.append(v), x)
            return self.op(x).sum()

    model = Model()
    x = wg.ones(2, requires_grad=True)
    model.step(x).backward()
    model.op(x).sum().backward()
    assert x.grad.tolist() == [4.0, 4.0]
    alive = weakref.ref(model)
    del model
    wg.graph_stats()                    # references that were let go without the interpreter
    gc.collect()
    assert alive() is None


def test_nothing_grows_over_many_calls():
    x = wg.ones(8, requires_grad=True)
    f = wg.compile(lambda x: powers(x, power=3).sum())

    def work():
        for k in range(100):
            powers(x, power=k).sum().backward()
            f(x).backward()
        gc.collect()
        stats = wg.memory_stats()["live_bytes"], wg.graph_stats()["nodes"]
        return stats

    work()
    before = work()
    assert work() == before
