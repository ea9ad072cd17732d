"""A normalising flow learns the density of two moons: an invertible network whose volume change is
known.

    python examples/cookbook/flow.py

Source: Dinh, Sohl-Dickstein, Bengio: Density estimation using Real NVP, 2016.
"""

import math

import wengert as wg
from wengert import Tensor, nn, optim


class Coupling(nn.Module):
    """Scales and moves one coordinate by functions of the other."""

    def __init__(self, first: bool, hidden: int = 64) -> None:
        self.first = first
        self.network = nn.Sequential(
            nn.Linear(1, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(),
            nn.Linear(hidden, 2),
        )

    def coordinates(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The one that is read, the one that changes."""
        return (x[:, :1], x[:, 1:]) if self.first else (x[:, 1:], x[:, :1])

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """What `x` becomes, and the log of the change of volume."""
        read, changed = self.coordinates(x)
        scale, move = wg.split(self.network(read), 2, axis=1)
        scale = scale.tanh()
        changed = changed * scale.exp() + move
        pair = [read, changed] if self.first else [changed, read]
        return wg.concat(pair, axis=1), scale[:, 0]

    def inverse(self, y: Tensor) -> Tensor:
        """What became `y`."""
        read, changed = self.coordinates(y)
        scale, move = wg.split(self.network(read), 2, axis=1)
        changed = (changed - move) * (-scale.tanh()).exp()
        return wg.concat([read, changed] if self.first else [changed, read], axis=1)


class Flow(nn.Module):
    """Couplings after one another; gives the log density of points (n, 2)."""

    def __init__(self, couplings: int = 6) -> None:
        self.couplings = nn.ModuleList([Coupling(i % 2 == 0) for i in range(couplings)])

    def forward(self, x: Tensor) -> Tensor:
        volume = 0.0
        for coupling in self.couplings:
            x, change = coupling(x)
            volume = volume + change
        return volume - 0.5 * (x**2).sum(axis=1) - math.log(2 * math.pi)

    def sample(self, n: int) -> Tensor:
        """Points drawn from the density."""
        x = wg.random.normal((n, 2))
        for coupling in reversed(list(self.couplings)):
            x = coupling.inverse(x)
        return x


def moons(n: int) -> Tensor:
    """Points (n, 2) of two half circles."""
    angle = wg.random.uniform((n,)) * math.pi
    second = wg.random.bernoulli(0.5, (n,)).astype(wg.float32)
    x = angle.cos() * (1 - 2 * second) + second - 0.5
    y = angle.sin() * (1 - 2 * second) + 0.5 * second - 0.25
    return wg.stack([x, y], axis=1) * 1.5 + 0.1 * wg.random.normal((n, 2))


def main(steps: int = 1500, batch: int = 256) -> tuple[float, float]:
    """Train; gives the mean log density of new points before and after, in nats."""
    wg.random.seed(0)
    flow = Flow()
    optimizer = optim.Adam(flow.parameters(), lr=2e-3)

    @wg.compile
    def step() -> Tensor:
        loss = -flow(moons(batch)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    def density() -> float:
        with wg.no_grad():
            return float(flow(moons(2000)).mean())

    before = density()
    for i in range(steps):
        loss = step()
        if i % 300 == 0:
            print(f"step {i:4}: loss {loss:.3f} nats")
    after = density()
    print(f"log density of new points: {before:.2f} → {after:.2f} nats")
    with wg.no_grad():
        print("drawn:", *(f"({x:.2f}, {y:.2f})" for x, y in flow.sample(5).tolist()))
    return before, after


if __name__ == "__main__":
    main()
