"""What a compiled function captured: its traces, and `explain`'s page of text about them."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple

from wengert._changes import Changes
from wengert._core import DType
from wengert._guards import Guard, Names, called

if TYPE_CHECKING:
    from wengert.capture import CompiledFunction

__all__ = ["Explanation", "Trace"]


class Trace(NamedTuple):
    """One trace of a function, for `explain`."""

    reason: str
    """Why it was made."""
    signature: tuple[tuple[str, str], ...]
    """The arguments by their paths, and what is known of them."""
    recording: bool
    """Whether gradients were being recorded."""
    narrow: DType | None
    """The dtype of mixed precision, where it was on."""
    executable: Any
    """What runs."""
    names: Names
    """The variables outside that are looked at before each call, with their values."""
    types: tuple[tuple[tuple[int, ...], DType], ...]
    """Shapes and dtypes of the tensors among the arguments."""
    changes: Changes
    """What each call assigns besides tensors it updates."""
    guard: Guard
    """The modules and optimizers that are looked at when an attribute of some was assigned."""
    arguments: tuple[str, ...]
    """The paths of the tensors among the arguments."""


class Explanation:
    """What a compiled function captured, as text."""

    def __init__(self, function: CompiledFunction, traces: list[Trace], plan: Any) -> None:
        self.name, self.function = function.__name__, function.__wrapped__
        self.traces, self.plan = tuple(traces), plan

    def __str__(self) -> str:
        count = len(self.traces)
        lines = [f"{self.name}: {count} trace{'' if count == 1 else 's'}"]
        for i, trace in enumerate(self.traces):
            lines.append(f"trace {i}: {trace.reason}")
            lines += self._of(trace)
        if self.plan is not None:
            lines += _plan_lines(self.plan)
        return "\n".join(lines)

    def _of(self, trace: Trace) -> Iterator[str]:
        known = ", ".join(f"{path}: {what}" for path, what in trace.signature)
        mode = "gradients recorded" if trace.recording else "no gradients"
        mode += f"; autocast to {trace.narrow}" if trace.narrow is not None else ""
        yield f"  signature: {known or 'no arguments'}; {mode}"
        arguments, reached = trace.executable.inputs()
        yield (
            f"  inputs: {arguments} arguments, {reached} tensors reached by the function itself; "
            f"{trace.executable.updates()} tensors are updated"
        )
        constants, size = trace.executable.constants()
        if constants:
            yield f"  constants: {constants} tensors reached by the function itself, {size:,} bytes"
        if trace.names:
            names = dict.fromkeys(called(self.function, *name[:2]) for name in trace.names)
            yield f"  looked at before each call: {', '.join(names)}"
        for constraint in trace.executable.constraints():
            yield f"  relies on {constraint}"
        for p in trace.executable.passes():
            yield f"  pass {p.name}: {p.nodes_before} nodes became {p.nodes_after}"
        flops, size = trace.executable.cost()
        yield f"  {flops:,} flops, {size:,} bytes read and written node by node"

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        """What notebooks show: each trace to be unfolded, the plan as a table of its steps."""
        count = len(self.traces)
        parts = [f"<b>{escape(self.name)}</b>: {count} trace{'' if count == 1 else 's'}"]
        for i, trace in enumerate(self.traces):
            said = [*self._of(trace), f"calls as traced: {calls_of(trace.executable)}"]
            lines = "".join(f"<li>{escape(line.strip())}</li>" for line in said)
            head = f"trace {i}: {escape(trace.reason)}"
            shown = " open" if i == count - 1 else ""
            parts.append(f"<details{shown}><summary>{head}</summary><ul>{lines}</ul></details>")
        if self.plan is not None:
            before, rows, rest = _plan_rows(self.plan)
            parts.append(f"<div>{'<br>'.join(map(escape, before))}</div>")
            parts.append(html_table(("step", "time", "ends the group", "module", "line"), rows))
            parts.append(f"<div>{'<br>'.join(map(escape, rest))}</div>")
        return f'<div style="font-size:12px">{"".join(parts)}</div>'


def calls_of(executable: Any) -> str:
    """The ops of a trace before the passes, where a call of the op table is one: with counts."""
    counts = Counter(node.op for node in executable.definition(False).nodes())
    del counts["input"]
    return ", ".join(name if n == 1 else f"{name} × {n}" for name, n in counts.items())


def html_table(
    head: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[int] = ()
) -> str:
    """A table in HTML, its columns of `numbers` to the right."""

    def row(cells: Sequence[str], tag: str) -> str:
        sides = ["right" if i in numbers else "left" for i in range(len(cells))]
        return "".join(
            f'<{tag} style="text-align:{side}">{escape(text)}</{tag}>'
            for side, text in zip(sides, cells, strict=True)
        )

    body = "".join(f"<tr>{row(cells, 'td')}</tr>" for cells in rows)
    return f"<table><thead><tr>{row(head, 'th')}</tr></thead><tbody>{body}</tbody></table>"


def _plan_rows(plan: Any) -> tuple[list[str], list[tuple[str, ...]], list[str]]:
    """The page about a plan: what stands before its steps, the steps in cells, the rest."""
    lines = list(_plan_lines(plan))
    last = lines.index("alive at the peak:")
    first = last - len(plan)
    times = _times()
    rows: list[tuple[str, ...]] = []
    for step in plan.steps:
        line = f"{step.site[0]}:{step.site[1]}" if step.site else ""
        seconds = times.get((step.name, line or None))
        took = "" if seconds is None else f"{seconds * 1e6:,.1f} us"
        rows.append((step.name, took, step.reason or "", _scope(step), line))
    return lines[:first], rows, lines[last:]


def _plan_lines(plan: Any) -> Iterator[str]:
    bound = "at least " if plan.is_open else ""
    scratch = f", {plan.scratch_bytes:,} of them for kernels" if plan.scratch_bytes else ""
    yield (
        f"plan: {len(plan)} steps; peak {bound}{plan.peak_bytes:,} bytes{scratch}; "
        f"results: {plan.naive_bytes:,} bytes if every result had memory of its own"
    )
    if plan.recomputed:
        nodes, flops, before, after = plan.recomputed
        yield (
            f"computed again to keep within the budget: {nodes} nodes, {flops:,} flops; "
            f"peak {after:,} bytes instead of {before:,}"
        )
    dispatches = dict(plan.dispatches)
    if dispatches:
        count = sum(map(len, dispatches.values()))
        texts = {text for made in dispatches.values() for _, text in made}
        yield (
            f"on {plan.device}: {count} dispatches of {len(texts)} shaders; plan.dispatches has "
            "their WGSL"
        )
    times = _times()
    for at, step in enumerate(plan.steps):
        line = f"{step.site[0]}:{step.site[1]}" if step.site else None
        site = _place(line, step)
        reason = f", ends: {step.reason}" if step.reason else ""
        seconds = times.get((step.name, line))
        took = "" if seconds is None else f", {seconds * 1e6:,.1f} us"
        runs = _workgroups(dispatches.get(at, ()))
        yield f"  {step.name}{runs}{took}{reason}{site}"
    yield "alive at the peak:"
    for value in plan.alive_at_peak[:8]:
        place = _place(value.line, value)
        yield f"  {value.nbytes:,} bytes: {value.name} {value.type}{place}"


def _scope(what: Any) -> str:
    """The module in whose call a step or value was traced: `GPT/blocks.0, backward`."""
    backward = "backward" if what.is_backward else None
    return ", ".join(filter(None, (what.scope, backward)))


def _place(line: str | None, what: Any) -> str:
    """The end of a line of text: `  # model.py:12 in GPT/blocks.0, backward`."""
    said = [line, f"in {scope}" if (scope := _scope(what)) else None]
    return f"  # {' '.join(filter(None, said))}" if any(said) else ""


def _workgroups(dispatches: Sequence[tuple[tuple[int, int] | None, str]]) -> str:
    """How many workgroups each dispatch of a step has: `[16 + 1 workgroups]`."""
    counts = ["?" if n is None else str(n[0] * n[1]) for n, _ in dispatches]
    return f" [{' + '.join(counts)} workgroups]" if counts else ""


def _times() -> dict[tuple[str, str | None], float]:
    """What steps took in the latest profile, if one was taken."""
    profiling = sys.modules.get("wengert.profiling")
    latest = profiling.latest if profiling is not None else None
    return {} if latest is None else latest.step_times()
