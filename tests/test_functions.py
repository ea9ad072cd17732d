"""Functions: what they compute is nodes, their rules are Python's, in every mode and derivative."""

import numpy as np
import pytest

import wengert as wg

from host_ops import MODES, TAKEN, X, in_scan, in_session, rng, tensor, total
from support import SavesResult


class Square(wg.Function):
    """x² times a number, by its argument."""

    @staticmethod
    def forward(cx, x, k):
        cx.save(x)
        cx.k = k
        return x * x * k

    @staticmethod
    def backward(cx, g):
        return g * cx.saved[0] * (2.0 * cx.k), None


class Pair(wg.Function):
    """Two results, one of which is not floating; a size and a constant that forward leaves."""

    @staticmethod
    def forward(cx, x):
        cx.save(x)
        cx.shape, cx.half = x.shape, wg.ones(x.shape, dtype=x.dtype) * 0.5
        return x.sin(), x.sum(axis=0), x > 0.0

    @staticmethod
    def backward(cx, g, h):
        return g * cx.saved[0].cos() * cx.half * 2.0 + wg.broadcast_to(h, cx.shape)


class Scaled(wg.Function):
    """Two arguments, of which one may be shared by examples."""

    @staticmethod
    def forward(cx, x, w):
        cx.save(x, w)
        return x * w * w

    @staticmethod
    def backward(cx, g):
        x, w = cx.saved
        return g * w * w, g * x * w * 2.0


FUNCTIONS = {
    "one argument": (lambda x: Square.apply(x, 1.5), lambda x: x * x * 1.5),
    "some results": (lambda x: Pair.apply(x)[1], lambda x: x.sum(axis=0)),
    "several results": (
        lambda x: wg.where(Pair.apply(x)[2], Pair.apply(x)[0] * Pair.apply(x)[1], x),
        lambda x: wg.where(x > 0.0, x.sin() * x.sum(axis=0), x),
    ),
    "two arguments": (lambda x: Scaled.apply(x, x + 1.0), lambda x: x * (x + 1.0) * (x + 1.0)),
    "a shared argument": (
        lambda x: Scaled.apply(x, wg.tensor(np.full((2, 3), 3.0))), lambda x: x * 9.0),
    "one in another": (
        lambda x: Square.apply(Square.apply(x, 1.0), 2.0), lambda x: 2.0 * (x * x) * (x * x)),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("taken", TAKEN)
@pytest.mark.parametrize("case", FUNCTIONS)
def test_functions_compute_in_every_mode_what_the_formula_says(case, taken, mode):
    f, formula = FUNCTIONS[case]
    want = TAKEN[taken](formula)(tensor())
    for g in (TAKEN[taken](MODES[mode](f)), wg.compile(TAKEN[taken](MODES[mode](f)))):
        np.testing.assert_allclose(g(tensor()).numpy(), want.numpy(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("taken", ["value", "grad", "grad of grad"])
@pytest.mark.parametrize("case", FUNCTIONS)
def test_functions_in_sessions(case, taken):
    f, formula = FUNCTIONS[case]
    want = TAKEN[taken](formula)(tensor())
    np.testing.assert_allclose(in_session(TAKEN[taken](f))(X).numpy(), want.numpy(), rtol=1e-10)


class Wrong(wg.Function):
    """A rule that is wrong on purpose, so that its use shows."""

    @staticmethod
    def forward(cx, x):
        return x * 2.0

    @staticmethod
    def backward(cx, g):
        return g * 7.0


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("taken", ["grad", "jvp", "jacobian"])
def test_the_rule_counts_and_not_what_forward_does(taken, mode):
    want = TAKEN[taken](lambda x: x * 7.0)(tensor()).numpy()
    for f in (TAKEN[taken](MODES[mode](Wrong.apply)), wg.compile(TAKEN[taken](Wrong.apply))):
        np.testing.assert_allclose(f(tensor()).numpy(), want)


def test_a_function_shows_as_a_call_and_runs_fused():
    f = wg.compile(lambda x: Square.apply(x, 2.0) + 1.0)
    x = tensor()
    f(x)
    assert 'host("Square", %0' in str(f.graph(x, optimized=False))
    assert len(f.plan(x).steps) == 1


def test_open_sizes_and_numbers_in_the_context_of_a_function():
    f = wg.compile(lambda x, k: (Pair.apply(x)[1].sum() + Square.apply(x, k).sum()))
    for n, k in [(2, 1.0), (3, 2.0), (4, 3.0), (5, 3.0)]:
        x = wg.tensor(rng.standard_normal((n, 3)), requires_grad=True)
        (g,) = wg.gradients(f(x, k), [x], create_graph=True)
        np.testing.assert_allclose(g.numpy(), 1.0 + 2.0 * k * x.numpy())
        (second,) = wg.gradients(g.sum(), [x])
        np.testing.assert_allclose(second.numpy(), np.full((n, 3), 2.0 * k))


def test_random_numbers_of_forward_are_those_of_its_rule():
    class Drop(wg.Function):
        @staticmethod
        def forward(cx, x):
            cx.mask = wg.random.uniform(x.shape) < 0.5
            return wg.where(cx.mask, x, 0.0 * x)

        @staticmethod
        def backward(cx, g):
            return wg.where(cx.mask, g, 0.0 * g)

    def f(x):
        y = Drop.apply(x)
        return y.sum(), y

    scanned = lambda x: wg.scan(lambda c, v: (c, f(v)), wg.zeros(()), x[None])[1]  # noqa: E731
    for g in (f, wg.compile(f), scanned, wg.compile(scanned)):
        x = wg.ones(64, requires_grad=True)
        total, y = g(x)
        (grad,) = wg.gradients(total.sum(), [x])
        np.testing.assert_array_equal(grad.numpy(), y.reshape(-1).numpy())
        assert 0 < grad.sum().item() < 64


def test_what_a_function_saves_besides_arguments_has_no_derivative():
    x = tensor()
    first = wg.grad(total(SavesResult.apply))
    for f in (first, wg.compile(first), wg.compile(wg.grad(total(in_scan(SavesResult.apply))))):
        np.testing.assert_allclose(f(x).numpy(), 0.5 * np.exp(X))
    np.testing.assert_allclose(wg.jvp(SavesResult.apply, (x,), (x,))[1].numpy(), X * np.exp(X))
    second = wg.grad(lambda x: first(x).sum())
    for f in (second, wg.compile(second)):
        with pytest.raises(wg.GradientError, match=r"not an argument|is no argument"):
            f(x)


def test_a_function_that_updates_something_outside_still_runs_captured():
    class Counts(wg.Function):
        @staticmethod
        def forward(cx, x):
            calls[...] = calls + 1.0
            return x * 2.0

        @staticmethod
        def backward(cx, g):
            return g * 3.0

    calls = wg.zeros(())
    f = wg.compile(lambda x: Counts.apply(x).sum())
    x = wg.ones(2, requires_grad=True)
    f(x).backward()
    assert x.grad.tolist() == [3.0, 3.0] and calls.item() == 1.0
