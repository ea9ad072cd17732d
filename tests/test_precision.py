"""Mixed precision: `autocast` by the declarations of ops, in every mode."""

import threading

import numpy as np
import pytest

import wengert as wg
from wengert import _core, nn, optim

HALVES = ["bfloat16", "float16"]
rng = np.random.default_rng(0)


def tensors(*shapes):
    return [wg.tensor(rng.standard_normal(s).astype("f")) for s in shapes]


X, W, IMAGES, KERNEL = tensors((4, 6), (5, 6), (2, 3, 8, 8), (4, 3, 3, 3))
LABELS = wg.tensor([0, 1, 2, 3])
Q = tensors((1, 2, 4, 8))[0]

# What is called in the narrow dtype and what in float32; the ops that a user meets first, by hand.
NARROW = {
    "matmul": lambda x: x @ x.T,
    "tensordot": lambda x: wg.tensordot(x, x, axes=2),
    "inner": lambda x: wg.inner(x, x),
    "einsum": lambda x: wg.einsum("ij,kj->ik", x, x),
    "linear": lambda x: nn.linear(x, W.astype(x.dtype), wg.ones(5)),
    "conv2d": lambda x: nn.conv2d(IMAGES.astype(x.dtype), KERNEL),
    "conv_transpose2d": lambda x: nn.conv_transpose2d(IMAGES.astype(x.dtype), KERNEL[:3]),
    "scaled_dot_product_attention": lambda x: nn.scaled_dot_product_attention(
        *[Q.astype(x.dtype)] * 3),
    "rnn_cell": lambda x: nn.rnn_cell(x, wg.zeros((4, 5)), W, wg.zeros((5, 5))),
}  # fmt: skip
WIDE = {
    "softmax": nn.softmax, "log_softmax": nn.log_softmax, "layer_norm": nn.layer_norm,
    "rms_norm": nn.rms_norm, "group_norm": lambda x: nn.group_norm(x, 2),
    "logsumexp": wg.logsumexp, "vector_norm": wg.vector_norm,
    "cross_entropy": lambda x: nn.cross_entropy(x, LABELS),
    "nll_loss": lambda x: nn.nll_loss(x, LABELS),
    "mse_loss": lambda x: nn.mse_loss(x, x * 0.5), "l1_loss": lambda x: nn.l1_loss(x, x * 0.5),
    "binary_cross_entropy_with_logits": lambda x: nn.binary_cross_entropy_with_logits(x, x),
}  # fmt: skip
FOLLOW = {
    "add": lambda x: x + 1.0, "exp": wg.exp, "relu": nn.relu, "sum": wg.sum, "mean": wg.mean,
    "gelu": nn.gelu, "reshape": lambda x: x.reshape(-1), "max": wg.max,
}  # fmt: skip


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("compiled", [False, True])
def test_dtypes_are_those_of_the_declarations(half, compiled):
    half = getattr(wg, half)
    run = wg.compile if compiled else lambda f: f
    table = {op["name"]: op["precision"] for op in _core._op_table() if op.get("precision")}
    for dtype in (wg.float32, half):
        x = X.astype(dtype)
        for cases, word, want in ((NARROW, "narrow", half), (WIDE, "wide", wg.float32),
                                  (FOLLOW, "follow", dtype)):  # fmt: skip
            for name, call in cases.items():
                with wg.autocast(half):
                    assert run(call)(x).dtype == want, name
                assert table.get(name, "follow") == word, name


def test_what_is_cast_and_what_is_not():
    double, ints = X.astype(wg.float64), wg.arange(4).reshape(2, 2)
    with wg.autocast(wg.bfloat16):
        assert (double @ double.T).dtype == (X @ double.T).dtype == wg.float64
        assert nn.softmax(double).dtype == wg.float64
        assert (ints @ ints).dtype == wg.int64
        got = X @ X.T
    half = X.astype(wg.bfloat16)
    assert got.tolist() == (half @ half.T).tolist(), "the op on cast operands, to the bit"
    for wrong in (wg.float32, wg.int32, wg.float64):
        with pytest.raises(ValueError, match=f"expected float16 or bfloat16: got {wrong}"):
            wg.autocast(wrong)
    assert _core._autocast() is None


def test_blocks_nest_and_belong_to_a_thread():
    def product():
        return (X @ X.T).dtype

    found = []
    with wg.autocast(wg.bfloat16):
        assert product() == wg.bfloat16
        with wg.autocast(wg.float16):
            assert product() == wg.float16
            with wg.autocast(enabled=False):
                assert product() == wg.float32
            assert product() == wg.float16
        assert product() == wg.bfloat16
        thread = threading.Thread(target=lambda: found.append(product()))
        thread.start()
        thread.join()
    assert found == [wg.float32] and product() == wg.float32
    assert wg.autocast(wg.float16)(product)() == wg.float16 and product() == wg.float32
    block = wg.autocast()
    with block, block:
        assert product() == wg.bfloat16
    with pytest.raises(KeyError), wg.autocast():
        raise KeyError
    assert product() == wg.float32


def test_a_compiled_function_is_traced_for_each_mode():
    product = wg.compile(lambda x: x @ x.T)
    for _ in range(2):
        assert product(X).dtype == wg.float32
        with wg.autocast(wg.bfloat16):
            assert product(X).dtype == wg.bfloat16
        with wg.autocast(wg.float16):
            assert product(X).dtype == wg.float16
    assert product.traces == 3
    assert "mixed precision was switched" in str(product.explain())
    assert "autocast to float16" in str(product.explain())


def network():
    wg.random.seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 4))


def grads(model, loss):
    for p in model.parameters():
        p.grad = None
    loss()
    return [p.grad.numpy().copy() for p in model.parameters()]


@pytest.mark.parametrize("half", HALVES)
def test_every_mode_gives_the_same_bits(half):
    """Eager, captured, with checkpoints, under vmap; backward inside the block or behind it."""
    model, half = network(), getattr(wg, half)

    def forward(x, f=model):
        with wg.autocast(half):
            return nn.cross_entropy(f(x), LABELS)

    def inside():
        with wg.autocast(half):
            nn.cross_entropy(model(X), LABELS).backward()

    want = grads(model, lambda: forward(X).backward())
    assert all(p.grad.dtype == wg.float32 for p in model.parameters())
    kept = wg.checkpoint(lambda x: model(x))
    for way in (
        inside,
        wg.compile(lambda: forward(X).backward()),
        wg.compile(inside),
        lambda: forward(X, kept).backward(),
        wg.compile(lambda: forward(X, kept).backward()),
    ):
        for a, b in zip(grads(model, way), want, strict=True):
            np.testing.assert_array_equal(a, b)

    def mapped(f):
        with wg.autocast(half):
            return wg.vmap(f)(X)

    assert mapped(lambda x: W @ x).dtype == half
    single = wg.stack([W.astype(half) @ x.astype(half) for x in X])
    np.testing.assert_allclose(
        mapped(lambda x: W @ x).astype(wg.float32).numpy(), single.astype(wg.float32).numpy(),
        rtol=0.02,
    )  # fmt: skip
    exact = grads(model, lambda: nn.cross_entropy(model(X), LABELS).backward())
    for a, b in zip(want, exact, strict=True):
        assert not np.array_equal(a, b)
        np.testing.assert_allclose(a, b, atol=0.02)


def test_rules_in_python_compute_what_they_say():
    dtypes = []

    class Double(wg.Function):
        @staticmethod
        def forward(cx, x):
            return x * 2.0

        @staticmethod
        def backward(cx, g):
            dtypes.append((g @ g.T).dtype)
            return g * 2.0

    x = wg.ones((2, 2), requires_grad=True)
    with wg.autocast():
        Double.apply(x).sum().backward()
    assert dtypes and set(dtypes) == {wg.float32} and x.grad.tolist() == [[2.0, 2.0]] * 2


def test_a_graph_made_by_hand_has_the_casts():
    with wg.Graph() as graph, wg.autocast(wg.bfloat16):
        x = wg.placeholder("x", (None, 6))
        y = x @ x.T
    got = wg.Session(graph).run(y, {x: X})
    half = X.astype(wg.bfloat16)
    assert got.dtype == wg.bfloat16 and got.tolist() == (half @ half.T).tolist()


@pytest.mark.parametrize("compiled", [False, True])
def test_float16_needs_it(compiled):
    """A gradient below the least float16 is there with a scale, and 0 without."""
    w = wg.ones(2, requires_grad=True)
    scaler = optim.GradScaler(init_scale=2.0**20)

    def gradient(scale):
        w.grad = None
        with wg.autocast(wg.float16):
            loss = (wg.stack([w, w]) @ wg.full((2, 1), 1e-5)).sum().astype(wg.float32) * 1e-6
        scale(loss).backward()

    plain, with_scale = (lambda: gradient(lambda x: x)), (lambda: gradient(scaler.scale))
    if compiled:
        plain, with_scale = wg.compile(plain), wg.compile(with_scale)
    plain()
    assert w.grad.tolist() == [0.0, 0.0]
    with_scale()
    optimizer = optim.SGD([w], lr=1.0)
    scaler.unscale(optimizer)
    np.testing.assert_allclose(w.grad.numpy(), 2e-11, rtol=0.01)
