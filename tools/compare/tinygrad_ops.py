"""tinygrad's operations as ours: each takes and gives values of this package, with tinygrad's
arguments. `METHODS` names them."""

import math

import wengert as wg
from wengert import nn

from calls import joined, searched, take_along
from formulas import windows

INT = wg.int32  # tinygrad's default, which is smaller than ours


class dtypes:
    float = float32 = default_float = wg.float32
    half = float16 = wg.float16
    double = float64 = wg.float64
    bfloat16 = wg.bfloat16
    int8 = char = wg.int8
    int16 = short = wg.int16
    int32 = wg.int32
    int64 = long = wg.int64
    uint8 = uchar = wg.uint8
    uint16 = ushort = wg.uint16
    uint32 = uint = wg.uint32
    uint64 = ulong = wg.uint64
    bool = wg.bool
    default_int = wg.int32

    class int:
        """int32, of which the tests ask the ends."""

        min, max = -(2**31), 2**31 - 1


def dtype_of(dtype):
    if dtype is dtypes.int or dtype == "int":
        return wg.int32
    return getattr(wg, dtype) if isinstance(dtype, str) else dtype


def line(function):
    """An op along an axis, which PyTorch and tinygrad allow of a scalar."""

    def called(x, *args, **kwargs):
        if x.ndim:
            return function(x, *args, **kwargs)
        y = function(x.reshape(1), *args, **kwargs)
        one = [v.reshape(()) if v.size == 1 else v for v in (y if isinstance(y, tuple) else (y,))]
        return tuple(one) if isinstance(y, tuple) else one[0]

    return called


def narrow(y):
    """Indices are int32 in tinygrad."""
    if isinstance(y, tuple):
        return tuple(narrow(v) for v in y)
    return y.astype(INT) if y.dtype == wg.int64 else y


def reduction(function):
    def called(x, axis=None, keepdim=False, **options):
        axis = tuple(axis) if isinstance(axis, list) else axis
        if x.ndim == 0 and axis in (0, -1):
            axis = None
        return function(x, axis=axis, keepdims=keepdim, **options)

    return called


def summed(function):
    reduce = reduction(function)

    def called(x, axis=None, keepdim=False, dtype=None):
        dtype = dtype_of(dtype)
        if dtype is None and not wg.isdtype(x.dtype, "real floating"):
            dtype = INT if x.dtype in (wg.bool, wg.int8, wg.int16, wg.int32) else x.dtype
        return reduce(x, axis, keepdim, dtype=dtype)

    return called


def spread(function):
    reduce = reduction(function)

    def called(x, axis=None, keepdim=False, correction=1):
        return reduce(x, axis, keepdim, correction=float(correction))

    return called


def both(function):
    return lambda x, *a, **k: (
        function(x, *a, **k), reduction(wg.mean)(x, *a[:1],
        **{n: v for n, v in k.items() if n != "correction"}))  # fmt: skip


def real(x):
    return x.astype(wg.float32) if not wg.isdtype(x.dtype, "real floating") else x


def on_real(function):
    return lambda x: function(real(x))


def weak(v, other):
    """A number as a tensor beside another: a float makes it floating."""
    if isinstance(v, wg.Tensor):
        return v
    dtype = other.dtype if isinstance(v, int) else wg.result_type(other.dtype, wg.float32)
    return wg.full((), v, dtype=dtype)


def divided(a, b, rounding_mode=None):
    a, b = (a, weak(b, a)) if isinstance(a, wg.Tensor) else (weak(a, b), b)
    if rounding_mode not in (None, "floor", "trunc"):
        raise RuntimeError(f"rounding_mode {rounding_mode!r}")
    whole = not any(wg.isdtype(v.dtype, "real floating") for v in (a, b))
    if rounding_mode == "floor":
        return a // b
    if rounding_mode == "trunc":
        if whole:
            return wg.where((a % b != 0) & ((a < 0) != (b < 0)), a // b + 1, a // b)
        return wg.trunc(a / b)
    return (real(a) if whole else a) / b


def remainder(a, b):
    return a - b * divided(a, b, "trunc")


def pads(x, padding, mode="constant", value=0.0):
    if padding and not isinstance(padding[0], list | tuple | None.__class__):
        flat = list(padding)
        if len(flat) % 2:
            raise ValueError("padding has pairs")
        pairs = [tuple(flat[i : i + 2]) for i in range(0, len(flat), 2)][::-1]
        pairs = [(0, 0)] * (x.ndim - len(pairs)) + pairs
    else:
        pairs = [(0, 0) if p is None else tuple(p) for p in padding]
    if len(pairs) != x.ndim:
        raise ValueError(f"{len(pairs)} paddings for rank {x.ndim}")
    if mode not in ("constant", "reflect", "replicate", "circular"):
        raise NotImplementedError(mode)
    names = {"replicate": "edge", "circular": "wrap"}
    return wg.pad(x, tuple(pairs), mode=names.get(mode, mode), value=value)


def sides(padding, rank, x):
    """tinygrad's padding of convolutions: one, one an axis, or two an axis from the last one on."""
    if isinstance(padding, int):
        if padding >= 0:
            return x, padding
        padding = [padding] * rank
    padding = list(padding)
    if len(padding) == rank and min(padding) >= 0:
        return x, tuple(padding)
    if len(padding) == rank:
        return [(n, n) for n in padding], None
    if len(padding) != 2 * rank:
        raise ValueError(f"padding {padding} for {rank} axes")
    pairs = [tuple(padding[i : i + 2]) for i in range(0, 2 * rank, 2)][::-1]
    if all(a == b >= 0 for a, b in pairs):
        return x, tuple(a for a, _ in pairs)
    return pairs, None


def window(size):
    return tuple(size) if isinstance(size, list | tuple) else size


def convolution(x, w, bias=None, groups=1, stride=1, dilation=1, padding=0, dtype=None):
    rank = w.ndim - 2
    if x.ndim != w.ndim:
        raise RuntimeError(f"input of rank {x.ndim} and weight of rank {w.ndim}")
    found, padding = sides(padding, rank, x)
    if padding is None:
        x, padding = wg.pad(x, tuple([(0, 0)] * 2 + found)), 0
    function = {1: nn.conv1d, 2: nn.conv2d, 3: nn.conv3d}[rank]
    return function(x, w, bias, window(stride), padding, window(dilation), groups)


def transposed(x, w, bias=None, groups=1, stride=1, dilation=1, padding=0, output_padding=0):
    rank = w.ndim - 2
    function = {1: nn.conv_transpose1d, 2: nn.conv_transpose2d, 3: nn.conv_transpose3d}[rank]
    return function(x, w, bias, window(stride), window(padding), window(output_padding), groups,
                    window(dilation))  # fmt: skip


def pooled(kind):
    def called(x, kernel_size=(2, 2), stride=None, dilation=1, padding=0, ceil_mode=False,
               count_include_pad=True, return_indices=False):  # fmt: skip
        size = (kernel_size, kernel_size) if isinstance(kernel_size, int) else tuple(kernel_size)
        rank = len(size)
        found, padding = sides(padding, rank, x)
        own = getattr(nn, f"{kind}_pool{rank}d")
        stride = window(stride) or size
        if kind == "max":
            if padding is None:
                x, padding = wg.pad(x, tuple([(0, 0)] * (x.ndim - rank) + found),
                                    value=-math.inf), 0  # fmt: skip
            return narrow(own(x, size, stride, padding, window(dilation), ceil_mode,
                              return_indices=return_indices))  # fmt: skip
        if dilation != 1:
            raise NotImplementedError("avg_pool has no dilation")
        if padding is None:
            if not count_include_pad:
                raise NotImplementedError("avg_pool with uneven sides that do not count")
            x, padding = wg.pad(x, tuple([(0, 0)] * (x.ndim - rank) + found)), 0
        return own(x, size, stride, padding, count_include_pad=count_include_pad,
                   ceil_mode=ceil_mode)  # fmt: skip

    return called


def unpooled(x, indices, kernel_size=(2, 2), stride=None, dilation=1, padding=0, output_size=None):
    rank = 2 if isinstance(kernel_size, int) else len(kernel_size)
    output_size = None if output_size is None else tuple(output_size)[-rank:]
    return getattr(nn, f"max_unpool{rank}d")(
        x, indices.astype(wg.int64), window(kernel_size), window(stride), window(padding),
        output_size)  # fmt: skip


def resized(x, size, mode="linear", align_corners=False):
    names = {1: "linear", 2: "bilinear", 3: "trilinear"}
    rank = x.ndim - 2
    if mode == "linear":
        return nn.interpolate(x, tuple(size), None, names[rank], bool(align_corners))
    return nn.interpolate(x, tuple(size), None, mode)


def attention(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, enable_gqa=False):
    if is_causal and attn_mask is not None:
        raise RuntimeError("a mask and is_causal")
    return nn.scaled_dot_product_attention(q, k, v, mask=attn_mask, is_causal=is_causal,
                                           enable_gqa=enable_gqa)  # fmt: skip


def labelled(x, y, ignore_index=-1, label_smoothing=0.0, reduction="mean"):
    classes = x.ndim - 1
    x = wg.moveaxis(x, classes, 1) if x.ndim > 1 else x
    return nn.cross_entropy(
        x, y.astype(wg.int64), ignore_index=ignore_index, reduction=reduction,
        label_smoothing=float(label_smoothing))  # fmt: skip


def classified(x, y, reduction="mean", label_smoothing=0.0):
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(reduction)
    y = y if wg.isdtype(y.dtype, "real floating") else y.astype(wg.int64)
    return nn.cross_entropy(x, y, reduction=reduction, label_smoothing=float(label_smoothing))


def likely(x, y, weight=None, ignore_index=None, reduction="mean"):
    ignore = -100 if ignore_index is None else ignore_index
    return nn.nll_loss(x, y.astype(wg.int64), weight, ignore_index=ignore, reduction=reduction)


def scattered(x, dim, index, src, reduce=None):
    if reduce not in (None, "add", "multiply"):
        raise TypeError(f"reduce {reduce!r}")
    if not isinstance(src, wg.Tensor):
        src = wg.full(index.shape, src, dtype=x.dtype)
    if src.dtype != x.dtype:
        raise RuntimeError("dtypes differ")
    return joined(x, dim, index, src, reduce or "replace")


def reduced_scatter(x, dim, index, src, reduce, include_self=True):
    if reduce not in ("sum", "prod", "mean", "amax", "amin"):
        raise RuntimeError(f"reduce {reduce!r}")
    if src.dtype != x.dtype:
        raise RuntimeError("dtypes differ")
    return joined(x, dim, index, src, reduce, include_self)


def isinf(x, detect_positive=True, detect_negative=True):
    if detect_positive and detect_negative:
        return wg.isinf(x)
    return (x == math.inf) & detect_positive | (x == -math.inf) & detect_negative


def rolled(x, shifts, dims=None):
    shifts = tuple(shifts) if isinstance(shifts, list | tuple) else shifts
    if isinstance(shifts, tuple) and dims is None and len(shifts) == 1:
        shifts = shifts[0]
    count = [1 if isinstance(v, int) else len(v) for v in (shifts, 0 if dims is None else dims)]
    if (dims is None and not isinstance(shifts, int)) or (
        dims is not None and count[0] != count[1]
    ):
        raise RuntimeError("shifts and dims differ")
    return wg.roll(x, shifts, axis=dims)


def unfolded(x, dim, size, step):
    n = x.shape[dim]
    if size > n or step <= 0:
        raise RuntimeError(f"unfold of {n} by {size}, {step}")
    return windows(x, dim, size, step)


def expanded(x, shape):
    own = (1,) * (len(shape) - x.ndim) + tuple(x.shape)
    return wg.broadcast_to(x, tuple(m if n == -1 else n for m, n in zip(own, shape, strict=True)))


def shifted(function):
    return lambda a, b: function(a, wg.asarray(b, dtype=a.dtype) if isinstance(b, int) else
                                 b if isinstance(b, wg.Tensor) else wg.asarray(b))  # fmt: skip


def shift_of(a, b):
    """A shift in the dtype of what is shifted; floats are refused there."""
    return b if wg.isdtype(b.dtype, "real floating") else b.astype(a.dtype)


def chosen(mask, a, b):
    """Two ints are int32."""
    if all(isinstance(v, int) and not isinstance(v, bool) for v in (a, b)):
        a = wg.asarray(a, dtype=INT)
    return wg.where(mask, a, b)


def extreme(function):
    """Of bools and of others, as numbers."""

    def called(a, b):
        a, b = (v if isinstance(v, wg.Tensor) else wg.asarray(v) for v in (a, b))
        if wg.bool in (a.dtype, b.dtype):
            if a.dtype == b.dtype:
                return function(a.astype(wg.uint8), b.astype(wg.uint8)).astype(wg.bool)
            a, b = (v.astype(wg.uint8) if v.dtype == wg.bool else v for v in (a, b))
        return function(a, b)

    return called


def clipped(x, low, high):
    if low is None and high is None:
        raise RuntimeError("clip wants a bound")
    return wg.clip(x, low, high)


def squeezed(x, dim):
    if dim is None:
        return wg.squeeze(x)
    if x.ndim == 0 and dim in (0, -1):
        return x + 0
    if not -x.ndim <= dim < x.ndim:
        raise IndexError(dim)
    return wg.squeeze(x, axis=dim) if x.shape[dim] == 1 else x + 0


def narrow_second(pair):
    return pair[0], narrow(pair[1])


def topped(x, k, dim, largest):
    if k > x.shape[dim]:
        raise ValueError(f"k {k} of {x.shape[dim]}")
    return narrow_second(wg.topk(x, k, axis=dim, largest=largest))


def gathered(x, dim, index):
    if index.ndim != x.ndim or any(
            a > b for i, (a, b) in enumerate(zip(index.shape, x.shape, strict=True))
            if i != dim % x.ndim):  # fmt: skip
        raise RuntimeError("index is larger")
    return take_along(x, dim, index)


def meshed(arrays, indexing):
    if indexing not in ("ij", "xy"):
        raise RuntimeError(indexing)
    arrays = [x.reshape(1) if x.ndim == 0 else x for x in arrays]
    return wg.meshgrid(*arrays, indexing=indexing)


def like(function):
    return lambda x, *a, dtype=None, **k: function(x, *a, dtype=dtype_of(dtype), **k)


METHODS = {
    "cast": lambda x, dtype: x.astype(dtype_of(dtype)), "detach": lambda x: x.detach(),
    "float": lambda x: x.astype(wg.float32), "half": lambda x: x.astype(wg.float16),
    "int": lambda x: x.astype(wg.int32), "bool": lambda x: x.astype(wg.bool),
    "long": lambda x: x.astype(wg.int64), "double": lambda x: x.astype(wg.float64),
    "clone": lambda x: x + 0 if x.dtype != wg.bool else x | False,
    "contiguous": lambda x: x, "item": lambda x: x.item(), "tolist": lambda x: x.tolist(),
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b,
    "div": divided, "mod": lambda a, b: a % b, "fmod": remainder, "neg": lambda x: -x,
    "pow": lambda a, b: a**b, "eq": lambda a, b: a == b, "ne": lambda a, b: a != b,
    "lshift": shifted(lambda a, b: a << shift_of(a, b)),
    "rshift": shifted(lambda a, b: a >> shift_of(a, b)),
    "bitwise_not": lambda x: ~x, "logical_not": lambda x: wg.logical_not(x.astype(wg.bool)),
    "maximum": lambda a, b: extreme(wg.maximum)(a, b),
    "minimum": lambda a, b: extreme(wg.minimum)(a, b), "copysign": wg.copysign,
    "logaddexp": wg.logaddexp, "where": lambda mask, a, b: chosen(mask, a, b),
    "reciprocal": lambda x: 1.0 / real(x),
    "clamp": lambda x, min_=None, max_=None: clipped(x, min_, max_),
    "clip": lambda x, min_=None, max_=None: clipped(x, min_, max_),
    "isinf": isinf, "isclose": wg.isclose, "allclose": wg.allclose, "lerp": wg.lerp,
    "masked_fill": lambda x, mask, value: wg.where(mask, value, x),
    "masked_select": lambda x, mask: wg.broadcast_to(
        x, wg.broadcast_shapes(x.shape, mask.shape))[
            wg.broadcast_to(mask, wg.broadcast_shapes(x.shape, mask.shape))],
    "nonzero": lambda x, size=None: narrow(wg.stack(list(wg.nonzero(x)), axis=-1)),
    "squeeze": lambda x, dim=None: squeezed(x, dim), "unsqueeze": wg.expand_dims,
    "transpose": lambda x, a=1, b=0: wg.swapaxes(x, a, b), "unfold": unfolded,
    "flatten": lambda x, start_dim=0, end_dim=-1: wg.flatten(x, start_dim, end_dim),
    "unflatten": lambda x, dim, sizes: x.reshape(
        (*x.shape[: dim % x.ndim], *sizes, *x.shape[dim % x.ndim + 1 :])),
    "split": lambda x, sizes, dim=0: wg.split(
        x, tuple(sizes) if not isinstance(sizes, int) else tuple(
            min(sizes, x.shape[dim] - i) for i in range(0, x.shape[dim], sizes)), axis=dim),
    "chunk": lambda x, chunks, dim=0: wg.chunk(x, chunks, axis=dim),
    "meshgrid": lambda x, *others, indexing="ij": meshed([x, *others], indexing),
    "diag": lambda x: wg.diag(x), "roll": rolled,
    "diagonal": lambda x, offset=0, dim1=0, dim2=1: wg.diagonal(
        x, offset=offset, axis1=dim1, axis2=dim2),
    "triu": lambda x, diagonal=0: wg.triu(x, k=diagonal),
    "tril": lambda x, diagonal=0: wg.tril(x, k=diagonal), "pad": pads,
    "dot": wg.matmul, "matmul": wg.matmul, "sum": summed(wg.sum), "prod": summed(wg.prod),
    "max": reduction(wg.max), "min": reduction(wg.min),
    "mean": lambda x, *a, **k: reduction(wg.mean)(real(x), *a, **k),
    "any": lambda x, *a, **k: reduction(wg.any)(x != 0, *a, **k),
    "all": lambda x, *a, **k: reduction(wg.all)(x != 0, *a, **k),
    "var": spread(wg.var), "std": spread(wg.std), "var_mean": both(spread(wg.var)),
    "std_mean": both(spread(wg.std)), "logsumexp": reduction(wg.logsumexp),
    "normalize": lambda x, p=2.0, dim=1, eps=1e-12: nn.normalize(x, float(p), dim, eps=eps),
    "softmax": line(lambda x, axis=-1, dtype=None: nn.softmax(x, axis)),
    "log_softmax": line(lambda x, axis=-1, dtype=None: nn.log_softmax(x, axis)),
    "softmin": line(lambda x, axis=-1: nn.softmin(x, axis)),
    "cumsum": line(lambda x, axis=0: wg.cumulative_sum(x, axis)),
    "cumprod": line(lambda x, axis: wg.cumulative_prod(x, axis)),
    "cummax": line(lambda x, axis=0: narrow(wg.cumulative_max_with_indices(x, axis))),
    "cummin": line(lambda x, axis=0: narrow(wg.cumulative_min_with_indices(x, axis))),
    "logcumsumexp": line(lambda x, axis=0: wg.logcumsumexp(x, axis)),
    "argmax": lambda x, axis=None, keepdim=False: narrow(reduction(wg.argmax)(x, axis, keepdim)),
    "argmin": lambda x, axis=None, keepdim=False: narrow(reduction(wg.argmin)(x, axis, keepdim)),
    "sort": line(lambda x, dim=-1, descending=False: narrow_second(
        wg.sort_with_indices(x, dim, descending=descending))),
    "argsort": line(lambda x, dim=-1, descending=False: narrow(
        wg.argsort(x, dim, descending=descending))),
    "topk": line(lambda x, k, dim=-1, largest=True, sorted_=True: topped(x, k, dim, largest)),
    "gather": lambda x, dim, index: gathered(x, dim, index), "scatter": scattered,
    "scatter_reduce": reduced_scatter, "interpolate": resized,
    "linear": lambda x, w, bias=None, dtype=None: x @ w + (0 if bias is None else bias),
    "avg_pool2d": pooled("avg"), "max_pool2d": pooled("max"), "max_unpool2d": unpooled,
    "conv2d": convolution, "conv_transpose2d": transposed,
    "scaled_dot_product_attention": attention,
    "binary_crossentropy": lambda x, y, reduction="mean": nn.binary_cross_entropy(
        x, y, reduction=reduction),
    "binary_crossentropy_logits": lambda x, y, reduction="mean", pos_weight=None:
        nn.binary_cross_entropy_with_logits(x, y, pos_weight=pos_weight, reduction=reduction),
    "sparse_categorical_crossentropy": labelled, "cross_entropy": classified, "nll_loss": likely,
    "one_hot": lambda x, classes: wg.one_hot(x, classes, dtype=INT),
    "repeat_interleave": lambda x, n, dim=None: wg.repeat(x, n, axis=dim),
    "full_like": like(wg.full_like), "zeros_like": like(wg.zeros_like),
    "ones_like": like(wg.ones_like), "sign": wg.sign, "abs": wg.abs, "square": wg.square,
    "layernorm": lambda x, axis=-1, eps=1e-5: nn.layer_norm(x, axis, eps=eps),
    "relu": nn.relu, "isnan": wg.isnan, "isfinite": wg.isfinite,
    "bitcast": lambda x, dtype: wg.asarray(x.numpy().view(dtype_of(dtype).name)),
    "softsign": nn.softsign, "trunc": wg.trunc, "ceil": wg.ceil, "floor": wg.floor,
    "round": wg.round, "sigmoid": lambda x: nn.sigmoid(real(x)),
    "searchsorted": searched,
}  # fmt: skip

for _name in ("sqrt", "sin", "cos", "tan", "exp", "exp2", "log", "log2", "log10", "rsqrt", "tanh",
              "sinh", "cosh", "asin", "acos", "atan", "asinh", "acosh", "atanh",
              "erf"):  # fmt: skip
    METHODS[_name] = on_real(getattr(wg, _name))
