"""Formulas of reductions along rows, of sizes that blocks take: the same bits in three modes."""

import numpy as np
import pytest

import wengert as wg
from wengert import nn

from modes import assert_same

SIZES = [(128, 768), (257, 1023), (9000, 33), (40000, 16), (30001, 7), (2, 3, 100, 300), (40, 9000)]
"""Of rows by lanes and by columns, odd ones, and ones longer than a block of a reduction."""

FEW = [(300, 300), (100, 100), (120, 399), (95, 300), (1000, 8)]
"""About as few elements as kernels leave to blocks of rows. Squares: what goes along columns may be
taken for what goes along rows."""

EDGES = [(0, 5), (5, 1), (1, 1), (1, 40000)]

FORMULAS = {
    "softmax": lambda x, d, w, b: nn.softmax(x, -1),
    "log_softmax": lambda x, d, w, b: nn.log_softmax(x, -1),
    "layer_norm": lambda x, d, w, b: nn.layer_norm(x, -1, w, b),
    "rms_norm": lambda x, d, w, b: nn.rms_norm(x, -1, w),
    "behind a computed row": lambda x, d, w, b: nn.layer_norm(x + wg.tanh(b), -1, w, b),
    "between neighbours": lambda x, d, w, b: nn.gelu(nn.layer_norm(x + d, -1, w, b)) * 0.5 + x,
}

GRADIENTS = {
    "softmax": lambda x, d, w, b: wg.sum(nn.softmax(x, -1) * d * w + b),
    "log_softmax": lambda x, d, w, b: wg.sum(nn.log_softmax(x, -1) * d * w + b),
    "layer_norm": lambda x, d, w, b: wg.sum(nn.layer_norm(x, -1, w, b) * d),
    "rms_norm": lambda x, d, w, b: wg.sum(nn.rms_norm(x, -1, w) * d + b),
}


def operands(sizes, dtype):
    random = np.random.default_rng(3)

    def made(*sizes):
        return wg.tensor(3 * random.standard_normal(sizes, dtype="f4")).astype(dtype)

    return made(*sizes), made(*sizes), made(sizes[-1]), made(sizes[-1])


@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.parametrize("sizes", SIZES + FEW + EDGES, ids=str)
def test_formulas(name, sizes):
    assert_same(FORMULAS[name], *operands(sizes, wg.float32))


@pytest.mark.parametrize("dtype", [wg.float64, wg.float16, wg.bfloat16], ids=str)
@pytest.mark.parametrize("name", FORMULAS)
def test_dtypes(name, dtype):
    for sizes in SIZES[1:4]:
        assert_same(FORMULAS[name], *operands(sizes, dtype))


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(name):
    gradient = wg.grad(GRADIENTS[name], argnums=(0, 1, 2, 3))
    for sizes in SIZES[:4] + FEW:
        assert_same(gradient, *operands(sizes, wg.float32), modes=["compiled"])


@pytest.mark.parametrize("name", FORMULAS)
def test_layouts(name):
    x, d, w, b = operands((400, 700), wg.float32)
    for view in (
        lambda x: x[::2],
        lambda x: x[:, ::2],
        lambda x: wg.flip(x, 1),
        lambda x: wg.permute_dims(x, (1, 0)),
        lambda x: wg.broadcast_to(x[:1], (400, 700)),
    ):
        seen = view(x)
        n = seen.shape[1]
        parts = (wg.broadcast_to(w[:1], (n,)), wg.concat([b, b])[:n])
        assert_same(FORMULAS[name], seen, view(d), *parts, modes=["compiled"])
