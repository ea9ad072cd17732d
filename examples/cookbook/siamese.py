"""A network learns which digits look alike, from triplets: an anchor, one of its kind, another.

    python examples/cookbook/siamese.py

Afterwards each digit is read by its nearest neighbour among the training digits. Source: Schroff,
Kalenichenko, Philbin: FaceNet, 2015.
"""

from common import digits

import wengert as wg
from wengert import Tensor, nn, optim


def distance(a: Tensor, b: Tensor) -> Tensor:
    """The squared distance between vectors, along the last axis."""
    return ((a - b) ** 2).sum(axis=-1)


def nearest(codes: Tensor, labels: Tensor, queries: Tensor) -> Tensor:
    """The label of the nearest code for each query."""
    # |q - c|² without |q|², which is the same for all c.
    far = (codes**2).sum(axis=1) - 2 * queries @ codes.T
    return labels[far.argmin(axis=1)]


def main(steps: int = 600, triplets: int = 256, code: int = 8) -> tuple[float, float]:
    """Train; gives the accuracy of nearest neighbours in codes, before and after."""
    wg.random.seed(0)
    images, labels = digits()
    x = images.reshape(-1, 784)
    of_label = [wg.nonzero(labels[:4000] == k)[0] for k in range(10)]
    model = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, code))
    optimizer = optim.Adam(model.parameters(), lr=1e-3)

    def rows(k: int, n: int) -> Tensor:
        return of_label[k][wg.random.integers(0, of_label[k].shape[0], (n,))]

    def batch() -> tuple[Tensor, Tensor, Tensor]:
        """Row numbers of anchors, of their kind, and of others."""
        n = triplets // 10
        same = wg.concat([rows(k, 2 * n) for k in range(10)]).reshape(10, 2, n)
        shift = wg.random.integers(1, 10, ()).item()
        return same[:, 0].flatten(), same[:, 1].flatten(), same[:, 0].roll(shift, axis=0).flatten()

    @wg.compile
    def step(anchor: Tensor, like: Tensor, other: Tensor) -> Tensor:
        a, b, c = (model(x[i]) for i in (anchor, like, other))
        loss = (distance(a, b) - distance(a, c) + 1).maximum(0.0).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    def accuracy() -> float:
        with wg.no_grad():
            codes = model(x)
            guess = nearest(codes[:4000], labels[:4000], codes[4000:])
            return float((guess == labels[4000:]).astype(wg.float32).mean())

    before = accuracy()
    for i in range(steps):
        loss = step(*batch())
        if i % 150 == 0:
            print(f"step {i:4}: loss {loss:.3f}")
    after = accuracy()
    print(f"nearest neighbours by {code} numbers: {before:.1%} → {after:.1%}")
    return before, after


if __name__ == "__main__":
    main()
