"""What each op must compute, in NumPy, and how to call those that need more than tensors.

An op without an entry in `REFERENCES` is NumPy's function of the same name. An op without an entry
in `SAMPLES` is called with one operand for each of its required tensor parameters. A test asserts
that every op of the table is covered.
"""

import math
from statistics import NormalDist

import numpy as np
import references_images
from references_indexing import (
    index_add,
    index_copy,
    index_put,
    kthvalue,
    log_running_sum,
    masked_scatter,
    mode,
    order,
    ordered,
    ordered_with_indices,
    put_along_axis,
    running_extreme,
    scatter_reduce,
    segments,
    topk,
)
from references_layers import (
    attention,
    batch_norm,
    conv,
    conv_transpose,
    group_norm,
    gru_cell,
    layer_norm,
    lstm_cell,
    rms_norm,
    rnn_cell,
    sequence,
)
from references_losses import (
    bce_with_logits,
    binary_cross_entropy,
    cosine,
    cosine_embedding,
    cross_entropy,
    ctc,
    distance,
    focal,
    gaussian_nll,
    huber,
    kl_div,
    log_softmax,
    logsumexp,
    multi_margin,
    multilabel_margin,
    multilabel_soft_margin,
    nll_loss,
    poisson_nll,
    reduced,
    sigmoid,
    smooth_l1_loss,
    softplus,
    triplet,
)

erf = np.vectorize(math.erf, otypes=["float64"])


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


def gelu(x, approximate="none"):
    if approximate == "tanh":
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return 0.5 * x * (1 + erf(x / math.sqrt(2)))


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


def split(x, sections, axis=0):
    parts = sections if isinstance(sections, int) else np.cumsum(sections)[:-1]
    return np.split(x, parts, axis)


def renorm(x, p, axis, maxnorm):
    length = np.linalg.vector_norm(
        x, ord=p, axis=tuple(i for i in range(x.ndim) if i != axis % x.ndim), keepdims=True)
    return x * np.where(length > maxnorm, maxnorm / (length + 1e-7), 1)


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
    **references_images.REFERENCES,
    "pow": power,
    "put_along_axis": put_along_axis,
    "index_add": index_add,
    "index_copy": index_copy,
    "index_fill": index_copy,
    "index_put": index_put,
    "masked_scatter": masked_scatter,
    "scatter_reduce": scatter_reduce,
    "segment_sum": segments(np.sum, 0),
    "segment_prod": segments(np.prod, 1),
    "segment_mean": segments(np.mean, 0),
    "segment_max": segments(np.max, -np.inf),
    "segment_min": segments(np.min, np.inf),
    "cumulative_max_with_indices": running_extreme(np.maximum),
    "cumulative_min_with_indices": running_extreme(np.minimum),
    "logcumsumexp": log_running_sum,
    "kthvalue": kthvalue,
    "mode": mode,
    "renorm": renorm,
    "cdist": lambda a, b, p=2.0: np.linalg.vector_norm(
        a[..., :, None, :] - b[..., None, :, :], ord=p, axis=-1),
    "nn.normalize": lambda x, p=2.0, axis=1: x / np.linalg.vector_norm(
        x, ord=p, axis=axis, keepdims=True),
    "random.normal_like": lambda x, mean, std: np.full(x.shape, mean),
    "random.uniform_like": lambda x, low, high: np.full(x.shape, low),
    "random.multinomial": lambda shape, n, p: np.full((*shape, 1), n),
    "random.choice": lambda x, shape: np.repeat(x, shape[0], axis=0),
    "random.shuffle": lambda x, axis=0: x,
    "special.entr": lambda x: np.where(x > 0, -x * np.log(np.where(x > 0, x, 1)), np.where(
        x == 0, 0.0, np.where(np.isnan(x), np.nan, -np.inf))),
    "special.xlogy": lambda x, y: np.where((x == 0) & ~np.isnan(y), 0.0, x * np.log(y)),
    "special.xlog1py": lambda x, y: np.where((x == 0) & ~np.isnan(y), 0.0, x * np.log1p(y)),
    "special.ndtr": lambda x: 0.5 * np.vectorize(math.erfc, otypes=["float64"])(-x / math.sqrt(2)),
    "special.logit": lambda x: np.log(x) - np.log1p(-x),
    "special.sinc": np.sinc,
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
    "nn.elu": lambda x, alpha=1.0: np.where(x > 0, x, alpha * np.expm1(x)),
    "nn.celu": lambda x, alpha=1.0: np.where(x > 0, x, alpha * np.expm1(x / alpha)),
    "nn.selu": lambda x: 1.0507009873554805 * np.where(
        x > 0, x, 1.6732632423543772 * np.expm1(x)),
    "nn.relu6": lambda x: np.clip(x, 0, 6),
    "nn.hardtanh": lambda x, low=-1.0, high=1.0: np.clip(x, low, high),
    "nn.hardsigmoid": lambda x: np.clip(x / 6 + 0.5, 0, 1),
    "nn.hardswish": lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
    "nn.softshrink": lambda x, bound=0.5: np.sign(x) * np.maximum(np.abs(x) - bound, 0),
    "nn.hardshrink": lambda x, bound=0.5: x * (np.abs(x) > bound),
    "nn.threshold": lambda x, threshold, value: np.where(x > threshold, x, value),
    "nn.prelu": lambda x, weight: np.where(
        x > 0, x, x * (weight.reshape(-1, *[1] * (x.ndim - 2)) if weight.size > 1 else weight)),
    "nn.rrelu": lambda x, lower=1 / 8, upper=1 / 3, training=False: np.where(
        x > 0, x, x * (lower + upper) / 2),
    "nn.mish": lambda x: x * np.tanh(softplus(x)),
    "nn.softsign": lambda x: x / (1 + np.abs(x)),
    "nn.tanhshrink": lambda x: x - np.tanh(x),
    "nn.glu": lambda x, axis=-1: np.multiply(
        *(f(v) for f, v in zip((np.positive, sigmoid), np.split(x, 2, axis), strict=True))),
    "nn.softmin": lambda x, axis=-1: np.exp(log_softmax(-x, axis)),
    "nn.gumbel_softmax": lambda x, tau, axis=-1: np.full(x.shape, 1 / x.shape[axis]),
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
    "nn.binary_cross_entropy": binary_cross_entropy,
    "nn.huber_loss": lambda a, b, reduction="mean", delta=1.0: reduced(
        huber(a - b, delta), reduction),
    "nn.smooth_l1_loss": smooth_l1_loss,
    "nn.kl_div": kl_div,
    "nn.poisson_nll_loss": poisson_nll,
    "nn.gaussian_nll_loss": gaussian_nll,
    "nn.pairwise_distance": distance,
    "nn.cosine_similarity": cosine,
    "nn.cosine_embedding_loss": cosine_embedding,
    "nn.triplet_margin_loss": triplet,
    "nn.hinge_embedding_loss": lambda x, t, margin=1.0, reduction="mean": reduced(
        np.where(t > 0, x, np.maximum(margin - x, 0)), reduction),
    "nn.soft_margin_loss": lambda x, t, reduction="mean": reduced(softplus(-t * x), reduction),
    "nn.margin_ranking_loss": lambda a, b, t, margin=0.0, reduction="mean": reduced(
        np.maximum(-t * (a - b) + margin, 0), reduction),
    "nn.multi_margin_loss": multi_margin,
    "nn.multilabel_margin_loss": multilabel_margin,
    "nn.multilabel_soft_margin_loss": multilabel_soft_margin,
    "nn.sigmoid_focal_loss": focal,
    "nn.ctc_loss": ctc,
    "nn.linear": lambda x, w, bias=None: x @ w.T + (0 if bias is None else bias),
    "nn.layer_norm": layer_norm,
    "nn.rms_norm": rms_norm,
    "nn.group_norm": group_norm,
    "nn.batch_norm": batch_norm,
    "nn.dropout": lambda x, p=0.5, key=None: x,
    "nn.embedding": lambda indices, weight: weight[indices],
    "nn.scaled_dot_product_attention": attention,
    "nn.lstm_cell": lstm_cell,
    "nn.gru_cell": gru_cell,
    "nn.rnn_cell": rnn_cell,
    "nn.lstm": sequence(lstm_cell, 2),
    "nn.gru": sequence(gru_cell, 1),
    "nn.rnn": sequence(rnn_cell, 1),
    "random.bernoulli": lambda p: p >= 1,
    "random.categorical": lambda logits, axis=-1: np.argmax(logits, axis),
    "optim.sgd": sgd,
    "optim.sgd_momentum": sgd_momentum,
    "optim.adam": adam,
    **{f"nn.conv{n}d": conv(n) for n in (1, 2, 3)},
    **{f"nn.conv_transpose{n}d": conv_transpose(n) for n in (1, 2, 3)},
}

REDUCED = ("x(3, 4, 2)", "x(3, 4, 2), axis=1", "x(3, 4, 2), axis=(0, -1), keepdims=True", "x(5)")
ALONG = ("x(3, 4), axis=0", "x(3, 4), axis=-1")
PLACED = ("x(3, 4)", "x(3, 4), axis=1", "x(3, 4), axis=0, keepdims=True")
ORDERED = ("x(3, 4)", "x(3, 4), axis=0, descending=True")
LOSS = ('x(4, 3), x(4, 3), reduction="none"', "x(4, 3), x(4, 3)")

SAMPLES = {
    **references_images.SAMPLES,
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
    "pad": ["x(2, 3), ((1, 0), (2, 1))",
            *(f'x(2, 3), ((1, 0), (2, 5)), mode="{mode}"'
              for mode in ("reflect", "symmetric", "edge", "wrap"))],
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
    "index_copy": ["x(4, 3), i(5, n=4), x(5, 3)", "x(3, 4), i(2, n=4, low=-4), x(3, 2), axis=1"],
    "index_fill": ["x(4, 3), i(2, n=4), 1", "x(3, 4), i(2, n=4), 1, axis=-1"],
    "index_put": ["x(4, 3), [i(5, n=4)], x(5, 3)",
                  "x(4, 3), [i(5, n=4), i(5, n=3)], x(5), accumulate=True"],
    "masked_scatter": ["x(3, 4), b(3, 4), x(12)", "x(4), b(3, 1), x(4, 5)"],
    "scatter_reduce": [
        *(f'x(4, 3), i(5, 3, n=4), x(5, 3), axis=0, reduce="{reduce}"{rest}'
          for reduce in ("sum", "prod", "max", "min") for rest in ("", ", include_self=False")),
        'x(3, 4), i(1, 7, n=4, low=-4), x(7), reduce="prod"',
        'x(3, 4), i(3, 2, n=4), x(3, 1), axis=1, reduce="max"',
    ],
    **dict.fromkeys(
        ("segment_sum", "segment_prod", "segment_mean"),
        ("x(6), i(6, n=4), 3", "x(6, 2), i(6, n=4, low=-1), 5")),
    **dict.fromkeys(("segment_max", "segment_min"), (
        "x(6), i(6, n=1), 1", "x(6, 2), i(6, n=1), 1",)),
    **dict.fromkeys(("cumulative_max_with_indices", "cumulative_min_with_indices"), ALONG),
    "logcumsumexp": ["x(5)", *ALONG],
    "kthvalue": ["x(3, 5), 2", "x(5, 3), 4, axis=0, keepdims=True"],
    "mode": ["x(3, 5)", "x(9, 2), axis=0, keepdims=True"],
    "renorm": ["x(3, 4), 2.0, 0, 1.5", "x(3, 4, 2), 1.0, -1, 3.0"],
    "cdist": ["x(3, 4), x(2, 4)", "x(2, 3, 4), x(5, 4), 1.0", "x(3, 4), x(2, 4), 3.0"],
    "nn.normalize": ["x(3, 4)", "x(3, 4, 2), 1.0, axis=(0, -1)"],
    "special.entr": ["x(3, 4, low=0.1, high=2.0)"],
    "special.logit": ["x(3, 4, low=0.05, high=0.95)"],
    "special.xlogy": ["x(3, 4), x(3, 4, low=0.1, high=3.0)", "x(3, 1), x(4, low=0.1, high=3.0)"],
    "special.xlog1py": ["x(3, 4), x(3, 4, low=-0.9, high=3.0)"],
    # Such laws, counts and choices leave nothing to chance.
    "random.normal_like": ["x(3, 4), mean=2.0, std=0.0"],
    "random.uniform_like": ["x(3, 4), low=0.25, high=0.25"],
    "random.multinomial": ["(3,), n=5, p=x(1, low=0.5)"],
    "random.choice": ["x(1, 3), (4,)"],
    "random.shuffle": ["x(1, 4)", "x(4, 1), axis=1"],
    # Their values depend on the key.
    "random.gamma": ["(3,), a=2.0"],
    "random.beta": ["(3,), a=2.0, b=0.5"],
    "random.student_t": ["(3,), df=3.0"],
    "random.dirichlet": ["(3,), alpha=x(4, low=0.5)"],
    "random.poisson": ["(3,), lam=4.0"],
    "random.binomial": ["(3,), n=5, p=0.5"],
    "random.geometric": ["(3,), p=0.5"],
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
    **dict.fromkeys(("nn.softmax", "nn.log_softmax", "nn.softmin"), ("x(3, 4)", *ALONG)),
    **dict.fromkeys(("nn.elu", "nn.celu"), ("x(3, 4)", "x(3, 4), 0.3")),
    "nn.hardtanh": ["x(3, 4)", "x(3, 4), -0.3, 1.5"],
    **dict.fromkeys(("nn.softshrink", "nn.hardshrink"), ("x(3, 4)", "x(3, 4), 0.75")),
    "nn.threshold": ["x(3, 4), 0.25, -3.0"],
    "nn.prelu": ["x(3, 4), x(4)", "x(2, 3, 4), x(3)", "x(5), x(1)"],
    "nn.rrelu": ["x(3, 4)", "x(3, 4), 0.25, 0.25, training=True"],
    "nn.glu": ["x(3, 4)", "x(4, 3), axis=0"],
    # At so high a temperature no noise is left, nor anything else.
    "nn.gumbel_softmax": ["x(3, 4), 1e30", "x(3, 4), 1e30, axis=0"],
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
        *LOSS, 'x(4, 3), x(4, 3), x(4, 1), pos_weight=x(3, low=0.5), reduction="sum"'],
    "nn.binary_cross_entropy": [
        *(f"x(4, 3, low=0.1, high=0.9), x(4, 3, low=0.1, high=0.9){rest}" for rest in (
            "", ', reduction="none"', ', x(3, low=0.5), reduction="sum"'))],
    "nn.huber_loss": [*LOSS, "x(4, 3), x(4, 3), delta=0.5"],
    "nn.smooth_l1_loss": [*LOSS, "x(4, 3), x(4, 3), beta=0.5", "x(4, 3), x(4, 3), beta=0.0"],
    "nn.kl_div": [
        "x(4, 3), x(4, 3, low=0.1, high=1.0)",
        'x(4, 3), x(4, 3, low=0.1, high=1.0), reduction="batchmean"',
        'x(4, 3), x(4, 3), reduction="none", log_target=True',
    ],
    "nn.poisson_nll_loss": [
        "x(4, 3), x(4, 3, low=0.0, high=3.0)",
        "x(4, 3, low=0.1), x(4, 3, low=0.0, high=3.0), log_input=False, full=True, "
        'reduction="none"',
    ],
    "nn.gaussian_nll_loss": [
        "x(4, 3), x(4, 3), x(4, 3, low=0.3)",
        'x(4, 3), x(4, 3), x(4, low=0.3), full=True, reduction="none"',
        'x(4, 3), x(4, 3), 2.0, reduction="sum"',
    ],
    **dict.fromkeys(("nn.hinge_embedding_loss", "nn.soft_margin_loss"), (
        "x(4, 3), i(4, 3, n=2) * 2 - 1", 'x(4, 3), i(4, 3, n=2) * 2 - 1, reduction="none"')),
    "nn.margin_ranking_loss": [
        "x(4), x(4), i(4, n=2) * 2 - 1",
        'x(4), x(4), i(4, n=2) * 2 - 1, margin=0.3, reduction="none"',
    ],
    "nn.multi_margin_loss": [
        "x(4, 3), i(4, n=3)",
        'x(4, 3), i(4, n=3), 2, 0.7, x(3, low=0.5), reduction="none"',
    ],
    "nn.multilabel_margin_loss": [
        "x(3, 4), i(3, 4, n=4)", 'x(3, 4), i(3, 4, n=4, low=-1), reduction="none"'],
    "nn.multilabel_soft_margin_loss": [
        "x(4, 3), i(4, 3, n=2)", 'x(4, 3), i(4, 3, n=2), x(3, low=0.5), reduction="none"'],
    "nn.sigmoid_focal_loss": [
        "x(4, 3), i(4, 3, n=2)", 'x(4, 3), i(4, 3, n=2), alpha=-1.0, gamma=1.5, reduction="none"'],
    "nn.pairwise_distance": [
        "x(4, 3), x(4, 3)", "x(2, 4, 3), x(3), 1.0", "x(3), x(3), keepdims=True"],
    "nn.cosine_similarity": [
        "x(4, 3), x(4, 3)", "x(2, 4, 3), x(4, 1), axis=-1", "x(4, 3), x(3), axis=0"],
    "nn.cosine_embedding_loss": [
        "x(4, 3), x(4, 3), i(4, n=2) * 2 - 1",
        'x(4, 3), x(4, 3), i(4, n=2) * 2 - 1, margin=0.1, reduction="none"',
    ],
    "nn.triplet_margin_loss": [
        "x(4, 3), x(4, 3), x(4, 3)",
        'x(4, 3), x(4, 3), x(4, 3), margin=2.0, p=1.0, swap=True, reduction="none"',
    ],
    "nn.ctc_loss": [
        "x(5, 2, 3, low=-3.0, high=-0.1), i(2, 2, n=3, low=1), i(2, n=6, low=4), i(2, n=3, low=1)",
        "x(4, 2, 3, low=-3.0, high=-0.1), i(2, 2, n=2), i(2, n=5, low=4), i(2, n=3, low=1), 2, "
        '"none"',
    ],
    "nn.linear": ["x(5, 3), x(4, 3)", "x(2, 5, 3), x(4, 3), x(4)"],
    "nn.layer_norm": ["x(4, 6)", "x(4, 6), weight=x(6), bias=x(6)",
                      "x(2, 4, 3), axis=(1, 2), weight=x(4, 3), eps=0.1"],
    "nn.rms_norm": ["x(4, 6), eps=1e-5", "x(4, 6), weight=x(6), eps=1e-6"],
    "nn.group_norm": ["x(2, 4, 3), 2", "x(2, 4, 3), 2, x(4), x(4)"],
    "nn.batch_norm": ["x(3, 2, 4), x(2), x(2, low=0.5), x(2), x(2)"],
    "nn.softplus": ["x(3, 4)", "x(3, 4), beta=2.0"],
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
    "nn.lstm": [
        "x(4, 2, 3), x(2, 5), x(2, 5), x(20, 3), x(20, 5)",
        "x(3, 4, 2), x(4, 3), x(4, 3), x(12, 2), x(12, 3), x(12), x(12), reverse=True",
        "x(3, 1, 2), x(1, 17), x(1, 17), x(68, 2), x(68, 17), bias_ih=x(68)",
    ],
    "nn.gru": [
        "x(4, 2, 3), x(2, 5), x(15, 3), x(15, 5)",
        "x(3, 4, 2), x(4, 3), x(9, 2), x(9, 3), x(9), x(9), reverse=True",
        "x(3, 1, 2), x(1, 17), x(51, 2), x(51, 17), bias_hh=x(51)",
    ],
    "nn.rnn": [
        "x(4, 2, 3), x(2, 5), x(5, 3), x(5, 5)",
        'x(3, 4, 2), x(4, 3), x(3, 2), x(3, 3), x(3), x(3), nonlinearity="relu", reverse=True',
        "x(3, 1, 2), x(1, 17), x(17, 2), x(17, 17), bias_hh=x(17)",
    ],
    "nn.lstm_cell": [
        "x(2, 3), x(2, 5), x(2, 5), x(20, 3), x(20, 5)",
        "x(2), x(3), x(3), x(12, 2), x(12, 3), x(12), x(12)",
    ],
    "nn.gru_cell": [
        "x(2, 3), x(2, 5), x(15, 3), x(15, 5)",
        "x(2), x(3), x(9, 2), x(9, 3), x(9), x(9)",
    ],
    "nn.rnn_cell": [
        "x(2, 3), x(2, 5), x(5, 3), x(5, 5)",
        'x(2), x(3), x(3, 2), x(3, 3), x(3), x(3), nonlinearity="relu"',
    ],
    "nn.conv1d": ["x(2, 4, 7), x(6, 2, 3), x(6), stride=2, padding=1, groups=2",
                  'x(4, 7), x(6, 4, 4), x(6), padding="same", dilation=1'],
    "nn.conv2d": ["x(2, 3, 5, 6), x(4, 3, 3, 2)",
                  "x(2, 4, 6, 5), x(4, 2, 2, 3), x(4), stride=(2, 1), padding=1, groups=2",
                  "x(2, 3, 6, 5), x(4, 3, 2, 3), dilation=(1, 2)"],
    "nn.conv3d": ["x(1, 2, 4, 4, 3), x(3, 2, 2, 2, 2), padding=(1, 0, 1)"],
    "nn.conv_transpose1d": [
        "x(2, 4, 5), x(4, 3, 3), x(6), stride=2, padding=1, output_padding=1, groups=2",
    ],
    "nn.conv_transpose2d": [
        "x(2, 3, 3, 4), x(3, 2, 3, 2), stride=(2, 1), dilation=(1, 2)",
        "x(2, 3, 4), x(2, 3, 2, 3), x(3), padding=(0, 1), output_padding=(2, 1), dilation=(3, 2)"],
    "nn.conv_transpose3d": ["x(1, 2, 3, 2, 3), x(2, 3, 2, 2, 2), padding=1"],
}
