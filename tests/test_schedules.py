"""Schedules of the learning rate against PyTorch's, and averages of weights."""

import copy
import json
from pathlib import Path

import numpy as np
import pytest

import wengert as wg
from wengert import nn, optim

REFERENCE = json.loads(Path(__file__).with_name("optim_reference.json").read_text())
CASES = {f"{i} {case['name']}": case for i, case in enumerate(REFERENCE["schedules"])}


def sgd(lr=0.1):
    return optim.SGD([wg.ones(1, requires_grad=True)], lr=lr)


def rates(schedule, n, metrics=None):
    found = []
    for k in range(n):
        found.append(schedule.optimizer.lr)
        schedule.step(*metrics[k : k + 1] if metrics else [])
    return found


def metrics_of(schedule):
    return REFERENCE["metrics"] if isinstance(schedule, optim.PlateauSchedule) else None


@pytest.mark.parametrize("name", CASES)
def test_rates_are_pytorchs(name):
    case = CASES[name]
    schedule = getattr(optim, case["name"])(sgd(), **case["options"])
    got = rates(schedule, 40, metrics_of(schedule))
    np.testing.assert_allclose(got, case["rates"], rtol=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_a_schedule_goes_on_from_its_state(name):
    case = CASES[name]
    first, second = (getattr(optim, case["name"])(sgd(), **case["options"]) for _ in range(2))
    metrics = metrics_of(first)
    rates(first, 11, metrics)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    rest = metrics and metrics[11:]
    assert rates(second, 15, rest) == rates(first, 15, rest)


def test_chained_schedules_multiply_and_sequential_ones_follow():
    optimizer = sgd(1.0)
    chained = optim.ChainedSchedule([
        optim.LinearSchedule(optimizer, start_factor=0.5, total_steps=4),
        optim.ExponentialSchedule(optimizer, gamma=0.5),
    ])  # fmt: skip
    want = [0.5, 0.625 / 2, 0.75 / 4, 0.875 / 8, 1 / 16, 1 / 32]
    np.testing.assert_allclose(rates(chained, 6), want, rtol=1e-12)

    optimizer = sgd(1.0)
    following = optim.SequentialSchedule([
        optim.LinearSchedule(optimizer, start_factor=0.5, total_steps=2),
        optim.CosineSchedule(optimizer, total_steps=2),
        optim.ExponentialSchedule(optimizer, gamma=0.5),
    ], milestones=[2, 4])  # fmt: skip
    want = [0.5, 0.75, 1.0, 0.5, 1.0, 0.5, 0.25]
    np.testing.assert_allclose(rates(following, 7), want, rtol=1e-12)
    other = optim.SequentialSchedule([optim.ExponentialSchedule(sgd(), gamma=0.5)], [])
    other.load_state_dict(following.state_dict())
    assert other.count == 7 and other.optimizer.lr == 0.5**7


def test_a_rate_that_somebody_sets_is_a_groups_own():
    optimizer = sgd(1.0)
    rates(optim.ExponentialSchedule(optimizer, gamma=0.5), 3)
    assert optim.ExponentialSchedule(optimizer, gamma=0.9).base == [1.0]
    optimizer.lr = 0.25
    assert optim.ExponentialSchedule(optimizer, gamma=0.9).base == [0.25]


def test_a_captured_function_steps_a_schedule_of_any_kind():
    p = wg.zeros(1, requires_grad=True)
    optimizer = optim.SGD([p], lr=1.0)
    schedule = optim.SequentialSchedule([
        optim.LinearSchedule(optimizer, start_factor=0.5, total_steps=2),
        optim.ExponentialSchedule(optimizer, gamma=0.5),
    ], milestones=[2])  # fmt: skip

    @wg.compile
    def step():
        optimizer.zero_grad()
        p.grad = -wg.ones(1)
        optimizer.step()
        schedule.step()

    ends = []
    for _ in range(4):
        step()
        ends.append(p.item())
    assert ends == [0.5, 1.25, 2.25, 2.75] and step.traces == 1

    plateau = optim.PlateauSchedule(optimizer)
    with pytest.raises(wg.CaptureError, match=r"PlateauSchedule.*outside"):
        wg.compile(lambda x: plateau.step(x.sum()))(wg.ones(2))
    plateau.step(wg.tensor(0.5))
    assert plateau.best == 0.5


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda o: optim.CyclicSchedule(o, 0.1, 0.5, mode="sine"), ValueError, "mode.*'sine'"),
        (lambda o: optim.CyclicSchedule(o, 0.1, 0.5, step_size_up=0), ValueError, "step_size_up"),
        (lambda o: optim.OneCycleSchedule(o, 1.0, 10, pct_start=2.0), ValueError, "pct_start"),
        (lambda o: optim.OneCycleSchedule(o, 1.0, 10, anneal="exp"), ValueError, "anneal.*'exp'"),
        (lambda o: optim.PlateauSchedule(o, factor=1.5), ValueError, "factor"),
        (lambda o: optim.PlateauSchedule(o, mode="low"), ValueError, "'min' or 'max', got 'low'"),
        (lambda o: optim.WarmRestartSchedule(o, period=0), ValueError, "period"),
        (lambda o: optim.WarmRestartSchedule(o, period=2, growth=0.5), ValueError, "growth"),
        (lambda o: optim.PolynomialSchedule(o, 0), ValueError, "total_steps"),
        (lambda o: optim.ChainedSchedule([]), ValueError, "no schedules"),
        (lambda o: optim.ChainedSchedule([optim.PlateauSchedule(o)]), TypeError, "Plateau"),
        (lambda o: optim.ChainedSchedule([optim.LinearSchedule(x) for x in (o, sgd())]),
         ValueError, "several optimizers"),
        (lambda o: optim.SequentialSchedule([optim.LinearSchedule(o)] * 2, [3, 5]),
         ValueError, "need 1 rising milestones"),
    ],
)  # fmt: skip
def test_refusals(make, error, words):
    optimizer = sgd()
    with pytest.raises(error, match=words):
        make(optimizer)


# Averages.


def network():
    wg.random.seed(0)
    return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))


def values(model):
    return {k: v.numpy().copy() for k, v in model.state_dict().items()}


def move(model, k):
    with wg.no_grad():
        for i, x in enumerate([*model.parameters(), *model.buffers()]):
            x += k + i


def averaged(kind, states, decay=0.75):
    """The average of states, the first before any update."""
    found = dict(states[0])
    for n, now in enumerate(states[1:]):
        for key in found:
            is_buffer = "running" in key or "num" in key
            part = 1.0 if is_buffer else 1.0 - decay if kind is optim.EMA else 1.0 / (n + 1)
            found[key] = found[key] + part * (now[key] - found[key])
    return found


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("kind", [optim.EMA, optim.SWA])
def test_averages_are_their_formulas(kind, compiled):
    model = network()
    average = kind(model, **({"decay": 0.75} if kind is optim.EMA else {}))
    states = [values(model)]
    update = wg.compile(average.update) if compiled else average.update
    for k in range(4):
        move(model, k)
        states.append(values(model))
        update()
    for key, want in averaged(kind, states).items():
        np.testing.assert_allclose(values(average.model)[key], want, rtol=1e-6, err_msg=key)
    assert values(model)["0.weight"].tolist() == states[-1]["0.weight"].tolist()
    assert not any(p.requires_grad for p in average.model.parameters())
    assert not average.model.training and model.training
    assert not compiled or update.traces == 1

    other = kind(network(), **({"decay": 0.75} if kind is optim.EMA else {}))
    other._source = model
    other.load_state_dict(average.state_dict())
    for a in (average, other):
        a.update()
    for key, want in averaged(kind, [*states, states[-1]]).items():
        np.testing.assert_allclose(values(average.model)[key], want, rtol=1e-6, err_msg=key)
        np.testing.assert_array_equal(values(average.model)[key], values(other.model)[key])


def test_an_update_is_one_program_of_the_tensors_that_are_there():
    model = network()
    ema = optim.EMA(model, decay=0.5)
    ema.update()
    program = ema._routine.executable
    move(model, 1)
    ema.update()
    assert program is not None and ema._routine.executable is program
    model[0].weight = nn.Parameter(wg.ones((3, 2)))
    before = values(ema.model)["0.weight"]
    ema.update()
    assert ema._routine.executable is not program
    np.testing.assert_allclose(values(ema.model)["0.weight"], (before + 1) / 2, rtol=1e-6)
    with pytest.raises(ValueError, match="decay"):
        optim.EMA(model, decay=1.5)
    with pytest.raises(TypeError, match="expected a module, got list"):
        optim.SWA([1])
    bad = ema.state_dict()
    del bad["model"]["0.weight"]
    with pytest.raises(ValueError, match=r"0\.weight"):
        ema.load_state_dict(bad)


def test_gradients_accumulate_until_they_are_dropped():
    """Parts of a batch, each with its share of the mean, give the step of the whole batch."""
    x, y = np.arange(24.0).reshape(8, 3) / 10, np.arange(8.0) / 5

    def run(parts, compiled):
        w = wg.zeros(3, dtype=wg.float64, requires_grad=True)
        optimizer = optim.Adam([w], lr=0.1)

        def part(x, y):
            (((x @ w - y) ** 2).mean() / parts).backward()

        part = wg.compile(part) if compiled else part
        for _ in range(3):
            optimizer.zero_grad()
            for at in np.split(np.arange(8), parts):
                part(wg.tensor(x[at]), wg.tensor(y[at]))
            optimizer.step()
        return w.detach().numpy()

    whole = run(1, False)
    for parts, compiled in ((2, False), (4, False), (4, True)):
        np.testing.assert_allclose(run(parts, compiled), whole, rtol=1e-12)
