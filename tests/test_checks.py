"""Eager control flow and transforms see what changes between calls: checks are made again where
something else may be found, and transforms call their function each time."""

import numpy as np
import pytest

import wengert as wg


def transformed(f):
    """`f` under transforms that are made once, and the same made anew at each call."""
    vmapped, slopes = wg.vmap(f), wg.jacobian(f)
    gradients = wg.vmap(wg.grad(lambda r: f(r).sum()))
    return {
        "vmap": (vmapped, lambda x: wg.stack([f(row) for row in x])),
        "jacobian": (lambda x: slopes(x[0]), lambda x: wg.jacobian(f)(x[0])),
        "grads": (gradients, lambda x: wg.vmap(wg.grad(lambda r: f(r).sum()))(x)),
    }


def close_to(a, b):
    return np.allclose(a.numpy(), b.numpy(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["vmap", "jacobian", "grads"])
def test_transforms_see_what_changes_between_calls(name):
    w, scale, box = wg.ones(3) * 2, 1.0, [1.0]
    layer = wg.nn.Linear(3, 3)

    def by_variable(r):
        return r * r * w * scale

    def by_list(r):
        return r * r * box[0]

    def by_module(r):
        return layer(r * r)

    for f in (by_variable, by_list, by_module):
        kept, again = transformed(f)[name]
        for change in range(9):
            x = wg.tensor(np.random.default_rng(change).normal(size=(2 + change % 3, 3)))
            x = x.astype(wg.float32)
            with wg.no_grad():
                assert close_to(kept(x), again(x)), (f.__name__, change)
                if change == 3:
                    scale = 3.0
                elif change == 4:
                    w *= 0.5
                elif change == 5:
                    w = wg.ones(3) * 7
                elif change == 6:
                    box[0] = 4.0
                elif change == 7:
                    layer.weight *= 2.0


TRANSFORMS = {
    "vmap": wg.vmap,
    "jacobian": wg.jacobian,
    "forward": lambda f: wg.jacobian(f, mode="forward"),
    "hessian": lambda f: wg.hessian(lambda x: f(x).sum()),
    "grad": lambda f: wg.grad(lambda x: f(x).sum()),
    "jvp": lambda f: lambda x: wg.jvp(f, (x,), (x,)),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_call_their_function_each_time_unless_compiled(name):
    calls = []

    def f(x):
        calls.append(1)
        return x * 2.0

    x = wg.ones(3)
    transformed = TRANSFORMS[name](f)
    transformed(x)
    each = len(calls)
    for _ in range(4):
        transformed(x)
    assert len(calls) == 5 * each

    # A check of a compiled function traces again.
    with wg.config(check=False):
        compiled = wg.compile(TRANSFORMS[name](lambda x: calls.append(1) or x * 2.0))
        compiled(x)
        calls.clear()
        compiled(x)
    assert not calls


def test_transforms_record_where_a_gradient_is_wanted():
    w = wg.ones(3, requires_grad=True)
    vmapped = wg.vmap(lambda r: r * w)
    for _ in range(4):
        w.grad = None
        vmapped(wg.ones((4, 3))).sum().backward()
        assert w.grad.tolist() == [4.0] * 3
    square = wg.vmap(lambda r: r * r)
    for wants in (False, False, False, True):
        x = wg.ones((2, 3), requires_grad=wants)
        assert square(x).requires_grad == wants


def test_eager_checks_are_made_again_when_types_change():
    for value in (wg.ones(3), wg.ones(3), wg.ones((2, 3))):

        def other(x, value=value):
            return x + value

        if value.ndim == 1:
            assert wg.cond(wg.tensor(True), lambda x: x, other, wg.ones(3)).shape == (3,)
            continue
        with pytest.raises(wg.ShapeError):
            wg.cond(wg.tensor(True), lambda x: x, other, wg.ones(3))
    scale = 1

    def body(c, x):
        return c * scale, x

    for _ in range(3):
        assert wg.scan(body, wg.tensor(2), wg.arange(3))[0].item() == 2
    scale = 0.5
    with pytest.raises(wg.DTypeError):
        wg.scan(body, wg.tensor(2), wg.arange(3))


def test_what_a_scan_stacks_may_change_its_structure():
    box = [lambda x: x]

    def body(c, x):
        return c, box[0](x)

    assert wg.scan(body, wg.tensor(0), wg.arange(3))[1].tolist() == [0, 1, 2]
    box[0] = lambda x: {"a": x, "b": x * 2}
    assert wg.scan(body, wg.tensor(0), wg.arange(3))[1]["b"].tolist() == [0, 2, 4]


def test_checks_draw_no_random_numbers():
    def draws(run):
        wg.random.seed(3)
        got = [run() for _ in range(3)]
        return [x.tolist() for x in (*got, wg.random.normal((2,)))]

    def noisy(x):
        return x + wg.random.normal((2,))

    want = draws(lambda: noisy(wg.zeros(2)))
    assert draws(lambda: wg.cond(wg.tensor(True), noisy, lambda x: x, wg.zeros(2))) == want
