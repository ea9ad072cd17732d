"""Tensors as text: rows of aligned numbers, the middle of large tensors left out."""

from __future__ import annotations

from wengert import _core
from wengert._core import Tensor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PRECISION = 4  # digits after the point
THRESHOLD = 1000  # elements above which the middle is left out
EDGE = 3  # elements kept at either end of an axis
WIDTH = 88  # characters of a line

# Dtypes that the numbers themselves show.
_EVIDENT = (_core.float32, _core.int64, _core.bool)


def describe(x: Tensor, name: str) -> str:
    """`name(...)` with the elements and whatever else makes the tensor what it is."""
    notes = []
    if x.size == 0:
        body = "[]"
        if x.shape != (0,):
            notes.append(f"shape={x.shape}")
    else:
        elements = _excerpt(x.detach(), x.size > THRESHOLD)
        body = _lines(_texts(elements, x.dtype), x.ndim, len(name) + 1)
    if x.dtype not in _EVIDENT[: 1 if x.size == 0 else None]:
        notes.append(f"dtype={x.dtype}")
    if str(x.device) != "cpu":
        notes.append(f'device="{x.device}"')
    made_by = _core._grad_name(x)
    if made_by is not None:
        notes.append(f"grad_fn=<{made_by}>")
    elif x.requires_grad:
        notes.append("requires_grad=True")
    return _close(f"{name}({body}", notes, len(name) + 1)


def shortest(x: Tensor) -> Any:
    """The number of a scalar, a float with the fewest digits that its dtype tells from others."""
    number = x.item()
    if not isinstance(number, float) or number != number:
        return number
    for digits in range(1, 17):
        candidate = float(f"{number:.{digits}g}")
        if _core.tensor(candidate, dtype=x.dtype).item() == number:
            return candidate
    return number


def _close(text: str, notes: list[str], indent: int) -> str:
    last = len(text) - (text.rfind("\n") + 1)
    for note in notes:
        if last + len(note) + 3 > WIDTH:
            text, last = f"{text},\n{' ' * indent}{note}", indent + len(note)
        else:
            text, last = f"{text}, {note}", last + len(note) + 2
    return text + ")"


def _excerpt(x: Tensor, short: bool) -> Any:
    """Nested lists of the elements; `...` stands for what is left out."""
    if not short or x.ndim == 0:
        return x.tolist()
    parts: list[Any] = [x] if len(x) <= 2 * EDGE else [x[:EDGE], ..., x[-EDGE:]]
    out: list[Any] = []
    for part in parts:
        if part is ...:
            out.append(part)
        else:
            out += part.tolist() if x.ndim == 1 else [_excerpt(row, short) for row in part]
    return out


def _leaves(tree: Any) -> list[Any]:
    if not isinstance(tree, list):
        return [tree]
    return [leaf for part in tree for leaf in _leaves(part)]


def _texts(tree: Any, dtype: Any) -> Any:
    """The tree with a text of one width for each number."""
    numbers = [leaf for leaf in _leaves(tree) if leaf is not ...]
    texts = _floats(numbers) if isinstance(numbers[0], float) else [str(n) for n in numbers]
    width = max(len(text) for text in texts)
    padded = iter([text.rjust(width) for text in texts])

    def fill(part: Any) -> Any:
        if isinstance(part, list):
            return [fill(inner) for inner in part]
        return "..." if part is ... else next(padded)

    return fill(tree)


def _floats(numbers: list[float]) -> list[str]:
    """Floats with their points below each other."""
    finite = [abs(x) for x in numbers if abs(x) < float("inf")]  # NaN compares false
    sizes = [x for x in finite if x]
    whole = all(x == int(x) for x in sizes)
    low, high = (min(sizes), max(sizes)) if sizes else (1.0, 1.0)
    if high >= 1e8 or (not whole and (low < 1e-4 or high / low > 1000)):
        digits = max(_fraction(f"{x:.{PRECISION}e}".split("e")[0]) for x in finite)
        return [f"{x:.{digits}e}" for x in numbers]
    fixed = [f"{x:.{PRECISION}f}" for x in numbers]
    digits = max((_fraction(text) for text in fixed if "." in text), default=0)
    out = []
    for text in fixed:
        if "." in text:
            point = text.index(".")
            text = text.rstrip("0").ljust(point + 1 + digits)
        out.append(text)
    return out


def _fraction(text: str) -> int:
    """Digits after the point, without trailing zeros."""
    return len(text.rstrip("0").partition(".")[2])


def _lines(tree: Any, depth: int, indent: int) -> str:
    """The rows in brackets, wrapped; blank lines between the blocks of outer axes."""
    if isinstance(tree, str):
        return tree
    indent += 1
    if depth > 1:
        between = "," + "\n" * (depth - 1) + " " * indent
        return f"[{between.join(_lines(row, depth - 1, indent) for row in tree)}]"
    lines, line = [], ""
    for text in tree:
        if line and indent + len(line) + len(text) + 3 > WIDTH:
            lines.append(line)
            line = ""
        line += f"{', ' if line else ''}{text}"
    between = ",\n" + " " * indent
    return f"[{between.join([*lines, line])}]"
