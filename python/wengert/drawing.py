"""Pictures: Graphviz source as SVG, the tape behind a tensor, HTML where there is no Graphviz."""

from __future__ import annotations

import html
import os
import shutil
import subprocess
from collections.abc import Mapping
from typing import Any

from wengert import _core
from wengert._core import Tensor
from wengert._files import write_text

__all__ = ["Drawing", "Pictured", "draw", "svg_of"]


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

    def to_dot(self, groups: bool = True) -> str:
        """The graph as Graphviz source: a box a node, with its line and cost on hover, an arrow for
        each operand, boxes around the bodies of control flow.

        With `groups`, nodes that a plan runs as one are in a box, if the graph is of sizes and ops
        that can be planned as they stand (`graph.optimize()` makes such).
        """
        return self._core.dot(groups)

    def to_svg(self, path: str | os.PathLike[str] | None = None, groups: bool = True) -> str:
        """The picture as SVG text, written to a file too if a path is given. Needs Graphviz."""
        return _written(svg_of(self.to_dot(groups)), path)

    def _repr_svg_(self) -> str | None:
        return self.to_svg() if has_graphviz() else None

    def _repr_html_(self) -> str | None:
        rows = self._core.rows()
        return None if has_graphviz() else html_list(f"graph of {len(rows)} nodes", rows)


def _written(svg: str, path: str | os.PathLike[str] | None) -> str:
    if path is not None:
        write_text("to_svg", path, svg)
    return svg


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
                label = _quoted(entry["operands"][k])
                lines.append(f"  {kind}{number} -> entry{i} [label={label}];")
        for k, kept in enumerate([*entry["saved"], entry["saves_result"]]):
            if kept is not None:
                what = "result" if k == len(entry["saved"]) else f"operand {k}"
                note = f"label={_quoted(f'saved {what}{chr(10)}{kept}')}, shape=note"
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
    return f'  {name} [label={_quoted(label)}, tooltip={_quoted(tooltip)}, fillcolor="{colour}"];'


def _quoted(text: str) -> str:
    """A text inside quotes of Graphviz, which reads backslashes and entities of HTML."""
    for plain, coded in (("\\", "\\\\"), ('"', '\\"'), ("&", "&amp;"), ("\n", "\\n")):
        text = text.replace(plain, coded)
    return f'"{text}"'
