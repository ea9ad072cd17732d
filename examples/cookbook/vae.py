"""A variational autoencoder of handwritten digits: learn a code of eight numbers, then draw new
digits from random codes.

    python examples/cookbook/vae.py

The loss is the negative evidence lower bound of Kingma, Welling: Auto-encoding variational Bayes,
2013: how badly pixels are predicted, plus how far codes are from a standard normal distribution.
"""

from common import digits, show

import wengert as wg
from wengert import Tensor, nn, optim


class Autoencoder(nn.Module):
    """Encoder to mean and log variance of a code, decoder back to the logits of pixels."""

    def __init__(self, code: int = 8, hidden: int = 256) -> None:
        self.encoder = nn.Sequential(nn.Linear(784, hidden), nn.ReLU(), nn.Linear(hidden, 2 * code))
        self.decoder = nn.Sequential(nn.Linear(code, hidden), nn.ReLU(), nn.Linear(hidden, 784))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_variance = wg.split(self.encoder(x), 2, axis=1)
        noise = wg.random.normal(mean.shape)
        code = mean + noise * (0.5 * log_variance).exp()
        return self.decoder(code), mean, log_variance


def main(steps: int = 600, batch: int = 128) -> tuple[float, float]:
    """Train; gives the first and the last loss, in nats per digit."""
    wg.random.seed(0)
    images = digits()[0].reshape(-1, 784)
    model = Autoencoder()
    optimizer = optim.Adam(model.parameters(), lr=2e-3)

    @wg.compile
    def step(x: Tensor) -> Tensor:
        logits, mean, log_variance = model(x)
        pixels = nn.binary_cross_entropy_with_logits(logits, x, reduction="sum")
        divergence = 0.5 * (mean**2 + log_variance.exp() - 1 - log_variance).sum()
        loss = (pixels + divergence) / x.shape[0]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    losses = []
    for i in range(steps):
        rows = wg.random.integers(0, images.shape[0], (batch,))
        losses.append(step(images[rows]).item())
        if i % 100 == 0:
            print(f"step {i:4}: {losses[-1]:.1f} nats")
    with wg.no_grad():
        drawn = model.decoder(wg.random.normal((3, 8))).sigmoid().reshape(3, 28, 28)
    show(drawn)
    return losses[0], losses[-1]


if __name__ == "__main__":
    main()
