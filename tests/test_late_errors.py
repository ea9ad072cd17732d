"""Work in flight: a device that works by itself finds what data refuses after the call returned.

The reference puts off its work here until somebody waits. A refusal comes out at the next wait,
with the line that recorded the op; values that follow from it raise it too; state is as it was.
"""

import threading
from pathlib import Path

import numpy as np
import pytest
from test_modes import program_of
from test_ops_values import OPS, samples
from test_refusals import CALLS, FITS, refusal

import wengert as wg
from wengert import nn, optim

from modes import Modes, bits
from support import dtypes_of, label, training_step

REF = wg.device("reference")
LINES = Path(__file__).read_text().splitlines()


@pytest.fixture(autouse=True)
def deferred():
    wg.synchronize()
    before = wg._core._defer(True)
    with wg.default_device(REF):
        yield
    wg._core._defer(before)
    wg.synchronize()


def line_of(mark):
    """The line of this file that ends in a comment of this name."""
    return next(i for i, line in enumerate(LINES, 1) if line.endswith(f"# {mark}"))


def raises_at(mark, what="7"):
    return pytest.raises(IndexError, match=f"(?s){what}.*test_late_errors.py:{line_of(mark)}\\b")


def given():
    return wg.arange(3.0), wg.asarray([0, 7])


def test_realize_waits():
    x, i = given()
    assert x.realize() is x
    bad = x[i]  # realized
    with raises_at("realized"):
        bad.realize()


def test_an_eager_op_names_its_line_at_the_wait():
    x, i = given()
    bad = x[i]  # eager op
    also = (bad * 2.0).sum()
    for y in (bad, also, bad):
        with raises_at("eager op"):
            y.tolist()
    with raises_at("eager op"):
        bad + 1.0  # what is known to be lost is refused where it is used
    assert (x + 1.0).tolist() == [1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    "wait",
    [lambda x: x.item(), float, bool, repr, lambda x: wg.ones(2)[x > 0.0], lambda x: x.to("cpu"),
     lambda x: wg.synchronize()],
    ids=["item", "float", "bool", "repr", "mask", "transfer", "synchronize"],
)
def test_every_wait_raises_what_nobody_was_told_of_once(wait):
    x, i = given()
    wg.take(x, i)  # nobody looks
    y = x[0] + 4.0
    with raises_at("nobody looks"):
        wait(y)
    wait(y)
    assert y.item() == 4.0


def test_a_thread_raises_what_it_asked_for_itself():
    x, i = given()
    state = wg.zeros(())

    def work():
        nonlocal state
        state += x[i].sum()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert (x + 1.0).tolist() == [1.0, 2.0, 3.0]
    with pytest.raises(IndexError, match="7"):  # who reads the state of another hears of it
        state.item()
    assert state.item() == 0.0


UPDATES = {
    "+=": lambda s, v: s.__iadd__(v),
    "assign": lambda s, v: s.assign(v),
    "item": lambda s, v: s.__setitem__(0, v[0]),
    "slice": lambda s, v: s.__setitem__(slice(None), v),
    "rows": lambda s, v: s.__setitem__(wg.asarray([0, 1]), v),
}


@pytest.mark.parametrize("name", UPDATES)
def test_an_eager_write_of_a_lost_value_is_none(name):
    x, i = given()
    state = wg.tensor([1.0, 2.0])
    UPDATES[name](state, x[i])  # lost value
    state *= 3.0
    with raises_at("lost value"):
        state.tolist()
    assert state.tolist() == [1.0, 2.0]
    UPDATES[name](state, x[wg.asarray([2, 1])])
    assert state.tolist() != [1.0, 2.0]
    state += 1.0
    state.tolist()


def test_a_write_stays_when_a_later_one_is_lost():
    x, i = given()
    state = wg.zeros(2)
    for k in range(1000):
        state += 1.0
        if k == 600:
            state += x[i]  # the 600th
    with raises_at("the 600th"):
        state.tolist()
    assert state.tolist() == [601.0, 601.0]


class Net(nn.Module):
    def __init__(self):
        self.table = nn.Parameter(wg.reshape(wg.arange(6.0), (3, 2)))
        self.seen = nn.Buffer(wg.zeros(()))


def test_a_compiled_step_that_fails_later_changes_nothing():
    net = Net()
    optimizer = optim.Adam(net.parameters(), lr=0.1)

    @wg.compile
    def step(i):
        net.seen += 1.0
        optimizer.zero_grad()
        loss = (net.table[i] ** 2).sum()  # compiled op
        loss.backward()
        optimizer.step()
        return loss

    def state():
        return [x.tolist() for x in wg.pytree.flatten(net.state_dict())[0]] + [
            net.table.grad.tolist()]

    good, bad = wg.asarray([0, 2]), wg.asarray([0, 7])
    for _ in range(2):
        step(good)
    before = state()
    lost = [step(good), step(bad), step(good)]
    assert lost[0].item() > 0.0
    for loss in lost[1:]:
        with raises_at("compiled op"):
            loss.item()
    once = state()
    assert once != before
    wg._core._defer(False)
    assert state() == once
    assert net.seen.item() == 3.0
    assert step(good).item() > 0.0 and net.seen.item() == 4.0
    with raises_at("compiled op"):
        step(bad)
    assert net.seen.item() == 4.0


def test_state_that_nobody_reads_between_is_that_of_the_last_good_step():
    counter = wg.zeros(())

    @wg.compile
    def step(x, i):
        nonlocal counter
        counter += 1.0
        wg.check(i < 3, "too large")  # a step without a result

    x, bad = given()
    good = bad * 0
    for i in (good, good, bad, good):
        step(x, i)
    where = line_of("a step without a result")
    with pytest.raises(ValueError, match=f"(?s)too large.*test_late_errors.py:{where}"):
        wg.synchronize()
    assert counter.item() == 2.0
    step(x, good)
    assert counter.item() == 3.0


def test_gradients_of_work_that_is_lost_are_none():
    x, i = given()
    w = wg.ones((3,), requires_grad=True)
    (w * w).sum().backward()
    (w[i] * 2.0).sum().backward()  # a loss
    with raises_at("a loss"):
        w.grad.tolist()
    assert w.grad.tolist() == [2.0, 2.0, 2.0]
    v = wg.ones((3,), requires_grad=True)
    (v * x[i].sum()).sum().backward()  # another loss
    with raises_at("another loss"):
        wg.synchronize()
    assert v.grad is None
    v.sum().backward()
    assert v.grad.tolist() == [1.0, 1.0, 1.0]


def test_checks_are_late_too():
    f = wg.compile(lambda x: wg.check(x > 0, "positive"))  # a check
    f(wg.ones(2))
    f(wg.zeros(2))
    with pytest.raises(ValueError, match=f"(?s)positive.*:{line_of('a check')}"):
        wg.synchronize()


def test_a_session_keeps_the_values_of_before():
    with wg.Graph() as graph:
        x, i = wg.placeholder("x", (3,)), wg.placeholder("i", (2,), wg.int64)
        total = wg.Variable(wg.zeros(2), name="total")
        new = total.assign(total + x[i])  # node of a graph
    with wg.Session(graph) as session:
        a, bad = given()
        session.run(new, {x: a, i: bad * 0 + 2})
        lost = session.run(new, {x: a, i: bad})
        session.run(new, {x: a, i: bad * 0 + 1})
        for _ in range(2):
            with raises_at("node of a graph"):
                lost.tolist()
        assert session.run(total, {}).tolist() == [2.0, 2.0]
        session.run(new, {x: a, i: bad * 0 + 1})
        assert session.run(total, {}).tolist() == [3.0, 3.0]


def test_calls_of_the_host_and_prints_are_not_put_off(capsys):
    state, seen = wg.zeros(()), []

    @wg.compile
    def step(x):
        nonlocal state
        state += x
        wg.host_call(lambda v: seen.append(v.item()), state)
        wg.print("{}", state)

    for _ in range(2):
        step(wg.ones(()))
    assert seen == [1.0, 2.0]
    assert state.item() == 2.0 and "2" in capsys.readouterr().out


@pytest.mark.parametrize("name", CALLS)
def test_late_refusals_have_the_words_of_the_call(name):
    """The text of `test_refusals`, eagerly, compiled, in a session and batched."""
    f, words = CALLS[name]
    x, i = wg.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]), wg.tensor([0, 7])
    wg._core._defer(False)
    want = refusal(lambda: f(x, i))
    wg._core._defer(True)
    assert words in want[1]

    def session():
        with wg.Graph() as graph:
            a, b = wg.placeholder("x", (2, 3)), wg.placeholder("i", (2,), wg.int64)
            y = f(a, b)
        return wg.Session(graph).run(y, {a: x, b: i})

    modes = {
        "eager": lambda: f(x, i),
        "compiled": lambda: wg.compile(f)(x, i),
        "session": session,
        "vmap": lambda: wg.vmap(f)(wg.stack([x] * 3), wg.tensor([*FITS, [0, 7]])),
        "gradient": lambda: wg.compile(wg.value_and_grad(lambda x, i: f(x, i).sum()))(x, i)[0],
    }
    for mode, run in modes.items():
        with pytest.raises(IndexError) as refused:
            # An index of one element is a number of the host, for which the device is waited for.
            run().tolist()
        assert str(refused.value).splitlines()[0] == want[1], mode
        assert name == "getitem, one" or "made at /" in str(refused.value), mode


@pytest.mark.parametrize("op", OPS, ids=label)
def test_every_op_gives_the_same_bits_late(op):
    """In three modes, all of it queued before anything is computed."""
    for sample in samples(op)[:2]:
        dtypes = dtypes_of(op, sample)
        program, values = program_of(op, sample, "float32" if "float32" in dtypes else dtypes[-1])
        values = [x.detach().to(REF) for x in values]
        wg._core._defer(False)
        want = program(*values)
        wg._core._defer(True)
        late = program(*values)
        compiled = wg.compile(program)(*values)
        ran = Modes(program).run("session", *values)
        home = [wg.pytree.map(lambda x: x.to("cpu"), y) for y in (want, late, compiled, ran)]
        assert all(bits(y) == bits(home[0]) for y in home[1:]), f"{label(op)}({sample})"


def test_a_training_that_runs_ahead_gives_the_bits_of_one_that_waits():
    def trained():
        wg.random.seed(3)
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        step = training_step(optimizer, lambda x, t: nn.cross_entropy(model(x), t))
        rng = np.random.default_rng(1)
        losses = []
        for f in (step, wg.compile(step)):
            for _ in range(5):
                x = wg.asarray(rng.normal(size=(6, 4)).astype("f"))
                losses.append(f(x, wg.asarray(rng.integers(0, 3, 6))))
        return bits([y.to("cpu") for y in [*losses, *model.parameters()]])

    late = trained()
    wg._core._defer(False)
    assert trained() == late

