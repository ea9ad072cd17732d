"""`compile`: what a trace depends on, what it refuses, what it leaves behind."""

import dataclasses
import functools
import gc
import math
from typing import NamedTuple

import numpy as np
import pytest

import wengert as wg
from wengert import nn

from support import array, generator, same

SCALE = 2.0
TABLE = wg.tensor([1.0, 2.0])


def live():
    gc.collect()  # what an exception's traceback holds
    return wg.memory_stats()["live_bytes"], wg.graph_stats()["nodes"]


# What a trace depends on.


def test_a_closure_s_plain_values_are_compared_at_each_call():
    k = 2

    @wg.compile
    def f(x):
        return x * k

    assert f(wg.ones(2)).tolist() == [2.0, 2.0]
    k = 3
    assert f(wg.ones(2)).tolist() == [3.0, 3.0]
    k = 2
    assert f(wg.ones(2)).tolist() == [2.0, 2.0] and f.traces == 2, "the first trace is found again"


def test_an_equal_value_is_no_change():
    sizes = (1, 2)
    f = wg.compile(lambda x: x.sum() * sizes[1])
    f(wg.ones(2))
    sizes = tuple(range(1, 3))
    assert f(wg.ones(2)).item() == 4.0 and f.traces == 1


def test_a_closure_that_holds_none_is_no_change():
    scale = None
    f = wg.compile(lambda x: x if scale is None else x * scale)
    for _ in range(3):
        f(wg.ones(2))
    assert f.traces == 1


def test_globals_are_compared_at_each_call(monkeypatch):
    f = wg.compile(lambda x: x * SCALE)
    assert f(wg.ones(1)).item() == 2.0
    monkeypatch.setitem(globals(), "SCALE", 5.0)
    assert f(wg.ones(1)).item() == 5.0 and f.traces == 2
    monkeypatch.setitem(globals(), "SCALE", 2.0)
    assert f(wg.ones(1)).item() == 2.0 and f.traces == 2


def test_a_name_bound_to_another_tensor_is_seen(monkeypatch):
    f = wg.compile(lambda x: x + TABLE)
    assert f(wg.zeros(2)).tolist() == [1.0, 2.0]
    monkeypatch.setitem(globals(), "TABLE", wg.tensor([5.0, 6.0]))
    assert f(wg.zeros(2)).tolist() == [5.0, 6.0]
    w = wg.tensor(2.0)
    g = wg.compile(lambda x: x * w)
    assert g(wg.ones(1)).item() == 2.0
    w = wg.tensor(3.0)
    assert g(wg.ones(1)).item() == 3.0


def test_a_closure_s_tensor_updated_outside_is_read_anew():
    w = wg.tensor([1.0, 2.0])
    f = wg.compile(lambda x: x * w)
    f(wg.ones(2))
    w += 1.0
    assert f(wg.ones(2)).tolist() == [2.0, 3.0]
    w[0] = 9.0
    assert f(wg.ones(2)).tolist() == [9.0, 3.0] and f.traces == 1


def test_floats_become_numbers_on_the_second_trace():
    f = wg.compile(lambda x, k: (x * k + k**2).sum())
    eager = f.__wrapped__
    x = array(5)
    for k in (0.1, 0.7, -3.0, 1e-30, math.inf, 0.0, 1.0, 2.0):
        same(f(x, k), eager(x, k))
        same(f(x, k=k), eager(x, k=k))
    assert f.traces <= 4


def test_arithmetic_on_numbers_is_python_s():
    def f(x, lr, decay):
        rate = lr * (1 - decay) / 3 + math.pi
        return x - rate * x + -lr - (lr + 2) ** 2, rate * wg.ones(2)

    g = wg.compile(f)
    x = array(4)
    for lr, decay in ((0.1, 0.2), (0.3, 0.2), (0.7, 0.9), (1e-3, 0.5)):
        for a, b in zip(g(x, lr, decay), f(x, lr, decay), strict=True):
            same(a, b)
    assert g.traces <= 3


def test_sizes_and_numbers_that_are_returned_are_those_of_the_call():
    def f(x, k):
        return x * k, k * 2, k, x.shape, {"n": x.size}

    g = wg.compile(f)
    for n, k in ((2, 0.5), (3, 0.7), (4, 0.9), (3, 0.7)):
        got, want = g(wg.ones((n, 2)), k), f(wg.ones((n, 2)), k)
        assert got[1:] == want[1:] and [type(v) for v in got[3]] == [int, int]
        same(got[0], want[0])


def test_zeros_of_both_signs_are_two_numbers():
    f = wg.compile(lambda x, k: x * k)
    assert [str(f(wg.ones(()), k).item()) for k in (0.0, -0.0, 0.0)] == ["0.0", "-0.0", "0.0"]


def test_a_number_that_python_looks_at_is_fixed():
    f = wg.compile(lambda x, k: x * 2 if k > 0 else x * k)
    x = wg.ones(1)
    for k, want in ((1.0, 2.0), (2.0, 2.0), (-1.0, -1.0), (-2.0, -2.0), (2.0, 2.0)):
        assert f(x, k).item() == want


def test_statics_are_part_of_the_signature():
    f = wg.compile(lambda x, *, mode, n, flag: (mode, n, flag, x * n if flag else x))
    assert f(wg.ones(1), mode="a", n=2, flag=True)[:3] == ("a", 2, True)
    assert f(wg.ones(1), mode="b", n=2, flag=True)[0] == "b"
    assert f(wg.ones(1), mode="b", n=2, flag=False)[3].item() == 1.0
    assert f(wg.ones(1), mode="b", n=True, flag=False)[1] is True, "1 is not True"
    assert f(wg.ones(1), mode="b", n=1, flag=False)[1] == 1
    assert f(wg.ones(1), mode=None, n=1, flag=False)[0] is None
    assert f.traces == 6


def test_the_same_tensor_twice_is_another_signature_than_two():
    def f(a, b):
        a += 1.0
        return a * b

    g = wg.compile(f)
    x = wg.tensor([1.0])
    assert g(x, wg.tensor([1.0])).item() == 2.0 and x.item() == 2.0
    assert g(x, x).item() == 9.0 and x.item() == 3.0


def test_dtypes_ranks_and_recording_are_part_of_the_signature():
    f = wg.compile(lambda x: x * 2)
    for x in (wg.ones(2), wg.ones((2, 2)), wg.ones(2, dtype=wg.float64), wg.asarray([1, 2])):
        assert f(x).dtype == x.dtype and f(x).shape == x.shape
    assert f.traces == 4
    with wg.no_grad():
        assert not f(wg.ones(2, requires_grad=True)).requires_grad
    assert f(wg.ones(2, requires_grad=True)).requires_grad


def test_the_limit_on_traces_shows_what_keeps_changing():
    f = wg.compile(lambda x, n: x * n, limit=3)
    for n in range(3):
        f(wg.ones(1), n)
    with pytest.raises(wg.CaptureError, match=r"(?s)traced 3 times.*n: int 0 became int 3"):
        f(wg.ones(1), 3)
    assert f(wg.ones(1), 2).item() == 2.0, "what was traced still runs"


def test_modules_attributes_are_seen():
    class Scaled(nn.Module):
        def __init__(self):
            self.k, self.inner = 2.0, nn.Dropout(0.5)

        def forward(self, x):
            return self.inner(x) * self.k

    m = Scaled()
    m.eval()
    f = wg.compile(m)
    assert f(wg.ones(1)).item() == 2.0
    m.k = 3.0
    assert f(wg.ones(1)).item() == 3.0
    m.inner = nn.Identity()
    assert f(wg.ones(1)).item() == 3.0
    m.inner.extra = "unrelated"
    m.k = 2.0
    assert f(wg.ones(1)).item() == 2.0


# Containers.


class Pair(NamedTuple):
    a: object
    b: object


@dataclasses.dataclass
class Record:
    x: object
    label: str
    rest: dict


class Custom:
    def __init__(self, x, tag):
        self.x, self.tag = x, tag


wg.pytree.register_pytree(Custom, lambda c: ((c.x,), c.tag), lambda tag, xs: Custom(xs[0], tag))


def test_containers_go_in_and_come_out():
    def f(tree):
        return {
            "pair": Pair(tree["pair"].b * 2, tree["pair"].a),
            "record": Record(
                tree["record"].x.sum(), "out", {"n": 1, "y": tree["record"].rest["y"]}
            ),
            "custom": Custom(tree["custom"].x + 1, tree["custom"].tag * 2),
            "none": None,
            "mixed": [1, "two", (tree["pair"].a,)],
        }

    tree = {
        "pair": Pair(array(2), array(3, seed=1)),
        "record": Record(array(2, 2), "in", {"y": array(1)}),
        "custom": Custom(array(4), "t"),
    }
    g = wg.compile(f)
    for _ in range(2):
        got, want = g(tree), f(tree)
        flat, structure = wg.pytree.flatten(got)
        other, wanted = wg.pytree.flatten(want)
        assert structure == wanted
        for a, b in zip(flat, other, strict=True):
            if isinstance(b, wg.Tensor):
                same(a, b)
            else:
                assert a == b
    assert g.traces == 1
    tree["custom"].tag = "u"
    assert g(tree)["custom"].tag == "uu" and g.traces == 2


def test_arrays_of_numpy_are_tensors():
    f = wg.compile(lambda x: x * 2)
    assert f(np.ones(3, "f")).tolist() == [2.0] * 3
    assert f(np.zeros(3, "f")).tolist() == [0.0] * 3 and f.traces == 1


def test_methods_and_partials():
    class Model:
        def __init__(self):
            self.w = wg.tensor(2.0)

        @wg.compile
        def scaled(self, x, k=1):
            return x * self.w * k

    m = Model()
    assert m.scaled(wg.ones(2)).tolist() == [2.0, 2.0]
    m.w += 1.0
    assert m.scaled(wg.ones(2), k=2).tolist() == [6.0, 6.0]
    other = Model()
    assert other.scaled(wg.ones(2)).tolist() == [2.0, 2.0]
    f = wg.compile(functools.partial(lambda k, x: x * k, 3))
    assert f(wg.ones(1)).item() == 3.0


def test_it_looks_like_the_function():
    @wg.compile
    def named(x):
        """What it does."""
        return x

    assert named.__name__ == "named" and named.__doc__ == "What it does."


def test_functions_without_tensors_and_without_results():
    w = wg.tensor(0.0)

    @wg.compile
    def bump():
        nonlocal w
        w += 1.0

    assert [bump() for _ in range(3)] == [None] * 3
    assert w.item() == 3.0
    assert wg.compile(lambda: wg.ones(2))().tolist() == [1.0, 1.0]
    assert wg.compile(lambda n: [n, {"k": n + 1}])(3) == [3, {"k": 4}]
    assert wg.compile(lambda: ())() == ()


# Nesting and randomness.


def test_compiled_functions_inline():
    @wg.compile
    def inner(x):
        return x.exp() * 2

    outer = wg.compile(lambda x: inner(x) + inner(x + 1))
    x = array(4)
    same(outer(x), inner.__wrapped__(x) + inner.__wrapped__(x + 1))
    assert inner.traces == 0 and outer.traces == 1
    assert "exp" in [n.op for n in outer.graph(x).nodes]


def test_a_recursive_function():
    @wg.compile
    def f(x, n):
        return x if n == 0 else f(x * 2, n - 1)

    assert f(wg.ones(1), 5).item() == 32.0 and f.traces == 1


def test_writes_through_a_mask():
    def f(x, m):
        x[m] = 0.0
        x[x > 1] = x[0, 0]
        x[m[:, 0]] = 3.0
        return x.sum()

    g = wg.compile(f)
    for seed in range(3):
        mask = wg.asarray(generator("mask", seed).integers(0, 2, (4, 6)).astype(bool))
        x, z = array(4, 6, seed=seed), array(4, 6, seed=seed)
        same(g(x, mask), f(z, mask))
        same(x, z)
    assert g.traces == 1


@pytest.mark.parametrize("seed", [0, 11])
def test_random_numbers_are_those_of_eager_code(seed):
    drop = nn.Dropout(0.4)

    def f(x):
        y = wg.random.normal((3,)) + drop(x)
        return y, wg.random.integers(0, 100, (4,)), wg.random.permutation(5), drop(y)

    g = wg.compile(f)
    runs = []
    for h in (f, g):
        wg.random.seed(seed)
        out = [h(array(3)) for _ in range(4)]
        runs.append(([[y.tolist() for y in ys] for ys in out], wg.random.get_state()))
    assert runs[0] == runs[1] and g.traces == 1
    assert runs[0][0][0] != runs[0][0][1], "fresh numbers at each call"


def test_keys_made_inside_are_constants():
    def f(x):
        return wg.random.normal((3,), key=wg.random.key(5)) + x

    g = wg.compile(f)
    for _ in range(3):
        same(g(wg.ones(1)), f(wg.ones(1)))
    assert g.traces == 1 and len(g.graph(wg.ones(1)).inputs) == 1


def test_seeding_inside_is_refused():
    """What a trace draws is fresh at every call; a seed would hold for the first one only."""

    def f(x):
        wg.random.seed(5)
        return wg.random.normal((3,)) + x

    for g in (wg.compile(f), wg.vmap(f)):
        state = wg.random.get_state()
        with pytest.raises(wg.CaptureError, match=r"seed.*random\.key"):
            g(wg.ones(1))
        assert wg.random.get_state() == state
    with wg.Graph() as g:
        wg.random.seed(5)
        x = wg.random.normal((3,))
    assert wg.Session(g).run(x).tolist() == f(wg.zeros(())).tolist()


# Declared signatures.


@pytest.mark.parametrize("wrong", ["cpu", 3, wg.zeros(1).broadcast_to((10**12,)), [wg.ones(3)]])
def test_a_signature_is_a_list_of_specs(wrong):
    with pytest.raises(TypeError, match=r"signature.*expected a"):
        wg.compile(lambda x: x, signature=wrong)
    with pytest.raises(TypeError, match="limit: expected an int"):
        wg.compile(lambda x: x, limit=None if isinstance(wrong, int) else wrong)


@pytest.mark.parametrize("shape", ["ab", 3, wg.zeros(1).broadcast_to((10**12,))])
def test_the_shape_of_a_spec_is_a_sequence(shape):
    with pytest.raises(TypeError):
        wg.Spec(shape)


def test_declared_sizes():
    n = wg.Dim("n")
    specs = [wg.Spec((n, 3)), wg.Spec((n,), wg.int64)]
    f = wg.compile(lambda x, i: x[i] * x.shape[0], signature=specs)
    assert f.traces == 1
    for size in (1, 2, 7):
        assert (
            f(wg.ones((size, 3)), wg.zeros(size, dtype=wg.int64)).tolist()
            == [[float(size)] * 3] * size
        )
    assert f.traces == 1
    with pytest.raises(wg.DTypeError, match="int64"):
        f(wg.ones((4, 3)), wg.ones(4))
    with pytest.raises(TypeError):
        f(wg.ones((4, 3)))
    assert f.traces == 1


def test_axes_declared_alike_are_alike():
    n = wg.Dim("n")
    f = wg.compile(lambda x, i: x[i], signature=[wg.Spec((n, 3)), wg.Spec((n,), wg.int64)])
    with pytest.raises(wg.ShapeError):
        f(wg.ones((4, 3)), wg.zeros(5, dtype=wg.int64))


def test_expressions_over_declared_sizes():
    n = wg.Dim("n")
    f = wg.compile(lambda x, y: x.reshape(-1, 2) + y[:, None], signature=[
        wg.Spec((2 * n,)), wg.Spec((n,)),
    ])  # fmt: skip
    assert f(wg.ones(6), wg.ones(3)).shape == (3, 2)
    with pytest.raises(wg.ShapeError):
        f(wg.ones(6), wg.ones(4))


def test_sizes_that_python_reads_are_pinned_and_shown():
    f = wg.compile(lambda x: sum(x[i] * i for i in range(x.shape[0])))
    for n in (3, 4, 5, 4, 3):
        assert f(wg.ones(n)).item() == n * (n - 1) / 2
    text = str(f.explain())
    assert "relies on" in text and "test_capture.py" in text, text


def test_a_size_in_arithmetic_is_not_pinned():
    def f(x):
        n = x.shape[0]
        return x.sum() / n + wg.arange(n).sum() + wg.zeros((n, 2)).shape[0]

    g = wg.compile(f)
    for n in (3, 4, 9, 1, 20):
        same(g(array(n)), f(array(n)))
    assert g.traces <= 2


def test_looking_at_a_plan_is_no_call_of_another_kind():
    f = wg.compile(lambda x: x * 2)
    x = wg.ones(3)
    f(x)
    nothing = {}
    assert len(f.plan(x)) == 1 and len(f.graph(x).nodes) == 2 and str(f.explain(x))
    assert f(x, **nothing).tolist() == [2.0] * 3 and f.traces == 1
