"""Ops of one's own: every op in every mode, what its code gets and gives, what is refused of it."""

from typing import get_args, get_type_hints

import numpy as np
import pytest

import wengert as wg
from wengert import testing

from host_ops import CASES, MODES, TAKEN, X, cube, in_session, mixed, powers, tensor, uncounted
from support import DTYPES


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
