"""Arguments as somebody uses them who knows other libraries: containers, numbers and sizes do in
compiled functions and graphs what they do in Python.
"""

import copy
import pickle
from collections import OrderedDict, defaultdict, deque

import pytest

import wengert as wg
from wengert import nn

from support import array, same

# Compiled functions.


def test_an_argument_that_the_function_also_reaches_itself():
    w = wg.zeros(2)

    @wg.compile
    def f(x):
        w[...] = w + 1
        return x * 2

    for x in (wg.ones(2), w, wg.ones(2), w):
        want = (w + 1) * 2 if x is w else x * 2
        same(f(x), want)
    assert w.tolist() == [4.0, 4.0]


def test_further_containers():
    @wg.compile
    def f(d):
        return OrderedDict(a=d["x"] * 2, b=deque([d["y"]], maxlen=3))

    given = defaultdict(list, x=wg.ones(2), y=wg.zeros(1))
    y = f(given)
    assert type(y) is OrderedDict and y["a"].tolist() == [2.0, 2.0]
    assert type(y["b"]) is deque and y["b"].maxlen == 3
    assert f(OrderedDict(given))["a"].tolist() == [2.0, 2.0]
    tree = wg.pytree.map(lambda x: x, given)
    assert type(tree) is defaultdict and tree.default_factory is list


def test_numbers_do_what_floats_do():
    def f(x, k):
        whole = round(k) + int(k) + k // 0.5 + k % 0.3 + abs(k) + +k
        return x * whole + len(f"{k:.3f}") + k.is_integer() + divmod(k, 2)[0]

    g = wg.compile(f)
    for k in (0.5, 1.7, -2.3, 3.0):
        same(g(wg.ones(2), k), f(wg.ones(2), k))
    h = wg.compile(lambda x, k: x * k + -k / 3 + k**2)
    for k in (0.1, 0.2, 0.3, 0.4):
        h(wg.ones(2), k)
    assert h.traces == 2


SIZES = [
    lambda x: x / x.shape[1] ** 0.5,
    lambda x: x * x.shape[1] ** 2,
    lambda x: x * 2 ** x.shape[1],
    lambda x: x * (x.shape[1] % 2.5),
    lambda x: x * (x.shape[1] // 1.5),
    lambda x: x * (100 % x.shape[1]),
    lambda x: x * (100 // x.shape[1]),
    lambda x: x * divmod(x.shape[1], 2)[1],
    lambda x: x * abs(-x.shape[1]),
    lambda x: x * round(x.shape[1] / 2),
    lambda x: x * (x.shape[1] & 1) + (x.shape[1] << 1) + (~x.shape[1]),
    lambda x: x[-x.shape[0] :],
    lambda x: x * min(x.shape[1], 5) * max(2, x.shape[1]),
    lambda x: x * (10 - x.shape[1]),
    lambda x: x * (x.shape[1] - 10),
    lambda x: x * (x.shape[1] + -5),
    lambda x: x * (-5 + x.shape[1]),
    lambda x: x * (x.shape[1] - -5),
    lambda x: x * (x.shape[1] * -2),
    lambda x: (x > 0).astype(wg.int64) * (x.shape[1] * True),
    lambda x: x[: x.shape[0] - 1],
    lambda x: x[:, : x.shape[1] + -2],
]


@pytest.mark.parametrize("f", SIZES)
def test_sizes_do_what_ints_do(f):
    g = wg.compile(f)
    for shape in ((4, 3), (4, 5), (4, 7), (4, 12)):
        x = array(*shape)
        same(g(x), f(x))


BESIDE = {
    "roll": lambda x: wg.roll(x, x.shape[1] // 2, axis=1),
    "repeat": lambda x: wg.repeat(x, x.shape[1], axis=0),
    "topk": lambda x: wg.topk(x, x.shape[1] // 2)[0],
    "pad": lambda x: wg.pad(x, ((0, 0), (0, x.shape[1]))),
    "pad to a size": lambda x: wg.pad(x, ((0, 0), (0, 12 - x.shape[1]))),
    "diagonal": lambda x: wg.diagonal(x, offset=x.shape[1] - 2),
    "tril": lambda x: wg.tril(x, k=x.shape[1] - 4),
    "eye": lambda x: wg.eye(x.shape[1], k=x.shape[1] // 2),
    "split": lambda x: wg.split(x, x.shape[1], axis=1),
    "flat index": lambda x: wg.arange(x.shape[0]) * x.shape[1] + x.argmax(axis=1),
    "compare": lambda x: wg.arange(8) < x.shape[1],
    "where": lambda x: wg.where(x[:, 0] > 0, x.shape[1], wg.arange(4)),
    "minimum": lambda x: wg.minimum(wg.arange(8), x.shape[1] - 1),
    "clip": lambda x: wg.arange(8).clip(0, x.shape[1] - 1),
    "floor divide": lambda x: wg.arange(12) // x.shape[1],
    "remainder": lambda x: x.shape[1] - 1 - wg.arange(12) % x.shape[1],
    "power": lambda x: wg.arange(3) ** x.shape[1],
    "bool": lambda x: (x > 0) * x.shape[1],
    "int32": lambda x: wg.arange(3, dtype=wg.int32) * x.shape[1],
    "in place": lambda x: wg.arange(3).__iadd__(x.shape[1]),
    "full": lambda x: wg.full((3,), x.shape[1]),
    "tensor": lambda x: wg.tensor(x.shape[1]) + wg.tensor(x.shape).sum(),
    "asarray": lambda x: wg.asarray([1.5, x.shape[1]]),
    "list of indices": lambda x: x[:, [0, x.shape[1] - 1]],
    "integers": lambda x: wg.random.integers(0, x.shape[1], (4,), key=wg.random.key(1)),
    "fori_loop": lambda x: wg.fori_loop(0, x.shape[1], lambda i, c: c + x[:, i] * i, x[:, 0]),
    "pool": lambda x: nn.avg_pool1d(x[:, None], x.shape[1]),
    "loss": lambda x: nn.cross_entropy(x, wg.arange(x.shape[0]) % x.shape[1]),
}


@pytest.mark.parametrize("f", BESIDE.values(), ids=BESIDE)
def test_sizes_are_ints_as_arguments_and_beside_integers(f):
    g = wg.compile(f)
    for n in (3, 5, 7, 6):
        x = array(4, n)
        got, want = wg.pytree.flatten(g(x))[0], wg.pytree.flatten(f(x))[0]
        assert len(got) == len(want)
        for a, b in zip(got, want, strict=True):
            same(a, b)


def test_a_tuple_of_tensors_bound_anew_is_seen():
    weights = (wg.ones(2), 3)
    f = wg.compile(lambda x: x * weights[0] * weights[1])
    assert f(wg.ones(2)).tolist() == [3.0, 3.0]
    weights = (weights[0], 3)
    f(wg.ones(2))
    assert f.traces == 1
    weights = (wg.zeros(2), 3)
    assert f(wg.ones(2)).tolist() == [0.0, 0.0]


def test_sizes_that_are_returned_pin_nothing():
    f = wg.compile(lambda x: (x.sum(), x.shape[0], x.size))
    for n in (2, 3, 4, 5, 6):
        total, count, size = f(wg.ones((n, 2)))
        assert (total.item(), count, size) == (2.0 * n, n, 2 * n) and type(count) is int
    assert f.traces == 2


# Graphs.


def test_graphs_are_copied_and_pickled():
    with wg.Graph() as g:
        x = wg.placeholder("x", (None, 3))
        x.exp().sum()
    for twin in (copy.copy(g), copy.deepcopy(g), pickle.loads(pickle.dumps(g))):
        assert twin == g and twin is not g
        with twin:
            twin.tensor("x") + 1.0
        assert twin != g
    with g:
        wg.Variable(0.0)
    with pytest.raises(TypeError, match="variables"):
        pickle.dumps(g)


def test_sizes_of_placeholders_as_indices():
    with wg.Graph() as g:
        x = wg.placeholder("x", (4, None))
        half = x.shape[1] // 2
        y = [x[:, half], x[:, half:], x[:, :half] * half]
    session = wg.Session(g)
    for n in (3, 6, 2):
        v = array(4, n)
        want = [v[:, n // 2], v[:, n // 2 :], v[:, : n // 2] * (n // 2)]
        for a, b in zip(session.run(y, {x: v}), want, strict=True):
            same(a, b)
    with g, pytest.raises(wg.GraphError, match="not known before"):
        wg.full_like(x, x.shape[1])
    for ask in (lambda n: range(n), lambda n: n > 3, lambda n: n <= 3, lambda n: max(0, n)):
        with g, pytest.raises(wg.GraphError, match="not known before"):
            ask(x.shape[1])
    with g:
        total = wg.fori_loop(0, x.shape[1], lambda i, c: c + i, wg.tensor(0))
    assert session.run(total, {x: array(4, 5)}).item() == 10


def test_a_size_that_nobody_knows_is_refused_not_a_crash():
    n = wg.Dim("n")
    for work in (
        lambda: n / 2,
        lambda: n * 0.5,
        lambda: n**0.5,
        lambda: wg.ones(2) * n,
        lambda: -n,
    ):
        with pytest.raises((wg.Error, TypeError)):
            work()


def test_what_a_session_cannot_take_is_refused():
    with pytest.raises(TypeError, match="Session: expected a Graph"):
        wg.Session(3)
    with wg.Graph() as g:
        x = wg.placeholder("x", ())
    with pytest.raises(TypeError, match="feed_dict"):
        wg.Session(g).run(x, [1.0])
