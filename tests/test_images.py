"""Layers of images at what the derived tests do not reach: modules, state, gradients, refusals."""

import numpy as np
import pytest

import wengert as wg
from wengert import nn

from support import array, same


def near(got, want, tolerance=1e-5):
    got = got.detach().numpy()
    assert got.shape == np.shape(want)
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)


IMAGE = (2, 4, 6, 5)
MODULES = {
    "Upsample": (lambda: nn.Upsample(scale_factor=2, mode="bilinear"),
                 lambda x: nn.interpolate(x, scale_factor=2.0, mode="bilinear")),
    "UpsamplingNearest2d": (lambda: nn.UpsamplingNearest2d(7), lambda x: nn.interpolate(x, 7)),
    "UpsamplingBilinear2d": (
        lambda: nn.UpsamplingBilinear2d((3, 8)),
        lambda x: nn.interpolate(x, (3, 8), mode="bilinear", align_corners=True)),
    "PixelShuffle": (lambda: nn.PixelShuffle(2), lambda x: nn.pixel_shuffle(x, 2)),
    "ChannelShuffle": (lambda: nn.ChannelShuffle(2), lambda x: nn.channel_shuffle(x, 2)),
    "Unfold": (lambda: nn.Unfold(2, padding=1, stride=2),
               lambda x: nn.unfold(x, 2, padding=1, stride=2)),
    "LocalResponseNorm": (lambda: nn.LocalResponseNorm(3), lambda x: nn.local_response_norm(x, 3)),
    "MaxPool2d": (lambda: nn.MaxPool2d(2, ceil_mode=True),
                  lambda x: nn.max_pool2d(x, 2, ceil_mode=True)),
    "AvgPool2d": (lambda: nn.AvgPool2d(2, divisor_override=3),
                  lambda x: nn.avg_pool2d(x, 2, divisor_override=3)),
    "LPPool2d": (lambda: nn.LPPool2d(2, 2), lambda x: nn.lp_pool2d(x, 2.0, 2)),
    "AdaptiveMaxPool2d": (lambda: nn.AdaptiveMaxPool2d(2), lambda x: nn.adaptive_max_pool2d(x, 2)),
    "AdaptiveAvgPool1d": (lambda: nn.AdaptiveAvgPool1d(2), lambda x: nn.adaptive_avg_pool1d(x, 2)),
    "InstanceNorm2d": (lambda: nn.InstanceNorm2d(4), nn.instance_norm),
}


@pytest.mark.parametrize("name", MODULES)
def test_a_module_is_its_function(name):
    make, function = MODULES[name]
    x = array(*IMAGE)
    same(make()(x), function(x))
    same(wg.compile(make())(x), function(x))
    same(wg.vmap(make())(x[:, None])[:, 0], function(x))


def test_what_is_rearranged_comes_back():
    x = array(2, 8, 4, 6)
    same(nn.PixelUnshuffle(2)(nn.PixelShuffle(2)(x)), x)
    same(nn.ChannelShuffle(4)(nn.ChannelShuffle(2)(x)), x)
    columns = nn.Unfold(2, stride=2)(x)
    same(nn.Fold((4, 6), 2, stride=2)(columns), x)
    same(nn.Fold((4, 6), 2, stride=2)(columns[0]), x[0])


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_unpooling_puts_maxima_back(rank):
    pool = getattr(nn, f"MaxPool{rank}d")(2, stride=3, return_indices=True)
    unpool = getattr(nn, f"MaxUnpool{rank}d")(2, stride=3)
    x = array(2, 3, *range(7, 7 + rank))
    y, places = pool(x)
    back = unpool(y, places, output_size=x.shape)
    assert back.shape == x.shape and places.dtype == wg.int64
    np.testing.assert_array_equal(back.numpy()[back.numpy() != 0], x.numpy()[back.numpy() != 0])
    assert int((back != 0).sum()) == y.numpy().size
    grad = wg.grad(lambda x: (unpool(*pool(x), output_size=x.shape) ** 2).sum() / 2)(x)
    same(grad, back)
    same(getattr(nn, f"max_pool{rank}d")(x, 2, 3), y)
    found = getattr(nn, f"adaptive_max_pool{rank}d")(x, 2, return_indices=True)
    same(found[0], getattr(nn, f"AdaptiveMaxPool{rank}d")(2)(x))
    with pytest.raises(IndexError, match=r"1000000"):
        unpool(y, places + 1000000)


def test_ties_and_windows_of_nothing():
    low = wg.full((1, 1, 4), -float("inf"))
    y, places = nn.max_pool1d(low, 2, 1, 1, return_indices=True)
    assert places.tolist() == [[[0, 0, 1, 2, 3]]] and y.tolist() == [[[-float("inf")] * 5]]
    y, places = nn.max_pool1d(wg.tensor([[1.0, 1.0, float("nan"), 2.0]]), 2, return_indices=True)
    assert places.tolist() == [[0, 2]]


@pytest.mark.parametrize("kind", ["Dropout1d", "Dropout2d", "Dropout3d", "FeatureAlphaDropout"])
def test_dropout_of_channels(kind):
    wg.random.seed(0)
    rank = int(kind[7]) if kind[7].isdigit() else 2
    layer = getattr(nn, kind)(0.4)
    y = layer(wg.ones((50, 40, *(3,) * rank))).numpy().reshape(2000, -1)
    assert (y == y[:, :1]).all()
    kept = y[:, 0] == y.max()
    assert abs(kept.mean() - 0.6) < 0.05
    if kind != "FeatureAlphaDropout":
        assert set(y[:, 0]) == {0.0, np.float32(1 / 0.6)}
    x = wg.ones((2, 3, *(3,) * rank))
    same(layer.eval()(x), x)
    with pytest.raises(ValueError, match=rf"{kind}: p is a probability, got 1\.5"):
        getattr(nn, kind)(1.5)


def test_alpha_dropout_keeps_mean_and_variance():
    wg.random.seed(0)
    x = array(300, 400)
    y = nn.AlphaDropout(0.3)(x).numpy()
    assert abs(y.mean()) < 0.01 and abs(y.var() - 1) < 0.02
    scale, least = 1.0507009873554805, 1.0507009873554805 * 1.6732632423543772
    a = 1 / np.sqrt(0.7 * (1 + 0.3 * least**2))
    dropped = a * -least + a * least * 0.3
    assert abs((np.isclose(y, dropped, atol=1e-6)).mean() - 0.3) < 0.01
    kept = ~np.isclose(y, dropped, atol=1e-6)
    want = a * x.numpy() + a * least * 0.3
    np.testing.assert_allclose(y[kept], want[kept], rtol=1e-5, atol=1e-5)
    assert scale > 1 and nn.alpha_dropout(x, 1.0).tolist() == np.zeros(x.shape).tolist()
    wg.random.seed(5)
    eager = nn.alpha_dropout(x, 0.3)
    wg.random.seed(5)
    same(wg.compile(lambda x: nn.alpha_dropout(x, 0.3))(x), eager)


def test_running_statistics_of_instances():
    layer = nn.InstanceNorm1d(3, affine=True, track_running_stats=True, momentum=0.5)
    names = ["weight", "bias", "running_mean", "running_var", "num_batches_tracked"]
    assert list(layer.state_dict()) == names
    x = array(4, 3, 6)
    layer(x)
    near(layer.running_mean, 0.5 * x.numpy().mean((0, 2)))
    near(layer.running_var, 0.5 + 0.5 * x.numpy().var(2, ddof=1).mean(0))
    layer.eval()
    mean, var = layer.running_mean.numpy(), layer.running_var.numpy()
    near(layer(x), (x.numpy() - mean[:, None]) / np.sqrt(var[:, None] + 1e-5))
    same(layer(x[0]), layer(x)[0])
    with pytest.raises(wg.ShapeError, match=r"InstanceNorm1d.*\(4, 2, 6\)"):
        layer(wg.ones((4, 2, 6)))


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_convolutions_without_a_batch_and_with_the_same_size(rank):
    conv, back = (getattr(nn, f"{kind}{rank}d") for kind in ("Conv", "ConvTranspose"))
    x = array(2, 4, *range(5, 5 + rank))
    for layer in (conv(4, 6, 2, padding="same", dilation=2), conv(4, 2, 3, padding="valid"),
                  back(4, 3, 2, stride=2, output_padding=1)):  # fmt: skip
        near(layer(x[1]), layer(x)[1].detach().numpy())
    assert conv(4, 6, 4, padding="same")(x).shape == (2, 6, *x.shape[2:])
    with pytest.raises(ValueError, match="stride of 1"):
        conv(4, 6, 3, stride=2, padding="same")(x)
    with pytest.raises(ValueError, match='got "full"'):
        conv(4, 6, 3, padding="full")(x)
    with pytest.raises(ValueError, match=r"less than stride or dilation"):
        back(4, 3, 2, stride=2, output_padding=2)(x)


def test_output_padding_beyond_the_stride_is_zeros():
    x, w = array(1, 2, 4), array(2, 3, 2, seed=1)
    plain = nn.conv_transpose1d(x, w, dilation=4)
    wide = nn.conv_transpose1d(x, w, dilation=4, output_padding=3)
    near(wide, np.pad(plain.numpy(), ((0, 0), (0, 0), (0, 3))))
    cut = nn.conv_transpose1d(x, w, dilation=4, padding=2, output_padding=3)
    near(cut, wide.numpy()[..., 2:-2])
    grad = wg.grad(lambda w: nn.conv_transpose1d(x, w, dilation=4, output_padding=3).sum())(w)
    near(grad, wg.grad(lambda w: nn.conv_transpose1d(x, w, dilation=4).sum())(w).numpy())


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: nn.interpolate(wg.ones((1, 1, 2)), 3, mode="bilinear"), "another rank"),
        (lambda: nn.interpolate(wg.ones((1, 1, 2))), "either size or scale_factor"),
        (lambda: nn.interpolate(wg.ones((1, 1, 2)), 3, align_corners=True), "align_corners"),
        (lambda: nn.interpolate(wg.ones((1, 1, 2)), scale_factor=0.1), "no such size"),
        (lambda: nn.interpolate(wg.ones((1, 1, 2)), 3, mode="lanczos"), "'lanczos'|lanczos"),
        (lambda: nn.interpolate(wg.ones((1, 2)), 3), "3, 4 or 5"),
        (lambda: nn.grid_sample(wg.ones((1, 1, 2, 2)), wg.ones((1, 2, 2, 3))), "grid does not fit"),
        (lambda: nn.grid_sample(wg.ones((1, 1, 2, 2)), wg.ones((1, 2, 2, 2)), "cubic"), "mode"),
        (lambda: nn.affine_grid(wg.ones((1, 2, 2)), (1, 1, 2, 2)), "theta must be"),
        (lambda: nn.fold(wg.ones((1, 8, 5)), (4, 4), 2, stride=2), "count of windows"),
        (lambda: nn.unfold(wg.ones((1, 1, 2, 2)), 3), "larger than the axis|window"),
        (lambda: nn.pixel_shuffle(wg.ones((6, 2, 2)), 2), "does not divide"),
        (lambda: nn.channel_shuffle(wg.ones((1, 5, 2)), 2), "does not divide"),
        (lambda: nn.avg_pool1d(wg.ones(4), 2, divisor_override=0), "divisor_override"),
        (lambda: nn.lp_pool1d(wg.ones(4), 0.0, 2), "norm_type"),
        (lambda: nn.max_unpool1d(wg.ones(2), wg.tensor([0]), 2), "shapes differ"),
        (lambda: nn.dropout2d(wg.ones((2, 3))), "3 or 4"),
        (lambda: nn.bilinear(wg.ones(3), wg.ones(2), wg.ones((1, 2, 3))), "do not fit"),
    ],
)
def test_refusals_say_what_is_wrong(call, words):
    with pytest.raises(ValueError, match=words):
        call()
