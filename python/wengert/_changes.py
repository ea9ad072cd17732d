"""What a captured function assigned besides tensors it updates: attributes of modules and
optimizers, hyperparameters.

Assignments are taken back when the function is traced, and made anew after each call: numbers and
tensors of the trace are further results of it. What stood there before belongs to what the trace
depends on.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from wengert import _core, _touched, pytree
from wengert._core import CaptureError, Tensor, float64, ones

__all__ = ["Changes", "Values"]


class Values:
    """A tree with tensors, numbers and sizes of a trace in it: the tensors to compute, and the tree
    that these make."""

    def __init__(self, tree: Any) -> None:
        self.leaves, self.structure = pytree.flatten(tree)
        self.places: list[tuple[int, type | None, int]] = []
        # What belongs to the trace, until it is finished.
        self.tensors: list[Tensor] = []
        known: dict[int, int] = {}  # one object in two places stays one
        for i, x in enumerate(self.leaves):
            kind = _kind(x)
            if kind is not None or isinstance(x, Tensor):
                n = known.setdefault(id(x), len(self.tensors))
                if n == len(self.tensors):
                    self.tensors.append(x if kind is None else _tensor(x))
                self.places.append((i, kind, n))
        for i, _, _ in self.places:
            self.leaves[i] = None
        self.count = len(self.tensors)

    def finish(self) -> None:
        """Let go of the trace."""
        self.tensors = []

    def built(self, tensors: Iterable[Tensor]) -> Any:
        """The tree with computed tensors."""
        values, tensors = list(self.leaves), list(tensors)
        for i, kind, n in self.places:
            values[i] = tensors[n] if kind is None else kind(tensors[n].item())
        return pytree.unflatten(self.structure, values)


def _kind(x: Any) -> type | None:
    """What Python calls a number or a size of a trace."""
    return float if isinstance(x, _core.Number) else int if isinstance(x, _core.Dim) else None


def _tensor(x: Any) -> Tensor:
    return ones((), dtype=float64) * x


class _Assignment:
    """One of them: where, what stood there, what does now."""

    def __init__(self, slot: _touched.Slot, old: Any) -> None:
        self.slot, self.old = slot, old
        new = slot.get()
        slot.put(old)
        self.values = Values(new if new is not _touched.MISSING and _may_hold(new) else None)
        self.count = self.values.count
        self.new = new if not self.count else None

    def put(self, tensors: list[Tensor]) -> None:
        """Make it anew."""
        self.slot.put(self.values.built(tensors) if self.count else self.new)


def _may_hold(x: Any) -> bool:
    """Whether tensors of a trace may be in a value; a module keeps its own."""
    from wengert.nn.module import Module

    return not isinstance(x, Module)


class Changes:
    """The assignments of one capture. Making it takes them back."""

    def __init__(self, record: _touched.Record) -> None:
        # No trace is for one learning rate only: what is assigned counts whatever stood there.
        self.made = [
            _Assignment(slot, old)
            for slot, old in record.assigned.values()
            if slot.key == "lr" or not same(old, slot.get())
        ]

    def __bool__(self) -> bool:
        return bool(self.made)

    @property
    def tensors(self) -> list[Tensor]:
        """What has to be computed for them."""
        return [x for a in self.made for x in a.values.tensors]

    def finish(self) -> None:
        """Let go of the trace."""
        for a in self.made:
            a.values.finish()

    def free(self, name: str, executable: Any) -> set[tuple[int, Any]]:
        """The attributes that hold a tensor at each call which nobody reads.

        One that is read and then bound to another tensor is refused: the next call would read
        another tensor.
        """
        found = set()
        for a in self.made:
            before = pytree.flatten(a.old)[0] if _may_hold(a.old) else []
            tensors = [x for x in before if isinstance(x, Tensor)]
            if not tensors or not a.count:
                continue
            if any(executable.reaches(x) for x in tensors):
                where = f"{type(a.slot.home).__name__}.{a.slot.key}"
                raise CaptureError(
                    f"{name}: while it is captured, {where} is read and then bound to another "
                    "tensor; update the tensor in place (t[...] = y, t += y), or return the new one"
                )
            found.add((id(a.slot.home), a.slot.key))
        return found

    def difference(self, other: Changes) -> str | None:
        """Where another capture of the same call assigns something else, if anywhere."""
        if len(self.made) != len(other.made):
            return f"{len(self.made)} and {len(other.made)} assignments"
        for a, b in zip(self.made, other.made, strict=True):
            where = f"{type(a.slot.home).__name__}.{a.slot.key}"
            if a.slot.home is not b.slot.home or a.slot.key != b.slot.key:
                return f"assignments to {where} and to something else"
            if a.count != b.count or (is_plain(a.new) and not same(a.new, b.new)):
                return f"{where} is assigned {a.new!r} and {b.new!r}"
        return None

    def replay(self, tensors: list[Tensor]) -> None:
        """Make the assignments of a call, whose tensors these are."""
        rest = iter(tensors)
        for a in self.made:
            a.put([next(rest) for _ in range(a.count)])


def same(old: Any, new: Any) -> bool:
    """Whether two values are one object, or equal plain values."""
    return old is new or (is_plain(old) and type(old) is type(new) and old == new)


_PLAIN = (bool, int, float, complex, str, bytes, type(None), _core.DType)


def is_plain(x: Any) -> bool:
    """Whether a value is compared by what it is."""
    return isinstance(x, _PLAIN) or (isinstance(x, tuple) and all(map(is_plain, x)))
