"""Random programs: the same bits for any thread count and layout, gradients that agree."""

import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import wengert as wg
from wengert import _core

from modes import raw as bits
from support import TABLE, differentiable, function, generator

# Float ops of one or two operands, from the table; each value is squeezed into (-1, 1) after every
# step, which keeps it inside the domain of most and makes NaN rare.
MAPS = [
    op for op in TABLE
    if op["kind"] == "elementwise" and op["function"] and not op["namespace"]
    and differentiable(op) and len(op["params"]) in (1, 2)
    and all("float" in c for c in op["classes"])
]
SMOOTH = ["sin", "cos", "tanh", "exp", "add", "multiply", "subtract", "atan", "sinh", "square"]
REDUCTIONS = ["sum", "mean", "max", "min", "logsumexp", "var", "cumulative_sum", "sort"]


@st.composite
def programs(draw, names=None):
    """A straight-line program: (op name, argument positions) in order."""
    ops = [op for op in MAPS if names is None or op["name"] in names]
    steps = []
    for n in range(draw(st.integers(2, 12))):
        op = draw(st.sampled_from(ops))
        places = [draw(st.integers(0, n + 1)) for _ in op["params"]]
        steps.append((op, places))
    return steps


def run(program, a, b):
    values = [a, b]
    for op, places in program:
        y = function(op)(*[values[i] for i in places])
        values.append((y * 0.5).tanh())
    return values[-1]


def operands(shape, key):
    rng = generator(key)
    return [rng.uniform(-1, 1, shape).astype("float32") for _ in range(2)]


@pytest.fixture(autouse=True)
def threads():
    """Restores the number of threads."""
    before = wg.get_num_threads()
    yield
    wg.set_num_threads(before)


@given(programs())
def test_same_bits_for_any_thread_count_and_layout(program):
    arrays = operands((257, 131), "bits")
    seen = set()
    for count in (1, 2, 5):
        wg.set_num_threads(count)
        plain = [wg.asarray(a) for a in arrays]
        turned = [wg.asarray(a.T.copy()).T for a in arrays]
        seen |= {bits(run(program, *plain)), bits(run(program, *turned))}
    assert len(seen) == 1


@given(programs(), st.sampled_from(["float32", "float16", "bfloat16", "float64"]))
def test_a_plan_gives_the_bits_of_its_ops(program, dtype):
    """Fused into groups or op by op, on one thread or two, with runtime numbers among operands."""
    inputs = [wg.asarray(a).astype(getattr(wg, dtype)) for a in operands((257, 131), "plan")]
    inputs.append(inputs[0][:1])
    steps = []
    for op, places in program:
        n = len(inputs) + len(steps)
        steps.append((op["name"], [(i * 7919 % n,) for i in places]))
        steps.append(("multiply", [(n,), 0.5]))
        steps.append(("tanh", [(n + 1,)]))
    seen = set()
    for count in (1, 2):
        wg.set_num_threads(count)
        for fused in (False, True):
            values = _core._run_program(inputs, steps, fused)
            seen.add(tuple(bits(v.astype(wg.float64)) for v in values))
    assert len(seen) == 1


@given(programs(SMOOTH))
def test_same_gradient_bits_for_any_thread_count(program):
    arrays = operands((300, 70), "gradient bits")
    seen = set()
    for count in (1, 3):
        wg.set_num_threads(count)
        leaves = [wg.tensor(a, requires_grad=True) for a in arrays]
        y = run(program, *leaves).sum()
        grads = wg.gradients(y, leaves, allow_unused=True)
        seen.add(tuple(None if g is None else bits(g) for g in grads))
    assert len(seen) == 1


@given(programs(SMOOTH))
def test_a_program_s_gradient_is_its_slope(program):
    rng = generator("slope")
    points = [wg.asarray(rng.uniform(-1, 1, (3, 2))) for _ in range(2)]
    ways = [wg.asarray(rng.uniform(-1, 1, (3, 2))) for _ in range(2)]
    leaves = [wg.tensor(p, requires_grad=True) for p in points]
    grads = wg.gradients(run(program, *leaves).sum(), leaves, allow_unused=True)
    along = sum((g * w).sum().item() for g, w in zip(grads, ways, strict=True) if g is not None)
    ends = []
    for step in (1e-6, -1e-6):
        moved = [p + step * w for p, w in zip(points, ways, strict=True)]
        ends.append(run(program, *moved).sum().item())
    slope = (ends[0] - ends[1]) / 2e-6
    assert abs(slope - along) <= 1e-6 * max(1.0, abs(slope))


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("shape", [(100_003,), (1000, 301), (7, 11, 1301), (300_000, 2)])
def test_reductions_have_one_tree(name, shape):
    """The tree of a reduction follows the logical shape: not threads, not strides."""
    a = generator(name, shape).standard_normal(shape).astype("float32")
    f = getattr(wg, name)
    for axis in (None, *range(len(shape))) if name not in ("cumulative_sum", "sort") else (-1,):
        seen = set()
        for count in (1, 2, 3):
            wg.set_num_threads(count)
            order = range(len(shape))[::-1]
            turned = wg.permute_dims(wg.asarray(a.transpose(order).copy()), tuple(order))
            backwards = wg.flip(wg.asarray(a[..., ::-1].copy()), axis=-1)
            seen |= {bits(f(t, axis=axis)) for t in (wg.asarray(a), turned, backwards)}
        assert len(seen) == 1, axis


@pytest.mark.parametrize(
    "sizes",
    [
        (1, 300, 500), (65, 129, 257), (512, 512, 512), (3, 2000, 1), (250, 60, 5000),
        (100, 60, 1100),
    ],
)
def test_products_have_one_tree(sizes):
    n, k, m = sizes
    rng = generator("product", sizes)
    a = rng.standard_normal((n, k)).astype("float32")
    b = rng.standard_normal((k, m)).astype("float32")
    seen = set()
    for count in (1, 2, 3):
        wg.set_num_threads(count)
        x, y = wg.asarray(a), wg.asarray(b)
        xt, yt = wg.asarray(a.T.copy()).T, wg.asarray(b.T.copy()).T
        seen |= {bits(p @ q) for p in (x, xt) for q in (y, yt)}
    assert len(seen) == 1


@pytest.mark.parametrize("channels", [(1, 6), (3, 6), (3, 16)])
def test_convolutions_have_the_same_bits_for_any_thread_count(channels):
    rng = generator("convolution", channels)
    x = wg.asarray(rng.standard_normal((64, channels[0], 28, 28)).astype("float32"))
    w = wg.asarray(rng.standard_normal((channels[1], channels[0], 5, 5)).astype("float32"))
    seen = set()
    for count in (1, 2, 2, 2, 3, 3):
        wg.set_num_threads(count)
        seen.add(bits(wg.nn.conv2d(x, w, padding=2)))
    assert len(seen) == 1


def test_same_bits_in_another_process():
    code = (
        "import wengert as wg, hashlib; wg.random.seed(3); x = wg.random.normal((200, 300));"
        "y = (x @ x.T).tanh().sum(axis=0); print(hashlib.sha256(y.numpy().tobytes()).hexdigest())"
    )
    digests = {
        subprocess.check_output([sys.executable, "-c", code], text=True,
                                env=os.environ | {"WENGERT_NUM_THREADS": n})
        for n in ("1", "2")
    }
    assert len(digests) == 1


def test_random_numbers_have_the_distribution_they_say():
    wg.random.seed(0)
    n = 200_000
    u, z = wg.random.uniform((n,)).numpy(), wg.random.normal((n,)).numpy()
    assert u.min() >= 0 and u.max() < 1 and abs(u.mean() - 0.5) < 4 / np.sqrt(12 * n)
    assert abs(z.mean()) < 4 / np.sqrt(n) and abs(z.var() - 1) < 4 * np.sqrt(2 / n)
    # The distance between the empirical and the exact distribution, against its 1 in 10^6 bound.
    assert np.abs(np.sort(u) - (np.arange(n) + 0.5) / n).max() < 2.7 / np.sqrt(n)
    k = wg.random.integers(-3, 5, (n,)).numpy()
    counts = np.bincount(k + 3, minlength=8)
    assert k.min() == -3 and k.max() == 4
    assert ((counts - n / 8) ** 2 / (n / 8)).sum() < 45
    p = wg.random.permutation(1000).numpy()
    assert sorted(p.tolist()) == list(range(1000)) and (p != np.arange(1000)).any()
