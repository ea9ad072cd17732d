"""A neural differential equation learns the motion of a damped pendulum from its path.

    python examples/cookbook/neural_ode.py

The classical Runge-Kutta method runs in `wg.scan`, so that gradients go through the solver.
Source: Chen et al.: Neural ordinary differential equations, 2018 (there with the adjoint method).
"""

from collections.abc import Callable

import wengert as wg
from wengert import Tensor, nn, optim

STEP = 0.1


def solve(f: Callable[[Tensor], Tensor], state: Tensor, length: int) -> Tensor:
    """States (length, …) after each step of the fourth-order Runge-Kutta method."""

    def advance(y: Tensor, _: None) -> tuple[Tensor, Tensor]:
        k1 = f(y)
        k2 = f(y + STEP / 2 * k1)
        k3 = f(y + STEP / 2 * k2)
        k4 = f(y + STEP * k3)
        y = y + STEP / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        return y, y

    states: Tensor = wg.scan(advance, state, length=length)[1]
    return states


def pendulum(y: Tensor) -> Tensor:
    """The true motion: angle and speed (…, 2) to their derivatives."""
    angle, speed = y[..., 0], y[..., 1]
    return wg.stack([speed, -angle.sin() - 0.2 * speed], axis=-1)


def main(steps: int = 400, n: int = 64, length: int = 30) -> tuple[float, float]:
    """Train; gives the error of new paths before and after."""
    wg.random.seed(0)
    field = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 2))
    optimizer = optim.Adam(field.parameters(), lr=1e-2)

    @wg.compile
    def step(start: Tensor) -> Tensor:
        loss = ((solve(field, start, length) - solve(pendulum, start, length)) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    def error() -> float:
        start = wg.random.uniform((n, 2)) * 2 - 1
        with wg.no_grad():
            return float(((solve(field, start, 60) - solve(pendulum, start, 60)) ** 2).mean())

    before = error()
    for i in range(steps):
        loss = step(wg.random.uniform((n, 2)) * 2 - 1)
        if i % 100 == 0:
            print(f"step {i:4}: loss {loss:.2e}")
    print(f"mean squared error over twice the time: {error():.2e}")
    return before, error()


if __name__ == "__main__":
    main()
