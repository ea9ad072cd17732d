"""`compile` as somebody uses it who knows other libraries: what Python does beside the tensors.

Modules that change, learning rates, the compiled object itself, threads and signals.
`test_user_arguments.py` has the arguments.
"""

import copy
import functools
import operator
import pickle
import signal
import sys
import threading
import time

import pytest

import wengert as wg
from wengert import nn, optim

from support import array, same


@wg.compile
def doubled(x):
    """Twice `x`."""
    return x * 2


# Modules that change.


def test_entries_of_containers_of_modules_are_seen():
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    f, x = wg.compile(model), array(2, 3)
    same(f(x), model(x))
    model[1] = nn.Tanh()
    same(f(x), model(x))
    model.append(nn.Linear(3, 3))
    same(f(x), model(x))
    model[0].weight = nn.Parameter(wg.zeros((3, 3)))
    same(f(x), model(x))
    assert f.traces == 4
    assert "Sequential._entries" in str(f.explain())


def test_hooks_of_modules_are_seen():
    model, x = nn.Linear(2, 2), array(1, 2)
    f = wg.compile(model)
    same(f(x), model(x))
    handle = model.register_forward_hook(lambda module, args, y: y * 2)
    same(f(x), model(x))
    handle.remove()
    same(f(x), model(x))
    before = model.register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    same(f(x), model(x))
    before.remove()
    same(f(x), model(x))


class Counting(nn.Module):
    def __init__(self):
        self.calls = 0
        self.last = None

    def forward(self, x):
        self.calls += 1
        self.last = x * self.calls
        return self.last + 1


def test_attributes_that_a_call_assigns_have_their_values_afterwards():
    eager, captured = Counting(), Counting()
    f = wg.compile(captured)
    for n in range(4):
        x = array(3, seed=n)
        same(f(x), eager(x))
        assert captured.calls == eager.calls == n + 1
        same(captured.last, eager.last)


def test_a_tensor_kept_for_a_look_makes_no_traces():
    class Attention(nn.Module):
        weights = None

        def forward(self, x):
            self.weights = nn.softmax(x @ x.T, axis=-1)
            return self.weights @ x

    model = Attention()
    f = wg.compile(model)
    for n in range(5):
        x = array(3, 2, seed=n)
        y = f(x)
        kept = model.weights
        same(y, model(x))
        same(kept, model.weights)
    assert f.traces <= 2


def test_an_attribute_that_is_read_and_bound_anew_is_refused():
    class Recurrent(nn.Module):
        def __init__(self):
            self.h = wg.zeros(2)

        def forward(self, x):
            self.h = self.h + x
            return self.h

    model = Recurrent()
    old = model.h
    with pytest.raises(wg.CaptureError, match=r"Recurrent\.h .*in place"):
        wg.compile(model)(wg.ones(2))
    assert model.h is old and old.tolist() == [0.0, 0.0]


def test_a_failed_call_takes_assignments_back():
    class Failing(nn.Module):
        def __init__(self):
            self.calls = 0

        def forward(self, x, fail):
            self.calls += 1
            if fail:
                raise KeyError("no")
            return x

    model = Failing()
    with pytest.raises(KeyError):
        wg.compile(model)(wg.ones(1), True)
    assert model.calls == 0


def test_hooks_of_tensors_are_seen():
    w = nn.Parameter(wg.ones(2))

    @wg.compile
    def step(x):
        w.grad = None
        (w * x).sum().backward()

    step(wg.ones(2))
    handle = w.register_hook(lambda g: g * 3)
    step(wg.ones(2))
    assert w.grad.tolist() == [3.0, 3.0]
    handle.remove()
    step(wg.ones(2))
    assert w.grad.tolist() == [1.0, 1.0] and step.traces == 2


# Learning rates.


def steps(set_rate, calls, compiled):
    wg.random.seed(0)
    model = nn.Linear(2, 1)
    optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(x, *args):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        set_rate(optimizer, *args)
        optimizer.step()
        return loss

    run = wg.compile(step) if compiled else step
    x = array(4, 2)
    losses = [run(x, *args).item() for args in calls]
    return losses, [p.tolist() for p in model.parameters()], optimizer.lr, run


def by_group(optimizer, rate):
    for group in optimizer.param_groups:
        group["lr"] = rate


def by_attribute(optimizer, rate):
    optimizer.lr = rate * 0.5


def decay(optimizer):
    optimizer.lr *= 0.9


def decay_with_a_floor(optimizer):
    optimizer.param_groups[0].update(lr=optimizer.param_groups[0]["lr"] / 2 + 0.01)


@pytest.mark.parametrize("set_rate", [by_group, by_attribute, decay, decay_with_a_floor])
def test_learning_rates_set_inside_a_step(set_rate):
    calls = [(0.1 * i,) for i in range(1, 7)] if set_rate in (by_group, by_attribute) else [()] * 6
    eager, captured = steps(set_rate, calls, False), steps(set_rate, calls, True)
    assert eager[:3] == captured[:3] and type(captured[2]) is float
    assert captured[3].traces <= 2


def test_a_rate_that_was_there_already_is_assigned_too():
    parameter = nn.Parameter(wg.ones(1))
    optimizer = optim.SGD([parameter], lr=0.5)

    @wg.compile
    def step(x):
        optimizer.zero_grad()
        (parameter * x).sum().backward()
        optimizer.lr = 0.5
        optimizer.step()

    step(wg.ones(1))
    optimizer.lr = 0.25
    step(wg.ones(1))
    assert parameter.item() == 0.0 and optimizer.lr == 0.5 and step.traces == 1


def test_a_rate_that_comes_of_an_unseen_value_is_found():
    parameter, count = nn.Parameter(wg.ones(1)), [0]
    optimizer = optim.SGD([parameter], lr=0.5)

    @wg.compile
    def step(x):
        optimizer.zero_grad()
        (parameter * x).sum().backward()
        optimizer.lr = 0.1 / (1 + count[0])
        optimizer.step()

    with wg.config(check=True):
        step(wg.ones(1))
        step(wg.ones(1))
        count[0] = 1
        with pytest.raises(wg.CaptureError, match=r"lr.* is assigned 0\.1 and 0\.05"):
            step(wg.ones(1))


def test_a_rate_read_inside_is_that_of_the_call():
    parameter = nn.Parameter(wg.ones(1))
    optimizer = optim.SGD([parameter], lr=0.5)
    f = wg.compile(lambda x: (x * optimizer.lr, optimizer.lr * 2))
    for rate in (0.5, 0.25, 0.125):
        optimizer.lr = rate
        y, twice = f(wg.ones(1))
        assert y.item() == rate and twice == 2 * rate and type(twice) is float
    assert f.traces == 1


def test_a_group_added_between_calls_is_seen():
    a, b = nn.Parameter(wg.ones(1)), nn.Parameter(wg.ones(1))
    optimizer = optim.SGD([a], lr=0.5)

    @wg.compile
    def step(x):
        optimizer.zero_grad()
        (a * b * x).sum().backward()
        optimizer.step()

    step(wg.ones(1))
    optimizer.add_param_group({"params": [b], "lr": 0.25})
    step(wg.ones(1))
    assert (a.item(), b.item()) == (0.0, 0.875)


# The object itself.


def test_a_compiled_module_is_used_as_the_module():
    model = wg.compile(nn.Sequential(nn.Linear(2, 3), nn.Dropout(0.5)))
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    assert len(list(model.parameters())) == 2 and model.training
    model.eval()
    x = array(4, 2)
    same(model(x), model.__wrapped__(x))
    model(x).sum().backward()
    optimizer.step()
    assert set(model.state_dict()) == {"0.weight", "0.bias"}
    with pytest.raises(AttributeError, match="nothing_of_that_name"):
        model.nothing_of_that_name


def test_a_compiled_module_is_part_of_another():
    class Net(nn.Module):
        def __init__(self):
            self.body = wg.compile(nn.Linear(2, 2))
            self.head = nn.Sequential(wg.compile(nn.Dropout(0.5)), nn.Linear(2, 1))

        def forward(self, x):
            return self.head(self.body(x))

    net = Net()
    assert [n for n, _ in net.named_parameters()] == [
        "body.weight",
        "body.bias",
        "head.1.weight",
        "head.1.bias",
    ]
    net.eval()
    assert not net.body.training and not net.head[0].training
    x = array(3, 2)
    twin = copy.deepcopy(net)
    with wg.no_grad():
        twin.body.weight *= 0
        twin.body.bias *= 0
    assert (twin.body(x).numpy() == 0).all() and (net.body(x).numpy() != 0).any()
    gradients = wg.grad(lambda m: m(x).sum())(net)
    same(gradients.body.weight, wg.grad(lambda w: net.head(x @ w.T).sum())(net.body.weight))


def test_copies_and_pickles():
    assert pickle.loads(pickle.dumps(doubled)) is doubled
    doubled(wg.ones(2))
    twin = copy.copy(doubled)
    assert twin is not doubled and twin.traces == 0 and twin(wg.ones(1)).item() == 2.0
    partial = wg.compile(functools.partial(operator.mul, 3.0))
    assert pickle.loads(pickle.dumps(partial))(wg.ones(1)).item() == 3.0


def test_how_it_prints():
    f = wg.compile(lambda x: x)
    assert repr(f) == "<compiled <lambda>, 0 traces>"
    f(wg.ones(1))
    assert repr(f) == "<compiled <lambda>, 1 trace>"


@pytest.mark.parametrize("what", [3, wg.ones(2), "f"])
def test_what_is_no_function_is_refused(what):
    with pytest.raises(TypeError, match="compile: expected a function"):
        wg.compile(what)


def test_what_computes_later_is_refused():
    @wg.compile
    def f(x):
        yield x * 2

    with pytest.raises(wg.CaptureError, match="generator"):
        f(wg.ones(1))
    with pytest.raises(wg.CaptureError, match="generator"):
        wg.compile(lambda x: [x, (x * i for i in range(3))])(wg.ones(1))


def test_reasons_name_what_changed():
    model = nn.Dropout(0.5)
    scale = 2.0
    f = wg.compile(lambda x: model(x) * scale)
    f(wg.ones(2))
    model.eval()
    f(wg.ones(2))
    scale = 3.0
    f(wg.ones(2))
    text = str(f.explain())
    assert "Dropout.training: True became False" in text and "scale: 2.0 became 3.0" in text


def adversarial(compiled):
    """Two nets against each other, on batches of several sizes."""
    wg.random.seed(11)
    maker = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm(8), nn.ReLU(), nn.Linear(8, 2))
    judge = nn.Sequential(nn.Linear(2, 8), nn.LeakyReLU(), nn.Dropout(0.1), nn.Linear(8, 1))
    slow = optim.Adam(maker.parameters(), lr=1e-2)
    fast = optim.SGD(judge.parameters(), lr=1e-1)
    loss = nn.binary_cross_entropy_with_logits

    def step(x):
        ones, zeros = wg.ones((x.shape[0], 1)), wg.zeros((x.shape[0], 1))
        made = maker(wg.random.normal((x.shape[0], 4)))
        fast.zero_grad()
        of_judge = loss(judge(x), ones) + loss(judge(made.detach()), zeros)
        of_judge.backward()
        fast.step()
        slow.zero_grad()
        of_maker = loss(judge(made), ones)
        of_maker.backward()
        slow.step()
        return of_judge, of_maker

    run = wg.compile(step) if compiled else step
    found = [y.item() for n in (5, 6, 7, 8, 3) for y in run(array(n, 2, seed=n))]
    state = [t.tolist() for m in (maker, judge) for t in m.state_dict().values()]
    return found, state, run


def test_two_optimizers_on_batches_of_several_sizes():
    eager, captured = adversarial(False), adversarial(True)
    assert eager[:2] == captured[:2] and captured[2].traces == 2


def test_explain_shows_the_plan_of_the_latest_call():
    f = wg.compile(lambda x: (x * 2 + 1).tanh().sum(axis=0))
    assert "0 traces" in str(f.explain())
    f(wg.ones((4, 4)))
    text = str(f.explain())
    assert "peak" in text and "bytes" in text and "multiply, add, tanh" in text
    with wg.profile():
        f(wg.ones((4, 4)))
    assert " us" in str(f.explain())


# Threads and signals.


def test_a_capture_in_one_thread_leaves_the_training_in_another_alone():
    go, stop = threading.Event(), threading.Event()

    @wg.compile
    def slow(x):
        go.set()
        stop.wait(10)
        return x * 2

    thread = threading.Thread(target=slow, args=(wg.ones(1),))
    thread.start()
    assert go.wait(10)
    try:
        weight = nn.Parameter(wg.ones(1))
        optimizer = optim.SGD([weight], lr=0.5)
        schedule = optim.LambdaSchedule(optimizer, lambda n: 1 / (n + 1))
        weight.sum().backward()
        optimizer.step()
        schedule.step()
        assert weight.item() == 0.5 and optimizer.lr == 0.25
    finally:
        stop.set()
        thread.join()


class Stop(BaseException):
    pass


@pytest.fixture
def alarm():
    def stop(*_):
        raise Stop

    before = signal.signal(signal.SIGALRM, stop)
    yield lambda: signal.setitimer(signal.ITIMER_REAL, 0.2)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.skipif(sys.platform == "win32", reason="there is no such signal")
def test_an_endless_loop_is_broken_off(alarm):
    f = wg.compile(lambda x: wg.while_loop(lambda x: x >= 0, lambda x: x + 1, x))
    with pytest.raises(Stop):
        alarm()
        f(wg.tensor(0.0))
    assert f(wg.tensor(-1.0)).item() == -1.0


@pytest.mark.skipif(sys.platform == "win32", reason="there is no such signal")
def test_a_step_that_is_broken_off_changes_nothing():
    weight = nn.Parameter(wg.ones(()))
    optimizer = optim.SGD([weight], lr=0.5)

    @wg.compile
    def step(n):
        optimizer.zero_grad()
        count = wg.while_loop(lambda i: i < n, lambda i: i + 1, wg.tensor(0))
        (weight * count.astype(wg.float32)).backward()
        optimizer.step()

    step(wg.tensor(2))
    assert weight.item() == 0.0

    def press():
        time.sleep(0.2)
        signal.pthread_kill(main, signal.SIGINT)

    main = threading.get_ident()
    thread = threading.Thread(target=press)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            thread.start()
            step(wg.tensor(2**62))
    finally:
        thread.join()
        signal.signal(signal.SIGINT, before)
    assert weight.item() == 0.0 and weight.grad.item() == 2.0
    step(wg.tensor(3))
    assert weight.item() == -1.5
