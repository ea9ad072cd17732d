"""What normalisation, convolution, attention and recurrent cells must compute, in NumPy."""

from itertools import product

import numpy as np
from references_losses import log_softmax, sigmoid


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


def rms_norm(x, axis=-1, weight=None, *, eps):
    y = x / np.sqrt((x * x).mean(axis, keepdims=True) + eps)
    return y if weight is None else y * weight


def group_norm(x, groups, weight=None, bias=None, eps=1e-5):
    y = x.reshape(x.shape[0], groups, -1)
    return scaled(normalised(y, (2,), eps).reshape(x.shape), weight, bias, axis=1)


def batch_norm(x, mean, var, weight=None, bias=None, eps=1e-5):
    shape = [1, -1] + [1] * (x.ndim - 2)
    y = (x - mean.reshape(shape)) / np.sqrt(var.reshape(shape) + eps)
    return scaled(y, weight, bias, axis=1)


def tuple_of(value, rank):
    return (value,) * rank if isinstance(value, int) else tuple(value)


def conv(rank):
    def reference(x, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
        if x.ndim == rank + 1:
            y = reference(x[None], weight, bias, stride, padding, dilation, groups)
            return y[0]
        kernel = weight.shape[2:]
        s, d = tuple_of(stride, rank), tuple_of(dilation, rank)
        if padding == "same":
            total = [e * (k - 1) for e, k in zip(d, kernel, strict=True)]
            around = [(n // 2, n - n // 2) for n in total]
        else:
            around = [(q, q) for q in tuple_of(padding, rank)]
        x = np.pad(x, [(0, 0), (0, 0), *around])
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
        if x.ndim == rank + 1:
            rest = (stride, padding, output_padding, dilation, groups)
            return reference(x[None], weight, bias, *rest)[0]
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


def attention(q, k, v, mask=None, is_causal=False, scale=None):
    scores = q @ np.swapaxes(k, -1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
    return np.exp(log_softmax(scores)) @ v


def lstm_cell(x, h, c, weight_ih, weight_hh, bias_ih=0, bias_hh=0):
    i, f, g, o = np.split(x @ weight_ih.T + bias_ih + h @ weight_hh.T + bias_hh, 4, -1)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(c), c


def gru_cell(x, h, weight_ih, weight_hh, bias_ih=0, bias_hh=0):
    fed = np.split(x @ weight_ih.T + bias_ih, 3, -1)
    own = np.split(h @ weight_hh.T + bias_hh, 3, -1)
    r, z = sigmoid(fed[0] + own[0]), sigmoid(fed[1] + own[1])
    return (1 - z) * np.tanh(fed[2] + r * own[2]) + z * h


def rnn_cell(x, h, weight_ih, weight_hh, bias_ih=0, bias_hh=0, nonlinearity="tanh"):
    sums = x @ weight_ih.T + bias_ih + h @ weight_hh.T + bias_hh
    return np.tanh(sums) if nonlinearity == "tanh" else np.maximum(sums, 0)


def sequence(cell, parts):
    """A cell over a sequence: the first part of its state at every step, and the last state."""
    def reference(x, *rest, reverse=False, **options):
        state, weights = rest[:parts], rest[parts:]
        y = np.zeros((len(x), *state[0].shape))
        for t in range(len(x))[:: -1 if reverse else 1]:
            found = cell(x[t], *state, *weights, **options)
            state = found if isinstance(found, tuple) else (found,)
            y[t] = state[0]
        return y, *state
    return reference
