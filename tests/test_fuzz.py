"""The fuzzer (`make fuzz`) sees what it is to see, and replays and shortens it."""

import subprocess
import sys
from pathlib import Path

import pytest

FUZZ = Path(__file__).parent / "fuzz"

DEFECTS = {
    "crash": "v0 = x(3)\nimport os\nos.abort()",
    "InternalError": "raise wg.InternalError('planted')",
    "SystemError": "raise SystemError('planted')",
    "KeyError": "raise KeyError('planted')",
    "Differs": "calls = []\ndef program(a):\n    calls.append(1)\n    return a * len(calls)\n"
    "run(compiled, program, x(3))",
    "hang": "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"
    "while True:\n    time.sleep(1)",
}
REFUSALS = [
    "v0 = wg.ones(3).sum(axis=7)\nv1 = v0 + 1",
    "v0 = wg.zeros((10**12,))",
    "while True:\n    pass",
    "v0 = wide(2**28, 2**31).sum()",
    "v0 = wide(10**12).max()",
    "v0 = x(3).cat",
    "run(in_session, wg.sin, x(3), feeds=[(x(4),), (i(3),), ()])",
]


def replay(tmp_path, source):
    path = tmp_path / "case.py"
    path.write_text(source)
    command = [sys.executable, str(FUZZ), "--replay", str(path), "--grace", "2"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("kind", DEFECTS)
def test_a_defect_is_a_finding(kind, tmp_path):
    run = replay(tmp_path, DEFECTS[kind])
    assert run.returncode == 1 and run.stdout.startswith(kind), run


@pytest.mark.parametrize("source", REFUSALS)
def test_a_refusal_or_an_interruption_is_none(source, tmp_path):
    run = replay(tmp_path, source)
    assert run.returncode == 0, run


def test_a_case_depends_on_its_seed_alone():
    code = "import cases, random; print([cases.case(random.Random(n)) for n in range(40)])"
    path = f"import sys; sys.path[:0] = [{str(FUZZ)!r}, {str(FUZZ.parent)!r}]; "
    command = [sys.executable, "-c", path + code]
    first, second = (subprocess.check_output(command) for _ in range(2))
    assert first == second


def test_a_finding_is_made_smaller():
    code = (
        "import child, shrink\n"
        "source = \"v0 = x(3)\\nv1 = wg.concat([x(2), x(3)])\\n"
        "def program(a):\\n    b = a + 1\\n    raise KeyError('planted')\\nprogram(v1)\\n\"\n"
        "print(shrink.shrunk(child.outcome_of(source), 2).source)"
    )
    path = f"import sys; sys.path[:0] = [{str(FUZZ)!r}, {str(FUZZ.parent)!r}]\n"
    text = subprocess.check_output([sys.executable, "-c", path + code], text=True)
    assert "KeyError" in text and "concat" not in text and "b = a" not in text
