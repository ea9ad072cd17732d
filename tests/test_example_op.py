"""The ops of docs/adding-an-op.md, in a build with `--features example-op` (`make example-op`)."""

import importlib.util
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
NAMES = ("soft_sign", "soft_clip")


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
    source = (ROOT / "src" / "ops" / "example.rs").read_text()
    blocks = re.findall(r"^```rust\n(.*?)^```", page, re.M | re.S)
    assert len(blocks) == 2
    for block in blocks:
        lines = [line.strip() for line in block.splitlines()]
        assert "\n".join(lines) in "\n".join(line.strip() for line in source.splitlines())


@pytest.mark.parametrize("name", NAMES)
def test_the_generator_writes_its_stub_and_its_row(name):
    path = ROOT / "tools" / "generate.py"
    spec = importlib.util.spec_from_file_location("generate", path)
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    table = generate._core._op_table()
    assert f"| `{name}(" in generate.docs(table)
    assert any(f"def {name}(" in text for text in generate.stub(table).values())


@pytest.mark.parametrize("file", ["test_ops_values.py", "test_ops_gradients.py", "test_ops_fuzz.py",
                                  "test_documents.py"])
def test_the_derived_tests_cover_it(file):
    """They find the op in the table: nothing was written for it there."""
    command = [sys.executable, "-m", "pytest", "-q", "-k", " or ".join(NAMES), f"tests/{file}"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout
    assert "passed" in run.stdout
