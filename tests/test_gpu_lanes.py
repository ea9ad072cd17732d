"""What invocations of a workgroup compute together: the same bits through subgroups or memory, and
nothing where work before it has failed."""

import os
import subprocess
import sys

import pytest

import wengert as wg

DTYPES = ["float32", "float16", "bfloat16", "int8", "int16", "int32", "int64", "uint8", "uint16",
          "uint32", "uint64"]  # fmt: skip

JOINED = """
import sys
import numpy as np
import wengert as wg
random, found = np.random.default_rng(9), []
for dtype in sys.argv[1].split(","):
    for shape in [(3, 5000), (5000, 3), (1, 100_003), (300, 257), (2, 64, 40), (9, 1)]:
        low = -3 if "u" not in dtype else 0
        x = random.integers(low, 7, shape) + (random.random(shape) if "float" in dtype else 0)
        x = wg.tensor(x.astype("float32" if "float" in dtype else dtype)).astype(getattr(wg, dtype))
        on = x.to("gpu")
        for f in (lambda x: x.sum(-1), lambda x: x.max(0), lambda x: x.min(), lambda x: x.sum(0),
                  lambda x: x.argmax(-1), lambda x: x.argmin(0), lambda x: (x != 0).all(-1),
                  wg.compile(lambda x: (x - x.max(-1, keepdims=True)).sum(-1, keepdims=True) + x),
                  wg.compile(lambda x: wg.nn.softmax(x.astype(wg.float32), -1))):
            got, want = (np.asarray(f(x).to("cpu").astype("float64")) for x in (on, x))
            bound = {"float16": 2e-3, "bfloat16": 2e-2}.get(dtype, 2e-6 * shape[-1] ** 0.5)
            bound = bound if "float" in dtype else 2e-6
            wrong = np.abs(got - want) > bound * (10 + np.abs(want))
            assert got.shape == want.shape and not wrong.any(), (dtype, shape, got[wrong][:3])
            found.append(got.ravel())
f = wg.compile(lambda x: wg.nn.softmax(x, -1))
f(wg.ones((300, 257), device="gpu"))
print("subgroupShuffle" in str(f.explain().plan.dispatches))
print(hash(np.concatenate(found).tobytes()))
"""


def test_subgroups_give_the_bits_of_workgroup_memory(gpu):
    said = []
    for choice in ("on", "off"):
        env = os.environ | {"WENGERT_SUBGROUPS": choice, "PYTHONHASHSEED": "0"}
        command = [sys.executable, "-c", JOINED, ",".join(DTYPES)]
        done = subprocess.run(command, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        said.append(done.stdout.split())
    has = "subgroup" in wg.device_info(gpu)["features"]
    assert [shuffles for shuffles, _ in said] == [str(has), "False"]
    assert said[0][1] == said[1][1]


GUARDED = """
import numpy as np
import wengert as wg
random, table = np.random.default_rng(1), wg.arange(4.0, device="gpu")
good, bad = (wg.asarray(np.array(i)).to("gpu") for i in ([1], [9]))
attention = lambda x: wg.nn.scaled_dot_product_attention(x, x, x)
for shape, update in [((1, 2, 300, 16), attention), ((1, 2, 40, 16), attention),
                      ((256, 256), lambda x: wg.maximum(x @ x + 1, 0)), ((70, 70), lambda x: x @ x),
                      ((300, 257), lambda x: wg.nn.softmax(x, -1)),
                      ((3, 100_003), lambda x: x.sum(1)), ((100_003,), lambda x: x.argmax(0))]:
    x = wg.asarray(random.normal(size=shape).astype("f"))
    want = update(x)
    state = wg.zeros(want.shape, dtype=want.dtype, device="gpu")

    @wg.compile
    def step(x, i):
        taken = table[i]
        state.assign(update(x))
        return taken

    x = x.to("gpu")
    step(x, good)
    np.testing.assert_allclose(state.numpy(), want.numpy(), rtol=1e-3, atol=1e-3)
    before = state.numpy()
    try:
        step(x * 2, bad).numpy()
    except wg.BoundsError as refusal:
        assert "index 9" in str(refusal), refusal
    else:
        raise AssertionError("nothing was refused")
    assert np.array_equal(state.numpy(), before), shape
    step(x, good)
    assert np.array_equal(state.numpy(), before), shape
"""


@pytest.mark.parametrize("setting", ["WENGERT_PRODUCTS=blocks", "WENGERT_PRODUCTS=tiles",
                                     "WENGERT_SUBGROUPS=off"])  # fmt: skip
def test_a_failure_leaves_state_that_workgroups_would_write(gpu, setting):
    env = os.environ | dict([setting.split("=")])
    done = subprocess.run([sys.executable, "-c", GUARDED], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
