"""Every op of the table on a GPU: eager and compiled, values and gradients, against the CPU.

Skipped where there is no adapter. What is compared is near, not equal: a GPU sums in another order,
and its functions have bounds of their own (docs/webgpu.md).
"""

import numpy as np
import pytest
from hypothesis import given, settings
from test_devices import home, leaves, on
from test_laws_programs import operands, programs, run
from test_modes import program_of
from test_ops_gradients import OPS as DIFFERENTIABLE
from test_ops_gradients import directions_like, scalar_of, setup
from test_ops_values import OPS, samples

import wengert as wg

from support import dtypes_of, label

CPU = wg.device("cpu")
EPS = {"float16": 2**-10, "bfloat16": 2**-7, "float32": 2**-23}


def assert_near(got, want, terms, facts):
    assert got.dtype == want.dtype and got.shape == want.shape, facts
    eps = EPS.get(str(want.dtype))
    a, b = home(got), home(want)
    if eps is None:
        np.testing.assert_array_equal(a, b, err_msg=facts)
        return
    finite = np.abs(b[np.isfinite(b)].astype(float))
    atol = terms * eps * max(1.0, finite.max(initial=0.0))
    np.testing.assert_allclose(a.astype(float), b.astype(float), rtol=terms * eps, atol=atol,
                               err_msg=facts)


def narrow(values):
    return all(str(x.dtype) != "float64" for x in leaves(values))


@pytest.mark.parametrize("op", OPS, ids=label)
def test_every_op(op, gpu):
    for sample in samples(op):
        dtypes = [d for d in dtypes_of(op, sample) if d != "float64"]
        if not dtypes:
            continue
        dtype = "float32" if "float32" in dtypes else dtypes[-1]
        program, values = program_of(op, sample, dtype)
        want = leaves(program(*values))
        if not narrow(values) or not narrow(want):
            continue
        with wg.default_device(gpu):
            moved = on(gpu, values)
            got = leaves(program(*moved))
            compiled = leaves(wg.compile(program)(*moved))
        facts = f"{label(op)}({sample}) with {dtype}"
        assert all(x.device == gpu for x in got + compiled), facts
        for x, y, z in zip(got, compiled, want, strict=True):
            assert_near(x, z, 256, facts)
            assert_near(y, z, 256, f"compiled {facts}")


@pytest.mark.parametrize("op", DIFFERENTIABLE, ids=label)
def test_gradients(op, gpu):
    for sample in samples(op)[:1]:
        call, values = setup(op, sample)
        values = [x.astype(wg.float32) if str(x.dtype) == "float64" else x for x in values]
        here = [wg.tensor(x, requires_grad=True) for x in values]
        if not call(*here):
            continue
        f, ways = scalar_of(call, label(op)), directions_like(values, "v")
        ways = [w.astype(wg.float32) for w in ways]
        there = [wg.tensor(x, requires_grad=True, device=gpu) for x in values]
        aim = {CPU: ways, gpu: on(gpu, ways)}

        def along(xs, f=f, aim=aim):
            with wg.default_device(xs[0].device):
                first = wg.gradients(f(*xs), xs, create_graph=True, allow_unused=True)
                total = 0.0 * xs[0].sum()
                for g, w in zip(first, aim[xs[0].device], strict=True):
                    total = total if g is None else total + (g * w).sum()
                second = wg.gradients(total, xs, allow_unused=True)
            pairs = zip(xs * 2, first + second, strict=True)
            return [wg.zeros_like(x) if g is None else g for x, g in pairs]

        for x, y in zip(along(there), along(here), strict=True):
            assert x.device == gpu
            assert_near(x, y, 1 << 12, f"{label(op)}({sample})")


@settings(max_examples=30)
@given(programs())
def test_random_programs(gpu, program):
    """Eager and compiled on the device are near the CPU; rounding may differ in every step."""
    arrays = operands((37, 5), "gpu")
    want = run(program, *(wg.asarray(a) for a in arrays)).numpy()
    moved = [wg.asarray(a, device=gpu) for a in arrays]
    for f in (run, wg.compile(run)):
        got = f(program, *moved)
        assert got.device == gpu
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-3, atol=1e-3)
