"""Figures of a GPU: overhead, streaming against a copy shader, products, training steps.

    python benches/gpu.py [--device gpu:1] [--save]

The copy shader is written by hand and run through wgpu-py on the adapter of the same name: what it
reaches is what streaming can. `--save` writes the figures to benches/results/, under the adapter's
name, with the machine: a software adapter is as fast as its processor. Times are medians; the first
run of each row, which compiles, is given apart.
"""

import argparse
import json
import math
import os
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

import machine
import numpy as np

import wengert as wg
from wengert import nn, optim

COPY = """
@group(0) @binding(0) var<storage, read_write> x: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read_write> y: array<vec4<u32>>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) at: vec3<u32>, @builtin(num_workgroups) n: vec3<u32>) {
    let id = at.y * n.x * 64u + at.x;
    if id < arrayLength(&x) { y[id] = x[id]; }
}
"""
# What a batch of runs takes at least, so that waiting for the device does not count.
BATCH = 0.02
COPIES = 20


def timed(work, device, rounds=9):
    """Seconds of the first run, until the device is done, and the median of others, in batches."""
    def once(count=1):
        start = time.perf_counter()
        for _ in range(count):
            work()
        wg.synchronize(device)
        return (time.perf_counter() - start) / count

    first = once()
    count = max(1, min(1000, round(BATCH / once())))
    return first, statistics.median(once(count) for _ in range(rounds))


def copy_speed(name, elements):
    """Bytes a second, read and written, of the copy shader; None without wgpu-py."""
    try:
        import wgpu
    except ImportError:
        return None
    adapters = wgpu.gpu.enumerate_adapters_sync()
    adapter = next((a for a in adapters if a.info["device"] in name), None)
    if adapter is None:
        return None
    device = adapter.request_device_sync()
    usage = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC | wgpu.BufferUsage.COPY_DST
    x, y = (device.create_buffer(size=4 * elements, usage=usage) for _ in range(2))
    module = device.create_shader_module(code=COPY)
    pipeline = device.create_compute_pipeline(
        layout="auto", compute={"module": module, "entry_point": "main"})
    group = device.create_bind_group(
        layout=pipeline.get_bind_group_layout(0),
        entries=[{"binding": i, "resource": {"buffer": b}} for i, b in enumerate((x, y))])

    def run():
        start = time.perf_counter()
        encoder = device.create_command_encoder()
        step = encoder.begin_compute_pass()
        step.set_pipeline(pipeline)
        step.set_bind_group(0, group)
        for _ in range(COPIES):
            step.dispatch_workgroups(elements // 4 // 64 // 4, 4)
        step.end()
        device.queue.submit([encoder.finish()])
        device.queue.read_buffer(y, 0, 4)
        return time.perf_counter() - start

    run()
    return COPIES * 8 * elements / statistics.median(run() for _ in range(9))


def overhead(device):
    """Seconds that a small op takes of the caller, until it is done, and of the thread that submits
    (None where threads' times are not seen), in a chain of 2000.
    """
    x = wg.ones(16, device=device)

    def chain():
        y = x
        for _ in range(2000):
            y = y + 1.0
        return y

    chain().tolist()
    before = submitting()
    start = time.perf_counter()
    y = chain()
    given = time.perf_counter() - start
    y.tolist()
    done = time.perf_counter() - start
    spent = before and (submitting() - before) / 2000
    return given / 2000, done / 2000, spent


def submitting():
    """Seconds that the threads took that submit to devices; None where they are not seen."""
    threads = [path for path in Path("/proc/self/task").glob("*")
               if (path / "comm").read_text().strip() == "wengert-gpu"]
    # Nanoseconds on a processor come first.
    spent = [int((path / "schedstat").read_text().split()[0]) for path in threads]
    return sum(spent) / 1e9 if spent else None


def transfers(device):
    """Names and figures of uploads and reads."""
    for mb in (1, 64):
        host = wg.asarray(np.ones(mb * 10**6, "uint8"))
        there = host.to(device)
        for name, x, to in (("upload", host, device), ("read", there, "cpu")):
            _, median = timed(lambda x=x, to=to: x.to(to), device)
            yield f"{name} of {mb} MB, GB/s", round(mb / 1e3 / median, 2)


def rows(device, elements, largest):
    """Names, work, and the bytes or operations that it moves or does."""
    side = math.isqrt(elements)
    rng = np.random.default_rng(0)
    x = wg.asarray(rng.uniform(0.1, 1, elements).astype("f"), device=device)
    y = wg.asarray(rng.uniform(0.1, 1, elements).astype("f"), device=device)
    yield "add", lambda: x + y, 12 * elements, "GB/s"
    yield "multiply by a number", lambda: x * 2.0, 8 * elements, "GB/s"
    yield "exp", lambda: wg.exp(x), 8 * elements, "GB/s"
    chain = wg.compile(lambda x, y: wg.tanh(x * y + x) * 0.5 + y)
    yield "compiled chain of five ops", lambda: chain(x, y), 12 * elements, "GB/s"
    yield "sum", lambda: x.sum(), 4 * elements, "GB/s"
    m = x.reshape(side, side)
    yield "sums of rows", lambda: m.sum(axis=1), 4 * elements, "GB/s"
    yield "softmax of rows", lambda: nn.softmax(m, axis=1), 8 * elements, "GB/s"
    yield "transposed copy", lambda: m.T.reshape(-1), 8 * elements, "GB/s"
    half = m.astype(wg.float16)
    yield "transposed copy of float16", lambda: half.T.reshape(-1), 4 * elements, "GB/s"
    for n in sizes(largest):
        a = m[:n, :n] * 1.0
        yield f"matmul {n}", lambda a=a: a @ a, 2 * n**3, "GFLOP/s"
    a, bias = m[:256, :256] * 1.0, m[0, :256] * 1.0
    layer = wg.compile(lambda x, w, b: nn.relu(x @ w + b))
    yield "matmul 256 with bias and relu", lambda: layer(a, a, bias), 2 * 256**3, "GFLOP/s"


def sizes(largest):
    """Sides of square products."""
    return [n for n in (64, 256, 512, 1024, 2048, 4096) if n <= largest]


VARIANTS = """
import sys
from gpu import sizes, timed
import wengert as wg
device = wg.device(sys.argv[1])
for n in sizes(int(sys.argv[2])):
    a = wg.random.uniform((n, n), device=device)
    print(n, timed(lambda: a @ a, device)[1])
"""


def variants(device, largest):
    """GFLOP/s of square products by variant and size, each variant in a process of its own."""
    for variant in ("blocks", "tiles"):
        env = os.environ | {"WENGERT_PRODUCTS": variant}
        command = [sys.executable, "-c", VARIANTS, str(device), str(largest)]
        done = subprocess.run(command, env=env, cwd=Path(__file__).parent, capture_output=True,
                              text=True, check=True)
        for line in done.stdout.splitlines():
            n, seconds = line.split()
            yield f"matmul {n} in {variant}", 2 * int(n) ** 3 / float(seconds)


def lenet_step(device):
    wg.random.seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(400, 84), nn.ReLU(), nn.Linear(84, 10)).to(device)
    optimizer = optim.Adam(model.parameters(), lr=1e-3)
    x = wg.random.normal((64, 1, 28, 28), device=device)
    y = wg.random.integers(0, 10, (64,), device=device)

    @wg.compile
    def step():
        optimizer.zero_grad()
        loss = nn.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()

    return step


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="gpu")
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    device = wg.device(options.device)
    info = wg.device_info(device)
    figures = {k: info[k] for k in ("name", "backend", "kind", "driver")}
    print(*figures.values(), sep=" · ")
    figures["machine"] = machine.described()
    given, done, spent = overhead(device)
    figures |= {"microseconds to give a small op": round(given * 1e6, 2),
                "microseconds until it is done": round(done * 1e6, 2)}
    if spent:
        figures["microseconds of the submitting thread"] = round(spent * 1e6, 2)
    figures |= transfers(device)
    # Arrays that no cache of the device holds.
    elements, largest = (1 << 22, 1024) if info["kind"] == "software" else (1 << 24, 4096)
    copy = copy_speed(info["name"], elements)
    if copy:
        figures["copy shader, GB/s"] = round(copy / 1e9, 2)
    for name, work, amount, unit in rows(device, elements, largest):
        first, median = timed(work, device)
        figures[f"{name}, {unit}"] = round(amount / median / 1e9, 2)
        figures[f"{name}, first run, ms"] = round(first * 1e3, 1)
    for name, speed in variants(options.device, largest):
        figures[f"{name}, GFLOP/s"] = round(speed / 1e9, 2)
    for where in (device, wg.device("cpu")):
        first, median = timed(lenet_step(where), where)
        figures[f"LeNet step of 64 images on {where}, ms"] = round(median * 1e3, 2)
        figures[f"LeNet step on {where}, first run, ms"] = round(first * 1e3, 1)
    for name, figure in figures.items():
        print(f"{name:48} {figure}")
    if options.save:
        name = re.sub(r"[^a-z0-9]+", "-", info["name"].lower()).strip("-")
        path = Path(__file__).parent / "results" / f"gpu-{name}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(figures, indent=2) + "\n")
        print(f"saved to {path}")


if __name__ == "__main__":
    main()
