"""`profile()` on a GPU: the device's own times beside the caller's."""

import itertools
import json

import numpy as np
import pytest

import wengert as wg
from wengert import _core


@pytest.fixture
def timed(gpu):
    if "timestamp_query" not in wg.device_info(gpu)["features"]:
        pytest.skip("this adapter has no timestamps")
    return gpu


def device_events(p):
    return [event for event in p.events if event["work"] == "device"]


def test_eager_ops_have_times_of_the_device(timed):
    x = wg.ones((128, 128), device=timed)
    wg.synchronize(timed)
    with wg.profile() as p:
        for _ in range(3):
            y = x @ x
        y.exp()
    rows = {row["key"]: row for row in p.rows()}
    assert rows["matmul"]["device"] > 0 and rows["exp"]["device"] > 0
    assert rows["matmul"]["count"] == 3 and rows["matmul"]["flops"] == 3 * 2 * 128**3
    own = device_events(p)
    assert [e["name"] for e in own] == ["matmul"] * 3 + ["exp"]
    assert all("test_gpu_profile.py:" in e["line"] and e["detail"] == "gpu" for e in own)
    ends = [(e["start"], e["start"] + e["duration"]) for e in own]
    assert all(a[1] <= b[0] + 1000 for a, b in itertools.pairwise(ends)), ends
    assert "device" in p.table().splitlines()[0] and p.untimed == []


def test_steps_of_compiled_calls_have_times_of_the_device(timed):
    f = wg.compile(lambda x: (x @ x).exp().sum())
    x = wg.ones((64, 64), device=timed)
    want = f(x).item()
    with wg.profile() as p:
        got = f(x).item()
    assert got == want
    rows = {row["key"]: row for row in p.rows()}
    assert rows["matmul, exp"]["count"] == 1 and rows["matmul, exp"]["device"] > 0
    assert rows["matmul, exp"]["own"] == 0 and any(e["work"] == "call" for e in p.events)


def test_many_dispatches_in_one_submission(timed):
    def chain(x):
        for _ in range(5000):
            x = x + 1.0
        return x

    x = wg.ones(5, device=timed)
    with wg.profile() as p:
        y = chain(x)
    assert len(device_events(p)) == 5000
    np.testing.assert_array_equal(y.numpy(), np.full(5, 5001, "f"))


def test_nothing_is_timed_outside(timed, tmp_path):
    x = wg.ones(5, device=timed)
    x.exp()
    with wg.profile() as p:
        pass
    x.sin()
    with wg.profile() as q:
        x.log()
    assert [e["name"] for e in device_events(p)] == []
    assert [e["name"] for e in device_events(q)] == ["log"]
    q.save(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert "device" in {event["cat"] for event in events}


def test_a_failure_inside_a_profile_is_raised_at_its_wait(timed):
    x = wg.ones(5, device=timed)
    with wg.profile() as p:
        wg.take(x, wg.tensor([7], device=timed))
    assert device_events(p)
    with pytest.raises(IndexError):
        wg.synchronize(timed)


def test_a_table_says_which_times_it_lacks(monkeypatch):
    monkeypatch.setattr(_core, "_end_timing", lambda mark: ([], 0, ["gpu"]))
    mark = []
    monkeypatch.setattr(_core, "_begin_timing", lambda: mark.append(0) or 0)
    with wg.profile() as p:
        pass
    assert mark and "no times of gpu" in p.table()
