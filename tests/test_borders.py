"""Modules of borders and of distances; convolutions whose borders are no zeros."""

import numpy as np
import pytest

import wengert as wg
from wengert import nn

from support import array, same

MODES = {"Reflection": "reflect", "Replication": "edge", "Circular": "wrap", "Zero": "constant"}


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("kind", MODES)
def test_borders_are_numpy_s(kind, rank):
    x, sides = array(2, 3, *range(4, 4 + rank)), tuple(range(1, 2 * rank + 1))
    sides = tuple(min(n, 3) for n in sides)
    layer = getattr(nn, f"{kind}Pad{rank}d")(sides)
    pairs = [sides[2 * i : 2 * i + 2] for i in range(rank)][::-1]
    want = np.pad(x.numpy(), [(0, 0), (0, 0), *pairs], mode=MODES[kind])
    np.testing.assert_array_equal(layer(x).numpy(), want)
    same(layer(x[0]), layer(x)[0])
    with pytest.raises(ValueError, match=f"one int or {2 * rank}, got 7"):
        getattr(nn, f"{kind}Pad{rank}d")((1,) * 7)
    with pytest.raises(wg.ShapeError, match="rank 7"):
        layer(wg.ones((1,) * 7))


def test_a_border_of_one_value():
    got = nn.ConstantPad1d((1, -1), 2.5)(wg.ones((1, 3)))
    assert got.tolist() == [[2.5, 1.0, 1.0]]


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_convolutions_pad_by_their_mode(mode, rank):
    x = array(2, 3, *range(5, 5 + rank))
    layer = getattr(nn, f"Conv{rank}d")(3, 4, 2, padding=1, padding_mode=mode)
    kind = {"reflect": "Reflection", "replicate": "Replication", "circular": "Circular"}[mode]
    bordered = getattr(nn, f"{kind}Pad{rank}d")(1)(x)
    convolve = getattr(nn, f"conv{rank}d")
    same(layer(x), convolve(bordered, layer.weight, layer.bias))
    layer = getattr(nn, f"Conv{rank}d")(3, 4, 4, padding="same", padding_mode=mode)
    assert layer(x).shape == (2, 4, *x.shape[2:])
    with pytest.raises(ValueError, match="padding_mode must be one of"):
        getattr(nn, f"Conv{rank}d")(3, 4, 2, padding_mode="mirror")


def test_distances_are_their_functions():
    a, b = array(3, 4), array(3, 4, seed=1)
    same(nn.CosineSimilarity()(a, b), nn.cosine_similarity(a, b))
    same(nn.PairwiseDistance(p=1.0, keepdims=True)(a, b),
         nn.pairwise_distance(a, b, 1.0, keepdims=True))  # fmt: skip
