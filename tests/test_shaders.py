"""Compute shaders of groups, run on an adapter by wgpu-py, against the CPU.

Integers and truth values are equal to the bit, floats within units of the last place of the dtype.
What is compared stays where `src/scalar/wgsl.rs` promises a bound.
"""

import functools

import numpy as np
import pytest

import wengert as wg
from wengert import _core

from support import TABLE

COUNT = 1500
DTYPES = {
    "bool": ["bool"],
    "int": ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"],
    "float": ["float16", "bfloat16", "float32"],
}
SPECIAL = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1, -1, 0.5, -0.5, 1e-3, 88, -88, 1e4, 65504, -65504,
           3e38, -3e38, 1e-38, 6e-8, 1e-40]
# Units of the last place of float32. Powers are computed without a fused multiplication.
ULPS = {"pow": 64}
MOST_ULPS = 4
# Beyond these arguments no bound is promised.
REACH = {"sin": 1e5, "cos": 1e5, "tan": 1e5, "remainder": 1e4, "floor_divide": 1e4}
ELEMENTWISE = [op for op in TABLE if op["kind"] == "elementwise"]


def dense(shape):
    return tuple(int(np.prod(shape[i + 1:])) for i in range(len(shape)))


def shader_of(tensors, steps, results=1):
    memory = [(t.dtype, tuple(t.shape), dense(tuple(t.shape)), 0) for t in tensors]
    return _core._shader(memory, steps, results)


def run(adapter, shader, memory, shape):
    """The results as tensors."""
    text, words, groups, names = shader
    dtypes = [getattr(wg, name) for name in names]
    sizes = [int(np.prod(shape)) * dtype.itemsize for dtype in dtypes]
    found = adapter.run(text, words, groups, memory, sizes)
    return [_core._from_bytes(dtype, shape, data)
            for dtype, data in zip(dtypes, found, strict=True)]


def ordinals(x):
    """Floats as integers whose differences count units of the last place."""
    width = x.dtype.itemsize
    bits = np.frombuffer(_core._to_bytes(x), {2: "u2", 4: "u4"}[width]).astype("i8")
    top = 1 << (8 * width - 1)
    return np.where(bits & top, top - bits, bits)


def distances(got, want):
    """Units of the last place between elements; of what is no float, whether they differ."""
    assert got.dtype == want.dtype
    if not want.dtype.is_floating:
        return (got != want).numpy().astype("i8").reshape(-1)
    seen, wide = (x.astype(wg.float32).numpy().reshape(-1) for x in (got, want))
    # Adapters need not keep subnormal numbers.
    tiny = np.finfo("f").tiny
    is_tiny, is_near_zero = np.abs(wide) < tiny, np.abs(seen) <= tiny
    is_same = (np.isnan(seen) & np.isnan(wide)) | (is_tiny & is_near_zero)
    is_other = (np.isnan(seen) ^ np.isnan(wide)) | (is_tiny & ~is_near_zero)
    apart = np.abs(ordinals(got) - ordinals(want)).reshape(-1)
    return np.where(is_same, 0, np.where(is_other, np.iinfo("i8").max, apart))


def assert_close(got, want, ulps, facts, beside=None):
    """Every element is near the one that is wanted, or else the one beside it."""
    wanted = [want] if beside is None else [want, beside]
    apart = np.min([distances(got, x) for x in wanted], axis=0)
    at = int(apart.argmax())
    elements = [x.reshape(-1)[at].item() for x in (got, *wanted)]
    assert apart[at] <= ulps, (facts, at, *elements, int(apart[at]))


@functools.cache
def keeps_subnormal_numbers(adapter):
    x = wg.full((1,), 1e-40)
    shader = shader_of([x], [("add", [(0,), (0,)])])
    found, = run(adapter, shader, [_core._to_bytes(x)], (1,))
    return found.item() != 0


def flushed(x):
    """With zeros for the numbers that are subnormal in float32."""
    if x.dtype not in (wg.float32, wg.bfloat16):
        return x
    return wg.where(wg.abs(x) < np.finfo("f").tiny, x * 0, x)


def operand(op, i, dtype, rng):
    if dtype == "bool" or (op["condition"] and i == 0):
        return wg.asarray(rng.integers(0, 2, COUNT).astype(bool))
    if "float" not in dtype:
        info = np.iinfo(dtype)
        a = rng.integers(info.min, info.max, COUNT, dtype=dtype, endpoint=True)
        a[:400] = rng.integers(max(info.min, -3), 8, 400)
        a[400:700] >>= rng.integers(0, 8 * a.itemsize, 300).astype(dtype)
        edges = np.array([info.min, info.max, 0, 1, info.max // 2], dtype)
        a[700:725] = np.repeat(edges, 5) if i else np.tile(edges, 5)
        return wg.asarray(np.abs(a % 9) if op["name"] == "pow" and i else a)
    low, high = op["domain"][i]
    a = rng.uniform(low, high, COUNT)
    a[:500] = rng.standard_normal(500) * 10.0 ** rng.integers(-4, 5, 500)
    pairs = np.repeat(SPECIAL, len(SPECIAL)) if i == 0 else np.tile(SPECIAL, len(SPECIAL))
    a[500 : 500 + len(pairs)] = pairs
    reach = REACH.get(op["name"])
    if reach:
        finite = np.isfinite(a)
        a[finite] = np.clip(a[finite], -reach, reach)
        a[finite & (np.abs(a) < 1 / reach)] = 0.0
    return wg.asarray(a.astype("f")).astype(getattr(wg, dtype))


@pytest.mark.parametrize("op", ELEMENTWISE, ids=lambda op: op["name"])
def test_every_op_is_near_the_cpu_for_every_dtype(op, adapter):
    rng = np.random.default_rng(7)
    steps = [(op["name"], [(i,) for i in range(len(op["params"]))])]
    for dtype in (d for c in op["classes"][-1].split("|") for d in DTYPES[c]):
        tensors = [operand(op, i, dtype, rng) for i in range(len(op["params"]))]
        want, beside = _core._run_program(tensors, steps, False)[-1], None
        if not keeps_subnormal_numbers(adapter):
            # It may compute with zeros instead.
            beside = _core._run_program([flushed(t) for t in tensors], steps, False)[-1]
        memory = [_core._to_bytes(t) for t in tensors]
        got, = run(adapter, shader_of(tensors, steps), memory, (COUNT,))
        if op["name"] == "logaddexp" and dtype == "float32":
            # Where the sum is near 0 the error is that of its terms.
            near = np.abs(want.numpy()) < 1
            gap = got.numpy()[near] - want.numpy()[near]
            assert (np.abs(gap) <= 4 * np.finfo("f").eps).all()
            got = wg.where(wg.asarray(near), want, got)
        ulps = ULPS.get(op["name"], MOST_ULPS) if dtype == "float32" else 1
        assert_close(got, want, ulps, f"{op['name']} {dtype} on {adapter.name}", beside)


@pytest.mark.parametrize("start", [d for kind in DTYPES.values() for d in kind])
def test_every_conversion_is_that_of_the_cpu(start, adapter):
    kind = next(kind for kind, dtypes in DTYPES.items() if start in dtypes)
    rng = np.random.default_rng(3)
    like = {"condition": False, "name": "astype", "domain": [(-300, 300)]}
    x = operand(like, 0, start, rng)
    memory = [(x.dtype, (COUNT,), (1,), 0)]
    for to in (d for dtypes in DTYPES.values() for d in dtypes if d != start):
        if kind == "float" and "int" in to:
            # What an integer cannot hold is another machine's as it likes.
            info = np.iinfo(to)
            wide = x.astype(wg.float64).numpy()
            fits = (wide > max(info.min, -(2.0**63)) - 0.5) & (wide < info.max)
            x = wg.where(wg.asarray(fits), x, wg.asarray(1).astype(x.dtype))
        shader = _core._shader(memory, [], 1, getattr(wg, to))
        got, = run(adapter, shader, [_core._to_bytes(x)], (COUNT,))
        assert_close(got, x.astype(getattr(wg, to)), 0, f"{start} to {to}")


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 63, 64, 65, 255, 256, 257, 1023, 4097])
@pytest.mark.parametrize("dtype", ["int8", "float16", "int32", "int64"])
def test_no_element_is_lost_at_the_edges_of_packs_and_workgroups(count, dtype, adapter):
    a, b = (wg.asarray(np.arange(count) % n).astype(getattr(wg, dtype)) for n in (100, 7))
    steps = [("less", [(0,), (1,)]), ("where", [(2,), (0,), (1,)]), ("multiply", [(3,), (3,)])]
    want = _core._run_program([a, b], steps, False)[-2:]
    memory = [_core._to_bytes(a), _core._to_bytes(b)]
    shader = shader_of([a, b], steps, 2)
    for got, expected in zip(run(adapter, shader, memory, (count,)), want, strict=True):
        assert_close(got, expected, 0, dtype)


LAYOUTS = {
    "transposed": lambda a: a.T,
    "every second": lambda a: a[:, ::2],
    "backwards": lambda a: a[::-1, ::-1],
    "from the middle": lambda a: a[3:, 5:],
    "a column": lambda a: a[:, 3:4],
    "a row, repeated": lambda a: np.broadcast_to(a[2], (9, a.shape[1])),
    "one element, repeated": lambda a: np.broadcast_to(a[4:5, 2:3], (7, 3)),
    "rows of a cube": lambda a: a.reshape(4, 5, 11)[::-1, :, ::3].transpose(2, 0, 1),
}


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "int64", "bool"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_operands_are_read_in_any_layout(layout, dtype, adapter):
    stored = {"float16": "f2", "bool": "?"}.get(dtype, dtype)
    most = 2 if dtype == "bool" else 9
    base = (np.arange(220).reshape(20, 11) % (most**2)).astype(stored)
    view = LAYOUTS[layout](base)
    other = (np.arange(view.size).reshape(view.shape) % most).astype(stored)
    kept = getattr(wg, dtype)
    offset = (view.__array_interface__["data"][0] - base.__array_interface__["data"][0])
    strides = tuple(step // base.itemsize for step in view.strides)
    memory = [(kept, view.shape, strides, offset // base.itemsize),
              (kept, other.shape, dense(other.shape), 0)]
    name = "logical_xor" if dtype == "bool" else "subtract"
    shader = _core._shader(memory, [(name, [(0,), (1,)])], 1)
    got, = run(adapter, shader, [base.tobytes(), other.tobytes()], view.shape)
    want = np.logical_xor(view, other) if dtype == "bool" else view - other
    assert got.numpy().tobytes() == np.ascontiguousarray(want).tobytes()


def test_more_groups_than_fit_in_one_dimension(adapter):
    count = 4 * 64 * 65_535 + 300
    a = np.resize(np.arange(251, dtype="u1"), count)
    shader = _core._shader([(wg.uint8, (count,), (1,), 0)], [("bitwise_invert", [(0,)])], 1)
    assert shader[2][1] == 2
    got, = run(adapter, shader, [a.tobytes()], (count,))
    assert np.array_equal(got.numpy(), ~a)


def test_a_text_serves_every_size_and_number(adapter):
    steps = [("multiply", [(0,), 0.0]), ("exp", [(1,)]), ("add", [(2,), (0,)])]
    texts = set()
    for count, factor in ((5, 0.5), (800, -2.0), (6, float("inf"))):
        steps[0] = ("multiply", [(0,), factor])
        x = wg.linspace(-1, 1, count)
        shader = shader_of([x], steps)
        texts.add(shader[0])
        got, = run(adapter, shader, [_core._to_bytes(x)], (count,))
        assert_close(got, _core._run_program([x], steps, False)[-1], MOST_ULPS, (count, factor))
    assert len(texts) == 1


def test_what_has_no_shader_is_refused_by_name():
    with pytest.raises(wg.GraphError, match=r"WGSL has no such type.*float64"):
        _core._shader([(wg.float64, (3,), (1,), 0)], [("square", [(0,)])], 1)
    with pytest.raises(wg.ArgumentError, match="not one step"):
        _core._shader([(wg.float32, (3,), (1,), 0)], [], 1)
