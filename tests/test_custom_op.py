"""Ops of one's own and calls of the host: every op in every mode, rules, effects, refusals."""

import copy
import gc
import pickle
import threading
import traceback
import weakref
from typing import get_args, get_type_hints

import numpy as np
import pytest

import wengert as wg
from wengert import testing

from support import DTYPES

rng = np.random.default_rng(0)


# For tests that count pure calls and traces of rules, which a checked run makes again.
uncounted = wg.config(check=False)

# --- Ops, each with its formula over tensors, to which every mode is held.


@wg.custom_op(infer=lambda x: x)
def cube(x):
    return x**3


@cube.vjp
def _(g, x, y):
    return (3.0 * x * x * g,)


@wg.custom_op(infer=lambda x: x)
def through_result(x):
    return np.exp(x)


@through_result.vjp
def _(g, x, y):
    return (g * y,)


@wg.custom_op(infer=lambda x, y: wg.Spec(x.shape, x.dtype))
def mixed(x, y):
    return x * y + y


@mixed.vjp
def _(g, x, y, z):
    return g * y, g * (x + 1.0)


@mixed.jvp
def _(t, x, y, z):
    return t[0] * y + t[1] * (x + 1.0)


@mixed.batch
def _(which, x, y):
    shape = x.shape if which[0] else y.shape
    return mixed(wg.broadcast_to(x, shape), wg.broadcast_to(y, shape))


@wg.custom_op(infer=lambda x: (x, wg.Spec(x.shape[1:], x.dtype), wg.Spec((), wg.int64)))
def several(x):
    return np.tanh(x), x.sum(axis=0), x.size


@several.vjp
def _(g, x, y):
    assert g[2] is None
    return (g[0] * (1.0 - y[0] * y[0]) + g[1],)


@wg.custom_op(infer=lambda x, power: x)
def powers(x, *, power):
    return x**power


@powers.vjp
def _(g, x, y, *, power):
    return (g * power * powers(x, power=power - 1),) if power else (None,)


@wg.custom_op(infer=lambda x: x, effect="ordered")
def ordered(x):
    return np.sin(x)


@ordered.vjp
def _(g, x, y):
    return (g * wg.cos(x),)


CASES = {
    "cube": (cube, lambda x: x * x * x),
    "through its result": (through_result, wg.exp),
    "two operands": (lambda x: mixed(x, x * 2.0), lambda x: x * (x * 2.0) + x * 2.0),
    "some of several results": (lambda x: several(x)[1] * 2.0, lambda x: x.sum(axis=0) * 2.0),
    "several results": (
        lambda x: several(x)[0] * several(x)[1] * several(x)[2],
        lambda x: wg.tanh(x) * x.sum(axis=0) * 6.0,
    ),
    "an attribute": (lambda x: powers(x, power=4), lambda x: x * x * x * x),
    "ordered": (ordered, wg.sin),
    "one op in another's operand": (lambda x: cube(through_result(x)), lambda x: wg.exp(x * 3.0)),
}


def total(f):
    return lambda x: (f(x) * 0.5).sum()


def in_session(f):
    def run(x):
        with wg.Graph() as graph:
            p = wg.placeholder("p", (None, 3), wg.float64)
            y = f(p)
        with wg.Session(graph) as session:
            return session.run(y, {p: x})

    return run


def in_scan(f):
    return lambda x: wg.scan(lambda c, row: (c, f(row)), wg.zeros(()), x[None])[1][0]


def in_while(f):
    def run(x):
        start = (wg.tensor(0), x, wg.zeros_like(f(x)))
        return wg.while_loop(lambda i, x, y: i < 1, lambda i, x, y: (i + 1, x, f(x)), start)[2]

    return run


def in_cond(f):
    return lambda x: wg.cond(x.sum() < 1e9, f, lambda x: f(x) * 0.0, x)


def mapped(f):
    return lambda x: wg.vmap(f)(wg.stack([x, x + 1.0]))[0]


MODES = {
    "eager": lambda f: f,
    "compiled": wg.compile,
    "scan": in_scan,
    "compiled scan": lambda f: wg.compile(in_scan(f)),
    "compiled while_loop": lambda f: wg.compile(in_while(f)),
    "compiled cond": lambda f: wg.compile(in_cond(f)),
    "vmap": mapped,
    "compiled vmap": lambda f: wg.compile(mapped(f)),
}
# What is taken of the case: its value, and derivatives in each direction, of each order.
TAKEN = {
    "value": lambda f: f,
    "grad": lambda f: wg.grad(total(f)),
    "grad of grad": lambda f: wg.grad(lambda x: (wg.grad(total(f))(x) ** 2).sum()),
    "jvp": lambda f: lambda x: wg.jvp(f, (x,), (x * 0.5 + 1.0,))[1],
    "grad of jvp": lambda f: wg.grad(lambda x: wg.jvp(total(f), (x,), (x,))[1]),
    "jvp of grad": lambda f: lambda x: wg.jvp(wg.grad(total(f)), (x,), (wg.ones_like(x),))[1],
    "jacobian": wg.jacobian,
}
X = rng.standard_normal((2, 3))


def tensor(**options):
    return wg.tensor(X, **options)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("taken", TAKEN)
@pytest.mark.parametrize("case", CASES)
def test_every_mode_computes_what_the_formula_says(case, taken, mode):
    op, formula = CASES[case]
    got = TAKEN[taken](MODES[mode](op))(tensor())
    want = TAKEN[taken](formula)(tensor())
    np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("taken", TAKEN)
@pytest.mark.parametrize("case", CASES)
def test_derivatives_are_captured_as_a_whole(case, taken):
    op, formula = CASES[case]
    got = wg.compile(TAKEN[taken](op))(tensor())
    want = TAKEN[taken](formula)(tensor())
    np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("taken", ["value", "grad", "grad of grad"])
@pytest.mark.parametrize("case", CASES)
def test_sessions_compute_the_same(case, taken):
    op, formula = CASES[case]
    got = in_session(TAKEN[taken](op))(X)
    want = TAKEN[taken](formula)(tensor())
    np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("case", CASES)
def test_the_tape_records_a_call(case):
    op, formula = CASES[case]
    grads = []
    for f in (op, formula):
        x = tensor(requires_grad=True)
        y = f(x)
        (y * y).sum().backward(retain_graph=True)
        (y * 2.0).sum().backward()
        if f is op:
            with pytest.raises(wg.GradientError, match="freed by an earlier backward"):
                y.sum().backward()
        grads.append(x.grad.numpy())
    np.testing.assert_allclose(*grads, rtol=1e-10)


@pytest.mark.parametrize("case", CASES)
def test_gradients_agree_with_differences(case):
    assert testing.gradcheck(CASES[case][0], tensor(requires_grad=True))
    assert testing.gradgradcheck(CASES[case][0], tensor(requires_grad=True))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("taken", ["value", "grad"])
@pytest.mark.parametrize("mode", ["eager", "compiled", "compiled scan"])
def test_another_device_sends_operands_to_the_host(case, taken, mode):
    device = wg.device("reference")
    f = TAKEN[taken](MODES[mode](CASES[case][0]))
    with wg.default_device(device):
        got = f(tensor())
    assert got.device == device
    np.testing.assert_allclose(
        got.to("cpu").numpy(), f(tensor(device="cpu")).numpy(), rtol=1e-12, atol=1e-14
    )


def test_runs_are_checked_against_their_list():
    with wg.config(check=True):
        for name in CASES:
            f = wg.compile(CASES[name][0])
            np.testing.assert_array_equal(f(tensor()).numpy(), f(tensor()).numpy())


@uncounted
def test_sizes_may_stay_open():
    sizes = []

    @wg.custom_op(infer=lambda x: wg.Spec((x.shape[0] * 2,), x.dtype))
    def twice(x):
        return np.concatenate([x, x])

    @twice.vjp
    def _(g, x, y):
        sizes.append(x.shape)
        n = x.shape[0]
        return (g[:n] + g[n:],)

    f = wg.compile(lambda x: (twice(x) * wg.arange(2 * x.shape[0])).sum())
    for n in range(2, 9):
        x = wg.ones(n, requires_grad=True)
        f(x).backward()
        np.testing.assert_allclose(x.grad.numpy(), np.arange(n) * 2.0 + n)
    assert len(sizes) <= 3 and "2 traces" in repr(f)


# --- What the code gets and gives.


@pytest.mark.parametrize("dtype", [name for name in DTYPES if name != "bfloat16"])
def test_code_gets_arrays_of_the_operands_dtype(dtype):
    seen = []

    @wg.custom_op(infer=lambda x: x)
    def same(x):
        seen.append(x)
        return x

    x = wg.tensor(np.arange(6).reshape(2, 3) % 2, dtype=getattr(wg, dtype))
    for f in (same, wg.compile(lambda x: same(x.mT).mT)):
        y = f(x)
        assert y.dtype == x.dtype
        np.testing.assert_array_equal(y.numpy(), x.numpy())
    assert all(isinstance(a, np.ndarray) and str(a.dtype) == dtype for a in seen)


def test_arrays_are_the_codes_own():
    kept = []

    @wg.custom_op(infer=lambda x: x)
    def spoils(x):
        kept.append(x)
        x += 1.0
        return x

    x = wg.zeros(3)
    f = wg.compile(lambda x: spoils(x * 1.0) + spoils(x * 2.0))
    for y in (spoils(x) * 2.0, f(x), f(x)):
        assert y.tolist() == [2.0] * 3
    results = [a.copy() for a in kept]
    for a in kept:
        a += 100.0
    assert x.tolist() == [0.0] * 3 and y.tolist() == [2.0] * 3
    assert all((a == 1.0).all() for a in results)


def test_numbers_that_code_returns_take_the_wanted_dtype():
    @wg.custom_op(infer=lambda x: wg.Spec((), x.dtype))
    def half(x):
        return 0.5

    for dtype in (wg.float16, wg.float32, wg.float64):
        y = half(wg.ones(2, dtype=dtype))
        assert y.dtype == dtype and y.item() == 0.5


def test_numbers_and_arrays_are_operands():
    assert cube(2.0).item() == 8.0
    assert cube(np.array([1.0, 2.0])).tolist() == [1.0, 8.0]
    assert cube([1.0, 2.0]).tolist() == [1.0, 8.0]


@uncounted
def test_attributes_are_told_apart_exactly():
    seen = []

    @wg.custom_op(infer=lambda x: x)
    def noted(x, *, a=None):
        seen.append(a)
        return x

    x = wg.ones(1)
    given = [1, 1.0, True, "1", (1,), (1.0,), 0.0, -0.0, None, frozenset({1})]
    f = wg.compile(lambda x: [noted(x, a=a) for a in given])
    f(x)
    assert len(seen) == len(given)
    assert {repr(a) for a in seen} == {repr(a) for a in given}
    f(x)
    assert len(seen) == 2 * len(given)


def test_a_changed_attribute_is_another_signature():
    f = wg.compile(lambda x, k: powers(x, power=k))
    for k in (2, 3, 2, 4.0):
        np.testing.assert_allclose(f(tensor(), k).numpy(), X**k)


REFUSED = {
    "shape": (lambda x: x[:1], wg.ShapeError, r"lies: .*wanted \(4,\), got \(1,\)"),
    "rank": (lambda x: x[None], wg.ShapeError, r"wanted \(4,\), got \(1, 4\)"),
    "dtype": (lambda x: x.astype("d"), wg.DTypeError, "lies: .*got float64.*wanted float32"),
    "count": (lambda x: (x, x), ValueError, "lies: .*got 2, wanted 1"),
    "nothing": (lambda x: None, TypeError, "lies: .*NoneType"),
    "objects": (lambda x: np.array([object()] * 4), TypeError, "lies: "),
    "complex numbers": (lambda x: x.astype("complex64"), wg.DTypeError, "complex"),
    "text": (lambda x: np.array(["a"] * 4), TypeError, "lies: "),
}


@pytest.mark.parametrize("mode", ["eager", "compiled", "compiled scan", "vmap"])
@pytest.mark.parametrize("what", REFUSED)
def test_results_that_differ_from_the_type_rule_are_refused(what, mode):
    code, error, match = REFUSED[what]

    @wg.custom_op(infer=lambda x: x)
    def lies(x):
        return code(x)

    f = MODES[mode](lies)
    with pytest.raises(error, match=match):
        f(wg.ones(4))


RULES = {
    "None": (lambda x: None, TypeError, "bad: the type rule returned NoneType"),
    "a tensor": (lambda x: wg.ones(3), TypeError, "bad: the type rule returned Tensor"),
    "an open size": (lambda x: wg.Spec((None,)), ValueError, "bad: .*every size"),
    "bfloat16": (lambda x: wg.Spec((3,), wg.bfloat16), wg.DTypeError, "bad: .*bfloat16"),
}


@pytest.mark.parametrize("what", RULES)
def test_type_rules_that_tell_no_types_are_refused(what):
    infer, error, match = RULES[what]
    op = wg.custom_op(infer=infer, name="bad")(lambda x: x)
    for f in (op, wg.compile(lambda x: op(x))):
        with pytest.raises(error, match=match):
            f(wg.ones(3))


OPERANDS = {
    "a dtype that NumPy lacks": (
        lambda: cube(wg.ones(2, dtype=wg.bfloat16)), wg.DTypeError, "cube: dtype bfloat16"),
    "text": (lambda: cube("a"), TypeError, "cube: operand 0 is str"),
    "two devices": (
        lambda: mixed(wg.ones(2), wg.ones(2, device="reference")), wg.DeviceError, "mixed: "),
    "an unhashable attribute": (
        lambda: powers(wg.ones(2), power=[1]), TypeError, "powers: .*hashable.*list"),
    "a tensor as an attribute": (
        lambda: powers(wg.ones(2), power=wg.ones(2)), TypeError, "powers: .*position"),
    "an unknown attribute": (
        lambda: cube(wg.ones(2), power=2), TypeError, "cube: .*no attribute power"),
    "what cannot be called": (lambda: wg.host_call(3, wg.ones(2)), TypeError, "host_call: .*int"),
    "a type rule that cannot be called": (
        lambda: wg.custom_op(infer=3)(lambda x: x), TypeError, "type rule, got int"),
    "an unknown effect": (
        lambda: wg.custom_op(infer=lambda x: x, effect="none"), ValueError, '"ordered".*none'),
}


def test_the_classes_of_effects_are_those_of_the_engine():
    words = get_args(get_type_hints(wg.custom_op)["effect"])
    with pytest.raises(ValueError, match=" or ".join(f'"{word}"' for word in words) + ": got"):
        wg.custom_op(infer=lambda x: x, effect="none")


@pytest.mark.parametrize("what", OPERANDS)
def test_calls_that_mean_nothing_are_refused(what):
    call, error, match = OPERANDS[what]
    with pytest.raises(error, match=match):
        call()


# --- Rules.


def without_rule():
    return wg.custom_op(infer=lambda x: x, name="plain")(lambda x: x)


@pytest.mark.parametrize(
    "use",
    [
        lambda op, x: wg.grad(lambda x: op(x).sum())(x),
        lambda op, x: wg.compile(wg.grad(lambda x: op(x).sum()))(x),
        lambda op, x: wg.grad(in_scan(op))(x),
        lambda op, x: wg.compile(wg.grad(lambda x: in_scan(op)(x).sum()))(x),
        lambda op, x: wg.jvp(op, (x,), (x,)),
        lambda op, x: wg.jacobian(op)(x),
        lambda op, x: in_session(lambda p: wg.gradients(op(p).sum(), [p])[0])(X),
    ],
)
def test_without_a_gradient_rule_the_op_is_named(use):
    with pytest.raises(wg.GradientError, match=r"plain: .*no gradient rule.*@plain.vjp"):
        use(without_rule(), wg.tensor(X))


def test_without_a_gradient_rule_other_calls_work():
    op, x = without_rule(), tensor(requires_grad=True)
    assert not op(x.detach()).requires_grad
    with wg.no_grad():
        np.testing.assert_array_equal(op(x).numpy(), X)
    np.testing.assert_array_equal(wg.compile(op)(x.detach()).numpy(), X)


BAD_RULES = {
    "count": (lambda g, x, y: (g, g), wg.GradientError, "op.vjp: .*2 values for 1 operands"),
    "shape": (lambda g, x, y: (g.sum(),), wg.ShapeError, r"op.vjp: .*got \(\), wanted \(2, 3\)"),
    "a number": (lambda g, x, y: (1.0,), TypeError, "op.vjp: .*float"),
    "an int tensor": (
        lambda g, x, y: (g.astype(wg.int64),), wg.DTypeError, "op.vjp: .*int64"),
}


@pytest.mark.parametrize("what", BAD_RULES)
@pytest.mark.parametrize("mode", ["eager", "compiled", "compiled scan"])
def test_cotangents_that_fit_no_operand_are_refused(what, mode):
    rule, error, match = BAD_RULES[what]
    op = wg.custom_op(infer=lambda x: x, vjp=rule, name="op")(lambda x: x)
    with pytest.raises(error, match=match):
        wg.grad(total(MODES[mode](op)))(wg.tensor(X))


def test_an_operand_without_a_cotangent_has_none():
    op = wg.custom_op(infer=lambda x, y: x, vjp=lambda g, x, y, z: (g, None))(lambda x, y: x + y)
    for f in (op, wg.compile(op)):
        g = wg.grad(lambda x, y: f(x, y).sum(), argnums=(0, 1))(tensor(), tensor())
        assert (g[0].numpy() == 1).all() and (g[1].numpy() == 0).all()


def test_cotangents_take_the_operands_dtype():
    op = wg.custom_op(
        infer=lambda x: wg.Spec(x.shape, wg.float64), vjp=lambda g, x, y: (g * 2.0,)
    )(lambda x: x.astype("d") * 2)
    for f in (op, wg.compile(op)):
        g = wg.grad(lambda x: f(x).sum())(wg.ones(2, dtype=wg.float16))
        assert g.dtype == wg.float16 and g.tolist() == [2.0, 2.0]


def test_a_rule_is_traced_once_for_types():
    calls = []

    @wg.custom_op(infer=lambda x: x)
    def op(x):
        return x * 2

    @op.vjp
    def _(g, x, y):
        calls.append(tuple(x.shape))
        return (g * 2.0,)

    for n in (2, 2, 3, 2, 3):
        wg.grad(lambda x: op(x).sum())(wg.ones(n))
    assert calls == [(2,), (3,)]
    op.vjp(lambda g, x, y: (g * 5.0,))
    assert wg.grad(lambda x: op(x).sum())(wg.ones(2)).tolist() == [5.0, 5.0]


def test_a_rule_may_read_a_tensor_outside_where_it_is_called_at_once():
    scale = wg.tensor(2.0)
    op = wg.custom_op(infer=lambda x: x, vjp=lambda g, x, y: (g * scale,), name="scales")(
        lambda x: x * 2
    )
    compiled = wg.compile(wg.grad(lambda x: op(x).sum()))
    for value in (2.0, 3.0):
        scale[...] = value
        assert wg.grad(lambda x: op(x).sum())(wg.ones(2)).tolist() == [value] * 2
        assert compiled(wg.ones(2)).tolist() == [value] * 2
    with pytest.raises(wg.GradientError, match="scales: its vjp rule reads a tensor outside"):
        wg.jvp(op, (wg.ones(2),), (wg.ones(2),))


def test_a_rule_may_not_write_outside():
    state = wg.zeros(2)

    def rule(g, x, y):
        state[...] = g
        return (g,)

    op = wg.custom_op(infer=lambda x: x, vjp=rule)(lambda x: x)
    with pytest.raises(wg.CaptureError, match="updates a tensor outside"):
        wg.grad(lambda x: op(x).sum())(wg.ones(2))
    assert state.tolist() == [0.0, 0.0]


@uncounted
def test_examples_are_called_one_by_one_without_a_rule_and_at_once_with_one():
    shapes = []

    @wg.custom_op(infer=lambda x, y: x)
    def op(x, y):
        shapes.append(x.shape)
        return x + y

    x, y = wg.ones((4, 3)), wg.ones(3)
    assert wg.vmap(op, in_axes=(0, None))(x, y).tolist() == [[2.0] * 3] * 4
    assert shapes == [(3,)] * 4
    shapes.clear()
    op.batch(lambda mapped, x, y: op(x, wg.broadcast_to(y, x.shape)))
    assert wg.vmap(op, in_axes=(0, None))(x, y).tolist() == [[2.0] * 3] * 4
    assert shapes == [(4, 3)]


def test_batches_nest_and_take_any_axis():
    x = wg.tensor(rng.standard_normal((2, 3, 4)))
    want = x.numpy() ** 3
    for f in (wg.vmap(wg.vmap(cube)), wg.vmap(cube, in_axes=1, out_axes=1)):
        np.testing.assert_allclose(f(x).numpy(), want)
        np.testing.assert_allclose(wg.compile(f)(x).numpy(), want)


# --- Effects.


def counted(effect):
    calls = []

    @wg.custom_op(infer=lambda x: x, effect=effect)
    def op(x, *, name="op"):
        calls.append(name)
        return x + 1

    return op, calls


def twice_and_unused(op):
    def f(x):
        op(x * 2.0, name="unused")
        return op(x, name="same") + op(x, name="same")

    return f


@uncounted
def test_pure_calls_are_merged_and_dropped():
    op, calls = counted("pure")
    wg.compile(twice_and_unused(op))(wg.ones(2))
    assert calls == ["same"]


@pytest.mark.parametrize("effect", ["ordered", "collective"])
def test_other_calls_happen_once_each_in_order(effect):
    op, calls = counted(effect)
    f = wg.compile(twice_and_unused(op))
    for _ in range(2):
        calls.clear()
        f(wg.ones(2))
        assert calls == ["unused", "same", "same"]


def test_calls_of_all_kinds_keep_one_order():
    op, calls = counted("ordered")

    @wg.compile
    def f(x):
        wg.host_call(lambda x: calls.append("first"), x * 3.0)
        y = op(x, name="second")
        wg.host_call(lambda y: calls.append("third"), x)
        _, ys = wg.scan(lambda c, v: (c, op(v, name="round")), wg.zeros(()), x)
        wg.host_call(lambda: calls.append("last"))
        return y + ys

    f(wg.ones(3))
    assert calls == ["first", "second", "third", *["round"] * 3, "last"]


def test_the_way_that_is_not_taken_calls_nothing():
    op, calls = counted("ordered")
    f = wg.compile(
        lambda x: wg.cond(x.sum() > 0, lambda x: op(x, name="yes"), lambda x: op(x, name="no"), x)
    )
    f(wg.ones(2))
    f(-wg.ones(2))
    assert calls == ["yes", "no"]


def test_gradients_repeat_no_ordered_call():
    calls = []

    @wg.custom_op(infer=lambda x: x, effect="ordered")
    def op(x):
        calls.append("call")
        return x * x

    op.vjp(lambda g, x, y: (g * 2.0 * x,))

    def scanned(x):
        return wg.scan(lambda c, v: (op(c) * v, None), x[0], x)[0]

    wg.compile(wg.grad(scanned))(wg.ones(3))
    assert len(calls) == 3
    calls.clear()

    def looped(x):
        step = lambda i, x: (i + 1, op(op(x) + 1.0))  # noqa: E731
        return wg.while_loop(lambda i, x: i < 2, step, (wg.tensor(0), x))[1].sum()

    wg.grad(looped)(wg.ones(3))
    assert len(calls) == 4
    calls.clear()
    with pytest.raises(wg.GradientError, match=r"op: the gradient of the loop .* ordered"):
        wg.compile(wg.grad(looped))(wg.ones(3))
    assert calls == []


@pytest.mark.parametrize("mode", ["eager", "compiled"])
def test_exceptions_arrive_as_they_are_and_change_nothing(mode):
    class Mine(Exception):
        pass

    def boom(_):
        raise Mine("from the host")

    bad = wg.custom_op(infer=lambda x: x)(boom)
    for call in (bad, lambda x: wg.host_call(boom, x)):
        w = wg.zeros(2, requires_grad=True)

        def step(x, call=call, w=w):
            y = call(x)
            with wg.no_grad():
                w[...] = w + x
            return y

        state = list(wg.random.get_state())
        f = wg.compile(step) if mode == "compiled" else step
        with pytest.raises(Mine, match="from the host") as caught:
            f(wg.ones(2))
        assert traceback.extract_tb(caught.value.__traceback__)[-1].name == "boom"
        assert w.tolist() == [0.0, 0.0]
        assert list(wg.random.get_state()) == state


def test_a_step_that_fails_late_writes_nothing():
    w = wg.zeros(4, requires_grad=True)
    optimizer = wg.optim.SGD([w], lr=1.0, momentum=0.9)
    fails = [False]

    def look(loss):
        if fails[0]:
            raise ArithmeticError("stop")

    @wg.compile
    def step(x):
        loss = ((w - x) ** 2).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        wg.host_call(look, loss)
        return loss

    x = wg.ones(4)
    step(x)
    before = w.tolist(), w.grad.tolist()
    fails[0] = True
    for _ in range(3):
        with pytest.raises(ArithmeticError):
            step(x)
        assert (w.tolist(), w.grad.tolist()) == before
    fails[0] = False
    step(x)
    assert w.tolist() != before[0]


def test_code_may_use_wengert():
    inner = wg.compile(lambda x: (x * 2.0).sum())
    seen = []

    def look(v):
        x = wg.tensor(v, requires_grad=True)
        (x * x).sum().backward()
        seen.append((x.grad.tolist(), inner(x).item(), wg.zeros(1).device.type))

    @wg.compile
    def f(x):
        with wg.no_grad():
            wg.host_call(look, x)
        return x

    f(wg.ones(2))
    with wg.no_grad():
        f(wg.ones(2))
    f(wg.ones(2, device="reference"))
    assert seen == [([2.0, 2.0], 4.0, "cpu")] * 3


def test_code_that_reads_what_its_own_call_updates_is_told_so():
    w = wg.zeros(2)

    @wg.compile
    def f(x):
        wg.host_call(lambda _: w.tolist(), x)
        w[...] = w + x

    with pytest.raises(wg.CaptureError, match="gives this tensor a new value"):
        f(wg.ones(2))
    assert w.tolist() == [0.0, 0.0]


def test_threads_call_back_while_others_compute():
    seen = []
    f = wg.compile(lambda x: (wg.host_call(lambda v: seen.append(v.item()), x.sum()), x.sin())[1])
    x = wg.ones(1 << 17)

    def work():
        for _ in range(5):
            f(x)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert not any(t.is_alive() for t in threads)
    assert seen == [float(1 << 17)] * 20


def test_examples_call_in_order():
    seen = []

    def f(x):
        wg.host_call(lambda v: seen.append(v.tolist()), x)
        return x * 2.0

    for g in (wg.vmap(f), wg.compile(wg.vmap(f))):
        seen.clear()
        g(wg.tensor([[1.0], [2.0], [3.0]]))
        assert seen == [[1.0], [2.0], [3.0]]


# --- Looking inside, and what is kept.


def test_prints_and_pictures_name_the_op_and_text_refuses_it():
    f = wg.compile(lambda x: cube(x) + several(x)[0])
    f(tensor())
    graph = f.graph(tensor())
    text = str(graph)
    assert 'host("cube", %0, effect="pure") -> (float64 (2, 3))' in text
    assert "cube" in graph.to_dot() and "several" in str(f.explain(tensor()))
    with pytest.raises(wg.GraphError, match=r"no code of an op of the host: (cube|several)"):
        wg.parse_graph(text)
    with wg.profile() as profile:
        f(tensor())
        cube(tensor())
    assert "cube" in str(profile) and "several" in str(profile)
    assert repr(cube) == "<custom op cube, pure>"


def test_files_refuse_code_and_keep_names():
    graph = wg.compile(cube).graph(tensor())
    with pytest.raises(wg.GraphError, match=r"pickle: .* op of the host: cube"):
        pickle.dumps(graph)
    np.testing.assert_array_equal(run_graph(copy.deepcopy, graph), X**3)
    assert pickle.loads(pickle.dumps(cube)) is cube
    model = wg.nn.Sequential(wg.nn.Linear(3, 3))
    model.op = cube
    assert copy.deepcopy(model).op is cube


def run_graph(copied, graph):
    graph = copied(graph)
    with wg.Session(graph) as session:
        return session.run(graph.outputs[0], {graph.inputs[0]: X}).numpy()


def test_a_graph_of_a_compiled_function_outlives_it():
    def make():
        op = wg.custom_op(infer=lambda x: x)(lambda x: x * 3)
        f = wg.compile(lambda x: op(x))
        f(wg.ones(2))
        return f.graph(wg.ones(2))

    graph = make()
    gc.collect()
    with wg.Session(graph) as session:
        got = session.run(graph.outputs[0], {graph.inputs[0]: np.ones(2, "f")})
    assert got.tolist() == [3.0, 3.0]


def test_what_a_call_reaches_is_collected():
    class Model:
        def __init__(self):
            self.op = wg.custom_op(infer=lambda x: x, vjp=lambda g, x, y: (self.op(g),))(
                lambda x: x * self.scale
            )
            self.step = wg.compile(self.run)
            self.seen, self.scale = [], 2

        def run(self, x):
            wg.host_call(lambda v: self.seen.append(v), x)
            return self.op(x).sum()

    model = Model()
    x = wg.ones(2, requires_grad=True)
    model.step(x).backward()
    model.op(x).sum().backward()
    assert x.grad.tolist() == [4.0, 4.0]
    alive = weakref.ref(model)
    del model
    wg.graph_stats()                    # references that were let go without the interpreter
    gc.collect()
    assert alive() is None


def test_nothing_grows_over_many_calls():
    x = wg.ones(8, requires_grad=True)
    f = wg.compile(lambda x: powers(x, power=3).sum())

    def work():
        for k in range(100):
            powers(x, power=k).sum().backward()
            f(x).backward()
        gc.collect()
        stats = wg.memory_stats()["live_bytes"], wg.graph_stats()["nodes"]
        return stats

    work()
    before = work()
    assert work() == before
