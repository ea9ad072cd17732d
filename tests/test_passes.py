"""Each pass preserves the bits: alone, left out, and in any selection; over random programs with
control flow and their gradients, at sizes that are open, and over training steps."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_capture_training import Bench, batches
from test_laws_modes import SIZES, STEPS, named, operands, programs, run, updated
from test_laws_modes import bits as bits_of

import wengert as wg


def passes():
    return list(dict.fromkeys(p.name for p in wg.compile(lambda x: x + 1).graph(wg.ones(1)).passes))


PASSES = passes()
SWITCHES = [*PASSES, "fuse", "donate"]
SELECTIONS = {
    **{f"without {name}": {name: False} for name in SWITCHES},
    **{f"only {name}": {n: n == name for n in SWITCHES} for name in SWITCHES},
    "none": dict.fromkeys(SWITCHES, False),
}


def test_the_passes_have_names_and_switches():
    assert PASSES == ["expand", "dead", "fold", "simplify", "sink", "cse"]
    with pytest.raises(ValueError, match="nosuch"), wg.config(passes={"nosuch": True}):
        pass
    with wg.config(passes=SELECTIONS["none"]):
        graph = wg.compile(lambda x: x * 1.0 + x.T.T).graph(wg.ones((2, 2)))
    assert [p.name for p in graph.passes] == [] and len(graph.nodes) > 3


@pytest.mark.parametrize("name", SELECTIONS)
@given(programs())
def test_random_programs(name, steps):
    with wg.config(passes=SELECTIONS[name]):
        f = wg.compile(lambda a, b: run(steps, a, b))
        for shape in SIZES[:3]:
            args = operands(shape)
            assert bits_of(f(*args)) == bits_of(run(steps, *args)), (shape, named(steps))


@given(programs(), st.sets(st.sampled_from(SWITCHES)))
def test_gradients_are_those_of_the_whole_pipeline(steps, off):
    """Of one traced gradient: its additions have one order, whatever passes do."""
    gradient = wg.grad(lambda a, b: run(steps, a, b)[0].sum(), argnums=(0, 1))
    args = operands((5, 4))
    want = bits_of(wg.compile(lambda a, b: gradient(a, b))(*args))
    with wg.config(passes=dict.fromkeys(off, False)):
        assert bits_of(wg.compile(lambda a, b: gradient(a, b))(*args)) == want, (off, named(steps))


@pytest.mark.parametrize("name", SELECTIONS)
@pytest.mark.parametrize("model", ["lenet", "attention", "lstm"])
def test_training_steps(model, name):
    states = []
    for selection in ({}, SELECTIONS[name]):
        bench = Bench(model, True)
        with wg.config(passes=selection):
            losses = [bench.step(*args).item() for args in batches((4, 3, 4))]
        states.append((losses, bench.state()))
    assert states[0] == states[1]


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__)
def test_reports_add_up(step):
    """What one pass leaves the next one finds, and none but `expand` makes a program larger."""
    graph = wg.compile(lambda x, y: wg.grad(lambda v: step(v, y, 1, 2).sum())(x)).graph(
        *operands((6, 5))
    )
    reports = graph.passes
    for before, after in pairwise(reports):
        assert before.nodes_after == after.nodes_before, (before.name, after.name)
    for p in reports:
        assert min(p.nodes_after, p.bytes_after, p.flops_after) >= 0
        if p.name in ("dead", "cse"):
            assert p.nodes_after <= p.nodes_before and p.flops_after <= p.flops_before


@given(programs())
def test_fast_math_stays_near(steps):
    """It may change last bits, and nothing else."""
    args = operands((5, 4))
    near = [s if getattr(s[0], "__name__", "") in SMOOTH else (updated, *s[1:]) for s in steps]
    with wg.config(fast_math=True):
        got = wg.compile(lambda a, b: run(near, a, b))(*args)
    want = run(near, *args)
    for x, y in zip(got, want, strict=True):
        np.testing.assert_allclose(x.numpy(), y.numpy(), rtol=1e-4, atol=1e-5)


# Without comparisons, whose outcome last bits decide, and divisions by what may vanish.
SMOOTH = {
    "updated",
    "product",
    "folded",
    "counted",
    "sloped",
    "repeated",
    "counted_loop",
    "scanned",
}
