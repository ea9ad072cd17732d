"""What losses must compute, in NumPy, and what they are made of."""

import math
from itertools import groupby, product

import numpy as np


def sigmoid(x):
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1, small) / (1 + small)


def softplus(x):
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def logsumexp(x, axis=None, keepdims=False):
    top = np.max(x, axis=axis, keepdims=True)
    out = np.log(np.sum(np.exp(x - top), axis=axis, keepdims=True)) + top
    return out if keepdims else np.squeeze(out, axis=axis)


def log_softmax(x, axis=-1):
    return x - logsumexp(x, axis, keepdims=True)


def reduced(values, reduction):
    return {"mean": np.mean, "sum": np.sum, "none": lambda v: v}[reduction](values)


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


def huber(d, delta):
    return np.where(np.abs(d) < delta, d * d / 2, delta * (np.abs(d) - delta / 2))


def smooth_l1_loss(input, target, reduction="mean", beta=1.0):
    d = input - target
    return reduced(np.abs(d) if beta == 0 else huber(d, beta) / beta, reduction)


def binary_cross_entropy(input, target, weight=1.0, reduction="mean"):
    logs = [np.maximum(np.log(p), -100) for p in (input, 1 - input)]
    return reduced(-weight * (target * logs[0] + (1 - target) * logs[1]), reduction)


def kl_div(input, target, reduction="mean", log_target=False):
    p = np.exp(target) if log_target else target
    values = p * ((target if log_target else np.log(target)) - input)
    return values.sum() / len(input) if reduction == "batchmean" else reduced(values, reduction)


def poisson_nll(input, target, log_input=True, full=False, eps=1e-8, reduction="mean"):
    values = np.exp(input) - target * input if log_input else input - target * np.log(input + eps)
    n = np.maximum(target, 1)
    stirling = n * np.log(n) - n + np.log(2 * math.pi * n) / 2
    return reduced(values + np.where(full & (target > 1), stirling, 0), reduction)


def gaussian_nll(input, target, var, full=False, eps=1e-6, reduction="mean"):
    var = np.asarray(var)
    var = np.maximum(var[..., None] if 0 < var.ndim < input.ndim else var, eps)
    values = (np.log(var) + (input - target) ** 2 / var) / 2
    return reduced(values + full * math.log(2 * math.pi) / 2, reduction)


def distance(a, b, p=2.0, eps=1e-6, keepdims=False):
    return np.linalg.vector_norm(a - b + eps, ord=p, axis=-1, keepdims=keepdims)


def triplet(anchor, near, far, margin=1.0, p=2.0, eps=1e-6, swap=False, reduction="mean"):
    away = distance(anchor, far, p, eps)
    away = np.minimum(away, distance(near, far, p, eps)) if swap else away
    return reduced(np.maximum(distance(anchor, near, p, eps) - away + margin, 0), reduction)


def cosine(a, b, axis=1, eps=1e-8):
    a, b = np.broadcast_arrays(a, b)
    lengths = [np.maximum(np.linalg.vector_norm(x, axis=axis), eps) for x in (a, b)]
    return (a * b).sum(axis) / lengths[0] / lengths[1]


def cosine_embedding(a, b, target, margin=0.0, reduction="mean"):
    lengths = ((a * a).sum(-1) + 1e-12) * ((b * b).sum(-1) + 1e-12)
    c = (a * b).sum(-1) / np.sqrt(lengths)
    return reduced(np.where(target > 0, 1 - c, np.maximum(c - margin, 0)), reduction)


def multi_margin(input, target, p=1, margin=1.0, weight=None, reduction="mean"):
    rows, weight = np.atleast_2d(input), np.ones(input.shape[-1]) if weight is None else weight
    values = []
    for row, t in zip(rows, np.atleast_1d(target), strict=True):
        short = np.maximum(margin - row[t] + np.delete(row, t), 0) ** p
        values.append(weight[t] * short.sum() / len(row))
    return reduced(np.reshape(values, input.shape[:-1]), reduction)


def multilabel_margin(input, target, reduction="mean"):
    values = []
    for row, line in zip(input, target, strict=True):
        own = line[: list(line).index(-1)] if -1 in line else line
        others = [i for i in range(len(row)) if i not in own]
        values.append(sum(max(0, 1 - row[t] + row[i]) for t in own for i in others) / len(row))
    return reduced(np.array(values), reduction)


def multilabel_soft_margin(input, target, weight=1.0, reduction="mean"):
    values = weight * (target * softplus(-input) + (1 - target) * softplus(input))
    return reduced(values.mean(-1), reduction)


def focal(input, target, alpha=0.25, gamma=2.0, reduction="mean"):
    p = sigmoid(input) * target + (1 - sigmoid(input)) * (1 - target)
    share = 1 if alpha < 0 else alpha * target + (1 - alpha) * (1 - target)
    crossed = target * softplus(-input) + (1 - target) * softplus(input)
    return reduced(share * (1 - p) ** gamma * crossed, reduction)


def ctc(log_probs, targets, input_lengths, target_lengths, blank=0, reduction="mean"):
    """The sum over every path that gives the labels."""
    values = []
    for n, (steps, count) in enumerate(zip(input_lengths, target_lengths, strict=True)):
        want = list(targets[n, :count])
        paths = product(range(log_probs.shape[2]), repeat=int(steps))
        total = sum(math.exp(sum(log_probs[t, n, k] for t, k in enumerate(path))) for path in paths
                    if [k for k, _ in groupby(path) if k != blank] == want)
        values.append(-math.log(total))
    values = np.array(values) / (target_lengths if reduction == "mean" else 1)
    return reduced(values, reduction)
