"""Tell two spirals apart: the shortest complete program.

Run it with `python examples/spirals.py`.
"""

import numpy as np

import wengert as wg
from wengert import nn, optim


def spirals(n: int) -> tuple[wg.Tensor, wg.Tensor]:
    """Points (2 n, 2) on two intertwined arms, and which arm each is on."""
    angle = np.linspace(0.4, 6.4, n)
    arms = [angle * np.array([np.sin(2 * angle + k), np.cos(2 * angle + k)]) for k in (0.0, np.pi)]
    points = np.concatenate([arm.T for arm in arms]) / 5
    return wg.asarray(points, dtype=wg.float32), wg.asarray(np.repeat([0, 1], n))


def main() -> None:
    """Train and print."""
    wg.random.seed(0)
    x, arm = spirals(400)
    model = nn.Sequential(
        nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2)
    )
    optimizer = optim.Adam(model.parameters(), lr=1e-2)
    for step in range(401):
        optimizer.zero_grad()
        y = model(x)
        loss = nn.cross_entropy(y, arm)
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            right = (y.argmax(axis=1) == arm).astype(wg.float32).mean()
            print(f"step {step}: loss {loss.item():.4f}, accuracy {right.item():.3f}")


if __name__ == "__main__":
    main()
