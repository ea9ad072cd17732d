"""Sizes in programs: whole numbers, or expressions over symbols, read by a strict parser."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from wengert._core import ArgumentError, ShapeError

__all__ = ["MOST", "Size", "size"]

MOST = 2**53
"""Sizes and all that is calculated on the way are below this, so that float64 can hold them."""

LONGEST = 4096
DEEPEST = 32

TOKEN = re.compile(
    r" *(?:(?P<number>[0-9]{1,16})|(?P<name>[^\W0-9]\w{0,63})|(?P<sign>//|[-+*%(),]))"
)

Code = list[tuple[str, int | str]]


class Size:
    """An expression over symbols: its text, its symbols, and its value where they are bound."""

    __slots__ = ("code", "symbols", "text")

    def __init__(self, text: str) -> None:
        if len(text) > LONGEST:
            raise ArgumentError(f"webgpu: an expression is too long: {len(text)} characters")
        self.text = text
        self.code: Code = []
        _Reader(text, self.code).read()
        names = (arg for what, arg in self.code if what == "name")
        self.symbols = frozenset(str(name) for name in names)

    def __repr__(self) -> str:
        return self.text

    @property
    def is_symbol(self) -> bool:
        """Whether it is a symbol alone."""
        return len(self.code) == 1 and bool(self.symbols)

    def at(self, sizes: Mapping[str, int]) -> int:
        """The value; an error where it cannot be, or is no whole number that float64 holds."""
        stack: list[int] = []
        for what, arg in self.code:
            if what == "number":
                stack.append(int(arg))
            elif what == "name":
                stack.append(sizes[str(arg)])
            elif what == "negate":
                stack.append(-stack.pop())
            else:
                b, a = stack.pop(), stack.pop()
                if b == 0 and what in ("//", "%"):
                    raise ShapeError(f"webgpu: {self.text} divides by zero")
                stack.append(OPERATORS[what](a, b))
            if abs(stack[-1]) >= MOST:
                raise ShapeError(f"webgpu: a size is too large: {self.text}")
        return stack[0]


OPERATORS: dict[str, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "min": min,
    "max": max,
}


class _Reader:
    """A text, read from the left; what it means goes to `code`, operands first."""

    def __init__(self, text: str, code: Code) -> None:
        self.text, self.at, self.code, self.depth = text, 0, code, 0
        self.token: tuple[str, str] | None = None

    def read(self) -> None:
        self.next()
        self.sum()
        if self.token is not None:
            self.refuse()

    def refuse(self) -> None:
        raise ArgumentError(f"webgpu: not a size: {self.text[:100]!r}")

    def next(self) -> None:
        if self.at == len(self.text):
            self.token = None
            return
        match = TOKEN.match(self.text, self.at)
        if match is None:
            raise ArgumentError(f"webgpu: not a size: {self.text[:100]!r}")
        self.at = match.end()
        kind = match.lastgroup or "sign"
        self.token = (kind, match[kind])

    def takes(self, *signs: str) -> str | None:
        if self.token is not None and self.token[0] == "sign" and self.token[1] in signs:
            sign = self.token[1]
            self.next()
            return sign
        return None

    def needs(self, sign: str) -> None:
        if self.takes(sign) is None:
            self.refuse()

    def sum(self) -> None:
        self.product()
        while sign := self.takes("+", "-"):
            self.product()
            self.code.append((sign, 0))

    def product(self) -> None:
        self.factor()
        while sign := self.takes("*", "//", "%"):
            self.factor()
            self.code.append((sign, 0))

    def factor(self) -> None:
        self.depth += 1
        if self.depth > DEEPEST:
            raise ArgumentError(f"webgpu: an expression is too deep: {self.text[:100]!r}")
        if self.takes("-"):
            self.factor()
            self.code.append(("negate", 0))
        elif self.takes("("):
            self.sum()
            self.needs(")")
        elif self.token is None or self.token[0] == "sign":
            self.refuse()
        else:
            kind, text = self.token
            self.next()
            if kind == "number":
                self.code.append(("number", int(text)))
            elif text in ("min", "max"):
                self.needs("(")
                self.sum()
                self.needs(",")
                self.sum()
                self.needs(")")
                self.code.append((text, 0))
            else:
                self.code.append(("name", text))
        self.depth -= 1


def size(value: object) -> int | Size:
    """A size of a file: a whole number, or the text of an expression."""
    if isinstance(value, str):
        return Size(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < MOST:
        raise ArgumentError(f"webgpu: not a size: {str(value)[:100]}")
    return value
