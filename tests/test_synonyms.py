"""Other libraries' names for the same thing: of ops, by the table; of arguments, by one rule."""

import inspect
import re

import numpy as np
import pytest

import wengert as wg
from wengert import _words, nn, optim

from support import TABLE, function, label

NAMED = [op for op in TABLE if op["synonyms"]]
A = np.arange(12.0).reshape(3, 4) / 7 + 0.1


@pytest.mark.parametrize("op", NAMED, ids=label)
def test_a_synonym_is_the_same_function_and_method(op):
    home = wg if not op["namespace"] else getattr(wg, op["namespace"])
    for name in op["synonyms"]:
        assert getattr(home, name) is function(op) and name in home.__all__
        assert f"`{name}`" in function(op).__doc__ and name not in _words.words_of(op["namespace"])
        if op["method"]:
            assert getattr(wg.Tensor, name) is getattr(wg.Tensor, op["name"])
            assert name in dir(wg.ones(1)) and name not in _words.words_of("Tensor")


def test_no_name_is_given_twice():
    for space in {op["namespace"] for op in TABLE}:
        ops = [op for op in TABLE if op["namespace"] == space]
        names = [n for op in ops for n in [op["name"], *op["synonyms"]]]
        assert len(names) == len(set(names))


# A call of each synonym that NumPy has too, on the operand that stands for `A`.
CALLS = {
    "absolute": "-A", "arccos": "A / 4", "arccosh": "A + 1", "arcsin": "A / 4", "arcsinh": "A",
    "arctan": "A", "arctan2": "A, A + 1", "arctanh": "A / 4", "concatenate": "[A, A], axis=1",
    "cumsum": "A, axis=1", "cumprod": "A, 0", "degrees": "A", "radians": "A", "fix": "-A * 3",
    "identity": "3", "mod": "A, 0.7", "power": "A, 2.5", "ravel": "A", "true_divide": "A, A + 1",
    "bitwise_not": "A > 1", "invert": "A > 1", "left_shift": "A_INT, 2", "right_shift": "A_INT, 1",
}  # fmt: skip
# The others, by what they mean in PyTorch or TensorFlow.
MEANINGS = {
    "bmm": ("A[None], A.T[None]", "np.matmul"), "mm": ("A, A.T", "np.matmul"),
    "mv": ("A, A[0]", "np.matmul"), "broadcast_tensors": ("A[:, :1], A[:1]", "np.broadcast_arrays"),
    "cat": ("[A, A]", "np.concatenate"), "clamp": ("A, 0.5, 1.0", "np.clip"),
    "div": ("A, 3.0", "np.divide"), "eq": ("A, A.round()", "np.equal"),
    "floordiv": ("A, 0.3", "np.floor_divide"), "ge": ("A, 1", "np.greater_equal"),
    "gt": ("A, 1", "np.greater"), "le": ("A, 1", "np.less_equal"), "lt": ("A, 1", "np.less"),
    "logsigmoid": ("A", "lambda x: -np.log1p(np.exp(-x))"),
    "ne": ("A, A.round()", "np.not_equal"), "movedim": ("A[None], 0, 2", "np.moveaxis"),
    "mul": ("A, A", "np.multiply"), "neg": ("A", "np.negative"),
    "permute": ("A[None], (2, 0, 1)", "np.transpose"), "sgn": ("A - 1", "np.sign"),
    "repeat_interleave": ("A, 2, 1", "np.repeat"), "sub": ("A, 1", "np.subtract"),
    "swapdims": ("A, 0, 1", "np.swapaxes"), "swish": ("A", "lambda x: x / (1 + np.exp(-x))"),
    "unbind": ("A, 1", "lambda x, axis: np.moveaxis(x, axis, 0)"),
    "unsqueeze": ("A, 1", "np.expand_dims"),
}  # fmt: skip


@pytest.mark.parametrize("op", NAMED, ids=label)
def test_a_synonym_means_what_it_means_elsewhere(op):
    home = wg if not op["namespace"] else getattr(wg, op["namespace"])
    for name in op["synonyms"]:
        call, meaning = (CALLS[name], f"np.{name}") if name in CALLS else MEANINGS[name]
        arrays = {"np": np, "A": A, "A_INT": np.arange(12).reshape(3, 4)}
        tensors = {n: wg.asarray(a) for n, a in arrays.items() if n != "np"}
        got = eval(f"home.{name}({call})", {"home": home, **tensors})
        want = eval(f"({meaning})({call})", arrays)
        got = [g.numpy() for g in got] if isinstance(got, tuple) else got.numpy()
        np.testing.assert_allclose(got, want, rtol=1e-12)


# --- arguments

X = wg.asarray(A)
WITH_AXIS = [op for op in TABLE if any(p["name"] == "axis" for p in op["params"])]


def unlike(op):
    """Whether PyTorch's names are refused, because its function gives something else."""
    return op["name"] in ("max", "min", "median", "std", "var", "split")


@pytest.mark.parametrize("op", WITH_AXIS, ids=label)
def test_dim_is_axis_at_every_function(op):
    """Each knows that the axis is given twice, which says that `dim` is another name of it."""
    f, twice = function(op), r"'axis' given twice, also as 'dim'"
    if unlike(op):
        with pytest.raises(TypeError, match=rf"^{op['name']}: argument 'dim' is refused: PyTorch"):
            f(X, dim=0)
        return
    with pytest.raises(TypeError, match=twice):
        f(axis=0, dim=0)
    with pytest.raises(TypeError, match="given twice"):
        f(dim=0, axis=0)


def test_arguments_have_the_names_of_other_libraries():
    for got, want in [
        (X.sum(dim=1, keepdim=True), A.sum(1, keepdims=True)),
        (X.sum(1, keep_dims=True), A.sum(1, keepdims=True)),
        (wg.sum(input=X, dim=(0, 1)), A.sum()),
        (wg.add(input=X, other=1.0), A + 1), (wg.add(x1=X, x2=2.0), A + 2),
        (X.flip(dims=(0, 1)), A[::-1, ::-1]), (X[None].permute(dims=(2, 0, 1)), A.T[:, None]),
        (X.flatten(start_dim=0, end_dim=1), A.ravel()),
        (wg.cat(tensors=[X, X], dim=1), np.hstack([A, A])),
        (X.diagonal(dim1=1, dim2=0), A.T.diagonal()), (wg.tensordot(X, X, dims=2), (A * A).sum()),
        (nn.log_softmax(X, dim=0).sum(dim=0), A.sum(0) - 3 * np.log(np.exp(A).sum(0))),
        (X.std(dim=1, correction=1), A.std(1, ddof=1)), (X.var(dim=0, correction=0), A.var(0)),
    ]:  # fmt: skip
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-12)


def test_what_gives_something_else_in_pytorch_is_refused_with_the_word():
    for call, want in [
        (lambda: X.max(dim=0), "argmax"), (lambda: wg.min(X, dim=0), "argmin"),
        (lambda: X.median(dim=0, keepdim=True), "values and indices"),
        (lambda: X.std(dim=0), "correction=1"), (lambda: X.var(keepdim=True), "correction=1"),
        (lambda: wg.split(X, 2, dim=1), "chunk"),
    ]:  # fmt: skip
        with pytest.raises(TypeError, match=f"is refused: PyTorch.*{want}"):
            call()
    assert X.max(axis=0).shape == (4,) and X.std(axis=0, keepdims=True).shape == (1, 4)


REMEDIES = [
    (lambda: X.std(unbiased=True), "correction=1"),
    (lambda: X.var(ddof=1), "write correction="),
    (lambda: wg.clip(X, a_min=0), "write min="),
    (lambda: X.clamp(clip_value_max=0), "write max="),
    (lambda: wg.random.normal((2,), loc=0.0), "write mean="),
    (lambda: X.sum(dimm=1), "takes x, axis"),
    (lambda: wg.random.uniform(size=(2,)), "write shape="),
    (lambda: X.sub(1, alpha=2), "alpha \\* b"),
    (lambda: X.div(2, rounding_mode="floor"), "floor_divide"),
    (lambda: X.roll(shifts=1), "write shift="),
    (lambda: wg.linspace(0, 1, steps=3), "write num="),
    (lambda: X.exp(dtype=wg.float32), "astype"),
]  # fmt: skip


@pytest.mark.parametrize("i", range(len(REMEDIES)))
def test_an_unknown_argument_says_what_to_write(i):
    call, want = REMEDIES[i]
    with pytest.raises(TypeError, match=f"unexpected keyword argument .*{want}"):
        call()


def test_an_argument_of_another_function_is_no_remedy():
    with pytest.raises(TypeError, match=r"takes x$"):
        X.exp(ddof=1)


def test_torch_names_of_modules():
    assert nn.MultiheadAttention is nn.MultiHeadAttention
    for name in wg._core.nn.__all__:
        assert getattr(nn.functional, name) is getattr(nn, name)
    assert nn.functional.Linear is nn.Linear
    with pytest.raises(AttributeError, match="frobnicate"):
        nn.functional.frobnicate
    with pytest.raises(TypeError, match=r"^SGD: .*Linear.*\.parameters\(\)"):
        optim.SGD(nn.Linear(2, 2), lr=0.1)


def test_small_methods_of_torch():
    assert X.numel() == 12 and X.dim() == 2
    x = wg.ones(2).requires_grad_()
    assert x.requires_grad and not x.requires_grad_(False).requires_grad
    with pytest.raises(wg.DTypeError):
        wg.arange(3).requires_grad_()


def test_signatures_and_pickles_of_synonyms():
    import pickle

    assert inspect.signature(wg.cat) == inspect.signature(wg.concat)
    assert pickle.loads(pickle.dumps(wg.cat)) is wg.concat
    assert re.search(r"Also called `cat`, `concatenate`\.$", inspect.getdoc(wg.concat))
    traced = wg.compile(lambda x: wg.cat([x, x], dim=1).cumsum(dim=0))
    np.testing.assert_allclose(traced(X).numpy(), np.hstack([A, A]).cumsum(0), rtol=1e-12)
