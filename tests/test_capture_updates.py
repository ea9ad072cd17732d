"""`compile`: tensors that a function updates or returns, and what it refuses to follow."""

import numpy as np
import pytest
from test_capture import array, live, same

import wengert as wg

# Updates.


def test_updates_of_arguments_and_of_what_closures_hold():
    total = wg.zeros(2)

    def f(x, y):
        nonlocal total
        x += y
        x[0] = 7.0
        total += x
        x *= 2
        return x.sum()

    def run(f):
        total[...] = 0.0
        x, y = wg.tensor([1.0, 2.0]), wg.tensor([3.0, 4.0])
        seen = [f(x, y).item(), x.tolist(), total.tolist()]
        seen += [f(x, y).item(), x.tolist(), total.tolist(), y.tolist()]
        return seen

    assert run(wg.compile(f)) == run(f)


def test_a_returned_argument_is_the_argument():
    f = wg.compile(lambda x, y: (y, x, x + 0))
    x, y = wg.ones(2), wg.zeros(3)
    a, b, c = f(x, y)
    assert a is y and b is x and c is not x
    w = wg.tensor([1.0])

    def g(x):
        nonlocal w
        w += x
        return w

    assert wg.compile(g)(wg.ones(1)) is w and w.item() == 2.0


def test_the_same_result_twice():
    def f(x):
        y = x * 2
        return y, y, y.reshape(-1)

    a, b, c = wg.compile(f)(wg.ones((2, 2)))
    same(a, b)
    assert c.shape == (4,)
    assert a is b, "one tensor, as in eager code"
    a += 1.0
    assert b.tolist() == [[3.0, 3.0]] * 2 and c.tolist() == [2.0] * 4


def test_results_do_not_change_when_inputs_do():
    f = wg.compile(lambda x: (x.reshape(4), x.T, x[0], x * 1.0))
    x = wg.ones((2, 2))
    results = f(x)
    kept = [y.tolist() for y in results]
    x += 5.0
    assert [y.tolist() for y in results] == kept
    again = f(x)
    assert [y.tolist() for y in results] == kept and again[0].tolist() == [6.0] * 4


def test_a_value_read_before_an_update_stays():
    def f(x):
        before = x
        view = x[0]
        x += 1.0
        return before, view, x * 1.0

    g = wg.compile(f)
    for _ in range(2):
        x, z = array(3), array(3)
        for a, b in zip(g(x), f(z), strict=True):
            same(a, b)
        same(x, z)


def test_writes_by_index():
    def f(x, i):
        x[i] = x[i] * 2 + 1
        x[1:3, ::2] = x[1:3, 1::2]
        return x.sum()

    g = wg.compile(f)
    index = wg.asarray([0, 2, 2])
    for seed in range(3):
        x, z = array(4, 6, seed=seed), array(4, 6, seed=seed)
        same(g(x, index), f(z, index))
        same(x, z)
    assert g.traces == 1


# What capture cannot follow.


REFUSED = {
    "if": lambda x: x if x.sum() > 0 else -x,
    "while": lambda x: [x for _ in iter(lambda: bool(x.sum() > 0), False)],
    "float": lambda x: x * float(x.sum()),
    "int": lambda x: x[int(x.sum())],
    "item": lambda x: x * x.sum().item(),
    "tolist": lambda x: x.tolist(),
    "numpy": lambda x: wg.asarray(x.numpy()),
    "asarray": lambda x: wg.asarray(np.asarray(x)),
    "range": lambda x: [x for _ in range(x.astype(wg.int64)[0])],
    "mask": lambda x: x[x > 0],
    "nonzero": lambda x: wg.nonzero(x),
    "print": lambda x: print(x),
    "format": lambda x: f"{x.sum():.3f}",
}


def test_binding_a_variable_to_a_traced_tensor_is_refused():
    total, calls = wg.tensor(0.0), []

    @wg.compile
    def f(x):
        nonlocal total
        total = total + x
        return total * 1

    before = total
    for _ in range(2):
        with pytest.raises(wg.CaptureError, match=r"bound to another tensor.*in place"):
            f(wg.tensor(1.0))
        assert total is before and total.item() == 0.0

    @wg.compile
    def fails(x):
        nonlocal total
        total = x * 2
        raise KeyError

    with pytest.raises(KeyError):
        fails(wg.tensor(1.0))
    assert total is before

    @wg.compile
    def counted(x):
        calls.append(x.shape)
        return x

    with wg.config(check=False):  # a checked function is traced again
        for _ in range(3):
            counted(wg.ones(1))
    assert len(calls) == counted.traces == 1, "Python runs in the trace"


@pytest.mark.parametrize("name", REFUSED)
def test_python_that_needs_data_is_refused_at_its_line(name):
    f = wg.compile(REFUSED[name])
    with pytest.raises(wg.CaptureError, match=r"test_capture_updates\.py:\d+"):
        f(wg.ones(3))
    assert f.traces == 0
    assert (wg.ones(2) + 1).tolist() == [2.0, 2.0]


def test_a_failed_trace_keeps_nothing():
    f = wg.compile(lambda x: x.item())
    before = live()
    with pytest.raises(wg.CaptureError):
        f(wg.ones(3))
    assert live() == before


def test_escaped_tracers_are_refused():
    kept = []
    f = wg.compile(lambda x: (kept.append(x * 2), x)[1])
    f(wg.ones(3))
    for use in (
        lambda t: t + 1,
        lambda t: t.tolist(),
        lambda t: wg.ones(3) * t,
        lambda t: t.sum().item(),
        lambda t: wg.compile(lambda y: y + t)(wg.ones(3)),
        lambda t: wg.compile(lambda y: y * 2)(t),
        lambda t: np.asarray(t),
    ):
        with pytest.raises(wg.CaptureError):
            use(kept[0])
    with pytest.raises(wg.CaptureError):
        kept[0] += 1.0


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt, wg.ShapeError])
def test_an_exception_in_the_function_leaves_nothing(error):
    w = wg.tensor([1.0, 2.0], requires_grad=True)
    state, fail = wg.zeros(2), True

    @wg.compile
    def f(x):
        state.__iadd__(x)
        (w * x).sum().backward()
        wg.random.normal(2)
        if fail:
            raise error("stop")
        return state * 1.0

    x, random = wg.ones(2), wg.random.get_state()
    with pytest.raises(error):
        f(x)
    assert state.tolist() == [0.0, 0.0] and w.grad is None and x.tolist() == [1.0, 1.0]
    assert wg.random.get_state() == random and f.traces == 0
    fail = False
    assert f(x).tolist() == [1.0, 1.0] and w.grad.tolist() == [1.0, 1.0]


def test_an_error_of_shapes_is_raised_where_it_is_written():
    f = wg.compile(lambda x, y: x @ y)
    with pytest.raises(wg.ShapeError, match="matmul"):
        f(wg.ones((2, 3)), wg.ones((4, 5)))
    assert f(wg.ones((2, 3)), wg.ones((3, 5))).shape == (2, 5)


def test_an_index_out_of_range_is_raised_when_it_runs_and_changes_nothing():
    w = wg.zeros(4)

    @wg.compile
    def f(i):
        nonlocal w
        w += 1.0
        return w[i]

    assert f(wg.asarray([0, 3])).tolist() == [1.0, 1.0]
    with pytest.raises(IndexError, match=r"(?s)9|index"):
        f(wg.asarray([0, 9]))
    assert w.tolist() == [1.0] * 4, "all or nothing"
    assert f(wg.asarray([1, 2])).tolist() == [2.0, 2.0]


class Counter:
    n = 0

    def __init__(self):
        self.n = 1


def rebindings():
    """Functions that change a number outside: the number's name in messages, and its value."""
    n = 1

    def closure(x):
        nonlocal n
        n += 1
        return x * n

    def closure_inside(x):
        def inner():
            nonlocal n
            n += 1

        inner()
        return x

    def deletion(x):
        nonlocal n
        del n
        return x

    text = "def f(x):\n    global k\n    k {} 1\n    return x * 2\n"
    exec(text.format("+="), rebound := {"k": 1})
    exec(text.format("="), made := {})
    attribute, entry, item = Counter(), {"n": 1}, [1]

    def set_attribute(x):
        attribute.n += 1
        return x * attribute.n

    def set_entry(x):
        entry["n"] += 1
        return x * entry["n"]

    def set_item(x):
        item[0] += 1
        return x * item[0]

    def taken(x):
        return x * item.pop()

    class Method(Counter):
        def f(self, x):
            self.n += 1
            return x * self.n

    method = Method()
    return {
        "a variable of the closure": (closure, "n", lambda: n),
        "the same in a function inside": (closure_inside, "n", lambda: n),
        "deleted": (deletion, "n", lambda: n),
        "a global": (rebound["f"], "k", lambda: rebound["k"]),
        "a global that is not there yet": (made["f"], "k", lambda: made.get("k", 1)),
        "an attribute": (set_attribute, r"attribute\.n", lambda: attribute.n),
        "an entry": (set_entry, r"entry\['n'\]", lambda: entry["n"]),
        "an item": (set_item, r"item\[0\]", lambda: item[0]),
        "an item that is taken": (taken, r"item\[0\]", lambda: item[0]),
        "an attribute of self": (method.f, r"Method\.n", lambda: method.n),
    }


@pytest.mark.parametrize("name", rebindings())
def test_a_number_outside_that_is_changed_is_refused_by_name(name):
    function, where, value = rebindings()[name]
    f = wg.compile(function)
    for _ in range(2):
        with pytest.raises(wg.CaptureError, match=f"while it is captured, {where} is changed"):
            f(wg.ones(2))
        assert value() == 1, "put back"
    assert f.traces == 0


def test_what_is_made_when_first_needed_and_notes_are_no_changes():
    table, notes, flags = None, [], {}

    @wg.compile
    def f(x):
        nonlocal table
        if table is None:
            table = {"scale": (1, 2)}.items()
        notes.append(x.shape)
        flags["seen"] = 1
        return x * 2

    with wg.config(check=False):
        for _ in range(3):
            f(wg.ones(2))
    assert len(notes) == 1 and flags == {"seen": 1} and table is not None
