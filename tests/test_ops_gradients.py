"""Gradients of every differentiable op, first and second order, against central differences."""

import pytest
from test_ops_values import samples

import wengert as wg

import support
from support import TABLE, Operands, differentiable, domain_of, function, label

STEP = 1e-5
# These read an operand's type, not its values.
TYPE_ONLY = ("zeros_like", "ones_like", "empty_like", "full_like", "normal_like", "uniform_like")
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


def zero_or_more(op, i):
    """A program of operand `i` alone of an elementwise op, and its value."""
    values = [wg.asarray(support.draw(support.generator(label(op), n), (5,), "float64", *bounds))
              for n, bounds in enumerate(op["domain"])]
    if op["condition"]:
        values[0] = values[0] > 0.5
    f = function(op)
    return lambda x: f(*values[:i], x, *values[i + 1 :]), values[i]


FLOATING = [
    (op, i)
    for op in TABLE
    if op["kind"] == "elementwise" and op["function"]
    for i in range(len(op["domain"]))
    if "float" in op["classes"][i] and not (op["condition"] and i == 0)
]


@pytest.mark.parametrize("op, i", FLOATING, ids=lambda x: label(x) if isinstance(x, dict) else x)
def test_floats_have_a_gradient_and_others_are_refused_in_every_form(op, i):
    """A float result has a gradient by each float operand, zeros where it is piecewise constant;
    `backward`, `gradients`, `grad` and compiled code agree. A result that is no float has none."""
    f, x = zero_or_more(op, i)
    leaf = wg.tensor(x, requires_grad=True)
    y = f(leaf)
    if not y.dtype.is_floating:
        for refused in (lambda: y.backward(), lambda: y[0].backward(),
                        lambda: wg.gradients(y, [leaf]), lambda: wg.grad(lambda v: f(v)[0])(x)):
            with pytest.raises(wg.GradientError, match=y.dtype.name):
                refused()
        return
    y.sum().backward()
    want = wg.grad(lambda v: f(v).sum())(x)
    by = wg.gradients(f(leaf).sum(), [leaf])[0]
    compiled = wg.compile(wg.grad(lambda v: f(v).sum()))(x)
    for g in (by, want, compiled):
        assert leaf.grad.numpy().tobytes() == g.numpy().tobytes()


def test_results_that_are_no_floats_are_refused_by_name():
    x = wg.tensor([1.0, 2.0], requires_grad=True)
    for f in (lambda v: v.argmax(), lambda v: v.argsort()[0], lambda v: (v > 1).any(),
              lambda v: v.astype(wg.int32).sum(), lambda v: v.count_nonzero()):
        name = f(x).dtype.name
        with pytest.raises(wg.GradientError, match=name):
            f(x).backward()
        with pytest.raises(wg.GradientError, match=name):
            wg.grad(f)(x)
        with pytest.raises(wg.GradientError, match=name):
            wg.compile(wg.grad(f))(x)


@pytest.mark.parametrize("bounds", [(0.0, 1.0), (None, 1.0), (0.0, None),
                                    (wg.tensor(0.0), wg.tensor([1.0])), (1.0, 1.0)])
def test_a_clip_at_its_bound_is_inside(bounds):
    x = wg.tensor([-0.5, 0.0, 0.25, 1.0, 2.0])
    low, high = bounds
    inside = [
        float((low is None or v >= float(low)) and (high is None or v <= float(high)))
        for v in x.tolist()
    ]
    def f(v):
        return v.clip(low, high).sum()
    assert wg.grad(f)(x).tolist() == inside
    assert wg.compile(wg.grad(f))(x).tolist() == inside
    assert wg.jvp(lambda v: v.clip(low, high), [x], [wg.ones(5)])[1].tolist() == inside


def test_what_is_clipped_belongs_to_the_bound():
    x = wg.tensor([-1.0, 0.0, 0.5, 1.0, 2.0])
    low, high = wg.tensor(0.0), wg.tensor(1.0)
    by = wg.grad(lambda a, b: x.clip(a, b).sum(), argnums=(0, 1))(low, high)
    assert [g.item() for g in by] == [1.0, 1.0]
    nan = wg.tensor(float("nan"))
    assert all(v != v for v in x.clip(nan, 1.0).tolist() + x.clip(0.0, nan).tolist())
    assert (wg.tensor([float("nan"), 0.5]).clip(0.0, 1.0) != 0.5).tolist() == [True, False]
