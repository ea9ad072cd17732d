"""Words of other libraries: errors for unknown names say ours, from one table."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest

import wengert as wg
from wengert import _words, nn, optim

HOMES = {
    "Tensor": wg.ones(2), "": wg, "nn": nn, "optim": optim, "random": wg.random,
    "linalg": wg.linalg, "fft": wg.fft, "special": wg.special, "distributions": wg.distributions,
}  # fmt: skip
ROWS = [(home, word) for home in HOMES for word in _words.words_of(home)]


@pytest.mark.parametrize(("home", "word"), ROWS)
def test_a_foreign_word_is_no_name_and_its_remedy_exists(home, word):
    thing = HOMES[home]
    remedy = _words.words_of(home)[word]
    if home == "Tensor" and "wengert.compat.v1" in sys.modules and hasattr(wg.Tensor, word):
        assert word in ("eval", "get_shape")  # methods of TensorFlow's, which that module gives
        return
    with pytest.raises(AttributeError) as error:
        getattr(thing, word)
    assert repr(word) in str(error.value) and str(error.value).endswith(f": use {remedy}")
    assert not hasattr(thing, word) and word not in dir(thing)
    named = re.findall(r"\b(wg|x|copy)((?:\.\w+)+)", remedy)
    for root, path in named:
        found = {"wg": wg, "x": HOMES["Tensor"], "copy": __import__("copy")}[root]
        for part in path.strip(".").split("."):
            found = getattr(found, part)
    known = ("x[", "x +", "x -=", "x *=", "x /=", "x **=", "nothing:", "dtype=")
    assert (
        named
        or remedy.startswith((*known, "wengert.compat.v1"))
        or "the functions of wg.nn" in remedy
    )


@pytest.mark.parametrize("home", HOMES)
def test_any_other_name_is_unknown_without_a_remedy(home):
    with pytest.raises(AttributeError, match=r"has no attribute 'frobnicate'$"):
        HOMES[home].frobnicate


def test_words_do_not_stand_in_the_way_of_subclasses():
    class Mine(wg.Tensor):
        def view(self):
            return "mine"

    x = Mine(wg.ones(2))
    x.data = 3
    assert x.view() == "mine" and x.data == 3 and "view" in dir(x) and "clone" not in dir(x)


ARRAY = np.asarray([1.0, 2.0], np.float32)


@pytest.mark.parametrize("name", ["mean", "sum", "max", "min", "std", "var", "any", "all", "prod"])
def test_methods_that_are_called_as_numpy_calls_them_say_what_to_call(name):
    with pytest.raises(TypeError, match=rf"use wg\.{name}\(x\), or hand them x\.numpy\(\)"):
        getattr(wg.tensor(ARRAY), name)(axis=None, dtype=None, out=None)


OPERATORS = ["+", "-", "*", "/", "//", "%", "**", "@", "==", "!=", "<", "<=", ">", ">="]


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("left", [ARRAY, np.float64(1.5)], ids=["array", "scalar"])
def test_an_operator_beside_an_array_is_the_tensors(operator, left):
    if operator == "@" and left.ndim == 0:
        return
    x = wg.tensor([2.0, 0.5])
    got = eval(f"left {operator} x", {"left": left, "x": x})
    assert isinstance(got, wg.Tensor)
    want = eval(f"left {operator} x", {"left": left, "x": x.numpy()})
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-6)


def test_integer_operators_beside_an_array_are_the_tensors():
    left, x = np.asarray([12, 10]), wg.tensor([3, 6])
    for operator in ("&", "|", "^", "<<", ">>"):
        got = eval(f"left {operator} x", {"left": left, "x": x})
        assert isinstance(got, wg.Tensor)
        assert got.tolist() == eval(f"left {operator} x", {"left": left, "x": x.numpy()}).tolist()


@pytest.mark.parametrize("operator", ["+=", "-=", "*=", "/=", "//=", "%=", "**=", "@="])
def test_an_operator_in_place_updates_the_array(operator):
    x = wg.tensor([[2.0, 0.5], [3.0, 1.0]])
    array, want = (np.asarray([[1.0, 4.0], [2.0, 3.0]], np.float32) for _ in range(2))
    names = {"array": array, "want": want, "x": x}
    exec(f"array {operator} x\nwant {operator} x.numpy()", names)
    assert names["array"] is array
    np.testing.assert_array_equal(array, want)


def test_an_operator_in_place_refuses_what_the_array_cannot_hold():
    array = np.asarray([1, 2])
    for x in (wg.tensor([0.5, 0.5]), wg.ones(3), wg.ones(2, dtype=wg.bfloat16)):
        with pytest.raises((TypeError, ValueError)):
            array += x
    with pytest.raises(wg.CaptureError):
        wg.compile(lambda x: array.__iadd__(x))(wg.ones(2, dtype=wg.int64))
    assert array.tolist() == [1, 2]


def test_the_type_checkers_allow_list_has_the_words_of_tensors():
    text = (Path(__file__).parent.parent / "tools" / "stubtest-allowlist.txt").read_text()
    assert f"Tensor\\.({'|'.join(sorted(_words.words_of('Tensor')))})\n" in text


def test_a_tensor_of_another_graph_is_named_with_its_line():
    first, second = wg.Graph(), wg.Graph()
    with first:
        a = wg.placeholder("a", (3,))
        y = a * 2.0
    with second:
        b = wg.placeholder("b", (3,))
        z = b * 2.0
    session, x = wg.Session(first), wg.ones(3)
    calls = [
        (lambda: session.run(z, {a: x}), "made at .*test_words.py"),
        (lambda: session.run(y, {b: x}), "made at .*test_words.py"),
        (lambda: first.function([b], y), "made at .*test_words.py"),
        (lambda: first.function([a], z), "made at .*test_words.py"),
        (lambda: session.run(second.nodes[0], {a: x}), "made at .*test_words.py"),
    ]
    for call, want in calls:
        with pytest.raises(wg.GraphError, match=rf"(?s)belongs to another graph.*{want}"):
            call()
    with first, pytest.raises(wg.GraphError, match=r"different graphs.*test_words\.py:\d+$"):
        a + z


def test_a_hook_that_changes_the_type_is_a_hook():
    for make, wrong, kind in [
        (lambda x: x * 2.0, lambda g: wg.ones(3), wg.ShapeError),
        (lambda x: x * 2.0, lambda g: g.astype(wg.float64), wg.DTypeError),
        (lambda x: x, lambda g: wg.ones(3), wg.ShapeError),
        (lambda x: x, lambda g: wg.ones(()), wg.ShapeError),
    ]:
        x = wg.tensor([1.0, 2.0], requires_grad=True)
        y = make(x)
        y.register_hook(wrong)
        with pytest.raises(kind, match=r"^register_hook: the hook"):
            y.sum().backward()
        assert x.grad is None


@pytest.mark.parametrize("loss", ["cross_entropy", "nll_loss"])
@pytest.mark.parametrize("label", [7, -1, 3])
def test_a_class_out_of_range_is_a_class(loss, label):
    f, target = getattr(nn, loss), wg.tensor([0, label])
    for logits in (wg.ones((2, 3)), wg.ones((2, 3), requires_grad=True)):
        for weight in (None, wg.ones(3)):
            for _ in range(3):  # by a plan from the second time on
                with pytest.raises(IndexError, match=f"^{loss}: class {label} .* 3 classes$"):
                    f(logits, target, weight)


def test_classes_as_floats_are_a_matter_of_the_dtype():
    with pytest.raises(wg.DTypeError, match=r"class indices are integers.*float32.*astype"):
        nn.cross_entropy(wg.ones((2, 3)), wg.tensor([0.0, 1.0]))
    with pytest.raises(wg.ShapeError, match="the shape of target differs"):
        nn.cross_entropy(wg.ones((2, 3)), wg.ones((2, 4)))


NOT_CAST = [
    lambda: wg.arange(3)[wg.tensor([0.5])],
    lambda: wg.take(wg.arange(3), wg.tensor([0.5])),
    lambda: wg.tensor([1.0]) & wg.tensor([2.0]),
    lambda: wg.random.integers(0, 3, (2,), dtype=wg.float32),
    lambda: wg.iinfo(wg.float32),
    lambda: wg.one_hot(wg.tensor([0.5]), 3),
]


@pytest.mark.parametrize("call", NOT_CAST)
def test_no_cast_is_advised_that_would_not_help(call):
    with pytest.raises(wg.DTypeError, match="dtype float32 of") as error:
        call()
    assert "astype(float32)" not in str(error.value)


COMPLEX = [
    lambda x: wg.asarray(0j),
    lambda x: wg.tensor([1j, 2.0]),
    lambda x: wg.asarray(np.asarray([1j])),
    lambda x: wg.asarray(np.complex64(1j)),
    lambda x: wg.full((2,), 1j),
    lambda x: wg.sin(1j),
    lambda x: wg.zeros(2, dtype=complex),
    lambda x: wg.zeros(2, dtype="complex64"),
    lambda x: x.astype(np.complex128),
    lambda x: x.__setitem__(0, 1j),
    lambda x: wg.full_like(x, 1j),
    lambda x: x == 1j,
    lambda x: 1j != x,  # noqa: SIM300
    lambda x: x < 1j,
    lambda x: 1j * x,
    lambda x: x**1j,
    lambda x: x @ 1j,
    lambda x: x.__iadd__(1j),
]


@pytest.mark.parametrize("call", COMPLEX)
def test_complex_numbers_are_refused_by_name(call):
    x = wg.ones(2)
    with pytest.raises(wg.DTypeError, match="no dtype holds complex numbers") as error:
        call(x)
    assert error.value.code == "no_complex" and x.tolist() == [1.0, 1.0]
