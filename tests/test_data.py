"""Batches, their order, errors and ends; files."""

import threading

import numpy as np
import pytest

import wengert as wg
from wengert.data import DataLoader, TensorDataset, collate, progress

DATA = TensorDataset(np.arange(10), np.arange(20.0).reshape(10, 2))


def threads():
    return [t for t in threading.enumerate() if t.name == "wengert-data"]


@pytest.mark.parametrize("prefetch", [0, 1, 3])
def test_batches(prefetch):
    batches = list(DataLoader(DATA, 4, prefetch=prefetch))
    assert [b[0].tolist() for b in batches] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert batches[1][1].shape == (4, 2) and batches[1][1].tolist()[0] == [8.0, 9.0]
    short = DataLoader(DATA, 4, drop_last=True, prefetch=prefetch)
    assert len(short) == 2 == len(list(short)) and len(DataLoader(DATA, 4)) == 3


def test_shuffling():
    def passes(**options):
        loader = DataLoader(DATA, 3, shuffle=True, **options)
        return [[i for batch in loader for i in batch[0].tolist()] for _ in range(2)]

    first, second = passes(seed=1)
    assert sorted(first) == sorted(second) == list(range(10)) and first != second
    assert passes(seed=1) == passes(seed=1, prefetch=0) != passes(seed=2)
    wg.random.seed(5)
    one = passes()
    wg.random.seed(5)
    assert passes() == one


class Odd:
    """A dataset of dictionaries that fails at its third sample."""

    def __init__(self, error=None):
        self.error = error

    def __len__(self):
        return 5

    def __getitem__(self, i):
        if self.error is not None and i == 2:
            raise self.error
        return {"i": i, "x": np.full(2, i, np.float32), "name": str(i), "t": wg.tensor(i * 1.0)}


def test_collation():
    batch = next(iter(DataLoader(Odd(), 3)))
    assert batch["i"].tolist() == [0, 1, 2] and batch["x"].tolist()[2] == [2.0, 2.0]
    assert batch["name"] == ["0", "1", "2"] and batch["t"].shape == (3,)
    assert batch["x"].dtype == wg.float32
    assert next(iter(DataLoader(Odd(), 2, collate=len))) == 2
    with pytest.raises(ValueError, match="sample 1"):
        collate([(1, 2), [1, 2]])


@pytest.mark.parametrize("prefetch", [0, 2])
def test_errors_arrive_in_order(prefetch):
    got = []
    with pytest.raises(KeyError, match="mine"):
        for batch in DataLoader(Odd(KeyError("mine")), prefetch=prefetch):
            got.append(batch["i"].item())
    assert got == [0, 1] and not threads()
    with pytest.raises(RuntimeError, match="StopIteration"):
        list(DataLoader(Odd(StopIteration()), prefetch=prefetch))


def test_a_pass_left_early_ends_its_thread():
    batches = iter(DataLoader(DATA))
    next(batches)
    assert len(threads()) == 1
    batches.close()
    assert not threads()


def test_refusals():
    with pytest.raises(ValueError, match="batch_size"):
        DataLoader(DATA, 0)
    for wrong in ((), (wg.ones(2), wg.ones(3)), (wg.tensor(1.0),)):
        with pytest.raises(ValueError, match="length"):
            TensorDataset(*wrong)


def test_progress_with_and_without_tqdm(monkeypatch):
    assert list(progress(range(3), total=3)) == [0, 1, 2]
    monkeypatch.setitem(__import__("sys").modules, "tqdm.auto", None)
    bar = progress(range(3), "text")
    bar.set_postfix(loss=1)
    assert list(bar) == [0, 1, 2]


def test_files(tmp_path):
    path = tmp_path / "t.safetensors"
    tensors = {
        "a": wg.arange(6.0).reshape(2, 3).T,
        "b": wg.tensor([True, False]),
        "c": wg.zeros((0, 3), dtype=wg.int8),
        "d": wg.tensor(1.5, dtype=wg.float64),
    }
    wg.save(tensors, path, metadata={"made": "here"})
    found = wg.load(path)
    assert set(found) == set(tensors)
    for name, t in tensors.items():
        assert found[name].dtype == t.dtype and found[name].tolist() == t.tolist()
    with pytest.raises(TypeError, match=r"'x': float.*'y': list"):
        wg.save({"a": wg.ones(1), "x": 1.0, "y": []}, path)
    assert set(wg.load(path)) == set(tensors), "a refused save leaves the file"
    assert [p.name for p in tmp_path.iterdir()] == ["t.safetensors"]
    with pytest.raises(OSError):
        wg.save(tensors, tmp_path / "none" / "t.safetensors")
    with pytest.raises(OSError):
        wg.load(tmp_path / "missing")
    path.write_bytes(b"not a file of tensors")
    with pytest.raises(ValueError):
        wg.load(path)
