"""Kernels of ops that sum, run on an adapter by wgpu-py, against NumPy in float64.

Integers and truth values are equal to the bit. Floats stay within what rounding allows: of a sum
`DEPTH` roundings a term (Higham, Accuracy and Stability of Numerical Algorithms, §4.2), and one of
the result.
"""

import itertools
import math

import numpy as np
import pytest

import wengert as wg
from wengert import _core

UNIT = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
FLOATS = ["float32", "float16", "bfloat16"]
DEPTH = 100
random = np.random.default_rng(5)


def run(adapter, f, *inputs, layouts=()):
    """The results of a function, or of the text of a graph, step by step on the adapter; `layouts`
    may place an input within its bytes: (bytes, strides, offset)."""
    text = f if isinstance(f, str) else str(wg.compile(f).graph(*inputs, optimized=False))
    places = dict(layouts)
    strided = [(tuple(x.shape), *places[i][1:]) if i in places else None
               for i, x in enumerate(inputs)]
    dispatches, sizes, memory, results, _ = _core._kernels(text, strided)
    given = {f"input{i}": places[i][0] if i in places else _core._to_bytes(x)
             for i, x in enumerate(inputs)}
    found = adapter.play(dispatches, {**memory, **given}, sizes, [name for name, _, _ in results])
    out = [_core._from_bytes(getattr(wg, dtype), tuple(shape), data)
           for (_, dtype, shape), data in zip(results, found, strict=True)]
    return out[0] if len(out) == 1 else out


def sample(shape, dtype, low=-3.0, high=3.0):
    if dtype == "bool":
        return wg.tensor(random.random(shape) < 0.9)
    if dtype in FLOATS:
        return wg.tensor(random.uniform(low, high, shape)).astype(getattr(wg, dtype))
    info = np.iinfo(dtype)
    return wg.tensor(random.integers(info.min, info.max, shape, dtype=dtype, endpoint=True))


def wide(x):
    """Float tensors as float64, others as they are."""
    return x.astype(wg.float64).numpy() if x.dtype.is_floating else x.numpy()


def assert_near(got, want, magnitude, facts, depth=DEPTH):
    """Against a float64 result whose terms have this sum of sizes."""
    dtype = str(got.dtype).removeprefix("wengert.")
    if dtype not in FLOATS:
        assert got.numpy().dtype == want.dtype, facts
        assert np.array_equal(got.numpy(), want), facts
        return
    got = wide(got)
    bound = depth * UNIT["float32"] * magnitude + UNIT[dtype] * np.abs(want) + 2.0**-24
    with np.errstate(invalid="ignore"):
        special = ~np.isfinite(want)
        wrong = np.where(special, ~((got == want) | np.isnan(got) & np.isnan(want)),
                         ~(np.abs(got - want) <= bound))
    assert got.shape == want.shape, facts
    assert not wrong.any(), (facts, got[wrong][:5], want[wrong][:5], np.argwhere(wrong)[:5])


SHAPES = [((n,), (0,)) for n in (1, 3, 4, 5, 63, 64, 65, 257, 1000, 100_003)] + [
    ((3, 5, 7), (1,)), ((3, 5, 7), (0, 2)), ((3, 5, 7), (0, 1, 2)), ((1000, 3), (0,)),
    ((5, 1001), (1,)), ((2, 3, 65, 5), (0, 2, 3)), ((300, 301), (0,)), ((0, 3), (0,)),
    ((70, 1, 70), (1,))]


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS])
def test_sums_and_extremes(adapter, dtype):
    for shape, axes in SHAPES:
        x = sample(shape, dtype)
        a = wide(x)
        kinds = {"sum": np.sum, "prod": np.prod, "max": np.max, "min": np.min}
        for name, of in kinds.items():
            if (0 in shape and name in ("max", "min")) or (name == "prod" and a.size > 2000):
                continue
            if name == "prod" and dtype in FLOATS:
                x = sample(shape, dtype, 0.97, 1.03)
                a = wide(x)
            got = run(adapter, lambda x: getattr(wg, name)(x, axis=axes), x)
            is_kept = name in ("max", "min") or dtype in FLOATS
            want = of(a, axis=axes, **({} if is_kept else {"dtype": got.numpy().dtype}))
            magnitude = np.sum(np.abs(wide(x)), axis=axes) if name == "sum" else np.abs(want)
            depth = a.size if name == "prod" else DEPTH
            assert_near(got, want, magnitude, (name, shape, axes), depth)


def one_op(op, dtype, shape, result):
    """The text of a graph of one op, which the front end may give another dtype."""
    return f"%0: {dtype} {shape} = input\n%1: {dtype} {result} = {op}\nreturn %1"


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_wrap_in_their_own_dtype(adapter, dtype):
    x = sample((7, 301), dtype)
    for name, of in (("sum", np.sum), ("prod", np.prod)):
        for axis, kept in ((0, (301,)), (1, (7,))):
            got = run(adapter, one_op(f"{name}(%0, axis=({axis},))", dtype, (7, 301), kept), x)
            want = of(x.numpy(), axis=axis, dtype=dtype)
            assert np.array_equal(got.numpy(), want), (name, axis)


def test_truth_values(adapter):
    for shape, axes in SHAPES:
        for p in (0.001, 0.999):
            a = random.random(shape) < p
            for name, of in (("any", np.any), ("all", np.all)):
                got = run(adapter, lambda x: getattr(wg, name)(x, axis=axes), wg.tensor(a))
                assert np.array_equal(got.numpy(), of(a, axis=axes)), (name, shape, axes, p)


@pytest.mark.parametrize("dtype", FLOATS)
def test_nan_and_infinities(adapter, dtype):
    for size in (5, 700):
        for special in ([np.nan], [np.inf], [-np.inf], [np.inf, -np.inf], [np.nan, np.inf], [-0.0]):
            a = random.uniform(-2, 2, size)
            a[random.choice(size, len(special), replace=False)] = special
            x = wg.tensor(a).astype(getattr(wg, dtype))
            a = wide(x)
            with np.errstate(invalid="ignore"):
                for name in ("sum", "max", "min"):
                    got = run(adapter, lambda x: getattr(wg, name)(x), x)
                    want = getattr(np, name)(a)
                    assert_near(got, want, np.abs(a).sum(), (name, size, special))
                for name in ("argmax", "argmin"):
                    got = run(adapter, lambda x: getattr(wg, name)(x, axis=0), x)
                    assert got.item() == getattr(np, name)(a), (name, size, special)
                got = run(adapter, lambda x: wg.cumulative_sum(x, axis=0), x)
                assert_near(got, np.cumsum(a), np.cumsum(np.abs(a)), (size, special), depth=4)


def test_positions_of_extremes(adapter):
    for dtype in [*FLOATS, *INTEGERS, "bool"]:
        for shape, axis in (((1,), 0), ((5,), 0), ((1000,), 0), ((100_003,), 0), ((3, 70), 1),
                            ((2000, 3), 0), ((3, 5, 7), 1)):
            x = sample(shape, dtype)
            if np.prod(shape) > 300 and dtype in FLOATS:
                # Equal elements, and zeros of both signs.
                x = wg.tensor(np.round(wide(x)) * -1.0).astype(x.dtype)
            for name in ("argmax", "argmin"):
                text = f"%0: {dtype} {shape} = input\n"
                kept = shape[:axis] + shape[axis + 1:]
                text += f"%1: int64 {kept} = {name}(%0, axis={axis})\nreturn %1"
                got = run(adapter, text, x)
                want = getattr(np, name)(wide(x), axis=axis)
                assert np.array_equal(got.numpy(), want), (name, dtype, shape, axis)


LINES = [((1,), 0), ((5,), 0), ((257,), 0), ((100_003,), 0), ((3, 70), 1), ((3, 70), 0),
         ((700, 5), 0), ((3, 5, 7), 1), ((2, 5000), 1)]


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS])
def test_running_sums(adapter, dtype):
    kinds = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}
    for shape, axis in LINES:
        for reverse in (False, True):
            for name, of in kinds.items():
                near = (0.95, 1.05) if name == "prod" else (-3.0, 3.0)
                if name == "prod" and np.prod(shape) > 10_000:
                    continue
                x = sample(shape, dtype, *near)
                op = f"cumulative_{name}(%0, axis={axis}, reverse={reverse})"
                got = run(adapter, one_op(op, dtype, shape, shape), x)
                a = np.flip(wide(x), axis) if reverse else wide(x)
                kept = {} if dtype in FLOATS else {"dtype": dtype}
                want = of.accumulate(a, axis=axis, **kept)
                magnitude = np.cumsum(np.abs(a), axis=axis) if name == "sum" else np.abs(want)
                if reverse:
                    want, magnitude = np.flip(want, axis), np.flip(magnitude, axis)
                # What each step loses is carried.
                assert_near(got, want, magnitude, (name, shape, axis, reverse), depth=4)


def strided(x, turned):
    """A tensor's bytes with its axes in another order in memory, between other elements, for
    `layouts`: bytes, strides, offset."""
    width = x.dtype.itemsize
    a = np.frombuffer(_core._to_bytes(x), f"V{width}").reshape(tuple(x.shape))
    lain = np.ascontiguousarray(a.transpose(turned))
    strides = [0] * a.ndim
    for place, axis in enumerate(turned):
        strides[axis] = math.prod(lain.shape[place + 1:])
    return bytes(4 * width) + lain.tobytes(), strides, 4


PRODUCTS = [
    ("ij,jk->ik", (m, k, n)) for m, k, n in itertools.product((1, 2, 5, 64), (1, 4, 65), (1, 3, 68))
] + [
    ("ij,jk->ik", (3, 5000, 2)), ("ij,jk->ik", (1, 3000, 40)), ("ij,jk->ik", (33, 1024, 1)),
    ("ij,jk->ik", (7, 0, 3)), ("i,i->", (10_000,)), ("i,j->ij", (7, 12)),
    ("bij,bjk->bik", (3, 8, 12, 16)), ("bij,bjk->bik", (3, 5, 7, 9)),
    ("bhij,bhkj->bhik", (2, 3, 8, 16, 8)), ("abij,jkb->bik", (2, 3, 4, 5, 6)),
    ("aibj,bjka->ik", (2, 5, 4, 3, 6)), ("ibj,bkj->bik", (4, 3, 16, 8)),
]


def sizes_of(spec, sizes):
    """The shapes of operands whose letters have these sizes, in order of appearance."""
    operands = spec.split("->")[0].split(",")
    letters = list(dict.fromkeys("".join(operands)))
    known = dict(zip(letters, sizes, strict=True))
    return [tuple(known[letter] for letter in operand) for operand in operands]


def contraction(spec, dtype, shapes):
    """The text of one general product; the result has batch axes first, then those of each."""
    (a, b), out = spec.split("->")[0].split(","), spec.split("->")[1]
    batch = [letter for letter in out if letter in a and letter in b]
    terms = [letter for letter in a if letter in b and letter not in out]
    order = batch + [x for x in a if x not in batch + terms] + [
        x for x in b if x not in batch + terms]
    sizes = dict(zip(a + b, shapes[0] + shapes[1], strict=True))
    shape = tuple(sizes[x] for x in order)
    at = [tuple(tuple(x.index(letter) for letter in letters) for x in (a, b))
          for letters in (batch, terms)]
    fields = f"batch={at[0]}, " if batch else ""
    return (f"%0: {dtype} {shapes[0]} = input\n%1: {dtype} {shapes[1]} = input\n"
            f"%2: {dtype} {shape} = matmul(%0, %1, {fields}contract={at[1]})\nreturn %2",
            f"{a},{b}->{''.join(order)}")


@pytest.mark.parametrize("dtype", [*FLOATS, "int8", "uint16", "int32", "int64"])
def test_products(adapter, dtype):
    for spec, letters in PRODUCTS:
        if dtype != "float32" and max(letters) == 68:
            continue
        shapes = sizes_of(spec, letters)
        x, y = (sample(shape, dtype) for shape in shapes)
        text, spec = contraction(spec, dtype, shapes)
        a, b = wide(x), wide(y)
        want = np.einsum(spec, a, b, dtype=None if dtype in FLOATS else dtype)
        magnitude = np.einsum(spec, np.abs(a), np.abs(b)) if dtype in FLOATS else None
        turns = [({}, "dense")]
        if x.ndim > 1:
            turned = tuple(reversed(range(x.ndim)))
            turns.append(({0: strided(x, turned)}, "a turned"))
            turns.append(({1: strided(y, tuple(reversed(range(y.ndim))))}, "b turned"))
        for layouts, facts in turns:
            got = run(adapter, text, x, y, layouts=layouts)
            assert_near(got, np.asarray(want), magnitude, (spec, shapes, facts))


def test_an_operand_by_itself(adapter):
    for n in (7, 64):
        x = sample((n, n), "float32")
        got = run(adapter, lambda x: wg.matmul(x, x), x)
        a = wide(x)
        assert_near(got, a @ a, np.abs(a) @ np.abs(a), n)


def test_products_with_infinities(adapter):
    for k in (3, 300):
        a, b = random.uniform(-2, 2, (5, k)), random.uniform(-2, 2, (k, 6))
        a[1, 2], a[2, 0], b[1, 3], b[2, 4] = np.nan, np.inf, -np.inf, 0
        x, y = (wg.tensor(v).astype(wg.float32) for v in (a, b))
        with np.errstate(invalid="ignore"):
            a, b = wide(x), wide(y)
            terms = a[:, :, None] * b
            want, sizes = terms.sum(axis=1), np.abs(terms).sum(axis=1)
        assert_near(run(adapter, wg.matmul, x, y), want, sizes, k)


GEOMETRIES = [
    {"x": (2, 3, 9), "w": (4, 3, 3)},
    {"x": (2, 4, 9), "w": (6, 2, 3), "groups": 2, "stride": (2,), "low": (1,), "high": (2,)},
    {"x": (1, 6, 11), "w": (6, 1, 3), "groups": 6, "dilation": (2,), "low": (2,), "high": (2,)},
    {"x": (3, 1, 12, 12), "w": (6, 1, 5, 5)},
    {"x": (2, 3, 7, 8), "w": (5, 3, 3, 2), "stride": (2, 1), "low": (1, 0), "high": (0, 1)},
    {"x": (2, 4, 8, 8), "w": (8, 2, 3, 3), "groups": 2, "low": (1, 1), "high": (1, 1)},
    {"x": (2, 8, 9, 9), "w": (8, 1, 3, 3), "groups": 8, "stride": (2, 2), "low": (1, 1),
     "high": (1, 1)},
    {"x": (2, 8, 5, 5), "w": (16, 8, 1, 1)},
    {"x": (2, 2, 9, 10), "w": (3, 2, 3, 3), "stride": (3, 2), "dilation": (2, 3), "low": (4, 5),
     "high": (4, 3)},
    {"x": (1, 2, 5, 6, 4), "w": (4, 2, 2, 3, 2), "stride": (1, 2, 1), "low": (1, 1, 0),
     "high": (0, 1, 1)},
    {"x": (20, 2, 28, 28), "w": (3, 2, 3, 3), "low": (1, 1), "high": (1, 1)},
]


def conv_terms(spec, x, w):
    """The elements of the padded `x` that each tap meets at all places, by tap, and the slices."""
    axes = len(x) - 2

    def fill(name, value):
        return spec.get(name, (value,) * axes)

    stride, dilation = fill("stride", 1), fill("dilation", 1)
    low, high = fill("low", 0), fill("high", 0)
    places = [(x[2 + i] + low[i] + high[i] - dilation[i] * (w[2 + i] - 1) - 1) // stride[i] + 1
              for i in range(axes)]
    slices = {tap: tuple(slice(k * d, k * d + (p - 1) * s + 1, s)
                         for k, d, p, s in zip(tap, dilation, places, stride, strict=True))
              for tap in itertools.product(*(range(n) for n in w[2:]))}
    return stride, dilation, low, high, tuple(places), slices


def convolved(spec, role, x, w, g):
    """One role of a convolution in NumPy, tap by tap."""
    groups = spec.get("groups", 1)
    _, _, low, high, places, slices = conv_terms(spec, x.shape, w.shape)
    width = [(0, 0), (0, 0), *zip(low, high, strict=True)]
    padded = np.pad(x, width)
    out = {"conv": np.zeros((x.shape[0], w.shape[0], *places), x.dtype),
           "conv_input": np.zeros_like(padded), "conv_weight": np.zeros_like(w)}[role]
    per_in, per_out = w.shape[1], w.shape[0] // groups
    for group in range(groups):
        own = slice(group * per_in, group * per_in + per_in)
        of = slice(group * per_out, group * per_out + per_out)
        for tap, where in slices.items():
            part = (slice(None), own, *where)
            kernel = w[(of, slice(None), *tap)]
            if role == "conv":
                out[:, of] += np.einsum("nc...,oc->no...", padded[part], kernel)
            elif role == "conv_input":
                out[part] += np.einsum("no...,oc->nc...", g[:, of], kernel)
            else:
                x_part, g_part = (v.reshape(*v.shape[:2], -1) for v in (padded[part], g[:, of]))
                out[(of, slice(None), *tap)] = np.einsum("ncp,nop->oc", x_part, g_part)
    if role != "conv_input":
        return out
    return out[(..., *(slice(a, a + n) for a, n in zip(low, x.shape[2:], strict=True)))]


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32", "int64", "int8"])
@pytest.mark.parametrize("role", ["conv", "conv_input", "conv_weight"])
def test_convolutions(adapter, role, dtype):
    for spec in GEOMETRIES:
        stride, dilation, low, high, places, _ = conv_terms(spec, spec["x"], spec["w"])
        shape = {"x": spec["x"], "w": spec["w"], "g": (spec["x"][0], spec["w"][0], *places)}
        names = {"conv": "xwg", "conv_input": "gwx", "conv_weight": "xgw"}[role]
        values = {name: sample(shape[name], dtype) for name in "xwg"}
        a, b, out = names
        text = (f"%0: {dtype} {shape[a]} = input\n%1: {dtype} {shape[b]} = input\n"
                f"%2: {dtype} {shape[out]} = {role}(%0, %1, stride={stride}, pad_low={low}, "
                f"pad_high={high}, dilation={dilation}, groups={spec.get('groups', 1)}, "
                f"input={shape['x'][2:]}, kernel={shape['w'][2:]})\nreturn %2")
        arrays = {name: wide(value) for name, value in values.items()}
        with np.errstate(over="ignore"):
            want = convolved(spec, role, **arrays)
        sizes = {name: np.abs(array) for name, array in arrays.items()}
        magnitude = convolved(spec, role, **sizes) if dtype in FLOATS else None
        got = run(adapter, text, values[a], values[b])
        assert_near(got, want, magnitude, (role, spec))
        turned = tuple(reversed(range(values[a].ndim)))
        layouts = {0: strided(values[a], turned), 1: strided(values[b], turned)}
        again = run(adapter, text, values[a], values[b], layouts=layouts)
        assert_near(again, want, magnitude, (role, spec, "turned"))


def test_windows_are_added_back(adapter):
    for dtype in ("float32", "bfloat16", "int16", "int64"):
        for size, stride, dilation, sizes in (((3,), (1,), (1,), (9,)),
                                              ((3, 2), (2, 1), (1, 2), (9, 7)),
                                              ((2, 2), (3, 3), (1, 1), (8, 9))):
            places = tuple((n - d * (k - 1) - 1) // s + 1
                           for n, k, s, d in zip(sizes, size, stride, dilation, strict=True))
            x = sample((2, 3, *places, *size), dtype, -2, 2)
            text = (f"%0: {dtype} {tuple(x.shape)} = input\n"
                    f"%1: {dtype} {(2, 3, *sizes)} = overlap_add(%0, "
                    f"size={size}, stride={stride}, dilation={dilation})\nreturn %1")
            got = run(adapter, text, x)
            a = wide(x)
            want, magnitude = np.zeros((2, 3, *sizes), a.dtype), np.zeros((2, 3, *sizes))
            for tap in itertools.product(*(range(n) for n in size)):
                where = tuple(slice(k * d, k * d + (p - 1) * s + 1, s) for k, d, p, s
                              in zip(tap, dilation, places, stride, strict=True))
                with np.errstate(over="ignore"):
                    want[(..., *where)] += a[(..., *tap)]
                magnitude[(..., *where)] += np.abs(a[(..., *tap)].astype("f8"))
            assert_near(got, want, magnitude, (dtype, size))
