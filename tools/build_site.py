"""Builds the site: every document, every example and a reference of every public name.

    python tools/build_site.py             # pages into build/site, the site into build/html
    python tools/build_site.py --pages     # only the pages

Nothing is listed by hand: pages come in the order of the table in docs/index.md, public names from
`__all__` of the package and its modules, signatures and texts from docstrings. Pages keep the
places of their files, so that links between documents hold; a link to an example leads to its page.
mkdocs-material renders them (`pip install wengert[docs]`), and any warning of it is an error.
"""

import argparse
import importlib
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
import types
from pathlib import Path

import generate

import wengert as wg
from wengert import _core

ROOT = Path(__file__).parent.parent

# Documents besides those of docs, by their titles in the navigation.
OTHERS = {
    "README.md": "wengert",
    "ARCHITECTURE.md": "Architecture",
    "CHANGELOG.md": "Changes",
    "benches/README.md": "Benchmarks",
    "benches/GAPS.md": "Gaps of speed",
}
TABLE = {(op["namespace"], op["name"]): op for op in _core._op_table()}


def public(module):
    """The public names of a module, in order, without modules and dunders."""
    names = dict.fromkeys(sorted(module.__all__, key=str.lower))
    found = {name: getattr(module, name) for name in names if not name.startswith("__")}
    return {k: v for k, v in found.items() if not isinstance(v, types.ModuleType)}


def modules():
    """Every public module by its name: the package, and what modules are in an `__all__`."""
    found, open_ones = {}, ["wengert", "wengert.compat.v1"]
    while open_ones:
        name = open_ones.pop(0)
        module = importlib.import_module(name)
        found[name] = module
        inner = [n for n in getattr(module, "__all__", ()) if not n.startswith("_")]
        for word in inner:
            value = getattr(module, word)
            ours = isinstance(value, types.ModuleType) and value.__name__.startswith("wengert.")
            if ours and hasattr(value, "__all__") and value.__name__ not in found:
                open_ones.append(value.__name__)
    return dict(sorted(found.items()))


# --- texts


def prose(line):
    """A line of a docstring as Markdown, in which only `code` has a meaning."""
    parts = re.split(r"(`[^`]*`)", line)
    return "".join(p if p.startswith("`") else re.sub(r"([<*_\[\]])", r"\\\1", p) for p in parts)


def markdown(text):
    """A docstring as Markdown: examples as code, everything else as it reads."""
    out, example = [], False
    for line in inspect.cleandoc(text).splitlines():
        begins = line.lstrip().startswith(">>>")
        if begins and not example:
            out += ["", "```pycon"]
            example = True
        elif example and not line.strip():
            out.append("```")
            example = False
        code = example or line.startswith("    ")
        out.append(line.strip() if example else line if code else prose(line))
    return "\n".join([*out, "```"] if example else out)


def signature(name, thing, space):
    """How a thing is called, in the words of the op table unless Python adds arguments to it."""
    op = TABLE.get((space, name))
    if op is not None and not isinstance(thing, types.FunctionType):
        return f"({', '.join(generate.parameters(op, typed=False))})"
    try:
        text = str(inspect.signature(thing))
    except (TypeError, ValueError):
        return ""
    text = re.sub(r"<[^<>]* at 0x[0-9a-f]+>", "…", text)
    return re.sub(r"wengert\._core\.|wengert\.|typing\.|collections\.abc\.|'", "", text)


def members(kind, known):
    """The methods and properties of a class, but for those that the page of a base has."""
    for name, value in sorted(inspect.getmembers_static(kind)):
        home = next((c for c in kind.__mro__ if name in vars(c)), object)
        ours = home.__module__.startswith("wengert") and (home is kind or home not in known)
        if name.startswith("_") or not ours or not inspect.getdoc(getattr(kind, name, None)):
            continue
        attribute = isinstance(value, property | types.GetSetDescriptorType)
        if attribute or callable(getattr(kind, name)):
            yield name, getattr(kind, name)


def entry(name, thing, space, known):
    """What the reference says of one name."""
    if not callable(thing):
        kind = type(thing).__name__
        return [f"## {name}", "", f"`{kind}`: `{thing!r}`" if kind != "DType" else "A dtype.", ""]
    text = inspect.getdoc(thing) or ""
    out = [f"## {name}", "", f"```python\n{name}{signature(name, thing, space)}\n```", ""]
    out += [markdown(text), ""]
    # Docstrings that a class has of its base say nothing of it, and errors have no methods.
    if inspect.isclass(thing) and not issubclass(thing, BaseException):
        for word, part in members(thing, known):
            shown = signature(word, part, "") if callable(part) else ""
            out += [f"### {name}.{word}", "", f"```python\n{word}{shown}\n```", ""]
            out += [markdown(inspect.getdoc(part)), ""]
    return out


def reference(name, module, known):
    """The page of a module."""
    space = name.removeprefix("wengert").lstrip(".")
    out = [f"# {name}", "", markdown(module.__doc__ or ""), ""]
    for word, thing in public(module).items():
        out += entry(word, thing, space, known)
    return "\n".join(out)


def example(path):
    """The page of a program: its text, under its name."""
    text = path.read_text()
    return f"# {path.name}\n\n```python\n{text}```\n"


def links(text, page):
    """The links of a document: those to programs lead to their pages, to folders to their lists."""

    def lead(found):
        label, target = found.group(1), found.group(2)
        there = (page.parent / target).resolve()
        if target.endswith(".py") and there.is_relative_to(ROOT / "examples"):
            target = target.removesuffix(".py") + ".md"
        elif there == ROOT / "examples":
            target = f"{target}/index.md"
        return f"{label}({target})"

    return re.sub(r"(\])\(([^)\s:]+)\)", lead, text)


# --- the pages and their order


def title(path):
    """The first heading of a document."""
    return re.search(r"^# (.+)$", path.read_text(), re.M).group(1).replace("`", "")


def ordered():
    """The pages of docs in the order of the table in docs/index.md, then those it does not name."""
    index = (ROOT / "docs" / "index.md").read_text()
    names = re.findall(r"^\| \[[^\]]*\]\(([^)/]+\.md)\)", index, re.M)
    there = sorted(p.name for p in (ROOT / "docs").glob("*.md"))
    return list(dict.fromkeys(["index.md", *names, *there]))


STYLE = """/* Room for lines of code, which are up to 100 characters long. */
.md-grid { max-width: 76rem; }
.md-typeset pre > code { font-size: 0.8em; }
"""


def write(path, text):
    """Write one page."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def pages(tree):
    """Write all pages into a folder; what the navigation shows."""
    shutil.rmtree(tree, ignore_errors=True)
    docs = ordered()
    for name in [*OTHERS, *(f"docs/{n}" for n in docs)]:
        write(tree / name, links((ROOT / name).read_text(), ROOT / name))
    for path in [*ROOT.glob("docs/*.png"), *ROOT.glob("docs/*.svg"), *ROOT.glob("LICENSE-*"),
                 *ROOT.glob("benches/results/*.json")]:  # fmt: skip
        place = tree / path.relative_to(ROOT)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, place)
    write(tree / "style.css", STYLE)
    programs = sorted((ROOT / "examples").rglob("*.py"))
    listed = ["# Examples", ""]
    for path in programs:
        place = path.relative_to(ROOT).with_suffix(".md")
        write(tree / place, example(path))
        listed.append(f"- [{path.relative_to(ROOT / 'examples')}]({place.relative_to('examples')})")
    write(tree / "examples" / "index.md", "\n".join([*listed, ""]))
    found = modules()
    known = {v for m in found.values() for v in public(m).values() if inspect.isclass(v)}
    for name, module in found.items():
        write(tree / "reference" / f"{name}.md", reference(name, module, known))
    return [
        {OTHERS["README.md"]: "README.md"},
        {"Documents": [{title(ROOT / "docs" / n): f"docs/{n}"} for n in docs]},
        {"Reference": [{name: f"reference/{name}.md"} for name in found]},
        {"Examples": "examples/index.md"},
        *({shown: name} for name, shown in OTHERS.items() if name != "README.md"),
    ]


def configuration(nav, html):
    """The configuration of mkdocs, which reads JSON too, as YAML contains it."""
    return {
        "site_name": "wengert",
        "docs_dir": "docs",
        "site_dir": str(html),
        "use_directory_urls": False,
        # Fonts would come from elsewhere.
        "theme": {
            "name": "material",
            "font": False,
            "features": ["content.code.copy", "navigation.indexes", "toc.follow"],
        },
        "markdown_extensions": [
            "tables",
            "pymdownx.superfences",
            {"pymdownx.highlight": {"anchor_linenums": False}},
            {"toc": {"permalink": True, "toc_depth": 2}},
        ],
        "extra_css": ["style.css"],
        "plugins": ["search"],
        "validation": {
            "omitted_files": "ignore",  # pages of single examples
            "absolute_links": "warn",
            "unrecognized_links": "warn",
            "anchors": "warn",
        },
        "nav": nav,
    }


def main():
    """Write the pages and, unless told otherwise, build the site."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--pages", action="store_true", help="write the pages only")
    parser.add_argument("--out", type=Path, default=ROOT / "build", help="where to")
    options = parser.parse_args()
    site, html = options.out / "site", options.out / "html"
    nav = pages(site / "docs")
    config = site / "mkdocs.yml"
    write(config, json.dumps(configuration(nav, html.resolve()), indent=1))
    if options.pages:
        return
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet"]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}  # of other versions, in colours
    done = subprocess.run([*command, "--config-file", str(config)], env=quiet)
    if done.returncode:
        raise SystemExit(done.returncode)
    print(f"wengert {wg.__version__}: {html / 'index.html'}")


if __name__ == "__main__":
    main()
