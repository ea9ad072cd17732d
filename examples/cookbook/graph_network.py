"""A graph network finds the two camps of a social network from the labels of two members.

    python examples/cookbook/graph_network.py

The people are those of Zachary's karate club (An information flow model for conflict and fission
in small groups, 1977). Source: Kipf, Welling: Semi-supervised classification with graph
convolutional networks, 2016.
"""

import numpy as np

import wengert as wg
from wengert import Tensor, nn, optim

# Who is a friend of whom: for each member, the friends with a higher number.
FRIENDS = {
    0: "1 2 3 4 5 6 7 8 10 11 12 13 17 19 21 31", 1: "2 3 7 13 17 19 21 30",
    2: "3 7 8 9 13 27 28 32", 3: "7 12 13", 4: "6 10", 5: "6 10 16", 6: "16", 8: "30 32 33",
    9: "33", 13: "33", 14: "32 33", 15: "32 33", 18: "32 33", 19: "33", 20: "32 33",
    22: "32 33", 23: "25 27 29 32 33", 24: "25 27 31", 25: "31", 26: "29 33", 27: "33",
    28: "31 33", 29: "32 33", 30: "32 33", 31: "32 33", 32: "33",
}
# Those who stayed with the teacher when the club split; the others followed the officer.
STAYED = {0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13, 16, 17, 19, 21}
MEMBERS = 34


def edges() -> tuple[Tensor, Tensor]:
    """Both directions of every friendship, and everybody's friendship with themselves."""
    pairs = [(a, int(b)) for a, friends in FRIENDS.items() for b in friends.split()]
    pairs += [(b, a) for a, b in pairs] + [(a, a) for a in range(MEMBERS)]
    source, target = np.array(pairs).T
    return wg.asarray(source), wg.asarray(target)


class Convolution(nn.Module):
    """Each member gets the weighted sum of what the friends have, through a linear layer."""

    def __init__(self, inputs: int, outputs: int) -> None:
        self.linear = nn.Linear(inputs, outputs)

    def forward(self, x: Tensor, source: Tensor, target: Tensor, weight: Tensor) -> Tensor:
        sent = weight[:, None] * self.linear(x)[source]
        return wg.index_add(wg.zeros((x.shape[0], sent.shape[1])), target, sent)


def main(steps: int = 200) -> tuple[float, float]:
    """Train; gives the share of members in their true camp, before and after."""
    wg.random.seed(0)
    source, target = edges()
    degree = wg.index_add(wg.zeros(MEMBERS), target, wg.ones(target.shape[0]))
    weight = (degree[source] * degree[target]).rsqrt()
    labels = wg.tensor([int(m in STAYED) for m in range(MEMBERS)])
    known = wg.tensor([0, 33])                      # the teacher and the officer
    first, second = Convolution(MEMBERS, 16), Convolution(16, 2)
    optimizer = optim.Adam([*first.parameters(), *second.parameters()], lr=1e-2)
    x = wg.eye(MEMBERS)

    @wg.compile
    def camps() -> Tensor:
        return second(first(x, source, target, weight).tanh(), source, target, weight)

    def right() -> float:
        return float((camps().argmax(axis=1) == labels).astype(wg.float32).mean())

    before = right()
    for i in range(steps):
        loss = nn.cross_entropy(camps()[known], labels[known])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if i % 50 == 0:
            print(f"step {i:4}: loss {loss:.4f}, {right():.0%} in their camp")
    print(f"{right():.0%} in their camp, two labels known")
    return before, right()


if __name__ == "__main__":
    main()
