"""The peak that a plan predicts is the one that the counters see: for every op with its gradient,
known models, and random programs at sizes that one trace serves.

Counted beside the plan: the keys of random numbers, which are inputs made for each call. Sorts of
floats count memory that they take only where there are NaNs or negative zeros.
"""

import gc

import pytest
from hypothesis import given
from test_capture_training import RUNS, Bench, batches
from test_laws_modes import FLOWS, STEPS, named, operands, programs, run
from test_modes import program_of
from test_ops_gradients import OPS as DIFFERENTIABLE
from test_ops_gradients import scalar_of, setup
from test_ops_values import OPS, samples
from test_snapshots import MODELS

import wengert as wg

from support import dtypes_of, label

KEY = 64
"""Bytes of a key of random numbers."""


def observed(f, args):
    """The plan of a call, and the bytes that the call took beside its keys."""
    for _ in range(2):
        f(*args)
    plan, inputs = f.plan(*args), [*f.graph(*args).inputs]
    keys = sum((x.dtype, x.shape) == (wg.uint32, (2,)) for x in inputs)
    keys -= sum((x.dtype, x.shape) == (wg.uint32, (2,)) for x in args)
    gc.disable()  # what it frees meanwhile is not the plan's
    before = wg.memory_stats()["live_bytes"]
    wg.reset_peak_memory()
    result = f(*args)
    used = wg.memory_stats()["peak_bytes"] - before
    gc.enable()
    del result
    return plan, used - KEY * keys


def assert_as_predicted(f, args, what=None):
    """Whether the plan is closed; then it is as predicted."""
    plan, used = observed(f, args)
    if not plan.is_open:
        bytes_ = (what, used, plan.peak_bytes, plan.naive_bytes)
        assert used <= plan.peak_bytes, bytes_
        assert used == plan.peak_bytes or " = sort(" in str(plan), bytes_
    # Results alone never need more than each by itself, in blocks of the allocator's sizes.
    rounding = plan.naive_bytes // 8 + 128 * (len(plan) + 4)
    alone = plan.peak_bytes - plan.scratch_bytes
    facts = (what, plan.peak_bytes, plan.scratch_bytes, plan.naive_bytes)
    assert 0 <= alone <= plan.naive_bytes + rounding, facts
    return not plan.is_open


@pytest.mark.parametrize("op", OPS, ids=label)
def test_ops(op):
    for sample in samples(op):
        program, values = program_of(op, sample, dtypes_of(op, sample)[-1])
        assert_as_predicted(wg.compile(program), values, sample)


@pytest.mark.parametrize("op", DIFFERENTIABLE, ids=label)
def test_gradients(op):
    call, values = setup(op, samples(op)[0])
    if call(*values):
        f = wg.grad(scalar_of(call, label(op)), argnums=tuple(range(len(values))))
        assert_as_predicted(wg.compile(f), values)


@pytest.mark.parametrize("name", MODELS)
def test_models(name):
    f, args = MODELS[name]()
    with wg.enable_grad() if "step" in name else wg.no_grad():
        closed = assert_as_predicted(f, args)
    assert closed or "while" in name


@pytest.mark.parametrize("name", RUNS)
def test_training_steps_at_every_size(name):
    step = Bench(name, True).step
    for args in batches((8, 3, 8, 5, 13)):
        assert assert_as_predicted(step, args)


@given(programs())
def test_random_programs(steps):
    f = wg.compile(lambda a, b: run(steps, a, b))
    for shape in ((3, 4), (5, 4), (50, 70)):
        assert_as_predicted(f, operands(shape), named(steps))


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__)
def test_steps_and_their_gradients(step):
    """Control flow is counted with its bodies; only a count of rounds may be open."""
    args = operands((30, 40))
    for f in (
        lambda x, y: step(x, y, 1, 2),
        lambda x, y: wg.grad(lambda v: step(v, y, 1, 2).sum())(x),
        lambda x, y: wg.vmap(lambda v: step(v, y, 1, 2))(wg.stack([x, y])),
    ):
        closed = assert_as_predicted(wg.compile(f), args)
        assert closed or step in FLOWS or "sort" in step.__name__, "open"
