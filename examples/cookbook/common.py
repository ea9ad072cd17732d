"""What several programs of the cookbook share: the digits of the demo, and pictures as text."""

import sys
from pathlib import Path

import wengert as wg

sys.path.insert(0, str(Path(__file__).parent.parent))
from mnist import find_digits


def digits() -> tuple[wg.Tensor, wg.Tensor]:
    """Images (n, 1, 28, 28) in [0, 1] and labels (n,)."""
    images, labels = find_digits()
    return wg.asarray(images), wg.asarray(labels)


def show(images: wg.Tensor) -> None:
    """Print images (n, rows, columns) in [0, 1] beside each other, two rows of pixels a line."""
    shades = " .:-=+*#%@"
    for i in range(0, images.shape[1], 2):
        line = images[:, i].tolist()
        print("  ".join("".join(shades[min(int(v * 10), 9)] for v in row) for row in line))
