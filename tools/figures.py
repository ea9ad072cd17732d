"""Prints how large the library is: kernel instantiations, ops by kind, bytes, import time.

CI prints these so that growth is seen. The exit status is 1 where the package is larger than users
are promised (README.md).
"""

import statistics
import subprocess
import sys
from collections import Counter
from pathlib import Path

import wengert
from wengert import _core

LARGEST = 25e6  # bytes of the installed package, with the GPU part
IMPORT = "import time; t = time.perf_counter(); import wengert; print(time.perf_counter() - t)"


def import_seconds(runs=7):
    command = [sys.executable, "-c", IMPORT]
    times = [float(subprocess.check_output(command, text=True)) for _ in range(runs)]
    return statistics.median(times)


def main():
    package = Path(wengert.__file__).parent
    files = [p for p in package.rglob("*") if p.is_file() and "__pycache__" not in p.parts]
    table = _core._op_table()
    counts = sorted(Counter(op["kind"] for op in table).items())
    kinds = ", ".join(f"{count} {kind}" for kind, count in counts)
    print(f"kernel instantiations: {_core._kernel_count()}")
    print(f"ops: {len(table)} ({kinds})")
    size = sum(p.stat().st_size for p in files)
    print(f"package: {size / 1e6:.1f} MB, {LARGEST / 1e6:.0f} MB at most")
    print(f"import: {import_seconds() * 1e3:.0f} ms")
    sys.exit(size > LARGEST)


if __name__ == "__main__":
    main()
