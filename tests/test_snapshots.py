"""Plans of known models as text, so that a change in fusion or order shows in review.

`make snapshots` writes them anew.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from test_capture_training import RUNS, Bench, batches, images, lenet

import wengert as wg
from wengert import nn, optim

from support import array

FOLDER = Path(__file__).parent / "snapshots"
# The shape of a group among the steps of a block.
INNER = r"^(    .* = [a-z_, ]+) \(\d+(?:, \d+)*\)"
UPDATE = os.environ.get("WENGERT_UPDATE_SNAPSHOTS") == "1"


def training(name):
    bench = Bench(name, True)
    (args,) = batches((8,))
    return bench.step, args


def inference():
    wg.random.seed(0)
    model = lenet()
    model.eval()
    return wg.compile(lambda x: nn.softmax(model(images(x)), axis=-1)), (array(8, 24),)


def normalised():
    f = wg.compile(lambda x, w, b: nn.gelu(nn.layer_norm(x, weight=w, bias=b)) + x)
    return f, (array(16, 32), array(32), array(32))


def chain():
    return wg.compile(lambda x: ((x * 2 + 1).tanh().exp() - x).sum(axis=1)), (array(64, 64),)


def optimised():
    """What the passes find: equal values, views that cancel, constants, what nobody reads."""

    def f(x):
        a = (x.T.T * 1.0).exp()
        b = x.exp()
        x.sum(axis=0)
        return a + b + wg.arange(4.0).sum()

    return wg.compile(f), (array(3, 4),)


def curvature():
    f = wg.grad(lambda x: (x @ x).sin().sum())
    return wg.compile(wg.grad(lambda x: (f(x) ** 2).sum())), (array(5, 5),)


def attention():
    f = wg.compile(lambda q, k, v: nn.scaled_dot_product_attention(q, k, v))
    return f, (array(2, 4, 8), array(2, 6, 8), array(2, 6, 8))


def recurrent():
    """A recurrence by `scan`, one step of SGD."""
    w, u = [wg.tensor(array(5, 5, seed=i), requires_grad=True) for i in (1, 2)]

    @wg.compile
    def step(xs):
        for p in (w, u):
            p.grad = None
        last, ys = wg.scan(lambda h, x: ((h @ w + x @ u).tanh(), h.sum()), wg.zeros((3, 5)), xs)
        loss = (last * last).mean() + ys.sum()
        loss.backward()
        with wg.no_grad():
            for p in (w, u):
                p -= 0.1 * p.grad
        return loss

    return step, (array(6, 3, 5),)


def iterated():
    """The slope of what Newton's method finds, as long as it takes."""

    def root(a):
        def goes_on(x, last):
            return (x - last).abs().max() > 1e-4

        return wg.while_loop(goes_on, lambda x, last: ((x + a / x) / 2, x), (a, a * 0.0))[0]

    return wg.compile(wg.grad(lambda a: root(a).sum())), (array(4).abs() + 1.0,)


def branched():
    """The gradient of a choice, with what the rules of both branches keep."""

    def f(x, w):
        h = x @ w
        return wg.cond(h.sum() > 0, lambda h: h.tanh().sum(), lambda h: (h * h).mean(), h)

    return wg.compile(wg.grad(f, argnums=(0, 1))), (array(3, 4), array(4, 2, seed=1))


def examples():
    """A gradient for each example of a batch."""

    def loss(w, x, y):
        return nn.cross_entropy((x @ w).tanh()[None], y[None])

    each = wg.compile(wg.vmap(wg.grad(loss), in_axes=(None, 0, 0)))
    return each, (array(4, 3), array(8, 4, seed=1), wg.arange(8) % 3)


def checkpointed():
    """Blocks of which only the inputs are kept, one step of SGD."""
    wg.random.seed(0)
    blocks = [nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)) for _ in range(2)]
    optimizer = optim.SGD([p for block in blocks for p in block.parameters()], lr=0.1)

    @wg.compile
    def step(x):
        optimizer.zero_grad()
        for block in blocks:
            x = wg.checkpoint(block)(x)
        loss = (x * x).mean()
        loss.backward()
        optimizer.step()
        return loss

    return step, (array(32, 8),)


def rows_of_softmax():
    return wg.compile(lambda x: nn.softmax(x, axis=-1)), (array(512, 1024),)


def rows_of_attention():
    def f(q, k, v):
        return nn.scaled_dot_product_attention(q, k, v, is_causal=True)

    return wg.compile(f), [array(4, 8, 128, 64, seed=i) for i in range(3)]


def rows_of_norm():
    """The gradients of a layer norm, whose sums over all rows take up the blocks."""

    def loss(x, w, b):
        return (nn.layer_norm(x, weight=w, bias=b) ** 2).sum()

    return wg.compile(wg.grad(loss, argnums=(0, 1, 2))), (array(1024, 768), array(768), array(768))


def wide_layer():
    """A product with its epilogue, and a sum over all rows."""
    f = wg.compile(lambda x, w: nn.gelu(x @ w).sum(axis=0))
    return f, (array(1024, 256), array(256, 1024))


def eight_bits():
    """A product with a prologue, its weights, and an epilogue."""
    f = wg.compile(lambda x, w, s, b: nn.gelu(x @ (w.astype(wg.float32) * s) + b))
    w = wg.asarray(np.arange(256 * 512).reshape(256, 512).astype(np.int8))
    return f, (array(64, 256), w, array(512), array(512))


def wide_transformer():
    """The gradients of a transformer block at a size where blocks pay."""
    wg.random.seed(0)
    norm, attention = nn.LayerNorm(256), nn.MultiHeadAttention(256, 4)
    wide = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256))

    @wg.compile
    def step(x):
        y = x + attention(norm(x), is_causal=True)
        loss = ((y + wide(y)) ** 2).mean()
        loss.backward()
        return loss

    return step, (array(4, 128, 256),)


# Plans with block fusions: how many blocks there are and how high follows from caches and threads.
BLOCKS = {
    "rows_softmax": rows_of_softmax,
    "rows_attention": rows_of_attention,
    "rows_norm_gradient": rows_of_norm,
    "rows_wide_layer": wide_layer,
    "rows_transformer_step": wide_transformer,
}

MODELS = {
    **BLOCKS,
    **{f"{name} step".replace(" ", "_"): lambda name=name: training(name) for name in RUNS},
    "lenet_inference": inference,
    "eight_bit_weights": eight_bits,
    "norm_and_gelu": normalised,
    "elementwise_chain": chain,
    "optimised": optimised,
    "second_derivative": curvature,
    "attention_inference": attention,
    "scan_recurrent_step": recurrent,
    "while_loop_gradient": iterated,
    "cond_gradient": branched,
    "per_example_gradients": examples,
    "checkpointed_step": checkpointed,
}


def text_of(name):
    f, args = MODELS[name]()
    with wg.enable_grad() if "step" in name else wg.no_grad():
        plan = f.plan(*args)
    if name in BLOCKS:
        text = re.sub(r"block fusion in \d+ blocks", "block fusion in blocks", str(plan))
        text = re.sub(INNER, r"\1 (block)", text, flags=re.MULTILINE)
        return f"{len(plan)} steps\n{text}"
    return f"{len(plan)} steps, {plan.naive_bytes} bytes of results\n{plan}"


@pytest.fixture(scope="module")
def texts():
    """All plans, made for the base instruction set: what a product takes for itself, and so the
    best order of the steps, is another for each."""
    command, base = [sys.executable, __file__], os.environ | {"WENGERT_ISA": "base"}
    out = subprocess.run(command, env=base, capture_output=True, text=True, check=False)
    assert out.returncode == 0, out.stderr
    return json.loads(out.stdout)


@pytest.mark.parametrize("name", MODELS)
def test_a_plan_is_the_one_that_was_reviewed(name, texts):
    path = FOLDER / f"{name}.txt"
    if UPDATE:
        FOLDER.mkdir(exist_ok=True)
        path.write_text(texts[name])
    assert path.exists(), "run `make snapshots` and review what it wrote"
    assert texts[name] == path.read_text(), "run `make snapshots` and review what changed"


def test_every_snapshot_has_a_model():
    assert {path.stem for path in FOLDER.glob("*.txt")} == set(MODELS)


if __name__ == "__main__":
    print(json.dumps({name: text_of(name) for name in MODELS}))
