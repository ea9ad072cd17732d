"""grad, value_and_grad, vjp, Function and checkpoint; pytrees; and the assertions of testing."""

import dataclasses
from collections import namedtuple

import numpy as np
import pytest

import wengert as wg
from wengert import nn, pytree, testing

from support import SavesResult


def doubles(*shape, seed=0):
    return wg.asarray(np.random.default_rng(seed).standard_normal(shape))


def close(a, b, tolerance=1e-6):
    np.testing.assert_allclose(a.detach().numpy(), b, rtol=tolerance, atol=tolerance)


# grad and vjp


def test_argnums_aux_and_floats():
    def f(a, b, c):
        return (a * b).sum() * c, "aux"

    a, b = wg.tensor([1.0, 2.0]), wg.tensor([3.0, 4.0])
    (value, aux), (gc, ga) = wg.value_and_grad(f, argnums=(2, 0), has_aux=True)(a, b, 2.0)
    assert (value.item(), aux) == (22.0, "aux")
    assert gc.item() == 11.0 and ga.tolist() == [6.0, 8.0]
    g, aux = wg.grad(f, argnums=-1, has_aux=True)(a, b, 2.0)
    assert g.item() == 11.0 and aux == "aux"
    assert wg.grad(lambda x: wg.tensor(1.0))(a).tolist() == [0.0, 0.0]
    assert wg.grad(lambda p: p["x"] ** 2)({"x": wg.tensor(3.0), "y": a})["y"].tolist() == [0.0] * 2


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: wg.grad(lambda x: x * 2)(wg.ones(3)), r"\(3,\)"),
        (lambda: wg.grad(lambda x: 1.0)(wg.ones(3)), "float"),
        (lambda: wg.grad(lambda x: x.sum())(wg.arange(3)), "int64"),
        (lambda: wg.grad(lambda x: x)({"k": "text"}), "'k'.*str"),
        (lambda: wg.vjp(lambda x: (x, x), wg.ones(1))[1](wg.ones(1)), "structure"),
    ],
)
def test_what_cannot_be_differentiated(call, words):
    with pytest.raises(wg.GradientError, match=words):
        call()


def test_results_have_a_history_only_where_one_is_wanted():
    x = wg.tensor([1.0, 2.0])
    value, g = wg.value_and_grad(lambda x: (x**3).sum())(x)
    assert not value.requires_grad and not g.requires_grad
    # a tensor reached by closure
    w = wg.tensor([2.0, 3.0], requires_grad=True)
    wg.grad(lambda x: (w * x * x).sum())(x).sum().backward()
    assert w.grad.tolist() == [2.0, 4.0]
    # an argument that requires a gradient
    v = wg.tensor([1.0, 2.0], requires_grad=True)
    wg.grad(lambda x: (x**3).sum())(v).sum().backward()
    assert v.grad.tolist() == [6.0, 12.0]
    with wg.no_grad():
        assert not wg.grad(lambda x: (x**3).sum())(v).requires_grad
    # a closure over the very argument counts as a constant
    assert wg.grad(lambda x: (x * v).sum())(v).tolist() == [1.0, 2.0]


def test_nested_transforms():
    f = wg.grad(wg.grad(wg.grad(lambda x: x**4)))
    assert f(wg.tensor(2.0)).item() == 48.0
    mixed = wg.grad(lambda w: wg.grad(lambda x: (w * x * x).sum())(wg.tensor(3.0)).sum())
    assert mixed(wg.tensor(5.0)).item() == 6.0
    # forward mode by transposing twice
    _, pullback = wg.vjp(lambda x: x.sin(), wg.tensor(0.5))
    _, push = wg.vjp(lambda g: pullback(g)[0], wg.tensor(0.0))
    close(push(wg.tensor(1.0))[0], np.cos(0.5))


def test_vjp_with_structures():
    y, pullback = wg.vjp(lambda a, b: {"s": a * b, "t": a + b}, wg.tensor(2.0), wg.tensor(3.0))
    assert y["s"].item() == 6.0 and not y["s"].requires_grad
    for _ in range(2):
        a, b = pullback({"s": wg.tensor(1.0), "t": wg.tensor(10.0)})
        assert (a.item(), b.item()) == (13.0, 12.0)


def test_a_module_is_an_argument():
    net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm(3), nn.Linear(3, 1))
    net[0].bias.requires_grad = False
    x = wg.asarray(np.random.default_rng(0).standard_normal((8, 2)).astype("f"))

    def loss(model):
        return (model(x) ** 2).mean()

    g = wg.grad(loss)(net)
    assert isinstance(g, nn.Sequential) and g[0].bias is None and g[1].running_mean is None
    assert net[1].num_batches_tracked.item() == 1, "the buffers are the module's own"
    loss(net).backward()
    close(g[0].weight, net[0].weight.grad.numpy(), 1e-5)
    close(g[2].bias, net[2].bias.grad.numpy(), 1e-5)


# Function


class Scaled(wg.Function):
    """(k x², x + 1), with an argument that is not a tensor."""

    @staticmethod
    def forward(cx, x, k):
        cx.save(x)
        cx.k = k
        return k * x * x, x + 1

    @staticmethod
    def backward(cx, g, h):
        (x,) = cx.saved
        return 2 * cx.k * x * g + h, None


def test_function_with_several_results_and_second_derivatives():
    x = doubles(3)
    assert testing.gradcheck(lambda x: Scaled.apply(x, 3.0), [x])
    assert testing.gradgradcheck(lambda x: Scaled.apply(x, 3.0), [x])
    assert not Scaled.apply(x, 3.0)[0].requires_grad


def test_what_function_saves_does_not_change():
    x = wg.tensor([1.0, 2.0], requires_grad=True)
    h = x * 1.0
    y, _ = Scaled.apply(h, 1.0)
    h += 100.0
    y.sum().backward()
    assert x.grad.tolist() == [2.0, 4.0]


def test_a_second_derivative_through_a_saved_result_is_refused():
    assert testing.gradcheck(SavesResult.apply, doubles(3))
    with pytest.raises(wg.GradientError, match="not an argument"):
        testing.gradgradcheck(SavesResult.apply, doubles(3))


def rule(forward, backward):
    return type("Rule", (wg.Function,), {"forward": forward, "backward": backward})


@pytest.mark.parametrize(
    ("forward", "backward", "error", "words"),
    [
        (lambda cx, x: 1.0, None, TypeError, "Rule.*float"),
        (lambda cx, x: x * 2, lambda cx, g: (g, g), wg.GradientError, "2 gradients for 1"),
        (lambda cx, x: x * 2, lambda cx, g: g.sum(), wg.ShapeError, r"\(\).*\(3,\)"),
    ],
)
def test_wrong_functions(forward, backward, error, words):
    x = wg.ones(3, requires_grad=True)
    with pytest.raises(error, match=words):
        rule(forward, backward).apply(x).sum().backward()
    assert x.grad is None


# checkpoint


def test_checkpoint_gives_the_same_gradients_with_dropout():
    net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Tanh(), nn.Linear(8, 2))
    x = wg.ones((3, 4), requires_grad=True)

    def gradients(f):
        wg.random.seed(3)
        x.grad = None
        net.zero_grad()
        (f(x) ** 2).sum().backward()
        after = wg.random.uniform((1,)).item()
        return [x.grad.tolist(), *(p.grad.tolist() for p in net.parameters()), after]

    assert gradients(net) == gradients(wg.checkpoint(net))
    with wg.no_grad():
        assert not wg.checkpoint(net)(x).requires_grad
    assert wg.checkpoint(lambda x, n: (x * n, n))(wg.ones(1), 2)[1] == 2


def test_checkpoint_of_several_results_and_second_derivatives():
    def f(x):
        return x * 2, (x * x * x).sum(), x > 0

    x = doubles(3)
    assert wg.checkpoint(f)(x)[2].dtype == wg.bool
    assert testing.gradcheck(wg.checkpoint(f), [x])
    assert testing.gradgradcheck(wg.checkpoint(f), [x])


# pytrees

Pair = namedtuple("Pair", "a b")


@dataclasses.dataclass
class Record:
    x: object
    y: object


class Box:
    def __init__(self, item):
        self.item = item


pytree.register_pytree(Box, lambda b: ([b.item], "box"), lambda aux, c: Box(*c))


def test_pytrees_come_back():
    tree = {"k": [1, (2, None)], "p": Pair(3, {"z": 4, "a": 5}), "r": Record(6, Box(7))}
    leaves, structure = pytree.flatten(tree)
    assert leaves == [1, 2, 3, 4, 5, 6, 7]
    back = pytree.unflatten(structure, leaves)
    assert back["k"] == tree["k"] and back["p"] == tree["p"] and list(back["p"].b) == ["z", "a"]
    assert back["r"].x == 6 and back["r"].y.item == 7
    assert structure == pytree.flatten(back)[1] and hash(structure) == hash(pytree.flatten(back)[1])
    assert structure != pytree.flatten({**tree, "k": [1, (2, 3)]})[1]
    assert pytree.map(lambda a, b: a + b, {"x": (1, 2)}, {"x": (10, 20)}) == {"x": (11, 22)}
    paths = [path for path, _ in pytree.flatten_with_paths(tree)[0]]
    assert paths[1:4] == ["['k'][1][0]", "['p'].a", "['p'].b['z']"] and paths[5] == "['r'].x"


def test_pytree_errors():
    _, structure = pytree.flatten([1, 2])
    with pytest.raises(ValueError, match="3 leaves, wanted 2"):
        pytree.unflatten(structure, [1, 2, 3])
    with pytest.raises(ValueError, match="differ"):
        pytree.map(lambda a, b: a, [1], (1,))
    with pytest.raises(ValueError, match="already"):
        pytree.register_pytree(Box, lambda b: ([], None), lambda aux, c: Box(None))


def test_a_module_is_a_pytree_of_its_state():
    net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm(2))
    net[0].twin = net[0].weight
    leaves, structure = pytree.flatten(net)
    assert len(leaves) == 7 and leaves[0] is net[0].weight
    zero = pytree.unflatten(structure, [x * 0 for x in leaves])
    assert zero[0].twin is zero[0].weight and zero[0].weight.tolist() == [[0.0] * 2] * 2
    assert net[0].weight is leaves[0] and zero(wg.ones((3, 2))).tolist() == [[0.0] * 2] * 3
    assert pytree.flatten_with_paths(net)[0][0][0] == ".0.weight"


# testing


def test_gradcheck_finds_wrong_rules():
    def wrong(x):
        return rule(lambda cx, x: x.sin(), lambda cx, g: g * 1.01).apply(x)

    with pytest.raises(AssertionError, match=r"input 0, element \(\d,\)"):
        testing.gradcheck(wrong, doubles(3))
    with pytest.raises(TypeError, match="float32"):
        testing.gradcheck(lambda x: x, wg.ones(3))
    assert testing.gradcheck(
        lambda a, n, b: {"y": (a * b).sin()[n]}, [doubles(2, 3), 1, doubles(3)]
    )
    assert testing.gradgradcheck(lambda a, b: (a @ b).exp(), [doubles(2, 3), doubles(3, 2, seed=1)])
    assert testing.gradgradcheck(lambda x: x * 3.0, doubles(3))


def test_assert_close():
    testing.assert_close(wg.tensor([1.0, 2.0]), np.array([1.0, 2.0], np.float32))
    testing.assert_close({"a": wg.ones(2), "b": 1.0}, {"a": wg.ones(2), "b": 1.0 + 1e-12})
    testing.assert_close(wg.tensor([np.inf, np.nan]), wg.tensor([np.inf, np.nan]), equal_nan=True)
    testing.assert_close(wg.tensor(2**53 + 1), wg.tensor(2**53 + 1))
    for a, b, words in (
        (wg.ones(2), wg.ones(3), "shapes"),
        (wg.ones(2), wg.ones(2, dtype=wg.float64), "dtypes"),
        (wg.tensor([1.0, 2.0]), wg.tensor([1.0, 2.1]), r"1 of 2.*\(1,\)"),
        (wg.tensor([1.0, np.nan]), wg.tensor([1.0, np.nan]), "1 of 2"),
        (wg.tensor(2**53), wg.tensor(2**53 + 1), "1 of 1"),
        ({"a": 1.0}, {"b": 1.0}, "structures"),
        ({"a": 1.0}, {"a": 2.0}, r"\['a'\]"),
    ):
        with pytest.raises(AssertionError, match=words):
            testing.assert_close(a, b)


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_a_value_that_fills_may_differ_between_examples(shape):
    x, values = wg.tensor([[1.0, 2.0], [3.0, 4.0]]), wg.tensor([5.0, 6.0])
    got = wg.vmap(lambda v, w: wg.pad(v, ((1, 1),), value=w))(x, values.reshape(2, *shape))
    assert got.tolist() == [[5.0, 1.0, 2.0, 5.0], [6.0, 3.0, 4.0, 6.0]]
    got = wg.vmap(lambda w: wg.full_like(x[0], w.reshape(())))(values.reshape(2, *shape))
    assert got.tolist() == [[5.0, 5.0], [6.0, 6.0]]


@pytest.mark.parametrize("values", [wg.ones(2), wg.ones((1, 3)), wg.ones((2, 1, 1)), wg.ones(0)])
def test_one_value_fills_and_not_several(values):
    """In eager code, in a graph and in a batch; so where numbers may be tensors beside a shape."""
    x = wg.ones((2, 4))
    calls = [
        lambda v: wg.pad(x, 1, value=v),
        lambda v: wg.random.uniform(shape=(1,), low=v),
        lambda v: wg.random.normal(shape=(1,), std=v),
        lambda v: wg.optim.sgd(wg.ones(1), wg.ones(1), lr=v),
    ]
    many = wg.broadcast_to(values, (2, *values.shape))
    for call in calls:
        with pytest.raises(wg.ShapeError):
            call(values)
        with pytest.raises(wg.ShapeError):
            wg.vmap(call)(many)
        with pytest.raises(wg.ShapeError):
            wg.compile(call)(values)
