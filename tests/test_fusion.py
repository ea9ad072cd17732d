"""Steps that do more than one op: sizes at which rows, products and sums are fused, by their bits.

Each formula is run op by op (eager code), compiled, and compiled for open sizes; bits are those of
eager code, the peak is the one that was predicted, and the plan holds the step that it should.
"""

import numpy as np
import pytest

import wengert as wg


def softmax(x):
    e = (x - x.max(axis=-1, keepdims=True)).exp()
    return e / e.sum(axis=-1, keepdims=True)


def layer_norm(x, w, b):
    d = x - x.mean(axis=-1, keepdims=True)
    return d / ((d * d).mean(axis=-1, keepdims=True) + 1e-5).sqrt() * w + b


def attention(q, k, v):
    return softmax(q @ k.mT * 0.25) @ v


def loss(x, y):
    return ((x.sin() - y) ** 2).mean()


def bias_gradient(g, h):
    return wg.where(h > 0, g, 0).sum(axis=0)


def linear(x, w, b):
    return wg.maximum(x @ w + b, 0)


def residual(x, w, b):
    y = x @ w
    return softmax(x + (y + b).tanh())


def convolution(x, w, b):
    return wg.nn.relu(wg.nn.conv2d(x, w) + b)


def by_channel(x, w, b, y):
    """Each channel by itself, or two results of each; then bias, activation and residual."""
    stride = x.shape[-1] // y.shape[-1]
    z = wg.nn.conv2d(x, w, None, stride, w.shape[-1] // 2, 1, x.shape[1])
    return wg.clip(z + b, 0.0, 6.0) + y


def by_group(x, w, b):
    return wg.nn.relu(wg.nn.conv2d(x, w, groups=3) + b)


def several(x, w):
    """What lies in between is read by others too, and seen in another shape."""
    y = softmax(x)
    scale = (y * w).sum(axis=-1, keepdims=True)
    return y * scale, scale[:, 0], (y - w).sum(), y.max()


def dequantised(x, w, s):
    """Weights that are kept in fewer bits."""
    return wg.maximum(x @ (w.astype(wg.float16).astype(wg.float32) * s), 0)


def dequantised_lines(x, w, s):
    """The same, with a line of weights for each output."""
    return x @ (w.astype(wg.bfloat16).astype(wg.float32) * s).T


def normalised(x, r, c, w, b):
    """A load along rows that walk as two axes, and one along columns."""
    return wg.nn.gelu((x - r) * c @ w + b)


def turned(x, y):
    return (x.sin() * 2).T @ y


def narrow(x, w):
    """Sums wider than their operands."""
    return ((x * 3).astype(wg.bfloat16) @ w.astype(wg.bfloat16)).astype(wg.float32)


def whole(x, w):
    return (wg.clip(wg.nan_to_num(x), -9, 9) * 10).astype(wg.int64) @ (w > 0).astype(wg.int64)


def tall(x, s, w):
    """Few columns, which are the rows of the product that is computed."""
    return (x / s) @ w


CASES = {
    "dequantised": (dequantised, [(33, 300), (300, 260), (260,)], "matmul (b: astype, astype, "),
    "deep": (dequantised_lines, [(3, 9000), (30, 9000), (30, 1)], "matmul (b: astype, "),
    "dequantised lines": (dequantised_lines, [(60, 600), (131, 600), (131, 1)], "matmul (b: "),
    "normalised": (
        normalised,
        [(7, 43, 90), (43, 1), (90,), (90, 300), (300,)],
        "matmul (a: subtract, multiply), add, ",
    ),
    "turned": (turned, [(3000, 90), (3000, 600)], "matmul (a: sin, multiply)"),
    "narrow": (narrow, [(130, 90), (90, 70)], "matmul (a: "),
    "whole": (whole, [(130, 90), (90, 70)], "matmul (a: "),
    "tall": (tall, [(900, 130), (130,), (130, 2)], "matmul (a: divide)"),
    "softmax": (softmax, [(700, 300)], "block fusion (max"),
    "softmax of a batch": (softmax, [(6, 50, 400)], "block fusion (max"),
    "layer norm": (layer_norm, [(900, 257), (257,), (257,)], "block fusion (sum"),
    "attention": (attention, [(4, 3, 100, 16), (4, 3, 100, 16), (4, 3, 100, 24)], "block fusion ("),
    "loss": (loss, [(333_333,), (333_333,)], "block fusion (sin, subtract, square, sum)"),
    "loss of a matrix": (loss, [(1001, 333)] * 2, "block fusion (sin, subtract, square, sum)"),
    "bias gradient": (bias_gradient, [(1000, 130), (1000, 130)], "block fusion ("),
    "linear": (linear, [(150, 90), (90, 200), (200,)], "matmul, add, maximum"),
    "residual": (residual, [(600, 120), (120, 120), (120,)], "matmul, add, tanh, add"),
    "convolution": (convolution, [(3, 4, 40, 40), (8, 4, 3, 3), (8, 1, 1)], "conv"),
    "depthwise": (
        by_channel,
        [(3, 5, 40, 37), (5, 1, 3, 3), (5, 1, 1), (3, 5, 40, 37)],
        "conv, add, maximum, minimum, add",
    ),
    "depthwise on small planes": (
        by_channel,
        [(2, 700, 6, 6), (1400, 1, 3, 3), (1400, 1, 1), (2, 1400, 3, 3)],
        "conv, add, maximum, minimum, add",
    ),
    "groups": (by_group, [(2, 12, 30, 30), (15, 4, 3, 3), (15, 1, 1)], "conv, add, maximum"),
    "groups of windows that repeat nothing": (
        by_group,
        [(2, 12, 30, 30), (15, 4, 1, 1), (15, 1, 1)],
        "conv, add, maximum",
    ),
    "several": (several, [(800, 120), (120,)], "block fusion ("),
}


def operands(shapes, rng, special=False):
    made = []
    for shape in shapes:
        x = rng.standard_normal(shape).astype(np.float32)
        if special:
            x.flat[:: max(x.size // 7, 1)] = [np.nan, np.inf, -np.inf, -0.0, 0.0, 1e-42, 3e38, 1.0][
                : len(x.flat[:: max(x.size // 7, 1)])
            ]
        made.append(wg.tensor(x))
    return made


def bits(results):
    results = results if isinstance(results, tuple) else (results,)
    # NaNs keep no particular payload.
    return [np.nan_to_num(r.numpy(), nan=7.5).tobytes() for r in results]


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_fused_steps_have_the_bits_of_ops(name, special):
    f, shapes, step = CASES[name]
    xs = operands(shapes, np.random.default_rng(3), special)
    want, compiled = bits(f(*xs)), wg.compile(f)
    try:
        for threads in (3, 2, 1):
            wg.set_num_threads(threads)
            assert bits(compiled(*xs)) == want
            assert bits(wg.compile(f)(*xs)) == want
        # What pays may depend on the number of threads.
        assert any(s.name.startswith(step) for s in compiled.plan(*xs).steps), compiled.plan(*xs)
    finally:
        wg.set_num_threads(2)


@pytest.mark.parametrize("name", CASES)
def test_fused_steps_take_the_memory_that_was_predicted(name):
    f, shapes, _ = CASES[name]
    xs = operands(shapes, np.random.default_rng(4))
    f = wg.compile(f)
    f(*xs)
    plan, before = f.plan(*xs), wg.memory_stats()["live_bytes"]
    wg.reset_peak_memory()
    kept = f(*xs)
    assert wg.memory_stats()["peak_bytes"] - before == plan.peak_bytes
    del kept


MADE = ["dequantised", "normalised"]
SIZED = [*MADE, "tall", "softmax", "layer norm", "loss of a matrix", "bias gradient", "linear"]
DIFFERENTIABLE = [*MADE, "turned", "softmax", "layer norm", "attention", "loss", "linear"]
DIFFERENTIABLE += ["several"]


@pytest.mark.parametrize("name", SIZED)
def test_fused_steps_fit_any_size(name):
    f, shapes, _ = CASES[name]
    compiled, rng = wg.compile(f), np.random.default_rng(5)
    for rows in (3, 700, 1, 1024, 511, 2000):
        sized = [(rows, *s[1:]) if len(s) > 1 and s[0] == shapes[0][0] else s for s in shapes]
        xs = operands(sized, rng)
        assert bits(compiled(*xs)) == bits(f(*xs)), rows
    assert compiled.traces <= 4


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradients_of_fused_steps_have_the_bits_of_ops(name):
    f, shapes, _ = CASES[name]
    xs = operands(shapes, np.random.default_rng(6))

    def gradients(*xs):
        results = f(*xs)
        results = results if isinstance(results, tuple) else (results,)
        total = sum((r * r).sum() for r in results)
        return wg.gradients(total, list(xs))

    for x in xs:
        x.requires_grad = True
    want = bits(tuple(gradients(*xs)))
    assert bits(tuple(wg.compile(gradients)(*xs))) == want


def test_values_between_rows_are_never_there_as_a_whole():
    x = wg.ones((2000, 500))
    plan = wg.compile(softmax).plan(x)
    result = 4 * 2000 * 500
    assert plan.naive_bytes > 2 * result and plan.peak_bytes < 1.2 * result
    plan = wg.compile(loss).plan(x, x)
    assert plan.naive_bytes > result and plan.peak_bytes < 0.2 * result


def test_what_is_fused_is_explained():
    f, x = wg.compile(softmax), wg.ones((2000, 500))
    f(x)
    text = str(f.explain(x))
    assert "block fusion (max" in text and "ends: result" in text
    plan = str(f.plan(x))
    assert "block fusion in" in plan and "\n    s0 = max(in0)" in plan


@pytest.mark.parametrize("name", CASES)
def test_fusion_can_be_switched_off(name):
    f, shapes, _ = CASES[name]
    xs = operands(shapes, np.random.default_rng(7))
    fused, apart = wg.compile(f), wg.compile(f)
    want = bits(fused(*xs))
    with wg.config(passes={"fuse": False}):
        assert bits(apart(*xs)) == want
    steps = apart.plan(*xs).steps
    assert all(s.nodes == 1 for s in steps) and len(steps) > len(fused.plan(*xs).steps)


def test_donation_can_be_switched_off():
    def step(x):
        x += 1.0

    peaks = []
    for on in (True, False):
        x, f = wg.zeros((512, 512)), wg.compile(step)
        with wg.config(passes={"donate": on}):
            f(x)
            f(x)
            peaks.append(f.plan(x).peak_bytes)
        assert x.tolist() == np.full((512, 512), 2.0).tolist()
    assert peaks[0] == 0 and peaks[1] >= 4 * 512 * 512


def test_what_is_reduced_with_the_rows_depends_on_the_size():
    """Few lines are joined in another order than many, so that a sum joins the rows from 33 on."""

    def f(x):
        y = softmax(x)
        return (y * 2.0).sum(axis=0), (y + x).sum(), y

    compiled, rng = wg.compile(f), np.random.default_rng(8)
    for rows in (40, 16, 33, 32, 64, 9, 100):
        x = wg.tensor(rng.standard_normal((rows, 9000)).astype(np.float32))
        assert bits(compiled(x)) == bits(f(x)), rows
    assert compiled.traces == 2


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("shape", [(4, 16, 64, 65), (300, 12, 9, 7), (9, 8, 4000)], ids=str)
def test_a_batch_norm_runs_by_channels(shape, dtype):
    axes = (0, *range(2, len(shape)))

    def f(x, g, w):
        centred = x - x.mean(axis=axes, keepdims=True)
        scale = (centred.square().mean(axis=axes, keepdims=True) + 1e-5).rsqrt()
        y = centred * scale * w
        slope = (g * y).mean(axis=axes, keepdims=True)
        dx = (g - g.mean(axis=axes, keepdims=True) - y * slope) * scale * w
        return y, dx, (g * y).sum(axis=axes)

    rng, compiled = np.random.default_rng(9), wg.compile(f)
    own = [shape[1] if i == 1 else 1 for i in range(len(shape))]
    xs = [wg.tensor(rng.standard_normal(n).astype(dtype)) for n in (shape, shape, own)]
    assert bits(compiled(*xs)) == bits(f(*xs))
    assert bits(compiled(xs[0].flip(0), *xs[1:])) == bits(f(xs[0].flip(0), *xs[1:]))
    assert bits(compiled(xs[0] + 1.0, *xs[1:])) == bits(f(xs[0] + 1.0, *xs[1:]))
    names = [step.name for step in compiled.plan(*xs).steps if "block" in str(step)]
    assert len(names) == 1 and names[0].count("sum") >= 4, str(compiled.plan(*xs))
