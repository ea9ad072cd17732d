"""Group D: convolution, pooling, batch norm. Images are (samples, channels, height, width)."""

import math

from case import normal, row


def side(s):
    """Height and width of the result."""
    return (s.side + 2 * s.padding - s.kernel) // s.stride + 1


def images(s):
    return normal(s.batch, s.channels, s.side, s.side)


def filters(s):
    inside = s.channels // s.groups
    scale = 1 / math.sqrt(inside * s.kernel**2)
    return normal(s.filters, inside, s.kernel, s.kernel, seed=1, scale=scale)


def convolved(F, s, x, w):
    return F.conv(x, w, None, s.stride, s.padding, s.groups)


def flops(s):
    return 2 * s.batch * side(s)**2 * s.filters * (s.channels // s.groups) * s.kernel**2


def traffic(s):
    """What a convolution must at least read and write."""
    weights = s.filters * (s.channels // s.groups) * s.kernel**2
    return 4 * (s.batch * (s.channels * s.side**2 + s.filters * side(s)**2) + weights)


CONVOLUTIONS = {
    "D1": ("3×3, 64 → 64 channels, 56², 8 samples",
           {"channels": 64, "filters": 64, "kernel": 3, "stride": 1, "padding": 1, "side": 56,
            "batch": 8, "groups": 1}, {"channels": 4, "filters": 6}),
    "D2": ("1×1, 256 → 64 channels, 56², 8 samples",
           {"channels": 256, "filters": 64, "kernel": 1, "stride": 1, "padding": 0, "side": 56,
            "batch": 8, "groups": 1}, {"channels": 6, "filters": 5}),
    "D3": ("3×3 by channel, 128 channels, 56², 8 samples",
           {"channels": 128, "filters": 128, "kernel": 3, "stride": 1, "padding": 1, "side": 56,
            "batch": 8, "groups": 128}, {"channels": 6, "filters": 6, "groups": 6}),
    "D4": ("7×7 of stride 2, 3 → 64 channels, 224², 1 sample",
           {"channels": 3, "filters": 64, "kernel": 7, "stride": 2, "padding": 3, "side": 224,
            "batch": 1, "groups": 1}, {"filters": 5}),
}
for id, (title, sizes, few) in CONVOLUTIONS.items():
    small = {**few, "side": 11, "batch": 2}
    row(id, f"convolution {title}", convolved, lambda s: (images(s), filters(s)), sizes, small,
        flops=flops, bytes=traffic, tolerance=5e-3)
    row(f"{id}g", f"convolution {title}, forward + backward",
        lambda F, s, x, w, d: F.sum(convolved(F, s, x, w) * d),
        lambda s: (images(s), filters(s), normal(s.batch, s.filters, side(s), side(s), seed=2)),
        sizes, small, kind="gradient", wrt=(0, 1), flops=lambda s: 3 * flops(s),
        bytes=lambda s: 3 * traffic(s), tolerance=2e-2)


def pooled(F, s, x):
    return F.max_pool(x, s.kernel, s.stride, s.padding)


row("D5", "max pool 3×3 of stride 2, 64 channels, 112², 8 samples", pooled, lambda s: (images(s),),
    {"batch": 8, "channels": 64, "side": 112, "kernel": 3, "stride": 2, "padding": 1},
    {"batch": 2, "channels": 3, "side": 9},
    bytes=lambda s: 4 * s.batch * s.channels * (s.side**2 + side(s)**2))
row("D6", "batch norm of training, 8×64×56², forward + backward",
    lambda F, s, x, w, b, d: F.sum(F.batch_norm(x, w, b) * d),
    lambda s: (images(s), normal(s.channels, seed=1), normal(s.channels, seed=2),
               normal(s.batch, s.channels, s.side, s.side, seed=3)),
    {"batch": 8, "channels": 64, "side": 56}, {"batch": 3, "channels": 4, "side": 7},
    kind="gradient", wrt=(0, 1, 2), bytes=lambda s: 12 * s.batch * s.channels * s.side**2,
    tolerance=2e-2)
row("D7", "max pool 2×2, 8×64×56², forward + backward",
    lambda F, s, x, d: F.sum(pooled(F, s, x) * d),
    lambda s: (images(s), normal(s.batch, s.channels, side(s), side(s), seed=3)),
    {"batch": 8, "channels": 64, "side": 56, "kernel": 2, "stride": 2, "padding": 0},
    {"batch": 2, "channels": 3, "side": 8}, kind="gradient", wrt=(0,),
    bytes=lambda s: 8 * s.batch * s.channels * (s.side**2 + side(s)**2), tolerance=2e-2)
