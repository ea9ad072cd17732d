"""Newton's method: logistic regression in a handful of steps, with the Hessian of the loss.

    python examples/cookbook/newton.py

The system of equations is solved by conjugate gradients, which need only products with the Hessian:
a `jvp` of the gradient.
"""

from collections.abc import Callable

import wengert as wg
from wengert import Tensor, nn


def solve(product: Callable[[Tensor], Tensor], b: Tensor, steps: int = 20) -> Tensor:
    """`x` with `product(x) = b` for a symmetric positive operator, by conjugate gradients."""

    def improve(_: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        x, residual, direction, square = state
        along = product(direction)
        size = square / (direction @ along).maximum(1e-20)
        x, residual = x + size * direction, residual - size * along
        fresh = residual @ residual
        return x, residual, residual + fresh / square.maximum(1e-20) * direction, fresh

    zero = wg.zeros(b.shape, dtype=b.dtype)
    x: Tensor = wg.fori_loop(0, steps, improve, (zero, b, b, b @ b))[0]
    return x


def main(n: int = 500, d: int = 10, rounds: int = 8) -> tuple[float, float]:
    """Fit; gives the length of the gradient at the start and at the end."""
    wg.random.seed(0)
    true = wg.random.normal((d,))
    x = wg.random.normal((n, d))
    y = (wg.random.uniform((n,)) < (x @ true).sigmoid()).astype(wg.float32)

    def loss(w: Tensor) -> Tensor:
        logits = x @ w
        return (nn.softplus(logits) - y * logits).mean() + 1e-3 * (w**2).sum()

    slope = wg.grad(loss)

    @wg.compile
    def step(w: Tensor) -> tuple[Tensor, Tensor]:
        g = slope(w)
        return w - solve(lambda v: wg.jvp(slope, (w,), (v,))[1], g), wg.vector_norm(g)

    w, lengths = wg.zeros(d), []
    for i in range(rounds):
        w, length = step(w)
        lengths.append(length.item())
        print(f"round {i}: gradient {length:.1e}, loss {loss(w):.6f}")
    return lengths[0], lengths[-1]


if __name__ == "__main__":
    main()
