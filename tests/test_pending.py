"""Elementwise ops that wait and run together give what ops computed at once give."""

import contextlib
import gc
import os
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import wengert as wg
from wengert import _core

NEVER = sys.maxsize


@contextlib.contextmanager
def pending_from(size):
    """Results of so many bytes and more wait."""
    before = _core._pend_from(size)
    try:
        yield
    finally:
        wg.synchronize()
        _core._pend_from(before)


@pytest.fixture
def pending():
    with pending_from(1):
        yield


def both(program):
    """What a program gives when ops are computed at once, and when they wait."""
    with pending_from(NEVER):
        now = program()
    with pending_from(1):
        later = program()
    return now, later


def same(now, later):
    assert len(now) == len(later)
    for a, b in zip(now, later, strict=True):
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        assert a.tobytes() == b.tobytes()


def array(seed, shape, dtype=np.float32):
    return np.random.default_rng(seed).uniform(0.25, 2.0, shape).astype(dtype)


# --- programs

UNARY = ["negative", "abs", "exp", "log", "sin", "tanh", "sqrt", "square", "floor", "sign"]
BINARY = ["add", "subtract", "multiply", "divide", "maximum", "minimum", "pow", "atan2"]
DTYPES = [wg.float32, wg.float64, wg.float16, wg.bfloat16, wg.int32, wg.uint8]

KINDS = [
    "unary", "binary", "binary", "number", "where", "compare", "cast", "look", "drop", "write",
    "part", "view", "row", "sum", "alias", "power",
]  # fmt: skip


def step(draw, values):
    """One line of a program: it adds a value, looks at one, writes to one or drops one."""
    at = st.integers(0, len(values) - 1)
    kind = draw(st.sampled_from(KINDS))
    return kind, draw(at), draw(at), draw(st.sampled_from(UNARY)), draw(st.sampled_from(BINARY))


def carried_out(lines, dtypes):
    """Runs the lines; gives all that was seen on the way, and what is there at the end."""
    values = [wg.tensor(array(i, (3, 5))).astype(dtype) for i, dtype in enumerate(dtypes)]
    seen = []
    for kind, i, j, unary, binary in lines:
        a, b = values[i % len(values)], values[j % len(values)]
        floats = wg.isdtype(a.dtype, "real floating")
        if kind == "unary" and floats:
            values.append(getattr(wg, unary)(a))
        elif kind == "binary":
            if wg.isdtype(wg.result_type(a, b), "real floating"):
                values.append(getattr(wg, binary)(a, b))
            else:
                values.append(a + b)
        elif kind == "number":
            values.append(a * 2 - 1)
        elif kind == "power" and floats:
            values.append(a**2 + a**1)
        elif kind == "where":
            values.append(wg.where(a > b, a, 1))
        elif kind == "compare":
            values.append((a <= b).astype(a.dtype))
        elif kind == "cast":
            values.append(a.astype(b.dtype))
        elif kind == "look":
            seen.append(bytes_of(a))
        elif kind == "drop" and len(values) > 1:
            del values[i % len(values)]
            del a
        elif kind == "write":
            a += 1
            a *= 2
        elif kind == "part":
            a[1:, ::2] = 3
        elif kind == "view":
            values.append(a.T.reshape(5, 3).T + 1)
        elif kind == "row":
            values.append(a * b[:1] + b[:, :1])
        elif kind == "sum":
            values.append(a - a.sum().astype(a.dtype))
        elif kind == "alias":
            values.append(a)
    return seen + [bytes_of(value) for value in values]


def bytes_of(x):
    if x.dtype == wg.bfloat16:
        x = x.astype(wg.float32)
    return np.array(x)


@given(st.data())
def test_programs_give_the_same_bits(data):
    dtypes = data.draw(st.lists(st.sampled_from(DTYPES), min_size=2, max_size=3))
    lines = [step(data.draw, range(6)) for _ in range(data.draw(st.integers(1, 40)))]
    now, later = both(lambda: carried_out(lines, dtypes))
    same([np.ascontiguousarray(x) for x in now], [np.ascontiguousarray(x) for x in later])


@given(st.data())
def test_gradients_give_the_same_bits(data):
    lines = data.draw(
        st.lists(
            st.tuples(st.sampled_from(UNARY + BINARY), st.integers(0, 9), st.integers(0, 9)),
            min_size=1,
            max_size=25,
        )
    )

    def program():
        values = [wg.tensor(array(i, (4, 3)), requires_grad=True) for i in range(2)]
        leaves = list(values)
        for name, i, j in lines:
            a, b = values[i % len(values)], values[j % len(values)]
            op = getattr(wg, name)
            values.append((op(a) if name in UNARY else op(a, b)).tanh())
        loss = sum((value.sum() for value in values[2:]), start=values[0].sum())
        loss.backward()
        return [np.array(leaf.grad) for leaf in leaves if leaf.grad is not None] + [np.array(loss)]

    same(*both(program))


@pytest.mark.parametrize("shape", [(600_000,), (700, 900)], ids=str)
def test_large_results_wait_by_themselves(shape):
    a, b = wg.tensor(array(0, shape)), wg.tensor(array(1, shape))

    def program():
        y = (a * b + a).tanh() * b - 0.5
        return [np.array(y), np.array(y + y.sum(axis=0))]

    with pending_from(NEVER):
        now = program()
    with pending_from(1 << 20):
        same(now, program())


# --- values


def test_a_write_does_not_reach_what_waits(pending):
    x = wg.tensor(array(0, (8,)))
    before = np.array(x)
    y = x * 2
    x += 1
    x[2:] = 7
    z = x * 2
    x *= 0
    np.testing.assert_array_equal(np.array(y), before * 2)
    np.testing.assert_array_equal(np.array(z)[2:], np.full(6, 14, np.float32))


def test_a_write_to_what_waits_is_seen_by_its_handle_alone(pending):
    x = wg.tensor(array(0, (8,)))
    y = x * 2
    z = y + 1
    y[:4] = 0
    np.testing.assert_array_equal(np.array(z), np.array(x) * 2 + 1)
    assert (np.array(y)[:4] == 0).all()


def test_a_large_operand_is_written_in_place(pending):
    """Nobody but a chain holds the operand: the chain runs first, and nothing is copied."""
    x = wg.ones((1 << 18,))
    y = x * 2
    before = live()
    wg.reset_peak_memory()
    x[0] = 5
    assert wg.memory_stats()["peak_bytes"] == before
    assert float(x[0]) == 5 and float(y[0]) == 2


def test_memory_that_others_may_write_does_not_wait(pending):
    theirs = array(0, (16,))
    x = wg.from_dlpack(theirs, copy=False)
    y = x + 1
    expected = theirs + 1
    theirs[:] = 0
    np.testing.assert_array_equal(np.array(y), expected)


def test_views_and_exports_see_elements(pending):
    x = wg.tensor(array(0, (4, 6)))
    y = x + 1
    expected = np.array(x) + 1
    np.testing.assert_array_equal(np.array(y.T[1]), expected.T[1])
    np.testing.assert_array_equal(np.from_dlpack(x + 1), expected)
    np.testing.assert_array_equal(np.asarray(memoryview(x + 1)), expected)
    assert (x + 1).tolist() == expected.tolist()
    assert float((x + 1)[0, 0]) == expected[0, 0]
    assert bool(((x + 1) > 0).all())
    assert repr(x + 1) == repr(wg.tensor(expected))


def test_a_long_chain_runs_in_pieces(pending):
    x = wg.tensor(array(0, (50,), np.float64))
    y, expected = x, np.array(x)
    for _ in range(500):
        y, expected = y * 1.001 - 0.5, expected * 1.001 - 0.5
    np.testing.assert_array_equal(np.array(y), expected)


def test_many_operands(pending):
    xs = [wg.tensor(array(i, (9,), np.float64)) for i in range(60)]
    total, expected = xs[0], np.array(xs[0])
    for i, x in enumerate(xs[1:]):
        total, expected = total * i + x, expected * i + np.array(x)
    np.testing.assert_array_equal(np.array(total), expected)


# --- errors and memory


def test_errors_come_at_their_line(pending):
    x = wg.tensor(array(0, (4,))) + 1
    with pytest.raises(wg.ShapeError):
        x + wg.tensor(array(0, (3,)))
    with pytest.raises(wg.Error):
        wg.sin(x.astype(wg.int32))
    assert np.isfinite(np.array(x)).all()


def live():
    gc.collect()
    return wg.memory_stats()["live_bytes"]


def test_memory_counts_as_if_computed(pending):
    x = wg.tensor(array(0, (1000,)))
    wg.synchronize()
    start = live()
    y = ((x * 2 + 1).tanh() * x).exp()
    waiting = live()
    np.array(y)
    assert waiting == live() == start + 4096
    z = y * 2
    del z
    assert live() == start + 4096
    del y
    assert live() == start


def test_realize_computes_what_waits(pending):
    """What was computed needs its operands no more."""
    x = wg.tensor(array(0, (1000,)))
    wg.synchronize()
    start = live()
    y = x * 2
    expected = np.array(x) * 2
    del x
    assert live() == start + 4096
    assert y.realize() is y
    assert live() == start
    np.testing.assert_array_equal(np.array(y), expected)


def test_dropped_chains_let_their_operands_go(pending):
    wg.synchronize()
    start = live()
    x = wg.tensor(array(0, (1000,)))
    y = x * 2 + 1
    del x
    assert live() > start + 4096
    del y
    assert live() == start


def test_operands_go_before_memory_is_refused(pending):
    wg.synchronize()
    n = 1 << 16
    x = wg.tensor(array(0, (n,)))
    expected = np.array(x) * 2
    y = x * 2
    del x
    gc.collect()
    wg.set_memory_limit(wg.memory_stats()["live_bytes"])
    try:
        z = wg.zeros((n,))
    finally:
        wg.set_memory_limit(None)
    np.testing.assert_array_equal(np.array(y + z), expected)


def test_a_refusal_comes_at_its_line(pending):
    x = wg.tensor(array(0, (1 << 16,)))
    y = x * 2
    wg.synchronize()
    wg.set_memory_limit(wg.memory_stats()["live_bytes"])
    try:
        with pytest.raises(MemoryError):
            y + 1
    finally:
        wg.set_memory_limit(None)
    np.testing.assert_array_equal(np.array(y), np.array(x) * 2)


# --- threads and processes


def test_threads_look_at_one_chain(pending):
    for _ in range(20):
        x = wg.tensor(array(0, (20_000,)))
        values = [x]
        for i in range(12):
            values.append((values[-1] * 0.5 + i).tanh())
        expected = np.array(x)
        for i in range(12):
            expected = np.array((wg.tensor(expected) * 0.5 + i).tanh())
        values = [values[-1]] * 8 + values[-4:]
        found, barrier = [None] * len(values), threading.Barrier(len(values))

        def look(k, values=values, found=found, barrier=barrier):
            barrier.wait()
            found[k] = np.array(values[k] * 1)

        threads = [threading.Thread(target=look, args=(k,)) for k in range(len(values))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for k in range(8):
            np.testing.assert_array_equal(found[k], found[0])
        np.testing.assert_array_equal(found[0], expected)


@pytest.mark.parametrize("size", [2_000, 40_000])  # the larger ones give the interpreter away
def test_threads_make_and_drop_what_others_wait_for(pending, size):
    shared, lock = [wg.tensor(array(i, (size,))) for i in range(4)], threading.Lock()
    failures = []

    def work(seed):
        rng = np.random.default_rng(seed)
        try:
            for _ in range(300):
                i, j, k = rng.integers(0, 4, 3)
                with lock:
                    a, b = shared[i], shared[j]
                y = (a * 0.5 + b * 0.25).tanh() + 0.5
                if rng.random() < 0.2:
                    assert np.isfinite(np.array(y)).all()
                with lock:
                    shared[k] = y
                if rng.random() < 0.2:
                    y += 1
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert all(np.isfinite(np.array(x)).all() for x in shared)


def test_a_thread_may_end_while_its_ops_wait(pending):
    x, made = wg.tensor(array(0, (100,))), []
    thread = threading.Thread(target=lambda: made.append(x * 2 + 1))
    thread.start()
    thread.join()
    np.testing.assert_array_equal(np.array(made[0]), np.array(x) * 2 + 1)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_of_a_fork_computes_what_waits(pending):
    x = wg.tensor(array(0, (1000,)))
    y = x * 2 + 1
    expected = np.array(x) * 2 + 1
    child = os.fork()
    if child == 0:
        os._exit(0 if (np.array(y) == expected).all() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    np.testing.assert_array_equal(np.array(y), expected)


# --- beside other ways of running


def test_compiled_functions_read_what_waits(pending):
    f = wg.compile(lambda x, y: (x @ y.T).sum() + x.mean())
    x = wg.tensor(array(0, (6, 7)))
    for scale in range(4):
        got = f(x * scale + 1, x - scale)
        with pending_from(NEVER):
            want = f(x * scale + 1, x - scale)
        np.testing.assert_array_equal(np.array(got), np.array(want))


def test_profiles_name_ops_with_their_lines(pending):
    x = wg.tensor(array(0, (100,)))
    y = x * 3
    with wg.profile() as seen:
        z = y * 2 + 1
    assert "multiply" in str(seen) and "add" in str(seen)
    np.testing.assert_array_equal(np.array(z), np.array(x) * 3 * 2 + 1)


def test_the_environment_switches_it():
    code = "from wengert import _core; print(_core._pend_from(None))"
    for value, is_off in [("immediate", True), ("adaptive", False), ("", False)]:
        env = os.environ | {"WENGERT_EAGER": value}
        out = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
        assert (int(out.stdout) > 1 << 60) == is_off, out.stderr


def test_functions_by_hand():
    def gelu(x):
        return 0.5 * x * (1 + wg.tanh(0.7978845608028654 * (x + 0.044715 * x**3)))

    x = array(3, (17, 5))
    same(*both(lambda: [np.array(gelu(wg.tensor(x)))]))


def test_composites_join(pending):
    """A composite whose plan is one group is part of the chain around it."""
    nn = wg.nn
    functions = [nn.gelu, nn.silu, nn.relu, nn.sigmoid, nn.softplus, nn.softmax]

    def program():
        out = []
        for f in functions:
            for i in range(4):
                x = wg.tensor(array(i, (6, 7)), requires_grad=True)
                y = f(x * 2 - 1) * 3 + x
                y.sum().backward()
                out += [np.array(y.detach()), np.array(x.grad)]
                with wg.no_grad():
                    out.append(np.array(f(x * 2 - 1) * 3 + x))
        return out

    same(*both(program))


def test_updates_in_place():
    """An optimizer by hand."""

    def program():
        p, m, v = (wg.tensor(array(i, (40, 9))) for i in range(3))
        for i in range(5):
            g = wg.tensor(array(i + 3, (40, 9)))
            m *= 0.9
            m += g * 0.1
            v *= 0.99
            v += g * g * 0.01
            p -= m / (v.sqrt() + 1e-8) * 0.1
            p[i] = 0.5
        return [np.array(x) for x in (p, m, v)]

    same(*both(program))


def test_ctrl_c_breaks_off_nothing_that_waits(pending):
    """What waits is there after an exception of a signal, as any other value."""
    x = wg.tensor(array(0, (1000,)))
    y = x * 2 + 1
    with contextlib.suppress(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
        np.array(y)
    np.testing.assert_array_equal(np.array(y), np.array(x) * 2 + 1)
