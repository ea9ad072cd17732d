"""Softmax regression written as a graph first and run by a session afterwards.

    python examples/cookbook/session.py

Two sessions of one graph have variables of their own: here with two learning rates.
"""

from common import digits

import wengert as wg
from wengert import Tensor, nn

Feeds = tuple[Tensor, Tensor, Tensor]


def build() -> tuple[wg.Graph, Feeds, list[Tensor], Tensor, Tensor]:
    """The graph, and what to feed and fetch."""
    with wg.Graph() as graph:
        x = wg.placeholder("x", (None, 784))
        y = wg.placeholder("y", (None,), dtype=wg.int64)
        rate = wg.placeholder("rate", ())
        w = wg.Variable(wg.zeros((784, 10)), name="w")
        b = wg.Variable(wg.zeros(10), name="b")
        logits = x @ w + b
        loss = nn.cross_entropy(logits, y)
        slopes = wg.gradients(loss, [w, b])
        train = [v.assign_sub(rate * g) for v, g in zip((w, b), slopes, strict=True)]
        hits = (logits.argmax(axis=1) == y).astype(wg.float32).mean()
    return graph, (x, y, rate), train, loss, hits


def main(steps: int = 300, batch: int = 100) -> tuple[float, float]:
    """Train; gives the accuracy of held-out digits before and after, at the better rate."""
    images, labels = (t.numpy() for t in digits())
    images = images.reshape(-1, 784)
    graph, (x, y, rate), train, loss, hits = build()
    held = {x: images[4000:], y: labels[4000:]}
    best = before = value = 0.0
    for size in (0.02, 0.5):
        with wg.Session(graph) as session:
            before = session.run(hits, feed_dict=held).item()
            for i in range(steps):
                rows = slice(i * batch % 4000, i * batch % 4000 + batch)
                feeds = {x: images[rows], y: labels[rows], rate: size}
                _, value = session.run([train, loss], feed_dict=feeds)
            right = session.run(hits, feed_dict=held).item()
            print(f"rate {size}: loss {value:.3f}, {right:.1%} of held-out digits")
            best = max(best, right)
    return before, best


if __name__ == "__main__":
    main()
