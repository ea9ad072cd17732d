"""Low-rank adaptation: a network trained on the digits 0 to 4 learns 5 to 9 through two thin
matrices beside each frozen one.

    python examples/cookbook/lora.py

Source: Hu et al.: LoRA: low-rank adaptation of large language models, 2021.
"""

from common import digits

import wengert as wg
from wengert import Tensor, nn, optim


class LoRA(nn.Module):
    """A frozen linear layer with `scale · B A` beside its weight; B begins at zero."""

    def __init__(self, linear: nn.Linear, rank: int = 4, scale: float = 2.0) -> None:
        self.linear = linear.requires_grad_(False)
        outputs, inputs = linear.weight.shape
        self.a = nn.Parameter(wg.random.normal((rank, inputs)) / inputs**0.5)
        self.b = nn.Parameter(wg.zeros((outputs, rank)))
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) + self.scale * ((x @ self.a.T) @ self.b.T)


def train(model: nn.Module, x: Tensor, y: Tensor, steps: int, lr: float) -> None:
    """Train on random batches; gives the accuracy on all of `x`."""
    optimizer = optim.Adam([p for p in model.parameters() if p.requires_grad], lr=lr)

    @wg.compile
    def step(x: Tensor, y: Tensor) -> None:
        optimizer.zero_grad()
        loss = nn.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()

    for _ in range(steps):
        rows = wg.random.integers(0, x.shape[0], (64,))
        step(x[rows], y[rows])


def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """The share of right answers."""
    with wg.no_grad():
        return float((model(x).argmax(axis=1) == y).astype(wg.float32).mean())


def main(steps: int = 300) -> tuple[float, float]:
    """Train and adapt; gives the accuracy on the new digits before and after."""
    wg.random.seed(0)
    images, labels = digits()
    x = images.reshape(-1, 784)
    old, new = labels < 5, labels >= 5
    model = nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 5))
    train(model, x[old], labels[old], steps, 1e-3)
    print(f"digits 0 to 4: {accuracy(model, x[old], labels[old]):.1%}")

    adapted = nn.Sequential(LoRA(model[0]), nn.ReLU(), LoRA(model[2]))
    before = accuracy(adapted, x[new], labels[new] - 5)
    train(adapted, x[new], labels[new] - 5, steps, 1e-2)
    after = accuracy(adapted, x[new], labels[new] - 5)
    trained = sum(p.size for p in adapted.parameters() if p.requires_grad)
    total = sum(p.size for p in adapted.parameters())
    print(f"digits 5 to 9: {before:.1%} → {after:.1%} with {trained} of {total} parameters")
    return before, after


if __name__ == "__main__":
    main()
