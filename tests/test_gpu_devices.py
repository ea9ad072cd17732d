"""GPUs as devices: which there are, what is known of them, and what is said where there is none.

Drivers are opened in processes of their own: other tests fork, and a driver's threads do not
survive that.
"""

import json
import os
import subprocess
import sys

import pytest

import wengert as wg

from support import missing, wanted_gpu

KEYS = {"type", "name", "backend", "kind", "driver", "limits", "features"}
KINDS = {"discrete", "integrated", "virtual", "software", "other"}


def child(code, **env):
    """What a program prints, as JSON."""
    quiet = {"XDG_RUNTIME_DIR": "/tmp", "NODEVICE_SELECT": "1"}
    unset = {"WENGERT_ADAPTER": "", "WENGERT_POWER": ""}
    done = subprocess.run(
        [sys.executable, "-c", "import json\nimport wengert as wg\n" + code],
        env=quiet | os.environ | unset | env, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


# Prints the message of the error of a call, or null.
REFUSAL = """
def refusal(call):
    try:
        call()
    except wg.DeviceError as error:
        return str(error)
"""
INFOS = "print(json.dumps([wg.device_info(d) for d in wg.devices()[2:]]))"


@pytest.fixture(scope="module")
def adapters():
    """What is known of each adapter."""
    wanted_gpu()
    found = child(INFOS)
    if not found:
        missing("no adapter; tools/adapter.sh says how to get one")
    return found


def test_every_adapter_is_listed_and_described(adapters):
    names, same = child("""
same = wg.__array_namespace_info__().devices() == wg.devices()
print(json.dumps([[str(d) for d in wg.devices()], same]))
""")
    assert same
    gpus = ["gpu", *(f"gpu:{i}" for i in range(1, len(adapters)))]
    assert names == ["cpu", "reference", *gpus]
    for info in adapters:
        assert set(info) == KEYS | {"shader_cache"}
        assert info["type"] == "gpu" and info["kind"] in KINDS
        assert info["name"] and info["backend"] in ("vulkan", "metal", "dx12")
        limits = info["limits"]
        assert limits["max_storage_buffers_per_shader_stage"] >= 4
        assert limits["max_compute_invocations_per_workgroup"] >= 128
        assert all(isinstance(x, str) and x == x.lower() for x in info["features"])
    software = [info["kind"] == "software" for info in adapters]
    assert software == sorted(software)  # They come last.


@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_devices_of_every_machine_are_described(device):
    info = wg.device_info(device)
    assert set(info) == KEYS and info["type"] == device and info["name"]
    assert wg.device_info(wg.device(device)) == info
    if device == "cpu":
        assert info["limits"]["threads"] == wg.get_num_threads()
        assert info["features"] == wg._core._instruction_sets()
        assert info["backend"].split()[1] in info["features"]


def test_a_device_is_what_its_name_says(adapters):
    code = """
import pickle
d = wg.device("gpu:0")
again = pickle.loads(pickle.dumps(d))
print(json.dumps([str(d), repr(d), d.type, d.index, d == wg.device("gpu") == again,
                  d != wg.device("cpu"), hash(d) == hash(again)]))
"""
    assert child(code) == ["gpu", 'device("gpu")', "gpu", 0, True, True, True]
    assert wg.device("cpu").index == 0


ASKED = [
    ("gpu:99", 'wg.ones(2, device="gpu:99")'),
    ("gpu:15", 'wg.device("gpu:15")'),
    ("gpu:15", "wg.parse_graph('device gpu:15\\n%0: float32 (2,) = input\\nreturn %0')"),
    ("gpu:15", 'wg.ones(2).to("gpu:15")'),
    ("gpu:x", 'wg.default_device("gpu:x").__enter__()'),
    ("gpu:15", 'wg.device_info("gpu:15")'),
    ("gpu:15", 'wg.memory_stats("gpu:15")'),
    ("gpu:15", 'wg.synchronize("gpu:15")'),
]


def test_a_device_that_is_not_there_is_refused_with_those_that_are(adapters):
    calls = ", ".join(f"lambda: {call}" for _, call in ASKED)
    found = child(REFUSAL + f"print(json.dumps([refusal(x) for x in [{calls}]]))")
    for (name, call), text in zip(ASKED, found, strict=True):
        assert text and f"device {name} " in text, call
        assert "cpu, reference, gpu" in text, call


def test_without_a_driver_the_remedy_is_said():
    """No adapter is no error until one is asked for."""
    code = REFUSAL + """
print(json.dumps([[str(d) for d in wg.devices()], refusal(lambda: wg.ones(2, device="gpu")),
                  refusal(lambda: wg.device("gpu:7")), wg.synchronize()]))
"""
    none = {"VK_ICD_FILENAMES": "/nonexistent", "VK_DRIVER_FILES": "/nonexistent"}
    if sys.platform != "linux":
        pytest.skip("these variables are read by the loader of Vulkan")
    names, first, second, _ = child(code, **none)
    assert names == ["cpu", "reference"]
    assert "device gpu cannot" in first and "device gpu:7 cannot" in second
    for text in (first, second):
        assert "mesa-vulkan-drivers" in text and "cpu and reference" in text


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing forks here")
def test_a_forked_child_is_refused_and_does_not_hang(adapters):
    code = REFUSAL + """
import os, time
wg.device("gpu")
end, start = os.pipe()
if (pid := os.fork()) == 0:
    found = [refusal(lambda: wg.ones(2, device="gpu")), [str(d) for d in wg.devices()],
             wg.ones(3).sum().item()]
    os.write(start, json.dumps(found).encode())
    os._exit(0)
for _ in range(300):
    if os.waitpid(pid, os.WNOHANG) != (0, 0):
        break
    time.sleep(0.1)
else:
    os.kill(pid, 9)
    raise SystemExit("the child hangs")
print(os.read(end, 1 << 16).decode())
"""
    text, names, total = child(code)
    assert "device gpu cannot" in text and '"spawn" or "forkserver"' in text
    assert names == ["cpu", "reference"] and total == 3.0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing forks here")
def test_a_child_may_be_the_first_that_asks(adapters):
    code = """
import os
end, start = os.pipe()
if (pid := os.fork()) == 0:
    os.write(start, json.dumps(len(wg.devices())).encode())
    os._exit(0)
os.waitpid(pid, 0)
print(json.dumps([int(os.read(end, 99)), len(wg.devices())]))
"""
    assert child(code) == [2 + len(adapters)] * 2


def test_an_adapter_is_chosen_by_its_number_or_a_part_of_its_name(adapters):
    for number, wanted in enumerate(adapters):
        first, *others = child(INFOS, WENGERT_ADAPTER=str(number))
        assert first == wanted and len(others) == len(adapters) - 1
        name = wanted["name"]
        for part in (name, name.upper()[: len(name) // 2 + 1]):
            first, *_ = child(INFOS, WENGERT_ADAPTER=part)
            assert part.lower() in first["name"].lower()
    assert len(child(INFOS, WENGERT_POWER="low")) == len(adapters)


def test_a_wish_for_an_adapter_that_is_not_there_is_refused(adapters):
    code = """
found = []
for call in (wg.devices, lambda: wg.ones(2, device="gpu"), lambda: wg.device_info("gpu")):
    try:
        call()
    except wg.ArgumentError as error:
        found.append(str(error))
print(json.dumps(found + [wg.ones(2).sum().item()]))
"""
    *texts, total = child(code, WENGERT_ADAPTER="no such adapter")
    assert len(texts) == 3 and total == 2.0
    for text in texts:
        assert text.startswith("WENGERT_ADAPTER: ") and '"no such adapter"' in text
        assert f"0 ({adapters[0]['name']})" in text


@pytest.mark.skipif(not os.path.exists("/proc/self/maps"), reason="needs /proc")
def test_no_driver_is_opened_before_a_gpu_is_asked_for(adapters):
    code = """
def is_open():
    return "libvulkan" in open("/proc/self/maps").read()
found = [is_open()]
wg.device("cpu"), wg.synchronize(), wg.memory_stats("reference"), wg.device_info("cpu")
wg.ones(2).to("reference")
try:
    wg.device("tpu")
except wg.DeviceError:
    found.append(is_open())
wg.devices()
print(json.dumps([*found, is_open()]))
"""
    assert child(code) == [False, False, True]


def test_one_device_is_waited_for_or_counted():
    assert wg.synchronize("cpu") is None
    assert wg.synchronize(device=wg.device("reference")) is None
    keys = set(wg.memory_stats())
    assert set(wg.memory_stats("cpu")) == set(wg.memory_stats(device=None)) == keys
