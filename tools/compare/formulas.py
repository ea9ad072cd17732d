"""Ops of PyTorch that are no ops of ours, as a line or a few in ours, as the error for their
unknown name says. Everything in `FORMULAS` takes PyTorch's arguments.
"""

import functools
import itertools

import numpy as np

import wengert as wg

from calls import (
    along,
    index_reduced,
    joined,
    line_of,
    linspace,
    parts_by,
    rounded,
    shape_of,
    spread,
)


def at_least(x, rank):
    if x.ndim >= rank:
        return x + 0
    if rank == 3 and x.ndim == 2:
        return x.reshape((*x.shape, 1))
    shapes = {1: (-1,), 2: (1, -1), 3: (1, -1, 1)}
    return x.reshape(shapes[rank])


def each_at_least(arrays, rank):
    several = len(arrays) != 1 or isinstance(arrays[0], list | tuple)
    arrays = arrays[0] if len(arrays) == 1 and several else arrays
    found = tuple(at_least(x, rank) for x in arrays)
    return found if several else found[0]


def median(x, dim=None, keepdim=False):
    """PyTorch gives the lower of two in the middle; `wg.median` their mean, as NumPy."""
    if dim is None:
        line = x.reshape(-1)
        return wg.kthvalue(line, (line.size + 1) // 2, 0)[0]
    return wg.kthvalue(x, (x.shape[dim] + 1) // 2, dim, keepdims=keepdim)


def with_mean(function):
    def called(x, *args, dim=None, keepdim=False, **kwargs):
        axis = next((a for a in args if not isinstance(a, bool)), dim)
        axis = axis or None if isinstance(axis, list | tuple) else axis
        return (spread(function)(x, *args, dim=dim, keepdim=keepdim, **kwargs),
                wg.mean(x, axis=axis, keepdims=keepdim))  # fmt: skip

    return called


def written(x, index, values):
    y = x + 0
    y[index] = values
    return y


def trapezoid(y, x=None, dx=1.0, dim=-1):
    n = y.shape[dim]
    low, high = y[along(y, dim, slice(0, n - 1))], y[along(y, dim, slice(1, n))]
    if x is None:
        return ((low + high) * (dx / 2)).sum(axis=dim)
    return ((low + high) * spaces(x, y, dim) / 2).sum(axis=dim)


def spaces(x, y, dim):
    if x.ndim == 1:
        shape = [1] * y.ndim
        shape[dim] = -1
        return wg.diff(x).reshape(tuple(shape))
    return wg.diff(x, axis=dim)


def cumulative_trapezoid(y, x=None, dx=1.0, dim=-1):
    n = y.shape[dim]
    low, high = y[along(y, dim, slice(0, n - 1))], y[along(y, dim, slice(1, n))]
    step = dx if x is None else spaces(x, y, dim)
    return wg.cumulative_sum((low + high) * step / 2, axis=dim)


def summed_to(x, *size):
    size = shape_of(size)
    x = x.sum(axis=tuple(range(x.ndim - len(size)))) if x.ndim > len(size) else x
    axes = tuple(i for i, n in enumerate(size) if n == 1 != x.shape[i])
    return x.sum(axis=axes, keepdims=True) if axes else x + 0


def product_of(c, y, beta, alpha):
    """PyTorch does not look at `c` where beta is 0."""
    return alpha * y if beta == 0 else beta * c + alpha * y


def reversed_args(function):
    return lambda x, other: function(wg.asarray(other), x)


def without_nans(function):
    def called(x, dim=None, keepdim=False, dtype=None):
        x = x if dtype is None else x.astype(dtype)
        dim = dim or None if isinstance(dim, list | tuple) else dim
        held = ~wg.isnan(x)
        return function(wg.where(held, x, 0.0), held, {"axis": dim, "keepdims": keepdim})

    return called


def unflatten(x, dim, sizes):
    dim = dim % max(x.ndim, 1)
    return x.reshape((*x.shape[:dim], *sizes, *x.shape[dim + 1 :]))


def even_parts(n, parts):
    if isinstance(parts, wg.Tensor):
        parts = parts.tolist()
    if isinstance(parts, int):
        return [n // parts + (i < n % parts) for i in range(parts)]
    edges = [0, *(min(p % n if p < 0 else p, n) for p in parts), n]
    return [max(b - a, 0) for a, b in itertools.pairwise(edges)]


def windows(x, dim, size, step):
    if x.ndim == 0:
        return x.reshape(1)[:size]
    starts = np.arange(0, x.shape[dim] - size + 1, step)
    index = wg.asarray(starts[:, None] + np.arange(size))
    y = wg.take(x, index.reshape(-1), axis=dim)
    axis = dim % x.ndim
    y = y.reshape((*x.shape[:axis], len(starts), size, *x.shape[axis + 1 :]))
    return wg.moveaxis(y, axis + 1, -1)


def kron(a, b):
    rank = max(a.ndim, b.ndim)
    left, right = (1,) * (rank - a.ndim) + a.shape, (1,) * (rank - b.ndim) + b.shape
    x = a.reshape(tuple(n for m in left for n in (m, 1)))
    y = b.reshape(tuple(n for m in right for n in (1, m)))
    return (x * y).reshape(tuple(m * n for m, n in zip(left, right, strict=True)))


def logit(x, eps):
    if eps is not None:
        x = wg.where(x < eps, eps, wg.where(x > 1 - eps, 1 - eps, x))
    return wg.log(x / (1 - x))


def turned(x, quarters, a, b):
    for _ in range(quarters):
        x = wg.flip(wg.swapaxes(x, a, b), a)
    return x + 0


# Ops that are no ops of ours, written in ours as the error for their unknown name says, or so.
FORMULAS = {
    "add": lambda a, b, alpha=1: a + b * alpha if alpha != 1 else wg.add(a, b),
    "sub": lambda a, b, alpha=1: a - b * alpha if alpha != 1 else wg.subtract(a, b),
    "rsub": lambda a, b, alpha=1: b - a * alpha,
    "__rsub__": reversed_args(wg.subtract),
    "__rdiv__": reversed_args(wg.divide),
    "__rmod__": reversed_args(wg.remainder),
    "__rpow__": reversed_args(wg.pow),
    "__rmatmul__": reversed_args(wg.matmul),
    "reciprocal": wg.reciprocal,
    "median": line_of(median),
    "expand_as": lambda x, other: wg.broadcast_to(x, other.shape),
    "reshape_as": lambda x, other: x.reshape(other.shape),
    "view_as": lambda x, other: x.reshape(other.shape),
    "addmm": lambda c, a, b, beta=1, alpha=1: product_of(c, a @ b, beta, alpha),
    "addmm/decomposed": lambda c, a, b, beta=1, alpha=1: product_of(c, a @ b, beta, alpha),
    "addmv": lambda c, a, b, beta=1, alpha=1: product_of(c, a @ b, beta, alpha),
    "addbmm": lambda c, a, b, beta=1, alpha=1: product_of(c, (a @ b).sum(axis=0), beta, alpha),
    "baddbmm": lambda c, a, b, beta=1, alpha=1: product_of(c, a @ b, beta, alpha),
    "addr": lambda c, a, b, beta=1, alpha=1: product_of(c, wg.outer(a, b), beta, alpha),
    "addcmul": lambda x, a, b, value=1: x + value * a * b,
    "addcdiv": lambda x, a, b, value=1: x + value * a / b,
    "narrow": lambda x, dim, start, n: x[
        along(x, dim, slice(int(start) % max(x.shape[dim], 1) if int(start) < 0 else int(start),
                            (int(start) % max(x.shape[dim], 1) if int(start) < 0 else int(start))
                            + n))],
    "narrow_copy": lambda x, dim, start, n: x[along(x, dim, slice(int(start), int(start) + n))],
    "select_scatter": lambda x, v, dim, i: written(x, along(x, dim, i), v),
    "slice_scatter": lambda x, v, dim=0, start=None, end=None, step=1: written(
        x, along(x, dim, slice(start, end, step)), v),
    "var_mean": with_mean(wg.var), "var_mean/unbiased": with_mean(wg.var),
    "std_mean": with_mean(wg.std), "std_mean/unbiased": with_mean(wg.std),
    "aminmax": lambda x, dim=None, keepdim=False: (
        wg.min(x, axis=dim if x.ndim else None, keepdims=keepdim),
        wg.max(x, axis=dim if x.ndim else None, keepdims=keepdim)),
    "dist": lambda a, b, p=2: wg.vector_norm(a - b, ord=float(p)),
    "trapezoid": trapezoid, "trapz": trapezoid, "cumulative_trapezoid": cumulative_trapezoid,
    "sum_to_size": summed_to,
    "fliplr": lambda x: wg.flip(x, 1), "flipud": lambda x: wg.flip(x, 0),
    "frac": lambda x: x - wg.trunc(x),
    "fmod": lambda a, b: a - b * wg.trunc(a / b),
    "div/trunc_rounding": lambda a, b, rounding_mode: wg.trunc(a / b),
    "ldexp": lambda a, b: a * 2.0**b,
    "logspace": lambda a, b, n, base=10.0, **kwargs: wg.pow(
        float(base), linspace(a, b, n, **kwargs)),
    "logspace/tensor_overload": lambda a, b, n, base=10.0, **kwargs: wg.pow(
        float(base), linspace(a, b, n, **kwargs)),
    "heaviside": lambda x, v: wg.where(x == 0, v, wg.where(x > 0, 1.0, 0.0)),
    "isposinf": lambda x: x == float("inf"), "isneginf": lambda x: x == float("-inf"),
    "round/decimals_3": rounded, "round/decimals_neg_3": rounded,
    "nansum": without_nans(lambda x, held, options: wg.sum(x, **options)),
    "nanmean": without_nans(lambda x, held, options: wg.sum(x, **options)
                            / wg.sum(held, **options).astype(x.dtype)),
    "diagflat": lambda x, offset=0: wg.diag(x.reshape(-1), k=offset),
    "unflatten": unflatten,
    "atleast_1d": lambda *xs: each_at_least(xs, 1),
    "atleast_2d": lambda *xs: each_at_least(xs, 2),
    "atleast_3d": lambda *xs: each_at_least(xs, 3),
    "hstack": lambda xs: wg.concat([at_least(x, 1) for x in xs], axis=0 if xs[0].ndim < 2 else 1),
    "vstack": lambda xs: wg.concat([at_least(x, 2) for x in xs], axis=0),
    "dstack": lambda xs: wg.concat([at_least(x, 3) for x in xs], axis=2),
    "column_stack": lambda xs: wg.concat(
        [x.reshape((-1, 1)) if x.ndim < 2 else x for x in xs], axis=1),
    "tensor_split": parts_by(even_parts),
    "hsplit": lambda x, p: parts_by(even_parts)(x, p, 0 if x.ndim == 1 else 1),
    "vsplit": lambda x, p: parts_by(even_parts)(x, p, 0),
    "dsplit": lambda x, p: parts_by(even_parts)(x, p, 2),
    "unfold": windows, "unfold_copy": windows,
    "cartesian_prod": lambda *xs: xs[0] + 0 if len(xs) == 1 else wg.stack(
        [g.reshape(-1) for g in wg.meshgrid(*xs, indexing="ij")], axis=-1),
    "linalg.multi_dot": lambda xs: functools.reduce(wg.matmul, xs),
    "kron": lambda a, b: kron(a, b),
    "scatter_reduce/mean": joined,
    "index_reduce/mean": lambda x, *args, **kwargs: index_reduced(
        x, *args, **kwargs).reshape(x.shape),
    "logit": lambda x, eps=None: logit(x, eps),
    "xlogy": lambda x, y: wg.where(x == 0, wg.where(wg.isnan(y), y, 0.0), x * wg.log(y)),
    "rot90": lambda x, k=1, dims=(0, 1): turned(x, k % 4, *dims),
}  # fmt: skip
