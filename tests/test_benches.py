"""The rows of the benchmarks compute what they say, and their report adds up. Nothing is timed."""

import json
import platform
import sys
from pathlib import Path

import machine
import numpy as np
import pytest
import report
import run
from case import GROUPS, all_cases
from engines import ENGINES, engine
from engines.of_numpy import Reference

BENCHES = Path(__file__).parents[1] / "benches"

CASES = all_cases()
EAGER, COMPILED = (engine(name, 2) for name in ("wengert", "wengert compiled"))
REFERENCE = Reference(1)


def results(adapter, case):
    """What an engine gives for a small row; of training the losses of three steps."""
    call = adapter.prepare(case, case.at(small=True))
    y = [call() for _ in range(3)] if case.kind == "training" else call()
    return adapter.results(y)


def slope(case, directions):
    """How a row changes along directions of its inputs, by differences in float64."""
    s, step = case.at(small=True), 1e-6
    inputs = [REFERENCE.array(x) for x in case.inputs(s)]

    def value(sign):
        moved = list(inputs)
        for i, v in directions.items():
            moved[i] = moved[i] + sign * step * v
        return float(np.sum(case.function(REFERENCE, s, *moved)))
    return (value(1) - value(-1)) / (2 * step)


@pytest.mark.parametrize("id", CASES)
def test_every_row_computes_what_it_says(id):
    case = CASES[id]
    found = results(EAGER, case)
    assert run.agree(results(COMPILED, case), found, case.tolerance)
    if case.kind == "gradient":
        random = np.random.default_rng(5)
        directions = {i: random.standard_normal(g.shape)
                      for i, g in zip(case.wrt, found, strict=True)}
        want = slope(case, directions)
        got = sum(np.vdot(g.astype(float), directions[i])
                  for i, g in zip(case.wrt, found, strict=True))
        sizes = sum(np.abs(g * directions[i]).sum() for i, g in zip(case.wrt, found, strict=True))
        assert abs(got - want) <= 1e-3 * sizes + 1e-4
        return
    want = results(REFERENCE, case)
    if case.kind == "training":
        assert found[0] != found[2], "steps change nothing"
        found, want = found[:1], want[:1]
    assert run.agree(found, want, case.tolerance)


def test_results_that_differ_are_told():
    one = [np.ones(3, np.float32)]
    assert run.agree([one[0] + 1e-3], one, 2e-3) and not run.agree([one[0] + 1e-2], one, 2e-3)
    assert not run.agree([one[0][:2]], one, 1.0) and not run.agree([], one, 1.0)
    assert not run.agree([np.array([1, np.nan, 1])], one, 1.0)


def test_the_table_has_the_rows_that_speed_is_judged_by():
    assert len(CASES) >= 80 and {case.group for case in CASES.values()} == set(GROUPS)
    for case in CASES.values():
        assert set(case.small) == set(case.sizes), case.id
        assert case.kind in ("forward", "recorded", "gradient", "training"), case.id
        assert bool(case.wrt) == (case.kind in ("recorded", "gradient")), case.id
        assert case.group in "AE" or case.bytes(case.at()) > 0 or case.id == "B13", case.id


@pytest.mark.parametrize(("id", "bytes", "flops"), [
    ("B1", 120_000_000, 0), ("B4", 2 * 4 * 4096**2, 0), ("B6a", 4 * 4096**2, 0),
    ("B9", 8 * 4096 * 1024, 0), ("C1_64", 3 * 4 * 64**2, 2 * 64**3),
    ("C2", 32 * 4 * (128 * 64 * 2 + 128 * 128), 2 * 32 * 128 * 128 * 64),
    ("C3", 4 * (4096 + 4096**2 + 4096), 2 * 4096**2),
    ("D1", 4 * (2 * 8 * 64 * 56**2 + 64 * 64 * 9), 2 * 8 * 56**2 * 64 * 64 * 9),
    ("D3", 4 * (2 * 8 * 128 * 56**2 + 128 * 9), 2 * 8 * 56**2 * 128 * 9),
    ("D4", 4 * (3 * 224**2 + 64 * 112**2 + 64 * 3 * 49), 2 * 112**2 * 64 * 3 * 49),
])
def test_bytes_and_operations_by_hand(id, bytes, flops):
    case = CASES[id]
    assert (case.bytes(case.at()), case.flops(case.at())) == (bytes, flops)


def test_operations_of_models_are_those_known():
    # 1.81 billion multiplications with additions, as the paper says (He et al., 2015, table 1).
    assert CASES["E6"].flops(CASES["E6"].at()) == pytest.approx(2 * 1.81e9, rel=0.01)
    gpt = CASES["E5"]
    weights = 4 * 12 * 256**2 + 256 * 1024
    assert gpt.flops(gpt.at()) == 2 * 128 * weights + 4 * 4 * 128 * 128 * 256


def made(rows, caches=None):
    """A run whose rows are {id: {engine: [seconds]}}."""
    return {"machine": {"caches": {"L2": 1 << 20} if caches is None else caches}, "versions": {},
            "settings": {"threads": 1, "rounds": 1, "seconds": 1.0},
            "rows": [{"id": id, "title": id, "bytes": 0, "flops": 0, "per": 1, "differ": [],
                      "missing": {}, "first": {}, "loads": [0.0], "times": times}
                     for id, times in rows.items()]}


def test_ratios_and_means():
    row, = made({"A1": {"wengert": [2.0, 4.0, 3.0], "wengert compiled": [6.0], "torch": [9.0],
                        "numpy": [6.0]}})["rows"]
    assert report.ours(row) == 3.0 and report.best_peer(row) == ("numpy", 6.0)
    assert report.ratio(6.0, report.ours(row)) == 2.0
    row["differ"] = ["numpy"]
    assert report.best_peer(row) == ("torch", 9.0), "wrong results win nothing"
    assert report.geometric([1.0, 4.0, None]) == pytest.approx(2.0)
    assert report.geometric([]) is None and report.best_peer({**row, "times": {}}) == (None, None)


def test_limits_are_what_the_fastest_engine_reached():
    found = made({"C1_1024": {"wengert": [2.0], "torch": [1.0]}, "B1": {"wengert": [0.5]},
                  "F3_30000": {"numpy": [0.1]}, "C3": {"wengert": [8.0]}, "A1": {"wengert": [1.0]}})
    by = {row["id"]: row for row in found["rows"]}
    by["C1_1024"]["flops"], by["B1"]["bytes"], by["F3_30000"]["bytes"] = 100, 10 << 20, 1 << 20
    limit = report.limits(found)
    assert (limit["flops"], limit["memory"], limit["cache"]) == (100, 20 << 20, 10 * (1 << 20))
    by["C3"]["flops"], by["C3"]["bytes"] = 200, 40 << 20
    # Two seconds for the bytes, two for the operations, eight that it took.
    assert report.share_of_limit(by["C3"], limit) == 0.25
    by["C3"]["bytes"] = 80 << 20
    assert report.share_of_limit(by["C3"], limit) == 0.5
    by["C3"]["flops"], by["C3"]["bytes"] = 0, 1 << 20
    assert report.share_of_limit(by["C3"], limit) == pytest.approx(0.1 / 8)
    assert report.share_of_limit(by["A1"], limit) is None


def test_rows_are_marked_unsteady():
    row, = made({"A1": {"wengert": [1.0, 1.0, 1.0, 1.0, 9.0]}})["rows"]
    assert not report.unsteady(row), "one round of five may be late"
    row["times"]["wengert"] = [1.0, 1.0, 2.0, 2.0, 2.0]
    assert report.unsteady(row)
    row["times"]["wengert"], row["loads"] = [1.0], [0.2]
    assert report.unsteady(row)


def test_changes_are_told_from_noise():
    before = made({"A1": {"wengert": [1.0], "numpy": [2.0]}, "A2": {"wengert": [1.0, 1.0]},
                   "A3": {"wengert": [1.0, 1.5, 1.0, 1.5]}})
    now = made({"A1": {"wengert": [2.0], "numpy": [4.0]}, "A2": {"wengert": [1.05, 1.05]},
                "A3": {"wengert": [1.4]}, "A4": {"wengert": [1.0]}})
    assert report.changes(before, now) == {"A1": 0.5}
    assert "| A1 | A1 | 0.50 |" in report.changed(before, now)
    other = {**now, "machine": {"caches": {}}}
    assert report.changes(before, other) == {}, "the peer is as much slower there"
    assert report.changed(before, other) == "Nothing changed by more than noise."


def test_the_tables_have_every_row():
    found = made({"A1": {"wengert": [1e-6], "numpy": [2e-6]}, "B1": {"wengert": [1e-3],
                                                                    "torch": [5e-4]}})
    facts = machine.described()
    found["machine"] = facts
    text = run.written(found, None)
    assert "| A1 | A1 | 1 µs |" in text and "| numpy | 2 µs | 2.00 |" in text
    assert "| all | 2 | 1.00 | 0.50 | 1 of 2 | B1 0.50 |" in text


def test_the_description_of_a_machine_names_nobody():
    text = json.dumps(machine.described())
    assert platform.node() not in text.split('"') and "/" not in text.replace("GB/s", "")
    assert machine.described()["cores"] >= 1


def test_the_command_runs_small_rows(tmp_path, monkeypatch, capsys):
    arguments = ["run.py", "--small", "--only", "A1,B9", "--rounds", "2", "--seconds", "0.001",
                 "--engines", "wengert,wengert compiled,numpy", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", arguments)
    with pytest.raises(SystemExit) as end:
        run.main()
    assert not end.value.code
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert [row["id"] for row in figures["rows"]] == ["A1", "A10", "A11", "B9"]
    assert all(len(times) == 2 for row in figures["rows"] for times in row["times"].values())
    assert set(figures["rows"][0]["times"]) == {"wengert", "wengert compiled", "numpy"}
    assert "softmax of rows" in (tmp_path / "table.md").read_text()
    assert "[4/4] B9" in capsys.readouterr().out


def test_every_engine_has_a_module():
    for module, kind, _ in ENGINES.values():
        assert f"class {kind}(" in (BENCHES / "engines" / f"{module}.py").read_text()
