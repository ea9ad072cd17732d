"""Mixed precision: a convolutional network reads digits with products in float16, while its
parameters stay float32.

    python examples/cookbook/mixed_precision.py

`wg.autocast` casts where products are called. Small gradients vanish in float16, so `GradScaler`
multiplies the loss, divides the gradients before the step, and skips steps whose gradients
overflow. The same step runs op by op and compiled. Source: Micikevicius et al.: Mixed precision
training, 2017.
"""

from common import digits

import wengert as wg
from wengert import Tensor, nn, optim


def network() -> nn.Sequential:
    """Two convolutions and two linear layers."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 5, stride=2), nn.ReLU(), nn.Conv2d(8, 16, 5, stride=2), nn.ReLU(),
        nn.Flatten(), nn.Linear(16 * 4 * 4, 64), nn.LayerNorm(64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip


def train(x: Tensor, y: Tensor, steps: int, dtype: wg.DType, compiled: bool) -> nn.Sequential:
    """A network trained with products of `dtype`; float32 is training without mixed precision."""
    narrow = dtype != wg.float32
    wg.random.seed(0)
    model = network()
    optimizer = optim.AdamW(model.parameters(), lr=2e-3)
    scaler = optim.GradScaler(enabled=dtype == wg.float16)

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        with wg.autocast(dtype if narrow else wg.bfloat16, enabled=narrow):
            loss = nn.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale(optimizer)             # so that clipping sees the gradients themselves
        optim.clip_grad_norm(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        return loss

    run = wg.compile(step) if compiled else step
    loss = wg.tensor(0.0)
    for _ in range(steps):
        rows = wg.random.integers(0, x.shape[0], (64,))
        loss = run(x[rows], y[rows])
    print(f"{dtype}: loss {loss:.4f}, the last scale {scaler.get_scale():g}")
    return model


def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """The share of right answers, computed in float32."""
    with wg.no_grad():
        return float((model(x).argmax(axis=1) == y).astype(wg.float32).mean())


def main(steps: int = 300) -> tuple[float, float]:
    """Train in three dtypes; gives the accuracy on held-out digits before, and after float16."""
    images, labels = digits()
    x, y, test_x, test_y = images[:4000], labels[:4000], images[4000:], labels[4000:]
    wg.random.seed(0)
    before, after = accuracy(network(), test_x, test_y), 0.0
    for dtype in (wg.float32, wg.bfloat16, wg.float16):
        after = accuracy(train(x, y, steps, dtype, compiled=True), test_x, test_y)
        print(f"{dtype}: {after:.1%} of held-out digits")
    # Op by op it is the same computation, to the last bit.
    eager, compiled = (train(x, y, 5, wg.float16, mode) for mode in (False, True))
    for a, b in zip(eager.parameters(), compiled.parameters(), strict=True):
        assert (a == b).all(), "eager and compiled steps differ"
    return before, after


if __name__ == "__main__":
    main()
