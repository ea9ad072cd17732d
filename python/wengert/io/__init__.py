"""Files: state and tensors in safetensors files, files of PyTorch, tables, images, event files.

`save` and `load` are also `wg.save` and `wg.load`. docs/checkpoints.md and docs/data.md show them.
"""

from __future__ import annotations

from wengert.io import tensorboard
from wengert.io._checkpoints import load, save
from wengert.io._tables import read_csv, read_image, read_npz, read_parquet
from wengert.io._torch import load_torch

__all__ = [
    "load",
    "load_torch",
    "read_csv",
    "read_image",
    "read_npz",
    "read_parquet",
    "save",
    "tensorboard",
]
