"""Pictures: Graphviz source as SVG, graphs by their modules, the tape behind a tensor, HTML."""

from __future__ import annotations

import html
import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from wengert import _core, _touched
from wengert._core import Tensor
from wengert._files import write_text
from wengert._folding import Tree, dot_of, html_of, quoted

__all__ = ["Drawing", "Pictured", "draw", "named_scope", "svg_of"]

LARGE = 300
"""The nodes above which a graph is drawn by modules or lines, even if no module was called."""


def svg_of(dot: str) -> str:
    """The SVG text of Graphviz source, by the program `dot`."""
    program = shutil.which("dot")
    if program is None:
        raise RuntimeError(
            "to_svg: the program 'dot' of Graphviz is not installed; install Graphviz"
            " (apt install graphviz, brew install graphviz), or use to_dot() and draw it elsewhere"
        )
    for source in (dot, _without_boxes(dot)):
        done = subprocess.run(
            [program, "-Tsvg"], input=source.encode(), capture_output=True, check=False
        )
        if done.returncode == 0:
            return done.stdout.decode()
    raise RuntimeError(f"to_svg: dot failed with status {done.returncode}: {_first(done.stderr)}")


def _without_boxes(dot: str) -> str:
    """The source without boxes around nodes, which not every layout can have; it says so."""
    word = "boxes around nodes are left out: Graphviz cannot lay them out"
    head, brace, rest = dot.partition("{")
    return f'{head}{brace} label="{word}"; labelloc=t;{rest}'.replace(
        'subgraph "cluster_', 'subgraph "part_'
    )


def _first(message: bytes) -> str:
    """The first line of what a tool said, and how many follow."""
    lines = message.decode(errors="replace").strip().splitlines() or ["it said nothing"]
    more = f" ({len(lines) - 1} more lines)" if len(lines) > 1 else ""
    return lines[0][:200] + more


def has_graphviz() -> bool:
    """Whether the program `dot` is installed."""
    return shutil.which("dot") is not None


def html_list(title: str, rows: list[tuple[str, str, str]]) -> str:
    """A list in HTML: lines of text, each with a colour and a title that shows on hover."""
    items = "".join(
        f'<div title="{html.escape(tooltip, quote=True)}" style="background:{colour};'
        f'border:1px solid #999;border-radius:4px;padding:1px 6px;margin:1px 0;color:#000">'
        f"{html.escape(text)}</div>"
        for text, tooltip, colour in rows
    )
    return (
        '<div style="font-family:monospace;font-size:12px;display:inline-block">'
        f"<b>{html.escape(title)}</b>{items}</div>"
    )


class Pictured:
    """Pictures of a graph: Graphviz source, SVG, what notebooks show."""

    _core: Any

    def to_dot(
        self,
        groups: bool | None = None,
        *,
        depth: int | None = None,
        expand: str | Iterable[str] = (),
    ) -> str:
        """The graph as Graphviz source, in which a box has its line and cost on hover.

        A graph in which modules were called, and any of more than 300 nodes, is drawn by modules: a
        box around what was traced in the call of each, the backward of them in one of its own, and
        equal ones drawn once (`blocks.0–3 ×4`). `depth` says how many levels are open, `expand`
        which modules are besides, by their scopes (`"GPT/blocks.0"`); without a depth so many are
        open that the picture can be read. A closed one says how many ops it holds and what they
        cost.

        With `groups`, or where there are no modules, every node is drawn, an arrow for each
        operand, boxes around the bodies of control flow, and around nodes that a plan runs as one,
        if the graph is of sizes and ops that can be planned as they stand (`graph.optimize()` makes
        such). `groups=False` leaves the boxes of plans out.

        `ValueError` for a name in `expand` that the graph does not have, a depth that is negative,
        and `groups` beside `depth` or `expand`.
        """
        names = [expand] if isinstance(expand, str) else list(expand)
        asked = depth is not None or bool(names)
        if groups is not None:
            if asked:
                raise ValueError("to_dot: depth and expand open modules, groups shows all nodes")
            return self._core.dot(groups)
        if depth is not None and depth < 0:
            raise ValueError(f"to_dot: depth must not be negative: got {depth}")
        tree = Tree(self._core.rows())
        if asked or tree.has_scopes or len(tree.rows) > LARGE:
            return dot_of(tree, depth, names)
        return self._core.dot(True)

    def to_svg(
        self,
        path: str | os.PathLike[str] | None = None,
        groups: bool | None = None,
        *,
        depth: int | None = None,
        expand: str | Iterable[str] = (),
    ) -> str:
        """The picture of `to_dot` as SVG text, written to a file too if a path is given. Needs
        Graphviz."""
        return _written(svg_of(self.to_dot(groups, depth=depth, expand=expand)), path)

    def to_html(self, path: str | os.PathLike[str] | None = None) -> str:
        """The graph as a tree in HTML, written to a file too if a path is given: modules to be
        unfolded, with the ops and inputs in each and their costs, equal ones once. Lines and costs
        of single nodes show on hover."""
        tree = Tree(self._core.rows())
        return _written(html_of(tree, f"graph of {len(tree.rows)} nodes"), path)

    def _repr_svg_(self) -> str | None:
        return self.to_svg() if has_graphviz() else None

    def _repr_html_(self) -> str:
        """The tree; above it the picture, where Graphviz is installed."""
        svg = self._repr_svg_() or ""
        return svg[max(svg.find("<svg"), 0) :] + self.to_html()


def _written(svg: str, path: str | os.PathLike[str] | None) -> str:
    if path is not None:
        write_text("to_svg", path, svg)
    return svg


@contextmanager
def named_scope(name: str) -> Iterator[None]:
    """Put what is traced in a block under a name, as the call of a module does: for pictures,
    `explain()` and `node.scope`. `"a/b"` is one inside another. Nothing else changes.

    `TypeError` for what is no string, `ValueError` for an empty name.

    >>> @wg.compile
    ... def f(x):
    ...     with wg.named_scope("scale"):
    ...         return x * 2.0
    >>> [node.scope for node in f.graph(wg.ones(2)).nodes]
    [None, 'scale']
    """
    if not isinstance(name, str):
        raise TypeError(f"named_scope: the name must be a string: got {type(name).__name__}")
    names = name.split("/")
    if not all(names):
        raise ValueError(f"named_scope: a name must not be empty: got {name!r}")
    with ExitStack() as scopes:
        for one in names:
            scopes.enter_context(_touched.inside(one))
        yield


_LEAF, _OP, _ROOT = "#cfe3f7", "#f5f5f5", "#d5ebd5"


class Drawing:
    """The picture of a tape: `dot` is its Graphviz source, notebooks show it."""

    def __init__(self, dot: str, rows: list[tuple[str, str, str]]) -> None:
        self.dot = dot
        self._rows = rows

    def to_svg(self, path: str | os.PathLike[str] | None = None) -> str:
        """The picture as SVG text, written to a file too if a path is given. Needs Graphviz."""
        return _written(svg_of(self.dot), path)

    def _repr_svg_(self) -> str | None:
        return self.to_svg() if has_graphviz() else None

    def _repr_html_(self) -> str | None:
        return None if has_graphviz() else html_list("tape", self._rows)

    def __repr__(self) -> str:
        return f"<Drawing of {len(self._rows)} nodes>"


def draw(x: Tensor, params: Any = None) -> Drawing:
    """The tape behind a tensor, as a picture: what backward would walk.

    `params` names leaves: a dictionary of tensors, or a module. Leaves are blue, with the name
    where there is one, their type, and the accumulation of their gradient; each op has its line
    and what it keeps for backward (until that freed it) as dashed notes; arrows go the way values
    went.

    >>> import wengert as wg
    >>> w = wg.ones((3, 2), requires_grad=True)
    >>> picture = wg.draw((wg.ones((4, 3)) @ w).exp().sum(), params={"w": w})
    >>> "matmul" in picture.dot and "float32 (3, 2)" in picture.dot
    True
    """
    tape = _core._tape(x)
    names = _names(params)
    lines = [
        "digraph tape {",
        '  node [fontname="Helvetica", fontsize=10, shape=box, style="filled,rounded",'
        ' color="#666666", margin="0.1,0.05", height=0.3];',
        '  edge [fontname="Helvetica", fontsize=8, color="#666666", arrowsize=0.6];',
    ]
    rows: list[tuple[str, str, str]] = []
    for i, (address, ty) in enumerate(tape["leaves"]):
        label = f"{names[address]}\n{ty}" if address in names else ty
        tooltip = f"leaf: {label}\ngradients are added up in .grad"
        lines.append(_box(f"leaf{i}", f"{label}\naccumulate", tooltip, _LEAF))
        rows.append((f"{label.replace(chr(10), ': ')} (leaf)", tooltip, _LEAF))
    for i, entry in enumerate(tape["entries"]):
        tooltip = _describe(entry)
        lines.append(_box(f"entry{i}", f"{entry['name']}\n{entry['result']}", tooltip, _OP))
        rows.append((f"{entry['name']} -> {entry['result']}", tooltip, _OP))
        for k, link in enumerate(entry["links"]):
            if link is not None:
                kind, number = link
                label = quoted(entry["operands"][k])
                lines.append(f"  {kind}{number} -> entry{i} [label={label}];")
        for k, kept in enumerate([*entry["saved"], entry["saves_result"]]):
            if kept is not None:
                what = "result" if k == len(entry["saved"]) else f"operand {k}"
                note = f"label={quoted(f'saved {what}{chr(10)}{kept}')}, shape=note"
                lines.append(f'  kept{i}_{k} [{note}, style=filled, fillcolor="#fbe0c8"];')
                lines.append(f"  kept{i}_{k} -> entry{i} [style=dashed, dir=none];")
    shape = f"{x.dtype} {tuple(x.shape)}"
    lines.append(_box("root", f"result\n{shape}", shape, _ROOT))
    rows.append((f"result: {shape}", shape, _ROOT))
    if tape["root"] is not None:
        kind, number = tape["root"]
        lines.append(f"  {kind}{number} -> root;")
    lines.append("}")
    return Drawing("\n".join(lines) + "\n", rows)


def _names(params: Any) -> dict[int, str]:
    """The names of leaves, by their addresses."""
    if params is None:
        return {}
    if isinstance(params, Mapping):
        pairs = params.items()
    elif hasattr(params, "named_parameters"):
        pairs = params.named_parameters()
    else:
        got = type(params).__name__
        raise TypeError(f"draw: params must be a dictionary of tensors or a module: got {got}")
    found = {}
    for name, tensor in pairs:
        address = _core._leaf_address(tensor)
        if address is not None:
            found[address] = str(name)
    return found


def _describe(entry: dict[str, Any]) -> str:
    lines = [f"{entry['name']}({', '.join(entry['operands'])}) -> {entry['result']}"]
    if entry["line"]:
        lines.append(entry["line"])
    if entry["freed"]:
        lines.append("what it kept was freed by a backward")
    return "\n".join(lines)


def _box(name: str, label: str, tooltip: str, colour: str) -> str:
    return f'  {name} [label={quoted(label)}, tooltip={quoted(tooltip)}, fillcolor="{colour}"];'
