"""Captured networks in which images lie with their channels innermost: the bits of eager code, for
nets of convolutions that gain from it, that do not, and that stand between."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import wengert as wg
from wengert import nn

from support import generator


class Net(nn.Module):
    """Blocks drawn from one-tap, by-channel, wide and strided convolutions, with normalisation,
    activations, residuals, gates of channels and pooling between them."""

    def __init__(self, blocks, channels):
        super().__init__()
        self.kinds, self.layers, width = blocks, nn.ModuleList(), channels[0]
        self.stem = nn.Conv2d(3, width, 3, stride=2, padding=1)
        for kind, wide in zip(blocks, channels[1:] * len(blocks), strict=False):
            parts = nn.ModuleList()
            if kind in ("expand", "pool"):
                parts.append(nn.Conv2d(width, wide, 1, bias=kind == "pool"))
                width = wide
            elif kind in ("deep", "strided", "dilated"):
                options = {"strided": {"stride": 2}, "dilated": {"dilation": 2}}.get(kind, {})
                options = {"padding": 2 if kind == "dilated" else 1, **options}
                parts.append(nn.Conv2d(width, width, 3, groups=width, bias=False, **options))
            elif kind == "wide":
                parts.append(nn.Conv2d(width, width, 3, padding=1))
            elif kind == "gate":
                parts.append(nn.Conv2d(width, 4, 1))
                parts.append(nn.Conv2d(4, width, 1))
            else:
                parts.append(nn.Conv2d(width, width, 1, bias=False))
            parts.append(nn.BatchNorm2d(width))
            self.layers.append(parts)

    def forward(self, x):
        x = self.stem(x).relu()
        for kind, parts in zip(self.kinds, self.layers, strict=True):
            y = x
            if kind == "gate":
                y = y.mean((2, 3), keepdims=True)
                y = x * parts[1](parts[0](y).relu()).sigmoid()
            else:
                y = parts[0](y)
            y = parts[-1](y)
            if kind == "pool":
                y = wg.nn.functional.avg_pool2d(y, 2) if min(y.shape[2:]) > 1 else y
            x = x + y if kind in ("residual", "wide", "deep") else y.clip(0.0, 6.0)
        return x, x.mean((2, 3))


KINDS = ["expand", "deep", "strided", "dilated", "wide", "gate", "residual", "pool"]


def settled(model):
    """The model in evaluation, with statistics that are not those of the start."""
    for name, t in model.named_buffers():
        if name.endswith("running_var"):
            variance = np.abs(generator(name).standard_normal(t.shape)) + 0.5
            t.assign(wg.asarray(variance.astype("f4")))
    return model.eval()


def same(got, want):
    for a, b in zip(got, want, strict=True):
        assert a.shape == b.shape
        assert a.numpy().tobytes() == b.numpy().tobytes()


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.sampled_from(KINDS), min_size=1, max_size=6),
    st.lists(st.sampled_from([8, 16, 20, 33, 48]), min_size=2, max_size=3),
    st.sampled_from([(1, 3, 17, 20), (2, 3, 32, 32), (3, 3, 9, 14)]),
)
def test_random_nets_have_the_bits_of_eager_code(blocks, channels, sizes):
    model = settled(Net(blocks, channels))
    x = wg.asarray(generator("image", *sizes).standard_normal(sizes).astype("f4"))
    with wg.no_grad():
        same(wg.compile(model)(x), model(x))


@pytest.mark.parametrize("number", [np.inf, np.nan, -0.0, 1e-42])
def test_special_weights_and_images(number):
    model = settled(Net(["expand", "deep", "residual", "strided"], [16, 40]))
    for i, (_, t) in enumerate(model.named_parameters()):
        w = t.detach().numpy().copy()
        w.ravel()[i % w.size] = number
        with wg.no_grad():
            t.assign(wg.asarray(w))
    x = generator("image").standard_normal((2, 3, 16, 18)).astype("f4")
    x[0, 1, 3, 3] = number
    x = wg.asarray(x)
    with wg.no_grad():
        got, want = wg.compile(model)(x), model(x)
    for a, b in zip(got, want, strict=True):
        a, b = a.numpy(), b.numpy()
        assert (np.isnan(a) == np.isnan(b)).all()
        whole = ~np.isnan(a)
        assert a[whole].tobytes() == b[whole].tobytes()


def test_training_through_such_a_net_has_the_bits_of_eager_code():
    def step(x, y, *weights):
        a, b, c = weights
        f = wg.nn.functional
        h = f.conv2d(x, a).relu()
        h = f.conv2d(h, b, padding=1, groups=32).relu()
        return ((f.conv2d(h, c).mean((2, 3)) - y) ** 2).sum()

    rng = generator("training")
    shapes = [(2, 16, 12, 12), (2, 8), (32, 16, 1, 1), (32, 1, 3, 3), (8, 32, 1, 1)]
    x, y, *weights = (wg.asarray(rng.standard_normal(s).astype("f4")) for s in shapes)
    gradients = wg.grad(step, argnums=(2, 3, 4))
    for got, want in zip(
        wg.compile(gradients)(x, y, *weights), gradients(x, y, *weights), strict=True
    ):
        assert got.numpy().tobytes() == want.numpy().tobytes()


def test_the_plan_says_where_channels_are_innermost():
    # The last convolution's result is one of the plan, in C order.
    model = settled(Net(["expand", "deep", "residual", "expand"], [32, 96, 16]))
    x = wg.asarray(np.zeros((1, 3, 32, 32), "f4"))
    with wg.no_grad():
        f = wg.compile(model, freeze=True)
        f(x)
        text = str(f.plan(x))
    lines = [line for line in text.splitlines() if "channels last" in line]
    assert len(lines) == 4, text
    assert all(re.search(r"\bconv\b", line) for line in lines), text


def test_results_lie_in_c_order():
    model = settled(Net(["expand", "deep"], [16, 32]))
    x = wg.asarray(generator("order").standard_normal((2, 3, 16, 16)).astype("f4"))
    with wg.no_grad():
        y, _ = wg.compile(model)(x)
    assert np.from_dlpack(y).flags["C_CONTIGUOUS"]
