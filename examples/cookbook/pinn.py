"""A physics-informed network solves Burgers' equation `u_t + u u_x = ν u_xx`: the equation itself
is the loss, its derivatives are those of the network.

    python examples/cookbook/pinn.py

The solution known in closed form, a wave that travels with speed ½,
`u(t, x) = ½ (1 − tanh((x − t/2) / 4ν))`, gives the values at the border and the error.
Source: Raissi, Perdikaris, Karniadakis: Physics-informed neural networks, 2019.
"""

import wengert as wg
from wengert import Tensor, nn, optim

VISCOSITY = 0.1


def exact(t: Tensor, x: Tensor) -> Tensor:
    """The travelling wave."""
    return 0.5 * (1 - ((x - 0.5 * t) / (4 * VISCOSITY)).tanh())


def derivative(y: Tensor, x: Tensor) -> Tensor:
    """dy/dx for each point: no point depends on another."""
    slope: Tensor
    (slope,) = wg.gradients(y.sum(), [x], create_graph=True)
    return slope


def main(steps: int = 1500, n: int = 256) -> tuple[float, float]:
    """Train; gives the largest error over a grid, before and after."""
    wg.random.seed(0)
    model = nn.Sequential(
        nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1)
    )
    optimizer = optim.Adam(model.parameters(), lr=3e-3)

    def u(t: Tensor, x: Tensor) -> Tensor:
        y: Tensor = model(wg.stack([t, x], axis=1))
        return y[:, 0]

    @wg.compile
    def step() -> Tensor:
        t, x = wg.random.uniform((n,)), wg.random.uniform((n,)) * 4 - 2
        t.requires_grad = x.requires_grad = True
        y = u(t, x)
        y_x = derivative(y, x)
        residual = derivative(y, t) + y * y_x - VISCOSITY * derivative(y_x, x)
        start = u(t * 0, x) - exact(t * 0, x)
        ends = wg.where(x > 0, 2.0, -2.0).detach()
        border = u(t, ends) - exact(t, ends)
        loss = (residual**2).mean() + (start**2).mean() + (border**2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    def error() -> float:
        t, x = wg.meshgrid(wg.linspace(0, 1, 21), wg.linspace(-2, 2, 41), indexing="ij")
        t, x = t.flatten(), x.flatten()
        with wg.no_grad():
            return float((u(t, x) - exact(t, x)).abs().max())

    before = error()
    for i in range(steps):
        loss = step()
        if i % 300 == 0:
            print(f"step {i:4}: loss {loss:.2e}, largest error {error():.3f}")
    print(f"largest error {error():.4f}")
    return before, error()


if __name__ == "__main__":
    main()
