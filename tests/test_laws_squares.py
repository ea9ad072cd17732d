"""Random programs over square matrices, of a size that blocks take: compiled they have the bits of
eager code. What belongs to rows cannot be told from what belongs to columns by their counts.
"""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import wengert as wg
from wengert import nn

from modes import bits

N = 200

STEPS = {
    "sum": lambda x, y: x + y,
    "difference": lambda x, y: x - y,
    "product": lambda x, y: x * y,
    "largest": lambda x, y: wg.maximum(x, y),
    "exp": lambda x, _: wg.clip(x, -3, 3).exp(),
    "tanh": lambda x, _: x.tanh(),
    "rounded": lambda x, _: x.astype(wg.bfloat16).astype(wg.float32),
    "sums along rows": lambda x, _: x.sum(axis=-1),
    "maxima along rows": lambda x, _: x.max(axis=-1, keepdims=True),
    "means along columns": lambda x, _: x.mean(axis=0, keepdims=True),
    "softmax": lambda x, _: nn.softmax(x, -1),
    "layer norm": lambda x, _: nn.layer_norm(x, -1),
    "turned": lambda x, _: x.T if x.ndim == 2 else x[:, None],
    "one more axis": lambda x, _: x[None] if x.ndim == 1 else x * 0.5,
}

PLACES = st.integers(0, 99)
STEP = st.tuples(st.sampled_from(sorted(STEPS)), PLACES, PLACES)
PROGRAMS = st.lists(STEP, min_size=6, max_size=16)


def program(steps):
    """The last three values; each step reads two before it."""

    def run(*values):
        values = list(values)
        for name, i, j in steps:
            x, y = values[i % len(values)], values[j % len(values)]
            values.append(STEPS[name](x, y) if x.ndim else x + 1)
        return tuple(values[-3:])

    return run


@settings(max_examples=1000)
@given(PROGRAMS)
def test_compiled_programs_have_the_bits_of_eager_ones(steps):
    random, sizes = np.random.default_rng(2), ((N, N), (N, N), (N,), (N,), (N, 1), (1, N))
    inputs = [wg.tensor(random.standard_normal(size, dtype="f4")) for size in sizes]
    run = program(steps)
    assert bits(wg.compile(run)(*inputs)) == bits(run(*inputs))
