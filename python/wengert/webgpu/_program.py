"""Programs: what runs on a WebGPU device, checked when they are made or loaded."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from wengert import _core
from wengert._core import ArgumentError, Tensor
from wengert.webgpu._loops import Log, Loop, Repeat, nested
from wengert.webgpu._numbers import FUNCTIONS
from wengert.webgpu._sizes import Size, size

__all__ = ["Array", "Dispatch", "Program"]

VERSION = 2
"""The version that is written; files of version 1 have no loops and no generator."""

KEY = "wengert.webgpu"
"""The key of a program in the metadata of its file."""

MOST = {
    "shaders": 4096, "buffers": 1 << 16, "inputs": 1024, "outputs": 1024, "constants": 1 << 16,
    "state": 1 << 16, "conditions": 4096, "numbers": 1 << 16, "refusals": 4096,
    "dispatches": 1 << 16, "repeats": 4096,
}  # fmt: skip
"""The most entries of each list in a file."""

ROUNDS = 65_000
"""The most rounds of all loops of an invocation."""

WORDS = 1024
"""The most words of a dispatch: 4 KiB of the uniform buffer."""

BYTES = {
    "bool": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8, "uint8": 1, "uint16": 2, "uint32": 4,
    "uint64": 8, "float16": 2, "bfloat16": 2, "float32": 4,
}  # fmt: skip
"""The bytes of an element of each dtype that shaders have."""

RELATIONS = ("==", "!=", "<", "<=")


class Array(NamedTuple):
    """An array of a program: an input, or an output."""

    name: str
    """The name of the parameter; of an output, its position."""
    dtype: str
    """The name of the dtype."""
    shape: tuple[int | Size, ...]
    """Sizes, some of which may be expressions over symbols."""
    buffer: int | None
    """The buffer; None of an input that nothing reads."""

    def __repr__(self) -> str:
        sizes = ", ".join(map(str, self.shape)) + ("," if len(self.shape) == 1 else "")
        return f"{self.name}: {self.dtype} ({sizes})"


class Held(NamedTuple):
    """A tensor in a buffer: a constant, or the first value of state."""

    tensor: int
    buffer: int


class Refusal(NamedTuple):
    """What a slot of faults says."""

    kind: str
    op: str
    sizes: tuple[int | Size, ...]
    message: str
    line: str | None
    says: str = "index"
    axes: tuple[int, ...] = ()
    has_sizes: bool = True

    def false(self, i: int, shape: Sequence[int]) -> str:
        """What is wrong where element `i` of a value is false. Older files have no sizes."""
        if self.has_sizes and not shape:
            return "got false"
        of = f" of shape {tuple(shape)}" if self.has_sizes else ""
        return f"element {i} (in C order){of} is false"


class Dispatch(NamedTuple):
    """One dispatch: a shader over buffers."""

    name: str
    line: str | None
    shader: int
    bind: tuple[int, ...]
    words: tuple[Any, ...]
    invocations: int | Size
    rounds: int | Size

    def varies(self, symbols: frozenset[str]) -> tuple[str, ...]:
        """The symbols besides these on which it depends: numbers of rounds."""
        sizes = [x for x in (*self.words, self.invocations, self.rounds) if isinstance(x, Size)]
        return tuple(sorted(frozenset().union(*(x.symbols for x in sizes)) - symbols))


FEATURES = ("shader-f16",)
"""Optional features of WebGPU that programs can use."""


def refuse(what: str) -> NoReturn:
    """Refuse a file."""
    raise ArgumentError(f"webgpu.load: not a program: {what}")


class Program:
    """A program for WebGPU: shaders, buffers, dispatches, and the tensors that it holds.

    `inputs` and `outputs` are arrays with names, dtypes and shapes; sizes may be expressions over
    symbols, which a call binds.
    """

    def __init__(self, described: Any, tensors: Sequence[Tensor]) -> None:
        read = _Reader(described, tensors)
        self._described, self._tensors = described, tuple(tensors)
        self.limits: dict[str, int] = read.limits()
        self.features: tuple[str, ...] = read.features()
        self.shaders: tuple[str, ...] = read.shaders()
        self.buffers: tuple[int | Size, ...] = read.buffers()
        self.inputs: tuple[Array, ...] = read.arrays("inputs")
        self.symbols = frozenset(
            dim.text for x in self.inputs for dim in x.shape
            if isinstance(dim, Size) and dim.is_symbol
        )  # fmt: skip
        self.outputs: tuple[Array, ...] = read.arrays("outputs")
        self.constants, self.state = read.held("constants"), read.held("state")
        self.conditions = read.conditions()
        self.numbers: tuple[Any, ...] = read.numbers()
        self.refusals: tuple[Refusal, ...] = read.refusals()
        self.faults: int | None = read.faults(len(self.refusals))
        self.repeats: tuple[Repeat, ...] = read.repeats(self.symbols)
        self.order: list[int | Loop] = read.order(self.repeats)
        self.dispatches: tuple[Dispatch, ...] = read.dispatches(self.repeats)
        self.generator: int | None = read.generator(len(self.state))
        unbound = sorted(read.names - self.symbols)
        if unbound:
            refuse(f"sizes that no input tells: {', '.join(unbound[:9])}")

    @property
    def nbytes(self) -> int:
        """The bytes of the tensors that it holds."""
        return sum(x.nbytes for x in self._tensors)

    def __repr__(self) -> str:
        inputs, outputs = ", ".join(map(str, self.inputs)), ", ".join(map(str, self.outputs))
        return (
            f"<WebGPU program ({inputs}) -> ({outputs}): {len(self.dispatches)} dispatches of "
            f"{len(self.shaders)} shaders, {len(self.buffers)} buffers, holds {self.nbytes:,} bytes"
            f"{f', {len(self.state)} of state' if self.state else ''}>"
        )

    def explain(self) -> str:
        """The dispatches in order with their buffers and lines, then the shaders."""
        return "\n".join(self._explained())

    def _explained(self) -> Iterator[str]:
        yield repr(self)
        yield from self._listed(self.order, "")
        for i, bytes_ in enumerate(self.buffers):
            yield f"b{i}: {bytes_} bytes"
        for i, text in enumerate(self.shaders):
            yield f"// shader {i}\n{text}"

    def _listed(self, body: Sequence[int | Loop], indent: str) -> Iterator[str]:
        for i in body:
            if isinstance(i, Loop):
                yield f"{indent}repeat {i.repeat.times} times, {i.repeat.round} from 0:"
                yield from self._listed(i.body, indent + "  ")
                continue
            d = self.dispatches[i]
            line = f"  # {d.line}" if d.line else ""
            bound = ", ".join(f"b{k}" for k in d.bind)
            yield (
                f"{indent}{i}: {d.name}: shader {d.shader} ({bound}), {d.invocations} "
                f"invocations{line}"
            )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it as one file: a safetensors file, with the program in its metadata."""
        from wengert.io import save

        text = json.dumps(self._described, allow_nan=False)
        save({f"{i}": x for i, x in enumerate(self._tensors)}, path, {KEY: text})

    def tensor(self, i: int) -> Tensor:
        """A tensor that it holds."""
        return self._tensors[i]


def load(path: str | os.PathLike[str]) -> Program:
    """The program of a file that `Program.save` wrote, or that somebody else did.

    Lengths, positions and expressions are checked: `ValueError` where something is not as it must
    be, `OSError` where the file cannot be read. Shaders are checked by the device that runs them.
    """
    tensors, texts = _core._safetensors_read(os.fspath(path))
    if KEY not in texts:
        refuse(f"a safetensors file without {KEY!r} in its metadata")
    try:
        described = json.loads(texts[KEY], parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        refuse(str(error)[:200])
    if sorted(tensors) != sorted(f"{i}" for i in range(len(tensors))):
        refuse("tensors are not named by their positions")
    return Program(described, [tensors[f"{i}"] for i in range(len(tensors))])


class _Reader:
    """A description, read with care: it may come from anybody."""

    def __init__(self, described: Any, tensors: Sequence[Tensor]) -> None:
        self.root, self.tensors = described, tensors
        self.names: set[str] = set()
        if not isinstance(described, dict):
            refuse("no object")
        version = described.get("version")
        if isinstance(version, bool) or version not in (1, VERSION):
            refuse(f"version {str(version)[:20]}, this reads versions 1 to {VERSION}")
        self.is_first = version == 1

    def entries(self, key: str) -> list[Any]:
        found = self.root.get(key)
        if not isinstance(found, list) or len(found) > MOST[key]:
            refuse(f"{key}: expected a list of at most {MOST[key]}")
        return found

    def objects(self, key: str) -> list[dict[str, Any]]:
        found = self.entries(key)
        if not all(isinstance(x, dict) for x in found):
            refuse(f"{key}: expected objects")
        return found

    def below(self, value: Any, count: int, what: str) -> int:
        """A position."""
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < count:
            refuse(f"{what}: expected a position below {count}, got {str(value)[:40]}")
        return value

    def text(self, value: Any, what: str, longest: int = 4096) -> str:
        if not isinstance(value, str) or len(value) > longest:
            refuse(f"{what}: expected a text of at most {longest} characters")
        return value

    def line(self, value: Any) -> str | None:
        return None if value is None else self.text(value, "line")

    def size(self, value: Any, rounds: frozenset[str] = frozenset()) -> int | Size:
        """A size, which may use the numbers of rounds of these loops."""
        found = size(value)
        if isinstance(found, Size):
            self.names |= found.symbols - rounds
        return found

    def sizes(self, value: Any, what: str) -> tuple[int | Size, ...]:
        if not isinstance(value, list) or len(value) > 64:
            refuse(f"{what}: expected a list of sizes")
        return tuple(self.size(x) for x in value)

    def limits(self) -> dict[str, int]:
        found = self.root.get("limits")
        if not isinstance(found, dict) or set(found) != {"storage_buffers", "binding_bytes"}:
            refuse("limits: expected storage_buffers and binding_bytes")
        return {key: self.below(value, 1 << 48, "limits") for key, value in found.items()}

    def features(self) -> tuple[str, ...]:
        found = self.root.get("features", [])
        if not isinstance(found, list) or any(x not in FEATURES for x in found):
            refuse(f"features: expected a list of some of: {', '.join(FEATURES)}")
        if len(set(found)) < len(found):
            refuse("features: expected each once")
        return tuple(found)

    def shaders(self) -> tuple[str, ...]:
        return tuple(self.text(x, "shaders", 1 << 20) for x in self.entries("shaders"))

    def buffers(self) -> tuple[int | Size, ...]:
        found = tuple(self.size(x) for x in self.entries("buffers"))
        self.count = len(found)
        for i, bytes_ in enumerate(found):
            if isinstance(bytes_, int) and (bytes_ < 32 or bytes_ % 32 or bytes_ > 1 << 48):
                refuse(f"buffer {i}: {bytes_} bytes, expected a multiple of 32")
        self.lengths = found
        return found

    def buffer(self, value: Any, bytes_: int | None) -> int:
        """A buffer that has room for so many bytes, where both are known."""
        at = self.below(value, self.count, "buffer")
        length = self.lengths[at]
        if bytes_ is not None and isinstance(length, int) and length < max(bytes_, 1):
            refuse(f"buffer {at} has {length} bytes, and {bytes_} lie in it")
        return at

    def arrays(self, key: str) -> tuple[Array, ...]:
        found = []
        for i, x in enumerate(self.objects(key)):
            dtype, shape = x.get("dtype"), self.sizes(x.get("shape"), key)
            unread = key == "inputs" and x.get("buffer") is None
            known_dtypes = {*BYTES, "float64"} if unread else BYTES
            if not isinstance(dtype, str) or dtype not in known_dtypes:
                refuse(f"{key}: unknown dtype {str(dtype)[:40]}")
            known = [dim for dim in shape if isinstance(dim, int)]
            bytes_ = BYTES.get(dtype, 8) if len(known) == len(shape) else None
            for dim in known:
                bytes_ = bytes_ * dim if bytes_ is not None else None
            buffer = None if unread else self.buffer(x.get("buffer"), bytes_)
            name = self.text(x.get("name", str(i)), "name", 256)
            found.append(Array(name, dtype, shape, buffer))
        bound = [x.buffer for x in found if x.buffer is not None]
        if len(set(bound)) != len(bound):
            refuse(f"{key}: two share a buffer")
        return tuple(found)

    def held(self, key: str) -> tuple[Held, ...]:
        found = []
        for x in self.objects(key):
            tensor = self.below(x.get("tensor"), len(self.tensors), "tensor")
            if self.tensors[tensor].dtype.name not in BYTES:
                refuse(f"{key}: tensor {tensor} is {self.tensors[tensor].dtype}")
            buffer = self.buffer(x.get("buffer"), self.tensors[tensor].nbytes)
            if not isinstance(self.lengths[buffer], int):
                refuse(f"{key}: a buffer of known length is wanted")
            found.append(Held(tensor, buffer))
        return tuple(found)

    def conditions(self) -> tuple[tuple[int | Size, str, int | Size, str | None], ...]:
        found = []
        for x in self.entries("conditions"):
            if not isinstance(x, list) or len(x) != 4 or x[1] not in RELATIONS:
                refuse("conditions: expected two sizes, how they compare, and a line")
            found.append((self.size(x[0]), x[1], self.size(x[2]), self.line(x[3])))
        return tuple(found)

    def number(self, x: Any) -> Any:
        bits = x.get("bits") if isinstance(x, dict) else None
        if not isinstance(bits, str) or len(bits) != 16 or set(bits) - set("0123456789abcdef"):
            refuse("numbers: expected the bits of a float64")
        return ("bits", bits)

    def numbers(self) -> tuple[Any, ...]:
        found: list[Any] = []
        for at, x in enumerate(self.objects("numbers")):
            if "size" in x:
                found.append(("size", self.size(x["size"])))
                continue
            if "do" not in x:
                found.append(self.number(x))
                continue
            do, of = x["do"], x.get("of")
            if not isinstance(do, str) or do not in FUNCTIONS:
                refuse(f"numbers: unknown calculation {str(do)[:40]}")
            if not isinstance(of, list) or len(of) != 2:
                refuse("numbers: expected two operands")
            args = [self.number(y) if isinstance(y, dict) else self.below(y, at, "number")
                    for y in of]  # fmt: skip
            found.append((do, args))
        self.number_count = len(found)
        return tuple(found)

    def refusals(self) -> tuple[Refusal, ...]:
        found = []
        for x in self.objects("refusals"):
            kind, line = x.get("kind"), self.line(x.get("line"))
            if kind == "outside":
                sizes = self.sizes(x.get("sizes"), "refusals")
                says, axes = x.get("says", "index"), x.get("axes", [*range(len(sizes))])
                if says not in ("index", "class", "label"):
                    refuse(f"refusals: unknown word {str(says)[:40]}")
                if not isinstance(axes, list) or len(axes) != len(sizes):
                    refuse("refusals: expected an axis for each size")
                axes = tuple(self.below(axis, 64, "axis") for axis in axes)
                op = self.text(x.get("op"), "op", 64)
                found.append(Refusal(kind, op, sizes, "", line, says, axes))
            elif kind == "false":
                message = self.text(x.get("message"), "message")
                sizes, has_sizes = self.sizes(x.get("sizes", []), "refusals"), "sizes" in x
                found.append(
                    Refusal(kind, "check", sizes, message, line, has_sizes=has_sizes)
                )
            else:
                refuse(f"refusals: unknown kind {str(kind)[:40]}")
        return tuple(found)

    def faults(self, slots: int) -> int | None:
        found = self.root.get("faults")
        if found is None and not slots:
            return None
        at = self.buffer(found, 16 * slots)
        if not isinstance(self.lengths[at], int):
            refuse("faults: a buffer of known length is wanted")
        return at

    def times(self, x: Any) -> int | Size | Log:
        if not isinstance(x, dict):
            return self.size(x)
        base = x.get("log")
        if isinstance(base, bool) or not isinstance(base, int) or not 2 <= base <= 64:
            refuse("repeats: expected a logarithm to a base from 2 to 64")
        return Log(base, self.size(x.get("of")))

    def repeats(self, symbols: frozenset[str]) -> tuple[Repeat, ...]:
        found: list[Repeat] = []
        last = len(self.entries("dispatches"))
        for x in [] if self.is_first else self.objects("repeats"):
            start = self.below(x.get("from"), last, "repeats")
            stop = self.below(x.get("to"), last + 1, "repeats")
            name = self.text(x.get("round"), "round", 64)
            if not Size(name).is_symbol or name in symbols or any(name == r.round for r in found):
                refuse(f"repeats: {name!r} is no new name for rounds")
            if stop <= start:
                refuse("repeats: expected dispatches from one up to a later one")
            found.append(Repeat(start, stop, self.times(x.get("times")), name))
        return tuple(found)

    def order(self, repeats: Sequence[Repeat]) -> list[int | Loop]:
        try:
            return nested(repeats, len(self.root["dispatches"]))
        except ValueError as error:
            refuse(f"repeats: {error}")

    def generator(self, states: int) -> int | None:
        found = None if self.is_first else self.root.get("generator")
        if found is None:
            return None
        at = self.below(found, states, "generator")
        tensor = self.tensors[self.below(self.root["state"][at]["tensor"], 1 << 53, "tensor")]
        if (tensor.dtype.name, tuple(tensor.shape)) != ("uint32", (4,)):
            refuse("generator: expected state of four words")
        return at

    def word(self, x: Any, rounds: frozenset[str]) -> Any:
        if isinstance(x, str):
            return self.size(x, rounds)
        if isinstance(x, dict):
            number = self.below(x.get("number"), self.number_count, "number")
            dtype, high = x.get("dtype"), x.get("high")
            if not isinstance(dtype, str) or dtype not in BYTES or not isinstance(high, bool):
                refuse("words: a number has a dtype, and is high or not")
            return number, dtype, high
        return self.below(x, 1 << 32, "word")

    def dispatches(self, repeats: Sequence[Repeat]) -> tuple[Dispatch, ...]:
        found: list[Dispatch] = []
        shaders, counts = len(self.root["shaders"]), dict[int, int]()
        for i, x in enumerate(self.objects("dispatches")):
            names = frozenset(r.round for r in repeats if r.start <= i < r.stop)
            bind, words = x.get("bind"), x.get("words")
            if not isinstance(bind, list) or not 0 < len(bind) <= 64:
                refuse("dispatches: expected the buffers that are bound")
            if not isinstance(words, list) or len(words) > WORDS:
                refuse(f"dispatches: expected at most {WORDS} words")
            bound = tuple(self.below(b, self.count, "buffer") for b in bind)
            if len(set(bound)) != len(bound):
                refuse("dispatches: a buffer is bound twice")
            shader = self.below(x.get("shader"), shaders, "shader")
            if counts.setdefault(shader, len(bound)) != len(bound):
                refuse("dispatches: a shader binds different counts of buffers")
            rounds = self.size(x.get("rounds"), names)
            if isinstance(rounds, int) and rounds > ROUNDS:
                refuse(f"dispatches: {rounds} rounds of loops, at most {ROUNDS}")
            found.append(
                Dispatch(
                    self.text(x.get("name"), "name", 1 << 16),
                    self.line(x.get("line")),
                    shader,
                    bound,
                    tuple(self.word(w, names) for w in words),
                    self.size(x.get("invocations"), names),
                    rounds,
                )
            )
        return tuple(found)


def named(described: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """A description with the names of its inputs."""
    inputs = [{"name": name, **x} for name, x in zip(names, described["inputs"], strict=True)]
    return {**described, "inputs": inputs}
