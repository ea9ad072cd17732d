"""Files: dictionaries of tensors in the safetensors format; graphs for TensorBoard."""

from __future__ import annotations

import os
from collections.abc import Mapping

from wengert import _core
from wengert._core import Tensor
from wengert.io import tensorboard

__all__ = ["load", "save", "tensorboard"]


def save(
    tensors: Mapping[str, Tensor],
    path: str | os.PathLike[str],
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write named tensors to a safetensors file, with text `metadata` if given.

    The file appears complete or not at all: it is written beside its place and then moved.
    """
    wrong = [f"{k!r}: {type(t).__name__}" for k, t in tensors.items() if not isinstance(t, Tensor)]
    if wrong:
        raise TypeError(f"save: these are not tensors: {', '.join(wrong)}")
    path = os.fspath(path)
    part = f"{path}.{os.getpid()}.part"
    try:
        _core.safetensors_save(part, dict(tensors), dict(metadata or {}))
        os.replace(part, path)
    except BaseException:
        if os.path.exists(part):
            os.remove(part)
        raise


def load(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """The tensors of a safetensors file, by their names.

    `ValueError` when the file is not a safetensors file, `OSError` when it cannot be read.
    """
    return _core.safetensors_load(os.fspath(path))
