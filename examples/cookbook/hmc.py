"""Hamiltonian Monte Carlo: Bayesian logistic regression by sampling, many chains side by side.

    python examples/cookbook/hmc.py

`wg.grad` gives the force, `wg.vmap` the chains, `wg.fori_loop` the leapfrog steps, and one compiled
function draws all samples. Source: Neal: MCMC using Hamiltonian dynamics, 2011.
"""

import wengert as wg
from wengert import Tensor, nn


def data(n: int = 200) -> tuple[Tensor, Tensor, Tensor]:
    """Points with a constant column (n, 3), labels in {0, 1}, and the weights that made them."""
    true = wg.tensor([1.5, -2.0, 0.5])
    x = wg.concat([wg.random.normal((n, 2)), wg.ones((n, 1))], axis=1)
    y = (wg.random.uniform((n,)) < (x @ true).sigmoid()).astype(wg.float32)
    return x, y, true


def main(
    samples: int = 400, chains: int = 16, leaps: int = 8, size: float = 0.2
) -> tuple[float, float]:
    """Sample; gives the error of a fixed guess (zero) and of the posterior's mean."""
    wg.random.seed(0)
    x, y, true = data()

    def energy(w: Tensor) -> Tensor:
        """Minus the log of likelihood and prior, for one chain."""
        logits = x @ w
        return (nn.softplus(logits) - y * logits).sum() + 0.5 * (w**2).sum() / 10

    force = wg.vmap(wg.grad(energy))
    energies = wg.vmap(energy)

    def leap(_: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        w, p = state
        w = w + size * p
        return w, p - size * force(w)

    def draw(w: Tensor, _: None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        p = wg.random.normal(w.shape)
        before = energies(w) + 0.5 * (p**2).sum(axis=1)
        at, speed = w, p - size / 2 * force(w)
        at, speed = wg.fori_loop(0, leaps, leap, (at, speed))
        speed = speed + size / 2 * force(at)
        after = energies(at) + 0.5 * (speed**2).sum(axis=1)
        taken = wg.random.uniform((chains,)).log() < before - after
        w = wg.where(taken[:, None], at, w)
        return w, (w, taken)

    @wg.compile
    def run(start: Tensor) -> tuple[Tensor, Tensor]:
        drawn: tuple[Tensor, Tensor] = wg.scan(draw, start, length=samples)[1]
        return drawn

    drawn, taken = run(wg.zeros((chains, 3)))
    kept = drawn[samples // 4 :].reshape(-1, 3)
    mean, deviation = kept.mean(axis=0), kept.std(axis=0)
    print(f"{taken.astype(wg.float32).mean():.0%} of proposals taken")
    for name, t, m, s in zip("abc", true.tolist(), mean.tolist(), deviation.tolist(), strict=True):
        print(f"{name}: {m:+.2f} ± {s:.2f} (made with {t:+.2f})")
    return true.abs().max().item(), (mean - true).abs().max().item()


if __name__ == "__main__":
    main()
