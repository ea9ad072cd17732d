"""Values that enter a list from outside: another count, dtype, rank or size than its inputs have is
refused by name, whoever runs the list, and nothing is read or written."""

import numpy as np
import pytest

import wengert as wg


def graph():
    with wg.Graph() as g:
        x = wg.placeholder("x", (4, 3))
        row = x[3]
        changed = x * 1.0
        changed[3] = 7.0
    return g, x, (row, changed)


def by_function(g, x, y):
    return g.function([x], y)


def by_captured_function(g, x, y):
    f = g.function([x], y)
    return wg.compile(lambda v: f(v))


def by_gradient(g, x, y):
    f = g.function([x], y)
    return wg.grad(lambda v: f(v).sum())


def by_session(g, x, y):
    return lambda v: wg.Session(g).run(y, {x: v})


def by_interpreter(g, x, y):
    return lambda v: g.interpreter({x: v}, y).finish()


RUNNERS = [by_function, by_captured_function, by_gradient, by_session, by_interpreter]

WRONG = {
    "size": (wg.ones((2, 3)), wg.ShapeError, r'placeholder "x" \(4, 3\) was fed shape \(2, 3\)'),
    "last size": (wg.ones((4, 2)), wg.ShapeError, "was fed shape"),
    "rank below": (wg.ones(12), wg.ShapeError, "was fed shape"),
    "rank above": (wg.ones((4, 3, 1)), wg.ShapeError, "was fed shape"),
    "no axes": (wg.ones(()), wg.ShapeError, "was fed shape"),
    "no elements": (wg.ones((0, 3)), wg.ShapeError, "was fed shape"),
    "narrow dtype": (wg.ones((4, 3), dtype=wg.float16), wg.DTypeError, "fed float16; cast"),
    "wide dtype": (wg.ones((4, 3), dtype=wg.float64), wg.DTypeError, "float32 was fed float64"),
}


@pytest.mark.parametrize("runner", RUNNERS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("wrong", WRONG)
def test_what_does_not_fit_is_refused_whoever_runs_the_list(runner, wrong):
    value, error, message = WRONG[wrong]
    g, x, results = graph()
    for y in results:
        run = runner(g, x, y)
        for _ in range(2):
            with pytest.raises(error, match=message):
                run(value)
        run(wg.ones((4, 3)))


def test_the_refusal_names_the_line_of_the_node():
    g, x, (row, _) = graph()
    line = r"placeholder made at .*test_doors\.py:12: x = wg\.placeholder"
    with pytest.raises(wg.ShapeError, match=line):
        g.function([x], row)(wg.ones((2, 3)))


def test_numbers_and_lists_adapt_for_functions_as_for_sessions():
    with wg.Graph() as g:
        x = wg.placeholder("x", (2,), dtype=wg.float64)
        y = x * 2.0
    f, s = g.function([x], y), wg.Session(g)
    for value in ([1, 2], [0.1, 0.2], [True, False]):
        want = np.array(value, np.float64) * 2.0
        for got in (f(value), s.run(y, {x: value})):
            assert got.dtype == wg.float64
            assert np.array_equal(np.asarray(got), want)
    with wg.Graph() as g:
        x = wg.placeholder("x", (2,), dtype=wg.int64)
        y = x + 1
    for run in (g.function([x], y), lambda v: wg.Session(g).run(y, {x: v})):
        with pytest.raises(wg.DTypeError, match="int64 was fed float32; cast"):
            run([0.5, 1.5])


def test_a_declared_size_is_one_size_in_functions_and_sessions():
    n = wg.Dim("n")
    with wg.Graph() as g:
        a, b = wg.placeholder("a", (n, 2)), wg.placeholder("b", (n,))
        y = a.sum(axis=1) + b
    f = g.function([a, b], y)
    for run in (
        f,
        wg.compile(lambda p, q: f(p, q)),
        lambda p, q: wg.Session(g).run(y, {a: p, b: q}),
    ):
        assert run(wg.ones((3, 2)), wg.ones(3)).tolist() == [3.0] * 3
        with pytest.raises(wg.ShapeError, match='n is 3, axis 0 of "b" was fed'):
            run(wg.ones((3, 2)), wg.ones(1))


def test_a_plan_refuses_arguments_of_other_types():
    g, x, (row, _) = graph()
    core = g._core
    ids, fed = [core.id_of(row)], core.id_of(x)
    runner = core.resolve(ids, [(fed, wg.float32, [4, 3])], None)
    assert runner([wg.ones((4, 3))])[0].tolist() == [1.0] * 3
    wrong = [(wg.ones((2, 3)), wg.ShapeError), (wg.ones((4, 3), dtype=wg.int32), wg.DTypeError)]
    for value, error in wrong:
        with pytest.raises(error, match="input 0"):
            runner([value])
        stepper = core.stepper(ids, [(fed, wg.float32, [4, 3])])
        with pytest.raises(error, match="input 0"):
            stepper.start([value])
    for values in ([], [wg.ones((4, 3))] * 2):
        with pytest.raises(ValueError, match="every input needs one value"):
            runner(values)


# Control flow over arrays whose lengths are open.


def scans():
    """Graphs of a scan over two open arrays, and what it is for arrays of one length."""
    def add(p):
        return p[0] + p[1]
    n = wg.Dim("n")
    for first, second in [
        ((None,), (None,)),
        ((n,), (None,)),
        ((None,), (5,)),
        ((None, 2), (None, 2)),
    ]:
        with wg.Graph() as g:
            a, b = wg.placeholder("a", first), wg.placeholder("b", second)
            ys = {
                "map": wg.map(add, (a, b)),
                "scan": wg.scan(lambda c, p: (c + (p[0] * p[1]).sum(), c), wg.tensor(0.0), (a, b))[
                    0
                ],
                "reversed": wg.scan(
                    lambda c, p: (c + 1, p[0] - p[1]), wg.tensor(0), (a, b), reverse=True
                )[1],
            }
        yield g, a, b, first[1:], ys


def test_arrays_that_are_scanned_together_are_of_one_length():
    for g, a, b, rest, ys in scans():
        for y in ys.values():
            runners = [
                lambda p, q, y=y: wg.Session(g).run(y, {a: p, b: q}),
                g.function([a, b], y),
                lambda p, q, y=y: g.interpreter({a: p, b: q}, y).finish(),
            ]
            for run in runners:
                run(wg.ones((5, *rest)), wg.ones((5, *rest)))
                for p, q in [(5, 2), (2, 5), (6000, 5), (5, 6000), (0, 5), (5, 1)]:
                    with pytest.raises(wg.ShapeError, match=r"lengths differ|was fed shape"):
                        run(wg.ones((p, *rest)), wg.ones((q, *rest)))


def test_scans_of_one_length_have_the_values_of_eager_code():
    rng = np.random.default_rng(3)
    for g, a, b, rest, ys in scans():
        p, q = (wg.asarray(rng.standard_normal((5, *rest)).astype(np.float32)) for _ in range(2))
        p64, q64 = np.asarray(p, np.float64), np.asarray(q, np.float64)
        want = {"map": p64 + q64, "scan": (p64 * q64).sum(), "reversed": p64 - q64}
        for name, y in ys.items():
            got = wg.Session(g).run(y, {a: p, b: q})
            np.testing.assert_allclose(np.asarray(got), want[name], rtol=1e-5, atol=1e-5)


def test_a_text_with_lengths_that_differ_is_refused():
    with wg.Graph() as g:
        a, b = wg.placeholder("a", (3,)), wg.placeholder("b", (3,))
        wg.map(lambda p: p[0] + p[1], (a, b))
    text = str(g)
    for old in (' (3,) = input "b"',):
        assert old in text
        with pytest.raises(wg.GraphError, match="another length than that of the scan"):
            wg.parse_graph(text.replace(old, old.replace("3", "2")))
