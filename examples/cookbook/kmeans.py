"""K-means: cluster points by Lloyd's algorithm, in one compiled loop that ends by itself.

    python examples/cookbook/kmeans.py
"""

import wengert as wg
from wengert import Tensor


def nearest(points: Tensor, centres: Tensor) -> Tensor:
    """The index of the nearest centre for each point."""
    return ((points[:, None] - centres) ** 2).sum(axis=2).argmin(axis=1)


def spread(points: Tensor, centres: Tensor) -> Tensor:
    """The mean squared distance from the nearest centre."""
    return ((points[:, None] - centres) ** 2).sum(axis=2).min(axis=1).mean()


@wg.compile
def kmeans(points: Tensor, centres: Tensor) -> Tensor:
    """Centres (k, d) that no round of Lloyd's algorithm moves any more; an empty cluster stays."""
    k = centres.shape[0]

    def moved(centres: Tensor, last: Tensor) -> Tensor:
        return (centres != last).any()

    def round_of_lloyd(centres: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
        chosen = wg.one_hot(nearest(points, centres), k).astype(points.dtype)
        count = chosen.sum(axis=0)[:, None]
        means = chosen.T @ points / count.maximum(1.0)
        return wg.where(count > 0, means, centres), centres

    centres, _ = wg.while_loop(moved, round_of_lloyd, (centres, centres + 1))
    return centres


def main(n: int = 2000, k: int = 5) -> tuple[float, float]:
    """Cluster; gives the spread around the first centres and around the last."""
    wg.random.seed(2)
    true = wg.random.normal((k, 2)) * 4
    points = true[wg.random.integers(0, k, (n,))] + wg.random.normal((n, 2)) * 0.3
    first = points[wg.random.permutation(n)[:k]]
    centres = kmeans(points, first)
    before, after = spread(points, first).item(), spread(points, centres).item()
    print(f"spread {before:.3f} → {after:.3f} (noise alone: {2 * 0.3**2:.3f})")
    print(centres)
    return before, after


if __name__ == "__main__":
    main()
