"""Transforms of functions: batches against loops, derivatives against differences, each other."""

import numpy as np
import pytest

import wengert as wg
from wengert import nn

RANDOM = np.random.default_rng(0)


def draw(*shape):
    return wg.asarray(RANDOM.standard_normal(shape))


def same(got, want, rtol=1e-12):
    np.testing.assert_allclose(got.numpy(), np.asarray(want), rtol=rtol, atol=1e-12)


def rows(f, *xs):
    return np.stack([f(*(wg.asarray(x) for x in row)).numpy() for row in zip(*xs, strict=True)])


FUNCTIONS = [
    lambda x: x.sin() * x,
    lambda x: nn.softmax(x),
    lambda x: (x * x.sum()).sort(),
    lambda x: x.reshape(2, 2) @ x.reshape(2, 2).T,
    lambda x: wg.concat([x, x[::2]])[wg.argsort(wg.concat([x, x[::2]]))],
    lambda x: nn.layer_norm(x),
    lambda x: wg.scan(lambda c, v: (c * v, c + v), x[0], x)[1],
    lambda x: wg.cond(x.sum() > 0, lambda v: v.exp(), lambda v: v * v, x),
    lambda x: wg.while_loop(lambda y: (y * y).sum() < 30, lambda y: y * 1.5 + 0.1, x),
    lambda x: wg.grad(lambda v: (v.tanh() ** 2).sum())(x),
    lambda x: x.max() * x,
    lambda x: nn.relu(x),
]


@pytest.mark.parametrize("f", FUNCTIONS)
def test_vmap_is_a_loop_over_examples(f):
    x = draw(5, 4)
    want = rows(f, x.numpy())
    same(wg.vmap(f)(x), want)
    same(wg.compile(wg.vmap(f))(x), want)
    same(wg.vmap(wg.compile(f))(x), want)
    same(wg.vmap(f, in_axes=1, out_axes=-1)(x.T), np.moveaxis(want, 0, -1))
    twice = wg.stack([x, x * 0.5])
    same(wg.vmap(wg.vmap(f))(twice), np.stack([want, rows(f, x.numpy() * 0.5)]))


@pytest.mark.parametrize("f", FUNCTIONS)
def test_jvp_is_the_slope_along_a_tangent(f):
    x, t = draw(4), draw(4)
    y, moved = wg.jvp(f, (x,), (t,))
    same(y, f(x).numpy())
    h = 1e-6
    want = (f(x + t * h).numpy() - f(x - t * h).numpy()) / (2 * h)
    np.testing.assert_allclose(moved.numpy(), want, rtol=2e-5, atol=1e-7)
    same(wg.compile(lambda x, t: wg.jvp(f, (x,), (t,))[1])(x, t), moved.numpy())


@pytest.mark.parametrize("f", FUNCTIONS)
def test_jacobians_agree(f):
    x = draw(4)
    reverse, forward = wg.jacobian(f)(x), wg.jacobian(f, mode="forward")(x)
    assert reverse.shape == (*f(x).shape, 4)
    same(reverse, forward.numpy(), rtol=1e-9)
    same(wg.compile(wg.jacobian(f))(x), reverse.numpy())


@pytest.mark.parametrize("f", FUNCTIONS)
def test_hessians_are_jacobians_of_gradients(f):
    x, h = draw(4), 1e-5
    g = wg.grad(lambda v: (f(v) * wg.arange(1, f(x).size + 1).reshape(f(x).shape)).sum())
    found = wg.hessian(lambda v: (f(v) * wg.arange(1, f(x).size + 1).reshape(f(x).shape)).sum())(x)
    steps = np.eye(4) * h
    want = [(g(x + wg.asarray(s)).numpy() - g(x - wg.asarray(s)).numpy()) / (2 * h) for s in steps]
    np.testing.assert_allclose(found.numpy(), np.stack(want, 1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("f", FUNCTIONS)
def test_gradients_and_batches_commute(f):
    x = draw(3, 4)

    def loss(v):
        return (f(v) ** 2).sum()

    per_example = wg.vmap(wg.grad(loss))(x)
    same(per_example, rows(wg.grad(loss), x.numpy()), rtol=1e-9)
    whole = wg.grad(lambda v: wg.vmap(loss)(v).sum())(x)
    same(whole, per_example.numpy(), rtol=1e-9)
    along = wg.vmap(lambda v, t: wg.jvp(loss, (v,), (t,))[1])(x, wg.ones_like(x))
    same(along, per_example.numpy().sum(axis=1), rtol=1e-9)


def test_axes_and_structures():
    def f(pair, scale, *, shift):
        return {"sum": (pair[0] * pair[1]).sum() * scale, "first": pair[0] + shift}

    a, b, c = draw(3, 2), draw(2, 3), draw(3)
    found = wg.vmap(f, in_axes=((0, 1), None), out_axes={"sum": 0, "first": 1})(
        (a, b), 2.0, shift=c
    )
    same(found["sum"], (a.numpy() * b.numpy().T).sum(1) * 2)
    same(found["first"], (a.numpy() + c.numpy()[:, None]).T)


def test_nested_tangents_do_not_mix():
    # d/dx (x · d/dy (x + y)) = 1
    def outer(x):
        return x * wg.jvp(lambda y: x + y, (x * 2,), (wg.ones_like(x),))[1]

    assert wg.jvp(outer, (wg.tensor(3.0),), (wg.tensor(1.0),))[1].item() == 1.0

    def second(y):
        return wg.jvp(wg.grad(lambda z: z**4), (y,), (1.0,))[1]

    def third(x):
        return wg.jvp(second, (x,), (1.0,))

    assert third(wg.tensor(2.0))[1].item() == 48.0


def test_closures_over_parameters_stay_differentiable():
    w = wg.asarray(np.array([1.0, 2.0]))
    w.requires_grad = True
    x = draw(3, 2)
    wg.vmap(lambda row: (row * w).sum() ** 2)(x).sum().backward()
    a, b = x.numpy(), w.numpy()
    same(w.grad, (2 * (a @ b)[:, None] * a).sum(0), rtol=1e-9)
    w.grad = None
    wg.jacobian(lambda v: (v * w) ** 2)(x[0]).sum().backward()
    same(w.grad, 4 * a[0] * b, rtol=1e-9)


def test_jacobians_of_structures():
    def f(p, y):
        return {"a": p["u"] * y.sum(), "b": p["v"]}

    p, y = {"u": draw(2), "v": draw(3)}, draw(4)
    for mode in ("reverse", "forward"):
        found = wg.jacobian(f, argnums=(0, 1), mode=mode)(p, y)
        by_p, by_y = found["a"]
        same(by_p["u"], np.eye(2) * y.numpy().sum())
        same(by_p["v"], np.zeros((2, 3)))
        same(by_y, np.outer(p["u"].numpy(), np.ones(4)))
        same(found["b"][0]["v"], np.eye(3))


def test_what_cannot_be_is_refused():
    with pytest.raises(wg.ShapeError, match="vmap: the counts of examples differ"):
        wg.vmap(lambda a, b: a + b)(wg.ones(2), wg.ones(3))
    with pytest.raises(ValueError, match="vmap: no argument has an axis of examples"):
        wg.vmap(lambda a: a, in_axes=None)(wg.ones(2))
    with pytest.raises(wg.ShapeError, match="vmap: axis 0 of examples in shape"):
        wg.vmap(lambda a: a)(wg.tensor(1.0))
    with pytest.raises(wg.ShapeError, match="jvp: a tangent has shape"):
        wg.jvp(wg.sin, (wg.ones(2),), (wg.ones(3),))
    with pytest.raises(ValueError, match="jvp: the tangents have another structure"):
        wg.jvp(wg.sin, (wg.ones(2),), ())
    with pytest.raises(ValueError, match="jacobian: mode"):
        wg.jacobian(wg.sin, mode="sideways")
    with pytest.raises(wg.GradientError, match="jacobian: an argument is int64"):
        wg.jacobian(lambda x: x)(wg.tensor([1, 2]))
    with pytest.raises(wg.CaptureError, match="vmap: the function draws"):
        wg.vmap(lambda x: x + wg.random.normal(()))(wg.ones(3))

    def prints(x):
        return wg.cond(x > 0, lambda v: (wg.print("{}", v), v)[1], lambda v: v, x)

    with pytest.raises(ValueError, match=r"vmap.*print inside cond"):
        wg.vmap(prints)(wg.ones(3))


def test_modules_are_structures_of_parameters():
    model, x = nn.Linear(2, 1), wg.asarray(RANDOM.standard_normal((3, 2)).astype("f"))

    def loss(m, row):
        return (m(row) ** 2).sum()

    per_example = wg.vmap(wg.grad(loss), in_axes=(None, 0))(model, x)
    assert per_example.weight.shape == (3, 1, 2)
    want = np.stack([wg.grad(loss)(model, row).weight.numpy() for row in x])
    np.testing.assert_allclose(per_example.weight.numpy(), want, rtol=1e-5)


def test_conventions_at_kinks_hold_in_every_order():
    zero = wg.zeros(2)
    assert wg.grad(lambda x: wg.vmap(nn.relu)(x).sum())(zero).tolist() == [0.0, 0.0]
    assert wg.vmap(wg.grad(nn.relu))(zero).tolist() == [0.0, 0.0]
    assert wg.jvp(nn.relu, (zero,), (wg.ones(2),))[1].tolist() == [0.0, 0.0]
