"""Teach an LSTM to add: it sees pairs of digits, lowest first, and says the digits of the sum.

Run it with `python examples/lstm.py`.
"""

import numpy as np

import wengert as wg
from wengert import nn, optim
from wengert.data import progress

DIGITS = 6


class Adder(nn.Module):
    """An LSTM over the pairs, and a linear layer to the ten digits."""

    def __init__(self, hidden: int = 64) -> None:
        self.lstm = nn.LSTM(20, hidden, batch_first=True)
        self.head = nn.Linear(hidden, 10)

    def forward(self, x: wg.Tensor) -> wg.Tensor:
        y, _ = self.lstm(x)
        return self.head(y)


def problems(rng: np.random.Generator, n: int) -> tuple[wg.Tensor, wg.Tensor]:
    """Pairs of digits (n, DIGITS, 20), each digit one-hot, and the digits of their sums."""
    a, b = rng.integers(0, 10 ** (DIGITS - 1), (2, n))
    powers = 10 ** np.arange(DIGITS)
    digits = [(v[:, None] // powers) % 10 for v in (a, b, a + b)]
    x = np.concatenate([np.eye(10, dtype=np.float32)[d] for d in digits[:2]], axis=2)
    return wg.asarray(x), wg.asarray(digits[2])


def main() -> None:
    """Train and print."""
    wg.random.seed(0)
    rng = np.random.default_rng(0)
    model = Adder()
    optimizer, loss = optim.Adam(model.parameters(), lr=1e-2), wg.tensor(0.0)
    for _ in progress(range(400), "lstm"):
        x, digits = problems(rng, 128)
        optimizer.zero_grad()
        loss = nn.cross_entropy(model(x).reshape(-1, 10), digits.reshape(-1))
        loss.backward()
        optim.clip_grad_norm(model.parameters(), 1.0)
        optimizer.step()
    with wg.no_grad():
        x, digits = problems(rng, 1000)
        right = (model(x).argmax(axis=2) == digits).all(axis=1).astype(wg.float32).mean()
    print(f"loss {loss.item():.4f}; {right.item():.1%} of new sums are right in every digit")


if __name__ == "__main__":
    main()
