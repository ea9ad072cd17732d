"""What ops of order and of indices must compute, in NumPy."""

import numpy as np

JOINS = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}


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


def beside(x, indices, axis, broadcast):
    """Where an index along an axis may be: outside of it all of `x`, or as far as it reaches."""
    return ... if broadcast else tuple(
        slice(None) if i == axis % x.ndim else slice(n) for i, n in enumerate(indices.shape))


def take_along_axis(x, indices, axis=-1, broadcast=True):
    return np.take_along_axis(x[beside(x, indices, axis, broadcast)], indices, axis)


def put_along_axis(x, indices, values, axis=-1, broadcast=True):
    out = x.copy()
    part = out[beside(x, indices, axis, broadcast)]
    np.put_along_axis(part, indices, np.broadcast_to(values, indices.shape), axis)
    return out


def repeat(x, repeats, axis=None, total_repeat_length=None):
    if total_repeat_length is None:
        return np.repeat(x, repeats, axis)
    x, axis = (x.ravel(), 0) if axis is None else (x, axis)
    n = x.shape[axis]
    places = np.append(np.repeat(np.arange(n), repeats), [n - 1] * total_repeat_length)
    return np.take(x, places[:total_repeat_length], axis)


def index_add(x, index, values, axis=0):
    out = np.moveaxis(x.copy(), axis, 0)
    np.add.at(out, index, np.moveaxis(values, axis, 0))
    return np.moveaxis(out, 0, axis)


def index_copy(x, index, values, axis=0):
    out = np.moveaxis(x.copy(), axis, 0)
    out[index] = np.moveaxis(values, axis, 0) if np.ndim(values) else values
    return np.moveaxis(out, 0, axis)


def index_put(x, indices, values, accumulate=False):
    out = x.copy()
    if accumulate:
        np.add.at(out, tuple(indices), values)
    else:
        out[tuple(indices)] = values
    return out


def masked_scatter(x, mask, values):
    out = np.broadcast_to(x, np.broadcast_shapes(x.shape, mask.shape)).copy()
    mask = np.broadcast_to(mask, out.shape)
    out[mask] = values.ravel()[: mask.sum()]
    return out


def scatter_reduce(x, indices, values, axis=-1, reduce="sum", include_self=True, broadcast=True):
    out = x.copy()
    if broadcast:
        indices = np.broadcast_to(indices, np.broadcast_shapes(
            indices.shape, [1 if i == axis % x.ndim else n for i, n in enumerate(x.shape)]))
    values, seen = np.broadcast_to(values, indices.shape), set()
    for at in np.ndindex(indices.shape):
        place = list(at)
        place[axis] = indices[at] % x.shape[axis]
        place = tuple(place)
        own = include_self or place in seen
        out[place] = JOINS[reduce](out[place], values[at]) if own else values[at]
        seen.add(place)
    return out


def segments(reduce, empty):
    def reference(x, ids, n):
        parts = [x[ids == k] for k in range(n)]
        return np.array([reduce(p, axis=0) if len(p) else np.full(x.shape[1:], empty)
                         for p in parts])
    return reference


def running_extreme(join):
    def reference(x, axis=-1):
        y = join.accumulate(x, axis)
        line = [1] * x.ndim
        line[axis] = -1
        own = np.where(x == y, np.arange(x.shape[axis]).reshape(line), 0)
        return y, np.maximum.accumulate(own, axis)
    return reference


def log_running_sum(x, axis=0):
    top = x.max(initial=-np.inf)
    return np.log(np.cumsum(np.exp(x - top), axis)) + top


def kthvalue(x, k, axis=-1, keepdims=False):
    place = np.take(order(x, axis), [k - 1], axis)
    found = np.take_along_axis(x, place, axis), place
    return found if keepdims else [np.squeeze(y, axis) for y in found]


def mode(x, axis=-1, keepdims=False):
    lines = np.moveaxis(x, axis, -1)
    values, places = np.zeros(lines.shape[:-1]), np.zeros(lines.shape[:-1], int)
    for at in np.ndindex(places.shape):
        found, counts = np.unique(lines[at], return_counts=True)
        values[at] = found[counts.argmax()]
        places[at] = np.flatnonzero(lines[at] == values[at])[-1]
    return [np.expand_dims(y, axis) if keepdims else y for y in (values, places)]
