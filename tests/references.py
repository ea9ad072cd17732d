"""What each op must compute, in NumPy, and how to call those that need more than tensors.

An op without an entry in `REFERENCES` is NumPy's function of the same name. An op without an entry
in `SAMPLES` is called with one operand for each of its required tensor parameters. A test asserts
that every op of the table is covered.
"""

import math
from itertools import product
from statistics import NormalDist

import numpy as np

erf = np.vectorize(math.erf, otypes=["float64"])


def sigmoid(x):
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1, small) / (1 + small)


def softplus(x):
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def erfinv_of(x):
    """Newton's method on erf, started from the normal quantile; erfc keeps the tails exact."""
    if abs(x) >= 1 or x != x:
        return math.copysign(math.inf, x) if abs(x) == 1 else math.nan
    a = abs(x)
    y = NormalDist().inv_cdf((a + 1) / 2) / math.sqrt(2) if a > 1e-3 else a * math.sqrt(math.pi) / 2
    for _ in range(4):
        error = math.erf(y) - a if a < 0.5 else (1 - a) - math.erfc(y)
        y -= error * math.sqrt(math.pi) / 2 * math.exp(y * y)
    return math.copysign(y, x)


def logsumexp(x, axis=None, keepdims=False):
    top = np.max(x, axis=axis, keepdims=True)
    out = np.log(np.sum(np.exp(x - top), axis=axis, keepdims=True)) + top
    return out if keepdims else np.squeeze(out, axis=axis)


def log_softmax(x, axis=-1):
    return x - logsumexp(x, axis, keepdims=True)


def reduced(values, reduction):
    return {"mean": np.mean, "sum": np.sum, "none": lambda v: v}[reduction](values)


def gelu(x, approximate="none"):
    if approximate == "tanh":
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return 0.5 * x * (1 + erf(x / math.sqrt(2)))


def normalised(x, axes, eps):
    mean = x.mean(axes, keepdims=True)
    return (x - mean) / np.sqrt(((x - mean) ** 2).mean(axes, keepdims=True) + eps)


def scaled(y, weight, bias, axis=-1):
    shape = [1] * y.ndim
    shape[axis] = -1
    y = y if weight is None else y * weight.reshape(shape)
    return y if bias is None else y + bias.reshape(shape)


def layer_norm(x, axis=-1, weight=None, bias=None, eps=1e-5):
    axes = (axis,) if isinstance(axis, int) else tuple(axis)
    y = normalised(x, axes, eps)
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


def rms_norm(x, axis=-1, weight=None, eps=1e-5):
    y = x / np.sqrt((x * x).mean(axis, keepdims=True) + eps)
    return y if weight is None else y * weight


def group_norm(x, groups, weight=None, bias=None, eps=1e-5):
    y = x.reshape(x.shape[0], groups, -1)
    return scaled(normalised(y, (2,), eps).reshape(x.shape), weight, bias, axis=1)


def batch_norm(x, mean, var, weight=None, bias=None, eps=1e-5):
    shape = [1, -1] + [1] * (x.ndim - 2)
    y = (x - mean.reshape(shape)) / np.sqrt(var.reshape(shape) + eps)
    return scaled(y, weight, bias, axis=1)


def cross_entropy(input, target, weight=None, ignore_index=-100, reduction="mean",
                  label_smoothing=0.0):
    classes = input.shape[1]
    logs = np.moveaxis(log_softmax(input, 1), 1, -1)
    if target.dtype.kind == "f":
        probability = np.moveaxis(target, 1, -1)
        counted = np.ones(probability.shape[:-1])
    else:
        counted = (target != ignore_index).astype("float64")
        probability = np.eye(classes)[np.where(counted > 0, target, 0)] * counted[..., None]
    smooth = counted[..., None] * label_smoothing / classes
    probability = probability * (1 - label_smoothing) + smooth
    if weight is not None:
        total = (np.eye(classes)[np.where(counted > 0, target, 0)] @ weight * counted).sum()
        values = -(probability * logs * weight).sum(-1)
        return values.sum() / total if reduction == "mean" else reduced(values, reduction)
    values = -(probability * logs).sum(-1)
    return values.sum() / counted.sum() if reduction == "mean" else reduced(values, reduction)


def nll_loss(input, target, weight=None, ignore_index=-100, reduction="mean"):
    classes = np.arange(input.shape[1]).reshape(1, -1, *[1] * (input.ndim - 2))
    hit = (np.expand_dims(target, 1) == classes) * (np.expand_dims(target, 1) != ignore_index)
    factors = np.ones(input.shape[1]) if weight is None else weight
    factors = (hit * factors.reshape(classes.shape)).sum(1)
    values = -(input * hit).sum(1) * factors
    return values.sum() / factors.sum() if reduction == "mean" else reduced(values, reduction)


def bce_with_logits(input, target, weight=None, pos_weight=None, reduction="mean"):
    positive = 1 if pos_weight is None else pos_weight
    values = positive * target * softplus(-input) + (1 - target) * softplus(input)
    return reduced(values if weight is None else values * weight, reduction)


def tuple_of(value, rank):
    return (value,) * rank if isinstance(value, int) else tuple(value)


def conv(rank):
    def reference(x, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
        s, p, d = (tuple_of(v, rank) for v in (stride, padding, dilation))
        x = np.pad(x, [(0, 0), (0, 0), *((q, q) for q in p)])
        kernel = weight.shape[2:]
        sizes = [(n - (k - 1) * e - 1) // t + 1
                 for n, k, e, t in zip(x.shape[2:], kernel, d, s, strict=True)]
        out = np.zeros((x.shape[0], weight.shape[0], *sizes))
        wide, deep = weight.shape[1], weight.shape[0] // groups
        for o in range(weight.shape[0]):
            g = o // deep
            part = x[:, g * wide : (g + 1) * wide]
            for at in product(*map(range, kernel)):
                window = tuple(slice(a * e, a * e + (n - 1) * t + 1, t)
                               for a, e, n, t in zip(at, d, sizes, s, strict=True))
                taken = part[(slice(None), slice(None), *window)]
                out[:, o] += np.einsum("nc...,c->n...", taken, weight[(o, slice(None), *at)])
        return out if bias is None else scaled(out, None, bias, axis=1)
    return reference


def conv_transpose(rank):
    def reference(x, weight, bias=None, stride=1, padding=0, output_padding=0, dilation=1,
                  groups=1):
        s, p, d, extra = (tuple_of(v, rank) for v in (stride, padding, dilation, output_padding))
        kernel, deep = weight.shape[2:], weight.shape[1]
        full = [(n - 1) * t + (k - 1) * e + 1 + r
                for n, k, e, t, r in zip(x.shape[2:], kernel, d, s, extra, strict=True)]
        out = np.zeros((x.shape[0], deep * groups, *full))
        wide = x.shape[1] // groups
        for g in range(groups):
            part = x[:, g * wide : (g + 1) * wide]
            taps = weight[g * wide : (g + 1) * wide]
            for at in product(*map(range, kernel)):
                window = tuple(slice(a * e, a * e + (n - 1) * t + 1, t)
                               for a, e, n, t in zip(at, d, x.shape[2:], s, strict=True))
                place = (slice(None), slice(g * deep, (g + 1) * deep), *window)
                tap = taps[(slice(None), slice(None), *at)]
                out[place] += np.einsum("nc...,co->no...", part, tap)
        cut = tuple(slice(q, n - q) for q, n in zip(p, full, strict=True))
        out = out[(slice(None), slice(None), *cut)]
        return out if bias is None else scaled(out, None, bias, axis=1)
    return reference


def pool(rank, fill, combine):
    def reference(x, kernel_size, stride=None, padding=0):
        k, p = tuple_of(kernel_size, rank), tuple_of(padding, rank)
        s = k if stride is None else tuple_of(stride, rank)
        x = np.pad(x, [(0, 0), (0, 0), *((q, q) for q in p)], constant_values=fill)
        axes = tuple(range(2, 2 + rank))
        windows = np.lib.stride_tricks.sliding_window_view(x, k, axis=axes)
        steps = (slice(None), slice(None), *(slice(None, None, t) for t in s))
        return combine(windows[steps], tuple(range(-rank, 0)))
    return reference


def attention(q, k, v, mask=None, is_causal=False, scale=None):
    scores = q @ np.swapaxes(k, -1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
    return np.exp(log_softmax(scores)) @ v


def adaptive_avg_pool2d(x, output_size):
    sizes = tuple_of(output_size, 2)
    out = np.zeros((*x.shape[:-2], *sizes))
    for at in product(*map(range, sizes)):
        rows, columns = (slice(i * n // m, -(-(i + 1) * n // m))
                         for i, m, n in zip(at, sizes, x.shape[-2:], strict=True))
        out[..., at[0], at[1]] = x[..., rows, columns].mean((-2, -1))
    return out


def sgd(p, g, lr, weight_decay=0.0):
    return p - lr * (g + weight_decay * p)


def sgd_momentum(p, g, b, lr, momentum, weight_decay=0.0, nesterov=False):
    g = g + weight_decay * p
    b = momentum * b + g
    return p - lr * (g + momentum * b if nesterov else b), b


def adam(p, g, m, v, step, lr, beta1, beta2, eps, weight_decay=0.0, decoupled=False):
    p, g = (p * (1 - lr * weight_decay), g) if decoupled else (p, g + weight_decay * p)
    m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g * g
    change = m / (1 - beta1**step) / (np.sqrt(v / (1 - beta2**step)) + eps)
    return p - lr * change, m, v


def ordered(x, axis=-1, descending=False, stable=True):
    out = np.sort(x, axis=axis)
    return np.flip(out, axis) if descending else out


def order(x, axis=-1, descending=False, stable=True):
    if not descending:
        return np.argsort(x, axis=axis, kind="stable")
    n = x.shape[axis]
    return n - 1 - np.flip(np.argsort(np.flip(x, axis), axis=axis, kind="stable"), axis)


def ordered_with_indices(x, axis=-1, descending=False, stable=True):
    places = order(x, axis, descending)
    return np.take_along_axis(x, places, axis), places


def topk(x, k, axis=-1, largest=True):
    places = np.take(order(x, axis, descending=largest), range(k), axis=axis)
    return np.take_along_axis(x, places, axis), places


def wrapped_divide(divide):
    """Integer division by zero gives 0."""
    def reference(a, b):
        if np.result_type(a, b).kind == "f":
            return divide(a, b)
        return np.where(b == 0, 0, divide(a, np.where(b == 0, 1, b)))
    return reference


def power(a, b):
    """Integer powers wrap; a negative exponent gives 0, or ±1 for a base of ±1."""
    kind = np.result_type(a, b)
    if kind.kind == "f":
        return np.power(a, b)

    def one(x, n):
        if n >= 0:
            return x**n
        return x ** (-n) if abs(x) == 1 else 0

    bits = 8 * kind.itemsize
    exact = np.vectorize(lambda x, n: one(int(x), int(n)) % 2**bits, otypes=["uint64"])(a, b)
    return exact.astype(kind)


def put_along_axis(x, indices, values, axis=-1):
    out = x.copy()
    np.put_along_axis(out, indices, np.broadcast_to(values, indices.shape), axis)
    return out


def index_add(x, index, values, axis=0):
    out = np.moveaxis(x.copy(), axis, 0)
    np.add.at(out, index, np.moveaxis(values, axis, 0))
    return np.moveaxis(out, 0, axis)


def split(x, sections, axis=0):
    parts = sections if isinstance(sections, int) else np.cumsum(sections)[:-1]
    return np.split(x, parts, axis)


def nan_to_num(x, nan=0.0, posinf=None, neginf=None):
    """The operands' largest number is unknown here, so samples that need it name it."""
    return np.nan_to_num(x, nan=nan, posinf=posinf, neginf=neginf)


def chunk(x, n, axis=0):
    size = -(-x.shape[axis] // n)
    return np.split(x, range(size, x.shape[axis], size), axis)


def floor_divide(a, b):
    """The standard's table: the plain quotient where an operand is infinite."""
    quotient = wrapped_divide(np.floor_divide)(a, b)
    if np.asarray(quotient).dtype.kind != "f":
        return quotient
    return np.where(np.isinf(a) | np.isinf(b), np.divide(a, b), quotient)


REFERENCES = {
    "pow": power,
    "put_along_axis": put_along_axis,
    "index_add": index_add,
    "split": split,
    "chunk": chunk,
    "nan_to_num": nan_to_num,
    "lerp": lambda a, b, weight: a + (b - a) * weight,
    "cumulative_max": lambda x, axis=0: np.maximum.accumulate(x, axis),
    "cumulative_min": lambda x, axis=0: np.minimum.accumulate(x, axis),
    "flatten": lambda x, start=0, end=-1: x.reshape(
        *x.shape[:start], -1, *x.shape[len(x.shape) + end + 1 :]),
    "swapaxes": lambda x, axis1, axis2: np.swapaxes(x, axis1, axis2),
    "inner": np.inner,
    "vector_norm": lambda x, axis=None, keepdims=False, ord=2.0: np.linalg.vector_norm(
        x, axis=axis, keepdims=keepdims, ord=ord),
    "quantile": lambda x, q, axis=None, keepdims=False: np.quantile(
        x.astype("float64"), q, axis, keepdims=keepdims),
    "empty_like": np.zeros_like,
    "full_like": lambda x, value: np.full_like(x, value),
    "positive": lambda x: x,
    "astype": lambda x, dtype: x.astype(dtype.name),
    "floor_divide": floor_divide,
    "remainder": wrapped_divide(np.remainder),
    "reciprocal": lambda x: 1 / x,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "erf": erf,
    "erfc": np.vectorize(math.erfc, otypes=["float64"]),
    "round": np.round,
    "erfinv": np.vectorize(erfinv_of, otypes=["float64"]),
    "sigmoid": sigmoid,
    "logsumexp": logsumexp,
    "sort": ordered, "argsort": order, "topk": topk, "sort_with_indices": ordered_with_indices,
    "one_hot": lambda i, n: np.eye(n)[i],
    "expand_dims": lambda x, axis=0: np.expand_dims(x, axis),
    "permute_dims": lambda x, axes: np.transpose(x, axes),
    "soft_sign": lambda x: x / (1 + np.abs(x)),
    "soft_clip": lambda x, bound=1.0: bound * np.tanh(x / bound),
    "increments": lambda x, axis=-1: np.diff(x, axis=axis),
    "nn.relu": lambda x: np.maximum(x, 0),
    "nn.leaky_relu": lambda x, slope=0.01: np.where(x > 0, x, slope * x),
    "nn.gelu": gelu,
    "nn.silu": lambda x: x * sigmoid(x),
    "nn.softplus": lambda x, beta=1.0: softplus(beta * x) / beta,
    "log_sigmoid": lambda x: -softplus(-x),
    "nn.sigmoid": sigmoid,
    "nn.tanh": np.tanh,
    "nn.softmax": lambda x, axis=-1: np.exp(log_softmax(x, axis)),
    "nn.log_softmax": log_softmax,
    "nn.cross_entropy": cross_entropy,
    "nn.nll_loss": nll_loss,
    "nn.l1_loss": lambda a, b, reduction="mean": reduced(np.abs(a - b), reduction),
    "nn.mse_loss": lambda a, b, reduction="mean": reduced((a - b) ** 2, reduction),
    "nn.binary_cross_entropy_with_logits": bce_with_logits,
    "nn.linear": lambda x, w, bias=None: x @ w.T + (0 if bias is None else bias),
    "nn.layer_norm": layer_norm,
    "nn.rms_norm": rms_norm,
    "nn.group_norm": group_norm,
    "nn.batch_norm": batch_norm,
    "nn.adaptive_avg_pool2d": adaptive_avg_pool2d,
    "nn.dropout": lambda x, p=0.5, key=None: x,
    "nn.embedding": lambda indices, weight: weight[indices],
    "nn.scaled_dot_product_attention": attention,
    "random.bernoulli": lambda p: p >= 1,
    "random.categorical": lambda logits, axis=-1: np.argmax(logits, axis),
    "optim.sgd": sgd,
    "optim.sgd_momentum": sgd_momentum,
    "optim.adam": adam,
    **{f"nn.conv{n}d": conv(n) for n in (1, 2, 3)},
    **{f"nn.conv_transpose{n}d": conv_transpose(n) for n in (1, 2, 3)},
    **{f"nn.max_pool{n}d": pool(n, -np.inf, np.max) for n in (1, 2, 3)},
    **{f"nn.avg_pool{n}d": pool(n, 0, np.mean) for n in (1, 2, 3)},
}

REDUCED = ("x(3, 4, 2)", "x(3, 4, 2), axis=1", "x(3, 4, 2), axis=(0, -1), keepdims=True", "x(5)")
ALONG = ("x(3, 4), axis=0", "x(3, 4), axis=-1")
PLACED = ("x(3, 4)", "x(3, 4), axis=1", "x(3, 4), axis=0, keepdims=True")
ORDERED = ("x(3, 4)", "x(3, 4), axis=0, descending=True")
LOSS = ('x(4, 3), x(4, 3), reduction="none"', "x(4, 3), x(4, 3)")

SAMPLES = {
    **dict.fromkeys(("sum", "prod", "max", "min", "mean", "any", "all", "logsumexp",
                     "count_nonzero"), REDUCED),
    **dict.fromkeys(("var", "std"), (*REDUCED, "x(3, 4), axis=0, correction=1")),
    **dict.fromkeys(("argmax", "argmin"), PLACED),
    **dict.fromkeys(("cumulative_sum", "cumulative_prod", "cumulative_max", "cumulative_min"),
                    ("x(5)", *ALONG)),
    **dict.fromkeys(("sort", "argsort", "sort_with_indices"), ORDERED),
    "topk": ["x(3, 6), 2", "x(6, 3), 2, axis=0, largest=False"],
    "matmul": ["x(3, 4), x(4, 5)", "x(4), x(4)", "x(2, 3, 4), x(4)", "x(2, 1, 3, 4), x(5, 4, 2)"],
    "inner": ["x(3, 4), x(2, 4)"],
    "outer": ["x(3), x(4)"],
    "cross": ["x(4, 3), x(4, 3)", "x(3, 2), x(3, 1), axis=0"],
    "trace": ["x(3, 4)", "x(3, 4, 2), offset=-1"],
    "vector_norm": ["x(3, 4)", "x(3, 4), axis=1, ord=1.0", "x(3, 4), axis=0, ord=3.0",
                    'x(3, 4), axis=(0, 1), ord=float("inf"), keepdims=True'],
    "tensordot": ["x(3, 4), x(4, 5), axes=1", "x(3, 4, 2), x(2, 4, 5), axes=((1, 2), (1, 0))"],
    "vecdot": ["x(3, 4), x(3, 4)"],
    "einsum": ['"ij,jk->ik", x(3, 4), x(4, 2)', '"bij,bjk,k->bi", x(2, 3, 4), x(2, 4, 2), x(2)',
               '"ii->i", x(3, 3)', '"...i,i", x(2, 3, 4), x(4)'],
    "reshape": ["x(3, 4), (2, 6)", "x(3, 4), (-1,)"],
    "permute_dims": ["x(2, 3, 4), (2, 0, 1)"],
    "expand_dims": ["x(3, 4), axis=1", "x(3, 4), axis=-1"],
    "squeeze": ["x(3, 1, 4), 1"],
    "broadcast_to": ["x(3, 1), (2, 3, 4)"],
    "broadcast_arrays": ["x(3, 1), x(4)"],
    "flip": ["x(3, 4)", "x(3, 4), axis=-1"],
    "roll": ["x(3, 4), 2", "x(3, 4), (1, -2), axis=(0, 1)"],
    "moveaxis": ["x(2, 3, 4), 0, -1"],
    "concat": ["[x(3, 2), x(3, 4)], axis=1", "[x(2), x(3)]"],
    "stack": ["[x(3, 2), x(3, 2)], axis=1"],
    "unstack": ["x(3, 2), axis=1"],
    "split": ["x(4, 3), 2", "x(4, 6), 3, axis=1"],
    "tile": ["x(2, 3), (2, 2)"],
    "repeat": ["x(2, 3), 2, axis=1"],
    "pad": ["x(2, 3), ((1, 0), (2, 1))"],
    "tril": ["x(3, 4)", "x(3, 4), k=1"],
    "triu": ["x(3, 4)", "x(2, 3, 4), k=-1"],
    "diagonal": ["x(3, 4)"],
    "diag": ["x(3)", "x(3), k=-1", "x(3, 4), k=1"],
    "flatten": ["x(2, 3, 4)", "x(2, 3, 4), 1"],
    "swapaxes": ["x(2, 3, 4), 0, -1"],
    "transpose": ["x(2, 3, 4)", "x(2, 3, 4), (1, 2, 0)"],
    "matrix_transpose": ["x(2, 3, 4)"],
    "chunk": ["x(5, 2), 3", "x(2, 6), 2, axis=1"],
    "put_along_axis": ["x(4, 3), i(1, 3, n=4), x(1, 3), axis=0"],
    "index_add": ["x(4, 3), i(5, n=4), x(5, 3)", "x(3, 4), i(2, n=4), x(3, 2), axis=1"],
    "diff": ["x(3, 4)", "x(4, 3), axis=0, n=2"],
    "median": ["x(3, 5)", "x(3, 4), axis=1", "x(3, 4, 2), axis=(0, -1), keepdims=True"],
    "quantile": ["x(3, 5), 0.3", "x(3, 5), 0.25, axis=1"],
    "lerp": ["x(3, 4), x(4), x(3, 1)"],
    "isclose": ["x(3, 4), x(3, 4)", "x(3, 4), x(3, 4), rtol=0.5, atol=0.5"],
    "nan_to_num": ["x(3, 4)"],
    "full_like": ["x(3, 4), 1"],
    "astype": ["x(3, 4), wg.int32", "x(3, 4), wg.float64"],
    "take": ["x(4, 3), i(5, n=4), axis=0", "x(3, 4), i(2, n=3), axis=1"],
    "take_along_axis": ["x(4, 3), i(2, 3, n=4), axis=0"],
    "where": ["b(3, 4), x(3, 4), x(4)"],
    "clip": ["x(3, 4), -1.0, 1.0", "x(3, 4), min=0.5"],
    "searchsorted": ["wg.sort(x(5)), x(4)"],
    "one_hot": ["i(4, n=3), 3"],
    "meshgrid": ["x(3), x(4)"],
    "soft_clip": ["x(3, 4)", "x(3, 4), 0.5"],
    "increments": ["x(3, 4)", "x(3, 4), 0", "x(2, 1, 5), axis=-1"],
    "nn.leaky_relu": ["x(3, 4)", "x(3, 4), 0.2"],
    "nn.gelu": ["x(3, 4)", 'x(3, 4), approximate="tanh"'],
    **dict.fromkeys(("nn.softmax", "nn.log_softmax"), ("x(3, 4)", *ALONG)),
    "nn.cross_entropy": [
        "x(4, 3), i(4, n=3)",
        'x(4, 3, 2), i(4, 2, n=3), reduction="sum"',
        "x(4, 3), i(4, n=3), label_smoothing=0.1, ignore_index=2",
        'x(4, 3), x(4, 3, low=0.1, high=0.5), reduction="none"',
        "x(4, 3), x(4, 3, low=0.1, high=0.5), label_smoothing=0.1",
        "x(4, 3), i(4, n=3), x(3, low=0.5), ignore_index=0",
        'x(4, 3, 2), i(4, 2, n=3), x(3, low=0.5), reduction="sum", label_smoothing=0.2',
    ],
    "nn.nll_loss": ["x(4, 3), i(4, n=3)",
                    "x(4, 3, 2), i(4, 2, n=3), x(3, low=0.5), ignore_index=1"],
    **dict.fromkeys(("nn.mse_loss", "nn.l1_loss"), LOSS),
    "nn.binary_cross_entropy_with_logits": [
        *LOSS, 'x(4, 3), x(4, 3), x(4, 1), x(3, low=0.5), reduction="sum"'],
    "nn.linear": ["x(5, 3), x(4, 3)", "x(2, 5, 3), x(4, 3), x(4)"],
    "nn.layer_norm": ["x(4, 6)", "x(4, 6), weight=x(6), bias=x(6)",
                      "x(2, 4, 3), axis=(1, 2), weight=x(4, 3), eps=0.1"],
    "nn.rms_norm": ["x(4, 6)", "x(4, 6), weight=x(6)"],
    "nn.group_norm": ["x(2, 4, 3), 2", "x(2, 4, 3), 2, x(4), x(4)"],
    "nn.batch_norm": ["x(3, 2, 4), x(2), x(2, low=0.5), x(2), x(2)"],
    "nn.softplus": ["x(3, 4)", "x(3, 4), beta=2.0"],
    "nn.adaptive_avg_pool2d": ["x(2, 3, 5, 7), (2, 3)", "x(6, 4), 2", "x(1, 2, 3, 3), (4, 1)"],
    "optim.sgd": ["x(3, 4), x(3, 4), lr=0.1", "x(3, 4), x(3, 4), lr=0.1, weight_decay=0.1"],
    "optim.sgd_momentum": [
        "x(3, 4), x(3, 4), x(3, 4), lr=0.1, momentum=0.9, weight_decay=0.1",
        "x(3), x(3), x(3), lr=0.1, momentum=0.9, nesterov=True",
    ],
    "optim.adam": [
        "x(3, 4), x(3, 4), x(3, 4), x(3, 4, low=0.5), 3.0, lr=0.1, beta1=0.9, beta2=0.99, eps=1e-3",
        "x(3), x(3), x(3), x(3, low=0.5), 1.0, lr=0.1, beta1=0.9, beta2=0.99, eps=1e-3, "
        "weight_decay=0.1",
        "x(3), x(3), x(3), x(3, low=0.5), 2.0, lr=0.1, beta1=0.9, beta2=0.99, eps=1e-3, "
        "weight_decay=0.1, decoupled=True",
    ],
    "random.bernoulli": ["x(3, 4, low=1.0, high=1.0)", "x(2, low=0.0, high=0.0)"],
    "random.categorical": ["x(2, 5) * 1000.0", "x(2, 3, 2) * 1000.0, axis=1"],
    "nn.embedding": ["i(5, n=4), x(4, 3)"],
    "nn.dropout": ["x(3, 4), 0.0"],
    "nn.scaled_dot_product_attention": [
        "x(2, 3, 4), x(2, 5, 4), x(2, 5, 3)",
        "x(2, 3, 4), x(2, 3, 4), x(2, 3, 4), is_causal=True",
        "x(2, 1, 3, 4), x(3, 5, 4), x(5, 2), mask=x(3, 5), scale=0.3",
    ],
    "nn.conv1d": ["x(2, 4, 7), x(6, 2, 3), x(6), stride=2, padding=1, groups=2"],
    "nn.conv2d": ["x(2, 3, 5, 6), x(4, 3, 3, 2)",
                  "x(2, 4, 6, 5), x(4, 2, 2, 3), x(4), stride=(2, 1), padding=1, groups=2",
                  "x(2, 3, 6, 5), x(4, 3, 2, 3), dilation=(1, 2)"],
    "nn.conv3d": ["x(1, 2, 4, 4, 3), x(3, 2, 2, 2, 2), padding=(1, 0, 1)"],
    "nn.conv_transpose1d": [
        "x(2, 4, 5), x(4, 3, 3), x(6), stride=2, padding=1, output_padding=1, groups=2",
    ],
    "nn.conv_transpose2d": ["x(2, 3, 3, 4), x(3, 2, 3, 2), stride=(2, 1), dilation=(1, 2)"],
    "nn.conv_transpose3d": ["x(1, 2, 3, 2, 3), x(2, 3, 2, 2, 2), padding=1"],
    "nn.max_pool1d": ["x(2, 3, 7), 2"],
    "nn.max_pool2d": ["x(2, 2, 6, 5), 2", "x(2, 2, 6, 5), (3, 2), stride=1, padding=1"],
    "nn.max_pool3d": ["x(1, 2, 4, 4, 4), 2"],
    "nn.avg_pool1d": ["x(2, 3, 7), 2"],
    "nn.avg_pool2d": ["x(2, 2, 6, 5), 2", "x(2, 2, 6, 5), (3, 2), stride=1, padding=1"],
    "nn.avg_pool3d": ["x(1, 2, 4, 4, 4), 2"],
}
