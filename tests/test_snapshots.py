"""Plans of known models as text, so that a change in fusion or order shows in review.

`make snapshots` writes them anew.
"""

import os
from pathlib import Path

import pytest
from test_capture_training import RUNS, Bench, batches, images, lenet

import wengert as wg
from wengert import nn

from support import generator

FOLDER = Path(__file__).parent / "snapshots"
UPDATE = os.environ.get("WENGERT_UPDATE_SNAPSHOTS") == "1"


def array(*shape, seed=0):
    return wg.asarray(generator("snapshots", seed).standard_normal(shape).astype("float32"))


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


MODELS = {
    **{f"{name} step".replace(" ", "_"): lambda name=name: training(name) for name in RUNS},
    "lenet_inference": inference,
    "norm_and_gelu": normalised,
    "elementwise_chain": chain,
    "optimised": optimised,
    "second_derivative": curvature,
    "attention_inference": attention,
}


@pytest.mark.parametrize("name", MODELS)
def test_a_plan_is_the_one_that_was_reviewed(name):
    f, args = MODELS[name]()
    with wg.enable_grad() if "step" in name else wg.no_grad():
        plan = f.plan(*args)
    text = f"{len(plan)} steps, {plan.naive_bytes} bytes of results\n{plan}"
    path = FOLDER / f"{name}.txt"
    if UPDATE:
        FOLDER.mkdir(exist_ok=True)
        path.write_text(text)
    assert path.exists(), "run `make snapshots` and review what it wrote"
    assert text == path.read_text(), "run `make snapshots` and review what changed"


def test_every_snapshot_has_a_model():
    assert {path.stem for path in FOLDER.glob("*.txt")} == set(MODELS)
