"""The scaler of losses: steps that overflow leave everything as it was, eager and captured."""

from functools import partial

import numpy as np
import pytest

import wengert as wg
from wengert import optim


def scaled(compiled, make, **options):
    """A step of two parameters whose gradient is `x`, and the scaler."""
    w = wg.ones(2, requires_grad=True)
    optimizer = make([w])
    scaler = optim.GradScaler(**options)

    def step(x):
        optimizer.zero_grad()
        scaler.scale((w * x).sum()).backward()
        scaler.step(optimizer)
        scaler.update()

    return w, optimizer, scaler, wg.compile(step) if compiled else step


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(
    "make", [partial(optim.SGD, lr=0.5, momentum=0.5), optim.Adam, optim.RMSprop, optim.LAMB]
)
def test_a_step_that_overflows_leaves_everything(compiled, make):
    """The steps that are made are those of an optimizer that sees no others."""
    w, optimizer, scaler, step = scaled(compiled, make, init_scale=1024.0, growth_interval=2)
    p = wg.ones(2, requires_grad=True)
    plain = make([p])
    scales = []
    for x in ([1.0, 2.0], [np.inf, 1.0], [0.5, -1.0], [np.nan, 0.0], [3.0, 1.0], [1.0, 1.0]):
        step(wg.tensor(x))
        scales.append(scaler.get_scale())
        if np.isfinite(x).all():
            p.grad = wg.tensor(x)
            plain.step()
        assert w.tolist() == p.tolist()
        for k, v in plain.state[p].items():
            assert optimizer.state[w][k].tolist() == v.tolist()
    assert scales == [1024, 512, 512, 256, 256, 512]
    assert not compiled or step.traces <= 2


def test_a_first_step_that_overflows_has_made_its_state():
    w, optimizer, scaler, step = scaled(True, optim.Adam)
    step(wg.tensor([np.inf, 1.0]))
    assert w.tolist() == [1.0, 1.0] and optimizer.state[w]["step"].item() == 0.0
    assert scaler.get_scale() == 32768.0


def test_several_optimizers_share_a_scale():
    a, b = (wg.ones(1, requires_grad=True) for _ in range(2))
    first, second = optim.SGD([a], lr=1.0), optim.SGD([b], lr=1.0)
    scaler = optim.GradScaler(init_scale=4.0)
    scaler.scale(a * np.inf + b).sum().backward()
    scaler.step(first)
    scaler.step(second)
    scaler.update()
    assert (a.item(), b.item(), scaler.get_scale()) == (1.0, 0.0, 2.0)


def test_the_scalers_state_and_what_it_refuses():
    w, optimizer, scaler, step = scaled(False, optim.SGD, init_scale=8.0, growth_interval=3)
    step(wg.ones(2))
    assert scaler.state_dict() == {"scale": 8.0, "good_steps": 1}
    other = optim.GradScaler(growth_interval=3)
    other.load_state_dict(scaler.state_dict())
    assert other.state_dict() == scaler.state_dict()
    with pytest.raises(ValueError, match="positive, got -1"):
        other.load_state_dict({"scale": -1.0, "good_steps": 0})
    with pytest.raises(RuntimeError, match="no step was made"):
        scaler.update()
    w.grad = wg.ones(2)
    scaler.unscale(optimizer)
    with pytest.raises(RuntimeError, match="already"):
        scaler.unscale(optimizer)
    with pytest.raises(wg.CaptureError, match="outside the captured function"):
        wg.compile(lambda: scaler.step(optimizer))()
    scaler.step(optimizer)
    with pytest.raises(RuntimeError, match="already"):
        scaler.step(optimizer)
    scaler.update()
    with pytest.raises(wg.CaptureError, match="calls step and update too"):
        wg.compile(lambda: scaler.unscale(optimizer))()
    scaler.step(optimizer)
    scaler.update()
    for key, value in {"init_scale": 0.0, "growth_factor": 1.0, "backoff_factor": 1.0,
                       "growth_interval": 0}.items():  # fmt: skip
        with pytest.raises(ValueError, match=f"GradScaler: {key} must be"):
            optim.GradScaler(**{key: value})
    with pytest.raises(TypeError, match="LBFGS"):
        scaler.step(optim.LBFGS([w]))
    with pytest.raises(TypeError, match="expected an optimizer"):
        scaler.unscale(3)
    off = optim.GradScaler(enabled=False)
    assert off.scale(w) is w and off.get_scale() == 1.0 and not off.is_enabled()
    before = w.tolist()
    off.unscale(optimizer)
    off.step(optimizer)
    off.update()
    assert w.tolist() != before
    assert scaler.get_scale() == 16.0, "three steps were made"
    assert [x.tolist() for x in scaler.scale([wg.ones(1), wg.ones(2)])] == [[16.0], [16.0] * 2]
