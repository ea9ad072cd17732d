"""Ten networks trained at once, by `vmap`, say how sure they are.

    python examples/cookbook/ensemble.py

Where there was no data they disagree. Source: Lakshminarayanan, Pritzel, Blundell: Simple and
scalable predictive uncertainty estimation using deep ensembles, 2016.
"""

import wengert as wg
from wengert import Tensor, nn, optim


def network() -> nn.Sequential:
    """Two hidden layers."""
    return nn.Sequential(
        nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1)
    )


def main(steps: int = 600, members: int = 10, n: int = 80) -> tuple[float, float]:
    """Train; gives the mean squared error of the members' mean before and after."""
    wg.random.seed(0)
    half = wg.random.uniform((n // 2, 1))
    x = wg.concat([half - 2, half + 1])                # nothing between -1 and 1
    y = (2 * x).sin() + 0.05 * wg.random.normal(x.shape)
    model = nn.stack([network() for _ in range(members)])
    optimizer = optim.Adam(model.parameters(), lr=1e-2)
    predict = wg.vmap(lambda member, x: member(x), in_axes=(0, None))

    @wg.compile
    def step() -> Tensor:
        loss: Tensor = ((predict(model, x) - y) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    def error() -> float:
        with wg.no_grad():
            return float(((predict(model, x).mean(axis=0) - y) ** 2).mean())

    before = error()
    for i in range(steps):
        loss = step()
        if i % 150 == 0:
            print(f"step {i:4}: loss {loss:.4f}")
    with wg.no_grad():
        at = wg.linspace(-3, 3, 13)[:, None]
        answers = predict(model, at)[:, :, 0]
    for x0, mean, spread in zip(
        at[:, 0].tolist(), answers.mean(axis=0).tolist(), answers.std(axis=0).tolist(), strict=True
    ):
        print(f"{x0:+.1f}: {mean:+.2f} ± {spread:.2f}  {'#' * round(40 * spread)}")
    return before, error()


if __name__ == "__main__":
    main()
