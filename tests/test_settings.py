"""Environment variables: one table, unknown names and values refused at import."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import wengert as wg
from wengert import _core

ROOT = Path(__file__).parent.parent

BAD = [
    ("WENGERT_ISA", "nonsense", "base, v3, v4"),
    ("WENGERT_ISA", "V3", "base, v3, v4"),
    ("WENGERT_NUM_THREADS", "nonsense", "whole numbers from 1"),
    ("WENGERT_NUM_THREADS", "0", "whole numbers from 1"),
    ("WENGERT_NUM_THREADS", "-2", "whole numbers from 1"),
    ("WENGERT_NUM_THREADS", "1.5", "whole numbers from 1"),
    ("WENGERT_CHECK", "nonsense", "1"),
    ("WENGERT_TEST_FULL", "maybe", "0, 1"),
]


@pytest.mark.parametrize(("name", "value", "allowed"), BAD)
def test_an_unknown_value_is_refused(monkeypatch, name, value, allowed):
    monkeypatch.setenv(name, value)
    with pytest.raises(wg.ArgumentError) as error:
        _core._check_settings()
    text = str(error.value)
    assert text.startswith(f"{name}: unknown value") and f'"{value}"' in text and allowed in text


GOOD = [
    ("WENGERT_ISA", "base"),
    ("WENGERT_NUM_THREADS", "3"),
    ("WENGERT_NUM_THREADS", " 3 "),
    ("WENGERT_CACHE", "off"),
    ("WENGERT_CACHE", "/nowhere/at/all"),
    ("WENGERT_CHECK", "1"),
    ("WENGERT_CHECK", "0"),
    ("WENGERT_CHECK", ""),
]


@pytest.mark.parametrize(("name", "value"), GOOD)
def test_a_known_value_is_taken(monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    _core._check_settings()


def test_an_unknown_name_is_refused(monkeypatch):
    monkeypatch.setenv("WENGERT_NUM_THREAD", "3")
    with pytest.raises(wg.ArgumentError, match=r"_THREAD: no such setting.*NUM_THREADS"):
        _core._check_settings()


def test_the_import_refuses():
    env = os.environ | {"WENGERT_ISA": "nonsense"}
    command = [sys.executable, "-c", "import wengert"]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode != 0
    assert last.endswith('WENGERT_ISA: unknown value of this environment variable: got "nonsense", '
                         "allowed are base, v3, v4")  # fmt: skip


def test_every_variable_that_is_read_stands_in_the_table():
    table = (ROOT / "src" / "settings.rs").read_text()
    known = set(re.findall(r'name: "(WENGERT_\w+)"', table))
    files = [*ROOT.glob("src/**/*.rs"), *ROOT.glob("python/**/*.py"), *ROOT.glob("tests/*.py"),
             ROOT / "Makefile", ROOT / "build.rs"]  # fmt: skip
    for path in files:
        if path.name in (Path(__file__).name, "test_errors.py"):
            continue
        text = path.read_text()
        assert set(re.findall(r"\bWENGERT_[A-Z_]*[A-Z]\b", text)) <= known, path
        if path.suffix == ".rs" and path.name not in ("settings.rs", "build.rs"):
            assert not re.search(r'env::var(_os)?\("WENGERT', text), path
