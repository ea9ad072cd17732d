"""Optimizers against their formulas in NumPy, schedules, clipping, and state."""

import gc
import math
import weakref

import numpy as np
import pytest

import wengert as wg
from wengert import _steps, nn, optim

STEPS = 25


def gradient(values, step):
    """The gradient of Σ pᵢ⁴/4 + p₀'s sum times p₁'s, a little different at each step."""
    sums = [v.sum() for v in values]
    return [v**3 + sums[1 - i] * math.cos(step) for i, v in enumerate(values)]


def start():
    rng = np.random.default_rng(0)
    return [rng.standard_normal((3, 2)), rng.standard_normal(4)]


def run(make):
    """The parameters after some steps; the second one has no gradient at every third."""
    params = [nn.Parameter(wg.asarray(v)) for v in start()]
    optimizer = make(params)
    for step in range(STEPS):
        grads = gradient([p.detach().numpy() for p in params], step)
        optimizer.zero_grad()
        for i, (p, g) in enumerate(zip(params, grads, strict=True)):
            if i == 0 or step % 3:
                p.grad = wg.asarray(g)
        optimizer.step()
    return [p.detach().numpy() for p in params]


def by_hand(update):
    """The same in NumPy; `update(p, g, memory, t)` returns the new p."""
    values, memory, counts = start(), [{}, {}], [0, 0]
    for step in range(STEPS):
        grads = gradient(values, step)
        for i in (0, 1):
            if i == 0 or step % 3:
                counts[i] += 1
                values[i] = update(values[i], grads[i], memory[i], counts[i])
    return values


def same(ours, theirs):
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("nesterov", [False, True])
def test_sgd(momentum, decay, nesterov):
    if nesterov and not momentum:
        with pytest.raises(ValueError, match="momentum"):
            optim.SGD([wg.ones(1, requires_grad=True)], nesterov=True)
        return

    def update(p, g, memory, t):
        g = g + decay * p
        b = memory["b"] = momentum * memory.get("b", 0.0) + g
        return p - 0.01 * (g + momentum * b if nesterov else b)

    make = {"momentum": momentum, "weight_decay": decay, "nesterov": nesterov}
    same(run(lambda p: optim.SGD(p, lr=0.01, **make)), by_hand(update))


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("decoupled", [False, True])
def test_adam(decay, decoupled):
    def update(p, g, memory, t):
        p, g = (p * (1 - 0.02 * decay), g) if decoupled else (p, g + decay * p)
        m = memory["m"] = 0.8 * memory.get("m", 0.0) + 0.2 * g
        v = memory["v"] = 0.95 * memory.get("v", 0.0) + 0.05 * g * g
        return p - 0.02 * (m / (1 - 0.8**t)) / (np.sqrt(v / (1 - 0.95**t)) + 1e-3)

    kind = optim.AdamW if decoupled else optim.Adam
    make = {"betas": (0.8, 0.95), "eps": 1e-3, "weight_decay": decay}
    same(run(lambda p: kind(p, lr=0.02, **make)), by_hand(update))


def test_groups_and_rates():
    a, b = (wg.ones(1, requires_grad=True) for _ in range(2))
    optimizer = optim.SGD([{"params": [a], "lr": 1.0}, {"params": b}], lr=0.5)
    a.grad, b.grad = wg.ones(1), wg.ones(1)
    optimizer.step()
    assert (a.item(), b.item()) == (0.0, 0.5) and optimizer.lr == 1.0
    optimizer.lr = 0.25
    optimizer.step()
    assert (a.item(), b.item()) == (-0.25, 0.25)
    optimizer.zero_grad()
    assert a.grad is None and b.grad is None
    assert a.requires_grad and a.is_leaf


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda p: optim.SGD([]), ValueError, "no parameters"),
        (lambda p: optim.SGD([1.0]), TypeError, "float"),
        (lambda p: optim.SGD([p, p]), ValueError, "twice"),
        (lambda p: optim.SGD([p * 2]), ValueError, "leaves"),
        (lambda p: optim.SGD([p], lr=-1.0), ValueError, "lr"),
        (lambda p: optim.Adam([p], betas=(0.9, 1.0)), ValueError, "betas"),
        (lambda p: optim.Adam([{"params": [p], "momentum": 0.9}]), ValueError, "momentum"),
        (lambda p: optim.Adam([{"lr": 0.1}]), TypeError, "params"),
    ],
)
def test_refusals(make, error, words):
    with pytest.raises(error, match=words):
        make(wg.ones(2, requires_grad=True))


def test_state_goes_on_where_it_was():
    def make():
        wg.random.seed(0)
        net = nn.Linear(3, 2)
        return net, optim.AdamW(net.parameters(), lr=0.1)

    def steps(net, optimizer, n):
        for i in range(n):
            optimizer.zero_grad()
            (net(wg.ones((1, 3)) * (i + 1)) ** 2).sum().backward()
            optimizer.step()

    net, optimizer = make()
    steps(net, optimizer, 3)
    weights, state = net.state_dict(), optimizer.state_dict()
    steps(net, optimizer, 2)
    other, again = make()
    other.load_state_dict(weights)
    again.load_state_dict(state)
    steps(other, again, 2)
    assert other.weight.tolist() == net.weight.tolist()
    assert state["state"][0]["step"].item() == 3.0, "a snapshot"

    bad = optimizer.state_dict()
    del bad["state"][0]["step"]
    bad["state"][1]["exp_avg"] = wg.ones(7)
    bad["state"][9] = {}
    before = again.state_dict()
    with pytest.raises(ValueError) as error:
        again.load_state_dict(bad)
    for words in ("parameter 0", "step", "parameter 1", "(7,)", "(2,)", "parameter 9"):
        assert words in str(error.value), str(error.value)
    assert again.state_dict()["state"][0]["step"].item() == before["state"][0]["step"].item()
    with pytest.raises(ValueError, match="groups"):
        again.load_state_dict({"state": {}, "param_groups": []})


def rates(schedule, n):
    found = []
    for _ in range(n):
        found.append(schedule.optimizer.lr)
        schedule.step()
    return found


def test_schedules():
    def sgd():
        return optim.SGD([wg.ones(1, requires_grad=True)], lr=2.0)

    assert rates(optim.LambdaSchedule(sgd(), lambda t: 0.5**t), 3) == [2.0, 1.0, 0.5]
    step = optim.StepSchedule(sgd(), step_size=2, gamma=0.5, warmup_steps=1)
    assert rates(step, 5) == [1.0, 2.0, 1.0, 1.0, 0.5]
    cosine = rates(optim.CosineSchedule(sgd(), 6, warmup_steps=2, min_lr=0.1), 9)
    half = [0.1 + 1.9 * 0.5 * (1 + math.cos(math.pi * i / 4)) for i in range(5)]
    np.testing.assert_allclose(cosine, [2 / 3, 4 / 3, *half, 0.1, 0.1], rtol=1e-12)
    first, second = optim.CosineSchedule(sgd(), 6), optim.CosineSchedule(sgd(), 6)
    rates(first, 3)
    second.load_state_dict(first.state_dict())
    assert rates(second, 3) == rates(first, 3)
    with pytest.raises(ValueError, match="warmup_steps"):
        optim.CosineSchedule(sgd(), 3, warmup_steps=3)


def test_clipping():
    p, q = wg.ones(2, requires_grad=True), wg.ones(3, requires_grad=True)
    p.grad, q.grad = wg.ones(2) * 3, wg.ones(3) * -4
    norm = optim.clip_grad_norm([p, q, wg.ones(1, requires_grad=True)], 1.0)
    assert abs(norm.item() - math.sqrt(66)) < 1e-5
    total = math.sqrt((p.grad * p.grad).sum().item() + (q.grad * q.grad).sum().item())
    assert abs(total - 1) < 1e-6
    kept = p.grad.tolist()
    assert abs(optim.clip_grad_norm([p, q], 2.0).item() - 1) < 1e-6 and p.grad.tolist() == kept
    optim.clip_grad_value([p, q], 0.4)
    np.testing.assert_allclose(q.grad.numpy(), -0.4)
    zero = wg.ones(1, requires_grad=True)
    zero.grad = wg.zeros(1)
    assert optim.clip_grad_norm(zero, 1.0).item() == 0.0 and zero.grad.tolist() == [0.0]


@pytest.mark.parametrize("make", [optim.SGD, optim.Adam, optim.AdamW])
def test_what_gets_no_gradient_is_no_parameter(make):
    learned = wg.ones(2, requires_grad=True)
    for wrong in ([wg.ones(3)], [learned, wg.ones(3)], [{"params": [learned.detach()]}]):
        with pytest.raises(wg.ArgumentError, match="must require a gradient: got float32"):
            make(wrong, lr=0.1)
    optimizer = make([learned], lr=0.1)
    with pytest.raises(wg.ArgumentError, match="must require a gradient"):
        optimizer.add_param_group({"params": [wg.ones(3)]})
    assert len(optimizer.param_groups) == 1
    # A frozen parameter may be thawed.
    make([wg.nn.Parameter(wg.ones(2), requires_grad=False)], lr=0.1)


def changing(name):
    """What may change between steps, as it does to an optimizer that updates tensor by tensor."""
    rng = np.random.default_rng(0)
    p = [wg.tensor(rng.standard_normal(s), requires_grad=True) for s in [(3, 2), (2,), (4,)]]
    optimizer = MAKERS[name](p)
    for step in range(14):
        p[2].requires_grad = step % 5 != 4
        for x in p:
            g = wg.tensor(rng.standard_normal(x.shape))
            if x.requires_grad:
                x.grad = g
        if step % 3 == 1:
            p[step % 2].grad = None
        if step == 4:
            optimizer.lr = 0.3
        if step == 5:
            optimizer.param_groups[0]["weight_decay"] = 0.1
        if step == 7:
            optimizer.load_state_dict(optimizer.state_dict())
        if step == 8:
            with wg.no_grad():
                p[0][...] = p[0] * 2.0
        if step == 9 and optimizer.state[p[2]]:
            key = next(iter(optimizer.state[p[2]]))
            optimizer.state[p[2]][key] = optimizer.state[p[2]][key] * 0.5
        if step == 10:
            optimizer.add_param_group({"params": [wg.ones(2, requires_grad=True)]})
        optimizer.step()
        yield [x.numpy().copy() for x in p]


MAKERS = {
    "sgd": lambda p: optim.SGD(p, lr=0.1),
    "momentum": lambda p: optim.SGD(p, lr=0.1, momentum=0.9),
    "adam": lambda p: optim.Adam(p, lr=0.1),
    "adamw": lambda p: optim.AdamW(p, lr=0.1),
}


@pytest.mark.parametrize("name", MAKERS)
def test_a_step_has_the_bits_of_its_updates_made_one_by_one(name, monkeypatch):
    """A step is a program of all updates; which, is looked at before each."""
    got = list(changing(name))
    monkeypatch.setattr(_steps.Program, "of", lambda *_: None)
    for a, b in zip(got, changing(name), strict=True):
        for x, y in zip(a, b, strict=True):
            np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("name", MAKERS)
def test_a_rate_of_any_floating_dtype_takes_that_of_the_parameter(name, dtype):
    results = []
    for rate in (0.25, np.float32(0.25), wg.tensor(0.25), wg.tensor(0.25, dtype=wg.float64)):
        p = wg.ones(3, dtype=getattr(wg, dtype), requires_grad=True)
        optimizer = MAKERS[name]([p])
        optimizer.lr = rate
        for _ in range(2):
            p.grad = p.detach() * 0.5
            optimizer.step()
        results.append(p.tolist())
    assert p.dtype == getattr(wg, dtype) and all(x == results[0] for x in results)


def test_an_optimizer_goes_with_its_last_reference():
    """Nothing of its program waits for the collector of cycles."""
    gc.disable()
    try:
        p = wg.ones(3, requires_grad=True)
        p.grad = wg.ones(3)
        optimizer = optim.Adam([p])
        optimizer.step()
        optimizer.step()
        dead, before = weakref.ref(optimizer), wg.memory_stats()["live_buffers"]
        del optimizer
        assert dead() is None and wg.memory_stats()["live_buffers"] < before
    finally:
        gc.enable()
