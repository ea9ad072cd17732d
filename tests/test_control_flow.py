"""Control flow: eager code, captured code and Python's own give the same bits and gradients."""

import numpy as np
import pytest

import wengert as wg


def f64(*values):
    return wg.tensor(values, dtype=wg.float64)


def slope(f, x, h=1e-6):
    """The gradient of a function of a float64 vector by central differences."""
    x = np.asarray(x, np.float64)
    out = np.zeros_like(x)
    for i in range(x.size):
        step = np.zeros_like(x)
        step.flat[i] = h
        above, below = (f(wg.asarray(x + s)).sum().item() for s in (step, -step))
        out.flat[i] = (above - below) / (2 * h)
    return out


def power(x, n):
    def test(i, y):
        return i < n

    return wg.while_loop(test, lambda i, y: (i + 1, y * x.sin()), (wg.tensor(0), x))[1]


def branches(x):
    return wg.cond(x.sum() > 0, lambda v: (v * 2).exp(), lambda v: v * v * x, x)


def three(x):
    index = (x.sum() * 2).astype(wg.int64)
    return wg.switch(index, [lambda v: v, lambda v: v.sin(), lambda v: v**3], x)


def recurrence(x):
    w = x * 0.5

    def step(c, row):
        c = (c * w + row).tanh()
        return c, (c * 2, row.sum())

    last, (rows, sums) = wg.scan(step, x, wg.stack([x, x * 2, x * 3]))
    return last + rows.sum(axis=0) + sums.sum()


def backwards(x):
    return wg.scan(lambda c, row: (c * row, c), x, wg.stack([x, x + 1]), reverse=True)[1].sum(
        axis=0
    )


def counted(x):
    return wg.fori_loop(0, 3, lambda i, c: c * x + i, x)


def nested(x):
    def step(c, i):
        c = wg.cond(i < 2, lambda v: v * x, lambda v: v.cos(), c)
        return power(c, i), None

    return wg.scan(step, x, wg.arange(3))[0]


def mapped(x):
    return wg.map(lambda row: (row * x).sum(), wg.stack([x, x * 2]))


PROGRAMS = [
    branches,
    three,
    recurrence,
    backwards,
    counted,
    nested,
    mapped,
    lambda x: power(x, wg.tensor(0)),
    lambda x: power(x, wg.tensor(3)),
]
INPUTS = [(0.3, 0.9), (-0.7, 0.2), (0.5, 0.6)]


@pytest.mark.parametrize("f", PROGRAMS)
@pytest.mark.parametrize("x", INPUTS)
def test_captured_control_flow_is_eager_control_flow(f, x):
    x = f64(*x)
    assert (wg.compile(f)(x).numpy() == f(x).numpy()).all()


@pytest.mark.parametrize("f", PROGRAMS)
@pytest.mark.parametrize("x", INPUTS)
def test_gradients_of_control_flow(f, x):
    want = slope(f, x)
    x = f64(*x)
    grad = wg.grad(lambda v: f(v).sum())
    np.testing.assert_allclose(grad(x).numpy(), want, rtol=1e-5, atol=1e-7)
    captured = wg.compile(grad)(x)
    np.testing.assert_allclose(captured.numpy(), want, rtol=1e-5, atol=1e-7)
    # A captured function, differentiated from outside.
    inside = wg.compile(lambda v: f(v).sum())
    np.testing.assert_allclose(wg.grad(inside)(x).numpy(), want, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("f", PROGRAMS)
def test_second_derivatives_of_control_flow(f):
    def first(v):
        return wg.grad(lambda u: f(u).sum())(v)

    x = INPUTS[0]
    want = slope(first, x)
    second = wg.grad(lambda v: first(v).sum())
    np.testing.assert_allclose(second(f64(*x)).numpy(), want, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(wg.compile(second)(f64(*x)).numpy(), want, rtol=1e-4, atol=1e-6)


def test_one_trace_serves_every_count_of_rounds_and_both_branches():
    f = wg.compile(power)
    for n in (0, 1, 5):
        assert f(f64(0.5), wg.tensor(n)).item() == power(f64(0.5), wg.tensor(n)).item()
    g = wg.compile(branches)
    for x in INPUTS:
        assert (g(f64(*x)).numpy() == branches(f64(*x)).numpy()).all()
    assert f.traces == g.traces == 1


def test_structures_and_python_numbers_are_carried():
    start = {"n": 0, "x": (wg.ones(2), None)}
    found = wg.while_loop(
        lambda c: c["n"] < 3, lambda c: {"n": c["n"] + 1, "x": (c["x"][0] * 2, None)}, start
    )
    assert found["n"].item() == 3 and found["x"][0].tolist() == [8.0, 8.0]
    last, ys = wg.scan(lambda c, _: (c + 1, {"c": c}), 0, length=3)
    assert last.item() == 3 and ys["c"].tolist() == [0, 1, 2]
    assert wg.scan(lambda c, x: (c, x * 2), 0, wg.ones((0, 3)))[1].shape == (0, 3)
    assert wg.fori_loop(wg.tensor(1), wg.tensor(4), lambda i, c: c + i, wg.tensor(0)).item() == 6
    assert wg.cond(True, lambda: 1, lambda: 2).item() == 1
    assert wg.switch(7, [lambda: 0, lambda: 1]).item() == 1


def test_closures_over_parameters_get_gradients():
    w = wg.tensor([0.5, 2.0], requires_grad=True)
    x = wg.tensor([1.0, 3.0])

    def loss(x):
        c = wg.scan(lambda c, _: (c * w, None), x, length=3)[0]
        return wg.cond(c.sum() > 0, lambda v: v * w, lambda v: v, c).sum()

    loss(x).backward()
    want = w.grad.numpy()
    np.testing.assert_allclose(want, 4 * w.numpy() ** 3 * x.numpy(), rtol=1e-6)
    w.grad = None
    wg.compile(loss)(x).backward()
    np.testing.assert_allclose(w.grad.numpy(), want, rtol=1e-6)


def test_types_that_differ_are_refused_by_name():
    one = wg.ones(3)
    with pytest.raises(
        wg.ShapeError, match=r"(?s)cond: the branches differ.*\(3,\).*\(\).*test_con"
    ):
        wg.cond(wg.tensor(True), lambda v: v * 2, lambda v: v.sum(), one)
    with pytest.raises(wg.DTypeError, match=r"switch: the branches differ.*float32.*int64"):
        wg.switch(0, [lambda v: v, lambda v: v.astype(wg.int64)], one)
    with pytest.raises(TypeError, match="cond: the branches return different structures"):
        wg.cond(wg.tensor(True), lambda v: (v, v), lambda v: v, one)
    with pytest.raises(wg.ShapeError, match="while_loop: the carry changes"):
        wg.while_loop(lambda x: x.sum() < 9, lambda x: wg.concat([x, x]), one)
    with pytest.raises(wg.DTypeError, match="while_loop: the condition is no truth value"):
        wg.while_loop(lambda x: x.sum(), lambda x: x, one)
    with pytest.raises(wg.DTypeError, match="scan: the carry changes"):
        wg.scan(lambda c, x: (c + x, None), wg.tensor(0), one)
    with pytest.raises(wg.ShapeError, match="scan: lengths differ"):
        wg.scan(lambda c, x: (c, None), 0, (wg.ones(2), wg.ones(3)))
    with pytest.raises(wg.ShapeError, match="cond: pred must be a scalar"):
        wg.cond(one > 0, lambda v: v, lambda v: v, one)
    with pytest.raises(TypeError, match="scan: the function must return a pair"):
        wg.scan(lambda c, x: c, 0, one)


def test_updates_inside_are_refused():
    seen = wg.zeros(())

    def update(v):
        seen[...] = v
        return v

    with pytest.raises(wg.CaptureError, match="cond: a function inside updates a tensor outside"):
        wg.cond(wg.tensor(True), update, lambda v: v, wg.tensor(1.0))
    assert seen.item() == 0


def noisy(x):
    return x + wg.random.normal(x.shape) * wg.random.uniform(())


def drawn_in_a_scan(x):
    return wg.scan(lambda c, row: (noisy(c), c * row + wg.random.normal(row.shape)), x[0], x)


def drawn_in_a_loop(x):
    return wg.while_loop(lambda i, c: i < 5, lambda i, c: (i + 1, noisy(c)), (0, x))[1]


def drawn_in_a_branch(x):
    y = wg.cond(x.sum() > 0, lambda v: noisy(noisy(v)), lambda v: v + wg.random.normal(()), x)
    return y, wg.random.normal((2,))


def drawn_in_rounds_of_rounds(x):
    def row(c, i):
        inner = wg.fori_loop(0, 3, lambda _, v: noisy(v), c)
        return inner, wg.cond(i > 1, lambda v: noisy(v), lambda v: v, inner)

    return wg.scan(row, x, wg.arange(4))


def dropped(x):
    return wg.map(lambda row: wg.nn.dropout(row, 0.5, training=True), x)


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize(
    "f",
    [drawn_in_a_scan, drawn_in_a_loop, drawn_in_a_branch, drawn_in_rounds_of_rounds, dropped],
)
def test_random_numbers_are_fresh_in_every_round_and_the_same_in_every_mode(f, sign):
    def run(g, x):
        wg.random.seed(5)
        results = [g(x) for _ in range(3)]
        leaves = wg.pytree.flatten((results, wg.random.normal((2,))))[0]
        return [leaf.numpy().tobytes() for leaf in leaves]

    x = wg.ones((3, 4)) * sign
    want = run(f, x)
    assert len(set(want)) > 3
    assert run(wg.compile(f), x) == want

    with wg.Graph() as graph:
        placeholder = wg.placeholder("x", (3, 4))
        fetch = f(placeholder)
    session = wg.Session(graph)
    assert run(lambda x: session.run(fetch, {placeholder: x}), x) == want


@pytest.mark.parametrize("f", [drawn_in_a_scan, drawn_in_a_loop, dropped])
def test_gradients_through_rounds_that_draw(f):
    def slope(g):
        wg.random.seed(2)
        x = wg.ones((3, 4), requires_grad=True)
        leaves = wg.pytree.flatten(g(x))[0]
        sum((leaf * leaf).sum() for leaf in leaves).backward()
        return x.grad.numpy()

    np.testing.assert_allclose(slope(wg.compile(f)), slope(f), rtol=1e-5, atol=1e-5)
    inside = wg.compile(lambda x: wg.grad(lambda v: (f(v)[0] ** 2).sum())(x))
    wg.random.seed(2)
    want = wg.grad(lambda v: (f(v)[0] ** 2).sum())(wg.ones((3, 4)))
    wg.random.seed(2)
    got = inside(wg.ones((3, 4)))
    np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-5, atol=1e-5)


def test_a_loop_whose_gradient_reads_nothing_of_its_rounds():
    def f(x):
        return wg.while_loop(lambda i, c: i < 3, lambda i, c: (i + 1, c + 1.0), (0, x))[1]

    x = wg.ones(2, requires_grad=True)
    wg.compile(f)(x).sum().backward()
    assert x.grad.tolist() == [1.0, 1.0]


def test_draws_are_refused_where_they_would_repeat():
    x = wg.ones((3, 4))
    for compiled in (False, True):
        f = wg.vmap(noisy)
        with pytest.raises(wg.CaptureError, match="vmap: the function draws"):
            (wg.compile(f) if compiled else f)(x)
    with pytest.raises(wg.CaptureError, match="while_loop: the condition draws"):
        wg.while_loop(lambda c: noisy(c) < 3, lambda c: c + 1, wg.tensor(0.0))


def test_a_generator_is_put_back_inside_a_round():
    def twice(c, _):
        state = wg.random.get_state()
        a = wg.random.normal(())
        wg.random.set_state(state)
        return c, (a, wg.random.normal(()))

    for f in (twice, wg.compile(lambda c, x: twice(c, x))):
        _, (a, b) = wg.scan(f, wg.tensor(0.0), length=3)
        assert a.tolist() == b.tolist() and len(set(a.tolist())) == 3
    outside = wg.random.get_state()

    def wrong(c, _):
        wg.random.normal(())
        wg.random.set_state(outside)
        return c, None

    with pytest.raises(wg.CaptureError, match="a state of the generator outside of control flow"):
        wg.scan(wrong, wg.tensor(0.0), length=3)


def test_prints_and_checks_run_with_the_program(capsys):
    def f(x):
        wg.print("x is {}!", x)
        wg.check(x > 0, "x must be positive")
        return wg.cond(x > 2, lambda v: v, lambda v: -v, x)

    captured = wg.compile(f)
    for run in (f, captured, captured):
        assert run(wg.tensor(3.0)).item() == 3.0
        assert capsys.readouterr().out == "x is 3.0!\n"
        with pytest.raises(ValueError, match="x must be positive"):
            run(wg.tensor(-1.0))
        capsys.readouterr()


def test_effects_inside_loops_happen_once_a_round(capsys):
    def f(x):
        def step(c, i):
            wg.print("round {}", i)
            return c * x, None

        return wg.scan(step, x, wg.arange(2))[0]

    wg.compile(wg.grad(f))(wg.tensor(2.0))
    assert capsys.readouterr().out == "round 0\nround 1\n"


def test_a_traced_integer_is_an_index():
    x = f64(1.0, 2.0, 4.0)

    def total(x):
        return wg.fori_loop(
            wg.tensor(0), wg.tensor(3), lambda i, c: c + x[i] ** 2, wg.zeros_like(x[0])
        )

    assert total(x).item() == wg.compile(total)(x).item() == 21.0
    assert wg.compile(wg.grad(total))(x).tolist() == [2.0, 4.0, 8.0]
    assert wg.compile(lambda x, i: x[i])(x, wg.tensor(-1)).item() == 4.0


class Double(wg.Function):
    @staticmethod
    def forward(cx, x):
        return x * 2

    @staticmethod
    def backward(cx, g):
        return g * 3


def test_what_is_cut_from_the_history_is_cut_in_bodies_too():
    def detached(x):
        return wg.cond(x > 0, lambda v: v.detach() * v, lambda v: v, x)

    def without(x):
        def step(c, _):
            with wg.no_grad():
                scale = c * 2
            return c * scale + x, None

        return wg.scan(step, x, length=2)[0]

    for f in (detached, without):
        want = wg.grad(f)(f64(3.0)[0]).item()
        assert wg.compile(wg.grad(f))(f64(3.0)[0]).item() == want
        assert wg.grad(lambda v, f=f: wg.vmap(f)(v).sum())(f64(3.0)).item() == want
    assert wg.grad(detached)(wg.tensor(3.0)).item() == 3.0

    def ruled(x):
        return wg.cond(x > 0, Double.apply, lambda v: v, x)

    assert wg.grad(ruled)(wg.tensor(1.0)).item() == 3.0
    assert wg.compile(ruled)(wg.tensor(1.0)).item() == 2.0
    assert wg.compile(wg.grad(ruled))(wg.tensor(1.0)).item() == 3.0
    assert wg.jvp(Double.apply, (wg.tensor(1.0),), (wg.tensor(1.0),))[1].item() == 3.0
    assert wg.vmap(wg.grad(Double.apply))(wg.ones(2)).tolist() == [3.0, 3.0]


def test_control_flow_in_graphs_defined_by_hand():
    with wg.Graph() as g:
        a = wg.placeholder("a", dtype=wg.float32, shape=())
        n = wg.placeholder("n", dtype=wg.int64, shape=())
        y = wg.while_loop(lambda i, c: i < n, lambda i, c: (i + 1, c * a), (wg.tensor(0), a))[1]
        z = wg.cond(y > 5, lambda v: v, lambda v: v * v, y)
        slope = wg.gradients(z, a)
    with wg.Session(g) as session:
        found = [session.run([y, z, slope], {a: 2.0, n: k}) for k in (0, 1, 3)]
    assert [[x.item() for x in row] for row in found] == [[2, 4, 4], [4, 16, 32], [16, 16, 32]]


# Control flow without results.


def without_results():
    no = wg.tensor(False)
    return {
        "cond": lambda x: wg.cond(x.sum() > 0, lambda: (), lambda: ()),
        "switch": lambda x: wg.switch(x.sum().astype(wg.int64), [lambda: ()] * 3),
        "scan": lambda x: wg.scan(lambda c, y: ((), ()), (), x),
        "map": lambda x: wg.map(lambda y: (), x),
        "while_loop": lambda x: wg.while_loop(lambda: no, lambda: (), ()),
    }


@pytest.mark.parametrize("name", without_results())
def test_without_results_every_mode_gives_the_same_structure(name):
    f = without_results()[name]
    want = f(wg.ones(3))
    assert wg.compile(f)(wg.ones(3)) == want
    def g(x):
        return (f(x), x * 2)
    assert wg.compile(g)(wg.ones(3))[0] == want
    assert wg.vmap(g)(wg.ones((2, 3)))[0] == want
    assert wg.grad(lambda x: g(x)[1].sum())(wg.ones(3)).tolist() == [2.0] * 3
    assert wg.compile(wg.grad(lambda x: g(x)[1].sum()))(wg.ones(3)).tolist() == [2.0] * 3


def test_without_results_effects_are_done_in_every_mode(capsys):
    def f(x):
        wg.cond(x.sum() > 0, lambda: wg.print("more {}", x.sum()), lambda: wg.print("less"))
        wg.map(lambda y: wg.print("row {}", y), x)
        return x

    with wg.Graph() as g:
        x = wg.placeholder("x", (2,))
        y = f(x)
    modes = [f, wg.compile(f), g.function([x], y), lambda v: wg.Session(g).run(y, {x: v})]
    for mode in modes:
        mode(wg.tensor([1.0, 2.0]))
        text = capsys.readouterr().out
        # A run of a graph does effects whose operands it computes: the sum is none of them.
        more = "" if modes.index(mode) > 1 else "more 3.0\n"
        assert text == f"{more}row 1.0\nrow 2.0\n"


def test_a_length_that_is_none_is_refused_in_every_mode():
    def f(x, length):
        return wg.scan(lambda c, y: (c + 1, c), x, length=length)

    wrong = [(-1, ValueError), (2.5, TypeError), ("3", TypeError), (1 << 63, ValueError)]
    for length, error in wrong:
        for run in (
            f,
            wg.compile(lambda x, n=length: f(x, n)),
            wg.vmap(lambda x, n=length: f(x, n)),
        ):
            with pytest.raises(error, match="scan: length"):
                run(wg.ones(2)) if run is not f else f(wg.ones(2), length)
    with pytest.raises(wg.GraphError, match="number of n is not known"):
        wg.compile(lambda x: f(x, wg.Dim("n")))(wg.ones(2))


def test_a_size_that_nobody_gives_is_refused_by_name():
    for run in (
        lambda x: x * wg.Dim("n"),
        wg.compile(lambda x: x * wg.Dim("n")),
        wg.compile(lambda x: wg.Dim("n") + x),
        wg.vmap(lambda x: x - wg.Dim("n")),
        wg.grad(lambda x: (x * wg.Dim("n")).sum()),
    ):
        with pytest.raises(wg.GraphError, match="number of n is not known"):
            run(wg.ones(2))
