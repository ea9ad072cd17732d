"""One engine in a process of its own: prepares rows and measures them on request.

    python worker.py ENGINE THREADS

A request is a line of JSON, and so is its answer: `{"prepare": ROW, "small": false, "to": FILE}`
gives `{"first": SECONDS}` and leaves the results in a file of NumPy's, or `{"missing": REASON}`, or
`{"failed": REASON}`; `{"measure": SECONDS}` gives `{"seconds": MEDIAN}` of the row prepared last.
"""

import gc
import json
import os
import statistics
import sys
import time

import numpy as np

#: Calls whose time is read together last at least this long.
READ = 2e-4


def measured(call, seconds):
    """The median time of a call over about `seconds`, batched so that the clock does not count."""
    start = time.perf_counter()
    call()
    once = max(time.perf_counter() - start, 1e-8)
    batch = max(1, min(10_000, int(READ / once)))
    times, end = [], time.perf_counter() + seconds
    while not times or time.perf_counter() < end:
        start = time.perf_counter()
        for _ in range(batch):
            call()
        times.append((time.perf_counter() - start) / batch)
    return statistics.median(times)


class Served:
    """The row that is prepared."""

    def __init__(self, engine, cases):
        self.engine, self.cases, self.call, self.per = engine, cases, None, 1

    def prepare(self, id, small, to):
        from case import Missing

        self.call = None
        gc.collect()
        case = self.cases[id]
        s = case.at(small)
        try:
            call = self.engine.prepare(case, s)
            start = time.perf_counter()
            y = call()
            first = time.perf_counter() - start
        except Missing as reason:
            return {"missing": str(reason)}
        except Exception as error:
            return {"failed": f"{type(error).__name__}: {error}"[:300]}
        # A training row gives the losses of some steps.
        y = [y, call(), call()] if case.kind == "training" else y
        if to:
            np.savez(to, *self.engine.results(y))
        self.call, self.per = call, case.per(s)
        return {"first": first}

    def measure(self, seconds):
        return {"seconds": measured(self.call, seconds) / self.per}


def main():
    name, threads = sys.argv[1], int(sys.argv[2])
    # What an engine prints is not an answer.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(value):
        print(json.dumps(value), file=answers, flush=True)

    from case import all_cases
    from engines import engine

    try:
        served = Served(engine(name, threads), all_cases())
    except Exception as error:
        return answer({"failed": f"{type(error).__name__}: {error}"[:300]})
    answer({"ready": name})
    for line in sys.stdin:
        request = json.loads(line)
        if "prepare" in request:
            answer(served.prepare(request["prepare"], request["small"], request["to"]))
        else:
            answer(served.measure(request["measure"]))
    return None


if __name__ == "__main__":
    main()
