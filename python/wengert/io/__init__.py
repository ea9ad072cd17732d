"""Files: dictionaries of tensors in the safetensors format; graphs for TensorBoard."""

from __future__ import annotations

import os
from collections.abc import Mapping

from wengert import _core
from wengert._core import ArgumentError, ArgumentTypeError, Device, Tensor
from wengert._files import replacing
from wengert.io import tensorboard

__all__ = ["load", "save", "tensorboard"]


def save(
    tensors: Mapping[str, Tensor],
    path: str | os.PathLike[str],
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write named tensors to a safetensors file, with text `metadata` if given.

    The file appears complete or not at all, also when several threads or processes write one path:
    it is written beside its place and then moved there. A link stays, and its target is replaced.
    A folder, a device or a FIFO is refused.
    """
    if not isinstance(tensors, Mapping):
        has_state = callable(getattr(tensors, "state_dict", None))
        remedy = "; save its state: save(x.state_dict(), path)" if has_state else ""
        raise ArgumentTypeError(
            f"save: expected a dict of named tensors: got {type(tensors).__name__}{remedy}"
        )
    wrong = [f"{k!r}: {type(t).__name__}" for k, t in tensors.items() if not isinstance(t, Tensor)]
    if wrong:
        raise ArgumentTypeError(f"save: these are not tensors: {', '.join(wrong)}")
    wrong = [f"{type(k).__name__}" for k in tensors if not isinstance(k, str)]
    if wrong:
        raise ArgumentTypeError(f"save: names of tensors are strings: got {', '.join(wrong)}")
    if "__metadata__" in tensors:
        raise ArgumentError(
            "save: a tensor cannot be named '__metadata__': the format keeps its text there"
        )
    with replacing("save", path) as part:
        _core.safetensors_save(part, dict(tensors), dict(metadata or {}))


def load(
    path: str | os.PathLike[str], *, device: str | Device | None = None
) -> dict[str, Tensor]:
    """The tensors of a safetensors file, by their names; on `device`, by default the CPU.

    `ValueError` when the file is not a safetensors file (files of some other formats are told by
    their first bytes), `OSError` when it cannot be read.
    """
    place = _core.device("cpu" if device is None else device)
    tensors = _core.safetensors_load(os.fspath(path))
    return {name: x.to(place) for name, x in tensors.items()}
