"""Convolutions of the kinds that have kernels of their own: values against sums in float64, and the
same bits in every mode, for one example alone, and for any number of threads."""

import numpy as np
import pytest

import wengert as wg
from wengert import nn

from support import generator

# Channels of the input and of the result, groups, sizes, taps, stride, dilation, padding.
BY_CHANNEL = [
    (5, 5, 5, (14, 14), (3, 3), 1, 1, 1),
    (3, 3, 3, (7, 7), (3, 3), 1, 1, 1),
    (3, 3, 3, (28, 30), (3, 3), 2, 1, 1),
    (2, 2, 2, (95, 90), (3, 3), 1, 1, 1),
    (2, 6, 2, (9, 33), (3, 3), 1, 1, 1),
    (4, 8, 4, (6, 17), (5, 3), 1, 2, 3),
    (3, 3, 3, (3, 2), (3, 3), 1, 1, 2),
    (2, 4, 2, (16, 15), (2, 4), 3, 1, 0),
    (32, 32, 32, (7, 7), (3, 3), 1, 1, 1),
    (20, 20, 20, (14, 14), (3, 3), 2, 1, 1),
    (17, 17, 17, (28, 30), (3, 3), 1, 1, 1),
    (16, 16, 16, (61, 57), (3, 3), 2, 1, 1),
    (48, 48, 48, (9, 40), (5, 5), 1, 2, 4),
]
OF_ONE_TAP = [
    (40, 64, 1, (7, 7), (1, 1), 1, 1, 0),
    (300, 48, 1, (14, 14), (1, 1), 1, 1, 0),
    (70, 96, 1, (28, 28), (1, 1), 1, 1, 0),
    (520, 160, 1, (7, 7), (1, 1), 1, 1, 0),
    (33, 24, 1, (40, 31), (1, 1), 1, 1, 0),
    (64, 128, 1, (14, 14), (1, 1), 2, 1, 0),
    (3, 2, 1, (1, 1), (1, 1), 1, 1, 0),
]
OTHERS = [
    (3, 32, 1, (33, 40), (3, 3), 2, 1, 1),
    (130, 64, 1, (7, 7), (3, 3), 1, 1, 1),
    (48, 80, 2, (14, 14), (3, 3), 1, 1, 1),
]
CASES = BY_CHANNEL + OF_ONE_TAP + OTHERS


def drawn(case, batch=3):
    (c, o, groups, sizes, taps, *_), rng = case, generator("convolutions", str(case))
    x = rng.standard_normal((batch, c, *sizes)).astype(np.float32)
    return x, rng.standard_normal((o, c // groups, *taps)).astype(np.float32)


def convolved(case, x, w):
    _, _, groups, _, _, stride, dilation, padding = case
    return nn.conv2d(x, w, None, stride, padding, dilation, groups)


def windows(case, x):
    """Sample, channel, place, tap: what each tap reads, of padded float64."""
    _, _, _, _, taps, stride, dilation, padding = case
    around = [(0, 0), (0, 0), (padding, padding), (padding, padding)]
    reach = [dilation * (n - 1) + 1 for n in taps]
    shown = np.lib.stride_tricks.sliding_window_view(
        np.pad(x.astype(np.float64), around), reach, axis=(2, 3))
    return shown[:, :, ::stride, ::stride, ::dilation, ::dilation]


def summed(case, x, w):
    groups, shown = case[2], windows(case, x)
    n, c, p, q, *taps = shown.shape
    shown = shown.reshape(n, groups, c // groups, p, q, *taps)
    weights = w.astype(np.float64).reshape(groups, -1, c // groups, *taps)
    return np.einsum("ngcpqkl,gockl->ngopq", shown, weights).reshape(n, -1, p, q)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_values_and_gradients_are_those_of_sums(case):
    x, w = drawn(case)
    a, b = wg.tensor(x, requires_grad=True), wg.tensor(w, requires_grad=True)
    y = convolved(case, a, b)
    want = summed(case, x, w)
    assert y.shape == want.shape
    np.testing.assert_allclose(y.detach().numpy(), want, rtol=0, atol=3e-6 * np.abs(want).max())
    # A convolution is linear in each operand, so ⟨g, y⟩ = ⟨x, dx⟩ = ⟨w, dw⟩.
    g = generator("cotangents", str(case)).standard_normal(want.shape).astype(np.float32)
    dx, dw = wg.gradients((y * wg.tensor(g)).sum(), [a, b])
    inner = (want * g).sum()
    size = np.abs(want * g).sum()
    for operand, gradient in ((x, dx), (w, dw)):
        got = (operand.astype(np.float64) * gradient.numpy()).sum()
        assert abs(got - inner) <= 1e-5 * size


@pytest.mark.parametrize("case", CASES, ids=str)
def test_bits_are_the_same_in_every_mode(case):
    x, w = drawn(case)
    weights, shift = wg.tensor(w), wg.tensor(np.float32(0.5))

    def model(x):
        y = convolved(case, x, weights)
        return y, wg.clip(y + shift, 0.0, 1.0)

    want = [y.numpy() for y in model(wg.tensor(x))]
    modes = [model, wg.compile(model), wg.compile(model, freeze=True)]
    before = wg.get_num_threads()
    try:
        for threads in (1, 2, 3):
            wg.set_num_threads(threads)
            for mode in modes:
                for got, y in zip(mode(wg.tensor(x)), want, strict=True):
                    assert np.array_equal(got.numpy(), y), (threads, mode)
                alone = mode(wg.tensor(x[1:2]))
                for got, y in zip(alone, want, strict=True):
                    assert np.array_equal(got.numpy(), y[1:2]), (threads, mode)
    finally:
        wg.set_num_threads(before)
    # Batched by a transform, and over strided operands.
    mapped = wg.vmap(lambda x: convolved(case, x[None], weights)[0])(wg.tensor(x))
    assert np.array_equal(mapped.numpy(), want[0])
    last = wg.tensor(np.ascontiguousarray(np.moveaxis(x, 1, -1))).permute_dims((0, 3, 1, 2))
    assert np.array_equal(convolved(case, last, weights).numpy(), want[0])


@pytest.mark.parametrize("case", BY_CHANNEL, ids=str)
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_padding_takes_no_part_in_sums_of_a_channel(case, bad):
    # A weight that is not finite meets padding, which adds nothing to the sums that see it.
    x, w = drawn(case)
    w[:, :, 0, -1] = bad
    seen = windows(case, np.ones_like(x))[0, 0, :, :, 0, -1] != 0
    y = convolved(case, wg.tensor(x), wg.tensor(w)).numpy()
    assert np.array_equal(np.isfinite(y), np.broadcast_to(~seen, y.shape))
    zeroed = np.where(np.isfinite(w), w, 0)
    want = summed(case, x, zeroed)
    np.testing.assert_allclose(y[..., ~seen], want[..., ~seen], rtol=0, atol=1e-5)
