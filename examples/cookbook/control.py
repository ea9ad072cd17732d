"""Gradients through physics: find the pushes that swing a pendulum up and hold it there.

    python examples/cookbook/control.py

The motion is a `wg.scan`; the plan of pushes is its input, and gradient descent improves it.
"""

import math

import wengert as wg
from wengert import Tensor, optim

STEP, LENGTH, STRONGEST = 0.05, 100, 3.0
State = tuple[Tensor, Tensor]                 # angle and speed


def swing(pushes: Tensor) -> State:
    """Angles (LENGTH,) from hanging (0), and speeds, under the given pushes; upright is π."""

    def move(state: State, push: Tensor) -> tuple[State, State]:
        angle, speed = state
        speed = speed + STEP * (STRONGEST * push.tanh() - 9.8 * angle.sin() - 0.1 * speed)
        angle = angle + STEP * speed
        return (angle, speed), (angle, speed)

    states: State = wg.scan(move, (wg.zeros(()), wg.zeros(())), pushes)[1]
    return states


def main(steps: int = 1500) -> tuple[float, float]:
    """Improve the pushes; gives the height missing at the end, before and after."""
    wg.random.seed(1)
    pushes = (0.1 * wg.random.normal((LENGTH,))).detach()
    pushes.requires_grad = True
    optimizer = optim.Adam([pushes], lr=0.05)

    @wg.compile
    def step() -> Tensor:
        angle, speed = swing(pushes)
        missing = 1 + angle.cos()
        loss = missing[-20:].mean() + 0.01 * (speed[-20:] ** 2).mean() + 0.05 * missing.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return missing[-20:].mean()

    before = step().item()
    for i in range(steps):
        missing = step()
        if i % 300 == 0:
            print(f"step {i:5}: missing height {missing:.3f} of 2")
    angle, _ = swing(pushes)
    for at in range(0, LENGTH, 10):
        column = round(20 + 20 * math.sin(angle[at].item()))
        print(f"{at * STEP:4.1f} s {' ' * column}o {'up' if angle[at].cos() < -0.9 else ''}")
    return before, step().item()


if __name__ == "__main__":
    main()
