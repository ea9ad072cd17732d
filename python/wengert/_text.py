"""Tensors as text: rows of aligned numbers, the middle of large tensors left out."""

from __future__ import annotations

from wengert import _core
from wengert._core import Tensor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Literal

# What `set_printoptions` sets; `sci_mode` is "auto" where the numbers decide.
_options: dict[str, Any] = {
    "precision": 4,
    "threshold": 1000,
    "edgeitems": 3,
    "linewidth": 88,
    "sci_mode": "auto",
}


def get_printoptions() -> dict[str, Any]:
    """How tensors are printed: what `set_printoptions` takes.

    >>> wg.get_printoptions()["precision"]
    4
    """
    return dict(_options)


def set_printoptions(
    *,
    precision: int | None = None,
    threshold: int | None = None,
    edgeitems: int | None = None,
    linewidth: int | None = None,
    sci_mode: bool | Literal["auto"] | None = None,
) -> None:
    """Set how tensors are printed from now on; what is not given stays as it is.

    `precision`: digits after the point; `threshold`: elements above which the middle is left out;
    `edgeitems`: elements kept at either end of an axis; `linewidth`: characters of a line;
    `sci_mode`: whether floats have exponents, "auto" (as in the beginning) where the numbers
    decide. `TypeError` and `ValueError` for what no option can be; nothing changes then.

    >>> wg.set_printoptions(precision=2)
    >>> wg.tensor(2 / 3)
    tensor(0.67)
    >>> wg.set_printoptions(precision=4)
    """
    given = {
        "precision": (precision, 0),
        "threshold": (threshold, 0),
        "edgeitems": (edgeitems, 1),
        "linewidth": (linewidth, 1),
    }
    new: dict[str, Any] = {}
    for name, (value, least) in given.items():
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int):
            kind = type(value).__name__
            raise TypeError(f"set_printoptions: {name} must be an int, got {kind}")
        if value < least:
            raise ValueError(f"set_printoptions: {name} must be at least {least}, got {value}")
        new[name] = value
    if sci_mode is not None:
        if not isinstance(sci_mode, bool) and sci_mode != "auto":
            raise TypeError(
                f'set_printoptions: sci_mode must be a bool or "auto", got {sci_mode!r}'
            )
        new["sci_mode"] = sci_mode
    _options.update(new)


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
        elements = _excerpt(x.detach(), x.size > _options["threshold"])
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
        if last + len(note) + 3 > _options["linewidth"]:
            text, last = f"{text},\n{' ' * indent}{note}", indent + len(note)
        else:
            text, last = f"{text}, {note}", last + len(note) + 2
    return text + ")"


def _excerpt(x: Tensor, short: bool) -> Any:
    """Nested lists of the elements; `...` stands for what is left out."""
    if not short or x.ndim == 0:
        return x.tolist()
    edge = _options["edgeitems"]
    parts: list[Any] = [x] if len(x) <= 2 * edge else [x[:edge], ..., x[-edge:]]
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
    precision, exponents = _options["precision"], _options["sci_mode"]
    if exponents == "auto":
        exponents = high >= 1e8 or (not whole and (low < 1e-4 or high / low > 1000))
    if exponents:
        digits = max((_fraction(f"{x:.{precision}e}".split("e")[0]) for x in finite), default=0)
        return [f"{x:.{digits}e}" for x in numbers]
    fixed = [f"{x:.{precision}f}" for x in numbers]
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
        if line and indent + len(line) + len(text) + 3 > _options["linewidth"]:
            lines.append(line)
            line = ""
        line += f"{', ' if line else ''}{text}"
    between = ",\n" + " " * indent
    return f"[{between.join([*lines, line])}]"
