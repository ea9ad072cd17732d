"""A small network learns from the soft answers of a large one.

    python examples/cookbook/distillation.py

Source: Hinton, Vinyals, Dean: Distilling the knowledge in a neural network, 2015.
"""

from collections.abc import Callable

from common import digits

import wengert as wg
from wengert import Tensor, nn, optim


def network(width: int) -> nn.Sequential:
    """One hidden layer."""
    return nn.Sequential(nn.Linear(784, width), nn.ReLU(), nn.Linear(width, 10))


def divergence(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """Kullback-Leibler divergence of softened answers, times the temperature squared."""
    target = nn.log_softmax(teacher / temperature, axis=1)
    answer = nn.log_softmax(student / temperature, axis=1)
    return (target.exp() * (target - answer)).sum(axis=1).mean() * temperature**2


def train(
    model: nn.Module, x: Tensor, steps: int, loss_of: Callable[[Tensor, Tensor], Tensor]
) -> None:
    """Train on random rows of `x`; `loss_of` gets the answers and the rows."""
    optimizer = optim.Adam(model.parameters(), lr=2e-3)

    @wg.compile
    def step(rows: Tensor) -> None:
        optimizer.zero_grad()
        loss_of(model(x[rows]), rows).backward()
        optimizer.step()

    for _ in range(steps):
        step(wg.random.integers(0, x.shape[0], (64,)))


def main(steps: int = 600, labelled: int = 200) -> tuple[float, float]:
    """Train; gives the accuracy of a student without the teacher and with it."""
    wg.random.seed(0)
    images, labels = digits()
    x = images.reshape(-1, 784)
    test_x, test_y = x[4000:], labels[4000:]
    x, y = x[:4000], labels[:4000]

    def accuracy(model: nn.Module) -> float:
        with wg.no_grad():
            return float((model(test_x).argmax(axis=1) == test_y).astype(wg.float32).mean())

    teacher = network(256)
    train(teacher, x, steps, lambda answer, rows: nn.cross_entropy(answer, y[rows]))
    alone, taught = network(16), network(16)
    few_x, few_y = x[:labelled], y[:labelled]
    train(alone, few_x, steps, lambda answer, rows: nn.cross_entropy(answer, few_y[rows]))
    with wg.no_grad():
        soft = teacher(x)
    train(taught, x, steps, lambda answer, rows: divergence(answer, soft[rows], 4.0))
    print(f"teacher {accuracy(teacher):.1%}")
    before, after = accuracy(alone), accuracy(taught)
    print(f"student with {labelled} labels {before:.1%}, with the teacher's answers {after:.1%}")
    return before, after


if __name__ == "__main__":
    main()
