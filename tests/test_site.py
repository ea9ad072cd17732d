"""The pages of the site: every public name, every document, and no link that leads nowhere."""

import json
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest

import wengert as wg

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, str(ROOT / "tools" / "build_site.py"), "--pages"]
    subprocess.run([*command, "--out", str(folder)], check=True, cwd=folder)
    return folder / "site"


def headings(page):
    return set(re.findall(r"^## (\S+)$", page.read_text(), re.M))


def test_every_public_name_has_an_entry(site):
    for space in (wg, wg.nn, wg.optim, wg.data, wg.random, wg.io, wg.io.tensorboard, wg.testing,
                  wg.pytree, wg.webgpu):  # fmt: skip
        page = site / "docs" / "reference" / f"{space.__name__}.md"
        names = {name for name in space.__all__ if not name.startswith("__")}
        names -= {n for n in names if isinstance(getattr(space, n), types.ModuleType)}
        assert headings(page) == names
    page = (site / "docs" / "reference" / "wengert.md").read_text()
    assert "### Tensor.backward" in page and "relu(x)" not in page
    # What Python adds to an op of the table stands in its signature.
    text = (site / "docs" / "reference" / "wengert.nn.md").read_text()
    assert "return_indices" in re.search(r"^adaptive_max_pool1d\(.*$", text, re.M).group()
    text = (site / "docs" / "reference" / "wengert.data.md").read_text()
    assert "(5, 10, 11)\n```" in text and text.count("```") % 2 == 0


def test_the_navigation_has_every_document(site):
    text = (site / "mkdocs.yml").read_text()
    for page in [*ROOT.glob("docs/*.md"), *ROOT.glob("*.md"), *ROOT.glob("benches/*.md")]:
        assert json.dumps(str(page.relative_to(ROOT))) in text


def test_links_between_pages_lead_somewhere(site):
    for page in (site / "docs").rglob("*.md"):
        if "reference" in page.parts or ("examples" in page.parts and page.name != "index.md"):
            continue
        text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
        for target in re.findall(r"\]\(([^)#\s]+)\)", re.sub(r"`[^`]*`", "", text)):
            if not target.startswith("http"):
                assert (page.parent / target).is_file(), (page.name, target)
