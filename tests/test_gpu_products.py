"""Products and convolutions with epilogues on a GPU, compiled, against the CPU; transposed copies.

An epilogue of a float product is near the CPU's within what the order of a sum allows: `DEPTH`
roundings a term of the product, which the elementwise ops here increase at most `GAIN` times, and
some roundings of the result. Integers are equal to the bit.
"""

import os
import re
import subprocess
import sys

import numpy as np
import pytest

import wengert as wg
from wengert import nn, webgpu

FLOATS = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
DEPTH, GAIN = 100, 4
random = np.random.default_rng(7)


def sample(shape, dtype, low=-1.0, high=1.0):
    if dtype in FLOATS:
        return wg.tensor(random.uniform(low, high, shape)).astype(getattr(wg, dtype))
    return wg.tensor(random.integers(0, 7, shape).astype(dtype))


def assert_near(found, wanted, terms, facts):
    leaves = [wg.pytree.flatten(x)[0] for x in (found, wanted)]
    for got, want in zip(*leaves, strict=True):
        dtype = str(got.dtype).removeprefix("wengert.")
        assert got.dtype == want.dtype and got.shape == want.shape, facts
        if dtype not in FLOATS:
            assert np.array_equal(got.numpy(), want.numpy()), facts
            continue
        got, want = (x.astype("float64").numpy() for x in (got.to("cpu"), want))
        bound = GAIN * DEPTH * FLOATS["float32"] * terms + 4 * FLOATS[dtype] * (np.abs(want) + 1)
        assert (np.abs(got - want) <= bound).all(), (facts, np.abs(got - want).max())


def check(f, *xs, gpu, terms, is_fused=True):
    there = [x.to(gpu) for x in xs]
    run = wg.compile(f)
    want = wg.compile(f)(*xs)
    assert_near(run(*there), want, terms, [str(x.dtype) + str(x.shape) for x in xs])
    if is_fused:
        assert is_one(run.plan(*there)), str(run.plan(*there))
    return run


def is_one(plan):
    """Whether a plan is a product with its epilogue, and views."""
    lines = [line for line in str(plan).splitlines()
             if " = " in line and not re.search("= (permute_dims|slice|reshape)", line)]
    return len(lines) == 1 and re.search("(matmul|conv2d|contract|conv), ", lines[0])


SHAPES = [(1, 1, 1), (3, 5, 7), (4, 8, 4), (5, 64, 12), (63, 65, 64), (64, 64, 64), (2, 3000, 8),
          (1, 700, 5), (65, 4, 257), (0, 3, 4), (3, 0, 4)]  # fmt: skip


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS])
def test_epilogues_of_every_dtype(dtype, gpu):
    for m, k, n in SHAPES:
        # A product over one element is elementwise work.
        a, b = sample((m, k), dtype), sample((k, n), dtype)
        bias, other = sample((n,), dtype), sample((m, n), dtype)
        check(lambda a, b, c: wg.maximum(a @ b + c, 1), a, b, bias, gpu=gpu, terms=k,
              is_fused=0 not in (m, k, n) and k > 1)
        check(lambda a, b, c, d: (a @ b + c) * 2 + d, a, b, bias, other, gpu=gpu, terms=k,
              is_fused=0 not in (m, k, n) and k > 1)


@pytest.mark.parametrize("dtype", FLOATS)
def test_several_results_and_casts(dtype, gpu):
    for m, k, n in ((5, 6, 8), (7, 33, 9), (3, 2000, 4)):
        a, b, c = sample((m, k), dtype), sample((k, n), dtype), sample((m, 1), dtype)

        def both(a, b, c):
            y = a @ b + c
            return wg.maximum(y, 0.0), y * 0.5

        check(both, a, b, c, gpu=gpu, terms=k)
        for to in ("float32", "float16", "bfloat16"):
            check(lambda a, b, c, to=to: (a @ b * 0.5 + c).astype(to), a, b, c, gpu=gpu, terms=k)
    a, b = sample((6, 5), "int32"), sample((5, 8), "int32")
    for to in ("int8", "uint8", "int64", "float16", "bool", "float32"):
        check(lambda a, b, to=to: (a @ b - 3).astype(to), a, b, gpu=gpu, terms=5)
        check(lambda a, b, to=to: (a @ b).astype(to), a, b[:, :7], gpu=gpu, terms=5)
    check(lambda a, b: a @ b > 20, a, b, gpu=gpu, terms=5)


def test_an_epilogue_may_read_an_operand_of_the_product(gpu):
    for dtype in ("float32", "float16", "int64"):
        for n in (8, 64, 7):
            x = sample((n, n), dtype)
            w = sample((n, n), dtype)
            check(lambda x, w: x @ w + x, x, w, gpu=gpu, terms=n)
            check(lambda x, w: x @ w + w.T, x, w, gpu=gpu, terms=n)
            check(lambda x, w: x @ w * x[0] + w[:, :1], x, w, gpu=gpu, terms=n)


def test_batches_and_strided_operands(gpu):
    a, b = sample((3, 2, 5, 6), "float32"), sample((3, 2, 6, 8), "float32")
    for bias in ((8,), (5, 1), (2, 1, 8), (3, 1, 1, 1), (3, 2, 5, 8), ()):
        check(lambda a, b, c: nn.relu(a @ b + c), a, b, sample(bias, "float32"), gpu=gpu, terms=6)
    there = [x.to(gpu) for x in (a, b)]
    run = wg.compile(lambda a, b, c: wg.maximum(a @ b.mT + c.mT, 0.0) * c.mT)
    c = sample((3, 2, 5, 5), "float32")
    b = sample((3, 2, 5, 6), "float32")
    got = run(there[0], b.to(gpu), c.to(gpu))
    assert_near(got, run(a, b, c), 6, "transposed")
    # Operands that are views already when they are given.
    big = sample((9, 20), "float32")
    slices = [big[::2, 1:13:2], big[1:7, ::-3], big[:5, :1]]
    moved = big.to(gpu)
    there = [moved[::2, 1:13:2], moved[1:7, ::-3], moved[:5, :1]]
    run = wg.compile(lambda a, b, c: a @ b - c)
    assert_near(run(*there), run(*slices), 6, "views")


def test_numbers_and_functions(gpu):
    a, b = sample((9, 33), "float32"), sample((33, 20), "float32")
    for f in (nn.gelu, nn.silu, wg.tanh, wg.exp, nn.softplus):
        check(lambda a, b, f=f: f(a @ b * 0.1 + 0.25), a, b, gpu=gpu, terms=33)


def test_a_product_that_is_read_twice_is_computed_once(gpu):
    a, b = sample((6, 5), "float32"), sample((5, 8), "float32")

    def f(a, b):
        y = a @ b
        return y, nn.relu(y)

    run = check(f, a, b, gpu=gpu, terms=5, is_fused=False)
    assert len(run.plan(a.to(gpu), b.to(gpu))) == 2


@pytest.mark.parametrize("dtype", FLOATS)
def test_convolutions(dtype, gpu):
    for groups, padding, stride in ((1, 0, 1), (2, 1, 2), (4, 2, 1)):
        x, w = sample((2, 4, 9, 8), dtype), sample((8, 4 // groups, 3, 3), dtype)
        bias = sample((8, 1, 1), dtype)

        def f(x, w, b, at=(groups, padding, stride)):
            y = nn.conv2d(x, w, groups=at[0], padding=at[1], stride=at[2])
            return wg.maximum(y + b, 0) * 2

        run = check(f, x, w, bias, gpu=gpu, terms=9 * 4, is_fused=False)
        plan = run.plan(x.to(gpu), w.to(gpu), bias.to(gpu))
        assert ", add" in str(plan) or ", maximum" in str(plan), str(plan)


def test_gradients(gpu):
    layer = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Flatten(),
                          nn.Linear(4 * 36, 8), nn.GELU(), nn.Linear(8, 3))  # fmt: skip

    def step(layer, x):
        for p in layer.parameters():
            p.grad = None
        loss = (layer(x) ** 2).mean()
        loss.backward()
        return [loss, *(p.grad for p in layer.parameters())]

    x = sample((5, 3, 6, 6), "float32")
    want = step(layer, x)
    there = layer.to(gpu)
    got = wg.compile(lambda x: step(there, x))(x.to(gpu))
    assert_near(got, [y.to("cpu") for y in want], 36, "gradients")


def test_open_sizes_are_exported_with_their_epilogues(adapter, tmp_path):
    n = wg.Dim("n")
    w, b = sample((6, 8), "float32"), sample((8,), "float32")

    def f(x, h):
        return nn.relu(x @ w + b), (h @ w.astype("float16") + 1.0).astype("float32")

    def g(x, h):
        return wg.tanh(x.T @ x + b[:6]) * 2, h.astype("float32").T @ x - 1

    for function in (f, g):
        program = webgpu.export(function, wg.Spec((n, 6)), wg.Spec((n, 6), wg.float16))
        names = [d.name for d in program.dispatches]
        assert any(re.match("matmul, .*(maximum|add|tanh|multiply|astype)", x) for x in names)
        program.save(tmp_path / "p.wgprog")
        given = [(sample((size, 6), "float32"), sample((size, 6), "float16"))
                 for size in (1, 4, 7, 65, 1000)]  # fmt: skip
        calls = [("arrays", tuple(x.numpy() for x in call), None) for call in given]
        found = adapter.perform(tmp_path / "p.wgprog", calls)
        for xs, got in zip(given, found, strict=True):
            got = [wg.asarray(y) for y in got]
            assert_near(got, function(*xs), 1000, xs[0].shape)


@pytest.mark.parametrize("dtype", ["bool", "uint8", "float16", "float32", "int64"])
def test_transposed_copies(dtype, gpu):
    for shape in ((4, 4), (8, 12), (64, 68), (132, 4), (5, 8), (8, 7), (1, 8), (8, 1), (0, 4)):
        x = sample(shape, dtype)
        assert np.array_equal(x.to(gpu).T.numpy(), x.numpy().T), shape
        assert np.array_equal(x.to(gpu).T.reshape(-1).numpy(), x.numpy().T.reshape(-1)), shape
    x = sample((3, 8, 4, 12), dtype)
    for axes in ((0, 2, 3, 1), (3, 2, 1, 0), (1, 0, 3, 2), (0, 1, 3, 2), (2, 3, 0, 1)):
        there = wg.permute_dims(x.to(gpu), axes)
        assert np.array_equal(there.reshape(-1).numpy(), x.numpy().transpose(axes).reshape(-1))
    there, here = x.to(gpu)[::-1, :, 1:3, 4:], x[::-1, :, 1:3, 4:]
    there, here = there.permute_dims((0, 3, 2, 1)), wg.permute_dims(here, (0, 3, 2, 1))
    assert np.array_equal(there.reshape(-1).numpy(), here.numpy().reshape(-1))


def test_formulas_of_float64_are_computed_without_it(gpu):
    for args in ((0, 1, 5), (-3.5, 2.25, 100), (1, 1, 1), (2, 3, 0), (5.0, -5.0, 7)):
        for endpoint in (True, False):
            got = wg.linspace(*args, endpoint=endpoint, device=gpu).numpy()
            want = np.linspace(*args, endpoint=endpoint).astype("f")
            np.testing.assert_allclose(got, want, rtol=2e-7, atol=4e-7 * max(map(abs, args[:2])))
            assert not endpoint or args[2] < 2 or got[-1] == np.float32(args[1])
    for args in ((0.5, 3, 0.25), (3.0, -1.0, -0.3), (1.5,), (7, 1000, 13)):
        for dtype in ("float32", "float16"):
            got = wg.arange(*args, dtype=getattr(wg, dtype), device=gpu).numpy()
            want = wg.arange(*args, dtype=getattr(wg, dtype)).numpy()
            np.testing.assert_allclose(got, want, rtol=1e-3 if dtype == "float16" else 3e-7,
                                       atol=1e-6)  # fmt: skip
    made = wg.compile(lambda x: x + wg.linspace(0, 1, 4, device=x.device))(wg.ones(4, device=gpu))
    np.testing.assert_allclose(made.numpy(), np.linspace(1, 2, 4), rtol=1e-6)


VARIANT = """
import sys
import numpy as np
import wengert as wg
random, found = np.random.default_rng(5), []
for dtype in sys.argv[1].split(","):
    def sample(*shape):
        if "float" in dtype:
            return wg.tensor(random.normal(size=shape)).astype(getattr(wg, dtype))
        return wg.tensor(random.integers(0, 7, shape).astype(dtype))

    for m, k, n in [(1, 1, 1), (3, 5, 7), (33, 17, 31), (63, 65, 64), (64, 64, 64), (1, 65, 33),
                    (65, 127, 2), (0, 3, 4), (3, 0, 4), (34, 300, 5)]:
        c = sample(n)
        for a, b in ((sample(2, m, k), sample(k, n)), (sample(3, k, m).mT, sample(n, k).T),
                     (sample(m, 2 * k)[:, ::2], sample(2, k, n)[:, ::-1])):
            for f in (lambda a, b, c: a @ b, wg.compile(lambda a, b, c: wg.maximum(a @ b + c, 1))):
                got = f(*(x.to("gpu") for x in (a, b, c))).to("cpu").astype("float64").numpy()
                want = f(a, b, c).astype("float64").numpy()
                # Blocks share out many terms of few results.
                found.extend([got.ravel()] if k < 129 else [])
                bound = {"float32": 2e-5, "float16": 4e-3, "bfloat16": 3e-2}.get(dtype, 0)
                wrong = np.abs(got - want) > bound * (1 + np.sqrt(k) + np.abs(want))
                assert got.shape == want.shape and not wrong.any(), (dtype, a.shape, b.shape)
a = wg.ones((64, 64), device="gpu")
f = wg.compile(lambda a: a @ a)
f(a)
has_tiles = any("var<workgroup>" in wgsl for wgsl in (str(f.explain().plan.dispatches),))
print(has_tiles, hash(np.concatenate(found).tobytes()))
"""


def test_variants_of_products_give_the_same_bits(gpu):
    said = []
    for variant in ("blocks", "tiles"):
        env = os.environ | {"WENGERT_PRODUCTS": variant, "PYTHONHASHSEED": "0"}
        command = [sys.executable, "-c", VARIANT, ",".join([*FLOATS, *INTEGERS])]
        done = subprocess.run(command, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        said.append(done.stdout.split())
    assert [has_tiles for has_tiles, _ in said] == ["False", "True"]
    assert said[0][1] == said[1][1]
