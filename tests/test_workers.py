"""Batches that worker processes make: their order, content, seeds, errors and ends."""

import gc
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import wengert as wg
from wengert.data import DataLoader, Subset, TensorDataset, get_worker_info

from samples import (
    Draws,
    Failing,
    Many,
    Squares,
    Stream,
    as_arrays,
    as_list,
    start,
)

TENSORS = TensorDataset(np.arange(10), np.arange(20.0).reshape(10, 2))


def runs(pid):
    """Whether a process is there and has not ended."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def gone(pids, seconds=5.0):
    """Whether these processes end."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if not any(map(runs, pids)):
            return True
        time.sleep(0.01)
    return False


def processes(pool):
    return [w.process.pid for w in pool._workers]


@pytest.mark.parametrize(
    ("dataset", "options"),
    [
        (TENSORS, {"shuffle": True, "seed": 3, "persistent_workers": True}),
        (Subset(TENSORS, range(7)), {"drop_last": True}),
        (Squares(11), {"sampler": [5, 1, 1, 9]}),
    ],
)
def test_the_same_batches_as_without_workers(dataset, options):
    two = DataLoader(dataset, 2, num_workers=2, **options)
    options.pop("persistent_workers", None)
    one = DataLoader(dataset, 2, **options)
    assert plain(one) == plain(two) and len(one) == len(two)
    if "shuffle" in options:  # a second pass has another order
        assert plain(one) == plain(two)


def plain(batches):
    return wg.pytree.map(
        lambda x: (str(x.dtype), x.tolist()) if isinstance(x, wg.Tensor) else x, list(batches)
    )


def test_every_form_of_sample_arrives_as_it_is():
    one = list(DataLoader(Many(), 4))
    two = list(DataLoader(Many(), 4, num_workers=1))
    assert plain(one) == plain(two) and one[0]["empty"].shape == two[0]["empty"].shape
    assert two[0]["bfloat16"].dtype == wg.bfloat16
    loader = DataLoader(Squares(7), 3, num_workers=2, collate_fn=as_arrays, prefetch_factor=1)
    batches = list(loader)  # none is overwritten when its slot is used again
    assert [x[:, 0].tolist() for x, _, _ in batches] == [[0, 1, 4], [9, 16, 25], [36]]
    assert batches[1][1] == {3: "3", 4: "4", 5: "5"} and batches[0][2] == b"raw"
    batches[0][0][:] = 0  # it may be written to
    single = DataLoader(Squares(3), None, num_workers=1)
    assert [i for _, _, i in single] == [0, 1, 2]


def test_streams_are_shared_out():
    assert [b.tolist() for b in DataLoader(Stream(7), 3)] == [[0, 1, 2], [3, 4, 5], [6]]
    two = DataLoader(Stream(9), 2, num_workers=2)
    assert [b.tolist() for b in two] == [[0, 2], [1, 3], [4, 6], [5, 7], [8]]
    assert [b.tolist() for b in DataLoader(Stream(9), 2, num_workers=2, drop_last=True)] == [
        [0, 2], [1, 3], [4, 6], [5, 7]]  # fmt: skip
    with pytest.raises(TypeError):
        len(two)
    assert list(DataLoader(Stream(3), None)) == [0, 1, 2]


def test_seeds_and_persistent_workers():
    def passes(seed, context="forkserver", persistent=True):
        loader = DataLoader(
            Draws(), 2, num_workers=2, seed=seed, collate_fn=as_list, worker_init_fn=start,
            persistent_workers=persistent, multiprocessing_context=context,
        )  # fmt: skip
        return [[sample for batch in loader for sample in batch] for _ in range(2)]

    wg.random.seed(1)
    before = wg.random.get_state()
    first, second = passes(3)
    assert wg.random.get_state() == before and get_worker_info() is None
    assert [s["id"] for s in first] == [0, 0, 1, 1, 0, 0, 1, 1]
    assert all(s["started"] == [s["id"]] and s["threads"] == 1 for s in first + second)
    assert {s["pid"] for s in first} == {s["pid"] for s in second}  # kept
    drawn = [s["drawn"] for s in first + second]
    assert len({x for triple in drawn for x in triple}) == 3 * 16  # no number comes twice
    again = passes(3, "spawn", persistent=False)
    assert [s["drawn"] for s in again[0] + again[1]] == drawn
    assert {s["pid"] for s in again[0]}.isdisjoint(s["pid"] for s in again[1])
    assert gone({s["pid"] for s in first} | {s["pid"] for s in again[1]})


def test_a_pass_that_is_left_early_and_one_inside_another():
    loader = DataLoader(Squares(40), 2, num_workers=2, persistent_workers=True)
    for _, _, i in loader:
        assert i.tolist() == [0, 1]
        break
    outer = iter(loader)
    assert next(outer)[2].tolist() == [0, 1]
    assert [i.tolist() for _, _, i in loader] == [[k, k + 1] for k in range(0, 40, 2)]
    assert next(outer)[2].tolist() == [2, 3]
    pids = processes(loader._pool)
    del outer, loader
    gc.collect()
    assert gone(pids)
    loader = DataLoader(Squares(40), 2, num_workers=1)
    pids = []
    for _ in loader:
        pids = [int(p) for p in children()]
        break
    iter(loader)  # never asked for anything
    gc.collect()
    assert pids and not children()


def children():
    """The processes that the pools of this process still have."""
    import multiprocessing

    return [p.pid for p in multiprocessing.active_children() if p.name.startswith("wengert-data")]


def test_systems_without_nameless_memory(monkeypatch):
    monkeypatch.delattr(os, "memfd_create", raising=False)
    one, two = (DataLoader(Squares(7), 3, num_workers=n) for n in (0, 1))
    assert plain(one) == plain(two)


def test_an_error_of_a_sampler_ends_the_workers():
    def places():
        yield from range(6)
        raise OSError("no more places")

    seen = []
    with pytest.raises(OSError, match="no more places"):
        for _, _, i in DataLoader(Squares(), sampler=places(), num_workers=1, prefetch_factor=1):
            seen += i.tolist()
    assert seen == [0, 1, 2, 3, 4] and not children()


def test_errors_carry_the_workers_traceback():
    seen = []
    with pytest.raises(LookupError, match="item 5 is rotten") as error:
        for _, _, i in DataLoader(Squares(10, bad=5), 2, num_workers=2):
            seen += i.tolist()
    assert seen == [0, 1, 2, 3]
    assert error.value.__notes__ == ["raised in worker 0 of the DataLoader"]
    cause = str(error.value.__cause__)
    assert "samples.py" in cause and "__getitem__" in cause
    with pytest.raises(RuntimeError, match=r"worker 0: samples.Odd: this and that") as error:
        list(DataLoader(Failing(), sampler=[0, 1], num_workers=1))
    assert "samples.py" in str(error.value.__cause__)
    assert not children()


def test_workers_that_end_or_hang_are_told():
    with pytest.raises(RuntimeError, match=r"worker 1 .* was killed by SIGKILL"):
        list(DataLoader(Failing(), sampler=[0, 2, 0, 0], num_workers=2))
    with pytest.raises(RuntimeError, match=r"worker 0 .* exit code 3"):
        list(DataLoader(Failing(), sampler=[4], num_workers=1))
    begin = time.monotonic()
    with pytest.raises(TimeoutError, match=r"worker 0 gave no batch within 2\.0 s"):
        list(DataLoader(Failing(), sampler=[0, 3], num_workers=1, timeout=2.0))
    assert time.monotonic() - begin < 20 and not children()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_what_cannot_be_pickled_is_refused():
    loader = DataLoader(Squares(4), num_workers=1, collate_fn=lambda samples: samples[0][2])
    with pytest.raises(TypeError, match="collate_fn"):
        iter(loader)
    loader = DataLoader(
        Squares(4), num_workers=1, collate_fn=lambda s: s[0][2], multiprocessing_context="fork"
    )
    assert list(loader) == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="multiprocessing_context"):
        iter(DataLoader(Squares(), num_workers=1, multiprocessing_context="thread"))


SCRIPT = """
import os, sys, time
from samples import Squares
from wengert.data import DataLoader
from test_workers import processes

if __name__ == "__main__":
    loader = DataLoader(Squares(1000), num_workers=2, persistent_workers=True)
    for batch in loader:
        print(*processes(loader._pool), flush=True)
        time.sleep(0.1)
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_however_a_program_ends_its_workers_do(how, tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    paths = [os.path.dirname(__file__), *sys.path]
    env = {**os.environ, "PYTHONPATH": ":".join(paths)}
    program = subprocess.Popen(
        [sys.executable, "script.py"], cwd=tmp_path, env=env,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    pids = [int(p) for p in program.stdout.readline().split()]
    assert len(pids) == 2
    program.send_signal(how)
    _, err = program.communicate(timeout=30)
    assert gone(pids) and err.count("Traceback") == (how == signal.SIGINT), err
