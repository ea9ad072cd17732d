"""Gradients through compiled functions, around them and inside them."""

import numpy as np
import pytest

import wengert as wg
from wengert import nn, optim

from support import array


def leaf(*shape, seed=0):
    return wg.tensor(array(*shape, seed=seed), requires_grad=True)


def bits(x):
    return None if x is None else (str(x.dtype), x.shape, x.detach().numpy().tobytes())


# name: (function, shapes of its arguments)
FUNCTIONS = {
    "chain": (lambda x: (x.tanh() * 2 + 1).exp(), [(3, 4)]),
    "product": (lambda x, w: nn.softmax(x @ w, axis=-1), [(3, 4), (4, 5)]),
    "norm": (lambda x, w: nn.layer_norm(x, weight=w), [(5, 4), (4,)]),
    "loss": (lambda x: nn.cross_entropy(x, wg.asarray([0, 2, 1])), [(3, 4)]),
    "slices": (lambda x: x[1:, ::2] * x[:-1, 1::2] + x[0, 0], [(4, 6)]),
    "gather": (lambda x: x[wg.asarray([0, 2, 2])] ** 3, [(3, 2)]),
    "write": (lambda x, y: wg.where(x > 0, x, y).cumulative_sum(axis=0), [(3, 4), (3, 4)]),
    "reduce": (lambda x: x.max(axis=1) + x.var(axis=1) - wg.logsumexp(x, axis=1), [(4, 5)]),
    "conv": (lambda x, w: nn.conv2d(x, w, padding=1).relu() if hasattr(wg.Tensor, "relu")
             else nn.relu(nn.conv2d(x, w, padding=1)), [(2, 1, 5, 5), (3, 1, 3, 3)]),
    "scaled by itself": (lambda x: x * x * x.detach() + x.sum(), [(4,)]),
    "in place": (lambda x: (x * 1.0).__iadd__(x * x), [(4,)]),
    "attention": (
        lambda q, k, v: nn.scaled_dot_product_attention(q, k, v), [(2, 3, 4), (2, 5, 4), (2, 5, 4)],
    ),
}  # fmt: skip


def leaves_of(name):
    return [leaf(*shape, seed=i) for i, shape in enumerate(FUNCTIONS[name][1])]


def weighted(y):
    return (y * array(*y.shape, seed=99)).sum()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_backward_has_the_bits_of_eager_code(name):
    f = FUNCTIONS[name][0]
    seen = []
    g = wg.compile(f)
    for h in (f, g, g):
        xs = leaves_of(name)
        y = h(*xs)
        assert y.requires_grad
        weighted(y).backward()
        seen.append([bits(y), *(bits(x.grad) for x in xs)])
    assert seen[1] == seen[0] and seen[2] == seen[0] and g.traces == 1


def test_detached_values_stay_detached_in_second_order():
    x = leaf(3)
    (g,) = wg.gradients(wg.compile(lambda x: x * x.detach())(x).sum(), [x], create_graph=True)
    assert not g.requires_grad or wg.gradients(g.sum(), [x])[0].tolist() == [0.0] * 3


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_of_gradients(name):
    f = FUNCTIONS[name][0]
    seen = []
    for h in (f, wg.compile(f)):
        xs = leaves_of(name)
        first = wg.gradients(weighted(h(*xs)), xs, create_graph=True, allow_unused=True)
        total = sum(weighted(g * g) for g in first if g is not None)
        second = wg.gradients(total, xs, allow_unused=True) if total.requires_grad else []
        seen.append([bits(g) for g in [*first, *second]])
    assert seen[0] == seen[1]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_inside(name):
    f = FUNCTIONS[name][0]
    xs = [x.detach() for x in leaves_of(name)]
    want = wg.grad(lambda *xs: weighted(f(*xs)), argnums=tuple(range(len(xs))))(*xs)
    inside = wg.compile(wg.grad(lambda *xs: weighted(f(*xs)), argnums=tuple(range(len(xs)))))
    assert [bits(g) for g in inside(*xs)] == [bits(g) for g in want]
    around = wg.grad(lambda *xs: weighted(wg.compile(f)(*xs)), argnums=tuple(range(len(xs))))
    assert [bits(g) for g in around(*xs)] == [bits(g) for g in want]


def test_gradients_at_several_sizes_with_one_trace_more():
    w = leaf(4, 5, seed=3)
    f = wg.compile(lambda x: nn.softmax(x @ w, axis=-1)[:, :3].mean(axis=0))
    for n in (3, 5, 1, 8, 3):
        got, want = [], []
        for h, out in ((f, got), (f.__wrapped__, want)):
            x = leaf(n, 4, seed=n)
            w.grad = None
            weighted(h(x)).backward()
            out += [bits(x.grad), bits(w.grad)]
        assert got == want, n
    assert f.traces <= 2


def test_some_results_unused_and_some_without_a_gradient():
    def f(x, y, n):
        return {"a": x * y, "n": n + 1, "c": (x * 2).detach(), "d": y.exp(), "s": "text"}

    g = wg.compile(f)
    for use in (("a",), ("d",), ("a", "d")):
        seen = []
        for h in (f, g):
            x, y, n = leaf(3), leaf(3, seed=1), wg.asarray([1, 2])
            out = h(x, y, n)
            assert out["a"].requires_grad and out["d"].requires_grad
            assert not out["n"].requires_grad and not out["c"].requires_grad
            sum(weighted(out[k]) for k in use).backward()
            # What nothing used depends on has no gradient.
            seen.append([None if v.grad is None else bits(v.grad) for v in (x, y)])
        assert seen[0] == seen[1]
    assert g.traces == 1


def test_unused_results_send_nothing_back():
    """Not even zeros, which times infinity are no numbers; with a history or without."""

    def f(x, w):
        return x.sum(), x.log(), [x[1:] * w, wg.concat([x, x * w]), x.exp()]

    g = wg.compile(f)
    uses = [(0,), (2,), (3,), (0, 2), (2, 3), (0, 3, 4), (0, 1, 2, 3, 4)]
    for use in uses:
        seen = []
        for h in (f, g):
            x, w = (wg.tensor(v, requires_grad=True) for v in ([1.0, 0.0, 2.0], 0.5))
            results = wg.pytree.flatten(h(x, w))[0]
            loss = sum(weighted(results[k]) for k in use)
            first = wg.gradients(loss, [x, w], create_graph=True, allow_unused=True)
            again = [v for v in first if v is not None and v.requires_grad]
            second = wg.gradients(sum(weighted(v * v) for v in again), [x, w]) if again else []
            weighted(results[use[0]]).backward()
            seen.append([bits(v) for v in (*first, *second, x.grad, w.grad)])
        assert seen[0] == seen[1], use


def test_what_no_grad_computes_stays_constant_in_second_order():
    def f(x):
        with wg.no_grad():
            scale = x * x + 1
        return x * scale * (x * 2).detach()

    seen = []
    for h in (f, wg.compile(f)):
        x = leaf(3)
        (g,) = wg.gradients(weighted(h(x)), [x], create_graph=True)
        assert not g.requires_grad or not wg.gradients(g.sum(), [x])[0].any()
        seen.append(bits(g))
    assert seen[0] == seen[1]


def test_a_rule_in_python_is_not_replaced_by_its_formula_in_second_order():
    class Square(wg.Function):
        @staticmethod
        def forward(cx, x):
            cx.save(x)
            return x * x

        @staticmethod
        def backward(cx, g):
            return g * cx.saved[0] * 3

    def second(f):
        x = leaf(3)
        (g,) = wg.gradients(f(x), [x], create_graph=True)
        return wg.gradients(g.sum(), [x])[0].numpy()

    f = wg.compile(lambda x: Square.apply(x))
    assert np.allclose(second(lambda x: f(x).sum()), 3)
    want = second(lambda x: (Square.apply(x) ** 2).sum())
    assert np.allclose(second(lambda x: (f(x) * f(x)).sum()), want)
    inside = wg.compile(lambda x: (Square.apply(x) ** 2).sum())
    assert np.allclose(second(inside), want)


def test_only_some_arguments_require_a_gradient():
    f = wg.compile(lambda a, b: a * b)
    for first in (True, False):
        for second in (True, False):
            a = wg.tensor([2.0], requires_grad=first)
            b = wg.tensor([3.0], requires_grad=second)
            y = f(a, b)
            assert y.requires_grad == (first or second)
            if y.requires_grad:
                y.backward()
            assert (a.grad is not None) == first and (b.grad is not None) == second


def test_histories_before_and_after():
    f = wg.compile(lambda h: h.tanh() @ h.T)
    seen = []
    for g in (f.__wrapped__, f):
        x = leaf(3, 4)
        h = (x * 2).exp()
        (weighted(g(h)) * 2).backward()
        seen.append(bits(x.grad))
    assert seen[0] == seen[1]


def test_a_value_used_by_a_compiled_call_and_beside_it():
    """The cotangents of a value are added in another order, so the last bits may differ."""
    f = wg.compile(lambda h: h.tanh() @ h.T)
    seen = []
    for g in (f.__wrapped__, f):
        x = leaf(3, 4)
        h = (x * 2).exp()
        weighted(g(h) + h.sum()).backward()
        seen.append(x.grad.numpy())
    np.testing.assert_allclose(seen[0], seen[1], rtol=1e-5)


def test_retaining():
    f = wg.compile(lambda x: (x * x).exp())
    x = leaf(3)
    y = f(x).sum()
    y.backward(retain_graph=True)
    first = x.grad.tolist()
    y.backward()
    assert x.grad.tolist() == [2 * g for g in first]


def test_a_second_backward_is_refused():
    y = wg.compile(lambda x: (x * x).exp())(leaf(3)).sum()
    y.backward()
    with pytest.raises(wg.GradientError):
        y.backward()


def test_under_no_grad_and_detached():
    f = wg.compile(lambda x: x * 2)
    x = leaf(3)
    with wg.no_grad():
        assert not f(x).requires_grad
    assert f(x).requires_grad
    assert not f(x.detach()).requires_grad

    @wg.compile
    def g(x):
        with wg.no_grad():
            a = x * 2
        return a, a * x

    a, b = g(x)
    assert not a.requires_grad and b.requires_grad
    b.sum().backward()
    assert bits(x.grad) == bits((x * 2).detach())


def test_gradients_with_respect_to_what_closures_hold():
    model = nn.Linear(4, 2)
    f = wg.compile(model)
    x = array(3, 4)
    want = wg.gradients(weighted(model(x)), list(model.parameters()))
    got = wg.gradients(weighted(f(x)), list(model.parameters()))
    assert [bits(g) for g in got] == [bits(g) for g in want]


def test_a_forward_pass_compiled_and_the_rest_eager():
    def run(compiled):
        wg.random.seed(1)
        model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm(8), nn.GELU(), nn.Dropout(0.2),
                              nn.Linear(8, 3))  # fmt: skip
        opt = optim.Adam(model.parameters(), lr=0.05)
        call = wg.compile(model) if compiled else model
        losses = []
        for i in range(5):
            opt.zero_grad()
            loss = nn.cross_entropy(call(array(7, 6, seed=i)), wg.asarray([0, 1, 2, 0, 1, 2, 0]))
            loss.backward()
            opt.step()
            losses.append(bits(loss))
        return losses, [bits(x) for x in model.state_dict().values()]

    assert run(True) == run(False)


def test_hooks_run_inside_and_outside():
    def f(x):
        y = x * 3
        y.register_hook(lambda g: g * 2)
        return y.sum()

    seen = []
    for h in (f, wg.compile(f)):
        x = leaf(3)
        h(x).backward()
        seen.append(bits(x.grad))
    assert seen[0] == seen[1]


class Cube(wg.Function):
    """x³ with a rule that is wrong on purpose, so that its use shows."""

    @staticmethod
    def forward(cx, x):
        cx.save(x)
        return x**3

    @staticmethod
    def backward(cx, g):
        (x,) = cx.saved
        return g * x


def test_rules_of_one_s_own():
    f = wg.compile(lambda x: Cube.apply(x * 2).sum())
    seen = []
    for h in (f.__wrapped__, f):
        x = leaf(3)
        h(x).backward()
        seen.append(bits(x.grad))
    assert seen[0] == seen[1]


def checkpointed(rate, backward_inside):
    """Value and gradient of a checkpointed block, eager and compiled."""
    wg.random.seed(3)
    block = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Dropout(rate))

    def f(x):
        y = wg.checkpoint(block)(x)
        total = (y * y).sum()
        if backward_inside:
            total.backward()
        return total

    seen = []
    for h in (f, wg.compile(f)):
        wg.random.seed(8)
        x = leaf(3, 4)
        y = h(x)
        if not backward_inside:
            y.backward()
        seen.append([bits(y), bits(x.grad)])
    return seen


@pytest.mark.parametrize("backward_inside", [False, True])
def test_checkpoints(backward_inside):
    eager, compiled = checkpointed(0.0, backward_inside)
    assert compiled == eager


@pytest.mark.parametrize("backward_inside", [False, True])
def test_checkpoints_with_random_numbers(backward_inside):
    eager, compiled = checkpointed(0.3, backward_inside)
    assert compiled == eager


def test_grad_of_grad_of_compiled():
    f = wg.compile(lambda x: (x**4).sum())
    assert wg.grad(wg.grad(lambda x: f(x)))(wg.tensor(2.0)).item() == 48.0
    g = wg.compile(wg.grad(wg.compile(wg.grad(wg.compile(lambda x: x**4)))))
    assert g(wg.tensor(2.0)).item() == 48.0


def test_value_and_grad_and_vjp_inside():
    x = array(4)

    def f(x):
        value, g = wg.value_and_grad(lambda v: (v * v).sum())(x)
        y, pull = wg.vjp(lambda v: v.exp(), x)
        return value, g, y, pull(wg.ones_like(y))

    got, want = wg.compile(f)(x), f(x)
    flat = [wg.pytree.flatten(r)[0] for r in (got, want)]
    assert [bits(a) for a in flat[0]] == [bits(b) for b in flat[1]]


def test_backward_inside_leaves_gradients_on_what_is_outside():
    w = leaf(3)

    @wg.compile
    def f(x):
        (w * x).sum().backward()

    f(wg.ones(3))
    assert w.grad.tolist() == [1.0] * 3
    held = w.grad
    f(wg.ones(3))
    assert w.grad.tolist() == [2.0] * 3
    assert held.tolist() == [2.0] * 3, "one gradient, however many handles"
    w.grad = None
    f(wg.ones(3))
    assert w.grad.tolist() == [1.0] * 3


def test_an_argument_s_gradient():
    def f(x):
        y = (x * x).sum()
        y.backward()
        return x.grad * 1.0

    seen = []
    for h in (f, wg.compile(f)):
        x = leaf(3)
        seen.append([bits(h(x)), bits(x.grad), bits(h(x)), bits(x.grad)])
    assert seen[0] == seen[1]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_other_dtypes(dtype):
    f = wg.compile(lambda x, w: nn.gelu(x @ w).astype(wg.float32).sum())
    seen = []
    for h in (f.__wrapped__, f):
        x = wg.tensor(array(3, 4).astype(getattr(wg, dtype)), requires_grad=True)
        w = wg.tensor(array(4, 2, seed=1).astype(getattr(wg, dtype)), requires_grad=True)
        h(x, w).backward()
        seen.append([x.grad.astype(wg.float64).tolist(), w.grad.astype(wg.float64).tolist()])
    assert seen[0] == seen[1]


def test_a_number_that_the_run_tells_stands_in_gradients():
    """Also where rules read the numbers beside a tensor: in powers, quotients and products."""
    def f(x, a):
        return wg.gradients(((x ** a) / a + a * x - a / x).sum(), [x])[0]

    compiled = wg.compile(f)
    x = wg.tensor([1.5, 2.5], requires_grad=True)
    for a in (0.3, 2.0, -1.25):
        np.testing.assert_array_equal(compiled(x, a).numpy(), f(x, a).numpy())
        want = x.detach().numpy().astype("float64")
        want = want ** (a - 1) + a + a / want**2
        np.testing.assert_allclose(compiled(x, a).numpy(), want, rtol=1e-5)
