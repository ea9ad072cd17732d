"""How an op of PyTorch is called here: under its own name, under another, with other arguments, or
as a formula of a line. Everything in `CALLS` and `FORMULAS` takes PyTorch's arguments.

A call raises `ByDesign` with the reason where a sample asks for what is left out on purpose.
"""

import functools

import wengert as wg


class ByDesign(Exception):
    """A documented difference: its text is the reason that is counted."""


# Names of ours for PyTorch's, where the arguments are the same or renamed as below.
NAMES = {
    "clamp": "clip", "cat": "concat",
    "mul": "multiply", "true_divide": "divide", "neg": "negative", "eq": "equal",
    "ne": "not_equal", "lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal",
    "movedim": "moveaxis", "absolute": "abs",
    "bitwise_not": "bitwise_invert", "arctan2": "atan2", "unbind": "unstack",
    "unbind_copy": "unstack", "float_power": "pow", "ger": "outer", "mm": "matmul",
    "bmm": "matmul", "mv": "matmul", "dot": "matmul", "vdot": "matmul", "sgn": "sign",
    "conj": "positive", "conj_physical": "positive", "real": "positive", "alias_copy": "positive",
    "clone": "positive", "contiguous": "positive", "resolve_conj": "positive",
    "resolve_neg": "positive", "take_along_dim": "take_along_axis", "tile": "tile",
    "repeat": "tile", "msort": "sort",
    "max/binary": "maximum", "min/binary": "minimum", "clamp_min": "maximum",
    "clamp_max": "minimum", "squeeze/multiple": "squeeze", "squeeze_copy": "squeeze",
    "nn.functional.logsigmoid": "nn.log_sigmoid", "softmax": "nn.softmax",
    "log_softmax": "nn.log_softmax", "linalg.vecdot": "vecdot", "linalg.cross": "cross",
    "sinc": "special.sinc",
    "meshgrid/variadic_tensors": "meshgrid",
    "broadcast_tensors": "broadcast_arrays",
    "__radd__": "add", "__rmul__": "multiply", "__rand__": "bitwise_and", "__ror__": "bitwise_or",
    "__rxor__": "bitwise_xor",
}  # fmt: skip

RENAMED = {
    "dim": "axis", "keepdim": "keepdims", "dims": "axis", "input": None, "dim0": "axis1",
    "dim1": "axis2", "other": "b", "shifts": "shift", "inplace": None, "out": None,
    "layout": None, "memory_format": None, "size_average": None, "device": None,
    "pin_memory": None, "reduce_": None,
}  # fmt: skip


def shape_of(sizes):
    """Sizes given one by one or as one sequence."""
    flat = sizes[0] if len(sizes) == 1 and isinstance(sizes[0], list | tuple) else sizes
    return tuple(int(n) for n in flat)


def as_line(x):
    return x.reshape(1) if x.ndim == 0 else x


def line_of(function):
    """PyTorch gives a scalar one axis; the Array API refuses an axis of a tensor of rank 0."""

    @functools.wraps(function)
    def called(x, *args, **kwargs):
        if isinstance(x, wg.Tensor) and x.ndim == 0:
            result = function(x.reshape(1), *args, **kwargs)
            parts = result if isinstance(result, tuple) else (result,)
            parts = tuple(y.reshape(()) if y.size == 1 else y for y in parts)
            return parts if isinstance(result, tuple) else parts[0]
        return function(x, *args, **kwargs)

    return called


def take_along(x, axis, index, **_):
    """torch.gather: outside the axis, the first of `x` count where the index is shorter."""
    axis, x = axis % max(x.ndim, 1), as_line(x)
    index, shape = as_line(index), index.shape
    if index.size == 0:
        return x.reshape(-1)[:0].reshape(shape)
    cut = tuple(slice(None) if i == axis else slice(n) for i, n in enumerate(index.shape))
    return x[cut].take_along_axis(index, axis).reshape(shape)


def joined(x, axis, index, values, reduce, include_self=True):
    """torch.scatter_reduce: what is shorter than `x` outside the axis meets the first of `x`."""
    shape, x, index = x.shape, as_line(x), as_line(index)
    if not index.size:
        return x.reshape(shape)
    axis = axis % x.ndim
    if not isinstance(values, wg.Tensor):
        values = wg.full(index.shape, values, dtype=x.dtype)
    values = as_line(values)[tuple(slice(n) for n in index.shape)]
    cut = tuple(slice(None) if i == axis else slice(n) for i, n in enumerate(index.shape))
    reduce = {"amax": "max", "amin": "min", "add": "sum", "multiply": "prod"}.get(reduce, reduce)
    if reduce == "mean":
        total = joined(x, axis, index, values, "sum", include_self)
        ones = wg.ones(x.shape, dtype=x.dtype)
        count = joined(ones, axis, index, wg.ones_like(values), "sum", include_self)
        return (total / count).reshape(shape)
    if reduce == "replace":
        y = wg.put_along_axis(x[cut], index, values, axis)
    else:
        y = wg.scatter_reduce(x[cut], index, values, axis, reduce=reduce,
                              include_self=include_self)  # fmt: skip
    places = wg.meshgrid(*(wg.arange(n) for n in y.shape), indexing="ij")
    return wg.index_put(x, list(places), y).reshape(shape)


def index_reduced(x, axis, index, values, reduce, include_self=True):
    """torch.index_reduce: scatter_reduce with one index for whole slices."""
    x, index, values = as_line(x), as_line(index), as_line(values)
    sizes = [1] * values.ndim
    sizes[axis] = -1
    index = wg.broadcast_to(index.reshape(tuple(sizes)), values.shape)
    return joined(x, axis, index, values, reduce, include_self)


def padded(x, pad, mode="constant", value=None):
    """torch's widths start at the last axis."""
    pairs = [tuple(pad[i : i + 2]) for i in range(0, len(pad), 2)][::-1]
    widths = [(0, 0)] * (x.ndim - len(pairs)) + pairs
    if not widths:
        return x + 0
    mode = {"replicate": "edge", "circular": "wrap"}.get(mode, mode)
    return wg.pad(x, tuple(widths), mode=mode, value=0 if value is None else value)


def put_at(x, index, values, accumulate=False):
    index = tuple(i for i in index)
    if accumulate:
        places = []
        for i in index:
            places += wg.nonzero(i) if i.dtype == wg.bool else [i]
        return wg.index_put(x, places, values, accumulate=True)
    y = x + 0
    y[index] = values
    return y


def arange(*bounds, end=None, start=None, step=None, **kwargs):
    bounds = [b for b in (*([start] if start is not None else []), *bounds) if b is not None]
    if end is not None:
        bounds.append(end)
    if len(bounds) == 3:
        step = bounds.pop()
    return wg.arange(*bounds, step=1 if step is None else step, **options(kwargs))


def linspace(start, stop, n, **kwargs):
    start, stop = (v.item() if isinstance(v, wg.Tensor) else v for v in (start, stop))
    return wg.linspace(start, stop, n, **options(kwargs))


def options(kwargs):
    """Arguments of places and of memory, which have no counterpart, are left out."""
    dropped = ("device", "layout", "pin_memory", "memory_format", "requires_grad")
    return {k: v for k, v in kwargs.items() if k not in dropped}


def parts_by(sizes_of):
    def called(x, parts, dim=0):
        n = x.shape[dim]
        return wg.split(x, tuple(sizes_of(n, parts)), axis=dim)

    return called


def equal_pieces(n, size):
    return [min(size, n - i) for i in range(0, n, size)] or [0]


def cut(x, sizes, dim=0):
    return wg.split(x, tuple(sizes), axis=dim)


def histogram(x, bins, range=None, weight=None, density=False):
    bins = [float(e) for e in bins] if isinstance(bins, tuple | list) else bins
    if range is not None and range[0] == range[1]:
        range = None if x.size and float(x.min()) < float(x.max()) else (range[0], range[0] + 1)
    counts, edges = wg.histogram(x, bins, range=range, density=density, weights=weight)
    return counts.astype(x.dtype), edges


def quantile(x, q, dim=None, keepdim=False, interpolation="linear"):
    if interpolation != "linear":
        raise ByDesign("quantile: interpolation is linear")
    if isinstance(q, wg.Tensor):
        if q.requires_grad:
            raise ByDesign("quantile: the fraction is a number, without a gradient")
        if q.ndim:
            return wg.stack([quantile(x, v, dim, keepdim) for v in q.tolist()])
        q = q.item()
    if x.ndim == 0:
        return x + 0
    return wg.quantile(x, float(q), axis=dim, keepdims=keepdim)


def spread(function):
    def called(x, *args, dim=None, unbiased=None, correction=None, keepdim=False):
        for given in args:
            if isinstance(given, bool):
                unbiased = given
            else:
                dim = given
        if correction is None:
            correction = 1.0 if unbiased is None or unbiased else 0.0
        return function(x, axis=dim or None if isinstance(dim, list | tuple) else dim,
                        correction=float(correction), keepdims=keepdim)  # fmt: skip

    return called


def norm(x, ord=2, dim=None, keepdim=False, dtype=None):
    if isinstance(ord, str):
        if ord != "fro":
            raise ByDesign("norm: there are no decompositions, so no nuclear norm")
        ord = 2
    x = x if dtype is None else x.astype(dtype)
    if isinstance(dim, list | tuple) and not dim:
        dim = None
    return wg.vector_norm(x, axis=dim, keepdims=keepdim, ord=float(2 if ord is None else ord))


def extremes(largest):
    reduce, index = (wg.max, wg.argmax) if largest else (wg.min, wg.argmin)
    return lambda x, dim, keepdim=False: (
        reduce(x, axis=dim, keepdims=keepdim), index(x, axis=dim, keepdims=keepdim))  # fmt: skip


def searched(sorted_, values, out_int32=False, right=False, side=None, sorter=None):
    side = side or ("right" if right else "left")
    if sorted_.ndim > 1:
        raise ByDesign("searchsorted: the sorted tensor has rank 1 (Array API)")
    found = wg.searchsorted(sorted_, values, side=side, sorter=sorter)
    return found.astype(wg.int32) if out_int32 else found


def positions(x):
    return wg.stack(list(wg.nonzero(x)), axis=-1)


def along(x, dim, what):
    index = [slice(None)] * x.ndim
    index[dim] = what
    return tuple(index)


def rounded(x, decimals=0):
    return wg.round(x) if decimals == 0 else wg.round(x * 10.0**decimals) / 10.0**decimals


def tensordot(a, b, dims=2):
    axes = dims if isinstance(dims, int) else tuple(tuple(d) for d in dims)
    return wg.tensordot(a, b, axes=axes)


def casted(function):
    def called(x, dim, dtype=None):
        return function(x if dtype is None else x.astype(dtype), dim)

    return called


def repeat(x, repeats, dim=None, output_size=None):
    return wg.repeat(as_line(x), repeats, axis=dim, total_repeat_length=output_size)


def reduced(function):
    return lambda x, dim=None, keepdim=False: function(
        x, axis=None if x.ndim == 0 or dim == () else dim, keepdims=keepdim)  # fmt: skip


def expand(x, *shape):
    shape = shape_of(shape)
    own = (1,) * (len(shape) - x.ndim) + x.shape
    return wg.broadcast_to(x, tuple(m if n == -1 else n for m, n in zip(own, shape, strict=True)))


def to(x, *args, dtype=None, copy=False, **_):
    for given in args:
        dtype = given if isinstance(given, wg.DType) else dtype
        dtype = given.dtype if isinstance(given, wg.Tensor) else dtype
    return x.astype(dtype) if dtype is not None else x + 0


def cast_to(name):
    return lambda x, **_: x.astype(getattr(wg, name))


def scatter(x, axis, index, src=None, value=None, reduce=None):
    return joined(x, axis, index, src if src is not None else value, reduce or "replace")


CALLS = {
    "arange": arange,
    "gather": take_along,
    "scatter": scatter,
    "scatter_reduce": joined,
    "scatter_add": lambda x, axis, index, src: joined(x, axis, index, src, "sum"),
    "index_add": lambda x, axis, i, v, alpha=1: wg.index_add(
        as_line(x), as_line(i), as_line(v) * alpha, axis).reshape(x.shape),
    "index_copy": lambda x, axis, i, v: wg.index_copy(
        as_line(x), as_line(i), as_line(v), axis).reshape(x.shape),
    "index_fill": lambda x, axis, i, v: wg.index_fill(
        as_line(x), as_line(i), v, axis).reshape(x.shape),
    "index_reduce": lambda x, *args, **kwargs: index_reduced(x, *args, **kwargs).reshape(x.shape),
    "index_put": put_at,
    "index_select": line_of(lambda x, axis, i: wg.take(x, as_line(i), axis=axis)),
    "take": lambda x, i: wg.take(x.reshape(-1), i.reshape(-1)).reshape(i.shape),
    "put": lambda x, i, v, accumulate=False: wg.index_put(
        x.reshape(-1), [i.reshape(-1)], v.reshape(-1), accumulate=accumulate).reshape(x.shape),
    "take_along_dim": lambda x, i, dim=None: (
        wg.take_along_axis(x.reshape(-1), i.reshape(-1), 0) if dim is None
        else wg.take_along_axis(*broadcast_but(x, i, dim), dim)),
    "kthvalue": line_of(lambda x, k, dim=-1, keepdim=False: wg.kthvalue(
        x, k, dim, keepdims=keepdim)),
    "mode": line_of(lambda x, dim=-1, keepdim=False: wg.mode(x, dim, keepdims=keepdim)),
    "topk": line_of(lambda x, k, dim=-1, largest=True, sorted=True: wg.topk(
        x, k, axis=dim, largest=largest)),
    "sort": line_of(lambda x, dim=-1, descending=False, stable=False: wg.sort_with_indices(
        x, dim, descending=descending)),
    "argsort": line_of(lambda x, dim=-1, descending=False, stable=False: wg.argsort(
        x, dim, descending=descending)),
    "msort": line_of(lambda x: wg.sort(x, 0)),
    "cumsum": line_of(lambda x, dim, dtype=None: wg.cumulative_sum(x, dim, dtype=dtype)),
    "cumprod": line_of(lambda x, dim, dtype=None: wg.cumulative_prod(x, dim, dtype=dtype)),
    "cummax": line_of(lambda x, dim: wg.cumulative_max_with_indices(x, dim)),
    "cummin": line_of(lambda x, dim: wg.cumulative_min_with_indices(x, dim)),
    "logcumsumexp": line_of(lambda x, dim: wg.logcumsumexp(x, dim)),
    "logsumexp": lambda x, dim, keepdim=False: wg.logsumexp(
        x, None if x.ndim == 0 else dim, keepdims=keepdim),
    "max/reduction_with_dim": line_of(extremes(True)),
    "min/reduction_with_dim": line_of(extremes(False)),
    "amax": reduced(wg.max),
    "amin": reduced(wg.min),
    "max/reduction_no_dim": wg.max,
    "min/reduction_no_dim": wg.min,
    "diff": lambda x, n=1, dim=-1, prepend=None, append=None: wg.diff(
        x, n=n, axis=dim, prepend=prepend, append=append),
    "quantile": quantile,
    "var": spread(wg.var),
    "std": spread(wg.std),
    "renorm": lambda x, p, dim, maxnorm: wg.renorm(x, float(p), dim, float(maxnorm)),
    "nn.functional.pad": padded,
    "constant_pad_nd": lambda x, pad, value=0: padded(x, pad, value=value),
    "reshape": lambda x, *shape: x.reshape(shape_of(shape)),
    "view": lambda x, *shape: x.reshape(shape_of(shape)),
    "view_copy": lambda x, *shape: x.reshape(shape_of(shape)),
    "expand": expand,
    "expand_copy": expand,
    "permute": lambda x, *dims: wg.permute_dims(x, shape_of(dims)),
    "permute_copy": lambda x, *dims: wg.permute_dims(x, shape_of(dims)),
    "transpose": line_of(lambda x, a, b: wg.swapaxes(x, a, b)),
    "transpose_copy": line_of(lambda x, a, b: wg.swapaxes(x, a, b)),
    "unsqueeze": lambda x, dim: wg.expand_dims(x, dim),
    "unsqueeze_copy": lambda x, dim: wg.expand_dims(x, dim),
    "diag": lambda x, diagonal=0: wg.diag(x, k=diagonal),
    "diagonal": lambda x, offset=0, dim1=0, dim2=1: wg.diagonal(
        x, offset=offset, axis1=dim1, axis2=dim2),
    "linalg.diagonal": lambda x, offset=0, dim1=-2, dim2=-1: wg.diagonal(
        x, offset=offset, axis1=dim1, axis2=dim2),
    "tril": lambda x, diagonal=0: wg.tril(x, k=diagonal),
    "triu": lambda x, diagonal=0: wg.triu(x, k=diagonal),
    "cdist": lambda a, b, p=2.0, compute_mode=None: wg.cdist(a, b, float(p)),
    "split": parts_by(lambda n, p: p if isinstance(p, list | tuple) else equal_pieces(n, p)),
    "split/list_args": cut,
    "split_with_sizes": cut,
    "split_with_sizes_copy": cut,
    "einsum": lambda operands, text: wg.einsum(text, *operands),
    "repeat": lambda x, *sizes: wg.tile(x, shape_of(sizes)),
    "tile": lambda x, *sizes: wg.tile(x, shape_of(sizes)),
    "repeat_interleave": repeat,
    "searchsorted": searched,
    "bucketize": lambda x, edges, out_int32=False, right=False: searched(
        edges, x, out_int32, right),
    "allclose": wg.allclose,
    "equal": lambda a, b: (a == b).all() if a.shape == b.shape else wg.asarray(False),
    "item": lambda x: wg.asarray(x.item()),
    "broadcast_shapes": lambda *shapes: wg.asarray(wg.broadcast_shapes(*shapes)),
    "logical_not": lambda x: wg.logical_not(x != 0),
    "logical_and": lambda a, b: wg.logical_and(a != 0, b != 0),
    "logical_or": lambda a, b: wg.logical_or(a != 0, b != 0),
    "logical_xor": lambda a, b: wg.logical_xor(a != 0, b != 0),
    "bitwise_not": lambda x: wg.bitwise_invert(x),
    "tensordot": tensordot,
    "where": lambda a, mask, b: wg.where(mask, a, b),
    "masked_fill": lambda x, mask, v: wg.where(mask, v, x),
    "masked_select": lambda x, mask: wg.broadcast_to(x, wg.broadcast_shapes(x.shape, mask.shape))[
        wg.broadcast_to(mask, wg.broadcast_shapes(x.shape, mask.shape))],
    "nonzero": lambda x, as_tuple=False: wg.nonzero(x) if as_tuple else positions(x),
    "argwhere": positions,
    "to": to,
    "softmax": line_of(casted(wg.nn.softmax)),
    "log_softmax": line_of(casted(wg.nn.log_softmax)),
    "nn.functional.softmin": line_of(casted(wg.nn.softmin)),
    "linalg.vector_norm": norm,
    "norm": lambda x, p=2, dim=None, keepdim=False, dtype=None: norm(x, p, dim, keepdim, dtype),
    "meshgrid/list_of_tensors": lambda xs, **kwargs: wg.meshgrid(*xs, **kwargs),
    "__getitem__": lambda x, index: x[index],
    "slice": lambda x, dim=0, start=None, end=None, step=1: x[
        along(x, dim, slice(start, end, step))],
    "select": lambda x, dim, i: wg.take(x, wg.asarray(i), axis=dim),
    "T": lambda x: x.T if x.ndim == 2 else wg.permute_dims(x, tuple(range(x.ndim))[::-1]),
    "H": lambda x: x.T if x.ndim == 2 else x + 0,
    "mT": lambda x: x.mT,
    "mH": lambda x: x.mT,
    "t": lambda x: x.T if x.ndim == 2 else x + 0,
    "t_copy": lambda x: x.T if x.ndim == 2 else x + 0,
    "adjoint": lambda x: x.mT,
    "fill": lambda x, value: x * 0 + value,
    "full": lambda shape, v, dtype=None, **_: wg.full(tuple(shape), v, dtype=dtype),
    "zeros": lambda *shape, dtype=None, **_: wg.zeros(shape_of(shape), dtype=dtype),
    "ones": lambda *shape, dtype=None, **_: wg.ones(shape_of(shape), dtype=dtype),
    "new_zeros": lambda x, shape, dtype=None, **_: wg.zeros(tuple(shape), dtype=dtype or x.dtype),
    "new_ones": lambda x, shape, dtype=None, **_: wg.ones(tuple(shape), dtype=dtype or x.dtype),
    "new_full": lambda x, shape, v, dtype=None, **_: wg.full(
        tuple(shape), v, dtype=dtype or x.dtype),
    "zero_": lambda x: x * 0,
    "linspace/tensor_overload": linspace,
    "div/no_rounding_mode": wg.divide,
    "div/floor_rounding": lambda a, b, rounding_mode: wg.floor_divide(a, b),
    "round/decimals_0": rounded,
    "ravel": lambda x: x.reshape(-1),
    "nn.functional.one_hot": lambda x, num_classes=-1: wg.one_hot(
        x, int(x.max()) + 1 if num_classes == -1 else num_classes, dtype=wg.int64),
    "byte": cast_to("uint8"), "char": cast_to("int8"), "double": cast_to("float64"),
    "float": cast_to("float32"), "half": cast_to("float16"), "int": cast_to("int32"),
    "long": cast_to("int64"), "short": cast_to("int16"), "bfloat16": cast_to("bfloat16"),
    "bool": cast_to("bool"), "cdouble": cast_to("complex128"), "cfloat": cast_to("complex64"),
    "count_nonzero": lambda x, dim=None: wg.count_nonzero(x, axis=dim),
    "histogram": histogram,
    "histc": lambda x, bins=100, min=0, max=0: histogram(x, bins, (min, max))[0],
    "bincount": lambda x, weights=None, minlength=0: wg.bincount(
        x, weights=weights, minlength=minlength),
    "isin": lambda x, values, assume_unique=False, invert=False: wg.isin(
        wg.asarray(x), wg.asarray(values), invert=invert),
    "scalar_tensor": lambda v, dtype=None, **_: wg.full((), v, dtype=dtype),
}  # fmt: skip


def broadcast_but(x, index, dim):
    dim = dim % max(x.ndim, 1)
    a, b = list(x.shape), list(index.shape)
    a[dim] = b[dim] = 1
    common = list(wg.broadcast_shapes(tuple(a), tuple(b)))
    shape_x, shape_i = common.copy(), common.copy()
    shape_x[dim], shape_i[dim] = x.shape[dim], index.shape[dim]
    return wg.broadcast_to(x, tuple(shape_x)), wg.broadcast_to(index, tuple(shape_i))
