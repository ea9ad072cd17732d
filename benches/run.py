"""Measures every row in ours and in every installed peer, alternating, and writes tables.

    python benches/run.py [--only A8,C1_] [--groups A,B] [--quick] [--rounds N] [--seconds S]
                          [--threads N] [--engines a,b] [--package DIR] [--against FILE]
                          [--instructions] [--out DIR]

`--only` names rows by the beginning of their id. `--quick` takes one short round of each row.
`--package` names a folder that holds another build of the package `wengert`. `--against` names the
`figures.json` of an earlier run: what changed by more than noise is shown. `--instructions` counts
instructions of the rows of group A besides (valgrind). Peers are those that the Python which runs
this can import. The exit status is 1 where results differ.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import machine
import numpy as np
import report
from case import all_cases
from engines import BESIDES, ENGINES, OURS, installed

HERE = Path(__file__).parent
OUT = HERE.parent / "bench_output"
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_MAX_THREADS",
           "NUMEXPR_NUM_THREADS")


class Gone(Exception):
    """A process ended or gave no answer."""


class Worker:
    """A process that measures one engine on request."""

    def __init__(self, engine, threads, package=None):
        self.engine, self.threads, self.package = engine, threads, package
        self.start()

    def start(self):
        command = [sys.executable, str(HERE / "worker.py"), self.engine, str(self.threads)]
        paths = [self.package, os.environ.get("PYTHONPATH")]
        env = {**os.environ, **dict.fromkeys(THREADS, str(self.threads)),
               "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.DEVNULL, text=True, env=env)
        if reason := self.answer().get("failed"):
            raise Gone(reason)

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            raise Gone(f"the process ended ({self.process.wait()})")
        return json.loads(line)

    def ask(self, **request):
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError as error:
            raise Gone("the process ended") from error
        return self.answer()

    def close(self):
        self.process.kill()
        with self.process:
            pass


def agree(found, wanted, tolerance):
    """Whether results are near: differences as a share of the largest element."""
    if len(found) != len(wanted):
        return False
    for a, b in zip(found, wanted, strict=True):
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        if a.size != b.size or np.isfinite(a).all() != np.isfinite(b).all():
            return False
        bound = tolerance * max(1.0, np.abs(b[np.isfinite(b)]).max(initial=0.0))
        with np.errstate(invalid="ignore"):
            if not np.allclose(a.ravel(), b.ravel(), rtol=0, atol=bound, equal_nan=True):
                return False
    return True


def prepared(case, workers, small, row):
    """The engines that take part in a row; those whose results differ from most are noted."""
    taking, results = [], {}
    with tempfile.TemporaryDirectory() as folder:
        for name, worker in workers.items():
            to = str(Path(folder) / f"{len(results)}-{name.replace(' ', '-')}.npz")
            try:
                found = worker.ask(prepare=case.id, small=small, to=to)
            except Gone as error:
                found = {"failed": str(error)}
                worker.close()
                worker.start()
            if "first" not in found:
                row["missing"][name] = found.get("missing") or found["failed"]
                if "failed" in found and name in OURS:
                    row["differ"].append(name)
                continue
            row["first"][name] = found["first"]
            taking.append(name)
            with np.load(to) as arrays:
                results[name] = [arrays[key] for key in arrays.files]
    # A row of one recorded chain has nothing to compare but its end.
    likes = {a: sum(agree(results[a], results[b], case.tolerance) for b in taking) for a in taking}
    norm = max(taking, key=lambda name: likes[name], default=None)
    row["differ"] += [name for name in taking
                      if not agree(results[name], results[norm], case.tolerance)]
    return taking


def measured(case, workers, options):
    """A row of the run."""
    s = case.at(options.small)
    row = {"id": case.id, "title": case.title, "bytes": case.bytes(s), "flops": case.flops(s),
           "per": case.per(s), "times": {}, "first": {}, "missing": {}, "differ": [], "loads": []}
    # Bytes and operations are those of the whole row, times those of one of its parts.
    row["bytes"], row["flops"] = row["bytes"] / row["per"], row["flops"] / row["per"]
    taking = prepared(case, workers, options.small, row)
    for _ in range(options.rounds):
        row["loads"].append(machine.load())
        for name in list(taking):
            try:
                seconds = workers[name].ask(measure=options.seconds)["seconds"]
            except Gone as error:
                row["missing"][name] = str(error)
                row["times"].pop(name, None)
                taking.remove(name)
                workers[name].close()
                workers[name].start()
                continue
            row["times"].setdefault(name, []).append(seconds)
    return row


def line(row):
    """What is said when a row is done."""
    times = (f"{e} {report.pretty(report.median(row, e))}" for e in row["times"])
    marks = [" (unsteady)"] if report.unsteady(row) else []
    marks += [f" (differs: {', '.join(row['differ'])})"] if row["differ"] else []
    return " · ".join([row["id"] + "".join(marks), *times])


def chosen(cases, options):
    """The rows that were asked for, and those that show what the machine can do."""
    starts = tuple(options.only.split(",")) if options.only else ("",)
    groups = options.groups.split(",") if options.groups else None
    wanted = [id for id in cases if id.startswith(starts) and (not groups or id[0] in groups)]
    return wanted + [id for id in report.PROBES if id not in wanted and not options.small]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="beginnings of the ids of rows, with commas")
    parser.add_argument("--groups", default="", help="letters of groups, with commas")
    parser.add_argument("--quick", action="store_true", help="one short round of each row")
    parser.add_argument("--small", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.3, help="for each engine and round")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--engines", default="", help="with commas; all that are installed")
    parser.add_argument("--package", help="the folder of the build to measure")
    parser.add_argument("--against", type=Path, help="the figures of an earlier run")
    parser.add_argument("--instructions", action="store_true", help="count those of group A")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.seconds = 1, 0.05
    return options


def main():
    options = arguments()
    before = json.loads(options.against.read_text()) if options.against else None
    cases = all_cases()
    wanted = options.engines.split(",") if options.engines else list(ENGINES)
    if unknown := set(wanted) - set(ENGINES):
        sys.exit(f"unknown engines: {', '.join(sorted(unknown))}; there are {', '.join(ENGINES)}")
    workers = {}
    for name in (e for e in wanted if (e in OURS and options.package) or installed(e)):
        try:
            workers[name] = Worker(name, options.threads, options.package)
        except Gone as error:
            print(f"{name} does not start: {error}", flush=True)
    packages = {ENGINES[e][2] for e in workers} | {p for e in workers for p in BESIDES.get(e, ())}
    run = {"machine": machine.described(), "versions": machine.versions(sorted(packages)),
           "settings": {"threads": options.threads, "rounds": options.rounds,
                        "seconds": options.seconds}, "rows": []}
    ids = chosen(cases, options)
    try:
        for i, id in enumerate(ids, 1):
            run["rows"].append(measured(cases[id], workers, options))
            print(f"[{i}/{len(ids)}] {line(run['rows'][-1])}", flush=True)
    finally:
        for worker in workers.values():
            worker.close()
    text = written(run, before)
    options.out.mkdir(exist_ok=True, parents=True)
    (options.out / "figures.json").write_text(json.dumps(run, indent=1))
    (options.out / "table.md").write_text(text)
    print("\n" + text)
    if options.instructions:
        subprocess.run([sys.executable, str(HERE / "instructions.py"), "--only", "A",
                        *(["--package", options.package] if options.package else [])], check=True)
    sys.exit(any(row["differ"] for row in run["rows"]))


def written(run, before):
    """The tables of a run."""
    facts, limit = run["machine"], report.limits(run)
    rates = [f"{limit['flops'] / 1e9:.0f} GFLOP/s" if limit["flops"] else "",
             f"{limit['memory'] / 1e9:.1f} GB/s in memory" if limit["memory"] else "",
             f"{limit['cache'] / 1e9:.1f} GB/s in cache" if limit["cache"] else ""]
    lines = [
        f"{facts['processor']}, {facts['cores']} cores, {', '.join(facts['instruction sets'])}; "
        + ", ".join(f"{name} {version}" for name, version in run["versions"].items()) + ".",
        f"{run['settings']['threads']} threads, medians of {run['settings']['rounds']} alternating "
        "rounds. Ratio: the time of the best peer over ours, eager or compiled. The limit is what "
        f"the fastest engine reached in this run: {', '.join(filter(None, rates))}.",
    ]
    if marked := sum(report.unsteady(row) for row in run["rows"]):
        lines.append(f"{marked} of {len(run['rows'])} rows are unsteady: something else ran. "
                     "Measure again.")
    parts = ["\n".join(lines), report.summary(run), report.table(run)]
    if before:
        parts.append("Since the earlier run:\n\n" + report.changed(before, run))
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    main()
