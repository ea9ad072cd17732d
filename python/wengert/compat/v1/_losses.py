"""`tf.losses` and `tf.metrics`."""

from __future__ import annotations

import functools
from typing import Any

import wengert as wg
from wengert.compat.v1._graph import (
    GraphKeys,
    add_to_collection,
    get_collection,
    name_scope,
    named,
)
from wengert.compat.v1._nn import nn
from wengert.compat.v1._spaces import formula, losses, metrics
from wengert.compat.v1._state import Variable
from wengert.compat.v1._table import as_tensor


class Reduction:
    """How the losses of elements become one number."""

    NONE = "none"
    SUM = "weighted_sum"
    SUM_OVER_BATCH_SIZE = "weighted_sum_over_batch_size"
    MEAN = "weighted_mean"
    SUM_BY_NONZERO_WEIGHTS = "weighted_sum_by_nonzero_weights"
    SUM_OVER_NONZERO_WEIGHTS = "weighted_sum_by_nonzero_weights"


losses.Reduction = Reduction
_BY_NONZERO = Reduction.SUM_BY_NONZERO_WEIGHTS


@formula(losses)
def compute_weighted_loss(
    losses: Any,
    weights: Any = 1.0,
    scope: str | None = None,
    loss_collection: Any = GraphKeys.LOSSES,
    reduction: str = _BY_NONZERO,
) -> wg.Tensor:
    """Losses times weights, reduced: by default their sum divided by how many weights are not
    zero, or 0 if none is. The result goes to the collection of losses."""
    loss, w = as_tensor(losses), as_tensor(weights)
    w = w.astype(loss.dtype)
    total = loss * _over(loss, w)
    if reduction != Reduction.NONE:
        everywhere = wg.broadcast_to(_over(loss, w), loss.shape)
        counts = {
            Reduction.SUM: lambda: None,
            Reduction.MEAN: lambda: everywhere.sum(),
            Reduction.SUM_OVER_BATCH_SIZE: lambda: wg.ones_like(loss).sum(),
            _BY_NONZERO: lambda: wg.not_equal(everywhere, 0).astype(loss.dtype).sum(),
        }
        if reduction not in counts:
            raise ValueError(f"tf.losses: no reduction is called {reduction!r}")
        count = counts[reduction]()
        total = total.sum()
        if count is not None:
            empty = wg.equal(count, 0)
            total = wg.where(empty, 0.0, total / wg.where(empty, 1.0, count))
    total = named(total, scope or "loss")
    if loss_collection:
        add_to_collection(loss_collection, total)
    return total


def _over(loss: wg.Tensor, w: wg.Tensor) -> wg.Tensor:
    """Weights that go with losses: one, or of the same rank with sizes 1 or the loss's; a last axis
    of size 1 more, or less, counts nothing."""
    if len(w.shape) == len(loss.shape) + 1:
        w = wg.squeeze(w, axis=-1)
    if w.shape and len(w.shape) == len(loss.shape) - 1:
        w = wg.expand_dims(w, -1)
    if w.shape and len(w.shape) != len(loss.shape):
        raise wg.ShapeError(
            f"tf.losses: weights of shape {w.shape} do not go with losses of shape {loss.shape}"
        )
    return w


def _loss(f: Any) -> Any:
    """A loss of elements as one of TensorFlow's, with weights and a reduction."""

    @functools.wraps(f)
    def loss(
        *args: Any,
        weights: Any = 1.0,
        scope: Any = None,
        loss_collection: Any = GraphKeys.LOSSES,
        reduction: str = _BY_NONZERO,
        **options: Any,
    ) -> wg.Tensor:
        # TensorFlow's third argument is the weights, or stands before them where f has three.
        names = f.__code__.co_varnames[: f.__code__.co_argcount]
        order = [*names[:2], *(["axis"] if "axis" in names else []), "weights"]
        given = dict(zip(order, args, strict=False))
        if len(args) > len(order):
            raise TypeError(f"tf.losses.{f.__name__}: takes {', '.join(order)} by position")
        options |= {k: v for k, v in given.items() if k != "weights"}
        weights = given.get("weights", weights)
        return compute_weighted_loss(f(**options), weights, scope, loss_collection, reduction)

    return formula(losses)(loss)


def _pair(labels: Any, predictions: Any) -> tuple[wg.Tensor, wg.Tensor]:
    predictions = as_tensor(predictions)
    labels = as_tensor(labels).astype(predictions.dtype)
    known = labels.shape is not None and predictions.shape is not None
    if known and len(labels.shape) != len(predictions.shape):
        raise wg.ShapeError(
            f"tf.losses: labels of shape {labels.shape}, predictions of shape {predictions.shape}"
        )
    return labels, predictions


@_loss
def mean_squared_error(labels: Any, predictions: Any) -> wg.Tensor:
    """`(predictions - labels)²`."""
    labels, predictions = _pair(labels, predictions)
    return wg.square(predictions - labels)


@_loss
def absolute_difference(labels: Any, predictions: Any) -> wg.Tensor:
    """`|predictions - labels|`."""
    labels, predictions = _pair(labels, predictions)
    return wg.abs(predictions - labels)


@_loss
def huber_loss(labels: Any, predictions: Any, delta: float = 1.0) -> wg.Tensor:
    """Half the square of an error up to `delta`, `delta (|e| - delta / 2)` beyond."""
    labels, predictions = _pair(labels, predictions)
    error = wg.abs(predictions - labels)
    inside = wg.minimum(error, delta)
    return 0.5 * inside * inside + delta * (error - inside)


@_loss
def log_loss(labels: Any, predictions: Any, epsilon: float = 1e-7) -> wg.Tensor:
    """The cross entropy of probabilities `p`: `-t log(p + epsilon) - (1 - t) log(1 - p +
    epsilon)`."""
    t, p = _pair(labels, predictions)
    return -t * wg.log(p + epsilon) - (1.0 - t) * wg.log(1.0 - p + epsilon)


@_loss
def hinge_loss(labels: Any, logits: Any) -> wg.Tensor:
    """`max(0, 1 - (2 labels - 1) logits)`, of labels 0 and 1."""
    labels, logits = _pair(labels, logits)
    return wg.nn.relu(1.0 - (2.0 * labels - 1.0) * logits)


@_loss
def cosine_distance(
    labels: Any, predictions: Any, axis: int | None = None, dim: int | None = None
) -> wg.Tensor:
    """`1 - Σ labels · predictions` along an axis, of vectors of length 1."""
    labels, predictions = _pair(labels, predictions)
    return 1.0 - (labels * predictions).sum(axis=dim if axis is None else axis, keepdims=True)


@_loss
def sigmoid_cross_entropy(
    multi_class_labels: Any, logits: Any, label_smoothing: float = 0
) -> wg.Tensor:
    """The cross entropy of probabilities and logits, element by element."""
    labels, logits = _pair(multi_class_labels, logits)
    labels = labels * (1.0 - label_smoothing) + 0.5 * label_smoothing
    return nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits)


@_loss
def softmax_cross_entropy(onehot_labels: Any, logits: Any, label_smoothing: float = 0) -> wg.Tensor:
    """The cross entropy of rows of probabilities and logits."""
    labels, logits = _pair(onehot_labels, logits)
    classes = logits.shape[-1]
    labels = labels * (1.0 - label_smoothing) + label_smoothing / classes
    return nn.softmax_cross_entropy_with_logits(labels=labels, logits=logits)


@_loss
def sparse_softmax_cross_entropy(labels: Any, logits: Any) -> wg.Tensor:
    """The cross entropy of classes and rows of logits."""
    labels, logits = as_tensor(labels), as_tensor(logits)
    if labels.shape is not None and len(labels.shape) == len(logits.shape):
        labels = wg.squeeze(labels, axis=-1)
    return nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)


@formula(losses)
def add_loss(loss: Any, loss_collection: Any = GraphKeys.LOSSES) -> None:
    """Put a loss into the collection."""
    add_to_collection(loss_collection, loss)


@formula(losses)
def get_losses(scope: str | None = None, loss_collection: Any = GraphKeys.LOSSES) -> list[Any]:
    """The losses of the collection."""
    return get_collection(loss_collection, scope)


@formula(losses)
def get_regularization_losses(scope: str | None = None) -> list[Any]:
    """What regularizers gave."""
    return get_collection(GraphKeys.REGULARIZATION_LOSSES, scope)


@formula(losses)
def get_regularization_loss(scope: str | None = None, name: str | None = None) -> Any:
    """The sum of what regularizers gave."""
    found = get_collection(GraphKeys.REGULARIZATION_LOSSES, scope)
    return functools.reduce(wg.add, found) if found else wg.zeros(())


@formula(losses)
def get_total_loss(
    add_regularization_losses: Any = True, name: str = "total_loss", scope: str | None = None
) -> wg.Tensor:
    """The sum of the losses of the collection, and of what regularizers gave."""
    found = get_losses(scope)
    if add_regularization_losses:
        found = found + get_regularization_losses(scope)
    if not found:
        raise ValueError("tf.losses.get_total_loss: there are no losses")
    return named(functools.reduce(wg.add, found), name)


# Metrics: a value over all that was seen, and what takes in more. Counts are local variables.


def _counter(name: str) -> Any:
    return Variable(0.0, False, collections=[GraphKeys.LOCAL_VARIABLES], name=name)


def _ratio(name: str, top: Any, bottom: Any) -> tuple[wg.Tensor, wg.Tensor]:
    """`Σ top / Σ bottom` over the updates, 0 before the first, and the update."""
    with name_scope(name):
        total, count = _counter("total"), _counter("count")
    new = total.assign_add(top), count.assign_add(bottom)

    def quotient(a: Any, b: Any) -> wg.Tensor:
        none = wg.equal(b, 0)
        return wg.where(none, 0.0, a / wg.where(none, 1.0, b))

    value, update = quotient(total, count), quotient(*new)
    return named(value, f"{name}/value"), named(update, f"{name}/update_op")


def _weighted(x: wg.Tensor, weights: Any) -> tuple[wg.Tensor, wg.Tensor]:
    x = x.astype(wg.float32)
    w = wg.ones_like(x) if weights is None else wg.broadcast_to(as_tensor(weights), x.shape)
    w = w.astype(wg.float32)
    return (x * w).sum(), w.sum()


@formula(metrics)
def mean(
    values: Any,
    weights: Any = None,
    metrics_collections: Any = None,
    updates_collections: Any = None,
    name: str | None = None,
) -> tuple[wg.Tensor, wg.Tensor]:
    """The mean of all values."""
    return _ratio(name or "mean", *_weighted(as_tensor(values), weights))


@formula(metrics)
def accuracy(
    labels: Any,
    predictions: Any,
    weights: Any = None,
    metrics_collections: Any = None,
    updates_collections: Any = None,
    name: str | None = None,
) -> tuple[wg.Tensor, wg.Tensor]:
    """How often predictions are the labels."""
    predictions = as_tensor(predictions)
    labels = as_tensor(labels).astype(predictions.dtype)
    if len(labels.shape) == len(predictions.shape) + 1:
        labels = wg.squeeze(labels, axis=-1)
    return _ratio(name or "accuracy", *_weighted(wg.equal(labels, predictions), weights))


@formula(metrics)
def mean_squared_error_(
    labels: Any, predictions: Any, weights: Any = None, name: str | None = None, **options: Any
) -> tuple[wg.Tensor, wg.Tensor]:
    """The mean of `(predictions - labels)²`."""
    t, p = _pair(labels, predictions)
    return _ratio(name or "mean_squared_error", *_weighted(wg.square(p - t), weights))


@formula(metrics)
def mean_absolute_error(
    labels: Any, predictions: Any, weights: Any = None, name: str | None = None, **options: Any
) -> tuple[wg.Tensor, wg.Tensor]:
    """The mean of `|predictions - labels|`."""
    t, p = _pair(labels, predictions)
    return _ratio(name or "mean_absolute_error", *_weighted(wg.abs(p - t), weights))


def _hits(labels: Any, predictions: Any, weights: Any, of: str) -> tuple[wg.Tensor, wg.Tensor]:
    t, p = (as_tensor(v).astype(wg.bool) for v in (labels, predictions))
    both, _ = _weighted(wg.logical_and(t, p), weights)
    every, _ = _weighted(p if of == "precision" else t, weights)
    return both, every


@formula(metrics)
def precision(
    labels: Any, predictions: Any, weights: Any = None, name: str | None = None, **options: Any
) -> tuple[wg.Tensor, wg.Tensor]:
    """How many of those that are predicted hold."""
    return _ratio(name or "precision", *_hits(labels, predictions, weights, "precision"))


@formula(metrics)
def recall(
    labels: Any, predictions: Any, weights: Any = None, name: str | None = None, **options: Any
) -> tuple[wg.Tensor, wg.Tensor]:
    """How many of those that hold are predicted."""
    return _ratio(name or "recall", *_hits(labels, predictions, weights, "recall"))


metrics.mean_squared_error = vars(metrics).pop("mean_squared_error_")
