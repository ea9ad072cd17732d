"""One engine in a process of its own: reads a case's name per line, answers with its median time.

    python worker.py ENGINE THREADS SECONDS

The first request for a case prepares it and warms it up. An answer is a number of seconds, or `-`
where the engine has nothing comparable.
"""

import gc
import os
import statistics
import sys
import time


def timed(call, seconds):
    """The median time of a call over about `seconds`, batched so that the clock does not count."""
    start = time.perf_counter()
    call()
    once = max(time.perf_counter() - start, 1e-8)
    batch = max(1, min(10_000, int(2e-4 / once)))
    times = []
    end = time.perf_counter() + seconds
    while not times or time.perf_counter() < end:
        start = time.perf_counter()
        for _ in range(batch):
            call()
        times.append((time.perf_counter() - start) / batch)
    return statistics.median(times)


def main():
    engine, threads, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(threads)
    from cases import CASES, ENGINES, Missing

    adapter = ENGINES[engine](threads)
    print("ready", flush=True)
    name, call = None, None
    for line in sys.stdin:
        wanted = line.rstrip("\n")
        if wanted != name:
            name, call = wanted, None
            gc.collect()
            try:
                call = CASES[name](adapter)
                timed(call, seconds / 2)
            except Missing:
                call = None
            except Exception as error:
                print(f"{engine}, {name}: {error}", file=sys.stderr)
                call = None
        print(timed(call, seconds) if call else "-", flush=True)


if __name__ == "__main__":
    main()
