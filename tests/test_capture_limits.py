"""What compiled functions cost: memory that was predicted, none that stays."""

import gc
import os

import pytest

import wengert as wg
from wengert import nn, optim

from support import array, training_step


def live():
    gc.collect()
    return wg.memory_stats()["live_bytes"], wg.graph_stats()["nodes"]


# Memory.


def mlp_step():
    wg.random.seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    opt = optim.AdamW(model.parameters(), lr=0.01)

    return training_step(opt, lambda x: (model(x) ** 2).mean()), [array(64, 64)]


def conv_step():
    wg.random.seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(4 * 6 * 6, 10),
    )  # fmt: skip
    opt = optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    return training_step(opt, lambda x: (model(x) ** 2).mean()), [array(8, 1, 14, 14)]


def chain(n):
    def f(x):
        for i in range(n):
            x = (x * 1.5).tanh() + i
        return x

    return f


def deep(x):
    for _ in range(6):
        x = (x @ x).tanh() + x
    return x.sum(axis=0)


def wide(x):
    parts = [(x * i).exp().sum(axis=1) for i in range(8)]
    return wg.stack(parts).max(axis=0)


def outputs(x):
    return x + 1, x * 2, (x @ x, x.sum())


def casts(x):
    return (x.astype(wg.float64) * 2).astype(wg.float16).sum()


def updates(x):
    x += x.sum(axis=1, keepdims=True)
    x *= 0.5
    return x.mean()


PROGRAMS = {
    "chain": lambda: (chain(12), [array(100, 100)]),
    "deep": lambda: (deep, [array(128, 128)]),
    "wide": lambda: (wide, [array(200, 100)]),
    "outputs": lambda: (outputs, [array(64, 64)]),
    "casts": lambda: (casts, [array(50, 60)]),
    "updates": lambda: (updates, [array(300, 30)]),
    "softmax": lambda: (lambda x: nn.softmax(x @ x.T, axis=-1) @ x, [array(100, 40)]),
    "gradient": lambda: (wg.grad(lambda x: chain(8)(x).sum()), [array(80, 90)]),
    "slices": lambda: (lambda x: wg.concat([x[::2], x[1::2] * 2], axis=0)[:, 3:].sum(axis=0),
                       [array(100, 50)]),
    "gather": lambda: (lambda x, i: x[i] * x[i.flip()], [array(500, 20), wg.arange(300)]),
    "matmul": lambda: (lambda a, b: (a @ b).relu() if hasattr(a, "relu") else nn.relu(a @ b),
                       [array(130, 300), array(300, 70)]),
    "mlp step": mlp_step,
    "conv step": conv_step,
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_peak_is_what_was_predicted(name):
    f, args = PROGRAMS[name]()
    g = wg.compile(f)
    with wg.no_grad() if "step" not in name else wg.enable_grad():
        for _ in range(3):
            g(*args)
        plan = g.plan(*args)
        gc.collect()
        before = wg.memory_stats()["live_bytes"]
        wg.reset_peak_memory()
        result = g(*args)
        used = wg.memory_stats()["peak_bytes"] - before
    assert not plan.is_open
    assert used == plan.peak_bytes, (used, plan.peak_bytes, plan.naive_bytes)
    del result


def test_a_budget_is_refused_before_anything_runs():
    total = wg.zeros(())

    @wg.compile
    def f(x):
        nonlocal total
        total += 1.0
        return deep(x).sum()

    x = array(128, 128)
    with wg.config(memory_budget=1000):
        for _ in range(2):
            with pytest.raises(MemoryError, match=r"(?s)1000.*test_capture_limits\.py:\d+"):
                f(x)
    assert total.item() == 0.0


def test_calls_leave_nothing():
    w = wg.tensor([1.0, 2.0], requires_grad=True)
    f = wg.compile(lambda x, k: {"y": (x * w).exp() * k, "n": 1})
    x = wg.ones(2)
    for _ in range(20):
        f(x, 0.5)["y"].sum().backward()
    gc.collect()
    before, objects = live(), len(gc.get_objects())
    for i in range(10_000):
        y = f(x, i / 3)["y"]
        if i % 10 == 0:
            y.sum().backward()
    del y
    assert live() == before
    assert len(gc.get_objects()) <= objects + 50


def test_a_function_that_is_dropped_takes_everything_along():
    before = live()
    for _ in range(20):
        model = nn.Linear(8, 8)
        f = wg.compile(lambda x, model=model: model(x).sum())
        for n in (3, 4, 5):
            f(array(n, 8)).backward()
        f.plan(array(3, 8))
        f.explain()
    del model, f
    assert live() == before


def test_sizes_are_kept_within_bounds():
    f = wg.compile(lambda x: (x * 2).tanh().sum())
    for n in range(1, 400):
        f(wg.ones(n))
    gc.collect()
    before, objects = live(), len(gc.get_objects())
    for n in range(400, 1400):
        f(wg.ones(n))
    assert f.traces <= 3
    after = live()
    assert after[0] - before[0] < 100_000 and after[1] == before[1]
    assert len(gc.get_objects()) <= objects + 50


def test_signatures_are_limited():
    f = wg.compile(lambda x, n: x * n, limit=100)
    for n in range(100):
        f(wg.ones(1), n)
    for n in range(100, 200):
        with pytest.raises(wg.CaptureError, match="100 times"):
            f(wg.ones(1), n)
    assert f.traces == 100


def test_failed_calls_leave_nothing():
    f = wg.compile(lambda x, i: (x * 2)[i])
    x = wg.ones(100)
    f(x, wg.asarray([5]))
    for _ in range(3):
        with pytest.raises(IndexError):
            f(x, wg.asarray([500]))
    before = live()
    for _ in range(100):
        with pytest.raises(IndexError):
            f(x, wg.asarray([500]))
    assert live() == before


def resident():
    """Bytes of memory that the process holds: also what no counter of ours sees."""
    with open("/proc/self/statm") as facts:
        return int(facts.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def new_function(i):
    f = wg.compile(lambda x: (x * i).tanh().sum() + x.mean())
    for n in (2, 3, 4):
        f(wg.ones((n, i % 7 + 1)))


def new_graph(i):
    with wg.Graph() as g:
        x = wg.placeholder("x", (None, 3))
        v = wg.Variable(wg.zeros(3), name="v")
        y = v.assign_add((x * i).sum(axis=0))
    wg.Session(g).run(y, {x: wg.ones((2, 3))})


def new_batch(i):
    wg.vmap(lambda v: v * i)(wg.ones((3, 2)))


def new_branch(i):
    wg.cond(wg.tensor(True), lambda v: v * i, lambda v: v, wg.ones(3))


def new_shape(i):
    wg.nn.softmax(wg.ones((i % 50 + 1, i // 50 + 1)))


WITH_SESSION = {}


def new_fetches(i):
    """Another combination of fetches and sizes on one session."""
    if not WITH_SESSION:
        with wg.Graph() as g:
            x = wg.placeholder("x", (None, 3))
            WITH_SESSION.update(x=x, ys=[(x * k).sum() for k in range(40)], run=wg.Session(g).run)
    x, ys = WITH_SESSION["x"], WITH_SESSION["ys"]
    WITH_SESSION["run"]([ys[i % 40], ys[i // 40]], {x: wg.ones((i % 50 + 1, 3))})


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="needs /proc")
@pytest.mark.parametrize(
    "work", [new_function, new_graph, new_batch, new_branch, new_shape, new_fetches]
)
def test_a_thousand_signatures_leave_nothing(work):
    """What is new each time is not kept: caches are bounded."""
    # The largest cache keeps 512.
    for i in range(600):
        work(i)
    before, objects, held = live(), len(gc.get_objects()), resident()
    for i in range(600, 1600):
        work(i)
    after = live()
    assert abs(after[0] - before[0]) < 20_000 and after[1] == before[1]
    assert len(gc.get_objects()) <= objects + 50
    assert resident() - held < 4 << 20


def test_a_thousand_traces_go_with_their_function():
    """One function that is allowed so many keeps them all, and nothing once it is gone."""
    f = wg.compile(lambda x, n: (x * n).tanh(), limit=2000)
    f(wg.ones(2), 0)
    before, objects = live(), len(gc.get_objects())
    for n in range(1, 1001):
        f(wg.ones(2), n)
    assert f.traces == 1001
    del f
    assert live()[1] == before[1] and live()[0] <= before[0]
    assert len(gc.get_objects()) <= objects + 50


def test_trees_without_end_are_refused():
    """Containers in themselves, and ones of very many levels, are no crash."""
    f = wg.compile(lambda tree, x: x * 2.0)
    endless = []
    endless.append(endless)
    deep = wg.ones(2)
    for _ in range(100_000):
        deep = [deep]
    for tree in (endless, {"a": endless}, deep):
        with pytest.raises(RecursionError):
            f(tree, wg.ones(2))
    for _ in range(100_000 - 100):
        deep = deep[0]
    assert f(deep, wg.ones(2)).tolist() == [2.0, 2.0]
    assert f({"a": (1, [2.0, None])}, wg.ones(2)).tolist() == [2.0, 2.0]


def test_attributes_are_no_globals():
    """Only names that the code loads as globals count, in functions inside too."""
    counts = []
    for name in ("sum", "step", "shape"):
        space = {"wg": wg, "scale": 2.0}
        exec(
            "def f(x):\n"
            "    def inner(y): return [y.sum() * scale for _ in range(2)][0]\n"
            "    step = x.shape\n"
            "    return inner(x) + len(step)\n",
            space,
        )
        f = wg.compile(space["f"])
        for i in range(70):
            space[name] = i
            f(wg.ones(3))
        counts.append(f.traces)
        space["scale"] = 3.0  # loaded by the function inside
        assert f(wg.ones(3)).item() == 10.0 and f.traces == 2
    assert counts == [1, 1, 1]


def test_a_module_level_loop_around_a_step_traces_once():
    program = """
import wengert as wg
model = wg.nn.Linear(2, 1)
opt = wg.optim.SGD(model.parameters(), lr=0.1)

@wg.compile
def train(x):
    opt.zero_grad()
    model(x).sum().backward()
    opt.step()

for step in range(70):
    train(wg.ones((4, 2)))
for sum in range(70):
    train(wg.ones((4, 2)))
traces = train.traces
"""
    space = {}
    exec(program, space)
    assert space["traces"] == 1


def test_a_closure_that_contains_itself_is_captured():
    d = {"scale": 2.0}
    d["d"] = d
    items = [d]
    items.append(items)
    f = wg.compile(lambda x: x * d["scale"] * len(items))
    assert f(wg.ones(2)).tolist() == [4.0, 4.0]
    with pytest.raises(RecursionError, match="contains itself"):
        wg.pytree.flatten(d)
