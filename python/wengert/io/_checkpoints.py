"""Nested state in safetensors files.

A dict of tensors is a plain safetensors file. Anything else is one too: its tensors under names
that say where they lie (`model.0.weight`), and beside them, in the metadata's entry `wengert`, a
description in JSON of the whole. There, null, truth values, ints, finite floats, strings and lists
stand for themselves, and everything else is an object of one entry that says its kind: `{"dict":
{…}}`, `{"pairs": [[key, value], …]}` for a dict whose keys are not all strings, `{"tuple": […]}`,
`{"tensor": name}`, `{"array": name}` and `{"scalar": name}` (of NumPy), `{"float": "inf"}`,
`{"complex": [re, im]}`, `{"bytes": base64}`, `{"dtype": name}`.

Nothing in a file is executed, and nothing is allocated that the file is too short for.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
import math
import os
import re
import secrets
import zipfile
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from wengert import _core
from wengert._core import ArgumentError, ArgumentTypeError, Device, DType, Tensor
from wengert._files import of_zip, regular, replacing

__all__ = ["load", "save"]

_KEY = "wengert"
_VERSION = 1
_DEPTH = 100
# Lists and dicts in memory take many times the bytes of their text.
_TEXT_LIMIT = 32 << 20
_INDEX = ".index.json"


def save(
    state: Any,
    path: str | os.PathLike[str],
    metadata: Mapping[str, str] | None = None,
    *,
    max_shard_size: int | None = None,
) -> None:
    """Write nested state to a safetensors file, with text `metadata` if given.

    `state` consists of dicts, lists, tuples, tensors, NumPy arrays and scalars, and plain values:
    None, bool, int, float, complex, str, bytes, dtypes. What `state_dict()` of modules, optimizers
    and schedules gives is such state, and so is `random.get_state()`. A dict of tensors makes a
    plain file of named tensors; other libraries find the tensors of any.

    The file appears complete or not at all, also when several threads or processes write one path:
    it is written beside its place, brought to the disk and then moved there. A link stays, and its
    target is replaced. A folder, a device or a FIFO is refused, and so is state that cannot be
    saved (`TypeError`, which lists where it lies).

    With `max_shard_size`, in bytes, `path` ends in `.safetensors.index.json`: tensors are written
    to several files beside it, none larger unless a single tensor is, and the index last. The files
    of an index that was there before are removed after that.
    """
    if callable(getattr(state, "state_dict", None)):
        raise ArgumentTypeError(
            "save: expected a dict of named tensors, or other state: got "
            f"{type(state).__name__}; save its state: save(x.state_dict(), path)"
        )
    described = _Description(state)
    texts = dict(metadata or {})
    wrong = [f"{k!r}: {v!r}" for k, v in texts.items() if not isinstance(v, str)]
    if wrong or not all(isinstance(k, str) for k in texts):
        raise ArgumentTypeError(f"save: metadata is text: got {', '.join(wrong) or 'other keys'}")
    if _KEY in texts:
        raise ArgumentError(f"save: the entry {_KEY!r} of the metadata is for the description")
    if described.text is not None:
        texts[_KEY] = described.text
    name = os.fspath(path)
    if max_shard_size is not None:
        _save_shards(name, described.tensors, texts, max_shard_size)
        return
    if name.endswith(_INDEX):
        raise ArgumentError(f"save: {name} is the name of an index: give max_shard_size")
    with replacing("save", path) as part:
        _core.safetensors_save(part, described.tensors, texts)


def load(path: str | os.PathLike[str], *, device: str | Device | None = None) -> Any:
    """The state in a safetensors file: what `save` was given, or the tensors by their names.

    Tensors lie on `device`, by default the CPU, and require no gradient. A path that ends in
    `.index.json` is the index of files beside it, as `save(max_shard_size=)` and others write it.

    `ValueError` when the file is not a safetensors file (files of some other formats are told by
    their first bytes), `OSError` when it cannot be read.
    """
    place = _core.device("cpu" if device is None else device)
    name = os.fspath(path)
    if name.endswith(_INDEX):
        tensors, texts = _load_shards(name)
    else:
        tensors, texts = _read(name)
    tensors = {k: x.to(place) for k, x in tensors.items()}
    return tensors if _KEY not in texts else _Restored(tensors, texts[_KEY], name).state


def _read(path: str) -> tuple[dict[str, Tensor], dict[str, str]]:
    try:
        return _core._safetensors_read(path)
    except ArgumentError as error:
        other = _foreign(path)
        if other is None:
            raise
        raise ArgumentError(f"load: not a safetensors file: {other}\n  {path}") from error


def _foreign(path: str) -> str | None:
    """What a file is that another function of ours reads."""
    if not os.path.isfile(path):
        return None
    with contextlib.suppress(OSError, ArgumentError), of_zip("load", path):
        with open(path, "rb") as file:
            if file.read(len(LEGACY)) == LEGACY:
                return "a file of PyTorch: wg.io.load_torch reads it"
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                names = archive.namelist()
            if any(name.endswith(".npy") for name in names):
                return "a zip archive of NumPy: wg.io.read_npz reads it"
            if any(name.endswith("data.pkl") for name in names):
                return "a zip archive of PyTorch: wg.io.load_torch reads it"
            return "a zip archive (wg.io.load_torch reads those of PyTorch, wg.io.read_npz .npz)"
    return None


# How files of PyTorch before 1.6 begin: the pickle of a number.
LEGACY = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."


class _Description:
    """State as named tensors, and as text unless they say everything."""

    def __init__(self, state: Any) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._problems: list[str] = []
        self._inside: set[int] = set()
        self.text: str | None = None
        plain = (
            isinstance(state, dict)
            and all(isinstance(k, str) and k != "__metadata__" for k in state)
            and all(isinstance(v, Tensor) for v in state.values())
        )
        if plain:
            self.tensors = dict(state)
            return
        described = self._of(state, "state", ())
        if self._problems:
            shown = self._problems[:20]
            more = len(self._problems) - len(shown)
            rest = [f"and {more} more"] if more else []
            raise ArgumentTypeError("save: cannot be saved: " + "\n  ".join([*shown, *rest]))
        self.text = json.dumps({"version": _VERSION, "state": described}, separators=(",", ":"))
        if len(self.text) > _TEXT_LIMIT:
            raise ArgumentError(
                f"save: the description has {len(self.text)} bytes, at most {_TEXT_LIMIT} are "
                "read: make tensors of long lists"
            )

    def _of(self, x: Any, at: str, way: tuple[str, ...]) -> Any:
        kind = type(x)
        if x is None or kind in (bool, str):
            return x
        if kind is int:
            if x.bit_length() <= 8192:
                return x
            return self._problem(at, f"an int of {x.bit_length()} bits")
        if kind is float:
            return x if math.isfinite(x) else {"float": repr(x)}
        if kind is complex:
            return {"complex": [self._of(v, at, way) for v in (x.real, x.imag)]}
        if kind is bytes:
            return {"bytes": base64.b64encode(x).decode()}
        if isinstance(x, Tensor):
            return {"tensor": self._named(x, way)}
        if isinstance(x, (np.ndarray, np.generic)):
            try:
                tensor = _core.asarray(x, device="cpu")
            except (TypeError, ValueError):
                return self._problem(at, f"{kind.__name__} of dtype {x.dtype}")
            return {"array" if isinstance(x, np.ndarray) else "scalar": self._named(tensor, way)}
        if isinstance(x, DType):
            return {"dtype": x.name}
        if isinstance(x, (dict, list)) or kind is tuple:
            return self._container(x, at, way)
        return self._problem(at, _told(x))

    def _container(self, x: Any, at: str, way: tuple[str, ...]) -> Any:
        if id(x) in self._inside:
            return self._problem(at, "contains itself")
        if len(way) >= _DEPTH:
            return self._problem(at, f"nested more than {_DEPTH} deep")
        self._inside.add(id(x))
        try:
            if not isinstance(x, dict):
                found = [self._of(v, f"{at}[{i}]", (*way, str(i))) for i, v in enumerate(x)]
                return found if isinstance(x, list) else {"tuple": found}
            values = [self._of(v, f"{at}[{k!r}]", (*way, str(k))) for k, v in x.items()]
            if all(type(k) is str for k in x):
                return {"dict": dict(zip(x, values, strict=True))}
            keys = [self._key(k, at) for k in x]
            return {"pairs": [list(pair) for pair in zip(keys, values, strict=True)]}
        finally:
            self._inside.discard(id(x))

    def _key(self, k: Any, at: str) -> Any:
        if _is_key(k):
            return self._of(k, f"{at}, key {k!r}", ())
        return self._problem(at, f"a key of type {type(k).__name__}")

    def _named(self, x: Tensor, way: tuple[str, ...]) -> str:
        name = base = ".".join(way) or "value"
        n = 1
        while name in self.tensors or name == "__metadata__":
            name = f"{base}.{n}"
            n += 1
        self.tensors[name] = x
        return name

    def _problem(self, at: str, what: str) -> None:
        self._problems.append(f"{at}: {what}")


def _told(x: Any) -> str:
    kind = type(x).__name__
    if callable(getattr(x, "state_dict", None)):
        return f"{kind}; save its state_dict()"
    if isinstance(x, tuple):
        return f"{kind} would come back as a plain tuple; save tuple(x)"
    if isinstance(x, (set, frozenset)):
        return f"{kind}; save sorted(x)"
    return f"{kind} is neither a tensor nor a plain value"


def _is_key(k: Any) -> bool:
    """Whether a dict of a file may have such a key."""
    plain = (type(None), bool, int, float, str, bytes)
    return type(k) in plain or (type(k) is tuple and all(type(v) in plain for v in k))


class _Restored:
    """State from its description and named tensors."""

    def __init__(self, tensors: dict[str, Tensor], text: str, path: str) -> None:
        self._tensors = tensors
        self._path = path
        self._unread = set(tensors)
        try:
            if len(text) > _TEXT_LIMIT:
                raise ValueError(f"{len(text)} bytes, at most {_TEXT_LIMIT} are read")
            found = json.loads(text, object_pairs_hook=_unique)
            if not isinstance(found, dict) or set(found) != {"version", "state"}:
                raise ValueError("wanted a version and a state")
            if found["version"] != _VERSION:
                raise ValueError(f"version {found['version']!r}, this is for {_VERSION}")
            self.state = self._from(found["state"], 0)
            if self._unread:
                raise ValueError(f"it says nothing of the tensors {_few(self._unread)}")
        except (ValueError, TypeError, RecursionError) as error:
            raise ArgumentError(f"load: the description is broken: {error}\n  {path}") from error

    def _from(self, d: Any, depth: int) -> Any:
        if isinstance(d, float) and not math.isfinite(d):
            raise ValueError(f"a number is {d}")
        if d is None or isinstance(d, (bool, int, float, str)):
            return d
        if depth > _DEPTH + 1:
            raise ValueError(f"nested more than {_DEPTH} deep")
        if isinstance(d, list):
            return [self._from(v, depth + 1) for v in d]
        if len(d) != 1:
            raise ValueError(f"an object of {len(d)} entries")
        ((kind, content),) = d.items()
        make = _KINDS.get(kind)
        if make is None:
            raise ValueError(f"unknown kind {kind!r}")
        wanted, restore = make
        if not isinstance(content, wanted):
            raise ValueError(f"{kind}: got {type(content).__name__}")
        return restore(self, content, depth + 1)

    def _pairs(self, content: list[Any], depth: int) -> dict[Any, Any]:
        found: dict[Any, Any] = {}
        for pair in content:
            if not isinstance(pair, list) or len(pair) != 2:
                raise ValueError("a pair of another length")
            k = self._from(pair[0], depth)
            if not _is_key(k) or k in found:
                raise ValueError(f"a key is {k!r}")
            found[k] = self._from(pair[1], depth)
        return found

    def _tensor(self, name: str) -> Tensor:
        if name not in self._tensors:
            raise ValueError(f"there is no tensor {name!r}")
        self._unread.discard(name)
        return self._tensors[name]

    def _array(self, name: str) -> np.ndarray[Any, Any]:
        return np.array(self._tensor(name).cpu().numpy())


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name twice in one object")
    return found


def _float(text: str) -> float:
    if text not in ("inf", "-inf", "nan"):
        raise ValueError(f"a float is {text!r}")
    return float(text)


def _complex(parts: Any) -> complex:
    if len(parts) != 2 or not all(isinstance(p, float) for p in parts):
        raise ValueError(f"a complex number is {parts!r}")
    return complex(*parts)


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(f"bytes: {error}") from None


def _dtype(name: str) -> DType:
    found = getattr(_core, name, None)
    if not isinstance(found, DType):
        raise ValueError(f"unknown dtype {name!r}")
    return found


# What each kind of the description has as its content, and what it stands for.
_KINDS: dict[str, tuple[type, Callable[[_Restored, Any, int], Any]]] = {
    "dict": (dict, lambda r, c, depth: {k: r._from(v, depth) for k, v in c.items()}),
    "pairs": (list, _Restored._pairs),
    "tuple": (list, lambda r, c, depth: tuple(r._from(v, depth) for v in c)),
    "tensor": (str, lambda r, c, _: r._tensor(c)),
    "array": (str, lambda r, c, _: r._array(c)),
    "scalar": (str, lambda r, c, _: r._array(c)[()]),
    "float": (str, lambda _r, c, _: _float(c)),
    "complex": (list, lambda r, c, depth: _complex([r._from(v, depth) for v in c])),
    "bytes": (str, lambda _r, c, _: _bytes(c)),
    "dtype": (str, lambda _r, c, _: _dtype(c)),
}


# --- several files and their index


def _few(names: Any) -> str:
    shown = sorted(map(repr, names))
    return ", ".join(shown[:5]) + (f" and {len(shown) - 5} more" if len(shown) > 5 else "")


def _save_shards(path: str, tensors: dict[str, Tensor], texts: dict[str, str], most: int) -> None:
    if not path.endswith(f".safetensors{_INDEX}") or most < 1:
        raise ArgumentError(
            "save: max_shard_size wants a path that ends in .safetensors.index.json, and a size "
            f">= 1: got {path} and {most}"
        )
    shards: list[dict[str, Tensor]] = [{}]
    held = total = 0
    for name, x in tensors.items():
        size = math.prod(x.shape) * x.dtype.itemsize
        if shards[-1] and held + size > most:
            shards.append({})
            held = 0
        shards[-1][name] = x
        held += size
        total += size
    folder, base = os.path.split(path)
    stem = base.removesuffix(f".safetensors{_INDEX}")
    # Names of their own, so that an index that is there stays true until it is replaced.
    token = secrets.token_hex(4)
    files = [
        f"{stem}-{token}-{i:05}-of-{len(shards):05}.safetensors"
        for i in range(1, len(shards) + 1)
    ]
    index = {
        "metadata": {"total_size": total, **texts},
        "weight_map": {n: f for f, shard in zip(files, shards, strict=True) for n in shard},
    }
    before = _own_shards(path, stem)
    try:
        for file, shard in zip(files, shards, strict=True):
            with replacing("save", os.path.join(folder, file)) as part:
                _core.safetensors_save(part, shard, {})
        with replacing("save", path) as part, open(part, "w", encoding="utf-8") as out:
            json.dump(index, out, indent=1)
            out.flush()
            os.fsync(out.fileno())
    except BaseException:
        _remove(folder, files)
        raise
    _remove(folder, before)


def _own_shards(path: str, stem: str) -> list[str]:
    """The files of the index that is there, if they are named as ours are."""
    own = re.compile(re.escape(stem) + r"-[0-9a-f]{8}-\d{5,}-of-\d{5,}\.safetensors")
    try:
        _, weights = read_index("save", path)
    except (OSError, ArgumentError):
        return []
    return sorted({file for file in weights.values() if own.fullmatch(file)})


def _remove(folder: str, files: list[str]) -> None:
    for file in files:
        with contextlib.suppress(OSError):
            os.remove(os.path.join(folder, file))


def read_index(op: str, path: str) -> tuple[dict[str, Any], dict[str, str]]:
    """The metadata of an index, and in which file beside it each tensor lies."""
    regular(op, path)
    try:
        with open(path, "rb") as file:
            text = file.read(_TEXT_LIMIT + 1)
        if len(text) > _TEXT_LIMIT:
            raise ValueError(f"more than {_TEXT_LIMIT} bytes")
        found = json.loads(text, object_pairs_hook=_unique)
        weights, texts = found["weight_map"], found.get("metadata", {})
        if not isinstance(texts, dict) or not isinstance(weights, dict):
            raise ValueError("metadata and weight_map are objects")
        for name in weights.values():
            # Nothing outside the folder, and nothing that is no name.
            if not isinstance(name, str) or not re.fullmatch(r"[^/\\:\0]+", name) or name[0] == ".":
                raise ValueError(f"{name!r} is no name of a file beside it")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ArgumentError(f"{op}: not an index of tensors: {error!r}\n  {path}") from error
    return texts, weights


def _load_shards(path: str) -> tuple[dict[str, Tensor], dict[str, str]]:
    texts, weights = read_index("load", path)
    tensors = gathered("load", path, weights, lambda file: _read(file)[0])
    if _KEY in texts and not isinstance(texts[_KEY], str):
        raise ArgumentError(f"load: the description is broken: it is no text\n  {path}")
    return tensors, texts


def gathered(
    op: str, path: str, weights: dict[str, str], read: Callable[[str], dict[str, Tensor]]
) -> dict[str, Tensor]:
    """The tensors of all files of an index, in its order."""
    found: dict[str, Tensor] = {}
    for file in dict.fromkeys(weights.values()):
        wanted = {name for name, at in weights.items() if at == file}
        tensors = read(os.path.join(os.path.dirname(path), file))
        if set(tensors) != wanted:
            odd = wanted ^ set(tensors)
            raise ArgumentError(f"{op}: {file} and the index disagree on {_few(odd)}\n  {path}")
        found |= tensors
    return {name: found[name] for name in weights}
