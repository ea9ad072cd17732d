"""Loops in programs: ranges of dispatches that are repeated, one inside the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from wengert._core import ShapeError
from wengert.webgpu._sizes import Size

__all__ = ["DEEPEST", "MOST_PLAYED", "Log", "Loop", "Repeat", "nested", "played", "unrolled"]

DEEPEST = 16
"""The most loops inside each other."""

MOST_PLAYED = 1 << 20
"""The most dispatches of a run."""


class Log(NamedTuple):
    """How often `base` is multiplied by itself, from 1, to reach a size."""

    base: int
    of: int | Size

    def __repr__(self) -> str:
        return f"log{self.base}({self.of}), rounded up"

    def at(self, sizes: Mapping[str, int]) -> int:
        """The value where symbols are bound."""
        of, times, reached = _value(self.of, sizes), 0, 1
        while reached < of:
            times, reached = times + 1, reached * self.base
        return times


class Repeat(NamedTuple):
    """Dispatches from `start` up to `stop` (excluded) that run several times."""

    start: int
    stop: int
    times: int | Size | Log
    round: str
    """The symbol of the number of the round."""


class Loop(NamedTuple):
    """A loop with what is inside."""

    repeat: Repeat
    body: list[int | Loop]


def nested(repeats: Sequence[Repeat], dispatches: int) -> list[int | Loop]:
    """The order of dispatches as a tree. Outer loops come before those inside; `ValueError` where
    two cross, or too many are inside each other."""
    root: list[int | Loop] = []
    open_: list[tuple[int, list[int | Loop]]] = [(dispatches, root)]
    at = 0

    def fill(stop: int) -> None:
        nonlocal at
        open_[-1][1].extend(range(at, stop))
        at = max(at, stop)

    for repeat in repeats:
        while len(open_) > 1 and open_[-1][0] <= repeat.start:
            fill(open_[-1][0])
            open_.pop()
        if repeat.start < at or repeat.stop > open_[-1][0] or len(open_) > DEEPEST:
            raise ValueError("loops cross, are not in order, or are too many in each other")
        fill(repeat.start)
        loop = Loop(repeat, [])
        open_[-1][1].append(loop)
        open_.append((repeat.stop, loop.body))
    while open_:
        fill(open_[-1][0])
        open_.pop()
    return root


def played(body: Sequence[int | Loop], sizes: Mapping[str, int]) -> int:
    """How many dispatches a run has; refuses too many."""
    found = 0
    for entry in body:
        if isinstance(entry, int):
            found += 1
            continue
        times = _value(entry.repeat.times, sizes)
        if times < 0:
            raise ShapeError(f"player: a loop of {times} rounds")
        found += times * played(entry.body, sizes) if times else 0
        if found > MOST_PLAYED or times > MOST_PLAYED:
            raise ShapeError(
                f"player: loops of {found} dispatches, at most {MOST_PLAYED}: {entry.repeat.times}"
            )
    return found


def unrolled(
    body: Sequence[int | Loop], sizes: dict[str, int]
) -> Iterator[tuple[int, dict[str, int]]]:
    """The dispatches of a run in order, with sizes and the numbers of rounds, in one dictionary
    that changes."""
    for entry in body:
        if isinstance(entry, int):
            yield entry, sizes
            continue
        for round_ in range(_value(entry.repeat.times, sizes)):
            sizes[entry.repeat.round] = round_
            yield from unrolled(entry.body, sizes)


def _value(size: int | Size | Log, sizes: Mapping[str, int]) -> int:
    return size if isinstance(size, int) else size.at(sizes)
