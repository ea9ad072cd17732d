"""Tensors beside other libraries: DLPack, NumPy, buffers."""

import ctypes
import gc
import weakref

import numpy as np
import pytest

import wengert as wg

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


def test_what_comes_in_is_copied_unless_the_caller_promises_otherwise():
    a = np.arange(4, dtype="float32")
    frozen = a.view()
    frozen.flags.writeable = False  # binds who reads this view, not who holds `a`
    taken = [wg.from_dlpack(a), wg.from_dlpack(frozen), wg.from_dlpack(frozen, copy=True)]
    taken += [wg.asarray(a), wg.asarray(frozen), wg.tensor(frozen), wg.asarray(memoryview(a))]
    taken += [wg.asarray(OldExporter(a))]
    shared = [wg.from_dlpack(source, copy=False) for source in (a, frozen)]
    a[:] = 7
    assert [t.tolist() for t in taken] == [[0, 1, 2, 3]] * len(taken)
    before = live_bytes()
    assert all(t.numpy().ctypes.data == a.ctypes.data for t in shared)
    assert live_bytes() == before, "shared memory is not ours"


def test_shared_memory_lives_as_long_as_a_tensor_reads_it():
    class Released(np.ndarray):
        pass

    a = np.arange(5.0).view(Released)
    a.flags.writeable = False
    gone = []
    weakref.finalize(a, gone.append, True)
    t = wg.from_dlpack(a, copy=False)
    row = t[1:]
    del a, t
    gc.collect()
    assert row.tolist() == [1, 2, 3, 4] and not gone
    del row
    gc.collect()
    assert gone


def test_an_update_of_shared_memory_goes_elsewhere():
    a = np.zeros(4)
    t = wg.from_dlpack(a, copy=False)
    t += 1
    t[0] = 5
    assert t.tolist() == [5, 1, 1, 1] and a.tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("dtype", NUMPY_DTYPES)
def test_tensors_go_out_by_dlpack(dtype):
    t = sample(dtype)
    for x in (t, t[::-1, ::2], t.T, t[:0], t[1, 2]):
        for copied in (np.from_dlpack(x), np.from_dlpack(x, copy=True)):
            np.testing.assert_array_equal(copied, x.numpy())
            assert copied.flags.writeable
            assert not x.size or copied.ctypes.data != x.numpy().ctypes.data
        shared = np.from_dlpack(x, copy=False)
        np.testing.assert_array_equal(shared, x.numpy())
        assert not shared.flags.writeable
        if x.size:
            assert shared.ctypes.data == x.numpy().ctypes.data
        np.testing.assert_array_equal(np.from_dlpack(OldExporter(x)), x.numpy())


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
    view = np.from_dlpack(t, copy=False)
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


class ManagedVersioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p), ("flags", ctypes.c_uint64), *TENSOR,
    ]  # fmt: skip


capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
capsule_pointer.restype = ctypes.c_void_p
capsule_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]


def exported(tensor, **arguments):
    """The flags and the elements behind a capsule, as a consumer sees them that obeys no flag."""
    capsule = tensor.__dlpack__(**arguments)
    kind, name = Managed, b"dltensor"
    if "max_version" in arguments:
        kind, name = ManagedVersioned, b"dltensor_versioned"
    managed = kind.from_address(capsule_pointer(capsule, name))
    elements = (ctypes.c_float * tensor.size).from_address(managed.data)
    return getattr(managed, "flags", 0), elements, capsule


READ_ONLY, IS_COPIED = 1, 2


@pytest.mark.parametrize(
    "arguments",
    [{}, {"copy": True}, {"max_version": (1, 0)}, {"max_version": (1, 1), "copy": True}],
    ids=str,
)
def test_who_gets_a_capsule_may_write_there(arguments):
    x = wg.tensor([1.0, 2.0, 3.0], requires_grad=True)
    shared = x.detach()
    y = (x * x).sum()  # saves x
    flags, elements, capsule = exported(shared, **arguments)
    assert not flags & READ_ONLY and flags in (0, IS_COPIED)
    elements[:] = [7, 7, 7]
    y.backward()
    assert x.tolist() == shared.tolist() == [1, 2, 3] and x.grad.tolist() == [2, 4, 6]
    del capsule


def test_shared_memory_goes_out_by_request_and_marked_read_only():
    x = wg.tensor([1.0, 2.0, 3.0])
    flags, elements, capsule = exported(x, max_version=(1, 0), copy=False)
    assert flags == READ_ONLY and ctypes.addressof(elements) == x.numpy().ctypes.data
    with pytest.raises(BufferError, match="read-only"):
        x.__dlpack__(copy=False)
    del capsule


def test_nothing_that_shares_memory_can_be_written():
    """Neighbours of DLPack: the buffer protocol and what NumPy makes of it."""
    x = wg.tensor([1.0, 2.0, 3.0])
    for view in (x.numpy(), np.asarray(x), np.asarray(memoryview(x))):
        assert not view.flags.writeable
        with pytest.raises(ValueError):
            view[0] = 7
        with pytest.raises(ValueError):
            view.flags.writeable = True
    with pytest.raises(TypeError):
        memoryview(x)[0] = 7
    with pytest.raises((TypeError, BufferError)):
        (ctypes.c_float * 3).from_buffer(x)
    np.array(x)[0] = 7
    assert x.tolist() == [1, 2, 3]


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
