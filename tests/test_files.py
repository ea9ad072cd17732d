"""Files of tensors: what is written is read, what is broken is refused."""

import gc
import json

import numpy as np
import pytest

import wengert as wg

from support import DTYPES


def live_bytes():
    gc.collect()
    return wg.memory_stats()["live_bytes"]


def sample(dtype, shape=(3, 4)):
    return wg.asarray(np.arange(np.prod(shape)).reshape(shape) % 5).astype(getattr(wg, dtype))


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
