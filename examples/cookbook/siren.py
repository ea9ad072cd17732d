"""A network with sines is a picture: coordinates to brightness, and its derivatives are right too.

    python examples/cookbook/siren.py

Source: Sitzmann et al.: Implicit neural representations with periodic activation functions, 2020.
"""

from common import digits, show

import wengert as wg
from wengert import Tensor, nn, optim


class Sine(nn.Module):
    """A linear layer and a sine; weights are drawn so that sines stay well spread."""

    def __init__(
        self, inputs: int, outputs: int, frequency: float = 20.0, first: bool = False
    ) -> None:
        self.linear = nn.Linear(inputs, outputs)
        self.frequency = frequency
        bound = 1 / inputs if first else (6 / inputs) ** 0.5 / frequency
        with wg.no_grad():
            uniform = wg.random.uniform((outputs, inputs))
            self.linear.weight[...] = (2 * uniform - 1) * bound

    def forward(self, x: Tensor) -> Tensor:
        return (self.frequency * self.linear(x)).sin()


def main(steps: int = 400, width: int = 64, number: int = 7) -> tuple[float, float]:
    """Fit a digit; gives the mean squared error before and after."""
    wg.random.seed(0)
    picture = digits()[0][number, 0]
    side = wg.linspace(-1, 1, 28)
    rows, columns = wg.meshgrid(side, side, indexing="ij")
    at = wg.stack([rows.flatten(), columns.flatten()], axis=1)
    model = nn.Sequential(Sine(2, width, first=True), Sine(width, width), nn.Linear(width, 1))
    optimizer = optim.Adam(model.parameters(), lr=1e-3)

    @wg.compile
    def step() -> Tensor:
        loss: Tensor = ((model(at)[:, 0] - picture.flatten()) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    losses = [step().item() for _ in range(steps)]
    with wg.no_grad():
        fitted = model(at).reshape(28, 28)
    edges = wg.vmap(wg.grad(lambda p: model(p)[0]))(at)
    steep = (edges**2).sum(axis=1).sqrt().reshape(28, 28)
    show(wg.stack([picture, fitted, steep / steep.max()]).clip(0, 1).detach())
    print(f"the digit, the fitted one, its slopes; error {losses[0]:.4f} → {losses[-1]:.6f}")
    return losses[0], losses[-1]


if __name__ == "__main__":
    main()
