"""Group A: calls so small that the time is what a call costs."""

import numpy as np
from case import normal, row


def pair(s):
    return normal(s.n), normal(s.n, seed=1)


for i, n in enumerate((1, 16, 1024), 1):
    row(f"A{i}", f"x + y, {n} elements", lambda F, s, x, y: x + y, pair, {"n": n})


def ten_ops(F, s, x, y):
    z = ((x + y) * x - y) * 0.5
    z = F.exp((F.tanh(z) + 1.0) * y) - x
    return z * z


row("A4", "chain of 10 ops on 16 elements, per op", ten_ops, pair, {"n": 16}, per=lambda s: 10)


def scalars(F, s, x):
    for _ in range(s.ops // 2):
        x = x * 1.0009 + 0.001
    return F.sum(x)


def number(s):
    return (np.float32([0.7]),)


for letter, ops in zip("abc", (10, 100, 1000), strict=True):
    facts = {"sizes": {"ops": ops}, "small": {"ops": min(ops, 20)}, "per": lambda s: s.ops}
    row(f"A5{letter}", f"chain of {ops} ops on a number, forward + backward, per op", scalars,
        number, kind="gradient", wrt=(0,), **facts)
    row(f"A6{letter}", f"chain of {ops} ops on a number, recorded, per op", scalars, number,
        kind="recorded", wrt=(0,), **facts)

row("A7", "8×8 @ 8×8", lambda F, s, a, b: a @ b,
    lambda s: (normal(8, 8), normal(8, 8, seed=1)))
row("A8", "x[3:5] of 16", lambda F, s, x: x[3:5], lambda s: (normal(16),))
row("A9", "4×16 reshaped to 16×4 and transposed",
    lambda F, s, x: F.transpose(F.reshape(x, (16, 4)), (1, 0)), lambda s: (normal(4, 16),))


def cell(F, x, h, into, over, bias):
    return F.tanh(x @ into + h @ over + bias)


def cells(s):
    n = s.hidden
    return (normal(1, n), normal(1, n, seed=1), normal(n, n, seed=2, scale=0.1),
            normal(n, n, seed=3, scale=0.1), normal(n, seed=4))


def unrolled(F, s, x, h, *weights):
    for _ in range(s.steps):
        h = cell(F, x, h, *weights)
    return F.sum(h)


for id, steps, title in (("A10", 1, "an RNN cell of 32, forward + backward"),
                         ("A11", 20, "20 steps of an RNN of 32 in a loop, forward + backward, "
                                     "per step")):
    row(id, title, unrolled, cells, {"hidden": 32, "steps": steps}, {"steps": min(steps, 3)},
        kind="gradient", wrt=(1, 2, 3, 4), per=lambda s: s.steps)
