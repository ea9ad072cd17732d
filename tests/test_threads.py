"""One compiled function, one training step, one session from eight threads at once."""

import os
import subprocess
import sys
import threading

import numpy as np
import pytest

import wengert as wg
from wengert import nn, optim

from support import array


def in_threads(count, work):
    """Runs `work(i)` in so many threads at once; the results in order."""
    results, errors = [None] * count, []
    start = threading.Barrier(count)

    def run(i):
        try:
            start.wait()
            results[i] = work(i)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if errors:
        raise errors[0]
    return results


def test_one_function_from_eight_threads():
    w = array(16, 16, seed=5)
    f = wg.compile(lambda x, k: nn.softmax(x @ w, axis=-1).sum(axis=0) * k)
    eager = f.__wrapped__

    def work(i):
        got = []
        for n in range(30):
            x, k = array(1 + (n + i) % 5, 16, seed=n), (i + 1) / 7
            got.append((f(x, k).numpy().tobytes(), eager(x, k).numpy().tobytes()))
        return got

    for got in in_threads(8, work):
        assert all(a == b for a, b in got)
    assert f.traces <= 4


def test_gradients_from_eight_threads():
    w = wg.tensor(array(8, 8, seed=5), requires_grad=True)
    f = wg.compile(lambda x: (x @ w).tanh().sum())

    def work(i):
        x = wg.tensor(array(4, 8, seed=i), requires_grad=True)
        seen = []
        for _ in range(20):
            gx, gw = wg.gradients(f(x), [x, w])
            seen.append((gx.numpy().tobytes(), gw.numpy().tobytes()))
        ex, ew = wg.gradients(f.__wrapped__(x), [x, w])
        assert set(seen) == {(ex.numpy().tobytes(), ew.numpy().tobytes())}

    in_threads(8, work)
    assert w.grad is None


def test_updates_from_eight_threads_are_not_torn():
    total = wg.zeros(1000)

    @wg.compile
    def bump(k):
        nonlocal total
        total += k
        return total * 1.0

    def work(i):
        for _ in range(50):
            values = bump(1.0).numpy()
            assert (values == values[0]).all()

    in_threads(8, work)
    assert (total.numpy() == 400).all()


def test_tracing_in_eight_threads_at_once():
    def work(i):
        f = wg.compile(lambda x: (x * i).exp().sum())
        return [f(array(3 + j)).item() == f.__wrapped__(array(3 + j)).item() for j in range(6)]

    assert all(all(r) for r in in_threads(8, work))


def test_eager_code_in_other_threads_is_not_captured():
    entered, done = threading.Event(), threading.Event()
    seen = []

    def outside():
        entered.wait()
        seen.append((wg.ones(3) * 2).tolist())
        done.set()

    def f(x):
        entered.set()
        done.wait(10)
        return x + 1

    t = threading.Thread(target=outside)
    t.start()
    wg.compile(f)(wg.ones(1))
    t.join()
    assert seen == [[2.0] * 3]


def trainer(kind):
    """A step of training that numbers itself, with its parameters and what an order determines."""
    wg.random.seed(3)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm(8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = {
        "sgd": lambda ps: optim.SGD(ps, lr=0.1, momentum=0.9),
        "adam": lambda ps: optim.AdamW(ps, lr=0.05),
    }[kind](list(model.parameters()))
    count = wg.zeros((), dtype=wg.int64)

    def step(x, y):
        nonlocal count
        optimizer.zero_grad()
        loss = nn.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        count += 1
        return count * 1, loss

    return step, lambda: [x.detach().numpy().tobytes() for x in model.state_dict().values()]


@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_a_training_step_from_eight_threads_is_one_in_some_order(kind):
    """Every step sees the whole of those before it: the same steps one after another, in the order
    in which they numbered themselves, have the same losses and end at the same parameters."""
    step, state = trainer(kind)
    step = wg.compile(step)
    batches = [(array(4, 6, seed=i), wg.asarray([0, 1, 2, i % 3])) for i in range(8)]

    def work(i):
        seen = []
        for _ in range(25):
            number, loss = step(*batches[i])
            seen.append((number.item(), loss.item(), i))
        return seen

    history = sorted(entry for seen in in_threads(8, work) for entry in seen)
    assert [number for number, *_ in history] == list(range(1, 201))
    eager, want = trainer(kind)
    for number, loss, i in history:
        n, value = eager(*batches[i])
        assert (n.item(), value.item()) == (number, loss)
    assert state() == want()


def test_gradients_accumulate_from_eight_threads():
    """Sums of small integers are exact in any order: none is lost, none counts twice."""
    w = wg.zeros(16, requires_grad=True)
    w.grad = wg.zeros(16)

    @wg.compile
    def step(x):
        (w * x).sum().backward()
        with wg.no_grad():
            w.__isub__(x)

    def work(i):
        for n in range(50):
            step(wg.full(16, float(i + n)))

    in_threads(8, work)
    total = float(sum(i + n for i in range(8) for n in range(50)))
    assert w.grad.tolist() == [total] * 16
    assert w.tolist() == [-total] * 16


def test_large_updates_come_one_after_another():
    """Calls that run without the interpreter: a gradient accumulates, views hold memory too, two
    functions update the same tensors in different order."""
    n, views = 200_000, []
    a, b, w = wg.zeros(n), wg.zeros(n), wg.zeros(n, requires_grad=True)
    w.grad = wg.zeros(n)

    @wg.compile
    def forth(k):
        a.__iadd__(k)
        b.__iadd__(a)

    @wg.compile
    def back(k):
        b.__iadd__(a)
        a.__iadd__(k)

    @wg.compile
    def gradient(x):
        (w * x).sum().backward()

    def work(i):
        for _ in range(15):
            (forth if i % 2 else back)(1.0)
            views.append(a[:1])
            gradient(wg.ones(n))

    in_threads(8, work)
    assert (a.numpy() == 120).all() and (w.grad.numpy() == 120).all()
    assert max(view.item() for view in views) == 120
    # Each of 60 calls of `forth` adds what `a` is after it, each of 60 of `back` one less.
    assert (b.numpy() == sum(range(121)) - 60).all()


def test_eager_gradients_accumulate_too():
    n = 200_000
    w, x = wg.zeros(n, requires_grad=True), wg.ones(n)

    def work(i):
        for _ in range(15):
            (w * x).sum().backward()

    in_threads(8, work)
    assert (w.grad.numpy() == 120).all()


def test_a_step_that_fails_in_one_thread_is_as_if_it_had_not_been():
    total = wg.zeros(())

    @wg.compile
    def step(x):
        wg.check(x >= 0, "negative")
        total.__iadd__(x)

    def work(i):
        for n in range(50):
            if (i + n) % 3:
                step(wg.tensor(1.0))
            else:
                with pytest.raises(ValueError, match="negative"):
                    step(wg.tensor(-1.0))

    in_threads(8, work)
    assert total.item() == sum((i + n) % 3 != 0 for i in range(8) for n in range(50))


def test_a_session_trains_in_eight_threads():
    """Runs that write come one after another, those that read see a state between two of them."""
    with wg.Graph() as g:
        x = wg.placeholder("x", (None,))
        v = wg.Variable(wg.zeros(4), name="v")
        count = wg.Variable(0.0, name="count")
        steps = [v.assign_sub(wg.gradients((v * x.sum()).sum(), v)), count.assign_add(1.0)]
    s = wg.Session(g)

    def work(i):
        for n in range(40):
            if n % 4:
                s.run(steps, {x: np.ones(1 + (i + n) % 3, "f")})
            else:
                values, times = s.run([v, count])
                assert len(set(values.tolist())) == 1
                assert times.item() <= -values[0].item() <= 3 * times.item()

    in_threads(8, work)
    values, times = s.run([v, count])
    assert times.item() == 8 * 30
    total = sum(1 + (i + n) % 3 for i in range(8) for n in range(40) if n % 4)
    assert values.tolist() == [-float(total)] * 4


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_child_of_fork_waits_for_no_thread_that_makes_a_table():
    """Tables are made when they are first asked for. A child that was forked while another thread
    made one asks again."""
    code = """
import os, threading, time, sys
import wengert as wg
# Python imports before: a child waits for a thread that imports.
softmax = wg.nn.softmax
go = threading.Event()
def work(i):
    go.wait()
    softmax(wg.ones((3, 3 + i))).sum().item()
threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
for t in threads: t.start()
go.set()
children = []
for _ in range(20):
    pid = os.fork()
    if pid == 0:
        softmax(wg.ones((3, 3))).sum().item()
        os._exit(0)
    children.append(pid)
for t in threads: t.join()
end = time.monotonic() + 60
for pid in children:
    while os.waitpid(pid, os.WNOHANG) == (0, 0):
        if time.monotonic() > end:
            for p in children:
                try: os.kill(p, 9)
                except ProcessLookupError: pass
            sys.exit("a child hangs")
        time.sleep(0.01)
"""
    for _ in range(3):
        done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], timeout=120,
                              capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
