"""An index that data gives and that is out of range is refused in one text in every mode: by the
name of the call that the user wrote and in its words, whatever its formula is made of."""

from contextlib import suppress

import pytest

import wengert as wg

from support import TABLE, label


def written(x, i):
    x = x + 0.0
    x[:, i] = 1.0
    return x


AXIS = "index 7 is out of bounds for axis {} with size {}"
CLASS = "class {} is out of range: there are 3 classes"
# Calls on `x` of shape (2, 3) and `i` of shape (2,), of which the last is out of range.
CALLS = {
    "take": (lambda x, i: wg.take(x, i, axis=1), AXIS.format(1, 3)),
    "take, negative axis": (lambda x, i: x.take(i, axis=-2), AXIS.format(0, 2)),
    "take, flattened": (lambda x, i: wg.take(x, i), AXIS.format(0, 6)),
    "take_along_axis": (
        lambda x, i: wg.take_along_axis(x, i.reshape((2, 1))), AXIS.format(1, 3)),
    "put_along_axis": (
        lambda x, i: wg.put_along_axis(x, i.reshape((2, 1)), 2.0 * x[:, :1]), AXIS.format(1, 3)),
    "index_add": (lambda x, i: wg.index_add(x, i, 2.0 * x[:, :2], axis=1), AXIS.format(1, 3)),
    "searchsorted": (
        lambda x, i: wg.searchsorted(x[0, :2], x, sorter=i) * x.sum(), AXIS.format(0, 2)),
    "one_hot": (lambda x, i: wg.one_hot(i, 3) * x, CLASS.format(7)),
    "embedding": (lambda x, i: wg.nn.embedding(i, x), AXIS.format(0, 2)),
    "cross_entropy": (lambda x, i: wg.nn.cross_entropy(x, i), CLASS.format(7)),
    "cross_entropy, weights": (
        lambda x, i: wg.nn.cross_entropy(x, i, x[0].detach()), CLASS.format(7)),
    "cross_entropy, smoothed": (
        lambda x, i: wg.nn.cross_entropy(x, i, label_smoothing=0.1, reduction="none"),
        CLASS.format(7)),
    "cross_entropy, negative": (lambda x, i: wg.nn.cross_entropy(x, i - 9), CLASS.format(-9)),
    "nll_loss": (lambda x, i: wg.nn.nll_loss(x, i), CLASS.format(7)),
    "nll_loss, negative": (
        lambda x, i: wg.nn.nll_loss(x, i - 8, reduction="sum"), CLASS.format(-8)),
    "getitem": (lambda x, i: x[:, i], AXIS.format(1, 3)),
    "getitem, one": (lambda x, i: x[0, i[1]], AXIS.format(1, 3)),
    "getitem, apart": (
        lambda x, i: x.reshape((1, 2, 1, 3))[i * 0, 1, :, i], AXIS.format(3, 3)),
    "getitem, beside new axes": (lambda x, i: x[None, i - i, None, i - 14],
        "index -14 is out of bounds for axis 1 with size 3"),
    "setitem": (written, AXIS.format(1, 3)),
    "index_copy": (lambda x, i: wg.index_copy(x, i, 2.0 * x[:, :2], axis=1), AXIS.format(1, 3)),
    "index_fill": (lambda x, i: wg.index_fill(x, i, 2.0, axis=1), AXIS.format(1, 3)),
    "index_put": (lambda x, i: wg.index_put(x, (i,), 2.0 * x), AXIS.format(0, 2)),
    "scatter_reduce": (
        lambda x, i: wg.scatter_reduce(x, i.reshape((2, 1)), 2.0 * x[:, :1]), AXIS.format(1, 3)),
    "multi_margin_loss": (lambda x, i: wg.nn.multi_margin_loss(x, i), CLASS.format(7)),
    "multilabel_margin_loss": (
        lambda x, i: wg.nn.multilabel_margin_loss(x, wg.stack([i, i * 0, i * 0], axis=1)),
        CLASS.format(7)),
    **{
        f"max_unpool{n}d": (
            lambda x, i, n=n: getattr(wg.nn, f"max_unpool{n}d")(
                x[:, :1].reshape((2, 1) + (1,) * n), i.reshape((2, 1) + (1,) * n), 2,
                output_size=(2,) + (1,) * (n - 1)),
            AXIS.format(0, 2))
        for n in (1, 2, 3)
    },
    "ctc_loss": (
        lambda x, i: wg.nn.ctc_loss(
            wg.nn.log_softmax(wg.stack([x] * 4)), i.reshape((2, 1)), i * 0 + 4, i * 0 + 1),
        CLASS.format(7)),
}
FITS = [[0, 0], [1, 0]]
BAD = [0, 7]


def given():
    return wg.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]), wg.tensor(BAD)


def batch():
    x, _ = given()
    return wg.stack([x, x, x]), wg.tensor([*FITS, BAD])


def plan(f):
    x, i = given()
    for _ in range(3):
        with suppress(IndexError):      # where 0 is made a negative label
            f(x, i * 0)
    return f(x, i)


def session(f, sizes, run=True):
    x, i = given()
    with wg.Graph() as graph:
        a = wg.placeholder("x", sizes)
        b = wg.placeholder("i", sizes[:1], wg.int64)
        y = f(a, b)
    if run:
        return wg.Session(graph).run(y, {a: x, b: i})
    return graph.interpreter({a: x, b: i}, [y]).finish()


def function(f):
    x, i = given()
    with wg.Graph() as graph:
        a, b = wg.placeholder("x", (2, 3)), wg.placeholder("i", (2,), wg.int64)
        y = f(a, b)
    return graph.function([a, b], y)(x, i)


def finite(f):
    with wg.check_finite():
        return f(*given())


def total(f):
    return lambda x, i: f(x, i).sum()


MODES = {
    "plan": plan,
    "recorded": lambda f: wg.value_and_grad(total(f))(*given()),
    "finite": finite,
    "compiled": lambda f: wg.compile(f)(*given()),
    "compiled and recorded": lambda f: wg.value_and_grad(wg.compile(total(f)))(*given()),
    "compiled gradient": lambda f: wg.compile(wg.value_and_grad(total(f)))(*given()),
    "compiled interpreter": lambda f: wg.compile(f).interpreter(*given()).finish(),
    "vmap": lambda f: wg.vmap(f)(*batch()),
    "vmap of indices": lambda f: wg.vmap(f, in_axes=(None, 0))(given()[0], batch()[1]),
    "vmap of values": lambda f: wg.vmap(f, in_axes=(0, None))(batch()[0], given()[1]),
    "compiled vmap": lambda f: wg.compile(wg.vmap(f))(*batch()),
    "vmap of vmap": lambda f: wg.vmap(wg.vmap(f))(*(x[None] for x in batch())),
    "map": lambda f: wg.map(lambda p: f(*p), batch()),
    "compiled map": lambda f: wg.compile(lambda x, i: wg.map(lambda p: f(*p), (x, i)))(*batch()),
    "cond": lambda f: wg.compile(
        lambda x, i: wg.cond(x.sum() > 0, f, lambda x, i: f(x, i * 0 + 1), x, i))(*given()),
    "jvp": lambda f: wg.jvp(lambda x: f(x, given()[1]), given()[:1], given()[:1]),
    "session": lambda f: session(f, (2, 3)),
    "session, open sizes": lambda f: session(f, (None, 3)),
    "interpreter": lambda f: session(f, (2, 3), run=False),
    "function": function,
}


def refusal(run):
    """Class and first line of a refusal; behind it stands where the node was made."""
    with pytest.raises(IndexError) as refused:
        run()
    return type(refused.value), str(refused.value).splitlines()[0]


@pytest.mark.parametrize("name", CALLS)
def test_an_index_out_of_range_is_refused_in_the_words_of_the_call(name):
    f, words = CALLS[name]
    want = refusal(lambda: f(*given()))
    assert want[0] is wg.BoundsError
    assert want[1].startswith(f"{name.split(',')[0]}: {words}"), want[1]
    for mode, run in MODES.items():
        assert refusal(lambda run=run: run(f)) == want, mode


@pytest.mark.parametrize("name", ["nll_loss", "take", "embedding", "getitem", "put_along_axis"])
def test_a_gradient_alone_refuses_an_index_that_it_reads(name):
    f, _ = CALLS[name]
    want = refusal(lambda: f(*given()))
    assert refusal(lambda: wg.compile(wg.grad(total(f)))(*given())) == want
    assert refusal(lambda: wg.grad(wg.compile(total(f)))(*given())) == want


def test_every_composite_that_takes_integers_says_what_they_address():
    said = {name.split(",")[0] for name in CALLS}
    said |= {"lstm", "gru", "rnn", "repeat"}  # lengths and counts address nothing
    # Slices of no segment are left out.
    said |= {f"segment_{of}" for of in ("sum", "prod", "mean", "max", "min")}
    takes = {
        label(op).split(".")[-1] for op in TABLE
        if op["kind"] == "composite" and any(c == "int" for c in op["classes"] or [])
    }
    assert takes <= said, takes - said
