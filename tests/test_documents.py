"""What the documents show runs: Python blocks of Markdown files, examples in docstrings, links."""

import doctest
import inspect
import re
from pathlib import Path

import pytest

import wengert as wg
from wengert import _core

from support import TABLE, function, label

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", ROOT / "ARCHITECTURE.md", *ROOT.glob("docs/*.md"),
                *ROOT.glob("benches/*.md")])


BLOCK = re.compile(r"^```python\n(.*?)^```", re.M | re.S)
BLOCKS = [
    pytest.param(page, code, id=f"{page.name}-{n}")
    for page in PAGES
    for n, code in enumerate(BLOCK.findall(page.read_text()))
]


@pytest.mark.parametrize(("page", "code"), BLOCKS)
def test_python_blocks_run(page, code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "__main__"}
    try:
        exec(compile(code, str(page), "exec"), names)
    finally:
        # The tape may hold an op whose code holds these names: nobody would collect them.
        names.clear()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_make_targets_in_documents_exist():
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.M))
    for page in PAGES:
        for line in re.findall(r"^make ([a-z -]+?)(?:\s+#.*)?$", page.read_text(), re.M):
            assert set(line.split()) <= targets, (page.name, line)


def public():
    """Every public object of the package with a docstring of its own, by name."""
    for name in wg.__all__:
        yield name, getattr(wg, name)
    for space in (wg.nn, wg.optim, wg.data, wg.random, wg.testing, wg.webgpu):
        for name in space.__all__:
            yield f"{space.__name__.removeprefix('wengert.')}.{name}", getattr(space, name)


PUBLIC = dict(public())


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_docstrings(name):
    """Whatever can be called says what it does, and its examples are true."""
    thing = PUBLIC[name]
    text = inspect.getdoc(thing)
    if not callable(thing):
        return
    assert text and text.strip(), f"{name} has no docstring"
    assert len(text.splitlines()[0]) <= 100
    parser = doctest.DocTestParser()
    globs = {"wg": wg, "wengert": wg, "nn": wg.nn, "optim": wg.optim}
    test = parser.get_doctest(text, globs, name, None, 0)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    shown = []
    runner.run(test, out=shown.append)
    assert not runner.failures, "".join(shown)


def docstrings(thing, name, depth=2):
    """The docstrings of an object and of what belongs to it."""
    yield name, getattr(thing, "__doc__", None) or ""
    if depth and (inspect.isclass(thing) or inspect.ismodule(thing)):
        for word, part in list(vars(thing).items()):
            home = getattr(part, "__module__", None) or ""
            if callable(part) and (inspect.isclass(thing) or home.startswith("wengert")):
                yield from docstrings(part, f"{name}.{word}", depth - 1)


def test_docstrings_are_written_for_python():
    """No markup of Rust's documentation: its links and paths mean nothing to a reader in Python."""
    modules = [_core, wg, wg.nn, wg.optim, wg.data, wg.random, wg.testing, wg.io, wg.pytree,
               wg.autodiff, wg.capture, wg.control, wg.graph, wg.session, wg.transforms, wg.webgpu]
    seen = 0
    for module in modules:
        for name, text in docstrings(module, module.__name__):
            seen += bool(text)
            assert not re.search(r"\[`[^\]]*`\]|\w::\w", text), (name, text)
    assert seen > 600


@pytest.mark.parametrize("op", [op for op in TABLE if op["function"]], ids=label)
def test_an_op_says_what_it_does(op):
    text = inspect.getdoc(function(op))
    names = ", ".join(f"`{name}`" for name in op["synonyms"])
    also = f"\n\nAlso called {names}." if names else ""
    assert f"{text}\n\n".startswith(f"{inspect.cleandoc(op['doc'])}{also}\n\n")
    assert text.splitlines()[0].endswith("."), "the first line is a sentence"
