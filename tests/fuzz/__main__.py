"""`make fuzz`: random calls and programs, each in a process of its own; see `cases` and `outcome`.

    python tests/fuzz [--seed N] [--minutes M | --cases N] [--jobs N] [--replay FILE]

Findings are made smaller and written to `fuzz_output/`, a Python program each. The status is 1 if
there are any.
"""

import argparse
import os
import random
import re
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent)]

import cases
import child
import shrink

OUTPUT = Path("fuzz_output")


def sources(seed, until, count):
    """Cases: which ones depends on the seed alone."""
    n = 0
    while time.monotonic() < until and (count is None or n < count):
        yield cases.case(random.Random(f"{seed} {n}"))
        n += 1


def hunt(options):
    until = time.monotonic() + 60 * options.minutes
    found, run = {}, 0
    for finding in child.outcomes(sources(options.seed, until, options.cases), options.jobs):
        run += 1
        if finding and finding.kind not in found:
            print(f"finding: {finding.kind}", flush=True)
            found[finding.kind] = finding
    print(f"seed {options.seed}: {run} cases, {len(found)} kinds of findings")
    for finding in found.values():
        report(shrink.shrunk(finding, options.jobs))
    return bool(found)


def report(finding):
    """Writes a finding as a program that replays it."""
    OUTPUT.mkdir(exist_ok=True)
    name = re.sub(r"\W+", "-", finding.kind)[:100].strip("-")
    path = OUTPUT / f"{name}.py"
    told = "".join(f"# {line}\n" for line in [finding.kind, *finding.detail.splitlines()])
    path.write_text(f"{finding.source}\n{told}")
    print(f"\n{path}\n{finding.source}")


def replay(path):
    finding = child.outcome_of(Path(path).read_text())
    print(f"{finding.kind}\n{finding.detail}" if finding else "nothing is wrong with it")
    return finding is not None


def main():
    parser = argparse.ArgumentParser(prog="fuzz")
    parser.add_argument("--seed", default=str(random.randrange(1 << 30)))
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--cases", type=int, help="as many cases, in place of the time")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--replay", help="a file of an earlier finding")
    parser.add_argument("--grace", type=float, default=child.GRACE, help="seconds to obey in")
    options = parser.parse_args()
    child.GRACE = options.grace
    if options.cases is not None:
        options.minutes = float("inf")
    sys.exit(replay(options.replay) if options.replay else hunt(options))


if __name__ == "__main__":
    main()
