"""A table of a model's modules: what they give, how much they hold, what they cost."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, NamedTuple

from wengert import pytree
from wengert._core import Tensor
from wengert.nn._wanted import a_module
from wengert.nn.module import Module

__all__ = ["Summary", "SummaryRow", "summary"]


class SummaryRow(NamedTuple):
    """One call of a module."""

    name: str
    """The dotted name; empty for the whole"""
    kind: str
    """The name of the class"""
    shape: str
    """The shapes of the results"""
    parameters: int
    """Numbers that the module learns by itself, without those of modules below it"""
    flops: int | None
    """Operations of the call; None for a module that calls others"""


class Summary:
    """What `summary` found: `rows`, in the order of the calls, and sums. It prints as a table."""

    def __init__(self, rows: list[SummaryRow], parameters: int, frozen: int, flops: int) -> None:
        self.rows = rows
        self.parameters = parameters
        self.frozen = frozen
        self.flops = flops

    def __str__(self) -> str:
        head = ("module", "class", "output", "parameters", "flops")
        lines = [head]
        for row in self.rows:
            depth = row.name.count(".") + bool(row.name)
            name = "  " * depth + (row.name.rpartition(".")[2] or "(whole)")
            count = f"{row.parameters:,}" if row.parameters else ""
            flops = "" if row.flops is None else f"{row.flops:,}"
            lines.append((name, row.kind, row.shape, count, flops))
        widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
        text = []
        for line in lines:
            cells = [f"{c:<{w}}" if i < 3 else f"{c:>{w}}"
                     for i, (c, w) in enumerate(zip(line, widths, strict=True))]  # fmt: skip
            text.append("  ".join(cells).rstrip())
        rule = "-" * max(len(line) for line in text)
        held = f"{self.parameters:,} parameters"
        if self.frozen:
            held += f", {self.frozen:,} of them frozen"
        return "\n".join([text[0], rule, *text[1:], rule, f"{held}; {self.flops:,} flops"])

    __repr__ = __str__


def summary(module: Module, *specs: Any) -> Summary:
    """What the modules of a model give for arguments of these shapes, and what they cost.

    `specs`: a `wengert.Spec` for each argument, or a tensor. The model is traced, not run: nothing
    is computed and no state changes. Flops are those that the ops of a trace state.

    >>> print(nn.summary(nn.Linear(2, 3), wg.Spec((4, 2))))
    module   class   output  parameters  flops
    ------------------------------------------
    (whole)  Linear  (4, 3)           9     60
    ------------------------------------------
    9 parameters; 60 flops
    """
    from wengert.capture import Spec

    a_module("summary", module)
    args = [x.stand_in() if isinstance(x, Spec) else x for x in specs]
    names = {id(m): name for name, m in module.named_modules()}
    calls: list[tuple[Module, Any, Any]] = []
    with ExitStack() as hooks:
        for m in module.modules():
            hooks.callback(m.register_forward_hook(_recorder(calls)).remove)
        flops = _cost(module, args)
    order = {id(m): i for i, m in enumerate(module.modules())}
    calls.sort(key=lambda call: order[id(call[0])])
    rows = []
    for m, given, y in calls:
        own = [p for n, p in m.named_parameters() if "." not in n]
        below = any(m is not c and c in list(m.modules()) for c, _, _ in calls)
        cost = None
        if not below:
            cost = flops if m is module else _cost(m, [_standing(x) for x in given])
        count = sum(math.prod(p.shape) for p in own)
        rows.append(SummaryRow(names[id(m)], type(m).__name__, _shapes(y), count, cost))
    held = list(module.parameters())
    frozen = sum(math.prod(p.shape) for p in held if not p.requires_grad)
    return Summary(rows, sum(math.prod(p.shape) for p in held), frozen, flops)


def _recorder(calls: list[tuple[Module, Any, Any]]) -> Callable[[Module, tuple, Any], None]:
    def record(m: Module, args: tuple, y: Any) -> None:
        kept = [(tuple(x.shape), x.dtype) if isinstance(x, Tensor) else x for x in args]
        leaves, structure = pytree.flatten(y)
        shapes = [tuple(x.shape) if isinstance(x, Tensor) else None for x in leaves]
        calls.append((m, kept, (shapes, structure)))

    return record


def _standing(x: Any) -> Any:
    from wengert.capture import Spec

    return Spec(*x).stand_in() if isinstance(x, tuple) and len(x) == 2 else x


def _cost(module: Module, args: list[Any]) -> int:
    """The operations of a call."""
    from wengert.capture import compile

    return compile(lambda *xs: module(*xs))._prepared(*args)[0].cost()[0]


def _shapes(y: Any) -> str:
    shapes = [str(shape) for shape in y[0] if shape is not None]
    return ", ".join(shapes)
