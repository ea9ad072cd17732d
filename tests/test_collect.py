"""Compiled functions, graphs and what hangs on them are freed with the last way to reach them."""

import collections
import dataclasses
import gc
import textwrap
import weakref

import pytest

import wengert as wg
from wengert import nn, optim


def live():
    gc.collect()
    return wg.memory_stats()["live_bytes"], wg.graph_stats()["nodes"]


def freed(make):
    """What `make` makes is gone when it is dropped: the objects it names, bytes, tape entries."""
    make()  # code, plans of composites and the like are kept once
    before = live()
    names = make()
    gc.collect()
    alive = [name for name, reference in names.items() if reference() is not None]
    assert not alive
    assert live() == before


def in_namespace(source, *names):
    """Runs a program in a namespace of its own: weak references to what the names are there."""
    space = {"wg": wg, "nn": nn, "optim": optim}
    exec(textwrap.dedent(source), space)
    return {name: weakref.ref(space[name]) for name in names}


def test_a_function_that_reaches_its_namespace_is_freed():
    freed(lambda: in_namespace(
        """
        w = wg.ones((64, 64), requires_grad=True)

        @wg.compile
        def step(x):
            return (x @ w).tanh().sum()

        y = step(wg.ones((8, 64)))
        y.backward()
        z = step(wg.ones((9, 64)))  # a second trace, and a tape entry nobody differentiates
        """, "step", "w"))


def test_a_training_step_over_globals_is_freed():
    freed(lambda: in_namespace(
        """
        layers = nn.Linear(32, 64), nn.BatchNorm1d(64), nn.Dropout(0.5), nn.Linear(64, 4)
        model = nn.Sequential(*layers)
        optimizer = optim.Adam(model.parameters(), lr=1e-3)
        schedule = optim.StepSchedule(optimizer, 2)

        @wg.compile
        def step(x, y):
            optimizer.zero_grad()
            loss = nn.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            schedule.step()
            return loss

        for n in (16, 16, 17, 18):
            step(wg.ones((n, 32)), wg.zeros(n, dtype=wg.int64))
        """, "step", "model", "optimizer", "schedule"))


def test_a_closure_over_a_module_that_holds_it_is_freed():
    def make():
        model = nn.Linear(64, 64)
        model.run = wg.compile(lambda x: model(x))
        model.run(wg.ones((4, 64)))
        return {"model": weakref.ref(model), "run": weakref.ref(model.run)}

    freed(make)


def test_a_method_is_freed_with_its_class_and_its_object():
    def make():
        class Trainer:
            def __init__(self):
                self.w = wg.ones((64, 64), requires_grad=True)
                self.fast = wg.compile(self.step)

            @wg.compile
            def both(self, x):
                return x @ self.w

            def step(self, x):
                return x @ self.w + Trainer.offset

            offset = wg.ones(64)

        trainer = Trainer()
        trainer.fast(wg.ones((4, 64)))
        trainer.both(wg.ones((4, 64)))
        return {"class": weakref.ref(Trainer), "object": weakref.ref(trainer),
                "fast": weakref.ref(trainer.fast), "both": weakref.ref(Trainer.both)}

    freed(make)


def test_kinds_of_arguments_are_freed():
    def make():
        @dataclasses.dataclass
        class Pair:
            a: wg.Tensor
            b: wg.Tensor

        Named = collections.namedtuple("Named", "a b")

        class Plain:
            def __eq__(self, other):
                return True

            __hash__ = None

        x = wg.ones((64, 64))
        f = wg.compile(lambda pair, named, plain: Pair(pair.a + named.b, named.a))
        assert isinstance(f(Pair(x, x), Named(x, x), Plain()), Pair)
        return {"pair": weakref.ref(Pair), "named": weakref.ref(Named), "f": weakref.ref(f),
                "plain": weakref.ref(Plain)}

    freed(make)


def test_a_function_that_is_its_own_argument_is_freed():
    def make():
        @wg.compile
        def f(x, again):
            return x * 2

        f(wg.ones(1000), f)
        return {"f": weakref.ref(f)}

    freed(make)


def test_hyperparameters_and_handles_lead_back():
    def make():
        class Owned(nn.Parameter):
            owner = None

        w = Owned(wg.ones((64, 64)))
        optimizer = optim.SGD([w], lr=0.1, momentum=0.9)

        @wg.compile
        def step(x):
            optimizer.zero_grad()
            (x @ w).sum().backward()
            optimizer.step()
            return w

        optimizer.param_groups[0]["owner"] = step
        w.owner = step
        step(wg.ones((2, 64)))
        step(wg.ones((2, 64)))
        return {"step": weakref.ref(step), "w": weakref.ref(w), "optimizer": weakref.ref(optimizer)}

    freed(make)


def test_a_guard_on_a_hook_is_freed():
    def make():
        w = wg.ones((64, 64), requires_grad=True)

        @wg.compile
        def f(x):
            return (x @ w).sum()

        w.register_hook(lambda g: (f, None)[1])
        f(wg.ones((2, 64)))
        return {"f": weakref.ref(f), "w": weakref.ref(w)}

    freed(make)


def test_a_declared_function_and_its_explanation_are_freed():
    def make():
        w = wg.ones((64, 8))
        n = wg.Dim("n")
        f = wg.compile(lambda x: x @ w, signature=[wg.Spec((n, 64))])
        f(wg.ones((3, 64)))
        f.page = f.explain(wg.ones((3, 64)))
        f.own = f.graph(wg.ones((3, 64)))
        return {"f": weakref.ref(f), "w": weakref.ref(w)}

    freed(make)


def test_what_failed_to_trace_is_freed():
    def make():
        w = wg.ones((64, 64), requires_grad=True)

        @wg.compile
        def f(x):
            y = (x @ w) * w.sum()
            return y if y.sum() > 0 else f

        with pytest.raises(wg.CaptureError):
            f(wg.ones((2, 64)))
        return {"f": weakref.ref(f), "w": weakref.ref(w)}

    freed(make)


@pytest.mark.parametrize("inside", [False, True], ids=["eager", "captured"])
def test_bodies_that_fail_are_freed(inside):
    def make():
        w = wg.ones((64, 64), requires_grad=True)

        def body(i, x):
            y = x @ w
            return y.item()

        def run(x):
            return wg.fori_loop(0, 3, body, x)

        f = wg.compile(run) if inside else run
        with pytest.raises(wg.CaptureError):
            f(wg.ones((2, 64)))
        return {"f": weakref.ref(f), "w": weakref.ref(w)}

    freed(make)


def test_transforms_over_compiled_functions_are_freed():
    def make():
        w = wg.ones((16, 16), requires_grad=True)

        @wg.compile
        def f(x):
            rows = wg.vmap(lambda row: wg.cond(row.sum() > 0, lambda: row @ w, lambda: row))
            return rows(x).sum()

        grad = wg.compile(wg.grad(f))
        grad(wg.ones((4, 16)))
        wg.hessian(lambda x: f(x))(wg.ones((1, 16)))
        return {"f": weakref.ref(f), "grad": weakref.ref(grad), "w": weakref.ref(w)}

    freed(make)


def test_a_graph_with_its_session_is_freed():
    def make():
        with wg.Graph() as g:
            x = wg.placeholder("x")  # of any rank: calls on it are kept
            v = wg.Variable(wg.ones((64, 64)), name="v")
            y = (x @ v).tanh().sum()
            step = v.assign_sub(0.1 * wg.gradients(y, v))
        session = wg.Session(g)
        g.owner = session
        session.run([y, step], {x: wg.ones((2, 64))})
        session.run([y, step], {x: wg.ones((3, 2, 64))})
        function = g.function([x, v], y)
        function(wg.ones((2, 64)), wg.ones((64, 64)))
        g.function_of_mine = function
        return {"graph": weakref.ref(g), "session": weakref.ref(session),
                "function": weakref.ref(function)}

    freed(make)


def test_a_collection_during_calls_on_other_threads_takes_nothing_away():
    """The collector looks at functions, hooks and tensors while threads run and differentiate."""
    import threading

    w = wg.ones((64, 64), requires_grad=True)
    seen = []
    w.register_hook(lambda g: seen.append(1))

    @wg.compile
    def f(x):
        return (x @ w).tanh().sum()

    want = f(wg.ones((4, 64))).item()
    failures, stop = [], threading.Event()

    def work():
        try:
            for _ in range(60):
                y = f(wg.ones((4, 64)))
                y.backward()
                assert y.item() == want
        except BaseException as error:
            failures.append(error)

    def collect():
        while not stop.is_set():
            gc.collect()

    threads = [threading.Thread(target=work) for _ in range(4)]
    collector = threading.Thread(target=collect)
    collector.start()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stop.set()
    collector.join()
    assert not failures
    assert len(seen) == 240
