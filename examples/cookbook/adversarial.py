"""Adversarial examples: digits that a network misreads after a change nobody sees, and training
against them.

    python examples/cookbook/adversarial.py

Source: Goodfellow, Shlens, Szegedy: Explaining and harnessing adversarial examples, 2014.
"""

from common import digits, show

import wengert as wg
from wengert import Tensor, nn, optim


def network() -> nn.Sequential:
    """Two hidden layers."""
    return nn.Sequential(
        nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10)
    )


def attacked(model: nn.Module, x: Tensor, y: Tensor, size: float) -> Tensor:
    """Every pixel moved by `size` in the direction that raises the loss."""
    slope: Tensor = wg.grad(lambda x: nn.cross_entropy(model(x), y))(x)
    return (x + size * slope.sign()).clip(0.0, 1.0).detach()


def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """The share of right answers."""
    with wg.no_grad():
        return float((model(x).argmax(axis=1) == y).astype(wg.float32).mean())


def train(model: nn.Module, x: Tensor, y: Tensor, steps: int, size: float) -> None:
    """Train on digits, attacked ones among them where `size` is not 0."""
    optimizer = optim.Adam(model.parameters(), lr=1e-3)

    @wg.compile
    def step(x: Tensor, y: Tensor) -> None:
        seen = attacked(model, x, y, size) if size else x
        optimizer.zero_grad()
        loss = nn.cross_entropy(model(seen), y)
        loss.backward()
        optimizer.step()

    for _ in range(steps):
        rows = wg.random.integers(0, x.shape[0], (64,))
        step(x[rows], y[rows])


def main(steps: int = 600, size: float = 0.1) -> tuple[float, float]:
    """Train; gives the accuracy under attack of a plain network and of a hardened one."""
    wg.random.seed(0)
    images, labels = digits()
    x = images.reshape(-1, 784)
    test_x, test_y = x[4000:], labels[4000:]
    results = []
    for name, against in (("plain", 0.0), ("hardened", size)):
        model = network()
        train(model, x[:4000], labels[:4000], steps, against)
        moved = attacked(model, test_x, test_y, size)
        results.append(accuracy(model, moved, test_y))
        right = accuracy(model, test_x, test_y)
        print(f"{name}: {right:.1%} of the digits right, {results[-1]:.1%} of attacked ones")
    show(wg.stack([test_x[0], moved[0]]).reshape(2, 28, 28))
    return results[0], results[1]


if __name__ == "__main__":
    main()
