"""Gradients of every differentiable op, first and second order, against central differences."""

import pytest
from test_ops_values import samples

import wengert as wg

import support
from support import TABLE, Operands, differentiable, domain_of, function, label

STEP = 1e-5
# These read an operand's type, not its values.
TYPE_ONLY = ("zeros_like", "ones_like", "empty_like", "full_like")
OPS = [
    op
    for op in TABLE
    if differentiable(op)
    and op["function"]
    and op["kind"] != "create"
    and op["name"] not in TYPE_ONLY
]


def setup(op, sample):
    """A function of the sample's float operands, in float64, and their values."""
    operands = Operands((label(op), sample, "gradient"), "float64", domain_of(op))
    operands.evaluate(sample, lambda kind, array: wg.asarray(array))
    values = [wg.asarray(array) for kind, array in operands.drawn if kind in "xf"]

    def call(*leaves):
        left = iter(leaves)

        def wrap(kind, array):
            return next(left) if kind in "xf" else wg.asarray(array)

        args, kwargs = operands.evaluate(sample, wrap)
        result = function(op)(*args, **kwargs)
        parts = list(result) if isinstance(result, tuple | list) else [result]
        return [part for part in parts if part.dtype == wg.float64]

    return call, values


def scalar_of(call, key):
    """The outputs against fixed random weights: a scalar function, so that one sweep sees all."""
    def f(*leaves):
        total = 0.0
        for n, y in enumerate(call(*leaves)):
            weights = support.generator(key, n).uniform(0.5, 1.5, y.shape)
            total = total + (y * wg.asarray(weights)).sum()
        return total
    return f


def gradient(f, leaves, create_graph=False):
    y = f(*leaves)
    if not y.requires_grad:
        return None
    return wg.gradients(y, leaves, create_graph=create_graph, allow_unused=True)


def slope(f, values, directions):
    """The derivative of `f` along a direction, by central differences."""
    ends = []
    for sign in (1, -1):
        moved = [v + sign * STEP * d for v, d in zip(values, directions, strict=True)]
        ends.append(f(*moved).item())
    return (ends[0] - ends[1]) / (2 * STEP)


def along(gradients, directions):
    pairs = zip(gradients, directions, strict=True)
    return sum((g * d).sum() for g, d in pairs if g is not None)


def directions_like(values, key):
    rng = support.generator(key, "direction")
    return [wg.asarray(rng.uniform(-1, 1, v.shape)) for v in values]


def agree(got, want, what):
    assert abs(got - want) <= 1e-6 * max(1, abs(got), abs(want)), (what, got, want)


@pytest.mark.parametrize("op", OPS, ids=label)
def test_gradients(op):
    for sample in samples(op):
        call, values = setup(op, sample)
        f = scalar_of(call, label(op))
        v, w = directions_like(values, "v"), directions_like(values, "w")
        leaves = [wg.tensor(x, requires_grad=True) for x in values]
        if not call(*leaves):
            continue                    # places and counts have no gradient
        first = gradient(f, leaves)
        assert first is not None, f"{label(op)}({sample}): the result does not require a gradient"
        agree(along(first, v).item(), slope(f, values, v), f"{label(op)}({sample}), first order")

        def pushed(*xs, f=f, v=v):
            """The directional derivative of `f`, a function of the same leaves."""
            own = [x if x.requires_grad else wg.tensor(x, requires_grad=True) for x in xs]
            return along(gradient(f, own, create_graph=True), v) + 0.0 * own[0].sum()

        second = gradient(pushed, leaves)
        what = f"{label(op)}({sample}), second order"
        agree(along(second, w).item(), slope(pushed, values, w), what)


@pytest.mark.parametrize("op", OPS, ids=label)
def test_a_gradient_has_its_operand_s_shape_and_dtype(op):
    sample = samples(op)[0]
    values = setup(op, sample)[1]
    for dtype in (wg.float16, wg.bfloat16, wg.float32):
        leaves = [wg.tensor(v.astype(dtype), requires_grad=True) for v in values]
        try:
            results = [y for y in leaf_results(op, sample, leaves) if y.requires_grad]
        except wg.DTypeError:
            continue
        grads = wg.gradients(results, leaves, [wg.ones_like(y) for y in results], allow_unused=True)
        for g, leaf in zip(grads, leaves, strict=True):
            assert g is None or (g.shape == leaf.shape and g.dtype == leaf.dtype)


def leaf_results(op, sample, leaves):
    operands = Operands((label(op), sample, "gradient"), "float64")
    left = iter(leaves)

    def wrap(kind, array):
        return next(left) if kind in "xf" else wg.asarray(array)

    args, kwargs = operands.evaluate(sample, wrap)
    result = function(op)(*args, **kwargs)
    return list(result) if isinstance(result, tuple | list) else [result]
