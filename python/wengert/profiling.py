"""Where time goes (`profile`), and where values stop being finite (`check_finite`)."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, Self

from wengert import _core
from wengert._files import write_text

__all__ = ["Profile", "check_finite", "profile"]


latest: Profile | None = None
"""The profile that was taken last, for `CompiledFunction.explain`."""


class _Row:
    """The events of one op or line, added up."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.count = self.total = self.own = self.bytes = self.flops = 0
        self.device: int | None = None
        self.runs = 0


class Profile:
    """What ran while a `profile()` was open, and how long it took.

    Ops of eager code, steps of plans and calls of compiled functions are timed on all threads.
    What runs inside something else (the ops of a composite, the steps of a call) is counted in the
    `total` of both, and in the time `own` of the inner one only.

    These are times of the caller, who on a GPU only records what is to be done. Where its adapter
    has a clock, events of the work `device` have the device's own times, of ops and of steps.
    """

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        #: events that found no room (a million are kept)
        self.dropped = 0
        #: devices that computed, and have no clock: only the caller's times are known
        self.untimed: list[str] = []
        self._mark: int | None = None

    def __enter__(self) -> Self:
        if self._mark is not None:
            raise RuntimeError("profile: it is open already")
        self._mark = _core._begin_timing()
        return self

    def __exit__(self, *_: object) -> None:
        if self._mark is not None:
            global latest
            mark, self._mark = self._mark, None
            self.events, self.dropped, self.untimed = _core._end_timing(mark)
            latest = self

    def rows(self, by: Literal["op", "line"] = "op") -> list[dict[str, Any]]:
        """One dictionary for each op (or line): `key`, `count`, `total` and `own` seconds of the
        caller, `device` seconds of a GPU (None where none is known), `bytes`, `flops`; what took
        longest first: on a GPU, or else on its own."""
        if by not in ("op", "line"):
            raise ValueError(f"profile: by must be 'op' or 'line': got {by!r}")
        rows: dict[str, _Row] = {}
        flops: dict[str, int] = {}
        keys = [event["name"] if by == "op" else (event["line"] or "?") for event in self.events]
        for event, key, own, outermost in _own_times(self.events, keys):
            row = rows.setdefault(key, _Row(key))
            if event["work"] == "device":
                row.device = (row.device or 0) + event["duration"]
                row.runs += 1
                if not row.flops:
                    flops[key] = flops.get(key, 0) + event["flops"]
                continue
            if outermost:
                row.count += 1
                row.total += event["duration"]
            row.own += own
            row.bytes += event["bytes"]
            row.flops += event["flops"]
        for key, row in rows.items():
            row.count, row.flops = row.count or row.runs, row.flops or flops.get(key, 0)
        ordered = sorted(rows.values(), key=lambda row: (-(row.device or 0), -row.own, row.key))
        return [
            {
                "key": row.key,
                "count": row.count,
                "total": row.total / 1e9,
                "own": row.own / 1e9,
                "device": None if row.device is None else row.device / 1e9,
                "bytes": row.bytes,
                "flops": row.flops,
            }
            for row in ordered
        ]

    def step_times(self) -> dict[tuple[str, str | None], float]:
        """The mean seconds of the steps of plans, by name and line."""
        found: dict[tuple[str, str | None], list[int]] = {}
        for event in self.events:
            if event["work"] == "step":
                found.setdefault((event["name"], event["line"]), []).append(event["duration"])
        return {key: sum(times) / len(times) / 1e9 for key, times in found.items()}

    def table(self, by: Literal["op", "line"] = "op") -> str:
        """A table by op or by line, what took longest first. `own` and `total` are the caller's
        times; the column `device`, of which `%` are parts, is there if a GPU told its own.

        Of a group of more than five ops it names the first three; `rows` names all.
        """
        head, body, notes = self._cells(by)
        return "\n".join([*_columns([head, *body]), *notes])

    def _cells(
        self, by: Literal["op", "line"]
    ) -> tuple[tuple[str, ...], list[tuple[str, ...]], list[str]]:
        """The table's head, its rows, and what is to be said below."""
        rows = self.rows(by)
        timed = any(row["device"] is not None for row in rows)

        def time(row: dict[str, Any]) -> float:
            return (row["device"] or 0.0) if timed else row["own"]

        whole = sum(map(time, rows)) or 1.0
        device = ("device",) if timed else ()
        head = (by, "count", *device, "own", "%", "total", "bytes", "GFLOP/s")
        body = [
            (
                _shortened(row["key"]) if by == "op" else row["key"],
                str(row["count"]),
                *(("" if row["device"] is None else _seconds(row["device"]),) if timed else ()),
                _seconds(row["own"]),
                f"{100 * time(row) / whole:.1f}",
                _seconds(row["total"]),
                _size(row["bytes"]) if row["bytes"] else "",
                f"{row['flops'] / seconds / 1e9:.2f}" if row["flops"] and seconds else "",
            )
            for row in rows
            for seconds in [row["own"] if row["device"] is None else row["device"]]
        ]
        notes = []
        if self.dropped:
            notes.append(f"({self.dropped} more events found no room)")
        if self.untimed:
            names = ", ".join(self.untimed)
            notes.append(f"(no times of {names}: its adapter has no clock; times are the caller's)")
        return head, body, notes

    def _repr_html_(self) -> str:
        """What notebooks show: the table by op, that by line to be unfolded."""
        from html import escape

        from wengert._explanation import html_table

        tables: list[str] = []
        notes: list[str] = []
        kinds: tuple[Literal["op", "line"], ...] = ("op", "line")
        for by in kinds:
            head, body, notes = self._cells(by)
            tables.append(html_table(head, body, range(1, len(head))))
        below = "".join(f"<div>{escape(note)}</div>" for note in notes)
        folded = f"<details><summary>by line</summary>{tables[1]}</details>"
        calls = "".join(f"<div>{escape(line)}</div>" for line in self._calls())
        return f'<div style="font-size:12px">{tables[0]}{calls}{folded}{below}</div>'

    def _calls(self) -> Iterator[str]:
        """What the compiled functions that ran consist of, in ops as they were traced."""
        from wengert._explanation import calls_of
        from wengert.capture import functions

        names = {event["name"] for event in self.events if event["work"] == "call"}
        for function in sorted(functions, key=lambda f: f.__name__):
            if function.__name__ in names and function._traces:
                yield f"{function.__name__}: {calls_of(function._traces[-1].executable)}"

    def __str__(self) -> str:
        return self.table()

    def __repr__(self) -> str:
        return f"<Profile of {len(self.events)} events>"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a file that chrome://tracing and Perfetto open (the Chrome trace format)."""
        events = [
            {
                "ph": "X",
                "cat": event["work"],
                "name": event["name"],
                "ts": event["start"] / 1e3,
                "dur": event["duration"] / 1e3,
                "pid": os.getpid(),
                "tid": event["thread"],
                "args": {
                    "line": event["line"],
                    "result": event["detail"],
                    "bytes": event["bytes"],
                    "flops": event["flops"],
                },
            }
            for event in self.events
        ]
        text = json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})
        write_text("profile", path, text)


def _own_times(
    events: list[dict[str, Any]], keys: list[str]
) -> Iterator[tuple[dict[str, Any], str, int, bool]]:
    """Each event with its key, its time less that of the events inside it, and whether it lies in
    no other of its key (the op `matmul` lies in the composite of that name: they count once).
    """
    pairs = sorted(
        zip(events, keys, strict=True),
        key=lambda pair: (pair[0]["thread"], pair[0]["start"], -pair[0]["duration"]),
    )
    own = [event["duration"] for event, _ in pairs]
    outermost: list[bool] = []
    around: list[int] = []
    for i, (event, key) in enumerate(pairs):
        while around and not _inside(event, pairs[around[-1]][0]):
            around.pop()
        if around:
            own[around[-1]] -= event["duration"]
        outermost.append(all(pairs[j][1] != key for j in around))
        around.append(i)
    for (event, key), time, first in zip(pairs, own, outermost, strict=True):
        yield event, key, time, first


def _inside(inner: dict[str, Any], outer: dict[str, Any]) -> bool:
    ends = [event["start"] + event["duration"] for event in (inner, outer)]
    return inner["thread"] == outer["thread"] and ends[0] <= ends[1]


def _shortened(key: str) -> str:
    """The name of a group of many ops: the first few, and how many there are."""
    ops = key.split(", ")
    return f"{', '.join(ops[:3])}, … ({len(ops)} ops)" if len(ops) > 5 else key


def _seconds(x: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if x >= scale:
            return f"{x / scale:.2f} {unit}"
    return f"{x / 1e-6:.1f} us"


def _size(n: int) -> str:
    for unit, scale in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if n >= scale:
            return f"{n / scale:.1f} {unit}"
    return f"{n} B"


def _columns(rows: list[tuple[str, ...]]) -> Iterator[str]:
    """Cells in columns: the first one to the left, numbers to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        yield "  ".join(cells).rstrip()


def profile() -> Profile:
    """Times what runs inside a `with` block: eager ops, steps of plans, compiled calls.

    >>> import wengert as wg
    >>> with wg.profile() as p:
    ...     y = (wg.ones((100, 100)) @ wg.ones((100, 100))).exp()
    >>> sorted(row["key"] for row in p.rows() if row["key"] in ("exp", "matmul"))
    ['exp', 'matmul']

    `str(p)` is a table by op, `p.table(by="line")` one by line, `p.save("trace.json")` a file for
    chrome://tracing. Blocks may be nested. Nothing is slower while no block is open.
    """
    return Profile()


@contextmanager
def check_finite() -> Iterator[None]:
    """Refuses, inside a `with` block, the first op that makes a NaN or infinity of finite values.

    >>> import wengert as wg
    >>> with wg.check_finite():
    ...     wg.tensor([0.5, 2.0]).log().sum().item()
    0.0
    >>> with wg.check_finite():
    ...     wg.tensor([-1.0, 2.0]).log()
    Traceback (most recent call last):
        ...
    wengert.ArgumentError: log: nan made of finite operands: x is float32 (2,) from -1.0 to 2.0
      at ...

    The error names the op, its line, and the types and ranges of its operands. It holds for what
    this thread runs: eager code, backward passes, and compiled functions and sessions, which run
    op by op meanwhile.
    """
    _core._begin_checking()
    try:
        yield
    finally:
        _core._end_checking()
