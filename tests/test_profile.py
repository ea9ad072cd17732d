"""`profile()` and `check_finite()`: what they see, and that they see it in every mode."""

import json
import threading

import pytest

import wengert as wg


def work(x):
    y = (x @ x).exp()
    return wg.nn.softmax(y, axis=-1).sum()


def keys(rows):
    return {row["key"] for row in rows}


def test_eager_ops_are_timed_by_op_and_by_line():
    x = wg.ones((64, 64))
    with wg.profile() as p:
        y = x @ x
        y.exp().sum()
    rows = {row["key"]: row for row in p.rows()}
    assert {"matmul", "exp", "sum"} <= set(rows)
    assert rows["matmul"]["count"] == 1 and rows["matmul"]["flops"] == 2 * 64**3
    assert rows["matmul"]["bytes"] == 3 * 4 * 64 * 64
    assert all(0 <= row["own"] <= row["total"] for row in rows.values())
    own = [row["own"] for row in p.rows()]
    assert own == sorted(own, reverse=True)
    lines = keys(p.rows(by="line"))
    assert len(lines) == 2 and all("test_profile.py:" in line for line in lines)
    text = p.table()
    assert text == str(p) and "GFLOP/s" in text and "matmul" in text
    assert "test_profile.py" in p.table(by="line")
    with pytest.raises(ValueError, match="by must be"):
        p.rows(by="column")


def test_what_runs_inside_is_counted_once():
    x = wg.rand((50, 50)) if hasattr(wg, "rand") else wg.ones((50, 50))
    with wg.profile() as p:
        for _ in range(4):
            wg.nn.rms_norm(x)
    rows = {row["key"]: row for row in p.rows()}
    whole = rows["rms_norm"]
    assert whole["count"] == 4 and whole["own"] < whole["total"]
    spans = [e for e in p.events if e["name"] == "rms_norm"]
    ends = max(e["start"] + e["duration"] for e in p.events) - min(e["start"] for e in p.events)
    assert sum(row["own"] for row in p.rows()) <= ends / 1e9 * 1.01 and len(spans) == 4


def test_backward_is_timed():
    x = wg.ones((8, 8), requires_grad=True)
    loss = work(x)
    with wg.profile() as p:
        loss.backward()
    assert "matmul" in keys(p.rows())


def test_compiled_calls_and_their_steps_are_timed():
    f = wg.compile(work)
    x = wg.ones((32, 32))
    f(x)
    with wg.profile() as p:
        f(x)
    kinds = {event["work"] for event in p.events}
    assert "call" in kinds and "step" in kinds
    assert "work" in keys(p.rows()) and "matmul" in keys(p.rows())


def test_the_table_shortens_groups_of_many_ops():
    f = wg.compile(lambda x: ((x.exp() + 1.0).log() * 2.0 - x).sin().cos() / 3.0)
    f(wg.ones(64))
    with wg.profile() as p:
        f(wg.ones(64))
    named = [row["key"] for row in p.rows() if row["key"].startswith("exp, ")]
    assert named == ["exp, add, log, multiply, subtract, sin, cos, divide"]
    assert "exp, add, log, … (8 ops)" in p.table() and named[0] not in p.table()


def test_the_trace_file_is_what_chrome_reads(tmp_path):
    with wg.profile() as p:
        work(wg.ones((4, 4)))
    p.save(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert events and len(events) == len(p.events)
    for event in events:
        assert event["ph"] == "X" and event["dur"] >= 0 and event["ts"] >= 0
        assert {"pid", "tid", "name", "cat", "args"} <= set(event)


def test_profiles_nest_and_end():
    with wg.profile() as outer:
        wg.ones(3).exp()
        with wg.profile() as inner:
            wg.ones(3).log()
    wg.ones(3).sin()
    assert {"exp", "log"} <= keys(outer.rows()) and "log" in keys(inner.rows())
    assert "exp" not in keys(inner.rows()) and "sin" not in keys(outer.rows())
    with outer as again, pytest.raises(RuntimeError, match="open already"), again:
        pass
    assert str(wg.profile()).startswith("op")


def test_threads_are_told_apart():
    def run():
        wg.ones((16, 16)).exp()

    with wg.profile() as p:
        threads = [threading.Thread(target=run) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found = [event for event in p.events if event["name"] == "exp"]
    assert len(found) == 4 and len({event["thread"] for event in found}) == 4


def makes_nan(x):
    y = x - 1.0
    z = y.log()
    return (z * 2).sum()


def makes_infinity(x):
    y = x.sum()
    return (1000.0 * y).exp()


@pytest.mark.parametrize("function, op, what", [
    (makes_nan, "log", "nan"),
    (makes_infinity, "exp", "an infinity"),
])  # fmt: skip
@pytest.mark.parametrize("mode", ["eager", "recorded", "compiled"])
def test_the_first_op_that_is_not_finite_is_named(function, op, what, mode):
    x = wg.tensor([0.5, 2.0], requires_grad=mode == "recorded")
    f = wg.compile(function) if mode == "compiled" else function
    f(x)
    with pytest.raises(wg.Error) as caught, wg.check_finite():
        f(x)
    text = str(caught.value)
    assert text.startswith(f"{op}: {what} made of finite operands: ") and "float32" in text
    line = function.__code__.co_firstlineno + 2
    assert f"test_profile.py:{line}" in text, text
    f(x)


def test_ranges_of_operands_are_shown():
    text = r"x is float32 \(2,\) from -0.5 to 1.0"
    with pytest.raises(wg.ArgumentError, match=text), wg.check_finite():
        makes_nan(wg.tensor([0.5, 2.0]))


def test_what_was_not_finite_before_is_not_refused():
    x = wg.tensor([float("inf"), 1.0])
    with wg.check_finite():
        y = (x + 1.0).exp()
        masked = wg.where(wg.tensor([True, False]), float("-inf"), y)
        wg.nn.softmax(wg.tensor([[1.0, 2.0]]), axis=-1)
        x += 1.0
    assert masked.shape == (2,)


def test_composites_are_checked_as_one():
    x = wg.tensor([[1.0, -200.0]])
    with wg.check_finite():
        assert wg.nn.log_softmax(x, axis=-1).tolist() == [[0.0, -201.0]]
        assert wg.logsumexp(x).item() == 1.0
        assert wg.nn.softplus(x)[0, 1].item() == 0.0


def test_backward_is_checked():
    x = wg.tensor([0.0], requires_grad=True)
    y = x.sqrt().sum()
    with pytest.raises(wg.Error, match="an infinity"), wg.check_finite():
        y.backward()


def test_checks_end_with_their_block_and_hold_for_their_thread():
    found = []

    def elsewhere():
        found.append(wg.tensor([-1.0]).log().isnan().all().item())

    with wg.check_finite():
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
    assert found == [True] and wg.tensor([-1.0]).log().isnan().item()
