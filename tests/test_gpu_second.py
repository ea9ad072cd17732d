"""A second adapter: the software driver of Vulkan that Chromium brings along runs a dozen programs.

In a process of its own, because the driver is chosen before the first one is opened.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import wengert as wg
from wengert import nn, optim

from support import missing, wanted_gpu

FOLDERS = ["/usr/lib/chromium", "/usr/lib/chromium-browser", "/opt/google/chrome"]
DRIVER = "vk_swiftshader_icd.json"


def random(seed, *shape):
    return wg.asarray(np.random.default_rng(seed).uniform(-2, 2, shape).astype("f"))


def whole(seed, *shape):
    return wg.asarray(np.random.default_rng(seed).integers(-90, 90, shape))


def trained(make, x, steps=4):
    """The losses of a training step, compiled."""
    wg.random.seed(0)
    with wg.default_device("cpu"):
        model = make()
    model = model.to(x.device)
    optimizer = optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    y = wg.arange(x.shape[0]) % 10

    @wg.compile
    def step(x, y):
        optimizer.zero_grad()
        loss = nn.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return wg.stack([step(x, y) for _ in range(steps)])


def convolutional():
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
                         nn.Linear(36, 10))


def attention(q):
    return nn.scaled_dot_product_attention(q, q * 0.5, q - 1, is_causal=True)


PROGRAMS = {
    "elementwise": (lambda x: wg.exp(-x * x) + wg.tanh(x) / 3, lambda: [random(1, 33, 65)]),
    "special values": (
        lambda x: wg.stack([wg.maximum(x, 0 * x), x / 0.0, wg.sqrt(x), wg.sign(x)]),
        lambda: [wg.asarray(np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, 1, -1], "f"))]),
    "integers": (lambda a, b: wg.stack([a // b, a % b, a * b, a ** 3]),
                 lambda: [whole(2, 300), whole(3, 300) * 2 + 1]),
    "halves": (lambda x: (x.astype(wg.float16) * 3).astype(wg.bfloat16).astype(wg.float32),
               lambda: [random(4, 301)]),
    "bytes": (lambda x: (x.astype(wg.int8) + 7).sum(axis=0), lambda: [whole(5, 67, 9)]),
    "reductions": (lambda x: wg.concat([x.sum(axis=1), x.max(axis=0), x.var(axis=1)]),
                   lambda: [random(6, 40, 130)]),
    "running sums": (lambda x: wg.cumulative_sum(x, axis=0), lambda: [random(7, 200, 3)]),
    "orders": (lambda x: wg.argsort(x, axis=1), lambda: [random(8, 3, 130)]),
    "indices": (lambda x, i: wg.take(x, i, axis=0).T[::-1], lambda: [random(9, 7, 5),
                                                                     wg.arange(20) % 7]),
    "product": (lambda a, b: a @ b.T, lambda: [random(10, 2, 37, 65), random(11, 30, 65)]),
    "attention": (attention, lambda: [random(12, 2, 17, 8)]),
    "training": (lambda x: trained(convolutional, x), lambda: [random(13, 12, 1, 8, 8)]),
    "random bits": (lambda: wg.random.uniform((100,), key=wg.random.key(3)), list),
}


def results(device):
    """The result of each program on a device, or what it raises."""
    found = {}
    with wg.default_device(device):
        for name, (f, make) in PROGRAMS.items():
            try:
                y = f(*(x.to(device) for x in make())).to("cpu")
                found[name] = [y.dtype.name, y.astype(wg.float64).tolist()]
            except wg.Error as error:
                found[name] = str(error)
    return found


def driver():
    paths = [Path(folder) / DRIVER for folder in FOLDERS]
    chromium = shutil.which("chromium")
    if chromium:
        paths.append(Path(chromium).resolve().parent / DRIVER)
    return next((path for path in paths if path.exists()), None)


@pytest.fixture(scope="module")
def second():
    wanted_gpu()
    path = driver()
    if path is None:
        missing("no Chromium; tools/browser.sh says how to get one")
    env = {"XDG_RUNTIME_DIR": "/tmp", **os.environ, "VK_ICD_FILENAMES": str(path),
           "WENGERT_ADAPTER": ""}
    done = subprocess.run([sys.executable, __file__], env=env, capture_output=True, text=True,
                          timeout=300)
    assert done.returncode == 0, done.stderr
    name, found = json.loads(done.stdout.splitlines()[-1])
    assert "SwiftShader" in name
    return found


@pytest.fixture(scope="module")
def here():
    return results("cpu")


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name, second, here):
    (dtype, got), (like, want) = second[name], here[name]
    assert dtype == like
    bound = 1e-4 if name in ("training", "attention", "running sums") else 2e-5
    if dtype.startswith(("int", "uint")) or name in ("random bits", "halves"):
        bound = 0.0
    np.testing.assert_allclose(np.array(got), np.array(want), rtol=bound, atol=bound)


if __name__ == "__main__":
    gpu = wg.device("gpu")
    print(json.dumps([wg.device_info(gpu)["name"], results(gpu)]))
