"""Machine code for groups has the bits of the interpreter, whatever the size and the elements."""

import json
import os
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest

import wengert as wg
from wengert import nn

ROOT = Path(__file__).parent.parent
SIZES = [1, 15, 16, 17, 63, 64, 65, 100, 1024, 1040, 5000, 70_001]
# Pieces of a channel with whole lines of the lanes of a sum, and without.
IMAGES = [(4, 16, 64, 65), (8, 24, 56, 56), (300, 12, 9, 7), (9, 8, 4000), (40, 32, 28, 28)]


def many(x, y):
    """More values at a time than a processor has registers."""
    values = [x * float(i) + y for i in range(1, 24)]
    total = x
    for a, b in zip(values, reversed(values), strict=True):
        total = total + a * b
    return total, values[3] - values[20]


PROGRAMS = {
    "chain": lambda x, y: wg.tanh(x * y + 0.5) * wg.exp(-(x * x)) + wg.sqrt(abs(y)) - 0.1 * y,
    "rare": lambda x, y: wg.exp(x * 100.0) * y + x,
    "gelu": lambda x, y: nn.gelu(x, approximate="tanh") * nn.silu(y) + nn.gelu(x) * wg.sigmoid(x),
    "choice": lambda x, y: wg.where((x > y) | (y < 0.0), x * y + 1.0, x - y) * 0.5,
    "masks": lambda x, y: (~(x == y)).astype(wg.float32) + wg.isnan(x).astype(wg.float32) * y,
    "rounding": lambda x, y: wg.floor(x * 3.0) + wg.ceil(y) - wg.round(x) * wg.trunc(y * 5.0),
    "bounds": lambda x, y: wg.maximum(wg.minimum(x, 0.7), y) * wg.sign(y) + wg.copysign(x, y),
    "logarithms": lambda x, y: wg.log1p(abs(x)) + wg.log(abs(y) + 0.1) * wg.expm1(x),
    "powers": lambda x, y: abs(x) ** y + wg.hypot(x, y) - wg.erf(x) * wg.cosh(y),
    "row": lambda x, y: wg.exp(x - y[:1]) * (y + 1.0),
    "many": many,
}


def by_channel(x, y):
    """The sums of a batch norm and its gradients, made of values that are stored and of others."""
    axes = (0, *range(2, x.ndim))
    centred = x - x.mean(axis=axes, keepdims=True)
    scale = (centred.square().mean(axis=axes, keepdims=True) + 1e-5).rsqrt()
    slope = (y * centred).mean(axis=axes, keepdims=True)
    dx = (y - y.mean(axis=axes, keepdims=True) - centred * slope) * scale
    return dx, (y * centred * scale).sum(axis=axes), y.sum(axis=axes)


def images(shape):
    """Images with a channel of zeros of both signs, and some with one infinity or NaN."""
    draw = np.random.default_rng(len(shape) + sum(shape))
    x, y = (draw.standard_normal(shape).astype(np.float32) for _ in range(2))
    x[:, 1], y[:, 2] = -0.0, -0.0
    x[1, 3].flat[50], y[0, 4].flat[-1], x[-1, 5].flat[0] = np.inf, np.nan, 3e38
    return x, y


def operands(n):
    """Elements of moderate size, with those of every other kind among them."""
    draw = np.random.default_rng(n)
    x, y = (draw.standard_normal(n).astype(np.float32) for _ in range(2))
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-41, 3e38, 88.0, -104.0], np.float32)
    places = draw.choice(n, n // 9, replace=False) if n % 2 else np.arange(0)
    x[places] = draw.choice(special, places.size)
    y[places[::2]] = draw.choice(special, places[::2].size)
    return x, y


def checksum(values):
    found = 0
    for value in values if isinstance(values, tuple) else (values,):
        array = np.array(value)
        array[np.isnan(array)] = np.nan  # which NaN it is, is not said
        found = zlib.crc32(array.tobytes(), found)
    return found


def updated(program, x, y):
    """A tensor after two updates by a program, which are written over what they replace."""
    state = wg.tensor(x)

    @wg.compile
    def update(y):
        value = program(state, y)
        state[...] = value[0] if isinstance(value, tuple) else value

    for _ in range(2):
        update(wg.asarray(y))
    return state


def results():
    """The checksum of each program at each size, with results in new memory and in an input's."""
    found = {}
    for name, program in PROGRAMS.items():
        compiled = wg.compile(program)
        for n in SIZES:
            x, y = operands(n)
            for _ in range(2):
                found[f"{name} {n}"] = checksum(compiled(wg.asarray(x), wg.asarray(y)))
            found[f"{name} {n} updated"] = checksum(updated(program, x, y))
    for shape in IMAGES:
        # A function of open sizes has no blocks by channel.
        compiled = wg.compile(by_channel)
        for threads in (1, 2):
            wg.set_num_threads(threads)
            found[f"{shape} {threads}"] = checksum(compiled(*map(wg.asarray, images(shape))))
    return found


def pages():
    """How many pages without a file may be executed, where the system says."""
    maps = Path("/proc/self/maps")
    found = 0
    for line in maps.read_text().splitlines() if maps.exists() else []:
        place, access, *rest = line.split()
        if access == "r-xp" and len(rest) == 3:
            start, end = (int(x, 16) for x in place.split("-"))
            found += (end - start) // 4096
    return found


def run(choice, isa=None):
    code = "import json, test_jit as t; print(json.dumps([t.results(), t.pages()]))"
    command = [sys.executable, "-c", code]
    paths = os.pathsep.join([str(ROOT / "tests"), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = os.environ | {"WENGERT_JIT": choice, "WENGERT_CHECK": "0", "PYTHONPATH": paths}
    env |= {} if isa is None else {"WENGERT_ISA": isa}
    done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def interpreted():
    return run("off")


@pytest.mark.parametrize(("choice", "isa"), [("on", None), ("always", None), ("always", "v3")])
def test_code_has_the_bits_of_the_interpreter(interpreted, choice, isa):
    (found, made), (want, others) = run(choice, isa), interpreted
    assert len(found) == 2 * (len(PROGRAMS) * len(SIZES) + len(IMAGES))
    assert found == want
    has_code = sys.platform == "linux" and "v3" in wg._core._instruction_sets()
    has_code &= os.environ.get("WENGERT_ISA") != "base"
    if has_code and choice == "always":
        # Otherwise the interpreter was compared with itself.
        assert made - others >= len(PROGRAMS)


def test_sums_by_channel_are_those_of_eager_code():
    for shape in IMAGES:
        compiled = wg.compile(by_channel)
        x, y = map(wg.asarray, images(shape))
        assert checksum(compiled(x, y)) == checksum(by_channel(x, y)), shape
        assert any("block" in str(step) for step in compiled.plan(x, y).steps)


def test_results_are_those_of_numpy():
    x, y = (np.abs(a) + 0.5 for a in operands(5000))
    program = wg.compile(PROGRAMS["chain"])
    for _ in range(60):
        got = program(wg.asarray(x), wg.asarray(y))
    want = np.tanh(x * y + 0.5) * np.exp(-(x * x)) + np.sqrt(np.abs(y)) - 0.1 * y
    np.testing.assert_allclose(np.array(got), want, rtol=2e-5, atol=2e-6)
