"""Pickles read without executing anything.

A pickle is a program for a stack machine, and Python's own machine calls whatever the program
names. This one knows the opcodes that build data, and asks a table of its caller's for every name:
a name that is not there is refused, and what is there is ours. Objects cannot be made, attributes
cannot be set.

Lengths are compared with what is left of the file before anything is allocated. Keys are plain
values, so that hashing one does not recurse. The count of steps is bounded, because a byte of a
pickle can stand for a hundred in memory; and what is copied from values that are there already is
no more in all than the pickle is long, because a byte can ask for a copy of anything.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from wengert._core import ArgumentError

__all__ = ["Builder", "Refused", "Unpickler", "is_key"]

_STEPS = 10_000_000


class Refused(ArgumentError):
    """What a pickle asks for is not done."""


class Builder:
    """A name that a pickle may use: `call` makes a value of arguments, `build` completes one."""

    def __init__(self, name: str, call: Callable[..., Any] | None = None) -> None:
        self.name = name
        self.call = call

    def __repr__(self) -> str:
        return self.name


def is_key(x: Any) -> bool:
    """Whether a dict or set of a pickle may hold this as a key."""
    plain = (type(None), bool, int, float, str, bytes)
    return type(x) in plain or (type(x) is tuple and all(type(v) in plain for v in x))


_MARK = object()
_SIZED = (list, tuple, dict, set, frozenset, str, bytes, bytearray)


class Unpickler:
    """One pickle: `load` gives its value, and `at` is where it ended.

    `find(module, name)` gives what a name stands for, or raises `Refused`; `persistent(id)` what a
    persistent id stands for; `build(value, state)` completes a value in place.
    """

    def __init__(
        self,
        data: bytes,
        at: int,
        find: Callable[[str, str], Any],
        persistent: Callable[[Any], Any],
        build: Callable[[Any, Any], None],
    ) -> None:
        self.data = data
        self.at = at
        self._find = find
        self._persistent = persistent
        self._build = build
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}
        self._copies = len(data) + 1000  # elements that may yet be copied

    def load(self) -> Any:
        """The value of the pickle."""
        data, end = self.data, len(self.data)
        for _ in range(_STEPS):
            if self.at >= end:
                raise Refused("the pickle is cut off")
            code = data[self.at]
            self.at += 1
            if code == _STOP:
                return self._pop()
            step = _OPCODES.get(code)
            if step is None:
                name = _REFUSED.get(code, f"{code:#04x}")
                raise Refused(f"opcode {name} of the pickle is not executed")
            step(self)
        raise Refused(f"the pickle has more than {_STEPS} steps")

    # --- bytes

    def _take(self, n: int) -> bytes:
        if not 0 <= n <= len(self.data) - self.at:
            raise Refused("the pickle is cut off")
        start = self.at
        self.at += n
        return self.data[start : self.at]

    def _number(self, form: struct.Struct) -> Any:
        return form.unpack(self._take(form.size))[0]

    def _line(self) -> str:
        return _decoded(self._raw_line())

    def _raw_line(self) -> bytes:
        end = self.data.find(b"\n", self.at)
        if end < 0:
            raise Refused("the pickle is cut off")
        line = self.data[self.at : end]
        self.at = end + 1
        return line

    # --- the stack

    def _push(self, x: Any) -> None:
        self._stack.append(x)

    def _pop(self) -> Any:
        if not self._stack or self._stack[-1] is _MARK:
            raise Refused("the pickle takes more than it has")
        return self._stack.pop()

    def _top(self) -> Any:
        x = self._pop()
        self._stack.append(x)
        return x

    def _marked(self) -> list[Any]:
        """What lies above the last mark, taken away with it."""
        stack = self._stack
        for i in range(len(stack) - 1, -1, -1):
            if stack[i] is _MARK:
                found = stack[i + 1 :]
                del stack[i:]
                return found
        raise Refused("the pickle takes more than it has")

    def _tuple(self, n: int) -> None:
        self._push(tuple(reversed([self._pop() for _ in range(n)])))

    def _extend(self, items: list[Any]) -> None:
        into = self._top()
        if type(into) is not list:
            raise Refused(f"the pickle appends to {type(into).__name__}")
        into.extend(items)

    def _enter(self, items: list[Any]) -> None:
        into = self._top()
        if not isinstance(into, dict) or len(items) % 2:
            raise Refused(f"the pickle sets items of {type(into).__name__}")
        for k, v in zip(items[::2], items[1::2], strict=True):
            into[_key(k)] = v

    def _add(self, items: list[Any]) -> None:
        into = self._top()
        if type(into) is not set:
            raise Refused(f"the pickle adds to {type(into).__name__}")
        into.update(map(_key, items))

    def _dict(self) -> None:
        items = self._marked()
        self._push({})
        self._enter(items)

    # --- memo, names, calls

    def _get(self, i: int) -> None:
        if i not in self._memo:
            raise Refused(f"the pickle asks for memo {i}, which it did not keep")
        self._push(self._memo[i])

    def _put(self, i: int) -> None:
        self._memo[i] = self._top()

    def _global(self, module: Any, name: Any) -> None:
        if type(module) is not str or type(name) is not str:
            raise Refused("the pickle gives a name that is no text")
        self._push(self._find(module, name))

    def _stack_global(self) -> None:
        name = self._pop()
        self._global(self._pop(), name)

    def _reduce(self) -> None:
        given = self._pop()
        what = self._pop()
        if not isinstance(what, Builder) or what.call is None or type(given) is not tuple:
            raise Refused(f"the pickle calls {_shown(what)}")
        self._copied(given)
        self._push(called(what, given))

    def _complete(self) -> None:
        state = self._pop()
        self._copied(state)
        self._build(self._top(), state)

    def _copied(self, given: Any) -> None:
        parts = given if type(given) is tuple else (given,)
        self._copies -= len(parts) + sum(len(p) for p in parts if isinstance(p, _SIZED))
        if self._copies < 0:
            raise Refused("the pickle copies more than it has")


def called(what: Builder, given: tuple[Any, ...]) -> Any:
    """The value that a builder makes; arguments that do not suit it are refused."""
    assert what.call is not None
    try:
        return what.call(*given)
    except ArgumentError:
        raise
    except (TypeError, ValueError, KeyError, AttributeError, IndexError, OverflowError) as error:
        raise Refused(f"arguments of {what.name}: {error}") from error


def _shown(x: Any) -> str:
    return repr(x) if isinstance(x, Builder) else f"a value of type {type(x).__name__}"


def _key(k: Any) -> Any:
    if not is_key(k):
        raise Refused(f"the pickle has a key of type {type(k).__name__}")
    return k


def _decoded(raw: bytes) -> str:
    try:
        return raw.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        raise Refused("a text of the pickle is not UTF-8") from None


def _int(text: str) -> int:
    try:
        return int(text.removesuffix("L"))
    except ValueError:
        raise Refused(f"a number of the pickle is {text[:40]!r}") from None


def _old_int(text: str) -> int:
    return text == "01" if text in ("00", "01") else _int(text)


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise Refused(f"a number of the pickle is {text[:40]!r}") from None


def _quoted(text: str) -> str:
    if len(text) < 2 or text[0] not in "'\"" or text[-1] != text[0] or "\\" in text:
        raise Refused("a text of the pickle is not quoted plainly")
    return text[1:-1]


def _escaped(raw: bytes) -> str:
    try:
        return raw.decode("raw_unicode_escape")
    except UnicodeDecodeError:
        raise Refused("a text of the pickle has a broken escape") from None


U1, U2, I4, U4, U8, F8 = (struct.Struct(f) for f in ("<B", "<H", "<i", "<I", "<Q", ">d"))
_P = Unpickler
_STOP = ord(".")

_OPCODES: dict[int, Callable[[Unpickler], Any]] = {
    0x80: lambda m: m._take(1),  # PROTO
    0x95: lambda m: m._take(8),  # FRAME: what it says is found out anyway
    ord("("): lambda m: m._push(_MARK),
    ord("0"): lambda m: m._pop(),
    ord("1"): _P._marked,
    ord("2"): lambda m: m._push(m._top()),
    # plain values
    ord("N"): lambda m: m._push(None),
    0x88: lambda m: m._push(True),
    0x89: lambda m: m._push(False),
    ord("I"): lambda m: m._push(_old_int(m._line())),
    ord("L"): lambda m: m._push(_int(m._line())),
    ord("J"): lambda m: m._push(m._number(I4)),
    ord("K"): lambda m: m._push(m._number(U1)),
    ord("M"): lambda m: m._push(m._number(U2)),
    0x8A: lambda m: m._push(int.from_bytes(m._take(m._number(U1)), "little", signed=True)),
    0x8B: lambda m: m._push(int.from_bytes(m._take(m._number(I4)), "little", signed=True)),
    ord("F"): lambda m: m._push(_float(m._line())),
    ord("G"): lambda m: m._push(m._number(F8)),
    ord("S"): lambda m: m._push(_quoted(m._line())),
    ord("T"): lambda m: m._push(_decoded(m._take(m._number(I4)))),
    ord("U"): lambda m: m._push(_decoded(m._take(m._number(U1)))),
    ord("V"): lambda m: m._push(_escaped(m._raw_line())),
    ord("X"): lambda m: m._push(_decoded(m._take(m._number(U4)))),
    0x8C: lambda m: m._push(_decoded(m._take(m._number(U1)))),
    0x8D: lambda m: m._push(_decoded(m._take(m._number(U8)))),
    ord("B"): lambda m: m._push(m._take(m._number(U4))),
    ord("C"): lambda m: m._push(m._take(m._number(U1))),
    0x8E: lambda m: m._push(m._take(m._number(U8))),
    0x96: lambda m: m._push(bytearray(m._take(m._number(U8)))),
    # containers
    ord("]"): lambda m: m._push([]),
    ord(")"): lambda m: m._push(()),
    ord("}"): lambda m: m._push({}),
    0x8F: lambda m: m._push(set()),
    ord("a"): lambda m: m._extend([m._pop()]),
    ord("e"): lambda m: m._extend(m._marked()),
    ord("s"): lambda m: m._enter([m._pop(), m._pop()][::-1]),
    ord("u"): lambda m: m._enter(m._marked()),
    0x90: lambda m: m._add(m._marked()),
    0x91: lambda m: m._push(frozenset(map(_key, m._marked()))),
    ord("l"): lambda m: m._push(m._marked()),
    ord("t"): lambda m: m._push(tuple(m._marked())),
    ord("d"): _P._dict,
    0x85: lambda m: m._tuple(1),
    0x86: lambda m: m._tuple(2),
    0x87: lambda m: m._tuple(3),
    # memo
    ord("g"): lambda m: m._get(_int(m._line())),
    ord("h"): lambda m: m._get(m._number(U1)),
    ord("j"): lambda m: m._get(m._number(U4)),
    ord("p"): lambda m: m._put(_int(m._line())),
    ord("q"): lambda m: m._put(m._number(U1)),
    ord("r"): lambda m: m._put(m._number(U4)),
    0x94: lambda m: m._put(len(m._memo)),
    # names and what is made with them
    ord("c"): lambda m: m._global(m._line(), m._line()),
    0x93: _P._stack_global,
    ord("R"): _P._reduce,
    ord("b"): _P._complete,
    ord("P"): lambda m: m._push(m._persistent(m._line())),
    ord("Q"): lambda m: m._push(m._persistent(m._pop())),
}

_REFUSED = {
    ord("i"): "INST",
    ord("o"): "OBJ",
    0x81: "NEWOBJ",
    0x92: "NEWOBJ_EX",
    0x82: "EXT1",
    0x83: "EXT2",
    0x84: "EXT4",
    0x97: "NEXT_BUFFER",
    0x98: "READONLY_BUFFER",
}
