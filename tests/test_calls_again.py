"""Calls that are made again: a thread keeps what formulas emitted, which must show nowhere.

Each op of the table is called several times in one thread, on data of its own each time, and every
call is compared with one of a thread that has seen no other.
"""

import itertools
import signal
import sys
import threading
import time

import numpy as np
import pytest
from test_modes import program_of
from test_ops_gradients import OPS as DIFFERENTIABLE
from test_ops_gradients import scalar_of, setup
from test_ops_values import OPS, samples

import wengert as wg

from modes import bits
from support import dtypes_of, label


def outcome(f, *args):
    """The bits of the results, or the refusal."""
    try:
        return bits(f(*args))
    except Exception as error:
        return type(error), str(error)


def alone(f, *args):
    """The outcome in a thread of its own."""
    found = []
    thread = threading.Thread(target=lambda: found.append(outcome(f, *args)))
    thread.start()
    thread.join()
    return found[0]


def turned(x):
    """The elements of a tensor in another order: the same shape, and still within the domain."""
    return wg.tensor(np.ascontiguousarray(x.numpy().ravel()[::-1].reshape(x.shape)), dtype=x.dtype)


@pytest.mark.parametrize("op", OPS, ids=label)
def test_values(op):
    for sample in samples(op):
        program, values = program_of(op, sample, dtypes_of(op, sample)[-1])
        datas = [values, [turned(x) for x in values]]
        wants = [alone(program, *data) for data in datas]
        for call in range(6):
            got = outcome(program, *datas[call % 2])
            assert got == wants[call % 2], f"{label(op)}({sample}), call {call}"


@pytest.mark.parametrize("op", DIFFERENTIABLE, ids=label)
def test_gradients(op):
    for sample in samples(op):
        call, values = setup(op, sample)
        f = scalar_of(call, label(op))

        def program(*xs, f=f):
            leaves = [x.detach().requires_grad_() for x in xs]
            total = f(*leaves)
            if not isinstance(total, wg.Tensor) or not total.requires_grad:
                return total
            total.backward()
            return total, [x.grad for x in leaves if x.grad is not None]

        datas = [values, [turned(x) for x in values]]
        wants = [alone(program, *data) for data in datas]
        for call in range(6):
            got = outcome(program, *datas[call % 2])
            assert got == wants[call % 2], f"{label(op)}({sample}), call {call}"


X = np.arange(12.0, dtype=np.float32).reshape(3, 4)


def test_what_tells_calls_from_one_another():
    """Numbers by class and value, dtypes, shapes, axes, and whether the tape records."""
    x = wg.tensor(X)
    calls = [
        (lambda: x.sum(), lambda: X.sum()),
        (lambda: x.sum(axis=1), lambda: X.sum(axis=1)),
        (lambda: x.sum(axis=0), lambda: X.sum(axis=0)),
        (lambda: x.sum(axis=(0, 1)), lambda: X.sum(axis=(0, 1))),
        (lambda: x.sum(axis=1, keepdims=True), lambda: X.sum(axis=1, keepdims=True)),
        (lambda: x.T.sum(axis=1), lambda: X.T.sum(axis=1)),
        (lambda: x.reshape(4, 3).sum(axis=1), lambda: X.reshape(4, 3).sum(axis=1)),
        (lambda: x.clip(1, 5), lambda: X.clip(1, 5)),
        (lambda: x.clip(1, 6), lambda: X.clip(1, 6)),
        (lambda: x.clip(1.5, 6), lambda: X.clip(1.5, 6)),
        (lambda: x.clip(-0.0, 6), lambda: X.clip(-0.0, 6)),
        (lambda: x.clip(None, 6), lambda: X.clip(None, 6)),
        (lambda: x.reshape(2, 6), lambda: X.reshape(2, 6)),
        (lambda: x.reshape(6, 2), lambda: X.reshape(6, 2)),
        (lambda: x.T.reshape(6, 2), lambda: X.T.reshape(6, 2)),
        (lambda: x.astype(wg.int32).mean(), lambda: X.astype(np.int32).mean(dtype="f")),
        (lambda: wg.concat([x, x], axis=0), lambda: np.concatenate([X, X], axis=0)),
        (lambda: wg.concat([x, x], axis=1), lambda: np.concatenate([X, X], axis=1)),
        (lambda: wg.concat([x, x, x], axis=1), lambda: np.concatenate([X, X, X], axis=1)),
    ]
    for order in (calls, calls[::-1]) * 4:
        for ours, theirs in order:
            got, want = ours().numpy(), theirs()
            assert got.shape == want.shape
            np.testing.assert_array_equal(got, want)
    leaf = wg.tensor(X, requires_grad=True)
    for recorded in (False, True) * 4:
        y = leaf.detach().mean() if not recorded else leaf.mean()
        assert y.requires_grad == recorded
        with wg.no_grad():
            assert not leaf.mean().requires_grad


def test_what_tells_arguments_from_one_another():
    """The same words at other places, of other kinds, by name, and in other sequences."""
    x, y = wg.tensor(X), wg.tensor(X + 100)
    i = wg.tensor(X.astype(np.int32))
    double = wg.tensor(X.astype(np.float64))
    calls = [
        (lambda: wg.concat([x, y]), lambda: np.concatenate([X, X + 100])),
        (lambda: wg.concat((y, x)), lambda: np.concatenate([X + 100, X])),
        (lambda: wg.concat([x, y, x]), lambda: np.concatenate([X, X + 100, X])),
        (lambda: wg.concat([x, y], axis=-1), lambda: np.concatenate([X, X + 100], axis=-1)),
        (lambda: wg.concat([x], axis=1), lambda: X),
        (lambda: wg.stack([x, y], 1), lambda: np.stack([X, X + 100], 1)),
        (lambda: wg.permute_dims(x, (1, 0)), lambda: X.T),
        (lambda: wg.permute_dims(x, [1, 0]), lambda: X.T),
        (lambda: wg.permute_dims(x, (0, 1)), lambda: X),
        (lambda: x.reshape((2, 6)), lambda: X.reshape(2, 6)),
        (lambda: x.reshape(2, 6), lambda: X.reshape(2, 6)),
        (lambda: x.reshape(shape=(6, 2)), lambda: X.reshape(6, 2)),
        (lambda: x.reshape(np.int64(2), 6), lambda: X.reshape(2, 6)),
        (lambda: x.sum(axis=0), lambda: X.sum(axis=0)),
        (lambda: x.sum(0), lambda: X.sum(axis=0)),
        (lambda: x.sum((0,)), lambda: X.sum(axis=0)),
        (lambda: x.sum(axis=0, keepdims=True), lambda: X.sum(axis=0, keepdims=True)),
        (lambda: x.sum(keepdims=True, axis=0), lambda: X.sum(axis=0, keepdims=True)),
        (lambda: x.sum(keepdims=False, axis=0), lambda: X.sum(axis=0)),
        (lambda: i.sum(axis=0), lambda: X.astype(np.int32).sum(axis=0)),
        (lambda: x.sum(axis=0, dtype=wg.float64), lambda: X.sum(axis=0, dtype="d")),
        (lambda: double.sum(axis=0), lambda: X.astype("d").sum(axis=0)),
        (lambda: x.astype(wg.float64), lambda: X.astype("d")),
        (lambda: x.astype(wg.int32), lambda: X.astype("i")),
        (lambda: wg.where(x > y, x, y), lambda: X + 100),
        (lambda: wg.where(x < y, a=x, b=y), lambda: X),
        (lambda: wg.where(x < y, b=x, a=y), lambda: X + 100),
        (lambda: wg.matmul(x, y.T), lambda: X @ (X + 100).T),
        (lambda: wg.nn.relu(y - 105.0), lambda: np.maximum(X - 5, 0)),
    ]
    for order in (calls, calls[::-1]) * 5:
        for k, (ours, theirs) in enumerate(order):
            got, want = ours().numpy(), theirs()
            assert got.shape == want.shape, k
            np.testing.assert_array_equal(got, want, err_msg=str(k))
    for _ in range(5):
        with pytest.raises(TypeError):
            x.sum(axis=True)
        assert x.sum(axis=1).tolist() == X.sum(axis=1).tolist()
        with pytest.raises((IndexError, ValueError)):
            x.sum(axis=2)
        with pytest.raises((TypeError, ValueError)):
            x.reshape(2.0, 6)


def test_the_state_of_the_thread_counts():
    """Mixed precision, the device of new values, subclasses and names of parameters."""
    x = wg.tensor(X)
    parameter = wg.nn.Parameter(wg.tensor(X))
    assert {type(parameter).__name__} == {"Parameter"}
    for _ in range(4):
        assert x.mean().dtype == wg.float32
        assert wg.matmul(x, x.T).dtype == wg.float32
        with wg.autocast(wg.bfloat16):
            assert wg.matmul(x, x.T).dtype == wg.bfloat16
            assert x.sum(axis=0).dtype == wg.float32
        assert wg.matmul(x, x.T).dtype == wg.float32
        with wg.default_device("reference"):
            assert x.reshape(2, 6).device == x.device
            assert x.sum(axis=1).tolist() == X.sum(axis=1).tolist()
            assert wg.zeros(3).device != x.device
        assert parameter.reshape(2, 6).requires_grad and not x.reshape(2, 6).requires_grad
        assert parameter.sum(axis=1).requires_grad and not x.sum(axis=1).requires_grad
        with wg.no_grad():
            assert not parameter.reshape(2, 6).requires_grad
            assert not parameter.sum(axis=1).requires_grad
        graph = wg.compile(lambda x: x.reshape(2, 6).sum(axis=1))
        assert graph(x).tolist() == X.reshape(2, 6).sum(axis=1).tolist()


def test_a_list_that_changes_is_another_argument():
    parts, want = [], []
    for k in range(12):
        parts.append(wg.full((2,), float(k % 3)))
        want += [float(k % 3)] * 2
        for _ in range(4):
            assert wg.concat(parts).tolist() == want


def test_a_formula_that_looks_at_data_looks_each_time():
    for counts in ([1, 2, 0], [2, 2, 2], [0, 0, 1]) * 3:
        got = wg.repeat(wg.tensor(X), wg.tensor(counts), axis=0)
        np.testing.assert_array_equal(got.numpy(), np.repeat(X, counts, axis=0))


def test_refusals_name_the_call_that_somebody_wrote():
    x = wg.tensor(X)

    def refused(index):
        with pytest.raises(IndexError) as caught:
            wg.take(x, wg.tensor(index), axis=1).numpy()
        return str(caught.value)

    found = {refused([0, 9]) for _ in range(5)}
    assert len(found) == 1 and "take" in found.pop()
    assert wg.take(x, wg.tensor([0, 3]), axis=1).tolist() == X[:, [0, 3]].tolist()


@pytest.mark.parametrize("write", [
    lambda x: x.__setitem__(slice(None), 7.0),
    lambda x: x.__iadd__(wg.tensor(1.0)),
])
def test_arguments_may_write_the_operand(write):
    """An axis that runs code: the call sees what the code left."""

    class Axis:
        def __init__(self, x):
            self.x = x

        def __index__(self):
            write(self.x)
            return 1

    for _ in range(4):
        x, y = wg.tensor(X), wg.tensor(X)
        write(y)
        assert x.sum(axis=Axis(x)).tolist() == y.sum(axis=1).tolist()
        # A list that loses its items meanwhile.
        parts = [wg.tensor(X), wg.tensor(X)]

        class Emptying:
            def __index__(self, parts=parts):
                del parts[1:]
                return 0

        assert wg.concat(parts, axis=Emptying()).tolist() == X.tolist()


@pytest.mark.skipif(sys.platform == "win32", reason="there is no such signal")
@pytest.mark.parametrize("f", [wg.std, wg.logsumexp, wg.nn.softplus, wg.nn.mish],
                         ids=lambda f: f.__name__)
def test_handlers_of_signals_wait_for_small_calls(f):
    """Plans look for signals as they run; a handler might write what a small call looks at."""
    x = wg.tensor(np.linspace(0.1, 0.9, 24000, dtype="f").reshape(4, -1))
    before = time.perf_counter()
    for _ in range(50):
        want = f(x)
    count = int(0.15 / (time.perf_counter() - before) * 50)
    results, seen = [], []

    def handler(*_):
        # As the handler of somebody who writes; nothing is left to read the old elements.
        seen.append(len(results))
        x[...] = 0.0

    # No bytecode runs meanwhile, so whoever calls the handler is the call.
    was = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.03)
        results.extend(map(f, itertools.repeat(x, count)))
        while not seen:
            pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, was)
    assert seen in ([count], [0])  # 0: it came before the first call
    if seen == [count]:
        assert all(y.numpy().tobytes() == want.numpy().tobytes() for y in results)
