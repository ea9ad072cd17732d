"""Checkpoints and masked writes in captured functions."""

import numpy as np
import pytest

import wengert as wg
from wengert import nn

X = wg.asarray(np.random.default_rng(0).normal(size=(256, 64)).astype("float32"))


def deep(checkpointed):
    wg.random.seed(3)
    blocks = [
        nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Dropout(0.5), nn.Linear(64, 64), nn.Tanh())
        for _ in range(6)
    ]
    parameters = [p for block in blocks for p in block.parameters()]
    optimizer = wg.optim.SGD(parameters, lr=0.1)

    def step(x):
        optimizer.zero_grad()
        for block in blocks:
            x = wg.checkpoint(block)(x) if checkpointed else block(x)
        loss = (x * x).mean()
        loss.backward()
        optimizer.step()
        return loss

    return step, parameters


@pytest.mark.parametrize("checkpointed", [False, True])
def test_checkpoints_have_the_bits_of_eager_code(checkpointed):
    results = []
    for wrap in (lambda f: f, wg.compile):
        step, parameters = deep(checkpointed)
        step = wrap(step)
        losses = [step(X).item() for _ in range(3)]
        results.append((losses, [p.numpy().copy() for p in parameters]))
    assert results[0][0] == results[1][0]
    for a, b in zip(results[0][1], results[1][1], strict=True):
        np.testing.assert_array_equal(a, b)


def test_checkpoints_need_less_memory():
    peaks = [wg.compile(deep(c)[0]).plan(X).peak_bytes for c in (False, True)]
    assert peaks[1] < 0.65 * peaks[0]


def test_the_generator_can_be_put_back_inside_a_capture():
    def f():
        state = wg.random.get_state()
        a = wg.random.normal((4,))
        wg.random.set_state(state)
        return a, wg.random.normal((4,)), wg.random.normal((4,))

    wg.random.seed(0)
    wanted = [x.tolist() for x in f()]
    wg.random.seed(0)
    assert [x.tolist() for x in wg.compile(f)()] == wanted
    assert wanted[0] == wanted[1] != wanted[2]


def test_a_state_from_outside_is_refused_inside():
    state = wg.random.get_state()

    @wg.compile
    def f():
        wg.random.set_state(state)
        return wg.random.normal((4,))

    with pytest.raises(wg.CaptureError, match="set_state"):
        f()


def write(x, mask, v):
    y = x * 1.0
    y[mask] = v
    return y


M = wg.asarray([[True, False, True], [False, False, True]])


@pytest.mark.parametrize(
    ("mask", "v"),
    [
        (M, 0.5),
        (M, wg.tensor(2.0)),
        (M, wg.tensor([2.0])),
        (wg.asarray([True, False]), 7),
        (wg.asarray([True, False]), wg.asarray([1.0, 2.0, 3.0])),
        (wg.asarray([True, False]), wg.asarray([[1.0, 2.0, 3.0]])),
        ((wg.asarray([False, True]), ...), 1.0),
        ((wg.asarray([False, True]), slice(None)), wg.tensor(4.0)),
    ],
)
def test_masked_writes_are_where(mask, v):
    x = wg.arange(6.0).reshape(2, 3)
    np.testing.assert_array_equal(wg.compile(write)(x, mask, v).numpy(), write(x, mask, v).numpy())


def test_masked_writes_have_the_gradients_of_eager_code():
    def loss(x, v):
        y = write(x, x > 0.2, v)
        return (y * y * 0.3).sum()

    gradients = wg.grad(loss, (0, 1))
    v = wg.tensor(0.7)
    for eager, captured in zip(gradients(X, v), wg.compile(gradients)(X, v), strict=True):
        np.testing.assert_array_equal(eager.numpy(), captured.numpy())


def test_masked_writes_of_one_value_for_each_element_are_refused():
    with pytest.raises(wg.CaptureError, match=r"how many values.*wg\.where"):
        wg.compile(write)(wg.zeros((2, 3)), M, wg.ones(3))


def test_masked_reads_are_refused():
    def f(x, mask):
        y = x * 1.0
        y[mask] += 1.0
        return y

    with pytest.raises(wg.CaptureError, match=r"wg\.where"):
        wg.compile(f)(wg.zeros((2, 3)), M)
