"""Files of PyTorch, read without PyTorch and without executing anything.

Such a file is a pickle and, beside it, the bytes of storages. The pickle names the functions of
PyTorch that make tensors of storages; here each name stands for a function of this module
(`_NAMES`, `Reading._names`), and any other is refused. `_pickles.py` is the machine.

A pickle is read twice: first without data, which checks all of it and counts how often each storage
is used; then with data, and each storage is let go after its last use.
"""

from __future__ import annotations

import math
import os
import re
import zipfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from wengert import _core
from wengert._core import ArgumentError, Device, DType, Tensor
from wengert._files import of_zip, regular
from wengert.io._checkpoints import LEGACY, gathered, read_index
from wengert.io._pickles import Builder, Refused, Unpickler, called, is_key

__all__ = ["load_torch"]


def load_torch(path: str | os.PathLike[str], *, device: str | Device | None = None) -> Any:
    """What `torch.save` wrote to a file (`.pt`, `.pth`, `.bin`), without PyTorch.

    Tensors and parameters become tensors on `device` (by default the CPU) that require no gradient,
    those that shared a storage become values of their own; NumPy's arrays and scalars, dicts, lists
    and plain values become themselves; an `OrderedDict` becomes a dict, a `torch.device` its name.
    Both formats are read, that of PyTorch 1.6 and later (a zip archive) and the one before, and
    indices of several files (`pytorch_model.bin.index.json`).

    Nothing in the file is executed: the names that it may call are a fixed list of functions that
    build tensors and containers, and a file that uses any other (a whole module, an optimizer)
    is refused with that name, as are sparse, quantized and complex tensors. `ValueError` for what
    is refused or broken, `OSError` when the file cannot be read.
    """
    place = _core.device("cpu" if device is None else device)
    name = os.fspath(path)
    if name.endswith(".index.json"):
        _, weights = read_index("load_torch", name)
        return gathered("load_torch", name, weights, lambda file: _state(file, place))
    regular("load_torch", name)
    try:
        with open(name, "rb") as file:
            start = file.read(len(LEGACY))
        if start == LEGACY:
            return _legacy(name, place)
        if not start.startswith(b"PK"):
            raise Refused(_other(start))
        return _zipped(name, place)
    except Refused as error:
        raise ArgumentError(f"load_torch: {error}\n  {name}") from error


def _state(file: str, place: Device) -> dict[str, Tensor]:
    found = load_torch(file, device=place)
    if not isinstance(found, dict) or not all(isinstance(x, Tensor) for x in found.values()):
        raise ArgumentError(f"load_torch: expected a dict of tensors\n  {file}")
    return found


def _other(start: bytes) -> str:
    if len(start) > 8 and start[8:9] == b"{":
        return "not a file of PyTorch: a safetensors file, which wg.load reads"
    return f"not a file of PyTorch: it begins with {start[:8]!r}"


# How often tensors may share the elements of a storage: each is a value of its own here, so a small
# file could ask for a lot.
_COPIES = 64


@dataclass(frozen=True)
class _Storage:
    key: str
    dtype: DType
    count: int


class _Elements(Builder):
    """The class of a storage, by the dtype of its elements."""

    def __init__(self, name: str, dtype: DType) -> None:
        super().__init__(name)
        self.dtype = dtype


_NUMPY = re.compile(r"[<|=]?([?bBhHiIlLqQefd]|[iu][1248]|f[248]|b1)")


class _NumpyType:
    """A dtype of NumPy while a pickle completes it."""

    def __init__(self, text: Any, *_: Any) -> None:
        if type(text) is not str or not _NUMPY.fullmatch(text):
            raise Refused(f"numpy.dtype {text!r} is not read")
        self.dtype = np.dtype(text)

    def build(self, state: Any) -> None:
        """The byte order, the second of the state."""
        if type(state) is not tuple or len(state) < 2 or state[1] not in ("<", "|", "="):
            raise Refused(f"numpy.dtype in the byte order {state!r:.40} is not read")


class _Reading:
    """One reading of a pickle; `data(key)` gives the bytes of a storage, None in the first."""

    def __init__(
        self,
        place: Device,
        sizes: Callable[[str], int] | None,
        data: Callable[[str], bytes] | None,
        uses: Counter[str],
    ) -> None:
        self._place = place
        self._sizes = sizes
        self._data = data
        self._held: dict[str, bytes] = {}
        self._taken: Counter[str] = Counter()
        self.uses = uses
        self.storages: dict[str, _Storage] = {}
        own: dict[str, Callable[..., Any]] = {
            "torch._utils._rebuild_tensor": self._tensor,
            "torch._utils._rebuild_tensor_v2": self._tensor,
            "torch._utils._rebuild_tensor_v3": self._typed,
        }
        self._names = _NAMES | {name: Builder(name, call) for name, call in own.items()}

    def load(self, pickle: bytes, at: int = 0) -> tuple[Any, int]:
        """The value of a pickle, and where it ends."""
        machine = Unpickler(pickle, at, self.find, self.storage, _complete)
        return machine.load(), machine.at

    def find(self, module: str, name: str) -> Any:
        """What a name stands for."""
        full = f"{module}.{name}"
        dtype = _STORAGES.get(full)
        if dtype is not None:
            return _Elements(full, dtype)
        if module == "torch" and (plain := _DTYPES.get(name)) is not None:
            return plain
        found = self._names.get(full)
        if found is None:
            remedy = ""
            if module.startswith("torch.nn") or module == "__main__":
                remedy = "; in PyTorch, save model.state_dict() instead of the model"
            elif module.startswith("__torch__"):
                remedy = " (a TorchScript module)"
            raise Refused(f"the file uses {full}, which load_torch does not call{remedy}")
        return found

    def storage(self, described: Any) -> _Storage:
        """The storage that a persistent id names."""
        if type(described) is not tuple or len(described) < 5 or described[0] != "storage":
            raise Refused(f"a persistent id is {described!r:.60}")
        _, kind, key, _, count = described[:5]
        if len(described) > 5 and described[5] is not None:
            raise Refused("views of storages in the old format are not read")
        if not isinstance(kind, _Elements) or type(key) is not str or not _is_size(count):
            raise Refused(f"a persistent id is {described!r:.60}")
        found = _Storage(key, kind.dtype, count)
        if self._sizes is not None and count * kind.dtype.itemsize > self._sizes(key):
            raise Refused(
                f"storage {key!r} has {self._sizes(key)} bytes, wanted {count} of {kind.dtype}"
            )
        if self.storages.setdefault(key, found) != found:
            raise Refused(f"storage {key!r} is described in two ways")
        return found

    def _typed(self, *given: Any) -> Any:
        """`_rebuild_tensor_v3`: the dtype comes beside a storage of bytes."""
        storage, offset, size, stride, _, _, dtype = given[:7]
        if not isinstance(storage, _Storage) or not isinstance(dtype, DType):
            raise Refused(f"a tensor of dtype {dtype!r}")
        return self._tensor(storage, offset, size, stride, dtype=dtype)

    def _tensor(
        self, storage: Any, offset: Any, size: Any, stride: Any, *_: Any, dtype: DType | None = None
    ) -> Any:
        """The tensor at an offset of a storage. Sizes are checked before anything is made."""
        if not isinstance(storage, _Storage):
            raise Refused("a tensor without a storage")
        dtype = dtype or storage.dtype
        if type(size) is not tuple or type(stride) is not tuple or len(size) != len(stride):
            raise Refused(f"a tensor of sizes {size!r:.40} and strides {stride!r:.40}")
        if not all(map(_is_size, (offset, *size, *stride))):
            raise Refused(f"a tensor of sizes {size!r:.40} and strides {stride!r:.40}")
        there = storage.count * storage.dtype.itemsize // dtype.itemsize
        kept = [(n, s) for n, s in zip(size, stride, strict=True) if s]
        last = offset + sum((n - 1) * s for n, s in kept)
        if 0 not in size and last >= there:
            raise Refused(
                f"a tensor reaches to element {last} of storage {storage.key!r}, which has {there}"
            )
        # Axes of stride 0 take no memory. Others may overlap, but not make more of a file.
        if math.prod(n for n, _ in kept) > max(there, 1) and 0 not in size:
            raise Refused(f"a tensor of shape {size} overlaps itself in {there} elements")
        if self._data is None:
            self.uses[storage.key] += 1
            self._taken[storage.key] += math.prod(n for n, _ in kept) * dtype.itemsize
            if self._taken[storage.key] > _COPIES * there * dtype.itemsize + 4096:
                raise Refused(f"tensors take storage {storage.key!r} more than {_COPIES} times")
            return None
        raw = self._held.pop(storage.key, None) or self._data(storage.key)
        self.uses[storage.key] -= 1
        if self.uses[storage.key]:
            self._held[storage.key] = raw
        if 0 in size:
            return _core.zeros(size, dtype=dtype, device=self._place)
        return _strided(raw, dtype, offset, size, stride).to(self._place)


def _is_size(n: Any) -> bool:
    return type(n) is int and 0 <= n < 1 << 62


def _strided(
    raw: bytes, dtype: DType, offset: int, size: tuple[int, ...], stride: tuple[int, ...]
) -> Tensor:
    item = dtype.itemsize
    base = tuple(n if s else 1 for n, s in zip(size, stride, strict=True))
    plain, wanted = [], 1
    for n in reversed(base):
        plain.append(wanted)
        wanted *= n
    in_order = all(n == 1 or s == p for n, s, p in zip(base, stride, plain[::-1], strict=True))
    start, length = offset * item, math.prod(base) * item
    if in_order:
        piece = raw if (start, length) == (0, len(raw)) else raw[start : start + length]
    else:
        words = np.frombuffer(raw, f"u{item}", len(raw) // item)[offset:]
        steps = tuple(s * item for s in stride)
        piece = np.lib.stride_tricks.as_strided(words, base, steps, writeable=False).tobytes()
    x = _core._from_bytes(dtype, base, piece)
    return x if base == size else _core.broadcast_to(x, size)


# --- names that a pickle may use


def _parameter(data: Any, *_: Any) -> Any:
    return data


def _as_dict(*given: Any) -> dict[Any, Any]:
    pairs = given[0] if given else []
    pairs = list(pairs.items()) if isinstance(pairs, dict) else pairs
    if len(given) > 1 or not all(is_key(k) for k, _ in pairs):
        raise Refused("a dict of other things than pairs")
    return dict(pairs)


def _defaulted(_factory: Any = None) -> dict[Any, Any]:
    return {}


def _as_set(items: Any = ()) -> set[Any]:
    if not all(map(is_key, items)):
        raise Refused("a set of other things than plain values")
    return set(items)


def _encoded(text: str, encoding: str) -> bytes:
    if encoding != "latin1":
        raise Refused(f"a text in the encoding {encoding!r:.20}")
    return text.encode(encoding)


def _device(kind: str, index: int | None = None) -> str:
    return kind if index is None else f"{kind}:{index:d}"


def _size(sizes: Any) -> tuple[Any, ...]:
    return tuple(sizes)


def _of_type(build: Any, _kind: Any, given: Any, state: Any) -> Any:
    if not isinstance(build, Builder) or build.call is None or type(given) is not tuple:
        raise Refused("torch._tensor._rebuild_from_type_v2 of another function")
    return called(build, given)


def _complex(real: float, imag: float) -> complex:
    return complex(real, imag)


def _array(_kind: Any, shape: Any, _code: Any) -> np.ndarray[Any, Any]:
    """An empty array, which the pickle completes in place."""
    if shape != (0,):
        raise Refused(f"numpy: an array is reconstructed as {shape!r:.40}")
    return np.ndarray((0,), "i1")


def _buffer(raw: Any, kind: Any, shape: Any, order: Any, axes: Any = None) -> Any:
    if not isinstance(kind, _NumpyType) or type(raw) not in (bytes, bytearray) or axes is not None:
        raise Refused("numpy: an array of other things than plain numbers")
    if type(shape) is not tuple or not all(map(_is_size, shape)):
        raise Refused(f"numpy: an array of shape {shape!r:.40}")
    return np.frombuffer(bytearray(raw), kind.dtype).reshape(shape, order=order)


def _scalar(kind: Any, raw: Any) -> Any:
    sized = isinstance(kind, _NumpyType) and type(raw) is bytes
    if not sized or len(raw) != kind.dtype.itemsize:
        raise Refused("numpy: a scalar of another type or size")
    return np.frombuffer(raw, kind.dtype)[0]


def _complete(x: Any, state: Any) -> None:
    """BUILD: arrays and dtypes of NumPy get their content; attributes of dicts are left out."""
    if isinstance(x, _NumpyType):
        return x.build(state)
    if isinstance(x, dict):
        return None
    if type(x) is not np.ndarray or type(state) is not tuple or len(state) != 5:
        raise Refused(f"the pickle sets the state of a value of type {type(x).__name__}")
    _, shape, kind, columns, raw = state
    if not isinstance(kind, _NumpyType) or type(raw) is not bytes or type(shape) is not tuple:
        raise Refused("numpy: an array of other things than plain numbers")
    if not all(map(_is_size, shape)) or math.prod(shape) * kind.dtype.itemsize != len(raw):
        raise Refused(f"numpy: an array of shape {shape!r:.40} of {len(raw)} bytes")
    x.__setstate__((1, shape, kind.dtype, bool(columns), raw))  # type: ignore[arg-type]
    return None


def _builders(*rows: tuple[str, Callable[..., Any] | None]) -> dict[str, Any]:
    return {name: Builder(name, call) for names, call in rows for name in names.split()}


_NAMES = _builders(
    ("torch._utils._rebuild_parameter torch._utils._rebuild_parameter_with_state", _parameter),
    ("torch._tensor._rebuild_from_type_v2", _of_type),
    ("torch.Tensor torch.nn.parameter.Parameter torch.nn.Parameter numpy.ndarray", None),
    ("torch.Size", _size),
    ("torch.device", _device),
    ("collections.OrderedDict collections.Counter builtins.dict __builtin__.dict", _as_dict),
    ("collections.defaultdict", _defaulted),
    ("builtins.list __builtin__.list builtins.int __builtin__.int", None),
    ("builtins.bytes __builtin__.bytes", lambda: b""),
    ("builtins.set __builtin__.set", _as_set),
    ("builtins.frozenset __builtin__.frozenset", lambda items=(): frozenset(_as_set(items))),
    ("builtins.complex __builtin__.complex", _complex),
    ("_codecs.encode", _encoded),
    ("numpy.dtype", _NumpyType),
    ("numpy.core.multiarray._reconstruct numpy._core.multiarray._reconstruct", _array),
    ("numpy.core.numeric._frombuffer numpy._core.numeric._frombuffer", _buffer),
    ("numpy.core.multiarray.scalar numpy._core.multiarray.scalar", _scalar),
)

_STORAGES = {
    f"torch.{word}Storage": getattr(_core, dtype)
    for word, dtype in {
        "Float": "float32", "Double": "float64", "Half": "float16", "BFloat16": "bfloat16",
        "Long": "int64", "Int": "int32", "Short": "int16", "Char": "int8", "Byte": "uint8",
        "Bool": "bool",
    }.items()
}  # fmt: skip
_STORAGES |= dict.fromkeys(("torch.UntypedStorage", "torch.storage.UntypedStorage"), _core.uint8)

_DTYPES = {
    name: getattr(_core, name)
    for name in (
        "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
        "float16", "bfloat16", "float32", "float64",
    )
}  # fmt: skip


# --- the two formats


def _zipped(path: str, place: Device) -> Any:
    length = os.path.getsize(path)
    with of_zip("load_torch", path), zipfile.ZipFile(path) as archive:
        entries = {entry.filename: entry for entry in archive.infolist()}
        roots = [n.removesuffix("data.pkl") for n in entries if re.fullmatch(r"[^/]+/data\.pkl", n)]
        if len(roots) != 1:
            arrays = any(n.endswith(".npy") for n in entries)
            remedy = ": wg.io.read_npz reads .npz" if arrays else ""
            raise Refused(f"not a file of PyTorch: a zip archive without data.pkl{remedy}")

        def entry(name: str) -> zipfile.ZipInfo:
            found = entries.get(roots[0] + name)
            if found is None:
                raise Refused(f"the archive lacks {name}")
            # PyTorch compresses nothing, so no entry is larger than the file.
            if found.compress_type != zipfile.ZIP_STORED or found.flag_bits & 1:
                raise Refused(f"{name} is compressed or encrypted, which PyTorch does not do")
            if found.file_size != found.compress_size or found.file_size > length:
                raise Refused(f"{name} is larger than the file")
            return found

        def read(name: str) -> bytes:
            found = entry(name)
            data = archive.read(found)
            if len(data) != found.file_size:
                raise Refused(f"{name} is cut off")
            return data

        if roots[0] + "byteorder" in entries and read("byteorder") != b"little":
            raise Refused("the file was written by a big-endian machine")
        pickle = read("data.pkl")
        first = _Reading(place, lambda key: entry(f"data/{key}").file_size, None, Counter())
        first.load(pickle)
        second = _Reading(place, None, lambda key: read(f"data/{key}"), first.uses)
        return second.load(pickle)[0]


def _legacy(path: str, place: Device) -> Any:
    with open(path, "rb") as file:
        data = file.read()
    plain = _Reading(place, None, None, Counter())
    _, at = plain.load(data)
    protocol, at = plain.load(data, at)
    system, at = plain.load(data, at)
    if protocol != 1001 or type(system) is not dict or system.get("little_endian") is not True:
        raise Refused(f"protocol {protocol!r:.20} of a machine {system!r:.80} is not read")
    first = _Reading(place, None, None, Counter())
    start = at
    _, at = first.load(data, at)
    keys, at = first.load(data, at)
    if type(keys) is not list or set(map(str, keys)) != set(first.storages):
        raise Refused("the list of storages is another than that of the tensors")
    places: dict[str, tuple[int, int]] = {}
    for key in keys:
        storage = first.storages[str(key)]
        size = storage.count * storage.dtype.itemsize
        count = int.from_bytes(data[at : at + 8], "little")
        if count != storage.count or at + 8 + size > len(data):
            raise Refused(f"storage {key!r} has {count} elements, wanted {storage.count}")
        places[str(key)] = (at + 8, at + 8 + size)
        at += 8 + size
    if at != len(data):
        raise Refused(f"{len(data) - at} bytes are left over")

    def read(key: str) -> bytes:
        a, b = places[key]
        return data[a:b]

    return _Reading(place, None, read, first.uses).load(data, start)[0]
