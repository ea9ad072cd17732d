"""A generative adversarial network learns a ring of eight blobs: one network draws points, another
tells them from real ones, and each trains against the other.

    python examples/cookbook/gan.py

Source: Goodfellow et al.: Generative adversarial nets, 2014, with the loss that does not saturate.
"""

import math

import wengert as wg
from wengert import Tensor, nn, optim


def ring(n: int) -> Tensor:
    """Real points (n, 2): eight normal blobs on a circle of radius 2."""
    angle = wg.random.integers(0, 8, (n,)).astype(wg.float32) * (math.pi / 4)
    return wg.stack([angle.cos(), angle.sin()], axis=1) * 2 + 0.1 * wg.random.normal((n, 2))


def network(inputs: int, outputs: int, hidden: int = 64) -> nn.Sequential:
    """Two hidden layers."""
    return nn.Sequential(
        nn.Linear(inputs, hidden),
        nn.LeakyReLU(0.2),
        nn.Linear(hidden, hidden),
        nn.LeakyReLU(0.2),
        nn.Linear(hidden, outputs),
    )


def distance(points: Tensor) -> float:
    """The mean distance of points from the nearest blob's centre."""
    angle = wg.arange(8).astype(wg.float32) * (math.pi / 4)
    centres = wg.stack([angle.cos(), angle.sin()], axis=1) * 2
    far = ((points[:, None] - centres) ** 2).sum(axis=2).sqrt()
    return float(far.min(axis=1).mean())


def main(steps: int = 3000, batch: int = 256) -> tuple[float, float]:
    """Train; gives the distance of drawn points from the blobs before and after."""
    wg.random.seed(0)
    generator, critic = network(8, 2), network(2, 1)
    by_generator = optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.999))
    by_critic = optim.Adam(critic.parameters(), lr=1e-3, betas=(0.5, 0.999))

    @wg.compile
    def step() -> tuple[Tensor, Tensor]:
        real, drawn = ring(batch), generator(wg.random.normal((batch, 8)))
        by_critic.zero_grad()
        critic_loss = (nn.softplus(-critic(real)) + nn.softplus(critic(drawn.detach()))).mean()
        critic_loss.backward()
        by_critic.step()
        by_generator.zero_grad()
        generator_loss = nn.softplus(-critic(drawn)).mean()
        generator_loss.backward()
        by_generator.step()
        return critic_loss, generator_loss

    def sample() -> Tensor:
        with wg.no_grad():
            points: Tensor = generator(wg.random.normal((1000, 8)))
        return points

    before = distance(sample())
    for i in range(steps):
        critic_loss, generator_loss = step()
        if i % 500 == 0:
            print(f"step {i:5}: critic {critic_loss:.3f}, generator {generator_loss:.3f}")
    after = distance(sample())
    print(f"drawn points are {before:.2f} from a blob before, {after:.2f} after")
    return before, after


if __name__ == "__main__":
    main()
