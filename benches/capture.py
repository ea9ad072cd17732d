"""Measures capture: first calls, new sizes, steady calls and fused groups, beside peers' compilers.

    python benches/capture.py [--only TEXT] [--rounds N] [--threads N] [--peers jax,torch]

Every round is a process of its own, since a first call is only once the first; a figure is the
median of its rounds. Peers measure what they have in common with us, where they are installed.
"""

import argparse
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

from capture_models import ADAPTERS, Missing
from engines import installed
from machine import described, load
from report import BUSY, pretty
from run import OUT

CLOCK = time.perf_counter


def once(call):
    """Seconds of one call."""
    start = CLOCK()
    call()
    return CLOCK() - start


def steady(call, seconds=0.3):
    """Seconds of a call that has run before: the median of batches that take `seconds` together."""
    count = max(1, int(seconds / 20 / max(once(call), 1e-7)))
    batches = []
    for _ in range(20):
        batches.append(once(lambda: [call() for _ in range(count)]) / count)
    return statistics.median(batches)


def first(call):
    """What a first call costs more than the later ones."""
    before = once(call)
    return max(before - min(once(call) for _ in range(5)), 0.0)


def chain(engine, count):
    """`count` elementwise ops, one after the other."""
    sin, tanh = engine.op("sin"), engine.op("tanh")

    def f(x):
        for _ in range(count // 4):
            x = tanh(sin(x * 1.01 + 0.5))
        return x

    return f


def chain_first(engine):
    f, x = engine.compile(chain(engine, 5000)), engine.ones(100)
    return first(lambda: engine.done(f(x)))


def gradient_first(engine):
    f = chain(engine, 1000)
    g, x = engine.compile(engine.gradient(lambda x: f(x).sum())), engine.ones(100)
    return first(lambda: engine.done(g(x)))


def gpt_first(engine):
    step, batch = engine.gpt()
    return first(lambda: step(*batch(8)))


def gpt_steady(engine):
    step, batch = engine.gpt()
    data = batch(8)
    step(*data)
    return steady(lambda: step(*data), 4)


def gpt_eager(engine):
    step, batch = engine.gpt(compiled=False)
    data = batch(8)
    step(*data)
    return steady(lambda: step(*data), 4)


def gpt_size(engine):
    return engine.new_size()


def small_steady(engine):
    f, x = engine.compile(lambda x: x * 2 + 1), engine.ones(8)
    f(x)
    return steady(lambda: engine.done(f(x)))


def small_eager(engine):
    x = engine.ones(8)
    return steady(lambda: engine.done(x * 2 + 1))


def dozen(engine):
    """Twelve elementwise ops, of which each alone waits for memory."""
    sqrt = engine.op("sqrt")

    def f(x):
        for _ in range(3):
            x = sqrt(abs(x * 1.01 + 0.5))
        return x

    return f


def dozen_steady(engine):
    f, x = engine.compile(dozen(engine)), engine.ones(64)
    f(x)
    return steady(lambda: engine.done(f(x)))


def dozen_eager(engine):
    f, x = dozen(engine), engine.ones(64)
    return steady(lambda: engine.done(f(x)))


def wide_steady(engine):
    f, x = engine.compile(dozen(engine)), engine.ones(10_000_000)
    engine.done(f(x))
    return steady(lambda: engine.done(f(x)), 2)


def wide_eager(engine):
    f, x = dozen(engine), engine.ones(10_000_000)
    return steady(lambda: engine.done(f(x)), 2)


def eight_bits(rows, compiled=True):
    """A layer whose weights are made while they are packed; eager code makes them as arrays."""
    return lambda engine: steady(engine.eight_bits(rows, compiled), 1)


def node_python(engine):
    """Seconds a node while Python runs the function."""
    return engine.per_node(chain(engine, 5000))[0]


def node_rust(engine):
    """Seconds a node from the end of Python's part until the plan is there."""
    return engine.per_node(chain(engine, 5000))[1]


FIGURES = {
    "trace a node in Python (≤ 3 µs)": node_python,
    "passes and plan a node in Rust (≤ 5 µs)": node_rust,
    "first call, 5000 elementwise ops (≤ 100 ms)": chain_first,
    "first call, gradient of 1000 ops (≤ 50 ms)": gradient_first,
    "first call, GPT step (≤ 300 ms)": gpt_first,
    "new size, GPT step (≤ 1 ms)": gpt_size,
    "GPT step, compiled": gpt_steady,
    "GPT step, eager": gpt_eager,
    "x * 2 + 1 of 8 elements, compiled": small_steady,
    "x * 2 + 1 of 8 elements, eager": small_eager,
    "12 ops on 64 elements, compiled": dozen_steady,
    "12 ops on 64 elements, eager": dozen_eager,
    "12 ops on 10 million elements, compiled": wide_steady,
    "12 ops on 10 million elements, eager": wide_eager,
    "int8 weights of 4 million, 64 rows, compiled": eight_bits(64),
    "int8 weights of 4 million, 64 rows, eager": eight_bits(64, compiled=False),
}


def measure(engine, figure, threads):
    """Seconds in a fresh process, or None where the engine has nothing comparable."""
    command = [sys.executable, __file__, "--engine", engine, "--only", figure]
    command += ["--threads", str(threads)]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=900)
    if answer.returncode:
        print(f"{engine}, {figure}: {answer.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
        return None
    return json.loads(answer.stdout.strip().splitlines()[-1])


def answer(engine, figure, threads):
    """Measures one figure here and prints it."""
    try:
        print(json.dumps(FIGURES[figure](ADAPTERS[engine](threads))))
    except Missing:
        print("null")


def row(figure, engines, rounds, threads):
    """A line of the table: a median for each engine."""
    loads, cells = [], []
    for engine in engines:
        loads.append(load())
        times = [measure(engine, figure, threads) for _ in range(rounds)]
        known = [t for t in times if t is not None]
        cells.append(pretty(statistics.median(known)) if known else "")
    mark = " (unsteady)" if any(load is not None and load > BUSY for load in loads) else ""
    line = "| " + " | ".join([figure + mark, *cells]) + " |"
    print(line, flush=True)
    return line


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="figures whose name contains this")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--peers", help="comma-separated; by default all that are installed")
    parser.add_argument("--engine", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.engine:
        answer(args.engine, args.only, args.threads)
        return
    wanted = ADAPTERS if args.peers is None else args.peers.split(",")
    engines = ["wengert", *(e for e in wanted if e != "wengert" and installed(e))]
    versions = ", ".join(f"{e} {importlib.metadata.version(e)}" for e in engines)
    processor = described()["processor"]
    head = f"{processor}, {args.threads} threads, Python {platform.python_version()}; {versions}."
    lines = ["| figure | " + " | ".join(engines) + " |", "|---|" + "---:|" * len(engines)]
    print(head, *lines, sep="\n", flush=True)
    lines += [row(f, engines, args.rounds, args.threads) for f in FIGURES if args.only in f]
    OUT.mkdir(exist_ok=True)
    Path(OUT / "capture.md").write_text("\n".join([head, "", *lines, ""]))


if __name__ == "__main__":
    main()
