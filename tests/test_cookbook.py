"""Every program of the cookbook runs in a small size and gets better at what it is for."""

import importlib
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
COOKBOOK = ROOT / "examples" / "cookbook"

# A program gives a figure before and after. For each: the size to run it in, and what must hold.
def falls(factor):
    """The figure is below `factor` times what it was."""
    return lambda before, after: after < factor * before


def rises(least):
    """The figure is higher than it was, and at least this."""
    return lambda before, after: after > before and after >= least


PROGRAMS = {
    "adversarial": ({"steps": 200}, rises(0.3)),
    "char_transformer": ({"steps": 60}, falls(0.8)),
    "control": ({"steps": 600}, falls(0.5)),
    "diffusion": ({"steps": 300}, falls(0.2)),
    "distillation": ({"steps": 200}, rises(0.6)),
    "ensemble": ({"steps": 150}, falls(0.3)),
    "flow": ({"steps": 200}, rises(-2.0)),
    "gan": ({"steps": 400}, falls(0.6)),
    "graph_network": ({"steps": 60}, rises(0.8)),
    "hmc": ({"samples": 200}, falls(0.5)),
    "kmeans": ({}, falls(0.7)),
    "lora": ({"steps": 100}, rises(0.8)),
    "maml": ({"steps": 300}, falls(0.8)),
    "matrix_factorization": ({"steps": 300}, falls(0.5)),
    "mixed_precision": ({"steps": 60}, rises(0.75)),
    "neural_ode": ({"steps": 60}, falls(0.2)),
    "newton": ({}, falls(1e-4)),
    "pinn": ({"steps": 150}, falls(0.5)),
    "policy_gradient": ({"steps": 40}, rises(100)),
    "q_learning": ({"episodes": 80}, falls(0.3)),
    "resnet": ({"epochs": 9, "train": 600, "test": 100, "batch": 30}, rises(0.5)),
    "seq2seq": ({"steps": 300}, rises(0.2)),
    "session": ({"steps": 100}, rises(0.75)),
    "siamese": ({"steps": 100}, rises(0.75)),
    "siren": ({"steps": 100}, falls(0.1)),
    "vae": ({"steps": 60}, falls(0.5)),
    "word_vectors": ({"steps": 300}, rises(0.5)),
}


@pytest.fixture(autouse=True)
def path(monkeypatch):
    monkeypatch.syspath_prepend(str(COOKBOOK))
    yield
    for name in [*PROGRAMS, "common", "mnist"]:
        sys.modules.pop(name, None)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_gets_better(name):
    size, holds = PROGRAMS[name]
    before, after = importlib.import_module(name).main(**size)
    assert holds(before, after), (before, after)


def test_every_program_is_run_and_shown():
    programs = {path.stem for path in COOKBOOK.glob("*.py")} - {"common"}
    page = (ROOT / "docs" / "cookbook.md").read_text()
    assert programs == set(PROGRAMS)
    for name in programs:
        assert f"(../examples/cookbook/{name}.py)" in page, f"docs/cookbook.md lacks {name}"
