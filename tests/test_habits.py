"""What people reach for: NumPy's functions, settings of printing, the configuration, PyTorch's
small methods, trees as vectors, what notebooks show."""

import os
import pickle
import subprocess
import sys

import numpy as np
import pytest

import wengert as wg
from wengert import nn

from support import same

A = np.arange(1.0, 13.0).reshape(3, 4)
X = wg.asarray(A)


# --- NumPy's functions

GIVEN = [
    lambda x: np.exp(x), lambda x: np.arctan2(x, A), lambda x: np.add(x, x),
    lambda x: np.power(A, x), lambda x: np.absolute(x), lambda x: np.maximum(3.0, x),
    lambda x: np.mean(x, axis=0), lambda x: np.sum(x, axis=1, keepdims=True),
    lambda x: np.std(x, axis=1, ddof=1), lambda x: np.max(x), lambda x: np.argmax(x, axis=1),
    lambda x: np.concatenate([x, A], axis=1), lambda x: np.stack([A, x]),
    lambda x: np.where(A > 2, x, 0.0), lambda x: np.clip(x, 1.5, 3.0),
    lambda x: np.sort(x, axis=0), lambda x: np.transpose(x), lambda x: np.zeros_like(x),
    lambda x: np.einsum("ij,kj->ik", x, A), lambda x: np.reshape(x, (4, 3)),
    lambda x: np.matmul(x, A.T), lambda x: np.cumsum(x, axis=1), lambda x: np.ravel(x),
]  # fmt: skip


@pytest.mark.parametrize("i", range(len(GIVEN)))
def test_a_function_of_numpy_is_ours_where_there_is_one(i):
    f, x = GIVEN[i], wg.asarray(A)
    got = f(x)
    assert isinstance(got, wg.Tensor)
    np.testing.assert_allclose(got.numpy(), f(A), rtol=1e-12)
    same(got, wg.compile(f)(x))


def test_gradients_flow_through_functions_of_numpy():
    (g,) = wg.grad(lambda x: np.sum(np.exp(x) * np.mean(x, axis=0)), argnums=(0,))(wg.ones((1, 3)))
    np.testing.assert_allclose(g.numpy(), np.full((1, 3), 2 * np.e), rtol=1e-6)


REFUSED = [
    (lambda x: np.polyfit(x[0], x[1], 1), r"^numpy\.polyfit: .*hand it x\.numpy\(\)"),
    (lambda x: np.fft.fft(x), r"^numpy\.fft\.fft: "), (lambda x: np.modf(x), r"^numpy\.modf: "),
    (lambda x: np.add.reduce(x), r"^numpy\.add\.reduce: .*use wg\.add"),
    (lambda x: np.multiply.outer(x, x), r"^numpy\.multiply\.outer: "),
    (lambda x: np.exp(x, out=A.copy()), r"^numpy\.exp with out=: .*use wg\.exp"),
    (lambda x: np.mean(x, out=A), r"'out'.*use wg\.mean"),
    (lambda x: np.dot(x, x), r"^numpy\.dot: .*use wg\.matmul"),
    (lambda x: np.heaviside(x, 1.0), r"a function of wengert, or hand it x\.numpy\(\)"),
    (lambda x: np.save("x.npy", x.astype(wg.bfloat16)), "bfloat16"),
]  # fmt: skip


@pytest.mark.parametrize("i", range(len(REFUSED)))
def test_a_function_that_only_numpy_has_is_refused_with_what_to_write(i):
    call, want = REFUSED[i]
    with pytest.raises(TypeError, match=want):
        call(X)


def test_functions_of_numpy_that_only_look_go_on_working(tmp_path):
    assert np.shape(X) == (3, 4) and np.ndim(X) == 2 and np.size(X) == 12 and np.size(X, 1) == 4
    assert np.array_equal(X, A) and not np.iscomplexobj(X) and np.result_type(X, np.float32) == "f8"
    np.testing.assert_array_equal(X, A)
    np.testing.assert_allclose(X, A)
    np.testing.assert_equal(X, A)
    with pytest.raises(AssertionError, match="Mismatched"):
        np.testing.assert_allclose(X, A + 1)
    np.save(tmp_path / "x.npy", X)
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), A)
    out = np.zeros((3, 4))
    np.copyto(out, X)
    np.testing.assert_array_equal(out, A)
    assert isinstance(np.atleast_1d(X), np.ndarray) and str(np.asarray(X)) == str(A)


def test_pyarrow_takes_vectors():
    pyarrow = pytest.importorskip("pyarrow")
    assert pyarrow.array(X[0]).to_pylist() == A[0].tolist()
    with pytest.raises(wg.ShapeError, match="takes a vector"):
        pyarrow.array(X)


def test_arrow_arrays_are_made_of_vectors_alone():
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        with pytest.raises(ImportError, match="pyarrow"):
            X[0].__arrow_array__()


# --- scalars and truth values

REDUCTIONS = ["sum", "prod", "mean", "max", "min", "std", "var", "any", "all", "argmax", "argmin",
              "count_nonzero", "median"]  # fmt: skip


@pytest.mark.parametrize("axis", [0, -1])
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("name", REDUCTIONS)
def test_a_scalar_has_an_axis_to_reduce(name, axis, keepdims):
    for value in (3.5, np.nan, 0.0):
        got = getattr(wg, name)(wg.tensor(value), axis=axis, keepdims=keepdims)
        assert got.shape == () and got.dtype == getattr(wg, name)(wg.tensor(value)).dtype
        with np.errstate(all="ignore"):
            want = getattr(np, name)(np.asarray([value], np.float32), axis=0)
        np.testing.assert_array_equal(got.numpy(), want)


@pytest.mark.parametrize("axis", [0, -1])
def test_a_scalar_has_an_axis_for_softmax(axis):
    for value, want in [(3.0, 1.0), (-np.inf, np.nan), (np.nan, np.nan)]:
        x = wg.tensor(value, dtype=wg.float64, requires_grad=True)
        y = nn.softmax(x, axis)
        np.testing.assert_array_equal(y.detach().numpy(), want)
        np.testing.assert_array_equal(nn.log_softmax(x, axis).detach().numpy(), np.log(want))
        same(wg.compile(lambda x: nn.softmax(x, axis=axis))(x.detach()), y.detach())
    x = wg.tensor(3.0, requires_grad=True)
    nn.softmax(x, axis).backward()
    assert x.grad.item() == 0.0
    rows = wg.vmap(lambda x: nn.softmax(x, axis=axis) + x.sum(axis=axis))(wg.arange(3.0))
    assert rows.tolist() == [1.0, 2.0, 3.0]


def test_a_scalar_has_no_other_axis():
    x = wg.tensor(1.0)
    for call in (lambda: x.sum(axis=1), lambda: x.mean(axis=-2), lambda: x.max(axis=(0, -1)),
                 lambda: nn.softmax(x, 1), lambda: x.argmax(axis=1), lambda: nn.layer_norm(x, 0),
                 lambda: nn.rms_norm(x), lambda: x.flip(0)):  # fmt: skip
        with pytest.raises(wg.AxisError, match="rank 0"):
            call()


def test_truth_values_add_by_or_and_multiply_by_and():
    p, q = np.asarray([True, True, False, False]), np.asarray([True, False, True, False])
    a, b = wg.asarray(p), wg.asarray(q)
    programs = [
        lambda a, b: a + b, lambda a, b: a * b, lambda a, b: a + True, lambda a, b: a * False,
        lambda a, b: (a + b) * a, lambda a, b: a + b + 1,
    ]  # fmt: skip
    for run in (lambda f: f, wg.compile):
        for f in programs:
            got = run(f)(a, b)
            np.testing.assert_array_equal(got.numpy(), f(p, q))
            assert str(got.dtype) == str(f(p, q).dtype)
            reference = run(f)(a.to("reference"), b.to("reference"))
            np.testing.assert_array_equal(reference.to("cpu").numpy(), f(p, q))
    for call in (lambda: a - b, lambda: -a, lambda: True - a):
        with pytest.raises(wg.DTypeError, match="bool"):
            call()
    c = wg.asarray(p)
    c *= b
    assert c.tolist() == (p & q).tolist()
    rows = wg.vmap(lambda a, b: a + b)(wg.stack([a, b]), wg.stack([b, b]))
    assert rows.tolist() == [(p | q).tolist(), q.tolist()]


# --- printing


@pytest.fixture
def printing():
    """Printing as it was, afterwards."""
    before = wg.get_printoptions()
    yield
    wg.set_printoptions(**before)
    assert wg.get_printoptions() == before


@pytest.mark.usefixtures("printing")
def test_printing_is_set():
    x = wg.tensor([np.pi, -np.e], dtype=wg.float64)
    wg.set_printoptions(precision=2)
    assert repr(x) == "tensor([ 3.14, -2.72], dtype=float64)"
    wg.set_printoptions(precision=3, sci_mode=True)
    assert repr(x) == "tensor([ 3.142e+00, -2.718e+00], dtype=float64)"
    wg.set_printoptions(sci_mode=False)
    assert repr(wg.tensor([1e9, 0.5])) == "tensor([1000000000. ,          0.5])"
    wg.set_printoptions(sci_mode="auto", threshold=10, edgeitems=1)
    assert repr(wg.arange(11)) == "tensor([ 0, ..., 10])"
    assert repr(wg.arange(10)) == "tensor([0, 1, 2, 3, 4, 5, 6, 7, 8, 9])"
    wg.set_printoptions(linewidth=20)
    assert max(map(len, repr(wg.arange(10)).splitlines())) <= 20


@pytest.mark.usefixtures("printing")
def test_what_no_setting_of_printing_can_be_is_refused_and_changes_nothing():
    before = wg.get_printoptions()
    for options, kind in [
        ({"precision": 2, "threshold": -1}, ValueError), ({"edgeitems": 0}, ValueError),
        ({"precision": 2.0}, TypeError), ({"linewidth": True}, TypeError),
        ({"sci_mode": "always"}, TypeError), ({"precison": 2}, TypeError),
    ]:  # fmt: skip
        with pytest.raises(kind, match="set_printoptions"):
            wg.set_printoptions(**options)
        assert wg.get_printoptions() == before


# --- the configuration


def test_the_configuration_says_what_is_here():
    environment = {**os.environ, "WENGERT_NUM_THREADS": "1", "WENGERT_CHECK": "0"}
    environment.pop("WENGERT_ISA", None)
    command = [sys.executable, "-m", "wengert"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    lines = [line.split() for line in done.stdout.splitlines()]
    assert lines[0][:2] == ["wengert", f"{wg.__version__},"]
    assert ["threads:", "1"] in lines
    shown = {line[0]: line[1] for line in lines if line and line[0].startswith("WENGERT_")}
    assert shown["WENGERT_NUM_THREADS"] == "1" and shown["WENGERT_CHECK"] == "0"
    assert shown["WENGERT_ISA"] == "not" and len(shown) == len(wg._core._settings())
    for device in wg.devices():
        assert any(line[:1] == [str(device)] for line in lines)
    for name in wg._core._instruction_sets():
        assert name in next(" ".join(line) for line in lines if line[0] == "instruction")
    wrong = {**os.environ, "WENGERT_ISA": "v9"}
    done = subprocess.run(command, capture_output=True, text=True, env=wrong, check=False)
    assert done.returncode and "WENGERT_ISA" in done.stderr


# --- small methods of PyTorch


def test_gradients_of_results_are_kept_where_they_are_wanted():
    x = wg.tensor([1.0, 2.0], requires_grad=True)
    y = x * 2.0
    assert y.grad is None
    y.retain_grad()
    y.retain_grad()
    z = y * 3.0
    (y * y + z).sum().backward(retain_graph=True)
    assert y.grad.tolist() == [7.0, 11.0] and z.grad is None and x.grad.tolist() == [14.0, 22.0]
    z.sum().backward()
    assert y.grad.tolist() == [10.0, 14.0]
    y.grad = None
    assert y.grad is None
    x.retain_grad()
    with pytest.raises(wg.GradientError):
        wg.ones(2).retain_grad()
    with pytest.raises(wg.GradientError):
        y.grad = wg.ones(2)
    from wengert import _tensor

    count = len(_tensor._kept)
    del y, z
    assert len(_tensor._kept) == count - 1


def test_what_made_a_tensor_is_named():
    x = wg.ones(2, requires_grad=True)
    y = x.exp()
    assert x.grad_fn is None and wg.ones(2).grad_fn is None
    assert y.grad_fn.name() == "exp" and "test_habits.py:" in y.grad_fn.site
    assert repr(y.grad_fn).startswith("<exp at ") and y.detach().grad_fn is None
    with pytest.raises(AttributeError):
        y.grad_fn = None


def test_a_function_saves_by_the_names_of_pytorch():
    class Cube(wg.Function):
        @staticmethod
        def forward(ctx, x, n):
            ctx.save_for_backward(x)
            assert ctx.needs_input_grad[1] is False
            return x * x * x

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return 3.0 * x * x * g, None

    def f(x):
        return Cube.apply(x, 3).sum()

    x = wg.tensor([2.0, 3.0])
    assert wg.grad(f)(x).tolist() == [12.0, 27.0]
    assert wg.compile(wg.grad(f))(x).tolist() == [12.0, 27.0]
    assert wg.grad(lambda x: wg.grad(f)(x).sum())(x).tolist() == [12.0, 18.0]


# --- trees as vectors


def test_trees_are_vectors():
    tree = {"a": wg.tensor([[1.0, 2.0]]), "b": [wg.tensor(3, dtype=wg.int32), 4.0]}
    flat, back = wg.pytree.ravel(tree)
    assert flat.tolist() == [1.0, 2.0, 3.0, 4.0] and flat.dtype == wg.float32
    again = back(flat + 1.0)
    assert again["a"].tolist() == [[2.0, 3.0]] and again["b"][0].dtype == wg.int32
    assert [x.shape for x in wg.pytree.leaves(again)] == [(1, 2), (), ()]
    with pytest.raises(wg.ShapeError, match=r"shape \(4,\), got \(3,\)"):
        back(wg.ones(3))
    assert wg.pytree.ravel({})[0].shape == (0,) and wg.pytree.ravel({})[1](wg.ones(0)) == {}
    g = wg.grad(lambda v: (back(v)["a"] ** 2).sum())(flat)
    assert g.tolist() == [2.0, 4.0, 0.0, 0.0]
    g = wg.grad(lambda t: (wg.pytree.ravel(t)[0] ** 2).sum())({"w": wg.ones((2, 1))})
    assert g["w"].tolist() == [[2.0], [2.0]]
    rows = wg.vmap(lambda v: back(v)["a"])(wg.stack([flat, flat]))
    assert rows.shape == (2, 1, 2)
    assert wg.compile(lambda t: wg.pytree.ravel(t)[0] * 2)(tree).tolist() == [2.0, 4.0, 6.0, 8.0]


def test_a_module_is_a_vector():
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm(2))
    flat, back = wg.pytree.ravel(model)
    x = wg.ones((4, 3))
    model.eval()
    same(back(flat)(x).detach(), model(x).detach())


# --- pictures


def test_notebooks_show_explanations_and_profiles():
    w = {"a<b": wg.ones((3, 3))}

    @wg.compile
    def f(x):
        return nn.relu(nn.softmax(x @ w["a<b"])).sum()

    x = wg.ones((2, 3))
    f(x)
    with wg.profile() as p:
        f(x)
    page = f.explain(x)._repr_html_()
    assert "softmax" in page and "relu" in page and "test_habits.py" in page
    table = p._repr_html_()
    assert "f: " in table and "softmax" in table and "<table>" in table
    for text in (page, table):
        assert text.count("<table>") == text.count("</table>") and "<script" not in text


def test_graphs_name_what_a_function_reaches():
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    params = {"w": wg.ones((2, 2))}

    def f(x, batch):
        return model(x) @ params["w"] + batch["y"]

    graph = wg.compile(f).graph(wg.ones((5, 3)), {"y": wg.ones(2)})
    names = ["x", "batch['y']", *(f"model.{k}.{n}" for k in (0, 2) for n in ("weight", "bias"))]
    assert {node.name for node in graph.inputs} == {*names, "params['w']"}
    dot = graph.to_dot()
    assert all(name in dot for name in names)
    assert wg.parse_graph(str(graph)) == graph

    class Net(nn.Module):
        def __init__(self):
            self.inner = nn.Linear(2, 2)

        def step(self, x):
            return self.inner(x)

    graph = wg.compile(Net().step).graph(wg.ones((1, 2)))
    assert {node.name for node in graph.inputs} == {"x", "self.inner.weight", "self.inner.bias"}


def test_functions_keep_what_they_are():
    f = wg.compile(pickle.dumps)
    assert isinstance(f, wg.CompiledFunction) and f.__wrapped__ is pickle.dumps
