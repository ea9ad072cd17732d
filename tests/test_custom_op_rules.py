"""Rules of ops of one's own: gradients, tangents and batches by the user's formulas, or refused."""

import numpy as np
import pytest

import wengert as wg

from host_ops import MODES, X, cube, in_scan, in_session, rng, tensor, total, uncounted


def without_rule():
    return wg.custom_op(infer=lambda x: x, name="plain")(lambda x: x)


@pytest.mark.parametrize(
    "use",
    [
        lambda op, x: wg.grad(lambda x: op(x).sum())(x),
        lambda op, x: wg.compile(wg.grad(lambda x: op(x).sum()))(x),
        lambda op, x: wg.grad(in_scan(op))(x),
        lambda op, x: wg.compile(wg.grad(lambda x: in_scan(op)(x).sum()))(x),
        lambda op, x: wg.jvp(op, (x,), (x,)),
        lambda op, x: wg.jacobian(op)(x),
        lambda op, x: in_session(lambda p: wg.gradients(op(p).sum(), [p])[0])(X),
    ],
)
def test_without_a_gradient_rule_the_op_is_named(use):
    with pytest.raises(wg.GradientError, match=r"plain: .*no gradient rule.*@plain.vjp"):
        use(without_rule(), wg.tensor(X))


def test_without_a_gradient_rule_other_calls_work():
    op, x = without_rule(), tensor(requires_grad=True)
    assert not op(x.detach()).requires_grad
    with wg.no_grad():
        np.testing.assert_array_equal(op(x).numpy(), X)
    np.testing.assert_array_equal(wg.compile(op)(x.detach()).numpy(), X)


BAD_RULES = {
    "count": (lambda g, x, y: (g, g), wg.GradientError, "op.vjp: .*2 values for 1 operands"),
    "shape": (lambda g, x, y: (g.sum(),), wg.ShapeError, r"op.vjp: .*got \(\), wanted \(2, 3\)"),
    "a number": (lambda g, x, y: (1.0,), TypeError, "op.vjp: .*float"),
    "an int tensor": (
        lambda g, x, y: (g.astype(wg.int64),), wg.DTypeError, "op.vjp: .*int64"),
}


@pytest.mark.parametrize("what", BAD_RULES)
@pytest.mark.parametrize("mode", ["eager", "compiled", "compiled scan"])
def test_cotangents_that_fit_no_operand_are_refused(what, mode):
    rule, error, match = BAD_RULES[what]
    op = wg.custom_op(infer=lambda x: x, vjp=rule, name="op")(lambda x: x)
    with pytest.raises(error, match=match):
        wg.grad(total(MODES[mode](op)))(wg.tensor(X))


def test_an_operand_without_a_cotangent_has_none():
    op = wg.custom_op(infer=lambda x, y: x, vjp=lambda g, x, y, z: (g, None))(lambda x, y: x + y)
    for f in (op, wg.compile(op)):
        g = wg.grad(lambda x, y: f(x, y).sum(), argnums=(0, 1))(tensor(), tensor())
        assert (g[0].numpy() == 1).all() and (g[1].numpy() == 0).all()


def test_cotangents_take_the_operands_dtype():
    op = wg.custom_op(
        infer=lambda x: wg.Spec(x.shape, wg.float64), vjp=lambda g, x, y: (g * 2.0,)
    )(lambda x: x.astype("d") * 2)
    for f in (op, wg.compile(op)):
        g = wg.grad(lambda x: f(x).sum())(wg.ones(2, dtype=wg.float16))
        assert g.dtype == wg.float16 and g.tolist() == [2.0, 2.0]


def test_a_rule_is_traced_once_for_types():
    calls = []

    @wg.custom_op(infer=lambda x: x)
    def op(x):
        return x * 2

    @op.vjp
    def _(g, x, y):
        calls.append(tuple(x.shape))
        return (g * 2.0,)

    for n in (2, 2, 3, 2, 3):
        wg.grad(lambda x: op(x).sum())(wg.ones(n))
    assert calls == [(2,), (3,)]
    op.vjp(lambda g, x, y: (g * 5.0,))
    assert wg.grad(lambda x: op(x).sum())(wg.ones(2)).tolist() == [5.0, 5.0]


def test_a_rule_may_read_a_tensor_outside_where_it_is_called_at_once():
    scale = wg.tensor(2.0)
    op = wg.custom_op(infer=lambda x: x, vjp=lambda g, x, y: (g * scale,), name="scales")(
        lambda x: x * 2
    )
    compiled = wg.compile(wg.grad(lambda x: op(x).sum()))
    for value in (2.0, 3.0):
        scale[...] = value
        assert wg.grad(lambda x: op(x).sum())(wg.ones(2)).tolist() == [value] * 2
        assert compiled(wg.ones(2)).tolist() == [value] * 2
    with pytest.raises(wg.GradientError, match="scales: its vjp rule reads a tensor outside"):
        wg.jvp(op, (wg.ones(2),), (wg.ones(2),))


def test_a_rule_may_not_write_outside():
    state = wg.zeros(2)

    def rule(g, x, y):
        state[...] = g
        return (g,)

    op = wg.custom_op(infer=lambda x: x, vjp=rule)(lambda x: x)
    with pytest.raises(wg.CaptureError, match="updates a tensor outside"):
        wg.grad(lambda x: op(x).sum())(wg.ones(2))
    assert state.tolist() == [0.0, 0.0]


@uncounted
def test_examples_are_called_one_by_one_without_a_rule_and_at_once_with_one():
    shapes = []

    @wg.custom_op(infer=lambda x, y: x)
    def op(x, y):
        shapes.append(x.shape)
        return x + y

    x, y = wg.ones((4, 3)), wg.ones(3)
    assert wg.vmap(op, in_axes=(0, None))(x, y).tolist() == [[2.0] * 3] * 4
    assert shapes == [(3,)] * 4
    shapes.clear()
    op.batch(lambda mapped, x, y: op(x, wg.broadcast_to(y, x.shape)))
    assert wg.vmap(op, in_axes=(0, None))(x, y).tolist() == [[2.0] * 3] * 4
    assert shapes == [(4, 3)]


def test_batches_nest_and_take_any_axis():
    x = wg.tensor(rng.standard_normal((2, 3, 4)))
    want = x.numpy() ** 3
    for f in (wg.vmap(wg.vmap(cube)), wg.vmap(cube, in_axes=1, out_axes=1)):
        np.testing.assert_allclose(f(x).numpy(), want)
        np.testing.assert_allclose(wg.compile(f)(x).numpy(), want)
