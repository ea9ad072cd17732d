"""NumPy, and NumExpr on rows that are one expression. Neither has gradients."""

import math

import numpy as np
from case import Missing

from .base import Engine


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softmax(x):
    x = np.exp(x - x.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True)


class Numpy(Engine):
    """NumPy."""

    sigmoid, softmax = staticmethod(sigmoid), staticmethod(softmax)

    def __init__(self, threads):
        self.exp, self.tanh, self.sqrt, self.abs = np.exp, np.tanh, np.sqrt, np.abs
        self.sum, self.mean, self.max, self.sort = np.sum, np.mean, np.max, np.sort
        self.argmax, self.cumsum, self.reshape = np.argmax, np.cumsum, np.reshape
        self.transpose, self.stack = np.transpose, np.stack

    def array(self, x, dtype="float32"):
        if dtype == "bfloat16":
            raise Missing("no bfloat16")
        return x

    def forward(self, f, arrays):
        return lambda: f(*arrays)

    def relu(self, x):
        return np.maximum(x, 0)

    def relu6(self, x):
        return np.clip(x, 0, 6)

    def gelu(self, x):
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))

    def layer_norm(self, x, w, b):
        x = x - x.mean(-1, keepdims=True)
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * w + b

    def take(self, table, i):
        return table[i]

    def attention(self, q, k, v, causal):
        scores = q @ k.swapaxes(-1, -2) * np.float32(1 / math.sqrt(q.shape[-1]))
        if causal:
            later = np.triu(np.ones(scores.shape[-2:], bool), 1)
            scores = np.where(later, np.float32(-np.inf), scores)
        return softmax(scores) @ v


class Numexpr(Numpy):
    """NumExpr."""

    def __init__(self, threads):
        import numexpr

        numexpr.set_num_threads(threads)
        self.evaluate = numexpr.evaluate

    def prepare(self, case, s):
        if not case.text:
            raise Missing("no expression")
        names = dict(zip("xy", case.inputs(s), strict=False))
        return lambda: self.evaluate(case.text, names)


class Reference(Numpy):
    """NumPy by the definitions of what it lacks, to compare small rows with; never measured. Rows
    with gradients give the value that is differentiated, training rows the first loss."""

    def array(self, x, dtype="float32"):
        return x.astype(np.float64) if x.dtype == np.float32 else x

    def recorded(self, f, arrays, wrt):
        return self.forward(f, arrays)

    def training(self, loss, parameters, batch, optimizer):
        return lambda: loss(parameters, *batch)

    def windows(self, x, size, stride, padding, value):
        edges = ((0, 0), (0, 0), (padding, padding), (padding, padding))
        x = np.pad(x, edges, constant_values=value)
        view = np.lib.stride_tricks.sliding_window_view(x, (size, size), (2, 3))
        return view[:, :, ::stride, ::stride]

    def conv(self, x, w, bias, stride, padding, groups):
        x = self.windows(x, w.shape[-1], stride, padding, 0)
        parts = zip(np.split(x, groups, 1), np.split(w, groups, 0), strict=True)
        y = np.concatenate([np.einsum("nchwij,ocij->nohw", a, f) for a, f in parts], 1)
        return y if bias is None else y + bias[:, None, None]

    def max_pool(self, x, size, stride, padding):
        return self.windows(x, size, stride, padding, -np.inf).max((-1, -2))

    def batch_norm(self, x, w, b, mean=None, var=None):
        mean = x.mean((0, 2, 3)) if mean is None else mean
        var = x.var((0, 2, 3)) if var is None else var
        mean, var, w, b = (a[:, None, None] for a in (mean, var, w, b))
        return (x - mean) / np.sqrt(var + 1e-5) * w + b

    def cross_entropy(self, logits, labels):
        x = logits - logits.max(-1, keepdims=True)
        x = x - np.log(np.exp(x).sum(-1, keepdims=True))
        return -x[np.arange(len(x)), labels].mean()

    def lstm(self, x, into, over, bias):
        from rows_models import gates

        into = x @ into + bias
        h = c = np.zeros((into.shape[1], over.shape[0]))
        outputs = []
        for g in into:
            h, c = gates(self, over.shape[0], g + h @ over, c)
            outputs.append(h)
        return np.stack(outputs)
