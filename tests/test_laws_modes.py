"""Random programs in three modes: the same bits at several sizes, with one trace."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_laws_programs import MAPS, SMOOTH

import wengert as wg

from modes import Modes, bits
from support import function, generator

SIZES = [(3, 4), (5, 4), (5, 7), (9, 3), (2, 11), (1, 2)]
"""In the first trace all sizes are fixed; the second opens one axis, the third both. A size of 1
broadcasts, so it may need one more."""


# Each step takes values of shape (n, m), two positions and two small numbers, and gives another.


def squeezed(x):
    """Into (-1, 1), the domain of most ops."""
    return (x * 0.5).tanh()


def rows(x, y, i, k):
    """A row is written over by another."""
    z = x * 1.0
    z[:1] = y[-1:] * (k + 1)
    return z


def columns(x, y, i, k):
    z = x + 0.0
    z[:, ::2] = y[:, ::2].sum(axis=0) + i
    z[-1:, :1] = 0.25
    return z


def updated(x, y, i, k):
    """Updates of a new handle."""
    z = x * 1.0
    z += y
    z *= 0.5
    z -= i
    return z


def sliced(x, y, i, k):
    return wg.concat([x[1:], y[:1]], axis=0)


def reversed_(x, y, i, k):
    return wg.concat([x[::-1, 1:], y[:, :1]], axis=1)


def product(x, y, i, k):
    return x @ (y.T @ x)


def centred(x, y, i, k):
    return (x - x.mean(axis=i % 2, keepdims=True)) * y.max()


def normed(x, y, i, k):
    return wg.nn.softmax(x, axis=-1) + wg.nn.layer_norm(y)


def folded(x, y, i, k):
    return (x.reshape(-1) * y.reshape(-1)).cumulative_sum().reshape(x.shape)


def counted(x, y, i, k):
    """Sizes in arithmetic."""
    return x / x.shape[0] + y * x.shape[1] + wg.arange(x.shape[1]) * 0.125


def chosen(x, y, i, k):
    return wg.where(x > y, x, i * 0.5) + wg.take_along_axis(y, wg.argsort(x, axis=1), axis=1)


def gathered(x, y, i, k):
    return x[wg.argsort(y.max(axis=1))] + y[:, wg.zeros(1, dtype=wg.int64)]


def sloped(x, y, i, k):
    """A gradient of its own."""
    return wg.grad(lambda v: (v * y).sin().sum())(x)


def closed(x, y, i, k):
    """A tensor of the closure, and a cut."""
    return x * CONSTANT[i] + y.detach() * CONSTANT[k]


def padded(x, y, i, k):
    return wg.nn.avg_pool2d(wg.pad(x, 1)[None, None], 3, stride=1)[0, 0] + y


CONSTANT = wg.tensor([0.5, -1.25, 2.0])

STEPS = [
    rows, columns, updated, sliced, reversed_, product, centred, normed, folded, counted, chosen,
    gathered, sloped, closed, padded,
]  # fmt: skip


def taken(x, y, i, k):
    return wg.cond(x.sum() > y.mean(), lambda a, b: a * 2 + b, lambda a, b: a - b * i, x, y)


def repeated(x, y, i, k):
    def body(n, v):
        return n + 1, squeezed(v + y)

    return wg.while_loop(lambda n, v: n < i + k, body, (wg.tensor(0), x))[1]


def counted_loop(x, y, i, k):
    return wg.fori_loop(0, i + 1, lambda n, v: squeezed(v * y + n), x)


def scanned(x, y, i, k):
    carry, ys = wg.scan(lambda c, row: ((c + row) * 0.5, c * row), y.sum(axis=0), x)
    return ys + carry


def switched(x, y, i, k):
    which = (x > 0).astype(wg.int64).sum() % 3
    return wg.switch(which, [lambda v: v + 1, lambda v: v * y, lambda v: v.exp()], squeezed(x))


def mapped(x, y, i, k):
    return wg.map(lambda row: row.flip() + y.max(axis=0), x)


def sloped_flow(x, y, i, k):
    """A gradient through control flow."""

    def f(v):
        carry, ys = wg.scan(lambda c, row: (c * 0.5 + row, c * row), y.sum(axis=0), v)
        return wg.cond(carry.sum() > 0, lambda a: (a * a).sum(), lambda a: a.sum(), ys)

    return wg.grad(f)(x)


# A sweep adds the cotangents of a branch or a round before it adds those of what stands around, in
# another order than eager code, where nothing stands between.
FLOWS = [taken, repeated, counted_loop, scanned, switched, mapped, sloped_flow]
STEPS += FLOWS


@st.composite
def programs(draw):
    """Steps with the positions of their operands and two small numbers."""
    steps = []
    for n in range(draw(st.integers(1, 6))):
        step = draw(st.sampled_from(STEPS)) if draw(st.booleans()) else draw(st.sampled_from(MAPS))
        places = [draw(st.integers(0, n + 1)) for _ in range(2)]
        steps.append((step, places, draw(st.integers(0, 2)), draw(st.integers(0, 2))))
    return steps


def applied(step, x, y, i, k):
    if callable(step):
        return step(x, y, i, k)
    return function(step)(*[x, y][: len(step["params"])])


def run(steps, a, b):
    values = [a, b]
    for step, (p, q), i, k in steps:
        x, y = values[p], values[q]
        values.append(squeezed(applied(step, x, y, i, k)))
    return values[-1], values[2]


def operands(shape):
    rng = generator("modes", shape)
    return [wg.asarray(rng.uniform(-1, 1, shape).astype("float32")) for _ in range(2)]


def named(steps):
    """A program as text, for notes."""
    return [
        (step.__name__ if callable(step) else step["name"], *rest) for step, *rest in steps
    ]  # fmt: skip


@given(programs())
def test_three_modes_at_several_sizes_with_one_trace(steps):
    def program(a, b):
        return run(steps, a, b)

    modes = Modes(program, [(wg.Dim("n"), wg.Dim("m"))] * 2)
    for shape in SIZES:
        args = operands(shape)
        want = bits(program(*args))
        for mode in ("compiled", "session"):
            assert bits(modes.run(mode, *args)) == want, (mode, shape, named(steps))
        assert modes.compiled.traces <= (4 if 1 in shape else 3), modes.compiled.explain()


SLOPED = [s for s in MAPS if s["name"] in SMOOTH]


def close(got, want):
    for x, y in zip(got, want, strict=True):
        np.testing.assert_allclose(x.numpy(), y.numpy(), rtol=1e-4, atol=1e-5)


@given(programs())
def test_gradients_in_three_modes(steps):
    smooth = [
        (s if callable(s) or s["name"] in SMOOTH else SLOPED[i], places, i, k)
        for s, places, i, k in steps
    ]

    def program(a, b):
        return wg.grad(lambda a, b: sum(y.sum() for y in run(smooth, a, b)), argnums=(0, 1))(a, b)

    def around(a, b):
        f = wg.compile(lambda a, b: run(smooth, a, b))
        return wg.grad(lambda a, b: sum(y.sum() for y in f(a, b)), argnums=(0, 1))(a, b)

    modes = Modes(program)
    for shape in SIZES[:3]:
        args = operands(shape)
        want = program(*args)
        for mode in ("compiled", "session"):
            got = modes.run(mode, *args)
            close(got, want)
            if not any(step in FLOWS for step, *_ in smooth):
                assert bits(got) == bits(want), (mode, shape, named(smooth))
        close(around(*args), want)


@given(programs(), st.integers(2, 4))
def test_state_updated_by_a_program(steps, calls):
    """What a program adds to tensors of its closure, from call to call."""

    def history(compiled):
        total, last = wg.zeros(()), wg.zeros((4,))

        def program(a, b):
            y, first = run(steps, a, b)
            total.__iadd__(y.sum())
            last[...] = last * 0.5 + first[0, :4]
            a *= 0.5
            return y * total

        f = wg.compile(program) if compiled else program
        seen, args = [], operands((5, 4))
        for _ in range(calls):
            seen.append(bits([f(*args), total, last, args[0]]))
        return seen

    assert history(True) == history(False), named(steps)


@given(programs())
def test_programs_with_state_at_several_sizes(steps):
    """Control flow, updates, closures and sizes together, in three modes: what the state is after
    each call, and what was computed with it. The session keeps the state in variables."""

    def program(update, a, b):
        y, first = run(steps, a, b)
        total = update(0, lambda v: v + y.sum())
        last = update(1, lambda v: v * 0.5 + first[0, 0] * CONSTANT)
        update(0, lambda v: wg.cond(v > 1, lambda: v * 0.5, lambda: v + last.max()))
        return y * total, first.sum() + last

    def handles():
        state = [wg.zeros(()), wg.zeros(3)]

        def update(i, f):
            state[i][...] = f(state[i])
            return state[i] * 1.0

        return state, lambda a, b: program(update, a, b)

    (plain, eager), (kept, traced) = handles(), handles()
    compiled = wg.compile(traced)
    shape = (wg.Dim("n"), wg.Dim("m"))
    with wg.Graph() as g:
        inputs = [wg.placeholder(name, shape) for name in "ab"]
        variables = [wg.Variable(wg.zeros(()), name="v"), wg.Variable(wg.zeros(3), name="w")]
        now = list(variables)

        def update(i, f):
            now[i] = f(now[i])
            return now[i] * 1.0

        fetches = program(update, *inputs)
        writes = [v.assign(x) for v, x in zip(variables, now, strict=True)]
    session = wg.Session(g)
    for shape in SIZES[:5]:
        args = operands(shape)
        want = bits(eager(*args)), bits(plain)
        assert (bits(compiled(*args)), bits(kept)) == want, (shape, named(steps))
        got, state = session.run([fetches, writes], dict(zip(inputs, args, strict=True)))
        assert (bits(got), bits(state)) == want, (shape, named(steps))
    assert compiled.traces <= 3, compiled.explain()


@pytest.mark.parametrize("shapes", [None, [(None, 3)], [(None, None)]])
def test_what_is_detached_in_a_graph_stays_so(shapes):
    def constant(v):
        with wg.no_grad():
            return (v * 2.0).sum(axis=0)

    def loss(v):
        return (v * v.detach() + v * constant(v)).sum()

    modes = Modes(lambda x: wg.grad(loss)(x), shapes)
    x = operands((2, 3))[0]
    assert bits(modes.run("session", x)) == bits(modes.run("eager", x))


def test_a_detached_value_has_no_gradient_by_what_it_was():
    with wg.Graph() as graph:
        x = wg.placeholder("x", (3,))
        y = x.detach()
        assert wg.gradients((y * 2.0).sum(), [x], allow_unused=True) == [None]
        (g,) = wg.gradients((y * x).sum(), [y])
    assert wg.Session(graph).run(g, {x: wg.ones(3) * 5}).tolist() == [5.0] * 3


@pytest.mark.parametrize("step", [taken, repeated, counted_loop, scanned, switched, mapped])
def test_gradients_through_control_flow_in_a_graph(step):
    modes = Modes(lambda x, y: wg.grad(lambda v: step(v, y, 1, 1).sum())(x))
    args = operands((3, 4))
    close([modes.run("session", *args)], [modes.run("eager", *args)])


def test_counts_of_open_sizes_beside_control_flow():
    def inner(v):
        return wg.cond(v.sum() > 1, lambda u: u / u.shape[1] + u.mean(), lambda u: u - u.var(), v)

    def program(x):
        y = wg.cond(x.mean() > 0, lambda v: inner(v * v.mean()), lambda v: v * v.shape[0], x)
        loss = wg.grad(lambda v: inner(v).mean() + y.mean())(x)
        return y, loss, wg.scan(lambda c, v: (c + v.mean(), v / x.shape[0]), x.mean(), x)

    modes = Modes(program, [(None, None)])
    for shape in ((2, 3), (4, 2), (3, 5)):
        for sign in (1.0, -1.0):
            x = operands(shape)[0] * sign
            assert bits(modes.run("session", x)) == bits(modes.run("eager", x))


def test_a_graph_with_counts_is_called_in_a_captured_function():
    def program(x):
        return wg.cond(x.sum() > 0, lambda v: v * v.mean() / x.shape[1], lambda v: -v, x)

    with wg.Graph() as graph:
        placeholder = wg.placeholder("x", (None, None))
        y = program(placeholder)
    f = graph.function([placeholder], y)
    g = wg.compile(lambda x: f(x) * 2.0)
    for shape in ((2, 3), (4, 3), (5, 2), (7, 7)):
        x = operands(shape)[0]
        assert bits(g(x)) == bits(program(x) * 2.0)
    assert g.traces <= 3


def test_an_index_on_an_open_axis():
    modes = Modes(lambda x: (x[0], x[:, -1], x[0, 1]), [(None, None)])
    for shape in ((2, 3), (1, 2)):
        x = operands(shape)[0]
        assert bits(modes.run("session", x)) == bits(modes.run("eager", x))
    with pytest.raises(IndexError, match=r"test_laws_modes\.py:\d+"):
        modes.run("session", wg.ones((2, 1)))


@given(programs())
def test_control_flow_by_batches(steps):
    """`vmap` of a program is the program of each example."""

    def program(a, b):
        return run(steps, a, b)[0]

    a, b = [wg.stack([x, x * 0.5, -x]) for x in operands((3, 4))]
    got = wg.vmap(program)(a, b)
    want = wg.stack([program(x, y) for x, y in zip(a, b, strict=True)])
    np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=2e-4, atol=2e-5)
