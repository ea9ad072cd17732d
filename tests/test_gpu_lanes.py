"""What invocations of a workgroup join, through subgroups or memory: the same bits."""

import os
import subprocess
import sys

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
