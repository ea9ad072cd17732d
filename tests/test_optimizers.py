"""Optimizers against PyTorch's over 50 steps, and against formulas in NumPy where it has none:
eager and captured, with groups and rates that change."""

import json
from pathlib import Path

import numpy as np
import pytest

import wengert as wg
from wengert import optim

REFERENCE = json.loads(Path(__file__).with_name("optim_reference.json").read_text())
CASES = {f"{i} {case['name']}": case for i, case in enumerate(REFERENCE["cases"])}
STEPS = 50


def problem(dtype=wg.float64):
    """Parameters, and what puts the gradient of a function of both into them."""
    p, q = (wg.tensor(x, dtype=dtype, requires_grad=True) for x in REFERENCE["start"])
    c, d = (wg.tensor(x, dtype=dtype) for x in REFERENCE["curves"])

    def loss():
        p.grad = q.grad = None
        bowl = 0.5 * ((c * p * p).sum() + (d * q * q).sum())
        value = bowl + p.sin().sum() + q.sin().sum() + 0.1 * p.sum() * q.sum()
        value.backward()
        return value

    return [p, q], loss


def groups_of(kind, params, options):
    """The first as it is, the second with half its rate."""
    rate = kind([params[0]], **options).lr
    return kind([{"params": [params[0]]}, {"params": [params[1]], "lr": rate / 2}], **options)


def halve(optimizer):
    for group in optimizer.param_groups:
        group["lr"] = group["lr"] / 2


def walk(optimizer, loss, compiled=False, steps=range(STEPS)):
    def step():
        loss()
        optimizer.step()

    run = wg.compile(step) if compiled else step
    for k in steps:
        if k == 25:
            halve(optimizer)
        run()
    return run


def ends(params):
    return [p.detach().numpy() for p in params]


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", [n for n in CASES if "LBFGS" not in n])
def test_fifty_steps_are_pytorchs(name, compiled):
    case = CASES[name]
    params, loss = problem()
    optimizer = groups_of(getattr(optim, case["name"]), params, case["options"])
    run = walk(optimizer, loss, compiled)
    # PyTorch keeps the rates of ASGD in float32.
    far = {"rtol": 1e-6, "atol": 1e-8} if case["name"] == "ASGD" else {"rtol": 1e-9, "atol": 1e-11}
    for got, want in zip(ends(params), case["end"], strict=True):
        np.testing.assert_allclose(got, want, **far)
    assert not compiled or run.traces == 1, "a rate that changes needs no other trace"


@pytest.mark.parametrize("name", [n for n in CASES if "LBFGS" in n])
def test_lbfgs_goes_pytorchs_way(name):
    case = CASES[name]
    params, loss = problem()
    optimizer = optim.LBFGS(params, **case["options"])
    for k in range(STEPS):
        if k == 25:
            halve(optimizer)
        optimizer.step(loss)
    for got, want in zip(ends(params), case["end"], strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-7)


def rosenbrock():
    p = wg.tensor([-1.2, 1.0], dtype=wg.float64, requires_grad=True)

    def loss():
        p.grad = None
        value = (1 - p[0]) ** 2 + 100 * (p[1] - p[0] ** 2) ** 2
        value.backward()
        return value

    return p, loss


def test_lbfgs_goes_on_from_its_state():
    options = {"max_iter": 3, "history_size": 2, "line_search_fn": "strong_wolfe"}
    (p, loss), (q, again) = rosenbrock(), rosenbrock()
    first, second = optim.LBFGS([p], **options), optim.LBFGS([q], lr=0.5)
    assert first.state_dict()["state"] == {}
    for _ in range(3):
        first.step(loss)
    with wg.no_grad():
        q[...] = p
    second.load_state_dict(first.state_dict())
    for _ in range(2):
        first.step(loss)
        second.step(again)
    assert p.tolist() == q.tolist() and second.lr == 1.0
    bad = first.state_dict()
    bad["state"][0]["d"] = wg.ones(5)
    with pytest.raises(ValueError, match=r"a vector is \(5,\), wanted \(2,\)"):
        second.load_state_dict(bad)


def test_an_lbfgs_step_that_fails_changes_nothing():
    p, loss = rosenbrock()
    optimizer, calls = optim.LBFGS([p], line_search_fn="strong_wolfe"), []

    def closure():
        calls.append(p.tolist())
        if len(calls) == 4:
            raise KeyError("mine")
        return loss()

    with pytest.raises(KeyError, match="mine"):
        optimizer.step(closure)
    assert calls[3] != [-1.2, 1.0] and p.tolist() == [-1.2, 1.0]
    assert optimizer.state_dict()["state"] == {}
    with pytest.raises(TypeError, match="closure"):
        optimizer.step()
    with pytest.raises(wg.CaptureError, match=r"LBFGS.*compile what its closure calls"):
        wg.compile(lambda: optimizer.step(loss))()
    for wrong in ({"line_search_fn": "armijo"}, {"max_iter": 0}, {"history_size": 0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            optim.LBFGS([p], **wrong)
    with pytest.raises(ValueError, match="one group"):
        optim.LBFGS([{"params": [p]}, {"params": [wg.ones(1, requires_grad=True)]}])


def lion(p, g, s, k, lr, decay=0.1):
    m = s.get("m", 0.0)
    s["m"] = 0.99 * m + 0.01 * g
    return p - lr * (np.sign(0.9 * m + 0.1 * g) + decay * p)


def lamb(p, g, s, k, lr, decay=0.1):
    s["m"] = 0.9 * s.get("m", 0.0) + 0.1 * g
    s["v"] = 0.99 * s.get("v", 0.0) + 0.01 * g * g
    r = s["m"] / (1 - 0.9**k) / (np.sqrt(s["v"] / (1 - 0.99**k)) + 1e-6) + decay * p
    return p - lr * np.sqrt((p**2).sum() / (r**2).sum()) * r


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(("name", "rule"), [("Lion", lion), ("LAMB", lamb)])
def test_fifty_steps_are_the_formula(name, rule, compiled):
    values = [np.array(x) for x in REFERENCE["start"]]
    states, rates = [{}, {}], [0.05, 0.025]
    for k in range(STEPS):
        scale = 0.5 if k >= 25 else 1.0
        sums = [v.sum() for v in values]
        grads = [
            np.array(c) * v + np.cos(v) + 0.1 * other
            for c, v, other in zip(REFERENCE["curves"], values, reversed(sums), strict=True)
        ]
        values = [
            rule(v, g, s, k + 1, scale * rate)
            for v, g, s, rate in zip(values, grads, states, rates, strict=True)
        ]
    params, loss = problem()
    options = {"lr": 0.05, "betas": (0.9, 0.99), "weight_decay": 0.1}
    walk(groups_of(getattr(optim, name), params, options), loss, compiled)
    for got, want in zip(ends(params), values, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-11)


def test_a_norm_of_zero_leaves_the_rate_of_lamb():
    p = wg.zeros(3, requires_grad=True)
    optimizer = optim.LAMB([p], lr=0.5)
    p.grad = wg.ones(3)
    optimizer.step()
    np.testing.assert_allclose(p.detach().numpy(), -0.5, rtol=1e-5)
    p.grad = wg.zeros(3)
    q = wg.ones(3, requires_grad=True)
    q.grad = wg.zeros(3)
    still = optim.LAMB([q], lr=0.5)
    still.step()
    assert q.tolist() == [1.0] * 3


KINDS = sorted({case["name"] for case in CASES.values()} - {"LBFGS"} | {"Lion", "LAMB"})


@pytest.mark.parametrize("name", KINDS)
def test_a_run_goes_on_from_its_state(name):
    kind = getattr(optim, name)
    params, loss = problem(wg.float32)
    first = groups_of(kind, params, {"lr": 0.01})
    walk(first, loss, steps=range(3))
    others, again = problem(wg.float32)
    second = groups_of(kind, others, {"lr": 0.02})
    with wg.no_grad():
        for p, other in zip(params, others, strict=True):
            other[...] = p
    second.load_state_dict(first.state_dict())
    assert second.param_groups[1]["lr"] == 0.005
    walk(first, loss, steps=range(3))
    walk(second, again, steps=range(3))
    for a, b in zip(ends(params), ends(others), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("name", KINDS)
def test_steps_are_one_program_and_keep_the_parameters_dtype(name, monkeypatch):
    kind, made = getattr(optim, name), []
    params, loss = problem(wg.float16)
    plain = optim.optimizer._steps.update_or_restore
    monkeypatch.setattr(
        optim.optimizer._steps, "update_or_restore", lambda *a: made.append(a) or plain(*a)
    )
    optimizer = kind(params, lr=0.01)
    for lr in (0.01, np.float32(0.02), wg.tensor(0.02, dtype=wg.float64), 0.03):
        optimizer.lr = lr
        loss()
        optimizer.step()
    assert not made, "no parameter was updated by itself"
    state = [x for entries in optimizer.state.values() for x in entries.values() if x.ndim]
    assert {x.dtype for x in [*params, *state]} == {wg.float16}
    assert all(np.isfinite(p.detach().numpy()).all() for p in params)


def test_an_update_of_ones_own_is_called_in_every_step():
    """Only the updates of this package are known to be programs."""
    seen = []

    class Mine(optim.SGD):
        def update(self, p, g, state, group):
            seen.append(p)
            super().update(p, g, state, group)

    params, loss = problem()
    walk(Mine(params, lr=0.1), loss, steps=range(3))
    assert len(seen) == 6


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("SGD", {"momentum": 0.9, "nesterov": True, "dampening": 0.1}, "dampening"),
        ("Adadelta", {"rho": 1.5}, r"rho must be in \[0, 1\], got 1.5"),
        ("Rprop", {"etas": (1.2, 0.5)}, "etas"),
        ("Rprop", {"step_sizes": (1.0, 0.5)}, "step_sizes"),
        ("RMSprop", {"alpha": -0.5}, "alpha"),
        ("Adagrad", {"lr_decay": -1.0}, "lr_decay"),
        ("Adagrad", {"initial_accumulator_value": -1.0}, "initial_accumulator_value"),
        ("NAdam", {"momentum_decay": -1.0}, "momentum_decay"),
        ("ASGD", {"lambd": -1.0}, "lambd"),
        ("Lion", {"betas": (0.9, 1.0)}, "betas"),
    ],
)
def test_refusals(name, options, words):
    with pytest.raises(ValueError, match=f"{name}: .*{words}"):
        getattr(optim, name)([wg.ones(2, requires_grad=True)], **options)


def test_step_takes_a_closure():
    params, loss = problem()
    optimizer = optim.SGD(params, lr=0.1)
    assert optimizer.step(loss).item() == pytest.approx(
        sum(0.5 * c * x * x + np.sin(x) for cs, xs in zip(REFERENCE["curves"], REFERENCE["start"],
            strict=True) for c, x in zip(cs, xs, strict=True)) + 0.1 * -0.2 * 1.3
    )  # fmt: skip
    assert params[0].tolist() != REFERENCE["start"][0]
