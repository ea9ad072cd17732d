"""REINFORCE balances a pole on a cart.

    python examples/cookbook/policy_gradient.py

Many carts run side by side in one compiled `wg.scan`; the score of each action, times what was
earned afterwards, is the gradient. Sources: Williams: Simple statistical gradient-following
algorithms, 1992; the cart and pole of Barto, Sutton, Anderson, 1983.
"""

import wengert as wg
from wengert import Tensor, nn, optim

LENGTH = 200
Pair = tuple[Tensor, Tensor]


def move(state: Tensor, push: Tensor) -> Tensor:
    """One fiftieth of a second later; `state` (n, 4) is place, speed, angle and its speed."""
    speed, angle, spin = (state[:, i] for i in (1, 2, 3))
    sine, cosine = angle.sin(), angle.cos()
    force = (10.0 * push + 0.05 * spin**2 * sine) / 1.1
    turn = (9.8 * sine - cosine * force) / (0.5 * (4 / 3 - 0.1 * cosine**2 / 1.1))
    gain = force - 0.05 * turn * cosine / 1.1
    changes = wg.stack([speed, gain, spin, turn], axis=1)
    return state + 0.02 * changes


def episodes(policy: nn.Module, n: int) -> Pair:
    """Log probabilities of what was done and whether the pole stood: two (LENGTH, n)."""

    def advance(carry: Pair, _: None) -> tuple[Pair, Pair]:
        state, stands = carry
        logit = policy(state.detach())[:, 0]
        right = wg.random.uniform((n,)) < logit.sigmoid()
        score = nn.log_sigmoid(wg.where(right, logit, -logit))
        state = move(state, wg.where(right, 1.0, -1.0))
        good = (state[:, 0].abs() < 2.4) & (state[:, 2].abs() < 0.21)
        stands = stands * good.astype(wg.float32)
        return (state.detach(), stands.detach()), (score, stands.detach())

    start = wg.random.uniform((n, 4)) * 0.1 - 0.05
    played: Pair = wg.scan(advance, (start, wg.ones(n)), length=LENGTH)[1]
    return played


def main(steps: int = 150, n: int = 64) -> tuple[float, float]:
    """Train; gives the mean number of steps that the pole stands, before and after."""
    wg.random.seed(0)
    policy = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = optim.Adam(policy.parameters(), lr=1e-2)

    @wg.compile
    def step() -> Tensor:
        scores, stands = episodes(policy, n)
        returns = stands.flip(axis=0).cumulative_sum(axis=0).flip(axis=0)
        better = (returns - returns.mean(axis=1, keepdims=True)) / (returns.std() + 1e-6)
        loss = -(scores * better * stands).sum(axis=0).mean()
        optimizer.zero_grad()
        loss.backward()
        optim.clip_grad_norm(policy.parameters(), 1.0)
        optimizer.step()
        return stands.sum(axis=0).mean()

    before = step().item()
    for i in range(steps):
        stood = step()
        if i % 25 == 0:
            print(f"step {i:4}: the pole stands for {stood:.0f} of {LENGTH}")
    after = step().item()
    print(f"the pole stands for {after:.0f} of {LENGTH}")
    return before, after


if __name__ == "__main__":
    main()
