"""Learning to learn: parameters from which one gradient step fits a new sine wave.

    python examples/cookbook/maml.py

The outer gradient goes through the inner step, so it is a gradient of gradients; `wg.vmap` adapts
to all tasks of a batch at once. Source: Finn, Abbeel, Levine: Model-agnostic meta-learning, 2017.
"""

import wengert as wg
from wengert import Tensor, optim

WIDTH = 40


def parameters() -> list[Tensor]:
    """Weights and biases of a network of two hidden layers."""
    sizes = [(1, WIDTH), (WIDTH, WIDTH), (WIDTH, 1)]
    weights = [wg.random.normal(s) * (1 / s[0]) ** 0.5 for s in sizes]
    params = [p for w in weights for p in (w, wg.zeros(w.shape[1]))]
    for p in params:
        p.requires_grad = True
    return params


def predict(params: list[Tensor], x: Tensor) -> Tensor:
    """The network, as a function of its parameters."""
    w1, b1, w2, b2, w3, b3 = params
    h = ((x @ w1 + b1).maximum(0.0) @ w2 + b2).maximum(0.0)
    return h @ w3 + b3


def loss(params: list[Tensor], x: Tensor, y: Tensor) -> Tensor:
    """Mean squared error."""
    return ((predict(params, x) - y) ** 2).mean()


def adapted(params: list[Tensor], x: Tensor, y: Tensor, rate: float = 0.01) -> list[Tensor]:
    """The parameters after one gradient step on a task."""
    slopes = wg.grad(loss)(params, x, y)
    return [p - rate * g for p, g in zip(params, slopes, strict=True)]


def tasks(n: int, shots: int = 10) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Sine waves of random amplitude and phase: points to adapt to, and points to test."""
    amplitude = wg.random.uniform((n, 1, 1)) * 4.9 + 0.1
    phase = wg.random.uniform((n, 1, 1)) * 3.14
    x = wg.random.uniform((n, 2 * shots, 1)) * 10 - 5
    y = amplitude * (x + phase).sin()
    return x[:, :shots], y[:, :shots], x[:, shots:], y[:, shots:]


def main(steps: int = 2000, n: int = 25) -> tuple[float, float]:
    """Train; gives the error after one step of adaptation, before and after."""
    wg.random.seed(0)
    params = parameters()
    optimizer = optim.Adam(params, lr=1e-3)

    def after_adaptation(x: Tensor, y: Tensor, new_x: Tensor, new_y: Tensor) -> Tensor:
        return loss(adapted(params, x, y), new_x, new_y)

    @wg.compile
    def step(*batch: Tensor) -> Tensor:
        total = wg.vmap(after_adaptation)(*batch).mean()
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
        return total

    test = tasks(200)
    before = wg.vmap(after_adaptation)(*test).mean().item()
    for i in range(steps):
        total = step(*tasks(n))
        if i % 400 == 0:
            print(f"step {i:5}: error after adaptation {total:.3f}")
    after = wg.vmap(after_adaptation)(*test).mean().item()
    print(f"error on new tasks after one step: {before:.2f} before, {after:.2f} after")
    return before, after


if __name__ == "__main__":
    main()
