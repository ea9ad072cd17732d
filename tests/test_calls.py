"""Calls of composites are one node each; those with kernels stay near their formulas."""

import numpy as np
import pytest
from test_modes import program_of
from test_ops_values import OPS, samples

import wengert as wg
from wengert import nn

from support import dtypes_of, label, live_bytes

#: The most ops that an inline composite emits, promotion included. `roll` is three for each axis.
MOST_NODES = 6
#: More are the borders of `pad`, found by index for each axis, and random numbers made of bits.
MORE_NODES = {"pad": 14, "random.normal_like": 11, "random.uniform_like": 11}

LEADING = [((), ()), ((2,), (2,)), ((2, 3), (3,)), ((1, 3), (2, 1))]
LENGTHS = [(1, 1), (5, 7), (70, 130), (130, 70)]


def drawn(rng, *shape, dtype="float32"):
    return wg.tensor(rng.standard_normal(shape)).astype(getattr(wg, dtype))


def nodes():
    return wg.graph_stats()["nodes"]


@pytest.mark.parametrize("op", OPS, ids=label)
def test_a_call_is_one_node_unless_it_is_inline(op):
    for sample in samples(op)[:2]:
        program, values = program_of(op, sample, dtypes_of(op, sample)[-1])
        graph = wg.compile(program).graph(*values, optimized=False)
        kinds = [node.op for node in graph.nodes if node.op not in ("input", "constant", "result")]
        if op.get("inline", True):
            assert len(kinds) <= MORE_NODES.get(label(op), MOST_NODES), kinds
        else:
            # Samples of `searchsorted`, `categorical` and losses of signs make an operand first.
            *before, last = kinds
            assert last == op["name"] and set(before) <= {"sort", "multiply", "subtract"}, kinds


@pytest.mark.parametrize("call, sorting", [
    (lambda x: wg.topk(x, 3, axis=0), "topk_indices"),
    (lambda x: wg.sort_with_indices(x, axis=0, descending=True), "argsort"),
], ids=["topk", "sort_with_indices"])  # fmt: skip
def test_an_order_that_was_found_serves_the_gradient(call, sorting):
    rng = np.random.default_rng(0)
    x = wg.tensor(rng.permutation(40).reshape(8, 5).astype("f"), requires_grad=True)
    before = nodes()
    values, indices = call(x)
    assert nodes() == before + 1
    assert indices.dtype == wg.int64 and not indices.requires_grad
    weights = wg.tensor(rng.standard_normal(values.shape).astype("f"))
    (values * weights).sum().backward()
    want = np.zeros(x.shape, "f")
    np.put_along_axis(want, indices.numpy(), weights.numpy(), 0)
    assert x.grad.numpy().tobytes() == want.tobytes()
    grad = wg.compile(wg.grad(lambda v: (call(v)[0] * weights).sum()))
    assert grad(x.detach()).numpy().tobytes() == want.tobytes()
    ops = [node.op for node in grad.graph(x.detach()).nodes]
    assert ops.count(sorting) == 1 and not ({"sort", "argsort"} - {sorting}) & set(ops)


def attention(q, k, v, mask=None, is_causal=False, scale=None):
    """The definition, in float64."""
    q, k, v = (x.numpy().astype("float64") for x in (q, k, v))
    scores = q @ np.swapaxes(k, -1, -2) * (1 / np.sqrt(q.shape[-1]) if scale is None else scale)
    if mask is not None:
        m = mask.numpy()
        scores = np.where(m, scores, -np.inf) if m.dtype == bool else scores + m
    if is_causal:
        scores = np.where(np.tril(np.ones(scores.shape[-2:], bool)), scores, -np.inf)
    with np.errstate(invalid="ignore"):
        e = np.exp(scores - scores.max(-1, keepdims=True))
        return (e / e.sum(-1, keepdims=True)) @ v


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("masked", [None, "bool", "float32"])
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("leading", LEADING, ids=str)
def test_attention_is_near_its_definition_in_every_mode(leading, lengths, masked, is_causal):
    rng = np.random.default_rng(3)
    (a, b), (n, s) = leading, lengths
    q, k, v = drawn(rng, *a, n, 8), drawn(rng, *b, s, 8), drawn(rng, *b, s, 5)
    mask = None
    if masked:
        values = rng.standard_normal((n, s))
        values[:, 0] = 1.0
        mask = wg.tensor(values > 0 if masked == "bool" else values.astype("f"))

    def call(q, k, v):
        return nn.scaled_dot_product_attention(q, k, v, mask=mask, is_causal=is_causal)

    y = call(q, k, v)
    np.testing.assert_allclose(y.numpy(), attention(q, k, v, mask, is_causal), rtol=2e-5, atol=2e-6)
    assert np.array_equal(wg.compile(call)(q, k, v).numpy(), y.numpy())
    grad = wg.grad(lambda *xs: (call(*xs) * call(*xs)).sum(), argnums=(0, 1, 2))
    eager, compiled = grad(q, k, v), wg.compile(grad)(q, k, v)
    exact = grad(*(x.astype(wg.float64) for x in (q, k, v)))
    for one, two, want in zip(eager, compiled, exact, strict=True):
        assert np.array_equal(one.numpy(), two.numpy())
        np.testing.assert_allclose(one.numpy(), want.numpy(), rtol=1e-4, atol=3e-5)


def test_gradients_of_attention_are_those_of_its_formula():
    """Kernels on the CPU; formulas on the reference device."""
    rng, gradients = np.random.default_rng(5), []
    arrays = [rng.standard_normal(s) for s in ((2, 6, 4), (2, 9, 4), (2, 9, 3), (6, 9))]
    for device in ("cpu", "reference"):
        xs = [wg.tensor(a, device=device, requires_grad=True) for a in arrays]
        y = nn.scaled_dot_product_attention(*xs[:3], mask=xs[3])
        first = wg.gradients((y * y * y).sum(), xs, create_graph=True)
        second = wg.gradients(sum((g * g).sum() for g in first), xs)
        gradients.append([g.detach().to("cpu").numpy() for g in (*first, *second)])
    for one, two in zip(*gradients, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("check", [True, "reference"])
def test_a_run_with_attention_is_checked(check):
    x = drawn(np.random.default_rng(8), 2, 9, 4)
    grad = wg.grad(lambda x: (nn.scaled_dot_product_attention(x, x, x) ** 2).sum())
    with wg.config(check=check):
        assert np.array_equal(wg.compile(grad)(x).numpy(), grad(x).numpy())


def test_an_example_of_attention_is_the_same_alone_and_beside_others():
    rng = np.random.default_rng(7)
    q, k, v = (drawn(rng, 3, 2, 50, 16) for _ in range(3))
    all_of_them = nn.scaled_dot_product_attention(q, k, v, is_causal=True)
    one = nn.scaled_dot_product_attention(q[1, :1], k[1, :1], v[1, :1], is_causal=True)
    assert np.array_equal(all_of_them[1, :1].numpy(), one.numpy())
    mapped = wg.vmap(lambda *xs: nn.scaled_dot_product_attention(*xs, is_causal=True))(q, k, v)
    np.testing.assert_allclose(mapped.numpy(), all_of_them.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("compiled", [False, True])
def test_attention_takes_no_square_of_its_length(compiled):
    rng, n = np.random.default_rng(1), 1500
    xs = [drawn(rng, 1, n, 16) for _ in range(3)]
    for x in xs:
        x.requires_grad = True

    def step():
        y = nn.scaled_dot_product_attention(*xs, is_causal=True)
        return wg.gradients(y.sum(), xs)

    run = wg.compile(step) if compiled else step
    run(), run()
    base = live_bytes()
    wg.reset_peak_memory()
    run()
    assert wg.memory_stats()["peak_bytes"] - base < n * n


def test_saved_values_of_a_norm_are_not_computed_again():
    """Backward reads the mean and the inverse deviation."""
    x = drawn(np.random.default_rng(2), 8, 16)
    graph = wg.compile(wg.grad(lambda x: (nn.layer_norm(x) * x).sum())).graph(x, optimized=False)
    parts = [node for node in graph.nodes if node.op == "result"]
    read = [node.inputs[0].op for node in parts]
    assert read.count("layer_norm") == 2 and "layer_norm_gradients" in read


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("axis", [-1, (1, 2), (0, 2)], ids=str)
@pytest.mark.parametrize("parameters", ["", "w", "b", "wb"])
def test_gradients_of_a_norm_by_its_kernel_have_the_bits_of_their_formula(dtype, axis, parameters):
    """Eager gradients run the kernel where that takes the operands; plans fuse the formula."""
    rng = np.random.default_rng(4)
    x = drawn(rng, 4, 5, 6, dtype=dtype)
    own = [x.shape[i] for i in (axis if isinstance(axis, tuple) else (axis,))]
    given = {name: drawn(rng, *own, dtype=dtype) for name in parameters}
    g = drawn(rng, 4, 5, 6, dtype=dtype)

    def loss(x, given):
        y = nn.layer_norm(x, axis, given.get("w"), given.get("b"))
        return (y * g).sum()

    for wanted in [(0,), (1,), (0, 1)]:
        if wanted != (0,) and not given:
            continue
        grad = wg.grad(loss, argnums=wanted)
        with wg.config(check=True):
            want = wg.pytree.flatten(wg.compile(grad)(x, given))[0]
        for _ in range(3):
            found = wg.pytree.flatten(grad(x, given))[0]
            for a, b in zip(found, want, strict=True):
                assert a.dtype == b.dtype
                np.testing.assert_array_equal(a.numpy(), b.numpy())
        with wg.check_finite():
            for a, b in zip(wg.pytree.flatten(grad(x, given))[0], want, strict=True):
                np.testing.assert_array_equal(a.numpy(), b.numpy())


def test_an_index_is_one_entry():
    x = wg.ones((4, 3), requires_grad=True)
    before = nodes()
    y = x[1]
    assert nodes() - before == 1
    (g,) = wg.gradients((y * y).sum(), [x], create_graph=True)
    assert g.tolist() == [[0, 0, 0], [2, 2, 2], [0, 0, 0], [0, 0, 0]]
    (g,) = wg.gradients((g * g).sum(), [x])
    assert g[1].tolist() == [8, 8, 8]


def calls_of(f, *values):
    """How often a function calls attention and its gradient as one node, and its products."""
    graph = wg.compile(f).graph(*values, optimized=False)
    ops = [node.op for node in graph.nodes]
    names = "scaled_dot_product_attention", "attention_gradients", "contract"
    return tuple(ops.count(name) for name in names)


#: Shapes of one example's q, k, v and mask, and which of them have examples.
EXAMPLES = [
    (((5, 4), (7, 4), (7, 3)), None, (0, 0, 0, None)),
    (((5, 4), (2, 7, 4), (7, 3)), None, (0, 1, None, None)),
    (((5, 4), (2, 7, 4), (7, 3)), None, (0, None, None, None)),
    (((3, 1, 5, 4), (2, 7, 4), (7, 3)), (5, 7), (None, 0, 0, None)),
    (((2, 5, 4), (7, 4), (2, 7, 3)), (5, 7), (0, 0, 0, 0)),
    (((5, 4), (7, 4), (7, 3)), (7,), (0, None, 0, 0)),
    (((5, 4), (2, 7, 4), (7, 3)), (2, 5, 7), (None, None, None, 0)),
    (((5, 4), (2, 7, 4), (7, 3)), (1, 7), (None, 0, None, 0)),
]


@pytest.mark.parametrize("dtype", ["bool", "float32"])
@pytest.mark.parametrize("shapes, mask, axes", EXAMPLES, ids=str)
def test_attention_on_examples_is_one_call_and_a_loop_over_them(shapes, mask, axes, dtype):
    rng, n = np.random.default_rng(11), 3

    def examples(shape, axis, values):
        if axis is None:
            return values(shape)
        return wg.stack([values(shape) for _ in range(n)], axis=axis)

    def masks(shape):
        values = rng.standard_normal(shape)
        return wg.tensor((values > -0.5) if dtype == "bool" else values.astype("f"))

    xs = [examples(s, a, lambda s: drawn(rng, *s)) for s, a in zip(shapes, axes, strict=False)]
    if mask is not None:
        xs.append(examples(mask, axes[3], masks))
    axes = axes[: len(xs)]

    def attend(q, k, v, mask=None):
        return nn.scaled_dot_product_attention(q, k, v, mask=mask, scale=0.5)

    def gradients(*xs):
        loss = lambda *heads: (attend(*heads, *xs[3:]) ** 2).sum()  # noqa: E731
        return wg.grad(loss, argnums=(0, 1, 2))(*xs[:3])

    def one(x, axis, i):
        return x if axis is None else x[(slice(None),) * axis + (i,)]

    for f, calls in (attend, (1, 0, 0)), (gradients, (1, 1, 0)):
        mapped = wg.vmap(f, in_axes=axes)
        assert calls_of(mapped, *xs) == calls
        found, compiled = mapped(*xs), wg.compile(mapped)(*xs)
        loop = [f(*(one(x, axis, i) for x, axis in zip(xs, axes, strict=True))) for i in range(n)]
        if f is attend:
            found, compiled, loop = [found], [compiled], [[y] for y in loop]
        for k, (x, y) in enumerate(zip(found, compiled, strict=True)):
            assert np.array_equal(x.numpy(), y.numpy(), equal_nan=True)
            want = np.stack([parts[k].numpy() for parts in loop])
            np.testing.assert_array_equal(x.numpy(), want)
    loss = lambda *heads: (wg.vmap(attend, in_axes=axes)(*heads, *xs[3:]) ** 2).sum()  # noqa: E731
    outer = wg.grad(loss, argnums=(0, 1, 2))
    assert calls_of(outer, *xs[:3]) == (1, 1, 0)
    exact = [x.astype(wg.float64) for x in xs[:3]]
    for x, y, want in zip(outer(*xs[:3]), wg.compile(outer)(*xs[:3]), outer(*exact), strict=True):
        np.testing.assert_array_equal(x.numpy(), y.numpy())
        np.testing.assert_allclose(x.numpy(), want.numpy(), rtol=1e-4, atol=3e-5)


def test_attention_on_examples_of_examples_and_on_none():
    rng = np.random.default_rng(12)
    q, k, v = (drawn(rng, 2, 3, 6, 4) for _ in range(3))
    once = wg.vmap(nn.scaled_dot_product_attention, in_axes=(0, 0, None))
    twice = wg.vmap(once)
    assert calls_of(twice, q, k, v[:, 0]) == (1, 0, 0)
    want = nn.scaled_dot_product_attention(q, k, v[:, :1])
    assert np.array_equal(twice(q, k, v[:, 0]).numpy(), want.numpy())
    none = wg.vmap(nn.scaled_dot_product_attention)(*(x[:0, 0] for x in (q, k, v)))
    assert none.shape == (0, 6, 4)
    # What no example decides is computed once.
    shared = wg.vmap(lambda x: x + nn.scaled_dot_product_attention(k, k, v).sum())
    graph = wg.compile(shared).graph(q, optimized=False)
    (call,) = (x for x in graph.nodes if x.op == "scaled_dot_product_attention")
    assert tuple(call.shape) == (2, 3, 6, 4)


def test_a_jacobian_of_attention_maps_the_call_of_its_gradient():
    """The cotangent alone has examples there."""
    rng = np.random.default_rng(13)
    q, k, v = drawn(rng, 4, 3), drawn(rng, 2, 5, 3), drawn(rng, 5, 2)
    jacobian = wg.jacobian(nn.scaled_dot_product_attention, argnums=0)
    assert calls_of(jacobian, q, k, v) == (1, 1, 0)
    exact = (x.astype(wg.float64) for x in (q, k, v))
    np.testing.assert_allclose(jacobian(q, k, v).numpy(), jacobian(*exact).numpy(), atol=1e-5)


def test_attention_on_examples_is_refused_in_the_sizes_of_one():
    with pytest.raises(wg.ShapeError, match=r"q \(5, 4\) and k \(7, 3\)"):
        wg.vmap(nn.scaled_dot_product_attention)(
            wg.ones((2, 5, 4)), wg.ones((2, 7, 3)), wg.ones((2, 7, 3))
        )


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_backward_of_a_pool_reads_its_maxima_and_shares_among_equal_ones(dtype):
    rng = np.random.default_rng(14)
    values = rng.integers(-2, 3, (2, 3, 6, 8)).astype("f")
    values.flat[::9], values.flat[::31] = -np.inf, np.nan
    x = wg.tensor(values).astype(getattr(wg, dtype))
    w = wg.tensor(rng.standard_normal((2, 3, 3, 4))).astype(x.dtype)
    pooled = wg.grad(lambda x: (nn.max_pool2d(x, 2) * w).sum())
    ops = [node.op for node in wg.compile(pooled).graph(x, optimized=False).nodes]
    assert "max_pool2d" in ops and "max" not in ops

    def blocks(x):
        return (x.reshape((2, 3, 3, 2, 4, 2)).max(axis=(3, 5)) * w).sum()

    want = wg.grad(blocks)(x).numpy()
    for found in (pooled(x), pooled(x), wg.compile(pooled)(x), wg.vmap(pooled)(x[None])[0]):
        np.testing.assert_array_equal(found.numpy(), want)
    hits = values.reshape(2, 3, 3, 2, 4, 2).transpose(0, 1, 2, 4, 3, 5).reshape(-1, 4)
    count = (hits == hits.max(1, keepdims=True)).sum(1)
    assert {1, 2, 3} <= set(count.tolist())
