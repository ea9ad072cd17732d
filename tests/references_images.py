"""What ops of images must compute, in NumPy: by matrices, by loops over windows, by padding.

`references.py` takes these up with the others.
"""

import math
from itertools import product

import numpy as np


def tuple_of(value, rank):
    return (value,) * rank if isinstance(value, int) else tuple(value)


# Resizing and sampling.


def cubic(distance):
    """Keys' kernel with a = -0.75."""
    u = abs(distance)
    if u <= 1:
        return 1.25 * u**3 - 2.25 * u**2 + 1
    return -0.75 * (u**3 - 5 * u**2 + 8 * u - 4) if u < 2 else 0.0


def resizing(n, m, mode, corners, scale):
    """The matrix (m, n) that resizes an axis."""
    out = np.zeros((m, n))
    step = n / m if scale is None else 1 / scale
    for i in range(m):
        if mode == "area":
            low, high = i * n // m, -(-(i + 1) * n // m)
            out[i, low:high] = 1 / (high - low)
        elif mode.startswith("nearest"):
            shift = 0.5 if mode == "nearest-exact" else 0.0
            out[i, min(int((i + shift) * step + 1e-9), n - 1)] = 1
        else:
            at = i * (n - 1) / max(m - 1, 1) if corners else (i + 0.5) * step - 0.5
            at = at if mode == "bicubic" else max(at, 0.0)
            for k in range(math.floor(at) - 1, math.floor(at) + 3):
                weight = cubic(at - k) if mode == "bicubic" else max(0.0, 1 - abs(at - k))
                out[i, min(max(k, 0), n - 1)] += weight
    return out


def interpolate(x, size=None, scale_factor=None, mode="nearest", align_corners=None):
    rank = x.ndim - 2
    sizes = size if size is not None else tuple(int(n * scale_factor) for n in x.shape[2:])
    for k, m in enumerate(tuple_of(sizes, rank)):
        matrix = resizing(x.shape[k + 2], m, mode, align_corners, scale_factor)
        x = np.moveaxis(np.moveaxis(x, k + 2, -1) @ matrix.T, -1, k + 2)
    return x


def outside(at, n, padding, corners):
    """A place brought into the image."""
    if padding == "reflection":
        low, high = (0.0, n - 1.0) if corners else (-0.5, n - 0.5)
        while not low <= at <= high and high > low:
            at = 2 * low - at if at < low else 2 * high - at
        at = at if high > low else 0.0
    return at if padding == "zeros" else min(max(at, 0.0), n - 1.0)


def grid_sample(x, grid, mode="bilinear", padding_mode="zeros", align_corners=False):
    sizes = x.shape[2:]
    out = np.zeros((*x.shape[:2], *grid.shape[1:-1]))
    for place in np.ndindex(grid.shape[:-1]):
        taps = []
        for n, g in zip(sizes, grid[place][::-1], strict=True):
            at = (g + 1) / 2 * (n - 1) if align_corners else ((g + 1) * n - 1) / 2
            if mode == "bicubic":
                low = math.floor(at)
                each = [(outside(low + k, n, padding_mode, align_corners), cubic(at - low - k))
                        for k in (-1, 0, 1, 2)]
            else:
                at = outside(at, n, padding_mode, align_corners)
                low = math.floor(at)
                each = [(low, low + 1 - at), (low + 1, at - low)]
                each = [(np.round(at), 1.0)] if mode == "nearest" else each
            taps.append([(int(k), w) for k, w in each if 0 <= k < n])
        for chosen in product(*taps):
            index = tuple(k for k, _ in chosen)
            value = x[(place[0], slice(None), *index)] * math.prod(w for _, w in chosen)
            out[(place[0], slice(None), *place[1:])] += value
    return out


def affine_grid(theta, size, align_corners=False):
    lines = [np.linspace(-1, 1, n) if align_corners else (np.arange(n) + 0.5) * 2 / n - 1
             for n in size[2:]]
    lines = [line if len(line) > 1 or not align_corners else line * 0 for line in lines]
    places = np.stack([*np.meshgrid(*lines, indexing="ij")[::-1], np.ones(size[2:])], -1)
    return np.einsum("nrk,...k->n...r", theta, places)


# Windows.


def places(n, k, s, p, d, ceil):
    """The elements of each window along an axis, padding included, and how many there are."""
    reach = d * (k - 1) + 1
    count = (n + 2 * p - reach) // s + 1
    if ceil and (count - 1) * s + reach < n + 2 * p and count * s < n + p:
        count += 1
    return [[i * s - p + j * d for j in range(k)] for i in range(count)]


def windows(x, rank, kernel_size, stride, padding, dilation=1, ceil_mode=False):
    """By place of a result: the slice of the lead, and a list of positions in its window."""
    k, p, d = (tuple_of(v, rank) for v in (kernel_size, padding, dilation))
    s = k if stride is None else tuple_of(stride, rank)
    sizes = x.shape[x.ndim - rank :]
    each = [places(*args, ceil_mode) for args in zip(sizes, k, s, p, d, strict=True)]
    for at in product(*(range(len(axis)) for axis in each)):
        yield at, list(product(*(axis[i] for axis, i in zip(each, at, strict=True))))
    windows.shape = tuple(len(axis) for axis in each)


def pool(rank, kind):
    def reference(x, kernel_size, stride=None, padding=0, *more, **options):
        if more:
            options["dilation" if kind == "max" else "count_include_pad"] = more[0]
        dilation = options.get("dilation", 1)
        sizes = x.shape[x.ndim - rank :]
        p = tuple_of(padding, rank)
        found = {}
        ceil = options.get("ceil_mode", False)
        for at, window in windows(x, rank, kernel_size, stride, padding, dilation, ceil):
            inside = [w for w in window if all(0 <= i < n for i, n in zip(w, sizes, strict=True))]
            padded = [w for w in window
                      if all(i < n + q for i, n, q in zip(w, sizes, p, strict=True))]
            values = np.stack([x[(..., *w)] for w in inside], -1)
            if kind == "max":
                found[at] = values.max(-1), np.array(
                    [np.ravel_multi_index(w, sizes) for w in inside])[values.argmax(-1)]
            else:
                count = len(padded) if options.get("count_include_pad", True) else len(inside)
                found[at] = values.sum(-1) / (options.get("divisor_override") or count), None
        shape = (*x.shape[: x.ndim - rank], *windows.shape)
        y, indices = np.zeros(shape), np.zeros(shape, "int64")
        for at, (value, index) in found.items():
            y[(..., *at)], indices[(..., *at)] = value, 0 if index is None else index
        return (y, indices) if options.get("indices") else y
    return reference


def max_pool_with_indices(rank):
    def reference(x, *args, **options):
        return pool(rank, "max")(x, *args, **options, indices=True)
    return reference


def lp_pool(rank):
    def reference(x, norm_type, kernel_size, stride=None, ceil_mode=False):
        area = math.prod(tuple_of(kernel_size, rank))
        mean = pool(rank, "avg")(x**norm_type, kernel_size, stride, ceil_mode=ceil_mode)
        return (mean * area) ** (1 / norm_type)
    return reference


def max_unpool(rank):
    def reference(x, indices, kernel_size, stride=None, padding=0, output_size=None):
        k, p = tuple_of(kernel_size, rank), tuple_of(padding, rank)
        s = k if stride is None else tuple_of(stride, rank)
        lead, indices = x.shape[: x.ndim - rank], np.asarray(indices)
        sizes = tuple_of(output_size, rank) if output_size else [(n - 1) * a - 2 * b + c
                                for n, a, b, c in zip(x.shape[-rank:], s, p, k, strict=True)]
        out = np.zeros((math.prod(lead), math.prod(sizes)))
        rows = zip(x.reshape(len(out), -1), indices.reshape(len(out), -1), strict=True)
        for row, (values, at) in zip(out, rows, strict=True):
            row[at] = values
        return out.reshape(*lead, *sizes)
    return reference


def adaptive(rank, kind):
    def reference(x, output_size):
        sizes = tuple_of(output_size, rank)
        whole = x.shape[x.ndim - rank :]
        shape = (*x.shape[: x.ndim - rank], *sizes)
        out, indices = np.zeros(shape), np.zeros(shape, "int64")
        positions = np.arange(math.prod(whole)).reshape(whole)
        for at in product(*map(range, sizes)):
            window = tuple(slice(i * n // m, -(-(i + 1) * n // m))
                           for i, m, n in zip(at, sizes, whole, strict=True))
            part = x[(..., *window)].reshape(*x.shape[: x.ndim - rank], -1)
            out[(..., *at)] = part.mean(-1) if kind == "avg" else part.max(-1)
            indices[(..., *at)] = positions[window].ravel()[part.argmax(-1)]
        return (out, indices) if kind == "found" else out
    return reference


def unfold(x, kernel_size, dilation=1, padding=0, stride=1):
    padded = np.pad(x, [(0, 0)] * (x.ndim - 2) + [(q, q) for q in tuple_of(padding, 2)])
    p = tuple_of(padding, 2)
    columns = [[padded[(..., *(i + q for i, q in zip(w, p, strict=True)))] for w in window]
               for _, window in windows(x, 2, kernel_size, stride, padding, dilation)]
    out = np.moveaxis(np.array(columns), (0, 1), (-1, -2))
    return out.reshape(*x.shape[:-3], -1, len(columns))


def fold(x, output_size, kernel_size, dilation=1, padding=0, stride=1):
    """The transpose of `unfold`, column by column of its matrix."""
    sizes = tuple_of(output_size, 2)
    channels = x.shape[-2] // math.prod(tuple_of(kernel_size, 2))
    unit = np.eye(channels * math.prod(sizes)).reshape(-1, channels, *sizes)
    matrix = unfold(unit, kernel_size, dilation, padding, stride)
    out = np.einsum("kij,...ij->...k", matrix, x)
    return out.reshape(*x.shape[:-2], channels, *sizes)


def pixel_shuffle(x, r):
    *lead, c, h, w = x.shape
    out = np.zeros((*lead, c // r**2, h * r, w * r), x.dtype)
    for k, i, j in product(range(c // r**2), range(r), range(r)):
        out[..., k, i::r, j::r] = x[..., k * r**2 + i * r + j, :, :]
    return out


def pixel_unshuffle(x, r):
    parts = [x[..., i::r, j::r] for i in range(r) for j in range(r)]
    out = np.stack(parts, -3)
    return out.reshape(*x.shape[:-3], -1, *out.shape[-2:])


def channel_shuffle(x, groups):
    deep = x.shape[1] // groups
    return x[:, [g * deep + k for k in range(deep) for g in range(groups)]]


# Norms and dropout.


def instance_norm(x, weight=None, bias=None, eps=1e-5):
    axes = tuple(range(2, x.ndim))
    y = (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + eps)
    shape = (1, -1) + (1,) * (x.ndim - 2)
    y = y if weight is None else y * weight.reshape(shape)
    return y if bias is None else y + bias.reshape(shape)


def local_response_norm(x, size, alpha=1e-4, beta=0.75, k=1.0):
    out = np.empty(x.shape)
    for c in range(x.shape[1]):
        near = x[:, max(c - size // 2, 0) : c + (size - 1) // 2 + 1]
        out[:, c] = x[:, c] / (k + alpha * (near**2).sum(1) / size) ** beta
    return out


def unchanged(x, p=0.5, training=True, key=None):
    return x


REFERENCES = {
    "nn.interpolate": interpolate,
    "nn.grid_sample": grid_sample,
    "nn.affine_grid": affine_grid,
    "nn.unfold": unfold,
    "nn.fold": fold,
    "nn.pixel_shuffle": pixel_shuffle,
    "nn.pixel_unshuffle": pixel_unshuffle,
    "nn.channel_shuffle": channel_shuffle,
    "nn.instance_norm": instance_norm,
    "nn.local_response_norm": local_response_norm,
    "nn.bilinear": lambda a, b, w, c=0: np.einsum("...i,oij,...j->...o", a, w, b) + c,
    "nn.alpha_dropout": unchanged,
    "nn.feature_alpha_dropout": unchanged,
    **{f"nn.dropout{n}d": unchanged for n in (1, 2, 3)},
    **{f"nn.max_pool{n}d": pool(n, "max") for n in (1, 2, 3)},
    **{f"nn.avg_pool{n}d": pool(n, "avg") for n in (1, 2, 3)},
    **{f"nn.max_pool{n}d_with_indices": max_pool_with_indices(n) for n in (1, 2, 3)},
    **{f"nn.max_unpool{n}d": max_unpool(n) for n in (1, 2, 3)},
    **{f"nn.lp_pool{n}d": lp_pool(n) for n in (1, 2, 3)},
    **{f"nn.adaptive_avg_pool{n}d": adaptive(n, "avg") for n in (1, 2, 3)},
    **{f"nn.adaptive_max_pool{n}d": adaptive(n, "max") for n in (1, 2, 3)},
    **{f"nn.adaptive_max_pool{n}d_with_indices": adaptive(n, "found") for n in (1, 2, 3)},
}

ADAPTIVE = {1: ["x(2, 3, 7), 3", "x(5), 5"], 2: ["x(2, 3, 5, 7), (2, 3)", "x(6, 4), 2"],
            3: ["x(2, 4, 5, 3), (2, 3, 1)"]}  # fmt: skip
MAXIMA = {
    1: ["x(2, 3, 7), 2", "x(2, 8), 3, stride=2, padding=1, dilation=2, ceil_mode=True"],
    2: ["x(2, 2, 6, 5), 2", "x(2, 2, 6, 5), (3, 2), stride=1, padding=1",
        "x(3, 5, 7), 3, stride=2, padding=(1, 0), ceil_mode=True"],
    3: ["x(1, 2, 4, 4, 4), 2", "x(2, 3, 5, 4), 2, ceil_mode=True"],
}
MEANS = {
    1: ["x(2, 3, 7), 2", "x(2, 3, 7), 4, stride=3, padding=2, ceil_mode=True",
        "x(9), 4, stride=3, padding=1, count_include_pad=False, ceil_mode=True"],
    2: ["x(2, 2, 6, 5), 2", "x(2, 2, 6, 5), (3, 2), stride=1, padding=1",
        "x(2, 5, 5), 2, ceil_mode=True", "x(2, 4, 4), 2, divisor_override=3"],
    3: ["x(1, 2, 4, 4, 4), 2"],
}

SAMPLES = {
    "nn.interpolate": [
        "x(2, 3, 5), 8",
        'x(2, 3, 5), (3,), mode="linear"',
        'x(1, 2, 5, 4), (8, 3), mode="bilinear"',
        'x(1, 2, 5, 4), (2, 1), mode="bilinear", align_corners=True',
        'x(1, 2, 4, 5), (7, 3), mode="bicubic"',
        'x(1, 2, 4, 5), scale_factor=1.7, mode="bicubic"',
        'x(1, 1, 3, 4, 2), (2, 6, 3), mode="trilinear"',
        'x(1, 2, 6, 5), (4, 7), mode="nearest-exact"',
        'x(1, 2, 6, 5), (4, 7), mode="area"',
        "x(1, 2, 6, 5), scale_factor=0.6",
        'x(1, 2, 6), scale_factor=2.5, mode="linear"',
    ],
    "nn.grid_sample": [
        "x(2, 3, 4, 5), x(2, 3, 2, 2)",
        'x(1, 2, 3, 4), x(1, 2, 3, 2), padding_mode="border", align_corners=True',
        'x(1, 2, 3, 4), x(1, 2, 3, 2), padding_mode="reflection"',
        'x(1, 2, 3, 4), x(1, 2, 3, 2), padding_mode="reflection", align_corners=True',
        'x(1, 2, 4, 4), x(1, 3, 3, 2), mode="bicubic"',
        'x(1, 2, 3, 4, low=0.5), x(1, 2, 2, 2), mode="bicubic", padding_mode="border"',
        "x(1, 2, 3, 4, 2), x(1, 2, 2, 1, 3)",
    ],
    "nn.affine_grid": ["x(2, 2, 3), (2, 1, 3, 4)",
                       "x(1, 3, 4), (1, 2, 2, 3, 1), align_corners=True"],
    "nn.unfold": ["x(2, 3, 4, 5), (2, 3)", "x(2, 5, 6), 2, dilation=2, padding=1, stride=(2, 1)"],
    "nn.fold": ["x(2, 18, 6), (4, 5), (3, 3)",
                "x(8, 18), (5, 6), 2, dilation=2, padding=1, stride=(2, 1)"],
    "nn.pixel_shuffle": ["x(2, 8, 2, 3), 2", "x(9, 1, 2), 3"],
    "nn.pixel_unshuffle": ["x(2, 2, 4, 6), 2"],
    "nn.channel_shuffle": ["x(2, 6, 3), 2"],
    "nn.instance_norm": ["x(2, 3, 4)", "x(2, 3, 2, 4), weight=x(3), bias=x(3), eps=0.1"],
    "nn.local_response_norm": ["x(2, 5, 3), 3, alpha=0.5", "x(1, 4), 2, 0.3, 0.5, 2.0"],
    "nn.bilinear": ["x(3, 4), x(3, 2), x(5, 4, 2)", "x(2, 3, 2), x(2, 3, 3), x(2, 2, 3), x(2)"],
    "nn.alpha_dropout": ["x(3, 4), 0.0", "x(3, 4), training=False"],
    "nn.feature_alpha_dropout": ["x(3, 4, 2), 0.0"],
    **{f"nn.dropout{n}d": [f"x(2, 3{', 2' * n}), 0.0"] for n in (1, 2, 3)},
    **{f"nn.max_pool{n}d": MAXIMA[n] for n in (1, 2, 3)},
    **{f"nn.max_pool{n}d_with_indices": MAXIMA[n] for n in (1, 2, 3)},
    **{f"nn.avg_pool{n}d": MEANS[n] for n in (1, 2, 3)},
    "nn.max_unpool1d": ["x(2, 3), wg.tensor([[1, 2, 5], [0, 3, 4]]), 2",
                        "x(3), wg.tensor([1, 2, 6]), 2, output_size=7"],
    "nn.max_unpool2d": ["x(2, 2, 1), wg.tensor([[[1], [7]], [[2], [4]]]), 2, (2, 2)"],
    "nn.max_unpool3d": ["x(1, 1, 2), wg.tensor([[[3, 11]]]), 2"],
    "nn.lp_pool1d": ["x(2, 7, low=0.5), 3.0, 2", "x(7, low=0.5), 2.0, 3, stride=2, ceil_mode=True"],
    "nn.lp_pool2d": ["x(2, 6, 5, low=0.5), 2.0, (3, 2)"],
    "nn.lp_pool3d": ["x(2, 4, 4, 3, low=0.5), 1.5, 2, stride=1"],
    **{f"nn.adaptive_avg_pool{n}d": ADAPTIVE[n] for n in (1, 2, 3)},
    **{f"nn.adaptive_max_pool{n}d": ADAPTIVE[n] for n in (1, 2, 3)},
    **{f"nn.adaptive_max_pool{n}d_with_indices": ADAPTIVE[n] for n in (1, 2, 3)},
}
