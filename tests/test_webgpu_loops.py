"""Programs for WebGPU with loops, branches, random numbers and orders along open sizes: exported,
saved, loaded, and played through wgpu-py against the CPU."""

import json
import random

import numpy as np
import pytest
from test_webgpu_export import assert_near, changed, normal, perform

import wengert as wg
from wengert import nn, optim, webgpu
from wengert.webgpu import _loops, _sizes

N, T = wg.Dim("n"), wg.Dim("t")
rng = np.random.default_rng(1)


def leaves(x):
    return tuple(leaf for part in x for leaf in leaves(part)) if isinstance(x, tuple) else (x,)


def agree(adapter, tmp_path, f, specs, *calls, rtol=3e-4):
    """The program of a function gives what the function gives."""
    program = webgpu.export(lambda *args: leaves(f(*args)), *specs)
    for call, got in zip(calls, perform(adapter, tmp_path, program, *calls), strict=True):
        assert_near(got, leaves(f(*map(wg.asarray, call))), rtol)
    return program


W, U = wg.asarray(normal(4, 4) / 2), wg.asarray(normal(3, 4))


def rnn(xs, h):
    def step(h, x):
        h = wg.tanh(x @ U + h @ W)
        return h, h * 2

    return wg.scan(step, h, xs)


@pytest.mark.parametrize("sizes", [(T, N), (5, 2)], ids=["open", "known"])
def test_a_scan_runs_as_a_loop(sizes, adapter, tmp_path):
    t, n = sizes
    given = [(5, 2)] if t == 5 else [(1, 3), (5, 2), (0, 2), (40, 1)]
    calls = [(normal(t, n, 3), normal(n, 4)) for t, n in given]
    program = agree(adapter, tmp_path, rnn, [wg.Spec((t, n, 3)), wg.Spec((n, 4))], *calls)
    assert [str(r.times) for r in program.repeats] == ["5" if t == 5 else "t"]
    assert "repeat" in program.explain() and len(program.dispatches) < 12


LOOPS = {
    "swapped": lambda x: wg.fori_loop(0, 7, lambda i, c: (c[1], c[0]), (x[0], x[0] + 1)),
    "swapped and added": lambda x: wg.fori_loop(0, 7, lambda i, c: (c[1], c[0] + c[1]),
                                                (x[0], x[0])),
    "a carry that stays": lambda x: wg.scan(lambda c, v: (c, c + v), x[0], x),
    "the carry is stacked": lambda x: wg.scan(lambda c, v: (c + v, c), x[0] * 0, x),
    "what is scanned is stacked": lambda x: wg.scan(lambda c, v: (c + 1, v), x[0], x),
    "halves, reversed": lambda x: wg.scan(lambda c, v: (c + v, (c * 2).astype(wg.float16)),
                                          x[0] * 0, x, reverse=True),
    "truth": lambda x: wg.scan(lambda c, v: (c + v, c > 0), x[0] * 0, x),
    "bytes": lambda x: wg.scan(lambda c, v: (c + 1, c + v.astype(wg.int8)),
                               x[0].astype(wg.int8), x),
    "int64": lambda x: wg.scan(lambda c, v: (c * 3 + 1, c), wg.asarray(1), x),
    "the round": lambda x: wg.fori_loop(2, 9, lambda i, c: c * 0.5 + i.astype(wg.float32), x),
    "loops in loops": lambda x: wg.scan(
        lambda c, v: (wg.fori_loop(0, 3, lambda i, d: d * 0.5 + v, c), c), x[0], x),
    "turned": lambda x: wg.scan(lambda c, v: (c + v.sum(), v), wg.zeros(()), x.T),
    "backwards views": lambda x: wg.scan(lambda c, v: (c + v, v[::-1]), x[0] * 0, x[::-1]),
    "map": lambda x: wg.map(lambda v: nn.softmax(v, axis=0), x),
}


@pytest.mark.parametrize("name", LOOPS)
def test_loops_carry_and_stack(name, adapter, tmp_path):
    calls = [(normal(t, 3),) for t in (1, 5, 8)]
    agree(adapter, tmp_path, LOOPS[name], [wg.Spec((T, 3))], *calls)


BRANCHES = {
    "cond": lambda x: wg.cond(x.sum() > 0, lambda x: x * 2, lambda x: x - 1, x),
    "operand": lambda x: wg.cond(x.sum() > 0, lambda x: x, lambda x: x[::-1], x),
    "switch": lambda x: wg.switch(x.sum().astype(wg.int64),
                                  [lambda x: x, lambda x: x * 2, lambda x: x.exp()], x),
    "in a loop": lambda x: wg.fori_loop(
        0, 5, lambda i, c: wg.cond(c.sum() > 3, lambda c: c - 2, lambda c: c + 1, c), x),
    "bytes": lambda x: wg.cond(x.sum() > 0, lambda x: x > 0, lambda x: x < 1, x),
}


@pytest.mark.parametrize("name", BRANCHES)
def test_branches_on_data_choose(name, adapter, tmp_path):
    calls = [(np.full(n, value, "f"),) for n, value in ((3, 1), (5, -1), (1, 1.5), (2, 9))]
    agree(adapter, tmp_path, BRANCHES[name], [wg.Spec((N,))], *calls)


def test_what_a_branch_refuses_counts_only_if_it_is_chosen(adapter, tmp_path):
    def f(x, i):
        return wg.cond(i[0] < 3, lambda x, i: x[i], lambda x, i: x[i * 0], x, i)

    def g(x, i):
        return wg.scan(lambda c, k: (c + f(x, k.reshape(1))[0], k), x[0] * 0, i)

    def always(x, i):
        return wg.scan(lambda c, k: (c + x[k.reshape(1)][0], k), x[0] * 0, i)

    x, specs = normal(3), [wg.Spec((3,)), wg.Spec((N,), wg.int64)]
    agree(adapter, tmp_path, f, specs, (x, np.array([1, 2])), (x, np.array([7, 8])))
    agree(adapter, tmp_path, g, specs, (x, np.array([1, 7, 2])), (x, np.array([8])))
    program = webgpu.export(lambda x, i: always(x, i)[0], *specs)
    good, bad, again = perform(adapter, tmp_path, program, (x, np.array([1, 0, 2])),
                               (x, np.array([1, 5, 0, 6, 1])), (x, np.array([1])))  # fmt: skip
    assert bad[0] == "BoundsError" and "index 5" in bad[1] and "test_webgpu_loops" in bad[1]
    assert isinstance(good[0], np.ndarray) and isinstance(again[0], np.ndarray)


def test_checks_are_raised(adapter, tmp_path):
    def f(x):
        wg.check(x > 0, "must be positive")
        return x * 2

    program = webgpu.export(f, wg.Spec((N,)))
    good, bad = perform(adapter, tmp_path, program, (np.ones(3, "f"),),
                        (np.array([1, 2, -1, 0], "f"),))  # fmt: skip
    assert good[0].tolist() == [2] * 3
    assert bad[0] == "ArgumentError" and "must be positive: element 2" in bad[1], bad


def lstm():
    wg.random.seed(0)
    cell, head = nn.Linear(3 + 8, 32), nn.Linear(8, 2)
    optimizer = optim.Adam([*cell.parameters(), *head.parameters()], lr=0.02)

    def forward(xs):
        def step(state, x):
            h, c = state
            i, f, g, o = wg.split(cell(wg.concat([x, h], axis=1)), 4, axis=1)
            c = wg.sigmoid(f) * c + wg.sigmoid(i) * wg.tanh(g)
            return (wg.sigmoid(o) * wg.tanh(c), c), None

        start = wg.zeros((xs.shape[1], 8))
        (h, _), _ = wg.scan(step, (start, start), xs)
        return head(h)

    @wg.compile
    def train(xs, labels):
        optimizer.zero_grad()
        loss = nn.cross_entropy(forward(xs), labels)
        loss.backward()
        optimizer.step()
        return loss

    return train


def test_an_lstm_trains(adapter, tmp_path):
    train = lstm()
    program = webgpu.export(train, wg.Spec((T, N, 3)), wg.Spec((N,), wg.int64))
    calls = [(normal(t, n, 3), rng.integers(0, 2, n)) for t, n in [(6, 4)] * 4 + [(3, 5)]]
    got = perform(adapter, tmp_path, program, *calls)
    for losses, call in zip(got, calls, strict=True):
        assert_near(losses, (train(*map(wg.asarray, call)),), 2e-3)
    assert len(program.repeats) == 2, "a loop forwards and a loop backwards"


# Random numbers.


def test_random_numbers_are_those_of_the_cpu(adapter, tmp_path):
    def f(x):
        return (wg.random.bits((5,)), wg.random.integers(0, 100, (7,)), wg.random.uniform((4,)) + x,
                wg.fori_loop(0, 3, lambda i, c: c + wg.random.uniform((4,)), x))

    wg.random.seed(5)
    wg.random.uniform((2,))
    program = webgpu.export(f, wg.Spec((N, 4)))
    x = normal(2, 4)
    got = perform(adapter, tmp_path, program, *[(x,)] * 3)
    wg.random.seed(5)
    wg.random.uniform((2,))
    for result in got:
        want = f(wg.asarray(x))
        for g, w in zip(result[:2], want[:2], strict=True):
            np.testing.assert_array_equal(g, w.numpy())
        assert_near(result[2:], want[2:], 1e-6, 1e-6)
    assert program.generator == 0


def test_a_player_is_seeded_and_refused_runs_draw_nothing(adapter, tmp_path):
    def f(x, i):
        return wg.random.bits((4,)), x[i]

    program = webgpu.export(f, wg.ones(3), wg.Spec((N,), wg.int64))
    program.save(tmp_path / "p")
    code = f"""
import numpy as np, wgpu
import wengert as wg
from wengert import webgpu
device = wgpu.gpu.request_adapter_sync().request_device_sync()
player = webgpu.Player(webgpu.load({str(tmp_path / "p")!r}), device)
x = np.ones(3, "f")
player.seed(2**40 + 7)
first = player(x, np.array([1]))[0]
try:
    player(x, np.array([3]))
except wg.BoundsError:
    print("refused")
second = player(x, np.array([1]))[0]
wg.random.seed(2**40 + 7)
print((first == wg.random.bits((4,)).numpy()).all(), (second == wg.random.bits((4,)).numpy()).all())
print(player.state()[player.program.generator].tolist())
"""
    assert adapter.execute(code) == "refused\nTrue True\n[256, 7, 2, 0]\n"


def test_dropout_trains(adapter, tmp_path):
    wg.random.seed(3)
    model = nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.5), nn.Linear(16, 1))
    optimizer = optim.SGD(model.parameters(), lr=0.1)

    @wg.compile
    def train(x):
        optimizer.zero_grad()
        loss = (model(x) ** 2).mean()
        loss.backward()
        optimizer.step()
        return loss

    program = webgpu.export(train, wg.Spec((N, 4)))
    calls = [(normal(n, 4),) for n in (4, 4, 7, 4)]
    for got, call in zip(perform(adapter, tmp_path, program, *calls), calls, strict=True):
        assert_near(got, (train(wg.asarray(call[0])),), 1e-3)


# Orders along open sizes.

LENGTHS = (0, 1, 2, 31, 32, 33, 63, 64, 65, 128, 129, 1000, 4097)


def test_open_axes_are_sorted(adapter, tmp_path):
    def f(x):
        return (wg.sort(x, axis=0), wg.argsort(x, axis=0, descending=True),
                wg.sort((x * 4).astype(wg.int64), axis=0))

    agree(adapter, tmp_path, f, [wg.Spec((N, 2))], *[(normal(n, 2),) for n in LENGTHS])


def test_open_axes_are_scattered_to(adapter, tmp_path):
    def g(x, i):
        t = wg.zeros((9, 2), requires_grad=True)
        (t[i] * x).sum().backward()
        return t.grad

    calls = [(normal(n, 2), rng.integers(0, 9, n)) for n in LENGTHS]
    calls.append((np.ones((140_000, 2), "f"), rng.integers(0, 2, 140_000)))
    specs = [wg.Spec((N, 2)), wg.Spec((N,), wg.int64)]
    agree(adapter, tmp_path, g, specs, *calls)


def test_an_embedding_trains(adapter, tmp_path):
    wg.random.seed(0)
    table, head = nn.Embedding(50, 6), nn.Linear(6, 3)
    optimizer = optim.Adam([*table.parameters(), *head.parameters()], lr=0.05)

    @wg.compile
    def train(words, labels):
        optimizer.zero_grad()
        loss = nn.cross_entropy(head(table(words).mean(axis=1)), labels)
        loss.backward()
        optimizer.step()
        return loss

    program = webgpu.export(train, wg.Spec((N, T), wg.int64), wg.Spec((N,), wg.int64))
    calls = [(rng.integers(0, 50, (n, t)), rng.integers(0, 3, n))
             for n, t in ((4, 7), (4, 7), (9, 12), (1, 1))]
    for got, call in zip(perform(adapter, tmp_path, program, *calls), calls, strict=True):
        assert_near(got, (train(*map(wg.asarray, call)),), 1e-3)


# What is refused, and files of strangers.


def test_loops_on_data_are_refused_with_the_remedy():
    def f(x):
        return wg.while_loop(lambda x: x.sum() < 9, lambda x: x * 2, x)

    with pytest.raises(wg.DeviceError, match=r"while_loop: .*use scan or fori_loop") as error:
        webgpu.export(f, wg.ones(3))
    assert "test_webgpu_loops.py" in str(error.value)


def test_what_a_body_calls_on_the_host_is_refused():
    def f(x):
        def step(c, v):
            wg.print("{}", c)
            return c + v, None

        return wg.scan(step, x[0], x)[0]

    with pytest.raises(wg.DeviceError, match="print: it runs on the host"):
        webgpu.export(f, wg.ones(3))


def program_with_loops():
    def f(x):
        y, _ = wg.scan(lambda c, v: (wg.fori_loop(0, 3, lambda i, d: d + v, c), None), x[0], x)
        return wg.sort(y + wg.random.uniform((4,)), axis=0), wg.sort(x, axis=0)

    return webgpu.export(f, wg.Spec((N, 4)))


def test_changed_loops_are_refused_or_programs(full):
    program, refused, dice = program_with_loops(), 0, random.Random(2)
    assert len(program.repeats) == 3
    for k in range(6000 if full else 1000):
        described = dict(program._described)
        key = ["repeats", "dispatches", "generator"][min(k % 5, 2)]
        described[key] = changed(described[key], dice)
        try:
            made = webgpu.Program(json.loads(json.dumps(described)), program._tensors)
        except wg.ArgumentError:
            refused += 1
            continue
        repr(made), made.explain()
        sizes = dict.fromkeys(made.symbols, 3)
        try:
            count = _loops.played(made.order, sizes)
        except wg.ShapeError:
            continue
        if count < 10_000:
            assert sum(1 for _ in _loops.unrolled(made.order, sizes)) == count
    assert refused > 200


@pytest.mark.parametrize("change", [
    lambda r: r[1].update(to=999), lambda r: r[0].update({"from": -1}), lambda r: r.reverse(),
    lambda r: r[0].update(to=r[0]["from"]), lambda r: r[1].update(round=r[0]["round"]),
    lambda r: r[0].update(round="n"), lambda r: r[0].update(round="a+b"),
    lambda r: r[0].update(times="other"), lambda r: r[1].update(times=r[0]["round"]),
    lambda r: r[0].update(times={"log": 1, "of": 3}), lambda r: r[0].update(times={"log": 2}),
    lambda r: r[0].update(times=-1), lambda r: r[1].update(to=r[0]["to"] + 1),
    lambda r: r.pop(0), lambda r: r.extend(
        {**r[0], "round": f"x{i}"} for i in range(5000)),
], ids=range(15))  # fmt: skip
def test_loops_that_are_none_are_refused(change):
    program = program_with_loops()
    described = json.loads(json.dumps(program._described))
    change(described["repeats"])
    with pytest.raises(wg.ArgumentError, match=r"not a program|not a size"):
        webgpu.Program(described, program._tensors)


def test_endless_loops_are_refused_before_they_begin():
    deep = [_loops.Repeat(0, 1, 1 << 10, f"r{i}") for i in range(3)]
    with pytest.raises(wg.ShapeError, match="at most"):
        _loops.played(_loops.nested(deep, 1), {})
    with pytest.raises(wg.ShapeError, match="at most"):
        _loops.played(_loops.nested([_loops.Repeat(0, 1, 1 << 50, "r")], 1), {})
    with pytest.raises(ValueError, match="cross"):
        _loops.nested([_loops.Repeat(0, 1, 1, f"r{i}") for i in range(17)], 1)


@pytest.mark.parametrize("base", [2, 4])
def test_logarithms_are_rounded_up(base):
    for n in (0, 1, 2, 3, 4, 5, 16, 17, 2**40):
        times = _loops.Log(base, _sizes.Size("n")).at({"n": n})
        assert base**times >= n and (times == 0 or base ** (times - 1) < n)


def test_programs_of_the_first_version_are_read(adapter, tmp_path):
    program = webgpu.export(lambda x: x * 2 + 1, wg.Spec((N,)))
    first = {k: v for k, v in program._described.items() if k not in ("repeats", "generator")}
    program = webgpu.Program({**first, "version": 1}, program._tensors)
    x = normal(5)
    assert_near(perform(adapter, tmp_path, program, (x,))[0], (wg.asarray(x * 2 + 1),))


def test_a_step_of_many_operands_is_several_dispatches(adapter, tmp_path):
    def joined(x):
        return wg.stack([x[t] @ U for t in range(9)])

    agree(adapter, tmp_path, joined, [wg.Spec((9, N, 3))], (normal(9, 2, 3),))


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("sizes", [(T, N), (4, 3)], ids=["open", "known"])
def test_recurrent_layers_are_loops(kind, sizes, adapter, tmp_path):
    net = getattr(nn, kind)(3, 4, bidirectional=True)
    calls = [(normal(4, 3, 3),)] + ([] if sizes[0] == 4 else [(normal(7, 1, 3),)])
    program = agree(adapter, tmp_path, lambda x: net(x)[0], [wg.Spec((*sizes, 3))], *calls)
    assert len(program.repeats) == 2
