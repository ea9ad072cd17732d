"""Every allocation of a step may fail: the call then changes nothing, and the next one succeeds.

A hook refuses the n-th buffer that a call makes, for every n. What a user can see (parameters,
their gradients, the optimizer's state, the random generator, the tape) is what it was before the
call, and the steps that succeed give the bits of steps among which none was refused.
"""

import gc
from contextlib import contextmanager

import pytest
from test_capture_training import RUNS, batches, bits

import wengert as wg
from wengert import _core, nn


@contextmanager
def refusing(allowed):
    """Refuses one buffer after so many; gives a list that gets how many were made."""
    made = []
    _core._refuse_buffer(allowed)
    try:
        yield made
    finally:
        left = _core._refuse_buffer(None)
        made.append(allowed + 1 if left is None else allowed - left)


def buffers(call):
    """How many buffers a call makes."""
    with refusing(1 << 40) as made:
        call()
    return made[0]


def each_refusal(call, state):
    """Makes a call with each of its buffers refused in turn. Returns how many calls failed.

    A call may go on without a buffer: constants that cannot be folded are computed at each run.
    """
    gc.collect()
    gc.disable()
    try:
        n = refused = 0
        while True:
            before, nodes = state(), wg.graph_stats()["nodes"]
            with refusing(n) as made:
                try:
                    call()
                    done = True
                except MemoryError:
                    done = False
            if not done:
                assert state() == before, f"refusing buffer {n} changed something"
                assert wg.graph_stats()["nodes"] == nodes
                refused += 1
            elif made[0] <= n:
                return refused
            n += 1
            assert n < 5000
    finally:
        gc.enable()


class Training:
    """A training step of a model, and everything that it may change."""

    def __init__(self, name):
        make, reshape, optimizer = RUNS[name]
        wg.random.seed(3)
        self.model = make()
        self.optimizer = optimizer(list(self.model.parameters()))
        self.x, self.y = next(iter(batches()))
        self.reshape = reshape

    def loss(self):
        return nn.cross_entropy(self.model(self.reshape(self.x)), self.y)

    def step(self):
        self.optimizer.zero_grad()
        loss = self.loss()
        loss.backward()
        self.optimizer.step()
        return loss

    def state(self):
        gradients = [p.grad for p in self.model.parameters()]
        state = self.model.state_dict(), gradients, self.optimizer.state_dict()
        return bits(state), wg.random.get_state()


def test_the_hook_refuses_the_buffer_it_says():
    x = wg.ones(4)
    assert buffers(lambda: x + x) == 1
    with refusing(0), pytest.raises(MemoryError):
        x + x
    with refusing(1):
        y = x + x
        with pytest.raises(MemoryError):
            x + x
        assert (x + y).tolist() == [3.0] * 4


@pytest.mark.parametrize("name", ["mlp adam", "mlp nesterov", "lenet", "lstm", "attention"])
def test_a_compiled_step_that_finds_no_memory_changes_nothing(name):
    bench = Training(name)
    bench.step()  # the optimizer makes its state when it is first needed
    step, succeeded = wg.compile(bench.step), 0

    def call():
        nonlocal succeeded
        step()
        succeeded += 1

    assert each_refusal(call, bench.state) > 3  # first calls: tracing and planning too
    assert each_refusal(call, bench.state) > 3
    eager = Training(name)
    for _ in range(1 + succeeded):
        eager.step()
    assert bench.state() == eager.state()


@pytest.mark.parametrize("name", ["mlp adam", "lenet", "lstm", "attention"])
def test_an_eager_backward_that_finds_no_memory_changes_nothing(name):
    bench = Training(name)
    bench.step()
    bench.model.eval()  # neither draws numbers nor updates statistics
    assert each_refusal(lambda: bench.loss().backward(), bench.state) > 3


def test_updates_that_find_no_memory_change_nothing():
    x, at = wg.arange(64.0).reshape(8, 8), wg.tensor([1, 3])
    held = x + 0
    view = x[2]
    assert each_refusal(lambda: x.__setitem__(at, x[:2] * 2.0), lambda: bits((x, held, view))) > 1
    assert each_refusal(lambda: x.__iadd__(x.T + view), lambda: bits((x, held, view))) >= 1


def test_a_session_run_that_finds_no_memory_changes_nothing():
    with wg.Graph() as g:
        x = wg.placeholder("x", (None, 3))
        w = wg.Variable(wg.ones((3, 2)), name="w")
        total = wg.Variable(wg.zeros(()), name="total")
        loss = ((x @ w).tanh() ** 2).sum()
        (grad,) = wg.gradients(loss, [w])
        update = w.assign(w - 0.1 * grad)
        count = total.assign(total + loss)
    session = wg.Session(g)
    feed = {x: wg.ones((5, 3))}

    def state():
        return bits((session.run(w), session.run(total)))

    state()
    # Results are refused one by one, behind the plan's workspace.
    fetches = [update, count, loss, grad, x @ w]
    assert each_refusal(lambda: session.run(fetches, feed), state) > 3


class Slow(wg.optim.Adam):
    """An optimizer of one's own, whose updates are Python's."""

    def initial_state(self, p, group):
        return {**super().initial_state(p, group), "count": wg.zeros(())}

    def update(self, p, g, state, group):
        state["count"] = state["count"] + 1.0
        super().update(p, g, state, group)


OPTIMIZERS = {
    "sgd": lambda ps: wg.optim.SGD(ps, lr=0.1),
    "nesterov": lambda ps: wg.optim.SGD(ps, 0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    "adam": lambda ps: wg.optim.Adam(ps, weight_decay=0.1),
    "adamw": wg.optim.AdamW,
    "groups": lambda ps: wg.optim.Adam([{"params": ps[:1], "lr": 0.5}, {"params": ps[1:]}]),
    "one of one's own": Slow,
}


class Steps:
    """Parameters with gradients; others hold a value, a view and a gradient."""

    def __init__(self, make):
        wg.random.seed(0)
        self.params = [wg.random.normal(shape) for shape in [(4, 3), (3,), (), (5, 2)]]
        for p in self.params:
            p.requires_grad = True
            p.grad = wg.random.normal(p.shape)
        self.params[-1].grad = None
        self.held = self.params[0].detach(), self.params[1][1:].detach()
        self.optimizer = make(self.params)

    def state(self):
        state = self.params, self.held, self.optimizer.state_dict()
        return bits(state), sorted(id(p) for p in self.optimizer.state)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_eager_step_that_finds_no_memory_changes_nothing(name):
    steps, succeeded = Steps(OPTIMIZERS[name]), 0

    def call():
        nonlocal succeeded
        steps.optimizer.step()
        succeeded += 1

    assert each_refusal(call, steps.state) > 1  # its state and its program are made
    later = each_refusal(call, steps.state)
    assert later > 1 if name == "one of one's own" else later <= 1
    again = Steps(OPTIMIZERS[name])
    for _ in range(succeeded):
        again.optimizer.step()
    assert bits(again.params) == bits(steps.params)


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
def test_an_eager_step_that_is_broken_off_changes_nothing(error):
    fails = [2]

    class Fails(Slow):
        def update(self, p, g, state, group):
            super().update(p, g, state, group)
            fails[0] -= 1
            if fails[0] == 0:
                raise error

    for step in range(3):
        steps = Steps(Fails)
        fails[0] = 0
        for _ in range(step):
            steps.optimizer.step()
        before, fails[0] = steps.state(), 2
        with pytest.raises(error):
            steps.optimizer.step()
        assert steps.state() == before
        assert all(p.is_leaf and p.requires_grad for p in steps.params)


def test_an_eager_step_works_in_the_memory_that_is_there():
    """Its program needs no copies: what is held at the peak is what there is afterwards."""
    p = wg.ones((1000, 100), requires_grad=True)
    p.grad = wg.ones_like(p)
    for make in (wg.optim.SGD, lambda ps: wg.optim.SGD(ps, momentum=0.9), wg.optim.Adam):
        optimizer = make([p])
        optimizer.step()
        gc.collect()
        wg.reset_peak_memory()
        optimizer.step()
        stats = wg.memory_stats()
        assert stats["peak_bytes"] - stats["live_bytes"] < 1000
