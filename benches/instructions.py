"""Instructions per call, counted by callgrind: what a call costs, whatever else the machine does.

    python benches/instructions.py [--only TEXT] [--package DIR] [--against DIR]

Each case runs in two processes that make different counts of calls. The difference of their totals,
divided by the difference of the counts, is what one call costs without start-up. `--package` names
a folder that holds another build of the package `wengert`; with `--against` the cases run in both
builds and the ratio is printed. Needs valgrind, whose processor has no AVX-512. One thread.
"""

import argparse
import itertools
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path


def _eager(wg):
    a, b, m = wg.ones(16), wg.ones(16), wg.ones((64, 64))
    p = wg.ones(16, requires_grad=True)
    return {
        "a + b": lambda: a + b,
        "a.exp()": lambda: a.exp(),
        "m[3:5]": lambda: m[3:5],
        "m.reshape(32, 128)": lambda: m.reshape(32, 128),
        "m.sum(axis=1)": lambda: m.sum(axis=1),
        "p * 2.0, recorded": lambda: p * 2.0,
    }


def _backward(wg):
    from wengert import nn

    x = wg.ones(1, requires_grad=True)
    rows, labels = wg.ones((8, 16), requires_grad=True), wg.zeros(8, dtype=wg.int64)
    norm = nn.LayerNorm(16)
    wide, key = nn.LayerNorm(256), wg.random.key(0)
    table = wg.tensor(wg.random.normal((64, 256), key=key), requires_grad=True)
    images = wg.tensor(wg.random.normal((8, 6, 24, 24), key=key), requires_grad=True)

    def scalar():
        y = x
        for _ in range(20):
            y = y * 0.999
        y.backward()

    return {
        "20 scalar nodes, forward + backward": scalar,
        "layer_norm, forward + backward": lambda: norm(rows).sum().backward(),
        "layer_norm of 64 × 256, forward + backward": lambda: wide(table).sum().backward(),
        "max_pool2d, forward + backward": lambda: nn.max_pool2d(images, 2).sum().backward(),
        "cross_entropy, forward + backward": lambda: nn.cross_entropy(rows, labels).backward(),
    }


def _compiled(wg):
    from wengert import nn, optim

    small = wg.compile(lambda x: x * 2.0 + 1.0)
    x = wg.ones(16)
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
    opt = optim.Adam(model.parameters())
    labels = {n: wg.zeros(n, dtype=wg.int64) for n in range(2, 80)}
    rows = {n: wg.ones((n, 16)) for n in labels}

    @wg.compile
    def step(x, y):
        opt.zero_grad()
        loss = nn.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        return loss

    def traced():
        def chain(x):
            for _ in range(50):
                x = (x * 1.5).exp()
            return x

        wg.compile(chain)(x)

    sizes = itertools.count(3)

    def resized():
        n = next(sizes)
        step(rows[n], labels[n])

    return {
        "x * 2 + 1, compiled": lambda: small(x),
        "MLP training step, compiled": lambda: step(rows[8], labels[8]),
        "first call of 100 ops": traced,
        "MLP training step, a new size": resized,
    }


def _rows(wg):
    """The rows of group A of the table, eager and compiled; each is prepared when it is called."""
    from case import all_cases
    from engines import OURS, engine

    def later(name, case):
        made = []

        def call():
            if not made:
                made.append(engine(name, 1).prepare(case, case.at()))
            made[0]()
        return call

    return {f"{case.id} {case.title}, {name}": later(name, case)
            for case in all_cases().values() if case.group == "A" for name in OURS}


GROUPS = (_rows, _eager, _backward, _compiled)
# Calls in the shorter and in the longer process. The first calls of a case trace and plan.
COUNTS = {"first call of 100 ops": (3, 8), "MLP training step, a new size": (5, 45)}
COUNT = (50, 1050)


def _cases(wg):
    return {name: call for group in GROUPS for name, call in group(wg).items()}


def _run(name, count):
    """In the child: makes one case's calls."""
    import wengert as wg

    wg.set_num_threads(1)
    wg.random.seed(0)
    call = _cases(wg)[name]
    for _ in range(count):
        call()


def _total(package, name, count):
    """Instructions of a process that makes `count` calls."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "callgrind.out"
        command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}",
                   sys.executable, __file__, "--run", name, str(count)]
        path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
        # Threads of others wait in loops, whose rounds are instructions too.
        alone = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        env = {**os.environ, "PYTHONHASHSEED": "0", **alone}
        if path:
            env["PYTHONPATH"] = path
        done = subprocess.run(command, env=env, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{name}: {done.stderr[-2000:]}")
        return int(re.search(r"^(?:summary|totals): (\d+)", out.read_text(), re.MULTILINE)[1])


def cost(package, name):
    """Instructions of one call."""
    few, many = COUNTS.get(name, COUNT)
    return (_total(package, name, many) - _total(package, name, few)) / (many - few)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--package", help="a folder with a build of the package")
    parser.add_argument("--against", help="a folder with another build, for a ratio")
    parser.add_argument("--run", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        return _run(options.run[0], int(options.run[1]))
    import wengert as wg

    print(f"{'case':40} {'instructions':>14}" + (f" {'against':>14} {'ratio':>7}"
                                                 if options.against else ""))
    for name in _cases(wg):
        if options.only not in name:
            continue
        ours = cost(options.package, name)
        row = f"{name:40} {ours:14,.0f}"
        if options.against:
            theirs = cost(options.against, name)
            row += f" {theirs:14,.0f} {ours / theirs:7.3f}"
        print(row, flush=True)


if __name__ == "__main__":
    main()
