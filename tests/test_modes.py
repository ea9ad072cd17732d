"""The programs of the derived tests, captured and through a session: the bits of eager code.

Graphs with open sizes are in `test_ops_sessions.py`.
"""

import pytest
from test_ops_gradients import OPS as DIFFERENTIABLE
from test_ops_gradients import directions_like, scalar_of, setup
from test_ops_values import OPS, samples

import wengert as wg

import support
from modes import assert_same
from support import Operands, domain_of, dtypes_of, function, label


def program_of(op, sample, dtype):
    """The op on a sample as a function of its operands, and these."""
    operands = Operands((label(op), sample, dtype), dtype, domain_of(op))
    operands.evaluate(sample, lambda kind, array: wg.asarray(array))
    values = [
        support.to_tensor(array, dtype if kind == "x" else array.dtype.name)
        for kind, array in operands.drawn
    ]

    def program(*args):
        left = iter(args)
        args, kwargs = operands.evaluate(sample, lambda kind, array: next(left))
        return function(op)(*args, **kwargs)

    return program, values


@pytest.mark.parametrize("op", OPS, ids=label)
def test_values(op, full):
    for sample in samples(op):
        dtypes = dtypes_of(op, sample)
        for dtype in dtypes if full else dtypes[-1:]:
            program, values = program_of(op, sample, dtype)
            try:
                assert_same(program, *values)
            except Exception as error:
                error.add_note(f"{label(op)}({sample}) with {dtype}")
                raise


@pytest.mark.parametrize("op", DIFFERENTIABLE, ids=label)
def test_gradients(op):
    """Value, gradients and gradients of gradients, all inside, by transforms and by the tape."""
    for sample in samples(op):
        call, values = setup(op, sample)
        leaves = [wg.tensor(x, requires_grad=True) for x in values]
        if not call(*leaves):
            continue  # places and counts have no gradient
        f, ways = scalar_of(call, label(op)), directions_like(values, "v")
        places = tuple(range(len(values)))

        def along(gs, ways=ways):
            return sum((g * w).sum() for g, w in zip(gs, ways, strict=True) if g is not None)

        def nested(*xs, f=f, places=places, along=along):
            first = wg.grad(f, argnums=places)
            return f(*xs), first(*xs), wg.grad(lambda *xs: along(first(*xs)), argnums=places)(*xs)

        def filled(gs, xs):
            # A rule that is zero leaves None on the tape, and zeros in a graph.
            return [wg.zeros_like(x) if g is None else g for g, x in zip(gs, xs, strict=True)]

        def swept(*xs, f=f, along=along, filled=filled):
            y = f(*xs)
            first = wg.gradients(y, xs, create_graph=True, allow_unused=True)
            total = along(first) + 0.0 * xs[0].sum()
            second = wg.gradients(total, xs, allow_unused=True)
            return y, filled(first, xs), filled(second, xs)

        try:
            assert_same(nested, *values)
            assert_same(swept, *leaves)
        except Exception as error:
            error.add_note(f"{label(op)}({sample})")
            raise


@pytest.mark.parametrize(
    "program",
    [
        lambda x: wg.grad(lambda v: wg.grad(lambda u: u.sin().sum())(v).sum())(x),
        lambda x: wg.grad(lambda v: (v * x).sum())(x),
        lambda x: wg.grad(lambda v: wg.grad(lambda u: (u * v * x).sin().sum())(v).sum())(x),
        lambda x: wg.vjp(lambda v: v * x * v, x)[1](wg.ones_like(x)),
        lambda x: wg.value_and_grad(lambda v: (v * x.detach()).sum())(x),
        lambda x: wg.grad(lambda v: x.sum())(x),
    ],
    ids=["nested", "beside", "nested beside", "vjp", "detached", "unused"],
)
def test_transforms_are_of_their_argument_alone(program):
    """Not of the tensor it was called with, where that is used as well."""
    assert_same(program, wg.tensor([0.25, -1.5, 3.0]))
