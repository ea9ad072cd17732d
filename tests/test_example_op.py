"""The ops of docs/adding-an-op.md, in a build with `--features example-op` (`make example-op`)."""

import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
NAMES = ("soft_sign", "soft_clip", "increments")


def with_the_example():
    import wengert as wg

    return hasattr(wg, NAMES[0])


pytestmark = pytest.mark.skipif(not with_the_example(), reason="needs the feature example-op")


@pytest.mark.parametrize("name", NAMES)
def test_it_is_a_function_with_signature_and_documentation(name):
    import wengert as wg

    op = getattr(wg, name)
    assert inspect.getdoc(op) and "x" in inspect.signature(op).parameters
    assert name in wg.__all__


def test_the_page_shows_the_declarations_as_they_are():
    page = (ROOT / "docs" / "adding-an-op.md").read_text()
    files = (ROOT / "src" / "ops" / "example.rs", ROOT / "src/ops/structural/example.rs")
    source = "\n".join(path.read_text() for path in files)
    blocks = re.findall(r"^```rust\n(.*?)^```", page, re.M | re.S)
    assert len(blocks) == 3
    for block in blocks:
        # Behind a declaration of a table others may follow before its brace.
        lines = [line.strip() for line in block.strip().removesuffix("}").splitlines()]
        assert "\n".join(lines) in "\n".join(line.strip() for line in source.splitlines())


@pytest.mark.parametrize("name", NAMES)
def test_the_generator_writes_its_stub_and_its_row(name, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "tools")
    generate = importlib.import_module("generate")
    table = generate._core._op_table()
    assert f"| `{name}(" in generate.docs(table)
    assert any(f"def {name}(" in text for text in generate.stub(table).values())


def test_the_structural_op_works_in_every_mode_and_transform():
    import numpy as np

    import wengert as wg

    data = np.random.default_rng(1).normal(size=(3, 4, 5)).astype(np.float32)
    x = wg.asarray(data)

    def f(x):
        return wg.increments(wg.exp(x) * 2.0, axis=1)

    eager = f(x).numpy()
    np.testing.assert_allclose(eager, np.diff(np.exp(data) * 2, axis=1), rtol=1e-5)
    compiled = wg.compile(f)
    for check in (False, True, "reference"):
        with wg.config(check=check):
            assert compiled(x).numpy().tobytes() == eager.tobytes()
    text = str(compiled.graph(x))
    assert "increments(" in text and ", axis=1)" in text
    assert wg.parse_graph(text) == compiled.graph(x)
    with wg.Graph() as g:
        open_size = wg.placeholder("x", (None, 4, 5))
        y = f(open_size)
    assert wg.Session(g).run(y, {open_size: data}).numpy().tobytes() == eager.tobytes()
    batched = wg.vmap(lambda row: wg.increments(row, axis=0))(x).numpy()
    assert batched.tobytes() == np.diff(data, axis=1).tobytes()
    _, tangent = wg.jvp(lambda x: wg.increments(x, axis=1), (x,), (x,))
    assert tangent.numpy().tobytes() == np.diff(data, axis=1).tobytes()
    # ⟨increments(x), g⟩ = ⟨x, rule(g)⟩, on whole numbers exactly.
    whole = wg.asarray(np.round(data * 8))
    weight = wg.asarray(np.arange(45, dtype=np.float32).reshape(3, 3, 5))
    slope = wg.grad(lambda x: (wg.increments(x, axis=1) * weight).sum())
    inner = (wg.increments(whole, axis=1) * weight).sum().item()
    assert inner == (whole * slope(whole)).sum().item()


@pytest.mark.parametrize("file", ["test_ops_values.py", "test_ops_gradients.py", "test_ops_fuzz.py",
                                  "test_documents.py"])
def test_the_derived_tests_cover_it(file):
    """They find the op in the table: nothing was written for it there."""
    command = [sys.executable, "-m", "pytest", "-q", "-k", " or ".join(NAMES), f"tests/{file}"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout
    assert "passed" in run.stdout
