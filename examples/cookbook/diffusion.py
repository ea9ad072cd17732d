"""A diffusion model draws a spiral: points turn into noise step by step, and a network learns to go
back.

    python examples/cookbook/diffusion.py

Source: Ho, Jain, Abbeel: Denoising diffusion probabilistic models, 2020.
"""

import wengert as wg
from wengert import Tensor, nn, optim

STEPS = 50
BETAS = wg.linspace(1e-3, 0.2, STEPS)
KEPT = (1 - BETAS).cumulative_prod()          # how much of a point's square is left after a step


def spiral(n: int) -> Tensor:
    """Points (n, 2) on a spiral."""
    turn = wg.random.uniform((n,)).sqrt() * 9
    points = wg.stack([turn * turn.cos(), turn * turn.sin()], axis=1) / 5
    return points + 0.02 * wg.random.normal((n, 2))


class Denoiser(nn.Module):
    """Guesses the noise in points (n, 2) at steps (n,)."""

    def __init__(self, width: int = 128) -> None:
        self.step = nn.Embedding(STEPS, width)
        self.inner = nn.Linear(2, width)
        self.layers = nn.Sequential(
            nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(),
            nn.Linear(width, 2),
        )

    def forward(self, x: Tensor, step: Tensor) -> Tensor:
        noise: Tensor = self.layers(self.inner(x) + self.step(step))
        return noise


def sample(model: Denoiser, n: int) -> Tensor:
    """Points drawn by going back from noise, in one compiled loop."""

    def back(i: Tensor, x: Tensor) -> Tensor:
        t = STEPS - 1 - i
        noise = model(x, wg.broadcast_to(t, (n,)))
        beta, kept = BETAS[t], KEPT[t]
        x = (x - beta / (1 - kept).sqrt() * noise) / (1 - beta).sqrt()
        return x + wg.where(t > 0, beta.sqrt(), 0.0) * wg.random.normal((n, 2))

    @wg.compile
    def run() -> Tensor:
        points: Tensor = wg.fori_loop(0, STEPS, back, wg.random.normal((n, 2)))
        return points

    with wg.no_grad():
        return run()


def distance(points: Tensor) -> float:
    """The mean distance of points from the spiral."""
    turn = wg.linspace(0, 9, 500)
    curve = wg.stack([turn * turn.cos(), turn * turn.sin()], axis=1) / 5
    return float(((points[:, None] - curve) ** 2).sum(axis=2).min(axis=1).sqrt().mean())


def main(steps: int = 3000, batch: int = 256) -> tuple[float, float]:
    """Train; gives the distance of drawn points from the spiral before and after."""
    wg.random.seed(0)
    model = Denoiser()
    optimizer = optim.Adam(model.parameters(), lr=2e-3)

    @wg.compile
    def step() -> Tensor:
        x, noise = spiral(batch), wg.random.normal((batch, 2))
        t = wg.random.integers(0, STEPS, (batch,))
        kept = KEPT[t][:, None]
        loss = ((model(kept.sqrt() * x + (1 - kept).sqrt() * noise, t) - noise) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    before = distance(sample(model, 500))
    for i in range(steps):
        loss = step()
        if i % 500 == 0:
            print(f"step {i:5}: loss {loss:.3f}")
    after = distance(sample(model, 500))
    print(f"drawn points are {before:.2f} from the spiral before, {after:.2f} after")
    return before, after


if __name__ == "__main__":
    main()
