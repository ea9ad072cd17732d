"""Files of tensors: what is written is read, what is broken is refused."""

import gzip
import json
import os
import pickle
import stat
import threading

import numpy as np
import pytest

import wengert as wg

from support import DTYPES, live_bytes


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
    assert live_bytes() <= before


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


def test_a_module_is_saved_by_its_state(tmp_path):
    model = wg.nn.Linear(2, 3)
    with pytest.raises(wg.ArgumentTypeError, match=r"got Linear; save its state: .*state_dict\(\)"):
        wg.save(model, tmp_path / "f")
    with pytest.raises(wg.ArgumentTypeError, match=r"state\['m'\]: Linear; save its state_dict"):
        wg.save({"m": model}, tmp_path / "f")
    assert not list(tmp_path.iterdir())
    wg.save(model.state_dict(), tmp_path / "f")
    assert set(wg.load(tmp_path / "f")) == {"weight", "bias"}


def zipped(path):
    np.savez(path.with_suffix(".npz"), a=np.ones(2))
    path.with_suffix(".npz").rename(path)


def array_of_numpy(path):
    with path.open("wb") as file:
        np.save(file, np.ones(2))


OTHERS = {
    "zip": (zipped, "wg.io.read_npz"),
    "npy": (array_of_numpy, "numpy.load"),
    "pickle": (lambda p: p.write_bytes(pickle.dumps({"weights": [1.0] * 9})), "pickle.load"),
    "gzip": (lambda p: p.write_bytes(gzip.compress(b"weights" * 9)), "decompress"),
    "hdf5": (lambda p: p.write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(90)), "h5py"),
    "gguf": (lambda p: p.write_bytes(b"GGUF\3\0\0\0" + bytes(90)), "gguf"),
    "onnx": (lambda p: p.write_bytes(b"\x08\x07\x12\x07pytorch" + bytes(90)), "onnx"),
    "tflite": (lambda p: p.write_bytes(b"\x1c\0\0\0TFL3" + bytes(9)), "TensorFlow"),
    "lfs": (lambda p: p.write_bytes(b"version https://git-lfs.github.com/spec/v1\n"), "git lfs"),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_files_of_other_formats_are_told(kind, tmp_path):
    path = tmp_path / "model.pt"
    OTHERS[kind][0](path)
    with pytest.raises(wg.ArgumentError, match="not a safetensors file") as caught:
        wg.load(path)
    assert OTHERS[kind][1] in str(caught.value) and "header" not in str(caught.value)


def test_a_link_stays_and_its_target_is_replaced(tmp_path):
    (tmp_path / "there").mkdir()
    target, link = tmp_path / "there" / "target", tmp_path / "link"
    link.symlink_to(os.path.join("there", "target"))
    for n in (1, 2):  # a target that is not there yet, and one that is
        wg.save({"a": wg.full((2,), n)}, link)
        assert link.is_symlink() and not target.is_symlink()
        assert wg.load(target)["a"].tolist() == [n, n]
        target.chmod(0o640)
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["link", "target", "there"]


def test_what_is_no_regular_file_is_refused_and_stays(tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    (tmp_path / "link").symlink_to(fifo)
    for path in (fifo, tmp_path / "link", "/dev/null"):
        with pytest.raises(wg.ArgumentError, match="not a regular file"):
            wg.save({"a": wg.ones(1)}, path)
        with pytest.raises(wg.ArgumentError, match="not a regular file"):
            wg.load(path)
    assert stat.S_ISFIFO(fifo.stat().st_mode) and stat.S_ISCHR(os.stat("/dev/null").st_mode)
    with pytest.raises(IsADirectoryError):
        wg.save({"a": wg.ones(1)}, tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["fifo", "link"]


def test_writers_of_one_path_do_not_meet(tmp_path):
    path, count = tmp_path / "f", 20_000
    wg.save({"a": wg.full((count,), 0)}, path)
    failed = []

    def write(n):
        try:
            for _ in range(20):
                wg.save({"a": wg.full((count,), n)}, path)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=write, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        a = wg.load(path)["a"].numpy()
        assert a.shape == (count,) and (a == a[0]).all()
    for thread in threads:
        thread.join()
    assert not failed and [p.name for p in tmp_path.iterdir()] == ["f"]


def test_what_fails_leaves_the_old_file(tmp_path):
    path = tmp_path / "f"
    wg.save({"a": wg.ones(2)}, path)
    with pytest.raises(TypeError):
        wg.save({"a": wg.zeros(2)}, path, metadata={"n": 1})
    assert wg.load(path)["a"].tolist() == [1, 1] and [p.name for p in tmp_path.iterdir()] == ["f"]


def test_a_timeline_is_whole_or_not_there(tmp_path):
    """Profiles and pictures go the way of tensors; to what is no file they are just written."""
    with wg.profile() as p:
        wg.ones(3).sum()
    p.save(tmp_path / "old")
    (tmp_path / "link").symlink_to("old")
    p.save(tmp_path / "link")
    assert (tmp_path / "link").is_symlink() and json.loads((tmp_path / "old").read_text())
    p.save("/dev/null")
    assert sorted(f.name for f in tmp_path.iterdir()) == ["link", "old"]
