"""Runs the cases in ours and in every installed peer, alternating, and writes a table.

    python benches/run.py [--only TEXT] [--rounds N] [--seconds S] [--threads N] [--peers a,b]
                          [--package DIR] [--against DIR]

`--package` names a folder that holds another build of the package `wengert`, `--against` a second
one, which is measured like a peer and called `before`.
"""

import argparse
import importlib.metadata
import importlib.util
import os
import platform
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

from cases import CASES, ENGINES

HERE = Path(__file__).parent
OUT = HERE.parent / "bench_output"
# A row is marked when other processes used more than this share of the machine before a round, or
# when the quarters of its rounds lie further apart than this factor.
BUSY, SPREAD = 0.1, 1.3
# What another build of ours is called in a table
BEFORE = "before"


class Worker:
    """A process that measures one engine on request."""

    def __init__(self, engine, threads, seconds, package=None):
        command = [sys.executable, str(HERE / "worker.py"), engine, str(threads), str(seconds)]
        paths = [package, os.environ.get("PYTHONPATH")]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))})
        if self.process.stdout.readline().strip() != "ready":
            raise RuntimeError(f"{engine} did not start")

    def measure(self, case):
        """Seconds, or None where the engine has nothing comparable."""
        self.process.stdin.write(case + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline().strip()
        return None if answer == "-" else float(answer)

    def close(self):
        self.process.stdin.close()
        self.process.wait(10)


def busy(seconds=0.1):
    """The share of the machine that others use while our workers wait; None where unknown."""
    stat = Path("/proc/stat")
    if not stat.exists():
        return None

    def ticks():
        fields = [int(n) for n in stat.read_text().splitlines()[0].split()[1:9]]
        return sum(fields), fields[3] + fields[4]

    total, idle = ticks()
    time.sleep(seconds)
    later, still_idle = ticks()
    return 1 - (still_idle - idle) / max(later - total, 1)


def unsteady(rounds, loads):
    """Whether a row's figures should not be relied on: others ran, or rounds disagree."""
    if any(load is not None and load > BUSY for load in loads):
        return True
    for engine in rounds[0]:
        times = sorted(r[engine] for r in rounds if r[engine])
        if times and times[-1 - len(times) // 4] > SPREAD * times[len(times) // 4]:
            return True
    return False


def installed(engine):
    return importlib.util.find_spec(engine) is not None


def pretty(seconds):
    if seconds is None:
        return ""
    unit, scale = next((u, s) for u, s in (("ns", 1e9), ("µs", 1e6), ("ms", 1e3), ("s", 1.0))
                       if seconds * s < 1000 or u == "s")
    return f"{seconds * scale:.3g} {unit}"


def table(engines, rows):
    """A Markdown table: our time, then each peer's with its ratio to ours."""
    peers = [e for e in engines if e != "wengert"]
    head = ["case", "wengert", *(f"{p} (ratio)" for p in peers)]
    lines = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1)]
    for case, medians, mark in rows:
        ours = medians["wengert"]
        cells = [case + mark, pretty(ours)]
        for peer in peers:
            theirs = medians.get(peer)
            ratio = f" ({theirs / ours:.2f})" if theirs and ours else ""
            cells.append(pretty(theirs) + ratio)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def import_row(engines, rounds):
    """How long `import` takes in a fresh process, NumPy's own import included where it happens."""
    medians = {}
    for engine in engines:
        module = "mlx.core" if engine == "mlx" else engine
        clock = "time.perf_counter()"
        code = f"import time; start = {clock}; import {module}; print({clock} - start)"
        command = [sys.executable, "-c", code]
        times = [float(subprocess.check_output(command)) for _ in range(rounds)]
        medians[engine] = statistics.median(times)
    return "import", medians, ""


def processor():
    info = Path("/proc/cpuinfo")
    names = re.findall(r"model name\s*: (.*)", info.read_text()) if info.exists() else []
    return names[0] if names else platform.processor() or platform.machine()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.3, help="for each engine and round")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--peers", help="comma-separated; by default all that are installed")
    parser.add_argument("--package", help="the folder of the build to measure")
    parser.add_argument("--against", help="the folder of a build to measure beside it")
    args = parser.parse_args()
    wanted = ENGINES if args.peers is None else args.peers.split(",")
    engines = ["wengert", *(e for e in wanted if e != "wengert" and installed(e))]
    workers = {e: Worker(e, args.threads, args.seconds, args.package) for e in engines}
    if args.against:
        workers[BEFORE] = Worker("wengert", args.threads, args.seconds, args.against)
    versions = ", ".join(f"{e} {importlib.metadata.version(e)}" for e in engines)
    engines = list(workers)
    rows = []
    try:
        for case in (c for c in CASES if args.only in c):
            rounds, loads = [], []
            for _ in range(args.rounds):
                loads.append(busy())
                rounds.append({e: w.measure(case) for e, w in workers.items()})
            medians = {e: statistics.median(r[e] for r in rounds) if rounds[0][e] else None
                       for e in engines}
            mark = " (unsteady)" if unsteady(rounds, loads) else ""
            rows.append((case, medians, mark))
            shown = [f"{e} {pretty(t)}" for e, t in medians.items() if t]
            print(case + mark, *shown, sep=" · ", flush=True)
    finally:
        for worker in workers.values():
            worker.close()
    if not args.only:
        rows.append(import_row([e for e in engines if e != BEFORE], args.rounds))
    text = f"{processor()}, {args.threads} threads, Python {platform.python_version()}; "
    text += f"{versions}. Medians of {args.rounds} alternating rounds; "
    text += "ratio: the peer's time over ours.\n"
    if marked := sum(bool(mark) for *_, mark in rows):
        text += f"{marked} of {len(rows)} rows are unsteady: something else ran. Measure again.\n"
    text += f"\n{table(engines, rows)}\n"
    OUT.mkdir(exist_ok=True)
    (OUT / "table.md").write_text(text)
    print("\n" + text)


if __name__ == "__main__":
    main()
