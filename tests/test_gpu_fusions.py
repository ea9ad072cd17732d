"""Rows on a GPU as one dispatch: how many there are, and what they give, against the CPU."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import wengert as wg
from wengert import nn

rng = np.random.default_rng(3)
COLUMNS = [1, 3, 8, 17, 63, 64, 65, 255, 256, 257, 1000, 1025, 5000]


def normal(*shape):
    return rng.standard_normal(shape).astype("f")


def norm(x, w, b):
    return nn.layer_norm(x, axis=-1, weight=w, bias=b)


ROWS = {
    "softmax": nn.softmax,
    "log softmax": nn.log_softmax,
    "logsumexp": lambda x: wg.logsumexp(x, axis=-1),
    "layer norm": lambda x: nn.layer_norm(x, axis=-1),
    "rms norm": lambda x: nn.rms_norm(x, axis=-1),
    "variance": lambda x: x.var(axis=-1),
}


def kernels(f, *args):
    """The steps of a compiled function that are dispatched."""
    plan = wg.compile(f).explain(*args).plan
    lines = [line.strip() for line in str(plan).splitlines()]
    moves = (" = reshape(", " = permute(", " = broadcast(", "return")
    return [line for line in lines if line and not any(move in line for move in moves)
            and not line.startswith("return")]


def near(got, want, rtol=2e-5, atol=2e-5):
    got, want = got.numpy(), want.numpy()
    assert got.dtype == want.dtype and got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=rtol, atol=atol)


def both(f, gpu, *arrays, **kwargs):
    args = [wg.asarray(x) for x in arrays]
    near(wg.compile(f)(*(x.to(gpu) for x in args)), f(*args), **kwargs)


@pytest.mark.parametrize("name", ROWS)
def test_a_row_is_one_dispatch(name, gpu):
    x = wg.asarray(normal(64, 96)).to(gpu)
    assert len(kernels(ROWS[name], x)) == 1


def guarded(x):
    """A softmax whose rows may be all minus infinity."""
    top = x.max(axis=1, keepdims=True)
    weights = (x - wg.where(top == -np.inf, 0.0, top)).exp()
    return weights / weights.sum(axis=1, keepdims=True)


def test_rows_are_joined_where_they_are_connected(gpu):
    """Unrelated rows in one dispatch would need all operands at a time, which small ones may."""
    pairs = {n: [wg.asarray(normal(n, 512)).to(gpu) for _ in range(2)] for n in (16, 64)}

    def unrelated(x, y):
        return guarded(x), guarded(y)

    assert len(kernels(unrelated, *pairs[64])) == 2
    assert len(kernels(unrelated, *pairs[16])) == 1
    assert len(kernels(lambda x, y: guarded(guarded(x) * y), *pairs[64])) == 1
    for found, x in zip(wg.compile(unrelated)(*pairs[64]), pairs[64], strict=True):
        near(found, nn.softmax(x.to("cpu")))


@pytest.mark.parametrize("name", ROWS)
def test_a_gradient_is_few_dispatches(name, gpu):
    def slope(x):
        return wg.grad(lambda x: (ROWS[name](x) ** 2).sum())(x)

    x = normal(64, 96)
    assert len(kernels(slope, wg.asarray(x).to(gpu))) <= 2
    both(slope, gpu, x, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("columns", COLUMNS)
def test_lengths_of_rows(columns, gpu):
    x = 3 * normal(7, columns)
    for f in ROWS.values():
        if columns > 1 or f is not ROWS["variance"]:
            both(f, gpu, x, atol=1e-4)
    both(norm, gpu, x, normal(columns), normal(columns), atol=1e-4)


SHAPES = [(0, 5), (1, 2000), (3, 70000), (1000, 2), (4, 3, 40), (300, 129)]


@pytest.mark.parametrize("shape", SHAPES)
def test_shapes(shape, gpu):
    for f in ROWS.values():
        both(f, gpu, normal(*shape), atol=1e-4)


def test_operands_as_they_lie(gpu):
    x = wg.asarray(normal(60, 80))
    y = x.to(gpu)
    for f in ROWS.values():
        g = wg.compile(f)
        near(g(y.T), f(x.T), atol=1e-4)
        near(g(y[::2, 8:]), f(x[::2, 8:]), atol=1e-4)
        near(g(y[:, ::-3]), f(x[:, ::-3]), atol=1e-4)
        near(g(y[1:, 1:65]), f(x[1:, 1:65]), atol=1e-4)
        near(wg.compile(lambda x, f=f: f(x[3:, 4:]))(y), f(x[3:, 4:]), atol=1e-4)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("columns", [4, 7, 64, 100, 1028])
def test_halves(dtype, columns, gpu):
    x = wg.asarray(normal(9, columns)).astype(dtype)
    for name, f in ROWS.items():
        got, want = wg.compile(f)(x.to(gpu)), f(x)
        assert got.dtype == want.dtype, name
        tolerance = 0.02 if dtype == "float16" else 0.06
        near(got.astype("float32"), want.astype("float32"), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int32", "int64", "bool"])
@pytest.mark.parametrize("columns", [5, 64, 200])
def test_integers(dtype, columns, gpu):
    x = wg.asarray(rng.integers(0, 2 if dtype == "bool" else 100, (9, columns))).astype(dtype)

    def f(x):
        top = x.max(axis=-1, keepdims=True)
        return (x == top).astype("int32").sum(axis=-1, keepdims=True) + wg.where(x < top, 1, 2)

    np.testing.assert_array_equal(wg.compile(f)(x.to(gpu)).numpy(), f(x).numpy())


def test_special_values(gpu):
    inf, nan = np.inf, np.nan
    x = np.zeros((8, 70), "f")
    x[1] = -inf
    x[2, 3] = inf
    x[3, 69] = nan
    x[4] = -0.0
    x[5, :69] = -inf
    x[6], x[6, 0] = 3e38, -3e38
    x[7, ::2] = 88
    for f in ROWS.values():
        both(f, gpu, x)
        both(f, gpu, x[:, :9])
    both(lambda x: (x - x.max(axis=1, keepdims=True)), gpu, x)

    def scaled(x):
        return (x * x.min(axis=1, keepdims=True)).sum(axis=1)

    both(scaled, gpu, np.delete(x, 6, axis=0))
    # Products that overflow to both infinities leave NaN, or one infinity where a driver fuses the
    # others with their sum.
    assert not np.isfinite(wg.compile(scaled)(wg.asarray(x[6:7]).to(gpu)).numpy()).any()


def test_groups_and_batches(gpu):
    x, w, b = normal(4, 8, 6, 5), normal(8), normal(8)

    def grouped(x, w, b):
        return nn.group_norm(x, 2, w, b)

    both(grouped, gpu, x, w, b, atol=1e-4)
    assert len(kernels(grouped, *(wg.asarray(a).to(gpu) for a in (x, w, b)))) <= 2
    layer, again = nn.BatchNorm2d(8), nn.BatchNorm2d(8).to(gpu)
    near(wg.compile(again)(wg.asarray(x).to(gpu)), layer(wg.asarray(x)), atol=1e-4)
    near(again.running_var, layer.running_var)
    both(lambda x: nn.softmax(x, axis=1), gpu, x)
    both(lambda x: nn.softmax(x, axis=0), gpu, normal(33, 500))
    both(lambda x: nn.softmax(x, axis=1), gpu, normal(3, 1000, 7))


CLASSES = {
    "indices": {},
    "weights": {"weight": True},
    "ignored": {"ignore_index": 2},
    "smoothed": {"label_smoothing": 0.1},
    "all": {"weight": True, "ignore_index": 2, "label_smoothing": 0.2},
}


@pytest.mark.parametrize("columns", [3, 10, 100, 1001])
@pytest.mark.parametrize("kind", CLASSES)
def test_cross_entropy(kind, columns, gpu):
    options = dict(CLASSES[kind])
    has_weight = options.pop("weight", False)
    given = (normal(37, columns), rng.integers(0, columns, 37), np.abs(normal(columns)))

    def loss(x, t, w, reduction="mean"):
        return nn.cross_entropy(
            x, t, weight=w if has_weight else None, reduction=reduction, **options)

    both(loss, gpu, *given, atol=1e-4)
    both(lambda x, t, w: wg.grad(lambda x: loss(x, t, w))(x), gpu, *given, atol=1e-4)
    both(lambda x, t, w: loss(x, t, w, "none"), gpu, *given, atol=1e-4)


def slope(loss, **options):
    return lambda x, *args: wg.grad(lambda x: loss(x, *args, **options))(x)


def weighted(x, t, w, **options):
    return nn.cross_entropy(x, t, weight=w, **options)


def likelihood(x, t, w=None):
    return nn.nll_loss(nn.log_softmax(x, axis=1), t, weight=w)


def both_of(x, t):
    return wg.value_and_grad(lambda x: nn.cross_entropy(x, t))(x)


# Losses of rows, and how many dispatches beside the one that says which label is refused.
LOSSES = {
    "none": (lambda x, t, w: nn.cross_entropy(x, t, reduction="none"), 1),
    "sum": (lambda x, t, w: nn.cross_entropy(x, t, reduction="sum"), 2),
    "mean": (lambda x, t, w: nn.cross_entropy(x, t), 2),
    "ignored": (lambda x, t, w: nn.cross_entropy(x, t, ignore_index=2), 2),
    "smoothed": (lambda x, t, w: nn.cross_entropy(x, t, label_smoothing=0.1), 2),
    "weighted": (weighted, 2),
    "weighted, smoothed": (lambda x, t, w: weighted(x, t, w, label_smoothing=0.1), 2),
    "likelihood": (lambda x, t, w: likelihood(x, t), 2),
    "weighted likelihood": (likelihood, 2),
    "gradient of sum": (lambda x, t, w: slope(nn.cross_entropy, reduction="sum")(x, t), 1),
    "gradient of mean": (lambda x, t, w: slope(nn.cross_entropy)(x, t), 2),
    "weighted gradient": (slope(weighted), 4),
    "value and gradient": (lambda x, t, w: both_of(x, t), 3),
}


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("shape", [(64, 100), (8, 10, 20)])
def test_a_loss_of_classes_is_few_dispatches(name, shape, gpu):
    f, most = LOSSES[name]
    x, t = normal(*shape), rng.integers(0, shape[1], shape[:1] + shape[2:])
    args = [wg.asarray(x) for x in (x, t, np.abs(normal(shape[1])))]
    found = kernels(f, *(x.to(gpu) for x in args))
    # Where classes are not the last axis, what their rows need first is not computed again.
    assert len(found) <= most or len(shape) > 2, found
    assert not any("iota" in line for line in found if "row fusion" not in line) or len(shape) > 2
    all_of = [wg.compile(f)(*(x.to(gpu) for x in args)), f(*args)]
    for got, want in zip(*(x if isinstance(x, tuple) else (x,) for x in all_of), strict=True):
        near(got, want)


def test_a_loss_of_probabilities_is_one_dispatch(gpu):
    x, p = (wg.asarray(np.abs(normal(64, 100))).to(gpu) for _ in range(2))
    assert len(kernels(lambda x, p: nn.cross_entropy(x, p, reduction="none"), x, p)) == 1


def test_batch_norm_is_few_dispatches(gpu):
    layer = nn.BatchNorm2d(8).to(gpu)
    x = wg.asarray(normal(4, 8, 6, 5)).to(gpu)
    assert len(kernels(lambda x: layer(x), x)) <= 4
    layer.eval()
    assert len(kernels(lambda x: layer(x), x)) <= 2


@pytest.mark.parametrize("columns", [5, 100, 9001])
def test_positions_along_a_row_are_not_read(columns, gpu):
    x, k = normal(21, columns), rng.integers(1, columns + 1, (21, 1))

    def masked(x, k):
        return nn.softmax(wg.where(wg.arange(columns, device=x.device) < k, x, -wg.inf), axis=1)

    def centre(x):
        line = wg.arange(columns, dtype=wg.float32, device=x.device)
        return (nn.softmax(x, axis=1) * line).sum(axis=1)

    for f, args in [(masked, (x, k)), (centre, (x,))]:
        both(f, gpu, *args, atol=1e-4, rtol=1e-4)
        found = kernels(f, *(wg.asarray(a).to(gpu) for a in args))
        assert len(found) == 1, found


@pytest.mark.parametrize("columns", [6, 9001])
def test_a_gradient_alone_refuses_a_class(columns, gpu):
    x, t = wg.asarray(normal(20, columns)), rng.integers(0, columns, 20)
    f = slope(nn.cross_entropy)
    near(wg.compile(f)(x.to(gpu), wg.asarray(t).to(gpu)), f(x, wg.asarray(t)))
    t[11] = columns
    with pytest.raises(IndexError, match=str(columns)):
        wg.compile(f)(x.to(gpu), wg.asarray(t).to(gpu)).numpy()


@pytest.mark.parametrize("columns", [6, 300])
@pytest.mark.parametrize("bad", [-7, -1, 400, 2**40, -(2**40)])
def test_a_class_that_there_is_not(columns, bad, gpu):
    x, t = normal(50, columns), rng.integers(0, columns, 50)
    t[31] = bad

    def loss(x, t):
        return nn.cross_entropy(x, t)

    with pytest.raises(IndexError) as found:
        wg.compile(loss)(wg.asarray(x).to(gpu), wg.asarray(t).to(gpu)).item()
    with pytest.raises(IndexError) as wanted:
        loss(wg.asarray(x), wg.asarray(t)).item()
    assert str(bad) in str(found.value) or str(bad) not in str(wanted.value)


parts = st.lists(st.tuples(st.sampled_from(["map", "reduce", "join", "cast"]), st.integers(0, 9)),
                 min_size=2, max_size=7)


def random_program(parts):
    def f(x):
        values = [x]
        for kind, k in parts:
            a = values[k % len(values)]
            if kind == "map":
                values.append([wg.tanh, wg.sin, wg.abs, wg.sigmoid][k % 4](a))
            elif kind == "reduce":
                reduce = [wg.sum, wg.max, wg.min, wg.mean][k % 4]
                values.append(reduce(a, axis=-1, keepdims=True) * 0.25)
            elif kind == "cast":
                values.append(a.astype("float16").astype("float32"))
            else:
                values.append(a - values[-1] * 0.5)
        return values[-1] + values[len(values) // 2] + x
    return f


@settings(max_examples=40, deadline=None)
@given(parts, st.integers(1, 6), st.sampled_from([1, 2, 4, 5, 16, 33, 64, 100, 520]))
def test_random_rows(parts, rows, columns):
    if not any(device.type == "gpu" for device in wg.devices()):
        pytest.skip("no adapter")
    f, x = random_program(parts), wg.asarray(normal(rows, columns))
    got, want = wg.compile(f)(x.to("gpu")).numpy(), f(x).numpy()
    np.testing.assert_allclose(got, want, rtol=2e-2, atol=2e-2 * (1 + np.abs(want).max()))


steps = st.lists(st.tuples(st.sampled_from(["map", "reduce", "join", "line", "cast", "pick"]),
                           st.integers(0, 23)), min_size=2, max_size=9)
shapes = st.lists(st.sampled_from([1, 2, 3, 5, 8, 16, 33, 65, 130]), min_size=1, max_size=3)


def rows_of_axes(steps, shape, axes):
    """A program of rows along some axes: maps, reductions beside elements, positions, picks."""
    last = shape[axes[-1]]

    def f(x, at):
        values = [x]
        for kind, k in steps:
            a, b = values[k % len(values)], values[-1]
            if kind == "map":
                values.append([wg.tanh, wg.sin, wg.abs, wg.sigmoid][k % 4](a))
            elif kind == "reduce" and a.shape == x.shape:
                reduce = [wg.mean, wg.max, wg.min, wg.logsumexp, wg.var, wg.sum][k % 6]
                y = reduce(a, axis=axes, keepdims=True)
                values.append(wg.tanh(y * 0.125) if k % 6 == 5 else y)
            elif kind == "line":
                line = wg.arange(last, dtype=wg.float32, device=x.device) / last
                values.append(a - line.reshape([last if i == axes[-1] else 1
                                                for i in range(len(shape))]))
            elif kind == "cast":
                values.append(a.astype("float16").astype("float32"))
            elif kind == "pick" and len(axes) == 1 and a.shape == x.shape:
                values.append(wg.take_along_axis(a, at, axis=axes[0]))
            else:
                values.append(a - b * 0.5)
        return values[-1] * 0.5 + values[len(values) // 2], values[-1]
    return f


@settings(max_examples=80, deadline=None)
@given(steps, shapes, st.data())
def test_random_rows_along_axes(steps, shape, data):
    if not any(device.type == "gpu" for device in wg.devices()):
        pytest.skip("no adapter")
    axes = data.draw(st.sets(st.integers(0, len(shape) - 1), min_size=1))
    f = rows_of_axes(steps, shape, tuple(sorted(axes)))
    one = [1 if i in axes else n for i, n in enumerate(shape)]
    at = rng.integers(0, shape[max(axes)], one)
    x, at = wg.asarray(normal(*shape)), wg.asarray(at)
    for got, want in zip(wg.compile(f)(x.to("gpu"), at.to("gpu")), f(x, at), strict=True):
        got, want = got.numpy(), want.numpy()
        # A cast may round to the next float16.
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=4e-3, atol=4e-3 * (1 + np.abs(want).max()))


@pytest.mark.parametrize("shape", [(2,), (8, 2), (16, 3)])
def test_a_value_of_each_row_is_not_written_over_elements(shape, gpu):
    """Few bytes are rounded to as many as those of the elements, which other rows still read."""
    def f(x):
        y = wg.tanh(x)
        top = wg.max(y, axis=-1, keepdims=True)
        return top * 0.5 + y, top

    x = wg.asarray(normal(*shape))
    for got, want in zip(wg.compile(f)(x.to(gpu)), f(x), strict=True):
        near(got, want)
