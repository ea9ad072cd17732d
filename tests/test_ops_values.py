"""Values of every op against NumPy, for every dtype it takes and every layout."""

import inspect
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import wengert as wg

import support
from references import REFERENCES, SAMPLES
from support import LAYOUTS, TABLE, Operands, assert_near, domain_of, dtypes_of, function, label

ROOT = Path(__file__).parent.parent
# Ops whose values other tests fix: they make numbers at random or from nothing, or move bits.
ELSEWHERE = ("create", "host")
# Rounding errors, in units of the last place of the largest value, that a sum of products may add.
ACCUMULATED = 16
# They subtract a rounded mean: of equal elements there remain units of the last place of these.
CENTRED = {"var", "std"}


def reference(op):
    name = label(op)
    return REFERENCES.get(name) or REFERENCES.get(op["name"]) or getattr(np, op["name"], None)


def samples(op):
    listed = op.get("samples") or SAMPLES.get(label(op)) or SAMPLES.get(op["name"])
    if listed:
        return listed
    tensors = [p for p in op["params"] if p["default"] is None]
    return [", ".join("x(3, 4)" for _ in tensors), ", ".join("x(0, 4)" for _ in tensors)]


OPS = [op for op in TABLE if op["kind"] not in ELSEWHERE and op["function"]]


@pytest.mark.parametrize("op", OPS, ids=label)
def test_every_op_has_a_reference(op):
    assert reference(op), f"{label(op)}: not a name of NumPy, and not in tests/references.py"


def outputs(result):
    return list(result) if isinstance(result, tuple | list) else [result]


def compute(op, operands, sample, layout):
    """The op's results on tensors, with operands of the dtype under test laid out as asked."""
    def wrap(kind, array):
        dtype = operands.dtype if kind == "x" else array.dtype.name
        return support.to_tensor(array, dtype, layout)
    args, kwargs = operands.evaluate(sample, wrap)
    return outputs(function(op)(*args, **kwargs))


def expect(op, operands, sample, layout):
    """The reference's results: floats in float64, so that its own rounding does not count."""
    def wrap(kind, array):
        array = support.flattened(array, layout)
        return array.astype("float64") if array.dtype.kind == "f" else array
    args, kwargs = operands.evaluate(sample, wrap)
    with np.errstate(all="ignore"):
        return outputs(reference(op)(*args, **kwargs))


def check(op, sample, dtype, layout):
    operands = Operands((label(op), sample, dtype), dtype, domain_of(op))
    got = compute(op, operands, sample, layout)
    want = expect(op, operands, sample, layout)
    assert len(got) == len(want)
    for g, w in zip(got, want, strict=True):
        w = np.asarray(w)
        name = g.dtype.name
        if name not in support.FLOATS:
            np.testing.assert_array_equal(support.to_numpy(g), w.astype(name))
            continue
        floor = 0 if op["kind"] == "elementwise" else ACCUMULATED
        largest = np.abs(operands.drawn[0][1]).max(initial=0) if op["name"] in CENTRED else 0
        assert_near(support.to_numpy(g), w, name, ulps=4, floor=floor, largest=largest)


@pytest.mark.parametrize("op", OPS, ids=label)
def test_values(op, full):
    for sample in samples(op):
        dtypes = dtypes_of(op, sample)
        for dtype in dtypes:
            for layout in LAYOUTS if full or dtype == dtypes[-1] else LAYOUTS[:1]:
                try:
                    check(op, sample, dtype, layout)
                except Exception as error:
                    error.add_note(f"{label(op)}({sample}) with {dtype}, {layout}")
                    raise


@pytest.mark.parametrize("op", OPS, ids=label)
def test_same_bits_for_any_layout(op):
    for sample in samples(op):
        dtype = dtypes_of(op, sample)[-1]
        operands = Operands((label(op), sample), dtype)
        plain = compute(op, operands, sample, "contiguous")
        for layout in ("strided", "negative", "transposed"):
            other = compute(op, operands, sample, layout)
            assert [bits(t) for t in plain] == [bits(t) for t in other], (sample, layout)


def bits(t):
    return support.to_numpy(t).tobytes()


SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, np.inf, -np.inf, np.nan, 1e-40, -1e-40, 3.4e38, 1e-45]


ELEMENTWISE = [op for op in OPS if op["kind"] == "elementwise"]
FLOATING = [op for op in ELEMENTWISE if "float" in op["classes"][0] and not op["condition"]]
LENGTHS = (2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 24, 31, 33, 48, 63, 64, 65, 128, 129, 130)


@pytest.mark.parametrize("op", FLOATING, ids=label)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_special_values(op, dtype):
    """Infinities, NaN, zeros of both signs and denormals give what NumPy gives."""
    with np.errstate(all="ignore"):
        values = np.array(SPECIAL).astype(dtype)
    grids = np.meshgrid(*[values] * len(op["classes"]), indexing="ij")
    with np.errstate(all="ignore"):
        want = np.asarray(reference(op)(*[g.astype("float64") for g in grids]))
    got = function(op)(*[wg.asarray(g) for g in grids])
    if got.dtype.name not in support.FLOATS:
        np.testing.assert_array_equal(got.numpy(), want)
        return
    assert_near(got.numpy(), want, dtype, ulps=4)


@pytest.mark.parametrize("op", ELEMENTWISE, ids=label)
def test_an_element_s_bits_do_not_depend_on_the_length(op):
    """Vector bodies, their remainders and single elements compute the same."""
    count = max(LENGTHS)
    for dtype in dtypes_of(op, "x(1)"):
        arrays = []
        for n, (low, high) in enumerate(op["domain"]):
            rng = support.generator(label(op), dtype, n)
            condition = op["condition"] and n == 0
            arrays.append(support.draw(rng, (count,), "bool" if condition else dtype, low, high))

        def at(part, arrays=arrays, dtype=dtype):
            names = ["bool" if a.dtype == bool else dtype for a in arrays]
            parts = zip(arrays, names, strict=True)
            return function(op)(*[support.to_tensor(a[part].copy(), name) for a, name in parts])

        alone = b"".join(bits(at(slice(i, i + 1))) for i in range(count))
        for n in LENGTHS:
            together = bits(at(slice(n)))
            assert together == alone[: len(together)], (dtype, n)


@pytest.mark.parametrize("isa", ["base", "v3", "v4"])
def test_every_instruction_set_passes(isa):
    """The same checks with another instruction set's kernels (never above what this CPU has)."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-k",
               "do_not_depend_on_the_length or special_values", __file__]
    run = subprocess.run(command, env=os.environ | {"WENGERT_ISA": isa}, cwd=ROOT,
                         capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout[-4000:]


@pytest.mark.parametrize("op", [op for op in OPS if op["method"]], ids=label)
def test_a_method_is_its_function(op):
    sample = samples(op)[0]
    operands = Operands((label(op), sample), dtypes_of(op, sample)[-1])
    args, kwargs = operands.evaluate(sample, lambda kind, a: wg.asarray(a))
    method = getattr(wg.Tensor, op["name"])
    got, want = outputs(method(*args, **kwargs)), outputs(function(op)(*args, **kwargs))
    assert [(t.dtype, bits(t)) for t in got] == [(t.dtype, bits(t)) for t in want]


@pytest.mark.parametrize("op", [op for op in TABLE if op["function"]], ids=label)
def test_signature_tells_what_the_table_says(op):
    found = dict(inspect.signature(function(op)).parameters)
    # Further sizes of a shape may be arguments of their own.
    more = [p["name"] for p in op["params"] if p["variadic"] and p["kind"] == "Shape"]
    sizes = found.pop("sizes") if more else None
    assert sizes is None or sizes.kind is inspect.Parameter.VAR_POSITIONAL
    names = [p["name"] for p in op["params"]]
    # What a function of Python's adds to the op of its name comes behind, by keyword.
    for name in [*found][len(names) :]:
        assert found[name].kind is inspect.Parameter.KEYWORD_ONLY
        assert found.pop(name).default is not inspect.Parameter.empty
    assert [*found] == names
    for p in op["params"]:
        star = found[p["name"]].kind is inspect.Parameter.VAR_POSITIONAL
        assert star == (p["variadic"] and not more)
        if star:
            continue
        keyword = found[p["name"]].kind is inspect.Parameter.KEYWORD_ONLY
        assert keyword == bool(p["keyword_only"])
        assert (found[p["name"]].default is inspect.Parameter.empty) == (p["default"] is None)


def test_bfloat16_rounds_as_its_bits_say():
    """The other tests take bfloat16 values through casts, so the cast itself is checked by bits."""
    a = support.generator("bfloat16").standard_normal(10_000).astype("float32")
    raw = a.view("uint32")
    even = raw + 0x7FFF + ((raw >> 16) & 1)
    want = (even & 0xFFFF0000).view("float32")
    np.testing.assert_array_equal(support.to_numpy(wg.asarray(a).astype(wg.bfloat16)), want)
