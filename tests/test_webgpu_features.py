"""Optional features of programs: float16 read as it is gives the bits of the packed form.

Products are computed through wgpu-py on a device that was opened with `shader-f16`, by a program
that uses it and by one that does not. Skipped where the adapter lacks it, as `adapter` says.
"""

import json

import pytest
from adapter import start

import wengert as wg
from wengert import webgpu

F16 = ["shader-f16"]


@pytest.fixture(scope="module")
def adapter():
    found = start()
    if isinstance(found, str):
        pytest.skip(found)
    yield found
    found.close()


def product(m=8, k=8, n=8, features=()):
    shapes = [wg.Spec((m, k), wg.float16), wg.Spec((k, n), wg.float16)]
    return webgpu.export(lambda a, b: a @ b, *shapes, features=features)


def test_programs_name_the_features_that_they_use(tmp_path):
    program = product(features=F16)
    assert program.features == ("shader-f16",) and product().features == ()
    assert any(text.startswith("enable f16;") for text in program.shaders)
    program.save(tmp_path / "p")
    assert webgpu.load(tmp_path / "p").features == ("shader-f16",)
    # What uses no float16 needs nothing.
    assert webgpu.export(lambda x: x @ x, wg.ones((4, 4)), features=F16).features == ()


def test_unknown_features_and_hostile_ones_are_refused():
    for wrong in (["f16"], ["subgroups"], [3], [[]]):
        with pytest.raises(wg.ArgumentError, match="expected some of: shader-f16"):
            webgpu.export(lambda x: x, wg.ones(3), features=wrong)
    with pytest.raises(TypeError, match="a list of names"):
        webgpu.export(lambda x: x, wg.ones(3), features="shader-f16")
    program = product()
    for wrong in (None, "shader-f16", ["f16"], [3], [[]], [{}], F16 * 2, {"shader-f16": 1}):
        described = json.loads(json.dumps(program._described)) | {"features": wrong}
        with pytest.raises(wg.ArgumentError, match="features"):
            webgpu.Program(described, program._tensors)
    described = {k: v for k, v in program._described.items() if k != "features"}
    assert webgpu.Program(described, program._tensors).features == ()


CODE = """
import numpy as np, wgpu
import wengert as wg
from wengert import webgpu
adapter = wgpu.gpu.request_adapter_sync()
device = adapter.request_device_sync(required_features=["shader-f16"])
rng = np.random.default_rng(3)
shapes = [(1, 1, 1), (3, 5, 7), (1, 64, 8), (8, 64, 1), (63, 65, 64), (64, 64, 64), (5, 2000, 12)]
ways = {"dense": lambda a, b: a @ b, "turned": lambda a, b: a.mT @ b.mT,
        "strided": lambda a, b: a[:, ::2] @ b[::-1], "relu": lambda a, b: wg.maximum(a @ b, 0),
        "own": lambda a, b: a @ b + b[0]}
special = np.array([0.0, -0.0, 6e-8, -3e-6, 6.1e-5, 65504, np.inf, -np.inf, np.nan], "f2")
for m, k, n in shapes:
    for name, f in ways.items():
        left, right = {"turned": ((2, k, m), (n, k)), "strided": ((m, 2 * k), (k, n))}.get(
            name, ((m, k), (k, n)))
        a, b = (rng.normal(size=s).astype("f2") for s in (left, right))
        a.flat[: min(a.size, 9)] = special[: a.size]
        specs = [wg.Spec(x.shape, wg.float16) for x in (a, b)]
        plain, native = (webgpu.export(f, *specs, features=w) for w in ((), ["shader-f16"]))
        got = [webgpu.Player(p, device)(a, b)[0] for p in (plain, native)]
        x, y = (np.where(np.isnan(r), np.float16("nan"), r).view("u2") for r in got)
        if not np.array_equal(x, y):
            print("differs", name, m, k, n, got)
        # A product over one element is no product to the planner.
        if name != "own" and k > 1 and not native.features:
            print("unused", name, m, k, n)
bare = adapter.request_device_sync()
try:
    webgpu.Player(native if native.features else webgpu.export(ways["dense"], *specs,
                  features=["shader-f16"]), bare)
except wg.DeviceError as error:
    print(error)
"""


def test_native_float16_has_the_bits_of_packed_float16(adapter):
    has_one = "import wgpu; print('shader-f16' in wgpu.gpu.request_adapter_sync().features)"
    if adapter.execute(has_one) == "False\n":
        pytest.skip("the adapter has no shader-f16")
    said = adapter.execute(CODE)
    assert said.startswith("Player: the program needs shader-f16, the device was opened"), said
    assert said.count("\n") == 1, said
