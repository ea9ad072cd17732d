"""Tensors as Python objects: pickle, copies, text, rows, hooks; the names of the package."""

import copy
import gc
import pickle
import subprocess
import sys

import numpy as np
import pytest

import wengert as wg
from wengert import _core

from support import DTYPES

NUMPY_DTYPES = [name for name in DTYPES if name != "bfloat16"]


def sample(dtype, shape=(3, 4)):
    return wg.asarray(np.arange(np.prod(shape)).reshape(shape) % 5).astype(getattr(wg, dtype))


# --- pickle and copies


@pytest.mark.parametrize("dtype", DTYPES)
def test_pickles(dtype):
    for x in (sample(dtype), sample(dtype)[::-1, ::2], sample(dtype)[0, 0], sample(dtype)[:0]):
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            y = pickle.loads(pickle.dumps(x, protocol))
            assert y.dtype == x.dtype and y.shape == x.shape and y.tolist() == x.tolist()


def test_pickle_keeps_what_wants_a_gradient_and_its_class():
    x = wg.tensor([1.0], requires_grad=True)
    y = pickle.loads(pickle.dumps(x))
    assert y.requires_grad and y.is_leaf
    assert not pickle.loads(pickle.dumps(wg.ones(1))).requires_grad
    for thing in (wg.float16, wg.device("cpu")):
        assert pickle.loads(pickle.dumps(thing)) == thing


def test_contents_of_another_length_are_refused():
    with pytest.raises(ValueError, match="length"):
        _core._from_bytes(wg.float32, (3,), b"\0" * 11)
    with pytest.raises(ValueError):
        _core._from_bytes(wg.float32, (1 << 40, 1 << 40), b"")


def test_copies():
    x = wg.tensor([1.0, 2.0], requires_grad=True)
    (x * x).sum().backward()
    shallow, deep = copy.copy(x), copy.deepcopy(x)
    x.grad = None
    assert shallow.grad is None and deep.grad.tolist() == [2.0, 4.0] and deep.requires_grad
    with wg.no_grad():
        deep += 1
    assert x.tolist() == [1.0, 2.0] and deep.tolist() == [2.0, 3.0]
    tied = wg.ones(2)
    pair = copy.deepcopy([tied, tied])
    assert pair[0] is pair[1] and pair[0] is not tied
    with pytest.raises(wg.GradientError, match="multiply"):
        copy.deepcopy(x * 2)


# --- text

TEXTS = {
    "[[1.5, 2. ]], dtype=bfloat16": lambda: wg.tensor([[1.5, 2.0]], dtype=wg.bfloat16),
    "300.": lambda: wg.tensor(300.0),
    "[0.3333]": lambda: wg.tensor([1 / 3]),
    "[ 0.6667, -2.    ], dtype=float64": lambda: wg.asarray(np.array([2 / 3, -2.0])),
    "[ nan, 1.25, -inf]": lambda: wg.tensor([np.nan, 1.25, -np.inf]),
    "[nan, inf]": lambda: wg.tensor([np.nan, np.inf]),
    "[1e-10, 1e+00]": lambda: wg.tensor([1e-10, 1.0]),
    "[1.2346e+09, 1.0000e+00]": lambda: wg.tensor([1234567890.0, 1.0]),
    "[123456.,      1.]": lambda: wg.tensor([123456.0, 1.0]),
    "[0., 0.]": lambda: wg.zeros(2),
    "[-1, 10]": lambda: wg.tensor([-1, 10]),
    "[1, 2], dtype=uint8": lambda: wg.tensor([1, 2], dtype=wg.uint8),
    "[ True, False]": lambda: wg.tensor([True, False]),
    "[]": lambda: wg.tensor([]),
    "[], shape=(0, 3)": lambda: wg.zeros((0, 3)),
    "[], dtype=int64": lambda: wg.zeros((0,), dtype=wg.int64),
    "[1.], requires_grad=True": lambda: wg.ones(1, requires_grad=True),
    "[2.], grad_fn=<multiply>": lambda: wg.ones(1, requires_grad=True) * 2,
    "[   0,    1,    2, ..., 1997, 1998, 1999]": lambda: wg.arange(2000),
}


@pytest.mark.parametrize("text", TEXTS)
def test_text(text):
    assert repr(TEXTS[text]()) == f"tensor({text})"


def test_blocks_and_long_rows():
    assert repr(wg.arange(8).reshape((2, 2, 2))) == (
        "tensor([[[0, 1],\n"
        "         [2, 3]],\n"
        "\n"
        "        [[4, 5],\n"
        "         [6, 7]]])"
    )  # fmt: skip
    lines = repr(wg.arange(100)).splitlines()
    assert all(len(line) <= 88 for line in lines) and lines[1].startswith("        2")
    wide = repr(wg.ones((1000, 1000)))
    assert len(wide) < 500 and wide.count("...") == 7


def test_numbers_print_as_their_dtype_tells_them_apart():
    x = wg.tensor(0.1)
    assert f"{x}" == "0.1" and str(x.astype(wg.float64)) == "0.10000000149011612"
    assert str(wg.tensor(0.1, dtype=wg.bfloat16)) == "0.1" and str(wg.tensor(3)) == "3"
    assert str(wg.tensor(1e-45)) == "1e-45" and str(wg.tensor(np.nan)) == "nan"
    assert f"{x:8.3f}" == "   0.100" and f"{wg.tensor(5):03d}" == "005"
    assert f"{wg.ones(2)}" == "tensor([1., 1.])"
    with pytest.raises(TypeError, match=r"\(2,\)"):
        f"{wg.ones(2):.2f}"


# --- other methods


def test_rows_membership_and_rounding():
    t = wg.arange(6).reshape((3, 2))
    assert [row.tolist() for row in t] == t.tolist() and 5 in t and 6 not in t
    assert [row.tolist() for row in reversed(t)] == t.tolist()[::-1]
    assert round(wg.tensor(2.6)) == 3 and round(wg.tensor(0.123, dtype=wg.float64), 1) == 0.1
    with pytest.raises(TypeError):
        iter(wg.tensor(1.0))


def test_devices_and_dtypes():
    x = wg.ones(2)
    assert x.to("cpu") is x.cpu() is x.to_device("cpu") is x
    assert x.to(wg.float64).dtype == x.to("cpu", wg.float64).dtype == wg.float64
    for call in (lambda: x.to("tpu"), lambda: x.to_device("cuda:0")):
        with pytest.raises(wg.DeviceError, match="cpu"):
            call()


def test_a_hook_is_taken_off_again():
    x = wg.ones(2, requires_grad=True)
    seen = []
    with x.register_hook(lambda g: seen.append(g.tolist())):
        (x * 3).sum().backward()
    (x * 4).sum().backward()
    assert seen == [[3, 3]]
    y = x * 2
    handle = y.register_hook(lambda g: handle.remove())
    y.sum().backward()
    del y
    gc.collect()
    assert wg.graph_stats()["nodes"] == 0
    with pytest.raises(wg.GradientError):
        wg.ones(2).register_hook(print)


# --- the namespace


def test_the_array_api_s_inspection():
    info = wg.ones(1).__array_namespace__(api_version="2023.12").__array_namespace_info__()
    assert info.default_dtypes()["integral"] == wg.int64 and info.devices() == wg.devices()
    assert set(info.dtypes()) == set(DTYPES)
    assert set(info.dtypes(kind="unsigned integer")) == {"uint8", "uint16", "uint32", "uint64"}
    assert set(info.dtypes(kind=("bool", "real floating"))) == {
        "bool", "float16", "bfloat16", "float32", "float64"
    }  # fmt: skip
    assert wg.zeros((1,) * info.capabilities()["max dimensions"]).ndim == 32
    with pytest.raises(ValueError):
        wg.ones(1).__array_namespace__(api_version="1999.12")


@pytest.mark.parametrize("dtype", [d for d in NUMPY_DTYPES if d != "bool"])
def test_limits_are_numpy_s(dtype):
    if dtype.startswith("float"):
        ours, theirs = wg.finfo(getattr(wg, dtype)), np.finfo(dtype)
        names = ("bits", "eps", "max", "min", "smallest_normal")
    else:
        ours, theirs = wg.iinfo(getattr(wg, dtype)), np.iinfo(dtype)
        names = ("bits", "max", "min")
    for name in names:
        assert getattr(ours, name) == getattr(theirs, name), name


def test_dtypes_combine():
    assert wg.result_type(wg.ones(1), wg.int64, True) == wg.float32
    assert wg.result_type(wg.int8, 3) == wg.int8 and wg.result_type(wg.int8, 0.5) == wg.float32
    assert wg.can_cast(wg.ones(1, dtype=wg.int8), wg.int16) and not wg.can_cast(wg.uint64, wg.int64)
    with pytest.raises(wg.DTypeError):
        wg.result_type(wg.uint64, wg.int64)
    with pytest.raises(ValueError):
        wg.result_type(1, 2.0)
    with pytest.raises(ValueError):
        wg.isdtype(wg.int8, "number")
    for call in (lambda: wg.finfo(wg.int8), lambda: wg.iinfo(wg.float32)):
        with pytest.raises(wg.DTypeError):
            call()


def test_numpy_is_imported_when_it_is_needed():
    code = "import sys, wengert as wg; print({'numpy', 'typing'} & set(sys.modules), len(dir(wg)))"
    flags = [sys.executable, "-S", "-c", f"import sys; sys.path[:0] = {sys.path!r}; {code}"]
    out = subprocess.run(flags, capture_output=True, text=True, check=True).stdout
    assert out.startswith("set()"), out


def test_every_public_name_is_there():
    assert len(set(wg.__all__)) == len(wg.__all__) == len(dir(wg)) > 100
    assert all(getattr(wg, name, wg) is not wg for name in wg.__all__)
    with pytest.raises(AttributeError):
        wg.does_not_exist
