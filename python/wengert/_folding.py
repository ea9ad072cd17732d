"""Graphs by the modules in whose calls their nodes were traced, for pictures that can be read.

A graph becomes a tree of parts. A part is the call of a module, with the nodes traced in it and the
calls inside. What is traced in a backward stands below a part of its own, by the same modules. What
belongs to no module stands below its line, where a line has many nodes; inputs that no module reads
stand below what holds them. Parts side by side that are equal, node for node, and whose names
differ in a number are folded: the first stands for all.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import Any

__all__ = ["Part", "Tree", "dot_of", "html_of", "quoted"]

Row = dict[str, Any]
"""A node, as the core describes it for pictures."""

MOST = 36
"""The boxes of a picture, where no depth is given: parts are opened until there are so many."""

SHARE = 0.02
"""The share of all operations below which a part stays closed, where no depth is given."""

MANY = 6
"""The nodes from which on a line outside all modules is a part, and the different parts in a part
from which on those of one structure are folded whatever they are called."""

BACKWARD = "backward"

WIDTH = 110
"""The characters of a node's text in HTML."""

_NO_OPS = ("input", "constant", "result")


class Part:
    """The call of a module: its nodes by their numbers, and the parts in it."""

    def __init__(self, name: str, path: tuple[str, ...], line: str | None = None) -> None:
        self.name, self.path = name, path
        self.line = line
        """The text of its line, where it is no module's; empty for inputs."""
        self.rows: list[int] = []
        self.parts: dict[str, Part] = {}
        self.folded: list[tuple[Part, list[Part]]] = []
        """The parts in it: of equal ones the first, with all of them."""
        self.key: Any = None
        """What equal parts have in common."""

    def all_rows(self) -> Iterator[int]:
        """The nodes of the part and of those in it."""
        yield from self.rows
        for part in self.parts.values():
            yield from part.all_rows()

    def part(self, name: str, line: str | None = None) -> Part:
        """The part of this name in it."""
        if name not in self.parts:
            self.parts[name] = Part(name, (*self.path, name), line)
        return self.parts[name]


class Tree:
    """A graph as a tree of parts."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = rows
        self.root = Part("", ())
        outside = Counter(_outside(row) for row in rows if not row["scope"])
        for i, row in enumerate(rows):
            part = self.root
            for name in _place(row):
                part = part.part(name)
            if not row["scope"] and outside[found := _outside(row)] >= MANY:
                is_held = row["op"] == "input"
                held = found[1] if is_held else _short(found[1])
                if held:
                    part = part.part(held, "" if is_held else _text_of(found[1]))
            part.rows.append(i)
        self._fold(self.root)

    @property
    def has_scopes(self) -> bool:
        """Whether a node was traced in the call of a module."""
        return any(row["scope"] for row in self.rows)

    def _alike(self, i: int) -> tuple[str, str, str]:
        row = self.rows[i]
        return row["op"], row["attributes"], row["type"]

    def _fold(self, part: Part) -> None:
        part.rows.sort(key=lambda i: (self.rows[i]["op"] != "input", i))
        for inner in part.parts.values():
            self._fold(inner)
        part.folded = _groups(part, lambda x: (_pattern(x.name), x.key))
        if len(part.folded) > MANY:
            part.folded = _groups(part, lambda x: x.key)
        inside = Counter((_pattern(x.name), x.key) for x in part.parts.values())
        own = Counter(map(self._alike, part.rows))
        part.key = frozenset(own.items()), frozenset(inside.items())

    def way_to(self, name: str) -> Iterator[Part]:
        """The parts from the outermost to the one of a name, as they are drawn: of equal ones the
        first. `ValueError` where there is none."""
        part = self.root
        for piece in name.strip("/").split("/"):
            found = part.parts.get(piece)
            if found is None:
                known = ", ".join(list(part.parts)[:12]) or "no parts"
                where = "/".join(part.path) or "the graph"
                raise ValueError(f"expand: {name!r} is no part: {where} has {known}")
            part = next(first for first, group in part.folded if found in group)
            yield part

    def twins(self, first: Part, other: Part) -> Iterator[tuple[int, int]]:
        """The nodes of a part, and those of an equal one that stand for them."""
        ordered = (sorted(x.rows, key=lambda i: (self._alike(i), i)) for x in (other, first))
        yield from zip(*ordered, strict=True)
        # Equal parts hold equally many of each kind, so that both orders name the same kinds.
        keys = {x.key: n for n, x in enumerate(first.parts.values())}
        inner = (
            sorted(x.parts.values(), key=lambda y: (_pattern(y.name), keys[y.key]))
            for x in (other, first)
        )
        for b, a in zip(*inner, strict=True):
            yield from self.twins(a, b)

    def flops(self, part: Part) -> int:
        """The operations of a part."""
        return sum(self.rows[i]["flops"] for i in part.all_rows())

    def words(self, part: Part) -> str:
        """What a part holds and costs: `27 ops, 1.2 MFLOP, 340 kB read and written`; few ops by
        their names."""
        rows = [self.rows[i] for i in part.all_rows()]
        names = [row["op"] for row in rows if row["op"] not in _NO_OPS]
        ops = len(names)
        inside = sum(row["inside"] for row in rows)
        flops, size = (sum(row[what] for row in rows) for what in ("flops", "bytes"))
        few = 0 < ops <= 3 and part is not self.root
        said = [" · ".join(names) if few else f"{ops:,} ops"] if ops else []
        said += [f"{inside:,} in bodies"] if inside else []
        said += [quantity(flops, "FLOP")] if flops else []
        said += [f"{quantity(size, 'B')} read and written"] if size else []
        return ", ".join(said)

    def inputs(self, part: Part) -> str:
        """The inputs that a part and those in it reach: how many, and their bytes."""
        rows = [self.rows[i] for i in part.all_rows() if self.rows[i]["op"] == "input"]
        size = sum(row["size"] or 0 for row in rows)
        count = len(rows)
        return f"{count} input{'' if count == 1 else 's'} of {quantity(size, 'B')}" if rows else ""


def _place(row: Row) -> tuple[str, ...]:
    return (BACKWARD, *row["scope"]) if row["is_backward"] else row["scope"]


def _outside(row: Row) -> tuple[str, str | None, bool]:
    """What a node that belongs to no module has in common with others: its line, or the container
    of an input, `p` of `p['weight']`."""
    if row["op"] != "input":
        return "line", row["line"], row["is_backward"]
    container = re.match(r"([^.\[]+)[.\[]", row["name"] or "")
    return "input", container and container[1], False


def _groups(part: Part, key: Any) -> list[tuple[Part, list[Part]]]:
    groups: dict[Any, list[Part]] = {}
    for x in part.parts.values():
        groups.setdefault(key(x), []).append(x)
    return [(group[0], group) for group in groups.values()]


def _pattern(name: str) -> str:
    """The name without the numbers in it: `blocks.#` for `blocks.0`, but `norm1`."""
    return re.sub(r"(?<![^.])\d+(?![^.])", "#", name)


def label_of(group: Sequence[Part]) -> str:
    """What equal parts are called together: `blocks.0–3 ×4`."""
    names = [part.name for part in group]
    if len(names) == 1:
        return f"{names[0]}: {group[0].line}" if group[0].line else names[0]
    pieces = [re.split(r"(?<![^.])(\d+)(?![^.])", name) for name in names]
    alike = len({_pattern(name) for name in names}) == 1
    differ = [i for i, which in enumerate(zip(*pieces, strict=True)) if len(set(which)) > 1] \
        if alike else []  # fmt: skip
    if len(differ) == 1:
        i = differ[0]
        numbers = sorted(int(p[i]) for p in pieces)
        through = numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        text = f"{numbers[0]}–{numbers[-1]}" if through else ",".join(map(str, numbers))
        return f"{''.join(pieces[0][:i])}{text}{''.join(pieces[0][i + 1 :])} ×{len(names)}"
    return f"{names[0]} and others like it ×{len(names)}"


def quantity(n: int, unit: str) -> str:
    """`1.2 MB` for 1,234,567 and `B`."""
    for prefix, scale in (("T", 10**12), ("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if n >= scale:
            return f"{n / scale:.1f} {prefix}{unit}"
    return f"{n} {unit}"


def _short(line: str | None) -> str:
    return "an unknown line" if line is None else re.split(r"[\\/]", line)[-1]


def _text_of(line: str | None) -> str:
    """The text of a line `file.py:12`."""
    import linecache

    file, _, number = (line or "").rpartition(":")
    return linecache.getline(file, int(number)).strip() if file and number.isdigit() else ""


# As a tree in HTML.


def html_of(tree: Tree, title: str) -> str:
    """The tree as HTML, each part to be unfolded; `title` is said above."""
    style = "font-family:monospace;font-size:12px;line-height:1.5"
    head = f"<b>{escape(title)}</b>: {escape(tree.words(tree.root))}"
    reached = tree.inputs(tree.root)
    head += f"; {escape(reached)}" if reached else ""
    return f'<div style="{style}">{head}{"".join(_html_inside(tree, tree.root))}</div>'


def _html_inside(tree: Tree, part: Part) -> Iterator[str]:
    """The nodes of a part and the parts in it, in the order in which they begin."""
    pieces: list[tuple[int, str]] = []
    for rows in _runs(tree, part.rows):
        pieces.append((rows[0], _html_row(tree, rows)))
    for first, group in part.folded:
        pieces.append((min(first.all_rows()), _html_part(tree, first, group)))
    pieces.sort(key=lambda piece: piece[0])
    yield from (text for _, text in pieces)


def _runs(tree: Tree, rows: Iterable[int]) -> list[list[int]]:
    """Nodes side by side of one kind, as one."""
    runs: list[list[int]] = []
    for i in sorted(rows):
        if runs and tree._alike(runs[-1][0]) == tree._alike(i) and not tree.rows[i]["name"]:
            runs[-1].append(i)
        else:
            runs.append([i])
    return runs


def _html_row(tree: Tree, rows: Sequence[int]) -> str:
    row = tree.rows[rows[0]]
    text = f"{row['name']}: {row['type']}" if row["name"] and row["op"] == "input" else row["text"]
    text = text if len(text) <= WIDTH else text[: WIDTH - 1] + "…"
    text += f" ×{len(rows)}" if len(rows) > 1 else ""
    text += "  (result)" if row["is_result"] else ""
    return (
        f'<div title="{escape(row["tooltip"], quote=True)}" style="margin-left:1.2em;'
        f'border-left:0.5em solid {row["colour"]};padding-left:0.4em">{escape(text)}</div>'
    )


def _html_part(tree: Tree, first: Part, group: Sequence[Part]) -> str:
    each = "each " if len(group) > 1 else ""
    said = ", ".join(filter(None, (tree.words(first), tree.inputs(first))))
    names = "\n".join("/".join(part.path) for part in group)
    level = len(first.path) - (first.path[0] == BACKWARD)
    shown = " open" if level < 2 and first.parts else ""
    return (
        f'<details{shown} style="margin-left:1.2em"><summary title="{escape(names, quote=True)}">'
        f"<b>{escape(label_of(group))}</b> <span style=\"opacity:0.7\">{escape(each + said)}</span>"
        f"</summary>{''.join(_html_inside(tree, first))}</details>"
    )


# As Graphviz source.


def dot_of(tree: Tree, depth: int | None = None, expand: Iterable[str] = ()) -> str:
    """The tree as Graphviz source: an opened part is a box around what is in it, a closed one a box
    that says what it holds. `depth` levels are open and those in `expand`; without a depth so many
    modules that the picture has about `MOST` boxes."""
    return _Dot(tree, depth, expand).text()


class _Dot:
    def __init__(self, tree: Tree, depth: int | None, expand: Iterable[str]) -> None:
        self.tree = tree
        self.opened = self._opened(depth, expand)
        self.box: dict[int, str] = {}
        """The box of each node."""
        self.calls: dict[int, dict[int, int]] = {}
        """Which of equal parts that are open each node is in, by the number of the first."""
        self.lines: list[str] = []
        self.numbers: dict[int, int] = {}

    def _opened(self, depth: int | None, expand: Iterable[str]) -> set[int]:
        """The parts that are open, by their `id`."""
        root, asked = self.tree.root, set()
        for name in expand:
            asked |= {id(part) for part in self.tree.way_to(name)}
        opened = {id(root)}
        boxes = len(root.rows) + len(root.folded)
        least = SHARE * self.tree.flops(root)
        level = list(root.folded)
        while level:
            below: list[tuple[Part, list[Part]]] = []
            for part, group in level:
                more = len(part.rows) + len(part.folded) - 1
                if depth is None:
                    fits = boxes + more <= MOST and part.line is None
                    fits = fits and self.tree.flops(part) * len(group) >= least
                else:
                    fits = len(part.path) <= depth
                if fits or id(part) in asked:
                    opened.add(id(part))
                    boxes += more
                    below += part.folded
            level = below
        return opened

    def text(self) -> str:
        self._part(self.tree.root, [self.tree.root], 2)
        lines = [
            "digraph graph_ {",
            '  graph [fontname="Helvetica", fontsize=10, color="#888888", newrank=true];',
            '  node [fontname="Helvetica", fontsize=10, shape=box, style="filled,rounded",'
            ' color="#666666", margin="0.1,0.05", height=0.3];',
            '  edge [fontname="Helvetica", fontsize=8, color="#666666", arrowsize=0.6];',
            *self.lines,
            *self._edges(),
            "}",
        ]
        return "\n".join(lines) + "\n"

    def _part(self, part: Part, group: Sequence[Part], indent: int) -> None:
        space = " " * indent
        number = self.numbers.setdefault(id(part), len(self.numbers))
        if id(part) not in self.opened:
            name = f"p{number}"
            for one in group:
                self.box.update(dict.fromkeys(one.all_rows(), name))
            self.lines.append(f"{space}{name} {self._closed(part, group)};")
            return
        inner = indent
        if part is not self.tree.root:
            label = quoted(label_of(group))
            self.lines.append(
                f'{space}subgraph "cluster_p{number}" {{ label={label}; tooltip={label};'
                ' style="rounded";'
            )
            inner += 2
        for i in part.rows:
            self.box[i] = f"n{i}"
            self.lines.append(f"{' ' * inner}n{i} {self._node(i)};")
        for first, equal in part.folded:
            self._part(first, equal, inner)
        for k, one in enumerate(group):
            for i, stands in self.tree.twins(part, one) if k else ():
                self.box[i] = self.box[stands]
            for i in one.all_rows() if len(group) > 1 else ():
                self.calls.setdefault(i, {})[number] = k
        if part is not self.tree.root:
            self.lines.append(f"{space}}}")

    def _closed(self, part: Part, group: Sequence[Part]) -> str:
        said = [label_of(group)]
        each = "each " if len(group) > 1 else ""
        said += filter(None, [*self.tree.words(part).split(", ", 1), self.tree.inputs(part)])
        said[1] = each + said[1]
        ops = Counter(self.tree.rows[i]["op"] for i in part.all_rows())
        listed = ", ".join(f"{op} ×{n}" if n > 1 else op for op, n in ops.most_common(12))
        where = "\n".join("/".join(one.path) for one in group[:12])
        tooltip = f"{where}\n{listed}"
        return (
            f"[label={quoted(chr(10).join(said))}, tooltip={quoted(tooltip)},"
            ' fillcolor="#eef0ff", penwidth=1.5]'
        )

    def _node(self, i: int) -> str:
        row = self.tree.rows[i]
        lines = [row["op"] if row["name"] is None else f"{row['op']} {row['name']}"]
        lines += [text for text in (row["attributes"][:48], row["type"]) if text]
        lines += ["result"] if row["is_result"] else []
        border = ', penwidth=2, color="#222222"' if row["is_result"] else ""
        return (
            f"[label={quoted(chr(10).join(lines))}, tooltip={quoted(row['tooltip'])},"
            f' fillcolor="{row["colour"]}"{border}]'
        )

    @staticmethod
    def _is_kept(given: Row, reader: Row) -> bool:
        """Whether a value is read where most that was computed beside it is not."""
        if given["op"] == "input":
            there, here = given["scope"], reader["scope"]
            return bool(there) and (reader["is_backward"] or here[: len(there)] != there)
        return reader["is_backward"] and not given["is_backward"]

    def _edges(self) -> Iterator[str]:
        """Arrows between boxes: one for all values that go the same way. Pale ones are of values
        kept for backward and of parameters that are read again; dashed ones go from one of equal
        parts to the next."""
        found: dict[tuple[str, str, bool, bool], dict[int, None]] = {}
        for i, row in enumerate(self.tree.rows):
            for j in row["operands"]:
                ways = self.box[j], self.box[i]
                into, out = self.calls.get(i, {}), self.calls.get(j, {})
                again = any(out.get(part, k) != k for part, k in into.items())
                if ways[0] != ways[1]:
                    kept = self._is_kept(self.tree.rows[j], row)
                    found.setdefault((*ways, again, kept), {})[j] = None
        for (a, b, again, kept), values in found.items():
            # Of equal parts the first speaks.
            own = [j for j in values if not any(self.calls.get(j, {}).values())] or [*values]
            label = self.tree.rows[own[0]]["type"] if len(own) == 1 else f"{len(own)} values"
            said = f"tooltip={quoted(label)}"
            said += ', color="#d5d5e5"' if kept else f", label={quoted(label)}"
            said += ", style=dashed, constraint=false" if again else ""
            yield f"  {a} -> {b} [{said}];"


def quoted(text: str) -> str:
    """A text inside quotes of Graphviz, which reads backslashes and entities of HTML."""
    for plain, coded in (("\\", "\\\\"), ('"', '\\"'), ("&", "&amp;"), ("\n", "\\n")):
        text = text.replace(plain, coded)
    return f'"{text}"'
