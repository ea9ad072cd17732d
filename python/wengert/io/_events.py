"""Event files, which TensorBoard reads: records of protocol buffer messages, written by hand.

A file is a list of records: the length of a message (8 bytes, little-endian), the masked CRC-32C of
these 8 bytes, the message, its masked CRC-32C. A message is a list of fields; the numbers of fields
are those of TensorFlow's `event.proto`, `summary.proto` and `graph.proto`.
"""

from __future__ import annotations

import math
import os
import socket
import struct
import threading
import time
import zlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wengert.graph import Graph

# CRC-32C (Castagnoli), bits reversed.
_POLYNOMIAL = 0x82F63B78


def _table() -> list[int]:
    rows = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (_POLYNOMIAL if byte & 1 else 0)
        rows.append(byte)
    return rows


_TABLE = _table()


def masked_crc(raw: bytes) -> int:
    """The CRC-32C of bytes, turned and shifted so that bytes that hold CRCs have others."""
    crc = 0xFFFFFFFF
    if len(raw) >= 1 << 12:
        crc, raw = _by_lanes(crc, raw)
    for byte in raw:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 255]
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _by_lanes(crc: int, raw: bytes) -> tuple[int, bytes]:
    """The state after most of the bytes, and the bytes that are left.

    The state is linear over bits: that after bytes `a b` is that after `b` from 0, and the state
    after `a` carried through as many zeros as `b` has. So pieces of one length are taken side by
    side, with 32 more lanes of zeros, which say where each bit of a state is carried to.
    """
    import numpy as np

    count = math.isqrt(len(raw))
    length = len(raw) // count
    table = np.array(_TABLE, np.uint32)
    states = np.zeros(count + 32, np.uint32)
    states[0] = crc
    states[count:] = np.uint32(1) << np.arange(32, dtype=np.uint32)
    columns = np.zeros((length, count + 32), np.uint32)
    columns[:, :count] = np.frombuffer(raw, np.uint8, count * length).reshape(count, length).T
    for column in columns:
        states = states >> np.uint32(8) ^ table[(states ^ column) & np.uint32(255)]
    first, *others = states[:count].tolist()
    carried = states[count:].tolist()
    for state in others:
        for bit in range(32):
            if first >> bit & 1:
                state ^= carried[bit]
        first = state
    return first, raw[count * length :]


# Fields of messages.


def _varint(n: int) -> bytes:
    n &= (1 << 64) - 1
    out = bytearray()
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    out.append(n)
    return bytes(out)


def integer(field: int, n: int) -> bytes:
    """A field that holds an integer or a truth value."""
    return _varint(field << 3) + _varint(n)


def text(field: int, data: bytes | str) -> bytes:
    """A field that holds text, bytes, a message, or packed numbers."""
    raw = data.encode() if isinstance(data, str) else data
    return _varint(field << 3 | 2) + _varint(len(raw)) + raw


def double(field: int, x: float) -> bytes:
    """A field that holds a double."""
    return _varint(field << 3 | 1) + struct.pack("<d", x)


def single(field: int, x: float) -> bytes:
    """A field that holds a float."""
    try:
        return _varint(field << 3 | 5) + struct.pack("<f", x)
    except OverflowError:
        return _varint(field << 3 | 5) + struct.pack("<f", math.copysign(math.inf, x))


# Summaries: each is one value of a `Summary` message, which may be joined with others.


def scalar(tag: str, value: float) -> bytes:
    """A summary of one number."""
    return text(1, text(1, tag) + single(2, float(value)))


def _limits() -> list[float]:
    """Upper bounds of the buckets of histograms: on both sides of 0, a tenth above the last."""
    limits, x = [], 1e-12
    while x < 1e20:
        limits.append(x)
        x *= 1.1
    largest = struct.unpack("<d", struct.pack("<Q", 0x7FEFFFFFFFFFFFFF))[0]
    return [-largest, *[-x for x in reversed(limits)], 0.0, *limits, largest]


def histogram(tag: str, values: Any) -> bytes:
    """A summary of how often values fall into buckets. ValueError where one is no number."""
    import numpy as np

    x = np.asarray(values, dtype=np.float64).reshape(-1)
    if not np.isfinite(x).all():
        raise ValueError(f"histogram: {tag} has values that are not finite")
    limits = np.array(_limits())
    counts = np.bincount(np.searchsorted(limits[:-1], x, side="right"), minlength=limits.size)
    # Of empty buckets in a row one is written, which ends where the last of them does.
    full = counts > 0
    kept = full | np.append(full[1:], [False])
    if not kept.any():
        kept[-1] = True
    stated = [float(x.min()), float(x.max())] if x.size else [0.0, 0.0]
    numbers = [*stated, float(x.size), float(x.sum()), float((x * x).sum())]
    body = b"".join(double(k + 1, n) for k, n in enumerate(numbers))
    body += text(6, limits[kept].astype("<f8").tobytes())
    body += text(7, counts[kept].astype("<f8").tobytes())
    return text(1, text(1, tag) + text(5, body))


def _png(pixels: Any) -> bytes:
    """Pixels (height, width, channels) of uint8 as a PNG file, whose rows are not filtered."""
    height, width, channels = pixels.shape

    def chunk(kind: bytes, data: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + check

    color = {1: 0, 2: 4, 3: 2, 4: 6}[channels]
    head = struct.pack(">IIBBBBB", width, height, 8, color, 0, 0, 0)
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)
    parts = [(b"IHDR", head), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts)


def image(tag: str, pixels: Any) -> bytes:
    """A summary of pixels (height, width, channels) of uint8, of 1, 3 or 4 channels."""
    height, width, channels = pixels.shape
    if channels not in (1, 3, 4):
        raise ValueError(f"image: {tag} has {channels} channels, wanted 1, 3 or 4")
    body = integer(1, height) + integer(2, width) + integer(3, channels) + text(4, _png(pixels))
    return text(1, text(1, tag) + text(4, body))


def note(tag: str, words: str) -> bytes:
    """A summary of text, in Markdown: a vector of one string, for the page of texts."""
    strings = integer(1, 7) + text(2, text(2, integer(1, 1))) + text(8, words)
    return text(1, text(1, tag) + text(9, text(1, text(1, "text"))) + text(8, strings))


# Graphs.

# The dtypes that TensorFlow has, by their numbers in its enumeration.
_DTYPES = {
    "float32": 1, "float64": 2, "int32": 3, "uint8": 4, "int16": 5, "int8": 6, "complex64": 8,
    "int64": 9, "bool": 10, "bfloat16": 14, "uint16": 17, "complex128": 18, "float16": 19,
    "uint32": 22, "uint64": 23,
}  # fmt: skip


def graph_bytes(graph: Graph) -> bytes:
    """The message of `wengert.io.tensorboard.graph_def`, made without its package."""
    from wengert.io.tensorboard import _name

    names: dict[int, str] = {}
    taken: set[str] = set()
    out = []
    for node in graph.nodes:
        names[node.id] = _name(node, taken)
        if node.shape is None:
            shape = integer(3, 1)
        else:
            sizes = (-1 if n is None else n for n in node.shape)
            shape = b"".join(text(2, integer(1, n)) for n in sizes)
        attributes = {
            "dtype": integer(6, _DTYPES[node.dtype.name]),
            "_output_shapes": text(1, text(7, shape)),
            "attributes": text(2, str(node.attributes)),
        }
        if node.site is not None:
            attributes["site"] = text(2, f"{node.site.filename}:{node.site.lineno}")
        body = text(1, names[node.id]) + text(2, node.op)
        body += b"".join(text(3, names[other.id]) for other in node.inputs)
        body += b"".join(text(5, text(1, k) + text(2, v)) for k, v in attributes.items())
        out.append(text(1, body))
    return b"".join(out) + text(4, integer(1, 22))


# Files.


class EventFile:
    """A new event file in a folder, which is made if it is not there. Threads may share it."""

    def __init__(self, directory: str | os.PathLike[str], suffix: str = "") -> None:
        folder = os.fspath(directory)
        os.makedirs(folder, exist_ok=True)
        now, host = time.time(), socket.gethostname()
        name = f"events.out.tfevents.{int(now):010d}.{host}.{os.getpid()}"
        self._lock = threading.Lock()
        for k in range(1 << 16):
            self.path = os.path.join(folder, f"{name}.{k}{suffix}")
            try:
                self._file = open(self.path, "xb")  # noqa: SIM115
                break
            except FileExistsError:
                continue
        self.write(text(3, "brain.Event:2"), now)

    def write(self, fields: bytes, wall_time: float | None = None) -> None:
        """Write one event: its fields, but for the time, which is now."""
        body = double(1, time.time() if wall_time is None else wall_time) + fields
        length = struct.pack("<Q", len(body))
        checks = [struct.pack("<I", masked_crc(part)) for part in (length, body)]
        with self._lock:
            self._file.write(length + checks[0] + body + checks[1])

    def summary(self, values: bytes, step: int | None) -> None:
        """Write summaries of a step."""
        at = b"" if step is None else integer(2, int(step))
        self.write(at + text(5, values))

    def graph(self, graph: Graph) -> None:
        """Write a graph."""
        self.write(text(4, graph_bytes(graph)))

    def flush(self) -> None:
        """See that what was written can be read."""
        with self._lock:
            if not self._file.closed:
                self._file.flush()

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._file.close()


def grid(pixels: Any, scale: bool) -> Any:
    """Pixels as uint8. With `scale`, floats from 0 to their largest value, or where some are
    negative around 127, fill the range, as TensorFlow does; else floats are in [0, 1]."""
    import numpy as np

    x = np.asarray(pixels)
    if x.dtype == np.uint8:
        return x
    if x.dtype == np.bool_:
        return x.astype(np.uint8) * 255
    x = np.nan_to_num(x.astype(np.float64))
    if not scale:
        return np.clip(x * 255.0 + 0.5, 0, 255).astype(np.uint8)
    low, high = (float(x.min()), float(x.max())) if x.size else (0.0, 0.0)
    if low < 0:
        # 0 is grey; the larger of both sides reaches the end of the range.
        reach = max(-low, high)
        return np.clip(x * (127.0 / reach) + 128.0, 0, 255).astype(np.uint8)
    return np.clip(x * (255.0 / high if high > 0 else 0.0), 0, 255).astype(np.uint8)
