"""Tensors beside other libraries: DLPack, NumPy, files, pickle, copies, text, hooks."""

import copy
import ctypes
import gc
import json
import pickle
import subprocess
import sys
import weakref

import numpy as np
import pytest

import wengert as wg
from wengert import _core

from support import DTYPES

NUMPY_DTYPES = [name for name in DTYPES if name != "bfloat16"]


def live_bytes():
    gc.collect()
    return wg.memory_stats()["live_bytes"]


def sample(dtype, shape=(3, 4)):
    return wg.asarray(np.arange(np.prod(shape)).reshape(shape) % 5).astype(getattr(wg, dtype))


# --- DLPack


class OldExporter:
    """An exporter from before versions: `__dlpack__` takes no arguments."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self):
        return self.array.__dlpack__()


def layouts(dtype):
    a = np.arange(60).reshape(3, 4, 5)
    a = a % 2 == 0 if dtype == "bool" else a.astype(dtype)
    readonly = a.copy()
    readonly.flags.writeable = False
    yield from (a, a[::-1, :, ::-2], a.transpose(2, 0, 1), np.broadcast_to(a[:1], a.shape), a[:0])
    yield from (a[1, 2, 3], readonly, readonly[:, 1:], np.asfortranarray(a))


@pytest.mark.parametrize("dtype", NUMPY_DTYPES)
def test_arrays_come_in_by_dlpack(dtype):
    for a in layouts(dtype):
        a = np.asarray(a)
        sources = [a, OldExporter(a)] if a.flags.writeable else [a]
        for source in sources:
            for mode in ({}, {"copy": True}):
                np.testing.assert_array_equal(wg.from_dlpack(source, **mode).numpy(), a)


def test_what_may_be_written_is_copied_and_what_may_not_is_shared():
    a = np.ones(4, "float32")
    t = wg.from_dlpack(a)
    before = live_bytes()
    a[0] = 7
    assert t.tolist() == [1, 1, 1, 1]
    a.flags.writeable = False
    shared = wg.from_dlpack(a)
    assert live_bytes() == before, "shared memory is not ours"
    assert shared.numpy().ctypes.data == a.ctypes.data
    copied = wg.from_dlpack(a, copy=True)
    assert copied.numpy().ctypes.data != a.ctypes.data
    writable = np.ones(4, "float32")
    assert wg.from_dlpack(writable, copy=False).numpy().ctypes.data == writable.ctypes.data


def test_shared_memory_lives_as_long_as_a_tensor_reads_it():
    class Released(np.ndarray):
        pass

    a = np.arange(5.0).view(Released)
    a.flags.writeable = False
    gone = []
    weakref.finalize(a, gone.append, True)
    t = wg.from_dlpack(a)
    row = t[1:]
    del a, t
    gc.collect()
    assert row.tolist() == [1, 2, 3, 4] and not gone
    del row
    gc.collect()
    assert gone


def test_an_update_of_shared_memory_goes_elsewhere():
    a = np.zeros(4)
    a.flags.writeable = False
    t = wg.from_dlpack(a)
    t += 1
    t[0] = 5
    assert t.tolist() == [5, 1, 1, 1] and a.tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("dtype", NUMPY_DTYPES)
def test_tensors_go_out_by_dlpack(dtype):
    t = sample(dtype)
    for x in (t, t[::-1, ::2], t.T, t[:0], t[1, 2]):
        a = np.from_dlpack(x)
        np.testing.assert_array_equal(a, x.numpy())
        assert not a.flags.writeable
        if x.size:
            assert a.ctypes.data == x.numpy().ctypes.data
        np.testing.assert_array_equal(np.from_dlpack(OldExporter(x)), x.numpy())
    copied = np.from_dlpack(t, copy=True)
    assert copied.ctypes.data != t.numpy().ctypes.data and copied.flags.writeable


def test_bfloat16_and_a_recorded_tensor_travel():
    t = sample("bfloat16")
    u = wg.from_dlpack(t)
    assert u.dtype == wg.bfloat16 and u.tolist() == t.tolist()
    x = wg.ones(3, requires_grad=True)
    assert not wg.from_dlpack(x * 2).requires_grad


def test_capsules_are_released_taken_or_not():
    base = live_bytes()
    t = wg.ones((100, 100))
    made = live_bytes()
    for version in (None, (1, 0)):
        for mode in (None, True):
            capsule = t.__dlpack__(max_version=version, copy=mode)
            del capsule
    for taken in (np.from_dlpack(OldExporter(t)), np.from_dlpack(t, copy=True)):
        assert taken.sum() == 10_000
    del taken
    assert live_bytes() == made
    view = np.from_dlpack(t)
    del t
    assert live_bytes() == made and view.sum() == 10_000
    del view
    assert live_bytes() == base


def test_a_capsule_is_taken_once():
    capsule = np.ones(3).__dlpack__()

    class Twice:
        def __dlpack__(self):
            return capsule

    assert wg.from_dlpack(Twice()).tolist() == [1, 1, 1]
    with pytest.raises(TypeError, match="nobody has taken"):
        wg.from_dlpack(Twice())


def test_export_refusals():
    t = wg.ones(3)
    with pytest.raises(BufferError):
        t.__dlpack__(copy=False)
    with pytest.raises(BufferError):
        t.__dlpack__(dl_device=(2, 0))
    with pytest.raises(ValueError, match="stream"):
        t.__dlpack__(stream=1)
    with pytest.raises(TypeError, match="__dlpack__"):
        wg.from_dlpack([1.0])
    with pytest.raises(wg.DeviceError):
        wg.from_dlpack(np.ones(3), device="tpu")
    assert t.__dlpack_device__() == (1, 0)


# Capsules made by hand, to say what no library says.


class Managed(ctypes.Structure):
    pass


DELETER = ctypes.CFUNCTYPE(None, ctypes.POINTER(Managed))
TENSOR = [
    ("data", ctypes.c_void_p), ("device", ctypes.c_int32), ("device_id", ctypes.c_int32),
    ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
    ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
    ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64),
]  # fmt: skip
Managed._fields_ = [*TENSOR, ("context", ctypes.c_void_p), ("deleter", DELETER)]

new_capsule = ctypes.pythonapi.PyCapsule_New
new_capsule.restype = ctypes.py_object
new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


def int64s(numbers):
    return None if numbers is None else (ctypes.c_int64 * max(len(numbers), 1))(*numbers)


class Handmade:
    """An exporter of six float32 whose fields can be set to anything."""

    def __init__(self, shape=(2, 3), strides=None, name=b"dltensor", **fields):
        self.data = np.arange(6, dtype="float32")
        self.released = 0
        self.shape, self.strides, self.name = int64s(shape), int64s(strides), name
        self.managed = Managed(
            data=self.data.ctypes.data, device=1, device_id=0, ndim=len(shape or ()), code=2,
            bits=32, lanes=1, shape=self.shape, strides=self.strides, byte_offset=0,
            deleter=DELETER(self.release),
        )  # fmt: skip
        for field, value in fields.items():
            setattr(self.managed, field, value)

    def release(self, _):
        self.released += 1

    def __dlpack__(self):
        return new_capsule(ctypes.addressof(self.managed), self.name, None)


def test_a_handmade_capsule_is_read_and_released():
    source = Handmade(shape=(2,), strides=(-2,), byte_offset=12)
    assert wg.from_dlpack(source).tolist() == [3, 1]
    assert source.released == 1
    without_deleter = Handmade(deleter=DELETER())
    assert wg.from_dlpack(without_deleter).shape == (2, 3)


HOSTILE = {
    "another device": ({"device": 2}, wg.DeviceError),
    "a dtype of no library": ({"code": 9}, wg.DTypeError),
    "complex": ({"code": 5, "bits": 64}, wg.DTypeError),
    "odd bits": ({"bits": 31}, wg.DTypeError),
    "lanes": ({"lanes": 4}, wg.DTypeError),
    "negative rank": ({"ndim": -1}, ValueError),
    "huge rank": ({"ndim": 1 << 30}, wg.ShapeError),
    "negative size": ({"shape": (2, -3)}, wg.ShapeError),
    "no shape": ({"shape": None, "ndim": 2}, ValueError),
    "no data": ({"data": None}, ValueError),
    "too many elements": ({"shape": (1 << 40, 1 << 40)}, wg.ShapeError),
    "strides to nowhere": ({"strides": (1 << 62, 1)}, ValueError),
    "strides before nothing": ({"strides": (-(1 << 62), 1)}, ValueError),
    "strides without end": ({"shape": (9, 9), "strides": (-(1 << 63),) * 2}, ValueError),
    "an offset to nowhere": ({"byte_offset": (1 << 64) - 4}, ValueError),
    "misaligned": ({"byte_offset": 2}, ValueError),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_capsule_is_refused_and_released(case):
    fields, kind = HOSTILE[case]
    source = Handmade(**fields)
    with pytest.raises(kind) as caught:
        wg.from_dlpack(source)
    assert isinstance(caught.value, wg.Error)
    assert source.released == 1


def test_a_capsule_of_another_name_is_left_alone():
    source = Handmade(name=b"something")
    with pytest.raises(TypeError, match="capsule"):
        wg.from_dlpack(source)
    assert source.released == 0


def test_zero_size_needs_no_memory():
    source = Handmade(shape=(0, 1 << 40), data=None, strides=(1 << 62, 1 << 62))
    assert wg.from_dlpack(source).shape == (0, 1 << 40)
    assert source.released == 1


# --- NumPy and buffers


@pytest.mark.parametrize("dtype", NUMPY_DTYPES)
def test_numpy_views_are_read_only_and_share(dtype):
    t = sample(dtype)
    for x in (t, t[::-1, 1:], t.T, t[0, 0], t[:, :0]):
        a = x.numpy()
        assert a.dtype == dtype and a.shape == x.shape and not a.flags.writeable
        assert a.tolist() == x.tolist()
        assert np.asarray(x).ctypes.data == a.ctypes.data
        assert np.array(x).flags.writeable
        assert memoryview(x).readonly
    assert np.asarray(t, dtype="float64").dtype == "float64"


def test_a_view_never_sees_a_later_write():
    t = wg.zeros(3)
    view = t.numpy()
    t[0] = 5.0
    assert view.tolist() == [0, 0, 0] and t.tolist() == [5, 0, 0]


def test_what_numpy_does_not_have_is_refused_with_the_remedy():
    t = wg.ones(2, dtype=wg.bfloat16)
    for call in (t.numpy, lambda: np.asarray(t)):
        with pytest.raises(TypeError, match="astype"):
            call()
    with pytest.raises(BufferError):
        memoryview(t)
    with pytest.raises(ValueError, match="copy=False"):
        wg.ones(2).__array__("int32", copy=False)


def test_numpy_leaves_arithmetic_to_the_tensor():
    t = wg.ones((2, 3))
    a = np.ones((2, 3), "float32")
    assert all(isinstance(y, wg.Tensor) for y in (a + t, a @ t.T, a < t, np.float32(2) * t))


# --- files


def write(path, header, data=b"", length=None):
    if not isinstance(header, bytes):
        header = json.dumps(header).encode()
    length = len(header) if length is None else length
    path.write_bytes(length.to_bytes(8, "little") + header + data)


def entry(start, end, shape=(1,), dtype="F32"):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}


def test_files_round_trip(tmp_path):
    path = tmp_path / "all.safetensors"
    tensors = {dtype: sample(dtype) for dtype in DTYPES}
    tensors |= {"view": sample("int8").T, "empty": wg.zeros((0, 3)), "scalar": wg.tensor(2)}
    wg.save(tensors, path, metadata={"format": "pt", "größe": "µ"})
    loaded = wg.load(path)
    assert set(loaded) == set(tensors)
    for name, t in tensors.items():
        assert loaded[name].dtype == t.dtype and loaded[name].shape == t.shape
        assert loaded[name].tolist() == t.tolist(), name
    assert [p.name for p in tmp_path.iterdir()] == ["all.safetensors"]


def test_files_agree_with_the_library_of_that_format(tmp_path):
    reference = pytest.importorskip("safetensors.numpy")
    arrays = {"w": np.arange(6, dtype="float32").reshape(2, 3), "n": np.array([1, 2])}
    arrays["m"] = np.array([True, False, True])
    path = tmp_path / "a.safetensors"
    wg.save({name: wg.asarray(a) for name, a in arrays.items()}, path)
    theirs = reference.load_file(path)
    reference.save_file(arrays, path)
    ours = wg.load(path)
    for name, a in arrays.items():
        np.testing.assert_array_equal(theirs[name], a)
        np.testing.assert_array_equal(ours[name].numpy(), a)


def test_names_come_back_in_the_order_of_the_file(tmp_path):
    names = [f"layer.{i}" for i in (3, 1, 2, 10, 0)]
    wg.save({name: wg.ones(i) for i, name in enumerate(names, 1)}, tmp_path / "f")
    assert list(wg.load(tmp_path / "f")) == names


FOUR = b"\0\0\x80?"
TWICE = tuple(json.dumps(entry(i, i + 4)).encode() for i in (0, 4))
BROKEN = {
    "empty": lambda p: p.write_bytes(b""),
    "seven bytes": lambda p: p.write_bytes(b"\0" * 7),
    "no header": lambda p: write(p, b""),
    "a header beyond the file": lambda p: write(p, b"{}", length=1000),
    "a header of 2^63 bytes": lambda p: write(p, b"{}", length=1 << 63),
    "not UTF-8": lambda p: write(p, b"\xff\xfe"),
    "not JSON": lambda p: write(p, b"{'a': 1}"),
    "not an object": lambda p: write(p, [1, 2]),
    "deeply nested": lambda p: write(p, b'{"a":' + b"[" * 100_000),
    "no dtype": lambda p: write(p, {"a": {"shape": [1], "data_offsets": [0, 4]}}, FOUR),
    "unknown dtype": lambda p: write(p, {"a": entry(0, 4, dtype="Q7")}, FOUR),
    "a dtype of others": lambda p: write(p, {"a": entry(0, 1, dtype="F8_E4M3")}, b"\0"),
    "a negative size": lambda p: write(p, {"a": entry(0, 4, shape=[-1])}, FOUR),
    "too many elements": lambda p: write(p, {"a": entry(0, 4, shape=[1 << 40] * 3)}, FOUR),
    "another size": lambda p: write(p, {"a": entry(0, 4, shape=[2])}, FOUR),
    "truncated data": lambda p: write(p, {"a": entry(0, 8, shape=[2])}, FOUR),
    "data left over": lambda p: write(p, {"a": entry(0, 4)}, FOUR * 2),
    "a hole": lambda p: write(p, {"a": entry(0, 4), "b": entry(8, 12)}, FOUR * 3),
    "overlapping": lambda p: write(p, {"a": entry(0, 8, [2]), "b": entry(4, 12, [2])}, FOUR * 3),
    "the same bytes twice": lambda p: write(p, {"a": entry(0, 4), "b": entry(0, 4)}, FOUR),
    "backwards": lambda p: write(p, {"a": entry(4, 0)}, FOUR),
    "beyond 2^64": lambda p: write(p, {"a": entry(0, 1 << 65)}, FOUR),
    "a name twice": lambda p: write(p, b'{"a":%b,"a":%b}' % TWICE, FOUR * 2),
    "too many axes": lambda p: write(p, {"a": entry(0, 4, shape=[1] * 100)}, FOUR),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_file_is_refused(case, tmp_path):
    path = tmp_path / "broken.safetensors"
    BROKEN[case](path)
    before = live_bytes()
    with pytest.raises(ValueError) as caught:
        wg.load(path)
    assert isinstance(caught.value, wg.Error) and str(path) in str(caught.value)
    assert live_bytes() == before


def test_every_truncation_is_refused(tmp_path):
    path = tmp_path / "f"
    wg.save({"a": wg.ones(2), "b": wg.ones((), dtype=wg.int8)}, path)
    whole = path.read_bytes()
    for n in range(len(whole)):
        path.write_bytes(whole[:n])
        with pytest.raises(ValueError):
            wg.load(path)


def test_what_the_system_refuses_is_an_oserror(tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        wg.load(tmp_path / "none")
    assert caught.value.filename == str(tmp_path / "none")
    with pytest.raises(IsADirectoryError):
        wg.load(tmp_path)
    with pytest.raises(FileNotFoundError):
        wg.save({"a": wg.ones(1)}, tmp_path / "none" / "f")


def test_a_load_beyond_the_memory_limit_says_so(tmp_path):
    wg.save({"a": wg.ones(1 << 20)}, tmp_path / "f")
    wg.set_memory_limit(live_bytes() + 1000)
    try:
        with pytest.raises(MemoryError):
            wg.load(tmp_path / "f")
    finally:
        wg.set_memory_limit(None)


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
